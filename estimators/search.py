"""The search behind `ClassifierCV` and the others: settings tried on folds, and the best one fitted to all rows.

Components are found from all rows without their targets. For each fold, fits to the other rows start from these
components and go through all settings, along the paths of `paths`. If `cv` is a number, the rows are dealt out to folds
in a canonical order, so that a search depends on how often each row occurs, and not on where it stands.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import scipy.sparse
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import check_cv
from sklearn.utils import check_consistent_length, column_or_1d

from ..inference import Backend, SmallVariance
from ..inference.truncation import TruncationWarning
from ..models import ConstantColumnWarning
from ..models.domains import shown
from ..models.warning import each_once, withheld
from .axes import AXES, given_values, require_use
from .base import PosteriorEstimator
from .partition import Prepared
from .paths import (
    Rows,
    Starts,
    Step,
    at,
    components,
    decide,
    has_length_scale,
    path,
    searching,
    size_of,
    strength_of,
    varied,
)
from .reading import array_like, missing_in, named
from .rows import Part, copies_of, deal, deal_groups, sort_rows, splits_of
from .streams import require_array

_Axes = dict[str, tuple[Any, ...]]  # of the parts of a setting, in their order; (None,): there is no such argument
_Place = tuple[int, ...]  # of a setting among the values of its axes


class _HeldOut(NamedTuple):
    """Predictions for held-out rows: M rows in all, those of the first fold first."""

    decisions: NDArray[Any]  # [*axes, M] or [*axes, M, L]
    y: NDArray[Any]  # [M]
    weights: NDArray[np.float64]  # [M]
    scores: NDArray[np.float64]  # [F, *axes]


class _Member(NamedTuple):
    """A setting, and the arguments of its fit to all rows."""

    setting: dict[str, Any]
    steps: list[Step]  # up to it
    start: NDArray[np.int64] | None  # [N] components
    share: float


class _Found(NamedTuple):
    """The best setting, those whose decisions are averaged with it, and the averages for held-out rows."""

    members: list[_Member]  # the best first
    decisions: NDArray[Any]  # [M] or [M, L]
    y: NDArray[Any]  # [M]
    weights: NDArray[np.float64]  # [M]

    @property
    def best(self) -> _Member:
        return self.members[0]


class Search(PosteriorEstimator):
    """The search that a CV estimator makes before the fit of the estimator it derives from. Ctrl-C ends both.

    A setting has a value of each of `arguments`, which hold the values to choose from. Strengths and weight scales are
    the steps of a path of fits; the arguments after these (temperatures) need no fit of their own.
    """

    arguments: ClassVar[tuple[str, ...]]
    size: ClassVar[str] = "num_components"  # the argument whose further values have to be better by more than chance
    weight_scales: Sequence[float] | None
    cv: Any
    on_interrupt = "raise"
    streams: tuple[type[Any], ...] = ()  # a search sees all rows
    scales: ClassVar[tuple[float, ...]]  # of weights, by default
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": True}  # as scikit-learn's splitters ask for them

    def search(
        self, parts: tuple[Any, Backend], rows: Rows, groups: ArrayLike | None, copies: NDArray[np.int64] | None = None
    ) -> _Found:
        """The best setting for rows with weights of at least 0, and the others whose decisions are averaged with it.

        Sets `scores_`, `best_params_` and the other attributes of the search.

        Parameters
        ----------
        copies : how many rows each row [N] is dealt out as; None: by its weight (`copies_of`)
        """
        model, inference = parts
        named = None if groups is None else _read_groups(groups, rows.X)
        axes, search = self._axes(model, inference, rows), (model, searching(inference))
        splits = self._splits(rows, named, copies_of(rows.weights) if copies is None else copies)
        with withheld(ConstantColumnWarning, TruncationWarning):  # the fit to all rows says it once
            starts = components(search, axes.get("num_components", (None,)), rows)
            found = self._hold_out(search, rows, splits, axes, starts)
        best = self._best(found, [self._best_of(found, places) for places in self._by_size(found)])
        places = self._together(found, best) if starts else [best]
        decisions = np.stack([found.decisions[place] for place in places])
        shares = self.shares(decisions, found.y, found.weights).round(_DIGITS)
        counted = {place: share for place, share in zip(places, shares.tolist(), strict=True) if share}
        best = best if best in counted else self._best(found, list(counted))
        counted = {best: counted[best]} | counted  # the best first
        members = [self._member(axes, starts, place, share) for place, share in counted.items()]
        self.scores_, self.best_params_ = found.scores, members[0].setting
        self.best_score_ = float(found.scores.mean(0)[best].round(_DIGITS))
        for name, value in self.best_params_.items():
            setattr(self, f"{name}_", value)
        return _Found(members, np.tensordot(shares, decisions, 1), found.y, found.weights)

    def score_rows(self, decisions: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        """The score of each row [n] from decisions [n] or [n, L] and targets y [n]; the score of a fold is the mean."""
        raise NotImplementedError

    def settled(self, decisions: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        """Decisions [M] or [M, L] of all folds after all that the folds choose together, such as a calibration."""
        return decisions

    def shares(self, decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The weights [J] of several decisions [J, M] or [J, M, L] in their mean; by default the first has weight 1."""
        found: NDArray[np.float64] = np.eye(len(decisions))[0]
        return found

    def decide(self, posterior: Any, held: Rows, seen: Any, temperatures: tuple[float, ...]) -> list[NDArray[Any]]:
        """Decisions [n] or [n, L] of a fit to other rows, at each temperature."""
        return decide(posterior, held.X, temperatures)

    def log_losses(
        self, decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """The log loss of each held-out row [M] from decisions [M] or [M, L] and y [M]; None without probabilities."""
        return None

    def calibrate(self, decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> None:
        """Set what decisions [M] or [M, L] for held-out rows with targets y [M] determine, such as a slope."""

    def _best(self, found: _HeldOut, sizes: list[_Place]) -> _Place:
        """The best of the places of several numbers of components; a further number must be better than those before by
        more than chance."""
        first, *further = sizes
        best = first
        for place in further:
            best = place if self._is_better(found, place, best, first) else best
        return best

    def _together(self, found: _HeldOut, best: _Place) -> list[_Place]:
        """The best place, and for each other number of components that of its best setting, if its decisions differ.
        All have the loss and the feature map of the best place, since one posterior has one of each."""
        shared = [self.arguments.index(name) for name in ("length_scales", "strengths")]
        together = [best]
        for places in self._by_size(found):
            place = self._best_of(found, [each for each in places if all(each[axis] == best[axis] for axis in shared)])
            if not any(np.array_equal(found.decisions[place], found.decisions[other]) for other in together):
                together.append(place)
        return together

    def _by_size(self, found: _HeldOut) -> list[list[_Place]]:
        """The places of all settings, by number of components."""
        shape = found.scores.shape[1:]
        every = list(np.ndindex(shape))
        if self.size not in self.arguments:
            return [every]
        at_size = self.arguments.index(self.size)
        return [[place for place in every if place[at_size] == number] for number in range(shape[at_size])]

    def _best_of(self, found: _HeldOut, places: list[_Place]) -> _Place:
        """The place with the best score; of equals the one with the least log loss, and then the first."""
        mean = found.scores.mean(0).round(_DIGITS)
        highest = max(mean[place] for place in places)
        equals = [place for place in places if mean[place] == highest]
        losses = [np.average(self._measures(found, place)[-1], weights=found.weights) for place in equals]
        return equals[int(np.argmax(np.round(losses, _DIGITS)))]

    def _member(self, axes: _Axes, starts: Starts, place: _Place, share: float) -> _Member:
        setting = {name: values[index] for (name, values), index in zip(axes.items(), place, strict=True)}
        steps = _steps(axes)
        steps = steps[: steps.index((setting["strength"], setting["weight_scale"])) + 1]
        return _Member(setting, steps, starts.get(setting.get("num_components")), share)

    def _is_better(self, found: _HeldOut, place: _Place, best: _Place, first: _Place) -> bool:
        """Whether a setting is better by more than chance: its gains in score and in log likelihood on the best before
        add up to more than 1, and its gain in log likelihood on the first is more than 1, all in standard errors. The
        second condition helps as the score, the highest of many, chose the setting, but the log likelihood did not."""
        together, alone = self._gains(found, place, best).sum(), self._gains(found, place, first)[-1]
        return bool(together > 1 and alone > 1)

    def _gains(self, found: _HeldOut, place: _Place, other: _Place) -> NDArray[np.float64]:
        """The mean gain of a setting on another, row by row, in each measure [J], in standard errors."""
        gains = self._measures(found, place) - self._measures(found, other)
        gain = np.average(gains, axis=1, weights=found.weights)
        variance = np.average((gains - gain[:, None]) ** 2, axis=1, weights=found.weights)
        errors = np.maximum((variance / found.weights.sum()) ** 0.5, np.finfo(np.float64).tiny)  # no gain has no error
        found_gains: NDArray[np.float64] = gain / errors
        return found_gains

    def _measures(self, found: _HeldOut, place: _Place) -> NDArray[np.float64]:
        """Scores and, if there are probabilities, log likelihoods [J, M] of the held-out rows."""
        decisions = self.settled(found.decisions[place], found.y)
        scores, losses = self.score_rows(decisions, found.y), self.log_losses(decisions, found.y, found.weights)
        return np.stack([scores] if losses is None else [scores, -losses])

    def _axes(self, model: Any, inference: Backend, rows: Rows) -> _Axes:
        """The values to choose from, by the names of the parts of a setting."""
        local, kernel = isinstance(inference, SmallVariance) and inference.takes_labels(model), has_length_scale(model)
        num_columns, given = rows.X.shape[1], given_values(self, self.arguments)
        numbers = (1,) if kernel else tuple(k for k in _NUMBERS if k == 1 or k * _ROWS <= rows.weights.sum())
        used: dict[str, tuple[Any, Any]] = {
            "length_scales": (kernel, tuple(factor * (num_columns / 2) ** 0.5 for factor in _LENGTHS)),
            "num_components": (local or size_of(model, inference), numbers if local else (None,)),
            "strengths": (strength_of(model), None),
            "weight_scales": (True, _KERNEL_SCALES if kernel else self.scales),
            "temperatures": (local, None),
        }
        require_use(self, {name: given[name] for name in given if not used.get(name, (True,))[0]}, model, inference)
        idle = {"temperatures": (0.0,)}
        found = {}
        for name, values in given.items():
            has, default = used.get(name, (True, None))
            found[AXES[name].setting] = (values or default) if has else idle.get(name, (None,))
        return found

    def _splits(self, rows: Rows, groups: NDArray[Any] | None, copies: NDArray[np.int64]) -> list[tuple[Part, Part]]:
        """For each fold the rows to train on and those to hold out, all with a positive weight. If `cv` is a number,
        the copies [N] of rows are dealt out in the order of y, or whole groups are."""
        if not isinstance(self.cv, int | np.integer):
            given = [[part[rows.weights[part] > 0] for part in split] for split in _read_splits(self.cv, rows, groups)]
            return [(Part(train, rows.weights[train]), Part(test, rows.weights[test])) for train, test in given]
        if self.cv < 2 or isinstance(self.cv, bool):
            raise ValueError(f"cv is {self.cv}; expected at least 2 folds, or a splitter of scikit-learn.")
        kept = np.flatnonzero(rows.weights > 0)
        some, copies, number = rows.taken(kept), copies[kept], int(self.cv)
        if groups is None:
            dealt = self.deal(some, number, copies)
        else:
            fold = deal_groups(groups[kept], self.order(some.y), some.weights, number)
            dealt = (fold[:, None] == np.arange(fold.max() + 1)) * copies[:, None]
        splits = splits_of(dealt, copies, some.weights)
        return [
            (Part(kept[train.place], train.weights), Part(kept[test.place], test.weights)) for train, test in splits
        ]

    def deal(self, rows: Rows, number: int, copies: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of copies of each row, of `copies` [N], that each fold holds out, [N, F]."""
        ordered = sort_rows(*rows, merge=False)
        return deal(ordered, np.asarray(ordered.y), number, copies)

    def order(self, y: Any) -> NDArray[Any]:
        """A number for each row [N]; groups are dealt out in the order of their means."""
        found: NDArray[Any] = y
        return found

    def _hold_out(
        self, parts: tuple[Any, Backend], rows: Rows, splits: list[Any], axes: _Axes, starts: Starts
    ) -> _HeldOut:
        """Decisions at all settings for the held-out rows; paths start from components [N] of all rows."""
        names = [name for name in axes if name not in ("strength", "weight_scale", "temperature")]
        every = itertools.product(*(axes[name] for name in names))
        settings = [dict(zip(names, values, strict=True)) for values in every]
        variants = [(varied(parts, each), starts.get(each.get("num_components"))) for each in settings]
        steps, temperatures, decisions = _steps(axes), axes.get("temperature", (0.0,)), []
        for (model, inference), _ in variants:
            inference.checked()
            for step in steps:
                at(model, *step).checked()
        for train, test in splits:
            seen, held = rows.taken(*train).sorted(parts), rows.taken(*test)
            _require_rows(seen.num_different, len(test.place))
            found = [
                decision
                for variant, start in variants
                for posterior in path(variant, None if start is None else start[train.place], steps, seen)
                for decision in self.decide(posterior, held, seen, temperatures)
            ]
            decisions.append(np.stack(found))
        shape, together = tuple(map(len, axes.values())), np.concatenate(decisions, 1)
        held = rows.taken(*map(np.concatenate, zip(*(test for _, test in splits), strict=True)))
        y = held.y.toarray() if scipy.sparse.issparse(held.y) else held.y
        scores = [self._scores(each, y, held.weights, [len(test.place) for _, test in splits]) for each in together]
        by_fold = np.array(scores).T.reshape(-1, *shape)
        return _HeldOut(together.reshape(*shape, *together.shape[1:]), y, held.weights, by_fold)

    def _scores(self, decisions: Any, y: Any, weights: Any, sizes: list[int]) -> list[float]:
        """The scores of the folds [F], which have these numbers of rows."""
        parts = [np.split(each, np.cumsum(sizes)[:-1]) for each in (self.settled(decisions, y), y, weights)]
        return [np.average(self.score_rows(own, some), weights=each) for own, some, each in zip(*parts, strict=True)]


class PathSearch(Search):
    """A search with one target for each row: the final fit starts from the components of the best setting."""

    arguments: ClassVar[tuple[str, ...]] = (
        "length_scales",
        "num_components",
        "strengths",
        "weight_scales",
        "temperatures",
    )
    prepared: Callable[..., Prepared]  # what the other base makes of X, y and weights

    def fit(
        self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Search, and fit the best setting to X [N, D], y [N] and weights [N] of at least 0.

        Parameters
        ----------
        groups : the group [N] of each row, such as its subject; it is passed to `cv`, and if `cv` is a number, each
            group stays in one fold
        """
        require_array(X, self)
        prepared = self.prepared(X, y, sample_weight)
        self.fit_posterior(*prepared, groups, self.copies(sample_weight, prepared[1]))
        return self

    def fit_posterior(
        self,
        parts: tuple[Any, Backend],
        X: Any,
        y: NDArray[Any] | None,
        weights: NDArray[np.float64] | None = None,
        groups: ArrayLike | None = None,
        copies: NDArray[np.int64] | None = None,
    ) -> None:
        """Search, then fit the best setting to all rows."""
        (model, inference), y = parts, np.asarray(y)
        if model.coding.has_classes:
            model = model.replace(classes=torch.arange(int(y.max()) + 1, device="cpu"))  # a fold may miss one
        rows = Rows(X, y, np.ones(len(y)) if weights is None else weights)
        found = self.search((model, inference), rows, groups, copies)
        self.shares_ = {member.setting[AXES[self.size].setting]: member.share for member in found.members}
        self.calibrate(found.decisions, found.y, found.weights)
        started = time.perf_counter()
        with each_once():
            if found.best.start is None:
                model, inference = varied((model, inference), found.best.setting)
                super().fit_posterior((at(model, *found.best.steps[-1]), inference), X, y, weights)
            else:
                best, *others = (_fitted((model, inference), member, rows) for member in found.members)
                self.posterior_ = best.averaged_with(others, list(self.shares_.values())) if others else best
        self.refit_time_ = time.perf_counter() - started


def _steps(axes: _Axes) -> list[Step]:
    """(strength, weight scale) along a path."""
    return list(itertools.product(axes["strength"], axes["weight_scale"]))


def _fitted(parts: tuple[Any, Backend], member: _Member, rows: Rows) -> Any:
    """The posterior of a setting, fitted to the rows with a positive weight, with values for all rows."""
    kept, parts = np.flatnonzero(rows.weights > 0), varied(parts, member.setting)
    seen = (rows if len(kept) == len(rows.y) else rows.taken(kept)).sorted(parts)
    start = None if member.start is None else member.start[kept]
    *_, posterior = path(parts, start, member.steps, seen)
    place, left_out = np.full(len(rows.y), -1), rows.X[np.delete(np.arange(len(rows.y)), kept)]
    place[kept] = seen.place
    found = posterior.over_rows(torch.from_numpy(place), posterior.checked(left_out) if left_out.shape[0] else None)
    temperature = member.setting["temperature"]
    return found.tempered(temperature) if temperature else found


def _read_groups(groups: ArrayLike, rows: Any) -> NDArray[Any]:
    given = array_like("groups", groups)
    found: NDArray[Any] = named("groups", lambda: column_or_1d(given))
    named("X and groups", lambda: check_consistent_length(rows, found))
    try:
        np.unique(found)
        is_known = not missing_in(found).any()
    except TypeError:  # names beside numbers, or beside what is missing
        is_known = False
    if not is_known:
        raise ValueError(f"groups is {shown(groups)}; expected the names of groups, of one type, none of them missing.")
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
            f"{str(error).removesuffix('.')}."
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


_DIGITS = 10
_KERNEL_SCALES = (0.03, 0.055, 0.1, 0.18, 0.3, 0.55, 1.0, 1.8, 3.0, 5.5, 10.0)  # of rows of length 1
_LENGTHS = (0.5, 1.0, 2.0)
_NUMBERS = (1, 2, 4, 8, 16)
_ROWS = 8
