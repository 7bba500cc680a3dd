"""Rows scaled by the roots of their precisions, and their scores under the classifiers of their owners, compiled."""

from ..compiled.decorators import entry


@entry
def scale_rows(features, rows, roots, shifts, scaled, linear):
    """scaled[i] = roots[n] features[n] for n = rows[i], of features [N, P]; add shifts[n] features[n] to linear [P]."""
    for i in range(len(rows)):
        n = rows[i]
        root, shift = roots[n], shifts[n]
        for p in range(len(linear)):
            scaled[i, p] = root * features[n, p]
            linear[p] += shift * features[n, p]


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
