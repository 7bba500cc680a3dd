"""Gibbs sampling of a mixture of classifiers: three scans of the assignments around one draw of everything else.

    target(z, eta, h) = p(z | h) p(h) prod_k m(X_k) N(eta_k; 0, nu^2 I) prod_n phi(y_n | eta_{z_n}^T a_n)

    "collapsed"   each point in turn, the family's parameters integrated out        infinite model, p(z): the EPPF
    "slice"       all points at once given weights, slices and fresh components     infinite model, p(z): the EPPF
    "blocked"     all points at once given T sticks                                 T components, z labelled 0..T-1

m are block marginals, h the hyperparameters of the prior. A state is (z, eta, h); mixture weights, parameters theta of
the family and augmentation variables omega are drawn where a step needs them and then dropped. Every scan has omega
integrated out, so omega is drawn anew before eta is: the order z, omega, eta of `sweep` is part of its correctness
(math/dp-mixtures, section 4).

Where components repel (`Hyperplanes`), phi(y_n | eta_{z_n}) is exp(h(eta_{z_n}^T a_n)), every eta_k is drawn given all
points, and new components take theirs from a reservoir instead of the prior (`hyperplanes`).

Source: Wang & Zhu (2014), with new components drawn as in Neal (2000).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...models.compiled import is_compiled
from ...models.data import Data
from ...models.likelihoods import ExponentialFamily
from ...models.mixture import Mixture
from ...models.priors.base import NEEDED
from ...models.priors.laws import PointLaw
from ..classifiers.scored import classifiers_of
from ..distributed.collectives import own_stream
from ..running.engine import Kernel
from ..truncation import warn_if_full
from .backend import Gibbs
from .hyperplanes import renew_reservoir, reserve
from .moves.repelling_split_merge import split_merge_repelling
from .moves.split_merge import num_moves, split_merge
from .moves.tempering import harden
from .scans import blocked as blocked_scan
from .scans import collapsed
from .scans import slice as slice_scan
from .scans.components import count_members
from .state import PartitionState, scan_law
from .summary import draw, log_joint

Scan = Callable[[PartitionState, Data, Mixture, torch.Generator], PartitionState]
_SCANS: dict[str, Scan] = {"collapsed": collapsed.scan, "slice": slice_scan.scan, "blocked": blocked_scan.scan}


def check(backend: Gibbs, model: Mixture) -> None:
    """Raise on a scan that partitions or their prior do not have, and on a family without a conjugate prior."""
    backend.require_scan(model, "auto", *_SCANS)
    without = getattr(model, "without_sticks", "")
    if backend.scan in NEEDED and (lack := model.prior.lacks(NEEDED[backend.scan], without)):
        raise NotImplementedError(f"{type(model).__name__} has no scan={backend.scan!r}: {lack}.")
    if not isinstance(model.likelihood, ExponentialFamily):
        raise NotImplementedError(
            f"{type(model.likelihood).__name__} is no ExponentialFamily: Gibbs needs its conjugate prior (`prior`, "
            "`statistics`, `log_partition`). NUTS() and Autoguide() need `parameters` and `distribution` alone."
        )
    if backend.scan == "collapsed" and not model.loss.has_marginal:
        raise model.loss.lacking("log_marginal", "scan='collapsed'", "take CrammerSinger(), scan='slice' or 'blocked'")


def kernel(backend: Gibbs, model: Mixture) -> Kernel:
    """The scans of partitions, with the options of a backend bound."""
    law = scan_law(model.prior, model.truncation, backend.scan)
    kernel = Kernel(
        state=PartitionState,
        init=partial(_start, backend=backend),
        sweep=partial(
            sweep,
            scan=backend.scan,
            num_split_merge=backend.split_merge,
            births=backend.births,
            num_warmup=backend.num_warmup,
        ),
        value=partial(log_joint, law=law),
        draw=partial(draw, law=law),
        value_in="log_joint",
    )
    return kernel if law.alike else replace(kernel, warn=partial(warn_if_full, remedy=", or with scan='slice'"))


def _start(model: Mixture, data: Data, generator: torch.Generator, *, backend: Gibbs) -> PartitionState:
    law = scan_law(model.prior, model.truncation, backend.scan)
    backend.require_labels(data, law.capacity, other="slice")
    if model.without_hyperplanes() is model:
        return init(model, data, generator, start=backend.init, law=law)
    options: dict[str, Any] = {"scan": backend.scan, "num_split_merge": backend.split_merge}
    return init_generatively(model, data, generator, start=backend.init, num_sweeps=backend.num_generative, **options)


def init(
    model: Mixture, data: Data, generator: torch.Generator, *, start: str | Tensor, law: PointLaw
) -> PartitionState:
    """A state with all points in one component (`start` is "one"), at random in T ("random"), or as given [N]."""
    if isinstance(start, Tensor):
        assignments = torch.unique(start.to(data.X.device), return_inverse=True)[1]
    elif start == "random":
        stream, size = own_stream(generator), (data.num_data,)
        chosen = torch.randint(model.truncation, size, generator=stream, device=data.X.device)
        assignments = law.named(chosen)
    else:
        assignments = torch.zeros(data.num_data, dtype=torch.long, device=data.X.device)
    weights = data.features.new_zeros(law.num_places(assignments), data.features.shape[1], data.targets.shape[1])
    state = PartitionState(assignments, weights, model.prior.start(data.features))
    if law.alike:
        state = replace(state, reservoir=reserve(data.features, model, generator))
    return replace(state, weights=draw_weights(state, data, model, generator))


def init_generatively(
    model: Mixture,
    data: Data,
    generator: torch.Generator,
    *,
    start: str | Tensor,
    scan: str,
    num_sweeps: int,
    num_split_merge: int,
) -> PartitionState:
    """A state of a model whose components repel after sweeps of the mixture without hyperplanes (Nguyen et al.), and
    twice as many along which the factors of the hyperplanes come to their full power. `start` as in `init`, labels [N]
    or a word.
    """
    plain = model.without_hyperplanes()
    law, plain_data = scan_law(model.prior, model.truncation, scan), plain.data(data.X)
    state = init(plain, plain_data, generator, start=start, law=law)
    for step in range(num_sweeps):
        state = sweep(state, plain_data, plain, generator, step, scan=scan, num_split_merge=num_split_merge)
    state = _with_hyperplanes(state, data, model, generator, law)
    one = partial(sweep, scan=scan, num_split_merge=num_split_merge)
    return harden(state, data, data.features, model, generator, one, 2 * num_sweeps)


def _with_hyperplanes(
    state: PartitionState, data: Data, model: Mixture, generator: torch.Generator, law: PointLaw
) -> PartitionState:
    """A state of the mixture without hyperplanes, with some."""
    full = init(model, data, generator, start="one", law=law)
    weights = full.weights.new_zeros(len(state.weights), *full.weights.shape[1:])
    full = replace(full, assignments=state.assignments, hyper=state.hyper, weights=weights)
    for _ in range(_NUM_SETTLING):
        full = replace(full, weights=draw_weights(full, data, model, generator))
    return full


def sweep(
    state: PartitionState,
    data: Data,
    model: Mixture,
    generator: torch.Generator,
    step: int = 0,
    *,
    scan: str,
    num_split_merge: int,
    births: str = "exact",
    num_warmup: int = 0,
) -> PartitionState:
    """One sweep; each line leaves the target invariant (except for births from the "prior", the paper's scan).

    "auto" is "collapsed" where that is compiled and the loss has the integral that it needs, or where the prior has no
    slice scan, else "slice".
    """
    if scan == "auto":
        compiled = data.X.device.type == "cpu" and is_compiled(model.likelihood)
        quick = compiled and model.loss.has_marginal
        scan = "collapsed" if quick or model.prior.lacks("draw_rest") else "slice"
    if scan == "collapsed" and collapsed.moves_are_compiled(data, model):
        # moves cost little here, so that they come with every sweep
        state = collapsed.scan_with_moves(state, data, model, generator, num_moves=num_split_merge)
    else:
        propose, law = (
            split_merge_repelling if model.repels else split_merge,
            scan_law(model.prior, model.truncation, scan),
        )
        for _ in range(num_moves(num_split_merge, step, num_warmup)):
            state = propose(state, data, model, generator, law=law)
        state = _SCANS[scan](state, data, model, generator)
    state = replace(state, weights=draw_weights(state, data, model, generator))
    if scan == "blocked":
        return blocked_scan.relabel(state, model.prior, generator)  # its scan drew the hyperparameters
    if state.reservoir is not None:
        features, grows = data.features, step < num_warmup
        reservoir = renew_reservoir(state.reservoir, features, model, generator, births=births, grows=grows)
        state = replace(state, reservoir=reservoir)
    return replace(state, hyper=model.prior.draw(state.hyper, count_members(state), generator))


def draw_weights(state: PartitionState, data: Data, model: Mixture, generator: torch.Generator) -> Tensor:
    """Classifiers [K, P, C] given the assignments."""
    return classifiers_of(model, data, state.assignments, len(state.weights)).draw(state.weights, generator)


_NUM_SETTLING = 20  # draws of the hyperplanes before the first sweep with them
