"""The discriminative DP mixture: model and features, its Gibbs kernels against joints, quadrature and enumeration."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pyro.poutine as poutine
import pytest
import torch
from exact_starts import PartitionStarts
from setups import batch_errors, first_appearance, label_law
from torch import Tensor

from regbayes.inference import (
    SVI,
    ClustersEmptied,
    Gibbs,
    PartitionPosterior,
    Posterior,
    SmallVariance,
    Trace,
    structure_of,
)
from regbayes.inference.gibbs import hyperplanes, partition
from regbayes.inference.gibbs.moves.tempering import Tempered
from regbayes.inference.gibbs.partition import draw as summarize
from regbayes.inference.gibbs.partition import draw_weights
from regbayes.inference.gibbs.partition import log_joint as state_log_joint
from regbayes.inference.gibbs.scans import collapsed
from regbayes.inference.gibbs.scans import slice as slice_scan
from regbayes.inference.gibbs.scans.components import Components, assignment_logits
from regbayes.inference.gibbs.scans.founders import Reserved
from regbayes.inference.gibbs.scans.slots import visit_all, visitor_of
from regbayes.inference.gibbs.state import PartitionState
from regbayes.inference.posterior.partition_losses import pair_f1
from regbayes.inference.running.emptied import num_held, one_is_left
from regbayes.models import (
    DDPM,
    DIH,
    DPM,
    DiagonalGaussian,
    DirichletProcess,
    EpsilonInsensitive,
    Hinge,
    Logistic,
    MultinomialDirichlet,
    PitmanYor,
    PrincipalDirections,
    SphericalGaussian,
    SquaredHinge,
)
from regbayes.models.priors.sticks import log_stick_weights
from regbayes.testing import check_model, partition_posterior
from regbayes.testing.enumeration import log_evidence, partition_log_weights

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn((12, 3), generator=GENERATOR, dtype=torch.float64)
COUNTS = torch.poisson(torch.full((12, 3), 4.0, dtype=torch.float64), generator=GENERATOR)

TINY = torch.tensor([[-1.2], [-0.9], [0.7], [1.4]], dtype=torch.float64)
FAMILY = SphericalGaussian(loc=0.0, variance=0.7, prior_variance=1.0)
LOSSES = {"hinge": Hinge(0.5), "logistic": Logistic()}
THROUGH_MEAN = PrincipalDirections(intercept=0.0)
PROPORTIONS = PrincipalDirections(proportions=True)
LEARNED = DirichletProcess(concentration_prior=(2.0, 1.0))


class AnotherGaussian(SphericalGaussian):
    """A family of a user: the compiled scan does not know it."""


def tiny(loss: str = "hinge", **options) -> DDPM:
    return DDPM(**({"likelihood": FAMILY, "loss": LOSSES[loss], "weight_scale": 2.0, "truncation": 3} | options))


def start(model: DDPM, inputs: Tensor, labels: Tensor | str = "one", *, truncated: bool = False):
    """A state and what else the kernels take."""
    generator = torch.Generator().manual_seed(1)
    model = model.resolve(inputs)
    data = model.data(inputs)
    return partition.init(model, data, generator, start=labels, law=label_law(model, truncated)), data, model, generator


deviations = partial(batch_errors, floor=1e-9, num_batches=25)


# -- the model ---------------------------------------------------------------------------------------------------------

MODELS = {
    "hinge": (DDPM(SphericalGaussian(), Hinge(0.8, 1.3), truncation=3), X),
    "hinge without intercept": (DDPM(DiagonalGaussian(), Hinge(), feature_map=THROUGH_MEAN, truncation=3), X),
    "logistic": (
        DDPM(DiagonalGaussian(), Logistic(), PitmanYor(), PrincipalDirections(intercept=2.0), 3.0, truncation=4),
        X,
    ),
    "few directions": (
        DDPM(
            SphericalGaussian(),
            Logistic(),
            feature_map=PrincipalDirections(num_directions=2, intercept=0.0),
            truncation=3,
        ),
        X,
    ),
    "concentration": (DDPM(DiagonalGaussian(), prior=LEARNED, truncation=3), X),
    "counts": (DDPM(MultinomialDirichlet(), feature_map=PROPORTIONS, truncation=3), COUNTS),
    "counts without intercept": (
        DDPM(MultinomialDirichlet(), Logistic(), feature_map=PROPORTIONS.replace(intercept=0.0), truncation=3),
        COUNTS,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_program_is_the_kernels_density(name: str) -> None:
    check_model(*MODELS[name])


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_every_hyperplane_has_a_factor_for_every_point(loss, device: torch.device) -> None:
    """log_margin of the own component + log_rejection is the sum over all pairs, with y = -1 but for the own one."""
    scores = 3 * torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).to(device)
    own = torch.tensor([0, 3, 1, 1, 2, 0, 3], device=device)
    sides = 2.0 * torch.nn.functional.one_hot(own, 4) - 1
    model = DDPM(loss=loss)
    margin = model.log_margin(scores.gather(1, own.unsqueeze(1)), scores.new_ones(7, 1))
    found = margin + model.log_rejection(scores)
    torch.testing.assert_close(found, loss.log_factor(scores, sides).sum(1))


def test_check_model_notices_a_program_without_the_other_points() -> None:
    class Forgetful(DDPM):
        def program(self, data):  # rejections are dropped in the program alone
            with poutine.block(hide=["rejection"]):
                super().program(data)

    with pytest.raises(AssertionError, match="the points' part of the program differs"):
        check_model(Forgetful(truncation=3), X)


@pytest.mark.parametrize("scale", [1.0, 1e8, 1e-8])
@pytest.mark.parametrize("most", [50, 2])
def test_hyperplanes_see_rows_of_mean_square_length_one(scale: float, most: int) -> None:
    inputs = scale * (X * torch.tensor([1.0, 5.0, 2.0]) + 4)
    model = DDPM(feature_map=PrincipalDirections(num_directions=most, intercept=1.5)).resolve(inputs)
    features = model.features(inputs)
    assert features.shape == (12, min(3, most) + 1)
    assert (features[:, -1] == 1.5).all()
    projected = features[:, :-1]
    torch.testing.assert_close(projected.mean(0), torch.zeros_like(projected[0]), atol=1e-7, rtol=0)
    torch.testing.assert_close(projected.square().sum(1).mean(), projected.new_ones(()))
    if most == 2:  # the leading principal axes, in order
        covariance = projected.T @ projected
        spectrum = torch.linalg.eigvalsh(torch.cov(inputs.T)).flip(0)
        torch.testing.assert_close(covariance.diagonal() / covariance.trace(), spectrum[:2] / spectrum[:2].sum())
        assert covariance[0, 1].abs() < 1e-7 * covariance.trace()
    else:  # no rotation
        centred = inputs - inputs.mean(0)
        torch.testing.assert_close(projected, centred * (projected[0, 0] / centred[0, 0]))


@pytest.mark.filterwarnings("ignore::regbayes.models.ConstantColumnWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_columns_do_no_harm(dtype: torch.dtype) -> None:
    inputs = torch.cat([X, torch.full((12, 1), 1e3, dtype=X.dtype)], 1).to(dtype)
    with_constant = DDPM(feature_map=THROUGH_MEAN).resolve(inputs).features(inputs)
    torch.testing.assert_close(with_constant[:, :3], DDPM(feature_map=THROUGH_MEAN).resolve(X).features(X).to(dtype))
    assert (with_constant[:, 3] == 0).all()
    nothing = torch.full((12, 2), 0.1, dtype=dtype)
    likelihood = SphericalGaussian(loc=0.0, variance=1.0, prior_variance=1.0)
    features = DDPM(likelihood).resolve(nothing).features(nothing)
    assert features.abs()[:, :2].max() <= torch.finfo(dtype).eps
    assert (features[:, 2] == 1).all()


def test_hyperplanes_see_proportions_of_counts() -> None:
    model = DDPM(MultinomialDirichlet(), feature_map=PROPORTIONS).resolve(COUNTS)
    more = torch.cat([3 * COUNTS[:1], torch.zeros(1, 3, dtype=COUNTS.dtype)])
    torch.testing.assert_close(model.features(more)[0], model.features(COUNTS)[0])
    assert torch.isfinite(model.features(more)).all()


def test_features_as_given_are_kept() -> None:
    loc, axes = torch.tensor([1.0, 2.0, 3.0], dtype=X.dtype), torch.tensor([[1.0], [0.0], [2.0]], dtype=X.dtype)
    model = DDPM(feature_map=PrincipalDirections(loc=loc, axes=axes, intercept=0.0)).resolve(X)
    torch.testing.assert_close(model.features(X), (X - loc) @ axes)
    with pytest.raises(ValueError, match="not resolved"):
        DDPM().features(X)


# -- enumeration -------------------------------------------------------------------------------------------------------


def test_enumeration_of_two_opposite_points_is_closed_form() -> None:
    """Points a and -a: phi(+1 | f) phi(-1 | -f) is one hinge twice as strong, phi(+1 | f) phi(+1 | -f) is
    exp(-4 c l) times an epsilon-insensitive factor of the target 0."""
    inputs, strength, margin, alpha = torch.tensor([[-1.0], [1.0]], dtype=torch.float64), 0.7, 1.2, 0.6
    model = tiny(loss="hinge", feature_map=THROUGH_MEAN, prior=DirichletProcess(alpha)).replace(
        loss=Hinge(strength, margin)
    )
    scale, one = inputs.new_full((1,), 2.0), inputs.new_ones(1)
    apart = float(Hinge(2 * strength, margin).log_marginal(scale, one))
    nobody = float(EpsilonInsensitive(strength, margin).log_marginal(scale, 0 * one)) - 4 * strength * margin
    plain = partition_log_weights(DPM(FAMILY, DirichletProcess(alpha)), inputs)
    found = partition_log_weights(model, inputs)
    assert found[0, 0] == pytest.approx(plain[0, 0], abs=1e-5)  # g of both is g of none, by symmetry
    assert found[0, 1] == pytest.approx(plain[0, 1] + 2 * (apart - nobody), abs=1e-5)
    labelled = partition_log_weights(model, inputs, truncation=3)
    bare = partition_log_weights(DPM(FAMILY, DirichletProcess(alpha)), inputs, truncation=3)
    assert labelled[1, 1] == pytest.approx(bare[1, 1] + 3 * nobody, abs=1e-5)
    assert labelled[2, 0] == pytest.approx(bare[2, 0] + 2 * apart + nobody, abs=1e-5)
    assert log_evidence(model, inputs, truncation=3) == pytest.approx(
        float(torch.tensor(list(labelled.values())).double().logsumexp(0)), abs=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_truncated_model_tends_to_the_infinite_one(loss: str) -> None:
    model = tiny(loss)
    infinite, distances = partition_posterior(model, TINY), []
    for truncation in (3, 8):
        merged = dict.fromkeys(infinite, 0.0)
        for labels, probability in partition_posterior(model, TINY, truncation=truncation).items():
            merged[first_appearance(labels)] += probability
        distances.append(total_variation(merged, infinite))
    assert distances[0] > 0.01
    assert distances[1] < 0.005


@pytest.mark.parametrize("loss", LOSSES)
def test_without_weights_it_is_the_plain_mixture(loss: str) -> None:
    plain = partition_posterior(DPM(FAMILY), TINY)
    assert total_variation(partition_posterior(tiny(loss, weight_scale=1e-4), TINY), plain) < 1e-4
    assert total_variation(partition_posterior(tiny(loss), TINY), plain) > 0.1
    assert isinstance(tiny(loss).without_hyperplanes(), DPM)
    assert tiny(loss).without_hyperplanes().likelihood is FAMILY


def total_variation(one: dict, other: dict) -> float:
    return sum(abs(one[labels] - other[labels]) for labels in other) / 2


@pytest.mark.parametrize("truncated", [True, False])
def test_log_joint_integrates_to_the_enumeration(truncated: bool) -> None:
    """The trapezoid rule in the weights of two components; infinite: relative to the law of one without points."""
    inputs, labels = TINY[:3], torch.tensor([0, 1, 0])
    model = tiny("logistic", feature_map=THROUGH_MEAN, truncation=2).resolve(inputs)
    data = model.data(inputs)
    nodes = 2.0 * torch.linspace(-7, 7, 41, dtype=torch.float64)
    log_mass = (-(nodes / 2).square() / 2).log_softmax(0) + model.loss.log_factor(data.features * nodes, -1.0).sum(0)
    log_base = nodes.new_full((41,), math.log(nodes[1] - nodes[0])) if truncated else log_mass.log_softmax(0)
    values, reserved = [], None if truncated else nodes.new_zeros(0, 1, 1)
    for i, one in enumerate(nodes):
        for j, other in enumerate(nodes):
            planes = torch.stack([one, other]).view(2, 1, 1)
            state = PartitionState(labels, planes, model.prior.start(inputs), reserved)
            values.append(
                state_log_joint(state, data, model, law=label_law(model, truncated)) + log_base[i] + log_base[j]
            )
    exact = partition_log_weights(model, inputs, truncation=2 if truncated else None)[0, 1, 0]
    assert float(torch.stack(values).logsumexp(0)) == pytest.approx(exact, abs=1e-6)


# -- conditionals against joints ---------------------------------------------------------------------------------------


def log_joint(labels: Tensor, weights: Tensor, reserved: Tensor, data, model) -> Tensor:
    """log density of (z, hyperplanes with points, the set of those without), relative to G for each hyperplane.

    A set of A draws from G has density A! prod G.
    """
    counts = torch.bincount(labels, minlength=len(weights))
    sums = model.likelihood.summed_statistics(data.X, labels, len(weights))
    scores = (data.features * weights.squeeze(-1)[labels]).sum(1, keepdim=True)
    log_odds = model.loss.log_factor(scores, data.targets) - model.loss.log_factor(scores, -data.targets)
    log_marginal = model.likelihood.log_marginal(model.likelihood.prior() + sums).sum()
    log_partition = model.prior.log_partition(counts, model.prior.start(data.X))
    return log_partition + log_marginal + log_odds.sum() + math.lgamma(len(reserved) + 1)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("num_reserved", [1, 3])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("family", "prior"),
    [
        (SphericalGaussian, DirichletProcess(0.7)),
        (DiagonalGaussian, PitmanYor(0.4, 0.7)),
        (MultinomialDirichlet, DirichletProcess(0.7)),
    ],
)
def test_collapsed_conditional_is_the_joints_given_the_reservoir(family, prior, loss, num_reserved, compiled) -> None:
    inputs = COUNTS if family is MultinomialDirichlet else X
    feature_map = PROPORTIONS if inputs is COUNTS else PrincipalDirections()
    model = DDPM(family(), LOSSES[loss], prior, feature_map, weight_scale=1.7).resolve(inputs)
    data, generator = model.data(inputs), torch.Generator().manual_seed(2)
    labels = torch.tensor([0, 1, 0, 2, 1, 1, 0, 0, 1, 0, 1, 0])  # point 3 is alone
    weights, reserved = (torch.randn(size, 4, 1, generator=generator, dtype=X.dtype) for size in (3, num_reserved))
    state = PartitionState(labels, weights, prior.start(X), reserved)
    for n in (0, 1, 3):
        found = collapsed.assignment_logits(n, state, data, model, compiled=compiled)
        moved, expected, pool = labels.clone(), [], reserved
        if n == 3:
            pool = torch.cat([reserved, weights[2:]])
        for k in range(2 if n == 3 else 3):
            moved[n] = k
            rest = weights[:2] if n == 3 else weights
            expected.append(log_joint(moved, rest, pool, data, model))
        opened = []
        for a in range(len(pool)):
            moved[n] = 2 if n == 3 else 3
            joined = torch.cat([weights[:2] if n == 3 else weights, pool[a : a + 1]])
            left = torch.cat([pool[:a], pool[a + 1 :]])
            opened.append(log_joint(moved, joined, left, data, model))
        if n == 3:  # staying with the hyperplane it has is one of the ways to open a component
            expected.append(opened.pop())
        expected.append(torch.stack(opened).logsumexp(0))
        torch.testing.assert_close(found.log_softmax(0), torch.stack(expected).log_softmax(0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("compiled", [True, False])
def test_without_a_reservoir_no_component_opens(compiled: bool) -> None:
    state, data, model, _ = start(tiny(), TINY, torch.tensor([0, 0, 1, 1]))
    state = replace(state, reservoir=state.reservoir[:0])
    logits = collapsed.assignment_logits(0, state, data, model, compiled=compiled)
    assert torch.isfinite(logits[:2]).all()
    assert logits[2] == -torch.inf


def test_prices_follow_the_reservoir() -> None:
    """After a component opened or closed, a new one weighs what it would in a scan that started there."""
    state, data, model, generator = start(tiny(), TINY, torch.tensor([0, 0, 1, 1]))
    founders, taken = Reserved(state.reservoir[:4], data, model), []
    for what, size in (("open", 3), ("open", 2), ("close", 3), ("both", 3), ("open", 2), ("both", 2), ("close", 3)):
        if what == "open":
            taken.append(founders.found(1, generator))
        elif what == "close":
            founders.receive(*taken.pop(0))
        else:
            weights, gains = (part.clone() for part in taken[0])
            founders.exchange(1, *taken[0], generator)
            places = (founders.reserved == weights).flatten(1).all(1)
            assert int(places.sum()) == 1
            torch.testing.assert_close(founders.gains[:, places.nonzero().squeeze()], gains)
        assert len(founders.reserved) == size
        fresh = Reserved(founders.reserved, data, model)
        torch.testing.assert_close(founders.gains[:, :size], fresh.gains)
        given = model.log_margin(data.features @ taken[0][0], data.targets) if taken else 0.0
        torch.testing.assert_close(given, taken[0][1] if taken else 0.0)
        torch.testing.assert_close(founders.log_alone, fresh.log_alone)


@pytest.mark.parametrize("loss", LOSSES)
def test_blocked_conditional_is_the_programs(loss: str) -> None:
    """The program's log density when z_n alone varies."""
    model = DDPM(DiagonalGaussian(), LOSSES[loss], truncation=4, weight_scale=2.0).resolve(X)
    data = model.data(X)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        trace = poutine.trace(model).get_trace(X)
    latents = {name: trace.nodes[name]["value"] for name in ("sticks", "weights", "assignments")}
    prior = model.likelihood.prior().unsqueeze(0)
    names = model.likelihood.draw(prior, torch.Generator()).keys()
    parameters = {name: trace.nodes[name]["value"] for name in names}
    components = Components(log_stick_weights(latents["sticks"]), parameters, latents["weights"])
    logits = components.log_mixture + assignment_logits(data, components.parameters, components.weights, model)
    for n in (0, 5):
        expected = []
        for k in range(4):
            assignments = latents["assignments"].clone()
            assignments[n] = k
            conditioned = poutine.condition(model, data={**latents, **parameters, "assignments": assignments})
            with torch.random.fork_rng():
                expected.append(poutine.trace(conditioned).get_trace(X).log_prob_sum())
        torch.testing.assert_close(logits[n].log_softmax(0), torch.stack(expected).log_softmax(0))


# -- hyperplanes -------------------------------------------------------------------------------------------------------


def grid(features: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Nodes [G, 2] and log prior mass [G]."""
    axis = scale * torch.linspace(-7, 7, 281, dtype=features.dtype)
    nodes = torch.cartesian_prod(axis, axis)
    return nodes, -(nodes / scale).square().sum(1) / 2


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("loss", [Hinge(1.0), Hinge(0.3, 2.0), Logistic(), SquaredHinge(0.5)], ids=repr)
def test_hyperplanes_given_assignments_are_those_of_quadrature(loss) -> None:
    """Each sees all four points, one without points included."""
    labels = torch.tensor([0, 0, 1, 0])
    state, data, model, generator = start(tiny(loss="hinge").replace(loss=loss), TINY, labels, truncated=True)
    draws = []
    for _ in range(800):
        state = replace(state, weights=draw_weights(state, data, model, generator))
        draws.append(state.weights[..., 0])
    draws = torch.stack(draws[50:])
    nodes, log_prior = grid(data.features, 2.0)
    for k in range(3):
        sides = torch.where(labels == k, 1.0, -1.0).double().unsqueeze(1)
        mass = (log_prior + loss.log_factor(data.features @ nodes.T, sides).sum(0)).softmax(0)
        assert (deviations(draws[:, k], mass @ nodes) < 5).all()
        assert (deviations(draws[:, k].square(), mass @ nodes.square()) < 5).all()


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_reserved_hyperplanes_reject_all_points(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean and second moments of the law of a component without points; a refresh keeps it, and most of them."""
    _, data, model, generator = start(tiny(loss), TINY)
    nodes, log_prior = grid(data.features, 2.0)
    mass = (log_prior + model.loss.log_factor(data.features @ nodes.T, -data.targets).sum(0)).softmax(0)
    reserved = hyperplanes.fill_reservoir(data.features, model, generator, size=4000)
    refreshed = hyperplanes.refresh_reservoir(reserved, data.features, model, generator)
    assert (refreshed != reserved).any(1).sum() == hyperplanes._NUM_REFRESHED
    monkeypatch.setattr(hyperplanes, "_NUM_REFRESHED", 4000)
    again = hyperplanes.refresh_reservoir(reserved, data.features, model, generator)
    for draws in (reserved.squeeze(-1), again.squeeze(-1)):
        assert (deviations(draws, mass @ nodes) < 5).all()
        assert (deviations(draws.square(), mass @ nodes.square()) < 5).all()
        assert deviations(draws.prod(1), mass @ nodes.prod(1)) < 5


def test_a_reservoir_that_components_emptied_is_filled_again() -> None:
    state, data, model, generator = start(tiny(), TINY)
    renew = partial(hyperplanes.renew_reservoir, features=data.features, model=model, generator=generator)
    assert renew(state.reservoir[:3], births="exact", step=0, grows=True).shape == state.reservoir.shape
    assert len(renew(state.reservoir[:30], births="exact", step=0, grows=True)) == 30


def test_a_reservoir_moves_in_every_fourth_sweep() -> None:
    state, data, model, generator = start(tiny(), TINY)
    renew = partial(hyperplanes.renew_reservoir, state.reservoir, data.features, model, generator, grows=False)
    moved = [bool((renew(births="exact", step=step) != state.reservoir).any()) for step in range(9)]
    assert moved == [step % 4 == 0 for step in range(9)]
    assert all((renew(births="prior", step=step) != state.reservoir).all() for step in range(4))


def test_a_reservoir_does_not_grow_after_the_warm_up() -> None:
    state, data, model, generator = start(tiny(), TINY)
    step = partial(partition.sweep, scan="collapsed", num_split_merge=0, num_warmup=5)
    few = replace(state, reservoir=state.reservoir[:3])
    for number, size in ((4, hyperplanes.NUM_RESERVED), (5, 3)):
        moved = step(few, data, model, generator, number)
        assert abs(len(moved.reservoir) - size) <= 1 + len(moved.weights)
        assert number == 4 or len(moved.weights) + len(moved.reservoir) == len(few.weights) + 3


def test_a_scan_that_takes_more_hyperplanes_than_there_are_leaves_as_many() -> None:
    state, data, model, generator = start(tiny(likelihood=FAMILY, prior=PitmanYor(0.8, 5.0)), TINY)
    few = replace(state, reservoir=state.reservoir[:2])
    for _ in range(20):
        few = slice_scan.scan(few, data, model, generator)
        assert len(few.weights) + len(few.reservoir) == max(3, len(few.weights))


def test_draws_from_the_prior_have_its_scale() -> None:
    state, data, model, generator = start(tiny(), TINY)
    draws = torch.cat(
        [hyperplanes.draw_from_prior(state.reservoir, data.features, model, generator) for _ in range(100)]
    ).flatten()
    assert abs(draws.mean()) < 5 * 2 / len(draws) ** 0.5
    assert abs(draws.square().mean() / 4 - 1) < 5 * (2 / len(draws)) ** 0.5


def test_a_point_takes_a_hyperplane_by_the_odds_of_its_score() -> None:
    state, data, model, _ = start(tiny(), TINY)
    reserved = state.reservoir[:3]
    scores = data.features[2] @ reserved.squeeze(-1).T
    log_odds = model.loss.log_factor(scores, 1.0) - model.loss.log_factor(scores, -1.0)
    visits = torch.zeros(3)
    uniforms = (torch.arange(3000, dtype=torch.float64) + 0.5) / 3000
    for uniform in uniforms:
        reservoir = Reserved(reserved, data, model)
        taken, gains = reservoir.take(2, uniform)
        place = int((reserved == taken).flatten(1).all(1).nonzero())
        visits[place] += 1
        left = {*map(float, reserved[:, 0, 0])} - {float(taken[0])}
        assert left == {*map(float, reservoir.reserved[:, 0, 0])}
    torch.testing.assert_close(visits.double() / 3000, log_odds.softmax(0), atol=2e-3, rtol=0)
    reservoir.receive(taken, gains)
    fresh = Reserved(reservoir.reserved, data, model)
    torch.testing.assert_close(reservoir.gains, fresh.gains)
    torch.testing.assert_close(fresh.log_new(2), log_odds.logsumexp(0) - math.log(3))


# -- scans -------------------------------------------------------------------------------------------------------------


def every_hyperplane(state: PartitionState) -> Tensor:
    """All hyperplanes of a state, sorted."""
    hyperplanes = torch.cat([state.weights, state.reservoir]).squeeze(-1)
    return hyperplanes[hyperplanes[:, 0].argsort()]


@pytest.mark.parametrize("family", [FAMILY, AnotherGaussian(loc=0.0, variance=0.7, prior_variance=1.0)])
@pytest.mark.parametrize("scan", [collapsed.scan, slice_scan.scan])
def test_scans_lose_no_hyperplane_and_give_each_component_one(scan, family) -> None:
    state, data, model, generator = start(tiny(likelihood=family, prior=DirichletProcess(2.0)), TINY)
    known, sizes = every_hyperplane(state), set()
    assert len(known) == 1 + hyperplanes.NUM_RESERVED
    for _ in range(60):
        before = state
        state = scan(state, data, model, generator)
        assert torch.equal(every_hyperplane(state), known)
        assert torch.equal(every_hyperplane(before), known)  # a state does not change
        assert sorted(set(state.assignments.tolist())) == list(range(len(state.weights)))
        for k, weights in enumerate(before.weights):  # a component that kept a point kept its hyperplane
            if (state.weights == weights).flatten(1).all(1).any():
                continue
            assert not ((state.assignments == before.assignments) & (before.assignments == k)).all()
        sizes.add(len(state.weights))
    assert len(sizes) > 1


@pytest.mark.parametrize("num_reserved", [2, 50])
def test_scans_keep_scores_with_their_hyperplanes(num_reserved: int) -> None:
    """Where components open and close in compiled code."""
    state, data, model, generator = start(tiny(prior=DirichletProcess(2.0)), TINY)
    state, sizes = replace(state, reservoir=state.reservoir[:num_reserved]), set()
    model = model.replace(loss=Tempered(model.loss, 0.9))
    known = torch.cat([state.weights, state.reservoir])[:, 0, 0].sort().values
    for _ in range(60):
        slots = collapsed.PartitionSlots(state, data, model)
        visit_all(visitor_of(slots, True), generator, shuffle=True)
        state, occupied, size = slots.replaced(state), slots.sizes > 0, len(slots.founders.reserved)
        scores = data.features @ torch.cat([state.weights, state.reservoir]).squeeze(2).T
        margins = torch.cat([slots.log_margin[:, occupied], slots.founders.gains[:, :size]], 1)
        torch.testing.assert_close(margins, model.log_margin(scores.unsqueeze(2), data.targets.unsqueeze(1)))
        assert torch.equal(torch.cat([state.weights, state.reservoir])[:, 0, 0].sort().values, known)
        sizes.add(size)
    assert len(sizes) == 3 if num_reserved == 2 else len(sizes) > 1


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
def test_a_lone_point_takes_a_hyperplane_by_its_gain(compiled: bool) -> None:
    """Its own goes back: one point has each of the four with probability prop. to exp(h)."""
    state, data, model, generator = start(tiny(), TINY)
    data, planes = model.data(TINY[:1]), torch.randn(4, 2, 1, generator=generator, dtype=torch.float64)
    alone = replace(state, assignments=state.assignments[:1], weights=planes[:1], reservoir=planes[1:])
    found = torch.zeros(4, dtype=torch.float64)
    for _ in range(2000):
        slots = collapsed.PartitionSlots(alone, data, model)
        visit_all(visitor_of(slots, compiled), generator, shuffle=True)
        found += (slots.replaced(alone).weights[0, 0, 0] == planes[:, 0, 0]).double()
    law = model.log_margin((data.features @ planes.squeeze(2).T).unsqueeze(2), data.targets.unsqueeze(1))[0].softmax(0)
    assert float(law.max() - law.min()) > 0.1
    assert float(((found - 2000 * law).square() / (2000 * law)).sum()) < 22  # p = 7e-5 of three degrees of freedom


@pytest.fixture
def few_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reservoir of a few, which four points never exhaust: the scans are exact for every size."""
    monkeypatch.setattr(hyperplanes, "NUM_RESERVED", 2)


def starts(model: DDPM, **options: Any) -> PartitionStarts:
    """Sweeps from exact states given TINY."""
    step = partial(partition.sweep, num_split_merge=0, **options)
    model, places = model.replace(feature_map=THROUGH_MEAN), 60 if options["scan"] == "slice" else 6
    return PartitionStarts(model, TINY, step, truncated=options["scan"] == "blocked", places=places)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("compiled", [True, False])
def test_collapsed_sweeps_keep_the_posterior(loss: str, compiled: bool, few_reserved: None) -> None:
    family = FAMILY if compiled else AnotherGaussian(loc=0.0, variance=0.7, prior_variance=1.0)
    starts(tiny(loss, likelihood=family), scan="collapsed").check(400, 2)


VARIANTS = {
    **{loss: tiny(loss) for loss in LOSSES},
    "squared hinge": tiny().replace(loss=SquaredHinge(0.4)),
    "Pitman-Yor": tiny("logistic", prior=PitmanYor(0.5, 0.6)),
}


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("scan", ["slice", "blocked"])
def test_parallel_sweeps_keep_the_posterior(scan: str, name: str, few_reserved: None) -> None:
    starts(VARIANTS[name], scan=scan).check(250, 2)


@pytest.mark.slow
@pytest.mark.parametrize("scan", ["collapsed", pytest.param("slice", marks=pytest.mark.nightly)])
def test_births_from_the_prior_are_noticed(scan: str, few_reserved: None) -> None:
    """This shows that the tests above can fail."""
    p_value, z = starts(tiny("hinge").replace(loss=Hinge(2.0)), scan=scan, births="prior").after(400, 4)
    assert p_value < 1e-6
    assert z[-1] > 4  # too many components


# -- the cluster of a new point --------------------------------------------------------------------------------------


def together(posterior: Posterior, new: Tensor) -> Tensor:
    """Clamped weights [S, N + 2] with which a new point joins each training point, joins none, and their total."""
    parts = []
    for index, labels in enumerate(posterior.samples["assignments"].long()):
        weights = posterior._clamped_log_weights(new, posterior.draw(index)).squeeze(0).exp()
        rest = weights.sum() - weights[torch.unique(labels)].sum()
        parts.append(torch.cat([weights[labels], rest.reshape(1), weights.sum().reshape(1)]))
    return torch.stack(parts)


def ratio(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of independent draws over that of the last column, and their standard errors."""
    found = draws[:, :-1].sum(0) / draws[:, -1].sum()
    influence = (draws[:, :-1] - found * draws[:, -1:]) / draws[:, -1].mean()
    return found, influence.std(0) / len(draws) ** 0.5


def exact_draws(model: DDPM, num_draws: int, *, truncated: bool) -> Posterior:
    """Independent draws of the posterior given TINY: partitions by enumeration, hyperplanes from a fine grid."""
    generator = torch.Generator().manual_seed(5)
    model = model.resolve(TINY)
    data, nodes = model.data(TINY), torch.linspace(-8, 8, 161, dtype=torch.float64)
    grid = torch.cartesian_prod(nodes, nodes)
    scores = data.features @ grid.T

    @cache
    def many(members: tuple[bool, ...]) -> Tensor:
        """2,000 independent hyperplanes of a component with these points."""
        sides = torch.tensor([1.0 if member else -1.0 for member in members], dtype=torch.float64).unsqueeze(1)
        log_prior = -(grid / model.weight_scale).square().sum(1) / 2
        mass = (model.loss.log_factor(scores, sides).sum(0) + log_prior).softmax(0)
        chosen = torch.multinomial(mass, 2000, replacement=True, generator=generator)
        jitter = torch.rand((2000, 2), generator=generator, dtype=torch.float64) - 0.5
        return (grid[chosen] + 0.1 * jitter).unsqueeze(-1)

    def hyperplanes_of(members: Tensor, number: int) -> Tensor:
        return many(tuple(members.tolist()))[torch.randint(2000, (number,), generator=generator)]

    exact = partition_posterior(model, TINY, truncation=model.truncation if truncated else None)
    mass = torch.tensor(list(exact.values()), dtype=torch.float64)
    chosen = torch.multinomial(mass, num_draws, replacement=True, generator=generator)
    draws = []
    for labels in [torch.tensor(list(exact)[index]) for index in chosen.tolist()]:
        K = model.truncation if truncated else int(labels.max()) + 1
        weights = torch.cat([hyperplanes_of(labels == k, 1) for k in range(K)])
        reservoir = None if truncated else hyperplanes_of(labels < 0, hyperplanes.NUM_RESERVED)
        state = PartitionState(labels, weights, model.prior.start(TINY), reservoir)
        draws.append(summarize(state, data, model, law=label_law(model, truncated)))
    trace = Trace("log joint", torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
    return PartitionPosterior(model, Gibbs(), structure_of(model).stack(draws), [num_draws], trace)


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_clamped_clusters_of_a_new_point_are_those_of_enumeration(loss: str, truncated: bool) -> None:
    """The new point as a fifth one: its law under the joint of all five (math section 7)."""
    model, new = tiny(loss), torch.tensor([[3.0]], dtype=torch.float64)
    posterior = exact_draws(model, 600 if truncated else 1500, truncated=truncated)
    exact, five = torch.zeros(5, dtype=torch.float64), torch.cat([TINY, new])
    law = partition_posterior(posterior.model, five, truncation=model.truncation if truncated else None)
    for labels, probability in law.items():
        shared = torch.tensor([label == labels[4] for label in labels[:4]])
        exact += probability * torch.cat([shared, ~shared.any().reshape(1)])
    draws = together(posterior, new)
    found, errors = ratio(draws)
    assert ((found - exact).abs() < 5 * errors).all()
    assert errors.max() < 0.05
    wrong, errors = ratio(draws / draws[:, -1:])
    assert ((wrong - exact).abs() > 5 * errors).any()


def test_probabilities_of_clusters_take_the_labels_of_the_representative_draw() -> None:
    inputs = torch.cat([TINY - 4, TINY + 4])
    posterior = Gibbs(num_samples=30, num_warmup=20, progress=False).fit(tiny(), inputs)
    for discriminative in (True, False):
        found = posterior.assign_proba(inputs, discriminative=discriminative)
        torch.testing.assert_close(found.sum(1), torch.ones(8, dtype=torch.float64))
        assert torch.equal(found[:, :-1].argmax(1), posterior.partition())
    before, samples = posterior.assign_proba(inputs), posterior.samples
    names = ("weights", "hyperparameters", "log_mixture")
    for index in set(range(30)) - {posterior.representative}:  # other names for the components of the other draws
        K = samples["weights"].shape[1]
        order = torch.randperm(K, generator=GENERATOR)
        samples["assignments"][index] = torch.argsort(order)[samples["assignments"][index].long()]
        for name in names:
            samples[name][index, :K] = samples[name][index, order]
    torch.testing.assert_close(posterior.assign_proba(inputs), before)
    far = posterior.assign_proba(np.array([[60.0]]), discriminative=False)
    assert isinstance(far, np.ndarray)
    assert far[0, -1] > 0.99  # none of the components that it knows
    plain = Gibbs(num_samples=30, num_warmup=20, progress=False).fit(DPM(FAMILY), inputs)
    assert torch.equal(plain.assign_proba(inputs)[:, :-1].argmax(1), plain.partition())
    hard = SmallVariance().fit(tiny(), inputs)
    assert torch.equal(hard.assign_proba(inputs)[:, :-1].argmax(1), hard.assign(inputs))


# -- the backend -------------------------------------------------------------------------------------------------------


def quick(**options) -> Gibbs:
    return Gibbs(**({"num_samples": 6, "num_warmup": 4, "num_generative": 3, "progress": False} | options))


def test_a_start_of_generative_sweeps_knows_the_clusters() -> None:
    inputs = torch.cat([0.1 * X[:, :1], 0.1 * X[:, 1:2] + 9])
    state, data, model, generator = start(DDPM(DiagonalGaussian(rate=0.01)), inputs)
    found = partition.init_generatively(
        model, data, generator, start="one", scan="collapsed", num_sweeps=10, num_split_merge=2
    )
    assert first_appearance(found.assignments.tolist()) == (0,) * 12 + (1,) * 12
    assert found.weights.shape == (2, 2, 1)
    own = (data.features @ found.weights.squeeze(-1).T).gather(1, found.assignments.unsqueeze(1))
    assert (own > 0).double().mean() > 0.9
    assert found.reservoir.shape == state.reservoir.shape


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"births": "cheap"}, "births is 'cheap'; it must be one of 'exact', 'prior'"),
        ({"num_generative": -1}, "num_generative is -1"),
        ({"init": torch.arange(12), "scan": "blocked"}, "init has 12 labels, but the model is truncated at 5"),
    ],
)
def test_options_outside_their_domain_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick(**options).fit(DDPM(truncation=5), X)


def inside_another(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A cluster inside a wide one [300, 6], and which rows are of it."""
    labels = torch.arange(300) % 2
    rows = torch.randn((300, 6), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows * (1 + 2 * labels).unsqueeze(1), labels


def test_the_default_strength_leaves_a_cluster_inside_another(recwarn: pytest.WarningsRecorder) -> None:
    """Which no hyperplane tells apart: a strength of 1 leaves one cluster, and every backend says so."""
    rows, labels = inside_another()
    backend = Gibbs(num_warmup=10, num_samples=10, progress=False)
    found = backend.fit(DDPM(), rows).partition()
    assert not recwarn.list
    assert pair_f1(found, labels) > 0.8
    strong, variational = {"loss": Hinge(), "truncation": 3}, SVI(num_steps=10, progress=False)
    for method, model, plain in ((backend, DDPM, "DPM"), (variational, DDPM, "DPM"), (variational, DIH, "IHMM")):
        message = rf"holds 2 clusters, but hyperplanes left one of them: loss Hinge\(\).* or {plain}\(\)"
        with pytest.warns(ClustersEmptied, match=message):
            found = method.fit(model(**strong), rows[:150]).partition()
        assert torch.bincount(found).max() > 100


def labels_of(*sizes: int) -> torch.Tensor:
    """Labels [N] of clusters of these sizes."""
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


def test_clusters_count_from_ten_rows_and_a_twentieth_of_all() -> None:
    assert num_held(labels_of(50, 46, 4)) == 2
    assert num_held(labels_of(970, 30)) == num_held(labels_of(10, 9)) == 1
    assert num_held(labels_of(9, 9)) == 0


def test_many_small_clusters_are_not_one_that_is_left() -> None:
    """Of 1,000 images in 40 clusters one may be larger than a twentieth."""
    assert not one_is_left(labels_of(60, *[40] * 23, 20))
    assert not one_is_left(labels_of(940, 60))
    assert one_is_left(labels_of(970, *[6] * 5))
    assert one_is_left(labels_of(12, 9))
    assert one_is_left(torch.full((30,), -1))


def test_a_clustering_has_no_scores_to_predict() -> None:
    posterior = quick().fit(DDPM(), X)
    for method in (posterior.decision_function, posterior.predict):
        with pytest.raises(ValueError, match=r"DDPM has no labels to predict; use assign\(X\)"):
            method(X)
    with pytest.raises(ValueError, match="DDPM was fitted without classes"):
        posterior.predict_proba(X)
