"""The common part of models of state sequences: the truncated Pyro program, and the methods that kernels call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import pyro
import torch
from torch import Tensor

from .arrays import as_features, as_sequences
from .base import Model, announced
from .data import Data, Spread
from .host import require_room
from .markov import log_normalizers
from .priors import HierarchicalDirichletProcess
from .scores import scores


@dataclass(frozen=True, eq=False)
class Sequences(Spread):
    """The kernels' view of B sequences with N steps in all, of which M are observed."""

    points: Data  # of the M observed steps
    steps: Tensor  # [M] int64, the index 0..N-1 of each observed step
    lengths: list[int]

    @property
    def X(self) -> Tensor:
        """The observed rows [M, D]."""
        return self.points.X

    @property
    def features(self) -> Tensor:
        """The features [M, P] that hyperplanes see of the observed steps."""
        return self.points.features

    @property
    def num_data(self) -> int:
        """N, missing steps included."""
        return sum(self.lengths)

    @cached_property
    def starts(self) -> Tensor:
        """True [N] at the first step of every sequence."""
        ends = torch.tensor([0, *self.lengths][: len(self.lengths)], device=self.steps.device).long().cumsum(0)
        return torch.zeros(self.num_data, dtype=torch.bool, device=self.steps.device).index_fill(0, ends, True)

    def observed(self, labels: Tensor) -> Tensor:
        """The labels of the observed steps [M], from those of all steps [N]."""
        return labels if len(self.steps) == len(labels) else labels[self.steps]

    def spread(self, rows: Tensor) -> Tensor:
        """A table [N, ...] with the rows [M, ...] at the observed steps, and 0 at the missing ones."""
        if len(rows) == self.num_data:
            return rows
        return rows.new_zeros(self.num_data, *rows.shape[1:]).index_copy(0, self.steps, rows)

    def sequences(self, chosen: list[int]) -> Sequences:
        """The data of the sequences with the indices `chosen`."""
        labels = (
            torch.arange(len(self.lengths))
            .repeat_interleave(torch.tensor(self.lengths, dtype=torch.int64))
            .to(self.steps.device)
        )
        number = {sequence: index for index, sequence in enumerate(chosen)}
        parts = [torch.nonzero(labels == sequence).squeeze(1) for sequence in number]
        order = torch.cat([labels[:0], *parts])
        place = torch.full_like(labels, -1).index_copy(0, order, torch.arange(len(order), device=order.device))
        steps = place[self.steps]
        kept = torch.nonzero(steps >= 0).squeeze(1)
        kept = kept[steps[kept].argsort()]
        return Sequences(self.points.rows(kept), steps[kept], [self.lengths[sequence] for sequence in chosen])


class StateSpace(Model):
    """Base class of infinite hidden Markov models.

    Shapes: N steps, M of them observed, D columns, P features, C scores, T = `truncation` states.
    """

    data_type: ClassVar[type] = Sequences

    prior: HierarchicalDirichletProcess
    lags: int = 0

    def rows(
        self, X: Any, lengths: Any = None, *, min_rows: int = 1, like: Tensor | None = None
    ) -> tuple[Tensor, list[int], Tensor]:
        """As `as_sequences` for X [N, D], with each row joined to the `lags` rows before it (see `lagged`)."""
        options: dict[str, Any] = {"num_features": self.num_features, "like": like}
        rows, sizes, observed = as_sequences(X, lengths, min_rows=min_rows, **options)
        if min_rows and self.lags >= max(sizes):
            observed = torch.zeros_like(observed)  # no step has so many steps before it
        else:
            require_room("lags", self.lags, rows.nbytes * (self.lags + 1), rows.device)
            rows, observed = lagged(rows, sizes, observed, self.lags)
        if int(observed.sum()) < min_rows:
            raise ValueError(
                f"X has {int(observed.sum())} observed steps after {self.lags} observed ones of their sequence, which "
                f"lags={self.lags} needs; expected at least {min_rows}. Use fewer lags, or longer sequences."
            )
        return rows, sizes, observed

    def readable(self, X: Any, lengths: Any = None) -> Tensor:
        rows, _, observed = self.rows(X, lengths, min_rows=2)
        rows, known = rows[observed], self.lags * (rows.shape[1] // (self.lags + 1))
        (self.likelihood.given_first(known) if known else self.likelihood).admit(rows)
        return rows

    def resolve(self, X: Any, y: Any = None, weights: Tensor | None = None) -> Self:
        """As `Model.resolve`, from rows X [N, (lags + 1) D] as `rows` returns them."""
        if not self.lags:
            return super().resolve(X, y, weights)
        X, model = as_features(X), self.checked()
        width, left_over = divmod(X.shape[1], model.lags + 1)
        if left_over:
            raise ValueError(f"X has {X.shape[1]} columns; with lags={model.lags} pass what `rows` makes of it.")
        likelihood = model.likelihood.given_first(model.lags * width)
        model = model.replace(likelihood=likelihood, num_features=None)
        return super(StateSpace, model).resolve(X, y, weights).replace(num_features=width)

    def data(self, X: Any, lengths: Any = None) -> Sequences:
        """The kernels' view of the rows X [N, D] of the sequences of a resolved model; NaN rows are missing."""
        rows, sizes, observed = self.rows(X, lengths)
        steps = torch.nonzero(observed).squeeze(1)
        points = rows[steps]
        return Sequences(Data(points, self.features(points), self.targets(points)), steps, sizes)

    def prepare(self, X: Any, y: Any = None, lengths: Any = None, **weights: Tensor) -> tuple[Self, Sequences]:
        """The resolved model and the kernels' view of X [N, D], rows of sequences; NaN rows are missing."""
        if y is not None:
            raise ValueError(f"{type(self).__name__} finds states without labels: leave y out.")
        model = self.checked()
        rows, _, observed = model.rows(X, lengths, min_rows=2)
        model = model.resolve(rows[observed])
        return model, model.data(X, lengths)

    def without_hyperplanes(self) -> StateSpace:
        """The model that remains as nu -> 0 if states repel; else the model itself."""
        return self

    def __call__(self, X: Any, lengths: Any = None) -> None:
        """The Pyro program on the truncated model: `program` of the resolved model on its data."""
        rows, _, observed = self.rows(X, lengths)
        model = self.resolve(rows[observed])
        model.program(model.data(X, lengths))

    @announced
    def program(self, data: Sequences) -> None:
        """The Pyro program of a resolved model, state sequences summed out.

        Sites: the prior's (`concentration` and `top_concentration` where they are random, `sticks` [T-1],
        `transitions` [T + 1, T], last row: where sequences start), the family's own parameters [T, ...], `weights`
        [T, P, C], and the factors `paths` (log density of the observations) and, where states repel, `rejection`.
        """
        points, T = data.points, self.truncation
        log_rows = self.prior.sample_rows(T, data.X).clamp(min=torch.finfo(data.X.dtype).tiny).log()
        parameters, weights = self.components(points.features, points.targets)
        found = scores(points.features, weights)
        emission = self.likelihood.log_density(data.X, parameters)
        emission = emission + self.log_margin(found, points.targets.unsqueeze(1))
        if self.repels:
            pyro.factor("rejection", self.log_rejection(found.squeeze(-1)).sum())
        pyro.factor("paths", log_normalizers(log_rows[T], log_rows[:T], data.spread(emission), data.lengths).sum())


def lagged(rows: Tensor, sizes: list[int], observed: Tensor, lags: int) -> tuple[Tensor, Tensor]:
    """Rows (x_{t-1}, ..., x_{t-lags}, x_t) [N, (lags + 1) D], 0 where missing, and observed [N], from rows [N, D].

    A step counts as observed if all these rows are observed and in the same sequence: the model is conditional on the
    first rows of every sequence, and does not model the rows right after a missing one.
    """
    if not lags:
        return rows, observed
    places = torch.cat([torch.arange(size, device=rows.device) for size in sizes])
    before = [rows.roll(lag, 0) for lag in range(1, lags + 1)]
    seen = [observed.roll(lag) & (places >= lag) for lag in range(1, lags + 1)]
    complete = torch.stack([observed, *seen]).all(0)
    return torch.cat([*before, rows], 1).where(complete.unsqueeze(1), 0.0), complete
