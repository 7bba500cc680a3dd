"""What the models of state sequences share: the truncated Pyro program, and what kernels ask of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyro
import torch
from torch import Tensor

from .arrays import as_sequences
from .base import Model
from .data import Data
from .markov import log_normalizers
from .priors import HierarchicalDirichletProcess
from .scores import scores


@dataclass(frozen=True, eq=False)
class Sequences:
    """What the kernels see of B sequences with N steps in all, M of them observed."""

    points: Data  # of the M observed steps
    steps: Tensor  # [M] int64, the step 0..N-1 of every observed one
    lengths: list[int]

    @property
    def X(self) -> Tensor:
        """The observed rows [M, D]."""
        return self.points.X

    @property
    def num_data(self) -> int:
        """N, missing steps included."""
        return sum(self.lengths)

    @property
    def starts(self) -> Tensor:
        """True [N] at the first step of every sequence."""
        ends = torch.tensor([0, *self.lengths[:-1]], device=self.steps.device).cumsum(0)
        return torch.zeros(self.num_data, dtype=torch.bool, device=self.steps.device).index_fill(0, ends, True)

    def spread(self, rows: Tensor) -> Tensor:
        """[N, ...] with the rows [M, ...] at the observed steps and 0 at the missing ones."""
        return rows.new_zeros(self.num_data, *rows.shape[1:]).index_copy(0, self.steps, rows)

    def sequences(self, chosen: list[int]) -> Sequences:
        """The data of some of the sequences."""
        labels = torch.arange(len(self.lengths)).repeat_interleave(torch.tensor(self.lengths)).to(self.steps.device)
        number = {sequence: index for index, sequence in enumerate(chosen)}
        order = torch.cat([torch.nonzero(labels == sequence).squeeze(1) for sequence in number])
        place = torch.full_like(labels, -1).index_copy(0, order, torch.arange(len(order), device=order.device))
        steps = place[self.steps]
        kept = torch.nonzero(steps >= 0).squeeze(1)
        kept = kept[steps[kept].argsort()]
        return Sequences(self.points.rows(kept), steps[kept], [self.lengths[sequence] for sequence in chosen])


class StateSpace(Model):
    """What the infinite hidden Markov models share: the truncated Pyro program and what kernels ask of a model.

    Shapes: N steps, M of them observed, D columns, P features, C scores, T = `truncation` states.
    """

    data_type: ClassVar[type] = Sequences

    prior: HierarchicalDirichletProcess

    def data(self, X: Any, lengths: Any = None) -> Sequences:
        """The kernels' view of the rows X [N, D] of the sequences of a resolved model; NaN rows are missing."""
        rows, sizes, observed = as_sequences(X, lengths, num_features=self.num_features)
        steps = torch.nonzero(observed).squeeze(1)
        points = rows[steps]
        return Sequences(Data(points, self.features(points), self.targets(points)), steps, sizes)

    def prepare(self, X: Any, y: Any = None, lengths: Any = None) -> tuple[Self, Sequences]:
        """The resolved model and the kernels' view of what a user passes to `fit`."""
        if y is not None:
            raise ValueError(f"{type(self).__name__} finds states without labels: leave y out.")
        model = self.checked()
        rows, _, observed = as_sequences(X, lengths, num_features=model.num_features, min_rows=2)
        model = model.resolve(rows[observed])
        return model, model.data(X, lengths)

    def __call__(self, X: Any, lengths: Any = None) -> None:
        """The Pyro program on the truncated model, state sequences summed out.

        Sites: the prior's (`concentration` and `top_concentration` where they have a law, `sticks` [T-1],
        `transitions` [T + 1, T], last row: where sequences start), the family's own parameters [T, ...], `weights`
        [T, P, C], and the factors `paths` (log density of the observations) and, where states repel, `rejection`.
        """
        rows, _, observed = as_sequences(X, lengths)
        model = self.resolve(rows[observed])
        data, T = model.data(X, lengths), model.truncation
        points = data.points
        log_rows = model.prior.sample(T, data.X).clamp(min=torch.finfo(data.X.dtype).tiny).log()
        parameters, weights = model.components(points.features, points.targets)
        found = scores(points.features, weights)
        emission = model.likelihood.log_density(data.X, parameters)
        emission = emission + model.log_margin(found, points.targets.unsqueeze(1))
        if model.repels:
            pyro.factor("rejection", model.log_rejection(found.squeeze(-1)).sum())
        pyro.factor("paths", log_normalizers(log_rows[T], log_rows[:T], data.spread(emission), data.lengths).sum())
