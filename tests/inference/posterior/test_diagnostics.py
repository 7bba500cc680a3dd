"""R-hat and effective sizes against ArviZ's, on chains of every kind."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regbayes.inference.posterior.diagnostics import bulk_size, rhat, tail_size


def autoregressive(num_chains: int, num_draws: int, slowness: float, shift: float = 0.0, seed: int = 0) -> Tensor:
    """Chains [C, S, 1], each mean `shift` above the one before."""
    noise = torch.randn(num_chains, num_draws, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    draws = noise.clone()
    for step in range(1, num_draws):
        draws[:, step] = slowness * draws[:, step - 1] + math.sqrt(1 - slowness**2) * noise[:, step]
    return (draws + shift * torch.arange(num_chains).unsqueeze(1)).unsqueeze(2)


CASES = {
    "independent": autoregressive(4, 100, 0.0),
    "slow": autoregressive(4, 201, 0.9),
    "antithetic": autoregressive(2, 100, -0.7),
    "apart": autoregressive(3, 60, 0.3, shift=2.0),
    "one chain": autoregressive(1, 80, 0.5),
    "few": autoregressive(2, 9, 0.5),
    "heavy": autoregressive(4, 100, 0.2).tan(),
    "counts": autoregressive(4, 150, 0.6).mul(1.5).round(),
    "spread": autoregressive(4, 100, 0.1) * torch.tensor([1.0, 1.0, 1.0, 4.0]).view(4, 1, 1),
    "trend": autoregressive(2, 100, 0.1) + torch.linspace(0, 5, 100).view(1, 100, 1),
}


@pytest.mark.parametrize("name", list(CASES))
def test_they_are_those_of_arviz(name: str) -> None:
    arviz = pytest.importorskip("arviz")
    draws = CASES[name]
    array = draws[:, :, 0].numpy()
    if len(draws) > 1:  # of one chain ArviZ's is NaN, ours that of its halves
        assert float(rhat(draws)) == pytest.approx(float(arviz.rhat(array)), rel=1e-10)
    assert float(bulk_size(draws)) == pytest.approx(float(arviz.ess(array, method="bulk")), rel=1e-10)
    assert float(tail_size(draws)) == pytest.approx(float(arviz.ess(array, method="tail")), rel=1e-10)


def test_many_quantities_are_as_one_at_a_time() -> None:
    draws = torch.cat([autoregressive(3, 70, 0.1 * k, shift=0.1 * k, seed=k) for k in range(6)], 2)
    for function in (rhat, bulk_size, tail_size):
        assert function(draws).tolist() == pytest.approx([float(function(draws[:, :, [k]])) for k in range(6)])


def test_effective_sizes_are_those_of_the_process() -> None:
    """N (1 - a) / (1 + a) of an autoregression."""
    for slowness in (0.0, 0.5, 0.9):
        found = float(bulk_size(autoregressive(8, 4000, slowness)))
        assert found == pytest.approx(32_000 * (1 - slowness) / (1 + slowness), rel=0.15)


def test_what_never_changes_is_converged_and_what_differs_between_chains_alone_is_not() -> None:
    never = torch.ones(3, 20, 1, dtype=torch.float64)
    assert [float(function(never)) for function in (rhat, bulk_size, tail_size)] == [1.0, 60.0, 60.0]
    apart = never * torch.tensor([1.0, 1.0, 2.0]).view(3, 1, 1)
    assert float(rhat(apart)) == math.inf
    assert float(bulk_size(apart)) < 6
