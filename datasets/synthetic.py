"""Generators of the synthetic experiments of Wang & Zhu (Small-variance asymptotics for DP mixtures of SVMs).

All of them are DP-mixture-of-classifiers worlds: a hidden component z_n, features x_n from that component, and a label
from the component's own linear classifier, whose boundary goes through the centre of the component (their eq. 37):

    p(y_n = 1 | x_n, z_n = k) = sigmoid(eta_k^T (x_n - mu_k)),    eta_k ~ N(0, I).

A model without an intercept cannot express that boundary: let the classifier see (x, 1).

`make_setting_one`: overlapping Gaussian clusters of CRP sizes. `make_setting_two`: disjoint cubes of equal size.
`make_dp_mixture`: well separated Gaussian clusters of CRP sizes, whose number grows with N.

Of other origin are `make_chained_gaussians` and, for states over time, `make_switching_autoregression`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Synthetic:
    """A draw of N points from a mixture of K linear classifiers on D features, and what generated it."""

    X: Tensor  # [N, D] float64
    y: Tensor  # [N] int64, 0 or 1
    assignments: Tensor  # [N] int64, 0..K-1 in the order of first appearance
    probabilities: Tensor  # [N] p(y_n = 1 | x_n), the component summed out
    locs: Tensor  # [K, D] mu_k
    weights: Tensor  # [K, D] eta_k

    @property
    def num_components(self) -> int:
        """K."""
        return len(self.locs)

    @property
    def bayes_predictions(self) -> Tensor:
        """The most probable label [N] of each row if the generator is known but the components are not."""
        return (self.probabilities > 0.5).long()

    def bayes_accuracy(self, y: Tensor | None = None) -> float:
        """Accuracy of `bayes_predictions` on labels y [N]; without y, its expectation mean_n max(p_n, 1 - p_n)."""
        if y is None:
            return torch.maximum(self.probabilities, 1 - self.probabilities).mean().item()
        return (self.bayes_predictions == y).double().mean().item()


def make_setting_one(num_data: int = 1000, seed: int = 0) -> Synthetic:
    """Setting I: x_n ~ N(mu_k, 0.5^2 I) in 10 dimensions, mu_k = (k, ..., k) for k = 1, 2, ..., CRP(1) sizes, K <= 10.

    After the tenth cluster has opened, points choose among the ten in proportion to their sizes. The clusters overlap,
    so `probabilities` weigh sigmoid(eta_k^T (x - mu_k)) by p(z = k | x); the prior of z is the realized share n_k / N.
    """
    generator = seeded_generator(num_data, seed)
    assignments = _urn(num_data, 1.0, generator, max_components=10)
    return _gaussian(assignments, _diagonal(int(assignments.max()) + 1), 0.5, generator)


def make_setting_two(num_data: int = 10_000, seed: int = 0) -> Synthetic:
    """Setting II: 10 clusters of equal size (up to one point), x_nd ~ U[k - 1/2, k + 1/2] in 10 dimensions, k = 1..10.

    The cubes are disjoint, so x determines the component. Clusters take turns from row to row: any stretch of rows is
    balanced.
    """
    generator = seeded_generator(num_data, seed)
    assignments = torch.arange(num_data) % 10
    locs = _diagonal(int(assignments.max()) + 1)
    X = locs[assignments] + torch.rand(num_data, 10, generator=generator, dtype=torch.float64) - 0.5

    def posterior(rows: Tensor) -> Tensor:
        return torch.nn.functional.one_hot((rows.mean(-1) - 0.5).floor().long(), len(locs)).double()

    return _label(X, assignments, locs, posterior, generator)


def make_dp_mixture(
    num_data: int = 10_000, num_features: int = 10, concentration: float = 1.5, seed: int = 0
) -> Synthetic:
    """The DP mixture of Table 2: CRP sizes, mu_k ~ N(0, 4^2 I), x_n ~ N(mu_k, 0.5^2 I), labels as in Setting I.

    About `concentration * log(1 + N / concentration)` clusters; the first n rows are a draw of size n, with fewer. The
    paper states neither concentration nor separation: 1.5 gives about its number of clusters (6.9 in 100 rows, 13.8 in
    10,000 on average; 8 and 14 there), and in ten dimensions the centres lie some 18 apart, where a cluster has a
    radius of 1.6, so that the clusters can be recovered.
    """
    generator = seeded_generator(num_data, seed)
    require_whole("num_features", num_features)
    if not (is_number(concentration) and 1e-3 <= concentration <= 1e6):
        raise ValueError(f"concentration is {concentration!r}; it must be a number between 0.001 and 1e6.")
    assignments = _urn(num_data, concentration, generator)
    locs = 4 * _normal(int(assignments.max()) + 1, num_features, generator)
    return _gaussian(assignments, locs, 0.5, generator)


class Clusters(NamedTuple):
    """Points and the cluster that each came from."""

    X: Tensor  # [N, D] float64
    y: Tensor  # [N] int64


def make_chained_gaussians(
    num_data: int = 200, num_links: int = 4, spacing: float = 2.0, gap: float = 6.0, seed: int = 0
) -> Clusters:
    """Two clusters in the plane, each a horizontal chain of unit Gaussians, one chain above the other (DDPM, Fig. 2).

    A mixture of Gaussians needs a component for every link; a line separates the two chains.

    Parameters
    ----------
    num_links : Gaussians in each chain
    spacing : distance between the means of neighbouring links, in their standard deviations
    gap : distance between the chains
    """
    generator = seeded_generator(num_data, seed)
    require_whole("num_links", num_links)
    for name, value in {"spacing": spacing, "gap": gap}.items():
        if not is_number(value):
            raise ValueError(f"{name} is {value!r}; it must be a number.")
    y = torch.randint(2, (num_data,), generator=generator)
    link = torch.randint(num_links, (num_data,), generator=generator)
    locs = torch.stack([spacing * link, gap * y], 1)
    return Clusters(locs + _normal(num_data, 2, generator), y)


def make_switching_autoregression(
    num_data: int = 300, num_states: int = 3, stay: float = 0.97, noise: float = 0.1, seed: int = 0
) -> Clusters:
    """A walk in the plane that turns by one of some angles: x_t = 0.98 R_k x_{t-1} + e_t, e_t ~ N(0, noise^2 I).

    R_k turns by 2 pi k / (num_states + 1), k = 1, ..., num_states, and y are the states k - 1. Rows of all states lie
    around the origin: only the previous row tells them apart.

    Parameters
    ----------
    stay : probability that a step keeps the previous state; else any state is drawn
    """
    generator = seeded_generator(num_data, seed)
    require_whole("num_states", num_states)
    for name, value, most in (("stay", stay, 1.0), ("noise", noise, 1e6)):
        if not (is_number(value) and 0 <= value <= most):
            raise ValueError(f"{name} is {value!r}; it must be a number between 0 and {most:g}.")
    fresh = torch.rand(num_data, generator=generator, dtype=torch.float64) >= stay
    last_fresh = torch.where(fresh, torch.arange(num_data), 0).cummax(0).values
    y = torch.randint(num_states, (num_data,), generator=generator)[last_fresh]
    angles = 2 * torch.pi * (y.double() + 1) / (num_states + 1)
    turns = 0.98 * torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()], 1).view(-1, 2, 2)
    steps = noise * _normal(num_data, 2, generator)
    row, rows = torch.ones(2, dtype=torch.float64), list[Tensor]()
    for turn, step in zip(turns, steps, strict=True):
        row = turn @ row + step
        rows.append(row)
    return Clusters(torch.stack(rows), y)


def _gaussian(assignments: Tensor, locs: Tensor, scale: float, generator: torch.Generator) -> Synthetic:
    X = locs[assignments] + scale * _normal(len(assignments), locs.shape[1], generator)
    log_shares = (assignments.bincount().double() / len(assignments)).log()

    def posterior(rows: Tensor) -> Tensor:  # the term |x|^2 is the same for all components
        return (log_shares + (rows @ locs.T - locs.square().sum(-1) / 2) / scale**2).softmax(-1)

    return _label(X, assignments, locs, posterior, generator)


def _label(
    X: Tensor, assignments: Tensor, locs: Tensor, posterior: Callable[[Tensor], Tensor], generator: torch.Generator
) -> Synthetic:
    """Draw classifiers and labels; `posterior(rows)` [n, K] is p(z | x)."""
    weights = _normal(len(locs), locs.shape[1], generator)
    own = ((X - locs[assignments]) * weights[assignments]).sum(-1).sigmoid()
    y = (torch.rand(len(X), generator=generator, dtype=X.dtype) < own).long()
    offsets = (locs * weights).sum(-1)
    chunks = [(posterior(rows) * (rows @ weights.T - offsets).sigmoid()).sum(-1) for rows in X.split(2**16)]
    return Synthetic(X, y, assignments, torch.cat(chunks), locs, weights)


def _urn(num_data: int, concentration: float, generator: torch.Generator, max_components: int | None = None) -> Tensor:
    """Assignments [N] of the Chinese restaurant process, labelled in the order of first appearance.

    Sticks are broken until they cover the largest of N uniforms, so no truncation is involved (Papaspiliopoulos &
    Roberts 2008). Given its sticks the urn is an independent draw for each point. A cap on the number of components
    redraws the points beyond it from the capped sticks: the urn that opens no more.
    """
    uniform = torch.rand(num_data, generator=generator, dtype=torch.float64)
    masses, rest = [], 1.0
    while rest > 1 - uniform.max():
        left = torch.rand((), generator=generator, dtype=torch.float64).item() ** (1 / concentration)
        masses.append(rest * (1 - left))
        rest *= left
    weights = torch.tensor(masses, dtype=torch.float64)
    sticks = torch.searchsorted(weights.cumsum(0), uniform, right=True).clamp(max=len(weights) - 1)
    occupied, index = sticks.unique(return_inverse=True)
    first = torch.full((len(occupied),), num_data).scatter_reduce(0, index, torch.arange(num_data), "amin")
    order = first.argsort()
    assignments = order.argsort()[index]
    if max_components is not None and len(occupied) > max_components:
        beyond = assignments >= max_components
        kept = weights[occupied[order[:max_components]]]
        assignments[beyond] = kept.multinomial(int(beyond.sum()), replacement=True, generator=generator)
    return assignments


def seeded_generator(num_data: int, seed: int) -> torch.Generator:
    """The generator of a seed; ValueError unless both are whole numbers, and there is a row at least."""
    require_whole("num_data", num_data)
    require_whole("seed", seed, least=0)
    return torch.Generator().manual_seed(int(seed))


def require_whole(name: str, value: Any, least: int = 1) -> None:
    """ValueError unless the argument `name` is an integer of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) < 2**32:
        raise ValueError(f"{name} is {value!r}; it must be an integer of at least {least}.")


def is_number(value: Any) -> bool:
    """Whether it is a finite number, not a truth value."""
    kinds = int | float | np.integer | np.floating
    return isinstance(value, kinds) and not isinstance(value, bool) and bool(-1e100 < value < 1e100)


def _normal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64)


def _diagonal(num_components: int) -> Tensor:
    """mu_k = (k, ..., k) [K, 10], k = 1..K."""
    return torch.arange(1.0, num_components + 1, dtype=torch.float64).unsqueeze(-1).expand(-1, 10)


_SHAPES = (
    ("010000", "111000", "010000", "000000", "000000", "000000"),
    ("000111", "000101", "000111", "000000", "000000", "000000"),
    ("000000", "000000", "000000", "100000", "110000", "111000"),
    ("000000", "000000", "000000", "000111", "000010", "000010"),
)


@dataclass(frozen=True)
class Bars:
    """N images of 6 x 6 pixels and the shapes in them: the usual example of latent features.

    Source: Griffiths & Ghahramani (2011), figure 9 (36 pixels, each shape in half of the images).
    """

    X: Tensor  # [N, 36] float64, pixels row by row
    y: Tensor  # [N] int64, 1 where there is the first shape or the second one, else 0
    features: Tensor  # [N, 4] int64, which shapes are there
    loadings: Tensor  # [4, 36] float64, the shapes


def make_bars(num_data: int = 100, noise: float = 0.5, seed: int = 0) -> Bars:
    """Each shape is in an image with probability one half; Gaussian noise has the standard deviation `noise` >= 0."""
    generator = seeded_generator(num_data, seed)
    if not is_number(noise) or noise < 0:
        raise ValueError(f"noise is {noise!r}; it must be a number of at least 0.")
    loadings = torch.tensor([[float(pixel) for row in shape for pixel in row] for shape in _SHAPES]).double()
    features = torch.randint(2, (num_data, len(loadings)), generator=generator)
    X = features.double() @ loadings
    X = X + noise * torch.randn(X.shape, generator=generator, dtype=torch.float64)
    return Bars(X, features[:, :2].amax(1), features, loadings)
