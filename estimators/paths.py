"""Fits of a search along a path of strengths and weight scales, which start from components found without targets.

Where a descent may start from given assignments and the loss has a dual, the components are found once, at the first
step of a path. Further steps change the classifiers alone and start from the duals of the step before (`hyperplanes`).
For label sets beside one mixture, further steps start from the variational classifiers of the step before.
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

from ..inference import SVI, Backend, SmallVariance
from ..inference.classifiers.ridge import Ridge
from ..inference.row_weights import weighs
from ..inference.svi.label_sets.kernel import climb, evidence
from ..models import DPM, FeatureData, LabelData, TopicData
from ..models.base import coding_of, with_factor
from .hyperplanes import Hyperplanes, has_dual
from .rows import SortedRows, sort_rows

Step = tuple[float | None, float]  # strength, weight scale
Starts = dict[int | None, NDArray[np.int64]]  # components [N] by their number


class Rows(NamedTuple):
    """Rows with positive weights, in the order of the user."""

    X: Any  # [N, D]
    y: Any  # [N], or label sets [N, L], which may be sparse
    weights: NDArray[np.float64]  # [N]

    def taken(self, index: NDArray[Any], weights: NDArray[np.float64] | None = None) -> Rows:
        """Some rows, by their places [M], with other weights [M] than here if these are given."""
        return Rows(self.X[index], self.y[index], self.weights[index] if weights is None else weights)

    def sorted(self, parts: tuple[Any, Backend]) -> SortedRows:
        """All rows as a fit of the model and the backend sees them."""
        model, inference = parts
        return sort_rows(*self, merge=weighs(inference, model))


def components(parts: tuple[Any, Any], numbers: tuple[int | None, ...], rows: Rows) -> Starts:
    """The components [N] of the rows without their targets, for each wanted number; empty if fits take no start."""
    model, inference = parts
    if not takes_start(parts):
        return {}
    different = cache(lambda: sort_rows(rows.X, None, rows.weights, merge=True))

    def found(number: int) -> NDArray[np.int64]:
        if number == 1:
            return np.zeros(len(rows.y), dtype=np.int64)
        backend = inference.replace(num_components=number)
        seen = different()
        fitted = backend.fit(_without_targets(model), seen.X, sample_weight=seen.weights, on_interrupt="raise")
        labels: NDArray[np.int64] = fitted.partition().numpy()[seen.place]
        return labels

    return {number: found(number) for number in numbers if number is not None}


def searching(inference: Any) -> Any:
    """The backend that a search fits with: one descent in each fit, unless the user set `num_restarts`."""
    return inference.replace(num_restarts=1) if getattr(inference, "num_restarts", None) == "auto" else inference


def path(parts: tuple[Any, Any], start: NDArray[np.int64] | None, steps: list[Step], rows: SortedRows) -> Iterator[Any]:
    """The posterior at each (strength, weight scale), from the components [N] of the user's rows.

    Without a start (None) every step is a fit of its own; label sets share one mixture, on which their classifiers have
    no influence. If the loss has no dual, each step is a descent from the components of the step before.
    """
    model, inference = parts
    if start is None and shares_mixture(parts):
        yield from _of_one_mixture(parts, steps, rows)
        return
    if start is None:
        yield from (_fit(inference, at(model, *step), rows) for step in steps)
        return
    labels = torch.zeros(rows.X.shape[0], dtype=torch.long, device="cpu")
    labels[torch.from_numpy(rows.place)] = torch.from_numpy(start)
    if has_dual(with_factor(model).loss):
        yield from _with_duals((model, _starting(inference, labels)), labels, steps, rows)
        return
    for step in steps:
        posterior = _fit(_starting(inference, labels), at(model, *step), rows)
        labels = posterior.partition()
        yield posterior


def at(model: Any, strength: float | None, weight_scale: float) -> Any:
    """The model with this weight scale and, if its loss has one, this strength; the search has checked both."""
    found, name = model.replace(weight_scale=weight_scale), strength_of(model)
    if name is not None and strength is not None:
        found.loss = clone(model.loss).set_params(**{name.removeprefix("loss__"): strength})
    return found


def takes_start(parts: tuple[Any, Any]) -> bool:
    """Whether fits start from components of the rows."""
    model, inference = parts
    return isinstance(inference, SmallVariance) and inference.takes_labels(model)


def varied(parts: tuple[Any, Any], setting: dict[str, Any]) -> tuple[Any, Any]:
    """The model and the backend at a setting, without strength and weight scale (steps of a path) and the start."""
    model, inference = parts
    named = {name: setting[part] for part, name in _NAMES.items() if setting.get(part) is not None}
    number = setting.get("num_components")
    if number is not None and not takes_start(parts):
        if isinstance(inference, SmallVariance):
            inference = inference.replace(num_components=number)
        else:
            named[size_of(model, inference)] = number
    return clone(model).set_params(**named), inference


def size_of(model: Any, inference: Any) -> str:
    """The argument of the model or, of small variance, of the backend that says how many latent features, topics or
    components of label sets there are; "" for other models."""
    kinds = {FeatureData: "truncation", LabelData: "truncation", TopicData: "num_topics"}
    name = next((name for kind, name in kinds.items() if issubclass(model.data_type, kind)), "")
    return "num_components" if name and isinstance(inference, SmallVariance) else name


def strength_of(model: Any) -> str | None:
    """The name of the argument of the model that is the strength of its loss; None if that has none."""
    names = [name for name in model.get_params() if name.startswith("loss__") and name.endswith("__strength")]
    return names[0] if names else None


def has_length_scale(model: Any) -> bool:
    """Whether the classifiers see features of a kernel with a length scale that is left open."""
    return model.get_params().get(_NAMES["length_scale"], 1.0) is None


def decide(posterior: Any, X: Any, temperatures: tuple[float, ...]) -> list[NDArray[Any]]:
    """Decisions [n] or [n, L] for rows [n, D] at each temperature; 0 leaves the posterior as it is.

    With one component all temperatures give the same decisions.
    """
    if len(temperatures) > 1 and posterior.num_components == 1:
        return decide(posterior, X, (0.0,)) * len(temperatures)
    tempered = (posterior.tempered(each) if each else posterior for each in temperatures)
    return [np.asarray(each.decision_function(X)) for each in tempered]


def _with_duals(parts: tuple[Any, Any], labels: Tensor, steps: list[Step], rows: SortedRows) -> Iterator[Any]:
    """One descent at the first step; then the classifiers of its components at every step, from duals."""
    (model, backend), first = parts, at(parts[0], *steps[0])
    found = _fit(backend, first if labels.any() else _without_targets(first), rows)
    weights = None if rows.weights is None else torch.from_numpy(rows.weights)
    model, data = first.prepare(rows.X, rows.y, weights=weights)
    planes = Hyperplanes(data, found.partition())
    for step in steps:
        setting = at(model, *step)
        samples = found.samples | {"weights": planes.at(setting).unsqueeze(0)}
        yield type(found)(setting, backend, samples, found.num_draws, found.trace)


def shares_mixture(parts: tuple[Any, Any]) -> bool:
    """Whether fits differ in their classifiers alone, so that one mixture of full-batch SVI serves them all."""
    model, inference = parts
    whole = isinstance(inference, SVI) and inference.batch_size is None and inference.rule == "gibbs"
    return whole and not getattr(model, "is_coupled", True)


def _of_one_mixture(parts: tuple[Any, Any], steps: list[Step], rows: SortedRows) -> Iterator[Any]:
    """One fit of the mixture; then the classifiers of each step, which start from those of the step before."""
    (model, inference), weights = parts, None if rows.weights is None else torch.from_numpy(rows.weights)
    found = _fit(inference, at(model, *steps[0]), rows)
    data = found.model.data(rows.X, rows.y, weights)
    for step in steps:
        found = climbed(found.replace(model=at(found.model, *step)), inference, data)
        yield found


def climbed(found: Any, inference: Any, data: Any) -> Any:
    """The posterior after more steps of its classifiers alone, until a step gains at most `_SETTLED` nats a row."""
    q = Ridge(found.samples["classifiers"], found.samples["classifier_tril"])
    least = min(inference.tolerance or 0.0, _SETTLED) * data.total_weight
    q, _ = climb(evidence(data, found.model), q, least, inference.num_steps)
    return found.replace(samples=found.samples | {"classifiers": q.mean, "classifier_tril": q.precision_tril})


def _fit(inference: Any, model: Any, rows: SortedRows) -> Any:
    y = None if coding_of(model) is None else rows.y
    return inference.fit(model, rows.X, y, sample_weight=rows.weights, on_interrupt="raise")


def _starting(inference: Any, labels: Tensor) -> Any:
    """The backend that starts from the components [N] and does not merge them."""
    return inference.replace(init=labels, merge=False)


def _without_targets(model: Any) -> DPM:
    return DPM(model.likelihood, model.prior)


_SETTLED = 1e-3  # nats for each row, of a step of classifiers alone
_NAMES = {
    "length_scale": "feature_map__length_scale",
    "num_topics": "num_topics",
    "concentration": "prior__document_concentration",
}
