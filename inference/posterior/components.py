"""Densities, parameters and scores of rows under the components of a draw, for partitions and sequences.

The parameters of a component are in a draw as posterior `hyperparameters` [K, S] of the likelihood, as
`parameters.<name>` [K, ...] of a likelihood without conjugacy, or as `centers` [K, D] in the small-variance limit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...models.base import Model
from ...models.domains import Flag, read
from ...models.likelihoods.base import Parameters
from ...models.scores import scores as scores_of
from ..classifiers.ridge import Ridge
from ..structures import Draw


def component_size(model: Model, X: Any) -> int:
    """The least number of values of a component for rows [N, D]: its hyperparameters, or a centre."""
    return max(X.shape[1], len(model.likelihood.prior()))


def log_component_density(model: Model, X: Tensor, draw: Draw) -> Tensor:
    """log p(x_n | component k) [N, K] of rows [N, D]; for centres -scale times the divergence, up to a constant."""
    likelihood = model.likelihood
    if "centers" in draw:
        cost: Tensor = likelihood.divergence(likelihood.coordinates(X), draw["centers"])
        return -draw["scale"] * cost if "scale" in draw else -cost
    if "hyperparameters" in draw:
        density: Tensor = likelihood.log_predictive(X, draw["hyperparameters"])
        return density
    density = likelihood.log_density(X, _drawn_parameters(draw))
    return density


def expected_parameters(model: Model, draw: Draw) -> Parameters:
    """Parameters [K, ...] of the components of a draw; expectations, if the draw has hyperparameters.

    Raises
    ------
    NotImplementedError    of centres, which are a small-variance limit.
    """
    if "centers" in draw:
        raise NotImplementedError("Small-variance centres have no density. Fit with Gibbs or SVI.")
    if "hyperparameters" not in draw:
        return _drawn_parameters(draw)
    found: Parameters = model.likelihood.parameters(draw["hyperparameters"], lambda name, law: law.mean)
    return found


def draw_parameters(model: Model, draw: Draw, index: Tensor, generator: torch.Generator) -> Parameters:
    """Parameters [M, ...] of components `index` [M] of a draw (K: a new one), drawn if it has hyperparameters."""
    if "hyperparameters" not in draw:
        return {name: value[index] for name, value in _drawn_parameters(draw).items()}
    seen = draw["hyperparameters"]
    chi = torch.cat([seen, model.likelihood.prior().to(seen).unsqueeze(0)])
    found: Parameters = model.likelihood.draw(chi[index], generator)
    return found


def _drawn_parameters(draw: Draw) -> Parameters:
    return {name.removeprefix("parameters."): value for name, value in draw.items() if name.startswith("parameters.")}


def log_unseen_density(model: Model, X: Tensor, draw: Draw) -> Tensor:
    """log p(x_n) [N, 1] of rows [N, D] in a new component; -inf if the draw has no such component."""
    if "hyperparameters" not in draw:
        return torch.full((len(X), 1), -torch.inf, dtype=X.dtype, device=X.device)
    density: Tensor = model.likelihood.log_predictive(X, model.likelihood.prior().unsqueeze(0))
    return density


def score_moments(model: Model, X: Tensor, draw: Draw) -> tuple[Tensor, Tensor | None]:
    """Means [N, K, C] of the scores of rows [N, D], and for variational classifiers variances [N, K, C]."""
    features, weights = model.features(X), draw["weights"]
    scores = scores_of(features, weights)
    if "precision_tril" not in draw or not scores.numel():
        return scores, None
    return scores, Ridge(weights, draw["precision_tril"]).score_variance(features)


def all_score_moments(model: Model, X: Tensor, draw: Draw) -> tuple[Tensor, Tensor | None]:
    """`score_moments` [N, K + 1, C] with a new component at the end, whose classifier has its prior.

    There the mean is 0 and the variance nu^2 |a(x)|^2. None in place of variances: all are 0.
    """
    mean, variance = score_moments(model, X, draw)
    mean = pad(mean, (0, 0, 0, 1))
    if variance is None and not draw["log_mixture"][-1] > -torch.inf:
        return mean, None
    unseen = model.weight_scale**2 * model.features(X).square().sum(1)
    variance = torch.zeros_like(mean) if variance is None else pad(variance, (0, 0, 0, 1))
    variance[:, -1] = unseen.unsqueeze(1)
    return mean, variance


def counts_hyperplanes(model: Model, discriminative: bool | None) -> bool:
    """Whether hyperplanes count as well as the likelihood; None: if components repel.

    Raises
    ------
    ValueError    if they are asked to and there are none.
    """
    discriminative = read("discriminative", discriminative, Flag(), optional=True)
    part: bool = model.repels
    if discriminative and not part:
        raise ValueError(
            f"discriminative is True, but the components of {type(model).__name__} have no hyperplanes that separate "
            "them. Leave it out."
        )
    return part if discriminative is None else discriminative


def hyperplane_gain(model: Model, X: Tensor, draw: Draw) -> Tensor:
    """h(f) [N, K]: the hyperplanes' term in the log weights of the components of a draw, for rows [N, D].

    For variational hyperplanes it is the difference of the bounds of E log phi, as in the fit.
    """
    scores, variance = score_moments(model, X, draw)
    if variance is None:
        gain: Tensor = model.log_margin(scores, model.targets(X).unsqueeze(1))
        return gain
    bound, one = model.loss.expected_log_factor, torch.ones_like(scores)
    gain = (bound(scores, variance, one) - bound(scores, variance, -one)).sum(-1)
    return gain
