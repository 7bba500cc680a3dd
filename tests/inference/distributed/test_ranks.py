"""Fits among two ranks with shards of unequal size, one of them without a label, beside fits of one process."""

from __future__ import annotations

import re

import pytest
import torch
from two_ranks import split

from regbayes.inference import NUTS, SVI, Gibbs, SmallVariance
from regbayes.models import (
    BNMC,
    DDPM,
    DPM,
    IHMM,
    LDA,
    CrammerSinger,
    EpsilonInsensitive,
    FullGaussian,
    InfiniteLatentSVM,
    InfiniteSVM,
    Logistic,
    MultinomialDirichlet,
    Ordinal,
    PitmanYor,
    PrincipalDirections,
    RandomFourier,
)

FIRST = 23  # rows of the first rank; it has the labels


def blobs(num_rows: int = 60, num_columns: int = 3, *, counts: bool = False):
    """Rows about four centres, and a class of each."""
    stream = torch.Generator().manual_seed(3)
    place = torch.randint(4, (num_rows,), generator=stream)
    centers = 4 * torch.randn(4, num_columns, generator=stream, dtype=torch.float64)
    X = centers[place] + torch.randn(num_rows, num_columns, generator=stream, dtype=torch.float64)
    return (X.abs().round() if counts else X), place % 3


X, LABELS = blobs()
Y = torch.where(torch.arange(len(X)) < FIRST, LABELS, -1)
REAL = torch.where(torch.arange(len(X)) < FIRST, X[:, 0] + LABELS, torch.nan)
CASES = {
    "DPM": (DPM(truncation=6), X, None),
    "DPM of full Gaussians, Pitman-Yor": (DPM(FullGaussian(), PitmanYor(), truncation=6), X, None),
    "DPM of counts": (DPM(MultinomialDirichlet(), truncation=6), blobs(counts=True)[0], None),
    "InfiniteSVM": (InfiniteSVM(truncation=6), X, Y),
    "InfiniteSVM of two classes": (InfiniteSVM(loss=Logistic(), truncation=6), X, Y.clamp(max=1)),
    "InfiniteSVM, regression": (InfiniteSVM(loss=EpsilonInsensitive(), truncation=6), X, REAL),
    "InfiniteSVM, Fourier": (InfiniteSVM(feature_map=RandomFourier(num_features=64), truncation=4), X, Y),
    "InfiniteSVM, ordinal": (InfiniteSVM(target=Ordinal(), truncation=6), X, Y),
    "DDPM": (DDPM(truncation=6), X, None),
    "DDPM of two directions": (DDPM(feature_map=PrincipalDirections(2), loss=Logistic(), truncation=6), X, None),
}


def fit(group, rank, backend, case, first=FIRST):
    """The posterior's samples and its trace, of a rank."""
    model, X, y = CASES[case]
    posterior = backend.fit(model, split(X, rank, first), split(y, rank, first), group=group)
    return posterior.samples, posterior.trace.values


def alone(backend, case):
    """The same of one process."""
    model, X, y = CASES[case]
    posterior = backend.fit(model, X, y)
    return posterior.samples, posterior.trace.values


def require_equal(parts, whole, tolerance=1e-8):
    """Rows of the ranks, one rank's after the other's, and all else on each rank, are as those of one process."""
    values = [trace for _, trace in [*parts, whole]]
    for own in values[:2]:
        assert own.shape == values[2].shape
        torch.testing.assert_close(own, values[2], rtol=tolerance, atol=0.0)
    for name, value in whole[0].items():
        ranks = [samples[name] for samples, _ in parts]
        if name in ("assignments", "responsibilities"):
            torch.testing.assert_close(torch.cat(ranks, 1), value, rtol=tolerance, atol=tolerance)
            continue
        size = float(value.abs().nan_to_num(posinf=0.0, neginf=0.0).max()) if value.numel() else 0.0
        for own in ranks:
            torch.testing.assert_close(own, value, rtol=tolerance, atol=tolerance * size, equal_nan=True)


SMALL = SmallVariance(num_components=4, num_restarts=2)
EXACT = {
    "small variance": SMALL,
    "small variance, single": SMALL.replace(creation="single", num_restarts=1),
    "SVI": SVI(num_steps=15),
    "SVI in minibatches": SVI(num_steps=12, batch_size=20, num_full_steps=3),
}


def has(way: str, case: str) -> bool:
    """Whether a case is served that way, by one process too."""
    if "single" in way:
        return not case.startswith("DDPM")
    few = ("DPM", "InfiniteSVM", "InfiniteSVM, Fourier", "InfiniteSVM, regression", "DDPM of two directions")
    return case in few if way.startswith("small") else "ordinal" not in case


def refusal(group, rank, backend, model, y=None, options=None):
    """What a rank says of a fit that is refused."""
    rows = split(X, rank, FIRST)
    with pytest.raises((NotImplementedError, ValueError)) as caught:
        backend.fit(model, rows, split(y, rank, FIRST), group=group, **(options or {}))
    return f"{type(caught.value).__name__}: {caught.value}"


ALONE = "fit on one rank, without group"
REFUSED = {
    "the averaging rule": (SVI(rule="averaging"), InfiniteSVM(), Y, {}, 'take rule="gibbs"'),
    "a joint hinge": (SmallVariance(), InfiniteSVM(loss=CrammerSinger()), Y, {}, "take loss=Hinge()"),
    "labels to start from": (SmallVariance(init=LABELS), DPM(), None, {}, "leave init out"),
    "a checkpoint": (SVI(), DPM(), None, {"checkpoint": "chain.pt"}, "leave checkpoint out"),
    "weights of rows": (SVI(), DPM(), None, {"sample_weight": [1.0]}, "leave sample_weight out"),
    "another backend": (NUTS(), DPM(), None, {}, ALONE),
    "Gibbs": (Gibbs(), DPM(), None, {}, ALONE),
    "sequences": (SVI(), IHMM(), None, {}, ALONE),
    "sequences, small variance": (SmallVariance(), IHMM(), None, {}, ALONE),
    "latent features": (SVI(), InfiniteLatentSVM(truncation=4), None, {}, ALONE),
    "topics": (SVI(), LDA(), None, {}, ALONE),
    "label sets": (SVI(), BNMC(), None, {}, ALONE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_verified_on_several_ranks_is_refused_by_name(two_ranks, name) -> None:
    *call, mend = REFUSED[name]
    for said in two_ranks(refusal, *call):
        assert said.startswith("NotImplementedError")
        assert f"does not run on several ranks yet; {mend}." in said


def spoiled(group, rank, kind):
    """A refusal of rows that differ from rank to rank."""
    rows, model = split(X, rank, FIRST), DPM()
    if rank and kind == "a NaN":
        rows = rows.index_fill(0, torch.tensor([3]), torch.nan)
    if rank and kind == "other columns":
        rows = rows[:, :2]
    if rank and kind == "another model":
        model = DPM(truncation=7)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the caller looks)
        SVI(num_steps=2).fit(model, rows, group=group)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("a NaN", r"Rank 1 of 2 refuses its data: .*NaN.* row 3, column 0"),
        ("other columns", "Ranks differ in the number of columns: rank 0 has 3, rank 1 has 2"),
        ("another model", "Ranks differ in the model"),
    ],
)
def test_all_ranks_refuse_in_one_sentence(two_ranks, kind, match) -> None:
    first, second = two_ranks(spoiled, kind)
    assert first == second
    assert re.search(match, first)


def test_a_group_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="group is 'all'; expected a process group"):
        SVI().fit(DPM(), X, group="all")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", EXACT)
def test_two_ranks_find_what_one_process_does(two_ranks, way, case) -> None:
    if not has(way, case):
        pytest.skip("no such cell")
    whole = alone(EXACT[way], case)
    require_equal(two_ranks(fit, EXACT[way], case), whole)
