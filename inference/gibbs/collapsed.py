"""The collapsed scan: each point chooses its component given all others, the family's parameters integrated out.

    z_n = k      with weight  n_k p(x_n | the others in k) phi(y_n | eta_k)
    z_n = new    with weight  alpha p(x_n) I(x_n, y_n),     I = integral of phi(y_n | eta) N(eta; 0, nu^2 I)

n_k counts the others. A component that n was alone in is deleted with its classifier. A new one draws its classifier
from N(eta; 0, nu^2 I) phi(y_n | eta) / I, because I integrated it out. The augmentation variables are integrated out
too, so they must be drawn anew before the classifiers are. Exact for the infinite model (Neal 2000, algorithm 3;
math/dp-mixtures, section 4 (ii)).

Where components repel, the factor is exp(h(f)) and I is an average over the hyperplanes of a reservoir, from which a
new component takes its own; a component that n is alone in is then one of those to choose from (Neal 2000, algorithm 8;
math/discriminative-clustering, section 5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...models.likelihoods.base import Likelihood
from ...models.mixture import Data, Mixture
from ._component_states import component_state, is_compiled, log_normalizers
from .hyperplanes import Reservoir
from .state import PartitionState

__all__ = ["assignment_logits", "draw_new_weights", "scan"]


def scan(
    state: PartitionState, data: Data, model: Mixture, generator: torch.Generator, *, shuffle: bool = True
) -> PartitionState:
    """One visit of every point, in random order or in the order of the rows.

    Compiled on the CPU for the families of `regbayes.models`, tensor code for any other family or device. Returns the
    assignments with labels 0..K-1, all occupied, and their weights [K, P, C], those of new components included.
    """
    like: dict[str, Any] = {"generator": generator, "device": data.X.device}
    order = torch.randperm(data.num_data, **like) if shuffle else torch.arange(data.num_data, device=data.X.device)
    uniforms = torch.rand(data.num_data, dtype=torch.float64, **like)
    exact, likelihood = _double(data, model)
    slots = _Slots.of(state, exact, model)
    components = _components(exact, likelihood)
    components.build(slots)
    position = 0
    while position < data.num_data:
        position, opened, closed, stale = components.visit(slots, position, order, uniforms)
        if slots.has_classifiers:
            slots.founding.replace(slots, int(order[position - 1]), opened, closed, generator)
        if stale:
            slots.extend(len(slots.counts) if slots.counts.all() else 0)
            components.build(slots)
    occupied = slots.counts > 0
    labels = occupied.cumsum(0) - 1
    weights = slots.weights[occupied].to(state.weights.dtype)
    return slots.founding.keep(replace(state, assignments=labels[slots.assignments], weights=weights))


def assignment_logits(
    n: int, state: PartitionState, data: Data, model: Mixture, *, compiled: bool | None = None
) -> Tensor:
    """Log weights [K + 1] of point n for the K components and a new one, up to a constant.

    A component that n is alone in has weight 0, unless components repel: it is then one of those that n could open.
    `compiled` chooses the code, by default that of `scan`.
    """
    exact, likelihood = _double(data, model)
    slots = _Slots.of(state, exact, model)
    components = _components(exact, likelihood, compiled)
    components.build(slots)
    return components.logits(slots, n)[: len(state.weights) + 1]


def draw_new_weights(n: int, data: Data, model: Mixture, generator: torch.Generator) -> Tensor:
    """Classifiers [P, C] of a component that point n opens: N(eta; 0, nu^2 I) phi(y_n | eta^T a_n), normalized.

    The score f is drawn first; eta keeps its prior across a_n: eta = g + a_n (f - g^T a_n) / |a_n|^2, g ~ N(0, nu^2 I).
    """
    feature, target = data.features[n], data.targets[n : n + 1]
    square = feature.square().sum()
    score = model.loss.draw_score((model.weight_scale * square.sqrt()).expand(1, 1), target, generator)
    shape = data.features.shape[1], data.targets.shape[1]
    like: dict[str, Any] = {"generator": generator, "dtype": feature.dtype, "device": feature.device}
    weights = model.weight_scale * torch.randn(shape, **like)
    gap = score.squeeze(0) - feature @ weights
    return weights + torch.outer(feature / square.clamp(min=torch.finfo(feature.dtype).tiny), gap)


def _double(data: Data, model: Mixture) -> tuple[Data, Likelihood]:
    """Data and family in double precision: log predictives are differences of large numbers."""
    if data.X.dtype == torch.float64:
        return data, model.likelihood
    exact = Data(data.X.double(), data.features.double(), data.targets.double())
    return exact, model.likelihood.resolve(exact.X)


def _log_margin(weights: Tensor, data: Data, model: Mixture) -> Tensor:
    """log phi(y_n | eta_k) [N, K]."""
    scores = torch.einsum("np,kpc->nkc", data.features, weights)
    return model.log_margin(scores, data.targets.unsqueeze(1))


@dataclass
class _Slots:
    """Scratch of one scan: components in slots 0..capacity-1, of which at least one is free. Changed in place."""

    assignments: Tensor  # [N]
    counts: Tensor  # [capacity], 0: free
    weights: Tensor  # [capacity, P, C]
    log_margin: Tensor  # [N, capacity], or [N, 0] without classifiers
    log_new: Tensor  # [N] log of alpha I(x_n, y_n)
    log_alone: Tensor  # [2] log weight of staying alone, correction of log_new for a point that is
    founding: _Marginal | _Reserved

    @classmethod
    def of(cls, state: PartitionState, data: Data, model: Mixture) -> _Slots:
        """Component k in slot k, and some free slots."""
        num_components, weights = len(state.weights), state.weights.double()
        counts = torch.bincount(state.assignments, minlength=num_components)
        log_new, log_margin = data.X.new_zeros(data.num_data), data.X.new_zeros(data.num_data, 0)
        if data.targets.shape[1]:
            log_margin = _log_margin(weights, data, model)
        log_alone = data.X.new_tensor([-torch.inf, 0.0])
        founding = (_Reserved if model.repels else _Marginal)(state, data, model)
        slots = cls(state.assignments.clone(), counts, weights, log_margin, log_new, log_alone, founding)
        founding.price(slots)
        slots.extend(4 + num_components // 4)
        return slots

    @property
    def has_classifiers(self) -> bool:
        return self.log_margin.shape[1] > 0

    def set_weights(self, k: int, weights: Tensor, data: Data, model: Mixture) -> None:
        """Classifiers [P, C] for slot k."""
        self.weights[k] = weights
        self.log_margin[:, k] = _log_margin(self.weights[k : k + 1], data, model).squeeze(1)

    def extend(self, more: int) -> None:
        """Add free slots."""
        self.counts = pad(self.counts, (0, more))
        self.weights = pad(self.weights, (0, 0, 0, 0, 0, more))
        if self.has_classifiers:
            self.log_margin = pad(self.log_margin, (0, more))


class _Marginal:
    """New components of a model whose classifiers see their own points only: their classifiers are integrated out."""

    def __init__(self, state: PartitionState, data: Data, model: Mixture) -> None:
        self.data, self.model = data, model
        self.log_concentration = state.concentration.double().log()

    def price(self, slots: _Slots) -> None:
        """Set what a new component weighs."""
        slots.log_new = self.log_concentration.expand(self.data.num_data).contiguous()
        if slots.has_classifiers:
            scale = self.model.weight_scale * self.data.features.norm(dim=1, keepdim=True)
            slots.log_new = slots.log_new + self.model.loss.log_marginal(scale, self.data.targets).sum(-1)

    def replace(self, slots: _Slots, n: int, opened: int, closed: int, generator: torch.Generator) -> None:
        """Give the component that n opened its classifiers."""
        if opened >= 0:
            slots.set_weights(opened, draw_new_weights(n, self.data, self.model, generator), self.data, self.model)

    def keep(self, state: PartitionState) -> PartitionState:
        """The state after the scan."""
        return state


class _Reserved:
    """New components of a model whose components repel: their hyperplanes come from the reservoir and go back."""

    def __init__(self, state: PartitionState, data: Data, model: Mixture) -> None:
        assert state.reservoir is not None  # `partition.init` fills it
        self.data, self.model = data, model
        self.reservoir = Reservoir(state.reservoir.double(), data, model)
        self.log_concentration = state.concentration.double().log()

    def price(self, slots: _Slots) -> None:
        """alpha / A for each of the A hyperplanes; n's own is one of A + 1 if n is alone in its component."""
        size = len(self.reservoir)
        slots.log_new = self.log_concentration + self.reservoir.log_mean_gain()
        slots.log_alone[0] = self.log_concentration - math.log(size + 1)
        slots.log_alone[1] = math.log(size / (size + 1)) if size else 0.0

    def replace(self, slots: _Slots, n: int, opened: int, closed: int, generator: torch.Generator) -> None:
        """Exchange hyperplanes with the reservoir."""
        left = slots.weights[closed : closed + 1].clone() if closed >= 0 else None
        if opened >= 0:
            uniform = torch.rand((), generator=generator, dtype=torch.float64, device=self.data.X.device)
            slots.set_weights(opened, self.reservoir.take(n, uniform), self.data, self.model)
        if left is not None:
            self.reservoir.give(left)
        if opened >= 0 or closed >= 0:
            self.price(slots)

    def keep(self, state: PartitionState) -> PartitionState:
        """The state after the scan."""
        return replace(state, reservoir=self.reservoir.weights.to(state.weights.dtype))


def _components(data: Data, likelihood: Likelihood, compiled: bool | None = None) -> _Compiled | _Tensors:
    if compiled is None:
        compiled = data.X.device.type == "cpu" and is_compiled(likelihood)
    return (_Compiled if compiled else _Tensors)(data, likelihood)


class _Compiled:
    """The components of a family that the compiled scan knows."""

    def __init__(self, data: Data, likelihood: Likelihood) -> None:
        from . import _numba_scan  # compiles or loads machine code: only where a scan needs it

        self.kernels, self.data, self.likelihood = _numba_scan, data, likelihood
        log_counts = torch.arange(data.num_data, dtype=torch.float64).clamp(min=1).log()
        self.urn = (log_counts + log_normalizers(likelihood, data.num_data)).numpy()

    def build(self, slots: _Slots) -> None:
        """Compute what the family keeps of each slot from the assignments."""
        self.state = component_state(self.likelihood, self.data, slots.assignments, len(slots.counts))

    def logits(self, slots: _Slots, n: int) -> Tensor:
        """Log weights [capacity] of point n; the first free slot stands for a new component."""
        logits = torch.empty(len(slots.counts), dtype=torch.float64)
        tables = slots.log_margin.numpy(), slots.log_new.numpy(), slots.log_alone.numpy()
        own = int(slots.assignments[n])
        self.kernels.fill_logits(self.state, n, own, slots.counts.numpy(), self.urn, *tables, logits.numpy())
        return logits

    def visit(self, slots: _Slots, position: int, order: Tensor, uniforms: Tensor) -> tuple[int, int, int, bool]:
        """Visit order[position:] until a component with classifiers opened or closed, or `build` must be called again.

        Returns (position to go on from, slot opened or -1, slot closed or -1, whether to build).
        """
        arrays = order, uniforms, slots.assignments, slots.counts
        tables = slots.log_margin.numpy(), slots.log_new.numpy(), slots.log_alone.numpy()
        return self.kernels.scan(self.state, position, *(array.numpy() for array in arrays), self.urn, *tables)


class _Tensors:
    """The components of any family on any device, as natural hyperparameters: what `_Compiled` does, slowly."""

    def __init__(self, data: Data, likelihood: Likelihood) -> None:
        self.data, self.likelihood = data, likelihood

    def build(self, slots: _Slots) -> None:
        sums = self.likelihood.summed_statistics(self.data.X, slots.assignments, len(slots.counts))
        self.chi = self.likelihood.prior() + sums

    def logits(self, slots: _Slots, n: int) -> Tensor:
        counts, own, row = slots.counts.clone(), slots.assignments[n], self.data.X[n : n + 1]
        counts[own] -= 1
        chi = self.chi.clone()
        chi[own] -= self.likelihood.statistics(row).squeeze(0)
        chi[counts == 0] = self.likelihood.prior()
        log_counts = counts.to(chi.dtype).log()
        alone = slots.counts[own] == 1
        if alone:
            log_counts[own] = slots.log_alone[0]
        logits = log_counts + self.likelihood.log_predictive(row, chi).squeeze(0)
        if slots.has_classifiers:
            logits = logits + slots.log_margin[n]
        free = (slots.counts == 0).to(torch.uint8).argmax()
        log_new = slots.log_new[n] + slots.log_alone[1] * alone
        logits[free] = log_new + self.likelihood.log_predictive(row, self.likelihood.prior().unsqueeze(0)).squeeze()
        return logits

    def visit(self, slots: _Slots, position: int, order: Tensor, uniforms: Tensor) -> tuple[int, int, int, bool]:
        for index in range(position, len(order)):
            n = int(order[index])
            own, chosen = int(slots.assignments[n]), _draw(self.logits(slots, n), uniforms[n])
            opened = chosen if slots.counts[chosen] == 0 else -1
            closed = own if slots.counts[own] == 1 and chosen != own else -1
            if opened >= 0 and closed >= 0:  # from a component of its own to a new one: the same slot serves
                opened = chosen = own
            if chosen != own:
                self._move(slots, n, own, chosen)
            full = bool(slots.counts.all())
            if opened + closed > -2 and (slots.has_classifiers or full):
                return index + 1, opened, closed, full
        return len(order), -1, -1, False

    def _move(self, slots: _Slots, n: int, own: int, chosen: int) -> None:
        statistics = self.likelihood.statistics(self.data.X[n : n + 1]).squeeze(0)
        self.chi[own] -= statistics
        slots.counts[own] -= 1
        if slots.counts[own] == 0:
            self.chi[own] = self.likelihood.prior()
        self.chi[chosen] += statistics
        slots.counts[chosen] += 1
        slots.assignments[n] = chosen


def _draw(logits: Tensor, uniform: Tensor) -> int:
    """Inverse CDF of the categorical law."""
    cumulative = logits.softmax(0).cumsum(0)
    total = cumulative[-1]
    # below the total even after rounding, so that no slot of weight zero is ever chosen
    level = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return int(torch.searchsorted(cumulative, level, right=True))
