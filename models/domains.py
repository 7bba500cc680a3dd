"""Domains of arguments: every field of a configuration declares which values it accepts.

    strength: Positive = 1.0
    forgetting: Annotated[float, Number(above=0.5, most=1.0)] = 0.7

`Config.checked` compares each field with its domain. A field that is `None` by default may be None. A field whose type
is a configuration takes an object of that class. A field of type `float`, `int` or `bool` takes any finite number,
integer, or truth value. Fields of other types are not checked.

A field with the domain of a number stays a number when a part is resolved. A hyperparameter that becomes a tensor, or
may have one entry for each column, is `AnyNumbers` or `PositiveNumbers`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .numbers import as_tensor


class Domain(Protocol):
    """The interface of a domain: the values that a field accepts."""

    @property
    def words(self) -> str:
        """The description of accepted values that follows "it must be" in a message."""

    def read(self, value: Any) -> Any:
        """The value as Python's own number or text, or unchanged; ValueError or TypeError if it is refused."""


def read(name: str, value: Any, domain: Domain, *, optional: bool = False) -> Any:
    """The argument `name` as its domain reads it; None if that is allowed and given.

    Raises
    ------
    ValueError    saying what was found and what is accepted.
    """
    if value is None and optional:
        return None
    try:
        return domain.read(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        words = f"{error}" if isinstance(error, OutOfReach) else domain.words + ", or None" * optional
        raise ValueError(f"{name} is {shown(value)}; it must be {words}.") from None


class OutOfReach(ValueError):
    """A number of the right kind, but too large or too small; the message follows "it must be"."""


def shown(value: Any) -> str:
    """The text of a value in a message: its repr, cut where it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True)
class Number:
    """A finite real number more than `above` or at least `least`, and less than `below` or at most `most`.

    A numpy scalar is a number; a bool is not.
    """

    above: float = -math.inf
    least: float = -math.inf
    below: float = math.inf
    most: float = math.inf

    @property
    def words(self) -> str:
        """What is accepted."""
        if self == Number(above=0.0):
            return "a positive number"
        ends = {"more than": self.above, "at least": self.least, "less than": self.below, "at most": self.most}
        limits = [f"{name} {end:g}" for name, end in ends.items() if math.isfinite(end)]
        return " of ".join(["a number", *([" and ".join(limits)] if limits else [])])

    def read(self, value: Any) -> float:
        """The number; ValueError if it is refused."""
        if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
            raise ValueError
        number = float(value)
        if not (math.isfinite(number) and self.above < number < self.below and self.least <= number <= self.most):
            raise ValueError
        if number and not 1 / LARGEST <= abs(number) <= LARGEST:
            raise OutOfReach(f"between {1 / LARGEST:g} and {LARGEST:g} in size")  # squares and inverses are finite
        return number


@dataclass(frozen=True)
class Whole:
    """An integer of at least `least` and at most `most`."""

    least: int = 0
    most: int = 2**31 - 1

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"an integer of at least {self.least}" + (f" and at most {self.most}" if self.most < 2**31 - 1 else "")

    def read(self, value: Any) -> int:
        """The integer; ValueError if it is refused."""
        if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < self.least:
            raise ValueError
        if int(value) > self.most:
            raise OutOfReach(f"an integer of at least {self.least} and at most {self.most}")
        return int(value)


@dataclass(frozen=True)
class Flag:
    """True or False."""

    words = "True or False"

    def read(self, value: Any) -> bool:
        """The truth value; ValueError if it is another object."""
        if not isinstance(value, bool | np.bool_):
            raise ValueError
        return bool(value)


@dataclass(frozen=True)
class Auto:
    """The values of another domain, or a word for a value from the data."""

    domain: Domain
    word: str = "auto"

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"{self.domain.words}, or {self.word!r}"

    def read(self, value: Any) -> Any:
        """The value as the domain reads it, or the word; the domain's error if it is refused."""
        return self.word if isinstance(value, str) and value == self.word else self.domain.read(value)


class OneOf:
    """One of some words."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"one of {', '.join(map(repr, self.choices))}"

    def read(self, value: Any) -> str:
        """The word; ValueError if it is not one of the choices."""
        if not isinstance(value, str) or value not in self.choices:
            raise ValueError
        return str(value)


class Labels(OneOf):
    """One of some words, or integer labels [N]."""

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"{super().words}, or a Tensor of integer labels"

    def read(self, value: Any) -> Any:
        """The word, or the labels [N]; ValueError if they are not integers."""
        if isinstance(value, str):
            return super().read(value)
        labels = as_tensor("labels", value)
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool or labels.ndim != 1:
            raise ValueError
        return labels


@dataclass(frozen=True)
class Pair:
    """Two positive numbers: the parameters of a prior."""

    names: str = "shape > 0, rate > 0"

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"a pair ({self.names})"

    def read(self, value: Any) -> tuple[float, float]:
        """The pair; ValueError or TypeError if it is not one."""
        if isinstance(value, str | bytes | dict | set | Iterator):  # an iterator can be read only once
            raise ValueError
        one, two = (POSITIVE.read(float(part) if isinstance(part, Tensor) else part) for part in value)
        return one, two


@dataclass(frozen=True)
class Numbers:
    """A hyperparameter: one number or an array, all finite, more than `above` and less than `below`."""

    above: float = -math.inf
    below: float = math.inf

    @property
    def words(self) -> str:
        """What is accepted."""
        kind = {0.0: "positive", -math.inf: "finite"}.get(self.above, f"larger than {self.above:g}")
        most = f" and less than {self.below:g}" if math.isfinite(self.below) else ""
        return f"{kind}{most}, a number or an array"

    def read(self, value: Any) -> Any:
        """The value unchanged, an array in a form that torch takes; ValueError if it is refused."""
        numbers = as_tensor("value", value)
        if numbers.dtype == torch.bool or not ((numbers > self.above) & (numbers < self.below)).all():
            raise ValueError
        if not (numbers.abs() <= _LARGEST_SQUARE).all():
            raise OutOfReach(f"of at most {_LARGEST_SQUARE:g} in size") if numbers.isfinite().all() else ValueError
        if isinstance(value, np.generic):
            return value.item()
        return value if isinstance(value, Tensor | int | float | list | tuple) else numbers.numpy()


LARGEST = 1e100
_LARGEST_SQUARE = 1e160  # for hyperparameters, which may be variances of the data
POSITIVE = Number(above=0.0)
SEED = Whole(0, 2**32 - 1)

Positive = Annotated[float, POSITIVE]
NonNegative = Annotated[float, Number(least=0.0)]
Natural = Annotated[int, Whole(0)]
Count = Annotated[int, Whole(1)]
Truncation = Annotated[int, Whole(2)]
Seed = Annotated[int, SEED]
GammaPrior = Annotated[tuple[float, float], Pair()]
AnyNumbers = Annotated[Any, Numbers()]
PositiveNumbers = Annotated[Any, Numbers(above=0.0)]
