"""The search behind `ClassifierCV` and `RegressorCV`: settings tried on folds, and the best one fitted to all rows.

Components come from all rows without their targets; a search takes the paths of `paths` from them through its
settings, on all rows but those of a fold. A number of folds deals out the different rows in an order of their own, so
that a search depends on how often each row occurs, and not on where it stands.
"""

from __future__ import annotations

import inspect
import itertools
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import check_cv
from sklearn.utils import check_consistent_length, column_or_1d

from ..inference import Backend, SmallVariance
from ..models import ConstantColumnWarning
from ..models.domains import POSITIVE, Domain, Number, Whole, read, shown
from ..models.warning import each_once
from .base import PosteriorEstimator
from .partition import Prepared
from .paths import Rows, at, at_length, components, decide, has_length_scale, path, searching, strength_of
from .reading import array_like, named
from .rows import deal, deal_groups, sort_rows

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
    """What both estimators add to those they derive from: `fit_posterior` searches first. Ctrl-C ends all of it."""

    strengths: Sequence[float]
    weight_scales: Sequence[float] | None
    num_components: Sequence[int] | None
    temperatures: Sequence[float]
    length_scales: Sequence[float] | None
    cv: Any
    on_interrupt = "raise"
    streams: tuple[type[Any], ...] = ()  # a search sees all rows
    scales: ClassVar[tuple[float, ...]]  # of weights, by default
    prepared: Callable[..., Prepared]  # what the other base makes of X, y and weights
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": True}  # as scikit-learn's splitters ask for them

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Search, and fit the best setting to X [N, D], y [N] and weights [N] of at least 0.

        Parameters
        ----------
        groups : what rows [N] belong together, such as those of one subject: `cv` gets it, and folds of a number are
            of whole groups
        """
        parts, rows, targets, weights = self.prepared(X, y, sample_weight)
        self.fit_posterior(parts, rows, targets, weights, None if groups is None else _read_groups(groups, rows))
        return self

    def fit_posterior(
        self,
        parts: tuple[Any, Backend],
        X: Any,
        y: NDArray[Any] | None,
        weights: NDArray[np.float64] | None = None,
        groups: NDArray[Any] | None = None,
    ) -> None:
        """Search, then fit the best setting to all rows."""
        (model, inference), y = parts, np.asarray(y)
        if model.coding.has_classes:
            model = model.replace(classes=torch.arange(int(y.max()) + 1))  # a fold may miss one
        each = np.ones(len(y)) if weights is None else weights
        kept = np.flatnonzero(each > 0)
        rows, axes = Rows(X, y, each), self._axes(model, inference, each.sum(), X.shape[1])
        search = model, searching(inference)
        splits = [[part[each[part] > 0] for part in split] for split in self._splits(rows, kept, groups)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConstantColumnWarning)  # the fit to all rows says it once
            starts = components(search, axes[1], rows)
            found = self._hold_out(search, rows, splits, axes, starts)
        place = self._best(found)
        best = _Setting(*(axis[index] for axis, index in zip(axes, place, strict=True)))
        self.scores_, self.best_params_ = found.scores, best._asdict()
        self.best_score_ = float(found.scores.mean(0)[place].round(_DIGITS))
        self.length_scale_, self.num_components_, self.strength_, self.weight_scale_, self.temperature_ = best
        self.calibrate(found.decisions[place], found.y, found.weights)
        started = time.perf_counter()
        chosen, start = at_length(model, best.length_scale), starts[place[1]]
        with each_once():
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
        local, kernel = isinstance(inference, SmallVariance) and inference.takes_labels(model), has_length_scale(model)
        given: dict[str, Any] = {name: _values(name, getattr(self, name), domain) for name, domain in _DOMAINS.items()}
        strengths, scales, numbers, temperatures, lengths = given.values()
        used = {
            "length_scales": kernel,
            "strengths": strength_of(model),
            "num_components": local,
            "temperatures": local,
        }
        self._require_use({name: given[name] for name, found in used.items() if not found}, model, inference)
        if numbers is None:
            numbers = (1,) if kernel else tuple(k for k in _NUMBERS if k == 1 or k * _ROWS <= num_rows)
        return (
            (lengths or tuple(factor * (num_columns / 2) ** 0.5 for factor in _LENGTHS)) if kernel else (None,),
            numbers if local else (None,),
            strengths if strength_of(model) else (None,),
            scales or (_KERNEL_SCALES if kernel else self.scales),
            temperatures if local else (0.0,),
        )

    def _require_use(self, idle: dict[str, Any], model: Any, inference: Backend) -> None:
        """ValueError if values were given of something that the model and the backend do not have."""
        defaults = inspect.signature(type(self)).parameters
        for name, values in idle.items():
            if values not in (None, defaults[name].default):
                raise ValueError(
                    f"{name} is {shown(getattr(self, name))}, but {type(inference).__name__} with {shown(model)} has "
                    f"nothing to choose there. Leave {name} out."
                )

    def _splits(self, rows: Rows, kept: NDArray[np.int64], groups: NDArray[Any] | None) -> list[Any]:
        """Places of the rows to train on and of those to hold out. A number of folds deals out those kept, different
        rows in the order of y, or whole groups."""
        if not isinstance(self.cv, int | np.integer):
            return _read_splits(self.cv, rows, groups)
        if self.cv < 2 or isinstance(self.cv, bool):
            raise ValueError(f"cv is {self.cv}; expected at least 2 folds, or a splitter of scikit-learn.")
        if groups is None:
            different = sort_rows(*rows.taken(kept), merge=True)
            own = deal(different, np.asarray(different.y), int(self.cv))
        else:
            own = deal_groups(groups[kept], rows.y[kept], rows.weights[kept], int(self.cv))
        return [(kept[own != k], kept[own == k]) for k in range(own.max() + 1)]

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
    seen = (rows if len(kept) == len(rows.y) else rows.taken(kept)).sorted(parts)
    *_, posterior = path(parts, start, steps, seen)
    place, left_out = np.full(len(rows.y), -1), rows.X[np.delete(np.arange(len(rows.y)), kept)]
    place[kept] = seen.place
    return posterior.over_rows(torch.from_numpy(place), posterior.checked(left_out) if left_out.shape[0] else None)


def _read_groups(groups: ArrayLike, rows: Any) -> NDArray[Any]:
    given = array_like("groups", groups)
    found: NDArray[Any] = named("groups", lambda: column_or_1d(given))
    named("X and groups", lambda: check_consistent_length(rows, found))
    return found


def _read_splits(cv: Any, rows: Rows, groups: NDArray[Any] | None) -> list[Any]:
    """The places of the rows to train on and of those to hold out, as a splitter or a sequence of splits names them."""
    try:
        splits = [(train, test) for train, test in check_cv(cv, rows.y).split(rows.X, rows.y, groups)]
        if not splits:
            raise ValueError("it has no split")
        return [[_places(part, len(rows.y)) for part in split] for split in splits]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"cv is {shown(cv)}; expected a number of folds, a splitter of scikit-learn, or its splits (train, test): "
            f"{error}."
        ) from None


def _places(part: Any, num_rows: int) -> NDArray[np.int64]:
    """The places of rows that a splitter names by these or, as scikit-learn allows, by a mask [N]."""
    found = np.asarray(part)
    if found.dtype == bool and found.shape == (num_rows,):
        return np.flatnonzero(found)
    if found.size and (found.dtype.kind not in "iu" or found.min() < -num_rows or found.max() >= num_rows):
        raise ValueError(f"it has {shown(part)} for places among {num_rows} rows")
    if found.ndim != 1:
        raise ValueError(f"it has places of shape {found.shape}")
    return found.astype(np.int64) % num_rows


def _require_rows(num_seen: int, num_held: int) -> None:
    """ValueError unless a split has rows to fit, of which equal ones count once, and rows to hold out."""
    if num_seen < 2 or num_held < 1:
        raise ValueError(
            f"a split of cv has {num_seen} different rows to fit and {num_held} to hold out; it needs at least 2 and "
            "1. Give it more rows, or a cv with other splits."
        )


def _values(name: str, given: Any, domain: Domain) -> tuple[Any, ...] | None:
    """The values to choose from, each in the domain of the argument that takes it; None: by default."""
    if given is None and name not in ("strengths", "temperatures"):
        return None
    try:
        values = () if isinstance(given, str | bytes | dict | set) else tuple(given[:])
    except (TypeError, ValueError, IndexError):
        values = ()
    if not values:
        raise ValueError(f"{name} is {shown(given)}; expected a sequence of at least one value, such as [1.0].")
    return tuple(read(name, value, domain) for value in values)


_DOMAINS: dict[str, Domain] = {
    "strengths": POSITIVE,
    "weight_scales": POSITIVE,
    "num_components": Whole(1),
    "temperatures": Number(least=0.0),
    "length_scales": POSITIVE,
}
_DIGITS = 10
_KERNEL_SCALES = (0.03, 0.055, 0.1, 0.18, 0.3, 0.55, 1.0, 1.8, 3.0, 5.5, 10.0)  # of rows of length 1
_LENGTHS = (0.5, 1.0, 2.0)
_NUMBERS = (1, 2, 4, 8, 16)
_ROWS = 8
