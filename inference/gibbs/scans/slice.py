"""The slice scan: all assignments of the infinite model at once, for priors whose rest is a Poisson process.

Given z, the unnormalized weights of the components and of all other components are independent
(docs/derivations/priors, "Sticks and urns"):

    J_k ~ Gamma(s_k, 1),    s_k: the urn's weight of a component of its size
    new components: a Poisson process of weights x with density  mass x^(-1 - exponent) e^(-x)

With slices u_n ~ U(0, J_{z_n}) only new components above the least slice matter. For exponents near 1 there may be very
many of these. So weights below a floor, which does not depend on the assignments, are left out, and the few points with
slices below the floor keep their component.

Sources: Walker (2007); Kalli, Griffin & Walker (2011).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from ....models.base import Model
from ....models.data import Data
from ....models.distributions.sampling import log_gamma_draw, normals, uniforms
from ....models.likelihoods.base import Parameters
from ....models.mixture import Mixture
from ...distributed.collectives import all_named, largest_later, own_stream
from ..hyperplanes import give_back, take_reserved
from ..state import PartitionState
from .components import Components, draw_assignments, members

S = TypeVar("S", bound=PartitionState)


def scan(state: PartitionState, data: Data, model: Mixture, generator: torch.Generator) -> PartitionState:
    """Draw weights, slices, new components above the floor with theta and eta from their priors, and then all z_n."""
    points, slices = uniforms((2, data.num_data), own_stream(generator))
    log_levels, none = torch.log1p(-slices), slices.new_zeros(len(state.weights))
    least = largest_later(-none.scatter_reduce(0, state.assignments, log_levels, "amin"))  # of each component
    counts, chi = members(state, data, model)
    log_sizes, _ = model.prior.urn(state.hyper, int(counts.max()), 1)
    log_weights = log_gamma_draw(log_sizes[counts.long()].exp(), generator)
    occupied = Components(log_weights, model.likelihood.draw(chi, generator), state.weights)
    log_slices = log_weights[state.assignments] + log_levels
    rest, lowest = model.prior.draw_rest(state.hyper, len(counts), generator), (log_weights - least()).amin()
    exponent, mass, below = torch.stack([each.double() for each in (*rest, lowest)]).tolist()  # one wait
    log_floor = max(below, _log_guard(exponent))
    log_jumps = draw_jumps(exponent, mass, log_floor, generator)
    chosen = draw_assignments(data, occupied, model, points, log_slices)
    reserved = state.reservoir
    if len(log_jumps):
        parameters, weights, reserved = draw_fresh(len(log_jumps), state, data.features, model, generator)
        near = torch.nonzero(log_slices <= log_jumps.max()).squeeze(1)  # few rows: points of small components
        occupied = occupied.join(Components(log_jumps, parameters, weights))
        chosen[near] = draw_assignments(data.rows(near), occupied, model, points[near], log_slices[near])
    chosen = torch.where(log_slices < log_floor, state.assignments, chosen)
    return settled(state, chosen, occupied.weights, reserved)[0]


def settled(state: S, chosen: Tensor, weights: Tensor, reserved: Tensor | None) -> tuple[S, Tensor, Tensor]:
    """The state after points [N] chose components `chosen` among M with classifiers [M, P, C].

    Also returns the numbers [K] of the chosen components, and which were not chosen, bool [M]. `reserved` is the rest
    of the reservoir.
    """
    labels, assignments = all_named(chosen, len(weights))
    unseen = torch.ones(len(weights), dtype=torch.bool, device=labels.device).index_fill(0, labels, False)
    if state.reservoir is not None and reserved is not None:
        size = len(state.weights) + len(state.reservoir) - len(labels)
        left = unseen.byte().argsort(descending=True, stable=True)[: len(weights) - len(labels)]
        reserved = give_back(reserved, weights[left], size)
    moved = replace(state, assignments=assignments, weights=weights[labels], reservoir=reserved)
    return moved, labels, unseen


def draw_jumps(exponent: float, mass: float, log_floor: float, generator: torch.Generator) -> Tensor:
    """Draw the log weights [M] float64 above the floor of a Poisson process of density mass x^(-1 - d) e^(-x).

    Below 1, points of density x^(-1 - d) are kept with probability e^(-x). Above h = max(floor, 1), points h + Exp(1)
    are kept with probability (x / h)^(-1 - d). d is the exponent.
    """
    d, log_h = exponent, max(log_floor, 0.0)
    room = max(0.0, -log_floor)
    widths = [math.expm1(d * room) / d if d else room, math.exp(-(1 + d) * log_h - math.exp(log_h))]
    rates = torch.tensor(widths, dtype=torch.float64, device=generator.device) * mass
    num_low, num_high = (int(number) for number in torch.poisson(rates, generator=generator).tolist())
    place, height = uniforms((2, num_low + num_high), generator)
    below, above = place[:num_low], place[num_low:]
    # by inverse CDF; log x is between -room and 0
    log_low = -torch.log1p((1 - below) * math.expm1(d * room)) / d if d else -room * (1 - below)
    log_high = (math.exp(log_h) - torch.log1p(-above)).log()
    log_keep = torch.cat([-log_low.exp(), -(1 + d) * (log_high - log_h)])
    return torch.cat([log_low, log_high])[torch.log1p(-height) < log_keep]


def _log_guard(exponent: float) -> float:
    """log of the least floor (m Gamma(1 - d))^(-1/d), for which about m (K + alpha / d) new components are expected."""
    return -(math.log(_GUARD) + math.lgamma(1 - exponent)) / exponent if exponent else -math.inf


def draw_fresh(
    number: int, state: PartitionState, features: Tensor, model: Model, generator: torch.Generator
) -> tuple[Parameters, Tensor, Tensor | None]:
    """Draw parameters, each [M, ...], and classifiers [M, P, C] of M components without points.

    Classifiers come from the prior, or from the reservoir if there is one; the rest of the reservoir is returned.
    """
    prior = model.likelihood.prior()
    parameters = model.likelihood.draw(prior.expand(number, -1).contiguous(), generator)
    if state.reservoir is not None:
        return parameters, *take_reserved(state.reservoir, number, features, model, generator)
    noise = normals((number, *state.weights.shape[1:]), generator, state.weights)
    return parameters, model.weight_scale * noise, None


_GUARD = 10.0  # m
