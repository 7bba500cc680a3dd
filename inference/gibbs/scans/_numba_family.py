"""What the compiled scans ask of a family: how the columns of its `components` change and what they predict.

A family says, up to terms that are the same for all components or depend on a count alone (`log_normalizers`):

    log_predictives(state, n, own, out, scratch)
        log p(x_n | the others in slot k), for every k; x_n itself is in slot `own`. scratch has a row as long as `out`
        for each number of a component
    fetch(state, n)
        x_n is asked for soon
    shift(state, n, k, sign)
        take x_n into slot k (sign 1) or out of it (sign -1); returns whether so much cancelled that the components must
        be computed anew

The predictive of `own` is read from a component that still includes x_n, so that nothing is updated for a point that
stays. Inner loops run over the slots, which are contiguous.
"""

from numba.extending import overload

from ...compiled._numba_machine import log
from ...compiled.decorators import OPTIONS, inner


def log_predictives(state, n, own, out, scratch):
    raise NotImplementedError


def fetch(state, n):
    raise NotImplementedError


def shift(state, n, k, sign):
    raise NotImplementedError


def implements(function, family):
    """Decorator: the implementation of one of these functions for one component state."""

    def register(implementation):
        def choose(state, *arguments):
            return implementation if getattr(state, "instance_class", None) is family else None

        overload(function, jit_options=OPTIONS, strict=False)(choose)
        return implementation

    return register


@inner
def take_logs(product, out):
    """Add the logarithms of the products and start them anew."""
    for k in range(len(out)):
        out[k] += log(min(max(product[k], 1e-300), 1e300))
        product[k] = 1.0
