"""Benchmarks are no part of the package, so nothing else notices when one names what is gone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
FILES = sorted(FOLDER.glob("*.py"))


def load(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_benchmark_names_what_is_there(path, monkeypatch):
    load(path, monkeypatch)


def test_ratios_name_files_that_are_there(monkeypatch):
    run = load(FOLDER / "run.py", monkeypatch)
    assert {figure.job.split()[0] for figure in run.FIGURES} <= {path.name for path in FILES}
    figure = run.Figure("ours / theirs", "run.py", run.NUMBER, most=2)
    assert "reached" in figure.shown(1.5)
    assert "MISSED" in figure.shown(2.5)
