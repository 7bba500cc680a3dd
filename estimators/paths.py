"""Paths of fits through strengths and weight scales, from components that the rows alone have shown.

Where labels may start a descent and the loss has a dual, the components are found once, at the first step of a path:
the further ones change the classifiers alone, from the duals of the step before (`hyperplanes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from torch import Tensor

from ..inference import Backend
from ..inference.row_weights import weighs
from ..models import DPM
from ..models.labelled import with_factor
from .hyperplanes import Hyperplanes, has_dual
from .rows import SortedRows, sort_rows

Step = tuple[float | None, float]  # strength, weight scale


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


def components(parts: tuple[Any, Any], numbers: tuple[int | None, ...], rows: Rows) -> list[NDArray[np.int64] | None]:
    """Components [N] of the rows, without their targets, at penalties that aim at so many of them; None: the backend
    has no such aim."""
    model, inference = parts
    different = cache(lambda: sort_rows(rows.X, None, rows.weights, merge=True))

    def found(number: int | None) -> NDArray[np.int64] | None:
        if number is None:
            return None
        if number == 1:
            return np.zeros(len(rows.y), dtype=np.int64)
        backend = inference.replace(num_components=number)
        seen = different()
        fitted = backend.fit(_without_targets(model), seen.X, sample_weight=seen.weights, on_interrupt="raise")
        labels: NDArray[np.int64] = fitted.partition().numpy()[seen.place]
        return labels

    return [found(number) for number in numbers]


def searching(inference: Any) -> Any:
    """The backend as a search has it: one descent a fit, unless it asks for another number of them."""
    return inference.replace(num_restarts=1) if getattr(inference, "num_restarts", None) == "auto" else inference


def path(parts: tuple[Any, Any], start: NDArray[np.int64] | None, steps: list[Step], rows: SortedRows) -> Iterator[Any]:
    """Posteriors at each (strength, weight scale), from components [N] of the rows of the user.

    None: each fit is its own. A loss without a dual has a descent at each step, from the components of the one before.
    """
    model, inference = parts
    if start is None:
        yield from (_fit(inference, at(model, *step), rows) for step in steps)
        return
    labels = torch.zeros(rows.X.shape[0], dtype=torch.long)
    labels[torch.from_numpy(rows.place)] = torch.from_numpy(start)
    if has_dual(with_factor(model).loss):
        yield from _with_duals((model, _starting(inference, labels)), labels, steps, rows)
        return
    for step in steps:
        posterior = _fit(_starting(inference, labels), at(model, *step), rows)
        labels = posterior.partition()
        yield posterior


def at(model: Any, strength: float | None, weight_scale: float) -> Any:
    """The model with this strength, if its loss has one, and weight scale; they are checked where a search begins."""
    name, named = strength_of(model), {"weight_scale": weight_scale}
    if name is not None and strength is not None:
        named[name] = strength
    return clone(model).set_params(**named)


def at_length(model: Any, length_scale: float | None) -> Any:
    """The model with features of this length scale; None: as it is."""
    return model if length_scale is None else clone(model).set_params(**{_LENGTH_SCALE: length_scale})


def strength_of(model: Any) -> str | None:
    """The name of the argument of the model that is the strength of its loss; None if that has none."""
    names = [name for name in model.get_params() if name.startswith("loss__") and name.endswith("__strength")]
    return names[0] if names else None


def has_length_scale(model: Any) -> bool:
    """Whether the classifiers see features of a kernel with a length scale that is left open."""
    return model.get_params().get(_LENGTH_SCALE, 1.0) is None


def decide(posterior: Any, X: Any, temperatures: tuple[float, ...]) -> list[NDArray[Any]]:
    """Decisions [n] or [n, L] of a posterior for rows [n, D] at each temperature; 0: as it is."""
    tempered = (posterior.tempered(each) if each else posterior for each in temperatures)
    return [np.asarray(each.decision_function(X)) for each in tempered]


def _with_duals(parts: tuple[Any, Any], labels: Tensor, steps: list[Step], rows: SortedRows) -> Iterator[Any]:
    """One descent, at the first step, and the classifiers of its components at all; one component needs none."""
    (model, backend), first = parts, at(parts[0], *steps[0])
    found = _fit(backend, first if labels.any() else _without_targets(first), rows)
    weights = None if rows.weights is None else torch.from_numpy(rows.weights)
    model, data = first.prepare(rows.X, rows.y, weights=weights)
    planes = Hyperplanes(data, found.partition())
    for step in steps:
        setting = at(model, *step)
        samples = found.samples | {"weights": planes.at(setting).unsqueeze(0)}
        yield type(found)(setting, backend, samples, found.num_draws, found.trace)


def _fit(inference: Any, model: Any, rows: SortedRows) -> Any:
    y = None if isinstance(model, DPM) else rows.y
    return inference.fit(model, rows.X, y, sample_weight=rows.weights, on_interrupt="raise")


def _starting(inference: Any, labels: Tensor) -> Any:
    """The backend that starts from the components of labels [N], and keeps them apart."""
    return inference.replace(init=labels, merge=False)


def _without_targets(model: Any) -> DPM:
    return DPM(model.likelihood, model.prior)


_LENGTH_SCALE = "feature_map__length_scale"
