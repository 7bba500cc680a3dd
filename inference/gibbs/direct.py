"""The direct assignment scan: each step of the sequences chooses its state given all others, rows integrated out.

With n the moves that do not touch step t, j the state before it, l the one after it, and b_j = (1 - rho) beta + rho
delta_j the prior mean of row j (of the start row: beta),

    z_t = k      with weight  (n_jk + alpha b_jk) (n_kl + 1[j = k = l] + alpha b_kl) / (n_k. + 1[j = k] + alpha)
    z_t = new    with weight  alpha b_ju b_ul,      b_ju = (1 - rho) beta_u (start: beta_u),   b_ul = (1 - rho) beta_l

times p(x_t | the other steps of k), or p(x_t); the last step of a sequence has the first factor only, and a missing one
no x_t. beta_u belongs to all states without steps: a new one takes the share s ~ Beta(1, gamma) of it, and a state that
loses its only step gives its weight back. Where states repel there is also exp(h(f)), and new states find their
hyperplanes in the reservoir, as in the collapsed scan. Exact for the infinite model.

Sources: Teh, Jordan, Beal & Blei (2006), section 5.3; Fox, Sudderth, Jordan & Willsky (2011) for rho; Nguyen, Phung, Le
& Bui, with the boundaries of sequences and the bookkeeping of beta (math/discriminative-clustering, section 9).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...models.likelihoods.base import Likelihood
from ...models.mixture import Data
from ...models.priors.hierarchical_dirichlet_process import count_transitions
from ...models.sequence import Sequences, StateSpace
from ._component_states import component_state, is_compiled, log_normalizers
from .collapsed import _draw
from .hyperplanes import Reservoir
from .state import SequenceState

__all__ = ["scan", "state_logits"]


def scan(
    state: SequenceState, data: Sequences, model: StateSpace, generator: torch.Generator, *, shuffle: bool = True
) -> SequenceState:
    """One visit of every step, in random order or one after another; alpha and gamma stay as they are.

    Compiled on the CPU for the families of `regbayes.models`, tensor code for any other family or device. Returns
    states 0..K-1, all occupied, with their weights [K, P, C] and beta [K + 1].
    """
    like: dict[str, Any] = {"generator": generator, "device": data.steps.device}
    order = torch.randperm(data.num_data, **like) if shuffle else torch.arange(data.num_data, device=data.steps.device)
    uniforms = torch.rand(data.num_data, dtype=torch.float64, **like)
    exact, likelihood = _double(data, model)
    slots = _Slots(state, exact, model)
    components = _components(exact, likelihood)
    components.build(slots)
    position = 0
    while position < data.num_data:
        position, opened, closed, stale = components.visit(slots, position, order, uniforms)
        capacity = len(slots.sizes)
        if opened + closed > -2:
            slots.exchange(int(order[position - 1]), opened, closed, generator)
        if stale or len(slots.sizes) > capacity:
            components.build(slots)
    return slots.after(state)


def state_logits(
    t: int, state: SequenceState, data: Sequences, model: StateSpace, *, compiled: bool | None = None
) -> Tensor:
    """Log weights [K + 1] of step t for the K states and a new one, up to a constant.

    A state that has no other step is the new one itself, or, where states repel, one of those that t could open.
    `compiled` chooses the code, by default that of `scan`.
    """
    exact, likelihood = _double(data, model)
    slots = _Slots(state, exact, model)
    components = _components(exact, likelihood, compiled)
    components.build(slots)
    return components.logits(slots, t)[: len(state.weights) + 1]


def _double(data: Sequences, model: StateSpace) -> tuple[Sequences, Likelihood]:
    """Data and family in double precision: log predictives are differences of large numbers."""
    points = data.points
    if points.X.dtype == torch.float64:
        return data, model.likelihood
    exact = Data(points.X.double(), points.features.double(), points.targets.double())
    return replace(data, points=exact), model.likelihood.resolve(exact.X)


class _Slots:
    """Scratch of one scan: states in slots 0..capacity-1, of which at least one is free. Changed in place.

    Attributes
    ----------
    data : the sequences;  points : the same with a row for all N steps, on no side of any hyperplane where missing
    rows [N] : place among the observed, -1: missing;  first [N + 1] : whether a sequence starts; true at the end
    states [N];  sizes, counts [capacity] : steps and observed steps;  weights [capacity, P, C]
    leaving [capacity + 1, capacity] : n_jk, and alpha rho where j = k;  entering [capacity, capacity] : the same by k
    exits [capacity] : n_k.;  base [capacity] : beta, in the slot `free` that of all states without steps
    log_margin [N, capacity] : h(f), [N, 0] without hyperplanes;  log_new [N] : log of its mean over the reservoir
    log_alone [2] : corrections of these two for a step that is alone in its state
    """

    def __init__(self, state: SequenceState, data: Sequences, model: StateSpace) -> None:
        """State k in slot k, and some free slots."""
        points, num_states, device = data.points, len(state.weights), data.steps.device
        self.data, self.model = data, model
        self.points = Data(points.X, data.spread(points.features), data.spread(points.targets))
        self.rows = torch.full((data.num_data,), -1, device=device)
        self.rows[data.steps] = torch.arange(len(data.steps), device=device)
        self.first = torch.cat([data.starts, data.starts.new_ones(1)])
        self.states, self.base, self.weights = state.states.clone(), state.base.clone(), state.weights.double()
        self.alpha, self.gamma = float(state.concentration), float(state.top_concentration)
        self.log_margin = points.X.new_zeros(data.num_data, 0)
        self.reservoir = None
        if state.reservoir is not None:
            self.reservoir = Reservoir(state.reservoir.double(), self.points, model)
            self.log_margin = _log_margin(self.weights, self.points, model)
        self.free = num_states  # where `state.base` has the rest
        self.weights = pad(self.weights, (0, 0, 0, 0, 0, 1))
        self.log_margin = pad(self.log_margin, (0, self.has_hyperplanes))
        self.extend(4 + num_states // 4)
        self.price()

    @property
    def has_hyperplanes(self) -> bool:
        return self.reservoir is not None

    def extend(self, more: int) -> None:
        """Add free slots, and count all moves anew."""
        self.base = pad(self.base, (0, more))
        self.weights = pad(self.weights, (0, 0, 0, 0, 0, more))
        self.log_margin = pad(self.log_margin, (0, more * self.has_hyperplanes))
        capacity = len(self.base)
        self.sizes = torch.bincount(self.states, minlength=capacity)
        self.counts = torch.bincount(self.states[self.data.steps], minlength=capacity)
        self.leaving = count_transitions(self.states, self.first[:-1], capacity).to(self.base)
        self.exits = self.leaving[:-1].sum(1)
        self.leaving.diagonal().add_(self.alpha * self.model.stickiness)
        self.entering = self.leaving[:-1].T.contiguous()

    def price(self) -> None:
        """Set what a new state weighs: 1 / A for each hyperplane; t's own is one of A + 1 if t is alone in its state.

        Without hyperplanes the state that t is alone in is the new one.
        """
        self.log_new, self.log_alone = self.base.new_zeros(len(self.states)), self.base.new_tensor([0.0, -math.inf])
        if self.reservoir is not None:
            size = len(self.reservoir)
            self.log_new = self.reservoir.log_mean_gain()
            self.log_alone = self.base.new_tensor([1 / (size + 1), size / (size + 1)]).log()

    def move(self, before: int, k: int, after: int, sign: int) -> None:
        """Add or take away a step in state k with the moves into and out of it."""
        self.sizes[k] += sign
        self.leaving[before, k] += sign
        if before < len(self.sizes):
            self.entering[k, before] += sign
            self.exits[before] += sign
        if after >= 0:
            self.leaving[k, after] += sign
            self.entering[after, k] += sign
            self.exits[k] += sign

    def exchange(self, t: int, opened: int, closed: int, generator: torch.Generator) -> None:
        """Settle hyperplanes and beta after step t opened or closed a state."""
        uniforms = torch.rand(2, generator=generator, dtype=torch.float64, device=self.base.device)
        if self.reservoir is not None:
            left = self.weights[closed].unsqueeze(0).clone() if closed >= 0 else None
            if opened >= 0:
                self.weights[opened] = self.reservoir.take(t, uniforms[0])
                own = self.weights[opened].unsqueeze(0)
                self.log_margin[:, opened] = _log_margin(own, self.points, self.model).squeeze(1)
            else:
                self.log_margin[:, closed] = 0.0
            if left is not None:
                self.reservoir.give(left)
            self.price()
        if closed < 0:
            self._split(opened, uniforms[1])
        elif opened < 0:  # else a new hyperplane in the same slot, which keeps its share
            self.base[self.free] += self.base[closed]
            self.base[closed] = 0.0

    def _split(self, opened: int, uniform: Tensor) -> None:
        """beta_opened = s beta_u with s ~ Beta(1, gamma); what is left goes to another free slot."""
        if self.sizes.all():
            self.extend(len(self.sizes))
        log_left = torch.log1p(-uniform) / self.gamma
        self.free = int((self.sizes == 0).to(torch.uint8).argmax())
        self.base[self.free] = self.base[opened] * log_left.exp()
        self.base[opened] *= -torch.expm1(log_left)

    def after(self, state: SequenceState) -> SequenceState:
        """The state after the scan."""
        occupied = self.sizes > 0
        labels, dtype = occupied.cumsum(0) - 1, state.weights.dtype
        base = torch.cat([self.base[occupied], self.base[self.free].reshape(1)])
        state = replace(state, states=labels[self.states], weights=self.weights[occupied].to(dtype), base=base)
        if self.reservoir is not None:
            state = replace(state, reservoir=self.reservoir.weights.to(dtype))
        return state


def _log_margin(weights: Tensor, points: Data, model: StateSpace) -> Tensor:
    """h(f_tk) [N, K]."""
    scores = torch.einsum("np,kpc->nkc", points.features, weights)
    return model.log_margin(scores, points.targets.unsqueeze(1))


def _components(data: Sequences, likelihood: Likelihood, compiled: bool | None = None) -> _Compiled | _Tensors:
    if compiled is None:
        compiled = data.X.device.type == "cpu" and is_compiled(likelihood)
    return (_Compiled if compiled else _Tensors)(data, likelihood)


class _Compiled:
    """The components of a family that the compiled scan knows."""

    def __init__(self, data: Sequences, likelihood: Likelihood) -> None:
        from . import _numba_direct  # compiles or loads machine code: only where a scan needs it

        self.kernels, self.data, self.likelihood = _numba_direct, data, likelihood
        self.urn = log_normalizers(likelihood, len(data.steps) + 1).numpy()

    def build(self, slots: _Slots) -> None:
        """Compute what the family keeps of each slot from the states."""
        self.state = component_state(self.likelihood, self.data.points, slots.states[self.data.steps], len(slots.sizes))
        moves = slots.leaving, slots.entering, slots.exits
        arrays = slots.rows, slots.first, slots.states, slots.sizes, slots.counts, *moves, slots.base
        self.chains = self.kernels.Chains(*(array.numpy() for array in arrays))
        self.prior = slots.alpha, float(slots.model.stickiness)

    def logits(self, slots: _Slots, t: int) -> Tensor:
        """Log weights [capacity] of step t; the slot `free` stands for a new state."""
        logits = torch.empty(len(slots.sizes), dtype=torch.float64)
        weights = torch.empty_like(logits).numpy()
        self.kernels.fill_weights(self.state, self.chains, t, *self._tables(slots), logits.numpy(), weights)
        return logits

    def visit(self, slots: _Slots, position: int, order: Tensor, uniforms: Tensor) -> tuple[int, int, int, bool]:
        """Visit order[position:] until a state opened or closed, or `build` must be called again.

        Returns (position to go on from, slot opened or -1, slot closed or -1, whether to build).
        """
        arrays = order.numpy(), uniforms.numpy()
        return self.kernels.scan(self.state, self.chains, position, *arrays, *self._tables(slots))

    def _tables(self, slots: _Slots) -> tuple[Any, ...]:
        tables = slots.log_margin.numpy(), slots.log_new.numpy(), slots.log_alone.numpy()
        return slots.free, self.prior, self.urn, tables


class _Tensors:
    """The components of any family on any device, as natural hyperparameters: what `_Compiled` does, slowly."""

    def __init__(self, data: Sequences, likelihood: Likelihood) -> None:
        self.data, self.likelihood = data, likelihood

    def build(self, slots: _Slots) -> None:
        states = slots.states[self.data.steps]
        sums = self.likelihood.summed_statistics(self.data.X, states, len(slots.sizes))
        self.chi = self.likelihood.prior() + sums

    def logits(self, slots: _Slots, t: int) -> Tensor:
        before, own, after = self._neighbours(slots, t)
        slots.move(before, own, after, -1)
        weights, logits = self._prior_weights(slots, before, after), self._log_predictive(slots, t, own)
        if slots.has_hyperplanes:
            logits = logits + slots.log_margin[t]
        logits[slots.free] += slots.log_new[t]
        if slots.sizes[own] == 0:  # it was alone: its weight goes back to the rest
            weights[own] = weights[slots.free] = weights[own] + weights[slots.free]
            logits[own] += slots.log_alone[0]
            logits[slots.free] += slots.log_alone[1]
        slots.move(before, own, after, 1)
        return logits + weights.log()

    def visit(self, slots: _Slots, position: int, order: Tensor, uniforms: Tensor) -> tuple[int, int, int, bool]:
        for index in range(position, len(order)):
            t = int(order[index])
            before, own, after = self._neighbours(slots, t)
            chosen = _draw(self.logits(slots, t), uniforms[t])
            opened = chosen if chosen == slots.free else -1
            closed = own if slots.sizes[own] == 1 and chosen != own else -1
            if opened >= 0 and closed >= 0:  # from a state of its own to a new one: the same slot serves
                opened = chosen = own
            if chosen != own:
                slots.move(before, own, after, -1)
                slots.move(before, chosen, after, 1)
                self._move(slots, t, own, chosen)
            if opened + closed > -2:
                return index + 1, opened, closed, False
        return len(order), -1, -1, False

    def _neighbours(self, slots: _Slots, t: int) -> tuple[int, int, int]:
        """State before t, or the start row; state of t; state after t, or -1."""
        before = len(slots.sizes) if slots.first[t] else int(slots.states[t - 1])
        return before, int(slots.states[t]), -1 if slots.first[t + 1] else int(slots.states[t + 1])

    def _prior_weights(self, slots: _Slots, before: int, after: int) -> Tensor:
        """Weights [capacity] of the moves into and out of a step."""
        alpha, shared = slots.alpha, 1 - slots.model.stickiness
        starts = before == len(slots.sizes)
        into = slots.leaving[before] + alpha * (1.0 if starts else shared) * slots.base
        if after < 0:
            return into
        again = torch.zeros_like(into)
        if not starts:
            again[before] = 1.0
        onward = slots.entering[after] + alpha * shared * slots.base[after] + again * (before == after)
        return into * onward / (slots.exits + again + alpha)

    def _log_predictive(self, slots: _Slots, t: int, own: int) -> Tensor:
        """log p(x_t | the other steps of each slot) [capacity]; 0 if t is missing."""
        if slots.rows[t] < 0:
            return torch.zeros_like(slots.base)
        row, chi = self.data.X[slots.rows[t]].unsqueeze(0), self.chi.clone()
        chi[own] -= self.likelihood.statistics(row).squeeze(0)
        if slots.counts[own] == 1:
            chi[own] = self.likelihood.prior()
        return self.likelihood.log_predictive(row, chi).squeeze(0)

    def _move(self, slots: _Slots, t: int, own: int, chosen: int) -> None:
        slots.states[t] = chosen
        if slots.rows[t] < 0:
            return
        statistics = self.likelihood.statistics(self.data.X[slots.rows[t]].unsqueeze(0)).squeeze(0)
        self.chi[own] -= statistics
        slots.counts[own] -= 1
        if slots.counts[own] == 0:
            self.chi[own] = self.likelihood.prior()
        self.chi[chosen] += statistics
        slots.counts[chosen] += 1
