"""The factors of a topic model's mean field, their updates, and the bound.

    q = prod_n Dir(theta_n; alpha + C_n) q(z_n)  prod_k Dir(topic_k; beta + C_k)  prod_c N(eta_c; mu_c, V_c)

C_n are the expected counts of a document's tokens in each topic, C_k those of each word's tokens in topic k. q(theta)
and q(topic) are always at their optimum given q(z), where KL(Dir || prior) - sum C E log = log B(prior) - log B(Dir).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ....models.losses.base import PseudoObservation
from ....models.shares import shares_of
from ....models.topics import TopicData, TopicModel
from ...classifiers.minimum import DualLimits
from ...classifiers.natural import Evidence
from ...classifiers.ridge import Ridge
from ...distributed.collectives import all_sum, all_sums
from ...running.chains import OfEntries, OfRows
from ..factors import loss_of
from ..rules import AVERAGING, LAST_GAP, Learned, Rule
from .documents import LIMITS, Globals, Limits, fit_documents, log_dirichlet_ratio, word_sums
from .tokens import MeanTopics, Words, mean_topics, visit_tokens

SWEEP_LIMITS = DualLimits(1e-3, 100), DualLimits(1e-5, 100)  # of the SVM; the second if the first does not improve it


@dataclass(frozen=True, kw_only=True)
class VariationalTopics:
    """The factors for N documents, V words, K topics and C scores; all float64. After a stochastic step N is 0."""

    word_counts: Tensor  # [V, K] expected numbers of tokens of each word in each topic
    mean: Tensor  # [K, C] mu
    precision_tril: Tensor  # [C, K, K] Cholesky factors of V_c^-1; "averaging": I / nu
    counts: OfRows  # [N, K] expected numbers of tokens of each topic in each document
    tilt: OfRows  # [N, C] duals of the documents; "gibbs": zeros
    phi: OfEntries  # [nnz, K] "gibbs": q(z) of the tokens of each word in each document; else [0, K]
    divergence: Tensor  # [] sum_n of log B(alpha) - log B(alpha + C_n) and E log q(z)
    bound: Tensor  # [] the ELBO, or its estimate from the last minibatch
    duality_gap: Tensor  # [] relative duality gap of the last dual; NaN if there was none
    total_weight: float  # number of tokens

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.counts)

    @property
    def learned(self) -> Learned:
        """q(eta)."""
        return Learned(self.mean.unsqueeze(0), self.precision_tril.unsqueeze(0), self.tilt, self.duality_gap)

    @property
    def classifiers(self) -> Ridge:
        """q(eta) as a `Ridge`."""
        return self.learned.q

    def with_learned(self, found: Learned) -> VariationalTopics:
        """Replace q(eta)."""
        mean, tril = found.mean[0], found.precision_tril[0]
        return replace(self, mean=mean, precision_tril=tril, tilt=found.tilt, duality_gap=found.gap)


def weight_scale_of(model: TopicModel) -> float:
    """nu; 1 for a model without scores."""
    return float(getattr(model, "weight_scale", 1.0))


def log_topics(state: VariationalTopics, model: TopicModel) -> Tensor:
    """E log topic [V, K]."""
    concentration = state.word_counts + model.prior.topic_concentration
    return torch.digamma(concentration) - torch.digamma(concentration.sum(0))


def with_rows(state: VariationalTopics, data: TopicData, model: TopicModel) -> VariationalTopics:
    """Set documents to their first values: equal shares of topics, tilts 0."""
    lengths = data.X.sum(1, torch.float64).unsqueeze(1)
    return replace(
        state,
        counts=(lengths / model.num_topics).repeat(1, model.num_topics),
        tilt=torch.zeros_like(data.targets, dtype=torch.float64),
        phi=state.phi[:0],
        total_weight=float(all_sum(lengths.sum())),
    )


def without_rows(state: VariationalTopics) -> VariationalTopics:
    """Drop the values of single documents."""
    none = torch.full_like(state.duality_gap, torch.nan)
    return replace(state, counts=state.counts[:0], tilt=state.tilt[:0], phi=state.phi[:0], duality_gap=none)


# -- averaging rule ----------------------------------------------------------------------------------------------------


def update_documents(
    state: VariationalTopics,
    data: TopicData,
    model: TopicModel,
    num_steps: int,
    *,
    limits: Limits = LIMITS[0],
    with_margin: bool = True,
) -> VariationalTopics:
    """Set q(z) of every document to its exact optimum, then q(theta), `num_steps` times; then q(topic)."""
    loss, num_scores = (loss_of(model), state.mean.shape[1]) if with_margin else (None, 0)
    concentration, slopes = float(model.prior.document_concentration), state.mean[:, :num_scores]
    given = Globals(log_topics(state, model), concentration, slopes, loss)
    tilt = state.tilt[:, :num_scores]
    found = fit_documents(data.X, data.targets, given, state.counts, tilt, num_steps=num_steps, limits=limits)
    words, divergence = all_sums(found.word_counts, found.divergence)
    tilt = found.tilt if with_margin else state.tilt
    return replace(state, counts=found.counts, tilt=tilt, word_counts=words, divergence=divergence)


# -- natural rule: augmented Gibbs classifier --------------------------------------------------------------------------


def update_tokens(state: VariationalTopics, data: TopicData, model: TopicModel, num_steps: int) -> VariationalTopics:
    """Update q(omega), q(theta) and q(z) of every document, `num_steps` times; then q(topic)."""
    X, logs = data.X, log_topics(state, model)
    alpha, phi, counts = float(model.prior.document_concentration), state.phi, state.counts
    for _ in range(num_steps):
        log_share = torch.digamma(alpha + counts)
        if not len(phi) and len(X.columns):  # at the start: q(z) without a margin
            phi, _ = shares_of(logs[X.columns] + log_share[X.row_index])
            counts = X.entry_sums(X.values.double().unsqueeze(1) * phi)
            continue
        observed = observe(replace(state, phi=phi, counts=counts), data, model)
        phi, counts = visit_tokens(X, logs, log_share, observed, state.classifiers, phi, counts)
    number = X.values.double().unsqueeze(1)
    divergence = log_dirichlet_ratio(alpha, counts).sum() - (number * torch.special.entr(phi)).sum()
    words, divergence = all_sums(word_sums(X, number * phi), divergence)
    return replace(state, phi=phi, counts=counts, word_counts=words, divergence=divergence)


def observe(state: VariationalTopics, data: TopicData, model: TopicModel) -> PseudoObservation:
    """Expected pseudo-observations [N, C] of the documents' scores."""
    said = evidence(state, data, model)
    return said.expected(said.moments(state.classifiers))


# -- classifiers, under either rule ------------------------------------------------------------------------------------


def evidence(state: VariationalTopics, data: TopicData, model: TopicModel, scale: float = 1.0) -> Evidence:
    """The documents as `Evidence` for the classifiers; each counts `scale` times."""
    features, targets = mean_topics(state.counts, data.X), data.targets.double()
    times = targets.new_full((len(targets),), scale)
    words = Words(data.X, state.phi, state.counts)
    return MeanTopics(features, targets, model.loss, weight_scale_of(model), times, words=words)


def update_classifiers(
    state: VariationalTopics, data: TopicData, model: TopicModel, rule: Rule, *limits: DualLimits
) -> VariationalTopics:
    """Set q(eta) to its optimum; a dual is solved within the first of `limits` that improves on the last one."""
    if not state.mean.shape[1]:
        return state
    return state.with_learned(rule.update(evidence(state, data, model), state.learned, *(limits or SWEEP_LIMITS)))


def polish(state: VariationalTopics, data: TopicData, model: TopicModel) -> VariationalTopics:
    """Solve the dual of the last state of a fit to rounding error."""
    return update_classifiers(state, data, model, AVERAGING, DualLimits(LAST_GAP, _LAST_PASSES))


def cost(state: VariationalTopics, data: TopicData, model: TopicModel, rule: Rule) -> Tensor:
    """Minus the labels' and q(eta)'s terms of the bound, [] float64."""
    if not state.mean.shape[1]:
        return state.bound.new_zeros(())
    return -rule.bound(evidence(state, data, model), state.learned)


# -- the bound ---------------------------------------------------------------------------------------------------------


def with_bound(state: VariationalTopics, model: TopicModel, cost: Tensor) -> VariationalTopics:
    """Compute the ELBO, given the cost [] of the margin and q(eta)."""
    topics = log_dirichlet_ratio(model.prior.topic_concentration, state.word_counts.T).sum()
    return replace(state, bound=-(state.divergence + topics + cost))


_LAST_PASSES = 1000  # at the end of a fit
