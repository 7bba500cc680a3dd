"""What is believed: models and their four parts (priors, likelihoods, losses, feature maps). Nothing here knows how
inference is done."""

from .base import Model
from .data import Data
from .ddpm import DDPM
from .dih import DIH
from .dpm import DPM
from .feature_maps import FeatureMap, PrincipalDirections, RandomFourier, Standardized
from .feature_maps.standardized import ConstantColumnWarning
from .ihmm import IHMM
from .isvm import InfiniteSVM
from .likelihoods import (
    BernoulliBeta,
    DiagonalGaussian,
    ExponentialFamily,
    FullGaussian,
    Likelihood,
    MultinomialDirichlet,
    PoissonGamma,
    SphericalGaussian,
)
from .losses import (
    CrammerSinger,
    EpsilonInsensitive,
    Hinge,
    Logistic,
    Loss,
    Masked,
    OneVsRest,
    PseudoObservation,
    SquaredHinge,
    StudentT,
)
from .mixture import Mixture
from .priors import DirichletProcess, HierarchicalDirichletProcess, PartitionPrior, PitmanYor
from .sequence import Sequences, StateSpace
from .sparse import SparseRows

__all__ = [
    "DDPM",
    "DIH",
    "DPM",
    "IHMM",
    "BernoulliBeta",
    "ConstantColumnWarning",
    "CrammerSinger",
    "Data",
    "DiagonalGaussian",
    "DirichletProcess",
    "EpsilonInsensitive",
    "ExponentialFamily",
    "FeatureMap",
    "FullGaussian",
    "HierarchicalDirichletProcess",
    "Hinge",
    "InfiniteSVM",
    "Likelihood",
    "Logistic",
    "Loss",
    "Masked",
    "Mixture",
    "Model",
    "MultinomialDirichlet",
    "OneVsRest",
    "PartitionPrior",
    "PitmanYor",
    "PoissonGamma",
    "PrincipalDirections",
    "PseudoObservation",
    "RandomFourier",
    "Sequences",
    "SparseRows",
    "SphericalGaussian",
    "SquaredHinge",
    "Standardized",
    "StateSpace",
    "StudentT",
]
