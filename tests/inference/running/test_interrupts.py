"""Ctrl-C in fits that are part of something larger: it ends a search, and returns what was reached of a fit alone."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from regbayes.estimators import (
    Classifier,
    ClassifierCV,
    Clusterer,
    MultiLabelClassifier,
    MultiLabelClassifierCV,
    MultiTaskRegressorCV,
    RegressorCV,
    SequenceClusterer,
)
from regbayes.inference import SVI, FitInterrupted, Gibbs, SmallVariance
from regbayes.inference.running.checkpoints import Checkpoint
from regbayes.inference.running.sweeps import Sweeps
from regbayes.models import DPM, InfiniteSVM

X = np.random.default_rng(0).normal(size=(30, 2)) + 6 * (np.arange(30) % 2)[:, None]
Y = np.arange(30) % 2
SHORT = SVI(num_steps=8, tolerance=0.0, progress=False)
GRID = {"model__weight_scale": [0.3, 1.0, 3.0]}


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Presses Ctrl-C in the fifth sweep of all; counts those that are begun."""
    advance, begun = Sweeps.advance, []

    def pressed(self: Sweeps, *arguments: Any) -> None:
        begun.append(1)
        if len(begun) == 5:
            signal.raise_signal(signal.SIGINT)
        advance(self, *arguments)

    monkeypatch.setattr(Sweeps, "advance", pressed)
    return begun


@pytest.mark.parametrize(
    "search",
    [
        lambda: GridSearchCV(Classifier(InfiniteSVM(), SHORT), GRID, cv=2).fit(X, Y),
        lambda: GridSearchCV(make_pipeline(Classifier(InfiniteSVM(), SHORT)), {}, cv=2).fit(X, Y),
        lambda: cross_val_score(Classifier(InfiniteSVM(), SHORT), X, Y, cv=2),
        lambda: ClassifierCV(InfiniteSVM(), SHORT, weight_scales=[0.3, 1.0], cv=2).fit(X, Y),
        lambda: ClassifierCV(inference=SmallVariance(num_restarts=9), num_components=[2], cv=2).fit(X, Y),
        lambda: RegressorCV(cv=2, num_components=[1, 2]).fit(X, X[:, 0]),
        lambda: clone(Clusterer(inference=SHORT)).fit(X),
        lambda: clone(SequenceClusterer(inference=SHORT)).fit(X),
        lambda: clone(clone(MultiLabelClassifier(inference=SmallVariance(num_restarts=9)))).fit(X, np.eye(2)[Y]),
        lambda: MultiLabelClassifierCV(inference=SmallVariance(num_restarts=9), cv=2).fit(X, np.eye(2)[Y]),
        lambda: MultiTaskRegressorCV(inference=SVI(num_steps=8), cv=2).fit(X, X),
    ],
    ids=[
        "grid",
        "pipeline",
        "folds",
        "ClassifierCV",
        "paths",
        "RegressorCV",
        "clusters",
        "states",
        "labels",
        "sets",
        "tasks",
    ],
)
def test_ctrl_c_ends_the_search_that_a_fit_is_part_of(search: Any, sweeps: list[int]) -> None:
    with pytest.raises(KeyboardInterrupt):
        search()
    assert len(sweeps) == 5


@pytest.mark.parametrize("estimator", [Classifier(InfiniteSVM(), SHORT), Clusterer(DPM(), SHORT)])
def test_a_fit_of_the_user_returns_what_was_reached(estimator: Any, sweeps: list[int]) -> None:
    with pytest.warns(FitInterrupted, match="after step 4 of 8"):
        found = make_pipeline(StandardScaler(), estimator).fit(X, Y)
    assert found.predict(X).shape == (30,)
    assert len(sweeps) == 5


def test_a_fit_that_raises_keeps_its_checkpoint(sweeps: list[int], tmp_path: Path, monkeypatch) -> None:
    backend, file = Gibbs(num_samples=6, num_warmup=3, progress=False), tmp_path / "chain.pt"
    with pytest.raises(KeyboardInterrupt):
        backend.fit(DPM(), X, checkpoint=file, on_interrupt="raise")
    monkeypatch.undo()
    whole, resumed = backend.fit(DPM(), X), backend.fit(DPM(), X, resume=file)
    assert torch.equal(whole.trace.values, resumed.trace.values)
    assert torch.equal(whole.samples["assignments"], resumed.samples["assignments"])


def test_ctrl_c_after_the_last_sweep_is_not_lost(tmp_path: Path, monkeypatch) -> None:
    """While a fit writes, Ctrl-C waits."""
    write = Checkpoint.write

    def pressed(self: Checkpoint, *arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        write(self, *arguments)

    monkeypatch.setattr(Checkpoint, "write", pressed)
    file = tmp_path / "chain.pt"
    assert SHORT.fit(DPM(), X, checkpoint=file).trace.values.shape == (1, 8)
    with pytest.raises(KeyboardInterrupt):
        SHORT.fit(DPM(), X, checkpoint=file, on_interrupt="raise")
    assert file.exists()


def test_a_programs_own_handler_hears_of_ctrl_c_after_the_fit(sweeps: list[int]) -> None:
    heard: list[Any] = []

    def own(*arguments: Any) -> None:
        heard.append((len(sweeps), signal.getsignal(signal.SIGINT), *arguments))

    before = signal.signal(signal.SIGINT, own)
    try:
        with pytest.warns(FitInterrupted):
            SHORT.fit(DPM(), X)
        SHORT.fit(DPM(), X)
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [(5, own, signal.SIGINT, None)]
