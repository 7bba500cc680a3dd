"""Mean field of topic models: LDA, and MedLDA under either reading of its margin.

`rule="averaging"` minimizes J = KL(q || p) + sum_n g(E f_n), the problem of the paper, with q(eta_c) = N(mu_c, nu^2 I):
documents and classifiers solve their duals, exactly. `rule="gibbs"` raises a bound of the log evidence with the omegas
of the margin among the factors, and keeps q(z), nnz x K numbers. Both record the ELBO, -J, which no sweep lowers.
Without scores (LDA) they are one algorithm, that of Blei, Ng & Jordan (2003). On minibatches the topics take natural
gradient steps, and so does q(eta); of the averaging rule it is an implicit one.

Sources: Zhu, Ahmed & Xing (2012); Hoffman et al. (2013); math/latent-features, sections 4 and 7; math/regbayes,
sections 2, 3 and 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ....models.losses import Loss
from ....models.topics import TopicData, TopicModel
from ...classifiers.natural import extrapolated, prior, require_readings
from ...distributed.collectives import all_sum, own_stream
from ...running.engine import Draw, Kernel
from ..backend import SVI
from ..steps import Minibatch, Steps
from ..stream import Stream, stream_points
from .documents import LIMITS
from .factors import (
    VariationalTopics,
    augmented_margin,
    evidence,
    log_topics,
    loss_of,
    margin,
    mean_topics,
    polish,
    update_documents,
    update_tokens,
    update_weights,
    weight_scale_of,
    with_bound,
    with_classifiers,
    with_rows,
    without_rows,
)


def init(model: TopicModel, data: TopicData, generator: torch.Generator) -> VariationalTopics:
    """Each topic from the words of a few documents with like targets and of all; then some sweeps without a margin."""
    K, C = model.num_topics, data.targets.shape[1]
    words = data.X.double()
    total = all_sum(words.sum(0))
    seeds = similar(data, K, generator)
    own = all_sum(torch.stack([words[rows].sum(0) for rows in seeds], 1))
    zeros = total.new_zeros(K, C)
    state = VariationalTopics(
        word_counts=(own / own.sum(0).clamp(min=1.0) * total.sum() + total.unsqueeze(1)) / (2 * K),
        mean=zeros,
        precision_tril=prior(1, K, C, weight_scale_of(model), zeros).precision_tril[0],
        counts=zeros[:0, :0],
        tilt=zeros[:0],
        phi=zeros.new_zeros(0, K),
        divergence=zeros.new_zeros(()),
        bound=zeros.new_tensor(-torch.inf),
        duality_gap=zeros.new_tensor(torch.nan),
        total_weight=0.0,
    )
    state = with_rows(state, data, model)
    for _ in range(_FIRST_SWEEPS):
        state = update_documents(state, data, model, _NUM_STEPS, with_margin=False)
    return state


def similar(data: TopicData, num_groups: int, generator: torch.Generator) -> Tensor:
    """Groups of documents [K, S] in the order of their targets, or of classes, of which each group has about one."""
    order = torch.randperm(data.num_data, generator=own_stream(generator), device=data.X.device)
    known = order[~data.targets[order].isnan().any(1)]
    if data.targets.shape[1] and len(known):
        targets = data.targets[known]
        place = targets.argmax(1) if targets.shape[1] > 1 else targets.squeeze(1)
        order = known[place.argsort(stable=True)]
    first = torch.arange(num_groups, device=order.device).unsqueeze(1) * len(order) // num_groups
    return order[(first + torch.arange(_NUM_SEEDS, device=order.device)) % len(order)]


# -- full batch: coordinate ascent -------------------------------------------------------------------------------------


def sweep(state: VariationalTopics, data: TopicData, model: TopicModel) -> VariationalTopics:
    """Averaging: every document, the topics, then the classifiers; again, to rounding, if the bound has fallen."""
    least = state.bound if state.num_data == data.num_data else torch.full_like(state.bound, -torch.inf)
    start = started(state, data, model)
    for limits in LIMITS:
        moved = update_weights(update_documents(*start, limits=limits), data, model)
        moved = with_bound(moved, model, margin(moved, data, model))
        if moved.bound >= least:
            return moved
    return state


def sweep_augmented(state: VariationalTopics, data: TopicData, model: TopicModel) -> VariationalTopics:
    """Gibbs classifier: every document with its omegas, the topics, then the classifiers."""
    state = update_tokens(*started(state, data, model))
    state = with_classifiers(state, evidence(state, data, model).step(state.classifiers))
    return with_bound(state, model, augmented_margin(state, data, model))


def started(state: VariationalTopics, data: TopicData, model: TopicModel) -> tuple[Any, TopicData, Any, int]:
    """What documents are given, and how many steps they take; they take more where they start anew."""
    if state.num_data == data.num_data:
        return state, data, model, _NUM_STEPS
    return with_rows(state, data, model), data, model, _NUM_FIRST_STEPS


# -- minibatches: stochastic natural gradients -------------------------------------------------------------------------


def rows_of(data: TopicData, rows: Tensor) -> TopicData:
    """The documents of some rows [n]."""
    return TopicData(data.X[rows], data.targets[rows])


def first_rows(data: TopicData, num_rows: int, generator: torch.Generator) -> TopicData:
    """Documents from which a stochastic fit starts."""
    order = torch.randperm(data.num_data, generator=own_stream(generator), device=data.X.device)
    return rows_of(data, order[:num_rows])


def minibatch(data: TopicData, size: int, generator: torch.Generator) -> Minibatch[TopicData]:
    """`size` documents, drawn with replacement."""
    chosen = torch.randint(data.num_data, (size,), generator=own_stream(generator), device=data.X.device)
    return Minibatch(rows_of(data, chosen), data.num_data / size)


def extrapolate(
    state: VariationalTopics, rows: TopicData, model: TopicModel, num_data: int, num_units: float
) -> VariationalTopics:
    """Factors as if all documents were like these: where stochastic steps start."""
    scale = num_data / rows.num_data
    if len(state.phi):
        state = with_classifiers(state, extrapolated(state.classifiers, weight_scale_of(model), scale))
    return without_rows(replace(state, word_counts=scale * state.word_counts))


def stochastic_sweep(
    state: VariationalTopics, batch: Minibatch[TopicData], model: TopicModel, rho: float
) -> VariationalTopics:
    """Averaging: topics move by rho towards those of a batch that stands for all; the classifiers as in `implicit`."""
    local = update_documents(*started(without_rows(state), batch.data, model))
    moved = _moved(state, local, batch, model, rho, margin)
    loss = loss_of(model)
    if loss is None or not batch.data.targets.shape[1]:
        return moved
    features, variance = mean_topics(local.counts, batch.data.X), rho * batch.scale * weight_scale_of(model) ** 2
    targets = batch.data.targets.double()
    return replace(moved, mean=implicit(features, targets, loss, (1 - rho) * state.mean, variance, local.tilt))


def stochastic_sweep_augmented(
    state: VariationalTopics, batch: Minibatch[TopicData], model: TopicModel, rho: float
) -> VariationalTopics:
    """Gibbs classifier: natural parameters of the topics and of q(eta) move by rho towards those of a batch."""
    local = update_tokens(*started(without_rows(state), batch.data, model))
    moved = _moved(state, local, batch, model, rho, augmented_margin)
    return with_classifiers(moved, evidence(local, batch.data, model, batch.scale).step(state.classifiers, rho))


def implicit(features: Tensor, targets: Tensor, loss: Loss, mean: Tensor, variance: float, tilt: Tensor) -> Tensor:
    """mu [K, C] that minimizes |mu - mean|^2 / (2 variance) + sum_n g(mu^T a_n), with features a [n, K].

    It is mean + variance sum_n a_n t_n^T with the tilts of its own scores, not of those before (as in Pegasos), so that
    it is stable at any size. With mean (1 - rho) mu and variance rho N / n nu^2, rho = 1 and all points, it is the SVM.
    Found by accelerated proximal gradient steps from tilts [n, C].
    """
    largest = variance * torch.linalg.eigvalsh(features.T @ features)[-1]
    ahead, momentum = tilt, 1.0
    for _ in range(_IMPLICIT_STEPS if largest > 0 else 0):
        scores = features @ (mean + variance * features.T @ ahead) - largest * ahead
        moved = loss.best_tilt(scores, largest, targets)
        uphill = float(((ahead - moved) * (moved - tilt)).sum()) > 0
        following = 1.0 if uphill else (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = moved if uphill else moved + (momentum - 1) / following * (moved - tilt)
        tilt, momentum = moved, following
    return mean + variance * features.T @ tilt


def _moved(
    state: VariationalTopics,
    local: VariationalTopics,
    batch: Minibatch[TopicData],
    model: TopicModel,
    rho: float,
    cost: Callable[..., Tensor],
) -> VariationalTopics:
    """The topics a step further, and the batch's estimate of the bound at the factors from before the step."""
    words = batch.scale * local.word_counts
    empty = TopicData(batch.data.X[:0], batch.data.targets[:0])
    fixed = cost(without_rows(state), empty, model)
    rows = batch.scale * (local.divergence + cost(local, batch.data, model) - fixed)
    apart = ((state.word_counts - words) * log_topics(state, model)).sum()
    state = with_bound(replace(state, divergence=rows + apart), model, fixed)
    return without_rows(replace(state, word_counts=torch.lerp(state.word_counts, words, rho)))


# -- what the backend asks ---------------------------------------------------------------------------------------------


def summary(state: VariationalTopics, data: TopicData, model: TopicModel) -> Draw:
    """What the posterior keeps."""
    dtype, hyper = data.X.dtype, model.prior.start(state.word_counts)
    shape = (state.word_counts + model.prior.topic_concentration).T
    solved = {} if state.duality_gap.isnan() else {"duality_gap": state.duality_gap}
    return {
        "topics": (shape / shape.sum(1, keepdim=True)).to(dtype),
        "log_topics": log_topics(state, model).T.contiguous().to(dtype),
        "weights": state.mean.to(dtype),
        "topic_sizes": state.word_counts.sum(0).to(dtype),
        **hyper,
        **solved,
    }


def check(backend: SVI, model: TopicModel) -> None:
    """Raise NotImplementedError unless the loss has what the rule needs and the concentrations are fixed."""
    prior, loss = model.prior, loss_of(model)
    if prior.document_concentration_prior is not None or prior.topic_concentration_prior is not None:
        raise NotImplementedError(
            "SVI has no law of the concentrations of topics: leave document_concentration_prior and "
            "topic_concentration_prior out, or use Gibbs, which draws them."
        )
    if loss is None:
        return
    require_readings(loss, backend.rule)


def kernel(backend: SVI, model: TopicModel) -> Kernel:
    """Coordinate ascent, or stochastic steps on minibatches, with the options of the backend bound."""
    return _steps(backend, model).kernel(backend, model)


def stream(backend: SVI, model: TopicModel, loader: DataLoader[Any]) -> tuple[Kernel, Any, Stream[TopicData]]:
    """The kernel of stochastic steps on the batches of a loader, the resolved model, and the stream as its data."""
    return _steps(backend, model).stream(backend, model, loader)


def _steps(backend: SVI, model: TopicModel) -> Steps:
    return AVERAGING if loss_of(model) is None or backend.rule == "averaging" else AUGMENTED


def _nothing(draws: list[Draw], model: TopicModel) -> None:
    """No truncation binds."""


AVERAGING = Steps(
    state=VariationalTopics,
    init=init,
    sweep=sweep,
    complete=lambda state, data, model: state,
    draw=summary,
    first=first_rows,
    count=lambda data: float(data.num_data),
    extrapolate=extrapolate,
    minibatch=minibatch,
    stochastic_sweep=stochastic_sweep,
    read=stream_points,
    rows="counts",
    warn=_nothing,
    polish=polish,
)
AUGMENTED = replace(AVERAGING, sweep=sweep_augmented, stochastic_sweep=stochastic_sweep_augmented, polish=None)

_NUM_SEEDS = 5  # documents that a topic starts from
_FIRST_SWEEPS = 10  # without a margin
_NUM_STEPS = 5  # of a document in a sweep
_NUM_FIRST_STEPS = 30  # where it starts
_IMPLICIT_STEPS = 100
