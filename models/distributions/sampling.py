"""Draws with an explicit generator: each depends only on the state of `generator`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode


def draw(distribution: Distribution, generator: torch.Generator) -> Tensor:
    """One draw [...] from any distribution that samples by torch functions, on the device of `generator`.

    `Distribution.sample` takes no generator, so the functions that it calls get this one. The global stream, which
    other threads read too, is neither read nor advanced.
    """
    with _DrawsFrom(generator):
        return distribution.sample()


class _DrawsFrom(TorchFunctionMode):
    """A context that passes a generator to every torch function that draws without one in this thread."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _DRAWS_LIKE:  # these take no generator
            like, args = args[0], (args[0].shape,)
            function, kwargs = _DRAWS_LIKE[function], {"dtype": like.dtype, "device": like.device} | kwargs
        if function in _DRAWS and kwargs.get("generator") is None:
            kwargs = kwargs | {"generator": self.generator}
        return function(*args, **kwargs)


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


def split_counts(
    totals: Tensor, law: Tensor, probs: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Counts of Multinomial(totals_m, probs of law_m), for totals [M], laws [M] in 0..K-1 and probabilities [K, D].

    They are the entries that are not 0: (m [E], column [E], count [E] in double precision). The columns are halved
    again and again, and the total of each part is parted by a binomial draw.
    """
    gap = (1 << (probs.shape[1] - 1).bit_length()) - probs.shape[1]
    levels = [torch.nn.functional.pad(probs.double(), (0, gap))]
    while levels[-1].shape[1] > 1:
        levels.append(levels[-1][:, ::2] + levels[-1][:, 1::2])
    row = torch.nonzero(totals).squeeze(1)
    part, count = torch.zeros_like(row), totals[row].double()
    for halves, whole in zip(levels[-2::-1], levels[:0:-1], strict=True):
        share = halves[law[row], 2 * part] / whole[law[row], part]
        first = torch.binomial(count, share, generator=generator)
        row, part, count = row.repeat(2), torch.cat([2 * part, 2 * part + 1]), torch.cat([first, count - first])
        used = count > 0
        row, part, count = row[used], part[used], count[used]
    return row, part, count


_DRAWS: set[Callable[..., Any]] = {
    *(torch.bernoulli, torch.binomial, torch.multinomial, torch.normal, torch.poisson, torch.rand, torch.randint),
    *(torch.randn, torch.randperm, torch._sample_dirichlet, torch._standard_gamma, Tensor.bernoulli),
    *(Tensor.bernoulli_, Tensor.cauchy_, Tensor.exponential_, Tensor.geometric_, Tensor.log_normal_),
    *(Tensor.multinomial, Tensor.normal_, Tensor.random_, Tensor.uniform_),
}
_DRAWS_LIKE: dict[Any, Callable[..., Any]] = {torch.rand_like: torch.rand, torch.randn_like: torch.randn}
_TINY = 1e-300
