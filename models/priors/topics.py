"""The prior of a topic model: symmetric Dirichlet laws of the topics of a document and of the words of a topic.

    theta_n ~ Dir(alpha 1_K),  topic_k ~ Dir(beta 1_V);  integrated out, with counts n_rk of a row r,

    log p = sum_r [ sum_k log Gamma(a + n_rk) / Gamma(a) - log Gamma(K a + n_r.) / Gamma(K a) ]

Sources: Blei, Ng & Jordan (2003); Griffiths & Steyvers (2004).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from .. import host
from ..domains import GammaPrior, Positive
from ..sums import all_largest, all_sums, ranks
from .hyper import Hyper, HyperPrior, gamma_law


@dataclass(eq=False)
class DirichletTopics(HyperPrior):
    """theta_n ~ Dir(alpha 1_K) for every document, topic_k ~ Dir(beta 1_V) for every topic.

    Parameters
    ----------
    document_concentration : alpha > 0 (the starting value if it has a prior); below 1 a document has few topics
    topic_concentration : beta > 0 (likewise); below 1 a topic has few words
    document_concentration_prior : (shape, rate) of alpha ~ Gamma, or None for a fixed alpha
    topic_concentration_prior : (shape, rate) of beta ~ Gamma, or None for a fixed beta
    """

    document_concentration: Positive = 0.1
    topic_concentration: Positive = 0.01
    document_concentration_prior: GammaPrior | None = None
    topic_concentration_prior: GammaPrior | None = None

    def hyperpriors(self, like: Tensor) -> dict[str, Distribution | None]:
        return {
            "document_concentration": gamma_law(self.document_concentration_prior, like),
            "topic_concentration": gamma_law(self.topic_concentration_prior, like),
        }

    def draw(
        self, h: Hyper, documents: Tensor, words: Tensor, generator: torch.Generator, most_tokens: int | None = None
    ) -> Hyper:
        """Draw new hyperparameters given the topic counts of each document [N, K] and of each word [V, K].

        `documents` are this rank's, `words` those of all ranks. `most_tokens`: of any document of any rank; None: not
        known.
        """
        if all(law is None for law in self.laws(documents).values()):
            return h
        tables = {
            "document_concentration": Tally.of(documents).over_ranks(most_tokens),
            "topic_concentration": Tally.of(words.T),
        }
        # a slice step for one hyperparameter needs only its own factor; the other factor is constant
        return self.slide(h, lambda at: sum(table.log_polya(at[name]) for name, table in tables.items()), generator)


@dataclass(frozen=True)
class Tally:
    """Counts [R, K] as distinct values with their numbers, which are sufficient for their law.

    Where the host would have to wait for the number of distinct values, each count is its own value.
    """

    values: Tensor  # [A] float64, the distinct counts
    numbers: Tensor  # [A] float64, how often each occurs
    totals: Tensor  # [B] float64, the distinct row totals
    total_numbers: Tensor  # [B] float64, how often each occurs
    width: int  # K

    @classmethod
    def of(cls, counts: Tensor) -> Tally:
        """The tally of counts [R, K]."""
        return cls(*_distinct(counts), *_distinct(counts.sum(-1)), counts.shape[-1])

    def over_ranks(self, most: int | None = None) -> Tally:
        """The tally of the counts of all ranks, where no row total is above `most`; None: not known."""
        if ranks() is None:
            return self
        most = int(all_largest(self.totals.max().long())) if most is None else most
        parts = (self.values, self.numbers), (self.totals, self.total_numbers)
        own = (number.new_zeros(most + 1).index_add(0, value.long(), number) for value, number in parts)
        numbers, total_numbers = all_sums(*own)
        every = torch.arange(most + 1).to(numbers)
        return Tally(every, numbers, every, total_numbers, self.width)

    def log_polya(self, concentration: Tensor) -> Tensor:
        """log int prod theta^counts Dir(theta; a 1) d theta [] float64, summed over rows, at a [] float64."""
        rows = _log_rising(concentration * self.width, self.totals) @ self.total_numbers
        return _log_rising(concentration, self.values) @ self.numbers - rows


def mean_proportions(counts: Tensor, concentration: Tensor | float) -> Tensor:
    """E theta [..., K] given (expected) counts [..., K], for theta ~ Dir(a 1_K)."""
    shape = counts + concentration
    return shape / shape.sum(-1, keepdim=True)


def _distinct(counts: Tensor) -> tuple[Tensor, Tensor]:
    if not host.on_cpu(counts):
        return counts.double().flatten(), counts.new_ones(counts.numel(), dtype=torch.float64)
    values, numbers = torch.unique(counts[counts > 0], return_counts=True)
    return values.double(), numbers.double()


def _log_rising(a: Tensor, counts: Tensor) -> Tensor:
    """log Gamma(a + n) / Gamma(a) [...] for counts n [...]."""
    return torch.lgamma(a + counts) - torch.lgamma(a)
