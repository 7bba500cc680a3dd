"""Scores of rows under the classifiers of their owners, compiled."""

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
