"""The posterior of tasks that share a binary projection: the projection, prediction, and classifiers of new tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...models.arrays import as_features, like
from ...models.base import Model
from ...models.multi_task import TaskData
from ..classifiers.duals import solve
from ..structures import Structure, register_structure
from .base import Posterior
from .binary_features import BinaryFeatures, summaries_per
from .draws import ProjectionDraw
from .scores import ScoreMixture, ScorePrediction
from .stacking import stacks


class ProjectionPosterior(BinaryFeatures, ScorePrediction, Posterior):
    """A fitted model of M tasks that share a binary projection.

    `samples` holds S draws: the projection `features` [S, D, K] (bits; by SVI probabilities), `weights` [S, K, M] and
    `input_weights` [S, P, M] of the classifiers, and hyperparameters. `ProjectionDraw` has all names. A score is linear
    in the row, f = eta^T [Z^T x; b], so that a new row needs no inference. Scores are averaged over the draws, or
    sigma(f) if the loss is a likelihood of labels.
    """

    instead = "transform(X)"
    record = ProjectionDraw

    # -- the projection ------------------------------------------------------------------------------------------------

    def transform(self, X: Any) -> Any:
        """Projected rows Z^T x [N, K] of X [N, D] under the representative draw."""
        rows = self.checked(X)
        return like(self.model.preprocessed(rows) @ self.features.to(rows), X)

    def facts(self) -> list[str]:
        """The facts that `repr` shows."""
        return [*super().facts(), f"{self.model.num_tasks} tasks"]

    # -- prediction ----------------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> Any:
        """Probabilities [N, M] of the larger label in each task; of ordered classes [N, M, L], of each class.

        With a logistic loss these are posterior predictive, the mean of sigma(f) over the draws; SVI has one draw, with
        the means of projection and classifiers. A hinge is not a likelihood: the values are then its pseudo-likelihood
        at the posterior mean score, normalized over the two labels, and not calibrated.
        """
        found: Any = super().predict_proba(X)
        return found[..., 1] if found.shape[-1] == 2 else found

    def fit_task(self, X: Any, y: Any, *, tolerance: float = 1e-4) -> NewTask:
        """The classifier, or regression, of a new task from its rows X [n, D] and targets y [n]; the projection stays.

        Under each draw of the projection it is the minimum of |eta|^2 / (2 nu^2) - sum_n log phi(y_n | f_n), by duals;
        its scores are averaged.

        Parameters
        ----------
        X, y : rows and targets; labels are those of the model
        tolerance : the relative duality gap at which to stop

        Raises
        ------
        NotImplementedError    if the cost has no known conjugate.
        """
        rows, model = self.checked(X), self.model
        targets = model.coding.each.encode(y, rows).squeeze(1)
        known = ~targets.isnan()
        if not known.any():
            raise ValueError(
                "y has no target: all of them are missing. A new task needs one row whose target is known."
            )
        projected, inputs = model.preprocessed(rows[known]), model.features(rows[known])
        found = []
        for features in self.samples["features"].to(rows):
            seen = torch.cat([projected @ features, inputs], 1)
            weights = solve(
                seen, targets[known].unsqueeze(1), model.loss.unmasked, model.weight_scale, tolerance=tolerance
            ).weights.squeeze(1)
            K = features.shape[1]
            found.append(torch.cat([features @ weights[:K], weights[K:]]))
        mean = torch.stack(found).mean(0)
        width = projected.shape[1]
        return NewTask(self, mean[:width], mean[width:])

    def checked(self, X: Any) -> Tensor:
        """The rows [N, D] of a user's argument."""
        rows = as_features(X, num_features=self.model.num_features, like=self.samples["weights"])
        if rows.is_sparse:
            raise ValueError(f"X is sparse; {type(self.model).__name__} needs dense rows: pass X.toarray().")
        return rows

    def rehearse(self) -> None:
        weights = self.samples["weights"]
        rows = weights.new_zeros(0, self.model.num_features)
        projected = self.model.preprocessed(rows) @ self.samples["features"][0].to(weights) @ weights[0]
        scores = projected + self.model.features(rows) @ self.samples["input_weights"][0]
        if scores.shape[1] != self.model.num_tasks or self.model.coding.each.num_scores != 1:
            raise ValueError(f"there are {scores.shape[1]} scores for {self.model.num_tasks} tasks")
        self.model.coding.choose(self.model.coding.decisions(scores, self.model.loss))

    @cached_property
    def coefficients(self) -> Tensor:
        """E Z eta [D, M]: the coefficients of the tasks' scores for preprocessed rows."""
        total = torch.zeros_like(self.samples["features"][0], dtype=self.samples["weights"].dtype)
        total = total.new_zeros(len(total), self.model.num_tasks)
        for coefficients in self._all_coefficients():
            total += coefficients
        return total / len(self.samples["weights"])

    def _all_coefficients(self) -> Any:
        for features, weights in zip(self.samples["features"], self.samples["weights"], strict=True):
            yield features.to(weights) @ weights

    def score_mixtures(self, X: Tensor, *, spread: bool = False) -> Iterator[ScoreMixture]:
        projected, inputs = self.model.preprocessed(X), self.model.features(X)
        for coefficients, input_weights in zip(self._all_coefficients(), self.samples["input_weights"], strict=True):
            scores = projected @ coefficients + inputs @ input_weights
            yield ScoreMixture(scores.new_zeros(len(scores), 1), scores.unsqueeze(1), None)

    def _mean(self, X: Tensor) -> Tensor:
        """Means over the draws of probabilities [N, M, L], or of scores [N, M] (one product for all draws)."""
        if self.averages_probabilities:
            return super()._mean(X)
        input_weights = self.samples["input_weights"].mean(0)
        return self.model.preprocessed(X) @ self.coefficients + self.model.features(X) @ input_weights


@dataclass(frozen=True)
class NewTask:
    """A task that was added to a fitted model: its scores are f = coefficients . x + input_weights . b."""

    posterior: ProjectionPosterior
    coefficients: Tensor  # [D]
    input_weights: Tensor  # [P]

    def decision_function(self, X: Any) -> Any:
        """Scores [N] (positive: the larger label), or targets of a regression loss, of rows [N, D]."""
        return like(self._decision(X), X)

    def predict(self, X: Any) -> Any:
        """Labels [N] in the user's own values, or real targets."""
        return like(self.posterior.model.coding.choose(self._decision(X)), X)

    def _decision(self, X: Any) -> Tensor:
        rows, model = self.posterior.checked(X), self.posterior.model
        scores = model.preprocessed(rows) @ self.coefficients + model.features(rows) @ self.input_weights
        found: Tensor = model.coding.decisions(scores, model.loss)
        return found


def _state_size(model: Model, data: TaskData, number: int) -> int:
    """The numbers of bits and weights."""
    return number * (data.X.shape[1] + data.num_tasks)


register_structure(
    Structure(
        "projections", TaskData, ProjectionPosterior, stacks(ProjectionDraw), summaries_per("dimension"), _state_size
    )
)
