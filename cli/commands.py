"""`regbayes fit`, `predict` and `info`: from a table to a saved posterior, and from a posterior to predictions."""

from __future__ import annotations

import argparse
import csv
import json
import textwrap
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..inference import FeaturePosterior, PartitionPosterior, Posterior
from ..inference.distributed.collectives import on_all
from .errors import CommandError, Interrupted, reported
from .files import check_output, delimiter_of, interrupted_name, standard_output, tell_of_older, text_file
from .fitting import checkpoint_options, compiling_told, when_interrupted
from .problems import problem_of
from .progress import bar
from .ranks import rank, ranked
from .search import search, why_no_search, with_weight_scale
from .setups import backend_of, backends_for, model_of
from .streaming import fit_blocks
from .tables import Table, listed, read_table


def fit(options: argparse.Namespace) -> None:
    """Search settings, fit to a table and save the posterior, with names of features and classes in its metadata."""
    stopped: list[str] = []
    with reported(), ranked() as group, when_interrupted(stopped.append), compiling_told():
        table = on_all(lambda: _table(options))
        posterior, metadata, said = (fit_blocks if options.batch_size else _fit_at_once)(table, options, group)
        posterior.metadata = metadata
        path = str(interrupted_name(options.output)) if stopped else options.output
        on_all(lambda: posterior.save(path), "save")
        found = str(posterior)
    if stopped:
        on = f"; the same command goes on from {options.checkpoint!r}" if options.checkpoint else ""
        raise Interrupted(f"{stopped[0]} That is in {path!r}, and nothing was written to {options.output!r}{on}.")
    if not rank()[0]:
        tell_of_older(options.output)
        print(*filter(None, [said, found, f"saved to {options.output}"]), sep="\n")


def _table(options: argparse.Namespace) -> Table:
    """Read the table to fit, after checking that the posterior can be written."""
    check_output(options.output, options.data, options.checkpoint)
    return read_table(options.data, options.drop)


def _fit_at_once(table: Table, options: argparse.Namespace, group: Any) -> tuple[Any, dict[str, Any], str]:
    """Fit all rows: the posterior, the metadata for `predict`, and a line to print about them."""
    X, y, metadata = on_all(lambda: _given(table, options))
    model = model_of(options.model, options.likelihood, X.shape[1], "target_scale" in metadata)
    name, reason = options.inference or backends_for(options.model)[0], why_no_search(options, X, y)
    if reason is None and name == "small_variance":
        posterior, said = search(model, X, y, options)
        return posterior, metadata, said
    said = f"fitted at the default settings, without a search: {reason}" if reason else ""
    if reason is None:
        model, said = with_weight_scale(model, X, y, options)
    files = checkpoint_options(options.checkpoint)
    posterior = backend_of(name, options.seed).fit(model, X, y, group=group, **files)
    return posterior, metadata, said


def predict(options: argparse.Namespace) -> None:
    """Write the prediction, class probabilities and, of a mixture, the component of every row of a table."""
    to_file = options.output != "-"
    if to_file:
        check_output(options.output, options.data, options.posterior)
    posterior = _load(options.posterior)
    table, names = _features(posterior.metadata, options)
    with (
        reported(),
        compiling_told(),
        text_file(options.output) if to_file else nullcontext(standard_output()) as file,
        bar(table.num_rows, "predict", unit="row", hidden=not to_file) as progress,
    ):
        writer = csv.writer(file, delimiter=delimiter_of(options.output), lineterminator="\n")
        for place, block, _ in table.number_blocks(names):
            if not place:  # a bad row in the first block is reported before anything is written
                writer.writerow(_header(posterior))
            for start in range(0, len(block), _CHUNK):
                rows = block[start : start + _CHUNK]
                writer.writerows(zip(*_answers(posterior, rows), strict=True))
                progress.update(len(rows))
    if to_file:
        tell_of_older(options.output)


def info(options: argparse.Namespace) -> None:
    """Print the model of a saved posterior, and its components."""
    posterior = _load(options.posterior)
    facts = _facts(posterior)
    if options.json:
        print(json.dumps(facts, indent=2))
        return
    (kind, components) = list(facts.items())[-1]
    facts.pop(kind)
    for name, value in facts.items():
        text = listed(value) if isinstance(value, list) else str(value)
        print(_wrapped(f"{name.replace('_', ' '):<16} ", text))
    name, count = kind.removesuffix("s"), "tokens" if kind == "topics" else "rows"
    width = max(9, len(name))
    print(f"\n{name.replace('_', ' '):>{width}}  {count:>6}  strongest features")
    for component in components:
        strongest = ", ".join(f"{label} {weight:+.3g}" for label, weight in component["strongest_features"].items())
        print(_wrapped(f"{component[name]:>{width}}  {component[count]:>6}  ", strongest))


def _wrapped(first: str, text: str) -> str:
    """`text` after the label `first`, wrapped to lines of at most 80 columns."""
    return textwrap.fill(text, 80, initial_indent=first, subsequent_indent=" " * len(first))


def _given(table: Table, options: argparse.Namespace) -> tuple[NDArray[np.float64], Any, dict[str, Any]]:
    """This rank's features [N, D], the y for the model, and the metadata with which `predict` decodes it."""
    target, dropped = options.target, {"dropped": table.dropped} if table.dropped else {}
    if options.model == "DPM":  # DPM only leaves the target out of its features
        if target is not None:
            table.require(target)
        features = [name for name in table.names if name != target]
        if not features:
            raise CommandError(f"{table.path} has no column beside the target {target!r}.")
        return table.own.numbers(features), None, {"features": features, "target": target, "classes": None} | dropped
    if target is None:
        raise CommandError(f"{options.model} needs --target COLUMN; the columns are {listed(table.names)}.")
    problem, own = problem_of(table, target, options.task), table.own.source.span
    metadata = {"features": problem.features, "target": target} | dropped
    if problem.task == "regression":
        mean, scale = problem.scaling
        units = {"target_mean": mean, "target_scale": scale}
        return problem.X, (problem.y[own] - mean) / scale, metadata | {"classes": None} | units
    classes, index = np.unique(problem.y, return_inverse=True)
    return problem.X, index[own], metadata | {"classes": classes.tolist()}


def _header(posterior: Any) -> list[str]:
    metadata, component = posterior.metadata, ["component"] if isinstance(posterior, PartitionPosterior) else []
    if "target_scale" in metadata:
        return ["prediction", *component]
    if metadata["classes"]:
        return ["prediction", *(f"probability_{name}" for name in metadata["classes"]), *component]
    return component


def _answers(posterior: Any, X: NDArray[np.float64]) -> list[Any]:
    """The columns named in `_header`, for some rows."""
    metadata = posterior.metadata
    components = [posterior.assign(X)] if isinstance(posterior, PartitionPosterior) else []
    if "target_scale" in metadata:
        target = metadata["target_mean"] + metadata["target_scale"] * posterior.predict(X)
        return [np.char.mod("%.6g", target), *components]
    if metadata["classes"]:
        probabilities = np.char.mod("%.6g", posterior.predict_proba(X).T)
        return [np.array(metadata["classes"])[posterior.predict(X)], *probabilities, *components]
    return components


def _facts(posterior: Any) -> dict[str, Any]:
    backend = {name: value for name, value in posterior.backend.get_params().items() if name != "progress"}
    part = "likelihood" if hasattr(posterior.model, "likelihood") else "prior"
    kind, described = _described(posterior)
    return {
        "model": type(posterior.model).__name__,
        part: type(getattr(posterior.model, part)).__name__,
        "backend": f"{type(posterior.backend).__name__}({', '.join(f'{k}={v}' for k, v in backend.items())})",
        **_rows(posterior),
        "draws": sum(posterior.num_draws),
        posterior.trace.name.replace(" ", "_"): float(posterior.trace.final[-1]),
        **({"slope": float(posterior.samples["slope"][0])} if "slope" in posterior.samples else {}),
        **({"shares": posterior.samples["share"].tolist()} if "share" in posterior.samples else {}),
        **{name: value for name, value in posterior.metadata.items() if value is not None},
        kind: described,
    }


def _rows(posterior: Any) -> dict[str, int]:
    """The number of training rows, if the posterior has a result for each of them."""
    name = {PartitionPosterior: "assignments", FeaturePosterior: "features"}.get(type(posterior))
    if "num_seen" in posterior.samples:  # a fit by blocks has seen more rows than it keeps assignments of
        return {"rows": round(float(posterior.samples["num_seen"][0]))}
    return {} if name is None else {"rows": posterior.samples[name].shape[1]}


def _described(posterior: Any) -> tuple[str, list[dict[str, Any]]]:
    """The kind of the posterior's components, and for each its number, rows (or tokens) and strongest columns."""
    draw, names = posterior.representative, posterior.metadata["features"]
    if isinstance(posterior, PartitionPosterior):
        sizes, shown = torch.bincount(posterior.samples["assignments"][draw]), posterior.samples["weights"][draw]
        kind, count, found = "component", "rows", torch.nonzero(sizes).flatten().tolist()
    elif isinstance(posterior, FeaturePosterior):
        sizes, shown = (posterior.features > 0.5).sum(0), posterior.loadings.unsqueeze(2)
        kind, count, found = "latent_feature", "rows", torch.nonzero(sizes).flatten().tolist()
    else:
        sizes, shown = posterior.samples["topic_sizes"][draw], posterior.samples["topics"][draw].unsqueeze(2)
        kind, count, found = "topic", "tokens", list(range(posterior.num_topics))
    return f"{kind}s", [
        {kind: k, count: round(float(sizes[k])), "strongest_features": _strongest(shown[k], names)} for k in found
    ]


def _strongest(weights: torch.Tensor, names: list[str], most: int = 3) -> dict[str, float]:
    """Features with the largest weights: signed for two classes and real targets, else the norm over the classes."""
    if weights.shape[1] == 0:
        return {}
    size = weights.squeeze(1) if weights.shape[1] == 1 else weights.norm(dim=1)
    order = size[: len(names)].abs().argsort(descending=True)[:most].tolist()
    return {names[index]: float(size[index]) for index in order}


def _load(path: str) -> Any:
    with reported():
        posterior = Posterior.load(path)
    if wrong := _wrong_metadata(posterior.metadata):
        raise CommandError(f"{path!r} has metadata without {wrong}; it was not written by `regbayes fit`. Fit again.")
    known, named = posterior.model.classes, posterior.metadata["classes"] or []
    if (0 if known is None else len(known)) != len(named):
        raise CommandError(
            f"{path!r} has names of {len(named)} classes in its metadata, but its posterior has "
            f"{0 if known is None else len(known)}; it is not as `regbayes fit` wrote it. Fit again."
        )
    return posterior


def _wrong_metadata(metadata: Any) -> str | None:
    """The part of the metadata written by `fit` that is missing, in words; None if it is complete."""
    if not isinstance(metadata, dict):
        return "names of columns"
    units = [metadata[name] for name in ("target_mean", "target_scale") if name in metadata]
    checks = {
        "names of columns": _are_names(metadata.get("features")),
        "the name of the target": "target" in metadata and isinstance(metadata["target"], str | None),
        "the names of the classes": "classes" in metadata
        and (metadata["classes"] is None or _are_names(metadata["classes"])),
        "mean and scale of the target": len(units) in (0, 2)
        and all(isinstance(value, float | int) and np.isfinite(value) for value in units),
        "the names of the columns that were left out": "dropped" not in metadata or _are_names(metadata["dropped"]),
    }
    return next((name for name, is_right in checks.items() if not is_right), None)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)


def _features(metadata: dict[str, Any], options: argparse.Namespace) -> tuple[Table, list[str]]:
    """The table of new rows and its features' names; it has these columns, and those that the fit left out."""
    names: list[str] = metadata["features"]
    dropped = [*metadata.get("dropped", []), *options.drop]
    if needed := [name for name in options.drop if name in names]:
        raise CommandError(f"--drop: the fit had the column {needed[0]!r}, and needs it in new rows.")
    table = read_table(options.data, dropped, drops_all=False)
    if missing := [name for name in names if name not in table.names]:
        raise CommandError(f"{table.path} lacks columns of the fit: {listed(missing)}.")
    if extra := [name for name in table.names if name not in {*names, metadata["target"]}]:
        raise CommandError(
            f"{table.path} has columns that the fit did not have: {listed(extra)}. Leave them out by --drop."
        )
    return table, names


_CHUNK = 4096  # rows between two updates of the progress bar
