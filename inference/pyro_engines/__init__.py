"""Pyro's own inference on the programs of the models: NUTS and the autoguides."""

from ...models.data import Data
from ...models.label_data import LabelData
from ...models.latent_features import FeatureData
from ...models.sequence import Sequences
from . import features, multi_label, partition, sequence
from .backend import NUTS, Autoguide, Sites, serve
from .inside_mcmc import PyroGibbs
from .maxima import NoMaximum
from .parts import GibbsSites

__all__ = ["NUTS", "Autoguide", "GibbsSites", "NoMaximum", "PyroGibbs", "Sites", "serve"]

serve(Data, partition)
serve(FeatureData, features)
serve(LabelData, multi_label)
serve(Sequences, sequence)
PyroGibbs.register(Data, partition)
PyroGibbs.register(LabelData, multi_label)
PyroGibbs.register(Sequences, sequence)
