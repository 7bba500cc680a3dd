"""Draws with an explicit generator: each is a function of the state of `generator` alone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution


def draw(distribution: Distribution, generator: torch.Generator) -> Tensor:
    """One draw [...] of any torch distribution.

    `Distribution.sample` reads the global random stream of the device, so that stream is seeded from `generator` and
    restored: the user's own stream never moves.
    """
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    # not torch.manual_seed, which also formats a stack trace for devices that are not initialized
    stream = torch.default_generator
    if generator.device.type == "cuda":
        stream = torch.cuda.default_generators[generator.device.index or 0]
    kept = stream.get_state()
    try:
        stream.manual_seed(seed)
        return distribution.sample()
    finally:
        stream.set_state(kept)


def uniforms(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniform numbers of [0, 1) in double precision, in the given shape [...]."""
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device)


def normals(shape: tuple[int, ...], generator: torch.Generator, like: Tensor) -> Tensor:
    """Standard normal numbers in the given shape [...], in the dtype of `like` [...]."""
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=generator.device)


def log_gamma_draw(shape: Tensor, generator: torch.Generator) -> Tensor:
    """log of Gamma(shape, 1) draws [...], finite for any shape [...] > 0: Gamma(a) = Gamma(a + 1) U^(1 / a)."""
    boosted = torch._standard_gamma(shape + 1, generator=generator).log()
    return boosted + torch.log1p(-uniforms(shape.shape, generator)).to(shape) / shape.clamp(min=_TINY)


def log_dirichlet(shape: Tensor, generator: torch.Generator) -> Tensor:
    """log of Dirichlet draws [..., K], finite however small the entries of the shape [..., K] are."""
    return log_gamma_draw(shape, generator).log_softmax(-1)


def draw_categorical(log_weights: Tensor, uniforms: Tensor) -> Tensor:
    """An index [...] int64 by inverse CDF, from log weights [..., K] up to a constant and uniform numbers [...].

    >>> draw_categorical(torch.tensor([[0.0, 0.0], [0.0, -torch.inf]]), torch.tensor([0.7, 1.0]))
    tensor([1, 0])
    """
    cumulative = log_weights.softmax(-1).cumsum(-1)
    total = cumulative[..., -1:]
    # below the total even after rounding, so that no entry of weight zero is ever chosen
    level = torch.minimum(uniforms.unsqueeze(-1) * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, level.to(total.dtype), right=True).squeeze(-1)


_TINY = 1e-300
