"""Latent features: how often each class has them, and what they look like."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from ..inference import FeaturePosterior
from ..models.domains import Whole, read, shown
from .axes import as_groups, axes_or_new, require_posterior


def plot_activations(posterior: FeaturePosterior, X: Any, y: Any, ax: Axes | None = None) -> Axes:
    """How often the rows of each class have each feature, as a table of shades; the most used features come first.

    Features that hardly any row has are left out. (Zhu, Chen & Xing, figures 4 and 5)

    Parameters
    ----------
    X, y : rows [N, D], NaN where missing, and their labels [N] of any kind
    """
    require_posterior(posterior, FeaturePosterior)
    psi = np.asarray(torch.as_tensor(posterior.transform(X)).cpu(), dtype=np.float64)
    names, places = as_groups("y", y, len(psi))
    order = _most_used(psi)
    shares = np.stack([psi[places == index][:, order].mean(0) for index in range(len(names))])
    ax = axes_or_new(ax)
    image = ax.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ax.set_yticks(range(len(names)), [str(name) for name in names])
    ax.set_xticks(range(len(order)), [str(index) for index in order], fontsize="small")
    ax.set(xlabel="feature", ylabel="class")
    ax.figure.colorbar(image, ax=ax, label="share of the rows that have it")
    return ax


def plot_loadings(
    posterior: FeaturePosterior, shape: tuple[int, int], *, num: int = 20, columns: int = 10, ax: Axes | None = None
) -> Axes:
    """The loadings of the features as images side by side; features that most training rows have come first.

    Dark pixels are what a feature subtracts from the columns of X, light ones what it adds, on one scale for all.

    Parameters
    ----------
    shape : (height, width) of an image, whose pixels are the columns of X row by row
    num, columns : the largest number of features, and how many of them are in a line
    """
    require_posterior(posterior, FeaturePosterior)
    num, columns = read("num", num, Whole(1)), read("columns", columns, Whole(1))
    loadings = np.asarray(posterior.loadings.cpu(), dtype=np.float64)
    height, width = _image(shape, loadings.shape[1])
    order = _most_used(np.asarray(posterior.features.cpu(), dtype=np.float64))[:num]
    lines = -(-len(order) // columns)
    sheet = np.full((lines * (height + 1) - 1, min(columns, len(order)) * (width + 1) - 1), np.nan)
    for place, index in enumerate(order):
        top, left = (place // columns) * (height + 1), (place % columns) * (width + 1)
        sheet[top : top + height, left : left + width] = loadings[index].reshape(height, width)
    ax = axes_or_new(ax)
    reach = float(np.nanmax(np.abs(sheet))) or 1.0
    ax.imshow(sheet, cmap="gray", vmin=-reach, vmax=reach, interpolation="nearest")
    ax.set_axis_off()
    return ax


def _most_used(psi: NDArray[np.float64]) -> list[int]:
    """The features [K'] that some row of [N, K] has, by decreasing use; the most used one if there is none.

    Raises
    ------
    ValueError    if K is 0.
    """
    if not psi.shape[1]:
        raise ValueError("posterior has no features to show: the fit found none.")
    use = psi.mean(0)
    order = np.argsort(-use, kind="stable")
    return [int(index) for index in order if psi[:, index].max() > _USED] or [int(order[0])]


def _image(shape: Any, num_pixels: int) -> tuple[int, int]:
    sides = shape if isinstance(shape, tuple | list) and all(isinstance(side, Integral) for side in shape) else ()
    if len(sides) != 2 or min(sides) < 1 or sides[0] * sides[1] != num_pixels:
        raise ValueError(
            f"shape is {shown(shape)}; expected (height, width) with {num_pixels} pixels, as X has columns."
        )
    return int(sides[0]), int(sides[1])


_USED = 0.5
