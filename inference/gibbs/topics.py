"""Gibbs sampling of a topic model, with the topic proportions of documents integrated out.

    target(z, eta, h) = p(z | alpha) p(w | z, beta) p(h) N(eta; 0, nu^2 I) prod_n phi(y_n | eta . zbar_n)

    "collapsed"   each token in turn, topics integrated out: compiled for a CPU
    "blocked"     given topics, tokens of all documents in parallel: on any device, and documents on several ranks

A state is (z, eta, h). Let the counts C leave the token out, let rest be the sums of eta over the other tokens of its
document, and let the scores f = eta . zbar have pseudo-observations exp(-precision f^2 / 2 + shift f) at draws of
omega. Then a token has the conditional law

    p(z_m = k)  prop. to  (C_kw + beta) / (C_k. + V beta) (C_nk + alpha)
                          exp( sum_c shift_c eta_kc / M - precision_c (eta_kc^2 + 2 eta_kc rest_c) / (2 M^2) )

Where the scores of all classes meet in one factor (Crammer & Singer), that factor itself takes the place of the
exponential. The same holds in the blocked scan, which serves any loss without pseudo-observations.

omega is drawn for the tokens, dropped, and drawn anew before eta is: the order of `sweep` is z, omega, eta.

Sources: Griffiths & Steyvers (2004); Zhu, Chen, Perkins & Zhang (2014).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import partial
from operator import neg
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ...models import host
from ...models.distributions.sampling import draw_categorical, log_dirichlet, uniforms
from ...models.losses import CrammerSinger
from ...models.priors import Hyper
from ...models.priors.topics import Tally, mean_proportions
from ...models.sums import ranks
from ...models.topics import TopicData, TopicModel
from ..classifiers.scored import Scored
from ..compiled.trusted import require_shape
from ..distributed.collectives import all_sum, all_sums, own_stream
from ..posterior.draws import TopicDraw, drawn
from ..running.chains import OfRows, OfTokens
from ..running.engine import Draw, Kernel
from .backend import Gibbs


@dataclass(frozen=True)
class TopicState:
    """One draw of a topic model: N documents, V words, M tokens, K topics, C scores; counts follow from assignments."""

    assignments: OfTokens  # [M] int32, the topic of each token, in the order of `TopicData`
    document_counts: OfRows  # [N, K] int32, tokens of each topic in each document
    word_counts: Tensor  # [V, K] int32, tokens of each word in each topic, in the documents of all ranks
    weights: Tensor  # [K, C]
    hyper: Hyper  # hyperparameters of the prior, each [] float64


def check(backend: Gibbs, model: TopicModel) -> None:
    """Raise ValueError on a scan that topics lack."""
    backend.require_scan(model, "auto", "collapsed", "blocked")


def alone(backend: Gibbs, model: TopicModel) -> str:
    """What to change so that ranks can share the documents; "" if nothing: "blocked" updates all documents at once."""
    if isinstance(backend.init, Tensor):
        return "leave init out"
    return "take scan='blocked'" if backend.scan == "collapsed" else ""


def holds_all(backend: Gibbs, model: TopicModel) -> bool:
    """Whether states hold all components of the model from the start, in use or not."""
    return True


def kernel(backend: Gibbs, model: TopicModel) -> Kernel:
    """The kernel of topics with the options of `backend`."""
    start = partial(init, start=backend.init, num_generative=backend.num_generative, scan=backend.scan)
    move = partial(sweep, scan=backend.scan)
    return Kernel(state=TopicState, init=start, sweep=move, value=log_joint, draw=draw, value_in="log_joint")


def init(
    model: TopicModel,
    data: TopicData,
    generator: torch.Generator,
    *,
    start: str | Tensor = "random",
    num_generative: int = 10,
    scan: str = "auto",
) -> TopicState:
    """A first state: random or given topics [M]; after random ones sweeps without the margin; then weights.

    Raises
    ------
    ValueError             if the topics given are not M numbers 0..K-1.
    NotImplementedError    if the collapsed scan is asked for and the data are not on a CPU.
    """
    if scan == "collapsed" and not host.on_cpu(data.X):
        raise NotImplementedError(
            f"X is on {data.X.device}; the collapsed scan of topics is compiled for a CPU alone. Take scan='blocked'."
        )
    K, num_tokens = model.num_topics, len(data.words)
    if isinstance(start, Tensor):
        if start.shape != (num_tokens,) or bool(((start < 0) | (start >= K)).any()):
            raise ValueError(
                f"init has shape {tuple(start.shape)}; expected [{num_tokens}], a topic 0..{K - 1} for each token: for "
                "each row of X, each word in it and each of its copies."
            )
        assignments = start.to(data.words.device, torch.int32)
    else:
        like: dict[str, Any] = {"dtype": torch.int32, "device": data.words.device}
        assignments = torch.randint(K, (num_tokens,), generator=own_stream(generator), **like)
    documents, words = (count(assignments.long(), K).int() for count in (data.document_counts, data.word_counts))
    weights = data.targets.new_zeros(K, data.targets.shape[1])
    state = TopicState(assignments, documents, all_sum(words), weights, model.prior.start(data.targets))
    unsupervised = replace(data, targets=data.targets[:, :0])
    for _ in range(0 if isinstance(start, Tensor) else num_generative):
        state = draw_assignments(replace(state, weights=weights[:, :0]), unsupervised, model, generator, scan)
    state = replace(state, weights=weights)
    return replace(state, weights=draw_weights(state, data, model, generator))


def sweep(
    state: TopicState,
    data: TopicData,
    model: TopicModel,
    generator: torch.Generator,
    step: int = 0,
    *,
    scan: str = "auto",
) -> TopicState:
    """One sweep; each update leaves the target invariant."""
    state = draw_assignments(state, data, model, generator, scan)
    state = replace(state, weights=draw_weights(state, data, model, generator))
    counts = state.document_counts, state.word_counts
    hyper = model.prior.draw(state.hyper, *counts, generator, data.most_tokens)
    return replace(state, hyper=hyper)


# -- the topics of the tokens ------------------------------------------------------------------------------------------


def draw_assignments(
    state: TopicState, data: TopicData, model: TopicModel, generator: torch.Generator, scan: str = "auto"
) -> TopicState:
    """Draw the topic of every token, by compiled code in the order of the documents, or by `visit_places`.

    The latter serves factors without pseudo-observations, and factors of several scores that compiled code lacks.
    """
    loss, found = model.loss, model.loss.unmasked
    if scan == "blocked" or ranks() is not None or not host.on_cpu(data.X):
        return visit_places(state, data, model, generator)
    if not data.targets.shape[1]:
        margin: tuple[Any, ...] = 2 * (np.zeros((data.num_data, 0)),)
    elif isinstance(found, CrammerSinger):
        margin = _classes(data.targets).numpy(), float(found.strength), float(found.margin)
    elif loss.is_augmented and not loss.meets:
        observed = scored(state, data, model).observe(state.weights.unsqueeze(0), slice(None), generator)
        margin = tuple(part.double().contiguous().numpy() for part in observed)
    else:
        return visit_places(state, data, model, generator)
    return visit(state, data, margin, own_stream(generator))


def visit_places(state: TopicState, data: TopicData, model: TopicModel, generator: torch.Generator) -> TopicState:
    """Draw the topics, then the assignments of all documents in parallel: their first tokens, their second tokens, ...

        topic_k ~ Dir(beta + C_k.),    p(z_m = k)  prop. to  topic_kw (C_nk + alpha) phi(y_n | eta . zbar_n(z_m = k))

    Longer documents come first, so that the documents with a token at a given place are always the first ones.
    """
    h, eta, targets = state.hyper, state.weights.double(), data.targets.double()
    counts, assignments = state.document_counts.double(), state.assignments.long()
    log_topics = log_dirichlet(state.word_counts.T.double() + h["topic_concentration"], generator).T  # [V, K]
    levels = uniforms((len(assignments),), own_stream(generator))
    order, lengths = data.longest_first
    size = max(1, _MOST_SCORES // max(eta.shape[0], eta.numel()))
    for start in range(0, len(lengths), size):
        some = lengths[start : start + size]
        for place in range(some[0]):
            n = order[start : start + bisect_left(some, -place, key=neg)]
            m, length = data.starts[n] + place, data.lengths[n].view(-1, 1, 1)
            counts[n, assignments[m]] -= 1
            logits = log_topics[data.words[m]] + (counts[n] + h["document_concentration"]).log()
            if targets.shape[1]:
                scores = ((counts[n] @ eta).unsqueeze(1) + eta) / length  # [n, K, C], for each topic
                logits = logits + model.log_margin(scores, targets[n].unsqueeze(1))
            assignments[m] = draw_categorical(logits, levels[m])
            counts[n, assignments[m]] += 1
    words = all_sum(data.word_counts(assignments, len(state.weights)).int())
    return replace(state, assignments=assignments.int(), document_counts=counts.int(), word_counts=words)


def visit(state: TopicState, data: TopicData, margin: tuple[Any, ...], stream: torch.Generator) -> TopicState:
    """Run the compiled scan, given pseudo-observations (precision [N, C], shift [N, C]) or (classes [N], c, l)."""
    from . import _numba_topics as compiled  # compiles or loads machine code: only where a scan needs it

    num_topics, num_tokens = len(state.weights), len(data.words)
    require_shape("assignments", state.assignments, (num_tokens,))
    require_shape("document_counts", state.document_counts, (data.num_data, num_topics))
    require_shape("word_counts", state.word_counts, (data.X.shape[1], num_topics))
    proposes = len(margin) == 3
    padding = -num_topics % compiled.WIDTH
    state = replace(state, assignments=state.assignments.clone(), document_counts=state.document_counts.clone())
    word_counts = state.word_counts.new_zeros(data.X.shape[1], num_topics + padding)
    word_counts[:, :num_topics] = state.word_counts
    tokens = compiled.Tokens(
        data.starts.numpy(),
        data.words.numpy(),
        state.assignments.numpy(),
        state.document_counts.numpy(),
        word_counts.numpy(),
        pad(state.document_counts.sum(0), (0, padding)).numpy(),
        uniforms((num_tokens,), stream).numpy(),
        uniforms((num_tokens if proposes else 0,), stream).numpy(),
        float(state.hyper["document_concentration"]),
        float(state.hyper["topic_concentration"]),
    )
    eta = pad(state.weights.double().T, (0, padding)).contiguous().numpy()
    work = compiled.Work.of(eta)
    scan = compiled.scan_crammer_singer if proposes else compiled.scan
    step = max(1, _MOST_WORK * data.num_data // max(1, num_tokens * num_topics))
    for first in range(0, data.num_data, step):
        scan(tokens, work, *margin, eta, first, min(first + step, data.num_data))
    return replace(state, word_counts=word_counts[:, :num_topics].contiguous())


def _classes(targets: Tensor) -> Tensor:
    """The class [N] of each row of signs [N, L]; -1 where one is missing."""
    return torch.where(targets.isnan().any(1), -1, targets.nan_to_num().argmax(1))


# -- the weights of the topics -----------------------------------------------------------------------------------------


def draw_weights(state: TopicState, data: TopicData, model: TopicModel, generator: torch.Generator) -> Tensor:
    """Draw weights [K, C] given the assignments."""
    return scored(state, data, model).draw(state.weights.unsqueeze(0), generator).squeeze(0)


def scored(state: TopicState, data: TopicData, model: TopicModel) -> Scored:
    """The rows that the weights score: the mean topics [N, K] of all documents."""
    return Scored(data.mean_topics(state.document_counts), data.targets, model.loss, model.weight_scale)


# -- log density and draws for the posterior ---------------------------------------------------------------------------


def log_joint(state: TopicState, data: TopicData, model: TopicModel) -> Tensor:
    """log density [] of (z, eta, h), words and margin factors; topics, proportions and omega are integrated out."""
    h, eta, margin = state.hyper, state.weights.unsqueeze(0), scored(state, data, model)
    own = Tally.of(state.document_counts).log_polya(h["document_concentration"]), margin.told(eta)
    documents, told = all_sums(*own)
    words = Tally.of(state.word_counts.T).log_polya(h["topic_concentration"])
    return model.prior.log_density(h) + documents + words + margin.log_density(eta, told)


def draw(state: TopicState, data: TopicData, model: TopicModel) -> Draw:
    """The draw that the posterior keeps of a state; topics are their expectations given the assignments."""
    counts, like = state.word_counts, state.weights
    return drawn(
        TopicDraw(
            assignments=state.assignments,
            topics=mean_proportions(counts.T.to(like.dtype), float(state.hyper["topic_concentration"])),
            topic_sizes=counts.sum(0).to(like.dtype),
            weights=state.weights,
            log_joint=log_joint(state, data, model),
            document_concentration=state.hyper["document_concentration"].to(like.dtype),
            topic_concentration=state.hyper["topic_concentration"].to(like.dtype),
        )
    )


_MOST_SCORES = 2**22  # of a document, a topic and a class, in memory at once
_MOST_WORK = 2**28  # topic weights computed between two checks for Ctrl-C
