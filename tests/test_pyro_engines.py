"""Pyro's own engines: they run the models' programs, and what they draw is what the programs say."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import pytest
import torch

from regbayes.inference import NUTS, SVI, Autoguide, Gibbs, Posterior, SmallVariance, TruncationWarning
from regbayes.models import (
    DDPM,
    DPM,
    IHMM,
    DiagonalGaussian,
    DirichletProcess,
    FullGaussian,
    Hinge,
    InfiniteSVM,
    Likelihood,
    Logistic,
    PitmanYor,
    PrincipalDirections,
    SphericalGaussian,
    Standardized,
)
from regbayes.models.priors.sticks import log_labelled_prior
from regbayes.testing import check_kernel
from regbayes.testing.enumeration import log_evidence

pytestmark = pytest.mark.filterwarnings("ignore:All . components are occupied")

X = torch.tensor([[-1.0], [-0.8], [0.9], [1.2]], dtype=torch.float64)
Y = torch.tensor([0, 0, 1, 1])
NEAR = torch.tensor([[-0.6], [-0.2], [0.3], [0.5]], dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("prior", [DirichletProcess(concentration_prior=(2.0, 1.0)), PitmanYor(0.5)], ids=repr)
def test_nuts_has_the_exact_co_assignments(prior) -> None:
    model = DPM(SphericalGaussian(variance=0.1), prior, truncation=2)
    check_kernel(NUTS(num_samples=250, num_warmup=80, max_tree_depth=4, progress=False), model, NEAR)


@dataclass(eq=False)
class LaplaceLocation(Likelihood):
    """A family without a conjugate prior: x ~ Laplace(loc, 0.3), loc ~ N(0, 1)."""

    def parameters(self, chi, sample):
        return {"loc": sample("loc", dist.Normal(chi.new_zeros(*chi.shape[:-1], 1), 1.0).to_event(1))}

    def distribution(self, parameters):
        return dist.Laplace(parameters["loc"], 0.3).to_event(1)

    def prior(self):
        return torch.zeros(0, dtype=torch.float64)


@pytest.mark.slow
def test_nuts_takes_a_family_without_conjugacy() -> None:
    """Every labelling of four points, locations integrated out by quadrature."""
    model = DPM(LaplaceLocation(), truncation=2)
    nodes = torch.linspace(-6, 6, 2001, dtype=torch.float64)
    log_prior = dist.Normal(0.0, 1.0).log_prob(nodes)
    log_density = dist.Laplace(nodes, 0.3).log_prob(NEAR)
    a, b = model.prior.sticks(model.prior.start(NEAR), 2)
    weights, together = [], []
    for labels in itertools.product(range(2), repeat=4):
        z = torch.tensor(labels)
        blocks = [(log_prior + log_density[z == k].sum(0)).logsumexp(0) for k in range(2)]
        weights.append(log_labelled_prior(torch.bincount(z, minlength=2), a, b) + sum(blocks))
        together.append((z.unsqueeze(0) == z.unsqueeze(1)).double())
    exact = torch.einsum("l,lij->ij", torch.stack(weights).softmax(0), torch.stack(together))
    found = NUTS(num_samples=400, num_warmup=100, max_tree_depth=4, progress=False).fit(model, NEAR).similarity()
    assert (found - exact).abs().max() < 0.12  # five standard errors of some hundred effective draws
    assert exact[0, 3] < 0.5 < exact[0, 1]


def test_predictions_without_conjugacy_come_from_the_drawn_parameters() -> None:
    posterior = Autoguide(num_steps=100, num_samples=7, progress=False).fit(DPM(LaplaceLocation(), truncation=2), X)
    new = torch.tensor([[-1.1], [0.2]], dtype=torch.float64)
    locs, log_mixture = posterior.samples["parameters.loc"], posterior.samples["log_mixture"][:, :2]
    by_hand = (dist.Laplace(locs, 0.3).log_prob(new.unsqueeze(1).unsqueeze(1)).sum(-1) + log_mixture).logsumexp(-1)
    expected = by_hand.logsumexp(1) - math.log(7)
    torch.testing.assert_close(posterior.log_predictive_density(new), expected)
    for backend in (Gibbs(), SVI(), SmallVariance()):
        with pytest.raises(NotImplementedError, match=r"LaplaceLocation.*NUTS"):
            backend.fit(DPM(LaplaceLocation()), X)


@pytest.mark.slow
def test_nuts_has_the_exact_co_assignments_of_classifiers() -> None:
    model = InfiniteSVM(
        SphericalGaussian(variance=0.5),
        Logistic(),
        weight_scale=6.0,
        feature_map=Standardized(intercept=0.0),
        truncation=2,
    )
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
    model = DDPM(
        SphericalGaussian(variance=0.5),
        Logistic(),
        weight_scale=4.0,
        feature_map=PrincipalDirections(intercept=0.0),
        truncation=2,
    )
    check_kernel(NUTS(num_samples=250, num_warmup=80, max_tree_depth=4, progress=False), model, NEAR)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "y"),
    [
        (DPM(DiagonalGaussian(), prior=DirichletProcess(concentration_prior=(2.0, 1.0)), truncation=2), None),
        (InfiniteSVM(SphericalGaussian(), Hinge(2.0), truncation=2), Y),
        (DDPM(SphericalGaussian(), truncation=2), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_guide_stays_below_the_evidence_and_predicts(model, y) -> None:
    posterior = Autoguide(num_steps=300, num_samples=20, progress=False).fit(model, X, y)
    if model.prior.concentration_prior is None:
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
