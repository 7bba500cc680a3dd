"""The kernels' view of data with many tasks: shared inputs, and the pairs of a row and a task with a target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from .arrays import like
from .data import Data, Spread
from .domains import Count, Whole, read, shown
from .host import require_room
from .numbers import as_tensor


@dataclass(frozen=True, eq=False)
class TaskData(Spread):
    """N rows of D inputs, P inputs that the classifiers see directly, M tasks; A known pairs of a row and a task.

    Pairs are ordered by task: the pairs of task m are starts[m] : starts[m + 1].
    """

    X: Tensor  # [N, D], the rows that the projection sees
    inputs: Tensor  # [N, P]
    targets: Tensor  # [N, M]: -1 / +1, or real targets; NaN where a row has none in a task
    given: Tensor | None = None  # [N, D'], the rows from which X is computed; None: X itself

    follow: ClassVar[tuple[str, ...]] = "X", "inputs"  # fields that are computed from `given`

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.X)

    @property
    def num_tasks(self) -> int:
        """M."""
        return self.targets.shape[1]

    @cached_property
    def tasks(self) -> Tensor:
        """The task [A] int64 of each pair."""
        return torch.nonzero(~self.targets.T.isnan())[:, 0].contiguous()

    @cached_property
    def rows(self) -> Tensor:
        """The row [A] int64 of each pair."""
        return torch.nonzero(~self.targets.T.isnan())[:, 1].contiguous()

    @cached_property
    def known(self) -> Tensor:
        """The target [A] of each pair."""
        return self.targets[self.rows, self.tasks]

    @cached_property
    def known_pairs(self) -> Data:
        """The pairs as points whose classifiers see only the inputs, without the projection."""
        return self.pairs(self.X[:, :0])

    @cached_property
    def starts(self) -> list[int]:
        """The index of each task's first pair, and the number of pairs, M + 1 in all."""
        return [0, *torch.bincount(self.tasks, minlength=self.num_tasks).cumsum(0).tolist()]

    @cached_property
    def columns(self) -> Tensor:
        """X^T [D, N] in double precision, contiguous along the rows."""
        return self.X.T.double().contiguous()

    def by_task(self, values: Tensor) -> Tensor:
        """Values [A] of the pairs as a table [N, M] of rows and tasks, 0 where there is no pair."""
        return values.new_zeros(self.targets.shape).index_put((self.rows, self.tasks), values)

    def pairs(self, projected: Tensor) -> Data:
        """The pairs as points of their tasks' classifiers, with features [Z^T x; b], from the projected rows [N, K]."""
        features = torch.cat([projected, self.inputs], 1)[self.rows]
        return Data(features, features, self.known.unsqueeze(1))

    def pair_scores(self, projected: Tensor, weights: Tensor) -> Tensor:
        """Scores f [A] of the pairs, from projected rows [N, K] and weights [K + P, M]."""
        features = torch.cat([projected, self.inputs], 1)
        if 2 * len(self.rows) > self.targets.numel():
            return (features @ weights)[self.rows, self.tasks]
        parts = zip(self.rows.tensor_split(self.starts[1:-1]), weights.T, strict=True)
        return torch.cat([features[rows] @ own for rows, own in parts])


def by_task(y: Any, tasks: Any, num_tasks: Count | None = None) -> Any:
    """Targets [N, M] of rows that have one task each: y_n in column tasks_n, NaN in the others.

    Parameters
    ----------
    y : targets [N]
    tasks : the task of each row [N], integers from 0
    num_tasks : M; None: one more than the largest

    Raises
    ------
    ValueError    unless `tasks` holds such integers, one for each target.

    Examples
    --------
    >>> by_task([1.0, 2.0, 3.0], [0, 1, 0])
    array([[ 1., nan],
           [nan,  2.],
           [ 3., nan]])
    """
    values, places = as_tensor("y", y), as_tensor("tasks", tasks)
    num_tasks = read("num_tasks", num_tasks, Whole(1), optional=True)
    whole = places.dtype != torch.bool and not places.is_floating_point()
    if not whole or places.ndim != 1 or (len(places) and int(places.min()) < 0):
        raise ValueError(f"tasks is {shown(tasks)}; expected integers [N] from 0, the task of each row.")
    if values.shape != places.shape:
        raise ValueError(
            f"y has shape {tuple(values.shape)}; expected [{len(places)}], a target for each of the tasks."
        )
    largest = int(places.max()) + 1 if len(places) else 0
    if num_tasks is not None and largest > num_tasks:
        raise ValueError(f"tasks has {largest - 1}, but num_tasks is {num_tasks}: the largest may be {num_tasks - 1}.")
    M = num_tasks or largest
    require_room("num_tasks" if num_tasks else "tasks", M if num_tasks else tasks, 8 * len(values) * M, values.device)
    values = values if values.is_floating_point() else values.double()
    found = values.new_full((len(values), M), torch.nan)
    found[torch.arange(len(values), device=values.device), places.to(values.device, torch.long)] = values
    return like(found, y)
