"""The factors of a truncated mixture of margin classifiers, the update of each, and the bound.

    q = prod_k q(v_k) q(theta_k; chi_k) N(eta_k; m_k, V_k) prod_n q(z_n) q(omega_n | z_n)    [q(h) of the prior]

maximizes a bound of log Z of the truncated model (math/dp-mixtures, section 6; math/priors, section 1). Each omega is
given its optimal factor for every pair (n, k), so that a margin factor enters through `Loss.expect` and
`Loss.expected_log_factor` alone. Where components repel (`Hyperplanes`) every pair counts on both sides
(`hyperplanes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...models.data import Data
from ...models.mixture import Mixture
from ...models.priors import StickExpectations
from ...models.priors.sticks import expected_log_sticks, log_beta, posterior_sticks
from ...models.scores import scores
from ..collectives import all_sum
from ..ridge import Ridge, soft_sums, with_prior
from .factors import Variational, components_kl, family_of
from .hyperplanes import blend, expect_sides


@dataclass(frozen=True, kw_only=True)
class VariationalPartition(Variational):
    """A variational posterior of the assignments of N points to T components."""

    sticks: Tensor  # [2, T - 1] float64, of q(v_k) = Beta
    q: Tensor  # float64, of the prior's hyperparameters, in the form [...] that the prior gives it
    gram: Tensor  # [T, C, P, P] sum_n r_nk precision_nk a_n a_n^T of the expected pseudo-observations
    linear: Tensor  # [T, P, C] sum_n r_nk shift_nk a_n

    @cached_property
    def expected_log_sticks(self) -> tuple[Tensor, Tensor]:
        """(E log v, E log(1 - v)), each [T - 1] float64."""
        return expected_log_sticks(*self.sticks)

    def permuted(self, order: Tensor) -> Self:
        return replace(super().permuted(order), gram=self.gram[order], linear=self.linear[order])

    def scaled(self, scale: float) -> Self:
        """As if there were `scale` times as many points like these."""
        r, gram, linear = (scale * part for part in (self.responsibilities, self.gram, self.linear))
        return replace(self, responsibilities=r, gram=gram, linear=linear)


def expected_prior(state: VariationalPartition, model: Mixture) -> StickExpectations:
    """What q(h) expects of the sticks' Beta parameters, each [T - 1], and of h."""
    return model.prior.expect(state.q, model.truncation)


# -- one update for each factor: its optimum given the others ----------------------------------------------------------


def update_factors(state: VariationalPartition, data: Data, model: Mixture) -> VariationalPartition:
    """All factors but the responsibilities."""
    state = update_prior(update_sticks(state, model), model)
    return update_classifiers(update_components(state, data, model), data, model)


def update_sticks(state: VariationalPartition, model: Mixture) -> VariationalPartition:
    """q(v_k) = Beta(E a_k + sum_n r_nk, E b_k + sum_n sum_{j>k} r_nj)."""
    prior = expected_prior(state, model)
    return replace(state, sticks=torch.stack(posterior_sticks(state.sizes, prior.a, prior.b)))


def update_prior(state: VariationalPartition, model: Mixture) -> VariationalPartition:
    """q(h) prop. to p(h) exp E log p(v | h)."""
    return replace(state, q=model.prior.update(state.q, *state.expected_log_sticks))


def update_components(state: VariationalPartition, data: Data, model: Mixture) -> VariationalPartition:
    """chi_k = chi0 + sum_n r_nk statistics(x_n), r_nk of `memberships`: weights count here and below."""
    family = family_of(model)
    statistics = family.weighted_statistics(data.X, state.memberships)
    return replace(state, hyperparameters=family.prior() + statistics)


def update_classifiers(state: VariationalPartition, data: Data, model: Mixture) -> VariationalPartition:
    """V_k^-1 = I / nu^2 + sum_n r_nk precision_nk a_n a_n^T,  m_k = V_k sum_n r_nk shift_nk a_n."""
    ridge = Ridge.of_natural(*with_prior(state.gram, state.linear, model.weight_scale))
    return replace(state, mean=ridge.mean, precision_tril=ridge.precision_tril)


def update_responsibilities(
    state: VariationalPartition,
    data: Data,
    model: Mixture,
    penalty: Tensor | None = None,
    out: Tensor | None = None,
) -> VariationalPartition:
    """log r_nk = E log pi_k + E log p(x_n | theta_k) + bound of E log phi(y_n | f_nk) + const; and the ELBO, which at
    these responsibilities is the sum of the log normalizers, each as often as its point counts, less the KL terms, the
    penalty [] where it is known. Of the pseudo-observations their sums are kept. `out` [N, T] is overwritten by r."""
    r = data.features.new_empty(data.num_data, model.truncation) if out is None else out
    total, observed = r.new_zeros((), dtype=torch.float64), nothing_observed(model, data)
    for rows in slices(data, model):
        some = data.rows(rows)
        seen = _see(state, some, model)
        logits = assignment_logits(state, some, model, seen.margin)
        torch.softmax(logits, 1, out=r[rows])
        total += some.counted(logits.logsumexp(1)).sum(dtype=torch.float64)
        if seen.rejection is not None:
            total += some.counted(seen.rejection).sum(dtype=torch.float64)
        _add(observed, seen, some, r[rows])
    bound = all_sum(total) - (kl(state, model) if penalty is None else penalty)
    return replace(state, responsibilities=r, weights=data.weights, **observed, bound=bound)


def observe(state: VariationalPartition, data: Data, model: Mixture) -> VariationalPartition:
    """The sums of the pseudo-observations at these classifiers and responsibilities."""
    observed = nothing_observed(model, data)
    for rows in slices(data, model):
        some = data.rows(rows)
        _add(observed, _see(state, some, model), some, state.responsibilities[rows])
    return replace(state, **observed)


def nothing_observed(model: Mixture, data: Data) -> dict[str, Any]:
    """Fields of a `VariationalPartition` with the sums of the pseudo-observations of no points."""
    T, C, P = model.truncation, data.targets.shape[1], data.features.shape[1]
    return {"gram": data.features.new_zeros(T, C, P, P), "linear": data.features.new_zeros(T, P, C)}


class _Seen(NamedTuple):
    """What the classifiers expect of n points."""

    margin: Tensor  # [n, T] in the logits
    rejection: Tensor | None  # [n, T] of components that repel, whether a point is theirs or not
    observed: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]  # r [n, T] -> precision, shift [n, T, C], times [n, T]


def _see(state: VariationalPartition, data: Data, model: Mixture) -> _Seen:
    if model.repels:  # every point counts for every hyperplane
        sides = expect_sides(data.features, state.classifiers, model.loss)
        return _Seen(sides.gain, sides.rejection, lambda r: (*blend(sides, r), torch.ones_like(r)))
    precision, shift, margin = expected_margins(state, data, model)
    return _Seen(margin, None, lambda r: (precision, shift, r))


def _add(observed: dict[str, Any], seen: _Seen, data: Data, r: Tensor) -> None:
    """Add the pseudo-observations of some points with responsibilities r to the sums."""
    precision, shift, times = seen.observed(r)
    for total, part in zip(
        observed.values(), soft_sums(data.features, precision, shift, data.counted(times)), strict=True
    ):
        total += part


def slices(data: Data, model: Mixture) -> Iterator[slice]:
    """Slices of the rows for which an array [n, T, C] fits a cache, or a GPU: of all rows there is none."""
    step = max(64, (2**25 if data.features.is_cuda else 2**18) // (model.truncation * max(1, data.targets.shape[1])))
    yield from (slice(start, start + step) for start in range(0, max(1, data.num_data), step))


def assignment_logits(state: VariationalPartition, data: Data, model: Mixture, margin: Tensor | None = None) -> Tensor:
    """log r_nk [N, T] up to a constant for each point."""
    if margin is None:
        if model.repels:
            margin = expect_sides(data.features, state.classifiers, model.loss).gain
        else:
            *_, margin = expected_margins(state, data, model)
    log_density = family_of(model).expected_log_density(data.X, state.hyperparameters)
    return expected_log_mixture(state).to(margin.dtype) + log_density + margin


def expected_log_mixture(state: VariationalPartition) -> Tensor:
    """E log pi [T] float64."""
    log_v, log_rest = state.expected_log_sticks
    return pad(log_v, (0, 1)) + pad(log_rest.cumsum(0), (1, 0))


def expected_margins(state: VariationalPartition, data: Data, model: Mixture) -> tuple[Tensor, Tensor, Tensor]:
    """Expected pseudo-observations (precision, shift), each [N, T, C], and the bound of E log phi, [N, T]."""
    mean, variance = scores(data.features, state.mean), state.classifiers.score_variance(data.features)
    targets = data.targets.unsqueeze(1)
    precision, shift = model.loss.expect(mean, variance, targets)
    margin = model.loss.expected_log_factor(mean, variance, targets) @ mean.new_ones(mean.shape[2])  # faster than a sum
    return precision.expand_as(mean), shift.expand_as(mean), margin


# -- the bound ---------------------------------------------------------------------------------------------------------


def elbo(state: VariationalPartition, data: Data, model: Mixture) -> Tensor:
    """The bound of any state, [] float64; the responsibilities need not be optimal."""
    logits, r = assignment_logits(state, data, model), state.responsibilities
    rows = data.counted(r * logits + torch.special.entr(r)).sum(dtype=torch.float64)
    if model.repels:
        rejection = expect_sides(data.features, state.classifiers, model.loss).rejection
        rows = rows + data.counted(rejection).sum(dtype=torch.float64)
    return all_sum(rows) - kl(state, model)


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
