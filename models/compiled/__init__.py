"""Compiled code that a part brings: a family its component state, a loss its factor, found by the class of the part.

The compiled form of a part is a NamedTuple of arrays and numbers with functions of them, which numba compiles when a
generic loop first calls them. They may call functions decorated with `inner` or `part` of `scalars`.

Of a family `components` [W, slots] has one column of numbers for each component. A slot without points holds the prior,
and so does the last one, which stays empty. Rows X [N, D] are in double precision.

    of(family, data)                             the form of a resolved family, components [W, 1] of the prior
    log_predictives(self, n, own, out, scratch)  out[k] = log p(x_n | the others in slot k) for every k, up to terms
                                                 that are the same for all k; x_n itself is in slot `own`, or in none
    shift(self, n, k, sign)                      take x_n into slot k (1.0) or out of it (-1.0); return whether so much
                                                 cancelled that the components must be computed anew
    log_normalizers(family, counts)              optional: [N], what a log predictive owes to the number of points of
                                                 the slot alone, counts [N]; `log_predictives` leaves it out
    fetch(self, n)                               optional: x_n is asked for soon
    wide(), summed(self, family, data, labels, slots)
                                                 optional: from so many columns on, components [W, slots] are made by
                                                 this from the slot of each row, labels [N], and not row by row

`scratch` has a row as long as `out` for each number of a component. Nothing is updated for a point that stays, so that
the predictive of `own` is read from a component that includes x_n.

Of a loss the fields are numbers of the same names, and

    log_factor(self, score, y)                   log phi(y | f) of a score, or where classes meet
    log_factors(self, scores, y)                 the same of all scores and y [C] of a row
    observe(self, score, y, half, uniform)       optional: precision and shift of `augment`, from the half of a standard
                                                 normal number without its sign and a uniform number
    of(loss)                                     optional, where the fields are others
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["compiled_form", "compiled_loss", "is_compiled", "register_compiled"]


def register_compiled(part: type, form: type | str) -> None:
    """Give a family or a loss its compiled form, for this very class: a subclass may mean something else.

    The form may be named as "module:Class", to be imported when it is first needed. `testing.check_likelihood` and
    `testing.check_loss` compare it with the tensor code.
    """
    part._compiled_form = form  # type: ignore[attr-defined]  # it goes where the class goes, to other processes too


def is_compiled(part: object) -> bool:
    """Whether the very class of a part has a compiled form."""
    return "_compiled_form" in vars(type(part))


def compiled_form(part: object) -> Any:
    """The compiled form of the very class of a part; None of a part without."""
    form = vars(type(part)).get("_compiled_form")
    if not isinstance(form, str):
        return form
    module, _, name = form.partition(":")
    return getattr(import_module(module), name)


def compiled_loss(loss: object) -> Any:
    """The compiled form of a loss with its numbers; None of a loss without."""
    form = compiled_form(loss)
    if form is None or hasattr(form, "of"):
        return form and form.of(loss)
    return form(*(float(getattr(loss, name)) for name in form.__match_args__))
