"""Chains in processes of their own: the same draws, and all that a fit promises of Ctrl-C, files, errors and warnings.

A process takes seconds to start, so that a test has few of them.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import signal
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pyro
import pytest
import torch
from setups import Points, Position, Walk, run, walk
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
from regbayes.inference.running import workers
from regbayes.inference.running.sweeps import Sweeps
from regbayes.inference.running.workers import Worker, most_jobs
from regbayes.models import DPM, DiagonalGaussian, InfiniteSVM

DATA = Points(torch.zeros(3, 1))
KEPT = Schedule(num_steps=20, num_chains=2, num_jobs=2, keep=lambda step: step > 3)


def walking(before=lambda step, own: None) -> Kernel:
    """A random walk whose sweeps call a function of their number and of whether they are in the fit's own process."""
    home = os.getpid()

    def sweep(state, data, model, generator, step):
        before(step, os.getpid() == home)
        return walk(state, data, model, generator, step)

    return Kernel(
        state=Position,
        init=lambda model, data, generator: Position(torch.zeros(())),
        sweep=sweep,
        value=lambda state, data, model: state.at,
        draw=lambda state, data, model: {"at": state.at, "assignments": torch.arange(3)},
    )


def same(one: list[Chain], other: list[Chain]) -> bool:
    return all(
        a.values == b.values
        and [float(draw["at"]) for draw in a.draws] == [float(draw["at"]) for draw in b.draws]
        and torch.equal(a.generator.get_state(), b.generator.get_state())
        for a, b in zip(one, other, strict=True)
    )


def equal(one: Posterior, other: Posterior) -> bool:
    return (
        all(torch.equal(one.samples[name], other.samples[name]) for name in one.samples)
        and one.num_draws == other.num_draws
        and torch.equal(one.trace.values.nan_to_num(), other.trace.values.nan_to_num())
    )


@pytest.fixture
def rows() -> tuple[Tensor, Tensor]:
    X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X[:30] += 3
    return X, (X.sum(1) > 2).long()


@pytest.mark.parametrize(
    "backend",
    [Gibbs(num_samples=6, num_warmup=4, num_chains=3), SVI(num_steps=8, num_restarts=2), SmallVariance(num_restarts=2)],
    ids=["gibbs", "svi", "small_variance"],
)
def test_draws_are_those_of_chains_one_after_another(backend, rows) -> None:
    """With a class and a function that no other process can import."""

    class Mine(DiagonalGaussian):
        pass

    shift = 0.5
    model = InfiniteSVM(Mine(), feature_map=lambda X: torch.cat([X + shift, normalize(X)], 1))
    one_by_one, together = (backend.replace(num_jobs=number).fit(model, *rows) for number in (1, 2))
    assert equal(one_by_one, together)


def test_the_other_process_does_its_share_and_has_our_settings() -> None:
    def tell(step, own):
        if not own:
            warnings.warn(f"{torch.get_num_threads()} threads, {torch.get_default_dtype()}, step {step}", stacklevel=1)

    threads = torch.get_num_threads()
    with pytest.warns(UserWarning, match=rf"^{threads} threads, torch.float32, step \d+$") as told:
        chains = run(walking(tell), Walk(), DATA, KEPT)
    assert len({draw["assignments"].untyped_storage().data_ptr() for chain in chains for draw in chain.draws}) == 1
    assert len(told) == 20  # every step of one chain, in its order
    assert [int(str(each.message).split()[-1]) for each in told] == list(range(20))
    assert same(chains, run(walking(), Walk(), DATA, replace(KEPT, num_jobs=1)))


def test_ctrl_c_keeps_what_all_chains_have_and_they_go_on_bit_for_bit(tmp_path: Path) -> None:
    file, mark = tmp_path / "chain.pt", tmp_path / "mark"

    def slow(step, own):
        """The other chain gets to step 6 and would be there for long; then Ctrl-C comes to the fit's own one."""
        if own:
            while step == 8 and not mark.exists():
                time.sleep(0.01)
            if step == 8:
                os.kill(os.getpid(), signal.SIGINT)
        elif step == 6:
            mark.touch()
            time.sleep(60)

    message = "after step 8, 6 of 20, chain 1, 2 of 2; returning what was drawn so far"
    with pytest.warns(FitInterrupted, match=message):
        chains = run(walking(slow), Walk(), DATA, replace(KEPT, checkpoint=file))
    assert [(chain.step, len(chain.values), len(chain.draws)) for chain in chains] == [(8, 8, 4), (6, 6, 2)]
    whole = run(walking(), Walk(), DATA, replace(KEPT, num_jobs=1))
    for num_jobs in (1, 2):
        assert same(run(walking(), Walk(), DATA, replace(KEPT, num_jobs=num_jobs, resume=file)), whole)


def test_ctrl_c_while_only_others_are_at_work(tmp_path: Path) -> None:
    def forever(step, own):
        if not own and step == 2:
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(60)

    with pytest.warns(FitInterrupted, match="after step 2 of 20, chain 2 of 2"):
        first, second = run(walking(forever), Walk(), DATA, KEPT)
    assert (first.step, second.step) == (20, 2)


def test_a_chain_that_has_stopped_elsewhere_has_stopped() -> None:
    chains = run(walking(), Walk(), DATA, replace(KEPT, stop=lambda chain: chain.step == 7))
    assert [(chain.step, chain.finished) for chain in chains] == [(7, True), (7, True)]


def test_an_error_of_another_process_is_the_fits_own() -> None:
    def broken(step, own):
        if not own and step == 2:
            raise ArithmeticError("no such number")

    with pytest.raises(ArithmeticError, match="no such number") as raised:
        run(walking(broken), Walk(), DATA, KEPT)
    assert "in broken" in raised.value.__notes__[0]


# -- processes that are killed ----------------------------------------------------------------------------------------


def killed_at(step: int) -> Kernel:
    """A walk whose other processes are killed in this step, after a report of some steps before it."""

    def kill(now, own):
        if not own and now == step:
            os.kill(os.getpid(), signal.SIGKILL)
        if not own and now == step - 2:
            time.sleep(0.6)  # then a report is due
        if not own and now == step - 1:
            time.sleep(0.3)  # until it has arrived
        if own and now == 10:
            time.sleep(1.0)

    return walking(kill)


def restarts(told) -> list[int]:
    """The steps from which chains of killed processes went on."""
    found = [
        re.search(r"ended with exit code -9 .* from step (\d+) of 20, with the same draws", str(each.message))
        for each in told
    ]
    return [int(each[1]) for each in found if each]


@pytest.mark.parametrize("step", [0, 1, 8, 19])
def test_the_chain_of_a_process_that_is_killed_goes_on_from_its_last_report(step: int) -> None:
    with pytest.warns(ProcessLost, match="The process of chain 2") as told:
        chains = run(killed_at(step), Walk(), DATA, KEPT)
    (restart,) = restarts(told)
    assert (step > 1) <= restart <= step
    assert same(chains, run(walking(), Walk(), DATA, replace(KEPT, num_jobs=1)))
    assert len({draw["assignments"].untyped_storage().data_ptr() for chain in chains for draw in chain.draws}) == 1


def test_every_process_is_killed_over_and_over() -> None:
    """Each takes its chain along but once, and in the end the fit's own process does all of them."""
    schedule = replace(KEPT, num_chains=5, num_jobs=3)
    with pytest.warns(ProcessLost) as told:
        chains = run(killed_at(0), Walk(), DATA, schedule)
    assert 1 <= len(restarts(told)) <= 2
    assert same(chains, run(walking(), Walk(), DATA, replace(schedule, num_jobs=1)))


def test_a_process_that_is_killed_while_it_reads_the_fit() -> None:
    class Deadly(Walk):
        def __setstate__(self, state):
            os.kill(os.getpid(), signal.SIGKILL)

        def __getstate__(self):
            return {"a": 1}

    with pytest.warns(ProcessLost, match="from step 0 of 20"):
        chains = run(walking(), Deadly(), DATA, KEPT)
    assert same(chains, run(walking(), Walk(), DATA, replace(KEPT, num_jobs=1)))


def test_a_killed_process_of_a_resumed_fit_with_a_checkpoint(tmp_path: Path) -> None:
    file, short = tmp_path / "chain.pt", replace(KEPT, num_steps=7)
    run(walking(), Walk(), DATA, replace(short, checkpoint=file))
    with pytest.warns(ProcessLost) as told:
        chains = run(killed_at(12), Walk(), DATA, replace(KEPT, resume=file, checkpoint=file, checkpoint_every=0.0))
    assert 7 <= restarts(told)[0] <= 12
    whole = run(walking(), Walk(), DATA, replace(KEPT, num_jobs=1))
    assert same(chains, whole)
    assert same(run(walking(), Walk(), DATA, replace(KEPT, num_jobs=1, resume=file)), whole)


def test_a_killed_process_of_a_real_fit_and_one_that_is_killed_at_rest(rows, monkeypatch) -> None:
    """From outside, as the system does it when memory is short."""
    backend = Gibbs(num_samples=15, num_warmup=4, num_chains=3, num_jobs=2, scan="slice")
    listen, seen = Worker.listen, []

    def kill(self):
        report = listen(self)
        if self.process.pid not in seen:
            seen.append(self.process.pid)
            os.kill(self.process.pid, signal.SIGKILL)
        return report

    monkeypatch.setattr(Worker, "listen", kill)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = backend.fit(InfiniteSVM(), *rows)
    assert len(seen) == 1
    assert {each.category for each in told} <= {ProcessLost}  # none of one that was at rest
    assert equal(found, backend.replace(num_jobs=1).fit(InfiniteSVM(), *rows))


def test_ctrl_c_after_a_process_was_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def stopped(step, own):
        if not own and step == 3:
            time.sleep(0.3)
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while own and step == 5 and not mark.exists():
            time.sleep(0.01)
        if own and step == 6:
            time.sleep(0.5)
        if own and step == 8:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(ProcessLost), pytest.warns(FitInterrupted, match=r"after step 8, \d of 20, chain 1, 2 of 2"):
        first, second = run(walking(stopped), Walk(), DATA, KEPT)
    assert first.step == 8
    assert len(second.values) == second.step in (1, 2, 3)


def test_a_process_that_leaves_is_as_one_that_is_killed() -> None:
    def leaves(step, own):
        if not own:
            raise SystemExit(3)

    with pytest.warns(ProcessLost, match="ended with exit code 3 .* from step 0 of 20"):
        chains = run(walking(leaves), Walk(), DATA, KEPT)
    assert same(chains, run(walking(), Walk(), DATA, replace(KEPT, num_jobs=1)))


def test_what_cannot_be_sent_is_refused_or_stays() -> None:
    closed = Walk(number for number in [1.0])
    kernel = replace(walking(), sweep=lambda state, data, model, generator, step: state)
    with pytest.raises(ValueError, match=r"num_jobs is 2, but the fit cannot be sent .*generator.* use num_jobs=1"):
        run(kernel, closed, DATA, KEPT)


def test_what_another_process_cannot_read_is_refused_or_stays(monkeypatch) -> None:
    """A class that it would import from a module that it does not find."""
    hidden = ModuleType("hidden")
    hidden.Walk = type("Walk", (Walk,), {"__module__": "hidden"})
    monkeypatch.setitem(__import__("sys").modules, "hidden", hidden)
    model = hidden.Walk()
    with pytest.raises(
        ValueError, match=r"num_jobs is 2, but another process cannot read the fit: ModuleNotFoundError"
    ):
        run(walking(), model, DATA, KEPT)
    started = []
    monkeypatch.setattr("regbayes.inference.running.engine._PATIENCE", 0.0)
    monkeypatch.setattr("regbayes.inference.running.engine._WORTH", 0.0)
    monkeypatch.setattr("regbayes.inference.running.workers.cpu_count", lambda: 2)
    monkeypatch.setattr(Worker, "__init__", _counted(Worker.__init__, started))
    chains = run(walking(), model, DATA, replace(KEPT, num_jobs=None))
    assert started == [1]
    assert same(chains, run(walking(), Walk(), DATA, replace(KEPT, num_jobs=1)))


def _counted(function, calls: list[int]):
    def counted(*arguments):
        calls.append(1)
        return function(*arguments)

    return counted


def test_left_alone_a_fit_shares_its_chains_once_that_pays(monkeypatch) -> None:
    def own_pace(step, own):
        if own:
            time.sleep(0.02)

    def sharing(patience: float, worth: float) -> int:
        started = []
        with monkeypatch.context() as patch:
            patch.setattr("regbayes.inference.running.engine._PATIENCE", patience)
            patch.setattr("regbayes.inference.running.engine._WORTH", worth)
            patch.setattr("regbayes.inference.running.workers.cpu_count", lambda: 2)
            patch.setattr(Worker, "__init__", _counted(Worker.__init__, started))
            chains = run(walking(own_pace), Walk(), DATA, replace(KEPT, num_chains=3, num_jobs=None))
        assert same(chains, run(walking(), Walk(), DATA, replace(KEPT, num_chains=3, num_jobs=1)))
        return len(started)

    assert sharing(patience=0.1, worth=0.1) == 1
    assert sharing(patience=0.1, worth=60.0) == 0
    assert sharing(patience=60.0, worth=0.1) == 0


def test_what_must_stay_in_one_process(monkeypatch) -> None:
    monkeypatch.setattr("regbayes.inference.running.workers.cpu_count", lambda: 8)
    schedule = Schedule(num_steps=5, num_chains=3)

    def jobs(data=DATA, **changes) -> int:
        return most_jobs(Sweeps(walking(), Walk(), data, replace(schedule, **changes)))

    assert [jobs(num_jobs=number) for number in (1, 2, 5, None)] == [1, 2, 3, 3]
    assert jobs(num_jobs=2, repeatable=False) == 1
    assert jobs(data=Points(torch.zeros(3, 1, device="meta")), num_jobs=2) == 1
    monkeypatch.setattr("regbayes.inference.running.workers.parent_process", lambda: "another")
    assert [jobs(num_jobs=number) for number in (2, None)] == [2, 1]


def test_the_option_is_none_that_a_resumed_fit_must_share(tmp_path: Path, rows) -> None:
    file, X = tmp_path / "chain.pt", rows[0]
    short = Gibbs(num_samples=2, num_warmup=2, num_chains=2)
    short.fit(DPM(), X, checkpoint=file)
    found = short.replace(num_samples=5, num_jobs=1).fit(DPM(), X, resume=file)
    assert equal(found, short.replace(num_samples=5).fit(DPM(), X))
    with pytest.raises(ValueError, match="num_jobs is 0"):
        short.replace(num_jobs=0).fit(DPM(), X)


# -- processes that stay for a later fit ------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def none_kept():
    """No process stays longer than its test."""
    yield
    workers._end_kept()


def report(step, own) -> None:
    if not own and step == 0:
        warnings.warn(str(os.getpid()), stacklevel=1)


def beside() -> int:
    """The process that a fit has beside its own; the draws are those of one alone."""
    with pytest.warns(UserWarning, match=r"^\d+$") as told:
        chains = run(walking(report), Walk(), DATA, KEPT)
    assert same(chains, run(walking(), Walk(), DATA, replace(KEPT, num_jobs=1)))
    return int(str(told[-1].message))


def test_a_later_fit_finds_a_kept_process_as_a_new_one_without_the_data_of_another() -> None:
    def look(step, own):
        if own or step:
            return
        rows = {len(found) for found in gc.get_objects() if type(found) is Tensor and found.dim() == 2}
        stream = torch.rand(()).item(), len(pyro.get_param_store()), torch.get_default_dtype()
        numbers = np.random.random()  # noqa: NPY002 (the legacy stream)
        warnings.warn(f"{os.getpid()}; {stream}; {numbers}; {sorted(rows)}", stacklevel=1)
        torch.set_default_dtype(torch.float64)
        np.random.seed(0)  # noqa: NPY002
        pyro.param("left", torch.ones(2))

    found = []
    for num_rows in (3, 5, 7):
        with pytest.warns(UserWarning, match="; ") as told:
            run(walking(look), Walk(), Points(torch.zeros(num_rows, 1)), KEPT)
        found.append(str(told[-1].message).split("; "))
    process, stream, numbers, rows = zip(*found, strict=True)
    assert len(set(process)) == len(set(stream)) == 1
    assert stream[0].endswith(", 0, torch.float32)")
    assert len(set(numbers)) == 3
    assert rows == ("[3]", "[5]", "[7]")


def test_a_process_that_is_no_more_is_replaced(monkeypatch) -> None:
    monkeypatch.setattr("regbayes.inference.running.workers._PATIENCE", 0.0)
    first = beside()
    (kept,) = workers._KEPT
    kept.process.join(60)
    assert kept.process.exitcode == 0  # it had waited for long
    monkeypatch.undo()
    second = beside()
    os.kill(second, signal.SIGKILL)
    assert len({first, second, beside()}) == 3


@pytest.mark.parametrize("how", ["error", "interrupt"])
def test_a_fit_that_does_not_come_to_its_end_leaves_no_process(how: str) -> None:
    def broken(step, own):
        if own:
            time.sleep(0.02)
        elif step == 2 and how == "error":
            raise ArithmeticError
        elif step == 2:
            time.sleep(1)  # Ctrl-C before the fit's own chain has begun keeps nothing
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(60)

    before = beside()
    with pytest.raises(ArithmeticError) if how == "error" else pytest.warns(FitInterrupted):
        run(walking(broken), Walk(), DATA, KEPT)
    assert not workers._KEPT
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


def test_a_kept_process_goes_when_a_new_one_would_find_something_else(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_module_of_a_user.py").write_text("one = 1")
    importlib.import_module("own_module_of_a_user")
    before = beside()
    (kept,) = workers._KEPT
    assert kept.as_new()
    with monkeypatch.context() as patch:
        patch.setenv("ANYTHING", "else")
        assert not kept.as_new()
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        assert not kept.as_new()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path / "other")
        assert not kept.as_new()
    assert kept.as_new()
    (tmp_path / "own_module_of_a_user.py").write_text("one = 2")
    assert not kept.as_new()
    assert beside() != before
    assert not kept.process.is_alive()


def test_a_kept_process_sees_what_a_notebook_has_changed(rows) -> None:
    class Mine(DiagonalGaussian):
        scale = 1.0

        def statistics(self, X):
            return super().statistics(X * self.scale)

    def fitted() -> Posterior:
        backend, model = Gibbs(num_samples=6, num_warmup=4, num_chains=2), DPM(Mine())
        one_by_one, together = (backend.replace(num_jobs=number).fit(model, rows[0]) for number in (1, 2))
        assert equal(one_by_one, together)
        processes.add(workers._KEPT[0].process.pid)
        return together

    processes: set[int] = set()
    plain = fitted()
    Mine.scale = 2.0
    assert not equal(fitted(), plain)
    del Mine.statistics
    assert equal(fitted(), plain)
    assert len(processes) == 1
