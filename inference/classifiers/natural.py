"""The Gaussian factors of classifiers, for every structure: expected pseudo-observations, then a natural-gradient step.

    q(eta_kc) = N(A^-1 B, A^-1),  A_kc = I / nu^2 + sum_n r_nk omega_nkc E[a_n a_n^T],  B_kc = sum_n r_nk beta_nkc E a_n

a_n is what classifiers see of row n, r_nk says how often it counts for classifier k, and (omega, beta) is `Loss.expect`
at the mean and variance of the score under q as it is. A and B move by rho towards these sums; rho = 1 is the optimum.
Where memberships are probabilities, rows stand on one side (`OwnSide`), or also on the negative side of the classifiers
that they do not belong to (`BothSides`). Elsewhere who scores whom is known: rows are `Evidence`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...models.base import Model
from ...models.losses.base import Loss, PseudoObservation
from ..distributed.collectives import all_sum
from .ridge import Ridge, is_sparse, moments_and_sums, soft_sums, with_prior
from .scored import Scored


def moments_of(features: Tensor, variance: Tensor | None, q: Ridge) -> tuple[Tensor, Tensor]:
    """Mean and variance, each [N, K, C], of the scores of rows with features E a [N, P], as `Evidence` has them."""
    mean, spread = q.moments(features)
    if variance is None:
        return mean, spread
    return mean, spread + torch.einsum("nb,kbc->nkc", variance, q.squares[:, : variance.shape[1]])


def sums_of(
    features: Tensor, variance: Tensor | None, precision: Tensor, shift: Tensor, times: Tensor
) -> tuple[Tensor, Tensor]:
    """The sums over rows in A [K, C, P, P] and B [K, P, C], of omega and beta [N, K, C] and r [N, K]."""
    gram, linear = soft_sums(features, precision, shift, times)
    if variance is not None:
        spread = torch.einsum("nkc,nb->kcb", times.unsqueeze(2) * precision, variance)
        gram.diagonal(dim1=-2, dim2=-1)[..., : variance.shape[1]].add_(spread)
    return gram, linear


# -- what is expected of the scores ------------------------------------------------------------------------------------


class OwnSide(NamedTuple):
    """What classifiers expect of N rows that count for those that they belong to."""

    observed: PseudoObservation  # [N, K, C]
    gain: Tensor  # [N, K] bound of E log phi(y | f)
    rejection: Tensor  # [N] what no membership changes

    @classmethod
    def expect(
        cls,
        features: Tensor,
        q: Ridge,
        targets: Tensor,
        loss: Loss,
        log_weights: Tensor | None = None,
        loss_weights: Tensor | None = None,
    ) -> OwnSide:
        """Of rows with features [N, P], at targets [N, C]; NaN for a `Masked` loss.

        loss_weights : c [N] or None, for factors phi^c: pseudo-observations of c times the precision, and c times the
            bound, which stays one
        log_weights : [N, K] or None, what else tells how rows divide among the components. Those that no gain can give
            a share of e^-40 of a row have a gain of -inf, and their scores are not looked at.
        """
        y = targets.T.contiguous().T.unsqueeze(1)  # rows last in memory, as scores are
        mean = q.score_mean(features)
        asked = None if log_weights is None else _asked(features, q, mean, y, loss, log_weights, loss_weights)
        observed, bound = loss.expect_with_bound(mean, q.score_variance(features, asked), y)
        if loss_weights is not None:
            times = loss_weights.to(mean).view(-1, 1, 1)
            observed, bound = PseudoObservation(*(times * part for part in observed)), times * bound
        whole, gain = PseudoObservation(*(part.expand_as(mean) for part in observed)), bound.sum(-1)
        gain = gain if asked is None else gain.masked_fill(~asked, -torch.inf)
        return cls(whole, gain, gain.new_zeros(len(gain)))

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
    def expect(
        cls,
        features: Tensor,
        q: Ridge,
        targets: Tensor,
        loss: Loss,
        log_weights: Tensor | None = None,
        loss_weights: Tensor | None = None,
    ) -> BothSides:
        """Of rows with features [N, P], on both sides of every hyperplane; targets and weights are not read."""
        mean, variance = q.moments(features)
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


def _asked(
    features: Tensor,
    q: Ridge,
    mean: Tensor,
    y: Tensor,
    loss: Loss,
    log_weights: Tensor,
    loss_weights: Tensor | None,
) -> Tensor | None:
    """The pairs [N, K] of rows and components that may get a share, given that no gain is above 0; None if these are
    most of them.

    The largest weight [N, 1] of a row, with its gain, is what the others are compared with.
    """
    largest, first = log_weights.max(1, keepdim=True)
    if not is_sparse(features, log_weights > largest - _NO_SHARE):
        return None
    one = torch.zeros_like(log_weights, dtype=torch.bool).scatter_(1, first, True)
    place = first.unsqueeze(2).expand(-1, -1, mean.shape[2])
    moments = mean.gather(1, place), q.score_variance(features, one).gather(1, place)
    gain = loss.expected_log_factor(*moments, y).sum(-1)
    gain = gain if loss_weights is None else gain * loss_weights.to(gain).unsqueeze(1)
    asked = log_weights > largest + gain - _NO_SHARE
    return asked if is_sparse(features, asked) else None


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
    """q(eta) a step of size rho towards the optimum for sums in A [K, C, P, P] and B [K, P, C] (`sums_of`)."""
    natural = with_prior(*sums, weight_scale)
    return Ridge.of_natural(*natural) if rho == 1.0 else q.towards(natural, rho)


def extrapolated(q: Ridge, weight_scale: float, scale: float) -> Ridge:
    """q(eta) as if each row had counted `scale` times as often."""
    gram, linear = q.natural
    gram = scale * gram
    gram.diagonal(dim1=-2, dim2=-1).add_((1 - scale) / weight_scale**2)
    return Ridge.of_natural(gram, scale * linear)


@dataclass(frozen=True, eq=False)
class Evidence(Scored):
    """What rows say of a variational factor of their classifiers: `Scored` at expected features E a [N, P].

    The first B features may be independent variables: E[a a^T] = E a E a^T + diag(Var a).
    """

    variance: Tensor | None = None  # Var a [N, B]; None: all features are known

    def moments(self, q: Ridge) -> tuple[Tensor, Tensor]:
        """Mean and variance, each [N, C], of the scores."""
        if self.owner is None:
            mean, variance = moments_of(self.features, self.variance, q)
            return mean.squeeze(1), variance.squeeze(1)
        found = self.features.new_empty(2, *self.targets.shape)
        for k, rows in enumerate(self.rows()):
            found[:, rows] = torch.stack(moments_of(*self._seen(rows), q[[k]])).squeeze(2)
        return found[0], found[1]

    def expected(self, moments: tuple[Tensor, Tensor]) -> PseudoObservation:
        """Expected pseudo-observations [N, C] at moments of the scores."""
        observed = self.loss.expect(*moments, self.targets)
        return PseudoObservation(*(part.expand_as(moments[0]) for part in observed))

    def sums(self, observed: PseudoObservation) -> tuple[Tensor, Tensor]:
        """Of A [K, C, P, P] and B [K, P, C], of pseudo-observations [N, C]."""
        parts = [part.unsqueeze(1) for part in observed]
        parts.append(self.counted(torch.ones_like(self.features[:, :1])))
        if self.owner is None:
            return sums_of(self.features, self.variance, *parts)
        found = [sums_of(*self._seen(rows), *(part[rows] for part in parts)) for rows in self.rows()]
        gram, linear = (torch.cat(each) for each in zip(*found, strict=True))
        return gram, linear

    def _seen(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.features[rows], None if self.variance is None else self.variance[rows]

    def step(self, q: Ridge, rho: float = 1.0, moments: tuple[Tensor, Tensor] | None = None) -> Ridge:
        """The natural step from q(eta), at its moments of the scores [N, C]: rho = 1 does not lower the bound."""
        observed = self.expected(self.moments(q) if moments is None else moments)
        return natural_step(q, self.sums(observed), self.weight_scale, rho)

    def step_with_moments(self, q: Ridge, rho: float = 1.0) -> tuple[Ridge, tuple[Tensor, Tensor]]:
        """The natural step of classifiers that all rows count for, by known features, and the moments of the scores
        [N, C] before it."""
        each = self.counted(torch.ones_like(self.features[:, :1]))

        def observe(rows: slice, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            observed = self.loss.expect(mean, variance, self.targets[rows].unsqueeze(1))
            precision, shift = (part.expand_as(mean) for part in observed)
            return precision, shift, each[rows]

        mean, variance, sums = moments_and_sums(q, self.features, observe)
        return natural_step(q, sums, self.weight_scale, rho), (mean.squeeze(1), variance.squeeze(1))

    def bound(self, q: Ridge, moments: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """sum_n r_n E log phi, by its bound, less KL(q(eta) || p(eta)), [] float64."""
        mean, variance = self.moments(q) if moments is None else moments
        each = self.counted(self.loss.expected_log_factor(mean, variance, self.targets))
        return all_sum(each.sum(dtype=torch.float64)) - q.kl(self.weight_scale).sum(dtype=torch.float64)


_NO_SHARE = 40.0  # nats: shares below e^-40 are lost in rounding
