"""The interface of a feature map: what the hyperplanes of a model see of x. The likelihood goes on seeing x itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ..checks import require_number
from ..config import Config
from ..sparse import Rows, SparseRows


class FeatureMap(Config, ABC):
    """A map from rows [N, D] to features [N, P], the last of them a constant `intercept` unless that is 0."""

    intercept: float

    def check(self) -> None:
        """Raise ValueError that names an argument outside its domain."""
        require_number("intercept", self.intercept, closed=True)

    @abstractmethod
    def resolve(self, X: Rows) -> Self:
        """A copy that holds what it takes from the data X [N, D]; resolving that again changes nothing."""

    @abstractmethod
    def project(self, X: Rows) -> Tensor:
        """Features [N, P] of the rows of X [N, D], without the constant."""

    def __call__(self, X: Rows) -> Tensor:
        """Features [N, P] of the rows of X [N, D]."""
        projected = self.project(X)
        if not self.intercept:
            return projected
        return torch.cat([projected, projected.new_full((len(projected), 1), self.intercept)], 1)

    def require(self, value: Tensor | None) -> Tensor:
        """What `resolve` took from the data, [...]; ValueError if it has not."""
        if value is None:
            raise ValueError("The model is not resolved. Call model.resolve(X) first.")
        return value


@dataclass(eq=False)
class Function(FeatureMap):
    """Any function of the rows, such as a torch module; it is used as it is, and not trained.

    Parameters
    ----------
    function : maps a Tensor [N, D] to a Tensor [N, P]
    intercept : value of the constant feature; 0 for none
    """

    function: Callable[[Any], Tensor]
    intercept: float = 1.0

    def resolve(self, X: Rows) -> Self:
        self.check()
        with torch.no_grad():
            found = self.function(X[:2])
        if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != len(X[:2]) or found.dtype != X.dtype:
            shape = f"{tuple(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"feature_map gives {shape} for {len(X[:2])} rows; expected a Tensor [{len(X[:2])}, P] of {X.dtype}."
            )
        return self.replace()

    def project(self, X: Rows) -> Tensor:
        with torch.no_grad():
            return self.function(X)


def as_feature_map(value: Any) -> FeatureMap:
    """The map that a model was given: one of ours, or any callable."""
    if isinstance(value, FeatureMap):
        return value
    if not callable(value) or isinstance(value, type):
        raise ValueError(f"feature_map is {value!r}; expected a feature map such as Standardized(), or a callable.")
    return Function(value)


def dense_rows(X: Rows, name: str) -> Tensor:
    """X [N, D] as it is; ValueError if it is sparse, since the map `name` would make it dense."""
    if isinstance(X, SparseRows):
        raise ValueError(f"X is sparse, and {name} would make it dense. Use feature_map=PrincipalDirections().")
    return X
