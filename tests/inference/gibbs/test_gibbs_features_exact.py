"""Gibbs scans of latent features from exact starts: what they do to draws from the posterior leaves its law as it is.

Starts are independent draws from the exact posterior, by rejection from the prior. A valid step changes the mean of no
statistic of them, which Hotelling's chi-square of the changes sees in many at once: no autocorrelation to guess, no
truncation, no chain that has to mix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from exact_features import drift, exact_states
from setups import Ramp, by_day

from regbayes.inference.gibbs.features import kernel as features
from regbayes.inference.gibbs.features.state import FeatureState
from regbayes.models import (
    BetaBernoulli,
    CrammerSinger,
    Hinge,
    IndianBuffetProcess,
    InfiniteLatentSVM,
    LinearGaussian,
    Loss,
)
from regbayes.models.latent_features import FeatureData

Step = Callable[[FeatureState, FeatureData, InfiniteLatentSVM, torch.Generator], FeatureState]

# -- sweeps and scans --------------------------------------------------------------------------------------------------

X = torch.tensor([[0.9, -0.4], [1.2, 0.5], [-0.8, 0.9]], dtype=torch.float64)
SIGNS, CLASSES = torch.tensor([1, -1, 1]), torch.tensor([0, 2, 1])
HOLES = torch.tensor([[3.9, math.nan], [4.2, 3.5]], dtype=torch.float64)  # far from 0, which stands for a missing one
LEARNED = 1.0, (2.0, 1.5)


def model_of(learn: bool = False, offset: float = 0.1, **options: Any) -> InfiniteLatentSVM:
    likelihood = LinearGaussian(offset=offset, noise_variance=0.5, loading_variance=1.5, learn=learn)
    defaults = {"loss": Hinge(1.0), "prior": IndianBuffetProcess(1.0), "truncation": 2, "feature_map": None}
    return InfiniteLatentSVM(likelihood, **(defaults | options))


def scan_alone(
    state: FeatureState, data: FeatureData, model: InfiniteLatentSVM, generator: torch.Generator, *, scan: str
) -> FeatureState:
    """The bits alone, without the draw of all else that ends a sweep."""
    return features._SCANS[scan](state, features.observe_entries(state, data, model, generator), generator)


def check_exact(step: Step, model: InfiniteLatentSVM, data: FeatureData, number: int, infinite: bool) -> None:
    """The step moves no statistic of so many exact states."""
    generator = torch.Generator().manual_seed(0)
    before = exact_states(model, data, by_day(number), infinite, generator)
    after = [step(state, data, model, generator) for state in before]
    assert drift(before, after, data) > 1e-5


NIGHTLY = (pytest.mark.slow, pytest.mark.nightly)
CASES = {
    "two rows": (model_of(), X[:2, :1], SIGNS[:2]),
    "learned": (model_of(prior=IndianBuffetProcess(*LEARNED)), X[:2, :1], SIGNS[:2]),
    "two columns": (model_of(), X[:2], SIGNS[:2]),
    "classes": (model_of(loss=CrammerSinger(0.8)), X[:2, :1], CLASSES[:2]),
    "three rows": (model_of(), X[:, :1], SIGNS),
    "holes": (model_of(learn=True, offset=3.1), HOLES, SIGNS[:2]),
    "independent": (model_of(prior=BetaBernoulli(*LEARNED)), X[:2, :1], SIGNS[:2]),
    "ramp": (model_of(loss=Ramp(), prior=IndianBuffetProcess(*LEARNED)), HOLES, SIGNS[:2]),
    "three rows of a ramp": (model_of(loss=Ramp()), X[:, :1], SIGNS),
}


@pytest.mark.parametrize(
    ("scan", "name", "number"),
    [
        ("collapsed", "learned", 1200),
        ("slice", "learned", 1200),
        ("blocked", "learned", 1200),
        ("collapsed", "holes", 800),
        ("collapsed", "ramp", 500),
        pytest.param("blocked", "independent", 1200, marks=pytest.mark.slow),
        pytest.param("slice", "holes", 800, marks=NIGHTLY),
        pytest.param("blocked", "holes", 1200, marks=NIGHTLY),
        pytest.param("slice", "ramp", 800, marks=NIGHTLY),
        pytest.param("blocked", "ramp", 800, marks=NIGHTLY),
        pytest.param("collapsed", "classes", 3000, marks=NIGHTLY),
        pytest.param("blocked", "classes", 1200, marks=NIGHTLY),
    ],
)
def test_a_sweep_leaves_the_exact_posterior_as_it_is(scan: str, name: str, number: int) -> None:
    model, rows, targets = CASES[name]
    model, data = model.prepare(rows, targets)
    check_exact(partial(features.sweep, scan=scan), model, data, number, scan != "blocked")


@pytest.mark.parametrize(
    ("scan", "name", "number"),
    [
        ("collapsed", "three rows", 3000),
        ("slice", "two columns", 1500),
        pytest.param("blocked", "classes", 6000, marks=NIGHTLY),
        pytest.param("collapsed", "three rows of a ramp", 2000, marks=NIGHTLY),
        pytest.param("collapsed", "two columns", 6000, marks=NIGHTLY),
        pytest.param("collapsed", "classes", 6000, marks=NIGHTLY),
        pytest.param("slice", "classes", 2500, marks=NIGHTLY),
        pytest.param("blocked", "three rows", 6000, marks=NIGHTLY),
    ],
)
def test_a_scan_leaves_the_exact_posterior_as_it_is(scan: str, name: str, number: int) -> None:
    model, rows, targets = CASES[name]
    model, data = model.prepare(rows, targets)
    check_exact(partial(scan_alone, scan=scan), model, data, number, scan != "blocked")


@pytest.mark.parametrize(
    "loss", [Hinge(0.5), *(pytest.param(each, marks=NIGHTLY) for each in (CrammerSinger(0.3), Ramp()))]
)
def test_features_of_a_lone_row_keep_their_exact_law(loss: Loss) -> None:
    """All features are the row's own: what is left of the scan are the Metropolis-Hastings steps of their block.

    Evidences differ and margins are weak, or a step would hardly need the old margin: phi <= 1 is a rejection step.
    """
    rows = torch.tensor([[1.5, -1.5], [0.0, 0.3], [0.4, 0.2]], dtype=torch.float64)
    model = model_of(loss=loss, prior=IndianBuffetProcess(0.5))
    model, data = model.prepare(rows, CLASSES if loss.meets else SIGNS)
    check_exact(partial(scan_alone, scan="collapsed"), model, data.rows(slice(0, 1)), 14000, True)
