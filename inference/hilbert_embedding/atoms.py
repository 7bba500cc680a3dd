"""Components of a mixture whose weights are to be found: from the prior, from rows, or from a posterior.

The components of a posterior are fixed at one point each (`posterior_components`), or drawn from its predictive
distribution (`Predictive`): sum_g sum_k w_k^g p(x | component k of draw g) / S, new components included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ...models.base import Model
from ...models.distributions.sampling import uniforms
from ...models.likelihoods import ExponentialFamily, Likelihood, Parameters
from ...models.sparse import Rows
from ...models.sums import all_sum
from ..seeding import far_apart
from ..structures import Draw
from .mean_families import point_parameters


def from_prior(family: Likelihood, truncation: int, generator: torch.Generator) -> Parameters:
    """T draws [T, ...] from the prior of a resolved likelihood."""
    return family.draw(family.prior().to(generator.device).expand(truncation, -1), generator)


def from_rows(
    family: ExponentialFamily, X: Rows, weights: Tensor | None, truncation: int, generator: torch.Generator
) -> Parameters:
    """T components [T, ...] of groups of the rows of X [N, D], largest first; rows have weights [N].

    Seeds are distant rows; a few rounds assign every row to the component that predicts it best.
    """
    chi = family.prior() + family.statistics(far_apart(family, X, truncation, generator, weights))
    for _ in range(_NUM_ROUNDS):
        chi, sizes = _grouped(family, X, weights, family.log_predictive(X, chi).argmax(1), truncation)
    return point_parameters(family, chi[sizes.argsort(descending=True, stable=True)], generator)


def from_labels(
    family: ExponentialFamily, X: Rows, weights: Tensor | None, labels: Tensor, generator: torch.Generator
) -> Parameters:
    """The components [K, ...] of the groups of rows of X [N, D] with equal labels [N], largest first."""
    labels = torch.unique(labels.to(X.device), return_inverse=True)[1]
    chi, sizes = _grouped(family, X, weights, labels, int(labels.max()) + 1)
    return point_parameters(family, chi[sizes.argsort(descending=True, stable=True)], generator)


def posterior_components(model: Model, draw: Draw) -> Parameters:
    """The components [K, ...] of a draw of a posterior over partitions, of largest weight first, each at one point."""
    _require_density(draw)
    log_mixture = draw["log_mixture"][:-1]
    order = log_mixture.argsort(descending=True, stable=True)
    chosen = order[log_mixture[order] > -torch.inf]
    if "hyperparameters" in draw:
        chi = draw["hyperparameters"][chosen]
        return point_parameters(model.likelihood, chi, torch.Generator(chi.device).manual_seed(0))
    return {name.removeprefix(_OWN): value[chosen] for name, value in draw.items() if name.startswith(_OWN)}


@dataclass(frozen=True)
class Predictive:
    """The mixture of all draws of a posterior over partitions, with A components and without margin factors."""

    family: Any
    weights: Tensor  # [A] double, summing to 1
    chi: Tensor | None  # [A, S] hyperparameters, if parameters are not fixed
    own: Parameters  # [A, ...] fixed parameters otherwise

    @classmethod
    def of(cls, model: Model, samples: Draw) -> Self:
        """The mixture from the samples [S, ...] of a posterior.

        Raises
        ------
        NotImplementedError    if they are centres alone, which have no density.
        """
        _require_density(samples)
        log_mixture, chi = samples["log_mixture"].double(), None
        if "hyperparameters" in samples:
            seen = samples["hyperparameters"]
            new = model.likelihood.prior().to(seen).expand(len(seen), 1, -1)
            chi = torch.cat([seen, new], 1).flatten(0, 1)
        else:
            log_mixture = log_mixture[:, :-1]
        weights = log_mixture.softmax(1).flatten() / len(log_mixture)
        own = {name.removeprefix(_OWN): value.flatten(0, 1) for name, value in samples.items() if name.startswith(_OWN)}
        return cls(model.likelihood, weights, chi, own)

    def parameters(self, index: Tensor, generator: torch.Generator) -> Parameters:
        """Parameters [M, ...] of components `index` [M], drawn if the posterior does not fix them."""
        if self.chi is not None:
            found: Parameters = self.family.draw(self.chi[index], generator)
            return found
        return {name: value[index] for name, value in self.own.items()}

    def components(self, most: int, generator: torch.Generator) -> tuple[Parameters, Tensor]:
        """Parameters [M, ...] and weights [M] of at most `most` components that represent the mixture.

        They are all of it, if there are few enough with fixed parameters. Otherwise they are `most` of equal weight,
        each component as often as its weight says (systematic resampling), with parameters drawn for each.
        """
        used = self.weights.nonzero().squeeze(1)
        if self.chi is None and len(used) <= most:
            return self.parameters(used, generator), self.weights[used]
        levels = (torch.arange(most, device=self.weights.device) + uniforms((1,), generator)) / most
        return self.parameters(self._at(levels), generator), self.weights.new_full((most,), 1 / most)

    def rows(self, count: int, totals: Tensor | None, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Independent rows [M, D] of the mixture, and their components [M]; `totals` [M] are for the likelihood."""
        index, found = self._at(uniforms((count,), generator)), list[Tensor]()
        for rows in torch.arange(count, device=index.device).split(_MOST_AT_ONCE):
            own = None if totals is None else totals[rows]
            found.append(self.family.draw_rows(self.parameters(index[rows], generator), generator, own))
        return torch.cat(found), index

    def _at(self, levels: Tensor) -> Tensor:
        """Components [M] at levels [M] of the cumulative weights; none of weight 0."""
        used = self.weights.nonzero().squeeze(1)
        ends = self.weights[used].cumsum(0)
        return used[torch.searchsorted(ends, levels * ends[-1], right=True).clamp(max=len(used) - 1)]


def _require_density(samples: Draw) -> None:
    if "centers" in samples:
        raise NotImplementedError("Small-variance centres have no density. Fit with Gibbs or SVI.")


def _grouped(
    family: ExponentialFamily, X: Rows, weights: Tensor | None, labels: Tensor, num_groups: int
) -> tuple[Tensor, Tensor]:
    """Posterior hyperparameters [K, S] and sizes [K] of groups of rows."""
    members = one_hot(labels, num_groups).to(X.dtype)
    members = members if weights is None else members * weights.to(members).unsqueeze(1)
    return family.prior() + family.weighted_statistics(X, members), all_sum(members.sum(0))


_OWN = "parameters."
_MOST_AT_ONCE = 4096
_NUM_ROUNDS = 4  # further regroupings change little
