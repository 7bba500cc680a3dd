"""Gibbs sampling of infinite hidden Markov models: the kernel of `partition` for paths, and the starts of its chains.

    target(z, beta, eta) = p(z | beta) p(beta) prod_k m(X_k) G(eta_k) prod_t exp(h(eta_{z_t}^T a_t))

    "direct"    each step in turn, rows and the likelihood's parameters integrated out    infinite model
    "beam"      all steps of a sequence at once, given rows, slices and fresh states      infinite model
    "blocked"   all steps of a sequence at once, given T rows                             T states

A state is (z, beta, alpha, gamma, eta). Transition rows, parameters of the likelihood, tables and augmentation
variables are drawn where a step needs them and then dropped. m is the marginal of a state's steps, G the law of a
hyperplane without points, and h its gain (`hyperplanes`); models whose states do not repel have neither G nor h.

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
    """Raise on a scan that sequences lack, and on a likelihood without a conjugate prior."""
    backend.require_scan(model, "auto", *Paths.scans)
    if not isinstance(model.likelihood, ExponentialFamily):
        raise NotImplementedError(
            f"{type(model.likelihood).__name__} is no ExponentialFamily: Gibbs needs its conjugate prior."
        )


def alone(backend: Gibbs, model: StateSpace) -> str:
    """What to change so that ranks can share the sequences; "" if nothing: "beam" and "blocked" draw whole paths."""
    if isinstance(backend.init, Tensor):
        return "leave init out"
    return "take scan='beam'" if backend.scan == "direct" else ""


def kernel(backend: Gibbs, model: StateSpace) -> Kernel:
    """The kernel of sequences with the options of `backend`."""
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
    """A first state, from states [N] or from the best of several starts after blocked sweeps without hyperplanes.

    One of these starts is a mixture that ignores time (`start` is the start of that mixture, see `partition.init`). The
    others assign every step to the nearest of some distant steps. Similar states are then merged. This care is needed
    because a chain of states hardly ever leaves a bad start. Where states repel, sweeps follow along which the power of
    the hyperplanes' factors rises to 1.
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
    # slices hold paths in place, so the steps are visited one by one where this is compiled
    scan = "auto" if scan == "beam" else scan
    one = partial(sweep, scan=scan, num_split_merge=num_split_merge)
    return harden(state, data, model, generator, one, 2 * num_sweeps)


def _best_start(
    model: StateSpace, data: Sequences, generator: torch.Generator, start: str, num_sweeps: int, num_split_merge: int
) -> Tensor:
    """The states [N] of the highest log joint among several starts of the plain model, after blocked sweeps of each."""
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
    """Merge the two most similar states, as long as p(z, X | alpha, beta) rises.

    A chain hardly ever merges two states that share the steps of one, and a start may have too many states.
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
    """States [N] of all steps from those of the observed ones; a missing step gets that of the last one before it."""
    place = torch.zeros(data.num_data, dtype=torch.long, device=labels.device)
    place[data.steps] = 1
    return labels[(place.cumsum(0) - 1).clamp(min=0)]


sweep = partial(partition.sweep, kind=Paths)
log_joint = partial(partition.log_joint, kind=Paths)
draw = partial(partition.draw, kind=Paths)
_NUM_SEEDS = (3, 6, 12)
_NUM_SETTLING = 10  # draws of base weights and hyperplanes before the first sweep
