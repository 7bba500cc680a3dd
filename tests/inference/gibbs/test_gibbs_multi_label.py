"""Gibbs on multi-label models: log joint and program, classifiers and quadrature, chains and exact enumeration."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pyro.poutine as poutine
import pytest
import torch
from setups import label_law
from torch import Tensor
from torch.nn.functional import logsigmoid

from regbayes.inference import Gibbs, TruncationWarning
from regbayes.inference.gibbs.label_sets import coupled
from regbayes.inference.gibbs.label_sets import kernel as multi_label
from regbayes.inference.gibbs.scans import components
from regbayes.inference.posterior.label_draws import finished_draw
from regbayes.models import (
    BNMC,
    DPM,
    BernoulliBeta,
    DirichletProcess,
    Hinge,
    Logistic,
    MultinomialDirichlet,
    SphericalGaussian,
    SquaredHinge,
    Standardized,
)
from regbayes.models.distributions import draw
from regbayes.models.likelihoods.product import Product
from regbayes.models.priors.sticks import log_stick_weights, posterior_sticks
from regbayes.testing import check_kernel, check_model

GENERATOR = torch.Generator().manual_seed(2)
X = torch.randn((4, 1), generator=GENERATOR, dtype=torch.float64) * 1.5
Y = torch.tensor([[1, 0], [torch.nan, 1], [0, 0], [1, 1]], dtype=torch.float64)
THROUGH_ZERO = Standardized(intercept=0.0)
FAMILY = SphericalGaussian(variance=0.5)
MODELS = {
    "logistic": BNMC(FAMILY, feature_map=THROUGH_ZERO, truncation=2),
    "hinge": BNMC(
        FAMILY, BernoulliBeta(1.0, 2.0), Hinge(0.8), DirichletProcess(concentration_prior=(2.0, 1.0)), truncation=3
    ),
}


COUNTS = torch.tensor([[2, 0], [0, 0], [1, 1], [0, 3]], dtype=torch.float64)
COUPLED = {
    "and": (
        BNMC(FAMILY, BernoulliBeta(1.0, 1.5), feature_map=THROUGH_ZERO, weight_scale=1.5, truncation=2, joint="and"),
        Y,
    ),
    "multinomial": (
        BNMC(FAMILY, MultinomialDirichlet(1.2), feature_map=THROUGH_ZERO, truncation=2, joint="multinomial"),
        COUNTS,
    ),
}


@pytest.mark.parametrize("name", [*MODELS, *COUPLED])
def test_program_is_its_parts(name: str) -> None:
    if name in COUPLED:
        check_model(COUPLED[name][0], X, COUPLED[name][1])
    else:
        check_model(MODELS[name], X, Y)
        check_model(MODELS[name].replace(label_likelihood=MultinomialDirichlet()), X, Y.nan_to_num(0.0))


@pytest.mark.parametrize("loss", [Logistic(), Hinge(1.2), SquaredHinge(0.7)], ids=repr)
def test_classifiers_stay_in_the_law_of_quadrature(loss) -> None:
    """Many labels with the same signs are as many chains: from exact starts two draws leave them in that law."""
    num_copies = 2000
    labels = torch.tensor([1, torch.nan, 0, 1], dtype=torch.float64).unsqueeze(1).expand(4, num_copies)
    model, data = BNMC(FAMILY, loss=loss, feature_map=THROUGH_ZERO, weight_scale=1.5).prepare(X, labels)
    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    log_law = -(grid / 1.5).square().div(2)
    log_law = log_law + model.loss.log_factor(data.features * grid, data.targets[:, :1]).sum(0)
    mass = log_law.softmax(0)
    generator = torch.Generator().manual_seed(0)
    start = grid[torch.multinomial(mass, num_copies, replacement=True, generator=generator)]
    state = multi_label.LabelState(
        torch.zeros(4, dtype=torch.long), X.new_zeros(1, 0, 0), {}, classifiers=start.view(1, 1, -1)
    )
    for _ in range(2):
        drawn = multi_label.draw_classifiers(state, data, model, generator)
        state = multi_label.LabelState(state.assignments, state.weights, {}, classifiers=drawn)
    assert not torch.equal(drawn.flatten(), start)
    assert decile_error(drawn.flatten(), grid, mass) < 38  # 9 degrees of freedom: one in 57,000


@pytest.mark.parametrize(
    ("scan", "name", "number"),
    [("slice", "logistic", 160), ("blocked", "hinge", 160), ("blocked", "and", 320), ("blocked", "multinomial", 320)],
)
@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
def test_chains_are_exact(scan: str, name: str, number: int) -> None:
    model, labels = COUPLED[name] if name in COUPLED else (MODELS[name].replace(feature_map=THROUGH_ZERO), Y)
    check_kernel(Gibbs(num_samples=number, num_warmup=10, scan=scan, seed=1), model, X, labels)


def test_classifiers_and_partition_do_not_see_each_other() -> None:
    """Under joint P labels move the classifiers through their signs alone, whatever the partition."""
    model, data = MODELS["hinge"].prepare(X, Y)
    draws = []
    for start in ("one", "random"):
        state = multi_label.init(
            model, data, torch.Generator().manual_seed(0), backend=Gibbs(scan="blocked", init=start)
        )
        generator = torch.Generator().manual_seed(1)
        state = multi_label.LabelState(state.assignments, state.weights, {}, classifiers=X.new_ones(1, 2, 2))
        draws.append(multi_label.draw_classifiers(state, data, model, generator))
    assert torch.equal(*draws)


@pytest.mark.parametrize(("joint", "remedy"), [("product", "slice"), ("and", "truncation")])
def test_truncation_that_binds_warns(joint: str, remedy: str) -> None:
    model = MODELS["logistic"].replace(joint=joint)
    with pytest.warns(TruncationWarning, match=remedy):
        Gibbs(2, 0, scan="blocked", init=torch.tensor([0, 1, 0, 1])).fit(model, X * 20, Y)


# -- coupled joints ----------------------------------------------------------------------------------------------------


def coupled_state(name: str, seed: int = 0):
    model, labels = COUPLED[name]
    model, data = model.prepare(X, labels)
    generator = torch.Generator().manual_seed(seed)
    state = coupled.init(model, data, generator, backend=Gibbs(scan="blocked", init="random"))
    for _ in range(3):
        state = coupled.sweep(state, data, model, generator)
    return state, data, model, generator


@pytest.mark.parametrize("name", COUPLED)
def test_coupled_conditional_of_assignments_is_the_programs(name: str) -> None:
    state, data, model, generator = coupled_state(name)
    points, mixture = coupled.view(state, data, model)
    sticks = torch.rand(1, generator=generator, dtype=torch.float64)
    parameters = model.likelihood.draw(components.hyperparameters(state, points, mixture), generator)
    chosen_from = components.Components(log_stick_weights(sticks), parameters, state.weights)
    logits = chosen_from.log_mixture + components.assignment_logits(points, parameters, state.weights, mixture)
    psi = state.weights.squeeze(1)
    latents = {f"{site}_0": value for site, value in parameters.items()} | {"sticks": sticks, **state.hyper}
    latents["probs_1"] = psi if name == "and" else psi / psi.sum(1, keepdim=True)
    latents["weights"] = state.classifiers.squeeze(0)
    for n in range(data.num_data):
        moved = state.assignments.repeat(2, 1)
        moved[:, n] = torch.arange(2)
        programs = [poutine.condition(model.program, data=latents | {"assignments": z}) for z in moved]
        row = torch.stack([poutine.trace(program).get_trace(data).log_prob_sum() for program in programs])
        torch.testing.assert_close(logits[n].log_softmax(0), row.log_softmax(0))


def test_bits_are_the_law_of_and() -> None:
    """The three ways to y = 0 have the weights of (psi, sigma), and y = 0 has 1 - psi sigma in all."""
    psi, scores = torch.tensor([0.3, 0.9]).double(), torch.tensor([-1.0, 2.0]).double()
    only_a, only_b = coupled.either_bit(psi, scores)
    sigma = scores.sigmoid()
    torch.testing.assert_close(only_a, psi * (1 - sigma) / (1 - psi * sigma))
    torch.testing.assert_close(only_b, (1 - psi) * sigma / (1 - psi * sigma))


@pytest.mark.parametrize("count", [0, 1, 4])
def test_polya_gammas_of_whole_numbers(count: int) -> None:
    f = torch.full((4000, 1), 1.7, dtype=torch.float64)
    draws = coupled.draw_polya_gammas(torch.full_like(f, count), f, torch.Generator().manual_seed(0))
    mean = count * torch.tanh(f[0] / 2) / (2 * f[0])
    error = draws.std() / 4000**0.5
    assert (draws.mean() - mean).abs() <= 5 * error


def decile_error(draws: Tensor, values: Tensor, mass: Tensor) -> Tensor:
    """Chi-square [] of draws [R] in ten intervals of about equal mass [G], of cells around evenly spaced values [G]."""
    below, ends = mass.cumsum(0), values + (values[1] - values[0]) / 2
    places = torch.searchsorted(below, torch.linspace(0.1, 0.9, 9).double())
    expected = len(draws) * torch.diff(below[places], prepend=below.new_zeros(1), append=below.new_ones(1))
    found = torch.bincount(torch.bucketize(draws.contiguous(), ends[places]), minlength=10)
    return ((found - expected).square() / expected).sum()


def product_error(draws: tuple[Tensor, Tensor], axes: tuple[Tensor, Tensor], mass: Tensor) -> Tensor:
    """Standard errors [] that the mean product of draws [R] of two quantities, about their means, lies off."""
    means = [mass.sum(1 - i) @ axis / mass.sum() for i, axis in enumerate(axes)]
    products = (draws[0] - means[0]) * (draws[1] - means[1])
    exact = (axes[0] - means[0]) @ mass @ (axes[1] - means[1]) / mass.sum()
    return (products.mean() - exact).abs() / (products.std() / len(products) ** 0.5)


@pytest.mark.parametrize(
    "bits",
    [[1.0, 0.0, 0.0, torch.nan], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, torch.nan, torch.nan]],
    ids=["mixed", "none", "missing"],
)
def test_psi_and_classifiers_of_and_stay_in_their_exact_law(bits) -> None:
    """Labels with the same bits are as many chains given z: from exact starts of (psi, w), a few draws of both."""
    copies, z, generator = 4000, torch.tensor([0, 0, 1, 1]), torch.Generator().manual_seed(0)
    bits = torch.tensor(bits, dtype=torch.float64)
    model = COUPLED["and"][0].replace(weight_scale=2.0)
    model, data = model.prepare(X, bits.unsqueeze(1).expand(4, copies))
    w, psi = torch.linspace(-14, 14, 701).double(), (torch.arange(400).double() + 0.5) / 400
    sigma = (data.features * w).sigmoid()
    factors = torch.where(bits.view(4, 1, 1) == 1, psi * sigma.unsqueeze(2), 1 - psi * sigma.unsqueeze(2))
    factors = torch.where(bits.isnan().view(4, 1, 1), 1.0, factors)
    prior = torch.distributions.Beta(1.0, 1.5).log_prob(psi).exp()
    tables = [prior * factors[z == k].prod(0) for k in (0, 1)]
    mass = (-(w / 2).square() / 2).exp() * tables[0].sum(1) * tables[1].sum(1)
    mass = mass / mass.sum()
    chosen = torch.multinomial(mass, copies, replacement=True, generator=generator)
    starts = [psi[torch.multinomial(table[chosen], 1, generator=generator).squeeze(1)] for table in tables]
    state = multi_label.LabelState(z, torch.stack(starts).unsqueeze(1), {}, classifiers=w[chosen].view(1, 1, -1))
    for _ in range(6):
        state = coupled.draw_labels(state, data, model, generator)
    assert decile_error(state.classifiers.flatten(), w, mass) < 38  # 9 degrees of freedom: one in 57,000
    for k in (0, 1):
        joint = mass.unsqueeze(1) * tables[k] / tables[k].sum(1, keepdim=True)
        assert decile_error(state.weights[k].flatten(), psi, joint.sum(0)) < 38
        assert product_error((state.classifiers.flatten(), state.weights[k].flatten()), (w, psi), joint) < 4.5


def law_of_counts(labels: Tensor, feature: Tensor, w: Tensor, share: Tensor) -> Tensor:
    """p(w_1, w_2, psi_1 | labels) [W, W, G] of rows [N, 2] of one component with one feature [N], on a grid."""
    one, two, part = torch.meshgrid(w, w, share, indexing="ij")
    log_mass = 0.2 * (part.log() + torch.log1p(-part)) - (one.square() + two.square()) / (2 * 1.5**2)
    for (first, second), a in zip(labels, feature, strict=True):
        odds = part.logit() + logsigmoid(a * one) - logsigmoid(a * two)
        log_mass = log_mass + first * logsigmoid(odds) + second * logsigmoid(-odds)
    return log_mass.flatten().softmax(0).view(log_mass.shape)


def test_psi_and_classifiers_of_counts_stay_in_their_exact_law() -> None:
    """Components with the same rows, each with a feature of its own, are as many chains: a few draws of all but z."""
    copies, generator = 1000, torch.Generator().manual_seed(0)
    labels = torch.tensor([[2.0, 1.0], [0.0, 4.0]]).double()
    model = COUPLED["multinomial"][0].replace(weight_scale=1.5, truncation=copies)
    model, data = model.prepare(X[:2].repeat(copies, 1), labels.repeat(copies, 1))
    feature = torch.tensor([0.9, -1.6]).double()
    data = replace(data, features=torch.kron(torch.eye(copies).double(), feature.unsqueeze(1)))
    w, share = torch.linspace(-6, 6, 61).double(), (torch.arange(80).double() + 0.5) / 80
    mass = law_of_counts(labels, feature, w, share)
    chosen = torch.multinomial(mass.flatten(), copies, replacement=True, generator=generator)
    first, second, drawn = (axis.flatten()[chosen] for axis in torch.meshgrid(w, w, share, indexing="ij"))
    total = torch._standard_gamma(torch.full((copies, 1), 2.4, dtype=torch.float64), generator=generator)
    g, classifiers = torch.stack([drawn, 1 - drawn], 1) * total, torch.stack([first, second], 1)
    z = torch.arange(copies).repeat_interleave(2)
    state = multi_label.LabelState(z, g.unsqueeze(1), {}, classifiers=classifiers.unsqueeze(0))
    for _ in range(6):
        state = coupled.draw_labels(state, data, model, generator)
    g, (first, second) = state.weights.squeeze(1), state.classifiers[0].T
    drawn = g[:, 0] / g.sum(1)
    for found, axis, rest in ((first, w, (1, 2)), (second, w, (0, 2)), (drawn, share, (0, 1))):
        assert decile_error(found, axis, mass.sum(rest)) < 38  # 9 degrees of freedom: one in 57,000
    for found, rest in ((first, 1), (second, 0)):
        assert product_error((found, drawn), (w, share), mass.sum(rest)) < 4.5
    size = (torch.arange(4000).double() + 0.5) / 200
    assert decile_error(g.sum(1), size, (1.4 * size.log() - size).softmax(0)) < 38  # the labels say nothing of it


def test_negatives_share_their_totals_as_the_g_just_drawn_do() -> None:
    """Where sigma is 1/2 throughout, a row's negatives are Poisson(u g_c / 2): given their sum, a multinomial law."""
    copies = 2000
    model = COUPLED["multinomial"][0].replace(truncation=copies)
    model, data = model.prepare(X[:2].repeat(copies // 2, 1), torch.tensor([[1, 9]]).repeat(copies, 1))
    state = multi_label.LabelState(
        torch.arange(copies), X.new_ones(copies, 1, 2), {}, classifiers=data.features.new_zeros(1, 1, 2)
    )
    state, observed = coupled.draw_counts(state, data, model, torch.Generator().manual_seed(0))
    negatives, g = data.labels - 2 * observed.shift, state.weights.squeeze(1)
    share, total = g[:, 0] / g.sum(1), negatives.sum(1)
    assert total.min() >= 0
    assert total.sum() > 2 * copies
    assert (negatives[:, 0] - total * share).sum().abs() < 5 * (total * share * (1 - share)).sum().sqrt()


def test_coupled_chains_start_from_a_partition_of_the_joint_product() -> None:
    model, data = COUPLED["and"][0].prepare(X * 20, Y)
    starts = [
        coupled.init(model, data, torch.Generator().manual_seed(0), backend=Gibbs(init="one", num_generative=num))
        for num in (0, 10)
    ]
    assert [state.assignments.unique().numel() for state in starts] == [1, 2]


def test_labels_of_coupled_components_are_swapped() -> None:
    """A component in the last place, whose rows no other explains, comes to one before it."""
    rows = torch.randn((20, 1), generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.01
    model = COUPLED["and"][0].replace(likelihood=SphericalGaussian(0.0, 1e-4, 100.0), truncation=4)
    model, data = model.prepare(rows, torch.ones(20, 2))
    generator, start = torch.Generator().manual_seed(0), torch.full((20,), 3)
    state = coupled.init(model, data, generator, backend=Gibbs(init=start, num_generative=0))
    for _ in range(5):
        state = coupled.sweep(state, data, model, generator)
    assert state.assignments.mode().values < 3
    assert state.weights[state.assignments.mode().values].min() > 0.8


def left_out(state, family, points, mixture, generator) -> tuple[dict[str, Tensor], Tensor]:
    """Sticks and parameters of a family at a draw, and the log density [] of their conditionals."""
    prior, T = mixture.prior, mixture.truncation
    sticks = torch.rand(T - 1, generator=generator, dtype=torch.float64)
    law = torch.distributions.Beta(*posterior_sticks(components.count_members(state), *prior.sticks(state.hyper, T)))
    total, drawn = law.log_prob(sticks).sum(), {"sticks": sticks, **state.hyper, "assignments": state.assignments}

    def sample(site: str, distribution) -> Tensor:
        nonlocal total
        drawn[site] = draw(distribution, generator)
        total = total + distribution.log_prob(drawn[site]).sum()
        return drawn[site]

    family.parameters(components.hyperparameters(state, points, mixture), sample)
    return drawn, total


@pytest.mark.parametrize("name", MODELS)
def test_log_joint_is_the_program_over_the_conditionals_of_what_it_integrates_out(name: str) -> None:
    model, data = MODELS[name].replace(weight_scale=1.5).prepare(X, Y)
    generator = torch.Generator().manual_seed(0)
    state = multi_label.init(model, data, generator, backend=Gibbs(scan="blocked", init="random"))
    latents, log_conditional = left_out(state, model.family, data.points, model.mixture, generator)
    latents["weights"] = state.classifiers.squeeze(0)
    program = poutine.trace(poutine.condition(model, data=latents)).get_trace(X, Y).log_prob_sum()
    kept = multi_label.draw(state, data, model, law=label_law(model, True))
    for found in (multi_label.log_joint(state, data, model, law=label_law(model, True)), kept["log_joint"]):
        torch.testing.assert_close(found, program - log_conditional)


@pytest.mark.parametrize("name", COUPLED)
def test_coupled_log_joint_is_the_program_over_the_conditionals_of_what_it_integrates_out(name: str) -> None:
    """Of counts a change of g that keeps psi moves the log joint by that of the gamma laws alone."""
    state, data, model, generator = coupled_state(name)
    plain = DPM(model.likelihood, model.prior, 2, 1)
    drawn, log_conditional = left_out(state, model.likelihood, data.inputs, plain, generator)
    psi = state.weights.squeeze(1)
    shares = psi if name == "and" else psi / psi.sum(1, keepdim=True)
    latents = {site if site in {"sticks", "assignments", *state.hyper} else f"{site}_0": drawn[site] for site in drawn}
    latents |= {"probs_1": shares, "weights": state.classifiers.squeeze(0)}
    program = poutine.trace(poutine.condition(model.program, data=latents)).get_trace(data).log_prob_sum()
    expected = program - log_conditional
    if name == "multinomial":  # a Dirichlet law is that of the shares of gamma ones, whose sum is one more
        total, size = psi.sum(1), model.label_likelihood.concentration.sum()
        sums = torch.distributions.Gamma(size, torch.ones_like(size)).log_prob(total).sum()
        ways = torch.lgamma(1 + COUNTS.sum(1)).sum() - torch.lgamma(1 + COUNTS).sum()
        expected = expected + sums - total.log().sum() * (psi.shape[1] - 1) - ways
    kept = coupled.draw(state, data, model)
    for found in (coupled.log_joint(state, data, model), kept["log_joint"]):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(kept["label_means"], shares)


# -- what a draw keeps of counts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["assignments", "responsibilities", "stream"])
@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 1.0, 3.0]], ids=["once", "weighed"])
def test_totals_of_components_are_means_of_labelled_rows_shrunk_by_one(source: str, weights) -> None:
    counts = torch.tensor([[2, 1], [torch.nan, torch.nan], [4, 0], [0, 1]], dtype=torch.float64)
    weights = None if weights is None else torch.tensor(weights).double()
    model, data = COUPLED["multinomial"][0].prepare(X, counts, weights=weights)
    chi = model.likelihood.prior() + model.likelihood.statistics(X[[0, 2]])
    kept = {"log_mixture": torch.tensor([0.6, 0.3, 0.1]).double().log(), "weights": X[:, :0]}
    kept["assignments"] = torch.tensor([0, 0, 1, 0], dtype=torch.int8)
    shares = torch.eye(2).double()[kept["assignments"].long()]
    if source == "responsibilities":
        shares = kept["responsibilities"] = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8], [0.6, 0.4]]).double()
    if source == "stream":
        kept["hyperparameters"] = chi
        shares = model.likelihood.log_predictive(X, chi).exp() * torch.tensor([0.6, 0.3])
        shares = shares / shares.sum(1, keepdim=True)
    seen = SimpleNamespace(first=data) if source == "stream" else data
    found = finished_draw(kept, X.new_ones(1, 2), seen, model)["label_totals"]
    each = torch.tensor([1.0, 0, 1, 1]) if weights is None else torch.tensor([1.0, 0, 1, 3])
    totals, each = torch.tensor([3.0, 0, 4, 1]).double(), each.double()
    mean = (each * totals) @ shares.sum(1) / (each @ shares.sum(1))
    expected = [((each * totals) @ shares[:, k] + mean) / (each @ shares[:, k] + 1) for k in range(2)]
    torch.testing.assert_close(found, torch.stack([*expected, mean]))


def test_totals_of_rows_without_labels_are_zero() -> None:
    model, data = COUPLED["multinomial"][0].prepare(X, torch.full((4, 2), torch.nan))
    kept = {"log_mixture": X.new_zeros(3), "weights": X[:, :0], "assignments": torch.zeros(4, dtype=torch.int8)}
    assert torch.equal(finished_draw(kept, X.new_ones(1, 2), data, model)["label_totals"], X.new_zeros(3))


@pytest.mark.parametrize("scan", ["collapsed", "slice", "blocked"])
def test_what_stays_the_same_in_all_sweeps_is_computed_once(scan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, base_measure = [], Product.log_base_measure

    def counted(self, X):
        calls.append(len(X))
        return base_measure(self, X)

    monkeypatch.setattr(Product, "log_base_measure", counted)
    X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    numbers = []
    for num_samples in (2, 6):
        calls.clear()
        Gibbs(num_samples, 1, scan=scan, split_merge=0, init="one", progress=False).fit(
            BNMC(truncation=4), X, (X > 0).double()
        )
        numbers.append(len(calls))
    assert numbers[0] == numbers[1] > 0
