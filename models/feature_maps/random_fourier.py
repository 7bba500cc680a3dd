"""Random Fourier features: linear classifiers that see them are kernel machines with an RBF kernel.

    phi(x) = M^(-1/2) (cos w_m^T u, sin w_m^T u),  w_m ~ N(0, I / length_scale^2),  u = (x - loc) / scale
    phi(x)^T phi(x') is near exp(-|u - u'|^2 / (2 length_scale^2)), its mean over the frequencies

Source: Rahimi & Recht (2007); with them the infinite SVM is a DP mixture of kernel machines (Zhu, Chen & Xing 2011).
Frequencies are orthogonal in blocks of D, each a draw of that law by itself: the mean stays, and the error is less
(Yu, Suresh, Choromanski, Holtmann-Rice & Kumar 2016).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from torch import Tensor

from ..domains import AnyNumbers, NonNegative, Positive, PositiveNumbers, Seed, Whole
from ..likelihoods.hyperparameters import column_variances
from ..room import require_room
from .base import FeatureMap, Rows, dense_rows, require_matrix
from .standardized import Standardized


@dataclass(eq=False)
class RandomFourier(FeatureMap):
    """Random features of an RBF kernel.

    Parameters
    ----------
    num_features : 2 M, an even number; the kernel's error is about num_features^(-1/2)
    length_scale : of the kernel, in units of `scale`; None: (D / 2)^(1/2), scikit-learn's gamma="scale" where the
        columns have one scale, and gamma = 1 / D of standardized ones where each has its own
    seed : of the frequencies
    intercept : value of the constant feature; 0 for none
    common_scale : whether the columns keep their sizes beside one another, as those of images and principal components
        should, or each is standardized by itself, as those in units of their own. None: they keep them unless a few
        would drown the others: with variances v the effective number of columns (sum v)^2 / sum v^2 has to be at
        least 2 and D / 10
    loc, scale : numbers or [D]; None: means of the columns, and of `common_scale` the root of their mean variance, else
        their standard deviations
    frequencies : [D, M]; None: drawn from the seed
    """

    num_features: Annotated[int, Whole(2)] = 200
    length_scale: Positive | None = None
    seed: Seed = 0
    intercept: NonNegative = 1.0
    common_scale: bool | None = None
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
        scale = self.scale if self.scale is not None else self._common(column_variances(X, weights))
        inputs, frequencies = Standardized(self.loc, scale).resolve(X, weights), self.frequencies
        if frequencies is None:
            P, numbers = self.num_features, len(X) + 2 * X.shape[1]
            require_room("num_features", P, numbers * P * X.dtype.itemsize, X.device, mend="Take fewer.")
            length = math.sqrt(X.shape[1] / 2) if self.length_scale is None else float(self.length_scale)
            frequencies = _orthogonal(X.shape[1], P // 2, self.seed) / length
        frequencies = torch.as_tensor(frequencies, dtype=X.dtype, device=X.device)
        require_matrix("frequencies", frequencies, X.shape[1])
        return self.replace(loc=inputs.loc, scale=inputs.scale, frequencies=frequencies)

    def _common(self, variances: Tensor) -> Tensor | None:
        """One scale [] for columns of these variances [D]; None: each has its own."""
        total, size = variances.sum(), len(variances)
        drowned = total**2 < max(2.0, size / 10) * variances.square().sum()
        common = not drowned if self.common_scale is None else self.common_scale
        return (total / size).sqrt() if common and total > 0 else None

    def project(self, X: Rows) -> Tensor:
        frequencies = self.require(self.frequencies)
        angles = Standardized(self.loc, self.scale).project(X) @ frequencies
        return torch.cat([angles.cos(), angles.sin()], 1) / math.sqrt(frequencies.shape[1])


def _orthogonal(num_columns: int, number: int, seed: int) -> Tensor:
    """Draws [D, M] of N(0, I), in double precision, at right angles to one another in blocks of D.

    They come from a stream of the CPU, so that every device has the same. Q of a Gaussian block is independent of the
    lengths of its columns; their signs, which LAPACK chooses, do not matter to a cosine and a sine.
    """
    width = min(num_columns, number)
    shape, generator = (-(-number // width), num_columns, width), torch.Generator().manual_seed(seed)
    blocks = torch.randn(shape, generator=generator, dtype=torch.float64)
    directions = torch.linalg.qr(blocks).Q * blocks.norm(dim=1, keepdim=True)
    return directions.transpose(0, 1).flatten(1)[:, :number]
