"""Normal densities tilted by a margin factor: the integrals and draws for components with one point.

A hinge exp(-2 c max(0, l - f)) splits N(0, s^2) into an unchanged tail f > l and a tail f < l that becomes a shifted
normal, so its integral and its draws need only normal tails. All functions stay finite for any c, l, s.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..distributions.sampling import uniforms

_SQRT2 = math.sqrt(2.0)
_NEWTON_STEPS = 6  # from the right of a concave function: the error is below 1e-12 for every bound and level


def log_normal_tail(margin: Tensor | float, scale: Tensor) -> Tensor:
    """log P(f > margin) [...] for f ~ N(0, scale^2)."""
    return torch.special.log_ndtr(-margin / positive(scale))


def log_linear_tail(strength: float, margin: Tensor | float, scale: Tensor) -> Tensor:
    """log E[exp(-2 c (margin - f)); f < margin] [...] for f ~ N(0, scale^2), without cancellation or overflow."""
    scale = positive(scale)
    bound, tilt = margin / scale, 2 * strength * scale
    inner = tilt.square() / 2 - 2 * strength * margin + torch.special.log_ndtr(bound - tilt)
    outer = torch.log(torch.special.erfcx((tilt - bound) / _SQRT2) / 2) - bound.square() / 2
    return torch.where(tilt <= bound, inner, outer)


def log_hinge_integral(strength: float, margin: Tensor | float, scale: Tensor) -> Tensor:
    """log E exp(-2 c max(0, margin - f)) [...] for f ~ N(0, scale^2), with a margin of any sign.

    Source: docs/derivations/mixtures, "A component with one point".
    """
    return torch.logaddexp(log_normal_tail(margin, scale), log_linear_tail(strength, margin, scale))


def draw_hinge(strength: float, margin: Tensor | float, scale: Tensor, generator: torch.Generator) -> Tensor:
    """An exact draw [...] of f from N(0, scale^2) exp(-2 c max(0, margin - f)) / (its integral)."""
    scale = positive(scale)
    log_above = log_normal_tail(margin, scale)
    log_below = log_linear_tail(strength, margin, scale)
    above = uniforms(log_above.shape, generator) < torch.sigmoid(log_above - log_below)
    bound = torch.where(above, margin / scale, 2 * strength * scale - margin / scale)
    excess = scale * normal_excess(bound, log_uniform(bound, generator))
    return torch.where(above, margin + excess, margin - excess)


def log_survival_ratio(bound: Tensor, excess: Tensor) -> Tensor:
    """log P(Z > bound + excess) / P(Z > bound) [...] of a standard normal Z, for bound >= 0 and excess >= 0."""
    ratio = torch.special.erfcx((bound + excess) / _SQRT2) / torch.special.erfcx(bound / _SQRT2)
    return torch.log(ratio) - excess * (bound + excess / 2)


def normal_excess(bound: Tensor, log_level: Tensor) -> Tensor:
    """e >= 0 [...] with P(Z > bound + e | Z > bound) = exp(log_level): a draw of the excess if the level is uniform.

    For bound > 0 a difference of quantiles would cancel; Newton's method on the log survival function is used instead.
    """
    tiny = torch.finfo(bound.dtype).tiny
    start, log_level = bound.clamp(min=0.0), log_level.clamp(min=math.log(tiny))
    excess = -2 * log_level / (start + torch.sqrt(start.square() - 2 * log_level)).clamp(min=tiny)
    for _ in range(_NEWTON_STEPS):
        hazard = math.sqrt(2 / math.pi) / torch.special.erfcx((start + excess) / _SQRT2)
        excess = (excess + (log_survival_ratio(start, excess) - log_level) / hazard).clamp(min=0.0)
    direct = -torch.special.ndtri(log_level.exp() * torch.special.ndtr(-bound)) - bound
    return torch.where(bound > 0, excess, direct.clamp(min=0.0))


def log_uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    """log U, U uniform on (0, 1], in the shape [...] of `like`."""
    return torch.log1p(-uniforms(like.shape, generator)).to(like)


def normal_rule(like: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """Nodes [G] over +-9 and log weights [G] of the trapezoid rule for expectations under a standard normal."""
    nodes = torch.arange(-9.0, 9.0 + step / 2, step, dtype=like.dtype, device=like.device)
    return nodes, math.log(step / math.sqrt(2 * math.pi)) - nodes.square() / 2


def normal_net(like: Tensor, number: int) -> Tensor:
    """Points [number, C] that represent N(0, I) in the last dimension of `like` [..., C], each with its mirror image.

    They are a fixed scrambled Sobol net, so that means over them are smooth functions of the integrand's parameters.
    """
    net = torch.quasirandom.SobolEngine(like.shape[-1], scramble=True, seed=0).draw(number // 2, dtype=torch.float64)
    least = torch.finfo(torch.float64).eps
    points = torch.special.ndtri(net.clamp(least, 1 - least)).to(like)
    return torch.cat([points, -points])


def draw_interpolated(nodes: Tensor, log_density: Tensor, generator: torch.Generator) -> Tensor:
    """Draws [...] from log densities [..., G] given at nodes [G], with linear interpolation.

    A constant curvature of the log density leaves the masses of the intervals exact, so that the error is far below the
    square of the step.
    """
    log_density = (log_density - log_density.amax(-1, keepdim=True)).clamp(min=-80.0)
    density, rise = log_density.exp(), log_density.diff()
    flat = rise.abs() < 1e-3  # here the exact mean, the ends' difference over the rise, would cancel
    mean = torch.where(flat, density[..., :-1] * (1 + rise / 2), density.diff() / rise)
    cumulative = torch.cumsum(mean * nodes.diff(), -1)
    level = uniforms((*rise.shape[:-1], 2), generator).to(rise)
    index = torch.searchsorted(cumulative, level[..., :1] * cumulative[..., -1:]).clamp(max=rise.shape[-1] - 1)
    rise, index = rise.gather(-1, index).squeeze(-1), index.squeeze(-1)
    rise = torch.where(rise.abs() < 1e-6, 1e-6, rise)
    part = torch.log1p(level[..., 1] * rise.expm1()) / rise
    return nodes[index] + part * (nodes[index + 1] - nodes[index])


def positive(scale: Tensor) -> Tensor:
    """Scales [...] with a lower limit, so far below any margin that a score drawn there is 0 within rounding."""
    return scale.clamp(min=torch.finfo(scale.dtype).tiny ** 0.5)
