"""What a user asks of a fitted model of sequences, against enumeration of all paths; and what mixtures share."""

from __future__ import annotations

import itertools
import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from regbayes.inference import SVI, FitInterrupted, Gibbs, SequencePosterior, SmallVariance, Trace, structure_of
from regbayes.inference.posterior.partition_losses import align, pair_f1
from regbayes.models import (
    DDPM,
    DIH,
    DPM,
    IHMM,
    DiagonalGaussian,
    HierarchicalDirichletProcess,
    Hinge,
    InfiniteSVM,
    Logistic,
    SphericalGaussian,
)

pytestmark = pytest.mark.usefixtures("few_restarts")

NAN = math.nan
X = torch.tensor([[-1.0, 0.2], [0.3, -0.4], [1.2, 0.9], [-0.2, 0.1], [0.7, -1.1], [NAN, NAN]], dtype=torch.float64)
LENGTHS = [3, 1, 2]
NOTHING_TRACED = Trace("log joint", torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
MODELS = {
    "IHMM": IHMM(SphericalGaussian(loc=0.0, variance=0.4, prior_variance=1.0)),
    "DIH-S": DIH(SphericalGaussian(loc=0.0, variance=0.4, prior_variance=1.0), Hinge(0.7), weight_scale=2.0),
    "DIH-L": DIH(SphericalGaussian(loc=0.0, variance=0.4, prior_variance=1.0), Logistic(), weight_scale=2.0),
}


# -- posteriors made by hand -------------------------------------------------------------------------------------------


def made_draw(
    model, num_states: int, generator: torch.Generator, *, truncated: bool = False, variational: bool = False
):
    """A draw of random rows, hyperparameters and hyperplanes; its states in training are 0, 1, ..., 0, 1, ..."""
    like = {"generator": generator, "dtype": torch.float64, "device": generator.device}
    data = model.data(X.to(generator.device), LENGTHS)
    log_rows = 2.0 * torch.randn(num_states + 1, num_states + 1, **like)
    if truncated:
        log_rows[:, -1] = -torch.inf
    log_rows = log_rows.log_softmax(1)
    M, P, C = len(data.X), data.points.features.shape[1], data.points.targets.shape[1]
    labels = torch.arange(M, device=generator.device) % num_states
    draw = {
        "assignments": torch.arange(len(X), device=generator.device) % num_states,
        "hyperparameters": model.likelihood.prior() + model.likelihood.summed_statistics(data.X, labels, num_states),
        "weights": 1.5 * torch.randn(num_states, P, C, **like),
        "log_mixture": log_rows[-1],
        "log_start": log_rows[-1],
        "log_transitions": log_rows[:-1],
        "concentration": log_rows.new_tensor(1.0),
        "top_concentration": log_rows.new_tensor(2.0),
    }
    if not variational:
        draw["log_unseen_row"] = torch.randn(num_states + 1, **like).log_softmax(0)
    if variational:
        root = torch.randn(num_states, C, P, P, **like)
        draw["precision_tril"] = torch.linalg.cholesky(root @ root.mT + torch.eye(P, device=root.device))
    return draw


def made(name: str, sizes=(3,), device="cpu", **options) -> SequencePosterior:
    model = MODELS[name].resolve(X[:-1].to(device))
    generator = torch.Generator(device).manual_seed(3)
    draws = [made_draw(model, num_states, generator, **options) for num_states in sizes]
    return SequencePosterior(model, Gibbs(), structure_of(model).stack(draws), [len(draws)], NOTHING_TRACED)


def emission_of(posterior: SequencePosterior, draw: int, row: Tensor, state: int, *, discriminative: bool) -> float:
    """log p(x | state) from the definitions; the state K is any that is not yet seen."""
    if row.isnan().any():
        return 0.0
    model, samples, rows = posterior.model, posterior.samples, row.unsqueeze(0)
    if state == samples["hyperparameters"].shape[1]:
        return float(model.likelihood.log_predictive(rows, model.likelihood.prior().unsqueeze(0)))
    value = float(model.likelihood.log_predictive(rows, samples["hyperparameters"][draw, state].unsqueeze(0)))
    if discriminative and model.repels:
        feature = model.features(rows)[0]
        score, one = feature @ samples["weights"][draw, state, :, 0], feature.new_tensor(1.0)
        if "precision_tril" in samples:
            tril = samples["precision_tril"][draw, state, 0]
            variance = feature @ torch.linalg.inv(tril @ tril.T) @ feature
            sides = [model.loss.expected_log_factor(score, variance, sign * one) for sign in (1, -1)]
        else:
            sides = [model.loss.log_factor(score, sign * one) for sign in (1, -1)]
        value += float(sides[0] - sides[1])
    return value


def paths_of(
    posterior: SequencePosterior, draw: int, rows: Tensor, *, discriminative: bool = False, unseen: bool = False
) -> dict[tuple[int, ...], float]:
    """The log weight of every path of one sequence."""
    start, steps = posterior.samples["log_start"][draw], posterior.samples["log_transitions"][draw]
    num_states = len(steps) + unseen
    if unseen:
        steps = torch.cat([steps, posterior.samples["log_unseen_row"][draw].unsqueeze(0)])
    table = [
        [emission_of(posterior, draw, row, k, discriminative=discriminative) for k in range(num_states)] for row in rows
    ]
    weights = {}
    for path in itertools.product(range(num_states), repeat=len(rows)):
        moves = [start[path[0]], *(steps[j, k] for j, k in itertools.pairwise(path))]
        weights[path] = float(sum(moves)) + sum(row[k] for row, k in zip(table, path, strict=True))
    return weights


def marginals(weights: dict[tuple[int, ...], float], num_states: int, t: int) -> Tensor:
    """p(z_t = k) [K]."""
    log_weights = torch.tensor(list(weights.values()), dtype=torch.float64)
    states = torch.tensor([path[t] for path in weights])
    return torch.zeros(num_states, dtype=torch.float64).index_add(0, states, log_weights.softmax(0))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("variational", [False, True])
@pytest.mark.parametrize(
    ("name", "discriminative"),
    [(name, flag) for name in MODELS for flag in (False, True) if name != "IHMM" or not flag],
)
def test_states_are_those_of_enumeration(name: str, variational: bool, discriminative: bool, device) -> None:
    posterior = made(name, (4, 3), device, variational=variational)
    posterior.representative = 1
    for site in ("log_mixture", "log_start", "log_transitions"):  # padded by a state that nothing enters
        assert (posterior.samples[site][1, ..., 3] == -torch.inf).all()
        assert (posterior.samples[site][1, ..., [0, 1, 2, 4]] > -torch.inf).all()
    inputs, options = X.to(device), {"discriminative": discriminative}
    path, smoothed, filtered, after = (
        getattr(posterior, method)(inputs, LENGTHS, **options).cpu()
        for method in ("assign", "smooth", "filter", "predict_state")
    )
    assert after.shape == (3, 5)
    begin = 0
    for index, length in enumerate(LENGTHS):
        rows = inputs[begin : begin + length]
        whole = paths_of(posterior, 1, rows, **options)
        assert tuple(path[begin : begin + length].tolist()) == max(whole, key=whole.get)
        for t in range(length):
            torch.testing.assert_close(smoothed[begin + t], marginals(whole, 4, t))
            part = marginals(paths_of(posterior, 1, rows[: t + 1], **options), 4, t)
            torch.testing.assert_close(filtered[begin + t], part)
        torch.testing.assert_close(after[index], part @ posterior.samples["log_transitions"][1].exp().cpu())
        begin += length


def test_hyperplanes_count_unless_told_otherwise() -> None:
    posterior, plain = made("DIH-S"), made("IHMM")
    for method in ("assign", "smooth", "filter", "predict_state"):
        by_default, with_them, without = (
            getattr(posterior, method)(X, LENGTHS, discriminative=flag) for flag in (None, True, False)
        )
        assert torch.equal(by_default, with_them)
        if method != "assign":
            assert not torch.allclose(by_default, without)
        with pytest.raises(ValueError, match="no hyperplanes that separate them"):
            getattr(plain, method)(X, LENGTHS, discriminative=True)


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("name", ["IHMM", "DIH-S"])
def test_density_is_the_mean_over_draws_of_a_sum_over_paths(name: str, truncated: bool, device) -> None:
    """Draws of two and three states: padding adds no path. A state not yet seen is one more."""
    posterior = made(name, (2, 3, 3), device, truncated=truncated)
    found = posterior.log_predictive_density(X.to(device), LENGTHS)
    begin = 0
    for index, length in enumerate(LENGTHS):
        rows = X[begin : begin + length].to(device)
        each = [list(paths_of(posterior, draw, rows, unseen=True).values()) for draw in range(3)]
        expected = torch.tensor(each, dtype=torch.float64).logsumexp(1).exp().mean().log()
        torch.testing.assert_close(found[index].cpu(), expected)
        begin += length


@pytest.mark.parametrize("truncated", [False, True])
def test_density_integrates_to_one(truncated: bool) -> None:
    """Over all sequences of two steps of one column, by the trapezoid rule."""
    family = SphericalGaussian(loc=0.0, variance=0.4, prior_variance=1.0)
    inputs = torch.tensor([[-1.0], [0.5], [0.7]], dtype=torch.float64)
    posterior = Gibbs(num_samples=4, num_warmup=4, scan="blocked" if truncated else "direct", init="random").fit(
        IHMM(family, truncation=6), inputs
    )
    assert bool((posterior.samples["log_start"][:, -1] == -torch.inf).all()) is truncated
    nodes = torch.linspace(-9, 9, 121, dtype=torch.float64)
    pairs = torch.cartesian_prod(nodes, nodes).reshape(-1, 1)
    density = posterior.log_predictive_density(pairs, [2] * 121**2).exp()
    assert float(density.sum()) * float(nodes[1] - nodes[0]) ** 2 == pytest.approx(1.0, abs=1e-9)


# -- simulation --------------------------------------------------------------------------------------------------------


def test_simulated_states_follow_the_expected_rows(device) -> None:
    posterior = made("IHMM", (2, 3), device)
    posterior.representative = 1
    rows, states = posterior.simulate(4, num_sequences=20_000, seed=1)
    assert rows.shape == (80_000, 2)
    paths = states.view(20_000, 4)
    start, steps = (posterior.samples[name][1, ..., :-1].softmax(-1) for name in ("log_start", "log_transitions"))
    expected = start
    for t in range(4):
        found = torch.bincount(paths[:, t], minlength=3) / 20_000
        assert ((found - expected).abs() < 5 * (expected * (1 - expected) / 20_000).sqrt()).all()
        expected = expected @ steps
    came = paths[:, 1:][paths[:, :-1] == 0]
    found = torch.bincount(came, minlength=3) / len(came)
    assert ((found - steps[0]).abs() < 5 * (steps[0] * (1 - steps[0]) / len(came)).sqrt()).all()


@pytest.mark.parametrize("truncated", [False, True])
def test_rows_of_new_sequences_have_the_law_of_each_step(truncated: bool) -> None:
    """First moments of the third row of two, and of its state: sums over paths of the predictive moments of states."""
    posterior = made("IHMM", (2, 3), truncated=truncated)
    rows, y, states = posterior.sample(3, num_sequences=40_000, generator=torch.Generator().manual_seed(1))
    assert y is None
    third, own = rows.view(-1, 3, 2)[:, 2], states.view(-1, 3)[:, 2]
    shares, mean = [], torch.zeros(2, dtype=torch.float64)
    reference = int(posterior.samples["assignments"][posterior.representative].max()) + 1
    by_label = torch.zeros(reference + 1, dtype=torch.float64)
    for index in range(2):
        draw, family = posterior.draw(index), posterior.model.likelihood
        last = draw.get("log_unseen_row", draw["log_start"]).unsqueeze(0)
        moves = torch.cat([draw["log_transitions"], last]).softmax(1)
        shares = draw["log_start"].softmax(0) @ moves @ moves / 2
        chi = torch.cat([draw["hyperparameters"], family.prior().unsqueeze(0)])
        nodes = torch.linspace(-400, 400, 400_001, dtype=torch.float64)
        for column in range(2):
            inputs = torch.zeros(len(nodes), 2, dtype=torch.float64)
            inputs[:, column] = nodes
            density = family.log_predictive(inputs, chi).softmax(0)  # columns are independent
            mean[column] += shares @ (density.T @ nodes.sin())
        by_label.index_add_(0, posterior.labels_of(draw), shares)
    gaps = torch.cat([third.sin() - mean, torch.nn.functional.one_hot(own, len(by_label)) - by_label], 1)
    assert (gaps.mean(0).abs() <= 5 * gaps.std(0) / 200 + 1e-12).all()


def test_a_sequence_that_nobody_observed_is_no_evidence() -> None:
    posterior, nothing = made("DIH-S", (2, 3)), torch.full((4, X.shape[1]), NAN, dtype=torch.float64)
    assert float(posterior.log_predictive_density(nothing)) == pytest.approx(0.0, abs=1e-12)
    start = posterior.samples["log_start"][posterior.representative, :-1].exp()
    torch.testing.assert_close(posterior.filter(nothing[:1])[0], start / start.sum())
    assert len(posterior.assign(nothing)) == 4


def test_states_not_yet_seen_are_left_by_the_base_weights() -> None:
    """All sequences start alike, yet a step after an outlier goes to the states by their share of all moves."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.tensor([[0.0], [8.0], [16.0]], dtype=torch.float64)
    rows = centers.repeat_interleave(5, 0).repeat(20, 1)
    rows = rows + torch.randn(rows.shape, generator=generator, dtype=torch.float64)
    posterior = Gibbs(num_samples=20, num_warmup=30).fit(
        IHMM(prior=HierarchicalDirichletProcess(stickiness=0.2)), rows, lengths=[15] * 20
    )
    assert posterior.num_components == 3
    unseen_rows, bases = posterior.samples["log_unseen_row"].exp(), posterior.samples["log_start"].exp()
    torch.testing.assert_close(unseen_rows.sum(1), torch.ones(20, dtype=torch.float64))
    assert (unseen_rows[:, -1] > 0.2).all()  # it may stay where it is
    assert bases[:, :3].max(1).values.min() > 0.9
    assert unseen_rows[:, :3].max(1).values.mean() < 0.6


@pytest.mark.one_in(2)
@pytest.mark.parametrize("model", [IHMM(), DIH(loss=Hinge(0.3)), DIH(loss=Logistic())], ids=["IHMM", "DIH-S", "DIH-L"])
def test_small_variance_decodes_by_its_objective(model) -> None:
    generator, now, states = torch.Generator().manual_seed(4), 0, []
    for _ in range(200):
        states.append(now)
        now = (now + int(torch.rand((), generator=generator) < 0.2)) % 3
    centers = torch.tensor([[0.0, 0.0], [2.5, 0.0], [0.0, 2.5]], dtype=torch.float64)
    rows = centers[torch.tensor(states)] + torch.randn(200, 2, generator=generator, dtype=torch.float64)
    posterior = SmallVariance().fit(model, rows, lengths=[120, 80])
    assert torch.equal(posterior.assign(rows, [120, 80]), posterior.partition())


def test_simulated_rows_are_of_their_states() -> None:
    """Over many calls, each with parameters of its own, rows have the mean and variance of the predictive."""
    posterior = made("IHMM", (2,))
    likelihood, chi = posterior.model.likelihood, posterior.samples["hyperparameters"][0]
    nodes = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    grid = torch.stack([nodes, torch.zeros_like(nodes)], 1)
    mass = likelihood.log_predictive(grid, chi).softmax(0)
    mean = mass.T @ nodes
    deviation = (mass.T @ nodes.square() - mean.square()).sqrt()
    first = [posterior.simulate(1, seed=seed) for seed in range(3000)]
    values = torch.cat([rows[:, 0] for rows, _ in first])
    states = torch.cat([states for _, states in first])
    for k in range(2):
        own = values[states == k]
        assert abs(float(own.mean() - mean[k])) < 5 * float(deviation[k]) / len(own) ** 0.5
        assert abs(float(own.std() / deviation[k]) - 1) < 5 / (2 * len(own)) ** 0.5


def test_simulation_goes_on_from_a_sequence() -> None:
    posterior = made("IHMM")
    given = X[:3]
    rows, states = posterior.simulate(1, num_sequences=20_000, seed=2, given=given.numpy())
    assert isinstance(rows, np.ndarray)
    expected = posterior.predict_state(given)[0, :-1]
    expected = expected / expected.sum()
    start = posterior.samples["log_start"][0, :-1].softmax(0)
    assert (expected - start).abs().max() > 0.1
    found = torch.from_numpy(np.bincount(states, minlength=3) / 20_000)
    assert ((found - expected).abs() < 5 * (expected * (1 - expected) / 20_000).sqrt()).all()


def test_a_seed_gives_the_same_simulation() -> None:
    posterior = made("IHMM")
    one, same, other = (posterior.simulate(20, num_sequences=2, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(one[0], same[0])
    assert not torch.equal(one[0], other[0])
    for options, message in [({"num_steps": 0}, "num_steps is 0"), ({"num_sequences": -1}, "num_sequences is -1")]:
        with pytest.raises(ValueError, match=message):
            posterior.simulate(**({"num_steps": 2} | options))


# -- arrays, files, labels ---------------------------------------------------------------------------------------------

METHODS = ("assign", "smooth", "filter", "predict_state", "log_predictive_density")


@pytest.mark.parametrize("method", METHODS)
def test_arrays_come_back_in_the_kind_that_was_given(method: str) -> None:
    posterior = made("DIH-S", (2, 3))
    given, returned = (getattr(posterior, method)(rows, LENGTHS) for rows in (X, X.numpy()))
    assert isinstance(returned, np.ndarray)
    np.testing.assert_array_equal(returned, given.numpy())


@pytest.mark.parametrize("method", METHODS)
def test_bad_sequences_are_refused(method: str) -> None:
    posterior, half = made("IHMM"), X.clone()
    half[0, 1] = NAN
    for rows, lengths, message in [
        (X[:, :1], None, "X has 1 features"),
        (X, [3, 1], "lengths add up to 4, but X has 6 rows"),
        (X, [3, 0, 3], "at least 1"),
        (X.float(), None, r"X\.to\(torch\.float64\)"),
        (half, None, "some values missing"),
    ]:
        with pytest.raises(ValueError, match=message):
            getattr(posterior, method)(rows, lengths)


def test_states_and_clusters_are_no_labels() -> None:
    rows, methods = X[:-1], ("predict", "predict_proba", "decision_function")
    for model in (DPM(), DDPM(loss=Hinge()), DDPM(loss=Logistic())):
        posterior = SVI(num_steps=3).fit(model, rows)
        for method in methods:
            with pytest.raises(ValueError, match=r"use assign\(X\)"):
                getattr(posterior, method)(rows)
    for method in (*methods, "assign_proba"):  # of states over time it is `smooth`
        assert not hasattr(SequencePosterior, method)


@pytest.mark.filterwarnings("default")
def test_arviz_gets_the_top_concentration() -> None:
    pytest.importorskip("arviz")
    groups = made("IHMM", (2, 3, 3)).to_arviz()
    assert groups["posterior"]["num_components"].values.tolist() == [[2, 3, 3]]
    assert groups["posterior"]["top_concentration"].values.tolist() == [[2.0, 2.0, 2.0]]


# -- draws of several sizes, and their labels --------------------------------------------------------------------------


def test_responsibilities_are_padded_too() -> None:
    draws = [{"log_mixture": torch.zeros(K + 1), "responsibilities": torch.full((5, K), 1 / K)} for K in (2, 3)]
    samples = structure_of(DPM()).stack(draws)
    assert torch.equal(samples["responsibilities"][0], torch.tensor([0.5, 0.5, 0.0]).expand(5, 3))


def test_aligned_labels_agree_with_the_representative_draw() -> None:
    generator = torch.Generator().manual_seed(0)
    reference = torch.randint(4, (50,), generator=generator)
    posterior = made("IHMM", (3, 3, 3))
    posterior.samples["assignments"] = torch.stack([torch.tensor([2, 0, 3, 1])[reference], reference, reference])
    assert posterior.aligned().dtype == torch.int8
    assert torch.equal(posterior.aligned(), posterior.partition().expand(3, 50))
    for _ in range(5):
        noisy = torch.randint(3, (50,), generator=generator)
        best = max((torch.tensor(names)[noisy] == reference).sum() for names in itertools.permutations(range(4), 3))
        assert (align(noisy, reference) == reference).sum() == best
    finer = torch.arange(8).repeat(7)[:50]
    labels = align(finer, reference)
    assert len(torch.unique(labels)) == 8
    assert pair_f1(labels, finer) == 1.0


def test_aligned_draws_of_a_mixture() -> None:
    rows = torch.cat([X[:-1], X[:-1] + 20])
    posterior = Gibbs(num_samples=20, num_warmup=5, scan="slice").fit(DPM(), rows)
    aligned = posterior.aligned()
    for draw, labels in zip(posterior.samples["assignments"], aligned, strict=True):
        assert torch.equal(draw.unsqueeze(0) == draw.unsqueeze(1), labels.unsqueeze(0) == labels.unsqueeze(1))
        assert (labels == posterior.partition()).sum() >= (draw == posterior.partition()).sum()


# -- mixtures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [DPM(), DDPM(loss=Hinge(0.5))], ids=["DPM", "DDPM"])
@pytest.mark.parametrize("scan", ["slice", "blocked"])
def test_density_of_a_mixture_integrates_to_one(model, scan: str) -> None:
    inputs = torch.tensor([[-1.0], [0.5], [0.7], [2.5]], dtype=torch.float64)
    family = SphericalGaussian(loc=0.0, variance=0.4, prior_variance=1.0)
    posterior = Gibbs(num_samples=6, num_warmup=4, scan=scan, num_generative=2).fit(
        model.replace(likelihood=family, truncation=30), inputs
    )
    nodes = torch.linspace(-12, 12, 2001, dtype=torch.float64).unsqueeze(1)
    density = posterior.log_predictive_density(nodes).exp()
    assert float(density.sum()) * 0.012 == pytest.approx(1.0, abs=1e-9)
    each = []
    for weights, chi in zip(posterior.samples["log_mixture"], posterior.samples["hyperparameters"], strict=True):
        chi = torch.cat([chi, posterior.model.likelihood.prior().unsqueeze(0)])
        each.append((weights.exp() * posterior.model.likelihood.log_predictive(nodes[900:910], chi).exp()).sum(1))
    torch.testing.assert_close(density[900:910], torch.stack(each).mean(0))


@pytest.mark.parametrize("backend", [Gibbs(num_samples=5, num_warmup=5, scan="blocked"), SVI(num_steps=10)])
@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=["hinge", "logistic"])
def test_clusters_of_new_points_with_and_without_hyperplanes(backend, loss) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    model = DDPM(SphericalGaussian(), loss, weight_scale=3.0, truncation=6)
    posterior = backend.fit(model, rows)
    new = 2 * torch.randn(200, 2, generator=generator, dtype=torch.float64)
    samples, draw, resolved = posterior.samples, posterior.representative, posterior.model
    log_weights = resolved.likelihood.log_predictive(new, samples["hyperparameters"][draw])
    log_weights = log_weights + samples["log_mixture"][draw, :-1]
    assert torch.equal(posterior.assign(new, discriminative=False), log_weights.argmax(1))
    scores = resolved.features(new) @ samples["weights"][draw, :, :, 0].T
    variance = torch.zeros_like(scores)
    if "precision_tril" in samples:
        tril = samples["precision_tril"][draw, :, 0]
        covariance, features = torch.linalg.inv(tril @ tril.mT), resolved.features(new)
        variance = torch.einsum("np,kpq,nq->nk", features, covariance, features)
        sides = [loss.expected_log_factor(scores, variance, sign * torch.ones_like(scores)) for sign in (1, -1)]
    else:
        sides = [loss.log_factor(scores, sign * torch.ones_like(scores)) for sign in (1, -1)]
    both = log_weights + sides[0] - sides[1]
    assert torch.equal(posterior.assign(new), both.argmax(1))
    assert torch.equal(posterior.assign(new, discriminative=True), both.argmax(1))
    assert not torch.equal(both.argmax(1), log_weights.argmax(1))


def test_components_that_do_not_repel_have_no_hyperplanes_to_ask() -> None:
    for model, labels in ((DPM(), None), (InfiniteSVM(), [0, 1, 0, 1, 1])):
        posterior = SVI(num_steps=2).fit(model, X[:-1].numpy(), labels)
        with pytest.raises(ValueError, match="no hyperplanes that separate them"):
            posterior.assign(X[:-1].numpy(), discriminative=True)


def test_centres_have_no_density() -> None:
    posterior = SmallVariance().fit(DPM(), X[:-1])
    with pytest.raises(NotImplementedError, match="Fit with Gibbs or SVI"):
        posterior.log_predictive_density(X[:-1])


# -- fits --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def moves() -> tuple[Tensor, list[int], Tensor]:
    """Three states that take turns, 1 -> 2 -> 3, in sequences of unequal lengths; rows, lengths, states."""
    generator, lengths = torch.Generator().manual_seed(0), [70, 50, 60]
    states, now = [], 0
    for _ in range(sum(lengths)):
        states.append(now)
        now = (now + int(torch.rand((), generator=generator) < 0.2)) % 3
    truth = torch.tensor(states)
    centers = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    rows = centers[truth] + torch.randn(len(truth), 2, generator=generator, dtype=torch.float64)
    rows[75] = NAN
    return rows, lengths, truth


BACKENDS = {
    "direct": Gibbs(num_samples=10, num_warmup=20, scan="direct", seed=1),
    "beam": Gibbs(num_samples=10, num_warmup=20, scan="beam"),
    "blocked": Gibbs(num_samples=10, num_warmup=20, scan="blocked"),
    "SVI": SVI(num_steps=15),
}


FITTED = {"IHMM": IHMM(), "DIH-S": DIH(loss=Hinge(0.3)), "DIH-L": DIH(loss=Logistic())}


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FITTED)
def test_fitted_models_decode_what_they_saw_and_foresee_what_comes(name: str, backend: str, moves) -> None:
    rows, lengths, truth = moves
    posterior = BACKENDS[backend].fit(FITTED[name].replace(truncation=6), rows, lengths=lengths)
    assert type(posterior) is SequencePosterior
    for discriminative in (False, posterior.model.repels):
        options = {"discriminative": discriminative}
        path = posterior.assign(rows, lengths, **options)
        assert (align(path, truth) == truth).double().mean() > 0.93
        smoothed, filtered = posterior.smooth(rows, lengths, **options), posterior.filter(rows, lengths, **options)
        torch.testing.assert_close(smoothed.sum(1), torch.ones(180, dtype=torch.float64))
        assert (smoothed.argmax(1) == path).double().mean() > 0.97
        last = torch.tensor(lengths).cumsum(0) - 1
        torch.testing.assert_close(filtered[last], smoothed[last])
    after = posterior.predict_state(rows, lengths)
    torch.testing.assert_close(after.sum(1), torch.ones(3, dtype=torch.float64))
    assert torch.equal(after.argmax(1), path[last])  # each state lasts five steps
    forwards, backwards = (posterior.log_predictive_density(steps) for steps in (rows, rows.flip(0)))
    assert float(forwards - backwards) > 10  # 1 -> 2 -> 3, and not back
    drawn, states = posterior.simulate(300, seed=1)
    again = posterior.assign(drawn)
    assert (again == states).double().mean() > 0.9


@pytest.mark.parametrize("backend", [Gibbs(num_samples=3, num_warmup=3), SVI(num_steps=5)], ids=["Gibbs", "SVI"])
def test_single_precision_stays_single(backend, moves) -> None:
    rows, lengths, _ = moves
    posterior = backend.fit(DIH(loss=Hinge(), truncation=6), rows.float(), lengths=lengths)
    for method in METHODS[1:]:
        assert getattr(posterior, method)(rows.float(), lengths).dtype == torch.float32
    assert posterior.simulate(3)[0].dtype == torch.float32


# -- an interrupt before the first draw --------------------------------------------------------------------------------


class Impatient(DiagonalGaussian):
    """Ctrl-C is pressed at the given number of draws of parameters from now."""

    left = math.inf

    def draw(self, chi, generator):
        Impatient.left -= 1
        if Impatient.left == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return super().draw(chi, generator)


@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize("model", [IHMM(Impatient()), DDPM(Impatient())], ids=["IHMM", "DDPM"])
def test_ctrl_c_in_the_warm_up_returns_what_it_reached(model, steps: int, moves, tmp_path: Path) -> None:
    rows = moves[0][:60]
    backend, path = Gibbs(num_samples=4, num_warmup=30, scan="blocked", num_generative=0), tmp_path / "chain.pt"
    Impatient.left = steps
    with pytest.warns(FitInterrupted, match="the warm-up had reached, which is no draw from the posterior"):
        posterior = backend.fit(model, rows, checkpoint=path)
    assert posterior.num_draws == [1]
    assert posterior.trace.values.shape[1] < 30
    assert posterior.assign(rows).shape == (60,)
    assert f"{posterior.num_components} components" in repr(posterior)
    Impatient.left = math.inf
    resumed, whole = (backend.fit(model, rows, resume=file) for file in (path, None))
    assert torch.equal(resumed.samples["assignments"], whole.samples["assignments"])


def test_a_chain_without_a_step_has_no_final_value() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, NAN], [NAN, NAN]], dtype=torch.float64)
    assert Trace("ELBO", values, values).final[:2].tolist() == [2.0, 3.0]
    assert Trace("ELBO", values, values).final[2].isnan()
    assert Trace("ELBO", values[:, :0], values[:, :0]).final.isnan().all()


def test_small_variance_takes_the_path_of_least_cost() -> None:
    """scale |x - mu|^2 / 2 in coordinates of unit variance, plus what moves cost; the first is from the last row."""
    model, generator = MODELS["IHMM"].resolve(X[:-1]), torch.Generator().manual_seed(0)
    for scale in (0.2, 1.0, 6.0):
        draw = made_draw(model, 3, generator)
        centers, edges = (torch.randn(3 + n, 2 + 2 * n, generator=generator, dtype=torch.float64) for n in (0, 1))
        del draw["hyperparameters"], draw["log_unseen_row"]
        draw |= {"centers": centers, "log_edges": 3 * edges, "scale": centers.new_tensor(scale)}
        stacked = structure_of(model).stack([draw])
        posterior = SequencePosterior(model, SmallVariance(), stacked, [1], NOTHING_TRACED)
        found = posterior.assign(X, LENGTHS).split(LENGTHS)
        for path, rows in zip(found, X.split(LENGTHS), strict=True):
            costs = (scale * torch.cdist(rows / 0.4**0.5, centers).square() / 2).nan_to_num(0.0)
            totals = {
                states: float(sum(costs[t, k] - 3 * edges[(3, *states)[t], k] for t, k in enumerate(states)))
                for states in itertools.product(range(3), repeat=len(rows))
            }
            assert tuple(path.tolist()) == min(totals, key=totals.get)
    for method, message in [("log_predictive_density", "have no density"), ("simulate", "do not simulate")]:
        with pytest.raises(NotImplementedError, match=message):
            getattr(posterior, method)(X if method != "simulate" else 2)
