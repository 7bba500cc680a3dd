"""Sweeps of two ranks from independent states of an exact posterior: the posterior stays as it is."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from setups import first_appearance, label_law
from torch import Tensor
from two_ranks import Thread, on_threads, split

from regbayes.inference import Gibbs
from regbayes.inference.gibbs.paths import Paths
from regbayes.inference.gibbs.prepared import Prepared
from regbayes.models import IHMM, SphericalGaussian
from regbayes.models.priors import HierarchicalDirichletProcess
from regbayes.models.sums import among
from regbayes.testing.sequences import state_posterior

X = torch.tensor([[-1.2], [-0.8], [1.1], [torch.nan], [0.9]], dtype=torch.float64)
FAMILY = SphericalGaussian(loc=0.0, variance=0.5, prior_variance=1.0)


@pytest.fixture(autouse=True)
def no_locks(monkeypatch) -> None:
    """Until Python 3.12 the lock of a cached property is that of all objects: a thread that waits for the other one
    inside would hold it."""
    for value in vars(Prepared).values():
        if isinstance(value, cached_property):
            monkeypatch.setattr(value, "lock", _NoLock(), raising=False)


class _NoLock:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def moved(kernel: Any, model: Any, parts: list[Any], states: list[list[Any]], num_sweeps: int) -> list[list[Any]]:
    """The states of each rank after sweeps, from those of each rank with its data."""

    def task(rank: int, ranks: Thread) -> list[Any]:
        with among(ranks):
            data, found = kernel.prepare(model, parts[rank]), []
            for seed, state in enumerate(states[rank]):
                generator = torch.Generator().manual_seed(seed)
                for step in range(num_sweeps):
                    state = kernel.sweep(state, data, model, generator, step)
                found.append(state)
            return found

    return on_threads(task)


def p_value(names: list[Any], mass: Tensor, found: list[Any]) -> float:
    """Of a chi-square of what was found, whose probabilities are known."""
    visits = torch.bincount(torch.tensor([names.index(each) for each in found]), minlength=len(names)).double()
    expected = len(found) * mass
    rare = expected < 5
    visits, expected = (torch.cat([each[~rare], each[rare].sum().view(1)]) for each in (visits, expected))
    statistic = ((visits - expected).square() / expected.clamp(min=1e-9)).sum()
    return float(chi2.sf(float(statistic), len(visits) - 1))


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.4])
@pytest.mark.parametrize("scan", ["beam", "blocked"])
def test_paths_of_two_ranks_keep_the_posterior(scan, rho) -> None:
    """The first rank has the longer sequence, the second one with a step that is missing."""
    prior, first, number = HierarchicalDirichletProcess(1.5, None, 2.0, None, stickiness=rho), 3, 3000
    model, data = IHMM(FAMILY, prior, truncation=3).prepare(X, None, [3, 2])
    truncated, generator = scan == "blocked", torch.Generator().manual_seed(5)
    exact = state_posterior(model, X, [3, 2], truncation=3 if truncated else None)
    names, mass = list(exact), torch.tensor(list(exact.values()), dtype=torch.float64)
    z, states = Paths(label_law(model, truncated), data), []
    for chosen in torch.multinomial(mass, number, replacement=True, generator=generator).tolist():
        state = z.begin(torch.tensor(names[chosen]), model)
        for _ in range(20):  # base weights given the paths
            state = z.draw_prior(state, generator)
        states.append(state)
    halves = [[replace(each, assignments=split(each.assignments, rank, first)) for each in states] for rank in range(2)]
    parts = [model.data(split(X, rank, first), [length]) for rank, length in enumerate((3, 2))]
    found = moved(Gibbs.module_of(model).kernel(Gibbs(scan=scan), model), model, parts, halves, 2)
    labels = []
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.base, other.base)
        both = tuple(torch.cat([one.assignments, other.assignments]).tolist())
        labels.append(both if truncated else first_appearance(both))
    assert p_value(names, mass, labels) > 1e-4
