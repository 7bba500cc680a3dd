"""Small problems whose components repel or follow one another, and the objective of all their partitions."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import numpy as np
import torch
from setups import price_of
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from torch import Tensor

from regbayes.inference.small_variance import repelling
from regbayes.inference.small_variance.landscape import Landscape
from regbayes.inference.small_variance.sequence import SequenceLandscape
from regbayes.inference.small_variance.state import RepellingDescent
from regbayes.models import Hinge, SphericalGaussian
from regbayes.models.priors.franchise import count_transitions
from regbayes.testing.enumeration import partitions

FAMILY = SphericalGaussian(loc=0.0, variance=1.0, prior_variance=10.0)


def tiny(seed: int, num_data: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centers = torch.tensor([[0.0, 0.0], [3.0, 1.0]], dtype=torch.float64)
    return centers[torch.arange(num_data) % 2] + torch.randn(num_data, 2, generator=generator, dtype=torch.float64)


def landscape_of(model, inputs: Tensor, lengths=None, scale: float = 1.0) -> Landscape:
    model, data = model.prepare(inputs, None, lengths)
    return SequenceLandscape.over(model, data, scale) if lengths else Landscape.of(model, data, scale)


def state_at(labels, landscape: Landscape, penalty: float, transition_penalty: float = 0.4, weight: float = 0.0):
    """The best centres and hyperplanes at these labels."""
    labels = torch.tensor(labels)
    K, X = int(labels.max()) + 1, landscape.problem.X
    numbers = (X.new_tensor(value) for value in (penalty, transition_penalty, weight, 0.0))
    state = RepellingDescent(labels, X.new_zeros(K, X.shape[1]), landscape.empty.repeat(K, 1, 1), *numbers)
    return repelling.refit(state, landscape, 100)


def least_cost(features: Tensor, sides: np.ndarray, model) -> float:
    """liblinear's SVM_k for points on these sides."""
    hinge = isinstance(model.loss, Hinge)
    size = model.weight_scale**2 * (2 * model.loss.strength if hinge else 1.0)
    # one more point of either side at the origin: its loss is constant, and liblinear wants two classes
    rows, labels = np.vstack([features, np.zeros((2, features.shape[1]))]), np.append(sides, [1, -1])
    if hinge:
        options = {"tol": 1e-7, "max_iter": 10**6, "random_state": 0}
        solver = LinearSVC(loss="hinge", C=size, fit_intercept=False, **options)
    else:
        solver = LogisticRegression(C=size, fit_intercept=False, tol=1e-7, max_iter=10**5)
    scores = torch.from_numpy(features.numpy() @ solver.fit(rows, labels).coef_[0])
    losses = -model.loss.log_factor(scores, torch.from_numpy(sides).double()).sum()
    return float(losses) + float((solver.coef_**2).sum()) / (2 * model.weight_scale**2)


def surprise(labels: tuple[int, ...], starts: list[int]) -> float:
    """- sum_t log P of the moves between states, P their shares in the row they leave."""
    moves = [("start" if t in starts else labels[t - 1], label) for t, label in enumerate(labels)]
    exits = Counter(before for before, _ in moves)
    return -sum(count * math.log(count / exits[before]) for (before, _), count in Counter(moves).items())


def brute_force(
    landscape: Landscape, penalty: float, transition_penalty: float = 0.4, weight: float = 0.0
) -> list[float]:
    """J of every partition in increasing order, at the best centres and hyperplanes: liblinear's on each block."""
    problem, sequences = landscape.problem, getattr(landscape, "sequences", None)
    model, X, features = problem.model, problem.X, problem.data.features

    @cache
    def svm(members: tuple[int, ...]) -> float:
        if not model.repels:
            return 0.0
        sides = np.full(len(X), -1)
        sides[list(members)] = 1
        return least_cost(features, sides, model)

    @cache
    def block(members: tuple[int, ...]) -> float:
        rows = X[list(members)]
        return float((rows - rows.mean(0)).square().sum() / 2) + svm(members) - svm(())

    values = []
    num_steps = len(X) if sequences is None else sequences.num_data
    steps = list(range(num_steps)) if sequences is None else sequences.steps.tolist()
    for labels in partitions(num_steps):
        K = max(labels) + 1
        blocks = [tuple(m for m, t in enumerate(steps) if labels[t] == k) for k in range(K)]
        structure = sum(price_of(model.prior, penalty, k) for k in range(K))
        if sequences is not None:
            successors = (count_transitions(torch.tensor(labels), sequences.starts, K) > 0).sum(1)
            structure = penalty * (K - 1) + transition_penalty * float((successors - 1).clamp(min=0).sum())
            structure += weight * surprise(labels, torch.nonzero(sequences.starts).flatten().tolist())
        values.append(structure + sum(block(members) for members in blocks if members))
    return sorted(values)
