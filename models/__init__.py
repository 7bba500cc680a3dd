"""What is believed: models, priors, likelihoods and losses. Nothing here knows how inference is done."""

from .ddpm import DDPM
from .dpm import DPM
from .isvm import ConstantColumnWarning, InfiniteSVM
from .likelihoods import (
    BernoulliBeta,
    DiagonalGaussian,
    FullGaussian,
    Likelihood,
    MultinomialDirichlet,
    PoissonGamma,
    SphericalGaussian,
)
from .losses import CrammerSinger, EpsilonInsensitive, Hinge, Logistic, Loss, OneVsRest, PseudoObservation
from .mixture import Mixture

__all__ = [
    "DDPM",
    "DPM",
    "BernoulliBeta",
    "ConstantColumnWarning",
    "CrammerSinger",
    "DiagonalGaussian",
    "EpsilonInsensitive",
    "FullGaussian",
    "Hinge",
    "InfiniteSVM",
    "Likelihood",
    "Logistic",
    "Loss",
    "Mixture",
    "MultinomialDirichlet",
    "OneVsRest",
    "PoissonGamma",
    "PseudoObservation",
    "SphericalGaussian",
]
