"""Every tutorial runs from top to bottom; its asserts hold at the small budget of REGBAYES_BUDGET.

What is for the tests alone stands in cells with the tag remove-cell, which pages leave out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

TUTORIALS = sorted((Path(__file__).parent.parent / "tutorials").glob("*.ipynb"))
BY_DAY = "06_multi_task"


def case(path: Path) -> Any:
    """A tutorial that also has a part on real data runs once more where tests on real data do."""
    marks = [] if path.stem == BY_DAY else [pytest.mark.nightly]
    if "REGBAYES_DATA" in path.read_text():
        marks.append(pytest.mark.real_data)
    return pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", [case(path) for path in TUTORIALS])
def test_tutorial_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGBAYES_BUDGET", "small")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # no test downloads
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_has_committed_outputs(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_is_a_page(path: Path) -> None:
    """Short lines; checks in cells that are left out, and nothing that these print; words for every picture."""
    for cell in nbformat.read(path, as_version=4).cells:
        assert max(map(len, cell.source.splitlines())) <= 88
        if cell.cell_type != "code":
            continue
        hidden = cell.metadata.get("tags") == ["remove-cell"]
        assert hidden == ("assert " in cell.source or "REGBAYES_BUDGET" in cell.source or "if small" in cell.source)
        assert not (hidden and cell.outputs)
        pictured = any("image/png" in output.get("data", {}) for output in cell.outputs)
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        assert pictured == (len(alt) > 40)
