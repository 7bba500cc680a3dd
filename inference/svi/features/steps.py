"""Steps of the global factors of a latent feature model, in natural parameters, towards the optimum of a minibatch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ....models.linalg import safe_cholesky
from ...bits.loadings import solve_columns
from .factors import VariationalFeatures


def move_globals(state: VariationalFeatures, target: VariationalFeatures, rho: float) -> VariationalFeatures:
    """q(W), the precisions, q(pi) and q(alpha) a step of size rho towards those of a target; q(eta) stays.

    Columns that were of one kind, and are of one kind in the target, share a matrix.
    """
    codes = state.kind * len(target.loading_tril) + target.kind
    pairs, kind = torch.unique(codes, return_inverse=True)
    ours, theirs = pairs // len(target.loading_tril), pairs % len(target.loading_tril)
    before, after = (s.loading_tril @ s.loading_tril.mT for s in (state, target))
    linear = torch.lerp(_apply(before, state), _apply(after, target), rho)
    tril = safe_cholesky(torch.lerp(before[ours], after[theirs], rho))
    return replace(
        state,
        loadings=solve_columns(tril, kind, linear),
        loading_tril=tril,
        kind=kind,
        precisions=torch.lerp(state.precisions, target.precisions, rho),
        a=torch.lerp(state.a, target.a, rho),
        b=torch.lerp(state.b, target.b, rho),
        concentration=torch.lerp(state.concentration, target.concentration, rho),
    )


def _apply(matrices: Tensor, state: VariationalFeatures) -> Tensor:
    """A_d Phi_d [K, D]."""
    if len(matrices) == 1:
        return matrices[0] @ state.loadings
    return (matrices[state.kind] @ state.loadings.T.unsqueeze(-1)).squeeze(-1).T
