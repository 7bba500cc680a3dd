"""Estimators of latent features, topics and many tasks: weights, transforms, text labels."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import sklearn
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.base import clone
from sklearn.datasets import load_iris, make_multilabel_classification
from sklearn.metrics import log_loss, r2_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score

from regbayes.estimators import (
    Classifier,
    Clusterer,
    FeatureTransformer,
    MultiLabelClassifier,
    MultiTaskRegressor,
    NothingLearntWarning,
    Regressor,
)
from regbayes.estimators.rows import deal, moments_of_tasks, sort_rows
from regbayes.inference import SVI, Gibbs, SmallVariance
from regbayes.models import (
    CrammerSinger,
    EpsilonInsensitive,
    InfiniteLatentSVM,
    InfiniteSVM,
    LatentFeatureModel,
    Logistic,
    MedLDA,
    MultiTaskInfiniteLatentSVM,
    RandomFourier,
    Standardized,
    by_task,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning"),
    pytest.mark.usefixtures("few_restarts"),
]

REAL = {"loss": EpsilonInsensitive(5.0), "weight_scale": 3.0}
QUICK = SmallVariance(penalty=10.0, max_steps=3, num_restarts=1, merge=False)


@pytest.fixture(scope="module")
def documents() -> tuple[np.ndarray, np.ndarray]:
    """Counts of twelve words; each class prefers six of them."""
    rng = np.random.default_rng(0)
    y = np.array(["law", "art"])[np.arange(60) % 2]
    rates = np.where((y[:, None] == "law") == (np.arange(12) < 6), 2.0, 0.3)
    return rng.poisson(rates).astype(float), y


@pytest.mark.parametrize(
    "backend",
    [
        SmallVariance(penalty=20.0, max_steps=6, merge=False),
        SVI(num_steps=30),
        Gibbs(num_samples=5, num_warmup=20, scan="blocked"),
    ],
    ids=["small_variance", "svi", "blocked"],
)
def test_latent_features_classify_text_labels_and_transform(backend):
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = InfiniteLatentSVM(truncation=6, feature_map=Standardized())
    classifier = Classifier(model, backend).fit(X, names)
    assert classifier.score(X, names) > 0.8
    assert_allclose(classifier.predict_proba(X).sum(1), 1)
    found = classifier.transform(X)
    assert found.shape == (150, len(classifier.get_feature_names_out()))
    assert classifier.get_feature_names_out()[0] == "feature0"
    assert classifier.n_components_ == classifier.posterior_.num_latent_features
    assert classifier.posterior_.features.shape[0] == 150


def test_rows_of_a_fit_are_those_of_the_user_and_weights_their_numbers():
    X, y = load_iris(return_X_y=True)
    X, y = X[50:80], y[50:80] + np.arange(30) % 2
    weights, order = np.random.default_rng(0).integers(0, 4, 30), np.random.default_rng(1).permutation(30)
    classifier = Classifier(InfiniteLatentSVM(truncation=3), QUICK)
    weighted = clone(classifier).fit(X, y, sample_weight=weights)
    repeated = clone(classifier).fit(X.repeat(weights, 0), y.repeat(weights))
    shuffled = clone(classifier).fit(X[order], y[order], sample_weight=weights[order])
    assert_array_equal(weighted.decision_function(X), repeated.decision_function(X))
    assert_array_equal(weighted.decision_function(X), shuffled.decision_function(X))
    assert_array_equal(shuffled.posterior_.features, weighted.posterior_.features[order])


def test_missing_entries_are_taken_by_latent_features_alone():
    X, y = load_iris(return_X_y=True)
    X = X.copy()
    X[::7, 1] = np.nan
    for feature_map in (None, Standardized()):
        classifier = Classifier(InfiniteLatentSVM(feature_map=feature_map), QUICK).fit(X, y)
        assert classifier.predict(X).shape == (150,)
    for model in (InfiniteSVM(), InfiniteLatentSVM(feature_map=RandomFourier(4))):
        with pytest.raises(ValueError, match="Input X contains NaN"):
            Classifier(model, QUICK).fit(X, y)
    assert not hasattr(Classifier(InfiniteSVM()), "transform")


def test_a_missing_entry_is_at_the_mean_of_its_column_to_the_classifiers():
    """As if the mean of the others stood there, whatever the features make of it; weights count each row."""
    rng = np.random.default_rng(0)
    X, weights = rng.normal(3.0, 2.0, (40, 3)), torch.from_numpy(rng.integers(1, 4, 40).astype(float))
    X[::5, 1] = np.nan
    seen = ~np.isnan(X[:, 1])
    filled = X.copy()
    filled[~seen, 1] = np.average(X[seen, 1], weights=weights.numpy()[seen])
    y = np.arange(40) % 2
    (model, data), (_, other) = (InfiniteLatentSVM().prepare(rows, y, weights=weights) for rows in (X, filled))
    assert_allclose(data.inputs, other.inputs, atol=1e-12)
    assert_allclose(model.features(torch.from_numpy(X)), data.inputs, atol=1e-12)
    with pytest.raises(ValueError, match=r"X has missing entries \(NaN\), and RandomFourier needs them all"):
        InfiniteLatentSVM(feature_map=RandomFourier(4)).prepare(X, y)


def test_latent_features_are_fitted_by_svi_unless_a_backend_is_given():
    X, y = load_iris(return_X_y=True)
    found = Classifier(InfiniteLatentSVM()).fit(X, y)
    assert isinstance(found.posterior_.backend, SVI)
    assert found.n_components_ > 0
    assert found.score(X, y) > 0.9
    joint = InfiniteLatentSVM(loss=CrammerSinger(), truncation=4)
    assert Classifier(joint).parts()[1].rule == "averaging"
    assert Regressor(joint).variational().rule == "averaging"


def test_a_fit_without_a_feature_in_use_warns():
    X, y = load_iris(return_X_y=True)
    with pytest.warns(NothingLearntWarning, match=r"No latent feature is in use after a fit by SmallVariance.*SVI\(\)"):
        Classifier(InfiniteLatentSVM(), SmallVariance(penalty=1e9, num_restarts=1)).fit(X, y)


@pytest.mark.parametrize("backend", [None, Gibbs(num_samples=5, num_warmup=15)], ids=["default", "gibbs"])
def test_topics_classify_counts_dense_and_sparse(documents, backend):
    X, y = documents
    classifier = Classifier(MedLDA(num_topics=3), backend).fit(X, y)
    assert classifier.score(X, y) > 0.9
    assert set(classifier.classes_) == {"art", "law"}
    assert_allclose(classifier.transform(X).sum(1), 1)
    assert_array_equal(classifier.get_feature_names_out(), ["topic0", "topic1", "topic2"])
    assert classifier.n_components_ == 3
    sparse = clone(classifier).fit(scipy.sparse.csr_array(X), y)
    assert sparse.score(scipy.sparse.csr_array(X), y) > 0.9
    assert_allclose(sparse.predict_proba(X), sparse.predict_proba(scipy.sparse.csr_array(X)), rtol=1e-6)


def test_weights_of_documents_are_copies(documents):
    X, y = documents
    weights = np.random.default_rng(2).integers(0, 3, 60)
    classifier = Classifier(MedLDA(num_topics=3), SVI(num_steps=10))
    weighted = clone(classifier).fit(X, y, sample_weight=weights)
    repeated = clone(classifier).fit(X.repeat(weights, 0), y.repeat(weights))
    assert_allclose(weighted.decision_function(X), repeated.decision_function(X))
    with pytest.raises(ValueError, match=r"sample_weight is 0.5 in row \d+; MedLDA takes whole numbers"):
        clone(classifier).fit(X, y, sample_weight=np.full(60, 0.5))
    with pytest.warns(UserWarning, match=r"class_weight gives \[2.4, 1.0\]; MedLDA takes whole numbers: \[2.0, 1.0\]"):
        clone(classifier).set_params(class_weight={"art": 2.4}).fit(X, y)


def test_what_is_no_count_is_refused(documents):
    X, y = documents
    with pytest.raises(ValueError, match="Negative values in data passed to Classifier"):
        Classifier(MedLDA()).fit(X - 1, y)
    with pytest.raises(ValueError, match="not a whole number"):
        Classifier(MedLDA()).fit(X + 0.5, y)


@pytest.mark.parametrize("model", [MedLDA(num_topics=3, **REAL), InfiniteLatentSVM(truncation=4, **REAL)], ids=repr)
def test_regression(documents, model):
    X, y = documents
    target = (y == "law") * 2.0 - 1
    assert Regressor(model, SVI(num_steps=40)).fit(X, target).score(X, target) > 0.5


@pytest.mark.parametrize("backend", [SVI(num_steps=20), SmallVariance(max_steps=5)], ids=["SVI", "small variance"])
def test_columns_of_transform_that_count_are_those_of_features_in_use(backend):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (60, 2)) @ [[5.0, 0.0, 5.0], [0.0, 5.0, 5.0]] + 0.1 * rng.normal(size=(60, 3))
    fit = FeatureTransformer(LatentFeatureModel(truncation=8), backend).fit(X)
    used = (np.asarray(fit.posterior_.features) > 0.5).any(0)
    assert fit.n_components_ == used.sum() > 0
    assert fit.transform(X).shape[1] == len(fit.components_) == len(used) == len(fit.get_feature_names_out())
    assert "(posterior_.features > 0.5).any(0)" in FeatureTransformer.__doc__  # where a user looks for it


# -- many tasks --------------------------------------------------------------------------------------------------------


def test_sets_of_labels():
    X, Y = make_multilabel_classification(n_samples=80, n_classes=4, n_labels=2, random_state=0)
    classifier = MultiLabelClassifier(MultiTaskInfiniteLatentSVM(), SVI(num_steps=40)).fit(X, Y)
    assert_array_equal(classifier.predict(X), classifier.decision_function(X) > 0)
    assert classifier.predict_proba(X).shape == (80, 4)
    assert (classifier.predict(X) == Y).mean() > 0.8
    assert classifier.transform(X).shape == (80, len(classifier.get_feature_names_out()))
    with pytest.raises(ValueError, match="y has the value 2; expected a matrix of 0 and 1"):
        MultiLabelClassifier().fit(X, Y + 1)


def test_one_label_of_several_classes_is_a_task_for_each():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    classifier = MultiLabelClassifier(MultiTaskInfiniteLatentSVM(), SVI(num_steps=40)).fit(X, names)
    assert classifier.score(X, names) > 0.7
    assert_allclose(classifier.predict_proba(X).sum(1), 1)


def test_tasks_as_a_matrix_or_one_for_each_row():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 4))
    tasks = rng.integers(0, 3, 90)
    y = X[:, :3].sum(1) * np.array([1.0, -1.0, 0.5])[tasks]
    Y = np.full((90, 3), np.nan)
    Y[np.arange(90), tasks] = y
    model = MultiTaskInfiniteLatentSVM(truncation=6, **REAL)
    one, other = (MultiTaskRegressor(model, SVI(num_steps=60)) for _ in range(2))
    one.fit(X, y, tasks=tasks)
    other.fit(X, Y)
    assert_array_equal(one.predict(X), other.predict(X))
    assert_array_equal(one.predict(X, tasks=tasks), other.predict(X)[np.arange(90), tasks])
    assert np.corrcoef(one.predict(X, tasks=tasks), y)[0, 1] > 0.9
    with pytest.raises(ValueError, match="tasks has 3; expected the tasks of the fit, 0 to 2"):
        one.predict(X, tasks=tasks + 1)
    with pytest.raises(ValueError, match="tasks has -1; expected the tasks of the fit, 0 to 2"):
        one.predict(X, tasks=tasks - 1)
    with pytest.raises(ValueError, match="tasks has -1; expected integers from 0"):
        one.fit(X, y, tasks=tasks - 1)
    with pytest.raises(ValueError, match=r"tasks has shape \(90,\) and dtype float64; expected"):
        one.fit(X, y, tasks=tasks + 0.5)
    with pytest.raises(ValueError, match=r"Number named tasks: np\.unique\(tasks, return_inverse=True\)\[1\]"):
        one.fit(X, y, tasks=tasks.astype(str))


def rows_of_tasks(num_rows: int = 60, num_tasks: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, noisy targets, each in units of its task, and tasks in turn."""
    rng = np.random.default_rng(0)
    tasks = np.arange(num_rows) % num_tasks
    X = rng.normal(size=(num_rows, 3))
    return X, (X[:, 0] + 0.3 * rng.normal(size=num_rows)) * 10.0**tasks, tasks


TASKS = MultiTaskRegressor(inference=SVI(num_steps=10))


def test_the_score_is_the_mean_over_tasks():
    X, y, tasks = rows_of_tasks()
    fit, weights = clone(TASKS).fit(X, y, tasks=tasks), np.arange(60.0)
    own = [tasks == m for m in range(3)]
    expected = np.mean([r2_score(y[rows], fit.predict(X)[rows, m]) for m, rows in enumerate(own)])
    assert 0.5 < expected < 1
    assert fit.score(X, y, tasks=tasks) == fit.score(X, by_task(y, tasks)) == pytest.approx(expected)
    weighed = [r2_score(y[rows], fit.predict(X)[rows, m], sample_weight=weights[rows]) for m, rows in enumerate(own)]
    assert fit.score(X, y, tasks, sample_weight=weights) == pytest.approx(np.mean(weighed))
    some = np.flatnonzero((tasks < 2) | (np.arange(60) == 2))  # one row of the last task tells nothing
    assert fit.score(X[some], y[some], tasks=tasks[some]) == pytest.approx(
        np.mean([fit.score(X[r], y[r], tasks[r]) for r in own[:2]])
    )
    assert np.isnan(fit.score(X[:3], y[:3], tasks=tasks[:3]))
    complete = fit.predict(X) + np.random.default_rng(1).normal(size=(60, 3))
    assert fit.score(X, complete) == pytest.approx(r2_score(complete, fit.predict(X)))
    one = clone(TASKS).fit(X, y)
    assert one.score(X, y) == one.score(X, y[:, None]) == pytest.approx(r2_score(y, one.predict(X)))


@pytest.mark.parametrize(
    ("y", "tasks", "match"),
    [
        (np.zeros(60), None, r"y has shape \(60,\); expected \(60, 3\), a target for each task, or .* in tasks="),
        (np.zeros((60, 2)), None, r"y has shape \(60, 2\); expected \(60, 3\)"),
        (np.zeros(60), np.full(60, 3), "tasks has 3; expected the tasks of the fit, 0 to 2"),
        (np.zeros(59), None, "X and y: Found input variables with inconsistent numbers of samples"),
    ],
)
def test_targets_that_are_not_those_of_the_tasks_have_no_score(y, tasks, match):
    X, targets, own = rows_of_tasks()
    with pytest.raises(ValueError, match=match):
        clone(TASKS).fit(X, targets, tasks=own).score(X, y, tasks=tasks)


def test_searches_score_tasks_that_are_routed_or_in_a_matrix():
    X, y, tasks = rows_of_tasks()
    folds = list(StratifiedKFold(3).split(X, tasks))
    scores = cross_val_score(TASKS, X, by_task(y, tasks), cv=folds)
    assert scores.min() > 0.5
    grid = GridSearchCV(TASKS, {"inference__num_steps": [1, 10]}, cv=folds)
    with sklearn.config_context(enable_metadata_routing=True):
        assert_array_equal(cross_val_score(TASKS, X, y, cv=folds, params={"tasks": tasks}), scores)
        grid.fit(X, y, tasks=tasks)
        assert grid.best_score_ == grid.cv_results_["mean_test_score"].max() == scores.mean()
        assert grid.predict(X).shape == (60, 3)
        assert grid.score(X, y, tasks=tasks) == grid.best_estimator_.score(X, y, tasks=tasks)
    with pytest.warns(UserWarning, match=r"sklearn\.set_config\(enable_metadata_routing=True\)"):
        assert np.isnan(cross_val_score(TASKS, X, y, cv=folds, params={"tasks": tasks})).all()


def test_tasks_have_units_of_their_own():
    """Predictions go with the targets, whatever mean and scale a task has; a constant one is predicted as it is."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 4))
    Y = X @ rng.normal(size=(4, 3))
    Y[rng.random(Y.shape) < 0.2] = np.nan
    plain = MultiTaskRegressor(inference=SVI(num_steps=60)).fit(X, Y)
    for scale, mean in ((1.0, 1e4), (1e-9, 0.0), (np.array([1.0, 1e-6, 1e6]), np.array([5.0, 0.0, -1e8]))):
        found = clone(plain).fit(X, scale * Y + mean)
        known = ~np.isnan(Y)
        error = np.where(known, (found.predict(X) - mean) / scale - Y, 0.0)
        assert ((error**2).sum(0) / known.sum(0) < 0.02 * np.nanvar(Y, axis=0)).all()
        if np.ndim(scale) == 0:
            assert_allclose((found.predict(X) - mean) / scale, plain.predict(X), rtol=1e-5, atol=1e-5)
    single = clone(plain).fit(X.astype(np.float32), Y)
    assert single.predict(X.astype(np.float32)).dtype == np.float32
    constant = clone(plain).fit(X, np.column_stack([Y, np.full(120, 7.0)]))
    assert_allclose(constant.predict(X)[:, 3], 7.0, atol=1e-3)


def test_moments_of_tasks_are_drawn_towards_each_other_as_far_as_chance_explains():
    rng = np.random.default_rng(0)
    alike = rng.normal(3.0, 2.0, size=(6, 400))
    mean, scale = moments_of_tasks(alike)
    assert np.abs(mean - 3.0).mean() < 0.5 * np.abs(alike.mean(0) - 3.0).mean()
    assert np.abs(np.log(scale / 2.0)).mean() < 0.6 * np.abs(np.log(alike.std(0, ddof=1) / 2.0)).mean()
    apart = rng.normal(size=(6, 5)) * [1.0, 1e-6, 1e6, 3.0, 1.0] + [0.0, 1.0, 1e9, -50.0, 100.0]
    mean, scale = moments_of_tasks(apart)
    assert_allclose(scale, apart.std(0, ddof=1), rtol=0.1)
    assert (np.abs(mean - apart.mean(0)) < 0.2 * apart.std(0)).all()
    one_off = alike.copy()
    one_off[:, 0] += 12.0  # by more than any other, of which there are many
    mean, scale = moments_of_tasks(one_off)
    assert_allclose(mean[0], one_off[:, 0].mean(), atol=2.001 * scale[0] / 6**0.5)
    shuffled = moments_of_tasks(alike[rng.permutation(6)])
    assert_array_equal(np.stack(shuffled), np.stack(moments_of_tasks(alike)))


def test_moments_of_tasks_without_a_spread_of_their_own():
    """Of no row, of one, and of equal ones; whatever the units, squares are finite."""
    nan = np.nan
    mean, scale = moments_of_tasks(np.array([[1.0, nan, 5.0, nan], [2.0, nan, 5.0, 1.5], [3.0, nan, 5.0, nan]]))
    assert_allclose(scale, [1.0, 1.0, 1.0, 1.0])
    assert_allclose(mean[[0, 2]], [2.0 - 0.125, 5.0])
    assert_allclose(mean[[1, 3]], 1.875)
    assert_array_equal(moments_of_tasks(np.full((3, 2), 4.0)), ([4.0, 4.0], [1.0, 1.0]))
    assert_array_equal(moments_of_tasks(np.array([[4.0, nan]])), ([4.0, 4.0], [1.0, 1.0]))
    for unit in (1e-200, 1e200):
        mean, scale = moments_of_tasks(unit * np.array([[1.0, -3.0], [2.0, 3.0]]))
        assert np.isfinite([mean, scale]).all()
        assert_allclose(scale / unit, moments_of_tasks(np.array([[1.0, -3.0], [2.0, 3.0]]))[1])


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (Classifier(MultiTaskInfiniteLatentSVM()), "model is MultiTaskInfiniteLatentSVM; Classifier needs a model of"),
        (Clusterer(InfiniteLatentSVM()), "model is InfiniteLatentSVM; Clusterer needs a model of partitions"),
        (MultiLabelClassifier(InfiniteSVM()), "model is InfiniteSVM; MultiLabelClassifier needs a model of many tasks"),
        (MultiLabelClassifier(MultiTaskInfiniteLatentSVM(**REAL)), "a loss of real targets. Use MultiTaskRegressor"),
        (MultiTaskRegressor(MultiTaskInfiniteLatentSVM()), "which has no real targets as it is"),
        (Regressor(InfiniteLatentSVM()), "model is InfiniteLatentSVM, which has no real targets as it is"),
    ],
    ids=repr,
)
def test_parts_that_do_not_serve_are_refused(estimator, message):
    X, y = np.random.default_rng(0).normal(size=(10, 2)), np.arange(10) % 2
    with pytest.raises(ValueError, match=message):
        estimator.fit(X, y)


# -- probabilities by folds --------------------------------------------------------------------------------------------


def some_iris() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_iris(return_X_y=True)
    chosen = np.random.default_rng(3).permutation(150)[:60]
    return X[chosen], y[chosen]


def test_slope_of_a_hinge_makes_labels_held_out_likeliest():
    X, y = some_iris()
    hinge = Classifier(InfiniteLatentSVM(truncation=3), QUICK, num_folds=3)
    found, plain = clone(hinge).fit(X, y), clone(hinge).set_params(num_folds=None).fit(X, y)
    logits, labels = [], []
    ordered = sort_rows(X, y, None, merge=False)
    fold = deal(ordered, ordered.y, 3).argmax(1)
    for k in range(3):
        other = clone(plain).fit(X[fold != k], y[fold != k])
        logits.append(other.decision_function(X[fold == k]))
        labels.append(y[fold == k])
    logits, labels = np.concatenate(logits), np.concatenate(labels)
    targets = (np.eye(3)[labels] * 60 + 1) / 63

    def loss(slope: float) -> float:
        return -float((targets * log_softmax(slope * logits, axis=1)).sum())

    assert found.slope_ == pytest.approx(minimize_scalar(loss, (0.5, 2.0)).x, rel=1e-3)
    assert_array_equal(found.decision_function(X), plain.decision_function(X))
    assert_allclose(found.predict_proba(X), softmax(found.slope_ * plain.decision_function(X), axis=1))
    assert_allclose(np.exp(found.predict_log_proba(X)), found.predict_proba(X))
    assert plain.slope_ is None
    assert_allclose(plain.predict_proba(X), plain.posterior_.predict_proba(X))


def test_slope_depends_on_how_often_rows_occur_and_not_on_their_order():
    X, y = some_iris()
    weights, order = np.random.default_rng(0).integers(0, 3, 60), np.random.default_rng(1).permutation(60)
    classifier = Classifier(InfiniteLatentSVM(truncation=3), QUICK, num_folds=2)
    weighted = clone(classifier).fit(X, y, sample_weight=weights)
    repeated = clone(classifier).fit(X.repeat(weights, 0), y.repeat(weights))
    shuffled = clone(classifier).fit(X[order], y[order], sample_weight=weights[order])
    assert weighted.slope_ == pytest.approx(repeated.slope_, rel=1e-9)
    assert weighted.slope_ == shuffled.slope_


@pytest.mark.parametrize(
    ("model", "inference", "has"),
    [
        (InfiniteSVM(), None, True),
        (InfiniteSVM(loss=Logistic()), SmallVariance(num_restarts=1), False),
        (InfiniteSVM(), SmallVariance(num_restarts=1), False),
    ],
)
def test_slopes_are_found_where_the_backend_is_left_open(model, inference, has):
    X, y = some_iris()
    assert (Classifier(model, inference).fit(X, y).slope_ is not None) == has


def test_a_likelihood_has_no_slope_by_folds():
    X, y = some_iris()
    parts = InfiniteSVM(loss=Logistic()), SmallVariance(num_restarts=1)
    assert Classifier(*parts, num_folds=2).fit(X, y).slope_ is None
    assert Classifier(InfiniteSVM(), parts[1], num_folds=2).fit(X, y).slope_ is not None


def test_the_default_is_as_sure_as_the_rows_of_its_fit_bear():
    """A slope below 1 is the likeliest for the rows of the fit, as if these were new."""
    X, y = some_iris()
    found = Classifier().fit(X, y)
    scores, targets = found.decision_function(X), (np.eye(3)[y] * 60 + 1) / 63
    best = minimize_scalar(lambda slope: -(targets * log_softmax(slope * scores, axis=1)).sum(), (0.1, 1.0)).x
    assert found.slope_ == pytest.approx(best, rel=1e-3)
    assert found.slope_ < 1
    assert_allclose(found.predict_proba(X), softmax(found.slope_ * scores, axis=1))
    steep = np.array([[-1.0], [0.0], [1.0], [2.0]]).repeat(10, 0), np.array([0, 0, 1, 1]).repeat(10)
    assert Classifier(InfiniteSVM(loss=Logistic(), weight_scale=0.5)).fit(*steep).slope_ is None


@pytest.mark.parametrize("values", [2, 4, 10])
def test_the_default_is_not_sure_where_equal_rows_have_either_label(values):
    """Components of equal rows that differ in their labels alone would be sure, and wrong for a fifth of new rows."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, values, (3600, 1)).astype(float)
    y = (rng.random(3600) < np.where(X.ravel() // max(values // 4, 1) % 2, 0.8, 0.2)).astype(int)
    found = Classifier().fit(X[:600], y[:600])
    entropy = -0.8 * np.log(0.8) - 0.2 * np.log(0.2)
    assert log_loss(y[600:], found.predict_proba(X[600:])) < 1.06 * entropy


def test_the_default_has_at_most_a_component_for_two_different_rows():
    times = [100, 100, 30, 30]
    X, y = np.array([[0.0], [1.0], [1.0], [0.0]]).repeat(times, 0), np.array([0, 1, 0, 1]).repeat(times)
    found = Classifier().fit(X, y)
    assert found.n_components_ == 1
    assert_allclose(found.predict_proba([[0.0], [1.0]])[:, 1], [3 / 13, 10 / 13], atol=0.02)


def test_too_few_rows_have_no_slope_and_numbers_of_folds_that_mean_nothing_are_refused():
    X, y = np.array([[0.0], [1.0], [2.0]]), [0, 1, 1]
    assert Classifier(InfiniteSVM()).fit(X, y).slope_ is None
    for number in (1, "two", 2.5):
        with pytest.raises(ValueError, match="num_folds is"):
            Classifier(InfiniteSVM(), num_folds=number).fit(X, y)


def test_a_fit_without_folds_forgets_the_slope_of_one_before():
    X, y = some_iris()
    classifier = Classifier(InfiniteSVM()).fit(X, y)
    assert classifier.slope_ is not None
    assert classifier.set_params(num_folds=None).fit(X, y).slope_ is None
