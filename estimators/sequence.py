"""`SequenceClusterer`: states of sequences as labels, in the manner of scikit-learn's clusterers."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClusterMixin
from sklearn.utils.validation import check_is_fitted

from ..inference import SVI, Backend, SequencePosterior
from ..models import IHMM, StateSpace
from .parts import PartsEstimator, copy_of, require_posterior
from .reading import read_rows


class SequenceClusterer(ClusterMixin, PartsEstimator):
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

    posterior_: SequencePosterior
    labels_: NDArray[np.int64]

    def __init__(self, model: StateSpace | None = None, inference: Backend | None = None) -> None:
        self.model = model
        self.inference = inference

    def fit(self, X: ArrayLike, y: Any = None, lengths: ArrayLike | None = None) -> Self:
        """Fit copies of the model and the backend to the steps X [N, D] of sequences; y is ignored."""
        model, inference = copy_of("model", self.model, IHMM()), copy_of("inference", self.inference, SVI())
        require_posterior(model, SequencePosterior, "SequenceClusterer", "IHMM or DIH", "Clusterer for other models")
        steps = self._rows(X, ensure_min_samples=2)
        self.posterior_ = inference.fit(model, steps, lengths=lengths, on_interrupt=self.on_interrupt)
        partition = self.posterior_.partition().cpu().numpy()
        counts = np.bincount(partition, minlength=self.posterior_.samples["log_mixture"].shape[1] - 1)
        # a backend may leave states empty, but labels count from 0 without gaps
        self._label_of_state = np.argsort(np.argsort(counts == 0, kind="stable"))
        self.labels_ = self._label_of_state[partition]
        return self

    def predict(self, X: ArrayLike, lengths: ArrayLike | None = None) -> NDArray[np.int64]:
        """The most probable path [N] of new sequences, in the numbering of `labels_`."""
        check_is_fitted(self)
        return self._label_of_state[self.posterior_.assign(self._rows(X, reset=False), lengths)]

    @property
    def n_components_(self) -> int:
        """Number of occupied states."""
        check_is_fitted(self)
        return self.posterior_.num_components

    # no tag `allow_nan`: that says that any single value may be missing, and here it is the whole row of a step
    def _rows(self, X: ArrayLike, **checks: Any) -> Any:
        return read_rows(self, X, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan", **checks)
