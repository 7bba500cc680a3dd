"""Gibbs on mixtures: conditionals against the Pyro program, draws against exact enumeration, and fits on real data."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pyro.poutine as poutine
import pytest
import torch
from setups import batch_errors, by_day, first_appearance, frequency_errors, label_law
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from regbayes.inference import FitInterrupted, Gibbs, TruncationWarning
from regbayes.inference.classifiers import elliptical_slice
from regbayes.inference.classifiers import scored as classifiers
from regbayes.inference.gibbs import partition, prepared
from regbayes.inference.gibbs.partition import log_joint
from regbayes.inference.gibbs.prepared import Prepared, prepare_points
from regbayes.inference.gibbs.scans import blocked as blocked_scan
from regbayes.inference.gibbs.scans import collapsed, components
from regbayes.inference.gibbs.scans import slice as slice_scan
from regbayes.inference.gibbs.scans.components import Components, assignment_logits, draw_assignments
from regbayes.inference.gibbs.state import PartitionState
from regbayes.inference.running.interrupts import Interrupts
from regbayes.inference.running.sweeps import Sweeps
from regbayes.models import (
    DPM,
    BernoulliBeta,
    CrammerSinger,
    DiagonalGaussian,
    DirichletProcess,
    EpsilonInsensitive,
    FullGaussian,
    Hinge,
    InfiniteSVM,
    Logistic,
    MaskedBernoulli,
    MixtureOfFiniteMixtures,
    MultinomialDirichlet,
    PitmanYor,
    PoissonGamma,
    SphericalGaussian,
    SquaredHinge,
    Standardized,
)
from regbayes.models.data import Data
from regbayes.models.distributions import draw
from regbayes.models.likelihoods import ExponentialFamily
from regbayes.models.priors import dirichlet_process
from regbayes.models.priors.laws import law_of
from regbayes.models.priors.sticks import log_labelled_prior, log_stick_weights, posterior_sticks
from regbayes.testing.enumeration import log_evidence, partition_log_weights, partition_posterior

GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn((7, 2), generator=GENERATOR, dtype=torch.float64)
COUNTS = torch.poisson(torch.full((7, 3), 4.0, dtype=torch.float64), generator=GENERATOR)
Y2, Y3 = torch.arange(7) % 2, torch.arange(7) % 3

LEARNED = DirichletProcess(concentration_prior=(2.0, 1.0))
THROUGH_ZERO = Standardized(intercept=0.0)

MODELS = {
    "spherical": (DPM(SphericalGaussian(), truncation=3), X, None),
    "full": (DPM(FullGaussian(), LEARNED, truncation=3), X, None),
    "bernoulli": (DPM(BernoulliBeta(), truncation=4), (COUNTS > 4).double(), None),
    "multinomial-hinge": (InfiniteSVM(MultinomialDirichlet(), Hinge(), truncation=3), COUNTS, Y2),
    "diagonal-hinge": (InfiniteSVM(DiagonalGaussian(), Hinge(2.5), truncation=4), X, Y2),
    "diagonal-logistic": (
        InfiniteSVM(DiagonalGaussian(), Logistic(), PitmanYor(0.3), truncation=3, weight_scale=2.0),
        X,
        Y2,
    ),
    "poisson-one-vs-rest": (InfiniteSVM(PoissonGamma(), Hinge(), truncation=3), COUNTS, Y3),
    "spherical-crammer-singer": (InfiniteSVM(SphericalGaussian(), CrammerSinger(0.7, 2.0), truncation=3), X, Y3),
    "full-epsilon": (InfiniteSVM(FullGaussian(), EpsilonInsensitive(), truncation=3), X, 2 * X[:, 0]),
}


def start(model, inputs, y, *, truncated: bool, labels: Tensor | str = "random", seed: int = 0):
    """(state, data, resolved model, generator)."""
    model = model.resolve(inputs, y)
    data, generator = model.data(inputs, y), torch.Generator(inputs.device).manual_seed(seed)
    return partition.init(model, data, generator, start=labels, law=label_law(model, truncated)), data, model, generator


# -- conditionals are the program's ------------------------------------------------------------------------------------


def program_log_density(model, inputs, y, latents: dict[str, Tensor]) -> Tensor:
    return poutine.trace(poutine.condition(model, data=latents)).get_trace(inputs, y).log_prob_sum()


@pytest.mark.parametrize("name", MODELS)
def test_assignment_conditional_is_the_programs(name: str) -> None:
    state, data, model, generator = start(*MODELS[name], truncated=True)
    _, inputs, y = MODELS[name]
    sticks = torch.rand(model.truncation - 1, generator=generator, dtype=torch.float64)
    parameters = model.likelihood.draw(components.hyperparameters(state, data, model), generator)
    chosen_from = Components(log_stick_weights(sticks), parameters, state.weights)
    logits = chosen_from.log_mixture + assignment_logits(data, chosen_from.parameters, chosen_from.weights, model)
    latents = {**parameters, "sticks": sticks, "weights": state.weights, **state.hyper}
    for n in range(data.num_data):
        moved = state.assignments.repeat(model.truncation, 1)
        moved[:, n] = torch.arange(model.truncation)
        row = torch.stack([program_log_density(model, inputs, y, latents | {"assignments": z}) for z in moved])
        torch.testing.assert_close(logits[n].log_softmax(0), row.log_softmax(0))


@pytest.mark.parametrize("name", MODELS)
def test_log_joint_is_the_program_over_the_conditionals_of_what_it_integrates_out(name: str) -> None:
    state, data, model, generator = start(*MODELS[name], truncated=True)
    _, inputs, y = MODELS[name]
    counts = torch.bincount(state.assignments, minlength=model.truncation)
    sticks = torch.rand(model.truncation - 1, generator=generator, dtype=torch.float64)
    log_conditional = (
        torch.distributions.Beta(*posterior_sticks(counts, *model.prior.sticks(state.hyper, model.truncation)))
        .log_prob(sticks)
        .sum()
    )
    parameters = {}

    def sample(site: str, distribution) -> Tensor:
        nonlocal log_conditional
        parameters[site] = draw(distribution, generator)
        log_conditional = log_conditional + distribution.log_prob(parameters[site]).sum()
        return parameters[site]

    model.likelihood.parameters(components.hyperparameters(state, data, model), sample)
    latents = {**parameters, "sticks": sticks, "weights": state.weights, "assignments": state.assignments}
    latents |= state.hyper
    program = program_log_density(model, inputs, y, latents)
    torch.testing.assert_close(log_joint(state, data, model, law=label_law(model, True)), program - log_conditional)


@pytest.mark.parametrize("prior", [(2.0, 1.0), None])
@pytest.mark.parametrize("family", [DirichletProcess, PitmanYor])
def test_infinite_log_joint_is_the_enumerated_weight(family, prior) -> None:
    fixed, free = family(concentration=0.7), family(concentration=0.7, concentration_prior=prior)
    model = DPM(DiagonalGaussian(), free).resolve(X[:4])
    data = model.data(X[:4])
    exact = partition_log_weights(model.replace(prior=fixed), X[:4])
    log_density = torch.distributions.Gamma(*prior).log_prob(torch.tensor(0.7, dtype=torch.float64)) if prior else 0.0
    for labels, log_weight in exact.items():
        state = PartitionState(torch.tensor(labels), X.new_zeros(max(labels) + 1, 0, 0), free.start(X))
        torch.testing.assert_close(
            log_joint(state, data, model, law=label_law(model, False)), log_density + X.new_tensor(log_weight)
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("family", [DiagonalGaussian, FullGaussian])
def test_what_is_known_of_the_rows_is_that_of_the_present_family(family, dtype: torch.dtype) -> None:
    """It is computed once for a family, and anew for another one and in other processes."""
    X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=dtype)
    models = [DPM(family(mean_precision=value)).resolve(X) for value in (0.1, 2.0)]
    data, z = prepare_points(models[0], models[0].data(X)), torch.arange(30) % 3
    state = PartitionState(z, X.new_zeros(3, 0, 0), models[0].prior.start(X))
    for model, own in itertools.product((*models, models[0]), (data, pickle.loads(pickle.dumps(data)))):
        new = model.data(X)
        assert log_joint(state, own, model, law=label_law(model, False)) == log_joint(
            state, new, model, law=label_law(model, False)
        )
        for function in (components.hyperparameters, partial(collapsed.assignment_logits, 0)):
            torch.testing.assert_close(function(state, own, model), function(state, new, model), rtol=0, atol=0)


@pytest.mark.parametrize("family", [DiagonalGaussian(), FullGaussian(), PoissonGamma(), MaskedBernoulli()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("most", [None, 0])
def test_sums_of_kept_statistics_are_those_of_the_family(
    family: ExponentialFamily, dtype: torch.dtype, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are kept and where there are too many; one component is empty."""
    if most is not None:
        monkeypatch.setattr(prepared, "MOST_KEPT", most)
    X = torch.randint(2, (40, 3), generator=torch.Generator().manual_seed(0)).to(dtype)
    model = DPM(family).resolve(X)
    data, labels = prepare_points(model, model.data(X)), torch.arange(40) % 4 + (torch.arange(40) % 4 == 2)
    assert (data.statistics is None) == (most is not None)
    found = data.summed(labels, 5)
    torch.testing.assert_close(found, model.likelihood.summed_statistics(data.X, labels, 5))
    assert found.dtype == dtype
    assert not found[2].any()


@pytest.mark.parametrize("family", [DiagonalGaussian(), PoissonGamma()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_densities_of_kept_statistics_are_those_of_the_family(family: ExponentialFamily, dtype: torch.dtype) -> None:
    """Up to a number for each row."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randint(5, (40, 3), generator=generator).to(dtype)
    model = DPM(family).resolve(X)
    data = prepare_points(model, model.data(X))
    parameters = model.likelihood.draw(data.prior + data.summed(torch.arange(40) % 4, 4), generator)
    found, expected = data.log_densities(parameters), model.likelihood.log_density(data.X, parameters)
    torch.testing.assert_close((found - found[:, :1]).to(dtype), expected - expected[:, :1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 2], "from 0 to 2; expected 0 to 1"),
        ([0, -1, 1], "from -1 to 1"),
        ([0, 1], "has shape"),
        ([0.0, 0.0, 1.0], "expected int64"),
    ],
)
def test_labels_that_no_component_has_are_refused(labels: list[float], message: str) -> None:
    """Compiled code would write beside the sums."""
    X = torch.arange(6.0).view(3, 2)
    model = DPM(DiagonalGaussian()).resolve(X)
    with pytest.raises(ValueError, match=message):
        prepare_points(model, model.data(X)).summed(torch.tensor(labels), 2)


def test_what_is_known_of_the_rows_is_computed_once() -> None:
    X = torch.arange(8.0).view(4, 2)
    model = DPM().resolve(X)
    data = prepare_points(model, model.data(X))
    assert Prepared.of(data, model.likelihood) is data
    assert Prepared.of(data, DiagonalGaussian().resolve(data.X)) is not data
    assert data.exact is data.exact
    assert data.exact.X.dtype == torch.float64
    assert data.exact.compiled is data.exact.compiled
    assert data.exact.exact is data.exact
    assert type(data.rows(slice(2))) is Data


def test_log_joint_ignores_the_names_of_components() -> None:
    state, data, model, _ = start(*MODELS["diagonal-hinge"], truncated=False)
    order = torch.randperm(len(state.weights), generator=torch.Generator().manual_seed(1))
    renamed = replace(state, assignments=torch.argsort(order)[state.assignments], weights=state.weights[order])
    both = [log_joint(each, data, model, law=label_law(model, False)) for each in (state, renamed)]
    torch.testing.assert_close(*both)


@pytest.mark.parametrize("prior", [DirichletProcess(0.7), PitmanYor(0.4, -0.1)], ids=repr)
@pytest.mark.parametrize("truncated", [False, True])
def test_expected_mixture_is_the_urn(truncated: bool, prior) -> None:
    counts = torch.tensor([2.0, 0.0, 4.0] if truncated else [2.0, 3.0, 4.0], dtype=torch.float64)
    h = prior.start(counts)
    grown = [counts + torch.eye(3, dtype=torch.float64)[k] for k in range(3)]
    grown += [] if truncated else [torch.cat([counts, counts.new_ones(1)])]

    def log_prior(sizes: Tensor) -> Tensor:
        return log_labelled_prior(sizes, *prior.sticks(h, 3)) if truncated else prior.log_partition(sizes, h)

    expected = torch.stack([log_prior(larger) - log_prior(counts) for larger in grown])
    result = law_of(prior, len(counts) if truncated else None).log_weights(counts, h)
    torch.testing.assert_close(result[: len(grown)], expected, atol=1e-6, rtol=1e-6)
    assert result[-1] == -torch.inf or not truncated


# -- draws against quadrature and enumeration --------------------------------------------------------------------------


CLASSIFIERS = {
    "hinge": (Hinge(1.5), torch.tensor([0, 1, 0, 1, 1])),
    "logistic": (Logistic(), torch.tensor([0, 1, 0, 1, 1])),
    "squared": (SquaredHinge(0.7), torch.tensor([0, 1, 0, 1, 1])),
    "masked": (Hinge(1.5), torch.tensor([0, 1, -1, 1, 0])),
    "masked squared": (SquaredHinge(), torch.tensor([0, 1, -1, 1, 0])),
    "epsilon": (EpsilonInsensitive(2.0, 0.2), torch.tensor([0.3, -1.0, 2.0, 0.1, 1.0], dtype=torch.float64)),
    "one-vs-rest": (Hinge(), torch.tensor([0, 1, 2, 1, 0])),
    "crammer-singer": (CrammerSinger(0.7, 2.0), torch.tensor([0, 1, 2, 1, 0])),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_weights_given_assignments_are_those_of_quadrature(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One feature, many copies of two components side by side: a few draws from exact starts leave them in that law."""
    monkeypatch.setattr(classifiers, "_NUM_STEPS", 1)  # of a loss without omega
    (loss, y), num_copies = CLASSIFIERS[name], 400
    inputs, labels = X[:5, :1], torch.tensor([0, 0, 1, 1, 1])
    model = InfiniteSVM(SphericalGaussian(), loss, feature_map=THROUGH_ZERO, weight_scale=1.5).resolve(inputs, y)
    data, generator = model.data(inputs.repeat(num_copies, 1), y.repeat(num_copies)), torch.Generator().manual_seed(0)
    num_scores = data.targets.shape[1]
    axis = torch.linspace(-7, 7, 1401 if num_scores == 1 else 81, dtype=torch.float64) * 1.5
    grid = torch.cartesian_prod(*[axis] * num_scores).view(-1, num_scores)
    margin = model.log_margin(data.features[:5].unsqueeze(1) * grid, data.targets[:5].unsqueeze(1))
    log_prior = -(grid / 1.5).square().sum(1) / 2
    masses = [(margin[labels == k].sum(0) + log_prior).softmax(0) for k in range(2)]
    starts = [grid[torch.multinomial(mass, num_copies, replacement=True, generator=generator)] for mass in masses]
    copies, weights = 2 * torch.arange(num_copies).repeat_interleave(5), torch.stack(starts, 1)
    state = PartitionState(labels.repeat(num_copies) + copies, weights.view(-1, 1, num_scores), model.prior.start(X))
    draws = []
    for _ in range(5):
        state = replace(state, weights=partition.draw_weights(state, data, model, generator))
        draws.append(state.weights.view(num_copies, 2, num_scores))
    for k, mass in enumerate(masses):
        for power in (1, 2):
            found, expected = torch.stack(draws)[:, :, k].pow(power).mean(0), mass @ grid.pow(power)
            assert (batch_errors(found, expected, num_batches=num_copies) < 5).all()


FAMILY = SphericalGaussian(variance=1.0, prior_variance=2.0)
TINY, TINY_Y = 1.5 * X[:4, :1], torch.tensor([0, 1, 0, 1])
SVM = InfiniteSVM(FAMILY, Hinge(1.5), feature_map=THROUGH_ZERO, weight_scale=2.0, truncation=3)
ENUMERATED = {
    "dpm": (DPM(FAMILY, truncation=3), None),
    "dpm-concentration": (DPM(FAMILY, LEARNED, truncation=3), None),
    "dpm-pitman-yor": (DPM(FAMILY, PitmanYor(0.6, 0.5), truncation=3), None),
    "dpm-negative-concentration": (DPM(FAMILY, PitmanYor(0.7, -0.4), truncation=3), None),
    "dpm-finite": (DPM(FAMILY, MixtureOfFiniteMixtures(0.8, 1.5), truncation=3), None),
    "hinge": (SVM, TINY_Y),
    "hinge-finite": (SVM.replace(prior=MixtureOfFiniteMixtures(0.8, 1.5, (2.0, 2.0))), TINY_Y),
    "hinge-pitman-yor": (SVM.replace(prior=PitmanYor(0.5)), TINY_Y),
    "one-label-missing": (SVM, torch.tensor([0, 1, -1, 1])),
    "factor-alone": (SVM.replace(loss=SquaredHinge()), TINY_Y),
    "crammer-singer": (SVM.replace(loss=CrammerSinger(0.7, 2.0), weight_scale=1.0), torch.tensor([0, 1, 2, 1])),
}


def enumeration_errors(model, y, step, *, truncated: bool, num_steps: int) -> Tensor:
    """Deviations, in standard errors, of the frequencies of all partitions (or labellings) under `step`."""
    exact = partition_posterior(model, TINY, y, truncation=model.truncation if truncated else None)
    state, data, model, generator = start(model, TINY, y, truncated=truncated)
    visited = []
    for _ in range(by_day(num_steps, 2)):
        state = step(state, data, model, generator)
        visited.append(tuple(state.assignments.tolist()))
    return frequency_errors(visited if truncated else [first_appearance(labels) for labels in visited], exact)


@pytest.mark.one_in(5)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scan", "name"),
    [
        (scan, name)
        for scan, name in itertools.product(["slice", "blocked", "collapsed"], ENUMERATED)
        if scan == "collapsed" or "finite" not in name  # a prior that serves the collapsed scan alone
    ],
)
def test_frequencies_are_those_of_enumeration(name: str, scan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # scale of the test: new components from the prior's eta (TV 0.18), or omega kept from before the scan, fail by far
    monkeypatch.setattr(classifiers, "_NUM_STEPS", 1)  # as exact as more of them
    model, y = ENUMERATED[name]
    step = partial(partition.sweep, scan=scan, num_split_merge=0)
    num_steps = 800 if name in ("crammer-singer", "factor-alone") else 1500
    assert (enumeration_errors(model, y, step, truncated=scan == "blocked", num_steps=num_steps) < 5).all()


@pytest.mark.parametrize("prior", [DirichletProcess(0.6), PitmanYor(0.5, 0.6)], ids=repr)
def test_relabelling_leaves_the_labelled_prior_invariant(prior) -> None:
    assignments, h = torch.tensor([0, 0, 1, 1, 1, 3]), prior.start(torch.zeros(()))
    state = PartitionState(assignments, torch.arange(4.0).view(4, 1, 1), h)
    sizes, orders = torch.tensor([2, 3, 0, 1]), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(6000):
        counts = torch.bincount(state.assignments, minlength=4).double()
        state = blocked_scan.relabel(state, counts, prior, generator)
        orders.append(tuple(state.weights.flatten().long().tolist()))
        assert torch.equal(state.weights.flatten()[state.assignments], assignments.to(torch.float32))
    known = sorted(set(orders))
    assert len(known) == 24
    expected = log_labelled_prior(sizes[torch.tensor(known)].double(), *prior.sticks(h, 4)).softmax(0)
    assert (frequency_errors(orders, dict(zip(known, expected.tolist(), strict=True))) < 5).all()


def test_a_truncated_model_draws_its_concentration_given_sticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """alpha ~ Gamma(a + T - 1, b - sum_k log(1 - v_k)) at given sticks, which are shares of two gamma numbers each."""
    v, generator = torch.tensor([0.3, 0.6, 0.2], dtype=torch.float64), torch.Generator().manual_seed(0)
    parts = itertools.cycle([v.log() + 0.7, (1 - v).log() + 0.7])
    monkeypatch.setattr(dirichlet_process, "log_gamma_draw", lambda shape, generator: next(parts))
    prior, counts = DirichletProcess(1.0, (2.0, 0.5)), torch.tensor([2, 0, 3, 1])
    h = prior.start(counts)
    draws = torch.stack([prior.draw_truncated(h, counts, generator)["concentration"] for _ in range(1000)])
    scaled = draws * (0.5 - (1 - v).log().sum())
    assert (scaled.mean() - 5).abs() < 5 * (5 / 1000) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("scan", ["slice", pytest.param("blocked", marks=pytest.mark.nightly)])
def test_concentration_has_its_posterior_mean(scan: str) -> None:
    """E[alpha | X] by quadrature: p(X | alpha) from enumeration, alpha on a grid."""
    model, grid = DPM(FAMILY, truncation=3), torch.linspace(-8, 3, 60, dtype=torch.float64).exp()
    truncation = 3 if scan == "blocked" else None
    log_density = torch.tensor(
        [log_evidence(model.replace(prior=DirichletProcess(float(a))), TINY, truncation=truncation) for a in grid]
    )
    mass = (log_density + torch.distributions.Gamma(2.0, 1.0).log_prob(grid) + grid.log()).softmax(0)
    state, data, model, generator = start(model.replace(prior=LEARNED), TINY, None, truncated=scan == "blocked")
    draws = []
    for _ in range(by_day(2500, 2)):
        state = partition.sweep(state, data, model, generator, scan=scan, num_split_merge=0)
        draws.append(state.hyper["concentration"])
    assert batch_errors(torch.stack(draws), mass @ grid) < 5


def test_a_loss_of_no_strength_is_the_plain_mixture() -> None:
    silent = InfiniteSVM(FAMILY, Hinge(1e-9), feature_map=THROUGH_ZERO)
    plain, with_loss = partition_posterior(DPM(FAMILY), TINY), partition_posterior(silent, TINY, TINY_Y)
    assert max(abs(plain[labels] - with_loss[labels]) for labels in plain) < 1e-6
    state, data, model, generator = start(silent, TINY, TINY_Y, truncated=True)
    parameters = model.likelihood.draw(components.hyperparameters(state, data, model), generator)
    chosen_from = Components(torch.zeros(model.truncation), parameters, state.weights)
    bare = model.likelihood.log_density(data.X, parameters)
    torch.testing.assert_close(
        assignment_logits(data, chosen_from.parameters, chosen_from.weights, model), bare, atol=1e-6, rtol=0
    )


# -- parts of a scan ---------------------------------------------------------------------------------------------------


def test_inverse_cdf_draws_have_the_conditional_frequencies(device: torch.device) -> None:
    generator = torch.Generator(device).manual_seed(0)
    inputs = X.to(device)[:1].repeat(40_000, 1)
    model = DPM(DiagonalGaussian(), truncation=3).resolve(X.to(device))
    data = model.data(inputs)
    parameters = model.likelihood.draw(model.likelihood.prior().repeat(4, 1), generator)
    log_mixture = torch.tensor([0.2, 0.3, 0.4, 0.0], dtype=torch.float64, device=device).log()
    chosen_from = Components(log_mixture, parameters, inputs.new_zeros(4, 0, 0))
    uniforms = torch.rand(len(inputs), generator=generator, dtype=torch.float64, device=device)
    uniforms[0] = 1.0  # never a component of weight zero, whatever rounding does
    chosen = draw_assignments(data, chosen_from, model, uniforms)
    expected = (
        log_mixture + assignment_logits(data.rows(slice(0, 1)), chosen_from.parameters, chosen_from.weights, model)[0]
    ).softmax(0)
    error = (expected * (1 - expected) / len(inputs)).sqrt()
    assert ((torch.bincount(chosen, minlength=4) / len(inputs) - expected).abs() <= 5 * error).all()


@pytest.mark.parametrize("exponent", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("log_floor", [-5.0, -0.5, 0.7])
def test_jumps_are_a_poisson_process_of_that_density(exponent: float, log_floor: float) -> None:
    """Mean and variance of sum_k f(x_k): the integrals of f and of its square, here for f = 1, log x and x."""
    generator, mass = torch.Generator().manual_seed(0), 0.8
    draws = [slice_scan.draw_jumps(exponent, mass, log_floor, generator) for _ in range(2000)]
    assert all((jumps > log_floor).all() for jumps in draws)
    nodes = torch.linspace(log_floor, 4.0, 20_001, dtype=torch.float64)  # log x, so the density is x^-d e^-x
    density = mass * torch.exp(-exponent * nodes - nodes.exp())
    for function in (torch.ones_like, torch.Tensor.clone, torch.exp):
        sums = torch.stack([function(jumps).sum() for jumps in draws])
        mean, variance = (torch.trapezoid(function(nodes) ** power * density, nodes) for power in (1, 2))
        assert (sums.mean() - mean).abs() <= 5 * (variance / len(sums)).sqrt()
        fourth = (sums - sums.mean()).pow(4).mean()
        assert (sums.var() - variance).abs() <= 5 * ((fourth - variance**2) / len(sums)).sqrt()


@pytest.mark.slow
@pytest.mark.parametrize(("discount", "guard"), [(0.3, 2.0), (0.7, 2.0), (0.7, 0.7)])
def test_points_below_the_floor_stay(discount: float, guard: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two scans from independent exact starts, with so low a guard that points often stay; above 1 and below it."""
    monkeypatch.setattr(slice_scan, "_GUARD", guard)
    model = DPM(FAMILY, PitmanYor(discount, 0.5)).resolve(TINY)
    data, generator, exact = model.data(TINY), torch.Generator().manual_seed(0), partition_posterior(model, TINY)
    starts = torch.multinomial(
        torch.tensor(list(exact.values())), by_day(600, 2), replacement=True, generator=generator
    )
    reached = []
    for labels in torch.tensor(list(exact))[starts]:
        state = PartitionState(labels, TINY.new_zeros(int(labels.max()) + 1, 0, 0), model.prior.start(TINY))
        for _ in range(2):
            state = slice_scan.scan(state, data, model, generator)
        reached.append(first_appearance(state.assignments.tolist()))
    assert (frequency_errors(reached, exact) < 5).all()


@pytest.mark.parametrize("prior", [DirichletProcess(), PitmanYor(0.7)], ids=repr)
def test_only_points_below_a_floor_that_knows_nothing_of_the_partition_stay(prior, monkeypatch) -> None:
    """Point 0 fits the component of point 1 and has a slice of e^-36: it stays where e^-36 is below the guard."""
    inputs = torch.tensor([[-5.0], [-5.1], [5.0], [5.1]], dtype=torch.float64)
    model = DPM(SphericalGaussian(loc=0.0, variance=0.1, prior_variance=25.0), prior).resolve(inputs)
    data, generator, floors = model.data(inputs), torch.Generator().manual_seed(0), []
    numbers = torch.tensor([[0.5, 0.5, 0.5, 0.5], [1 - 1e-16, 0.0, 0.0, 0.0]], dtype=torch.float64)
    monkeypatch.setattr(slice_scan, "uniforms", lambda shape, generator: numbers)
    monkeypatch.setattr(
        slice_scan, "draw_jumps", lambda d, mass, floor, generator: floors.append(floor) or numbers[:0, 0]
    )
    for labels in ([1, 0, 1, 1], [1, 0, 2, 3]):
        state = partition.init(model, data, generator, start=torch.tensor(labels), law=label_law(model, False))
        found = slice_scan.scan(state, data, model, generator).assignments.tolist()
        assert (found[0] == found[1]) == isinstance(prior, DirichletProcess)
    guard = slice_scan._log_guard(0.7)
    assert max(floors) < -30 if isinstance(prior, DirichletProcess) else floors == [guard, guard]


def test_new_components_are_drawn_down_to_the_least_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    model = DPM(SphericalGaussian()).resolve(X)
    data, generator, floors, least = model.data(X), torch.Generator().manual_seed(0), list[float](), list[float]()
    jumps, choose = slice_scan.draw_jumps, slice_scan.draw_assignments

    def draw_jumps(exponent, mass, log_floor, generator):
        floors.append(log_floor)
        return jumps(exponent, mass, log_floor, generator)

    def draw_assignments(rows, components, model, uniforms, log_slices):
        if len(log_slices) == len(X):  # and not those near new components alone
            least.append(float(log_slices.min()))
        return choose(rows, components, model, uniforms, log_slices)

    monkeypatch.setattr(slice_scan, "draw_jumps", draw_jumps)
    monkeypatch.setattr(slice_scan, "draw_assignments", draw_assignments)
    state = partition.init(model, data, generator, start="random", law=label_law(model, False))
    for step in range(10):
        state = slice_scan.scan(state, data, model, generator)
        assert floors[step] == least[-1]


def test_few_components_open_beside_many_singletons() -> None:
    """Without the guard some 10^7 weights of this process are above the least slice of 300 points."""
    model = DPM(SphericalGaussian(), PitmanYor(0.8, 1.0)).resolve(X[:1].repeat(300, 1))
    data, generator = model.data(X[:1].repeat(300, 1)), torch.Generator().manual_seed(0)
    state = partition.init(model, data, generator, start=torch.arange(300), law=label_law(model, False))
    opened = []
    for _ in range(5):
        exponent, mass = (float(value) for value in model.prior.draw_rest(state.hyper, 300, generator))
        opened.append(len(slice_scan.draw_jumps(exponent, mass, slice_scan._log_guard(exponent), generator)))
    assert max(opened) < 15 * (300 + 1 / 0.8)
    moved = slice_scan.scan(state, data, model, generator)
    assert sorted(set(moved.assignments.tolist())) == list(range(len(moved.weights)))


def test_slices_below_the_smallest_number_do_no_harm() -> None:
    model = DPM(SphericalGaussian(), PitmanYor(0.999, 1.0)).resolve(X)
    data, generator = model.data(X), torch.Generator().manual_seed(0)
    state = partition.init(model, data, generator, start=torch.arange(7), law=label_law(model, False))
    for _ in range(20):
        state = slice_scan.scan(state, data, model, generator)
        assert torch.isfinite(log_joint(state, data, model, law=label_law(model, False)))


@pytest.mark.parametrize("at_once", [False, True])
def test_elliptical_slice_steps_keep_each_vectors_own_law(monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    """Three targets side by side in one batch, by quadrature: one of them its prior, one skew, one with two modes."""
    if at_once:  # some angles, as on a GPU
        monkeypatch.setattr(elliptical_slice.host, "on_cpu", lambda like: False)
    generator, scale = torch.Generator().manual_seed(0), 1.5
    kinds = torch.arange(3).repeat_interleave(300)
    centres, rates, tilts = torch.tensor([[0.0, 1.0, 1.2], [0.0, 6.0, 3.0], [0.0, 4.0, 0.5]], dtype=torch.float64)

    def log_density(values: Tensor, kind: Tensor) -> Tensor:
        return -rates[kind] * (values.abs() - centres[kind]).square() + tilts[kind] * values

    def log_likelihood(values: Tensor, which: Tensor) -> Tensor:
        return log_density(values.squeeze(-1), kinds[which])

    grid = torch.linspace(-8, 8, 2001, dtype=torch.float64)
    values, draws = torch.zeros(900, 1, dtype=torch.float64), []
    for _ in range(120):
        values = elliptical_slice.elliptical_slice(values, scale, log_likelihood, generator)
        draws.append(values.squeeze(1))
    for k, copies in enumerate(torch.stack(draws[20:], 1).split(300)):
        mass = (log_density(grid, torch.full((2001,), k)) - (grid / scale).square() / 2).softmax(0)
        moments = torch.stack([copies, copies.square(), copies.abs(), copies.pow(3)], -1).flatten(0, 1)
        expected = torch.stack([mass @ value for value in (grid, grid.square(), grid.abs(), grid.pow(3))])
        assert (batch_errors(moments, expected, num_batches=300) < 5).all()


def test_a_large_concentration_opens_many_components() -> None:
    state, data, model, generator = start(DPM(SphericalGaussian(), DirichletProcess(300.0)), X, None, truncated=False)
    for _ in range(20):
        state = partition.sweep(state, data, model, generator, scan="slice", num_split_merge=0)
        assert sorted(set(state.assignments.tolist())) == list(range(len(state.weights)))
    assert len(state.weights) >= 4


# -- the backend -------------------------------------------------------------------------------------------------------


def quick(**options) -> Gibbs:
    return Gibbs(**({"num_samples": 6, "num_warmup": 4, "progress": False} | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "num_samples is 0; it must be an integer of at least 1"),
        ({"scan": "slices"}, "scan is 'slices'; it must be one of 'auto', 'collapsed', 'slice', 'blocked'"),
        ({"init": "two"}, "init is 'two'"),
        ({"init": torch.zeros(3, dtype=torch.long)}, r"init has shape \(3,\); expected \[7\]"),
        ({"init": torch.arange(7), "scan": "blocked"}, "init has 7 labels, but the model is truncated at 5"),
    ],
)
def test_options_outside_their_domain_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick(**options).fit(DPM(truncation=5), X)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("scan", ["slice", "blocked", "collapsed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_scan_fits_and_predicts(scan: str, dtype: torch.dtype, device: torch.device) -> None:
    inputs, y = X.to(device, dtype), Y3.to(device)
    options = {"scan": scan, "init": "random", "num_chains": 2, "thinning": 2, "split_merge": 1}
    options |= {"num_samples": 4, "num_warmup": 2}
    model = InfiniteSVM(truncation=20, prior=DirichletProcess(concentration_prior=(1.0, 1.0)))
    posterior = quick(**options).fit(model, inputs, y)
    kept = posterior.samples
    assert posterior.num_draws == [4, 4]
    assert posterior.trace.values.shape == (2, 10)
    assert kept["weights"].dtype == kept["log_mixture"].dtype == kept["hyperparameters"].dtype == dtype
    assert kept["weights"].device == inputs.device
    assert kept["concentration"].unique().numel() > 6
    torch.testing.assert_close(
        kept["log_mixture"].logsumexp(1), torch.zeros(8, dtype=dtype, device=device), atol=1e-5, rtol=0
    )
    assert set(posterior.predict(inputs).tolist()) <= {0, 1, 2}
    again = quick(**options).fit(model, inputs, y)
    assert all(torch.equal(kept[name], again.samples[name]) for name in kept)
    other = quick(**options, seed=1).fit(model, inputs, y)
    assert not torch.equal(kept["concentration"], other.samples["concentration"])


def test_interrupt_returns_the_draws_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, calls = partition.sweep, []

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return sweep(*arguments, **options)

    monkeypatch.setattr(partition, "sweep", interrupted)
    with pytest.warns(FitInterrupted, match="after step 8 of 24"):
        posterior = quick(num_samples=20).fit(DPM(), X)
    assert posterior.num_draws == [4]


def test_a_binding_truncation_warns() -> None:
    inputs = torch.cat([X[:, :1] * 0.01 + 10 * k for k in range(4)])
    with pytest.warns(TruncationWarning, match="All 2 components are occupied"):
        quick(scan="blocked", init="random").fit(DPM(DiagonalGaussian(rate=0.01), truncation=2), inputs)


# -- real data ---------------------------------------------------------------------------------------------------------


def standardized(loader) -> tuple[Tensor, Tensor]:
    inputs, y = loader(return_X_y=True)
    return torch.as_tensor((inputs - inputs.mean(0)) / inputs.std(0)), torch.as_tensor(y)


REAL = {
    "iris": (load_iris, DPM(FullGaussian()), 0.7),  # with two overlapping species in one component 0.73
    "wine": (load_wine, DPM(SphericalGaussian(variance=0.6)), 0.6),
}


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("scan", ["slice", "collapsed"])
def test_mixture_finds_species_and_cultivars(name: str, scan: str) -> None:
    loader, model, least = REAL[name]
    inputs, y = standardized(loader)
    posterior = Gibbs(num_samples=20, num_warmup=40, scan=scan, split_merge=3, progress=False).fit(model, inputs)
    assert normalized_mutual_info_score(y, posterior.partition()) > least


@pytest.mark.parametrize("scan", ["slice", "blocked", "collapsed"])
def test_infinite_svm_predicts_held_out_tumours(scan: str) -> None:
    inputs, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:400], order[400:]
    posterior = Gibbs(num_samples=20, num_warmup=20, scan=scan, split_merge=1, progress=False).fit(
        InfiniteSVM(truncation=10), inputs[train], y[train]
    )
    assert (posterior.predict(inputs[test]) == y[test]).mean() > 0.93


def test_the_log_joint_of_a_kept_draw_is_computed_once() -> None:
    """Its value is the one that the draw keeps, and that of the state that was reached."""
    backend, seen = Gibbs(num_warmup=3, num_samples=4), []
    kernel, model, data, schedule = backend.prepare(DPM(DiagonalGaussian()), X, None, None)

    def value(*arguments: object) -> Tensor:
        seen.append(kernel.value(*arguments))
        return seen[-1]

    sweeps, interrupts = Sweeps(replace(kernel, value=value), model, data, schedule), Interrupts()
    chain = sweeps.start(0, interrupts)
    while sweeps.unfinished(chain):
        sweeps.advance(chain, interrupts)
        assert chain.values[-1] == pytest.approx(float(kernel.value(chain.state, data, model)))
    assert len(seen) == 3
    assert chain.values[3:] == [float(draw["log_joint"]) for draw in chain.draws]


def test_sweeps_of_few_rows_have_several_scans_by_their_number_alone() -> None:
    assert [collapsed.rounds_of(DPM().prepare(X.repeat(times, 1))[1]) for times in (1, 30, 900)] == [4, 2, 1]


@pytest.mark.parametrize("scan", ["collapsed", "slice", "blocked"])
def test_chains_start_in_different_places(scan) -> None:
    """The first in one component, the others around rows far apart; with a word for `init` all as it says."""
    X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model, data = DPM(truncation=12).prepare(X, None, None)
    kernel = Gibbs(scan=scan).kernel(model)
    prepared = kernel.prepare(model, data)

    def number(init: Callable[..., PartitionState], seed: int) -> int:
        return len(torch.unique(init(model, prepared, torch.Generator().manual_seed(seed)).assignments))

    assert number(kernel.init, 0) == 1
    numbers = {number(kernel.init_further, seed) for seed in range(8)}
    assert len(numbers) >= 3
    assert min(numbers) >= 2
    assert max(numbers) <= 12
    assert Gibbs(scan=scan, init="one").kernel(model).init_further is None
    chains = [Sweeps(kernel, model, data, Gibbs().schedule()).start(index, Interrupts()) for index in (0, 1)]
    assert len(torch.unique(chains[0].state.assignments)) == 1 < len(torch.unique(chains[1].state.assignments))
