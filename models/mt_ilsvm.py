"""The infinite latent SVM of many tasks: classifiers or regressions that share one binary projection of their inputs.

    pi ~ IBP(alpha),   z_dk ~ Bernoulli(pi_k)                                  dimensions d = 1..D, features k = 1..K
    eta_m ~ N(0, nu^2 I),   f_nm = eta_m^T [Z^T x_n; b_n],   factor phi(y_nm | f_nm)           rows n, tasks m = 1..M
    w_n ~ N(0, loading variance I),   x_n ~ N(offset + Z w_n, noise variance I)               with a `likelihood`

Rows of Z are dimensions of x, so that the prior's N is D here. b_n are inputs that the classifiers see as they are.
Rows of multi-label data have a target in each task, and their inputs count once; rows of other data often have a target
in one task only.
Source: Zhu, Chen & Xing, sections 4.3 and 4.4; docs/derivations/latent-features, "Tasks".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from .base import Model, announced, target_of
from .config import resolved
from .domains import Count, Positive, Truncation
from .feature_maps import AnyFeatureMap, Standardized
from .likelihoods import LinearGaussian
from .losses import Hinge, Loss, masked
from .multi_task import TaskData
from .priors import FeaturePrior, IndianBuffetProcess
from .priors.hyper import sample_hyper
from .sparse import SparseRows
from .sums import all_any
from .targets import Classes, Target, Tasks


@dataclass(eq=False)
class MultiTaskInfiniteLatentSVM(Model):
    """Tasks that share a binary projection of their inputs, learned with all of their margins.

    Targets are Y [N, M], a column for each task: labels of two classes, the same two in all tasks, or real numbers with
    a regression loss; NaN (or -1 among integers, unless the classes are -1 and +1) where a row has none. If each row
    belongs to one task, `by_task(y, tasks)` makes Y.

    Parameters
    ----------
    likelihood : of the inputs given the projection; None: only the margins shape it
    loss : margin loss of each task: a binary one, or one of real targets
    prior : over the projection, `IndianBuffetProcess` or `BetaBernoulli`
    preprocessing : a feature map of X for the projection; the rows of Z are its features. None: X as it is
    feature_map : what the classifiers see of X beside the projection: `Standardized`, or any callable from [N, D] to
        [N, P], with a constant feature 1 added; None: the constant alone
    weight_scale : nu > 0, prior standard deviation of the classifier weights
    truncation : K >= 2, number of features
    classes : the two labels, sorted [2]; None: those in the data
    num_features : width D of X; None: that of the data
    num_tasks : M; None: that of the data
    target : the kind of y of each task. None: two classes, or real numbers if the loss is one for these; `Ordinal()`:
        ordered classes, the same in all tasks

    References
    ----------
    Zhu, Chen & Xing (2014), sections 4.3 and 4.4.

    Examples
    --------
    >>> from regbayes.models import EpsilonInsensitive, MultiTaskInfiniteLatentSVM
    >>> MultiTaskInfiniteLatentSVM(loss=EpsilonInsensitive(epsilon=0.2)).get_params()["loss__epsilon"]
    0.2
    """

    data_type: ClassVar[type] = TaskData
    num_constants: ClassVar[int] = 1

    likelihood: LinearGaussian | None = None
    loss: Loss = field(default_factory=Hinge)
    prior: FeaturePrior = field(default_factory=IndianBuffetProcess)
    preprocessing: AnyFeatureMap | None = field(default_factory=lambda: Standardized(intercept=0.0))
    feature_map: AnyFeatureMap | None = None
    weight_scale: Positive = 1.0
    truncation: Truncation = 20
    classes: Annotated[Tensor, Classes()] | None = None
    num_features: Count | None = None
    num_tasks: Count | None = None
    target: Target | None = None

    @property
    def coding(self) -> Tasks:
        return Tasks(target_of(self.target, self.loss, self.classes), self.num_tasks)

    def checked(self, name: str = "") -> Self:
        model = super().checked(name)
        if model.loss.meets:
            raise ValueError(
                f"{name}loss is {type(model.loss).__name__}, which joins several classes; expected a loss of one "
                "score, such as Hinge() or EpsilonInsensitive(). Give each class a task of its own."
            )
        if model.classes is not None and model.coding.each.num_scores != 1:
            raise ValueError(f"{name}classes is {model.classes.tolist()}; expected two labels, the same in all tasks.")
        return model

    def resolve(self, X: Any, y: Any = None, weights: Tensor | None = None) -> Self:
        self.require_targets(y)
        model: Any = self.checked()
        rows = self.as_rows(X, num_features=model.num_features)
        values = model.coding.values(y, rows)
        model = model.replace(classes=model.coding.find_classes(values, rows), num_tasks=values.shape[1])
        if model.coding.each.num_scores != 1:
            raise ValueError(
                f"y has the labels {model.classes.tolist()}; expected two, the same in all tasks. Give each class a "
                "task of its own."
            )
        model = model.replace(num_features=rows.shape[1]).resolve_feature_map(rows)
        if model.preprocessing is not None:
            model = model.replace(preprocessing=resolved(model.preprocessing, rows))
        if model.likelihood is not None:
            model = model.replace(likelihood=model.likelihood.resolve(model.preprocessed(rows)))
        loss, missing = model.coding.factor(model.loss), all_any(model.targets(rows, y).isnan())
        return model.replace(loss=masked(loss) if missing else loss)

    def data(self, X: Any, y: Any = None) -> TaskData:
        """The kernels' view of X [N, D] and targets y [N, M]."""
        rows = self.as_rows(X, num_features=self.num_features)
        return TaskData(self.preprocessed(rows), self.features(rows), self.targets(rows, y), rows)

    def preprocessed(self, X: Any) -> Tensor:
        """The rows [N, D'] that the projection sees, from the rows of X [N, D]."""
        return X if self.preprocessing is None else self.preprocessing(X)

    def as_rows(self, X: Any, **options: Any) -> Tensor:
        """X [N, D] as `as_features` reads it with these options; ValueError if it is sparse."""
        rows = super().as_rows(X, **options)
        if isinstance(rows, SparseRows):
            raise ValueError("X is sparse; MultiTaskInfiniteLatentSVM needs dense rows: pass X.toarray().")
        return rows

    def readable(self, X: Any, lengths: Any = None) -> Tensor:
        return self.as_rows(X, num_features=self.num_features, min_rows=self.min_rows)

    def targets(self, X: Any, y: Any = None) -> Tensor:
        """Targets [N, M] in the dtype of X [N, D], as the loss takes them; NaN where a row has no target."""
        return self.coding.encode(y, X)

    def scores(self, projected: Tensor, inputs: Tensor, weights: Tensor) -> Tensor:
        """f = eta^T [Z^T x; b], [N, M], of projected rows [N, K], inputs [N, P] and weights [K + P, M]."""
        K = projected.shape[-1]
        return projected @ weights[:K] + inputs @ weights[K:]

    @announced
    def program(self, data: TaskData) -> None:
        """The Pyro program of a resolved model.

        Sites: the hyperparameters of the prior that are random, `sticks` [K] (or `probabilities`), `weights`
        [K + P, M], `features` [D, K], the factor `margin` [N]; with a likelihood also its random hyperparameters,
        `loadings` [N, K] and `X` (observed).
        """
        X, K = data.X, self.truncation
        pi = self.prior.probabilities(self.prior.sample(X), K)
        weights = self.sample_weights(X, K + data.inputs.shape[1], data.num_tasks)
        with pyro.plate("dimensions", X.shape[1]):
            features = pyro.sample("features", dist.Bernoulli(pi.expand(X.shape[1], K)).to_event(1))
        if self.likelihood is not None:
            self._generate(self.likelihood, X, features)
        with pyro.plate("margins", data.num_data):
            pyro.factor("margin", self.log_margin(self.scores(X @ features, data.inputs, weights), data.targets))

    def _generate(self, likelihood: LinearGaussian, X: Tensor, features: Tensor) -> None:
        h = sample_hyper(likelihood, X)
        scale = h["loading_precision"].rsqrt().to(X).expand(len(X), features.shape[1])
        with pyro.plate("data", len(X)):
            loadings = pyro.sample("loadings", dist.Normal(torch.zeros_like(scale), scale).to_event(1))
            pyro.sample("X", likelihood.distribution(loadings @ features.T, h).to_event(1), obs=X)
