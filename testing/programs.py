"""Compares Pyro programs of mixtures and state spaces site by site with the parts that kernels and exact sums use."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.infer import TraceEnum_ELBO
from torch import Tensor

from ..models.data import Data
from ..models.mixture import Mixture
from ..models.priors.sticks import log_stick_weights
from ..models.sequence import StateSpace

Sites = dict[str, Any]


def check_mixture(model: Mixture, X: Any, y: Any = None, lengths: Any = None, seed: int = 0) -> None:
    """`check_model` of a mixture, on rows X [N, D] and targets y [N]."""
    resolved = model.resolve(X, y)
    again = resolved.resolve(X, y)
    data = again.data(again.as_rows(X), y)
    sites = sites_of(resolved, (X, y), seed)
    h = compare_prior(again, sites, ["sticks"])
    require_sites(sites, ["assignments", "X", "margin"])
    a, b = again.prior.sticks(h, again.truncation)
    log_prior = again.prior.log_density(h) + dist.Beta(a, b).log_prob(sites["sticks"]["value"]).sum()
    compare(log_total(sites, [*laws_of(again), "sticks"]), log_prior, "the prior's part of the program")
    parameters, weights, family = _compare_components(again, data, sites)
    points = list[str](filter(sites.__contains__, ("assignments", "X", "margin", "rejection")))
    known = [*laws_of(again), "sticks", *family, "weights", *points]
    require_no_others(sites, known)
    scores = torch.einsum("np,kpc->nkc", data.features, weights)
    table = log_stick_weights(sites["sticks"]["value"]) + _emission(again, data, parameters, scores)
    if again.repels:
        table = table + again.log_rejection(scores.squeeze(-1)).unsqueeze(1)
    own = table.gather(1, sites["assignments"]["value"].unsqueeze(1)).sum()
    compare(log_total(sites, points), own, "the points' part of the program")
    rest = {name: sites[name]["value"] for name in known if name not in points}
    program = poutine.enum(poutine.condition(resolved, data=rest), first_available_dim=-2)
    with torch.random.fork_rng():
        summed = -TraceEnum_ELBO(max_plate_nesting=1).loss(program, _empty_guide, X, y)
    expected = log_total(sites, list(rest)) + table.logsumexp(1).sum()
    compare(summed, expected, "the program with assignments summed out")


def check_state_space(model: StateSpace, X: Any, y: Any = None, lengths: Any = None, seed: int = 0) -> None:
    """`check_model` of a model of state sequences, on their rows X [N, D]."""
    resolved, data = model.prepare(X, y, lengths)
    points, T = data.points, resolved.truncation
    again = resolved.resolve(points.X)
    sites = sites_of(resolved, (X, lengths), seed)
    h = compare_prior(again, sites, ["sticks", "transitions"])
    require_sites(sites, ["paths"])
    base = log_stick_weights(sites["sticks"]["value"]).exp()
    rows = sites["transitions"]["value"]
    log_prior = again.prior.log_sticks(torch.cat([base, base.new_zeros(1)]), h)
    log_prior = log_prior + dist.Dirichlet(h["concentration"] * again.prior.row_means(base, T)).log_prob(rows).sum()
    compare(log_total(sites, [*laws_of(again), "sticks", "transitions"]), log_prior, "the prior's part of the program")
    parameters, weights, family = _compare_components(again, points, sites)
    known = [*laws_of(again), "sticks", "transitions", *family, "weights", "paths", "rejection"]
    require_no_others(sites, known)
    scores = torch.einsum("np,kpc->nkc", points.features, weights)
    emission = data.spread(_emission(again, points, parameters, scores))
    own = _log_paths(rows.log(), emission, data.starts)
    if again.repels:
        own = own + again.log_rejection(scores.squeeze(-1)).sum()
    found = log_total(sites, [name for name in ("paths", "rejection") if name in sites])
    compare(found, own, "the points' part of the program")


def sites_of(model: Any, args: tuple[Any, ...], seed: int) -> Sites:
    """The sample statements of one run of the program, by name."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        trace = poutine.trace(model).get_trace(*args)
    trace.compute_log_prob()
    sites = {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}
    return {name: site for name, site in sites.items() if not poutine.util.site_is_subsample(site)}


def laws_of(model: Any) -> list[str]:
    """The names of the hyperparameters that have a law."""
    return [name for name, law in model.prior.hyperpriors(torch.zeros(())).items() if law is not None]


def compare_prior(model: Any, sites: Sites, names: list[str]) -> dict[str, Tensor]:
    """Check that the program has the sites of the prior object, and return the hyperparameters [] of this run."""
    require_sites(sites, [*laws_of(model), *names])
    drawn = {name: sites[name]["value"] for name in laws_of(model)}
    start: dict[str, Tensor] = model.prior.start(sites[names[0]]["value"])
    return {name: drawn.get(name, value) for name, value in start.items()}


def compare_family(family: Any, sites: Sites) -> tuple[dict[str, Tensor], list[str]]:
    """Check the laws of the family's sites, and return its parameters [T, ...] in this run and the sites' names."""
    log_family, names = torch.zeros(()), list[str]()

    def replay(name: str, law: Any) -> Tensor:
        nonlocal log_family
        require_sites(sites, [name])
        names.append(name)
        value: Tensor = sites[name]["value"]
        log_family = log_family + law.log_prob(value).sum()
        return value

    parameters = family.parameters(family.prior(), replay)
    compare(log_total(sites, names), log_family, "the family's part of the program")
    return parameters, names


def _compare_components(model: Any, data: Data, sites: Sites) -> tuple[dict[str, Tensor], Tensor, list[str]]:
    """Parameters [T, ...] of the family and weights [T, P, C] of this run, and the names of the family's sites."""
    parameters, names = compare_family(model.likelihood, sites)
    require_sites(sites, ["weights"])
    weights: Tensor = sites["weights"]["value"]
    shape = (model.truncation, data.features.shape[1], data.targets.shape[1])
    assert weights.shape == shape, f"the program's weights are {list(weights.shape)}; expected {list(shape)}"
    law = dist.Normal(weights.new_zeros(()), weights.new_tensor(float(model.weight_scale)))
    log_weights = law.log_prob(weights).sum()
    compare(log_total(sites, ["weights"]), log_weights, "the weights' part of the program")
    return parameters, weights, names


def _emission(model: Any, data: Data, parameters: dict[str, Tensor], scores: Tensor) -> Tensor:
    """log p(x_n | theta_k) plus the margin term of component k [N, T], from scores [N, T, C]."""
    margin = model.log_margin(scores, data.targets.unsqueeze(1))
    return model.likelihood.log_density(data.X, parameters) + margin


def _log_paths(log_rows: Tensor, emission: Tensor, starts: Tensor) -> Tensor:
    """log of the sum over all paths [], step by step, from log rows [T + 1, T] and emissions [N, T]."""
    total, T = emission.new_zeros(()), emission.shape[1]
    log_forward = emission.new_zeros(T)
    for n, first in enumerate(starts.tolist()):
        if first:
            total = total + (log_forward.logsumexp(0) if n else 0.0)
            log_forward = log_rows[T] + emission[n]
        else:
            log_forward = (log_forward.unsqueeze(1) + log_rows[:T]).logsumexp(0) + emission[n]
    return total + log_forward.logsumexp(0)


def log_total(sites: Sites, names: list[str]) -> Tensor:
    """The summed log density [] of these sites."""
    return torch.stack([torch.as_tensor(sites[name]["log_prob_sum"]) for name in names]).sum()


def require_sites(sites: Sites, names: list[str]) -> None:
    """Raise AssertionError unless the program has these sites."""
    for name in names:
        assert name in sites, f"the program has no site {name!r}, which the model's parts state"


def require_no_others(sites: Sites, names: list[str]) -> None:
    """Raise AssertionError if the program has other sites."""
    others = sorted(set(sites) - set(names))
    assert not others, f"the program has sites of its own, {others}, which no part of the model states"


def compare(found: Tensor | float, expected: Tensor | float, what: str) -> None:
    """Require that two log densities [] are equal up to the rounding of the dtype."""
    found, expected = torch.as_tensor(found), torch.as_tensor(expected)
    close = 1e-9 if isinstance(found, Tensor) and found.dtype == torch.float64 else 1e-4
    gap = abs(float(found) - float(expected))
    assert gap <= close * (1 + abs(float(expected))), (
        f"{what} differs: it has log density {float(found):.8g}, what its parts state has {float(expected):.8g}"
    )


def _empty_guide(*args: Any) -> None:
    """A guide without sites: every continuous site is conditioned on, and the assignments are summed out."""
