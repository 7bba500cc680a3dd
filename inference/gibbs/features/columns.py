"""Updates of the bits of latent features, column by column for all rows: the blocked scan and the slice scan.

    log odds of z_nk:   logit pi_k + sum_d w_kd [ b_nd - a_nd (m_nd + w_kd / 2) ] + log phi(f_n + eta_k) - log phi(f_n)

(a, b) are the pseudo-observations of the entries; m_n and f_n are the linear predictor and the scores without feature
k. The margin enters through its factor, not through an augmentation variable. Source of the slice scan: Teh, Gorur &
Ghahramani (2007).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from ....models.distributions.sampling import normals, uniforms
from ...bits.rows import LoadingMoments, Settle, visit_features
from ...distributed.collectives import each_rank, own_stream
from .collapsed import is_compiled, scan_bits
from .state import FeatureState, Given, count_rows, inside, join_columns, keep_columns, num_rows

Choice = Callable[[int, Tensor], Tensor]  # (k, log odds [N] of column k given all else) -> bits [N]


def visit_columns(state: FeatureState, given: Given, log_odds: Tensor, choose: Choice) -> FeatureState:
    """Choose every column in turn; log_odds [K] are the prior log odds of the features."""
    data, model, observed = given
    bits, weights = state.features.to(state.loadings), state.weights[: len(state.loadings)]
    scores = model.scores(bits, data.inputs, state.weights)

    def one(k: int, by_entries: Tensor, bits: Tensor) -> Tensor:
        nonlocal scores
        without = torch.addcmul(scores, bits[k].unsqueeze(1), weights[k], value=-1)
        both = model.log_margin(torch.stack([without, without + weights[k]]), data.targets)
        found = choose(k, by_entries + both[1] - both[0]).to(bits)
        scores = torch.addcmul(without, found.unsqueeze(1), weights[k])
        return found

    loadings = LoadingMoments(state.loadings)
    found = visit_features(observed, data.observed, log_odds.to(bits), loadings, bits, Settle(one))
    return replace(state, features=found.to(torch.int8))


def scan_blocked(state: FeatureState, given: Given, generator: torch.Generator) -> FeatureState:
    """Draw the columns of the truncated model in turn, given the feature probabilities.

    Rows are independent, so compiled code visits row after row with the same random numbers.
    """
    log_odds = cast(Tensor, state.probabilities).logit()
    levels = uniforms((len(log_odds), given.data.num_data), own_stream(generator))
    if is_compiled(given.model, given.data):
        return scan_bits(state, given, levels)
    levels = levels.logit().to(state.loadings)
    return visit_columns(state, given, log_odds, lambda k, own: own > levels[k])


def swap_columns(state: FeatureState, num_rows: Tensor, generator: torch.Generator) -> tuple[FeatureState, Tensor]:
    """Propose to swap features k and k + 1 while the probabilities stay in place, in K rounds.

    num_rows [K] are the numbers of rows with each feature; the permuted ones are returned. Features with m and m' rows
    at probabilities pi and pi' are swapped with probability min(1, (odds' / odds)^(m - m')).
    """
    log_odds, counts = cast(Tensor, state.probabilities).logit().tolist(), num_rows.tolist()
    order = list(range(len(counts)))
    levels = torch.log1p(-uniforms((len(order), len(order)), generator)).tolist()
    for step, level in enumerate(levels):
        for k in range(step % 2, len(order) - 1, 2):
            one, other = order[k], order[k + 1]
            if level[k] < (log_odds[k + 1] - log_odds[k]) * (counts[one] - counts[other]):
                order[k], order[k + 1] = other, one
    kept = torch.tensor(order, device=state.features.device)
    return keep_columns(state, kept), num_rows[kept]


# -- the infinite model ------------------------------------------------------------------------------------------------


def scan_slice(state: FeatureState, given: Given, generator: torch.Generator) -> FeatureState:
    """Draw feature probabilities, a floor, and the empty features above the floor; then visit all columns.

    The floor is uniform below the least probability pi* of a feature with rows, so that a state has weight 1 / pi*.
    With pi*_k the least of the other features, column k is empty with weight prod_n (1 - p_n) / pi*_k and otherwise has
    weight (1 - prod_n (1 - p_n)) / min(pi*_k, pi_k). Columns are visited by decreasing pi, an order that does not
    depend on Z.
    """
    state, probabilities = open_features(state, given, generator)
    order = probabilities.argsort(descending=True)
    state, pi = keep_columns(state, order), probabilities[order]
    used = count_rows(state) > 0

    def choose(k: int, log_odds: Tensor) -> Tensor:
        used[k] = False
        bits, used[k] = draw_column(log_odds.double(), pi[k], torch.where(used, pi, 1.0).amin(), generator)
        return bits

    state = visit_columns(state, given, probabilities[order].logit(), choose)
    return keep_columns(state, used.nonzero().squeeze(1))


def open_features(state: FeatureState, given: Given, generator: torch.Generator) -> tuple[FeatureState, Tensor]:
    """Add the empty features above a random floor; return the state and all feature probabilities [K] float64."""
    (data, model, _), N = given, num_rows(given.data)
    pi = inside(model.prior.draw_active(count_rows(state), N, generator))
    highest = torch.cat([pi, pi.new_ones(1)]).min()
    floor = highest * (1 - uniforms((), generator))
    empty = inside(model.prior.draw_empty(floor, N, state.hyper, generator))
    J = len(empty)
    scale = model.likelihood.loading_precision(state.entries, data.X.shape[1]).rsqrt().to(state.loadings)
    loadings = scale * normals((J, data.X.shape[1]), generator, state.loadings)
    weights = model.weight_scale * normals((J, state.weights.shape[1]), generator, state.weights)
    bits = state.features.new_zeros(len(state.features), J)
    return join_columns(state, bits, loadings, weights), torch.cat([pi, empty])


def draw_column(log_odds: Tensor, pi: Tensor, least: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw the bits [N] of a column from log odds [N]; return them and whether any row of any rank has the feature [].

    First it is drawn whether the column is empty; if not, which row is the first with the feature; then the later rows,
    independently. "Not empty" has log odds log(1 - e0) - log e0 + log(pi*) - log min(pi*, pi), where e0 is the
    probability that independent bits are all 0 and pi* = `least` is the least probability of the other features.
    """
    failed = torch.nn.functional.softplus(log_odds).cumsum(0)  # -log probability of no row up to this one
    height, place = uniforms((2,), generator)
    bits, N = uniforms(log_odds.shape, own_stream(generator)) < log_odds.sigmoid(), len(log_odds)
    parts, own = each_rank(failed[-1])
    ends = parts.cumsum(0)
    share = -torch.expm1(-ends[-1])  # probability of "not empty" under independent bits
    used = height * (share * least + (1 - share) * torch.minimum(least, pi)) < share * least
    level = -torch.log1p(place * torch.expm1(-ends[-1]))
    owner = torch.searchsorted(ends, level, right=True).clamp(max=len(ends) - 1)  # the rank of the first row
    here = torch.searchsorted(failed, level - (ends - parts)[own], right=True).clamp(max=N - 1)
    first = torch.where(owner == own, here, N * (owner - own))  # on other ranks: after all rows here, or before them
    number = torch.arange(N, device=bits.device)
    return used & ((number == first) | (bits & (number > first))), used
