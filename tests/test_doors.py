"""What comes in through `fit`, by the doors that users open: arrays of other kinds, wrong parts, and more than fits."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from grid import ROWS as ROWS_OF_GRID
from setups import LaplaceLocation
from sklearn.base import clone

from regbayes.estimators import Classifier, Clusterer, MultiLabelClassifier, Regressor
from regbayes.inference import SVI, Gibbs, HilbertEmbedding, SmallVariance, continue_fit
from regbayes.models import (
    BNMC,
    DPM,
    IHMM,
    LDA,
    InfiniteLatentSVM,
    InfiniteSVM,
    LatentFeatureModel,
    MedLDA,
    MultiTaskInfiniteLatentSVM,
    OneVsRest,
    RandomFourier,
    by_task,
    host,
)
from regbayes.models.host import require_room

N = 12
ROWS = np.random.default_rng(0).normal(size=(N, 2)).round(2) + 4 * (np.arange(N) % 2)[:, None]
COUNTS = np.random.default_rng(1).poisson(3.0, size=(N, 4))
Y = np.arange(N) % 2
SETS = np.stack([Y, 1 - Y, np.arange(N) % 3 > 0], 1).astype(int)
FEW: dict[str, Any] = {"truncation": 3}
pytestmark = [
    pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning"),
    pytest.mark.usefixtures("few_restarts"),
]
QUICK = SVI(num_steps=2)
# of every model one case, and one with real targets
FITS = {
    f"{row.model} {name}".strip(): case
    for row in ROWS_OF_GRID
    for name, case in row.cases.items()
    if name in ("", "binary", "regression", "product", "classification")
}
NO_WEIGHTS = ("IHMM", "LDA", "MedLDA", "MultiTaskInfiniteLatentSVM")


WIDE = QUICK.fit(DPM(), ROWS)


# -- numbers of another byte order -------------------------------------------------------------------------------------


def swapped(values: Any, kind: str | None = None) -> Any:
    """The same numbers in the byte order that is not this machine's, if it is a little-endian one."""
    return None if values is None else np.asarray(values).astype(kind or np.asarray(values).dtype.newbyteorder(">"))


@pytest.mark.parametrize("name", FITS)
def test_big_endian_arrays_are_the_numbers_that_they_hold(name: str) -> None:
    """As FITS and HDF have them: rows, targets, lengths and weights."""
    case = FITS[name]
    model, X, y = case.model, case.X.numpy(), None if case.y is None else case.y.numpy()
    weights = None if name.split()[0] in NO_WEIGHTS else np.arange(N) % 3 + 1.0
    options = {"lengths": case.lengths, "sample_weight": weights}
    others = {key: swapped(value) for key, value in options.items()}
    found = QUICK.fit(model, swapped(X), swapped(y), **others)
    for key, value in QUICK.fit(model, X, y, **options).samples.items():
        assert torch.equal(found.samples[key], value), key
    if y is None and hasattr(found, "assign"):
        assert np.array_equal(found.assign(swapped(X)), found.assign(X))
    elif y is not None:
        assert np.array_equal(found.predict(swapped(X)), found.predict(X))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", [">f4", ">i4", ">u4"])
def test_big_endian_numbers_of_every_size_are_read(kind: str) -> None:
    X, y = swapped(COUNTS, kind), swapped(Y, kind)
    for estimator in (Classifier(inference=SmallVariance(penalty=9.0)), Clusterer(inference=QUICK)):
        one, other = (estimator.fit(*each).predict(each[0]) for each in ((X, y), (COUNTS, Y)))
        assert np.array_equal(one, other)
    found = by_task(swapped(ROWS[:, 0]), swapped(Y, ">i4"))
    np.testing.assert_array_equal(found, by_task(ROWS[:, 0], Y))


@pytest.mark.parametrize(
    "values", [np.full((N, 2), "1_000"), np.full((N, 2), "1_000", dtype=object), [["1_000", 1]] * N]
)
def test_text_is_no_number(values: Any) -> None:
    with pytest.raises(ValueError, match=r"X (cannot be read as an array of numbers: it has text|has text)"):
        QUICK.fit(DPM(), values)
    with pytest.raises(ValueError, match="X has text; expected numbers"):
        Clusterer(inference=QUICK).fit(values)


def frame(columns: dict[Any, Any]) -> Any:
    """A table of pandas, with a column of the rows beside these."""
    return pytest.importorskip("pandas").DataFrame({"width": ROWS[:, 0]} | columns)


DATES = np.datetime64("2024-01-01", "s") + np.arange(N)


@pytest.mark.parametrize(
    ("columns", "error", "found"),
    [
        ({"when": DATES}, TypeError, r"'when' \(datetime64\[s\]\)"),
        ({"since": DATES - DATES[0], 7: DATES}, TypeError, r"'since' \(timedelta64\[s\]\), 7 \(datetime64\[s\]\)"),
        ({"day": DATES.astype("datetime64[D]").astype(object)}, TypeError, r"'day' \(object\)"),
        ({"sets": [{}] * N, "on": DATES}, TypeError, r"'sets' \(object\), 'on' \(datetime64\[s\]\)"),
        ({"kind": np.full(N, "a", dtype=object), "on": DATES}, ValueError, r"'kind' \(\w+\), 'on' \(datetime64\[s\]\)"),
        ({f"day {n}": DATES for n in range(6)}, TypeError, r"'day 3' \(datetime64\[s\]\) and 2 more"),
    ],
    ids=["date", "duration", "days", "objects", "text", "many"],
)
def test_columns_of_a_frame_without_numbers_are_named(columns: Any, error: Any, found: str) -> None:
    X, message = frame(columns), f"^X has columns that are not numeric: .*{found}; expected numbers. Drop them, encode"
    for fit in (Clusterer(inference=QUICK).fit, lambda X: Classifier(inference=QUICK).fit(X, Y)):
        with pytest.raises(error, match=message):
            fit(X)


@pytest.mark.parametrize("dates", [DATES, DATES - DATES[0]], ids=["dates", "durations"])
def test_dates_alone_are_no_numbers(dates: Any) -> None:
    pd = pytest.importorskip("pandas")
    for X, match in (
        (pd.DataFrame({"a": dates, "b": dates}), "^X has columns that are not numeric: 'a' "),
        (np.column_stack([dates, dates]), "^X has values of type .*64.*; expected numbers"),
    ):
        with pytest.raises(TypeError, match=match):
            Clusterer(inference=QUICK).fit(X)


def test_columns_of_a_frame_with_numbers_of_any_type_are_read() -> None:
    X = frame({"objects": Y.astype(object), "bits": Y > 0, "decimals": [Decimal(int(code)) for code in Y]})
    X = X.assign(codes=X["bits"].astype(int).astype("category"))
    plain = np.column_stack([ROWS[:, 0], Y, Y, Y, Y])
    one, other = (Clusterer(inference=QUICK).fit(each).labels_ for each in (X, plain))
    assert np.array_equal(one, other)


def without_some(kind: str) -> Any:
    """Labels of which those of rows 4 and 9 are missing, each time in another way."""
    words = ["b" if code else "a" for code in Y]
    words = [None if row in (4, 9) else word for row, word in enumerate(words)]
    if kind == "list":
        return words
    if kind == "array":
        return np.array([np.nan if word is None else word for word in words], dtype=object)
    if kind == "floats":
        return np.array([np.nan if word is None else float(word == "b") for word in words])
    pandas = pytest.importorskip("pandas")
    if kind in ("Int64", "boolean", "object"):
        return pandas.Series([None if word is None else word == "b" for word in words], dtype=kind)
    return pandas.Series(words, dtype=kind)


@pytest.mark.parametrize("kind", ["list", "array", "floats", "string", "category", "Int64", "boolean", "object"])
def test_missing_labels_are_counted_or_left_out(kind: str) -> None:
    """By a classifier and a regressor, which need them, and by one of many tasks, to which they may be missing."""
    y, message = without_some(kind), "^y has no {} in 2 of 12 rows, the first of them row 4; {} needs one in each. Drop"
    with pytest.raises(ValueError, match=message.format("label", "Classifier")):
        Classifier(inference=QUICK).fit(ROWS, y)
    with pytest.raises(ValueError, match=message.format("target", "Regressor")):
        Regressor(inference=QUICK).fit(ROWS, y)
    tasks = MultiLabelClassifier(MultiTaskInfiniteLatentSVM(**FEW), QUICK)
    found, plain = (clone(tasks).fit(ROWS, each) for each in (y, without_some("floats")))
    assert np.array_equal(found.predict_proba(ROWS), plain.predict_proba(ROWS))
    assert found.score(ROWS, y) == plain.score(ROWS, without_some("floats"))


def test_rows_with_a_graph_are_the_numbers_that_they_hold() -> None:
    rows = torch.tensor(ROWS, requires_grad=True)
    for X in (rows, rows * 1.0):
        estimator = Classifier(inference=SmallVariance(penalty=9.0)).fit(X, torch.tensor(Y))
        assert np.array_equal(estimator.predict_proba(X), estimator.predict_proba(ROWS))
        assert not any(value.requires_grad for value in QUICK.fit(DPM(**FEW), X).samples.values())


def test_rows_in_another_precision_go_on() -> None:
    """A later fit takes the numbers of one in double precision."""
    single = torch.tensor(ROWS, dtype=torch.float32)
    fitted = QUICK.fit(InfiniteLatentSVM(feature_map=None, **FEW), torch.tensor(ROWS), Y)
    for rows in (ROWS.astype(np.float32), ROWS.astype(">f4")):
        again = fitted.refit(rows, Y)
        assert again.samples["weights"].dtype == torch.float64
        torch.testing.assert_close(again.samples["weights"], fitted.refit(single.double(), Y).samples["weights"])
    more = continue_fit(QUICK.fit(BNMC(**FEW), ROWS, SETS), ROWS.astype(np.float32), SETS)
    assert more.samples["classifiers"].dtype == torch.float64


# -- wrong parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (InfiniteSVM(loss=None), "^loss is None; expected an object of class Loss"),
        (InfiniteSVM(loss="hinge"), "^loss is 'hinge'; expected an object of class Loss"),
        (InfiniteSVM(loss=OneVsRest(None)), "^loss__loss is None; expected an object of class Loss"),
        (InfiniteLatentSVM(loss=0, feature_map=None), "^loss is 0; expected an object of class Loss"),
        (MultiTaskInfiniteLatentSVM(loss=[]), r"^loss is \[\]; expected an object of class Loss"),
        (BNMC(loss=DPM()), "^loss is DPM.*; expected an object of class Loss"),
        (BNMC(joint=np.ones(2)), r"^joint is array\(\[1\., 1\.\]\); it must be one of"),
        (MedLDA(loss=0), "^loss is 0; expected an object of class Loss"),
        (LDA(prior=object()), "^prior is <object object .*; expected an object of class DirichletTopics"),
        (DPM(prior=3), "^prior is 3; expected an object of class PartitionPrior"),
        (DPM(likelihood=None), "^likelihood is None; expected an object of class"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
@pytest.mark.parametrize("backend", [Gibbs(), QUICK, SmallVariance()], ids=lambda backend: type(backend).__name__)
def test_wrong_parts_are_named_by_fit(model: Any, message: str, backend: Any) -> None:
    with pytest.raises(ValueError, match=message):
        backend.fit(model, COUNTS, SETS)


@pytest.mark.parametrize("backend", [Gibbs(), QUICK, SmallVariance()], ids=lambda backend: type(backend).__name__)
@pytest.mark.parametrize("kind", [DPM, IHMM])
def test_families_without_a_conjugate_prior_are_refused_in_a_sentence(kind: Any, backend: Any) -> None:
    with pytest.raises(NotImplementedError, match=f"LaplaceLocation is no .*{type(backend).__name__}"):
        backend.fit(kind(LaplaceLocation()), ROWS)


# -- more than memory holds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fit", "name"),
    [
        (lambda: SVI().fit(DPM(truncation=30_000), ROWS), "truncation"),
        (lambda: Gibbs(scan="blocked").fit(InfiniteSVM(truncation=30_000), ROWS, Y), "truncation"),
        (lambda: SVI().fit(IHMM(truncation=400), ROWS), "truncation"),
        (lambda: SVI().fit(BNMC(truncation=30_000), ROWS, SETS), "truncation"),
        (lambda: SVI().fit(LDA(num_topics=10_000), COUNTS), "num_topics"),
        (lambda: SVI().fit(LatentFeatureModel(truncation=10_000), ROWS), "truncation"),
        (lambda: SVI(batch_size=10**5).fit(DPM(), ROWS), "batch_size"),
        (lambda: SVI(num_restarts=1000).fit(DPM(), ROWS), "num_restarts"),
        (lambda: Gibbs(num_chains=1000).fit(DPM(), ROWS), "num_chains"),
        (lambda: Gibbs(num_samples=10**5).fit(DPM(), ROWS), "num_samples"),
        (lambda: Gibbs(num_warmup=10**5).fit(DPM(), ROWS), "num_warmup"),
        (lambda: Gibbs(thinning=10**5).fit(DPM(), ROWS), "thinning"),
        (lambda: HilbertEmbedding(components="prior", truncation=300).fit(DPM(), ROWS), "truncation"),
        (lambda: QUICK.fit(InfiniteSVM(feature_map=RandomFourier(num_features=10**5)), ROWS, Y), "num_features"),
        (lambda: by_task(Y, np.full(N, 29_000)), "tasks"),
        (lambda: by_task(Y, Y, 29_000), "num_tasks"),
        (lambda: WIDE.mmd(ROWS, num_permutations=10_000), "num_permutations"),
        (lambda: WIDE.mmd(ROWS, num_draws=10**5), "num_draws"),
    ],
)
def test_what_asks_for_more_than_memory_is_refused_by_name(fit: Any, name: str, monkeypatch) -> None:
    """In a machine of a megabyte."""
    monkeypatch.setattr("regbayes.models.host._room", lambda device: 1e6)
    with pytest.raises(ValueError, match=rf"^{name} is .*, which takes at least .* GB of memory; this machine"):
        fit()


def test_what_asks_for_terabytes_is_refused_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regbayes.models.host._room", lambda device: 1e11)
    with pytest.raises(ValueError, match=r"truncation is 2147483647, .* 103 GB .* 100 GB\. Take a smaller truncation"):
        SVI().fit(DPM(truncation=2**31 - 1), ROWS)
    with pytest.raises(ValueError, match=r"tasks is .* 278 GB"):
        by_task(Y, np.full(N, 2_900_000_000))


def test_what_fits_in_memory_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit passes with the room that it takes."""
    monkeypatch.setattr("regbayes.models.host._room", lambda device: 1e6)
    for case in FITS.values():
        QUICK.fit(case.model, case.X, case.y, lengths=case.lengths)
    Gibbs(num_samples=3, num_warmup=3, num_chains=2, num_jobs=1).fit(DPM(), ROWS)
    require_room("number", 3, 1e6)
    with pytest.raises(
        ValueError, match=r"^number is 3, which takes at least 0\.001 GB .* has 0\.001 GB\. Take fewer\."
    ):
        require_room("number", 3, 1e6 + 1, mend="Take fewer.")
    with pytest.raises(ValueError, match=r"Take a smaller number\.$"):
        require_room("number", 3, 1e7)


def test_a_container_has_the_memory_that_its_limit_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, found = tmp_path / "memory.max", host._room.__wrapped__
    monkeypatch.setattr(host, "_LIMIT", limit)
    machine = found(torch.device("cpu"))  # without a limit
    limit.write_text("max\n")
    assert found(torch.device("cpu")) == machine > 1e6
    limit.write_text("1000\n")
    assert found(torch.device("cpu")) == 1000

    def nothing(name: str) -> int:
        raise OSError

    monkeypatch.setattr(host.os, "sysconf", nothing)
    assert found(torch.device("cpu")) == float("inf")


# -- options of posteriors and of searches -----------------------------------------------------------------------------


@pytest.mark.parametrize("thresholds", [object(), "0.5", [0.5, 0.5], [[0.5] * 3] * 3, 1j, [0.5, None, 0.5], {}])
def test_thresholds_are_numbers(thresholds: Any) -> None:
    posterior = SmallVariance(penalty=9.0).fit(BNMC(), ROWS, SETS)
    with pytest.raises(ValueError, match="thresholds"):
        posterior.predict(ROWS, thresholds=thresholds)
    assert posterior.predict(ROWS, thresholds=[0.0, 1.0, 0.0]).sum(0).tolist() == [N, 0, N]


@pytest.mark.parametrize("folds", [[], 3, None, [1], [SETS], "folds", object()])
def test_folds_to_calibrate_by_are_what_held_out_returns(folds: Any) -> None:
    posterior = SmallVariance(penalty=9.0).fit(BNMC(), ROWS, SETS)
    fewer = SmallVariance(penalty=9.0).fit(BNMC(), ROWS, SETS[:, :2]).held_out(ROWS, SETS[:, :2])
    for wrong in (folds, [fewer]):
        with pytest.raises(ValueError, match=r"^folds is .*; expected a list of what `held_out` returns, of 3 labels"):
            posterior.calibrated_by(wrong)
    held_out = posterior.held_out(ROWS, SETS)
    one, other = (posterior.calibrated_by(each) for each in ([held_out], iter([held_out])))
    assert torch.equal(one.metadata["calibration"], other.metadata["calibration"])
