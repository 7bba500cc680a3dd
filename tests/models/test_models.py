"""The Pyro programs: one conformance check, and what users get wrong."""

from __future__ import annotations

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from pyro.infer.autoguide import AutoNormal

from regbayes.inference import Gibbs
from regbayes.models import (
    DDPM,
    DIH,
    DPM,
    IHMM,
    ConstantColumnWarning,
    CrammerSinger,
    DiagonalGaussian,
    DirichletProcess,
    EpsilonInsensitive,
    FullGaussian,
    HierarchicalDirichletProcess,
    Hinge,
    InfiniteSVM,
    Logistic,
    MultinomialDirichlet,
    OneVsRest,
    PitmanYor,
    RandomFourier,
    SphericalGaussian,
    Standardized,
)
from regbayes.models.priors.sticks import log_stick_weights
from regbayes.testing import check_kernel, check_model

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn((12, 2), generator=GENERATOR, dtype=torch.float64)
COUNTS = torch.poisson(torch.full((12, 3), 4.0, dtype=torch.float64), generator=GENERATOR)
Y2, Y3 = torch.arange(12) % 2, torch.arange(12) % 3

MODELS = [
    (DPM(SphericalGaussian(), truncation=3), X, None),
    (DPM(FullGaussian(), truncation=3), X, None),
    (DPM(MultinomialDirichlet(), DirichletProcess(1.0, (2.0, 1.0)), truncation=4), COUNTS, None),
    (DPM(prior=PitmanYor(0.4, -0.2), truncation=4), X, None),
    (DPM(prior=PitmanYor(0.4, 1.0, (1.0, 2.0), (2.0, 1.0)), truncation=4), X, None),
    (InfiniteSVM(DiagonalGaussian(), Hinge(2.5), truncation=3), X, Y2),
    (InfiniteSVM(SphericalGaussian(), Logistic(), feature_map=Standardized(intercept=0.0), truncation=3), X, Y2),
    (InfiniteSVM(FullGaussian(), Hinge(), truncation=3), X, Y3),
    (InfiniteSVM(MultinomialDirichlet(), CrammerSinger(0.7, 2.0), truncation=3), COUNTS, Y3),
    (InfiniteSVM(DiagonalGaussian(), EpsilonInsensitive(), truncation=3), X, X[:, 0] * 2),
    (InfiniteSVM(prior=PitmanYor(0.3, 1.0), feature_map=RandomFourier(6), truncation=3), X, Y2),
    (DDPM(loss=Logistic(), prior=PitmanYor(0.3, 1.0, concentration_prior=(2.0, 1.0)), truncation=3), X, None),
]
FREE = HierarchicalDirichletProcess(2.0, (2.0, 1.0), 1.5, (1.0, 2.0), stickiness=0.3)
FIXED = HierarchicalDirichletProcess(2.0, None, 1.5, None)
STATES = [
    IHMM(prior=FREE, truncation=3),
    IHMM(prior=FIXED, truncation=2),
    DIH(loss=Logistic(), prior=FREE, truncation=3),
]


@pytest.mark.parametrize(("model", "inputs", "y"), MODELS, ids=lambda value: type(value).__name__)
def test_program_is_the_kernels_density(model, inputs, y) -> None:
    check_model(model, inputs, y)


@pytest.mark.parametrize(("model", "inputs", "y"), MODELS, ids=lambda value: type(value).__name__)
def test_pyros_guide_and_enumeration_take_every_program(model, inputs, y) -> None:
    model = model.resolve(inputs, y)
    guide = AutoNormal(poutine.block(model, hide=["assignments"]))
    elbo = TraceEnum_ELBO(max_plate_nesting=1)
    with torch.random.fork_rng():
        assert np.isfinite(pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), elbo).step(inputs, y))


@pytest.mark.parametrize("model", STATES, ids=lambda value: type(value).__name__)
def test_programs_of_states_are_the_kernels_density(model) -> None:
    rows = X.clone()
    rows[3] = torch.nan
    check_model(model, rows, lengths=[5, 1, 6])


# -- a program of its own -------------------------------------------------------------------------------------------


class Forgetful(InfiniteSVM):
    def log_margin(self, scores, targets):
        return super().log_margin(scores, targets) * (scores.ndim == 3)  # dropped in the program alone


class OtherPrior(DPM):
    """Its program has a Pitman-Yor prior, its prior object is a Dirichlet process."""

    def program(self, data):
        DPM.program(DPM(self.likelihood, PitmanYor(0.7, 1.0), self.truncation), data)


class HiddenSticks(DPM):
    def program(self, data):
        with poutine.block(hide=["sticks"]):
            super().program(data)


class OtherSite(DPM):
    def program(self, data):
        super().program(data)
        pyro.sample("discount", pyro.distributions.Beta(1.0, 1.0))


class OtherFamily(DPM):
    def components(self, features, targets):
        return DPM(DiagonalGaussian(0.0, shape=3.0).resolve(X), truncation=3).components(features, targets)


class OtherWeights(InfiniteSVM):
    def program(self, data):
        InfiniteSVM.program(self.replace(weight_scale=2.0), data)


class OtherPoints(DPM):
    """Its points are independent of the sticks."""

    def program(self, data):
        with poutine.do(data={"sticks": torch.full((self.truncation - 1,), 0.5, dtype=X.dtype)}):
            super().program(data)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Forgetful(truncation=3), "the points' part of the program differs"),
        (OtherPrior(truncation=3), "the prior's part of the program differs"),
        (HiddenSticks(truncation=3), "the program has no site 'sticks'"),
        (OtherSite(truncation=3), r"sites of its own, \['discount'\]"),
        (OtherFamily(truncation=3), "the family's part of the program differs"),
        (OtherWeights(truncation=3), "the weights' part of the program differs"),
        (OtherPoints(truncation=3), "the program has no site 'sticks'|the points' part of the program differs"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_program_that_is_not_its_parts_is_noticed(model, message) -> None:
    with pytest.raises(AssertionError, match=message):
        check_model(model, X, Y2 if isinstance(model, InfiniteSVM) else None)


def test_a_kernel_is_not_compared_with_parts_that_the_program_does_not_have() -> None:
    """Gibbs and enumeration agree on the prior object, the program on another prior: P(z0 = z2) .033 and .130."""
    model = OtherPrior(SphericalGaussian(0.0, 0.5, 1.0), truncation=3)
    tiny = torch.tensor([[-1.2], [0.3], [1.3]], dtype=torch.float64)
    with pytest.raises(AssertionError, match="the prior's part of the program differs"):
        check_kernel(Gibbs(num_samples=40, num_warmup=5, scan="blocked"), model, tiny)


class OtherStates(IHMM):
    """Its program has a prior without the stickiness of its prior object."""

    def __call__(self, X, lengths=None):
        IHMM.__call__(IHMM(self.likelihood, self.prior.replace(stickiness=0.0), self.truncation), X, lengths)


class OneSequence(IHMM):
    """Its program takes all sequences for one."""

    def __call__(self, X, lengths=None):
        IHMM.__call__(self, X)


class PitmanYorTop(HierarchicalDirichletProcess):
    """Its sites are of a Pitman-Yor prior over the base weights, its density is not."""

    def sample_rows(self, truncation, like):
        with pyro.plate("sticks_plate", truncation - 1):
            b = 1.5 + 0.5 * torch.arange(1, truncation, dtype=like.dtype)
            sticks = pyro.sample("sticks", pyro.distributions.Beta(like.new_tensor(0.5), b))
        rows = 2.0 * self.row_means(log_stick_weights(sticks).exp(), truncation)
        with pyro.plate("rows", truncation + 1):
            return pyro.sample("transitions", pyro.distributions.Dirichlet(rows))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (OtherStates(prior=FREE, truncation=3), "the prior's part of the program differs"),
        (OneSequence(prior=FREE, truncation=3), "the points' part of the program differs"),
        (IHMM(prior=PitmanYorTop(2.0, None, 1.5, None), truncation=3), "the prior's part of the program differs"),
        (IHMM(prior=PitmanYorTop(2.0, (2.0, 1.0), 1.5, None), truncation=3), "the program has no site 'concentration'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_program_of_states_that_is_not_its_parts_is_noticed(model, message) -> None:
    with pytest.raises(AssertionError, match=message):
        check_model(model, X, lengths=[5, 1, 6])
    with pytest.raises(AssertionError, match=message):
        check_kernel(Gibbs(num_samples=2, num_warmup=0, scan="blocked"), model, X[:4], lengths=[1, 3])


def test_a_structure_without_a_reference_is_named() -> None:
    class Elsewhere(DPM):
        data_type = dict

    with pytest.raises(NotImplementedError, match="Nothing exact is known for dict"):
        check_model(Elsewhere(), X)


# -- what users get wrong -------------------------------------------------------------------------------------------


def test_a_binary_loss_becomes_one_versus_rest_for_more_classes() -> None:
    assert isinstance(InfiniteSVM().resolve(X, Y3).loss, OneVsRest)
    assert isinstance(InfiniteSVM().resolve(X, Y2).loss, Hinge)


def test_classifiers_see_standardized_features_and_an_intercept() -> None:
    shifted = 5 + 100 * X
    features = InfiniteSVM(feature_map=Standardized(intercept=3.0)).resolve(shifted, Y2).features(shifted)
    torch.testing.assert_close(features[:, :2].mean(0), torch.zeros(2, dtype=X.dtype), atol=1e-9, rtol=0)
    torch.testing.assert_close(features[:, :2].std(0, correction=0), torch.ones(2, dtype=X.dtype))
    assert (features[:, 2] == 3).all()
    raw = InfiniteSVM(feature_map=Standardized(0.0, 1.0, intercept=0.0)).resolve(shifted, Y2)
    assert torch.equal(raw.features(shifted), shifted)


def test_constant_columns_warn_and_keep_scale_one() -> None:
    constant = torch.cat([X, torch.full((12, 1), 1e8, dtype=X.dtype)], 1)
    with pytest.warns(ConstantColumnWarning, match=r"Columns \[2\]"):
        resolved = InfiniteSVM().resolve(constant, Y2)
    assert resolved.feature_map.scale[2] == 1
    for likelihood in (DiagonalGaussian(), FullGaussian()):
        with pytest.warns(ConstantColumnWarning, match=r"Columns \[2\] .* merge clusters"):
            likelihood.resolve(constant)
    with pytest.warns(ConstantColumnWarning, match=r"Columns \[0, 1, 2, 3, 4\] and 2 more of X are constant"):
        DiagonalGaussian().resolve(torch.ones(4, 7, dtype=X.dtype))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prior": HierarchicalDirichletProcess()}, "expected an object of class PartitionPrior"),
        ({"loss": DiagonalGaussian()}, r"expected an object of class Loss, such as Hinge\(\)"),
        ({"likelihood": Hinge()}, r"expected an object of class Likelihood, such as DiagonalGaussian\(\)"),
        ({"truncation": 1}, "truncation is 1"),
        ({"loss": EpsilonInsensitive(epsilon=-0.1)}, "loss__epsilon is -0.1"),
        ({"loss": OneVsRest(Hinge(margin=float("nan")))}, "loss__loss__margin is nan"),
    ],
)
def test_hyperparameters_outside_their_domain_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InfiniteSVM(**changes).resolve(X, Y2)


@pytest.mark.parametrize(
    "model", [DPM(truncation=3), InfiniteSVM(truncation=3)], ids=lambda model: type(model).__name__
)
def test_programs_are_differentiable_in_the_rows(model) -> None:
    """Which fits are not: they take the numbers alone."""
    rows, y = X.clone().requires_grad_(), None if isinstance(model, DPM) else Y2
    model = model.resolve(X, y)
    with torch.random.fork_rng(devices=[]):
        density = pyro.poutine.trace(model).get_trace(*((rows,) if y is None else (rows, y))).log_prob_sum()
    assert bool((torch.autograd.grad(density, rows)[0] != 0).any())


def test_targets_are_required() -> None:
    with pytest.raises(ValueError, match="requires y"):
        InfiniteSVM().resolve(X)


def test_numpy_and_integer_inputs_are_accepted() -> None:
    check_model(InfiniteSVM(truncation=2), torch.as_tensor(np.arange(24).reshape(12, 2) % 7).double(), Y2.numpy())
