"""Descent for models whose components repel, and for sequences, against brute force over all partitions or paths."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from landscapes import FAMILY, brute_force, landscape_of, state_at, tiny
from setups import Ramp, price_of
from tiny_optima import margin_cost, path_values
from torch import Tensor

from regbayes.datasets import make_chained_gaussians
from regbayes.inference import SmallVariance
from regbayes.inference.classifiers.minimum import descended, estimate
from regbayes.inference.classifiers.scored import Scored
from regbayes.inference.posterior.partition_losses import align
from regbayes.inference.small_variance import hyperplanes, repelling
from regbayes.inference.small_variance.assignment import all_costs
from regbayes.inference.small_variance.landscape import Landscape
from regbayes.inference.small_variance.repelling import RepellingRestarts
from regbayes.inference.small_variance.sequence import SequenceLandscape
from regbayes.inference.small_variance.state import RepellingDescent
from regbayes.models import (
    DDPM,
    DIH,
    DPM,
    IHMM,
    DiagonalGaussian,
    DirichletProcess,
    Hinge,
    Logistic,
    PitmanYor,
    PoissonGamma,
    PrincipalDirections,
)
from regbayes.testing.enumeration import partitions

LOSSES = {"hinge": Hinge(0.7), "logistic": Logistic()}


# -- hyperplanes -------------------------------------------------------------------------------------------------------


def test_a_step_goes_as_far_as_its_component_does_not_lose():
    """A whole step, a quarter, none: costs are (w - 1)^2, and 1 at the start."""

    class Bowls(Scored):
        def cost_later(self, weights, scores):
            return (weights[0] - 1).square

    margins = Bowls(torch.ones(2, 1), torch.ones(2, 3), Hinge(), 1.0)
    start = estimate(margins, torch.zeros(1, 1, 3))
    found = descended(margins, start, torch.tensor([[[1.5, 6.0, -5.0]]]))
    parts = found.weights, found.scores, found.cost
    assert [part.flatten().tolist() for part in parts] == [[1.5, 1.5, 0.0], 2 * [1.5, 1.5, 0.0], [0.25, 0.25, 1.0]]


BLOBS = (400, 8, 5), (300, 3, 3)  # N, D, K


def blobs(num_data: int, num_dims: int, num_centers: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = 2 * torch.randn(num_data, num_dims, generator=generator, dtype=torch.float64)
    centers = 4 * torch.randn(num_centers, num_dims, generator=generator, dtype=torch.float64)
    return noise + centers[torch.arange(num_data) % num_centers]


OFF_CENTRE = PrincipalDirections(loc=torch.tensor([0.5, 0.3]).double(), axes=torch.eye(2).double() / 3)


CENTRED = itertools.product([PrincipalDirections(intercept=size) for size in (0.0, 1.0, 5.0)], [1e-3, 0.03, 1.0, 5.0])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("seen", "weight_scale"), [*CENTRED, (OFF_CENTRE, 0.1)])
@pytest.mark.parametrize("loss", [Hinge(), Hinge(3.0), Logistic()], ids=str)
def test_an_empty_component_costs_the_least_of_all(loss, seen, weight_scale) -> None:
    centred = seen is not OFF_CENTRE
    rows = blobs(400, 8, 5) if centred else blobs(400, 2, 3)
    model, data = DDPM(FAMILY, loss, feature_map=seen, weight_scale=weight_scale).prepare(rows)
    landscape = Landscape.of(model, data, 1.0)
    found, exact = float(landscape.empty_cost), margin_cost(data.features, -torch.ones(400, 1).double(), model)
    assert found == pytest.approx(exact, rel=1e-4 if centred else 1e-3, abs=3e-6)
    nobody = torch.full((400,), -1)
    assert float(hyperplanes.hyperplane_costs(data, nobody, landscape.empty, model)) == pytest.approx(found)


@pytest.mark.parametrize("sizes", BLOBS, ids=str)
@pytest.mark.parametrize(("loss", "weight_scale"), [(Hinge(), 1.0), (Logistic(), 3.0)], ids=str)
def test_hyperplanes_of_a_fit_are_near_their_optimum(loss, weight_scale, sizes) -> None:
    model, data = DDPM(loss=loss, weight_scale=weight_scale).prepare(blobs(*sizes))
    posterior = SmallVariance(num_restarts=1, num_components=5).fit(model, data.X)
    labels, weights = posterior.partition(), posterior.samples["weights"][0]
    found = float(hyperplanes.hyperplane_costs(data, labels, weights, model).sum())
    sides = [torch.where(labels == k, 1.0, -1.0).double() for k in range(posterior.num_components)]
    assert found <= 1.002 * sum(margin_cost(data.features, side.unsqueeze(1), model) for side in sides)
    assert (posterior.trace.values.diff(dim=1).nan_to_num(0.0) <= 1e-9).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_hyperplanes_are_fitted_again_where_points_changed_sides(weighted) -> None:
    """Those of the same points stay, bit for bit; the others end at their optimum, whatever the last fit knows."""
    rows, generator = blobs(200, 4, 4), torch.Generator().manual_seed(0)
    model, data = DDPM(weight_scale=2.0).prepare(rows)
    if weighted:
        data = replace(data, weights=0.5 + torch.rand(200, generator=generator, dtype=torch.float64))
    labels = torch.arange(200) % 4
    nothing = data.features.new_zeros(4, data.features.shape[1], 1)
    weights, costs, fitted = hyperplanes.fit_hyperplanes(data, labels, nothing, model, 4)
    same, known, _ = hyperplanes.fit_hyperplanes(data, labels, weights, model, 4, fitted)
    assert torch.equal(same, weights)
    assert torch.equal(known, costs)
    moved = torch.where((labels == 1) & (torch.rand(200, generator=generator) < 0.2), 3, labels)
    found, known, after = hyperplanes.fit_hyperplanes(data, moved, weights, model, 4, fitted)
    assert [torch.equal(found[k], weights[k]) for k in range(4)] == [True, False, True, False]
    assert after.num_steps.tolist() == 4 * [4]
    torch.testing.assert_close(known, hyperplanes.hyperplane_costs(data, moved, found, model))
    assert (known <= hyperplanes.hyperplane_costs(data, moved, weights, model) + 1e-9).all()
    found, known, after = hyperplanes.fit_hyperplanes(data, moved, found, model, 4000, after)
    _, exact, _ = hyperplanes.fit_hyperplanes(data, moved, nothing, model, 4000)
    torch.testing.assert_close(known, exact, rtol=1e-7, atol=0.0)
    assert after.num_steps.tolist() == 4 * [4000]


def test_what_the_last_fit_knows_goes_with_its_components() -> None:
    """One opens, and takes points from the others; one goes, and its points to another."""
    model, data = DDPM(weight_scale=2.0).prepare(blobs(200, 4, 4))
    labels = (torch.arange(200) % 4).clamp(max=2)
    weights = data.features.new_zeros(3, data.features.shape[1], 1)
    weights, _, fitted = hyperplanes.fit_hyperplanes(data, labels, weights, model, 4)
    opened = torch.where((labels == 2) & (torch.arange(200) < 100), 3, labels)
    weights = torch.cat([weights, torch.zeros_like(weights[:1])])
    more, _, known = hyperplanes.fit_hyperplanes(data, opened, weights, model, 4, fitted.opened())
    assert [torch.equal(more[k], weights[k]) for k in range(4)] == [True, True, False, False]
    kept = torch.tensor([1, 2, 3])
    labels = torch.where(opened == 0, 2, opened) - 1
    fewer, costs, known = hyperplanes.fit_hyperplanes(data, labels, more[kept], model, 4, known.kept(kept))
    assert [torch.equal(fewer[k], more[k + 1]) for k in range(3)] == [True, False, True]
    torch.testing.assert_close(costs, hyperplanes.hyperplane_costs(data, labels, fewer, model))
    assert torch.equal(known.labels, labels)


# -- points ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_a_move_changes_the_objective_by_the_change_of_its_cost(loss) -> None:
    landscape = landscape_of(DDPM(FAMILY, LOSSES[loss], weight_scale=2.0), tiny(2))
    state = state_at((0, 1, 0, 1, 2, 2), landscape, 1.5)
    costs = all_costs(landscape.problem, state.centers, state.weights)
    own = landscape.objective(state)
    for n, k in ((0, 1), (1, 2), (4, 0)):  # no component becomes empty
        labels = state.assignments.clone()
        labels[n] = k
        moved = landscape.objective(replace(state, assignments=labels))
        torch.testing.assert_close(moved - own, costs[n, k] - costs[n, state.assignments[n]])


def test_points_save_what_the_objective_falls_by() -> None:
    landscape = landscape_of(DDPM(FAMILY, Hinge(0.7), weight_scale=2.0), tiny(2))
    state = state_at((0, 1, 0, 1, 2, 2), landscape, 1.5)
    costs = all_costs(landscape.problem, state.centers, state.weights)
    moved = replace(state, assignments=costs.argmin(1))
    fall = landscape.objective(state) - landscape.objective(moved)
    assert fall > 0.1
    torch.testing.assert_close(landscape.saved(costs, state), fall)


def test_a_hopeless_merge_is_given_up_after_one_round(monkeypatch) -> None:
    """Two far corners in one component: no point moves, so that no more rounds would help."""
    inputs = torch.tensor([[0.0, 0.0], [9.0, 0.0]]).double().repeat_interleave(6, 0) + tiny(0, 12) / 20
    landscape = landscape_of(DDPM(FAMILY, Hinge(0.7)), inputs)
    state, num_rounds = state_at(6 * (0,) + 6 * (1,), landscape, 5.0), list[int]()
    refit = repelling.refit
    monkeypatch.setattr(repelling, "refit", lambda *arguments: num_rounds.append(0) or refit(*arguments))
    together = repelling.joined(state, (0, 1))
    assert repelling._better(state, together, landscape, 5.0) is state
    assert len(num_rounds) == 1
    assert repelling._better(refit(together, landscape, 4), state, landscape).num_components == 2
    assert len(num_rounds) == 4


@pytest.mark.one_in(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", range(3))
def test_descent_ends_near_the_best_of_all_partitions(loss, seed) -> None:
    inputs, penalty = tiny(seed), 1.5
    prior = PitmanYor(price_exponent=0.5 * (seed % 2))
    model = DDPM(FAMILY, LOSSES[loss], prior, weight_scale=2.0)
    exact = brute_force(landscape_of(model, inputs), penalty)
    posterior = SmallVariance(num_restarts=1, penalty=penalty, num_components=2, tolerance=0.0).fit(model, inputs)
    found = float(posterior.trace.final)
    assert found >= exact[0] - 1e-6
    assert found <= 1.01 * exact[6]  # among the best 7 of 203
    steps = posterior.trace.values.diff(dim=1).nan_to_num(0.0)
    assert (steps <= 1e-9).all()


def test_the_price_of_components_falls() -> None:
    model = DDPM(FAMILY, Hinge(0.7), PitmanYor(price_exponent=2.0), weight_scale=2.0)
    for labels in ((0, 1, 0, 1, 2, 2), (0, 1, 2, 3, 4, 4)):
        plain = state_at(labels, landscape_of(model.replace(prior=DirichletProcess()), tiny(2)), 2.5)
        falling = state_at(labels, landscape_of(model, tiny(2)), 2.5)
        saved = sum(2.5 - price_of(model.prior, 2.5, k) for k in range(len(plain.centers)))
        assert float(plain.objective - falling.objective) == pytest.approx(saved, rel=1e-9)
    options, inputs = SmallVariance(num_restarts=1, num_components=5), blobs(60, 3, 3)
    penalties = [
        RepellingRestarts(options, landscape_of(model.replace(prior=prior), inputs)).prices.penalty
        for prior in (model.prior, DirichletProcess())
    ]
    assert penalties[0] - penalties[1] == pytest.approx(2.0 * math.log(5), rel=1e-6)  # the sixth costs the same


def test_hyperplanes_of_a_loss_that_is_only_a_factor_descend() -> None:
    model, inputs = DDPM(FAMILY, Ramp(), PitmanYor(price_exponent=1.0)), blobs(60, 3, 3)
    posterior = SmallVariance(num_restarts=1, num_components=3, tolerance=0.0, max_steps=15).fit(model, inputs)
    assert (posterior.trace.values.diff(dim=1).nan_to_num(0.0) <= 1e-9).all()
    landscape = landscape_of(model, inputs)
    labels, weights = posterior.partition(), posterior.samples["weights"][0]
    data = landscape.problem.data
    found = hyperplanes.hyperplane_costs(data, labels, weights, model).sum()
    _, best, _ = hyperplanes.fit_hyperplanes(data, labels, weights, model, 400)
    assert found <= 1.01 * best.sum()


@pytest.mark.parametrize("lengths", [None, [200, 100]], ids=str)
def test_restarts_differ_in_their_starts_but_not_in_their_penalties(lengths) -> None:
    model, inputs, options = (
        DDPM() if lengths is None else DIH(),
        blobs(300, 3, 3),
        SmallVariance(num_restarts=1, num_components=5),
    )
    landscape = landscape_of(model, inputs, lengths)

    def start(seed: int) -> RepellingDescent:
        restarts = RepellingRestarts(options, landscape)
        return (restarts.scattered if seed else restarts.first)(torch.Generator().manual_seed(seed))

    starts = [start(seed) for seed in (0, 1, 2)]
    assert len({float(state.objective) for state in starts}) == 3
    assert len({(float(state.penalty), float(state.transition_penalty)) for state in starts}) == 1
    assert torch.equal(start(1).assignments, starts[1].assignments)


def test_without_room_for_hyperplanes_it_is_dp_means() -> None:
    data = make_chained_gaussians(100, gap=8.0)
    plain = SmallVariance(num_restarts=1, penalty=400.0, num_components=2).fit(DPM(FAMILY), data.X)
    limit = SmallVariance(num_restarts=1, penalty=400.0, num_components=2).fit(DDPM(FAMILY, weight_scale=1e-6), data.X)
    assert torch.equal(limit.partition(), plain.partition())
    torch.testing.assert_close(limit.trace.final, plain.trace.final, rtol=1e-4, atol=0.0)


def test_chains_are_parted_by_their_hyperplanes() -> None:
    """At a penalty where DP-means cuts the chains (Nguyen et al., Fig. 2)."""
    data = make_chained_gaussians(200)
    options = {"num_components": 4}
    cut = SmallVariance(num_restarts=1, **options).fit(DPM(FAMILY), data.X).num_components
    posterior = SmallVariance(num_restarts=1, **options).fit(DDPM(FAMILY, Hinge(3.0), weight_scale=3.0), data.X)
    assert cut > 2
    assert posterior.num_components == 2
    agreed = (posterior.partition() == data.y).double().mean()
    assert max(agreed, 1 - agreed) > 0.97
    assert torch.equal(posterior.assign(data.X, discriminative=True), posterior.partition())


# -- sequences ---------------------------------------------------------------------------------------------------------

MODELS = {
    "IHMM": IHMM(FAMILY),
    "DIH-S": DIH(FAMILY, Hinge(0.4), weight_scale=2.0),
    "DIH-L": DIH(FAMILY, Logistic(), weight_scale=2.0),
}


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("weight", [0.0, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_sequences_end_near_the_best_of_all_states(name, weight, seed) -> None:
    inputs, lengths = tiny(seed), [4, 2]
    inputs[2] = math.nan
    exact = brute_force(landscape_of(MODELS[name], inputs, lengths), 1.5, weight=weight)
    options = {"penalty": 1.5, "transition_penalty": 0.4, "transition_weight": weight, "num_components": 2}
    options |= {"tolerance": 0.0}
    posterior = SmallVariance(num_restarts=1, **options).fit(MODELS[name], inputs, lengths=lengths)
    found = float(posterior.trace.final)
    assert found >= exact[0] - 1e-6
    assert found <= 1.01 * exact[10]  # among the best 11 of 203
    assert (posterior.trace.values.diff(dim=1).nan_to_num(0.0) <= 1e-9).all()


@pytest.mark.parametrize("weight", [0.0, 1.3])
def test_the_objective_of_any_path_has_the_prices_of_its_moves(weight) -> None:
    """Of kinds of moves out of every row, and of the surprise of all moves."""
    inputs = tiny(0)
    inputs[2] = math.nan
    landscape = landscape_of(MODELS["IHMM"], inputs, [4, 2])
    values = path_values(landscape.problem.model, landscape.sequences, (1.5, 0.4, weight))
    for labels, value in itertools.islice(zip(partitions(6), values, strict=True), 0, 203, 7):
        state = state_at(labels, landscape, 1.5, weight=weight)
        assert float(state.objective) == pytest.approx(value, abs=1e-6)


def test_with_a_weight_of_transitions_no_sweep_raises_the_objective() -> None:
    landscape = landscape_of(MODELS["DIH-S"], tiny(3, 40), [20, 20])
    generator, raised = torch.Generator().manual_seed(0), 0
    for _ in range(12):
        labels = torch.randint(4, (40,), generator=generator)
        state = state_at(labels.tolist(), landscape, 1.0, 0.05, 5.0)
        for _ in range(4):
            bold, safe = (repelling.assign(state, landscape, unused=unused) for unused in (0.5, 0.0))
            raised += bool(landscape.objective(bold) > state.objective + 1e-9)
            assert landscape.objective(safe) <= state.objective + 1e-9
            after = repelling.sweep(state, landscape, generator, tolerance=0.0)
            assert after.objective <= state.objective + 1e-9
            state = after
    assert raised  # or nothing was tried


def test_the_weight_of_transitions_tells_states_apart_that_overlap() -> None:
    generator = torch.Generator().manual_seed(0)
    states = (torch.arange(300) // 20) % 3
    centers = torch.tensor([[0.0, 0.0], [2.5, 0.0], [0.0, 2.5]], dtype=torch.float64)
    rows = centers[states] + torch.randn(300, 2, generator=generator, dtype=torch.float64)
    agreed = []
    for weight in (0.0, 2.0):
        posterior = SmallVariance(num_restarts=1, num_components=3, transition_weight=weight).fit(IHMM(), rows)
        agreed.append(float((align(posterior.partition(), states) == states).double().mean()))
        assert torch.equal(posterior.assign(rows), posterior.partition())
    assert agreed[0] < 0.9
    assert agreed[1] > 0.95


def test_states_of_sequences_are_found_and_decode_new_ones(device) -> None:
    states = (torch.arange(120) // 15) % 3
    centers = torch.tensor([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    inputs = (centers[states] + torch.randn(120, 2, generator=generator, dtype=torch.float64)).to(device)
    for model in (IHMM(DiagonalGaussian()), DIH(DiagonalGaussian(), Hinge(0.3))):
        posterior = SmallVariance(num_restarts=1, num_components=3).fit(model, inputs, lengths=[60, 60])
        assert posterior.num_components == 3
        agreed = (align(posterior.partition().cpu(), states) == states).double().mean()
        assert agreed > 0.97
        decoded = posterior.assign(inputs, [60, 60])
        assert (decoded == posterior.partition()).double().mean() > 0.95
        rows = posterior.samples["log_transitions"].exp().sum(-1)
        torch.testing.assert_close(rows, torch.ones_like(rows))


# -- single terms ------------------------------------------------------------------------------------------------------


def test_a_component_pays_for_the_row_that_stands_for_its_prior() -> None:
    """scale [sum_n D(x_n, mu_z) + rate sum_k D(shape / rate, mu_k)] of counts, with D(x, m) = x log(x / m) - x + m."""
    generator, labels = torch.Generator().manual_seed(0), torch.tensor([0, 1, 0, 1, 1])
    inputs = torch.poisson(torch.full((5, 2), 4.0, dtype=torch.float64), generator=generator) + 1
    model, data = IHMM(PoissonGamma(shape=3.0, rate=0.5)).prepare(inputs, None, [2, 3])
    state = state_at(labels.tolist(), SequenceLandscape.over(model, data, 2.5), 1.5, 0.0)
    centers = torch.stack([(3.0 + inputs[labels == k].sum(0)) / (0.5 + (labels == k).sum()) for k in range(2)])
    torch.testing.assert_close(state.centers, centers)
    rows, weight = torch.cat([inputs, inputs.new_full((2, 2), 6.0)]), torch.tensor([1.0] * 5 + [0.5] * 2)
    means = centers[torch.cat([labels, torch.arange(2)])]
    divergences = ((rows * (rows / means).log()) - rows + means).sum(1)
    assert float(state.objective) == pytest.approx(2.5 * float(weight.double() @ divergences) + 1.5, abs=1e-9)


def test_a_state_of_missing_steps_keeps_its_center() -> None:
    inputs = tiny(0)
    inputs[3] = math.nan
    state = state_at((0, 0, 0, 1, 0, 0), landscape := landscape_of(MODELS["DIH-S"], inputs, [4, 2]), 1.5)
    moved = replace(state, centers=torch.tensor([[0.0, 0.0], [7.0, -2.0]], dtype=torch.float64))
    found = repelling.refit(moved, landscape, 1)
    assert found.centers[1].tolist() == [7.0, -2.0]
    assert found.objective.isfinite()


def test_components_without_points_go_with_their_centres_and_hyperplanes() -> None:
    state = state_at((0, 1, 2, 2, 1, 0), landscape_of(MODELS["DIH-S"], tiny(0), [4, 2]), 1.5)
    state = replace(state, weights=state.weights + torch.arange(3.0).view(3, 1, 1))
    joined = repelling.joined(state, (0, 1))
    assert joined.assignments.tolist() == [0, 0, 1, 1, 0, 0]
    assert torch.equal(joined.weights, state.weights[[0, 2]])
    assert torch.equal(joined.centers, state.centers[[0, 2]])


@pytest.mark.parametrize("name", ["IHMM", "DIH-S"])
def test_a_settled_state_opens_and_merges_where_that_pays(name) -> None:
    """Four far corners: two of them in one component at a small penalty, or each in its own at a large one."""
    corners = torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 9.0]], dtype=torch.float64)
    inputs = corners.repeat_interleave(6, 0) + tiny(0, 24) / 20
    landscape, generator = landscape_of(MODELS[name], inputs, [24]), torch.Generator().manual_seed(0)
    four = torch.arange(4).repeat_interleave(6).tolist()
    few = state_at([max(0, label - 1) for label in four], landscape, 5.0, 0.0)
    for settled in (False, True):
        after = repelling.sweep(replace(few, settled=settled), landscape, generator, tolerance=1e-3)
        assert len(after.centers) == 3 + settled
        assert settled == bool(after.objective < few.objective - 50)
    many = state_at(four, landscape, 1e5, 0.0)
    for settled, merge in itertools.product((False, True), repeat=2):
        start = replace(many, settled=settled)
        after = repelling.sweep(start, landscape, generator, tolerance=1e-3, merge=merge)
        assert (len(after.centers) < 4) == (settled and merge)
        assert after.converged == (settled and not merge)


def test_a_missing_step_has_the_state_of_a_step_of_its_own_sequence(device) -> None:
    inputs = tiny(0, 9).to(device)
    inputs[[0, 2, 3, 7, 8]] = math.nan  # first, inner and last steps of the first two sequences; the third as a whole
    landscape = landscape_of(IHMM(FAMILY), inputs, [3, 4, 2])
    states = landscape.completed(torch.tensor([5, 6, 7, 8], device=device))
    assert states.tolist() == [5, 5, 5, 6, 6, 7, 8, 0, 0]


def test_a_kind_of_transition_costs_what_a_step_does() -> None:
    """The mean of scale D(x, its centre) over the observed steps, without the components' penalty."""
    inputs = torch.cat([tiny(0, 20), tiny(1, 20) + 50])
    inputs[7] = math.nan
    model, data = IHMM(FAMILY).prepare(inputs, None, [25, 15])
    landscape = SequenceLandscape.over(model, data, 3.0)
    state = RepellingRestarts(SmallVariance(num_components=2), landscape).first(torch.Generator().manual_seed(0))
    own = state.assignments
    assert len(state.centers) == 2
    means = torch.stack([inputs[own == k].nanmean(0) for k in range(2)])[own]
    expected = 1.5 * float((inputs - means).square().sum(1).nanmean())
    assert float(state.transition_penalty) == pytest.approx(expected, rel=1e-6)


def test_components_are_merged_with_their_nearest() -> None:
    state = state_at((0, 1, 2, 3), landscape := landscape_of(IHMM(FAMILY), tiny(0, 4), [4]), 1.5)
    centers = torch.tensor([[0.0, 0.0], [10.0, 0.0], [11.0, 0.0], [3.0, 0.0]], dtype=torch.float64)
    pairs = repelling.near_pairs(replace(state, centers=centers), landscape)
    assert pairs == [(1, 2), (0, 3), (1, 3), (2, 3)]
    assert repelling.near_pairs(replace(state, centers=centers[:1]), landscape) == []


def test_what_moves_cost_in_the_next_path() -> None:
    """Nothing where they are in use, else the penalty; with a weight also minus the log of their share."""
    landscape = landscape_of(IHMM(FAMILY), tiny(0), [4, 2])
    counts = torch.tensor([[1.0, 2.0], [1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    for weight, unused in ((0.0, 0.5), (0.7, 0.5), (0.7, 0.0)):
        state = state_at((0, 0, 1, 0, 0, 1), landscape, 1.5, 0.4, weight)
        expected = torch.where(counts > 0, 0.0, -0.4).double()
        if weight:
            moves = torch.where(counts > 0, counts, unused)
            expected = expected + weight * (moves / moves.sum(1, keepdim=True)).log()
        torch.testing.assert_close(landscape.log_edges(state, unused=unused), expected)


def price_of_path(landscape: Any, state: Any, costs: Tensor, penalty: float, states: Tensor) -> float:
    """The objective of a path, where a state without steps is free."""
    structure = float(landscape.structure_later(replace(state, assignments=states))())
    spare = state.num_components - len(states.unique())
    return float(costs.gather(1, states.unsqueeze(1)).sum()) + structure - penalty * spare


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_single_steps_move_where_all_that_they_change_costs_least(weight) -> None:
    """One after another, against the price of the whole path for each state; at the end no other one costs less."""
    for seed in range(6):
        inputs, penalty = tiny(seed, 12), 0.3 + 0.3 * seed
        inputs[[2, 7]] = math.nan
        landscape = landscape_of(IHMM(FAMILY), inputs, [5, 1, 6])
        labels = torch.randperm(12, generator=torch.Generator().manual_seed(seed)) % 5
        state = state_at(labels.tolist(), landscape, penalty, 0.5, weight)
        costs = landscape.sequences.spread(all_costs(landscape.problem, state.centers, state.weights))
        price = partial(price_of_path, landscape, state, costs, penalty)
        naive, before = labels.clone(), None
        while before is None or not torch.equal(naive, before):
            before = naive.clone()
            for step in range(12):
                order = (naive[step] + torch.arange(5)) % 5  # its own state first: it stays on a tie
                options = [naive.index_fill(0, torch.tensor([step]), int(k)) for k in order]
                naive = options[int(np.argmin([round(price(states), 9) for states in options]))]  # the first of equals
        assert torch.equal(landscape.stepwise(state), naive)
        assert torch.equal(state.assignments, labels)
        assert price(naive) < price(labels) - 1e-6
