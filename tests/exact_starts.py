"""Independent states of an exact posterior with hyperplanes that repel, and what moves make of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from scipy.stats import chi2
from setups import first_appearance
from torch import Tensor

from regbayes.inference.gibbs.state import PartitionState
from regbayes.testing import partition_posterior

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
        p_value, z = self.after(number, num_moves)
        assert p_value > 1e-4
        assert (z.abs() < 4.2).all(), z

    def after(self, number: int, num_moves: int) -> tuple[float, Tensor]:
        """The p-value of a chi-square of the labels after moves from independent states, and z-scores [M] of what
        moments change."""
        visits, change = torch.zeros(len(self.names), dtype=torch.float64), []
        for chosen in torch.multinomial(self.mass, number, replacement=True, generator=self.generator).tolist():
            old = new = self.state(torch.tensor(self.names[chosen]))
            for _ in range(num_moves):
                new = self.move(new)
            found = tuple(self.labels(new).tolist())
            visits[self.names.index(found if self.truncated else first_appearance(found))] += 1
            change.append(self.summary(new) - self.summary(old))
        expected = number * self.mass
        rare = expected < 4
        visits, expected = (torch.cat([each[~rare], each[rare].sum().view(1)]) for each in (visits, expected))
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
