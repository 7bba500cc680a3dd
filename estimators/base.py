"""What the estimators over a model and a backend share: the two parts, and data checked as scikit-learn does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import scipy.sparse
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, check_non_negative

from ..inference import (
    SVI,
    Backend,
    FeaturePosterior,
    PartitionPosterior,
    RowSource,
    TopicPosterior,
    continue_fit,
    structure_of,
)
from ..inference.row_weights import weighs
from ..models import FeatureData, Model, TaskData, TopicData
from ..models.arrays import as_weights
from ..models.warning import warn
from .parts import PartsEstimator, copy_of
from .reading import named, read_rows
from .rows import SortedRows, copies_of, sort_rows
from .streams import require_array


def _transforms(estimator: PosteriorEstimator) -> bool:
    """Whether fits of the model have latent features or topics of rows."""
    return any(map(estimator.is_of, (FeatureData, TopicData, TaskData)))


class NothingLearntWarning(UserWarning):
    """A fit uses no latent feature, or predicts no label for any of its rows."""


def goes_on(estimator: PosteriorEstimator) -> bool:
    """True if a fit with this model and backend can continue with another batch; else AttributeError says why."""
    inference = estimator.defaults()[1] if estimator.inference is None else estimator.inference
    if not isinstance(inference, SVI) or not any(map(estimator.is_of, estimator.streams)):
        raise AttributeError(
            f"{type(inference).__name__} with this model cannot continue a fit. partial_fit needs inference=SVI() and "
            "a mixture, BNMC or a model of topics."
        )
    return True


class _Transform(TransformerMixin):
    """`transform`, whose result comes in the container that `set_output` asks for."""

    posterior_: Any
    new_data: Callable[[ArrayLike], Any]

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Latent features (probabilities, or bits after small variance), expected topic proportions, or projected rows
        of tasks, [N, K]. They come from the rows alone, without targets, also for rows of the fit."""
        rows = self.new_data(X)
        found: NDArray[Any] = self.posterior_.transform(rows)
        return found


class PosteriorEstimator(TransformerMixin, PartsEstimator, auto_wrap_output_keys=None):  # type: ignore[call-arg]  # scikit-learn has no types
    """An estimator whose `fit` leaves `posterior_`.

    With a model of latent features NaN in X is a missing entry, unless a feature map mixes columns. With a topic model
    X holds counts. X may be sparse with a topic model and with a likelihood that takes sparse rows.
    """

    posterior_: Any
    posteriors: tuple[type[Any], ...] = (PartitionPosterior, FeaturePosterior, TopicPosterior)
    accepted = "a model of partitions, latent features or topics"
    elsewhere = "SequenceClusterer for IHMM and DIH"  # where other models belong
    default_data: type[Any] | None = None  # what a model of None has, if it is looked at before a fit
    sparse_models = (  # which take sparse rows
        ", or a model of counts: likelihood=MultinomialDirichlet(), PoissonGamma() or BernoulliBeta(), and "
        "feature_map=PrincipalDirections() if it has one"
    )
    streams: tuple[type[Any], ...] = ()  # the data of the models with which `partial_fit` serves under SVI

    def __init__(self, model: Model | None = None, inference: Backend | None = None) -> None:
        self.model = model
        self.inference = inference

    def defaults(self) -> tuple[Any, Backend]:
        """The model and the backend of an estimator that was given none."""
        raise NotImplementedError

    def variational(self) -> SVI | None:
        """The default SVI for topics and latent features, of which small variance keeps few; None for other models.

        Its rule is one that the loss allows; its tolerance is small enough that predictions hardly change any more.
        """
        if not (self.is_of(TopicData) or self.is_of(FeatureData)):
            return None
        expected = getattr(getattr(self.model, "loss", None), "has_expectation", True)
        return SVI(tolerance=_TOLERANCE, rule="gibbs" if expected else "averaging")

    def require_targets(self, model: Any) -> None:
        """Raise ValueError unless the targets of the model are those of the estimator."""

    def parts(self) -> tuple[Any, Backend]:
        """Copies of the model and the backend; ValueError unless both are objects of the right kind."""
        default_model, default_inference = self.defaults()
        model = copy_of("model", self.model, default_model)
        if not issubclass(structure_of(model).posterior, self.posteriors):
            raise ValueError(
                f"model is {type(model).__name__}; {type(self).__name__} needs {self.accepted} such as "
                f"{type(default_model).__name__}(). Use {self.elsewhere}."
            )
        self.require_targets(model)
        return model, copy_of("inference", self.inference, default_inference)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._takes_nan
        tags.input_tags.sparse = self._takes_sparse
        if self.is_of(TopicData):
            tags.input_tags.positive_only = True  # there is no tag of whole numbers
        if not hasattr(self, "transform"):
            tags.transformer_tags = None
        return tags

    def is_of(self, data_type: type[Any]) -> bool:
        """Whether the model has kernels with data of this kind."""
        kind = getattr(self.model, "data_type", self.default_data)
        return isinstance(kind, type) and issubclass(kind, data_type)

    @property
    def _takes_nan(self) -> bool:
        feature_map = getattr(self.model, "feature_map", None)
        features = self.is_of(FeatureData) and (feature_map is None or getattr(feature_map, "column_wise", False))
        return features or getattr(self.model, "takes_missing", False)

    @property
    def _takes_sparse(self) -> bool:
        likelihood = getattr(self.model, "likelihood", None)
        return self.is_of(TopicData) or getattr(likelihood, "accepts_sparse", False)

    # -- fits ------------------------------------------------------------------------------------------------------

    def fit_posterior(
        self, parts: tuple[Any, Backend], X: Any, y: NDArray[Any] | None, weights: NDArray[np.float64] | None = None
    ) -> None:
        """Fit to the rows in a canonical order, and put the posterior's values by row back in the order of X [N, D]."""
        model, inference = parts
        rows = sort_rows(X, y, weights, merge=weighs(inference, model))
        self.posterior_ = self.posterior_of(parts, rows, self.on_interrupt).over_rows(torch.from_numpy(rows.place))
        self._require_learnt(inference)

    def posterior_of(self, parts: tuple[Any, Backend], rows: SortedRows, on_interrupt: str) -> Any:
        """The posterior of these rows: all rows of `fit`, or those of a fold."""
        model, inference = parts
        options: dict[str, Any] = {} if rows.weights is None else {"sample_weight": rows.weights}
        options |= self.loss_options(parts, rows)
        return inference.fit(model, rows.X, rows.y, on_interrupt=on_interrupt, **options)

    def loss_options(self, parts: tuple[Any, Backend], rows: SortedRows) -> dict[str, Any]:
        """Further options of the backend's `fit`, such as weights of the losses of rows."""
        return {}

    def fit_source(self, parts: tuple[Any, Backend], source: RowSource) -> Self:
        """Fit to rows that need not fit into memory, by stochastic steps of `SVI`, the default of such fits."""
        model, inference = parts
        inference = SVI() if self.inference is None else inference
        self.posterior_ = inference.fit(model, source, on_interrupt=self.on_interrupt)
        self.n_features_in_ = int(self.posterior_.model.num_features)
        self.__dict__.pop("feature_names_in_", None)
        if source.column_names is not None:
            self.feature_names_in_ = np.array(source.column_names, dtype=object)
        self._require_learnt(inference)
        return self

    def _require_learnt(self, inference: Backend) -> None:
        if self.n_components_ == 0:
            mend = "to more rows, or with a larger concentration of the prior"
            if inference.kind == "objective":
                mend = "by SVI() or Gibbs(), or with a smaller penalty"
            warn(
                f"No latent feature is in use after a fit by {type(inference).__name__}. Fit {mend}.",
                NothingLearntWarning,
            )

    fit: Callable[..., Self]  # each estimator says to what

    def more_data(self, X: ArrayLike) -> Any:
        """Another batch [n, D] for a fitted estimator."""
        return self.fit_data(X, ensure_min_samples=1, reset=False)

    def go_on(self, rows: Any, y: NDArray[Any] | None = None) -> None:
        """A stochastic step on a batch of rows [n, D] and y [n]."""
        self.posterior_ = continue_fit(self.posterior_, rows, y)

    def row_weights(self, sample_weight: ArrayLike | None, X: Any) -> NDArray[np.float64] | None:
        """Weights [N] of at least 0; None: all 1."""
        if sample_weight is None:
            return None
        found: NDArray[np.float64] = as_weights(sample_weight, torch.empty(X.shape[0], 0)).numpy()
        return found

    def copies(self, sample_weight: ArrayLike | None, X: Any) -> NDArray[np.int64]:
        """As how many rows each row [N] is dealt out to folds (`copies_of`); weights of classes do not count."""
        weights = self.row_weights(sample_weight, X)
        return copies_of(np.ones(X.shape[0]) if weights is None else weights)

    def fit_data(self, X: ArrayLike, **checks: Any) -> Any:
        """The rows [N, D] to fit."""
        require_array(X, self)
        return self._read(X, **{"ensure_min_samples": 2} | checks)

    def new_data(self, X: ArrayLike) -> Any:
        """New rows [N, D] for a fitted estimator."""
        check_is_fitted(self)
        return self._read(X, reset=False)

    def _read(self, X: Any, **checks: Any) -> Any:
        """The rows [N, D] of what a user passes; TypeError on sparse ones that the model does not take."""
        if scipy.sparse.issparse(X) and not self._takes_sparse:
            raise TypeError(
                f"X is sparse; the model of {type(self).__name__} needs dense rows: pass X.toarray()"
                f"{self.sparse_models}."
            )
        rows = read_rows(self, X, **self._checks() | checks)
        self._require_counts(rows)
        return rows

    def _require_counts(self, X: Any) -> None:
        if self.is_of(TopicData):  # the model says it as well, in other words
            named("X", lambda: check_non_negative(X, type(self).__name__))

    def _checks(self) -> dict[str, Any]:
        finite = "allow-nan" if self._takes_nan else True
        sparse = "csr" if self._takes_sparse else False
        return {"dtype": _FLOATS, "ensure_all_finite": finite, "accept_sparse": sparse}

    # -- what it found ---------------------------------------------------------------------------------------------

    @property
    def n_components_(self) -> int:
        """Number of occupied components, of latent features that some row has (`transform` may have more), or of
        topics."""
        check_is_fitted(self)
        names = ("num_components", "num_latent_features", "num_topics")
        return next(int(getattr(self.posterior_, name)) for name in names if hasattr(self.posterior_, name))

    transform = available_if(_transforms)(_Transform.transform)

    @available_if(_transforms)
    def fit_transform(self, X: ArrayLike, y: Any = None, **options: Any) -> NDArray[Any]:
        """`fit(X, y, ...)`, then `transform(X)`."""
        found: NDArray[Any] = self.fit(X, y, **options).transform(X)
        return found

    @available_if(_transforms)
    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Names [K] of the columns of `transform`: feature0, feature1, ... or topic0, topic1, ..."""
        check_is_fitted(self)
        name, samples = ("topic", "topics") if self.is_of(TopicData) else ("feature", "weights")
        return np.array([f"{name}{k}" for k in range(self.posterior_.samples[samples].shape[1])], dtype=object)


_TOLERANCE = 0.03  # nats a row
_FLOATS = [np.float64, np.float32]
