"""Images that are sums of four shapes and noise: the usual picture of what latent features find.

Source: Griffiths & Ghahramani (2011), figure 9 (36 pixels, each shape in half of the images).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .synthetic import is_number, seeded_generator

_SHAPES = (
    ("010000", "111000", "010000", "000000", "000000", "000000"),
    ("000111", "000101", "000111", "000000", "000000", "000000"),
    ("000000", "000000", "000000", "100000", "110000", "111000"),
    ("000000", "000000", "000000", "000111", "000010", "000010"),
)


@dataclass(frozen=True)
class Bars:
    """N images of 6 x 6 pixels and the shapes in them."""

    X: Tensor  # [N, 36] float64, pixels row by row
    y: Tensor  # [N] int64, 1 where there is the first shape or the second one, else 0
    features: Tensor  # [N, 4] int64, which shapes are there
    loadings: Tensor  # [4, 36] float64, the shapes


def make_bars(num_data: int = 100, noise: float = 0.5, seed: int = 0) -> Bars:
    """Each shape is in an image with probability one half; Gaussian noise has the standard deviation `noise` >= 0."""
    generator = seeded_generator(num_data, seed)
    if not is_number(noise) or noise < 0:
        raise ValueError(f"noise is {noise!r}; it must be a number of at least 0.")
    loadings = torch.tensor([[float(pixel) for row in shape for pixel in row] for shape in _SHAPES]).double()
    features = torch.randint(2, (num_data, len(loadings)), generator=generator)
    X = features.double() @ loadings
    X = X + noise * torch.randn(X.shape, generator=generator, dtype=torch.float64)
    return Bars(X, features[:, :2].amax(1), features, loadings)
