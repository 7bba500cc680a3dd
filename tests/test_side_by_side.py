"""Chains in processes of their own: the same draws, and all that a fit promises of Ctrl-C, files, errors and warnings.

A process takes seconds to start, so that a test has few of them.
"""

from __future__ import annotations

import gc
import importlib
import os
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
from setups import Points, Position, Walk, walk
from torch import Tensor
from torch.nn.functional import normalize

from regbayes.inference import SVI, Chain, FitInterrupted, Gibbs, Kernel, Posterior, Schedule, SmallVariance, workers
from regbayes.inference.engine import run
from regbayes.inference.sweeps import Sweeps
from regbayes.inference.workers import Worker, most_jobs
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


def test_a_process_that_is_killed_is_named() -> None:
    def killed(step, own):
        if not own and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RuntimeError, match=r"process of chain 2 ended with exit code -9 .* Use num_jobs=1"):
        run(walking(killed), Walk(), DATA, KEPT)


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
    monkeypatch.setattr("regbayes.inference.engine._PATIENCE", 0.0)
    monkeypatch.setattr("regbayes.inference.engine._WORTH", 0.0)
    monkeypatch.setattr("regbayes.inference.workers.cpu_count", lambda: 2)
    monkeypatch.setattr(Worker, "__init__", _counted(Worker.__init__, started))
    chains = run(walking(), model, DATA, replace(KEPT, num_jobs=None))
    assert started == [1]
    assert same(chains, run(walking(), Walk(), DATA, replace(KEPT, num_jobs=1)))


def _counted(function, calls: list[int]):
    def counted(*arguments):
        calls.append(1)
        return function(*arguments)

    return counted
