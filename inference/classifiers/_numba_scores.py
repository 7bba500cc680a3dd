"""Compiled: scores of rows under the classifiers of their components, and weighted sums of features."""

import numpy as np

from ...models.compiled.scalars import prefetch
from ..compiled.decorators import entry


@entry
def own_scores(features, weights, assignments, scores):
    """scores[n, c] = features[n] . weights[z_n, c], of features [N, P] and weights [K, C, P]."""
    for n in range(len(features)):
        for c in range(weights.shape[1]):
            own = weights[assignments[n], c]
            total = features.dtype.type(0.0)
            for p in range(len(own)):
                total += features[n, p] * own[p]
            scores[n, c] = total


@entry
def weighted_rows(features, rows, root, shift, seen, pull):
    """Set seen[c, i] = root[n, c] features[n], n = rows[i] [M], and add the sum of shift[n, c] features[n] to pull[c].

    Shapes: features [N, P], seen [C, M, P], pull [C', P].
    """
    num_features = features.shape[1]
    sums = np.zeros_like(pull)  # a sum of its own for these M rows loses fewer digits than adding row by row
    for i in range(len(rows)):
        n, ahead = rows[i], rows[min(i + _AHEAD, len(rows) - 1)]
        prefetch(root, ahead * root.shape[1])
        prefetch(shift, ahead * shift.shape[1])
        for p in range(0, num_features, _LINE):
            prefetch(features, ahead * num_features + p)
        for c in range(len(seen)):
            factor = root[n, c]
            for p in range(num_features):
                seen[c, i, p] = factor * features[n, p]
        for c in range(len(sums)):
            factor = shift[n, c]
            for p in range(num_features):
                sums[c, p] += factor * features[n, p]
    pull += sums


_AHEAD = 8  # rows to fetch in advance
_LINE = 8  # numbers per cache line
