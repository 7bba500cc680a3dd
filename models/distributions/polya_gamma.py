"""The Polya-Gamma law PG(1, z): the scale mixture behind the logistic factor.

X = 4 omega has density prop. to cosh(u) exp(-u^2 X / 2) J*(X), u = |z| / 2, whose alternating series has one form that
falls fast to the left of t = 0.64 and one to the right. Proposals come from the first term of either side; four terms of
the series decide exactly, the next one being below 1e-26. Sources: Devroye (2009); Polson, Scott & Windle (2013),
written as one flat rejection loop over all elements that still wait (math/discriminative-clustering, section 14).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .inverse_gaussian import inverse_gaussian

__all__ = ["PolyaGamma", "polya_gamma"]

_SPLIT = 0.64  # t
_TAIL = 0.5 * math.erfc(1 / math.sqrt(2 * _SPLIT))  # P(Z > 1 / sqrt t)
_CHUNK = 1 << 14  # elements whose working set stays in a core's cache


def polya_gamma(tilt: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draws of PG(1, z) in the shape of `tilt` z [...]; without a generator, from the global random stream."""
    half = (tilt.abs() / 2).reshape(-1)
    chunk = _CHUNK if tilt.device.type == "cpu" else max(half.numel(), 1)
    pieces = [_draw(part, generator) for part in half.split(chunk)]
    return (torch.cat(pieces) / 4 if pieces else half).view(tilt.shape)


def _draw(u: Tensor, generator: torch.Generator | None) -> Tensor:
    """X [n] for u [n] >= 0."""
    out = torch.empty_like(u)
    waiting = torch.arange(len(u), device=u.device)
    while len(waiting):
        X, accepted = _propose(u, generator)
        out[waiting[accepted]] = X[accepted]
        waiting, u = waiting[~accepted], u[~accepted]
    return out


def _propose(u: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """A proposal [n] for each element, and whether it is accepted."""
    like: dict[str, Any] = {"generator": generator, "dtype": u.dtype, "device": u.device}
    rate = math.pi**2 / 8 + u.square() / 2  # K
    log_right = math.log(math.pi / 2) - rate.log() - rate * _SPLIT
    log_left = torch.where(u < 1 / _SPLIT, math.log(4 * _TAIL), math.log(2) - u)
    right = torch.rand(u.shape, **like) < torch.sigmoid(log_right - log_left)
    X = _SPLIT - torch.log1p(-torch.rand(u.shape, **like)) / rate
    left = torch.nonzero(~right).squeeze(1)
    X[left], kept = _left(u[left], generator)
    # e_n of both sides share n (n + 1); beyond the exponent's range the term is 0
    decay = torch.where(right, X * (math.pi**2 / 2), 2 / X)
    series = 1 - 3 * (-2 * decay).exp() + 5 * (-6 * decay).exp() - 7 * (-12 * decay).exp()
    accepted = torch.rand(u.shape, **like) < series
    accepted[left] &= kept
    return X, accepted


def _left(u: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Proposals below t: a truncated Levy law thinned by exp(-u^2 X / 2), or for large u an inverse Gaussian."""
    like: dict[str, Any] = {"generator": generator, "dtype": u.dtype, "device": u.device}
    levy = torch.special.ndtri(_TAIL * (1 - torch.rand(u.shape, **like))).square().reciprocal()
    kept = torch.rand(u.shape, **like) < torch.exp(-u.square() * levy / 2)
    steep = torch.nonzero(u >= 1 / _SPLIT).squeeze(1)
    if len(steep):
        levy[steep] = inverse_gaussian(u[steep].reciprocal(), generator)
        kept[steep] = levy[steep] <= _SPLIT
    return levy, kept


class PolyaGamma(Distribution):
    """PG(1, tilt) of tilt [...]; `sample` reads the global random stream."""

    arg_constraints = {"tilt": constraints.real}  # noqa: RUF012 (torch's own interface)
    support = constraints.positive

    def __init__(self, tilt: Tensor, validate_args: bool | None = None) -> None:
        self.tilt = tilt
        super().__init__(tilt.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """tanh(z / 2) / (2 z); 1/4 at 0."""
        v = self.tilt.abs() / 2
        near = (1 - v.square() / 3 + 2 * v**4 / 15) / 4
        return torch.where(v < 0.05, near, torch.tanh(v) / (4 * v.clamp(min=0.05)))

    @property
    def variance(self) -> Tensor:
        """(tanh v - v sech^2 v) / (16 v^3), v = z / 2; 1/24 at 0."""
        v = self.tilt.abs() / 2
        far = v.clamp(min=0.05)
        sech = 1 / torch.cosh(far.clamp(max=40.0))
        near = (2 / 3 - 8 * v.square() / 15 + 34 * v**4 / 105) / 16
        return torch.where(v < 0.05, near, (torch.tanh(far) - far * sech.square()) / (16 * far**3))

    def expand(self, batch_shape: torch.Size, _instance: Distribution | None = None) -> PolyaGamma:
        return PolyaGamma(self.tilt.expand(batch_shape), validate_args=False)

    def sample(self, sample_shape: torch.Size | tuple[int, ...] = ()) -> Tensor:
        with torch.no_grad():
            return polya_gamma(self.tilt.expand(self._extended_shape(torch.Size(sample_shape))))

    def log_prob(self, value: Tensor) -> Tensor:
        """log density, by the side of the alternating series that falls fast at the value."""
        if self._validate_args:
            self._validate_sample(value)
        X, u = 4 * value, self.tilt.abs() / 2
        n = torch.arange(6, dtype=X.dtype, device=X.device) + 0.5
        sign = torch.tensor([1.0, -1.0] * 3, dtype=X.dtype, device=X.device)
        x = X.unsqueeze(-1)
        near = (2 / (math.pi * x)) ** 1.5 * (-2 * (n.square() - 0.25) / x).exp()
        far = (-(n.square() - 0.25) * math.pi**2 * x / 2).exp()
        series = (sign * math.pi * n * torch.where(x <= _SPLIT, near, far)).sum(-1).log()
        leading = torch.where(X <= _SPLIT, -0.5 / X, -(math.pi**2) * X / 8)
        log_cosh = u + torch.log1p((-2 * u).exp()) - math.log(2)
        return series + leading + log_cosh - u.square() * X / 2 + math.log(4)
