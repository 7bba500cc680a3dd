"""New features, proposed by the rows with the largest residuals and by the labels.

    w = s_n / (a_n + p),   s_n = b_n - a_n m_n          the loadings by which row n alone gains most
    saving = scale sum_j r_j [D(x_j, m_j) - D(x_j, m_j + w)]_+ - loading ridge of w - Lambda(K + 1) + Lambda(K)

with the quadratic (a, b) that majorizes D at the present means m; every row that gains takes the feature. Scores
include the feature once the classifiers are fitted again. Features that help the labels alone are not found in this
way: a descent without proposals by labels stalls (docs/derivations/latent-features, "Small-variance limit", steps 2 and
5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ....models.losses import PseudoObservation
from ...classifiers.minimum import all_found, slopes
from ...distributed.collectives import all_any, all_largest, all_sum, all_sums, own_exponentials
from ...distributed.picked import own_of, taken, top
from .bits import move_bits
from .fit import refit
from .problem import FeatureDescent, FeatureProblem


def open_feature(
    state: FeatureDescent, problem: FeatureProblem, generator: torch.Generator, *, single: bool = False
) -> FeatureDescent:
    """Add the best feature proposed by some rows' residuals, if that lowers F.

    With `single`, only rows for which a feature of their own would pay are candidates, as in BP-means as published.
    """
    residual, price = Residual.of(state, problem), problem.next_price(state.penalty, state.num_features)
    excess = residual.alone()
    chosen = _candidates(excess, residual, generator)
    if single:
        chosen = chosen[taken(excess, chosen, problem.data.span) > price]
    if not len(chosen):
        return replace(state, grows=False)
    loadings, totals = residual.founded(chosen, generator)
    best = totals.topk(min(_REFINED, len(totals))).indices
    loadings, totals = residual.refined(loadings[best], totals[best])
    total, best = totals.max(0, keepdim=True)
    if not total > price:
        return replace(state, grows=False)
    members = residual.savings(loadings[best]).squeeze(1) > 0
    state = state.joined(members, loadings[best].squeeze(0))
    return replace(state, objective=state.objective - (total.squeeze(0) - price), grows=True)


def alone(state: FeatureDescent, problem: FeatureProblem) -> Tensor:
    """What an own feature would save a single copy of each row, [N], by the quadratic."""
    return Residual.of(state, problem).alone()


def label_columns(state: FeatureDescent, problem: FeatureProblem) -> list[Tensor]:
    """Sets of rows [N] bool that the targets suggest as features, sorted by their total loss, largest first.

    For each score: the rows with targets above or below the mean (a class and its complement), and the rows whose
    margin has a positive or negative slope of more than half of the largest (for a hinge: a slope that is not 0).
    """
    targets, counted = problem.data.targets, problem.data.row_weights
    known = ~targets.isnan()
    sums = all_sum(torch.stack([(counted * targets.nan_to_num()).sum(0), (counted * known).sum(0)]))
    above = targets - sums[0] / sums[1].clamp(min=torch.finfo(targets.dtype).tiny)
    scores = problem.scores(state)
    pull, losses = slopes(problem.model.loss, scores, targets), problem.losses(scores)
    sides = [above, -above]
    sides += [side - all_largest(torch.cat([side, torch.zeros_like(sums[:1])]).amax(0)) / 2 for side in (pull, -pull)]
    columns = torch.cat([side > 0 for side in sides], 1)
    shared = all_sum(columns.T.double() @ columns.double())
    sizes = shared.diagonal()
    same = (shared == sizes) & (shared == sizes.unsqueeze(1))
    some = list(columns.T[~same.tril(-1).any(1) & (sizes > 0)])
    if not some:
        return some
    order = problem.total(losses.unsqueeze(1) * torch.stack(some, 1)).argsort(descending=True, stable=True)
    return [some[index] for index in order.tolist()]


def improved(proposal: FeatureDescent, problem: FeatureProblem, generator: torch.Generator) -> FeatureDescent:
    """Improve a proposal by some rounds of updates."""
    for _ in range(_PROPOSAL_ROUNDS):
        before = proposal = refit(proposal, problem)
        proposal = move_bits(proposal, problem, generator)
        if proposal.num_features == before.num_features and not all_any(before.features != proposal.features):
            return before
    return refit(proposal, problem)


def add_by_labels(
    state: FeatureDescent, problem: FeatureProblem, generator: torch.Generator, *, most: int = 8
) -> FeatureDescent:
    """Try at most `most` features that targets suggest; each is added, or replaces one, if that lowers F."""
    nothing = torch.zeros_like(problem.data.X[0])
    for members in label_columns(state, problem)[:most]:
        for start in (state, _without_likest(state, members, problem)):
            proposal = improved(start.joined(members, nothing), problem, generator)
            if proposal.objective < state.objective:
                state = proposal
                break
    return state


def _without_likest(state: FeatureDescent, members: Tensor, problem: FeatureProblem) -> FeatureDescent:
    """Remove the feature that agrees with a set of rows [N] bool in most rows."""
    if not state.num_features:
        return state
    agree = problem.total((state.features == members.unsqueeze(1)).to(state.features))
    return state.without(agree.argmax())


@dataclass(frozen=True)
class Residual:
    """The residuals of the entries at the present means, and the quadratic that majorizes D there."""

    problem: FeatureProblem
    mean: Tensor  # [N, D]
    slope: Tensor  # [N, D] b - a m; 0 where an entry is missing
    precision: Tensor  # [1, D] or [N, D] a; 0 where an entry is missing
    quadratic: bool  # whether D equals the quadratic

    @classmethod
    def of(cls, state: FeatureDescent, problem: FeatureProblem) -> Residual:
        """The residuals of a state."""
        data, mean = problem.data, state.features @ state.loadings
        observed: PseudoObservation = problem.model.likelihood.majorize(data.X, mean)
        slope, precision = observed.shift - observed.precision * mean, observed.precision
        if data.observed is not None:
            slope, precision = slope * data.observed, precision * data.observed
        return cls(problem, mean, slope, precision, len(observed.precision) == 1 and data.observed is None)

    @property
    def prior(self) -> Tensor:
        """The prior precisions [D] of the loadings."""
        return self.problem.prior_precision.to(self.mean)

    def alone(self) -> Tensor:
        """What an own feature would save a single copy of each row, [N]."""
        return self.problem.scale * (self.slope.square() / (self.precision + self.prior)).sum(1) / 2

    def founded(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Loadings [2 M, D] of new features, and the total saving of each [2 M].

        M of them are residuals of single rows. The others are differences of two residuals, which are one feature if
        the two rows differ by one.
        """
        both = torch.cat([self.slope, self.precision.expand_as(self.slope)], 1)
        slope, precision = taken(both, rows, self.problem.data.span).chunk(2, 1)
        loadings = slope / (precision + self.prior)
        others = loadings[torch.randperm(len(rows), generator=generator, device=rows.device)]
        loadings = torch.cat([loadings, loadings - others])
        return loadings, self.totals(loadings)

    def refined(self, loadings: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
        """Alternate loadings [M, D] with the rows that gain; return the best loadings and total savings [M]."""
        _, best = self._joined(loadings)
        for _ in range(_ROUNDS):
            moved = best
            moved_totals, then = self._joined(moved)
            more = moved_totals > totals  # otherwise it stays as it is from now on
            loadings = torch.where(more.unsqueeze(1), moved, loadings)
            totals = torch.where(more, moved_totals, totals)
            best = torch.where(more.unsqueeze(1), then, best)
            if all_found(~more):
                break
        return loadings, totals

    def _joined(self, loadings: Tensor) -> tuple[Tensor, Tensor]:
        """The total savings [M] of features with loadings [M, D]; the best loadings [M, D] for their rows."""
        weights, saved = self.problem.data.row_weights, self.savings(loadings)
        members = (weights * (saved > 0)).T
        precision, own = self.precision.expand_as(self.slope), (weights * saved.relu()).sum(0, dtype=torch.float64)
        total, linear, sizes = all_sums(own, members @ self.slope, members @ precision)
        return total - self.problem.loading_ridge(loadings), linear / (sizes + self.prior)

    def savings(self, loadings: Tensor) -> Tensor:
        """What features with loadings [M, D] would save a single copy of each row, [N, M]."""
        if self.quadratic:
            half = (self.precision * loadings.square()).sum(1) / 2
            return self.problem.scale * (self.slope @ loadings.T - half)
        before = self.problem.divergences(self.mean)
        return torch.stack([before - self.problem.divergences(self.mean + loading) for loading in loadings], 1)

    def totals(self, loadings: Tensor) -> Tensor:
        """The total savings [M] float64 of features, if every row that gains takes them."""
        return self.problem.total(self.savings(loadings).relu()) - self.problem.loading_ridge(loadings)


def _candidates(excess: Tensor, residual: Residual, generator: torch.Generator) -> Tensor:
    """The numbers [M] of rows that may found a feature: the largest savings, and a weighted random sample."""
    (here, D), device = residual.mean.shape, excess.device
    span = residual.problem.data.span
    N = span[1]
    most = _MOST_CANDIDATES if residual.quadratic else max(4, min(_MOST_CANDIDATES, _NUMBERS // (N * D)))
    if most >= N:
        return torch.arange(N, device=device)
    dearest = top(excess, most // 4, span)
    weight = residual.problem.data.row_weights.squeeze(1) * excess.clamp(min=torch.finfo(excess.dtype).tiny)
    weight /= own_exponentials(weight, generator, span)
    weight[own_of(dearest, here, span)] = 0.0
    return torch.cat([dearest, top(weight, most - len(dearest), span)])


_MOST_CANDIDATES = 64
_NUMBERS = 2**24
_REFINED = 4
_ROUNDS = 5
_PROPOSAL_ROUNDS = 5
