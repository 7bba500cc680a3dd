"""Gibbs sampling: exact in the limit of many sweeps."""

from ...models.data import Data
from ...models.sequence import Sequences
from . import partition, sequence
from .backend import Gibbs

__all__ = ["Gibbs"]

Gibbs.register(Data, partition)
Gibbs.register(Sequences, sequence)
