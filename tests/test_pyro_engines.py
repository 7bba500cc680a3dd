"""Pyro's own engines: they run the models' programs, and what they draw is what the programs say."""

from __future__ import annotations

import pyro
import pytest
import torch

from regbayes.inference import NUTS, Autoguide, Posterior, TruncationWarning
from regbayes.models import (
    DDPM,
    DPM,
    IHMM,
    DiagonalGaussian,
    FullGaussian,
    Hinge,
    InfiniteSVM,
    Logistic,
    SphericalGaussian,
)
from regbayes.testing import check_kernel
from regbayes.testing.enumeration import log_evidence

pytestmark = pytest.mark.filterwarnings("ignore:All . components are occupied")

X = torch.tensor([[-1.0], [-0.8], [0.9], [1.2]], dtype=torch.float64)
Y = torch.tensor([0, 0, 1, 1])
NEAR = torch.tensor([[-0.6], [-0.2], [0.3], [0.5]], dtype=torch.float64)


def test_nuts_has_the_exact_co_assignments() -> None:
    model = DPM(SphericalGaussian(variance=0.1), truncation=2)
    check_kernel(NUTS(num_samples=250, num_warmup=80, max_tree_depth=4, progress=False), model, NEAR)


@pytest.mark.slow
def test_nuts_has_the_exact_co_assignments_of_classifiers() -> None:
    model = InfiniteSVM(SphericalGaussian(variance=0.5), Logistic(), weight_scale=6.0, intercept=0.0, truncation=2)
    check_kernel(
        NUTS(num_samples=250, num_warmup=80, max_tree_depth=4, progress=False), model, NEAR, torch.tensor([0, 1, 0, 1])
    )


@pytest.mark.slow
def test_nuts_has_the_exact_co_assignments_of_full_covariances() -> None:
    model = DPM(FullGaussian(mean_precision=0.5, degrees_of_freedom=4.0, scale=0.5), truncation=2)
    rows = torch.cat([NEAR, NEAR[[1, 3, 0, 2]]], 1)
    check_kernel(NUTS(num_samples=250, num_warmup=80, max_tree_depth=4, progress=False), model, rows)


@pytest.mark.slow
def test_nuts_has_the_exact_co_assignments_of_components_that_repel() -> None:
    model = DDPM(SphericalGaussian(variance=0.5), Logistic(), weight_scale=4.0, intercept=0.0, truncation=2)
    check_kernel(NUTS(num_samples=250, num_warmup=80, max_tree_depth=4, progress=False), model, NEAR)


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (DPM(DiagonalGaussian(), concentration_prior=(2.0, 1.0), truncation=2), None),
        (InfiniteSVM(SphericalGaussian(), Hinge(2.0), truncation=2), Y),
        (DDPM(SphericalGaussian(), truncation=2), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_guide_stays_below_the_evidence_and_predicts(model, y) -> None:
    posterior = Autoguide(num_steps=300, num_samples=20, progress=False).fit(model, X, y)
    if model.concentration_prior is None:
        estimates = posterior.trace.values[0, -100:]
        error = estimates.std() / 10
        exact = log_evidence(posterior.model, X, y, truncation=2)
        assert exact - 6.0 < estimates.mean() < exact + 5 * error
    assert posterior.samples["assignments"].shape == (20, 4)
    if y is not None:
        assert posterior.predict(X).tolist() == y.tolist()


def test_the_same_seed_gives_the_same_draws_and_nothing_is_left_behind(tmp_path) -> None:
    backend = Autoguide(guide="AutoDelta", num_steps=20, num_samples=3, seed=4, progress=False)
    first, second = (backend.fit(InfiniteSVM(truncation=3), X, Y) for _ in range(2))
    assert torch.equal(first.samples["weights"], second.samples["weights"])
    assert torch.equal(first.samples["assignments"], second.samples["assignments"])
    assert len(pyro.get_param_store()) == 0
    first.save(tmp_path / "posterior.pt")
    loaded = Posterior.load(tmp_path / "posterior.pt")
    assert repr(loaded.backend) == repr(backend)
    assert torch.equal(loaded.predict(X), first.predict(X))


def test_a_chain_of_nuts_repeats() -> None:
    backend = NUTS(num_samples=3, num_warmup=3, max_tree_depth=2, progress=False)
    first, second = (backend.fit(DPM(truncation=2), X) for _ in range(2))
    assert torch.equal(first.trace.values, second.trace.values)


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (Autoguide(guide="AutoMagic"), "guide is 'AutoMagic'; expected one of 'AutoNormal'"),
        (Autoguide(learning_rate=0.0), "learning_rate is 0.0"),
        (Autoguide(num_steps=0), "num_steps is 0"),
        (NUTS(num_samples=0), "num_samples is 0"),
        (NUTS(max_tree_depth=1.5), "max_tree_depth is 1.5"),
    ],
    ids=repr,
)
def test_options_outside_their_domain_are_named(backend, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        backend.fit(DPM(), X)


def test_what_they_cannot_do_is_said() -> None:
    with pytest.raises(ValueError, match="NUTS writes no checkpoints"):
        NUTS().fit(DPM(), X, checkpoint="chain.pt")
    with pytest.raises(NotImplementedError, match="IHMM has no Autoguide backend"):
        Autoguide().fit(IHMM(), X)


def test_a_program_with_sites_of_its_own_is_refused() -> None:
    class Wider(DPM):
        def program(self, data):
            pyro.sample("spread", pyro.distributions.LogNormal(data.X.new_zeros(()), 1.0))
            super().program(data)

    for backend in (NUTS(progress=False), Autoguide(progress=False)):
        with pytest.raises(NotImplementedError, match="does not keep: spread"):
            backend.fit(Wider(truncation=2), X)


@pytest.mark.parametrize("backend", [NUTS(5, 5, max_tree_depth=2), Autoguide(num_steps=50, num_samples=5)], ids=repr)
def test_a_truncation_that_binds_is_told(backend) -> None:
    with pytest.warns(TruncationWarning, match=r"truncation=4, or with Gibbs\(\)"):
        backend.fit(DPM(SphericalGaussian(), truncation=2), 20 * X)
