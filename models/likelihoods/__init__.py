"""Observation families, one file each; `base` states the interface that every backend reads."""

from .base import Likelihood, Parameters
from .bernoulli import BernoulliBeta
from .diagonal_gaussian import DiagonalGaussian
from .full_gaussian import FullGaussian
from .multinomial import MultinomialDirichlet
from .poisson import PoissonGamma
from .spherical_gaussian import SphericalGaussian

__all__ = [
    "BernoulliBeta",
    "DiagonalGaussian",
    "FullGaussian",
    "Likelihood",
    "MultinomialDirichlet",
    "Parameters",
    "PoissonGamma",
    "SphericalGaussian",
]
