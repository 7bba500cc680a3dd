"""The labels' terms in updates of single features, under either rule, and the features that classifiers see.

Under the averaging rule each update is the exact optimum of a feature (Algorithm 3 of Zhu, Chen & Xing, 2014;
docs/derivations/latent-features, "Mean field").
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ....models import host
from ....models.latent_features import FeatureData
from ....models.losses import Loss
from ...bits.rows import Settle
from ...classifiers.duals import joint_hinge
from ...classifiers.minimum import slopes
from ...classifiers.natural import Evidence, moments_of
from ..rules import AVERAGING, NATURAL
from .factors import FeatureModel, VariationalFeatures


def evidence(state: VariationalFeatures, data: FeatureData, model: FeatureModel, scale: float = 1.0) -> Evidence:
    """The rows as `Evidence` for the classifiers; each counts `scale` times."""
    features, variance = seen_bits(state.features, data)
    times = scale * data.row_weights.squeeze(1)
    return Evidence(features, data.targets, model.loss, model.weight_scale, times, variance=variance)


def seen_bits(psi: Tensor, data: FeatureData) -> tuple[Tensor, Tensor]:
    """Means and variances of what classifiers see: independent bits with probabilities [N, K], and the inputs."""
    return torch.cat([psi, data.inputs], 1), psi * (1 - psi)


def averaged_margin(state: VariationalFeatures, data: FeatureData, model: FeatureModel, psi: Tensor) -> Settle:
    """The update p [N] that minimizes -H(p) - o p + loss(scores of the other features + p mu_k), from psi [N, K]."""
    scores, slope = model.scores(psi, data.inputs, state.weights), state.weights[: psi.shape[1]]
    return compiled_margin(model.loss, data.targets, scores, slope) or Settle(
        partial(halve, model.loss, data.targets, scores, slope)
    )


def expected_margin(state: VariationalFeatures, data: FeatureData, model: FeatureModel, psi: Tensor) -> Settle:
    """Adds sum_c [ b_c mu_kc - u_c (B_kk / 2 + sum_{j != k} B_jk E a_j) ] to o; B = mu_c mu_c^T + V_c, psi [N, K]."""
    K, mean = psi.shape[1], state.weights
    scores, variance = (part.squeeze(1) for part in moments_of(*seen_bits(psi, data), state.learned.q))
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


def halve(loss: Loss, targets: Tensor, scores: Tensor, slope: Tensor, k: int, log_odds: Tensor, psi: Tensor) -> Tensor:
    """The root of logit p = o + slope . d log phi / df (scores + p slope), found by bisection, for any loss.

    The right-hand side falls in p. The scores [N, C] are updated in place; slope [K, C] are the features' slopes in
    them.
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
        above = at > middle  # the root lies between `middle` and `at`
        low, high = (
            torch.where(above, middle, torch.maximum(low, at)),
            torch.where(above, torch.minimum(high, at), middle),
        )
    found = ((low + high) / 2).sigmoid()
    torch.addcmul(rest, found.unsqueeze(1), slope, out=scores)
    return found


def compiled_margin(loss: Loss, targets: Tensor, scores: Tensor, slope: Tensor) -> Settle | None:
    """A compiled `halve` for joint hinges and piecewise linear losses on a CPU; None for other losses.

    Such a loss is the sum of a linear term, tilts [N, C] times scores, which joins the log odds, and of hinges.
    """
    joint, box = joint_hinge(loss), loss.box(targets)
    if not host.on_cpu(targets) or (joint is None and (box is None or box.curvature)):
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
        if box.tube:  # two hinges: from one bound to 0, and from 0 to the other
            lines, heights = torch.cat([lines + box.tube, lines - box.tube], 1), torch.cat([box.upper, -box.lower], 1)
            weights = slope.repeat(1, 2)
    columns, forces = (part.T.contiguous().numpy() for part in (lines, heights.to(scores)))
    slopes = weights.contiguous().numpy()

    def settle(some: slice, logits: Tensor, coupling: Tensor, own: Tensor) -> None:
        odds = torch.addmm(logits, slope[some], tilts.to(logits).T)
        arrays = odds.numpy(), coupling.numpy(), own.numpy(), columns, slopes[some], forces
        visit(*arrays, _numba_rows.Room.of(slopes[some]))

    def one(k: int, log_odds: Tensor, psi: Tensor) -> Tensor:
        found = psi[k : k + 1].clone()
        settle(slice(k, k + 1), log_odds.unsqueeze(0), psi.new_zeros(1, 1), found)
        return found[0]

    return Settle(one, lambda some, logits, coupling, psi: settle(some, logits, coupling, psi[some]))


_NUM_HALVINGS = 45
MARGINS = {NATURAL: expected_margin, AVERAGING: averaged_margin}
