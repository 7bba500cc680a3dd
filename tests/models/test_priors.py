"""Priors over partitions: one conformance check, what it notices, and what only one of them has."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from setups import spoiled

from regbayes.inference import NUTS, SVI, Autoguide, Gibbs, HilbertEmbedding, SmallVariance
from regbayes.models import DPM, DirichletProcess, MixtureOfFiniteMixtures, PartitionPrior, PitmanYor, SphericalGaussian
from regbayes.models.priors.hyper import slice_step
from regbayes.models.priors.laws import law_of
from regbayes.testing import check_kernel, check_model, check_prior
from regbayes.testing.hyperparameters import hyper_grid, log_structure_prior

FIXED = [
    DirichletProcess(1.0),
    DirichletProcess(0.3),
    PitmanYor(0.0, 1.3),
    PitmanYor(0.25, 1.0),
    PitmanYor(0.5, -0.3),
    PitmanYor(0.7, 2.0, price_exponent=0.4),
    MixtureOfFiniteMixtures(1.0, 4.0),
    MixtureOfFiniteMixtures(0.2, 0.3),
    MixtureOfFiniteMixtures(3.0, 50.0),
]
FREE = [
    DirichletProcess(2.0, (2.0, 1.0)),
    DirichletProcess(1.0, (0.5, 0.5)),
    PitmanYor(0.5, 1.0, concentration_prior=(2.0, 1.0)),
    PitmanYor(0.3, 1.0, discount_prior=(1.0, 2.0)),
    PitmanYor(0.3, 1.0, discount_prior=(2.0, 3.0), concentration_prior=(2.0, 1.0)),
    MixtureOfFiniteMixtures(1.0, 2.0, (2.0, 1.0)),
]


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("prior", FIXED, ids=str)
def test_priors_conform(prior) -> None:
    check_prior(prior)


@pytest.mark.parametrize("prior", FREE, ids=str)
def test_priors_of_unknown_hyperparameters_conform(prior) -> None:
    check_prior(prior, num_data=3, truncation=4, num_draws=120)


@pytest.mark.nightly
@pytest.mark.parametrize("prior", FREE, ids=str)
def test_long_chains_of_hyperparameters_have_their_moments(prior) -> None:
    check_prior(prior, num_data=2, truncation=3, num_draws=1000, seed=1)


class OfTorch(DirichletProcess):
    """Its laws are those of torch, as the interface says, not of Pyro."""

    def hyperpriors(self, like):
        return {"concentration": torch.distributions.Gamma(*like.new_tensor(self.concentration_prior))}


def test_laws_of_torch_serve_the_program_too() -> None:
    prior, X = OfTorch(1.0, (2.0, 1.0)), torch.tensor([[0.0], [1.0], [5.0]])
    check_prior(prior, num_data=3, truncation=4, num_draws=120)
    check_model(DPM(prior=prior, truncation=3), X)
    posterior = NUTS(num_samples=2, num_warmup=2, progress=False).fit(DPM(prior=prior, truncation=3), X)
    assert (posterior.samples["concentration"] > 0).all()


@dataclass(eq=False)
class Chinese(PartitionPrior):
    """The Chinese restaurant process of concentration 1, which has no hyperparameters."""

    def hyperpriors(self, like):
        return {}

    def urn(self, h, num_data, capacity):
        return torch.arange(num_data + 1).double().log(), double(0.0).expand(capacity + 1)

    def log_partition(self, counts, h):
        return torch.lgamma(counts.double()).sum() - torch.lgamma(counts.sum().double() + 1)

    def sticks(self, h, truncation):
        return (double(1.0).expand(truncation - 1),) * 2

    def draw_rest(self, h, num_components, generator):
        return double(0.0).squeeze(), double(1.0).squeeze()


def likelier_new(right, h, num_data, capacity):
    log_sizes, log_new = right(h, num_data, capacity)
    return log_sizes, log_new + 1


def test_a_prior_without_hyperparameters_conforms_and_a_wrong_one_is_found() -> None:
    check_prior(Chinese(), num_data=3, truncation=4)
    for method, other in (("urn", likelier_new), ("sticks", lambda right, h, T: (right(h, T)[0], 2 * right(h, T)[1]))):
        with pytest.raises(AssertionError, match=f"^{method} "):
            check_prior(spoiled(Chinese(), method, other), num_data=3, truncation=4)


BACKENDS = [
    *(
        pytest.param(Gibbs(300, 20, num_chains=1, scan=scan), marks=[pytest.mark.nightly][: scan == "blocked"])
        for scan in ("slice", "blocked", "collapsed")
    ),
    SVI(num_steps=10),
    SmallVariance(),
]


@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_a_prior_without_hyperparameters_is_served(backend) -> None:
    X = double(-1.5, 0.3, 1.9).unsqueeze(1)
    model = DPM(SphericalGaussian(0.0, 1.0, 2.0), prior=Chinese(), truncation=3)
    check_kernel(backend.replace(progress=False), model, X)
    same = model.replace(prior=DirichletProcess(1.0))
    ours, theirs = (backend.replace(progress=False).fit(each, X).trace.values for each in (model, same))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
def test_pyro_serves_a_prior_without_hyperparameters() -> None:
    model, X = DPM(prior=Chinese(), truncation=3), torch.tensor([[0.0], [1.0], [5.0]])
    check_model(model, X)
    NUTS(num_samples=2, num_warmup=2, progress=False).fit(model, X)
    Autoguide(num_steps=3, progress=False).fit(model, X)
    HilbertEmbedding(progress=False).fit(model, X)


# -- what the check notices --------------------------------------------------------------------------------------------


def one_weight(right, h, num_data, capacity):
    """An urn in which a new block has the same weight beside any number of others."""
    log_sizes, log_new = right(h, num_data, capacity)
    return log_sizes, log_new[:1].expand(capacity + 1).log().exp()


def other_sites(right, like):
    return {"concentration": like.new_tensor(1.0)}


def larger_rest(right, *given):
    exponent, mass = right(*given)
    return exponent, 1.2 * mass


def other_jumps(right, h, num_components, generator):
    """The same total, jumps of other sizes."""
    d = h["discount"]
    return torch.zeros_like(d), h["concentration"] + d * num_components


PITMAN_YOR, DIRICHLET, FREE_DIRICHLET = PitmanYor(0.3, 1.0), DirichletProcess(1.0), DirichletProcess(1.0, (2.0, 1.0))


@pytest.mark.parametrize(
    ("prior", "method", "other", "found"),
    [
        (PITMAN_YOR, "urn", one_weight, "urn"),
        (MixtureOfFiniteMixtures(0.3, 1.0), "urn", lambda right, h, N, K: right(h, N + 1, K), "urn"),  # V at N + 1
        (PITMAN_YOR, "sticks", lambda right, h, T: (right(h, T)[0], right(h, T)[1] - h["discount"]), "sticks"),
        (PITMAN_YOR, "log_partition", lambda right, n, h: right(n, h) + 0.01 * (len(n) > 2), "urn|log_partition"),
        (PITMAN_YOR, "draw_rest", other_jumps, "draw_rest"),
        (PITMAN_YOR, "draw_rest", larger_rest, "draw_rest"),
        (FREE_DIRICHLET, "sample", other_sites, "sample"),
        (FREE_DIRICHLET, "draw", lambda right, h, counts, generator: right(h, counts.repeat(2), generator), "draw"),
        (FREE_DIRICHLET, "draw_truncated", lambda right, h, n, *rest: right(h, n.flip(0), *rest), "draw_truncated"),
        (FREE_DIRICHLET, "update", lambda right, *given: right(*given) + double(1.0, 0.0), "update"),
        (FREE_DIRICHLET, "expect", lambda right, q, T: right(q, T)._replace(kl=q.new_zeros(())), "expect|update"),
        (DIRICHLET, "expected_components", lambda right, num_data: math.log1p(num_data), "expected_components"),
        (DIRICHLET, "price", lambda right, penalty, num_components: penalty / num_components, "price"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_part_of_another_process_is_named(prior, method, other, found) -> None:
    with pytest.raises(AssertionError, match=rf"^({found}) "):
        check_prior(spoiled(prior, method, other), num_data=3, truncation=4, num_draws=300)


def swapped(right, h, truncation):
    return right(h, truncation)[::-1]


def squared_urn(right, h, num_data, capacity):
    log_sizes, log_new = right(h, num_data, capacity)
    return log_sizes, 2 * log_new


def squared_mass(right, *given):
    exponent, mass = right(*given)
    return exponent, mass.square()


@pytest.mark.parametrize(
    ("method", "other"),
    [("sticks", swapped), ("urn", squared_urn), ("draw_rest", squared_mass)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_right_at_the_starting_value_alone_is_found(method, other) -> None:
    """The process starts at a concentration of 1, where none of these can be seen."""
    prior = spoiled(FREE_DIRICHLET, method, other)
    with pytest.raises(AssertionError, match=rf"^{method} .*, at concentration = "):
        check_prior(prior, num_data=3, truncation=4)
    fixed = spoiled(DIRICHLET, method, other)
    check_prior(fixed, num_data=3, truncation=4)


def test_an_error_of_a_prior_is_told_with_its_method() -> None:
    with pytest.raises(AssertionError, match=r"^SpoiledDirichletProcess.start raised AttributeError: .*'strength'"):
        check_prior(spoiled(DIRICHLET, "hyperpriors", lambda right, like: {"strength": None}))


# -- one by one --------------------------------------------------------------------------------------------------------


def test_the_grid_integrates_every_hyperparameter() -> None:
    prior = PitmanYor(0.3, 1.0, discount_prior=(2.0, 3.0), concentration_prior=(2.0, 4.0))
    h, log_weights = hyper_grid(prior)
    weights = log_weights.exp()
    torch.testing.assert_close(weights.sum(), double(1.0).squeeze(), rtol=1e-7, atol=0)
    torch.testing.assert_close(weights @ h["discount"], double(0.4).squeeze(), rtol=1e-7, atol=0)
    torch.testing.assert_close(weights @ h["concentration"].square(), double(6 / 16).squeeze(), rtol=1e-7, atol=0)
    # two points are together with probability E (1 - d) / (1 + alpha)
    together = math.exp(log_structure_prior(law_of(prior, None), (2,)))
    assert together == pytest.approx(0.6 * float(weights @ (1 / (1 + h["concentration"]))), rel=1e-7)
    apart = math.exp(log_structure_prior(law_of(prior, None), (1, 1)))
    assert together + apart == pytest.approx(1.0, rel=1e-7)


def test_a_pitman_yor_process_without_discount_is_the_dirichlet_process() -> None:
    counts, generator = torch.tensor([4, 1, 1]), torch.Generator().manual_seed(0)
    one, other = PitmanYor(0.0, 1.7), DirichletProcess(1.7)
    h, k = one.start(counts), other.start(counts)
    torch.testing.assert_close(one.log_partition(counts, h), other.log_partition(counts, k))
    torch.testing.assert_close(one.sticks(h, 6), other.sticks(k, 6))
    torch.testing.assert_close(one.draw_rest(h, 3, generator), other.draw_rest(k, 3, generator))
    torch.testing.assert_close(one.urn(h, 6, 3)[1], other.urn(k, 6, 3)[1])
    torch.testing.assert_close(one.urn(h, 6, 3)[0][1:], other.urn(k, 6, 3)[0][1:])
    assert one.price(2.5, 4) == other.price(2.5, 4) == 10.0


def test_expected_numbers_of_components() -> None:
    """The closed forms of docs/derivations/priors, "Sticks and urns"."""
    num_data, alpha = 2000, 1.5
    exact = sum(alpha / (alpha + i) for i in range(num_data))
    assert DirichletProcess(alpha).expected_components(num_data) == pytest.approx(exact, rel=1e-9)
    for d in (0.25, 0.75):
        ratio = math.lgamma(alpha + d + num_data) - math.lgamma(alpha + num_data)
        ratio += math.lgamma(alpha + 1) - math.lgamma(alpha + d)
        found = PitmanYor(d, alpha).expected_components(num_data)
        assert found == pytest.approx((math.exp(ratio) - alpha) / d, rel=1e-9)


def test_a_price_falls_with_the_number_of_components_but_never_below_zero() -> None:
    prior = PitmanYor(price_exponent=2.0)
    total = [prior.price(1.5, num_components) for num_components in range(1, 6)]
    steps = [1.5, *(max(0.0, 1.5 - 2 * math.log(i)) for i in range(1, 5))]
    assert total == pytest.approx([sum(steps[:k]) for k in range(1, 6)])


@pytest.mark.parametrize("prior", [DirichletProcess(1.0, (2.0, 0.7)), PitmanYor(0.3, 1.0, (2.0, 3.0), (2.0, 0.7))])
def test_q_has_the_means_of_quadrature(prior) -> None:
    """Given the sticks themselves q(h) is p(h | v); its means are shown to users."""
    v = double(0.3, 0.6, 0.2, 0.5)
    log_v, log_rest = v.log(), (-v).log1p()
    q = prior.update(prior.initial(v), log_v, log_rest)
    h, log_weights = hyper_grid(prior)
    a, b = prior.sticks({name: value.unsqueeze(1) for name, value in h.items()}, 5)
    weights = (log_weights + torch.distributions.Beta(a, b).log_prob(v).sum(1)).softmax(0)
    rel = 1e-9 if isinstance(prior, DirichletProcess) else 0.05
    for name, mean in prior.expect(q, 5).hyper.items():
        assert float(mean) == pytest.approx(float(weights @ h[name]), rel=rel), name


@pytest.mark.parametrize("scale", [0.01, 1.0, 20.0])
def test_slice_steps_leave_a_density_of_any_scale(scale) -> None:
    generator, value = torch.Generator().manual_seed(0), double(0.0).squeeze()
    draws = []
    for _ in range(600):
        value = slice_step(lambda x: -(x / scale).square() / 2, value, generator)
        draws.append(value / scale)
    means = torch.stack([part.square().mean() for part in torch.stack(draws).chunk(20)])
    assert abs(means.mean() - 1) < 5 * means.std() / 20**0.5


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (PitmanYor(0.5, -0.5), "concentration is -0.5"),
        (PitmanYor(0.5, -0.2, concentration_prior=(1.0, 1.0)), "concentration is -0.2"),
        (PitmanYor(0.5, -0.2, discount_prior=(1.0, 1.0)), "concentration is -0.2; it must be more than 0"),
        (PitmanYor(0.0, discount_prior=(1.0, 1.0)), "discount is 0.0"),
        (PitmanYor(discount_prior=(1.0,)), "discount_prior"),
        (MixtureOfFiniteMixtures(size=1e5), "size is 100000.0"),
    ],
)
def test_hyperparameters_outside_their_domain_are_named(prior, message) -> None:
    with pytest.raises(ValueError, match=message):
        prior.checked()
