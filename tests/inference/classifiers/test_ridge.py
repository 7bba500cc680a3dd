"""The one solver behind the classifier updates, against dense formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from regbayes.inference.classifiers import ridge as module
from regbayes.inference.classifiers.ridge import (
    Laws,
    Ridge,
    natural_of_owners,
    owner_means,
    rows_of_owners,
    soft_means,
    soft_natural,
)
from regbayes.inference.classifiers.row_space import RowRidge
from regbayes.models.linalg import safe_cholesky

N, K, P, C, NU = 30, 4, 3, 2, 0.7


@pytest.fixture
def problem(device, generator):
    def randn(*shape):
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float64)

    assignments = torch.randint(K - 1, (N,), generator=generator, device=device)  # the last component stays empty
    return randn(N, P), randn(N, C).exp(), randn(N, C), assignments


@pytest.fixture(params=[1, 100], ids=["products", "factors"])
def few(request, monkeypatch) -> None:
    """Ridges that are many or few: their sums and variances from products of features, or one by one."""
    monkeypatch.setattr(module, "_MANY", request.param)


def hard(features, precision, shift, owner, num_owners=K, nu=NU) -> Ridge:
    return Ridge.of_natural(*natural_of_owners(features, precision, shift, rows_of_owners(owner, num_owners), nu))


def dense(features, precision, shift, weight):
    """(mean [P], covariance [P, P]) of one component and score."""
    gram = (features * (weight * precision).unsqueeze(1)).T @ features
    covariance = torch.linalg.inv(gram + torch.eye(P, dtype=gram.dtype, device=gram.device) / NU**2)
    return covariance @ (features.T @ (weight * shift)), covariance


def covariance(ridge: Ridge, k: int, c: int) -> torch.Tensor:
    return torch.cholesky_inverse(ridge.precision_tril[k, c])


@pytest.mark.parametrize("tile", [3, 1000])
def test_rows_of_their_own_are_the_dense_formula(problem, tile, monkeypatch) -> None:
    """A component without rows has the prior."""
    monkeypatch.setattr(module, "_TILE", tile)
    features, precision, shift, assignments = problem
    ridge = hard(*problem)
    for k in range(K):
        for c in range(C):
            mean, cov = dense(features, precision[:, c], shift[:, c], (assignments == k).double())
            torch.testing.assert_close(ridge.mean[k, :, c], mean)
            torch.testing.assert_close(covariance(ridge, k, c), cov)


def test_soft_assignments_are_the_dense_formula(problem, few, device, generator) -> None:
    features, _, _, _ = problem
    shape = (N, K, C)
    precision = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
    shift = torch.randn(shape, generator=generator, device=device, dtype=torch.float64)
    weight = torch.rand((N, K), generator=generator, device=device, dtype=torch.float64)
    ridge = Ridge.of_natural(*soft_natural(features, precision, shift, weight, weight_scale=NU))
    for k in range(K):
        for c in range(C):
            mean, cov = dense(features, precision[:, k, c], shift[:, k, c], weight[:, k])
            torch.testing.assert_close(ridge.mean[k, :, c], mean)
            torch.testing.assert_close(covariance(ridge, k, c), cov)


def test_means_in_the_space_of_rows_are_those_in_the_space_of_features(device, generator) -> None:
    def randn(*shape):
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float64)

    # 100 points against 70 features: components of 12, 80, 8 and no points
    assignments = torch.tensor([1] * 80 + [0] * 12 + [2] * 8, device=device)
    features, precision, shift = randn(100, 70), (4 * randn(100, C)).exp(), randn(100, C)
    features[0], precision[90], shift[90], precision[91] = 0.0, 0.0, 0.0, 0.0
    features[92:94] = features[92]  # the same row twice, held hard
    precision[92:94] *= 1e6
    members = torch.nn.functional.one_hot(assignments, K).double()
    parts = (part.unsqueeze(1).expand(-1, K, -1) for part in (precision, shift))
    expected = Ridge.of_natural(*soft_natural(features, *parts, members, weight_scale=NU)).mean
    for order in (torch.arange(100, device=device), torch.arange(99, -1, -1, device=device)):
        rows = rows_of_owners(assignments[order], K)
        means = owner_means(features[order], precision[order], shift[order], rows, NU)
        torch.testing.assert_close(means, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rows", [40, 90])
def test_soft_means_are_those_of_the_ridge(rows, device, generator) -> None:
    def rand(*shape):
        return torch.rand(shape, generator=generator, device=device, dtype=torch.float64)

    features, shares = rand(rows, 70) - 0.5, rand(rows, K)
    observed = rand(rows, K, C), rand(rows, K, C) - 0.5
    expected = Ridge.of_natural(*soft_natural(features, *observed, shares, weight_scale=NU)).mean
    torch.testing.assert_close(soft_means(features, *observed, shares, weight_scale=NU), expected)


def test_wide_features_are_solved_without_a_matrix_over_them() -> None:
    features = torch.randn(5, 10**6, generator=torch.Generator().manual_seed(0))
    shift = torch.ones(1, 5)
    mean = RowRidge.of(features, torch.ones(1, 5), shift, 0.1).mean[0].T
    # A mean = B, with A applied to the mean row by row
    residual = mean / 0.1**2 + (mean @ features.T) @ features - shift @ features
    assert residual.abs().max() < 1e-3


@pytest.mark.parametrize("alike", [False, True], ids=["each", "alike"])
@pytest.mark.parametrize("rows", [0, 1, 25])
def test_laws_in_the_space_of_rows_are_those_in_the_space_of_features(rows, alike, device, generator) -> None:
    """Of scores with a covariance each, or one for all; a row says nothing, and one is held hard."""

    def randn(*shape):
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float64)

    features, precision, shift, new = (
        randn(rows, 70),
        randn(rows, 1 if alike else C).exp(),
        randn(rows, C),
        randn(9, 70),
    )
    precision[:1], shift[:1], precision[1:2] = 0.0, 0.0, 1e6
    every = [torch.arange(rows, device=device)]
    found = RowRidge.of(features, precision.T, shift.T, NU)
    expected = Ridge.of_natural(*natural_of_owners(features, precision, shift, every, NU))
    torch.testing.assert_close(found.mean, expected.mean)
    for each, other in zip(found.moments(new), expected.moments(new), strict=True):
        torch.testing.assert_close(each, other)
    torch.testing.assert_close(found.kl(NU), expected.kl(NU), rtol=1e-9, atol=1e-9)
    values = randn(1, 4, 70, C)
    torch.testing.assert_close(found.log_density(values), expected.log_density(values))
    law = MultivariateNormal(expected.mean[0].T, precision_matrix=(tril := expected.precision_tril[0]) @ tril.mT)
    torch.testing.assert_close(expected.log_density(values)[0], law.log_prob(values[0].mT).sum(1))
    # what a draw makes of each of its standard normals, so that its covariance is exact
    ones = torch.eye(70 + rows, dtype=torch.float64, device=device).unsqueeze(1).expand(-1, C, -1)
    steps = found.drawn(ones[..., :70], ones[..., 70:]) - found.mean[0].T
    torch.testing.assert_close(found.drawn(0 * ones[:1, :, :70], 0 * ones[:1, :, 70:])[0], found.mean[0].T)
    for c in range(C):
        torch.testing.assert_close(steps[:, c].T @ steps[:, c], law.covariance_matrix.expand(C, -1, -1)[c])
    assert found.draws(3, generator).shape == expected.draws(3, generator).shape == (1, 3, 70, C)


def test_laws_of_many_sets_are_those_of_each(device, generator, monkeypatch) -> None:
    """Of few features in one; of many each on the rows that say something of it, with the mean precision."""
    features, values = (torch.randn(s, generator=generator, device=device).double() for s in ((6, 4), (3, 2, 4, C)))
    precision, shift = torch.rand((2, 6, 3, C), generator=generator, device=device).double()
    precision[2:, 1], shift[2:, 1] = 0.0, 0.0  # rows that say nothing of a set
    precision[0, 2, 0], shift[0, 2, 0] = 0.0, 0.0  # one that says something of another score
    for wide in (100, 1):
        monkeypatch.setattr(module, "_WIDE", wide)
        laws = Laws.of_rows(features, precision, shift, NU)
        assert len(laws) == (1 if wide > 4 else 3)
        used = precision if wide > 4 else precision.mean(2, keepdim=True).expand_as(precision)
        expected = Ridge.of_natural(*soft_natural(features, used, shift, used.new_ones(6, 3), weight_scale=NU))
        torch.testing.assert_close(laws.mean, expected.mean)
        mean, variance = laws.moments(features)
        torch.testing.assert_close(mean, expected.moments(features)[0])
        torch.testing.assert_close(variance.expand_as(mean), expected.moments(features)[1])
        torch.testing.assert_close(laws.kl(NU), expected.kl(NU))
        torch.testing.assert_close(laws.log_density(values), expected.log_density(values))
        assert laws.draws(5, generator).shape == (3, 5, 4, C)


def test_draws_have_the_mean_and_covariance(problem, generator) -> None:
    ridge = hard(*problem)
    draws = torch.stack([ridge.draw(generator) for _ in range(4000)])
    error = (draws.mean(0) - ridge.mean) / (draws.std(0) / 4000**0.5)
    assert error.abs().max() < 5
    sample = torch.cov(draws[:, 0, :, 0].T)
    # five standard errors of a Gaussian sample covariance
    exact = covariance(ridge, 0, 0)
    bound = 5 * ((exact**2 + exact.diagonal().outer(exact.diagonal())) / 4000).sqrt()
    assert ((sample - exact).abs() < bound).all()


def test_score_moments_and_kl_are_the_gaussians(problem, few) -> None:
    features, ridge = problem[0], hard(*problem)
    mean, variance = ridge.moments(features)
    torch.testing.assert_close(mean, torch.einsum("np,kpc->nkc", features, ridge.mean))
    prior = MultivariateNormal(features.new_zeros(P), NU**2 * torch.eye(P).to(features))
    for k in range(K):
        divergence = 0.0
        for c in range(C):
            cov = covariance(ridge, k, c)
            torch.testing.assert_close(variance[:, k, c], torch.einsum("np,pq,nq->n", features, cov, features))
            divergence += kl_divergence(MultivariateNormal(ridge.mean[k, :, c], cov), prior)
        torch.testing.assert_close(ridge.kl(NU)[k], divergence)


def test_variances_in_single_precision_do_not_cancel(generator) -> None:
    """Many ridges over nearly the same two columns: the variance is far below the entries of the covariance."""
    like: Any = {"device": generator.device, "dtype": torch.float64}
    features = torch.randn(200, 1, generator=generator, **like) + torch.tensor([0.0, 1e-3], **like)
    ones = torch.ones(200, 20, 1, **like)
    ridge = Ridge.of_natural(*soft_natural(features, 1e2 * ones, ones, ones[..., 0], weight_scale=10.0))
    single = Ridge(ridge.mean.float(), ridge.precision_tril.float())
    exact = torch.einsum("np,pq,nq->n", features, covariance(ridge, 0, 0), features)
    torch.testing.assert_close(ridge.score_variance(features)[:, 0, 0], exact, rtol=1e-8, atol=0)
    found = single.score_variance(features.float())[:, 0, 0]
    torch.testing.assert_close(found.double(), exact, rtol=5e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ill_conditioned_gram_matrices_do_not_crash(dtype) -> None:
    column = torch.linspace(1, 2, 50, dtype=dtype).unsqueeze(1)
    features = torch.cat([column, column, 1e6 * column], 1)
    ones = torch.ones((50, 1), dtype=dtype)
    ridge = hard(features, 1e8 * ones, ones, torch.zeros(50, dtype=torch.int64), 1, 1e3)
    assert torch.isfinite(ridge.mean).all()


def test_not_a_number_is_an_error_with_a_remedy() -> None:
    with pytest.raises(FloatingPointError, match="Use float64"):
        safe_cholesky(torch.full((1, 2, 2), torch.nan))


def test_zero_width_features_cost_nothing() -> None:
    empty = torch.zeros((5, 0))
    ridge = hard(empty, empty, empty, torch.zeros(5, dtype=torch.int64), 2, 1.0)
    assert ridge.mean.shape == (2, 0, 0)
    assert ridge.kl(1.0).tolist() == [0.0, 0.0]
