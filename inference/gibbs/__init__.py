"""Gibbs sampling: exact in the limit of many sweeps."""

from ...models.data import Data
from ...models.label_data import LabelData
from ...models.latent_features import FeatureData
from ...models.multi_task import TaskData
from ...models.sequence import Sequences
from ...models.topics import TopicData
from . import partition, sequence, topics
from . import projection as projections
from .backend import Gibbs
from .features import kernel as features
from .label_sets import kernel as multi_label

__all__ = ["Gibbs"]

Gibbs.register(Data, partition)
Gibbs.register(Sequences, sequence)
Gibbs.register(TopicData, topics)
Gibbs.register(TaskData, projections)
Gibbs.register(FeatureData, features)
Gibbs.register(LabelData, multi_label)
