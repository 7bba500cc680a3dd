"""Every tutorial runs from top to bottom; its asserts hold at the small budget of REGBAYES_BUDGET."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

TUTORIALS = sorted((Path(__file__).parent.parent / "tutorials").glob("*.ipynb"))


def case(path: Path) -> Any:
    """A tutorial that also has a part on real data runs once more where tests on real data do."""
    return pytest.param(path, id=path.stem, marks=pytest.mark.real_data if "REGBAYES_DATA" in path.read_text() else ())


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", [case(path) for path in TUTORIALS])
def test_tutorial_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGBAYES_BUDGET", "small")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_has_committed_outputs(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in cells)
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
