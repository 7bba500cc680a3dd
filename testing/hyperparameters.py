"""Hyperparameters integrated out by quadrature, for any prior that defines their laws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, biject_to

from ..models.priors import Hyper
from ..models.priors.hyper import hyper_product
from ..models.priors.laws import PointLaw


def hyper_grid(prior: Any) -> tuple[Hyper, Tensor]:
    """Values [G] of the hyperparameters of a prior and the logs of their weights [G]: G = 1 if none has a law.

    It is the trapezoid rule on the real line, over the interval where the density is above e^-40 of its maximum.
    """
    like = torch.zeros((), dtype=torch.float64)
    start, laws = prior.start(like), prior.hyperpriors(like)
    step = 0.2 if sum(law is not None for law in laws.values()) < 2 else 0.4
    axes, log_weights = [], torch.zeros(1, dtype=torch.float64)
    for name, law in laws.items():
        nodes, log_mass = (start[name].reshape(1), like.reshape(1)) if law is None else _nodes(law, step)
        axes.append(nodes)
        log_weights = (log_weights.unsqueeze(1) + log_mass).flatten()
    values = hyper_product(axes, like)
    return dict(zip(laws, values, strict=True)), log_weights


def _nodes(law: Distribution, step: float) -> tuple[Tensor, Tensor]:
    transform = biject_to(law.support)
    u = torch.arange(-700.0, 700.0, step, dtype=torch.float64)
    nodes = transform(u)
    log_mass = law.log_prob(nodes.clamp(min=torch.finfo(nodes.dtype).tiny)) + transform.log_abs_det_jacobian(u, nodes)
    log_mass = log_mass.nan_to_num(-math.inf, -math.inf) + math.log(step)
    kept = (log_mass > log_mass.max() - 40) & (u.abs() < 690)
    return nodes[kept], log_mass[kept]


def log_mean(prior: Any, log_value: Callable[[Hyper], Tensor]) -> Tensor:
    """log E exp(log_value(h)) [] over the laws of the hyperparameters, from a function of single values h to []."""
    values, log_weights = hyper_grid(prior)
    return (grid_values(log_value, values) + log_weights).logsumexp(0)


def grid_values(function: Callable[[Hyper], Tensor], values: Hyper) -> Tensor:
    """A function of single values h to [] at all values [G] of a grid, [G]; G = 1 without hyperparameters."""
    return torch.vmap(function)(values) if values else function(values).unsqueeze(0)


def log_structure_prior(law: PointLaw, sizes: tuple[int, ...]) -> float:
    """log p(z) of a partition with these block sizes, or of labels with these counts, over all hyperparameters."""
    counts = torch.tensor(sizes, dtype=torch.float64)
    return float(log_mean(law.prior, lambda h: law.log_prior(counts, h)))
