"""Clusters of points in the plane, or in the first two principal axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from .axes import COLORS, as_groups, as_points, axes_or_new, color_of, counted, principal_axes


def plot_partition(X: Any, labels: Any, ax: Axes | None = None) -> Axes:
    """Points X [N, D] coloured by their cluster [N], the largest first; D > 2: in the first two principal axes.

    Rows with a missing value (NaN) are left out.
    """
    points = as_points(X)
    _, found = as_groups("labels", labels, len(points))
    ax, seen = axes_or_new(ax), np.isfinite(points).all(1)
    points, found = points[seen], found[seen]
    if not len(points):
        raise ValueError("X has no row without a missing value: there is nothing to draw.")
    names = ("first column", "second column")
    if points.shape[1] > 2:
        centred = points - points.mean(0)
        points = centred @ principal_axes(centred)
        names = ("first principal axis", "second principal axis")
    elif points.shape[1] == 1:
        points = np.column_stack([points, np.zeros(len(points))])
        names = ("the only column", "")
    clusters, sizes = np.unique(found, return_counts=True)
    for index, position in enumerate(np.argsort(-sizes, kind="stable")):
        own = found == clusters[position]
        label = counted(sizes[position], "point") if index < len(COLORS) else None
        across, up = points[own].T
        ax.scatter(across, up, s=12, color=color_of(index), alpha=0.7, linewidths=0, label=label)
    ax.legend(frameon=False, fontsize="small", handletextpad=0.2)
    ax.set(xlabel=names[0], ylabel=names[1])
    return ax
