"""Clusterers, which find the number of clusters: `Clusterer` of rows, `SequenceClusterer` of the steps of sequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClusterMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..inference import SVI, Backend, FitInterrupted, PartitionPosterior, SequencePosterior
from ..inference.hilbert_embedding.mean_families import gaussian_moments
from ..inference.posterior.components import expected_parameters
from ..models import DPM, IHMM, BernoulliBeta, Data, DiagonalGaussian, FullGaussian, Mixture, StateSpace
from ..models.arrays import require_stacked
from ..models.warning import warn, withheld
from .base import PosteriorEstimator, goes_on
from .rows import SortedRows, sort_rows
from .streams import first_rows, source_of


class _Clusters(ClusterMixin, PosteriorEstimator):
    """What both clusterers share: components as labels, numbered from 0 without gaps even if some are empty."""

    labels_: NDArray[np.int64]

    def _numbered(self) -> Self:
        occupied = self.posterior_.occupied.cpu().numpy()
        self._label_of, self._num_labels = np.argsort(np.argsort(~occupied, kind="stable")), self.posterior_.num_labels
        self.labels_ = self._label_of[self.posterior_.partition().cpu().numpy()]
        return self


class Choice(NamedTuple):
    """A mixture, and what its fit to some rows or all found."""

    model: DPM
    bound: float = -np.inf
    clusters: int = 0
    posterior: Any = None  # of all rows, in the order of their hash; None: of some, or there was no fit
    place: NDArray[np.int64] | tuple[()] = ()  # [N] where each row stands in that order
    said: Mapping[str, type[Warning]] = MappingProxyType({})  # what this fit warned of


def chosen_mixture(
    inference: Backend, rows: NDArray[Any], weights: NDArray[np.float64] | None, truncation: int | None = None
) -> Choice:
    """The mixture that reaches the highest bound on rows [N, D], each counted `weights` [N] times.

    Its covariances are diagonal, full, or full with a prior of `degrees_of_freedom` D + 2, which lets correlations be
    as strong as they are. Diagonal ones have the default prior, for few clusters that overlap, or one that expects a
    tenth of the spread of all rows, for many clusters far apart. Rows of 0 and 1 get `BernoulliBeta`. If the best has a
    single cluster, full ones whose prior expects the correlations of all rows compete with it: they tell clusters apart
    that are long in the same direction. If it has clusters in more than two thirds of its components, mixtures of twice
    as many compete, up to 160. Fits of at most 30 rows for each component, so 600 at first, run until they converge.
    These rows are chosen by their content, so that the order of rows does not matter. If the backend has neither a
    bound nor draws, or fewer than two rows have a positive weight, the result is `DPM()` without a fit. `truncation` is
    the least number of components; None: that of `DPM()`.
    """
    counted = slice(None) if weights is None else weights > 0
    rows, weights = rows[counted], None if weights is None else weights[counted]
    if inference.kind == "objective" or len(rows) < 2:
        return Choice(DPM())
    ordered = sort_rows(rows, None, weights, merge=True)
    best = _best_of_families(ordered, truncation or DPM().truncation)
    if best.clusters == 1 and 1 < rows.shape[1] <= _MOST_COLUMNS and not _is_binary(rows):
        return max(best, _pilot(DPM(FullGaussian(scale="covariance")), ordered), key=_bound)
    while _is_full(best.clusters, best.model):
        more = _best_of_families(ordered, 2 * best.model.truncation)
        again = best if len(best.place) else _pilot(best.model, ordered, more.model.truncation)
        if more.bound <= again.bound:
            break
        best = more
    return best


def _is_full(clusters: int, model: DPM) -> bool:
    """Whether more components may find more clusters: a fit starts with a seed for each, and some get several."""
    return 2 / 3 * model.truncation < clusters and model.truncation < _MOST


def _best_of_families(rows: SortedRows, truncation: int) -> Choice:
    """The mixture with `truncation` components whose covariances reach the highest bound; rows of 0 and 1 have none.

    The narrow prior competes unless many rows are equal, or weigh more than one: it would make clusters of these. Full
    covariances compete where their sweeps do not take long: in 2 to 32 columns with up to 40 components, in at most
    five columns with 80, and in two with 160.
    """
    if _is_binary(rows.X):
        return _pilot(DPM(BernoulliBeta(), truncation=truncation), rows)
    families: list[Any] = [DiagonalGaussian()]
    if rows.weights is None or rows.weights.sum() <= _MOST_REPEATED * len(rows.X):
        families.append(DiagonalGaussian(rate=narrow_rate(rows)))
    columns = rows.X.shape[1]
    if 1 < columns <= _MOST_COLUMNS and (truncation <= 40 or truncation * columns <= _MOST_FULL):
        families.append(FullGaussian())
        if columns > 4:  # with fewer the default is the same
            families.append(FullGaussian(degrees_of_freedom=columns + 2))
    return max((_pilot(DPM(family, truncation=truncation), rows) for family in families), key=_bound)


def _is_binary(X: NDArray[Any]) -> bool:
    """Whether rows [N, D] are of 0 and 1 alone, in at least the three columns that tell clusters of such rows apart."""
    return X.shape[1] > 2 and bool(np.isin(X, (0, 1)).all())


def narrow_rate(rows: SortedRows) -> Tensor:
    """The rate [D] of a prior that expects clusters with a tenth of the spread of all rows in each column.

    The spread is that of the middle half of the rows, which outliers do not change, or the standard deviation if half
    of the rows have one value.
    """
    X = np.asarray(rows.X, dtype=np.float64)
    weights = np.ones(len(X)) if rows.weights is None else rows.weights
    order = X.argsort(0)
    below = weights[order].cumsum(0) / weights.sum()
    columns = np.arange(X.shape[1])
    low, high = (X[order[(below < level).sum(0), columns], columns] for level in (0.25, 0.75))
    middle = ((high - low) / _NORMAL_MIDDLE) ** 2
    variance = np.average((X - np.average(X, 0, weights)) ** 2, 0, weights)
    spread = np.where(middle > 0, middle, np.where(variance > 0, variance, 1.0))
    return torch.from_numpy((0.01 * spread).clip(np.finfo(np.float64).tiny))


def _bound(found: Choice) -> float:
    return found.bound


def _pilot(model: DPM, rows: SortedRows, components: int | None = None) -> Choice:
    """The result of a fit that runs until it converges, to the first rows alone if there are many: 30 for each of
    `components`; None: for each of the model."""
    number = _NUM_PILOT * (components or model.truncation)
    some = slice(number)
    counts = None if rows.weights is None else rows.weights[some]
    with withheld(Warning) as said:
        pilot = SVI(progress=False)
        found = pilot.fit(model, rows.X[some], sample_weight=counts, on_interrupt="raise")
    bound, clusters = found.trace.best, len(found.partition().unique())
    if len(rows.X) > number:
        return Choice(model, bound, clusters)
    return Choice(model, bound, clusters, found, rows.place, said)


_NUM_PILOT, _MOST = 30, 160  # rows for each component, and components
_MOST_REPEATED = 1.05  # mean weight of different rows
_NORMAL_MIDDLE = 1.349  # length of the middle half of a normal distribution, in standard deviations
_MOST_COLUMNS, _MOST_FULL = 32, 400  # a step with full covariances is cubic in the columns


@contextmanager
def _absent(message: str) -> Iterator[None]:
    """A context in which what is not implemented raises AttributeError, so that `hasattr` and `dir` find it absent."""
    try:
        yield
    except NotImplementedError as error:
        raise AttributeError(str(error) or message) from error


def _has_density(estimator: Clusterer) -> bool:
    """Whether the fit has a predictive density; only small variance has none."""
    return getattr(estimator.inference, "kind", "") != "objective"


class Clusterer(_Clusters):
    """Clustering by a Dirichlet process mixture: the number of clusters is found, not given.

    Like scikit-learn's GaussianMixture it has `means_`, `covariances_`, `weights_`, `score_samples` and `sample`. The
    first three are those of the draw that `labels_` comes from; probabilities and densities are averaged over all
    draws.

    Parameters
    ----------
    model : a model without classes. None: the `DPM` with the highest bound of the log evidence in fits to at most 600
        rows. These fits have diagonal covariances, with the default prior and a narrow one, or, with 2 to 32 columns,
        also `FullGaussian()` and `FullGaussian(degrees_of_freedom=D + 2)`. Rows of 0 and 1 in at least three columns
        get `BernoulliBeta()`. If the best of them has one cluster,
        `FullGaussian(scale="covariance")` is tried too. If it has clusters in more than two thirds of its components,
        so is twice the `truncation`, on twice as many rows, up to 160 components; the same once more if the fit by
        `SVI` to all rows has. `SmallVariance` has no bound, and takes `DPM()`
    inference : a backend of `regbayes.inference`, which has the seed; None: `SVI()`, which needs no penalty or number
        of clusters

    Attributes
    ----------
    posterior_ : Posterior of the fit
    labels_ : cluster [N] of every row, 0..n_components_-1
    n_components_ : number K of clusters
    weights_, means_, covariances_ : shares [K] of the clusters, means [K, D], and covariances of Gaussian likelihoods
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
    default_data = Data
    streams: tuple[type[Any], ...] = (Data,)

    def defaults(self) -> tuple[Mixture, Backend]:
        return DPM(), SVI()

    def require_targets(self, model: Any) -> None:
        if model.coding is not None:
            raise ValueError(
                f"model is {type(model).__name__}, which needs targets. Use DPM() or DDPM(), or else Classifier."
            )

    def fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit copies of the model and the backend to X [N, D] and weights [N] of at least 0; y is ignored.

        X may also be the path of a Parquet or Arrow file, of which y names a column to leave out, or a source of rows
        (`regbayes.inference.rows_of`). Such rows need not fit into memory; `SVI` fits them by stochastic steps, and
        `labels_` are those of the first 100,000 rows. Ctrl-C while covariances are chosen (`model=None`) ends the fit.
        """
        source = source_of(X, y, sample_weight=sample_weight)
        rows = self.fit_data(X) if source is None else first_rows(source)
        (model, inference), weights = self.parts(), self.row_weights(sample_weight, rows)
        choice = None if self.model is not None else chosen_mixture(inference, rows, weights)
        parts = model if choice is None else choice.model, inference
        if source is not None:
            self.fit_source(parts, source)
        elif choice is None or inference.kind != "bound":
            self.fit_posterior(parts, rows, None, weights)
        else:
            self._fit_chosen(choice, inference, rows, weights)
        return self._numbered()

    def _fit_chosen(self, choice: Choice, inference: Backend, rows: Any, weights: NDArray[np.float64] | None) -> None:
        """Fit a choice to all rows, and if the fit is full, one of more components, which may have a higher bound."""
        told = self._fit_one(choice, inference, rows, weights)
        stopped = FitInterrupted in told.values()
        if _is_full(self.n_components_, choice.model) and not len(choice.place) and not stopped:
            first, more = self.posterior_, chosen_mixture(inference, rows, weights, 2 * choice.model.truncation)
            said = self._fit_one(more, inference, rows, weights)
            if self.posterior_.trace.best > first.trace.best:
                told = said
            else:
                self.posterior_ = first
        for message, category in told.items():
            warn(message, category)

    def _fit_one(
        self, choice: Choice, inference: Backend, rows: Any, weights: NDArray[np.float64] | None
    ) -> Mapping[str, type[Warning]]:
        """Fit a choice to all rows, or take its own fit to them; the result is what the fit warned of."""
        if self.inference is None and len(choice.place) == len(rows):
            self.posterior_ = choice.posterior.over_rows(torch.from_numpy(choice.place))
            return choice.said
        with withheld(Warning) as said:
            self.fit_posterior((choice.model, inference), rows, None, weights)
        return said

    @available_if(goes_on)
    def partial_fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Continue with a batch of rows X [n, D] by a stochastic step; the first batch is a fit, and y is ignored.

        It needs `SVI`. `labels_` are those of the batch. Defaults from the data, such as the prior's scales, come from
        the first batch. Batches should be random samples of the rows: components that no row of the first batch takes
        hardly come back, so that a fit to sorted rows may find a single cluster.
        """
        if not hasattr(self, "posterior_"):
            return self.fit(X)
        self.go_on(self.more_data(X))
        return self._numbered()

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Cluster [N] of new rows, in the numbering of `labels_`."""
        rows = self.new_data(X)
        return self._label_of[self.posterior_.assign(rows)]

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Probability [N, K] of each cluster, given that a row is in one; `weights_` if all probabilities are 0."""
        rows = self.new_data(X)
        found: NDArray[Any] = self.posterior_.assign_proba(rows)[:, np.argsort(self._label_of[: self._num_labels])]
        found = found[:, : self.n_components_]
        total = found.sum(1, keepdims=True)
        return np.where(total > 0, found / np.where(total > 0, total, 1), self.weights_)

    @available_if(_has_density)
    def score_samples(self, X: ArrayLike) -> NDArray[Any]:
        """log p(x) [N] of rows, averaged over clusters and draws; hyperplanes do not count."""
        rows = self.new_data(X)
        found: NDArray[Any] = self.posterior_.log_predictive_density(rows)
        return found

    @available_if(_has_density)
    def score(self, X: ArrayLike, y: Any = None) -> float:
        """The mean of `score_samples`."""
        return float(self.score_samples(X).mean())

    @available_if(_has_density)
    def sample(self, n_samples: int = 1) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """New rows [n, D] of the predictive distribution, the same in every call, and their clusters [n].

        A row of a cluster that is not among `labels_` gets the number `n_components_`. For other rows in each call use
        `posterior_.sample`, which takes a generator.
        """
        check_is_fitted(self)
        drawn = self.posterior_.sample(n_samples)
        labels = np.append(self._label_of[: self._num_labels], self.n_components_)[drawn.assignments.cpu().numpy()]
        return drawn.X.cpu().numpy(), np.minimum(labels, self.n_components_)

    @property
    def weights_(self) -> NDArray[np.float64]:
        """Shares [K] of the clusters."""
        found: NDArray[np.float64] = self._of_clusters(self._draw["log_mixture"][:-1]).double().softmax(0).numpy()
        return found

    @property
    def means_(self) -> NDArray[Any]:
        """Posterior mean [K, D] of the rows of each cluster, or its centre.

        Raises
        ------
        AttributeError    if the likelihood has no mean.
        """
        draw, likelihood = self._draw, self.posterior_.model.likelihood
        with _absent(f"{type(likelihood).__name__} has no mean of a row."):
            if "centers" in draw:
                means = likelihood.from_coordinates(draw["centers"])
            else:
                means = likelihood.distribution(expected_parameters(self.posterior_.model, draw)).mean
        found: NDArray[Any] = self._of_clusters(means).numpy()
        return found

    @property
    def covariances_(self) -> NDArray[np.float64]:
        """Inverse of the expected precision of each cluster: [K, D, D], or [K, D] if columns are independent.

        Raises
        ------
        AttributeError    unless the likelihood is Gaussian, and if the fit is by `SmallVariance`.
        """
        draw, model = self._draw, self.posterior_.model
        with _absent("This fit has no covariances."):
            moments = gaussian_moments(model.likelihood, expected_parameters(model, draw))
        found: NDArray[np.float64] = self._of_clusters(moments[1]).numpy()
        return found

    @property
    def _draw(self) -> dict[str, Tensor]:
        """The draw whose clusters have labels."""
        check_is_fitted(self)
        found: dict[str, Tensor] = self.posterior_.draw(self.posterior_.representative)
        return found

    def _of_clusters(self, values: Tensor) -> Tensor:
        """Values [K, ...] of the clusters, of those [T, ...] of the components of a draw."""
        return values[np.argsort(self._label_of)[: self.n_components_]].cpu()


class SequenceClusterer(_Clusters):
    """Hidden states of one or several sequences: the number of states is found, not given.

    Rows of all sequences are stacked in X, with their `lengths` (as in hmmlearn); a row of NaN is a missing step. `fit`
    takes no `sample_weight`.

    Parameters
    ----------
    model : `IHMM` or `DIH`; None: an `IHMM` whose covariances and truncation are chosen as in `Clusterer`, with the
        steps as rows. To search over arguments of the model, pass a model
    inference : a backend of `regbayes.inference`, which has the seed; None: `SVI()`

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
    sparse_models = ""
    elsewhere = "Clusterer for other models"

    def defaults(self) -> tuple[StateSpace, Backend]:
        return IHMM(), SVI()

    def fit(self, X: ArrayLike, y: Any = None, lengths: ArrayLike | None = None) -> Self:
        """Fit copies of the model and the backend to the steps X [N, D] of sequences; y is ignored.

        Raises
        ------
        ValueError    if y is not as long as X, since it is then perhaps meant for `lengths`.
        """
        model, inference = self.parts()
        steps = self.fit_data(X)
        if y is not None and lengths is None and np.shape(y)[:1] != (len(steps),):
            raise ValueError(
                f"y has shape {np.shape(y)}; expected {len(steps)} entries, all ignored. Lengths of sequences go to "
                "`lengths`: fit(X, lengths=...)."
            )
        if self.model is None:
            observed = steps[~np.isnan(steps).any(1)]
            found = chosen_mixture(inference, observed, None).model
            model = model.replace(likelihood=found.likelihood, truncation=found.truncation)
        self.posterior_ = inference.fit(model, steps, lengths=lengths, on_interrupt=self.on_interrupt)
        return self._numbered()

    def fit_predict(self, X: ArrayLike, y: Any = None, lengths: ArrayLike | None = None) -> NDArray[np.int64]:
        """`labels_` [N] of a fit."""
        return self.fit(X, y, lengths).labels_

    def predict(self, X: ArrayLike, lengths: ArrayLike | None = None) -> NDArray[np.int64]:
        """The most probable path [N] of new sequences, in the numbering of `labels_`."""
        steps = self.new_data(X)
        return self._label_of[self.posterior_.assign(steps, lengths)]

    # a step is missing as a whole: the tag `allow_nan` would say that any single value may be
    _takes_nan = _takes_sparse = False

    def _checks(self) -> dict[str, Any]:
        return super()._checks() | {"ensure_all_finite": "allow-nan"}

    def _read(self, X: Any, **checks: Any) -> Any:
        require_stacked(X)
        return super()._read(X, **checks)
