"""Point estimates of classifiers for every structure and loss: descent on the ridge plus the losses.

    Scored.cost(eta)  =  |eta_kc|^2 / (2 nu^2) - sum_{n of k} r_n log phi(y_nc | eta_kc . a_n)     for each k and c

There are two kinds of steps. Losses that consist of lines and parabolas, and joint hinges, have a dual that is solved
quickly (`duals`). For any other loss, even one with `log_factor` alone, a step goes to the minimum of the quadratic
`Loss.majorize` at the present scores. No step raises the cost: while it would, its length is divided by four. This
check is needed because majorizers keep slacks away from zero, and some of them touch the loss but cross it elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ...models import host
from ...models.losses.base import Loss, PseudoObservation
from ...models.sums import among, ranks
from ..distributed.collectives import all_sum, once
from .duals import joint_hinge, solve_blocks
from .scored import Scored


class DualLimits(NamedTuple):
    """When the solution of a dual stops."""

    tolerance: float  # relative duality gap
    max_passes: int


class Estimate(NamedTuple):
    """A point estimate that is being improved."""

    weights: Tensor  # [K, P, C]
    scores: Tensor  # [N, C]
    told: Callable[[], Tensor]  # returns the cost
    tilt: Tensor  # [N, C], solution of the last dual, from which the next one starts
    gap: Tensor  # [] float64, relative duality gap of the last dual; NaN if there was none

    @property
    def cost(self) -> Tensor:
        """The cost [K, C] float64; [K, 1] where the scores of all classes meet in one factor."""
        return self.told()


def estimate(problem: Scored, weights: Tensor, tilt: Tensor | None = None, scores: Tensor | None = None) -> Estimate:
    """The start of a descent at weights [K, P, C], with tilts [N, C] (None: 0) and scores [N, C] (None: computed)."""
    scores = problem.scores(weights) if scores is None else scores
    nothing = torch.full((), torch.nan, dtype=torch.float64, device=weights.device)
    tilt = torch.zeros_like(scores) if tilt is None else tilt
    return Estimate(weights, scores, problem.cost_later(weights, scores), tilt, nothing)


def has_quick_dual(problem: Scored) -> bool:
    """Whether a few passes solve the dual of the loss."""
    return joint_hinge(problem.loss) is not None or problem.loss.box(problem.targets) is not None


def majorizer_minimum(problem: Scored, fit: Estimate, columns: slice, width: float = 0.0) -> Tensor:
    """Weights [K, P, C] whose `columns` minimize the majorizers of the losses at the present scores.

    With a `width` > 0, and if the loss has an expectation, the loss is first averaged over scores blurred by that width
    (in units of the targets). Otherwise a row at the kink of a hinge has so steep a majorizer that it holds its
    classifier there.
    """
    loss, target = problem.loss, problem.targets[:, columns]
    reference = loss.reference(fit.scores, problem.targets, columns)
    shifted = fit.scores[:, columns] - reference
    if width and loss.has_expectation:
        observed = loss.expect(shifted, (width * target_size(problem)).square().expand_as(shifted), target)
    else:
        observed = loss.majorize(shifted, target)
    precision = observed.precision.expand_as(shifted)
    found = fit.weights.clone()
    found[:, :, columns] = problem.means(PseudoObservation(precision, observed.shift + precision * reference))
    return found


def descended(problem: Scored, fit: Estimate, target: Tensor) -> Estimate:
    """Go the largest fraction (1, 1/4, 1/16, ...) of the way to other weights [K, P, C] at which no cost rises.

    On a CPU, classifiers that cannot go the whole way are evaluated again without the rows of the others.
    """
    reach = problem.scores(target)
    if problem.owner is None or not host.on_cpu(reach) or ranks() is not None:
        return _lowered(problem, fit, target, reach, range(_NUM_SHARES))[0]
    fit, found = _lowered(problem, fit, target, reach, range(1))
    if found.all():
        return fit
    some = torch.nonzero(~found.all(1)[problem.owner]).squeeze(1)
    times = None if problem.row_weights is None else problem.row_weights[some]
    nothing = problem.features.new_empty(len(some), 0)  # costs need the number of rows alone
    part = replace(
        problem, features=nothing, targets=problem.targets[some], row_weights=times, owner=problem.owner[some]
    )
    rest = fit._replace(scores=fit.scores[some])
    rest, _ = _lowered(part, rest, target, reach[some], range(1, _NUM_SHARES), found)
    return rest._replace(scores=fit.scores.index_copy(0, some, rest.scores))


def _lowered(
    problem: Scored, fit: Estimate, target: Tensor, reach: Tensor, powers: range, found: Tensor | None = None
) -> tuple[Estimate, Tensor]:
    """For each classifier [K, C] not yet `found`, try the fractions 1/4 ** power of the way to `target` in turn.

    The first one at which its cost is no higher is taken; `reach` [N, C] are the scores at the target. Returns the new
    estimate and which classifiers are found.
    """
    weights, scores, cost = fit.weights, fit.scores, fit.cost
    shares = ((power, 0.25**power) for power in powers)
    less = (
        (torch.lerp(fit.weights, target, share), torch.lerp(fit.scores, reach, share)) if power else (target, reach)
        for power, share in shares
    )
    found = torch.zeros_like(cost, dtype=torch.bool) if found is None else found
    for (moved, moved_scores), moved_cost in problem.costs(less):
        lower = ~found & (moved_cost <= fit.cost)  # False where a number is not finite
        if all_found(lower):
            return fit._replace(weights=moved, scores=moved_scores, told=partial(_known, moved_cost)), lower
        rows = lower if problem.owner is None else lower[problem.owner]
        weights = torch.where(lower.unsqueeze(1), moved, weights)
        scores, cost = torch.where(rows, moved_scores, scores), torch.where(lower, moved_cost, cost)
        found = found | lower
        if all_found(found):
            break
    return fit._replace(weights=weights, scores=scores, told=partial(_known, cost)), found


def target_size(problem: Scored) -> Tensor:
    """The mean |y| [] of the known targets; 1 where targets are signs."""
    targets = problem.targets
    if problem.loss.target != "real":
        return targets.new_ones(())
    known = all_sum(problem.counted((~targets.isnan()).to(targets)).sum())
    return all_sum(problem.counted(targets.abs()).nansum()) / known.clamp(min=torch.finfo(known.dtype).tiny)


def minimum(problem: Scored, fit: Estimate, limits: DualLimits | None, num_steps: int) -> Estimate:
    """Classifiers that cost no more than those of `fit`.

    Within `limits` (None: not at all) a quick dual is solved. If the dual is slow, Newton's method comes first, then
    the dual if a gap is left, then `num_steps` majorizer steps. Majorizer steps alone stay far from the optimum where
    rows are separable and nu is large; slow duals do where rows are not separable.

    If several ranks have only few rows in all, each rank computes with all rows, where a dual is wanted or the source
    of the rows is known.
    """
    if not fit.weights.numel():
        return fit
    if (limits is not None or problem.source is not None) and ranks() is not None and are_few(problem):
        return _of_all(problem, fit, partial(minimum, limits=limits, num_steps=num_steps))
    if limits is not None and problem.loss.has_conjugate:
        quick = has_quick_dual(problem)
        fit = fit if quick or problem.loss.meets else curved(problem, fit, limits.tolerance)
        fit = fit if fit.gap <= limits.tolerance else solved(problem, fit, limits)
        if quick or fit.gap <= limits.tolerance:
            return fit
    return once(partial(majorized, problem, fit, num_steps), partial(_of_rows, problem, fit.tilt))


def are_few(problem: Scored) -> bool:
    """Whether one process, or each of several ranks, may compute with all rows."""
    return ranks() is None or problem.span[1] <= MOST_TOGETHER


def _of_all(problem: Scored, fit: Estimate, work: Callable[[Scored, Estimate], Estimate]) -> Estimate:
    """Apply `work` to the rows of all ranks, on each rank; return the result for the rows of this rank."""
    whole, tilt = problem.together(fit.tilt)
    with among(None):
        found = work(whole, estimate(whole, fit.weights, tilt))
    start = problem.span[0]
    own = slice(start, start + len(fit.tilt))
    return found._replace(scores=found.scores[own], tilt=found.tilt[own])


def solved(problem: Scored, fit: Estimate, limits: DualLimits) -> Estimate:
    """Solve the dual for each set of classifiers; NotImplementedError if the loss has no conjugate."""
    rows, tilt = problem.rows(), fit.tilt.clone()
    order = torch.cat(rows)
    weights, found, gap = solve_blocks(
        problem.features[order],
        problem.targets[order],
        problem.loss,
        problem.weight_scale,
        [len(own) for own in rows],
        row_weights=None if problem.row_weights is None else problem.row_weights[order],
        start=tilt[order],
        **limits._asdict(),
    )
    tilt[order] = found.to(tilt)
    fit = descended(problem, fit, weights)
    return fit._replace(tilt=tilt, gap=fit.cost.new_tensor(gap))


def curved(problem: Scored, fit: Estimate, tolerance: float) -> Estimate:
    """Take Newton steps, for a convex loss whose dual is slow.

    The slopes t of the losses are feasible tilts, with duality gap |eta - nu^2 sum_n r_n t_n a_n|^2 / (2 nu^2). If the
    gap stays too large, the tilts and the gap of `fit` are kept.
    """
    for _ in range(_MOST_CURVED):
        fit = descended(problem, fit, problem.means(problem.loss.parabola(fit.scores, problem.targets)))
        tilt = slopes(problem.loss, fit.scores, problem.targets)
        off = fit.weights - problem.means(PseudoObservation(torch.zeros_like(tilt), tilt))
        gap = off.double().square().sum() / (2 * problem.weight_scale**2) / fit.cost.sum()
        if gap <= tolerance:
            return fit._replace(tilt=problem.counted(tilt), gap=gap)
    return fit


def majorized(problem: Scored, fit: Estimate, num_steps: int) -> Estimate:
    """Take steps to the minima of majorizers, with blurs of several widths, until they hardly lower the cost."""
    before = fit

    def stepped(fit: Estimate, width: float) -> Estimate:
        for columns in problem.loss.blocks(fit.weights.shape[2]):
            fit = descended(problem, fit, majorizer_minimum(problem, fit, columns, width))
        return fit

    for step in range(num_steps):
        width = _WIDTHS[step % len(_WIDTHS)]
        fit = once(partial(stepped, fit, width), partial(_of_rows, problem, fit.tilt))
        num_rounds, rest = divmod(step + 1, len(_WIDTHS))
        if not rest:  # a round of all widths ends; costs are compared after rounds 1, 2, 4, 8, ... alone
            is_power = not num_rounds & (num_rounds - 1)
            if is_power and step + 1 < num_steps and (before.cost - fit.cost).sum() <= _NEGLIGIBLE * fit.cost.sum():
                break
            before = fit
    return fit


def _of_rows(problem: Scored, tilt: Tensor, fit: Estimate) -> Estimate:
    """An estimate whose weights come from other rows, with the scores and tilts of the rows of `problem`."""
    return fit._replace(scores=problem.scores(fit.weights), tilt=tilt)


def _known(cost: Tensor) -> Tensor:
    return cost


def slopes(loss: Loss, scores: Tensor, targets: Tensor) -> Tensor:
    """The derivatives d log phi / df [N, C] at scores [N, C]; subgradients at kinks."""
    with torch.enable_grad():
        leaf = scores.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss.log_factor(leaf, targets).sum(), leaf)
    return slope


def all_found(found: Tensor) -> bool:
    """Whether all entries [K, C] are True; False on a device, which the host does not wait for."""
    return host.on_cpu(found) and bool(found.all())


MOST_TOGETHER = 2000  # most rows, of all ranks, that each rank may gather
_NUM_SHARES = 5
_MOST_CURVED = 20
_WIDTHS = (0.3, 0.1, 0.03, 0.0)
_NEGLIGIBLE = 1e-6
