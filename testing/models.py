"""Conformance of a mixture model: its Pyro program and what the kernels ask of it are the same density."""

from __future__ import annotations

from typing import Any

import pyro.poutine as poutine
import torch
from pyro.infer import TraceEnum_ELBO
from torch import Tensor

from ..models.mixture import Mixture
from ..models.priors.dirichlet_process import log_stick_weights

__all__ = ["check_model", "log_density_table"]


def check_model(model: Mixture, X: Any, y: Any = None, *, seed: int = 0) -> None:
    """Check a mixture model on a small data set X [N, D], y [N].

    1. Resolving twice changes nothing.
    2. The program's log density is that of its parts as kernels compute them: sticks, family, weights, assignments,
       inputs and margin factors.
    3. With the assignments summed out in parallel it is the logsumexp of the kernels' table.

    Raises
    ------
    AssertionError    naming the part that disagrees.
    """
    resolved = model.resolve(X, y)
    again = resolved.resolve(X, y)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        trace = poutine.trace(resolved).get_trace(X, y)
    trace.compute_log_prob()
    sites = {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}
    table = log_density_table(again, X, y, {name: site["value"] for name, site in sites.items()})
    own = table.gather(1, sites["assignments"]["value"].unsqueeze(1)).sum()
    points = sum(sites[name]["log_prob_sum"] for name in _POINTS if name in sites)
    torch.testing.assert_close(points, own, msg=lambda text: f"the points' part of the program differs: {text}")
    globals_ = {name: site["value"] for name, site in sites.items() if name not in _POINTS}
    summed = -TraceEnum_ELBO(max_plate_nesting=1).loss(
        poutine.enum(poutine.condition(resolved, data=globals_), first_available_dim=-2), _empty_guide, X, y
    )
    prior = sum(sites[name]["log_prob_sum"] for name in globals_)
    expected = float(prior + table.logsumexp(1).sum())
    assert abs(summed - expected) <= 1e-4 * (1 + abs(expected)), (
        f"with assignments summed out the program has log density {summed}, its parts {expected}"
    )


def log_density_table(model: Mixture, X: Any, y: Any, latents: dict[str, Tensor]) -> Tensor:
    """log pi_k + log p(x_n | theta_k) + log phi(y_n | f_nk) [N, T], through the interfaces that kernels use.

    `latents` are values of the program's sites: `sticks`, `weights` and the family's parameters.
    """
    X = torch.as_tensor(X)
    data = model.data(X, y)
    not_family = {"sticks", "weights", "concentration", *_POINTS}
    parameters = {name: value for name, value in latents.items() if name not in not_family and torch.is_tensor(value)}
    scores = torch.einsum("np,kpc->nkc", data.features, latents["weights"])
    margin = model.log_margin(scores, data.targets.unsqueeze(1))
    if model.repels:
        margin = margin + model.log_rejection(scores.squeeze(-1)).unsqueeze(1)
    return log_stick_weights(latents["sticks"]) + model.likelihood.log_density(X, parameters) + margin


_POINTS = ("assignments", "X", "margin", "rejection")


def _empty_guide(*args: Any) -> None:
    """Nothing is left to guide: every continuous site is conditioned on, the assignments are summed out."""
