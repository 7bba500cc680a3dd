"""The blocked scan of T components: all assignments at once given T sticks, and swaps of component numbers.

Sources: Ishwaran & James (2001); docs/derivations/priors, "Sticks and urns".
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from ....models.data import Data
from ....models.distributions.sampling import log_gamma_draw, uniforms
from ....models.mixture import Mixture
from ....models.priors import PartitionPrior
from ....models.priors.sticks import log_swap_ratio, posterior_sticks
from ...distributed.collectives import own_stream
from ..state import PartitionState
from .components import Components, draw_assignments, members


def scan(state: PartitionState, data: Data, model: Mixture, generator: torch.Generator) -> PartitionState:
    """Draw h | z with the sticks integrated out, sticks v_k | z, h, and all assignments given them."""
    points = uniforms((data.num_data,), own_stream(generator))
    counts, chi = members(state, data, model)
    hyper = model.prior.draw_truncated(state.hyper, counts, generator)
    after, before = posterior_sticks(counts, *model.prior.sticks(hyper, len(counts)))
    log_odds = log_gamma_draw(after, generator) - log_gamma_draw(before, generator)
    # in logs: for a small alpha, 1 - v is often far below the rounding error of v
    log_mixture = pad(logsigmoid(log_odds), (0, 1)) + pad(logsigmoid(-log_odds).cumsum(0), (1, 0))
    components = Components(log_mixture, model.likelihood.draw(chi, generator), state.weights)
    return replace(state, assignments=draw_assignments(data, components, model, points), hyper=hyper)


def relabel(state: PartitionState, sizes: Tensor, prior: PartitionPrior, generator: torch.Generator) -> PartitionState:
    """Propose Metropolis swaps of components k, k + 1, sticks integrated out, given their sizes [T]."""
    counts = sizes.tolist()
    a, b = (sticks.tolist() for sticks in prior.sticks(state.hyper, len(counts)))
    log_uniforms = torch.log1p(-uniforms((len(counts) - 1,), generator)).tolist()
    order, rest = list(range(len(counts))), float(sum(counts))
    for k, log_uniform in enumerate(log_uniforms):
        rest -= counts[k] + counts[k + 1]
        if log_uniform < log_swap_ratio(counts, k, rest, a, b):
            counts[k], counts[k + 1] = counts[k + 1], counts[k]
            order[k], order[k + 1] = order[k + 1], order[k]
        rest += counts[k + 1]
    kept = torch.tensor(order, device=state.assignments.device)
    return replace(state, assignments=torch.argsort(kept)[state.assignments], weights=state.weights[kept])
