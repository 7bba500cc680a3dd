"""The inverse Gaussian with shape 1: the law of 1 / omega in the hinge's scale mixture.

    p(x) = (2 pi x^3)^(-1/2) exp(-(x - mean)^2 / (2 mean^2 x)),   x > 0;   mean = inf is the Levy law 1 / chi^2_1

Source: Michael, Schucany & Haas (1976), written for 1 / x so that nothing cancels and mean = inf needs no special case.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .. import host

_CHUNK = 1 << 14  # elements whose working set stays in a core's cache


def inverse_gaussian(mean: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draws in the shape of `mean` [...] > 0, which may be inf; None as generator: the global random stream."""
    out = torch.empty_like(mean, memory_format=torch.contiguous_format)
    chunk = _CHUNK if host.on_cpu(mean) else max(mean.numel(), 1)
    for source, target in zip(mean.reshape(-1).split(chunk), out.view(-1).split(chunk), strict=True):
        _fill(source, generator, target)
    return out


def half_normals(shape: tuple[int, ...], **like: Any) -> Tensor:
    """Draws [...] of |N(0, 1)| / 2, never 0, by the quantile function; `like` are options of `torch.rand`."""
    uniforms = torch.rand(shape, **like)
    return uniforms.clamp_(min=torch.finfo(uniforms.dtype).tiny ** 0.5).erfinv_().mul_(math.sqrt(0.5))


def _fill(mean: Tensor, generator: torch.Generator | None, out: Tensor) -> None:
    like: dict[str, Any] = {"generator": generator, "dtype": mean.dtype, "device": mean.device}
    s = half_normals(mean.shape, **like)
    # with omega = 1 / x and a = 1 / mean, (omega - a)^2 / omega = (2 s)^2: the larger root, or a^2 over it
    a = mean.reciprocal()
    root = torch.addcmul(a, s, s).sqrt_().add_(s).square_()
    is_smaller = torch.rand(mean.shape, **like).mul_(a + root) > root
    torch.where(is_smaller, (mean * root).mul_(mean), root.reciprocal(), out=out)


class InverseGaussian(Distribution):
    """The inverse Gaussian of mean [...] and shape 1; `sample` reads the global random stream."""

    arg_constraints = {"mean": constraints.positive}  # noqa: RUF012 (torch's own interface)
    support = constraints.positive

    def __init__(self, mean: Tensor, validate_args: bool | None = None) -> None:
        self._mean = mean
        super().__init__(mean.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self._mean

    @property
    def variance(self) -> Tensor:
        return self._mean**3

    def expand(
        self, batch_shape: torch.Size | list[int] | tuple[int, ...], _instance: Distribution | None = None
    ) -> InverseGaussian:
        return InverseGaussian(self._mean.expand(torch.Size(batch_shape)), validate_args=False)

    def sample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> Tensor:
        with torch.no_grad():
            return inverse_gaussian(self._mean.expand(self._extended_shape(torch.Size(sample_shape))))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        deviation = (value / self._mean - 1).square() / value  # (x - mean)^2 / (mean^2 x), also at mean = inf
        return -0.5 * (deviation + 3 * value.log() + math.log(2 * math.pi))
