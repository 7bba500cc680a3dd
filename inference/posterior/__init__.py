"""Posteriors: the result of a fit, with one class for each structure, for all backends."""

from .base import Posterior
from .diagnosis import ChainsDisagree, Diagnosis
from .features import FeaturePosterior
from .multi_label import MultiLabelPosterior
from .partition import PartitionPosterior
from .projection import ProjectionPosterior
from .sequence import SequencePosterior
from .topics import TopicPosterior
from .trace import Trace

__all__ = [
    "ChainsDisagree",
    "Diagnosis",
    "FeaturePosterior",
    "MultiLabelPosterior",
    "PartitionPosterior",
    "Posterior",
    "ProjectionPosterior",
    "SequencePosterior",
    "TopicPosterior",
    "Trace",
]
