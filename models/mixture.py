"""What the Dirichlet process mixtures share: the truncated Pyro program, and what kernels ask of a model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from .arrays import as_features
from .config import Config
from .likelihoods.base import Likelihood
from .losses.base import Loss
from .priors.dirichlet_process import log_stick_weights

__all__ = ["Data", "Mixture", "check_hyperparameters", "resolve_likelihood"]


@dataclass(frozen=True)
class Data:
    """What the kernels see: N points, D features, P classifier features, C scores."""

    X: Tensor  # [N, D]
    features: Tensor  # [N, P]
    targets: Tensor  # [N, C]: -1 / +1 for each class score, or one real target

    @property
    def num_data(self) -> int:
        return self.X.shape[0]

    @cached_property
    def nonzeros(self) -> tuple[Tensor, Tensor, Tensor]:
        """X in compressed rows: row n has values[starts[n] : starts[n + 1]] in the columns of the same places."""
        row, columns = self.X.nonzero(as_tuple=True)
        starts = torch.searchsorted(row, torch.arange(self.num_data + 1, device=row.device))
        return starts, columns, self.X[row, columns]

    def rows(self, index: Tensor | slice) -> Data:
        """The data of some rows."""
        return Data(self.X[index], self.features[index], self.targets[index])


class Mixture(Config):
    """What the DP mixture models share: the truncated Pyro program and what the kernels ask of a model.

    Kernels call the methods below on a *resolved* model: one in which every None has been set from the data.
    """

    structure = "partition"
    repels = False  # classifiers see the points of their own component only; True: see `Hyperplanes`

    likelihood: Likelihood
    concentration: float
    concentration_prior: tuple[float, float] | None
    truncation: int
    loss: Loss
    weight_scale: float
    classes: Tensor | None
    num_features: int | None

    def resolve(self, X: Any, y: Any = None) -> Self:
        """A copy with all data-dependent defaults set from X [N, D] and y [N]; checks arguments and data.

        Resolving a resolved model changes nothing.
        """
        raise NotImplementedError

    def features(self, X: Tensor) -> Tensor:
        """Classifier features [N, P] of the rows of X."""
        raise NotImplementedError

    def targets(self, X: Tensor, y: Any) -> Tensor:
        """Targets [N, C] of the labels y [N]."""
        raise NotImplementedError

    def data(self, X: Tensor, y: Any = None) -> Data:
        """The kernels' view of X and y."""
        return Data(X, self.features(X), self.targets(X, y))

    def prepare(self, X: Any, y: Any = None, lengths: Any = None) -> tuple[Self, Data]:
        """The resolved model and the kernels' view of what a user passes to `fit`."""
        if lengths is not None:
            raise ValueError(f"{type(self).__name__} has no sequences: leave lengths out, or use IHMM or DIH.")
        X = as_features(X, min_rows=2)
        model = self.resolve(X, y)
        return model, model.data(X, y)

    def log_margin(self, scores: Tensor, targets: Tensor) -> Tensor:
        """log phi(y | f) [...] of scores [..., C]: the terms of all classes together."""
        return self.loss.log_factor(scores, targets).sum(-1)

    def log_rejection(self, scores: Tensor) -> Tensor:
        """What the hyperplanes of a model that `repels` say of a point apart from its own component, [N]."""
        return scores.new_zeros(len(scores))

    def __call__(self, X: Any, y: Any = None) -> None:
        """The Pyro program on the truncated model: `program` of the resolved model on its data."""
        X = as_features(X)
        model = self.resolve(X, y)
        model.program(model.data(X, y))

    def program(self, data: Data) -> None:
        """The Pyro program of a resolved model.

        Sites: `concentration` (with a prior only), `sticks` [T-1], the family's own parameters [T, ...],
        `weights` [T, P, C], `assignments` [N] (enumerable in parallel), `X` (observed), and the factors `margin` and,
        in a model whose components repel, `rejection`.
        """
        X = data.X
        concentration = X.new_tensor(self.concentration)
        if self.concentration_prior is not None:
            shape, rate = self.concentration_prior
            concentration = pyro.sample("concentration", dist.Gamma(X.new_tensor(shape), X.new_tensor(rate)))
        with pyro.plate("sticks_plate", self.truncation - 1):
            sticks = pyro.sample("sticks", dist.Beta(X.new_ones(()), concentration))
        with pyro.plate("components", self.truncation):
            parameters = self.likelihood.parameters(self.likelihood.prior(), pyro.sample)
            scale = X.new_full((data.features.shape[1], data.targets.shape[1]), self.weight_scale)
            weights = pyro.sample("weights", dist.Normal(torch.zeros_like(scale), scale).to_event(2))
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


def check_hyperparameters(model: Any) -> None:
    """Raise ValueError that names a hyperparameter outside its domain."""
    positive = {"concentration": model.concentration, "weight_scale": getattr(model, "weight_scale", 1.0)}
    losses = ("loss__strength", "loss__margin", "loss__loss__strength", "loss__loss__margin")
    positive |= {name: value for name, value in model.get_params().items() if name in losses}
    for name, value in positive.items():
        if not (isinstance(value, int | float) and 0 < value < float("inf")):
            raise ValueError(f"{name} is {value!r}; it must be a positive number.")
    intercept = getattr(model, "intercept", 0.0)
    epsilon = getattr(getattr(model, "loss", None), "epsilon", 0.0)
    if not (isinstance(epsilon, int | float) and 0 <= epsilon < float("inf")):
        raise ValueError(f"loss__epsilon is {epsilon!r}; it must be a number of at least 0.")
    if not 0 <= intercept < float("inf"):
        raise ValueError(f"intercept is {intercept!r}; it must be a number of at least 0 (0: no intercept).")
    if not (isinstance(model.truncation, int) and model.truncation >= 2):
        raise ValueError(f"truncation is {model.truncation!r}; it must be an integer of at least 2.")
    if model.concentration_prior is not None and not all(value > 0 for value in model.concentration_prior):
        raise ValueError(f"concentration_prior is {model.concentration_prior!r}; expected (shape > 0, rate > 0).")


def resolve_likelihood(likelihood: Likelihood, X: Tensor) -> Likelihood:
    """The family with its defaults set from the data, after checking its support."""
    likelihood.check(X)
    return likelihood.resolve(X)
