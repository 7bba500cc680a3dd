"""Weights of classes: how many times each row of a class counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..models.domains import shown
from ..models.warning import warn


class RoundedWeightsWarning(UserWarning):
    """Weights of classes were rounded to the whole numbers that a backend takes."""


def class_weights(
    class_weight: Any, classes: NDArray[Any], index: NDArray[np.int64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The weight [L] of each class.

    Parameters
    ----------
    class_weight : weights > 0 by class, 1 for those not named; or "balanced", N / (L N_l) with rows counted by weights,
        1 for those without rows, as in a fold
    classes : the labels [L]
    index, weights : class [N] and weight [N] of each row
    """
    if isinstance(class_weight, str) and class_weight == "balanced":
        counts = np.bincount(index, weights, len(classes))
        return np.divide(counts.sum(), len(classes) * counts, out=np.ones(len(classes)), where=counts > 0)
    if not isinstance(class_weight, dict):
        raise ValueError(
            f"class_weight is {shown(class_weight)}; expected None, 'balanced' or a dict of weights by class."
        )
    found = {label: class_weight.get(label, 1.0) for label in classes.tolist()}
    unknown = [label for label in class_weight if label not in found]
    if unknown and found.keys() - class_weight.keys():  # a class that is absent from a fold is no mistake
        raise ValueError(f"class_weight has a weight for {unknown[0]!r}; the classes in y are {list(found)}.")
    for label, weight in found.items():
        if not (isinstance(weight, int | float | np.number) and 0 < weight < np.inf):
            raise ValueError(f"class_weight is {shown(weight)} for {label!r}; expected a finite number above 0.")
    return np.array(list(found.values()), dtype=np.float64)


def whole(factors: NDArray[np.float64], taker: str, mend: str) -> NDArray[np.float64]:
    """Round weights [L] to whole numbers of at least 1, as `taker` needs; a warning says so if that changes them."""
    rounded: NDArray[np.float64] = np.maximum(np.rint(factors), 1.0)
    if (rounded != factors).any():
        warn(
            f"class_weight gives {factors.tolist()}; {taker} takes whole numbers: {rounded.tolist()} are used.{mend}",
            RoundedWeightsWarning,
        )
    return rounded
