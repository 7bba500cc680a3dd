"""Observation families; `base` and `exponential_family` state the interfaces that backends use."""

from .base import ConstantColumnWarning, Likelihood, Parameters
from .bernoulli import BernoulliBeta
from .blocks import Blocks
from .diagonal_gaussian import DiagonalGaussian
from .exponential_family import ExponentialFamily
from .full_gaussian import FullGaussian
from .linear import LinearLikelihood
from .linear_bernoulli import LinearBernoulli
from .linear_gaussian import LinearGaussian
from .linear_regression import LinearRegression
from .masked_bernoulli import MaskedBernoulli
from .multinomial import MultinomialDirichlet
from .poisson import PoissonGamma
from .product import Product
from .spherical_gaussian import SphericalGaussian

__all__ = [
    "BernoulliBeta",
    "Blocks",
    "ConstantColumnWarning",
    "DiagonalGaussian",
    "ExponentialFamily",
    "FullGaussian",
    "Likelihood",
    "LinearBernoulli",
    "LinearGaussian",
    "LinearLikelihood",
    "LinearRegression",
    "MaskedBernoulli",
    "MultinomialDirichlet",
    "Parameters",
    "PoissonGamma",
    "Product",
    "SphericalGaussian",
]
