"""What is believed: models, priors, likelihoods and losses. Nothing here knows how inference is done."""

from .ddpm import DDPM
from .dih import DIH
from .dpm import DPM
from .ihmm import IHMM
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
from .sequence import StateSpace

__all__ = [
    "DDPM",
    "DIH",
    "DPM",
    "IHMM",
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
    "StateSpace",
]
