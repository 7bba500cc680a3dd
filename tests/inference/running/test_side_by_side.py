"""Chains in processes of their own: the same draws, and all that a fit promises of Ctrl-C, files, errors and warnings.

A process takes seconds to start, so that a test has few of them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import Pipe, active_children
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from setups import Points, Walk, run, walk
from torch import Tensor
from torch.nn.functional import normalize

from regbayes.inference import (
    SVI,
    Chain,
    FitInterrupted,
    Gibbs,
    Kernel,
    Posterior,
    ProcessLost,
    Schedule,
    SmallVariance,
)
from regbayes.inference.compiled.clock import COMPILATION
from regbayes.inference.running import engine, processes
from regbayes.inference.running.sweeps import Sweeps
from regbayes.models import DPM, DiagonalGaussian, InfiniteSVM

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_restarts")]
DATA = Points(torch.zeros(3, 1))
KEPT = Schedule(num_steps=20, num_chains=2, num_jobs=2, keep=lambda step: step > 3)


@dataclass(frozen=True)
class Place:
    at: Tensor
    chain: int


def walking(before: Callable[[int, int], None] = lambda step, chain: None) -> Kernel:
    """A random walk whose sweeps in other processes call a function of their number and their chain's."""
    home = os.getpid()

    def sweep(state, data, model, generator, step):
        if os.getpid() != home:
            before(step, state.chain)
        return Place(walk(state, data, model, generator, step).at, state.chain)

    return Kernel(
        state=Place,
        init=lambda model, data, generator: Place(torch.zeros(()), generator.initial_seed() // 1_000_003),
        sweep=sweep,
        value=lambda state, data, model: state.at,
        draw=lambda state, data, model: {"at": state.at, "assignments": torch.arange(3)},
    )


def require_same(chains: list[Chain], schedule: Schedule = KEPT) -> None:
    """The chains are those of one process, their labels in one array."""
    alone = run(walking(), Walk(), DATA, replace(schedule, num_jobs=1, resume=None, checkpoint=None))
    for one, other in zip(chains, alone, strict=True):
        assert one.values == other.values
        assert [float(draw["at"]) for draw in one.draws] == [float(draw["at"]) for draw in other.draws]
        assert torch.equal(one.generator.get_state(), other.generator.get_state())
    assert len({draw["assignments"].untyped_storage().data_ptr() for chain in chains for draw in chain.draws}) == 1


def require_equal(one: Posterior, other: Posterior) -> None:
    assert one.num_draws == other.num_draws
    assert torch.equal(one.trace.values.nan_to_num(), other.trace.values.nan_to_num())
    assert all(torch.equal(one.samples[name], other.samples[name]) for name in one.samples)


@pytest.fixture
def rows() -> tuple[Tensor, Tensor]:
    X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X[:30] += 3
    return X, (X.sum(1) > 2).long()


@pytest.mark.parametrize(
    "backend",
    [
        Gibbs(num_samples=6, num_warmup=4, num_chains=3),
        pytest.param(SVI(num_steps=8, num_restarts=2), marks=pytest.mark.nightly),
        pytest.param(SmallVariance(num_restarts=2), marks=pytest.mark.nightly),
    ],
    ids=["gibbs", "svi", "small_variance"],
)
def test_draws_are_those_of_chains_one_after_another(backend: Any, rows: tuple[Tensor, Tensor]) -> None:
    """With a class and a function that no other process can import."""

    class Mine(DiagonalGaussian):
        pass

    shift = 0.5
    model = InfiniteSVM(Mine(), feature_map=lambda X: torch.cat([X + shift, normalize(X)], 1))
    require_equal(*(backend.replace(num_jobs=number).fit(model, *rows) for number in (1, 2)))


@pytest.mark.nightly
def test_other_processes_have_our_settings_and_tell_their_warnings() -> None:
    def tell(step, chain):
        warnings.warn(f"{torch.get_num_threads()}, {torch.get_default_dtype()}, {chain}, {step}", stacklevel=1)

    with pytest.warns(UserWarning, match=rf"^{torch.get_num_threads()}, torch.float32, \d, \d+$") as told:
        chains = run(walking(tell), Walk(), DATA, replace(KEPT, stop=lambda chain: chain.step == 7))
    places = [str(each.message).split(", ")[2:] for each in told]
    assert sorted(places, key=lambda place: place[0]) == [[str(c), str(step)] for c in range(2) for step in range(7)]
    assert [(chain.step, chain.finished) for chain in chains] == [(7, True), (7, True)]


# -- faults ------------------------------------------------------------------------------------------------------------


def faulty(step: int, chain: int) -> None:
    """Chain 2 is killed in its last step, after a report of all but one of the others; chain 3 leaves."""
    if chain == 1 and step == 17:
        time.sleep(0.6)
    if chain == 1 and step == 19:
        kill()
    if chain == 2:
        raise SystemExit(3)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly(Walk):
    """A model that no process survives reading."""

    def __reduce__(self) -> tuple[Any, ...]:
        return kill, ()


START = "ended with exit code -9 .* from step 0 of 20, with the same draws"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kernel", "model", "schedule", "messages"),
    [
        (
            walking(faulty),
            Walk(),
            replace(KEPT, num_chains=3),
            [
                "chain 2 ended with exit code -9 .* from step 18 of 20",
                "chain 3 ended with exit code 3 .* from step 0 of 20",
            ],
        ),
        (
            walking(lambda step, chain: kill()),
            Walk(),
            replace(KEPT, num_chains=5),
            [f"chain 1 {START}", f"chain 2 {START}"],
        ),
        (walking(), Deadly(), KEPT, [f"chain 1 {START}", f"chain 2 {START}"]),
    ],
    ids=["some", "all of them", "when they read"],
)
def test_chains_of_processes_that_end_go_on_from_their_last_report(kernel, model, schedule, messages) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        chains = run(kernel, model, DATA, schedule)
    require_same(chains, schedule)
    assert {each.category for each in told} == {ProcessLost}
    for each, message in zip(sorted(str(each.message) for each in told), messages, strict=True):
        assert re.search(message, each), each


def test_a_process_that_is_killed_while_it_reports_is_not_waited_for() -> None:
    """What executors do, whose pipes have other writers."""
    ours, theirs = Pipe()
    os.write(theirs.fileno(), (1000).to_bytes(4, "big") + bytes(10))
    theirs.close()
    process = SimpleNamespace(join=lambda *seconds: None, terminate=lambda: None, exitcode=-9)
    assert processes._heard(ours, {ours: process}) == processes.Report(lost=-9)


@pytest.mark.nightly
def test_a_killed_process_of_a_resumed_fit_with_a_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "chain.pt"
    run(walking(), Walk(), DATA, replace(KEPT, num_steps=7, checkpoint=file))
    with pytest.warns(ProcessLost, match=r"chain 2 .* from step 18 of 20"):
        run(walking(faulty), Walk(), DATA, replace(KEPT, resume=file, checkpoint=file, checkpoint_every=0.0))
    require_same(run(walking(), Walk(), DATA, replace(KEPT, num_jobs=1, resume=file)))


def test_an_error_of_another_process_is_the_fits_own_and_none_is_left() -> None:
    before = set(active_children())  # the ranks that serve other tests of the run

    def broken(step, chain):
        if chain == 0 and step == 2:
            raise ArithmeticError("no such number")
        time.sleep(60 * chain)

    with pytest.raises(ArithmeticError, match="no such number") as raised:
        run(walking(broken), Walk(), DATA, KEPT)
    assert "in broken" in raised.value.__notes__[0]
    assert set(active_children()) <= before


def test_ctrl_c_keeps_what_chains_have_reported_and_they_go_on_bit_for_bit(tmp_path: Path) -> None:
    file, steps, before = tmp_path / "chain.pt", (8, 6), set(active_children())

    def slow(step, chain):
        """Each chain comes to a step of its own; then Ctrl-C comes."""
        if step == steps[chain] - 1:
            time.sleep(0.6)  # then a report is due
        if step == steps[chain]:
            time.sleep(0.3)  # until it has arrived
            (tmp_path / str(chain)).touch()
            if chain:
                until((tmp_path / "0").exists)
                os.kill(os.getppid(), signal.SIGINT)
            time.sleep(60)

    with pytest.warns(FitInterrupted, match="after step 8, 6 of 20, chain 1, 2 of 2; returning what was drawn so far"):
        chains = run(walking(slow), Walk(), DATA, replace(KEPT, checkpoint=file))
    assert set(active_children()) <= before
    assert [(chain.step, len(chain.values), len(chain.draws)) for chain in chains] == [(8, 8, 4), (6, 6, 2)]
    require_same(run(walking(), Walk(), DATA, replace(KEPT, num_jobs=1, resume=file)))


@pytest.mark.nightly
def test_no_process_outlasts_a_fit_that_is_killed(tmp_path: Path) -> None:
    """Not even in the middle of a sweep."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import os, sys, time
from pathlib import Path
from regbayes.inference import Gibbs
from regbayes.models import DPM, DiagonalGaussian

class Slow(DiagonalGaussian):
    def statistics(self, X):
        if os.getpid() != home:
            (Path(sys.argv[1]) / f"{os.getpid()}.pid").touch()
            time.sleep(60)
        return super().statistics(X)

home = os.getpid()
Gibbs(num_chains=2, num_jobs=2, scan="slice").fit(DPM(Slow()), [[0.0], [1.0]])
"""
    )
    fit = subprocess.Popen([sys.executable, str(script), str(tmp_path)])
    try:
        until(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
    finally:
        fit.kill()
        fit.wait()
    for file in tmp_path.glob("*.pid"):
        until(lambda pid=file.stem: not Path("/proc", pid).exists())


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


# -- when chains are shared --------------------------------------------------------------------------------------------


def test_what_cannot_be_sent_is_refused_or_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = replace(walking(), finish=(number for number in [1.0]))
    with pytest.raises(ValueError, match=r"num_jobs is 2, but the fit cannot be sent .*generator.* use num_jobs=1"):
        run(kernel, Walk(), DATA, KEPT)
    require_same(shared(monkeypatch, kernel, starts=0))


@pytest.mark.nightly
def test_what_another_process_cannot_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that it would import from a module that it does not find."""
    hidden = ModuleType("hidden")
    hidden.Walk = type("Walk", (Walk,), {"__module__": "hidden"})
    monkeypatch.setitem(sys.modules, "hidden", hidden)
    message = "num_jobs is 2, but another process cannot read the fit: ModuleNotFoundError"
    with pytest.raises(ValueError, match=message):
        run(walking(), hidden.Walk(), DATA, KEPT)


@pytest.mark.parametrize(
    ("patience", "worth", "num_chains", "starts"),
    [pytest.param(0.1, 0.1, 4, 2, marks=pytest.mark.nightly), (0.1, 60.0, 4, 0), (60.0, 0.1, 4, 0)],
)
def test_left_alone_a_fit_shares_its_chains_once_that_pays(
    patience: float, worth: float, num_chains: int, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chains = shared(monkeypatch, walking(), starts, patience, worth, num_chains)
    require_same(chains, replace(KEPT, num_chains=num_chains))


def compute(seconds: float) -> None:
    """Takes CPU seconds."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_compilation_makes_no_fit_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first fit would wait for processes that a second one has no need of."""

    def value(state: Any, data: Any, model: Any) -> float:
        COMPILATION.start()
        compute(0.05)
        COMPILATION.stop()
        return float(state.at)

    monkeypatch.setattr(processes, "_start", lambda known: pytest.fail("a process was started"))
    monkeypatch.setattr(processes, "num_cores", lambda: 2)
    monkeypatch.setattr(engine, "_PATIENCE", 0.2)
    monkeypatch.setattr(engine, "_WORTH", 0.0)
    run(replace(walking(), value=value), Walk(), DATA, replace(KEPT, num_jobs=None))


def shared(monkeypatch, kernel, starts: int, patience: float = 0.0, worth: float = 0.0, num_chains: int = 2):
    """The chains of a slow walk that is left alone on two cores; it starts so many processes."""
    start, seen = processes._start, []
    monkeypatch.setattr(processes, "_start", lambda known: [seen.append(1), start(known)])
    monkeypatch.setattr(processes, "num_cores", lambda: 2)
    monkeypatch.setattr(engine, "_PATIENCE", patience)
    monkeypatch.setattr(engine, "_WORTH", worth)
    slow = replace(kernel, value=lambda state, data, model: [compute(0.02), state.at][1])
    chains = run(slow, Walk(), DATA, replace(KEPT, num_chains=num_chains, num_jobs=None))
    assert len(seen) == starts
    return chains


def test_what_must_stay_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "num_cores", lambda: 8)
    schedule = Schedule(num_steps=5, num_chains=3)

    def jobs(data=DATA, **changes) -> int:
        return processes.most_jobs(Sweeps(walking(), Walk(), data, replace(schedule, **changes)))

    assert [jobs(num_jobs=number) for number in (1, 2, 5, None)] == [1, 2, 3, 3]
    assert jobs(data=Points(torch.zeros(3, 1, device="meta")), num_jobs=2) == 1
    monkeypatch.setattr(processes, "parent_process", lambda: "another")
    assert [jobs(num_jobs=number) for number in (2, None)] == [2, 1]


def test_the_option_is_none_that_a_resumed_fit_must_share(tmp_path: Path, rows: tuple[Tensor, Tensor]) -> None:
    file, X = tmp_path / "chain.pt", rows[0]
    short = Gibbs(num_samples=2, num_warmup=2, num_chains=2)
    short.fit(DPM(), X, checkpoint=file)
    longer = short.replace(num_samples=5)
    require_equal(longer.replace(num_jobs=1).fit(DPM(), X, resume=file), longer.fit(DPM(), X))
    with pytest.raises(ValueError, match="num_jobs is 0"):
        short.replace(num_jobs=0).fit(DPM(), X)
