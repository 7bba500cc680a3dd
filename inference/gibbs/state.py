"""The states of the Gibbs samplers: what survives between sweeps, and which law their labels have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from ...models.priors import HierarchicalDirichletProcess, Hyper, PartitionPrior
from ...models.priors.laws import Law, law_of
from ..running.chains import OfRows


@dataclass(frozen=True)
class PartitionState:
    """One draw of a mixture of classifiers: N points, or steps of sequences, K components, P features, C scores.

    The family's parameters, mixture weights and augmentation variables are scratch: a sweep draws them where it needs
    them.
    """

    assignments: OfRows  # [N] int64; infinite scans: 0..K-1, all occupied; blocked: 0..T-1
    weights: Tensor  # [K, P, C]; blocked: [T, P, C]
    hyper: Hyper  # hyperparameters of the prior, each [] float64
    reservoir: Tensor | None = None  # [A, P, 1] hyperplanes without points, where components repel; see `hyperplanes`


@dataclass(frozen=True, kw_only=True)
class SequenceState(PartitionState):
    """One draw of an infinite hidden Markov model: components are states, steps without an x have one too.

    Rows of the transition matrix are scratch. `hyper` has "concentration" (alpha) and "top_concentration" (gamma).
    """

    base: Tensor  # [K + 1] float64, beta_1..beta_K and the weight of all other states


def scan_law(prior: PartitionPrior | HierarchicalDirichletProcess, truncation: int, scan: str) -> Law:
    """The law of z that a scan samples: "blocked" that of T = `truncation` labels, any other the infinite one."""
    law: Law = law_of(cast(Any, prior), truncation if scan == "blocked" else None)
    return law
