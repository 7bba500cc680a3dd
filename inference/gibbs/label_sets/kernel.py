"""Gibbs sampling of multi-label models: scans of the mixture of (x, y), and a draw of one classifier for each label.

    target(z, h, w) = p(z | h) p(h) prod_k m(X_k, Y_k) prod_c N(w_c; 0, nu^2 I) prod_nc phi(s_nc | w_c^T a_n)

In the joint "product", (z, h) and w are independent given the data. The scans are those of partitions with the product
of the likelihoods of x and y; the classifiers are drawn as those of a component that holds all points.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ....models.bnmc import BNMC
from ....models.label_data import LabelData
from ....models.priors.laws import Law
from ...posterior.label_draws import label_draw
from ...running.engine import Draw, Kernel
from ...truncation import warn_if_full
from .. import partition
from ..backend import Gibbs
from ..prepared import prepare_labels
from ..state import scan_law
from . import coupled
from .coupled import LabelState, scored
from .start import first


def check(backend: Gibbs, model: BNMC) -> None:
    """Raise on a scan that the joint lacks, and on a likelihood without the conjugate prior that scans need."""
    model.require_probabilities()
    mixture: Any = model
    partition.check(backend, mixture)
    if model.is_coupled and backend.scan not in {"auto", "blocked"}:
        raise ValueError(f"scan is {backend.scan!r}; the joint {model.joint!r} has scan='blocked' alone.")


def alone(backend: Gibbs, model: BNMC) -> str:
    """What to change so that ranks can share the rows, as for partitions; "" if nothing."""
    return partition.alone_with(backend, model.prior)


def holds_all(backend: Gibbs, model: BNMC) -> bool:
    """Whether states hold all components of the model from the start, in use or not."""
    return model.is_coupled


def kernel(backend: Gibbs, model: BNMC) -> Kernel:
    """The kernel of multi-label models with the options of `backend`."""
    if model.is_coupled:
        return coupled.kernel(backend)
    law = scan_law(model.prior, model.truncation, backend.scan)
    kernel = Kernel(
        state=LabelState,
        init=partial(init, backend=backend),
        sweep=partial(sweep, scan=backend.scan, num_split_merge=backend.split_merge, num_warmup=backend.num_warmup),
        value=partial(log_joint, law=law),
        draw=partial(draw, law=law),
        prepare=prepare_labels,
        value_in="log_joint",
    )
    return kernel if law.alike else replace(kernel, warn=partial(warn_if_full, remedy=", or with scan='slice'"))


def init(model: BNMC, data: LabelData, generator: torch.Generator, *, backend: Gibbs) -> LabelState:
    """A first state: a partition, and classifiers drawn given classifiers 0."""
    law = scan_law(model.prior, model.truncation, backend.scan)
    backend.require_labels(data, law.capacity, other="slice")
    seen = prepare_labels(model, data)
    labels = first(backend, model, data, generator)
    start = partition.init(seen.mixture, seen.points, generator, start=labels, law=law)
    zeros = data.features.new_zeros(1, data.features.shape[1], data.targets.shape[1])
    state = LabelState(**{item.name: getattr(start, item.name) for item in fields(start)}, classifiers=zeros)
    return replace(state, classifiers=draw_classifiers(state, data, model, generator))


def sweep(
    state: LabelState,
    data: LabelData,
    model: BNMC,
    generator: torch.Generator,
    step: int = 0,
    *,
    scan: str,
    num_split_merge: int,
    num_warmup: int = 0,
) -> LabelState:
    """One sweep. Both updates leave the target invariant."""
    seen = prepare_labels(model, data)
    options: dict[str, Any] = {"num_split_merge": num_split_merge, "num_warmup": num_warmup}
    moved: Any = partition.sweep(state, seen.points, seen.mixture, generator, step, scan=scan, **options)
    return replace(moved, classifiers=draw_classifiers(moved, data, model, generator))


def draw_classifiers(state: LabelState, data: LabelData, model: BNMC, generator: torch.Generator) -> Tensor:
    """Draw classifiers [1, P, C] given all else."""
    return scored(data, model).draw(state.classifiers, generator)


def log_joint(state: LabelState, data: LabelData, model: BNMC, *, law: Law) -> Tensor:
    """log density [] of (z, w, h) and the data; parameters, mixture weights and omega are integrated out."""
    seen, labels = prepare_labels(model, data), scored(data, model)
    plain = state, seen.points, seen.mixture
    sums = partition.sums_over_rows(*plain, law=law, beside=labels.told(state.classifiers))
    joint = partition.log_joint(*plain, law=law, sums=sums)
    return joint + labels.log_density(state.classifiers, sums.beside)


def draw(state: LabelState, data: LabelData, model: BNMC, *, law: Law) -> Draw:
    """The draw that the posterior keeps of a state."""
    seen, labels = prepare_labels(model, data), scored(data, model)
    plain = state, seen.points, seen.mixture
    sums = partition.sums_over_rows(*plain, law=law, beside=labels.told(state.classifiers))
    kept = partition.draw(*plain, law=law, sums=sums)
    kept["log_joint"] = kept["log_joint"] + labels.log_density(state.classifiers, sums.beside)
    return label_draw(kept, state.classifiers.squeeze(0), data, model)
