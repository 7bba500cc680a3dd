"""What all models are: parts, and the few questions that every backend asks of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import pyro
import pyro.distributions as dist
import torch
from pyro.poutine.runtime import effectful
from torch import Tensor

from .arrays import as_features
from .config import Config, resolved
from .losses import Hinge, Loss
from .sparse import Rows
from .targets import Target


def announced(program: Callable[[Any, Any], None]) -> Callable[..., None]:
    """A method `program(model, data)` that tells Pyro's handlers of its calls, by messages of the type "regbayes"."""
    return effectful(program, type="regbayes")


class Model(Config):
    """A model, built from a prior, a likelihood, a margin loss and a feature map.

    Kernels call its methods on a *resolved* model: one in which every None has been set from the data.

    Attributes
    ----------
    data_type : class of what the kernels see of a data set; it says which kernels and which posterior serve the model
    repels : whether every hyperplane sees every point (see `Hyperplanes`), or only those of its own component
    """

    data_type: ClassVar[type]
    repels: ClassVar[bool] = False

    likelihood: Any  # a `Likelihood`; our own kernels take an `ExponentialFamily` alone
    prior: Any
    truncation: int
    num_features: int | None

    # of a model without hyperplanes there is no score for a loss to act on
    loss: Loss = Hinge()
    weight_scale: float = 1.0
    classes: Tensor | None = None
    target: Target | None = None

    @property
    def coding(self) -> Target | None:
        """What y is: the object that encodes it and decodes scores; None of a model without labels."""
        return None

    def resolve(self, X: Any, y: Any = None, weights: Tensor | None = None) -> Self:
        """A copy with all data-dependent defaults set from X [N, D] and y [N]; checks arguments and data.

        A row counts `weights` [N] times, None: once. Resolving a resolved model changes nothing.
        """
        model = self.checked()
        X = model.as_rows(X, num_features=model.num_features)
        model.likelihood.admit(X)
        return model.replace(likelihood=resolved(model.likelihood, X, weights), num_features=X.shape[1])

    def resolve_targets(self, X: Rows, y: Any) -> Self:
        """A copy that knows the classes of y [N], or whatever else its target takes from them; see `Labelled`."""
        return self

    def prepare(self, X: Any, y: Any = None, lengths: Any = None) -> tuple[Self, Any]:
        """The resolved model and the kernels' view of what a user passes to `fit`."""
        raise NotImplementedError

    @property
    def takes_missing(self) -> bool:
        """Whether entries of X may be NaN, missing."""
        return False

    def as_rows(self, X: Any, **options: Any) -> Rows:
        """X [N, D] as `as_features` reads it with these options, NaN where an entry is missing and may be."""
        return as_features(X, missing=self.checked().takes_missing, **options)

    def features(self, X: Any) -> Tensor:
        """What the hyperplanes see [N, P] of the rows of X [N, D]: nothing, P = 0, without hyperplanes."""
        return X.new_zeros(len(X), 0)

    def targets(self, X: Any, y: Any = None) -> Tensor:
        """Targets [N, C] of the scores, NaN where one is missing; C = 0 without hyperplanes."""
        return X.new_zeros(len(X), 0)

    def log_margin(self, scores: Tensor, targets: Tensor) -> Tensor:
        """What a point adds to the log weight of a component, [...] from scores [..., C]; 0 without hyperplanes."""
        return scores.new_zeros(scores.shape[:-1])

    def log_rejection(self, scores: Tensor) -> Tensor:
        """What hyperplanes that repel say of a point apart from its own component, [N] from scores [N, K]."""
        return scores.new_zeros(len(scores))

    def components(self, features: Tensor, targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Sites of the Pyro program: parameters of the family [T, ...] and weights [T, P, C] of the hyperplanes."""
        with pyro.plate("components", self.truncation):
            parameters = self.likelihood.parameters(self.likelihood.prior(), pyro.sample)
            scale = features.new_full((features.shape[1], targets.shape[1]), self.weight_scale)
            weights = pyro.sample("weights", dist.Normal(torch.zeros_like(scale), scale).to_event(2))
        return parameters, weights
