"""Multi-label models in Pyro's engines: conversion of the sites of a program to a draw of the posterior.

Assignments are those of the Gibbs samplers' mixture: of rows (x, y), or in a coupled joint of rows x with log p(y |
psi_k, f) in place of a margin. A draw has the same entries as one of those samplers, in a coupled joint including psi;
its log joint for counts is that of psi, up to a constant.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...models.bnmc import BNMC
from ...models.data import Data
from ...models.dpm import DPM
from ...models.label_data import LabelData
from ...models.likelihoods import ExponentialFamily
from ...models.priors.laws import Truncated
from ..gibbs.label_sets import coupled as multi_label_coupled
from ..gibbs.label_sets import kernel as multi_label
from ..gibbs.label_sets.coupled import LabelState
from ..running.engine import Draw
from ..truncation import warn_if_full
from . import partition
from .partition import Latents


def check(backend: object, model: BNMC) -> None:
    """Raise on a loss that a coupled joint does not support, and on a likelihood that the program does not support."""
    model.require_probabilities()
    if not isinstance(model.likelihood, ExponentialFamily):
        raise NotImplementedError(
            f"{type(model.likelihood).__name__} is no ExponentialFamily, which {type(model).__name__} needs in its "
            "program. Use one such as DiagonalGaussian()."
        )


def start(model: BNMC, data: LabelData, generator: torch.Generator) -> Latents:
    """Components as in a mixture of rows (x, y), and classifiers [P, C] equal to 0."""
    zeros = data.features.new_zeros(data.features.shape[1], data.targets.shape[1])
    return partition.start(model.mixture, data.points, generator) | {"weights": zeros}


def with_assignments(latents: Latents, model: BNMC, data: LabelData, generator: torch.Generator) -> LabelState:
    """The state at these latents, with assignments drawn given them; in a coupled joint `weights` [T, 1, C] are psi."""
    classifiers = latents["weights"].detach().unsqueeze(0)
    view = _coupled_view if model.is_coupled else _product_view
    points, mixture, own = view(latents, classifiers, model, data)
    found = partition.with_assignments(own, mixture, points, generator)
    return LabelState(found.assignments, found.weights, found.hyper, classifiers=classifiers)


def _product_view(latents: Latents, classifiers: Tensor, model: BNMC, data: LabelData) -> tuple[Data, DPM, Latents]:
    """Rows (x, y), their mixture, and its latents; components have no classifiers [T, 0, 0]."""
    return data.points, model.mixture, latents | {"weights": classifiers.new_zeros(model.truncation, 0, 0)}


def _coupled_view(latents: Latents, classifiers: Tensor, model: BNMC, data: LabelData) -> tuple[Data, DPM, Latents]:
    """Rows x, the mixture that reads their labels and scores, and its latents, with psi [T, 1, C] as weights."""
    psi = latents["probs_1"].detach().unsqueeze(1)
    nowhere = torch.zeros(data.num_data, dtype=torch.long, device=psi.device)
    points, mixture = multi_label_coupled.view(LabelState(nowhere, psi, {}, classifiers=classifiers), data, model)
    own = {name.removesuffix("_0"): value for name, value in latents.items() if name != "probs_1"}
    return points, mixture, own | {"weights": psi}


def to_gibbs(latents: Latents, model: BNMC, data: LabelData, generator: torch.Generator) -> LabelState:
    """The state of the blocked Gibbs scan at the values of all sites."""
    weights = data.features.new_zeros(model.truncation, 0, 0)
    if model.is_coupled:
        weights = latents["probs_1"].unsqueeze(1)
    if model.joint == "multinomial":  # g = psi sum(g); the sum is independent of psi and of the labels
        labels: Any = model.label_likelihood
        total = labels.concentration.expand(model.num_labels).sum()
        weights = weights * torch._standard_gamma(total.expand(len(weights), 1, 1), generator=generator)
    same = partition.to_gibbs(latents | {"weights": weights}, model.mixture, data.points, generator)
    return LabelState(same.assignments, weights, same.hyper, classifiers=latents["weights"].unsqueeze(0))


def from_gibbs(state: LabelState, model: BNMC, data: LabelData, generator: torch.Generator) -> Latents:
    """Values of all sites at a state; sticks, and parameters other than psi, are drawn given it."""
    classifiers = {"weights": state.classifiers.squeeze(0)}
    if not model.is_coupled:
        return partition.from_gibbs(state, model.mixture, data.points, generator) | classifiers
    inputs, mixture = multi_label_coupled.view(state, data, model)
    found = partition.from_gibbs(state, mixture, inputs, generator)
    shared = {"sticks", "assignments", "weights", *state.hyper}
    own = {name if name in shared else f"{name}_0": value for name, value in found.items()}
    psi = state.weights.squeeze(1)
    psi = psi / psi.sum(1, keepdim=True) if model.joint == "multinomial" else psi
    return own | classifiers | {"probs_1": psi}


def draw(state: LabelState, data: LabelData, model: BNMC) -> Draw:
    """The draw that the posterior keeps of a state."""
    if model.is_coupled:
        return multi_label_coupled.draw(state, data, model)
    return multi_label.draw(state, data, model, law=Truncated(model.prior, model.truncation))


def warn(draws: list[Draw], model: BNMC) -> None:
    """Warn if all components are occupied; coupled joints have no infinite sampler to recommend."""
    warn_if_full(draws, model, "" if model.is_coupled else ", or with Gibbs()")
