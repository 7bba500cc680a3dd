"""Fits in two threads at once: each is the fit alone, bit for bit, and the user's streams stay where they were."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from grid import WAYS, Case, Row, kernels, name_of

from regbayes.inference import TruncationWarning

pytestmark = pytest.mark.filterwarnings(f"ignore::{TruncationWarning.__module__}.{TruncationWarning.__name__}")


@pytest.fixture(autouse=True)
def _often() -> Iterator[None]:
    """Threads take turns as often as they can, and Python's own stream does not move; of others `conftest` sees to."""
    interval, stream = sys.getswitchinterval(), random.getstate()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    assert random.getstate() == stream


def fit(way: str, case: Case, together: Barrier) -> Any:
    together.wait(60)
    return WAYS[way].fit(case)


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


# every fourth of them on any day: what threads share is the engine's, and not a kernel's
DAILY = [pytest.param(cell, marks=pytest.mark.nightly if place % 4 else ()) for place, cell in enumerate(kernels())]


@pytest.mark.parametrize("cell", DAILY, ids=name_of)
def test_fits_in_two_threads_at_once_are_those_of_each_alone(cell: tuple[Row, str, str]) -> None:
    row, name, way = cell
    alone = WAYS[way].fit(row.cases[name])
    together = Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(fit, [way] * 2, [row.cases[name]] * 2, [together] * 2))
    for other in found:
        assert_same(other.trace.values, alone.trace.values)
        assert other.samples.keys() == alone.samples.keys()
        for key, value in alone.samples.items():
            assert_same(other.samples[key], value)
