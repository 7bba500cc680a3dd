"""SVM duals for every backend: the classifier that minimizes a ridge plus a convex margin loss, and its dual variables.

    minimize  |eta|^2 / (2 nu^2) + sum_n r_n g(eta^T a_n)      over eta [P, C],   g = -log phi(y_n | .)
    maximize -|eta|^2 / (2 nu^2) - sum_n r_n g*(-t_n / r_n)    over t [N, C],     eta = nu^2 sum_n a_n t_n^T

have the same optimal value. r_n says how many times point n counts; by default once. The dual variables t are called
tilts. The sum over n of r_n g(f_n) + r_n g*(-t_n / r_n) + t_n . f_n >= 0, with f_n = eta^T a_n, is the duality gap,
which decides when to stop.

On the CPU, losses with a `box` and the loss of Crammer and Singer use compiled coordinate ascent: each t_n is set in
turn to its optimum given the others. Any other loss with a `conjugate`, other devices and fits of many ranks move all
t_n at once: by Newton steps of the primal (`primal_newton`) if the box has a curvature, else by accelerated proximal
gradient steps. Where a gap is left, compiled Newton steps of the primal finish boxes with a curvature, and an
interior-point method (`dual_newton`) finishes other boxes and joint hinges.
"""

from __future__ import annotations

from functools import singledispatch
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...models import host
from ...models.domains import POSITIVE, Number, Whole, read, shown
from ...models.losses import CrammerSinger, Loss, Masked
from ...models.losses.conjugates import Box
from ...models.sparse import entries_sum
from ...models.sums import ranks, row_chunks
from ..distributed.collectives import all_sum
from . import primal_newton
from .dual_newton import box_piece, joint_piece
from .dual_problem import Problem


class Dual(NamedTuple):
    """An optimum up to its duality gap, for P features, C scores and N points."""

    weights: Tensor  # [P, C] eta
    tilt: Tensor  # [N, C] t, a start for the next similar problem
    gap: float  # (primal - dual) / primal
    num_passes: int  # passes over the points

    def to(self, dtype: torch.dtype) -> Dual:
        """This optimum in another precision."""
        return self._replace(weights=self.weights.to(dtype), tilt=self.tilt.to(dtype))


def solve(
    features: Tensor,
    targets: Tensor,
    loss: Loss,
    weight_scale: float,
    *,
    row_weights: Tensor | None = None,
    start: Tensor | None = None,
    tolerance: float = 1e-3,
    max_passes: int = 1000,
) -> Dual:
    """The minimum of |eta|^2 / (2 nu^2) + sum_n r_n g(eta^T a_n) and the tilts that attain it.

    Parameters
    ----------
    features : a [N, P], dense
    targets : y [N, C] as the loss has them; NaN for a `Masked` loss
    loss : with a `conjugate`
    weight_scale : nu > 0
    row_weights : r [N] > 0, how many times each point counts; None: once
    start : tilts [N, C] to start from, feasible or not; None: zeros
    tolerance : the relative duality gap (primal - dual) / primal at which to stop
    max_passes : most passes over the points, after which the gap may be larger; 0: the weights and the gap of `start`

    Raises
    ------
    NotImplementedError    if the loss has no conjugate.
    ValueError             on an argument that is none of these.
    """
    _require_tensors(features, targets, loss, row_weights=row_weights, start=start)
    tolerance, max_passes = read("tolerance", tolerance, Number(least=0.0)), read("max_passes", max_passes, Whole())
    weight_scale = read("weight_scale", weight_scale, POSITIVE)
    problem = Problem(features, targets, loss, weight_scale, row_weights)
    tilt = problem.feasible(torch.zeros_like(targets) if start is None else start)
    exact = problem.double()
    least = None if ranks() is not None else _patience(exact, max_passes)
    patience = max_passes if least is None else min(max_passes, least)
    found = _by_passes(problem, exact, tilt, tolerance, patience)
    return _finished(problem, exact, found, tolerance, max_passes).to(features.dtype)


def solve_blocks(
    features: Tensor,
    targets: Tensor,
    loss: Loss,
    weight_scale: float,
    sizes: list[int],
    *,
    row_weights: Tensor | None,
    start: Tensor,
    tolerance: float = 1e-3,
    max_passes: int,
) -> tuple[Tensor, Tensor, float]:
    """Solve K blocks of consecutive rows of these sizes, as `solve` does; all blocks share one call of compiled code.

    Returns the weights [K, P, C], the tilts [N, C] and the relative gap of all blocks together.
    """
    problem = Problem(features, targets, loss, weight_scale, row_weights)
    exact = problem.double()
    tilt, ends = exact.feasible(start.double()), list(accumulate(sizes, initial=0))
    blocks = [slice(*pair) for pair in pairwise(ends)]
    weights = weight_scale**2 * torch.stack([tilt[rows].T @ exact.features[rows] for rows in blocks])
    left, most, box = list(range(len(sizes))), 0, loss.box(exact.targets)
    if box is not None and host.on_cpu(features) and ranks() is None:
        most = min(max_passes, _patience(exact.rows(slice(max(sizes))), max_passes) or max_passes)
        passes = _climb_blocks(exact, box, ends, tilt, weights, tolerance, most)
        left = torch.nonzero(passes >= most).flatten().tolist() if most < max_passes else []
    for rows, k in ((blocks[k], k) for k in left):
        found = _rest(problem.rows(rows), Dual(weights[k].T, tilt[rows], torch.nan, most), tolerance, max_passes)
        weights[k], tilt[rows] = found.weights.T, found.tilt.double()
    scores = torch.cat([exact.features[rows] @ own.T for rows, own in zip(blocks, weights, strict=True)])
    return weights.mT.to(features), tilt, exact.gaps(scores, tilt)[1]


def _rest(problem: Problem, start: Dual, tolerance: float, max_passes: int) -> Dual:
    """Continue `solve` from the result of some passes, whose gap is not known yet; if there were none, call `solve`."""
    if not start.num_passes:
        return solve(
            problem.features,
            problem.targets,
            problem.loss,
            problem.weight_scale,
            row_weights=problem.row_weights,
            start=start.tilt.to(problem.targets),
            tolerance=tolerance,
            max_passes=max_passes,
        )
    exact = problem.double()
    _, gap = exact.gaps(exact.features @ start.weights, start.tilt)
    return _finished(problem, exact, start._replace(gap=gap), tolerance, max_passes)


def _finished(problem: Problem, exact: Problem, found: Dual, tolerance: float, max_passes: int) -> Dual:
    """Finish the result of passes: by an interior-point method and, if a gap is left, by more passes."""
    if found.gap > tolerance and found.num_passes < max_passes:
        found = _by_newton(exact, found.to(torch.float64), tolerance)
    if found.gap > tolerance and found.num_passes < max_passes:
        left = _by_passes(problem, exact, found.tilt.to(problem.targets), tolerance, max_passes - found.num_passes)
        left = left._replace(num_passes=found.num_passes + left.num_passes)
        found = left if left.gap < found.gap else found._replace(num_passes=left.num_passes)
    return found


class Columns(NamedTuple):
    """A dual that `improved` solves column by column; a NaN tilt is initialized from the score."""

    tilt: Tensor  # [N, C] float64
    costs: Tensor  # [C] float64, the primal objectives
    stays: Tensor  # [C] bool: True for a column that needs no further work

    @classmethod
    def of(cls, targets: Tensor) -> Columns:
        """The start for targets [N, C] of which nothing is known."""
        costs = targets.new_zeros(targets.shape[1], dtype=torch.float64)
        return cls(torch.full_like(targets, torch.nan, dtype=torch.float64), costs, costs.bool())

    def turned(self, before: Tensor, labels: Tensor) -> Columns:
        """Reset the tilts of rows whose component [N] changed; column k is component k against the rest."""
        from . import _numba_duals

        tilt, stays = self.tilt.clone(), self.stays.clone()
        _numba_duals.turn(*(part.numpy() for part in (before, labels, tilt, stays)))
        return self._replace(tilt=tilt, stays=stays)


def improved(
    features: Tensor,
    targets: Tensor,
    loss: Loss,
    weight_scale: float,
    weights: Tensor,
    *,
    row_weights: Tensor | None,
    tolerance: float,
    max_passes: int,
    start: Columns | None = None,
) -> tuple[Tensor, Columns]:
    """Weights [P, C] nearer to the minimum of `solve`, column by column; no column costs more than the given one.

    For losses with a `box` and tensors on the CPU; the rows are those of all ranks.
    """
    from . import _numba_duals  # compiles or loads machine code: only where it is needed

    problem = Problem(features, targets, loss, weight_scale, row_weights).double()
    box = loss.box(problem.targets)
    assert box is not None
    start, given = Columns.of(targets) if start is None else start, weights.T.double().contiguous()
    found, tilt, costs = torch.zeros_like(given), start.tilt.clone(), start.costs.clone()
    arrays = *_boxes(problem, box), *(part.numpy() for part in (given, found, costs, tilt, start.stays))
    _numba_duals.improve_boxes(*arrays, *_room(arrays[0], box), tolerance, max_passes)
    return found.T.to(weights), Columns(tilt, costs, torch.ones_like(start.stays))


def _require_tensors(features: Any, targets: Any, loss: Any, **others: Any) -> None:
    """Raise ValueError unless these are dense tensors with one row per point, and finite where NaN means nothing."""
    if not isinstance(loss, Loss):
        raise ValueError(f"loss is {shown(loss)}; expected an object such as Hinge().")
    given = {name: part for name, part in others.items() if part is not None}
    given = {"features": features, "targets": targets, **given}
    for name, part in given.items():
        if not isinstance(part, Tensor) or not part.is_floating_point() or part.layout != torch.strided or part.is_meta:
            raise ValueError(f"{name} is {shown(part)}; expected a dense Tensor of real numbers.")
        like = features[:, :1].squeeze(1) if name == "row_weights" else features if name == "features" else targets
        if part.ndim != 2 - (name == "row_weights") or len(part) != len(features) or part.shape != like.shape:
            raise ValueError(f"{name} has shape {list(part.shape)}, where features have {list(features.shape)}.")
    finite = [_are_finite(part, name == "targets" and loss.takes_missing) for name, part in given.items()]
    for (name, part), is_finite in zip(given.items(), torch.stack(finite).tolist(), strict=True):
        if part.requires_grad or not is_finite:
            raise ValueError(f"{name} has a graph, or values that are not finite: pass finite numbers, detached.")


def _are_finite(part: Tensor, missing: bool) -> Tensor:
    """Whether all numbers are finite, or NaN if `missing` allows it; bool []."""
    chunks = (part[rows] for rows in row_chunks(part, part[:1].numel()))
    return torch.stack([(chunk.isfinite() | (chunk.isnan() & missing)).all() for chunk in chunks]).all()


def _by_passes(problem: Problem, exact: Problem, tilt: Tensor, tolerance: float, max_passes: int) -> Dual:
    """Run compiled coordinate ascent, or else Newton steps of the primal, or else proximal gradient steps."""
    features, box = problem.features, exact.loss.box(exact.targets)
    if host.on_cpu(features) and ranks() is None:
        if (hinge := joint_hinge(exact.loss)) is not None:
            return _take_turns(exact, hinge, tilt.double(), tolerance, max_passes)
        if box is not None:
            return _climb(exact, box, tilt.double(), tolerance, max_passes)
    if box is not None and box.curvature and features.shape[1] <= _MOST_COLUMNS:
        return Dual(*primal_newton.climb(exact, box, tilt.double(), tolerance, max_passes))
    return _accelerate(problem, tilt, tolerance, max_passes)


# -- compiled coordinate ascent ----------------------------------------------------------------------------------------


def _climb(problem: Problem, box: Box, tilt: Tensor, tolerance: float, max_passes: int) -> Dual:
    """Visit, column by column and in random order, the rows that still add to the gap."""
    tilt, weights = tilt.clone(), problem.weights(tilt).T.contiguous()
    passes = _climb_blocks(problem, box, [0, len(tilt)], tilt, weights.unsqueeze(0), tolerance, max_passes)
    _, gap = problem.gaps(problem.features @ weights.T, tilt)
    return Dual(weights.T.contiguous(), tilt, gap, int(passes[0]))


def _climb_blocks(
    problem: Problem, box: Box, ends: list[int], tilt: Tensor, weights: Tensor, tolerance: float, max_passes: int
) -> Tensor:
    """Run `_climb`, in place, for K blocks of rows between `ends` [K + 1]; return each one's number of passes [K]."""
    from . import _numba_duals  # compiles or loads machine code: only where it is needed

    passes = torch.empty(len(weights), dtype=torch.int64, device="cpu")
    arrays = (
        *_boxes(problem, box),
        *(part.numpy() for part in (torch.tensor(ends, device="cpu"), tilt, weights.flatten(0, 1), passes)),
    )
    _numba_duals.climb_boxes(*arrays, *_room(arrays[0], box), tolerance, max_passes)
    return passes


def _room(features: np.ndarray, box: Box) -> tuple[Any, Any]:
    """The buffers of passes over the rows of features [N, P], and of Newton steps where the conjugate is curved."""
    from . import _numba_duals

    return _numba_duals.Room.of(features), _numba_duals.Newton.of(features) if box.curvature else None


def _boxes(problem: Problem, box: Box) -> tuple[Any, ...]:
    """The arguments of compiled code: features [N, P], nu^2 |a_n|^2 [N], and the conjugate."""
    features, variance, shape = problem.features.contiguous(), problem.weight_scale**2, problem.targets.shape
    count = problem.count * features.new_ones(len(features), 1)  # also where there are no scores
    lower, upper = box[1:3] if problem.row_weights is None else (count * box.lower, count * box.upper)
    bounds = [part.expand(shape).contiguous().numpy() for part in (box.linear, lower, upper)]
    conjugate = (*bounds, (box.curvature / count).squeeze(1).numpy(), float(box.tube), variance)
    return features.numpy(), (variance * entries_sum(features, torch.square)).numpy(), conjugate


def _take_turns(problem: Problem, hinge: CrammerSinger, tilt: Tensor, tolerance: float, max_passes: int) -> Dual:
    """As `_climb`, for a joint hinge: all tilts of a row move together."""
    from . import _numba_duals

    weights, generator = problem.weights(tilt).T.contiguous(), torch.Generator().manual_seed(0)
    features, variance = problem.features.contiguous(), problem.weight_scale**2
    squares = (variance * entries_sum(features, torch.square)).numpy()
    mass = (2 * hinge.strength * problem.count * torch.ones_like(tilt[:, :1])).squeeze(1).numpy()
    simplex = (problem.targets.argmax(1).numpy(), mass, float(hinge.margin), variance)
    values, num_passes, num_checks = weights.new_empty(2, len(weights)), 0, 0
    while True:
        gaps, gap = problem.gaps(features @ weights.T, tilt)
        if gap <= tolerance or num_passes >= max_passes:
            return Dual(weights.T.contiguous(), tilt, gap, num_passes)
        least = _LITTLE * tolerance / gap * gaps.mean()  # as in `_numba_duals._left`
        rows, num_checks = torch.nonzero(gaps.squeeze(1) > least).squeeze(1), num_checks + 1
        for _ in range(min(num_checks, _MOST_UNCHECKED, max_passes - num_passes)):
            order = rows[torch.randperm(len(rows), generator=generator, device=rows.device)]
            arrays = (part.numpy() for part in (order, tilt, weights, values))
            _numba_duals.visit_simplices(features.numpy(), squares, simplex, *arrays)
            num_passes += 1


@singledispatch
def joint_hinge(loss: Loss) -> CrammerSinger | None:
    """The Crammer-Singer hinge that a loss is, or that a `Masked` loss wraps; None for any other loss."""
    return None


joint_hinge.register(CrammerSinger, lambda loss: loss)
joint_hinge.register(Masked, lambda loss: joint_hinge(loss.loss))


# -- proximal gradient steps -------------------------------------------------------------------------------------------


def _accelerate(problem: Problem, tilt: Tensor, tolerance: float, max_passes: int) -> Dual:
    """Proximal gradient steps with momentum, which restarts where it points uphill (O'Donoghue & Candes 2015)."""
    variance = problem.weight_scale**2 * _largest_eigenvalue(problem.features)
    count, targets, every = problem.count, problem.targets, _CHECK_EVERY if host.on_cpu(tilt) else 2 * _CHECK_EVERY
    ahead, momentum, num_passes = tilt, torch.ones((), dtype=torch.float64, device=tilt.device), 0
    while True:
        if num_passes % every == 0 or num_passes == max_passes:
            weights = problem.weights(tilt)
            _, gap = problem.gaps(problem.features @ weights, tilt)
            if gap <= tolerance or num_passes == max_passes:
                return Dual(weights, tilt, gap, num_passes)
        scores = problem.features @ problem.weights(ahead) - variance * ahead
        moved = count * problem.loss.best_tilt(scores, variance * count, targets)
        step = moved - tilt
        uphill = all_sum(((ahead - moved) * step).sum()) > 0
        following = (1 + (1 + 4 * momentum**2).sqrt()) / 2
        ahead = moved + torch.where(uphill, 0.0, (momentum - 1) / following) * step
        tilt, momentum, num_passes = moved, torch.where(uphill, 1.0, following), num_passes + 1


def _largest_eigenvalue(features: Tensor) -> Tensor:
    """The largest eigenvalue [] of the Gram matrix; with several ranks the sum over ranks, an upper bound."""
    if not len(features):
        return all_sum(features.new_zeros(()))
    wide = features.shape[0] < features.shape[1]
    gram = features @ features.T if wide else features.T @ features
    return all_sum(torch.linalg.eigvalsh(gram)[-1])


# -- an interior-point method ------------------------------------------------------------------------------------------


def _patience(problem: Problem, max_passes: int) -> int | None:
    """The number of passes that cost as much as the interior-point method, at most half; None where it does not apply.

    With few rows its Newton steps cost as much as hundreds of compiled passes, whatever the size of their matrix.
    """
    N, P = problem.features.shape
    if not N or not P:
        return None
    if joint_hinge(problem.loss) is not None:
        P = P * problem.targets.shape[1]
    else:
        box = problem.loss.box(problem.targets)
        if box is None or box.curvature:
            return None
    cheap = _STEPS // (N * (P + _ROW)) if host.on_cpu(problem.features) else 0
    return max(_LEAST_PATIENCE, _PATIENCE * P, min(cheap, max_passes // 2))


def _by_newton(problem: Problem, start: Dual, tolerance: float) -> Dual:
    """Run the interior-point method from `start`, if `_patience` allows; return the solution of smaller gap."""
    tilt, (gaps, gap) = start.tilt.clone(), problem.gaps(problem.features @ start.weights, start.tilt)
    hinge, box, count = joint_hinge(problem.loss), problem.loss.box(problem.targets), problem.count
    parts = problem.features, count * torch.ones_like(tilt[:, :1]), problem.weight_scale**2
    if hinge is not None:
        pieces = [joint_piece(*parts, problem.targets, hinge.strength, hinge.margin)]
    else:
        assert box is not None
        linear, lower, upper = (end.expand_as(tilt) for end in box[:3])
        whole = Box(linear, lower, upper, box.curvature, box.tube)
        pieces = [box_piece(*parts, whole, column) for column in range(tilt.shape[1])]
    enough, num_steps = tolerance * float(gaps.sum()) * (1 / gap - 1) / max(1, len(pieces)), 0
    for piece in pieces:
        num_steps = max(num_steps, piece.solve(start.weights, tilt, enough))
    tilt = problem.feasible(tilt)
    weights = problem.weights(tilt)
    _, gap = problem.gaps(problem.features @ weights, tilt)
    found = Dual(weights, tilt, gap, start.num_passes + num_steps)
    return found if found.gap < start.gap else start._replace(num_passes=found.num_passes)


_CHECK_EVERY = 5
_PATIENCE = 2  # passes per column of the matrix of a Newton step
_LEAST_PATIENCE = 40  # the fixed cost of a Newton step's many short operations, in passes
_STEPS, _ROW = 10**7, 10  # the least cost of all Newton steps, and the cost of a row besides its features, in additions
_MOST_COLUMNS = 500  # of a Hessian
_MOST_UNCHECKED = 5  # passes between two checks of the gap; the first rounds have fewer
_LITTLE = 1e-3  # of the mean share of a row in the largest gap allowed
