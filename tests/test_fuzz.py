"""Hostile input: every call ends in a sentence of ours, or in numbers that are finite.

A sentence is an exception that this package raised itself, with a message that says more than a word; what torch, numpy
or Python raise from within means that nobody looked at the input.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import COMMON, LENGTHS, PACKAGE, SENTENCES, is_finite, rows_of, targets_of
from hostile_calls import sample
from setups import by_day

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

pytestmark = pytest.mark.usefixtures("few_restarts")

NUM_CALLS = int(os.environ.get("REGBAYES_HOSTILE_CALLS", by_day(200, 2)))
ROWS = np.random.default_rng(0).normal(size=(12, 2)) + np.repeat([[0.0], [6.0]], 6, 0)
COUNTS = np.random.default_rng(1).integers(0, 2, size=(12, 2)).astype(float)
SIGNS = np.arange(12) % 2


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


ARRAYS, TARGETS = rows_of(ROWS), targets_of(SIGNS)


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
        y = {"sign": SIGNS, "level": np.arange(12) % 3}.get(type(part)().target, ROWS[:, 0])
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


@pytest.mark.one_in(10)
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_argument_of_every_configuration(kind: type[Config]) -> None:
    for field in dataclasses.fields(kind):
        try:
            kind(**{field.name: None})
        except TypeError:  # an argument without a default is missing
            continue
        check_all(COMMON, lambda value, name=field.name: use(kind(**{name: value})))


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


def check_all(values: dict[str, Callable[[], Any]], call: Callable[[Any], Any]) -> None:
    found = {name: outcome(lambda make=make: call(make())) for name, make in values.items()}
    assert not any(found.values()), "\n".join(f"{name}: {text:.200}" for name, text in found.items() if text)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FITS)
def test_rows_to_fit(name: str) -> None:
    check_all(ARRAYS, lambda X: FITS[name](X, SIGNS))


@pytest.mark.parametrize("name", ["Gibbs", pytest.param("SmallVariance", marks=pytest.mark.nightly), "regression"])
def test_targets(name: str) -> None:
    check_all(TARGETS, lambda y: FITS[name](ROWS, y))


def test_lengths() -> None:
    check_all(LENGTHS, lambda lengths: SVI(num_steps=2).fit(IHMM(truncation=3), ROWS, lengths=lengths))


def test_targets_and_lengths_where_they_have_no_place() -> None:
    with pytest.raises(ValueError, match="leave lengths out"):
        SVI().fit(DPM(), ROWS, lengths=[12])
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
    check_all(COMMON, posterior.partition)
    check_all(COMMON, lambda value: posterior.assign(ROWS, discriminative=value))
    if hasattr(posterior, "simulate"):
        check_all(COMMON, posterior.simulate)
        check_all(COMMON, lambda value: posterior.simulate(2, seed=value))
        check_all(ARRAYS, lambda value: posterior.simulate(2, given=value))
        check_all(LENGTHS, lambda value: posterior.assign(ROWS, value))


def test_models_and_backends_of_other_kinds() -> None:
    for backend in (Gibbs(), SVI(), SmallVariance(), NUTS(), Autoguide()):
        check_all(
            COMMON, lambda model, backend=backend: backend.fit(model, ROWS) if not isinstance(model, Model) else None
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
        quick = {name: make for name, make in COMMON.items() if name != str(2**31 - 1)}  # it would be made
        others = {"num_data": 30} if name.startswith("make") else {"name": "iris"}
        check_all(quick, lambda value, argument=argument, others=others: function(**others | {argument: value}))


# what takes long here is to predict or draw for each hostile value, as other plots do
LONG = "plot_activations", "plot_components"
PLOTS = [name for name in regbayes.plots.__all__ if name.startswith("plot")]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in LONG else pytest.mark.one_in(2)) for name in PLOTS]
)
def test_arguments_of_plots(name: str, posteriors: dict[str, Any]) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    near = {name: make for name, make in ARRAYS.items() if "far" not in name and not name.startswith("times")}
    function, ours = getattr(regbayes.plots, name), {"X": near, "lengths": LENGTHS}
    good = {
        "X": ROWS,
        "y": SIGNS,
        "labels": SIGNS,
        "states": SIGNS,
        "truth": SIGNS,
        "lengths": [12],
        "ax": plt.figure().gca(),
    }
    good |= {"posterior": posteriors["DDPM"], "posteriors": {"one": posteriors["DDPM"], "other": posteriors["SVI"]}}
    good |= {"shape": (1, 2), "num": 2, "columns": 1, "vocabulary": ["a", "b"], "num_words": 1}
    quick = Gibbs(num_samples=1, num_warmup=1)
    if name in ("plot_activations", "plot_loadings"):
        good["posterior"] = quick.fit(InfiniteLatentSVM(truncation=3, feature_map=None), ROWS, SIGNS)
    elif name == "plot_topics":
        good["posterior"] = quick.fit(MedLDA(num_topics=2), COUNTS, SIGNS)
    arguments = [argument for argument in inspect.signature(function).parameters if argument != "ax"]
    given = {argument: good[argument] for argument in [*arguments, "ax"]}
    for argument in arguments:
        others = (
            COMMON | {"states": lambda: posteriors["DIH"], "a dict": lambda: {"a": 1}} | ours.get(argument, TARGETS)
        )
        check_all(others, lambda value, argument=argument: function(**given | {argument: value}))
    check_all(COMMON, lambda value: function(**given | {"ax": value}))
    plt.close("all")


def test_files_weights_and_checkpoints(posteriors: dict[str, Any], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = Gibbs(num_samples=1, num_warmup=1)
    check_all(COMMON, posteriors["SVI"].save)
    check_all(COMMON, regbayes.inference.Posterior.load)
    for option in ("checkpoint", "resume"):
        check_all(COMMON, lambda value, option=option: quick.fit(DPM(), ROWS, **{option: value}))
    check_all(COMMON, lambda value: quick.fit(DPM(), ROWS, checkpoint=tmp_path / "chain", checkpoint_every=value))
    for backend in (quick, SVI(num_steps=2), SmallVariance(penalty=9.0, max_steps=2)):
        weights = {f"all {size}": lambda size=size: [size] * 12 for size in (1.0, 0.5, -1.0, 1e308, 0.0, 1e-308)}
        weights |= TARGETS | ARRAYS
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
