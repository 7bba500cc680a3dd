"""Merges of two components, where one component with a new centre and a new classifier costs less."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..distributed.collectives import each, once
from .assignment import all_costs, component_sums
from .classifiers import fit_classifiers
from .problem import Problem
from .state import Descent, Parts


def merge_components(state: Descent, parts: Parts, problem: Problem) -> tuple[Descent, Parts]:
    """Merge the best disjoint pairs repeatedly, until no merge lowers the objective."""
    while state.num_components > 1:
        state, parts, gains = merge_once(state, parts, problem)
        if not gains:
            break
    return state, parts


def merge_once(
    state: Descent, parts: Parts, problem: Problem, most: int | None = None, least_gain: float = 0.0
) -> tuple[Descent, Parts, list[float]]:
    """Merge the best disjoint pairs, at most `most`, that lower the objective by more than `least_gain`; the gains.

    Each merge saves the price Lambda(K) - Lambda(K - 1), with K after the merges before.
    """
    pairs = _near_pairs(state.centers, problem)
    savings, centers, weights, joint = _merged(pairs, state, parts, problem)
    chosen, gains, used = list[int](), list[float](), set[int]()
    penalty, *saved = torch.cat([state.penalty.double().reshape(1), savings]).tolist()
    refund, both = float(problem.next_price(penalty, state.num_components - 1)), pairs.tolist()
    for index in sorted(range(len(saved)), key=lambda index: -saved[index]):
        gain = saved[index] + refund
        if not gain > least_gain or len(chosen) == most:
            break
        if used.isdisjoint(pair := both[index]):
            used.update(pair)
            chosen.append(index)
            gains.append(gain)
            refund = float(problem.next_price(penalty, state.num_components - 1 - len(chosen)))
    if chosen:
        state, parts = _apply(pairs[chosen], state, parts, centers[chosen], weights[chosen], joint.rows(chosen))
    return state, parts, gains


def _merged(pairs: Tensor, state: Descent, parts: Parts, problem: Problem) -> tuple[Tensor, Tensor, Tensor, Parts]:
    """What each pair [M, 2] saves if merged, apart from the price of a component, and the merged components.

    The divergence follows from the sums of rows. The classifier is the better one of the two; for the most promising
    pairs it is then fitted again. So a merge attains at least the gain that is returned.
    """
    first, second = pairs.T
    one, other = parts.rows(first), parts.rows(second)
    sums, counts = one.sums + other.sums, one.counts + other.counts
    centers = problem.centers(sums, counts)
    weights, margins = once(lambda: _better_classifier(first, second, state, problem))
    weights, margins = weights.clone(), margins.clone()
    apart = (
        problem.smoothing(state.centers) + parts.margins + problem.divergences(parts.sums, parts.counts, state.centers)
    )
    saved = apart[first] + apart[second] - problem.divergences(sums, counts, centers)
    saved = saved - problem.smoothing(centers)
    gains = saved - margins
    if weights.numel():
        likely = gains.topk(min(_NUM_FITS, len(gains))).indices.tolist()

        def fitted(index: int) -> tuple[Tensor, Tensor]:
            rows = torch.nonzero((state.assignments.unsqueeze(1) == pairs[index]).any(1)).squeeze(1)
            together = torch.zeros_like(rows)
            fit = fit_classifiers(problem.rows(rows), together, weights[[index]], state.duals[rows], _NUM_STEPS)
            return fit.weights[0], fit.cost.sum()

        for index, fit in zip(likely, each([partial(fitted, index) for index in likely]), strict=True):
            weights[index], margins[index] = fit
            gains[index] = saved[index] - margins[index]
    return gains, centers, weights, Parts(sums, counts, margins)


def _better_classifier(first: Tensor, second: Tensor, state: Descent, problem: Problem) -> tuple[Tensor, Tensor]:
    """For each pair of components, the classifier [M, P, C] that costs less on the points of both, and its cost [M]."""
    weights = state.weights
    if not weights.numel():
        return weights[first], torch.zeros(len(first), dtype=torch.float64, device=weights.device)
    losses = all_costs(problem.without_divergence(), state.centers, weights)
    # [K, K]: losses of the row's points under the column's classifier
    cross, _ = component_sums(losses, state.assignments, len(weights), problem.data.weights)
    ridge = problem.ridge(weights)
    options = torch.stack([cross[first, k] + cross[second, k] + ridge[k] for k in (first, second)])
    least, best = options.min(0)
    return weights[torch.where(best == 0, first, second)], least


def _apply(
    pairs: Tensor, state: Descent, parts: Parts, centers: Tensor, weights: Tensor, joint: Parts
) -> tuple[Descent, Parts]:
    """Replace the first component of each pair by the merged one, and remove the second."""
    keep, drop = pairs.T
    K, device = len(state.centers), state.centers.device
    target = torch.arange(K, device=device).index_put((drop,), keep)
    rest = torch.ones(K, dtype=torch.bool, device=device).index_put((drop,), torch.tensor(False, device=device))
    label, left = (rest.cumsum(0) - 1)[target], torch.nonzero(rest).squeeze(1)
    values = [state.centers, state.weights, *parts]
    merged = [old.index_put((keep,), new)[left] for old, new in zip(values, [centers, weights, *joint], strict=True)]
    state = replace(state, assignments=label[state.assignments], centers=merged[0], weights=merged[1])
    return state, Parts(*merged[2:])


def _near_pairs(centers: Tensor, problem: Problem) -> Tensor:
    """Pairs [M, 2] of each component with its nearest others, each pair once."""
    K = len(centers)
    divergence = problem.likelihood.divergence(centers, centers)
    divergence.fill_diagonal_(torch.inf)
    near = divergence.topk(min(_NEAREST, K - 1), largest=False).indices
    pairs = torch.stack([torch.arange(K, device=centers.device).repeat_interleave(near.shape[1]), near.flatten()], 1)
    return pairs.sort(1).values.unique(dim=0)


_NEAREST = 8
_NUM_FITS = 8
_NUM_STEPS = 5
