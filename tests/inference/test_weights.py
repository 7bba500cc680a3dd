"""Observation weights: a row of weight r is r rows, in every sum of SVI and of the small-variance limit."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
import scipy.sparse
import torch
from setups import FAMILIES, mixture_rows
from torch import Tensor
from torch.utils.data import DataLoader
from variational import elbo, retold

from regbayes.inference import NUTS, SVI, Gibbs, SmallVariance, seeding
from regbayes.inference.classifiers.duals import solve
from regbayes.inference.classifiers.minimum import target_size
from regbayes.inference.distributed import picked
from regbayes.inference.small_variance import descent
from regbayes.inference.small_variance.assignment import component_sums
from regbayes.inference.small_variance.births import open_components
from regbayes.inference.small_variance.landscape import Landscape
from regbayes.inference.small_variance.merge import merge_once
from regbayes.inference.small_variance.penalty import single_penalty
from regbayes.inference.small_variance.problem import Problem
from regbayes.inference.small_variance.repelling import refit
from regbayes.inference.small_variance.state import RepellingDescent
from regbayes.inference.svi import factors
from regbayes.inference.svi.partition import factors as sticks
from regbayes.inference.svi.partition import kernel as partition
from regbayes.models import (
    DDPM,
    DPM,
    IHMM,
    InfiniteSVM,
    MultiTaskInfiniteLatentSVM,
    PitmanYor,
    PrincipalDirections,
    RandomFourier,
    Standardized,
)
from regbayes.models.config import resolved
from regbayes.models.likelihoods import DiagonalGaussian, FullGaussian, PoissonGamma, SphericalGaussian
from regbayes.models.losses import CrammerSinger, EpsilonInsensitive, Hinge, Logistic, OneVsRest, SquaredHinge
from regbayes.models.sparse import SparseRows

WEIGHTS = torch.tensor([2, 1, 3, 1, 1, 2, 4, 1, 2, 1, 1, 3, 1, 2, 1, 5], dtype=torch.float64)
REPEATED = torch.arange(len(WEIGHTS)).repeat_interleave(WEIGHTS.long())
REAL = WEIGHTS * torch.linspace(0.1, 1.3, len(WEIGHTS), dtype=torch.float64)
LOSSES = {
    "hinge": Hinge(2.0, 1.5),
    "logistic": Logistic(),
    "one_vs_rest": OneVsRest(Hinge()),
    "epsilon": EpsilonInsensitive(1.5, 0.2),
}
MODELS = {name: InfiniteSVM(loss=loss, truncation=5) for name, loss in LOSSES.items()} | {
    "dpm": DPM(truncation=5),
    "pitman_yor": DPM(SphericalGaussian(), PitmanYor(0.3, 1.0), truncation=5),
    "ddpm": DDPM(truncation=4),
    "ddpm_logistic": DDPM(FullGaussian(), loss=Logistic(), truncation=4),
}
JOINT = InfiniteSVM(loss=CrammerSinger(0.8, 1.3), weight_scale=0.7)


def rows_and_targets(model, N: int = len(WEIGHTS)) -> tuple[Tensor, Tensor | None]:
    """Three groups of rows, and targets that a line does not tell apart."""
    X, group = mixture_rows(DiagonalGaussian, N, 2, seed=3)
    score = X[:, 0] * (group.double() - 1) + 0.5 * X[:, 1]
    if "classes" not in model.get_params(deep=False):
        return X, None
    if isinstance(model.loss, EpsilonInsensitive):
        return X, score
    return X, (score > -0.4).long() + ((score > 0.4).long() if isinstance(model.loss, OneVsRest | CrammerSinger) else 0)


def both(model, weights: Tensor = WEIGHTS):
    """(resolved model, data) with integer weights, and of the repeated rows."""
    X, y = rows_and_targets(model)
    again = torch.arange(len(X)).repeat_interleave(weights.long())
    return model.prepare(X, y, weights=weights), model.prepare(X[again], None if y is None else y[again])


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-8) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# -- defaults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_defaults_of_families_see_weights(family) -> None:
    X, _ = mixture_rows(family, len(WEIGHTS))
    expected = family().resolve(X[REPEATED]).get_params(deep=False)
    for name, value in resolved(family(), X, WEIGHTS).get_params(deep=False).items():
        close(value, expected[name], 1e-12)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    "feature_map",
    [
        Standardized(),
        RandomFourier(6, common_scale=True),
        PrincipalDirections(),
        PrincipalDirections(2),
        PrincipalDirections(2, True),
    ],
    ids=repr,
)
def test_defaults_of_feature_maps_see_weights(feature_map, sparse) -> None:
    X = mixture_rows(PoissonGamma, len(WEIGHTS), 4)[0]
    X = X + (X.sum(1, keepdim=True) == 0).double()
    if sparse and not isinstance(feature_map, PrincipalDirections):
        pytest.skip("the map takes no sparse rows")
    rows = SparseRows.of(scipy.sparse.csr_array(X.numpy())) if sparse else X
    close(resolved(feature_map, rows, WEIGHTS)(X), feature_map.resolve(rows[REPEATED])(X), 1e-6 if sparse else 1e-10)


def test_a_part_of_a_user_without_weights_is_refused_in_a_sentence() -> None:
    class Own(DiagonalGaussian):
        def resolve(self, X):
            return super().resolve(X)

    X, _ = rows_and_targets(DPM())
    assert SVI(num_steps=2).fit(DPM(Own()), X).num_components
    with pytest.raises(ValueError, match=r"sample_weight is given, but Own.resolve takes no weights\. Give it an"):
        SVI(num_steps=2).fit(DPM(Own()), X, sample_weight=WEIGHTS)


def test_a_part_of_a_user_that_forgets_to_return_is_named() -> None:
    class Own(DiagonalGaussian):
        def resolve(self, X, weights=None):
            super().resolve(X, weights)

    X, _ = rows_and_targets(DPM())
    with pytest.raises(ValueError, match=r"Own\.resolve returned None; it has to return a copy of the part"):
        SVI(num_steps=2).fit(DPM(Own()), X)


# -- variational inference ---------------------------------------------------------------------------------------------


def started(model, data, responsibilities: Tensor) -> sticks.VariationalPartition:
    """A state with these responsibilities and all else that does not follow from them as it is at first."""
    state = partition.init(model, data, torch.Generator().manual_seed(0))
    state = replace(state, responsibilities=responsibilities, weights=data.weights)
    state = factors.update_components(sticks.update_sticks(state, model), data, model)
    return retold(state, data, model)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_svi_goes_the_path_of_repeated_rows(model) -> None:
    (one, weighted), (other, repeated) = both(model)
    r = torch.rand(len(WEIGHTS), model.truncation, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    r = r / r.sum(1, keepdim=True)
    state, expected = started(one, weighted, r), started(other, repeated, r[REPEATED])
    for _ in range(12):  # with orders of the components and merges
        state, expected = partition.sweep(state, weighted, one), partition.sweep(expected, repeated, other)
        close(state.bound, expected.bound)
        close(state.sizes, expected.sizes)
        close(state.hyperparameters, expected.hyperparameters)
        close(state.mean, expected.mean)
        close(state.responsibilities[REPEATED], expected.responsibilities)
        close(elbo(state, weighted, one), elbo(expected, repeated, other))
    assert state.total_weight == weighted.total_weight == expected.total_weight == len(REPEATED)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_svi_with_real_weights_never_lowers_the_bound(model) -> None:
    X, y = rows_and_targets(model)
    trace = SVI(num_steps=30, tolerance=0.0).fit(model, X, y, sample_weight=REAL).trace.values[0]
    assert (trace.diff() >= -1e-9 * trace[1:].abs()).all()


@pytest.mark.parametrize("name", ["hinge", "dpm", "ddpm"])
def test_the_mean_over_all_batches_is_the_full_step(name, monkeypatch) -> None:
    """At a level in the middle of each copy, every copy of a row is drawn once."""
    model, size = MODELS[name], 2
    (model, data), _ = both(model)
    data = data.rows(torch.arange(5))  # weights 2, 1, 3, 1, 1
    R = int(data.total_weight)
    state = partition.sweep(partition.init(model, data, torch.Generator().manual_seed(2)), data, model)
    expected = factors.update_factors(factors.allocate(state, data, model), data, model)
    penalty, targets = factors.kl(state, model), []
    for pair in itertools.product(range(R), repeat=size):
        levels = (torch.tensor(pair, dtype=torch.float64) + 0.5) / R
        monkeypatch.setattr(picked, "uniforms", lambda shape, generator, levels=levels: levels)
        batch = partition.minibatch(data, size, torch.Generator())
        local = factors.allocate(state, batch.data, model, penalty)
        scaled = local.scaled(batch.scale)
        target = factors.update_factors(scaled, batch.data, model)
        bound = batch.scale * (local.bound + penalty) - penalty
        targets.append([target.sizes, target.hyperparameters, *target.classifiers.natural, bound])
    found = [torch.stack(parts).mean(0) for parts in zip(*targets, strict=True)]
    whole = factors.allocate(state, data, model)
    wholes = [whole.sizes, expected.hyperparameters, *expected.classifiers.natural, whole.bound]
    for mean, exact in zip(found, wholes, strict=True):
        close(mean, exact)


def test_stochastic_steps_start_from_rows_that_stand_for_all_weights() -> None:
    (model, data), _ = both(MODELS["hinge"])
    state = partition.sweep(partition.init(model, data, torch.Generator().manual_seed(2)), data, model)
    found = partition.extrapolate(state, data, model, data.num_data, 3 * data.total_weight)
    many = replace(data, weights=3 * data.weights)
    observed = retold(replace(state, weights=many.weights), many, model)
    expected = factors.update_factors(observed, many, model)
    for name in ("sticks", "hyperparameters", "mean"):
        close(getattr(found, name), getattr(expected, name))


def test_seeds_are_drawn_by_weight() -> None:
    X = torch.tensor([[0.0], [10.0], [-10.0], [0.1]], dtype=torch.float64)
    family = SphericalGaussian(0.0, 1.0, 100.0).resolve(X)
    weights = torch.tensor([1.0, 1.0, 1e-12, 1e-12], dtype=torch.float64)
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        assert set(seeding.far_apart(family, X, 2, generator, weights).flatten().tolist()) == {0.0, 10.0}


def test_seeds_of_many_rows_are_among_some_of_them_with_their_weights(monkeypatch) -> None:
    """The rows far out weigh nothing; of the others, ten values ten times each, some are at hand in each sample."""
    X = torch.arange(200.0, dtype=torch.float64).unsqueeze(1) % 10 * 5
    X[::2] += 1000.0
    weights = torch.tensor([0.0, 1.0], dtype=torch.float64).repeat(100)
    family = SphericalGaussian(0.0, 1.0, 100.0).resolve(X, weights)
    monkeypatch.setattr(seeding, "MOST_ROWS", 60)
    found = [seeding.far_apart(family, X, 4, torch.Generator().manual_seed(seed), weights) for seed in range(10)]
    assert all(len(rows.unique()) == 4 and rows.max() < 50 for rows in found)
    seen = list[int]()
    taken = seeding.sampled_rows
    monkeypatch.setattr(seeding, "sampled_rows", lambda *how: seen.append(how[1]) or taken(*how))
    seeding.far_apart(family, X[:60], 4, torch.Generator(), weights[:60])
    assert not seen  # few rows are all taken


# -- small variance ----------------------------------------------------------------------------------------------------

POINTS = {**MODELS, "crammer_singer": JOINT}
APART = {name: model for name, model in POINTS.items() if not model.repels}


@dataclass(frozen=True)
class Pair:
    """The problems of weighted and of repeated rows."""

    weighted: Problem
    repeated: Problem

    @classmethod
    def of(cls, model) -> Pair:
        return cls(*(Problem.of(resolved_model, data, 0.7) for resolved_model, data in both(model)))

    def states(self, labels: Tensor, generator: torch.Generator) -> list[descent.Descent]:
        """The same partition and classifiers for both, and the centres that fit."""
        K, first = int(labels.max()) + 1, descent.init(self.weighted, 2.0)
        weights = torch.randn(K, *first.weights.shape[1:], generator=generator, dtype=torch.float64)
        found = []
        for problem, z in ((self.weighted, labels), (self.repeated, labels[REPEATED])):
            centers = problem.centers(*component_sums(problem.X, z, K, problem.data.weights))
            state = replace(descent.init(problem, 2.0), assignments=z, centers=centers, weights=weights)
            found.append(replace(state, objective=descent.objective(problem, state)))
        return found


@pytest.mark.parametrize("model", APART.values(), ids=APART)
def test_the_objective_is_that_of_repeated_rows_at_any_partition(model, cpu_generator) -> None:
    pair = Pair.of(model)
    zeros = (torch.zeros(each.num_data, dtype=torch.long) for each in (pair.weighted, pair.repeated))
    margins = (each.margins(z, 1) for each, z in zip((pair.weighted, pair.repeated), zeros, strict=True))
    close(*(target_size(each) for each in margins))
    for _ in range(20):
        labels = torch.randint(3, (len(WEIGHTS),), generator=cpu_generator).unique(return_inverse=True)[1]
        state, expected = pair.states(labels, cpu_generator)
        close(state.centers, expected.centers)
        close(state.objective, expected.objective)
        if model is JOINT:  # its dual takes steps that depend on the rows, and stops near the optimum: see below
            continue
        state, parts = descent.fit_components(state, pair.weighted, 6)
        expected, others = descent.fit_components(expected, pair.repeated, 6)
        close(state.weights, expected.weights, 1e-6)
        for found, exact in zip(parts, others, strict=True):
            close(found, exact, 1e-6)


@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=["hinge", "logistic"])
def test_the_objective_of_repelling_components_is_that_of_repeated_rows(loss, cpu_generator) -> None:
    (one, weighted), (other, repeated) = both(DDPM(loss=loss))
    landscape, expected = Landscape.of(one, weighted, 0.7), Landscape.of(other, repeated, 0.7)
    close(landscape.empty_cost, expected.empty_cost, 1e-6)
    close(landscape.empty, expected.empty, 1e-5)
    for _ in range(5):
        labels = torch.randint(3, (len(WEIGHTS),), generator=cpu_generator).unique(return_inverse=True)[1]
        states = []
        for place, z in ((landscape, labels), (expected, labels[REPEATED])):
            empty = place.empty.repeat(int(labels.max()) + 1, 1, 1)
            number = empty.new_tensor(1.5)
            centers = empty.new_zeros(len(empty), 2)
            states.append(refit(RepellingDescent(z, centers, empty, number, number, number, number), place, 400_000))
        for name in ("centers", "weights", "objective"):
            close(*(getattr(state, name) for state in states), 1e-5)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", POINTS)
def test_no_step_of_small_variance_raises_the_objective(name) -> None:
    model, creation = POINTS[name], "single" if name in ("logistic", "pitman_yor") else "joint"
    X, y = rows_and_targets(model, 30)
    weights = torch.rand(30, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 4
    backend = SmallVariance(penalty=6.0, creation=creation, tolerance=0.0, max_steps=8, num_restarts=1)
    posterior = backend.fit(model, X, y, sample_weight=weights)
    trace = posterior.trace.values[0]
    assert (trace.diff() <= 1e-9 * trace[1:].abs()).all()
    sizes = torch.bincount(posterior.samples["assignments"][0], weights)
    close(posterior.samples["log_mixture"][0, :-1].exp(), sizes / sizes.sum(), 1e-12)


def test_a_component_opens_where_the_weights_pay_for_it() -> None:
    """Either of two points saves 1.5^2 / 2 of its own, less than the penalty of 10, but ten copies pay for it."""
    X, model = torch.tensor([[0.0], [3.0]], dtype=torch.float64), DPM(SphericalGaussian(0.0, 1.0, 1.0))
    for weights, expected in (([1.5, 1.5], 1), ([10.0, 10.0], 2)):
        found = SmallVariance(penalty=10.0, merge=False, num_restarts=1).fit(model, X, sample_weight=weights)
        assert found.num_components == expected


def test_gains_of_births_and_merges_are_what_the_objective_changes_by(cpu_generator) -> None:
    problem = Pair.of(DPM()).weighted
    state = replace(descent.init(problem, 0.5), grows=True)
    state, cost = descent.assign(state, problem)
    opened, _ = descent.fit_components(open_components(state, cost, problem, cpu_generator), problem, 1)
    assert opened.num_components > 2
    before = descent.objective(problem, opened)
    parts = descent.fit_components(opened, problem, 1)[1]
    merged, _, gains = merge_once(opened, parts, problem, least_gain=-torch.inf)
    assert gains
    close(before - descent.objective(problem, merged), before.new_tensor(sum(gains)))


def test_merges_of_many_components_weigh_their_losses() -> None:
    """With more pairs than are fitted anew, the savings rest on the better classifier of the two."""
    (model, data), (other, repeated) = both(InfiniteSVM(), torch.full_like(WEIGHTS, 3.0))
    labels = torch.arange(len(WEIGHTS)) % 6
    found = []
    for resolved_model, points, z in ((model, data, labels), (other, repeated, labels.repeat_interleave(3))):
        problem = Problem.of(resolved_model, points, 0.7)
        state = replace(descent.init(problem, 1.0), assignments=z)
        state = replace(state, weights=state.weights.repeat(6, 1, 1), centers=state.centers.repeat(6, 1))
        state, parts = descent.fit_components(state, problem, 3)
        found.append(merge_once(state, parts, problem, most=3, least_gain=-torch.inf)[2])
    close(*map(torch.tensor, found), 1e-5)


def test_the_penalty_of_single_creation_is_that_of_repeated_rows() -> None:
    pair = Pair.of(MODELS["hinge"])
    assert single_penalty(pair.weighted, 3) == pytest.approx(single_penalty(pair.repeated, 3), rel=1e-6)


def test_the_joint_dual_has_boxes_as_wide_as_the_weights() -> None:
    (_, weighted), (_, repeated) = both(JOINT)
    loss, options = JOINT.loss, {"max_passes": 20_000, "tolerance": 1e-9}
    found = solve(weighted.features, weighted.targets, loss, 0.7, row_weights=weighted.weights, **options)
    expected = solve(repeated.features, repeated.targets, loss, 0.7, **options)
    close(found.weights, expected.weights, 1e-4)
    own = found.tilt.amax(1)
    assert (own <= 2 * loss.strength * WEIGHTS * (1 + 1e-9)).all()
    assert (own > 2 * loss.strength).any()


# -- what a user sees --------------------------------------------------------------------------------------------------

BACKENDS = {
    "svi": SVI(num_steps=20),
    "stochastic": SVI(num_steps=10, batch_size=5),
    "small_variance": SmallVariance(num_components=3, num_restarts=1),
    "gibbs": Gibbs(num_samples=5, num_warmup=5, num_chains=2),
    "blocked": Gibbs(num_samples=5, num_warmup=5, scan="blocked"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("model", [MODELS["hinge"], DPM(), DDPM()], ids=["hinge", "dpm", "ddpm"])
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_rows_of_weight_zero_are_left_out_and_assigned_at_the_end(backend, model) -> None:
    X, y = rows_and_targets(model)
    weights = torch.tensor([1.0, 0.0, 1.0, 1.0] * 4)
    kept = weights > 0
    found = backend.fit(model, X, y, sample_weight=weights)
    expected = backend.fit(model, X[kept], None if y is None else y[kept])
    torch.testing.assert_close(found.trace.values, expected.trace.values, rtol=0, atol=0)
    for name, value in expected.samples.items():
        rows = found.samples[name][:, kept] if name in ("assignments", "responsibilities") else found.samples[name]
        assert torch.equal(rows, value), name
    assert found.samples["assignments"].shape[1] == len(X)
    assert found.representative == expected.representative
    if "responsibilities" in found.samples:
        close(found.samples["responsibilities"].sum(2), torch.ones(1, len(X), dtype=X.dtype))
        assert torch.equal(found.samples["responsibilities"].argmax(2), found.samples["assignments"])
    if len(found.samples["assignments"]) == 1:
        assert torch.equal(found.samples["assignments"][0, ~kept].long(), expected.assign(X[~kept]))


@pytest.mark.parametrize("scan", ["collapsed", "slice", "blocked"])
def test_gibbs_repeats_rows_and_reports_the_first_copy(scan) -> None:
    model, backend = MODELS["hinge"], Gibbs(num_samples=4, num_warmup=2, scan=scan)
    X, y = rows_and_targets(model)
    found, expected = backend.fit(model, X, y, sample_weight=WEIGHTS), backend.fit(model, X[REPEATED], y[REPEATED])
    first = WEIGHTS.long().cumsum(0) - WEIGHTS.long()
    assert torch.equal(found.samples["assignments"], expected.samples["assignments"][:, first])
    assert torch.equal(found.samples["weights"], expected.samples["weights"])


@pytest.mark.one_in(3)
def test_weights_of_one_change_nothing() -> None:
    X, y = rows_and_targets(MODELS["hinge"])
    for backend in BACKENDS.values():
        plain, weighted = backend.fit(MODELS["hinge"], X, y), backend.fit(MODELS["hinge"], X, y, sample_weight=[1] * 16)
        assert all(torch.equal(plain.samples[name], weighted.samples[name]) for name in plain.samples)


# -- weights of losses -------------------------------------------------------------------------------------------------


def same(one, other) -> None:
    for name, value in one.samples.items():
        close(value, other.samples[name], 1e-7)
    close(one.trace.values, other.trace.values, 1e-9)


@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
@pytest.mark.parametrize("num_columns", [2, 20], ids=["all pairs", "pairs that may have a share"])
@pytest.mark.parametrize("loss", [Hinge, SquaredHinge], ids=["hinge", "squared hinge"])
def test_a_loss_of_weight_two_is_one_of_twice_the_strength(loss, num_columns) -> None:
    X, group = mixture_rows(DiagonalGaussian, 60, num_columns, seed=3)
    X, y = X + 3.0 * group.unsqueeze(1), (X[:, 0] * (group.double() - 1) > -0.4).long()
    model, double = (InfiniteSVM(loss=loss(strength), truncation=5) for strength in (1.0, 2.0))
    fit = SVI(num_steps=6, tolerance=None).fit
    same(fit(model, X, y, loss_weight=[2.0] * 60), fit(double, X, y))


@pytest.mark.parametrize("name", ["hinge", "logistic"])
def test_a_loss_of_weight_zero_is_that_of_a_row_without_a_label(name) -> None:
    X, y = rows_and_targets(MODELS[name])
    times, known = torch.ones(16), y.double()
    times[3::4], known[3::4] = 0.0, torch.nan
    fit, model = SVI(num_steps=20, tolerance=None).fit, MODELS[name].replace(classes=[0, 1])
    same(fit(model, X, y, loss_weight=times), fit(model, X, known))


@pytest.mark.parametrize("name", ["hinge", "one_vs_rest", "logistic"])
def test_losses_have_weights_of_their_own_wherever_their_rows_count(name) -> None:
    (one, weighted), (other, repeated) = both(MODELS[name])
    r = torch.rand(16, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    r = r / r.sum(1, keepdim=True)
    weighted, repeated = (replace(data, loss_weights=c) for data, c in ((weighted, REAL), (repeated, REAL[REPEATED])))
    state, expected = started(one, weighted, r), started(other, repeated, r[REPEATED])
    before = -torch.inf
    for _ in range(8):
        state, expected = partition.sweep(state, weighted, one), partition.sweep(expected, repeated, other)
        close(state.bound, expected.bound)
        close(*(each.mean[each.mean[:, 0, 0].argsort()] for each in (state, expected)))  # empty ones have no order
        assert state.bound >= before - 1e-9 * abs(before)
        before = float(state.bound)


@pytest.mark.parametrize(
    ("backend", "model"),
    [
        (SVI(rule="averaging"), InfiniteSVM()),
        (SmallVariance(), InfiniteSVM()),
        (Gibbs(), InfiniteSVM()),
        (SVI(), DPM()),
        (SVI(), DDPM()),
    ],
    ids=lambda part: type(part).__name__,
)
def test_weights_of_losses_are_refused_where_nothing_reads_them(backend, model) -> None:
    X, y = rows_and_targets(model)
    kind = f"{type(backend).__name__} of {type(model).__name__} takes no loss_weight"
    with pytest.raises(ValueError, match=kind):
        backend.fit(model, X, y, loss_weight=WEIGHTS)


@pytest.mark.parametrize("backend", [Gibbs(), NUTS()], ids=["gibbs", "nuts"])
def test_backends_that_draw_components_of_rows_refuse_fractions(backend) -> None:
    X, _ = rows_and_targets(DPM())
    message = rf"sample_weight is 0.2 in row 0; {type(backend).__name__} takes whole numbers, since .* fit with SVI\(\)"
    with pytest.raises(ValueError, match=message):
        backend.fit(DPM(), X, sample_weight=REAL)
    with pytest.raises(ValueError, match=r"sample_weight adds up to 1.6e.13 rows"):
        backend.fit(DPM(), X, sample_weight=[1e12] * 16)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0] * 15, r"sample_weight has shape \(15,\) .* expected \[16\], one real number for each row of X"),
        ([[1.0]] * 16, r"sample_weight has shape \(16, 1\)"),
        (3.0, r"sample_weight has shape \(\)"),
        ([1j] * 16, "sample_weight has complex values"),
        (["a"] * 16, "sample_weight cannot be read as an array of numbers"),
        ([1.0, -2.0] * 8, r"sample_weight is -2.0 in row 1; expected finite numbers from 0"),
        ([float("nan")] * 16, "sample_weight is nan in row 0"),
        ([float("inf")] * 16, "sample_weight is inf in row 0"),
        ([0.0] * 16, "sample_weight is zero in all rows"),
        ([1.0] + [0.0] * 15, "X has n_samples=1 with a positive sample_weight; expected at least 2"),
    ],
    ids=str,
)
def test_weights_that_mean_nothing_are_refused(weights, message) -> None:
    X, _ = rows_and_targets(DPM())
    with pytest.raises(ValueError, match=message):
        SVI().fit(DPM(), X, sample_weight=weights)


def test_sequences_tasks_and_streams_take_no_weights() -> None:
    X, _ = rows_and_targets(DPM())
    tasks, Y = MultiTaskInfiniteLatentSVM(), torch.stack([WEIGHTS, -WEIGHTS], 1).sign()
    message = r"MultiTaskInfiniteLatentSVM takes no sample_weight: a row counts once in each of its tasks\. Leave it"
    with pytest.raises(ValueError, match=message):
        SVI().fit(tasks, X, Y, sample_weight=WEIGHTS)
    with pytest.raises(ValueError, match="IHMM takes no sample_weight: only rows that are exchangeable have weights"):
        SVI().fit(IHMM(), X, sample_weight=WEIGHTS)
    with pytest.raises(ValueError, match=r"sample_weight goes with arrays. Leave it out of a fit from a source"):
        SVI().fit(DPM(), DataLoader(X, batch_size=4), sample_weight=WEIGHTS)


def test_weights_may_be_on_sparse_rows_and_in_single_precision() -> None:
    X, _ = mixture_rows(PoissonGamma, len(WEIGHTS))
    model = DPM(PoissonGamma(), truncation=5)
    for backend in (SVI(num_steps=20), SmallVariance(num_components=2)):
        dense = backend.fit(model, X, sample_weight=REAL)
        sparse = backend.fit(model, scipy.sparse.csr_array(X.numpy()), sample_weight=REAL)
        single = backend.fit(model, X.float(), sample_weight=REAL)
        close(sparse.trace.values, dense.trace.values)
        assert single.samples["log_mixture"].dtype == torch.float32
