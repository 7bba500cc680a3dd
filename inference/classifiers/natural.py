"""The Gaussian factors of classifiers, for every structure: expected pseudo-observations, then a natural-gradient step.

    q(eta_kc) = N(A^-1 B, A^-1),  A_kc = I / nu^2 + sum_n r_nk omega_nkc E[a_n a_n^T],  B_kc = sum_n r_nk beta_nkc E a_n

a_n is what classifiers see of row n, r_nk says how often it counts for classifier k, and (omega, beta) is `Loss.expect`
at the mean and variance of the score under q as it is. A and B move by rho towards these sums; rho = 1 is the optimum.
Structures differ in what they hand over: their `Design`, their memberships, and whether a row also stands on the
negative side of the classifiers that it does not belong to (`BothSides`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ...models.base import Model
from ...models.losses.base import Loss, PseudoObservation
from ..distributed.collectives import all_sum
from .ridge import Ridge, soft_sums, with_prior


class Design(Protocol):
    """What classifiers see of N rows: as much of a_n as expectations need."""

    @property
    def features(self) -> Tensor:
        """E a [N, P]."""

    def moments(self, q: Ridge) -> tuple[Tensor, Tensor]:
        """Mean and variance, each [N, K, C], of the scores; [N, 1, C] where each row has classifiers of its own."""

    def sums(self, precision: Tensor, shift: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """The sums over these rows in A [K, C, P, P] and B [K, P, C], of omega and beta [N, K, C] and r [N, K]."""


@dataclass(frozen=True)
class Seen:
    """Features, of which the first B may be independent variables: E[a a^T] = E a E a^T + diag(Var a)."""

    features: Tensor  # [N, P] E a
    variance: Tensor | None = None  # [N, B]; None: all features are known

    def moments(self, q: Ridge) -> tuple[Tensor, Tensor]:
        """Each [N, K, C]; the variance is that of the features as well."""
        mean, variance = q.moments(self.features)
        if self.variance is None:
            return mean, variance
        squares = q.squares[:, : self.variance.shape[1]]
        return mean, variance + torch.einsum("nb,kbc->nkc", self.variance, squares)

    def sums(self, precision: Tensor, shift: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """Of A [K, C, P, P], with the variances on its diagonal, and B [K, P, C]."""
        gram, linear = soft_sums(self.features, precision, shift, times)
        if self.variance is not None:
            spread = torch.einsum("nkc,nb->kcb", times.unsqueeze(2) * precision, self.variance)
            gram.diagonal(dim1=-2, dim2=-1)[..., : self.variance.shape[1]].add_(spread)
        return gram, linear


@dataclass(frozen=True)
class Apart:
    """Rows in K blocks, one after another, each scored by the classifiers of its own place alone."""

    blocks: Sequence[Design]
    sizes: list[int]

    @property
    def features(self) -> Tensor:
        """E a [N, P]."""
        return torch.cat([block.features for block in self.blocks])

    @property
    def owner(self) -> Tensor:
        """The block [N] int64 of each row."""
        sizes = torch.tensor(self.sizes, device=self.features.device)
        return torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)

    def moments(self, q: Ridge) -> tuple[Tensor, Tensor]:
        """Each [N, 1, C]."""
        found = [block.moments(q[[k]]) for k, block in enumerate(self.blocks)]
        mean, variance = (torch.cat(parts) for parts in zip(*found, strict=True))
        return mean, variance

    def sums(self, precision: Tensor, shift: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """Of A [K, C, P, P] and B [K, P, C], block by block, from [N, 1, C] and [N, 1]."""
        parts = zip(self.blocks, *(part.split(self.sizes) for part in (precision, shift, times)), strict=True)
        found = [block.sums(*own) for block, *own in parts]
        gram, linear = (torch.cat(each) for each in zip(*found, strict=True))
        return gram, linear


# -- what is expected of the scores ------------------------------------------------------------------------------------


class OwnSide(NamedTuple):
    """What classifiers expect of N rows that count for those that they belong to."""

    observed: PseudoObservation  # [N, K, C]
    gain: Tensor  # [N, K] bound of E log phi(y | f)
    rejection: Tensor  # [N] what no membership changes

    @classmethod
    def expect(cls, design: Design, q: Ridge, targets: Tensor, loss: Loss) -> OwnSide:
        """At targets [N, C]; NaN for a `Masked` loss."""
        mean, variance = design.moments(q)
        y = targets.T.contiguous().T.unsqueeze(1)  # rows last in memory, as scores are
        observed, bound = loss.expect_with_bound(mean, variance, y)
        whole = PseudoObservation(*(part.expand_as(mean) for part in observed))
        return cls(whole, bound.sum(-1), bound.new_zeros(len(bound)))

    @staticmethod
    def counted(r: Tensor) -> Tensor:
        """How often each row counts for each classifier [N, K], from memberships r [N, K]."""
        return r

    def times(self, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Precision and shift [N, K, C], and how often each counts [N, K], from memberships r [N, K]."""
        return *self.observed, r


class BothSides(NamedTuple):
    """What hyperplanes that see every row expect: it is a positive with weight r, a negative with weight 1 - r."""

    positive: PseudoObservation  # [N, K, C]
    negative: PseudoObservation  # [N, K, C]
    gain: Tensor  # [N, K] bound of E log phi(+1 | f) less that of E log phi(-1 | f)
    rejection: Tensor  # [N] bound of sum_k E log phi(-1 | f)

    @classmethod
    def expect(cls, design: Design, q: Ridge, targets: Tensor, loss: Loss) -> BothSides:
        """On both sides of every hyperplane, whatever the targets."""
        mean, variance = design.moments(q)
        one = torch.ones_like(mean)
        positive, accepted = loss.expect_with_bound(mean, variance, one)
        negative, rejected = loss.expect_with_bound(mean, variance, -one)
        rejection = rejected.sum(-1)
        return cls(positive, negative, accepted.sum(-1) - rejection, rejection.sum(-1))

    @staticmethod
    def counted(r: Tensor) -> Tensor:
        """Once, whatever the memberships [N, K]."""
        return torch.ones_like(r)

    def times(self, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same, averaged over the sides, [N, K, C] and [N, K]."""
        weight, pairs = r.unsqueeze(-1), zip(self.negative, self.positive, strict=True)
        precision, shift = (negative + weight * (positive - negative) for negative, positive in pairs)
        return precision, shift, self.counted(r)


def sides_of(model: Model) -> type[OwnSide] | type[BothSides]:
    """Who scores whom: classifiers the rows of their own component, or hyperplanes that repel all rows."""
    return BothSides if model.repels else OwnSide


# -- the update --------------------------------------------------------------------------------------------------------


def prior(num_components: int, num_features: int, num_scores: int, weight_scale: float, like: Tensor) -> Ridge:
    """N(0, nu^2 I) of all classifiers, [K, P, C], in the dtype and on the device of another tensor."""
    K, P, C = num_components, num_features, num_scores
    identity = torch.eye(P, dtype=like.dtype, device=like.device)
    return Ridge(like.new_zeros(K, P, C), (identity / weight_scale).expand(K, C, P, P))


def natural_step(q: Ridge, sums: tuple[Tensor, Tensor], weight_scale: float, rho: float = 1.0) -> Ridge:
    """q(eta) a step of size rho towards the optimum for sums in A [K, C, P, P] and B [K, P, C] (`Design.sums`)."""
    natural = with_prior(*sums, weight_scale)
    return Ridge.of_natural(*natural) if rho == 1.0 else q.towards(natural, rho)


def extrapolated(q: Ridge, weight_scale: float, scale: float) -> Ridge:
    """q(eta) as if each row had counted `scale` times as often."""
    gram, linear = q.natural
    gram = scale * gram
    gram.diagonal(dim1=-2, dim2=-1).add_((1 - scale) / weight_scale**2)
    return Ridge.of_natural(gram, scale * linear)


@dataclass(frozen=True)
class Evidence:
    """What rows say of classifiers each of which scores them all, or in a design of rows `Apart` those of its own."""

    design: Design
    targets: Tensor  # [N, C]; NaN for a `Masked` loss
    loss: Loss
    weight_scale: float
    times: Tensor  # [N, 1] how often each row counts

    def observe(self, moments: tuple[Tensor, Tensor]) -> PseudoObservation:
        """Expected pseudo-observations [N, 1, C] at moments of the scores."""
        observed = self.loss.expect(*moments, self.targets.unsqueeze(1))
        return PseudoObservation(*(part.expand_as(moments[0]) for part in observed))

    def step(self, q: Ridge, rho: float = 1.0, moments: tuple[Tensor, Tensor] | None = None) -> Ridge:
        """The natural step from q(eta), at its moments of the scores [N, 1, C]: rho = 1 does not lower the bound."""
        observed = self.observe(self.design.moments(q) if moments is None else moments)
        return natural_step(q, self.design.sums(*observed, self.times), self.weight_scale, rho)

    def bound(self, q: Ridge, moments: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """sum_n r_n E log phi, by its bound, less KL(q(eta) || p(eta)), [] float64."""
        mean, variance = self.design.moments(q) if moments is None else moments
        each = self.times.unsqueeze(2) * self.loss.expected_log_factor(mean, variance, self.targets.unsqueeze(1))
        return all_sum(each.sum(dtype=torch.float64)) - q.kl(self.weight_scale).sum(dtype=torch.float64)
