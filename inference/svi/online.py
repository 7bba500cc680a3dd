"""Updates of a variational posterior by batches of rows that arrive one after another.

A batch of n rows after M earlier ones is a stochastic step for N = M + n points, all represented by the batch, with
size (N / n + delay)^-forgetting (docs/derivations/scale, "Stochastic steps"; Hoffman et al. 2013). The posterior holds
all that is needed: the rows of earlier batches may be gone, and a saved posterior can be updated too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from ...models import host
from ...models.data import Data
from ...models.domains import shown
from ...models.label_data import LabelData
from ...models.topics import TopicData
from ..posterior.base import Posterior
from .backend import SVI
from .label_sets.kernel import restored_labels
from .partition.kernel import restored_partition
from .steps import Minibatch
from .topics.kernel import restored_topics

P = TypeVar("P", bound=Posterior)


@host.usual_torch()
def continue_fit(posterior: P, X: Any, y: Any = None) -> P:
    """The posterior by `SVI` after a step on one more batch: rows X [n, D] and y as in `fit`, [n] or label sets [n, C].

    Its values by row, such as assignments, are those of the batch. Defaults that were set from the first rows stay.

    Raises
    ------
    ValueError             unless the posterior is by `SVI`, of a mixture, of topics or of label sets, or if the batch
                           has other columns.
    NotImplementedError    if the `rule` of the backend needs all rows at once for this model.
    """
    backend = getattr(posterior, "backend", None)
    restored = _RESTORED.get(posterior.model.data_type) if isinstance(backend, SVI) else None
    if not isinstance(backend, SVI) or restored is None or "num_seen" not in posterior.samples:
        raise ValueError(
            f"posterior is {shown(posterior)}, which cannot continue with another batch; posteriors of mixtures, "
            "topics and BNMC by SVI() can."
        )
    rows: Any = posterior
    X = rows.checked(X)
    model = posterior.model.accepting(X, y) if posterior.model.data_type is LabelData else posterior.model
    data, steps = model.data(X, y), backend.module_of(model).of(backend, model)
    if steps.stochastic is None:
        raise NotImplementedError(
            f"SVI(rule={backend.rule!r}) of {type(model).__name__} needs all points at once, so it cannot continue "
            "with a batch. Fit all rows again."
        )
    kept = posterior.draw(0)
    seen = float(kept["num_seen"]) + data.num_data
    scale = seen / data.num_data
    rho = (scale + backend.delay) ** -backend.forgetting
    state = steps.stochastic.sweep(restored(kept, data, model), Minibatch(data, scale), model, rho)
    bound, state = state.bound, steps.complete(state, data, model)
    draw = {**steps.draw(state, data, model), "num_seen": torch.tensor([seen], dtype=torch.float64)}
    samples = {name: value.unsqueeze(0) for name, value in draw.items()}
    values = torch.cat([posterior.trace.values, bound.cpu().double().reshape(1, 1)], 1)
    seconds = torch.cat([posterior.trace.seconds, posterior.trace.seconds[:, -1:]], 1)
    trace = replace(posterior.trace, values=values, seconds=seconds)
    return posterior.replace(model=model, samples=samples, num_draws=[1], trace=trace)


_RESTORED: dict[type[Any], Callable[..., Any]] = {
    Data: restored_partition,
    LabelData: restored_labels,
    TopicData: restored_topics,
}
