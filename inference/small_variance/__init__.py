"""The small-variance limit: DP-means and its kin, fast point estimates by descent on an explicit objective."""

from ...models.data import Data
from ...models.label_data import LabelData
from ...models.latent_features import FeatureData
from ...models.multi_task import TaskData
from ...models.sequence import Sequences
from . import partition, sequence
from . import projection as projections
from .backend import SmallVariance
from .features import kernel as features
from .label_sets import kernel as multi_label

__all__ = ["SmallVariance"]

SmallVariance.register(Data, partition)
SmallVariance.register(Sequences, sequence)
SmallVariance.register(FeatureData, features)
SmallVariance.register(TaskData, projections)
SmallVariance.register(LabelData, multi_label)
