"""A small fit of every kind of model in every way that serves it, and what an observer counts in one of its sweeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from regbayes.inference import SVI, Backend, Gibbs, SmallVariance
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
)


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
CELLS = [(way, name) for way in WAYS for name in MODELS if name not in WITHOUT.get(way, ())]


class Counter(Protocol):
    """A mode of torch that counts operations."""

    number: int

    def __enter__(self) -> Any: ...
    def __exit__(self, *error: object) -> None: ...


def counted(way: str, name: str, counter: Callable[[], Counter], device: torch.device | str = "cpu") -> float:
    """What a new counter counts in a sweep: the difference of two fits, one some sweeps longer than the other."""
    model, X, y, options = MODELS[name]
    X, y = X.to(device), None if y is None else y.to(device)
    numbers, (first, last) = [], BETWEEN.get((way, name), (3, 6))
    for steps in (first, last):
        with counter() as counts:
            backend = WAYS[way](steps)
            if isinstance(backend, SmallVariance) and name in FROM_ONE:
                backend = backend.replace(penalty=3.0)
            backend.fit(model, X, y, **options)
        numbers.append(counts.number)
    return (numbers[1] - numbers[0]) / (last - first)
