"""Variational inference for a truncated latent feature model with a margin: coordinate ascent, or stochastic steps.

A sweep is one pass of Algorithm 3 of Zhu, Chen & Xing (2014): features, loadings, precisions, sticks, classifiers, each
at its optimum given the others, so that the bound never falls (docs/derivations/latent-features, "Mean field";
docs/derivations/scale, "Stochastic steps"). The backend's rule determines the labels' terms: "gibbs" for the expected
loss, "averaging" for the loss of expected scores (`svi/rules.py`, `margins`). Under "averaging" the ELBO is minus the
objective of the paper, which is not a bound of the evidence.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ....models.latent_features import FeatureData, FeatureModel
from ...bits.loadings import Sums
from ...bits.rows import Margin, infer_features
from ...classifiers.minimum import DualLimits
from ...distributed.stream import stream_points
from ...posterior.draws import FeatureDraw, drawn
from ...running.engine import Draw
from ...truncation import warn_if_all_used
from ..partition.kernel import by_rows
from ..rules import LAST_GAP, RULES, Rule
from ..steps import Minibatch, Steps, StepsByRule
from .factors import (
    VariationalFeatures,
    binary_rows,
    expected_hyper,
    gather,
    generative_bound,
    global_targets,
    move_globals,
    update_features,
    update_globals,
)
from .growth import grown, scattered
from .margins import MARGINS, evidence

SWEEP_LIMITS = DualLimits(1e-3, 45)  # of the dual in one sweep; the next sweep continues from there
LAST_LIMITS = DualLimits(LAST_GAP, 4000)  # enough passes for a joint hinge of up to 2,000 weights to reach Newton steps


def init(model: FeatureModel, data: FeatureData, generator: torch.Generator, *, rule: Rule) -> VariationalFeatures:
    """Features that the entries support, or with labels random features; then the first classifiers."""
    start = scattered if data.targets.shape[1] else grown
    state, sums = update_globals(start(prior_state(model, data, rule), data, model, generator), data, model)
    return with_bound(update_classifiers(state, data, model, rule), data, model, sums, rule)


# -- full batch: coordinate ascent -------------------------------------------------------------------------------------


def sweep(state: VariationalFeatures, data: FeatureData, model: FeatureModel, *, rule: Rule) -> VariationalFeatures:
    """Update features, loadings, precisions, sticks, then classifiers; each maximizes the bound given the others."""
    if state.num_data != data.num_data:  # so in the first full sweep after stochastic steps
        state = complete(state, data, model, rule=rule)
    state = update_features(state, data, model, partial(MARGINS[rule], state, data, model))
    state, sums = update_globals(state, data, model)
    return with_bound(update_classifiers(state, data, model, rule), data, model, sums, rule)


def update_classifiers(
    state: VariationalFeatures,
    data: FeatureData,
    model: FeatureModel,
    rule: Rule,
    scale: float = 1.0,
    limits: DualLimits = SWEEP_LIMITS,
) -> VariationalFeatures:
    """Set q(eta) to its optimum for rows that count `scale` times; a dual is solved within `limits`."""
    return state.with_learned(rule.update(evidence(state, data, model, scale), state.learned, limits))


def with_bound(
    state: VariationalFeatures, data: FeatureData, model: FeatureModel, sums: Sums, rule: Rule, scale: float = 1.0
) -> VariationalFeatures:
    """Compute the bound, with rows that count `scale` times."""
    without_labels = generative_bound(state, data, model, sums, scale)
    labels = rule.bound(evidence(state, data, model, scale), state.learned)
    return replace(state, bound=without_labels() + labels)


# -- minibatches: stochastic natural gradients -------------------------------------------------------------------------


def complete(
    state: VariationalFeatures, data: FeatureData, model: FeatureModel, *, rule: Rule, num_sweeps: int = 30
) -> VariationalFeatures:
    """Compute the features of all rows of the data given the other factors, by sweeps over the features."""

    def margin(rows: Tensor) -> Margin:
        return partial(MARGINS[rule], state, data if len(rows) == data.num_data else data.rows(rows), model)

    features = infer_features(binary_rows(state, data, model), num_sweeps=num_sweeps, margin=margin)
    return replace(state.without_rows(), features=features, row_weights=data.weights)


def extrapolate(
    state: VariationalFeatures, rows: FeatureData, model: FeatureModel, num_data: int, num_units: float, *, rule: Rule
) -> VariationalFeatures:
    """The start of stochastic steps: factors as if there were rows like these that count `num_units` in all."""
    scale = num_units / rows.total_weight
    state, _ = update_globals(state, rows, model, scale)
    return update_classifiers(state, rows, model, rule, scale).without_rows()


def stochastic_sweep(
    state: VariationalFeatures, batch: Minibatch[FeatureData], model: FeatureModel, rho: float, *, rule: Rule
) -> VariationalFeatures:
    """Move natural parameters by rho towards the optimum for a batch, scaled to represent all rows.

    The recorded bound is the batch's estimate at the factors before the step.
    """
    rows, scale = batch.data, batch.scale
    local = complete(state, rows, model, rule=rule, num_sweeps=_NUM_LOCAL)
    sums = gather(local, rows, model, scale)
    local = with_bound(local, rows, model, sums, rule, scale)
    target = global_targets(local, rows, model, sums, scale)
    learned = rule.step(evidence(local, rows, model, scale), local.learned, rho)
    return move_globals(local.with_learned(learned), target, rho).without_rows()


# -- the start ---------------------------------------------------------------------------------------------------------


def prior_state(model: FeatureModel, data: FeatureData, rule: Rule) -> VariationalFeatures:
    """Features with probability 1/2, and every other factor at its prior."""
    X, K, (N, C), D = data.X, model.truncation, data.targets.shape, data.X.shape[1]
    double = X.new_zeros((), dtype=torch.float64)
    q, size = model.prior.initial(double, K), K + data.inputs.shape[1]
    classifiers = rule.prior(1, size, C, model.weight_scale, X)
    laws = [law for law in model.likelihood.hyperpriors(double).values() if law is not None]
    precisions = torch.stack([torch.stack([law.concentration, law.rate]) for law in laws]) if laws else None
    return VariationalFeatures(
        features=X.new_full((N, K), 0.5),
        a=q.a,
        b=q.b,
        concentration=q.concentration,
        loadings=X.new_zeros(K, D),
        loading_tril=torch.eye(K, dtype=X.dtype, device=X.device).unsqueeze(0),
        kind=torch.zeros(D, dtype=torch.int64, device=X.device),
        precisions=double.new_zeros(0, 2) if precisions is None else precisions,
        weights=classifiers.mean[0],
        weights_tril=classifiers.precision_tril[0],
        tilt=X.new_zeros(0, C),
        bound=double - torch.inf,
        duality_gap=double + torch.nan,
        row_weights=data.weights,
    )


# -- for the backend ---------------------------------------------------------------------------------------------------


def summary(state: VariationalFeatures, data: FeatureData, model: FeatureModel) -> Draw:
    """The draw that the posterior keeps."""
    K, h = state.features.shape[1], expected_hyper(state, model)
    covariance = state.loading_moments.covariance
    assert covariance is not None
    kept = FeatureDraw(
        features=state.features,
        log_odds=model.prior.log_odds(state.sticks),
        loadings=state.loadings,
        loading_covariance=covariance,
        kind=state.kind,
        weights=state.weights[:K],
        input_weights=state.weights[K:],
    )
    noise = {name: h[name] for name in model.likelihood.start(data.X)}
    return drawn(kept, noise, model.prior.mean_hyper(state.sticks), state.learned.solved)


def steps_by(rule: Rule) -> Steps[VariationalFeatures, FeatureData, FeatureModel]:
    """The functions of a fit under a rule."""
    steps: Any = partial(extrapolate, rule=rule), partial(stochastic_sweep, rule=rule), stream_points
    return Steps(
        state=VariationalFeatures,
        init=partial(init, rule=rule),
        sweep=partial(sweep, rule=rule),
        complete=partial(complete, rule=rule),
        draw=summary,
        stochastic=by_rows(*steps),
        rows="features",
        warn=partial(warn_if_all_used, remedy=" and keep the fit with the higher ELBO"),
        polish=partial(update_classifiers, rule=rule, limits=LAST_LIMITS) if rule.has_dual else None,
    )


BY_RULE = StepsByRule(lambda backend, model: {rule: steps_by(rule) for rule in RULES.values()}, splits=True)
_NUM_LOCAL = 5  # sweeps over the features of a minibatch
