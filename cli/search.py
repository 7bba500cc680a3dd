"""The search of `regbayes fit`: settings by cross-validation, and a fit of the best ones to all rows."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import KFold

from ..estimators import ClassifierCV, RegressorCV
from ..inference import Posterior
from ..models import SquaredHinge
from .errors import Interrupted
from .ranks import rank
from .setups import backend_of


class Found(NamedTuple):
    """The result of a search: the fit to all rows, and a text on the chosen settings."""

    posterior: Posterior
    said: str


def why_no_search(options: argparse.Namespace, X: NDArray[np.float64], y: Any) -> str | None:
    """The reason why a fit keeps its default settings ("" if it need not be said); None if it is to search."""
    if not options.search or y is None:
        return ""
    if rank()[1] > 1:
        return "several ranks do not search yet"
    if options.checkpoint:
        return "a search cannot go on from a --checkpoint"
    if options.model != "InfiniteSVM":
        return f"there is none for {options.model}, but for InfiniteSVM"
    if len(X) < _FEWEST or len(np.unique(np.column_stack([X[:MOST_ROWS], y[:MOST_ROWS]]), axis=0)) < _FEWEST:
        return f"it takes {_FEWEST} different rows"
    return None


def search(model: Any, X: NDArray[np.float64], y: NDArray[Any], options: argparse.Namespace) -> Found:
    """Choose settings of small variance, fit the best to all rows, and set the slope of the probabilities.

    Parameters
    ----------
    model : the command's model, whose components the search keeps; its loss for classes is the squared hinge
    X, y : rows [N, D], and classes or standardized numbers [N]

    Raises
    ------
    Interrupted    on Ctrl-C, also in the last fit.
    """
    real = not model.coding.has_classes
    estimator = _searched(model if real else model.set_params(loss=SquaredHinge()), X, y, options)
    posterior = estimator.posterior_
    # without the labels of the rows at which it started
    posterior.backend = estimator.inference.replace(num_components=estimator.num_components_)
    if not real:
        posterior = posterior.with_slope(float(estimator.slope_))
    return Found(posterior, _said(estimator, len(X), real))


def with_weight_scale(model: Any, X: NDArray[np.float64], y: NDArray[Any], options: argparse.Namespace) -> Any:
    """The model with the weight scale that small variance finds, for the other backends, and a text about it.

    It is as in `compare`: a search of their own would cost some thirty fits. Arguments and errors as in `search`.
    """
    estimator = _searched(model, X, y, options, num_components=(1, 4), temperatures=(0.0,))
    scale = estimator.weight_scale_
    said = f"chosen by 3 folds {_of(len(X))}, by small_variance: weight scale {scale:g}"
    return model.set_params(weight_scale=scale), said


def _searched(model: Any, X: NDArray[np.float64], y: NDArray[Any], options: argparse.Namespace, **grid: Any) -> Any:
    """Run the search of small variance, and return the fitted estimator."""
    backend = backend_of("small_variance", options.seed, progress=False).replace(scale=_SCALE)
    search = ClassifierCV if model.coding.has_classes else RegressorCV
    try:
        return search(model, backend, cv=_folds(len(X), options.seed), **grid).fit(X, y)
    except KeyboardInterrupt:
        raise Interrupted(
            f"Interrupted in the search for settings: no fit was reached, and nothing was written to "
            f"{options.output!r}. --no-search leaves it out."
        ) from None


def _folds(num_rows: int, seed: int) -> Any:
    """Three folds of all rows, or of a random subset if there are many."""
    if num_rows <= MOST_ROWS:
        return 3
    chosen = np.random.default_rng(seed).permutation(num_rows)[:MOST_ROWS]
    return [(chosen[train], chosen[test]) for train, test in KFold(3).split(chosen)]


def _said(estimator: Any, num_rows: int, real: bool) -> str:
    """A text on the chosen settings, and on their quality on held-out rows."""
    number, temperature = estimator.num_components_, estimator.temperature_
    facts = [
        *([] if estimator.strength_ is None else [f"strength {estimator.strength_:g}"]),
        f"weight scale {estimator.weight_scale_:g}",
        f"{number} component{'s' * (number != 1)} aimed at",
        f"temperature {temperature:g}",
        *([] if real else [f"probabilities of slope {estimator.slope_:.3g}"]),
    ]
    if len(estimator.shares_) > 1:
        shares = ", ".join(f"{number} ({share:.0%})" for number, share in estimator.shares_.items())
        facts.append(f"decisions averaged over fits of {shares} components")
    score = f"{'R2' if real else 'accuracy'} {estimator.best_score_:.3f}"
    return f"chosen by 3 folds {_of(num_rows)} ({score}): {', '.join(facts)}"


def _of(num_rows: int) -> str:
    return f"of {MOST_ROWS:,} of {num_rows:,} rows" if num_rows > MOST_ROWS else f"of {num_rows:,} rows"


MOST_ROWS = 20_000
_FEWEST = 10
_SCALE = 10.0
