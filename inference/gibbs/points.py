"""The assignments of exchangeable points: a partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from ...models import host
from ...models.compiled import is_compiled
from ...models.data import Data
from ...models.mixture import Mixture
from ...models.priors.laws import PointLaw
from ...models.sums import ranks
from ..distributed.collectives import all_sum
from ..posterior.draws import PartitionDraw
from .allocations import Allocation
from .hyperplanes import NUM_RESERVED
from .scans import blocked, collapsed
from .scans import slice as slice_scan
from .scans.components import count_members
from .state import PartitionState


class Points(Allocation[PartitionState, Data, Mixture]):
    """Assignments whose law depends on the sizes of the components alone."""

    law: PointLaw

    state = PartitionState
    scans: ClassVar = {"collapsed": collapsed.scan, "slice": slice_scan.scan, "blocked": blocked.scan}
    unbounded = "slice"

    @staticmethod
    def quickest(data: Data, model: Mixture) -> str:
        compiled = host.on_cpu(data.X) and is_compiled(model.likelihood)
        quick = compiled and model.loss.has_marginal and ranks() is None
        return "collapsed" if quick or model.prior.lacks("draw_rest") else "slice"

    @staticmethod
    def fused(scan: str, data: Data, model: Mixture) -> Callable[..., PartitionState] | None:
        """A scan with split-merge moves for mixtures without classifiers, where moves cost little."""
        compiled = scan == "collapsed" and collapsed.moves_are_compiled(data, model)
        return collapsed.scan_with_moves if compiled else None

    def begin(self, labels: Tensor, model: Mixture) -> PartitionState:
        return PartitionState(labels, self.empty_weights(labels), model.prior.start(self.data.features))

    def tally(self, at: PartitionState) -> Tensor:
        """The numbers of points [K]."""
        return torch.bincount(at.assignments, minlength=len(at.weights))

    def log_density(self, at: PartitionState, tally: Tensor | None = None) -> Tensor:
        counts = all_sum(self.tally(at)) if tally is None else tally
        return self.law.log_prior(counts.double(), at.hyper) + self.law.prior.log_density(at.hyper)

    def draw_prior(
        self, state: PartitionState, generator: torch.Generator, tally: Tensor | None = None
    ) -> PartitionState:
        if not self.law.alike:  # the blocked scan draws the hyperparameters
            return state
        counts = count_members(state) if tally is None else tally.double()
        return replace(state, hyper=self.law.prior.draw(state.hyper, counts, generator))

    def relabel(self, state: PartitionState, generator: torch.Generator, tally: Tensor | None = None) -> PartitionState:
        if self.law.alike:
            return state
        counts = count_members(state) if tally is None else tally.double()
        return blocked.relabel(state, counts, self.law.prior, generator)

    def kept(self, state: PartitionState, tally: Tensor, chi: Tensor, log_joint: Tensor) -> PartitionDraw:
        """As in `Allocation`; the mixture weights [K + 1] are their expectations given the assignments."""
        kept = PartitionDraw(
            assignments=state.assignments,
            hyperparameters=chi,
            log_mixture=self.law.log_weights(tally.double(), state.hyper).to(self.data.X.dtype),
            weights=state.weights,
            log_joint=log_joint,
        )
        if state.reservoir is not None:  # the same number in each draw: repeated if components took many
            places = torch.arange(NUM_RESERVED, device=state.reservoir.device) % len(state.reservoir)
            kept["unseen_weights"] = state.reservoir[places]
        return kept

    def log_divisions(
        self, joined: PartitionState, side: Tensor, steps: Tensor, first: int, places: Tensor, share: float
    ) -> Tensor:
        counts, moved = count_members(joined), all_sum(side.sum())
        divided = counts.expand(len(places), -1).scatter(1, places.unsqueeze(1), moved.double().expand(len(places), 1))
        divided[:, first] -= moved
        return self.law.log_prior(divided, joined.hyper) - self.law.log_prior(counts, joined.hyper)
