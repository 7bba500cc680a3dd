"""Draws of rows along paths of states: given the own state alone, or also the rows before."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...models.arrays import as_sequences
from ...models.distributions.sampling import draw, draw_categorical, uniforms
from ...models.likelihoods import Parameters
from ...models.sequence import StateSpace


def draw_paths(start: Tensor, log_rows: Tensor, num_steps: int, generator: torch.Generator) -> Tensor:
    """Paths [B, T] from log weights of the first states [B, K] and of those after each state [K, K]."""
    moves, path = start, list[Tensor]()
    for _ in range(num_steps):
        path.append(draw_categorical(moves, uniforms((len(start),), generator)))
        moves = log_rows[path[-1]]
    return torch.stack(path, 1)


def draw_rows(
    model: StateSpace, parameters: Parameters, paths: Tensor, given: Any, generator: torch.Generator
) -> Tensor:
    """Draw rows [B T, D] along the paths [B, T], with parameters [K, ...]; `given` [M, D] are rows before each path.

    Raises
    ------
    ValueError    if the model has lags and `given` does not end in so many observed rows.
    """
    if not model.lags:
        own = {name: value[paths.flatten()] for name, value in parameters.items()}
        return draw(model.likelihood.distribution(own), generator)
    before = _last_rows(model, given, next(iter(parameters.values())))
    window, found = before.flatten().expand(len(paths), -1), list[Tensor]()
    for states in paths.unbind(1):
        own = {name: value[states] for name, value in parameters.items()}
        blank = window.new_zeros(len(paths), before.shape[1])
        found.append(draw(model.likelihood.response(own, torch.cat([window, blank], 1)), generator))
        window = torch.cat([found[-1], window], 1)[:, : window.shape[1]]
    return torch.stack(found, 1).flatten(0, 1)


def _last_rows(model: StateSpace, given: Any, like: Tensor) -> Tensor:
    """The last rows [lags, D] of `given`, latest first."""
    if given is None:
        raise ValueError(f"given is None; with lags={model.lags} a sequence goes on from rows: pass some as given.")
    rows, _, observed = as_sequences(given, num_features=model.num_features, min_rows=0, like=like)
    if len(rows) < model.lags or not observed[-model.lags :].all():
        raise ValueError(f"given must end in {model.lags} observed rows, which lags={model.lags} looks back on.")
    return rows[-model.lags :].flip(0)
