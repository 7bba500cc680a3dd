"""Observation families, one file each; `base` and `exponential_family` state what backends read."""

from .base import Likelihood, Parameters
from .bernoulli import BernoulliBeta
from .diagonal_gaussian import DiagonalGaussian
from .exponential_family import ExponentialFamily
from .full_gaussian import FullGaussian
from .multinomial import MultinomialDirichlet
from .poisson import PoissonGamma
from .spherical_gaussian import SphericalGaussian

__all__ = [
    "BernoulliBeta",
    "DiagonalGaussian",
    "ExponentialFamily",
    "FullGaussian",
    "Likelihood",
    "MultinomialDirichlet",
    "Parameters",
    "PoissonGamma",
    "SphericalGaussian",
]
