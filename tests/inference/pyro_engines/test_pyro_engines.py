"""Pyro's own engines: they run the models' programs, and what they draw is what the programs say."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from setups import LaplaceLocation
from torch.distributions import biject_to
from torch.nn.functional import one_hot

from regbayes.inference import NUTS, SVI, Autoguide, Gibbs, NoMaximum, SmallVariance, TruncationWarning
from regbayes.inference.pyro_engines.partition import MixtureState, with_assignments
from regbayes.models import (
    DDPM,
    DPM,
    DiagonalGaussian,
    DirichletProcess,
    FullGaussian,
    Hinge,
    InfiniteSVM,
    Logistic,
    MedLDA,
    PitmanYor,
    PoissonGamma,
    SphericalGaussian,
)
from regbayes.models.scores import scores
from regbayes.testing import check_kernel
from regbayes.testing.enumeration import log_evidence

pytestmark = pytest.mark.filterwarnings("ignore:All . components are occupied")

X = torch.tensor([[-1.0], [-0.8], [0.9], [1.2]], dtype=torch.float64)
Y = torch.tensor([0, 0, 1, 1])
NEAR = torch.tensor([[-0.6], [-0.2], [0.3], [0.5]], dtype=torch.float64)


def test_predictions_without_conjugacy_come_from_the_drawn_parameters(device) -> None:
    """Nothing of the family says on which device it is."""
    model, rows = DPM(LaplaceLocation(), truncation=2), X.to(device)
    posterior = Autoguide(num_steps=100, num_samples=7, progress=False).fit(model, rows)
    new = rows.new_tensor([[-1.1], [0.2]])
    locs, log_mixture = posterior.samples["parameters.loc"], posterior.samples["log_mixture"][:, :2]
    by_hand = (dist.Laplace(locs, 0.3).log_prob(new.unsqueeze(1).unsqueeze(1)).sum(-1) + log_mixture).logsumexp(-1)
    expected = by_hand.logsumexp(1) - math.log(7)
    torch.testing.assert_close(posterior.log_predictive_density(new), expected)
    for backend in (Gibbs(), SVI(), SmallVariance()):
        with pytest.raises(NotImplementedError, match=r"LaplaceLocation.*NUTS"):
            backend.fit(DPM(LaplaceLocation()), rows)


# -- a chain of NUTS: its density and its assignments are exact, which leaves Pyro's own steps to trust ----------------

CLASSES = torch.tensor([0, 1, 0, 1])
PROGRAMS = {
    "alpha has a law": DPM(
        SphericalGaussian(variance=0.1), DirichletProcess(concentration_prior=(2.0, 1.0)), truncation=2
    ),
    "Pitman-Yor": DPM(SphericalGaussian(variance=0.1), PitmanYor(0.5, discount_prior=(1.0, 2.0)), truncation=3),
    "no conjugacy": DPM(LaplaceLocation(), truncation=2),
    "classifiers": InfiniteSVM(SphericalGaussian(variance=0.5), Logistic(), weight_scale=6.0, truncation=2),
    "full covariances": DPM(FullGaussian(mean_precision=0.5, degrees_of_freedom=4.0, scale=0.5), truncation=2),
    "repelling": DDPM(SphericalGaussian(variance=0.5), Logistic(), weight_scale=4.0, truncation=2),
}


def a_few_steps(name: str) -> tuple[Any, Any, MixtureState, float]:
    """A model, its data, a state of a chain, and its log density."""
    rows = torch.cat([NEAR, NEAR[[1, 3, 0, 2]]], 1) if name == "full covariances" else NEAR
    model, data = PROGRAMS[name].prepare(rows, CLASSES if name == "classifiers" else None)
    kernel = NUTS(num_samples=3, num_warmup=3, max_tree_depth=2).kernel(model)
    generator = torch.Generator().manual_seed(0)
    state = kernel.init(model, data, generator)
    for step in range(4):
        state = kernel.sweep(state, data, model, generator, step)
    return model, data, state.state, state.value


def points_of(model: Any, data: Any, state: MixtureState) -> torch.Tensor:
    """log p(z_n = k, x_n, y_n | all else) [N, T], rejections apart."""
    margin = model.log_margin(scores(data.features, state.weights), data.targets.unsqueeze(1))
    return state.log_mixture + model.likelihood.log_density(data.X, state.parameters) + margin


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_density_of_a_chain_of_nuts_is_that_of_the_parts(name: str) -> None:
    """Assignments summed out, in unconstrained space: laws of h, sticks, parameters, weights, and their Jacobians."""
    model, data, state, value = a_few_steps(name)
    total = points_of(model, data, state).logsumexp(1).sum()
    if model.repels:
        total = total + model.log_rejection(scores(data.features, state.weights).squeeze(-1)).sum()

    def add(name: str, law: Any, at: torch.Tensor) -> torch.Tensor:
        nonlocal total
        transform = biject_to(law.support)
        total = total + law.log_prob(at).sum() + transform.log_abs_det_jacobian(transform.inv(at), at).sum()
        return at

    for key, law in model.prior.hyperpriors(data.features).items():
        if law is not None:
            add(key, law, state.hyper[key])
    mixture = state.log_mixture.exp()
    sticks = mixture[:-1] / (1 - mixture.cumsum(0)[:-1] + mixture[:-1])
    add("sticks", dist.Beta(*model.prior.sticks(state.hyper, model.truncation)), sticks)
    chi = model.likelihood.prior().expand(model.truncation, -1)
    model.likelihood.parameters(chi, lambda key, law: add(key, law, state.parameters[key]))
    add("weights", dist.Normal(torch.zeros_like(state.weights), model.weight_scale), state.weights)
    torch.testing.assert_close(torch.tensor(value, dtype=torch.float64), total, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", PROGRAMS)
def test_assignments_of_a_chain_of_nuts_have_their_conditional_law(name: str) -> None:
    model, data, state, _ = a_few_steps(name)
    exact, generator = points_of(model, data, state).softmax(1), torch.Generator().manual_seed(1)
    sticks = state.log_mixture.exp()
    latents = {**state.parameters, "weights": state.weights, **state.hyper}
    latents["sticks"] = sticks[:-1] / (1 - sticks.cumsum(0)[:-1] + sticks[:-1])
    draws = torch.stack([with_assignments(latents, model, data, generator).assignments for _ in range(500)])
    found = one_hot(draws, model.truncation).double().mean(0)
    error = (exact * (1 - exact) / len(draws)).sqrt()
    assert ((found - exact).abs() <= 5 * error + 1e-12).all()


@pytest.mark.nightly
@pytest.mark.slow
def test_nuts_has_the_exact_co_assignments() -> None:
    backend = NUTS(num_samples=250, num_warmup=80, max_tree_depth=4, progress=False)
    check_kernel(backend, PROGRAMS["alpha has a law"].replace(prior=PitmanYor(0.5)), NEAR)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "y"),
    [
        (DPM(DiagonalGaussian(), prior=DirichletProcess(concentration_prior=(2.0, 1.0)), truncation=2), None),
        (InfiniteSVM(SphericalGaussian(), Hinge(2.0), truncation=2), Y),
        pytest.param(DDPM(SphericalGaussian(), truncation=2), None, marks=pytest.mark.nightly),
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


def test_an_estimate_that_does_not_exist_is_told(recwarn) -> None:
    point = Autoguide("AutoDelta", num_steps=5, learning_rate=0.3, num_samples=2, progress=False)
    point.fit(DPM(SphericalGaussian(), truncation=6, prior=DirichletProcess(1.0)), X)
    point.replace(guide="AutoNormal").fit(DPM(SphericalGaussian(), truncation=6, prior=DirichletProcess(0.5)), X)
    assert not recwarn.list
    learned = DirichletProcess(0.2, concentration_prior=(1.0, 20.0))
    for prior, told in [
        (
            DirichletProcess(0.5),
            r"With concentration 0\.5 the density of sticks is infinite.*a larger fixed concentration",
        ),
        (learned, "With concentration 0"),
        (DirichletProcess(concentration_prior=(0.5, 0.1)), "the density of concentration is infinite"),
        (PitmanYor(0.25, 2.0), r"concentration 2 and discount 0\.25 .*concentration and no discount"),
    ]:
        with pytest.warns(NoMaximum, match=told) as found:
            point.fit(DPM(SphericalGaussian(), truncation=6, prior=prior), X)
        assert len(found) == 1
    with pytest.warns(NoMaximum, match="^The density of rate is infinite.*a likelihood with a stronger prior"):
        point.fit(DPM(PoissonGamma(shape=0.5, rate=1.0), truncation=6), X.abs().round())


def test_what_they_cannot_do_is_said() -> None:
    with pytest.raises(ValueError, match="NUTS writes no checkpoints"):
        NUTS().fit(DPM(), X, checkpoint="chain.pt")
    with pytest.raises(NotImplementedError, match="MedLDA has no Autoguide backend"):
        Autoguide().fit(MedLDA(), X)


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


@pytest.mark.parametrize("backend", [NUTS(3, 3, max_tree_depth=2), Autoguide(num_steps=5, num_samples=2)], ids=repr)
def test_handlers_and_plates_around_a_fit_do_not_reach_its_program(backend) -> None:
    model = InfiniteSVM(SphericalGaussian(), truncation=2)
    alone = backend.fit(model, X, Y).trace.values
    with pyro.poutine.scale(scale=0.1), pyro.plate("outside", 3), pyro.poutine.trace() as seen:
        assert torch.equal(backend.fit(model, X, Y).trace.values, alone)
        pyro.sample("own", dist.Delta(X.new_zeros(3)))
    assert seen.trace.nodes["own"]["scale"] == 0.1
    assert [frame.name for frame in seen.trace.nodes["own"]["cond_indep_stack"]] == ["outside"]
