"""The base class of all models: their parts, and the methods that every backend calls."""

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
    """A method `program(model, data)` that sends Pyro's handlers a message of type "regbayes" at each call."""
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

    likelihood: Any  # a `Likelihood`; the library's own kernels take only an `ExponentialFamily`
    prior: Any
    truncation: int
    num_features: int | None

    # a model without hyperplanes has no score for a loss to act on
    loss: Loss = Hinge()
    weight_scale: float = 1.0
    feature_map: FeatureMap | None = None
    classes: Tensor | None = None
    target: Target | None = None

    @property
    def coding(self) -> Target | None:
        """The object that encodes y and decodes scores; None for a model without labels."""
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
        """Return the rows [N, D] of X and the values of y as they are read, None without y.

        Raises ValueError if a fit could not take one of these rows or values, whatever other rows it had.
        """
        rows = self.readable(X, lengths)
        if y is None or self.coding is None:
            return rows, None
        values = self.coding.values(y, rows)
        known = values.to_dense().flatten()
        if self.classes is None:  # these rows may have one class only, or no label
            known = torch.cat([known, known.new_tensor([0, 1])])
        with among(None):
            self.coding.find_classes(known, rows)
        return rows, values

    def readable(self, X: Any, lengths: Any = None) -> Rows:
        """The rows [N, D] of X; ValueError unless a fit takes each of them."""
        rows = self.as_rows(X, num_features=self.num_features, min_rows=self.min_rows)
        self.likelihood.admit(rows)
        return rows

    def resolve_feature_map(self, X: Rows, weights: Tensor | None = None) -> Self:
        """A copy whose feature map, if there is one, is fitted to the rows of X [N, D]."""
        if self.feature_map is None:
            return self
        return self.replace(feature_map=resolved(self.feature_map, X, weights))

    def resolve_targets(self, X: Rows, y: Any) -> Self:
        """A copy that holds what its target takes from y [N], such as the classes; see `Labelled`."""
        return self

    def require_targets(self, y: Any) -> None:
        """Raise ValueError if y is None."""
        if y is None:
            raise ValueError(f"{type(self).__name__} needs targets: requires y to be passed, but the target y is None.")

    def data(self, X: Any, y: Any = None) -> Any:
        """The kernels' view of the rows of X [N, D] and of y; a model may take a further argument `weights` [N]."""
        raise NotImplementedError

    def prepare(self, X: Any, y: Any = None, lengths: Any = None, **weights: Tensor) -> tuple[Self, Any]:
        """The resolved model, and the kernels' view of the arguments of `fit`; weights [N] if `data` takes them."""
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
        """X [N, D] as `as_features` reads it with these options; NaN is a missing entry if the model takes those."""
        return as_features(X, missing=self.checked().takes_missing, **options)

    def features(self, X: Any) -> Tensor:
        """The features [N, P] that the hyperplanes see of the rows of X [N, D]; P = 0 without hyperplanes."""
        return X.new_ones(len(X), self.num_constants) if self.feature_map is None else self.feature_map(X)

    def targets(self, X: Any, y: Any = None) -> Tensor:
        """Targets [N, C] of the scores, NaN where missing; C = 0 without hyperplanes."""
        return X.new_zeros(len(X), 0)

    def log_margin(self, scores: Tensor, targets: Tensor) -> Tensor:
        """log phi(y | f) [...] of scores [..., C], summed over the scores; 0 without hyperplanes."""
        factors = self.loss.log_factor(scores, targets)
        return factors.squeeze(-1) if factors.shape[-1] == 1 else factors.sum(-1)  # a sum over one would copy

    def log_rejection(self, scores: Tensor) -> Tensor:
        """The log factor [N] that all hyperplanes reject a point, from scores [N, K]; 0 unless components repel."""
        return scores.new_zeros(len(scores))

    def components(self, features: Tensor, targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Sites of the Pyro program: parameters of the likelihood [T, ...] and weights [T, P, C] of the hyperplanes."""
        with pyro.plate("components", self.truncation):
            chi = self.likelihood.prior().to(features.device)
            parameters = self.likelihood.parameters(chi, pyro.sample)
            weights = self.sample_weights(features, features.shape[1], targets.shape[1])
        return parameters, weights

    def sample_weights(self, like: Tensor, num_features: int, num_scores: int) -> Tensor:
        """The site `weights` [P, C] of the Pyro program, within a plate [T, P, C], in the dtype of `like` [...]."""
        scale = like.new_full((num_features, num_scores), self.weight_scale)
        return pyro.sample("weights", dist.Normal(torch.zeros_like(scale), scale).to_event(2))


def target_of(target: Target | None, loss: Loss, classes: Tensor | None) -> Target:
    """The target of a model with these classes [L]; None: they are not yet known.

    If `target` is None, the loss decides: a real target, one score for two or ordered classes, or one for each class.

    Raises
    ------
    ValueError    if the target has several columns: a row of such a model has one y.
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
    """The target object of a model of any structure; None if the model has no y."""
    found: Target | None = getattr(model, "coding", None)
    return found


def with_factor(model: Any) -> Any:
    """The model with the loss that its target needs, as kernels read it; unchanged for a model without labels."""
    coding = coding_of(model)
    return model if coding is None else model.replace(loss=coding.factor(model.loss))


class Labelled:
    """A mixin for models with fields `loss`, `classes` and `target`, which are resolved from y.

    A missing target is NaN in y, or -1 among integer labels (unless the labels are -1 and +1, or others are negative
    too).
    """

    loss: Loss
    classes: Tensor | None
    target: Target | None
    replace: Any  # provided by `Config`

    @property
    def coding(self) -> Target:
        """The object that encodes y for the kernels, and decodes scores."""
        return target_of(self.target, self.loss, self.classes)

    def resolve(self, X: Any, y: Any = None, weights: Tensor | None = None) -> Self:
        """As `Model.resolve`; also sets what the target takes from y [N]."""
        model: Any = self
        model.require_targets(y)
        X = model.as_rows(X, min_rows=_fewest())
        return super().resolve(X, weights=weights).resolve_targets(X, y)  # type: ignore[misc]

    def resolve_targets(self, X: Rows, y: Any) -> Self:
        """A copy with the classes of y [N] for the rows of X [N, D], and with the loss that its target needs.

        A binary loss becomes one-versus-rest with more than two classes, and masked where targets are missing.

        Raises
        ------
        ValueError    if the loss cannot read the targets, or there are fewer than two classes.
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
    """The fewest rows from which defaults can be set: 1, or 0 among ranks, since some may have no rows."""
    return 1 if ranks() is None else 0
