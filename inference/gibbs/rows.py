"""Transition counts of state sequences, and updates of transition rows and base weights."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ...models import host
from ...models.distributions.sampling import log_dirichlet, log_gamma_draw, uniforms
from ...models.priors import HierarchicalDirichletProcess
from ...models.priors.franchise import count_transitions
from ...models.sequence import Sequences
from ..compiled.trusted import require_labels
from ..distributed.collectives import all_sum
from .state import SequenceState


def count_moves(state: SequenceState, data: Sequences) -> Tensor:
    """Transition counts n_jk [K + 1, K] from state j to state k over all ranks; the last row counts starts."""
    return all_sum(own_moves(state, data))


def own_moves(state: SequenceState, data: Sequences) -> Tensor:
    """Transition counts [K + 1, K] in the sequences of this rank."""
    states, K = state.assignments, len(state.weights)
    if not host.on_cpu(states):
        return count_transitions(states, data.starts, K)
    from . import _numba_sums  # compiles or loads machine code: only where it is needed

    require_labels("assignments", states, data.num_data, K)
    moves = states.new_zeros(K + 1, K)
    _numba_sums.count_moves(states.contiguous().numpy(), data.starts.numpy(), moves.numpy())
    return moves


def row_posterior(state: SequenceState, moves: Tensor, prior: HierarchicalDirichletProcess) -> Tensor:
    """Parameters alpha b_jk + n_jk [K + 1, K + 1] of each row pi_j | z ~ Dirichlet, from transitions n_jk [K + 1, K].

    The last row is that of starts, the last column that of all other states.
    """
    K = len(state.weights)
    shape = state.hyper["concentration"] * prior.row_means(state.base, K)
    shape[:, :K] += moves
    return shape


def relabel(state: SequenceState, generator: torch.Generator) -> SequenceState:
    """Propose Metropolis swaps of states k, k + 1 of T states, along with their base weights.

    Only the density of beta changes, gamma^(T-1) beta_T^(gamma-1) prod_{k<T} 1 / r_k with r_k = 1 - sum_{j<k} beta_j:
    by the factor (r_k - beta_k) / (r_k - beta_{k+1}), and for the last pair by (beta_{T-1} / beta_T)^(gamma-1).
    """
    *base, gamma = torch.cat([state.base[:-1], state.hyper["top_concentration"].view(1)]).tolist()
    T, order = len(base), list(range(len(base)))
    log_uniforms = torch.log1p(-uniforms((T - 1,), generator)).tolist()
    for k, log_uniform in enumerate(log_uniforms):
        own, other, rest = base[k], base[k + 1], math.fsum(base[k + 2 :])
        last = k + 2 == T
        log_ratio = (gamma - 1) * (_log(own) - _log(other)) if last else _log(other + rest) - _log(own + rest)
        if log_uniform < log_ratio:
            base[k], base[k + 1] = other, own
            order[k], order[k + 1] = order[k + 1], order[k]
    kept = torch.tensor(order, device=state.assignments.device)
    moved = torch.cat([state.base[kept], state.base[-1:]])
    labels = torch.argsort(kept).index_select(0, state.assignments)
    return replace(state, assignments=labels, weights=state.weights[kept], base=moved)


def break_rest(
    log_rows: Tensor,
    base: Tensor,
    num_new: int,
    state: SequenceState,
    prior: HierarchicalDirichletProcess,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Add M states.

    Each takes a Beta(1, gamma) share of the rest of beta, and a Dirichlet(alpha b) share of each row's rest.

    Takes log rows [K + 1, K + 1] and base weights [K + 1]; returns those of K + M states.
    """
    alpha, gamma, K = state.hyper["concentration"], state.hyper["top_concentration"], len(base) - 1 + num_new
    log_share = torch.log1p(-uniforms((num_new,), generator)) / gamma  # log (1 - s) for s ~ Beta(1, gamma)
    left = base[-1] * log_share.cumsum(0).exp()
    new = torch.cat([base[-1:], left[:-1]]) * -torch.expm1(log_share)
    base = torch.cat([base[:-1], new, left[-1:]])
    means = prior.row_means(base, K)  # of the K states, then of the start
    known = torch.cat([means[: K - num_new], means[-1:]])[:, K - num_new :]
    split = log_rows[:, -1:] + log_gamma_draw(alpha * known, generator).log_softmax(1)
    fresh = log_dirichlet(alpha * means[K - num_new : K], generator)
    widened = torch.cat([log_rows[:, :-1], split], 1)
    return torch.cat([widened[:-1], fresh, widened[-1:]]), base


def _log(weight: float) -> float:
    return math.log(max(weight, torch.finfo(torch.float64).tiny))
