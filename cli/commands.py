"""`regbayes fit`, `predict` and `info`: from a CSV file to a saved posterior, and from there to labels."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..inference import PartitionPosterior, Posterior
from .errors import CommandError, reported
from .setups import backend_of, model_of
from .tables import Table, check_labels, features_and_labels, listed, read_table


def fit(options: argparse.Namespace) -> None:
    """Fit to a table and save the posterior, with the names of features and classes in its metadata."""
    table = read_table(options.data)
    _check_folder(options.output)
    classes, index = None, None
    if options.target is None:
        if options.model != "DPM":
            raise CommandError(f"{options.model} needs --target COLUMN; the columns are {listed(table.names)}.")
        names, X = table.names, table.numbers(table.names)
    else:
        names, X, labels = features_and_labels(table, options.target)
        if options.model != "DPM":  # which only leaves the target out of its features
            check_labels(table.path, options.target, labels)
            classes, index = np.unique(labels, return_inverse=True)
    with reported():
        model = model_of(options.model, options.likelihood, len(names))
        posterior = backend_of(options.inference, options.seed).fit(model, X, index)
        posterior.metadata = {
            "features": names,
            "target": options.target,
            "classes": None if classes is None else classes.tolist(),
        }
        posterior.save(options.output)
    print(f"{posterior}\nsaved to {options.output}")


def predict(options: argparse.Namespace) -> None:
    """Write label, class probabilities and component of every row of a table."""
    posterior = _load(options.posterior)
    table = read_table(options.data)
    X = table.numbers(_columns(table, posterior.metadata))
    if options.output:
        _check_folder(options.output)
    header, columns = ["component"], [posterior.assign(X)]
    if classes := posterior.metadata["classes"]:
        probabilities = posterior.predict_proba(X)
        header = ["prediction", *(f"probability_{name}" for name in classes), *header]
        columns = [np.array(classes)[posterior.predict(X)], *np.char.mod("%.6g", probabilities.T), *columns]
    with reported(), open(options.output, "w", newline="") if options.output else nullcontext(sys.stdout) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(zip(*columns, strict=True))


def info(options: argparse.Namespace) -> None:
    """Print what a saved posterior is of, and its components."""
    posterior = _load(options.posterior)
    facts = _facts(posterior)
    if options.json:
        print(json.dumps(facts, indent=2))
        return
    components = facts.pop("components")
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<16} {listed(value) if isinstance(value, list) else value}")
    print(f"\n{'component':>9}  {'rows':>6}  strongest features")
    for component in components:
        strongest = ", ".join(f"{name} {weight:+.3g}" for name, weight in component["strongest_features"].items())
        print(f"{component['component']:>9}  {component['rows']:>6}  {strongest}")


def _facts(posterior: PartitionPosterior) -> dict[str, Any]:
    draw = posterior.representative
    sizes = torch.bincount(posterior.samples["assignments"][draw])
    backend = {name: value for name, value in posterior.backend.get_params().items() if name != "progress"}
    return {
        "model": type(posterior.model).__name__,
        "likelihood": type(posterior.model.likelihood).__name__,
        "backend": f"{type(posterior.backend).__name__}({', '.join(f'{k}={v}' for k, v in backend.items())})",
        "rows": posterior.samples["assignments"].shape[1],
        "draws": sum(posterior.num_draws),
        posterior.trace.name.replace(" ", "_"): float(posterior.trace.final[-1]),
        **{name: value for name, value in posterior.metadata.items() if value is not None},
        "components": [
            {
                "component": int(k),
                "rows": int(sizes[k]),
                "strongest_features": _strongest(posterior.samples["weights"][draw, k], posterior.metadata["features"]),
            }
            for k in torch.nonzero(sizes).flatten()
        ],
    }


def _strongest(weights: torch.Tensor, names: list[str], most: int = 3) -> dict[str, float]:
    """Features with the largest classifier weights: signed for two classes, else the norm over the classes."""
    if weights.shape[1] == 0:
        return {}
    size = weights.squeeze(1) if weights.shape[1] == 1 else weights.norm(dim=1)
    order = size[: len(names)].abs().argsort(descending=True)[:most].tolist()
    return {names[index]: float(size[index]) for index in order}


def _load(path: str) -> PartitionPosterior:
    with reported():
        posterior: PartitionPosterior = Posterior.load(path)
    if "features" not in posterior.metadata:
        raise CommandError(f"{path!r} has no column names; it was not written by `regbayes fit`.")
    return posterior


def _columns(table: Table, metadata: dict[str, Any]) -> list[str]:
    """The features' names, once the table has them and nothing else but perhaps the target."""
    names: list[str] = metadata["features"]
    if missing := [name for name in names if name not in table.names]:
        raise CommandError(f"{table.path} lacks columns of the fit: {listed(missing)}.")
    if extra := [name for name in table.names if name not in {*names, metadata["target"]}]:
        raise CommandError(f"{table.path} has columns that the fit did not have: {listed(extra)}. Drop them.")
    return names


def _check_folder(path: str) -> None:
    """Fail before the work, not after it."""
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise CommandError(f"there is no folder {str(folder)!r} to write {Path(path).name!r} to.")
    if Path(path).is_dir():
        raise CommandError(f"{path!r} is a folder; name a file to write.")
