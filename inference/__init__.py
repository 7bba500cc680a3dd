"""How posteriors are computed: one backend a class, one posterior a structure."""

from .backend import Backend
from .checkpoints import CheckpointWarning
from .engine import Chain, FitInterrupted, Kernel, Schedule, run
from .files import release as __version__
from .gibbs import Gibbs
from .posterior import (
    FeaturePosterior,
    PartitionPosterior,
    Posterior,
    ProjectionPosterior,
    SequencePosterior,
    TopicPosterior,
    Trace,
)
from .pyro_engines import NUTS, Autoguide
from .small_variance import SmallVariance
from .structures import Structure, register_structure, structure_of
from .svi import SVI
from .truncation import TruncationWarning

__all__ = [
    "NUTS",
    "SVI",
    "Autoguide",
    "Backend",
    "Chain",
    "CheckpointWarning",
    "FeaturePosterior",
    "FitInterrupted",
    "Gibbs",
    "Kernel",
    "PartitionPosterior",
    "Posterior",
    "ProjectionPosterior",
    "Schedule",
    "SequencePosterior",
    "SmallVariance",
    "Structure",
    "TopicPosterior",
    "Trace",
    "TruncationWarning",
    "__version__",
    "register_structure",
    "run",
    "structure_of",
]
