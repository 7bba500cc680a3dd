"""The small-variance limit of tasks that share a projection: objective, descent, the best of all projections."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from setups import Ramp, name_of, seeded
from torch import Tensor

from regbayes.inference import Posterior, SmallVariance
from regbayes.inference.classifiers.duals import solve
from regbayes.inference.small_variance import projection as small
from regbayes.models import (
    EpsilonInsensitive,
    Hinge,
    LinearGaussian,
    Loss,
    MultiTaskInfiniteLatentSVM,
    SquaredHinge,
    StudentT,
)

GENERATOR = torch.Generator().manual_seed(9)
X = torch.randn((8, 3), generator=GENERATOR, dtype=torch.float64)
SIGNS = torch.tensor(
    [[1.0, -1], [-1, 1], [1, math.nan], [math.nan, 1], [-1, -1], [1, 1], [-1, 1], [1, -1]], dtype=torch.float64
)
REAL = torch.where(SIGNS.isnan(), torch.nan, torch.randn((8, 2), generator=GENERATOR, dtype=torch.float64))
MODELS = {
    "hinge": MultiTaskInfiniteLatentSVM(loss=Hinge(0.7)),
    "hinge with x": MultiTaskInfiniteLatentSVM(LinearGaussian(), Hinge(0.7)),
    "regression": MultiTaskInfiniteLatentSVM(LinearGaussian(noise_variance=0.5), EpsilonInsensitive(0.6)),
    "squared": MultiTaskInfiniteLatentSVM(loss=SquaredHinge(0.5), preprocessing=None),
}


def problem_of(name: str, scale: float = 0.5) -> small.Problem:
    model = MODELS[name]
    return small.Problem.of(*model.prepare(X, REAL if model.loss.target == "real" else SIGNS), scale)


def cost(problem: small.Problem, Z: Tensor, loadings: Tensor, weights: Tensor, penalty: float) -> float:
    """F of any loadings [N, K] and weights [K + P, M], row by row."""
    model, data, total = problem.model, problem.data, penalty * Z.shape[1]
    for n, x in enumerate(data.X):
        if model.likelihood is not None:
            rest = x - model.likelihood.offset - Z @ loadings[n]
            total += problem.attraction * float(rest @ rest) + problem.ridge * float(loadings[n] @ loadings[n])
        scores = torch.cat([Z.T @ x, data.inputs[n]]) @ weights
        for m, target in enumerate(data.targets[n]):
            if not target.isnan():
                total -= float(model.loss.log_factor(scores[m : m + 1], target.unsqueeze(0)))
    return total + float(weights.square().sum()) / (2 * model.weight_scale**2)


def best_cost(problem: small.Problem, Z: Tensor, penalty: float) -> float:
    """The least F for a projection, by duals solved far."""
    data, model = problem.data, problem.model
    features, weights = torch.cat([data.X @ Z, data.inputs], 1), []
    for target in data.targets.T:
        own = ~target.isnan()
        loss = model.loss.loss if own.numel() and hasattr(model.loss, "loss") else model.loss
        found = solve(features[own], target[own].unsqueeze(1), loss, model.weight_scale, tolerance=1e-4, max_passes=400)
        weights.append(found.weights)
    offset = 0.0 if model.likelihood is None else model.likelihood.offset
    loadings = (data.X - offset) @ problem.loading_map(Z)
    return cost(problem, Z, loadings, torch.cat(weights, 1), penalty)


@pytest.mark.parametrize("name", MODELS)
def test_the_objective_is_that_of_the_rows_at_the_best_loadings(name: str) -> None:
    problem, generator = problem_of(name), torch.Generator().manual_seed(0)
    state = small.start(problem, 0.8)
    for _ in range(2):
        state = small.sweep(state, problem, generator, 1e-3)
    Z, offset = state.features, 0.0 if problem.model.likelihood is None else problem.model.likelihood.offset
    loadings = (problem.data.X - offset) @ problem.loading_map(Z)
    assert Z.shape[1]
    assert math.isclose(float(state.objective), cost(problem, Z, loadings, state.weights, 0.8), rel_tol=1e-9)
    for _ in range(5):
        moved = loadings + 0.1 * torch.randn(loadings.shape, generator=generator, dtype=torch.float64)
        assert cost(problem, Z, moved, state.weights, 0.8) >= float(state.objective) - 1e-9


@pytest.mark.parametrize("name", MODELS)
def test_every_step_lowers_the_objective(name: str) -> None:
    problem, generator = problem_of(name), torch.Generator().manual_seed(0)
    state = small.start(problem, 0.3)
    for _ in range(4):
        for step in (small.set_bits, small.fit_weights, small.shrink):
            before = state.objective
            state = step(state, problem)
            assert state.objective <= before + 1e-9
        before = state.objective
        state = small.sweep(state, problem, generator, 1e-3)
        assert state.objective <= before + 1e-9


@pytest.mark.parametrize("name", ["hinge", "hinge with x", "regression"])
def test_the_descent_finds_the_best_of_all_projections(name: str) -> None:
    """Of up to two features with bits in three dimensions; a third feature may be found that is better still."""
    problem, penalty = problem_of(name), 1.5
    columns = [torch.tensor(bits, dtype=torch.float64) for bits in itertools.product([0.0, 1.0], repeat=3)][1:]
    choices = [[], *([one] for one in columns), *map(list, itertools.combinations(columns, 2))]
    costs = [best_cost(problem, torch.stack(c, 1) if c else torch.zeros(3, 0).double(), penalty) for c in choices]
    backend = SmallVariance(penalty=penalty, scale=0.5, num_restarts=3, max_steps=15)
    model = problem.model
    posterior = backend.fit(model, X, REAL if model.loss.target == "real" else SIGNS)
    found = float(posterior.trace.final.min())
    assert found <= min(costs) * 1.02
    if posterior.features.shape[1] <= 2:
        assert found >= min(costs) * 0.999


def test_a_fit_predicts_and_is_kept(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn((90, 4), generator=generator, dtype=torch.float64)
    Y = (rows @ torch.tensor([[1.0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 1]], dtype=torch.float64) > 0).long()
    backend, model = SmallVariance(num_restarts=1, num_components=4, max_steps=8), MultiTaskInfiniteLatentSVM()
    file = tmp_path / "chain.pt"
    backend.replace(max_steps=2).fit(model, rows[:60], Y[:60], checkpoint=file)
    resumed, posterior = backend.fit(model, rows[:60], Y[:60], resume=file), backend.fit(model, rows[:60], Y[:60])
    assert torch.equal(resumed.features, posterior.features)
    posterior.save(tmp_path / "posterior.pt")
    loaded = Posterior.load(tmp_path / "posterior.pt")
    assert torch.equal(loaded.decision_function(rows), posterior.decision_function(rows))
    assert (posterior.predict(rows[60:]) == Y[60:]).double().mean() > 0.85
    assert 1 <= posterior.num_latent_features <= 8


@pytest.mark.parametrize("loss", [Ramp(), StudentT()], ids=name_of)
def test_a_loss_of_which_nothing_but_the_factor_is_known(loss: Loss) -> None:
    y = REAL if loss.target == "real" else SIGNS
    problem, generator = small.Problem.of(*MultiTaskInfiniteLatentSVM(loss=loss).prepare(X, y), 0.5), seeded()
    state = small.start(problem, 0.3)
    for _ in range(3):
        for step in (small.set_bits, small.fit_weights, small.shrink):
            before, state = state.objective, step(state, problem)
            assert state.objective <= before + 1e-9
        before, state = state.objective, small.sweep(state, problem, generator, 1e-3)
        assert state.objective <= before + 1e-9
    assert state.objective < 0.9 * small.start(problem, 0.3).objective
    assert SmallVariance(num_restarts=1, max_steps=3).fit(problem.model, X, y).predict(X).shape == y.shape
