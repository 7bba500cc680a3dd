"""Variational inference of the multi-label joints in which components and classifiers share the labels.

    q = q(v, phi) prod_k q(psi_k) prod_c N(w_c; m_c, V_c) prod_n q(z_n) q(augmentation_n | z_n)

A sweep sets all global factors to their optimum given sums over points (`joints`), and then the points' factors to
theirs: the bound never falls. The mixture of x has the updates of partitions, to which the labels add a margin
(docs/derivations/label-sets, "Variational inference").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from ....models.bnmc import BNMC
from ....models.data import Data
from ....models.dpm import DPM
from ....models.label_data import LabelData
from ....models.sums import row_chunks
from ...classifiers.natural import natural_step, prior
from ...classifiers.ridge import Ridge, soft_sums
from ...distributed.collectives import all_sums
from ...distributed.stream import Stream, stream_labels
from ...posterior.label_draws import finished_draw
from ...running.chains import OfRows
from ...running.engine import Draw
from ..allocations import Climb
from ..factors import family_of, update_factors
from ..partition import kernel as partition
from ..partition.factors import VariationalPartition
from ..steps import Minibatch, Steps
from .blocks import Block, expect, move, shares, with_log_mixture
from .joints import kl as psi_kl
from .joints import local, means, prior_of


@dataclass(frozen=True, kw_only=True)
class LabelFactors(VariationalPartition):
    """Factors of a mixture whose components have no classifiers, and of C classifiers."""

    label_mean: Tensor  # [1, P, C]
    label_tril: Tensor  # [1, C, P, P]

    @cached_property
    def label_classifiers(self) -> Ridge:
        """q(w)."""
        return Ridge(self.label_mean, self.label_tril)

    def with_classifiers(self, q: Ridge) -> Self:
        """Replace q(w)."""
        return replace(self, label_mean=q.mean, label_tril=q.precision_tril)

    @staticmethod
    def start(
        model: BNMC,
        data: LabelData,
        generator: torch.Generator,
        start: Callable[[DPM, Data, torch.Generator], VariationalPartition] = partition.init,
    ) -> dict[str, Any]:
        """Fields of the first state of the mixture of (x, y), and classifiers at their prior."""
        first = start(model.mixture, data.points, generator)
        q = prior(1, data.features.shape[1], data.targets.shape[1], model.weight_scale, data.features)
        own = {item.name: getattr(first, item.name) for item in fields(first)}
        return {**own, "label_mean": q.mean, "label_tril": q.precision_tril}


@dataclass(frozen=True, kw_only=True)
class CoupledLabels(LabelFactors):
    """Factors of the mixture of x, of psi and of C classifiers, and sums over points for the last two."""

    psi: Tensor  # [T, 2 C] hyperparameters
    told: Tensor  # [T, 2 C] float64, sums over points that are added to the hyperparameters of psi's prior
    row_precision: OfRows  # [N, C] expected pseudo-observations of the scores
    row_shift: OfRows  # [N, C]

    def permuted(self, order: Tensor) -> Self:
        """Reorder the components [T]."""
        return replace(super().permuted(order), psi=self.psi[order], told=self.told[order])

    def without_rows(self) -> Self:
        """Drop the values of single rows."""
        return replace(super().without_rows(), row_precision=self.row_precision[:0], row_shift=self.row_shift[:0])


def init(model: BNMC, data: LabelData, generator: torch.Generator) -> CoupledLabels:
    """The first state of the mixture of (x, y), psi given its labels, and classifiers at their prior."""
    values = CoupledLabels.start(model, data, generator, partition.seeded)  # with all responsibilities
    (_, chi), _ = model.family.own(values["hyperparameters"])
    labels, shares, C = data.labels.nan_to_num(), data.inputs.counted(values["responsibilities"]), data.targets.shape[1]
    ones, known = all_sums(shares.T @ labels, shares.T @ (~data.labels.isnan()).to(labels))
    rest = known - ones if model.joint == "and" else torch.zeros_like(ones)
    values |= {
        "hyperparameters": chi.contiguous(),
        "psi": prior_of(model) + torch.cat([ones, rest], 1),
        "told": torch.zeros(len(chi), 2 * C, dtype=torch.float64, device=chi.device),
        "row_precision": data.features.new_zeros(data.num_data, C),
        "row_shift": data.features.new_zeros(data.num_data, C),
    }
    return update_points(CoupledLabels(**values), data, model)


# -- the two halves of a sweep -----------------------------------------------------------------------------------------


def update_points(state: CoupledLabels, data: LabelData, model: BNMC, scale: float = 1.0) -> CoupledLabels:
    """Update the points' factors in chunks of rows, the sums for psi and w, and the ELBO; points count `scale` times.

    log r_nk = E log pi_k + E log p(x_n | phi_k) + bound of E log p(y_n | psi_k, f_n) + const
    """
    expected = expect(blocks_of(state, data, model))
    base = with_log_mixture(state, expected.log_density)
    total, told = torch.zeros_like(state.bound), torch.zeros_like(state.told)
    parts: list[tuple[Tensor, ...]] = []
    for rows in row_chunks(data.features, model.truncation * data.targets.shape[1]):
        some = data.rows(rows)
        mean, variance = (part.squeeze(1) for part in state.label_classifiers.moments(some.features))
        one = torch.ones_like(mean)
        bounds = [model.loss.expected_log_factor(mean, variance, sign * one) for sign in (1, -1)]
        found = local(model, some.labels, (bounds[0], bounds[1]), state.psi)
        r, log_total = shares(base[rows] + found.margin)
        said = found.told(r, some.inputs.counted(r))
        total += some.inputs.counted(log_total).sum(dtype=torch.float64)
        told += said.statistics
        parts.append((r, said.times * model.loss.expect(mean, variance, one).precision, said.shift))
    r, precision, shift = (torch.cat(values) for values in zip(*parts, strict=True))
    total, told = all_sums(total, told)
    bound = scale * total - expected.kl - _other_kl(state, model)
    rows_of: dict[str, Any] = {"responsibilities": r, "row_precision": precision, "row_shift": shift}
    return replace(state, **rows_of, weights=data.weights, told=told, bound=bound)


def update_globals(state: CoupledLabels, data: LabelData, model: BNMC, scale: float = 1.0) -> CoupledLabels:
    """Update sticks, h, q(phi), psi and the classifiers; each point counts `scale` times."""
    counted: Any = replace(state, responsibilities=scale * state.responsibilities)
    moved: Any = update_factors(counted, data.inputs, plain_mixture(model))
    ridge, psi = _step(state, data, model, scale, 1.0), _psi_target(state, model, scale)
    found: CoupledLabels = replace(moved, psi=psi).with_classifiers(ridge)
    return found


def assign(state: CoupledLabels, data: LabelData, model: BNMC) -> Tensor:
    """The most probable component [N] of each row and its labels."""
    return update_points(state, data, model).responsibilities.argmax(1)


def blocks_of(state: CoupledLabels, data: LabelData, model: BNMC) -> list[Block]:
    """The rows of x, and q(phi)."""
    return [Block(family_of(model), data.x, state.hyperparameters)]


def _step(state: CoupledLabels, data: LabelData, model: BNMC, scale: float, rho: float) -> Ridge:
    """Take a natural-gradient step of q(w) of size rho, for the present pseudo-observations."""
    each = data.margins.counted(scale * torch.ones_like(data.features[:, :1]))
    sums = soft_sums(data.features, state.row_precision.unsqueeze(1), state.row_shift.unsqueeze(1), each)
    return natural_step(state.label_classifiers, sums, model.weight_scale, rho)


def _psi_target(state: CoupledLabels, model: BNMC, scale: float) -> Tensor:
    return prior_of(model) + (scale * state.told).to(state.psi)


def _other_kl(state: CoupledLabels, model: BNMC) -> Tensor:
    """The KL of all global factors except q(phi) from their priors, [] float64."""
    weights = state.label_classifiers.kl(model.weight_scale).sum(dtype=torch.float64)
    return state.prior_kl(model) + psi_kl(model, state.psi) + weights


def plain_mixture(model: BNMC) -> DPM:
    """The mixture of x alone."""
    return DPM(model.likelihood, model.prior, model.truncation, model.num_features)


# -- sweeps ------------------------------------------------------------------------------------------------------------


def unions(state: CoupledLabels, data: LabelData, model: BNMC) -> Iterator[CoupledLabels]:
    """The unions of the most promising pairs of components."""
    return (_pooled(state, union) for union in partition.unions(state, data, model))


def _pooled(state: CoupledLabels, union: CoupledLabels) -> CoupledLabels:
    """Merge the sums for psi after a union: those of the absorbed component are added to the kept one."""
    moved = union.sizes - state.sizes
    kept, absorbed = int(moved.argmax()), int(moved.argmin())
    told = state.told.clone()
    told[kept] += told[absorbed]
    told[absorbed] = 0.0
    return replace(union, told=told)


POINTS = Climb(update_globals, update_points, unions)
sweep, ascend = POINTS.sweep, POINTS.ascend


def extrapolate(state: CoupledLabels, rows: LabelData, model: BNMC, num_data: int, num_units: float) -> CoupledLabels:
    """The start of stochastic steps: factors as if there were points like these that count `num_units` in all."""
    return update_globals(state, rows, model, num_units / rows.total_weight).without_rows()


def stochastic_sweep(state: CoupledLabels, batch: Minibatch[LabelData], model: BNMC, rho: float) -> CoupledLabels:
    """Move natural parameters by rho towards the optimum for a batch, scaled to represent all points.

    The recorded bound is the batch's estimate at the factors before the step.
    """
    data, scale = batch
    near = update_points(state, data, model, scale)
    ridge = _step(near, data, model, scale, rho)
    moved = move(near, blocks_of(near, data, model), scale * near.memberships, plain_mixture(model), rho)
    psi = torch.lerp(near.psi, _psi_target(near, model, scale), rho)
    return replace(moved, psi=psi).with_classifiers(ridge)


# -- for the backend ---------------------------------------------------------------------------------------------------


def summary(state: CoupledLabels, data: LabelData | Stream[LabelData], model: BNMC) -> Draw:
    """The draw that the posterior keeps, for `LabelData` or a stream of it."""
    labels = {"label_means": means(model, state.psi), "label_hyperparameters": state.psi}
    kept = kept_of(state, data, plain_mixture(model)) | labels
    return finished_draw(kept, state.label_mean.squeeze(0), data, model)


def kept_of(state: LabelFactors, data: LabelData | Stream[LabelData], mixture: DPM) -> Draw:
    """The part of a draw that both joints share: the mixture, and the spread of the classifiers."""
    kept = partition.summary(state, data, mixture)
    kept.pop("precision_tril")  # components have no classifiers
    return kept | {"classifier_tril": state.label_tril.squeeze(0)}


STEPS = Steps(
    state=CoupledLabels,
    init=init,
    sweep=sweep,
    complete=update_points,
    draw=summary,
    stochastic=partition.by_rows(extrapolate, stochastic_sweep, stream_labels, assign),
)
