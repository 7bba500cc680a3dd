"""Estimators of many labels or tasks at once: `MultiLabelClassifier` and `MultiTaskRegressor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import logit
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import Tags, check_consistent_length, column_or_1d
from sklearn.utils.metaestimators import available_if

from ..inference import SVI, Backend, MultiLabelPosterior, ProjectionPosterior, TruncationWarning
from ..inference.posterior.multi_label import HeldOut
from ..models import (
    BNMC,
    EpsilonInsensitive,
    LabelData,
    Model,
    MultiTaskInfiniteLatentSVM,
    PrincipalDirections,
    TaskData,
    by_task,
)
from ..models.numbers import as_tensor
from ..models.warning import warn, withheld
from .base import NothingLearntWarning, PosteriorEstimator, goes_on
from .label_folds import can_be_fitted, deal_rows, number_of_folds, taught
from .label_sets import is_matrix, missing_labels, with_holes
from .parts import require_units
from .reading import named, read_classes, read_targets, require_classes, require_labels
from .rows import moments_of_tasks, sort_rows


class _TaskEstimator(PosteriorEstimator):
    """The base of both estimators: one fit to targets [N, M] of M tasks, NaN where a row has none."""

    posteriors: tuple[type[Any], ...] = (ProjectionPosterior,)
    accepted = "a model of many tasks"
    default_data: type[Any] = TaskData

    def fitted(self, parts: tuple[Any, Backend], X: Any, targets: Any, *, held_out: bool = False) -> Any:
        """The posterior of X [N, D], dense or sparse, and targets [N, M]; rows are put in a canonical order.

        A fit with `held_out` rows serves calibration and must be complete: Ctrl-C is raised.
        """
        model, inference = parts
        rows = sort_rows(X, targets.astype(X.dtype), None, merge=False)
        # the default stops before components unite
        quiet = [TruncationWarning] if held_out or self.model is None else []
        with withheld(*quiet):
            posterior = inference.fit(model, rows.X, rows.y, on_interrupt="raise" if held_out else self.on_interrupt)
        if isinstance(posterior, MultiLabelPosterior):
            posterior = posterior.over_rows(torch.from_numpy(rows.place))
        elif not posterior.num_latent_features:
            warn(
                "No feature of the projection is in use, so that tasks share nothing. Fit by SVI(), to more rows, or "
                "with a larger concentration.",
                NothingLearntWarning,
            )
        return posterior


class MultiLabelClassifier(ClassifierMixin, MultiOutputMixin, _TaskEstimator):
    """Classification with label sets, by `BNMC` (a mixture of rows and label sets, and a classifier for each label) or
    by `MultiTaskInfiniteLatentSVM` (each label is a task, and tasks share a binary projection of X).

    y is a matrix [N, L] of 0 and 1, with NaN or -1 for a missing label, or a sparse matrix, without missing labels; or
    a vector [N] with one label for each row, of any kind (NaN or None: missing; -1 is a class). A vector of more than
    two classes gives a task for each class, and the class with the highest score is predicted. A column [N, 1] of
    labels other than 0 and 1 is read as a vector, with scikit-learn's warning. X may be sparse for `BNMC` with a
    likelihood and a feature map for sparse rows, such as `MultinomialDirichlet` and `PrincipalDirections`. `fit` takes
    no `sample_weight`.

    A label is predicted if its probability is above `threshold_`: half of the highest micro-F1 that the folds reach,
    which is below one half if labels are rare. If the folds do not show that this threshold is better, it is one half.
    `fit` warns if it would predict no label for any of its rows.

    Parameters
    ----------
    model : a model of label sets or of many tasks. None: `BNMC()`; if X has more than 150 columns, or more columns than
        rows, its classifiers see 150 principal directions (`PrincipalDirections(150, scaling=0.5)`,
        `weight_scale=3.0`), or with at most 400 rows all directions
    inference : a backend of `regbayes.inference`, which has the seed; None: `SVI(tolerance=0.03)`
    cv : number of folds that calibrate the probabilities of a model of label sets (`calibrated_by` of the posterior)
        and choose the threshold; each fold takes one more fit. "auto": 5 for at most 1,000 rows, since half
        of so few rows says little about a rare label, else 2. None, or too few rows for folds: probabilities are those
        of the posterior. For models of many tasks there are no folds

    Attributes
    ----------
    posterior_ : ProjectionPosterior or MultiLabelPosterior of the fit, calibrated
    threshold_ : the probability above which any label of a matrix y is predicted; one half without folds
    classes_ : sorted labels [L] of a vector y, or the numbers 0..L-1 of the columns of a matrix
    n_components_ : number of occupied components, or of features of the projection. The default inference stops before
        duplicate components are merged, so that this number is near the truncation; with `inference=SVI()` it is
        meaningful
    n_features_in_ : width of X

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> X, Y = make_multilabel_classification(n_classes=3, random_state=0)
    >>> MultiLabelClassifier().fit(X, Y).predict(X[:2]).shape
    (2, 3)
    """

    posteriors: tuple[type[Any], ...] = (ProjectionPosterior, MultiLabelPosterior)
    accepted = "a model of many tasks or of label sets"
    default_data = LabelData
    streams: tuple[type[Any], ...] = (LabelData,)
    classes_: NDArray[Any]

    def __init__(
        self, model: Model | None = None, inference: Backend | None = None, *, cv: int | str | None = "auto"
    ) -> None:
        super().__init__(model, inference)
        self.cv = cv

    def defaults(self) -> tuple[Any, Backend]:
        return BNMC(), SVI(tolerance=_TOLERANCE)

    def parts_for(self, X: Any) -> tuple[Any, Backend]:
        """Model and backend; a default model gets the feature map that suits the number of rows and columns [N, D]."""
        model, inference = self.parts()
        if self.model is None and X.shape[1] > min(X.shape[0], _MOST_DIRECTIONS):
            number = X.shape[0] if X.shape[0] <= _WHOLE_ROWS else _MOST_DIRECTIONS
            directions = PrincipalDirections(number, scaling=0.5)
            model = model.replace(feature_map=directions, weight_scale=_WIDE_SCALE)
        return model, inference

    def require_targets(self, model: Any) -> None:
        if model.coding is None or not model.coding.has_classes:
            raise ValueError(f"model has {model.loss!r}, a loss of real targets. Use MultiTaskRegressor, or Hinge().")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit copies of the model and the backend to X [N, D] and y [N, L] of 0 and 1, or labels y [N]."""
        rows = self.fit_data(X)
        targets, parts = self.read_labels(rows, y, None), self.parts_for(rows)
        self.fit_and_calibrate(parts, rows, targets, list(self._by_folds(parts, rows, targets)))
        return self

    def fit_and_calibrate(self, parts: tuple[Any, Backend], rows: Any, targets: Any, held_out: list[HeldOut]) -> None:
        """Fit to rows [N, D] and targets [N, C]; scores of held-out rows calibrate probabilities and the threshold."""
        posterior, self.threshold_ = self.fitted(parts, rows, targets), 0.5
        self.posterior_ = posterior.calibrated_by(held_out) if held_out else posterior
        if held_out and self.has_matrix:
            self.threshold_ = self.posterior_.threshold_by(held_out)
        if self.has_matrix and not (self._decisions(rows) > 0).any():
            warn(
                "No label is predicted of any row of the fit. Choose labels by predict_proba, or by "
                "posterior_.predict(X, top_k=1); fit with folds (cv=2), or with a larger weight_scale.",
                NothingLearntWarning,
            )

    @available_if(goes_on)
    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Continue with a batch of rows X [n, D] and y [n, L] of 0 and 1, or labels y [n]; the first batch is a fit.

        It needs `BNMC` and `SVI`. Pass all labels of a vector y as `classes` if the first batch lacks some; a later
        batch may only repeat them. There are no folds: probabilities keep the calibration of an earlier `fit`.
        """
        first = not hasattr(self, "posterior_")
        rows = self.fit_data(X) if first else self.more_data(X)
        if first:
            targets = self.read_labels(rows, y, classes)
            require_classes(classes, self.classes_)
            self.posterior_, self.threshold_ = self.fitted(self.parts_for(rows), rows, targets), 0.5
        else:
            require_classes(classes, self.classes_)
            targets = self.read_labels(rows, y, None if self.has_matrix else self.classes_, first=False)
            self.go_on(rows, targets.astype(rows.dtype))
        return self

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Share of rows whose known labels are all predicted correctly; rows without a known label do not count.

        In `cross_val_score` and searches y may have -1 with any `cv`, but NaN only with folds that you pass, such as
        `cv=KFold(5)`.
        """
        predicted, labels = self.predict(X), self._labels(y)
        labels = labels.toarray() if scipy.sparse.issparse(labels) else labels
        labels = with_holes(labels) if self.has_matrix else labels
        missing = missing_labels(labels)
        named("X and y", lambda: check_consistent_length(predicted, labels))
        sample_weight = self.row_weights(sample_weight, predicted)
        if not missing.any():
            return named("y", lambda: float(accuracy_score(labels, predicted, sample_weight=sample_weight)))
        known = ~(missing.all(1) if missing.ndim == 2 else missing)
        labels = np.where(missing, predicted.reshape(labels.shape), labels)[known]
        weights = None if sample_weight is None else sample_weight[known]
        return named("y", lambda: float(accuracy_score(labels, predicted[known], sample_weight=weights)))

    @property
    def has_matrix(self) -> bool:
        """Whether the y of the fit is a matrix, with a column for each label."""
        return self._matrix

    def _labels(self, y: Any) -> Any:
        """Labels [N] or [N, L] that a user gives, NaN where one is missing; ValueError on those that are none."""
        labels = read_targets(self, y, accept_sparse="csr", dtype=None)
        if scipy.sparse.issparse(labels) and (missing_labels(labels.data) | (labels.data == -1)).any():
            raise ValueError(
                "y is sparse and has NaN or -1; the labels of a sparse y are all known. Pass y.toarray() with NaN "
                "where a label is missing."
            )
        return labels

    def _by_folds(self, parts: tuple[Any, Backend], X: Any, targets: Any) -> Iterator[HeldOut]:
        """For each fold the scores of its rows by a fit to the other rows; none if there is nothing to calibrate."""
        number = number_of_folds("cv", self.cv, _MANY_FOLDS if X.shape[0] <= _FEW_ROWS else 2)
        if number is None or not self.is_of(LabelData):
            return
        dealt = deal_rows(X, targets, number)
        for held in dealt.T.astype(bool) if can_be_fitted(dealt.sum(0)) else ():
            seen = ~held
            posterior = self.fitted(parts, X[seen], targets[seen], held_out=True)
            yield posterior.held_out(X[held], taught(targets[held], targets[seen]))

    def read_labels(self, X: Any, y: Any, classes: ArrayLike | None, *, first: bool = True) -> Any:
        """The user's labels as 0 and 1 [N, L], NaN where missing; sparse if they and X [N, D] are sparse.

        `classes`, if given, are all labels. Later batches must have the form of the `first` one.
        """
        labels = self._labels(y)
        named("X and y", lambda: check_consistent_length(X, labels))
        if scipy.sparse.issparse(labels) and not scipy.sparse.issparse(X):
            labels = labels.toarray()
        missing = missing_labels(labels)
        known = labels[~missing] if missing.any() else labels
        require_labels(known)
        if first:
            self._matrix = is_matrix(labels, classes)
        return self._bits(labels, first) if self.has_matrix else self._classes(labels, classes)

    def _bits(self, labels: Any, first: bool) -> Any:
        """A matrix [N, L], NaN where it has -1; ValueError unless it is one, of 0, 1, -1 and NaN."""
        if labels.ndim == 1 or not (first or labels.shape[1] == len(self.classes_)):
            raise ValueError(f"y has shape {labels.shape}; expected a matrix [n, {len(self.classes_)}], as in the fit.")
        labels = with_holes(labels)
        values = labels.data if scipy.sparse.issparse(labels) else labels
        wrong = ~np.isin(values, (0, 1)) & ~missing_labels(values)
        if wrong.any():
            raise ValueError(
                f"y has the value {values[wrong][0]}; expected a matrix of 0 and 1, a column for each label, NaN or "
                "-1 where one is missing."
            )
        self.classes_ = np.arange(labels.shape[1])
        return labels

    def _classes(self, labels: Any, classes: ArrayLike | None) -> NDArray[Any]:
        """0 and 1 [N, L] of a vector of labels, a column for each of more than two classes."""
        labels = labels.toarray() if scipy.sparse.issparse(labels) else labels
        labels = column_or_1d(labels, warn=labels.ndim == 2)
        known = ~missing_labels(labels)
        if classes is None:
            self.classes_ = np.unique(labels[known])
        else:
            self.classes_ = read_classes(classes)
        if len(self.classes_) < 2:
            found = (
                f"only one class ({self.classes_.tolist()[0]!r})" if len(self.classes_) else "no label that is known"
            )
            raise ValueError(f"y has {found}; a classifier needs at least two.")
        if not np.isin(labels[known], self.classes_).all():
            extra = labels[known & ~np.isin(labels, self.classes_)].tolist()[0]
            raise ValueError(f"y has the label {extra!r}, which is not among the classes {self.classes_.tolist()}.")
        index: Any = np.zeros(len(labels), dtype=np.int64)
        index[known] = np.searchsorted(self.classes_, labels[known])
        several = len(self.classes_) > 2
        found = index[:, None] == np.arange(len(self.classes_)) if several else index[:, None]
        return np.where(known[:, None], found.astype(float), np.nan)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """0 and 1 [N, L] for each label, or labels [N] if y in the fit was a vector."""
        decision = self.decision_function(X)
        if self.has_matrix:
            return (decision > 0).astype(int)
        found: NDArray[Any] = self.classes_[decision.argmax(1) if decision.ndim == 2 else (decision > 0).astype(int)]
        return found

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Probabilities [N, L] of each label, or of the classes if the fit had one label for each row.

        For a model of label sets they are calibrated by the folds of `cv`. For many tasks they are posterior predictive
        probabilities with a logistic loss, and not calibrated with a hinge. For a vector y of more than two classes
        the probabilities of the labels are divided by their sum.
        """
        rows = self.new_data(X)
        found: NDArray[Any] = self.posterior_.predict_proba(rows)
        if self.has_matrix:
            return found
        if found.shape[1] == 1:
            return np.hstack([1 - found, found])
        return found / found.sum(1, keepdims=True)

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """Scores [N, L] of each label, positive where it is predicted: posterior mean scores, or log odds minus those
        of `threshold_`; [N] for two classes."""
        scores = self._decisions(self.new_data(X))
        return scores.ravel() if scores.shape[1] == 1 and not self.has_matrix else scores

    def _decisions(self, rows: Any) -> NDArray[Any]:
        """The scores [N, L] of rows that were read."""
        found: NDArray[Any] = self.posterior_.decision_function(rows) - logit(self.threshold_)
        return found


_TOLERANCE = 0.03
_MANY_FOLDS, _FEW_ROWS = 5, 1000
_MOST_DIRECTIONS = 150
_WHOLE_ROWS = 400  # whose own space has so few directions that rare labels may have them all
_WIDE_SCALE = 3.0  # of log odds of rows whose mean square length is 1: from 0.05 to 0.95


class MultiTaskRegressor(MultiOutputMixin, RegressorMixin, _TaskEstimator):
    """Regressions that share a binary projection of X, one for each task.

    y is a matrix [N, M] with a column for each task, NaN where a row has no target; or a vector [N], with the task of
    each row in `tasks`. Tasks may have different units: the model and its posterior see (y - target_mean_) /
    target_scale_; predictions are in the units of y. `fit` takes no `sample_weight`.

    Parameters
    ----------
    model : a model of many tasks with a regression loss; None:
        `MultiTaskInfiniteLatentSVM(loss=EpsilonInsensitive(), weight_scale=0.15)`, since tasks have few rows; a higher
        strength of the loss suits targets with little noise (`MultiTaskRegressorCV` chooses it)
    inference : a backend of `regbayes.inference`, which has the seed; None: `SVI()`

    Attributes
    ----------
    posterior_ : ProjectionPosterior of the fit, in units of target_scale_
    target_mean_, target_scale_ : mean and standard deviation [M] of the targets of each task. For tasks of few rows
        they are shrunk towards those of all tasks: the more, the better chance explains the difference
    n_components_ : number of features of the projection
    n_features_in_ : width of X

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(40, 3))
    >>> y, tasks = X[:, 0], np.arange(40) % 2
    >>> MultiTaskRegressor().fit(X, y, tasks=tasks).predict(X, tasks=tasks).shape
    (40,)
    """

    sparse_models = ""
    # tasks go with their rows wherever scikit-learn routes metadata
    __metadata_request__fit: ClassVar = {"tasks": True}
    __metadata_request__predict: ClassVar = {"tasks": True}
    __metadata_request__score: ClassVar = {"tasks": True}

    def defaults(self) -> tuple[Any, Backend]:
        return MultiTaskInfiniteLatentSVM(loss=EpsilonInsensitive(), weight_scale=0.15), SVI()

    def require_targets(self, model: Any) -> None:
        if model.coding is None or model.coding.has_classes:
            raise ValueError(
                f"model is {type(model).__name__}, which has no real targets as it is. Use "
                "MultiTaskInfiniteLatentSVM(loss=EpsilonInsensitive()), or MultiLabelClassifier."
            )
        require_units(self, model)

    def fit(self, X: ArrayLike, y: ArrayLike, tasks: ArrayLike | None = None) -> Self:
        """Fit copies of the model and the backend to X [N, D] and y [N, M], or to y [N] and tasks [N] from 0."""
        rows, targets = self.read_tasks(X, y, tasks)
        self.posterior_ = self.fitted(self.parts(), rows, targets)
        return self

    def read_tasks(self, X: ArrayLike, y: ArrayLike, tasks: ArrayLike | None) -> tuple[Any, NDArray[np.float64]]:
        """Rows [N, D] and targets [N, M] of a fit, in the units of each task."""
        rows = self.fit_data(X)
        targets = read_targets(self, y, dtype=np.float64)
        named("X and y", lambda: check_consistent_length(rows, targets))
        self._one = targets.ndim == 1 and tasks is None
        if tasks is not None:
            targets = by_task(targets, self._tasks(tasks, rows))
        targets = targets.reshape(len(rows), -1)
        self.target_mean_, self.target_scale_ = moments_of_tasks(targets)
        return rows, (targets - self.target_mean_) / self.target_scale_

    def predict(self, X: ArrayLike, tasks: ArrayLike | None = None) -> NDArray[Any]:
        """Posterior mean targets [N, M] of all tasks, or [N] of the task of each row; [N] if y was one vector."""
        rows = self.new_data(X)
        standard: NDArray[Any] = self.posterior_.predict(rows)
        found = (self.target_mean_ + self.target_scale_ * standard).astype(standard.dtype)
        if tasks is None:
            return found.ravel() if self._one else found
        return found[np.arange(len(found)), self._tasks(tasks, rows, found.shape[1])]

    def score(
        self, X: ArrayLike, y: ArrayLike, tasks: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """R^2, mean over tasks, of y [N, M] (NaN where a row has no target) or of y [N] and tasks [N]; rows may have
        weights [N]. A task with fewer than two known targets does not count; the result is NaN if no task has two.

        In a search of scikit-learn pass y as a matrix, `by_task(y, tasks)`, or let the search pass the tasks on:
        `sklearn.set_config(enable_metadata_routing=True)`. The rows of each fit must have all tasks:
        `cv=list(StratifiedKFold(5).split(X, tasks))`.
        """
        predicted = self.predict(X)
        predicted = predicted.reshape(len(predicted), -1)
        targets = self._targets(y, tasks, predicted)
        weights = self.row_weights(sample_weight, predicted)
        known = ~np.isnan(targets)
        found = [
            r2_score(targets[own, m], predicted[own, m], sample_weight=None if weights is None else weights[own])
            for m, own in enumerate(known.T)
            if own.sum() > 1
        ]
        return float(np.mean(found)) if found else np.nan

    def _targets(self, y: ArrayLike, tasks: ArrayLike | None, predicted: NDArray[Any]) -> NDArray[np.float64]:
        """The targets [N, M] of rows to score, beside what is predicted [N, M]; ValueError if y has another shape."""
        targets: NDArray[np.float64] = read_targets(self, y, dtype=np.float64)
        named("X and y", lambda: check_consistent_length(predicted, targets))
        M = predicted.shape[1]
        if tasks is not None:
            return np.asarray(by_task(targets, self._tasks(tasks, predicted, M), M))
        if targets.size != predicted.size:
            raise ValueError(
                f"y has shape {targets.shape}; expected {predicted.shape}, a target for each task, or the task "
                "of each row in tasks=, which searches pass on under sklearn.set_config(enable_metadata_routing=True)."
            )
        return targets.reshape(predicted.shape)

    def _tasks(self, tasks: ArrayLike, X: NDArray[Any], number: int | None = None) -> NDArray[np.int64]:
        """The task [N] of each row of X [N, D], among `number` tasks if they are known."""
        index = as_tensor("tasks", tasks, " Number named tasks: np.unique(tasks, return_inverse=True)[1].").numpy()
        if index.shape != (len(X),) or index.dtype.kind not in "iu":
            raise ValueError(
                f"tasks has shape {index.shape} and dtype {index.dtype}; expected [{len(X)}], an integer from 0 for "
                "each row of X."
            )
        wrong = index[(index < 0) | (index >= (np.inf if number is None else number))]
        if wrong.size:
            permitted = "integers from 0" if number is None else f"the tasks of the fit, 0 to {number - 1}"
            raise ValueError(f"tasks has {wrong[0]}; expected {permitted}.")
        return index.astype(np.int64)
