"""The interface of a feature map: what the hyperplanes of a model see of x. The likelihood still sees x itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor

from ..config import Config
from ..domains import AnyNumbers, NonNegative, PositiveNumbers
from ..likelihoods.base import column_means, column_variances, hyperparameter, told_or_one
from ..sparse import Rows, SparseRows


class FeatureMap(Config, ABC):
    """A map from rows [N, D] to features [N, P], the last of them a constant `intercept` unless that is 0.

    Calling a map appends the constant to the result of `project`. A map whose users may choose the constant has a field
    `intercept: NonNegative = 1.0`; in any other map it is 1.
    """

    column_wise: ClassVar[bool] = False  # whether feature d is column d of x alone, (x_d - loc_d) / scale_d

    intercept: NonNegative = 1.0

    @abstractmethod
    def resolve(self, X: Rows, weights: Tensor | None = None) -> Self:
        """A copy fitted to the data X [N, D]; resolving the copy again changes nothing.

        Row n counts `weights` [N] times; None: once. A map that cannot be fitted with weights may leave the argument
        out.
        """

    @abstractmethod
    def project(self, X: Rows) -> Tensor:
        """Features [N, P] of the rows of X [N, D], without the constant."""

    def __call__(self, X: Rows) -> Tensor:
        """Features [N, P] of the rows of X [N, D]."""
        projected = self.project(X)
        _require_rows(projected, X)
        if not self.intercept:
            return projected
        return torch.cat([projected, projected.new_full((len(projected), 1), self.intercept)], 1)

    def require(self, value: Tensor | None) -> Tensor:
        """The fitted value [...]; ValueError if the map is not resolved."""
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
    intercept: NonNegative = 1.0

    def resolve(self, X: Rows, weights: Tensor | None = None) -> Self:
        try:
            found = self._features(X[:2])
        except Exception as error:  # a user's function may raise anything
            raise ValueError(f"feature_map fails on {len(X[:2])} rows: {error!r}.") from error
        _require_rows(found, X[:2])
        return self.replace()

    def project(self, X: Rows) -> Tensor:
        """Features [N, P]; ValueError unless they have N rows and are finite, as predictions need."""
        found = self._features(X)
        _require_rows(found, X)
        if not (finite := found.isfinite().all(1)).all():
            row, wrong = int((~finite).nonzero()[0]), float(found[~found.isfinite()][0])
            raise ValueError(
                f"feature_map gives {wrong} for row {row} of X; expected finite numbers. Mend the function, or leave "
                "such rows out."
            )
        return found

    def _features(self, X: Rows) -> Tensor:
        has_graph = isinstance(X, Tensor) and X.requires_grad  # only in a Pyro program
        with torch.set_grad_enabled(has_graph and torch.is_grad_enabled()):
            return self.function(X)


def _require_rows(found: Any, X: Rows) -> None:
    """Raise ValueError unless a map returned a matrix with a row for each row of X [N, D]."""
    if isinstance(found, Tensor) and found.ndim == 2 and len(found) == len(X) and found.dtype == X.dtype:
        return
    shape = f"{tuple(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
    raise ValueError(
        f"feature_map gives {shape} for {len(X)} rows; expected a Tensor [{len(X)}, P] of {X.dtype}. Give features for "
        "each row."
    )


class _AnyFunction:
    """The domain of a model's feature map: a `FeatureMap` or any callable."""

    kind = FeatureMap
    words = "a feature map such as Standardized(), or a callable"

    def read(self, value: Any) -> Function:
        if not callable(value) or isinstance(value, type | Config):
            raise ValueError
        return Function(value)


AnyFeatureMap = Annotated[FeatureMap, _AnyFunction()]


def require_matrix(name: str, matrix: Tensor, num_columns: int) -> None:
    """Raise ValueError unless the matrix has shape [D, M], for D columns."""
    if matrix.ndim != 2 or len(matrix) != num_columns:
        raise ValueError(f"{name} has shape {tuple(matrix.shape)}; expected [{num_columns}, M], a row for each column.")


def dense_rows(X: Rows, name: str) -> Tensor:
    """X [N, D] unchanged; ValueError if it is sparse, since the map `name` would make it dense."""
    if isinstance(X, SparseRows):
        raise ValueError(f"X is sparse, and {name} would make it dense. Use feature_map=PrincipalDirections().")
    return X


@dataclass(eq=False)
class Standardized(FeatureMap):
    """(x - loc) / scale.

    Parameters
    ----------
    loc, scale : numbers or [D]; None: mean and standard deviation of the data (1 for a constant column)
    intercept : value of the constant feature, so that the intercept's prior standard deviation is
        `weight_scale * intercept`; 0 for none
    """

    loc: AnyNumbers = None
    scale: PositiveNumbers = None
    intercept: NonNegative = 1.0

    column_wise: ClassVar[bool] = True

    def resolve(self, X: Rows, weights: Tensor | None = None) -> Self:
        X = dense_rows(X, "Standardized")
        loc = column_means(X, weights) if self.loc is None else self.loc
        scale = column_scales(X, weights) if self.scale is None else self.scale
        width = X.shape[1]
        return self.replace(
            loc=hyperparameter("loc", loc, None, X, width), scale=hyperparameter("scale", scale, None, X, width)
        )

    def project(self, X: Rows) -> Tensor:
        return (dense_rows(X, "Standardized") - self.require(self.loc)).div_(self.require(self.scale))


def column_scales(X: Tensor, weights: Tensor | None = None) -> Tensor:
    """Standard deviations [D] of the columns of X [N, D], with weights [N]; 1 for a constant column, with a warning."""
    return told_or_one(column_variances(X, weights)).sqrt()
