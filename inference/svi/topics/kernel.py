"""Mean field of topic models: LDA, and MedLDA under either rule for its margin.

`rule="averaging"` minimizes J = KL(q || p) + sum_n g(E f_n), the problem of the paper, with q(eta_c) = N(mu_c, nu^2 I):
the duals of documents and classifiers are solved exactly. `rule="gibbs"` raises a bound of the log evidence in which
the omegas of the margin have factors; it keeps q(z), nnz x K numbers. Both record the ELBO (-J), which no sweep lowers.
Without scores (LDA) both are the algorithm of Blei, Ng & Jordan (2003). On minibatches the topics take natural-gradient
steps, and so does q(eta); under the averaging rule its step is an implicit one.

Sources: Zhu, Ahmed & Xing (2012); Hoffman et al. (2013); docs/derivations/scale, "Stochastic steps";
docs/derivations/topics, "Joint density"; docs/derivations/regbayes, "Conjugates of the losses" and "Averaging and
Gibbs classifiers".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ....models.losses import Loss
from ....models.sums import among
from ....models.topics import TopicData, TopicModel
from ...classifiers.natural import extrapolated, prior
from ...distributed.collectives import all_count, all_rows, all_sum
from ...distributed.picked import own_of
from ...distributed.stream import stream_points
from ...posterior.draws import TopicDraw, drawn
from ...running.engine import Draw
from ..backend import SVI
from ..factors import loss_of
from ..partition.kernel import by_rows
from ..rules import AVERAGING, NATURAL, RULES, Rule
from ..steps import Minibatch, Steps, StepsByRule
from .documents import LIMITS
from .factors import (
    VariationalTopics,
    cost,
    evidence,
    log_topics,
    polish,
    update_classifiers,
    update_documents,
    update_tokens,
    weight_scale_of,
    with_bound,
    with_rows,
    without_rows,
)
from .start import scanned_counts


def init(model: TopicModel, data: TopicData, generator: torch.Generator) -> VariationalTopics:
    """A first state: topics from the words of a few documents with similar targets, then sweeps without margin.

    Without scores collapsed Gibbs scans follow, unless there are too many tokens (`start.scanned_counts`).
    """
    K, C = model.num_topics, data.targets.shape[1]
    words = data.X.double()
    total = all_sum(words.sum(0))
    seeds = similar(data, K, generator)
    own = all_sum(torch.stack([words[own_of(rows, data.num_data)].sum(0) for rows in seeds], 1))
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
    if C:
        return state
    state = replace(state, word_counts=scanned_counts(state, data, model, generator, _NUM_FIRST_STEPS))
    return update_documents(with_rows(state, data, model), data, model, _NUM_FIRST_STEPS, with_margin=False)


def similar(data: TopicData, num_groups: int, generator: torch.Generator) -> Tensor:
    """Row numbers [K, S] of documents in groups, one for each topic, by targets or classes."""
    order = torch.randperm(all_count(data.num_data), generator=generator, device=data.X.device)
    targets, num_scores = data.targets, data.targets.shape[1]
    if num_scores:
        place = targets.argmax(1).to(targets) if num_scores > 1 else targets.squeeze(1)
        place = all_rows(place.masked_fill(targets.isnan().any(1), torch.nan))[order]
        known = torch.nonzero(~place.isnan()).squeeze(1)
        order = order[known[place[known].argsort(stable=True)]] if len(known) else order
    first = torch.arange(num_groups, device=order.device).unsqueeze(1) * len(order) // num_groups
    return order[(first + torch.arange(_NUM_SEEDS, device=order.device)) % len(order)]


# -- full batch: coordinate ascent -------------------------------------------------------------------------------------


def sweep(state: VariationalTopics, data: TopicData, model: TopicModel, *, rule: Rule) -> VariationalTopics:
    """Update every document, topics, then classifiers; again with stricter limits if the bound has fallen."""
    least = state.bound if state.num_data == data.num_data else torch.full_like(state.bound, -torch.inf)
    start = started(state, data, model)
    for update in _DOCUMENTS[rule]:
        moved = update_classifiers(update(*start), data, model, rule)
        moved = with_bound(moved, model, cost(moved, data, model, rule))
        if moved.bound >= least:
            break
    else:
        return state if rule.has_dual else moved
    return moved


def started(
    state: VariationalTopics, data: TopicData, model: TopicModel
) -> tuple[VariationalTopics, TopicData, TopicModel, int]:
    """The arguments of an update of documents; those at their first values take more steps."""
    return (state, data, model, _NUM_STEPS) if state.num_data == data.num_data else anew(state, data, model)


def anew(
    state: VariationalTopics, data: TopicData, model: TopicModel
) -> tuple[VariationalTopics, TopicData, TopicModel, int]:
    """The arguments of an update of documents at their first values."""
    return with_rows(state, data, model), data, model, _NUM_FIRST_STEPS


# -- minibatches: stochastic natural gradients -------------------------------------------------------------------------


def extrapolate(
    state: VariationalTopics, rows: TopicData, model: TopicModel, num_data: int, num_units: float
) -> VariationalTopics:
    """The start of stochastic steps: factors as if all documents were like these."""
    scale = num_data / all_count(rows.num_data)
    if all_count(len(state.phi)):
        q = extrapolated(state.classifiers, weight_scale_of(model), scale)
        state = replace(state, mean=q.mean[0], precision_tril=q.precision_tril[0])
    return without_rows(replace(state, word_counts=scale * state.word_counts))


def stochastic_sweep(
    state: VariationalTopics, batch: Minibatch[TopicData], model: TopicModel, rho: float, *, rule: Rule
) -> VariationalTopics:
    """Move topics and q(eta) by rho to the optimum for a batch, scaled to represent all documents.

    Averaged classifiers move by `implicit`. The recorded bound is the batch's estimate at the factors before the step.
    """
    local = _DOCUMENTS[rule][0](*anew(without_rows(state), batch.data, model))
    words = batch.scale * local.word_counts
    with among(None):  # without rows there is nothing to sum over ranks
        fixed = cost(without_rows(state), batch.data.rows(slice(0)), model, rule)
    rows = batch.scale * (local.divergence + cost(local, batch.data, model, rule) - fixed)
    apart = ((state.word_counts - words) * log_topics(state, model)).sum()
    moved = with_bound(replace(state, divergence=rows + apart), model, fixed)
    moved = without_rows(replace(moved, word_counts=torch.lerp(state.word_counts, words, rho)))
    if not state.mean.shape[1]:
        return moved
    said = evidence(local, batch.data, model, batch.scale)
    if rule.has_dual:
        start, variance = (1 - rho) * state.mean, rho * batch.scale * said.weight_scale**2
        return replace(moved, mean=implicit(said.features, said.targets, said.loss, start, variance, local.tilt))
    return moved.with_learned(rule.step(said, moved.learned, rho))


def implicit(features: Tensor, targets: Tensor, loss: Loss, mean: Tensor, variance: float, tilt: Tensor) -> Tensor:
    """The mu [K, C] that minimizes |mu - mean|^2 / (2 variance) + sum_n g(mu^T a_n), with features a [n, K].

    It is mean + variance sum_n a_n t_n^T with the tilts at its own scores (not at those before the step, as in
    Pegasos), so the step is stable at any size. With mean (1 - rho) mu, variance rho N / n nu^2, rho = 1 and all
    points, it is the SVM. It is found by accelerated proximal gradient steps from tilts [n, C].
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


# -- for the backend ---------------------------------------------------------------------------------------------------


def summary(state: VariationalTopics, data: TopicData, model: TopicModel) -> Draw:
    """The draw that the posterior keeps."""
    dtype, hyper = data.X.dtype, model.prior.start(state.word_counts)
    shape = (state.word_counts + model.prior.topic_concentration).T
    kept = TopicDraw(
        topics=(shape / shape.sum(1, keepdim=True)).to(dtype),
        log_topics=log_topics(state, model).T.contiguous().to(dtype),
        weights=state.mean.to(dtype),
        topic_sizes=state.word_counts.sum(0).to(dtype),
        document_concentration=hyper["document_concentration"],
        topic_concentration=hyper["topic_concentration"],
        classifier_tril=state.precision_tril,
        num_seen=torch.tensor([float(data.total_weight)], dtype=torch.float64),
    )
    return drawn(kept, state.learned.solved)


def restored_topics(kept: Draw, data: TopicData, model: TopicModel) -> VariationalTopics:
    """Restore the state, without documents, from its draw; expected counts follow from topics and their sizes."""
    sizes, beta = kept["topic_sizes"].double(), float(kept["topic_concentration"])
    shape = kept["topics"].double().T * (sizes + kept["topics"].shape[1] * beta)
    mean = kept["weights"].double()
    return VariationalTopics(
        word_counts=(shape - beta).clamp(min=0.0),
        mean=mean,
        precision_tril=kept["classifier_tril"],
        counts=mean.new_zeros(0, len(sizes)),
        tilt=mean.new_zeros(0, mean.shape[1]),
        phi=mean.new_zeros(0, len(sizes)),
        divergence=mean.new_zeros(()),
        bound=mean.new_zeros(()),
        duality_gap=mean.new_tensor(torch.nan),
        total_weight=0.0,
    )


def require_fixed(model: TopicModel) -> None:
    """Raise NotImplementedError unless the prior's concentrations are fixed."""
    prior = model.prior
    if prior.document_concentration_prior is not None or prior.topic_concentration_prior is not None:
        raise NotImplementedError(
            "SVI keeps the concentrations of topics fixed: leave document_concentration_prior and "
            "topic_concentration_prior out, or use Gibbs, which draws them."
        )


def steps_by(rule: Rule) -> Steps[VariationalTopics, TopicData, TopicModel]:
    """The functions of a fit under a rule."""
    return Steps(
        state=VariationalTopics,
        init=init,
        sweep=partial(sweep, rule=rule),
        complete=lambda state, data, model: state,
        draw=summary,
        stochastic=by_rows(extrapolate, partial(stochastic_sweep, rule=rule), stream_points),
        rows="counts",
        warn=lambda draws, model: None,  # no truncation can be too small
        polish=polish if rule.has_dual else None,
    )


def steps_of(backend: SVI, model: TopicModel) -> dict[Rule, Steps[VariationalTopics, TopicData, TopicModel]]:
    """The functions by rule; without scores, both are those of the averaging rule, which keeps no q(z)."""
    return {rule: steps_by(AVERAGING if loss_of(model) is None else rule) for rule in RULES.values()}


BY_RULE = StepsByRule(steps_of, require_fixed, splits=True)
_DOCUMENTS: dict[Rule, tuple[Callable[..., VariationalTopics], ...]] = {
    AVERAGING: tuple(partial(update_documents, limits=limits) for limits in LIMITS),
    NATURAL: (update_tokens,),
}
_NUM_SEEDS = 5  # documents per topic at the start
_FIRST_SWEEPS = 10  # without a margin
_NUM_STEPS = 5  # of a document in a sweep
_NUM_FIRST_STEPS = 30  # of a document at its first values
_IMPLICIT_STEPS = 100
