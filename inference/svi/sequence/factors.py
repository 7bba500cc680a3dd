"""The factors of the truncated infinite hidden Markov models, plain and discriminative, and the bound.

    q = prod_k q(u_k) q(theta_k; chi_k) N(eta_k; m_k, V_k) prod_j Dir(pi_j; rows_j) q(z) q(omega | z) q(alpha) q(gamma)

maximizes a bound of log Z of the truncated model; q(z) is a whole Markov chain. Hyperplanes see every observed step
(`hyperplanes`), the hierarchy of the rows is in `sequence_rows`.
Source: math/discriminative-clustering, sections 6 and 12.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ....models.sequence import Sequences, StateSpace
from ...classifiers.ridge import Ridge, soft_natural
from ...distributed.collectives import all_sum
from ...markov.paths import smooth
from ..factors import Variational, components_kl, family_of
from ..hyperplanes import Sides, blend, expect_sides
from .rows import Hierarchy, hierarchy_bound, inner, update_rows


@dataclass(frozen=True, kw_only=True)
class VariationalSequence(Hierarchy, Variational):
    """A variational posterior of N steps in T states, M of the steps observed."""

    entropy: Tensor  # [] float64, of q(z)
    precision: Tensor  # [M, T, C] expected pseudo-observations
    shift: Tensor  # [M, T, C]

    def permuted(self, order: Tensor) -> Self:
        rows = torch.cat([order, order.new_tensor([len(order)])])
        return replace(
            super().permuted(order),
            precision=self.precision[:, order],
            shift=self.shift[:, order],
            rows=self.rows[rows][:, order],
            counts=self.counts[rows][:, order],
        )

    def without_rows(self) -> Self:
        return replace(super().without_rows(), precision=self.precision[:0], shift=self.shift[:0])


def update_factors(state: VariationalSequence, data: Sequences, model: StateSpace) -> VariationalSequence:
    """All factors but the paths."""
    state = update_components(update_rows(state, model.prior), data, model)
    return update_classifiers(state, data, model)


def update_components(state: VariationalSequence, data: Sequences, model: StateSpace) -> VariationalSequence:
    """chi_k = chi0 + sum_t r_tk statistics(x_t), over the observed steps."""
    family = family_of(model)
    statistics = family.weighted_statistics(data.X, state.responsibilities[data.steps])
    return replace(state, hyperparameters=family.prior() + statistics)


def update_classifiers(state: VariationalSequence, data: Sequences, model: StateSpace) -> VariationalSequence:
    """q(eta_k) from both sides of every hyperplane at every observed step (`hyperplanes`)."""
    ridge = Ridge.of_natural(*natural_classifiers(state, data, model))
    return replace(state, mean=ridge.mean, precision_tril=ridge.precision_tril)


def natural_classifiers(state: VariationalSequence, data: Sequences, model: StateSpace) -> tuple[Tensor, Tensor]:
    """V_k^-1 [T, C, P, P] and V_k^-1 m_k [T, P, C] of that update."""
    features = data.points.features
    ones = features.new_ones(()).expand(state.precision.shape[:2])
    return soft_natural(features, state.precision, state.shift, ones, weight_scale=model.weight_scale)


def update_paths(state: VariationalSequence, data: Sequences, model: StateSpace) -> VariationalSequence:
    """q(z) by forward-backward with weights exp E log pi_jk and E log p(x_t | theta_k) + gain_tk; and the ELBO, which
    at these paths is the sum of the log normalizers and of what all hyperplanes reject, less the KL terms."""
    sides, emission = emissions(state, data, model)
    log_rows = state.expected_log_rows
    smoothed = smooth(log_rows[-1], log_rows[:-1], emission, data.lengths)
    counts = torch.cat([smoothed.transitions, smoothed.starts.unsqueeze(0)])
    log_normalizer = smoothed.log_normalizers.sum()
    entropy = log_normalizer - inner(smoothed.marginals, emission) - inner(counts, log_rows)
    r = smoothed.marginals.to(data.X.dtype)
    precision, shift = blend(sides, r[data.steps])
    return replace(
        state,
        responsibilities=r,
        counts=all_sum(counts),
        entropy=all_sum(entropy),
        precision=precision,
        shift=shift,
        bound=all_sum(log_normalizer + sides.rejection.sum(dtype=torch.float64)) - kl(state, model),
    )


def observe(state: VariationalSequence, data: Sequences, model: StateSpace) -> VariationalSequence:
    """The pseudo-observations at these hyperplanes and responsibilities."""
    sides = expect_sides(data.points.features, state.classifiers, model.loss)
    precision, shift = blend(sides, state.responsibilities[data.steps])
    return replace(state, precision=precision, shift=shift)


def emissions(state: VariationalSequence, data: Sequences, model: StateSpace) -> tuple[Sides, Tensor]:
    """Both sides of the hyperplanes at the observed steps, and E log p(x_t | theta_k) + gain_tk [N, T] float64."""
    sides = expect_sides(data.points.features, state.classifiers, model.loss)
    density = family_of(model).expected_log_density(data.X, state.hyperparameters)
    return sides, data.spread(density + sides.gain).double()


# -- the bound ---------------------------------------------------------------------------------------------------------


def elbo(state: VariationalSequence, data: Sequences, model: StateSpace) -> Tensor:
    """The bound of any state, [] float64; its paths need not be optimal."""
    sides, emission = emissions(state, data, model)
    steps = inner(state.responsibilities, emission) + sides.rejection.sum(dtype=torch.float64)
    return all_sum(steps) + inner(state.counts, state.expected_log_rows) + state.entropy - kl(state, model)


def kl(state: VariationalSequence, model: StateSpace) -> Tensor:
    """KL of the global factors from their priors, [] float64; that of the hierarchy is a bound from above."""
    hierarchy = inner(state.counts, state.expected_log_rows) - hierarchy_bound(state, model.prior)
    return components_kl(state, model) + hierarchy
