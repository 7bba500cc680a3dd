"""The Pyro programs: one conformance check, and what users get wrong."""

from __future__ import annotations

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from pyro.infer.autoguide import AutoNormal

from regbayes.models import (
    DPM,
    ConstantColumnWarning,
    CrammerSinger,
    DiagonalGaussian,
    EpsilonInsensitive,
    FullGaussian,
    Hinge,
    InfiniteSVM,
    Logistic,
    MultinomialDirichlet,
    OneVsRest,
    SphericalGaussian,
)
from regbayes.testing import check_model

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn((12, 2), generator=GENERATOR, dtype=torch.float64)
COUNTS = torch.poisson(torch.full((12, 3), 4.0, dtype=torch.float64), generator=GENERATOR)
Y2, Y3 = torch.arange(12) % 2, torch.arange(12) % 3

MODELS = [
    (DPM(SphericalGaussian(), truncation=3), X, None),
    (DPM(FullGaussian(), truncation=3), X, None),
    (DPM(MultinomialDirichlet(), truncation=4, concentration_prior=(2.0, 1.0)), COUNTS, None),
    (InfiniteSVM(DiagonalGaussian(), Hinge(2.5), truncation=3), X, Y2),
    (InfiniteSVM(SphericalGaussian(), Logistic(), truncation=3, intercept=0.0), X, Y2),
    (InfiniteSVM(FullGaussian(), Hinge(), truncation=3), X, Y3),
    (InfiniteSVM(MultinomialDirichlet(), CrammerSinger(0.7, 2.0), truncation=3), COUNTS, Y3),
    (InfiniteSVM(DiagonalGaussian(), EpsilonInsensitive(), truncation=3), X, X[:, 0] * 2),
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


def test_check_model_notices_a_wrong_program() -> None:
    class Forgetful(InfiniteSVM):
        def log_margin(self, scores, targets):
            return super().log_margin(scores, targets) * (scores.ndim == 3)  # dropped in the program alone

    with pytest.raises(AssertionError, match="the points' part of the program differs"):
        check_model(Forgetful(truncation=3), X, Y2)


def test_a_binary_loss_becomes_one_versus_rest_for_more_classes() -> None:
    assert isinstance(InfiniteSVM().resolve(X, Y3).loss, OneVsRest)
    assert isinstance(InfiniteSVM().resolve(X, Y2).loss, Hinge)


def test_classifiers_see_standardized_features_and_an_intercept() -> None:
    shifted = 5 + 100 * X
    features = InfiniteSVM(intercept=3.0).resolve(shifted, Y2).features(shifted)
    torch.testing.assert_close(features[:, :2].mean(0), torch.zeros(2, dtype=X.dtype), atol=1e-9, rtol=0)
    torch.testing.assert_close(features[:, :2].std(0, correction=0), torch.ones(2, dtype=X.dtype))
    assert (features[:, 2] == 3).all()
    raw = InfiniteSVM(intercept=0.0, feature_loc=0.0, feature_scale=1.0).resolve(shifted, Y2)
    assert torch.equal(raw.features(shifted), shifted)


def test_constant_columns_warn_and_keep_scale_one() -> None:
    constant = torch.cat([X, torch.full((12, 1), 1e8, dtype=X.dtype)], 1)
    with pytest.warns(ConstantColumnWarning, match=r"Columns \[2\]"):
        resolved = InfiniteSVM().resolve(constant, Y2)
    assert resolved.feature_scale[2] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concentration": 0.0}, "concentration is 0.0"),
        ({"concentration": float("nan")}, "concentration is nan"),
        ({"weight_scale": -1.0}, "weight_scale is -1.0"),
        ({"loss": Hinge(strength=0.0)}, "strength"),
        ({"truncation": 1}, "truncation is 1"),
        ({"concentration_prior": (1.0, 0.0)}, "concentration_prior"),
        ({"intercept": float("inf")}, "intercept"),
        ({"loss": EpsilonInsensitive(epsilon=-0.1)}, "loss__epsilon is -0.1"),
    ],
)
def test_hyperparameters_outside_their_domain_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InfiniteSVM(**changes).resolve(X, Y2)


def test_targets_are_required() -> None:
    with pytest.raises(ValueError, match="requires y"):
        InfiniteSVM().resolve(X)


def test_numpy_and_integer_inputs_are_accepted() -> None:
    check_model(InfiniteSVM(truncation=2), torch.as_tensor(np.arange(24).reshape(12, 2) % 7).double(), Y2.numpy())
