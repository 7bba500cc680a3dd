"""The factors of a topic model's mean field, the update of each, and the bound.

    q = prod_n Dir(theta_n; alpha + C_n) q(z_n)  prod_k Dir(topic_k; beta + C_k)  prod_c N(eta_c; mu_c, V_c)

with the expected counts C_n of a document's and C_k of a word's tokens in each topic; q(theta) and q(topic) are always
at their optimum given q(z). At it, KL(Dir || prior) - sum C E log = log B(prior) - log B(Dir).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ....models.linalg import safe_cholesky
from ....models.losses import Loss
from ....models.sparse import SparseRows
from ....models.topics import TopicData, TopicModel
from ...classifiers.duals import solve
from ...classifiers.ridge import Ridge
from ...distributed.collectives import all_sum
from ..factors import LAST_GAP
from .documents import LIMITS, Globals, Limits, fit_documents, log_dirichlet_ratio, margin_cost, word_sums
from .tokens import observe, score_grams, score_moments, visit_tokens

_TOLERANCES = (1e-3, 1e-5)  # relative gaps of the SVM, the second where the first is not better
_MOST_PASSES = 100  # for each


@dataclass(frozen=True, kw_only=True)
class VariationalTopics:
    """q of N documents, V words, K topics and C scores; all float64. After a stochastic step N = 0."""

    word_counts: Tensor  # [V, K] expected numbers of tokens of each word in each topic
    mean: Tensor  # [K, C] mu
    precision_tril: Tensor  # [C, K, K], of V_c^-1; "averaging": I / nu
    counts: Tensor  # [N, K] expected numbers of tokens of each topic in each document
    tilt: Tensor  # [N, C] duals of the documents; "gibbs": zeros
    phi: Tensor  # [nnz, K] "gibbs": q(z) of the tokens of each word of each document; else [0, K]
    divergence: Tensor  # [] sum_n of log B(alpha) - log B(alpha + C_n) and E log q(z)
    bound: Tensor  # [] the ELBO, or its estimate from the last minibatch
    duality_gap: Tensor  # [] of the last dual, as a fraction of its objective; NaN where there was none
    total_weight: float  # tokens

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.counts)

    @property
    def classifiers(self) -> Ridge:
        """q(eta)."""
        return Ridge(self.mean.unsqueeze(0), self.precision_tril.unsqueeze(0))


def loss_of(model: TopicModel) -> Loss | None:
    """The margin loss; None of a model without targets."""
    return model.loss if "loss" in model.get_params(deep=False) else None


def weight_scale_of(model: TopicModel) -> float:
    """nu; 1 of a model without scores."""
    return float(getattr(model, "weight_scale", 1.0))


def log_topics(state: VariationalTopics, model: TopicModel) -> Tensor:
    """E log topic [V, K]."""
    concentration = state.word_counts + model.prior.topic_concentration
    return torch.digamma(concentration) - torch.digamma(concentration.sum(0))


def mean_topics(counts: Tensor, X: SparseRows) -> Tensor:
    """E zbar [N, K] from counts [N, K]; 0 for a document without tokens."""
    return counts / X.sum(1, torch.float64).clamp(min=1.0).unsqueeze(1)


def with_rows(state: VariationalTopics, data: TopicData, model: TopicModel) -> VariationalTopics:
    """The state with documents where they start: topics in equal shares, no tilt."""
    lengths = data.X.sum(1, torch.float64).unsqueeze(1)
    return replace(
        state,
        counts=(lengths / model.num_topics).repeat(1, model.num_topics),
        tilt=torch.zeros_like(data.targets, dtype=torch.float64),
        phi=state.phi[:0],
        total_weight=float(all_sum(lengths.sum())),
    )


def without_rows(state: VariationalTopics) -> VariationalTopics:
    """Without what belongs to single documents."""
    none = torch.full_like(state.duality_gap, torch.nan)
    return replace(state, counts=state.counts[:0], tilt=state.tilt[:0], phi=state.phi[:0], duality_gap=none)


# -- averaging -------------------------------------------------------------------------------------------------------


def update_documents(
    state: VariationalTopics,
    data: TopicData,
    model: TopicModel,
    num_steps: int,
    *,
    limits: Limits = LIMITS[0],
    with_margin: bool = True,
) -> VariationalTopics:
    """q(z) of every document at its exact optimum given q(theta), then q(theta), `num_steps` times; then q(topic)."""
    loss, num_scores = (loss_of(model), state.mean.shape[1]) if with_margin else (None, 0)
    concentration, slopes = float(model.prior.document_concentration), state.mean[:, :num_scores]
    given = Globals(log_topics(state, model), concentration, slopes, loss)
    tilt = state.tilt[:, :num_scores]
    found = fit_documents(data.X, data.targets, given, state.counts, tilt, num_steps=num_steps, limits=limits)
    return replace(
        state,
        counts=found.counts,
        tilt=found.tilt if with_margin else state.tilt,
        word_counts=all_sum(found.word_counts),
        divergence=all_sum(found.divergence),
    )


def update_weights(
    state: VariationalTopics,
    data: TopicData,
    model: TopicModel,
    tolerances: tuple[float, ...] = _TOLERANCES,
    max_passes: int = _MOST_PASSES,
) -> VariationalTopics:
    """mu, the tilts with it: the SVM of the documents at E zbar, solved until it is better than the last one."""
    loss = loss_of(model)
    if loss is None or not data.targets.shape[1]:
        return state
    features, targets, scale = mean_topics(state.counts, data.X), data.targets.double(), weight_scale_of(model)
    before, tilt = margin(state, data, model), state.tilt
    for tolerance in tolerances:
        dual = solve(features, targets, loss, scale, start=tilt, tolerance=tolerance, max_passes=max_passes)
        state, tilt = replace(state, duality_gap=torch.full_like(state.bound, dual.gap)), dual.tilt
        moved = replace(state, mean=dual.weights, tilt=dual.tilt)
        if margin(moved, data, model) <= before:
            return moved
    return state


def polish(state: VariationalTopics, data: TopicData, model: TopicModel) -> VariationalTopics:
    """The last state of a fit, with mu at its optimum to rounding."""
    return update_weights(state, data, model, (LAST_GAP,), _LAST_PASSES)


def margin(state: VariationalTopics, data: TopicData, model: TopicModel) -> Tensor:
    """|mu|^2 / (2 nu^2) + sum_n g(E f_n) []."""
    cost = margin_cost(loss_of(model), mean_topics(state.counts, data.X) @ state.mean, data.targets)
    return state.mean.square().sum() / (2 * weight_scale_of(model) ** 2) + all_sum(cost)


# -- the Gibbs classifier, augmented -----------------------------------------------------------------------------------


def update_tokens(state: VariationalTopics, data: TopicData, model: TopicModel, num_steps: int) -> VariationalTopics:
    """q(omega), q(theta) and q(z) of every document in turn, `num_steps` times; then q(topic)."""
    X, targets, logs = data.X, data.targets.double(), log_topics(state, model)
    alpha, phi, counts = float(model.prior.document_concentration), state.phi, state.counts
    for _ in range(num_steps):
        log_share = torch.digamma(alpha + counts)
        if not len(phi) and len(X.columns):  # a start: q(z) without a margin
            phi = (logs[X.columns] + log_share[X.row_index]).softmax(1)
            counts = X.entry_sums(X.values.double().unsqueeze(1) * phi)
            continue
        observed = observe(model.loss, score_moments(X, phi, counts, state.classifiers), targets)
        phi, counts = visit_tokens(X, logs, log_share, observed, state.classifiers, phi, counts)
    number = X.values.double().unsqueeze(1)
    divergence = log_dirichlet_ratio(alpha, counts).sum() - (number * torch.special.entr(phi)).sum()
    words = all_sum(word_sums(X, number * phi))
    return replace(state, phi=phi, counts=counts, word_counts=words, divergence=all_sum(divergence))


def gaussian_sums(state: VariationalTopics, data: TopicData, model: TopicModel) -> tuple[Tensor, Tensor]:
    """What the documents add to V_c^-1 [C, K, K] and to V_c^-1 mu_c [K, C], at their best q(omega)."""
    scores = score_moments(data.X, state.phi, state.counts, state.classifiers)
    precision, shift = observe(model.loss, scores, data.targets.double())
    linear = all_sum(mean_topics(state.counts, data.X).T @ shift)
    return score_grams(data.X, state.phi, state.counts, precision), linear


def update_gaussians(state: VariationalTopics, data: TopicData, model: TopicModel) -> VariationalTopics:
    """q(omega), then q(eta)."""
    return with_gaussians(state, *gaussian_sums(state, data, model), model)


def with_gaussians(state: VariationalTopics, gram: Tensor, linear: Tensor, model: TopicModel) -> VariationalTopics:
    """q(eta) of natural parameters I / nu^2 + gram [C, K, K] and linear [K, C]."""
    eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    tril = safe_cholesky(gram + eye / weight_scale_of(model) ** 2)
    return replace(state, mean=torch.cholesky_solve(linear.T.unsqueeze(2), tril).squeeze(2).T, precision_tril=tril)


def augmented_margin(state: VariationalTopics, data: TopicData, model: TopicModel) -> Tensor:
    """KL(q(eta) || p) - sum_n of the bound of E log phi, []."""
    scores = score_moments(data.X, state.phi, state.counts, state.classifiers)
    gain = model.loss.expected_log_factor(*scores, data.targets.double()).sum()
    return state.classifiers.kl(weight_scale_of(model)).sum() - all_sum(gain)


# -- the bound -------------------------------------------------------------------------------------------------------


def with_bound(state: VariationalTopics, model: TopicModel, cost: Tensor) -> VariationalTopics:
    """The state with its ELBO, given what the margin and q(eta) cost []."""
    topics = log_dirichlet_ratio(model.prior.topic_concentration, state.word_counts.T).sum()
    return replace(state, bound=-(state.divergence + topics + cost))


_LAST_PASSES = 1000  # at the end of a fit
