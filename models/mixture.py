"""What the mixture models share: the truncated Pyro program, and what kernels ask of a model."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import pyro
import pyro.distributions as dist
from torch import Tensor

from .base import Model, announced
from .data import Data
from .priors import PartitionPrior
from .priors.sticks import log_stick_weights


class Mixture(Model):
    """What the mixture models share. Kernels call the methods below on a *resolved* model (see `Model`).

    Shapes: N points, D columns, P features, C scores, T = `truncation` components.
    """

    data_type: ClassVar[type] = Data

    prior: PartitionPrior

    def data(self, X: Any, y: Any = None, weights: Tensor | None = None) -> Data:
        """The kernels' view of X [N, D] and y [N], each row counted `weights` [N] times; None: once."""
        return Data(X, self.features(X), self.targets(X, y), weights)

    def prepare(
        self, X: Any, y: Any = None, lengths: Any = None, *, weights: Tensor | None = None
    ) -> tuple[Self, Data]:
        """The resolved model and the kernels' view of what a user passes to `fit`; weights [N] as in `Data`."""
        if lengths is not None:
            raise ValueError(f"{type(self).__name__} has no sequences: leave lengths out, or use IHMM or DIH.")
        X = self.as_rows(X, min_rows=2)
        model = self.resolve(X, y, weights)
        return model, model.data(X, y, weights)

    def log_margin(self, scores: Tensor, targets: Tensor) -> Tensor:
        """log phi(y | f) [...] of scores [..., C]: the terms of all classes together."""
        return self.loss.log_factor(scores, targets).sum(-1)

    def without_hyperplanes(self) -> Mixture:
        """The mixture that is left for nu -> 0 where components repel; else the model itself."""
        return self

    def __call__(self, X: Any, y: Any = None) -> None:
        """The Pyro program on the truncated model: `program` of the resolved model on its data."""
        X = self.as_rows(X)
        model = self.resolve(X, y)
        model.program(model.data(X, y))

    @announced
    def program(self, data: Data) -> None:
        """The Pyro program of a resolved model.

        Sites: the prior's hyperparameters that have a law, `sticks` [T-1], the family's own parameters [T, ...],
        `weights` [T, P, C], `assignments` [N] (enumerable in parallel), `X` (observed), and the factors `margin` and,
        in a model whose components repel, `rejection`.
        """
        X, T = data.X, self.truncation
        a, b = self.prior.sticks(self.prior.sample(data.features), T)
        with pyro.plate("sticks_plate", T - 1):
            sticks = pyro.sample("sticks", dist.Beta(a, b))
        parameters, weights = self.components(data.features, data.targets)
        with pyro.plate("data", data.num_data):
            log_mixture = log_stick_weights(sticks)
            assignments = pyro.sample(
                "assignments", dist.Categorical(logits=log_mixture), infer={"enumerate": "parallel"}
            )
            own = {name: value[assignments] for name, value in parameters.items()}
            pyro.sample("X", self.likelihood.distribution(own), obs=X)
            scores = (data.features.unsqueeze(-1) * weights[assignments]).sum(-2)
            pyro.factor("margin", self.log_margin(scores, data.targets))
            if self.repels:
                pyro.factor("rejection", self.log_rejection(data.features @ weights.squeeze(-1).T))
