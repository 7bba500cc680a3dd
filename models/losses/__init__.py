"""Margin losses; `base` states the interface that every backend uses."""

from .all_thresholds import AllThresholds
from .base import Loss, PseudoObservation
from .epsilon_insensitive import EpsilonInsensitive
from .hinge import Hinge
from .logistic import Logistic
from .multiclass import CrammerSinger, OneVsRest
from .squared_hinge import SquaredHinge
from .student_t import StudentT
from .wrapped import Masked, masked

__all__ = [
    "AllThresholds",
    "CrammerSinger",
    "EpsilonInsensitive",
    "Hinge",
    "Logistic",
    "Loss",
    "Masked",
    "OneVsRest",
    "PseudoObservation",
    "SquaredHinge",
    "StudentT",
    "masked",
]
