"""Independent states of an exact posterior with hyperplanes that repel, and what moves make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from scipy.stats import chi2
from setups import by_day, first_appearance, label_law
from torch import Tensor

from regbayes.inference.gibbs.paths import Paths
from regbayes.inference.gibbs.state import PartitionState, SequenceState
from regbayes.testing import partition_posterior
from regbayes.testing.sequences import state_posterior

Labels = tuple[int, ...]


class ExactStarts:
    """Labels by enumeration, hyperplanes of one classifier feature by a fine grid; `state` adds what else there is.

    Parameters
    ----------
    exact : probabilities of the labels of the truncated model, or of partitions in order of first appearance
    points : what the hyperplanes see, with features [N, 1]
    seen : which labels are those of the points
    places : hyperplanes of the infinite model, in use and reserved; so few points never need six
    """

    def __init__(
        self, exact: dict[Labels, float], model: Any, points: Any, seen: Any, *, truncated: bool, places: int = 6
    ) -> None:
        self.places = places
        self.model, self.truncated, self.seen, self.features = model, truncated, seen, points.features.squeeze(1)
        self.names, self.mass = list(exact), torch.tensor(list(exact.values()), dtype=torch.float64)
        self.generator = torch.Generator().manual_seed(7)
        self.grid = model.weight_scale * torch.linspace(-6, 6, 4001, dtype=torch.float64)

        @cache
        def masses(members: tuple[bool, ...]) -> Tensor:
            sides = 2 * torch.tensor(members, dtype=torch.float64).unsqueeze(1) - 1
            log_mass = model.loss.log_factor(points.features * self.grid, sides).sum(0)
            return (log_mass - (self.grid / model.weight_scale).square() / 2).softmax(0).cumsum(0)

        self.masses = masses

    def hyperplanes(self, members: Tensor, number: int) -> Tensor:
        """Draws [number, 1, 1] given which points [N] are on their side."""
        levels = torch.rand(number, generator=self.generator, dtype=torch.float64)
        places = torch.searchsorted(self.masses(tuple(members.tolist())), levels).clamp(max=len(self.grid) - 1)
        jitter = torch.rand(number, generator=self.generator, dtype=torch.float64) - 0.5
        return (self.grid[places] + jitter * (self.grid[1] - self.grid[0])).view(-1, 1, 1)

    def planes(self, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Hyperplanes of all components of the truncated model; else of those in use, and the reserved ones."""
        number, seen = self.model.truncation if self.truncated else int(labels.max()) + 1, labels[self.seen]
        weights = torch.cat([self.hyperplanes(seen == k, 1) for k in range(number)])
        return weights, None if self.truncated else self.hyperplanes(seen < 0, self.places - number)

    def state(self, labels: Tensor) -> Any:
        """A state of the exact posterior given the labels."""
        raise NotImplementedError

    def labels(self, state: Any) -> Tensor:
        """The labels of a state, as in `exact`."""
        raise NotImplementedError

    def move(self, state: Any) -> Any:
        """What is to leave the posterior as it is."""
        raise NotImplementedError

    def summary(self, state: Any) -> Tensor:
        """Sums and squares [M] of own scores, all hyperplanes and those without points; components in use."""
        planes, labels = state.weights.flatten(), self.labels(state)
        if state.reservoir is not None:
            planes = torch.cat([planes, state.reservoir.flatten()])
        own, empty = planes[labels[self.seen]] * self.features, torch.bincount(labels, minlength=len(planes)) == 0
        values = [moment for each in (own, planes, planes[empty]) for moment in (each.sum(), each @ each)]
        return torch.stack([*values, (~empty).sum().double()])

    def check(self, number: int, num_moves: int) -> None:
        """Moves from independent states keep the posterior."""
        self.require_kept(*self.after(by_day(number), num_moves))

    def require_kept(self, p_value: float, z: Tensor) -> None:
        """What `compared` says is as chance has it."""
        assert p_value > 1e-4
        assert (z.abs() < 4.2).all(), z

    def after(self, number: int, num_moves: int) -> tuple[float, Tensor]:
        """As `compared`, of states after so many moves."""
        pairs = []
        for old in self.draws(number):
            new = old
            for _ in range(num_moves):
                new = self.move(new)
            pairs.append((old, new))
        return self.compared(pairs)

    def draws(self, number: int) -> Iterator[Any]:
        """Independent states of the exact posterior."""
        for chosen in torch.multinomial(self.mass, number, replacement=True, generator=self.generator).tolist():
            yield self.state(torch.tensor(self.names[chosen]))

    def compared(self, pairs: list[tuple[Any, Any]]) -> tuple[float, Tensor]:
        """The p-value of a chi-square of the labels of states that came from independent states, and z-scores [M] of
        what moments change."""
        number, visits, change = len(pairs), torch.zeros(len(self.names), dtype=torch.float64), []
        for old, new in pairs:
            found = tuple(self.labels(new).tolist())
            visits[self.names.index(found if self.truncated else first_appearance(found))] += 1
            change.append(self.summary(new) - self.summary(old))
        expected = number * self.mass
        rare = expected < 4
        visits, expected = (torch.cat([each[~rare], each[rare].sum().view(1)]) for each in (visits, expected))
        assert len(visits) > 1, "too few states to tell one label from another"
        statistic = ((visits - expected).square() / expected.clamp(min=1e-9)).sum()
        gap = torch.stack(change)
        z = gap.mean(0) / (gap.std(0) / number**0.5).clamp(min=1e-9)
        return float(chi2.sf(float(statistic), len(visits) - 1)), z


class PartitionStarts(ExactStarts):
    """Of a mixture with hyperplanes given X [N, 1]; `step(state, data, model, generator)` moves."""

    def __init__(self, model: Any, X: Tensor, step: Callable[..., PartitionState], **options: Any) -> None:
        truncated = options["truncated"]
        model, self.X, self.step = model.resolve(X), X, step
        self.data, truncation = model.data(X), model.truncation if truncated else None
        exact = partition_posterior(model, X, truncation=truncation)
        super().__init__(exact, model, self.data, slice(None), **options)

    def state(self, labels: Tensor) -> PartitionState:
        weights, reserved = self.planes(labels)
        return PartitionState(labels, weights, self.model.prior.start(self.X), reserved)

    def labels(self, state: PartitionState) -> Tensor:
        return state.assignments

    def move(self, state: PartitionState) -> PartitionState:
        return self.step(state, self.data, self.model, self.generator)


class PathStarts(ExactStarts):
    """Of sequences of some lengths whose states repel, given X [N, 1]; base weights given
    a path are every fifth draw of a chain, after the first fifteen."""

    def __init__(
        self, model: Any, X: Tensor, lengths: list[int], step: Callable[..., SequenceState], **options: Any
    ) -> None:
        truncated = options["truncated"]
        exact = state_posterior(model, X, lengths, truncation=model.truncation if truncated else None)
        model, self.data = model.prepare(X, None, lengths)
        super().__init__(exact, model, self.data.points, self.data.steps, **options)
        self.paths, self.step = Paths(label_law(model, truncated), self.data), step
        self.settled: dict[Labels, SequenceState] = {}

    def state(self, labels: Tensor) -> SequenceState:
        weights, reserved = self.planes(labels)
        path, open_share = tuple(labels.tolist()), 0.0 if self.truncated else 1.0
        base = torch.tensor([*[1.0] * len(weights), open_share], dtype=torch.float64)
        start = SequenceState(labels, weights, self.model.prior.start(self.data.X), reserved, base=base / base.sum())
        state = self.settled.get(path, start)
        for _ in range(5 if path in self.settled else 15):
            state = self.paths.draw_prior(state, self.generator)
        self.settled[path] = state
        return replace(state, weights=weights, reservoir=reserved)

    def labels(self, state: SequenceState) -> Tensor:
        return state.assignments

    def summary(self, state: SequenceState) -> Tensor:
        """Of base weights in use as well."""
        used = state.base[state.assignments.unique()]
        return torch.cat([super().summary(state), torch.stack([used.sum(), used @ used, used.prod()])])

    def move(self, state: SequenceState) -> SequenceState:
        return self.step(state, self.data, self.model, self.generator)
