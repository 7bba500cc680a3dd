"""What the tests of the command line share: tables, and the one line that a mistake ends in."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from regbayes.cli import main


def write(path: Path, rows: list[list[object]], delimiter: str = ",") -> Path:
    """A table with these rows."""
    with open(path, "w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def refuse(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a mistake ends in; `compare` may have shown its header."""
    assert main([str(argument) for argument in arguments]) == 2
    output = capsys.readouterr()
    shown = output.out.splitlines()
    assert not shown or (arguments[0] == "compare" and " rows, " in shown[0] and len(shown) == 3)
    assert output.err.startswith("regbayes: error: ")
    assert output.err.count("\n") == 1
    return output.err


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command that succeeds prints."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out
