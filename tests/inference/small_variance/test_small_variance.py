"""The small-variance backend of mixtures: descent at every block, exact optima by enumeration, naive references."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch
from setups import LIKELIHOODS, Ramp, name_of, price_of
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.metrics import normalized_mutual_info_score
from sklearn.model_selection import StratifiedKFold
from tiny_optima import partition_values

from regbayes.datasets import make_dp_mixture
from regbayes.inference.classifiers.minimum import estimate, majorizer_minimum
from regbayes.inference.small_variance import SmallVariance, descent
from regbayes.inference.small_variance.assignment import all_costs, all_savings, component_sums, nearest_components
from regbayes.inference.small_variance.births import candidates, open_components
from regbayes.inference.small_variance.merge import merge_components, merge_once
from regbayes.inference.small_variance.penalty import farthest_first
from regbayes.inference.small_variance.problem import Problem
from regbayes.inference.small_variance.state import Descent
from regbayes.models import DDPM, DPM, DirichletProcess, InfiniteSVM, PitmanYor, PrincipalDirections
from regbayes.models.likelihoods import BernoulliBeta, MultinomialDirichlet, PoissonGamma, SphericalGaussian
from regbayes.models.losses import CrammerSinger, EpsilonInsensitive, Hinge, Logistic, OneVsRest
from regbayes.models.scores import own_scores

LOSSES = [
    None,
    Hinge(strength=2.0),
    Logistic(),
    EpsilonInsensitive(),
    OneVsRest(Hinge()),
    OneVsRest(Logistic()),
    CrammerSinger(),
]


def rows_of(likelihood, generator, N: int, D: int = 3) -> torch.Tensor:
    """Three groups of rows in the support of the family."""
    like = {"generator": generator, "device": generator.device, "dtype": torch.float64}
    group = torch.randint(3, (N,), generator=generator, device=generator.device)
    locs = 3 * torch.randn(3, D, **like)
    if isinstance(likelihood, MultinomialDirichlet | PoissonGamma):
        return torch.poisson(2 * locs.abs()[group], generator=generator)
    X = locs[group] + torch.randn(N, D, **like)
    return (X > 0).double() if isinstance(likelihood, BernoulliBeta) else X


def targets_of(loss, X: torch.Tensor, generator) -> torch.Tensor:
    score = X @ torch.randn(X.shape[1], generator=generator, device=X.device, dtype=X.dtype)
    score = score - score.mean() + torch.randn(len(X), generator=generator, device=X.device, dtype=X.dtype)
    if isinstance(loss, EpsilonInsensitive):
        return score
    if isinstance(loss, OneVsRest | CrammerSinger):
        return (score > -0.5).long() + (score > 0.5).long()
    return (score > 0).long()


def problem_of(likelihood, loss, generator, N: int = 40, scale: float = 0.7, missing=None, **options) -> Problem:
    X = rows_of(likelihood, generator, N)
    if loss is None:
        model = DPM(likelihood=likelihood, **options).resolve(X)
        return Problem.of(model, model.data(X), scale)
    y = targets_of(loss, X, generator)
    y = y if missing is None else with_missing(y, missing)
    model = InfiniteSVM(likelihood=likelihood, loss=loss, **options).resolve(X, y)
    return Problem.of(model, model.data(X, y), scale)


def with_missing(y: torch.Tensor, rows) -> torch.Tensor:
    """Targets without those of some rows."""
    y = y.double()
    y[rows] = math.nan
    return y


def random_state(problem: Problem, penalty: float, generator, K: int = 4) -> Descent:
    """Random assignments, the centres that fit them, and random classifiers."""
    state = descent.init(problem, penalty)
    N = problem.num_data
    z = torch.randint(K, (N,), generator=generator, device=problem.X.device)
    z = torch.unique(z, return_inverse=True)[1]
    K = int(z.max()) + 1
    weights = torch.randn(
        K, *state.weights.shape[1:], generator=generator, device=problem.X.device, dtype=problem.X.dtype
    )
    state = replace(state, assignments=z, weights=weights, centers=problem.centers(*component_sums(problem.X, z, K)))
    return replace(state, objective=descent.objective(problem, state))


def naive_objective(problem: Problem, state: Descent) -> float:
    """Equation (35), component by component, from the interfaces of the model alone."""
    model, likelihood, scale = problem.model, problem.model.likelihood, problem.scale
    row, weight = likelihood.pseudo_observation()
    total = 0.0
    for k in range(len(state.centers)):
        center, own = state.centers[k : k + 1], state.assignments == k
        total += price_of(model.prior, float(state.penalty), k)
        total += float(state.weights[k].square().sum()) / (2 * model.weight_scale**2)
        total += scale * float(likelihood.divergence(problem.X[own], center).sum())
        if row is not None:
            total += scale * weight * float(likelihood.divergence(row.unsqueeze(0), center))
        scores = problem.data.features[own] @ state.weights[k]
        total -= float(model.log_margin(scores, problem.data.targets[own]).sum())
    return total


def assert_no_rise(before: float, after: float) -> None:
    assert after <= before + 1e-11 * abs(before)


# -- descent -------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(6)
@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=name_of)
def test_no_block_raises_the_objective(likelihood, loss, device, generator) -> None:
    assert_no_block_raises(problem_of(likelihood, loss, generator), generator)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "missing", [None, slice(0, 40, 3), slice(5, None)], ids=["known", "some missing", "most missing"]
)
@pytest.mark.parametrize(
    "loss", [Hinge(), EpsilonInsensitive(), OneVsRest(Hinge()), CrammerSinger(), Ramp(), OneVsRest(Ramp())], ids=name_of
)
def test_no_block_raises_the_objective_at_falling_prices(loss, missing, generator) -> None:
    """With few targets, and where a component beside K others costs max(0, 5 - 2 log K)."""
    problem = problem_of(SphericalGaussian(), loss, generator, missing=missing, prior=PitmanYor(price_exponent=2.0))
    assert_no_block_raises(problem, generator)


def assert_no_block_raises(problem: Problem, generator) -> None:
    state = random_state(problem, 5.0, generator)
    value = first = naive_objective(problem, state)
    for _ in range(3):
        moved, cost = descent.assign(state, problem)
        opened = open_components(moved, cost, problem, generator)
        fitted, parts = descent.fit_components(opened, problem, 2)
        merged, parts = merge_components(fitted, parts, problem)
        for state in (moved, opened, fitted, merged):
            assert_no_rise(value, value := naive_objective(problem, state))
            assert float(descent.objective(problem, state)) == pytest.approx(value, rel=1e-10)
            assert torch.bincount(state.assignments).min() > 0
            assert len(torch.bincount(state.assignments)) == len(state.centers) == len(state.weights)
        fresh = component_sums(problem.X, state.assignments, len(state.centers))
        torch.testing.assert_close((parts.sums, parts.counts), fresh)
    assert value < 0.9 * first


@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
def test_fit_descends_and_reports_its_objective(loss, generator) -> None:
    X = rows_of(None, generator, 80)
    y = None if loss is None else targets_of(loss, X, generator)
    model = DPM() if loss is None else InfiniteSVM(loss=loss)
    posterior = SmallVariance(num_restarts=1, num_components=3, progress=False).fit(model, X, y)
    values = posterior.trace.values[0]
    assert (values[1:] <= values[:-1] * (1 + 1e-12)).all()
    draw = {name: value[0] for name, value in posterior.samples.items()}
    parts = (draw[name] for name in ("assignments", "centers", "weights", "penalty", "weights"))
    state = Descent(*parts, values[-1])
    problem = Problem.of(posterior.model, posterior.model.data(X, y), posterior.backend.scale)
    assert naive_objective(problem, state) == pytest.approx(float(values[-1]), rel=1e-10)
    assert float(draw["log_mixture"].exp().sum()) == pytest.approx(1.0)
    assert draw["log_mixture"][-1] == -torch.inf
    assert draw["penalty"].ndim == 0


@pytest.mark.parametrize("loss", LOSSES[1:], ids=name_of)
def test_majorizer_steps_descend_without_being_halved(loss, generator) -> None:
    problem = problem_of(SphericalGaussian(), loss, generator)
    state = random_state(problem, 5.0, generator)
    first = value = naive_objective(problem, state)
    for _ in range(5):
        for columns in problem.model.loss.blocks(state.weights.shape[2]):
            margins = problem.margins(state.assignments, len(state.weights))
            step = majorizer_minimum(margins, estimate(margins, state.weights), columns)
            state = replace(state, weights=step)
            before, value = value, naive_objective(problem, state)
            assert value <= before + problem.num_data * 1e-4  # what keeping slacks away from zero may cost
    assert value < 0.9 * first


def test_centers_are_the_best_ones(generator) -> None:
    for likelihood in LIKELIHOODS:
        problem = problem_of(likelihood, None, generator)
        state = random_state(problem, 5.0, generator)
        best = naive_objective(problem, state)
        for _ in range(5):
            other = torch.rand(state.centers.shape, generator=generator, device=generator.device, dtype=torch.float64)
            shifted = state.centers.lerp(other / other.sum(1, keepdim=True), 0.05)
            assert naive_objective(problem, replace(state, centers=shifted)) > best


# -- accounting ----------------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=name_of)
def test_costs_are_the_changes_of_the_objective(likelihood, loss, generator) -> None:
    problem = problem_of(likelihood, loss, generator, N=20, prior=PitmanYor(price_exponent=0.7))
    state = random_state(problem, 3.0, generator, K=3)
    value = naive_objective(problem, state)
    costs = all_costs(problem, state.centers, state.weights)
    for n in range(5):
        old = state.assignments[n]
        for k in range(len(state.centers)):
            z = state.assignments.clone()
            z[n] = k
            change = naive_objective(problem, replace(state, assignments=z)) - value
            assert float(costs[n, k] - costs[n, old]) == pytest.approx(change, abs=1e-9)
        center, weights = problem.founders(torch.tensor([n]))
        z[n] = len(state.centers)
        alone = replace(
            state,
            assignments=z,
            centers=torch.cat([state.centers, center]),
            weights=torch.cat([state.weights, weights]),
        )
        change = naive_objective(problem, alone) - value
        price = problem.next_price(state.penalty, len(state.centers))
        assert float(price + problem.founding[n] - costs[n, old]) == pytest.approx(change, abs=1e-9)


@pytest.mark.parametrize("loss", [None, Hinge(), CrammerSinger()], ids=name_of)
def test_chunks_do_not_show(loss, generator, monkeypatch) -> None:
    problem = problem_of(PoissonGamma(), loss, generator)
    state = random_state(problem, 3.0, generator)
    whole = (
        nearest_components(problem, state.centers, state.weights),
        own_scores(problem.data.features, state.weights, state.assignments),
    )
    costs = all_costs(problem, state.centers, state.weights)
    torch.testing.assert_close(whole[0][1], costs.amin(1))
    assert torch.equal(whole[0][0], costs.argmin(1))
    monkeypatch.setattr("regbayes.inference.small_variance.assignment._CACHE_NUMBERS", 50)
    monkeypatch.setattr("regbayes.inference.small_variance.assignment._SUM_ROWS", 7)
    torch.testing.assert_close(nearest_components(problem, state.centers, state.weights), whole[0])
    torch.testing.assert_close(own_scores(problem.data.features, state.weights, state.assignments), whole[1])
    cost = costs.gather(1, state.assignments.unsqueeze(1)).squeeze(1)
    points, saved = all_savings(problem, state.centers, state.weights, cost)
    torch.testing.assert_close(torch.zeros_like(costs).index_copy(0, points, saved), (cost.unsqueeze(1) - costs).relu())
    assert 0 < len(points) < len(costs)
    sums, counts = component_sums(problem.X, state.assignments, len(state.centers))
    members = torch.nn.functional.one_hot(state.assignments).double()
    torch.testing.assert_close(sums, members.T @ problem.X)
    torch.testing.assert_close(counts, members.sum(0))


# -- references ------------------------------------------------------------------------------------------------------


def naive_dp_means_sweep(X, z, centers, penalty, candidates):
    """DP-means with components opened by total savings, in plain loops."""

    def cost(x, center):
        return float(((x - center) ** 2).sum()) / 2

    def own():
        return [min(cost(x, center) for center in centers) for x in X]

    z = [int(np.argmin([cost(x, center) for center in centers])) for x in X]
    current, first = own(), {}
    opened = list(centers)
    while True:
        best, gain = None, 0.0
        for i in candidates:
            saved = sum(max(0.0, current[n] - cost(X[n], X[i])) for n in range(len(X)))
            first.setdefault(i, saved)
            if saved >= first[i] / 2 and saved - penalty > gain:
                best, gain = i, saved - penalty
        if best is None:
            break
        for n in range(len(X)):
            if cost(X[n], X[best]) < current[n]:
                z[n], current[n] = len(opened), cost(X[n], X[best])
        opened.append(X[best])
    names = sorted(set(z))
    z = np.array([names.index(k) for k in z])
    return z, [X[z == k].mean(0) for k in range(len(names))]


def test_dp_means_is_the_naive_one(cpu_generator) -> None:
    problem = problem_of(SphericalGaussian(variance=1.0), None, cpu_generator, N=50, scale=1.0)
    state = descent.init(problem, 6.0)
    X, z, centers = problem.X.numpy(), None, list(state.centers.numpy())
    for step in range(6):
        cost = np.min([((X - center) ** 2).sum(1) / 2 for center in centers], axis=0)
        same = torch.Generator()
        same.set_state(cpu_generator.get_state())
        number = len(np.unique(np.argmin([((X - center) ** 2).sum(1) for center in centers], axis=0)))
        tried = candidates(torch.from_numpy(cost), number, problem, same).tolist()
        state = descent.sweep(replace(state, grows=True), problem, cpu_generator, merge=False)
        z, centers = naive_dp_means_sweep(X, z, centers, 6.0, tried)
        assert (state.assignments.numpy() == z).all(), step
        np.testing.assert_allclose(state.centers.numpy(), centers, rtol=1e-12, atol=1e-12)
    assert len(centers) > 2


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "loss", "precision", "options"),
    [
        (SphericalGaussian(), None, 1e-9, {}),
        (PoissonGamma(), None, 1e-9, {}),
        (SphericalGaussian(), Hinge(), 5e-3, {}),
        (SphericalGaussian(), Logistic(), 1e-3, {}),
        (SphericalGaussian(), None, 1e-9, {"prior": PitmanYor(price_exponent=0.8)}),
        (SphericalGaussian(), Hinge(), 5e-3, {"prior": PitmanYor(price_exponent=0.8), "missing": [2, 3]}),
    ],
    ids=lambda part: "" if isinstance(part, float) else ", ".join(part) if isinstance(part, dict) else name_of(part),
)
def test_restarts_and_merges_reach_the_minimum_over_all_partitions(likelihood, loss, precision, options) -> None:
    reached = 0
    for seed in range(8):
        generator, N = torch.Generator().manual_seed(seed), 6 if loss else 7
        problem = problem_of(likelihood, loss, generator, N=N, scale=0.5, **options)
        penalty = 2.0
        exact = min(partition_values(problem.model, problem.data, penalty, problem.scale))
        values = []
        for restart in range(3):
            state = descent.init(problem, penalty)
            generator = torch.Generator().manual_seed(restart)
            for _ in range(50):
                state = descent.sweep(state, problem, generator, tolerance=1e-4)
                if state.converged:
                    break
            values.append(float(state.objective))
            if values[-1] <= exact * (1 + precision):
                break
        assert min(values) >= exact * (1 - 1e-6)
        reached += min(values) <= exact * (1 + precision)
    assert reached >= 6


@pytest.mark.filterwarnings("ignore::regbayes.models.ConstantColumnWarning")
def test_a_fit_of_many_columns_starts_from_the_components_of_its_penalty() -> None:
    """There a point far from the others saves them nothing: from one component none opens."""
    X = load_digits().data[:1000]
    posterior = SmallVariance(num_restarts=1, progress=False).fit(DPM(), X)
    assert 5 <= posterior.num_components <= 12


def test_objective_is_the_limit_of_the_posterior(generator) -> None:
    """-log p(z, mu, eta, X, y) / beta -> L: variances / beta, loss * beta, nu^2 / beta, alpha = exp(-beta penalty)."""
    problem = problem_of(SphericalGaussian(), Hinge(), generator, N=12)
    penalty, beta, scale, nu = 1.7, 1e6, problem.scale, problem.model.weight_scale

    def log_posterior(state):
        normal = torch.distributions.Normal
        own = normal(state.centers[state.assignments], 1 / math.sqrt(beta * scale))
        scores = own_scores(problem.data.features, state.weights, state.assignments)
        # log alpha = -beta penalty underflows as alpha: its power is split off
        one = {"concentration": torch.ones((), dtype=torch.float64)}
        prior = problem.model.prior.log_partition(torch.bincount(state.assignments), one)
        prior = prior - beta * penalty * len(state.centers)
        return (
            prior
            + own.log_prob(problem.X).sum()
            + beta * problem.model.log_margin(scores, problem.data.targets).sum()
            + normal(0.0, nu / math.sqrt(beta)).log_prob(state.weights).sum()
        )

    states = [random_state(problem, penalty, generator, K) for K in (2, 4)]
    limit = [float(-log_posterior(state) / beta) for state in states]
    for value, state in zip(limit, states, strict=True):
        assert value == pytest.approx(naive_objective(problem, state), rel=1e-3)


# -- prices, missing targets, sparse rows ------------------------------------------------------------------------------


def test_prices_that_do_not_fall_are_those_of_a_dirichlet_process(generator) -> None:
    X, y = blobs(4, generator)
    for creation in ("joint", "single"):
        backend = SmallVariance(num_restarts=1, num_components=4, creation=creation, progress=False)
        plain, other, falling = (
            backend.fit(InfiniteSVM(prior=prior), X, y % 2)
            for prior in (DirichletProcess(), PitmanYor(0.5, 2.0), PitmanYor(price_exponent=5.0))
        )
        for name in ("assignments", "centers", "weights", "penalty"):
            assert torch.equal(plain.samples[name], other.samples[name]), name
        assert float(plain.trace.final) == pytest.approx(float(other.trace.final), rel=1e-12)
        # the penalty is such that the fifth component costs the same
        asked = float(falling.samples["penalty"] - plain.samples["penalty"])
        assert asked == pytest.approx(5 * math.log(4), rel=1e-6)


def test_a_component_makes_the_next_one_cheaper_at_once(generator) -> None:
    """Far groups that save 1717 and 1321, at prices of 1500 and 1500 - 400 log 2."""
    X = torch.tensor([0.0] * 20 + [30.0] * 4 + [-25.0] * 4, dtype=torch.float64, device=generator.device).unsqueeze(1)
    for exponent, found in ((0.0, 2), (400.0, 3)):
        model = DPM(SphericalGaussian(variance=1.0), prior=PitmanYor(price_exponent=exponent)).resolve(X)
        problem = Problem.of(model, model.data(X), 1.0)
        state, cost = descent.assign(descent.init(problem, 1500.0), problem)
        assert len(open_components(state, cost, problem, generator).centers) == found


def test_rows_with_nothing_in_common_do_not_each_open_a_component(generator) -> None:
    """Each would save about as much alone as any other, so that a penalty just below that opens all."""
    words = torch.randint(200 * 1000, (200 * 30,), generator=generator, device=generator.device)
    X = torch.bincount(words, minlength=200 * 1000)
    posterior = SmallVariance(num_restarts=1, num_components=4, progress=False).fit(
        DPM(MultinomialDirichlet()), X.view(200, -1).double()
    )
    assert posterior.num_components <= 4


def test_merges_are_refunded_what_they_free(generator) -> None:
    problem = problem_of(SphericalGaussian(), None, generator, prior=PitmanYor(price_exponent=12.0))
    state = random_state(problem, 40.0, generator, K=10)
    state, parts = descent.fit_components(state, problem, 1)
    before = naive_objective(problem, state)
    merged, _, gains = merge_once(state, parts, problem)
    assert len(gains) > 2
    assert before - naive_objective(problem, merged) == pytest.approx(sum(gains), rel=1e-9)


@pytest.mark.parametrize("loss", [Hinge(), OneVsRest(Logistic()), CrammerSinger(), EpsilonInsensitive()], ids=name_of)
def test_rows_without_a_label_have_no_loss(loss, generator) -> None:
    """A component of such rows has a classifier of zero, and they pull no other one."""
    missing = list(range(0, 40, 3))
    problem = problem_of(SphericalGaussian(), loss, generator, missing=missing)
    state = random_state(problem, 5.0, generator, K=2)
    assignments = state.assignments.clone()
    assignments[missing] = 2
    state = replace(state, assignments=assignments, centers=state.centers[[0, 1, 1]], weights=state.weights[[0, 1, 1]])
    fitted, parts = descent.fit_components(state, problem, 50)
    assert fitted.weights[2].abs().max() < 1e-8
    assert parts.margins[2] == 0
    labelled = [n for n in range(40) if n not in missing]
    model = problem.model.replace(loss=problem.model.loss.loss)  # the one that is not masked
    part = replace(problem.rows(torch.tensor(labelled)), model=model)
    alone = replace(state, assignments=assignments[labelled], duals=state.duals[labelled])
    other, _ = descent.fit_components(alone, part, 50)
    torch.testing.assert_close(other.weights[:2], fitted.weights[:2])
    assert (problem.founding[missing] == 0).all()
    _, weights = problem.founders(torch.tensor(missing))
    assert not weights.any()


def test_unlabelled_rows_help_to_find_the_components(generator) -> None:
    X, z = blobs(4, generator)
    y = (z % 2).double()
    y[16:] = math.nan  # four of each component are known
    posterior = SmallVariance(num_restarts=1, num_components=4, scale=0.2, progress=False).fit(
        InfiniteSVM(SphericalGaussian()), X, y
    )
    assert normalized_mutual_info_score(z.cpu(), posterior.partition().cpu()) > 0.98
    assert (posterior.predict(X) == z % 2).double().mean() > 0.95


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [{"penalty": 3.0}, {}, {"creation": "single"}], ids=str)
@pytest.mark.parametrize("likelihood", [MultinomialDirichlet(), PoissonGamma(), BernoulliBeta()], ids=name_of)
def test_sparse_rows_are_fitted_as_dense_ones(likelihood, options, cpu_generator, monkeypatch) -> None:
    monkeypatch.setattr("regbayes.inference.small_variance.assignment._CACHE_NUMBERS", 50)
    X = rows_of(likelihood, cpu_generator, 60, D=30) * (torch.rand(60, 30, generator=cpu_generator) < 0.4)
    sparse, y = scipy.sparse.csr_array(X.numpy()), targets_of(Hinge(), X, cpu_generator)
    seen = PrincipalDirections(loc=torch.zeros(30).double(), axes=torch.eye(30, 2).double())
    for model, targets in ((DPM(likelihood), None), (InfiniteSVM(likelihood, feature_map=seen), y)):
        backend = SmallVariance(num_restarts=1, num_components=4, progress=False, **options)
        dense, found = (backend.fit(model, rows, targets) for rows in (X, sparse))
        assert found.num_components > 1 or not options.get("penalty")
        for name in ("assignments", "centers", "weights"):
            torch.testing.assert_close(found.samples[name], dense.samples[name])
        assert float(found.trace.final) == pytest.approx(float(dense.trace.final), rel=1e-9)


_DOCUMENTS = """
import resource, sys, numpy as np, scipy.sparse, torch
from regbayes.inference import SmallVariance
from regbayes.models import DPM
from regbayes.models.likelihoods import BernoulliBeta, MultinomialDirichlet
N, D, L = 20_000, 50_000, 100
columns = np.sort(np.random.default_rng(0).integers(D, size=(N, L)))
X = scipy.sparse.csr_array((np.ones(N * L), columns.ravel(), np.arange(0, N * L + 1, L)), shape=(N, D))
X.sum_duplicates()
X.data[:] = 1
for family in (MultinomialDirichlet(), BernoulliBeta()):
    SmallVariance(num_restarts=1, num_components=8, max_steps=3, progress=False).fit(DPM(family), X)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_twenty_thousand_documents_fit_in_two_gigabytes() -> None:
    output = subprocess.run([sys.executable, "-c", _DOCUMENTS], capture_output=True, text=True, check=True).stdout
    assert int(output) < 2e6


# -- what users rely on ------------------------------------------------------------------------------------------------


def blobs(K: int, generator, N: int = 400, D: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    like = {"generator": generator, "dtype": torch.float64, "device": generator.device}
    z = torch.arange(N, device=generator.device) % K
    return 8 * torch.randn(K, D, **like)[z] + torch.randn(N, D, **like), z


@pytest.mark.parametrize("K", [1, 3, 6])
def test_the_default_penalty_finds_the_wanted_number(K, device, generator) -> None:
    X, z = blobs(K, generator)
    posterior = SmallVariance(num_restarts=1, num_components=K, progress=False).fit(
        DPM(SphericalGaussian(variance=1.0)), X
    )
    assert posterior.num_components == K
    assert normalized_mutual_info_score(z.cpu(), posterior.partition().cpu()) > 0.98 or K == 1
    # K are best: one more saves less than the penalty, one less costs more (by the sums of squares that KMeans finds)
    inertia = [KMeans(k, n_init=10, random_state=0).fit(X.cpu()).inertia_ / 2 for k in range(max(1, K - 1), K + 2)]
    penalty = float(posterior.samples["penalty"][0])
    assert inertia[-2] - inertia[-1] < penalty
    assert K == 1 or penalty < inertia[0] - inertia[1]


def test_penalty_grows_with_the_rows_beyond_its_sample(generator, monkeypatch) -> None:
    X, _ = blobs(3, generator)
    full = SmallVariance(num_restarts=1, num_components=3, progress=False).fit(DPM(), X).samples["penalty"][0]
    monkeypatch.setattr("regbayes.inference.small_variance.penalty.MOST_ROWS", 200)
    part = SmallVariance(num_restarts=1, num_components=3, progress=False).fit(DPM(), X).samples["penalty"][0]
    assert part != full
    assert float(part) == pytest.approx(float(full), rel=0.3)


@pytest.mark.parametrize("likelihood", [SphericalGaussian(variance=1.0), PoissonGamma()], ids=name_of)
def test_farthest_first_is_the_recursion_written_out(likelihood, generator) -> None:
    """Founders are those that would save most alone, beside the centre of all and the founders before."""
    problem = problem_of(likelihood, Hinge(), generator)
    state = descent.init(problem, 0.0)
    costs, founders = [all_costs(problem, state.centers, state.weights)[:, 0].tolist()], list[int]()
    for _ in range(7):
        saved = [min(column) - own for *column, own in zip(*costs, problem.founding.tolist(), strict=True)]
        founders.append(saved.index(max(saved)))
        costs.append(all_costs(problem, *problem.founders(torch.tensor(founders[-1:])))[:, 0].tolist())
    assert farthest_first(problem, 7).tolist() == founders


@pytest.mark.parametrize("seed", range(3))
def test_single_creation_finds_small_components_beside_large_ones(seed) -> None:
    data = make_dp_mixture(2000, seed=seed)
    K = len(data.assignments.unique())
    posterior = SmallVariance(num_restarts=1, num_components=K, creation="single", progress=False).fit(
        DPM(SphericalGaussian()), data.X
    )
    assert abs(posterior.num_components - K) <= 1
    assert normalized_mutual_info_score(data.assignments, posterior.partition()) > 0.99


def test_single_creation_opens_no_component_that_one_point_would_not_pay_for(generator) -> None:
    problem = problem_of(SphericalGaussian(), None, generator)
    state = descent.init(problem, 1.0)
    state, cost = descent.assign(state, problem)
    for penalty, opens in ((float(cost.max()) * 1.01, False), (float(cost.max()) * 0.99, True)):
        state = replace(state, penalty=torch.tensor(penalty, dtype=torch.float64))
        opened = open_components(state, cost, problem, generator, single=True)
        assert (len(opened.centers) > 1) is opens
    # what all points save together would pay for more
    assert len(open_components(state, cost, problem, generator).centers) > 1


def test_restarts_keep_the_lowest_and_seeds_repeat(generator) -> None:
    X, _ = blobs(12, generator, N=150, D=2)
    backend = SmallVariance(penalty=3.0, num_restarts=5, num_jobs=1, merge=False, progress=False)
    fits = [backend.replace(num_restarts=number).fit(DPM(), X) for number in range(1, 6)]
    finals = [posterior.trace.best for posterior in fits]
    assert finals == sorted(finals, reverse=True)
    assert finals[-1] < finals[0]
    lowest, posterior = fits[finals.index(finals[-1])], fits[-1]
    for one, other in [(lowest, posterior), (posterior, backend.fit(DPM(), X))]:
        assert torch.equal(one.samples["centers"], other.samples["centers"])
        assert torch.equal(one.trace.values, other.trace.values)
    assert posterior.trace.values.shape[0] == 1
    assert not posterior.trace.values.isnan().any()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("loss", [None, Hinge(), Logistic(), CrammerSinger()], ids=name_of)
@pytest.mark.parametrize("likelihood", [SphericalGaussian(), PoissonGamma()], ids=name_of)
def test_needless_splits_are_merged(likelihood, loss, generator) -> None:
    problem = problem_of(likelihood, loss, generator)
    state = random_state(problem, 40.0, generator, K=8)  # more pairs than are refitted
    K = len(state.centers)
    state, parts = descent.fit_components(state, problem, 5)
    before = naive_objective(problem, state)
    merged, _, gains = merge_once(state, parts, problem)
    assert len(merged.centers) == K - len(gains) < K
    assert before - naive_objective(problem, merged) == pytest.approx(sum(gains), rel=1e-9)
    best = min(naive_objective(problem, pair) for pair in merged_pairs(state, problem))
    assert before - max(gains) <= best + 1e-9 * abs(best)
    if loss is None:
        assert before - max(gains) == pytest.approx(best, rel=1e-12)
    assert len(merge_components(state, parts, problem)[0].centers) <= 3


def merged_pairs(state: Descent, problem: Problem):
    """Each pair as one component, with the classifier of its first."""
    for j, k in itertools.combinations(range(len(state.centers)), 2):
        z = torch.where(state.assignments == k, j, state.assignments)
        z = torch.where(z > k, z - 1, z)
        keep = [i for i in range(len(state.centers)) if i != k]
        centers = problem.centers(*component_sums(problem.X, z, len(keep)))
        yield replace(state, assignments=z, centers=centers, weights=state.weights[keep])


def test_single_precision_agrees(generator) -> None:
    X, _ = blobs(4, generator)
    y = targets_of(Hinge(), X, generator)
    double, single = (
        SmallVariance(num_restarts=1, penalty=60.0, progress=False).fit(
            InfiniteSVM(SphericalGaussian()), X.to(dtype), y
        )
        for dtype in (torch.float64, torch.float32)
    )
    assert single.samples["centers"].dtype == single.samples["weights"].dtype == torch.float32
    values = single.trace.values[0]
    assert (values[1:] <= values[:-1] * (1 + 1e-5)).all()
    assert normalized_mutual_info_score(double.partition().cpu(), single.partition().cpu()) > 0.99
    assert float(single.trace.final) == pytest.approx(float(double.trace.final), rel=1e-3)


def test_shifted_rows_give_the_same_partition(generator) -> None:
    X, _ = blobs(4, generator)
    fits = [SmallVariance(num_restarts=1, penalty=60.0, progress=False).fit(DPM(), X + shift) for shift in (0.0, 1e5)]
    assert torch.equal(fits[0].partition(), fits[1].partition())


def test_breast_cancer_is_classified_as_by_a_linear_machine() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    right = 0
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(X, y):
        posterior = SmallVariance(num_restarts=1, num_components=4, progress=False).fit(
            InfiniteSVM(), X[train], y[train]
        )
        right += (posterior.predict(X[test]) == y[test]).sum()
    assert right / len(y) >= 0.95


def test_iris_species_are_learned_by_every_multiclass_loss() -> None:
    X, y = load_iris(return_X_y=True)
    for loss in (OneVsRest(Hinge()), OneVsRest(Logistic()), CrammerSinger()):
        posterior = SmallVariance(num_restarts=1, num_components=2, progress=False).fit(InfiniteSVM(loss=loss), X, y)
        assert (posterior.predict(X) == y).mean() >= 0.95


@pytest.mark.parametrize("model", [InfiniteSVM, DDPM])
@pytest.mark.parametrize("loss", [Hinge(), Logistic()])
def test_more_features_than_rows_are_solved_in_the_space_of_the_rows(model, loss) -> None:
    X = torch.randn(30, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sides = (torch.arange(30) % 2).long()
    X[:, 0] += 40.0 * sides
    basis = torch.linalg.qr(X.T).Q  # of fewer columns than the row space asks for
    y = sides if model is InfiniteSVM else None
    wide, narrow = (
        SmallVariance(num_restarts=1, num_components=2, progress=False).fit(
            model(loss=loss, feature_map=features), X, y
        )
        for features in (lambda rows: rows, lambda rows: rows @ basis)
    )
    torch.testing.assert_close(wide.trace.final, narrow.trace.final, rtol=1e-8, atol=0.0)
    classifiers = wide.samples["weights"][0], narrow.samples["weights"][0]
    back = torch.cat([basis @ classifiers[1][:, :-1], classifiers[1][:, -1:]], 1)  # the last is the intercept's
    torch.testing.assert_close(classifiers[0], back, rtol=1e-4, atol=1e-7)


def test_iris_rows_are_clustered_as_by_kmeans() -> None:
    X, _ = load_iris(return_X_y=True)
    posterior = SmallVariance(num_components=3, num_restarts=3, progress=False).fit(DPM(SphericalGaussian()), X)
    reference = KMeans(3, n_init=10, random_state=0).fit_predict(X)
    assert posterior.num_components == 3
    assert normalized_mutual_info_score(reference, posterior.partition()) > 0.95
