"""The posterior of a topic model: topics, their weights in the scores, and prediction for new documents."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence

from ...models.arrays import as_features, like
from ...models.base import Model
from ...models.distributions.sampling import log_dirichlet, split_counts
from ...models.domains import Whole, read, shown
from ...models.priors.topics import mean_proportions
from ...models.sparse import SparseRows
from ...models.sums import row_chunks
from ...models.topics import TopicData, require_counts
from ..running.chains import LABELS
from ..structures import Draw, Structure, register_structure
from .base import Posterior
from .draws import TopicDraw
from .fold_in import expected_counts
from .new_data import NewData, by_draw, in_place, number_of_rows, read_totals, stream
from .pairs import numbers_of, same_label, weight_norms
from .scores import ScoreMixture, ScorePrediction, chunks
from .stacking import stacks


class TopicPosterior(ScorePrediction, Posterior):
    """A fitted topic model.

    `samples` holds S draws: `topics` [S, K, V], their `weights` [S, K, C] in the scores, `topic_sizes` [S, K] in
    tokens, and by Gibbs `assignments` [S, M] of the tokens. `TopicDraw` has all names. A draw has at least K V numbers:
    for many words and topics keep few draws.

    A new document has no margin factor. Its expected counts come from the fixed point of `fold_in` for each draw, and
    its score is eta . zbar, averaged over the draws; 0 if it has no tokens.
    """

    instead = "transform(X)"
    record = TopicDraw

    def transform(self, X: Any) -> Any:
        """Expected topic proportions E theta [N, K] of documents X [N, V], averaged over the draws.

        Topics of all draws are matched with those of the representative one, see `matches`. A document without tokens
        has the proportions of the prior, 1 / K each; a document with new words only has the topics that give new words
        most probability.
        """
        rows = self.checked(X)
        return like(torch.cat([self._proportions(part) for part in chunks(rows)]), X)

    def log_evidence_bound(self, X: Any) -> Any:
        """A lower bound [N] of log p(x_n) of documents X [N, V], words in their order, averaged over the draws.

        At the topics of each draw, and with q(theta_n) = Dir(alpha + C_n) of the counts C_n of `transform`,

            sum_w x_nw log sum_k exp(E log theta_nk) topic_kw - KL(q(theta_n) || Dir(alpha))

        (Blei, Ng & Jordan 2003, with q(z) at its optimum). A document without tokens has 0.
        """
        rows, found = self.checked(X), []
        for draw in self.draws():
            alpha = draw["document_concentration"].double()
            counts = torch.cat([self._counts(part, draw) for part in chunks(rows)]).double()
            law = Dirichlet(alpha + counts, validate_args=False)
            logs = torch.digamma(alpha + counts) - torch.digamma((alpha + counts).sum(1, keepdim=True))
            own = logs[rows.row_index] + draw["topics"].double().log().T[rows.columns]
            words = rows.entry_sums((rows.values.double() * own.logsumexp(1)).unsqueeze(1)).squeeze(1)
            found.append(words - kl_divergence(law, Dirichlet(alpha.expand_as(counts), validate_args=False)))
        return like((torch.stack(found).logsumexp(0) - math.log(len(found))).to(rows.dtype), X)

    def sample(self, num_documents: int, *, totals: Any, generator: torch.Generator | None = None) -> NewData:
        """Independent new documents X [N, V], with targets where the model has them.

        A document has a draw g at random, theta ~ Dir(alpha 1_K), a topic of each token from theta and its word from
        that topic of the draw, which is an expectation. Its scores are eta . zbar of its own tokens. There are no
        `assignments`, as tokens have them and not documents.

        Parameters
        ----------
        totals : numbers of tokens, which the model takes as given: one, or [num_documents]
        generator : on the device of the posterior; None: a new one of seed 0
        """
        topics = self.samples["topics"]
        number = number_of_rows("num_documents", num_documents, topics.shape[2], topics)
        own_stream = stream(generator, topics)
        lengths = cast(Tensor, read_totals(totals, True, number, topics))
        draws = torch.randint(len(topics), (number,), generator=own_stream, device=topics.device)
        X, targets = topics.new_empty(number, topics.shape[2]), list[tuple[Tensor, Tensor]]()
        for g, rows in by_draw(draws):
            draw = self.draw(g)
            X[rows], counts = _documents(draw, lengths[rows], own_stream)
            y = self.draw_targets(counts / lengths[rows, None].clamp(min=1.0) @ draw["weights"], None, own_stream)
            if y is not None:
                targets.append((rows, y))
        return NewData(X, in_place(targets), None)

    def top_words(self, num: int = 10, vocabulary: Sequence[Any] | None = None) -> list[list[Any]]:
        """The most probable words of each of the K topics, most probable first: columns of X, or their names.

        Parameters
        ----------
        num : how many of each topic
        vocabulary : the name of each column of X [V]
        """
        num_words = self.samples["topics"].shape[2]
        num = read("num", num, Whole(1, num_words))
        if vocabulary is not None and (not isinstance(vocabulary, _LISTS) or len(vocabulary) != num_words):
            raise ValueError(
                f"vocabulary is {shown(vocabulary)}; expected a list of {num_words} names, one for each column of X."
            )
        best = self.topics.topk(num).indices.tolist()
        return best if vocabulary is None else [[vocabulary[word] for word in words] for words in best]

    @property
    def num_topics(self) -> int:
        """K."""
        return self.samples["topics"].shape[1]

    @cached_property
    def topics(self) -> Tensor:
        """Expected topics [K, V], averaged over the draws as in `transform`."""
        total = torch.zeros_like(self.samples["topics"][0])
        for draw, match in zip(self.samples["topics"], self.matches, strict=True):
            total += draw[match]
        return total / len(self.matches)

    @cached_property
    def representative(self) -> int:
        """Index of the draw of the highest log joint."""
        return int(self.samples["log_joint"].argmax()) if "log_joint" in self.samples else 0

    @cached_property
    def matches(self) -> Tensor:
        """Topics [S, K] of each draw that are most like topics 0..K-1 of the representative draw.

        One to one, and of the largest sum of sum_w sqrt(topic_kw topic'_kw): labels may differ between chains.
        """
        from scipy.optimize import linear_sum_assignment  # slow to import, and prediction does not need it

        reference = self.samples["topics"][self.representative].sqrt()
        tables = (reference @ draw.sqrt().T for draw in self.samples["topics"])
        found = [linear_sum_assignment(table.double().cpu().numpy(), maximize=True)[1] for table in tables]
        return torch.from_numpy(np.stack(found)).to(reference.device)

    def facts(self) -> list[str]:
        """Facts about the structure for `repr`."""
        return [f"{self.num_topics} topics"]

    def over_rows(self, place: Tensor, left_out: Any = None) -> Self:
        """The same posterior for other rows, without the topics of single tokens, which are in the order of the fit."""
        samples = {name: value for name, value in self.samples.items() if name != LABELS}
        return self.replace(samples=samples)

    # -- prediction ------------------------------------------------------------------------------------------------

    def checked(self, X: Any) -> SparseRows:
        """The counts [N, V] of a user's argument."""
        rows = as_features(X, num_features=self.model.num_features, like=self.samples["weights"])
        rows = SparseRows.of(rows)
        require_counts(rows, type(self.model).__name__)
        return rows

    def rehearse(self) -> None:
        weights, num_words = self.samples["weights"], self.samples["topics"].shape[2]
        if num_words != self.model.num_features:
            raise ValueError(f"there are topics of {num_words} words, not {self.model.num_features}")
        self._require_classes(SparseRows.of(weights.new_zeros(0, self.model.num_features)))

    def score_mixtures(self, X: SparseRows, *, spread: bool = False) -> Iterator[ScoreMixture]:
        lengths = X.sum(1).clamp(min=1.0).unsqueeze(1)
        for draw in self.draws():
            scores = self._counts(X, draw) / lengths @ draw["weights"]
            yield ScoreMixture(scores.new_zeros(len(scores), 1), scores.unsqueeze(1), None)

    def _proportions(self, X: SparseRows) -> Tensor:
        total = X.new_zeros(len(X), self.num_topics)
        for draw, match in zip(self.draws(), self.matches, strict=True):
            total += mean_proportions(self._counts(X, draw), draw["document_concentration"])[:, match]
        return total / len(self.matches)

    def _counts(self, X: SparseRows, draw: Draw) -> Tensor:
        """Expected numbers [N, K] of tokens of each topic in new documents, under a draw."""
        collapsed = "log_topics" not in draw
        # relative to the likeliest topic of each word, so that rare words do not underflow
        weights = draw["topics"] if collapsed else (draw["log_topics"] - draw["log_topics"].amax(0)).exp()
        return expected_counts(X, weights, float(draw["document_concentration"]), collapsed=collapsed)


def _documents(draw: Draw, lengths: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw documents [n, V] with given numbers of tokens [n]; also the numbers [n, K] of tokens of each topic."""
    topics = draw["topics"]
    K, V = topics.shape
    alpha = draw["document_concentration"].double().expand(len(lengths), K)
    documents = torch.arange(len(lengths), device=topics.device)
    X, counts = topics.new_zeros(len(lengths), V), alpha.new_zeros(len(lengths), K)
    n, k, number = split_counts(lengths, documents, log_dirichlet(alpha, generator).exp(), generator)
    counts[n, k] = number
    for some in row_chunks(X, min(int(lengths.max()), K * V)):
        n, k = torch.nonzero(counts[some], as_tuple=True)
        own, word, number = split_counts(counts[some][n, k], k, topics, generator)
        X[some].index_put_((n[own], word), number.to(X), accumulate=True)
    return X, counts.to(X)


def _summaries(posterior: TopicPosterior) -> Draw:
    """Label-free statistics: effective number of topics, length of the weights, same topic of pairs [S, P], scalars."""
    shares = posterior.samples["topic_sizes"].double()
    shares = shares / shares.sum(1, keepdim=True).clamp(min=1.0)
    return {
        "effective_topics": torch.special.entr(shares).sum(1).exp(),
        "weight_norm": weight_norms(posterior.samples),
        **({"together": same_label(posterior.samples[LABELS])} if LABELS in posterior.samples else {}),
        **numbers_of(posterior.samples),
    }


_LISTS = (list, tuple, np.ndarray)


def _state_size(model: Model, data: TopicData, number: int) -> int:
    """The numbers of values of topics, for words and for documents."""
    return number * (data.X.shape[1] + data.num_data)


register_structure(Structure("topics", TopicData, TopicPosterior, stacks(TopicDraw), _summaries, _state_size))
