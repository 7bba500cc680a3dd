"""Mean field of tasks that share a projection: its updates against a bound written in loops, and what it promises."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from loops import loop_prior
from torch import Tensor
from torch.distributions import Gamma, MultivariateNormal, kl_divergence

from regbayes.inference import SVI
from regbayes.inference.bits.shared_projection import Margins
from regbayes.inference.svi.projection import kernel as svi
from regbayes.inference.svi.projection import margins
from regbayes.inference.svi.projection.factors import (
    MeanFieldProjection,
    evidence,
    generative,
    scatter,
    update_loadings,
)
from regbayes.inference.svi.rules import AVERAGING, NATURAL, RULES, Rule
from regbayes.models import (
    BetaBernoulli,
    EpsilonInsensitive,
    Hinge,
    LinearGaussian,
    Logistic,
    Loss,
    MultiTaskInfiniteLatentSVM,
    SquaredHinge,
    TaskData,
    host,
)
from regbayes.models.losses import PseudoObservation

GENERATOR = torch.Generator().manual_seed(7)
X = torch.randn((7, 3), generator=GENERATOR, dtype=torch.float64)
SIGNS = torch.tensor([[1.0, -1], [-1, 1], [1, math.nan], [math.nan, 1], [-1, -1], [1, 1], [-1, 1]], dtype=torch.float64)
REAL = torch.where(SIGNS.isnan(), torch.nan, torch.randn((7, 2), generator=GENERATOR, dtype=torch.float64))

MODELS = {
    "hinge": MultiTaskInfiniteLatentSVM(loss=Hinge(0.7), truncation=3),
    "hinge with x": MultiTaskInfiniteLatentSVM(LinearGaussian(), Hinge(0.7), truncation=2),
    "regression": MultiTaskInfiniteLatentSVM(
        LinearGaussian(learn=False), EpsilonInsensitive(0.6), BetaBernoulli(), truncation=2
    ),
    "squared": MultiTaskInfiniteLatentSVM(loss=SquaredHinge(0.5), prior=BetaBernoulli(), truncation=2),
    "logistic": MultiTaskInfiniteLatentSVM(loss=Logistic(), truncation=2),
}
BOXES = ["hinge", "hinge with x", "regression", "squared"]


def fitted(name: str, rule: Rule, sweeps: int = 3) -> tuple[MultiTaskInfiniteLatentSVM, TaskData, Any]:
    model = MODELS[name]
    model, data = model.prepare(X, REAL if model.loss.target == "real" else SIGNS)
    state = svi.init(model, data, torch.Generator().manual_seed(1), rule=rule, num_frozen=3)
    for _ in range(sweeps):
        state = svi.sweep(state, data, model, rule=rule)
    return model, data, state


# -- the bound in loops ------------------------------------------------------------------------------------------------


def loop_bound(model: MultiTaskInfiniteLatentSVM, data: TaskData, state: MeanFieldProjection) -> Tensor:
    """The bound without margins, term by term."""
    log_on, log_off, constant = loop_prior(model.prior, *state.sticks, state.concentration)
    total = torch.tensor(constant, dtype=torch.float64)
    for psi in state.features:
        for k, p in enumerate(psi):
            total = total + p * (log_on[k] - p.log()) + (1 - p) * (log_off[k] - (1 - p).log())
    return total if model.likelihood is None else total + loop_inputs(model, data, state)


def loop_inputs(model: MultiTaskInfiniteLatentSVM, data: TaskData, state: MeanFieldProjection) -> Tensor:
    """Of inputs, loadings and precisions: row by row, the square of Z w by the moments of pairs of bits."""
    psi, S, likelihood = state.features, state.loading_covariance, model.likelihood
    assert likelihood is not None
    (D, K), logs, means, total = psi.shape, {}, {}, torch.zeros((), dtype=psi.dtype)
    for name, law in likelihood.hyperpriors(psi).items():
        shape, rate = state.precisions[name]
        means[name], logs[name] = shape / rate, (shape / rate).log()
        if law is not None:
            logs[name] = torch.digamma(shape) - rate.log()
            total = total - kl_divergence(Gamma(shape, rate), law)
    for x in data.X - likelihood.offset:
        w = x @ state.loading_map
        second = torch.outer(w, w) + S
        prior = K * (logs["loading_precision"] - math.log(2 * math.pi)) - means["loading_precision"] * second.trace()
        entropy = K * (1 + math.log(2 * math.pi)) + torch.logdet(S)
        error = torch.zeros((), dtype=psi.dtype)
        for d in range(D):
            error = error + x[d] ** 2 - 2 * x[d] * (psi[d] * w).sum()
            for j, k in itertools.product(range(K), range(K)):
                error = error + (psi[d, j] * (psi[d, k] if j != k else 1.0)) * second[j, k]
        entries = D * (logs["noise_precision"] - math.log(2 * math.pi)) - means["noise_precision"] * error
        total = total + (prior + entropy + entries) / 2
    return total


def covariances(state: MeanFieldProjection) -> Tensor:
    """Of q(eta) [M, K + P, K + P]."""
    return torch.cholesky_inverse(state.precision_tril[:, 0])


def loop_scores(data: TaskData, state: MeanFieldProjection) -> tuple[list[Tensor], list[Tensor]]:
    """E f and E f^2 of the known pairs; q(eta) = N(weights, Cov) or, of averaged classifiers, at its mean."""
    psi, means, squares = state.features, [], []
    D, K = psi.shape
    cov = covariances(state) if state.precision_tril.numel() else None
    for n, m in zip(data.rows.tolist(), data.tasks.tolist(), strict=True):
        x, mu = data.X[n], state.weights[:, m]
        a = torch.cat([x @ psi, data.inputs[n]])
        means.append(a @ mu)
        B = torch.outer(mu, mu) + (cov[m] if cov is not None else 0.0)
        second = torch.outer(a, a)
        spread = torch.stack([sum(psi[d, k] * (1 - psi[d, k]) * x[d] ** 2 for d in range(D)) for k in range(K)])
        second = second + torch.diag(torch.cat([spread, spread.new_zeros(len(a) - K)]))
        squares.append((B * second).sum())
    return means, squares


def loop_ridge(model: MultiTaskInfiniteLatentSVM, state: MeanFieldProjection) -> Tensor:
    """-|mu|^2 / (2 nu^2), or -KL(q(eta) || N(0, nu^2 I))."""
    if not state.precision_tril.numel():
        return -(state.weights / model.weight_scale).square().sum() / 2
    eye = torch.eye(len(state.weights), dtype=torch.float64)
    prior = MultivariateNormal(eye[0] * 0, eye * model.weight_scale**2)
    cov = covariances(state)
    laws = [MultivariateNormal(mean, one) for mean, one in zip(state.weights.T, cov, strict=True)]
    return -torch.stack([kl_divergence(law, prior) for law in laws]).sum()


def loop_value(model: MultiTaskInfiniteLatentSVM, data: TaskData, state: MeanFieldProjection) -> Tensor:
    """The whole bound."""
    means, squares = (torch.stack(part) for part in loop_scores(data, state))
    if state.precision_tril.numel():
        factors = model.loss.expected_log_factor(means, squares - means.square(), data.known)
    else:
        factors = model.loss.log_factor(means, data.known)
    return loop_bound(model, data, state) + loop_ridge(model, state) + factors.sum()


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_bound_is_that_of_the_loops(name: str, rule: Rule) -> None:
    model, data, state = fitted(name, rule)
    torch.testing.assert_close(state.bound, loop_value(model, data, state), rtol=1e-9, atol=1e-9)


def slope_of(value: Any, leaf: Tensor) -> Tensor:
    """The gradient of a function of a tensor, of its own shape."""
    leaf = leaf.clone().requires_grad_()
    (found,) = torch.autograd.grad(value(leaf), leaf)
    return found


@pytest.mark.parametrize("name", ["hinge with x", "regression"])
def test_loadings_and_precisions_are_where_the_bound_is_stationary(name: str) -> None:
    model, data, state = fitted(name, AVERAGING, 1)
    found = update_loadings(state, model, scatter(data, model.likelihood))

    def largest(old: MeanFieldProjection) -> float:
        def at(name: str) -> Tensor:
            return slope_of(lambda part: loop_inputs(model, data, replace(old, **{name: part})), getattr(old, name))

        return max(float(at(name).abs().max()) for name in ("loading_map", "loading_covariance"))

    assert largest(replace(found, precisions=state.precisions)) < 1e-8
    assert largest(state) > 1e-4
    for name, value in found.precisions.items() if model.likelihood.learn else ():

        def bound(part: Tensor, name: str = name) -> Tensor:
            return loop_inputs(model, data, replace(found, precisions=found.precisions | {name: part}))

        assert slope_of(bound, value).abs().max() < 1e-8


@pytest.mark.parametrize("name", BOXES)
def test_no_other_probability_of_a_bit_is_better(name: str) -> None:
    model, data, state = fitted(name, AVERAGING, 1)
    outer = scatter(data, model.likelihood)
    before = svi.observe(state, data, model, outer, AVERAGING).bound
    for _ in range(60):
        state = margins.averaged_bits(state, data, model, outer)
    best = loop_value(model, data, state)
    assert best >= before - 1e-9
    for (d, k), move in itertools.product(itertools.product(range(3), range(model.truncation)), (-0.3, 1e-3, 0.3)):
        psi = state.features.clone()
        psi[d, k] = (psi[d, k].logit() + move).sigmoid()
        assert loop_value(model, data, replace(state, features=psi)) <= best + 1e-9


@pytest.mark.parametrize("name", BOXES)
def test_compiled_probabilities_are_those_one_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, state = fitted(name, AVERAGING, 1)
    outer = scatter(data, model.likelihood)
    one = margins.averaged_bits(state, data, model, outer)
    monkeypatch.setattr(Margins, "_arrays", lambda self: None)
    two = margins.averaged_bits(state, data, model, outer)
    torch.testing.assert_close(one.features, two.features, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["hinge", "regression"])
def test_frozen_tilts_are_the_gradient_of_the_margins(name: str) -> None:
    """At an optimum of classifiers and bits together, rounds with frozen tilts move nothing (the envelope)."""
    model, data, state = fitted(name, AVERAGING, 0)
    outer = scatter(data, model.likelihood)
    found = margins.freeze(state, data, model, outer)
    odds, linear, gram = generative(state, model, outer)
    psi = state.features.clone()
    for k, d in itertools.product(range(model.truncation), range(3)):
        pull = odds[k] + linear[d, k] - gram[k, k] / 2 - sum(psi[d, j] * gram[j, k] for j in range(len(odds)) if j != k)
        for tilt, n, m in zip(state.tilt, data.rows.tolist(), data.tasks.tolist(), strict=True):
            pull = pull + tilt * state.weights[k, m] * data.X[n, d]
        psi[d, k] = pull.sigmoid()
    torch.testing.assert_close(found.features, psi)


@pytest.mark.parametrize("name", ["hinge", "regression"])
def test_classifiers_are_at_the_optimum_of_their_costs(name: str) -> None:
    model, data, state = fitted(name, AVERAGING)
    for _ in range(5):
        state = svi.update_classifiers(state, data, model, AVERAGING)
    cost = evidence(state, data, model)
    best, generator = cost.value(state.learned.mean), torch.Generator().manual_seed(0)
    for _ in range(30):
        noise = 0.1 * torch.randn(state.learned.mean.shape, generator=generator, dtype=torch.float64)
        assert (cost.value(state.learned.mean + noise) >= best - 2e-3 * best).all()


@pytest.mark.parametrize("name", ["hinge with x", "regression"])
def test_augmented_updates_are_stationary_at_their_pseudo_observations(name: str) -> None:
    model, data, state = fitted(name, NATURAL, 1)
    outer, said = scatter(data, model.likelihood), evidence(state, data, model)
    observed = PseudoObservation(*(part.flatten() for part in said.expected(said.moments(state.learned.q))))

    def value(state: MeanFieldProjection) -> Tensor:
        means, squares = (torch.stack(part) for part in loop_scores(data, state))
        factors = (observed.shift * means - observed.precision * squares / 2).sum()
        return loop_bound(model, data, state) + loop_ridge(model, state) + factors

    state = svi.update_classifiers(state, data, model, NATURAL)
    assert slope_of(lambda mu: value(replace(state, weights=mu)), state.weights).abs().max() < 1e-8
    slope = slope_of(lambda tril: value(replace(state, precision_tril=tril)), state.precision_tril)
    assert slope.tril().abs().max() < 1e-8
    before = value(state)
    for _ in range(40):
        state = margins.bits_given(state, data, model, outer, observed)
    assert value(state) >= before
    slope = slope_of(lambda psi: value(replace(state, features=psi)), state.features)
    inside = (state.features > 1e-3) & (state.features < 1 - 1e-3)
    assert inside.any()
    assert slope[inside].abs().max() < 1e-6


@pytest.mark.parametrize("name", ["hinge with x", "regression"])
def test_compiled_bits_are_those_of_tensor_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, state = fitted(name, NATURAL, 1)
    outer = scatter(data, model.likelihood)
    one = margins.expected_bits(state, data, model, outer)
    monkeypatch.setattr(host, "on_cpu", lambda like: False)
    two = margins.expected_bits(state, data, model, outer)
    assert (one.features - state.features).abs().max() > 0.01
    torch.testing.assert_close(one.features, two.features, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_bound_never_falls(name: str, rule: Rule) -> None:
    model, data, state = fitted(name, rule, 1)
    for _ in range(2 if rule.has_dual and name == "logistic" else 6):
        before = state.bound
        state = svi.sweep(state, data, model, rule=rule)
        assert state.bound >= before - 1e-9 * before.abs()


def test_the_augmented_bound_is_below_the_log_evidence() -> None:
    model = MultiTaskInfiniteLatentSVM(loss=Hinge(0.7), prior=BetaBernoulli(), preprocessing=None, truncation=2)
    model, data = model.prepare(X[:4], SIGNS[:4, :1])
    state = svi.init(model, data, torch.Generator().manual_seed(1), rule=NATURAL)
    for _ in range(20):
        state = svi.sweep(state, data, model, rule=NATURAL)
    generator, logs = torch.Generator().manual_seed(2), []
    weights = torch.randn((3, 4000), generator=generator, dtype=torch.float64)
    for bits in itertools.product([0.0, 1.0], repeat=6):
        Z = torch.tensor(bits, dtype=torch.float64).view(3, 2)
        scores = torch.cat([data.X @ Z, data.inputs], 1)[data.rows] @ weights
        log_mean = model.loss.log_factor(scores, data.known.unsqueeze(1)).sum(0).logsumexp(0) - math.log(4000)
        logs.append(model.prior.log_features(Z.sum(0), 3, model.prior.start(X)) + log_mean)
    evidence = float(torch.stack(logs).logsumexp(0))
    assert evidence - 3 < float(state.bound) < evidence + 0.05  # of the Monte-Carlo mean


# -- fits --------------------------------------------------------------------------------------------------------------


def test_tasks_that_are_opposite_start_in_one_direction_and_not_in_one_of_rounding() -> None:
    """They pull one way, so the second singular vector is rounding alone, which is another one of rows reversed."""
    opposite, order = torch.stack([SIGNS[:, 0], -SIGNS[:, 0]], 1), torch.arange(7).flip(0)
    model = MultiTaskInfiniteLatentSVM(truncation=4)
    starts = []
    for rows in (slice(None), order):
        prepared, data = model.prepare(X[rows], opposite[rows])
        starts.append(svi.start_features(prepared, data, torch.Generator().manual_seed(1)))
    torch.testing.assert_close(*starts)
    assert (starts[0][:, :2] - 0.5).abs().max() > 0.3


def test_a_fit_predicts() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn((90, 4), generator=generator, dtype=torch.float64)
    Y = (rows @ torch.tensor([[1.0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 1]], dtype=torch.float64) > 0).double()
    model = MultiTaskInfiniteLatentSVM(loss=Hinge(2.0), truncation=4)
    posterior = SVI(num_steps=15, rule="averaging").fit(model, rows[:60], Y[:60])
    assert (posterior.predict(rows[60:]) == Y[60:]).double().mean() > 0.85


@dataclass(eq=False)
class Absolute(Loss):
    """No more than the definition."""

    target = "real"

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return -(score - y).abs()
