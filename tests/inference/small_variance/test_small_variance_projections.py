"""The small-variance limit of tasks that share a projection: objective, descent, the best of all projections."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from setups import Ramp, seeded

from regbayes.inference import SmallVariance
from regbayes.inference.small_variance import projection as small
from regbayes.models import (
    EpsilonInsensitive,
    Hinge,
    LinearGaussian,
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
    "factor alone": MultiTaskInfiniteLatentSVM(loss=Ramp()),
    "not convex": MultiTaskInfiniteLatentSVM(loss=StudentT()),
}


def problem_of(name: str, scale: float = 0.5) -> small.Problem:
    model = MODELS[name]
    return small.Problem.of(*model.prepare(X, REAL if model.loss.target == "real" else SIGNS), scale)


@pytest.mark.parametrize("name", MODELS)
def test_every_step_lowers_the_objective(name: str) -> None:
    problem, generator = problem_of(name), seeded()
    first = state = small.start(problem, 0.3)
    for _ in range(4):
        for step in (small.set_bits, small.fit_weights, small.shrink, small.sweep):
            options = (generator, 1e-3) if step is small.sweep else ()
            before, state = state.objective, step(state, problem, *options)
            if step is small.set_bits:
                state = replace(state, objective=problem.objective(state))
            assert state.objective <= before + 1e-9
            assert float(problem.objective(state)) == pytest.approx(float(state.objective), rel=1e-10)
    assert state.objective < 0.9 * first.objective


def test_a_fit_predicts() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn((90, 4), generator=generator, dtype=torch.float64)
    Y = (rows @ torch.tensor([[1.0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 1]], dtype=torch.float64) > 0).long()
    backend, model = SmallVariance(num_restarts=1, num_components=4, max_steps=8), MultiTaskInfiniteLatentSVM()
    posterior = backend.fit(model, rows[:60], Y[:60])
    assert (posterior.predict(rows[60:]) == Y[60:]).double().mean() > 0.85
    assert 1 <= posterior.num_latent_features <= 8
