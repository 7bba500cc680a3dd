"""Distributions that torch lacks, and draws with an explicit generator."""

from .inverse_gaussian import InverseGaussian, inverse_gaussian
from .polya_gamma import PolyaGamma, polya_gamma
from .sampling import draw

__all__ = ["InverseGaussian", "PolyaGamma", "draw", "inverse_gaussian", "polya_gamma"]
