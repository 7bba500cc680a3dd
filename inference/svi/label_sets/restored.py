"""The factors of rows and label sets that a posterior holds, from which another batch goes on."""

from __future__ import annotations

from typing import Any

import torch

from ....models.bnmc import BNMC
from ....models.label_data import LabelData
from ...classifiers.natural import prior
from ...running.engine import Draw
from ..partition.kernel import restored_fields
from .coupled import CoupledLabels
from .kernel import VariationalLabels


def restored_labels(kept: Draw, data: LabelData, model: BNMC) -> VariationalLabels | CoupledLabels:
    """The state that a draw was made of, without rows."""
    T, C = model.truncation, data.targets.shape[1]
    own = prior(T, 0, 0, model.weight_scale, data.features)  # components have no classifiers
    values: dict[str, Any] = {
        **restored_fields(kept, data.points, model.family, T),
        "mean": own.mean,
        "precision_tril": own.precision_tril,
        "label_mean": kept["classifiers"].unsqueeze(0),
        "label_tril": kept["classifier_tril"].unsqueeze(0),
    }
    labels = kept["label_hyperparameters"]
    if not model.is_coupled:
        values["hyperparameters"] = torch.cat([kept["hyperparameters"], labels], 1)
        return VariationalLabels(**values, margin_bound=values["bound"])
    rows: dict[str, Any] = dict.fromkeys(("row_precision", "row_shift"), data.features.new_zeros(0, C))
    return CoupledLabels(**values, **rows, psi=labels, told=labels.new_zeros(T, 2 * C, dtype=torch.float64))
