"""The law of z of the truncated infinite hidden Markov models: a chain, by forward-backward recursions.

    q(rows, sticks, alpha, gamma) q(z),    log w(z) = sum_t E log pi_{z_{t-1} z_t} + log likelihood of z_t

q(z) is a whole Markov chain; the hierarchy of the rows is in `rows`. A block of a long sequence is smoothed together
with a margin of steps on both sides (Foti et al. 2014).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ....models.sequence import Sequences, StateSpace
from ...distributed.collectives import all_count, all_sum, all_sums
from ...markov.paths import filter_states, smooth
from ..factors import Variational, Weighed
from .rows import Hierarchy, hierarchy_bound, inner, start_rows, update_rows


@dataclass(frozen=True, eq=False)
class Block(Sequences):
    """Steps of one sequence, some of which count, with the transition into each; the others are a margin."""

    owned: slice  # the steps that count
    at_start: bool  # whether the first step starts the sequence

    @property
    def is_whole(self) -> bool:
        """Whether all steps count, from the start."""
        return self.at_start and self.owned.indices(self.num_data)[:2] == (0, self.num_data)


@dataclass(frozen=True, kw_only=True)
class VariationalSequence(Hierarchy, Variational[Sequences, StateSpace]):
    """The factors for N steps in T states; M of the steps are observed."""

    entropy: Tensor  # [] float64, of q(z)

    separate: ClassVar[bool] = False

    @classmethod
    def started(cls, model: StateSpace, data: Sequences, fields: dict[str, Any]) -> Self:
        """As in `Variational`; a missing step has equal probabilities of all states."""
        seen, T = fields["responsibilities"], model.truncation
        r = seen.new_full((data.num_data, T), 1 / T).index_copy(0, data.steps, seen)
        before = torch.where(data.starts[1:].unsqueeze(1), 0.0, r[:-1]).double()
        moves = torch.cat([before.T @ r[1:].double(), r[data.starts].sum(0, keepdim=True)])
        entropy = all_sum(torch.special.entr(r.double()).sum())
        return cls(**fields | {"responsibilities": r}, entropy=entropy, **start_rows(all_sum(moves), model.prior))

    @property
    def sizes(self) -> Tensor:
        """Expected number of visits of each state, [T] float64."""
        return self.transitions.sum(0)

    def permuted(self, order: Tensor) -> Self:
        rows = torch.cat([order, order.new_tensor([len(order)])])
        own, moves = self.rows[rows][:, order], self.transitions[rows][:, order]
        return replace(super().permuted(order), rows=own, transitions=moves)

    def scaled(self, scale: float) -> Self:
        return replace(super().scaled(scale), transitions=scale * self.transitions)

    def of_points(self, data: Sequences, rows: slice) -> Tensor:
        return self.responsibilities[data.steps]

    def weigh(self, log_likelihood: Tensor, data: Sequences) -> Weighed:
        """Compute q(z) [M, T] by forward-backward recursions; of a `Block`, for the steps that count."""
        emission = data.spread(log_likelihood).double()
        if isinstance(data, Block) and not data.is_whole:
            marginals, moves, log_total, entropy = self._weigh_block(emission, data)
        else:
            marginals, moves, log_total, entropy = self._weigh_all(emission, data.lengths)
        r = marginals.to(log_likelihood.dtype)
        fields = {"responsibilities": r, **dict(zip(("transitions", "entropy"), all_sums(moves, entropy), strict=True))}
        return Weighed(r[data.steps], log_total, fields)

    def _weigh_all(self, emission: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Marginals [N, T], expected transitions [T + 1, T], the log normalizer [] and the entropy []."""
        log_rows = self.expected_log_rows
        smoothed = smooth(log_rows[-1], log_rows[:-1], emission, lengths)
        moves = torch.cat([smoothed.transitions, smoothed.starts.unsqueeze(0)])
        log_total = smoothed.log_normalizers.sum()
        return (
            smoothed.marginals,
            moves,
            log_total,
            log_total - inner(smoothed.marginals, emission) - inner(moves, log_rows),
        )

    def _weigh_block(self, emission: Tensor, data: Block) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `_weigh_all` for the steps that count, given those before them; the entropy is 0.

        The steps that count are in copies of the states with the same weights, so that the transitions into copies are
        those that count.
        """
        log_rows, (begin, end, _) = self.expected_log_rows, data.owned.indices(data.num_data)
        T, transition = log_rows.shape[1], log_rows[:-1]
        start = log_rows[-1] if data.at_start else torch.zeros_like(log_rows[-1])  # any state may be first
        owned = torch.zeros(data.num_data, dtype=torch.bool, device=emission.device)
        owned[begin:end] = True
        both = [emission.masked_fill(steps.unsqueeze(1), -torch.inf) for steps in (owned, ~owned)]
        smoothed = smooth(start.repeat(2), transition.repeat(2, 2), torch.cat(both, 1), data.lengths)
        into = smoothed.transitions[:T, T:] + smoothed.transitions[T:, T:]
        moves = torch.cat([into, smoothed.starts[T:].unsqueeze(0)])
        until, before = (_log_weight(start, transition, emission[:step]) for step in (end, begin))
        return smoothed.marginals[:, T:], moves, until - before, torch.zeros_like(until)

    def with_prior(self, model: StateSpace) -> Self:
        return update_rows(self, model.prior)

    def prior_kl(self, model: StateSpace) -> Tensor:
        """As in `Variational`; the KL of the hierarchy [] float64 is an upper bound."""
        return inner(self.transitions, self.expected_log_rows) - hierarchy_bound(self, model.prior)

    def reordered(self, model: StateSpace) -> Self:
        """Sort the states by decreasing number of visits, which sticks expect, if that raises the bound."""
        order = self.sizes.argsort(descending=True, stable=True)
        if torch.equal(order, torch.arange(len(order), device=order.device)):
            return self
        as_is, permuted = (update_rows(version, model.prior) for version in (self, self.permuted(order)))
        return permuted if hierarchy_bound(permuted, model.prior) > hierarchy_bound(as_is, model.prior) else as_is

    def joined(self, kept: int, absorbed: int) -> Self:
        into = torch.eye(len(self.sizes), dtype=torch.float64, device=self.transitions.device)
        into[absorbed] = into[kept]
        moves = torch.block_diag(into, into.new_ones(1, 1)).T @ self.transitions @ into
        return replace(self, transitions=moves)

    def standing_for(self, rows: Sequences, num_data: int, num_units: float) -> Self:
        """As in `Variational`; the transitions scale with steps, the starts with sequences."""
        scaled, starts = self.scaled(num_data / all_count(rows.num_data)), num_units / all_count(len(rows.lengths))
        return replace(scaled, transitions=torch.cat([scaled.transitions[:-1], starts * self.transitions[-1:]]))

    def towards(self, target: Variational[Sequences, StateSpace], model: StateSpace, rho: float) -> Self:
        """Move the expected transitions by rho; then update sticks, alpha and gamma as in a full sweep."""
        assert isinstance(target, VariationalSequence)
        return update_rows(
            replace(self, transitions=torch.lerp(self.transitions, target.transitions, rho)), model.prior
        )


def _log_weight(start: Tensor, transition: Tensor, emission: Tensor) -> Tensor:
    """log of the total weight of all paths through these steps [], 0 without steps."""
    if not len(emission):
        return emission.new_zeros(())
    return filter_states(start, transition, emission, [len(emission)])[1].sum()
