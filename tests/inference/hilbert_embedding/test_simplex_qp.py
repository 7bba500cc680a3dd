"""Quadratic programs on the simplex: enumeration of supports, optimality conditions, descent, a reference solver."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from regbayes.inference.hilbert_embedding.simplex_qp import accelerate, gap, objective, pivot, project, scale, sweep


class Solution(NamedTuple):
    weights: torch.Tensor
    gap: float
    objective: float
    num_sweeps: int


def solve(quadratic, linear, *, start=None, tolerance=1e-10, max_sweeps=1000):
    """The optimum up to a gap, in units of the largest entry of the diagonal: weights, gap, objective, sweeps taken."""
    weights = torch.full_like(linear, 1 / len(linear)) if start is None else start
    enough, num_sweeps, before = tolerance * scale(quadratic), 0, None
    while (found := gap(quadratic, linear, weights)) > enough and num_sweeps < max_sweeps:
        if before is not None and torch.equal(weights, before):
            break  # as near as rounding lets it come
        before, weights, num_sweeps = weights, sweep(quadratic, linear, weights, enough), num_sweeps + 1
    return Solution(weights, found, float(objective(quadratic, linear, weights)), num_sweeps)


def problem(T: int, generator, *, rank: int | None = None, ridge: float = 1e-3) -> tuple[torch.Tensor, torch.Tensor]:
    """A random program whose optimum has some, but not all weights positive."""
    like = {"generator": generator, "device": generator.device, "dtype": torch.float64}
    root = torch.randn(T, T if rank is None else rank, **like)
    quadratic = root @ root.T / root.shape[1] + ridge * torch.eye(T, dtype=root.dtype, device=root.device)
    return quadratic, 0.5 * torch.randn(T, **like)


def kernel_problem(T: int, generator) -> tuple[torch.Tensor, torch.Tensor]:
    """A nearly singular one, of Gaussian bumps and rows."""
    like = {"generator": generator, "device": generator.device, "dtype": torch.float64}
    centers, rows = 2 * torch.randn(T, 2, **like), torch.randn(300, 2, **like)
    return (torch.exp(-torch.cdist(a, centers).square() / 2) for a in (centers, rows))


def by_enumeration(quadratic: torch.Tensor, linear: torch.Tensor) -> float:
    """The least objective over all supports."""
    Q, r, best = quadratic.cpu().numpy(), linear.cpu().numpy(), np.inf
    for size in range(1, len(r) + 1):
        for support in map(list, itertools.combinations(range(len(r)), size)):
            ones = np.ones(size)
            system = np.block([[Q[np.ix_(support, support)], ones[:, None]], [ones, 0.0]])
            weights = np.linalg.lstsq(system, np.append(r[support], 1.0), rcond=None)[0][:size]
            if (weights >= 0).all() and abs(weights.sum() - 1) < 1e-9:
                best = min(best, weights @ Q[np.ix_(support, support)] @ weights / 2 - r[support] @ weights)
    return best


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("seed", range(4))
def test_optimum_is_the_best_of_all_supports(rank, seed, device):
    generator = torch.Generator(device).manual_seed(seed)
    quadratic, linear = problem(7, generator, rank=rank, ridge=0.0 if rank else 1e-3)
    found = solve(quadratic, linear, tolerance=1e-13)
    assert found.objective == pytest.approx(by_enumeration(quadratic, linear), abs=1e-11)
    assert found.objective == pytest.approx(float(objective(quadratic, linear, found.weights)), abs=1e-14)


@pytest.mark.parametrize("T", [1, 2, 60, 300])
def test_conditions_of_optimality_hold(T, generator):
    quadratic, linear = problem(T, generator)
    weights, found, _, _ = solve(quadratic, linear, tolerance=1e-11)
    gradient = quadratic @ weights - linear
    level = gradient[weights > 0]
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-12)
    assert (weights >= 0).all()
    assert level.max() - level.min() < 1e-7
    assert gradient.min() >= level.min() - 1e-7
    assert found <= 1e-11 * quadratic.diagonal().max()
    assert T < 10 or 2 < (weights > 0).sum() < T


def test_nearly_singular_kernels_are_solved(generator):
    S, cross = kernel_problem(150, generator)
    found = solve(S, cross.mean(0), tolerance=1e-12)
    assert found.gap <= 1e-12
    assert found.num_sweeps <= 3


def test_agrees_with_a_reference_solver(generator):
    quadratic, linear = problem(25, generator)
    Q, r = quadratic.cpu().numpy(), linear.cpu().numpy()
    reference = minimize(
        lambda p: p @ Q @ p / 2 - r @ p,
        np.full(25, 1 / 25),
        jac=lambda p: Q @ p - r,
        bounds=[(0, 1)] * 25,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(solve(quadratic, linear).weights.cpu(), reference.x, atol=1e-6)


@pytest.mark.parametrize("make", [problem, lambda T, generator: tuple(kernel_problem(T, generator))])
def test_no_part_raises_the_objective(make, generator):
    quadratic, linear = make(40, generator)
    linear = linear if linear.ndim == 1 else linear.mean(0)
    start = project(torch.randn(40, generator=generator, dtype=torch.float64, device=generator.device))
    values = [objective(quadratic, linear, accelerate(quadratic, linear, start, num_steps=n)) for n in range(60)]
    assert (torch.stack(values).diff() <= 1e-15).all()
    assert values[0] - values[-1] > 1e-3
    weights, values = start, []
    for _ in range(4):
        values.append(objective(quadratic, linear, weights))
        weights = sweep(quadratic, linear, weights)
    assert (torch.stack(values).diff() <= 1e-15).all()


def test_each_part_alone_reaches_the_optimum(generator):
    quadratic, linear = problem(30, generator, ridge=0.1)
    start = torch.full_like(linear, 1 / 30)
    best = solve(quadratic, linear, tolerance=1e-13).objective
    assert gap(quadratic, linear, pivot(quadratic, linear, start)) < 1e-12
    descended = accelerate(quadratic, linear, start, num_steps=1000)
    assert float(objective(quadratic, linear, descended)) == pytest.approx(best, abs=1e-9)
    plain = start  # momentum is what makes it fast
    step = 1 / quadratic.abs().sum(1).max()
    for _ in range(100):
        plain = project(plain - step * (quadratic @ plain - linear))
    quick = accelerate(quadratic, linear, start, num_steps=100)
    assert objective(quadratic, linear, quick) - best < 0.5 * (objective(quadratic, linear, plain) - best)


def test_gap_bounds_the_distance_to_the_optimum(generator):
    ridge = 0.05
    quadratic, linear = problem(12, generator, rank=4, ridge=ridge)
    best = solve(quadratic, linear, tolerance=1e-14)
    for size in torch.logspace(-3, 1, 20):
        noise = torch.randn(12, generator=generator, dtype=torch.float64, device=generator.device)
        weights = project(best.weights + float(size) * noise)
        found = gap(quadratic, linear, weights)
        assert found >= objective(quadratic, linear, weights) - best.objective - 1e-13
        assert (weights - best.weights).square().sum() <= 2 * found / ridge + 1e-12


def test_start_and_units_do_not_matter(generator):
    quadratic, linear = problem(50, generator)
    start = project(torch.randn(50, generator=generator, dtype=torch.float64, device=generator.device))
    found = solve(quadratic, linear)
    torch.testing.assert_close(solve(quadratic, linear, start=start).weights, found.weights, atol=1e-8, rtol=0)
    small = solve(1e-20 * quadratic, 1e-20 * linear)
    torch.testing.assert_close(small.weights, found.weights, atol=1e-8, rtol=0)


def test_projection_is_the_nearest_point(generator):
    values = 2 * torch.randn(9, generator=generator, dtype=torch.float64, device=generator.device)
    found = project(values)
    assert float(found.sum()) == pytest.approx(1.0)
    assert (found >= 0).all()
    corners = torch.eye(9, dtype=torch.float64, device=generator.device)
    assert ((corners - found) @ (values - found) <= 1e-12).all()
    torch.testing.assert_close(project(found), found)


def test_degenerate_programs():
    zero, linear = torch.zeros(3, 3).double(), torch.tensor([0.0, 2.0, 1.0]).double()
    assert solve(zero, linear).weights.tolist() == [0.0, 1.0, 0.0]
    alike = solve(torch.ones(4, 4).double(), torch.ones(4).double())
    assert alike.gap <= 1e-12
    assert float(alike.weights.sum()) == pytest.approx(1.0)


def test_a_gap_that_rounding_forbids_ends_the_solution(generator):
    quadratic, linear = problem(40, generator)
    assert solve(quadratic, linear, tolerance=0.0).num_sweeps < 20


def test_programs_of_rank_one_are_solved(generator):
    """Where pivots have nothing to solve for: against every pair of weights, which is where an optimum lies."""
    T, vertices = 4, torch.eye(4, dtype=torch.float64, device=generator.device)
    for _ in range(200):
        factor, linear = torch.randn(2, T, generator=generator, dtype=torch.float64, device=generator.device)
        quadratic = torch.outer(factor, factor)
        found = solve(quadratic, linear)
        best = math.inf
        for i, j in itertools.combinations(range(T), 2):
            apart, slope = factor[i] - factor[j], linear[i] - linear[j]
            share = float(((slope - apart * factor[j]) / apart**2).clamp(0, 1))
            point = share * vertices[i] + (1 - share) * vertices[j]
            best = min(best, float(objective(quadratic, linear, point)))
        assert found.objective <= best + 1e-8
        assert found.gap <= 1e-7  # of a program that is singular, to the root of rounding
