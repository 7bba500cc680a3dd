"""Gaussian variational factors of classifiers for every structure, updated by natural-gradient steps.

    q(eta_kc) = N(A^-1 B, A^-1),  A_kc = I / nu^2 + sum_n r_nk omega_nkc E[a_n a_n^T],  B_kc = sum_n r_nk beta_nkc E a_n

a_n are the features of row n that classifiers see. r_nk says how often row n counts for classifier k. The
pseudo-observation (omega, beta) is `Loss.expect` at the mean and variance of the score under the present q. A and B
move by a step of size rho towards these sums; rho = 1 goes to the optimum.

Where component memberships are probabilities, a row counts for the classifiers of its components alone (`OwnSide`), or
also as a negative of the hyperplanes of all other components (`BothSides`). Where the memberships are known, rows are
`Evidence`.
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
    """Mean and variance, each [N, K, C], of the scores of rows with features E a [N, P] and Var a as in `Evidence`."""
    mean, spread = q.moments(features)
    if variance is None:
        return mean, spread
    return mean, spread + torch.einsum("nb,kbc->nkc", variance, q.squares[:, : variance.shape[1]])


def sums_of(
    features: Tensor, variance: Tensor | None, precision: Tensor, shift: Tensor, times: Tensor
) -> tuple[Tensor, Tensor]:
    """The sums over rows in A [K, C, P, P] and B [K, P, C], from omega and beta [N, K, C] and r [N, K] (`times`)."""
    gram, linear = soft_sums(features, precision, shift, times)
    if variance is not None:
        spread = torch.einsum("nkc,nb->kcb", times.unsqueeze(2) * precision, variance)
        gram.diagonal(dim1=-2, dim2=-1)[..., : variance.shape[1]].add_(spread)
    return gram, linear


# -- expected pseudo-observations --------------------------------------------------------------------------------------


class OwnSide(NamedTuple):
    """Expected pseudo-observations of N rows that count for the classifiers of their own component alone."""

    observed: PseudoObservation  # [N, K, C]
    gain: Tensor  # [N, K] lower bound of E log phi(y | f)
    rejection: Tensor  # [N], the part of the bound that memberships do not change

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
        """Expected pseudo-observations of rows with features [N, P] at targets [N, C]; NaN for a `Masked` loss.

        loss_weights : c [N] or None, for factors phi^c: precisions, shifts and bounds are multiplied by c
        log_weights : [N, K] or None, the other terms of log r_nk. Where no gain could raise a share above e^-40, the
            gain is -inf and the score is not computed.
        """
        y = targets.T.contiguous().T.unsqueeze(1)  # contiguous along the rows, as scores are
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
        """How often each row counts for each classifier [N, K], given memberships r [N, K]."""
        return r

    def times(self, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Precision and shift [N, K, C], and how often each row counts [N, K], given memberships r [N, K]."""
        return *self.observed, r


class BothSides(NamedTuple):
    """Expected pseudo-observations of N rows for repelling hyperplanes: positive with weight r, else negative."""

    positive: PseudoObservation  # [N, K, C]
    negative: PseudoObservation  # [N, K, C]
    gain: Tensor  # [N, K] bound of E log phi(+1 | f) minus that of E log phi(-1 | f)
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
        """Expected pseudo-observations of rows with features [N, P]; targets and weights are not read."""
        mean, variance = q.moments(features)
        one = torch.ones_like(mean)
        positive, accepted = loss.expect_with_bound(mean, variance, one)
        negative, rejected = loss.expect_with_bound(mean, variance, -one)
        rejection = rejected.sum(-1)
        return cls(positive, negative, accepted.sum(-1) - rejection, rejection.sum(-1))

    @staticmethod
    def counted(r: Tensor) -> Tensor:
        """Each row counts once for each hyperplane, whatever its memberships [N, K]."""
        return torch.ones_like(r)

    def times(self, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Precision and shift [N, K, C], averaged over both sides by the memberships r [N, K], and counts [N, K]."""
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
    """The pairs [N, K] of rows and components that may get a share above e^-40, given that no gain exceeds 0.

    Each is compared with the component of largest weight of its row, whose gain is computed. None if most pairs
    qualify.
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
    """`BothSides` for a model whose hyperplanes repel the rows of other components, `OwnSide` for any other model."""
    return BothSides if model.repels else OwnSide


# -- natural-gradient steps --------------------------------------------------------------------------------------------


def prior(num_components: int, num_features: int, num_scores: int, weight_scale: float, like: Tensor) -> Ridge:
    """The prior N(0, nu^2 I) as a factor [K, P, C], in the dtype and on the device of `like`."""
    K, P, C = num_components, num_features, num_scores
    identity = torch.eye(P, dtype=like.dtype, device=like.device)
    return Ridge(like.new_zeros(K, P, C), (identity / weight_scale).expand(K, C, P, P))


def natural_step(q: Ridge, sums: tuple[Tensor, Tensor], weight_scale: float, rho: float = 1.0) -> Ridge:
    """A natural-gradient step of size rho towards the optimum for the sums in A [K, C, P, P] and B [K, P, C]."""
    natural = with_prior(*sums, weight_scale)
    return Ridge.of_natural(*natural) if rho == 1.0 else q.towards(natural, rho)


def extrapolated(q: Ridge, weight_scale: float, scale: float) -> Ridge:
    """The factor that results if each row counts `scale` times as often."""
    gram, linear = q.natural
    gram = scale * gram
    gram.diagonal(dim1=-2, dim2=-1).add_((1 - scale) / weight_scale**2)
    return Ridge.of_natural(gram, scale * linear)


@dataclass(frozen=True, eq=False)
class Evidence(Scored):
    """Rows with known owners for variational factors of their classifiers: `Scored` at expected features E a [N, P].

    The first B features may be independent random variables: E[a a^T] = E a E a^T + diag(Var a).
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
        """Expected pseudo-observations [N, C], given the mean and variance of the scores."""
        observed = self.loss.expect(*moments, self.targets)
        return PseudoObservation(*(part.expand_as(moments[0]) for part in observed))

    def sums(self, observed: PseudoObservation) -> tuple[Tensor, Tensor]:
        """The sums over rows in A [K, C, P, P] and B [K, P, C], of pseudo-observations [N, C]."""
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
        """The natural-gradient step from q(eta), at moments of the scores [N, C]; rho = 1 does not lower the bound."""
        observed = self.expected(self.moments(q) if moments is None else moments)
        return natural_step(q, self.sums(observed), self.weight_scale, rho)

    def step_with_moments(self, q: Ridge, rho: float = 1.0) -> tuple[Ridge, tuple[Tensor, Tensor]]:
        """The natural-gradient step of one set of classifiers, and mean and variance of the scores [N, C] before it."""
        each = self.counted(torch.ones_like(self.features[:, :1]))

        def observe(rows: slice, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            observed = self.loss.expect(mean, variance, self.targets[rows].unsqueeze(1))
            precision, shift = (part.expand_as(mean) for part in observed)
            return precision, shift, each[rows]

        mean, variance, sums = moments_and_sums(q, self.features, observe)
        return natural_step(q, sums, self.weight_scale, rho), (mean.squeeze(1), variance.squeeze(1))

    def bound(self, q: Ridge, moments: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """The lower bound of sum_n r_n E log phi, minus KL(q(eta) || p(eta)), [] float64."""
        mean, variance = self.moments(q) if moments is None else moments
        each = self.counted(self.loss.expected_log_factor(mean, variance, self.targets))
        return all_sum(each.sum(dtype=torch.float64)) - q.kl(self.weight_scale).sum(dtype=torch.float64)


_NO_SHARE = 40.0  # nats: shares below e^-40 are lost in rounding
