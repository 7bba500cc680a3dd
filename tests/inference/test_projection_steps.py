"""The steps of tasks that share a projection, each against its terms written by hand, on one tiny problem."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from setups import seeded
from torch import Tensor
from two_ranks import Thread, on_threads

from regbayes.inference.bits.loadings import draw_precisions
from regbayes.inference.bits.shared_projection import Generative, Margins
from regbayes.inference.gibbs import projection as gibbs
from regbayes.inference.small_variance import projection as small
from regbayes.inference.svi.projection import kernel as svi
from regbayes.inference.svi.projection.factors import MeanFieldProjection, scatter, update_loadings, update_prior
from regbayes.inference.svi.projection.margins import UPDATES
from regbayes.inference.svi.rules import AVERAGING, NATURAL, Rule
from regbayes.models import (
    BetaBernoulli,
    EpsilonInsensitive,
    FeaturePrior,
    Hinge,
    IndianBuffetProcess,
    LinearGaussian,
    Loss,
    MultiTaskInfiniteLatentSVM,
    TaskData,
)
from regbayes.models.sums import among

RNG = np.random.default_rng(3)
X = torch.from_numpy(RNG.normal(size=(9, 4)))
REAL = torch.from_numpy(RNG.normal(size=(9, 2)))
REAL[2, 0] = REAL[5, 1] = REAL[6, 1] = torch.nan
HINGE, TUBE = Hinge(0.7, 1.3), EpsilonInsensitive(0.6, 0.2)
NOISE, LOADING, SCALE, NU = 0.5, 1.7, 0.6, 0.8
LIKELIHOOD = LinearGaussian(offset=0.3, noise_variance=NOISE, loading_variance=LOADING)


def targets_of(loss: Loss) -> Tensor:
    return REAL if loss.target == "real" else REAL.sign()


def problem(
    loss: Loss = HINGE, likelihood: LinearGaussian | None = LIKELIHOOD, prior: FeaturePrior | None = None
) -> tuple[MultiTaskInfiniteLatentSVM, TaskData]:
    """A resolved model of three features and its data: 9 rows, 4 dimensions, 2 tasks, a constant as further input."""
    prior = prior or IndianBuffetProcess(concentration_prior=(2.0, 1.0))
    model = MultiTaskInfiniteLatentSVM(likelihood, loss, prior, None, weight_scale=NU, truncation=3)
    return model.prepare(X, targets_of(loss))


def sum_costs(data: TaskData, loss: Loss, Z: np.ndarray, weights: np.ndarray) -> float:
    """-log phi of all known pairs, each loss by its definition."""
    f, y = np.hstack([data.X.numpy() @ Z, data.inputs.numpy()]) @ weights, data.targets.numpy()
    slack = loss.margin - y * f if isinstance(loss, Hinge) else np.abs(y - f) - getattr(loss, "epsilon", 0.0)
    return 2 * getattr(loss, "strength", 1.0) * float(np.nansum(np.maximum(0.0, slack)))


def cells(Z: np.ndarray) -> Iterator[tuple[tuple[int, int], np.ndarray, np.ndarray]]:
    """Each (d, k), in turn, with the bits around it as they are then: off, and on."""
    for d, k in itertools.product(*map(range, Z.shape)):
        off, on = Z.copy(), Z.copy()
        off[d, k], on[d, k] = 0.0, 1.0
        yield (d, k), off, on


# -- bits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("loss", [HINGE, TUBE])
def test_bits_are_set_one_after_another_by_the_density_of_all(
    loss: Loss, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all bits at once: log odds, half a quadratic form, and the margins of all pairs, scores computed anew."""
    if not compiled:
        monkeypatch.setattr(Margins, "_arrays", lambda self: None)
    rng, changed = np.random.default_rng(1), 0
    for case in range(30 if compiled else 6):
        data = TaskData(torch.from_numpy(rng.normal(size=(9, 4))), torch.ones(9, 1).double(), targets_of(loss))
        weights, Z = rng.normal(size=(4, 2)), (rng.random((4, 3)) < 0.5).astype(float)
        half = rng.normal(size=(3, 3))
        odds, linear, gram = rng.normal(size=3), rng.normal(size=(4, 3)), (case % 3) * half @ half.T
        levels = (case % 2) * rng.logistic(size=(4, 3))
        given = [torch.from_numpy(part) for part in (odds, linear, gram)]
        bits, eta = torch.from_numpy(Z), torch.from_numpy(weights)
        scores = data.pair_scores(data.X @ bits, eta)
        found = Margins(data, loss, eta[:3]).set_bits(bits, torch.from_numpy(levels), Generative(*given), scores)
        expected = Z.copy()
        for cell, off, on in cells(expected):
            gain = ((on - off) * (odds + linear)).sum() - ((on @ gram) * on - (off @ gram) * off).sum() / 2
            gain += sum_costs(data, loss, off, weights) - sum_costs(data, loss, on, weights)
            expected[cell] = gain > levels[cell]
        assert found.tolist() == expected.tolist()
        changed += int((expected != Z).sum())
    assert changed > 20


@pytest.mark.parametrize("loss", [HINGE, TUBE])
def test_ranks_set_bits_as_one_process_does(loss: Loss) -> None:
    """Many at once, as if none changed: what comes after a change is computed again."""
    rng, targets, changed = np.random.default_rng(1), targets_of(loss), 0
    for case in range(12):
        rows = torch.from_numpy(rng.normal(size=(9, 4)))
        weights, odds, linear, half, bits = (
            torch.from_numpy(rng.normal(size=size)) for size in ((4, 2), 3, (4, 3), (3, 3), (4, 3))
        )
        levels, bits = torch.from_numpy((case % 2) * rng.logistic(size=(4, 3))), (bits > 0).double()
        given = Generative(odds, linear, half @ half.T)

        def found(own: slice, those: Thread | None) -> Tensor:
            data = TaskData(rows[own], torch.ones_like(rows[own][:, :1]), targets[own])  # noqa: B023 (used at once)
            scores = data.pair_scores(data.X @ bits, weights)  # noqa: B023
            with among(those):
                return Margins(data, loss, weights[:3]).set_bits(bits, levels, given, scores)  # noqa: B023

        whole = found(slice(None), None)
        for part in on_threads(lambda rank, those: found((slice(4), slice(4, None))[rank], those)):
            assert part.tolist() == whole.tolist()
        changed += int((whole != bits).sum())
    assert changed > 20


# -- Gibbs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [BetaBernoulli(1.5, (2.0, 1.0)), IndianBuffetProcess(1.5, (2.0, 1.0))])
def test_a_sweep_draws_everything_from_its_law(prior: FeaturePrior) -> None:
    """The values of exact conditionals at their own draws are uniform, and independent from sweep to sweep.

    Here those of pi under the beta prior, of alpha, and of the classifier of a task that no row is known of.
    """
    model, data = problem(prior=prior)
    data = replace(data, targets=torch.cat([data.targets, torch.full((9, 1), torch.nan).double()], 1))
    generator = seeded()
    state, levels = gibbs.init(model, data, generator), []
    for _ in range(120):
        before, state = state, gibbs.sweep(state, data, model, generator)
        pi, m = state.probabilities.numpy(), state.features.sum(0).numpy()
        old, new = (float(one.hyper["concentration"]) for one in (before, state))
        sticks = isinstance(prior, IndianBuffetProcess)
        alpha = stats.gamma.cdf(new, 2.0 + 3, scale=1 / (1.0 - (np.log(pi[-1]) if sticks else np.log(pi).mean())))
        beta = [] if sticks else [stats.beta.cdf(pi, old / 3 + m, 1 + 4 - m)]
        levels.append(np.concatenate([[alpha], stats.norm.cdf(state.weights[:, 2] / NU), *beta]))
        assert (state.weights != before.weights).all()
        assert all(state.precisions[name] != value for name, value in before.precisions.items())
        assert (state.probabilities != before.probabilities).all()
        assert new != old
    for column in np.stack(levels, 1):
        assert stats.kstest(column, "uniform").pvalue > 1e-4


def test_each_step_of_a_sweep_sees_what_those_before_it_have_drawn() -> None:
    model, data = problem()
    state = gibbs.init(model, data, seeded(3))
    found, generator = gibbs.sweep(state, data, model, seeded(4)), seeded(4)
    loadings = gibbs.draw_loadings(state, data, model, generator)
    assert loadings is not None
    one = replace(state, features=gibbs.draw_bits(state, data, model, loadings, generator))
    assert one.features.sum(0).tolist() != state.features.sum(0).tolist()
    drawn = draw_precisions(gibbs.precision_laws(one, data, LIKELIHOOD, loadings), generator)
    one = replace(one, precisions=one.precisions | drawn)
    pi = model.prior.draw_probabilities(state.probabilities, one.features.sum(0), 4, state.hyper, generator)
    one = replace(one, probabilities=pi, hyper=model.prior.draw_truncated(state.hyper, pi, generator))
    one = replace(one, weights=gibbs.draw_weights(one, data, model, generator))
    torch.testing.assert_close(vars(found), vars(one))


# -- mean field --------------------------------------------------------------------------------------------------------


def fitted(rule: Rule) -> tuple[MultiTaskInfiniteLatentSVM, TaskData, MeanFieldProjection]:
    """A state whose sticks, loadings and classifiers are far from what its probabilities ask for."""
    model, data = problem()
    state = svi.init(model, data, seeded(), rule=rule, num_frozen=1)
    state = svi.sweep(state, data, model, rule=rule)
    psi = torch.rand((4, 3), generator=seeded(1), dtype=torch.float64)
    return model, data, replace(state, features=psi)


def assert_same(found: MeanFieldProjection, expected: MeanFieldProjection, *names: str) -> None:
    for name in names:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("rule", [AVERAGING, NATURAL], ids=lambda rule: rule.name)
def test_a_sweep_has_prior_and_loadings_at_the_old_probabilities_and_then_bits_and_classifiers(rule: Rule) -> None:
    model, data, state = fitted(rule)
    outer, found = scatter(data, model.likelihood), svi.sweep(state, data, model, rule=rule)
    expected = update_loadings(update_prior(state, model), model, outer)
    names = ("sticks", "loading_map", "loading_covariance", "precisions")
    assert_same(found, expected, *names)
    assert (expected.sticks != state.sticks).any()
    assert (expected.loading_map != state.loading_map).any()
    expected = UPDATES[rule](expected, data, model, outer)
    expected = svi.update_classifiers(expected, data, model, rule)
    assert_same(found, expected, *names, "features", "weights", "precision_tril", "tilt")
    assert (UPDATES[rule](state, data, model, outer).features - found.features).abs().max() > 1e-3


# -- small variance ----------------------------------------------------------------------------------------------------

S, R = SCALE / (2 * NOISE), 1 / (2 * LOADING)


def small_problem(loss: Loss = HINGE, likelihood: LinearGaussian | None = LIKELIHOOD) -> small.Problem:
    return small.Problem.of(*problem(loss, likelihood), SCALE)


def state_of(Z: np.ndarray, weights: np.ndarray, task: small.Problem, penalty: float = 0.4) -> small.Projection:
    zero = torch.zeros((), dtype=torch.float64)
    tilt = torch.zeros_like(task.data.targets)
    return small.Projection(torch.from_numpy(Z), torch.from_numpy(weights), tilt, penalty, zero)


def best_loadings(Z: np.ndarray) -> np.ndarray:
    """[N, K], a ridge regression of each row."""
    matrix = S * Z.T @ Z + R * np.eye(Z.shape[1])
    return np.stack([np.linalg.solve(matrix, S * Z.T @ (x - 0.3)) for x in X.numpy()])


def cost(
    task: small.Problem, loss: Loss, Z: np.ndarray, weights: np.ndarray, penalty: float, loadings: np.ndarray
) -> float:
    """F at any loadings [N, K]."""
    total = penalty * Z.shape[1] + (weights**2).sum() / (2 * NU**2) + sum_costs(task.data, loss, Z, weights)
    if task.model.likelihood is not None:
        for x, w in zip(X.numpy(), loadings, strict=True):
            total += S * ((x - 0.3 - Z @ w) ** 2).sum() + R * (w**2).sum()
    return float(total)


def value(state: small.Projection, task: small.Problem) -> float:
    """F of a state."""
    Z = state.features.numpy()
    return cost(task, HINGE, Z, state.weights.numpy(), state.penalty, best_loadings(Z))


@pytest.mark.parametrize("likelihood", [None, LIKELIHOOD])
@pytest.mark.parametrize("loss", [HINGE, TUBE])
def test_each_bit_takes_its_cheaper_value_and_empty_features_leave(
    loss: Loss, likelihood: LinearGaussian | None
) -> None:
    task, rng, left = small_problem(loss, likelihood), np.random.default_rng(0), 0
    for _ in range(25):
        Z, weights = (rng.random((4, 3)) < 0.5).astype(float), rng.normal(size=(4, 2))
        found, loadings = small.set_bits(state_of(Z, weights, task), task), best_loadings(Z)
        for cell, off, on in cells(Z):
            Z[cell] = cost(task, loss, on, weights, 0.0, loadings) < cost(task, loss, off, weights, 0.0, loadings)
        kept = Z.any(0)
        assert found.features.tolist() == Z[:, kept].tolist()
        assert found.weights.tolist() == np.vstack([weights[:3][kept], weights[3:]]).tolist()
        left += int((~kept).sum())
    assert left > 0


def test_the_penalty_is_half_of_what_the_last_feature_brings() -> None:
    task, generator = small_problem(), seeded()
    states = [small.start(task, 0.0)]
    for _ in range(3):
        states.append(small.grow(states[-1], task, generator))
    gains = -np.diff([value(state, task) for state in states])
    assert gains.min() > 1.0
    assert small.penalty_for(task, 3, seeded()) == pytest.approx(gains[-1] / 2)


def test_a_sweep_drops_the_feature_of_the_smallest_weights() -> None:
    """That no feature is worth its penalty does not empty one: all dimensions have it still."""
    task, Z = small_problem(likelihood=None), np.array([[1.0, 0, 1], [0, 1, 1], [1, 1, 0], [0, 1, 1]])
    state = small.fit_weights(state_of(Z, np.zeros((4, 2)), task, 1e3), task)
    settled = small.fit_weights(small.set_bits(state, task), task)
    K = settled.features.shape[1]
    least = int(settled.weights[:K].square().sum(1).argmin())
    found = small.sweep(state, task, seeded(), 1e-3)
    assert found.features.tolist() == np.delete(settled.features.numpy(), least, 1).tolist()
    assert float(found.objective) == pytest.approx(value(found, task))
    assert value(found, task) < value(settled, task)


def planted(weight: float = 2.0) -> tuple[small.Problem, list[float]]:
    """A problem whose inputs are multiples of one column of bits, and it."""
    rng, column = np.random.default_rng(5), np.array([1.0, 0.0, 1.0, 1.0, 0.0])
    rows = torch.from_numpy(weight * rng.normal(size=(30, 1)) * column + 0.1 * rng.normal(size=(30, 5)))
    model = MultiTaskInfiniteLatentSVM(LIKELIHOOD.replace(offset=0.0), HINGE, preprocessing=None)
    Y = torch.from_numpy(np.sign(rng.normal(size=(30, 1))))
    return small.Problem.of(*model.prepare(rows, Y), SCALE), column.tolist()


def test_a_residual_is_proposed_to_the_dimensions_that_it_explains() -> None:
    task, column = planted()
    empty = small.start(task, 0.1)
    pull = task.data.X.T @ empty.tilt
    along = [(sign * pull[:, 0] > 0).double().tolist() for sign in (1, -1)]
    found = [one.double().tolist() for one in small.proposals(empty, task, seeded())]
    assert column in found
    assert any(one in found for one in along)
    assert all(one in [column, *along] for one in found)
    grown = small.sweep(empty, task, seeded(), 1e-3)
    assert column in grown.features.T.tolist()


def test_a_grown_state_has_bits_and_classifiers_anew() -> None:
    """The best of the columns that are proposed beside one feature: a bit of it moves, then classifiers do."""
    task = small_problem(likelihood=None)
    state, raw = small.grow(small.start(task, 0.1), task, seeded()), []
    for column in small.proposals(state, task, seeded(1)):
        Z = torch.cat([state.features, column.double().unsqueeze(1)], 1)
        weights = torch.cat([state.weights[:1], torch.zeros(1, 2).double(), state.weights[1:]])
        raw.append(small.fit_weights(replace(state, features=Z, weights=weights), task))
    best, found = min(raw, key=lambda one: float(one.objective)), small.grow(state, task, seeded(1))
    moved = small.set_bits(best, task)
    moved = replace(moved, objective=task.objective(moved))
    assert found.features.tolist() == moved.features.tolist()
    assert float(found.objective) == pytest.approx(float(small.fit_weights(moved, task).objective), rel=1e-3)
    assert found.objective < moved.objective - 0.01 < best.objective - 0.02
