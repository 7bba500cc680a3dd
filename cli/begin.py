"""The steps of `regbayes compare` before torch is loaded: read the table, show its size and the results' header."""

from __future__ import annotations

import argparse

import numpy as np

from .errors import CommandError
from .files import output_folder
from .problems import Problem, label_problem, problem_of
from .report import TextReport
from .tables import read_table


def compare(options: argparse.Namespace) -> None:
    """Run `regbayes compare`."""
    problem, report = begin(options)
    from .compare import compare

    compare(problem, report, options)


def begin(options: argparse.Namespace) -> tuple[Problem, TextReport]:
    """The problem, and the table of results, whose header has been printed."""
    output_folder(options.out)  # a bad folder is reported before the work
    problem = _problem(options)
    report = TextReport(problem.task, silent=options.json)
    report.show(f"{_said(problem, options)}\n\n{report.header}")
    return problem, report


def _problem(options: argparse.Namespace) -> Problem:
    _check_options(options)
    if options.data is None:
        return _made_problem()
    table = read_table(options.data, options.drop)
    if options.targets is not None:
        return label_problem(table, options.targets, options.folds)
    if options.target is None:
        last = table.names[-1]
        raise CommandError(f"--data needs --target COLUMN, or --targets A,B,C for labels; the last column is {last!r}.")
    return problem_of(table, options.target, options.task, options.folds)


def _made_problem() -> Problem:
    """Three classes, each of three separate clusters, so that no single hyperplane per class separates them."""
    from sklearn.datasets import make_classification

    of_clusters = {"n_classes": 3, "n_clusters_per_class": 3, "class_sep": 2.0}
    X, y = make_classification(600, 4, n_informative=4, n_redundant=0, random_state=0, **of_clusters)
    return Problem("simulated rows", "classification", [f"x{column}" for column in range(4)], X, y)


def _check_options(options: argparse.Namespace) -> None:
    """Set the default model; raise CommandError unless the model and the options suit the same kind of target."""
    given = {"--target": options.target, "--targets": options.targets, "--drop": options.drop or None}
    if options.data is None and (named := [name for name, value in given.items() if value is not None]):
        raise CommandError(f"{named[0]} needs --data FILE.csv.")
    many = options.targets is not None
    if many and options.target is not None:
        raise CommandError("--target and --targets exclude each other: one is a class or a number, the other labels.")
    if many and options.task == "regression":
        raise CommandError("--targets are labels, 0 or 1; --task regression is for the numbers of one --target.")
    options.model = options.model or ("BNMC" if many else "InfiniteSVM")
    if many and options.model != "BNMC":
        raise CommandError(f"--targets need --model BNMC, the default there; {options.model} takes one --target.")
    if options.model == "BNMC" and not many:
        raise CommandError("BNMC needs --targets A,B,C, the columns of its labels.")


def _said(problem: Problem, options: argparse.Namespace) -> str:
    N, D = problem.X.shape
    if problem.task == "regression":
        return f"{problem.name}: {N} rows, {D} features, a number to predict; {options.folds} folds"
    found = f"{len(problem.labels)} labels" if problem.labels else f"{len(np.unique(problem.y))} classes"
    return f"{problem.name}: {N} rows, {D} features, {found}; {options.folds} stratified folds"
