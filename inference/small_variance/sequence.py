"""The kernel of sequences: the descent of `repelling` with the costs of state sequences.

    structure(z) = penalty (K - 1) + transition_penalty sum_j (successors of row j - 1), rows with exits
                   - transition_weight sum_t log P_{z_{t-1} z_t},    P_jk = n_jk / n_j.

A path pays `transition_penalty` for each use of a transition that is not in use now. This is an upper bound of J, exact
at the present path. With a transition weight, unused transitions first get a share of P, and the new path is accepted
only if it lowers J. (docs/derivations/sequences, "Small-variance limit")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Self

import torch
from torch import Tensor

from ...models.priors import DirichletProcess, PartitionPrior
from ...models.priors.franchise import count_transitions
from ...models.sequence import Sequences, StateSpace
from ..distributed.collectives import Later, all_any, all_count
from ..distributed.picked import in_turns
from ..markov.paths import viterbi
from ..running.engine import Draw, Kernel
from . import repelling
from .assignment import all_costs
from .backend import SmallVariance
from .landscape import Landscape
from .problem import Problem, require_divergence
from .state import Descent, RepellingDescent


def check(backend: SmallVariance, model: StateSpace) -> None:
    """Raise NotImplementedError on a likelihood without a small-variance limit."""
    require_divergence(model)


def alone(backend: SmallVariance, model: StateSpace) -> str:
    """Return "": ranks can share the sequences; moves of single steps are made rank after rank."""
    return ""


def kernel(backend: SmallVariance, model: StateSpace) -> Kernel:
    """The kernel of a resolved model."""
    return repelling.kernel(backend, SequenceLandscape.over)


@dataclass(frozen=True)
class SequenceLandscape(Landscape):
    """The objective for sequences with N steps, M of them observed."""

    sequences: Sequences

    @classmethod
    def over(cls, model: StateSpace, data: Sequences, scale: float) -> Self:
        """The landscape of a resolved model."""
        points = Landscape.of(model, data.points, scale)
        return cls(points.problem, points.empty, points.empty_cost, data)

    @property
    def prior(self) -> PartitionPrior:
        return DirichletProcess()

    def observed(self, assignments: Tensor) -> Tensor:
        return assignments[self.sequences.steps]

    def places(self, index: Tensor) -> Tensor:
        return self.sequences.steps[index]

    def completed(self, assignments: Tensor) -> Tensor:
        """States [N] from those of the observed steps [M]: a missing step repeats the last observed state of its
        sequence, or else takes the first one; a sequence without observed steps takes state 0."""
        source, known = self._sources
        return assignments[source].where(known, 0)

    @cached_property
    def _sources(self) -> tuple[Tensor, Tensor]:
        """The observed step whose state each step takes [N], and whether its sequence has one [N]."""
        steps = self.sequences.steps
        lengths = torch.as_tensor(self.sequences.lengths, device=steps.device)
        seen = torch.zeros(self.sequences.num_data, dtype=torch.long, device=steps.device).index_fill(0, steps, 1)
        which = torch.repeat_interleave(torch.arange(len(lengths), device=steps.device), lengths)
        first = torch.searchsorted(which[steps], which)  # the first observed step of the same sequence
        source = torch.maximum(seen.cumsum(0) - 1, first).clamp(max=len(steps) - 1)
        return source, which[steps[source]] == which

    def cheapest(self, costs: Tensor, state: RepellingDescent, unused: float) -> Tensor:
        """States [N] of the cheapest paths, from the costs [M, K] of the observed steps."""
        K = state.num_components
        log_steps = self.log_edges(state, unused=unused).to(costs)
        paths, _ = viterbi(log_steps[K], log_steps[:K], self.sequences.spread(-costs), self.sequences.lengths)
        return paths

    def saved(self, costs: Tensor, state: RepellingDescent) -> Tensor:
        return costs.new_tensor(torch.inf)

    def stepwise(self, state: RepellingDescent) -> Tensor:
        """States [N] after each single step has moved to the state where J is lowest.

        The cost of a move includes its change of structure, while `cheapest` uses the structure of the present path.
        Steps depend on one another, so they are moved by compiled code on the host, wherever the tensors are.
        """
        from . import _numba_paths  # compiles or loads machine code: only where it is needed

        costs = self.sequences.spread(all_costs(self.problem, state.centers, state.weights).double())
        counts, sizes, device = self.transitions(state), state.counts, state.assignments.device
        log_sizes = torch.arange(all_count(self.sequences.num_data) + 2, dtype=torch.float64)
        gains = torch.xlogy(log_sizes, log_sizes).diff()
        numbers = (float(each) for each in (state.penalty, state.transition_penalty, state.transition_weight))
        states, starts = state.assignments.to("cpu", copy=True), self.sequences.starts.cpu()
        fixed = (costs.cpu().contiguous().numpy(), starts.numpy(), *numbers)
        shared = [each.cpu().contiguous() for each in (counts, counts.sum(1), (counts > 0).sum(1), sizes)]
        arrays = (each.numpy() for each in (gains.contiguous(), *shared, states))
        move = partial(_numba_paths.move_steps, *fixed, *arrays, 1)
        for _ in range(_MOST_PASSES):
            before = states.clone()
            in_turns(move, shared)
            if not all_any(states != before):
                break
        return states.to(device)

    def structure_later(self, state: RepellingDescent) -> Callable[[], Tensor]:
        moves = self.transitions_later(state)

        def cost() -> Tensor:
            counts = moves().double()
            spare = ((counts > 0).sum(1) - 1).clamp(min=0).sum()  # rows without exits cost nothing
            surprise = (torch.xlogy(counts.sum(1), counts.sum(1)) - torch.xlogy(counts, counts).sum(1)).sum()
            states = state.penalty.double() * (state.num_components - 1)
            return states + state.transition_penalty.double() * spare + state.transition_weight.double() * surprise

        return cost

    def natural_transition_penalty(self, start: Callable[[], Descent], plain: Problem) -> float:
        """The average cost of an observed step, without the price of its component."""
        found = start()
        cost = (found.objective - plain.price(found.penalty, found.num_components)) / all_count(plain.num_data)
        return float(cost.clamp(min=torch.finfo(plain.X.dtype).tiny))

    def transitions(self, state: RepellingDescent) -> Tensor:
        """Transition counts [K + 1, K] between states; the last row counts starts."""
        return self.transitions_later(state)()

    def transitions_later(self, state: RepellingDescent) -> Later:
        """`transitions` [K + 1, K], as a sum that joins the next exchange of ranks."""
        return Later(count_transitions(state.assignments, self.sequences.starts, state.num_components))

    def log_edges(self, state: RepellingDescent, *, unused: float = 0.5) -> Tensor:
        """Minus the cost of each transition [K + 1, K]; the last row is that of starts."""
        counts = self.transitions(state).double()
        log_edges = torch.where(counts > 0, 0.0, -state.transition_penalty.double())
        if not state.transition_weight:
            return log_edges
        moves = torch.where(counts > 0, counts, unused)
        log_shares = (moves / moves.sum(1, keepdim=True)).log().nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        return log_edges + state.transition_weight.double() * log_shares

    def draw(self, state: RepellingDescent) -> Draw:
        """As in `Landscape`; rows of transitions are posterior means, with alpha / K for each state."""
        centers, K = state.centers, state.num_components
        none = centers.new_full((K + 1, 1), -torch.inf)
        moves = self.transitions(state).to(centers) + self.problem.model.prior.concentration / K
        log_rows = torch.cat([(moves / moves.sum(1, keepdim=True)).log(), none], 1)
        return super().draw(state) | {
            "log_edges": torch.cat([self.log_edges(state).to(centers), none], 1),
            "log_start": log_rows[K],
            "log_transitions": log_rows[:K],
            "transition_penalty": state.transition_penalty,
        }


_MOST_PASSES = 20
