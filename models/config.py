"""Base class of the configuration objects: models, likelihoods, losses and backends.

A configuration is a dataclass whose constructor only stores its arguments. `get_params` and `set_params` follow
scikit-learn's convention, nested names included (`model__loss__strength`), so that `sklearn.base.clone` and
`GridSearchCV` work although nothing here imports scikit-learn.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable
from copy import copy as copy_of
from typing import Any, Self

import numpy as np
from torch import Tensor

from .domains import Domain, Flag, Number, Whole, read, shown


class Config:
    """Base of every dataclass that describes a model, a part of one, or a backend.

    A class without arguments of its own need not be a dataclass. Printed, it says which arguments were changed.

    Examples
    --------
    >>> from regbayes.models import DiagonalGaussian, Hinge, InfiniteSVM
    >>> InfiniteSVM(DiagonalGaussian(), loss=Hinge(strength=2.5), truncation=20)
    InfiniteSVM(loss=Hinge(strength=2.5))
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in vars(cls) and "__dataclass_fields__" not in vars(cls):
            raise TypeError(
                f"{cls.__name__} defines __init__, so that copies and files would lose its arguments. Make it a "
                "dataclass with a field for each argument: @dataclass(eq=False)."
            )
        if cls.__repr__ is Config.__repr__:
            cls.__repr__ = Config.__repr__  # type: ignore[method-assign]  # `dataclass` keeps it

    def __repr__(self) -> str:
        changed = (f"{name}={brief(value)}" for name, value in self.changed().items())
        return f"{type(self).__name__}({', '.join(changed)})"

    def changed(self) -> dict[str, Any]:
        """The arguments that differ from their defaults, by name."""
        cls: Any = type(self)
        values = ((field, getattr(self, field.name)) for field in _fields(cls))
        return {field.name: value for field, value in values if not same(value, _default(field))}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Constructor arguments by name; with `deep`, those of nested configurations as `outer__inner` too."""
        params: dict[str, Any] = {}
        cls: Any = type(self)
        for field in _fields(cls):
            value = params[field.name] = getattr(self, field.name)
            if deep and isinstance(value, Config):
                params |= {f"{field.name}__{name}": inner for name, inner in value.get_params().items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set arguments in place; `outer__inner` reaches into a nested configuration.

        Raises
        ------
        ValueError    if a name is not an argument of this class (lists those that are), or of a part that has none.
        """
        known = self.get_params(deep=False)
        nested: dict[str, dict[str, Any]] = {}
        for key, value in params.items():
            name, _, inner = key.partition("__")
            if name not in known:
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; it has: {', '.join(known)}.")
            if inner:
                nested.setdefault(name, {})[inner] = value
            else:
                setattr(self, name, value)
        for name, inner_params in nested.items():
            part = getattr(self, name)
            if not hasattr(part, "set_params"):
                raise ValueError(
                    f"{type(self).__name__} has {shown(part)} as its {name}, which has no parameter "
                    f"{next(iter(inner_params))!r}. Give it a {name} that has."
                )
            shared: Any = getattr(type(self), name, None)
            if part is shared:  # a default of all objects of the class
                part = part.replace()
                setattr(self, name, part)
            part.set_params(**inner_params)
        return self

    def replace(self, **changes: Any) -> Self:
        """A copy with some arguments changed."""
        given: Any = self
        copy: Self = dataclasses.replace(given, **changes) if _fields(type(given)) else copy_of(given)
        vars(copy)[_READ] = vars(self).get(_READ)
        return copy

    def checked(self, name: str = "") -> Self:
        """A copy whose arguments, and those of its parts, are validated by their domains, with Python's own numbers.

        `name` is put before the names of arguments in messages, as `loss__` for a model's loss. A class whose arguments
        depend on one another overrides this method. A copy remembers which values have been validated, and so do copies
        of it: a model is validated once in a fit, however often `checked` is called.

        Raises
        ------
        ValueError    naming the argument, what was found, and what is accepted.
        """
        cls: Any = type(self)
        fields, domains, known = _fields(cls), _domains(cls), vars(self).get(_READ)
        values = {field.name: getattr(self, field.name) for field in fields}
        checked = dict(values)
        for field in fields:
            value = values[field.name]
            # these may have changed inside
            if known is None or known.get(field.name, known) is not value or isinstance(value, Config | list | dict):
                checked[field.name] = _checked(f"{name}{field.name}", value, field, domains)
        if known is not None and all(checked[key] is value for key, value in values.items()):
            return self
        copy = self.replace(**checked)
        vars(copy)[_READ] = checked
        return copy


def _fields(cls: Any) -> tuple[Any, ...]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def brief(value: Any) -> str:
    """The text of an argument in a repr: the changed arguments of a configuration, the shape of an array."""
    if isinstance(value, Config):
        return repr(value)
    if isinstance(value, list | tuple):
        text = ", ".join(map(brief, value))
        return f"[{text}]" if isinstance(value, list) else f"({text}{',' * (len(value) == 1)})"
    if not isinstance(value, Tensor | np.ndarray):
        return shown(value)
    return f"{value.item():.6g}" if value.ndim == 0 else f"{type(value).__name__}{list(value.shape)}"


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def same(one: Any, other: Any) -> bool:
    """Whether two arguments of any type are equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Config):
        return all(map(same, *(part.get_params(deep=False).values() for part in (one, other))))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Tensor | np.ndarray):
        return one.shape == other.shape and bool((one == other).all())
    return one is other or bool(one == other)


def resolved(part: Any, X: Any, weights: Any = None) -> Any:
    """A part of a model with its defaults set from the rows of X [N, D], each counted `weights` [N] times; None: once.

    Raises
    ------
    ValueError    if `resolve`, which a user may have written, returns None, returns arguments outside their domains, or
                  takes no weights although some are given.
    """
    name, options = f"{type(part).__name__}.resolve", {} if weights is None else {"weights": weights}
    if options and "weights" not in inspect.signature(part.resolve).parameters:
        raise ValueError(
            f"sample_weight is given, but {name} takes no weights. Give it an argument weights=None, or leave "
            "sample_weight out."
        )
    found = part.resolve(X, **options)
    if found is None:
        raise ValueError(f"{name} returned None; it has to return a copy of the part, such as self.replace(...).")
    try:
        if isinstance(found, Config):
            found.checked()
    except ValueError as error:
        raise ValueError(
            f"{name} returned a part with a value that its own field refuses: {error} Keep numbers as numbers, or let "
            "the field take tensors: AnyNumbers or PositiveNumbers of regbayes.models.domains."
        ) from None
    return found


def class_name(cls: type) -> str:
    """The full name of a class, with its module, by which a file refers to it."""
    return f"{cls.__module__}.{cls.__qualname__}"


def to_plain(value: Any) -> Any:
    """A description of a configuration for a file: its class and arguments, also within lists, tuples and dicts."""
    if isinstance(value, Config):
        params = {name: to_plain(inner) for name, inner in value.get_params(deep=False).items()}
        return {"class": class_name(type(value)), "params": params}
    if isinstance(value, dict):
        if value.keys() == _DESCRIPTION:
            raise ValueError("A dict of 'class' and 'params' alone cannot be kept: it would be read as a class.")
        return {key: to_plain(inner) for key, inner in value.items()}
    return _each(value, to_plain)


def from_plain(value: Any) -> Any:
    """The configuration that `to_plain` described; its class must have been imported.

    A name with a module stands for the class of that name in that module; a name alone for any class of that name.

    Raises
    ------
    ValueError    if no imported configuration class has the stored name, or if it takes other arguments.
    """
    if not isinstance(value, dict):
        return _each(value, from_plain)
    if value.keys() != _DESCRIPTION:
        return {key: from_plain(inner) for key, inner in value.items()}
    name, params = str(value["class"]), from_plain(value["params"])
    # the last one: a notebook cell that runs again defines its class anew
    known = {label: cls for cls in _subclasses(Config) for label in (class_name(cls), cls.__name__)}
    if name not in known:
        raise ValueError(
            f"The file needs the class {name!r}, which is not imported. "
            "Import the module that defines it, then load again."
        )
    try:
        found: Config = known[name](**params)
    except TypeError as error:
        raise ValueError(f"The file has other arguments for {name!r} than the class takes: {error}.") from None
    return found


def _each(value: Any, function: Callable[[Any], Any]) -> Any:
    """`function` applied to every item of a list or tuple; any other value unchanged."""
    if isinstance(value, list | tuple):
        items = [function(inner) for inner in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _checked(name: str, value: Any, field: dataclasses.Field[Any], domains: dict[str, Any]) -> Any:
    """The value of the argument `name`, validated by the domain of its field."""
    domain, optional = domains.get(field.name, (None, True))
    optional = optional or field.default is None
    kind: Any = domain if isinstance(domain, type) else getattr(domain, "kind", () if domain else Config)
    if value is None and optional:
        return None
    if isinstance(value, kind):
        return value.checked(f"{name}__")
    if isinstance(domain, type) or (isinstance(value, type) and issubclass(value, Config)):
        whose = f" of class {kind.__name__}" if isinstance(domain, type) else ""
        default = field.default_factory
        such = "" if default is dataclasses.MISSING else f", such as {type(default()).__name__}()"
        raise ValueError(f"{name} is {shown(value)}; expected an object{whose}{such}.")
    return value if domain is None else read(name, value, domain, optional=optional)


@functools.cache
def _domains(cls: type) -> dict[str, tuple[Any, bool]]:
    """For each field of a class: its domain, its configuration class or None, and whether it may be None."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError:  # a user's class with annotations that only a type checker can evaluate
        return {}
    return {field.name: _domain(hints[field.name]) for field in _fields(cls)}


def _domain(hint: Any) -> tuple[Domain | type[Config] | None, bool]:
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return _domain(kinds[0])[0] if len(kinds) == 1 else None, len(kinds) < len(typing.get_args(hint))
    if typing.get_origin(hint) is typing.Annotated:
        found = next((part for part in hint.__metadata__ if hasattr(part, "read")), None)
        return found, False
    if hint in _SIMPLE:
        return _SIMPLE[hint], False
    return hint if isinstance(hint, type) and issubclass(hint, Config) else None, hint is Any


_READ = "_read_arguments"  # the attribute with the validated arguments, by name
_DESCRIPTION = {"class", "params"}
_SIMPLE: dict[Any, Domain] = {bool: Flag(), float: Number(), int: Whole(-(2**31))}


def _subclasses(cls: type) -> list[type]:
    direct: list[type] = cls.__subclasses__()
    return direct + [inner for child in direct for inner in _subclasses(child)]
