"""Exact answers for topic models on tiny data: the exact weight of every assignment of the tokens.

    p(z, w, y) = p(z | alpha) p(w | z, beta) I(z),   I = integral of N(eta; 0, nu^2 I) prod_n phi(y_n | eta . zbar_n)

I is an average over a Sobol net of eta (Sobol 1967), which is accurate enough in so few dimensions; without a joint
factor of the scores, over one score at a time.
"""

from __future__ import annotations

import itertools
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from ..models.priors.topics import Tally
from ..models.topics import TopicData, TopicModel
from .programs import compare, log_total, require_no_others, require_sites, sites_of
from .references import Reference, register_reference

Labels = tuple[int, ...]


def topic_posterior(model: TopicModel, X: Any, y: Any = None) -> dict[Labels, float]:
    """Exact posterior probability of every assignment of the M tokens, in the order of `TopicData`; K^M <= 10^4.

    Raises
    ------
    ValueError    if there are too many, or if hyperparameters of the prior are random.
    """
    log_weights = topic_log_weights(model, X, y)
    probabilities = torch.tensor(list(log_weights.values()), dtype=torch.float64).softmax(0).tolist()
    return dict(zip(log_weights, probabilities, strict=True))


def topic_log_weights(model: TopicModel, X: Any, y: Any = None) -> dict[Labels, float]:
    """log p(z, w, y) of every assignment of the tokens; ValueError as in `topic_posterior`."""
    model, data = model.prepare(X, y)
    number = model.num_topics ** len(data.words)
    if number > 10**4 or any(law is not None for law in model.prior.laws(data.targets).values()):
        raise ValueError(f"There are {number} assignments; expected at most 10^4, with fixed hyperparameters.")
    log_weights, known = dict[Labels, float](), dict[Any, float]()
    for labels in itertools.product(range(model.num_topics), repeat=len(data.words)):
        assignments = torch.tensor(labels)
        features = data.mean_topics(data.document_counts(assignments, model.num_topics)).double()
        case = tuple(features.flatten().tolist())
        if case not in known:
            known[case] = log_integral(features, data.targets.double(), model)
        log_weights[labels] = float(log_assignments(assignments, data, model)) + known[case]
    return log_weights


def log_assignments(assignments: Tensor, data: TopicData, model: TopicModel) -> Tensor:
    """log p(z | alpha) p(w | z, beta) [] of the tokens' topics [M], topics and proportions integrated out."""
    h, K = model.prior.start(data.targets), model.num_topics
    documents = Tally.of(data.document_counts(assignments, K)).log_polya(h["document_concentration"])
    return documents + Tally.of(data.word_counts(assignments, K).T).log_polya(h["topic_concentration"])


def log_integral(features: Tensor, targets: Tensor, model: TopicModel) -> float:
    """log I of features zbar [N, K] and targets [N, C]."""
    num_scores, total = targets.shape[1], 0.0
    groups = [list(range(num_scores))] if model.loss.meets else [[c] for c in range(num_scores)]
    for group in groups if num_scores else []:
        total += float(margin_table(features, targets[:, group], model)[1].logsumexp(0))
    return total


def margin_table(features: Tensor, targets: Tensor, model: TopicModel) -> tuple[Tensor, Tensor]:
    """Points eta [G, K, C] of the prior, and the log [G] of the factors there divided by G."""
    num_topics, num_scores = features.shape[1], targets.shape[1]
    engine = torch.quasirandom.SobolEngine(num_topics * num_scores, scramble=True, seed=0)
    normal = torch.special.ndtri(engine.draw(_NUM_POINTS, dtype=torch.float64).clamp(1e-12, 1 - 1e-12))
    eta = model.weight_scale * normal.view(-1, num_topics, num_scores)
    log_factor = model.log_margin(features @ eta, targets).sum(1)
    return eta, log_factor - torch.tensor(float(_NUM_POINTS)).log()


def log_evidence(model: TopicModel, X: Any, y: Any = None) -> float:
    """log p(w, y) = log sum_z p(z, w, y), the upper bound of an ELBO; margin factors are not normalized over y."""
    return float(torch.tensor(list(topic_log_weights(model, X, y).values()), dtype=torch.float64).logsumexp(0))


def check_topics(model: TopicModel, X: Any, y: Any = None, lengths: Any = None, seed: int = 0) -> None:
    """`check_model` of a topic model, on counts X [N, V] and targets y [N]: its program, site by site."""
    resolved, data = model.prepare(X, y, lengths)
    again = resolved.resolve(X, y)
    sites = sites_of(resolved, (X, y), seed)
    laws = [name for name, law in again.prior.laws(data.targets).items() if law is not None]
    names = [*laws, "topics", "weights", "proportions", "assignments", "words", "margin"]
    require_sites(sites, names)
    require_no_others(sites, names)
    h = again.prior.start(data.targets) | {name: sites[name]["value"].double() for name in laws}
    compare(log_total(sites, laws) if laws else 0.0, again.prior.log_density(h), "the prior's part of the program")
    value = {name: sites[name]["value"] for name in names if name != "margin"}
    K, C = again.num_topics, data.targets.shape[1]
    assert value["weights"].shape == (K, C), f"weights are {list(value['weights'].shape)}; expected {[K, C]}"
    law = dist.Normal(value["weights"].new_zeros(()), value["weights"].new_tensor(float(again.weight_scale)))
    compare(log_total(sites, ["weights"]), law.log_prob(value["weights"]).sum(), "the weights' part of the program")
    documents = data.document_counts(value["assignments"], K)
    words = data.word_counts(value["assignments"], K)
    tokens = _collapsed(documents, value["proportions"], h["document_concentration"])
    tokens = tokens + _collapsed(words.T, value["topics"], h["topic_concentration"])
    compare(log_total(sites, ["topics", "proportions", "assignments", "words"]), tokens, "the tokens' part")
    margin = again.log_margin(data.mean_topics(documents) @ value["weights"], data.targets).sum()
    compare(log_total(sites, ["margin"]), margin, "the margin factors")


def _collapsed(counts: Tensor, rows: Tensor, concentration: Tensor) -> Tensor:
    """log p(counts) + log p(rows | counts) [], with rows [R, K] of Dir(a 1_K) integrated out and drawn again."""
    law = dist.Dirichlet((counts + concentration).to(rows))
    return Tally.of(counts).log_polya(concentration) + law.log_prob(rows).sum()


_NUM_POINTS = 2**14

register_reference(
    TopicData,
    Reference(
        posterior=lambda model, X, y, lengths, truncation: topic_posterior(model, X, y),
        log_evidence=lambda model, X, y, lengths, truncation: log_evidence(model, X, y),
        program=check_topics,
    ),
)
