"""Fits among two ranks with shards of unequal size, one of them without a label, beside fits of one process."""

from __future__ import annotations

import re
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from setups import by_day
from two_ranks import on_threads, split, watched

from regbayes.inference import NUTS, SVI, Gibbs, PartitionPosterior, SmallVariance, TruncationWarning, rows_of
from regbayes.inference.distributed import together
from regbayes.inference.distributed.collectives import Later, all_sum, largest_later, largest_of, own_stream
from regbayes.inference.distributed.picked import in_turns, top
from regbayes.inference.running.files import release
from regbayes.inference.running.sweeps import Sweeps
from regbayes.inference.truncation import warn_if_all_used
from regbayes.models import (
    BNMC,
    DDPM,
    DIH,
    DPM,
    IHMM,
    LDA,
    Blocks,
    CrammerSinger,
    EpsilonInsensitive,
    FullGaussian,
    InfiniteLatentSVM,
    InfiniteSVM,
    LatentFeatureModel,
    LinearBernoulli,
    LinearGaussian,
    Logistic,
    MedLDA,
    MultinomialDirichlet,
    MultiTaskInfiniteLatentSVM,
    Nystroem,
    Ordinal,
    PitmanYor,
    PrincipalDirections,
    RandomFourier,
    Standardized,
)
from regbayes.models.ranks import Ranks
from regbayes.models.sums import among
from regbayes.testing import check_kernel

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
SETS = torch.stack([LABELS == 0, LABELS > 0, X[:, 0] > 0, X[:, 1] > X[:, 2]], 1).double()
SETS[torch.arange(len(X)) >= FIRST] = torch.nan
WORDS = blobs(num_columns=12, counts=True)[0]
LENGTHS = [11, 7, 5, 20, 12, 5]  # the first three are of the first rank
HOLES = X.masked_fill(
    (torch.arange(len(X)).unsqueeze(1) % 7 == 3) & (torch.arange(len(X)) > FIRST).unsqueeze(1) & (torch.arange(3) == 1),
    torch.nan,
)
BITS = (X.mean(0) < X).double()  # rows of few kinds
MIXED = torch.cat([HOLES[:, :2], BITS[:, :2]], 1)
GAPS = X.masked_fill((torch.arange(len(X)) % FIRST == 0).unsqueeze(1), torch.nan)  # the first steps of both ranks
TASKS_OF_NUMBERS = MultiTaskInfiniteLatentSVM(loss=EpsilonInsensitive(), feature_map=Standardized(), truncation=3)
CASES = {
    "DPM": (DPM(truncation=6), X, None),
    "DPM of full Gaussians, Pitman-Yor": (DPM(FullGaussian(), PitmanYor(), truncation=6), X, None),
    "DPM of full Gaussians that vary as all rows": (DPM(FullGaussian(scale="covariance"), truncation=6), X, None),
    "DPM of counts": (DPM(MultinomialDirichlet(), truncation=6), blobs(counts=True)[0], None),
    "InfiniteSVM": (InfiniteSVM(truncation=6), X, Y),
    "InfiniteSVM of two classes": (InfiniteSVM(loss=Logistic(), truncation=6), X, Y.clamp(max=1)),
    "InfiniteSVM, regression": (InfiniteSVM(loss=EpsilonInsensitive(), truncation=6), X, REAL),
    "InfiniteSVM, Fourier": (InfiniteSVM(feature_map=RandomFourier(64, common_scale=True), truncation=4), X, Y),
    "InfiniteSVM, Nystroem": (InfiniteSVM(feature_map=Nystroem(num_features=40), truncation=4), X, Y),
    "InfiniteSVM, ordinal": (InfiniteSVM(target=Ordinal(), truncation=6), X, Y.double().masked_fill(Y < 0, torch.nan)),
    "DDPM": (DDPM(truncation=6), X, None),
    "DDPM of two directions": (
        DDPM(feature_map=PrincipalDirections(2, scaling=0.5), loss=Logistic(), truncation=6),
        X,
        None,
    ),
    "LDA": (LDA(num_topics=4), WORDS, None),
    "MedLDA": (MedLDA(num_topics=4), WORDS, Y),
    "features": (InfiniteLatentSVM(truncation=5), X, Y),
    "features, logistic": (InfiniteLatentSVM(loss=Logistic(), truncation=5), X, Y),
    "features, some entries missing": (LatentFeatureModel(truncation=8), HOLES, None),
    "features of bits": (LatentFeatureModel(LinearBernoulli(), truncation=4), BITS, None),
    "features of blocks, some entries missing": (
        LatentFeatureModel(Blocks([(LinearGaussian(), 2), (LinearBernoulli(), 2)]), truncation=10),
        MIXED,
        None,
    ),
    "IHMM": (IHMM(truncation=5), X, None, LENGTHS),
    "IHMM, some steps missing": (IHMM(truncation=5), GAPS, None, LENGTHS),
    "DIH": (DIH(truncation=4), X, None, LENGTHS),
    "tasks": (MultiTaskInfiniteLatentSVM(truncation=4), X, SETS[:, :2]),
    "tasks, logistic": (MultiTaskInfiniteLatentSVM(LinearGaussian(), Logistic(), truncation=3), X, SETS),
    "tasks, regression": (TASKS_OF_NUMBERS, X, torch.stack([REAL, -REAL], 1)),
    "BNMC": (BNMC(truncation=6), X, SETS),
    "BNMC, and": (BNMC(joint="and", truncation=6), X, SETS[:, :1]),
    "BNMC, multinomial": (BNMC(joint="multinomial", truncation=6), X, SETS),
}
# in the others all labels are of the first rank
LABELLED = {"InfiniteSVM": LABELS, "MedLDA": LABELS, "features": LABELS} | {
    name: SETS.nan_to_num(1.0).where(torch.arange(len(X)).unsqueeze(1) % 9 != 4, torch.nan)
    for name in ("BNMC", "BNMC, and", "BNMC, multinomial")
}
CASES |= {f"{name}, both labelled": (*CASES[name][:2], y) for name, y in LABELLED.items()}


def fit(group, rank, backend, case, first=FIRST):
    """The posterior's samples and its trace, of a rank."""
    model, X, y, *lengths = CASES[case]
    own = {"lengths": (lengths[0][:3], lengths[0][3:])[rank]} if lengths else {}
    posterior = backend.fit(model, split(X, rank, first), split(y, rank, first), **own, group=group)
    return posterior.samples, posterior.trace.values


def alone(backend, case):
    """The same of one process."""
    model, X, y, *lengths = CASES[case]
    posterior = backend.fit(model, X, y, **({"lengths": lengths[0]} if lengths else {}))
    return posterior.samples, posterior.trace.values


def require_equal(parts, whole, tolerance=1e-8):
    """Rows of the ranks, one rank's after the other's, and all else on each rank, are as those of one process."""
    values = [trace for _, trace in [*parts, whole]]
    for own in values[:2]:
        assert own.shape == values[2].shape
        torch.testing.assert_close(own, values[2], rtol=tolerance, atol=0.0)
    for name, value in whole[0].items():
        ranks = [samples[name] for samples, _ in parts]
        if name in ("assignments", "responsibilities", "features") and torch.cat(ranks, 1).shape == value.shape:
            torch.testing.assert_close(torch.cat(ranks, 1), value, rtol=tolerance, atol=tolerance)
            continue
        size = float(value.abs().nan_to_num(posinf=0.0, neginf=0.0).max()) if value.numel() else 0.0
        for own in ranks:
            torch.testing.assert_close(own, value, rtol=tolerance, atol=tolerance * size, equal_nan=True)


SMALL = SmallVariance(num_components=4, num_restarts=2)
EXACT = {
    "small variance": SMALL,
    "small variance, single": SMALL.replace(creation="single", num_restarts=1),
    "small variance, priced": SMALL.replace(penalty=30.0, num_restarts=1),
    "SVI": SVI(num_steps=15),
    "SVI in minibatches": SVI(num_steps=12, batch_size=3, num_full_steps=3),  # some of them of one rank alone
}


PRICED = "features, some entries missing", "IHMM"
SLOW = {"BNMC, and", "features, logistic", "tasks, logistic", "DIH", *PRICED}  # of which descents take many steps


def has(way: str, case: str) -> bool:
    """Whether a case is served that way, by one process too."""
    if "priced" in way:
        return case in PRICED
    if "single" in way:
        return case.startswith(("DPM", "InfiniteSVM")) or case in ("BNMC", "features, logistic")
    few = (
        "DPM",
        "InfiniteSVM",
        "InfiniteSVM, Fourier",
        "InfiniteSVM, Nystroem",
        "InfiniteSVM, regression",
        "DDPM of two directions",
        "BNMC",
        "BNMC, and",
        "features, logistic",
        "features, some entries missing",
        "features of bits",
        "IHMM",
        "IHMM, some steps missing",
        "DIH",
        "tasks, logistic",
    )
    if case.startswith("tasks") and "minibatches" in way:
        return False
    return case in few if way.startswith("small") else "ordinal" not in case


def refusal(group, rank, backend, model, y=None):
    """What a rank says of a fit that is refused."""
    rows = split(X, rank, FIRST)
    with pytest.raises((NotImplementedError, ValueError)) as caught:
        backend.fit(model, rows, split(y, rank, FIRST), group=group)
    return f"{type(caught.value).__name__}: {caught.value}"


ALONE = "fit on one rank, without group"
REFUSED = {
    "the averaging rule": (SVI(rule="averaging"), InfiniteSVM(), Y, 'take rule="gibbs"'),
    "a joint hinge": (SmallVariance(), InfiniteSVM(loss=CrammerSinger()), Y, "take loss=Hinge()"),
    "the averaging rule of tasks": (SVI(rule="averaging"), TASKS_OF_NUMBERS, X[:, :2], 'take rule="gibbs"'),
    "labels to start from": (SmallVariance(init=LABELS), DPM(), None, "leave init out"),
    "collapsed scans of features": (Gibbs(scan="collapsed"), LatentFeatureModel(), None, "take scan='slice'"),
    "another backend": (NUTS(), DPM(), None, ALONE),
    "collapsed scans": (Gibbs(scan="collapsed"), DPM(), None, "take scan='slice'"),
    "Gibbs from labels": (Gibbs(init=LABELS), DPM(), None, "leave init out"),
    "collapsed scans where components repel": (Gibbs(scan="collapsed"), DDPM(), None, "take scan='slice'"),
    "Gibbs where states repel, step by step": (Gibbs(scan="direct"), DIH(), None, "take scan='beam'"),
    "Gibbs of sequences, step by step": (Gibbs(scan="direct"), IHMM(), None, "take scan='beam'"),
    "Gibbs of sequences from labels": (Gibbs(init=LABELS), IHMM(), None, "leave init out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_verified_on_several_ranks_is_refused_by_name(two_ranks, name) -> None:
    *call, mend = REFUSED[name]
    for said in two_ranks(refusal, *call):
        assert said.startswith("NotImplementedError")
        assert f"does not run on several ranks yet; {mend}." in said


def squared(X):
    """A feature map."""
    return torch.cat([X, X.square()], 1)


def function_fitted(group, rank):
    """The weights of a model whose feature map is a function, which every process has at an address of its own."""
    model = InfiniteSVM(feature_map=squared, truncation=4)
    found = SVI(num_steps=2).fit(model, split(X, rank, FIRST), split(LABELS, rank, FIRST), group=group)
    return found.samples["weights"], repr(found)


def test_a_function_is_a_feature_map_on_all_ranks(two_ranks) -> None:
    (first, said), (second, other) = two_ranks(function_fitted)
    assert torch.equal(first, second)
    assert said == other


def test_no_feature_is_a_fit_on_ranks_too(two_ranks) -> None:
    call = SmallVariance(penalty=1e6, num_restarts=1), "features of bits"
    parts, whole = two_ranks(fit, *call), alone(*call)
    assert whole[0]["features"].shape[2] == 0
    require_equal(parts, whole)


def fit_rows(group, rank, backend, model, rows, **options):
    """The trace of a fit to the rows of a rank, or why it is refused."""
    try:
        return backend.fit(model, rows[rank], **{name: each[rank] for name, each in options.items()}, group=group).trace
    except ValueError as error:
        return str(error)


def test_a_column_may_be_missing_in_the_rows_of_one_rank(two_ranks) -> None:
    holes = X.clone()
    holes[FIRST:, 1] = torch.nan
    backend, model = SVI(num_steps=5), LatentFeatureModel(truncation=12)
    whole = backend.fit(model, holes).trace.values
    for found in two_ranks(fit_rows, backend, model, holes.split([FIRST, len(X) - FIRST])):
        torch.testing.assert_close(found.values, whole, rtol=1e-8, atol=0.0)
    holes[:, 1] = torch.nan
    for said in two_ranks(fit_rows, backend, model, holes.split([FIRST, len(X) - FIRST])):
        assert said == "Columns [1] of X have no entry that is not NaN. Drop them."


def test_a_rank_with_too_few_rows_of_positive_weight_ends_all(two_ranks) -> None:
    rows, times = X.split([FIRST, len(X) - FIRST]), (torch.ones(FIRST), torch.eye(1, len(X) - FIRST).squeeze(0))
    for said in two_ranks(fit_rows, SVI(num_steps=3), DPM(), rows, sample_weight=times):
        assert said == (
            "Rank 1 of 2 cannot begin: X has n_samples=1 with a positive sample_weight; expected at least 2 on each "
            "rank."
        )


@pytest.mark.parametrize("backend", [SVI(num_steps=3), SMALL], ids=repr)
def test_files_of_ranks_have_the_same_columns_in_one_order(two_ranks, tmp_path, backend) -> None:
    names = ["a", "b", "c"]
    for rank, order in enumerate((names, names[::-1])):
        pq.write_table(
            pa.table({name: split(X, rank, FIRST)[:, names.index(name)].numpy() for name in order}),
            tmp_path / str(rank),
        )
    sources = [rows_of(tmp_path / str(rank)) for rank in range(2)]
    for said in two_ranks(fit_rows, backend, DPM(), sources):
        assert said == (
            "Ranks differ in the name of column 0: rank 0 has 'a', rank 1 has 'c'. Give all ranks the same, each with "
            "its own rows."
        )
    sources = [rows_of(tmp_path / str(rank), columns=names) for rank in range(2)]
    first, second = two_ranks(fit_rows, backend, DPM(), sources)
    assert torch.equal(first.values, second.values)


TIMES = torch.tensor([0.5, 1.0, 2.0, 0.0, 3.0, 1.5, 0.25])[torch.arange(len(X)) % 7]


def weighted(group, rank, backend, case, name, times, files=None):
    """The posterior of rows, or of losses, that count as often as TIMES says; without a group, of all rows."""
    model, *both = CASES[case]
    rows, y, times = (part if group is None else split(part, rank, FIRST) for part in (*both, times))
    return backend.fit(model, rows, y, **{name: times}, group=group, **(files or {}))


def weighted_samples(*call):
    found = weighted(*call)
    return found.samples, found.trace.values


WEIGHTED = [
    (
        SVI(num_steps=15),
        "sample_weight",
        ("DPM", "InfiniteSVM, regression", "DDPM", "BNMC", "BNMC, multinomial", "MedLDA"),
    ),
    (SVI(num_steps=12, batch_size=3, num_full_steps=3), "sample_weight", ("DPM of counts", "InfiniteSVM", "BNMC")),
    (SVI(num_steps=15), "loss_weight", ("InfiniteSVM", "InfiniteSVM, regression")),
    (SMALL, "sample_weight", ("DPM", "InfiniteSVM", "DDPM of two directions", "BNMC", "features, logistic")),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("backend", "name", "case"), [(*way, case) for *way, cases in WEIGHTED for case in cases])
def test_rows_of_two_ranks_have_weights(two_ranks, backend, name, case) -> None:
    times = TIMES.ceil() if case == "MedLDA" else TIMES
    call = backend, case, name, times
    require_equal(two_ranks(weighted_samples, *call), weighted_samples(None, 0, *call))


@pytest.mark.parametrize("case", ["DPM", "BNMC", "features", "MedLDA"])
def test_rows_of_weight_zero_may_all_be_of_one_rank(two_ranks, case) -> None:
    """They get their components without asking the other rank, which asks nothing."""
    times = torch.ones(len(X)).masked_fill((torch.arange(len(X)) % 9 == 4) & (torch.arange(len(X)) >= FIRST), 0.0)
    call = SVI(num_steps=3), case, "sample_weight", times
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        whole = weighted_samples(None, 0, *call)
    require_equal(two_ranks(weighted_samples, *call), whole)


@pytest.mark.parametrize("name", ["sample_weight", "loss_weight"])
def test_weights_of_one_rank_may_all_be_1(two_ranks, name) -> None:
    call = SVI(num_steps=8), "InfiniteSVM", name, TIMES.where(torch.arange(len(X)) >= FIRST, 1.0)
    require_equal(two_ranks(weighted_samples, *call), weighted_samples(None, 0, *call))


def repeated(group, rank, backend, model, times):
    """The samples, but for assignments, of a fit with weights, and of one to as many copies of each row."""
    rows, times = split(X, rank, FIRST), split(times, rank, FIRST)
    fits = [
        backend.fit(model, rows, sample_weight=times, group=group),
        backend.fit(model, rows.repeat_interleave(times.long(), 0), group=group),
    ]
    return [{name: value for name, value in fit.samples.items() if name not in HELD} for fit in fits]


HELD = {"assignments", "features"}


@pytest.mark.parametrize("model", [DPM(truncation=6), LatentFeatureModel(truncation=6)], ids=repr)
def test_a_row_of_weight_two_is_two_rows_of_its_rank(two_ranks, model) -> None:
    for weighted, copied in two_ranks(repeated, Gibbs(scan="slice", num_samples=3, num_warmup=2), model, TIMES.ceil()):
        assert weighted.keys() == copied.keys()
        assert all(torch.equal(weighted[name], copied[name]) for name in weighted)


def saved(group, rank, folder, backend):
    """The rows that a rank has, those of all of them, and those of the posterior that all have saved."""
    own = weighted(group, rank, backend, "DPM", "sample_weight", TIMES.ceil())
    own.save(folder / "posterior", group=group)
    whole = own.gather(group)
    return own.samples["assignments"], whole.samples["assignments"], whole.partition()


@pytest.mark.parametrize("backend", [SVI(num_steps=4), Gibbs(scan="slice", num_samples=40, num_warmup=2)], ids=repr)
def test_rows_of_weight_zero_are_gathered_and_saved_with_the_others(two_ranks, backend, tmp_path) -> None:
    (first, whole, partition), (second, same, other) = two_ranks(saved, tmp_path, backend)
    assert torch.equal(whole, torch.cat([first, second], 1))
    assert torch.equal(whole, same)
    assert torch.equal(partition, other)
    assert whole.shape[1] == len(X)
    assert torch.equal(PartitionPosterior.load(tmp_path / "posterior").samples["assignments"], whole)


def test_one_process_goes_on_from_the_checkpoint_of_ranks_with_weights(two_ranks, tmp_path) -> None:
    path, case = tmp_path / "state", ("InfiniteSVM", "sample_weight", TIMES)
    two_ranks(weighted_samples, SVI(num_steps=8), *case, {"checkpoint": path})
    whole, further = SVI(num_steps=15), {"resume": path}
    require_equal(2 * [weighted_samples(None, 0, whole, *case, further)], weighted_samples(None, 0, whole, *case))


def wrongly_weighted(group, rank, kind):
    """What a rank is told of weights that the second one alone has, or has wrong."""
    times = {"on one rank": None if rank == 0 else torch.ones(len(X) - FIRST)}.get(kind, split(TIMES, rank, FIRST))
    if rank and kind == "negative":
        times = times.index_fill(0, torch.tensor([3]), -1.0)
    with pytest.raises(ValueError, match="weight") as caught:
        (Gibbs(scan="slice") if kind == "fractions" else SVI()).fit(
            DPM(), split(X, rank, FIRST), sample_weight=times, group=group
        )
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("on one rank", "Ranks differ in the sample_weight: rank 0 has none, rank 1 has a weight for each row"),
        ("negative", r"Rank 1 of 2 cannot begin: sample_weight is -1.0 in row 3"),
        ("fractions", r"Rank 0 of 2 cannot begin: sample_weight is 0.5 in row 0; Gibbs takes whole numbers"),
    ],
)
def test_wrong_weights_are_refused_on_all_ranks(two_ranks, kind, match) -> None:
    first, second = two_ranks(wrongly_weighted, kind)
    assert first == second
    assert first.startswith(match)


def spoiled(group, rank, kind):
    """A refusal of rows that differ from rank to rank."""
    rows, model = split(X, rank, FIRST), DPM()
    if rank and kind == "a NaN":
        rows = rows.index_fill(0, torch.tensor([3]), torch.nan)
    if rank and kind == "other columns":
        rows = rows[:, :2]
    if rank and kind == "another version":
        together.release = "0.0.1"
    if rank and kind == "another model":
        model = DPM(truncation=7)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the caller looks)
        SVI(num_steps=2).fit(model, rows, group=group)
    together.release = release
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("a NaN", r"Rank 1 of 2 cannot begin: .*NaN.* row 3, column 0"),
        ("other columns", "Ranks differ in the number of columns: rank 0 has 3, rank 1 has 2"),
        ("another model", "Ranks differ in the model"),
        ("another version", r"Ranks differ in the version of regbayes: rank 0 has .*, rank 1 has 0\.0\.1"),
    ],
)
def test_all_ranks_refuse_in_one_sentence(two_ranks, kind, match) -> None:
    first, second = two_ranks(spoiled, kind)
    assert first == second
    assert re.search(match, first)


def ruled(group, rank):
    """What a rank says of a fit that the second one cannot make on several ranks."""
    with pytest.raises((NotImplementedError, ValueError)) as caught:
        SVI(rule=("gibbs", "averaging")[rank]).fit(
            InfiniteSVM(), *(split(part, rank, FIRST) for part in (X, LABELS)), group=group
        )
    return str(caught.value)


def test_a_fit_that_one_rank_refuses_ends_all(two_ranks) -> None:
    first, second = two_ranks(ruled)
    assert second.startswith("SVI of InfiniteSVM does not run on several ranks yet")
    assert first == f"Rank 1 of 2 cannot begin: {second}"


def test_a_group_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="group is 'all'; expected a process group"):
        SVI().fit(DPM(), X, group="all")


CELLS = [
    pytest.param(
        way,
        case,
        marks=[pytest.mark.nightly] if case in SLOW and way in ("small variance", "small variance, single") else [],
    )
    for way in EXACT
    for case in CASES
    if has(way, case)
]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("way", "case"), CELLS)
def test_two_ranks_find_what_one_process_does(two_ranks, way, case) -> None:
    whole = alone(EXACT[way], case)
    require_equal(two_ranks(fit, EXACT[way], case), whole)


def fit_source(group, rank, backend, case):
    """The posterior's samples and its trace, of a rank that has a source of its rows; without a group all are one's."""
    model, *both = CASES[case]
    X, y = both if group is None else (split(part, rank, FIRST) for part in both)
    posterior = backend.fit(model, rows_of(X, y), group=group)
    return posterior.samples, posterior.trace.values


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", ["DPM", "InfiniteSVM", "InfiniteSVM, regression", "DDPM of two directions"])
def test_ranks_have_a_source_of_rows_each(two_ranks, case) -> None:
    """Steps that see a block of each rank are those of one process that sees both; ranks may have other numbers of
    blocks, and have the same components all the same."""
    backend = SVI(num_steps=8, batch_size=len(X))
    require_equal(two_ranks(fit_source, backend, case), fit_source(None, 0, backend, case))
    (first, trace), (second, other) = two_ranks(fit_source, backend.replace(num_steps=12, batch_size=7), case)
    assert torch.equal(trace, other)
    assert (first["assignments"].shape, second["assignments"].shape) == ((1, FIRST), (1, len(X) - FIRST))
    assert first["num_seen"].item() == len(X)
    for name in first.keys() - {"assignments"}:
        assert torch.equal(first[name], second[name]), name


def defaults_of(group, rank, cases):
    """Models with their defaults from rows that are all of the first rank."""
    found = []
    for case in cases:
        model, *rows = CASES[case]
        with among(Ranks(group)):
            found.append(repr(model.resolve(*(split(part, rank, len(X)) for part in rows))))
    return found


def test_defaults_are_those_of_all_rows_where_a_rank_has_none(two_ranks) -> None:
    cases = [case for case in CASES if case.startswith(("DPM", "InfiniteSVM", "DDPM"))]
    assert two_ranks(defaults_of, cases) == 2 * [[repr(CASES[case][0].resolve(*CASES[case][1:])) for case in cases]]


def bad_source(group, rank, which):
    """What is said of an infinite entry of one rank, beyond the rows by which ranks compare."""
    rows, labels = torch.randn(1200, 2), torch.arange(1200.0) % 2
    (rows[:, 0] if which == "row" else labels)[1100] = torch.inf if rank else 0.0
    try:
        SVI(num_steps=2, batch_size=100).fit(InfiniteSVM(), rows_of(rows, labels), group=group)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("which", ["row", "label"])
def test_a_bad_source_of_one_rank_is_refused_on_all(two_ranks, which) -> None:
    for said in two_ranks(bad_source, which):
        assert said.startswith("Rank 1 of 2 cannot begin: block 11 of the array: ")


def shorter_source(group, rank, folder):
    """What is said of a file of one rank that is written anew, with fewer rows, while a fit goes on."""
    path, advance = folder / f"{rank}.parquet", Sweeps.advance

    def write(number):
        pq.write_table(pa.table({"a": torch.arange(float(number)).numpy() % 7}), path)

    def cut(self, chain, *others):
        if chain.step == 3 and rank:
            write(20)
        advance(self, chain, *others)

    write(30 + rank)
    Sweeps.advance = cut
    try:
        SVI(num_steps=9, batch_size=8).fit(DPM(truncation=3), rows_of(path), group=group)
    except ValueError as error:
        return str(error)
    finally:
        Sweeps.advance = advance


def test_a_source_that_gets_shorter_on_one_rank_is_named_on_all(two_ranks, tmp_path) -> None:
    first, second = two_ranks(shorter_source, tmp_path)
    assert first == second
    assert first.startswith(f"Rank 1 of 2 cannot go on: '{tmp_path}/1.parquet' ")


def turns_of(group, rank):
    """What two ranks make of tensors that they change in turns."""
    shared = [torch.tensor([1, 2]), torch.tensor(1)]
    with among(Ranks(group)):
        in_turns(lambda: [part.mul_(3).add_(rank) for part in shared], shared)
    return [part.tolist() for part in shared]


def test_one_rank_changes_what_the_one_before_has_changed(two_ranks) -> None:
    assert two_ranks(turns_of) == 2 * [[[10, 19], 10]]


def sums_for_later(group, rank):
    """Sums that wait for an exchange, one that nobody else brings along, and the number of exchanges of both."""
    with among(Ranks(group)), watched() as exchanges:
        pair, most = Later(torch.tensor([1, rank])), largest_later(torch.tensor([[-5.0, -1.0 - rank]]))
        none = largest_later(largest_of(torch.zeros(0) if rank else torch.full((1,), -torch.inf)))
        with among(None):
            own = Later(torch.tensor(rank))()
        total = all_sum(torch.tensor(2, dtype=torch.int32))
        brought, last = len(exchanges), Later(torch.tensor(1 + rank))
        found = [pair(), most(), none(), total, last(), last()]
    assert (total.dtype, own, most().dtype) == (torch.int32, rank, torch.float32)
    return [each.tolist() for each in found], brought, [exchange.split(": ")[1] for exchange in exchanges]


def test_what_is_needed_later_comes_with_the_next_sum(two_ranks) -> None:
    assert two_ranks(sums_for_later) == 2 * [
        ([[2, 1], [[-5.0, -1.0]], -torch.inf, 4, 3, 3], 1, [f"({size},) of torch.float64" for size in (9, 1)])
    ]


def test_of_equal_values_those_of_the_first_rows_are_on_top(device) -> None:
    values = torch.tensor([1.0, 3.0, 2.0, 3.0, 3.0, 2.0], device=device)
    assert [top(values, count).tolist() for count in (0, 2, 5)] == [[], [1, 3], [1, 3, 4, 2, 5]]


def draws_of(group, rank):
    """Numbers of a rank's own stream, and those of the shared one after it."""
    generator = torch.Generator().manual_seed(3)
    with among(Ranks(group)):
        own = torch.rand(4, generator=own_stream(generator))
    return own, torch.rand(4, generator=generator)


def test_own_streams_differ_and_the_shared_one_does_not(two_ranks) -> None:
    (first, shared), (second, other) = two_ranks(draws_of)
    assert not torch.isin(first, second).any()
    assert torch.equal(shared, other)


# -- Gibbs: ranks have the same components, and the law is that of one process -----------------------------------------

NO_COMPONENTS = "LDA", "MedLDA", "features", "tasks"
LABELS_OF = "classifiers", "label_hyperparameters", "label_means"
SHARED = (
    "hyperparameters",
    "log_mixture",
    "weights",
    "log_joint",
    "unseen_weights",
    "concentration",
    "log_transitions",
    *LABELS_OF,
)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith(NO_COMPONENTS)])
@pytest.mark.parametrize("scan", ["auto", "blocked"])
def test_ranks_of_gibbs_have_the_same_components(two_ranks, scan, case) -> None:
    (first, trace), (second, other) = two_ranks(fit, Gibbs(6, 6, scan=scan, num_generative=2), case)
    assert torch.equal(trace, other)
    for name in set(SHARED) & first.keys():
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=0, equal_nan=True)
    model, X, *others = CASES[case]
    family, chi = model.prepare(X, *others)[0].likelihood, first["hyperparameters"]
    labels, seen = torch.cat([first["assignments"], second["assignments"]], 1), ~X.isnan().any(1)
    for draw, own in enumerate(labels):  # the components are those of the rows of both ranks
        K = model.truncation if scan == "blocked" else int(own.max()) + 1
        sums = family.summed_statistics(X[seen], own[seen], K)
        torch.testing.assert_close(chi[draw, :K], family.prior() + sums, rtol=1e-9, atol=1e-9)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("features")])
@pytest.mark.parametrize("options", [{"scan": "auto"}, {"scan": "blocked"}, {"scan": "slice", "init": "random"}])
def test_ranks_of_gibbs_have_the_same_features(two_ranks, options, case) -> None:
    (first, trace), (second, other) = two_ranks(fit, Gibbs(6, 6, **options), case)
    assert torch.equal(trace, other)
    for name in first.keys() - {"features"}:
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=0, equal_nan=True)
    if options["scan"] != "blocked":  # features that a row of either rank has, as often as all rows have them
        counts = torch.cat([first["features"], second["features"]], 1).sum(1, dtype=torch.float64)
        expected = torch.where(counts > 0, counts.log() - (len(X) + 1 - counts).log(), -torch.inf)
        torch.testing.assert_close(first["log_odds"], expected)


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("tasks")])
def test_ranks_of_gibbs_have_the_same_projection(two_ranks, case) -> None:
    (first, trace), (second, other) = two_ranks(fit, Gibbs(6, 6), case)
    assert torch.equal(trace, other)
    assert first["features"].shape == (6, X.shape[1], CASES[case][0].truncation)
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=0, equal_nan=True)


@dataclass
class Split:
    """A backend that is two ranks, as `check_kernel` takes it; the first has two rows."""

    backend: Any

    def truncation_of(self, model) -> str:
        return self.backend.truncation_of(model)

    def fit(self, model, X, y=None, *, lengths=None):
        """The posterior of the first rank, with the assignments of both."""
        fit = self.backend.fit
        first, second = on_threads(lambda rank, group: fit(model, split(X, rank, 2), split(y, rank, 2), group=group))
        assert torch.equal(first.trace.values, second.trace.values)
        joined = torch.cat([first.samples["assignments"], second.samples["assignments"]], 1)
        samples = first.samples | {"assignments": joined}
        return SimpleNamespace(model=first.model, trace=first.trace, samples=samples, backend=self.backend)


FEW = torch.tensor([[-1.6], [-0.7], [0.3], [0.9], [1.8]], dtype=torch.float64)
TINY = {
    "DPM": (DPM(truncation=3), None),
    "InfiniteSVM": (InfiniteSVM(truncation=3), torch.tensor([0, 1, -1, -1, -1])),
}


def truncation_warnings(group, rank):
    """Warnings about a draw that uses both features, one on each rank, and a draw that does not."""
    bits = torch.eye(2, dtype=torch.uint8)
    with among(Ranks(group)), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn_if_all_used([{"features": bits[rank : rank + 1]}, {"features": bits[:1]}], InfiniteLatentSVM(truncation=2))
    return [str(each.message)[:45] for each in told]


def test_features_in_use_are_those_of_all_ranks(two_ranks) -> None:
    assert two_ranks(truncation_warnings) == 2 * [["All 2 features are in use in 1 of 2 draws, so"]]


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:All 3 components are occupied")
@pytest.mark.parametrize("case", TINY)
@pytest.mark.parametrize("scan", ["slice", "blocked"])
def test_two_ranks_draw_from_the_posterior(monkeypatch, scan, case) -> None:
    monkeypatch.setattr(together, "meeting", nullcontext)
    model, y = TINY[case]
    backend = Gibbs(by_day(600, 2), 50, scan=scan, split_merge=1, num_generative=2, progress=False)
    check_kernel(Split(backend), model, FEW, y)
