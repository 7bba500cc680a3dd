"""The report of `regbayes compare`: a table with a line for each method, or JSON."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from .tables import justified

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

NOTES = {
    "classification": """\
Means over the folds (± standard deviation), seconds of one thread; --json has
all of each fold, with the final values of the objectives. Tuned in each fold by
inner cross-validation: C (and gamma, or the number of clusters) of the SVMs;
the weight_scale of our model, and with small variance the number K of its
components.""",
    "labels": """\
Means over the folds (± standard deviation), seconds of one thread; --json has
all of each fold. Tuned for micro-F1 in each fold by inner cross-validation: C
of the linear models; the number of neighbors; the weight_scale of our models,
by SVI for all backends. P@1: the share of rows that have the label with the
highest score.""",
}
NOTES["regression"] = f"""\
{NOTES["classification"]} All methods see the target in units of its standard
deviation."""


@dataclass(frozen=True)
class Score:
    """The result of one method on one fold."""

    quality: dict[str, float]  # by the names of `_MEASURES`
    components: int | None
    fit_seconds: float  # of the last fit, with the chosen arguments
    tuning_seconds: float  # of the search for the arguments
    predict_seconds: float
    weight_scale: float | None  # of the model, tuned before the fit
    value: float | None  # final objective, ELBO or log joint

    def fields(self) -> dict[str, float | None]:
        """All values by name."""
        return {**self.quality, **{name: value for name, value in asdict(self).items() if name != "quality"}}


@dataclass(frozen=True)
class Method:
    """The results of one method on all folds."""

    name: str
    scores: list[Score]
    value_name: str | None  # of the library's own backends
    estimator: BaseEstimator  # as fitted on the last fold

    def means(self) -> dict[str, float | None]:
        """The mean over the folds of every field of a score; None if a fold has no value."""
        rows = [score.fields() for score in self.scores]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        return {
            name: None if None in values else float(np.mean(np.array(values, dtype=float)))
            for name, values in columns.items()
        }


class TextReport:
    """A table of at most 80 columns whose lines are printed one by one, so that its widths are fixed beforehand.

    Methods named "MODEL, WAY" are below a line with their model.
    """

    def __init__(self, task: str, silent: bool = False) -> None:
        self.silent = silent
        self.measures = _MEASURES[task]
        self.columns = [name for name in _COLUMNS if task != "labels" or name not in _LEFT_OUT]
        cells = ["", *self.measures.values(), *self.columns]
        means = [_SPREAD, *(_MEAN for _ in self.measures)][: len(self.measures)]  # the first shows its spread
        widths = [_NAME, *means, *(_COLUMNS[name] for name in self.columns)]
        self.widths = [max(len(cell), width) for cell, width in zip(cells, widths, strict=True)]
        self.header = justified(cells, self.widths)
        self.model = ""  # of the last line

    def show(self, text: str) -> None:
        """Print lines at once, above the progress bar if there is one."""
        if not self.silent:
            tqdm.write(text)
            sys.stdout.flush()

    def line(self, method: Method) -> str:
        """The line of one method, below a line with its model if that has changed."""
        mean, first = method.means(), next(iter(self.measures))
        spread = np.std([score.quality[first] for score in method.scores])
        digits = {name: ".3g" if name == "rmse" else ".3f" for name in self.measures}
        qualities = [f"{mean[name]:{digits[name]}}" for name in self.measures]
        qualities[0] += f" ± {spread:{digits[first]}}"
        cells = {
            "K": "-" if mean["components"] is None else f"{mean['components']:.1f}",
            "fit s": _seconds(mean["fit_seconds"]),
            "tuning s": _seconds(mean["tuning_seconds"]),
            "predict s": _seconds(mean["predict_seconds"]),
        }
        model, _, way = method.name.rpartition(", ")
        above = f"{model}\n" if model and model != self.model else ""
        self.model, name = model, f"  {way}" if model else way
        return above + justified([name, *qualities, *(cells[name] for name in self.columns)], self.widths)


def _seconds(value: float | None) -> str:
    """Seconds in at most seven characters; "-" if there are none."""
    if not value:
        return "-"
    return f"{value:.{4 if value < 0.1 else 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def as_json(methods: list[Method]) -> dict[str, Any]:
    """The methods with their folds, as values for json."""
    return {
        "methods": [
            {
                "name": method.name,
                "value_name": method.value_name,
                "mean": method.means(),
                "folds": [score.fields() for score in method.scores],
            }
            for method in methods
        ]
    }


_MEASURES = {
    "classification": {"accuracy": "accuracy", "macro_f1": "macro-F1"},
    "regression": {"r2": "R2", "rmse": "RMSE"},
    "labels": {"micro_f1": "micro-F1", "macro_f1": "macro-F1", "hamming_loss": "Hamming", "precision_at_1": "P@1"},
}
_NAME = len("DP-means + LinearSVC")
_SPREAD, _MEAN = len("0.974 ± 0.019"), len("0.974")
_COLUMNS = {"K": 4, "fit s": 6, "tuning s": 0, "predict s": 0}
_LEFT_OUT = ("K", "predict s")  # of label sets, whose four measures are wide
