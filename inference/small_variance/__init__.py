"""The small-variance limit: DP-means and its kin, fast point estimates by descent on an explicit objective."""

from ...models.data import Data
from ...models.sequence import Sequences
from . import partition, sequence
from .backend import SmallVariance

__all__ = ["SmallVariance"]

SmallVariance.register(Data, partition)
SmallVariance.register(Sequences, sequence)
