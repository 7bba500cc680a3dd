"""Exact posteriors of a projection of three dimensions on two features, one task: every Z, weights on a grid."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from regbayes.inference.gibbs.projection import ProjectionState
from regbayes.models import IndianBuffetProcess, MultiTaskInfiniteLatentSVM, TaskData

GRID = 65


def exact_joint(model: MultiTaskInfiniteLatentSVM, data: TaskData) -> tuple[Tensor, Tensor, Tensor]:
    """All Z [64, 3, 2], their probabilities [64], and those [64, grid] with weights on a grid: one task, no input."""
    bits = torch.tensor(list(itertools.product([0.0, 1.0], repeat=6)), dtype=torch.float64).view(-1, 3, 2)
    line = torch.linspace(-6, 6, GRID, dtype=torch.float64) * model.weight_scale
    grid = torch.cartesian_prod(line, line)
    h, logs = model.prior.start(data.X), []
    log_normal = -(grid / model.weight_scale).square().sum(1) / 2
    for Z in bits:
        scores = data.X[data.rows] @ Z @ grid.T
        log_margin = model.loss.log_factor(scores, data.known.unsqueeze(1)).sum(0)
        total = model.prior.log_features(Z.sum(0), 3, h) + log_normal + log_margin
        if model.likelihood is not None:
            p = model.likelihood.start(data.X)
            cov = Z @ Z.T / p["loading_precision"] + torch.eye(3, dtype=torch.float64) / p["noise_precision"]
            offset = model.likelihood.offset
            law = torch.distributions.MultivariateNormal(torch.as_tensor(offset), cov)
            total = total + law.log_prob(data.X).sum()
        logs.append(total)
    table = torch.stack(logs)
    joint = (table - table.logsumexp((0, 1))).exp()
    return bits, joint.sum(1), joint


def exact_states(
    model: MultiTaskInfiniteLatentSVM,
    data: TaskData,
    joint: Tensor,
    bits: Tensor,
    number: int,
    generator: torch.Generator,
) -> Iterator[ProjectionState]:
    """So many states whose Z, and weights up to the grid, are exact draws, and pi by some steps given Z."""
    line = torch.linspace(-6, 6, GRID, dtype=torch.float64) * model.weight_scale
    grid, hyper = torch.cartesian_prod(line, line), model.prior.start(data.X)
    precisions = {} if model.likelihood is None else model.likelihood.start(data.X)
    for cell in torch.multinomial(joint.flatten(), number, replacement=True, generator=generator).tolist():
        which, place = divmod(cell, joint.shape[1])
        pi = model.prior.start_probabilities(hyper, 2)
        for _ in range(20 if isinstance(model.prior, IndianBuffetProcess) else 1):
            pi = model.prior.draw_probabilities(pi, bits[which].sum(0), 3, hyper, generator)
        yield ProjectionState(bits[which].clone(), pi, grid[place].unsqueeze(1), hyper, precisions)
