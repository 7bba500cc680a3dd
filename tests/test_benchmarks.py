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


def test_evidence_names_files_that_are_there_and_puts_what_they_print_on_a_page(monkeypatch, tmp_path):
    evidence = load(FOLDER / "evidence.py", monkeypatch)
    commands = [command for part in evidence.PARTS.values() for command in part.commands]
    assert {command.split()[0] for command in commands} <= {path.name for path in FILES}
    monkeypatch.setattr(evidence, "PAGES", tmp_path)
    parts = {"good": ("timing.py",), "bad": ("timing.py", "evidence.py gone")}  # timing.py prints nothing
    monkeypatch.setattr(evidence, "PARTS", {name: evidence.Part("A title", jobs) for name, jobs in parts.items()})
    monkeypatch.setattr(evidence.sys, "argv", ["evidence.py", "all"])
    with pytest.raises(SystemExit, match=r"benchmarks/evidence.py gone failed; its page stays"):
        evidence.main()
    page = (tmp_path / "good.md").read_text()
    assert page.startswith("# A title\n\n## `benchmarks/timing.py`\n\n```text\n\n```\n\n20")
    assert f"Python {evidence.platform.python_version()}" in page
    kept = "## `benchmarks/evidence.py gone`\n\nkept\n"
    (tmp_path / "bad.md").write_text(f"# Old\n\n{kept}\n## `benchmarks/x.py`\n\nno command any more\n")
    monkeypatch.setattr(evidence.sys, "argv", ["evidence.py", "bad:1"])
    evidence.main()
    page = (tmp_path / "bad.md").read_text()
    assert page.startswith("# A title\n\n## `benchmarks/timing.py`\n\n```text\n\n```\n\n20")
    assert page.endswith(f"\n\n{kept}")
    monkeypatch.setattr(evidence.sys, "argv", ["evidence.py", "none"])
    with pytest.raises(SystemExit, match="no part 'none'; the parts are: good, bad"):
        evidence.main()
