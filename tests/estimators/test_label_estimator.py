"""`MultiLabelClassifier` on sparse rows, sparse labels and labels that are missing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning

from regbayes.estimators import (
    FeatureTransformer,
    MultiLabelClassifier,
    MultiTaskRegressor,
    NothingLearntWarning,
    SequenceClusterer,
)
from regbayes.estimators.label_folds import deal_rows, taught
from regbayes.estimators.rows import sort_rows
from regbayes.inference import SVI, Gibbs, SmallVariance
from regbayes.inference.posterior.label_calibration import best_thresholds, shared_threshold
from regbayes.models import BNMC, BernoulliBeta, MultinomialDirichlet, MultiTaskInfiniteLatentSVM, PrincipalDirections

pytestmark = [
    pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning"),
    pytest.mark.usefixtures("few_restarts"),
]


def documents(num_rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Counts of ten words, of which each of three labels brings three."""
    rng = np.random.default_rng(0)
    Y = (rng.random((num_rows, 3)) < [0.5, 0.4, 0.3]).astype(int)
    rates = np.where(np.repeat(Y, 3, axis=1), 2.0, 0.2)
    return rng.poisson(np.hstack([rates, np.ones((num_rows, 1))])).astype(float), Y


X, Y = documents()
HIDDEN = np.random.default_rng(1).random(Y.shape) < 0.4
HOLES = np.where(HIDDEN, np.nan, Y)
COUNTS = BNMC(MultinomialDirichlet(), feature_map=PrincipalDirections(), truncation=6)
BITS = COUNTS.replace(likelihood=BernoulliBeta())
BACKENDS = {"svi": SVI(num_steps=20), "gibbs": Gibbs(4, 6), "small variance": SmallVariance(max_steps=5)}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("model", [COUNTS, BITS], ids=["counts", "bits"])
@pytest.mark.parametrize("name", BACKENDS)
def test_sparse_rows_and_labels_are_as_dense_ones(name: str, model: BNMC) -> None:
    rows = X if model is COUNTS else (X > 0).astype(float)
    sparse = MultiLabelClassifier(model, BACKENDS[name], cv=2)
    sparse.fit(scipy.sparse.csr_array(rows), scipy.sparse.csr_matrix(Y))
    beside = clone(sparse).fit(scipy.sparse.coo_array(rows), Y)
    probabilities = sparse.predict_proba(scipy.sparse.csc_array(rows))
    assert_allclose(probabilities, beside.predict_proba(rows), rtol=1e-6)
    assert sparse.score(scipy.sparse.csr_array(rows), scipy.sparse.csr_array(Y)) > 0.5
    assert sparse.score(rows, Y) == (sparse.predict(rows) == Y).all(1).mean()
    assert ((probabilities > 0.5) == Y).mean() > 0.85
    dense = clone(sparse).fit(rows, scipy.sparse.csr_array(Y))
    assert_array_equal(dense.predict_proba(rows), clone(sparse).fit(rows, Y).predict_proba(rows))


@pytest.mark.parametrize("name", BACKENDS)
def test_missing_labels_are_left_out(name: str) -> None:
    fit = MultiLabelClassifier(COUNTS, BACKENDS[name], cv=2).fit(X, HOLES)
    assert ((fit.predict(X) == Y)[HIDDEN]).mean() > 0.8
    guessed = clone(fit).fit(X, np.where(HIDDEN, 0, Y))
    assert np.abs(fit.predict_proba(X) - guessed.predict_proba(X)).max() > 0.05
    sparse = clone(fit).fit(scipy.sparse.csr_array(X), HOLES)
    assert ((sparse.predict(X) == Y)[HIDDEN]).mean() > 0.8


@pytest.mark.parametrize("model", [COUNTS, MultiTaskInfiniteLatentSVM()], ids=["label sets", "tasks"])
def test_a_label_of_a_matrix_that_is_minus_one_is_missing(model: BNMC) -> None:
    """As the guide and `BNMC` say; a vector of classes may have one that is -1."""
    signs = np.where(HIDDEN, -1, Y)
    fit = MultiLabelClassifier(model, SVI(num_steps=10), cv=2).fit(X, HOLES)
    same = clone(fit).fit(X, signs)
    assert_array_equal(same.predict_proba(X), fit.predict_proba(X))
    assert same.score(X, signs) == fit.score(X, HOLES)
    assert_array_equal(clone(fit).fit(X, Y[:, 0] - 1).classes_, [-1, 0])


def test_label_sets_of_a_model_and_of_an_estimator_miss_alike() -> None:
    fit = MultiLabelClassifier(COUNTS, SVI(num_steps=10), cv=None)
    rows, signs = scipy.sparse.csr_array(X), np.where(HIDDEN, -1, Y)
    fit.partial_fit(rows, signs)
    seen = sort_rows(rows, HOLES, None, merge=False)  # in the order in which the estimator fits them
    model = SVI(num_steps=10).fit(COUNTS, seen.X, np.where(np.isnan(seen.y), -1, seen.y).astype(int))
    assert_allclose(fit.predict_proba(X), model.predict_proba(X), rtol=1e-6)
    before = fit.predict_proba(X)
    fit.partial_fit(X[:9], np.full((9, 3), -1))  # rows alone
    assert not np.array_equal(fit.predict_proba(X), before)


@pytest.mark.parametrize("model", [COUNTS, MultiTaskInfiniteLatentSVM()], ids=["label sets", "tasks"])
def test_a_column_is_a_matrix_of_one_label(model: BNMC) -> None:
    """Without a warning, and with a column of predictions; a column of classes is read as a vector."""
    fit = MultiLabelClassifier(model, SVI(num_steps=10), cv=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataConversionWarning)
        fit.fit(X, Y[:, :1])
    assert fit.has_matrix
    assert list(fit.classes_) == [0]
    assert fit.predict(X).shape == fit.predict_proba(X).shape == fit.decision_function(X).shape == (60, 1)
    assert_array_equal(fit.predict(X), fit.decision_function(X) > 0)
    assert fit.score(X, Y[:, :1]) == (fit.predict(X) == Y[:, :1]).mean() > 0.8
    known = ~HIDDEN[:, 0]
    assert fit.score(X, HOLES[:, :1]) == (fit.predict(X) == Y[:, :1])[known].mean()
    sparse = clone(fit).fit(X, scipy.sparse.csr_array(Y[:, :1]))
    assert_array_equal(sparse.predict_proba(X), fit.predict_proba(X))
    holes = clone(fit).fit(X, HOLES[:, :1])
    assert (holes.predict(X) == Y[:, :1])[~known].mean() > 0.7
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        assert clone(fit).fit(X, np.array(["no", "yes"])[Y[:, :1]]).predict(X).shape == (60,)


def test_batches_have_the_form_of_the_first() -> None:
    one = MultiLabelClassifier(COUNTS, SVI(num_steps=5)).partial_fit(X, Y[:, :1])
    with pytest.raises(ValueError, match=r"y has shape \(60,\); expected a matrix \[n, 1\], as in the fit"):
        one.partial_fit(X, Y[:, 0])
    with pytest.raises(ValueError, match=r"y has shape \(60, 3\); expected a matrix \[n, 1\], as in the fit"):
        one.partial_fit(X, Y)
    assert one.classes_.tolist() == [0]
    assert one.partial_fit(X, Y[:, :1]).predict(X).shape == (60, 1)
    vector = clone(one)
    for classes in ([0, 1], None):
        with pytest.warns(DataConversionWarning, match="column-vector y"):
            vector.partial_fit(X, Y[:, :1], classes=classes)
        assert vector.predict(X).shape == (60,)
    with pytest.raises(ValueError, match=r"classes is \[0, 1, 2\]; the fit has the classes \[0, 1\]"):
        vector.partial_fit(X, Y[:, 0], classes=[0, 1, 2])
    for matrix in (clone(one), one):
        with pytest.raises(ValueError, match=r"classes is \['a', 'b', 'c'\]; the fit has the classes \["):
            matrix.partial_fit(X, Y, classes=["a", "b", "c"])
    vector.partial_fit(X[:1], Y[:1, 0])  # a batch of one row


def test_many_tasks_may_miss_labels_and_take_sparse_ones() -> None:
    fit = MultiLabelClassifier(MultiTaskInfiniteLatentSVM(), SVI(num_steps=20)).fit(X, HOLES)
    assert ((fit.predict(X) == Y)[HIDDEN]).mean() > 0.7
    assert_array_equal(clone(fit).fit(X, scipy.sparse.csr_array(Y)).predict(X), clone(fit).fit(X, Y).predict(X))


def test_streams_may_be_sparse_and_miss_labels() -> None:
    dense, sparse = (MultiLabelClassifier(COUNTS, SVI(num_steps=10)) for _ in range(2))
    rows, labels = scipy.sparse.csr_array(X), scipy.sparse.csr_array(Y)
    for part in (slice(0, 30), slice(30, 60)):
        dense.partial_fit(rows[part], Y[part])
        sparse.partial_fit(rows[part], labels[part])
    assert float(sparse.posterior_.samples["num_seen"]) == 60
    assert_allclose(sparse.predict_proba(X), dense.predict_proba(X), rtol=1e-6)
    before = sparse.predict_proba(X)
    sparse.partial_fit(X, np.full(Y.shape, np.nan))  # rows alone
    assert not np.array_equal(sparse.predict_proba(X), before)
    assert ((sparse.partial_fit(X, HOLES).predict(X) == Y)[HIDDEN]).mean() > 0.8


def test_the_score_is_that_of_known_labels() -> None:
    fit = MultiLabelClassifier(COUNTS, SVI(num_steps=20)).fit(X, Y)
    truth = HOLES.copy()
    truth[0] = np.nan
    right = ((fit.predict(X) == truth) | np.isnan(truth)).all(1)
    known = ~np.isnan(truth).all(1)
    assert 0 < fit.score(X, truth) < 1
    assert fit.score(X, truth) == right[known].mean()
    weights = np.arange(60.0)
    assert fit.score(X, truth, sample_weight=weights) == pytest.approx(np.average(right[known], weights=weights[known]))


@pytest.mark.parametrize("number", [2, 3])
def test_a_vector_of_labels_may_miss_some(number: int) -> None:
    classes = (Y[:, :2] @ [1, 2] % number).astype(float) * 2
    missing = np.arange(60) % 3 == 0
    fit = MultiLabelClassifier(COUNTS, SVI(num_steps=20)).fit(X, np.where(missing, np.nan, classes))
    assert_array_equal(fit.classes_, np.arange(number) * 2.0)
    assert (fit.predict(X)[missing] == classes[missing]).mean() > 0.6
    assert fit.score(X, np.where(missing, np.nan, classes)) == (fit.predict(X) == classes)[~missing].mean()


@pytest.mark.parametrize(
    ("rows", "labels", "match"),
    [
        (X, scipy.sparse.csr_array(np.where(HIDDEN, np.nan, 1.0)), r"Pass y.toarray\(\) with NaN where a label is"),
        (X, scipy.sparse.csr_array(2 * Y), "y has the value 2; expected a matrix of 0 and 1"),
        (scipy.sparse.csr_array(X), scipy.sparse.csr_array(2 * Y), "y has the value 2; expected a matrix of 0 and 1"),
        (X, np.where(HIDDEN, np.nan, 0.5), "Unknown label type|y has the value 0.5"),
        (X, 2 * Y - 1, r"y has -1 and 1 but no 0, .* pass \(y > 0\).astype\(int\); else NaN in its place"),
        (X, scipy.sparse.csr_array(2 * Y - 1), "y is sparse and has NaN or -1"),
        (X, Y[1:], "inconsistent numbers of samples"),
        (X, np.full(60, np.nan), "y has no label that is known; a classifier needs at least two"),
        (X, np.where(HIDDEN, np.inf, Y), "Input y contains infinity"),
        (X, None, "requires y to be passed, but the target y is None"),
    ],
)
def test_labels_that_are_none(rows: np.ndarray, labels: np.ndarray, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        MultiLabelClassifier(COUNTS, SVI(num_steps=2)).fit(rows, labels)


def test_parts_that_do_not_take_sparse_rows() -> None:
    sparse = scipy.sparse.csr_array(X)
    counts = r"X.toarray\(\), or a model of counts: likelihood=MultinomialDirichlet\(\), .*PrincipalDirections\(\)"
    with pytest.raises(TypeError, match=f"X is sparse; the model of MultiLabelClassifier needs dense rows: .*{counts}"):
        MultiLabelClassifier(BNMC(), SVI()).fit(sparse, Y)
    with pytest.raises(ValueError, match=r"Standardized would make it dense\. Use feature_map=PrincipalDirections"):
        MultiLabelClassifier(BNMC(MultinomialDirichlet()), SVI()).fit(sparse, Y)
    assert MultiLabelClassifier(COUNTS).__sklearn_tags__().input_tags.sparse
    assert not MultiLabelClassifier(BNMC()).__sklearn_tags__().input_tags.sparse
    for none in (FeatureTransformer(), MultiTaskRegressor(), SequenceClusterer()):  # no model of theirs takes any
        with pytest.raises(TypeError, match=r"needs dense rows: pass X.toarray\(\)\.$"):
            none.fit(sparse, Y)


# -- calibration by folds ----------------------------------------------------------------------------------------------


def log_loss_of(truth: np.ndarray, probabilities: np.ndarray) -> float:
    return float(-np.where(truth == 1, np.log(probabilities), np.log1p(-probabilities)).mean())


@pytest.mark.parametrize("name", ["svi", "small variance"])
def test_probabilities_are_calibrated_by_folds(name: str) -> None:
    """Both views of "product" know the labels; taken as independent they are too sure of rows not seen."""
    rng = np.random.default_rng(1)
    hidden = rng.integers(3, size=400)
    rows = rng.normal(size=(400, 3)) + np.eye(3)[hidden] * 1.5
    rates = 1 / (1 + np.exp(-(rows @ rng.normal(size=(3, 4)) + 1.5 * rng.normal(size=(3, 4))[hidden])))
    labels = (rng.random(rates.shape) < rates).astype(int)
    plain = MultiLabelClassifier(BNMC(), BACKENDS[name], cv=None).fit(rows[:200], labels[:200])
    folds = clone(plain).set_params(cv=2).fit(rows[:200], labels[:200])
    assert "calibration" not in plain.posterior_.metadata
    before, after = (log_loss_of(labels[200:], fit.predict_proba(rows[200:])) for fit in (plain, folds))
    assert after < before - 0.03
    assert_array_equal(folds.predict(rows), folds.predict_proba(rows) > folds.threshold_)
    assert plain.threshold_ == 0.5
    assert_array_equal(folds.predict(rows), folds.decision_function(rows) > 0)
    order = rng.permutation(200)
    again = clone(folds).fit(rows[:200][order], labels[:200][order])
    assert_allclose(again.predict_proba(rows), folds.predict_proba(rows), rtol=1e-9)


def rare_labels(num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities [N, 4] of labels that are rare, and which rows have them, as signs: calibrated."""
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(num_rows, 4, generator=generator, dtype=torch.float64) ** 3 / 2
    return p, torch.where(torch.rand(p.shape, generator=generator) < p, 1.0, -1.0).double()


def test_the_threshold_of_calibrated_probabilities_is_half_of_the_best_f1() -> None:
    p, signs = rare_labels(20_000)
    threshold, best = shared_threshold(p, signs), float(best_thresholds(p.view(-1, 1), signs.view(-1, 1)))
    hits = 2 * ((p > best) & (signs > 0)).sum() / ((p > best).sum() + (signs > 0).sum())
    assert threshold == pytest.approx(float(hits) / 2)
    assert threshold == pytest.approx(best, abs=0.02)
    hidden = torch.rand(p.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    assert shared_threshold(p, signs.masked_fill(hidden, torch.nan)) == pytest.approx(threshold, abs=0.02)


def test_the_threshold_is_one_half_where_rows_cannot_tell() -> None:
    """With half of the rows for a label of 0.45 and all for the other, F1 rises from 4 / 5 to 6 / 7."""
    p, signs = torch.tensor([[0.45, 0.9]] * 12, dtype=torch.float64), torch.tensor([[-1.0, 1.0]] * 12).double()
    assert shared_threshold(p, signs) == 0.5
    signs[:6, 0] = 1.0
    for copies, expected in ((1, 0.5), (20, 3 / 7)):
        each = p.repeat(copies, 1), signs.repeat(copies, 1)
        assert float(best_thresholds(*(part.view(-1, 1) for part in each))) == pytest.approx(0.225)
        assert shared_threshold(*each) == pytest.approx(expected)


def test_labels_of_a_wide_table_that_are_rare_are_predicted_by_default() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random((300, 12)) < 0.07).astype(int)
    rows = rng.poisson(0.05 + 1.0 * np.repeat(labels, 6, axis=1)).astype(float)
    rows = np.hstack([rows, rng.poisson(0.1, size=(300, 228))])  # 300 columns
    fit = MultiLabelClassifier().fit(rows[:150], labels[:150])
    assert isinstance(fit.posterior_.model.feature_map, PrincipalDirections)
    found, truth = fit.predict(rows[150:]), labels[150:]
    f1 = 2 * (found & truth).sum() / (found.sum() + truth.sum())
    assert f1 > 0.8
    assert_array_equal(found, fit.predict_proba(rows[150:]) > fit.threshold_)


def test_a_fit_that_predicts_no_label_says_so() -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(80, 2)), (rng.random((80, 3)) < 0.03).astype(int)
    with pytest.warns(NothingLearntWarning, match="No label is predicted of any row of the fit. Choose labels by"):
        MultiLabelClassifier(cv=None).fit(rows, labels)
    with pytest.warns(NothingLearntWarning, match="No feature of the projection is in use"):
        MultiLabelClassifier(MultiTaskInfiniteLatentSVM(), SmallVariance(penalty=1e9)).fit(rows, 1 - labels)


def test_what_folds_say_is_what_their_fits_say() -> None:
    """The calibration by hand: a fit to the rows outside of each fold, and one logistic curve for what all say."""
    fit = MultiLabelClassifier(COUNTS, SVI(num_steps=5), cv=3).fit(X, Y)
    fold, bare = deal_rows(X, Y.astype(float), 3).argmax(1), clone(fit).set_params(cv=None)
    parts = [
        clone(bare).fit(X[fold != k], Y[fold != k]).posterior_.held_out(X[fold == k], Y[fold == k]) for k in range(3)
    ]
    expected = bare.fit(X, Y).posterior_.calibrated_by(parts)
    assert torch.equal(fit.posterior_.metadata["calibration"], expected.metadata["calibration"])
    assert not torch.equal(fit.posterior_.calibrated(X, Y).metadata["calibration"], expected.metadata["calibration"])


def test_few_rows_have_more_folds(monkeypatch) -> None:
    fit = MultiLabelClassifier(COUNTS, SVI(num_steps=5))
    for most, number in ((60, 5), (59, 2)):
        monkeypatch.setattr("regbayes.estimators.multi._FEW_ROWS", most)
        found, same = (clone(fit).set_params(cv=cv).fit(X, Y) for cv in ("auto", number))
        assert_array_equal(found.predict_proba(X), same.predict_proba(X))
        assert not np.array_equal(
            found.predict_proba(X), clone(fit).set_params(cv=7 - number).fit(X, Y).predict_proba(X)
        )


def test_folds_share_rare_labels_and_equal_rows() -> None:
    rng = np.random.default_rng(3)
    labels = (rng.random((80, 3)) < [0.05, 0.1, 0.5]).astype(float)
    rows = rng.normal(size=(80, 2))
    fold = deal_rows(rows, labels, 2).argmax(1)
    number = [labels[fold == k, 0].sum() for k in range(2)]
    assert abs(number[0] - number[1]) <= 1
    assert sorted(np.bincount(fold)) == [40, 40]
    twice = deal_rows(np.vstack([rows, rows[::-1]]), np.vstack([labels, labels[::-1]]), 2).argmax(1)
    assert_array_equal(twice[:80] + twice[80:][::-1], np.ones(80))


def test_labels_that_a_fold_never_saw_do_not_count() -> None:
    seen, held = np.array([[1, 0, np.nan], [1, 1, 1]]), np.ones((2, 3))
    assert_array_equal(taught(held, seen), [[np.nan, 1, np.nan]] * 2)
    sparse = taught(scipy.sparse.csr_array(held), scipy.sparse.csr_array([[1, 0, 0], [1, 1, 0]]))
    assert_array_equal(sparse, [[np.nan, 1, np.nan]] * 2)
    rare = np.column_stack([Y, np.arange(60) == 7]).astype(float)
    rare[:50, 0] = np.nan
    assert np.isfinite(MultiLabelClassifier(COUNTS, SVI(num_steps=5), cv=2).fit(X, rare).predict_proba(X)).all()


def test_folds_are_refused_and_left_out() -> None:
    for cv in (1, 0, 2.5, "x", True):
        with pytest.raises(ValueError, match=r"cv is .*an integer of at least 2, or None"):
            MultiLabelClassifier(COUNTS, SVI(num_steps=2), cv=cv).fit(X, Y)
    with pytest.raises(ValueError, match="cv is 'x'; it must be \"auto\", an integer"):
        MultiLabelClassifier(COUNTS, SVI(num_steps=2), cv="x").fit(X, Y)
    few = MultiLabelClassifier(BITS, SVI(num_steps=2)).fit(np.eye(2, 10), np.eye(2))
    assert "calibration" not in few.posterior_.metadata
    stream = MultiLabelClassifier(COUNTS, SVI(num_steps=5)).fit(X, Y)
    kept = stream.posterior_.metadata["calibration"]
    assert torch.equal(stream.partial_fit(X, Y).posterior_.metadata["calibration"], kept)
