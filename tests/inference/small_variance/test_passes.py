"""Small variance over a source of rows: in passes over its blocks, as one fit of all rows in memory."""

from __future__ import annotations

import itertools

import pytest
import torch
from two_ranks import on_threads

from regbayes.inference import SmallVariance, rows_of
from regbayes.inference.distributed import collectives, passes
from regbayes.inference.distributed.collectives import all_largest, all_sum, each, once, own_draws, span
from regbayes.inference.running.sweeps import Sweeps
from regbayes.inference.small_variance import partition, penalty
from regbayes.models import DDPM, DPM, CrammerSinger, InfiniteSVM, Logistic
from regbayes.models.sums import among

N, SIZE, D = 11_000, 4000, 3
STREAM = torch.Generator().manual_seed(0)
CENTERS = 2 * torch.randn(5, D, generator=STREAM, dtype=torch.float64)
SLOPES = torch.randn(5, D, generator=STREAM, dtype=torch.float64)
PLACE = torch.randint(5, (N,), generator=STREAM)
X = CENTERS[PLACE] + torch.randn(N, D, generator=STREAM, dtype=torch.float64)
Y = (((SLOPES[PLACE] * X).sum(1) + 0.5 * torch.randn(N, generator=STREAM, dtype=torch.float64)) > 0).long()


def source_of(X, y=None, size=SIZE):
    parts = zip(X.split(size), [None] * N if y is None else y.split(size), strict=False)
    blocks = [(rows,) if values is None else (rows, values) for rows, values in parts]
    return rows_of(blocks.__getitem__, num_blocks=len(blocks))


LONG = "DPM, restarts", "InfiniteSVM, logistic"
CASES = {
    "DPM": (SmallVariance(), DPM(), None),
    "DPM, single": (SmallVariance(creation="single", penalty=40.0), DPM(), None),
    "DPM, restarts": (SmallVariance(num_restarts=2, max_steps=6, num_jobs=1), DPM(), None),
    "InfiniteSVM": (SmallVariance(tolerance=0.02, max_steps=9), InfiniteSVM(), Y),
    "InfiniteSVM, logistic": (SmallVariance(tolerance=0.05, max_steps=9), InfiniteSVM(loss=Logistic()), Y),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.nightly if case in LONG else ()) for case in CASES]
)
def test_passes_find_what_a_fit_in_memory_does(case) -> None:
    backend, model, y = CASES[case]
    whole, found = backend.fit(model, X, y), backend.fit(model, source_of(X, y))
    assert found.samples.keys() == whole.samples.keys()
    assert torch.equal(found.samples["assignments"], whole.samples["assignments"])
    for name in whole.samples:
        torch.testing.assert_close(found.samples[name], whole.samples[name], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.trace.values, whole.trace.values, rtol=1e-10, atol=0.0)
    assert found.num_components > 1
    assert (found.trace.values.diff() <= 1e-10 * found.trace.values[:, :1].abs()).all()


def test_the_penalty_comes_from_the_rows_that_a_fit_in_memory_draws(monkeypatch) -> None:
    for where in (penalty, partition):
        monkeypatch.setattr(where, "MOST_ROWS", 2000)
    backend = SmallVariance(max_steps=3, seed=3)
    found, whole = backend.fit(DPM(), source_of(X)), backend.fit(DPM(), X)
    torch.testing.assert_close(found.samples["penalty"], whole.samples["penalty"], rtol=1e-10, atol=0.0)


def test_blocks_whose_rows_have_streams_of_their_own_find_the_same(monkeypatch) -> None:
    monkeypatch.setattr(collectives, "_BLOCK", 700)
    backend = SmallVariance(num_restarts=2, max_steps=4, num_jobs=1)
    whole, found = backend.fit(DPM(), X), backend.fit(DPM(), source_of(X))
    assert torch.equal(found.samples["assignments"], whole.samples["assignments"])


@pytest.mark.parametrize("total", [8, 29, 70, 71])
def test_draws_for_the_rows_of_all_do_not_depend_on_who_has_them(cpu_generator, monkeypatch, total) -> None:
    monkeypatch.setattr(collectives, "_BLOCK", 10)
    asked, before = list[int](), cpu_generator.get_state()

    def draw(number, stream):
        asked.append(number)
        return torch.rand(number, 2, generator=stream)

    def of(start, stop):
        cpu_generator.set_state(before)
        return own_draws(stop - start, draw, cpu_generator, (start, total))

    whole, after = of(0, total), cpu_generator.get_state()
    assert whole.unique().numel() == 2 * total
    for start, stop in itertools.pairwise([0, total // 3, total // 2, total // 2, total, total]):
        asked.clear()
        assert torch.equal(of(start, stop), whole[start:stop])
        assert sum(asked) <= stop - start + 18
        assert torch.equal(cpu_generator.get_state(), after)


def test_few_rows_of_a_source_are_fitted_as_a_tensor() -> None:
    backend = SmallVariance()
    found, whole = backend.fit(DPM(), rows_of(X[:300])), backend.fit(DPM(), X[:300])
    assert torch.equal(found.samples["assignments"], whole.samples["assignments"])


def test_functions_over_blocks_have_sums_and_draws_of_all_rows(cpu_generator) -> None:
    parts, calls = [torch.tensor([1.0, 2.0]), torch.tensor([5.0])], [0, 0]
    starts = [0, 2]
    before = cpu_generator.get_state()
    whole = torch.rand(3, generator=cpu_generator), torch.rand(2, generator=cpu_generator)
    after = cpu_generator.get_state()
    cpu_generator.set_state(before)

    def work(place):
        def counted(power):
            calls[power - 1] += 1
            return all_sum((parts[place] ** power).sum())

        noise = own_draws(len(parts[place]), lambda n, stream: torch.rand(n, generator=stream), cpu_generator)
        sums = each([lambda: counted(1), lambda: counted(2)])
        shared = once(lambda: torch.rand(2, generator=cpu_generator) + 0 * all_sum(sums[0]))
        return noise, torch.stack(sums), shared, all_largest(parts[place].max())

    found = passes.over_blocks(lambda: range(2), 2, work, cpu_generator)
    for place, (noise, sums, shared, largest) in enumerate(found):
        assert torch.equal(noise, whole[0][starts[place] :][: len(parts[place])])
        assert sums.tolist() == [8.0, 30.0]
        assert largest == 5.0
        assert torch.equal(shared, whole[1])
    assert calls == [3, 3]  # on each block, and once more when the sum is known
    assert torch.equal(cpu_generator.get_state(), after)


FEWEST = {
    "DPM": (DPM(), None, 6),
    "hinge": (InfiniteSVM(), Y[:2500], 10),
    "logistic": (InfiniteSVM(loss=Logistic()), Y[:2500], 9),
}


@pytest.mark.parametrize("case", FEWEST)
def test_a_sweep_that_does_not_search_takes_few_passes(monkeypatch, case) -> None:
    """These numbers go down alone."""
    model, y, most = FEWEST[case]
    passes_of, turn, advance = [], passes.Blocks.turn, Sweeps.advance

    def counted(self):
        if passes_of:
            passes_of[-1] += 1
        turn(self)

    def begin(self, *arguments):
        passes_of.append(1)
        advance(self, *arguments)

    monkeypatch.setattr(partition, "_FEW", 100)
    monkeypatch.setattr(passes.Blocks, "turn", counted)
    monkeypatch.setattr(Sweeps, "advance", begin)
    backend = SmallVariance(penalty=400.0, num_restarts=1, max_steps=6, merge=False)
    backend.fit(model, source_of(X[:2500], y, size=600))
    assert 1 < min(passes_of) <= most


FIRST = 1700  # rows of the first of two ranks
SPLIT = {
    "DPM": (SmallVariance(num_components=3, num_restarts=2, max_steps=3), DPM(), None),
    "DPM, single": (SmallVariance(creation="single", penalty=40.0, num_restarts=1, max_steps=2), DPM(), None),
    "InfiniteSVM": (SmallVariance(penalty=400.0, num_restarts=1, max_steps=2), InfiniteSVM(), Y[:2500]),
}


def fit_split(group, rank, backend, model, y):
    """Samples, trace, and labels of all rows, of a rank with a source of 3 or 2 blocks; the penalty is of 900 rows."""
    own = slice(0, FIRST) if rank == 0 else slice(FIRST, 2500)
    source = source_of(X[own], None if y is None else y[own], size=600)
    kept = partition._FEW, penalty.MOST_ROWS
    partition._FEW, partition.MOST_ROWS, penalty.MOST_ROWS = 100, 900, 900
    try:
        found = backend.fit(model, source, group=group)
        return found.samples, found.trace.values, found.gather().samples["assignments"]
    finally:
        partition._FEW, penalty.MOST_ROWS = kept
        partition.MOST_ROWS = penalty.MOST_ROWS


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.nightly if case == "DPM" else ()) for case in SPLIT]
)
def test_ranks_have_blocks_each(two_ranks, monkeypatch, case) -> None:
    """One process with a tensor of all rows is the judge; what ranks exchange is one sum a pass."""
    for where in (penalty, partition):
        monkeypatch.setattr(where, "MOST_ROWS", 900)
    backend, model, y = SPLIT[case]
    whole = backend.fit(model, X[:2500], y)
    (first, trace, all_first), (second, other, all_second) = two_ranks(fit_split, backend, model, y)
    assert torch.equal(trace, other)
    torch.testing.assert_close(trace, whole.trace.values, rtol=1e-8, atol=0.0)
    assert whole.num_components > 1
    for rows in (torch.cat([first["assignments"], second["assignments"]], 1), all_first, all_second):
        assert torch.equal(rows, whole.samples["assignments"])
    for name in whole.samples.keys() - {"assignments"}:
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], whole.samples[name], rtol=1e-8, atol=1e-8)


def changed(group, rank):
    """What is said of a source of the second rank that gives other rows after some passes."""
    turns = itertools.count()

    def block(place):
        return (X[SIZE * place : SIZE * (place + 1)] + (rank == 1 and next(turns) > 12),)

    try:
        SmallVariance(penalty=40.0).fit(DPM(), rows_of(block, num_blocks=3), group=group)
    except ValueError as error:
        return str(error)


def test_a_source_that_changes_on_one_rank_is_named_on_all(two_ranks) -> None:
    first, second = two_ranks(changed)
    assert first == second
    assert first.startswith("Rank 1 of 2 cannot go on: the function gives other rows in block 0 of a later pass.")


def test_ranks_with_other_numbers_of_blocks_have_the_same_sums() -> None:
    parts = [[1.0, 7.0, 2.0], [5.0]]

    def task(rank, those):
        own = parts[rank]

        def blocks():
            yield from (all_sum(torch.tensor(value)) for value in own)  # nothing of other ranks: these are not there

        def work(value):
            return float(all_sum(value)), float(all_largest(value)), span(2)

        with among(those):
            return passes.over_blocks(blocks, len(own), work, torch.Generator())

    first, second = on_threads(task)
    assert first + second == [(15.0, 7.0, (start, 8)) for start in (0, 2, 4, 6)]


def test_what_passes_do_not_serve_is_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"of DDPM reads no source of rows: its components repel; or SVI\(\)"):
        SmallVariance().fit(DDPM(), source_of(X))
    with pytest.raises(NotImplementedError, match=r"reads no source of rows: take loss=Hinge\(\)"):
        SmallVariance().fit(InfiniteSVM(loss=CrammerSinger()), source_of(X, Y))
    with pytest.raises(NotImplementedError, match="reads no source of rows: leave init out"):
        SmallVariance(init=PLACE).fit(DPM(), source_of(X))
    with pytest.raises(ValueError, match="come with the blocks"):
        SmallVariance().fit(InfiniteSVM(), source_of(X, Y), Y)
    turns = itertools.count()

    def shuffled(number):
        return (X[SIZE * number : SIZE * (number + 1)] + (next(turns) > 6),)

    with pytest.raises(ValueError, match="gives other rows in block 0 of a later pass"):
        SmallVariance().fit(DPM(), rows_of(shuffled, num_blocks=3))
