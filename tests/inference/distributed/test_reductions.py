"""How often ranks hear of one another in a sweep. What exchanges more often is not here: slice Gibbs of features,
Gibbs of tasks, and sweeps of small variance that search, as each does that adds a feature to tasks (docs/scale.md)."""

from __future__ import annotations

import pytest
from test_ranks import CASES, fit, fit_source

from regbayes.inference import SVI, Gibbs, SmallVariance
from regbayes.inference.classifiers import minimum
from regbayes.inference.running.sweeps import Sweeps
from regbayes.inference.small_variance import hyperplanes
from regbayes.models.ranks import Ranks

WAYS = {
    "small variance": SmallVariance(num_components=4, num_restarts=2, max_steps=8),
    "SVI": SVI(num_steps=40, tolerance=None),
    "SVI in minibatches": SVI(num_steps=4, batch_size=5, num_full_steps=0),
    "Gibbs, slice or beam": Gibbs(1, 3, scan="auto", num_generative=2, split_merge=0),
    "Gibbs, blocked": Gibbs(1, 3, scan="blocked", num_generative=2, split_merge=0),
}
GOAL = 5  # of a sweep that neither searches nor merges, the flags of Ctrl-C and checkpoints included
REACHED = {
    "small variance": [
        *("DPM", "InfiniteSVM", "DDPM", "DDPM of two directions", "BNMC", "BNMC, and", "IHMM", "DIH"),
        *("features", "features, logistic", "features, some entries missing", "tasks"),
    ],
    "SVI": [
        *("DPM", "DPM of counts", "InfiniteSVM", "DDPM", "LDA", "MedLDA", "IHMM", "DIH"),
        *("BNMC", "BNMC, and", "BNMC, multinomial", "features", "tasks"),
    ],
    "SVI in minibatches": [
        *("DPM", "DPM of counts", "InfiniteSVM", "DDPM", "LDA", "MedLDA", "IHMM", "DIH"),
        *("BNMC", "BNMC, and", "BNMC, multinomial", "features"),
    ],
    "Gibbs, slice or beam": ["DPM", "InfiniteSVM", "DDPM", "IHMM", "DIH", "BNMC"],
    "Gibbs, blocked": [
        *("DPM", "InfiniteSVM", "DDPM", "LDA", "MedLDA", "IHMM", "DIH"),
        *("BNMC", "BNMC, and", "BNMC, multinomial", "features"),
    ],
}
MOST = [(way, case) for way, cases in REACHED.items() for case in cases]


def counted(group, rank, *arguments, work=fit):
    """The numbers of reductions of each sweep but the first, in the fit that some work makes."""
    numbers, reduced, advance = [], Ranks._reduced, Sweeps.advance

    def count(those, tensor, how):
        if numbers and tensor.numel():
            numbers[-1] += 1
        return reduced(those, tensor, how)

    def begin(self, *others):
        numbers.append(0)
        advance(self, *others)

    Ranks._reduced, Sweeps.advance = count, begin
    try:
        work(group, rank, *arguments)
    finally:
        Ranks._reduced, Sweeps.advance = reduced, advance
    return numbers[1:]


@pytest.mark.one_in(8)
@pytest.mark.parametrize(("way", "case"), MOST)
def test_a_sweep_has_few_reductions(two_ranks, way, case) -> None:
    assert case in CASES
    first, second = two_ranks(counted, WAYS[way], case)
    assert first == second
    assert 0 < min(first) <= GOAL


MANY = {"features": 5, "features, logistic": 5, "BNMC, and": 5, "DDPM": 6, "DDPM of two directions": 6}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", MANY)
def test_a_sweep_of_many_rows_has_few_reductions(two_ranks, case) -> None:
    """Which no rank has all of, as it has of a few; a settled sweep may end a descent, so there are two."""
    numbers, other = two_ranks(counted_of_many, WAYS["small variance"].replace(max_steps=4), case)
    assert numbers == other
    assert 0 < min(numbers) <= MANY[case]


def counted_of_many(group, rank, *arguments):
    """The numbers as if so few rows were many."""
    places = (minimum, "MOST_TOGETHER"), (hyperplanes, "_MOST_ROWS")
    before = [getattr(*place) for place in places]
    for place in places:
        setattr(*place, 0)
    try:
        return counted(group, rank, *arguments)
    finally:
        for place, value in zip(places, before, strict=True):
            setattr(*place, value)


@pytest.mark.parametrize("case", ["DPM", "InfiniteSVM", "DDPM of two directions"])
def test_a_step_from_sources_has_few_reductions(two_ranks, case) -> None:
    """One of them says that all have read their blocks."""
    numbers, other = two_ranks(counted_from_sources, SVI(num_steps=6, batch_size=7), case)
    assert numbers == other
    assert 0 < min(numbers) <= GOAL


def counted_from_sources(group, rank, *arguments):
    return counted(group, rank, *arguments, work=fit_source)
