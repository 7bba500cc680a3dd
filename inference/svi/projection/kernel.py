"""Mean field of tasks that share a binary projection, by coordinate ascent on all rows.

rule="averaging", Algorithm 2 of Zhu, Chen & Xing: the score of a row is that of the expected classifiers,

    bound = ELBO of projection and inputs - sum_m |mu_m|^2 / (2 nu^2) + sum_nm log phi(y_nm | mu_m^T [Psi^T x_n; b_n])

and q(eta_m) = N(mu_m, nu^2 I), where mu_m is a support vector machine, solved by its dual. A fit begins with rounds in
which the dual variables are fixed and all dimensions move at once; these may lower the bound. The best of them is the
start of the sweeps, which set every bit to its exact optimum and never lower the bound. It is not a bound of the log
evidence.

rule="gibbs": the margins are expected, q(eta_m) = N(mu_m, V_m), and the bound is one of the log evidence. With
u = Z^T x, v_k = Var u_k = sum_d psi (1 - psi) x_d^2 and B_m = mu_m mu_m^T + V_m,

    E f = mu^T [E u; b],   Var f = [E u; b]^T V [E u; b] + sum_k B_kk v_k
    V_m^-1 = I / nu^2 + sum p ([E u; b][E u; b]^T + diag(v)),   mu_m = V_m sum s [E u; b]

with pseudo-observations (p, s) = `loss.expect`(E f, Var f) of each known pair of a row and a task.

Source: docs/derivations/regbayes, "Averaging and Gibbs classifiers"; docs/derivations/latent-features, "Tasks".
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ....models.distributions.sampling import uniforms
from ....models.mt_ilsvm import MultiTaskInfiniteLatentSVM
from ....models.multi_task import TaskData
from ...classifiers.minimum import DualLimits
from ...distributed.collectives import all_sum
from ...posterior.draws import ProjectionDraw, drawn
from ...running.engine import Draw
from ..rules import LAST_GAP, RULES, Rule
from ..steps import Steps, StepsByRule
from .factors import (
    MeanFieldProjection,
    bound_without_margins,
    evidence,
    scatter,
    update_loadings,
    update_prior,
)
from .margins import UPDATES, freeze

LIMITS = DualLimits(1e-3, 20)  # of a dual in one sweep; the next sweep continues from there
LAST_LIMITS = DualLimits(LAST_GAP, 1000)


def init(
    model: MultiTaskInfiniteLatentSVM,
    data: TaskData,
    generator: torch.Generator,
    *,
    rule: Rule,
    num_frozen: int = 10,
) -> MeanFieldProjection:
    """A first state with probabilities around 1/2; under the averaging rule the best of rounds with fixed tilts."""
    outer = scatter(data, model.likelihood)
    state = _around(_prior_state(model, data, generator, rule), model, outer)
    best = state = observe(update_classifiers(state, data, model, rule), data, model, outer, rule)
    for _ in range(num_frozen if rule.has_dual else 0):
        state = update_classifiers(freeze(_around(state, model, outer), data, model, outer), data, model, rule)
        state = observe(state, data, model, outer, rule)
        best = state if state.bound > best.bound else best
    return best


def _prior_state(
    model: MultiTaskInfiniteLatentSVM, data: TaskData, generator: torch.Generator, rule: Rule
) -> MeanFieldProjection:
    """Bits at their first values, and every other factor at its prior."""
    X, K, size = data.X, model.truncation, model.truncation + data.inputs.shape[1]
    psi, q = start_features(model, data, generator), model.prior.initial(X.double(), K)
    start = {} if model.likelihood is None else model.likelihood.start(X)
    none = X.new_zeros(0, dtype=torch.float64)
    return MeanFieldProjection(
        features=psi,
        sticks=torch.stack([q.a, q.b]),
        concentration=q.concentration,
        weights=X.new_zeros(size, data.num_tasks),
        tilt=none.new_zeros(len(data.rows) if rule.has_dual else 0),
        precision_tril=rule.prior(data.num_tasks, size, 1, model.weight_scale, none).precision_tril,
        loading_map=none,
        loading_covariance=none,
        precisions={name: torch.stack([value, torch.ones_like(value)]) for name, value in start.items()},
        bound=none.new_tensor(-torch.inf),
        duality_gap=none.new_tensor(torch.nan),
        total_weight=float(all_sum(none.new_tensor(float(data.num_data)))),
    )


def start_features(model: MultiTaskInfiniteLatentSVM, data: TaskData, generator: torch.Generator) -> Tensor:
    """The first psi [D, K]: pairs of columns along, and against, the main directions of the margins' slopes at score 0.

    These directions are the leading left singular vectors of sum_n x_n t_n^T [D, M], with t_n the slopes. The other
    columns, and a part of each column, are random.
    """
    D, K = data.X.shape[1], model.truncation
    with torch.enable_grad():
        scores = torch.zeros_like(data.known).requires_grad_()
        (slope,) = torch.autograd.grad(model.loss.log_factor(scores, data.known).sum(), scores)
    directions, sizes, _ = torch.linalg.svd(all_sum(data.X.T @ data.by_task(slope)), full_matrices=False)
    exist = sizes > _ROUNDING * sizes.amax()  # other directions are rounding error; opposite tasks have one direction
    lead = (directions * exist)[:, : K // 2].double()
    along = lead / lead.abs().amax(0).clamp(min=torch.finfo(lead.dtype).tiny)
    along = torch.stack([along, -along], 2).flatten(1)
    psi = 0.5 + _SPREAD * (uniforms((D, K), generator) - 0.5)
    psi[:, : along.shape[1]] += _LEAD * along
    return psi.to(data.X)


# -- coordinate ascent -------------------------------------------------------------------------------------------------


def sweep(
    state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM, *, rule: Rule
) -> MeanFieldProjection:
    """Update prior, loadings, precisions, bits and classifiers; no update lowers the bound."""
    outer = scatter(data, model.likelihood)
    state = UPDATES[rule](_around(state, model, outer), data, model, outer)
    return observe(update_classifiers(state, data, model, rule), data, model, outer, rule)


def _around(state: MeanFieldProjection, model: MultiTaskInfiniteLatentSVM, outer: Tensor) -> MeanFieldProjection:
    """Update all factors except those of bits and classifiers."""
    return update_loadings(update_prior(state, model), model, outer)


def update_classifiers(
    state: MeanFieldProjection,
    data: TaskData,
    model: MultiTaskInfiniteLatentSVM,
    rule: Rule,
    limits: DualLimits = LIMITS,
) -> MeanFieldProjection:
    """Update q(eta); under the averaging rule each task's SVM, from its last tilts, at no higher cost."""
    return state.with_learned(rule.update(evidence(state, data, model), state.learned, limits))


def observe(
    state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM, outer: Tensor, rule: Rule
) -> MeanFieldProjection:
    """Compute the bound []; outer [D, D] is that of `scatter`."""
    margins = rule.bound(evidence(state, data, model), state.learned)
    return replace(state, bound=bound_without_margins(state, model, outer) + margins)


# -- for the backend ---------------------------------------------------------------------------------------------------


def draw(state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM) -> Draw:
    """The draw that the posterior keeps."""
    K, dtype = model.truncation, data.X.dtype
    precisions = {name: state.mean(name).to(dtype) for name in state.precisions}
    prior = {name: value.to(dtype) for name, value in model.prior.mean_hyper(state.q).items()}
    kept = ProjectionDraw(
        features=state.features,
        log_odds=model.prior.log_odds(state.q).to(dtype),
        weights=state.weights[:K].contiguous(),
        input_weights=state.weights[K:].contiguous(),
    )
    return drawn(kept, prior, precisions, state.learned.solved)


def steps_by(rule: Rule) -> Steps[MeanFieldProjection, TaskData, MultiTaskInfiniteLatentSVM]:
    """The functions of a fit under a rule; each uses all rows."""
    return Steps(
        state=MeanFieldProjection,
        init=partial(init, rule=rule),
        sweep=partial(sweep, rule=rule),
        complete=lambda state, data, model: state,
        draw=draw,
        warn=lambda draws, model: None,
        polish=partial(update_classifiers, rule=rule, limits=LAST_LIMITS) if rule.has_dual else None,
    )


BY_RULE = StepsByRule(lambda backend, model: {rule: steps_by(rule) for rule in RULES.values()}, splits=True)
_ROUNDING = 1e-5  # relative rounding error, in single precision too
_SPREAD = 0.3
_LEAD = 0.3
