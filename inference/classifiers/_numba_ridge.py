"""The rows of one component, scaled by the roots of their precisions, compiled."""

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
