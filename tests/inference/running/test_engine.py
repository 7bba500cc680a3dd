"""Chains, checkpoints, interrupts and files, on a kernel that only draws numbers."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from setups import Points, Position, Walk, run, walk
from torch import Tensor

from regbayes.inference import Chain, FitInterrupted, Kernel, Schedule
from regbayes.inference.running.chains import LabelRows, stack_labels
from regbayes.inference.running.checkpoints import CheckpointWarning
from regbayes.inference.running.files import read_file

KERNEL = Kernel(
    state=Position,
    init=lambda model, data, generator: Position(torch.zeros(())),
    sweep=walk,
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


def pressing(after: int, name: str = "sweep") -> Kernel:
    """Ctrl-C is pressed in the middle of the given call of a function of the kernel."""
    function, calls = getattr(KERNEL, name), []

    def pressed(*arguments):
        calls.append(1)
        found = function(*arguments)
        if len(calls) == after:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    return replace(KERNEL, **{name: pressed})


@pytest.mark.parametrize("name", ["sweep", "value", "draw"])
def test_ctrl_c_drops_the_sweep_at_hand_and_the_fit_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    file, handler = tmp_path / "chain.pt", signal.getsignal(signal.SIGINT)
    kept = Schedule(num_steps=20, keep=lambda step: True)
    with pytest.warns(FitInterrupted, match="after step 5 of 20, chain 1 of 1; returning what was drawn so far"):
        (short,) = run(pressing(6, name), Walk(), DATA, replace(kept, checkpoint=file))
    assert len(short.values) == len(short.draws) == short.step == 5
    assert signal.getsignal(signal.SIGINT) is handler
    (whole,), (resumed,) = (run(KERNEL, Walk(), DATA, replace(kept, resume=path)) for path in (None, file))
    assert resumed.values == whole.values
    assert torch.equal(resumed.generator.get_state(), whole.generator.get_state())


@pytest.mark.parametrize("step", [4, 20])
def test_what_a_sweep_made_is_written_down_whole(step: int, tmp_path: Path, monkeypatch) -> None:
    """Ctrl-C between two sweeps waits for the first to be all there; after the last one it is told of too."""
    keep, calls = LabelRows.keep, []

    def pressed(*arguments):
        calls.append(1)
        if len(calls) == step:
            os.kill(os.getpid(), signal.SIGINT)
        return keep(*arguments)

    kept, file = Schedule(num_steps=20, keep=lambda step: True), tmp_path / "chain.pt"
    (whole,) = run(KERNEL, Walk(), DATA, kept)
    monkeypatch.setattr(LabelRows, "keep", pressed)
    with pytest.warns(FitInterrupted, match=f"after step {step} of 20"):
        (chain,) = run(KERNEL, Walk(), DATA, replace(kept, checkpoint=file))
    assert len(chain.values) == len(chain.times) == len(chain.draws) == chain.step == step
    (resumed,) = run(KERNEL, Walk(), DATA, replace(kept, resume=file))
    assert resumed.values == whole.values


def test_ctrl_c_before_there_is_a_state_is_raised_and_later_the_chains_before_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "chain.pt"
    with pytest.raises(KeyboardInterrupt):
        run(pressing(1, "init"), Walk(), DATA, Schedule(num_steps=3, checkpoint=file))
    assert not file.exists()
    with pytest.warns(FitInterrupted, match="after step 3 of 3, chain 1 of 2"):
        chains = run(pressing(2, "init"), Walk(), DATA, Schedule(num_steps=3, num_chains=2))
    assert [chain.values for chain in chains] == path_of(Schedule(num_steps=3))


def test_a_second_ctrl_c_is_raised_at_once() -> None:
    def stop(chain) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        return False

    with pytest.raises(KeyboardInterrupt):
        run(KERNEL, Walk(), DATA, Schedule(num_steps=20, stop=stop))


def test_ignored_interrupts_stay_ignored() -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        (chain,) = run(pressing(2), Walk(), DATA, Schedule(num_steps=4))
    finally:
        signal.signal(signal.SIGINT, previous)
    assert chain.step == 4


def test_a_sweep_knows_its_number(tmp_path: Path) -> None:
    """Counted from the start of its chain, also where that was in another run."""
    seen: list[int] = []

    def counting(state, data, model, generator, step):
        seen.append(step)
        return walk(state, data, model, generator, step)

    kernel, file = replace(KERNEL, sweep=counting), tmp_path / "chain.pt"
    run(kernel, Walk(), DATA, Schedule(num_steps=3, checkpoint=file))
    run(kernel, Walk(), DATA, Schedule(num_steps=5, num_chains=2, resume=file))
    assert seen == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_value_that_is_not_finite_stops_the_fit() -> None:
    broken = replace(KERNEL, value=lambda state, data, model: torch.tensor(torch.nan))
    with pytest.raises(FloatingPointError, match="log joint is nan after step 1"):
        run(broken, Walk(), DATA, Schedule(num_steps=3, value_name="log joint"))


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_checkpoint_of_another_fit_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "chain.pt"
    options = {"class": "Sampler", "params": {"thinning": 1, "init": torch.tensor([0, 1, 1])}}
    fit = Schedule(num_steps=2, backend=options)
    run(KERNEL, Walk(), DATA, replace(fit, checkpoint=file))
    run(KERNEL, Walk(), DATA, replace(fit, resume=file))
    others = [
        (Walk(2.0), DATA, {}, "its model.step is 1.0, here it is 2.0"),
        (Walk(), DATA, {"seed": 5}, "its seed is 0, here it is 5"),
        (Walk(), Points(torch.ones(3, 1)), {}, "X has other rows than the fit of the checkpoint"),
        (
            Walk(),
            Points(torch.zeros(3, 1).double()),
            {},
            "X has numbers of type float64, but numbers of type float32 ",
        ),
        (Walk(), Points(torch.zeros(1, 3)), {}, r"X has shape \[1, 3\], but shape \[3, 1\] in the fit of"),
        (Walk(), Points(DATA.X, 4), {}, "its data.num_data is 3, here it is 4"),
        (Walk(), DATA, {"class": "Other"}, "its backend.class is 'Sampler'"),
        (Walk(), DATA, {"params": {"thinning": 2}}, "its backend.thinning is 1"),
        (Walk(), DATA, {"params": {"thinning": 1}}, "here it is 'missing'"),
        (
            Walk(),
            DATA,
            {"params": {"thinning": 1, "init": torch.tensor([1, 1, 0])}},
            "backend.init has other values than the fit of the checkpoint",
        ),
    ]
    for model, data, changes, message in others:
        changed = changes if "seed" in changes else {"backend": options | changes}
        with pytest.raises(ValueError, match=message):
            run(KERNEL, model, data, replace(fit, **changed, resume=file))


def test_a_longer_fit_does_not_become_a_shorter_one(tmp_path: Path) -> None:
    file = tmp_path / "chain.pt"
    run(KERNEL, Walk(), DATA, Schedule(num_steps=4, num_chains=2, checkpoint=file))
    for schedule, asked in [(Schedule(num_steps=3, num_chains=2), "2 of 3"), (Schedule(num_steps=9), "1 of 9")]:
        with pytest.raises(ValueError, match=rf"2 chain\(s\) of up to 4 steps, more than the {asked}"):
            run(KERNEL, Walk(), DATA, replace(schedule, resume=file))


@dataclass(frozen=True)
class Elsewhere:
    place: Tensor


def test_state_of_another_kernel_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "chain.pt"
    run(KERNEL, Walk(), DATA, Schedule(num_steps=2, checkpoint=file))
    with pytest.raises(ValueError, match=r"a state of \['at'\]; the kernel's own is of \['place'\]"):
        run(replace(KERNEL, state=Elsewhere), Walk(), DATA, Schedule(num_steps=2, resume=file))


def test_a_checkpoint_is_written_when_its_seconds_have_passed(tmp_path: Path, monkeypatch) -> None:
    clock, file, seen = [100.0], tmp_path / "chain.pt", []
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def slow(state, data, model, generator, step):
        clock[0] += 4.0
        seen.append(read_file(file, "checkpoint")["chains"][0]["step"] if file.exists() else None)
        return walk(state, data, model, generator, step)

    run(replace(KERNEL, sweep=slow), Walk(), DATA, Schedule(num_steps=8, checkpoint=file, checkpoint_every=10.0))
    assert seen == [None, None, None, 3, 3, 3, 6, 6]
    assert read_file(file, "checkpoint")["chains"][0]["step"] == 8


def test_what_no_file_can_keep_is_found_before_any_work(tmp_path: Path) -> None:
    file = tmp_path / "chain.pt"
    with pytest.raises(ValueError, match=r"model\.step is <function"):
        run(KERNEL, Walk(lambda: 1.0), DATA, Schedule(num_steps=2, checkpoint=file))
    odd = replace(KERNEL, init=lambda *_: Position(lambda: 1.0))
    with pytest.raises(ValueError, match=r"chain\.state\.at is <function"):
        run(odd, Walk(), DATA, Schedule(num_steps=2, checkpoint=file))
    assert not file.exists()


def test_a_full_disk_in_the_middle_of_a_fit_costs_the_checkpoint_alone(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "chain.pt"
    run(KERNEL, Walk(), DATA, Schedule(num_steps=2, checkpoint=file))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(CheckpointWarning, match=r"chain\.pt' could not be written: No space left on device"):
        (chain,) = run(KERNEL, Walk(), DATA, Schedule(num_steps=4, checkpoint=file))
    assert chain.step == 4
    assert read_file(file, "checkpoint")["chains"][0]["step"] == 2


# -- labels of the draws -----------------------------------------------------------------------------------------------


def labelled(most: int, num_chains: int = 2, **options) -> list[Chain]:
    """Chains whose labels [5] grow with the steps, the last of them `most`."""

    def draw(state, data, model):
        labels = torch.arange(5) * 0 + round(most * float(state.at) / 8)
        return {"at": state.at, "assignments": labels}

    counted = replace(
        KERNEL, sweep=lambda state, data, model, generator, step: Position(torch.tensor(float(step + 1))), draw=draw
    )
    schedule = Schedule(num_steps=8, num_chains=num_chains, keep=lambda step: step > 1)
    return run(counted, Walk(), DATA, replace(schedule, **options))


@pytest.mark.parametrize(
    ("most", "kind"), [(100, torch.int8), (3000, torch.int16), (3_000_000, torch.int32), (2**40, torch.int64)]
)
def test_labels_of_all_draws_are_the_rows_of_one_array_of_the_smallest_type(most: int, kind: torch.dtype) -> None:
    draws = [draw["assignments"] for chain in labelled(most) for draw in chain.draws]
    assert {draw.dtype for draw in draws} == {kind}
    assert len({draw.untyped_storage().data_ptr() for draw in draws}) == 1
    stacked = stack_labels(draws)
    assert stacked.dtype == kind
    assert stacked.tolist() == [[round(most * step / 8)] * 5 for step in [*range(3, 9)] * 2]
    if kind != torch.int64:
        assert stacked.data_ptr() == draws[0].data_ptr()


def test_labels_of_a_resumed_fit_take_their_rows_again(tmp_path: Path) -> None:
    file = tmp_path / "chain.pt"
    labelled(300, num_steps=5, checkpoint=file)
    resumed, whole = labelled(300, resume=file), labelled(300)
    draws = [[draw["assignments"] for chain in chains for draw in chain.draws] for chains in (resumed, whole)]
    assert torch.equal(*map(stack_labels, draws))
    assert stack_labels(draws[0]).data_ptr() == draws[0][0].data_ptr()


def test_an_import_is_not_cut_in_two(tmp_path: Path, monkeypatch) -> None:
    """What is imported by half cannot be imported again; the sweep goes no further than that."""
    (tmp_path / "half_way.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.2)\nwhole = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    reached = []

    def importing(state, data, model, generator, step):
        import half_way

        reached.append(half_way.whole)
        for _ in range(500):
            time.sleep(0.01)
        return walk(state, data, model, generator, step)

    started = time.perf_counter()
    with pytest.warns(FitInterrupted, match="after step 0 of 20"):
        run(replace(KERNEL, sweep=importing), Walk(), DATA, Schedule(num_steps=20))
    assert reached == [True]
    assert time.perf_counter() - started < 4.0
    assert sys.modules.pop("half_way").whole
