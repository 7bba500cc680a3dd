"""Every backend against exact enumeration through the public check, and the check against a backend that is wrong."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from regbayes.inference import SVI, Gibbs, SmallVariance
from regbayes.inference.engine import Kernel
from regbayes.models import (
    DPM,
    DirichletProcess,
    EpsilonInsensitive,
    Hinge,
    InfiniteSVM,
    Logistic,
    PitmanYor,
    SphericalGaussian,
    SquaredHinge,
    Standardized,
)
from regbayes.testing import check_kernel

X = torch.tensor([[-1.2], [-0.9], [0.3], [1.0], [1.3]], dtype=torch.float64)
Y = torch.tensor([0, 0, 1, 0, 1])
FAMILY = SphericalGaussian(loc=0.0, variance=0.5, prior_variance=1.0)
THROUGH_ZERO = Standardized(intercept=0.0)
MODELS = {
    "DPM": DPM(FAMILY, truncation=3),
    "Pitman-Yor": DPM(FAMILY, PitmanYor(0.5, 0.6), truncation=3),
    "hinge": InfiniteSVM(FAMILY, Hinge(0.8), truncation=3, feature_map=THROUGH_ZERO),
    "logistic": InfiniteSVM(FAMILY, Logistic(), truncation=3),
    "squared hinge": InfiniteSVM(FAMILY, SquaredHinge(0.6), truncation=3, feature_map=THROUGH_ZERO),
    "regression": InfiniteSVM(FAMILY, EpsilonInsensitive(), truncation=3, feature_map=THROUGH_ZERO),
}
SAMPLER = partial(Gibbs, num_samples=1000, num_warmup=50, split_merge=0)
BACKENDS = {
    "slice": SAMPLER(scan="slice"),
    "collapsed": SAMPLER(scan="collapsed"),
    "blocked": SAMPLER(scan="blocked"),
    "SVI": SVI(num_steps=60),
    "small variance": SmallVariance(penalty=1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.filterwarnings("ignore:All 3 components are occupied")
def test_backend_agrees_with_enumeration(model: str, backend: str) -> None:
    y = X[:, 0] if model == "regression" else Y
    check_kernel(BACKENDS[backend], MODELS[model], X, y)


def test_a_sampler_of_another_concentration_is_noticed() -> None:
    class Wrong(Gibbs):
        def finish(self, model, data, schedule, kernel):
            posterior = super().finish(model.replace(prior=DirichletProcess(4.0)), data, schedule, kernel)
            posterior.model = model
            return posterior

    with pytest.raises(AssertionError, match="co-assignment probabilities are off"):
        check_kernel(Wrong(num_samples=1000, num_warmup=50, split_merge=0), MODELS["DPM"], X)


def test_a_bound_that_falls_or_exceeds_the_evidence_is_noticed() -> None:
    class Wrong(SVI):
        shift = 0.0
        sign = 1.0

        def kernel(self, model) -> Kernel:
            return replace(super().kernel(model), value=lambda state, data, model: self.sign * state.bound + self.shift)

    high = Wrong(num_steps=60)
    high.shift = 50.0
    with pytest.raises(AssertionError, match="above the log evidence"):
        check_kernel(high, MODELS["hinge"], X, Y)
    falling = Wrong(num_steps=60, tolerance=-1.0)
    falling.sign = -1.0
    with pytest.raises(AssertionError, match="the ELBO fell"):
        check_kernel(falling, MODELS["hinge"], X, Y)
