"""Gibbs sampling of a mixture of classifiers: a scan of the assignments, then one draw of all other variables.

    target(z, eta, h) = p(z | h) p(h) prod_k m(X_k) N(eta_k; 0, nu^2 I) prod_n phi(y_n | eta_{z_n}^T a_n)

    "collapsed"   each point in turn, the likelihood's parameters integrated out    infinite model, p(z): the EPPF
    "slice"       all points at once given weights, slices and fresh components     infinite model, p(z): the EPPF
    "blocked"     all points at once given T sticks                                 T components, z in 0..T-1

m are block marginals and h the hyperparameters of the prior. A state is (z, eta, h). Mixture weights, parameters theta
of the likelihood and augmentation variables omega are drawn where a step needs them and then dropped. Every scan has
omega integrated out, so omega is drawn anew before eta is: the order z, omega, eta of `sweep` is part of its
correctness (docs/derivations/mixtures, "Collapsed scan").

Where components repel (`Hyperplanes`), phi(y_n | eta_{z_n}) is exp(h(eta_{z_n}^T a_n)), every eta_k is drawn given all
points, and new components take their hyperplane from a reservoir instead of the prior (`hyperplanes`). A subclass of
`Allocation` defines what z is: components of points (`Points`), or states of the steps of sequences (`Paths`).

Source: Wang & Zhu (2014), with new components drawn as in Neal (2000).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...models.data import Data
from ...models.distributions.sampling import uniforms
from ...models.likelihoods import ExponentialFamily
from ...models.mixture import Mixture
from ...models.priors.base import NEEDED, PartitionPrior
from ...models.priors.laws import Law
from ...models.sequence import Sequences, StateSpace
from ...models.sums import all_named, among
from ..classifiers.scored import classifiers_of
from ..distributed.collectives import Later, all_count, all_sums, own_stream
from ..posterior.draws import drawn
from ..running.engine import Draw, Kernel
from ..seeding import nearest
from ..truncation import warn_if_full
from .allocations import Allocation, D, M, S
from .backend import Gibbs
from .hyperplanes import renew_reservoir, reserve
from .moves.split_merge import num_moves, split_merge
from .moves.tempering import harden
from .points import Points
from .prepared import Prepared, prepare_points
from .scans.components import log_evidence, summed_statistics
from .state import PartitionState, scan_law


def sweep(
    state: S,
    data: D,
    model: M,
    generator: torch.Generator,
    step: int = 0,
    *,
    scan: str,
    num_split_merge: int = 0,
    births: str = "exact",
    num_warmup: int = 0,
    kind: type[Allocation[Any, Any, Any]] = Points,
) -> S:
    """One sweep. Each update leaves the target invariant, except births from the "prior" as in the paper."""
    scan = kind.quickest(data, model) if scan == "auto" else scan
    z: Allocation[S, D, M] = kind(scan_law(model.prior, model.truncation, scan), data)
    if (fused := kind.fused(scan, data, model)) is not None:  # this code makes the moves in every sweep
        state = fused(state, data, model, generator, num_moves=num_split_merge)
    else:
        number = num_moves(num_split_merge, step, num_warmup, costly=model.without_hyperplanes() is not model)
        for _ in range(number if z.proposes(model) else 0):
            state = split_merge(state, z, model, generator)
        state = z.scans[scan](state, data, model, generator)
    tally = Later(z.tally(state))
    state = replace(state, weights=draw_weights(state, data, model, generator))
    if state.reservoir is not None:
        features, grows = data.points.features, step < num_warmup
        reservoir = renew_reservoir(state.reservoir, features, model, generator, births=births, step=step, grows=grows)
        state = replace(state, reservoir=reservoir)
    return z.relabel(z.draw_prior(state, generator, tally()), generator, tally())


def draw_weights(
    state: PartitionState, data: Data | Sequences, model: Mixture | StateSpace, generator: torch.Generator
) -> Tensor:
    """Draw classifiers [K, P, C] given the assignments."""
    scored = classifiers_of(model, data.points, data.observed(state.assignments), len(state.weights))
    return scored.draw(state.weights, generator)


class Sums(NamedTuple):
    """Sums over the rows of all ranks, for a given state."""

    tally: Tensor  # [...], as in `Allocation.tally`
    chi: Tensor  # [K, S] posterior hyperparameters of the components
    told: Tensor  # [...], as in `Scored.told`
    beside: Tensor  # [...], sum of the caller's terms


def sums_over_rows(
    state: S,
    data: D,
    model: M,
    *,
    law: Law,
    kind: type[Allocation[Any, Any, Any]] = Points,
    beside: Tensor | None = None,
) -> Sums:
    """The sums that `log_joint` and `draw` need, and the sum over ranks of `beside` [...], in one exchange."""
    scored = classifiers_of(model, data.points, data.observed(state.assignments), len(state.weights))
    with among(None):
        own = kind(law, data).tally(state), summed_statistics(state, data, model)
    told = scored.told(state.weights, relative=law.alike)
    tally, statistics, told, others = all_sums(*own, told, told.new_zeros(0) if beside is None else beside)
    return Sums(tally, Prepared.of(data.points, model.likelihood).prior + statistics, told, others)


def log_joint(
    state: S,
    data: D,
    model: M,
    *,
    law: Law,
    kind: type[Allocation[Any, Any, Any]] = Points,
    sums: Sums | None = None,
) -> Tensor:
    """log density [] of (z, eta, h) and the data; theta, omega and mixture weights or rows are integrated out.

    In an infinite model whose components repel the density of eta is relative (`RepellingHyperplanes.log_density`).
    """
    sums = sums_over_rows(state, data, model, law=law, kind=kind) if sums is None else sums
    total = kind(law, data).log_density(state, sums.tally) + log_evidence(sums.chi, data.points, model.likelihood)
    scored = classifiers_of(model, data.points, data.observed(state.assignments), len(state.weights))
    return total + scored.log_density(state.weights, sums.told, relative=law.alike)


def draw(
    state: S,
    data: D,
    model: M,
    *,
    law: Law,
    kind: type[Allocation[Any, Any, Any]] = Points,
    sums: Sums | None = None,
) -> Draw:
    """The draw that the posterior keeps of a state."""
    sums = sums_over_rows(state, data, model, law=law, kind=kind) if sums is None else sums
    joint = log_joint(state, data, model, law=law, kind=kind, sums=sums)
    hyper = {name: value.to(data.X.dtype) for name, value in state.hyper.items()}
    return drawn(kind(law, data).kept(state, sums.tally, sums.chi, joint), hyper)


# -- the kernel and its starts -----------------------------------------------------------------------------------------


def check(backend: Gibbs, model: Mixture) -> None:
    """Raise on a scan that partitions or their prior lack, and on a likelihood without a conjugate prior."""
    backend.require_scan(model, "auto", *Points.scans)
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


def alone(backend: Gibbs, model: Mixture) -> str:
    """What to change so that ranks can share the rows; "" if nothing: "slice" and "blocked" take all points at once."""
    return alone_with(backend, model.prior)


def alone_with(backend: Gibbs, prior: PartitionPrior) -> str:
    """`alone` for a model whose components have this prior."""
    if isinstance(backend.init, Tensor):
        return "leave init out"
    served = [scan for scan, method in NEEDED.items() if not prior.lacks(method)]
    if backend.scan in served or (backend.scan == "auto" and "slice" in served):
        return ""
    return f"take scan={served[0]!r}" if served else "fit on one rank, without group"


def kernel(backend: Gibbs, model: Mixture) -> Kernel:
    """The kernel of partitions with the options of `backend`."""
    return kernel_of(Points, backend, model, _start, prepare_points)


def kernel_of(
    kind: type[Allocation[S, D, M]],
    backend: Gibbs,
    model: M,
    start: Callable[..., S],
    prepare: Callable[[M, D], D],
) -> Kernel:
    """The kernel of a subclass of `Allocation`; `start` makes a state from (model, data, generator, backend)."""
    law = scan_law(model.prior, model.truncation, backend.scan)
    kernel = Kernel(
        state=kind.state,
        init=partial(start, backend=backend),
        init_further=partial(start, backend=backend.replace(init=_APART)) if backend.init == "auto" else None,
        sweep=partial(
            sweep,
            scan=backend.scan,
            num_split_merge=backend.split_merge,
            births=backend.births,
            num_warmup=backend.num_warmup,
            kind=kind,
        ),
        value=partial(log_joint, law=law, kind=kind),
        draw=partial(draw, law=law, kind=kind),
        prepare=prepare,
        value_in="log_joint",
    )
    remedy = f", or with scan={kind.unbounded!r}"
    return kernel if law.alike else replace(kernel, warn=partial(warn_if_full, remedy=remedy))


def _start(model: Mixture, data: Data, generator: torch.Generator, *, backend: Gibbs) -> PartitionState:
    law = scan_law(model.prior, model.truncation, backend.scan)
    backend.require_labels(data, law.capacity, other=Points.unbounded)
    if model.without_hyperplanes() is model:
        return init(model, data, generator, start=backend.init, law=law)
    return init_generatively(
        model,
        data,
        generator,
        start=backend.init,
        scan=backend.scan,
        num_sweeps=backend.num_generative,
        num_split_merge=backend.split_merge,
    )


def init(model: Mixture, data: Data, generator: torch.Generator, *, start: str | Tensor, law: Law) -> PartitionState:
    """A first state with the assignments that `start` describes.

    One component ("one", "auto"), T random ones ("random"), components around a random number of distant rows
    ("apart"), or given assignments [N]. If the prior allows fewer components, one takes the place of random ones.
    """
    if isinstance(start, Tensor):
        assignments = all_named(start.to(data.X.device))[1]
    elif start == "random":
        stream, size = own_stream(generator), (data.num_data,)
        assignments = law.named(torch.randint(model.truncation, size, generator=stream, device=data.X.device))
    elif start == _APART:
        assignments = law.named(_around_rows(model, data, generator))
    else:
        assignments = torch.zeros(data.num_data, dtype=torch.long, device=data.X.device)
    points = Points(law, data)
    state = points.begin(assignments, model)
    if start not in ("one", "auto") and points.log_density(state) == -torch.inf:
        if isinstance(start, Tensor):
            number = len(assignments.unique())
            raise ValueError(f"init has {number} components, more than {model.prior!r} allows. Pass fewer.")
        state = points.begin(torch.zeros_like(assignments), model)
    return settle(state, data, model, generator, num_draws=1, law=law)


def _around_rows(model: Mixture, data: Data, generator: torch.Generator) -> Tensor:
    """Assign each row to the one of m distant rows that explains it best, [N]; log m is uniform between 2 and T."""
    most = min(model.truncation, all_count(data.num_data))
    share = float(uniforms((), generator))
    return nearest(model.likelihood, data.X, min(most, int(2 * (most / 2) ** share)), generator)


def settle(
    state: PartitionState,
    data: Data,
    model: Mixture,
    generator: torch.Generator,
    *,
    num_draws: int,
    law: Law,
    rough: bool = False,
) -> PartitionState:
    """Give a state its first reservoir, where an infinite model has one, and draw the classifiers."""
    if law.alike:
        state = replace(state, reservoir=reserve(data.features, model, generator, rough=rough))
    for _ in range(num_draws):
        state = replace(state, weights=draw_weights(state, data, model, generator))
    return state


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
    """A first state of a model whose components repel.

    The mixture without hyperplanes (Nguyen et al.) takes 4 `num_sweeps` sweeps; then come 2 `num_sweeps` sweeps along
    which the power of the margin factors rises to 1. `start` is as in `init`, a word or assignments [N].
    """
    plain = model.without_hyperplanes()
    law, plain_data = scan_law(model.prior, model.truncation, scan), prepare_points(plain, plain.data(data.X))
    one = partial(sweep, scan=scan, num_split_merge=num_split_merge)
    found = init(plain, plain_data, generator, start=start, law=law)
    for step in range(_NUM_PLAIN * num_sweeps):
        found = one(found, plain_data, plain, generator, step)
    state = replace(Points(law, data).begin(found.assignments, model), hyper=found.hyper)
    state = settle(state, data, model, generator, num_draws=_NUM_SETTLING, law=law, rough=num_sweeps > 0)
    return harden(state, data, model, generator, one, 2 * num_sweeps)


_APART = "apart"  # the start of all chains but the first
_NUM_PLAIN = 4  # sweeps without hyperplanes for each two with them: they cost little
_NUM_SETTLING = 5  # draws of the hyperplanes before the first sweep with them
