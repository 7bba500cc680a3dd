"""Variational inference: coordinate ascent on the evidence bound, or stochastic natural gradients on minibatches."""

from ...models.data import Data
from ...models.label_data import LabelData
from ...models.latent_features import FeatureData
from ...models.multi_task import TaskData
from ...models.sequence import Sequences
from ...models.topics import TopicData
from . import averaging, features, multi_label, projections, sequence, topics
from .backend import SVI

__all__ = ["SVI"]

SVI.register(Data, averaging.STEPS)
SVI.register(Sequences, sequence.STEPS)
SVI.register(TopicData, topics)
SVI.register(TaskData, projections)
SVI.register(FeatureData, features)
SVI.register(LabelData, multi_label)
