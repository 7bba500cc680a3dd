"""`MultiTaskRegressorCV`: tasks whose settings are chosen by squared error on folds; the search is in `search`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..inference import Backend
from ..models import Model
from .multi import MultiTaskRegressor
from .paths import Rows, at
from .rows import deal, sort_rows
from .search import Search


class MultiTaskRegressorCV(Search, MultiTaskRegressor):
    """`MultiTaskRegressor` whose strength and weight scale are chosen by the squared error of held-out rows.

    The best strength depends on the noise of the targets: high for little noise, low for much. It matters most if tasks
    have few rows. If `cv` is a number, the folds share the rows of each task evenly.

    Parameters
    ----------
    model, inference : as in `MultiTaskRegressor`; if the loss has no strength, leave `strengths` out
    strengths : strengths of the loss to choose from
    weight_scales : prior standard deviations of the weights to choose from; None: 0.15 alone
    cv : as in `ClassifierCV`

    Attributes
    ----------
    strength_, weight_scale_, best_params_, best_score_ : as in `ClassifierCV`
    scores_ : 1 - mean squared error [F, S, W] by fold, strength and weight scale, in units of target_scale_; the error
        of a row with several targets is the mean over these
    refit_time_ : seconds of the fit to all rows
    posterior_, target_mean_, target_scale_, n_components_, n_features_in_ : as in `MultiTaskRegressor`

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(40, 3))
    >>> y, tasks = X[:, 0], np.arange(40) % 4
    >>> MultiTaskRegressorCV(strengths=[1.0, 4.0]).fit(X, y, tasks=tasks).strength_
    4.0
    """

    arguments = ("strengths", "weight_scales")
    elsewhere = "RegressorCV for others"
    scales: ClassVar[tuple[float, ...]] = (0.15,)
    __metadata_request__fit: ClassVar = {"tasks": True, "groups": True}

    def __init__(
        self,
        model: Model | None = None,
        inference: Backend | None = None,
        *,
        strengths: Sequence[float] = (0.5, 1.0, 2.0, 4.0),
        weight_scales: Sequence[float] | None = None,
        cv: Any = 3,
    ) -> None:
        super().__init__(model, inference)
        self.strengths = strengths
        self.weight_scales = weight_scales
        self.cv = cv

    def fit(self, X: ArrayLike, y: ArrayLike, tasks: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:
        """Search, and fit the best setting to X [N, D] and y [N, M], or to y [N] and tasks [N] from 0.

        Parameters
        ----------
        groups : as in `ClassifierCV`
        """
        (rows, targets), parts = self.read_tasks(X, y, tasks), self.parts()
        known = np.any(~np.isnan(targets), axis=1).astype(np.float64)  # rows without a target tell the folds nothing
        if not known.any():
            raise ValueError("y has no target that is not NaN. Give some.")
        found = self.search(parts, Rows(rows, targets, np.asarray(known)), groups)
        started = time.perf_counter()
        self.posterior_ = self.fitted((at(parts[0], *found.best.steps[-1]), parts[1]), rows, targets)
        self.refit_time_ = time.perf_counter() - started
        return self

    def deal(self, rows: Rows, number: int, copies: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows that have the same tasks are dealt out one after another."""
        ordered = sort_rows(*rows, merge=False)
        _, kind = np.unique(np.isnan(np.asarray(ordered.y)), axis=0, return_inverse=True)
        return deal(ordered, kind.ravel(), number, copies)

    def order(self, y: Any) -> NDArray[np.float64]:
        """The mean target of each row."""
        found: NDArray[np.float64] = np.nanmean(y, 1)
        return found

    def decide(self, posterior: Any, held: Rows, seen: Any, temperatures: tuple[float, ...]) -> list[NDArray[Any]]:
        """Targets [n, M] of all tasks, in the units of the fit."""
        return [np.asarray(posterior.predict(held.X))]

    def score_rows(self, decisions: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = 1 - np.nanmean((y - decisions) ** 2, 1)
        return found
