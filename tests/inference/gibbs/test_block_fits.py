"""Fits of Gaussians to the laws of hyperplanes: what they are the optimum of.

Proposals are exact whatever the fits are: no test of a sampler notices a wrong one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from regbayes.inference.classifiers import ridge as module
from regbayes.inference.classifiers.scored import RepellingHyperplanes, Scored, classifiers_of
from regbayes.inference.gibbs.moves import block_fits
from regbayes.inference.gibbs.moves.block_fits import improve, laws_of, means_of, start_fits
from regbayes.inference.gibbs.moves.tempering import Tempered
from regbayes.models import DDPM, Hinge, Logistic, SphericalGaussian, SquaredHinge
from regbayes.models.losses import Loss

X = torch.randn((30, 2), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
BLOCKS = torch.stack([X[:, 0] > 0.3, X[:, 0] + X[:, 1] < 0, torch.ones(30).bool(), torch.zeros(30).bool()], 1)
SHARES = torch.rand((30, 4), generator=torch.Generator().manual_seed(6), dtype=torch.float64)
SCALE = 1.7
# of a loss: how much of the bound, and of its slopes, 16 nodes may get wrong
LOSSES = {"logistic": (Logistic(), 1e-5), "squared hinge": (SquaredHinge(0.4), 0.01), "hinge": (Hinge(), 0.05)}


@dataclass(eq=False)
class Square(Loss):
    """-(f - y)^2 / 2, so that the law of a hyperplane is a Gaussian."""

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return -(score - y).square() / 2


def problem(loss: Loss):
    model = DDPM(SphericalGaussian(), loss, weight_scale=SCALE).resolve(X)
    return classifiers_of(model, model.data(X), torch.zeros(30).long(), 1)


def log_evidence(features: Tensor, shares: Tensor) -> Tensor:
    """log of the integral of N(eta; 0, nu^2 I) prod_n phi(-1)^(1 - r) phi(+1)^r [K] under `Square`."""
    targets, N = 2 * shares.double().T - 1, len(features)
    law = MultivariateNormal(torch.zeros(N).double(), torch.eye(N) + SCALE**2 * features @ features.T)
    return law.log_prob(targets) + N / 2 * math.log(2 * math.pi) - (1 - targets.square()).sum(1) / 2


@pytest.fixture(params=[64, 1], ids=["narrow", "wide"])
def width(request, monkeypatch) -> None:
    """Three features are few or many."""
    monkeypatch.setattr(module, "_WIDE", request.param)


@pytest.mark.parametrize("shares", [BLOCKS, SHARES], ids=["blocks", "shares"])
def test_of_a_square_the_fit_is_the_ridge_and_its_bound_the_evidence(shares: Tensor, width) -> None:
    scored = problem(Square())
    A, start = scored.features, start_fits(shares, scored)
    pulls = 2 * shares.double().T - 1
    gram = A.T @ A + torch.eye(A.shape[1]) / SCALE**2
    goal = torch.stack([torch.ones_like(pulls), pulls], 1).unsqueeze(2)
    torch.testing.assert_close(start.goal, goal)
    torch.testing.assert_close(start.onward(), goal / 2)
    mean, covariance = torch.linalg.solve(gram, (pulls @ A).T), torch.linalg.inv(gram)
    laws = laws_of(goal, scored)
    torch.testing.assert_close(laws.mean[..., 0].T, mean)
    moments = A @ mean, ((A @ covariance) * A).sum(1, keepdim=True).expand(-1, 4)
    for found, expected in zip(laws.moments(A), moments, strict=True):
        torch.testing.assert_close(found[..., 0], expected)
    elsewhere = start_fits(shares, scored, start.onward())
    torch.testing.assert_close(elsewhere.goal, goal)
    assert (elsewhere.bound > start.bound).all()
    fits = improve(start, shares, scored, 40)
    torch.testing.assert_close(fits.natural, goal, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(fits.bound, log_evidence(A, shares))


@pytest.mark.parametrize("shares", [BLOCKS, SHARES], ids=["blocks", "shares"])
@pytest.mark.parametrize("loss", [Logistic(), SquaredHinge(0.4), Tempered(Hinge(), 0.3)])
def test_compiled_fits_are_those_of_tensor_code(loss: Loss, shares: Tensor) -> None:
    """Of more rows than a tile."""
    model = DDPM(SphericalGaussian(), loss, weight_scale=SCALE).resolve(X)
    rows, shares = torch.cat([X + shift / 9 for shift in range(20)]), shares.repeat(20, 1)
    compiled, tensors = (classifiers_of(model, model.data(rows), torch.zeros(600).long(), 1) for _ in range(2))
    vars(tensors)["compiled"] = None
    fits = [start_fits(shares, scored) for scored in (compiled, tensors)]
    before = fits[0].natural.clone()
    for num_steps in (1, 2, 4):
        fits = [improve(fit, shares, scored, num_steps) for fit, scored in zip(fits, (compiled, tensors), strict=True)]
        for name in ("natural", "goal", "bound"):
            torch.testing.assert_close(getattr(fits[0], name), getattr(fits[1], name), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(*(means_of(fits[0].natural, scored) for scored in (compiled, tensors)))
    assert compiled.compiled is not None
    assert not before.any()


def expected_bound(mean: Tensor, tril: Tensor, scored: Scored | RepellingHyperplanes, shares: Tensor) -> Tensor:
    """E log of the factors of one score, with shares [N], - KL [] of N(mean, tril tril^T), by a fine grid."""
    nodes = torch.linspace(-9, 9, 6001, dtype=torch.float64)
    mass = (-nodes.square() / 2).softmax(0).unsqueeze(1)
    scores = scored.features @ mean + nodes.unsqueeze(1) * (scored.features @ tril).norm(dim=1)
    factors = scored.factors(scores[..., None, None], shares.unsqueeze(1))[..., 0, 0]
    prior = MultivariateNormal(torch.zeros_like(mean), scale_tril=SCALE * torch.eye(len(mean)).double())
    kl = kl_divergence(MultivariateNormal(mean, scale_tril=tril), prior)
    return (mass * factors).sum() - kl


@pytest.mark.parametrize("shares", [BLOCKS, SHARES], ids=["blocks", "shares"])
@pytest.mark.parametrize(("loss", "tolerance"), LOSSES.values(), ids=LOSSES)
def test_bounds_are_level_at_the_fits(loss: Loss, tolerance: float, shares: Tensor) -> None:
    """In units of the fit's own width the slopes vanish, and the bound is E log of the factors - KL."""
    scored = problem(loss)
    fits = improve(start_fits(shares, scored), shares, scored, 60)
    (law,) = laws_of(fits.natural, scored)
    for k, (mean, precision_tril) in enumerate(zip(law.mean[..., 0], law.precision_tril[:, 0], strict=True)):
        tril = torch.linalg.cholesky(torch.cholesky_inverse(precision_tril)).requires_grad_()
        mean = mean.clone().requires_grad_()
        bound = expected_bound(mean, tril, scored, shares[:, k].double())
        assert float(fits.bound[k]) == pytest.approx(bound.item(), abs=tolerance)
        for slope in torch.autograd.grad(bound, (mean, tril)):
            own = tril.detach().T @ slope
            assert (own.tril() if own.ndim == 2 else own).abs().max() < tolerance


def test_bounds_of_many_features_are_level_along_one_covariance_for_all_scores(monkeypatch) -> None:
    """Of a block with rows fewer than features, one with more, and one without."""
    monkeypatch.setattr(module, "_WIDE", 1)
    features, classes = torch.cat([X, X.square(), X.sin()], 1) / 4, torch.arange(30).unsqueeze(1) % 3
    signs = 2.0 * (classes == torch.arange(3)) - 1
    scored = Scored(features, signs.double(), Logistic(), SCALE)
    blocks = torch.stack([torch.arange(30) < 4, torch.ones(30).bool(), torch.zeros(30).bool()], 1)
    fits = improve(start_fits(blocks, scored), blocks, scored, 60)
    torch.testing.assert_close(fits.natural[:, 0], fits.natural[:, 0, :1].expand(-1, 3, -1))
    for k, law in enumerate(laws_of(fits.natural, scored)):
        A = torch.eye(scored.features.shape[1]).double() / SCALE**2
        A = A + (scored.features.T * fits.natural[k, 0, 0]) @ scored.features
        tril, means, bound = torch.linalg.cholesky(torch.linalg.inv(A)).requires_grad_(), law.mean[0].clone(), 0.0
        means.requires_grad_()
        for c in range(3):
            own = Scored(scored.features, scored.targets[:, c : c + 1], scored.loss, SCALE)
            bound = bound + expected_bound(means[:, c], tril, own, blocks[:, k])
        assert float(fits.bound[k]) == pytest.approx(bound.item(), abs=1e-5)
        slopes = torch.autograd.grad(bound, (means, tril))
        assert (tril.detach().T @ slopes[0]).abs().max() < 1e-5
        assert (tril.detach().T @ slopes[1]).tril().abs().max() < 1e-4


def test_bounds_never_fall_and_are_near_their_ends_after_the_steps_of_a_move() -> None:
    scored = problem(Hinge(5.0))  # whole steps overshoot its kink
    start = start_fits(BLOCKS, scored)
    bounds = torch.stack([improve(start, BLOCKS, scored, number).bound for number in range(30)])
    assert (bounds.diff(dim=0) >= 0).all()
    assert (bounds[-1] - bounds[11] < 0.1).all()


def test_rows_in_chunks_are_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scored = problem(Hinge())
    whole = improve(start_fits(SHARES, scored), SHARES, scored, 3)
    monkeypatch.setattr(block_fits, "row_chunks", lambda rows, width: [slice(n, n + 7) for n in range(0, 30, 7)])
    parts = improve(start_fits(SHARES, scored), SHARES, scored, 3)
    torch.testing.assert_close(parts.natural, whole.natural)
    torch.testing.assert_close(parts.bound, whole.bound)
