"""Variational inference: coordinate ascent on the evidence bound, or stochastic natural gradients on minibatches."""

from ...models.data import Data
from ...models.sequence import Sequences
from . import partition, sequence
from .backend import SVI

__all__ = ["SVI"]

SVI.register(Data, partition.STEPS)
SVI.register(Sequences, sequence.STEPS)
