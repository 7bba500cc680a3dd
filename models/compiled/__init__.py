"""Compiled forms of the parts of a model: the component state of a likelihood, or the factor of a loss.

The form is found by the exact class of the part. It is a NamedTuple of arrays and numbers with methods, which numba
compiles when a generic loop first calls them. They may call functions decorated with `inner` or `part` of `scalars`.

The form of a likelihood has an array `components` [W, slots] with one column of numbers for each component. A slot
without points holds the prior, and so does the last slot, which stays empty. Rows X [N, D] are in double precision.

    of(family, data)                             the form of a resolved likelihood, components [W, 1] of the prior
    log_predictives(self, n, own, out, scratch)  set out[k] = log p(x_n | the other points in slot k) for every k, up
                                                 to terms that are the same for all k; x_n is in slot `own`, or in none
    shift(self, n, k, sign)                      add x_n to slot k (1.0) or remove it (-1.0); return whether so much
                                                 cancelled that the components must be computed anew
    log_normalizers(family, counts)              optional: the terms [N] of a log predictive that depend only on the
                                                 number of points in the slot, counts [N]; `log_predictives` omits them
    fetch(self, n)                               optional: prefetch x_n, which is needed soon
    placed(self, table)                          optional: the form with components `table`; else by `_replace`
    wide(), summed(self, family, data, labels, slots)
                                                 optional: with at least `wide()` columns, `summed` makes components
                                                 [W, slots] from the slot labels [N] at once, and not row by row

`scratch` has a row as long as `out` for each number of a component. Nothing is updated for a point that stays, so the
predictive of `own` is read from a component that includes x_n.

The form of a loss has the loss's numbers as fields, with the same names, and

    log_factor(self, score, y)                   log phi(y | f) of one score; optional if `log_factors` is given
    log_factors(self, scores, y)                 optional: log phi(y | f) of all scores and y [C] of a row
    observe(self, score, y, half, uniform)       optional: precision and shift of `augment`, from half the size of a
                                                 standard normal draw and a uniform draw
    of(loss)                                     optional: makes the form, where its fields are not the loss's
"""

from __future__ import annotations

import re
from collections import Counter
from importlib import import_module
from typing import Any

__all__ = ["compiled_form", "compiled_loss", "is_compiled", "placed", "register_compiled"]


def register_compiled(part: type, form: type | str) -> None:
    """Register the compiled form of a likelihood or a loss for its exact class; subclasses do not inherit it.

    The form may be given as "module:Class", to be imported when first needed. `testing.check_likelihood` and
    `testing.check_loss` compare it with the tensor code.
    """
    part._compiled_form = form  # type: ignore[attr-defined]  # an attribute goes with the class, to other processes too


def is_compiled(part: object) -> bool:
    """Whether the exact class of a part has a compiled form and, if it consists of parts, those of all parts have."""
    return "_compiled_form" in vars(type(part)) and all(is_compiled(own) for own, _ in getattr(part, "parts", ()))


def compiled_form(part: object) -> Any:
    """The compiled form of the exact class of a part; None if it has none."""
    form = vars(type(part)).get("_compiled_form")
    if isinstance(form, str):
        module, _, name = form.partition(":")
        form = getattr(import_module(module), name)
    return form and _told_apart(form)


def _told_apart(form: type) -> type:
    """The same class, with a `__name__` of its own.

    numba names machine code by the types of its arguments, and the type of a NamedTuple by `__name__` and its fields.
    So it may run the code of another module's form of that name, or of an earlier run of the same cell.
    """
    if "_is_told_apart" not in vars(form):
        whole = f"{form.__module__}.{form.__qualname__}"
        _TIMES[whole] += 1
        form.__name__ = re.sub(r"\W", "_", f"{whole}_{_TIMES[whole]}")
        form._is_told_apart = True  # type: ignore[attr-defined]  # goes with the class, to other processes too
    return form


def placed(form: Any, table: Any) -> Any:
    """The compiled form of a likelihood with components `table` [W, slots]."""
    return form.placed(table) if hasattr(form, "placed") else form._replace(components=table)


def compiled_loss(loss: object) -> Any:
    """The compiled form of a loss, with its numbers; None if it has none."""
    form = compiled_form(loss)
    if form is None or hasattr(form, "of"):
        return form and form.of(loss)
    return form(*(float(getattr(loss, name)) for name in form.__match_args__))


_TIMES: Counter[str] = Counter()  # how many forms of each full name there were in this process
