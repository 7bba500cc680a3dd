"""SVM duals by an interior-point method (Mehrotra 1992, Gondzio 1996), for box constraints, tubes and the joint hinge.

    eta = nu^2 sum_n a_n t_n^T,   eta^T a_n - linear_n = low_n - high_n + shift_n,
    lower <= t_n <= upper,        low (t - lower) = high (upper - t) = mu > 0, which falls to 0

are the optimality conditions of `duals`. low and high are the multipliers of the bounds; shift is the multiplier of
sum_c t_nc = 0, a constraint of the joint hinge alone. "Products" are low (t - lower) and high (upper - t). Coordinate
ascent slows down where many more points than features lie on a margin, or where points are nearly alike: its gap then
falls as one over the number of passes. Here two or three dozen Newton steps, each with a weighted Gram matrix, reach
any gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...models.linalg import safe_cholesky
from ...models.losses.conjugates import Box


class Point(NamedTuple):
    """A primal-dual iterate, or a step between two; C is 1 except for a joint hinge."""

    weights: Tensor  # [P, C] eta
    below: Tensor  # [N, C] t - lower; not used by a joint hinge, which has no lower bounds
    above: Tensor  # [N, C] upper - t
    low: Tensor  # [N, C], multipliers of the lower bounds
    high: Tensor  # [N, C], multipliers of the upper bounds
    shift: Tensor  # [N, 1], multipliers of sum_c t_nc = 0

    def moved(self, step: Point, size: float) -> Point:
        """This iterate plus `size` times a step."""
        return Point(*(own + size * way for own, way in zip(self, step, strict=True)))


@dataclass(frozen=True)
class Program:
    """The dual of N rows with P features, for one score or for C scores that meet in a joint hinge; all float64."""

    features: Tensor  # [N, P]
    linear: Tensor  # [N, C]
    upper: Tensor  # [N, C]
    room: Tensor  # [N, 1] > 0, upper - lower; for a joint hinge the sum of upper
    variance: float  # nu^2
    joint: bool

    def solve(self, weights: Tensor, tilt: Tensor, enough: float) -> tuple[Tensor, int]:
        """Tilts [N, C] with a duality gap of at most `enough`, or the best ones found; and the number of steps."""
        found, best = tilt, float(self.gap(tilt))
        at = self.start(weights, _AROUND * best / tilt.numel())
        num_steps = num_idle = 0
        while best > enough and num_steps < _MOST_STEPS and num_idle < _MOST_IDLE:
            try:
                at, num_steps = self.step(at), num_steps + 1
            except FloatingPointError:  # rounding has made the matrix indefinite
                break
            gap = float(self.gap(self.upper - at.above))
            num_idle = 0 if num_steps < _MOST_IDLE or gap < best else num_idle + 1
            if gap < best:
                found, best = self.upper - at.above, gap
        return found, num_steps

    def gap(self, tilt: Tensor) -> Tensor:
        """The duality gap [] of feasible tilts."""
        slope, above = self.slopes(self.variance * (self.features.T @ tilt)), self.upper - tilt
        if self.joint:
            return (self.room.squeeze(1) * slope.amax(1)).sum() - (above * slope).sum()
        # at fixed scores the best tilts lie at their bounds
        return -(torch.where(slope < 0, above, above - self.room) * slope).sum()

    def slopes(self, weights: Tensor) -> Tensor:
        """Minus the derivative of the dual by each tilt, [N, C], at weights [P, C]."""
        return self.features @ weights - self.linear

    def start(self, weights: Tensor, measure: float) -> Point:
        """An iterate with these weights [P, C], their slopes, and every product equal to `measure`."""
        if self.joint:
            return self._start_jointly(weights, measure)
        slope = self.slopes(weights)
        below, above = self._rooms(slope, measure)
        return Point(weights, below, above, measure / below, measure / above, torch.zeros_like(slope))

    def _rooms(self, slope: Tensor, measure: float) -> tuple[Tensor, Tensor]:
        """The distances [N, 1] from the bounds at which measure / below - measure / above is the slope [N, 1]."""
        size = slope * self.room
        root = (size.square() + (2 * measure) ** 2).sqrt() + 2 * measure
        return 2 * measure * self.room / (root + size), 2 * measure * self.room / (root - size)

    def _start_jointly(self, weights: Tensor, measure: float) -> Point:
        cost = self.slopes(weights)
        top, least = cost.amax(1, keepdim=True), measure / self.room
        near, far = least, cost.shape[1] * least
        for _ in range(_NUM_HALVINGS):
            middle = (near + far) / 2
            much = (measure / (top + middle - cost)).sum(1, keepdim=True) > self.room
            near, far = torch.where(much, middle, near), torch.where(much, far, middle)
        above = measure / (top + far - cost)
        above = above * (self.room / above.sum(1, keepdim=True))
        ones = torch.ones_like(cost)
        return Point(weights, ones, above, 0 * ones, measure / above, top + far)

    def step(self, at: Point) -> Point:
        """Take one step: a predictor sets the target of the products, correctors keep the products alike."""
        direction, measure = self._directions(at), self._measure(at)
        first = direction(torch.zeros_like(at.low), torch.zeros_like(at.high))
        goal = (self._measure(at.moved(first, self._longest(at, first))) / measure).clamp(max=1.0) ** 3 * measure
        low, high = goal - first.below * first.low, goal - first.above * first.high
        way = direction(low, high)
        size = self._longest(at, way)
        for _ in range(_MOST_CORRECTORS):
            ahead = at.moved(way, min(1.0, size + _FURTHER))
            low, high = (
                part + (product.clamp(goal / _APART, goal * _APART) - product).clamp(min=-_APART * goal)
                for part, product in ((low, ahead.below * ahead.low), (high, ahead.above * ahead.high))
            )
            other = direction(low, high)
            longer = self._longest(at, other)
            if longer < size + _FURTHER / 10:
                break
            way, size = other, longer
        return at.moved(way, _SHORT * size)

    def _measure(self, at: Point) -> Tensor:
        """The mean [] of the products."""
        high = at.above * at.high
        return high.mean() if self.joint else (at.below * at.low + high).mean() / 2

    def _longest(self, at: Point, step: Point) -> float:
        """The largest fraction, at most 1, of a step that keeps distances and multipliers positive."""
        parts = [(at.above, step.above), (at.high, step.high)]
        parts += [] if self.joint else [(at.below, step.below), (at.low, step.low)]
        return 1 / max(1.0, *(float((-way / own).amax()) for own, way in parts))

    def _directions(self, at: Point) -> Callable[[Tensor, Tensor], Point]:
        """The function that returns the Newton step towards products of given values `low`, `high` [N, C]."""
        theta = at.high / at.above + (0.0 if self.joint else at.low / at.below)
        inverse = 1 / theta
        total = inverse.sum(1, keepdim=True)

        def weigh(part: Tensor) -> Tensor:
            return inverse * (part - (inverse * part).sum(1, keepdim=True) / total) if self.joint else inverse * part

        tril = safe_cholesky(self._matrix(inverse, total))
        off = self.features.T @ (self.upper - at.above) - at.weights / self.variance
        cost = self.slopes(at.weights) - at.shift

        def direction(low: Tensor, high: Tensor) -> Point:
            rho = (0.0 if self.joint else low / at.below) - high / at.above - cost
            pull = off + self.features.T @ weigh(rho)
            weights = torch.cholesky_solve(pull.T.reshape(-1, 1), tril).view(pull.T.shape).T
            left = rho - self.features @ weights
            move = weigh(left)
            shift = -(inverse * left).sum(1, keepdim=True) / total if self.joint else torch.zeros_like(at.shift)
            lower = torch.zeros_like(move) if self.joint else (low - at.low * move) / at.below - at.low
            return Point(weights, move, -move, lower, (high + at.high * move) / at.above - at.high, shift)

        return direction

    def _matrix(self, inverse: Tensor, total: Tensor) -> Tensor:
        """The weighted Gram matrix plus I / nu^2, [C P, C P]."""
        features, (P, C) = self.features, (self.features.shape[1], inverse.shape[1])
        matrix = features.new_zeros(C, P, C, P)
        for c in range(C):
            own = -inverse * (inverse[:, c : c + 1] / total) if self.joint else torch.zeros_like(inverse)
            own[:, c] += inverse[:, c]
            for d in range(c + 1):
                matrix[c, :, d] = features.T @ (own[:, d : d + 1] * features)
                matrix[d, :, c] = matrix[c, :, d]
        matrix = matrix.view(C * P, C * P)
        matrix.diagonal().add_(1 / self.variance)
        return matrix


class Piece(NamedTuple):
    """A program, and the rows and columns of the tilts that it solves for."""

    program: Program
    rows: Tensor  # [n]; with a tube each row occurs twice
    columns: slice
    lower: Tensor  # [n, C], lower bounds of the tilts; not used by a joint hinge

    def solve(self, weights: Tensor, tilt: Tensor, enough: float) -> int:
        """Solve to a gap of `enough`, if possible, set the entries of tilt [N, C], and return the number of steps."""
        if not len(self.rows):
            return 0
        before, program = tilt[self.rows, self.columns], self.program
        if not program.joint:
            before = torch.minimum(torch.maximum(before, self.lower), program.upper)
        found, num_steps = program.solve(weights[:, self.columns], before, enough)
        tilt[self.rows, self.columns] = 0.0
        tilt[:, self.columns].index_add_(0, self.rows, found)
        return num_steps


def box_piece(features: Tensor, count: Tensor, variance: float, box: Box, column: int) -> Piece:
    """The program of one column of scores, without curvature; with a tube each row enters twice, [N, P] and [N, 1]."""
    columns = slice(column, column + 1)
    linear, lower, upper = (part[:, columns] for part in box[:3])
    rows = torch.nonzero((lower < upper).squeeze(1)).squeeze(1)
    linear, lower, upper = linear[rows], (count * lower)[rows], (count * upper)[rows]
    if box.tube:
        none = torch.zeros_like(lower)
        linear, rows = torch.cat([linear - box.tube, linear + box.tube]), rows.repeat(2)
        lower, upper = torch.cat([none, lower]), torch.cat([upper, none])
    program = Program(features[rows], linear, upper, upper - lower, variance, False)
    return Piece(program, rows, columns, lower)


def joint_piece(
    features: Tensor, count: Tensor, variance: float, targets: Tensor, strength: float, margin: float
) -> Piece:
    """The program of all scores of a joint hinge, for targets [N, C]; rows with NaN have no tilts."""
    rows = torch.nonzero(~targets.isnan().any(1)).squeeze(1)
    own, room = (targets[rows] > 0).to(features), 2 * strength * count[rows]
    program = Program(features[rows], margin * own, room * own, room, variance, True)
    return Piece(program, rows, slice(None), room * own)


_AROUND = 10.0  # initial products, in units of the mean gap per tilt
_MOST_STEPS, _MOST_IDLE = 100, 8
_MOST_CORRECTORS, _FURTHER, _APART = 3, 0.3, 10.0
_SHORT = 0.995  # of the step that reaches the nearest bound
_NUM_HALVINGS = 60
