"""Pyro's own engines on the programs of the models: NUTS and the autoguides."""

from ...models.data import Data
from ...models.label_data import LabelData
from ...models.sequence import Sequences
from . import multi_label, partition, sequence
from .backend import NUTS, Autoguide, Sites, serve

__all__ = ["NUTS", "Autoguide", "Sites", "serve"]

serve(Data, partition)
serve(LabelData, multi_label)
serve(Sequences, sequence)
