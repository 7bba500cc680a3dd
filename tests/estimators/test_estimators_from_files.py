"""Estimators of rows in files: the labels of any type, a pass for the classes, and what goes with arrays alone."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from regbayes.estimators import (
    Classifier,
    ClassifierCV,
    Clusterer,
    MultiLabelClassifierCV,
    MultiTaskRegressorCV,
    Regressor,
    RegressorCV,
    SequenceClusterer,
)
from regbayes.estimators.streams import classes_of
from regbayes.inference import SVI, Gibbs, SmallVariance, map_rows, rows_of
from regbayes.inference.distributed import stream
from regbayes.inference.small_variance import partition as small_variance
from regbayes.models import DPM, InfiniteSVM

pytestmark = [
    pytest.mark.usefixtures("few_restarts"),
    pytest.mark.filterwarnings("ignore:X does not have valid feature names"),  # arrays after a fit from a file
]

RNG = np.random.default_rng(0)
PLACE = RNG.integers(0, 2, 300)
X = RNG.normal(size=(300, 2)) + 8 * PLACE[:, None]
WORDS = np.array(["left", "right"])[PLACE]


@pytest.fixture
def path(tmp_path):
    pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "label": WORDS}), tmp_path / "rows.parquet")
    return str(tmp_path / "rows.parquet")


def test_a_classifier_takes_a_path_and_the_name_of_its_labels(path, tmp_path) -> None:
    inference = SVI(num_steps=12, batch_size=60)
    found = Classifier(inference=inference).fit(path, y="label")
    assert found.classes_.tolist() == ["left", "right"]
    assert found.n_features_in_ == 2
    assert found.score(X, WORDS) > 0.98
    same = inference.fit(found.parts()[0], rows_of(X, PLACE))
    np.testing.assert_array_equal(found.predict_proba(X), same.predict_proba(X))
    source = rows_of(path, columns=["a", "b"])
    map_rows(found.predict, source, tmp_path / "labels.parquet", batch_size=70)
    answers = pq.read_table(tmp_path / "labels.parquet")["predict"].to_pylist()
    assert answers == found.predict(X).tolist()
    assert Classifier().fit(rows_of(path, y="label")).score(X, WORDS) > 0.98


def test_clusters_without_a_row_among_the_first_ones_are_numbered_too(monkeypatch) -> None:
    monkeypatch.setattr(stream, "_NUM_DEFAULTS", 40)
    monkeypatch.setattr(small_variance, "_FEW", 0)
    rows = X[np.argsort(PLACE)]
    source = rows_of(lambda place: (rows[50 * place : 50 * place + 50],), num_blocks=6)
    found = Clusterer(inference=SmallVariance(num_components=2)).fit(source)
    assert len(set(found.labels_)) == 1
    assert (found.n_components_, len(found.means_), len(found.weights_)) == (2, 2, 2)
    np.testing.assert_array_equal(found.predict_proba(X).argmax(1), found.predict(X))
    assert len(set(zip(found.predict(X), PLACE, strict=True))) == 2


def test_columns_of_a_file_are_found_by_their_names(path, tmp_path) -> None:
    """As those of a data frame: in another order, and beside others."""
    found = Classifier(inference=SVI(num_steps=12, batch_size=60)).fit(path, y="label")
    assert found.feature_names_in_.tolist() == ["a", "b"]
    other = tmp_path / "other.parquet"
    rows = 3 * X - X.min()
    pq.write_table(pa.table({"more": WORDS, "b": rows[:, 1], "a": rows[:, 0]}), other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answers = map_rows(found.predict_proba, other)
    with pytest.warns(UserWarning, match="valid feature names"):
        np.testing.assert_array_equal(answers, found.predict_proba(rows))
    pq.write_table(pa.table({"more": WORDS, "b": rows[:, 1]}), other)
    with pytest.raises(ValueError, match=r"other.parquet' has no column 'a'; its columns are 'more'"):
        map_rows(found.predict, other)
    assert not hasattr(found.fit(rows_of(X, WORDS)), "feature_names_in_")


def test_predictions_take_rows_and_name_what_takes_a_source(path) -> None:
    found = Classifier(inference=SVI(num_steps=2, batch_size=60)).fit(path, y="label")
    for source in (path, Path(path), rows_of(path, columns=["a", "b"])):
        with pytest.raises(ValueError, match=r"X is a file or another source of rows.*map_rows\(model.predict"):
            found.predict(source)


def test_classes_are_those_of_all_blocks(monkeypatch) -> None:
    monkeypatch.setattr("regbayes.estimators.streams._BLOCK", 50)
    order = np.argsort(PLACE, kind="stable")
    assert classes_of(rows_of(X[order], WORDS[order])).tolist() == ["left", "right"]


def test_a_clusterer_takes_a_path(path) -> None:
    found = Clusterer(inference=SVI(num_steps=10, batch_size=100)).fit(path, y="label")
    assert found.n_components_ == 2
    assert found.labels_.tolist() == found.predict(X).tolist()
    assert type(found.posterior_.model.likelihood).__name__ in ("DiagonalGaussian", "FullGaussian")
    given = Clusterer(DPM(truncation=5)).fit(rows_of(X))
    assert given.n_components_ == 2


def test_what_a_file_cannot_have_is_refused(path) -> None:
    with pytest.raises(ValueError, match="sample_weight goes with arrays"):
        Classifier().fit(path, "label", sample_weight=np.ones(300))
    with pytest.raises(ValueError, match="class_weight goes with arrays"):
        Classifier(class_weight="balanced").fit(path, "label")
    with pytest.raises(ValueError, match="requires y to be passed: name the column"):
        Classifier().fit(rows_of(path, columns=["a"]))
    with pytest.raises(ValueError, match="has only one class"):
        Classifier().fit(rows_of(X, np.zeros(300)))
    with pytest.raises(ValueError, match="missing labels"):
        Classifier().fit(rows_of(X, np.where(PLACE == 0, np.nan, PLACE)))
    with pytest.raises(ValueError, match="which Gibbs cannot read"):
        Classifier(InfiniteSVM(), Gibbs(num_samples=1)).fit(path, "label")
    with pytest.raises(FileNotFoundError, match=r"X is 'no.parquet', but there is no such file"):
        Classifier().fit("no.parquet", "label")
    with pytest.raises(ValueError, match="has no column 'kind'"):
        Clusterer().fit(path, "kind")


def test_a_regressor_takes_a_path_and_the_name_of_its_targets(path, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("regbayes.estimators.streams._BLOCK", 70)
    numbers = 1e6 + 300 * (X[:, 0] - X[:, 1]) + RNG.normal(size=300)
    pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "price": numbers}), path)
    inference = SVI(num_steps=30, batch_size=60)
    found = Regressor(inference=inference).fit(path, y="price")
    np.testing.assert_allclose([found.target_mean_, found.target_scale_], [numbers.mean(), numbers.std()], rtol=1e-12)
    same = inference.fit(found.parts()[0], rows_of(X, found.standardized(numbers)))
    np.testing.assert_allclose(found.posterior_.predict(X), same.predict(X), rtol=1e-10)
    error = found.predict(X) - numbers
    np.testing.assert_allclose(found.noise_scale_, np.square(error).mean() ** 0.5, rtol=1e-10)
    assert found.score(X, numbers) > 0.95
    map_rows(found.predict, rows_of(path, columns=["a", "b"]), tmp_path / "prices.npy", batch_size=70)
    np.testing.assert_allclose(np.load(tmp_path / "prices.npy"), found.predict(X), rtol=1e-12)


def test_targets_that_a_regressor_cannot_have_are_refused(path) -> None:
    with pytest.raises(ValueError, match="requires y to be passed: name the column of the targets"):
        Regressor().fit(rows_of(X))
    with pytest.raises(ValueError, match="expected one column of numbers"):
        Regressor().fit(path, "label")
    with pytest.raises(ValueError, match="expected one column of numbers"):
        Regressor().fit(rows_of(X, X))
    with pytest.raises(ValueError, match="missing or not finite"):
        Regressor().fit(rows_of(X, np.where(PLACE == 0, np.nan, PLACE)))
    with pytest.raises(ValueError, match="sample_weight goes with arrays"):
        Regressor().fit(path, "a", sample_weight=np.ones(300))
    constant = Regressor(inference=SVI(num_steps=2)).fit(rows_of(X, np.full(300, 7.0)))
    assert (constant.target_mean_, constant.target_scale_) == (7.0, 1.0)


@pytest.mark.parametrize(
    "estimator",
    [ClassifierCV(), RegressorCV(), MultiLabelClassifierCV(), MultiTaskRegressorCV(), SequenceClusterer()],
)
def test_estimators_that_read_no_source_say_so(estimator) -> None:
    for source in ("rows.parquet", rows_of(np.zeros((5, 2)), np.arange(5))):
        with pytest.raises(ValueError, match=f"which {type(estimator).__name__} does not read: pass an array. Class"):
            estimator.fit(source, None)


def test_a_batch_comes_from_no_file() -> None:
    with pytest.raises(ValueError, match=r"y is the text 'y'; expected an array. Only fit\(path, y=...\)"):
        Classifier(inference=SVI()).partial_fit("rows.parquet", "y")
