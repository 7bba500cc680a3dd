"""Exact posteriors of latent features on tiny data: the weight of every bit matrix, or of every class of matrices.

    p(Z, X, y) = p(Z) prod_d E prod_n p(x_nd | m_n) E prod_n phi(y_n | f_n)

The prior object integrates the probabilities of the features out. Loadings and weights are Gaussian, so the predictors
m ~ N(0, Z Z^T / p_d) and the scores f ~ N(0, nu^2 (Z Z^T + B B^T)) of all rows are Gaussian too, with inputs B. Their
integrals are in closed form for the linear-Gaussian likelihood, else by quadrature over the directions of the
covariance. Precisions and concentrations with laws are integrated out by quadrature.

In the infinite model a class of matrices contains all orders of the columns (Griffiths & Ghahramani 2011).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..models.latent_features import FeatureData
from ..models.likelihoods import LinearGaussian
from ..models.priors import Hyper
from .feature_programs import check_features
from .hyperparameters import hyper_grid, log_mean
from .references import Reference, register_reference

Bits = tuple[tuple[int, ...], ...]
"""A matrix of bits as a tuple of its rows."""


def feature_posterior(model: Any, X: Any, y: Any = None, *, truncation: int | None = None) -> dict[Bits, float]:
    """Exact probability of every matrix [N, K] of K = `truncation` features, or of every class of the infinite model.

    A class (matrices that differ only in the order of columns) is written with its columns in ascending order; classes
    with many features are left out.

    Raises
    ------
    ValueError    if there are too many matrices, or if those left out matter.
    """
    log_weights = feature_log_weights(model, X, y, truncation=truncation)
    probabilities = torch.tensor(list(log_weights.values()), dtype=torch.float64).softmax(0).tolist()
    exact = dict(zip(log_weights, probabilities, strict=True))
    if truncation is None and model.prior.infinite:
        most = max(len(bits[0]) for bits in exact)
        if (left_out := sum(value for bits, value in exact.items() if len(bits[0]) == most)) > 1e-3:
            raise ValueError(
                f"{most} features have probability {left_out:.2g}, and more of them are left out. Use a smaller "
                "concentration."
            )
    return exact


def log_feature_evidence(model: Any, X: Any, y: Any = None, *, truncation: int) -> float:
    """log p(X, y) of the truncated model, with all latents integrated out: the upper bound of an ELBO."""
    log_weights = feature_log_weights(model, X, y, truncation=truncation)
    return float(torch.tensor(list(log_weights.values()), dtype=torch.float64).logsumexp(0))


def feature_log_weights(model: Any, X: Any, y: Any = None, *, truncation: int | None = None) -> dict[Bits, float]:
    """log p(Z, X, y) of every matrix of the truncated model, or of every class of the infinite one.

    A finite prior has `model.truncation` features, whatever `truncation` is.
    """
    resolved = model.resolve(X, y)
    data = resolved.data(X, y)
    infinite = truncation is None and resolved.prior.infinite
    log_prior = _log_prior(resolved.prior, data.num_data, infinite)
    log_likelihood = _log_likelihood(resolved, data)
    matrices = _classes(data.num_data) if infinite else _matrices(data.num_data, truncation or resolved.truncation)
    return {bits: log_prior(tuple(zip(*bits, strict=True))) + log_likelihood(bits) for bits in matrices}


def shared_features(features: Tensor) -> Tensor:
    """Numbers [2 N^2 + 3] that do not depend on the order of the features [N, K].

    They say which rows share at least 1 and at least 2 features, and whether at least 1, 2 and 3 features are used.
    """
    bits = features.double().cpu()
    shared, used = bits @ bits.T, bits.sum(0).gt(0).sum()
    return torch.cat([*((shared >= number).flatten() for number in (1, 2)), used >= torch.tensor([1, 2, 3])]).double()


# -- which matrices there are, and their prior -------------------------------------------------------------------------


def _matrices(num_data: int, truncation: int) -> Iterator[Bits]:
    if num_data * truncation > 14:
        raise ValueError(f"{num_data} rows of {truncation} bits are too many. Use at most 14 bits.")
    for bits in itertools.product((0, 1), repeat=num_data * truncation):
        yield tuple(bits[n * truncation : (n + 1) * truncation] for n in range(num_data))


def _classes(num_data: int) -> Iterator[Bits]:
    """One matrix of each class: an unordered collection of columns that are not empty."""
    if num_data not in _MOST_FEATURES:
        raise ValueError(f"{num_data} rows have too many classes of matrices. Use one of {list(_MOST_FEATURES)}.")
    columns = list(itertools.product((0, 1), repeat=num_data))[1:]
    for number in range(_MOST_FEATURES[num_data] + 1):
        for chosen in itertools.combinations_with_replacement(columns, number):
            yield tuple(tuple(column[n] for column in chosen) for n in range(num_data))


def _log_prior(prior: Any, num_data: int, infinite: bool) -> Callable[[tuple[Any, ...]], float]:
    """A function that returns log p(Z) from the columns of Z, with hyperparameters summed out."""

    @cache
    def of_counts(counts: tuple[int, ...]) -> float:
        m = torch.tensor(counts, dtype=torch.float64)
        law = prior.log_infinite if infinite else prior.log_features
        return float(log_mean(prior, lambda h: law(m, num_data, h)))

    def of_columns(columns: tuple[Any, ...]) -> float:
        orders = sum(math.lgamma(columns.count(column) + 1) for column in set(columns)) if infinite else 0.0
        return of_counts(tuple(sum(column) for column in columns)) - orders

    return of_columns


# -- entries and margins -----------------------------------------------------------------------------------------------


def _log_likelihood(model: Any, data: FeatureData) -> Callable[[Bits], float]:
    """A function that returns log p(X, y | Z), which depends only on the numbers of features that rows share."""
    known = torch.nonzero(~data.targets.isnan().all(1)).flatten().tolist()

    @cache
    def entries(gram: Bits) -> float:
        return _log_entries(model.likelihood, data, torch.tensor(gram, dtype=torch.float64))

    @cache
    def margin(gram: Bits) -> float:
        inputs = data.inputs[known].double()
        covariance = model.weight_scale**2 * (torch.tensor(gram, dtype=torch.float64) + inputs @ inputs.T)
        return _log_margin(model, data.targets[known].double(), covariance)

    def both(bits: Bits) -> float:
        gram = [[sum(map(int.__mul__, one, other)) for other in bits] for one in bits]
        labelled = [[gram[n][m] for m in known] for n in known]
        return entries(tuple(map(tuple, gram))) + (margin(tuple(map(tuple, labelled))) if known else 0.0)

    return both


def _log_entries(likelihood: Any, data: FeatureData, gram: Tensor) -> float:
    """log p(X | Z) from Z Z^T [N, N], with precisions that have laws summed out."""
    X = data.X.double()
    observed = torch.ones_like(X) if data.observed is None else data.observed
    values, log_weights = hyper_grid(likelihood)
    if isinstance(likelihood, LinearGaussian):
        log_density = _log_gaussian_entries(likelihood, X, observed, gram, values)
    else:
        nodes = [{name: value[index] for name, value in values.items()} for index in range(len(log_weights))]
        log_density = torch.stack([_log_any_entries(likelihood, X, observed, gram, h) for h in nodes])
    return float((log_density + log_weights).logsumexp(0))


def _log_gaussian_entries(
    likelihood: LinearGaussian, X: Tensor, observed: Tensor, gram: Tensor, values: Hyper
) -> Tensor:
    """log N(x_d; offset, Z Z^T / p + I / a) [G], summed over columns, for G values of the precisions a and p."""
    noise, loading = (values[f"{name}_precision"].unsqueeze(1) for name in ("noise", "loading"))
    residual, total = X - likelihood.offset, noise.new_zeros(len(noise))
    for pattern in torch.unique(observed, dim=1).T:
        rows = torch.nonzero(pattern).squeeze(1)
        own = (observed == pattern.unsqueeze(1)).all(0)
        directions, vectors = torch.linalg.eigh(gram[rows][:, rows])
        squares = (vectors.T @ residual[rows][:, own]).square().sum(1)
        variance = directions.clamp(min=0.0) / loading + 1 / noise  # [G, n]
        total = total - (own.sum() * (2 * math.pi * variance).log() + squares / variance).sum(1) / 2
    return total


def _log_any_entries(likelihood: Any, X: Tensor, observed: Tensor, gram: Tensor, h: Hyper) -> Tensor:
    """log of the integral over the predictors of each column, summed over columns, []."""
    root = _root(gram)
    nodes, log_weights = _nodes(root.shape[1])
    scale = likelihood.loading_precision(h, X.shape[1]).rsqrt()
    mean = (nodes @ root.T).unsqueeze(-1) * scale  # [S, N, D]
    many = X.expand_as(mean).flatten(0, 1)
    log_density = likelihood.log_density(many, mean.flatten(0, 1), h).view(mean.shape)
    return ((log_density * observed).sum(1) + log_weights.unsqueeze(1)).logsumexp(0).sum()


def _log_margin(model: Any, targets: Tensor, covariance: Tensor) -> float:
    """log E prod_n phi(y_n | f_n) for scores with this covariance [M, M] between rows, independent between classes."""
    root, num_scores = _root(covariance), targets.shape[1]
    groups = [list(range(num_scores))] if model.loss.meets else [[c] for c in range(num_scores)]
    total = 0.0
    for group in groups:
        nodes, log_weights = _nodes(root.shape[1] * len(group))
        scores = torch.einsum("mr,src->smc", root, nodes.view(len(nodes), root.shape[1], len(group)))
        log_factor = model.loss.log_factor(scores, targets[:, group]).sum((1, 2))
        total += float((log_factor + log_weights).logsumexp(0))
    return total


def _root(covariance: Tensor) -> Tensor:
    """R [N, r] with R R^T the covariance, where r is its rank."""
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > 1e-10 * values[-1:].clamp(min=1.0)
    return vectors[:, kept] * values[kept].sqrt()


@cache
def _nodes(num_dimensions: int) -> tuple[Tensor, Tensor]:
    """Nodes [S, r] of the standard normal law and their log weights [S].

    For r = 1 and 2 they are a grid of 8 standard deviations, for which a kink of slope s has a relative error of about
    (s step)^2 / 12 beside it; for larger r they are 2^14 scrambled Sobol points.
    """
    if num_dimensions not in _STEPS:
        engine = torch.quasirandom.SobolEngine(num_dimensions, scramble=True, seed=0)
        points = engine.draw_base2(14, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
        return torch.special.ndtri(points), torch.full((len(points),), -math.log(len(points)), dtype=torch.float64)
    if num_dimensions == 0:
        return torch.zeros(1, 0, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    step = _STEPS[num_dimensions]
    half = round(8 / step)
    axis = torch.arange(-half, half + 1, dtype=torch.float64) * step
    nodes = torch.cartesian_prod(*[axis] * num_dimensions).view(-1, num_dimensions)
    return nodes, num_dimensions * (math.log(step) - math.log(2 * math.pi) / 2) - nodes.square().sum(1) / 2


_STEPS = {0: 1.0, 1: 0.005, 2: 0.1}
_MOST_FEATURES = {1: 12, 2: 10, 3: 6}  # of a class, by the number of rows

register_reference(
    FeatureData,
    Reference(
        posterior=lambda model, X, y, lengths, truncation: feature_posterior(model, X, y, truncation=truncation),
        log_evidence=lambda model, X, y, lengths, truncation: log_feature_evidence(model, X, y, truncation=truncation),
        program=check_features,
        site="features",
        indicators=shared_features,
    ),
)
