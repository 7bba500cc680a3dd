"""Fits in two threads at once: each is the fit alone, bit for bit, and the user's streams stay where they were.

And the threads of tensor operations, which are another matter: a fit has one.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

import pytest
import scipy.sparse
import torch
from grid import WAYS, Case, Row, kernels, name_of

from regbayes.estimators import Classifier, ClassifierCV, Clusterer, MultiLabelClassifier
from regbayes.inference import NUTS, SVI, SmallVariance, TruncationWarning
from regbayes.inference.pyro_engines.backend import _alone
from regbayes.inference.running.emptied import warn_if_one_is_left
from regbayes.inference.running.sweeps import Sweeps
from regbayes.models import DDPM, DPM, InfiniteSVM, MedLDA, host

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{TruncationWarning.__module__}.{TruncationWarning.__name__}"),
    pytest.mark.usefixtures("few_restarts"),
]


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
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(fit, [way] * 2, [row.cases[name]] * 2, [together] * 2))
    for other in found:
        assert_same(other.trace.values, alone.trace.values)
        assert other.samples.keys() == alone.samples.keys()
        for key, value in alone.samples.items():
            assert_same(other.samples[key], value)


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_fits_compute_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for one another took 40 times as long on a machine with other work."""
    seen, advance = set(), Sweeps.advance

    def watched(self: Sweeps, *arguments: Any) -> None:
        seen.add(torch.get_num_threads())
        advance(self, *arguments)

    monkeypatch.setattr(Sweeps, "advance", watched)
    X = torch.arange(40.0, dtype=torch.float64).reshape(20, 2)
    SmallVariance(penalty=9.0, max_steps=2, num_jobs=1, progress=False).fit(DPM(), X)
    assert seen == {1}
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_predictions_compute_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = torch.arange(40.0, dtype=torch.float64).reshape(20, 2), torch.arange(20) % 2
    posterior, seen = SmallVariance(penalty=9.0, max_steps=2, progress=False).fit(InfiniteSVM(), X, y), set()
    mixtures = posterior.score_mixtures

    def watched(*arguments: Any, **options: Any) -> Iterator[Any]:
        seen.add(torch.get_num_threads())
        return mixtures(*arguments, **options)

    monkeypatch.setattr(posterior, "score_mixtures", watched)
    posterior.predict_proba(X)
    assert seen == {1}
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_threads_are_there_again_after_any_fit() -> None:
    with pytest.raises(ZeroDivisionError), host.one_thread():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 3
    first, second = host.one_thread(), host.one_thread()
    first.__enter__()
    second.__enter__()  # of rows that are read in turns with those of the first
    first.__exit__(None, None, None)
    assert torch.get_num_threads() == 1
    second.__exit__(None, None, None)
    assert torch.get_num_threads() == 3


ROWS = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)) + 9 * (torch.arange(60) % 2).unsqueeze(1)
SIDES = (torch.arange(60) % 2).numpy()


@pytest.mark.parametrize(
    "fit",
    [
        lambda: Clusterer().fit(ROWS),
        lambda: Classifier(InfiniteSVM(), SVI(num_steps=3), num_folds=2).fit(ROWS, SIDES),
        lambda: ClassifierCV(cv=2, num_components=[1, 2]).fit(ROWS, SIDES),
        lambda: MultiLabelClassifier(inference=SVI(num_steps=3)).fit(ROWS, torch.eye(2)[SIDES]),
        lambda: warn_if_one_is_left(torch.zeros(30).long(), DDPM(), ROWS[::2], None, None),
        lambda: SVI(num_steps=3).fit(MedLDA(), scipy.sparse.eye_array(60, format="csr"), SIDES),
    ],
    ids=["clusters", "slope", "search", "sets", "repelling", "sparse"],
)
def test_fits_leave_the_filters_of_warnings_alone(fit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`warnings.catch_warnings` changes them for all threads, and two at once may leave them changed."""
    callers, enter = set(), warnings.catch_warnings.__enter__

    def entered(self: Any) -> Any:
        callers.add(sys._getframe(1).f_globals["__name__"].partition(".")[0])
        return enter(self)

    monkeypatch.setattr(warnings.catch_warnings, "__enter__", entered)
    fit()
    assert "regbayes" not in callers


@pytest.mark.usefixtures("three_threads")
def test_each_thread_has_its_own_number_again_after_fits_at_once() -> None:
    def number_after() -> int:
        with host.one_thread():
            assert torch.get_num_threads() == 1
        return torch.get_num_threads()

    with ThreadPoolExecutor(1) as known, ThreadPoolExecutor(1) as new:
        assert known.submit(torch.get_num_threads).result() == 3
        known.submit(torch.set_num_threads, 2).result()
        with host.one_thread(), host.one_thread():
            assert new.submit(number_after).result() == 3  # as if it had been seen before
            assert known.submit(number_after).result() == 2
            known.submit(torch.set_num_threads, 1).result()
            assert known.submit(number_after).result() == 1
            assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


def fit_in_a_child() -> None:
    assert host._ALL.running == 0
    NUTS(num_samples=1, num_warmup=1, max_tree_depth=1, progress=False).fit(DPM(truncation=2), torch.eye(2))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # what is tested
def test_a_child_that_is_forked_during_a_fit_in_another_thread_can_fit() -> None:
    begun, done = Event(), Event()

    def fit_elsewhere() -> None:
        with host.one_thread(), host._LOCK:
            _alone(lambda: begun.set() or done.wait(60))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(fit_elsewhere)
        assert begun.wait(60)
        child = multiprocessing.get_context("fork").Process(target=fit_in_a_child)
        child.start()
        child.join(30)
        done.set()
    child.kill()
    assert child.exitcode == 0
