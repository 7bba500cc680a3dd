"""Gibbs sampling of the infinite hidden Markov models: how chains start; their sweeps are in `sequence_scans`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...models.dpm import DPM
from ...models.likelihoods import ExponentialFamily
from ...models.priors.laws import PathLaw
from ...models.sequence import Sequences, StateSpace
from ..running.engine import Kernel
from ..seeding import far_apart
from ..truncation import warn_if_full
from . import partition
from .backend import Gibbs
from .hyperplanes import reserve
from .moves.tempering import harden
from .sequence_prior import draw_prior, log_path
from .sequence_scans import SCANS, draw_weights, sweep
from .sequence_summary import draw, hyperparameters, log_joint
from .state import SequenceState, scan_law


def check(backend: Gibbs, model: StateSpace) -> None:
    """Raise on a scan that sequences do not have, and on a family without conjugacy."""
    backend.require_scan(model, "auto", *SCANS)
    if not isinstance(model.likelihood, ExponentialFamily):
        raise NotImplementedError(
            f"{type(model.likelihood).__name__} is no ExponentialFamily: Gibbs needs its conjugate prior."
        )


def kernel(backend: Gibbs, model: StateSpace) -> Kernel:
    """The scans of sequences, with the options of a backend bound."""
    law = scan_law(model.prior, model.truncation, backend.scan)
    kernel = Kernel(
        state=SequenceState,
        init=partial(_start, backend=backend),
        sweep=partial(
            sweep,
            scan=backend.scan,
            births=backend.births,
            num_warmup=backend.num_warmup,
            num_split_merge=backend.split_merge,
        ),
        value=partial(log_joint, law=law),
        draw=partial(draw, law=law),
    )
    return kernel if law.alike else replace(kernel, warn=partial(warn_if_full, remedy=", or with scan='beam'"))


def _start(model: StateSpace, data: Sequences, generator: torch.Generator, *, backend: Gibbs) -> SequenceState:
    backend.require_labels(data, scan_law(model.prior, model.truncation, backend.scan).capacity, other="beam")
    options: dict[str, Any] = {"scan": backend.scan, "num_sweeps": backend.num_generative}
    options["num_split_merge"] = backend.split_merge
    return init(model, data, generator, start=backend.init, **options)


def init(
    model: StateSpace,
    data: Sequences,
    generator: torch.Generator,
    *,
    start: str | Tensor,
    scan: str,
    num_sweeps: int,
    num_split_merge: int = 2,
) -> SequenceState:
    """A state from labels [N], or from the best of some starts after blocked sweeps without hyperplanes.

    One of these starts is a mixture without time (`start` is how it starts itself, "one" or "random"), the others put
    every step to the nearest of some steps that are far apart. States alike are then joined. A chain of states hardly
    ever leaves a bad start. Where states repel, sweeps along which the factors of their hyperplanes come to their full
    power follow.
    """
    law = scan_law(model.prior, model.truncation, scan)
    if isinstance(start, Tensor):
        states = torch.unique(start.to(data.X.device), return_inverse=True)[1]
    else:
        states = law.named(_best_start(model, data, generator, start, num_sweeps, num_split_merge))
    state = _from_states(states, data, model, law)
    if law.alike:
        state = replace(state, reservoir=reserve(data.points.features, model, generator))
    for _ in range(_NUM_SETTLING):
        state = draw_prior(state, data, generator, law=law)
        state = replace(state, weights=draw_weights(state, data, model, generator))
    if isinstance(start, Tensor) or model.without_hyperplanes() is model:
        return state
    # slices hold paths where they are: step by step where that is compiled
    one = partial(sweep, scan="auto" if scan == "beam" else scan, num_split_merge=num_split_merge)
    return harden(state, data, data.points.features, model, generator, one, 2 * num_sweeps)


def _best_start(
    model: StateSpace, data: Sequences, generator: torch.Generator, start: str, num_sweeps: int, num_split_merge: int
) -> Tensor:
    """States [N] of the highest log joint that blocked sweeps of the plain model reach from several starts."""
    plain = model.without_hyperplanes()
    points = DPM(plain.likelihood, truncation=plain.truncation, num_features=plain.num_features)
    bare = replace(data, points=points.data(data.X))
    mixture = partition.init(
        points, bare.points, generator, start=start, law=scan_law(points.prior, points.truncation, "blocked")
    )
    for step in range(num_sweeps):
        options: dict[str, Any] = {"scan": "blocked", "num_split_merge": num_split_merge}
        mixture = partition.sweep(mixture, bare.points, points, generator, step, **options)
    labels = [mixture.assignments]
    for count in sorted({min(count, plain.truncation, len(data.X)) for count in _NUM_SEEDS}):
        seeds = data.X[far_apart(plain.likelihood, data.X, count, generator)]
        chi = plain.likelihood.prior() + plain.likelihood.statistics(seeds)
        labels.append(plain.likelihood.log_predictive(data.X, chi).argmax(1))
    ends, law = [], scan_law(plain.prior, plain.truncation, "blocked")
    for own in labels:
        state = _from_states(_fill_gaps(own, data), bare, plain, law)
        for step in range(num_sweeps):
            state = sweep(state, bare, plain, generator, step, scan="blocked")
        state = _merge_alike(state, bare, plain)
        ends.append(draw_prior(state, bare, generator, law=law))
    return max(ends, key=lambda end: float(log_joint(end, bare, plain, law=law))).states


def _merge_alike(state: SequenceState, data: Sequences, model: StateSpace) -> SequenceState:
    """A state in which the two states of the most similar steps are one, as long as p(z, X | alpha, beta) rises.

    A chain hardly ever joins two states that share the steps of one, and seeds may well be too many.
    """
    K, likelihood = len(state.weights), model.likelihood
    first, second = torch.triu_indices(K, K, 1, device=state.states.device)
    while True:
        chi = hyperparameters(state, data, model)
        log_own = likelihood.log_marginal(chi)
        gain = likelihood.log_marginal(chi[first] + chi[second] - likelihood.prior())
        gain = gain - log_own[first] - log_own[second]
        used = torch.bincount(state.states, minlength=K) > 0
        pair = int(torch.where(used[first] & used[second], gain, -torch.inf).argmax())
        one, other = first[pair : pair + 1], second[pair : pair + 1]
        base = state.base.index_add(0, one, state.base[other]).index_fill(0, other, 0.0)
        merged = replace(state, states=torch.where(state.states == other, one, state.states), base=base)
        gain_of_paths = log_path(merged, data, model) - log_path(state, data, model)
        if not gain[pair] + gain_of_paths > 0:
            return state
        state = merged


def _from_states(states: Tensor, data: Sequences, model: StateSpace, law: PathLaw) -> SequenceState:
    """A state with beta uniform over the states (and one more that stands for the rest), hyperplanes at 0."""
    points, num_states = data.points, law.num_places(states)
    weights = points.features.new_zeros(num_states, points.features.shape[1], points.targets.shape[1])
    base = torch.tensor([1.0] * num_states + [float(law.alike)], dtype=torch.float64, device=data.X.device)
    return SequenceState(states, weights, base / base.sum(), model.prior.start(data.X))


def _fill_gaps(labels: Tensor, data: Sequences) -> Tensor:
    """States [N]: those of the observed steps [M], and at a missing step that of the last observed one before it."""
    place = torch.zeros(data.num_data, dtype=torch.long, device=labels.device)
    place[data.steps] = 1
    return labels[(place.cumsum(0) - 1).clamp(min=0)]


_NUM_SEEDS = (3, 6, 12)
_NUM_SETTLING = 10  # draws of base weights and hyperplanes before the first sweep
