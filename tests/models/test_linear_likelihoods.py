"""The likelihoods of latent features: pseudo-observations, bounds, majorizers and precisions against densities."""

from __future__ import annotations

import math

import pytest
import scipy.sparse
import torch
from torch import Tensor
from torch.distributions import Gamma

from regbayes.models import Blocks, InfiniteLatentSVM, LinearBernoulli, LinearGaussian
from regbayes.models.sparse import SparseRows

N = 4
BITS = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
REALS = torch.tensor([[0.3, -1.2], [1.4, 0.2], [-0.5, 2.2], [0.9, -0.1]], dtype=torch.float64)
FAMILIES = {
    "gaussian": (LinearGaussian(noise_variance=0.6), REALS),
    "bernoulli": (LinearBernoulli(), BITS),
    "blocks": (
        Blocks([(LinearGaussian(offset=0.2), 1), (LinearBernoulli(), 2), (LinearGaussian(), 1)]),
        torch.cat([REALS[:, :1], BITS, REALS[:, 1:]], 1),
    ),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest):
    likelihood, X = FAMILIES[request.param]
    likelihood = likelihood.resolve(X)
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(X.shape, generator=generator, dtype=torch.float64)
    return likelihood, X, mean, likelihood.start(X)


def test_the_program_has_the_density(family) -> None:
    likelihood, X, mean, h = family
    torch.testing.assert_close(likelihood.distribution(mean, h).log_prob(X), likelihood.log_density(X, mean, h))


def gaussian_factor(observed, mean: Tensor) -> Tensor:
    return observed.shift * mean - observed.precision * mean.square() / 2


def test_pseudo_observations_average_to_the_density(family) -> None:
    """p(x | m') / p(x | m) = E exp(b m' - a m'^2 / 2) / exp(b m - a m^2 / 2) over draws of (a, b) given m."""
    likelihood, X, mean, h = family
    generator, num_draws = torch.Generator().manual_seed(1), 20_000
    other = mean + 0.8
    rows = [value.repeat(num_draws, 1) for value in (X, mean, other)]
    observed = likelihood.augment(rows[0], rows[1], h, generator)
    assert observed.shift.shape == rows[0].shape
    assert observed.precision.shape[1] == X.shape[1]
    ratio = (gaussian_factor(observed, rows[2]) - gaussian_factor(observed, rows[1])).exp().view(num_draws, *X.shape)
    exact = (likelihood.log_density(X, other, h) - likelihood.log_density(X, mean, h)).exp()
    assert ((ratio.mean(0) - exact).abs() <= 5 * ratio.std(0) / num_draws**0.5 + 1e-9).all()


def test_expectations_are_bounds_that_their_pseudo_observations_attain(family) -> None:
    """Below E log p under N(m, v), by quadrature; exp of the pseudo-observation differs from it by a constant in m."""
    likelihood, X, mean, h = family
    nodes = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    weights = torch.exp(-nodes.square() / 2)
    weights = weights / weights.sum()
    for variance in (0.0, 0.7):
        square = mean.square() + variance
        bound = likelihood.expected_log_density(X, mean, square, h)
        exact = (
            sum(
                weight * likelihood.log_density(X, mean + math.sqrt(variance) * node, h)
                for weight, node in zip(weights[::10], nodes[::10], strict=True)
            )
            / weights[::10].sum()
        )
        assert (bound <= exact + 1e-7).all()
        leaves = [mean.clone().requires_grad_(), square.clone().requires_grad_()]
        likelihood.expected_log_density(X, *leaves, h).sum().backward()
        observed = likelihood.expect(X, square, h, mean)
        # the bound is linear in E m and E m^2 with these coefficients, its xi at their optimum
        torch.testing.assert_close(leaves[0].grad, observed.shift.expand_as(X))
        torch.testing.assert_close(leaves[1].grad, -(observed.precision / 2).expand_as(X))


def test_majorizers_touch_and_do_not_cross(family) -> None:
    likelihood, X, mean, _ = family
    observed = likelihood.majorize(X, mean)
    leaf = mean.clone().requires_grad_()
    likelihood.divergence(X, leaf).sum().backward()
    torch.testing.assert_close(observed.shift - observed.precision * mean, -leaf.grad)
    cost = likelihood.divergence(X, mean)
    assert (cost >= 0).all()
    for step in (-3.0, -0.5, 0.5, 3.0):
        drop = gaussian_factor(observed, mean + step) - gaussian_factor(observed, mean)
        assert (cost - drop >= likelihood.divergence(X, mean + step) - 1e-9).all()


def test_divergences_are_log_densities_at_the_start(family) -> None:
    likelihood, X, mean, h = family
    change = likelihood.divergence(X, mean + 0.5) - likelihood.divergence(X, mean)
    torch.testing.assert_close(change, likelihood.log_density(X, mean, h) - likelihood.log_density(X, mean + 0.5, h))


def test_precisions_have_the_ratio_of_the_joint(family) -> None:
    """Gamma laws from the evidence, with entries left out and counted twice, and 3 features behind the loadings."""
    likelihood, X, mean, h = family
    loadings = torch.randn(3, X.shape[1], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    counted = torch.tensor([1.0, 2.0, 0.0, 1.0], dtype=torch.float64).unsqueeze(1)
    squares = torch.cat([loadings.square().sum(0), loadings.new_tensor([3.0])])
    seen = likelihood.evidence(X, mean, mean.square(), squares, counted)
    laws = likelihood.hyperpriors(X)
    assert seen.keys() == laws.keys() == h.keys()

    def log_joint(h) -> Tensor:
        precision = likelihood.loading_precision(h, X.shape[1])
        log_loadings = (3 * precision.log() - precision * squares[:-1]).sum() / 2
        log_laws = sum(law.log_prob(h[name]) for name, law in laws.items())
        return log_laws + log_loadings + (counted * likelihood.log_density(X, mean, h)).sum()

    for name, law in laws.items():
        shape, rate = (own + more for own, more in zip((law.concentration, law.rate), seen[name], strict=True))
        drawn, moved = Gamma(shape, rate), h | {name: h[name] * 1.7}
        expected = float(log_joint(moved) - log_joint(h))
        assert float(drawn.log_prob(moved[name]) - drawn.log_prob(h[name])) == pytest.approx(expected, rel=1e-9)


def test_expected_log_densities_use_the_mean_of_the_logarithm() -> None:
    likelihood, X = FAMILIES["gaussian"][0].resolve(REALS), REALS
    h = likelihood.start(X)
    mean, square = torch.zeros_like(X), torch.ones_like(X)
    own = likelihood.expected_log_density(X, mean, square, h)
    other = likelihood.expected_log_density(
        X, mean, square, h | {"log_noise_precision": h["noise_precision"].log() + 1}
    )
    torch.testing.assert_close(other - own, torch.full_like(own, 0.5))


def test_what_is_not_given_comes_from_the_observed_entries_as_often_as_they_count() -> None:
    X = torch.tensor([[1.0, 4.0], [3.0, 9.0], [8.0, 6.0]], dtype=torch.float64)
    observed = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    weights = torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64)
    likelihood = LinearGaussian().resolve(X, weights, observed)
    torch.testing.assert_close(torch.as_tensor(likelihood.offset), torch.tensor([13 / 4, 14 / 3], dtype=torch.float64))
    spread = ((2 * 2.25**2 + 0.25**2 + 4.75**2) / 4 + (2 * (2 / 3) ** 2 + (4 / 3) ** 2) / 3) / 2
    assert likelihood.loading_variance == pytest.approx(spread)
    assert likelihood.noise_variance == pytest.approx(spread / 4)
    bits = LinearBernoulli().resolve(BITS)
    torch.testing.assert_close(torch.as_tensor(bits.offset), torch.zeros(2, dtype=torch.float64))
    rare = torch.eye(2, 3, dtype=torch.float64)
    copies = LinearBernoulli().resolve(rare.repeat_interleave(torch.tensor([1, 29]), 0))
    assert torch.equal(LinearBernoulli().resolve(rare, torch.tensor([1.0, 29.0])).offset, copies.offset)
    assert copies.offset[2] == pytest.approx(math.log(1 / 59))
    again = likelihood.resolve(X + 1)
    assert again.get_params()["noise_variance"] == likelihood.noise_variance


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="in row 1, column 0; LinearBernoulli needs zeros and ones"):
        LinearBernoulli().check(torch.tensor([[1.0, 0.0], [0.5, 1.0]]))
    LinearBernoulli().check(torch.tensor([[1.0, 0.5]]), torch.tensor([[1.0, 0.0]]))
    with pytest.raises(ValueError, match="X has 2 columns, but the blocks have 4"):
        FAMILIES["blocks"][0].resolve(REALS)
    with pytest.raises(ValueError, match=r"X is sparse; LinearGaussian needs dense rows: pass X.toarray\(\)"):
        LinearGaussian().admit(SparseRows.of(scipy.sparse.csr_array(REALS.numpy())))
    for wrong in ([], [(LinearGaussian(), 0)], [("gaussian", 2)], "gaussian"):
        with pytest.raises(ValueError, match="parts is"):
            InfiniteLatentSVM(Blocks(wrong), feature_map=None).checked()
