"""Variational inference of multi-label models: coordinate ascent, or stochastic natural gradients.

    q = q(v, phi, psi, z) prod_c N(w_c; m_c, V_c) prod_nc q(omega_nc)

The first factor is that of the mixture of (x, y), whose updates are those of partitions; the others a ridge of one
component that holds all points. They are independent in the posterior of joint P, so that the two bounds add up
(math/multilabel, section 3, which corrects the algorithm of the supplement: its draws of w become q(w)).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ....models.bnmc import BNMC
from ....models.label_data import LabelData
from ...classifiers.ridge import Ridge, soft_natural
from ...distributed.collectives import all_sum
from ...posterior.label_draws import label_draw
from ...running.engine import Draw, Kernel
from ..backend import SVI
from ..partition import kernel as partition
from ..partition.factors import VariationalPartition, sticks_kl, update_responsibilities
from ..steps import Minibatch, Steps
from ..stream import Stream
from . import coupled as multi_label_coupled
from .blocks import Block, expect, move, shares, with_log_mixture
from .coupled import progress
from .stream import stream_labels

Moments = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class VariationalLabels(VariationalPartition):
    """Factors of the mixture, whose components have no classifiers, and of C classifiers; `bound` is of both."""

    label_mean: Tensor  # [1, P, C]
    label_tril: Tensor  # [1, C, P, P]
    margin_bound: Tensor  # [] float64, what the classifiers add to the bound

    @cached_property
    def label_classifiers(self) -> Ridge:
        """q(w)."""
        return Ridge(self.label_mean, self.label_tril)

    @property
    def mixture(self) -> VariationalLabels:
        """The same with the bound of the mixture alone, which its steps compare."""
        return replace(self, bound=self.bound - self.margin_bound)


def init(model: BNMC, data: LabelData, generator: torch.Generator) -> VariationalLabels:
    """The start of the mixture, and classifiers at their prior."""
    start = partition.init(model.mixture, data.points, generator)
    P, C = data.features.shape[1], data.targets.shape[1]
    identity = torch.eye(P, dtype=data.features.dtype, device=data.features.device)
    more: dict[str, Any] = {
        "label_mean": data.features.new_zeros(1, P, C),
        "label_tril": (identity / model.weight_scale).expand(1, C, P, P),
        "margin_bound": torch.zeros_like(start.bound),
    }
    return VariationalLabels(**{item.name: getattr(start, item.name) for item in fields(start)}, **more)


# -- the classifiers ---------------------------------------------------------------------------------------------------


def update_classifiers(state: VariationalLabels, data: LabelData, model: BNMC, scale: float = 1.0) -> VariationalLabels:
    """V_c^-1 = I / nu^2 + sum_n precision_nc a_n a_n^T,  m_c = V_c sum_n shift_nc a_n; a point counts `scale` times.

    The pseudo-observations are those at the factors as they are, so that the bound does not fall.
    """
    ridge = Ridge.of_natural(*_natural_target(score_moments(state, data), data, model, scale))
    return replace(state, label_mean=ridge.mean, label_tril=ridge.precision_tril)


def margin_bound(state: VariationalLabels, data: LabelData, model: BNMC) -> Tensor:
    """sum_nc bound of E log phi - KL(q(w) || prior), [] float64."""
    return _margin_bound(state, score_moments(state, data), data, model, 1.0)


def score_moments(state: VariationalLabels, data: LabelData) -> Moments:
    """Means and variances [N, C] of the scores."""
    variance = state.label_classifiers.score_variance(data.features)
    return data.features @ state.label_mean.squeeze(0), variance.squeeze(1)


def _natural_target(moments: Moments, data: LabelData, model: BNMC, scale: float) -> tuple[Tensor, Tensor]:
    observed, shape = model.loss.expect(*moments, data.targets), data.targets.shape
    precision, shift = (part.expand(shape).unsqueeze(1) for part in observed)
    each = data.margins.counted(scale * torch.ones_like(data.features[:, :1]))
    return soft_natural(data.features, precision, shift, each, weight_scale=model.weight_scale)


def _margin_bound(state: VariationalLabels, moments: Moments, data: LabelData, model: BNMC, scale: float) -> Tensor:
    factors = model.loss.expected_log_factor(*moments, data.targets)
    total = all_sum(data.margins.counted(factors).sum(dtype=torch.float64))
    return scale * total - state.label_classifiers.kl(model.weight_scale).sum(dtype=torch.float64)


def _bounded(state: VariationalLabels, data: LabelData, model: BNMC) -> VariationalLabels:
    """A state whose bound is of the mixture, with that of both."""
    margin = margin_bound(state, data, model)
    return replace(state, margin_bound=margin, bound=state.bound + margin)


# -- sweeps ------------------------------------------------------------------------------------------------------------


def sweep(state: VariationalLabels, data: LabelData, model: BNMC) -> VariationalLabels:
    """All factors of the mixture, then those of the classifiers; no block lowers the bound."""
    moved: Any = partition.sweep(state.mixture, data.points, model.mixture)
    return _bounded(update_classifiers(moved, data, model), data, model)


def extrapolate(
    state: VariationalLabels, rows: LabelData, model: BNMC, num_data: int, num_units: float
) -> VariationalLabels:
    """Factors as if the rows were points like them that count `num_units` in all: where stochastic steps start."""
    moved: Any = partition.extrapolate(state, rows.points, model.mixture, num_data, num_units)
    return update_classifiers(moved, rows, model, num_units / rows.total_weight)


def stochastic_sweep(
    state: VariationalLabels, batch: Minibatch[LabelData], model: BNMC, rho: float
) -> VariationalLabels:
    """Natural parameters move by rho towards the optimum of a batch that stands for all points.

    The recorded bound is the batch's estimate at the factors from before the step.
    """
    (data, scale, *_), mixture = batch, model.mixture
    moments, blocks = score_moments(state, data), blocks_of(state, data, model)
    margin = _margin_bound(state, moments, data, model, scale)
    ridge = state.label_classifiers.towards(_natural_target(moments, data, model, scale), rho)
    expected = expect(blocks)
    r, log_total = shares(with_log_mixture(state, expected.log_density))
    total = all_sum(data.margins.counted(log_total).sum(dtype=torch.float64))
    bound = scale * total - sticks_kl(state, mixture) - expected.kl + margin
    moved = move(state, blocks, scale * data.margins.counted(r), mixture, rho)
    return replace(moved, label_mean=ridge.mean, label_tril=ridge.precision_tril, margin_bound=margin, bound=bound)


def assign(state: VariationalLabels, data: LabelData, model: BNMC) -> Tensor:
    """The most probable component [N] of each row and its labels."""
    return with_log_mixture(state, expect(blocks_of(state, data, model)).log_density).argmax(1)


def blocks_of(state: VariationalLabels, data: LabelData, model: BNMC) -> list[Block]:
    """The rows of x and their labels, with the parts of q(theta) that are theirs."""
    pairs = zip(model.family.own(state.hyperparameters), (data.x, data.y), strict=True)
    return [Block(family, rows, chi) for (family, chi), rows in pairs]


# -- what the backend asks ---------------------------------------------------------------------------------------------


def complete(state: VariationalLabels, data: LabelData, model: BNMC) -> VariationalLabels:
    """The state with the responsibilities of all rows, and its bound."""
    moved: Any = update_responsibilities(state, data.points, model.mixture)
    return _bounded(moved, data, model)


def summary(state: VariationalLabels, data: Any, model: BNMC) -> Draw:
    """What the posterior keeps, of `LabelData` or of a stream of such."""
    kept = partition.summary(state, data, model.mixture)
    kept.pop("precision_tril")  # of no classifiers
    more = {"classifier_tril": state.label_tril.squeeze(0), **progress(state, data)}
    return label_draw(kept, state.label_mean.squeeze(0), data, model, **more)


def check(backend: SVI, model: BNMC) -> None:
    """Raise NotImplementedError unless the families are conjugate and the loss has expectations."""
    model.require_probabilities()
    STEPS.check(backend, model)


def kernel(backend: SVI, model: BNMC) -> Kernel:
    """Coordinate ascent, or stochastic steps on minibatches, with the options of the backend bound."""
    return _steps(model).kernel(backend, model)


def stream(backend: SVI, model: BNMC, loader: DataLoader[Any]) -> tuple[Kernel, Any, Stream[LabelData]]:
    """The kernel of stochastic steps on the batches of a loader, the resolved model, and the stream as its data."""
    return _steps(model).stream(backend, model, loader)


def _steps(model: BNMC) -> Steps:
    return multi_label_coupled.STEPS if model.is_coupled else STEPS


STEPS = Steps(
    state=VariationalLabels,
    init=init,
    sweep=sweep,
    complete=complete,
    draw=summary,
    first=partition.first_rows,
    count=lambda data: data.total_weight,
    extrapolate=extrapolate,
    minibatch=partition.minibatch,
    stochastic_sweep=stochastic_sweep,
    read=stream_labels,
    assign=assign,
)
