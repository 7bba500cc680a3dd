"""Inference: backends, each a class that computes posteriors, and a class of posterior for each structure."""

from ..models.ranks import RankLost
from .backend import Backend
from .distributed.mapped import map_rows
from .distributed.rows import rows_of
from .distributed.sources import RowSource
from .distributed.stream import RowsInOrder
from .gibbs import Gibbs
from .hilbert_embedding.backend import HilbertEmbedding
from .hilbert_embedding.closed_kernels import QuadraticKernel, RBFKernel
from .hilbert_embedding.fourier_kernel import FourierKernel
from .hilbert_embedding.mean_kernels import MeanKernel
from .hilbert_embedding.mmd import MMD
from .posterior import (
    ChainsDisagree,
    Diagnosis,
    FeaturePosterior,
    MultiLabelPosterior,
    PartitionPosterior,
    Posterior,
    ProjectionPosterior,
    SequencePosterior,
    TopicPosterior,
    Trace,
)
from .pyro_engines import NUTS, Autoguide, NoMaximum, PyroGibbs
from .running.checkpoints import CheckpointWarning
from .running.emptied import ClustersEmptied
from .running.engine import Chain, FitInterrupted, Kernel, Schedule, Sweeps, run
from .running.files import release as __version__
from .running.processes import ProcessLost
from .small_variance import SmallVariance
from .structures import Structure, register_structure, structure_of
from .svi import SVI
from .svi.online import continue_fit
from .truncation import TruncationWarning

__all__ = [
    "MMD",
    "NUTS",
    "SVI",
    "Autoguide",
    "Backend",
    "Chain",
    "ChainsDisagree",
    "CheckpointWarning",
    "ClustersEmptied",
    "Diagnosis",
    "FeaturePosterior",
    "FitInterrupted",
    "FourierKernel",
    "Gibbs",
    "HilbertEmbedding",
    "Kernel",
    "MeanKernel",
    "MultiLabelPosterior",
    "NoMaximum",
    "PartitionPosterior",
    "Posterior",
    "ProcessLost",
    "ProjectionPosterior",
    "PyroGibbs",
    "QuadraticKernel",
    "RBFKernel",
    "RankLost",
    "RowSource",
    "RowsInOrder",
    "Schedule",
    "SequencePosterior",
    "SmallVariance",
    "Structure",
    "Sweeps",
    "TopicPosterior",
    "Trace",
    "TruncationWarning",
    "__version__",
    "continue_fit",
    "map_rows",
    "register_structure",
    "rows_of",
    "run",
    "structure_of",
]
