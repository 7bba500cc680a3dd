"""`regbayes cluster`: clusters of the rows of a table, or states over time, under several models and backends."""

from __future__ import annotations

import argparse
import csv
import json
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import normalized_mutual_info_score

from ..inference import PartitionPosterior, SequencePosterior
from ..inference.posterior.partition_losses import pair_f1
from .errors import CommandError, Interrupted
from .files import interrupted_name, output_folder, replacing, require_other, tell_of_older, text_file
from .fitting import checkpoint_options, final_value, quiet_and_single_threaded, when_interrupted
from .setups import STATE_MODELS, TABLE_MODELS, backend_of, clustering_model
from .tables import Table, aligned, listed, read_table

Clustered = PartitionPosterior | SequencePosterior


@dataclass(frozen=True)
class Problem:
    """Rows to cluster, in the order of time; `order` [N] gives their rows in the table."""

    table: Table
    X: NDArray[np.float64]  # [N, D], NaN rows are missing steps
    order: NDArray[np.int64]
    lengths: list[int] | None  # None: rows are exchangeable
    truth: NDArray[Any] | None  # [N]


@dataclass(frozen=True)
class Result:
    """The clusters that one model found under one backend."""

    model: str
    inference: str
    components: int
    sizes: list[int]
    value_name: str
    value: float
    seconds: float
    nmi: float | None
    f1: float | None


def cluster(options: argparse.Namespace) -> None:
    """Fit every model under every backend, print the table or JSON, write labels and picture."""
    folder = output_folder(options.out)  # a bad folder is reported before the work
    require_other(folder / "cluster.csv", options.data)
    problem = _problem(options)
    models = _models(options, problem)
    backends = list(dict.fromkeys(options.inference or ["gibbs"]))
    results, labels = [], {}
    stopped: list[str] = []
    with quiet_and_single_threaded(), when_interrupted(stopped.append):
        for name, backend in product(models, backends):
            started = time.perf_counter()
            checkpoint = _checkpoint(options.checkpoint, name, backend, len(models) * len(backends))
            posterior = _fit(name, backend, problem, options, checkpoint)
            seconds = time.perf_counter() - started
            found = labels[f"{name}, {backend}"] = _labels(posterior)
            results.append(_result(name, backend, posterior, found, seconds, problem))
            if stopped:
                raise _interrupted(stopped[0], labels, problem, folder, checkpoint)
    picture, labelled = folder / "cluster.png", folder / "cluster.csv"
    _write(labelled, labels, problem)
    _draw(labels, problem, picture)
    tell_of_older(labelled)
    if options.json:
        files = {"labels": str(labelled), "picture": str(picture)}
        print(json.dumps(files | {"results": [asdict(result) for result in results]}, indent=2))
        return
    (N, D), kind = problem.X.shape, "rows" if problem.lengths is None else "steps"
    several = "" if problem.lengths is None else f", {len(problem.lengths)} sequences"
    print(f"{Path(problem.table.path).name}: {N} {kind}, {D} features{several}\n")
    print(_as_text(results))
    if "gibbs" in backends:
        print(_ONE_CHAIN)
    print(f"\nlabels: {labelled}; picture: {picture}")


def _checkpoint(path: str | None, name: str, backend: str, num_fits: int) -> str | None:
    """The checkpoint of one fit: the user's file, or with several fits a file beside it for each."""
    return path if path is None or num_fits == 1 else f"{path}.{name}.{backend}"


def _interrupted(
    message: str, labels: dict[str, NDArray[np.int64]], problem: Problem, folder: Path, checkpoint: str | None
) -> Interrupted:
    """The message after Ctrl-C; the labels found so far are saved, the last ones from the interrupted fit."""
    labelled = folder / "cluster.csv"
    kept = interrupted_name(labelled)
    _write(kept, labels, problem)
    on = f"; the same command goes on from {checkpoint!r}" if checkpoint else ""
    return Interrupted(
        f"{message} That was {list(labels)[-1]}; the labels until then are in {str(kept)!r}, "
        f"and nothing was written to {str(labelled)!r}{on}."
    )


def _problem(options: argparse.Namespace) -> Problem:
    table = read_table(options.data, options.drop)
    kept_out = [name for name in (options.truth, options.time) if name is not None]
    for name in kept_out:
        table.require(name)
    names = [name for name in table.names if name not in kept_out]
    if not names:
        raise CommandError(f"{table.path} has no column of features beside {listed(kept_out)}.")
    sequential = options.time is not None or options.lengths is not None
    if options.time is not None and options.lengths is not None:
        raise CommandError("--time and --lengths exclude each other: --time is for one sequence.")
    X = table.numbers(names, missing_rows=sequential)
    order = np.arange(len(X))
    if options.time is not None:
        order = np.argsort(table.times(options.time), kind="stable")
    X = X[order]
    if len(X) < 2:
        raise CommandError(f"{table.path} has {len(X)} row; there is nothing to cluster.")
    if options.likelihood != "multinomial":
        spread = np.nanstd(X, axis=0)
        X = (X - np.nanmean(X, axis=0)) / np.where(spread > 0, spread, 1.0)
    truth = None if options.truth is None else table.column(options.truth).astype(str)[order]
    return Problem(table, X, order, _lengths(options, len(X)) if sequential else None, truth)


def _lengths(options: argparse.Namespace, num_rows: int) -> list[int]:
    if options.lengths is None:
        return [num_rows]
    try:
        lengths = [int(text) for text in options.lengths.split(",")]
    except ValueError:
        raise CommandError(f"--lengths {options.lengths!r} is not a list of whole numbers such as 100,80.") from None
    if min(lengths) < 1 or sum(lengths) != num_rows:
        raise CommandError(f"--lengths add up to {sum(lengths)}, but {options.data} has {num_rows} rows.")
    return lengths


def _models(options: argparse.Namespace, problem: Problem) -> list[str]:
    known = TABLE_MODELS if problem.lengths is None else STATE_MODELS
    chosen = list(dict.fromkeys(options.model or known[:2]))
    if wrong := [name for name in chosen if name in STATE_MODELS and problem.lengths is None]:
        raise CommandError(f"{wrong[0]} finds states over time: give --time COLUMN or --lengths N,N,...")
    if problem.lengths is not None and np.isnan(problem.X).any() and set(chosen) & set(TABLE_MODELS):
        raise CommandError(f"{chosen[0]} has no place for missing rows; only {listed(list(STATE_MODELS))} have.")
    return chosen


def _fit(name: str, backend: str, problem: Problem, options: argparse.Namespace, checkpoint: str | None) -> Clustered:
    model = clustering_model(name, options.likelihood, problem.X.shape[1])
    lengths = problem.lengths if name in STATE_MODELS else None
    posterior: Clustered = backend_of(backend, options.seed).fit(
        model, problem.X, lengths=lengths, **checkpoint_options(checkpoint)
    )
    return posterior


def _labels(posterior: Clustered) -> NDArray[np.int64]:
    """Clusters [N] of the point partition, numbered by size from 0."""
    _, index, counts = np.unique(posterior.partition().cpu().numpy(), return_inverse=True, return_counts=True)
    return np.argsort(np.argsort(-counts, kind="stable"))[index]


def _result(
    name: str, backend: str, posterior: Clustered, found: NDArray[np.int64], seconds: float, problem: Problem
) -> Result:
    nmi = f1 = None
    if problem.truth is not None:
        index = np.unique(problem.truth, return_inverse=True)[1]
        nmi = float(normalized_mutual_info_score(index, found))
        f1 = pair_f1(torch.from_numpy(found), torch.from_numpy(index))
    sizes = np.bincount(found).tolist()
    return Result(name, backend, len(sizes), sizes, posterior.trace.name, final_value(posterior), seconds, nmi, f1)


def _write(path: Path, labels: dict[str, NDArray[np.int64]], problem: Problem) -> None:
    """Write the table, in its own order of rows, with one more column for each fit."""
    columns = []
    for found in labels.values():
        column = np.empty(len(found), dtype=np.int64)
        column[problem.order] = found
        columns.append(column.tolist())
    with text_file(str(path)) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*problem.table.header, *labels])
        writer.writerows([*row, *cells] for row, *cells in zip(problem.table.rows(), *columns, strict=True))


def _draw(labels: dict[str, NDArray[np.int64]], problem: Problem, path: Path) -> None:
    from matplotlib.figure import Figure

    if problem.lengths is not None:
        from ..plots import plot_states

        figure = Figure(figsize=(10, 1 + 1.3 * len(labels)), layout="constrained")
        for ax, (name, found) in zip(figure.subplots(len(labels), squeeze=False)[:, 0], labels.items(), strict=True):
            plot_states(found, problem.truth, problem.lengths, ax=ax)
            ax.set_title(name)
    else:
        from ..plots import plot_partition

        figure = Figure(figsize=(4.5 * len(labels), 4.2), layout="constrained")
        for ax, (name, found) in zip(figure.subplots(1, len(labels), squeeze=False)[0], labels.items(), strict=True):
            plot_partition(problem.X, found, ax=ax)
            ax.set_title(f"{name}: {found.max() + 1} clusters")
    with replacing(path) as partial:
        figure.savefig(partial, dpi=120, format="png")


def _as_text(results: list[Result]) -> str:
    compared = results[0].nmi is not None
    lines = [["model", "inference", "K", "sizes", "seconds", *(["NMI", "F1"] if compared else [])]]
    for result in results:
        scores = [f"{result.nmi:.3f}", f"{result.f1:.3f}"] if compared else []
        sizes, seconds = _cut(result.sizes), f"{result.seconds:.3g}"
        lines.append([result.model, result.inference, str(result.components), sizes, seconds, *scores])
    return aligned(lines)


def _cut(sizes: list[int]) -> str:
    """The first sizes, as many as fit in a table of 80 columns."""
    text = " ".join(map(str, sizes))
    return text if len(text) <= _WIDTH else text[: _WIDTH - 4].rsplit(" ", 1)[0] + " ..."


_WIDTH = 24
_ONE_CHAIN = """
gibbs is one chain: see with another --seed whether its clusters stay; those of
few rows often do not."""
