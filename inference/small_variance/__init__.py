"""The small-variance limit: DP-means and its kin, fast point estimates by descent on an explicit objective."""

from ...models.data import Data
from ...models.label_data import LabelData
from ...models.latent_features import FeatureData
from ...models.multi_task import TaskData
from ...models.sequence import Sequences
from . import partition, projection, sequence
from .backend import SmallVariance
from .features import kernel as feature_kernel
from .label_sets import kernel as label_kernel

__all__ = ["SmallVariance"]

SmallVariance.register(Data, partition)
SmallVariance.register(Sequences, sequence)
SmallVariance.register(FeatureData, feature_kernel)
SmallVariance.register(TaskData, projection)
SmallVariance.register(LabelData, label_kernel)
