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
from .feature_maps import FeatureMap
from .html import model_html
from .losses import Hinge, Loss, masked
from .sparse import Rows
from .sums import all_any, among, ranks
from .targets import Binary, EachClass, Ordinal, Real, Target


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
    num_constants : how many constants hyperplanes see in place of a feature map
    min_rows : the fewest rows of a fit
    """

    data_type: ClassVar[type]
    repels: ClassVar[bool] = False
    num_constants: ClassVar[int] = 0
    min_rows: ClassVar[int] = 2

    likelihood: Any  # a `Likelihood`; our own kernels take an `ExponentialFamily` alone
    prior: Any
    truncation: int
    num_features: int | None

    # of a model without hyperplanes there is no score for a loss to act on
    loss: Loss = Hinge()
    weight_scale: float = 1.0
    feature_map: FeatureMap | None = None
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
        X = model.as_rows(X, num_features=model.num_features, min_rows=_fewest())
        model.likelihood.admit(X)
        model = model.replace(likelihood=resolved(model.likelihood, X, weights), num_features=X.shape[1])
        return model.resolve_feature_map(X, weights)

    def admit(self, X: Any, y: Any = None, lengths: Any = None) -> tuple[Rows, Rows | None]:
        """The rows [N, D] of X and the values of y as they are read, None of none; raises where a fit takes no such row
        or value, whatever others there are."""
        rows = self.readable(X, lengths)
        if y is None or self.coding is None:
            return rows, None
        values = self.coding.values(y, rows)
        known = values.to_dense().flatten()
        if self.classes is None:  # some rows may have one class alone, or no label
            known = torch.cat([known, known.new_tensor([0, 1])])
        with among(None):
            self.coding.find_classes(known, rows)
        return rows, values

    def readable(self, X: Any, lengths: Any = None) -> Rows:
        """The rows [N, D] of X; raises unless each is one that a fit takes."""
        rows = self.as_rows(X, num_features=self.num_features, min_rows=self.min_rows)
        self.likelihood.admit(rows)
        return rows

    def resolve_feature_map(self, X: Rows, weights: Tensor | None = None) -> Self:
        """A copy whose feature map, if there is one, holds what it takes from the rows of X [N, D]."""
        if self.feature_map is None:
            return self
        return self.replace(feature_map=resolved(self.feature_map, X, weights))

    def resolve_targets(self, X: Rows, y: Any) -> Self:
        """A copy that knows the classes of y [N], or whatever else its target takes from them; see `Labelled`."""
        return self

    def require_targets(self, y: Any) -> None:
        """Raise ValueError if there is no y at all."""
        if y is None:
            raise ValueError(f"{type(self).__name__} needs targets: requires y to be passed, but the target y is None.")

    def data(self, X: Any, y: Any = None) -> Any:
        """The kernels' view of the rows of X [N, D] and of y. A model whose rows may count more than once takes a
        further argument `weights` [N]."""
        raise NotImplementedError

    def prepare(self, X: Any, y: Any = None, lengths: Any = None, **weights: Tensor) -> tuple[Self, Any]:
        """The resolved model and the kernels' view of what a user passes to `fit`; weights [N] if `data` has them."""
        if lengths is not None:
            raise ValueError(f"{type(self).__name__} has no sequences: leave lengths out, or use IHMM or DIH.")
        X = self.as_rows(X, min_rows=self.min_rows)
        model = self.resolve(X, y, **weights)
        return model, model.data(X, y, **weights)

    def __call__(self, X: Any, y: Any = None) -> None:
        """The Pyro program on the truncated model: `program` of the resolved model on its data."""
        X = self.as_rows(X)
        model = self.resolve(X, y)
        model.program(model.data(X, y))

    def program(self, data: Any) -> None:
        """The Pyro program of a resolved model on its data."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return model_html(self)

    @property
    def takes_missing(self) -> bool:
        """Whether entries of X may be NaN, missing."""
        return False

    def as_rows(self, X: Any, **options: Any) -> Rows:
        """X [N, D] as `as_features` reads it with these options, NaN where an entry is missing and may be."""
        return as_features(X, missing=self.checked().takes_missing, **options)

    def features(self, X: Any) -> Tensor:
        """What the hyperplanes see [N, P] of the rows of X [N, D]: nothing, P = 0, without hyperplanes."""
        return X.new_ones(len(X), self.num_constants) if self.feature_map is None else self.feature_map(X)

    def targets(self, X: Any, y: Any = None) -> Tensor:
        """Targets [N, C] of the scores, NaN where one is missing; C = 0 without hyperplanes."""
        return X.new_zeros(len(X), 0)

    def log_margin(self, scores: Tensor, targets: Tensor) -> Tensor:
        """log phi(y | f) [...] of scores [..., C]: the terms of all scores together; 0 without hyperplanes."""
        factors = self.loss.log_factor(scores, targets)
        return factors.squeeze(-1) if factors.shape[-1] == 1 else factors.sum(-1)  # a sum over one is a slow copy

    def log_rejection(self, scores: Tensor) -> Tensor:
        """What hyperplanes that repel say of a point apart from its own component, [N] from scores [N, K]."""
        return scores.new_zeros(len(scores))

    def components(self, features: Tensor, targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Sites of the Pyro program: parameters of the family [T, ...] and weights [T, P, C] of the hyperplanes."""
        with pyro.plate("components", self.truncation):
            parameters = self.likelihood.parameters(self.likelihood.prior(), pyro.sample)
            weights = self.sample_weights(features, features.shape[1], targets.shape[1])
        return parameters, weights

    def sample_weights(self, like: Tensor, num_features: int, num_scores: int) -> Tensor:
        """The site `weights` [P, C] of the Pyro program, within a plate [T, P, C], in the dtype of `like` [...]."""
        scale = like.new_full((num_features, num_scores), self.weight_scale)
        return pyro.sample("weights", dist.Normal(torch.zeros_like(scale), scale).to_event(2))


def target_of(target: Target | None, loss: Loss, classes: Tensor | None) -> Target:
    """The target of a model with these classes [L], None: not known yet. A target of None is what the loss asks for: a
    real number, one score of two or of ordered classes, or a score for each class.

    Raises
    ------
    ValueError    on a target of many columns: a row of such a model has one y.
    """
    if target is None:
        binary = loss.binary and (classes is None or len(classes) == 2)
        kinds: dict[str, type[Target]] = {"real": Real, "level": Ordinal, "sign": Binary if binary else EachClass}
        target = kinds[loss.target]()
    if target.is_matrix:
        raise ValueError(
            f"target is {target!r}, whose y is a matrix; a row of this model has one y, as for Ordinal(). Leave it "
            "out. BNMC() takes sets of labels, and MultiTaskInfiniteLatentSVM() many tasks."
        )
    return target.of(classes)


def coding_of(model: Any) -> Target | None:
    """What the y of a model of any structure is; None if it has none."""
    found: Target | None = getattr(model, "coding", None)
    return found


def with_factor(model: Any) -> Any:
    """A model whose loss is as kernels read it on the targets of the model's y; of one without labels the same."""
    coding = coding_of(model)
    return model if coding is None else model.replace(loss=coding.factor(model.loss))


class Labelled:
    """A mixin for models with fields `loss`, `classes` and `target`, which are resolved from y.

    A missing target is NaN in y, or -1 among integer labels (unless the labels are the signs -1 and +1).
    """

    loss: Loss
    classes: Tensor | None
    target: Target | None
    replace: Any  # of `Config`

    @property
    def coding(self) -> Target:
        """What y is: the object that encodes it for the kernels, and decodes scores."""
        return target_of(self.target, self.loss, self.classes)

    def resolve(self, X: Any, y: Any = None, weights: Tensor | None = None) -> Self:
        """As `Model.resolve`, and what the target takes from y [N]."""
        model: Any = self
        model.require_targets(y)
        X = model.as_rows(X, min_rows=_fewest())
        return super().resolve(X, weights=weights).resolve_targets(X, y)  # type: ignore[misc]

    def resolve_targets(self, X: Rows, y: Any) -> Self:
        """A copy with the classes of y [N], those of the rows of X [N, D], and with the loss that its target needs.

        A binary loss is one-versus-rest where there are more than two classes, and masked where targets are missing.

        Raises
        ------
        ValueError    on targets that the loss cannot read, or of fewer than two classes.
        """
        values = self.coding.values(y, X)
        model: Self = self.replace(classes=self.coding.find_classes(values, X))
        loss = model.coding.factor(model.loss)
        missing = all_any(model.targets(X, y).isnan())
        return model.replace(loss=masked(loss) if missing else loss)

    def targets(self, X: Any, y: Any = None) -> Tensor:
        """Targets [N, C] of the scores in the dtype of X [N, D], as the loss takes them; NaN where one is missing."""
        return self.coding.encode(y, X)


def _fewest() -> int:
    """How many rows at least say something of defaults: of several ranks some may have none of them."""
    return 1 if ranks() is None else 0
