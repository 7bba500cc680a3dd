"""The check of a likelihood's compiled form."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..inference.gibbs.scans.collapsed import PartitionSlots
from ..inference.gibbs.scans.slots import Compiled, Tensors
from ..inference.gibbs.state import PartitionState
from ..models import host
from ..models.compiled import is_compiled, placed
from ..models.dpm import DPM
from ..models.likelihoods import ExponentialFamily
from .requirements import require_close


def check_compiled(likelihood: ExponentialFamily, X: Tensor) -> None:
    """Compare the compiled form, if there is one, with the tensor code on rows X [N, D].

    The predictives of a row must agree in its own component, in another one and in a new one, also after rows have been
    moved between components and after components have been summed at once.
    """
    if not (is_compiled(likelihood) and host.on_cpu(X)):
        return
    model = DPM(likelihood).resolve(X)
    data, labels, half = model.data(X), torch.arange(len(X)) % 2, len(X) // 2
    state = PartitionState(labels, X.new_zeros(2, 0, 0), model.prior.start(X))
    visitor = Compiled(PartitionSlots(state, data, model))
    _check_visits(visitor, "")
    fill, moved = visitor.entry(visitor.kernels.fill), torch.cat([1 - labels[:half], labels[half:]])
    fill(visitor.state, labels[:half].numpy(), -1.0)
    fill(visitor.state, moved[:half].numpy(), 1.0)
    visitor.slots = PartitionSlots(replace(state, assignments=moved), data, model)
    _check_visits(visitor, " after `shift`")
    if hasattr(rows := visitor.rows, "summed"):
        table = rows.summed(model.likelihood, visitor.slots.observed, moved, visitor.state.components.shape[1])
        visitor.state = placed(rows, table)
        _check_visits(visitor, " after `summed`")


def _check_visits(visitor: Compiled, when: str) -> None:
    exact = Tensors(visitor.slots)
    for n in range(len(visitor.slots.labels)):
        found, expected = (code.logits(n)[:3].log_softmax(0) for code in (visitor, exact))
        what = "log_predictives, log_normalizers of the compiled form"
        require_close(found, expected, what, f"differ from the tensor code{when}")
