"""The hierarchy of the truncated infinite hidden Markov models under mean field: rows, sticks, concentrations.

    q(rows, u, alpha, gamma) = prod_j Dir(pi_j; rows_j) prod_k Beta(u_k) Gamma(alpha) Gamma(gamma)

The top-level weights beta enter the rows' normalizers, whose expectation has no closed form. As log Gamma(1 + x) is
superadditive, for every alpha

    log Gamma(alpha) - sum_k log Gamma(alpha b_jk) >= (T - 1) log alpha + sum_k log b_jk

and with this bound q(alpha) and q(gamma) are gamma densities. For a row with stickiness, b_jj = (1 - rho) beta_j + rho,
and E log b_jj >= log((1 - rho) exp(E log beta_j) + rho), because log((1 - rho) exp(x) + rho) is convex in x. Both
bounds are loose for alpha far above 1: compare ELBOs of this scheme with each other alone.

Derivation: docs/derivations/sequences.md, Variational inference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ....models.priors import HierarchicalDirichletProcess
from ....models.priors.hyper import best_gamma, expect_gamma
from ....models.priors.sticks import broken, expected_log_sticks, posterior_sticks
from .climb import TINY, Given, climbed


@dataclass(frozen=True, kw_only=True)
class Hierarchy:
    """The factors of the hierarchy over T states, all in double precision: parameters of the rows may be tiny."""

    rows: Tensor  # [T + 1, T] of q(pi_j) = Dirichlet; last row: where sequences start
    sticks: Tensor  # [2, T - 1] of q(u_k) = Beta
    concentration: Tensor  # [2] shape and rate of q(alpha); (alpha, 1) for a fixed alpha
    top_concentration: Tensor  # [2] shape and rate of q(gamma); (gamma, 1) for a fixed gamma
    transitions: Tensor  # [T + 1, T] expected transitions under q(z); their running estimate in stochastic steps

    @property
    def expected_log_rows(self) -> Tensor:
        """E log pi_jk [T + 1, T]."""
        return torch.digamma(self.rows) - torch.digamma(self.rows.sum(1, keepdim=True))

    @property
    def expected_concentration(self) -> Tensor:
        """E[alpha] []."""
        return self.concentration[0] / self.concentration[1]

    @property
    def expected_top_concentration(self) -> Tensor:
        """E[gamma] []."""
        return self.top_concentration[0] / self.top_concentration[1]


State = TypeVar("State", bound=Hierarchy)


def start_rows(transitions: Tensor, prior: HierarchicalDirichletProcess) -> dict[str, Any]:
    """The fields of a first `Hierarchy`, given expected transitions [T + 1, T]."""
    T = transitions.shape[1]
    one = transitions.new_ones(T - 1)
    return {
        "rows": transitions + 1,
        "sticks": torch.stack(posterior_sticks(transitions.clamp(max=1).sum(0), one, prior.top_concentration * one)),
        "concentration": _start(prior.concentration, prior.concentration_prior, T**2 - 1, transitions),
        "top_concentration": _start(prior.top_concentration, prior.top_concentration_prior, T - 1, transitions),
        "transitions": transitions,
    }


def update_rows(state: State, prior: HierarchicalDirichletProcess) -> State:
    """Update q(u), q(alpha), q(gamma) and the rows together, given the expected transitions.

    rows_jk = E[alpha] E[b_jk] + counts_jk and q(gamma) = Gamma(shape + T - 1, rate - sum_k E log(1 - u_k)) are optimal
    given the sticks and alpha; the shape of q(alpha) is always shape + T^2 - 1. So the bound is maximized in the
    remaining 2 T - 1 numbers by L-BFGS. Updates of the rows and of beta in turn would hardly move either. The many
    short steps are computed on the host.
    """
    device, names = state.rows.device, [each.name for each in fields(Hierarchy)]
    found = _climbed(replace(state, **{name: getattr(state, name).cpu() for name in names}), prior)
    return replace(state, **{name: getattr(found, name).to(device) for name in names})


def _climbed(state: State, prior: HierarchicalDirichletProcess) -> State:
    given = Given(state.transitions.numpy(), float(state.concentration[0]), prior)
    sticks, rate = climbed(state.sticks, state.concentration[1:], given)
    moved = replace(state, sticks=sticks, concentration=torch.cat([state.concentration[:1], rate]))
    start, end = followed(state, prior), followed(moved, prior)
    return end if hierarchy_bound(end, prior) > hierarchy_bound(start, prior) else start


def hierarchy_bound(state: Hierarchy, prior: HierarchicalDirichletProcess) -> Tensor:
    """The terms of the ELBO with rows, sticks, alpha or gamma, given the expected transitions, [] float64.

    They are sum_jk counts_jk E log pi_jk + E log p(pi | alpha, beta) + E log p(u | gamma) + E log p(alpha) p(gamma) +
    entropies, with E log p(pi_j) >= (T - 1) E log alpha + sum_k [E log b_jk + (E[alpha] E[b_jk] - 1) E log pi_jk].
    """
    T, (log_v, log_rest) = len(state.rows) - 1, expected_log_sticks(*state.sticks)
    alpha, log_alpha, alpha_kl = expect_gamma(state.concentration, prior.concentration_prior)
    gamma, log_gamma, gamma_kl = expect_gamma(state.top_concentration, prior.top_concentration_prior)
    excess = state.transitions + alpha * expected_row_means(state, prior) - state.rows
    rows = inner(excess, state.expected_log_rows) + _log_normalizer(state.rows).sum()
    rows = rows + (T + 1) * (T - 1) * log_alpha + _expected_log_row_means(log_v, log_rest, prior.stickiness).sum()
    a, b = state.sticks
    sticks = (T - 1) * log_gamma + _log_normalizer(state.sticks.T).sum()
    sticks = sticks - ((a - 1) * log_v + (b - gamma) * log_rest).sum()
    return rows + sticks - alpha_kl - gamma_kl


def expected_row_means(state: Hierarchy, prior: HierarchicalDirichletProcess) -> Tensor:
    """E[b_jk] [T + 1, T]."""
    a, b = state.sticks
    beta = broken((a / (a + b)).log(), (b / (a + b)).log()).exp()
    return prior.row_means(beta, len(beta))


def inner(table: Tensor, log_rows: Tensor) -> Tensor:
    """The sum [] of the elementwise product of two tables [..., T]."""
    return (table * log_rows).sum()


def _log_normalizer(shape: Tensor) -> Tensor:
    """log B [...] of Dirichlet parameters [..., K]."""
    return torch.lgamma(shape).sum(-1) - torch.lgamma(shape.sum(-1))


def followed(state: State, prior: HierarchicalDirichletProcess) -> State:
    """Set q(gamma) and the rows to their optimum given q(u), q(alpha) and the expected transitions."""
    _, log_rest = expected_log_sticks(*state.sticks)
    top = best_gamma(state.top_concentration, prior.top_concentration_prior, len(log_rest), -log_rest.sum())
    rows = state.transitions + state.expected_concentration * expected_row_means(state, prior)
    return replace(state, top_concentration=top, rows=rows.clamp(min=TINY))


def _expected_log_row_means(log_v: Tensor, log_rest: Tensor, stickiness: float) -> Tensor:
    """A lower bound of E log b_jk [T + 1, T], equal to it for rho = 0."""
    log_beta = broken(log_v, log_rest)
    if not stickiness:
        return log_beta.expand(len(log_beta) + 1, -1)
    rest = log_beta + math.log1p(-stickiness)
    own = torch.logaddexp(rest, rest.new_tensor(math.log(stickiness)))
    diagonal = torch.eye(len(rest), dtype=torch.bool, device=rest.device)
    return torch.cat([torch.where(diagonal, own, rest), log_beta.unsqueeze(0)])


def _start(value: float, prior: tuple[float, float] | None, num_factors: int, like: Tensor) -> Tensor:
    """A gamma's (shape, rate) [2] with mean `value` and the shape of the optimum."""
    shape = prior[0] + num_factors if prior else value
    return like.new_tensor([shape, shape / value])
