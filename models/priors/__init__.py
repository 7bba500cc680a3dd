"""Priors over latent structure, one file each; `base` states the interface of those over partitions."""

from .base import Hyper, PartitionPrior, StickExpectations
from .dirichlet_process import DirichletProcess
from .hierarchical_dirichlet_process import HierarchicalDirichletProcess
from .pitman_yor import PitmanYor

__all__ = [
    "DirichletProcess",
    "HierarchicalDirichletProcess",
    "Hyper",
    "PartitionPrior",
    "PitmanYor",
    "StickExpectations",
]
