"""A check that a program's density has a maximum, as `AutoDelta` needs: no prior may be infinite at an end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
from pyro import poutine
from torch import Tensor

from ...models.warning import warn
from ..running.engine import Draw


class NoMaximum(UserWarning):
    """The density has no maximum, so that the estimate of `AutoDelta` depends on the number of its steps."""


def warn_without_maximum(program: Callable[[Any], None], data: object, latents: dict[str, Tensor], found: Draw) -> None:
    """Warn if a site's density at these values [...] of all sites is infinite at an end of its support."""
    with poutine.block():
        sites = poutine.trace(poutine.condition(program, data=latents)).get_trace(data).nodes
    names = [name for name in latents if _is_infinite(sites[name]["fn"])]
    if not names:
        return
    structural = not {"sticks", "transitions", "probabilities", "concentration"}.isdisjoint(names)
    known = [f"{name} {float(found[name]):.3g}" for name in ("concentration", "discount") if name in found]
    given = f"With {' and '.join(known)} the" if structural and known else "The"
    others = " and no discount" if "discount" in found else ""
    mend = (
        f"one with a larger fixed concentration{others}" if structural else "that of a likelihood with a stronger prior"
    )
    warn(
        f"{given} density of {' and '.join(names)} is infinite at an end, so that the maximum that "
        '"AutoDelta" seeks does not exist: take another guide, such as "AutoNormal", or a prior that is finite there, '
        f"such as {mend}.",
        NoMaximum,
    )


def _is_infinite(law: Any) -> bool:
    """Whether a Beta, Dirichlet or Gamma law has a density that is infinite at an end of its support."""
    while isinstance(law, dist.Independent | dist.MaskedDistribution):
        law = law.base_dist
    one = ("concentration",)
    shapes = {dist.Beta: ("concentration1", "concentration0"), dist.Dirichlet: one, dist.Gamma: one}
    return any(bool((getattr(law, name) < 1).any()) for name in shapes.get(type(law), ()))
