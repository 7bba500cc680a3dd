"""Nystroem features: linear classifiers on them are kernel machines with an RBF kernel.

    phi(x) = K_ZZ^(-1/2) k(Z, x),   k(x, x') = exp(-|u - u'|^2 / (2 length_scale^2)),   u = (x - loc) / scale

for rows Z of the data, the landmarks. phi(x)^T phi(x') equals k(x, x') for landmarks; for other rows it is the inner
product of the projections on the span of k(z, .). Source: Williams & Seeger (2001).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ..domains import AnyNumbers
from ..host import require_room
from ..sums import all_rows, span
from .base import Rows, dense_rows, require_matrix
from .rbf import RBFFeatures


@dataclass(eq=False)
class Nystroem(RBFFeatures):
    """Nystroem features of an RBF kernel; the kernel is exact if all rows of the fit are landmarks.

    With equally many features they do better than `RandomFourier`, since landmarks lie where the rows are
    (docs/choices). Landmarks are drawn with equal probabilities, whatever the weights of the rows.

    Parameters
    ----------
    num_features : number of landmarks; all rows if there are fewer
    length_scale : of the kernel, in units of `scale`; None: (D / 2)^(1/2), which is scikit-learn's gamma="scale" if the
        columns share a scale, and gamma = 1 / D of standardized columns if each has its own
    seed : of the random choice of the landmarks
    intercept : value of the constant feature; 0 for none
    common_scale : True: all columns share one scale, as those of images or principal components should; False: each
        column is standardized, as columns in different units should be. None: True unless a few columns would dominate:
        the effective number of columns, (sum v)^2 / sum v^2 for variances v, is below 2 or D / 10
    loc, scale : numbers or [D]; None: the means of the columns, and their standard deviations, or with `common_scale`
        the root of their mean variance
    landmarks : rows [P, D]; None: rows of the data
    root : K_ZZ^(-1/2) [P, P] of the landmarks; None: computed
    """

    landmarks: AnyNumbers = None
    root: AnyNumbers = None

    def resolve(self, X: Rows, weights: Tensor | None = None) -> Self:
        X = dense_rows(X, "Nystroem")
        inputs = self.scaled(X, weights)
        landmarks = self._chosen(X) if self.landmarks is None else torch.as_tensor(self.landmarks).to(X)
        if landmarks.ndim != 2 or landmarks.shape[1] != X.shape[1]:
            raise ValueError(f"landmarks has shape {tuple(landmarks.shape)}; expected rows [P, {X.shape[1]}].")
        found = self.replace(loc=inputs.loc, scale=inputs.scale, landmarks=landmarks)
        if self.root is None:
            numbers = len(X) + 4 * len(landmarks)
            require_room("num_features", len(landmarks), numbers * len(landmarks) * 8, X.device, mend="Take fewer.")
            gram = found.kernel(landmarks)
            if not gram.isfinite().all():
                raise ValueError("Squares of landmarks in units of scale are not finite. Take a larger scale, or None.")
            found.root = _inverse_root(gram, torch.finfo(X.dtype).eps ** 0.5)
        found.root = torch.as_tensor(found.root, dtype=X.dtype, device=X.device)
        require_matrix("root", found.root, len(landmarks))
        return found

    def project(self, X: Rows) -> Tensor:
        root = self.require(self.root)
        return self.kernel(dense_rows(X, "Nystroem")) @ root

    def kernel(self, X: Tensor) -> Tensor:
        """k [N, P] of rows X [N, D] and the landmarks."""
        length = self.length(X.shape[1])
        rows, landmarks = self.inputs(X) / length, self.inputs(self.landmarks) / length
        products = rows @ landmarks.T - (landmarks.square().sum(1) / 2)
        return products.sub_(rows.square().sum(1, keepdim=True) / 2).clamp_(max=0.0).exp_()

    def _chosen(self, X: Tensor) -> Tensor:
        """Landmarks [P, D] drawn from the rows of all ranks; they depend on the seed and the number of rows."""
        start, total = span(len(X))
        chosen = torch.randperm(total, generator=torch.Generator().manual_seed(self.seed))[: self.num_features]
        own = (chosen[(chosen >= start) & (chosen < start + len(X))] - start).sort().values
        return all_rows(X[own.to(X.device)])


def _inverse_root(gram: Tensor, least: float) -> Tensor:
    """gram^(-1/2) [P, P] in double precision, without the directions below `least` times the largest eigenvalue."""
    values, vectors = torch.linalg.eigh(gram.double())
    kept = values > least * values[-1:]
    roots = values.clamp(min=torch.finfo(values.dtype).tiny).rsqrt().where(kept, 0.0)
    return (vectors * roots) @ vectors.T
