"""The seams for many machines: sums over points, and whose random numbers they are. On one machine both do nothing.

Each rank will hold some of the points and all of the components. Then `all_sum` is an all-reduce, the only way by which
ranks hear of one another, so that everything that is a sum over points goes through it: counts, statistics, Gram
matrices, bounds, and defaults that come from the data. A fit's `generator` draws the same numbers on every rank, which
is right for whatever all ranks share (components, classifiers, hyperparameters); what belongs to a rank's own points
(assignments, augmentation variables) is drawn from `own_stream(generator)`.
"""

from __future__ import annotations

import torch

from ...models.sums import all_sum as all_sum


def own_stream(generator: torch.Generator) -> torch.Generator:
    """The stream for draws that belong to a rank's own points."""
    return generator
