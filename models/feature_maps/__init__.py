"""Feature maps: the features of a row that the hyperplanes see."""

from .base import AnyFeatureMap, FeatureMap, Function, Standardized
from .nystroem import Nystroem
from .principal_directions import PrincipalDirections
from .random_fourier import RandomFourier

__all__ = [
    "AnyFeatureMap",
    "FeatureMap",
    "Function",
    "Nystroem",
    "PrincipalDirections",
    "RandomFourier",
    "Standardized",
]
