"""Label probabilities under the draws of a multi-label model: by its mixture, its classifiers, or a coupled joint.

With R_k(x) the weights of a row's components, the mixture has psi(x) = sum_k R_k E psi_k; the classifiers have s(x) = E
sigma(f). In the joint "product" these are two views of one label; "and" and "multinomial" have one probability that
depends on both (docs/derivations/label-sets, "Prediction"). Draws are weighted by how well they predict x and the known
labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...models.bnmc import BNMC
from ...models.label_joints import log_label_factor
from ...models.shares import shares_of
from ..classifiers.ridge import Ridge
from ..structures import Draw
from .components import log_component_density, log_unseen_density
from .label_draws import label_means


class Views(NamedTuple):
    """Both views of N rows and C labels."""

    mixture: Tensor  # [N, C] probabilities
    classifiers: Tensor  # [N, C] log odds


def mixture_view(model: BNMC, draws: Sequence[Draw], X: Any, labels: Tensor | None) -> Tensor:
    """psi(x) [N, C]; for counts 1 - exp(-r(x) psi(x)), the probability of at least one, with the mean total r(x)."""
    evidence, found, totals = [], [], []
    for draw in draws:
        log_weights = component_weights(model, X, labels, draw)
        share, total = shares_of(log_weights)
        evidence.append(total)
        found.append(share @ component_means(model, draw))
        if "label_totals" in draw:
            totals.append(share @ draw["label_totals"])
    each = torch.stack(evidence).softmax(0)
    psi = torch.einsum("sn,snc->nc", each, torch.stack(found))
    return -torch.expm1(-psi * (each * torch.stack(totals)).sum(0).unsqueeze(1)) if totals else psi


def classifier_view(model: BNMC, draws: Sequence[Draw], X: Any) -> Tensor:
    """Log odds [N, C] of E sigma(f); for a loss that is no likelihood, those of its factor at the mean score."""
    if not model.loss.is_likelihood:
        scores = model.features(X) @ torch.stack([draw["classifiers"] for draw in draws]).mean(0)
        return model.coding.decisions(scores, model.loss)
    return logit(torch.stack([row_scores(model, X, draw).sigmoid() for draw in draws]).mean(0))


def joint_view(model: BNMC, draws: Sequence[Draw], X: Any, labels: Tensor | None) -> Tensor:
    """Probabilities [N, C] of the labels of rows under a coupled joint, averaged over components and draws."""
    evidence, found = [], []
    for draw in draws:
        log_weights = component_weights(model, X, labels, draw)
        share, weight = shares_of(log_weights)
        psi, sigma = component_means(model, draw), row_scores(model, X, draw).sigmoid()
        evidence.append(weight)
        if model.joint == "and":
            found.append(share @ psi * sigma)
            continue
        total = sigma @ psi.T
        shares = (share / total.clamp(min=torch.finfo(total.dtype).tiny)) @ psi * sigma
        found.append(-torch.expm1(-(share @ draw["label_totals"]).unsqueeze(1) * shares))
    return torch.einsum("sn,snc->nc", torch.stack(evidence).softmax(0), torch.stack(found))


def component_weights(model: BNMC, X: Any, labels: Tensor | None, draw: Draw) -> Tensor:
    """log W [N, K + 1] of the components for rows with known labels [N, C]; the last component is new.

    With centres it is 0 at the nearest centre and -inf elsewhere.
    """
    seen = log_component_density(model, X, draw)
    if "centers" in draw:
        closed = draw["log_mixture"][:-1] == -torch.inf
        seen = seen if labels is None else seen + _log_labels(model, X, labels, draw)[:, :-1]
        nearest = seen.masked_fill(closed, -torch.inf).argmax(1, keepdim=True)
        none = seen.new_full((len(seen), seen.shape[1] + 1), -torch.inf)
        return none.scatter_(1, nearest, 0.0)
    found = torch.cat([seen, log_unseen_density(model, X, draw)], 1) + draw["log_mixture"]
    return found if labels is None else found + _log_labels(model, X, labels, draw)


def logit(p: Tensor) -> Tensor:
    """log odds [...] of probabilities [...], finite."""
    least = torch.finfo(p.dtype).eps
    return p.clamp(least, 1 - least).logit()


def _log_labels(model: BNMC, X: Any, labels: Tensor, draw: Draw) -> Tensor:
    """log probability [N, K + 1] of known labels in each component."""
    means = component_means(model, draw)
    if model.is_coupled:
        scores = row_scores(model, X, draw).unsqueeze(1)
        return log_label_factor(model.joint, means, scores, labels.unsqueeze(1))
    means = means.clamp(_LEAST, 1 - _LEAST)
    known = ~labels.isnan()
    ones, zeros = (known & (labels > 0)).to(means), (known & (labels <= 0)).to(means)
    return ones @ means.log().T + zeros @ torch.log1p(-means).T


def row_scores(model: BNMC, X: Any, draw: Draw) -> Tensor:
    """Log odds [N, C] of rows under a draw's classifiers; if variational, those with sigma about E sigma(f)."""
    features = model.features(X)
    scores = features @ draw["classifiers"]
    if "classifier_tril" in draw:
        ridge = Ridge(draw["classifiers"].unsqueeze(0), draw["classifier_tril"].unsqueeze(0))
        scores = model.loss.moderated(scores, ridge.score_variance(features).squeeze(1))
    return model.coding.decisions(scores, model.loss)


def component_means(model: BNMC, draw: Draw) -> Tensor:
    """E psi [K + 1, C] of the components of a draw; the last one is new."""
    labels: Any = model.label_likelihood
    prior = label_means(model, labels.prior()).unsqueeze(0)
    if "label_means" in draw:
        return torch.cat([draw["label_means"], prior])
    return torch.cat([label_means(model, draw["label_hyperparameters"]), prior])


_LEAST = 1e-12
