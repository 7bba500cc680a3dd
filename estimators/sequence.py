"""`SequenceClusterer`: states of sequences as labels, in the manner of scikit-learn's clusterers."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin, clone
from sklearn.utils.validation import check_is_fitted

from ..inference import SVI, SequencePosterior
from ..inference.backend import Backend
from ..models import IHMM, StateSpace

__all__ = ["SequenceClusterer"]


class SequenceClusterer(ClusterMixin, BaseEstimator):
    """States of one sequence or several: their number is found, not given.

    Rows of all sequences are stacked in X, with their `lengths` (as in hmmlearn); a row of NaN is a missing step.

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

    posterior_: SequencePosterior
    labels_: NDArray[np.int64]
    n_features_in_: int

    def __init__(self, model: StateSpace | None = None, inference: Backend | None = None) -> None:
        self.model = model
        self.inference = inference

    def fit(self, X: ArrayLike, y: Any = None, lengths: ArrayLike | None = None) -> Self:
        """Fit copies of the model and the backend to the steps X [N, D] of sequences; y is ignored."""
        model = IHMM() if self.model is None else clone(self.model)
        inference = SVI() if self.inference is None else clone(self.inference)
        rows = np.array(X, dtype=np.float64)  # a copy, which torch may share
        posterior = inference.fit(model, rows, lengths=lengths)
        assert isinstance(posterior, SequencePosterior)  # a model of states has no other
        self.posterior_, self.n_features_in_ = posterior, rows.shape[1]
        partition = posterior.partition().cpu().numpy()
        counts = np.bincount(partition, minlength=posterior.samples["log_mixture"].shape[1] - 1)
        # a backend may leave states empty, but labels count from 0 without gaps
        self._label_of_state = np.argsort(np.argsort(counts == 0, kind="stable"))
        self.labels_ = self._label_of_state[partition]
        return self

    def predict(self, X: ArrayLike, lengths: ArrayLike | None = None) -> NDArray[np.int64]:
        """The most probable path [N] of new sequences, in the numbering of `labels_`."""
        check_is_fitted(self)
        return self._label_of_state[self.posterior_.assign(np.array(X, dtype=np.float64), lengths)]

    @property
    def n_components_(self) -> int:
        """Number of occupied states."""
        check_is_fitted(self)
        return self.posterior_.num_components
