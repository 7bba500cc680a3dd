"""Who scores whom: rows with what classifiers see of them, and all that is asked of their classifiers eta [K, P, C].

    log p(eta, y)  =  log N(eta; 0, nu^2 I) + sum_n r_n log phi(y_n | f_n),     f_n = eta_{k(n)}^T a_n

One set of classifiers scores all rows, or each row has an owner k(n) whose set scores it. Where each hyperplane scores
all rows and rejects those of other components (`RepellingHyperplanes`), components are the scores of one set.

Gibbs asks for a draw. Where the loss is a Gaussian scale mixture (`augment`) that is omega, then eta given omega, a
weighted ridge; under any other loss, elliptical slice steps. `minimum` descends the cost, -log p(eta, y) but for a
constant. Variational factors are moved by `natural`.
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
    """Rows with targets, scored by one set of classifiers, or each by the set of its owner."""

    features: Tensor  # a [N, P]
    targets: Tensor  # y [N, C], NaN where one is missing
    loss: Loss
    weight_scale: float  # nu
    row_weights: Tensor | None = None  # r [N] > 0; None: each row counts once
    owner: Tensor | None = None  # [N] int64 in 0..K-1; None: K is 1
    num_owners: int = 1  # K
    source: Spread | None = None  # of the rows, which knows their `span`; None: they ask

    # of split-merge proposals: steps of a fit by which they are screened, 0: by the family alone; and how many of them
    # divide two blocks anew, which the scans do well where a row is scored by its own component alone
    num_rough: ClassVar[int] = 0
    redivided: ClassVar[float] = 0.0
    compiled: ClassVar[None] = None  # the rows of hyperplanes that score all of them, as compiled code takes them

    @property
    def num_scores(self) -> int:
        """C."""
        return self.targets.shape[1]

    def scores(self, weights: Tensor) -> Tensor:
        """f [N, C] under weights [K, P, C]."""
        if self.owner is None:
            return self.features @ weights[0]
        return own_scores(self.features, weights, self.owner)

    def counted(self, values: Tensor) -> Tensor:
        """What belongs to the rows, [N, C], times their weights."""
        return values if self.row_weights is None else values * self.row_weights.to(values.dtype).unsqueeze(1)

    @cached_property
    def span(self) -> tuple[int, int]:
        """Where the rows start among those of all ranks, and how many all are."""
        return span(len(self.features)) if self.source is None else self.source.span

    def together(self, tilt: Tensor) -> tuple[Scored, Tensor]:
        """The same with the rows of all ranks, and the tilts of these, from those [N, C] that are here."""
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
        """The numbers of the rows that each set of classifiers scores, K times [N_k]."""
        if self.owner is None:
            return [torch.arange(len(self.features), device=self.features.device)]
        return rows_of_owners(self.owner, self.num_owners)

    # -- blocks of rows, with a set of classifiers each ----------------------------------------------------------------

    def within(self, rows: Tensor) -> Scored:
        """What the classifiers of blocks that are made of some rows [B] see: these rows."""
        return Scored(self.features[rows], self.targets[rows], self.loss, self.weight_scale)

    def spread(self, shares: Tensor, rows: Tensor) -> Tensor:
        """Shares [N, K] of blocks in all rows that they see, from their shares [B, K] in the rows that they are made
        of."""
        return shares

    def factors(self, scores: Tensor, shares: Tensor, rows: slice = slice(None)) -> Tensor:
        """What rows [n] say of blocks by their shares [n, K] in them, r log phi(y_n | f_nk): [..., n, K, C], or
        [..., n, K, 1] where classes meet, of scores [..., n, K, C]."""
        return shares.unsqueeze(-1) * self.loss.log_factor(scores, self.targets[rows].unsqueeze(1))

    # -- the density, and the cost that is minus its logarithm --------------------------------------------------------

    def cost(self, weights: Tensor, scores: Tensor) -> Tensor:
        """|eta|^2 / (2 nu^2) - sum_n r_n log phi, [K, C] float64, of weights [K, P, C] and their scores [N, C]; [K, 1]
        where the scores of all classes meet in one factor."""
        return self.cost_later(weights, scores)()

    def cost_later(self, weights: Tensor, scores: Tensor) -> Callable[[], Tensor]:
        """The same [K, C], known with the next sum over all ranks."""
        losses, ridge = Later(self._losses(scores)), self._ridge(weights)
        return lambda: losses() + ridge

    def costs(self, options: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor]]:
        """Weights [K, P, C] with their scores [N, C], and their cost [K, C]; among ranks of all in one exchange, at
        once."""
        if ranks() is None:
            return ((each, self.cost(*each)) for each in options)
        known = list(options)
        sums = all_sums(*(self._losses(scores) for _, scores in known))
        return ((each, total + self._ridge(each[0])) for each, total in zip(known, sums, strict=True))

    def _losses(self, scores: Tensor) -> Tensor:
        """- sum_n r_n log phi [K, C] of scores [N, C], over the rows of this rank."""
        return self._sums(self.counted(-self.loss.log_factor(scores, self.targets)))

    def _ridge(self, weights: Tensor) -> Tensor:
        """|eta|^2 / (2 nu^2) [K, C] of weights [K, P, C]; [K, 1] where the scores of all classes meet in one factor."""
        ridge = weights.double().square().sum(1) / (2 * self.weight_scale**2)
        return ridge.sum(1, keepdim=True) if self.loss.meets else ridge

    def value(self, weights: Tensor) -> Tensor:
        """The cost [K, C] of weights [K, P, C]."""
        return self.cost(weights, self.scores(weights))

    def told(self, weights: Tensor, *, relative: bool = False) -> Tensor:
        """What the rows of this rank say of weights [K, P, C], whose sum over all ranks `log_density` takes: [K, C]."""
        if not weights.shape[2]:
            return weights.new_zeros(len(weights), 0, dtype=torch.float64)
        return self._losses(self.scores(weights))

    def log_density(self, weights: Tensor, told: Tensor | None = None, *, relative: bool = False) -> Tensor:
        """log p(eta, y) [] float64 of weights [K, P, C], given what all rows have `told` [K, C]; None: not known.

        Of `RepellingHyperplanes` it may be `relative`.
        """
        if not weights.shape[2]:
            return weights.new_zeros((), dtype=torch.float64)
        told = all_sum(self.told(weights)) if told is None else told
        return log_prior(torch.zeros_like(weights), self.weight_scale).sum() - (told + self._ridge(weights)).sum()

    def log_likelihood(self, weights: Tensor, which: Tensor) -> Tensor:
        """Sums [..., M] float64 of log phi over the rows of some sets of classifiers [M], were they weights
        [..., M, P, C]."""
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
        """Sums [K, C] float64 over the rows of each owner, of values [N, C]; the host waits for no device."""
        if self.owner is None:
            return values.sum(0, keepdim=True, dtype=torch.float64)
        if not host.on_cpu(values):
            members = self.owner.unsqueeze(1) == torch.arange(self.num_owners, device=values.device)
            return members.double().T @ values.double()
        columns = [torch.bincount(self.owner, column, self.num_owners) for column in values.double().T]
        if not columns:
            return values.new_zeros(self.num_owners, 0, dtype=torch.float64)
        return torch.stack(columns, 1).double()  # of no rows bincount counts in whole numbers

    # -- given pseudo-observations, a ridge regression -----------------------------------------------------------------

    def posteriors(self, observed: PseudoObservation) -> Iterator[Ridge | RowRidge]:
        """N(A^-1 B, A^-1) of the sets of classifiers given precision and shift [N, C] of the scores, of all at once or
        of some after others; the prior where a set scores no row."""
        if self.owner is None and not in_row_space(*self.features.shape):
            return iter([Ridge.of_natural(*soft_natural(*self._shared(observed), weight_scale=self.weight_scale))])
        precision, shift = map(self.counted, observed)
        return ridges_of_owners(self.features, precision, shift, self.rows(), self.weight_scale)

    def means(self, observed: PseudoObservation) -> Tensor:
        """The means [K, P, C] of `posteriors` alone."""
        if self.owner is None:
            return soft_means(*self._shared(observed), weight_scale=self.weight_scale)
        precision, shift = map(self.counted, observed)
        return owner_means(self.features, precision, shift, self.rows(), self.weight_scale)

    def _shared(self, observed: PseudoObservation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features, precision and shift [N, 1, C] and row weights [N, 1] of rows that one set of classifiers scores."""
        precision, shift = (part.unsqueeze(1) for part in observed)
        return self.features, precision, shift, self.counted(torch.ones_like(self.features[:, :1]))

    # -- draws ---------------------------------------------------------------------------------------------------------

    def draw(self, weights: Tensor, generator: torch.Generator) -> Tensor:
        """New classifiers [K, P, C] given these; blocks of scores take turns."""
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
        """Classifiers [K, P, C] from their `posteriors`."""
        return torch.cat([law.draw(generator) for law in self.posteriors(observed)])

    def observe(self, weights: Tensor, columns: slice, generator: torch.Generator) -> PseudoObservation:
        """Pseudo-observations [N, C'] of the scores in some columns, at a draw of omega given weights [K, P, C]."""
        scores = self.scores(weights)
        reference = self.loss.reference(scores, self.targets, columns)
        observed = self.loss.augment(scores[:, columns] - reference, self.targets[:, columns], own_stream(generator))
        return PseudoObservation(observed.precision, observed.shift + observed.precision * reference)

    def slide(self, weights: Tensor, generator: torch.Generator, *, num_steps: int = 1) -> Tensor:
        """Classifiers [K, P, C] after elliptical slice steps, those of a component in one piece."""
        return elliptical_slice(weights, self.weight_scale, self.log_likelihood, generator, num_steps=num_steps)


@dataclass(frozen=True, eq=False)
class RepellingHyperplanes:
    """Hyperplanes [K, P, 1] that score all rows, each with a sign: +1 for the rows of its component, else -1.

    A row whose label is below 0 is of no component.
    """

    features: Tensor  # [N, P]
    loss: Loss
    weight_scale: float  # nu
    owners: Tensor  # [N] int64
    num_rows: int | None = None  # N of all ranks; None: they are counted when they are needed

    num_scores: ClassVar[int] = 1
    num_rough: ClassVar[int] = 2  # as in `Scored`
    redivided: ClassVar[float] = 1 / 3

    @cached_property
    def compiled(self) -> Any:
        """As in `Scored`; None on a GPU, among ranks, of many features, and of a loss without a compiled form."""
        num_features, (loss, power) = self.features.shape[1], self.loss.untempered
        if not host.on_cpu(self.features) or ranks() is not None or in_row_space(0, num_features):
            return None
        if (form := compiled_loss(loss)) is None:
            return None
        from . import _numba_hyperplanes  # compiles or loads machine code: only where it is needed

        columns = self.features.double().T.contiguous().numpy()
        return _numba_hyperplanes.Rows(columns, form, power, self.weight_scale**-2)

    def within(self, rows: Tensor) -> RepellingHyperplanes:
        """What the hyperplanes of blocks that are made of some rows [B] see: all rows."""
        return self

    def spread(self, shares: Tensor, rows: Tensor) -> Tensor:
        """As in `Scored`: blocks have no share in other rows."""
        return shares.new_zeros(len(self.features), shares.shape[1]).index_copy(0, rows, shares)

    def factors(self, scores: Tensor, shares: Tensor, rows: slice = slice(None)) -> Tensor:
        """As in `Scored`: (1 - r) log phi(-1 | f_nk) + r log phi(+1 | f_nk), [..., n, K, 1]."""
        if shares.dtype == torch.bool:
            return self.loss.log_factor(scores, (2 * shares.to(scores) - 1).unsqueeze(-1))
        other, own = (self.loss.log_factor(scores, scores.new_tensor(side)) for side in (-1.0, 1.0))
        return torch.lerp(other, own, shares.unsqueeze(-1).to(own))

    def draw(self, weights: Tensor, generator: torch.Generator) -> Tensor:
        """New hyperplanes [K, P, 1]. For each hyperplane without rows an elliptical slice step follows: a draw given
        omega moves it by about (c N)^(-1/2), while its law is about nu wide where many rejected rows keep their margin.
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
        """A block of hyperplanes after the other: given the rows they are independent."""
        if not self.loss.is_augmented:
            return self.slide(weights, generator, num_steps=_NUM_STEPS)
        number = all_count(len(self.features)) if self.num_rows is None else self.num_rows
        step = max(1, _PAIRS // max(1, number))
        labels = torch.arange(len(weights), device=weights.device).split(step)
        return torch.cat([self._of(own, weights[own], generator) for own in labels])

    def _of(self, labels: Tensor, weights: Tensor, generator: torch.Generator) -> Tensor:
        """Those [B, P, 1] with some labels [B]."""
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
        """The hyperplanes with these labels [B] as the scores of one set of classifiers [1, P, B]."""
        return Scored(self.features, sides(self.owners, labels, self.features), self.loss, self.weight_scale)

    def slide(self, weights: Tensor, generator: torch.Generator, *, num_steps: int = 1) -> Tensor:
        """Hyperplanes [K, P, 1] after elliptical slice steps, each its own."""
        if self.compiled is not None:
            for _ in range(num_steps):
                weights = self._turned(weights, generator)
            return weights
        return elliptical_slice(weights, self.weight_scale, self.log_likelihood, generator, num_steps=num_steps)

    def _turned(self, weights: Tensor, generator: torch.Generator) -> Tensor:
        """Hyperplanes after one step. Scores turn as hyperplanes do, so that one product with the rows serves all
        angles."""
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
        """As in `Scored`: [K], of relative hyperplanes []."""
        if relative:
            own = own_scores(self.features, weights, self.owners)
            accepts, rejects = (self.loss.log_factor(own, own.new_tensor(side)) for side in (1.0, -1.0))
            return (accepts - rejects).sum(dtype=torch.float64)
        with among(None):
            return self.log_likelihood(weights, torch.arange(len(weights), device=weights.device))

    def log_density(self, weights: Tensor, told: Tensor | None = None, *, relative: bool = False) -> Tensor:
        """log density [] float64 of hyperplanes [K, P, 1] with the factors of all rows, given what these have `told`.

        Those of an infinite model are `relative` to the law of a hyperplane without rows, whose normalizer nobody
        knows: they then count through the factors of their own rows alone.
        """
        told = all_sum(self.told(weights, relative=relative)) if told is None else told
        return told if relative else told.sum() + log_prior(weights, self.weight_scale).sum()

    def log_likelihood(self, weights: Tensor, which: Tensor) -> Tensor:
        """Sums [..., M] float64 of log phi over all rows, were the hyperplanes `which` [M] weights [..., M, P, 1]."""
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
    """Who scores whom in a mixture, or a chain of states, whose points have these labels [N]: each component its own
    points, unless the model is one of `Hyperplanes`."""
    loss, nu = model.loss, model.weight_scale
    return Scored(points.features, points.targets, loss, nu, owner=labels, num_owners=num_components)


@classifiers_of.register
def hyperplanes_of(model: Hyperplanes, points: Data, labels: Tensor, num_components: int) -> RepellingHyperplanes:
    """The same where each hyperplane scores all points, whatever their labels [N]."""
    return RepellingHyperplanes(points.features, model.loss, model.weight_scale, labels, points.span[1])


def log_prior(weights: Tensor, weight_scale: float) -> Tensor:
    """log N(eta; 0, nu^2 I) [...] float64 of classifiers [..., P, C]."""
    square = (weights.double() / weight_scale).square().sum((-2, -1))
    return -(square + weights.shape[-2:].numel() * math.log(2 * math.pi * weight_scale**2)) / 2


def sides(owners: Tensor, labels: Tensor, like: Tensor) -> Tensor:
    """+1 where a row [N] is of a label [B], else -1: [N, B] in the dtype of another tensor."""
    return torch.where(owners.unsqueeze(1) == labels, 1.0, -1.0).to(like)


def own_scores(features: Tensor, weights: Tensor, owner: Tensor) -> Tensor:
    """Scores [N, C] of rows [N, P] under the classifiers [K, P, C] of their owners [N]; on a CPU compiled."""
    if not host.on_cpu(features):
        return linear.own_scores(features, weights, owner)
    from . import _numba_scores  # compiles or loads machine code: only where it is needed

    (N, P), K = features.shape, len(weights)
    if weights.shape[1] != P or len(owner) != N or (N and not 0 <= int(owner.min()) <= int(owner.max()) < K):
        raise IndexError(
            f"{len(owner)} owners of {N} rows do not fit {K} classifiers."
        )  # compiled code would not notice
    found = features.new_empty(N, weights.shape[2])
    arrays = features.contiguous(), weights.mT.contiguous(), owner, found
    _numba_scores.own_scores(*(array.numpy() for array in arrays))
    return found


_PAIRS = 2**22  # of a row and a hyperplane, in memory at a time
_NUM_STEPS = 3  # an ellipse step moves less than a draw given omega
