"""The gain in the bound when two components of a mixture are united, computed from their points.

Trying a union takes updates of the whole fit, and most unions are rejected. A union is not tried if, with all other
points as they are, it loses more than later updates could regain.
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
    """Whether the rounds of updates after a union could regain its loss, bool []; a round gains 2 `SETTLED` at most."""
    return gain(state, data, model, kept, absorbed) > -2 * SETTLED * MERGE_ROUNDS * state.sizes.sum()


def gain(state: VariationalPartition, data: Data, model: Mixture, kept: int, absorbed: int) -> Tensor:
    """Rise of the bound, [] float64, with the points of both components in one and its classifiers after a few rounds.

    It consists of log p(z) and log m of expected counts and statistics (those of the best q(v) and q(theta) of both
    states), the entropy of q(z), and the margin minus the KL of the classifiers.
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

    In the union the second component has no points: its classifiers return to their prior or, where hyperplanes see all
    points, reject all.
    """
    if not data.targets.shape[1]:
        return shares.new_zeros((), dtype=torch.float64)
    own = replace(state, mean=state.mean[pair], precision_tril=state.precision_tril[pair])
    counted = sides_of(model).counted(shares).sum(1)
    rows = torch.nonzero(counted > torch.finfo(shares.dtype).eps).squeeze(1)  # no other row has a share
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
    """The responsibilities [N, 2] of a pair of components."""
    if not state.num_dropped:
        return state.responsibilities[:, pair]
    rows = (some for _, some in chunks(True, data, model))
    return torch.cat([best_places(state, some, model, see(state.classifiers, some, model))[:, pair] for some in rows])
