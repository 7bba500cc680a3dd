"""Random Fourier features: linear classifiers that see them are kernel machines with an RBF kernel.

    phi(x) = M^(-1/2) (cos w_m^T u, sin w_m^T u),  w_m ~ N(0, I / length_scale^2),  u = (x - loc) / scale
    phi(x)^T phi(x') is near exp(-|u - u'|^2 / (2 length_scale^2))

Source: Rahimi & Recht (2007); with them the infinite SVM is a DP mixture of kernel machines (Zhu, Chen & Xing 2011).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from torch import Tensor

from ..domains import AnyNumbers, NonNegative, Positive, PositiveNumbers, Seed, Whole
from ..room import require_room
from .base import FeatureMap, Rows, dense_rows, require_matrix
from .standardized import Standardized


@dataclass(eq=False)
class RandomFourier(FeatureMap):
    """Random features of an RBF kernel on standardized columns.

    Parameters
    ----------
    num_features : 2 M, an even number; the kernel's error is about num_features^(-1/2)
    length_scale : of the kernel, in standard deviations; None: (D / 2)^(1/2), scikit-learn's gamma = 1 / D
    seed : of the frequencies
    intercept : value of the constant feature; 0 for none
    loc, scale : as in `Standardized`
    frequencies : [D, M]; None: drawn from the seed
    """

    num_features: Annotated[int, Whole(2)] = 200
    length_scale: Positive | None = None
    seed: Seed = 0
    intercept: NonNegative = 1.0
    loc: AnyNumbers = None
    scale: PositiveNumbers = None
    frequencies: AnyNumbers = None

    def checked(self, name: str = "") -> Self:
        found = super().checked(name)
        if found.num_features % 2:
            raise ValueError(f"{name}num_features is {found.num_features}; it must be even, a cosine and a sine each.")
        return found

    def resolve(self, X: Rows, weights: Tensor | None = None) -> Self:
        X = dense_rows(X, "RandomFourier")
        inputs, frequencies = Standardized(self.loc, self.scale).resolve(X, weights), self.frequencies
        if frequencies is None:
            # from a stream of the CPU, so that every device has the same features
            P, numbers = self.num_features, len(X) + X.shape[1] / 2
            require_room("num_features", P, numbers * P * X.dtype.itemsize, X.device, mend="Take fewer.")
            generator, shape = torch.Generator().manual_seed(self.seed), (X.shape[1], self.num_features // 2)
            length = math.sqrt(X.shape[1] / 2) if self.length_scale is None else float(self.length_scale)
            frequencies = torch.randn(shape, generator=generator, dtype=torch.float64) / length
        frequencies = torch.as_tensor(frequencies, dtype=X.dtype, device=X.device)
        require_matrix("frequencies", frequencies, X.shape[1])
        return self.replace(loc=inputs.loc, scale=inputs.scale, frequencies=frequencies)

    def project(self, X: Rows) -> Tensor:
        frequencies = self.require(self.frequencies)
        angles = Standardized(self.loc, self.scale).project(X) @ frequencies
        return torch.cat([angles.cos(), angles.sin()], 1) / math.sqrt(frequencies.shape[1])
