"""The small-variance limit of multi-label models: the objective, the SVMs, and the labels' share in the partition."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from setups import Ramp

from regbayes.inference import SmallVariance
from regbayes.inference.classifiers.duals import solve
from regbayes.inference.classifiers.minimum import DualLimits
from regbayes.inference.small_variance import descent
from regbayes.inference.small_variance.label_sets import bits as multi_label_bits
from regbayes.inference.small_variance.label_sets import kernel as multi_label
from regbayes.inference.small_variance.label_sets import moves as multi_label_moves
from regbayes.inference.small_variance.label_sets.coupled import CoupledRestarts
from regbayes.models import BNMC, BernoulliBeta, DiagonalGaussian, Hinge, Logistic
from regbayes.testing import check_kernel

GENERATOR = torch.Generator().manual_seed(4)
X = torch.randn((90, 2), generator=GENERATOR, dtype=torch.float64)
Y = torch.bernoulli(torch.stack([(2 * X[:, 0]).sigmoid(), (X[:, 1] - 1).sigmoid()], 1), generator=GENERATOR)
HOLES = Y.masked_fill(torch.rand(Y.shape, generator=GENERATOR) < 0.2, torch.nan)
COPIES = torch.arange(90).double() % 3 + 1


def restarts_of(model, data, **options) -> CoupledRestarts:
    """The restarts of a resolved model with joint "and"."""
    return CoupledRestarts.of(SmallVariance(**options), model, data)


@pytest.mark.parametrize("weights", [None, COPIES], ids=["once", "weighed"])
@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=repr)
def test_objective_never_rises_and_is_what_it_says(loss, weights) -> None:
    model = BNMC(loss=loss, label_likelihood=BernoulliBeta(0.5, 1.5))
    backend = SmallVariance(num_restarts=1, penalty=6.0, scale=0.7)
    check_kernel(backend, model, X, HOLES)
    posterior = backend.fit(model, X, HOLES, sample_weight=weights)
    each = torch.ones(90, 1).double() if weights is None else weights.unsqueeze(1)
    resolved, samples, z = posterior.model, posterior.samples, posterior.samples["assignments"][0].long()
    centers, means, weights = (samples[name][0] for name in ("centers", "label_means", "classifiers"))
    rows = resolved.likelihood.coordinates(X)
    known, bits = ~HOLES.isnan(), torch.where(HOLES == 1, means[z], 1 - means[z]).log()
    smoothing = (
        -2 * (0.25 * means.log() + 0.75 * torch.log1p(-means))
        - 2 * torch.tensor([0.25, 0.75]).double().pow(torch.tensor([0.25, 0.75])).prod().log().neg()
    )
    divergence = (
        each * ((rows - centers[z]).square() / 2 - torch.where(known, bits, 0.0).sum(1, keepdim=True) / 2)
    ).sum()
    divergence = divergence + smoothing.sum()
    signs = 2 * HOLES - 1
    scores = resolved.features(X) @ weights
    factors = (each * torch.where(known, loss.log_factor(scores, signs.nan_to_num(1.0)), 0.0)).sum()
    expected = 6.0 * len(centers) + 0.7 * divergence - factors + weights.square().sum() / 2
    torch.testing.assert_close(posterior.trace.final[0], expected)


@pytest.mark.parametrize("loss", [Hinge(0.5), Logistic()], ids=repr)
def test_classifiers_are_at_the_optimum_of_the_known_labels(loss) -> None:
    """By Fenchel's duality: no weights cost less than the value of any feasible tilts of the known labels."""
    model, data = BNMC(loss=loss, weight_scale=0.7).prepare(X, HOLES)
    fit = multi_label.fit_classifiers(data, model)
    lower = 0.0
    for c in range(2):
        known = ~HOLES[:, c].isnan()
        one = solve(data.features[known], data.targets[known, c : c + 1], loss, 0.7, tolerance=1e-8)
        tilt = loss.feasible(one.tilt, data.targets[known, c : c + 1])
        pull = 0.49 * data.features[known].T @ tilt
        lower = lower - pull.square().sum() / 0.98 - loss.conjugate(tilt, data.targets[known, c : c + 1]).sum()
    assert lower <= fit.cost.sum() <= lower * (1 + 2e-4)


def test_labels_alone_can_part_rows() -> None:
    numbers = torch.randn((60, 1), generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.1
    bits = (torch.arange(60) < 30).double().unsqueeze(1).expand(60, 6).clone()
    bits[::7, 0] = torch.nan
    posterior = SmallVariance(num_restarts=1, num_components=2).fit(BNMC(DiagonalGaussian(rate=1.0)), numbers, bits)
    assert posterior.num_components == 2
    assert (posterior.samples["assignments"][0].diff() != 0).sum() == 1
    assert posterior.assign(numbers, known=bits).diff().abs().sum() == 1


@pytest.mark.parametrize("joint", ["product", "and"])
def test_a_loss_of_which_nothing_but_the_factor_is_known(joint: str) -> None:
    backend = SmallVariance(num_restarts=1, penalty=6.0, scale=0.7)
    posterior = backend.fit(BNMC(loss=Ramp(), joint=joint), X, HOLES, sample_weight=COPIES)
    values = posterior.trace.values[0]
    assert (values[1:] <= values[:-1] + 1e-9 * values[0]).all()
    assert (posterior.predict(X) == Y).double().mean() > (0.7 if joint == "product" else 0.5)


# -- the joint "and" ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, COPIES], ids=["once", "weighed"])
@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=repr)
def test_coupled_objective_never_rises_and_is_what_it_says(loss, weights) -> None:
    model = BNMC(loss=loss, label_likelihood=BernoulliBeta(0.5, 1.5), joint="and")
    backend = SmallVariance(num_restarts=1, penalty=6.0, scale=0.7)
    posterior = backend.fit(model, X, HOLES, sample_weight=weights)
    each = torch.ones(90, 1).double() if weights is None else weights.unsqueeze(1)
    values = posterior.trace.values[0]
    assert (values.diff() <= 1e-9 * values[1:].abs()).all()
    apart = backend.fit(model.replace(joint="product"), X, HOLES, sample_weight=weights)
    assert values[-1] < apart.trace.final[0]
    resolved, samples, z = posterior.model, posterior.samples, posterior.samples["assignments"][0].long()
    centers, means, weights = (samples[name][0] for name in ("centers", "label_means", "classifiers"))
    rows, f = resolved.likelihood.coordinates(X), resolved.features(X) @ weights
    one, zero, yes = -0.7 * means.log()[z], -0.7 * torch.log1p(-means)[z], -loss.log_factor(f, torch.ones_like(f))
    no = -loss.log_factor(f, -torch.ones_like(f))
    cost = torch.where(HOLES == 1, one + yes, torch.minimum(zero + torch.minimum(yes, no), one + no))
    entropy = 0.25 * math.log(0.25) + 0.75 * math.log(0.75)
    smoothing = 2 * (entropy - 0.25 * means.log() - 0.75 * torch.log1p(-means)).sum()
    expected = 6.0 * len(centers) + 0.7 * ((each * (rows - centers[z]).square()).sum() / 2 + smoothing)
    expected = expected + (each * torch.where(HOLES.isnan(), 0.0, cost)).sum() + weights.square().sum() / 2
    # the recorded one has the bits from before the last step of the classifiers, which can only lower J further
    assert expected <= values[-1] + 1e-9
    torch.testing.assert_close(expected, values[-1], rtol=1e-3, atol=0.0)


def test_each_block_of_the_coupled_descent_lowers_the_objective() -> None:
    model, data = BNMC(loss=Hinge(), joint="and").prepare(X, HOLES)
    restarts = restarts_of(model, data, penalty=6.0, scale=0.4)
    generator = torch.Generator().manual_seed(0)
    first = restarts.first(generator)
    torch.testing.assert_close(first.bits, HOLES, equal_nan=True)
    state = restarts.sweep(first, generator)

    def value(state) -> float:
        problem = multi_label_bits.problem_of(state, data, model, 0.4)
        cost = multi_label_bits.margin_cost(state, data, model)
        return float(descent.objective(problem, state) + cost)

    for _ in range(3):
        for block in (
            lambda state: multi_label_bits.explain(state, data, model, 0.4),
            lambda state: multi_label_bits.explain(state, data, model, 0.4, moves=False),
            lambda state: multi_label_bits.fit_classifiers(state, data, model),
        ):
            moved = block(state)
            assert value(moved) <= value(state) + 1e-9
            state = moved
        assert torch.equal(((state.bits == 1) & (state.signs == 1))[~HOLES.isnan()], (HOLES == 1)[~HOLES.isnan()])
        assert torch.equal(state.bits.isnan(), HOLES.isnan())


def test_bits_are_the_cheapest_of_all() -> None:
    """Against every pair of bits, one label at a time, and every component for each point."""
    model, data = BNMC(loss=Hinge(), joint="and").prepare(X[:40], Y[:40])
    restarts = restarts_of(model, data, penalty=0.6, scale=0.1)
    generator = torch.Generator().manual_seed(0)
    state = restarts.sweep(restarts.first(generator), generator)
    shrunk = torch.cat([0.2 * state.centers[:, :2], state.centers[:, 2:]], 1)  # or each point is where it is cheapest
    state = replace(state, centers=shrunk)
    moved = multi_label_bits.explain(state, data, model, 0.1)
    assert (moved.assignments != state.assignments).sum() > 5
    (inputs, centers), (_, shares) = model.family.own_centers(state.centers)
    f, far = data.features @ state.classifiers, inputs.divergence(inputs.coordinates(X[:40]), centers)
    for n in range(40):
        costs = 0.1 * far[n]
        for k in range(len(costs)):
            for c in range(2):
                options = [
                    -0.1 * math.log(float(shares[k, c] if a else 1 - shares[k, c]))
                    - float(model.loss.log_factor(f[n, c], f.new_tensor(2.0 * b - 1)))
                    for a in (0, 1)
                    for b in (0, 1)
                    if a * b == Y[n, c]
                ]
                costs[k] += min(options)
        problem = multi_label_bits.problem_of(moved, data, model, 0.1).rows(torch.tensor([n]))
        own = moved.centers[moved.assignments[n]].unsqueeze(0)
        margin = model.loss.log_factor(f[n], moved.signs[n]).sum()
        found = 0.1 * model.family.divergence(problem.X, own).squeeze() - margin
        torch.testing.assert_close(found, costs.min())


def settled(model, data, generator):
    """A state after some sweeps, and then with components at random, which no longer suit it."""
    restarts = restarts_of(model, data, penalty=60.0, scale=0.4)
    state = restarts.first(generator)
    for _ in range(3):
        state = restarts.sweep(state, generator)
    stirred = torch.randperm(data.num_data, generator=generator) % 3
    centers, weights = state.centers[:1].expand(3, -1), state.weights[:1].expand(3, -1, -1)
    state = replace(state, assignments=stirred, centers=centers, weights=weights)
    return multi_label_bits.refit(state, data, model, 0.4)


@pytest.mark.parametrize("weights", [None, COPIES[:12]], ids=["once", "weighed"])
@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=repr)
def test_the_move_of_a_point_is_the_best_of_all(loss, weights, generator) -> None:
    """Against each of them, with J at the centres that follow."""
    model, data = BNMC(loss=loss, joint="and").prepare(X[:12], HOLES[:12], weights=weights)
    stirred = settled(model, data, generator)
    alone = (stirred.assignments % 2).index_fill(0, torch.tensor(0), 2)
    alone = multi_label_bits.refit(replace(stirred, assignments=alone), data, model, 0.4)
    for state in (stirred, alone):
        means, scores = multi_label_bits.label_means(state, data, model), data.features @ state.classifiers
        found = []
        for n in range(12):
            for k in set(range(state.num_components)) - {int(state.assignments[n])}:
                one = data.targets[n : n + 1], scores[n : n + 1], means[k : k + 1]
                bits, signs = multi_label_bits.cheapest_bits(*one, model, 0.4)
                moved = replace(
                    state,
                    assignments=state.assignments.index_fill(0, torch.tensor(n), k),
                    bits=state.bits.index_copy(0, torch.tensor([n]), bits),
                    signs=state.signs.index_copy(0, torch.tensor([n]), signs),
                )
                found.append(multi_label_bits.refit(moved.occupied(), data, model, 0.4).objective)
        best = multi_label_moves._stepped(state, data, model, 0.4).objective
        torch.testing.assert_close(best, min(found))
        assert multi_label_moves.step_points(state, data, model, 0.4).objective <= best < state.objective


@pytest.mark.parametrize("weights", [None, COPIES], ids=["once", "weighed"])
def test_absences_of_one_component_are_explained_together(weights, generator) -> None:
    model, data = BNMC(loss=Hinge(), joint="and").prepare(X, HOLES, weights=weights)
    state = settled(model, data, generator)
    least = multi_label_moves.switch_labels(state, data, model, 0.4, generator)
    for label, component, (a, b) in itertools.product(range(2), range(2), multi_label_moves._WAYS):
        moved = (HOLES[:, label] == 0) & (least.assignments == component)
        turned = multi_label_moves._switched(least, moved, label, (a, b), data, model, 0.4)
        assert torch.equal(((turned.bits == 1) & (turned.signs == 1))[~HOLES.isnan()], (HOLES == 1)[~HOLES.isnan()])
    ones = multi_label_bits.refit(replace(least, bits=torch.where(HOLES.isnan(), HOLES, 1.0)), data, model, 0.4)
    costs = [multi_label_bits.label_cost(each, data, model, 0.4) for each in (least, ones)]
    torch.testing.assert_close(ones.objective - least.objective, costs[1] - costs[0])
    wrong = least.bits.clone(), least.signs.clone()
    absent = (HOLES[:, 0] == 0) & (least.assignments == 0)
    wrong[0][absent, 0], wrong[1][absent, 0] = 1.0, -1.0
    wrong = multi_label_bits.refit(replace(least, bits=wrong[0], signs=wrong[1]), data, model, 0.4)
    wrong = multi_label_bits.fit_classifiers(wrong, data, model)
    again = multi_label_moves.switch_labels(wrong, data, model, 0.4, generator)
    assert least.objective <= state.objective
    assert again.objective <= wrong.objective
    torch.testing.assert_close(again.objective, least.objective, rtol=1e-3, atol=0.0)


def test_a_descent_whose_bits_still_change_goes_on() -> None:
    model, data = BNMC(loss=Hinge(), joint="and").prepare(X, HOLES)
    restarts = restarts_of(model, data, penalty=6.0)
    generator = torch.Generator().manual_seed(0)
    state = restarts.first(generator)
    for _ in range(50):
        state = restarts.sweep(state, generator)
        if state.converged:
            break
    assert state.settled
    assert state.converged
    again = restarts.sweep(state, generator)
    assert again.settled
    assert again.converged
    ones = torch.where(HOLES.isnan(), HOLES, 1.0)  # bits that are not the cheapest
    assert (state.bits != ones)[~HOLES.isnan()].sum() > 1
    moved = restarts.sweep(replace(state, bits=ones), generator)
    assert not moved.settled
    assert not moved.converged
    torch.testing.assert_close(moved.objective, again.objective)


def test_classifiers_that_cost_less_than_the_solution_up_to_its_gap_stay() -> None:
    model, data = BNMC(loss=Hinge(), joint="and").prepare(X, HOLES)
    restarts = restarts_of(model, data, penalty=6.0)
    generator = torch.Generator().manual_seed(0)
    state = restarts.sweep(restarts.first(generator), generator)
    best = solve(data.features, state.signs, model.loss, model.weight_scale, tolerance=1e-9).weights
    state = replace(state, classifiers=best, tilt=torch.zeros_like(state.tilt))
    moved = multi_label_bits.fit_classifiers(state, data, model)
    before, after = (multi_label_bits.margin_cost(w, data, model) for w in (state, moved))
    assert after <= before


@pytest.mark.parametrize("joint", ["product", "and"])
def test_classifiers_of_weighed_rows_are_those_of_their_copies(joint: str, monkeypatch) -> None:
    monkeypatch.setattr(multi_label_bits, "_LIMITS", DualLimits(1e-9, 1000))
    again = torch.arange(90).repeat_interleave(COPIES.long())
    model, weighed = BNMC(loss=Hinge(), joint=joint).prepare(X, HOLES, weights=COPIES)
    copied = model.data(X[again], HOLES[again])
    found = []
    for data in (weighed, copied):
        if joint == "product":
            found.append(multi_label.fit_classifiers(data, model).weights[0])
            continue
        state = restarts_of(model, data, penalty=6.0).first(torch.Generator().manual_seed(0))
        found.append(multi_label_bits.fit_classifiers(state, data, model).classifiers)
    torch.testing.assert_close(*found, atol=1e-4, rtol=0.0)
    once = multi_label.fit_classifiers(model.data(X, HOLES), model).weights[0]
    assert (once - found[0]).abs().max() > 0.05
