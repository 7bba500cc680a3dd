"""The factors of the truncated infinite hidden Markov models, plain and discriminative, and the bound.

    q = prod_k q(u_k) q(theta_k; chi_k) N(eta_k; m_k, V_k) prod_j Dir(pi_j; rows_j) q(z) q(omega | z) q(alpha) q(gamma)

maximizes a bound of log Z of the truncated model; q(z) is a whole Markov chain. Hyperplanes see every observed step,
the hierarchy of the rows is in `rows`.
Source: math/discriminative-clustering, sections 6 and 12.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ....models.sequence import Sequences, StateSpace
from ...classifiers.natural import BothSides, OwnSide
from ...classifiers.ridge import soft_sums
from ...distributed.collectives import all_sum
from ...markov.paths import smooth
from ..factors import Variational, components_kl, family_of, see, update_classifiers
from .rows import Hierarchy, hierarchy_bound, inner, update_rows


@dataclass(frozen=True, kw_only=True)
class VariationalSequence(Hierarchy, Variational):
    """A variational posterior of N steps in T states, M of the steps observed."""

    entropy: Tensor  # [] float64, of q(z)

    def permuted(self, order: Tensor) -> Self:
        rows = torch.cat([order, order.new_tensor([len(order)])])
        return replace(
            super().permuted(order),
            rows=self.rows[rows][:, order],
            counts=self.counts[rows][:, order],
        )

    def scaled(self, scale: float) -> Self:
        return replace(super().scaled(scale), counts=scale * self.counts)


def update_factors(state: VariationalSequence, data: Sequences, model: StateSpace) -> VariationalSequence:
    """All factors but the paths."""
    return update_classifiers(update_components(update_rows(state, model.prior), data, model), model)


def update_components(state: VariationalSequence, data: Sequences, model: StateSpace) -> VariationalSequence:
    """chi_k = chi0 + sum_t r_tk statistics(x_t), over the observed steps."""
    family = family_of(model)
    statistics = family.weighted_statistics(data.X, state.responsibilities[data.steps])
    return replace(state, hyperparameters=family.prior() + statistics)


def update_paths(state: VariationalSequence, data: Sequences, model: StateSpace) -> VariationalSequence:
    """q(z) by forward-backward with weights exp E log pi_jk and E log p(x_t | theta_k) + gain_tk; and the ELBO, which
    at these paths is the sum of the log normalizers and of what all hyperplanes reject, less the KL terms."""
    seen, emission = emissions(state, data, model)
    log_rows = state.expected_log_rows
    smoothed = smooth(log_rows[-1], log_rows[:-1], emission, data.lengths)
    counts = torch.cat([smoothed.transitions, smoothed.starts.unsqueeze(0)])
    log_normalizer = smoothed.log_normalizers.sum()
    entropy = log_normalizer - inner(smoothed.marginals, emission) - inner(counts, log_rows)
    r, bound = smoothed.marginals.to(data.X.dtype), log_normalizer + seen.rejection.sum(dtype=torch.float64)
    state = replace(
        state,
        responsibilities=r,
        counts=all_sum(counts),
        entropy=all_sum(entropy),
        bound=all_sum(bound) - kl(state, model),
    )
    return observed(state, seen, data)


def observe(state: VariationalSequence, data: Sequences, model: StateSpace) -> VariationalSequence:
    """The sums of the pseudo-observations at these hyperplanes and responsibilities."""
    return observed(state, see(state, data.points, model), data)


def observed(
    state: VariationalSequence, seen: OwnSide | BothSides, data: Sequences, counted: Tensor | None = None
) -> VariationalSequence:
    """The sums of what hyperplanes expect of the observed steps, which count [M] times or, for None, once."""
    precision, shift, times = seen.times(state.responsibilities[data.steps])
    times = times if counted is None else times * counted.to(times).unsqueeze(1)
    gram, linear = soft_sums(data.points.features, precision, shift, times)
    return replace(state, gram=gram, linear=linear)


def emissions(state: VariationalSequence, data: Sequences, model: StateSpace) -> tuple[OwnSide | BothSides, Tensor]:
    """What hyperplanes expect of the observed steps, and E log p(x_t | theta_k) + gain_tk [N, T] float64."""
    seen = see(state, data.points, model)
    density = family_of(model).expected_log_density(data.X, state.hyperparameters)
    return seen, data.spread(density + seen.gain).double()


# -- the bound ---------------------------------------------------------------------------------------------------------


def elbo(state: VariationalSequence, data: Sequences, model: StateSpace) -> Tensor:
    """The bound of any state, [] float64; its paths need not be optimal."""
    seen, emission = emissions(state, data, model)
    steps = inner(state.responsibilities, emission) + seen.rejection.sum(dtype=torch.float64)
    return all_sum(steps) + inner(state.counts, state.expected_log_rows) + state.entropy - kl(state, model)


def kl(state: VariationalSequence, model: StateSpace) -> Tensor:
    """KL of the global factors from their priors, [] float64; that of the hierarchy is a bound from above."""
    hierarchy = inner(state.counts, state.expected_log_rows) - hierarchy_bound(state, model.prior)
    return components_kl(state, model) + hierarchy
