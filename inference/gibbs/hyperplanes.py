"""Hyperplanes that see every point: their draw given the assignments, and the reservoir of those without points.

An infinite model whose components repel is a mixture with point weights exp(h(f)) in which the hyperplane of a new
component comes from

    G(eta) = N(eta; 0, nu^2 I) prod_n phi(-1 | eta^T a_n) / its integral,     the law of one that rejects all points

instead of the prior (math/discriminative-clustering, section 2). G has no direct sampler. The state of a chain
therefore carries A hyperplanes without points, which are as good as draws from it: a component that opens takes one of
them, each with weight alpha / A exp(h), and one that closes gives its own back. Since the A hyperplanes that a point
could open a component with are the same before and after, each move is a draw from its conditional, for every A >= 1.
K + A stays the same after the warm-up, so that the law is that of at most K + A components.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...models.base import Model
from ...models.data import Data
from ...models.distributions.sampling import normals
from ..classifiers.ridge import soft_ridge
from ..distributed.collectives import all_sum, own_stream
from .moves.elliptical_slice import elliptical_slice

NUM_RESERVED = 100


def draw_hyperplanes(
    features: Tensor, assignments: Tensor, weights: Tensor, model: Model, generator: torch.Generator
) -> Tensor:
    """Hyperplanes [K, P, 1] given the component [N] of every point; any label below 0 is of none of them.

    For every pair (n, k) an omega_nk given y_nk and f_nk = eta_k^T a_n, then
    eta_k ~ N(A_k^-1 B_k, A_k^-1),   A_k = I / nu^2 + sum_n precision_nk a_n a_n^T,   B_k = sum_n shift_nk a_n;
    of a loss without omega: elliptical slice steps. One of these follows for a hyperplane without points: a draw given
    omega moves it by about (c N)^(-1/2), but where many rejected points keep their margin its law is about nu wide.
    """
    if not weights.numel():
        return weights
    parts = []
    for k in torch.arange(len(weights), device=weights.device).split(max(1, _PAIRS // len(features))):
        if not model.loss.is_augmented:
            parts.append(_slide(features, assignments, k, weights[k], model, generator))
            continue
        scores = features @ weights[k].squeeze(-1).T
        sides = torch.where(assignments.unsqueeze(1) == k, 1.0, -1.0).to(scores)
        precision, shift = model.loss.augment(scores, sides, own_stream(generator))
        pairs = precision.unsqueeze(-1), shift.unsqueeze(-1)
        ridge = soft_ridge(features, *pairs, torch.ones_like(scores), weight_scale=model.weight_scale)
        parts.append(ridge.draw(generator))
    weights = torch.cat(parts)
    counts = torch.bincount(assignments.clamp(min=-1) + 1, minlength=len(weights) + 1)[1:]
    empty = torch.nonzero(all_sum(counts) == 0).squeeze(1)
    if len(empty):
        weights[empty] = slide_rejecting(weights[empty], features, model, generator)
    return weights


def _slide(
    features: Tensor, assignments: Tensor, labels: Tensor, weights: Tensor, model: Model, generator: torch.Generator
) -> Tensor:
    """Elliptical slice steps of the hyperplanes [B, P, 1] of some labels [B]."""

    def log_likelihood(planes: Tensor, which: Tensor) -> Tensor:
        scores = (features @ planes.squeeze(-1).T).double()
        sides = torch.where(assignments.unsqueeze(1) == labels[which], 1.0, -1.0).to(scores)
        return all_sum(model.loss.log_factor(scores.unsqueeze(-1), sides.unsqueeze(-1)).sum((0, 2)))

    return elliptical_slice(weights, model.weight_scale, log_likelihood, generator, num_steps=_NUM_STEPS)


def fill_reservoir(
    features: Tensor, model: Model, generator: torch.Generator, *, size: int = NUM_RESERVED, num_steps: int = 50
) -> Tensor:
    """Hyperplanes [A, P, 1] near draws from G, by `num_steps` steps each."""
    P = features.shape[1]
    weights = features.new_zeros(size, P, 1 if P else 0)
    for _ in range(num_steps):
        weights = move_all(weights, features, model, generator)
    return weights


def refresh_reservoir(reservoir: Tensor, features: Tensor, model: Model, generator: torch.Generator) -> Tensor:
    """One step for some of the reserved hyperplanes [A, P, 1], taken at random."""
    order = torch.randperm(len(reservoir), generator=generator, device=reservoir.device)
    chosen = order[:_NUM_REFRESHED]
    refreshed = reservoir.clone()
    refreshed[chosen] = move_all(reservoir[chosen], features, model, generator)
    return refreshed


def renew_reservoir(
    reservoir: Tensor, features: Tensor, model: Model, generator: torch.Generator, *, births: str, grows: bool
) -> Tensor:
    """The reserved hyperplanes [A, P, 1] after a sweep: topped up where it `grows`, and some of them moved."""
    if grows:
        reservoir = top_up(reservoir, features, model, generator)
    refill = refresh_reservoir if births == "exact" else draw_from_prior
    return refill(reservoir, features, model, generator)


def top_up(reservoir: Tensor, features: Tensor, model: Model, generator: torch.Generator) -> Tensor:
    """New reserved hyperplanes beside [A, P, 1] where components took many.

    For warm-ups only: when K alone decides whether K + A grows, the law of K is bent.
    """
    if len(reservoir) >= NUM_RESERVED // 2:
        return reservoir
    return torch.cat([reservoir, fill_reservoir(features, model, generator, size=NUM_RESERVED - len(reservoir))])


def give_back(reservoir: Tensor, closed: Tensor, size: int) -> Tensor:
    """The reserved hyperplanes [A, P, 1] with those of components that closed, at most `size` of them.

    A scan that takes more than there are fills up the reservoir; what it does not use must not stay.
    """
    return torch.cat([reservoir, closed])[: max(0, size)]


def move_all(weights: Tensor, features: Tensor, model: Model, generator: torch.Generator) -> Tensor:
    """A step of hyperplanes [A, P, 1] without points."""
    nobody = torch.full((len(features),), -1, device=features.device)
    return draw_hyperplanes(features, nobody, weights, model, generator)


def slide_rejecting(weights: Tensor, features: Tensor, model: Model, generator: torch.Generator) -> Tensor:
    """An elliptical slice step for each of the hyperplanes [A, P, 1], all of which reject every point of [N, P]."""

    def log_likelihood(planes: Tensor, which: Tensor) -> Tensor:
        scores = (features @ planes.squeeze(-1).T).double().unsqueeze(-1)
        return all_sum(model.loss.log_factor(scores, scores.new_tensor(-1.0)).sum((0, 2)))

    return elliptical_slice(weights, model.weight_scale, log_likelihood, generator)


def draw_from_prior(reservoir: Tensor, features: Tensor, model: Model, generator: torch.Generator) -> Tensor:
    """Hyperplanes [A, P, 1] from N(0, nu^2 I) in place of those reserved: the paper's births, under which no law is
    invariant."""
    return model.weight_scale * normals((NUM_RESERVED, *reservoir.shape[1:]), generator, features)


def take_reserved(
    reservoir: Tensor, number: int, features: Tensor, model: Model, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Hyperplanes [M, P, 1] for M new components, taken at random, and those that are left."""
    if number > len(reservoir):
        more = fill_reservoir(features, model, generator, size=number - len(reservoir))
        reservoir = torch.cat([reservoir, more])
    order = torch.randperm(len(reservoir), generator=generator, device=reservoir.device)
    return reservoir[order[:number]], reservoir[order[number:]]


class Reservoir:
    """The A reserved hyperplanes in the middle of a scan; changed in place."""

    def __init__(self, reserved: Tensor, data: Data, model: Model) -> None:
        self.data, self.model = data, model
        self.weights = reserved  # [A, P, 1]
        self.gains = self._gains(reserved)  # h(f) [A, N]

    def __len__(self) -> int:
        return len(self.weights)

    def log_mean_gain(self) -> Tensor:
        """log of the mean of exp(h(f_n)) over the reserved hyperplanes, [N]: what replaces the marginal of a factor."""
        return self.gains.logsumexp(0) - math.log(max(1, len(self)))

    def take(self, n: int, uniform: Tensor) -> Tensor:
        """The hyperplane [P, 1] with which point n opens a component, with probability prop. to exp(h(f_n))."""
        cumulative = self.gains[:, n].softmax(0).cumsum(0)
        chosen = int(torch.searchsorted(cumulative, uniform * cumulative[-1]).clamp(max=len(self) - 1))
        taken = self.weights[chosen]
        kept = torch.arange(len(self), device=taken.device) != chosen
        self.weights, self.gains = self.weights[kept], self.gains[kept]
        return taken

    def give(self, weights: Tensor) -> None:
        """Put back the hyperplanes [M, P, 1] of components that closed."""
        self.weights = torch.cat([self.weights, weights])
        self.gains = torch.cat([self.gains, self._gains(weights)])

    def _gains(self, weights: Tensor) -> Tensor:
        features = self.data.features
        if not features.shape[1]:
            return features.new_zeros(len(weights), len(features))
        scores = features @ weights.squeeze(-1).to(features).T
        return self.model.log_margin(scores.T.unsqueeze(-1), features.new_ones(1)).contiguous()


_PAIRS = 2**22  # of a point and a hyperplane, in memory at a time
_NUM_REFRESHED = 20
_NUM_STEPS = 3  # an ellipse step moves less than a draw given omega
