"""Ordered classes: one score, and thresholds between the levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from ..arrays import read_labels
from ..domains import shown
from ..losses import AllThresholds
from ..losses.all_thresholds import Increasing
from ..losses.base import Loss
from ..sparse import Rows
from ..sums import all_values
from ..warning import warn
from .base import ClassTarget


class MissingLabelWarning(UserWarning):
    """The lowest level is -1, which may stand for a missing label."""


@dataclass(eq=False)
class Ordinal(ClassTarget):
    """Classes 0 < 1 < ... < L-1 in the order of their labels: one score f, and a threshold between adjacent classes.

        log phi(y | f) = sum_{l = 1..L-1} log phi_binary(s_l | f - b_l),      s_l = +1 if y >= l, else -1

    Any binary loss can be used. Decoding counts the thresholds below f. With two classes and b_1 = 0 it is `Binary`.
    A class may be -1, as in ratings from -2 to 2, so only NaN is a missing label.

    Parameters
    ----------
    classes : the labels [L] from lowest to highest; None: those of the model
    thresholds : b_1 < ... < b_(L-1), fixed; None: 2 l (k - L / 2) at k = 1..L-1, with the margin l of the loss (1 if
        the loss has none). The intercept and the scale of the weights are learned relative to these thresholds

    References
    ----------
    Rennie & Srebro (2005), all-threshold losses; Chu & Keerthi (2007).

    Examples
    --------
    >>> from regbayes.models import Hinge, InfiniteSVM
    >>> model = InfiniteSVM(loss=Hinge(), target=Ordinal()).resolve([[0.0], [1.0], [2.0]], [3, 4, 5])
    >>> model.loss.thresholds
    (-1.0, 1.0)
    """

    thresholds: Annotated[tuple[float, ...], Increasing()] | None = None

    ordered = True

    def find_classes(self, y: Tensor, like: Rows) -> Tensor:
        levels = all_values(y[~y.isnan()].double())
        if self.classes is None and levels[:2].tolist() == [-1, 0] and len(levels) > 3:
            warn(
                "y has the levels -1, 0, 1, ..., of which Ordinal() reads -1 as the lowest. If it stands for a missing "
                f"label, pass NaN; if not, Ordinal(classes={levels.long().tolist()}) says so.",
                MissingLabelWarning,
            )
        return read_labels(y, levels.long() if self.classes is None and len(levels) > 1 else self.classes)[1]

    def codes(self) -> Tensor:
        return torch.arange(float(len(self.labels)), device="cpu").unsqueeze(1)

    def factor(self, loss: Loss) -> Loss:
        if loss.target == "level":
            found = loss.probabilities(torch.zeros(1, 1, device="cpu")).shape[1]
            if self.classes is not None and found != len(self.classes):
                raise ValueError(f"loss is {loss!r}, of {found} levels; y has the classes {self.classes.tolist()}.")
            own = getattr(loss.unmasked, "thresholds", self.thresholds)
            if self.thresholds is not None and tuple(self.thresholds) != own:
                raise ValueError(
                    f"target__thresholds is {shown(self.thresholds)}, but the loss has thresholds of its own, {own}. "
                    "Give one of them: a binary loss such as Hinge(), or Ordinal() without thresholds."
                )
            return loss
        if not loss.binary:
            raise ValueError(f"loss is {loss!r}; Ordinal() needs a binary one such as Hinge() or Logistic().")
        if self.classes is None:  # the number of levels is not yet known
            return AllThresholds(loss)
        L, margin = len(self.classes), float(getattr(loss.unmasked, "margin", 1.0))
        even = tuple(2 * margin * (k - L / 2) for k in range(1, L))
        thresholds = even if self.thresholds is None else self.thresholds
        if len(thresholds) != L - 1:
            raise ValueError(
                f"target__thresholds is {shown(thresholds)}; expected {L - 1}, one between each two of {L} classes."
            )
        return AllThresholds(loss, thresholds)
