"""Rows predicted as if each had been left out of the fit."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

from regbayes.estimators import Regressor
from regbayes.inference import SmallVariance
from regbayes.inference.classifiers.ridge import Ridge, with_prior
from regbayes.inference.posterior.left_out import left_out_scores
from regbayes.models import EpsilonInsensitive, InfiniteSVM, PoissonGamma, PrincipalDirections, StudentT

BACKEND = SmallVariance(num_components=1, num_restarts=1)
MODEL = InfiniteSVM(loss=StudentT(df=1e8))  # nearly a squared loss


def line(number: int, width: int, seed: int = 0):
    """Rows [N, D] and targets [N] with noise of deviation 1."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(number, width))
    return X, X @ rng.normal(size=width) + rng.normal(size=number)


@pytest.mark.parametrize(("number", "width"), [(20, 3), (12, 30)])
def test_they_are_those_of_fits_without_the_row(number, width) -> None:
    X, y = line(number, width)
    posterior = BACKEND.fit(MODEL, X, y)
    found = np.asarray(posterior.predict_left_out(X, y))
    parts = {name: getattr(posterior.model, name) for name in ("likelihood", "feature_map")}
    for n in (0, 7):
        others = np.arange(number) != n
        refit = BACKEND.fit(MODEL.replace(**parts), X[others], y[others])
        assert found[n] == pytest.approx(float(refit.predict(X[n : n + 1])[0]), abs=1e-6)
        assert abs(found[n] - float(posterior.predict(X[n : n + 1])[0])) > 1e-3


def test_a_row_of_weight_two_is_two_rows() -> None:
    X, y = line(15, 3)
    twice = np.arange(15) < 4
    weighted = BACKEND.fit(MODEL, X, y, sample_weight=1.0 + twice).predict_left_out(X, y, 1.0 + twice)
    rows, targets = np.concatenate([X, X[twice]]), np.concatenate([y, y[twice]])
    repeated = BACKEND.fit(MODEL, rows, targets).predict_left_out(rows, targets)
    np.testing.assert_allclose(weighted, repeated[:15], atol=1e-6)


def test_components_have_rows_of_their_own() -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    y = X.sum(1) + torch.randn(9, generator=generator, dtype=torch.float64)
    model = MODEL.resolve(X, y)
    data, fitted = model.data(X, y), torch.arange(9) % 2
    means = []
    for k in range(2):
        own = data.features[fitted == k]
        gram, linear = (own.T @ own)[None, None], (own.T @ data.targets[fitted == k])[None]
        means.append(Ridge.of_natural(*with_prior(gram, linear, model.weight_scale)).mean[0])
    scores = left_out_scores(model, data, torch.stack(means), fitted)
    for n in range(9):
        others = (fitted == fitted[n]) & (torch.arange(9) != n)
        own = data.features[others]
        gram, linear = (own.T @ own)[None, None], (own.T @ data.targets[others])[None]
        mean = Ridge.of_natural(*with_prior(gram, linear, model.weight_scale)).mean[0]
        torch.testing.assert_close(scores[n], data.features[n] @ mean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("epsilon", "weights"), [(0.1, None), (0.5, None), (0.1, 1.0 + (np.arange(30) % 5 == 0))])
def test_without_a_row_a_loss_with_kinks_is_fitted_again(epsilon, weights) -> None:
    X, y = line(30, 4)
    model = InfiniteSVM(loss=EpsilonInsensitive(epsilon=epsilon))
    posterior = BACKEND.fit(model, X, y, sample_weight=weights)
    found = np.asarray(posterior.predict_left_out(X, y, weights))
    parts = {name: getattr(posterior.model, name) for name in ("likelihood", "feature_map")}
    times = np.ones(30) if weights is None else weights
    for n in range(0, 30, 5):
        less = times - (np.arange(30) == n)
        kept = less > 0
        refit = BACKEND.fit(model.replace(**parts), X[kept], y[kept], sample_weight=less[kept])
        assert found[n] == pytest.approx(float(refit.predict(X[n : n + 1])[0]), abs=1e-2)
    assert np.abs(found - np.asarray(posterior.predict(X))).max() > 0.1


def test_tempered_and_averaged_fits_change_by_the_share_of_the_row() -> None:
    X, y = line(40, 2)
    own = SmallVariance(num_components=3, num_restarts=1).fit(MODEL, X, y)
    other = BACKEND.fit(own.model, X, y)
    each = [np.asarray(one.predict_left_out(X, y)) for one in (own, other)]
    averaged = own.averaged_with([other], [0.3, 0.7])
    np.testing.assert_allclose(averaged.predict_left_out(X, y), 0.3 * each[0] + 0.7 * each[1], atol=1e-12)
    for temperature in (1e-9, 2.0):
        tempered = own.tempered(temperature)
        data = own.model.data(torch.as_tensor(X), torch.as_tensor(y))
        draw = own.draw(0)
        fitted = draw["assignments"].long()
        log_shares = (
            -own.model.likelihood.divergence(own.model.likelihood.coordinates(data.X), draw["centers"]) / temperature
            + draw["log_mixture"][:-1]
        )
        scores = torch.einsum("np,kpc->nkc", data.features, draw["weights"])[..., 0]
        left_out = left_out_scores(own.model, data, draw["weights"], fitted)
        scores[torch.arange(40), fitted] = left_out[:, 0]
        exact = (log_shares.softmax(1) * scores).sum(1)
        np.testing.assert_allclose(tempered.predict_left_out(X, y), exact, atol=1e-9)


@pytest.mark.parametrize(("number", "width"), [(30, 10), (100, 50)])
def test_intervals_of_few_rows_hold_what_they_promise(number, width) -> None:
    inside = []
    for seed in range(8):
        X, y = line(number + 200, width, seed)
        mean, std = Regressor().fit(X[:number], y[:number]).predict(X[number:], return_std=True)
        inside.append(np.mean(np.abs(y[number:] - mean) < 1.645 * std))
    assert 0.84 < np.mean(inside) < 0.95  # .75 and .6 if rows of the fit predict themselves


def test_sparse_counts_have_a_noise_scale() -> None:
    X = np.random.default_rng(0).poisson(1.0, size=(40, 6))
    dense, sparse = (
        Regressor(InfiniteSVM(PoissonGamma(), feature_map=PrincipalDirections(), loss=StudentT()), BACKEND)
        for _ in range(2)
    )
    dense.fit(X, X[:, 0] + X[:, 1])
    sparse.fit(scipy.sparse.csr_array(X), X[:, 0] + X[:, 1])
    assert sparse.noise_scale_ == pytest.approx(dense.noise_scale_, rel=1e-6)
