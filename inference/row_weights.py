"""Observation weights: which rows a fit uses, how often each counts, and what the posterior has of the others.

A weight r_n >= 0 stands for r_n copies of row n (docs/derivations/priors, "Row weights"). A row of weight 0 is not in
the fit and gets its component at the end, as a new row does. Kernels of a backend with `weighs` multiply a row's term
in every sum by r_n. Backends that draw assignments assign rows one by one: they get whole copies, which are
exchangeable, and report the first copy.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from ..models.arrays import as_vector, as_weights
from ..models.base import coding_of
from ..models.multi_task import TaskData
from ..models.sequence import Sequences
from ..models.sparse import Rows
from ..models.sums import ranks
from ..models.topics import TopicData
from .distributed.collectives import all_any, each_rank, on_all
from .distributed.rows import streamed
from .protocol import Model


class Weighing(Protocol):
    """The properties of a backend that weights need."""

    weighs: ClassVar[bool]  # whether its kernels multiply a row's term in every sum by its weight

    @property
    def loss_weighing(self) -> tuple[type[Any], ...]:
        """The classes of data for which its kernels weigh the losses separately."""


@dataclass(frozen=True)
class CountedRows:
    """The M rows that a fit uses, of the N rows given."""

    X: Rows  # [M, D]
    y: Rows | None  # [M], or label sets [M, C]
    options: dict[str, Tensor]  # `weights`, `loss_weights` [M] for `Model.prepare`, if not all 1
    place: Tensor  # [N] index of each given row among the M rows; -1 if its weight is 0
    left_out: Rows  # [N - M', D] the rows of weight 0
    sizes: list[int]  # N of each rank

    @classmethod
    def of(
        cls, backend: Weighing, model: Model, X: Any, y: Any, sample_weight: Any, loss_weight: Any = None
    ) -> Self | None:
        """The rows of X [N, D] with their weights [N] and the weights [N] of their losses; None if each counts once.

        Raises
        ------
        ValueError    on weights that are negative, not finite or all zero; that are not whole numbers for a backend
                      or a model that does not weigh; for a model of sequences or of many tasks; with a source of rows.
        """
        if sample_weight is None and loss_weight is None:
            return None
        X, y, weights, losses = on_all(lambda: _given(backend, model, X, y, sample_weight, loss_weight))
        losses = losses if losses is not None and all_any(losses != 1) else None
        if not all_any(weights != 1) and losses is None:
            return None
        counting = backend.weighs and _takes_weights(model)
        if not counting:
            seen = torch.arange(len(X), device=X.device).repeat_interleave(weights.long())
            first = weights.long().cumsum(0) - weights.long()
        else:
            seen = torch.nonzero(weights).squeeze(1)
            first = (weights > 0).cumsum(0) - 1
        place = torch.where(weights > 0, first, -1)
        counted = counting and all_any(weights[seen] != 1)
        options = {"weights": weights[seen]} if counted else {}
        options |= {} if losses is None else {"loss_weights": losses[seen]}
        left_out, sizes = X[torch.nonzero(place < 0).squeeze(1)], each_rank(torch.tensor(len(place)))[0].tolist()
        return cls(X[seen], None if y is None else y[seen], options, place, left_out, sizes)

    def completed(self, posterior: Any) -> Any:
        """The posterior of the N rows, from that of the M rows."""
        found, shard = posterior.over_rows(self.place, self.left_out), posterior.shard
        if shard is None:
            return found
        return found.replace(shard=replace(shard, sizes=shard.sizes | {"N": self.sizes}))


def weighs(backend: Weighing, model: Model) -> bool:
    """Whether a fit takes weights that are not whole numbers: the backend, the model and its parts all do."""
    parts: list[Any] = [getattr(model, name, None) for name in ("likelihood", "feature_map")]
    takers = [part.resolve for part in parts if hasattr(part, "resolve")]
    of_parts = all("weights" in inspect.signature(taker).parameters for taker in takers)
    return backend.weighs and _takes_weights(model) and of_parts


def weighs_losses(backend: Weighing, model: Model) -> bool:
    """Whether a fit takes weights of losses: the backend's kernel for these data does, and the model has labels."""
    return issubclass(model.data_type, backend.loss_weighing) and coding_of(model) is not None


def _given(
    backend: Weighing, model: Model, X: Any, y: Any, sample_weight: Any, loss_weight: Any
) -> tuple[Rows, Rows | None, Tensor, Tensor | None]:
    """X [N, D], y [N], the weights [N] of rows and of their losses; None for what is not given."""
    for name, given in (("sample_weight", sample_weight), ("loss_weight", loss_weight)):
        if given is not None:
            _require_weighable(model, X, name)
    X = model.as_rows(X)
    y = None if y is None else _targets(model, y, X)
    weights = torch.ones(len(X), dtype=torch.float64, device=X.device)
    weights = weights if sample_weight is None else as_weights(sample_weight, X)
    if not (backend.weighs and _takes_weights(model)):
        _require_whole(weights, backend, model)
        _require_enough(int(weights.sum()), len(X), model)
    else:
        _require_enough(int((weights > 0).sum()), len(X), model)
    return X, y, weights, None if loss_weight is None else _loss_weights(loss_weight, backend, model, X)


def _require_enough(left: int, given: int, model: Model) -> None:
    """Raise ValueError if weights leave fewer of the given rows than a fit needs, of each rank if there are ranks."""
    least = getattr(model, "min_rows", 1)
    if left < min(least, given):
        raise ValueError(
            f"X has n_samples={left} with a positive sample_weight; expected at least {least}"
            f"{'' if ranks() is None else ' on each rank'}."
        )


def _loss_weights(given: Any, backend: Weighing, model: Model, X: Rows) -> Tensor:
    """Weights [N] >= 0 of the losses of rows."""
    if not weighs_losses(backend, model):
        raise ValueError(
            f"{type(backend).__name__} of {type(model).__name__} takes no loss_weight: a mixture with classifiers "
            'does, by SVI(rule="gibbs"). Leave it out, or pass sample_weight, which repeats rows.'
        )
    return as_weights(given, X, "loss_weight")


def _require_weighable(model: Model, X: Any, name: str) -> None:
    if streamed(X) is not None:
        raise ValueError(f"{name} goes with arrays. Leave it out of a fit from a source, or repeat its rows.")
    if not _takes_weights(model) and not issubclass(model.data_type, TopicData):
        kinds = (kind for kind in _WITHOUT if issubclass(model.data_type, kind))
        why = _WITHOUT.get(next(kinds, object), "its `data` has no argument `weights`. Leave it out.")
        raise ValueError(f"{type(model).__name__} takes no {name}: {why}")


def _targets(model: Model, y: Any, X: Rows) -> Rows:
    coding = coding_of(model)
    return as_vector(y, X) if coding is None else coding.values(y, X)


def _takes_weights(model: Model) -> bool:
    return "weights" in inspect.signature(getattr(model, "data", model.prepare)).parameters


def _require_whole(weights: Tensor, backend: Weighing, model: Model) -> None:
    taker, why = type(backend).__name__, "since it draws a component for each copy of a row"
    mend = "Round the weights, or fit with SVI() or SmallVariance()."
    if backend.weighs:
        taker, why, mend = type(model).__name__, "since its documents are of whole words", "Round the weights."
    broken = torch.nonzero(weights != weights.round()).flatten()
    if len(broken):
        row = int(broken[0])
        raise ValueError(
            f"sample_weight is {float(weights[row]):g} in row {row}; {taker} takes whole numbers, {why}. {mend}"
        )
    if (total := float(weights.sum())) > _MOST_COPIES:
        raise ValueError(
            f"sample_weight adds up to {total:g} rows, and {taker} would see a copy for each; at most "
            f"{_MOST_COPIES:g} are accepted. Take smaller weights."
        )


_MOST_COPIES = 10**8
_WITHOUT: dict[type[Any], str] = {
    Sequences: "only rows that are exchangeable have weights, not the steps of sequences. Leave it out.",
    TaskData: "a row counts once in each of its tasks. Leave it out, or repeat rows of X and Y.",
}
