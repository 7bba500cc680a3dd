"""Examples in docstrings and pages run, and links, references and the grid are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from grid import with_grid

import regbayes
from regbayes.cli import main

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [ROOT / "CONTRIBUTING.md", README, *sorted((ROOT / "docs").glob("[!_]*.md"))]
PAGES += sorted((ROOT / "docs").glob("[!_]*/*.md"))
BY_NIGHT = "index.md", "practice.md"  # whose blocks take long
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
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.nightly if page.name in BY_NIGHT else ())
        for page in PAGES
        if "```python" in page.read_text()
    ],
    ids=lambda page: page.name,
)
def test_python_blocks_of_a_page_run_as_one_program(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a block may write a file
    namespace: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S):
        exec(compile(block, str(page), "exec"), namespace)


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_name_files_and_headings_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), target
        assert not anchor or anchor in map(slug, headings(other)), target


def test_code_names_derivations_that_exist() -> None:
    """Docstrings name a page and a heading: docs/derivations/mixtures, "Collapsed scan"."""
    named = []
    for room in [*ROOMS, "tests"]:
        for path in (ROOT / room).rglob("*.py"):
            text = re.sub(r"\s+#?\s*", " ", path.read_text())
            named += [(path, *found) for found in re.findall(r'docs/derivations/([\w-]+), "([^"]+)"', text)]
    wrong = [(path, page, heading) for path, page, heading in named if heading not in known_headings(page)]
    assert len(named) > 1
    assert not wrong


def known_headings(page: str) -> list[str]:
    path = ROOT / "docs" / "derivations" / f"{page}.md"
    return headings(path) if path.exists() else []


def test_readme_shows_the_grid_that_is_tested() -> None:
    text = README.read_text()
    assert text == with_grid(text), "run `make grid`"


@pytest.mark.nightly
def test_readme_shows_what_compare_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but the seconds: accuracy, macro-F1 and K of each method."""
    monkeypatch.chdir(tmp_path)
    assert main(["compare"]) == 0
    shown, found = (
        re.findall(r"^ *(\S.*?)  +(\d\S+ ± \S+) +(\S+) +(\S+)", text, flags=re.M)
        for text in (README.read_text(), capsys.readouterr().out)
    )
    assert len(shown) == 6
    assert shown == found


def test_readme_is_short() -> None:
    assert len(README.read_text()) <= 9000


def test_package_has_no_generic_name() -> None:
    assert all("site-packages/models" not in path for path in regbayes.__path__)
