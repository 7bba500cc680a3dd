"""Data: generators of synthetic experiments (`make_*`) and the public sets that examples and tests use (`load`)."""

from .real import Dataset, available, load
from .synthetic import (
    Bars,
    Clusters,
    Synthetic,
    make_bars,
    make_chained_gaussians,
    make_dp_mixture,
    make_setting_one,
    make_setting_two,
    make_switching_autoregression,
)

__all__ = [
    "Bars",
    "Clusters",
    "Dataset",
    "Synthetic",
    "available",
    "load",
    "make_bars",
    "make_chained_gaussians",
    "make_dp_mixture",
    "make_setting_one",
    "make_setting_two",
    "make_switching_autoregression",
]
