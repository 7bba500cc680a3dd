"""States over time, and how many of them there were."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from scipy.optimize import linear_sum_assignment

from ..inference import MultiLabelPosterior, PartitionPosterior, SequencePosterior
from ..models.arrays import as_sequences
from .axes import as_groups, axes_or_new, color_of, require_posterior


def plot_states(states: Any, truth: Any = None, lengths: Any = None, ax: Axes | None = None) -> Axes:
    """A ribbon of states over time, and below it one of the true states; lines separate the sequences.

    A state has the colour of the true state with which it shares most steps (each colour once), else its own colour.

    Parameters
    ----------
    states, truth : labels [N] of any kind
    lengths : steps of each sequence; None: one sequence
    """
    ax = axes_or_new(ax)
    found, names = _numbered("states", states)
    _, sizes, _ = as_sequences(np.zeros((len(found), 1)), lengths)
    rows, ticks = [found], ["found"]
    num_colors = len(names)
    if truth is not None:
        true, kinds = _numbered("truth", truth, len(found))
        table = np.zeros((len(names), len(kinds)))
        np.add.at(table, (found, true), 1)
        color = np.full(len(names), -1)
        own, partner = linear_sum_assignment(table, maximize=True)
        color[own] = partner
        spare = color < 0
        color[spare] = len(kinds) + np.arange(spare.sum())
        rows, ticks = [color[found], true], ["found", "true"]
        num_colors = max(len(kinds), int(color.max()) + 1)
    image = np.array(rows)
    colors = ListedColormap([to_rgb(color_of(index)) for index in range(num_colors)])
    extent = (-0.5, len(found) - 0.5, len(rows) - 0.5, -0.5)
    options: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "vmin": -0.5, "vmax": num_colors - 0.5}
    ax.imshow(image, cmap=colors, extent=extent, **options)
    for end in np.cumsum(sizes)[:-1]:
        ax.axvline(end - 0.5, color="white", linewidth=2)
    ax.set_yticks(range(len(rows)), ticks)
    ax.set_xlabel("step")
    return ax


def plot_num_components(
    posterior: PartitionPosterior | SequencePosterior | MultiLabelPosterior, ax: Axes | None = None
) -> Axes:
    """The number of occupied components in every kept draw, one line for each chain."""
    require_posterior(posterior, PartitionPosterior, SequencePosterior, MultiLabelPosterior)
    ax = axes_or_new(ax)
    numbers = torch.tensor([len(torch.unique(draw)) for draw in posterior.samples["assignments"]])
    for index, chain in enumerate(numbers.split(posterior.num_draws)):
        ax.step(range(len(chain)), chain, where="mid", marker=".", color=color_of(index), label=f"chain {index + 1}")
    if len(posterior.num_draws) > 1:
        ax.legend(frameon=False, fontsize="small")
    ax.set(xlabel="draw", ylabel="components")
    return ax


def _numbered(name: str, labels: Any, num_rows: int | None = None) -> tuple[Any, Any]:
    """Labels [N] as 0..K-1, the most frequent first, and their names."""
    names, places = as_groups(name, labels, num_rows)
    order = np.argsort(-np.bincount(places), kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[places], names[order]
