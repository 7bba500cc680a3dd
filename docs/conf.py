"""The documentation site: `make site` builds it, and every warning is an error."""

from __future__ import annotations

import base64
import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import regbayes

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
project, author, release = "regbayes", "The regbayes developers", regbayes.__version__
copyright = f"2026, {author}"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.mathjax", "plain_docstrings"]
templates_path, exclude_patterns = ["_templates"], ["_build", "_ext", "README.md", "**.ipynb_checkpoints"]
html_theme, html_title = "pydata_sphinx_theme", "regbayes"
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": [],
}
# long equations, tables and lines of code need the room, and pages without pages below them have nothing to show there
alone = ["derivations/*", "evidence", "evidence/*", "guide", "practice", "scale", "data", "command-line", "glossary"]
alone += ["_generated/CONTRIBUTING", "_generated/CHANGELOG", "_generated/tutorials/*"]
html_sidebars = {page: [] for page in alone}
html_static_path = ["_static"]
html_css_files = ["site.css"]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the notebooks are saved with their output, and the tests run them
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
add_module_names = False
# types of notebooks' output that a page cannot show are left out
suppress_warnings = ["mystnb.unknown_mime_type", "misc.highlighting_failure"]

ROOMS = {
    "models": "Models, and the parts that they are built from.",
    "inference": "Backends, and the posteriors that they return.",
    "estimators": "Estimators for scikit-learn, each with a model and a backend.",
    "datasets": "Experiments of the papers, and public sets by name.",
    "plots": "Pictures of posteriors.",
    "testing": "Checks of a part, kernel or model of your own.",
}


def card(path: Path, generated: Path) -> str:
    """A tutorial on the page of all: its first picture, its title, and its question, bold in its first cell."""
    cells = json.loads(path.read_text())["cells"]
    title, text = "".join(cells[0]["source"]).removeprefix("# ").split("\n", 1)
    link = path.relative_to(HERE).as_posix()
    shown = f"**[{title}]({link})**\n\n{text.split('**')[1]}\n"
    for cell in cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                picture = generated / f"{path.stem}.png"
                picture.write_bytes(base64.b64decode(output["data"]["image/png"]))
                alt = cell["metadata"].get("mystnb", {}).get("image", {}).get("alt", title)
                image = f"[![{alt}]({picture.relative_to(HERE).as_posix()})]({link})"
                return f"````{{container}} tutorial\n{image}\n\n{shown}````"
    return f"````{{container}} tutorial\n{shown}````"


def write_sources() -> None:
    """Pages that other files of the repository hold: tutorials, contributing, changes, and the names in each room."""
    generated = HERE / "_generated"
    shutil.rmtree(generated, ignore_errors=True)
    shutil.copytree(HERE.parent / "tutorials", generated / "tutorials")
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(HERE.parent / name, generated)
    cards = "\n".join(card(path, generated) for path in sorted((generated / "tutorials").glob("*.ipynb")))
    (generated / "gallery.txt").write_text(f"`````{{container}} gallery\n{cards}\n`````\n")
    for room, what in ROOMS.items():
        module = importlib.import_module(f"regbayes.{room}")
        names = [name for name in sorted(module.__all__) if callable(getattr(module, name))]
        table = "\n".join(f"    {name}" for name in names)
        text = f"regbayes.{room}\n{'=' * (9 + len(room))}\n\n{what}\n\n.. currentmodule:: regbayes.{room}\n\n"
        (generated / f"{room}.rst").write_text(
            f"{text}.. autosummary::\n    :toctree: api\n    :nosignatures:\n\n{table}\n"
        )


def link_to_copies(app: Any, docname: str, source: list[str]) -> None:
    """Links out of docs/ lead to the copies of `write_sources`."""
    source[0] = source[0].replace("](../", "](_generated/") if "/" not in docname else source[0]


def setup(app: Any) -> None:
    app.connect("source-read", link_to_copies)


write_sources()
