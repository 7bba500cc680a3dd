"""What the plots share."""

from __future__ import annotations

from matplotlib.axes import Axes

# Okabe & Ito's palette without its yellow, told apart by colour-blind readers as well
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7A4EAB", "#8C6D31")


def axes_or_new(ax: Axes | None) -> Axes:
    """The Axes given, else those of a new figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt  # here, because it chooses a window system

    return plt.subplots(layout="constrained")[1]


def color_of(index: int) -> str:
    """A colour for the index-th largest component; those beyond the eighth share grey."""
    return COLORS[index] if index < len(COLORS) else "0.6"
