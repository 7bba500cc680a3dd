"""Hostile values, and how a call with one ends: what `hostile_calls` puts in the place of every argument.

A call ends well if it is refused in a sentence of ours that names the argument, or if what it returns is finite. A
FloatingPointError of ours need not name it.
"""

from __future__ import annotations

import math
import re
import signal
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

import regbayes.inference as inference
import regbayes.models as models
from regbayes.inference.posterior.multi_label import HeldOut
from regbayes.models.config import Config

PACKAGE = Path(models.__file__).parents[1]
SENTENCES = (ValueError, TypeError, NotImplementedError, FloatingPointError, OSError)
MOST_SECONDS = 60.0  # code may have to be compiled first


class Stuck(BaseException):
    """A call ran on for too long."""


@dataclass(frozen=True)
class Place:
    """An argument of something that users call."""

    whose: str
    argument: str
    call: Callable[[Any], Any]
    values: dict[str, Callable[[], Any]]
    others: tuple[str, ...] = ()  # more words by which a refusal may name the argument
    good: Callable[[], Any] | None = None  # the call without a hostile value, if it may be refused as well


@dataclass(frozen=True)
class Call:
    """A hostile value at a place."""

    place: Place
    name: str  # of the value

    def __str__(self) -> str:
        return f"{self.place.whose}: {self.place.argument}={self.name}"

    def complaint(self) -> str:
        """What is wrong with how the call ends; "" if nothing is."""
        value = self.place.values[self.name]()
        with warnings.catch_warnings(), limited(MOST_SECONDS):
            warnings.simplefilter("ignore")
            try:
                result = self.place.call(value)
            except Stuck:
                return "runs on"
            except SENTENCES as error:
                return self._complaint_of(error, value)
            except Exception as error:
                return f"{type(error).__name__}: {error}"
            if self.name in IMPOSSIBLE.get(self.place.argument, NEVER):
                return f"accepted: {result!r:.80}"
            return "" if is_finite(result) else f"not finite: {result!r:.80}"

    def _complaint_of(self, error: Exception, value: Any) -> str:
        told = f"{type(error).__name__}: {error}"
        last = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if PACKAGE not in last.parents and last.parts[-2:] not in _FRIENDS:
            return f"from {last.name}, {told}"
        names = [self.place.argument, *self.place.others, *([type(value).__name__] * isinstance(value, Config))]
        pattern = "|".join(rf"(?<![A-Za-z0-9_])(\w+__)?{re.escape(name)}(?![A-Za-z0-9_])" for name in names)
        # where rounding gives up on numbers that are allowed, nobody knows which one it was
        if isinstance(error, FloatingPointError) or re.search(pattern, str(error)) or self._is_refused_anyway():
            return ""
        return f"unnamed, {told}"

    def _is_refused_anyway(self) -> bool:
        if self.place.good is None:
            return False
        try:
            self.place.good()
        except SENTENCES:
            return True
        return False


# sklearn's own sentences on X and y, which its users know
_FRIENDS = {("model_selection", "_split.py"), ("utils", "validation.py"), ("utils", "multiclass.py")}


class limited:
    """At most so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        self.before = signal.signal(signal.SIGALRM, self._stop)
        signal.setitimer(signal.ITIMER_REAL, self.seconds, 1.0)

    def __exit__(self, *_: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, self.before)

    def _stop(self, *_: Any) -> None:
        raise Stuck


def is_finite(result: Any) -> bool:
    """No NaN among the numbers (log weights may be -inf), in a posterior's predictions neither."""
    if isinstance(result, dict):
        return all(map(is_finite, result.values()))
    if isinstance(result, HeldOut):
        return is_finite(result[:2])  # labels may be missing
    if isinstance(result, tuple | list):
        return all(map(is_finite, result))
    if hasattr(result, "posterior_"):
        return is_finite(result.posterior_)
    if hasattr(result, "samples"):
        return is_finite(result.samples)
    if isinstance(result, Tensor):
        return not result.is_floating_point() or not bool(result.isnan().any())
    if isinstance(result, np.ndarray):
        return result.dtype.kind not in "fc" or not np.isnan(result).any()
    return not (isinstance(result, float) and math.isnan(result))


# -- values ------------------------------------------------------------------------------------------------------------


def _values(*values: Any) -> dict[str, Callable[[], Any]]:
    """Values by their reprs."""
    return {f"{value!r:.60}": lambda value=value: value for value in values}


NUMBERS = _values(
    *(math.nan, math.inf, -math.inf, -1, -0.5, 0, 1, 2, 0.5, 1e-300, 1e300, 10**400, 2**31 - 1, 2**40, True, 1j, "1"),
    *(np.float64("nan"), np.float16(2), np.int64(3), np.bool_(True), np.array(3.0), np.array([1.0, 2.0])),
    *(torch.tensor([[1.0]]), torch.tensor(2.0, requires_grad=True), torch.empty(2, device="meta")),
)
OBJECTS: dict[str, Callable[[], Any]] = {
    **_values("", b"x", None, [], {}, (1,), (1, 2, 3), {1, 2}, [[1.0], [2.0, 3.0]], [1.0, math.nan]),
    **_values(np.array(["a"]), np.array([[1.0, 2.0]] * 12), np.datetime64("2020-01-01")),
    **_values(int, models.Hinge, models.DPM, models.Hinge(), models.DPM(), inference.SVI()),
    "object()": object,
    "a generator": lambda: (number for number in (1.0, 2.0)),
    "a function": lambda: lambda: 0,
    "a module": lambda: math,
    "big-endian": lambda: np.array([1.0, 2.0], dtype=">f8"),
    "masked": lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
    "sparse": lambda: scipy.sparse.csr_array(np.eye(2)),
    "NaN in a tensor": lambda: torch.tensor([1.0, math.nan]),
    "itself": lambda: _loop(),
}
COMMON = NUMBERS | OBJECTS
NEVER = {"object()", "a module", "1j", "{1, 2}", "b'x'", "nan", "np.float64(nan)", "a generator", "<class 'int'>"}
# of arguments that take anything
IMPOSSIBLE: dict[str, set[str]] = {
    "feature_map": {"object()", "a module", "1j", "nan"},
    "preprocessing": {"object()", "a module", "1j", "nan"},
    "ignored": set(),
}


def _loop() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def rows_of(X: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Rows [N, D] in hostile forms."""
    return _forms(X.tobytes(), X.shape, str(X.dtype))


@cache
def _forms(content: bytes, shape: tuple[int, ...], dtype: str) -> dict[str, Callable[[], Any]]:
    X = np.frombuffer(content, dtype).reshape(shape).copy()
    N, D = X.shape
    holes = X.copy()
    holes[1, 0] = math.nan
    forms: dict[str, Callable[[], Any]] = {
        "as they are": lambda: X,
        "big-endian": lambda: X.astype(">f8"),
        "big-endian float32": lambda: X.astype(">f4"),
        "big-endian integers": lambda: X.round().astype(">i4"),
        "read-only": lambda: _read_only(X),
        "reversed": lambda: X[::-1, ::-1],
        "Fortran": lambda: np.asfortranarray(X),
        "strided": lambda: np.repeat(X, 2, 0)[::2],
        "object": lambda: X.astype(object),
        "objects": lambda: np.full((N, D), object()),
        "None": lambda: None,
        "Nones": lambda: np.full((N, D), None),
        "text": lambda: X.astype(str),
        "digits apart": lambda: np.full((N, D), "1_000"),
        "bytes": lambda: X.astype("S"),
        "complex": lambda: X * 1j,
        "complex object": lambda: (X * 1j).astype(object),
        "float16": lambda: X.astype(np.float16),
        "float32": lambda: X.astype(np.float32),
        "longdouble": lambda: X.astype(np.longdouble),
        "bool": lambda: X > 1,
        "int8": lambda: X.astype(np.int8),
        "uint64": lambda: np.full((N, D), 2**64 - 1, dtype=np.uint64),
        "10**30": lambda: np.full((N, D), 10**30, dtype=object),
        "dates": lambda: X.astype("datetime64[s]"),
        "structured": lambda: np.zeros(N, dtype=[("a", float), ("b", float)]),
        "masked": lambda: np.ma.masked_array(X, X > 5),
        "masked not": lambda: np.ma.masked_array(X),
        "matrix": lambda: scipy.sparse.coo_matrix(X).todense(),
        "lists": X.tolist,
        "ragged": lambda: [[1.0], [2.0, 3.0]] * (N // 2),
        "itself": _loop,
        "a generator": lambda: (row for row in X),
        "a function": lambda: lambda: X,
        "object()": object,
        "a string": lambda: "X",
        "a dict": lambda: {"a": [1.0]},
        "csr": lambda: scipy.sparse.csr_array(X),
        "coo": lambda: scipy.sparse.coo_matrix(X),
        "csr of NaN": lambda: scipy.sparse.csr_array(X * math.nan),
        "csr of complex": lambda: scipy.sparse.csr_array(X * 1j),
        "DataFrame": lambda: _frame(X),
        "DataFrame of text": lambda: _frame(X).astype(str),
        "DataFrame with NA": lambda: _frame(X).convert_dtypes().mask(X > 5),
        "tensor": lambda: torch.tensor(X),
        "float32 tensor": lambda: torch.tensor(X).float(),
        "half": lambda: torch.tensor(X).half(),
        "bfloat16": lambda: torch.tensor(X).bfloat16(),
        "complex tensor": lambda: torch.tensor(X * 1j),
        "integer tensor": lambda: torch.tensor(X).long(),
        "requires_grad": lambda: torch.tensor(X, requires_grad=True),
        "graph": lambda: torch.tensor(X, requires_grad=True) * 1.0,
        "meta": lambda: torch.empty(N, D, device="meta", dtype=torch.float64),
        "sparse tensor": lambda: torch.tensor(X).to_sparse(),
        "csr tensor": lambda: torch.tensor(X).to_sparse_csr(),
        "transposed tensor": lambda: torch.tensor(X).T.contiguous().T,
        "rank 0": lambda: np.array(3.0),
        "rank 1": lambda: X[:, 0],
        "rank 3": lambda: X[..., None],
        "one row": lambda: X[:1],
        "no rows": lambda: X[:0],
        "no columns": lambda: X[:, :0],
        "one column": lambda: X[:, :1],
        "more columns": lambda: np.hstack([X, X]),
        "transposed": lambda: X.T,
        "constant": lambda: X * 0 + 1,
        "zeros": lambda: X * 0,
        "a constant column": lambda: X * ([0] + [1] * (D - 1)),
        "duplicated rows": lambda: X[[0] * N],
        "NaN cell": lambda: holes,
        "NaN": lambda: X * math.nan,
        "NaN row": lambda: np.where(np.arange(N)[:, None] == 1, math.nan, X),
        "inf cell": lambda: np.where(np.isnan(holes), math.inf, X),
        **{f"times {scale}": lambda scale=scale: X * scale for scale in (1e300, 1e150, 1e70, 1e30, 1e-30, 1e-300)},
        "-X": lambda: -X,
        "a far row": lambda: X + 1e12 * (np.arange(N)[:, None] == 0),
        "far from 0": lambda: X + 1e12,
    }
    return forms


def _frame(X: np.ndarray) -> Any:
    import pandas

    return pandas.DataFrame(X)


def _read_only(X: np.ndarray) -> np.ndarray:
    X = X.copy()
    X.setflags(write=False)
    return X


def targets_of(y: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Targets [N] or [N, C] in hostile forms."""
    matrix = rows_of(y.astype(float) if y.ndim == 2 else y[:, None].astype(float))
    if y.ndim == 2:
        return matrix
    flat = {name: lambda form=matrix[name]: form().reshape(-1) for name in _FLAT}
    N = len(y)
    return {
        **{f"{name} of rank 2": form for name, form in matrix.items()},
        **flat,
        **_values([0] * N, [True, False] * (N // 2), [1e300] * N, [math.nan] * N, [-1] * N, ["a", "b"] * (N // 2)),
        **_values([0, 10**30] * (N // 2), [0.5, 1.5] * (N // 2), list(range(N)), range(N), set(range(N)), N, "y"),
        "Series": lambda: _frame(y[:, None])[0],
        "categories": lambda: _frame(y[:, None])[0].astype("category"),
        "Series of another index": lambda: _frame(y[:, None])[0].rename(lambda row: row + 5),
        "too few": lambda: y[:-1],
        "too many": lambda: np.append(y, y),
        "uint8": lambda: y.astype(np.uint8),
        "dates": lambda: y.astype("datetime64[D]"),
        "meta": lambda: torch.empty(N, device="meta"),
        "sparse": lambda: torch.tensor(y).to_sparse(),
    }


_FLAT = ("as they are", "big-endian", "big-endian float32", "big-endian integers", "read-only", "reversed", "object")
_FLAT += ("objects", "Nones", "text", "digits apart", "bytes", "complex", "float16", "longdouble", "bool", "uint64")
_FLAT += ("10**30", "masked", "masked not", "tensor", "float32 tensor", "half", "complex tensor", "requires_grad")
_FLAT += ("graph", "one row", "no rows", "NaN cell", "inf cell", "times 1e+300", "times 1e-300", "constant", "-X")


LENGTHS = _values(
    *(0, 12, -12, "12", [], [12], [12.0], [5, 7], (5, 7), [5, 8], [0, 12], [-1, 13], [[5, 7]], [True] * 12, [2**70]),
    *([math.nan], {12}, np.array([12], dtype=np.uint64), np.array(["12"]), np.array([5, 7], dtype=">i8"), [2**62] * 4),
    *(torch.tensor([5, 7]), torch.tensor([12.0]), torch.empty(1, device="meta"), np.array([5, 7], dtype=object)),
) | {"object()": object, "a generator": lambda: (size for size in (5, 7))}
