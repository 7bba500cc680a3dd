"""How often a sweep would hold up the host on a GPU: operations whose result it must know, counted on a CPU.

`host.on_cpu` says no, so that what runs are the tensor forms that a GPU would run. Each cell has at most ten in a
sweep.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

import pytest
import torch
from sweep_counts import CELLS, counted
from torch.utils._python_dispatch import TorchDispatchMode

from regbayes.inference import SmallVariance
from regbayes.inference.classifiers import minimum
from regbayes.inference.small_variance import repelling
from regbayes.inference.small_variance.landscape import Landscape
from regbayes.models import DDPM, host

pytestmark = pytest.mark.usefixtures("few_restarts")

WAIT = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal"}
ON_THE_HOST = "svi/sequence/rows.py", "svi/sequence/climb.py"  # few numbers, moved there and climbed by L-BFGS
MOST = 10


class Waits(TorchDispatchMode):
    """Counts the operations that wait for a device."""

    def __init__(self, names: Collection[str] = WAIT) -> None:
        super().__init__()
        self.names, self.number = names, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.split("::")[1]
        by_mask = name.startswith(("index", "_index_put")) and any(
            isinstance(each, torch.Tensor) and each.dtype == torch.bool for each in _indices(args)
        )
        if (name in self.names or by_mask) and not _on_the_host():
            self.number += 1
        return function(*args, **(kwargs or {}))


def _indices(args: Any) -> Any:
    return args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()


def _on_the_host() -> bool:
    frame = sys._getframe(2)
    while frame.f_back and "regbayes" not in frame.f_globals.get("__name__", ""):
        frame = frame.f_back
    return frame.f_code.co_filename.endswith(ON_THE_HOST)


LONG = ("SVI in minibatches", "DIH"), ("small variance", "DIH")


@pytest.mark.one_in(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("way", "name"),
    [pytest.param(way, name, marks=pytest.mark.nightly if (way, name) in LONG else ()) for way, name in CELLS],
)
def test_a_sweep_seldom_waits_for_the_device(monkeypatch: pytest.MonkeyPatch, way: str, name: str) -> None:
    monkeypatch.setattr(host, "on_cpu", lambda like: False)
    assert counted(way, name, Waits) <= MOST


SHAPES = {*WAIT, "bincount", "unique_dim"}


def test_the_counter_sees_what_the_host_waits_for() -> None:
    x = torch.arange(3.0)
    with Waits(SHAPES) as waits:
        bool(x.any()), x[x > 1], x.sum().item(), x.nonzero(), torch.bincount(x.long()), x + x
    assert waits.number == 5


def test_sweeps_of_components_that_repel_seldom_wait(generator, monkeypatch) -> None:
    """Apart from the looks that cost a CPU nothing, and that no other device gets."""
    monkeypatch.setattr(minimum, "all_found", lambda found: False)

    def randn(*shape):
        return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64)

    X = (4 * randn(5, 1, 2) + randn(5, 24, 2)).flatten(0, 1)
    model, data = DDPM().prepare(X)
    landscape, options = Landscape.of(model, data, 1.0), SmallVariance(num_restarts=1, num_components=8)
    state = repelling.RepellingRestarts(options, landscape).first(generator)
    for _ in range(12):
        before = state
        with Waits(SHAPES) as waits:
            state = repelling.sweep(state, landscape, generator, tolerance=options.tolerance)
        assert waits.number <= (60 if before.settled else 5)
        assert state.objective <= before.objective + 1e-9 * before.objective.abs()
        if state.converged:
            break
    assert before.settled
