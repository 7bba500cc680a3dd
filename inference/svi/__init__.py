"""Variational inference: coordinate ascent on the evidence bound, or stochastic natural gradients on minibatches."""

from ...models.data import Data
from ...models.label_data import LabelData
from ...models.latent_features import FeatureData
from ...models.multi_task import TaskData
from ...models.sequence import Sequences
from ...models.topics import TopicData
from .backend import SVI
from .features import kernel as features
from .label_sets import kernel as multi_label
from .partition import averaging
from .projection import kernel as projections
from .sequence import kernel as sequence
from .topics import kernel as topics

__all__ = ["SVI"]

SVI.register(Data, averaging.STEPS)
SVI.register(Sequences, sequence.STEPS)
SVI.register(TopicData, topics)
SVI.register(TaskData, projections)
SVI.register(FeatureData, features)
SVI.register(LabelData, multi_label)
