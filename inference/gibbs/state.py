"""The states of the Gibbs samplers: what survives between sweeps, and which law their labels have."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...models.priors import Hyper
from ...models.priors.laws import Infinite, Prior, Truncated, law_of


@dataclass(frozen=True)
class PartitionState:
    """One draw of a mixture of classifiers: N points, K components, P features, C scores.

    The family's parameters and the augmentation variables are scratch: every sweep draws them where it needs them.
    """

    assignments: Tensor  # [N] int64; infinite scans: 0..K-1, all occupied; blocked: 0..T-1
    weights: Tensor  # [K, P, C]; blocked: [T, P, C]
    hyper: Hyper  # hyperparameters of the prior, each [] float64
    reservoir: Tensor | None = None  # [A, P, 1] hyperplanes without points, where components repel; see `hyperplanes`


@dataclass(frozen=True)
class SequenceState:
    """One draw of an infinite hidden Markov model: N steps, missing ones included, K states, P features, C scores.

    Rows of the transition matrix, the family's parameters and the augmentation variables are scratch.
    """

    states: Tensor  # [N] int64; infinite scans: 0..K-1, all occupied; blocked: 0..T-1
    weights: Tensor  # [K, P, C]; blocked: [T, P, C]
    base: Tensor  # [K + 1] float64, beta_1..beta_K and the weight of all other states
    hyper: Hyper  # "concentration" (alpha) and "top_concentration" (gamma), each [] float64
    reservoir: Tensor | None = None  # [A, P, 1] hyperplanes without points, where states repel; see `hyperplanes`


def scan_law(prior: Prior, truncation: int, scan: str) -> Infinite[Prior] | Truncated[Prior]:
    """The law of z that a scan samples: "blocked" that of T = `truncation` labels, any other the infinite one."""
    return law_of(prior, truncation if scan == "blocked" else None)
