"""Products of steps in log time: beside the recursions step by step, which are checked against all paths one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import pytest
import torch
from chains_of_states import LENGTHS, TABLES, chain
from torch.utils._python_dispatch import TorchDispatchMode

from regbayes.inference.markov import paths, scans, tensors
from regbayes.inference.markov.paths import sample_paths, smooth
from regbayes.inference.markov.tensors import Paths

LONG = [7, 33, 1, 12]


def both(kind: str, lengths: list[int], device: str, slices: bool) -> tuple[Paths, torch.Tensor]:
    """Log weights, and uniforms [N]."""
    generator = torch.Generator().manual_seed(1)
    levels = torch.rand(2, sum(lengths), generator=generator, dtype=torch.float64).to(device)
    tables = [table.to(device) for table in chain(kind, 3, lengths)]
    return Paths.of(*tables, lengths, -6.0 - levels[1] if slices else None), levels[0]


@TABLES
@pytest.mark.parametrize("lengths", [LENGTHS, LONG, [40]], ids=str)
@pytest.mark.parametrize("slices", [False, True], ids=["whole", "sliced"])
@pytest.mark.parametrize("size", [1, 3, 1000], ids="{} rows at a time".format)
def test_products_are_the_recursions(kind, lengths, slices, size, device, monkeypatch) -> None:
    def chunks(rows: Sized, width: int) -> Iterator[slice]:
        return (slice(first, first + size) for first in range(0, len(rows), size))

    monkeypatch.setattr(scans, "row_chunks", chunks)
    weights, uniforms = both(kind, lengths, device, slices)
    try:
        expected = tensors.filter_in_logs(weights)
    except FloatingPointError as error:
        with pytest.raises(FloatingPointError, match=str(error)):
            scans.filter_in_logs(weights)
        return
    close = {"rtol": 1e-9, "atol": 1e-10}
    torch.testing.assert_close(scans.filter_in_logs(weights), expected, **close)
    assert torch.equal(scans.sample_in_logs(weights, uniforms), tensors.sample_in_logs(weights, uniforms))
    if not slices:
        torch.testing.assert_close(scans.smooth_in_logs(weights), tensors.smooth_in_logs(weights), **close)
        best, scores = scans.viterbi_in_logs(weights)
        found = tensors.viterbi_in_logs(weights)
        assert torch.equal(best, found[0])
        torch.testing.assert_close(scores, found[1])


def test_rounds_grow_with_the_logarithm_of_the_steps() -> None:
    class Count(TorchDispatchMode):
        number = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.number += 1
            return function(*args, **(kwargs or {}))

    counts = []
    for length in (64, 4096):
        weights, uniforms = both("dense", [length], "cpu", slices=False)
        with Count() as count:
            scans.smooth_in_logs(weights)
            scans.sample_in_logs(weights, uniforms)
        counts.append(count.number)
    assert counts[1] < 2.5 * counts[0]  # 64 times the steps


def test_few_long_sequences_take_products(monkeypatch) -> None:
    assert scans.pays(both("dense", [100], "cpu", slices=False)[0])
    assert not scans.pays(both("dense", [60], "cpu", slices=False)[0])
    wide = torch.zeros(200), torch.zeros(200, 200), torch.zeros(100, 200)
    assert not scans.pays(Paths.of(*wide, [100]))
    tables, uniforms = chain(lengths=[100]), torch.rand(100, generator=torch.Generator().manual_seed(0)).double()
    asked = []
    for name in ("smooth_in_logs", "sample_in_logs"):
        function = getattr(scans, name)
        monkeypatch.setattr(scans, name, lambda *given, function=function: asked.append(1) or function(*given))
    by_step = paths.smooth(*tables, [100], compiled=True), sample_paths(*tables, [100], uniforms, compiled=True)
    assert not asked
    torch.testing.assert_close(smooth(*tables, [100], compiled=False), by_step[0])
    assert torch.equal(sample_paths(*tables, [100], uniforms, compiled=False), by_step[1])
    assert len(asked) == 2
