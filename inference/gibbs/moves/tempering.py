"""Tempered starts of chains whose components repel: the margin factors are phi^t, and the power t rises to 1.

At full power the hyperplanes keep overlapping clusters as they were first divided, and no single proposal reaches the
blocks of a better division. At a low power, points near a boundary change components freely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from ....models.base import Model
from ....models.data import Data
from ....models.losses.base import Loss, PseudoObservation
from ....models.sequence import Sequences
from ..hyperplanes import fill_reservoir
from ..state import PartitionState

S = TypeVar("S", bound=PartitionState)


@dataclass(eq=False)
class Tempered(Loss):
    """phi^t of another loss, for the scans and moves of a start.

    Pseudo-observations count t times, with omega drawn as if t were 1. For any loss this approximates a draw given
    phi^t: with omega at its mean, both have the same fixed points. A start need not be exact.
    """

    loss: Loss
    power: float

    @property
    def untempered(self) -> tuple[Loss, float]:
        return self.loss, self.power

    @property
    def is_augmented(self) -> bool:
        return self.loss.is_augmented

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        """t log phi(y | f) [..., C]."""
        return self.power * self.loss.log_factor(score, y)

    def augment(self, score: Tensor, y: Tensor, generator: torch.Generator) -> PseudoObservation:
        """t times the precision and shift [..., C] of the loss."""
        return PseudoObservation(*(self.power * part for part in self.loss.augment(score, y, generator)))


def harden(
    state: S,
    data: Data | Sequences,
    model: Model,
    generator: torch.Generator,
    sweep: Callable[..., S],
    num_sweeps: int,
) -> S:
    """Sweep while the power of the factors rises geometrically to 1; return the last state.

    `sweep` takes (state, data, model, generator, step, num_warmup). The reservoir [A, P, 1] is filled anew now and
    then.
    """
    features = data.points.features
    for step in range(num_sweeps):
        power = _LEAST_POWER ** (1 - (step + 1) / num_sweeps)
        soft = model.replace(loss=Tempered(model.loss, power))
        if state.reservoir is not None and (power == 1 or step % _RARE == 0):
            steps = {} if power == 1 else {"num_steps": 0}
            state = replace(state, reservoir=fill_reservoir(features, soft, generator, **steps))
        state = sweep(state, data, soft, generator, step, num_warmup=num_sweeps)
    return state


_LEAST_POWER = 0.1
_RARE = 4  # sweeps between fillings of the reservoir, which cost as much as several sweeps
