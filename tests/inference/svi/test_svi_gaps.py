"""The averaging rule of SVI: posteriors that say how far from the optimum their duals ended."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from setups import name_of
from torch import Tensor

from regbayes.inference import SVI, Posterior
from regbayes.inference.classifiers.duals import solve
from regbayes.inference.svi.features import kernel as features
from regbayes.inference.svi.features.margins import evidence
from regbayes.inference.svi.projection import kernel as projections
from regbayes.inference.svi.rules import AVERAGING
from regbayes.inference.svi.topics import kernel as topics
from regbayes.models import LDA, InfiniteLatentSVM, InfiniteSVM, MedLDA, MultiTaskInfiniteLatentSVM
from regbayes.models.losses import CrammerSinger, EpsilonInsensitive, Hinge, Logistic, Loss, SquaredHinge

pytestmark = pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")

LOSSES = [Hinge(1.2, 0.8), EpsilonInsensitive(0.9, 0.1), SquaredHinge(0.5), Logistic(), CrammerSinger(0.8)]
STRUCTURES = ["partition", "features", "tasks", "topics"]
CASES = [(s, loss) for s in STRUCTURES for loss in LOSSES if s != "tasks" or not isinstance(loss, CrammerSinger)]
IDS = [f"{structure}-{name_of(loss)}" for structure, loss in CASES]


def problem(structure: str, loss: Loss, N: int = 30) -> tuple[Any, Tensor, Tensor]:
    """(model, X [N, D], y) with two classes or real targets, of tasks [N, 3]; three classes for a joint hinge."""
    generator = torch.Generator().manual_seed(3)
    Z = torch.rand(N, 3, generator=generator, dtype=torch.float64).round()
    X = 2 * Z @ torch.randn(3, 5, generator=generator, dtype=torch.float64)
    X = X + 0.3 * torch.randn(N, 5, generator=generator, dtype=torch.float64)
    X = (X - X.min()).round() if structure == "topics" else X
    scores = Z @ torch.randn(3, 3, generator=generator, dtype=torch.float64)
    scores = scores - scores.mean(0) + 0.5 * torch.randn(N, 3, generator=generator, dtype=torch.float64)
    models: dict[str, Any] = {
        "partition": partial(InfiniteSVM, truncation=3),
        "features": partial(InfiniteLatentSVM, truncation=4),
        "tasks": partial(MultiTaskInfiniteLatentSVM, truncation=3),
        "topics": partial(MedLDA, num_topics=3),
    }
    if structure == "tasks":
        y = scores if loss.target == "real" else scores.sign()
    else:
        y = scores[:, 0] if loss.target == "real" else scores[:, : 3 if loss.meets else 2].argmax(1)
    return models[structure](loss=loss), X, y


def run_of(structure: str, model: Any, X: Tensor, y: Tensor) -> tuple[Any, Any, Any]:
    """(first state, sweep, its arguments)."""
    model, data = model.prepare(X, y)
    steps = {"features": features, "tasks": projections, "topics": topics}[structure].steps_by(AVERAGING)
    return steps.init(model, data, torch.Generator().manual_seed(0)), steps.sweep, (data, model)


def test_documents_start_anew_whatever_the_bound_was() -> None:
    """A bound of other documents, or an estimate from a minibatch, is none that a sweep could fall below."""
    state, sweep, given = run_of("topics", *problem("topics", Hinge(1.2)))
    anew = sweep(replace(topics.without_rows(state), bound=state.bound.new_tensor(1e9)), *given)
    assert anew.num_data == 30
    assert float(anew.bound) < 0


# -- gaps --------------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("structure", "loss"), CASES, ids=IDS)
def test_a_fit_says_how_far_its_duals_are_from_the_optimum(structure, loss, tmp_path: Path) -> None:
    model, X, y = problem(structure, loss)
    posterior = SVI(num_steps=3, rule="averaging").fit(model, X, y)
    gap = posterior.samples["duality_gap"]
    assert gap.shape == (1,)
    assert 0 <= float(gap) <= 1e-9
    posterior.save(tmp_path / "posterior")
    assert torch.equal(Posterior.load(tmp_path / "posterior").samples["duality_gap"], gap)


def objective(weights: Tensor, inputs: Tensor, targets: Tensor, loss: Loss, scale: float) -> float:
    return float(weights.square().sum() / (2 * scale**2) - loss.log_factor(inputs @ weights, targets).sum())


def test_the_weights_of_a_fit_are_at_that_distance() -> None:
    """Against a dual from scratch, of latent features and of each task."""
    model, X, y = problem("features", Hinge(1.2, 0.8))
    posterior = SVI(num_steps=3, rule="averaging").fit(model, X, y)
    resolved, data = model.prepare(X, y)
    inputs = torch.cat([posterior.features, data.inputs], 1)
    weights = torch.cat([posterior.samples[name][0] for name in ("weights", "input_weights")])
    cases = [(weights, inputs, data.targets, resolved)]
    model, X, y = problem("tasks", Hinge(1.2, 0.8))
    posterior = SVI(num_steps=3, rule="averaging").fit(model, X, y)
    resolved, tasks = model.prepare(X, y)
    inputs = torch.cat([tasks.X @ posterior.features, tasks.inputs], 1)
    weights = torch.cat([posterior.samples[name][0] for name in ("weights", "input_weights")])
    cases += [(weights[:, m : m + 1], inputs, tasks.targets[:, m : m + 1], resolved) for m in range(3)]
    for weights, inputs, targets, resolved in cases:
        loss, scale = Hinge(1.2, 0.8), resolved.weight_scale
        best = solve(inputs, targets, loss, scale, tolerance=1e-11, max_passes=10_000).weights
        parts = inputs, targets, loss, scale
        assert objective(weights, *parts) == pytest.approx(objective(best, *parts), rel=2e-9)


def test_the_sweeps_of_a_fit_are_not_solved_so_far() -> None:
    """The end of a fit is; the chain, from which it may go on, stays as its sweeps left it."""
    state, sweep, given = run_of("features", *problem("features", Hinge(1.2, 0.8), N=200))
    state = sweep(state, *given)
    assert 1e-9 < float(state.duality_gap) <= 1e-3
    ended = features.steps_by(AVERAGING).polish(state, *given)
    assert float(ended.duality_gap) <= 1e-9
    assert torch.equal(ended.features, state.features)
    values = [AVERAGING.bound(evidence(each, *given), each.learned) for each in (ended, state)]
    assert values[0] >= values[1]


def test_a_joint_hinge_of_many_features_is_solved_at_the_end_of_a_fit() -> None:
    """Rows in turn do not get there where almost as many tilts are free as there are weights: Newton steps do.

    A sweep goes a part of the way, and the labels' part of the bound never falls.
    """
    generator = torch.Generator().manual_seed(0)
    X, bits = (torch.randn(300, size, generator=generator, dtype=torch.float64) for size in (2, 60))
    y = torch.randint(9, (300,), generator=generator)
    state, _, given = run_of("features", InfiniteLatentSVM(loss=CrammerSinger(), truncation=60, feature_map=None), X, y)
    state = replace(state, features=(2 * bits).sigmoid())

    def value() -> float:
        return float(AVERAGING.bound(evidence(state, *given), state.learned))

    for _ in range(3):
        before, state = value(), features.update_classifiers(state, *given, AVERAGING)
        assert value() >= before
    assert state.duality_gap > 1e-3
    assert features.steps_by(AVERAGING).polish(state, *given).duality_gap <= 1e-7


def test_fits_without_a_dual_report_no_gap() -> None:
    for structure in STRUCTURES:
        posterior = SVI(num_steps=2).fit(*problem(structure, Hinge()))
        assert "duality_gap" not in posterior.samples
    X = problem("topics", Hinge())[1]
    assert "duality_gap" not in SVI(num_steps=2, rule="averaging").fit(LDA(num_topics=2), X).samples
    stochastic = SVI(num_steps=2, rule="averaging", batch_size=10, num_full_steps=0)
    for structure in ("features", "topics"):
        assert "duality_gap" not in stochastic.fit(*problem(structure, Hinge())).samples
        posterior = stochastic.replace(num_full_steps=1).fit(*problem(structure, Hinge()))
        assert float(posterior.samples["duality_gap"]) <= 1e-9
