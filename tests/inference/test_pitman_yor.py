"""The Pitman-Yor prior on every backend, against enumeration: it has no kernel of its own."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from regbayes.inference import SVI, Gibbs, SmallVariance
from regbayes.models import (
    DDPM,
    DPM,
    DirichletProcess,
    Hinge,
    InfiniteSVM,
    Logistic,
    PitmanYor,
    PrincipalDirections,
    SphericalGaussian,
    Standardized,
)
from regbayes.testing import check_kernel, partition_posterior
from regbayes.testing.enumeration import log_evidence

X = torch.tensor([[-1.2], [-0.9], [0.3], [1.0], [1.3]], dtype=torch.float64)
Y = torch.tensor([0, 0, 1, 0, 1])
FAMILY = SphericalGaussian(loc=0.0, variance=0.5, prior_variance=1.0)
FIXED = PitmanYor(0.4, 0.8)
FREE = PitmanYor(0.3, 1.0, discount_prior=(2.0, 3.0), concentration_prior=(2.0, 1.0))
MODELS = {
    "DPM": (DPM(FAMILY, FIXED, truncation=3), None),
    "InfiniteSVM": (InfiniteSVM(FAMILY, Hinge(0.8), FIXED, Standardized(intercept=0.0), truncation=3), Y),
    "DDPM": (DDPM(FAMILY, Logistic(), FIXED, PrincipalDirections(intercept=0.0), truncation=3), None),
}
SAMPLER = partial(Gibbs, num_samples=300, num_warmup=30, split_merge=0)
BACKENDS = {
    "slice": SAMPLER(scan="slice", num_samples=1000),
    "collapsed": SAMPLER(scan="collapsed"),
    "blocked": SAMPLER(scan="blocked"),
    "SVI": SVI(num_steps=60),
    "small variance": SmallVariance(penalty=1.0),
}
pytestmark = pytest.mark.filterwarnings("ignore:All 3 components are occupied")


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_fixed_hyperparameters_on_every_backend(model: str, backend: str) -> None:
    if (model, backend) == ("DDPM", "slice"):
        pytest.skip("its chains stick for a hundred sweeps: from exact states in test_ddpm")
    check_kernel(BACKENDS[backend], *_of(model))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_a_negative_concentration_on_every_backend(backend: str) -> None:
    check_kernel(BACKENDS[backend], MODELS["DPM"][0].replace(prior=PitmanYor(0.6, -0.3)), X)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "SVI"], ids=str)
def test_unknown_hyperparameters_are_drawn(backend: str) -> None:
    check_kernel(BACKENDS[backend], MODELS["DPM"][0].replace(prior=FREE), X)


def test_the_bound_never_falls_with_unknown_hyperparameters() -> None:
    """It is of the prior on a grid of hyperparameters: near the evidence, but not below it for certain."""
    model = MODELS["DPM"][0].replace(prior=FREE)
    values = BACKENDS["SVI"].fit(model, X).trace.values
    assert (values[:, 1:] >= values[:, :-1] - 1e-9).all()
    assert values.max() < log_evidence(model, X, truncation=3) + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("scan", ["slice", "collapsed"])
def test_splits_and_merges_on_both_infinite_scans(scan: str) -> None:
    check_kernel(SAMPLER(scan=scan, split_merge=2), *_of("DPM"))  # with classifiers: `test_split_merge`


def test_the_discount_matters_to_every_answer() -> None:
    """The exact posteriors with and without it differ by far more than the checks let pass."""
    model = MODELS["DPM"][0]
    one, other = (partition_posterior(model.replace(prior=p), X) for p in (FIXED, DirichletProcess(0.8)))
    assert sum(abs(one[z] - other[z]) for z in one) / 2 > 0.1


def test_a_sampler_of_another_discount_is_noticed() -> None:
    class Wrong(Gibbs):
        def finish(self, model, data, schedule, kernel):
            other = model.replace(prior=DirichletProcess(0.8))
            posterior = super().finish(other, data, schedule, self.kernel(other))
            posterior.model = model
            return posterior

    with pytest.raises(AssertionError, match="co-assignment probabilities are off"):
        check_kernel(Wrong(num_samples=600, num_warmup=40, split_merge=0), *_of("DPM"))


def test_hyperparameters_are_among_the_draws() -> None:
    posterior = SAMPLER(scan="slice", num_samples=100).fit(MODELS["DPM"][0].replace(prior=FREE), X)
    assert posterior.samples["discount"].shape == posterior.samples["concentration"].shape == (100,)
    assert posterior.samples["discount"].std() > 0.05


def test_a_falling_price_opens_more_components() -> None:
    many = 3 * torch.arange(12, dtype=torch.float64).unsqueeze(1) + torch.tensor([[0.0], [0.1]]).repeat(6, 1)
    model = DPM(SphericalGaussian(0.0, 0.5, 1.0), PitmanYor())
    steep = model.replace(prior=PitmanYor(price_exponent=6.0))
    backend = SmallVariance(penalty=20.0)
    one, other = (int(backend.fit(chosen, many).num_components) for chosen in (model, steep))
    assert one < other


def _of(name: str) -> tuple:
    model, y = MODELS[name]
    return model, X, y
