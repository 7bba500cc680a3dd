"""Hostile input: every call ends in a sentence of ours, or in numbers that are finite.

A sentence is an exception that this package raised itself, with a message that says more than a word; what torch, numpy
or Python raise from within means that nobody looked at the input.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from hostile_calls import sample

import regbayes.datasets
import regbayes.inference
import regbayes.models
import regbayes.plots
from regbayes.inference import NUTS, SVI, Autoguide, Gibbs, HilbertEmbedding, MeanKernel, SmallVariance
from regbayes.models import (
    BNMC,
    DDPM,
    DIH,
    DPM,
    IHMM,
    LDA,
    DiagonalGaussian,
    DirichletTopics,
    EpsilonInsensitive,
    FeatureModel,
    FeaturePrior,
    Hinge,
    InfiniteLatentSVM,
    InfiniteSVM,
    LatentFeatureModel,
    LinearLikelihood,
    MedLDA,
    Model,
    MultiTaskInfiniteLatentSVM,
    TopicModel,
)
from regbayes.models.config import Config
from regbayes.models.feature_maps import FeatureMap
from regbayes.models.likelihoods import Likelihood
from regbayes.models.losses import Loss
from regbayes.models.priors import HierarchicalDirichletProcess, PartitionPrior
from regbayes.models.targets import Target

PACKAGE = Path(regbayes.models.__file__).parents[1]
NUM_CALLS = int(os.environ.get("REGBAYES_HOSTILE_CALLS", "300"))
SENTENCES = (ValueError, NotImplementedError, FloatingPointError, OSError)
ROWS = np.random.default_rng(0).normal(size=(8, 2)) + np.repeat([[0.0], [6.0]], 4, 0)
COUNTS = np.random.default_rng(1).integers(0, 2, size=(8, 2)).astype(float)
SIGNS = np.array([0, 1, 0, 1, 0, 1, 0, 1])


def outcome(call: Callable[[], Any]) -> str:
    """What is wrong with how a call ends; "" for a sentence or for finite numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = call()
        except SENTENCES as error:
            last = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
            if PACKAGE not in last.parents:
                return f"{type(error).__name__} of {last.name}: {error}"
            return "" if len(str(error)) > 15 else f"no sentence: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "" if is_finite(result) else f"not finite: {result!r:.200}"


def is_finite(result: Any) -> bool:
    """No NaN among the numbers (log weights may be -inf)."""
    if isinstance(result, tuple | list):
        return all(map(is_finite, result))
    if hasattr(result, "samples"):
        return all(is_finite(value) for value in result.samples.values())
    if isinstance(result, torch.Tensor):
        return not result.isnan().any()
    return not (isinstance(result, np.ndarray | float) and np.isnan(result).any())


HOSTILE: list[Any] = [
    *(math.nan, math.inf, -math.inf, -1, 0, 2, 1e308, -1e308, 10**400, 0.5, "1", "", b"x", None, True, 1j),
    *(
        np.float64("nan"),
        np.float16(2),
        np.int64(3),
        np.array([1.0, 2.0]),
        np.array(["a"]),
        np.datetime64("2020-01-01"),
    ),
    *(torch.tensor([[1.0]]), torch.tensor(1j), torch.empty(2, device="meta"), object(), int, Hinge, DPM, Hinge()),
    *([], {}, (1,), (1, 2, 3), {1, 2}, [[1.0], [2.0, 3.0]], lambda: 0, np.ma.masked_array([1.0, 2.0], [True, False])),
]

CLASSES = [
    kind
    for module in (regbayes.models, regbayes.inference)
    for name in module.__all__
    if dataclasses.is_dataclass(kind := getattr(module, name)) and issubclass(kind, Config)
]


def use(part: Config) -> Any:
    """A tiny fit in which a configuration takes part, as it is: what checks it is `fit`."""
    rows = COUNTS if type(part).__module__.endswith(("counts", "bernoulli", "multinomial", "poisson")) else ROWS
    quick = SmallVariance(penalty=9.0, max_steps=1)
    if isinstance(part, Loss):
        y = {"sign": SIGNS, "level": np.arange(8) % 3}.get(type(part)().target, ROWS[:, 0])
        return quick.fit(InfiniteSVM(loss=part), ROWS, y)
    if isinstance(part, Target):
        return quick.fit(InfiniteSVM(target=part), ROWS, SIGNS)
    if isinstance(part, PartitionPrior):
        return Gibbs(num_samples=1, num_warmup=1).fit(DPM(prior=part), ROWS)
    if isinstance(part, HierarchicalDirichletProcess):
        return Gibbs(num_samples=1, num_warmup=1, num_generative=1).fit(IHMM(prior=part, truncation=3), ROWS)
    if isinstance(part, Likelihood):
        return Gibbs(num_samples=1, num_warmup=1).fit(DPM(part), rows)
    if isinstance(part, FeaturePrior | LinearLikelihood | FeatureModel):
        name = {FeaturePrior: "prior", LinearLikelihood: "likelihood"}
        field = next((field for kind, field in name.items() if isinstance(part, kind)), None)
        model = LatentFeatureModel(truncation=3, **{field: part}) if field else part
        one = Gibbs(num_samples=1, num_warmup=1, scan="blocked", init="random")
        return one.fit(model, rows, SIGNS if isinstance(model, InfiniteLatentSVM) else None)
    if isinstance(part, MultiTaskInfiniteLatentSVM):
        return Gibbs(num_samples=1, num_warmup=1).fit(part, ROWS, np.stack([SIGNS, 1 - SIGNS], 1))
    if isinstance(part, DirichletTopics | TopicModel):
        model = LDA(part, 2) if isinstance(part, DirichletTopics) else part
        return Gibbs(num_samples=1, num_warmup=1, num_generative=1).fit(
            model, COUNTS, SIGNS if isinstance(model, MedLDA) else None
        )
    if isinstance(part, FeatureMap):
        return quick.fit(InfiniteSVM(feature_map=part), ROWS, SIGNS)
    if isinstance(part, MeanKernel):
        return HilbertEmbedding(part, max_steps=1).fit(DPM(), ROWS)
    if isinstance(part, BNMC):
        return quick.fit(part, ROWS, np.stack([SIGNS, 1 - SIGNS], 1))
    if isinstance(part, Model):
        return quick.fit(part, ROWS, SIGNS if isinstance(part, InfiniteSVM) else None)
    small = {"num_samples": 1, "num_warmup": 1, "max_tree_depth": 1, "num_steps": 2, "max_steps": 2}
    # how long a fit lasts is not at stake; a value that was not replaced is the hostile one
    default = type(part)()
    options = {
        name: value for name, value in small.items() if getattr(part, name, None) is getattr(default, name, part)
    }
    part = part.replace(**options)
    if any(isinstance(value, int) and value > 10**6 for value in part.get_params(deep=False).values()):
        return part.checked()
    return part.fit(DPM(truncation=3), ROWS)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_argument_of_every_configuration(kind: type[Config]) -> None:
    bad = []
    for field in dataclasses.fields(kind):
        for value in HOSTILE:
            try:
                part = kind(**{field.name: value})
            except TypeError:  # an argument without a default is missing
                continue
            if found := outcome(lambda part=part: use(part)):
                bad.append(f"{field.name}={value!r:.60}: {found:.150}")
    assert not bad, "\n".join(bad)


def compressed(rows: np.ndarray) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR tensors beta
        return torch.tensor(rows).to_sparse_csr()


ARRAYS: list[Any] = [
    *(
        None,
        1,
        "x",
        b"x",
        {},
        {"a": [1.0]},
        {1.0},
        object(),
        [],
        [[]],
        [[], []],
        [1.0, 2.0],
        [[1.0], [2.0, 3.0]],
        [["a", "b"]] * 8,
    ),
    *(np.full((8, 2), value) for value in (math.nan, math.inf, -math.inf, 1e200, -1e200, 1e308, 0.0, 1e-320)),
    *(ROWS[:1], ROWS[:0], ROWS[:, :0], ROWS[:, :1], ROWS[..., None], ROWS[0], ROWS.T, ROWS * 1j, ROWS * 0 + 1e160),
    *(ROWS.astype(kind) for kind in (np.float16, np.float32, np.longdouble, np.int8, np.uint16, bool, object, str)),
    *(np.full((8, 2), 2**64 - 1, dtype=np.uint64), np.full((8, 2), 10**30, dtype=object), np.full((8, 2), None)),
    *(
        ROWS.astype("datetime64[s]"),
        np.zeros(8, dtype=[("a", float), ("b", float)]),
        np.ma.masked_array(ROWS, ROWS > 5),
    ),
    *(np.ma.masked_array(ROWS), np.asfortranarray(ROWS), ROWS[::-1], np.broadcast_to(ROWS[:1], (8, 2)), ROWS.tolist()),
    *(
        kind(ROWS)
        for kind in (scipy.sparse.csr_array, scipy.sparse.csc_matrix, scipy.sparse.coo_array, scipy.sparse.dok_array)
    ),
    *(
        scipy.sparse.csr_array(ROWS * 1j),
        scipy.sparse.csr_array(COUNTS.astype(bool)),
        scipy.sparse.csr_array(ROWS * math.nan),
    ),
    *(torch.tensor(ROWS), torch.tensor(ROWS).half(), torch.tensor(ROWS).bfloat16(), torch.tensor(ROWS).to_sparse()),
    *(compressed(ROWS), torch.tensor(ROWS, requires_grad=True), torch.empty(8, 2, device="meta")),
    torch.tensor(ROWS)[:, [0, 0]].T,
]
TARGETS: list[Any] = [
    *(None, 1, "x", [], [0], ["a", "b"] * 4, [0, 1] * 3, [[0], [1]] * 4, [0] * 8, list(range(8)), [0, 10**30] * 4),
    *(
        [0.0, 0.5] * 4,
        [0.0, math.nan] * 4,
        [math.nan] * 8,
        [0.0, math.inf] * 4,
        [0, 1e300] * 4,
        [1j, 0] * 4,
        [True, False] * 4,
    ),
    *(np.array([0, 2**64 - 1] * 4, dtype=np.uint64), np.array([0, None] * 4), np.array([0, 1] * 4, dtype=np.float16)),
    *(
        np.ma.masked_array(SIGNS, SIGNS > 0),
        np.array(["2020-01-01", "2021-01-01"] * 4, dtype="datetime64[D]"),
        SIGNS[::-1],
    ),
    *(torch.tensor(SIGNS), torch.tensor(SIGNS).half(), torch.empty(8, device="meta"), torch.tensor(SIGNS).to_sparse()),
    *(
        scipy.sparse.csr_array(SIGNS[:, None]),
        {"a": 1},
        {0, 1},
        object(),
        range(8),
        (0, 1) * 4,
        [-1, 1] * 4,
        [-1, -1, 0, 1] * 2,
    ),
]
LENGTHS: list[Any] = [
    *(
        0,
        8,
        -8,
        "8",
        [],
        [8],
        [8.0],
        [4, 4],
        [4, 5],
        [0, 8],
        [-1, 9],
        [[4, 4]],
        [True] * 8,
        [10**30],
        [math.nan],
        {8},
        object(),
    ),
    *(
        np.array([8], dtype=np.uint64),
        np.array(["8"]),
        torch.tensor([4, 4]),
        torch.tensor([8.0]),
        torch.empty(1, device="meta"),
    ),
]
FITS: dict[str, Callable[[Any, Any], Any]] = {
    "Gibbs": lambda X, y: Gibbs(num_samples=1, num_warmup=1).fit(InfiniteSVM(), X, y),
    "SVI": lambda X, y: SVI(num_steps=2).fit(InfiniteSVM(truncation=3), X, y),
    "SmallVariance": lambda X, y: SmallVariance(penalty=9.0, max_steps=2).fit(InfiniteSVM(), X, y),
    "regression": lambda X, y: SmallVariance(penalty=9.0, max_steps=2).fit(
        InfiniteSVM(loss=EpsilonInsensitive()), X, y
    ),
    "DDPM": lambda X, y: Gibbs(num_samples=1, num_warmup=1, num_generative=1).fit(DDPM(truncation=3), X),
    "DIH": lambda X, y: SVI(num_steps=2).fit(DIH(truncation=3), X),
}


def check_all(values: list[Any], call: Callable[[Any], Any]) -> None:
    found = {f"{index}: {value!r:.100}": outcome(lambda value=value: call(value)) for index, value in enumerate(values)}
    assert not any(found.values()), "\n".join(f"{name}: {text:.200}" for name, text in found.items() if text)


@pytest.mark.parametrize("name", FITS)
def test_rows_to_fit(name: str) -> None:
    check_all(ARRAYS, lambda X: FITS[name](X, SIGNS))


@pytest.mark.parametrize("name", ["Gibbs", "SmallVariance", "regression"])
def test_targets(name: str) -> None:
    check_all(TARGETS, lambda y: FITS[name](ROWS, y))


def test_lengths() -> None:
    check_all(LENGTHS, lambda lengths: SVI(num_steps=2).fit(IHMM(truncation=3), ROWS, lengths=lengths))


def test_targets_and_lengths_where_they_have_no_place() -> None:
    with pytest.raises(ValueError, match="leave lengths out"):
        SVI().fit(DPM(), ROWS, lengths=[8])
    with pytest.raises(ValueError, match="leave y out"):
        SVI().fit(IHMM(), ROWS, SIGNS)


@pytest.fixture(scope="module")
def posteriors() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: fit(ROWS, ROWS[:, 0] if name == "regression" else SIGNS) for name, fit in FITS.items()}


@pytest.mark.parametrize("name", FITS)
def test_rows_to_predict(name: str, posteriors: dict[str, Any]) -> None:
    methods = ["assign", "assign_proba", "log_predictive_density", "predict", "predict_proba", "decision_function"]
    methods += ["smooth", "filter", "predict_state"]
    for method in methods:
        if ask := getattr(posteriors[name], method, None):
            check_all(ARRAYS, ask)


@pytest.mark.parametrize("name", FITS)
def test_options_of_posteriors(name: str, posteriors: dict[str, Any], tmp_path: Path) -> None:
    posterior = posteriors[name]
    check_all(HOSTILE, posterior.partition)
    check_all(HOSTILE, lambda value: posterior.assign(ROWS, discriminative=value))
    if hasattr(posterior, "simulate"):
        check_all(HOSTILE, posterior.simulate)
        check_all(HOSTILE, lambda value: posterior.simulate(2, seed=value))
        check_all(ARRAYS, lambda value: posterior.simulate(2, given=value))
        check_all(LENGTHS, lambda value: posterior.assign(ROWS, value))


def test_models_and_backends_of_other_kinds() -> None:
    for backend in (Gibbs(), SVI(), SmallVariance(), NUTS(), Autoguide()):
        check_all(
            HOSTILE, lambda model, backend=backend: backend.fit(model, ROWS) if not isinstance(model, Model) else None
        )


def test_a_row_far_away_has_the_answer_of_the_nearest_component() -> None:
    for likelihood in (None, DiagonalGaussian()):
        model = InfiniteSVM() if likelihood is None else InfiniteSVM(likelihood)
        posterior = Gibbs(num_samples=3, num_warmup=3).fit(model, ROWS, SIGNS)
        far = posterior.predict_proba(ROWS[:1] * 0 + 1e160)
        assert np.isfinite(far).all()
        np.testing.assert_allclose(far.sum(1), 1.0)


@pytest.mark.parametrize("name", [name for name in regbayes.datasets.__all__ if name.startswith(("make", "load"))])
def test_arguments_of_data_sets(name: str) -> None:
    function = getattr(regbayes.datasets, name)
    for argument in inspect.signature(function).parameters:
        quick = [value for value in HOSTILE if not (isinstance(value, int | float) and 10**6 < value < 10**10)]
        others = {"num_data": 30} if name.startswith("make") else {"name": "iris"}
        check_all(quick, lambda value, argument=argument, others=others: function(**others | {argument: value}))


@pytest.mark.parametrize("name", [name for name in regbayes.plots.__all__ if name.startswith("plot")])
def test_arguments_of_plots(name: str, posteriors: dict[str, Any]) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    function, ours = getattr(regbayes.plots, name), {"X": ARRAYS, "lengths": LENGTHS}
    good = {
        "X": ROWS,
        "y": SIGNS,
        "labels": SIGNS,
        "states": SIGNS,
        "truth": SIGNS,
        "lengths": [8],
        "ax": plt.figure().gca(),
    }
    good |= {"posterior": posteriors["DDPM"], "posteriors": {"one": posteriors["DDPM"], "other": posteriors["SVI"]}}
    good |= {"shape": (1, 2), "num": 2, "columns": 1, "vocabulary": ["a", "b"], "num_words": 1}
    quick = Gibbs(num_samples=1, num_warmup=1)
    if name in ("plot_activations", "plot_loadings"):
        good["posterior"] = quick.fit(InfiniteLatentSVM(truncation=3), ROWS, SIGNS)
    elif name == "plot_topics":
        good["posterior"] = quick.fit(MedLDA(num_topics=2), COUNTS, SIGNS)
    arguments = [argument for argument in inspect.signature(function).parameters if argument != "ax"]
    given = {argument: good[argument] for argument in [*arguments, "ax"]}
    for argument in arguments:
        others = [*HOSTILE, posteriors["DIH"], {"a": 1}, *ours.get(argument, TARGETS)]
        check_all(others, lambda value, argument=argument: function(**given | {argument: value}))
    check_all(HOSTILE[:20], lambda value: function(**given | {"ax": value}))
    plt.close("all")


def test_files_weights_and_checkpoints(posteriors: dict[str, Any], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = Gibbs(num_samples=1, num_warmup=1)
    check_all(HOSTILE, posteriors["SVI"].save)
    check_all(HOSTILE, regbayes.inference.Posterior.load)
    for option in ("checkpoint", "resume"):
        check_all(HOSTILE, lambda value, option=option: quick.fit(DPM(), ROWS, **{option: value}))
    check_all(HOSTILE, lambda value: quick.fit(DPM(), ROWS, checkpoint=tmp_path / "chain", checkpoint_every=value))
    for backend in (quick, SVI(num_steps=2), SmallVariance(penalty=9.0, max_steps=2)):
        weights = [*TARGETS, *ARRAYS, [1.0] * 8, [0.5] * 8, [-1.0] * 8, [1e308] * 8, [0.0] * 8, [1e-308] * 8]
        check_all(weights, lambda value, backend=backend: backend.fit(DPM(truncation=3), ROWS, sample_weight=value))


@pytest.mark.parametrize("part", range(4))
def test_hostile_calls_are_refused_by_the_name_of_the_argument_or_right(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of all that users may call; `REGBAYES_HOSTILE_CALLS=12000` draws as many."""
    monkeypatch.chdir(tmp_path)
    calls = sample(NUM_CALLS, seed=len(str(NUM_CALLS)))[part::4]
    found = {str(call): call.complaint() for call in calls}
    assert not any(found.values()), "\n".join(f"{name}: {text:.200}" for name, text in found.items() if text)
