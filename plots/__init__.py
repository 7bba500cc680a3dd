"""Pictures of posteriors. Every function takes `ax` (None: a new figure) and returns the Axes."""

from .components import plot_components
from .partition import plot_partition
from .similarity import plot_similarity
from .trace import plot_trace

__all__ = ["plot_components", "plot_partition", "plot_similarity", "plot_trace"]
