"""The rules of SVI for labels: their terms of the bound, and the updates of q(eta).

"gibbs"      the natural rule: E of the loss, by the bound of `Loss.expect`; q(eta) = N(mu, V) has a learnt covariance
"averaging"  the loss of the expected scores, g = -log phi; q(eta) = N(mu, nu^2 I), whose mean solves an SVM

"averaging" is the rule of Zhu, Chen & Xing (2011, 2014): docs/derivations/regbayes.md. Both rules take the `Evidence`
of rows, with expected `features` [N, P]. Each structure adds the labels' terms for its own latent variables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from ...models.losses import Loss
from ..classifiers.minimum import DualLimits, estimate, slopes, solved
from ..classifiers.natural import Evidence, prior
from ..classifiers.ridge import Ridge
from ..classifiers.scored import Scored
from ..distributed.collectives import all_sum

LAST_GAP = 1e-9  # relative duality gap at the end of a fit


class Learned(NamedTuple):
    """q(eta) of K sets of C classifiers, and the start of the next dual."""

    mean: Tensor  # [K, P, C]
    precision_tril: Tensor  # [K, C, P, P]; [K, 0, P, P] if the covariance is that of the prior
    tilt: Tensor  # [N, C] dual variables; [0, C] if there is no dual
    gap: Tensor  # [] float64, relative duality gap of the last dual; NaN if there was none

    @property
    def q(self) -> Ridge:
        """N(mu, V)."""
        return Ridge(self.mean, self.precision_tril)

    @property
    def solved(self) -> dict[str, Tensor]:
        """The draws' entry of the last dual's gap []; empty if there was no dual."""
        return {} if self.gap.isnan() else {"duality_gap": self.gap}


class Rule(Protocol):
    """A rule of SVI: the labels' terms of the bound, and the updates of the classifiers."""

    name: ClassVar[str]
    has_dual: ClassVar[bool]  # whether q(eta) is found up to a duality gap, which the end of a fit closes

    def require(self, loss: Loss) -> None:
        """Raise NotImplementedError, with a remedy, unless the loss has what the rule needs."""

    def prior(self, num_sets: int, num_features: int, num_scores: int, weight_scale: float, like: Tensor) -> Ridge:
        """q(eta) = N(0, nu^2 I) with means [K, P, C]."""

    def update(self, said: Evidence, old: Learned, *limits: DualLimits) -> Learned:
        """Set q(eta) to its optimum; a dual is solved within the first of `limits` that improves on `old`."""

    def step(self, said: Evidence, old: Learned, rho: float) -> Learned:
        """Take a step of q(eta) of size rho towards the optimum for the rows of a minibatch."""

    def bound(self, said: Evidence, old: Learned) -> Tensor:
        """The labels' terms of the bound, and those of q(eta), [] float64."""


@dataclass(frozen=True)  # equal in every process, since rules are keys of dictionaries
class Natural:
    """The expected loss, for losses with `expect`; natural-gradient steps."""

    name: ClassVar[str] = "gibbs"
    has_dual: ClassVar[bool] = False

    def require(self, loss: Loss) -> None:
        """Require `expect` of the loss."""
        if not loss.has_expectation:
            loss.expect(*torch.zeros(3, 1))

    def prior(self, num_sets: int, num_features: int, num_scores: int, weight_scale: float, like: Tensor) -> Ridge:
        """With means [K, P, C] and precisions [K, C, P, P]."""
        return prior(num_sets, num_features, num_scores, weight_scale, like)

    def update(self, said: Evidence, old: Learned, *limits: DualLimits) -> Learned:
        """V^-1 = I / nu^2 + sum_n r_n u_n E[a_n a_n^T],  mu = V sum_n r_n b_n E a_n, with (u, b) by `expect`."""
        return self.step(said, old, 1.0)

    def step(self, said: Evidence, old: Learned, rho: float) -> Learned:
        """Move V^-1 and V^-1 mu by rho."""
        q = said.step(old.q, rho)
        return old._replace(mean=q.mean, precision_tril=q.precision_tril)

    def bound(self, said: Evidence, old: Learned) -> Tensor:
        """The bound of the expected log factors, minus KL(q(eta) || p(eta)), []."""
        return said.bound(old.q)


@dataclass(frozen=True)
class Averaging:
    """The loss of expected scores, for convex losses with a conjugate; SVMs and subgradient steps."""

    name: ClassVar[str] = "averaging"
    has_dual: ClassVar[bool] = True

    def require(self, loss: Loss) -> None:
        """Require a conjugate of the loss."""
        if loss.target == "level":
            raise NotImplementedError(
                f"loss is {loss!r}, in which a score meets several thresholds: its convex conjugate, which "
                'SVI(rule="averaging") needs, is not known. Take rule="gibbs", Gibbs or SmallVariance, or a target '
                "other than Ordinal()."
            )
        if not loss.has_conjugate:
            loss.conjugate(*torch.zeros(2, 1))

    def prior(self, num_sets: int, num_features: int, num_scores: int, weight_scale: float, like: Tensor) -> Ridge:
        """With means [K, P, C] and no precisions, [K, 0, P, P]."""
        q = prior(num_sets, num_features, num_scores, weight_scale, like)
        return Ridge(q.mean, q.precision_tril[:, :0])

    def update(self, said: Evidence, old: Learned, *limits: DualLimits) -> Learned:
        """Solve the SVM on the expected features; its cost is no higher than before."""
        once = said.row_weights is None or (said.row_weights == 1).all()
        return by_dual(replace(said, row_weights=None) if once else said, old, *limits)

    def step(self, said: Evidence, old: Learned, rho: float) -> Learned:
        """mu <- (1 - rho) mu + rho nu^2 sum_n r_n a_n t_n, t = -(gradient of the loss): a subgradient step."""
        tilt = said.counted(slopes(said.loss, said.scores(old.mean), said.targets))
        target = said.weight_scale**2 * all_sum(said.features.T @ tilt)
        return old._replace(mean=torch.lerp(old.mean, target.unsqueeze(0), rho))

    def bound(self, said: Evidence, old: Learned) -> Tensor:
        """Minus the losses of expected scores and the ridge |mu|^2 / (2 nu^2) of the means, []."""
        return -said.value(old.mean).sum()


def by_dual(cost: Scored, old: Learned, *limits: DualLimits) -> Learned:
    """Means [K, P, C] of the SVM, from the old tilts [N, C]; a further one of `limits` if none has improved yet."""
    fit = start = estimate(cost, old.mean, old.tilt if len(old.tilt) else None)
    for each in limits:
        fit = solved(cost, fit, each)
        if fit.cost.sum() < start.cost.sum():
            break
    return old._replace(mean=fit.weights, tilt=fit.tilt, gap=fit.gap)


NATURAL, AVERAGING = Natural(), Averaging()
RULES: dict[str, Rule] = {rule.name: rule for rule in (NATURAL, AVERAGING)}
