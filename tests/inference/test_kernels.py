"""Every backend against exact enumeration through the public check, and the check against a backend that is wrong."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from regbayes.inference import SVI, Gibbs, SmallVariance
from regbayes.inference.running.engine import Kernel
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
SAMPLER = partial(Gibbs, num_samples=400, num_warmup=30, split_merge=0)
BACKENDS = {
    "slice": SAMPLER(scan="slice"),
    "collapsed": SAMPLER(scan="collapsed"),
    "blocked": SAMPLER(scan="blocked"),
    "SVI": SVI(num_steps=60),
    "small variance": SmallVariance(penalty=1.0),
}


# what the scans draw of the other models is compared partition by partition in test_gibbs
SAMPLED = ("logistic", "regression")
PAIRS = [(m, b) for m in MODELS for b in BACKENDS if m in SAMPLED or not isinstance(BACKENDS[b], Gibbs)]


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(("model", "backend"), PAIRS, ids=str)
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
        check_kernel(Wrong(num_samples=400, num_warmup=30, split_merge=0), MODELS["DPM"], X)


def test_a_bound_that_falls_or_exceeds_the_evidence_is_noticed() -> None:
    def altered(sign: float, shift: float, **options: Any) -> SVI:
        class Wrong(SVI):
            def kernel(self, model) -> Kernel:
                return replace(super().kernel(model), value=lambda state, data, model: sign * state.bound + shift)

        return Wrong(num_steps=60, **options)

    with pytest.raises(AssertionError, match="above the log evidence"):
        check_kernel(altered(1.0, 50.0), MODELS["hinge"], X, Y)
    with pytest.raises(AssertionError, match="the ELBO fell"):
        check_kernel(altered(-1.0, 0.0, tolerance=None), MODELS["hinge"], X, Y)


def test_what_a_backend_says_of_itself_is_what_is_checked() -> None:
    class Descent(SmallVariance):
        kind = "draws"

    class Noisy(SVI):
        kind = "estimate"

    with pytest.raises(ValueError, match='Descent has kind = "draws" and 1 draws: too few'):
        check_kernel(Descent(penalty=1.0), MODELS["DPM"], X)
    with pytest.raises(ValueError, match="Noisy records ELBO, which has no exact value"):
        check_kernel(Noisy(num_steps=5), MODELS["DPM"], X)
