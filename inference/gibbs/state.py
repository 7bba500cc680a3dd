"""The states of the Gibbs samplers of partitions and sequences, and the law of their assignments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from ...models.priors import HierarchicalDirichletProcess, Hyper, PartitionPrior
from ...models.priors.laws import Law, law_of
from ..running.chains import OfRows


@dataclass(frozen=True)
class PartitionState:
    """One draw of a mixture of classifiers: N points or steps of sequences, K components, P features, C scores.

    It has no parameters of the likelihood, mixture weights or augmentation variables: a sweep draws and drops them.
    """

    assignments: OfRows  # [N] int64; infinite scans: 0..K-1, all occupied; blocked scans: 0..T-1
    weights: Tensor  # [K, P, C]; blocked scans: [T, P, C]
    hyper: Hyper  # hyperparameters of the prior, each [] float64
    reservoir: Tensor | None = None  # [A, P, 1] hyperplanes without points, where components repel; see `hyperplanes`


@dataclass(frozen=True, kw_only=True)
class SequenceState(PartitionState):
    """One draw of an infinite hidden Markov model: components are states, and steps without an x have one too.

    It has no transition rows: a sweep draws and drops them. `hyper` has "concentration" (alpha) and "top_concentration"
    (gamma).
    """

    base: Tensor  # [K + 1] float64, beta_1..beta_K and the weight of all other states


def scan_law(prior: PartitionPrior | HierarchicalDirichletProcess, truncation: int, scan: str) -> Law:
    """The prior of z that a scan samples: "blocked" that of T = `truncation` components, any other the infinite one."""
    law: Law = law_of(cast(Any, prior), truncation if scan == "blocked" else None)
    return law
