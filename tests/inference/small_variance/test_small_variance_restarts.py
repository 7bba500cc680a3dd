"""num_restarts="auto": so many, of such kinds, that tiny problems of every structure end at their optimum."""

from __future__ import annotations

import pytest
import torch
from tiny_optima import PROBLEMS, outcome

from regbayes.inference import SmallVariance
from regbayes.models import DPM

# the other of two problems of a structure, which takes its time
_NIGHTLY = ("mixtures, missing bits", "infinite SVMs, many scores", 'label sets, "and"', "latent features")
_QUICK = ("mixtures", "mixtures, missing bits", "label sets", "label sets, missing bits")
_FEW = ("latent features with a margin",)  # whose optimum takes its time


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in _NIGHTLY else ()) for name in PROBLEMS]
)
def test_fits_reach_the_least_objective_of_all(name: str) -> None:
    """Of some problems of each structure, within 1 %, by default; `benchmarks/small_variance.py tiny` has more."""
    assert all(outcome(PROBLEMS[name](seed)).reached for seed in range(2 if name in _FEW else 5))


@pytest.mark.parametrize("name", [*_QUICK, "sequences"])
def test_quick_fits_reach_the_least_objective_of_all(name: str) -> None:
    """With one restart a third of them do not."""
    assert all(outcome(PROBLEMS[name](seed)).reached for seed in range(4))


def test_restarts_are_as_many_as_cost_little() -> None:
    X = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    quick = SmallVariance(penalty=1e3, max_steps=1, num_jobs=1, progress=False)
    posterior = quick.fit(DPM(), X)
    assert posterior.backend.num_restarts == 16
    assert posterior.trace.values.shape == (1, 1)  # of the lowest
    wide = quick.fit(DPM(), torch.cat([X] * 200, 1))
    assert wide.backend.num_restarts == 10**5 // (40 * 410)
    assert quick.fit(DPM(), X.repeat(100, 1)).backend.num_restarts == 10**5 // (4000 * 12)
    assert quick.fit(DPM(), X.repeat(250, 1)).backend.num_restarts == 1
    started = quick.replace(init=torch.arange(40) % 2).fit(DPM(), X)
    assert started.backend.num_restarts == 1
    assert quick.replace(num_restarts=3).fit(DPM(), X).backend.num_restarts == 3
    with pytest.raises(ValueError, match="num_restarts is 0; it must be an integer of at least 1, or 'auto'"):
        quick.replace(num_restarts=0).fit(DPM(), X)
