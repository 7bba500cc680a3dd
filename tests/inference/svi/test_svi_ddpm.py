"""The discriminative mixture by variational inference: a bound that rises, below the exact log evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from regbayes.inference import SVI
from regbayes.inference.classifiers.natural import Seen, expect_sides
from regbayes.inference.svi.partition import factors
from regbayes.inference.svi.partition import kernel as partition
from regbayes.models import DDPM, DPM, Hinge, Logistic, PrincipalDirections, SphericalGaussian
from regbayes.testing import check_kernel

TINY = torch.tensor([[-1.2], [-0.9], [0.7], [1.4]], dtype=torch.float64)
FAMILY = SphericalGaussian(loc=0.0, variance=0.7, prior_variance=1.0)
LOSSES = {"hinge": Hinge(0.8), "logistic": Logistic()}


def points(num_data: int = 60, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centers = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    noise = torch.randn(num_data, 2, generator=generator, dtype=torch.float64)
    return centers[torch.arange(num_data) % 3] + noise


def settled(loss, num_sweeps: int = 3, **options):
    """A state of coordinate ascent, and what else the kernels take."""
    inputs = points()
    model = DDPM(SphericalGaussian(), loss, weight_scale=2.0, truncation=4, **options).resolve(inputs)
    data, generator = model.data(inputs), torch.Generator().manual_seed(0)
    state = partition.init(model, data, generator)
    for _ in range(num_sweeps):
        state = partition.ascend(state, data, model)
    return state, data, model, generator


@pytest.mark.parametrize("intercept", [0.0, 1.0])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.filterwarnings("ignore:All 3 components are occupied")
def test_the_bound_rises_and_stays_below_the_evidence(loss, intercept) -> None:
    model = DDPM(
        FAMILY, LOSSES[loss], weight_scale=2.0, truncation=3, feature_map=PrincipalDirections(intercept=intercept)
    )
    check_kernel(SVI(num_steps=80, tolerance=0.0), model, TINY)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("block", ["mean", "responsibilities", "hyperparameters", "sticks"])
def test_every_block_is_at_its_optimum_given_the_others(loss, block) -> None:
    """No small move of one block raises the bound, right after that block was updated to convergence."""
    state, data, model, generator = settled(LOSSES[loss], 20)
    if block == "mean":
        for _ in range(200):  # the classifiers and their pseudo-observations take turns
            state = factors.update_classifiers(factors.observe(state, data, model), model)
    else:
        update = {
            "responsibilities": lambda: factors.update_responsibilities(state, data, model),
            "hyperparameters": lambda: factors.update_components(state, data, model),
            "sticks": lambda: factors.update_sticks(state, model),
        }
        state = update[block]()
    bound = factors.elbo(state, data, model)
    value = getattr(state, block)
    for _ in range(5):
        noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
        moved = value + 1e-3 * noise if block != "responsibilities" else (value.log() + 1e-2 * noise).softmax(1)
        if block in ("hyperparameters", "sticks"):
            moved = value * (1 + 1e-3 * noise)
        assert factors.elbo(replace(state, **{block: moved}), data, model) <= bound + 1e-9 * bound.abs()


@pytest.mark.parametrize("loss", LOSSES)
def test_sides_are_those_of_the_loss(loss) -> None:
    state, data, model, _ = settled(LOSSES[loss])
    sides = expect_sides(Seen(data.features), state.classifiers, model.loss)
    scores = torch.einsum("np,kpc->nkc", data.features, state.mean)
    variance = state.classifiers.score_variance(data.features)
    for side, observed in ((1.0, sides.positive), (-1.0, sides.negative)):
        expected = model.loss.expect(scores, variance, torch.full_like(scores, side))
        torch.testing.assert_close(observed.shift.expand_as(scores), expected.shift.expand_as(scores))
    certain = torch.zeros_like(sides.gain)
    certain[:, 0] = 1.0
    precision, shift, _ = sides.times(certain)
    torch.testing.assert_close(shift[:, 0], sides.positive.shift.expand_as(scores)[:, 0])
    torch.testing.assert_close(precision[:, 1], sides.negative.precision.expand_as(scores)[:, 1])


def test_without_room_for_hyperplanes_it_is_the_mixture() -> None:
    inputs = points()
    plain = SVI(num_steps=100).fit(DPM(SphericalGaussian(), truncation=6), inputs)
    limit = SVI(num_steps=100).fit(DDPM(SphericalGaussian(), weight_scale=1e-6, truncation=6), inputs)
    assert torch.equal(plain.partition(), limit.partition())
    # every hyperplane then rejects half-heartedly: phi(-1 | 0) = exp(-2 c l) for all points and components
    expected = plain.trace.final + -2.0 * len(inputs) * 6
    torch.testing.assert_close(limit.trace.final, expected, rtol=1e-5, atol=0.0)
