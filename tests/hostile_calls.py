"""Where hostile values go: every argument of what users call."""

from __future__ import annotations

import bisect
import dataclasses
import inspect
import itertools
import random
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hostile import COMMON, LENGTHS, NUMBERS, Call, Place, rows_of, targets_of

from regbayes import estimators, inference, models
from regbayes.inference import NUTS, SVI, Autoguide, Gibbs, HilbertEmbedding, SmallVariance
from regbayes.inference.classifiers.duals import solve

_N = 12
_X = 4.0 * (np.arange(_N) // 4)[:, None] + np.random.default_rng(0).normal(size=(_N, 2))
_COUNTS = np.random.default_rng(1).poisson(3.0, size=(_N, 4)).astype(float)
_BINARY = (_X > 4.0).astype(float)
_TWO, _THREE, _REAL = np.arange(_N) % 2, np.arange(_N) % 3, 2 * _X[:, 0]
_SETS = np.stack([_TWO, 1 - _TWO, (_THREE > 0).astype(int)], 1)
_SMALL: dict[str, Any] = {"truncation": 3}
_REGRESSION = {"loss": models.EpsilonInsensitive()}


@dataclasses.dataclass(frozen=True)
class Problem:
    """A model and data for it."""

    model: Any
    X: np.ndarray
    y: np.ndarray | None = None
    lengths: list[int] | None = None

    @property
    def data(self) -> dict[str, Any]:
        """Arguments of `fit`."""
        return {"X": self.X, "y": self.y, "lengths": self.lengths}


PROBLEMS = {
    "DPM": Problem(models.DPM(**_SMALL), _X),
    "InfiniteSVM": Problem(models.InfiniteSVM(**_SMALL), _X, _TWO),
    "InfiniteSVM of three": Problem(models.InfiniteSVM(**_SMALL), _X, _THREE),
    "InfiniteSVM of reals": Problem(models.InfiniteSVM(**_REGRESSION, **_SMALL), _X, _REAL),
    "DDPM": Problem(models.DDPM(**_SMALL), _X),
    "IHMM": Problem(models.IHMM(**_SMALL), _X, lengths=[5, 7]),
    "DIH": Problem(models.DIH(**_SMALL), _X, lengths=[5, 7]),
    "BNMC": Problem(models.BNMC(**_SMALL), _X, _SETS),
    "BNMC of and": Problem(models.BNMC(joint="and", **_SMALL), _X, _SETS),
    "LatentFeatureModel": Problem(models.LatentFeatureModel(**_SMALL), _X),
    "InfiniteLatentSVM": Problem(models.InfiniteLatentSVM(feature_map=None, **_SMALL), _X, _TWO),
    "InfiniteLatentSVM of three": Problem(
        models.InfiniteLatentSVM(feature_map=models.Standardized(), **_SMALL), _X, _THREE
    ),
    "MultiTaskInfiniteLatentSVM": Problem(models.MultiTaskInfiniteLatentSVM(**_SMALL), _X, _SETS),
    "MultiTaskInfiniteLatentSVM of reals": Problem(
        models.MultiTaskInfiniteLatentSVM(likelihood=models.LinearGaussian(), **_REGRESSION, **_SMALL), _X, _X[:, ::-1]
    ),
    "MedLDA": Problem(models.MedLDA(num_topics=2), _COUNTS, _TWO),
    "LDA": Problem(models.LDA(num_topics=2), _COUNTS),
}
BACKENDS = {
    "Gibbs": Gibbs(num_samples=1, num_warmup=1, num_generative=1, split_merge=1),
    "Gibbs, blocked": Gibbs(num_samples=1, num_warmup=1, num_generative=1, split_merge=1, scan="blocked"),
    "SVI": SVI(num_steps=2),
    "SVI, minibatches": SVI(num_steps=2, batch_size=1, num_full_steps=1),
    "SVI, averaging": SVI(num_steps=2, rule="averaging"),
    "SmallVariance": SmallVariance(penalty=9.0, max_steps=2),
    "NUTS": NUTS(1, 1, max_tree_depth=1, progress=False),
    "Autoguide": Autoguide(num_steps=1, num_samples=1, progress=False),
    "HilbertEmbedding": HilbertEmbedding(max_steps=2),
}


def _served() -> list[tuple[str, str]]:
    """Problems and the backends that serve them."""
    pairs = []
    for problem, backend in itertools.product(PROBLEMS, BACKENDS):
        try:
            BACKENDS[backend].admit(PROBLEMS[problem].model)
        except (NotImplementedError, ValueError):
            continue
        if backend == "SVI, averaging" and "SVM" not in problem and "LDA" not in problem:
            continue
        pairs.append((problem, backend))
    return pairs


@cache
def fitted(problem: str, backend: str) -> Any:
    """The posterior of a problem."""
    return BACKENDS[backend].fit(PROBLEMS[problem].model, **PROBLEMS[problem].data)


def _with(part: Any, name: str, value: Any) -> Any:
    """A configuration with another argument, built as users do."""
    return type(part)(**part.get_params(deep=False) | {name: value})


# -- models, parts, backends -------------------------------------------------------------------------------------------


def models_to_fit() -> Iterator[Place]:
    """Every argument of every model, by every backend."""
    for problem, backend in _served():
        case = PROBLEMS[problem]
        for field in dataclasses.fields(case.model):
            yield Place(
                f"{backend}.fit({problem})",
                field.name,
                lambda value, case=case, backend=backend, name=field.name: BACKENDS[backend].fit(
                    _with(case.model, name, value), **case.data
                ),
                COMMON,
            )


def _parts() -> Iterator[tuple[Any, str, Problem]]:
    """Parts with the argument of a problem's model that takes them."""
    dpm, svm = PROBLEMS["DPM"], PROBLEMS["InfiniteSVM"]
    for kind in (models.DiagonalGaussian, models.FullGaussian, models.SphericalGaussian):
        yield kind(), "likelihood", dpm
    yield models.LinearRegression(given=1), "likelihood", dpm
    yield models.LinearRegression(), "likelihood", Problem(models.IHMM(lags=1, **_SMALL), _X, lengths=[5, 7])
    for kind in (models.MultinomialDirichlet, models.PoissonGamma):
        yield kind(), "likelihood", dataclasses.replace(dpm, X=_COUNTS)
    for kind in (models.BernoulliBeta, models.MaskedBernoulli):
        yield kind(), "likelihood", dataclasses.replace(dpm, X=_BINARY)
    yield models.Product([(models.DiagonalGaussian(), 1), (models.SphericalGaussian(), 1)]), "likelihood", dpm
    for kind in (models.Hinge, models.SquaredHinge, models.Logistic, models.OneVsRest, models.Masked):
        yield kind(), "loss", svm
    yield models.CrammerSinger(), "loss", PROBLEMS["InfiniteSVM of three"]
    for kind in (models.EpsilonInsensitive, models.StudentT):
        yield kind(), "loss", PROBLEMS["InfiniteSVM of reals"]
    for kind in (models.DirichletProcess, models.PitmanYor):
        yield kind(), "prior", dpm
    yield models.HierarchicalDirichletProcess(), "prior", PROBLEMS["IHMM"]
    for kind in (models.IndianBuffetProcess, models.BetaBernoulli):
        yield kind(), "prior", PROBLEMS["LatentFeatureModel"]
    yield models.DirichletTopics(), "prior", PROBLEMS["LDA"]
    yield models.LinearGaussian(), "likelihood", PROBLEMS["LatentFeatureModel"]
    yield models.LinearBernoulli(), "likelihood", dataclasses.replace(PROBLEMS["LatentFeatureModel"], X=_BINARY)
    yield models.Blocks([(models.LinearGaussian(), 2)]), "likelihood", PROBLEMS["LatentFeatureModel"]
    for kind in (models.Standardized, models.RandomFourier, models.Nystroem, models.PrincipalDirections):
        yield kind(), "feature_map", svm


def parts_to_fit() -> Iterator[Place]:
    """Every argument of every part, in a model, by the backends that serve it."""
    for part, role, case in _parts():
        for field, (name, backend) in itertools.product(dataclasses.fields(part), BACKENDS.items()):
            try:
                backend.admit(_with(case.model, role, part))
            except (NotImplementedError, ValueError):
                continue
            yield Place(
                f"{name}.fit({type(case.model).__name__}({role}={type(part).__name__}))",
                field.name,
                lambda value, part=part, field=field.name, role=role, case=case, backend=backend: backend.fit(
                    _with(case.model, role, _with(part, field, value)), **case.data
                ),
                COMMON,
                (role,),
                lambda part=part, role=role, case=case, backend=backend: backend.fit(
                    _with(case.model, role, part), **case.data
                ),
            )


def backends_to_fit() -> Iterator[Place]:
    """Every argument of every backend, on every model that it serves."""
    for problem, name in _served():
        backend, case = BACKENDS[name], PROBLEMS[problem]
        for field in dataclasses.fields(backend):
            yield Place(
                f"{name}(...).fit({problem})",
                field.name,
                lambda value, case=case, backend=backend, field=field.name: _with(backend, field, value).fit(
                    case.model, **case.data
                ),
                COMMON,
            )
    for kernel in (inference.RBFKernel(), inference.QuadraticKernel(), inference.FourierKernel(num_frequencies=5)):
        X = _COUNTS if isinstance(kernel, inference.QuadraticKernel) else _X
        model = models.DPM(models.MultinomialDirichlet()) if X is _COUNTS else models.DPM()
        for field in dataclasses.fields(kernel):
            yield Place(
                f"HilbertEmbedding({type(kernel).__name__}).fit",
                field.name,
                lambda value, kernel=kernel, field=field.name, model=model, X=X: HilbertEmbedding(
                    _with(kernel, field, value), max_steps=2
                ).fit(model, X),
                COMMON,
                ("rkhs",),
            )


# -- data --------------------------------------------------------------------------------------------------------------


def data_to_fit() -> Iterator[Place]:
    """Every argument of `fit`."""
    for problem, name in _served():
        case, backend = PROBLEMS[problem], BACKENDS[name]
        values = {
            "model": COMMON,
            "X": rows_of(case.X),
            "y": COMMON | (targets_of(_TWO) if case.y is None else targets_of(case.y)),
            "lengths": LENGTHS,
            "sample_weight": targets_of(np.ones(_N)) | targets_of(np.arange(_N)),
            "loss_weight": targets_of(np.arange(_N)),
            "checkpoint": COMMON,
            "checkpoint_every": COMMON,
            "resume": COMMON,
        }
        for argument, given in values.items():

            def fit(value: Any, argument: str = argument, case: Problem = case, backend: Any = backend) -> Any:
                options = {"checkpoint": _file()} if argument == "checkpoint_every" and backend.resumable else {}
                return backend.fit(**{"model": case.model, **case.data, **options, argument: value})

            name_of = "ignored" if argument == "y" and case.y is None and case.lengths is None else argument
            names = {"y": ("Y",), "resume": ("Resume", "checkpoint")}.get(argument, ())
            yield Place(f"{name}.fit({problem})", name_of, fit, given, names)


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp())


def _file() -> Path:
    return _folder() / "file"


# -- posteriors --------------------------------------------------------------------------------------------------------

_NOT_ASKED = {"load", "score_mixtures", "views", "checked", "over_rows", "facts", "record", "draw", "draws", "replace"}
_NOT_ASKED |= {"class_index", "draw_targets", "labels_of"}


def questions() -> Iterator[Place]:
    """Every argument of every method of every posterior."""
    for problem, name in _served():
        kind = inference.structure_of(PROBLEMS[problem].model).posterior
        for method in dir(kind):
            function = getattr(kind, method)
            if method.startswith("_") or method in _NOT_ASKED or not callable(function):
                continue
            for argument in inspect.signature(function).parameters:
                if argument not in ("self", "options"):
                    yield _question(problem, name, method, argument)


def _question(problem: str, name: str, method: str, argument: str) -> Place:
    case = PROBLEMS[problem]
    y = _TWO if case.y is None else case.y
    values = {"X": rows_of(case.X), "given": rows_of(case.X[:2]), "left_out": rows_of(case.X), "lengths": LENGTHS}
    values |= {"y": targets_of(y), "Y": targets_of(y), "known": targets_of(y), "path": NUMBERS}
    good = {
        "X": case.X,
        "y": y,
        "Y": y,
        "lengths": None,
        "num_rows": 2,
        "num_steps": 2,
        "mixture": 0.5,
        "temperature": 1.0,
    }
    good |= {"chains": [0], "path": None, "loss": None, "slope": 2.0, "folds": [], "others": [], "shares": [1.0]}

    def ask(**given: Any) -> Any:
        function = getattr(fitted(problem, name), method)
        needed = inspect.signature(function).parameters
        kinds = {key: known for key, known in needed.items() if known.kind is not known.VAR_KEYWORD}
        needs = [key for key, known in kinds.items() if known.default is known.empty and key not in given]
        others = {key: good[key] for key in needs}
        if method == "fit_task" and np.ndim(others.get("y", ())) == 2:
            others["y"] = others["y"][:, 0]
        if method == "mmd":
            others |= {"num_permutations": 9}
        elif method == "calibrated_by":
            others["folds"] = [fitted(problem, name).held_out(case.X, case.y)]
        return function(**others | given)

    whose = f"{name}.fit({problem}).{method}"
    names = ("y", "Y") if argument in ("y", "Y", "known") else ("X",) if argument == "given" else ()
    return Place(whose, argument, lambda value: ask(**{argument: value}), values.get(argument, COMMON), names, ask)


# -- estimators --------------------------------------------------------------------------------------------------------


def _estimators() -> Iterator[tuple[str, Any, dict[str, Any], Problem]]:
    """Estimators with their arguments and a problem."""
    quick = SmallVariance(penalty=9.0, max_steps=2)
    svm, reals, sets = (PROBLEMS[name] for name in ("InfiniteSVM", "InfiniteSVM of reals", "BNMC"))
    three = PROBLEMS["InfiniteSVM of three"]
    paths = {"weight_scales": [1.0], "num_components": [1, 2], "cv": 2}
    yield "Classifier", estimators.Classifier, {"inference": quick}, svm
    yield "Classifier by Gibbs", estimators.Classifier, {"inference": BACKENDS["Gibbs"]}, three
    yield "Classifier of features", estimators.Classifier, {"model": PROBLEMS["InfiniteLatentSVM"].model}, svm
    yield "ClassifierCV", estimators.ClassifierCV, {"inference": quick, **paths}, svm
    yield "ClassifierCV of three", estimators.ClassifierCV, {"inference": quick, **paths}, three
    labels = {"inference": BACKENDS["SVI"], "weight_scales": [1.0], "cv": 2}
    yield "MultiLabelClassifierCV", estimators.MultiLabelClassifierCV, {"model": sets.model, **labels}, sets
    yield "Regressor", estimators.Regressor, {"inference": quick}, reals
    yield "RegressorCV", estimators.RegressorCV, {"inference": quick, **paths}, reals
    yield "Clusterer", estimators.Clusterer, {"inference": BACKENDS["SVI"]}, PROBLEMS["DPM"]
    yield "Clusterer by DP-means", estimators.Clusterer, {"inference": quick}, PROBLEMS["DPM"]
    yield "SequenceClusterer", estimators.SequenceClusterer, {"inference": BACKENDS["SVI"]}, PROBLEMS["IHMM"]
    tasks = {"model": models.MultiTaskInfiniteLatentSVM(), "inference": quick}
    yield "MultiLabelClassifier of tasks", estimators.MultiLabelClassifier, tasks, sets
    label_sets = {"model": sets.model, "inference": BACKENDS["SVI"]}
    yield "MultiLabelClassifier of BNMC", estimators.MultiLabelClassifier, label_sets, sets
    tasks = PROBLEMS["MultiTaskInfiniteLatentSVM of reals"]
    yield "MultiTaskRegressor", estimators.MultiTaskRegressor, {"inference": quick}, tasks
    grid = {"strengths": [1.0], "weight_scales": [0.3], "cv": 2}
    yield "MultiTaskRegressorCV", estimators.MultiTaskRegressorCV, {"inference": quick, **grid}, tasks


def arguments_of_estimators() -> Iterator[Place]:
    """Every argument of the constructors, of `fit`, and of what is asked afterwards."""
    for name, kind, options, case in _estimators():
        for argument in inspect.signature(kind).parameters:

            def build(value: Any, argument: str = argument, kind: Any = kind, options: Any = options) -> Any:
                return kind(**options | {argument: value})

            yield Place(
                f"{name}(...).fit",
                argument,
                lambda value, build=build, case=case: _then_predict(build(value).fit(*_given(case)), case),
                COMMON | _more(argument),
            )
        for method in ("fit", "partial_fit", "predict", "predict_proba", "decision_function", "transform", "score"):
            function = getattr(kind, method, None)
            ours = getattr(inspect.unwrap(function), "__module__", "").startswith("regbayes") if function else False
            if ours and hasattr(kind(**options), method):
                for argument in inspect.signature(function).parameters:
                    if argument != "self":
                        yield _asked((name, kind, options, case), method, argument)


def _more(argument: str) -> dict[str, Callable[[], Any]]:
    """Values that only one argument is likely to take amiss."""
    few, beyond = np.arange(6), np.arange(6, 99)
    more = {
        "cv": {
            "beyond N": lambda: [(few, beyond)],
            "below 0": lambda: [(few, -beyond)],
            "floats": lambda: [(few * 1.0, few + 6.0)],
            "triples": lambda: [(few, few, few)],
            "an empty split": lambda: [([], [])],
            "2-D": lambda: [(few.reshape(2, 3), few.reshape(2, 3))],
            "a mask": lambda: [(np.arange(12) < 6, np.arange(12) >= 6)],
            "a short mask": lambda: [(np.arange(5) < 3, np.arange(5) >= 3)],
            "a huge number": lambda: 10**6,
        },
        "temperatures": {"2-D": lambda: np.ones((2, 2)), "numbers apart": lambda: ["1.0"], "nan": lambda: [np.nan]},
        "class_weight": {"a weight of nan": lambda: {0: np.nan}, "a class too many": lambda: {0: 1.0, 7: 2.0}},
    }
    more["strengths"] = more["weight_scales"] = more["num_components"] = more["length_scales"] = more["temperatures"]
    return more.get(argument, {})


def _given(case: Problem) -> list[Any]:
    return [case.X, case.y] if case.lengths is None else [case.X, None, case.lengths]


def _then_predict(estimator: Any, case: Problem) -> Any:
    """What it predicts for good rows, by all its methods."""
    asked = [getattr(estimator, name, None) for name in ("predict", "predict_proba", "decision_function")]
    found = [method(case.X) for method in asked if method is not None]
    assert all(len(each) == _N for each in found)
    return found


@cache
def _fitted_estimator(name: str) -> Any:
    return next(kind(**options).fit(*_given(case)) for known, kind, options, case in _estimators() if known == name)


def _asked(subject: tuple[str, Any, dict[str, Any], Problem], method: str, argument: str) -> Place:
    name, kind, options, case = subject
    y = _TWO if case.y is None else case.y
    values = {
        "X": rows_of(case.X),
        "y": COMMON | targets_of(y),
        "lengths": LENGTHS,
        "sample_weight": targets_of(np.ones(_N)) | targets_of(np.arange(_N)),
        "tasks": targets_of(_TWO),
        "classes": targets_of(np.arange(3)),
    }
    ignored = argument == "y" and name.startswith(("Clusterer", "Sequence"))

    def ask(value: Any) -> Any:
        given = {"X": case.X, "y": case.y, **({} if case.lengths is None else {"lengths": case.lengths})}
        if method in ("fit", "partial_fit"):
            if argument in ("tasks", "classes"):
                given["y"] = y[:, 0]
            return _then_predict(getattr(kind(**options), method)(**given | {argument: value}), case)
        if method not in ("score",):
            given = {"X": case.X}
        return getattr(_fitted_estimator(name), method)(**given | {argument: value})

    names = ("classes", "class") if argument == "classes" else ()
    return Place(f"{name}().{method}", "ignored" if ignored else argument, ask, values.get(argument, COMMON), names)


# -- functions ---------------------------------------------------------------------------------------------------------


def functions() -> Iterator[Place]:
    """Functions that users call."""
    features, signs = torch.tensor(_X), 2.0 * torch.tensor(_TWO).double().unsqueeze(1) - 1
    tasks = {"y": _REAL, "tasks": _TWO, "num_tasks": 2}
    dual = {"features": features, "targets": signs, "loss": models.Hinge(), "weight_scale": 1.0, "row_weights": None}
    dual |= {"start": None, "tolerance": 1e-3, "max_passes": 5}
    more = {"y": targets_of(_REAL), "tasks": targets_of(_TWO), "X": rows_of(_X)}
    more["tasks"] = more["tasks"] | {"huge": lambda: np.array([2_900_000_000] * _N)}
    for argument in tasks:
        yield Place(
            "by_task",
            argument,
            lambda value, a=argument: models.by_task(**tasks | {a: value}).shape,
            more.get(argument, COMMON),
        )
    for argument in dual:
        yield Place("duals.solve", argument, lambda value, a=argument: solve(**dual | {a: value}), COMMON)
    go_on = {"X": _X, "y": _SETS}
    for argument in ("posterior", "X", "y"):
        yield Place(
            "continue_fit",
            argument,
            lambda value, a=argument: inference.continue_fit(**{"posterior": fitted("BNMC", "SVI"), **go_on, a: value}),
            {"posterior": COMMON, "X": rows_of(_X), "y": targets_of(_SETS)}[argument],
            ("Y",),
        )


KINDS = (models_to_fit, parts_to_fit, backends_to_fit, data_to_fit, questions, arguments_of_estimators, functions)


def sample(number: int, seed: int) -> list[Call]:
    """Some of the calls at random, about as many of each kind."""
    draw, chosen = random.Random(seed), list[Call]()
    kinds = [list(kind()) for kind in KINDS]
    sizes = {index: sum(len(place.values) for place in places) for index, places in enumerate(kinds)}
    for left, index in zip(range(len(kinds), 0, -1), sorted(sizes, key=lambda index: sizes[index]), strict=True):
        share = min(-(-(number - len(chosen)) // left), sizes[index])
        ends = list(itertools.accumulate(len(place.values) for place in kinds[index]))
        for at in draw.sample(range(sizes[index]), share):
            place = kinds[index][which := bisect.bisect_right(ends, at)]
            chosen.append(Call(place, list(place.values)[ends[which] - at - 1]))
    draw.shuffle(chosen)
    return chosen
