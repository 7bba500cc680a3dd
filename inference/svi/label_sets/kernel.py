"""Variational inference of multi-label models: coordinate ascent, or stochastic natural gradients.

    q = q(v, phi, psi, z) prod_c N(w_c; m_c, V_c) prod_nc q(omega_nc)

The first factor is that of the mixture of (x, y), with the updates of partitions. The other factors are those of a
ridge regression with one component that holds all points. Both parts are independent in the posterior of joint P, so
that their bounds add up (docs/derivations/label-sets, "Variational inference", which corrects the algorithm of the
supplement: its draws of w become q(w)).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ....models.bnmc import BNMC
from ....models.label_data import LabelData
from ...classifiers.natural import Evidence, prior
from ...classifiers.ridge import Ridge
from ...distributed.collectives import all_sum
from ...distributed.stream import Stream, stream_labels
from ...posterior.label_draws import label_draw
from ...running.engine import Draw
from ..allocations import Climb
from ..factors import SETTLED, family_of
from ..partition import kernel as partition
from ..partition.kernel import restored_fields
from ..rules import NATURAL
from ..steps import Minibatch, Steps, StepsByRule
from ..sums import Sums, keep_rows, slices
from . import coupled, unions
from .blocks import Block, expect, kl_of, laws_of, move, shares, stepped, with_log_mixture
from .coupled import CoupledLabels, LabelFactors, kept_of


@dataclass(frozen=True, kw_only=True)
class VariationalLabels(LabelFactors):
    """`LabelFactors` of two independent parts; `bound` is the sum of both bounds."""

    margin_bound: Tensor  # [] float64, the classifiers' bound

    @property
    def mixture(self) -> VariationalLabels:
        """The state with the bound of the mixture alone, which the mixture's updates compare."""
        return replace(self, bound=self.bound - self.margin_bound)


def init(model: BNMC, data: LabelData, generator: torch.Generator) -> VariationalLabels:
    """The first state of the mixture, and classifiers at their prior."""
    values = VariationalLabels.start(model, data, generator)
    return VariationalLabels(**values, margin_bound=torch.zeros_like(values["bound"]))


# -- the classifiers ---------------------------------------------------------------------------------------------------


def update_classifiers(state: VariationalLabels, data: LabelData, model: BNMC, scale: float = 1.0) -> VariationalLabels:
    """Set q(w) to its optimum for pseudo-observations at the present factors; points count `scale` times."""
    return state.with_classifiers(evidence(data, model, scale).step_with_moments(state.label_classifiers)[0])


def evidence(data: LabelData, model: BNMC, scale: float = 1.0) -> Evidence:
    """The points as `Evidence` for the classifiers; each counts `scale` times."""
    times = data.margins.counted(scale * torch.ones_like(data.features[:, 0]))
    return Evidence(data.features, data.targets, model.loss, model.weight_scale, times)


def _bounded(state: VariationalLabels, data: LabelData, model: BNMC) -> VariationalLabels:
    """Add the classifiers' bound to the bound of the mixture."""
    margin = evidence(data, model).bound(state.label_classifiers)
    return replace(state, margin_bound=margin, bound=state.bound + margin)


# -- the mixture -------------------------------------------------------------------------------------------------------


def update_factors(state: VariationalLabels, data: LabelData, model: BNMC) -> VariationalLabels:
    """Set all factors of the mixture except q(z) to their optimum."""
    if state.statistics is not None:
        moved = state.with_prior(model.mixture)
        return replace(moved, hyperparameters=model.family.prior() + state.statistics)
    chi, sizes = stepped(blocks_of(state, data, model), state.memberships, 1.0)
    return replace(replace(state, counts=sizes).with_prior(model.mixture), counts=None, hyperparameters=chi)


def update_points(state: VariationalLabels, data: LabelData, model: BNMC) -> VariationalLabels:
    """Set q(z) to its optimum and compute the mixture's bound; responsibilities are kept if they need little memory."""
    laws = laws_of(blocks_of(state, data, model))
    sums = Sums(model.family, data.inputs, model.truncation, keep=keep_rows(data.inputs, model.truncation))
    total = torch.zeros_like(state.bound)
    for rows in slices(data.inputs, model.truncation):
        some = data if rows.stop - rows.start >= data.num_data else data.rows(rows)
        density = reduce(torch.add, (law.log_density(own) for law, own in zip(laws, (some.x, some.y), strict=True)))
        r, log_total = shares(with_log_mixture(state, density))
        total += some.margins.counted(log_total).sum(dtype=torch.float64)
        sums.add(rows, some.inputs if sums.keep else some.points, r, None)
    bound = all_sum(total) - state.prior_kl(model.mixture) - kl_of(laws)
    own = {name: value for name, value in sums.fields().items() if name not in ("gram", "linear")}
    return replace(state, weights=data.weights, bound=bound, **own)


def gainful(state: VariationalLabels, data: LabelData, model: BNMC) -> Iterator[VariationalLabels]:
    """Make all unions that gain at the present responsibilities at once; at most half of the components go."""
    return unions.gainful(update_factors(state, data, model), data, model)


def unions_of(state: VariationalLabels, data: LabelData, model: BNMC) -> Iterator[VariationalLabels]:
    """The unions of `gainful` at once, then unions of single pairs that may gain once other factors are updated."""
    yield from gainful(state, data, model)
    yield from unions.promising(update_factors(state, data, model), data, model)


MIXTURE = Climb(update_factors, update_points, unions_of)
START = Climb(update_factors, update_points, gainful)


# -- sweeps ------------------------------------------------------------------------------------------------------------


def sweep(state: VariationalLabels, data: LabelData, model: BNMC) -> VariationalLabels:
    """Update the factors of the mixture, then the classifiers; no update lowers the bound."""
    moved = MIXTURE.sweep(state.mixture, data, model)
    return _bounded(update_classifiers(moved, data, model), data, model)


def extrapolate(
    state: VariationalLabels, rows: LabelData, model: BNMC, num_data: int, num_units: float
) -> VariationalLabels:
    """The start of stochastic steps: factors as if there were points like these that count `num_units` in all.

    No sweep has moved the classifiers yet, so their factors are updated until their bound hardly rises.
    """
    moved: Any = partition.extrapolate(state, rows.points, model.mixture, num_data, num_units)
    said = evidence(rows, model, num_units / rows.total_weight)
    ridge, bound = climb(said, moved.label_classifiers, SETTLED * num_units, _MOST_STEPS)
    return replace(moved, margin_bound=bound).with_classifiers(ridge)


def climb(said: Evidence, q: Ridge, least: float, most_steps: int) -> tuple[Ridge, Tensor]:
    """Update q(w) until its bound rises by at most `least`; also returns the bound [] before the last step."""
    before = bound = torch.full((), -torch.inf, dtype=torch.float64, device=q.mean.device)
    for _ in range(most_steps):
        ridge, moments = said.step_with_moments(q)
        before, bound, q = bound, said.bound(q, moments), ridge
        if bound - before <= least:
            break
    return q, bound


def stochastic_sweep(
    state: VariationalLabels, batch: Minibatch[LabelData], model: BNMC, rho: float
) -> VariationalLabels:
    """Move natural parameters by rho towards the optimum for a batch, scaled to represent all points.

    The recorded bound is the batch's estimate at the factors before the step.
    """
    (data, scale), mixture = batch, model.mixture
    q, said, blocks = state.label_classifiers, evidence(data, model, scale), blocks_of(state, data, model)
    ridge, moments = said.step_with_moments(q, rho)
    margin = said.bound(q, moments)
    expected = expect(blocks)
    r, log_total = shares(with_log_mixture(state, expected.log_density))
    total = all_sum(data.margins.counted(log_total).sum(dtype=torch.float64))
    bound = scale * total - state.prior_kl(mixture) - expected.kl + margin
    moved = move(state, blocks, scale * data.margins.counted(r), mixture, rho)
    return replace(moved, margin_bound=margin, bound=bound).with_classifiers(ridge)


def settled(model: BNMC, data: LabelData, generator: torch.Generator) -> Tensor:
    """The component [N] of each row after sweeps until no union raises the mixture's bound; a start for chains."""
    state = init(model, data, generator).mixture
    for _ in range(_MOST_SWEEPS):
        state = MIXTURE.sweep(state, data, model)
        if not state.may_merge:
            break
    return assign(state, data, model)


def assign(state: VariationalLabels, data: LabelData, model: BNMC) -> Tensor:
    """The most probable component [N] of each row and its labels."""
    return with_log_mixture(state, expect(blocks_of(state, data, model)).log_density).argmax(1)


def blocks_of(state: VariationalLabels, data: LabelData, model: BNMC) -> list[Block]:
    """The rows of x and the labels, each with its part of q(theta)."""
    pairs = zip(model.family.own(state.hyperparameters), (data.x, data.y), strict=True)
    return [Block(family, rows, chi) for (family, chi), rows in pairs]


# -- for the backend ---------------------------------------------------------------------------------------------------


def complete(state: VariationalLabels, data: LabelData, model: BNMC) -> VariationalLabels:
    """Compute the responsibilities of all rows, and the bound."""
    return _bounded(update_points(state, data, model), data, model)


def summary(state: VariationalLabels, data: LabelData | Stream[LabelData], model: BNMC) -> Draw:
    """The draw that the posterior keeps, for `LabelData` or a stream of it."""
    return label_draw(kept_of(state, data, model.mixture), state.label_mean.squeeze(0), data, model)


STEPS = Steps(
    state=VariationalLabels,
    init=init,
    sweep=sweep,
    complete=complete,
    draw=summary,
    stochastic=partition.by_rows(extrapolate, stochastic_sweep, stream_labels, assign, START.sweep),
)


def steps_of(model: BNMC) -> Steps[Any, LabelData, BNMC]:
    """The functions of a fit of the model's joint."""
    return coupled.STEPS if model.is_coupled else STEPS


def require(model: BNMC) -> None:
    """Raise unless the likelihoods are conjugate and the loss suits a coupled joint."""
    model.require_probabilities()
    family_of(model)


_MOST_STEPS = 5
_MOST_SWEEPS = 100

BY_RULE = StepsByRule(lambda backend, model: {NATURAL: steps_of(model)}, require, splits=True)


def restored_labels(kept: Draw, data: LabelData, model: BNMC) -> VariationalLabels | CoupledLabels:
    """Restore the state, without rows, from the draw that was made of it."""
    T, C = model.truncation, data.targets.shape[1]
    own = prior(T, 0, 0, model.weight_scale, data.features)  # of no classifiers
    values: dict[str, Any] = {
        **restored_fields(kept, data.points, model.family, T),
        "mean": own.mean,
        "precision_tril": own.precision_tril,
        "label_mean": kept["classifiers"].unsqueeze(0),
        "label_tril": kept["classifier_tril"].unsqueeze(0),
    }
    labels = kept["label_hyperparameters"]
    if not model.is_coupled:
        values["hyperparameters"] = torch.cat([kept["hyperparameters"], labels], 1)
        return VariationalLabels(**values, margin_bound=values["bound"])
    rows: dict[str, Any] = dict.fromkeys(("row_precision", "row_shift"), data.features.new_zeros(0, C))
    return CoupledLabels(**values, **rows, psi=labels, told=labels.new_zeros(T, 2 * C, dtype=torch.float64))
