"""Updates of tokens under a quadratic margin: the augmented mean field of topics, token by token.

With pseudo-observations (a, b) of the scores, E eta eta^T = B and S = sum_e n_e phi_e, a document has

    E f^2 = [S^T B S - sum_e n_e phi_e^T B phi_e + diag(B).S] / M^2
    log phi_mk = E log theta_k + E log topic_kw + sum_c [b mu_k / M - a (B_kk / 2 + (B (S - phi_m))_k) / M^2] + const

(docs/derivations/topics, "Joint density"). The n tokens of one word share their phi. The quadratic term among these
tokens is replaced by its tangent plus (n - 1) max |a B| / M^2 KL(phi || phi before), an upper bound by Pinsker's
inequality.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ....models import host
from ....models.losses.base import PseudoObservation
from ....models.sparse import SparseRows
from ....models.sums import row_chunks
from ...classifiers.natural import Evidence
from ...classifiers.ridge import Ridge
from ...compiled.trusted import require_shape


class Scores(NamedTuple):
    """Moments [N, C] of the scores of documents under q."""

    mean: Tensor
    variance: Tensor


class Words(NamedTuple):
    """q(z) of the tokens of N documents."""

    X: SparseRows  # [N, V]
    phi: Tensor  # [nnz, K]
    counts: Tensor  # [N, K]


def mean_topics(counts: Tensor, X: SparseRows) -> Tensor:
    """E zbar [N, K] from counts [N, K]; 0 for a document without tokens."""
    return counts / _lengths(X)


def score_moments(X: SparseRows, phi: Tensor, counts: Tensor, classifiers: Ridge) -> Scores:
    """E f and Var f [N, C] under q(z) = phi [nnz, K] with counts [N, K], and under q(eta)."""
    lengths, moments = _lengths(X), eta_moments(classifiers)
    mean = mean_topics(counts, X) @ classifiers.mean[0]
    square = torch.einsum("nj,cjk,nk->nc", counts, moments, counts) + counts @ moments.diagonal(dim1=-2, dim2=-1).T
    for some, own in own_grams(X, phi):
        square[some] -= own.flatten(1) @ moments.flatten(1).T
    return Scores(mean, (square / lengths.square() - mean.square()).clamp(min=0.0))


def score_grams(X: SparseRows, phi: Tensor, counts: Tensor, precision: Tensor) -> Tensor:
    """sum_n a_nc E[zbar_n zbar_n^T] [C, K, K], with precisions a [N, C]."""
    weight = precision / _lengths(X).square()
    diagonal = torch.diag_embed(weight.T @ counts)
    grams = torch.stack([counts.T @ (counts * column.unsqueeze(1)) for column in weight.T]) + diagonal
    for some, own in own_grams(X, phi):
        grams -= (weight[some].T @ own.flatten(1)).view_as(grams)
    return grams


def own_grams(X: SparseRows, phi: Tensor, *, compiled: bool | None = None) -> Iterator[tuple[slice, Tensor]]:
    """Chunks of documents X [N, V], as slices with sum_e n_e phi_e phi_e^T [n, K, K], from phi [nnz, K].

    All classifiers share these matrices. `compiled` chooses the code; by default it is compiled on a CPU.
    """
    K, values = phi.shape[1], X.values.double()
    for some in row_chunks(X, K * K):
        starts = X.starts[some.start : some.stop + 1]
        first, last = (0, len(X.values)) if len(starts) == len(X.starts) else starts[[0, -1]].tolist()
        entries = slice(first, last)
        found, number, own = phi.new_zeros(len(starts) - 1, K, K), values[entries], phi[entries]
        if compiled if compiled is not None else host.on_cpu(X):
            from . import _numba_topics  # compiles or loads machine code: only where it is needed

            require_shape("phi", phi, (len(X.values), K))
            places = (starts - entries.start).numpy()
            _numba_topics.add_grams(places, number.numpy(), own.contiguous().numpy(), found.numpy())
        else:
            rows = X.row_index[entries] - some.start
            found.index_add_(0, rows, torch.einsum("e,ej,ek->ejk", number, own, own))
        yield some, found


@dataclass(frozen=True, eq=False)
class MeanTopics(Evidence):
    """Documents for classifiers of their mean topics zbar, with features E zbar [N, K] under q(z)."""

    words: Words = field(kw_only=True)

    def moments(self, q: Ridge) -> tuple[Tensor, Tensor]:
        return score_moments(*self.words, q)

    def sums(self, observed: PseudoObservation) -> tuple[Tensor, Tensor]:
        precision, shift = map(self.counted, observed)
        return score_grams(*self.words, precision).unsqueeze(0), (self.features.T @ shift).unsqueeze(0)


def visit_tokens(
    X: SparseRows,
    log_topics: Tensor,
    log_share: Tensor,
    observed: PseudoObservation,
    classifiers: Ridge,
    phi: Tensor,
    counts: Tensor,
    *,
    compiled: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Update phi [nnz, K] and counts [N, K] in one pass over the tokens of documents X [N, V]; return both.

    Parameters
    ----------
    log_topics, log_share : E log topic [V, K] and E log theta [N, K], up to a constant for each row
    observed : precision and shift [N, C]
    compiled : chooses the code; by default it is compiled on a CPU
    """
    linear = observed.shift @ classifiers.mean[0].T / _lengths(X)
    parts = (log_topics, log_share, linear, observed.precision, eta_moments(classifiers), _copy(phi), _copy(counts))
    if not (compiled if compiled is not None else host.on_cpu(X)):
        return _visit_tensors(X, *parts)
    from . import _numba_topics  # compiles or loads machine code: only where it is needed

    num_topics, num_scores = classifiers.mean.shape[1:]
    for name, part, length in (
        ("topics", log_topics, X.num_columns),
        ("shares", log_share, len(X)),
        ("phi", phi, len(X.values)),
        ("counts", counts, len(X)),
    ):
        require_shape(name, part, (length, num_topics))
    require_shape("precision", observed.precision, (len(X), num_scores))
    rows = tuple(part.numpy() for part in (X.starts, X.columns, X.values.double()))
    _numba_topics.visit_tokens(rows, *(part.contiguous().numpy() for part in parts))
    return parts[5], parts[6]


def eta_moments(classifiers: Ridge) -> Tensor:
    """E[eta_c eta_c^T] [C, K, K]."""
    mean = classifiers.mean[0].T
    return mean.unsqueeze(2) * mean.unsqueeze(1) + torch.cholesky_inverse(classifiers.precision_tril[0])


def _visit_tensors(
    X: SparseRows,
    log_topics: Tensor,
    log_share: Tensor,
    linear: Tensor,
    precision: Tensor,
    moments: Tensor,
    phi: Tensor,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Update the first words of all documents, then their second words, and so on."""
    curvature = torch.einsum("nc,cjk->njk", precision / _lengths(X).square(), moments)
    largest, half = curvature.abs().amax((1, 2)).unsqueeze(1), curvature.diagonal(dim1=1, dim2=2) / 2
    sizes, order = X.starts.diff().sort(descending=True, stable=True)
    for place, number_left in enumerate((len(sizes) - torch.bincount(sizes).cumsum(0)).tolist()[:-1]):
        rows = order[:number_left]  # the documents with that many words
        entries = X.starts[rows] + place
        number, own = X.values[entries].double().unsqueeze(1), phi[entries]
        others = (curvature[rows] @ (counts[rows] - own).unsqueeze(2)).squeeze(2) + half[rows]
        logits = log_share[rows] + log_topics[X.columns[entries]] + linear[rows] - others
        damping = largest[rows] * (number - 1)
        phi[entries] = ((logits + damping * own.clamp(min=1e-300).log()) / (1 + damping)).softmax(1)
        counts[rows] += number * (phi[entries] - own)
    return phi, counts


def _lengths(X: SparseRows) -> Tensor:
    """M [N, 1], 1 for a document without tokens."""
    return X.sum(1, torch.float64).clamp(min=1.0).unsqueeze(1)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)
