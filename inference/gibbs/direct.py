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
from dataclasses import dataclass, replace
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
    slots = _Slots.of(state, exact, model)
    components = _components(exact, likelihood)
    components.build(slots)
    position = 0
    while position < data.num_data:
        position, opened, closed, stale = components.visit(slots, position, order, uniforms)
        if opened + closed > -2:
            slots.exchange(int(order[position - 1]), opened, closed, generator)
        if stale or slots.full:
            slots.extend(len(slots.sizes) if slots.full else 0)
            components.build(slots)
    return slots.state(state)


def state_logits(
    t: int, state: SequenceState, data: Sequences, model: StateSpace, *, compiled: bool | None = None
) -> Tensor:
    """Log weights [K + 1] of step t for the K states and a new one, up to a constant.

    A state that has no other step is the new one itself, or, where states repel, one of those that t could open.
    `compiled` chooses the code, by default that of `scan`.
    """
    exact, likelihood = _double(data, model)
    slots = _Slots.of(state, exact, model)
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


@dataclass
class _Slots:
    """Scratch of one scan: states in slots 0..capacity-1, of which at least one is free. Changed in place."""

    data: Sequences
    points: Data  # of all N steps; what is missing is on no side of any hyperplane
    model: StateSpace
    rows: Tensor  # [N] position among the observed steps, -1: missing
    first: Tensor  # [N + 1] whether a sequence starts; true at the end
    states: Tensor  # [N]
    base: Tensor  # [capacity] beta; the slot `free` has the weight of all states without steps
    weights: Tensor  # [capacity, P, C]
    log_margin: Tensor  # [N, capacity], or [N, 0] without hyperplanes
    alpha: float
    gamma: float
    reservoir: Reservoir | None

    @classmethod
    def of(cls, state: SequenceState, data: Sequences, model: StateSpace) -> _Slots:
        """State k in slot k, and some free slots."""
        points = data.points
        points = Data(points.X, data.spread(points.features), data.spread(points.targets))
        like: dict[str, Any] = {"device": data.steps.device}
        rows = torch.full((data.num_data,), -1, **like).index_copy(0, data.steps, torch.arange(len(points.X), **like))
        first = torch.cat([data.starts, data.starts.new_ones(1)])
        reservoir = None if state.reservoir is None else Reservoir(state.reservoir.double(), points, model)
        weights, log_margin = state.weights.double(), points.X.new_zeros(data.num_data, 0)
        if reservoir is not None:
            log_margin = _log_margin(weights, points, model)
        alpha, gamma = float(state.concentration), float(state.top_concentration)
        fixed = data, points, model, rows, first
        slots = cls(*fixed, state.states.clone(), state.base.clone(), weights, log_margin, alpha, gamma, reservoir)
        slots.free = len(weights)
        slots._widen(1)
        slots.extend(4 + len(weights) // 4)
        slots.price()
        return slots

    @property
    def full(self) -> bool:
        """Whether a state would have no room after the next."""
        return self.free < 0

    def extend(self, more: int) -> None:
        """Add free slots and count everything anew."""
        self._widen(more)
        capacity, rho = len(self.weights), self.model.stickiness
        self.sizes = torch.bincount(self.states, minlength=capacity)
        self.counts = torch.bincount(self.states[self.data.steps], minlength=capacity)
        moves = count_transitions(self.states, self.first[:-1], capacity).to(self.base)
        self.exits = moves[:-1].sum(1)
        self.leaving = moves + self.alpha * rho * torch.eye(capacity + 1, capacity, dtype=moves.dtype).to(moves)
        self.entering = self.leaving[:-1].T.contiguous()

    def price(self) -> None:
        """What a state founds with: A hyperplanes, each with weight exp(h) / A; one's own is one of A + 1."""
        self.log_new, self.log_alone = self.base.new_zeros(len(self.states)), self.base.new_tensor([0.0, -math.inf])
        if self.reservoir is not None:
            size = len(self.reservoir)
            self.log_new = self.reservoir.log_mean_gain()
            others = math.log(size / (size + 1)) if size else 0.0
            self.log_alone = self.base.new_tensor([-math.log(size + 1), others])

    def exchange(self, t: int, opened: int, closed: int, generator: torch.Generator) -> None:
        """Settle hyperplanes and beta of the states that step t opened and closed."""
        uniforms = torch.rand(2, generator=generator, dtype=torch.float64, device=self.base.device)
        if self.reservoir is not None:
            left = self.weights[closed : closed + 1].clone() if closed >= 0 else None
            if opened >= 0:
                self.weights[opened] = self.reservoir.take(t, uniforms[0])
                self.log_margin[:, opened] = _log_margin(self.weights[opened, None], self.points, self.model)[:, 0]
            if left is not None:
                self.reservoir.give(left)
            self.price()
        if opened == closed:  # another hyperplane, the same share of the rest
            return
        if closed >= 0:
            self.base[self.free] += self.base[closed]
            self.base[closed] = 0.0
            if self.reservoir is not None:
                self.log_margin[:, closed] = 0.0
        else:
            self._split(opened, float(uniforms[1]))

    def state(self, state: SequenceState) -> SequenceState:
        """The state after the scan."""
        occupied = self.sizes > 0
        labels = occupied.cumsum(0) - 1
        state = replace(state, states=labels[self.states], weights=self.weights[occupied].to(state.weights.dtype))
        if self.reservoir is not None:
            state = replace(state, reservoir=self.reservoir.weights.to(state.weights.dtype))
        return replace(state, base=torch.cat([self.base[occupied], self.base[self.free, None]]))

    def _split(self, opened: int, uniform: float) -> None:
        """beta_opened = s beta_u, s ~ Beta(1, gamma); the rest goes to the next free slot."""
        log_kept = math.log1p(-uniform) / self.gamma
        rest = self.base[opened].clone()
        self.base[opened] = -rest * math.expm1(log_kept)
        empty = torch.nonzero(self.sizes == 0)
        if not len(empty):
            self._widen(1)
        self.free = int(empty[0]) if len(empty) else -1
        self.base[self.free] = rest * math.exp(log_kept)
