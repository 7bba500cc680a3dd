"""Data together with quantities of their likelihood that a fit computes once (`Kernel.prepare`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...models import host
from ...models.bnmc import BNMC
from ...models.compiled import compiled_form
from ...models.data import Data
from ...models.dpm import DPM
from ...models.label_data import LabelData
from ...models.likelihoods import ExponentialFamily
from ...models.likelihoods.base import Parameters
from ...models.mixture import Mixture
from ...models.sequence import Sequences, StateSpace
from ..compiled.trusted import require_labels
from ..distributed.collectives import all_sum


class CompiledFamily(NamedTuple):
    """A likelihood as compiled scans take it."""

    form: Any  # its compiled form, with components [S', 1] of the prior
    normalizers: np.ndarray  # [N + 1], terms of a log predictive that depend on the number of points alone
    width: int  # S, the length of its statistics


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared(Data):
    """Data with quantities that stay the same in all sweeps; each is computed when it is first read."""

    family: ExponentialFamily

    @classmethod
    def of(cls, data: Data, family: ExponentialFamily) -> Prepared:
        """The data prepared for a likelihood; returned as they are if this was done before."""
        if isinstance(data, cls) and data.family is family:
            return data
        return cls(data.X, data.features, data.targets, data.weights, family=family)

    def rows(self, index: Tensor | slice) -> Data:  # type: ignore[override]
        """The data of some rows, from their indices [M]."""
        return Data(self.X, self.features, self.targets, self.weights).rows(index)

    @cached_property
    def prior(self) -> Tensor:
        """The prior's hyperparameters [S]."""
        return self.family.prior()

    @cached_property
    def statistics(self) -> Tensor | None:
        """The sufficient statistics [N, S] of all rows in double precision; None where they need too much memory."""
        X = self.X
        if X.is_sparse or not host.on_cpu(X) or len(X) * len(self.prior) > MOST_KEPT:
            return None
        return self.family.statistics(X).double().contiguous()

    def summed(self, labels: Tensor, num_components: int) -> Tensor:
        """The sums [K, S] of the statistics of each component's rows, from components `labels` [N] in 0..K-1."""
        if self.statistics is None:
            return self.family.summed_statistics(self.X, labels, num_components)
        from ._numba_sums import add_rows  # compiles or loads machine code: only where it is needed

        require_labels("assignments", labels, len(self.X), num_components)
        sums = self.statistics.new_zeros(num_components, self.statistics.shape[1])
        add_rows(self.statistics.numpy(), labels.contiguous().numpy(), sums.numpy())
        return all_sum(sums).to(self.X.dtype)

    def log_densities(self, parameters: Parameters) -> Tensor:
        """log p(x_n | theta_k) [N, K], up to a constant for each row."""
        natural = None if self.statistics is None else self.family.natural(parameters)
        if self.statistics is None or natural is None:
            return self.family.log_density(self.X, parameters)
        return self.statistics @ natural.double().T.contiguous()

    @cached_property
    def log_constants(self) -> tuple[float, float]:
        """The log normalizer of the prior, and the log base measure of all rows."""
        log_base_measure = all_sum(self.family.log_base_measure(self.X).double().sum())
        return float(self.family.log_partition(self.family.prior().double())), float(log_base_measure)

    @cached_property
    def exact(self) -> Prepared:
        """The data and their likelihood in double precision."""
        exact = self.double()
        return self if exact is self else Prepared.of(exact, self.family.resolve(exact.X))

    @cached_property
    def compiled(self) -> CompiledFamily:
        """The likelihood as compiled scans take it; the data must be in double precision."""
        form, counts = compiled_form(self.family), torch.arange(self.num_data + 1, dtype=torch.float64)
        normalizers = form.log_normalizers(self.family, counts) if hasattr(form, "log_normalizers") else 0 * counts
        return CompiledFamily(form.of(self.family, self), normalizers.numpy(), len(self.prior))


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedLabels(LabelData):
    """Multi-label data with the mixture of (x, y) and the rows that it sees."""

    mixture: DPM

    def rows(self, index: Tensor | slice) -> LabelData:  # type: ignore[override]
        """The data of some rows, from their indices [M]."""
        return LabelData(self.x, self.y, self.features, self.targets, self.weights).rows(index)

    @cached_property
    def points(self) -> Prepared:
        """The rows of the mixture: (x, y) without classifiers."""
        return prepare_points(self.mixture, replace(self.margins, X=self.X).without_features())


def prepare_labels(model: BNMC, data: LabelData) -> PreparedLabels:
    """The data of a fit of a multi-label model; returned as they are if they were prepared before."""
    if isinstance(data, PreparedLabels):
        return data
    return PreparedLabels(data.x, data.y, data.features, data.targets, data.weights, mixture=model.mixture)


def prepare_points(model: Mixture, data: Data) -> Prepared:
    """The data of a fit of a mixture."""
    return Prepared.of(data, model.likelihood)


def prepare_sequences(model: StateSpace, data: Sequences) -> Sequences:
    """The data of a fit of a model of sequences."""
    return replace(data, points=Prepared.of(data.points, model.likelihood))


MOST_KEPT = 2**22  # entries of `statistics`
