"""Transformers, models without targets: `TopicTransformer` of documents, `FeatureTransformer` of latent features."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from ..inference import SVI, Backend, FeaturePosterior, TopicPosterior
from ..models import LDA, FeatureData, LatentFeatureModel, Model, TopicData
from .base import PosteriorEstimator, goes_on


class _Transformer(PosteriorEstimator):
    """What both transformers share: a fit without targets."""

    def require_targets(self, model: Any) -> None:
        if model.coding is not None:
            raise ValueError(
                f"model is {type(model).__name__}, which needs targets. Use {type(self.defaults()[0]).__name__}(), or "
                "Classifier or Regressor, which have a transform as well."
            )

    def fit(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit copies of the model and the backend to X [N, D] and weights [N] of at least 0; y is ignored."""
        rows = self.fit_data(X)
        self.fit_posterior(self.parts(), rows, None, self.row_weights(sample_weight, rows))
        return self


class TopicTransformer(_Transformer):
    """Topics of documents, as scikit-learn's LatentDirichletAllocation; X has counts of words, dense or sparse.

    `inference=Gibbs(num_samples=20, num_warmup=200)` predicts the words of new documents better than the default, but
    takes longer and has no `partial_fit`.

    Parameters
    ----------
    model : a topic model without targets; None: `LDA()`. To search over its arguments, pass a model
    inference : a backend of `regbayes.inference`, which has the seed; None: `SVI()`

    Attributes
    ----------
    posterior_ : TopicPosterior of the fit
    components_ : expected topics [K, V], whose rows sum to 1
    n_components_ : number K of topics
    n_features_in_ : size V of the vocabulary

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes.models import LDA
    >>> X = np.random.default_rng(0).poisson(np.repeat([[3.0, 0.1], [0.1, 3.0]], 20, axis=0))
    >>> topics = TopicTransformer(LDA(num_topics=2)).fit(X)
    >>> topics.transform(X).shape, topics.components_.shape
    ((40, 2), (2, 2))
    """

    posteriors = (TopicPosterior,)
    accepted = "a topic model"
    elsewhere = "FeatureTransformer for LatentFeatureModel, or Clusterer"
    default_data = TopicData
    streams: tuple[type[Any], ...] = (TopicData,)

    def defaults(self) -> tuple[Model, Backend]:
        return LDA(), SVI()

    @available_if(goes_on)
    def partial_fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Continue with a batch of documents X [n, V] by a stochastic step; the first batch is a fit, and y is
        ignored."""
        if not hasattr(self, "posterior_"):
            return self.fit(X)
        self.go_on(self.more_data(X))
        return self

    @property
    def components_(self) -> NDArray[Any]:
        """Expected topics [K, V], averaged over the draws."""
        check_is_fitted(self)
        found: NDArray[Any] = self.posterior_.topics.cpu().numpy()
        return found

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """A lower bound of the log likelihood of documents X [N, V] at the topics found, in nats
        (`log_evidence_bound` of the posterior)."""
        rows = self.new_data(X)
        return float(np.sum(self.posterior_.log_evidence_bound(rows), dtype=np.float64))

    def perplexity(self, X: ArrayLike) -> float:
        """exp(-score / number of words) of documents X [N, V]: an upper bound of the perplexity.

        Raises ValueError if no document has a word.
        """
        rows = self.new_data(X)
        total = rows.sum()
        if total == 0:
            raise ValueError("X has no word; perplexity needs documents of which one at least has some.")
        return float(np.exp(-np.sum(self.posterior_.log_evidence_bound(rows), dtype=np.float64) / total))


class FeatureTransformer(_Transformer):
    """Binary latent features of rows: how many there are is found, not given. NaN in X is a missing entry.

    These features explain X and need not tell classes apart; for features that do, use
    `Classifier(InfiniteLatentSVM())` and `transform` of its `posterior_`.

    Parameters
    ----------
    model : a model of latent features without targets; None: `LatentFeatureModel()`. To search over its arguments, pass
        a model
    inference : a backend of `regbayes.inference`, which has the seed; None: `SVI(num_restarts=4)`

    Attributes
    ----------
    posterior_ : FeaturePosterior of the fit
    components_ : loadings [K, D] of the features
    n_components_ : number of features, at most K, that some row of the fit has with probability above one half.
        `transform` has K columns, also for features that no row has; the columns in use are
        `(posterior_.features > 0.5).any(0)`
    n_features_in_ : width D of X

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.integers(0, 2, (60, 2)) @ [[5.0, 0.0, 5.0], [0.0, 5.0, 5.0]] + 0.1 * rng.normal(size=(60, 3))
    >>> FeatureTransformer().fit(X).transform(X).shape[0]
    60
    """

    posteriors = (FeaturePosterior,)
    accepted = "a model of latent features"
    sparse_models = ""
    elsewhere = "TopicTransformer for LDA, or Clusterer"
    default_data = FeatureData

    def defaults(self) -> tuple[Model, Backend]:
        return LatentFeatureModel(), SVI(num_restarts=4)

    @property
    def components_(self) -> NDArray[Any]:
        """Loadings [K, D], those of the draw whose features `transform` gives."""
        check_is_fitted(self)
        found: NDArray[Any] = self.posterior_.loadings.cpu().numpy()
        return found
