"""The start of a mean field of topics without labels: collapsed Gibbs scans, on the host, whatever the device.

Coordinate ascent hardly leaves the topics at which it starts: E log of a topic is below -100 for a word of which the
topic has no token, so a word that one topic holds stays there. Collapsed scans move single tokens and have no such
barrier (docs/choices.md). They begin at a mean field's own q(z); the average of the last ones is the start.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ....models.distributions.sampling import draw_categorical, uniforms
from ....models.sparse import SparseRows
from ....models.sums import all_rows, among, row_chunks
from ....models.topics import TopicData, TopicModel
from ...gibbs import topics as gibbs
from .documents import Globals, fit_documents
from .factors import VariationalTopics, log_topics


def scanned_counts(
    state: VariationalTopics, data: TopicData, model: TopicModel, generator: torch.Generator, num_steps: int
) -> Tensor:
    """Expected numbers [V, K] of tokens of each word in each topic, from Gibbs scans that start at a state's topics.

    The scans leave out the margin and see the documents of all ranks; every rank makes the same ones. If there are too
    many tokens for enough scans, the counts are those of the state. q(z), at the state's topics, takes `num_steps`
    steps from equal shares.
    """
    num_scans = min(_MOST_SCANS, int(_MOST_VISITS // max(1.0, state.total_weight)))
    if num_scans < _FEWEST_SCANS:
        return state.word_counts
    sizes, columns, values = (all_rows(part).cpu() for part in (data.X.starts.diff(), data.X.columns, data.X.values))
    rows = SparseRows(pad(sizes.cumsum(0), (1, 0)), columns, values, data.X.num_columns)
    logs = log_topics(state, model).cpu()
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    stream, num_kept, total = torch.Generator().manual_seed(seed), num_scans // 4, torch.zeros_like(logs)
    with among(None):  # the same on all ranks
        whole = TopicData(rows, rows.new_zeros(len(rows), 0))
        first = _draw_topics(rows, logs, float(model.prior.document_concentration), stream, num_steps)
        scan = gibbs.init(model, whole, stream, start=first)
        for number in range(num_scans):
            scan = gibbs.visit(scan, whole, 2 * (np.zeros((len(rows), 0)),), stream)
            total += scan.word_counts if number >= num_scans - num_kept else 0
    return (total / num_kept).to(state.word_counts)


def _draw_topics(rows: SparseRows, logs: Tensor, alpha: float, stream: torch.Generator, num_steps: int) -> Tensor:
    """Topics [M] of the tokens of documents [n, V], one for each word of a document, drawn from q(z)."""
    num_topics, none = logs.shape[1], logs.new_zeros(len(rows), 0)
    equal = (rows.sum(1, torch.float64) / num_topics).unsqueeze(1).repeat(1, num_topics)
    counts = fit_documents(
        rows, none, Globals(logs, alpha, logs.new_zeros(num_topics, 0), None), equal, none, num_steps=num_steps
    ).counts
    shares, found = torch.digamma(alpha + counts), list[Tensor]()
    for some in row_chunks(rows, num_topics * (1 + len(rows.values) // max(1, len(rows)))):
        part = rows[some]
        logits = logs[part.columns] + shares[some][part.row_index]
        topics = draw_categorical(logits, uniforms((len(logits),), stream))
        found.append(topics.repeat_interleave(part.values.long()))
    return torch.cat(found)


_MOST_SCANS, _FEWEST_SCANS = 100, 30  # the counts are the average of the last quarter
_MOST_VISITS = 2**23  # of tokens, in all scans
