"""Point estimates of classifiers: against generic solvers, set by set, and costs that never rise, for every loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize
from setups import Ramp, name_of
from torch import Tensor

from regbayes.inference.classifiers import duals
from regbayes.inference.classifiers import minimum as module
from regbayes.inference.classifiers.minimum import (
    DualLimits,
    Estimate,
    curved,
    descended,
    estimate,
    majorized,
    majorizer_minimum,
    minimum,
    slopes,
    solved,
    target_size,
)
from regbayes.inference.classifiers.scored import Scored
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

NU = 0.8
FINE = DualLimits(1e-10, 5000)
COUNTS = torch.tensor([1.0, 2, 1, 3, 1, 1, 2, 1, 1, 2, 1, 1, 1, 2, 1, 1, 3, 1], dtype=torch.float64)
LOSSES: list[Loss] = [
    Hinge(1.1, 0.9),
    SquaredHinge(0.6),
    Logistic(),
    EpsilonInsensitive(0.9, 0.2),
    OneVsRest(Ramp()),
    Masked(OneVsRest(Ramp())),
    Masked(OneVsRest(Hinge())),
    CrammerSinger(0.7),
]
STRANGE: list[Loss] = [StudentT(), Masked(StudentT())]


def problem_of(loss: Loss, weighted: bool = False, num_owners: int = 0) -> Scored:
    """18 rows of three features with one real target, or three signs; of owners in turn, or of none."""
    generator = torch.Generator().manual_seed(4)
    features = torch.randn(18, 3, generator=generator, dtype=torch.float64)
    truth = features @ torch.randn(3, 3, generator=generator, dtype=torch.float64)
    truth = truth + torch.randn(18, 3, generator=generator, dtype=torch.float64)
    targets = truth[:, :1] if loss.target == "real" else truth.sign()
    if loss.meets:
        targets = 2 * torch.nn.functional.one_hot(truth.argmax(1), 3).double() - 1
    if isinstance(loss, Masked):
        targets = targets.index_fill(0, torch.tensor([2, 11]), torch.nan)
    owners = {"owner": torch.arange(18) % num_owners, "num_owners": num_owners} if num_owners else {}
    return Scored(features, targets, loss, NU, COUNTS if weighted else None, **owners)


def at_zero(problem: Scored) -> Estimate:
    return estimate(problem, torch.zeros(problem.num_owners, 3, problem.targets.shape[1], dtype=torch.float64))


def generic(problem: Scored) -> float:
    """The least cost of one set for all rows, by quasi-Newton steps from several starts."""
    shape, found = (3, problem.targets.shape[1]), []
    counts = torch.ones(18).double() if problem.row_weights is None else problem.row_weights

    def objective(flat):
        leaf = torch.from_numpy(flat).view(shape).requires_grad_()
        factors = problem.loss.log_factor(problem.features @ leaf, problem.targets)
        value = leaf.square().sum() / (2 * NU**2) - (counts.unsqueeze(1) * factors).sum()
        return float(value.detach()), torch.autograd.grad(value, leaf)[0].numpy().ravel()

    for seed in range(3):
        start = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy().ravel()
        found.append(minimize(objective, start, jac=True, options={"gtol": 1e-9, "maxiter": 2000}).fun)
    return min(found)


@pytest.mark.parametrize("weighted", [False, True], ids=["once", "weighed"])
@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
def test_it_is_the_minimum(loss, weighted) -> None:
    problem = problem_of(loss, weighted)
    fit = minimum(problem, at_zero(problem), FINE, 400)
    least = generic(problem)
    assert float(fit.cost.sum()) <= least * (1 + 1e-4)  # a generic solver may end above a kink
    assert float(fit.cost.sum()) >= least * (1 - 3e-3)
    torch.testing.assert_close(problem.value(fit.weights), fit.cost)
    torch.testing.assert_close(problem.scores(fit.weights), fit.scores)
    assert fit.gap.isnan() == (not problem.loss.has_conjugate)


@pytest.mark.parametrize("loss", [*LOSSES, *STRANGE], ids=name_of)
def test_no_step_of_any_loss_costs_more(loss) -> None:
    """Of no set, from anywhere: of losses that are not convex as well."""
    for seed in range(5):
        problem = problem_of(loss, True, 2)
        generator = torch.Generator().manual_seed(seed)
        weights = 3 * torch.randn(2, 3, problem.targets.shape[1], generator=generator, dtype=torch.float64)
        fit = start = estimate(problem, weights)
        for num_steps in (1, 2, 1, 5):
            before, fit = fit, majorized(problem, fit, num_steps)
            assert (fit.cost <= before.cost).all()
        assert fit.cost.sum() < 0.9 * start.cost.sum()


@pytest.mark.parametrize("loss", [Hinge(), Logistic(), Masked(OneVsRest(Hinge()))], ids=name_of)
def test_owners_that_go_less_than_the_whole_way_do_so_without_the_others(loss) -> None:
    problem = problem_of(loss, True, 3)
    fit = at_zero(problem)
    target = majorizer_minimum(problem, fit, slice(None), 0.3)
    target[1:] *= torch.tensor([3.0, 20.0]).view(2, 1, 1)
    found = descended(problem, fit, target)
    expected, _ = module._lowered(problem, fit, target, problem.scores(target), range(module._NUM_SHARES))
    assert torch.equal(found.weights[0], target[0])
    assert not torch.equal(found.weights, target)
    for part in ("weights", "scores", "cost"):
        assert torch.equal(getattr(found, part), getattr(expected, part))
    assert (found.cost <= fit.cost).all()


@pytest.mark.parametrize("by", [majorized, solved], ids=["majorized", "solved"])
def test_owners_have_the_classifiers_of_their_own_rows(by) -> None:
    whole = problem_of(Hinge(), True, 3)
    limit = 200 if by is majorized else FINE
    together = by(whole, at_zero(whole), limit)
    for k in range(3):
        own = whole.owner == k
        alone = Scored(whole.features[own], whole.targets[own], whole.loss, NU, COUNTS[own])
        fit = by(alone, at_zero(alone), limit)
        torch.testing.assert_close(together.cost[[k]], fit.cost, rtol=1e-5, atol=0.0)
        torch.testing.assert_close(together.weights[[k]], fit.weights, rtol=0.0, atol=1e-2)
        torch.testing.assert_close(together.tilt[own], fit.tilt, rtol=0.0, atol=1e-5)


def test_owners_of_a_quick_dual_are_one_call(monkeypatch) -> None:
    calls, climb = [], duals._climb_blocks
    monkeypatch.setattr(duals, "_climb_blocks", lambda *args: calls.append(args) or climb(*args))
    problem = problem_of(Hinge(), True, 3)
    found = solved(problem, at_zero(problem), DualLimits(1e-3, 100))
    assert len(calls) == 1
    assert 0 <= found.gap <= 1e-3


@pytest.mark.parametrize("num_owners", [0, 3])
@pytest.mark.parametrize("loss", [Logistic(), OneVsRest(Logistic())], ids=name_of)
def test_a_few_steps_of_newton_solve_a_smooth_dual_and_their_gap_is_that_of_the_slopes(loss, num_owners) -> None:
    """A wide prior, with which a dual takes hundreds of passes."""
    problem = replace(problem_of(loss, True, num_owners), weight_scale=30.0)
    fit = minimum(problem, at_zero(problem), DualLimits(1e-6, 0), 0)
    assert 0 <= fit.gap <= 1e-6
    value, count = float(fit.cost.sum()), COUNTS.unsqueeze(1)
    pulls = torch.stack([problem.features[own].T @ fit.tilt[own] for own in problem.rows()])
    conjugate = count * loss.conjugate(fit.tilt / count, problem.targets)
    dual = -float(conjugate.sum() + problem.weight_scale**2 * pulls.square().sum() / 2)
    assert value - dual == pytest.approx(float(fit.gap) * value, rel=1e-3, abs=1e-10 * value)
    rough = curved(problem, at_zero(problem), 0.05)
    assert fit.gap < rough.gap <= 0.05
    assert rough.cost.sum() <= value * (1 + float(rough.gap)) / (1 - float(rough.gap))


def test_where_steps_of_newton_leave_a_gap_tilts_stay() -> None:
    problem = problem_of(Hinge())
    start = at_zero(problem)._replace(tilt=torch.full((18, 3), 0.1, dtype=torch.float64))
    fit = curved(problem, start, 1e-9)
    assert (fit.cost <= start.cost).all()
    assert torch.equal(fit.tilt, start.tilt)
    assert fit.gap.isnan()


def test_a_dual_that_ends_above_the_start_is_not_taken() -> None:
    problem = problem_of(OneVsRest(Hinge()))
    best = solved(problem, at_zero(problem), FINE)
    again = solved(problem, best._replace(tilt=torch.zeros_like(best.tilt)), DualLimits(0.5, 1))
    assert (again.cost <= best.cost).all()
    assert not torch.equal(again.tilt, best.tilt)


@pytest.mark.parametrize("loss", [Logistic(), Masked(OneVsRest(Ramp()))], ids=name_of)
def test_at_the_minimum_the_slopes_balance_the_ridge(loss) -> None:
    problem = problem_of(loss, True)
    fit = minimum(problem, at_zero(problem), None, 400)
    pull = problem.features.T @ (COUNTS.unsqueeze(1) * slopes(loss, fit.scores, problem.targets))
    torch.testing.assert_close(NU**2 * pull, fit.weights[0], rtol=0.0, atol=2e-2)


def test_the_blur_is_in_units_of_known_targets() -> None:
    targets: Tensor = problem_of(Masked(EpsilonInsensitive())).targets
    known = ~targets.isnan()
    expected = (COUNTS * targets.nan_to_num().abs().squeeze(1)).sum() / (COUNTS * known.squeeze(1)).sum()
    torch.testing.assert_close(target_size(problem_of(Masked(EpsilonInsensitive()), True)), expected)
