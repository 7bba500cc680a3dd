"""Rows drawn from the predictive distribution of a posterior, with targets and assignments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...models.base import Model
from ...models.domains import Whole, read, shown
from ...models.host import require_room
from ...models.numbers import as_tensor
from ..hilbert_embedding.atoms import Predictive
from ..structures import Draw
from .scores import chunks


class NewData(NamedTuple):
    """The N rows that `sample` drew."""

    X: Tensor  # [N, D]
    y: Tensor | None  # [N], or [N, C] for label sets; None for a model without targets
    assignments: Tensor | None  # [N] int64, as in the posterior's `sample`; None for a model without components


def stream(generator: torch.Generator | None, like: Tensor) -> torch.Generator:
    """The user's generator, on the device of `like` [...]; None: a new one of seed 0, so that such calls agree."""
    if generator is None:
        return torch.Generator(like.device).manual_seed(0)
    if not isinstance(generator, torch.Generator) or generator.device.type != like.device.type:
        raise ValueError(
            f"generator is {shown(generator)}; expected a torch.Generator on the device {like.device}, or None."
        )
    return generator


def number_of_rows(name: str, value: Any, width: int, like: Tensor) -> int:
    """The number of rows to draw, each of `width` numbers; ValueError if they do not fit on `like`'s device [...]."""
    number: int = read(name, value, Whole(1))
    require_room(name, number, 8 * number * (1 + width), like.device)
    return number


def read_totals(totals: Any, given: bool, number: int, like: Tensor) -> Tensor | None:
    """Totals [N] in the dtype of `like` [...] for rows whose total is `given`, not modelled; None for other rows.

    Raises
    ------
    ValueError    unless they are there where they are needed, and there alone: counts, one or [N].
    """
    if not given:
        if totals is not None:
            raise ValueError(f"totals is {shown(totals)}, but no count of these rows has a total given: leave it out.")
        return None
    found = as_tensor("totals", 0.5 if totals is None else totals)
    if found.shape not in {(), (number,)} or found.isnan().any() or (found < 0).any() or (found % 1 != 0).any():
        raise ValueError(
            f"totals is {shown(totals)}; the rows are counts whose total is not modelled: pass one, such as "
            f"totals=100, or {number} of them."
        )
    if (found > 2**53).any():
        raise ValueError(f"totals is {shown(totals)}; expected at most 2^53, up to which floats are exact.")
    return found.to(like).expand(number)


class MixtureRows(NamedTuple):
    """N rows drawn from the mixture of all draws of a posterior."""

    X: Tensor  # [N, D]
    draws: Tensor  # [N], the draw that each row comes from
    own: Tensor  # [N], its component in that draw
    generator: torch.Generator  # for further draws


def mixture_rows(
    model: Model, samples: Draw, num_rows: int, totals: Any, generator: torch.Generator | None
) -> MixtureRows:
    """Rows drawn from the mixture of x given by samples [S, ...] of a model, as in `PartitionPosterior.sample`."""
    log_mixture, mixture = samples["log_mixture"], Predictive.of(model, samples)
    number = number_of_rows("num_rows", num_rows, int(model.num_features or 0), log_mixture)
    own_stream = stream(generator, log_mixture)
    sums = read_totals(totals, model.likelihood.given_totals, number, log_mixture)
    X, index = mixture.rows(number, sums, own_stream)
    width = len(mixture.weights) // len(log_mixture)
    return MixtureRows(X, index // width, index % width, own_stream)


def by_draw(draws: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each draw with the indices [M] of its rows, in chunks, from the draw of every row [N]."""
    order = draws.argsort(stable=True)
    found, counts = draws[order].unique_consecutive(return_counts=True)
    for draw, rows in zip(found.tolist(), order.split(counts.tolist()), strict=True):
        yield from ((draw, part) for part in chunks(rows))


def in_place(parts: list[tuple[Tensor, Tensor]]) -> Tensor | None:
    """Values [N, ...] from parts of them, each with its indices [M]; None if there are no parts."""
    if not parts:
        return None
    places, values = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    return values[places.argsort()]
