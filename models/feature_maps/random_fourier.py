"""Random Fourier features: linear classifiers on them are kernel machines with an RBF kernel.

    phi(x) = M^(-1/2) (cos w_m^T u, sin w_m^T u),  w_m ~ N(0, I / length_scale^2),  u = (x - loc) / scale
    phi(x)^T phi(x') is near exp(-|u - u'|^2 / (2 length_scale^2)), its mean over the frequencies

Source: Rahimi & Recht (2007); with them the infinite SVM is a DP mixture of kernel machines (Zhu, Chen & Xing 2011).
Frequencies are orthogonal in blocks of D, and each one alone has the distribution above: the mean is the same and the
error is smaller (Yu, Suresh, Choromanski, Holtmann-Rice & Kumar 2016).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from torch import Tensor

from ..domains import AnyNumbers, Whole
from ..host import require_room
from .base import Rows, dense_rows, require_matrix
from .rbf import RBFFeatures


@dataclass(eq=False)
class RandomFourier(RBFFeatures):
    """Random Fourier features of an RBF kernel; from the rows they take only the means and scales of the columns.

    Parameters
    ----------
    num_features : 2 M, an even number; the error of the kernel is about num_features^(-1/2)
    length_scale, intercept, common_scale, loc, scale : as in `Nystroem`
    seed : of the random frequencies
    frequencies : [D, M]; None: drawn from the seed
    """

    num_features: Annotated[int, Whole(2)] = 200
    frequencies: AnyNumbers = None

    def checked(self, name: str = "") -> Self:
        found = super().checked(name)
        if found.num_features % 2:
            raise ValueError(f"{name}num_features is {found.num_features}; it must be even, a cosine and a sine each.")
        return found

    def resolve(self, X: Rows, weights: Tensor | None = None) -> Self:
        X = dense_rows(X, "RandomFourier")
        inputs, frequencies = self.scaled(X, weights), self.frequencies
        if frequencies is None:
            P, numbers = self.num_features, len(X) + 2 * X.shape[1]
            require_room("num_features", P, numbers * P * X.dtype.itemsize, X.device, mend="Take fewer.")
            frequencies = _orthogonal(X.shape[1], P // 2, self.seed) / self.length(X.shape[1])
        frequencies = torch.as_tensor(frequencies, dtype=X.dtype, device=X.device)
        require_matrix("frequencies", frequencies, X.shape[1])
        return self.replace(loc=inputs.loc, scale=inputs.scale, frequencies=frequencies)

    def project(self, X: Rows) -> Tensor:
        frequencies = self.require(self.frequencies)
        angles = self.inputs(X) @ frequencies
        return torch.cat([angles.cos(), angles.sin()], 1) / math.sqrt(frequencies.shape[1])


def _orthogonal(num_columns: int, number: int, seed: int) -> Tensor:
    """Draws [D, M] of N(0, I) in double precision, orthogonal to one another in blocks of D.

    They come from a stream of the CPU, so that every device has the same. Q of a Gaussian block is independent of the
    lengths of its columns; the signs, which LAPACK chooses, do not matter to a cosine and a sine.
    """
    width = min(num_columns, number)
    shape, generator = (-(-number // width), num_columns, width), torch.Generator().manual_seed(seed)
    blocks = torch.randn(shape, generator=generator, dtype=torch.float64)
    directions = torch.linalg.qr(blocks).Q * blocks.norm(dim=1, keepdim=True)
    return directions.transpose(0, 1).flatten(1)[:, :number]
