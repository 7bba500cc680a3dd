"""Summaries of the assignments of training points that do not depend on the numbering of components."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...models.domains import OneOf, read
from ..running.chains import LABELS, LabelRows, stack_labels
from ..running.shards import Shard
from ..structures import Draw
from .base import Posterior
from .consensus import consensus
from .pairs import numbers_of, same_label
from .partition_losses import LOSSES, align, expected_loss
from .scores import chunks


class Clustering:
    """A mixin for posteriors with `assignments` [S, N] among their samples.

    These have the smallest integer type that holds them: call `.long()` on a draw before you index a tensor by it.
    """

    samples: Draw
    shard: Shard | None
    draw: Callable[[int], Draw]

    @property
    def num_components(self) -> int:
        """Number of occupied components in the representative draw."""
        return int(self.occupied.sum())

    @cached_property
    def occupied(self) -> Tensor:
        """Whether each component [K] of the representative draw has a training point, bool.

        If the posterior has the assignments of some points only (of a source or a rank), those components count too
        that are expected to have one among as many other points.
        """
        draw = self.draw(self.representative)
        labels = draw[LABELS].long()
        found = draw["log_mixture"][:-1].exp() * len(labels) >= 1
        of_more = "num_seen" in draw and bool(draw["num_seen"] > len(labels))  # by SVI; small variance keeps shares
        if self.shard is None and "centers" not in draw and not of_more:
            found = torch.zeros_like(found)
        return found.index_fill(0, labels, True)

    @property
    def num_labels(self) -> int:
        """The labels of components are 0, 1, ..., up to this number less 1; some may belong to empty components."""
        return int(torch.nonzero(self.occupied).max()) + 1

    def similarity(self) -> Tensor:
        """Posterior probability [N, N] that two training points share a component."""
        assignments = self.samples[LABELS]
        if assignments.shape[1] > 20_000:
            raise ValueError(f"The similarity of {assignments.shape[1]} points takes N x N memory; use partition().")
        total = torch.zeros(2 * assignments.shape[1:], dtype=torch.float32, device=assignments.device)
        for draw in assignments:
            total += draw.unsqueeze(0) == draw.unsqueeze(1)
        return total / len(assignments)

    def partition(self, loss: str = "vi") -> Tensor:
        """The partition [N] int64 of the training points in the draw with the least posterior expected loss.

        The draw is one of at most 50, evenly spaced, over which the expectation is taken as well.

        Parameters
        ----------
        loss : "vi" (variation of information) or "binder" (pairs put together or apart wrongly)
        """
        return self.samples[LABELS][self._best_draw(loss)].long()

    def consensus(self, loss: str = "vi", *, num_draws: int = 200, num_runs: int = 8, seed: int = 0) -> Tensor:
        """The partition [N] int64 of the training points with the least posterior expected loss; it need not be a draw.

        It is found by greedy search, and its expected loss is never above that of any draw that is used. It represents
        the draws and is not more accurate than they are: on labelled sets it is level with their mean, not with the
        best draw.
        Its blocks 0, 1, ... are in decreasing order of size. They are not components of a draw, so new rows cannot be
        assigned to them (see `partition`).

        Parameters
        ----------
        loss : "vi" (variation of information) or "binder" (pairs put together or apart wrongly)
        num_draws : the most draws that are used, evenly spaced; fewer if they have many hundreds of blocks
        num_runs : further runs, each of which places the rows one after another in an order of its own
        seed : of these orders
        """
        return consensus(self.samples[LABELS], loss, num_draws=num_draws, num_runs=num_runs, seed=seed)

    def aligned(self) -> Tensor:
        """Assignments [S, N] with the labels of every draw changed to agree best with the representative draw."""
        assignments, reference = self.samples[LABELS], self.samples[LABELS][self.representative]
        kept = LabelRows(len(assignments))
        draws = [kept.keep({LABELS: align(draw, reference)}, row) for row, draw in enumerate(assignments)]
        return stack_labels([draw[LABELS] for draw in draws])

    def labels_of(self, draw: Draw) -> Tensor:
        """Labels [K + 1] of a draw's components in the representative draw; `num_labels` for others."""
        reference = self.samples[LABELS][self.representative]
        labels = torch.full_like(draw["log_mixture"], self.num_labels, dtype=torch.long)
        if torch.equal(draw[LABELS], reference):
            own = torch.nonzero(self.occupied).squeeze(1)
            labels[own] = own
        else:
            found = align(draw[LABELS], reference)
            labels[draw[LABELS].long()] = found.where(found <= reference.max(), labels[-1])
        return labels

    @cached_property
    def representative(self) -> int:
        """Index of the draw that `partition()` returns."""
        return self._best_draw("vi")

    def facts(self) -> list[str]:
        """Facts about the structure for `repr`."""
        return [f"{self.num_components} components"]

    def _best_draw(self, loss: str) -> int:
        if read("loss", loss, OneOf(*LOSSES)) == "vi" and EXPECTED_LOSS in self.samples:
            return int(self.samples[EXPECTED_LOSS].argmin())
        return int(expected_loss(self.samples[LABELS], loss).argmin())


def rows_moved(posterior: Posterior, place: Tensor, left_out: Any, joining: Callable[[Any, Draw], Tensor]) -> Draw:
    """The samples of a posterior with other training rows, for `over_rows`.

    Parameters
    ----------
    place : row n is the training point place[n] [N], or the next of those left out where that is -1
    left_out : rows [M, D] or None
    joining : from such rows and a draw to log weights [M, K] of the components that they may join
    """
    samples = dict(posterior.samples)
    labels = samples[LABELS]
    each_once = torch.arange(labels.shape[1], device=place.device)
    # gathered rows of several ranks count once each
    if posterior.shard is None and len(labels) > 1 and not torch.equal(place.sort().values, each_once):
        samples.setdefault(EXPECTED_LOSS, expected_loss(labels, "vi").unsqueeze(1))
    for name in samples.keys() & {LABELS, "responsibilities"}:
        samples[name] = samples[name][:, place.clamp(min=0)]
    if left_out is None or not len(left_out):
        return samples
    samples[LABELS] = samples[LABELS].long()
    for index, draw in enumerate(posterior.draws()):
        log_weights = torch.cat([joining(part, draw) for part in chunks(left_out)])
        samples[LABELS][index, place < 0] = log_weights.argmax(1)
        if "responsibilities" in samples:
            samples["responsibilities"][index, place < 0] = log_weights.softmax(1)
    samples[LABELS] = stack_labels(list(samples[LABELS]))
    return samples


EXPECTED_LOSS = "expected_loss"  # of each draw, with rows weighted as in the fit


def clustering_summaries(posterior: Clustering) -> Draw:
    """Summaries of assignments that do not depend on numbering, and all scalars of the draws, [S] each.

    Numbers of components and of those with a single point, largest size, entropy of the sizes in nats, and [S, P]
    whether pairs of points share a component.
    """
    assignments = posterior.samples[LABELS]
    sizes = [torch.bincount(draw) for draw in assignments]
    return {
        "num_components": torch.stack([(size > 0).sum() for size in sizes]),
        "largest_component": torch.stack([size.max() for size in sizes]),
        "singletons": torch.stack([(size == 1).sum() for size in sizes]),
        "entropy": torch.stack([torch.special.entr(size / assignments.shape[1]).sum() for size in sizes]),
        "together": same_label(assignments),
        **numbers_of(posterior.samples),
    }
