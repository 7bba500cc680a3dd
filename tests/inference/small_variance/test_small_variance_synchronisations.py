"""How often the host waits for the device while components that repel descend, counted by dispatch."""

from __future__ import annotations

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regbayes.inference import SmallVariance
from regbayes.inference.classifiers import minimum
from regbayes.inference.small_variance import repelling
from regbayes.inference.small_variance.landscape import Landscape
from regbayes.models import DDPM

WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "bincount", "equal", "unique_dim", "_unique2"}


class Waits(TorchDispatchMode):
    """Counts operations whose result the host must see: numbers, and shapes that depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = function.overloadpacket.__name__
        by_mask = name.startswith("index") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool
            for part in arguments[1:2]
            for index in (part if isinstance(part, list | tuple) else [part])
        )
        if name in WAITS or by_mask:
            self.found[name] += 1
        return function(*arguments, **(keywords or {}))


def test_the_counter_sees_what_the_host_waits_for() -> None:
    x = torch.arange(3.0)
    with Waits() as waits:
        bool(x.any()), x[x > 1], x.sum().item(), x.nonzero(), torch.bincount(x.long()), x + x
    assert waits.found == {"_local_scalar_dense": 2, "index": 1, "nonzero": 1, "bincount": 1}


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
        with Waits() as waits:
            state = repelling.sweep(state, landscape, generator, tolerance=options.tolerance)
        assert waits.found.total() <= (60 if before.settled else 5), waits.found
        assert state.objective <= before.objective + 1e-9 * before.objective.abs()
        if state.converged:
            break
    assert before.settled
