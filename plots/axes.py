"""Shared by all plots: the axes to draw on, colours, and checks of arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from ..models.arrays import read_rows
from ..models.domains import shown

# Okabe & Ito's palette without its yellow, told apart by colour-blind readers as well
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7A4EAB", "#8C6D31")


def axes_or_new(ax: Axes | None) -> Axes:
    """The Axes given, else those of a new figure."""
    if isinstance(ax, Axes):
        return ax
    if ax is not None:
        raise ValueError(f"ax is {shown(ax)}; expected matplotlib Axes, or None for a new figure.")
    import matplotlib.pyplot as plt  # here, because it chooses a window system

    return plt.subplots(layout="constrained")[1]


def color_of(index: int) -> str:
    """A colour for the index-th largest component; those beyond the eighth share grey."""
    return COLORS[index] if index < len(COLORS) else "0.6"


def counted(number: int, noun: str) -> str:
    """The number with its noun: "1 row", "2 rows"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def as_points(X: Any) -> NDArray[np.float64]:
    """The rows of X [N, D] as float64; NaN stays."""
    rows = read_rows(X)
    if rows.is_sparse:
        raise ValueError("X is sparse; a picture needs dense rows: pass X.toarray().")
    if not len(rows) or not rows.shape[1]:
        raise ValueError(f"X has shape {tuple(rows.shape)}; there is nothing to draw.")
    points = np.asarray(rows.cpu(), dtype=np.float64)
    if (np.abs(points) > 1e100).any():
        raise ValueError("X has values beyond 1e100, which no picture shows. Scale X down, or drop such rows.")
    return points


def as_groups(name: str, labels: Any, num_rows: int | None = None) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The different labels [K], sorted, and the place of each row's among them [N], from labels [N] of any kind."""
    try:
        values = np.asarray(labels.detach().cpu() if isinstance(labels, torch.Tensor) else labels)
        names, places = np.unique(values, return_inverse=True)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{name} is {shown(labels)}; expected labels [N] of one kind: {error}.") from None
    if values.ndim != 1 or not len(values) or num_rows not in (None, len(values)):
        raise ValueError(f"{name} has shape {values.shape}; expected [{num_rows or 'N'}], a label for each row.")
    return names, places


def principal_axes(centred: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first two principal axes [D, 2] of centred rows [N, D]; the second is 0 for data of one column.

    The sign of an axis is arbitrary: its largest entry is positive, the first of those that differ by rounding alone,
    as both do of two standardized columns.
    """
    if centred.shape[1] <= len(centred):
        axes = np.linalg.eigh(centred.T @ centred)[1][:, :-3:-1]
    else:  # the smaller of N x N and D x D; a row of zeros moves no axis, and gives a lone row a second one
        axes = np.linalg.svd(np.pad(centred, ((0, 1), (0, 0))), full_matrices=False)[2][:2].T
    largest = np.abs(axes).round(_DIGITS).argmax(0)
    axes = axes * np.sign(axes[largest, np.arange(axes.shape[1])])
    return np.pad(axes, ((0, 0), (0, 2 - axes.shape[1])))


def require_posterior(posterior: Any, *kinds: type[Any]) -> None:
    """ValueError unless it is a posterior of one of the kinds."""
    if not isinstance(posterior, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"posterior is {shown(posterior)}; expected a {expected}, which fit returns.")


_DIGITS = 6
