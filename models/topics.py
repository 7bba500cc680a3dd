"""The common part of topic models: the kernels' view of a set of documents, and the Pyro program over its tokens.

    topic_k ~ Dir(beta 1_V)                                                    k = 1..K
    theta_n ~ Dir(alpha 1_K),  z_m ~ theta_n,  w_m ~ topic_{z_m}               n = 1..N, tokens m of document n
    eta ~ N(0, nu^2 I),  factor phi(y_n | eta^T zbar_n),  zbar_n = mean of onehot(z_m) over the tokens of n

Sources: Blei, Ng & Jordan (2003); Zhu, Ahmed & Xing (2012); docs/derivations/topics, "Joint density".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from .arrays import as_features
from .base import Model, announced
from .data import RowData
from .priors.topics import DirichletTopics
from .sparse import SparseRows, first_entry
from .sums import all_largest


@dataclass(frozen=True, eq=False)
class TopicData(RowData):
    """N documents of V words with M tokens in all, and C scores.

    Tokens are ordered by document, and within a document by the order of its words: token m of a row is one of the
    `values` copies of the word in `columns`.
    """

    X: SparseRows  # [N, V], the number of times that each word occurs in each document
    targets: Tensor  # [N, C]: -1 / +1 for each class score, or one real target; NaN where it is missing
    weights: Tensor | None = None  # None: each document counts once

    @cached_property
    def lengths(self) -> Tensor:
        """The number of tokens [N] int64 of each document."""
        return self.X.sum(1, torch.float64).long()

    @cached_property
    def starts(self) -> Tensor:
        """Token indices [N + 1] int64: document n has the tokens starts[n] : starts[n + 1]."""
        return torch.nn.functional.pad(self.lengths.cumsum(0), (1, 0))

    @property
    def axes(self) -> dict[str, int]:
        """The numbers of tokens and of nonzero counts, two further axes along which ranks split the data."""
        return {"M": int(self.starts[-1]), "nnz": len(self.X.values)}

    @cached_property
    def most_tokens(self) -> int:
        """The largest number of tokens of a document of any rank."""
        return int(all_largest(self.lengths.max()))

    @cached_property
    def longest_first(self) -> tuple[Tensor, list[int]]:
        """The documents [N] int64 in order of decreasing length, and these lengths."""
        lengths, order = self.lengths.sort(descending=True, stable=True)
        return order, lengths.tolist()

    @cached_property
    def words(self) -> Tensor:
        """The word [M] int64 of each token."""
        return self.X.columns.repeat_interleave(self.X.values.long())

    @cached_property
    def documents(self) -> Tensor:
        """The document [M] int64 of each token."""
        return torch.arange(self.num_data, device=self.X.device).repeat_interleave(self.lengths)

    def document_counts(self, assignments: Tensor, num_topics: int) -> Tensor:
        """The counts [N, K] int64 of each topic in each document, from the topics [M] of the tokens."""
        cells = self.documents * num_topics + assignments
        return torch.bincount(cells, minlength=self.num_data * num_topics).view(self.num_data, num_topics)

    def word_counts(self, assignments: Tensor, num_topics: int) -> Tensor:
        """The counts [V, K] int64 of each word in each topic, from the topics [M] of the tokens."""
        num_words = self.X.shape[1]
        cells = self.words * num_topics + assignments
        return torch.bincount(cells, minlength=num_words * num_topics).view(num_words, num_topics)

    def mean_topics(self, counts: Tensor) -> Tensor:
        """zbar [N, K] in the dtype of X, from (expected) counts [N, K]; 0 for a document without tokens."""
        return counts.to(self.X.dtype) / self.lengths.clamp(min=1).unsqueeze(1).to(self.X.dtype)


class TopicModel(Model):
    """Base class of topic models. Kernels call the methods below on a *resolved* model (see `Model`).

    Shapes: N documents, V words, M tokens, K topics, C scores.
    """

    data_type: ClassVar[type] = TopicData
    min_rows: ClassVar[int] = 1

    prior: DirichletTopics
    num_topics: int

    def resolve(self, X: Any, y: Any = None, weights: Tensor | None = None) -> Self:
        model = self.checked()
        return model.replace(num_features=self.as_rows(X, num_features=model.num_features).shape[1])

    def data(self, X: Any, y: Any = None) -> TopicData:
        """The kernels' view of counts X [N, V] and targets y [N]."""
        X = self.as_rows(X, num_features=self.num_features)
        return TopicData(X, self.targets(X, y))

    def readable(self, X: Any, lengths: Any = None) -> SparseRows:
        return self.as_rows(X, num_features=self.num_features, min_rows=self.min_rows)

    def as_rows(self, X: Any, **options: Any) -> SparseRows:
        """Documents X [N, V] as `as_features` reads them with these options: counts, as sparse rows."""
        rows = SparseRows.of(as_features(X, **options))
        require_counts(rows, type(self).__name__)
        return rows

    # -- the program -----------------------------------------------------------------------------------------------

    @announced
    def program(self, data: TopicData) -> None:
        """The Pyro program of a resolved model.

        Sites: the prior's hyperparameters that are random, `topics` [K, V], `weights` [K, C], `proportions` [N, K],
        `assignments` [M] and `words` [M] (observed) of the tokens, and the factor `margin` [N]. All tokens of a
        document meet in its factor, so they cannot be enumerated one by one.
        """
        X, K, h = data.X, self.num_topics, self.prior.sample(data.targets)
        scale = X.new_zeros(K, data.targets.shape[1]) + self.weight_scale
        with pyro.plate("components", K):
            topics = pyro.sample("topics", dist.Dirichlet(X.new_ones(X.shape[1]) * h["topic_concentration"]))
            weights = pyro.sample("weights", dist.Normal(torch.zeros_like(scale), scale).to_event(1))
        with pyro.plate("data", data.num_data):
            proportions = pyro.sample("proportions", dist.Dirichlet(X.new_ones(K) * h["document_concentration"]))
        with pyro.plate("tokens", len(data.words)):
            assignments = pyro.sample("assignments", dist.Categorical(logits=_logs(proportions)[data.documents]))
            pyro.sample("words", dist.Categorical(logits=_logs(topics)[assignments]), obs=data.words)
        counts = X.new_zeros(data.num_data, K).index_add(0, data.documents, one_hot(assignments, K).to(X.dtype))
        with pyro.plate("margins", data.num_data):
            pyro.factor("margin", self.log_margin(data.mean_topics(counts) @ weights, data.targets))


def _logs(shares: Tensor) -> Tensor:
    """log of shares [..., K] as logits: from the shares themselves Pyro would cut those below rounding error."""
    return shares.clamp(min=torch.finfo(shares.dtype).tiny).log()


def require_counts(X: SparseRows, whose: str) -> None:
    """Raise ValueError unless X [N, V] holds whole numbers of words, and not too many in all."""
    if found := first_entry(X, lambda x: (x < 0) | (x.round() != x)):
        value, row, column = found
        fault = "negative" if value < 0 else "not a whole number"
        raise ValueError(
            f"X has a value that is {fault}: {value} in row {row}, column {column}. {whose} accepts how often each "
            "word (column) is in each document (row): 0, 1, 2, ...; not tf-idf or other weights of words."
        )
    if (total := float(X.values.double().sum())) > _MOST_TOKENS:
        raise ValueError(f"X has {total:g} tokens; at most {_MOST_TOKENS} are accepted. Fit some of its rows.")


_MOST_TOKENS = 2**31 - 1
