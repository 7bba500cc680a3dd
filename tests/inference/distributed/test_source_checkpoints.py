"""Fits from a source of rows that end at any step and go on from their checkpoint: bit for bit what they would be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from regbayes.inference import SVI, Posterior, RowSource, SmallVariance, rows_of
from regbayes.inference.distributed.stream import stream_points
from regbayes.inference.running.files import read_file, write_file
from regbayes.inference.running.sweeps import Sweeps
from regbayes.models import BNMC, DIH, DPM, IHMM, LDA, InfiniteLatentSVM, InfiniteSVM, MedLDA

pytestmark = pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
N, SIZE = 170, 40
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)) + 4 * RNG.integers(0, 2, (N, 1))
Y = (X[:, 0] > 2).astype(np.int64)
SETS = np.stack([Y, X[:, 1] > 2], 1).astype(float)
WORDS = np.abs(X).round()


def sequences(index: int) -> tuple[np.ndarray, list[int]]:
    return X[index * 60 : index * 60 + 60], [25, 35]


def blocks_of(X: np.ndarray, y: Any = None, sizes: tuple[int, ...] = (100, 70)) -> RowSource:
    """Rows in blocks of their own, as they must be for small variance to read so few in passes."""
    ends = np.cumsum([0, *sizes])

    def block(index: int) -> tuple[Any, Any]:
        rows = slice(ends[index], ends[index + 1])
        return X[rows], None if y is None else y[rows]

    return rows_of(block, num_blocks=len(sizes))


def few_first_rows(patch: pytest.MonkeyPatch) -> None:
    """The first rows, of which more is known, are not all of them."""
    for module in ("distributed.stream._NUM_DEFAULTS", "small_variance.partition._FEW", "svi.steps.NUM_FIRST"):
        patch.setattr(f"regbayes.inference.{module}", 30)


@pytest.fixture(autouse=True)
def _few_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    few_first_rows(monkeypatch)


STEPS = SVI(num_steps=9, batch_size=SIZE, progress=False)
SWEEPS = SmallVariance(penalty=100.0, max_steps=2, num_restarts=2, progress=False)
LONG = pytest.param("small variance of DPM", marks=pytest.mark.nightly)  # of two ranks
FITS: dict[str, tuple[Any, Any, RowSource]] = {
    "DPM": (STEPS, DPM(truncation=4), rows_of(X)),
    "InfiniteSVM": (STEPS.replace(num_restarts=2), InfiniteSVM(truncation=4), rows_of(X, Y)),
    "IHMM": (STEPS, IHMM(truncation=3), rows_of(sequences, num_blocks=2)),
    "DIH": (STEPS, DIH(truncation=3), rows_of(sequences, num_blocks=2)),
    "BNMC": (STEPS, BNMC(truncation=3), rows_of(X, SETS)),
    "BNMC, and": (STEPS, BNMC(joint="and", truncation=3), rows_of(X, SETS)),
    "features": (STEPS, InfiniteLatentSVM(truncation=3), rows_of(X, Y)),
    "features, averaging": (STEPS.replace(rule="averaging"), InfiniteLatentSVM(truncation=3), rows_of(X, Y)),
    "LDA": (STEPS, LDA(num_topics=2), rows_of(WORDS)),
    "MedLDA": (STEPS, MedLDA(num_topics=2), rows_of(WORDS, Y)),
    "MedLDA, averaging": (STEPS.replace(rule="averaging"), MedLDA(num_topics=2), rows_of(WORDS, Y)),
    "small variance of DPM": (SWEEPS, DPM(), blocks_of(X)),
    "small variance of InfiniteSVM": (SWEEPS.replace(num_restarts=1), InfiniteSVM(), blocks_of(X, Y)),
}


class Killed(Exception):
    """In place of a kill: nothing is written after it."""


@contextmanager
def killed_at(at: int) -> Iterator[None]:
    """A context in which a fit ends before its sweep of this number, among those of all of its chains."""
    advance, number = Sweeps.advance, iter(range(10**6))

    def fall(self: Sweeps, *others: Any) -> None:
        if next(number) == at:
            raise Killed
        advance(self, *others)

    Sweeps.advance = fall
    try:
        yield
    except Killed:
        pass
    finally:
        Sweeps.advance = advance
    assert next(number) == at + 1


def killed(at: int, fit: Any, *arguments: Any, **options: Any) -> None:
    """A fit that ends so, with all that it has done until then in its checkpoint."""
    with killed_at(at):
        fit(*arguments, checkpoint_every=0.0, **options)


def require_equal(found: Any, expected: Any) -> None:
    assert torch.equal(found.trace.values, expected.trace.values)
    assert found.samples.keys() == expected.samples.keys()
    for name, value in expected.samples.items():
        assert torch.equal(found.samples[name], value), name


@pytest.mark.parametrize("case", FITS)
def test_a_fit_that_is_killed_goes_on_bit_for_bit(case: str, tmp_path: Path) -> None:
    backend, model, source = FITS[case]
    file, whole = tmp_path / "chain.pt", backend.fit(model, source)
    steps = backend.max_steps if isinstance(backend, SmallVariance) else backend.num_steps
    for at in {1, steps - 1, backend.num_restarts * steps - 1}:
        killed(at, backend.fit, model, source, checkpoint=file)
        assert sum(chain["step"] for chain in read_file(file, "checkpoint")["chains"]) == at
        require_equal(backend.fit(model, source, resume=file), whole)


@pytest.mark.parametrize("kind", ["memmap", "Parquet", "loader"])
def test_files_and_loaders_are_gone_on_with(kind: str, tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X)
    pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "y": Y}), tmp_path / "rows.parquet", row_group_size=7)
    rows = DataLoader(TensorDataset(torch.as_tensor(X)), batch_size=SIZE, generator=torch.Generator())
    source = {
        "memmap": rows_of(np.load(tmp_path / "X.npy", mmap_mode="r"), Y),
        "Parquet": rows_of(tmp_path / "rows.parquet", y="y"),
        "loader": rows,
    }[kind]
    model, file = DPM(truncation=4) if source is rows else InfiniteSVM(truncation=4), tmp_path / "chain.pt"
    killed(7, STEPS.fit, model, source, checkpoint=file)
    require_equal(STEPS.fit(model, source, resume=file), STEPS.fit(model, source))


def test_a_fit_from_a_source_may_get_more_steps(tmp_path: Path) -> None:
    """Among them restarts that begin later; all of them see the same blocks."""
    _, model, source = FITS["InfiniteSVM"]
    STEPS.fit(model, source, checkpoint=tmp_path / "chain.pt")
    longer = STEPS.replace(num_steps=13, num_restarts=3)
    require_equal(longer.fit(model, source, resume=tmp_path / "chain.pt"), longer.fit(model, source))


THERE = "the fit of the checkpoint"
OTHER = X + np.where(np.arange(N) == 35, 1e-9, 0.0)[:, None]
LATE = X + np.where(np.arange(N) == 165, 0.5, 0.0)[:, None]


@pytest.mark.parametrize(
    ("case", "source", "differs"),
    [
        ("DPM", rows_of(X[:-1]), f"source 0 has 169 rows, but 170 rows in {THERE}"),
        ("DPM", rows_of(X[:, :2]), f"source 0 has 2 columns, but 3 columns in {THERE}"),
        ("DPM", rows_of(OTHER), f"source 0 has other rows than {THERE}"),
        ("DPM", blocks_of(X), f"source 0 has blocks of up to 100 rows, but blocks of up to 40 rows in {THERE}"),
        ("InfiniteSVM", rows_of(X, Y[::-1]), f"source 0 has other rows than {THERE}"),
        ("InfiniteSVM", rows_of(X, Y + 5), f"source 0 has other rows than {THERE}|model.classes has other values"),
        (
            "IHMM",
            rows_of(lambda i: (X[i * 60 : i * 60 + 60], [20, 40]), num_blocks=2),
            f"source 0 has other rows than {THERE}",
        ),
        ("small variance of DPM", blocks_of(X[:-1]), rf"X has shape \[169, 3\], but shape \[170, 3\] in {THERE}"),
        ("small variance of DPM", blocks_of(LATE), f"X has other rows than {THERE}"),
        (
            "small variance of InfiniteSVM",
            blocks_of(X, np.where(np.arange(N) < 160, Y, 1 - Y)),
            f"y has other rows than {THERE}",
        ),
    ],
)
def test_another_source_is_refused(case: str, source: RowSource, differs: str, tmp_path: Path) -> None:
    backend, model, own = FITS[case]
    killed(1, backend.fit, model, own, checkpoint=tmp_path / "chain.pt")
    with pytest.raises(ValueError, match=rf"was written by another fit: ({differs})"):
        backend.fit(model, source, resume=tmp_path / "chain.pt")


@pytest.mark.parametrize(
    ("case", "name", "change"),
    [
        ("IHMM", "transitions", lambda value: value[:-1]),
        ("InfiniteSVM", "mean", lambda value: value * torch.nan),
    ],
)
def test_a_changed_state_of_a_fit_that_ends_there_is_refused(case: str, name: str, change: Any, tmp_path: Path) -> None:
    """No sweep would notice it."""
    backend, model, source = FITS[case]
    backend.fit(model, source, checkpoint=tmp_path / "chain.pt")
    content = read_file(tmp_path / "chain.pt", "checkpoint")
    state = content["chains"][0]["state"]
    state[name] = change(state[name])
    write_file(tmp_path / "chain.pt", "checkpoint", content)
    with pytest.raises(ValueError, match=r"no state of this fit|NaN in 'weights'"):
        backend.fit(model, source, resume=tmp_path / "chain.pt")


def test_steps_read_a_block_after_the_other_wherever_they_begin() -> None:
    """Also past the end of a pass, and again after what has failed."""
    fails = set()

    def block(index: int) -> tuple[Any]:
        if index in fails:
            raise ValueError("no such file any more")
        return (X[index * 10 : index * 10 + 10],)

    _, stream = stream_points(rows_of(block, num_blocks=6), 10, DPM(), 20)
    firsts = [float(stream.at(step).X[0, 0]) for step in (0, 1, 2, 9, 6, 0)]
    assert firsts == X[[0, 10, 20, 30, 0, 0], 0].tolist()
    fails.add(1)
    with pytest.raises(ValueError, match="no such file any more"):
        stream.at(1)
    fails.clear()
    assert float(stream.at(1).X[0, 0]) == X[10, 0]


@pytest.mark.parametrize("case", FITS)
def test_a_posterior_of_a_source_is_saved_whole(case: str, tmp_path: Path) -> None:
    backend, model, source = FITS[case]
    found = backend.replace(**{"max_steps" if "small" in case else "num_steps": 1}).fit(model, source)
    found.save(tmp_path / "posterior.pt")
    read = Posterior.load(tmp_path / "posterior.pt")
    require_equal(read, found)
    assert found.gather() is found
    rows = WORDS if isinstance(model, LDA | MedLDA) else X
    if hasattr(found, "assign"):
        assert np.array_equal(read.assign(rows), found.assign(rows))
    if found.model.coding is not None:
        assert np.array_equal(read.predict(rows), found.predict(rows))


# -- among ranks -------------------------------------------------------------------------------------------------------


def of_rank(group: Any, rank: int, case: str, at: int | None = None, split: int = 70, **files: Any) -> Any:
    """The posterior of a rank, which has the rows before or after some place in blocks of its own."""
    backend, model, _ = FITS[case]
    own, sizes = (slice(0, split), (30, split - 30)) if rank == 0 else (slice(split, N), (60, N - split - 60))
    source = blocks_of(X[own], Y[own] if "InfiniteSVM" in case else None, sizes)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        few_first_rows(patch)
        if at is not None:
            stack.enter_context(killed_at(at))
        return backend.fit(model, source, group=group, checkpoint_every=0.0, **files)


@pytest.mark.parametrize("case", ["DPM", "InfiniteSVM", LONG, "small variance of InfiniteSVM"])
def test_ranks_with_sources_of_their_own_go_on_bit_for_bit(two_ranks: Any, case: str, tmp_path: Path) -> None:
    file = tmp_path / "chain.pt"
    whole = two_ranks(of_rank, case)
    two_ranks(of_rank, case, 1, checkpoint=file)
    for found, expected in zip(two_ranks(of_rank, case, resume=file), whole, strict=True):
        require_equal(found, expected)


@pytest.mark.parametrize("case", ["DPM", "InfiniteSVM"])
def test_steps_of_other_sources_are_refused_as_they_would_see_other_batches(
    two_ranks: Any, case: str, tmp_path: Path
) -> None:
    file, (backend, model, source) = tmp_path / "chain.pt", FITS[case]
    two_ranks(of_rank, case, 3, checkpoint=file)
    for said in two_ranks.outcomes(of_rank, case, None, 71, resume=file):
        assert f"was written by another fit: source 0 has 71 rows, but 70 rows in {THERE}." in str(said)
    with pytest.raises(ValueError, match=r"it had 2 source\(s\) .*, and this one has 1\. .*Resume with 2 rank"):
        backend.fit(model, source, resume=file)


def require_close(found: Any, expected: Any) -> None:
    """The same fit, by sums of other blocks."""
    torch.testing.assert_close(found.trace.values, expected.trace.values, rtol=1e-8, atol=0.0)
    for name in ("centers", "weights", "log_mixture", "penalty"):
        torch.testing.assert_close(found.samples[name], expected.samples[name], rtol=1e-8, atol=1e-8)
    shared = [each.samples["assignments"].shape[1] for each in (found, expected)]
    first, second = (each.samples["assignments"][:, : min(shared)] for each in (found, expected))
    assert torch.equal(first, second)


@pytest.mark.parametrize("case", [LONG, "small variance of InfiniteSVM"])
def test_small_variance_goes_on_among_other_ranks(two_ranks: Any, case: str, tmp_path: Path) -> None:
    """One process, two ranks, and two that split the rows elsewhere, each from the file of another."""
    one, two = tmp_path / "one.pt", tmp_path / "two.pt"
    backend, model, source = FITS[case]
    whole = backend.fit(model, source)
    two_ranks(of_rank, case, 1, checkpoint=two)
    require_close(backend.fit(model, source, resume=two), whole)
    killed(1, backend.fit, model, source, checkpoint=one)
    for file, split in ((one, 70), (two, 75)):
        first, second = two_ranks(of_rank, case, None, split, resume=file)
        assert first.trace.values.shape == second.trace.values.shape == whole.trace.values.shape
        require_close(first, whole)
        for name in ("centers", "weights"):
            assert torch.equal(first.samples[name], second.samples[name])


def saved(group: Any, rank: int, case: str, path: Path) -> Any:
    """The posterior that a rank has saved, and the one that has the rows of both."""
    posterior = of_rank(group, rank, case)
    posterior.save(path)
    return posterior, posterior.gather()


@pytest.mark.parametrize("case", ["DPM", "InfiniteSVM", LONG])
def test_posteriors_of_sources_are_gathered_and_saved_by_shards(two_ranks: Any, case: str, tmp_path: Path) -> None:
    """Of each rank the first rows, of which it says something."""
    (first, all_first), (second, all_second) = two_ranks(saved, case, tmp_path / "posterior.pt")
    whole = torch.cat([each.samples["assignments"] for each in (first, second)], 1)
    assert whole.shape == (1, 30 + 60)
    read = Posterior.load(tmp_path / "posterior.pt")
    for found in (all_first, all_second, read):
        assert torch.equal(found.samples["assignments"], whole)
        assert found.shard is None
        assert np.array_equal(found.assign(X), first.assign(X))
