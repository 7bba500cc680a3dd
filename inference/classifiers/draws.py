"""The Gibbs update of classifiers eta given everything else, written once for every structure.

    eta_k  ~  N(eta; 0, nu^2 I) prod_n phi(y_n | eta^T a_n)       over the rows n that the classifiers k score

Structures differ in what classifiers see and in who scores whom, and hand over one of three objects: each component
scores its own rows (`OwnClassifiers`), one set of classifiers scores all rows (`SharedClassifiers`), or each hyperplane
scores all rows and rejects those of other components (`RepellingHyperplanes`). They share one `draw`. Where the loss is
a Gaussian scale mixture (`augment`) it draws omega, then eta given omega, a weighted ridge. Under any other loss it
takes elliptical slice steps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...models.base import Model
from ...models.data import Data
from ...models.losses.base import Loss, PseudoObservation
from ...models.scores import own_scores, scores
from ...models.sparse import group_sums
from ...models.sums import row_chunks
from ..distributed.collectives import all_sum, own_stream
from .elliptical_slice import elliptical_slice
from .ridge import Ridge, soft_ridge, weighted_ridge

Place = tuple[slice, ...]  # of a block within the classifiers [K, P, C]


def log_prior(weights: Tensor, weight_scale: float) -> Tensor:
    """log N(eta; 0, nu^2 I) [...] float64 of classifiers [..., P, C]."""
    square = (weights.double() / weight_scale).square().sum((-2, -1))
    return -(square + weights.shape[-2:].numel() * math.log(2 * math.pi * weight_scale**2)) / 2


@dataclass(frozen=True, eq=False)
class Scored(ABC):
    """Rows with what classifiers see of them; a subclass says which classifiers score which rows."""

    features: Tensor  # [N, P]
    loss: Loss
    weight_scale: float  # nu

    def draw(self, weights: Tensor, generator: torch.Generator) -> Tensor:
        """New classifiers [K, P, C] given these; the blocks of scores take turns."""
        if not weights.numel():
            return weights
        if not self.loss.is_augmented:
            return self.slide(weights, generator, num_steps=_NUM_STEPS)
        weights = weights.clone()
        for place in self.blocks(weights):
            observed = self.observe(weights, place, generator)  # omega given all scores
            weights[place] = self.posterior(observed).draw(generator)
        return weights

    def slide(self, weights: Tensor, generator: torch.Generator, *, num_steps: int = 1) -> Tensor:
        """Classifiers [K, P, C] after elliptical slice steps, those of a component in one piece."""
        return elliptical_slice(weights, self.weight_scale, self.log_likelihood, generator, num_steps=num_steps)

    @abstractmethod
    def log_density(self, weights: Tensor, *, relative: bool = False) -> Tensor:
        """log density [] float64 of classifiers [K, P, C] with the factors of all rows.

        That of hyperplanes of an infinite model is `relative` to the law of a hyperplane without rows, whose normalizer
        nobody knows: they then count through the factors of their own rows alone.
        """

    @abstractmethod
    def blocks(self, weights: Tensor) -> Iterable[Place]:
        """Places of the classifiers [K, P, C] that are drawn together."""

    @abstractmethod
    def observe(self, weights: Tensor, place: Place, generator: torch.Generator) -> PseudoObservation:
        """Pseudo-observations of the scores of a block, at a draw of omega given classifiers [K, P, C]."""

    @abstractmethod
    def posterior(self, observed: PseudoObservation) -> Ridge:
        """N(A^-1 B, A^-1) of the classifiers whose scores are observed; the prior for those that score no row."""

    @abstractmethod
    def log_likelihood(self, weights: Tensor, which: Tensor) -> Tensor:
        """Sums [M] float64 of log phi over the rows of all machines, of classifiers [M, P, C] in place of those of the
        components [M]."""


@dataclass(frozen=True, eq=False)
class Targeted(Scored):
    """Rows with targets: the columns [N, C] are scores of one row, and a loss says which of them are one block."""

    targets: Tensor  # [N, C], NaN where one is missing

    def log_density(self, weights: Tensor, *, relative: bool = False) -> Tensor:
        if not weights.shape[2]:
            return weights.new_zeros((), dtype=torch.float64)
        log_factor = self.loss.log_factor(self.scores(weights), self.targets)
        return all_sum(log_factor.sum(dtype=torch.float64)) + log_prior(weights, self.weight_scale).sum()

    def blocks(self, weights: Tensor) -> Iterable[Place]:
        return [(slice(None), slice(None), columns) for columns in self.loss.blocks(weights.shape[2])]

    def observe(self, weights: Tensor, place: Place, generator: torch.Generator) -> PseudoObservation:
        """Precision and shift [N, C'] of the columns of a block."""
        return observe_scores(self.scores(weights), self.targets, self.loss, place[-1], generator)

    @abstractmethod
    def scores(self, weights: Tensor) -> Tensor:
        """Scores [N, C] under classifiers [K, P, C]."""


@dataclass(frozen=True, eq=False)
class OwnClassifiers(Targeted):
    """Classifiers of K components, each of which scores the rows of its own component alone."""

    owners: Tensor  # [N] int64, the component of each row
    num_components: int

    def scores(self, weights: Tensor) -> Tensor:
        return own_scores(self.features, weights, self.owners)

    def posterior(self, observed: PseudoObservation) -> Ridge:
        return weighted_ridge(
            self.features,
            *observed,
            self.owners,
            num_components=self.num_components,
            weight_scale=self.weight_scale,
        )

    def log_likelihood(self, weights: Tensor, which: Tensor) -> Tensor:
        place = self.owners.new_full((self.num_components,), -1)
        place[which] = torch.arange(len(which), device=place.device)
        rows = torch.nonzero(place[self.owners] >= 0).squeeze(1)
        own = place[self.owners[rows]]
        log_factor = self.loss.log_factor(own_scores(self.features[rows], weights, own), self.targets[rows])
        return all_sum(group_sums(log_factor.double().sum(1, keepdim=True), own, len(which))).squeeze(1)


@dataclass(frozen=True, eq=False)
class SharedClassifiers(Targeted):
    """One set of classifiers [1, P, C] that scores all rows: of latent bits, mean topics, features of label sets."""

    def scores(self, weights: Tensor) -> Tensor:
        return self.features @ weights.squeeze(0)

    def posterior(self, observed: PseudoObservation) -> Ridge:
        precision, shift = (part.unsqueeze(1) for part in observed)
        one = self.features.new_ones(len(self.features), 1)
        return soft_ridge(self.features, precision, shift, one, weight_scale=self.weight_scale)

    def log_likelihood(self, weights: Tensor, which: Tensor) -> Tensor:
        log_factor = self.loss.log_factor(scores(self.features, weights), self.targets.unsqueeze(1))
        return all_sum(log_factor.double().sum((0, 2)))


@dataclass(frozen=True, eq=False)
class RepellingHyperplanes(Scored):
    """Hyperplanes [K, P, 1] that score all rows, each with a sign: +1 for the rows of its component, else -1.

    A row whose label is below 0 is of no component.
    """

    owners: Tensor  # [N] int64

    def draw(self, weights: Tensor, generator: torch.Generator) -> Tensor:
        """New hyperplanes [K, P, 1]. An elliptical slice step follows for each without rows: a draw given omega moves
        it by about (c N)^(-1/2), but where many rejected rows keep their margin its law is about nu wide."""
        weights = super().draw(weights, generator)
        counts = torch.bincount(self.owners.clamp(min=-1) + 1, minlength=len(weights) + 1)[1:]
        empty = torch.nonzero(all_sum(counts) == 0).squeeze(1)
        if len(empty) and weights.numel():
            weights[empty] = self.without_rows().slide(weights[empty], generator)
        return weights

    def log_density(self, weights: Tensor, *, relative: bool = False) -> Tensor:
        if relative:
            own = own_scores(self.features, weights, self.owners)
            accepts, rejects = (self.loss.log_factor(own, own.new_tensor(side)) for side in (1.0, -1.0))
            return all_sum((accepts - rejects).sum(dtype=torch.float64))
        every = torch.arange(len(weights), device=weights.device)
        return self.log_likelihood(weights, every).sum() + log_prior(weights, self.weight_scale).sum()

    def without_rows(self) -> RepellingHyperplanes:
        """The same rows, which are of no component."""
        return RepellingHyperplanes(self.features, self.loss, self.weight_scale, torch.full_like(self.owners, -1))

    def blocks(self, weights: Tensor) -> Iterable[Place]:
        step = max(1, _PAIRS // len(self.features))
        return [(slice(first, first + step),) for first in range(0, len(weights), step)]

    def observe(self, weights: Tensor, place: Place, generator: torch.Generator) -> PseudoObservation:
        """Precision and shift [N, B] of the pairs of a row and a hyperplane of the block."""
        labels = torch.arange(len(weights), device=weights.device)[place]
        found = self.features @ weights[place].squeeze(-1).T
        return self.loss.augment(found, _signs(self.owners, labels, found), own_stream(generator))

    def posterior(self, observed: PseudoObservation) -> Ridge:
        precision, shift = (part.unsqueeze(-1) for part in observed)
        return soft_ridge(
            self.features, precision, shift, torch.ones_like(observed.shift), weight_scale=self.weight_scale
        )

    def log_likelihood(self, weights: Tensor, which: Tensor) -> Tensor:
        total = weights.new_zeros(len(weights), dtype=torch.float64)
        for rows in row_chunks(self.features, len(weights)):
            found = (self.features[rows] @ weights.squeeze(-1).T).double()
            signs = _signs(self.owners[rows], which, found)
            total += self.loss.log_factor(found.unsqueeze(-1), signs.unsqueeze(-1)).sum((0, 2))
        return all_sum(total)


def classifiers_of(model: Model, points: Data, labels: Tensor, num_components: int) -> Scored:
    """Who scores whom in a mixture, or a chain of states, whose points have these labels [N]."""
    features, loss, nu = points.features, model.loss, model.weight_scale
    if model.repels:
        return RepellingHyperplanes(features, loss, nu, labels)
    return OwnClassifiers(features, loss, nu, points.targets, labels, num_components)


def observe_scores(
    scores: Tensor, targets: Tensor, loss: Loss, columns: slice, generator: torch.Generator
) -> PseudoObservation:
    """Pseudo-observations [N, C'] of scores [N, C] in these columns, at a draw of omega given all scores."""
    reference = loss.reference(scores, targets, columns)
    observed = loss.augment(scores[:, columns] - reference, targets[:, columns], own_stream(generator))
    return PseudoObservation(observed.precision, observed.shift + observed.precision * reference)


def _signs(owners: Tensor, labels: Tensor, like: Tensor) -> Tensor:
    """+1 where a row [N] is of a label [B], else -1: [N, B]."""
    return torch.where(owners.unsqueeze(1) == labels, 1.0, -1.0).to(like)


_PAIRS = 2**22  # of a row and a hyperplane, in memory at a time
_NUM_STEPS = 3  # an ellipse step moves less than a draw given omega
