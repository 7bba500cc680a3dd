"""Examples in docstrings run, and the README's Python blocks run as one program."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from grid import with_grid

import regbayes

README = Path(__file__).parent.parent / "README.md"
ROOMS = ["models", "inference", "estimators", "datasets", "plots", "cli", "testing"]
MODULES = [
    module.name
    for room in ROOMS
    for module in pkgutil.walk_packages(
        importlib.import_module(f"regbayes.{room}").__path__, prefix=f"regbayes.{room}."
    )
] + [f"regbayes.{room}" for room in ROOMS]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    import torch

    result = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch})
    assert result.failed == 0


@pytest.mark.slow
def test_readme_python_blocks_run_and_print_what_they_show() -> None:
    text = README.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert blocks, "the README has no Python example"
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), namespace)


def test_readme_shows_the_grid_that_is_tested() -> None:
    text = README.read_text()
    assert text == with_grid(text), "run `make grid`"


def test_package_has_no_generic_name() -> None:
    assert all("site-packages/models" not in path for path in regbayes.__path__)
