"""The Gaussian factors of classifiers: sums by loops over rows and bits, steps in natural parameters, and the bound."""

from __future__ import annotations

import itertools

import pytest
import torch
from setups import Ramp, name_of
from torch import Tensor

from regbayes.inference.classifiers.natural import (
    Apart,
    BothSides,
    Evidence,
    OwnSide,
    Seen,
    extrapolated,
    natural_step,
    prior,
)
from regbayes.inference.classifiers.ridge import Ridge
from regbayes.inference.svi.rules import AVERAGING, NATURAL
from regbayes.models.losses import EpsilonInsensitive, Hinge, Logistic, Loss, Masked, OneVsRest, StudentT

NU, N, P, B = 0.8, 7, 3, 2
LOSSES: list[Loss] = [OneVsRest(Hinge(1.1)), OneVsRest(Logistic()), EpsilonInsensitive(0.7), Masked(OneVsRest(Hinge()))]


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def posterior(K: int, C: int, seed: int = 1) -> Ridge:
    root = draws(K, C, P, P, seed=seed)
    return Ridge(draws(K, P, C, seed=seed + 1), torch.linalg.cholesky(root @ root.mT + 2 * torch.eye(P).double()))


def bits() -> Seen:
    """Two independent bits and an input."""
    psi = draws(N, B).sigmoid()
    return Seen(torch.cat([psi, draws(N, P - B, seed=5)], 1), psi * (1 - psi))


def targets_of(loss: Loss, C: int) -> Tensor:
    targets = draws(N, C, seed=9)
    targets = targets if loss.target == "real" else targets.sign()
    return targets.index_fill(0, torch.tensor([3]), torch.nan) if isinstance(loss, Masked) else targets


def test_moments_and_sums_of_bits_are_those_of_all_their_values() -> None:
    design, q, times = bits(), posterior(2, 2), draws(N, 2, seed=3).exp()
    precision, shift = draws(N, 2, 2, seed=6).exp(), draws(N, 2, 2, seed=7)
    mean, variance = design.moments(q)
    gram, linear = design.sums(precision, shift, times)
    covariance = torch.cholesky_inverse(q.precision_tril)
    expected_gram, expected_linear = torch.zeros_like(gram), torch.zeros_like(linear)
    for n, k, c in itertools.product(range(N), range(2), range(2)):
        first, second = torch.zeros(P).double(), torch.zeros(P, P).double()
        for values in itertools.product([0.0, 1.0], repeat=B):
            a = torch.cat([torch.tensor(values).double(), design.features[n, B:]])
            psi = design.features[n, :B]
            weight = torch.where(a[:B] == 1, psi, 1 - psi).prod()
            first, second = first + weight * a, second + weight * torch.outer(a, a)
        eta = torch.outer(q.mean[k, :, c], q.mean[k, :, c]) + covariance[k, c]
        torch.testing.assert_close(mean[n, k, c], first @ q.mean[k, :, c])
        torch.testing.assert_close(variance[n, k, c], (eta * second).sum() - mean[n, k, c] ** 2)
        expected_gram[k, c] += times[n, k] * precision[n, k, c] * second
        expected_linear[k, :, c] += times[n, k] * shift[n, k, c] * first
    torch.testing.assert_close(gram, expected_gram)
    torch.testing.assert_close(linear, expected_linear)


def test_rows_apart_are_problems_of_their_own() -> None:
    loss, sizes, q = Hinge(), [3, 0, 4], posterior(3, 1)
    features, y, times = draws(N, P), draws(N, 1, seed=2).sign(), draws(N, 1, seed=3).exp()
    parts = list(zip(features.split(sizes), y.split(sizes), times.split(sizes), strict=True))
    together = Evidence(Apart([Seen(own) for own, *_ in parts], sizes), y, loss, NU, times)
    apart = [Evidence(Seen(own), labels, loss, NU, each) for own, labels, each in parts]
    found = together.step(q, 0.3)
    for k, alone in enumerate(apart):
        expected = alone.step(q[[k]], 0.3)
        torch.testing.assert_close(found.mean[[k]], expected.mean)
        torch.testing.assert_close(found.precision_tril[[k]], expected.precision_tril)
    torch.testing.assert_close(together.bound(q), sum(alone.bound(q[[k]]) for k, alone in enumerate(apart)))


@pytest.mark.parametrize("uncertain", [False, True], ids=["known", "bits"])
@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
def test_steps_climb_to_where_the_bound_is_stationary(loss, uncertain) -> None:
    design = bits() if uncertain else Seen(draws(N, P))
    C = 1 if loss.target == "real" else 2
    evidence = Evidence(design, targets_of(loss, C), loss, NU, draws(N, 1, seed=3).exp())
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
    evidence = Evidence(Seen(draws(N, P)), targets_of(loss, 1), loss, NU, torch.ones(N, 1).double())
    whole, part = evidence.step(q), evidence.step(q, 0.3)
    for before, after, found in zip(q.natural, whole.natural, part.natural, strict=True):
        torch.testing.assert_close(found, 0.7 * before + 0.3 * after)


def test_rows_that_count_more_are_more_rows() -> None:
    loss, q = Hinge(), posterior(1, 1)
    rows, once = Seen(draws(N, P)), torch.ones(N, 1).double()
    twice = Seen(torch.cat([rows.features, rows.features]))
    y = targets_of(loss, 1)
    found = Evidence(rows, y, loss, NU, 2 * once)
    copied = Evidence(twice, torch.cat([y, y]), loss, NU, torch.cat([once, once]))
    torch.testing.assert_close(found.step(q).mean, copied.step(q).mean)
    torch.testing.assert_close(found.bound(q), copied.bound(q))
    sums = rows.sums(torch.ones(N, 1, 1).double(), draws(N, 1, 1), once)
    scaled = extrapolated(natural_step(q, sums, NU), NU, 2.5)
    torch.testing.assert_close(scaled.mean, natural_step(q, (2.5 * sums[0], 2.5 * sums[1]), NU).mean)


def test_a_row_is_a_positive_of_its_own_hyperplane_and_a_negative_of_all_others() -> None:
    loss, q, r = Logistic(), posterior(3, 1), draws(N, 3).softmax(1)
    design, one_sided = Seen(draws(N, P)), lambda y: torch.full((N, 1), y).double()
    sides, mean = BothSides.expect(design, q, one_sided(1), loss), design.moments(q)[0]
    precision, shift, times = sides.times(r)
    (yes, no), one = (OwnSide.expect(design, q, one_sided(y), loss) for y in (1, -1)), torch.ones(N, 3)
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
