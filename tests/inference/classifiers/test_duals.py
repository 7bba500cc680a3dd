"""SVM duals: against generic solvers and liblinear, in turns and all at once, and what a caller may rely on."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from setups import name_of
from sklearn.svm import LinearSVC, LinearSVR
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

from regbayes.inference.classifiers import duals, primal_newton
from regbayes.inference.classifiers.dual_problem import Problem
from regbayes.inference.classifiers.duals import Dual, improved, solve, solve_blocks
from regbayes.models import host
from regbayes.models.losses import (
    CrammerSinger,
    EpsilonInsensitive,
    Hinge,
    Logistic,
    Loss,
    Masked,
    OneVsRest,
    SquaredHinge,
    StudentT,
)
from regbayes.models.losses.conjugates import Box

NU = 0.7
LOSSES = [
    Hinge(1.3, 0.8),
    SquaredHinge(0.7, 1.2),
    EpsilonInsensitive(0.7, 0.2),
    Logistic(),
    OneVsRest(Hinge(0.6)),
    CrammerSinger(0.7, 1.4),
    Masked(OneVsRest(SquaredHinge())),
    Masked(CrammerSinger()),
]


class Boxless(Hinge):
    """A hinge without its box, so that all points move at once."""

    def conjugate(self, tilt: Tensor, y: Tensor) -> Tensor:
        return super().box(y).value(tilt)

    def best_tilt(self, score: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        return super().box(y).best(score, variance)

    def feasible(self, tilt: Tensor, y: Tensor) -> Tensor:
        return super().box(y).clamp(tilt)

    def box(self, y: Tensor) -> None:
        return None


def case(loss: Loss, generator: torch.Generator, N: int = 25, P: int = 4, L: int = 3) -> tuple[Tensor, Tensor]:
    """(features [N, P], targets [N, C]), not separable."""
    like = {"generator": generator, "device": generator.device, "dtype": torch.float64}
    features = torch.randn(N, P, **like)
    truth = features @ torch.randn(P, L, **like) + torch.randn(N, L, **like)
    if loss.target == "real":
        return features, truth[:, :1]
    if isinstance(loss, OneVsRest | CrammerSinger | Masked):
        targets = 2.0 * torch.nn.functional.one_hot(truth.argmax(1), L).to(truth) - 1
        if isinstance(loss, Masked):
            targets[::5] = torch.nan
        return features, targets
    return features, truth[:, :1].sign()


def primal(weights: Tensor, features: Tensor, targets: Tensor, loss: Loss, counts: Tensor | None = None) -> Tensor:
    cost = -loss.log_factor(features @ weights, targets).sum(1)
    return weights.square().sum() / (2 * NU**2) + (cost if counts is None else counts * cost).sum()


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("counted", [False, True], ids=["once", "counted"])
@pytest.mark.parametrize("loss", [*LOSSES, Boxless(1.3, 0.8), Masked(OneVsRest(Boxless()))], ids=name_of)
def test_it_is_the_minimum_that_its_gap_says(loss, counted, device, generator) -> None:
    features, targets = case(loss, generator)
    counts = 0.3 + torch.rand(25, generator=generator, device=device, dtype=torch.float64) if counted else None
    found = solve(features, targets, loss, NU, row_weights=counts, tolerance=1e-6, max_passes=5_000)
    value = primal(found.weights, features, targets, loss, counts)
    assert found.gap <= 1e-6
    close(found.weights, NU**2 * features.T @ found.tilt, 1e-10)
    times = torch.ones_like(targets[:, :1]) if counts is None else counts.unsqueeze(1)
    cost = times * loss.conjugate(loss.feasible(found.tilt / times, targets), targets)
    dual = -cost.sum() - found.weights.square().sum() / (2 * NU**2)
    assert float(value - dual) == pytest.approx(found.gap * float(value), abs=1e-11 * float(value))
    for _ in range(20):
        step = 0.1 * torch.randn(found.weights.shape, generator=generator, device=device, dtype=torch.float64)
        assert primal(found.weights + step, features, targets, loss, counts) >= dual


@pytest.mark.parametrize("counted", [False, True], ids=["once", "counted"])
@pytest.mark.parametrize("loss", [*LOSSES[:3], LOSSES[4], LOSSES[6]], ids=name_of)
def test_columns_are_improved_from_any_weights(loss, counted) -> None:
    """To the optimum, and within a few passes to no more than they cost before; boxes alone, on a CPU."""
    generator = torch.Generator().manual_seed(0)
    features, targets = case(loss, generator)
    counts = 0.3 + torch.rand(25, generator=generator, dtype=torch.float64) if counted else None
    times = torch.ones_like(targets[:, :1]) if counts is None else counts.unsqueeze(1)
    best = solve(features, targets, loss, NU, row_weights=counts, tolerance=1e-10, max_passes=5_000).weights

    def costs(weights: Tensor) -> Tensor:
        ridge = weights.square().sum(0) / (2 * NU**2)
        return ridge - (times * loss.log_factor(features @ weights, targets)).sum(0)

    other = 3 * torch.randn(best.shape, generator=generator, dtype=torch.float64)
    for start in (torch.zeros_like(best), best, other):
        for max_passes in (0, 1, 5_000):
            options = {"row_weights": counts, "tolerance": 1e-10, "max_passes": max_passes}
            found, columns = improved(features, targets, loss, NU, start, **options)
            close(columns.costs, costs(found), 1e-10)
            assert (columns.costs <= costs(start) + 1e-12).all()
        close(found, best, 1e-4)


class SquaredTube(EpsilonInsensitive):
    """phi(y | f) = exp(-max(0, |y - f| - e)^2 / (2 k)), with e the epsilon and k the strength."""

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return -((y - score).abs() - self.epsilon).relu().square() / (2 * self.strength)

    def box(self, y: Tensor) -> Box:
        return Box(y, torch.full_like(y, -torch.inf), torch.full_like(y, torch.inf), self.strength, self.epsilon)


@pytest.mark.parametrize("counted", [False, True], ids=["once", "counted"])
@pytest.mark.parametrize("loss", [SquaredTube(0.3, 0.5), OneVsRest(SquaredHinge(0.7, 1.2))], ids=name_of)
def test_newton_steps_end_what_passes_leave(loss, counted) -> None:
    """Rows of very different lengths, a wide prior and a start far off: passes alone would take thousands.

    A Newton step from where they end would lower the cost by half of g^T H^-1 g, its slope and its curvature there.
    """
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        features, targets = case(loss, generator, N=60, P=9)
        features = features * torch.randn(60, 1, generator=generator, dtype=torch.float64).exp().square()
        counts = 0.3 + torch.rand(60, generator=generator, dtype=torch.float64) if counted else None
        times = torch.ones_like(targets[:, :1]) if counts is None else counts.unsqueeze(1)
        start = 3 * torch.randn(9, targets.shape[1], generator=generator, dtype=torch.float64)
        options = {"row_weights": counts, "tolerance": 1e-10, "max_passes": 60}
        found, _ = improved(features, targets, loss, 30.0, start, **options)
        for c in range(targets.shape[1]):
            one = partial(cost, c=c, features=features, targets=targets, times=times, loss=loss)
            slope, curvature = jacobian(one, found[:, c]), hessian(one, found[:, c])
            assert slope @ torch.linalg.solve(curvature, slope) / 2 <= 1e-9 * one(found[:, c])


def cost(column: Tensor, c: int, features: Tensor, targets: Tensor, times: Tensor, loss: Loss) -> Tensor:
    """What weights [P] of class c cost under a prior of scale 30."""
    scores = (features @ column).unsqueeze(1).expand_as(targets)
    return column.square().sum() / (2 * 30.0**2) - (times * loss.log_factor(scores, targets))[:, c].sum()


@pytest.mark.parametrize("loss", [LOSSES[0], LOSSES[4], CrammerSinger(1.1)], ids=name_of)
def test_rounding_does_not_decide_where_passes_end(loss) -> None:
    """Rows at the kink of a loss have a gap of rounding alone: which of them are visited next must not depend on it."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        features, targets = case(loss, generator)
        noise = 1e-14 * torch.randn(features.shape, generator=generator, dtype=torch.float64)
        first, other = (solve(X, targets, loss, NU, tolerance=1e-2) for X in (features, features + noise))
        again, once_more = (
            solve(X, targets, loss, NU, start=found.tilt, tolerance=1e-6, max_passes=20)
            for X, found in ((features, first), (features + noise, other))
        )
        close(other.weights, first.weights, 1e-10)
        close(once_more.weights, again.weights, 1e-10)
        if loss.box(targets) is None:
            continue
        starts = first.weights, other.weights
        near, same = (
            improved(X, targets, loss, NU, start, row_weights=None, tolerance=0.01, max_passes=30)[0]
            for X, start in zip((features, features + noise), starts, strict=True)
        )
        close(same, near, 1e-10)


@pytest.mark.parametrize("loss", [*LOSSES, Masked(OneVsRest(Boxless()))], ids=name_of)
def test_each_block_of_rows_has_the_optimum_of_its_own(loss, generator) -> None:
    features, targets = case(loss, generator, N=40)
    counts = 0.3 + torch.rand(40, generator=generator, device=generator.device, dtype=torch.float64)
    weights, tilt, gap = solve_blocks(
        features,
        targets,
        loss,
        NU,
        [7, 33],
        row_weights=counts,
        start=0.1 * counts.unsqueeze(1).expand_as(targets),
        max_passes=500,
    )
    total = dual = 0.0
    for own, rows in zip(weights, (slice(7), slice(7, 40)), strict=True):
        least = solve(
            features[rows], targets[rows], loss, NU, row_weights=counts[rows], tolerance=1e-8, max_passes=9000
        )
        costs = [primal(each, features[rows], targets[rows], loss, counts[rows]) for each in (least.weights, own)]
        assert costs[0] <= costs[1] + 1e-9 <= 1.002 * costs[0]
        close(own, NU**2 * features[rows].T @ tilt[rows], 1e-8)
        count = counts[rows].unsqueeze(1)
        total += costs[1]
        conjugate = loss.conjugate(loss.feasible(tilt[rows] / count, targets[rows]), targets[rows])
        dual -= (count * conjugate).sum() + own.square().sum() / (2 * NU**2)
    assert float(total - dual) == pytest.approx(gap * float(total), abs=1e-8 * float(total))


@pytest.mark.parametrize("loss", LOSSES[:6], ids=name_of)
def test_a_generic_solver_agrees(loss, cpu_generator) -> None:
    """Hinges as quadratic programs with slacks; smooth losses by quasi-Newton steps."""
    features, targets = case(loss, cpu_generator, N=10, P=2)
    found = solve(features, targets, loss, NU, tolerance=1e-8, max_passes=10_000)
    if isinstance(loss, SquaredHinge | Logistic):
        expected = smooth_minimum(features, targets, loss)
    else:
        expected = slack_minimum(features.numpy(), targets.numpy(), loss)
    value, other = (float(primal(w, features, targets, loss)) for w in (found.weights, torch.from_numpy(expected)))
    assert value == pytest.approx(other, rel=1e-6)
    close(found.weights, torch.from_numpy(expected), 1e-3)


def smooth_minimum(features: Tensor, targets: Tensor, loss: Loss) -> np.ndarray:
    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.from_numpy(flat).view(features.shape[1], -1).requires_grad_()
        value = primal(leaf, features, targets, loss)
        return float(value.detach()), torch.autograd.grad(value, leaf)[0].numpy().ravel()

    start = np.zeros(features.shape[1] * targets.shape[1])
    return minimize(objective, start, jac=True, options={"gtol": 1e-9}).x.reshape(features.shape[1], -1)


def slack_minimum(features: np.ndarray, targets: np.ndarray, loss: Loss) -> np.ndarray:
    """min |eta|^2 / (2 nu^2) + w sum xi, xi above each line of its loss."""
    P, C = features.shape[1], targets.shape[1]

    def lines(eta: np.ndarray) -> np.ndarray:
        """[lines, slacks]"""
        f = features @ eta
        if isinstance(loss, CrammerSinger):
            own = targets > 0
            return (loss.margin * ~own + f - f[own][:, None]).T
        if isinstance(loss, EpsilonInsensitive):
            return np.stack([targets - f - loss.epsilon, f - targets - loss.epsilon, 0 * f]).reshape(3, -1)
        margin = getattr(loss, "loss", loss).margin
        return np.stack([margin - targets * f, 0 * f]).reshape(2, -1)

    strength, num_slacks = getattr(loss, "loss", loss).strength, lines(np.zeros((P, C))).shape[1]
    start = np.concatenate([np.zeros(P * C), np.full(num_slacks, 5.0)])
    found = minimize(
        lambda v: (v[: P * C] ** 2).sum() / (2 * NU**2) + 2 * strength * v[P * C :].sum(),
        start,
        jac=lambda v: np.concatenate([v[: P * C] / NU**2, np.full(num_slacks, 2.0 * strength)]),
        constraints={"type": "ineq", "fun": lambda v: (v[P * C :] - lines(v[: P * C].reshape(P, C))).ravel()},
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-13},
    )
    return found.x[: P * C].reshape(P, C)


def test_liblinear_has_the_same_weights(cpu_generator) -> None:
    """A weight is l w at C0 = 2 c nu^2 / l, and w at C0 = 2 c nu^2."""
    tight = {"fit_intercept": False, "tol": 1e-9, "max_iter": 1_000_000, "random_state": 0}
    for loss in (Hinge(0.4, 0.8), CrammerSinger(0.3, 1.4), EpsilonInsensitive(0.4, 0.2)):
        features, targets = case(loss, cpu_generator, N=60)
        found = solve(features, targets, loss, NU, tolerance=1e-13, max_passes=200_000).weights
        X, strength, margin = features.numpy(), 2 * loss.strength * NU**2, getattr(loss, "margin", 1.0)
        if isinstance(loss, EpsilonInsensitive):
            rival = LinearSVR(C=strength, epsilon=loss.epsilon, loss="epsilon_insensitive", dual=True, **tight)
            coef = rival.fit(X, targets.squeeze(1).numpy()).coef_[None]
        else:
            labels = targets.argmax(1) if loss.meets else targets.squeeze(1)
            kind = {"multi_class": "crammer_singer"} if loss.meets else {"loss": "hinge", "dual": True}
            coef = LinearSVC(C=strength / margin, **kind, **tight).fit(X, labels.numpy()).coef_
        close(found, margin * torch.from_numpy(coef.T.copy()), 1e-6)


@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
def test_it_goes_on_from_any_start(loss, generator) -> None:
    features, targets = case(loss, generator)
    found = solve(features, targets, loss, NU, tolerance=1e-5, max_passes=5_000)
    again = solve(features, targets, loss, NU, start=found.tilt, tolerance=1e-5)
    assert again.num_passes == 0
    close(again.weights, found.weights, 1e-12)
    none = solve(features, targets, loss, NU, start=found.tilt, tolerance=0.0, max_passes=0)
    assert none.gap == pytest.approx(found.gap, abs=1e-12)
    wild = 10 * torch.randn(targets.shape, generator=generator, device=targets.device, dtype=torch.float64)
    far = solve(features, targets, loss, NU, start=wild, tolerance=1e-5, max_passes=5_000)
    assert far.gap <= 1e-5
    close(far.weights, found.weights, 2e-2)


def test_a_missing_target_has_no_tilt(generator) -> None:
    for loss in LOSSES[-2:]:
        features, targets = case(loss, generator)
        found, known = solve(features, targets, loss, NU, tolerance=1e-7, max_passes=5_000), ~targets.isnan().any(1)
        assert not found.tilt[~known].any()
        rest = solve(features[known], targets[known], loss.loss, NU, tolerance=1e-7, max_passes=5_000)
        close(found.weights, rest.weights, 1e-3)


@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
def test_single_precision_and_edges(loss, generator) -> None:
    features, targets = case(loss, generator)
    double = solve(features, targets, loss, NU, tolerance=1e-4, max_passes=20_000)
    single = solve(features.float(), targets.float(), loss, NU, tolerance=1e-4, max_passes=20_000)
    assert single.weights.dtype == single.tilt.dtype == torch.float32
    close(single.weights.double(), double.weights, 5e-2)
    # rows of zeros cost what they cost, and close their gap; no rows at all leave the prior
    zeros = torch.cat([features, torch.zeros_like(features[:3])])
    found = solve(zeros, torch.cat([targets, targets[1:4]]), loss, NU, tolerance=1e-5, max_passes=5_000)
    assert found.gap <= 1e-5
    empty = solve(features[:0], targets[:0], loss, NU)
    assert not empty.weights.any()
    assert empty.gap == 0


def test_a_loss_without_conjugate_is_refused(generator) -> None:
    features, targets = case(EpsilonInsensitive(), generator)
    with pytest.raises(NotImplementedError, match=r"StudentT has no convex conjugate.*EpsilonInsensitive"):
        solve(features, targets, StudentT(), NU)


@pytest.mark.parametrize(
    "loss", [Hinge(), EpsilonInsensitive(1.5, 0.2), SquaredHinge(), Masked(OneVsRest(Hinge()))], ids=name_of
)
def test_few_rows_that_are_nearly_parallel_are_solved(loss, generator) -> None:
    """By turns alone such rows are far above a gap of 1e-10 after 500 passes."""
    for _ in range(10):
        features, targets = case(loss, generator, N=6, P=3)
        features = torch.cat([features.new_ones(6, 1), 3.0 + 0.1 * features], 1)
        counts = torch.arange(1.0, 7.0, device=features.device).double()
        found = solve(features, targets, loss, 1.0, row_weights=counts, tolerance=1e-10)
        assert found.gap <= 1e-10
        assert found.num_passes <= (600 if features.device.type == "cpu" else 1000)  # turns, and then few steps


@pytest.mark.parametrize(
    "loss", [SquaredHinge(20.0), SquaredHinge(0.6, 1.5), Masked(OneVsRest(SquaredHinge(2.0)))], ids=repr
)
def test_newton_steps_of_the_primal_find_what_turns_do(loss, cpu_generator, monkeypatch) -> None:
    features, targets = case(loss, cpu_generator, N=200)
    features = (features > 0).double() + 1e-3 * features
    counts = 0.3 + torch.rand(200, generator=cpu_generator, dtype=torch.float64)
    start = torch.rand(targets.shape, generator=cpu_generator, dtype=torch.float64)
    given = {"row_weights": counts, "tolerance": 1e-12, "start": start}
    turns = solve(features, targets, loss, NU, max_passes=10_000, **given)
    monkeypatch.setattr(host, "on_cpu", lambda like: False)
    found = solve(features, targets, loss, NU, max_passes=12, **given)
    assert found.gap <= 1e-12
    assert found.num_passes < 12
    close(found.weights, turns.weights, 1e-6)
    close(found.weights, NU**2 * features.T @ found.tilt, 1e-9)
    problem = Problem(features, targets, loss, NU, counts)
    tilt = problem.feasible(start)
    gaps = [solve(features, targets, loss, NU, max_passes=most, **given).gap for most in range(3)]
    assert gaps[0] >= gaps[1] >= gaps[2]
    assert gaps[0] == pytest.approx(problem.gaps(features @ problem.weights(tilt), tilt)[1])  # of the start


def test_a_newton_step_never_raises_the_primal(cpu_generator) -> None:
    """Not even along a direction that points uphill."""
    loss = OneVsRest(SquaredHinge(2.0))
    problem = Problem(*case(loss, cpu_generator), loss, NU, None)
    for size in (1e-3, 1.0, 1e6):
        weights, direction = size * torch.randn(2, 4, 3, generator=cpu_generator, dtype=torch.float64)
        moved = primal_newton._lower(problem, weights, direction)
        assert (primal_newton._primal(problem, moved) <= primal_newton._primal(problem, weights)).all()
        slope = jacobian(partial(primal_newton._primal, problem), weights).sum(0)
        moved = primal_newton._lower(problem, weights, 1e3 * slope)  # too far down
        assert (primal_newton._primal(problem, moved) < primal_newton._primal(problem, weights)).all()


@pytest.mark.parametrize("loss", [Hinge(), OneVsRest(Hinge())], ids=name_of)
def test_few_rows_have_many_turns_before_costly_steps(loss, monkeypatch) -> None:
    """A turn of a hundred rows costs a thousandth of such a step."""
    generator = torch.Generator().manual_seed(0)
    features, targets = case(loss, generator, N=100, P=5)
    steps: list[None] = []
    monkeypatch.setattr(duals, "_by_newton", lambda exact, start, tolerance: steps.append(None) or start)
    for more, expected in ((duals._STEPS, False), (0, True)):
        monkeypatch.setattr(duals, "_STEPS", more)
        steps.clear()
        for scale in (0.3, 0.6, 1.2):
            assert solve(scale * features + 0.3, targets, loss, 1.0).gap <= 1e-3
        assert bool(steps) == expected


def test_few_passes_report_their_gap(generator) -> None:
    loss = CrammerSinger(5.0)
    features, targets = case(loss, generator, N=200)
    gaps = [solve(features, targets, loss, NU, tolerance=0.0, max_passes=most) for most in (1, 10, 100)]
    assert [each.num_passes for each in gaps] == [1, 10, 100]
    assert gaps[0].gap > gaps[1].gap > gaps[2].gap > 0
    assert isinstance(gaps[0], Dual)


BITS = [
    Hinge(1.3, 0.8),
    SquaredHinge(20.0),
    EpsilonInsensitive(0.7, 0.2),
    Masked(OneVsRest(Hinge())),
    CrammerSinger(0.7, 1.4),
    Masked(CrammerSinger()),
]


@pytest.mark.parametrize("loss", BITS, ids=name_of)
def test_nearly_alike_points_are_solved_to_rounding(loss, generator) -> None:
    """Features that are nearly bits, as those of latent features: in turns their gap falls as one over the passes."""
    features, targets = case(loss, generator, N=400, P=5)
    bits = (features > 0).double() + 1e-6 * features
    counts = 0.3 + torch.rand(400, generator=generator, device=generator.device, dtype=torch.float64)
    found = solve(bits, targets, loss, NU, row_weights=counts, tolerance=1e-9, max_passes=300)
    assert found.gap <= 1e-9
