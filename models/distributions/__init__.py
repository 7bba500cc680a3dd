"""Distributions that torch lacks, and draws with an explicit generator."""

from .inverse_gaussian import InverseGaussian, inverse_gaussian
from .polya_gamma import PolyaGamma, polya_gamma
from .sampling import draw, draw_categorical, log_dirichlet, log_gamma_draw, normals, split_counts, uniforms

__all__ = [
    "InverseGaussian",
    "PolyaGamma",
    "draw",
    "draw_categorical",
    "inverse_gaussian",
    "log_dirichlet",
    "log_gamma_draw",
    "normals",
    "polya_gamma",
    "split_counts",
    "uniforms",
]
