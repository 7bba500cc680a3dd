"""The collapsed scan: its conditionals against the joint, its compiled form against tensor code, and enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from regbayes.inference.gibbs import collapsed
from regbayes.inference.gibbs.state import PartitionState
from regbayes.models import DPM, InfiniteSVM
from regbayes.models.likelihoods import (
    BernoulliBeta,
    DiagonalGaussian,
    FullGaussian,
    MultinomialDirichlet,
    PoissonGamma,
    SphericalGaussian,
)
from regbayes.models.losses import CrammerSinger, EpsilonInsensitive, Hinge, Logistic, OneVsRest
from regbayes.models.priors.dirichlet_process import log_eppf

FAMILIES = [SphericalGaussian, DiagonalGaussian, FullGaussian, MultinomialDirichlet, PoissonGamma, BernoulliBeta]


class AnotherGaussian(DiagonalGaussian):
    """A family of a user: the compiled scan does not know it."""


def rows(family, num_data, num_features=3, num_components=3, seed=0):
    """Rows of a mixture [N, D] and its components [N]."""
    rng = np.random.default_rng(seed)
    z = rng.integers(num_components, size=num_data)
    if family in (MultinomialDirichlet, PoissonGamma):
        X = rng.poisson(rng.gamma(0.5, 8.0, (num_components, num_features))[z])
        X[0, 0] = 40  # more than are multiplied out
    elif family is BernoulliBeta:
        X = rng.random((num_data, num_features)) < rng.beta(0.5, 0.5, (num_components, num_features))[z]
    else:
        X = rng.normal(0, 2, (num_components, num_features))[z] + rng.normal(size=(num_data, num_features))
    return torch.as_tensor(X, dtype=torch.float64), torch.from_numpy(np.unique(z, return_inverse=True)[1])


def mixture(family, X):
    model = DPM(likelihood=family(), concentration=0.7).resolve(X)
    return model, model.data(X)


def start(z, data, seed=0, concentration=0.7):
    """A state with arbitrary classifiers."""
    shape = int(z.max()) + 1, data.features.shape[1], data.targets.shape[1]
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return PartitionState(z, weights.to(data.X), data.X.new_tensor(concentration))


def log_joint(z, weights, data, model, alpha, opened=None):
    """log EPPF + block marginals + margins; the classifier of the component that point `opened` is alone in is
    integrated out."""
    sums = model.likelihood.summed_statistics(data.X, z, int(z.max()) + 1)
    counts = torch.bincount(z)
    scores = torch.einsum("np,npc->nc", data.features, torch.cat([weights, 0 * weights[:1]])[z])
    margins = model.log_margin(scores, data.targets)
    if opened is not None and data.targets.shape[1]:
        scale = model.weight_scale * data.features[opened].norm().reshape(1, 1)
        margins[opened] = model.loss.log_marginal(scale, data.targets[opened : opened + 1]).sum()
    keep = counts > 0
    marginal = model.likelihood.log_marginal((model.likelihood.prior() + sums)[keep]).sum()
    return log_eppf(counts[keep], alpha) + marginal + margins.sum()


def assert_conditionals_are_the_joints(state, data, model, compiled):
    num_components = len(state.weights)
    for n in range(data.num_data):
        alone = (state.assignments == state.assignments[n]).sum() == 1
        expected = []
        for k in range(num_components + 1):
            z = state.assignments.clone()
            z[n] = k
            opened = n if k == num_components else None
            expected.append(log_joint(z, state.weights, data, model, state.concentration, opened))
        expected = torch.stack(expected)
        if alone:
            expected[state.assignments[n]] = -torch.inf
        found = collapsed.assignment_logits(n, state, data, model, compiled=compiled)
        torch.testing.assert_close(found.log_softmax(0), expected.log_softmax(0), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_conditional_is_the_joints(family, compiled):
    X, z = rows(family, 12)
    z[3] = 3  # alone
    model, data = mixture(family, X)
    assert_conditionals_are_the_joints(start(z, data), data, model, compiled)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    "loss",
    [Hinge(0.8), Logistic(), EpsilonInsensitive(), OneVsRest(Hinge(0.6, 1.5)), CrammerSinger()],
    ids=lambda loss: type(loss).__name__,
)
def test_conditional_with_classifiers_is_the_joints(loss, compiled):
    X, z = rows(DiagonalGaussian, 9)
    y = torch.arange(9) % (3 if isinstance(loss, OneVsRest | CrammerSinger) else 2)
    z[3] = 3
    model = InfiniteSVM(likelihood=DiagonalGaussian(), loss=loss, weight_scale=1.7).resolve(X, y)
    data = model.data(X, y)
    assert_conditionals_are_the_joints(start(z, data), data, model, compiled)


@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_scan_is_the_tensor_scan(family):
    X, z = rows(family, 40)
    model, data = mixture(family, X)
    known = state = start(z, data, concentration=3.0)
    tensors = collapsed._Tensors(data, model.likelihood)
    for seed in range(3):
        state = collapsed.scan(known, data, model, torch.Generator().manual_seed(seed))
        generator = torch.Generator().manual_seed(seed)
        order, uniforms = torch.randperm(40, generator=generator), torch.rand(40, dtype=X.dtype, generator=generator)
        slots = collapsed._Slots.of(known, data, model)
        slots.extend(40)
        tensors.build(slots)
        assert tensors.visit(slots, 0, order, uniforms) == (40, -1, -1, False)
        assert torch.equal(torch.unique(slots.assignments, return_inverse=True)[1], state.assignments)
        known = state


@pytest.mark.parametrize("family", FAMILIES)
def test_moves_add_up(family):
    """After many moves, what a family keeps of a component is what its points say."""
    X, z = rows(family, 60)
    model, data = mixture(family, X)
    slots = collapsed._Slots.of(start(z, data, concentration=20.0), data, model)
    slots.extend(60)
    components = collapsed._Compiled(data, model.likelihood)
    components.build(slots)
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        uniforms = torch.rand(60, dtype=X.dtype, generator=generator)
        components.visit(slots, 0, torch.randperm(60, generator=generator), uniforms)
    moved = torch.stack([components.logits(slots, n) for n in range(60)])
    components.build(slots)
    rebuilt = torch.stack([components.logits(slots, n) for n in range(60)])
    torch.testing.assert_close(moved, rebuilt, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("likelihood", [DiagonalGaussian(loc=0.0, rate=1.0), FullGaussian(loc=0.0, scale=1.0)])
def test_an_outlier_leaves_no_trace(likelihood):
    """Without it the scatter of its component is 1e-12 of what it was: the components are computed anew."""
    X = rows(FullGaussian, 30)[0]
    X[0] = 1e6
    model = DPM(likelihood=likelihood).resolve(X)
    data = model.data(X)
    slots = collapsed._Slots.of(start(torch.zeros(30, dtype=torch.long), data), data, model)
    components = collapsed._Compiled(data, model.likelihood)
    components.build(slots)
    order, uniforms = torch.arange(30), torch.full((30,), 0.5, dtype=X.dtype)
    uniforms[0] = 1 - 1e-12
    assert components.visit(slots, 0, order, uniforms) == (1, 1, -1, True)
    components.build(slots)
    assert components.visit(slots, 1, order, uniforms)[0] == 30
    moved = torch.stack([components.logits(slots, n) for n in range(1, 30)])
    components.build(slots)
    rebuilt = torch.stack([components.logits(slots, n) for n in range(1, 30)])
    torch.testing.assert_close(moved, rebuilt, rtol=1e-9, atol=1e-9)


# -- enumeration -------------------------------------------------------------------------------------------------------


def partitions(num_data):
    """All partitions of num_data points, as restricted growth strings."""
    for labels in itertools.product(range(num_data), repeat=num_data):
        if all(label <= max((-1, *labels[:n])) + 1 for n, label in enumerate(labels)):
            yield labels


def growth_string(z):
    _, first, inverse = np.unique(z, return_index=True, return_inverse=True)
    return tuple(np.argsort(np.argsort(first))[inverse].tolist())


def assert_frequencies(draws, probabilities, num_batches=40):
    """Batch means within five standard errors, for every partition that is expected often enough."""
    for labels, probability in probabilities.items():
        batches = np.array([draw == labels for draw in draws]).reshape(num_batches, -1).mean(1)
        error = batches.std(ddof=1) / math.sqrt(num_batches)
        if probability * len(draws) > 40:
            assert abs(batches.mean() - probability) < 5 * error, (labels, batches.mean(), probability, error)


def normalized(log_weights):
    values = torch.stack(list(log_weights.values())).softmax(0)
    return dict(zip(log_weights, values.tolist(), strict=True))


def many_scans(state, data, model, generator, num_sweeps):
    """The partitions after each of many scans; the compiled scan goes on in its slots, without the work around it."""
    draws = []
    if not collapsed.is_compiled(model.likelihood):
        for _ in range(num_sweeps):
            state = collapsed.scan(state, data, model, generator)
            draws.append(growth_string(state.assignments.numpy()))
        return draws
    slots, components = collapsed._Slots.of(state, data, model), collapsed._Compiled(data, model.likelihood)
    components.build(slots)
    order, uniforms = torch.arange(data.num_data), torch.rand(num_sweeps, data.num_data, generator=generator)
    for uniform in uniforms.double():
        components.visit(slots, 0, order, uniform)
        draws.append(growth_string(slots.assignments.numpy()))
    return draws


@pytest.mark.parametrize(
    ("family", "num_sweeps"),
    [(DiagonalGaussian, 20000), (FullGaussian, 20000), (PoissonGamma, 20000), (AnotherGaussian, 800)],
)
def test_partitions_have_their_exact_probabilities(family, num_sweeps):
    X, _ = rows(family, 4, num_features=2)
    model, data = mixture(family, 0.5 * X if family is FullGaussian else X)
    state = start(torch.zeros(4, dtype=torch.long), data)
    exact = {
        labels: log_joint(torch.tensor(labels), state.weights, data, model, state.concentration)
        for labels in partitions(4)
    }
    assert len(exact) == 15
    draws = many_scans(state, data, model, torch.Generator().manual_seed(0), num_sweeps)
    assert_frequencies(draws, normalized(exact))


def test_partitions_with_classifiers_have_their_exact_probabilities():
    """One classifier feature, so that each block's margin integral is a quadrature; eta | omega is drawn by hand."""
    X, y = torch.tensor([[-1.2], [-0.3], [0.4], [1.5]], dtype=torch.float64), torch.tensor([0, 1, 0, 1])
    model = InfiniteSVM(
        likelihood=SphericalGaussian(loc=0.0, variance=1.0, prior_variance=1.0),
        loss=Hinge(1.5),
        weight_scale=2.0,
        intercept=0.0,
    ).resolve(X, y)
    data = model.data(X, y)
    eta = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    prior = -(eta / 2).square() / 2 - math.log(2 * math.sqrt(2 * math.pi))
    factors = model.loss.log_factor(data.features * eta, data.targets)  # [N, G]
    state = start(torch.zeros(4, dtype=torch.long), data)
    exact = {}
    for labels in partitions(4):
        z = torch.tensor(labels)
        blocks = [prior + factors[z == k].sum(0) for k in range(max(labels) + 1)]
        margins = sum(torch.logsumexp(block, 0) + math.log(0.01) for block in blocks)
        none = torch.zeros(max(labels) + 1, 0, 0, dtype=torch.float64)
        mixture_only = DPM(likelihood=model.likelihood).resolve(X)
        exact[labels] = margins + log_joint(z, none, mixture_only.data(X), mixture_only, state.concentration)
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(2000):
        state = collapsed.scan(state, data, model, generator)
        z, num_components = state.assignments, len(state.weights)
        score = data.features * state.weights[z, :, 0]
        observed = model.loss.augment(score, data.targets, generator)
        square = (data.features.square() * observed.precision).squeeze(1)
        precision = torch.full((num_components,), 0.25, dtype=X.dtype).index_add(0, z, square)
        linear = torch.zeros_like(precision).index_add(0, z, (data.features * observed.shift).squeeze(1))
        noise = torch.randn(num_components, generator=generator, dtype=X.dtype)
        weights = linear / precision + noise / precision.sqrt()
        state = PartitionState(z, weights.reshape(-1, 1, 1), state.concentration)
        draws.append(growth_string(z.numpy()))
    assert_frequencies(draws, normalized(exact))


def test_new_weights_have_the_score_of_their_law_and_the_prior_across_it():
    """f = eta^T a_n has the tilted mean, by quadrature; eta across a_n keeps its prior."""
    X = torch.tensor([[0.5, -1.0], [2.0, 1.0], [-1.0, 0.3]], dtype=torch.float64)
    model = InfiniteSVM(likelihood=SphericalGaussian(), loss=Hinge(0.7), weight_scale=1.5).resolve(X, [0, 1, 1])
    data, generator = model.data(X, [0, 1, 1]), torch.Generator().manual_seed(0)
    draws = torch.stack([collapsed.draw_new_weights(0, data, model, generator) for _ in range(2000)]).squeeze(2)
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
        model = InfiniteSVM(likelihood=SphericalGaussian(), intercept=0.0).resolve(X, [0, 1, 1])
    state = start(torch.arange(3), model.data(X, [0, 1, 1]))
    state = collapsed.scan(state, model.data(X, [0, 1, 1]), model, torch.Generator().manual_seed(0))
    assert torch.isfinite(state.weights).all()


# -- behaviour ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [FullGaussian, MultinomialDirichlet])
def test_same_seed_same_draw(family):
    X, z = rows(family, 30)
    model, data = mixture(family, X)
    one, other = (collapsed.scan(start(z, data), data, model, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one.assignments, other.assignments)
    assert z.max() == 2  # the state that was passed is unchanged


def test_labels_are_compact_and_weights_follow_them():
    X, z = rows(DiagonalGaussian, 50)
    y = (X[:, 0] > 0).long()
    model = InfiniteSVM(likelihood=DiagonalGaussian(), loss=Hinge()).resolve(X, y)
    data = model.data(X, y)
    state = start(z, data, concentration=30.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        before, state = state, collapsed.scan(state, data, model, generator)
        assert torch.equal(torch.unique(state.assignments), torch.arange(len(state.weights)))
        shared = before.weights[before.assignments] == state.weights[state.assignments]
        stayed = shared.flatten(1).all(1)
        assert stayed.any()
        assert len(torch.unique(state.weights, dim=0)) == len(state.weights)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_point_alone_and_all_together(family):
    X, _ = rows(family, 64)
    model, data = mixture(family, X)
    for z, concentration in ((torch.arange(64), 1e-8), (torch.zeros(64, dtype=torch.long), 1e8)):
        state = start(z, data, concentration=concentration)
        for seed in range(3):
            state = collapsed.scan(state, data, model, torch.Generator().manual_seed(seed))
        # almost surely: a tiny alpha opens nothing that is not needed, a huge one nothing but new components
        assert len(state.weights) < 40 if concentration < 1 else len(state.weights) == 64


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_rows(family):
    X = rows(family, 8)[0][:1].expand(30, 3).clone()
    model, data = mixture(family, X)
    state = collapsed.scan(start(torch.arange(30), data), data, model, torch.Generator().manual_seed(0))
    assert 1 <= len(state.weights) <= 30
    assert_conditionals_are_the_joints(state, data, model, True)


@pytest.mark.parametrize("family", FAMILIES)
def test_single_precision_has_the_conditional_of_double(family):
    X, z = rows(family, 30)
    model, data = mixture(family, X)
    small_model, small = mixture(family, X.float())
    for n in range(5):
        exact = collapsed.assignment_logits(n, start(z, data), data, model).softmax(0)
        found = collapsed.assignment_logits(n, start(z, small), small, small_model).softmax(0)
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-5)
    assert (
        collapsed.scan(start(z, small), small, small_model, torch.Generator().manual_seed(0)).weights.dtype
        == X.float().dtype
    )


@pytest.mark.parametrize("family", [DiagonalGaussian, MultinomialDirichlet])
def test_any_device(family, device):
    X, z = rows(family, 20)
    model, data = mixture(family, X.to(device))
    state = collapsed.scan(start(z.to(device), data), data, model, torch.Generator(device).manual_seed(0))
    assert state.assignments.device.type == device.type
    here_model, here = mixture(family, X)
    here_state = start(state.assignments.cpu(), here)
    there_state = start(state.assignments, data)
    for n in range(3):
        exact = collapsed.assignment_logits(n, here_state, here, here_model)
        found = collapsed.assignment_logits(n, there_state, data, model)
        torch.testing.assert_close(found.cpu().softmax(0), exact.softmax(0))
