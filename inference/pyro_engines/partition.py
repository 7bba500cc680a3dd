"""Partitions in Pyro's engines: conversion of the sites of a mixture's program to a draw of the posterior.

The assignments are summed out of the program, and drawn given its sites by the model's likelihood and `log_margin`. For
a conjugate likelihood, a draw has the same entries as one of the blocked Gibbs scan; for any other, it has the
parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...models.base import Model
from ...models.data import Data
from ...models.distributions.sampling import draw_categorical, log_gamma_draw, uniforms
from ...models.likelihoods import ExponentialFamily
from ...models.mixture import Mixture
from ...models.priors import Hyper
from ...models.priors.laws import Truncated
from ...models.priors.sticks import log_stick_weights, posterior_sticks
from ...models.scores import scores
from ..distributed.collectives import own_stream
from ..gibbs import partition
from ..gibbs.scans.components import count_members, draw_parameters
from ..gibbs.state import PartitionState
from ..posterior.draws import PartitionDraw, drawn
from ..running.engine import Draw
from ..seeding import far_apart
from ..truncation import warn_if_full

Latents = dict[str, Tensor]


@dataclass(frozen=True)
class MixtureState:
    """One draw of the truncated model: N points, T components, P features, C scores."""

    assignments: Tensor  # [N] int64, 0..T-1
    log_mixture: Tensor  # [T]
    parameters: dict[str, Tensor]  # of the likelihood, each [T, ...]
    weights: Tensor  # [T, P, C]
    hyper: Hyper


def start(model: Model, data: Data, generator: torch.Generator) -> Latents:
    """Components around distant rows, with equal weights and classifiers equal to 0."""
    if data.X.is_sparse:
        raise ValueError("X is sparse, but the program observes dense rows. Pass X.toarray(), or use Gibbs or SVI.")
    T, (_, C), P = model.truncation, data.targets.shape, data.features.shape[1]
    chi = model.likelihood.prior().to(data.X.device).expand(T, -1)
    if isinstance(model.likelihood, ExponentialFamily):
        chi = chi + model.likelihood.statistics(far_apart(model.likelihood, data.X, T, generator))
    remaining = torch.arange(T, 1, -1, dtype=data.X.dtype, device=data.X.device)
    latents = {"sticks": 1 / remaining, "weights": data.X.new_zeros(T, P, C), **model.likelihood.draw(chi, generator)}
    laws, known = model.prior.hyperpriors(data.features), model.prior.start(data.features)
    return latents | {name: known[name].to(data.X.dtype) for name, law in laws.items() if law is not None}


def with_assignments(latents: Latents, model: Mixture, data: Data, generator: torch.Generator) -> MixtureState:
    """The state at these latents, with assignments drawn given them."""
    latents = {name: value.detach() for name, value in latents.items()}
    log_mixture, weights = log_stick_weights(latents.pop("sticks").double()), latents.pop("weights")
    known = model.prior.start(data.features)
    hyper = {name: latents.pop(name, fixed).double() for name, fixed in known.items()}
    margin = model.log_margin(scores(data.features, weights), data.targets.unsqueeze(1))
    logits = log_mixture + model.likelihood.log_density(data.X, latents) + margin
    assignments = draw_categorical(logits, uniforms((data.num_data,), own_stream(generator)))
    return MixtureState(assignments, log_mixture, latents, weights, hyper)


def to_gibbs(latents: Latents, model: Mixture, data: Data, generator: torch.Generator) -> PartitionState:
    """The state of the blocked Gibbs scan, which has sticks and parameters integrated out, from values of all sites."""
    hyper = {name: latents.get(name, fixed).double() for name, fixed in model.prior.start(data.features).items()}
    return PartitionState(latents["assignments"].long(), latents["weights"], hyper)


def from_gibbs(state: PartitionState, model: Mixture, data: Data, generator: torch.Generator) -> Latents:
    """Values of all sites at a state; sticks and parameters are drawn given it."""
    counts = count_members(state)
    after, before = posterior_sticks(counts, *model.prior.sticks(state.hyper, len(counts)))
    sticks = torch.sigmoid(log_gamma_draw(after, generator) - log_gamma_draw(before, generator))
    return {
        "sticks": within(sticks, data.X),
        "assignments": state.assignments,
        "weights": state.weights,
        **free_hyper(state.hyper, model, data.X),
        **draw_parameters(state, data, model, generator),
    }


def free_hyper(hyper: Hyper, model: Model, like: Tensor) -> Latents:
    """The hyperparameters that have a prior, each [] in the dtype of `like` [...]."""
    laws = model.prior.hyperpriors(like)
    return {name: hyper[name].to(like.dtype) for name, law in laws.items() if law is not None}


def within(shares: Tensor, like: Tensor) -> Tensor:
    """Numbers [...] in the dtype of `like` [...], clamped inside (0, 1)."""
    limits = torch.finfo(like.dtype)
    return shares.to(like.dtype).clamp(limits.tiny, 1 - limits.eps)


def draw(state: MixtureState, data: Data, model: Mixture) -> Draw:
    """The draw that the posterior keeps of a state."""
    if isinstance(model.likelihood, ExponentialFamily):
        same = PartitionState(state.assignments, state.weights, state.hyper)
        return partition.draw(same, data, model, law=Truncated(model.prior, model.truncation))
    dtype, none = data.X.dtype, state.log_mixture.new_full((1,), -torch.inf)
    return drawn(
        PartitionDraw(
            assignments=state.assignments,
            log_mixture=torch.cat([state.log_mixture, none]).to(dtype),
            weights=state.weights,
        ),
        {f"parameters.{name}": value for name, value in state.parameters.items()},
        {name: value.to(dtype) for name, value in state.hyper.items()},
    )


def warn(draws: list[Draw], model: Mixture) -> None:
    """Warn if all components are occupied."""
    warn_if_full(draws, model, ", or with Gibbs()")
