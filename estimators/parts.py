"""The parts of an estimator: objects of the right kind, copied, so that those of the user stay as they are."""

from __future__ import annotations

from typing import Any, Self

from sklearn.base import BaseEstimator, clone

from ..inference import Backend
from ..models.config import Config
from ..models.domains import shown
from .reading import named


class PartsEstimator(BaseEstimator):
    """An estimator with the two parts `model` and `inference`, each None for a default.

    Ctrl-C in `fit` returns what was reached, with a `FitInterrupted` warning. In the fit of a clone it raises
    KeyboardInterrupt: all searches of scikit-learn fit clones, and a score of half a fit must not count.
    """

    model: Any
    inference: Any
    _is_clone = False

    def __sklearn_clone__(self) -> Self:
        copy: Self = super().__sklearn_clone__()
        copy._is_clone = True
        return copy

    @property
    def on_interrupt(self) -> str:
        """What Ctrl-C does in `fit`: "return" what the fit had reached, or "raise" KeyboardInterrupt."""
        return "raise" if self._is_clone else "return"

    def set_params(self, **params: Any) -> Self:
        """Set arguments of the estimator and, as `model__loss__strength`, of its parts.

        Raises
        ------
        ValueError    on an argument of a part that is None, and on unknown names.
        """
        for name in params:
            part, _, inner = name.partition("__")
            if inner and part in ("model", "inference") and params.get(part, getattr(self, part)) is None:
                raise ValueError(
                    f"{name} cannot be set while {part} is None, which stands for a default. Pass the {part} itself, "
                    f"{type(self).__name__}({part}=...)."
                )
        super().set_params(**params)
        return self


def require_units(estimator: object, model: Any) -> None:
    """Raise ValueError on a model that does not take y in other units, in which the estimator puts it."""
    for what, part in (("target", model.coding), ("loss", model.loss)):
        if not part.keeps_units:
            raise ValueError(
                f"model has the {what} {part!r}, but {type(estimator).__name__} puts y in units of its mean and "
                "standard deviation, which does not suit it. Fit the model by its backend, or let scikit-learn's "
                "TransformedTargetRegressor change y."
            )


def copy_of(name: str, given: Any, default: Config) -> Any:
    """A copy of the model or backend that a user gave, or the default.

    Raises
    ------
    ValueError    on a class in place of an object, on anything else that is no model or backend, and on arguments of
                  it that are none.
    """
    if given is None:
        return default
    kind = Backend if isinstance(default, Backend) else Config
    if isinstance(given, type) or not isinstance(given, kind) or isinstance(given, Backend) != (kind is Backend):
        raise ValueError(f"{name} is {shown(given)}; expected an object such as {type(default).__name__}().")
    return named(name, lambda: clone(given).checked(f"{name}__"))
