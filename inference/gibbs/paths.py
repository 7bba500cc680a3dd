"""The states of the steps of sequences: paths of a Markov chain, with base weights beta of the states.

A split or a merge moves base weight as well. A split gives the first side the share s of the weight; a merge adds the
two weights:

    Infinite     s ~ Beta(n_1, n_2), Jacobian beta;   the freed place keeps nothing
    Truncated    s ~ Beta(n_1, n_2) of the total of the state and the free place; a merge leaves the state the
                 share t ~ Beta(c, 1) of this total

with n_1, n_2 the sizes of the sides (docs/derivations/repelling, "Split-merge moves").
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...models import host
from ...models.compiled import is_compiled
from ...models.distributions.sampling import uniforms
from ...models.priors.franchise import count_transitions
from ...models.priors.laws import PathLaw
from ...models.priors.sticks import log_beta
from ...models.sequence import Sequences, StateSpace
from ...models.sums import ranks
from ..distributed.collectives import all_sum
from ..posterior.draws import SequenceDraw
from .allocations import Allocation
from .moves.sides import PersistentSides, Sides
from .rows import count_moves, own_moves, relabel, row_posterior
from .scans import direct
from .scans import paths as path_scans
from .state import SequenceState


class Paths(Allocation[SequenceState, Sequences, StateSpace]):
    """Assignments whose law depends on their transitions; in a free place of the infinite law beta is 0."""

    law: PathLaw

    state = SequenceState
    scans: ClassVar = {"direct": direct.scan, "beam": path_scans.beam_scan, "blocked": path_scans.blocked_scan}
    unbounded = "beam"

    @staticmethod
    def quickest(data: Sequences, model: StateSpace) -> str:
        compiled = host.on_cpu(data.X) and is_compiled(model.likelihood)
        return "direct" if compiled and ranks() is None else "beam"

    def begin(self, labels: Tensor, model: StateSpace) -> SequenceState:
        """A state with assignments [N] and equal base weights [K + 1], the last one for all other states."""
        weights = self.empty_weights(labels)
        base = torch.tensor([1.0] * len(weights) + [float(self.law.alike)], dtype=torch.float64, device=labels.device)
        return SequenceState(labels, weights, model.prior.start(self.data.X), base=base / base.sum())

    def tally(self, at: SequenceState) -> Tensor:
        """The transitions [K + 1, K] between states; the last row counts the starts of sequences."""
        return own_moves(at, self.data)

    def log_density(self, at: SequenceState, tally: Tensor | None = None) -> Tensor:
        """log p(z, beta, h) []; with T states beta enters through the density of its sticks."""
        moves = count_moves(at, self.data) if tally is None else tally
        kept = self.law.kept(moves.sum(0))
        places = torch.nonzero(pad(kept, (0, 1), value=True)).squeeze(1)
        base, moves = at.base[places], moves[places][:, places[:-1]]
        log_paths = self.law.prior.log_paths(moves, base, at.hyper)
        return log_paths + self.law.log_base(base, at.hyper) + math.lgamma(len(kept) - len(base) + 2)

    def log_paths(self, at: SequenceState) -> Tensor:
        """log p(z | alpha, beta) [], transition rows integrated out."""
        return self.law.prior.log_paths(count_moves(at, self.data), at.base, at.hyper)

    def draw_prior(
        self, state: SequenceState, generator: torch.Generator, tally: Tensor | None = None
    ) -> SequenceState:
        """Draw concentrations and beta given the states; `tally` are the transitions [K + 1, K].

        See docs/derivations/sequences, "Base weights and concentrations".
        """
        moves = count_moves(state, self.data) if tally is None else tally
        hyper, base = self.law.draw_base(state.hyper, state.base, moves, generator)
        return replace(state, hyper=hyper, base=base)

    def relabel(self, state: SequenceState, generator: torch.Generator, tally: Tensor | None = None) -> SequenceState:
        return state if self.law.alike else relabel(state, generator)

    def kept(self, state: SequenceState, tally: Tensor, chi: Tensor, log_joint: Tensor) -> SequenceDraw:
        """As in `Allocation`; the transition rows [K, K + 1] are their expectations given the states."""
        K, dtype, rho = len(state.weights), self.data.X.dtype, self.law.prior.stickiness
        expected = row_posterior(state, tally, self.law.prior)
        log_rows = (expected.log() - expected.sum(1, keepdim=True).log()).to(dtype)
        unseen_row = (1 - rho) * state.base  # plus rho for staying in the new state
        unseen_row[-1] += rho
        counts = tally.sum(0).double()
        return SequenceDraw(
            assignments=state.assignments,
            hyperparameters=chi,
            log_mixture=pad(counts / counts.sum(), (0, 1)).to(dtype).log(),
            log_start=log_rows[K],
            log_transitions=log_rows[:K],
            log_unseen_row=unseen_row.log().to(dtype),
            weights=state.weights,
            log_joint=log_joint,
        )

    def proposes(self, model: StateSpace) -> bool:
        """True where states repel; otherwise states open and close in the scans alone."""
        return model.without_hyperplanes() is not model

    # -- moves ---------------------------------------------------------------------------------------------------------

    def open(self, state: SequenceState) -> SequenceState:
        at, base = super().open(state), state.base
        free = base.new_zeros(len(at.weights) + 1 - len(base))
        return replace(at, base=torch.cat([base[:-1], free, base[-1:]]))

    def close(self, state: SequenceState, at: SequenceState) -> SequenceState:
        _, kept = self.compact(at)
        return replace(super().close(state, at), base=torch.cat([at.base[:-1][kept], at.base[-1:]]))

    @property
    def steps(self) -> Tensor:
        return self.data.steps

    def sides(self, steps: Tensor, *, persistent: bool) -> Sides:
        if not persistent:
            return Sides()
        first = torch.ones_like(steps, dtype=torch.bool)
        first[1:] = (steps[1:] > steps[:-1] + 1) | self.data.starts[steps[1:]]
        return PersistentSides(first)

    def draw_share(self, side: Tensor, generator: torch.Generator) -> float:
        one, other = torch._standard_gamma(_sizes(side), generator=generator).clamp(min=_TINY)
        return float(one / (one + other))

    def share(self, at: SequenceState, first: int, second: int) -> float:
        return float(at.base[first] / (at.base[first] + at.base[second]))

    def divide(self, joined: SequenceState, steps: Tensor, first: int, second: int, share: float) -> SequenceState:
        """Move steps [B] to the second state, which gets 1 - `share` of the two base weights."""
        return replace(super().divide(joined, steps, first, second, share), base=_shared(joined, first, second, share))

    def join(self, at: SequenceState, first: int, second: int, generator: torch.Generator) -> SequenceState:
        kept = 1.0 if self.law.alike else float(uniforms((), generator)) ** (1 / _KEPT)
        return replace(super().join(at, first, second, generator), base=_shared(at, first, second, kept))

    def log_divisions(
        self, joined: SequenceState, side: Tensor, steps: Tensor, first: int, places: Tensor, share: float
    ) -> Tensor:
        sizes = _sizes(side)
        shares = sizes.new_tensor([share, 1 - share]).clamp(min=_TINY)
        log_draw = ((sizes - 1) * shares.log()).sum() - log_beta(*sizes)
        log_kept = joined.base[first].log()
        if self.law.alike:
            divided = self.divide(joined, steps[side], first, int(places[0]), share)
            return (self.log_density(divided) - self.log_density(joined) + log_kept - log_draw).reshape(1)
        total = joined.base[first] + joined.base[places]
        log_kept = math.log(_KEPT) + (_KEPT - 1) * (log_kept - total.log())
        base = joined.base.expand(len(places), -1).scatter(1, places.unsqueeze(1), (1 - share) * total.unsqueeze(1))
        base[:, first] = share * total
        moves = self._moves(joined.assignments.index_fill(0, steps[side], int(places[0])), len(joined.weights))
        # move the second side to each of the places: permute rows and columns
        order = torch.arange(len(moves), device=places.device).expand(len(places), -1)
        order = order.scatter(1, places.unsqueeze(1), places[:1].expand(len(places), 1))
        order = order.index_copy(1, places[:1], places.unsqueeze(1))
        moves = moves[order.unsqueeze(2), order[:, :-1].unsqueeze(1)]

        def log_density(moves: Tensor, base: Tensor) -> Tensor:
            # `log_base` is the density of the sticks; that of beta divides by what is left before each stick
            left = base.flip(0).cumsum(0).flip(0)[1:-2].clamp(min=_TINY)
            log_paths = self.law.prior.log_paths(moves, base, joined.hyper)
            return log_paths + self.law.log_base(base, joined.hyper) - left.log().sum()

        now = log_density(self._moves(joined.assignments, len(joined.weights)), joined.base)
        return torch.vmap(log_density)(moves, base) - now + log_kept - log_draw

    def _moves(self, labels: Tensor, num_places: int) -> Tensor:
        return all_sum(count_transitions(labels, self.data.starts, num_places))


def _sizes(side: Tensor) -> Tensor:
    """The numbers of steps [2] on the two sides, float64."""
    return all_sum(torch.stack([(~side).sum(), side.sum()])).double()


def _shared(at: SequenceState, first: int, second: int, share: float) -> Tensor:
    """Base weights after the total of two places is divided: `share` for the first, the rest for the second."""
    total, base = at.base[first] + at.base[second], at.base.clone()
    base[first], base[second] = share * total, (1 - share) * total
    return base


_KEPT = 5.0  # c
_TINY = 1e-300
