"""The SVI kernel of structures whose points have components: start, sweeps, unions, stochastic steps.

A sweep sets the global factors to their optimum given q(z), then q(z) to its own: the bound never falls. A stochastic
step moves natural parameters towards the optimum for a minibatch (Hoffman et al. 2013). The methods of
`factors.Variational` hold what differs between mixtures and chains of states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ...models.bnmc import BNMC
from ...models.data import Data
from ...models.label_data import LabelData
from ...models.likelihoods.exponential_family import ExponentialFamily
from ...models.mixture import Mixture
from ...models.sequence import Sequences, StateSpace
from ...models.shares import shares_of
from ...models.sums import row_chunks
from ..classifiers.natural import prior
from ..seeding import far_apart
from .factors import (
    SETTLED,
    Placed,
    State,
    Variational,
    allocate,
    chunks,
    family_of,
    kl,
    move,
    see,
    summed_with,
    update_components,
    update_factors,
)
from .steps import Minibatch
from .sums import Sums, keep_rows

D = TypeVar("D", bound=Data | Sequences | LabelData)
M = TypeVar("M")


def start(
    kind: type[State],
    model: Mixture | StateSpace,
    data: Placed,
    generator: torch.Generator,
    *,
    observes: bool = True,
) -> State:
    """A first state of independent points from distant seeds, largest component first, classifiers at their prior.

    With `observes` it has the classifiers' expected pseudo-observations; without, all responsibilities and nothing
    else.
    """
    points, family, T = data.points, family_of(model), model.truncation
    chi = family.prior() + family.statistics(far_apart(family, points.X, T, generator, points.weights))
    q = prior(T, points.features.shape[1], points.targets.shape[1], model.weight_scale, points.features)
    keep = not (kind.separate and observes) or keep_rows(points, T)
    sums = Sums(family, points, T, keep=keep)
    for rows, some in chunks(kind.separate, data, model):
        r, _ = shares_of(family.log_predictive(some.points.X, chi))
        sums.add(rows, some.points, r, see(q, some.points, model) if observes else None)
    own: dict[str, Any] = {"hyperparameters": chi, "mean": q.mean, "precision_tril": q.precision_tril}
    own |= {"bound": chi.new_tensor(-torch.inf, dtype=torch.float64), "weights": points.weights}
    state = kind.started(model, data, own | sums.fields())
    state = state.permuted(state.sizes.argsort(descending=True))
    return update_components(state.with_prior(model), data, model)


# -- full batch: coordinate ascent -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Climb(Generic[State, D, M]):
    """Coordinate ascent for a class of states; each function takes (state, data, model)."""

    update_factors: Callable[[State, D, M], State]  # updates all factors except q(z)
    allocate: Callable[[State, D, M], State]  # updates q(z) and the bound
    unions: Callable[[State, D, M], Iterable[State]]  # unions of two components, the most promising first

    def sweep(self, state: State, data: D, model: M) -> State:
        """Update all factors, then q(z); reorder and merge components where the bound rises."""
        first = state.num_data != data.num_data  # so in the first full sweep after stochastic steps
        if first:
            state = self.allocate(state, data, model)
        before = state.bound
        if first or state.may_merge:  # later, the sizes hardly change
            state = state.reordered(model)
        state = self.ascend(state, data, model)
        rise = state.bound - before
        if state.may_merge and rise <= SETTLED * state.sizes.sum():
            state = self.merge(state, data, model, rise)
        return state

    def ascend(self, state: State, data: D, model: M) -> State:
        """One round of the block updates."""
        return self.allocate(self.update_factors(state, data, model), data, model)

    def merge(self, state: State, data: D, model: M, rise: Tensor) -> State:
        """Return the first of the most promising unions that raises the bound, or the state itself.

        Coordinate ascent hardly ever empties a component that has points, so without unions it would keep all
        components of its start (Bryant & Sudderth 2012; Hughes & Sudderth 2013). As the state may not have converged,
        a union must also exceed what the state reaches in `FAIR_ROUNDS` more sweeps; these are spared if its lead is
        larger than so many times the state's last `rise` [].
        """
        for joined in self.unions(state, data, model):
            if (better := self._past(state.bound, joined, data, model)) is None:
                continue
            for left in range(FAIR_ROUNDS, -1, -1):
                if better.bound > state.bound + left * rise:
                    return better
                if left:
                    before = state.bound
                    better, state = self.ascend(better, data, model), self.ascend(state, data, model)
                    rise = state.bound - before
        return replace(state, may_merge=False)

    def _past(self, bound: Tensor, joined: State, data: D, model: M) -> State | None:
        """A union after the rounds of updates that it needs to exceed a bound []; None if it will not.

        The first round regains what the union itself has lost. Then rises shrink, about in proportion. A union is given
        up once all that may come would leave it below the bound: after two rounds as much as the last rise, later the
        sum of a geometric series.
        """
        rise = bound
        for number in range(1, MOST_ROUNDS + 1):
            last, before, joined = rise, joined.bound, self.ascend(joined, data, model)
            rise, lacking = joined.bound - before, bound - joined.bound
            if lacking < 0:
                return joined
            if (number == 2 and lacking >= rise) or (number > 2 and lacking * (last - rise) >= rise * rise):
                break
        return None


def pairs(state: Variational[Any, Any], model: Mixture | StateSpace | BNMC) -> list[list[int]]:
    """Pairs of occupied components, sorted by the gain in block marginal of their union, largest first."""
    family, chi = family_of(model), state.hyperparameters
    occupied = torch.nonzero(state.sizes > 0.5).squeeze(1)
    first, second = occupied[torch.triu_indices(len(occupied), len(occupied), 1, device=occupied.device)]
    own = family.log_marginal(chi)
    gain = block_unions(family, chi, first, second) - own[first] - own[second]
    best = gain.topk(min(MERGE_TRIES, len(gain))).indices
    return torch.stack([first[best], second[best]], 1).tolist()


def block_unions(family: ExponentialFamily, chi: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """log m [M] of the unions of M pairs of components, from hyperparameters chi [T, S] of all components."""
    unions = [
        family.log_marginal(chi[first[some]] + chi[second[some]] - family.prior())
        for some in row_chunks(first, chi.shape[1])
    ]
    return torch.cat(unions)


# -- minibatches: stochastic natural gradients -------------------------------------------------------------------------


def extrapolate(state: State, rows: Placed, model: Mixture | StateSpace, num_data: int, num_units: float) -> State:
    """The start of stochastic steps: factors as if `rows` represented all points, which count `num_units`."""
    return update_factors(state.standing_for(rows, num_data, num_units), rows, model).without_rows()


def stochastic_sweep(state: State, batch: Minibatch[Any], model: Mixture | StateSpace, rho: float) -> State:
    """Move natural parameters by rho towards the optimum for a batch, scaled to represent all points."""
    penalty = kl(state, model)
    local = allocate(state, batch.data, model, penalty)
    local, (said,) = summed_with(local.scaled(batch.scale), batch.data, model, local.bound + penalty)
    target = update_components(local, batch.data, model)
    bound = batch.scale * said - penalty  # the KL of global factors does not scale with the number of points
    return replace(move(state, target, model, rho), bound=bound)


MERGE_TRIES = 10
FAIR_ROUNDS = 5
MOST_ROUNDS = 30  # of coordinate ascent after a union that nears the bound before it
