"""Draws with different numbers of components, in one Tensor for each name."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..running.labels import LABELS, stack_labels
from ..structures import Draw


def stack_components(draws: list[Draw], *, log_weights: tuple[str, ...], components: tuple[str, ...]) -> Draw:
    """One Tensor [S, ...] for each name, components padded to the most that any of the S draws has.

    Parameters
    ----------
    log_weights : names of log weights [..., K + 1], the last column for what is not yet seen; padded by -inf before it
    components : names with one row [K, ...] for each component; padded by copies of the first, so that densities stay
        finite. `weights` are padded by 0, and so are the columns of `responsibilities` [N, K]
    """
    most = max(len(draw["log_mixture"]) for draw in draws)
    padded = [_pad(draw, most - len(draw["log_mixture"]), log_weights, components) for draw in draws]
    return {name: _stack(name, [draw[name] for draw in padded]) for name in padded[0]}


def _stack(name: str, values: list[Tensor]) -> Tensor:
    return stack_labels(values) if name == LABELS else torch.stack(values)


def _pad(draw: Draw, missing: int, log_weights: tuple[str, ...], components: tuple[str, ...]) -> Draw:
    if not missing:
        return draw
    padded = dict(draw)
    for name in draw.keys() & set(log_weights):
        none = draw[name].new_full((*draw[name].shape[:-1], missing), -torch.inf)
        padded[name] = torch.cat([draw[name][..., :-1], none, draw[name][..., -1:]], -1)
    for name in draw:
        if name in components or name.startswith("parameters."):
            first = padded[name][:1] * (0 if name == "weights" else 1)
            padded[name] = torch.cat([padded[name], first.expand(missing, *first.shape[1:])])
    if "responsibilities" in draw:
        padded["responsibilities"] = pad(draw["responsibilities"], (0, missing))
    return padded
