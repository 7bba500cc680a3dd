"""The common part of mixture models: the truncated Pyro program, and the methods that kernels call."""

from __future__ import annotations

from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
from torch import Tensor

from .base import Model, announced
from .data import Data
from .likelihoods import Parameters
from .priors import PartitionPrior
from .priors.sticks import log_stick_weights


class Mixture(Model):
    """Base class of mixture models. Kernels call the methods below on a *resolved* model (see `Model`).

    Shapes: N points, D columns, P features, C scores, T = `truncation` components.
    """

    data_type: ClassVar[type] = Data

    prior: PartitionPrior

    def data(self, X: Any, y: Any = None, weights: Tensor | None = None) -> Data:
        """The kernels' view of X [N, D] and y [N], each row counted `weights` [N] times; None: once."""
        return Data(X, self.features(X), self.targets(X, y), weights)

    def without_hyperplanes(self) -> Mixture:
        """The mixture model that remains as nu -> 0 if components repel; else the model itself."""
        return self

    @announced
    def program(self, data: Data) -> None:
        """The Pyro program of a resolved model.

        Sites: the prior's hyperparameters that are random, `sticks` [T-1], the family's own parameters [T, ...],
        `weights` [T, P, C], `assignments` [N] (enumerable in parallel), `X` (observed), and the factors `margin` and,
        in a model whose components repel, `rejection`.
        """
        sticks = self.prior.sample_sticks(self.truncation, data.features)
        parameters, weights = self.components(data.features, data.targets)
        with pyro.plate("data", data.num_data):
            assignments, own = sample_components(sticks, parameters)
            pyro.sample("X", self.likelihood.distribution(own), obs=data.X)
            scores = (data.features.unsqueeze(-1) * weights[assignments]).sum(-2)
            pyro.factor("margin", self.log_margin(scores, data.targets))
            if self.repels:
                pyro.factor("rejection", self.log_rejection(data.features @ weights.squeeze(-1).T))


def sample_components(sticks: Tensor, parameters: Parameters) -> tuple[Tensor, Parameters]:
    """Sample the site `assignments` [N], and select each point's parameters [N, ...] from those of T components."""
    law = dist.Categorical(logits=log_stick_weights(sticks))
    assignments = pyro.sample("assignments", law, infer={"enumerate": "parallel"})
    return assignments, {name: value[assignments] for name, value in parameters.items()}
