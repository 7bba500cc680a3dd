"""Gibbs sampling of latent features against the Pyro program and exact enumeration."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pyro.poutine as poutine
import pytest
import torch
from setups import by_day, frequency_errors, misled
from sklearn.svm import LinearSVC
from torch import Tensor

from regbayes.datasets import load
from regbayes.inference import Gibbs
from regbayes.inference.compiled._numba_losses import margins
from regbayes.inference.compiled.decorators import entry_of
from regbayes.inference.gibbs.features import _numba_collapsed as compiled
from regbayes.inference.gibbs.features import collapsed, columns, parameters, start
from regbayes.inference.gibbs.features import kernel as features
from regbayes.inference.gibbs.features import rows as tensor_rows
from regbayes.inference.gibbs.features import state as states
from regbayes.inference.gibbs.features.state import FeatureState, Given
from regbayes.models import (
    BetaBernoulli,
    Blocks,
    CrammerSinger,
    EpsilonInsensitive,
    Hinge,
    IndianBuffetProcess,
    InfiniteLatentSVM,
    LinearBernoulli,
    LinearGaussian,
    Logistic,
    Masked,
    OneVsRest,
    SquaredHinge,
    StudentT,
)
from regbayes.models.compiled import compiled_loss
from regbayes.models.latent_features import FeatureData
from regbayes.models.losses import Loss, PseudoObservation
from regbayes.testing import check_kernel, check_model
from regbayes.testing.features import feature_posterior

NAN = math.nan
X = torch.tensor([[0.3, -0.4], [1.2, 0.5], [-0.8, 0.9]], dtype=torch.float64)
HOLES = torch.tensor([[0.3, NAN], [1.2, 0.5], [-0.8, 0.9]], dtype=torch.float64)
BITS = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
SIGNS, CLASSES, NUMBERS = torch.tensor([1, -1, 1]), torch.tensor([0, 2, 1]), torch.tensor([0.4, -1.0, 1.5])
SOME = torch.tensor([1.0, NAN, -1.0])
FIXED = LinearGaussian(offset=0.1, noise_variance=0.5, loading_variance=1.0, learn=False)


def no_inputs(rows: Tensor) -> Tensor:
    return rows[:, :0]


def model_of(loss: Loss | None = None, likelihood=FIXED, prior=None, **options) -> InfiniteLatentSVM:
    options = {"truncation": 2, "feature_map": None} | options
    return InfiniteLatentSVM(likelihood, loss or Hinge(0.7), prior or IndianBuffetProcess(1.0), **options)


CASES = {
    "hinge": (model_of(), X, SIGNS),
    "holes": (model_of(prior=BetaBernoulli(1.5, (2.0, 1.0)), truncation=3), HOLES, SOME),
    "learned": (model_of(likelihood=LinearGaussian(), prior=IndianBuffetProcess(1.0, (2.0, 1.0))), X, SIGNS),
    "classes": (model_of(CrammerSinger(0.8)), X, CLASSES),
    "one-versus-rest": (model_of(Hinge(0.5)), X, CLASSES),
    "regression": (model_of(EpsilonInsensitive(0.8, 0.2), feature_map=lambda rows: rows), X, NUMBERS),
    "blocks": (model_of(likelihood=Blocks([(LinearGaussian(), 1), (LinearBernoulli(), 1)])), BITS, SIGNS),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest):
    model, rows, targets = CASES[request.param]
    model, data = model.prepare(rows, targets)
    return model, data, some_state(model, data)


def some_state(model, data, truncated: bool = True, seed: int = 0):
    """A state as the prior has them, with features in which every column has rows."""
    generator = torch.Generator().manual_seed(seed)
    state = start.by_size(start.start_bits(model, data, generator, start="random"))
    bits = state.features.clone()
    bits[0] = 1
    pi = model.prior.start_probabilities(state.hyper, model.truncation) if truncated else None
    state = replace(state, features=bits, probabilities=pi)
    loadings = torch.randn(state.loadings.shape, generator=generator, dtype=data.X.dtype)
    weights = torch.randn(state.weights.shape, generator=generator, dtype=data.X.dtype)
    return replace(state, loadings=loadings, weights=weights)


def log_program(model, data, state) -> float:
    """The log density of the program at a state."""
    sites = {"loadings": state.loadings, "weights": state.weights, "features": state.features.to(data.X)}
    pi = state.probabilities.to(data.X)
    if isinstance(model.prior, IndianBuffetProcess):
        sites["sticks"] = pi / torch.cat([pi.new_ones(1), pi[:-1]])
    else:
        sites["probabilities"] = pi
    sites |= {name: value.to(data.X) for name, value in (state.hyper | state.entries).items()}
    return float(poutine.trace(poutine.condition(model.program, data=sites)).get_trace(data).log_prob_sum())


def with_bit(state, n: int, k: int, value: int):
    bits = state.features.clone()
    bits[n, k] = value
    return replace(state, features=bits)


# -- conditionals ------------------------------------------------------------------------------------------------------


def test_the_log_joint_is_that_of_the_program(case) -> None:
    """Up to the Jacobian of the sticks, which is the same in both states."""
    model, data, state = case
    other = some_state(model, data, seed=1)
    hyper = {name: value * 1.3 for name, value in state.hyper.items()} if model.prior.concentration_prior else {}
    laws = model.likelihood.hyperpriors(data.X)
    entries = {name: value * 0.8 for name, value in state.entries.items() if laws[name] is not None}
    other = replace(other, hyper=state.hyper | hyper, entries=state.entries | entries)
    found = features.log_joint(other, data, model) - features.log_joint(state, data, model)
    assert found == pytest.approx(log_program(model, data, other) - log_program(model, data, state), rel=1e-9)


def test_bits_are_the_programs(case) -> None:
    """Entries speak through their pseudo-observations, given which they are Gaussian factors; all else as it is."""
    model, data, state = case
    given, found = parameters.observe_entries(state, data, model, torch.Generator().manual_seed(0)), []

    def choose(k: int, log_odds: Tensor) -> Tensor:
        found.append(log_odds)
        return torch.tensor([0, 1, 1])

    def gaussian(state) -> Tensor:
        mean = state.features.to(state.loadings) @ state.loadings
        return (data.counted * (given.observed.shift * mean - given.observed.precision * mean.square() / 2)).sum()

    def entries(state) -> Tensor:
        mean = state.features.to(state.loadings) @ state.loadings
        return (data.counted * model.likelihood.log_density(data.X, mean, state.entries)).sum()

    moved = columns.visit_columns(state, given, state.probabilities.logit(), choose)
    assert moved.features.T.tolist() == len(found) * [[0, 1, 1]]
    for k, log_odds in enumerate(found):
        for n in range(data.num_data):
            one, zero = (with_bit(state, n, k, value) for value in (1, 0))
            expected = log_program(model, data, one) - log_program(model, data, zero)
            if not isinstance(model.likelihood, LinearGaussian):
                expected += float(gaussian(one) - gaussian(zero) - entries(one) + entries(zero))
            assert float(log_odds[n]) == pytest.approx(expected, abs=1e-9)
        state.features[:, k] = torch.tensor([0, 1, 1])


@pytest.mark.parametrize("name", ["hinge", "holes", "classes", "blocks"])
def test_a_compiled_scan_of_columns_has_the_same_bits(name, monkeypatch) -> None:
    model, data = CASES[name][0].prepare(*CASES[name][1:])
    state = some_state(model, data)
    state = replace(state, weights=state.weights / 4, loadings=state.loadings / 4)
    given = parameters.observe_entries(state, data, model, torch.Generator().manual_seed(0))

    def scan(seed: int) -> Tensor:
        return columns.scan_blocked(state, given, torch.Generator().manual_seed(seed)).features

    found = torch.stack([scan(seed) for seed in range(40)])
    monkeypatch.setattr(columns, "is_compiled", lambda model, data: False)
    assert torch.equal(found, torch.stack([scan(seed) for seed in range(40)]))
    assert 0.1 < found.double().mean() < 0.9


def test_loadings_and_precisions_are_the_programs(case) -> None:
    model, data, state = case
    generator = torch.Generator().manual_seed(3)
    other = replace(state, loadings=torch.randn(state.loadings.shape, generator=generator, dtype=torch.float64))
    if isinstance(model.likelihood, LinearGaussian):
        law = parameters.loadings_posterior(state, parameters.observe_entries(state, data, model, generator))
        gap = [one.loadings - law.mean for one in (other, state)]
        tril = law.precision_tril[law.which]
        log_law = [-(torch.einsum("dkj,kd->jd", tril, one)).square().sum() / 2 for one in gap]
        expected = log_program(model, data, other) - log_program(model, data, state)
        assert float(log_law[0] - log_law[1]) == pytest.approx(expected, rel=1e-9)
    for name, law in parameters.precision_laws(other, data, model).items():
        moved = replace(other, entries=other.entries | {name: other.entries[name] * 1.4})
        found = law.log_prob(moved.entries[name]) - law.log_prob(other.entries[name])
        assert float(found) == pytest.approx(
            log_program(model, data, moved) - log_program(model, data, other), rel=1e-8
        )


def test_slice_steps_of_weights_see_the_margin() -> None:
    model, data = model_of(SquaredHinge(0.5)).prepare(X, SIGNS)
    state = some_state(model, data)
    moved = replace(state, weights=state.weights + 0.7)
    scored, which = parameters.scored(state, data, model), torch.zeros(1, dtype=torch.long)
    one, other = (scored.log_likelihood(each.weights.unsqueeze(0), which) for each in (state, moved))
    change = moved.weights.square().sum() - state.weights.square().sum()
    expected = log_program(model, data, moved) - log_program(model, data, state) + float(change) / 2
    assert float(other - one) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("prior", [IndianBuffetProcess(1.0), BetaBernoulli(1.5)])
def test_swaps_of_columns_have_the_ratio_of_the_joint(prior) -> None:
    model, data = model_of(prior=prior).prepare(X, SIGNS)
    state = some_state(model, data)
    state.features[:] = torch.tensor([[0, 1], [0, 1], [1, 0]])
    state = replace(state, probabilities=torch.tensor([0.5, 0.4], dtype=torch.float64))
    generator, num_draws = torch.Generator().manual_seed(0), 2000
    for _ in range(2):  # from the better order, and from the other
        order = torch.tensor([1, 0])
        other = states.keep_columns(state, order)
        assert torch.equal(other.weights[2:], state.weights[2:])
        ratio = (features.log_joint(other, data, model) - features.log_joint(state, data, model)).exp()
        counts = state.features.sum(0)
        swapped = [columns.swap_columns(state, counts, generator) for _ in range(num_draws)]
        assert all(torch.equal(after.features.sum(0), found) for after, found in swapped)
        moved = [after.features for after, _ in swapped]
        share = sum(torch.equal(bits, other.features) for bits in moved) / num_draws
        expected = min(1.0, float(ratio))
        assert abs(share - expected) <= 5 * (expected * (1 - expected) / num_draws) ** 0.5
        state = other


# -- the infinite model ------------------------------------------------------------------------------------------------


def test_columns_are_drawn_by_their_weights() -> None:
    """All 8 columns of 3 rows, of a feature below and above the least probability of the others."""
    generator, num_draws = torch.Generator().manual_seed(0), 3000
    log_odds = torch.tensor([-1.0, 0.3, -0.5], dtype=torch.float64)
    p = log_odds.sigmoid()
    for pi, least in torch.tensor([(0.2, 0.5), (0.6, 0.3)]).double():
        weights = {}
        for bits in itertools.product((0, 1), repeat=3):
            z = torch.tensor(bits)
            weights[bits] = float(torch.where(z > 0, p, 1 - p).prod()) / (min(pi, least) if any(bits) else least)
        total = sum(weights.values())
        exact = {bits: weight / total for bits, weight in weights.items()}
        drawn = [columns.draw_column(log_odds, pi, least, generator)[0].int() for _ in range(num_draws)]
        assert frequency_errors([tuple(bits.tolist()) for bits in drawn], exact).max() < 5


def without_data(N: int, alpha: float) -> tuple[InfiniteLatentSVM, FeatureData, FeatureState]:
    """A model of rows of unknown targets, and a state in which no row has a feature."""
    model = model_of(Masked(Hinge()), prior=IndianBuffetProcess(alpha)).prepare(X.repeat(N, 1)[:N], SIGNS.repeat(N)[:N])
    model, data = model[0], replace(model[1], targets=torch.full((N, 1), NAN, dtype=torch.float64))
    return model, data, states.keep_columns(some_state(model, data, truncated=False), torch.arange(0))


@pytest.mark.parametrize("scan", [collapsed.scan_rows, tensor_rows.visit_rows])
def test_the_number_of_features_of_a_lone_row_weighs_prior_evidence_and_margin(scan) -> None:
    """Poisson(K; alpha) E exp(b . u - a . u^2 / 2) E phi(y | f + s), u and s sums of K loadings and K weights."""
    model, data, state = without_data(3, 1.5)
    data = replace(data.rows(slice(0, 1)), targets=torch.ones(1, 1, dtype=torch.float64))
    state = replace(state, features=state.features[:1], weights=torch.full((1, 1), -0.5, dtype=torch.float64))
    a, b = torch.tensor([[0.7, 2.0]]).double(), torch.tensor([[3.0, -2.5]]).double()
    nodes, exact = torch.linspace(-8, 8, 4001, dtype=torch.float64), {}
    for K in range(9):
        evidence = (b.square() * K / (1 + a * K) - torch.log1p(a * K)).sum() / 2
        factor = model.log_margin((K**0.5 * nodes - 0.5).view(-1, 1), torch.ones(1)).exp()
        margin = (factor * (-nodes.square() / 2).exp()).sum()
        exact[(K,)] = float(1.5**K / math.factorial(K) * evidence.exp() * margin)
    total, generator, seen = sum(exact.values()), torch.Generator().manual_seed(0), []
    for _ in range(2000):
        state = scan(state, Given(data, model, PseudoObservation(a, b)), generator)
        seen.append((min(state.features.shape[1], 8),))
    assert frequency_errors(seen, {key: value / total for key, value in exact.items()}).max() < 5


def compiled_bits(n: int, level: float, state: FeatureState, given: Given, monkeypatch) -> np.ndarray:
    """Bits [K] of row n after the compiled scan visited it: uniform numbers do not suffice for another row."""
    arrays, number = collapsed._arrays(state, given, 90), len(state.loadings)
    visit, place = entry_of(compiled.scan, arrays.loss), np.array([n, number, 0, 0])
    visit(arrays, compiled.Scratch.of(arrays), np.full(number + 4, level), np.zeros(3000), place)
    assert place[0] == n + 1
    assert arrays.counts[0] == arrays.bits[0].sum()
    return arrays.bits[:, n]


def tensor_bits(n: int, level: float, state: FeatureState, given: Given, monkeypatch) -> Tensor:
    """The same by tensor code."""
    monkeypatch.setattr(tensor_rows, "uniforms", lambda shape, stream: torch.full(shape, level, dtype=torch.float64))
    others = state.features.sum(0) - state.features[n]
    return tensor_rows._shared_bits(n, others, state, given, torch.Generator()).features[n]


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        *itertools.product([compiled_bits], ["hinge", "holes", "classes"]),
        *itertools.product([tensor_bits], ["hinge", "holes", "regression"]),
    ],
)
def test_bits_of_a_row_have_the_ratio_of_the_joint(draw, name, monkeypatch) -> None:
    """With pi integrated out: the bit turns as its uniform number passes the probability. Three rows, so that a feature
    which one other row has is less likely than one that two have."""
    model, rows, targets = CASES[name]
    model, data = model.replace(prior=IndianBuffetProcess(1.0)).prepare(rows, targets)
    state = some_state(model, data, truncated=False)
    given = parameters.observe_entries(state, data, model, torch.Generator())
    for n, others in itertools.product(range(data.num_data), (1, 2)):
        state.features[:] = 1
        state.features[(n + 1) % 3, 0] = others - 1
        one, zero = (features.log_joint(with_bit(state, n, 0, value), data, model) for value in (1, 0))
        p = float((one - zero).sigmoid())
        for factor, expected in ((1 - 1e-9, 1), (1 + 1e-9, 0)):
            assert draw(n, p * factor, state, given, monkeypatch)[0] == expected


@pytest.mark.parametrize(
    "loss",
    [Hinge(0.7, 1.2), SquaredHinge(0.4), Logistic(), EpsilonInsensitive(0.6, 0.3), StudentT(3.0, 0.8), CrammerSinger()],
)
def test_compiled_margins_are_those_of_the_losses(loss) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(40, 3, generator=generator, dtype=torch.float64)
    if loss.target == "real":
        targets = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    else:
        targets = 2 * torch.nn.functional.one_hot(torch.arange(40) % 3, 3).double() - 1
    targets[::5] = NAN
    masked = Masked(loss if loss.meets or loss.target == "real" else OneVsRest(loss))
    out = np.empty(40)
    form = compiled_loss(masked)
    entry_of(margins, form)(form, scores.numpy(), targets.numpy(), out)
    torch.testing.assert_close(torch.from_numpy(out), masked.log_factor(scores, targets).sum(1))

    class Mine(type(loss)):
        pass

    assert compiled_loss(Mine()) is None
    assert compiled_loss(Masked(Mine())) is None


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("by_tensors", [True, False])
def test_loadings_of_a_row_alone_have_their_posterior(by_tensors, number) -> None:
    """N(0, 1 / p) each, times exp(b u - a u^2 / 2) of their sum u: of four columns at once."""
    a, b = torch.tensor([[0.7, 2.0, 0.0, 5.0]]).double(), torch.tensor([[0.5, -1.0, 0.0, 3.0]]).double()
    prior, generator, num_draws = torch.tensor([1.0, 0.4, 2.0, 3.0]).double(), torch.Generator().manual_seed(0), 4000
    if by_tensors:
        draws = torch.stack([tensor_rows._own_loadings(number, b, a, prior, generator) for _ in range(num_draws)])
    else:
        loadings, alone = np.zeros((3, 4)), np.arange(3)
        normals = torch.randn((number + 1) * 4 * num_draws, generator=generator, dtype=torch.float64).numpy()
        place, draws = np.zeros(4, np.int64), torch.empty(num_draws, number, 4, dtype=torch.float64)
        for own in draws:
            compiled._draw_alone(loadings, prior.numpy(), a.numpy(), 0, b[0].numpy(), normals, place, alone, number)
            own[:] = torch.from_numpy(loadings[:number])
    for d in range(4):
        covariance = torch.linalg.inv(prior[d] * torch.eye(number) + a[0, d] * torch.ones(number, number))
        mean, own = covariance.sum(1) * b[0, d], draws[:, :, d]
        assert ((own.mean(0) - mean).abs() < 5 * (covariance.diagonal() / num_draws).sqrt()).all()
        products = (own - mean).unsqueeze(2) * (own - mean).unsqueeze(1)
        assert ((products.mean(0) - covariance).abs() < 5 * products.std(0) / num_draws**0.5).all()


# -- exact posteriors --------------------------------------------------------------------------------------------------

EXACT = {  # what the exact starts do not have
    "BetaBernoulli": ("blocked", model_of(prior=BetaBernoulli(1.5, (2.0, 1.0))), X, SIGNS),
    "regression": ("blocked", model_of(EpsilonInsensitive(0.8, 0.2), feature_map=no_inputs), X, NUMBERS),
    "no augmentation": ("blocked", model_of(SquaredHinge(0.3), feature_map=no_inputs), X, SIGNS),
    "bits": ("blocked", model_of(likelihood=LinearBernoulli(loading_variance=2.0, learn=False)), BITS, SOME),
    "slice": ("slice", model_of(prior=IndianBuffetProcess(0.5)), HOLES, SOME),
    "collapsed": ("collapsed", model_of(prior=IndianBuffetProcess(0.5)), HOLES, SOME),
}


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_features_have_their_exact_probabilities(name) -> None:
    scan, model, rows, targets = EXACT[name]
    check_kernel(Gibbs(scan=scan, num_samples=by_day(800, 2), num_warmup=20, seed=1), model, rows, targets)


@pytest.mark.parametrize("name", CASES)
def test_programs_are_their_parts(name) -> None:
    model, rows, targets = CASES[name]
    check_model(model, rows, targets)


def test_the_classes_of_a_long_truncation_tend_to_those_of_the_infinite_model() -> None:
    model = model_of(prior=IndianBuffetProcess(0.4), feature_map=no_inputs)
    exact = feature_posterior(model, X[:2], SIGNS[:2])
    found: dict[object, float] = {}
    for bits, weight in feature_posterior(model, X[:2], SIGNS[:2], truncation=6).items():
        columns = sorted(column for column in zip(*bits, strict=True) if any(column))
        label = tuple(zip(*columns, strict=True)) or ((), ())
        found[label] = found.get(label, 0.0) + weight
    gap = sum(abs(exact.get(label, 0.0) - found.get(label, 0.0)) for label in {*exact, *found}) / 2
    assert gap < 0.01


def test_a_sampler_of_another_strength_is_noticed() -> None:
    backend = misled(Gibbs(scan="collapsed", num_samples=400, num_warmup=20), loss=Hinge(6.0))
    with pytest.raises(AssertionError, match="probabilities are off"):
        check_kernel(backend, model_of(prior=IndianBuffetProcess(0.6)), X[:2], SIGNS[:2])


# -- fits --------------------------------------------------------------------------------------------------------------


def synthetic(num_data: int = 120, seed: int = 0, dtype=torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of 3 features in 8 columns, and labels by which of two features a row has more of."""
    generator = torch.Generator().manual_seed(seed)
    bits = (torch.rand(num_data, 3, generator=generator) < 0.5).double()
    loadings = 2 * torch.randn(3, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    rows = bits @ loadings + 0.4 * torch.randn(num_data, 8, generator=generator, dtype=torch.float64)
    return rows.to(dtype), (bits[:, 0] > 0).long(), bits


@pytest.mark.parametrize(
    ("scan", "dtype"), [("auto", torch.float32), ("slice", torch.float64), ("blocked", torch.float32)]
)
def test_features_are_found_and_new_rows_predicted(scan, dtype, device) -> None:
    rows, labels, _ = synthetic(dtype=dtype)
    backend = Gibbs(scan=scan, num_samples=5, num_warmup=15, seed=0)
    model = InfiniteLatentSVM(LinearGaussian(offset=0.0), truncation=6, feature_map=None)
    posterior = backend.fit(model, rows.to(device), labels.to(device))
    new, truth, _ = synthetic(seed=1, dtype=dtype)
    new, truth = new.to(device), truth.to(device)
    assert (posterior.predict(new) == truth).double().mean() > 0.9
    probabilities = posterior.predict_proba(new)
    assert probabilities.shape == (120, 2)
    torch.testing.assert_close(probabilities.sum(1), torch.ones_like(probabilities[:, 0]))
    found = posterior.transform(new)
    assert found.dtype == posterior.loadings.dtype == dtype
    error = new - posterior.model.likelihood.offset - found @ posterior.loadings
    assert error.square().mean() < 0.5 * new.var()
    assert posterior.samples["features"].dtype == torch.int8


def test_missing_entries_and_targets_are_left_out() -> None:
    rows, labels, _ = synthetic(150)
    generator = torch.Generator().manual_seed(0)
    holes = rows.masked_fill(torch.rand(rows.shape, generator=generator) < 0.2, NAN)
    some = labels.double().masked_fill(torch.arange(150) % 3 == 0, NAN)
    posterior = Gibbs(num_samples=5, num_warmup=15, seed=0).fit(
        InfiniteLatentSVM(LinearGaussian(offset=0.0), truncation=6, feature_map=None), holes, some
    )
    assert (posterior.predict(holes) == labels).double().mean() > 0.85


def test_options_that_features_do_not_have_are_refused() -> None:
    fit = partial(Gibbs.fit, model=InfiniteLatentSVM(feature_map=None), X=X, y=SIGNS)
    with pytest.raises(ValueError, match="scan is 'beam'; for InfiniteLatentSVM it must be one of 'auto', 'collapsed'"):
        fit(Gibbs(scan="beam"))
    with pytest.raises(ValueError, match="rows of InfiniteLatentSVM have features, not labels"):
        fit(Gibbs(init=torch.tensor([0, 1, 0])))
    for scan in ("slice", "collapsed"):
        with pytest.raises(ValueError, match=r"of them\. Use scan='blocked', or Indian"):
            fit(Gibbs(scan=scan), model=InfiniteLatentSVM(prior=BetaBernoulli(), feature_map=None))


def test_auto_takes_what_the_model_and_the_device_have(monkeypatch) -> None:
    data = InfiniteLatentSVM(feature_map=None).prepare(X, SIGNS)[1]
    assert features._scan("auto", data, InfiniteLatentSVM(feature_map=None)) == "collapsed"
    assert features._scan("auto", data, InfiniteLatentSVM(prior=BetaBernoulli(), feature_map=None)) == "blocked"
    monkeypatch.setattr(collapsed, "compiled_loss", lambda loss: None)
    assert features._scan("auto", data, InfiniteLatentSVM(feature_map=None)) == "slice"


def test_many_new_features_find_room(monkeypatch) -> None:
    """Arrays and random numbers are renewed in the middle of a scan, and rows go on where it stopped."""
    widths, widen = [], collapsed._widened
    monkeypatch.setattr(collapsed, "_widened", lambda rows, size: widths.append(size) or widen(rows, size))
    rows, labels, _ = synthetic(60)
    model = InfiniteLatentSVM(
        LinearGaussian(noise_variance=0.01, learn=False),
        prior=IndianBuffetProcess(200.0),
        truncation=2,
        feature_map=None,
    )
    model, data = model.prepare(rows, labels)
    generator = torch.Generator().manual_seed(0)
    state = features.init(model, data, generator, start="one", scan="collapsed")
    state = features.sweep(state, data, model, generator, scan="collapsed")
    assert math.isfinite(features.log_joint(state, data, model))
    assert state.features.shape[1] == len(state.loadings) == len(state.weights) - 1 > 60
    assert widths
    assert (state.features.sum(0) > 0).all()


@pytest.mark.slow
def test_digits_by_their_features_nearly_as_well_as_by_their_pixels() -> None:
    """Threes, fives and eights by at most some 50 bits each, beside LinearSVC on the pixels."""
    digits = load("digits")
    pixels, labels = np.asarray(digits.X, float) / 16, np.asarray(digits.y)
    kept = np.isin(labels, [3, 5, 8])
    pixels, labels = pixels[kept], labels[kept]
    model = InfiniteLatentSVM(loss=Hinge(2.0), truncation=20, weight_scale=2.0, feature_map=None)
    posterior = Gibbs(num_samples=10, num_warmup=40, seed=0).fit(model, pixels[:250], labels[:250])
    rival = LinearSVC(random_state=0).fit(pixels[:250], labels[:250])
    ours, theirs = ((found.predict(pixels[250:]) == labels[250:]).mean() for found in (posterior, rival))
    assert ours > theirs - 0.1
    assert ours > 0.85


def test_random_numbers_of_a_scan_take_no_more_room_for_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs out is filled up again and again, and nothing doubles for that of another kind."""
    sizes, scan = [], entry_of(compiled.scan, compiled_loss(Hinge()))

    def noted(rows, scratch, uniforms, normals, place):
        sizes.append((len(uniforms), len(normals), len(rows.counts)))
        assert len(sizes) < 1000
        assert len(normals) < 2**20
        scan(rows, scratch, uniforms, normals, place)

    monkeypatch.setattr(collapsed, "entry_of", lambda function, form: noted)
    monkeypatch.setattr(collapsed, "_POOL", 128)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(600, 2, generator=generator, dtype=torch.float64)
    model, data = model_of().prepare(rows, (rows[:, 0] > 0).long())
    state = some_state(model, data, truncated=False)
    given = features.observe_entries(state, data, model, generator)
    end = collapsed.scan_rows(state, given, generator)
    assert len(sizes) > 20
    assert max(uniforms for uniforms, _, _ in sizes) <= 2 * (128 + sizes[-1][2])
    assert max(normals for _, normals, _ in sizes) <= 4 * (collapsed._FEW + 4 * sizes[-1][2])
    assert end.features.shape == (600, len(end.loadings))
