"""What surrounds a fit among ranks: files that any other ranks go on from, Ctrl-C, and ranks that end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import warnings
from contextlib import closing
from itertools import accumulate, pairwise

import killed_ranks
import pytest
import torch
from two_ranks import TwoRanks, split

from regbayes.inference import SVI, FitInterrupted, Gibbs, Posterior, SmallVariance
from regbayes.inference.running import shards
from regbayes.inference.running.sweeps import Sweeps
from regbayes.models import (
    BNMC,
    DDPM,
    DIH,
    IHMM,
    InfiniteLatentSVM,
    InfiniteSVM,
    LinearGaussian,
    Logistic,
    MedLDA,
    MultiTaskInfiniteLatentSVM,
)
from regbayes.models.ranks import RankLost, Ranks

pytestmark = pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
FIRST = 23  # rows of the first rank; it has the labels
STREAM = torch.Generator().manual_seed(3)
PLACE = torch.arange(60) % 4
X = 4 * torch.eye(4, 3, dtype=torch.float64)[PLACE] + torch.randn(60, 3, generator=STREAM, dtype=torch.float64)
Y = torch.where(torch.arange(60) < FIRST, PLACE % 3, -1)
MODEL = InfiniteSVM(truncation=6)
SHORT = {
    "small variance": SmallVariance(num_components=4, num_restarts=2, max_steps=2),
    "SVI": SVI(num_steps=3),
    "SVI without responsibilities": SVI(num_steps=3),
    "SVI in minibatches": SVI(num_steps=8, batch_size=20, num_full_steps=0),
    "slice": Gibbs(4, 2, scan="slice", num_generative=2),
    "blocked": Gibbs(4, 2, scan="blocked", num_generative=2),
    "beam": Gibbs(4, 2, scan="beam", num_generative=2),
    "label sets": Gibbs(4, 2, num_generative=2),
    "features": Gibbs(4, 2),
    "repelling": Gibbs(4, 2, num_generative=2),
    "repelling states": Gibbs(4, 2, num_generative=2),
    "tasks": Gibbs(4, 2),
    "SVI of tasks": SVI(num_steps=3),
    "SVI of features": SVI(num_steps=3),
    "small variance of tasks": SmallVariance(num_components=3, num_restarts=2, max_steps=1),
    "small variance of features": SmallVariance(penalty=30.0, num_restarts=1, max_steps=1),
    "topics": Gibbs(4, 2, num_generative=2),
    "SVI of topics": SVI(num_steps=3),
}
SETS = torch.stack([Y == 0, Y > 0], 1).double().masked_fill((Y < 0).unsqueeze(1), torch.nan)
BITS = torch.stack([Y == 0, Y == 1], 1).double().masked_fill((Y < 0).unsqueeze(1), torch.nan)
TOPICS, WORDS = MedLDA(num_topics=4), X.abs().round()
TASKS = MultiTaskInfiniteLatentSVM(LinearGaussian(), Logistic(), truncation=4), BITS
OTHERS = {  # models of these ways, and their y
    "beam": (IHMM(truncation=6), None),
    "label sets": (BNMC(joint="and", truncation=6), SETS),
    **dict.fromkeys(("features", "SVI of features"), (InfiniteLatentSVM(truncation=4), Y)),
    "small variance of features": (InfiniteLatentSVM(loss=Logistic(), truncation=4), Y.clamp(max=1)),
    **{way: TASKS for way in ("tasks", "SVI of tasks", "small variance of tasks")},
    "repelling": (DDPM(truncation=6), None),
    "repelling states": (DIH(truncation=6), None),
    **dict.fromkeys(("topics", "SVI of topics"), (TOPICS, Y)),
}
LENGTHS = [11, 12, 7, 11, 19]  # which end where ranks are split below
ROWS = {"assignments", "responsibilities", "features"}
LONG = {
    "small variance": {"max_steps": 5},
    "SVI": {"num_steps": 15},
    "SVI without responsibilities": {"num_steps": 15},
    "SVI in minibatches": {"num_steps": 12},
    "slice": {"num_samples": 8},
    "blocked": {"num_samples": 8},
    "beam": {"num_samples": 8},
    "label sets": {"num_samples": 8},
    "features": {"num_samples": 8},
    "repelling": {"num_samples": 8},
    "repelling states": {"num_samples": 8},
    "tasks": {"num_samples": 8},
    "SVI of tasks": {"num_steps": 15},
    "small variance of tasks": {"max_steps": 100},
    "SVI of features": {"num_steps": 15},
    "small variance of features": {"max_steps": 3},
    "topics": {"num_samples": 8},
    "SVI of topics": {"num_steps": 15},
}


def fit(group, rank, way, first=FIRST, grown=False, **files):
    """The posterior of a rank; `first`: rows of the first one."""
    from regbayes.inference.svi import sums

    if "without" in way:
        sums.MOST_KEPT = 1
    try:
        backend = SHORT[way].replace(**LONG[way] if grown else {})
        model, y = OTHERS.get(way, (MODEL, Y))
        if isinstance(model, IHMM | DIH):
            ends = list(accumulate(LENGTHS))
            files["lengths"] = split(LENGTHS, rank, ends.index(first) + 1)
        rows = WORDS if model is TOPICS else X
        return backend.fit(model, split(rows, rank, first), split(y, rank, first), group=group, **files)
    finally:
        sums.MOST_KEPT = 2**24


def alone(way, grown=False, **files):
    """The posterior of one process."""
    return fit(None, 0, way, len(X), grown, **files)


def joined(posteriors, most=None):
    """The samples of ranks, with the rows of all; of the first draws alone."""
    names = (
        set() if isinstance(posteriors[0].model, MultiTaskInfiniteLatentSVM) else ROWS & posteriors[0].samples.keys()
    )
    rows = {name: [each.samples[name][:most] for each in posteriors] for name in names}
    return posteriors[0].samples | {name: torch.cat(parts, 1) for name, parts in rows.items()}


def require_close(posteriors, whole):
    """Up to the order of sums, ranks have found what others, or one process, did."""
    torch.testing.assert_close(posteriors[0].trace.values, whole[0].trace.values, rtol=1e-8, atol=0.0)
    expected = joined(whole)
    for name, found in joined(posteriors).items():
        size = float(expected[name].abs().nan_to_num(posinf=0.0, neginf=0.0).max()) if found.numel() else 0.0
        torch.testing.assert_close(found, expected[name], rtol=1e-8, atol=1e-8 * size)


BY_NIGHT = "small variance", "small variance of tasks"  # of sources a quick one is tested by day


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.nightly] if way in BY_NIGHT else []) for way in SHORT]
)
def test_any_ranks_go_on_from_the_checkpoint_of_any_others(two_ranks, way, tmp_path) -> None:
    file, one = tmp_path / "chain.pt", tmp_path / "one.pt"
    two_ranks(fit, way, FIRST, False, checkpoint=file)
    alone(way, checkpoint=one)
    whole = two_ranks(fit, way, FIRST, True)
    same = two_ranks(fit, way, FIRST, True, resume=file)
    for resumed, long in zip(same, whole, strict=True):
        for name, value in long.samples.items():
            torch.testing.assert_close(resumed.samples[name], value, rtol=0, atol=0, equal_nan=True)
    others = [two_ranks(fit, way, 41, True, resume=file), [alone(way, True, resume=file)]]
    from_one = two_ranks(fit, way, 30, True, resume=one)
    if isinstance(SHORT[way], Gibbs):  # what was drawn before is there, whoever has the rows
        for posteriors, before in (*((other, whole) for other in others), (from_one, [alone(way)])):
            kept = [joined(each, SHORT[way].num_samples) for each in (posteriors, before)]
            for name in ROWS & kept[0].keys():
                one, other = (each[name][: SHORT[way].num_samples].long() for each in kept)
                most = min(one.shape[-1], other.shape[-1])  # more draws may have more features
                assert torch.equal(one[..., :most], other[..., :most])
                assert not one[..., most:].any() | other[..., most:].any()
            assert posteriors[0].num_draws == [8]
    else:
        for posteriors in (*others, from_one):
            require_close(posteriors, whole)


def test_a_checkpoint_of_ranks_has_one_file_of_each_and_no_others(two_ranks, tmp_path) -> None:
    file, backend = tmp_path / "chain[1].pt", SHORT["slice"]
    for _ in range(2):
        two_ranks(fit, "slice", FIRST, False, checkpoint=file, checkpoint_every=0.0)
        names = sorted(path.name for path in tmp_path.iterdir())
        assert len(names) == 3
        assert [name[-7:] for name in names[1:]] == ["0-of-2", "1-of-2"] or names[1].endswith("0-of-2")
    (tmp_path / names[2]).unlink()
    with pytest.raises(FileNotFoundError, match=r"There is no file .*1-of-2"):
        backend.fit(MODEL, X, Y, resume=file)
    for said in two_ranks.outcomes(fit, "slice", FIRST, False, resume=file):
        assert isinstance(said, ValueError)
        assert "Rank 1 of 2 cannot begin: There is no file" in str(said)


def test_another_fit_is_refused_on_all_ranks(two_ranks, tmp_path) -> None:
    file = tmp_path / "chain.pt"
    SHORT["SVI"].fit(MODEL, X.index_fill(0, torch.tensor([50]), 1.5), Y, checkpoint=file)
    for said in two_ranks.outcomes(fit, "SVI", FIRST, False, resume=file):
        assert "was written by another fit: X has other rows than the fit of the checkpoint. Resume with" in str(said)
    for said in two_ranks.outcomes(fit, "SVI", FIRST, False, resume=tmp_path / "none.pt"):
        assert "Rank 0 of 2 cannot begin: resume is " in str(said)


def pressed(group, rank, sweep, **files):
    """A fit in which the second rank alone hears of Ctrl-C."""
    advance = Sweeps.advance

    def press(self, chain, *others):
        if rank and chain.step == sweep:
            signal.raise_signal(signal.SIGINT)
        advance(self, chain, *others)

    Sweeps.advance = press
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = fit(group, rank, "slice", **files)
        return found.num_draws, [str(each.message) for each in warned if each.category is FitInterrupted]
    finally:
        Sweeps.advance = advance


def test_ctrl_c_on_one_rank_ends_all_after_the_same_sweep(two_ranks, tmp_path) -> None:
    file = tmp_path / "chain.pt"
    first, second = two_ranks(pressed, 3, checkpoint=file)
    assert first == second == ([2], ["Interrupted after step 4 of 6, chain 1 of 1; returning what was drawn so far."])
    for resumed, whole in zip(two_ranks(fit, "slice", resume=file), two_ranks(fit, "slice"), strict=True):
        assert torch.equal(resumed.samples["assignments"], whole.samples["assignments"])


def saved(group, rank, way, path):
    """A posterior that a rank saved, and one that has the rows of all."""
    posterior = fit(group, rank, way)
    posterior.metadata["rank"] = rank
    posterior.save(path)
    return posterior, posterior.gather()


def saved_twice(group, rank, path, fails):
    """What a rank is told of a second `save` in which one rank cannot write one of the files."""
    fit(group, rank, "SVI").save(path)
    write, names = shards.write_file, {"first": "posterior.pt", "second": ".1-of-2"}

    def fail(target, *others):
        if os.fspath(target).endswith(names[fails]):
            raise OSError(f"no space for {os.path.basename(target)}")
        write(target, *others)

    shards.write_file = fail
    try:
        with pytest.raises(OSError, match="no space for") as caught:
            fit(group, rank, "SVI in minibatches").save(path)
    finally:
        shards.write_file = write
    return str(caught.value), repr(Posterior.load(path).backend)


@pytest.mark.parametrize("fails", ["first", "second"])
def test_a_posterior_that_one_rank_cannot_save_is_told_by_all_and_the_older_one_stays(two_ranks, fails, tmp_path):
    path = tmp_path / "posterior.pt"
    first, second = two_ranks(saved_twice, path, fails)
    assert first[0] == second[0]
    assert first[1] == second[1] == repr(SHORT["SVI"])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", ["slice", *(way for way in OTHERS if way != "SVI of topics")])
def test_posteriors_of_ranks_are_gathered_and_saved_by_shards(two_ranks, way, tmp_path) -> None:
    (first, all_first), (second, all_second) = two_ranks(saved, way, tmp_path / "posterior.pt")
    (name,) = ROWS & first.samples.keys()
    whole = joined([first, second])[name]
    read = Posterior.load(tmp_path / "posterior.pt")
    for found in (all_first, all_second, read):
        assert torch.equal(found.samples[name], whole)
        assert found.trace.values.tolist() == first.trace.values.tolist()
        assert found.shard is None
    assert read.metadata == {"rank": 0}
    if way == "slice":
        assert read.predict(X[:5]).shape == (5,)
    read.save(tmp_path / "posterior.pt")  # by one process, in place of three files
    assert torch.equal(Posterior.load(tmp_path / "posterior.pt").samples[name], whole)


# -- ranks that end ----------------------------------------------------------------------------------------------------


def killed(group, rank):
    """A fit whose second rank ends in its third sweep."""
    advance = Sweeps.advance

    def fall(self, chain, *others):
        if rank and chain.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        advance(self, chain, *others)

    Sweeps.advance = fall
    fit(group, rank, "slice")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_rank_that_is_killed_is_named_at_once() -> None:
    with closing(TwoRanks()) as ranks:
        said, ended = ranks.outcomes(killed)
    assert isinstance(ended, EOFError)
    assert isinstance(said, RankLost)
    assert "Rank 1 of 2 has ended, or its machine does not answer (" in str(said)


def test_ranks_that_stand_still_are_told_from_those_that_ended(monkeypatch) -> None:
    def fails(*arguments):
        raise RuntimeError("Timed out waiting 1000ms\nat tcp")

    monkeypatch.setattr(torch.distributed, "all_gather_object", fails)
    with socket.create_server(("127.0.0.1", 0)) as door:
        address = ("127.0.0.1", door.getsockname()[1])
        those = Ranks(None, "fit", (address, address))
        vars(those).update(number=0, size=2)
        with pytest.raises(RankLost, match=r"The 2 ranks do not hear .* none of them has ended \(Timed out .*1000ms\)"):
            those.objects(1)
    with pytest.raises(RankLost, match="Rank 1 of 2 has ended"):
        those.objects(1)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("num_kills", [1, 20])
def test_kills_at_random_moments_lose_no_more_than_the_interval(two_ranks, num_kills, tmp_path) -> None:
    """Between checkpoints there is one sweep: each start goes on where the last one was, or one sweep before."""
    options = ["--standalone", "--nproc-per-node=2", f"--max-restarts={num_kills}"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, killed_ranks.__file__, tmp_path, str(num_kills)]
    settings = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # or starts read addresses of those before
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60 + 30 * num_kills, check=False, env=settings
    )
    assert ended.returncode == 0, ended.stderr
    went = [tuple(map(int, line.split())) for line in (tmp_path / "steps.txt").read_text().splitlines()]
    starts = sorted({start for start, _ in went})
    assert starts[-1] == num_kills
    assert len(starts) > num_kills / 2
    for earlier, later in pairwise(starts):
        last = max(step for start, step in went if start == earlier)
        assert min(step for start, step in went if start == later) >= last - 1
    whole = two_ranks(killed_ranks.fit, 20 + 20 * num_kills)
    found = Posterior.load(tmp_path / "posterior.pt")
    assert torch.equal(found.trace.values, whole[0].trace.values)
    assert torch.equal(found.samples["assignments"], torch.cat([each.samples["assignments"] for each in whole], 1))
