"""The states of sequences in labelled places, for the moves of `repelling_split_merge`.

A state takes its base weight along. A split of beta gives the first side the share s, a merge adds both up:

    Infinite     s ~ Beta(n_1, n_2), Jacobian beta;   the freed place keeps nothing
    Truncated    s ~ Beta(n_1, n_2) of what the state and the free place have together; a merge leaves the state the
                 share t ~ Beta(c, 1) of it

with n_1, n_2 the sizes of the sides (math/discriminative-clustering, section 15).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from ....models.distributions.sampling import uniforms
from ....models.priors.franchise import count_transitions
from ....models.priors.laws import PathLaw
from ....models.priors.sticks import log_beta
from ....models.sequence import Sequences
from ...distributed.collectives import all_sum, own_stream
from ...markov.paths import filter_states, sample_paths, smooth
from ..state import SequenceState
from .labelled import Labelled, LabelledPartitions, all_planes
from .sides import Sides


@dataclass(frozen=True)
class LabelledStates(Labelled):
    """Steps in M places."""

    base: Tensor  # [M + 1] float64, 0 in a free place of an infinite law


class LabelledSequences(LabelledPartitions):
    """The infinite hidden Markov models whose states repel."""

    def __init__(self, state: SequenceState, data: Sequences, law: PathLaw) -> None:
        self.state, self.law, self.starts = state, law, data.starts
        self.points, self.steps = data.points, data.steps
        places = torch.arange(len(data.steps), device=data.steps.device)
        self.rows = torch.full_like(state.states, -1).index_copy(0, data.steps, places)

    def open(self) -> LabelledStates:
        planes, base = all_planes(self.state.weights, self.state.reservoir), self.state.base
        free = base.new_zeros(len(planes) + 1 - len(base))
        return LabelledStates(self.state.states, planes, torch.cat([base[:-1], free, base[-1:]]))

    def close(self, at: LabelledStates) -> SequenceState:
        labels, kept = at.compact(self.law)
        base = torch.cat([at.base[:-1][kept], at.base[-1:]])
        left = None if self.state.reservoir is None else at.planes[~kept]
        return replace(self.state, states=labels, weights=at.planes[kept], base=base, reservoir=left)

    def log_prior(self, at: LabelledStates) -> Tensor:
        labels, kept = at.compact(self.law)
        base = torch.cat([at.base[:-1][kept], at.base[-1:]])
        log_prior = self._log_density(self._moves(labels, len(base) - 1), base)
        return log_prior + math.lgamma(len(kept) - len(base) + 2)

    def sides(self, steps: Tensor, *, persistent: bool) -> Sides:
        if not persistent:
            return Sides()
        first = torch.ones_like(steps, dtype=torch.bool)
        first[1:] = (steps[1:] > steps[:-1] + 1) | self.starts[steps[1:]]
        return PersistentSides(first)

    def draw_share(self, side: Tensor, generator: torch.Generator) -> float:
        one, other = torch._standard_gamma(_sizes(side), generator=generator).clamp(min=_TINY)
        return float(one / (one + other))

    def share(self, at: LabelledStates, first: int, second: int) -> float:
        return float(at.base[first] / (at.base[first] + at.base[second]))

    def divide(self, joined: LabelledStates, steps: Tensor, first: int, second: int, share: float) -> LabelledStates:
        """Steps [B] move to the second state, which has 1 - `share` of the two base weights."""
        return replace(super().divide(joined, steps, first, second, share), base=_shared(joined, first, second, share))

    def join(self, at: LabelledStates, first: int, second: int, generator: torch.Generator) -> LabelledStates:
        kept = 1.0 if self.law.alike else float(uniforms((), generator)) ** (1 / _KEPT)
        return replace(super().join(at, first, second, generator), base=_shared(at, first, second, kept))

    def log_divisions(
        self, joined: LabelledStates, side: Tensor, steps: Tensor, first: int, places: Tensor, share: float
    ) -> Tensor:
        sizes = _sizes(side)
        shares = sizes.new_tensor([share, 1 - share]).clamp(min=_TINY)
        log_draw = ((sizes - 1) * shares.log()).sum() - log_beta(*sizes)
        log_kept = joined.base[first].log()
        if self.law.alike:
            divided = self.divide(joined, steps[side], first, int(places[0]), share)
            return (self.log_prior(divided) - self.log_prior(joined) + log_kept - log_draw).reshape(1)
        total = joined.base[first] + joined.base[places]
        log_kept = math.log(_KEPT) + (_KEPT - 1) * (log_kept - total.log())
        base = joined.base.expand(len(places), -1).scatter(1, places.unsqueeze(1), (1 - share) * total.unsqueeze(1))
        base[:, first] = share * total
        moves = self._moves(joined.labels.index_fill(0, steps[side], int(places[0])), len(joined.planes))
        # the second side in each of the places: rows and columns change theirs
        order = torch.arange(len(moves), device=places.device).expand(len(places), -1)
        order = order.scatter(1, places.unsqueeze(1), places[:1].expand(len(places), 1))
        order = order.index_copy(1, places[:1], places.unsqueeze(1))
        moves = moves[order.unsqueeze(2), order[:, :-1].unsqueeze(1)]
        return torch.vmap(self._log_density)(moves, base) - self.log_prior(joined) + log_kept - log_draw

    def _moves(self, labels: Tensor, num_places: int) -> Tensor:
        return all_sum(count_transitions(labels, self.starts, num_places))

    def _log_density(self, moves: Tensor, base: Tensor) -> Tensor:
        """log p(z, beta) [] of moves [K + 1, K]."""
        h, law = self.state.hyper, self.law
        log_density = law.prior.log_paths(moves, base, h) + law.log_base(base, h)
        if self.law.alike:
            return log_density
        # the law has the density of the sticks: that of beta is less by log of what is left before each of them
        return log_density - base.flip(0).cumsum(0).flip(0)[1:-2].clamp(min=_TINY).log().sum()


@dataclass(frozen=True)
class PersistentSides(Sides):
    """Steps in runs along which sides tend to stay: a Markov chain of two states.

    Attributes
    ----------
    first : bool [B], at the first step of every run
    """

    first: Tensor

    def marginals(self, log_odds: Tensor) -> Tensor:
        """Probabilities [B, 2] of the two sides, by forward and backward passes."""
        return smooth(*self._chain(log_odds)).marginals.to(log_odds)

    def draw(self, log_odds: Tensor, generator: torch.Generator) -> Tensor:
        """Which points [B] are on the second side, drawn as paths."""
        levels = uniforms(tuple(log_odds.shape), own_stream(generator))
        return sample_paths(*self._chain(log_odds), levels).bool()

    def log_probability(self, log_odds: Tensor, side: Tensor) -> float:
        """log q of the sides [B]."""
        _, log_normalizers = filter_states(*self._chain(log_odds))
        before = torch.cat([side[:1], side[:-1]])
        stays = torch.where(before == side, math.log(_STAY), math.log(1 - _STAY)).double()
        moves = torch.where(self.first, math.log(0.5), stays)
        emissions = _emissions(log_odds).gather(1, side.long().unsqueeze(1))
        return float(all_sum(moves.sum() + emissions.sum()) - log_normalizers.sum())

    def _chain(self, log_odds: Tensor) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        table = log_odds.new_tensor([[_STAY, 1 - _STAY], [1 - _STAY, _STAY]], dtype=torch.float64).log()
        ends = [*torch.nonzero(self.first).squeeze(1).tolist(), len(self.first)]
        lengths = [end - start for start, end in pairwise(ends)]
        return table.new_full((2,), math.log(0.5)), table, _emissions(log_odds), lengths


def _emissions(log_odds: Tensor) -> Tensor:
    return torch.nn.functional.logsigmoid(torch.stack([-log_odds, log_odds], 1).double())


def _sizes(side: Tensor) -> Tensor:
    """Numbers of steps [2] of the sides, float64."""
    return all_sum(torch.stack([(~side).sum(), side.sum()])).double()


def _shared(at: LabelledStates, first: int, second: int, share: float) -> Tensor:
    """Base weights with this share of what two places have in the first, the rest in the second."""
    total, base = at.base[first] + at.base[second], at.base.clone()
    base[first], base[second] = share * total, (1 - share) * total
    return base


_STAY = 0.9  # from a step to the next on the same side
_KEPT = 5.0  # c
_TINY = 1e-300
