"""Bits of latent features column by column, all rows at once: the blocked scan and the slice scan.

    log odds of z_nk:   logit pi_k + sum_d w_kd [ b_nd - a_nd (m_nd + w_kd / 2) ] + log phi(f_n + eta_k) - log phi(f_n)

with the pseudo-observations (a, b) of the entries, and m_n and f_n the linear predictor and the scores without feature
k. The margin is the factor itself, no augmentation variable. Source of the slice scan: Teh, Gorur &
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

Choice = Callable[[int, Tensor], Tensor]  # (k, its log odds [N] given all else) -> bits [N]


def visit_columns(state: FeatureState, given: Given, log_odds: Tensor, choose: Choice) -> FeatureState:
    """The state after all columns were chosen in turn, the features with log odds [K] a priori."""
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
    """The columns of the truncated model in turn, given their probabilities.

    Rows are independent: where that is compiled, row after row is visited, with the same random numbers.
    """
    log_odds = cast(Tensor, state.probabilities).logit()
    levels = uniforms((len(log_odds), given.data.num_data), own_stream(generator))
    if is_compiled(given.model, given.data):
        return scan_bits(state, given, levels)
    levels = levels.logit().to(state.loadings)
    return visit_columns(state, given, log_odds, lambda k, own: own > levels[k])


def swap_columns(state: FeatureState, num_rows: Tensor, generator: torch.Generator) -> tuple[FeatureState, Tensor]:
    """Exchange features between neighbouring probabilities, which stay where they are: K rounds of proposals. Takes and
    gives the numbers of rows [K] that have the features.

    A swap of features with m and m' rows, of probabilities pi and pi', is accepted with the probability
    min(1, (odds' / odds)^(m - m')).
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
    """Probabilities of the features, a floor below the least, the features without rows above it; then all columns.

    The floor is uniform below the least probability pi* of a feature with rows, so that every state weighs 1 / pi*:
    with pi*_k that of the others, column k is empty with weight prod_n (1 - p_n) / pi*_k, and otherwise has weight
    (1 - prod_n (1 - p_n)) / min(pi*_k, pi_k). Columns are visited by decreasing pi, an order that does not depend on Z.
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
    """The state with the features without rows above a random floor, and all probabilities [K] float64."""
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
    """Bits [N] from log odds [N], and whether any row of any rank has the feature []. It is drawn first whether the
    column is empty; if not, which row is the first to have the feature; then the rows after that one, independently.

    Not to be empty has the log odds log(1 - e0) - log e0 + log(pi*) - log min(pi*, pi), with e0 the probability that
    independent bits are all 0 and pi* = `least` that of the other features.
    """
    failed = torch.nn.functional.softplus(log_odds).cumsum(0)  # -log of the probability that no row so far has it
    height, place = uniforms((2,), generator)
    bits, N = uniforms(log_odds.shape, own_stream(generator)) < log_odds.sigmoid(), len(log_odds)
    parts, own = each_rank(failed[-1])
    ends = parts.cumsum(0)
    share = -torch.expm1(-ends[-1])  # not to be empty, if both weighed the same
    used = height * (share * least + (1 - share) * torch.minimum(least, pi)) < share * least
    level = -torch.log1p(place * torch.expm1(-ends[-1]))
    owner = torch.searchsorted(ends, level, right=True).clamp(max=len(ends) - 1)  # the rank with the first row
    here = torch.searchsorted(failed, level - (ends - parts)[own], right=True).clamp(max=N - 1)
    first = torch.where(owner == own, here, N * (owner - own))  # of other ranks: beyond all rows here, or before them
    number = torch.arange(N, device=bits.device)
    return used & ((number == first) | (bits & (number > first))), used
