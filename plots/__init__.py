"""Pictures of posteriors. Every function takes `ax` (None: a new figure) and returns the Axes."""

from .components import plot_components
from .hyperplanes import plot_hyperplanes
from .partition import plot_partition
from .sequence import plot_num_components, plot_states
from .similarity import plot_similarity
from .trace import plot_trace

__all__ = [
    "plot_components",
    "plot_hyperplanes",
    "plot_num_components",
    "plot_partition",
    "plot_similarity",
    "plot_states",
    "plot_trace",
]
