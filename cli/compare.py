"""`regbayes compare`: one model under every backend beside its rivals: one table and one picture."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

from ..estimators import Classifier
from ..inference import FitInterrupted, Posterior, SmallVariance
from .errors import CommandError, reported
from .rivals import rivals
from .setups import BACKENDS, backend_of, model_of
from .tables import aligned, check_labels, features_and_labels, read_table


@dataclass(frozen=True)
class Problem:
    """A classification problem, and what to call it."""

    name: str
    X: NDArray[np.float64]
    y: NDArray[Any]


@dataclass(frozen=True)
class Score:
    """One method on one fold."""

    accuracy: float
    macro_f1: float
    components: int | None
    fit_seconds: float  # of the last fit, with the chosen arguments
    tuning_seconds: float  # of the search for them
    predict_seconds: float
    weight_scale: float | None  # of the model, tuned before the fit
    value: float | None  # final objective, ELBO or log joint


def compare(options: argparse.Namespace) -> None:
    """Cross-validate, print the table or JSON, and write the picture."""
    started = time.perf_counter()
    problem = _problem(options)
    folder = output_folder(options.out)
    names = list(dict.fromkeys(options.inference or BACKENDS))
    with quiet_and_single_threaded():
        scores, fitted = _run(names, problem, options)
    picture = folder / "compare.png"
    _draw(fitted, problem, picture)
    value_names = {name: method[-1].posterior_.trace.name for name, method in fitted.items()}
    if options.json:
        print(json.dumps(_as_json(scores, value_names, problem, options, picture), indent=2))
        return
    (N, D), L = problem.X.shape, len(np.unique(problem.y))
    print(f"{problem.name}: {N} rows, {D} features, {L} classes; {options.folds} stratified folds\n")
    print(_as_text(scores, value_names))
    print(f"\n{_NOTE}\n{time.perf_counter() - started:.0f} s in all; picture: {picture}")


def _problem(options: argparse.Namespace) -> Problem:
    if options.data is None:
        if options.target is not None:
            raise CommandError("--target needs --data FILE.csv.")
        from sklearn.datasets import load_breast_cancer

        bunch = load_breast_cancer()
        return Problem("breast cancer", bunch.data, bunch.target_names[bunch.target])
    table = read_table(options.data)
    if options.target is None:
        raise CommandError(f"--data needs --target COLUMN; the last column is {table.names[-1]!r}.")
    _, X, y = features_and_labels(table, options.target)
    check_labels(table.path, options.target, y, options.folds)
    return Problem(Path(options.data).name, X, y)


def output_folder(path: str) -> Path:
    """The output folder, made before the work so that a bad path fails early."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--out {path!r} cannot be made a folder: {error.strerror}.") from None
    return folder


def _run(
    names: list[str], problem: Problem, options: argparse.Namespace
) -> tuple[dict[str, list[Score]], dict[str, Pipeline]]:
    """Scores of every method on every fold; and the model on all rows by every backend, for the picture.

    The methods take turns, so that a slow spell of the machine hits all of them.
    """
    splits = list(StratifiedKFold(options.folds, shuffle=True, random_state=options.seed).split(problem.X, problem.y))
    fewest = min(np.unique(problem.y[train], return_counts=True)[1].min() for train, _ in splits)
    inner = StratifiedKFold(min(3, int(fewest)), shuffle=True, random_state=options.seed)
    ours, others = {f"{options.model}, {name}": name for name in names}, rivals(options.seed, inner)
    scores: dict[str, list[Score]] = {name: [] for name in [*ours, *others]}
    steps = len(splits) * (1 + len(scores)) + 1 + len(ours)
    with tqdm(total=steps, file=sys.stderr, leave=False, unit="fit", disable=None) as bar:

        def show(text: str) -> None:
            bar.set_description(text)
            bar.update()

        for index, (train, test) in enumerate(splits):
            show(f"fold {index + 1}, tuning")
            scale, seconds = _tuned_scale(problem, train, inner, options)
            for name, method in others.items():
                show(f"fold {index + 1}, {name}")
                scores[name].append(_score(method, problem, train, test))
            for name, backend in ours.items():
                show(f"fold {index + 1}, {name}")
                method = _classifier(options, backend, problem, scale)
                scores[name].append(_score(method, problem, train, test, scale, seconds))
        show("all rows, tuning")
        scale, _ = _tuned_scale(problem, np.arange(len(problem.X)), inner, options)
        fitted = {}
        for name, backend in ours.items():
            show(f"all rows, {name}")
            fitted[name] = _classifier(options, backend, problem, scale).fit(problem.X, problem.y)
    return scores, fitted


def _classifier(options: argparse.Namespace, backend: str, problem: Problem, weight_scale: float) -> Pipeline:
    model = model_of(options.model, options.likelihood, problem.X.shape[1]).set_params(weight_scale=weight_scale)
    return make_pipeline(StandardScaler(), Classifier(model, backend_of(backend, options.seed, progress=False)))


def _tuned_scale(
    problem: Problem, train: NDArray[Any], inner: StratifiedKFold, options: argparse.Namespace
) -> tuple[float, float]:
    """Prior scale of the classifiers, and the seconds of the search: by the fastest backend, on behalf of all."""
    started = time.perf_counter()
    grid = {"classifier__model__weight_scale": [0.3, 1.0, 0.1]}
    method = _classifier(options, "small_variance", problem, 1.0)
    search = GridSearchCV(method, grid, cv=inner, refit=False, error_score="raise")
    search.fit(problem.X[train], problem.y[train])
    return search.best_params_["classifier__model__weight_scale"], time.perf_counter() - started


def _score(
    method: BaseEstimator,
    problem: Problem,
    train: NDArray[Any],
    test: NDArray[Any],
    weight_scale: float | None = None,
    tuning_seconds: float = 0.0,
) -> Score:
    started = time.perf_counter()
    method.fit(problem.X[train], problem.y[train])
    fitted = time.perf_counter()
    predicted = method.predict(problem.X[test])
    finished = time.perf_counter()
    final = getattr(method, "best_estimator_", method)[-1]
    posterior = getattr(final, "posterior_", None)
    refit = getattr(method, "refit_time_", fitted - started)
    return Score(
        accuracy=accuracy_score(problem.y[test], predicted),
        macro_f1=f1_score(problem.y[test], predicted, average="macro"),
        components=getattr(final, "n_components_", None),
        fit_seconds=refit,
        tuning_seconds=tuning_seconds + fitted - started - refit,
        predict_seconds=finished - fitted,
        weight_scale=weight_scale,
        value=None if posterior is None else final_value(posterior),
    )


def final_value(posterior: Posterior) -> float:
    """The final value of the chain that the posterior stands for: the best of a point estimate's, the mean of draws."""
    final = posterior.trace.final
    if len(posterior.num_draws) > 1:
        return float(final.mean())
    return float(final.min() if isinstance(posterior.backend, SmallVariance) else final.max())


@contextmanager
def quiet_and_single_threaded() -> Iterator[None]:
    """One thread, so that seconds compare; rivals' convergence warnings off; Ctrl-C ends the command, not one fit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings(), reported():
            warnings.simplefilter("once")
            warnings.filterwarnings("ignore", module="sklearn")
            warnings.simplefilter("error", FitInterrupted)
            yield
    except FitInterrupted:
        raise KeyboardInterrupt from None
    finally:
        torch.set_num_threads(threads)


def _draw(fitted: dict[str, Pipeline], problem: Problem, path: Path) -> None:
    """Components with their hyperplanes above, the trace of every backend below."""
    from matplotlib.figure import Figure

    from ..plots import plot_components, plot_trace

    figure = Figure(figsize=(5.2 * len(fitted), 8), layout="constrained")
    axes = figure.subplots(2, len(fitted), squeeze=False, height_ratios=[3, 2])
    for (name, pipeline), (above, below) in zip(fitted.items(), axes.T, strict=True):
        scaler, classifier = pipeline
        posterior = classifier.posterior_
        plot_components(posterior, scaler.transform(problem.X), problem.y, ax=above)
        above.set_title(f"{name}: {posterior.num_components} components")
        plot_trace({name: posterior}, ax=below)
    figure.suptitle(problem.name)
    figure.savefig(path, dpi=120)


# -- results ----------------------------------------------------------------------------------------------------------

_NOTE = """\
Means over the folds (± standard deviation), seconds of one thread. Tuned in each fold by inner cross-validation: C (and
gamma) of the SVMs; the infinite SVM's weight_scale, by small_variance for all backends. Final values do not compare
across backends."""


def _as_text(scores: dict[str, list[Score]], value_names: dict[str, str]) -> str:
    header = ["", "accuracy", "macro-F1", "components", "fit s", "tuning s", "predict s", "final value"]
    lines = [header]
    for name, rows in scores.items():
        mean = _means(rows)
        spread = {field: np.std([getattr(row, field) for row in rows]) for field in ("accuracy", "macro_f1")}
        lines.append(
            [
                name,
                *(f"{mean[field]:.3f} ± {spread[field]:.3f}" for field in ("accuracy", "macro_f1")),
                "-" if mean["components"] is None else f"{mean['components']:.1f}",
                f"{mean['fit_seconds']:.3g}",
                f"{mean['tuning_seconds']:.3g}" if mean["tuning_seconds"] else "-",
                f"{mean['predict_seconds']:.2g}",
                "-" if mean["value"] is None else f"{value_names[name]} {mean['value']:.6g}",
            ]
        )
    return aligned(lines)


def _means(rows: list[Score]) -> dict[str, float | None]:
    columns = {field: [asdict(row)[field] for row in rows] for field in asdict(rows[0])}
    return {field: None if None in values else float(np.mean(values)) for field, values in columns.items()}


def _as_json(
    scores: dict[str, list[Score]],
    value_names: dict[str, str],
    problem: Problem,
    options: argparse.Namespace,
    picture: Path,
) -> dict[str, Any]:
    return {
        "data": problem.name,
        "rows": len(problem.X),
        "features": problem.X.shape[1],
        "folds": options.folds,
        "seed": options.seed,
        "picture": str(picture),
        "methods": [
            {
                "name": name,
                "value_name": value_names.get(name),
                "mean": _means(rows),
                "folds": [asdict(row) for row in rows],
            }
            for name, rows in scores.items()
        ],
    }
