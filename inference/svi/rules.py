"""The rules by which a variational posterior meets the labels: what these add to the bound, and how q(eta) moves.

"gibbs"      the natural rule: E of the loss, by the bound of `Loss.expect`; q(eta) = N(mu, V), and the spread counts
"averaging"  the loss of the expected scores, g = -log phi; q(eta) = N(mu, nu^2 I), whose mean solves an SVM

The second is that of Zhu, Chen & Xing (2011, 2014): docs/derivations/regbayes.md. Either is asked with the
`Evidence` of rows, which has their expected `features` [N, P]. Structures add what the labels say of their own
latent variables.
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

LAST_GAP = 1e-9  # relative, of the dual at the end of a fit


class Learned(NamedTuple):
    """q(eta) of K sets of C classifiers, and the dual that the next one starts from."""

    mean: Tensor  # [K, P, C]
    precision_tril: Tensor  # [K, C, P, P]; [K, 0, P, P] where the spread is that of the prior
    tilt: Tensor  # [N, C]; [0, C] where there is none
    gap: Tensor  # [] float64 of the last dual, as a fraction of its objective; NaN where there was none

    @property
    def q(self) -> Ridge:
        """N(mu, V)."""
        return Ridge(self.mean, self.precision_tril)

    @property
    def solved(self) -> dict[str, Tensor]:
        """What a posterior keeps of the last dual, its gap []; nothing where there was none."""
        return {} if self.gap.isnan() else {"duality_gap": self.gap}


class Rule(Protocol):
    """A rule of SVI: what the labels add to the bound, and how the classifiers are updated."""

    name: ClassVar[str]
    has_dual: ClassVar[bool]  # q(eta) is found up to a gap, which the end of a fit closes

    def require(self, loss: Loss) -> None:
        """Raise NotImplementedError, which says what to do, unless the loss has what the rule reads of it."""

    def prior(self, num_sets: int, num_features: int, num_scores: int, weight_scale: float, like: Tensor) -> Ridge:
        """q(eta) at N(0, nu^2 I), means [K, P, C]."""

    def update(self, said: Evidence, old: Learned, *limits: DualLimits) -> Learned:
        """q(eta) at its optimum; a dual is solved to the first of the limits that makes it better than the old one."""

    def step(self, said: Evidence, old: Learned, rho: float) -> Learned:
        """q(eta) a step of size rho towards the optimum for the rows of a minibatch."""

    def bound(self, said: Evidence, old: Learned) -> Tensor:
        """What the labels and q(eta) add to the bound, [] float64."""


@dataclass(frozen=True)  # equal in every process, as the keys of tables must be
class Natural:
    """The expected loss, for losses with `expect`: natural gradients."""

    name: ClassVar[str] = "gibbs"
    has_dual: ClassVar[bool] = False

    def require(self, loss: Loss) -> None:
        """Losses with `expect`."""
        if not loss.has_expectation:
            loss.expect(*torch.zeros(3, 1))

    def prior(self, num_sets: int, num_features: int, num_scores: int, weight_scale: float, like: Tensor) -> Ridge:
        """With means [K, P, C] and precisions [K, C, P, P]."""
        return prior(num_sets, num_features, num_scores, weight_scale, like)

    def update(self, said: Evidence, old: Learned, *limits: DualLimits) -> Learned:
        """V^-1 = I / nu^2 + sum_n r_n u_n E[a_n a_n^T],  mu = V sum_n r_n b_n E a_n, with (u, b) by `expect`."""
        return self.step(said, old, 1.0)

    def step(self, said: Evidence, old: Learned, rho: float) -> Learned:
        """V^-1 and V^-1 mu move by rho."""
        q = said.step(old.q, rho)
        return old._replace(mean=q.mean, precision_tril=q.precision_tril)

    def bound(self, said: Evidence, old: Learned) -> Tensor:
        """Expected log factors, by their bound, less KL(q(eta) || p(eta)), []."""
        return said.bound(old.q)


@dataclass(frozen=True)
class Averaging:
    """The loss of expected scores, for convex losses with a conjugate."""

    name: ClassVar[str] = "averaging"
    has_dual: ClassVar[bool] = True

    def require(self, loss: Loss) -> None:
        """Losses with a conjugate."""
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
        """The SVM on the expected features; its cost is no higher than before."""
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
    """Means [K, P, C] of the SVM, its dual started at the old tilts [N, C]; the next limits only if it is no better."""
    fit = start = estimate(cost, old.mean, old.tilt if len(old.tilt) else None)
    for each in limits:
        fit = solved(cost, fit, each)
        if fit.cost.sum() < start.cost.sum():
            break
    return old._replace(mean=fit.weights, tilt=fit.tilt, gap=fit.gap)


NATURAL, AVERAGING = Natural(), Averaging()
RULES: dict[str, Rule] = {rule.name: rule for rule in (NATURAL, AVERAGING)}
