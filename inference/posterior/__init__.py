"""What a fit learned: one class for each structure, from whichever backend."""

from .base import Posterior
from .partition import PartitionPosterior
from .sequence import SequencePosterior
from .trace import Trace

__all__ = ["PartitionPosterior", "Posterior", "SequencePosterior", "Trace"]
