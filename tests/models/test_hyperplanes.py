"""What the models share whose components repel: their arguments, and hyperplanes without points."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from regbayes.inference.classifiers.elliptical_slice import elliptical_slice
from regbayes.inference.classifiers.scored import RepellingHyperplanes
from regbayes.inference.gibbs.hyperplanes import fill_reservoir, refresh_reservoir
from regbayes.models import (
    DDPM,
    DIH,
    CrammerSinger,
    EpsilonInsensitive,
    Hinge,
    Logistic,
    OneVsRest,
    PrincipalDirections,
    SquaredHinge,
)

X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("model", [DDPM(), DIH()], ids=lambda model: type(model).__name__)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({"loss": loss}, "needs a binary loss") for loss in (EpsilonInsensitive(), OneVsRest(), CrammerSinger())),
        ({"feature_map": PrincipalDirections(loc=torch.zeros(3))}, "feature_map__loc and feature_map__axes belong"),
    ],
)
def test_wrong_arguments_are_named(model, change, message) -> None:
    with pytest.raises(ValueError, match=message):
        model.replace(**change).resolve(X)


@pytest.mark.parametrize(
    ("inputs", "lengths", "message"),
    [
        (X, [3, 3], "lengths add up to 6, but X has 8 rows"),
        (X, [0, 8], "expected whole numbers of at least 1"),
        (X, [2.5, 5.5], "expected whole numbers of at least 1"),
        (torch.where(torch.arange(24).view(8, 3) == 4, torch.nan, X), None, r"some values missing: \[1\]"),
        (torch.full((4, 2), torch.nan), None, "0 observed rows"),
        (torch.where(torch.arange(24).view(8, 3) == 4, torch.inf, X), None, "contains NaN or inf"),
    ],
)
def test_wrong_sequences_are_named(inputs, lengths, message) -> None:
    with pytest.raises(ValueError, match=message):
        DIH().prepare(inputs, None, lengths)


def test_labels_and_lengths_are_for_the_models_that_have_them() -> None:
    with pytest.raises(ValueError, match="finds states without labels"):
        DIH().prepare(X, torch.arange(8))
    with pytest.raises(ValueError, match="DDPM has no sequences"):
        DDPM().prepare(X, None, [8])


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", [Hinge(), Hinge(3.0), Logistic(), SquaredHinge()], ids=repr)
def test_reserved_hyperplanes_have_the_law_of_those_that_reject_all_points(loss, dtype, device) -> None:
    """At 1,000 points that law is far wider than one step by omega goes; quadrature over its two weights."""
    generator = torch.Generator(device).manual_seed(0)
    inputs = torch.randn(1000, 1, generator=generator, dtype=dtype, device=device)
    model = DDPM(loss=loss).resolve(inputs)
    features = model.features(inputs)
    slope, intercept = torch.meshgrid(torch.linspace(-3, 3, 61), torch.linspace(-8, 0, 81), indexing="ij")
    grid = torch.stack([slope.flatten(), intercept.flatten()], 1).double().to(device)
    scores = features.double() @ grid.T
    log_density = loss.log_factor(scores, scores.new_tensor(-1.0)).sum(0) - grid.square().sum(1) / 2
    mass = log_density.softmax(0)
    reserved = fill_reservoir(features, model, generator, size=400)
    for _ in range(5):
        reserved = refresh_reservoir(reserved, features, model, generator)
    assert reserved.dtype == dtype
    assert reserved.shape == (400, 2, 1)
    planes = reserved.squeeze(-1).double()
    mean = mass @ grid
    deviation = (mass @ (grid - mean).square()).sqrt()
    assert ((planes.mean(0) - mean).abs() < 5 * deviation / 20).all()
    assert ((planes.std(0) / deviation - 1).abs() < 0.2).all()


def assert_law(draws: Tensor, grid: Tensor, distribution: Tensor) -> None:
    """Draws [M, ...] of one number have this distribution on a grid, as the levels that they reach are uniform."""
    levels = distribution[torch.searchsorted(grid, draws.flatten()).clamp(max=len(grid) - 1)]
    counts, expected = torch.histc(levels, 20, 0, 1), len(levels) / 20
    assert float((counts - expected).square().sum() / expected) < 60  # chi-squared with 19 degrees of freedom


@pytest.mark.parametrize("loss", [Hinge(0.5), Logistic()], ids=["hinge", "logistic"])
def test_the_slice_step_alone_has_that_law(loss, device) -> None:
    generator = torch.Generator(device).manual_seed(0)
    inputs = torch.tensor([[-0.6], [0.4], [0.9]], dtype=torch.float64, device=device)
    model = DDPM(loss=loss, feature_map=PrincipalDirections(intercept=0.0), weight_scale=1.5).resolve(inputs)
    features = model.features(inputs)
    grid = torch.linspace(-8, 8, 4001, dtype=torch.float64, device=device)
    scores = features @ grid.unsqueeze(0)
    log_density = loss.log_factor(scores, scores.new_tensor(-1.0)).sum(0) - (grid / 1.5).square() / 2
    distribution = log_density.softmax(0).cumsum(0)
    planes = torch.zeros(40_000, 1, 1, dtype=torch.float64, device=device)
    nobody = torch.full((3,), -1, device=device)
    for _ in range(30):
        planes = RepellingHyperplanes(features, loss, 1.5, nobody).slide(planes, generator)
    assert_law(planes, grid, distribution)


@pytest.mark.parametrize("loss", [Hinge(1.0), Logistic()], ids=["hinge", "logistic"])
def test_hyperplanes_without_points_reach_their_law_in_few_draws(loss, monkeypatch) -> None:
    """From zero, two thousand beside one with points; draws given omega alone would take hundreds."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(80, 1, generator=generator, dtype=torch.float64) + 0.1
    model = DDPM(loss=loss, feature_map=PrincipalDirections(intercept=0.0), weight_scale=2.0).resolve(inputs)
    features, grid = model.features(inputs), torch.linspace(-16, 16, 16001, dtype=torch.float64)
    log_density = loss.log_factor(features @ grid.unsqueeze(0), -torch.ones((), dtype=torch.float64)).sum(0)
    distribution = (log_density - (grid / 2).square() / 2).softmax(0).cumsum(0)
    planes = torch.zeros(2001, 1, 1, dtype=torch.float64)
    nobody_else = RepellingHyperplanes(features, loss, 2.0, torch.zeros(80, dtype=torch.long))
    for _ in range(12):
        planes = nobody_else.draw(planes, generator)
    assert_law(planes[1:], grid, distribution)
    monkeypatch.setattr(RepellingHyperplanes, "slide", lambda scored, planes, _: 0 * planes + 9)
    moved = nobody_else.draw(planes, generator)
    assert moved[0] != 9
    assert (moved[1:] == 9).all()


def test_slice_steps_leave_every_hyperplane_in_the_law_of_its_own_points(device) -> None:
    """From exact starts, many copies of each side by side: two components of two points, and one without."""
    generator, num_copies = torch.Generator(device).manual_seed(0), 2000
    inputs = torch.tensor([[-0.6], [0.4], [0.9], [1.5]], dtype=torch.float64, device=device)
    assignments, labels = torch.tensor([0, 1, 1, 0], device=device), torch.arange(3, device=device)
    seen = PrincipalDirections(intercept=0.0)
    model = DDPM(loss=SquaredHinge(0.5), feature_map=seen, weight_scale=1.5).resolve(inputs)
    features, grid = model.features(inputs), torch.linspace(-8, 8, 4001, dtype=torch.float64, device=device)
    sides = torch.where(assignments == labels.unsqueeze(1), 1.0, -1.0).double().unsqueeze(2)  # [3, N, 1]
    log_density = model.loss.log_factor(features @ grid.unsqueeze(0), sides).sum(1) - (grid / 1.5).square() / 2
    mass = log_density.softmax(1)
    starts = grid[torch.multinomial(mass, num_copies, replacement=True, generator=generator)].T.reshape(-1, 1, 1)
    many = labels.repeat(num_copies)
    log_likelihood = RepellingHyperplanes(features, model.loss, 1.5, assignments).log_likelihood
    copies = partial(elliptical_slice, log_likelihood=lambda planes, which: log_likelihood(planes, many[which]))
    planes = copies(starts, 1.5, generator=generator, num_steps=3).flatten()
    assert (planes != starts.flatten()).all()
    for own, distribution in zip(planes.view(num_copies, 3).T, mass.cumsum(1), strict=True):
        assert_law(own.contiguous(), grid, distribution)


def test_the_reserve_starts_near_its_law() -> None:
    """Before any step: candidates are chosen by their weights, so that they spread more than their Gaussian."""
    inputs = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = DDPM(loss=Hinge(0.1)).resolve(inputs)
    features, generator = model.features(inputs), torch.Generator().manual_seed(0)
    first = fill_reservoir(features, model, generator, size=500, num_steps=0).squeeze(-1)
    settled = fill_reservoir(features, model, generator, size=500, num_steps=40).squeeze(-1)
    assert ((first.mean(0) - settled.mean(0)).abs() < 0.4 * settled.std(0)).all()
    assert (first.std(0) > 0.7 * settled.std(0)).all()
