"""Plain configuration objects: what models, likelihoods, losses and backends have in common.

A configuration is a dataclass whose constructor only stores its arguments. `get_params` and `set_params` follow
scikit-learn's convention, nested names included (`model__loss__strength`), so that `sklearn.base.clone` and
`GridSearchCV` work on it although nothing here imports scikit-learn.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self


class Config:
    """Base of every dataclass that describes a model, a part of one, or a backend."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Constructor arguments by name; with `deep`, those of nested configurations as `outer__inner` too."""
        params: dict[str, Any] = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = params[field.name] = getattr(self, field.name)
            if deep and isinstance(value, Config):
                params |= {f"{field.name}__{name}": inner for name, inner in value.get_params().items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set arguments in place; `outer__inner` reaches into a nested configuration.

        Raises
        ------
        ValueError    if a name is not an argument of this class (lists those that are).
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
            getattr(self, name).set_params(**inner_params)
        return self

    def replace(self, **changes: Any) -> Self:
        """A copy with some arguments changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


def to_plain(value: Any) -> Any:
    """Tensors and plain data that describe a configuration, for `torch.save`."""
    if isinstance(value, Config):
        params = {name: to_plain(inner) for name, inner in value.get_params(deep=False).items()}
        return {"class": type(value).__name__, "params": params}
    return value


def from_plain(value: Any) -> Any:
    """The configuration that `to_plain` described; its class must have been imported.

    Raises
    ------
    ValueError    if no imported configuration class has the stored name.
    """
    if not (isinstance(value, dict) and set(value) == {"class", "params"}):
        return value
    known = {cls.__name__: cls for cls in _subclasses(Config)}
    if value["class"] not in known:
        raise ValueError(
            f"The file needs the class {value['class']!r}, which is not imported. "
            "Import the module that defines it, then load again."
        )
    return known[value["class"]](**{name: from_plain(inner) for name, inner in value["params"].items()})


def _subclasses(cls: type) -> list[type]:
    direct: list[type] = cls.__subclasses__()
    return direct + [inner for child in direct for inner in _subclasses(child)]
