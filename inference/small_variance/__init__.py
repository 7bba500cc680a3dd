"""The small-variance limit: DP-means and its kin, fast point estimates by descent on an explicit objective."""

from ...models.data import Data
from ...models.label_data import LabelData
from ...models.latent_features import FeatureData
from ...models.multi_task import TaskData
from ...models.sequence import Sequences
from . import features, multi_label, partition, projections, sequence
from .backend import SmallVariance

__all__ = ["SmallVariance"]

SmallVariance.register(Data, partition)
SmallVariance.register(Sequences, sequence)
SmallVariance.register(FeatureData, features)
SmallVariance.register(TaskData, projections)
SmallVariance.register(LabelData, multi_label)
