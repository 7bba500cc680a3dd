"""How often a sweep would hold up the host on a GPU: operations whose result it must know, counted on a CPU.

`host.on_cpu` says no, so that what runs are the tensor forms that a GPU would run. Each cell has at most ten in a
sweep.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regbayes.inference import SVI, Backend, Gibbs, SmallVariance
from regbayes.inference.classifiers import minimum
from regbayes.inference.small_variance import repelling
from regbayes.inference.small_variance.landscape import Landscape
from regbayes.models import (
    BNMC,
    DDPM,
    DIH,
    DPM,
    IHMM,
    LDA,
    InfiniteLatentSVM,
    InfiniteSVM,
    LatentFeatureModel,
    MedLDA,
    host,
)

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


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (24,), generator=stream)
    return torch.randn(24, 4, generator=stream, dtype=torch.float64) + 4 * labels.unsqueeze(1), labels


X, Y = rows()
COUNTS = torch.poisson(X[:12].abs(), generator=torch.Generator().manual_seed(1))
TWO = {"lengths": [12, 12]}
MODELS: dict[str, tuple[Any, ...]] = {
    "DPM": (DPM(truncation=5), X, None, {}),
    "InfiniteSVM": (InfiniteSVM(truncation=5), X, Y, {}),
    "DDPM": (DDPM(truncation=5), X, None, {}),
    "IHMM": (IHMM(truncation=5), X, None, TWO),
    "DIH": (DIH(truncation=5), X, None, TWO),
    "BNMC": (BNMC(truncation=6), (X > 4).double(), torch.nn.functional.one_hot(Y), {}),
    "LDA": (LDA(num_topics=5), COUNTS, None, {}),
    "MedLDA": (MedLDA(num_topics=5), COUNTS, Y[:12], {}),
    "LatentFeatureModel": (LatentFeatureModel(truncation=6), X, None, {}),
    "InfiniteLatentSVM": (InfiniteLatentSVM(truncation=6), X, Y, {}),
}
Way = Callable[[int], Backend]
GIBBS = {"progress": False, "num_warmup": 0, "split_merge": 0}
WAYS: dict[str, Way] = {
    "SVI": lambda steps: SVI(num_steps=steps, tolerance=0.0, progress=False),
    "SVI in minibatches": lambda steps: SVI(num_steps=steps, batch_size=8, num_full_steps=0, progress=False),
    "slice": lambda steps: Gibbs(steps, scan="slice", **GIBBS),
    "beam": lambda steps: Gibbs(steps, scan="beam", **GIBBS),
    "blocked": lambda steps: Gibbs(steps, scan="blocked", **GIBBS),
    "small variance": lambda steps: SmallVariance(max_steps=steps, num_restarts=1, tolerance=0.0, progress=False),
}
WITHOUT = {
    "slice": ("IHMM", "DIH", "LDA", "MedLDA"),
    "beam": tuple(name for name in MODELS if name not in ("IHMM", "DIH")),
    "small variance": ("LDA", "MedLDA"),
}
FROM_ONE = ("DPM", "InfiniteSVM")  # or small variance settles at once, and a sweep that has settled searches
# sweeps between those that search: settled ones of small variance, those that open features or try unions
BETWEEN = {
    ("small variance", "IHMM"): (2, 3),
    ("small variance", "DIH"): (3, 4),
    ("small variance", "InfiniteLatentSVM"): (6, 9),
    ("SVI", "DIH"): (1, 4),
}
LONG = ("SVI in minibatches", "DIH"), ("small variance", "DIH")


@pytest.mark.one_in(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("way", "name"),
    [
        pytest.param(way, name, marks=pytest.mark.nightly if (way, name) in LONG else ())
        for way in WAYS
        for name in MODELS
        if name not in WITHOUT.get(way, ())
    ],
)
def test_a_sweep_seldom_waits_for_the_device(monkeypatch: pytest.MonkeyPatch, way: str, name: str) -> None:
    monkeypatch.setattr(host, "on_cpu", lambda like: False)
    model, data, y, options = MODELS[name]
    numbers, (first, last) = [], BETWEEN.get((way, name), (3, 6))
    for steps in (first, last):
        with Waits() as waits:
            backend = WAYS[way](steps)
            if isinstance(backend, SmallVariance) and name in FROM_ONE:
                backend = backend.replace(penalty=3.0)
            backend.fit(model, data, y, **options)
        numbers.append(waits.number)
    assert (numbers[1] - numbers[0]) / (last - first) <= MOST


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
