"""Few latent features in Pyro's engines: conversion of the sites of a program to a draw of the posterior.

The bits are summed out of the program, each row over its 2^K values, and drawn given the sites by the model's
likelihood and `log_margin`. A draw has the same entries as one of the blocked Gibbs scan.
"""

from __future__ import annotations

import pyro.poutine as poutine
import torch
from pyro.infer.autoguide.initialization import InitMessenger, init_to_mean
from torch import Tensor

from ...models.distributions.bits import MOST_BITS, all_rows
from ...models.distributions.sampling import draw_categorical, uniforms
from ...models.ilsvm import InfiniteLatentSVM
from ...models.latent_features import FeatureData
from ..distributed.collectives import own_stream
from ..gibbs.features import state as feature_state
from ..gibbs.features.start import by_size, start_bits
from ..gibbs.features.state import FeatureState
from ..truncation import warn_if_all_used
from .partition import Latents

draw, warn = feature_state.draw, warn_if_all_used  # those of the blocked scan


def start(model: InfiniteLatentSVM, data: FeatureData, generator: torch.Generator) -> Latents:
    """Loadings and weights of features opened one after another, and probabilities at their prior means.

    Raises
    ------
    ValueError    if the sums over 2^K rows of bits for each row of X have too many terms.
    """
    _require_few(model.truncation, data.X)
    state = by_size(start_bits(model, data, generator, start="one"))
    h = {name: value.to(data.X) for name, value in state.hyper.items()}
    with poutine.trace() as sites, InitMessenger(init_to_mean()):
        model.prior.probabilities(h, model.truncation)
    drawn = poutine.util.prune_subsample_sites(sites.trace)
    own = {name: drawn.nodes[name]["value"] for name in drawn.stochastic_nodes}
    entries = {name: value.to(data.X) for name, value in state.entries.items()}
    learned = {name: h[name] for name, law in model.prior.hyperpriors(data.X).items() if law is not None}
    learned |= {name: entries[name] for name, law in model.likelihood.hyperpriors(data.X).items() if law is not None}
    return own | learned | {"loadings": state.loadings, "weights": state.weights}


def _require_few(num_bits: int, X: Tensor) -> None:
    most = min(MOST_BITS, (_MOST_TERMS // X.numel()).bit_length() - 1)
    if num_bits <= most:
        return
    mend = f"truncation={most} or less" if most >= 2 else "fewer rows"
    raise ValueError(
        f"truncation is {num_bits}, so the program is summed over 2^{num_bits} rows of bits for each of {len(X)} rows "
        f"of {X.shape[1]} columns; at most 2^{MOST_BITS} rows and {_MOST_TERMS:,} terms are taken. Use {mend}, "
        "or Gibbs or SVI, which do not sum."
    )


def with_assignments(
    latents: Latents, model: InfiniteLatentSVM, data: FeatureData, generator: torch.Generator
) -> FeatureState:
    """The state at these latents, with bits drawn given them."""
    latents = {name: value.detach() for name, value in latents.items()}
    hyper, entries = (
        {name: latents.get(name, fixed).double() for name, fixed in part.start(data.X).items()}
        for part in (model.prior, model.likelihood)
    )
    with poutine.condition(data=latents):
        pi = model.prior.probabilities({name: value.to(data.X) for name, value in hyper.items()}, model.truncation)
    pi = pi.double().clamp(min=_TINY)
    loadings, weights = latents["loadings"], latents["weights"]
    rows = all_rows(model.truncation, data.X)
    log_prior = rows.double() @ pi.logit()
    log_entries = model.likelihood.distribution((rows @ loadings).unsqueeze(1), entries).log_prob(data.X)
    margin = model.log_margin(model.scores(rows.unsqueeze(1), data.inputs, weights), data.targets)
    logits = log_prior.unsqueeze(1) + (data.counted * log_entries).sum(-1) + margin
    chosen = draw_categorical(logits.T, uniforms((data.num_data,), own_stream(generator)))
    bits = rows[chosen].to(torch.int8)
    return FeatureState(bits, loadings, weights, pi, hyper, entries)


_MOST_TERMS = 2_000_000
_TINY = 1e-300
