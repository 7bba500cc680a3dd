"""Clusterers, which find the number of clusters: `Clusterer` of rows, `SequenceClusterer` of the steps of sequences."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClusterMixin

from ..inference import SVI, Backend, PartitionPosterior, SequencePosterior
from ..models import DPM, IHMM, Mixture, StateSpace
from .base import PosteriorEstimator


class _Clusters(ClusterMixin, PosteriorEstimator):
    """What both share: components as labels. A backend may leave some empty, but labels count from 0 without gaps."""

    labels_: NDArray[np.int64]

    def _numbered(self) -> Self:
        partition = self.posterior_.partition().cpu().numpy()
        counts = np.bincount(partition, minlength=self.posterior_.samples["log_mixture"].shape[1] - 1)
        self._label_of = np.argsort(np.argsort(counts == 0, kind="stable"))
        self.labels_ = self._label_of[partition]
        return self


class Clusterer(_Clusters):
    """Clustering by a Dirichlet process mixture: the number of clusters is found, not given.

    Parameters
    ----------
    model : a model without classes; None: `DPM()`
    inference : a backend of `regbayes.inference`, which owns the seed; None: `SVI()`, which needs no
        penalty or number of clusters

    Attributes
    ----------
    posterior_ : Posterior of the fit
    labels_ : cluster [N] of every row, 0..n_components_-1
    n_components_ : number of clusters
    n_features_in_ : width of X

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> X, _ = make_blobs(60, centers=[[0, 0], [9, 9], [0, 9]], random_state=0)
    >>> Clusterer().fit(X).n_components_
    3
    """

    posteriors = (PartitionPosterior,)
    accepted = "a model of partitions"

    def defaults(self) -> tuple[Mixture, Backend]:
        return DPM(), SVI()

    def require_targets(self, model: Any) -> None:
        if model.coding is not None:
            raise ValueError(
                f"model is {type(model).__name__}, which needs targets. Use DPM() or DDPM(), or else Classifier."
            )

    def fit(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit copies of the model and the backend to X [N, D] and weights [N] of at least 0; y is ignored."""
        rows = self.fit_data(X)
        self.fit_posterior(self.parts(), rows, None, self.row_weights(sample_weight, rows))
        return self._numbered()

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Cluster [N] of new rows, in the numbering of `labels_`."""
        rows = self.new_data(X)
        return self._label_of[self.posterior_.assign(rows)]


class SequenceClusterer(_Clusters):
    """States of one sequence or several: their number is found, not given.

    Rows of all sequences are stacked in X, with their `lengths` (as in hmmlearn); a row of NaN is a missing step. Steps
    have no weights.

    Parameters
    ----------
    model : `IHMM` or `DIH`; None: `IHMM()`. A search of its arguments needs it passed
    inference : a backend of `regbayes.inference`, which owns the seed; None: `SVI()`

    Attributes
    ----------
    posterior_ : SequencePosterior of the fit
    labels_ : state [N] of every step, 0..n_components_-1
    n_components_ : number of states
    n_features_in_ : width of X

    Examples
    --------
    >>> import numpy as np
    >>> X = np.repeat([0.0, 9.0, 0.0, 9.0], 20)[:, None] + np.random.default_rng(0).normal(size=(80, 1))
    >>> SequenceClusterer().fit(X, lengths=[40, 40]).n_components_
    2
    """

    posteriors = (SequencePosterior,)
    accepted = "a model of sequences"
    elsewhere = "Clusterer for other models"

    def defaults(self) -> tuple[StateSpace, Backend]:
        return IHMM(), SVI()

    def fit(self, X: ArrayLike, y: Any = None, lengths: ArrayLike | None = None) -> Self:
        """Fit copies of the model and the backend to the steps X [N, D] of sequences; y is ignored."""
        model, inference = self.parts()
        steps = self.fit_data(X)
        self.posterior_ = inference.fit(model, steps, lengths=lengths, on_interrupt=self.on_interrupt)
        return self._numbered()

    def predict(self, X: ArrayLike, lengths: ArrayLike | None = None) -> NDArray[np.int64]:
        """The most probable path [N] of new sequences, in the numbering of `labels_`."""
        steps = self.new_data(X)
        return self._label_of[self.posterior_.assign(steps, lengths)]

    # a step is missing as a whole: the tag `allow_nan` would say that any single value may be
    _takes_nan = _takes_sparse = False

    def _checks(self) -> dict[str, Any]:
        return super()._checks() | {"ensure_all_finite": "allow-nan"}
