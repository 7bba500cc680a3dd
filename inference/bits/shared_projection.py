"""Updates of the bits of a projection that tasks share, under the margins of all tasks, for every backend.

A bit z_dk changes the score of each known pair a of a row and a task by eta_{k, task} x_{row, d}. All bits share these
scores, so they are updated one after another. On the CPU this is compiled for costs that have a `box`. For other costs,
on other devices, and among ranks, which exchange a sum for each bit, the sums over pairs are tensor operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...models import host
from ...models.losses import Loss
from ...models.mt_ilsvm import MultiTaskInfiniteLatentSVM
from ...models.multi_task import TaskData
from ...models.sums import ranks
from ..classifiers.scored import Scored
from ..distributed.collectives import all_sum


class Generative(NamedTuple):
    """The log odds of a bit without margins: odds_k + linear_dk - gram_kk / 2 - sum_{j != k} z_dj gram_jk."""

    odds: Tensor  # [K]
    linear: Tensor  # [D, K]
    gram: Tensor  # [K, K]

    def log_odds(self, features: Tensor, d: int, k: int) -> Tensor:
        """The log odds [] of one bit, given the others of its dimension."""
        others = features[d] @ self.gram[:, k] - features[d, k] * self.gram[k, k]
        return self.odds[k] + self.linear[d, k] - self.gram[k, k] / 2 - others


def prior_alone(odds: Tensor, num_dimensions: int) -> Generative:
    """The log odds of a model without a likelihood: those of the prior [K]."""
    return Generative(odds, odds.new_zeros(num_dimensions, len(odds)), odds.new_zeros(len(odds), len(odds)))


def task_margins(data: TaskData, model: MultiTaskInfiniteLatentSVM, features: Tensor) -> Scored:
    """The pairs that the tasks' classifiers [M, K + P, 1] score, each its own, with features [D, K]."""
    pairs = data.pairs(data.X @ features)
    return Scored(
        pairs.features,
        pairs.targets,
        model.loss,
        model.weight_scale,
        owner=data.tasks,
        num_owners=data.num_tasks,
        source=data.known_pairs,
    )


@dataclass(frozen=True)
class Margins:
    """The known pairs of tasks, and the classifiers' weights [K, M] of the features."""

    data: TaskData
    loss: Loss
    weights: Tensor

    def log_odds(self, features: Tensor, scores: Tensor, d: int, k: int) -> Tensor:
        """The margins' term in the log odds [] of a bit, from scores [A] at features [D, K]."""
        step = self._step(d, k)
        return self._gain(scores - features[d, k] * step, step)

    def set_bits(self, features: Tensor, levels: Tensor, generative: Generative, scores: Tensor) -> Tensor:
        """Set each bit of features [D, K], in turn, to whether its log odds given all others exceed its level.

        scores : [A] of the pairs at the given features
        """
        levels = levels.double()

        def choose(double: Margins, d: int, k: int, gain: Tensor, base: Tensor, step: Tensor) -> Tensor:
            return (gain + double._gain(base, step) > levels[d, k]).to(gain)

        if ranks() is not None:
            return self._set_ahead(features, levels, generative, scores)
        return self._in_turn("set_bits", features, generative, scores, choose, levels)

    def _set_ahead(self, features: Tensor, levels: Tensor, generative: Generative, scores: Tensor) -> Tensor:
        """`set_bits` among ranks: many bits at once, as if none changed; after a change the rest is recomputed."""
        found, scores, generative, double = self._in_double(features, scores, generative)
        places, first = list(product(range(len(found)), range(found.shape[1]))), 0
        size = len(places)
        while first < len(places):
            some = places[first : first + size]
            steps = (double._step(d, k) for d, k in some)
            own = [
                double._own_gain(scores - found[place] * step, step) for place, step in zip(some, steps, strict=True)
            ]
            odds = torch.stack([generative.log_odds(found, d, k) for d, k in some]) + all_sum(torch.stack(own))
            at = tuple(torch.tensor(some, device=found.device).T)
            changed = torch.nonzero((odds > levels[at]) != (found[at] > 0)).flatten().tolist()
            number = 1 + changed[0] if changed else len(some)
            if changed:
                d, k = some[changed[0]]
                scores = scores + (1 - 2 * found[d, k]) * double._step(d, k)
                found[d, k] = 1 - found[d, k]
            first, size = first + number, 2 * number
        return found.to(features.dtype)

    def fit_probabilities(self, psi: Tensor, generative: Generative, scores: Tensor) -> Tensor:
        """Set each probability [D, K], in turn, to the optimum of E log prior + entropy + log phi(E f).

        scores : [A] of the pairs at the given probabilities
        """

        def choose(double: Margins, d: int, k: int, gain: Tensor, base: Tensor, step: Tensor) -> Tensor:
            return double._best(gain, base, step)

        return self._in_turn("fit_probabilities", psi, generative, scores, choose)

    def _in_turn(
        self,
        name: str,
        values: Tensor,
        generative: Generative,
        scores: Tensor,
        choose: Callable[[Margins, int, int, Tensor, Tensor, Tensor], Tensor],
        *given: Tensor,
    ) -> Tensor:
        """Update values [D, K] one after another, by the compiled function `name`, otherwise by `choose`.

        `choose` takes a value's log odds without margins, the scores [A] without it, and the step [A] that it adds to
        them.
        """
        found, scores, generative, double = self._in_double(values, scores, generative)
        if (arrays := self._arrays()) is not None:
            from . import _numba_shared_projection

            parts = tuple(part.contiguous().numpy() for part in generative)
            visit = getattr(_numba_shared_projection, name)
            visit(found.numpy(), *(own.numpy() for own in given), *arrays, parts, scores.numpy())
            return found.to(values.dtype)
        for d in range(len(found)):
            for k in range(found.shape[1]):
                step = double._step(d, k)
                base = scores - found[d, k] * step
                found[d, k] = choose(double, d, k, generative.log_odds(found, d, k), base, step)
                scores = base + found[d, k] * step
        return found.to(values.dtype)

    def _in_double(
        self, values: Tensor, scores: Tensor, generative: Generative
    ) -> tuple[Tensor, Tensor, Generative, Margins]:
        """Copies of values [D, K], scores [A] and the other arguments in double precision."""
        data = TaskData(self.data.X.double(), self.data.inputs.double(), self.data.targets)
        parts = Generative(*(part.double() for part in generative))
        copies = values.double().clone(), scores.double().clone()
        return *copies, parts, Margins(data, self.loss, self.weights.double())

    def _gain(self, base: Tensor, step: Tensor) -> Tensor:
        """log phi [] at scores base + step [A], minus log phi at the base."""
        return all_sum(self._own_gain(base, step))

    def _own_gain(self, base: Tensor, step: Tensor) -> Tensor:
        """`_gain` for the pairs of this rank."""
        known = self.data.known.to(base)
        return (self.loss.log_factor(base + step, known) - self.loss.log_factor(base, known)).sum()

    def _best(self, gain: Tensor, base: Tensor, step: Tensor) -> Tensor:
        """The p [] that minimizes -entropy - gain p + sum_a g(base_a + step_a p), by bisection of its log odds."""

        def pull(p: Tensor | float) -> Tensor:
            with torch.enable_grad():
                scores = (base + step * p).requires_grad_()
                (tilt,) = torch.autograd.grad(self.loss.log_factor(scores, known).sum(), scores)
            return gain + all_sum((tilt * step).sum())

        known = self.data.known.to(base)
        low, high = pull(1.0), pull(0.0)
        for _ in range(_NUM_HALVINGS):
            middle = (low + high) / 2
            above = middle > pull(middle.sigmoid())
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return ((low + high) / 2).sigmoid()

    def _step(self, d: int, k: int) -> Tensor:
        """What the bit adds to the score of each pair, [A]."""
        return self.weights[k, self.data.tasks] * self.data.X[self.data.rows, d]

    def _arrays(self) -> tuple[Any, ...] | None:
        """The arguments of the compiled functions: columns, pairs, box, weights; None where they cannot be used."""
        data = self.data
        if not host.on_cpu(data.X) or ranks() is not None:
            return None
        known = data.known.double()
        box = self.loss.box(known)
        if box is None:
            return None
        bounds = (part.expand_as(known).contiguous().numpy() for part in box[:3])
        pairs = (data.rows.numpy(), torch.tensor(data.starts).numpy())
        weights = self.weights.double().contiguous().numpy()
        return data.columns.numpy(), pairs, (*bounds, float(box.curvature), float(box.tube)), weights


_NUM_HALVINGS = 60
