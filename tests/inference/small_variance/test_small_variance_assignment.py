"""Assignments of the small-variance limit from rough divergences: the same ones as from all costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from regbayes.inference.small_variance import assignment
from regbayes.inference.small_variance.problem import Problem
from regbayes.models import DPM, Hinge, InfiniteSVM, SphericalGaussian

N, D, K = 400, 5, 7


def setting(generator, *, with_labels: bool, spread: float = 1.0, dtype=torch.float64):
    """A problem, and centres and classifiers that are near some of its rows."""
    X = torch.randn(N, D, generator=generator, device=generator.device, dtype=torch.float64).to(dtype)
    y = torch.randint(2, (N,), generator=generator, device=generator.device)
    family = SphericalGaussian(loc=torch.zeros(D), variance=1.0)
    model = InfiniteSVM(family, loss=Hinge()).resolve(X, y) if with_labels else DPM(family).resolve(X)
    problem = Problem.of(model, model.data(X, y), 1.0)
    centers = spread * torch.randn(K, D, generator=generator, device=generator.device, dtype=torch.float64).to(dtype)
    C = problem.data.targets.shape[1]
    weights = torch.randn(
        K, problem.data.features.shape[1], C, generator=generator, device=generator.device, dtype=torch.float64
    ).to(dtype)
    return problem, centers, weights


def agree(problem, centers, weights) -> None:
    found, cost, _ = assignment.nearest_components(problem, centers, weights)
    costs = assignment.all_costs(problem, centers, weights)
    assert torch.equal(found, costs.argmin(1))
    scale = problem.X.double().square().sum(1).max() + centers.double().square().sum(1).max()
    atol = 10 * torch.finfo(costs.dtype).eps * float(scale)
    torch.testing.assert_close(cost, costs.amin(1), rtol=1e-6, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("with_labels", [False, True], ids=["plain", "labels"])
@pytest.mark.parametrize("spread", [0.01, 1.0, 20.0])
def test_the_cheapest_component_is_found(with_labels, spread, dtype, generator) -> None:
    agree(*setting(generator, with_labels=with_labels, spread=spread, dtype=dtype))


@pytest.mark.parametrize(("size", "far"), [(1e-22, 0.0), (1e-3, 1e3), (1.0, 1e6), (1e30, 0.0)])
def test_single_precision_does_not_show(size, far, generator) -> None:
    problem, centers, weights = setting(generator, with_labels=False)
    X, centers = size * problem.X + far, size * centers + far
    problem = replace(problem, X=X, base=torch.zeros_like(problem.base))
    agree(problem, centers, weights)


def test_rows_between_two_centres_are_costed_in_full(generator) -> None:
    problem, centers, weights = setting(generator, with_labels=False)
    centers[1] = centers[0] * (1 + 1e-9)
    agree(problem, centers, weights)
    found, *_ = assignment.nearest_components(problem, centers[[0, 0]], weights[:2])
    assert not found.any()  # a tie is the first one's


def test_few_rows_of_clear_components_are_costed_in_full(cpu_generator, monkeypatch) -> None:
    problem, _, weights = setting(cpu_generator, with_labels=True)
    centers = 20 * torch.randn(K, D, generator=cpu_generator, device=cpu_generator.device, dtype=torch.float64)
    X = problem.X + centers[torch.randint(K, (N,), generator=cpu_generator, device=cpu_generator.device)]
    problem, costed = replace(problem, X=X), list[int]()
    cheapest = assignment._cheapest
    monkeypatch.setattr(assignment, "_cheapest", lambda part, *at: costed.append(len(part.X)) or cheapest(part, *at))
    agree(problem, centers, weights / 10)
    assert sum(costed) < N / 10
