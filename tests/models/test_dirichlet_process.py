"""The Dirichlet process prior against enumeration, quadrature and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from regbayes.models import DirichletProcess
from regbayes.models.priors import sticks
from regbayes.models.priors.dirichlet_process import resample_concentration
from regbayes.models.priors.sticks import log_stick_weights

ALPHAS = [0.3, 1.0, 4.5]


def prior_sticks(alpha: float, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Beta parameters [T - 1] for counts [..., T]."""
    prior = DirichletProcess(alpha)
    return prior.sticks(prior.start(counts), counts.shape[-1])


def log_labelled_prior(counts: Tensor, alpha: float) -> Tensor:
    return sticks.log_labelled_prior(counts, *prior_sticks(alpha, counts))


def posterior_sticks(counts: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    return sticks.posterior_sticks(counts, *prior_sticks(alpha, counts))


def labelled_counts(num_data: int, truncation: int) -> Tensor:
    """Counts [T^N, T] of all labellings."""
    z = torch.tensor(list(itertools.product(range(truncation), repeat=num_data)))
    return torch.nn.functional.one_hot(z, truncation).sum(1)


def test_labelled_prior_agrees_with_simulated_sticks(device: torch.device, generator: torch.Generator) -> None:
    alpha, draws = 1.5, 200_000
    uniform = torch.rand(draws, 3, generator=generator, dtype=torch.float64, device=device)
    mixture = log_stick_weights(1 - uniform ** (1 / alpha)).exp()
    counts = labelled_counts(3, 4).to(device)
    simulated = (mixture.log() @ counts.double().T).exp()  # [draws, T^N]
    error = simulated.std(0) / draws**0.5
    # five standard errors for each of 64 labellings, of which only 20 differ
    assert ((simulated.mean(0) - log_labelled_prior(counts, alpha).exp()).abs() < 5 * error).all()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_posterior_sticks_give_the_predictive_of_the_labelled_prior(alpha: float) -> None:
    for counts in labelled_counts(3, 3):
        a, b = posterior_sticks(counts.double(), alpha)
        mean = a / (a + b)
        expected_mixture = log_stick_weights(mean).exp()  # sticks are independent: E of a product is one of E
        joint = log_labelled_prior(counts + torch.eye(3, dtype=torch.long), alpha)
        torch.testing.assert_close(expected_mixture, (joint - log_labelled_prior(counts, alpha)).exp())


def test_posterior_sticks_are_batched() -> None:
    counts = labelled_counts(4, 3)
    a, b = posterior_sticks(counts, 0.7)
    assert a.shape == b.shape == (81, 2)
    assert a.tolist() == [[1 + n[0], 1 + n[1]] for n in counts.tolist()]
    torch.testing.assert_close(
        b, torch.tensor([[0.7 + n[1] + n[2], 0.7 + n[2]] for n in counts.tolist()], dtype=b.dtype)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stick_weights_sum_to_one_and_survive_the_ends(dtype: torch.dtype, device: torch.device) -> None:
    proportions = torch.tensor([[0.2, 0.5, 0.9], [0.0, 1.0, 0.3], [1.0, 1.0, 0.0]], dtype=dtype, device=device)
    proportions.requires_grad_()
    log_weights = log_stick_weights(proportions)
    weights = log_weights.exp()
    expected = [[0.2, 0.4, 0.36, 0.04], [0, 1, 0, 0], [1, 0, 0, 0]]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=dtype, device=device))
    (gradient,) = torch.autograd.grad(log_weights.sum(), proportions)
    assert torch.isfinite(log_weights).all()
    assert torch.isfinite(gradient).all()


def _moments(log_density, upper: float) -> tuple[float, float]:
    """E log(alpha) and E alpha of an unnormalized density on (0, upper), by quadrature in log(alpha)."""
    grid = np.linspace(-30, math.log(upper), 200_001)
    log_mass = np.array(log_density(np.exp(grid))) + grid
    mass = np.exp(log_mass - log_mass.max())
    return float((mass * grid).sum() / mass.sum()), float((mass * np.exp(grid)).sum() / mass.sum())


def _close(draws: Tensor, expected: float, batches: int) -> bool:
    means = draws.reshape(batches, -1).mean(1)
    return bool((means.mean() - expected).abs() < 5 * means.std() / batches**0.5)


@pytest.mark.parametrize(
    ("num_components", "num_data", "prior"), [(1, 1, (1.0, 1.0)), (4, 20, (0.5, 0.2)), (12, 50, (2.0, 1.0))]
)
def test_escobar_west_leaves_the_posterior_of_the_concentration(
    num_components: int, num_data: int, prior: tuple[float, float], device: torch.device, generator: torch.Generator
) -> None:
    from scipy.special import gammaln

    shape, rate = prior

    def log_density(alpha: np.ndarray) -> np.ndarray:
        urn = gammaln(alpha) - gammaln(alpha + num_data)
        return (shape - 1 + num_components) * np.log(alpha) - rate * alpha + urn

    # 2000 chains side by side, each of which is a batch
    alpha = torch.ones(2000, dtype=torch.float64, device=device)
    draws = []
    for sweep in range(120):
        alpha = resample_concentration(alpha, num_components, num_data, prior, generator)
        if sweep >= 40:
            draws.append(alpha)
    chains = torch.stack(draws, 1)
    mean_log, mean = _moments(log_density, 300.0)
    assert _close(chains, mean, 2000)
    assert _close(chains.log(), mean_log, 2000)
