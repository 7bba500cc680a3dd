"""Two rules by which a variational posterior of latent features meets the labels.

Averaging   2 c (E zeta)_+, the loss of the expected scores: q(eta) keeps the prior's covariance, its mean solves an SVM
Gibbs       E of the loss, by the bound of `Loss.expect`: q(eta) is Gaussian, its spread and the features' count

The former is Algorithm 3 of Zhu, Chen & Xing (2014) with the margin's exact optimum for each feature
(math/latent-features, section 2; math/regbayes, sections 3 and 5).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ....models.latent_features import FeatureData
from ....models.losses import Loss
from ...bits.rows import Settle
from ...classifiers.duals import joint_hinge
from ...classifiers.minimum import DualLimits, estimate, slopes, solved
from ...classifiers.natural import Evidence, Seen, prior
from ...classifiers.ridge import Ridge
from ...classifiers.scored import Scored
from ...distributed.collectives import all_sum
from ..factors import LAST_GAP
from .factors import FeatureModel, VariationalFeatures

_GAP, _MOST_PASSES = 1e-3, 1000  # of the dual in a sweep


class Rule(Protocol):
    """What a rule says: of q(eta), of the features, and of the bound."""

    def prior_tril(self, model: FeatureModel, like: Tensor, size: int, num_scores: int) -> Tensor:
        """`weights_tril` [C or 0, K + P, K + P] where q(eta) is the prior of `size` = K + P weights a score."""

    def update(
        self, state: VariationalFeatures, data: FeatureData, model: FeatureModel, scale: float = 1.0
    ) -> VariationalFeatures:
        """q(eta) at its optimum for features of rows that count `scale` times; the bound does not fall."""

    def polish(self, state: VariationalFeatures, data: FeatureData, model: FeatureModel) -> VariationalFeatures:
        """q(eta) of the last state of a fit, to rounding."""

    def step(
        self, state: VariationalFeatures, data: FeatureData, model: FeatureModel, scale: float, rho: float
    ) -> VariationalFeatures:
        """q(eta) a natural-gradient step of size rho towards the optimum of a minibatch."""

    def margin(self, state: VariationalFeatures, data: FeatureData, model: FeatureModel, psi: Tensor) -> Settle:
        """What the labels say of one feature after another, from probabilities [N, K]."""

    def bound(self, state: VariationalFeatures, data: FeatureData, model: FeatureModel, scale: float = 1.0) -> Tensor:
        """What the labels and q(eta) add to the bound, [] float64."""


class Averaging:
    """The loss of expected scores, for any convex loss; q(eta) = N(mu, nu^2 I)."""

    def prior_tril(self, model: FeatureModel, like: Tensor, size: int, num_scores: int) -> Tensor:
        """[0, K + P, K + P]: the covariance of q(eta) is that of the prior."""
        return like.new_zeros(0, size, size)

    def update(
        self,
        state: VariationalFeatures,
        data: FeatureData,
        model: FeatureModel,
        scale: float = 1.0,
        tolerance: float = _GAP,
    ) -> VariationalFeatures:
        """The SVM on psi, its dual started where the last one ended; kept if the bound does not fall."""
        counted = None if data.weights is None and scale == 1 else scale * data.row_weights.squeeze(1)
        inputs = torch.cat([state.features, data.inputs], 1)
        margins = Scored(inputs, data.targets, model.loss, model.weight_scale, counted)
        start = estimate(margins, state.weights.unsqueeze(0), state.tilt if len(state.tilt) else None)
        fit = solved(margins, start, DualLimits(tolerance, _MOST_PASSES))
        return replace(state, weights=fit.weights[0], tilt=fit.tilt, duality_gap=fit.gap)

    def polish(self, state: VariationalFeatures, data: FeatureData, model: FeatureModel) -> VariationalFeatures:
        """The SVM on psi."""
        return self.update(state, data, model, tolerance=LAST_GAP)

    def step(
        self, state: VariationalFeatures, data: FeatureData, model: FeatureModel, scale: float, rho: float
    ) -> VariationalFeatures:
        """mu <- (1 - rho) mu + rho nu^2 sum_n r_n a_n t_n, t = -(gradient of the loss): a subgradient step."""
        inputs = torch.cat([state.features, data.inputs], 1)
        tilt = data.row_weights * slopes(model.loss, inputs @ state.weights, data.targets)
        target = model.weight_scale**2 * scale * all_sum(inputs.T @ tilt)
        return replace(state, weights=torch.lerp(state.weights, target, rho))

    def margin(self, state: VariationalFeatures, data: FeatureData, model: FeatureModel, psi: Tensor) -> Settle:
        """p [N] that minimizes -H(p) - o p + loss(scores of the other features + p mu_k), from psi [N, K]."""
        scores, slope = model.scores(psi, data.inputs, state.weights), state.weights[: psi.shape[1]]
        return _compiled(model.loss, data.targets, scores, slope) or Settle(
            partial(_halve, model.loss, data.targets, scores, slope)
        )

    def bound(self, state: VariationalFeatures, data: FeatureData, model: FeatureModel, scale: float = 1.0) -> Tensor:
        """Minus the losses of expected scores and the ridge of the means, []."""
        loss = model.log_margin(model.scores(state.features, data.inputs, state.weights), data.targets)
        total = all_sum((data.row_weights.squeeze(1) * loss).sum(dtype=torch.float64))
        return scale * total - state.weights.square().sum(dtype=torch.float64) / (2 * model.weight_scale**2)


class Augmented:
    """The expected loss, for losses with `expect`; q(eta_c) = N(mu_c, V_c)."""

    def prior_tril(self, model: FeatureModel, like: Tensor, size: int, num_scores: int) -> Tensor:
        """Cholesky factors of the prior precisions, [C, K + P, K + P]."""
        return prior(1, size, num_scores, model.weight_scale, like).precision_tril[0]

    def update(
        self, state: VariationalFeatures, data: FeatureData, model: FeatureModel, scale: float = 1.0
    ) -> VariationalFeatures:
        """V_c^-1 = I / nu^2 + sum_n r_n u_nc E[a_n a_n^T],  mu_c = V_c sum_n r_n b_nc E a_n, with `expect`'s (u, b)."""
        return self.step(state, data, model, scale, 1.0)

    def polish(self, state: VariationalFeatures, data: FeatureData, model: FeatureModel) -> VariationalFeatures:
        """As it is: its update is exact."""
        return state

    def step(
        self, state: VariationalFeatures, data: FeatureData, model: FeatureModel, scale: float, rho: float
    ) -> VariationalFeatures:
        """Natural parameters [C, K + P, K + P] and [K + P, C] a step of size rho towards the optimum."""
        q = self._evidence(state, data, model, scale).step(_ridge(state), rho)
        return replace(state, weights=q.mean[0].contiguous(), weights_tril=q.precision_tril[0])

    def margin(self, state: VariationalFeatures, data: FeatureData, model: FeatureModel, psi: Tensor) -> Settle:
        """o + sum_c [ b_c mu_kc - u_c (B_kk / 2 + sum_{j != k} B_jk E a_j) ],  B = mu_c mu_c^T + V_c."""
        K, mean = psi.shape[1], state.weights
        scores, variance = (part.squeeze(1) for part in bits_design(psi, data).moments(_ridge(state)))
        precision, shift = (part.expand_as(scores) for part in model.loss.expect(scores, variance, data.targets))
        covariance = torch.cholesky_inverse(state.weights_tril).movedim(0, -1)  # [K + P, K + P, C]

        def settle(k: int, log_odds: Tensor, psi: Tensor) -> Tensor:
            own, spread = mean[k], covariance[k]
            rest = scores - psi[k].unsqueeze(1) * own
            cross = psi.T @ spread[:K] + data.inputs @ spread[K:] - (psi[k].unsqueeze(1) - 0.5) * spread[k]
            gain = shift * own - precision * (own * rest + own.square() / 2 + cross)
            found = (log_odds + gain.sum(1)).sigmoid()
            torch.addcmul(rest, found.unsqueeze(1), own, out=scores)
            return found

        return Settle(settle)

    def bound(self, state: VariationalFeatures, data: FeatureData, model: FeatureModel, scale: float = 1.0) -> Tensor:
        """Expected log factors, by their bound, less KL(q(eta) || p(eta)), []."""
        return self._evidence(state, data, model, scale).bound(_ridge(state))

    def _evidence(self, state: VariationalFeatures, data: FeatureData, model: FeatureModel, scale: float) -> Evidence:
        design = bits_design(state.features, data)
        return Evidence(design, data.targets, model.loss, model.weight_scale, scale * data.row_weights)


def bits_design(psi: Tensor, data: FeatureData) -> Seen:
    """What classifiers see of independent bits with probabilities [N, K], beside the inputs."""
    return Seen(torch.cat([psi, data.inputs], 1), psi * (1 - psi))


def _ridge(state: VariationalFeatures) -> Ridge:
    return Ridge(state.weights.unsqueeze(0), state.weights_tril.unsqueeze(0))


# -- the margin of one feature under the averaging rule ----------------------------------------------------------------


def _halve(loss: Loss, targets: Tensor, scores: Tensor, slope: Tensor, k: int, log_odds: Tensor, psi: Tensor) -> Tensor:
    """The root of logit p = o + slope . d log phi / df (scores + p slope), which falls in p: by halving, any loss.

    Scores [N, C] follow, in place; slope [K, C] is what each feature adds to them.
    """
    before, slope = psi[k], slope[k]
    rest = scores - before.unsqueeze(1) * slope

    def pulled(p: Tensor) -> Tensor:
        return log_odds + slopes(loss, rest + p.unsqueeze(1) * slope, targets) @ slope

    low, high = pulled(torch.ones_like(before)), pulled(torch.zeros_like(before))
    low = torch.minimum(low, high)
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        at = pulled(middle.sigmoid())
        above = at > middle  # the root lies between the two
        low, high = (
            torch.where(above, middle, torch.maximum(low, at)),
            torch.where(above, torch.minimum(high, at), middle),
        )
    found = ((low + high) / 2).sigmoid()
    torch.addcmul(rest, found.unsqueeze(1), slope, out=scores)
    return found


def _compiled(loss: Loss, targets: Tensor, scores: Tensor, slope: Tensor) -> Settle | None:
    """The same, compiled, for a joint hinge and for losses made of lines, on the CPU; None for others.

    Such a loss is tilts [N, C] times scores, which add to the log odds at once, and hinges.
    """
    joint, box = joint_hinge(loss), loss.box(targets)
    if targets.device.type != "cpu" or (joint is None and (box is None or box.curvature)):
        return None
    from . import _numba_rows  # compiles or loads machine code: only where it is needed

    weights = slope
    if joint is not None:
        visit, known = _numba_rows.visit_joint, ~targets.isnan().any(1, keepdim=True)
        own = torch.nn.functional.one_hot(targets.nan_to_num(0.0).argmax(1), targets.shape[1]).to(scores)
        lines, heights = scores + joint.margin * (1 - own), 2 * joint.strength * known.to(scores)
        tilts = heights * own
    else:
        assert box is not None
        visit, tilts = _numba_rows.visit_hinges, box.lower
        lines, heights = scores - box.linear, box.upper - box.lower
        if box.tube:  # from one bound to 0, and from 0 to the other
            lines, heights = torch.cat([lines + box.tube, lines - box.tube], 1), torch.cat([box.upper, -box.lower], 1)
            weights = slope.repeat(1, 2)
    columns, forces = (part.T.contiguous().numpy() for part in (lines, heights.to(scores)))
    slopes = weights.contiguous().numpy()

    def settle(some: slice, logits: Tensor, coupling: Tensor, own: Tensor) -> None:
        odds = torch.addmm(logits, slope[some], tilts.to(logits).T)
        visit(odds.numpy(), coupling.numpy(), own.numpy(), columns, slopes[some], forces)

    def one(k: int, log_odds: Tensor, psi: Tensor) -> Tensor:
        found = psi[k : k + 1].clone()
        settle(slice(k, k + 1), log_odds.unsqueeze(0), psi.new_zeros(1, 1), found)
        return found[0]

    return Settle(one, lambda some, logits, coupling, psi: settle(some, logits, coupling, psi[some]))


_NUM_HALVINGS = 45
RULES: dict[str, Rule] = {"averaging": Averaging(), "gibbs": Augmented()}
