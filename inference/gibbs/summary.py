"""The log joint of a state, and what a posterior keeps of it."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.data import Data
from ...models.mixture import Mixture
from ...models.priors.laws import PointLaw
from ..classifiers.scored import classifiers_of
from ..posterior.draws import PartitionDraw, drawn
from ..running.engine import Draw
from .hyperplanes import NUM_RESERVED
from .scans.components import count_members, hyperparameters, log_evidence
from .state import PartitionState


def log_joint(
    state: PartitionState,
    data: Data,
    model: Mixture,
    *,
    law: PointLaw,
    chi: Tensor | None = None,
    counts: Tensor | None = None,
) -> Tensor:
    """log density [] of (z, eta, h) and the data: theta and the mixture weights integrated out, omega too.

    `chi` [K, S] are the posterior hyperparameters of the components, `counts` [K] their points, where they are known.

    In an infinite model whose components repel it is relative, as `Scored.log_density` says.
    """
    counts = count_members(state) if counts is None else counts
    chi = hyperparameters(state, data, model) if chi is None else chi
    total = law.log_prior(counts, state.hyper) + model.prior.log_density(state.hyper)
    total = total + log_evidence(chi, data, model.likelihood)
    scored = classifiers_of(model, data, state.assignments, len(state.weights))
    return total + scored.log_density(state.weights, relative=law.alike)


def draw(state: PartitionState, data: Data, model: Mixture, *, law: PointLaw) -> Draw:
    """What the posterior keeps of a state; the mixture weights are their expectations given the assignments."""
    chi, counts = hyperparameters(state, data, model), count_members(state)
    kept = PartitionDraw(
        assignments=state.assignments,
        hyperparameters=chi,
        log_mixture=law.log_weights(counts, state.hyper).to(data.X.dtype),
        weights=state.weights,
        log_joint=log_joint(state, data, model, law=law, chi=chi, counts=counts),
    )
    if state.reservoir is not None:  # as many in every draw, some of them twice where components took many
        places = torch.arange(NUM_RESERVED, device=state.reservoir.device) % len(state.reservoir)
        kept["unseen_weights"] = state.reservoir[places]
    return drawn(kept, {name: value.to(data.X.dtype) for name, value in state.hyper.items()})
