"""Batches of rows and label sets that come one after another: a variational posterior goes on from where it stands.

A batch of n rows after M others is a stochastic step with N = M + n points, of which the batch stands for all, and of
size (N / n + delay)^-forgetting (docs/derivations/label-sets, "Variational inference"; Hoffman et al. 2013). What the
posterior holds is all that
is needed, so the rows of earlier batches may be gone, and a saved posterior goes on as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ....models.bnmc import BNMC
from ....models.domains import shown
from ....models.label_data import LabelData
from ...classifiers.natural import prior
from ...posterior.multi_label import MultiLabelPosterior
from ..backend import SVI
from ..steps import Minibatch
from ..sums import Sums
from . import kernel
from .coupled import CoupledLabels
from .kernel import VariationalLabels


def continue_fit(posterior: MultiLabelPosterior, X: Any, y: Any) -> MultiLabelPosterior:
    """The posterior after one more batch of rows X [n, D] and labels y [n, C], NaN where one is missing.

    Its assignments are those of the batch. Defaults that came from the first rows stay, `label_rates` too.

    Raises
    ------
    ValueError    unless the posterior is of `BNMC` by `SVI`, or if the batch has other columns.
    """
    if not isinstance(posterior, MultiLabelPosterior) or not isinstance(posterior.backend, SVI):
        raise ValueError(
            f"posterior is {shown(posterior)}, which cannot go on with another batch; that of BNMC by SVI() can."
        )
    backend, X = posterior.backend, posterior.checked(X)
    model: BNMC = posterior.model.accepting(X, y)
    data = model.data(X, y)
    steps = kernel.steps_of(model)
    assert steps.stochastic is not None
    seen = float(posterior.samples["num_seen"]) + data.num_data
    scale = seen / data.num_data
    step = (scale + backend.delay) ** -backend.forgetting
    state = steps.stochastic.sweep(_restored(posterior, model, data), Minibatch(data, scale), model, step)
    bound, state = state.bound, steps.complete(state, data, model)
    draw = {**steps.draw(state, data, model), "num_seen": torch.tensor([seen], dtype=torch.float64)}
    samples = {name: value.unsqueeze(0) for name, value in draw.items()}
    values = torch.cat([posterior.trace.values, bound.cpu().double().reshape(1, 1)], 1)
    seconds = torch.cat([posterior.trace.seconds, posterior.trace.seconds[:, -1:]], 1)
    trace = replace(posterior.trace, values=values, seconds=seconds)
    return MultiLabelPosterior(model, backend, samples, [1], trace, posterior.metadata)


def _restored(posterior: MultiLabelPosterior, model: BNMC, data: LabelData) -> Any:
    """The factors that a posterior holds, without rows."""
    kept = {name: value[0] for name, value in posterior.samples.items()}
    sticks = kept["sticks"]
    T, C = model.truncation, data.targets.shape[1]
    own = prior(T, 0, 0, model.weight_scale, data.features)  # components have no classifiers
    values: dict[str, Any] = {
        **Sums(model.family, data.points.rows(slice(0, 0)), T, keep=True).fields(),
        "mean": own.mean,
        "precision_tril": own.precision_tril,
        "hyperparameters": kept["hyperparameters"],
        "bound": sticks.new_zeros(()),
        "sticks": sticks,
        "q": kept["prior_factor"],
        "label_mean": kept["classifiers"].unsqueeze(0),
        "label_tril": kept["classifier_tril"].unsqueeze(0),
    }
    labels = kept["label_hyperparameters"]
    if not model.is_coupled:
        values["hyperparameters"] = torch.cat([kept["hyperparameters"], labels], 1)
        return VariationalLabels(**values, margin_bound=sticks.new_zeros(()))
    rows: dict[str, Any] = dict.fromkeys(("row_precision", "row_shift"), data.features.new_zeros(0, C))
    return CoupledLabels(**values, **rows, psi=labels, told=labels.new_zeros(T, 2 * C, dtype=torch.float64))
