"""One-versus-rest hyperplanes of all components, which score all points, at fixed assignments.

    SVM_k(eta) = |eta|^2 / (2 nu^2) - sum_n r_n log phi(y_nk | eta^T a_n),     y_nk = +1 if z_n = k, else -1

r_n is the weight of a point, 1 by default. They are K scores of one set of classifiers that scores every row. R0 is the
least cost of a hyperplane that rejects every point, which is the cost of a component without points
(docs/derivations/repelling, "Small-variance limit").
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...models import host
from ...models.base import Model
from ...models.data import Data
from ..classifiers.duals import Columns, improved
from ..classifiers.minimum import estimate, minimum
from ..classifiers.scored import Scored, sides
from ..distributed.collectives import all_rows


def hyperplane_costs(points: Data, assignments: Tensor, weights: Tensor, model: Model) -> Tensor:
    """SVM_k [K] of weights [K, P, 1], in double precision; a point whose component [N] is below 0 belongs to none."""
    if not weights.numel():
        return torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
    return _sides(points, assignments, len(weights), model).value(weights.transpose(0, 2)).squeeze(0)


class Fitted(NamedTuple):
    """The last dual fit of K hyperplanes to the M points of all ranks, where the next fit starts."""

    labels: Tensor  # [M], component of each point in that fit; -1 if the component was removed
    num_steps: Tensor  # [K] int64, steps that the gap corresponds to
    tilt: Tensor  # [M, K] float64
    costs: Tensor  # [K] float64, SVM_k

    def opened(self) -> Fitted:
        """Add a component whose hyperplane is not fitted."""
        tilt = torch.cat([self.tilt, torch.full_like(self.tilt[:, :1], torch.nan)], 1)
        num_steps, costs = (torch.cat([each, each.new_zeros(1)]) for each in (self.num_steps, self.costs))
        return Fitted(self.labels, num_steps, tilt, costs)

    def kept(self, index: Tensor) -> Fitted:
        """Keep some components [K'], in increasing order."""
        label = self.num_steps.new_full((len(self.costs) + 1,), -1)  # the last entry is for points of no component
        label[index] = torch.arange(len(index))
        return Fitted(label[self.labels], self.num_steps[index], self.tilt.index_select(1, index), self.costs[index])


def fit_hyperplanes(
    points: Data, assignments: Tensor, weights: Tensor, model: Model, num_steps: int, fitted: Fitted | None = None
) -> tuple[Tensor, Tensor, Fitted | None]:
    """Weights [K, P, 1] that cost no component more than those given, and their costs [K], at assignments [N].

    If the dual is compiled and rows are few, each rank solves the duals of all rows to a gap that falls with the square
    of `num_steps`; hyperplanes already `fitted` to the same points in as many steps are kept. Otherwise `num_steps`
    majorizer steps are taken.
    """
    if not weights.numel():
        return weights, hyperplane_costs(points, assignments, weights, model), None
    has_box = model.loss.box(weights.new_ones(1, 1)) is not None
    if has_box and host.on_cpu(weights) and points.span[1] <= _MOST_ROWS:
        return _by_dual(points, all_rows(assignments, points.span), weights, model, num_steps, fitted)
    margins = _sides(points, assignments, len(weights), model)
    fit = minimum(margins, estimate(margins, weights.transpose(0, 2)), None, num_steps)
    return fit.weights.transpose(0, 2).contiguous(), fit.cost.squeeze(0), None


def _by_dual(
    points: Data, labels: Tensor, weights: Tensor, model: Model, num_steps: int, fitted: Fitted | None
) -> tuple[Tensor, Tensor, Fitted]:
    """Solve the duals, from components `labels` [M] of the points of all ranks."""
    features, times = points.together
    targets = sides(labels, torch.arange(len(weights)), features)
    if fitted is None:
        fitted = Fitted(labels, torch.zeros(len(weights), dtype=torch.int64), *Columns.of(targets)[:2])
    start = Columns(fitted.tilt, fitted.costs, fitted.num_steps >= num_steps).turned(fitted.labels, labels)
    if start.stays.all():
        return weights, fitted.costs, fitted
    found, columns = improved(
        features,
        targets,
        model.loss,
        model.weight_scale,
        weights.squeeze(2).T,
        row_weights=times,
        tolerance=(_GAP / num_steps) ** 2,
        max_passes=_PASSES * num_steps,
        start=start,
    )
    known = torch.where(start.stays, fitted.num_steps, num_steps)
    return found.T.unsqueeze(2).contiguous(), columns.costs, Fitted(labels, known, columns.tilt, columns.costs)


def _sides(points: Data, assignments: Tensor, num_components: int, model: Model) -> Scored:
    """The rows with signs: every point is a positive of its own component and a negative of all others."""
    labels = torch.arange(num_components, device=assignments.device)
    targets = sides(assignments, labels, points.features)
    return Scored(points.features, targets, model.loss, model.weight_scale, points.weights, source=points)


_GAP, _PASSES = 0.4, 10  # of one step
_MOST_ROWS = 10_000  # with more rows, majorizers come as close in less time
