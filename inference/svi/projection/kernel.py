"""Mean field of tasks that share a binary projection, by coordinate ascent on all rows.

rule="averaging", Algorithm 2 of Zhu, Chen & Xing: the score of a row is that of the expected classifiers,

    bound = ELBO of projection and inputs - sum_m |mu_m|^2 / (2 nu^2) + sum_nm log phi(y_nm | mu_m^T [Psi^T x_n; b_n])

and q(eta_m) = N(mu_m, nu^2 I), where mu_m is a support vector machine that its dual finds. Rounds with its tilts
frozen, in which all dimensions move at once, come first and may lower the bound: the best of them starts the sweeps
proper, which set every bit to its exact optimum and never lower it. It is no bound of the log evidence.

rule="gibbs": the margins are expected, as in `augmented`; the bound is one of the log evidence.

Source: math/regbayes, section 5; math/latent-features, section 6.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ....models.distributions.sampling import uniforms
from ....models.mt_ilsvm import MultiTaskInfiniteLatentSVM
from ....models.multi_task import TaskData
from ...bits.shared_projection import Margins, task_margins
from ...classifiers.minimum import DualLimits
from ...distributed.collectives import all_sum
from ...posterior.draws import ProjectionDraw, drawn
from ...running.engine import Draw
from ..rules import LAST_GAP, RULES, Learned, Rule, by_dual
from ..steps import Steps, StepsByRule
from . import augmented
from .factors import MeanFieldProjection, bound_without_margins, generative, scatter, update_loadings, update_prior

_GAP = 1e-3
_PASSES = 20  # of a dual in one sweep; the next one goes on from there


def init(
    model: MultiTaskInfiniteLatentSVM,
    data: TaskData,
    generator: torch.Generator,
    *,
    rule: Rule,
    num_frozen: int = 10,
) -> MeanFieldProjection:
    """Probabilities around one half; of the averaging rule, the best of rounds with frozen tilts from there."""
    X, K, M = data.X, model.truncation, data.num_tasks
    psi = start_features(model, data, generator)
    q = model.prior.initial(X.double(), K)
    start = {} if model.likelihood is None else model.likelihood.start(X)
    none = X.new_zeros(0, dtype=torch.float64)
    state = MeanFieldProjection(
        features=psi,
        sticks=torch.stack([q.a, q.b]),
        concentration=q.concentration,
        weights=X.new_zeros(K + data.inputs.shape[1], M),
        tilt=X.new_zeros(len(data.rows)),
        precision_tril=none,
        loading_map=none,
        loading_covariance=none,
        precisions={name: torch.stack([value, torch.ones_like(value)]) for name, value in start.items()},
        bound=none.new_tensor(-torch.inf),
        duality_gap=none.new_tensor(torch.nan),
        total_weight=float(all_sum(none.new_tensor(float(data.num_data)))),
    )
    if not rule.has_dual:
        return augmented.init(state, data, model)
    outer = scatter(data, model.likelihood)
    state = update_weights(_around(state, model, outer), data, model)
    best = state = observe(state, data, model, outer)
    for _ in range(num_frozen):
        state = freeze(_around(state, model, outer), data, model, outer)
        state = observe(update_weights(state, data, model), data, model, outer)
        best = state if state.bound > best.bound else best
    return best


def start_features(model: MultiTaskInfiniteLatentSVM, data: TaskData, generator: torch.Generator) -> Tensor:
    """psi [D, K] to start from: pairs of columns along, and against, what most of the margins pull towards at score 0.

    These are the leading left singular vectors of sum_n x_n t_n^T [D, M], t_n the tilts; the other columns, and a part
    of each, are random.
    """
    D, K = data.X.shape[1], model.truncation
    with torch.enable_grad():
        scores = torch.zeros_like(data.known).requires_grad_()
        (slope,) = torch.autograd.grad(model.loss.log_factor(scores, data.known).sum(), scores)
    tilts = data.X.new_zeros(data.targets.shape).index_put((data.rows, data.tasks), slope)
    lead = torch.linalg.svd(all_sum(data.X.T @ tilts), full_matrices=False).U[:, : K // 2].double()
    along = lead / lead.abs().amax(0).clamp(min=torch.finfo(lead.dtype).tiny)
    along = torch.stack([along, -along], 2).flatten(1)
    psi = 0.5 + _SPREAD * (uniforms((D, K), generator) - 0.5)
    psi[:, : along.shape[1]] += _LEAD * along
    return psi.to(data.X)


def _around(state: MeanFieldProjection, model: MultiTaskInfiniteLatentSVM, outer: Tensor) -> MeanFieldProjection:
    """All factors but those of bits and classifiers."""
    return update_loadings(update_prior(state, model), model, outer)


def sweep(state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM) -> MeanFieldProjection:
    """Prior, loadings, precisions, bits, classifiers: none of them lowers the bound."""
    outer = scatter(data, model.likelihood)
    state = update_bits(_around(state, model, outer), data, model, outer)
    return observe(update_weights(state, data, model), data, model, outer)


def observe(
    state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM, outer: Tensor
) -> MeanFieldProjection:
    """The same factors with their bound []; outer [D, D] as by `scatter`."""
    bound = bound_without_margins(state, model, outer) - sum_costs(state, data, model).sum()
    return replace(state, bound=bound)


def sum_costs(state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM) -> Tensor:
    """What the classifier of each task costs, [M] float64: its ridge and its margins."""
    return task_margins(data, model, state.features).value(state.weights.T.unsqueeze(2)).sum(1)


# -- bits --------------------------------------------------------------------------------------------------------------


def update_bits(
    state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM, outer: Tensor
) -> MeanFieldProjection:
    """psi_dk, of [D, K], at the exact optimum given all others, one after another."""
    margins = Margins(data, model.loss, state.weights[: model.truncation])
    scores = data.pair_scores(data.X @ state.features, state.weights)
    psi = margins.fit_probabilities(state.features, generative(state, model, outer), scores)
    return replace(state, features=psi)


def freeze(
    state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM, outer: Tensor
) -> MeanFieldProjection:
    """psi [D, K] at the optimum for tilts as they are, which add sum_n t_nm mu_mk x_nd to the log odds; k after k."""
    odds, linear, gram = generative(state, model, outer)
    tilts = data.X.new_zeros(data.targets.shape).index_put((data.rows, data.tasks), state.tilt)
    pull = all_sum(data.X.T @ (tilts @ state.weights[: model.truncation].T)).double()
    psi = state.features.double().clone()
    for k in range(psi.shape[1]):
        others = psi @ gram[:, k] - psi[:, k] * gram[k, k]
        psi[:, k] = (odds[k] + linear[:, k] + pull[:, k] - gram[k, k] / 2 - others).sigmoid()
    return replace(state, features=psi.to(state.features))


# -- classifiers -------------------------------------------------------------------------------------------------------


def update_weights(
    state: MeanFieldProjection,
    data: TaskData,
    model: MultiTaskInfiniteLatentSVM,
    tolerance: float = _GAP,
    max_passes: int = _PASSES,
) -> MeanFieldProjection:
    """Each task's support vector machine, from its last tilts; it stays where the dual has not lowered its cost."""
    margins, none = task_margins(data, model, state.features), state.precision_tril
    old = Learned(state.weights.T.unsqueeze(2), none, state.tilt.unsqueeze(1), state.duality_gap)
    found = by_dual(margins, old, DualLimits(tolerance, max_passes))
    weights = found.mean.squeeze(2).T.contiguous()
    return replace(state, weights=weights, tilt=found.tilt.squeeze(1), duality_gap=found.gap)


def polish(state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM) -> MeanFieldProjection:
    """The last state of a fit, with its classifiers at their optimum to rounding."""
    return update_weights(state, data, model, LAST_GAP, _LAST_PASSES)


# -- what the backend asks -----------------------------------------------------------------------------------------


def draw(state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM) -> Draw:
    """What the posterior keeps."""
    K, dtype = model.truncation, data.X.dtype
    precisions = {name: state.mean(name).to(dtype) for name in state.precisions}
    prior = {name: value.to(dtype) for name, value in model.prior.mean_hyper(state.q).items()}
    kept = ProjectionDraw(
        features=state.features,
        log_odds=model.prior.log_odds(state.q).to(dtype),
        weights=state.weights[:K].contiguous(),
        input_weights=state.weights[K:].contiguous(),
    )
    if not state.duality_gap.isnan():
        kept["duality_gap"] = state.duality_gap
    return drawn(kept, prior, precisions)


def steps_by(rule: Rule) -> Steps[MeanFieldProjection, TaskData, MultiTaskInfiniteLatentSVM]:
    """The steps of a rule, all of which see all rows."""
    return Steps(
        state=MeanFieldProjection,
        init=partial(init, rule=rule),
        sweep=sweep if rule.has_dual else augmented.sweep,
        complete=polish if rule.has_dual else lambda state, data, model: state,
        draw=draw,
        warn=lambda draws, model: None,
        polish=polish if rule.has_dual else None,
    )


BY_RULE = StepsByRule(lambda backend, model: {rule: steps_by(rule) for rule in RULES.values()})
_SPREAD = 0.3
_LEAD = 0.3
_LAST_PASSES = 1000
