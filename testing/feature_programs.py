"""Compares the Pyro program of a latent feature model site by site with the parts that kernels and exact sums use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .programs import (
    Sites,
    compare,
    compare_prior,
    laws_of,
    log_total,
    require_no_others,
    require_sites,
    sites_of,
)


def check_features(model: Any, X: Any, y: Any = None, lengths: Any = None, seed: int = 0) -> None:
    """`check_model` of a latent feature model, on rows X [N, D], NaN where missing, and targets y [N]."""
    resolved, data = model.prepare(X, y, lengths)
    again = resolved.resolve(X, y)
    sites = sites_of(resolved, (X, y), seed)
    site = next((name for name in ("sticks", "probabilities") if name in sites), "probabilities")
    h = compare_prior(again, sites, [site])
    pi = _compare_probabilities(again, h, sites, site)
    entries = _compare_precisions(again, sites)
    K, (N, D) = again.truncation, data.X.shape
    shapes = {"loadings": (K, D), "weights": (K + data.inputs.shape[1], data.targets.shape[1]), "features": (N, K)}
    require_sites(sites, [*shapes, "X", "margin"])
    for name, shape in shapes.items():
        found = tuple(sites[name]["value"].shape)
        assert found == shape, f"the program's {name} are {list(found)}; expected {list(shape)}"
    W, eta, Z = (sites[name]["value"] for name in shapes)
    scale = again.likelihood.loading_precision(entries, D).to(W).rsqrt().expand(K, D)
    compare(
        log_total(sites, ["loadings"]), torch.distributions.Normal(0.0, scale).log_prob(W).sum(), "the loadings' part"
    )
    nu = torch.full_like(eta, float(again.weight_scale))
    compare(log_total(sites, ["weights"]), torch.distributions.Normal(0.0, nu).log_prob(eta).sum(), "the weights' part")
    log_bits = torch.where(Z > 0, pi.log(), torch.log1p(-pi)).sum()
    log_entries = (data.counted * again.likelihood.log_density(data.X, Z @ W, entries)).sum()
    margin = again.log_margin(again.scores(Z, data.inputs, eta), data.targets).sum()
    compare(log_total(sites, ["features"]), log_bits, "the features' part of the program")
    compare(log_total(sites, ["X"]), log_entries, "the entries' part of the program")
    compare(log_total(sites, ["margin"]), margin, "the margin's part of the program")
    precisions = [name for name, law in again.likelihood.hyperpriors(data.X).items() if law is not None]
    require_no_others(sites, [*laws_of(again), site, *precisions, *shapes, "X", "margin"])


def _compare_probabilities(model: Any, h: dict[str, Tensor], sites: Sites, site: str) -> Tensor:
    """Probabilities [K] of this run; the density of sticks is that of the probabilities times prod_{k < K} pi_k."""
    value: Tensor = sites[site]["value"]
    assert value.shape == (model.truncation,), f"the program has {len(value)} {site}; expected {model.truncation}"
    pi = value.cumprod(0) if site == "sticks" else value
    log_prior = model.prior.log_density(h) + model.prior.log_probabilities(pi, h)
    if site == "sticks":
        log_prior = log_prior + pi[:-1].log().sum()
    compare(log_total(sites, [*laws_of(model), site]), log_prior, "the prior's part of the program")
    return pi


def _compare_precisions(model: Any, sites: Sites) -> dict[str, Tensor]:
    """Hyperparameters of the likelihood in this run."""
    like = sites["loadings"]["value"]
    laws, values = model.likelihood.hyperpriors(like), model.likelihood.start(like)
    drawn = [name for name, law in laws.items() if law is not None]
    require_sites(sites, drawn)
    values |= {name: sites[name]["value"] for name in drawn}
    if drawn:
        expected = torch.stack([laws[name].log_prob(values[name]) for name in drawn]).sum()
        compare(log_total(sites, drawn), expected, "the likelihood's part of the program")
    return values
