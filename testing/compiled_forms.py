"""The checks of compiled forms of likelihoods and losses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..inference.compiled._numba_losses import margins
from ..inference.compiled.decorators import entry_of
from ..inference.gibbs.scans.collapsed import PartitionSlots
from ..inference.gibbs.scans.slots import Compiled, Tensors
from ..inference.gibbs.state import PartitionState
from ..models import host
from ..models.compiled import compiled_loss, is_compiled, placed
from ..models.dpm import DPM
from ..models.likelihoods import ExponentialFamily
from ..models.losses import Loss, Masked
from .requirements import require, require_centered, require_close


def check_compiled_family(likelihood: ExponentialFamily, X: Tensor) -> None:
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
    _check_compiled_form(visitor, "")
    fill, moved = visitor.entry(visitor.kernels.fill), torch.cat([1 - labels[:half], labels[half:]])
    fill(visitor.state, labels[:half].numpy(), -1.0)
    fill(visitor.state, moved[:half].numpy(), 1.0)
    visitor.slots = PartitionSlots(replace(state, assignments=moved), data, model)
    _check_compiled_form(visitor, " after `shift`")
    if hasattr(rows := visitor.rows, "summed"):
        table = rows.summed(model.likelihood, visitor.slots.observed, moved, visitor.state.components.shape[1])
        shape = visitor.state.components.shape
        require(table.shape == shape, "summed", f"of the compiled form has shape {table.shape}; expected {shape}")
        visitor.state = placed(rows, table)
        _check_compiled_form(visitor, " after `summed`")


def _check_compiled_form(visitor: Compiled, when: str) -> None:
    exact = Tensors(visitor.slots)
    for n in range(len(visitor.slots.labels)):
        found, expected = (code.logits(n)[:3].log_softmax(0) for code in (visitor, exact))
        what = "log_predictives, log_normalizers of the compiled form"
        require_close(found, expected, what, f"differ from the tensor code{when}")


def check_compiled_loss(loss: Loss, generator: torch.Generator) -> None:
    """Compare the factor of the compiled form, if there is one, on rows of several scores with missing targets."""
    form = compiled_loss(loss)
    if form is None:
        return
    scores = 3 * torch.randn(200, 4, generator=generator, dtype=torch.float64, device=generator.device)
    signs = 2 * torch.eye(4, dtype=torch.float64, device=generator.device) - 1  # a row for each class
    y = signs.repeat(50, 1) if loss.target == "sign" else scores.roll(1, 0)
    y[::5, 0] = math.nan
    found = np.empty(len(y))
    entry_of(margins, form)(form, scores.cpu().numpy(), y.cpu().numpy(), found)
    exact = Masked(loss).log_factor(scores, y).sum(1).cpu()
    require_close(torch.from_numpy(found), exact, "log_factor", "of the compiled form is another")
    if hasattr(form, "observe"):
        _check_observed(loss, form, generator)


def _check_observed(loss: Loss, form: Any, generator: torch.Generator) -> None:
    """Require that pseudo-observations of the compiled form have the law of those of `augment`."""
    for score, y in ((-1.3, 1.0), (0.4, 1.0), (0.7, -1.0), (2.5, -1.0)):
        normal, uniform = (draw(2000, generator=generator, dtype=torch.float64) for draw in (torch.randn, torch.rand))
        pairs = zip((normal.abs() / 2).tolist(), uniform.tolist(), strict=True)
        found = torch.tensor([form.observe(score, y, *pair) for pair in pairs], dtype=torch.float64)
        scores = torch.full((2000, 1), score, dtype=torch.float64)
        exact = torch.cat(loss.augment(scores, torch.full_like(scores, y), generator), 1)
        gap = _bounded(found) - _bounded(exact)
        require_centered(gap, "observe", f"of the compiled form has another law than augment at score {score}, y {y:g}")


def _bounded(observations: Tensor) -> Tensor:
    """Bounded functions [n, 5] of precision and shift [n, 2], whose means exist under any law."""
    angles = observations.atan()
    return torch.cat([angles, angles.square(), angles.prod(1, keepdim=True)], 1)
