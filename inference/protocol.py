"""What a backend asks of a model before any kernel of its structure is called."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeVar

from torch import Tensor

# what the modules of a structure are written for: their backends, models, data and states
B_contra = TypeVar("B_contra", contravariant=True)
M_contra = TypeVar("M_contra", contravariant=True)
D_contra = TypeVar("D_contra", contravariant=True)
M = TypeVar("M")
D = TypeVar("D")
S = TypeVar("S")


class KernelData(Protocol):
    """What the kernels of a structure see; the engine itself reads only this much of it."""

    @property
    def X(self) -> Tensor:
        """The rows [M, D], whose device is that of the fit."""

    @property
    def num_data(self) -> int:
        """N, the number of points or steps."""


class Model(Protocol):
    """A model of any structure: a `Config` that names the class of its data and makes such data."""

    data_type: ClassVar[type[Any]]  # which structure it is of, see `structures`

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Constructor arguments by name."""

    def as_rows(self, X: Any) -> Any:
        """The rows [N, D] of what a user passes, NaN where an entry is missing and the model takes that."""

    def prepare(self, X: Any, y: Any = None, lengths: Any = None) -> tuple[Any, Any]:
        """(the resolved model, its data) of what a user passes to `fit`, X [N, D] and y [N] or [N, C]."""
