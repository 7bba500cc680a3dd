"""Draws with a generator; the inverse Gaussian and the Polya-Gamma law against exact distribution functions."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr
from scipy.stats import chisquare, kstest, multinomial, norm

from regbayes.models import host
from regbayes.models.distributions import (
    InverseGaussian,
    PolyaGamma,
    draw,
    draw_categorical,
    inverse_gaussian,
    log_dirichlet,
    log_gamma_draw,
    normals,
    polya_gamma,
    split_counts,
    uniforms,
)
from regbayes.models.distributions.matrix_normal import MatrixNormal
from regbayes.models.distributions.polya_gamma import _left_odds, _series
from regbayes.models.distributions.wishart import PrecisionWishart
from regbayes.models.linalg import safe_cholesky

NUM_DRAWS = 100_000
KS_LEVEL = 1e-6
MEANS = [1e-8, 1e-3, 0.1, 0.9, 1.0, 5.0, 300.0, math.inf]
TILTS = [0.0, 1e-6, 0.5, -1.0, 2.0, 3.12, 3.13, -6.0, 20.0, 100.0]


def omega_cdf(omega: np.ndarray, a: float) -> np.ndarray:
    """Distribution function of 1 / x for x inverse Gaussian with mean 1 / a."""
    root = np.sqrt(omega)
    return ndtr((omega - a) / root) - np.exp(2 * a + log_ndtr(-(omega + a) / root))


def assert_centered(values: torch.Tensor, expected: float) -> None:
    values = values.double()
    assert (values.mean() - expected).abs() < 5 * values.std() / math.sqrt(len(values)), (values.mean(), expected)


def tilts(value: float, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.full((NUM_DRAWS,), value, dtype=dtype, device=generator.device)


# -- inverse Gaussian ----------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("mean", MEANS)
def test_inverse_gaussian_has_its_distribution_function(mean, dtype, generator):
    x = inverse_gaussian(tilts(mean, generator, dtype), generator)
    assert x.dtype == dtype
    assert x.device == generator.device
    assert torch.isfinite(x).all()
    assert (x > 0).all()
    x, a = x.double().cpu().numpy(), 1 / mean
    if a <= 1e4:
        assert kstest(1 / x, lambda omega: omega_cdf(omega, a)).pvalue > KS_LEVEL
    elif dtype == torch.float64:  # omega is normal with mean a + 1, variance a + 2 up to its skewness 3 / sqrt a
        assert kstest((1 / x - a - 1) / math.sqrt(a + 2), norm.cdf).pvalue > KS_LEVEL


@pytest.mark.parametrize("mean", [1e-8, 1e-3, 0.1, 1.0, 5.0])
def test_inverse_gaussian_moments(mean, generator):
    x = inverse_gaussian(tilts(mean, generator), generator)
    law = InverseGaussian(torch.tensor(mean, dtype=torch.float64))
    assert_centered(x, law.mean.item())
    assert_centered((x - mean).square(), law.variance.item())
    assert_centered(1 / x, 1 / mean + 1)


def test_inverse_gaussian_log_prob_is_normalized():
    for mean in (0.2, 1.0, 30.0, math.inf):
        law = InverseGaussian(torch.tensor(mean, dtype=torch.float64))
        t = torch.linspace(-12, 80, 20_001, dtype=torch.float64)  # log x
        assert torch.trapezoid((law.log_prob(t.exp()) + t).exp(), t).item() == pytest.approx(1, abs=1e-10)


def test_inverse_gaussian_of_the_smallest_single_precision_means_is_positive(generator):
    x = inverse_gaussian(tilts(1e-30, generator, torch.float32), generator)
    torch.testing.assert_close(x, torch.full_like(x, 1e-30), rtol=1e-5, atol=0)


# -- Polya-Gamma ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["by turns", "together"])
def form(request, monkeypatch) -> None:
    """That of a CPU, and that of other devices."""
    monkeypatch.setattr(host, "on_cpu", lambda like: request.param == "by turns")


def grid_cdf(law: PolyaGamma) -> tuple[np.ndarray, np.ndarray]:
    """omega and its distribution function, by the trapezoid rule in log omega."""
    t = torch.linspace(math.log(1e-4), math.log(20.0), 200_001, dtype=torch.float64)
    log_density = law.log_prob(t.exp()) + t
    cdf = np.cumsum(log_density.exp().numpy()) * float(t[1] - t[0])
    return t.exp().numpy(), cdf


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("tilt", TILTS)
@pytest.mark.usefixtures("form")
def test_polya_gamma_has_the_density_of_log_prob(tilt, dtype, generator):
    omega = polya_gamma(tilts(tilt, generator, dtype), generator)
    assert omega.dtype == dtype
    assert omega.device == generator.device
    nodes, cdf = grid_cdf(PolyaGamma(torch.tensor(tilt, dtype=torch.float64)))
    assert cdf[-1] == pytest.approx(1, abs=1e-10)
    assert kstest(omega.double().cpu().numpy(), lambda x: np.interp(x, nodes, cdf)).pvalue > KS_LEVEL


@pytest.mark.parametrize("tilt", [1e4, 1e8])
def test_polya_gamma_moments_where_no_grid_holds_the_density(tilt, generator):
    omega = polya_gamma(tilts(tilt, generator), generator)
    law = PolyaGamma(torch.tensor(tilt, dtype=torch.float64))
    assert_centered(omega, law.mean.item())
    assert_centered((omega - law.mean.item()).square(), law.variance.item())


@pytest.mark.parametrize("tilt", TILTS)
def test_polya_gamma_moments_and_laplace_transform_are_those_of_log_prob(tilt):
    """E exp(-s omega) = cosh(z / 2) / cosh(sqrt(z^2 / 4 + s / 2)): the identity that makes the logistic a mixture."""
    law = PolyaGamma(torch.tensor(tilt, dtype=torch.float64))
    nodes, cdf = grid_cdf(law)
    mass = np.diff(cdf, prepend=0.0)
    assert mass @ nodes == pytest.approx(law.mean.item(), rel=1e-8)
    assert mass @ (nodes - law.mean.item()) ** 2 == pytest.approx(law.variance.item(), rel=1e-7)
    for s in (0.3, 3.0, 40.0):
        v, w = abs(tilt) / 2, math.sqrt(tilt**2 / 4 + s / 2)
        expected = math.exp(v - w) * (1 + math.exp(-2 * v)) / (1 + math.exp(-2 * w))
        assert mass @ np.exp(-s * nodes) == pytest.approx(expected, rel=1e-8)


def test_polya_gamma_acceptance_is_the_density_over_the_proposal():
    """Its corrections are below 1%, so no number of draws would show a wrong one."""
    X = torch.linspace(0.05, 4, 200, dtype=torch.float64)
    is_left = X <= 0.64
    left = -0.5 / X - 1.5 * (math.pi * X / 2).log()
    first = torch.where(is_left, left, -(math.pi**2) * X / 8) + math.log(math.pi / 2)
    density = PolyaGamma(torch.zeros((), dtype=torch.float64)).log_prob(X / 4) - math.log(4)
    torch.testing.assert_close(_series(X, is_left), (density - first).exp(), rtol=1e-13, atol=0)


@pytest.mark.parametrize("u", [0.0, 0.7, 1.56, 1.57, 3.0])
def test_polya_gamma_chooses_a_side_by_its_mass(u):
    """The left piece is thinned by exp(-u^2 X / 2) afterwards, or drawn with it and thrown away beyond the split."""
    tilt, steep = u**2 / 2, u >= 1 / 0.64
    right = quad(lambda X: math.pi / 2 * math.exp(-(math.pi**2 / 8 + tilt) * X), 0.64, math.inf, epsabs=0)[0]

    def left(X):
        return math.pi / 2 * (2 / (math.pi * X)) ** 1.5 * math.exp(-0.5 / X - tilt * X * steep)

    exact = quad(left, 0, math.inf if steep else 0.64, epsabs=0)[0] / right
    argument = torch.tensor(u, dtype=torch.float64)
    odds = _left_odds(argument, math.pi**2 / 8 + argument.square() / 2, steep)
    assert odds.item() == pytest.approx(exact, rel=1e-8)


@pytest.mark.usefixtures("form")
def test_polya_gamma_of_mixed_tilts_keeps_each_in_its_place(generator):
    tilt = torch.tensor([0.0, 1e-3, 3.0, 3.2, 50.0, 1e30], device=generator.device).repeat(20_000, 1)
    omega = polya_gamma(tilt, generator)
    law = PolyaGamma(tilt[0].double())
    error = 5 * law.variance.sqrt() / math.sqrt(len(tilt)) + 1e-6 * law.mean
    assert ((omega.double().mean(0) - law.mean).abs() <= error).all()


@pytest.mark.usefixtures("form")
def test_polya_gamma_passes_a_nan_on(generator):
    omega = polya_gamma(torch.tensor([0.0, math.nan, 2.0, math.inf], device=generator.device), generator)
    assert omega.isnan().tolist() == [False, True, False, True]


# -- both ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [inverse_gaussian, polya_gamma])
def test_draws_are_a_function_of_the_generator(sampler, device):
    argument = torch.linspace(0.1, 9, 40_000, device=device)
    first, again, other = (sampler(argument, torch.Generator(device).manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("sampler", [inverse_gaussian, polya_gamma])
def test_shapes_and_strides_are_kept(sampler, generator):
    argument = torch.linspace(0.1, 9, 12, device=generator.device).reshape(3, 4)
    for view in (argument.T, argument[:, ::2], argument[:0], argument[0, 0], argument[:, :1].expand(3, 5)):
        before = view.clone()
        assert sampler(view, generator).shape == view.shape
        assert torch.equal(view, before)


@pytest.mark.parametrize(("law", "argument"), [(InverseGaussian, "mean"), (PolyaGamma, "tilt")])
def test_distribution_objects(law, argument, generator):
    value = torch.tensor([[0.5], [2.0]], dtype=torch.float64, device=generator.device)
    one = law(**{argument: value}).expand(torch.Size([2, 3]))
    assert one.batch_shape == (2, 3)
    x = draw(one, generator)
    assert x.shape == (2, 3)
    assert one.support.check(x).all()
    assert one.log_prob(x).shape == (2, 3)
    with pytest.raises(ValueError, match="support"):
        law(value, validate_args=True).log_prob(-value)


def test_a_mean_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="mean"):
        InverseGaussian(torch.tensor([1.0, -1.0]), validate_args=True)


# -- draws of any law ------------------------------------------------------------------------------------------------

LAWS = {
    "normal": lambda one: dist.Normal(one, one),
    "gamma": lambda one: dist.Gamma(one, one),
    "beta": lambda one: dist.Beta(one, one).to_event(1),
    "Dirichlet": lambda one: dist.Dirichlet(one),
    "Poisson": lambda one: dist.Poisson(9 * one),
    "Bernoulli": lambda one: dist.Bernoulli(one / 2),
    "categorical": lambda one: dist.Categorical(one),
    "multinomial": lambda one: dist.Multinomial(50, one),
    "binomial": lambda one: dist.Binomial(50, one / 2),
    "geometric": lambda one: dist.Geometric(one / 9),
    "negative binomial": lambda one: dist.NegativeBinomial(9 * one, one / 2),
    "Student": lambda one: dist.StudentT(one),
    "exponential": lambda one: dist.Exponential(one),
    "Cauchy": lambda one: dist.Cauchy(one, one),
    "Laplace": lambda one: dist.Laplace(one, one),
    "Gumbel": lambda one: dist.Gumbel(one, one),
    "von Mises": lambda one: dist.VonMises(one, one),
    "many normals": lambda one: dist.MultivariateNormal(one, one.diag()),
    "matrix normal": lambda one: MatrixNormal(one.diag(), one.diag(), one.diag()),
    "Wishart": lambda one: PrecisionWishart(9 * one[0], one.diag()),
    "mixture": lambda one: dist.MixtureSameFamily(dist.Categorical(one), dist.Normal(one, one)),
    "inverse Gaussian": lambda one: InverseGaussian(one),
    "Polya-Gamma": lambda one: PolyaGamma(one),
    "like another": lambda one: Like(one, one),
}


class Like(torch.distributions.Normal):
    """A law of a user, which draws in the shape of its location."""

    def sample(self, sample_shape=()):
        return torch.randn_like(self.loc) + torch.rand_like(self.scale, dtype=torch.float32)


class Meeting(torch.distributions.Normal):
    """A law of a user that draws before and after it has met another thread, and meets it again."""

    together = Barrier(1)

    def sample(self, sample_shape=()):
        first = super().sample(sample_shape)
        self.together.wait(60)
        second = super().sample(sample_shape)
        self.together.wait(60)
        return torch.stack([first, second])


@pytest.mark.parametrize("name", LAWS)
def test_a_draw_of_any_law_reads_its_generator_alone(name, device):
    """That it leaves the global streams alone, `conftest` sees to."""
    law = LAWS[name](torch.ones(3, dtype=torch.float64, device=device))
    law = law.expand((8, *law.batch_shape))
    first, again, other = (draw(law, torch.Generator(device).manual_seed(seed)) for seed in (1, 1, 2))
    assert first.device.type == device.type
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_draws_in_two_threads_at_once_are_those_of_each_alone(device):
    law = Meeting(torch.zeros(4, device=device), torch.ones(4, device=device))
    generators = [torch.Generator(device).manual_seed(seed) for seed in (1, 2) * 2]
    alone = [draw(law, generator) for generator in generators[:2]]
    law.together = Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(draw, [law, law], generators[2:]))
    assert all(map(torch.equal, found, alone))


# -- draws and factors that many kernels share -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_categorical_draws_have_their_frequencies_and_never_weight_zero(dtype, generator):
    weights = torch.tensor([[0.0, 0.2, 0.0, 0.8, 0.0], [0.5, 0.0, 0.5, 0.0, 0.0]], dtype=dtype, device=generator.device)
    levels = uniforms((NUM_DRAWS, 2), generator)
    chosen = draw_categorical((weights.log() - 700).expand(NUM_DRAWS, 2, 5), levels)
    assert chosen.dtype == torch.int64
    share = torch.stack([(chosen == k).double().mean(0) for k in range(5)], 1)
    error = 5 * (weights.double() * (1 - weights.double()) / NUM_DRAWS).sqrt()
    assert ((share - weights).abs() <= error + 1e-7 * (weights > 0)).all()
    edges = torch.tensor([[0.0, 1 - 1e-16], [1.0, 0.0]], dtype=torch.float64, device=generator.device)
    assert draw_categorical(weights.log().expand(2, 2, 5), edges).tolist() == [[1, 2], [3, 0]]


def test_split_counts_are_multinomial(generator):
    """All cells of three tokens against their probabilities; moments of many tokens, by two laws in turn."""
    probs = torch.tensor([[0.5, 0.0, 0.2, 0.3, 0.0], [0.0, 0.1, 0.0, 0.0, 0.9]], dtype=torch.float64)
    probs, law = probs.to(generator.device), torch.arange(NUM_DRAWS, device=generator.device) % 2

    def table(total: float) -> torch.Tensor:
        row, column, count = split_counts(torch.full_like(law, total).double(), law, probs, generator)
        assert (count > 0).all()
        return torch.zeros(NUM_DRAWS, 5).double().index_put((row.cpu(), column.cpu()), count.cpu())

    few, (first, second) = table(3), probs.cpu()
    assert (few.sum(1) == 3).all()
    assert not few[::2][:, first == 0].any()
    assert not few[1::2][:, second == 0].any()
    cells, found = few[::2][:, first > 0].unique(dim=0, return_counts=True)
    expected = multinomial(3, first[first > 0].numpy()).pmf(cells.numpy()) * NUM_DRAWS / 2
    assert len(cells) == 10
    assert chisquare(found.numpy(), expected).pvalue > KS_LEVEL
    many = table(1e9)[::2]
    assert (many.sum(1) == 1e9).all()
    gaps, covariance = (many - 1e9 * first) / 1e9**0.5, first.diag() - first.outer(first)
    for i in first.nonzero().flatten():
        assert_centered(gaps[:, i], 0)
        for j in first.nonzero().flatten():
            assert_centered(gaps[:, i] * gaps[:, j], covariance[i, j])


def test_draws_are_functions_of_the_generator(generator):
    state = generator.get_state()
    assert uniforms((3,), generator).dtype == torch.float64
    single = torch.zeros((), device=generator.device)
    first = normals((2, 2), generator, single)
    assert first.dtype == torch.float32
    generator.set_state(state)
    uniforms((3,), generator)
    assert torch.equal(normals((2, 2), generator, single), first)


@pytest.mark.parametrize("shape", [0.0, 1e-290, 1e-12, 1e-3, 0.05, 0.7, 30.0])
def test_log_gamma_and_dirichlet_draws_are_finite(shape, generator):
    """E log G = digamma(a), Var log G = trigamma(a)."""
    shapes = torch.full((NUM_DRAWS,), shape, dtype=torch.float64, device=generator.device)
    draws = log_gamma_draw(shapes, generator)
    assert torch.isfinite(draws).all()
    if shape > 1e-10:
        mean, variance = torch.digamma(shapes[0]).item(), torch.polygamma(1, shapes[0]).item()
        assert_centered(draws, mean)
        assert_centered((draws - mean).square(), variance)
    weights = log_dirichlet(shapes[:3000].view(1000, 3), generator)
    torch.testing.assert_close(weights.logsumexp(-1), torch.zeros_like(weights[:, 0]))
    assert_centered(weights[:, 0].exp(), 1 / 3)


def test_a_matrix_that_rounding_spoiled_alone_is_raised():
    column = torch.linspace(1, 2, 6, dtype=torch.float64)
    singular, sound = torch.outer(column, column), 2 * torch.eye(6, dtype=torch.float64)
    singular[0, 0] -= 1e-12
    tril = safe_cholesky(torch.stack([singular, sound]))
    torch.testing.assert_close(tril[0] @ tril[0].T, singular)
    assert torch.equal(tril[1], torch.linalg.cholesky(sound))


def test_what_is_no_gram_matrix_is_an_error_unless_a_sampler_asks():
    with pytest.raises(FloatingPointError, match="Use float64"):
        safe_cholesky(torch.full((1, 2, 2), torch.nan))
    assert safe_cholesky(torch.full((1, 2, 2), torch.nan), strict=False).shape == (1, 2, 2)
    with pytest.raises(FloatingPointError, match="not positive definite"):
        safe_cholesky(-torch.eye(2))
