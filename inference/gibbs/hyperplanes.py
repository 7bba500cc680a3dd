"""The reservoir: hyperplanes without points, from which new components take theirs.

An infinite model whose components repel is a mixture with point weights exp(h(f)), in which the hyperplane of a new
component comes not from the prior but from

    G(eta) = N(eta; 0, nu^2 I) prod_n phi(-1 | eta^T a_n) / its integral,     the law of a hyperplane that rejects all
    points

(docs/derivations/repelling, "Hyperplanes without points"). G has no direct sampler. The state of a chain therefore
carries A hyperplanes without points, which in equilibrium are draws from G. A component that opens takes one of them,
each with weight alpha / A exp(h); a component that closes gives its hyperplane back. The A hyperplanes that a point
could open a component with are the same before and after a move, so each move is a draw from its conditional, for every
A >= 1. K + A stays constant after the warm-up, so the law of K is that of at most K + A components.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.base import Model
from ...models.distributions.sampling import draw_categorical, normals, uniforms
from ...models.mixture import Mixture
from ...models.sequence import StateSpace
from ..classifiers.scored import RepellingHyperplanes
from .moves.block_classifiers import BlockClassifiers

NUM_RESERVED = 50


def reserve(
    features: Tensor, model: Mixture | StateSpace, generator: torch.Generator, *, rough: bool = False
) -> Tensor | None:
    """A first reservoir [A, P, 1], without Gibbs steps if `rough`; None unless components repel."""
    steps = {"num_steps": 0} if rough else {}
    return None if model.without_hyperplanes() is model else fill_reservoir(features, model, generator, **steps)


def fill_reservoir(
    features: Tensor, model: Model, generator: torch.Generator, *, size: int = NUM_RESERVED, num_steps: int = 12
) -> Tensor:
    """Draw hyperplanes [A, P, 1] approximately from G.

    Each is chosen by importance weight among candidates from the Gaussian of least KL to G. As that Gaussian is
    narrower than G, `num_steps` Gibbs steps follow.
    """
    P = features.shape[1]
    if not P:
        return features.new_zeros(size, 0, 0)
    near = BlockClassifiers(features.new_zeros(len(features), 1, dtype=torch.bool), nobodys(features, model)).refined()
    candidates = near.draw(size * _NUM_CANDIDATES, generator).to(features)
    log_ratio = near.log_ratio(candidates).view(size, _NUM_CANDIDATES)
    chosen = draw_categorical(log_ratio, uniforms((size,), generator))
    places = torch.arange(size, device=chosen.device) * _NUM_CANDIDATES + chosen
    weights = candidates[0, places]
    for _ in range(num_steps):
        weights = move_all(weights, features, model, generator)
    return weights


def refresh_reservoir(reservoir: Tensor, features: Tensor, model: Model, generator: torch.Generator) -> Tensor:
    """Take one Gibbs step for some randomly chosen reserved hyperplanes [A, P, 1]."""
    order = torch.randperm(len(reservoir), generator=generator, device=reservoir.device)
    chosen = order[:_NUM_REFRESHED]
    refreshed = reservoir.clone()
    refreshed[chosen] = move_all(reservoir[chosen], features, model, generator)
    return refreshed


def renew_reservoir(
    reservoir: Tensor,
    features: Tensor,
    model: Model,
    generator: torch.Generator,
    *,
    births: str,
    step: int,
    grows: bool,
) -> Tensor:
    """Update the reserved hyperplanes [A, P, 1] after a sweep: fill up if it `grows`; now and then move some."""
    if grows:
        reservoir = top_up(reservoir, features, model, generator)
    if births == "prior":
        return draw_from_prior(reservoir, features, model, generator)
    return reservoir if step % _RARE else refresh_reservoir(reservoir, features, model, generator)


def top_up(reservoir: Tensor, features: Tensor, model: Model, generator: torch.Generator) -> Tensor:
    """Add new hyperplanes to the reservoir [A, P, 1] if components took many.

    For warm-ups only: afterwards K + A must stay constant, or the law of K would be biased.
    """
    if len(reservoir) >= NUM_RESERVED // 2:
        return reservoir
    return torch.cat([reservoir, fill_reservoir(features, model, generator, size=NUM_RESERVED - len(reservoir))])


def give_back(reservoir: Tensor, closed: Tensor, size: int) -> Tensor:
    """Add the hyperplanes of closed components to the reservoir [A, P, 1]; keep at most `size` of them.

    A scan that needs more hyperplanes than there are draws further ones; those that it does not use must go.
    """
    return torch.cat([reservoir, closed])[: max(0, size)]


def move_all(weights: Tensor, features: Tensor, model: Model, generator: torch.Generator) -> Tensor:
    """Take one Gibbs step of hyperplanes [A, P, 1] without points."""
    return nobodys(features, model).draw(weights, generator)


def nobodys(features: Tensor, model: Model) -> RepellingHyperplanes:
    """Hyperplanes without points, as `RepellingHyperplanes` over rows [N, P]."""
    nobody = torch.full((len(features),), -1, device=features.device)
    return RepellingHyperplanes(features, model.loss, model.weight_scale, nobody)


def draw_from_prior(reservoir: Tensor, features: Tensor, model: Model, generator: torch.Generator) -> Tensor:
    """Replace the reservoir by draws [A, P, 1] from N(0, nu^2 I): the paper's births, which leave no law invariant."""
    return model.weight_scale * normals((NUM_RESERVED, *reservoir.shape[1:]), generator, features)


def take_reserved(
    reservoir: Tensor, number: int, features: Tensor, model: Model, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Take random hyperplanes [M, P, 1] for M new components; return them and the rest of the reservoir."""
    if number > len(reservoir):
        more = fill_reservoir(features, model, generator, size=number - len(reservoir))
        reservoir = torch.cat([reservoir, more])
    order = torch.randperm(len(reservoir), generator=generator, device=reservoir.device)
    return reservoir[order[:number]], reservoir[order[number:]]


_NUM_REFRESHED, _RARE = 10, 4  # 10 in every fourth sweep: they cost as much as 10 components
_NUM_CANDIDATES = 8
