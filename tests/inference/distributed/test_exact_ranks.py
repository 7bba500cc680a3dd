"""Sweeps of two ranks from independent states of an exact posterior: the posterior stays as it is."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import exact_projections
import pytest
import torch
from exact_features import drift, exact_states
from exact_starts import ExactStarts, PartitionStarts, PathStarts
from scipy.stats import chi2
from setups import by_day, first_appearance, label_law
from torch import Tensor
from two_ranks import Thread, on_threads, split

from regbayes.inference import Gibbs
from regbayes.inference.gibbs import hyperplanes
from regbayes.inference.gibbs.features.columns import draw_column
from regbayes.inference.gibbs.label_sets import coupled
from regbayes.inference.gibbs.label_sets import kernel as label_sets
from regbayes.inference.gibbs.label_sets.coupled import LabelState
from regbayes.inference.gibbs.paths import Paths
from regbayes.models import (
    BNMC,
    DDPM,
    DIH,
    IHMM,
    BernoulliBeta,
    BetaBernoulli,
    Hinge,
    IndianBuffetProcess,
    InfiniteLatentSVM,
    LinearGaussian,
    Logistic,
    MultinomialDirichlet,
    MultiTaskInfiniteLatentSVM,
    PrincipalDirections,
    SphericalGaussian,
    Standardized,
    TaskData,
)
from regbayes.models.priors import HierarchicalDirichletProcess
from regbayes.models.sums import among
from regbayes.testing.multi_label import label_posterior
from regbayes.testing.sequences import state_posterior

X = torch.tensor([[-1.2], [-0.8], [1.1], [torch.nan], [0.9]], dtype=torch.float64)
FAMILY = SphericalGaussian(loc=0.0, variance=0.5, prior_variance=1.0)


def moved(kernel: Any, model: Any, parts: list[Any], states: list[list[Any]], num_sweeps: int) -> list[list[Any]]:
    """The states of each rank after sweeps, from those of each rank with its data."""

    def task(rank: int, ranks: Thread) -> list[Any]:
        with among(ranks):
            data, found = kernel.prepare(model, parts[rank]), []
            for seed, state in enumerate(states[rank]):
                generator = torch.Generator().manual_seed(seed)
                for step in range(num_sweeps):
                    state = kernel.sweep(state, data, model, generator, step)
                found.append(state)
            return found

    return on_threads(task)


def require_equal_means(before: Tensor, after: Tensor) -> None:
    """Numbers [S, M] of independent states have the same means after sweeps."""
    gap = after - before
    z = gap.mean(0) / (gap.std(0) / len(gap) ** 0.5).clamp(min=1e-12)
    assert (z.abs() < 4.2).all(), z


def draws(exact: dict[Any, float], number: int, generator: torch.Generator) -> list[Tensor]:
    """So many labels [N] from their exact posterior."""
    mass = torch.tensor(list(exact.values()), dtype=torch.float64)
    chosen = torch.multinomial(mass, number, replacement=True, generator=generator).tolist()
    return [torch.tensor(list(exact)[place]) for place in chosen]


def p_value(exact: dict[Any, float], found: list[Any]) -> float:
    """Of a chi-square of what was found, whose probabilities are known."""
    names, mass = list(exact), torch.tensor(list(exact.values()), dtype=torch.float64)
    visits = torch.bincount(torch.tensor([names.index(each) for each in found]), minlength=len(names)).double()
    expected = len(found) * mass
    rare = expected < 5
    visits, expected = (torch.cat([each[~rare], each[rare].sum().view(1)]) for each in (visits, expected))
    assert len(visits) > 3, "too few states to tell one label from another"
    statistic = ((visits - expected).square() / expected.clamp(min=1e-9)).sum()
    return float(chi2.sf(float(statistic), len(visits) - 1))


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("rho", [0.0, 0.4])
@pytest.mark.parametrize("scan", ["beam", "blocked"])
def test_paths_of_two_ranks_keep_the_posterior(scan, rho) -> None:
    """The first rank has the longer sequence, the second one with a step that is missing."""
    prior, first, number = HierarchicalDirichletProcess(1.5, None, 2.0, None, stickiness=rho), 3, by_day(600)
    model, data = IHMM(FAMILY, prior, truncation=3).prepare(X, None, [3, 2])
    truncated, generator = scan == "blocked", torch.Generator().manual_seed(5)
    exact = state_posterior(model, X, [3, 2], truncation=3 if truncated else None)
    z, states = Paths(label_law(model, truncated), data), []
    for path in draws(exact, number, generator):
        state = z.begin(path, model)
        for _ in range(8):  # base weights given the paths
            state = z.draw_prior(state, generator)
        states.append(state)
    parts = [model.data(split(X, rank, first), [length]) for rank, length in enumerate((3, 2))]
    found = moved(Gibbs.module_of(model).kernel(Gibbs(scan=scan), model), model, parts, of_ranks(states, first), 2)
    labels = []
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.base, other.base)
        both = tuple(torch.cat([one.assignments, other.assignments]).tolist())
        labels.append(both if truncated else first_appearance(both))
    assert p_value(exact, labels) > 1e-4


def of_ranks(states: list[Any], first: int) -> list[list[Any]]:
    """The states of each of two ranks, of which the first has so many rows."""
    return [[replace(each, assignments=split(each.assignments, rank, first)) for each in states] for rank in range(2)]


def require_kept(starts: ExactStarts, parts: list[Any], first: int, number: int, scan: str) -> None:
    """Two sweeps of two ranks, the first with a move before it, from so many states keep their posterior."""
    before, backend = list(starts.draws(number)), Gibbs(scan=scan, split_merge=1, num_warmup=0)
    kernel = Gibbs.module_of(starts.model).kernel(backend, starts.model)
    after = []
    for one, other in zip(*moved(kernel, starts.model, parts, of_ranks(before, first), 2), strict=True):
        assert torch.equal(one.weights, other.weights)
        assert scan == "blocked" or torch.equal(one.reservoir, other.reservoir)
        after.append(replace(one, assignments=torch.cat([one.assignments, other.assignments])))
    starts.require_kept(*starts.compared(list(zip(before, after, strict=True))))


THROUGH_MEAN = PrincipalDirections(intercept=0.0)
LOSSES = {"hinge": Hinge(0.5), "logistic": Logistic()}
FOUR = torch.tensor([[-1.2], [-0.9], [0.7], [1.4]], dtype=torch.float64)


@pytest.fixture
def few_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reservoir of a few, which so few points never exhaust: the scans are exact for every size."""
    monkeypatch.setattr(hyperplanes, "NUM_RESERVED", 2)


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(("scan", "loss"), [("slice", "hinge"), ("slice", "logistic"), ("blocked", "hinge")])
def test_components_that_repel_keep_the_posterior_on_two_ranks(scan, loss, few_reserved) -> None:
    family = SphericalGaussian(loc=0.0, variance=0.7, prior_variance=1.0)
    model = DDPM(family, LOSSES[loss], feature_map=THROUGH_MEAN, weight_scale=2.0, truncation=3)
    places = 60 if scan == "slice" else 6
    starts = PartitionStarts(model, FOUR, None, truncated=scan == "blocked", places=places)
    parts = [starts.data.rows(slice(0, 1)), starts.data.rows(slice(1, None))]
    require_kept(starts, parts, 1, by_day(250), scan)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scan", "loss"),
    [
        ("beam", "hinge"),
        pytest.param("beam", "logistic", marks=pytest.mark.nightly),
        pytest.param("blocked", "hinge", marks=pytest.mark.nightly),
    ],
)
def test_states_that_repel_keep_the_posterior_on_two_ranks(scan, loss, few_reserved) -> None:
    prior = HierarchicalDirichletProcess(1.5, None, 2.0, None, stickiness=0.3)
    model = DIH(FAMILY, LOSSES[loss], prior, THROUGH_MEAN, weight_scale=1.5, truncation=3)
    places = 60 if scan == "beam" else 6
    starts = PathStarts(model, X, [3, 2], None, truncated=scan == "blocked", places=places)
    parts = [starts.model.data(split(X, rank, 3), [length]) for rank, length in enumerate((3, 2))]
    require_kept(starts, parts, 3, by_day(200, 2), scan)


ROWS = torch.tensor([[0.6], [-1.4], [0.3], [1.7]], dtype=torch.float64)
SETS = torch.tensor([[1, 0], [torch.nan, 1], [0, 0], [1, 1]], dtype=torch.float64)
COUNTS = torch.tensor([[2, 0], [0, 0], [1, 1], [0, 3]], dtype=torch.float64)
OF_LABELS = {"feature_map": Standardized(intercept=0.0), "weight_scale": 1.5, "truncation": 2}
JOINTS = {
    "product": (BNMC(FAMILY, BernoulliBeta(1.0, 1.5), **OF_LABELS), SETS),
    "and": (BNMC(FAMILY, BernoulliBeta(1.0, 1.5), joint="and", **OF_LABELS), SETS),
    "multinomial": (BNMC(FAMILY, MultinomialDirichlet(1.2), joint="multinomial", **OF_LABELS), COUNTS),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scan", "joint"),
    [
        pytest.param("slice", "product", marks=pytest.mark.nightly),
        pytest.param("blocked", "product", marks=pytest.mark.nightly),
        pytest.param("blocked", "and", marks=pytest.mark.nightly),
        ("blocked", "multinomial"),
    ],
)
def test_label_sets_of_two_ranks_keep_the_posterior(scan, joint) -> None:
    (model, y), first, number = JOINTS[joint], 3, by_day(400)
    model, data = model.prepare(ROWS, y)
    truncation, generator = model.truncation if scan == "blocked" else None, torch.Generator().manual_seed(5)
    exact = label_posterior(model, ROWS, y, truncation=truncation)
    states = []
    for z in draws(exact, number, generator):
        weights = (
            ROWS.new_full((2, 1, 2), 0.5) if model.is_coupled else ROWS.new_zeros(truncation or int(z.max()) + 1, 0, 0)
        )
        state = LabelState(z, weights, model.prior.start(ROWS), classifiers=ROWS.new_zeros(1, 1, 2))
        for _ in range(8):  # all else given the partition
            if model.is_coupled:
                state = coupled.draw_labels(state, data, model, generator)
            else:
                state = replace(state, classifiers=label_sets.draw_classifiers(state, data, model, generator))
        states.append(state)
    parts = [data.rows(slice(0, first)), data.rows(slice(first, None))]
    kernel = Gibbs.module_of(model).kernel(Gibbs(scan=scan, split_merge=1), model)
    found = moved(kernel, model, parts, of_ranks(states, first), 2)
    labels = []
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.classifiers, other.classifiers)
        both = tuple(torch.cat([one.assignments, other.assignments]).tolist())
        labels.append(both if truncation else first_appearance(both))
    assert p_value(exact, labels) > 1e-4
    before, after = (torch.stack([each.classifiers.flatten() for each in those]) for those in (states, found[0]))
    require_equal_means(torch.cat([before, before.square()], 1), torch.cat([after, after.square()], 1))


LEARNED, HOLE = (1.0, (2.0, 1.5)), torch.tensor([[3.9, torch.nan], [2.4, 3.5], [3.2, 3.0]], dtype=torch.float64)


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scan", "prior", "first"),
    [
        pytest.param("slice", IndianBuffetProcess(*LEARNED), 1, marks=pytest.mark.nightly),
        pytest.param("slice", IndianBuffetProcess(*LEARNED), 2, marks=pytest.mark.nightly),
        ("blocked", IndianBuffetProcess(*LEARNED), 1),
        ("blocked", BetaBernoulli(*LEARNED), 2),
    ],
)
def test_features_of_two_ranks_keep_the_posterior(scan, prior, first) -> None:
    """The last row has no label, the first one an entry that is missing."""
    likelihood = LinearGaussian(offset=3.1, noise_variance=0.5, loading_variance=1.5)
    model = InfiniteLatentSVM(likelihood, loss=Hinge(1.0), prior=prior, truncation=2, feature_map=None)
    model, data = model.prepare(HOLE, torch.tensor([0, 1, -1]))
    generator = torch.Generator().manual_seed(6)
    states = exact_states(model, data, by_day(1000, 2), scan == "slice", generator)
    halves = [[replace(each, features=split(each.features, rank, first)) for each in states] for rank in range(2)]
    parts = [data.rows(slice(0, first)), data.rows(slice(first, None))]
    found = moved(Gibbs.module_of(model).kernel(Gibbs(scan=scan), model), model, parts, halves, 1)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.loadings, other.loadings)
        assert torch.equal(one.weights, other.weights)
    both = zip(*found, strict=True)
    after = [replace(one, features=torch.cat([one.features, other.features])) for one, other in both]
    assert drift(states, after, data) > 1e-4


def test_columns_of_two_ranks_are_drawn_by_their_weights() -> None:
    """All 8 columns of 3 rows, the last two of the second rank."""
    log_odds, number, first = torch.tensor([-1.0, 0.3, -0.5], dtype=torch.float64), 3000, 1
    p, (pi, least) = log_odds.sigmoid(), torch.tensor([0.2, 0.5]).double()

    def task(rank: int, ranks: Thread) -> list[Tensor]:
        generator, own = torch.Generator().manual_seed(3), split(log_odds, rank, first)
        with among(ranks):
            return [draw_column(own, pi, least, generator) for _ in range(number)]

    columns = []
    for (one, used), (other, too) in zip(*on_threads(task), strict=True):
        columns.append(tuple(torch.cat([one, other]).int().tolist()))
        assert bool(used) == bool(too) == any(columns[-1])
    exact = {}
    for bits in itertools.product((0, 1), repeat=3):
        each = torch.where(torch.tensor(bits) > 0, p, 1 - p).prod()
        exact[bits] = float(each / (torch.minimum(pi, least) if any(bits) else least))
    total = sum(exact.values())
    assert p_value({bits: mass / total for bits, mass in exact.items()}, columns) > 1e-4


SMALL = torch.tensor([[0.9, -0.4, 1.1], [-0.6, 1.0, 0.3], [0.2, 0.8, -1.2]], dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize(("last", "number"), [(1.0, 600), pytest.param(torch.nan, 1200, marks=pytest.mark.nightly)])
def test_projections_of_two_ranks_keep_the_posterior(last, number) -> None:
    """Of margins alone; or of the inputs as well, and the second rank has no target."""
    inputs = LinearGaussian(offset=0.0, noise_variance=0.6, loading_variance=1.0, learn=False)
    generative, prior = (inputs, None)[last == 1], BetaBernoulli()
    model = MultiTaskInfiniteLatentSVM(generative, Hinge(1.2), prior, None, weight_scale=1.2, truncation=2)
    model, data = model.prepare(SMALL, torch.tensor([[1.0], [-1.0], [last]], dtype=torch.float64))
    data, first = replace(data, inputs=data.inputs[:, :0]), 2
    bits, mass, joint = exact_projections.exact_joint(model, data)
    generator = torch.Generator().manual_seed(11)
    states = list(exact_projections.exact_states(model, data, joint, bits, by_day(number), generator))
    tables = (data.X, data.inputs, data.targets)
    parts = [TaskData(*(split(table, rank, first) for table in tables)) for rank in range(2)]
    found = moved(Gibbs.module_of(model).kernel(Gibbs(), model), model, parts, [states, states], 1)
    for one, other in zip(*found, strict=True):
        for name in ("features", "weights", "probabilities"):
            assert torch.equal(getattr(one, name), getattr(other, name))
    exact = {tuple(Z.flatten().tolist()): float(own) for Z, own in zip(bits, mass, strict=True)}
    assert p_value(exact, [tuple(state.features.flatten().tolist()) for state in found[0]]) > 1e-4
