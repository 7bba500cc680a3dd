"""Shared fixtures: devices, clean Pyro state, and guards on what no test may change."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyro
import pytest
import setups
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pretend_device import pretend_device, register
from setups import FAMILIES, mixture_rows
from two_ranks import TwoRanks

from regbayes.inference import Gibbs
from regbayes.models import DPM, IHMM, InfiniteLatentSVM, MedLDA, MultinomialDirichlet
from regbayes.testing import enumeration

_MANY = 1000  # tests of a run that is worth it

if "PYTEST_XDIST_WORKER" in os.environ:  # workers have all cores: no fit starts processes unless asked
    os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run the tests marked nightly too: whole products, memory")
    parser.addoption("--pretend", action="store_true", help="run those of a GPU without one")


def pytest_configure(config: pytest.Config) -> None:
    setups.NIGHT = config.getoption("--nightly")
    if config.getoption("--pretend"):
        register()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--nightly"):
        places: dict[tuple[str, str], dict[Any, int]] = {}
        waits = [bool(item.get_closest_marker("nightly")) or _left_out(item, places) for item in items]
        config.hook.pytest_deselected(items=[item for item, late in zip(items, waits, strict=True) if late])
        items[:] = [item for item, late in zip(items, waits, strict=True) if not late]


def pytest_collection_finish(session: pytest.Session) -> None:
    """The workers of a long run first compile the largest loops, each some of them: from then on they are on disk, and
    none is compiled twice."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or len(session.items) < _MANY:
        return
    first = int(worker["workerid"].removeprefix("gw"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model, X, y in _with_large_loops()[first :: worker["workercount"]]:
            Gibbs(num_samples=1, num_warmup=1, progress=False).fit(model, X, y)


def _with_large_loops() -> list[tuple[Any, torch.Tensor, torch.Tensor | None]]:
    """Models and their data whose default scans take about five seconds each to compile."""
    counts, y = mixture_rows(MultinomialDirichlet, 12)[0], torch.arange(12) % 2
    families = [(DPM(family()), mixture_rows(family, 12)[0], None) for family in FAMILIES]
    return [*families, (IHMM(), counts, None), (InfiniteLatentSVM(feature_map=None), counts, y), (MedLDA(), counts, y)]


def _left_out(item: pytest.Item, places: dict[tuple[str, str], dict[Any, int]]) -> bool:
    """Whether a case of a test marked `one_in(n)` waits for the night: the places of its parameters among the values
    that were seen decide (pytest's own `indices` count cases), so that the cases that stay have each value of each
    parameter where the product is large enough."""
    marker, case = item.get_closest_marker("one_in"), getattr(item, "callspec", None)
    if marker is None or case is None:
        return False
    total, test = 0, item.nodeid.partition("[")[0]
    for name, value in case.params.items():
        if name != "device":
            seen = places.setdefault((test, name), {})
            known = value if isinstance(value, str | int | float | None) else id(value)
            total += seen.setdefault(known, len(seen))
    return total % marker.args[0] > 0


def pytest_runtest_setup(item: pytest.Item) -> None:
    folder = Path(os.environ.get("REGBAYES_DATA", "no folder"))
    names = [name for marker in item.iter_markers("real_data") for name in marker.args]
    for name in names:
        if not (folder / f"{name}.npz").is_file():
            pytest.skip(f"REGBAYES_DATA does not name a folder with {name}.npz")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return request.getfixturevalue("gpu") if request.param == "cuda" else torch.device("cpu")


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """A GPU; with `--pretend` a device that refuses what a GPU refuses."""
    if torch.cuda.is_available():
        yield torch.device("cuda")
    elif request.config.getoption("--pretend"):
        with pretend_device() as pretended:
            yield pretended
    else:
        pytest.skip("no CUDA device here")


@pytest.fixture
def cpu_generator() -> torch.Generator:
    """For rows that lie in host memory, beside a peer or in a Pyro program."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)


@pytest.fixture(scope="module")
def few_restarts() -> Iterator[None]:
    """Small variance with its own number of restarts makes two at most, where the least objective is not at stake."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regbayes.inference.small_variance.backend._MOST_RESTARTS", 2)
        yield


@pytest.fixture(scope="module")
def no_window() -> Iterator[None]:
    with mpl.rc_context():
        mpl.use("agg")
        yield


@pytest.fixture
def ax() -> Axes:
    """Axes of a figure that no window shows."""
    return Figure().add_subplot()


@pytest.fixture
def poor_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poor launch and poor hyperplanes are as exact as good ones."""
    from regbayes.inference.classifiers.scored import RepellingHyperplanes
    from regbayes.inference.gibbs.moves import block_classifiers, union

    monkeypatch.setattr(union, "NUM_ROUNDS", 1)
    monkeypatch.setattr(RepellingHyperplanes, "num_rough", 1)
    monkeypatch.setattr(block_classifiers, "_NUM_FINE", 1)
    monkeypatch.setattr(block_classifiers, "_NUM_CANDIDATES", 2)


@pytest.fixture(autouse=True, scope="session")
def _integrals_once():
    """Quadratures of margin factors are computed once for each loss and data set, not in each test that needs them."""
    compute, known = enumeration.log_classifier_integrals, {}

    def integrals(data, model, members):
        arrays = [array.cpu().numpy() for array in (data.features, data.targets, members)]
        case = (repr(model.loss), model.weight_scale, model.repels, *((a.shape, a.tobytes()) for a in arrays))
        if case not in known:
            known[case] = compute(data, model, members)
        return known[case]

    enumeration.log_classifier_integrals = integrals
    yield
    enumeration.log_classifier_integrals = compute


@pytest.fixture(autouse=True)
def _unchanged_globals():
    """No test may change the global random streams, the default dtype or validation, or leave Pyro parameters."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 (the legacy stream is what is guarded)
    streams = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    yield
    pyro.clear_param_store()
    assert torch.get_default_dtype() == torch.float32
    assert pyro.settings.get("validate_distributions_torch") if hasattr(pyro, "settings") else True
    if "may_use_global_stream" not in os.environ.get("PYTEST_CURRENT_TEST", ""):
        assert torch.equal(streams[0], torch.get_rng_state()), "the test moved torch's global stream"
        assert (streams[1] == np.random.get_state()[1]).all(), "the test moved numpy's global stream"  # noqa: NPY002


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Any]:
    """Two processes with a process group, which serve all tests of a run that ask for them."""
    ranks = TwoRanks()
    yield ranks
    ranks.close()
