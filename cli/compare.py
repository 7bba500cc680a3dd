"""`regbayes compare`: one model under every backend, and rival methods, in one table and one picture."""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.metrics import accuracy_score, f1_score, r2_score, root_mean_squared_error
from sklearn.model_selection import BaseCrossValidator, GridSearchCV, KFold, StratifiedKFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from ..estimators import Classifier, ClassifierCV, MultiLabelClassifier, Regressor, RegressorCV
from ..inference import Backend, Gibbs, PartitionPosterior
from ..models import EpsilonInsensitive, Loss, SquaredHinge
from .compare_labels import LabelFolds, check_label_folds, label_quality, label_scores
from .errors import Interrupted, reported
from .files import interrupted_name, output_folder, replacing, tell_of_older, text_file
from .fitting import final_value, quiet_and_single_threaded, stop, when_interrupted
from .problems import Problem
from .progress import bar
from .report import NOTES, Method, Score, TextReport, as_json
from .rivals import SCORING, rivals
from .setups import LABEL_MODELS, backend_of, backends_for, model_of


class Candidate(NamedTuple):
    """A method with its arguments on a fold, and the seconds of the search for them."""

    estimator: BaseEstimator
    weight_scale: float | None = None
    tuning_seconds: float = 0.0


def compare(problem: Problem, report: TextReport, options: argparse.Namespace) -> None:
    """Cross-validate all methods, print each one's line when it is done, or JSON, and write the picture."""
    started = time.perf_counter()
    folder = output_folder(options.out)
    splits = list(_folds(problem, options.folds, options.seed).split(problem.X, problem.y))
    candidates = _candidates(problem, splits, options)
    done: list[Method] = []
    try:
        with quiet_and_single_threaded(), when_interrupted(stop), bar(len(splits) * len(candidates), "") as progress:
            for name, candidate in candidates.items():
                done.append(_cross_validated(name, candidate, problem, splits, progress))
                report.show(report.line(done[-1]))
        with replacing(folder / "compare.png") as picture:
            _draw(done, problem, splits[-1][0], picture)
    except KeyboardInterrupt:
        raise _interrupted(done, folder, problem, options) from None
    picture = folder / "compare.png"
    tell_of_older(folder / "compare.json")
    report.show(f"\n{NOTES[problem.task]}\n{time.perf_counter() - started:.0f} s in all; picture: {picture}")
    if options.json:
        print(json.dumps(_described(problem, options) | {"picture": str(picture)} | as_json(done), indent=2))


def _folds(problem: Problem, number: int, seed: int) -> BaseCrossValidator:
    if problem.task == "labels":
        return LabelFolds(number, seed)
    kind = KFold if problem.task == "regression" else StratifiedKFold
    return kind(number, shuffle=True, random_state=seed)


def _inner_folds(problem: Problem, splits: list[Any], seed: int) -> BaseCrossValidator:
    """Three folds, or two if the rarest class has too few training rows for three."""
    if problem.task != "classification":
        return _folds(problem, 3, seed)
    fewest = min(np.unique(problem.y[train], return_counts=True)[1].min() for train, _ in splits)
    return _folds(problem, min(3, int(fewest)), seed)


def _candidates(
    problem: Problem, splits: list[Any], options: argparse.Namespace
) -> dict[str, Callable[[int], Candidate]]:
    """By name, a function that returns the method's candidate on a fold.

    Small variance searches along its own paths; the other backends of a model share one search for the weight scale in
    every fold.
    """
    inner = _inner_folds(problem, splits, options.seed)
    if problem.labels:
        check_label_folds(problem, splits, inner)

    @cache
    def tuned(model: str, fold: int) -> tuple[float, float]:
        return _tuned_scale(problem, splits[fold][0], inner, model, options)

    def ours(model: str, backend: str) -> Callable[[int], Candidate]:
        def candidate(fold: int) -> Candidate:
            if backend == "small_variance" and _has_paths(problem, model):
                return Candidate(_search(model, problem, inner, options, _LOSSES[problem.task]))
            scale, seconds = tuned(model, fold)
            return Candidate(_estimator(model, backend, problem, scale, options), scale, seconds)

        return candidate

    def rival(estimator: BaseEstimator) -> Callable[[int], Candidate]:
        return lambda fold: Candidate(clone(estimator))

    others = rivals(problem.task, options.seed, inner)
    models = LABEL_MODELS if problem.labels else (options.model,)
    own = backends_for(models[0])[:2] if problem.labels else backends_for(models[0])  # Gibbs is slow on label sets
    names = list(dict.fromkeys(options.inference or own))
    for model, name in product(models, names):
        _admit(model, name, problem, options)
    return {name: rival(estimator) for name, estimator in others.items()} | {
        f"{model}, {name}": ours(model, name) for model in models for name in names
    }


def _admit(name: str, backend: str, problem: Problem, options: argparse.Namespace) -> None:
    """Raise CommandError unless the backend can fit the model to these data, before the rivals run."""
    scaler, estimator = (step for _, step in _estimator(name, backend, problem, 1.0, options).steps)
    y = np.unique(problem.y, return_inverse=True)[1] if problem.task == "classification" else problem.y
    with reported(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fits give these warnings
        estimator.inference.admit(estimator.model)
        estimator.model.prepare(problem.X if scaler == "passthrough" else scaler.fit_transform(problem.X), y)


def _estimator(name: str, backend: str, problem: Problem, weight_scale: float, options: argparse.Namespace) -> Pipeline:
    real = problem.task == "regression"
    model = model_of(name, options.likelihood, problem.X.shape[1], real).set_params(weight_scale=weight_scale)
    inference = _shortened(backend_of(backend, options.seed, progress=False))
    estimator = _ESTIMATORS[problem.task](model, inference)
    scaler = "passthrough" if name == "MedLDA" else StandardScaler()  # counts stay counts
    return Pipeline([("scaler", scaler), ("estimator", estimator)])


def _tuned_scale(
    problem: Problem, train: NDArray[Any], inner: BaseCrossValidator, model: str, options: argparse.Namespace
) -> tuple[float, float]:
    """The prior scale of the classifiers, by a search with the first backend, and the seconds of the search."""
    started, y = time.perf_counter(), _units(problem, train)[0]
    if _has_paths(problem, model):
        found = _search(model, problem, inner, options, num_components=(1, 4)).fit(problem.X[train], y)
        return found[-1].weight_scale_, time.perf_counter() - started
    grid = {"estimator__model__weight_scale": _SCALES}
    method = _estimator(model, backends_for(model)[0], problem, 1.0, options)
    search = GridSearchCV(method, grid, cv=inner, scoring=SCORING[problem.task], refit=False, error_score="raise")
    search.fit(problem.X[train], y)
    return search.best_params_["estimator__model__weight_scale"], time.perf_counter() - started


def _has_paths(problem: Problem, model: str) -> bool:
    """Whether small variance searches the settings of the model along paths."""
    return model == "InfiniteSVM" and problem.task in _SEARCHES


def _search(
    name: str,
    problem: Problem,
    inner: BaseCrossValidator,
    options: argparse.Namespace,
    loss: Loss | None = None,
    num_components: tuple[int, ...] | None = None,
) -> Pipeline:
    """The search of small variance, with as many strengths and numbers of clusters as the rivals have."""
    model = model_of(name, options.likelihood, problem.X.shape[1], problem.task == "regression")
    model = model if loss is None else model.set_params(loss=loss)
    backend = backend_of("small_variance", options.seed, progress=False).replace(scale=10.0)
    search = _SEARCHES[problem.task](model, backend, weight_scales=_PATH, num_components=num_components, cv=inner)
    return Pipeline([("scaler", StandardScaler()), ("estimator", search)])


def _shortened(backend: Backend) -> Backend:
    """Gibbs sampling with fewer sweeps than by default, so that no method takes much longer than the others."""
    if not isinstance(backend, Gibbs):
        return backend
    return backend.replace(num_samples=min(30, backend.num_samples), num_warmup=min(20, backend.num_warmup))


def _units(problem: Problem, train: NDArray[Any]) -> tuple[NDArray[Any], float, float]:
    """The training targets as all methods see them, and the mean and scale of numbers before standardization."""
    y = problem.y[train]
    if problem.task != "regression":
        return y, 0.0, 1.0
    mean, scale = float(y.mean()), float(y.std()) or 1.0
    return (y - mean) / scale, mean, scale


def _cross_validated(
    name: str, candidate: Callable[[int], Candidate], problem: Problem, splits: list[Any], progress: Any
) -> Method:
    scores = []
    for fold, (train, test) in enumerate(splits):
        progress.set_description(f"{name}, fold {fold + 1}")
        chosen = candidate(fold)
        scores.append(_score(chosen, problem, train, test))
        progress.update()
    posterior = getattr(_final(chosen.estimator), "posterior_", None)
    return Method(name, scores, None if posterior is None else posterior.trace.name, chosen.estimator)


def _score(candidate: Candidate, problem: Problem, train: NDArray[Any], test: NDArray[Any]) -> Score:
    method, (y, mean, scale) = candidate.estimator, _units(problem, train)
    started = time.perf_counter()
    method.fit(problem.X[train], y)
    fitted = time.perf_counter()
    predicted = method.predict(problem.X[test])
    finished = time.perf_counter()
    if problem.task == "regression":
        predicted = mean + scale * predicted
    scores = label_scores(method, problem.X[test]) if problem.labels else None
    final = _final(method)
    posterior = getattr(final, "posterior_", None)
    refit = getattr(method, "refit_time_", getattr(final, "refit_time_", fitted - started))
    return Score(
        quality=_quality(problem.task, problem.y[test], predicted, scores),
        components=getattr(final, "n_components_", None),
        fit_seconds=refit,
        tuning_seconds=candidate.tuning_seconds + fitted - started - refit,
        predict_seconds=finished - fitted,
        weight_scale=getattr(final, "weight_scale_", candidate.weight_scale),
        value=None if posterior is None else final_value(posterior),
    )


def _quality(
    task: str, truth: NDArray[Any], predicted: NDArray[Any], scores: NDArray[np.float64] | None
) -> dict[str, float]:
    if scores is not None:
        return label_quality(truth, predicted, scores)
    if task == "regression":
        return {"r2": r2_score(truth, predicted), "rmse": root_mean_squared_error(truth, predicted)}
    return {"accuracy": accuracy_score(truth, predicted), "macro_f1": f1_score(truth, predicted, average="macro")}


def _final(method: BaseEstimator) -> BaseEstimator:
    """The last step of a fitted pipeline, or of the best one of a search."""
    return getattr(method, "best_estimator_", method)[-1]


def _interrupted(done: list[Method], folder: Path, problem: Problem, options: argparse.Namespace) -> Interrupted:
    """The message after Ctrl-C; the results of the finished methods are saved."""
    if not done:
        return Interrupted("no method was done.")
    kept = interrupted_name(folder / "compare.json")
    with text_file(str(kept)) as file:
        json.dump(_described(problem, options) | as_json(done), file, indent=2)
    return Interrupted(f"the results of {len(done)} methods are in {str(kept)!r}; no picture was drawn.")


def _draw(done: list[Method], problem: Problem, rows: NDArray[Any], path: Path) -> None:
    """Draw the components and hyperplanes of the last fold, if there are any, above the traces."""
    from matplotlib.figure import Figure

    from ..plots import plot_components, plot_trace
    from ..plots.axes import counted

    ours = [method for method in done if method.value_name]
    mixture = isinstance(ours[0].estimator[-1].posterior_, PartitionPosterior)
    heights = [3, 2] if mixture else [2]
    figure = Figure(figsize=(5.2 * len(ours), 8 if mixture else 4), layout="constrained")
    axes = figure.subplots(len(heights), len(ours), squeeze=False, height_ratios=heights)
    labels = problem.y[rows] if problem.task == "classification" else None
    for method, column in zip(ours, axes.T, strict=True):
        scaler, estimator = method.estimator
        posterior = estimator.posterior_
        if mixture:
            plot_components(posterior, scaler.transform(problem.X[rows]), labels, ax=column[0])
            column[0].set_title(f"{method.name}: {counted(posterior.num_components, 'component')}")
        else:
            column[0].set_title(method.name)
        plot_trace({method.name: posterior}, ax=column[-1])
    figure.suptitle(f"{problem.name}, fit of the last fold")
    figure.savefig(path, dpi=120, format="png")


def _described(problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "data": problem.name,
        "task": problem.task,
        "rows": len(problem.X),
        "features": problem.X.shape[1],
        **({"labels": list(problem.labels)} if problem.labels else {}),
        "folds": options.folds,
        "seed": options.seed,
    }


_SCALES = [0.3, 1.0, 0.1]
# micro-F1 of label sets needs no probabilities, nor fits for them
_ESTIMATORS: dict[str, Callable[..., BaseEstimator]] = {
    "classification": Classifier,
    "regression": Regressor,
    "labels": partial(MultiLabelClassifier, cv=None),
}
_SEARCHES = {"classification": ClassifierCV, "regression": RegressorCV}
_LOSSES = {"classification": SquaredHinge(), "regression": EpsilonInsensitive()}
_PATH = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
