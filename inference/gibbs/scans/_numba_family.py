"""What the compiled scans ask of the compiled form of a family (see `regbayes.models.compiled`)."""

from ...compiled.decorators import brought


@brought
def log_predictives(state, n, own, out, scratch):
    raise NotImplementedError


@brought
def fetch(state, n):
    """Nothing, where a form brings none."""


@brought
def shift(state, n, k, sign):
    raise NotImplementedError
