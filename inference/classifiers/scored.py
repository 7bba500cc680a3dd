"""Rows and the classifiers eta [K, P, C] that score them: costs, densities, posteriors and draws of the classifiers.

    log p(eta, y)  =  log N(eta; 0, nu^2 I) + sum_n r_n log phi(y_n | f_n),     f_n = eta_{k(n)}^T a_n

In `Scored`, one set of classifiers scores all rows, or each row has an owner k(n) (its component) whose set scores it.
In `RepellingHyperplanes`, the hyperplane of each component scores all rows and rejects those of other components.

Gibbs calls `draw`. Where the loss is a Gaussian scale mixture (`augment`), it draws omega, then eta given omega, which
is a weighted ridge regression; any other loss uses elliptical slice steps. `minimum` descends the cost, which is -log
p(eta, y) up to a constant. `natural` updates variational factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, singledispatch
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...models import host
from ...models import scores as linear
from ...models.base import Model
from ...models.compiled import compiled_loss
from ...models.data import Data, Spread
from ...models.distributions.inverse_gaussian import half_normals
from ...models.distributions.sampling import normals, uniforms
from ...models.hyperplanes import Hyperplanes
from ...models.losses.base import Loss, PseudoObservation
from ...models.sparse import group_sums
from ...models.sums import among, ranks, row_chunks
from ..distributed.collectives import Later, all_count, all_rows, all_sum, all_sums, own_stream, span
from .elliptical_slice import MOST_SHRINKS, elliptical_slice
from .ridge import Ridge, in_row_space, owner_means, ridges_of_owners, rows_of_owners, soft_means, soft_natural
from .row_space import RowRidge


@dataclass(frozen=True, eq=False)
class Scored:
    """Rows with targets, scored by one set of classifiers or each by the set of its owner."""

    features: Tensor  # a [N, P]
    targets: Tensor  # y [N, C], NaN where one is missing
    loss: Loss
    weight_scale: float  # nu
    row_weights: Tensor | None = None  # r [N] > 0; None: each row counts once
    owner: Tensor | None = None  # component of each row, [N] int64 in 0..K-1; None: K is 1
    num_owners: int = 1  # K
    source: Spread | None = None  # of the rows, with their `span`; None: ranks exchange their sizes

    # for split-merge proposals: the steps of the classifier fit that screens them (0: no fit, the likelihood alone
    # screens), and the fraction of proposals that divide two blocks anew (0: the scans do this well)
    num_rough: ClassVar[int] = 0
    redivided: ClassVar[float] = 0.0
    compiled: ClassVar[None] = None  # the rows as compiled code takes them, in `RepellingHyperplanes`

    @property
    def num_scores(self) -> int:
        """C."""
        return self.targets.shape[1]

    def scores(self, weights: Tensor) -> Tensor:
        """The scores f [N, C] under weights [K, P, C]."""
        if self.owner is None:
            return self.features @ weights[0]
        return own_scores(self.features, weights, self.owner)

    def counted(self, values: Tensor) -> Tensor:
        """Values [N, C] of the rows times the row weights."""
        return values if self.row_weights is None else values * self.row_weights.to(values.dtype).unsqueeze(1)

    @cached_property
    def span(self) -> tuple[int, int]:
        """The number of this rank's first row among the rows of all ranks, and the total number of rows."""
        return span(len(self.features)) if self.source is None else self.source.span

    def together(self, tilt: Tensor) -> tuple[Scored, Tensor]:
        """This object with the rows of all ranks, and their tilts, from this rank's tilts [N, C]."""
        parts = [self.features, self.targets, tilt]
        parts += [part.unsqueeze(1) for part in (self.row_weights, self.owner) if part is not None]
        sizes = [part.shape[1] for part in parts]
        tables = all_rows(torch.cat([part.double() for part in parts], 1), self.span).split(sizes, 1)
        rows = [table.to(part) for table, part in zip(tables, parts, strict=True)]
        weights, owner = self.row_weights, self.owner
        owner = None if owner is None else rows.pop().squeeze(1)
        weights = None if weights is None else rows.pop().squeeze(1)
        features, targets, tilts = rows
        return replace(self, features=features, targets=targets, row_weights=weights, owner=owner, source=None), tilts

    def rows(self) -> list[Tensor]:
        """The row numbers [N_k] that each of the K sets of classifiers scores."""
        if self.owner is None:
            return [torch.arange(len(self.features), device=self.features.device)]
        return rows_of_owners(self.owner, self.num_owners)

    # -- for split-merge moves: blocks of rows, with one set of classifiers each ---------------------------------------

    def within(self, rows: Tensor) -> Scored:
        """The rows that count for classifiers of blocks within rows [B]: here these rows."""
        return Scored(self.features[rows], self.targets[rows], self.loss, self.weight_scale)

    def spread(self, shares: Tensor, rows: Tensor) -> Tensor:
        """Shares [N, K] of the blocks in all rows of `within`, from their shares [B, K] in the blocks' own rows."""
        return shares

    def factors(self, scores: Tensor, shares: Tensor, rows: slice = slice(None)) -> Tensor:
        """The log factors r log phi(y_n | f_nk) of rows [n] with shares [n, K] in the blocks, at scores [..., n, K, C].

        The result is [..., n, K, C], or [..., n, K, 1] where classes meet in one factor.
        """
        return shares.unsqueeze(-1) * self.loss.log_factor(scores, self.targets[rows].unsqueeze(1))

    # -- log density, and the cost: its negative up to a constant ------------------------------------------------------

    def cost(self, weights: Tensor, scores: Tensor) -> Tensor:
        """The costs |eta|^2 / (2 nu^2) - sum_n r_n log phi, [K, C] or [K, 1] float64, of weights [K, P, C]."""
        return self.cost_later(weights, scores)()

    def cost_later(self, weights: Tensor, scores: Tensor) -> Callable[[], Tensor]:
        """A function that returns `cost` [K, C]; among ranks its sum is joined to the next exchange."""
        losses, ridge = Later(self._losses(scores)), self._ridge(weights)
        return lambda: losses() + ridge

    def costs(self, options: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor]]:
        """Each option (weights [K, P, C], scores [N, C]) with its cost [K, C]; ranks exchange sums once."""
        if ranks() is None:
            return ((each, self.cost(*each)) for each in options)
        known = list(options)
        sums = all_sums(*(self._losses(scores) for _, scores in known))
        return ((each, total + self._ridge(each[0])) for each, total in zip(known, sums, strict=True))

    def _losses(self, scores: Tensor) -> Tensor:
        """The losses -sum_n r_n log phi [K, C] of scores [N, C], over the rows of this rank."""
        return self._sums(self.counted(-self.loss.log_factor(scores, self.targets)))

    def _ridge(self, weights: Tensor) -> Tensor:
        """The ridge |eta|^2 / (2 nu^2) [K, C] of weights [K, P, C]; [K, 1] where all classes meet in one factor."""
        ridge = weights.double().square().sum(1) / (2 * self.weight_scale**2)
        return ridge.sum(1, keepdim=True) if self.loss.meets else ridge

    def value(self, weights: Tensor) -> Tensor:
        """The cost [K, C] of weights [K, P, C]."""
        return self.cost(weights, self.scores(weights))

    def told(self, weights: Tensor, *, relative: bool = False) -> Tensor:
        """The losses [K, C] of this rank's rows under weights [K, P, C]; `log_density` takes their sum over ranks."""
        if not weights.shape[2]:
            return weights.new_zeros(len(weights), 0, dtype=torch.float64)
        return self._losses(self.scores(weights))

    def log_density(self, weights: Tensor, told: Tensor | None = None, *, relative: bool = False) -> Tensor:
        """log p(eta, y) [] float64 of weights [K, P, C]; `told` [K, C] is the sum over ranks of `told`.

        `relative` matters for `RepellingHyperplanes` alone.
        """
        if not weights.shape[2]:
            return weights.new_zeros((), dtype=torch.float64)
        told = all_sum(self.told(weights)) if told is None else told
        return log_prior(torch.zeros_like(weights), self.weight_scale).sum() - (told + self._ridge(weights)).sum()

    def log_likelihood(self, weights: Tensor, which: Tensor) -> Tensor:
        """log phi [..., M] float64 summed over the rows of the sets `which` [M], at weights [..., M, P, C]."""
        many = weights.flatten(0, -4) if weights.ndim > 3 else weights.unsqueeze(0)
        if self.owner is None:
            found = linear.scores(self.features, many.flatten(0, 1))
            log_factor = self.loss.log_factor(found, self.targets.unsqueeze(1))
            return all_sum(log_factor.double().sum((0, 2))).view(weights.shape[:-2])
        place = self.owner.new_full((self.num_owners,), -1)
        place[which] = torch.arange(len(which), device=place.device)
        rows = torch.nonzero(place[self.owner] >= 0).squeeze(1)
        own, features, targets = place[self.owner[rows]], self.features[rows], self.targets[rows]
        each_scores = (linear.own_scores(features, each, own) for each in many)
        log_factors = torch.stack([self.loss.log_factor(f, targets).double().sum(1) for f in each_scores], 1)
        return all_sum(group_sums(log_factors, own, len(which))).T.reshape(weights.shape[:-2])

    def _sums(self, values: Tensor) -> Tensor:
        """The sums [K, C] float64 of values [N, C] over the rows of each owner; the host waits for no device."""
        if self.owner is None:
            return values.sum(0, keepdim=True, dtype=torch.float64)
        if not host.on_cpu(values):
            members = self.owner.unsqueeze(1) == torch.arange(self.num_owners, device=values.device)
            return members.double().T @ values.double()
        columns = [torch.bincount(self.owner, column, self.num_owners) for column in values.double().T]
        if not columns:
            return values.new_zeros(self.num_owners, 0, dtype=torch.float64)
        return torch.stack(columns, 1).double()  # without rows bincount returns integers

    # -- given pseudo-observations: ridge regressions ------------------------------------------------------------------

    def posteriors(self, observed: PseudoObservation) -> Iterator[Ridge | RowRidge]:
        """The posteriors N(A^-1 B, A^-1) of the K sets of classifiers, given precision and shift [N, C] of the scores.

        Each item has one or several sets. A set without rows has its prior.
        """
        if self.owner is None and not in_row_space(*self.features.shape):
            return iter([Ridge.of_natural(*soft_natural(*self._shared(observed), weight_scale=self.weight_scale))])
        precision, shift = map(self.counted, observed)
        return ridges_of_owners(self.features, precision, shift, self.rows(), self.weight_scale)

    def means(self, observed: PseudoObservation) -> Tensor:
        """The means [K, P, C] of `posteriors`."""
        if self.owner is None:
            return soft_means(*self._shared(observed), weight_scale=self.weight_scale)
        precision, shift = map(self.counted, observed)
        return owner_means(self.features, precision, shift, self.rows(), self.weight_scale)

    def _shared(self, observed: PseudoObservation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features, precision, shift [N, 1, C] and row weights [N, 1], for one set that scores all rows."""
        precision, shift = (part.unsqueeze(1) for part in observed)
        return self.features, precision, shift, self.counted(torch.ones_like(self.features[:, :1]))

    # -- draws ---------------------------------------------------------------------------------------------------------

    def draw(self, weights: Tensor, generator: torch.Generator) -> Tensor:
        """Draw new classifiers [K, P, C] given the present ones; blocks of scores are drawn in turn."""
        if not weights.numel():
            return weights
        if not self.loss.is_augmented:
            return self.slide(weights, generator, num_steps=_NUM_STEPS)
        weights = weights.clone()
        for columns in self.loss.blocks(weights.shape[2]):
            observed = self.observe(weights, columns, generator)  # omega given all scores
            weights[:, :, columns] = self.drawn(observed, generator)
        return weights

    def drawn(self, observed: PseudoObservation, generator: torch.Generator) -> Tensor:
        """A draw of classifiers [K, P, C] from their `posteriors`."""
        return torch.cat([law.draw(generator) for law in self.posteriors(observed)])

    def observe(self, weights: Tensor, columns: slice, generator: torch.Generator) -> PseudoObservation:
        """Pseudo-observations [N, C'] of the scores in `columns`, at a draw of omega given weights [K, P, C]."""
        scores = self.scores(weights)
        reference = self.loss.reference(scores, self.targets, columns)
        observed = self.loss.augment(scores[:, columns] - reference, self.targets[:, columns], own_stream(generator))
        return PseudoObservation(observed.precision, observed.shift + observed.precision * reference)

    def slide(self, weights: Tensor, generator: torch.Generator, *, num_steps: int = 1) -> Tensor:
        """Take elliptical slice steps of classifiers [K, P, C]; all classifiers of a component move together."""
        return elliptical_slice(weights, self.weight_scale, self.log_likelihood, generator, num_steps=num_steps)


@dataclass(frozen=True, eq=False)
class RepellingHyperplanes:
    """Hyperplanes [K, P, 1] that all score every row: with sign +1 the rows of their component, with -1 all others.

    A row whose component is below 0 belongs to no component.
    """

    features: Tensor  # [N, P]
    loss: Loss
    weight_scale: float  # nu
    owners: Tensor  # component of each row, [N] int64
    num_rows: int | None = None  # N of all ranks; None: it is counted when needed

    num_scores: ClassVar[int] = 1
    num_rough: ClassVar[int] = 2  # as in `Scored`
    redivided: ClassVar[float] = 1 / 3

    @cached_property
    def compiled(self) -> Any:
        """The rows for compiled code; None on a GPU, among ranks, with many features, or an uncompiled loss."""
        num_features, (loss, power) = self.features.shape[1], self.loss.untempered
        if not host.on_cpu(self.features) or ranks() is not None or in_row_space(0, num_features):
            return None
        if (form := compiled_loss(loss)) is None:
            return None
        from . import _numba_hyperplanes  # compiles or loads machine code: only where it is needed

        columns = self.features.double().T.contiguous().numpy()
        return _numba_hyperplanes.Rows(columns, form, power, self.weight_scale**-2)

    def within(self, rows: Tensor) -> RepellingHyperplanes:
        """All rows: they all count for the hyperplane of every block."""
        return self

    def spread(self, shares: Tensor, rows: Tensor) -> Tensor:
        """As in `Scored`; rows outside the blocks have share 0."""
        return shares.new_zeros(len(self.features), shares.shape[1]).index_copy(0, rows, shares)

    def factors(self, scores: Tensor, shares: Tensor, rows: slice = slice(None)) -> Tensor:
        """As in `Scored`: (1 - r) log phi(-1 | f_nk) + r log phi(+1 | f_nk), [..., n, K, 1]."""
        if shares.dtype == torch.bool:
            return self.loss.log_factor(scores, (2 * shares.to(scores) - 1).unsqueeze(-1))
        other, own = (self.loss.log_factor(scores, scores.new_tensor(side)) for side in (-1.0, 1.0))
        return torch.lerp(other, own, shares.unsqueeze(-1).to(own))

    def draw(self, weights: Tensor, generator: torch.Generator) -> Tensor:
        """Draw new hyperplanes [K, P, 1]; those without rows take an elliptical slice step as well.

        A draw given omega moves such a hyperplane by about (c N)^(-1/2) only, while its posterior is about nu wide
        where many rejected rows keep their margin.
        """
        if not weights.numel():
            return weights
        counts = Later(torch.bincount(self.owners.clamp(min=-1) + 1, minlength=len(weights) + 1)[1:])
        weights = self._drawn(weights, generator)
        empty = torch.nonzero(counts() == 0).squeeze(1)
        if len(empty):
            nobody = RepellingHyperplanes(self.features, self.loss, self.weight_scale, torch.full_like(self.owners, -1))
            weights[empty] = nobody.slide(weights[empty], generator)
        return weights

    def _drawn(self, weights: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the hyperplanes in blocks that fit into memory; given the rows they are independent."""
        if not self.loss.is_augmented:
            return self.slide(weights, generator, num_steps=_NUM_STEPS)
        number = all_count(len(self.features)) if self.num_rows is None else self.num_rows
        step = max(1, _PAIRS // max(1, number))
        labels = torch.arange(len(weights), device=weights.device).split(step)
        return torch.cat([self._of(own, weights[own], generator) for own in labels])

    def _of(self, labels: Tensor, weights: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the hyperplanes [B, P, 1] of the components `labels` [B]."""
        rows = self.compiled
        if rows is None or not hasattr(rows.loss, "observe"):
            return self.sides(labels).draw(weights.transpose(0, 2), generator).transpose(0, 2)
        from ..compiled.decorators import entry_of
        from . import _numba_hyperplanes

        shape = len(labels), len(self.features)
        halves = half_normals(shape, generator=generator, dtype=torch.float64)
        levels, noise = uniforms(shape, generator), normals(weights.shape[:2], generator, halves)
        natural = halves.new_empty(len(labels), 2, len(self.features))
        arrays = self.owners, labels, halves, levels, weights.squeeze(2).to(halves), natural
        room = _numba_hyperplanes.Room.of(rows)
        entry_of(_numba_hyperplanes.see, rows.loss)(rows, *(array.numpy() for array in arrays), room)
        entry_of(_numba_hyperplanes.draw, rows.loss)(rows, natural.numpy(), noise.numpy(), room)
        return noise.to(weights).unsqueeze(2)

    def sides(self, labels: Tensor) -> Scored:
        """The hyperplanes of the components `labels` [B], as B scores of one set of classifiers [1, P, B]."""
        return Scored(self.features, sides(self.owners, labels, self.features), self.loss, self.weight_scale)

    def slide(self, weights: Tensor, generator: torch.Generator, *, num_steps: int = 1) -> Tensor:
        """Take independent elliptical slice steps of the hyperplanes [K, P, 1]."""
        if self.compiled is not None:
            for _ in range(num_steps):
                weights = self._turned(weights, generator)
            return weights
        return elliptical_slice(weights, self.weight_scale, self.log_likelihood, generator, num_steps=num_steps)

    def _turned(self, weights: Tensor, generator: torch.Generator) -> Tensor:
        """Take one compiled elliptical slice step; scores turn by the same angle as hyperplanes [K, P, 1]."""
        from ..compiled.decorators import entry_of
        from . import _numba_hyperplanes

        other = self.weight_scale * normals(tuple(weights.shape), generator, weights)
        levels, angles = uniforms((len(weights), 2 + MOST_SHRINKS), generator), np.empty(len(weights))
        planes = (each.squeeze(2).double().numpy() for each in (weights, other))
        room = np.empty((2, len(self.features)))
        entry_of(_numba_hyperplanes.turn, self.compiled.loss)(
            self.compiled, self.owners.numpy(), *planes, levels.numpy(), angles, room
        )
        across, up = (torch.from_numpy(part(angles)).to(weights).view(-1, 1, 1) for part in (np.cos, np.sin))
        return weights * across + other * up

    def told(self, weights: Tensor, *, relative: bool = False) -> Tensor:
        """As in `Scored`, [K]; if `relative`, sum_n log phi(+1 | f) / phi(-1 | f) [] of the rows' own planes."""
        if relative:
            own = own_scores(self.features, weights, self.owners)
            accepts, rejects = (self.loss.log_factor(own, own.new_tensor(side)) for side in (1.0, -1.0))
            return (accepts - rejects).sum(dtype=torch.float64)
        with among(None):
            return self.log_likelihood(weights, torch.arange(len(weights), device=weights.device))

    def log_density(self, weights: Tensor, told: Tensor | None = None, *, relative: bool = False) -> Tensor:
        """The log density [] float64 of hyperplanes [K, P, 1] with the factors of all rows; `told` as in `Scored`.

        An infinite model takes the density `relative` to the law of a hyperplane without rows, whose normalizer is
        unknown: a hyperplane then counts through the rows of its own component alone, by log phi(+1 | f) - log phi(-1 |
        f).
        """
        told = all_sum(self.told(weights, relative=relative)) if told is None else told
        return told if relative else told.sum() + log_prior(weights, self.weight_scale).sum()

    def log_likelihood(self, weights: Tensor, which: Tensor) -> Tensor:
        """log phi [..., M] float64 summed over all rows, if the hyperplanes `which` [M] had weights [..., M, P, 1]."""
        flat = weights.squeeze(-1).flatten(0, -2)
        total = flat.new_zeros(len(flat), dtype=torch.float64).view(-1, len(which))
        for rows in row_chunks(self.features, len(flat)):
            found = (self.features[rows] @ flat.T).double().view(-1, *total.shape)
            signs = sides(self.owners[rows], which, found).unsqueeze(1)
            total += self.loss.log_factor(found.unsqueeze(-1), signs.unsqueeze(-1)).sum((0, 3))
        return all_sum(total).view(weights.shape[:-2])


@singledispatch
def classifiers_of(
    model: Model | Hyperplanes, points: Data, labels: Tensor, num_components: int
) -> Scored | RepellingHyperplanes:
    """The classifiers of a mixture, or of a chain of states, whose points have components `labels` [N].

    Each component's classifiers score its own points, unless the model is one of `Hyperplanes`.
    """
    loss, nu = model.loss, model.weight_scale
    return Scored(points.features, points.targets, loss, nu, owner=labels, num_owners=num_components)


@classifiers_of.register
def hyperplanes_of(model: Hyperplanes, points: Data, labels: Tensor, num_components: int) -> RepellingHyperplanes:
    """`classifiers_of` for `Hyperplanes`: each hyperplane scores all points, whatever their component [N]."""
    return RepellingHyperplanes(points.features, model.loss, model.weight_scale, labels, points.span[1])


def log_prior(weights: Tensor, weight_scale: float) -> Tensor:
    """log N(eta; 0, nu^2 I) [...] float64 of classifiers [..., P, C]."""
    square = (weights.double() / weight_scale).square().sum((-2, -1))
    return -(square + weights.shape[-2:].numel() * math.log(2 * math.pi * weight_scale**2)) / 2


def sides(owners: Tensor, labels: Tensor, like: Tensor) -> Tensor:
    """Signs [N, B]: +1 where row n has component `labels` [B], else -1, in the dtype of `like`."""
    return torch.where(owners.unsqueeze(1) == labels, 1.0, -1.0).to(like)


def own_scores(features: Tensor, weights: Tensor, owner: Tensor) -> Tensor:
    """Scores [N, C] of rows [N, P] under the classifiers [K, P, C] of their owners [N]; compiled on a CPU."""
    if not host.on_cpu(features):
        return linear.own_scores(features, weights, owner)
    from . import _numba_scores  # compiles or loads machine code: only where it is needed

    (N, P), K = features.shape, len(weights)
    if weights.shape[1] != P or len(owner) != N or (N and not 0 <= int(owner.min()) <= int(owner.max()) < K):
        raise IndexError(
            f"{len(owner)} owners of {N} rows do not fit {K} classifiers."
        )  # compiled code does not check indices
    found = features.new_empty(N, weights.shape[2])
    arrays = features.contiguous(), weights.mT.contiguous(), owner, found
    _numba_scores.own_scores(*(array.numpy() for array in arrays))
    return found


_PAIRS = 2**22  # most pairs of a row and a hyperplane in memory at once
_NUM_STEPS = 3  # more than one, because a slice step moves less than a draw given omega
