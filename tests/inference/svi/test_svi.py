"""The variational backend, of mixtures and chains: blocks that climb, the programs and Pyro's ELBO, minibatches."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from setups import LIKELIHOODS, climbed, mixture_rows, name_of
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.metrics import normalized_mutual_info_score
from sklearn.model_selection import StratifiedKFold
from torch.distributions.transforms import ReshapeTransform
from variational import blobs, elbo, mixture_problem, retold, sequence_problem

from regbayes.inference import SVI, TruncationWarning
from regbayes.inference.classifiers.ridge import Ridge
from regbayes.inference.svi import factors
from regbayes.inference.svi.factors import SETTLED
from regbayes.inference.svi.partition import factors as sticks
from regbayes.inference.svi.partition import kernel as partition
from regbayes.inference.svi.sequence import kernel as sequence
from regbayes.inference.svi.steps import Minibatch
from regbayes.inference.truncation import warn_if_nearly_full
from regbayes.models import (
    DDPM,
    DIH,
    DPM,
    IHMM,
    DirichletProcess,
    HierarchicalDirichletProcess,
    InfiniteSVM,
    LatentFeatureModel,
    PitmanYor,
    Standardized,
)
from regbayes.models.likelihoods import DiagonalGaussian, FullGaussian, PoissonGamma, SphericalGaussian
from regbayes.models.losses import EpsilonInsensitive, Hinge, Logistic, OneVsRest
from regbayes.testing.enumeration import log_classifier_integrals, partition_log_weights

LOSSES = [None, Hinge(2.0, 1.5), Logistic(), EpsilonInsensitive(1.5, 0.2), OneVsRest(Hinge()), OneVsRest(Logistic())]
LEARNED = DirichletProcess(1.0, (2.0, 1.0))
NUM_STEPS = 8


def hard(state, labels: torch.Tensor, model, data) -> sticks.VariationalPartition:
    """Responsibilities of 0 and 1, and the best sticks and components for them."""
    one_hot = torch.nn.functional.one_hot(labels, model.truncation).to(data.X)
    state = sticks.update_sticks(replace(state, responsibilities=one_hot), model)
    return factors.update_components(state, data, model)


# -- the bound climbs --------------------------------------------------------------------------------------------------


PRIORS = [
    DirichletProcess(),
    LEARNED,
    PitmanYor(0.5, 1.0),
    PitmanYor(0.6, -0.3),
    PitmanYor(0.3, 1.0, discount_prior=(1.0, 2.0)),
    PitmanYor(0.3, 1.0, discount_prior=(1.0, 2.0), concentration_prior=(1.0, 1.0)),
]
MIXTURES = [
    *itertools.product(LIKELIHOODS, LOSSES, PRIORS[:2]),
    *itertools.product([DiagonalGaussian()], [None, Hinge()], PRIORS[2:]),
]
REPELLING = [DDPM(loss=loss, prior=LEARNED, weight_scale=2.0) for loss in (Hinge(0.8), Logistic())]
ROWS = [
    HierarchicalDirichletProcess(1.5, None, 2.0, None),
    HierarchicalDirichletProcess(1.0, (2.0, 1.0), 1.0, (3.0, 2.0)),
    HierarchicalDirichletProcess(1.5, None, 2.0, None, stickiness=0.4),
    HierarchicalDirichletProcess(1.0, (2.0, 1.0), 1.0, (3.0, 2.0), stickiness=0.4),
]
STATES = [model.replace(prior=prior) for model in (IHMM(), DIH(loss=Hinge()), DIH(loss=Logistic())) for prior in ROWS]
BLOCKS = {
    "order and prior": lambda state, data, model: state.reordered(model).with_prior(model),
    "components": factors.update_components,
    "classifiers": lambda state, data, model: factors.update_classifiers(state, model),
    "z": factors.allocate,
}


def case_of(model: Any, generator: torch.Generator) -> tuple[Any, Any, Any]:
    """(kernel, resolved model, data)."""
    if isinstance(model, IHMM | DIH):
        return sequence, *sequence_problem(model, generator)
    if isinstance(model, DDPM):
        X = mixture_rows(DiagonalGaussian, 40, 2)[0].to(generator.device)
        return partition, *model.replace(truncation=5).prepare(X)
    likelihood, loss, prior = model
    return partition, *mixture_problem(likelihood, loss, generator, prior=prior)[:2]


def id_of(case: Any) -> str:
    return "-".join(map(name_of, case if isinstance(case, tuple) else (case, case.prior)))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", [*MIXTURES, *REPELLING, *STATES], ids=id_of)
def test_no_block_lowers_the_bound(case, device, generator) -> None:
    kernel, model, data = case_of(case, generator)
    state = factors.allocate(kernel.init(model, data, generator), data, model)
    bound = elbo(state, data, model)
    torch.testing.assert_close(state.bound, bound, rtol=1e-11, atol=1e-9)
    for step in range(NUM_STEPS):
        for name, block in BLOCKS.items():
            state = block(state, data, model)
            new = elbo(state, data, model)
            assert new >= bound - 1e-9 * bound.abs(), f"{name} lowered the bound by {bound - new} in step {step}"
            bound = new
        torch.testing.assert_close(state.bound, bound, rtol=1e-11, atol=1e-9)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("model", [*REPELLING, *STATES[1::2]], ids=id_of)
def test_no_neighbour_of_an_updated_factor_is_better(model, cpu_generator) -> None:
    """Random steps away from what each block has just set lower the bound."""
    kernel, model, data = case_of(model, cpu_generator)
    state = climbed(kernel, model, data, cpu_generator)
    hierarchy = ("rows", "sticks", "concentration", "top_concentration")
    fields = {
        "order and prior": hierarchy if hasattr(state, "rows") else ("q",),
        "components": ("hyperparameters",),
        "classifiers": ("mean", "precision_tril"),
    }
    for name, updated in fields.items():
        for _ in range(300 if name == "classifiers" else 1):  # these and their omega take turns
            state = BLOCKS[name](retold(state, data, model), data, model)
        best = elbo(state, data, model)
        for field in updated:
            value = getattr(state, field)
            for _ in range(5 * bool(value.numel())):
                noise = torch.randn(value.shape, generator=cpu_generator, dtype=torch.float64)
                # L-BFGS stops near the optimum: a step of 0.03 shows in the bound, what is left of the gradient less so
                moved = elbo(replace(state, **{field: value * (0.03 * noise).exp()}), data, model)
                assert moved <= best + 1e-7 * best.abs(), f"{field} was not at its best: {moved - best}"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
def test_sweeps_with_merges_climb_to_a_stationary_point(loss, generator) -> None:
    model, data, _, _ = mixture_problem(DiagonalGaussian(), loss, generator, prior=DirichletProcess(1.0, (1.0, 1.0)))
    state, bounds = partition.init(model, data, generator), []
    for _ in range(300):
        state = partition.sweep(state, data, model)
        bounds.append(state.bound)
    steps = torch.stack(bounds).diff()
    assert (steps >= -1e-9 * bounds[-1].abs()).all()
    assert steps[-1].abs() < 1e-8 * bounds[-1].abs()
    names = ["sticks", "q", "hyperparameters", "mean", "precision_tril"]
    leaves = {name: getattr(state, name).clone().requires_grad_() for name in names}
    elbo(replace(state, **leaves), data, model).backward()
    for name in names:
        gradient = leaves[name].grad
        gradient = gradient.tril() if name == "precision_tril" else gradient
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-3, msg=f"{name}: {gradient}")


# -- the bound is that of the program ----------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=name_of)
def test_given_a_partition_the_bound_is_the_log_joint(likelihood, generator) -> None:
    """With z certain, q(v) and q(theta) are the exact conditionals, so that the bound is log p(z, X)."""
    model, data, X, _ = mixture_problem(likelihood, None, generator, N=5, truncation=3)
    exact = partition_log_weights(model, X, truncation=3)
    state = partition.init(model, data, generator)
    for labels in [(0, 0, 0, 0, 0), (0, 1, 0, 2, 1), (2, 2, 1, 1, 1)]:
        given = hard(state, torch.tensor(labels), model, data)
        assert float(elbo(given, data, model)) == pytest.approx(exact[labels], abs=1e-8)


@pytest.mark.parametrize(("loss", "gap"), [(Logistic(), 0.1), (Hinge(), 0.8), (EpsilonInsensitive(), 0.8)])
def test_given_a_partition_the_classifiers_bound_their_integrals(loss, gap, generator) -> None:
    model, data, _, _ = mixture_problem(
        SphericalGaussian(), loss, generator, N=6, D=1, truncation=2, feature_map=Standardized(intercept=0.0)
    )
    labels = torch.tensor([0, 1, 0, 0, 1, 1])
    state = hard(partition.init(model, data, generator), labels, model, data)
    plain, plain_data = (
        DPM(model.likelihood, truncation=2),
        replace(data, features=data.X[:, :0], targets=data.X[:, :0]),
    )
    without = hard(partition.init(plain, plain_data, generator), labels, plain, plain_data)
    for _ in range(200):
        state = factors.update_classifiers(retold(state, data, model), model)
    found = elbo(state, data, model) - elbo(without, plain_data, plain)
    exact = log_classifier_integrals(data, model, state.responsibilities.T).sum()
    assert 0 < exact - found < gap


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("loss", [None, Hinge(), Logistic(), EpsilonInsensitive()], ids=name_of)
def test_the_bound_is_pyros(loss, generator) -> None:
    """TraceEnum_ELBO at a guide with the same factors; the margin's own bound is replaced by its expectation."""
    model, data, X, y = mixture_problem(DiagonalGaussian(), loss, generator, N=20, truncation=3, prior=LEARNED)
    state = climbed(partition, model, data, generator)
    with torch.random.fork_rng():
        pyro.set_rng_seed(0)
        particles = torch.tensor(
            [-TraceEnum_ELBO(max_plate_nesting=1).loss(model, guide_of(state, model), X, y) for _ in range(300)]
        )
    scores = torch.einsum("np,kpc->nkc", data.features, state.mean)
    scale = state.classifiers.score_variance(data.features).sqrt()
    nodes, masses = (torch.from_numpy(part).to(scores) for part in np.polynomial.hermite_e.hermegauss(200))
    values = model.loss.log_factor(scores + scale * nodes.view(-1, 1, 1, 1), data.targets.unsqueeze(1)).sum(-1)
    expected = (values * masses.view(-1, 1, 1) / masses.sum()).sum(0)
    bounded = factors.see(state.classifiers, data, model).gain
    slack = (state.responsibilities * (expected - bounded)).sum()
    assert slack >= 0
    error = particles.std() / len(particles) ** 0.5
    assert (particles.mean() - elbo(state, data, model) - slack).abs() < 5 * error


def guide_of(state, model):
    """The mean-field posterior as a Pyro guide for one score."""
    T, P, C = state.mean.shape

    def guide(X, y=None) -> None:
        pyro.sample("concentration", dist.Gamma(*state.q))
        with pyro.plate("sticks_plate", T - 1):
            pyro.sample("sticks", dist.Beta(*state.sticks))
        with pyro.plate("components", T):
            model.likelihood.parameters(state.hyperparameters, pyro.sample)
            if C:
                gram = (state.precision_tril @ state.precision_tril.mT)[:, 0]
                vector = dist.MultivariateNormal(state.mean[..., 0], precision_matrix=gram)
                pyro.sample("weights", dist.TransformedDistribution(vector, ReshapeTransform((P,), (P, 1))))
            else:
                pyro.sample("weights", dist.Normal(state.mean, 1.0).to_event(2))
        with pyro.plate("data", len(X)):
            pyro.sample("assignments", dist.Categorical(state.responsibilities), infer={"enumerate": "parallel"})

    return guide


@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
def test_responsibilities_at_sharp_factors_are_the_programs_conditional(loss, cpu_generator) -> None:
    model, data, X, y = mixture_problem(DiagonalGaussian(), loss, cpu_generator, N=6, truncation=3)
    state = climbed(partition, model, data, cpu_generator, 1)
    sharp = 1e10
    sticks = torch.rand(2, generator=cpu_generator, dtype=X.dtype)
    statistics = state.hyperparameters - model.likelihood.prior()
    state = replace(
        state,
        sticks=sharp * torch.stack([sticks, 1 - sticks]),
        hyperparameters=model.likelihood.prior() + sharp * statistics,
        mean=torch.randn(state.mean.shape, generator=cpu_generator, dtype=X.dtype),
        precision_tril=sharp * state.precision_tril,
    )
    seen = factors.see(state.classifiers, data, model)
    logits = factors.best_places(state, data, model, seen).log()
    latents = {"sticks": sticks, "weights": state.mean, **model.likelihood.draw(state.hyperparameters, cpu_generator)}
    for n in range(6):
        rows = []
        for k in range(3):
            labels = torch.zeros(6, dtype=torch.int64)
            labels[n] = k
            rows.append(log_joint(model, X, y, latents | {"assignments": labels}))
        torch.testing.assert_close(logits[n].log_softmax(0), torch.stack(rows).log_softmax(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=name_of)
def test_global_factors_at_a_partition_are_the_programs_conditionals(likelihood, cpu_generator) -> None:
    model, data, X, _ = mixture_problem(likelihood, None, cpu_generator, N=8, truncation=3, prior=LEARNED)
    labels = torch.randint(3, (8,), generator=cpu_generator)
    alpha = torch.tensor(1.7, dtype=X.dtype)
    state = replace(partition.init(model, data, cpu_generator), q=torch.stack([alpha, torch.ones_like(alpha)]))
    state = hard(state, labels, model, data)
    q_sticks = dist.Beta(*state.sticks)
    first, second = (
        {
            "sticks": torch.rand(2, generator=cpu_generator, dtype=X.dtype),
            **model.likelihood.draw(state.hyperparameters, cpu_generator),
        }
        for _ in range(2)
    )

    def log_q(latents) -> torch.Tensor:
        names = {name: value for name, value in latents.items() if name != "sticks"}
        program = poutine.condition(lambda: model.likelihood.parameters(state.hyperparameters, pyro.sample), data=names)
        return q_sticks.log_prob(latents["sticks"]).sum() + poutine.trace(program).get_trace().log_prob_sum()

    fixed = {"assignments": labels, "concentration": alpha, "weights": X.new_zeros(3, 0, 0)}
    change = log_joint(model, X, None, first | fixed) - log_joint(model, X, None, second | fixed)
    torch.testing.assert_close(log_q(first) - log_q(second), change)

    sharp = replace(state, sticks=1e12 * torch.stack([first["sticks"], 1 - first["sticks"]]))
    q_alpha = dist.Gamma(*sticks.update_prior(sharp, model).q)
    other = torch.tensor(0.6, dtype=X.dtype)
    change = log_joint(model, X, None, first | fixed) - log_joint(
        model, X, None, first | fixed | {"concentration": other}
    )
    torch.testing.assert_close(q_alpha.log_prob(alpha) - q_alpha.log_prob(other), change)


def log_joint(model, X, y, latents) -> torch.Tensor:
    return poutine.trace(poutine.condition(model, data=latents)).get_trace(X, y).log_prob_sum()


# -- natural gradients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", [SphericalGaussian(), DiagonalGaussian(), PoissonGamma()], ids=name_of)
def test_the_step_of_chi_is_the_natural_gradient(likelihood, generator) -> None:
    """The gradient of the bound in chi_k is Hess A(chi_k) (target - chi_k)."""
    model, data, _, _ = mixture_problem(likelihood, None, generator)
    state = climbed(partition, model, data, generator)
    state = replace(state, hyperparameters=state.hyperparameters + 0.3 * model.likelihood.prior())
    chi = state.hyperparameters.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(elbo(replace(state, hyperparameters=chi), data, model), chi)
    target = factors.update_components(state, data, model).hyperparameters
    for k in range(model.truncation):
        fisher = torch.autograd.functional.hessian(model.likelihood.log_partition, state.hyperparameters[k])
        torch.testing.assert_close(gradient[k], fisher @ (target - state.hyperparameters)[k], rtol=1e-6, atol=1e-7)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
def test_extrapolated_factors_are_those_of_repeated_rows(loss, generator) -> None:
    model, data, _, _ = mixture_problem(DiagonalGaussian(), loss, generator)
    state = climbed(partition, model, data, generator)
    twice = replace(state, gram=2 * state.gram, linear=2 * state.linear)
    twice = replace(twice, responsibilities=torch.cat([state.responsibilities] * 2))
    repeated = factors.update_factors(twice, data.rows(torch.arange(40).repeat(2)), model)
    found = partition.extrapolate(state, data, model, 80, 80)
    for name in ("hyperparameters", "sticks", "mean", "precision_tril"):
        torch.testing.assert_close(getattr(found, name), getattr(repeated, name))


@pytest.mark.parametrize("model_type", [InfiniteSVM, DDPM])
@pytest.mark.parametrize("weighted", [False, True])
def test_chunks_of_rows_change_nothing(model_type, weighted, generator, monkeypatch) -> None:
    model, data, _, _ = mixture_problem(DiagonalGaussian(), Hinge(), generator)
    if model_type is DDPM:
        model = DDPM(DiagonalGaussian(), truncation=model.truncation).resolve(data.X)
        data = model.data(data.X)
    weights = torch.rand(data.num_data, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    data = replace(data, weights=weights.to(data.X) if weighted else None)
    state = climbed(partition, model, data, generator)
    whole = partition.ascend(state, data, model)
    seen, see = list[int](), factors.see

    def watched(q, points, *others):
        seen.append(len(points.X))
        return see(q, points, *others)

    monkeypatch.setattr(factors, "see", watched)
    monkeypatch.setattr(factors, "slices", lambda data, truncation: [slice(0, 7), slice(7, 30), slice(30, None)])
    parts = partition.ascend(state, data, model)
    assert seen == [7, 23, data.num_data - 30]
    for field in ("responsibilities", "gram", "linear", "mean", "bound"):
        torch.testing.assert_close(getattr(parts, field), getattr(whole, field), rtol=1e-9, atol=1e-9)
    turned = parts.permuted(torch.arange(model.truncation, device=data.X.device).flip(0))
    for kept in (parts, turned):
        again = retold(kept, data, model)
        torch.testing.assert_close(again.gram, kept.gram)
        torch.testing.assert_close(again.linear, kept.linear)


STEPPING = [*itertools.product([DiagonalGaussian()], LOSSES, [LEARNED]), *STATES[1::4]]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", STEPPING, ids=id_of)
def test_a_full_stochastic_step_is_coordinate_ascent(case, generator) -> None:
    kernel, model, data = case_of(case, generator)
    state = climbed(kernel, model, data, generator)
    if hasattr(state, "q"):  # off its optimum given the sticks
        state = replace(state, q=model.prior.initial(data.features))
        known = sticks.update_prior(state, model)  # q(h) given the sticks before they move
        assert not torch.equal(known.q, state.q)
    else:
        state = known = factors.update_factors(state, data, model)
    stepped = kernel.stochastic_sweep(state, Minibatch(data, 1.0), model, 1.0)
    full = factors.allocate(known, data, model)
    full = factors.update_components(full, data, model)
    full = factors.update_classifiers(full, model)
    full = sticks.update_sticks(full, model) if hasattr(state, "q") else full.with_prior(model)
    small = kernel.stochastic_sweep(state, Minibatch(data, 1.0), model, 0.1)
    for name in ("hyperparameters", "sticks", "mean", "precision_tril", "q", "rows", "concentration"):
        if hasattr(state, name):
            torch.testing.assert_close(getattr(stepped, name), getattr(full, name), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(stepped.bound, factors.allocate(state, data, model).bound, rtol=1e-12, atol=1e-9)
    expected = torch.lerp(state.hyperparameters, full.hyperparameters, 0.1)
    torch.testing.assert_close(small.hyperparameters, expected)
    assert stepped.responsibilities.shape == (0, 5)


def test_steps_shrink_from_the_size_that_the_first_rows_leave(generator) -> None:
    """The first rows count as the batches that they would make: here 40 rows in batches of 8."""
    model, data, _, _ = mixture_problem(DiagonalGaussian(), Hinge(), generator)
    kernel = partition.STEPS.kernel(SVI(num_steps=9, batch_size=8, delay=2.0, forgetting=0.6), model)
    state, before = kernel.init(model, data, generator), generator.get_state()
    for step in (0, 3):
        found = kernel.sweep(state, data, model, generator.set_state(before), step)
        batch = partition.minibatch(data, 8, generator.set_state(before))
        expected = partition.stochastic_sweep(state, batch, model, (step + 1 + 2.0 + 40 / 8) ** -0.6)
        torch.testing.assert_close(found.hyperparameters, expected.hyperparameters, rtol=1e-12, atol=0)
        assert found.num_data == 0
    assert kernel.sweep(found, data, model, generator, 9).num_data == 40  # after the last stochastic step


def test_a_stochastic_fit_starts_once_components_no_longer_merge(cpu_generator) -> None:
    X, y = blobs(200, cpu_generator)
    model = InfiniteSVM(truncation=6).resolve(X, y)
    data, before = model.data(X, y), cpu_generator.get_state()
    start = partition.STEPS.kernel(SVI(batch_size=20, tolerance=1e-5), model).init(model, data, cpu_generator)
    first = partition.first_rows(data, 200, cpu_generator.set_state(before))
    state, num_steps = partition.init(model, first, cpu_generator), 0
    while state.may_merge:
        state, num_steps = partition.sweep(state, first, model), num_steps + 1
    assert 2 < num_steps < 50
    rise = partition.sweep(state, first, model).bound - state.bound
    assert rise > 1e-5 * len(X)  # it has not settled otherwise
    expected = partition.extrapolate(state, first, model, 200, 200.0)
    torch.testing.assert_close(start.hyperparameters, expected.hyperparameters, rtol=0, atol=0)


# -- real data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "likelihood"), [(load_iris, FullGaussian()), (load_wine, FullGaussian()), (load_wine, DiagonalGaussian())]
)
def test_clusters_agree_with_known_classes(load, likelihood) -> None:
    """Better than k-means with the true number of clusters on wine; iris in two, the best that two can do."""
    X, y = load(return_X_y=True)
    posterior = SVI(num_restarts=3).fit(DPM(likelihood), X)
    rival = KMeans(3, n_init=5, random_state=0).fit_predict(X)
    two = normalized_mutual_info_score(y, y > 0)
    least = min(two - 0.001, normalized_mutual_info_score(y, rival) + 0.1)
    assert normalized_mutual_info_score(y, posterior.partition()) >= least


@pytest.mark.slow
@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=name_of)
def test_breast_cancer_is_classified(loss) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    correct = 0
    for train, test in StratifiedKFold(3, shuffle=True, random_state=0).split(X, y):
        posterior = SVI(num_steps=60).fit(InfiniteSVM(FullGaussian(), loss, truncation=10), X[train], y[train])
        correct += (posterior.predict(X[test]) == y[test]).sum()
    assert correct / len(y) >= 0.95


@pytest.mark.filterwarnings("ignore:All 2 components")
def test_probabilities_average_over_the_classifiers(cpu_generator) -> None:
    X, y = blobs(60, cpu_generator)
    posterior = SVI().fit(InfiniteSVM(SphericalGaussian(), Logistic(), truncation=2, weight_scale=3.0), X, y)
    posterior.samples["log_mixture"][0, 1] = -math.inf  # one component
    found = posterior.predict_proba(X)[:, 1]
    state = posterior.samples
    ridge = Ridge(state["weights"][0], state["precision_tril"][0])
    features = posterior.model.features(X)
    scores, variance = features @ state["weights"][0, 0, :, 0], ridge.score_variance(features)[:, 0, 0]
    nodes, masses = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(60))
    exact = torch.sigmoid(scores + variance.sqrt() * nodes.unsqueeze(1)).T @ (masses / masses.sum())
    plain = torch.sigmoid(scores)
    assert (found - exact).abs().max() < 0.02 < (plain - exact).abs().max()


# -- the backend -------------------------------------------------------------------------------------------------------


def test_single_precision_fits(cpu_generator) -> None:
    X, y = blobs(200, cpu_generator)
    single = SVI(num_steps=100).fit(InfiniteSVM(truncation=6), X.float(), y)
    double = SVI(num_steps=100).fit(InfiniteSVM(truncation=6), X, y)
    assert single.samples["weights"].dtype == torch.float32
    assert (single.predict(X.float()) == y).float().mean() > 0.9
    assert (double.predict(X) == y).float().mean() > 0.9


def test_the_best_restart_is_kept(cpu_generator) -> None:
    X = torch.from_numpy(load_wine().data)
    posterior = SVI(num_restarts=4).fit(DPM(), X)
    finals = posterior.trace.final
    assert finals.max() - finals.min() > 5
    model = posterior.model
    data = model.data(X)
    kept = {name: posterior.samples[name][0] for name in ("hyperparameters", "responsibilities")}
    state = sticks.update_sticks(replace(partition.init(model, data, cpu_generator), **kept), model)
    assert len(posterior.samples["assignments"]) == 1
    assert float(elbo(state, data, model)) == pytest.approx(float(finals.max()), abs=0.1)


def test_the_sweeps_that_finish_a_stochastic_fit_stop_once_they_rise_little(cpu_generator, monkeypatch) -> None:
    monkeypatch.setattr("regbayes.inference.svi.steps.NUM_FIRST", 30)  # far from the optimum of all
    X, y = blobs(300, cpu_generator)
    model = InfiniteSVM(truncation=12)
    options = {"num_steps": 2, "batch_size": 20, "num_full_steps": 30}
    settled, whole = (
        SVI(tolerance=tolerance, **options).fit(model, X, y).trace.values[0, 2:] for tolerance in (1e-3, None)
    )
    assert 2 < len(settled) < len(whole) == 30
    torch.testing.assert_close(settled, whole[: len(settled)])
    settles = settled.diff() <= SETTLED * 300
    assert settles[-1]
    assert not settles[:-1].any()


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (DPM(truncation=2), "."),
        (IHMM(truncation=2), "."),
        (LatentFeatureModel(truncation=2), " and keep the fit with the higher ELBO."),
    ],
    ids=name_of,
)
def test_a_binding_truncation_warns_with_a_remedy(model, remedy, cpu_generator) -> None:
    with pytest.warns(TruncationWarning, match=re.escape(f"truncation=4{remedy}") + "$"):
        SVI(progress=False).fit(model, blobs(100, cpu_generator)[0])


def test_a_nearly_full_mixture_may_have_missed_clusters() -> None:
    """Twenty clusters far apart: some get two of twenty seeds. With labels only a full mixture is told."""
    stream = torch.Generator().manual_seed(5)
    y = torch.arange(400) % 20
    X = 8 * torch.randn(20, 5, generator=stream, dtype=torch.float64)[y]
    X = X + torch.randn(X.shape, generator=stream, dtype=torch.float64)
    with pytest.warns(TruncationWarning, match=r"^1[789] of 20 components are occupied .* may bind\. .* truncation=40"):
        SVI().fit(DPM(), X)
    labels, model = torch.arange(20).repeat_interleave(2), InfiniteSVM()
    warn_if_nearly_full([{"assignments": labels.clamp(max=18)}], model)
    with pytest.warns(
        TruncationWarning, match=r"^All 20 components are occupied in 1 of 1 draws, so the truncation binds"
    ):
        warn_if_nearly_full([{"assignments": labels}], model)


@pytest.mark.parametrize("loss", [Hinge(2.0, 1.5), Logistic()], ids=name_of)
@pytest.mark.parametrize("model_type", [DDPM, DIH], ids=lambda kind: kind.__name__)
def test_without_room_for_hyperplanes_the_plain_model_is_left(model_type, loss, cpu_generator) -> None:
    """Every hyperplane then rejects half-heartedly: phi(-1 | 0) for all points and components."""
    kernel, model, data = case_of(model_type(loss=loss, weight_scale=1e-7), cpu_generator)
    plain = model.without_hyperplanes()
    bare = replace(data, points=data.points.without_features()) if model_type is DIH else data.without_features()
    states = [climbed(kernel, *given, torch.Generator().manual_seed(0)) for given in ((model, data), (plain, bare))]
    torch.testing.assert_close(states[0].responsibilities, states[1].responsibilities, rtol=0, atol=1e-6)
    zero = torch.zeros(len(data.points.X), model.truncation, dtype=torch.float64)
    torch.testing.assert_close(states[0].bound - model.log_rejection(zero).sum(), states[1].bound, rtol=1e-7, atol=0)


def test_responsibilities_are_of_all_rows_without_full_steps_too(cpu_generator) -> None:
    X, y = blobs(60, cpu_generator)
    posterior = SVI(num_steps=3, batch_size=10, num_full_steps=0).fit(InfiniteSVM(truncation=20), X, y)
    assert posterior.samples["responsibilities"].shape == (1, 60, 20)
