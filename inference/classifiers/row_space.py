"""Gaussians of classifiers with more features than rows, represented in the space of the rows.

    N(A^-1 a^T b, A^-1),   A = I / nu^2 + a^T W a,   S = I + nu^2 W^(1/2) a a^T W^(1/2)

for features a [N, P], precisions W and shifts b [N]. A is a P x P matrix and S an N x N matrix. The formulas are

    mean                    nu^2 a^T W^(1/2) S^-1 W^(-1/2) b
    a draw                  u + nu^2 a^T W^(1/2) S^-1 (W^(-1/2) b - W^(1/2) a u - d),   u ~ N(0, nu^2 I), d ~ N(0, I)
    variance of a score     nu^2 |x|^2 - nu^4 |L^-1 W^(1/2) a x|^2,   S = L L^T
    log det A = log det S - 2 P log nu,    tr A^-1 = nu^2 (P - N + tr S^-1)

and take O(N^2 (N + P)) operations. S is as well conditioned as A. Source of the draw: Bhattacharya, Chakraborty &
Mallick (2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...models.distributions.sampling import normals
from ...models.linalg import safe_cholesky


@dataclass(frozen=True)
class RowRidge:
    """The Gaussians of one set of C classifiers, with the shapes of a `Ridge` with K = 1."""

    features: Tensor  # a [N, P]
    weight_scale: float  # nu
    root: Tensor  # W^(1/2) [C, N]; [1, N] if all scores share it
    pull: Tensor  # W^(-1/2) b [C, N]
    tril: Tensor  # L [C, N, N] or [1, N, N]

    @classmethod
    def of(
        cls,
        features: Tensor,
        precision: Tensor,
        shift: Tensor,
        weight_scale: float,
        factor: Callable[[Tensor], Tensor] = safe_cholesky,
    ) -> RowRidge:
        """From precisions and shifts [C, N] of features [N, P]; `factor` computes Cholesky factors.

        A precision below its rounding error is raised to that error.
        """
        kernel = weight_scale**2 * (features @ features.T)
        limits = torch.finfo(kernel.dtype)
        root = torch.maximum(precision, limits.eps / kernel.diagonal().clamp(min=limits.tiny)).sqrt()
        inner = (root.unsqueeze(2) * kernel).mul_(root.unsqueeze(1))
        inner.diagonal(dim1=-2, dim2=-1).add_(1.0)
        return cls(features, weight_scale, root, shift / root, factor(inner))

    @cached_property
    def mean(self) -> Tensor:
        """The means [1, P, C]."""
        return self._across(self.pull).T.unsqueeze(0)

    def draw(self, generator: torch.Generator) -> Tensor:
        """One draw [1, P, C]."""
        return self.draws(1, generator)[:, 0]

    def draws(self, number: int, generator: torch.Generator) -> Tensor:
        """R draws [1, R, P, C]."""
        C, (N, P) = len(self.pull), self.features.shape
        prior, slack = (normals((number, C, width), generator, self.features) for width in (P, N))
        return self.drawn(prior, slack).mT.unsqueeze(0)

    def drawn(self, prior: Tensor, slack: Tensor) -> Tensor:
        """Draws [R, C, P] from standard normal numbers u / nu [R, C, P] and d [R, C, N]."""
        start = self.weight_scale * prior
        return start + self._across(self.pull - self.root * (start @ self.features.T) - slack)

    def _across(self, rows: Tensor) -> Tensor:
        """nu^2 a^T W^(1/2) S^-1 v [..., C, P] for v [..., C, N]."""
        if len(self.tril) == 1:  # all scores share one factorization
            solved = torch.cholesky_solve(rows.flatten(0, -2).T, self.tril[0]).T.view_as(rows)
        else:
            solved = torch.cholesky_solve(rows.unsqueeze(-1), self.tril).squeeze(-1)
        return self.weight_scale**2 * (self.root * solved) @ self.features

    def moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance, each [N', 1, C], of the scores of features [N', P]."""
        return (features @ self.mean[0]).unsqueeze(1), self.score_variance(features)

    def score_variance(self, features: Tensor) -> Tensor:
        """Variance [N', 1, C] of the scores of features [N', P]."""
        nu, cross = self.weight_scale, self.features @ features.T
        known = torch.linalg.solve_triangular(self.tril, self.root.unsqueeze(2) * cross, upper=False)
        found = nu**2 * features.square().sum(1) - nu**4 * known.square_().sum(1)
        return found.clamp_(min=0.0).T.unsqueeze(1)

    def kl(self, weight_scale: float) -> Tensor:
        """KL(N(mean, A^-1) || N(0, nu^2 I)) [1], summed over the classifiers; nu must be this object's."""
        return self._kl.unsqueeze(0)

    @cached_property
    def _kl(self) -> Tensor:
        identity = torch.eye(len(self.features), dtype=self.tril.dtype, device=self.tril.device)
        inverse = torch.linalg.solve_triangular(self.tril, identity, upper=False)
        trace = inverse.square().sum((1, 2)) - len(self.features)  # tr A^-1 / nu^2 - P
        square = self.mean[0].square().sum(0) / self.weight_scale**2
        return (trace + square + self._log_det).sum() / 2

    @cached_property
    def _log_det(self) -> Tensor:
        """log det S [C]."""
        return 2 * self.tril.diagonal(dim1=-2, dim2=-1).log().sum(1)

    def log_density(self, weights: Tensor) -> Tensor:
        """log N(eta; mean, A^-1) [1, R] of R sets of classifiers [1, R, P, C]."""
        nu, gap = self.weight_scale, (weights - self.mean.unsqueeze(1)).squeeze(0)
        square = (gap / nu).square().sum((1, 2)) + ((self.features @ gap) * self.root.T).square().sum((1, 2))
        constant = gap[0].numel() * math.log(2 * math.pi * nu**2)
        return ((self._log_det.expand(gap.shape[2]).sum() - square - constant) / 2).unsqueeze(0)
