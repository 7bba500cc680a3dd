"""New data of a posterior: rows drawn from its predictive distribution, and what goes with them."""

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
    y: Tensor | None  # [N], or [N, C] of sets of labels; None of a model without targets
    assignments: Tensor | None  # [N] int64, as `sample` of the posterior says; None of one without components


def stream(generator: torch.Generator | None, like: Tensor) -> torch.Generator:
    """The generator of a user on the device of `like` [...]; None: one of seed 0, so that calls without agree."""
    if generator is None:
        return torch.Generator(like.device).manual_seed(0)
    if not isinstance(generator, torch.Generator) or generator.device.type != like.device.type:
        raise ValueError(
            f"generator is {shown(generator)}; expected a torch.Generator on the device {like.device}, or None."
        )
    return generator


def number_of_rows(name: str, value: Any, width: int, like: Tensor) -> int:
    """How many rows of so many numbers to draw, for which there is room on the device of `like` [...]."""
    number: int = read(name, value, Whole(1))
    require_room(name, number, 8 * number * (1 + width), like.device)
    return number


def read_totals(totals: Any, given: bool, number: int, like: Tensor) -> Tensor | None:
    """Totals [N] in the dtype of `like` [...] of rows whose total is `given` and not modelled; None of others.

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
    return found.to(like).expand(number)


class MixtureRows(NamedTuple):
    """N rows of the mixture that the draws of a posterior make up."""

    X: Tensor  # [N, D]
    draws: Tensor  # [N], which draw a row has come from
    own: Tensor  # [N], its component among those of the draw
    generator: torch.Generator  # for what goes with the rows


def mixture_rows(
    model: Model, samples: Draw, num_rows: int, totals: Any, generator: torch.Generator | None
) -> MixtureRows:
    """Rows drawn from the mixture of x that samples [S, ...] leave of a model, as `PartitionPosterior.sample` says."""
    log_mixture, mixture = samples["log_mixture"], Predictive.of(model, samples)
    number = number_of_rows("num_rows", num_rows, int(model.num_features or 0), log_mixture)
    own_stream = stream(generator, log_mixture)
    sums = read_totals(totals, model.likelihood.given_totals, number, log_mixture)
    X, index = mixture.rows(number, sums, own_stream)
    width = len(mixture.weights) // len(log_mixture)
    return MixtureRows(X, index // width, index % width, own_stream)


def by_draw(draws: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each draw that some rows have come from, and the indices [M] of these rows, some thousand at a time, from the
    draw of every row [N]."""
    order = draws.argsort(stable=True)
    found, counts = draws[order].unique_consecutive(return_counts=True)
    for draw, rows in zip(found.tolist(), order.split(counts.tolist()), strict=True):
        yield from ((draw, part) for part in chunks(rows))


def in_place(parts: list[tuple[Tensor, Tensor]]) -> Tensor | None:
    """Values [N, ...] from parts of them, each with its places [M]; None of no parts."""
    if not parts:
        return None
    places, values = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    return values[places.argsort()]
