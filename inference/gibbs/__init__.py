"""Gibbs sampling: exact in the limit of many sweeps."""

from ...models.data import Data
from ...models.label_data import LabelData
from ...models.latent_features import FeatureData
from ...models.multi_task import TaskData
from ...models.sequence import Sequences
from ...models.topics import TopicData
from . import partition, projection, sequence, topics
from .backend import Gibbs
from .features import kernel as feature_kernel
from .label_sets import kernel as label_kernel

__all__ = ["Gibbs"]

Gibbs.register(Data, partition)
Gibbs.register(Sequences, sequence)
Gibbs.register(TopicData, topics)
Gibbs.register(TaskData, projection)
Gibbs.register(FeatureData, feature_kernel)
Gibbs.register(LabelData, label_kernel)
