"""The HTML of a model in notebooks: its plate diagram if graphviz is installed, else a table of its parts."""

from __future__ import annotations

import warnings
from html import escape
from typing import Any

import pyro
import torch

from .config import brief


def table(title: str, rows: dict[str, str]) -> str:
    """A table of a title and rows by name, whose cells are HTML."""
    lines = (
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{cell}</td></tr>'
        for name, cell in rows.items()
    )
    return f'<table><caption style="text-align:left"><b>{escape(title)}</b></caption>{"".join(lines)}</table>'


def model_html(model: Any) -> str:
    """The plate diagram of a model's program with the model's repr, or a table of its parts."""
    try:
        return f"{_diagram(model)}<pre>{escape(repr(model))}</pre>"
    except Exception:  # without graphviz, or if the likelihood takes no rows of bits
        return table(type(model).__name__, {name: _cell(model, name) for name in model.get_params(deep=False)})


def _cell(model: Any, name: str) -> str:
    """An argument as HTML, in bold if it is not its default."""
    text = escape(brief(getattr(model, name)))
    return f"<b>{text}</b>" if name in model.changed() else text


def _diagram(model: Any) -> str:
    """SVG of the program on four rows of bits, which most likelihoods accept."""
    parts = getattr(getattr(model, "likelihood", None), "parts", [])
    width = model.num_features or sum(size for _, size in parts) or 2
    X = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]).repeat(1, width)[:, :width]
    y, coding = None, model.checked().coding
    if coding is not None:
        labels = torch.arange(4) % 2 if model.classes is None else model.classes[torch.arange(4) % len(model.classes)]
        y = torch.stack([labels, 1 - labels], 1) if coding.is_matrix else labels
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: str = pyro.render_model(model, model_args=(X, y)).pipe(format="svg", encoding="utf-8")
    return found[found.index("<svg") :]
