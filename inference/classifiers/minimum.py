"""Point estimates of classifiers, for every structure and every loss: descent on their ridge and their losses.

    cost_kc(eta) = |eta_kc|^2 / (2 nu^2) - sum_{n of k} r_n log phi(y_nc | eta_kc . a_n)

Steps are halfway houses of two kinds. A loss that is made of lines and parabolas, or a joint hinge, has a dual that is
quick (`duals`). For any other one, `log_factor` alone included, a step goes to the minimum of the quadratic
`Loss.majorize` at the present scores. Either ends where the cost is no higher: the way there is cut to a quarter until
it is not, since majorizers keep slacks away from zero, and some touch the loss but cross it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ...models import scores as linear
from ...models.losses.base import Loss, PseudoObservation
from ..distributed.collectives import all_sum
from .duals import joint_hinge, solve
from .ridge import ridge_means, segments, soft_means


class DualLimits(NamedTuple):
    """Where a dual stops."""

    tolerance: float  # relative duality gap
    max_passes: int


class Estimate(NamedTuple):
    """Classifiers on their way to the minimum."""

    weights: Tensor  # [K, P, C]
    scores: Tensor  # [N, C]
    cost: Tensor  # [K, C] float64; [K, 1] where the scores of all classes meet in one factor
    tilt: Tensor  # [N, C] of the last dual, from which the next one starts
    gap: Tensor  # [] float64 of the last dual, as a fraction of its objective; NaN where there was none


@dataclass(frozen=True)
class RidgeCost:
    """The cost of classifiers: either one set of them scores all rows, or each row has an owner whose set scores it."""

    features: Tensor  # a [N, P]
    targets: Tensor  # y [N, C]; NaN for a `Masked` loss
    loss: Loss
    weight_scale: float  # nu
    row_weights: Tensor | None = None  # r [N] > 0; None: each row counts once
    owner: Tensor | None = None  # [N] int64 in 0..K-1; None: K is 1
    num_owners: int = 1  # K

    @property
    def has_quick_dual(self) -> bool:
        """Whether the dual of the loss takes a few passes."""
        return joint_hinge(self.loss) is not None or self.loss.box(self.targets) is not None

    def counted(self, values: Tensor) -> Tensor:
        """What belongs to the rows, [N, C], times their weights."""
        return values if self.row_weights is None else values * self.row_weights.to(values.dtype).unsqueeze(1)

    def scores(self, weights: Tensor) -> Tensor:
        """f [N, C] under weights [K, P, C]."""
        if self.owner is None:
            return self.features @ weights[0]
        return own_scores(self.features, weights, self.owner)

    def cost(self, weights: Tensor, scores: Tensor) -> Tensor:
        """[K, C] float64 of weights [K, P, C] and their scores [N, C]; [K, 1] where the scores meet."""
        losses = self.counted(-self.loss.log_factor(scores, self.targets))
        ridge = weights.double().square().sum(1) / (2 * self.weight_scale**2)
        return all_sum(self._sums(losses)) + (ridge.sum(1, keepdim=True) if self.loss.meets else ridge)

    def value(self, weights: Tensor) -> Tensor:
        """The cost [K, C] of weights [K, P, C]."""
        return self.cost(weights, self.scores(weights))

    def at(self, weights: Tensor, tilt: Tensor | None = None) -> Estimate:
        """Where a descent starts: weights [K, P, C], and tilts [N, C], zero if there are none."""
        scores = self.scores(weights)
        nothing = torch.full((), torch.nan, dtype=torch.float64, device=weights.device)
        tilt = torch.zeros_like(scores) if tilt is None else tilt
        return Estimate(weights, scores, self.cost(weights, scores), tilt, nothing)

    def majorizer_minimum(self, fit: Estimate, columns: slice, width: float = 0.0) -> Tensor:
        """Weights [K, P, C] with `columns` at the minimum of the quadratics above the losses around the scores.

        `width` blurs the scores, in units of the targets, if the loss has an expectation: a row on the kink of a hinge
        has a quadratic so steep that it would hold its classifier there.
        """
        reference = self.loss.reference(fit.scores, self.targets, columns)
        shifted, target = fit.scores[:, columns] - reference, self.targets[:, columns]
        if width and self.loss.has_expectation:
            observed = self.loss.expect(shifted, (width * self.target_size()).square().expand_as(shifted), target)
        else:
            observed = self.loss.majorize(shifted, target)
        precision = observed.precision.expand_as(shifted)
        found = fit.weights.clone()
        found[:, :, columns] = self._means(PseudoObservation(precision, observed.shift + precision * reference))
        return found

    def descended(self, fit: Estimate, target: Tensor) -> Estimate:
        """The largest share of the way to other weights [K, P, C] by which no cost rises: 1, 1/4, 1/16 and so on."""
        reach, found = self.scores(target), torch.zeros_like(fit.cost, dtype=torch.bool)
        weights, scores, cost = fit.weights, fit.scores, fit.cost
        moved, moved_scores = target, reach
        for power in range(_NUM_SHARES):
            if power:
                share = 0.25**power
                moved, moved_scores = torch.lerp(fit.weights, target, share), torch.lerp(fit.scores, reach, share)
            moved_cost = self.cost(moved, moved_scores)
            lower = ~found & (moved_cost <= fit.cost)  # not so where a number is not finite
            if not power and all_found(lower):
                return fit._replace(weights=moved, scores=moved_scores, cost=moved_cost)
            rows = lower if self.owner is None else lower[self.owner]
            weights = torch.where(lower.unsqueeze(1), moved, weights)
            scores, cost = torch.where(rows, moved_scores, scores), torch.where(lower, moved_cost, cost)
            found = found | lower
            if all_found(found):
                break
        return fit._replace(weights=weights, scores=scores, cost=cost)

    def _means(self, observed: PseudoObservation) -> Tensor:
        """Ridge regressions [K, P, C] on pseudo-observations [N, C]."""
        if self.owner is not None:
            precision, shift = map(self.counted, observed)
            K, nu = self.num_owners, self.weight_scale
            return ridge_means(self.features, precision, shift, self.owner, num_components=K, weight_scale=nu)
        times = self.counted(torch.ones_like(observed.precision[:, :1]))
        precision, shift = (part.unsqueeze(1) for part in observed)
        return soft_means(self.features, precision, shift, times, weight_scale=self.weight_scale)

    def _sums(self, values: Tensor) -> Tensor:
        """Sums [K, C] float64 over the rows of each owner, of values [N, C]; the host waits for no device."""
        if self.owner is None:
            return values.sum(0, keepdim=True, dtype=torch.float64)
        if values.is_cuda:
            members = self.owner.unsqueeze(1) == torch.arange(self.num_owners, device=values.device)
            return members.double().T @ values.double()
        columns = [torch.bincount(self.owner, column, self.num_owners) for column in values.double().T]
        return torch.stack(columns, 1) if columns else values.new_zeros(self.num_owners, 0, dtype=torch.float64)

    def target_size(self) -> Tensor:
        """Mean |y| [] of the known targets, 1 of signs."""
        if self.loss.target != "real":
            return self.targets.new_ones(())
        known = all_sum(self.counted((~self.targets.isnan()).to(self.targets)).sum())
        return all_sum(self.counted(self.targets.abs()).nansum()) / known.clamp(min=torch.finfo(known.dtype).tiny)


def minimum(problem: RidgeCost, fit: Estimate, limits: DualLimits | None, num_steps: int) -> Estimate:
    """Classifiers that cost no more, set by set: by the dual within `limits`, None: without it; then, unless the dual
    is a quick one, in some steps.

    Steps alone stay far from the optimum where rows are separable and nu is large, and a slow dual where they are not.
    """
    if not fit.weights.numel():
        return fit
    if limits is not None and problem.loss.has_conjugate:
        fit = solved(problem, fit, limits)
        if problem.has_quick_dual:
            return fit
    return majorized(problem, fit, num_steps)


def solved(problem: RidgeCost, fit: Estimate, limits: DualLimits) -> Estimate:
    """By the dual, set by set; NotImplementedError if the loss has no conjugate."""
    rows = [torch.arange(len(problem.features), device=problem.features.device)]
    if problem.owner is not None:
        order, bounds = segments(problem.owner, problem.num_owners)
        rows = [order[first:last] for first, last in pairwise(bounds)]
    tilt, weights, gaps = fit.tilt.clone(), [], []
    for own in rows:
        times = None if problem.row_weights is None else problem.row_weights[own]
        options = {"start": tilt[own], "row_weights": times, **limits._asdict()}
        found = solve(problem.features[own], problem.targets[own], problem.loss, problem.weight_scale, **options)
        tilt[own] = found.tilt
        weights.append(found.weights)
        gaps.append(found.gap)
    fit = problem.descended(fit, torch.stack(weights))
    costs = fit.cost.sum(1)
    gap = (costs.new_tensor(gaps) * costs).sum() / costs.sum().clamp(min=torch.finfo(costs.dtype).tiny)
    return fit._replace(tilt=tilt, gap=gap)


def majorized(problem: RidgeCost, fit: Estimate, num_steps: int) -> Estimate:
    """By steps to the minima of majorizers, with blurs of several widths in turn; until they hardly lower the cost."""
    before = fit.cost
    for step in range(num_steps):
        width = _WIDTHS[step % len(_WIDTHS)]
        for columns in problem.loss.blocks(fit.weights.shape[2]):
            fit = problem.descended(fit, problem.majorizer_minimum(fit, columns, width))
        num_rounds, rest = divmod(step + 1, len(_WIDTHS))
        if not rest:  # all widths had their turn; the host looks ever less often
            is_power = not num_rounds & (num_rounds - 1)
            if is_power and step + 1 < num_steps and (before - fit.cost).sum() <= _NEGLIGIBLE * fit.cost.sum():
                break
            before = fit.cost
    return fit


def own_scores(features: Tensor, weights: Tensor, owner: Tensor) -> Tensor:
    """Scores [N, C] of rows [N, P] under the classifiers [K, P, C] of their owners [N]; on a CPU compiled."""
    if features.is_cuda:
        return linear.own_scores(features, weights, owner)
    from . import _numba_ridge  # compiles or loads machine code: only where it is needed

    found = features.new_empty(len(features), weights.shape[2])
    arrays = features.contiguous(), weights.mT.contiguous(), owner, found
    _numba_ridge.own_scores(*(array.numpy() for array in arrays))
    return found


def slopes(loss: Loss, scores: Tensor, targets: Tensor) -> Tensor:
    """d log phi / df [N, C] at scores [N, C], or a subgradient: which way, and how hard, each is pulled."""
    with torch.enable_grad():
        leaf = scores.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss.log_factor(leaf, targets).sum(), leaf)
    return slope


def all_found(found: Tensor) -> bool:
    """Whether all of [K, C] are true, as far as the host knows without waiting for a device."""
    return found.is_cpu and bool(found.all())


_NUM_SHARES = 5
_WIDTHS = (0.3, 0.1, 0.03, 0.0)
_NEGLIGIBLE = 1e-6
