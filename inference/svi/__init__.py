"""Variational inference: coordinate ascent on the evidence bound, or stochastic natural gradients on minibatches."""

from ...models.data import Data
from ...models.label_data import LabelData
from ...models.latent_features import FeatureData
from ...models.multi_task import TaskData
from ...models.sequence import Sequences
from ...models.topics import TopicData
from .backend import SVI
from .features import kernel as feature_kernel
from .label_sets import kernel as label_kernel
from .partition import averaging
from .projection import kernel as projection_kernel
from .sequence import kernel as sequence_kernel
from .topics import kernel as topic_kernel

__all__ = ["SVI"]

SVI.register(Data, averaging.BY_RULE)
SVI.register(Sequences, sequence_kernel.BY_RULE)
SVI.register(TopicData, topic_kernel.BY_RULE)
SVI.register(TaskData, projection_kernel.BY_RULE)
SVI.register(FeatureData, feature_kernel.BY_RULE)
SVI.register(LabelData, label_kernel.BY_RULE)
