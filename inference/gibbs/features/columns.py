"""Bits of latent features column by column, all rows at once: the blocked scan and the slice scan.

    log odds of z_nk:   logit pi_k + sum_d w_kd [ b_nd - a_nd (m_nd + w_kd / 2) ] + log phi(f_n + eta_k) - log phi(f_n)

with the pseudo-observations (a, b) of the entries, and m_n and f_n the linear predictor and the scores without feature
k. The margin is the factor itself, no augmentation variable. Source of the slice scan: Teh, Gorur &
Ghahramani (2007).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from ....models.distributions.sampling import normals, uniforms
from ....models.ilsvm import InfiniteLatentSVM
from ....models.latent_features import FeatureData
from ....models.losses import PseudoObservation
from ...distributed.collectives import all_sum, own_stream
from .collapsed import is_compiled, scan_bits
from .state import FeatureState, count_rows


class Columns:
    """Bits [K, N] that move one feature at a time, and the scores and predictors that move with them."""

    def __init__(
        self, state: FeatureState, data: FeatureData, model: InfiniteLatentSVM, observed: PseudoObservation
    ) -> None:
        self.bits = state.features.T.to(state.loadings).contiguous()
        self._data, self._model, self._loadings = data, model, state.loadings
        self._weights = state.weights[: len(state.loadings)]
        self._scores = model.scores(self.bits.T, data.inputs, state.weights)
        self._gram: Tensor | None = None
        self._mean = torch.empty(0)
        if len(observed.precision) == 1 and data.observed is None:
            self._gram = (self._loadings * observed.precision) @ self._loadings.T  # [K, K]
            self._own = self._gram.diagonal().tolist()
            self._shift = self._loadings @ observed.shift.T - self._gram.diagonal().unsqueeze(1) / 2  # [K, N]
        else:
            self._precision = observed.precision * data.counted
            self._shift = self._loadings @ (observed.shift * data.counted).T
            self._mean = self.bits.T @ self._loadings

    def log_ratio(self, k: int) -> Tensor:
        """log p(x_n, y_n | z_nk = 1) - log p(x_n, y_n | z_nk = 0) [N], given the other bits."""
        own, w = self.bits[k].unsqueeze(1), self._loadings[k]
        if self._gram is not None:
            gain = torch.addmv(self._shift[k], self.bits.T, self._gram[k], alpha=-1).add_(own[:, 0], alpha=self._own[k])
        else:
            gain = self._shift[k] - (self._precision * (self._mean + (0.5 - own) * w)) @ w
        without = torch.addcmul(self._scores, own, self._weights[k], value=-1)
        both = self._model.log_margin(torch.stack([without, without + self._weights[k]]), self._data.targets)
        return gain.add_(both[1]).sub_(both[0])

    def place(self, k: int, bits: Tensor) -> None:
        """Put bits [N] into column k."""
        step = (bits.to(self.bits) - self.bits[k]).unsqueeze(1)
        self.bits[k] += step[:, 0]
        self._scores = torch.addcmul(self._scores, step, self._weights[k])
        if self._gram is None:
            self._mean = torch.addcmul(self._mean, step, self._loadings[k])

    def state(self, state: FeatureState) -> FeatureState:
        """The state with these bits."""
        return replace(state, features=self.bits.T.to(torch.int8).contiguous())


def scan_blocked(
    state: FeatureState,
    data: FeatureData,
    model: InfiniteLatentSVM,
    observed: PseudoObservation,
    generator: torch.Generator,
) -> FeatureState:
    """The columns of the truncated model in turn, given their probabilities.

    Rows are independent: where that is compiled, row after row is visited, with the same random numbers.
    """
    log_odds = cast(Tensor, state.probabilities).logit()
    level = uniforms((len(log_odds), data.num_data), own_stream(generator))
    if is_compiled(model, data):
        return scan_bits(state, data, model, observed, level)
    columns = Columns(state, data, model, observed)
    level = level.logit().to(columns.bits)
    for k, own in enumerate(log_odds.to(columns.bits)):
        columns.place(k, own + columns.log_ratio(k) > level[k])
    return columns.state(state)


def swap_columns(state: FeatureState, generator: torch.Generator) -> FeatureState:
    """Exchange features between neighbouring probabilities, which stay where they are: K rounds of proposals.

    A swap of features with m and m' rows, of probabilities pi and pi', is accepted with the probability
    min(1, (odds' / odds)^(m - m')).
    """
    log_odds, counts = cast(Tensor, state.probabilities).logit().tolist(), count_rows(state).tolist()
    order = list(range(len(counts)))
    levels = torch.log1p(-uniforms((len(order), len(order)), generator)).tolist()
    for step, level in enumerate(levels):
        for k in range(step % 2, len(order) - 1, 2):
            one, other = order[k], order[k + 1]
            if level[k] < (log_odds[k + 1] - log_odds[k]) * (counts[one] - counts[other]):
                order[k], order[k + 1] = other, one
    return keep_columns(state, torch.tensor(order, device=state.features.device))


# -- the infinite model ------------------------------------------------------------------------------------------------


def scan_slice(
    state: FeatureState,
    data: FeatureData,
    model: InfiniteLatentSVM,
    observed: PseudoObservation,
    generator: torch.Generator,
) -> FeatureState:
    """Probabilities of the features, a floor below the least, the features without rows above it; then all columns.

    The floor is uniform below the least probability pi* of a feature with rows, so that every state weighs 1 / pi*:
    with pi*_k that of the others, column k is empty with weight prod_n (1 - p_n) / pi*_k, and otherwise has weight
    (1 - prod_n (1 - p_n)) / min(pi*_k, pi_k). Columns are visited by decreasing pi, an order that does not depend on Z.
    """
    state, probabilities = open_features(state, data, model, generator)
    columns, pi = Columns(state, data, model, observed), probabilities.tolist()
    used = (count_rows(state) > 0).tolist()
    for k in probabilities.argsort(descending=True).tolist():
        used[k] = False
        least = min((other for other, is_used in zip(pi, used, strict=True) if is_used), default=1.0)
        log_odds = probabilities[k].logit() + columns.log_ratio(k).double()
        bits = draw_column(log_odds, pi[k], least, generator)
        columns.place(k, bits)
        used[k] = bool(bits.any())
    return keep_columns(columns.state(state), torch.tensor(used, device=data.X.device).nonzero().squeeze(1))


def open_features(
    state: FeatureState, data: FeatureData, model: InfiniteLatentSVM, generator: torch.Generator
) -> tuple[FeatureState, Tensor]:
    """The state with the features without rows above a random floor, and all probabilities [K] float64."""
    prior, N, K = model.prior, data.num_data, len(state.loadings)
    pi = prior.draw_active(count_rows(state), N, generator).clamp(_TINY, _NEAR_ONE)
    highest = torch.cat([pi, pi.new_ones(1)]).min()
    floor = highest * (1 - uniforms((), generator))
    empty = prior.draw_empty(floor, N, state.hyper, generator).clamp(max=_NEAR_ONE)
    J = len(empty)
    scale = model.likelihood.loading_precision(state.entries, data.X.shape[1]).rsqrt().to(state.loadings)
    loadings = scale * normals((J, data.X.shape[1]), generator, state.loadings)
    weights = model.weight_scale * normals((J, state.weights.shape[1]), generator, state.weights)
    wider = replace(
        state,
        features=torch.cat([state.features, state.features.new_zeros(N, J)], 1),
        loadings=torch.cat([state.loadings, loadings]),
        weights=torch.cat([state.weights[:K], weights, state.weights[K:]]),
    )
    return wider, torch.cat([pi, empty])


def draw_column(log_odds: Tensor, pi: float, least: float, generator: torch.Generator) -> Tensor:
    """Bits [N] from log odds [N]: none, or the first row that has the feature by its law, and the rows after it
    independently.

    Not to be empty has the log odds log(1 - e0) - log e0 + log(pi*) - log min(pi*, pi), with e0 the probability that
    independent bits are all 0 and pi* = `least` that of the other features.
    """
    failed = torch.nn.functional.softplus(log_odds).cumsum(0)  # -log of the probability that no row so far has it
    total, own = float(all_sum(failed[-1])), float(failed[-1])
    height, place = uniforms((2,), generator).tolist()
    bits = uniforms(log_odds.shape, own_stream(generator)) < log_odds.sigmoid()
    share = -math.expm1(-total)  # not to be empty, if both weighed the same
    if height * (share * least + (1 - share) * min(least, pi)) >= share * least:
        return torch.zeros_like(bits)
    level = -math.log1p(place * math.expm1(-own))
    first = min(int(torch.searchsorted(failed, level, right=True)), len(bits) - 1)
    bits[:first] = False
    bits[first] = True
    return bits


def keep_columns(state: FeatureState, index: Tensor) -> FeatureState:
    """The features [K'] of these numbers, in this order."""
    inputs = torch.arange(len(state.loadings), len(state.weights), device=index.device)
    return replace(
        state,
        features=state.features[:, index],
        loadings=state.loadings[index],
        weights=state.weights[torch.cat([index, inputs])],
    )


_TINY = 1e-300
_NEAR_ONE = 1 - 2**-53
