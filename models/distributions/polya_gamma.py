"""The Polya-Gamma law PG(1, z): the scale mixture behind the logistic factor.

X = 4 omega has density prop. to cosh(u) exp(-u^2 X / 2) J*(X), u = |z| / 2. The alternating series J* has one form that
converges fast to the left of t = 0.64 and one to the right. Proposals come from the first term on either side; three
terms of the series decide on acceptance, as the next one is below 4e-16. Sources: Devroye (2009); Polson, Scott &
Windle (2013), written as one rejection loop over all elements not yet accepted (docs/derivations/classifiers, "Draws of
the mixture variables").
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .. import host
from .inverse_gaussian import inverse_gaussian

_SPLIT = 0.64  # t
_TAIL = 0.5 * math.erfc(1 / math.sqrt(2 * _SPLIT))  # P(Z > 1 / sqrt t)
_CHUNK = 1 << 14  # elements whose working set stays in a core's cache


def polya_gamma(tilt: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draws of PG(1, z) in the shape of `tilt` z [...]; without a generator, from the global random stream."""
    u = (tilt.abs() / 2).reshape(-1)
    return ((_by_turns if host.on_cpu(u) else _together)(u, generator) / 4).view(tilt.shape)


def _by_turns(u: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws X [n]; only elements not yet accepted get another proposal."""
    X = torch.empty_like(u)
    for steep in (False, True):
        waiting = torch.nonzero((u >= 1 / _SPLIT) == steep).squeeze(1)
        while len(waiting):
            rejected = []
            for index in waiting.split(_CHUNK):
                proposal, accepted = _propose(u[index], steep, generator)
                X[index] = proposal  # a rejected proposal is overwritten later
                rejected.append(index[~accepted])
            waiting = torch.cat(rejected)
    return X


def _together(u: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws X [n]; all elements get proposals in every round, and in every fourth the host checks which remain."""
    X = torch.empty_like(u)
    for steep in (False, True):
        waiting, step = (u >= 1 / _SPLIT) == steep, 0
        other = u.new_tensor(1 / _SPLIT if steep else 0.0)  # a placeholder for the elements that are not needed
        while True:
            proposal, accepted = _propose(torch.where(waiting, u, other), steep, generator)
            X, waiting = torch.where(waiting, proposal, X), waiting & ~accepted
            if host.looks(u, step) and not bool(waiting.any()):
                break
            step += 1
    return X


def _propose(u: Tensor, steep: bool, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """A proposal X [n] for each element u, and whether it is accepted; all u are at least 1 / t, or all are below."""
    like: dict[str, Any] = {"generator": generator, "dtype": u.dtype, "device": u.device}
    rate = torch.addcmul(u.new_full((), math.pi**2 / 8), u, u, value=0.5)  # K
    odds = _left_odds(u, rate, steep)
    level = (1 - torch.rand(u.shape, **like)).mul_(1 + odds)  # uniform on (0, 1 + odds]: up to 1 for the right piece
    X = _SPLIT - level.log() / rate
    is_left = level > 1
    left = torch.nonzero(is_left).squeeze(1) if host.on_cpu(u) else torch.arange(len(u), device=u.device)
    chosen = is_left[left]  # on a CPU all are chosen
    test = torch.rand(u.shape, **like)
    if steep:
        X[left] = torch.where(chosen, inverse_gaussian(u[left].reciprocal(), generator), X[left])
        test.add_((X > _SPLIT) & is_left)
    else:
        # the Levy law below t, thinned by exp(-u^2 X / 2); given the piece, the rest of the level is uniform
        quantile = torch.erfinv(1 - 2 * _TAIL * ((level[left] - 1) / odds[left]))
        levy = 0.5 / quantile.square_().clamp_(max=50.0)  # infinite where the argument rounds to 1
        X[left] = torch.where(chosen, levy, X[left])
        test[left] *= torch.where(chosen, torch.exp(u[left].square_().mul_(levy).mul_(0.5)), 1.0)
    return X, ~(test >= _series(X, is_left))  # a NaN is accepted, so that the loop ends


def _left_odds(u: Tensor, rate: Tensor, steep: bool) -> Tensor:
    """Mass of the proposals' left piece over that of the right one; may be infinite."""
    return rate * torch.exp(rate * _SPLIT - u if steep else rate * _SPLIT).mul_((4 if steep else 8 * _TAIL) / math.pi)


def _series(X: Tensor, is_left: Tensor) -> Tensor:
    """J*(X) over its first term; exponents are n (n + 1) / 2 times the first, so terms are powers of r."""
    r = torch.where(is_left, -4 / X, X * -(math.pi**2)).exp_()
    return 1 - r * (3 - 5 * r.square())


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

    def expand(
        self, batch_shape: torch.Size | list[int] | tuple[int, ...], _instance: Distribution | None = None
    ) -> PolyaGamma:
        return PolyaGamma(self.tilt.expand(torch.Size(batch_shape)), validate_args=False)

    def sample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> Tensor:
        with torch.no_grad():
            return polya_gamma(self.tilt.expand(self._extended_shape(torch.Size(sample_shape))))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density, by the form of the alternating series that converges fast at the value."""
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
