"""The state of the Gibbs samplers of a mixture: what survives between sweeps."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["PartitionState"]


@dataclass(frozen=True)
class PartitionState:
    """One draw of a mixture of classifiers: N points, K components, P features, C scores.

    The family's parameters and the augmentation variables are scratch: every sweep draws them where it needs them.
    """

    assignments: Tensor  # [N] int64; infinite scans: 0..K-1, all occupied; blocked: 0..T-1
    weights: Tensor  # [K, P, C]; blocked: [T, P, C]
    concentration: Tensor  # [] alpha
    reservoir: Tensor | None = None  # [A, P, 1] hyperplanes without points, where components repel; see `hyperplanes`
