"""The direct assignment scan: each step's state is drawn given all others, with transition rows integrated out.

Let n be the transition counts without step t, j the state before it, l the state after it, and b_j = (1 - rho) beta +
rho delta_j the prior mean of row j (of the row of starts: beta). Then

    z_t = k      with weight  (n_jk + alpha b_jk) (n_kl + 1[j = k = l] + alpha b_kl) / (n_k. + 1[j = k] + alpha)
    z_t = new    with weight  alpha b_ju b_ul,      b_ju = (1 - rho) beta_u (start: beta_u),   b_ul = (1 - rho) beta_l

times p(x_t | the other steps of k), or p(x_t). The last step of a sequence has the first factor only; a missing step
has no factor of x_t. beta_u is the weight of all states without steps. A new state takes the share s ~ Beta(1, gamma)
of it, and a state that loses its only step gives its weight back. Where states repel there is also the factor
exp(h(f)), and new states take their hyperplanes from the reservoir, as in the collapsed scan. The scan is exact for the
infinite model.

Sources: Teh, Jordan, Beal & Blei (2006), section 5.3; Fox, Sudderth, Jordan & Willsky (2011) for rho; Nguyen, Phung, Le
& Bui, with the boundaries of sequences and the bookkeeping of beta (docs/derivations/sequences, "Joint density").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ....models.data import Data
from ....models.distributions.sampling import uniforms
from ....models.priors.franchise import count_transitions
from ....models.sequence import Sequences, StateSpace
from ..state import SequenceState
from .founders import Founders, Reserved
from .slots import Slots, double, point_logits, visit_all, visitor_of


def scan(
    state: SequenceState,
    data: Sequences,
    model: StateSpace,
    generator: torch.Generator,
    *,
    shuffle: bool = True,
    compiled: bool | None = None,
) -> SequenceState:
    """Visit every step once, in random order or in the order of the steps; alpha and gamma are fixed.

    `compiled` chooses the code; by default it is compiled on the CPU for likelihoods with a compiled form, tensor code
    for any other likelihood or device. Returns states 0..K-1, all occupied, with their weights [K, P, C] and beta [K +
    1].
    """
    slots = SequenceSlots(state, data, model)
    visit_all(visitor_of(slots, compiled), generator, shuffle=shuffle)
    base = torch.cat([slots.base[slots.sizes > 0], slots.base[slots.free].reshape(1)])
    return replace(slots.replaced(state), base=base)


def state_logits(
    t: int, state: SequenceState, data: Sequences, model: StateSpace, *, compiled: bool | None = None
) -> Tensor:
    """Log weights [K + 1] of step t for the K states and a new one, up to a constant.

    A state without other steps is the new one itself or, where states repel, one whose hyperplane t could open a state
    with. `compiled` chooses the code, by default that of `scan`.
    """
    return point_logits(t, SequenceSlots(state, data, model), compiled=compiled)[: len(state.weights) + 1]


class SequenceSlots(Slots):
    """Slots of state sequences: sizes [capacity] are numbers of steps, counts [capacity] numbers of observed steps.

    Attributes
    ----------
    rows [N] : position among the observed steps, -1 if missing;  first [N + 1] : if a sequence starts; last True
    leaving [capacity + 1, capacity] : n_jk, plus alpha rho where j = k;  entering [capacity, capacity] : its transpose
    exits [capacity] : n_k.;  base [capacity] : beta, in the slot `free` the weight of all states without steps
    """

    def __init__(self, state: SequenceState, data: Sequences, model: StateSpace) -> None:
        observed, model = double(data, model)
        points = Data(observed.X, data.spread(observed.features), data.spread(observed.targets))
        self.data, self.first = data, torch.cat([data.starts, data.starts.new_ones(1)])
        self.rows = torch.full((data.num_data,), -1, device=data.steps.device)
        self.rows[data.steps] = torch.arange(len(data.steps), device=data.steps.device)
        self.alpha, self.gamma = float(state.hyper["concentration"]), float(state.hyper["top_concentration"])
        self.rho, self.base, self.free = float(model.prior.stickiness), state.base, len(state.weights)
        founders = Founders(points)  # a state whose only step is t is the new one
        if state.reservoir is not None:
            founders = Reserved(state.reservoir, points, model, room=len(state.weights))
        super().__init__(state.assignments, state.weights, model, observed, points, founders)

    def count(self, capacity: int) -> None:
        self.base = pad(self.base, (0, capacity - len(self.base)))
        self.sizes = torch.bincount(self.labels, minlength=capacity)
        self.counts = torch.bincount(self.members(), minlength=capacity)
        self.leaving = count_transitions(self.labels, self.first[:-1], capacity).to(self.base)
        self.exits = self.leaving[:-1].sum(1)
        self.leaving.diagonal().add_(self.alpha * self.rho)
        self.entering = self.leaving[:-1].T.contiguous()

    def row(self, n: int) -> int:
        return int(self.rows[n])

    def members(self) -> Tensor:
        return self.data.observed(self.labels)

    # -- one step ------------------------------------------------------------------------------------------------------

    def logits(self, n: int, log_predictive: Tensor) -> Tensor:
        own, free, founders = int(self.labels[n]), self.free, self.founders
        self._take(n, own, -1)
        weights, logits = self._prior_weights(n), log_predictive
        if self.has_classifiers:
            logits = logits + self.log_margin[n]
        logits[free] += founders.log_new(n)
        if self.sizes[own] == 0:  # t was alone: the state's weight goes back to the rest
            weights[own] = weights[free] = weights[own] + weights[free]
            logits[own] += founders.log_alone[0]
            logits[free] += founders.log_alone[1]
        self._take(n, own, 1)
        return logits + weights.log()

    def move(self, n: int, own: int, chosen: int) -> None:
        self._take(n, own, -1)
        self._take(n, chosen, 1)
        self.labels[n] = chosen
        if self.rows[n] >= 0:
            self.counts[own] -= 1
            self.counts[chosen] += 1

    def _neighbours(self, t: int) -> tuple[int, int]:
        """The state before t, or the row of starts; the state after t, or -1."""
        before = len(self.sizes) if self.first[t] else int(self.labels[t - 1])
        return before, -1 if self.first[t + 1] else int(self.labels[t + 1])

    def _take(self, t: int, k: int, sign: int) -> None:
        """Add (sign 1) or remove (-1) step t in state k with the transitions into and out of it."""
        before, after = self._neighbours(t)
        self.sizes[k] += sign
        self.leaving[before, k] += sign
        if before < len(self.sizes):
            self.entering[k, before] += sign
            self.exits[before] += sign
        if after >= 0:
            self.leaving[k, after] += sign
            self.entering[after, k] += sign
            self.exits[k] += sign

    def _prior_weights(self, t: int) -> Tensor:
        """Weights [capacity] of the transitions into and out of step t, given counts without it."""
        before, after = self._neighbours(t)
        alpha, shared, starts = self.alpha, 1 - self.rho, before == len(self.sizes)
        into = self.leaving[before] + alpha * (1.0 if starts else shared) * self.base
        if after < 0:
            return into
        again = torch.zeros_like(into)
        if not starts:
            again[before] = 1.0
        onward = self.entering[after] + alpha * shared * self.base[after] + again * (before == after)
        return into * onward / (self.exits + again + alpha)

    # -- states that open and close ------------------------------------------------------------------------------------

    def settle(self, n: int, opened: int, closed: int, generator: torch.Generator) -> None:
        super().settle(n, opened, closed, generator)
        if closed < 0:
            self.split(opened, uniforms((), generator))
        elif opened < 0:  # otherwise the slot is used again and keeps its weight
            self.base[self.free] += self.base[closed]
            self.base[closed] = 0.0

    def split(self, opened: int, uniform: Tensor) -> None:
        """Set beta_opened = s beta_u with s ~ Beta(1, gamma); the rest of beta_u goes to another free slot."""
        log_left = torch.log1p(-uniform) / self.gamma
        self.free = int((self.sizes == 0).to(torch.uint8).argmax())
        self.base[self.free] = self.base[opened] * log_left.exp()
        self.base[opened] *= -torch.expm1(log_left)

    # -- for compiled code ---------------------------------------------------------------------------------------------

    def kernels(self) -> Any:
        from . import _numba_direct  # compiles or loads machine code: only where a scan needs it

        return _numba_direct

    def arrays(self) -> Any:
        moves = self.leaving, self.entering, self.exits, self.base
        arrays = self.rows, self.first, self.labels, self.sizes, self.counts, *moves
        founders = self.founders
        tables = self.log_margin.numpy(), founders.gains.numpy(), founders.size, founders.log_alone
        numbers = self.free, (self.alpha, self.rho), tables
        return self.kernels().Chains(*(array.numpy() for array in arrays), *numbers)
