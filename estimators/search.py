"""The search behind `ClassifierCV` and `RegressorCV`: settings tried on folds, and the best one fitted to all rows.

Components come from all rows without their targets; a search takes the paths of `paths` from them through its
settings, on all rows but those of a fold. A number of folds deals out the different rows in an order of their own, so
that a search depends on how often each row occurs, and not on where it stands.
"""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import check_cv

from ..inference import Backend, SmallVariance
from ..models.domains import shown
from .base import PosteriorEstimator
from .paths import Rows, at, at_length, components, decide, has_length_scale, path, strength_of
from .rows import sort_rows

_Axes = tuple[tuple[Any, ...], ...]  # of the settings' five parts: G, K, S, W and T values


class _Setting(NamedTuple):
    """A point of the grid; None: the model or the backend has no such argument."""

    length_scale: float | None
    num_components: int | None
    strength: float | None
    weight_scale: float
    temperature: float


class _HeldOut(NamedTuple):
    """What fits without some rows say of them: M rows in all folds together, those of each fold in turn."""

    decisions: NDArray[Any]  # [G, K, S, W, T, M] or [G, K, S, W, T, M, L]
    y: NDArray[Any]  # [M]
    weights: NDArray[np.float64]  # [M]
    scores: NDArray[np.float64]  # [F, G, K, S, W, T]


class PathSearch(PosteriorEstimator):
    """What both estimators add to those they derive from: `fit_posterior` searches first."""

    strengths: Sequence[float]
    weight_scales: Sequence[float] | None
    num_components: Sequence[int] | None
    temperatures: Sequence[float]
    length_scales: Sequence[float] | None
    cv: Any

    def fit_posterior(
        self, parts: tuple[Any, Backend], X: Any, y: NDArray[Any] | None, weights: NDArray[np.float64] | None = None
    ) -> None:
        """Search, then fit the best setting to all rows."""
        (model, inference), y = parts, np.asarray(y)
        if model.loss.target == "sign":
            model = model.replace(classes=torch.arange(int(y.max()) + 1))  # a fold may miss one
        each = np.ones(len(y)) if weights is None else weights
        kept = np.flatnonzero(each > 0)
        rows, axes = Rows(X, y, each), self._axes(model, inference, each.sum(), X.shape[1])
        starts = [components((model, inference), number, rows) for number in axes[1]]
        splits = [[part[each[part] > 0] for part in split] for split in self._splits(rows, kept)]
        found = self._hold_out((model, inference), rows, splits, axes, starts)
        place = self._best(found)
        best = _Setting(*(axis[index] for axis, index in zip(axes, place, strict=True)))
        self.scores_, self.best_params_ = found.scores, best._asdict()
        self.best_score_ = float(found.scores.mean(0)[place].round(_DIGITS))
        self.length_scale_, self.num_components_, self.strength_, self.weight_scale_, self.temperature_ = best
        self.calibrate(found.decisions[place], found.y, found.weights)
        started = time.perf_counter()
        chosen, start = at_length(model, best.length_scale), starts[place[1]]
        if start is None:
            super().fit_posterior((at(chosen, best.strength, best.weight_scale), inference), X, y, weights)
        else:
            steps = _steps(axes)
            steps = steps[: steps.index((best.strength, best.weight_scale)) + 1]
            self.posterior_ = _fitted((chosen, inference), start[kept], steps, rows, kept)
        if best.temperature:
            self.posterior_ = self.posterior_.tempered(best.temperature)
        self.refit_time_ = time.perf_counter() - started

    def score_rows(self, decisions: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        """How good decisions [n] or [n, L] are for targets y [n]; the score of a fold is the mean."""
        raise NotImplementedError

    def log_losses(self, decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of each row [M], by decisions [M] or [M, L] for rows that the fits had not seen, y [M] of them; 0 where there
        are no probabilities."""
        return np.zeros(len(y))

    def calibrate(self, decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> None:
        """Take what is wanted of decisions [M] or [M, L] for rows that the fits had not seen, y [M] of them."""

    def _best(self, found: _HeldOut) -> tuple[Any, ...]:
        """The place of the best setting, of equals that of the least log loss, and then the first; another number of
        components than the one before has to be better by more than chance."""
        best: tuple[Any, ...] = ()
        for number in range(found.scores.shape[2]):
            mean = found.scores[:, :, number].mean(0).round(_DIGITS)
            equals = [(length, number, *others) for length, *others in np.argwhere(mean == mean.max())]
            losses = [np.average(self._measures(found, place)[1], weights=found.weights) for place in equals]
            place = equals[int(np.argmax(np.round(losses, _DIGITS)))]
            best = place if not best or self._is_better(found, place, best) else best
        return best

    def _is_better(self, found: _HeldOut, place: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
        """Whether a setting gains more than 1 on another, row by row: in score and log likelihood together, each in its
        standard errors."""
        gains = self._measures(found, place) - self._measures(found, other)
        gain = np.average(gains, axis=1, weights=found.weights)
        variance = np.average((gains - gain[:, None]) ** 2, axis=1, weights=found.weights)
        errors = np.maximum((variance / found.weights.sum()) ** 0.5, np.finfo(np.float64).tiny)  # no gain has no error
        return bool((gain / errors).sum() > 1)

    def _measures(self, found: _HeldOut, place: tuple[Any, ...]) -> NDArray[np.float64]:
        """Scores and log likelihoods [2, M] of the rows held out."""
        decisions = found.decisions[place]
        losses = self.log_losses(decisions, found.y, found.weights)
        return np.stack([self.score_rows(decisions, found.y), -losses])

    def _axes(self, model: Any, inference: Backend, num_rows: float, num_columns: int) -> _Axes:
        """The values of each part of a setting."""
        local = isinstance(inference, SmallVariance) and inference.takes_labels(model)
        kernel, numbers, lengths = has_length_scale(model), self.num_components, self.length_scales
        used = {
            "length_scales": kernel,
            "strengths": strength_of(model),
            "num_components": local,
            "temperatures": local,
        }
        self._require_use([name for name, found in used.items() if not found], model, inference)
        if numbers is None:
            numbers = [1] if kernel else [k for k in _NUMBERS if k == 1 or k * _ROWS <= num_rows]
        scales = (_KERNEL_SCALES if kernel else _SCALES) if self.weight_scales is None else self.weight_scales
        if lengths is None:
            lengths = [factor * (num_columns / 2) ** 0.5 for factor in _LENGTHS]
        return (
            _values("length_scales", lengths) if kernel else (None,),
            _values("num_components", numbers) if local else (None,),
            _values("strengths", self.strengths) if strength_of(model) else (None,),
            _values("weight_scales", scales),
            _values("temperatures", self.temperatures) if local else (0.0,),
        )

    def _require_use(self, idle: list[str], model: Any, inference: Backend) -> None:
        """ValueError if values were given of something that the model and the backend do not have."""
        defaults = inspect.signature(type(self)).parameters
        for name in idle:
            given, default = getattr(self, name), defaults[name].default
            if given is not None and (default is None or _values(name, given) != default):
                raise ValueError(
                    f"{name} is {shown(given)}, but {type(inference).__name__} with {shown(model)} has nothing to "
                    f"choose there. Leave {name} out."
                )

    def _splits(self, rows: Rows, kept: NDArray[np.int64]) -> list[Any]:
        """Places of the rows to train on and of those to hold out. A number of folds deals out those kept, different
        rows in the order of y."""
        if not isinstance(self.cv, int | np.integer):
            given = list(check_cv(self.cv, rows.y).split(rows.X, rows.y))
            if not given:
                raise ValueError(f"cv is {shown(self.cv)}, which has no split; expected one or more (train, test).")
            return [[_places(part) for part in split] for split in given]
        if self.cv < 2:
            raise ValueError(f"cv is {self.cv}; expected at least 2 folds, or a splitter of scikit-learn.")
        different = sort_rows(*rows.taken(kept), merge=True)
        M = different.X.shape[0]
        fold = np.empty(M, dtype=np.int64)
        fold[np.argsort(np.asarray(different.y), kind="stable")] = np.arange(M) % self.cv
        own = fold[different.place]
        return [(kept[own != k], kept[own == k]) for k in range(min(self.cv, M))]

    def _hold_out(
        self, parts: tuple[Any, Backend], rows: Rows, splits: list[Any], axes: _Axes, starts: list[Any]
    ) -> _HeldOut:
        """Decisions at all settings for the rows of each fold, whose paths start from components [N] of all rows."""
        lengths, *_, temperatures = axes
        steps, decisions, scores = _steps(axes), [], []
        for step in steps:
            at(parts[0], *step).checked()
        for train, test in splits:
            seen, held = rows.taken(train).sorted(parts), rows.taken(test)
            _require_rows(seen.X.shape[0], len(held.y))
            found = [
                decision
                for length in lengths
                for start in starts
                for posterior in path(
                    (at_length(parts[0], length), parts[1]), None if start is None else start[train], steps, seen
                )
                for decision in decide(posterior, held.X, temperatures)
            ]
            scores.append([np.average(self.score_rows(each, held.y), weights=held.weights) for each in found])
            decisions.append(np.stack(found))
        shape, together = tuple(map(len, axes)), np.concatenate(decisions, 1)
        held = rows.taken(np.concatenate([test for _, test in splits]))
        reshaped = together.reshape(*shape, *together.shape[1:])
        return _HeldOut(reshaped, held.y, held.weights, np.array(scores).reshape(-1, *shape))


def _steps(axes: _Axes) -> list[tuple[Any, Any]]:
    """(strength, weight scale) along a path."""
    _, _, strengths, scales, _ = axes
    return list(itertools.product(strengths, scales))


def _fitted(
    parts: tuple[Any, Backend], start: NDArray[np.int64], steps: list[Any], rows: Rows, kept: NDArray[np.int64]
) -> Any:
    """The last posterior of a path from components [M] of the rows kept, with what it says of all rows."""
    seen = rows.taken(kept).sorted(parts)
    *_, posterior = path(parts, start, steps, seen)
    place, left_out = np.full(len(rows.y), -1), rows.X[np.delete(np.arange(len(rows.y)), kept)]
    place[kept] = seen.place
    return posterior.over_rows(torch.from_numpy(place), posterior.checked(left_out) if left_out.shape[0] else None)


def _places(part: Any) -> NDArray[np.int64]:
    """The places of rows that a splitter names by these or, as scikit-learn allows, by a mask [N]."""
    found = np.asarray(part)
    return np.flatnonzero(found) if found.dtype == bool else found


def _require_rows(num_seen: int, num_held: int) -> None:
    """ValueError unless a split has rows to fit, of which equal ones count once, and rows to hold out."""
    if num_seen < 2 or num_held < 1:
        raise ValueError(
            f"a split of cv has {num_seen} different rows to fit and {num_held} to hold out; it needs at least 2 and "
            "1. Give it more rows, or a cv with other splits."
        )


def _values(name: str, given: Any) -> tuple[Any, ...]:
    values = tuple(given) if np.iterable(given) and not isinstance(given, str) else ()
    if not values:
        raise ValueError(f"{name} is {given!r}; expected a sequence of at least one value, such as [1.0].")
    return values


_DIGITS = 10
_SCALES = (0.01, 0.018, 0.03, 0.055, 0.1, 0.18, 0.3, 0.55, 1.0, 1.8, 3.0)
_KERNEL_SCALES = (0.03, 0.055, 0.1, 0.18, 0.3, 0.55, 1.0, 1.8, 3.0, 5.5, 10.0)  # of rows of length 1
_LENGTHS = (0.5, 1.0, 2.0)
_NUMBERS = (1, 2, 4, 8, 16)
_ROWS = 8
