"""The interface of models that backends use before any kernel is called."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeVar

from torch import Tensor

# backends, models, data and states of a structure
B_contra = TypeVar("B_contra", contravariant=True)
M_contra = TypeVar("M_contra", contravariant=True)
D_contra = TypeVar("D_contra", contravariant=True)
M = TypeVar("M")
D = TypeVar("D")
S = TypeVar("S")


class KernelData(Protocol):
    """The part of a structure's data that the engine itself reads."""

    @property
    def X(self) -> Tensor:
        """The rows [M, D], whose device is that of the fit."""

    @property
    def num_data(self) -> int:
        """N, the number of points or steps."""


class Model(Protocol):
    """A model of any structure: a `Config` that names the class of its data and makes such data."""

    data_type: ClassVar[type[Any]]  # determines the structure, see `structures`

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Constructor arguments by name."""

    def as_rows(self, X: Any) -> Any:
        """The rows [N, D] of a user's argument, NaN where an entry is missing and the model allows that."""

    def prepare(self, X: Any, y: Any = None, lengths: Any = None) -> tuple[Any, Any]:
        """(resolved model, its data) from the arguments of `fit`, X [N, D] and y [N] or [N, C]."""
