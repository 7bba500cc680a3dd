"""The optimum of documents given the topics: q(theta) = Dir(g) and q(z), with the dual of an averaged margin.

    minimize over phi   sum_e n_e sum_k phi_ek (log phi_ek - E log theta_k - E log topic_kw) + g(f),   f = mu^T E zbar
    maximize over t    -sum_e n_e log Z_e(t) - g*(-t)

have the same optimal value; phi_ek(t) prop. to exp(E log theta_k + E log topic_kw + (mu t)_k / M) for the n_e tokens of
a word (docs/derivations/topics, "Joint density"). The first sum is smooth in t with gradient f. So t takes projected
gradient steps, with a length that follows from the last curvature, until the duality gap g(f) + g*(-t) + t . f
vanishes; with one score these are secant steps. Then the parameters of q(theta) are set to alpha + sum_e n_e phi_e, and
both updates are repeated until the counts settle. No step lowers the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....models import host
from ....models.losses import Loss
from ....models.shares import shares_of
from ....models.sparse import SparseRows
from ....models.sums import row_chunks
from ...classifiers.duals import joint_hinge
from ...compiled.trusted import require_shape


class Limits(NamedTuple):
    """When the dual of a document stops."""

    gap: float  # nats per token, and for one more
    passes: int


LIMITS = Limits(1e-9, 300), Limits(1e-14, 3000)
"""The limits of a sweep, and stricter ones for a sweep that would otherwise lower the bound."""


class Documents(NamedTuple):
    """The results for N documents, V words, K topics and C scores; all float64."""

    counts: Tensor  # [N, K] expected numbers of tokens of each topic
    tilt: Tensor  # [N, C] t
    word_counts: Tensor  # [V, K] expected numbers of tokens of each word in each topic
    divergence: Tensor  # [] sum_n KL(q(theta) q(z) || p), as in `log_dirichlet_ratio` and E log q(z)


@dataclass(frozen=True)
class Globals:
    """The global factors that documents depend on: V words, K topics, C scores."""

    log_topics: Tensor  # [V, K] float64 E log topic
    concentration: float  # alpha
    slopes: Tensor  # [K, C] float64 mu
    loss: Loss | None  # with a conjugate; None without scores


def fit_documents(
    X: SparseRows,
    targets: Tensor,
    given: Globals,
    counts: Tensor,
    tilt: Tensor,
    *,
    num_steps: int,
    limits: Limits = LIMITS[0],
    compiled: bool | None = None,
) -> Documents:
    """Update (phi, t) and q(theta) alternately, at most `num_steps` times, for documents X [N, V] with targets [N, C].

    The start is at counts [N, K] and t = tilt [N, C]; t is solved within `limits`. `compiled` chooses the code; by
    default it is compiled on a CPU, for losses with a box and the loss of Crammer and Singer. Documents without tokens
    keep counts 0.
    """
    X, targets = X.double(), targets.double()
    dual = _dual(given.loss, targets) if (compiled if compiled is not None else host.on_cpu(X)) else None
    # relative to the likeliest topic of each word, so that rare words do not underflow
    log_weights = given.log_topics - given.log_topics.amax(1, keepdim=True)
    given = Globals(log_weights, given.concentration, given.slopes, given.loss)
    start = counts.clone(memory_format=torch.contiguous_format), tilt.clone(memory_format=torch.contiguous_format)
    if dual is None:
        counts, tilt, word_counts, local = _fit_tensors(X, targets, given, start, num_steps, limits)
    else:
        counts, tilt, word_counts, local = _fit_compiled(X, dual, given, start, num_steps, limits)
    return Documents(counts, tilt, word_counts, local.sum() + (word_counts * log_weights).sum())


# -- compiled ----------------------------------------------------------------------------------------------------------


def _fit_compiled(
    X: SparseRows, dual: Any, given: Globals, start: tuple[Tensor, Tensor], num_steps: int, limits: Limits
) -> tuple[Tensor, ...]:
    from . import _numba_topics  # compiles or loads machine code: only where it is needed

    num_topics, num_scores = given.slopes.shape
    require_shape("counts", start[0], (len(X), num_topics))
    require_shape("tilt", start[1], (len(X), num_scores))
    require_shape("topics", given.log_topics, (X.num_columns, num_topics))
    arrays = *start, torch.zeros_like(given.log_topics), start[0].new_zeros(len(start[0]))
    log_weights, slopes = given.log_topics.contiguous(), given.slopes.contiguous()
    rows = tuple(part.numpy() for part in (X.starts, X.columns, X.values))
    weights = log_weights.exp().numpy(), log_weights.numpy()
    most = num_steps, _CHANGE, limits.passes, limits.gap
    room = np.zeros((7, len(slopes))), np.zeros((3, slopes.shape[1]))
    counts, tilt, *sums = (part.numpy() for part in arrays)
    numbers = given.concentration, slopes.numpy(), dual, most
    _numba_topics.fit_documents(rows, *weights, *numbers, counts, tilt, tuple(sums), room)
    return arrays


def _dual(loss: Loss | None, targets: Tensor) -> Any:
    """The conjugates as arrays (simplex, (linear, lower, upper), curvature, tube, classes, mass, margin), or None."""
    empty, none = np.zeros((3, 0, 0)), np.zeros(0)
    if loss is None:
        return False, empty, 0.0, 0.0, none.astype("int64"), none, 0.0
    hinge, box = joint_hinge(loss), loss.box(targets)
    if hinge is not None:
        known = ~targets.isnan().any(1)
        mass, classes = 2 * hinge.strength * known.to(targets.dtype), targets.nan_to_num(-1.0).argmax(1)
        return True, empty, 0.0, 0.0, classes.numpy(), mass.numpy(), float(hinge.margin)
    if box is None:
        return None
    bounds = torch.stack([part.expand_as(targets) for part in box[:3]]).numpy()
    return False, bounds, float(box.curvature), float(box.tube), none.astype("int64"), none, 0.0


# -- tensors -----------------------------------------------------------------------------------------------------------


def _fit_tensors(
    X: SparseRows, targets: Tensor, given: Globals, start: tuple[Tensor, Tensor], num_steps: int, limits: Limits
) -> tuple[Tensor, ...]:
    counts, tilt = start
    word_counts, local = torch.zeros_like(given.log_topics), counts.new_zeros(len(counts))
    width = counts.shape[1] * (1 + len(X.values) // max(1, len(X)))
    for some in row_chunks(X, width):
        part = _Part(X[some], targets[some], given, limits)
        counts[some], tilt[some], local[some], words = part.fit(counts[some], tilt[some], num_steps)
        word_counts += words
    return counts, tilt, word_counts, local


@dataclass(frozen=True)
class _Part:
    """Some documents, updated in parallel."""

    X: SparseRows  # [n, V]
    targets: Tensor  # [n, C]
    given: Globals
    limits: Limits

    def fit(self, counts: Tensor, tilt: Tensor, num_steps: int) -> tuple[Tensor, ...]:
        length, alpha = self.X.sum(1).unsqueeze(1), self.given.concentration
        moving = length > 0
        log_total, log_share = torch.zeros_like(length), torch.zeros_like(counts)
        for step in range(num_steps):
            base = torch.digamma(alpha + counts)
            new_tilt, new, total = self.solve(base, tilt, length.clamp(min=1.0), moving)
            tilt, log_total = torch.where(moving, new_tilt, tilt), torch.where(moving, total, log_total)
            log_share = torch.where(moving, base + self._pull(tilt, length.clamp(min=1.0)), log_share)
            change = torch.where(moving, new - counts, 0.0)
            counts, moving = counts + change, moving & (change.abs().amax(1, keepdim=True) > _CHANGE * length)
            if host.looks(counts, step) and not bool(moving.any()):
                break
        phi, _ = shares_of(self.given.log_topics[self.X.columns] + log_share[self.X.row_index])
        local = log_dirichlet_ratio(alpha, counts) - log_total.squeeze(1) + (counts * log_share).sum(1)
        return counts, tilt, local, word_sums(self.X, self.X.values.unsqueeze(1) * phi)

    def solve(self, base: Tensor, tilt: Tensor, length: Tensor, moving: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(t [n, C], counts [n, K], sum_e n_e log Z_e [n, 1]) at the optimum; only rows in `moving` change."""
        counts, total = self._expect(base + self._pull(tilt, length))
        loss, slopes = self.given.loss, self.given.slopes
        if loss is None or not slopes.shape[1]:
            return tilt, counts, total
        score, rows = counts / length @ slopes, moving
        largest = torch.pdist(slopes).square().amax() / (4 * length) if len(slopes) > 1 else torch.zeros_like(length)
        curvature = largest
        for number in range(self.limits.passes):
            rows = rows & (largest > 0) & (self._gap(score, tilt) > self.limits.gap * (1 + length))
            if host.looks(counts, number) and not bool(rows.any()):
                break
            following = loss.best_tilt(score - curvature * tilt, curvature, self.targets)
            step = torch.where(rows, following - tilt, 0.0)
            next_counts, next_total = self._expect(base + self._pull(tilt + step, length))
            next_score = next_counts / length @ slopes
            square, slope = (part.sum(1, keepdim=True) for part in (step.square(), step * score))
            rows = rows & (square > 0)
            allowed = total + slope + curvature / 2 * square + 1e-13 * (1 + total.abs())
            taken = rows & ((next_total <= allowed) | (curvature >= largest))
            bend = (step * (next_score - score)).sum(1, keepdim=True) / torch.where(rows, square, 1.0)
            curvature = torch.where(
                taken, torch.minimum(torch.maximum(bend, 1e-6 * largest), largest), (4 * curvature).minimum(largest)
            )
            total, counts, score = (
                torch.where(taken, new, old)
                for new, old in ((next_total, total), (next_counts, counts), (next_score, score))
            )
            tilt = torch.where(taken, tilt + step, tilt)
        return tilt, counts, total

    def _expect(self, log_share: Tensor) -> tuple[Tensor, Tensor]:
        phi, total = shares_of(self.given.log_topics[self.X.columns] + log_share[self.X.row_index])
        number = self.X.values.unsqueeze(1)
        return self.X.entry_sums(number * phi), self.X.entry_sums(number * total.unsqueeze(1))

    def _pull(self, tilt: Tensor, length: Tensor) -> Tensor:
        return tilt @ self.given.slopes.T / length

    def _gap(self, score: Tensor, tilt: Tensor) -> Tensor:
        loss: Any = self.given.loss
        cost = loss.conjugate(tilt, self.targets) - loss.log_factor(score, self.targets)
        return cost.sum(1, keepdim=True) + (tilt * score).sum(1, keepdim=True)


def word_sums(X: SparseRows, terms: Tensor) -> Tensor:
    """The sums [V, K] over the entries of each word, of terms [nnz, K]."""
    order = torch.argsort(X.columns, stable=True)
    starts = torch.nn.functional.pad(torch.bincount(X.columns, minlength=X.num_columns).cumsum(0), (1, 0))
    return SparseRows(starts, order, torch.ones_like(terms[:, 0]), len(terms)) @ terms


def log_dirichlet_ratio(concentration: Tensor | float, counts: Tensor) -> Tensor:
    """log B(a 1) - log B(a 1 + counts) [...] of counts [..., K]."""
    a = torch.as_tensor(concentration, dtype=counts.dtype, device=counts.device)
    total, width = counts.sum(-1), counts.shape[-1]
    own = (torch.lgamma(a) - torch.lgamma(a + counts)).sum(-1)
    return own + torch.lgamma(width * a + total) - torch.lgamma(width * a)


_CHANGE = 1e-4  # of a document's tokens: below it the counts have settled
