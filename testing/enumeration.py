"""Exact posteriors of tiny data sets: the exact weight of every partition, or of every labelling.

    p(z, X, y) = p(z) prod_k m(X_k) I(X_k, y_k),     I = integral of N(eta; 0, nu^2 I) prod_n phi(y_n | eta^T a_n) d eta

p(z) comes from the model's prior object, with hyperparameters that have a law integrated by quadrature; m is in closed
form from the family; I is by quadrature on a grid of eta, where a missing target has the factor 1.

If components repel, every hyperplane sees all points, and its integral depends on the points S of its component:

    g(S) = integral of N(eta; 0, nu^2 I) prod_{n in S} phi(+1 | eta^T a_n) prod_{n not in S} phi(-1 | eta^T a_n) d eta

A truncated model has this factor for each of its T components; the infinite model has it relative to a component
without points, g(S_k) / g(empty) (docs/derivations/repelling, "Hyperplanes without points").
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..models.data import Data
from ..models.mixture import Mixture
from ..models.priors.laws import law_of
from .hyperparameters import log_structure_prior
from .programs import check_mixture
from .references import Reference, register_reference

Labels = tuple[int, ...]


def partition_posterior(model: Mixture, X: Any, y: Any = None, *, truncation: int | None = None) -> dict[Labels, float]:
    """Exact posterior probability of every partition of N <= 10 points; with `truncation`, of every labelling 0..T-1.

    Partitions are written with labels in order of first appearance: (0, 0, 1, 0).

    Raises
    ------
    ValueError    if there are too many points, or if classifiers with a joint factor have more than 3 weights.
    """
    log_weights = partition_log_weights(model, X, y, truncation=truncation)
    probabilities = torch.tensor(list(log_weights.values()), dtype=torch.float64).softmax(0).tolist()
    return dict(zip(log_weights, probabilities, strict=True))


def log_evidence(model: Mixture, X: Any, y: Any = None, *, truncation: int | None = None) -> float:
    """log p(X, y) = log sum_z p(z, X, y), the upper bound of an ELBO; the margin factors are not normalized over y.

    In an infinite model whose components repel it is relative to the components without points.
    """
    log_weights = partition_log_weights(model, X, y, truncation=truncation)
    return float(torch.tensor(list(log_weights.values()), dtype=torch.float64).logsumexp(0))


def partition_log_weights(
    model: Mixture, X: Any, y: Any = None, *, truncation: int | None = None
) -> dict[Labels, float]:
    """log p(z, X, y) of every partition of the infinite model, or of every labelling of the truncated one."""
    X = model.as_rows(X).double()
    resolved = model.resolve(X, y)
    data = resolved.data(X, y)
    num_labellings = truncation**data.num_data if truncation else 0
    if data.num_data > 10 or num_labellings > 10**6:
        among = f" into truncation={truncation} components" if truncation else ""
        raise ValueError(
            f"{data.num_data} points have too many partitions{among}. Use at most 10 points, and 10^6 labellings."
        )
    log_block = log_blocks(data, resolved)
    if truncation:
        labellings: Iterator[Labels] = itertools.product(range(truncation), repeat=data.num_data)
    else:
        log_block = [value - log_block[0] for value in log_block]
        labellings = partitions(data.num_data)
    log_weights, log_priors = {}, dict[Labels, float]()
    for labels in labellings:
        sizes = tuple(labels.count(k) for k in range(truncation or max(labels) + 1))
        blocks = [sum(1 << n for n, label in enumerate(labels) if label == k) for k in range(len(sizes))]
        case = sizes if truncation else tuple(sorted(sizes))  # the blocks of a partition have no order
        if case not in log_priors:
            log_priors[case] = log_structure_prior(law_of(resolved.prior, truncation), case)
        log_weights[labels] = log_priors[case] + sum(log_block[block] for block in blocks)
    return log_weights


def partitions(num_data: int) -> Iterator[Labels]:
    """Every partition of the points, as labels in order of first appearance."""
    if num_data == 0:
        yield ()
        return
    for labels in partitions(num_data - 1):
        for label in range(max(labels, default=-1) + 2):
            yield (*labels, label)


def log_classifier_integrals(data: Data, model: Any, members: Tensor) -> Tensor:
    """log I, or log g, [B] of the classifiers of B blocks, given as rows of 0 and 1 [B, N].

    The integral is a sum over a grid of eta, up to 9 prior standard deviations. With 1, 2 or 3 weights the step is
    0.001, 0.02 or 0.12 of them, and a kink of slope s has a relative error of about (s * step)^2 / 12 at the points
    beside it.
    """
    num_features, num_scores = data.features.shape[1], data.targets.shape[1]
    total = data.X.new_zeros(len(members))
    if not num_scores:
        return total
    groups = [list(range(num_scores))] if model.loss.meets else [[c] for c in range(num_scores)]
    for group in groups:
        num_weights = num_features * len(group)
        if num_weights > 3:
            raise ValueError(
                f"Classifiers of {num_weights} weights meet in one integral; quadrature takes at most 3. "
                "Use one column of X, and intercept=0 for more than two classes."
            )
        log_factors = [_log_factors(data, model, group, eta, members) for eta in _grid(num_weights, data.X)]
        total = total + torch.stack(log_factors).logsumexp(0)
    return total


def _log_factors(data: Data, model: Any, group: list[int], eta: Tensor, members: Tensor) -> Tensor:
    """log of the sum over nodes eta [G, P C'] of prior mass times the factors, for each block [B]."""
    weights = model.weight_scale * eta.view(len(eta), data.features.shape[1], len(group))
    scores = torch.einsum("np,gpc->ngc", data.features, weights)
    targets = data.targets[:, None, group]
    log_factor = members @ model.loss.log_factor(scores, targets).sum(-1)
    if model.repels:
        log_factor = log_factor + (1 - members) @ model.loss.log_factor(scores, -targets).sum(-1)
    step = _STEPS[eta.shape[1]]
    log_mass = (math.log(step) - math.log(2 * math.pi) / 2) * eta.shape[1] - eta.square().sum(1) / 2
    return (log_factor + log_mass).logsumexp(1)


def _grid(num_weights: int, like: Tensor) -> Iterator[Tensor]:
    """Nodes [G, W] in standard deviations, in slabs along the first axis."""
    half = round(9 / _STEPS[num_weights])
    axis = torch.arange(-half, half + 1, dtype=like.dtype, device=like.device) * _STEPS[num_weights]
    rest = torch.cartesian_prod(*[axis] * (num_weights - 1)).view(-1, num_weights - 1) if num_weights > 1 else None
    if rest is None:
        yield axis.unsqueeze(1)
        return
    for first in axis.split(max(1, 200_000 // len(rest))):
        yield torch.cat([first.repeat_interleave(len(rest)).unsqueeze(1), rest.repeat(len(first), 1)], 1)


def log_blocks(data: Data, model: Any) -> list[float]:
    """log m I of every set of points; entry b is the set of the points n for which bit n of b is 1."""
    codes = torch.arange(1 << data.num_data, device=data.X.device)
    members = (codes.unsqueeze(1) >> torch.arange(data.num_data, device=data.X.device) & 1).to(data.X.dtype)
    chi = model.likelihood.prior() + members @ model.likelihood.statistics(data.X)
    log_marginal = model.likelihood.log_marginal(chi) + members @ model.likelihood.log_base_measure(data.X)
    return (log_marginal + log_classifier_integrals(data, model, members)).tolist()


_STEPS = {1: 0.001, 2: 0.02, 3: 0.12}

register_reference(
    Data,
    Reference(
        posterior=lambda model, X, y, lengths, truncation: partition_posterior(model, X, y, truncation=truncation),
        log_evidence=lambda model, X, y, lengths, truncation: log_evidence(model, X, y, truncation=truncation),
        program=check_mixture,
    ),
)
