"""The compiled fixed point of `fold_in`: document by document, each until its counts settle."""

import numpy as np

from ..compiled._numba_functions import exp_digamma
from ..compiled.decorators import entry


@entry
def fold_in(starts, columns, values, weights, concentration, collapsed, most_steps, tolerance, counts):
    """Set the expected counts [N, K] of documents in compressed rows, given b [V, K]."""
    num_topics = weights.shape[1]
    longest = 1
    for n in range(len(counts)):
        longest = max(longest, starts[n + 1] - starts[n])
    phi, total, new = np.empty((longest, num_topics)), np.empty(num_topics), np.empty(num_topics)
    for n in range(len(counts)):
        first, size = starts[n], starts[n + 1] - starts[n]
        length = 0.0
        for e in range(size):
            length += values[first + e]
            scale = 0.0
            for k in range(num_topics):
                phi[e, k] = weights[columns[first + e], k]
                scale += phi[e, k]
            for k in range(num_topics):
                phi[e, k] /= scale
                counts[n, k] += values[first + e] * phi[e, k]
        for _ in range(most_steps if size else 0):
            for k in range(num_topics):
                total[k] = counts[n, k] + concentration
                if not collapsed:
                    total[k] = exp_digamma(total[k])
                new[k] = 0.0
            own = 1.0 if collapsed else 0.0
            for e in range(size):
                word, number, scale = columns[first + e], values[first + e], 0.0
                for k in range(num_topics):
                    phi[e, k] = weights[word, k] * (total[k] - own * phi[e, k])
                    scale += phi[e, k]
                for k in range(num_topics):
                    phi[e, k] /= scale
                    new[k] += number * phi[e, k]
            change = 0.0
            for k in range(num_topics):
                change = max(change, abs(new[k] - counts[n, k]))
                counts[n, k] = new[k]
            if change <= tolerance * max(1.0, length):
                break
