"""Latent features in the small-variance limit: no step raises F, F is the limit of the program, exact optima."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from pyro import poutine
from setups import Ramp, name_of
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

from regbayes.inference import SmallVariance
from regbayes.inference.small_variance.features import births, bits, fit, moves
from regbayes.inference.small_variance.features.penalty import natural_penalty, single_penalty
from regbayes.inference.small_variance.features.problem import FeatureDescent, FeatureProblem
from regbayes.models import (
    BetaBernoulli,
    Blocks,
    CrammerSinger,
    EpsilonInsensitive,
    Hinge,
    IndianBuffetProcess,
    InfiniteLatentSVM,
    LatentFeatureModel,
    LinearBernoulli,
    LinearGaussian,
    Logistic,
    OneVsRest,
    Standardized,
)

LIKELIHOODS = [LinearGaussian(), LinearBernoulli(), Blocks([(LinearGaussian(), 3), (LinearBernoulli(), 2)])]
LOSSES = [Hinge(), Logistic(), EpsilonInsensitive(), CrammerSinger(), OneVsRest(Hinge())]


def data_of(likelihood, loss, generator, N: int = 40, D: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of three features in the support of the likelihood, and targets that two of them decide."""
    like = {"generator": generator, "device": generator.device, "dtype": torch.float64}
    Z = (torch.rand(N, 3, **like) < 0.4).double()
    X = Z @ (2 * torch.randn(3, D, **like)) + 0.3 * torch.randn(N, D, **like)
    binary = (
        slice(0) if isinstance(likelihood, LinearGaussian) else slice(3 if isinstance(likelihood, Blocks) else 0, D)
    )
    X[:, binary] = (X[:, binary] > 0).double()
    score = Z[:, 0] - Z[:, 1]
    if isinstance(loss, EpsilonInsensitive):
        return X, score + 0.1 * torch.randn(N, **like)
    several = isinstance(loss, CrammerSinger | OneVsRest)
    return X, (score + 1).long() if several else (score + 0.3 * torch.randn(N, **like) > 0).long()


def problem_of(likelihood, loss, generator, *, weights=None, missing=False, scale=0.7, **options) -> FeatureProblem:
    X, y = data_of(likelihood, loss, generator)
    if missing:
        X[torch.rand(X.shape, generator=generator, device=X.device) < 0.2] = math.nan
        y = y.double()
        y[::3] = math.nan
    model = InfiniteLatentSVM(likelihood, loss, **({"feature_map": None} | options)).resolve(X, y, weights)
    return FeatureProblem.of(model, model.data(X, y, weights), scale)


def random_state(problem: FeatureProblem, penalty: float, generator, K: int = 4) -> FeatureDescent:
    state = problem.start(penalty)
    for _ in range(K):
        members = torch.rand(problem.data.num_data, generator=generator, device=generator.device) < 0.5
        loadings = torch.randn(problem.data.X.shape[1], generator=generator, device=generator.device).to(problem.data.X)
        state = state.joined(members, loadings)
    weights = torch.randn(state.weights.shape, generator=generator, device=generator.device).to(state.weights)
    return problem.evaluated(replace(state, weights=weights))


def naive_objective(problem: FeatureProblem, state: FeatureDescent) -> float:
    """F of the page, row by row, from the interfaces of the model alone."""
    model, data, scale = problem.model, problem.data, problem.scale
    mean = state.features @ state.loadings
    entries = model.likelihood.divergence(data.X, mean)
    scores = torch.cat([state.features, data.inputs], 1) @ state.weights
    total = float(state.penalty) * state.num_features
    for n in range(data.num_data):
        count = 1.0 if data.weights is None else float(data.weights[n])
        seen = torch.ones_like(entries[n]) if data.observed is None else data.observed[n]
        total += count * scale * float((entries[n] * seen).sum())
        total -= count * float(model.log_margin(scores[n : n + 1], data.targets[n : n + 1]))
    precision = model.likelihood.loading_precision(model.likelihood.start(data.X), data.X.shape[1])
    total += scale * float((precision * state.loadings.double().square()).sum()) / 2
    return total + float(state.weights.double().square().sum()) / (2 * model.weight_scale**2)


# -- descent -------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("missing", [False, True], ids=["complete", "missing"])
@pytest.mark.parametrize("loss", [*LOSSES, OneVsRest(Ramp())], ids=name_of)
def test_no_step_raises_the_objective(loss, missing, device, generator) -> None:
    assert_no_step_raises(problem_of(LinearGaussian(), loss, generator, missing=missing), generator)


@pytest.mark.parametrize("missing", [False, True], ids=["complete", "missing"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS[1:], ids=name_of)
def test_no_step_raises_the_objective_of_binary_columns(likelihood, missing, device, generator) -> None:
    assert_no_step_raises(problem_of(likelihood, Hinge(), generator, missing=missing), generator)


def test_no_step_raises_the_objective_of_weighted_rows(generator) -> None:
    weights = 0.2 + 3 * torch.rand(40, generator=generator, device=generator.device, dtype=torch.float64)
    for loss in (Hinge(), CrammerSinger(), Ramp()):
        problem = problem_of(LinearGaussian(), loss, generator, weights=weights, feature_map=Standardized())
        assert_no_step_raises(problem, generator)


def assert_no_step_raises(problem: FeatureProblem, generator) -> None:
    state = random_state(problem, 2.0, generator)
    value = first = naive_objective(problem, state)
    steps = [
        lambda state: bits.flip_singly(state, problem, generator),
        lambda state: bits.flip_pairs(state, problem)[0],
        lambda state: state.occupied(),
        lambda state: fit.fit_loadings(state, problem),
        lambda state: fit.fit_classifiers(state, problem)[0],
        lambda state: births.open_feature(problem.evaluated(state), problem, generator),
        lambda state: births.add_by_labels(state, problem, generator, most=2),
        lambda state: moves.simplify(state, problem, generator, tries=1),
        lambda state: moves.shift_features(state, problem, generator, tries=1),
        lambda state: fit.refit(state, problem, thorough=True),
    ]
    for _ in range(2):
        for step in steps:
            state = step(state)
            before, value = value, naive_objective(problem, state)
            assert value <= before + 1e-11 * abs(before)
            assert float(problem.objective(state)) == pytest.approx(value, rel=1e-10)
            assert state.weights.shape[0] == state.num_features + problem.data.inputs.shape[1]
    assert value < 0.9 * first


def test_single_bits_and_pairs_are_at_their_best(generator) -> None:
    """After a pass no row gains by flipping the bit that moved last, and after pairs the best pair was taken."""
    for likelihood in LIKELIHOODS:
        problem = problem_of(likelihood, Logistic(), generator)
        state = random_state(problem, 0.0, generator, K=1)
        moved = bits.flip_singly(state, problem, generator)
        costs = [row_costs(problem, replace(state, features=torch.full_like(state.features, bit))) for bit in (0, 1)]
        assert torch.equal(moved.features[:, 0] > 0, costs[1] < costs[0])
    problem = problem_of(LinearGaussian(), Logistic(), generator)
    state = random_state(problem, 0.0, generator)
    found, _ = bits.flip_pairs(state, problem)
    options = [state.features]
    for pair in itertools.combinations(range(4), 2):
        options.append(state.features.clone())
        options[-1][:, pair] = 1 - options[-1][:, pair]
    costs = torch.stack([row_costs(problem, replace(state, features=option)) for option in options])
    torch.testing.assert_close(row_costs(problem, found), costs.amin(0))


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=name_of)
def test_loadings_refined_together_are_those_refined_alone(likelihood, generator) -> None:
    problem = problem_of(likelihood, Hinge(), generator)
    residual = births.Residual.of(random_state(problem, 1.0, generator), problem)
    loadings, totals = residual.founded(torch.arange(12, device=generator.device), generator)
    found, saved = residual.refined(loadings, totals)
    for index in range(len(totals)):
        alone = residual.refined(loadings[[index]], totals[[index]])
        torch.testing.assert_close((found[[index]], saved[[index]]), alone)
    torch.testing.assert_close(saved, residual.totals(found))
    assert (saved >= totals).all()
    assert (saved > totals).any()
    best = torch.full_like(totals, 1e9)  # no move saves as much
    assert all(map(torch.equal, residual.refined(loadings, best), (loadings, best)))


def row_costs(problem: FeatureProblem, state: FeatureDescent) -> torch.Tensor:
    return problem.divergences(state.features @ state.loadings) + problem.losses(problem.scores(state))


@pytest.mark.parametrize("loss", [CrammerSinger(), EpsilonInsensitive()], ids=name_of)
def test_fit_descends_converges_and_reports_its_objective(loss, generator) -> None:
    X, y = data_of(LinearGaussian(), loss, generator)
    posterior = SmallVariance(num_restarts=1, penalty=15.0, progress=False).fit(
        InfiniteLatentSVM(loss=loss, feature_map=None), X, y
    )
    values = posterior.trace.values[0]
    assert (values.diff() <= 1e-9 * values[0].abs()).all()
    assert len(values) < 60
    draw = {name: value[0] for name, value in posterior.samples.items()}
    data = posterior.model.data(X, y)
    problem = FeatureProblem.of(posterior.model, data, posterior.backend.scale)
    weights = torch.cat([draw["weights"], draw["input_weights"]])
    state = problem.start(15.0)
    state = replace(state, features=draw["features"].double(), loadings=draw["loadings"], weights=weights)
    assert naive_objective(problem, state) == pytest.approx(float(values[-1]), rel=1e-9)


@pytest.mark.nightly
def test_features_do_not_follow_noise_in_the_labels() -> None:
    """Four bits decide the odds of a label, so no rule is right for more than some 82 % of new rows."""
    stream = torch.Generator().manual_seed(1)
    loadings = 2 * torch.randn(4, 12, generator=stream, dtype=torch.float64)
    bits = torch.randint(2, (700, 4), generator=stream).double()
    X = bits @ loadings + 0.5 * torch.randn(700, 12, generator=stream, dtype=torch.float64)
    odds = bits @ torch.tensor([4.0, -4.0, 3.0, -3.0], dtype=torch.float64)
    y = (torch.rand(700, generator=stream, dtype=torch.float64) < odds.sigmoid()).long()
    best = ((odds > 0).long() == y)[100:].double().mean()
    found = SmallVariance(num_restarts=1).fit(InfiniteLatentSVM(), X[:100], y[:100])
    assert found.backend.scale == 30.0
    assert (found.predict(X[100:]) == y[100:]).double().mean() > best - 0.08
    labels_decide = SmallVariance(num_restarts=1, scale=1.0).fit(InfiniteLatentSVM(), X[:100], y[:100])
    assert (labels_decide.predict(X[100:]) == y[100:]).double().mean() < best - 0.15


# -- the limit of the model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [IndianBuffetProcess, BetaBernoulli])
def test_objective_is_the_limit_of_the_program(prior, cpu_generator) -> None:
    """-tau log p of the program with its variances, strength and concentration scaled, its sticks anywhere inside.

    The constants of the normal densities, in tau log tau, are the same for two states of as many features.
    """
    X, y = data_of(LinearGaussian(), CrammerSinger(), cpu_generator, N=6, D=3)
    for tau, most in ((1e-2, 0.7), (1e-4, 0.02), (1e-6, 4e-4)):
        penalty = min(1.3, 600 * tau)  # whose exponential is a number
        model = InfiniteLatentSVM(
            LinearGaussian(noise_variance=0.5, loading_variance=2.0), CrammerSinger(1.2, 0.9), feature_map=None
        )
        model = model.replace(weight_scale=1.5).resolve(X, y)
        problem = FeatureProblem.of(model, model.data(X, y), 0.7)
        gaps = []
        for seed in (3, 4):
            state = random_state(problem, penalty, torch.Generator().manual_seed(seed), K=3)
            gaps.append(-tau * log_program(model, problem, state, tau, prior) - float(problem.objective(state)))
        assert abs(gaps[0]) < most
        assert abs(gaps[0] - gaps[1]) < 40 * tau


def log_program(model, problem, state, tau: float, prior) -> float:
    likelihood = model.likelihood.replace(
        noise_variance=0.5 * tau / problem.scale, loading_variance=2.0 * tau / problem.scale, learn=False
    )
    alpha = math.exp(-float(state.penalty) / tau)
    K = state.num_features
    alpha = alpha * K if prior is BetaBernoulli else alpha
    cold = model.replace(
        likelihood=likelihood,
        loss=CrammerSinger(1.2 / tau, 0.9),
        weight_scale=1.5 * tau**0.5,
        prior=prior(concentration=alpha, concentration_prior=None),
        truncation=K,
    )
    latents = {name: getattr(state, name) for name in ("features", "loadings", "weights")}
    sites = {"sticks": torch.full((K,), 0.9).double(), "probabilities": torch.full((K,), 0.4).double()}
    with torch.no_grad():
        traced = poutine.trace(poutine.condition(cold.program, data=latents | sites)).get_trace(problem.data)
        return float(traced.log_prob_sum())


def test_labels_open_features_that_no_entry_asks_for(cpu_generator) -> None:
    """X is noise: nothing but the proposals by labels finds a feature."""
    X = torch.randn(30, 4, generator=cpu_generator, dtype=torch.float64)
    y = torch.arange(30) % 2
    model = InfiniteLatentSVM(
        LinearGaussian(offset=0.0, noise_variance=100.0), Hinge(3.0), weight_scale=3.0, feature_map=None
    )
    posterior = SmallVariance(num_restarts=1, penalty=5.0, progress=False).fit(model, X, y)
    assert posterior.num_latent_features == 1
    column = posterior.features[:, 0].long()
    assert torch.equal(column, y) or torch.equal(column, 1 - y)


# -- options -------------------------------------------------------------------------------------------------------


def features_data(seed: int = 0, N: int = 150, K: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    Z = (torch.rand(N, K, generator=generator) < 0.4).double()
    X = Z @ (1.5 * torch.randn(K, 10, generator=generator).double())
    X += 0.3 * torch.randn(N, 10, generator=generator).double()
    return X, (Z[:, 0] > Z[:, 1]).long(), Z


@pytest.mark.slow
def test_penalty_from_a_number_finds_the_true_features() -> None:
    X, y, Z = features_data()
    model = InfiniteLatentSVM(LinearGaussian(offset=0.0), feature_map=None)
    posterior = SmallVariance(num_restarts=1, num_components=4, progress=False).fit(model, X, y)
    found = posterior.features.double()
    assert found.shape == Z.shape
    apart = (Z.unsqueeze(2) - found.unsqueeze(1)).abs().sum(0).amin(1)  # rows in which each differs from its match
    assert float(apart.max()) <= 3
    assert (posterior.predict(X[:75]) == y[:75]).double().mean() > 0.97
    penalty = float(posterior.samples["penalty"])
    again = SmallVariance(num_restarts=1, penalty=penalty, progress=False).fit(model, X, y)
    assert float(again.trace.final) == pytest.approx(float(posterior.trace.final), rel=1e-3)


def test_penalties_grow_with_the_rows_and_fall_with_the_number(generator) -> None:
    problem = problem_of(LinearGaussian(), Hinge(), generator)
    twice = replace(problem, data=problem.data.rows(torch.arange(40, device=generator.device).repeat(2)))
    many, few = (
        natural_penalty(problem, number, torch.Generator(generator.device).manual_seed(0)) for number in (4, 1)
    )
    assert 0 < many < few
    doubled = natural_penalty(twice, 1, torch.Generator(generator.device).manual_seed(0))
    assert 1.2 * few < doubled < 3 * few
    assert 0 < single_penalty(problem, 2, torch.Generator(generator.device).manual_seed(0)) < few


def test_single_creation_opens_features_only_where_a_row_alone_pays() -> None:
    X, y, _ = features_data(N=60)
    X[0] += 30  # one row far out: too few rows for a joint penalty, more than enough alone
    model = InfiniteLatentSVM(
        LinearGaussian(offset=0.0, noise_variance=1.0, loading_variance=100.0), Hinge(0.01), feature_map=None
    )
    options = {"penalty": 400.0, "scale": 1.0, "progress": False}
    single = SmallVariance(num_restarts=1, creation="single", **options).fit(model, X, y)
    assert single.num_latent_features == 1
    assert single.features[:, 0].sum() == 1
    chosen = SmallVariance(num_restarts=1, creation="single", num_components=2, progress=False).fit(model, X, y)
    assert chosen.num_latent_features >= 1


@pytest.mark.parametrize("loss", [Hinge(), CrammerSinger(), Ramp()], ids=name_of)
def test_weights_are_repeated_rows(loss, generator) -> None:
    """Every step, with the same random numbers, and the objective."""
    weights = torch.tensor([1.0, 2.0, 1.0, 3.0] * 10, dtype=torch.float64, device=generator.device)
    rows = torch.arange(40, device=generator.device).repeat_interleave(weights.long())
    problem = problem_of(LinearGaussian(), loss, generator, weights=weights)
    data = problem.data.rows(rows)
    copies = replace(problem, data=replace(data, weights=None))
    state = random_state(problem, 2.0, generator)
    other = replace(state, features=state.features[rows], tilt=state.tilt[rows])
    for seed in range(3):
        state, other = (
            fit.refit(bits.move_bits(one, of, torch.Generator(generator.device).manual_seed(seed)), of, thorough=True)
            for one, of in ((state, problem), (other, copies))
        )
        assert torch.equal(state.features[rows], other.features)
        torch.testing.assert_close(state.loadings, other.loadings)
        assert float(state.objective) == pytest.approx(float(other.objective), rel=1e-4)
        other = replace(other, loadings=state.loadings, weights=state.weights)
    for move in (moves.dropped, moves.merged):
        for one, two in zip(move(state, problem), move(other, copies), strict=True):
            assert torch.equal(one.features[rows], two.features)
    columns = births.label_columns(state, problem), births.label_columns(other, copies)
    for one, two in zip(*columns, strict=True):
        assert torch.equal(one[rows], two)


def test_a_row_of_weight_zero_gets_its_features_at_the_end() -> None:
    X, y, _ = features_data(N=40)
    weights = torch.ones(40, dtype=torch.float64)
    weights[5] = 0.0
    posterior = SmallVariance(num_restarts=1, penalty=10.0, progress=False).fit(
        InfiniteLatentSVM(feature_map=None), X, y, sample_weight=weights
    )
    assert posterior.features.shape[0] == 40
    torch.testing.assert_close(posterior.features[5].double(), posterior.transform(X)[5])


def test_single_precision_agrees() -> None:
    X, y, _ = features_data(N=20)
    model = InfiniteLatentSVM(loss=Logistic(), feature_map=None)
    backend = SmallVariance(penalty=30.0, num_restarts=1, progress=False)
    posterior = backend.fit(model, X.float(), y)
    assert posterior.loadings.dtype == torch.float32
    double = backend.fit(model, X, y)
    assert float(posterior.trace.final.min()) == pytest.approx(float(double.trace.final.min()), rel=1e-2)


def test_a_penalty_beyond_all_savings_leaves_no_feature() -> None:
    X, y, _ = features_data(N=30)
    posterior = SmallVariance(num_restarts=1, penalty=1e9, progress=False).fit(
        InfiniteLatentSVM(feature_map=None), X, y
    )
    assert posterior.num_latent_features == 0
    assert posterior.transform(X).shape == (30, 0)
    assert posterior.predict(X).shape == (30,)


def test_features_without_labels_are_bp_means(generator) -> None:
    X, _, Z = features_data(N=60)
    posterior = SmallVariance(num_restarts=1, num_components=4, progress=False).fit(
        LatentFeatureModel(LinearGaussian(offset=0.0)), X
    )
    apart = (Z.unsqueeze(2) - posterior.features.double().unsqueeze(1)).abs().sum(0).amin(1)
    assert float(apart.max()) <= 3


@pytest.mark.nightly
@pytest.mark.slow
def test_breast_cancer_is_told_by_a_few_features() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X, y = torch.as_tensor(StandardScaler().fit_transform(X)), torch.as_tensor(y)
    backend = SmallVariance(num_components=3, num_restarts=6, progress=False)
    posterior = backend.fit(InfiniteLatentSVM(feature_map=None), X[:200], y[:200])
    assert 2 <= posterior.num_latent_features <= 6
    assert (posterior.predict(X[200:]) == y[200:]).double().mean() > 0.85  # the larger class has 0.68
