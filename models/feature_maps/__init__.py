"""What hyperplanes see of the rows, one map a file; `base` states the interface."""

from .base import FeatureMap, Function, as_feature_map
from .principal_directions import PrincipalDirections
from .random_fourier import RandomFourier
from .standardized import Standardized

__all__ = ["FeatureMap", "Function", "PrincipalDirections", "RandomFourier", "Standardized", "as_feature_map"]
