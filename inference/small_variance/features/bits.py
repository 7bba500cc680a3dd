"""Updates of the bits of all rows, column by column: a row takes a feature if that is cheaper, its other bits fixed.

    saving_n = scale [D(x_n, m_n) - D(x_n, m_n + w_k)] + g(y_n, f_n) - g(y_n, f_n + eta_k),   m_n, f_n without z_nk

Then every row flips the pair of bits that saves most. If two features explain something together, neither bit can
change while the other stays: without pairs, descents end much higher. Rows are independent given the loadings, so all
of them move at once (docs/derivations/latent-features, "Small-variance limit", step 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ....models.sums import row_chunks
from ...classifiers.minimum import all_found
from .problem import FeatureDescent, FeatureProblem


def move_bits(state: FeatureDescent, problem: FeatureProblem, generator: torch.Generator) -> FeatureDescent:
    """Update single bits, features in random order, then pairs.

    Ranks need no exchange, since rows are independent. A feature without rows is removed when the loadings are fitted.
    """
    if not state.num_features:
        return state
    state = flip_singly(state, problem, generator)
    for _ in range(_PAIR_PASSES):
        state, flipped = flip_pairs(state, problem)
        if all_found(~flipped):
            break
    return state


def flip_singly(state: FeatureDescent, problem: FeatureProblem, generator: torch.Generator) -> FeatureDescent:
    """Set every bit to its better value given the bits updated before."""
    features, scores = state.features.clone(), problem.scores(state)
    saved_by, device = savings_of_bits(state, problem), features.device
    for k in torch.randperm(state.num_features, generator=generator, device=device).tolist():
        found = (saved_by(features, scores, k) > 0).to(features)
        scores = scores + (found - features[:, k]).unsqueeze(1) * state.weights[k]
        features[:, k] = found
    return replace(state, features=features)


def savings_of_bits(state: FeatureDescent, problem: FeatureProblem) -> Callable[[Tensor, Tensor, int], Tensor]:
    """A function (features [N, K], scores [N, C], k) -> [N]: what feature k saves each row, present or not."""
    savings = _savings_of_entries(state, problem)

    def saved(features: Tensor, scores: Tensor, k: int) -> Tensor:
        without = scores - features[:, k : k + 1] * state.weights[k]
        return savings(features, k) + problem.losses(without) - problem.losses(without + state.weights[k])

    return saved


def _savings_of_entries(state: FeatureDescent, problem: FeatureProblem) -> Callable[[Tensor, int], Tensor]:
    """A function (features [N, K], k) -> [N]: what feature k saves each row in divergence.

    If all entries of a column have the same precision, D is the quadratic that majorizes it, and products of sizes [N,
    K] and [K, K] replace D columns.
    """
    likelihood, data, loadings = problem.model.likelihood, problem.data, state.loadings
    observed = likelihood.majorize(data.X, state.features @ loadings)
    if len(observed.precision) > 1 or data.observed is not None:

        def exact(features: Tensor, k: int) -> Tensor:
            mean = features @ loadings
            without = mean - features[:, k : k + 1] * loadings[k]
            return problem.divergences(without) - problem.divergences(without + loadings[k])

        return exact
    pull = problem.scale * (observed.shift @ loadings.T)
    second = problem.scale * ((loadings * observed.precision) @ loadings.T)

    def quadratic(features: Tensor, k: int) -> Tensor:
        others = features @ second[k] - features[:, k] * second[k, k]
        return pull[:, k] - others - second[k, k] / 2

    return quadratic


def flip_pairs(state: FeatureDescent, problem: FeatureProblem) -> tuple[FeatureDescent, Tensor]:
    """Flip the best pair of bits of every row, if that saves anything; also whether any row here changed, bool [].

    With the signs s = 1 - 2 z of the flips, the slopes b - a m of the quadratic above D at the present means and C_jk =
    sum_d a_d w_jd w_kd, flips of j and k save  s_j pull_j - C_jj / 2 + s_k pull_k - C_kk / 2 - s_j s_k C_jk.
    """
    K, loadings, data = state.num_features, state.loadings, problem.data
    any_flipped = torch.zeros((), dtype=torch.bool, device=loadings.device)
    if K < 2:
        return state, any_flipped
    features, scores, mean = state.features.clone(), problem.scores(state), state.features @ state.loadings
    observed = problem.model.likelihood.majorize(data.X, mean)
    slope, precision = observed.shift - observed.precision * mean, observed.precision
    if data.observed is not None:
        slope, precision = slope * data.observed, precision * data.observed
    first, second = torch.triu_indices(K, K, 1, device=features.device)
    signs = 1 - 2 * features
    single = signs * (slope @ loadings.T) - precision @ loadings.square().T / 2  # [N, K]
    cross = precision @ (loadings[first] * loadings[second]).T  # [1, J] or [N, J]
    loss, eta = problem.losses(scores), state.weights[:K]
    least = _ROUNDING * torch.finfo(features.dtype).eps * (loss + problem.divergences(mean))
    for rows in row_chunks(features, len(first) * max(1, eta.shape[1])):
        sign = signs[rows]
        crossed = sign[:, first] * sign[:, second] * (cross if len(cross) == 1 else cross[rows])
        saved = problem.scale * (single[rows][:, first] + single[rows][:, second] - crossed)
        moved = scores[rows].unsqueeze(1) + sign[:, first, None] * eta[first] + sign[:, second, None] * eta[second]
        saved += loss[rows].unsqueeze(1) + problem.model.log_margin(moved, data.targets[rows].unsqueeze(1))
        most, best = saved.max(1)
        flipped, pair = (most > least[rows]).unsqueeze(1), torch.stack([first[best], second[best]], 1)
        bits = features[rows].gather(1, pair)
        features[rows].scatter_(1, pair, torch.where(flipped, 1 - bits, bits))
        any_flipped = any_flipped | flipped.any()
    return replace(state, features=features), any_flipped


_PAIR_PASSES = 2
_ROUNDING = 1e2
