"""Consistency checks of samples and draws by the names of their axes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..running.chains import LABELS
from ..running.files import require_entries
from ..structures import Draw

Axes = dict[str, str]
"""The axes of each sample after the draws, such as "K P C"; "K+1": one longer; "...": any others.

N is at least 1. A prefix before ":" gives the type: "int", "float" or "any"; without one, entries are floating-point
numbers, all of one type. A name that ends in a dot stands for all names that begin with it.
"""


def require_samples(samples: Draw, num_draws: list[Any], names: tuple[str, ...], axes: Axes) -> dict[str, int]:
    """Check samples [S, ...] and return the lengths of their axes by name; `num_draws` are the draws of each chain.

    Parameters
    ----------
    names : those that have to be there
    axes : of those and of others; axes of one name have one length

    Raises
    ------
    ValueError    unless they fit together.
    """
    require_entries(samples, "samples", dict.fromkeys([*samples, *names], Tensor))
    if not all(type(number) is int and number >= 0 for number in num_draws) or not sum(num_draws):
        raise ValueError(f"The file has {num_draws!r} for the numbers of draws. It was not written by regbayes.")
    number, sizes, kinds = sum(num_draws), dict[str, int](), dict[torch.dtype, str]()
    for name, value in samples.items():
        kind, _, known = axes.get(known_name(name, axes) or "", "any:...").rpartition(":")
        if value.ndim == 0 or len(value) != number or not _agrees(value.shape[1:], known.split(), sizes):
            shape, others = list(value.shape), ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
            expected = f" that are [{known.replace(' ', ', ')}] each, with {others}" if sizes else ""
            raise ValueError(
                f"The file has {name!r} of shape {shape} for {number} draws{expected}. It was not written by regbayes."
            )
        if kind == "float" and not value.is_floating_point():
            raise ValueError(f"The file has {name!r} of type {value.dtype}. It was not written by regbayes.")
        if not kind:
            kinds.setdefault(value.dtype, name)
            if value.isnan().any():
                raise ValueError(f"The file has NaN in {name!r}. It was not written by regbayes.")
    if len(kinds) > 1 or not all(kind.is_floating_point for kind in kinds):
        found = ", ".join(f"{name!r} of {kind}" for kind, name in kinds.items())
        raise ValueError(f"The file has {found}, not numbers of one type. It was not written by regbayes.")
    if number > 1 and not any(value.numel() for value in samples.values()):
        raise ValueError(f"The file has {number} draws, but no value in any of them. It was not written by regbayes.")
    if LABELS in samples:
        _require_labels(samples[LABELS], sizes.get("K"))
    return sizes


def require_draw(draw: Draw, names: tuple[str, ...], axes: Axes, whose: str, record: str) -> None:
    """Raise ValueError unless one draw has these names with these axes; further entries must be numbers or vectors.

    `whose` and `record` name the draw and its record in the message.
    """
    sizes = dict[str, int]()
    if missing := [name for name in names if name not in draw]:
        needed, found = ", ".join(names), ", ".join(draw)
        raise ValueError(f"{whose} has no {missing[0]!r}; {record} needs {needed}. It has {found or 'nothing'}.")
    for name, value in draw.items():
        known = axes.get(known_name(name, axes) or "")
        if known is None and value.ndim <= 1:
            continue
        if known is None:
            raise ValueError(
                f"{whose} has {name!r} of shape {list(value.shape)}, a name that {record} does not have; it has: "
                f"{', '.join(axes)}. Further names are for numbers and vectors, such as hyperparameters."
            )
        if known.startswith("int:") and value.is_floating_point():
            raise ValueError(f"{whose} has {name!r} of type {value.dtype}; expected integers, {known!r} of {record}.")
        if not _agrees(value.shape, known.rpartition(":")[2].split(), sizes):
            others = ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
            raise ValueError(
                f"{whose} has {name!r} of shape {list(value.shape)}; expected {known!r} of {record}, with {others}."
            )


def known_name(name: str, axes: Axes) -> str | None:
    """The key of `axes` for a name: the name itself, or its prefix with a dot; None if there is none."""
    found = name if name in axes else f"{name.split('.')[0]}."
    return found if found in axes else None


def _agrees(shape: torch.Size, axes: list[str], sizes: dict[str, int]) -> bool:
    """Whether a shape has these axes; lengths of new axes are added to `sizes`."""
    if axes[-1:] == ["..."]:
        axes, shape = axes[:-1], shape[: len(axes) - 1]
    if len(shape) != len(axes):
        return False
    found = [(axis.removesuffix("+1"), size - axis.endswith("+1")) for axis, size in zip(axes, shape, strict=True)]
    return all(size >= (axis == "N") and sizes.setdefault(axis, size) == size for axis, size in found)


def _require_labels(labels: Tensor, number: int | None) -> None:
    """Raise ValueError unless these are assignments [S, N] to existing components."""
    if labels.dtype not in _INTEGERS or labels.shape[1] == 0:
        raise ValueError(
            f"The file has {LABELS!r} of type {labels.dtype} and shape {list(labels.shape)}. "
            "It was not written by regbayes."
        )
    least, most = (int(end) for end in labels.aminmax())
    if least < 0 or (number is not None and most >= number):
        raise ValueError(
            f"The file has {LABELS!r} from {least} to {most} of {number} components. It was not written by regbayes."
        )


_INTEGERS = {torch.int8, torch.int16, torch.int32, torch.int64}
