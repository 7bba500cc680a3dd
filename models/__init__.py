"""Models and their parts (priors, likelihoods, losses, feature maps, targets): joint densities, without inference."""

from . import compiled, domains
from .base import Model
from .bnmc import BNMC
from .data import Data
from .ddpm import DDPM
from .dih import DIH
from .dpm import DPM
from .feature_maps import FeatureMap, Nystroem, PrincipalDirections, RandomFourier, Standardized
from .ihmm import IHMM
from .ilsvm import InfiniteLatentSVM
from .isvm import InfiniteSVM
from .label_data import LabelData
from .latent_features import FeatureData, FeatureModel
from .lfm import LatentFeatureModel
from .likelihoods import (
    BernoulliBeta,
    Blocks,
    ConstantColumnWarning,
    DiagonalGaussian,
    ExponentialFamily,
    FullGaussian,
    Likelihood,
    LinearBernoulli,
    LinearGaussian,
    LinearLikelihood,
    LinearRegression,
    MaskedBernoulli,
    MultinomialDirichlet,
    PoissonGamma,
    Product,
    SphericalGaussian,
)
from .losses import (
    AllThresholds,
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
from .medlda import LDA, MedLDA
from .mixture import Mixture
from .mt_ilsvm import MultiTaskInfiniteLatentSVM
from .multi_task import TaskData, by_task
from .priors import (
    BetaBernoulli,
    DirichletProcess,
    DirichletTopics,
    FeaturePrior,
    HierarchicalDirichletProcess,
    IndianBuffetProcess,
    MixtureOfFiniteMixtures,
    PartitionPrior,
    PitmanYor,
)
from .sequence import Sequences, StateSpace
from .sparse import SparseRows
from .targets import Binary, ClassTarget, EachClass, MissingLabelWarning, Ordinal, Real, Target
from .topics import TopicData, TopicModel

__all__ = [
    "BNMC",
    "DDPM",
    "DIH",
    "DPM",
    "IHMM",
    "LDA",
    "AllThresholds",
    "BernoulliBeta",
    "BetaBernoulli",
    "Binary",
    "Blocks",
    "ClassTarget",
    "ConstantColumnWarning",
    "CrammerSinger",
    "Data",
    "DiagonalGaussian",
    "DirichletProcess",
    "DirichletTopics",
    "EachClass",
    "EpsilonInsensitive",
    "ExponentialFamily",
    "FeatureData",
    "FeatureMap",
    "FeatureModel",
    "FeaturePrior",
    "FullGaussian",
    "HierarchicalDirichletProcess",
    "Hinge",
    "IndianBuffetProcess",
    "InfiniteLatentSVM",
    "InfiniteSVM",
    "LabelData",
    "LatentFeatureModel",
    "Likelihood",
    "LinearBernoulli",
    "LinearGaussian",
    "LinearLikelihood",
    "LinearRegression",
    "Logistic",
    "Loss",
    "Masked",
    "MaskedBernoulli",
    "MedLDA",
    "MissingLabelWarning",
    "Mixture",
    "MixtureOfFiniteMixtures",
    "Model",
    "MultiTaskInfiniteLatentSVM",
    "MultinomialDirichlet",
    "Nystroem",
    "OneVsRest",
    "Ordinal",
    "PartitionPrior",
    "PitmanYor",
    "PoissonGamma",
    "PrincipalDirections",
    "Product",
    "PseudoObservation",
    "RandomFourier",
    "Real",
    "Sequences",
    "SparseRows",
    "SphericalGaussian",
    "SquaredHinge",
    "Standardized",
    "StateSpace",
    "StudentT",
    "Target",
    "TaskData",
    "TopicData",
    "TopicModel",
    "by_task",
    "compiled",
    "domains",
]
