"""States of SVI and small variance that somebody changed in a file: refused in a sentence, or harmless; no crash."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regbayes.inference import SVI, SmallVariance
from regbayes.inference.running.files import read_file, write_file
from regbayes.inference.running.sweeps import Sweeps
from regbayes.models import (
    BNMC,
    DDPM,
    DIH,
    DPM,
    IHMM,
    LDA,
    InfiniteLatentSVM,
    InfiniteSVM,
    LinearGaussian,
    Logistic,
    MedLDA,
    MultiTaskInfiniteLatentSVM,
)

N = 24
STREAM = torch.Generator().manual_seed(0)
Y = torch.arange(N) % 2
X = torch.randn(N, 2, generator=STREAM, dtype=torch.float64) + 3 * Y.unsqueeze(1)
WORDS = torch.randint(4, (N, 5), generator=STREAM) + (torch.arange(5) < 2 + Y.unsqueeze(1)).long()
SETS = torch.stack([Y == 0, X[:, 1] > 2], 1).double()
VARIATIONAL, DUAL = SVI(num_steps=2), SVI(num_steps=2, rule="averaging")
DESCENT = SmallVariance(max_steps=2, num_restarts=1, num_components=3)
TASKS = MultiTaskInfiniteLatentSVM(LinearGaussian(), Logistic(), truncation=3)
CASES: dict[str, tuple[Any, Any, Tensor, Tensor | None]] = {
    "LDA": (VARIATIONAL, LDA(num_topics=3), WORDS, None),
    "MedLDA": (VARIATIONAL, MedLDA(num_topics=3), WORDS, Y),
    "MedLDA, averaging": (DUAL, MedLDA(num_topics=3), WORDS, Y),
    "InfiniteSVM": (VARIATIONAL, InfiniteSVM(truncation=3), X, Y),
    "InfiniteSVM, averaging": (DUAL, InfiniteSVM(truncation=3), X, Y),
    "IHMM": (VARIATIONAL, IHMM(truncation=3), X, None),
    "BNMC, and": (VARIATIONAL, BNMC(joint="and", truncation=3), X, SETS),
    "features": (DUAL, InfiniteLatentSVM(truncation=3), X, Y),
    "tasks": (VARIATIONAL, TASKS, X, SETS),
    "small variance of DPM": (DESCENT, DPM(), X, None),
    "small variance of InfiniteSVM": (DESCENT, InfiniteSVM(), X, Y),
    "small variance of DDPM": (DESCENT, DDPM(), X, None),
    "small variance of DIH": (DESCENT, DIH(), X, None),
    "small variance of BNMC": (DESCENT, BNMC(), X, SETS),
    "small variance of features": (DESCENT, InfiniteLatentSVM(loss=Logistic()), X, Y),
}


def changes(value: Tensor) -> Iterator[Tensor]:
    """Too short along an axis, or far from what it was."""
    yield from (value.narrow(axis, 0, size - 1) for axis, size in enumerate(value.shape) if size)
    if value.dtype != torch.bool:
        yield value + 50
        yield value * math.nan if value.is_floating_point() else value - 50


@pytest.mark.parametrize(
    ("case", "name", "message"),
    [
        ("LDA", "word_counts", "topics has shape"),
        ("MedLDA", "word_counts", "topics has shape|no state of this fit"),
        ("MedLDA", "phi", "phi of shape|phi has shape"),
        ("MedLDA", "counts", "counts of shape .* for 24 rows"),
        ("small variance of DPM", "assignments", "assignments of shape .* for 24 rows"),
        ("InfiniteSVM", "responsibilities", "responsibilities of shape .* for 24 rows"),
        ("InfiniteSVM", "gram", "gram has shape|no state of this fit"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_compiled_code_would_trust_is_refused(case: str, name: str, message: str, tmp_path: Path) -> None:
    """It would read and write outside of its arrays."""
    backend, model, rows, y = CASES[case]
    path, steps = tmp_path / "chain.pt", "max_steps" if isinstance(backend, SmallVariance) else "num_steps"
    backend.replace(**{steps: 1}).fit(model, rows, y, checkpoint=path)
    content = read_file(path, "checkpoint")
    chain = content["chains"][0]
    chain |= {"finished": False, "state": chain["state"] | {name: chain["state"][name][:-1]}}
    write_file(path, "checkpoint", content)
    with pytest.raises(ValueError, match=message):
        backend.fit(model, rows, y, resume=path)


@pytest.mark.parametrize(("name", "shape"), [("gram", [0, 0, 0]), ("linear", [0, 0])])
def test_sums_that_the_first_full_sweep_reads_are_refused(
    name: str, shape: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After minibatches, which carry them along unread."""
    path, advance, model = tmp_path / "chain.pt", Sweeps.advance, BNMC(joint="and", truncation=3)
    backend = SVI(num_steps=2, batch_size=6, num_full_steps=2, progress=False)

    def until_full(self: Sweeps, chain: Any, *others: Any) -> None:
        if chain.step == 2:
            raise InterruptedError
        advance(self, chain, *others)

    monkeypatch.setattr(Sweeps, "advance", until_full)
    with pytest.raises(InterruptedError):
        backend.fit(model, X, SETS, checkpoint=path, checkpoint_every=0.0)
    monkeypatch.undo()
    content = read_file(path, "checkpoint")
    state = content["chains"][0]["state"]
    state[name] = state[name][:-1]
    write_file(path, "checkpoint", content)
    found, expected = re.escape(str([2, *shape])), re.escape(str([3, *shape]))
    with pytest.raises(ValueError, match=f"{name} has shape {found}; expected {expected}"):
        backend.fit(model, X, SETS, resume=path)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore")
def test_a_changed_state_is_refused_or_harmless(case: str, tmp_path: Path) -> None:
    backend, model, rows, y = CASES[case]
    path, steps = tmp_path / "chain.pt", "max_steps" if isinstance(backend, SmallVariance) else "num_steps"
    backend.replace(**{steps: 1}).fit(model, rows, y, checkpoint=path)
    content = read_file(path, "checkpoint")
    chain, refused = content["chains"][0] | {"finished": False}, 0
    for name, value in chain["state"].items():
        for changed in changes(value) if isinstance(value, Tensor) else ():
            chains = [chain | {"state": chain["state"] | {name: changed}}]
            write_file(path, "checkpoint", content | {"chains": chains})
            try:
                found = backend.fit(model, rows, y, resume=path)
            except (ValueError, FloatingPointError):
                refused += 1
            else:
                assert not any(bool(each.isnan().any()) for each in found.samples.values()), name
    assert refused > 3
