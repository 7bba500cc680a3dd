"""The small-variance limit of multi-label models: the objective, the SVMs, and the labels' share in the partition."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from setups import Ramp

from regbayes.inference import SmallVariance
from regbayes.inference.classifiers.duals import solve
from regbayes.inference.classifiers.minimum import DualLimits
from regbayes.inference.small_variance.label_sets import bits, moves
from regbayes.inference.small_variance.label_sets.bits import LabelDescent, LabelProblem
from regbayes.inference.small_variance.label_sets.kernel import LabelRestarts
from regbayes.models import BNMC, BernoulliBeta, DiagonalGaussian, Hinge, Logistic
from regbayes.testing import check_kernel

GENERATOR = torch.Generator().manual_seed(4)
X = torch.randn((90, 2), generator=GENERATOR, dtype=torch.float64)
Y = torch.bernoulli(torch.stack([(2 * X[:, 0]).sigmoid(), (X[:, 1] - 1).sigmoid()], 1), generator=GENERATOR)
HOLES = Y.masked_fill(torch.rand(Y.shape, generator=GENERATOR) < 0.2, torch.nan)
COPIES = torch.arange(90).double() % 3 + 1


WEIGHED = pytest.mark.parametrize("weights", [None, COPIES], ids=["once", "weighed"])
BINARY = pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=repr)


def restarts_of(model, data, **options) -> LabelRestarts:
    """The restarts of a resolved model."""
    return LabelRestarts.of(SmallVariance(**options).resolve(model, data), model, data)


def coupled(rows: slice = slice(None), loss=None, weights=None, **options) -> tuple[LabelRestarts, LabelProblem]:
    """Restarts of the joint "and" on some of the rows."""
    model = BNMC(loss=loss or Hinge(), joint="and")
    restarts = restarts_of(*model.prepare(X[rows], HOLES[rows], weights=weights), **options)
    return restarts, restarts.problem


def after(restarts: LabelRestarts, num_sweeps: int, generator) -> LabelDescent:
    """The state after so many sweeps."""
    state = restarts.first(generator)
    for _ in range(num_sweeps):
        state = restarts.sweep(state, generator)
    return state


@pytest.mark.one_in(3)
@WEIGHED
@BINARY
@pytest.mark.parametrize("joint", ["product", "and"])
def test_objective_never_rises_and_is_what_it_says(joint, loss, weights) -> None:
    model = BNMC(loss=loss, label_likelihood=BernoulliBeta(0.5, 1.5), joint=joint)
    backend = SmallVariance(num_restarts=1, penalty=6.0, scale=0.7)
    if joint == "product":
        check_kernel(backend, model, X, HOLES)
    posterior = backend.fit(model, X, HOLES, sample_weight=weights)
    values = posterior.trace.values[0]
    assert (values.diff() <= 1e-9 * values[1:].abs()).all()
    each = torch.ones(90, 1).double() if weights is None else weights.unsqueeze(1)
    resolved, samples, z = posterior.model, posterior.samples, posterior.samples["assignments"][0].long()
    centers, means, classifiers = (samples[name][0] for name in ("centers", "label_means", "classifiers"))
    rows, f = resolved.likelihood.coordinates(X), resolved.features(X) @ classifiers
    one, zero = -0.7 * means.log()[z], -0.7 * torch.log1p(-means)[z]
    yes, no = (-loss.log_factor(f, sign * torch.ones_like(f)) for sign in (1, -1))
    absent = zero + no if joint == "product" else torch.minimum(zero + torch.minimum(yes, no), one + no)
    cost = torch.where(HOLES == 1, one + yes, absent)
    entropy = 0.25 * math.log(0.25) + 0.75 * math.log(0.75)
    smoothing = 2 * (entropy - 0.25 * means.log() - 0.75 * torch.log1p(-means)).sum()
    expected = 6.0 * len(centers) + 0.7 * ((each * (rows - centers[z]).square()).sum() / 2 + smoothing)
    expected = expected + (each * torch.where(HOLES.isnan(), 0.0, cost)).sum() + classifiers.square().sum() / 2
    if joint == "product":
        torch.testing.assert_close(expected, values[-1])
        return
    # the recorded one has the bits from before the last step of the classifiers, which can only lower J further
    assert expected <= values[-1] + 1e-9
    torch.testing.assert_close(expected, values[-1], rtol=1e-3, atol=0.0)
    apart = backend.fit(model.replace(joint="product"), X, HOLES, sample_weight=weights)
    assert values[-1] < apart.trace.final[0]


@pytest.mark.parametrize("loss", [Hinge(0.5), Logistic()], ids=repr)
def test_classifiers_are_at_the_optimum_of_the_known_labels(loss) -> None:
    """By Fenchel's duality: no weights cost less than the value of any feasible tilts of the known labels."""
    model, data = BNMC(loss=loss, weight_scale=0.7).prepare(X, HOLES)
    fit = LabelProblem(model, data, 1.0).fit(data.targets)
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


def fitted(state: LabelDescent, problem: LabelProblem) -> LabelDescent:
    found, cost = bits.fit_classifiers(state, problem)
    torch.testing.assert_close(cost, problem.margin_cost(found.signs, found.classifiers))
    return found


def test_each_block_of_the_coupled_descent_lowers_the_objective(cpu_generator) -> None:
    restarts, problem = coupled(penalty=6.0, scale=0.4)
    first = restarts.first(cpu_generator)
    torch.testing.assert_close(first.bits, HOLES, equal_nan=True)
    state = restarts.sweep(first, cpu_generator)
    for _ in range(3):
        for block in (bits.explain, partial(bits.explain, moves=False), fitted):
            moved = block(state, problem)
            assert problem.valued(moved).objective <= problem.valued(state).objective + 1e-9
            state = moved
        assert torch.equal(((state.bits == 1) & (state.signs == 1))[~HOLES.isnan()], (HOLES == 1)[~HOLES.isnan()])
        assert torch.equal(state.bits.isnan(), HOLES.isnan())


def test_bits_are_the_cheapest_of_all(cpu_generator) -> None:
    """Against every pair of bits, one label at a time, and every component for each point."""
    model, data = BNMC(loss=Hinge(), joint="and").prepare(X[:40], Y[:40])
    restarts = restarts_of(model, data, penalty=0.6, scale=0.1)
    state = after(restarts, 1, cpu_generator)
    shrunk = torch.cat([0.2 * state.centers[:, :2], state.centers[:, 2:]], 1)  # or each point is where it is cheapest
    state = replace(state, centers=shrunk)
    moved = bits.explain(state, restarts.problem)
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
        row = restarts.problem.mixture(moved.bits).rows(torch.tensor([n]))
        own = moved.centers[moved.assignments[n]].unsqueeze(0)
        margin = model.loss.log_factor(f[n], moved.signs[n]).sum()
        found = 0.1 * model.family.divergence(row.X, own).squeeze() - margin
        torch.testing.assert_close(found, costs.min())


def settled(restarts: LabelRestarts, generator) -> LabelDescent:
    """A state after some sweeps, and then with components at random, which no longer suit it."""
    state, num_data = after(restarts, 3, generator), restarts.problem.data.num_data
    stirred = torch.randperm(num_data, generator=generator) % 3
    centers, weights = state.centers[:1].expand(3, -1), state.weights[:1].expand(3, -1, -1)
    return bits.refit(replace(state, assignments=stirred, centers=centers, weights=weights), restarts.problem)


@pytest.mark.parametrize("weights", [None, COPIES[:12]], ids=["once", "weighed"])
@BINARY
def test_the_move_of_a_point_is_the_best_of_all(loss, weights, cpu_generator) -> None:
    """Against each of them, with J at the centres that follow."""
    restarts, problem = coupled(slice(12), loss, weights, penalty=60.0, scale=0.4)
    data, stirred = problem.data, settled(restarts, cpu_generator)
    alone = (stirred.assignments % 2).index_fill(0, torch.tensor(0), 2)
    for state in (stirred, bits.refit(replace(stirred, assignments=alone), problem)):
        means, scores = problem.label_means(state), data.features @ state.classifiers
        found = []
        for n in range(12):
            for k in set(range(state.num_components)) - {int(state.assignments[n])}:
                one = problem.cheapest_bits(data.targets[n : n + 1], scores[n : n + 1], means[k : k + 1])
                moved = replace(
                    state,
                    assignments=state.assignments.index_fill(0, torch.tensor(n), k),
                    bits=state.bits.index_copy(0, torch.tensor([n]), one[0]),
                    signs=state.signs.index_copy(0, torch.tensor([n]), one[1]),
                )
                found.append(bits.refit(moved.occupied(), problem).objective)
        best = moves._stepped(state, problem).objective
        torch.testing.assert_close(best, min(found))
        assert moves.step_points(state, problem).objective <= best < state.objective


@WEIGHED
def test_absences_of_one_component_are_explained_together(weights, cpu_generator) -> None:
    restarts, problem = coupled(weights=weights, penalty=60.0, scale=0.4)
    state = settled(restarts, cpu_generator)
    least = moves.switch_labels(state, problem, cpu_generator)
    for label, component, way in itertools.product(range(2), range(2), moves._WAYS):
        moved = (HOLES[:, label] == 0) & (least.assignments == component)
        turned = moves._switched(least, moved, label, way, problem)
        assert torch.equal(((turned.bits == 1) & (turned.signs == 1))[~HOLES.isnan()], (HOLES == 1)[~HOLES.isnan()])
    ones = bits.refit(replace(least, bits=torch.where(HOLES.isnan(), HOLES, 1.0)), problem)
    costs = [problem.label_cost(each) for each in (least, ones)]
    torch.testing.assert_close(ones.objective - least.objective, costs[1] - costs[0])
    wrong = least.bits.clone(), least.signs.clone()
    absent = (HOLES[:, 0] == 0) & (least.assignments == 0)
    wrong[0][absent, 0], wrong[1][absent, 0] = 1.0, -1.0
    wrong = fitted(bits.refit(replace(least, bits=wrong[0], signs=wrong[1]), problem), problem)
    again = moves.switch_labels(wrong, problem, cpu_generator)
    assert least.objective <= state.objective
    assert again.objective <= wrong.objective
    torch.testing.assert_close(again.objective, least.objective, rtol=1e-3, atol=0.0)


def test_a_descent_whose_bits_still_change_goes_on(cpu_generator) -> None:
    restarts, _ = coupled(penalty=6.0)
    state = restarts.first(cpu_generator)
    for _ in range(50):
        state = restarts.sweep(state, cpu_generator)
        if state.converged:
            break
    again = restarts.sweep(state, cpu_generator)
    assert all((state.settled, state.converged, again.settled, again.converged))
    ones = torch.where(HOLES.isnan(), HOLES, 1.0)  # bits that are not the cheapest
    assert (state.bits != ones)[~HOLES.isnan()].sum() > 1
    moved = restarts.sweep(replace(state, bits=ones), cpu_generator)
    assert not moved.settled
    assert not moved.converged
    torch.testing.assert_close(moved.objective, again.objective)


def test_classifiers_that_cost_less_than_the_solution_up_to_its_gap_stay(cpu_generator) -> None:
    restarts, problem = coupled(penalty=6.0)
    state, model = after(restarts, 1, cpu_generator), problem.model
    best = solve(problem.data.features, state.signs, model.loss, model.weight_scale, tolerance=1e-9).weights
    state = replace(state, classifiers=best, tilt=torch.zeros_like(state.tilt))
    moved = fitted(state, problem)
    before, after_fit = (problem.margin_cost(one.signs, one.classifiers) for one in (state, moved))
    assert after_fit <= before


def test_classifiers_of_weighed_rows_are_those_of_their_copies(monkeypatch) -> None:
    monkeypatch.setattr(bits, "_LIMITS", DualLimits(1e-9, 1000))
    again = torch.arange(90).repeat_interleave(COPIES.long())
    model, weighed = BNMC(loss=Hinge()).prepare(X, HOLES, weights=COPIES)
    every = weighed, model.data(X[again], HOLES[again]), model.data(X, HOLES)
    found, copied, once = (LabelProblem(model, data, 1.0).fit(data.targets).weights[0] for data in every)
    torch.testing.assert_close(found, copied, atol=1e-4, rtol=0.0)
    assert (once - found).abs().max() > 0.05
