"""Clusters in the plane and the hyperplanes that part each of them from the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes

from ..inference import PartitionPosterior
from ..models.scores import scores
from .axes import as_points, axes_or_new, color_of, require_posterior
from .partition import plot_partition


def plot_hyperplanes(posterior: PartitionPosterior, X: Any, ax: Axes | None = None) -> Axes:
    """Training points X [N, 2] by cluster, and for each cluster the line where its hyperplane's score is 0.

    Points and hyperplanes are those of the representative draw of a model whose components repel.

    Raises
    ------
    ValueError    unless X has two columns and the model has such hyperplanes.
    """
    require_posterior(posterior, PartitionPosterior)
    rows = as_points(X)
    if rows.shape[1] != 2:
        raise ValueError(f"X has shape {rows.shape}; hyperplanes are drawn in the plane: expected [N, 2].")
    if not posterior.model.repels:
        raise ValueError(f"The components of {type(posterior.model).__name__} have no hyperplanes that separate them.")
    labels = posterior.samples["assignments"][posterior.representative].cpu()
    if len(labels) != len(rows):
        raise ValueError(f"X has {len(rows)} rows; expected the {len(labels)} training points.")
    ax = plot_partition(rows, labels, ax=axes_or_new(ax))
    weights = posterior.samples["weights"][posterior.representative]
    low, high = (torch.as_tensor(limits) for limits in zip(ax.get_xlim(), ax.get_ylim(), strict=True))
    across, up = torch.meshgrid(*(torch.linspace(low[i], high[i], 200) for i in range(2)), indexing="xy")
    grid = torch.stack([across.flatten(), up.flatten()], 1).to(weights)
    found = scores(posterior.model.features(grid), weights).squeeze(-1).cpu()
    components, sizes = torch.unique(labels, return_counts=True)
    for index, position in enumerate(np.argsort(-sizes.numpy(), kind="stable")):
        field = found[:, components[position]].view(across.shape)
        if field.min() < 0 < field.max():  # else its hyperplane is outside the picture
            ax.contour(across, up, field, levels=[0.0], colors=[color_of(index)], linewidths=1.8)
    return ax
