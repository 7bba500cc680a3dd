"""Topics of new documents for given topics: expected counts by a fixed point, the same in every run.

With theta_n integrated out, the token m of document n has

    phi_mk  prop. to  b_kw (alpha + sum_{m' != m} phi_m'k)                  "collapsed": for draws of topics b
    phi_mk  prop. to  b_kw exp(digamma(alpha + sum_{m'} phi_m'k))           "mean field": for b = exp(E log topic)

The first is the conditional of the collapsed Gibbs sampler at expected counts (Asuncion, Welling, Smyth & Teh 2009);
Gibbs sweeps over the tokens would give the same averages, except that it neglects the variance of the counts. The
second is coordinate ascent of q(theta) q(z) (Blei, Ng & Jordan 2003). All tokens of a document are updated together,
from phi prop. to b, until the counts settle. There is no margin factor, since a new document has no target.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...models import host
from ...models.sparse import SparseRows
from ...models.sums import row_chunks


def expected_counts(
    X: SparseRows, word_weights: Tensor, concentration: float, *, collapsed: bool, compiled: bool | None = None
) -> Tensor:
    """Expected numbers [N, K] of the tokens of each topic in documents X [N, V], from b [K, V] and alpha.

    `compiled` chooses the code; by default it is compiled on a CPU. Empty documents have counts 0.
    """
    weights = word_weights.T.contiguous()
    if compiled if compiled is not None else host.on_cpu(X):
        from . import _numba_fold_in  # compiles or loads machine code: only where it is needed

        counts = X.values.new_zeros(len(X), weights.shape[1], dtype=torch.float64)
        arrays = (tensor.numpy() for tensor in (X.starts, X.columns, X.values, weights.detach()))
        _numba_fold_in.fold_in(*arrays, concentration, collapsed, _MOST_STEPS, _TOLERANCE, counts.numpy())
        return counts.to(X.dtype)
    width = weights.shape[1] * (1 + len(X.values) // max(1, len(X)))
    parts = [_fold_in(X[rows].double(), weights.double(), concentration, collapsed) for rows in row_chunks(X, width)]
    return torch.cat(parts).to(X.dtype)


def _fold_in(X: SparseRows, weights: Tensor, concentration: float, collapsed: bool) -> Tensor:
    """The counts [N, K] of a few documents in tensor code, from b [V, K]."""
    own, numbers = weights[X.columns], X.values.unsqueeze(1)
    phi = own / own.sum(1, keepdim=True)
    counts, limit = X.entry_sums(numbers * phi), _TOLERANCE * X.sum(1).clamp(min=1.0).unsqueeze(1)
    settled = torch.zeros_like(limit, dtype=torch.bool)
    for _ in range(_MOST_STEPS):
        total = counts[X.row_index] + concentration
        phi = own * (total - phi if collapsed else torch.digamma(total).exp())
        phi = phi / phi.sum(1, keepdim=True)
        change = torch.where(settled, 0.0, X.entry_sums(numbers * phi) - counts)
        counts = counts + change
        settled = change.abs().amax(1, keepdim=True) <= limit
        if bool(settled.all()):
            break
    return counts


_MOST_STEPS = 100
_TOLERANCE = 1e-4  # of a document's tokens
