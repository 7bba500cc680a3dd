"""Chains, checkpoints, interrupts and files, on a kernel that only draws numbers."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from regbayes.inference import FitInterrupted, Kernel, Schedule
from regbayes.inference.engine import run
from regbayes.inference.files import read_file, write_file
from regbayes.models.config import Config


@dataclass(eq=False)
class Walk(Config):
    step: float = 1.0


@dataclass(frozen=True)
class Points:
    X: Tensor
    num_data: int = 3


@dataclass(frozen=True)
class Position:
    at: Tensor


def sweep(state, data, model, generator, step):
    return Position(state.at + model.step * torch.randn((), generator=generator))


KERNEL = Kernel(
    state=Position,
    init=lambda model, data, generator: Position(torch.zeros(())),
    sweep=sweep,
    value=lambda state, data, model: state.at,
    draw=lambda state, data, model: {"at": state.at},
)
DATA = Points(torch.zeros(3, 1))


def path_of(schedule: Schedule, kernel: Kernel = KERNEL) -> list[list[float]]:
    return [chain.values for chain in run(kernel, Walk(), DATA, schedule)]


def test_chains_differ_and_seeds_repeat() -> None:
    two = path_of(Schedule(num_steps=5, num_chains=2))
    assert two[0] != two[1]
    assert two == path_of(Schedule(num_steps=5, num_chains=2))
    assert two != path_of(Schedule(num_steps=5, num_chains=2, seed=1))


def test_keep_and_stop() -> None:
    kept = Schedule(num_steps=9, keep=lambda step: step >= 4, stop=lambda chain: chain.step == 7)
    (chain,) = run(KERNEL, Walk(), DATA, kept)
    assert len(chain.values) == 7
    assert len(chain.draws) == 3


def test_resumed_chain_is_the_long_chain_bit_for_bit(tmp_path: Path) -> None:
    file = tmp_path / "chain.pt"
    whole = path_of(Schedule(num_steps=20, num_chains=2))
    path_of(Schedule(num_steps=8, num_chains=1, checkpoint=file))
    assert path_of(Schedule(num_steps=20, num_chains=2, resume=file)) == whole


def interrupting(after: int) -> Kernel:
    def stop(state, data, model, generator, step):
        interrupting.calls += 1
        if interrupting.calls == after:
            os.kill(os.getpid(), signal.SIGINT)
        return sweep(state, data, model, generator, step)

    interrupting.calls = 0
    return replace(KERNEL, sweep=stop)


def test_interrupt_keeps_what_was_drawn_and_can_be_resumed(tmp_path: Path) -> None:
    file, handler = tmp_path / "chain.pt", signal.getsignal(signal.SIGINT)
    with pytest.warns(FitInterrupted, match="step 6 of 20"):
        short = path_of(Schedule(num_steps=20, checkpoint=file), interrupting(after=6))
    assert len(short[0]) == 6
    assert signal.getsignal(signal.SIGINT) is handler
    assert path_of(Schedule(num_steps=20, resume=file)) == path_of(Schedule(num_steps=20))


def test_a_sweep_knows_its_number(tmp_path: Path) -> None:
    """Counted from the start of its chain, also where that was in another run."""
    seen: list[int] = []

    def counting(state, data, model, generator, step):
        seen.append(step)
        return sweep(state, data, model, generator, step)

    kernel, file = replace(KERNEL, sweep=counting), tmp_path / "chain.pt"
    run(kernel, Walk(), DATA, Schedule(num_steps=3, checkpoint=file))
    run(kernel, Walk(), DATA, Schedule(num_steps=5, num_chains=2, resume=file))
    assert seen == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_value_that_is_not_finite_stops_the_fit() -> None:
    broken = replace(KERNEL, value=lambda state, data, model: torch.tensor(torch.nan))
    with pytest.raises(FloatingPointError, match="log joint is nan after step 1"):
        run(broken, Walk(), DATA, Schedule(num_steps=3, value_name="log joint"))


def test_checkpoint_of_another_fit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "chain.pt"
    run(KERNEL, Walk(), DATA, Schedule(num_steps=2, checkpoint=file))
    with pytest.raises(ValueError, match="another model"):
        run(KERNEL, Walk(2.0), DATA, Schedule(num_steps=2, resume=file))
    with pytest.raises(ValueError, match="another seed"):
        run(KERNEL, Walk(), DATA, Schedule(num_steps=2, seed=5, resume=file))


def test_broken_files_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "chain.pt"
    run(KERNEL, Walk(), DATA, Schedule(num_steps=2, checkpoint=file))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cut short"):
        run(KERNEL, Walk(), DATA, Schedule(num_steps=2, resume=file))
    with pytest.raises(FileNotFoundError, match="no file"):
        run(KERNEL, Walk(), DATA, Schedule(num_steps=2, resume=tmp_path / "none.pt"))
    for schema, mend in ((99, r"9\.9; .*Upgrade"), (1, "Fit again")):
        torch.save({"kind": "checkpoint", "schema": schema, "version": "9.9"}, file)
        with pytest.raises(ValueError, match=rf"schema {schema}, written by regbayes .*{mend}"):
            read_file(file, "checkpoint")
    with pytest.raises(ValueError, match="not a posterior"):
        read_file(file, "posterior")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "kept.pt"
    write_file(file, "old", {"value": 1.0})
    monkeypatch.setattr(torch, "save", lambda content, opened: opened.write(b"half") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_file(file, "new", {"value": 2.0})
    assert read_file(file, "old")["value"] == 1.0
    assert [item.name for item in tmp_path.iterdir()] == ["kept.pt"]


def test_files_hold_plain_data_and_say_what_is_not(tmp_path: Path) -> None:
    file = tmp_path / "kept.pt"
    held = {"numbers": [np.float64(0.5), np.int64(2), (1, None)], "table": {"a": torch.ones(2)}}
    write_file(file, "plain", {"held": held})
    found = read_file(file, "plain")["held"]
    assert found["numbers"] == [0.5, 2, (1, None)]
    assert torch.equal(found["table"]["a"], torch.ones(2))
    with pytest.raises(ValueError, match=r"held\.map\[1\] is <function .*, which no file can keep"):
        write_file(file, "plain", {"held": {"map": [1, lambda: None]}})
    with pytest.raises(ValueError, match=r"model\.step is <function"):
        run(KERNEL, Walk(lambda: 1.0), DATA, Schedule(num_steps=2, checkpoint=file))  # before any work
    assert read_file(file, "plain")
