"""Scores of rows under the classifiers of their owners, and what rows say of these, compiled."""

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
    """Of the rows n [M] of features [N, P], seen[c, i] = root[n, c] features[n] of the i-th; and added to pull[c] the
    sum of shift[n, c] features[n].

    seen is [C, M, P], pull [C', P].
    """
    num_features = features.shape[1]
    sums = np.zeros_like(pull)  # apart: those of many rows would be rounded as often as there are rows
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


_AHEAD = 8  # rows
_LINE = 8  # numbers that memory brings at once
