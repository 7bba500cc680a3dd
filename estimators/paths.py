"""Paths of fits through strengths and weight scales, at a number of components that the first of them aims at.

Every later fit starts from the partition of the one before (`SmallVariance(init=...)`) and keeps about as many
components, which takes a fraction of the time of a fit from scratch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone

from ..inference import Backend
from ..inference.weights import weighs
from .rows import SortedRows, sort_rows


class Rows(NamedTuple):
    """Rows with positive weights, in the order of the user."""

    X: Any  # [N, D]
    y: NDArray[Any]  # [N]
    weights: NDArray[np.float64]  # [N]

    def taken(self, index: NDArray[Any]) -> Rows:
        """Some rows, by their places [M]."""
        return Rows(self.X[index], self.y[index], self.weights[index])

    def sorted(self, parts: tuple[Any, Backend]) -> SortedRows:
        """All rows as a fit of the model and the backend sees them."""
        model, inference = parts
        return sort_rows(*self, merge=weighs(inference, model))


def path(
    parts: tuple[Any, Backend], number: int | None, steps: list[tuple[Any, float]], rows: SortedRows
) -> Iterator[Any]:
    """Posteriors at each (strength, weight scale), each from the components of the one before.

    `number` of components is what the penalty aims at; None: the backend has no such aim, and each fit is its own.
    """
    model, inference = parts
    labels = torch.zeros(rows.X.shape[0], dtype=torch.long) if number == 1 else None
    for strength, weight_scale in steps:
        backend = started(inference, number, labels)
        posterior = backend.fit(at(model, strength, weight_scale), rows.X, rows.y, sample_weight=rows.weights)
        labels = None if number is None else posterior.partition()
        yield posterior


def started(inference: Backend, number: int | None, labels: Any) -> Backend:
    """The backend that aims at a number of components, or starts from those of labels [N]."""
    if number is None:
        return inference
    return inference.replace(num_components=number) if labels is None else inference.replace(init=labels, merge=False)


def at(model: Any, strength: float | None, weight_scale: float) -> Any:
    """The model with this strength, if its loss has one, and weight scale."""
    name, named = strength_of(model), {"weight_scale": weight_scale}
    if name is not None and strength is not None:
        named[name] = strength
    return clone(model).set_params(**named)


def strength_of(model: Any) -> str | None:
    """The name of the argument of the model that is the strength of its loss; None if that has none."""
    names = [name for name in model.get_params() if name.startswith("loss__") and name.endswith("__strength")]
    return names[0] if names else None


def decide(posterior: Any, X: Any, temperature: float) -> NDArray[Any]:
    """Decisions [n] or [n, L] of a posterior for rows [n, D], tempered unless that is 0."""
    found = posterior.tempered(temperature) if temperature else posterior
    return np.asarray(found.decision_function(X))
