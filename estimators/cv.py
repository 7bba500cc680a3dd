"""Estimators that choose strength, weight scale and number of components by folds: `ClassifierCV`, `RegressorCV`.

A search takes the paths of `paths` through its settings, on all rows but those of a fold. A number of folds deals out
the different rows in an order of their own, so that a search depends on how often each row occurs, and not on where it
stands.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import softmax
from sklearn.model_selection import check_cv

from ..inference import Backend, SmallVariance
from ..models import Model
from .base import PosteriorEstimator
from .partition import Classifier, Regressor
from .paths import Rows, at, decide, path, started, strength_of
from .rows import sort_rows

_Axes = tuple[tuple[Any, ...], ...]  # of the settings' four parts: K, S, W and T values


class _Setting(NamedTuple):
    """A point of the grid; None: the model or the backend has no such argument."""

    num_components: int | None
    strength: float | None
    weight_scale: float
    temperature: float


class _HeldOut(NamedTuple):
    """What fits without some rows say of them: M rows in all folds together, those of each fold in turn."""

    decisions: NDArray[Any]  # [K, S, W, T, M] or [K, S, W, T, M, L]
    y: NDArray[Any]  # [M]
    weights: NDArray[np.float64]  # [M]
    scores: NDArray[np.float64]  # [F, K, S, W, T]


class _PathSearch(PosteriorEstimator):
    """What both estimators add to those they derive from: `fit_posterior` searches first."""

    strengths: Sequence[float]
    weight_scales: Sequence[float]
    num_components: Sequence[int] | None
    temperatures: Sequence[float]
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
        rows, axes = Rows(X, y, each), self._axes(model, inference, len(kept))
        splits = [[part[each[part] > 0] for part in split] for split in self._splits(rows, kept)]
        found = self._hold_out((model, inference), rows, splits, axes)
        mean = found.scores.mean(0).round(_DIGITS)
        place = np.unravel_index(mean.argmax(), mean.shape)  # of equals the first: the fewest components, the coldest
        best = _Setting(*(axis[index] for axis, index in zip(axes, place, strict=True)))
        self.scores_, self.best_score_, self.best_params_ = found.scores, float(mean.max()), best._asdict()
        self.num_components_, self.strength_, self.weight_scale_, self.temperature_ = best
        self.calibrate(found.decisions[place], found.y, found.weights)
        super().fit_posterior(self._chosen((model, inference), best, axes, rows.taken(kept)), X, y, weights)
        if best.temperature:
            self.posterior_ = self.posterior_.tempered(best.temperature)

    def defaults(self) -> tuple[Any, Backend]:
        model, inference = super().defaults()
        return model, SmallVariance(scale=10.0) if isinstance(inference, SmallVariance) else inference

    def score_rows(self, decisions: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        """How good decisions [n] or [n, L] are for targets y [n]; the score of a fold is the mean."""
        raise NotImplementedError

    def calibrate(self, decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> None:
        """Take what is wanted of decisions [M] or [M, L] for rows that the fits had not seen, y [M] of them."""

    def _axes(self, model: Any, inference: Backend, num_rows: int) -> _Axes:
        """The values of each part of a setting."""
        local = isinstance(inference, SmallVariance) and inference.takes_labels(model)
        numbers: Any = self.num_components
        if numbers is None:
            numbers = [number for number in _NUMBERS if number == 1 or number * _ROWS <= num_rows]
        return (
            _values("num_components", numbers) if local else (None,),
            _values("strengths", self.strengths) if strength_of(model) else (None,),
            _values("weight_scales", self.weight_scales),
            _values("temperatures", self.temperatures) if local else (0.0,),
        )

    def _splits(self, rows: Rows, kept: NDArray[np.int64]) -> list[Any]:
        """Places of the rows to train on and of those to hold out. A number of folds deals out those kept, different
        rows in the order of y."""
        if not isinstance(self.cv, int | np.integer):
            return list(check_cv(self.cv, rows.y).split(rows.X, rows.y))
        if self.cv < 2:
            raise ValueError(f"cv is {self.cv}; expected at least 2 folds, or a splitter of scikit-learn.")
        different = sort_rows(*rows.taken(kept), merge=True)
        M = different.X.shape[0]
        fold = np.empty(M, dtype=np.int64)
        fold[np.argsort(np.asarray(different.y), kind="stable")] = np.arange(M) % self.cv
        own = fold[different.place]
        return [(kept[own != k], kept[own == k]) for k in range(min(self.cv, M))]

    def _hold_out(self, parts: tuple[Any, Backend], rows: Rows, splits: list[Any], axes: _Axes) -> _HeldOut:
        numbers, strengths, scales, temperatures = axes
        steps, decisions, scores = list(itertools.product(strengths, scales)), [], []
        for train, test in splits:
            seen, held = rows.taken(train).sorted(parts), rows.taken(test)
            found = [
                decide(posterior, held.X, temperature)
                for number in numbers
                for posterior in path(parts, number, steps, seen)
                for temperature in temperatures
            ]
            scores.append([np.average(self.score_rows(each, held.y), weights=held.weights) for each in found])
            decisions.append(np.stack(found))
        shape, together = tuple(map(len, axes)), np.concatenate(decisions, 1)
        held = rows.taken(np.concatenate([test for _, test in splits]))
        reshaped = together.reshape(*shape, *together.shape[1:])
        return _HeldOut(reshaped, held.y, held.weights, np.array(scores).reshape(-1, *shape))

    def _chosen(self, parts: tuple[Any, Backend], best: _Setting, axes: _Axes, rows: Rows) -> tuple[Any, Backend]:
        """The model and the backend of the best setting, which starts from the components that its path begins with."""
        (model, inference), number, start = parts, best.num_components, None
        if number is not None:
            start = next(path(parts, number, [(axes[1][0], axes[2][0])], rows.sorted(parts))).partition()
        return at(model, best.strength, best.weight_scale), started(inference, number, start)


class ClassifierCV(_PathSearch, Classifier):
    """`Classifier` with the strength of its loss, the scale of its weights and the number of its components chosen by
    cross-validated accuracy, and with probabilities whose slope comes from the same folds.

        p(class l | x) = softmax_l(slope_ f_l(x)),    of two classes 1 / (1 + exp(-slope_ f(x)))

    where f is the decision function and slope_ maximizes the likelihood of the labels of the rows held out (Platt 1999,
    without an intercept, so that probabilities and predictions agree). The folds of a number `cv` are stratified.

    Parameters
    ----------
    model, class_weight : as in `Classifier`; of the model a loss without a strength keeps it
    inference : as in `Classifier`; None: `SmallVariance(scale=10.0)`, whose components follow the rows more than the
        labels, or `SVI()` of topic models
    strengths : of the loss, to choose from
    weight_scales : prior standard deviations of the classifier weights, to choose from
    num_components : how many the penalty aims at, to choose from; None: 1, and 4 and 16 where there are 15 rows for
        each; of `SmallVariance` on a mixture alone
    temperatures : of the divergence by which components count for new rows (`PartitionPosterior.tempered`), to choose
        from; of `SmallVariance` on a mixture alone
    cv : number of folds, equal rows in one; or a splitter of scikit-learn, or its splits

    Attributes
    ----------
    strength_, weight_scale_, num_components_, temperature_ : those chosen, of equals the first; None or 0 where there
        is no choice. `best_params_` has them together
    scores_ : accuracies [F, K, S, W, T] by fold, number of components, strength, weight scale and temperature
    best_score_ : their mean at the best setting
    slope_ : of the probabilities
    posterior_, classes_, n_components_, n_features_in_ : as in `Classifier`

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> ClassifierCV(num_components=[1, 3]).fit(X, y).best_score_ > 0.9
    True
    """

    def __init__(
        self,
        model: Model | None = None,
        inference: Backend | None = None,
        class_weight: dict[Any, float] | str | None = None,
        *,
        strengths: Sequence[float] = (0.1, 1.0),
        weight_scales: Sequence[float] = (0.3, 1.0, 3.0),
        num_components: Sequence[int] | None = None,
        temperatures: Sequence[float] = (0.0, 1.0),
        cv: Any = 3,
    ) -> None:
        super().__init__(model, inference, class_weight)
        self.strengths = strengths
        self.weight_scales = weight_scales
        self.num_components = num_components
        self.temperatures = temperatures
        self.cv = cv

    def score_rows(self, decisions: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        return (_logits(decisions).argmax(1) == y).astype(np.float64)

    def calibrate(self, decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> None:
        self.slope_ = _slope(_logits(decisions), y, weights)

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Class probabilities [N, L] in the order of `classes_`."""
        logits = _logits(self.decision_function(X))
        found: NDArray[Any] = softmax(self.slope_ * logits, axis=1)
        return found


class RegressorCV(_PathSearch, Regressor):
    """`Regressor` with the strength of its loss, the scale of its weights and the number of its components chosen by
    the squared error of rows held out. The folds of a number `cv` are stratified by y.

    Parameters
    ----------
    model : as in `Regressor`; a loss without a strength keeps it
    inference, strengths, weight_scales, num_components, temperatures, cv : as in `ClassifierCV`

    Attributes
    ----------
    strength_, weight_scale_, num_components_, temperature_, best_params_, best_score_ : as in `ClassifierCV`
    scores_ : 1 - mean squared error / variance of y [F, K, S, W, T], as in `ClassifierCV`
    posterior_, target_mean_, target_scale_, n_components_, n_features_in_ : as in `Regressor`
    """

    def __init__(
        self,
        model: Model | None = None,
        inference: Backend | None = None,
        *,
        strengths: Sequence[float] = (1.0,),
        weight_scales: Sequence[float] = (0.1, 0.3, 1.0),
        num_components: Sequence[int] | None = None,
        temperatures: Sequence[float] = (0.0, 1.0),
        cv: Any = 3,
    ) -> None:
        super().__init__(model, inference)
        self.strengths = strengths
        self.weight_scales = weight_scales
        self.num_components = num_components
        self.temperatures = temperatures
        self.cv = cv

    def score_rows(self, decisions: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = 1 - (y - decisions.astype(np.float64)) ** 2  # y has variance 1
        return found


# -- values and probabilities ------------------------------------------------------------------------------------------


def _values(name: str, given: Any) -> tuple[Any, ...]:
    values = tuple(given) if np.iterable(given) and not isinstance(given, str) else ()
    if not values:
        raise ValueError(f"{name} is {given!r}; expected a sequence of at least one value, such as [1.0].")
    return values


def _logits(decisions: NDArray[Any]) -> NDArray[Any]:
    """A column for each class [n, L], of two classes 0 and the decision [n]."""
    return decisions if decisions.ndim == 2 else np.column_stack([np.zeros_like(decisions), decisions])


def _slope(logits: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> float:
    """The slope at which softmax(slope logits [M, L]) makes the labels y [M] likeliest; one of each class is added
    and spread over all rows, so that it stays finite where all are told apart."""
    total, L = weights.sum(), logits.shape[1]
    targets = (np.eye(L)[y] * total + 1) / (total + L)

    def uphill(slope: float) -> float:
        """Minus the derivative of the log likelihood, which rises with the slope."""
        return float(weights @ ((softmax(slope * logits, axis=1) - targets) * logits).sum(1))

    low, high = _SLOPES
    if uphill(low) >= 0:
        return low
    return high if uphill(high) <= 0 else float(brentq(uphill, low, high, rtol=1e-12))


_DIGITS = 10
_NUMBERS = (1, 4, 16)
_ROWS = 15
_SLOPES = (1e-3, 1e3)
