"""Pages of docs/evidence: what the benchmarks print, with date, versions and machine.

    make evidence [PART="chain samplers"]           in an environment with the peers, made in build/
    python benchmarks/evidence.py [PART ...]        in this environment

Without a PART it lists them; `all` runs them all: many hours. A part runs its commands one after another, one
thread each, and puts what each prints into docs/evidence/PART.md as soon as it ends, with date, versions and machine.
Where one fails, what the page has of it stays. `PART:2` is the second command of a part alone.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PAGES = HERE.parent / "docs" / "evidence"
PACKAGES = ("regbayes", "torch", "pyro-ppl", "numpy", "scipy", "scikit-learn", "numba")
PEERS = ("hmmlearn", "tomotopy", "polyagamma")


class Part(NamedTuple):
    """A page: its title, and the commands of this folder whose output it shows."""

    title: str
    commands: tuple[str, ...]


PARTS = {
    "settings": Part(
        "Settings I and II of Wang & Zhu",
        (
            "settings.py --settings I --folds 5",
            "settings.py --settings I --folds 2 --loss logistic",
            "settings.py --settings II --folds 2",
            "defaults.py cubes",
        ),
    ),
    "real-data": Part("Parkinson's disease and protein folds", ("real_data.py",)),
    "classifiers": Part(
        "Classifiers that choose for themselves",
        ("defaults.py classifiers", "defaults_classifiers.py", "defaults_classifiers.py --sets made"),
    ),
    "kernels": Part("Kernel machines", ("kernels.py machines", "kernels.py few", "kernels.py error")),
    "chain": Part("Two chains of Gaussians", ("clustering.py chain",)),
    "clustering": Part(
        "Clusters that can be told apart: digits, scenes, posts",
        ("clustering.py mnist 10", "clustering.py scene15 3", "clustering.py newsgroups 3"),
    ),
    "states": Part(
        "States over time: bees and walks",
        tuple(f"clustering.py {name} 3" for name in ("bee_dance", "ble_rssi", "ujiindoorloc")),
    ),
    "clusters": Part(
        "Defaults of clustering",
        (
            "defaults.py clusters",
            "chains.py consensus",
            "defaults.py repelling 2 250",
            "defaults.py families",
            "defaults.py sequences 8",
        ),
    ),
    "latent-features": Part("Latent features with a margin", ("defaults.py features", "latent_features.py")),
    "tasks": Part("Tasks that share a projection", ("multi_task.py", "defaults_tasks.py tasks")),
    "topics": Part("Topics with a margin", ("topics.py classes", "topics.py pair", "defaults_tasks.py topics")),
    "label-sets": Part("Label sets", ("label_sets.py", "defaults_tasks.py labels")),
    "speed": Part("Ratios of speed beside their peers", ("run.py",)),
    "samplers": Part("Draws of the mixture variables", ("samplers.py",)),
    "sweeps": Part(
        "Sweeps and steps",
        (
            *("collapsed.py counts", "collapsed.py tensors", "collapsed.py blobs", "clustering.py cost"),
            *("features_gibbs.py sweep", "elbo_step.py", "small_data.py sweeps", "small_data.py effective"),
            "clustering.py times 1",
        ),
    ),
    "pyro-engines": Part("Gibbs sweeps beside Pyro's NUTS", ("pyro_engines.py 150 100",)),
    "chains": Part("Chains in processes", ("chains.py parallel",)),
    "small-variance": Part(
        "Small variance: growth with N, wide tables, pdc-dp-means",
        ("small_variance.py growth", "small_variance.py wide", "small_variance.py pdc ../build/pdc/bin/python"),
    ),
    "embedding": Part("The Hilbert embedding", ("embedding.py",)),
    "memory": Part(
        "Peak memory",
        ("memory.py scans", "elbo_step.py --memory 500000,16,20", "elbo_step.py --memory 300000,16,200"),
    ),
}


def main() -> None:
    names = list(PARTS) if sys.argv[1:] == ["all"] else sys.argv[1:]
    if not names:
        print(*(f"{name:16} {part.title}" for name, part in PARTS.items()), sep="\n")
    for name in names:
        part, _, number = name.partition(":")
        if part not in PARTS:
            sys.exit(f"There is no part {part!r}; the parts are: {', '.join(PARTS)}.")
        commands = PARTS[part].commands
        for command in commands if not number else [commands[int(number) - 1]]:
            put(part, command, section(command))
            print(PAGES / f"{part}.md", command, flush=True)


def put(name: str, command: str, text: str) -> None:
    """Write a text under its command on the page of a part, which keeps what it has of the part's other commands."""
    page = PAGES / f"{name}.md"
    old = re.split(_HEADING, page.read_text())[1:] if page.exists() else []
    found = dict(zip(old[::2], old[1::2], strict=True)) | {command: f"\n\n{text}\n"}
    sections = [f"## `benchmarks/{each}`{found[each].rstrip()}\n" for each in PARTS[name].commands if each in found]
    PAGES.mkdir(exist_ok=True)
    page.write_text("\n".join([f"# {PARTS[name].title}\n", *sections]))


_HEADING = re.compile(r"^## `benchmarks/(.*)`$", re.MULTILINE)


def section(command: str) -> str:
    """What a command of this folder prints, and when, with what and on which machine; it ends ours where it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    start, load = time.monotonic(), os.getloadavg()[0]
    done = subprocess.run(
        [sys.executable, *command.split()], cwd=HERE, env=environment, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"benchmarks/{command} failed; its page stays as it was.")
    found = {package: installed(package) for package in (*PACKAGES, *PEERS)}
    versions = ", ".join(f"{package} {number}" for package, number in found.items() if number)
    return (
        f"```text\n{done.stdout.rstrip()}\n```\n\n"
        f"{date.today()}, {time.monotonic() - start:.0f} s. {versions}; Python {platform.python_version()}. "
        f"{processor()}, {os.cpu_count()} cores, {platform.system()}, one thread; load {load:.1f} at the start "
        "(a loaded machine takes more CPU seconds)."
    )


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


if __name__ == "__main__":
    main()
