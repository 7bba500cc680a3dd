"""What two components of a mixture would gain as one, from the points that are theirs.

To try a union takes steps of the whole fit, and most are refused. It is not tried at all where it loses more, with all
other points where they are, than the steps after it could make good.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.special import entr

from ....models.data import Data
from ....models.mixture import Mixture
from ....models.priors.sticks import log_labelled_prior
from ...classifiers.natural import sides_of
from ...classifiers.ridge import soft_sums
from ...distributed.collectives import all_sum
from ..factors import MERGE_ROUNDS, SETTLED, best_places, chunks, family_of, see, update_classifiers
from .factors import VariationalPartition, expected_prior

__all__ = ["gain", "is_promising"]


def is_promising(state: VariationalPartition, data: Data, model: Mixture, kept: int, absorbed: int) -> Tensor:
    """Whether the rounds of a union, each worth two settled steps at most, could make good its loss, bool []."""
    return gain(state, data, model, kept, absorbed) > -2 * SETTLED * MERGE_ROUNDS * state.sizes.sum()


def gain(state: VariationalPartition, data: Data, model: Mixture, kept: int, absorbed: int) -> Tensor:
    """Rise of the bound, [] float64, with the points of two components in one and its classifiers after a few rounds.

    log p(z) and log m of expected counts and statistics, that is with the best q(v) and q(theta) of both states, the
    entropy of q(z), and the margin less the KL of the classifiers.
    """
    family, prior, chi = family_of(model), expected_prior(state, model), state.hyperparameters[[kept, absorbed]]
    joined = state.sizes.clone()
    joined[kept] += joined[absorbed]
    joined[absorbed] = 0.0
    sticks = log_labelled_prior(torch.stack([state.sizes, joined]), prior.a, prior.b).diff().sum()
    apart, union = family.log_marginal(chi).sum(), family.log_marginal(chi.sum(0) - family.prior())
    shares = _shares(state, data, model, [kept, absorbed])
    spread = data.counted(entr(shares.sum(1)) - entr(shares).sum(1)).sum(dtype=torch.float64)
    return sticks + (union - apart) + all_sum(spread) + _margin_gain(state, data, model, [kept, absorbed], shares)


def _margin_gain(state: VariationalPartition, data: Data, model: Mixture, pair: list[int], shares: Tensor) -> Tensor:
    """Rise of the classifiers' terms, [] float64, from the responsibilities [N, 2] of a pair.

    The second component has no points in the union: its classifiers fall back to their prior, or, where all hyperplanes
    see all points, to rejecting them.
    """
    if not data.targets.shape[1]:
        return shares.new_zeros((), dtype=torch.float64)
    own = replace(state, mean=state.mean[pair], precision_tril=state.precision_tril[pair])
    counted = sides_of(model).counted(shares).sum(1)
    rows = torch.nonzero(counted > torch.finfo(shares.dtype).eps).squeeze(1)  # nothing is asked of the others
    some, times, values = data.rows(rows), shares[rows], list[Tensor]()
    for _ in range(MERGE_ROUNDS + 1):
        seen = see(own.classifiers, some, model)
        value = all_sum(some.counted((times * seen.gain).sum(1) + seen.rejection).sum(dtype=torch.float64))
        values.append(value - own.classifiers.kl(model.weight_scale).sum(dtype=torch.float64))
        times = torch.stack([times.sum(1), torch.zeros_like(times[:, 0])], 1)
        precision, shift, counted = seen.times(times)
        gram, linear = soft_sums(some.features, precision, shift, some.counted(counted))
        own = update_classifiers(replace(own, gram=gram, linear=linear), model)
    return values[-1] - values[0]


def _shares(state: VariationalPartition, data: Data, model: Mixture, pair: list[int]) -> Tensor:
    """Responsibilities [N, 2] of a pair of components."""
    if not state.num_dropped:
        return state.responsibilities[:, pair]
    rows = (some for _, some in chunks(True, data, model))
    return torch.cat([best_places(state, some, model, see(state.classifiers, some, model))[:, pair] for some in rows])
