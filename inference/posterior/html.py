"""The HTML of a posterior for notebooks: model, backend, sizes, trace and diagnosis."""

from __future__ import annotations

from html import escape
from typing import Any

import torch
from torch import Tensor

from ...models.html import table
from .trace import Trace


def posterior_html(posterior: Any) -> str:
    """A table with the facts of `repr`, the trace as a small picture, and the verdict of `diagnose`."""
    trace, found = posterior.trace, posterior.diagnose()
    sizes = {name: "x".join(map(str, value.shape[1:])) for name, value in posterior.samples.items() if value.ndim > 1}
    rows = {
        "model": escape(repr(posterior.model)),
        "backend": escape(repr(posterior.backend)),
        "draws": escape(f"{' + '.join(map(str, posterior.num_draws))}; {', '.join(posterior.facts())}"),
        "samples": escape(", ".join(f"{name} {size}" for name, size in sizes.items())),
        "trace": f"{sparkline(trace)} {escape(f'{trace.name} {trace.best:.6g}')}",
        "diagnosis": escape(f"{found.verdict}: {found.advice}"),
    }
    return table(f"Posterior of {type(posterior.model).__name__}", rows)


def sparkline(trace: Trace) -> str:
    """SVG of the values of a trace, one line per chain."""
    finite = trace.values[trace.values.isfinite()]
    low, high = (float(end) for end in finite.aminmax()) if len(finite) else (0.0, 1.0)
    lines = "".join(
        f'<polyline fill="none" stroke="hsl({210 + 80 * chain},60%,50%)" points="{_points(values, low, high)}"/>'
        for chain, values in enumerate(trace.values)
    )
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(trace.name)}</title>{lines}</svg>'


def _points(values: Tensor, low: float, high: float) -> str:
    """Points of the finite values [steps] of a chain, at most one per pixel of width."""
    steps = torch.linspace(0, max(0, len(values) - 1), min(len(values), _WIDTH)).round().long()
    width = max(1, len(values) - 1)
    return " ".join(
        f"{step / width * _WIDTH:.1f},{_HEIGHT - (value - low) / ((high - low) or 1.0) * _HEIGHT:.1f}"
        for step, value in zip(steps.tolist(), values[steps].tolist(), strict=True)
        if low <= value <= high
    )


_WIDTH, _HEIGHT = 200, 30
