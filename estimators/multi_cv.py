"""`MultiLabelClassifierCV`: label sets whose settings are chosen by micro-F1 on folds; the search is in `search`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import scipy.sparse
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import logit
from torch import Tensor

from ..inference import Backend, MultiLabelPosterior
from ..inference.posterior.label_calibration import fit_calibration, shared_threshold
from ..inference.posterior.multi_label import HeldOut
from ..models import Model
from .label_folds import deal_rows, taught
from .multi import MultiLabelClassifier
from .paths import Rows, at, climbed, shares_mixture, varied
from .search import Search


class MultiLabelClassifierCV(Search, MultiLabelClassifier):
    """`MultiLabelClassifier` whose weight scale and other settings are chosen by cross-validated micro-F1 (accuracy if
    y is a vector). Each setting has a calibration and a threshold of its own, from its held-out rows.

    If the joint is "product" and the backend is `SVI`, the fits of a fold share one mixture: only the classifiers
    change from scale to scale, starting from those of the scale before. y is as in `MultiLabelClassifier`.

    Parameters
    ----------
    model : a model of label sets; None: as in `MultiLabelClassifier`
    inference : as in `MultiLabelClassifier`
    strengths : strengths of the loss to choose from; the logistic loss has none
    weight_scales : prior standard deviations of the classifier weights to choose from; None: six from 0.05 to 3
    num_components : numbers to choose from: truncations of the mixture, or with `SmallVariance` numbers for which it
        sets its penalty; a later number has to be better than the first by more than chance. None: that of the model or
        the backend
    cv : as in `ClassifierCV`; if it is a number, the folds share the rarest labels evenly

    Attributes
    ----------
    num_components_, strength_, weight_scale_, best_params_, best_score_ : as in `ClassifierCV`
    scores_ : micro-F1 [F, K, S, W] by fold, number of components, strength and weight scale
    refit_time_ : seconds of the fit to all rows
    posterior_, threshold_, classes_, n_components_, n_features_in_ : as in `MultiLabelClassifier`

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> X, Y = make_multilabel_classification(n_classes=3, random_state=0)
    >>> MultiLabelClassifierCV(weight_scales=[0.1, 1.0]).fit(X, Y).scores_.shape
    (3, 1, 1, 2)
    """

    posteriors = (MultiLabelPosterior,)
    accepted = "a model of label sets"
    elsewhere = "MultiLabelClassifier for many tasks, and ClassifierCV for others"
    arguments = ("num_components", "strengths", "weight_scales")
    scales = (0.05, 0.1, 0.2, 0.5, 1.0, 3.0)

    def __init__(
        self,
        model: Model | None = None,
        inference: Backend | None = None,
        *,
        strengths: Sequence[float] = (1.0,),
        weight_scales: Sequence[float] | None = None,
        num_components: Sequence[int] | None = None,
        cv: Any = 3,
    ) -> None:
        super().__init__(model, inference, cv=cv)
        self.strengths = strengths
        self.weight_scales = weight_scales
        self.num_components = num_components

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Search, and fit the best setting to X [N, D] and y [N, L] of 0 and 1, or labels y [N].

        Parameters
        ----------
        groups : as in `ClassifierCV`
        """
        rows = self.fit_data(X)
        targets, parts = self.read_labels(rows, y, None), self.parts_for(rows)
        found = self.search(parts, Rows(rows, targets, np.ones(rows.shape[0])), groups)
        started = time.perf_counter()
        model, inference = varied(parts, found.best.setting)
        held_out = _held_out(found.decisions, found.y)
        self.fit_and_calibrate((at(model, *found.best.steps[-1]), inference), rows, targets, [held_out])
        self.refit_time_ = time.perf_counter() - started
        return self

    def fitted(self, parts: tuple[Any, Any], X: Any, targets: Any, *, held_out: bool = False) -> Any:
        """As in `MultiLabelClassifier`; if settings share a mixture, the classifiers are then fitted to convergence.

        The search does so too, and its calibration suits no other classifiers.
        """
        posterior = super().fitted(parts, X, targets, held_out=held_out)
        if not shares_mixture(parts):
            return posterior
        return climbed(posterior, parts[1], posterior.model.data(X, targets.astype(X.dtype)))

    def deal(self, rows: Rows, number: int, copies: NDArray[np.int64]) -> NDArray[np.int64]:
        return deal_rows(rows.X, rows.y, number)

    def order(self, y: Any) -> NDArray[np.float64]:
        """How many labels a row has."""
        found: NDArray[np.float64] = np.asarray(y.sum(1) if scipy.sparse.issparse(y) else np.nansum(y, 1)).ravel()
        return found

    def decide(self, posterior: Any, held: Rows, seen: Any, temperatures: tuple[float, ...]) -> list[NDArray[Any]]:
        """Log odds [n, L, 2] of both views; NaN for a label of which the other rows teach nothing."""
        y = held.y.toarray() if scipy.sparse.issparse(held.y) else held.y
        unknown = np.isnan(taught(np.zeros_like(y, dtype=float), seen.y))
        views = np.stack([np.asarray(view) for view in posterior.held_out(held.X, y)[:2]], -1)
        return [np.where(unknown[..., None], np.nan, views)]

    def settled(self, decisions: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        """Calibrated log odds [M, L], minus those of the threshold."""
        mixture, classifiers, signs = (part.double() for part in _held_out(decisions, y))
        present, known = (signs == 1).sum(0), (~signs.isnan()).sum(0)
        counted_twice = 0.0 if self.parts()[0].is_coupled else 1.0
        offset = -counted_twice * torch.logit((present + 1.0) / (known + 2.0)).double()
        a, b, shift = fit_calibration(mixture, classifiers, signs, offset).tensor_split([1, 2])
        log_odds = a * mixture + b * classifiers + shift
        found = log_odds - logit(shared_threshold(log_odds.sigmoid(), signs) if self.has_matrix else 0.5)
        return found.where(~signs.isnan() | torch.from_numpy(np.isnan(y)), -torch.inf).numpy()

    def score_rows(self, decisions: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        """A score of each row [n], whose mean is F1 = 2 hits / (predicted + present)."""
        hits, total = self._counts(decisions, y)
        size = max(total.mean(), np.finfo(np.float64).tiny)
        f1 = hits.mean() / size
        found: NDArray[np.float64] = f1 + (hits - f1 * total) / size
        return found

    def _counts(self, decisions: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Twice the hits [n] of each row, and the number of its true labels plus that of its predicted labels."""
        known, present = ~np.isnan(y), y == 1
        if self.has_matrix or y.shape[1] == 1:
            taken = (decisions > 0) & known
            if not self.has_matrix:
                right = (taken == present).ravel() & known.ravel()
                return 2 * right, 2 * known.ravel()
            return 2 * (taken & present).sum(1), (taken.astype(int) + present).sum(1)
        right = present[np.arange(len(y)), decisions.argmax(1)]
        return 2 * right, 2 * known.all(1)


def _held_out(decisions: NDArray[Any], y: NDArray[Any]) -> HeldOut:
    """Both views [M, L] as calibration takes them, and labels y [M, L] of 0 and 1, which miss where it has no views."""
    views, labels = torch.from_numpy(decisions), torch.from_numpy(y.astype(decisions.dtype))
    signs: Tensor = (2 * labels - 1).where(~views[..., 0].isnan(), torch.nan)
    mixture, classifiers = views.nan_to_num().unbind(-1)
    return HeldOut(mixture, classifiers, signs)
