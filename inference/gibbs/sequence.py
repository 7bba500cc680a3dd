"""Gibbs sampling of the infinite hidden Markov models: the kernel of `partition` over paths, and how chains start.

    target(z, beta, eta) = p(z | beta) p(beta) prod_k m(X_k) G(eta_k) prod_t exp(h(eta_{z_t}^T a_t))

    "direct"    each step in turn, rows and the family's parameters integrated out        infinite model
    "beam"      all steps of a sequence at once, given rows, slices and fresh states       infinite model
    "blocked"   all steps of a sequence at once, given T rows                              T states

A state is (z, beta, alpha, gamma, eta); rows, parameters of the family, tables and augmentation variables are drawn
where a step needs them and then dropped. m is the marginal of a state's steps, G the law of a hyperplane without
points, h its gain (`hyperplanes`); a model whose states do not repel has neither of these two.

Sources: Teh et al. (2006) for "direct" and the tables; Nguyen, Phung, Le & Bui; docs/derivations/sequences, "Joint
density" and "Base weights and concentrations" and "Blocked and beam scans".
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ...models.dpm import DPM
from ...models.likelihoods import ExponentialFamily
from ...models.sequence import Sequences, StateSpace
from ..distributed.collectives import all_count
from ..running.engine import Kernel
from ..seeding import nearest
from . import partition
from .backend import Gibbs
from .hyperplanes import reserve
from .moves.tempering import harden
from .partition import draw_weights
from .paths import Paths
from .prepared import prepare_points, prepare_sequences
from .scans.components import hyperparameters
from .state import SequenceState, scan_law


def check(backend: Gibbs, model: StateSpace) -> None:
    """Raise on a scan that sequences do not have, and on a family without conjugacy."""
    backend.require_scan(model, "auto", *Paths.scans)
    if not isinstance(model.likelihood, ExponentialFamily):
        raise NotImplementedError(
            f"{type(model.likelihood).__name__} is no ExponentialFamily: Gibbs needs its conjugate prior."
        )


def alone(backend: Gibbs, model: StateSpace) -> str:
    """Ranks may have sequences each under the scans of whole paths."""
    if isinstance(backend.init, Tensor):
        return "leave init out"
    return "take scan='beam'" if backend.scan == "direct" else ""


def kernel(backend: Gibbs, model: StateSpace) -> Kernel:
    """The scans of sequences, with the options of a backend bound."""
    return partition.kernel_of(Paths, backend, model, _start, prepare_sequences)


def _start(model: StateSpace, data: Sequences, generator: torch.Generator, *, backend: Gibbs) -> SequenceState:
    law = scan_law(model.prior, model.truncation, backend.scan)
    backend.require_labels(data, law.capacity, other=Paths.unbounded)
    return init(
        model,
        data,
        generator,
        start=backend.init,
        scan=backend.scan,
        num_sweeps=backend.num_generative,
        num_split_merge=backend.split_merge,
    )


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

    One of these starts is a mixture without time (`start` is how it starts itself, see `partition.init`), the others
    put every step to the nearest of some steps that are far apart. States alike are then joined. A chain of states
    hardly ever leaves a bad start. Where states repel, sweeps along which the factors of their hyperplanes come to
    their full power follow.
    """
    law = scan_law(model.prior, model.truncation, scan)
    if isinstance(start, Tensor):
        states = torch.unique(start.to(data.X.device), return_inverse=True)[1]
    else:
        states = law.named(_best_start(model, data, generator, start, num_sweeps, num_split_merge))
    paths = Paths(law, data)
    state = paths.begin(states, model)
    hardens = not isinstance(start, Tensor) and model.without_hyperplanes() is not model
    if law.alike:
        rough = hardens and num_sweeps > 0
        state = replace(state, reservoir=reserve(data.features, model, generator, rough=rough))
    for _ in range(_NUM_SETTLING):
        state = paths.draw_prior(state, generator)
        state = replace(state, weights=draw_weights(state, data, model, generator))
    if not hardens:
        return state
    # slices hold paths where they are: step by step where that is compiled
    scan = "auto" if scan == "beam" else scan
    one = partial(sweep, scan=scan, num_split_merge=num_split_merge)
    return harden(state, data, model, generator, one, 2 * num_sweeps)


def _best_start(
    model: StateSpace, data: Sequences, generator: torch.Generator, start: str, num_sweeps: int, num_split_merge: int
) -> Tensor:
    """States [N] of the highest log joint that blocked sweeps of the plain model reach from several starts."""
    plain = model.without_hyperplanes()
    points = DPM(plain.likelihood, truncation=plain.truncation, num_features=plain.num_features)
    rows = prepare_points(points, points.data(data.X))
    bare, law = replace(data, points=rows), scan_law(points.prior, points.truncation, "blocked")
    mixture = partition.init(points, rows, generator, start=start, law=law)
    for step in range(num_sweeps):
        mixture = partition.sweep(
            mixture, rows, points, generator, step, scan="blocked", num_split_merge=num_split_merge
        )
    labels, number = [mixture.assignments], all_count(len(data.X))
    for count in sorted({min(count, plain.truncation, number) for count in _NUM_SEEDS}):
        labels.append(nearest(plain.likelihood, data.X, count, generator))
    paths = Paths(scan_law(plain.prior, plain.truncation, "blocked"), bare)
    ends = []
    for own in labels:
        state = paths.begin(_fill_gaps(own, data), plain)
        for step in range(num_sweeps):
            state = sweep(state, bare, plain, generator, step, scan="blocked")
        ends.append(paths.draw_prior(_merge_alike(state, paths, plain), generator))
    return max(ends, key=lambda end: float(log_joint(end, bare, plain, law=paths.law))).assignments


def _merge_alike(state: SequenceState, paths: Paths, model: StateSpace) -> SequenceState:
    """A state in which the two states of the most similar steps are one, as long as p(z, X | alpha, beta) rises.

    A chain hardly ever joins two states that share the steps of one, and a start may have too many.
    """
    K, likelihood = len(state.weights), model.likelihood
    first, second = torch.triu_indices(K, K, 1, device=state.assignments.device)
    while True:
        chi = hyperparameters(state, paths.data, model)
        log_own = likelihood.log_marginal(chi)
        gain = likelihood.log_marginal(chi[first] + chi[second] - likelihood.prior())
        gain = gain - log_own[first] - log_own[second]
        used = paths.counts(state) > 0
        pair = int(torch.where(used[first] & used[second], gain, -torch.inf).argmax())
        one, other = first[pair : pair + 1], second[pair : pair + 1]
        base = state.base.index_add(0, one, state.base[other]).index_fill(0, other, 0.0)
        labels = torch.where(state.assignments == other, one, state.assignments)
        merged = replace(state, assignments=labels, base=base)
        if not gain[pair] + paths.log_paths(merged) - paths.log_paths(state) > 0:
            return state
        state = merged


def _fill_gaps(labels: Tensor, data: Sequences) -> Tensor:
    """States [N]: those of the observed steps [M], and at a missing step that of the last observed one before it."""
    place = torch.zeros(data.num_data, dtype=torch.long, device=labels.device)
    place[data.steps] = 1
    return labels[(place.cumsum(0) - 1).clamp(min=0)]


sweep = partial(partition.sweep, kind=Paths)
log_joint = partial(partition.log_joint, kind=Paths)
draw = partial(partition.draw, kind=Paths)
_NUM_SEEDS = (3, 6, 12)
_NUM_SETTLING = 10  # draws of base weights and hyperplanes before the first sweep
