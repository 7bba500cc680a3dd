"""Priors over latent structure; `base` states the interface of priors over partitions."""

from .base import Hyper, PartitionPrior, StickExpectations
from .beta_bernoulli import BetaBernoulli
from .dirichlet_process import DirichletProcess
from .features import FeatureFactors, FeaturePrior
from .hierarchical_dirichlet_process import HierarchicalDirichletProcess
from .indian_buffet_process import IndianBuffetProcess
from .mixture_of_finite_mixtures import MixtureOfFiniteMixtures
from .pitman_yor import PitmanYor
from .topics import DirichletTopics

__all__ = [
    "BetaBernoulli",
    "DirichletProcess",
    "DirichletTopics",
    "FeatureFactors",
    "FeaturePrior",
    "HierarchicalDirichletProcess",
    "Hyper",
    "IndianBuffetProcess",
    "MixtureOfFiniteMixtures",
    "PartitionPrior",
    "PitmanYor",
    "StickExpectations",
]
