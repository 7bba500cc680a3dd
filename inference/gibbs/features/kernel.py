"""Gibbs sampling of the infinite latent SVM: one of three scans of the bits, then one draw of all other variables.

    target(Z, W, eta, h) = p(Z | h) p(h) N(W; 0, 1 / p) N(eta; 0, nu^2 I)
                           prod_nd p(x_nd | w_d . z_n) prod_n phi(y_n | eta . [z_n; b_n])

    "collapsed"   each row in turn, feature probabilities integrated out                 infinite model (IBP)
    "slice"       each column in turn for all rows, empty features above a slice opened  infinite model (IBP)
    "blocked"     each column in turn for all rows, given K probabilities                K features

A state is (Z, W, eta, h), in the blocked scan also with the K probabilities pi. The augmentation variables of the
entries are drawn first; the bits and the loadings are drawn given them. The augmentation variables of the margin are
drawn just before eta, since bits are drawn with the margin factor itself. W, eta and h come after the bits; h is drawn
given Z alone, because the scans of the infinite model integrate pi out or draw it themselves.

Source: Zhu, Chen & Xing (2014) for the model; its margin factors are sampled as in their Gibbs classifiers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from ....models.host import require_room
from ....models.ilsvm import InfiniteLatentSVM
from ....models.latent_features import FeatureData
from ....models.sums import ranks
from ...distributed.collectives import Later
from ...running.engine import Kernel
from ..backend import Gibbs
from .collapsed import is_compiled, scan_rows
from .columns import scan_blocked, scan_slice, swap_columns
from .parameters import draw_columns, draw_entries, observe_entries
from .rows import visit_rows
from .start import by_size, in_use, start_bits
from .state import FeatureState, Given, count_rows, draw, inside, log_joint, num_rows, own_counts

Scan = Callable[[FeatureState, Given, torch.Generator], FeatureState]


def scan_collapsed(state: FeatureState, given: Given, generator: torch.Generator) -> FeatureState:
    """Visit every row in turn, with compiled code where there is some."""
    visit = scan_rows if is_compiled(given.model, given.data) else visit_rows
    return visit(state, given, generator)


_SCANS: dict[str, Scan] = {"collapsed": scan_collapsed, "slice": scan_slice, "blocked": scan_blocked}


def check(backend: Gibbs, model: InfiniteLatentSVM) -> None:
    """Raise ValueError on a scan that the features or their prior do not support, and on `init` given as labels."""
    backend.require_scan(model, "auto", *_SCANS)
    if backend.scan in ("collapsed", "slice") and not model.prior.infinite:
        raise ValueError(
            f"scan is {backend.scan!r}, which samples infinitely many features, but {type(model.prior).__name__} has "
            "model.truncation of them. Use scan='blocked', or IndianBuffetProcess()."
        )
    if isinstance(backend.init, Tensor):
        raise ValueError(
            f"init is a Tensor of labels {list(backend.init.shape)}, but rows of {type(model).__name__} have features, "
            "not labels. Use init='one' or init='random'."
        )


def alone(backend: Gibbs, model: InfiniteLatentSVM) -> str:
    """What to change so that ranks can share the rows; "" if nothing: scans of columns update all rows at once."""
    if isinstance(backend.init, Tensor):
        return "leave init out"
    scan = "slice" if model.prior.infinite else "blocked"
    return f"take scan={scan!r}" if backend.scan == "collapsed" else ""


def holds_all(backend: Gibbs, model: InfiniteLatentSVM) -> bool:
    """Whether states hold all components of the model from the start, in use or not."""
    return backend.init == "random" or not model.prior.infinite


def kernel(backend: Gibbs, model: InfiniteLatentSVM) -> Kernel:
    """The kernel of latent features with the options of `backend`."""
    return Kernel(
        state=FeatureState,
        init=partial(init, start=cast(str, backend.init), scan=backend.scan),
        sweep=partial(sweep, scan=backend.scan),
        value=log_joint,
        draw=draw,
        value_in="log_joint",
    )


def init(
    model: InfiniteLatentSVM, data: FeatureData, generator: torch.Generator, *, start: str, scan: str
) -> FeatureState:
    """The first state of a chain: features opened one by one ("one"), or K = truncation random ones ("random")."""
    scan = _scan(scan, data, model)
    if scan != "blocked":
        alpha = float(model.prior.start(data.X)["concentration"])  # the mean number of features of a row
        require_room("concentration", alpha, alpha * (data.num_data + 8 * data.X.shape[1]), data.X.device)
    state = start_bits(model, data, generator, start=start)
    if scan != "blocked":
        state = in_use(state)
    else:
        state = by_size(state)
        pi, counts = model.prior.start_probabilities(state.hyper, model.truncation), count_rows(state)
        for _ in range(_NUM_SETTLING):
            pi = _draw_probabilities(replace(state, probabilities=pi), counts, data, model, generator)
        state = replace(state, probabilities=pi)
    return draw_parameters(state, observe_entries(state, data, model, generator), generator)


def sweep(
    state: FeatureState,
    data: FeatureData,
    model: InfiniteLatentSVM,
    generator: torch.Generator,
    step: int = 0,
    *,
    scan: str,
) -> FeatureState:
    """One sweep. Each line leaves the target invariant; the order matters."""
    given = observe_entries(state, data, model, generator)
    state = _SCANS[_scan(scan, data, model)](state, given, generator)
    state = draw_parameters(state, given, generator)
    return draw_entries(state, data, model, generator)


def draw_parameters(state: FeatureState, given: Given, generator: torch.Generator) -> FeatureState:
    """Draw loadings, weights, and the prior's probabilities and hyperparameters, given the bits."""
    (data, model, _), own = given, Later(own_counts(state))
    state = draw_columns(state, given, generator)
    if state.probabilities is None:
        num_features = state.features.shape[1]
        return replace(state, hyper=model.prior.draw(state.hyper, num_features, num_rows(data), generator))
    state, counts = swap_columns(state, own(), generator)
    pi = _draw_probabilities(state, counts, data, model, generator)
    return replace(state, probabilities=pi, hyper=model.prior.draw_truncated(state.hyper, pi, generator))


def _draw_probabilities(
    state: FeatureState, counts: Tensor, data: FeatureData, model: InfiniteLatentSVM, generator: torch.Generator
) -> Tensor:
    """Draw pi [K] given the number of rows [K] with each feature."""
    pi = cast(Tensor, state.probabilities)
    return inside(model.prior.draw_probabilities(pi, counts, num_rows(data), state.hyper, generator))


def _scan(scan: str, data: FeatureData, model: InfiniteLatentSVM) -> str:
    """The scan that "auto" stands for."""
    if scan != "auto":
        return scan
    if not model.prior.infinite:
        return "blocked"
    return "collapsed" if is_compiled(model, data) and ranks() is None else "slice"


_NUM_SETTLING = 20  # draws of the probabilities before the first sweep
