"""Regression of some columns on others as a family: its laws, mixtures of regressions, and autoregressive states."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pyro.poutine as poutine
import pytest
import scipy.stats
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from regbayes.datasets import make_switching_autoregression
from regbayes.inference import NUTS, SVI, Gibbs, Posterior, SmallVariance
from regbayes.inference.gibbs.scans import collapsed, direct
from regbayes.inference.gibbs.state import PartitionState, SequenceState
from regbayes.models import (
    DIH,
    DPM,
    IHMM,
    DiagonalGaussian,
    FullGaussian,
    HierarchicalDirichletProcess,
    Hinge,
    LinearRegression,
    PrincipalDirections,
    Product,
)
from regbayes.models.distributions.matrix_normal import MatrixNormal
from regbayes.models.distributions.sampling import draw
from regbayes.models.sequence import lagged
from regbayes.testing import check_kernel, check_likelihood, check_model

from .test_likelihoods import reals

pytestmark = pytest.mark.usefixtures("few_restarts")

NAN = math.nan


def two_lines(num_data: int = 120, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows (u, v) about two lines that cross, and the line of each."""
    generator = torch.Generator().manual_seed(seed)
    u = 4 * torch.rand(num_data, generator=generator, dtype=torch.float64) - 2
    line = torch.arange(num_data) % 2
    noise = 0.1 * torch.randn(num_data, generator=generator, dtype=torch.float64)
    return torch.stack([u, torch.where(line == 0, 2 * u + 1, -2 * u - 2) + noise], 1), line


# -- the family --------------------------------------------------------------------------------------------------------

FAMILIES = {
    "two given": LinearRegression(),
    "two responses": LinearRegression(1),
    "last given": LinearRegression([2]),
    "out of order": LinearRegression([2, 0], -1.0, [0.5, 1.0, 2.0], 3.0, 2.0),
    "full scale": LinearRegression(1, degrees_of_freedom=4.5, scale=[[2.0, 1.0], [1.0, 3.0]]),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_conformance(name, device) -> None:
    check_likelihood(FAMILIES[name], reals().to(device))


def test_conformance_of_constant_columns_few_rows_and_exact_relations() -> None:
    X = torch.cat([reals(), torch.full((24, 1), 7.1, dtype=torch.float64)], 1)
    check_likelihood(LinearRegression(1), X)
    check_likelihood(LinearRegression([3]), X)
    check_likelihood(LinearRegression(3), reals(4, 7))
    check_likelihood(LinearRegression(), torch.full((4, 2), 1e8, dtype=torch.float64))
    u = torch.arange(10, dtype=torch.float64)
    check_likelihood(LinearRegression(), torch.stack([u, 2 * u], 1))


def test_the_marginal_of_a_block_is_that_of_the_textbook() -> None:
    """v [N] ~ Student-t with nu0 degrees of freedom, shape Psi0 / nu0 (I + A K0^-1 A^T)."""
    X = reals(6)
    loc = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    family = LinearRegression(2, loc=loc, coefficient_precision=[0.5, 2.0, 1.5], scale=3.0).resolve(X)
    found = family.log_marginal(family.prior() + family.statistics(X).sum(0)) + family.log_base_measure(X).sum()
    A = np.column_stack([X[:, :2] - loc[:2], np.ones(6)])
    degrees = float(family.degrees_of_freedom)
    shape = 3.0 / degrees * (np.eye(6) + A @ np.diag([2.0, 0.5, 1 / 1.5]) @ A.T)
    expected = scipy.stats.multivariate_t(np.full(6, 2.0), shape, degrees).logpdf(X[:, 2].numpy())
    assert float(found) == pytest.approx(expected, rel=1e-10)


def test_the_density_is_that_of_the_responses_given_the_others() -> None:
    X = reals(5)
    family = LinearRegression([1], loc=[1.0, 2.0, 3.0]).resolve(X)
    B = torch.tensor([[[2.0, -1.0], [0.5, 0.3]]], dtype=torch.float64)
    precision = torch.tensor([[[2.0, 0.4], [0.4, 1.0]]], dtype=torch.float64)
    found = family.log_density(X, {"coefficients": B, "precision": precision})[:, 0]
    means = [[1 + 2 * (u - 2) - 1, 3 + 0.5 * (u - 2) + 0.3] for u in X[:, 1].tolist()]
    covariance = np.linalg.inv(precision[0])
    expected = [
        scipy.stats.multivariate_normal(mean, covariance).logpdf(x[[0, 2]])
        for mean, x in zip(means, X.numpy(), strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    law = family.response({"coefficients": B, "precision": precision}, X)
    np.testing.assert_allclose(law.mean, means, rtol=1e-12)


def test_defaults_come_from_the_data_and_its_weights() -> None:
    X, _ = two_lines()
    weights = torch.arange(len(X)).double() % 3
    found = LinearRegression().resolve(X, weights)
    repeated = X[torch.arange(len(X)).repeat_interleave(weights.long())]
    expected = LinearRegression().resolve(repeated)
    for name, value in found.get_params().items():
        torch.testing.assert_close(value, getattr(expected, name), rtol=1e-10, atol=1e-10)
    own = [scipy.stats.linregress(*X[part::2].T.numpy()) for part in range(2)]
    line = LinearRegression().resolve(X[::2])
    residual = X[::2, 1].numpy() - own[0].intercept - own[0].slope * X[::2, 0].numpy()
    assert float(line.scale) == pytest.approx(residual.var() / 2, rel=1e-6)
    assert line.coefficient_precision.tolist() == pytest.approx([0.05 * X[::2, 0].numpy().var(), 0.05])


def test_small_variance_divergence_is_half_the_squared_residual_and_the_prior_a_ridge() -> None:
    X = reals(12)
    family = LinearRegression(1).resolve(X)
    U = family.coordinates(X)
    prior_row, weight = family.pseudo_observation()
    sums, count = U.sum(0) + weight * prior_row, torch.tensor([12 + weight])
    found = family.divergence(U, family.centers(sums.unsqueeze(0), count))[:, 0]
    A = torch.cat([X[:, :1] - family.loc[0], torch.ones(12, 1)], 1)
    V, K0 = X[:, 1:] - family.loc[1:], torch.diag(family.coefficient_precision)
    residual = V - A @ torch.linalg.solve(A.T @ A + K0, A.T @ V)
    metric = torch.linalg.inv(family.scale / (family.degrees_of_freedom - 3))
    torch.testing.assert_close(found, ((residual @ metric) * residual).sum(1) / 2, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("family", "width", "message"),
    [
        (LinearRegression(), 1, "X has 1 column; LinearRegression needs at least two"),
        (LinearRegression(3), 3, "given is 3, and X has 3 columns"),
        (LinearRegression([0, 5]), 3, r"given is \[0, 5\]"),
        (LinearRegression([0, 0]), 3, "given is .* it must be an integer of at least 1"),
        (LinearRegression([]), 3, "given is .* it must be an integer of at least 1"),
        (LinearRegression(0), 3, "given is 0; it must be an integer of at least 1"),
        (LinearRegression([-1]), 3, "given is .* it must be"),
        (LinearRegression("u"), 3, "given is 'u'; it must be"),
        (LinearRegression(1, degrees_of_freedom=1.0), 3, "it must be larger than 1"),
        (LinearRegression(1, scale=[1.0, 2.0, 3.0]), 3, "scale has shape"),
        (LinearRegression(1, coefficient_precision=[1.0, 2.0, 3.0]), 3, "coefficient_precision has shape"),
    ],
)
def test_errors_say_what_is_accepted(family, width, message) -> None:
    with pytest.raises(ValueError, match=message):
        SVI().fit(DPM(family), reals(8, width))


def test_missing_values_and_draws_of_whole_rows_are_refused() -> None:
    X = reals(8)
    X[2, 1] = NAN
    with pytest.raises(ValueError, match="NaN"):
        SVI().fit(DPM(LinearRegression()), X)
    family = LinearRegression().resolve(reals(8))
    with pytest.raises(NotImplementedError, match="does not model the columns that are given"):
        family.distribution(family.draw(family.prior().unsqueeze(0), torch.Generator())).sample()


def test_numpy_columns_are_read_and_saved_as_plain_ones(tmp_path) -> None:
    X, _ = two_lines(20)
    posterior = SVI(num_steps=2).fit(DPM(LinearRegression(np.array([0])), truncation=3), X)
    posterior.save(tmp_path / "posterior")
    loaded = Posterior.load(tmp_path / "posterior")
    assert loaded.model.likelihood.given == [0]
    assert torch.equal(loaded.assign(X), posterior.assign(X))


def test_matrix_normal_is_the_normal_law_of_stacked_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    options = {"generator": generator, "dtype": torch.float64}
    loc = torch.randn(2, 3, **options)
    row, column = (
        torch.randn(size, size, **options).tril(-1) + torch.diag(torch.rand(size, **options) + 0.5) for size in (2, 3)
    )
    covariance = torch.kron(torch.linalg.inv(row @ row.T), torch.linalg.inv(column @ column.T))
    law, plain = MatrixNormal(loc, row, column), torch.distributions.MultivariateNormal(loc.flatten(), covariance)
    values = torch.randn(4, 2, 3, **options)
    torch.testing.assert_close(law.expand([4]).log_prob(values), plain.log_prob(values.flatten(1)))
    drawn = draw(law.expand([40_000]), generator).flatten(1)
    error = (covariance.diagonal().outer(covariance.diagonal()) + covariance.square()).div(40_000).sqrt()
    assert ((drawn.T.cov() - covariance).abs() < 5 * error).all()
    assert ((drawn.mean(0) - loc.flatten()).abs() < 5 * (covariance.diagonal() / 40_000).sqrt()).all()


# -- mixtures of regressions -------------------------------------------------------------------------------------------

TINY_FAMILY = LinearRegression(loc=0.0, coefficient_precision=0.5, degrees_of_freedom=4.0, scale=0.4)


@pytest.mark.parametrize("name", [*FAMILIES, "many columns"])
def test_compiled_conditionals_are_those_of_the_family(name) -> None:
    """Those of the predictive given all other rows, whichever columns are given; and after every row has moved once."""
    X, family = (reals(12, 26), LinearRegression(22)) if name == "many columns" else (reals(12), FAMILIES[name])
    model = DPM(family).resolve(X)
    data, labels = model.data(X), torch.arange(12) % 3
    labels[5] = 3  # alone
    state = PartitionState(labels, X.new_zeros(4, 0, 0), model.prior.start(X))
    for n in range(12):
        found, plain = (collapsed.assignment_logits(n, state, data, model, compiled=choice) for choice in (True, False))
        torch.testing.assert_close(found.log_softmax(0), plain.log_softmax(0), rtol=1e-8, atol=1e-8)
    moved, tensors = (
        collapsed.scan(state, data, model, torch.Generator().manual_seed(0), compiled=choice)
        for choice in (True, False)
    )
    assert torch.equal(moved.assignments, tensors.assignments)


@pytest.mark.parametrize(
    "backend",
    [
        Gibbs(num_samples=4, num_warmup=8, scan="collapsed"),
        Gibbs(num_samples=8, num_warmup=20, scan="slice"),
        Gibbs(num_samples=8, num_warmup=20, scan="blocked"),
        SVI(num_steps=30),
        SmallVariance(penalty=10.0),
    ],
    ids=["collapsed", "slice", "blocked", "svi", "small_variance"],
)
def test_a_mixture_finds_lines_that_cross(backend) -> None:
    X, line = two_lines()
    posterior = backend.fit(DPM(LinearRegression(), truncation=8), X)
    assert adjusted_rand_score(posterior.partition(), line) > 0.7  # where lines cross, rows are of either
    assert posterior.num_components == 2


@pytest.mark.parametrize("backend", [SVI(num_steps=30), SmallVariance(num_components=3)], ids=["svi", "small_variance"])
def test_a_product_of_places_and_relations_finds_experts(backend) -> None:
    """The columns u twice: once with a law of their own, once given."""
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(90) % 3
    u = torch.tensor([-3.0, 0.0, 0.0], dtype=torch.float64)[label]
    u = u + torch.randn(90, generator=generator, dtype=torch.float64) / 2
    slope, offset = torch.tensor([[1.0, 1.0, -1.0], [0.0, 0.0, 4.0]], dtype=torch.float64)[:, label]
    v = slope * u + offset + torch.randn(90, generator=generator, dtype=torch.float64) / 10
    family = Product([(DiagonalGaussian(), 1), (LinearRegression(1), 2)])
    posterior = backend.fit(DPM(family, truncation=8), torch.stack([u, u, v], 1))
    assert adjusted_rand_score(posterior.partition(), label) > 0.8


def test_weights_of_rows_are_copies() -> None:
    X, _ = two_lines(40)
    weights = torch.arange(40).double() % 3
    repeated = X[torch.arange(40).repeat_interleave(weights.long())]
    model = DPM(LinearRegression(), truncation=4)
    for backend in (SVI(num_steps=400, tolerance=1e-12), SmallVariance(penalty=10.0)):
        found = backend.fit(model, X, sample_weight=weights).trace.final
        torch.testing.assert_close(found, backend.fit(model, repeated).trace.final, rtol=1e-3, atol=0.0)


# -- autoregressive states ---------------------------------------------------------------------------------------------

SERIES = torch.tensor([[0.5], [0.9], [-0.7], [0.8], [1.1], [0.4]], dtype=torch.float64)
LENGTHS = [4, 2]
FIXED = HierarchicalDirichletProcess(1.5, None, 1.0, None)
STATES = {"likelihood": TINY_FAMILY, "prior": FIXED, "truncation": 2, "lags": 1}
MODELS = {
    "IHMM": IHMM(**STATES),
    "DIH": DIH(
        **STATES, loss=Hinge(0.4), weight_scale=0.5, feature_map=PrincipalDirections(intercept=0.0, num_directions=1)
    ),
}


def test_rows_with_those_before_them(device) -> None:
    X = torch.arange(1.0, 8.0, device=device).unsqueeze(1)
    observed = torch.tensor([True, True, True, True, False, True, True], device=device)
    found, complete = lagged(X, [3, 4], observed, 1)
    assert complete.tolist() == [False, True, True, False, False, False, True]
    assert found[complete].tolist() == [[1.0, 2.0], [2.0, 3.0], [6.0, 7.0]]
    assert not found[~complete].any()
    found, complete = lagged(torch.cat([X, -X], 1), [7], torch.ones_like(observed), 2)
    assert complete.tolist() == [False, False, True, True, True, True, True]
    assert found[2].tolist() == [2.0, -2.0, 1.0, -1.0, 3.0, -3.0]
    assert lagged(X, [2, 5], observed, 4)[1].sum() == 0


@pytest.mark.one_in(4)
@pytest.mark.parametrize("lags", [1, 2])
@pytest.mark.parametrize("kind", [IHMM, DIH])
def test_compiled_scans_of_states_are_the_plain_ones(kind, lags) -> None:
    X = reals(30, 2)
    X[11] = NAN
    model, data = kind(LinearRegression(), lags=lags).prepare(X, lengths=[20, 10])
    states = torch.arange(30) % 3
    weights, reservoir = (torch.zeros(size, data.points.features.shape[1], model.repels).to(X) for size in (3, 9))
    base = torch.tensor([0.4, 0.2, 0.3, 0.1], dtype=torch.float64)
    hyper = model.prior.replace(concentration=5.0, top_concentration=4.0).start(X)
    known = SequenceState(states, weights, hyper, reservoir if model.repels else None, base=base)
    for seed in range(3):
        one, other = (
            direct.scan(known, data, model, torch.Generator().manual_seed(seed), compiled=choice)
            for choice in (True, False)
        )
        assert torch.equal(one.assignments, other.assignments)
        torch.testing.assert_close(one.base, other.base)
        known = one


@pytest.mark.parametrize("lags", [1, 2])
@pytest.mark.parametrize("kind", [IHMM, DIH])
def test_program_is_that_of_the_parts(kind, lags) -> None:
    X = reals(9, 2)
    X[4] = NAN
    check_model(kind(LinearRegression(), truncation=3, lags=lags), X, lengths=[7, 2])


def test_program_sums_over_paths_of_an_autoregression() -> None:
    """Every path, with densities p(x_t | x_{t-1}) taken from the rows themselves."""
    X = SERIES.clone()
    X[2] = NAN
    X = torch.cat([X, SERIES])
    lengths = [6, 4, 2]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        trace = poutine.trace(MODELS["IHMM"]).get_trace(X, lengths)
    trace.compute_log_prob()
    sites = {name: node["value"] for name, node in trace.nodes.items() if node["type"] == "sample"}
    moves, coefficients = sites["transitions"].log(), sites["coefficients"]
    scales = sites["precision"].rsqrt()
    total, start = 0.0, 0
    for length in lengths:
        terms = []
        for path in itertools.product(range(2), repeat=length):
            term = moves[2, path[0]] + sum(moves[a, b] for a, b in itertools.pairwise(path))
            for t in range(1, length):
                before, now = X[start + t - 1], X[start + t]
                if not (before.isnan().any() or now.isnan().any()):
                    slope, intercept = coefficients[path[t], 0]
                    law = torch.distributions.Normal(slope * before + intercept, scales[path[t], 0])
                    term = term + law.log_prob(now).sum()
            terms.append(term)
        total, start = total + torch.stack(terms).logsumexp(0), start + length
    torch.testing.assert_close(trace.nodes["paths"]["log_prob_sum"], total)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", [SVI(num_steps=40), SmallVariance(penalty=1.0)], ids=["svi", "small_variance"])
@pytest.mark.filterwarnings("ignore:All 2 components are occupied")
def test_bounds_and_objectives_of_states(name, backend) -> None:
    check_kernel(backend, MODELS[name], SERIES, lengths=LENGTHS)


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scan", ["direct", "beam", "blocked"])
@pytest.mark.filterwarnings("ignore:All 2 components are occupied")
def test_gibbs_has_the_exact_states(name, scan) -> None:
    num_samples = 1000 if scan == "beam" else 300  # it leaves a single state seldom
    backend = Gibbs(num_samples=num_samples, num_warmup=30, scan=scan, seed=1)
    check_kernel(backend, MODELS[name], SERIES, lengths=LENGTHS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:All 2 components are occupied")
def test_pyro_engines_run_on_the_program() -> None:
    posterior = NUTS(num_samples=5, num_warmup=5, max_tree_depth=3).fit(MODELS["IHMM"], SERIES, lengths=LENGTHS)
    assert posterior.samples["assignments"].shape == (5, 6)


@pytest.fixture(scope="module")
def walk():
    return make_switching_autoregression(200)


@pytest.fixture(scope="module")
def fitted(walk) -> Posterior:
    return SVI(num_steps=30).fit(IHMM(LinearRegression(), truncation=6, lags=1), walk.X)


@pytest.mark.parametrize(
    "backend",
    [
        Gibbs(num_samples=4, num_warmup=12, seed=1, scan="direct"),
        Gibbs(num_samples=4, num_warmup=12, seed=1, scan="beam"),
        Gibbs(num_samples=4, num_warmup=12, seed=1, scan="blocked"),
        SmallVariance(),
    ],
    ids=["direct", "beam", "blocked", "small_variance"],
)
def test_states_of_a_walk_that_turns_are_found(backend, walk) -> None:
    # of seed 0 the chain stays in two states: so do some 4 of 60
    posterior = backend.fit(IHMM(LinearRegression(), truncation=6, lags=1), walk.X)
    assert adjusted_rand_score(posterior.partition(), walk.y) > 0.75


def test_states_on_any_device(walk, device) -> None:
    X = walk.X.to(device)
    found = Gibbs(num_samples=2, num_warmup=8, scan="blocked").fit(IHMM(LinearRegression(), truncation=6, lags=1), X)
    assert found.assign(X).device == X.device
    assert found.simulate(3, given=X)[0].device == X.device


def test_states_are_found_by_svi_and_not_without_lags(walk, fitted) -> None:
    assert adjusted_rand_score(fitted.partition(), walk.y) > 0.75
    plain = SVI(num_steps=10).fit(IHMM(FullGaussian()), walk.X)
    assert adjusted_rand_score(plain.partition(), walk.y) < 0.3


def test_new_sequences_are_decoded_with_the_rows_before(walk, fitted) -> None:
    fresh = make_switching_autoregression(150, seed=1)
    assert adjusted_rand_score(fitted.assign(fresh.X), fresh.y) > 0.75
    assert fitted.assign(fresh.X.numpy(), [1, 149]).shape == (150,)
    assert fitted.smooth(fresh.X[:1]).sum() == pytest.approx(1.0)
    with pytest.raises(ValueError, match="X has 3 features, but the model was fitted with 2"):
        fitted.assign(reals(5, 3))


@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
def test_the_density_of_new_sequences_is_the_sum_over_paths() -> None:
    posterior = Gibbs(num_samples=1, num_warmup=2, scan="blocked").fit(MODELS["IHMM"], SERIES, lengths=LENGTHS)
    X = torch.tensor([[0.2], [-0.5], [0.6]], dtype=torch.float64)
    chi = posterior.samples["hyperparameters"][0]
    family, log_rows = posterior.model.likelihood, posterior.samples["log_transitions"][0]
    pairs = torch.cat([X[:-1], X[1:]], 1)
    emission = family.log_predictive(pairs, chi)
    terms = [
        posterior.samples["log_start"][0][a] + log_rows[a, b] + emission[0, b] + log_rows[b, c] + emission[1, c]
        for a, b, c in itertools.product(range(2), repeat=3)
    ]
    found = posterior.log_predictive_density(X)
    torch.testing.assert_close(found, torch.stack(terms).logsumexp(0).unsqueeze(0))


def test_simulated_rows_go_on_from_those_given(fitted, walk) -> None:
    with pytest.raises(ValueError, match="lags=1 a sequence goes on from rows"):
        fitted.simulate(5)
    with pytest.raises(ValueError, match="must end in 1 observed rows"):
        fitted.simulate(5, given=torch.full((1, 2), NAN, dtype=torch.float64))
    X, states = fitted.simulate(40, num_sequences=3, given=walk.X, seed=2)
    again, _ = fitted.simulate(40, num_sequences=3, given=walk.X, seed=2)
    assert X.shape == (120, 2)
    assert torch.equal(X, again)
    before = torch.cat([torch.cat([walk.X[-1:], own[:-1]]) for own in X.split(40)])
    family, chi = fitted.model.likelihood, fitted.samples["hyperparameters"][fitted.representative]
    density = family.log_predictive(torch.cat([before, X], 1), chi)
    assert (density.argmax(1) == states).double().mean() > 0.75


def test_two_lags_are_the_latest_first(fitted) -> None:
    """States without noise: a sequence that adds its last two rows."""
    family = LinearRegression(scale=1e-12, degrees_of_freedom=1e6, loc=0.0, coefficient_precision=1e-6)
    X = torch.tensor([1.0, 1.5, 0.5, -1.5, -2.0, 0.5, 2.5, 1.5], dtype=torch.float64)
    for t in range(2, 8):
        X[t] = 0.9 * X[t - 1] - 0.5 * X[t - 2]
    model = IHMM(family, FIXED, truncation=2, lags=2)
    posterior = Gibbs(num_samples=1, num_warmup=3, scan="blocked", init=torch.zeros(8).long()).fit(model, X[:, None])
    given = torch.tensor([[2.0], [-1.0]], dtype=torch.float64)
    found, _ = posterior.simulate(2, given=given)
    expected = [-0.9 - 1.0, 0.9 * -1.9 + 0.5]
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-3)


def test_lags_need_a_family_of_rows_given_others_and_long_sequences() -> None:
    X = reals(8, 2)
    with pytest.raises(ValueError, match="likelihood is DiagonalGaussian, a distribution of whole rows; lags need"):
        SVI().fit(IHMM(DiagonalGaussian(), lags=1), X)
    with pytest.raises(ValueError, match="lags give 2 columns"):
        SVI().fit(IHMM(LinearRegression(1), lags=1), X)
    with pytest.raises(ValueError, match="lags is -1; it must be an integer of at least 0"):
        SVI().fit(IHMM(LinearRegression(), lags=-1), X)
    with pytest.raises(ValueError, match="X has 0 observed steps after 1 observed ones"):
        SVI().fit(IHMM(LinearRegression(), lags=1), X, lengths=[1] * 8)
    with pytest.raises(ValueError, match="pass what `rows` makes of it"):
        IHMM(LinearRegression(), lags=2).resolve(X)


def test_lags_survive_files_checkpoints_and_clones(tmp_path, walk, fitted) -> None:
    fitted.save(tmp_path / "states")
    loaded = Posterior.load(tmp_path / "states")
    assert loaded.model.lags == 1
    assert torch.equal(loaded.assign(walk.X[:20]), fitted.assign(walk.X[:20]))
    assert DIH(LinearRegression(), lags=2).without_hyperplanes().lags == 2
