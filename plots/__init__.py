"""Pictures of posteriors. Every function takes `ax` (None: a new figure) and returns the Axes."""

from .components import plot_components
from .features import plot_activations, plot_loadings
from .hyperplanes import plot_hyperplanes
from .partition import plot_partition
from .sequence import plot_num_components, plot_states
from .similarity import plot_similarity
from .topics import plot_topics
from .trace import plot_trace

__all__ = [
    "plot_activations",
    "plot_components",
    "plot_hyperplanes",
    "plot_loadings",
    "plot_num_components",
    "plot_partition",
    "plot_similarity",
    "plot_states",
    "plot_topics",
    "plot_trace",
]
