"""The Gaussian factors of classifiers: sums by loops over rows and bits, steps in natural parameters, and the bound."""

from __future__ import annotations

import itertools

import pytest
import torch
from setups import Ramp, name_of
from torch import Tensor

from regbayes.inference.classifiers.natural import (
    BothSides,
    Evidence,
    OwnSide,
    extrapolated,
    moments_of,
    natural_step,
    prior,
    sums_of,
)
from regbayes.inference.classifiers.ridge import Ridge, soft_sums
from regbayes.inference.svi.rules import AVERAGING, NATURAL
from regbayes.models.losses import (
    EpsilonInsensitive,
    Hinge,
    Logistic,
    Loss,
    Masked,
    OneVsRest,
    PseudoObservation,
    StudentT,
)

NU, N, P, B = 0.8, 7, 3, 2
LOSSES: list[Loss] = [OneVsRest(Hinge(1.1)), OneVsRest(Logistic()), EpsilonInsensitive(0.7), Masked(OneVsRest(Hinge()))]


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def posterior(K: int, C: int, seed: int = 1) -> Ridge:
    root = draws(K, C, P, P, seed=seed)
    return Ridge(draws(K, P, C, seed=seed + 1), torch.linalg.cholesky(root @ root.mT + 2 * torch.eye(P).double()))


def bits() -> tuple[Tensor, Tensor]:
    """Expected features and variances of two independent bits and an input."""
    psi = draws(N, B).sigmoid()
    return torch.cat([psi, draws(N, P - B, seed=5)], 1), psi * (1 - psi)


def targets_of(loss: Loss, C: int) -> Tensor:
    targets = draws(N, C, seed=9)
    targets = targets if loss.target == "real" else targets.sign()
    return targets.index_fill(0, torch.tensor([3]), torch.nan) if isinstance(loss, Masked) else targets


@pytest.mark.parametrize("times", [None, 4.0])
@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
def test_pairs_that_no_gain_brings_back_are_not_looked_at_and_change_nothing(loss, times) -> None:
    K, C, size = 6, 2, 20
    features, root = draws(60, size), draws(K, C, size, size, seed=1)
    q = Ridge(3 * draws(K, size, C, seed=2), torch.linalg.cholesky(root @ root.mT + 2 * torch.eye(size).double()))
    y = draws(60, C, seed=9)
    y = y if loss.target == "real" else y.sign()
    log_weights = 60 * (times or 1.0) * draws(60, K, seed=4)
    times = None if times is None else torch.full((60,), times)
    dense, few = (OwnSide.expect(features, q, y, loss, each, times) for each in (None, log_weights))
    first = log_weights.argmax(1, keepdim=True)
    own = log_weights + dense.gain
    assert (own.argmax(1, keepdim=True) != first).any()  # a gain decides
    assert 0.1 < few.gain.isinf().double().mean() < 0.9
    r, shares = own.softmax(1), (log_weights + few.gain).softmax(1)
    torch.testing.assert_close(shares, r, rtol=1e-12, atol=1e-17)
    torch.testing.assert_close((log_weights + few.gain).logsumexp(1), own.logsumexp(1), rtol=1e-14, atol=1e-13)
    for ours, theirs in zip(soft_sums(features, *few.times(shares)), soft_sums(features, *dense.times(r)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_moments_and_sums_of_bits_are_those_of_all_their_values() -> None:
    (features, spread), q, times = bits(), posterior(2, 2), draws(N, 2, seed=3).exp()
    precision, shift = draws(N, 2, 2, seed=6).exp(), draws(N, 2, 2, seed=7)
    mean, variance = moments_of(features, spread, q)
    gram, linear = sums_of(features, spread, precision, shift, times)
    covariance = torch.cholesky_inverse(q.precision_tril)
    expected_gram, expected_linear = torch.zeros_like(gram), torch.zeros_like(linear)
    for n, k, c in itertools.product(range(N), range(2), range(2)):
        first, second = torch.zeros(P).double(), torch.zeros(P, P).double()
        for values in itertools.product([0.0, 1.0], repeat=B):
            a = torch.cat([torch.tensor(values).double(), features[n, B:]])
            psi = features[n, :B]
            weight = torch.where(a[:B] == 1, psi, 1 - psi).prod()
            first, second = first + weight * a, second + weight * torch.outer(a, a)
        eta = torch.outer(q.mean[k, :, c], q.mean[k, :, c]) + covariance[k, c]
        torch.testing.assert_close(mean[n, k, c], first @ q.mean[k, :, c])
        torch.testing.assert_close(variance[n, k, c], (eta * second).sum() - mean[n, k, c] ** 2)
        expected_gram[k, c] += times[n, k] * precision[n, k, c] * second
        expected_linear[k, :, c] += times[n, k] * shift[n, k, c] * first
    torch.testing.assert_close(gram, expected_gram)
    torch.testing.assert_close(linear, expected_linear)


def test_rows_of_different_owners_are_problems_of_their_own() -> None:
    loss, owner, q = Hinge(), torch.tensor([2, 0, 0, 2, 2, 0, 2]), posterior(3, 1)
    (features, spread), y, times = bits(), draws(N, 1, seed=2).sign(), draws(N, seed=3).exp()
    together = Evidence(features, y, loss, NU, times, owner, 3, variance=spread)
    found, total = together.step(q, 0.3), 0.0
    for k in range(3):
        own = owner == k
        alone = Evidence(features[own], y[own], loss, NU, times[own], variance=spread[own])
        expected, total = alone.step(q[[k]], 0.3), total + alone.bound(q[[k]])
        torch.testing.assert_close(found.mean[[k]], expected.mean)
        torch.testing.assert_close(found.precision_tril[[k]], expected.precision_tril)
    torch.testing.assert_close(together.bound(q), total)


@pytest.mark.parametrize("uncertain", [False, True], ids=["known", "bits"])
@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
def test_steps_climb_to_where_the_bound_is_stationary(loss, uncertain) -> None:
    features, spread = bits() if uncertain else (draws(N, P), None)
    C = 1 if loss.target == "real" else 2
    evidence = Evidence(features, targets_of(loss, C), loss, NU, draws(N, seed=3).exp(), variance=spread)
    q = prior(1, P, C, NU, draws(1))
    value = evidence.bound(q)
    for _ in range(150):
        q = evidence.step(q)
        before, value = value, evidence.bound(q)
        assert value >= before - 1e-10 * before.abs()
    for step in (1e-3, -1e-3):
        for seed in range(5):
            moved = Ridge(q.mean + step * draws(1, P, C, seed=seed), q.precision_tril)
            assert evidence.bound(moved) <= value
            moved = Ridge(q.mean, q.precision_tril + step * draws(1, C, P, P, seed=seed).tril())
            assert evidence.bound(moved) <= value


def test_a_part_of_a_step_goes_that_far_in_natural_parameters() -> None:
    loss, q = Logistic(), posterior(1, 1)
    evidence = Evidence(draws(N, P), targets_of(loss, 1), loss, NU)
    whole, part = evidence.step(q), evidence.step(q, 0.3)
    for before, after, found in zip(q.natural, whole.natural, part.natural, strict=True):
        torch.testing.assert_close(found, 0.7 * before + 0.3 * after)


def test_rows_that_count_more_are_more_rows() -> None:
    loss, q = Hinge(), posterior(1, 1)
    features, y = draws(N, P), targets_of(loss, 1)
    found = Evidence(features, y, loss, NU, torch.full((N,), 2.0).double())
    copied = Evidence(torch.cat([features, features]), torch.cat([y, y]), loss, NU)
    torch.testing.assert_close(found.step(q).mean, copied.step(q).mean)
    torch.testing.assert_close(found.bound(q), copied.bound(q))
    sums = Evidence(features, y, loss, NU).sums(PseudoObservation(torch.ones(N, 1).double(), draws(N, 1)))
    scaled = extrapolated(natural_step(q, sums, NU), NU, 2.5)
    torch.testing.assert_close(scaled.mean, natural_step(q, (2.5 * sums[0], 2.5 * sums[1]), NU).mean)


def test_a_row_is_a_positive_of_its_own_hyperplane_and_a_negative_of_all_others() -> None:
    loss, q, r = Logistic(), posterior(3, 1), draws(N, 3).softmax(1)
    features, one_sided = draws(N, P), lambda y: torch.full((N, 1), y).double()
    sides, mean = BothSides.expect(features, q, one_sided(1), loss), q.moments(features)[0]
    precision, shift, times = sides.times(r)
    (yes, no), one = (OwnSide.expect(features, q, one_sided(y), loss) for y in (1, -1)), torch.ones(N, 3)
    torch.testing.assert_close(precision, r.unsqueeze(2) * yes.times(r)[0] + (1 - r).unsqueeze(2) * no.times(r)[0])
    torch.testing.assert_close(shift, r.unsqueeze(2) * yes.times(r)[1] + (1 - r).unsqueeze(2) * no.times(r)[1])
    torch.testing.assert_close(times, one.double())
    assert torch.equal(yes.times(r)[2], r)
    torch.testing.assert_close(sides.gain, yes.gain - no.gain)
    torch.testing.assert_close(sides.rejection, no.gain.sum(1))
    assert not yes.rejection.any()
    assert precision.shape == mean.shape


@pytest.mark.parametrize("loss", [Ramp(), OneVsRest(Ramp()), Masked(Ramp()), StudentT()], ids=name_of)
def test_what_a_loss_lacks_is_said_in_its_own_words(loss) -> None:
    name = type(getattr(loss, "loss", loss)).__name__
    with pytest.raises(NotImplementedError, match=rf"^{name} has no convex conjugate \(`conjugate`\)"):
        AVERAGING.require(loss)
    if isinstance(loss, StudentT):
        return NATURAL.require(loss)
    with pytest.raises(NotImplementedError, match=rf"^{name} has no closed expectation \(`expect`"):
        NATURAL.require(loss)
    return None
