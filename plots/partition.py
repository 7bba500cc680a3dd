"""Clusters of points in the plane, or in the first two principal axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes

from .axes import axes_or_new, color_of


def plot_partition(X: Any, labels: Any, ax: Axes | None = None) -> Axes:
    """Points X [N, D] coloured by their cluster [N], the largest first; D > 2: in the first two principal axes.

    Rows with a missing value (NaN) are left out.
    """
    ax = axes_or_new(ax)
    points = np.asarray(torch.as_tensor(X).cpu(), dtype=float)
    found = np.asarray(labels.cpu() if isinstance(labels, torch.Tensor) else labels)
    seen = np.isfinite(points).all(1)
    points, found = points[seen], found[seen]
    names = ("first column", "second column")
    if points.shape[1] > 2:
        centred = points - points.mean(0)
        points = centred @ np.linalg.eigh(centred.T @ centred)[1][:, :-3:-1]
        names = ("first principal axis", "second principal axis")
    elif points.shape[1] == 1:
        points = np.column_stack([points, np.zeros(len(points))])
        names = ("the only column", "")
    clusters, sizes = np.unique(found, return_counts=True)
    for index, position in enumerate(np.argsort(-sizes, kind="stable")):
        own = found == clusters[position]
        label = f"{sizes[position]} points" if index < 8 else None
        across, up = points[own].T
        ax.scatter(across, up, s=12, color=color_of(index), alpha=0.7, linewidths=0, label=label)
    ax.legend(frameon=False, fontsize="small", handletextpad=0.2)
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1])
    return ax
