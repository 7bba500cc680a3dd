"""Parts that all descents share: prices, the stopping rule, restarts on one problem, and the kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from ...models.base import Model
from ..distributed.collectives import all_count
from ..distributed.picked import own_of, sampled_rows
from ..protocol import KernelData, S
from ..running.engine import Draw, Kernel
from .backend import SmallVariance


class _Descended(Protocol):
    """A state of a descent."""

    @property
    def objective(self) -> Tensor:
        """The objective [] float64, which no sweep raises."""


class _Problem(Protocol):
    """An objective to be minimized."""

    @property
    def data(self) -> KernelData:
        """The data of a model's structure."""


class _SomeRows(Protocol):
    """An objective to be minimized, which can be restricted to some of the rows."""

    @property
    def data(self) -> KernelData:
        """The data of a model's structure."""

    def rows(self, index: Tensor) -> Self:
        """The problem of some of the rows [M]."""


P = TypeVar("P", bound=_Problem)
R = TypeVar("R", bound=_SomeRows)


class Priced:
    """An objective of a model whose prior has prices of components or features."""

    model: Model

    def price(self, penalty: Tensor | float, number: int) -> Tensor | float:
        """The price Lambda(K) of `number` components or features, in double precision; the penalty is []."""
        exact = penalty.double() if isinstance(penalty, Tensor) else penalty
        return self.model.prior.price(exact, number)

    def next_price(self, penalty: Tensor | float, number: int) -> Tensor | float:
        """The price Lambda(K + 1) - Lambda(K) of one more, K = `number`, at a penalty []."""
        return self.price(penalty, number + 1) - self.price(penalty, number)


def changed_little(before: _Descended, state: _Descended, tolerance: float, moved: Tensor | float = 0.0) -> bool:
    """Whether the objective fell, and the labels `moved` [], by no more than the fraction `tolerance`."""
    little = before.objective - state.objective <= tolerance * state.objective.abs()
    return bool(little & (moved <= tolerance))


def sampled(problem: R, most: int, generator: torch.Generator) -> R:
    """The problem of at most `most` of the rows, drawn at random."""
    N = problem.data.num_data
    if most >= all_count(N):
        return problem
    return problem.rows(own_of(sampled_rows(N, most, generator), N))


@dataclass(frozen=True, eq=False)
class Restarts(ABC, Generic[S]):
    """The restarts of a fit: quantities that they share, computed when first needed, and the steps of each."""

    backend: SmallVariance

    @abstractmethod
    def first(self, generator: torch.Generator) -> S:
        """The start of the first restart."""

    @abstractmethod
    def scattered(self, generator: torch.Generator) -> S:
        """The start of a later restart, at random."""

    @abstractmethod
    def sweep(self, state: S, generator: torch.Generator) -> S:
        """One sweep, which does not raise the objective."""

    @abstractmethod
    def draw(self, state: S) -> Draw:
        """The draw that a posterior keeps of a state."""


@dataclass(frozen=True, eq=False)
class PricedRestarts(Restarts[S], Generic[P, S]):
    """Restarts at one penalty, so that their objectives can be compared."""

    problem: P  # the objective without the penalty

    @abstractmethod
    def natural_penalty(self, generator: torch.Generator) -> float:
        """The default penalty of a fit."""

    @cached_property
    def penalty(self) -> float:
        """The price of a component or feature."""
        if self.backend.penalty is not None:
            return self.backend.penalty
        return self.natural_penalty(self.seeded())

    def seeded(self) -> torch.Generator:
        """A generator for what all restarts share."""
        return torch.Generator(self.problem.data.X.device).manual_seed(self.backend.seed)


def kernel_of(state: type[S], prepare: Callable[..., Restarts[S]]) -> Kernel:
    """The kernel of descents with states of this class; `prepare` makes `Restarts` from the model and its data."""

    def init(model: object, restarts: Restarts[S], generator: torch.Generator) -> S:
        first = restarts.backend.is_first(generator)
        return restarts.first(generator) if first else restarts.scattered(generator)

    def value(state: _Descended, restarts: Restarts[Any], model: object) -> Tensor:
        return state.objective

    return Kernel(
        state,
        init,
        sweep=lambda state, restarts, model, generator, step: restarts.sweep(state, generator),
        value=value,
        draw=lambda state, restarts, model: restarts.draw(state),
        prepare=prepare,
    )
