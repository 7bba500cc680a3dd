"""The collapsed scan: its conditionals against the joint, its compiled form against tensor code, and enumeration."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from negative_binomial import NegativeBinomial
from setups import COUNTS, FAMILIES, AnotherGaussian, by_day, first_appearance, frequency_errors, mixture_rows

from regbayes.inference.gibbs.scans import collapsed, slots
from regbayes.inference.gibbs.scans.founders import draw_new_weights
from regbayes.inference.gibbs.state import PartitionState
from regbayes.models import DDPM, DPM, InfiniteSVM
from regbayes.models.feature_maps import Standardized
from regbayes.models.likelihoods import (
    BernoulliBeta,
    DiagonalGaussian,
    FullGaussian,
    LinearRegression,
    MultinomialDirichlet,
    PoissonGamma,
    Product,
    SphericalGaussian,
)
from regbayes.models.losses import CrammerSinger, EpsilonInsensitive, Hinge, Logistic, OneVsRest
from regbayes.models.priors import DirichletProcess, MixtureOfFiniteMixtures, PitmanYor
from regbayes.models.sparse import SparseRows
from regbayes.testing import partition_posterior
from regbayes.testing.enumeration import partitions

PRIORS = {
    "DP": DirichletProcess(0.7),
    "PY": PitmanYor(0.4, 0.7),
    "PY, alpha < 0": PitmanYor(0.6, -0.3),
    "MFM": MixtureOfFiniteMixtures(0.8, 1.5),
}
MIXED = partial(Product, [(PoissonGamma(), 1), (DiagonalGaussian(), 2)])
BOTH = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "tensors"])
EVERY_PRIOR = pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)


def mixture(family, X, prior=PRIORS["DP"]):
    model = DPM(likelihood=family(), prior=prior).resolve(X)
    return model, model.data(X)


def start(z, data, model, seed=0, num_reserved=3, **hyper):
    """A state with arbitrary classifiers, and hyperplanes in the reservoir where components repel."""
    generator, shape = torch.Generator().manual_seed(seed), (data.features.shape[1], data.targets.shape[1])
    weights, reserved = (
        torch.randn(size, *shape, generator=generator, dtype=torch.float64).to(data.features)
        for size in (int(z.max()) + 1, num_reserved)
    )
    at = model.prior.start(data.features) | {name: weights.new_tensor(value).double() for name, value in hyper.items()}
    return PartitionState(z, weights, at, reserved if model.repels else None)


def some_slots(state, data, model, more=0):
    """The compiled slots of a scan that stops for nothing but classifiers."""
    scratch = collapsed.PartitionSlots(state, data, model)
    scratch.extend(more)
    return scratch, slots.Compiled(scratch)


def log_joint(z, state, data, model, opened=None):
    """log EPPF + block marginals + margins of the points; the classifier of the component that point `opened` is alone
    in is integrated out."""
    counts = torch.bincount(z)
    sums = model.likelihood.summed_statistics(data.X, z, len(counts))
    weights = torch.cat([state.weights, 0 * state.weights[:1]])
    margins = model.log_margin(torch.einsum("np,npc->nc", data.features, weights[z]), data.targets)
    if opened is not None and data.targets.shape[1]:
        scale = model.weight_scale * data.features[opened].norm().reshape(1, 1)
        margins[opened] = model.loss.log_marginal(scale, data.targets[opened : opened + 1]).sum()
    keep = counts > 0
    marginal = model.likelihood.log_marginal((model.likelihood.prior() + sums)[keep]).sum()
    return model.prior.log_partition(counts[keep], state.hyper) + marginal + margins.sum()


def expected_logits(n, state, data, model):
    """Ratios of joints; where components repel, n's own is one of the A + 1 that it could open if it is alone."""
    num_components, own = len(state.weights), state.assignments[n]
    alone = bool((state.assignments == own).sum() == 1)
    expected = []
    for k in range(num_components + 1):
        z = state.assignments.clone()
        z[n] = k
        opens = n if k == num_components and not model.repels else None
        expected.append(log_joint(z, state, data, model, opens))
    if not model.repels:
        expected[own] = expected[own] - math.inf if alone else expected[own]
        return torch.stack(expected)
    gains = model.log_margin(data.features[n] @ state.reservoir, torch.ones(1, dtype=torch.float64))
    nothing = model.log_margin(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    expected[-1] = expected[-1] - nothing + gains.logsumexp(0) - math.log(len(gains) + alone)
    expected[own] = expected[own] - math.log(len(gains) + 1) * alone
    return torch.stack(expected)


def assert_conditionals_are_the_joints(state, data, model, compiled):
    for n in range(data.num_data):
        found = collapsed.assignment_logits(n, state, data, model, compiled=compiled)
        expected = expected_logits(n, state, data, model)
        torch.testing.assert_close(found.log_softmax(0), expected.log_softmax(0), rtol=1e-8, atol=1e-8)


# -- one conditional ---------------------------------------------------------------------------------------------------


@pytest.mark.one_in(5)
@BOTH
@EVERY_PRIOR
@pytest.mark.parametrize("family", [*FAMILIES, MIXED])
def test_conditional_is_the_joints(family, prior, compiled):
    X, z = mixture_rows(family, 12)
    z[3] = 3  # alone
    model, data = mixture(family, X, prior)
    assert_conditionals_are_the_joints(start(z, data, model), data, model, compiled)


@pytest.mark.one_in(6)
@BOTH
@EVERY_PRIOR
@pytest.mark.parametrize("missing", [False, True], ids=["", "a label missing"])
@pytest.mark.parametrize(
    "loss",
    [Hinge(0.8), Logistic(), EpsilonInsensitive(), OneVsRest(Hinge(0.6, 1.5)), CrammerSinger()],
    ids=lambda loss: type(loss).__name__,
)
def test_conditional_with_classifiers_is_the_joints(loss, missing, prior, compiled):
    X, z = mixture_rows(DiagonalGaussian, 9)
    y = torch.arange(9.0, dtype=torch.float64) % (3 if isinstance(loss, OneVsRest | CrammerSinger) else 2)
    z[3] = 3
    if missing:
        y[3] = y[5] = math.nan
    model = InfiniteSVM(DiagonalGaussian(), loss, prior, weight_scale=1.7).resolve(X, y)
    data = model.data(X, y)
    state = start(z, data, model)
    assert_conditionals_are_the_joints(state, data, model, compiled)
    if missing:  # log I = 0, and no factor of its own
        unlabelled = model.log_margin(torch.full_like(data.targets[:1], 7.0), data.targets[5:6])
        assert float(unlabelled) == float(collapsed.PartitionSlots(state, data, model).founders.log_new(5)) == 0.0


@BOTH
@EVERY_PRIOR
@pytest.mark.parametrize("loss", [Hinge(0.5), Logistic()], ids=["DDPM-S", "DDPM-L"])
def test_conditional_with_hyperplanes_is_the_joints(loss, prior, compiled):
    X, z = mixture_rows(DiagonalGaussian, 9)
    z[3] = 3
    model = DDPM(DiagonalGaussian(), loss, prior).resolve(X)
    data = model.data(X)
    assert_conditionals_are_the_joints(start(z, data, model), data, model, compiled)


# -- the scan ----------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["mixture", "classifiers"])
@pytest.mark.parametrize("family", [*FAMILIES, NegativeBinomial, MIXED])
def test_compiled_scan_is_the_tensor_scan(family, kind):
    """Hyperplanes are chosen by other random numbers: what each code does with them is tested in test_ddpm."""
    X, z = mixture_rows(family, 40)
    y = X[:, 0] > X[:, 0].median()
    prior = PitmanYor(0.3, 3.0)
    model = {
        "mixture": DPM(family(), prior),
        "classifiers": InfiniteSVM(family(), Logistic(), prior),
    }[kind].resolve(X, y)
    data = model.data(X, y)
    known = start(z, data, model)
    for seed in range(3):
        one, other = (
            collapsed.scan(known, data, model, torch.Generator().manual_seed(seed), shuffle=seed > 0, compiled=compiled)
            for compiled in (True, False)
        )
        assert torch.equal(one.assignments, other.assignments)
        torch.testing.assert_close(one.weights, other.weights)
        known = one
    assert len(known.weights) != len(torch.unique(z))


@pytest.mark.parametrize("family", [*FAMILIES, NegativeBinomial, MIXED])
def test_moves_add_up(family):
    """After many moves, what a family keeps of a component is what its points say."""
    X, z = mixture_rows(family, 60)
    model, data = mixture(family, X)
    _, visitor = some_slots(start(z, data, model, concentration=20.0), data, model, more=60)
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        levels = torch.rand(60, dtype=X.dtype, generator=generator)
        visitor.visit(0, torch.randperm(60, generator=generator), levels)
    moved = torch.stack([visitor.logits(n) for n in range(60)])
    visitor.build()
    rebuilt = torch.stack([visitor.logits(n) for n in range(60)])
    torch.testing.assert_close(moved, rebuilt, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "likelihood",
    [
        DiagonalGaussian(loc=0.0, rate=1.0),
        FullGaussian(loc=0.0, scale=1.0),
        LinearRegression(1, loc=0.0, coefficient_precision=1.0, scale=1.0),
        Product([(DiagonalGaussian(loc=0.0, rate=1.0), 1), (SphericalGaussian(), 2)]),
        Product([(SphericalGaussian(), 2), (DiagonalGaussian(loc=0.0, rate=1.0), 1)]),
    ],
    ids=["diagonal", "full", "regression", "first block", "last block"],
)
def test_an_outlier_leaves_no_trace(likelihood):
    """Without it the scatter of its component is 1e-12 of what it was: the components are computed anew."""
    X = mixture_rows(FullGaussian, 30)[0]
    X[0] = 1e6
    model = DPM(likelihood=likelihood).resolve(X)
    data = model.data(X)
    _, visitor = some_slots(start(torch.zeros(30, dtype=torch.long), data, model), data, model)
    order, levels = torch.arange(30), torch.full((30,), 0.5, dtype=X.dtype)
    levels[0] = 1 - 1e-12
    assert visitor.visit(0, order, levels) == (1, 1, -1, True)
    visitor.build()
    assert visitor.visit(1, order, levels)[0] == 30
    moved = torch.stack([visitor.logits(n) for n in range(1, 30)])
    visitor.build()
    rebuilt = torch.stack([visitor.logits(n) for n in range(1, 30)])
    torch.testing.assert_close(moved, rebuilt, rtol=1e-9, atol=1e-9)


def test_products_over_many_columns_stay_finite():
    """A row whose columns widen its component 1e16 times each: as the tensor code."""
    X = mixture_rows(DiagonalGaussian, 12, num_features=40)[0]
    X[0] = 1e8
    model = DPM(likelihood=DiagonalGaussian(loc=0.0, rate=1.0)).resolve(X)
    data = model.data(X)
    known = start(torch.arange(12) // 6, data, model)
    for n in (1, 7):
        one, other = (collapsed.assignment_logits(n, known, data, model, compiled=choice) for choice in (True, False))
        torch.testing.assert_close(one, other - other[0] + one[0])


@pytest.mark.parametrize("value", [-math.inf, math.nan, math.inf])
def test_a_point_stays_where_no_weight_is_a_number(value):
    from regbayes.inference.gibbs.scans._numba_moves import draw

    assert draw(np.full(5, value), 0.9, 3) == 3
    assert [draw(np.array([0.0, -math.inf, 1.0]), level, 1) for level in (0.0, 0.26, 0.27, 1 - 2**-53)] == [0, 0, 2, 2]


# -- sparse rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", COUNTS)
def test_sparse_rows_have_the_draws_of_dense_ones(family, monkeypatch):
    """Bit for bit, and without a dense copy."""
    X, z = mixture_rows(family, 60, num_features=40)
    X[:, ::3] = 0
    X[17] = 0
    model, data = mixture(family, X)
    sparse_model, sparse = mixture(family, SparseRows.of(X))
    monkeypatch.setattr(SparseRows, "to_dense", None)
    known, other = start(z, data, model, concentration=5.0), start(z, sparse, sparse_model, concentration=5.0)
    for seed in range(4):
        known = collapsed.scan(known, data, model, torch.Generator().manual_seed(seed))
        other = collapsed.scan(other, sparse, sparse_model, torch.Generator().manual_seed(seed))
        assert torch.equal(known.assignments, other.assignments)
    for n in range(0, 60, 7):
        pair = collapsed.assignment_logits(n, known, data, model), collapsed.assignment_logits(n, other, sparse, model)
        assert torch.equal(*pair)


@pytest.mark.parametrize("family", COUNTS)
def test_sparse_rows_in_tensor_code(family):
    X, z = mixture_rows(family, 20, num_features=9)
    model, data = mixture(family, X)
    sparse_model, sparse = mixture(family, SparseRows.of(X))
    found, exact = (
        collapsed.scan(start(z, own, its), own, its, torch.Generator().manual_seed(0), compiled=compiled)
        for own, its, compiled in ((sparse, sparse_model, False), (data, model, True))
    )
    assert torch.equal(found.assignments, exact.assignments)


# -- enumeration -------------------------------------------------------------------------------------------------------


def assert_frequencies(draws, log_weights):
    """Batch means within five standard errors of the exact probabilities of all partitions."""
    values = torch.stack(list(log_weights.values())).softmax(0)
    errors = frequency_errors(draws, dict(zip(log_weights, values.tolist(), strict=True)))
    assert errors.max() < 5, errors


def many_scans(state, data, model, generator, num_sweeps):
    """The partitions after each of many scans; the compiled scan goes on in its slots, without the work around it."""
    draws = []
    if type(model.likelihood) is AnotherGaussian:
        for _ in range(num_sweeps):
            state = collapsed.scan(state, data, model, generator)
            draws.append(first_appearance(state.assignments.tolist()))
        return draws
    scratch, visitor = some_slots(state, data, model)
    order, levels = torch.arange(data.num_data), torch.rand(num_sweeps, data.num_data, generator=generator)
    for level in levels.double():
        visitor.visit(0, order, level)
        draws.append(first_appearance(scratch.labels.tolist()))
    return draws


@pytest.mark.parametrize(
    ("family", "prior", "num_sweeps"),
    [
        (DiagonalGaussian, "DP", 20000),
        (FullGaussian, "PY", 20000),
        (LinearRegression, "PY", 20000),
        (PoissonGamma, "PY, alpha < 0", 20000),
        (NegativeBinomial, "DP", 20000),
        (AnotherGaussian, "PY", 800),
        (DiagonalGaussian, "MFM", 20000),
        (AnotherGaussian, "MFM", 800),
    ],
)
def test_partitions_have_their_exact_probabilities(family, prior, num_sweeps):
    X, _ = mixture_rows(family, 4, num_features=2)
    model, data = mixture(family, 0.5 * X if family is FullGaussian else X, PRIORS[prior])
    state = start(torch.zeros(4, dtype=torch.long), data, model)
    exact = {labels: log_joint(torch.tensor(labels), state, data, model) for labels in partitions(4)}
    assert len(exact) == 15
    assert_frequencies(many_scans(state, data, model, torch.Generator().manual_seed(0), num_sweeps), exact)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("family", "prior"),
    [
        (NegativeBinomial, "DP"),
        (DiagonalGaussian, "DP"),
        (BernoulliBeta, "PY, alpha < 0"),
        (MultinomialDirichlet, "PY"),
        (LinearRegression, "PY"),
        (DiagonalGaussian, "MFM"),
    ],
)
def test_split_merge_alone_has_the_exact_probabilities_of_all_partitions(family, prior):
    """No scan: compiled proposals reach all partitions on their own, whatever the order of the points."""
    X, _ = mixture_rows(family, 5, num_features=2)
    X[0, 0] = X[0, 0].clamp(max=4)
    model, data = mixture(family, 0.5 * X if family is DiagonalGaussian else X, PRIORS[prior])
    state, generator, draws = start(torch.zeros(5, dtype=torch.long), data, model), torch.Generator().manual_seed(0), []
    scratch, visitor = some_slots(state, data, model)
    exact = {labels: log_joint(torch.tensor(labels), state, data, model) for labels in partitions(5)}
    assert len(exact) == 52
    for levels in torch.rand(12000, 1, 8, generator=generator, dtype=torch.float64):
        collapsed.split_merge(visitor, torch.randperm(5, generator=generator), levels)
        draws.append(first_appearance(scratch.labels.tolist()))
    assert_frequencies(draws, exact)


def log_division(model, X, hyper, order, pair, side):
    """log of the probability that two sides which start from a pair of points end as `side` [N]; NaN: others."""
    members, total = [[each] for each in pair], 0.0
    for n in [n for n in order if n not in pair and not side[n].isnan()]:
        weights = []
        for own in (0, 1):
            sizes = torch.tensor([len(rows) + (k == own) for k, rows in enumerate(members)]).double()
            sums = torch.stack(
                [model.likelihood.statistics(X[rows]).sum(0) for rows in (members[own], [*members[own], n])]
            )
            without, with_n = model.likelihood.log_marginal(model.likelihood.prior() + sums)
            weights.append(model.prior.log_partition(sizes, hyper) + with_n - without)
        total += float(torch.stack(weights).log_softmax(0)[int(side[n])])
        members[int(side[n])].append(n)
    return total


@pytest.mark.parametrize("prior", ["DP", "PY", "MFM"])
@pytest.mark.parametrize("merges", [False, True])
def test_a_split_and_the_merge_that_undoes_it_have_one_threshold(merges, prior):
    """By the log joint and the law of the sides: a level just below it accepts, one just above does not."""
    X, _ = mixture_rows(DiagonalGaussian, 11, num_features=2)
    split, merged = torch.tensor([0, 0, 1, 1, 2, 2, 1, 2, 2, 1, 2]), torch.tensor([0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    X[split == 2] += 3.0 if merges else -0.5
    model, data = mixture(DiagonalGaussian, X, PRIORS[prior])
    generator = torch.Generator().manual_seed(4)
    order, (i, j) = torch.randperm(11, generator=generator), (3, 4)
    state = start(split if merges else merged, data, model)
    side = (split == 2).double().masked_fill(split == 0, torch.nan)
    log_odds = float(log_joint(split, state, data, model) - log_joint(merged, state, data, model))
    log_odds -= log_division(model, X, state.hyper, order.tolist(), (i, j), side)
    threshold = -log_odds if merges else log_odds
    assert threshold < -0.1
    for gap, accepted in ((-1e-6, True), (1e-6, False)):
        scratch, visitor = some_slots(state, data, model)
        levels = torch.zeros(1, 14, dtype=torch.float64)
        levels[0, :11] = 0.5 if merges else 1 - side.nan_to_num()  # 0: on the second side
        levels[0, 11:] = torch.tensor([(i + 0.5) / 11, (j - i - 1 + 0.5) / 10, -math.expm1(threshold + gap)])
        collapsed.split_merge(visitor, order, levels)
        found = first_appearance(scratch.labels.tolist())
        assert found == first_appearance((split if accepted != merges else merged).tolist())
        moved = torch.stack([visitor.logits(n) for n in range(11)])
        visitor.build()
        torch.testing.assert_close(moved, torch.stack([visitor.logits(n) for n in range(11)]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", [DiagonalGaussian, LinearRegression, MultinomialDirichlet])
def test_slots_after_split_merge_are_what_their_points_say(family):
    """Those that were added because all others were full included."""
    X, z = mixture_rows(family, 60)
    model, data = mixture(family, X)
    scratch, visitor = some_slots(start(0 * z, data, model, concentration=1e4), data, model)
    generator, capacity = torch.Generator().manual_seed(1), len(scratch.sizes)
    order, levels = torch.randperm(60, generator=generator), torch.rand(300, 63, generator=generator).double()
    collapsed.split_merge(visitor, order, levels)
    assert len(scratch.sizes) > capacity
    assert torch.equal(scratch.sizes, torch.bincount(scratch.labels, minlength=len(scratch.sizes)))
    moved = torch.stack([visitor.logits(n) for n in range(60)])
    visitor.build()
    rebuilt = torch.stack([visitor.logits(n) for n in range(60)])
    torch.testing.assert_close(moved, rebuilt, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prior", "missing"), [("DP", False), ("PY", True), ("MFM", False)], ids=["DP", "PY, a label missing", "MFM"]
)
def test_partitions_with_classifiers_have_their_exact_probabilities(prior, missing):
    """One classifier feature, so that each block's margin integral is a quadrature; eta | omega is drawn by hand."""
    X = torch.tensor([[-1.2], [-0.3], [0.4], [1.5]], dtype=torch.float64)
    y = torch.tensor([0, 1, 0, math.nan if missing else 1], dtype=torch.float64)
    family = SphericalGaussian(loc=0.0, variance=1.0, prior_variance=1.0)
    feature_map = Standardized(intercept=0.0)
    model = InfiniteSVM(family, Hinge(1.5), PRIORS[prior], feature_map, weight_scale=2.0).resolve(X, y)
    data = model.data(X, y)
    state = start(torch.zeros(4, dtype=torch.long), data, model)
    exact = partition_posterior(model, X, y)
    generator, draws = torch.Generator().manual_seed(0), []
    for _ in range(by_day(800, 2)):
        state = collapsed.scan(state, data, model, generator)
        z, num_components = state.assignments, len(state.weights)
        score = data.features * state.weights[z, :, 0]
        observed = model.loss.augment(score, data.targets, generator)
        square = (data.features.square() * observed.precision).squeeze(1)
        precision = torch.full((num_components,), 0.25, dtype=X.dtype).index_add(0, z, square)
        linear = torch.zeros_like(precision).index_add(0, z, (data.features * observed.shift).squeeze(1))
        noise = torch.randn(num_components, generator=generator, dtype=X.dtype)
        weights = linear / precision + noise / precision.sqrt()
        state = replace(state, weights=weights.reshape(-1, 1, 1))
        draws.append(first_appearance(z.tolist()))
    assert frequency_errors(draws, exact).max() < 5


def test_new_weights_have_the_score_of_their_law_and_the_prior_across_it():
    """f = eta^T a_n has the tilted mean, by quadrature; eta across a_n keeps its prior."""
    X = torch.tensor([[0.5, -1.0], [2.0, 1.0], [-1.0, 0.3]], dtype=torch.float64)
    model = InfiniteSVM(likelihood=SphericalGaussian(), loss=Hinge(0.7), weight_scale=1.5).resolve(X, [0, 1, 1])
    data, generator = model.data(X, [0, 1, 1]), torch.Generator().manual_seed(0)
    draws = torch.stack([draw_new_weights(0, data, model, generator) for _ in range(2000)]).squeeze(2)
    feature, scale = data.features[0], 1.5 * data.features[0].norm()
    grid = torch.linspace(-40, 40, 20001, dtype=torch.float64)
    weight = torch.softmax(-(grid / scale).square() / 2 + model.loss.log_factor(grid, data.targets[0]), 0)
    scores = draws @ feature
    assert abs(scores.mean() - (weight * grid).sum()) < 5 * scores.std() / math.sqrt(2000)
    across = draws @ torch.linalg.svd(feature.unsqueeze(0)).Vh[1:].T
    assert (across.mean(0).abs() < 5 * 1.5 / math.sqrt(2000)).all()
    assert (across.square().mean(0) / 1.5**2 - 1).abs().max() < 5 * math.sqrt(2 / 2000)


def test_no_features_keep_the_prior():
    X = torch.zeros(3, 1, dtype=torch.float64)
    with pytest.warns(UserWarning, match="constant"):
        model = InfiniteSVM(SphericalGaussian(), feature_map=Standardized(intercept=0.0)).resolve(X, [0, 1, 1])
    data = model.data(X, [0, 1, 1])
    state = collapsed.scan(start(torch.arange(3), data, model), data, model, torch.Generator().manual_seed(0))
    assert torch.isfinite(state.weights).all()


# -- behaviour ---------------------------------------------------------------------------------------------------------


def test_labels_are_compact_and_weights_follow_them():
    X, z = mixture_rows(DiagonalGaussian, 50)
    y = (X[:, 0] > 0).long()
    model = InfiniteSVM(DiagonalGaussian(), Hinge(), DirichletProcess(30.0)).resolve(X, y)
    data = model.data(X, y)
    state = start(z, data, model)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        before, state = state, collapsed.scan(state, data, model, generator)
        assert torch.equal(torch.unique(state.assignments), torch.arange(len(state.weights)))
        shared = before.weights[before.assignments] == state.weights[state.assignments]
        assert shared.flatten(1).all(1).any()
        assert len(torch.unique(state.weights, dim=0)) == len(state.weights)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_point_alone_and_all_together(family):
    X, _ = mixture_rows(family, 64)
    model, data = mixture(family, X)
    for z, concentration in ((torch.arange(64), 1e-8), (torch.zeros(64, dtype=torch.long), 1e8)):
        state = start(z, data, model, concentration=concentration)
        for seed in range(3):
            state = collapsed.scan(state, data, model, torch.Generator().manual_seed(seed))
        # almost surely: a tiny alpha opens nothing that is not needed, a huge one nothing but new components
        assert len(state.weights) < 40 if concentration < 1 else len(state.weights) == 64


@pytest.mark.filterwarnings("ignore::regbayes.models.ConstantColumnWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_equal_rows(family):
    X = mixture_rows(family, 8)[0][:1].expand(30, 3).clone()
    model, data = mixture(family, X)
    state = collapsed.scan(start(torch.arange(30), data, model), data, model, torch.Generator().manual_seed(0))
    assert 1 <= len(state.weights) <= 30
    assert_conditionals_are_the_joints(state, data, model, True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_single_precision_has_the_conditional_of_double(family):
    X, z = mixture_rows(family, 30)
    model, data = mixture(family, X)
    small_model, small = mixture(family, X.float())
    known, rounded = start(z, data, model), start(z, small, small_model)
    for n in range(5):
        exact = collapsed.assignment_logits(n, known, data, model).softmax(0)
        found = collapsed.assignment_logits(n, rounded, small, small_model).softmax(0)
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-5)
    state = collapsed.scan(rounded, small, small_model, torch.Generator().manual_seed(0))
    assert state.weights.dtype == torch.float32


@pytest.mark.parametrize("family", [DiagonalGaussian, MultinomialDirichlet])
def test_any_device(family, device):
    X, z = mixture_rows(family, 20)
    model, data = mixture(family, X.to(device))
    state = collapsed.scan(start(z.to(device), data, model), data, model, torch.Generator(device).manual_seed(0))
    assert state.assignments.device.type == device.type
    here_model, here = mixture(family, X)
    here_state = start(state.assignments.cpu(), here, here_model)
    there_state = replace(start(state.assignments.cpu(), here, here_model), assignments=state.assignments)
    there_state = replace(there_state, weights=there_state.weights.to(device), hyper=state.hyper)
    for n in range(3):
        exact = collapsed.assignment_logits(n, here_state, here, here_model)
        found = collapsed.assignment_logits(n, there_state, data, model)
        torch.testing.assert_close(found.cpu().softmax(0), exact.softmax(0))
