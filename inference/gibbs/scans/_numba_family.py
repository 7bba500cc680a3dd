"""Placeholders for the functions that a likelihood's compiled form brings (see `regbayes.models.compiled`)."""

from ...compiled.decorators import brought


@brought
def log_predictives(state, n, own, out, scratch):
    raise NotImplementedError


@brought
def fetch(state, n):
    """Do nothing: the default where a compiled form brings no `fetch`."""


@brought
def shift(state, n, k, sign):
    raise NotImplementedError
