"""Estimators with targets over models of partitions, latent features and topics: `Classifier` and `Regressor`.

Each is a pair (model, inference); `fit` validates the data, fits copies of both, and keeps the posterior. Both can be
searched like other hyperparameters: `model__loss__strength`, `inference`, `inference__scale`, ...

A row of weight r counts as r equal rows if r is whole; other weights interpolate. A row of weight 0 is left out, and
gets its component at the end. A fit depends on how often each row occurs, not on the order of the rows.

After Ctrl-C `fit` keeps what it had reached, with a `FitInterrupted` warning. In the fit of a clone, which all searches
of scikit-learn make, and in `ClassifierCV` and `RegressorCV` it raises KeyboardInterrupt, so that the search ends as
well.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if

from ..inference import Backend, SmallVariance, TruncationWarning
from ..inference.row_weights import weighs, weighs_losses
from ..models import ConstantColumnWarning, Data, InfiniteSVM, Logistic, Model, StudentT, TopicData
from ..models.warning import withheld
from .base import PosteriorEstimator, goes_on
from .class_weights import class_weights, whole
from .label_folds import can_be_fitted, number_of_folds
from .parts import require_units
from .paths import Rows
from .reading import read_both, read_classes, require_classes, require_labels
from .rows import SortedRows, deal, moments, sort_rows, splits_of
from .slopes import likeliest_slope, log_probabilities
from .streams import EncodedRows, classes_of, mean_squared_error, moments_of, source_of

Prepared = tuple[tuple[Any, Backend], Any, NDArray[Any], NDArray[np.float64] | None]  # parts, X, y, weights


class Classifier(ClassifierMixin, PosteriorEstimator):
    """Classification by the margin classifiers of a mixture, of latent features or of topics, with labels of any kind.

    With a topic model (`MedLDA`) X has counts, dense or sparse, and `sample_weight` has whole numbers.

    Parameters
    ----------
    model : a model with classes; None: `InfiniteSVM(loss=Logistic(), weight_scale=3.0)`, whose probabilities are those
        of logistic regressions. If there are fewer than 60 rows for each column, the scale is 3 sqrt(rows / (60
        columns)), so that many columns do not fit noise. To search over arguments of the model, pass a model
    inference : a backend of `regbayes.inference`, which has the seed. None: for topics and latent features
        `SVI(tolerance=0.03)` (with `rule="averaging"` if the loss has no expectation, such as `CrammerSinger`), else
        `SmallVariance(scale=10.0, num_restarts=1)`. Its `num_components` is then N / (15 (D + 1)) for N rows of D
        columns, at most 2 m / (D + 1), where m is the mean number of rows of all classes but the largest, at most one
        for every two different rows, and from 1 to 16. Under `class_weight` N is (sum w)^2 / sum w^2 of the weights w.
        It makes one descent: searches over settings fit often
    class_weight : weights by class, 1 for classes that are not named, or "balanced": in inverse proportion to the
        numbers of rows. With `SVI(rule="gibbs")` of a mixture they multiply the losses, as in scikit-learn. Else they
        multiply `sample_weight`, so that a row also counts more for its component. For Gibbs, NUTS and Autoguide they
        are rounded to whole numbers of at least 1
    num_folds : number of folds that choose the slope of the probabilities (see `slope_`) if the loss is not a
        likelihood, such as a hinge; each fold takes one more fit. None: no slope; "auto": 2 if `inference` is None,
        else None

    Attributes
    ----------
    posterior_ : Posterior of the fit
    slope_ : slope of the probabilities softmax(slope_ f), where f is the decision function; None: probabilities are
        those of the posterior. If the loss is a likelihood and `inference` is None, it is the maximum likelihood slope
        on the rows of the fit, if that is below 1: labels influenced the components of these rows, but new rows have
        no labels
    classes_ : sorted labels [L] of the rows with a positive weight
    n_components_ : number of occupied components, of latent features or of topics
    n_features_in_ : width of X

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> Classifier().fit(X, y).score(X, y) > 0.9
    True
    """

    classes_: NDArray[Any]
    slope_: float | None = None
    default_data: type[Any] = Data
    streams: tuple[type[Any], ...] = (Data, TopicData)

    def __init__(
        self,
        model: Model | None = None,
        inference: Backend | None = None,
        class_weight: dict[Any, float] | str | None = None,
        *,
        num_folds: int | str | None = "auto",
    ) -> None:
        super().__init__(model, inference)
        self.class_weight = class_weight
        self.num_folds = num_folds

    def defaults(self) -> tuple[Model, Backend]:
        model = InfiniteSVM(loss=Logistic(), weight_scale=3.0)
        return model, self.variational() or SmallVariance(scale=10.0, num_restarts=1)

    def require_targets(self, model: Any) -> None:
        if model.coding is None:
            name = type(model).__name__
            raise ValueError(f"model is {name}, which has no classes. Use InfiniteSVM(), or Clusterer({name}()).")
        if not model.coding.has_classes:
            raise ValueError(f"model has {model.loss!r}, a loss of real targets. Use Regressor, or Hinge().")

    def fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit copies of the model and the backend to X [N, D], labels y [N] and weights [N] of at least 0.

        X may also be the path of a Parquet or Arrow file and y the name of its column of labels, or X a source of rows
        (`regbayes.inference.rows_of`). Such rows need not fit into memory; `SVI` fits them by stochastic steps.
        """
        source = source_of(X, y, sample_weight=sample_weight, class_weight=self.class_weight)
        self.slope_ = None
        if source is not None:
            classes = self.classes_ = classes_of(source)
            return self.fit_source(
                self.parts(), EncodedRows(source, lambda y: np.searchsorted(classes, y), source.name)
            )
        prepared = self.prepared(X, y, sample_weight)
        self.slope_ = self._slope_by_folds(*prepared, self.copies(sample_weight, prepared[1]))
        self.fit_posterior(*prepared)
        model, inference = prepared[0]
        if self.inference is None and inference.kind == "objective" and model.loss.is_likelihood:
            self.slope_ = self._slope_of_fit(*prepared[1:])
        return self

    def _slope_of_fit(self, X: Any, y: NDArray[Any], weights: NDArray[np.float64] | None) -> float | None:
        """The slope below 1 that suits the rows of the fit, scored as if they were new; None if the best is at least 1.

        Under small variance the labels influence the components of the rows of the fit; new rows have no labels.
        """
        each = np.ones(len(y)) if weights is None else weights
        slope = likeliest_slope(np.asarray(self.posterior_.decision_function(X)), y, each)
        return slope if slope < 1 else None

    def _slope_by_folds(
        self,
        parts: tuple[Any, Backend],
        X: Any,
        y: NDArray[Any],
        weights: NDArray[np.float64] | None,
        copies: NDArray[np.int64],
    ) -> float | None:
        """The slope that suits rows held out; None where there is none to find, or there are too few rows."""
        number = number_of_folds("num_folds", self.num_folds, 2 if self.inference is None else None)
        if number is None or parts[0].loss.is_likelihood:
            return None
        (model, inference), rows = parts, Rows(X, y, np.ones(len(y)) if weights is None else weights)
        kept = np.flatnonzero(rows.weights > 0)
        rows, copies = rows.taken(kept), copies[kept]
        ordered = sort_rows(*rows, merge=False)
        dealt = deal(ordered, np.asarray(ordered.y), number, copies)
        if not can_be_fitted(dealt.sum(0)):
            return None
        splits = splits_of(dealt, copies, rows.weights)
        model = model.replace(classes=torch.arange(len(self.classes_), device="cpu"))  # a fold may miss one
        decisions = []
        with withheld(ConstantColumnWarning, TruncationWarning):  # the fit to all rows says it
            for train, test in splits:
                posterior = self.posterior_of((model, inference), rows.taken(*train).sorted(parts), "raise")
                decisions.append(np.asarray(posterior.decision_function(rows.X[test.place])))
        held, counted = map(np.concatenate, zip(*(test for _, test in splits), strict=True))
        return likeliest_slope(np.concatenate(decisions), rows.y[held], counted)

    @available_if(goes_on)
    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Continue with a batch of rows X [n, D] and labels y [n] by a stochastic step; the first batch is a fit.

        It needs `SVI(rule="gibbs")` and a mixture or topics. Defaults from the data, such as the scales of columns, are
        set from the first batch. Batches should be random samples of the rows, not sorted. Pass all labels as `classes`
        if the first batch lacks some; a later batch may only repeat them. `class_weight` is for `fit` alone.
        """
        if not hasattr(self, "posterior_"):
            self.fit_posterior(*self.prepared(X, y, None, classes))
            return self
        require_classes(classes, self.classes_)
        rows, labels = read_both(self, lambda: self.more_data(X), y, reset=False)
        self.go_on(rows, self._places(labels))
        return self

    def prepared(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, classes: ArrayLike | None = None
    ) -> Prepared:
        """The arguments of a fit: model and backend, rows, places of their labels in `classes_`, and weights."""
        rows, labels = read_both(self, lambda: self.fit_data(X), y)
        require_labels(labels)
        weights = self.row_weights(sample_weight, rows)
        positive = np.ones(len(labels), dtype=bool) if weights is None else weights > 0
        counted = rows if positive.all() else rows[positive]
        found, places = np.unique(labels[positive], return_inverse=True)
        parts = self._parts_for(counted, found, np.bincount(places, None if weights is None else weights[positive]))
        self.classes_ = found if classes is None else read_classes(classes)
        words = [label for label in self.classes_.tolist() if isinstance(label, str) and not label[:1].isdigit()]
        if words and parts[0].coding.ordered:
            raise ValueError(
                f"y has labels in text ({words[0]!r}), whose order in the alphabet need not be that of the classes. "
                "Number them in their order: 0, 1, 2, or '1 low', '2 high'."
            )
        if len(self.classes_) < 2:
            whose = "y has" if positive.all() else "sample_weight leaves, in the rows where it is positive,"
            raise ValueError(
                f"{whose} only one class ({self.classes_.tolist()[0]!r}); a classifier needs at least two."
            )
        if classes is None:
            index = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        else:
            index, (model, inference) = self._places(labels), parts
            parts = model.replace(classes=torch.arange(len(self.classes_), device="cpu")), inference
        return parts, rows, index, self._with_classes(weights, index, parts)

    def _places(self, labels: NDArray[Any]) -> NDArray[np.int64]:
        """Where labels [n] are among `classes_`; ValueError on one that is not."""
        if not (known := np.isin(labels, self.classes_)).all():
            extra, classes = labels[~known].tolist()[0], self.classes_.tolist()
            raise ValueError(
                f"y has the label {extra!r}, which is not among the classes {classes}. Name all of them with the first "
                "batch: partial_fit(X, y, classes=...)."
            )
        return np.searchsorted(self.classes_, labels)

    def _parts_for(self, rows: Any, labels: NDArray[Any], sizes: NDArray[Any]) -> tuple[Any, Backend]:
        """The model and the backend for rows [N, D] of classes with these labels [L] and sums of weights [L], which
        limit the components and the weight scale of the defaults."""
        (model, inference), num_columns, num_rows = self.parts(), rows.shape[1], float(sizes.sum())
        if self.inference is None and isinstance(inference, SmallVariance):
            most = min(int(self._effective(labels, sizes)) // (_ROWS * (num_columns + 1)), _MOST_COMPONENTS)
            size = (num_rows - float(sizes.max())) / max(len(sizes) - 1, 1)  # mean of all classes but the largest
            most = min(most, int(2 * size // (num_columns + 1)))  # without rows of a class a component cannot learn it
            if most > 1:  # those of equal rows would differ in their labels alone
                most = min(most, sort_rows(rows, None, None, merge=True).num_different // 2)
            inference = inference.replace(num_components=max(most, 1))
        if self.model is None:
            share = min(1.0, num_rows / (_ROWS_OF_COLUMN * num_columns))
            model = model.replace(weight_scale=model.weight_scale * share**0.5)
        return model, inference

    def _effective(self, labels: NDArray[Any], sizes: NDArray[Any]) -> float:
        """The effective number of rows, (sum w)^2 / sum w^2 (Kish 1965), of classes with these labels and sums of
        weights [L], with their `class_weight` as w."""
        if self.class_weight is None:
            return float(sizes.sum())
        factors = class_weights(self.class_weight, labels, np.arange(len(sizes)), sizes)
        factors /= factors.max()  # equal weights are then exactly 1
        return float((sizes @ factors) ** 2 / (sizes @ factors**2))

    def loss_options(self, parts: tuple[Any, Backend], rows: SortedRows) -> dict[str, Any]:
        if self.class_weight is None or not self.in_losses(parts):
            return {}
        return {"loss_weight": self._factors(rows.weights, rows.y)[rows.y]}

    def in_losses(self, parts: tuple[Any, Backend]) -> bool:
        """Whether the weights of classes multiply the losses of rows; else they multiply the weights of rows."""
        model, inference = parts
        return weighs_losses(inference, model)

    def _factors(self, weights: NDArray[np.float64] | None, index: Any) -> NDArray[np.float64]:
        """The weights [L] of the classes of rows with these places [N] among them."""
        each = np.ones(len(index)) if weights is None else weights
        return class_weights(self.class_weight, self.classes_, index, each)

    def _with_classes(
        self, weights: NDArray[np.float64] | None, index: NDArray[np.int64], parts: tuple[Any, Backend]
    ) -> NDArray[np.float64] | None:
        """The weights of rows [N], times those of their classes unless these multiply the losses; None: all 1."""
        if self.class_weight is None:
            return weights
        factors = self._factors(weights, index)
        if self.in_losses(parts):
            return weights
        model, inference = parts
        if not inference.weighs:
            factors = whole(factors, type(inference).__name__, " SVI() and SmallVariance() take them as they are.")
        elif not weighs(inference, model):
            factors = whole(factors, type(model).__name__, "")
        return factors[index] if weights is None else weights * factors[index]

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predicted labels [N], of the kind of y in the fit."""
        rows = self.new_data(X)
        return self.classes_[self.posterior_.predict(rows)]

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Class probabilities [N, L] in the order of `classes_`: softmax(slope_ f) if the fit has a `slope_`, else
        those of the posterior (its `predict_proba` says what they mean)."""
        if self.slope_ is not None:
            return np.exp(self.predict_log_proba(X))
        rows = self.new_data(X)
        found: NDArray[Any] = self.posterior_.predict_proba(rows)
        return found

    def predict_log_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Logarithms of `predict_proba` [N, L], which are always finite if the fit has a `slope_`."""
        rows = self.new_data(X)
        if self.slope_ is not None:
            found: NDArray[Any] = log_probabilities(self.slope_, self.posterior_.decision_function(rows))
            return found
        with np.errstate(divide="ignore"):
            return np.log(self.posterior_.predict_proba(rows))

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """Posterior mean scores: [N] for two classes (positive: the second of `classes_`), else [N, L]."""
        rows = self.new_data(X)
        return self.posterior_.decision_function(rows)


class Regressor(RegressorMixin, PosteriorEstimator):
    """Regression with a margin loss by the weights of a mixture, of latent features or of topics.

    The loss and the prior of the weights have fixed scales, so the model and its posterior see
    (y - target_mean_) / target_scale_; predictions of the estimator are in the units of y.

    Parameters
    ----------
    model : a model with a regression loss; None: `InfiniteSVM(loss=StudentT(df=100.0, scale=1.0))`, near a squared loss
    inference : a backend of `regbayes.inference`, which has the seed; None: `SmallVariance(num_components=1,
        num_restarts=1)`, or SVI as in `Classifier`. This default, with one component, is near ridge regression;
        `RegressorCV` tries more components

    Attributes
    ----------
    posterior_ : Posterior of the fit, in units of target_scale_
    target_mean_, target_scale_ : weighted mean and standard deviation of y; the latter is 1 if y is constant
    noise_scale_ : root mean squared error on the rows of the fit, in the units of y; for `SmallVariance` of a mixture
        the leave-one-out error (`predict_left_out` of the posterior)
    n_components_ : number of occupied components, of latent features or of topics
    n_features_in_ : width of X

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0, 1, 50)[:, None]
    >>> mean, std = Regressor().fit(X, 3 * X.ravel()).predict(X[:2], return_std=True)
    >>> mean.shape, std.shape
    ((2,), (2,))
    """

    default_data: type[Any] = Data
    streams: tuple[type[Any], ...] = (Data, TopicData)

    def defaults(self) -> tuple[Model, Backend]:
        loss = StudentT(df=100.0, scale=1.0)
        return InfiniteSVM(loss=loss), self.variational() or SmallVariance(num_components=1, num_restarts=1)

    def require_targets(self, model: Any) -> None:
        if model.coding is None or model.coding.has_classes:
            raise ValueError(
                f"model is {type(model).__name__}, which has no real targets as it is. Use "
                "InfiniteSVM(loss=EpsilonInsensitive())."
            )
        require_units(self, model)

    def fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit copies of the model and the backend to X [N, D], targets y [N] and weights [N] of at least 0.

        X may also be the path of a Parquet or Arrow file and y the name of its column of targets, or X a source of rows
        (`regbayes.inference.rows_of`). Such rows need not fit into memory; `SVI` fits them by stochastic steps, and one
        more pass finds `noise_scale_`.
        """
        source = source_of(X, y, sample_weight=sample_weight)
        if source is not None:
            self.target_mean_, self.target_scale_ = moments_of(source)
            rows = EncodedRows(source, self.standardized, source.name)
            self.fit_source(self.parts(), rows)
            self.noise_scale_ = self.target_scale_ * mean_squared_error(rows, self.posterior_.predict) ** 0.5
            return self
        prepared = self.prepared(X, y, sample_weight)
        self.fit_posterior(*prepared)
        self._measure_noise(*prepared[1:])
        return self

    @available_if(goes_on)
    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Continue with a batch of rows X [n, D] and targets y [n] by a stochastic step; the first batch is a fit.

        It needs `SVI(rule="gibbs")` and a mixture or topics. Defaults from the data, target_mean_ and target_scale_ are
        set from the first batch; noise_scale_ is that of the last batch.
        """
        if not hasattr(self, "posterior_"):
            return self.fit(X, y)
        rows, targets = read_both(self, lambda: self.more_data(X), y, y_numeric=True, reset=False)
        targets = self.standardized(targets).astype(rows.dtype)
        self.go_on(rows, targets)
        self._measure_noise(rows, targets, None)
        return self

    def prepared(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> Prepared:
        """The arguments of a fit: model and backend, rows, standardized targets and weights."""
        rows, targets = read_both(self, lambda: self.fit_data(X), y, y_numeric=True)
        parts, weights = self.parts(), self.row_weights(sample_weight, rows)
        self.target_mean_, self.target_scale_ = moments(targets, weights)
        return parts, rows, self.standardized(targets).astype(rows.dtype), weights

    def standardized(self, y: NDArray[Any]) -> NDArray[np.float64]:
        """Targets [N] in the units of the posterior."""
        scaled: NDArray[np.float64] = (y.astype(np.float64) - self.target_mean_) / self.target_scale_
        return scaled

    def _measure_noise(self, X: Any, y: NDArray[Any], weights: NDArray[np.float64] | None) -> None:
        """Of rows [N, D] at standardized targets [N]."""
        squares = (self.posterior_.predict_left_out(X, y, weights).astype(np.float64) - y) ** 2
        self.noise_scale_ = self.target_scale_ * float(np.average(squares, weights=weights)) ** 0.5

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> NDArray[Any] | tuple[NDArray[Any], NDArray[np.float64]]:
        """Posterior mean targets [N]; with `return_std` also standard deviations [N] of new targets.

            std^2 = Var f(x) + noise_scale_^2

        Var f(x) is the posterior variance of the mean function: over draws, over the components that x may have, and
        for SVI of a mixture over q(eta) (`score_std` of the posterior). `SmallVariance` has the part over components
        alone.
        """
        rows = self.new_data(X)
        found: NDArray[Any] = self.target_mean_ + self.target_scale_ * self.posterior_.predict(rows)
        if not return_std:
            return found
        spread = self.target_scale_ * np.asarray(self.posterior_.score_std(rows), dtype=np.float64)
        return found, np.hypot(spread, self.noise_scale_)


_ROWS = 15  # for each weight of a component's classifier
_MOST_COMPONENTS = 16
_ROWS_OF_COLUMN = 60  # with which weights have their whole scale
