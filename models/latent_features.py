"""The common part of latent feature models: the kernels' view of a data set, and the truncated Pyro program.

    pi ~ prior,   z_nk ~ Bernoulli(pi_k),   w_k ~ N(0, loading variance I),   x_n ~ p(. | W^T z_n)          k = 1..K
    eta_c ~ N(0, nu^2 I),   factor phi(y_n | eta^T [z_n; b_n])                                          n = 1..N

Sources: Griffiths & Ghahramani (2011); Zhu, Chen & Xing, section 4.2; docs/derivations/latent-features, "Joint
density".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from .arrays import as_incomplete
from .base import Model, announced
from .data import RowData
from .distributions.bits import Bits
from .likelihoods import LinearLikelihood
from .priors import FeaturePrior
from .priors.hyper import sample_hyper
from .sparse import Rows
from .sums import all_any, all_sum


@dataclass(frozen=True, eq=False)
class FeatureData(RowData):
    """What kernels see of N rows of D columns: P inputs of the classifiers beside the latent features, C scores."""

    X: Tensor  # [N, D]; 0 where an entry is missing
    inputs: Tensor  # [N, P]
    targets: Tensor  # [N, C]: -1 / +1 for each class score, or one real target; NaN where it is missing
    observed: Tensor | None = None  # [N, D] of 0 and 1 in the dtype of X; None: all entries are
    weights: Tensor | None = None  # [N] > 0, how many times each row counts; None: once

    follow: ClassVar[tuple[str, ...]] = ("inputs",)

    @cached_property
    def row_weights(self) -> Tensor:
        """The row weights r_n [N, 1] in the dtype of X; 1 without weights."""
        return torch.ones_like(self.X[:, :1]) if self.weights is None else self.weights.to(self.X).unsqueeze(1)

    @cached_property
    def counted(self) -> Tensor:
        """The weight of each entry, [N, 1] or [N, D], 0 where it is missing."""
        return self.row_weights if self.observed is None else self.row_weights * self.observed


class FeatureModel(Model):
    """Base class of latent feature models. Kernels call the methods below on a *resolved* model (see `Model`).

    Shapes: N rows, D columns, K = `truncation` features, P inputs of the classifiers, C scores (0 without classifiers).
    """

    data_type: ClassVar[type] = FeatureData

    likelihood: LinearLikelihood
    prior: FeaturePrior

    def resolve(self, X: Any, y: Any = None, weights: Tensor | None = None) -> Self:
        """As `Model.resolve`; NaN in X [N, D] is a missing entry."""
        model = self.checked()
        rows, observed = model.read(X)
        model.likelihood.admit(rows, observed)
        if observed is not None and (empty := all_sum(observed.double().sum(0)) == 0).any():
            columns = torch.nonzero(empty).flatten().tolist()
            raise ValueError(f"Columns {columns} of X have no entry that is not NaN. Drop them.")
        likelihood = model.likelihood.resolve(rows, weights, observed)
        model = model.replace(likelihood=likelihood, num_features=rows.shape[1])
        if observed is not None and model.feature_map is not None:
            model.require_missing()
            rows = _at_means(rows, observed if weights is None else observed * weights.to(rows).unsqueeze(1))
        return model.resolve_feature_map(rows, weights)

    def require_missing(self) -> None:
        """Raise ValueError unless the feature map computes each feature from one column, as missing entries need."""
        if self.feature_map is not None and not self.feature_map.column_wise:
            raise ValueError(
                f"X has missing entries (NaN), and {type(self.feature_map).__name__} needs them all: impute them, or "
                "take feature_map=Standardized()."
            )

    def features(self, X: Any) -> Tensor:
        """The features [N, P] that classifiers see of X [N, D]; 0, the mean, for a missing entry (NaN)."""
        found = super().features(X)
        return found if self.feature_map is None or not isinstance(X, Tensor) else found.masked_fill(found.isnan(), 0.0)

    def as_rows(self, X: Any, **options: Any) -> Rows:
        """X [N, D] as `as_incomplete` reads it with these options, NaN where an entry is missing."""
        rows, observed = as_incomplete(X, **options)
        return rows if observed is None else rows.masked_fill(observed == 0, torch.nan)

    def read(self, X: Any) -> tuple[Rows, Tensor | None]:
        """Rows [N, D] of X with 0 for missing entries, and `observed`: None if no rank has missing entries."""
        rows, observed = as_incomplete(X, num_features=self.num_features)
        some = all_any(torch.tensor(observed is not None, device="cpu"))
        return rows, torch.ones_like(rows) if some and observed is None else observed

    def readable(self, X: Any, lengths: Any = None) -> Rows:
        rows, observed = as_incomplete(X, num_features=self.num_features, min_rows=self.min_rows)
        self.likelihood.admit(rows, observed)
        return rows

    def data(self, X: Any, y: Any = None, weights: Tensor | None = None) -> FeatureData:
        """The kernels' view of X [N, D], NaN where missing, and y [N], rows counted `weights` [N] times."""
        rows, observed = self.read(X)
        inputs = self.features(rows if observed is None else rows.masked_fill(observed == 0, torch.nan))
        return FeatureData(rows, inputs, self.targets(rows, y), observed, weights)

    def scores(self, features: Tensor, inputs: Tensor, weights: Tensor) -> Tensor:
        """f = eta^T [z; b], [..., N, C], of features [..., N, K], inputs [N, P] and weights [K + P, C]."""
        K = features.shape[-1]
        return features @ weights[:K] + inputs @ weights[K:]

    @announced
    def program(self, data: FeatureData) -> None:
        """The Pyro program of a resolved model.

        Sites: the hyperparameters of prior and likelihood that are random, `sticks` [K] (or `probabilities`),
        `loadings` [K, D], `weights` [K + P, C], `features` [N, K] (enumerable in parallel), `X` (observed), and
        the factor `margin`.
        """
        X, K, D = data.X, self.truncation, data.X.shape[1]
        pi, h = self.prior.probabilities(self.prior.sample(X), K), sample_hyper(self.likelihood, X)
        scale = self.likelihood.loading_precision(h, D).to(X).rsqrt().expand(K, D)
        loadings = pyro.sample("loadings", dist.Normal(torch.zeros_like(scale), scale).to_event(2))
        weights = self.sample_weights(X, K + data.inputs.shape[1], data.targets.shape[1])
        with pyro.plate("data", data.num_data):
            features = pyro.sample("features", Bits(pi.expand(data.num_data, K)), infer={"enumerate": "parallel"})
            entries = self.likelihood.distribution(features @ loadings, h)
            if data.observed is not None:
                entries = entries.mask(data.observed.bool())
            pyro.sample("X", entries.to_event(1), obs=X)
            pyro.factor("margin", self.log_margin(self.scores(features, data.inputs, weights), data.targets))


def _at_means(X: Tensor, counted: Tensor) -> Tensor:
    """X [N, D] with the mean of its column for each entry whose weight `counted` [N, D] is 0."""
    total, number = all_sum(torch.stack([(X * counted).double().sum(0), counted.double().sum(0)]))
    return torch.where(counted == 0, (total / number).to(X.dtype), X)
