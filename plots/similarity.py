"""How often two training points share a component."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

from ..inference import MultiLabelPosterior, PartitionPosterior, SequencePosterior
from .axes import axes_or_new, require_posterior


def plot_similarity(
    posterior: PartitionPosterior | SequencePosterior | MultiLabelPosterior, ax: Axes | None = None
) -> Axes:
    """Posterior co-assignment probability [N, N] of the training points, ordered by the point partition.

    Components stand in order of size; within one, points stand in order of their mean similarity to it.
    """
    require_posterior(posterior, PartitionPosterior, SequencePosterior, MultiLabelPosterior)
    ax = axes_or_new(ax)
    similarity, partition = posterior.similarity().cpu(), posterior.partition().cpu()
    sizes = torch.bincount(partition)
    rank = torch.empty_like(sizes)
    rank[sizes.argsort(descending=True, stable=True)] = torch.arange(len(sizes))
    together = (partition.unsqueeze(0) == partition.unsqueeze(1)).to(similarity)
    belonging = (similarity * together).sum(1) / together.sum(1)
    order = belonging.argsort(descending=True, stable=True)
    order = order[rank[partition[order]].argsort(stable=True)]
    image = ax.imshow(similarity[order][:, order].numpy(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    for edge in sizes.sort(descending=True).values.cumsum(0)[:-1].tolist():
        if edge < len(partition):
            ax.axhline(edge - 0.5, color="0.4", linewidth=0.5)
            ax.axvline(edge - 0.5, color="0.4", linewidth=0.5)
    ax.set(xlabel="training point, by component", ylabel="training point, by component")
    ax.figure.colorbar(image, ax=ax, label="probability of one component", shrink=0.8)
    return ax
