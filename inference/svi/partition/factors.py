"""The factors of a truncated mixture of margin classifiers, the update of each, and the bound.

    q = prod_k q(v_k) q(theta_k; chi_k) N(eta_k; m_k, V_k) prod_n q(z_n) q(omega_n | z_n)    [q(h) of the prior]

maximizes a bound of log Z of the truncated model (math/dp-mixtures, section 6; math/priors, section 1). Each omega is
given its optimal factor for every pair (n, k), so that a margin factor enters through `Loss.expect` and
`Loss.expected_log_factor` alone. Where components repel (`Hyperplanes`) every pair counts on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ....models.data import Data
from ....models.mixture import Mixture
from ....models.priors import StickExpectations
from ....models.priors.sticks import expected_log_sticks, log_beta, posterior_sticks
from ...distributed.collectives import all_sum
from ..factors import Variational, components_kl, family_of, see, update_classifiers
from .sums import Sums, slices


@dataclass(frozen=True, kw_only=True)
class VariationalPartition(Variational):
    """A variational posterior of the assignments of N points to T components."""

    sticks: Tensor  # [2, T - 1] float64, of q(v_k) = Beta
    q: Tensor  # float64, of the prior's hyperparameters, in the form [...] that the prior gives it
    counts: Tensor | None = None  # [T] float64 and
    statistics: Tensor | None = None  # [T, S], sums over all points, where these are too many to keep responsibilities
    num_dropped: int = 0  # points whose responsibilities, optimal for the other factors, are not kept

    @property
    def num_data(self) -> int:
        """N."""
        return super().num_data + self.num_dropped

    @cached_property
    def sizes(self) -> Tensor:
        """Expected number of points of each component, [T] float64."""
        return super().sizes if self.counts is None else self.counts

    @cached_property
    def expected_log_sticks(self) -> tuple[Tensor, Tensor]:
        """(E log v, E log(1 - v)), each [T - 1] float64."""
        return expected_log_sticks(*self.sticks)

    def permuted(self, order: Tensor) -> Self:
        sums: dict[str, Any] = {name: None if part is None else part[order] for name, part in self._sums().items()}
        return replace(super().permuted(order), **sums)

    def scaled(self, scale: float) -> Self:
        """As if there were `scale` times as many points like these."""
        sums: dict[str, Any] = {name: None if part is None else scale * part for name, part in self._sums().items()}
        return replace(super().scaled(scale), **sums)

    def without_rows(self) -> Self:
        return replace(super().without_rows(), counts=None, statistics=None, num_dropped=0)

    def _sums(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("counts", "statistics")}


P = TypeVar("P", bound=VariationalPartition)


def expected_prior(state: VariationalPartition, model: Mixture) -> StickExpectations:
    """What q(h) expects of the sticks' Beta parameters, each [T - 1], and of h."""
    return model.prior.expect(state.q, model.truncation)


# -- one update for each factor: its optimum given the others ----------------------------------------------------------


def update_factors(state: VariationalPartition, data: Data, model: Mixture) -> VariationalPartition:
    """All factors but the responsibilities."""
    state = update_prior(update_sticks(state, model), model)
    return update_classifiers(update_components(state, data, model), model)


def update_sticks(state: VariationalPartition, model: Mixture) -> VariationalPartition:
    """q(v_k) = Beta(E a_k + sum_n r_nk, E b_k + sum_n sum_{j>k} r_nj)."""
    prior = expected_prior(state, model)
    return replace(state, sticks=torch.stack(posterior_sticks(state.sizes, prior.a, prior.b)))


def update_prior(state: P, model: Mixture) -> P:
    """q(h) prop. to p(h) exp E log p(v | h)."""
    return replace(state, q=model.prior.update(state.q, *state.expected_log_sticks))


def update_components(state: VariationalPartition, data: Data, model: Mixture) -> VariationalPartition:
    """chi_k = chi0 + sum_n r_nk statistics(x_n), r_nk of `memberships`: weights count here and below."""
    family, statistics = family_of(model), state.statistics
    if statistics is None:
        statistics = family.weighted_statistics(data.X, state.memberships)
    return replace(state, hyperparameters=family.prior() + statistics)


def update_responsibilities(
    state: VariationalPartition,
    data: Data,
    model: Mixture,
    penalty: Tensor | None = None,
    keep: bool | None = None,
) -> VariationalPartition:
    """log r_nk = E log pi_k + E log p(x_n | theta_k) + bound of E log phi(y_n | f_nk) + const; and the ELBO, which at
    these responsibilities is the sum of the log normalizers, each as often as its point counts, less the KL terms, the
    penalty [] where it is known. Of the pseudo-observations sums are kept, of the rest what `Sums` says."""
    sums = Sums(model, data, keep)
    total = data.features.new_zeros((), dtype=torch.float64)
    for rows in slices(data, model):
        some = data.rows(rows)
        seen = see(state, some, model)
        logits = assignment_logits(state, some, model, seen.gain)
        total += some.counted(logits.logsumexp(1) + seen.rejection).sum(dtype=torch.float64)
        sums.add(rows, some, logits.softmax(1), seen)
    bound = all_sum(total) - (kl(state, model) if penalty is None else penalty)
    return replace(state, weights=data.weights, bound=bound, **sums.fields())


def observe(state: VariationalPartition, data: Data, model: Mixture) -> VariationalPartition:
    """The sums of the pseudo-observations at these classifiers and responsibilities, which are kept."""
    return _retell(state, data, model, lambda r: r, keep=True)


def union(state: VariationalPartition, data: Data, model: Mixture, kept: int, absorbed: int) -> VariationalPartition:
    """The sums, at these classifiers, as if the points of a second component were with the first."""

    def join(r: Tensor) -> Tensor:
        joined = r.clone()
        joined[:, kept] += r[:, absorbed]
        joined[:, absorbed] = 0
        return joined

    return _retell(state, data, model, join, keep=False)


def _retell(
    state: VariationalPartition, data: Data, model: Mixture, change: Callable[[Tensor], Tensor], keep: bool
) -> VariationalPartition:
    """The sums at these classifiers and changed responsibilities, which are those of the state, or its optimal ones."""
    sums = Sums(model, data, keep)
    for rows in slices(data, model):
        some = data.rows(rows)
        seen = see(state, some, model)
        if state.num_dropped:
            r = assignment_logits(state, some, model, seen.gain).softmax(1)
        else:
            r = state.responsibilities[rows]
        sums.add(rows, some, change(r), seen)
    return replace(state, **sums.fields())


def assignment_logits(state: VariationalPartition, data: Data, model: Mixture, margin: Tensor | None = None) -> Tensor:
    """log r_nk [N, T] up to a constant for each point."""
    margin = see(state, data, model).gain if margin is None else margin
    log_density = family_of(model).expected_log_density(data.X, state.hyperparameters)
    return expected_log_mixture(state).to(margin.dtype) + log_density + margin


def expected_log_mixture(state: VariationalPartition) -> Tensor:
    """E log pi [T] float64."""
    log_v, log_rest = state.expected_log_sticks
    return pad(log_v, (0, 1)) + pad(log_rest.cumsum(0), (1, 0))


# -- the bound ---------------------------------------------------------------------------------------------------------


def elbo(state: VariationalPartition, data: Data, model: Mixture) -> Tensor:
    """The bound of any state, [] float64; the responsibilities need not be optimal."""
    seen, r = see(state, data, model), state.responsibilities
    rows = (r * assignment_logits(state, data, model, seen.gain) + torch.special.entr(r)).sum(1) + seen.rejection
    return all_sum(data.counted(rows).sum(dtype=torch.float64)) - kl(state, model)


def kl(state: VariationalPartition, model: Mixture) -> Tensor:
    """KL of the global factors from their priors, [] float64."""
    return sticks_kl(state, model) + components_kl(state, model)


def sticks_kl(state: VariationalPartition, model: Mixture) -> Tensor:
    """KL of q(v) q(h) from their priors, [] float64. That of the sticks, v_k ~ Beta(a_k, b_k) a priori, is

    E log B(a, b) - log B(A, B) + (A - E a) E log v + (B - E b) E log(1 - v),  (A, B) those of q, a and b under q(h).
    """
    prior, (A, B), (log_v, log_rest) = expected_prior(state, model), state.sticks, state.expected_log_sticks
    sticks = ((A - prior.a) * log_v + (B - prior.b) * log_rest - log_beta(A, B)).sum() + prior.log_normalizer
    return sticks + prior.kl
