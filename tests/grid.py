"""The grid of models and backends: a case of every kind of model, the ways to fit it, and the table that README shows.

The tests fit every cell and ask for every refusal. `python tests/grid.py` writes the table into README.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from regbayes.inference import NUTS, SVI, Autoguide, Gibbs, HilbertEmbedding, SmallVariance
from regbayes.models import (
    BNMC,
    DDPM,
    DIH,
    DPM,
    IHMM,
    LDA,
    CrammerSinger,
    EpsilonInsensitive,
    Hinge,
    InfiniteLatentSVM,
    InfiniteSVM,
    LatentFeatureModel,
    Logistic,
    MedLDA,
    MultiTaskInfiniteLatentSVM,
    Ordinal,
)

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- grid: written by make grid -->\n\n", "\n<!-- grid: end -->\n"


@dataclass(frozen=True)
class Case:
    """A model and data for it."""

    model: Any
    X: Tensor
    y: Tensor | None = None
    lengths: list[int] | None = None

    def to(self, device: torch.device) -> Case:
        """The same data on a device."""
        return replace(self, X=self.X.to(device), y=None if self.y is None else self.y.to(device))

    @property
    def batches(self) -> DataLoader:
        """The same rows from a stream: two batches, of sequences one each."""
        own = torch.Generator()  # a DataLoader draws from the global stream else
        if self.lengths is not None:
            parts = zip(self.X.split(self.lengths), map(torch.tensor, self.lengths), strict=True)
            return DataLoader([(rows, length.view(1)) for rows, length in parts], batch_size=None, generator=own)
        return DataLoader(TensorDataset(self.X, *([] if self.y is None else [self.y])), batch_size=6, generator=own)


@dataclass(frozen=True)
class Way:
    """A backend with its options."""

    backend: Any
    option: str = ""  # what a refusal speaks of where the model has the backend, but not this option
    stream: bool = False

    def fit(self, case: Case, **files: Any) -> Any:
        """The posterior of a case."""
        if self.stream:
            return self.backend.fit(case.model, case.batches)
        return self.backend.fit(case.model, case.X, case.y, lengths=case.lengths, **files)


def _gibbs(scan: str) -> Way:
    return Way(Gibbs(num_samples=2, num_warmup=2, scan=scan), f"scan is '{scan}'|scan='{scan}' is compiled")


COLUMNS: dict[str, dict[str, Way]] = {
    "Gibbs": {scan: _gibbs(scan) for scan in ("collapsed", "slice", "direct", "beam", "blocked")},
    "SVI": {
        "coordinate ascent": Way(SVI(num_steps=3), "no closed expectation"),
        "minibatches": Way(SVI(num_steps=3, batch_size=1), "no closed expectation|batch_size"),
        "streams": Way(SVI(num_steps=3), "no closed expectation|DataLoader", stream=True),
        "averaging rule": Way(SVI(num_steps=3, rule="averaging"), "rule=.averaging"),
        "averaging in minibatches": Way(SVI(num_steps=3, rule="averaging", batch_size=1), "rule=.averaging|batch_size"),
    },
    "small variance": {"small variance": Way(SmallVariance(max_steps=3))},
    "Pyro's engines, others": {
        "NUTS": Way(NUTS(1, 1, max_tree_depth=1, progress=False)),
        "autoguides": Way(Autoguide(num_steps=2, num_samples=2, progress=False)),
        "Hilbert embedding": Way(HilbertEmbedding(max_steps=3)),
    },
}
WAYS: dict[str, Way] = {name: way for column in COLUMNS.values() for name, way in column.items()}


@dataclass(frozen=True)
class Row:
    """What one model has: ways for all of its cases, and ways for some of them."""

    cases: dict[str, Case]
    ways: tuple[str, ...]
    some: dict[str, tuple[str, ...]] = field(default_factory=dict)  # a way, and the cases that have it
    names: dict[str, str] = field(default_factory=dict)  # of ways by a name of their own; "": not worth one
    about: str = ""

    @property
    def model(self) -> str:
        """The name of the model's class."""
        (name,) = {type(case.model).__name__ for case in self.cases.values()}
        return name

    def ways_of(self, case: str) -> list[str]:
        """The ways to fit a case."""
        return [way for way in WAYS if way in self.ways or case in self.some.get(way, ())]

    def cell(self, column: str) -> str:
        """What README says of the backends of a column."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for way in COLUMNS[column]:
            cases = tuple(self.cases) if way in self.ways else self.some.get(way, ())
            if name := self.names.get(way, way):
                groups.setdefault(cases, []).append(name)
        groups.pop((), None)
        largest_first = sorted(groups.items(), key=lambda group: -len(group[0]))
        return "; ".join(self._whose(cases) + ", ".join(ways) for cases, ways in largest_first)

    def _whose(self, cases: tuple[str, ...]) -> str:
        others = [case for case in self.cases if case not in cases]
        if not others:
            return ""
        return f"{', '.join(cases)}: " if len(cases) <= len(others) else f"without {', '.join(others)}: "


_GENERATOR = torch.Generator().manual_seed(0)
_Z = torch.arange(12) // 4
_X = 4.0 * _Z.double().unsqueeze(1) + torch.randn((12, 2), generator=_GENERATOR, dtype=torch.float64)
_COUNTS = torch.poisson(torch.full((12, 4), 3.0, dtype=torch.float64), generator=_GENERATOR)
_TWO, _THREE, _REAL = torch.arange(12) % 2, torch.arange(12) % 3, 2 * _X[:, 0]
_BITS = torch.stack([_TWO, 1 - _TWO, (_THREE > 0).long()], 1)
_SMALL: Any = {"truncation": 3}
_ONE = "`CrammerSinger`"


def _supervised(kind: Any, rows: Tensor, **options: Any) -> dict[str, Case]:
    """A model of one target with each kind of target."""
    return {
        "binary": Case(kind(**options), rows, _TWO),
        "multi-class": Case(kind(**options), rows, _THREE),
        "ordinal": Case(kind(target=Ordinal(), **options), rows, _THREE),
        _ONE: Case(kind(loss=CrammerSinger(), **options), rows, _THREE),
        "regression": Case(kind(loss=EpsilonInsensitive(), **options), rows, _REAL),
    }


def _bounds_and_duals(*duals: str) -> dict[str, tuple[str, ...]]:
    """Ways that a loss for all classes at once does not have, and those that one of ordered classes does not have."""
    bounds = dict.fromkeys(_BOUNDS, ("binary", "multi-class", "ordinal", "regression"))
    return bounds | dict.fromkeys(duals, ("binary", "multi-class", _ONE, "regression"))


_SCANS = ("collapsed", "slice", "blocked")
_BOUNDS = ("coordinate ascent", "minibatches", "streams")
_AVERAGING = ("averaging rule", "averaging in minibatches")
_ENGINES = ("NUTS", "autoguides")
_STATES = ("direct", "beam", "blocked", *_BOUNDS, "small variance", *_ENGINES)
_FEW = {"autoguides": "autoguides of few features"}
_NO_RULE = dict.fromkeys(_AVERAGING, "")  # without classifiers both rules are the same
_FORWARD = {"direct": "direct assignment", "coordinate ascent": "forward-backward"}
ROWS = [
    Row(
        {"": Case(DPM(**_SMALL), _X)},
        (*_SCANS, *_BOUNDS, "small variance", *_ENGINES, "Hilbert embedding"),
        names={"small variance": "DP-means"},
    ),
    Row(
        _supervised(InfiniteSVM, _X, **_SMALL),
        (*_SCANS, "small variance", *_ENGINES),
        _bounds_and_duals("averaging rule"),
        {"collapsed": "partially collapsed", "small variance": "M2DPM"},
    ),
    Row(
        {"hinge": Case(DDPM(loss=Hinge(), **_SMALL), _X), "logistic": Case(DDPM(loss=Logistic(), **_SMALL), _X)},
        (*_SCANS, *_BOUNDS, "small variance", *_ENGINES),
        names={"small variance": "discriminative DP-means"},
        about="clusters that repel",
    ),
    Row(
        {"": Case(IHMM(**_SMALL), _X, lengths=[5, 7])},
        _STATES,
        names=_FORWARD | {"small variance": "asymptotic HDP-HMM"},
        about="states over time",
    ),
    Row(
        {
            "hinge": Case(DIH(loss=Hinge(), **_SMALL), _X, lengths=[5, 7]),
            "logistic": Case(DIH(loss=Logistic(), **_SMALL), _X, lengths=[5, 7]),
        },
        _STATES,
        names=_FORWARD | {"small variance": "asymptotic DIH"},
        about="states that repel",
    ),
    Row(
        {
            "product": Case(BNMC(**_SMALL), _X, _BITS),
            "and": Case(BNMC(joint="and", loss=Logistic(), **_SMALL), _X, _BITS),
            "multinomial": Case(BNMC(joint="multinomial", loss=Logistic(), **_SMALL), _X, _BITS + 1),
        },
        ("blocked", *_BOUNDS, *_ENGINES),
        {"collapsed": ("product",), "slice": ("product",), "small variance": ("product", "and")},
        {"small variance": "multi-label DP-means"},
        "label sets by joint",
    ),
    Row(
        _supervised(InfiniteLatentSVM, _X, **_SMALL),
        (*_SCANS, "small variance", *_ENGINES),
        _bounds_and_duals(*_AVERAGING),
        _FEW | {"small variance": "BP-means with a margin"},
    ),
    Row(
        {"": Case(LatentFeatureModel(**_SMALL), _X)},
        (*_SCANS, *_BOUNDS, *_AVERAGING, "small variance", *_ENGINES),
        names=_FEW | _NO_RULE | {"small variance": "BP-means"},
    ),
    Row(
        {
            "classification": Case(MultiTaskInfiniteLatentSVM(**_SMALL), _X, _BITS),
            "regression": Case(
                MultiTaskInfiniteLatentSVM(loss=EpsilonInsensitive(), **_SMALL), _X, torch.stack([_REAL, -_REAL], 1)
            ),
        },
        ("blocked", "coordinate ascent", "averaging rule", "small variance"),
        names={"small variance": "BP-means form"},
        about="many tasks or labels",
    ),
    Row(_supervised(MedLDA, _COUNTS, num_topics=2), ("collapsed", "blocked"), _bounds_and_duals(*_AVERAGING)),
    Row({"": Case(LDA(num_topics=2), _COUNTS)}, ("collapsed", "blocked", *_BOUNDS, *_AVERAGING), names=_NO_RULE),
]


def cells(*, served: bool) -> list[tuple[Row, str, str]]:
    """Every row, case and way that there is, or that is refused."""
    every = ((row, case, way) for row in ROWS for case in row.cases for way in WAYS)
    return [(row, case, way) for row, case, way in every if (way in row.ways_of(case)) is served]


def kernels() -> list[tuple[Row, str, str]]:
    """Of each kernel one case: that which has most ways. What LDA and the features alone have is in two others."""
    most = [(row, max(row.cases, key=lambda name: len(row.ways_of(name)))) for row in ROWS]
    others = [(row, case) for row, case in most if row.model not in ("LDA", "LatentFeatureModel")]
    return [(row, case, way) for row, case in others for way in row.ways_of(case) if not WAYS[way].stream]


def name_of(cell: tuple[Row, str, str]) -> str:
    """The id of a cell in a table of tests."""
    row, case, way = cell
    return f"{row.model}-{case or 'plain'}-{way}".replace(" ", "_")


def rendered() -> str:
    """The table of README."""
    lines = [["model", "Pyro program", *COLUMNS], ["---"] * (2 + len(COLUMNS))]
    for row in ROWS:
        about = ": ".join(filter(None, [row.about, ", ".join(filter(None, row.cases))]))
        lines.append([f"`{row.model}`" + f" ({about})" * bool(about), "yes", *map(row.cell, COLUMNS)])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def with_grid(text: str) -> str:
    """README with the table between its two markers."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + rendered() + END + rest.split(END)[1]


if __name__ == "__main__":
    README.write_text(with_grid(README.read_text()))
