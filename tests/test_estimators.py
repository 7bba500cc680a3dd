"""Estimators: scikit-learn's own checks with no expected failure, searches over backends, and labels of any kind."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_iris, make_blobs
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from regbayes.estimators import Classifier, Clusterer, Regressor
from regbayes.inference import SVI, Gibbs, SmallVariance
from regbayes.models import DPM, EpsilonInsensitive, InfiniteSVM, Logistic, SphericalGaussian

BACKENDS = {
    "small_variance": SmallVariance(progress=False),
    "svi": SVI(num_steps=50, progress=False),
    "gibbs": Gibbs(num_samples=20, num_warmup=20, split_merge=0, progress=False),
}
OTHER_BACKENDS = {  # than the default
    Classifier: ("svi", "gibbs"),
    Regressor: ("svi", "gibbs"),
    Clusterer: ("small_variance", "gibbs"),
}
ESTIMATORS = [estimator() for estimator in OTHER_BACKENDS] + [
    estimator(inference=BACKENDS[name]) for estimator, names in OTHER_BACKENDS.items() for name in names
]


# scikit-learn's checks contain constant columns and draw from numpy's global stream
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::regbayes.models.ConstantColumnWarning")
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_checks_which_may_use_global_stream(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def rings():
    """Two classes in four groups, each with a boundary of its own; not linearly separable."""
    X, group = make_blobs(600, centers=[[0, 0], [8, 0], [0, 8], [8, 8]], random_state=0)
    centers = np.array([[0, 0], [8, 0], [0, 8], [8, 8]])
    side = np.where(group % 2 == 0, 1, -1) * (X - centers[group])[:, 0]
    return X, np.where(side > 0, "right", "left")


@pytest.mark.parametrize(
    "backend", [SmallVariance(), SVI(), Gibbs(num_samples=50, num_warmup=50)], ids=["small_variance", "svi", "gibbs"]
)
def test_local_classifiers_are_found_where_no_single_one_exists(rings, backend):
    X, y = rings
    train, test = slice(300), slice(300, 600)
    assert LinearSVC(random_state=0).fit(X[train], y[train]).score(X[test], y[test]) < 0.6
    classifier = Classifier(InfiniteSVM(weight_scale=3.0), backend).fit(X[train], y[train])
    assert classifier.score(X[test], y[test]) >= 0.9
    assert classifier.n_components_ >= 4
    assert set(classifier.classes_) == {"left", "right"}


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_posterior_and_estimator_say_the_same(rings, backend):
    X, y = rings
    classifier = Classifier(inference=backend).fit(X, y)
    decision, probability = classifier.decision_function(X), classifier.predict_proba(X)
    assert decision.shape == (600,)
    assert probability.shape == (600, 2)
    assert_allclose(probability.sum(1), 1)
    assert_array_equal(classifier.predict(X), np.where(decision > 0, "right", "left"))
    assert_array_equal(decision, classifier.posterior_.decision_function(X))
    again = pickle.loads(pickle.dumps(classifier))
    assert_array_equal(again.decision_function(X), decision)


def test_the_parts_are_copied_not_changed(rings):
    model, inference = InfiniteSVM(), SmallVariance()
    Classifier(model, inference).fit(*rings)
    assert repr(model) == repr(InfiniteSVM())
    assert repr(inference) == repr(SmallVariance())


@pytest.mark.slow
@pytest.mark.parametrize("labels", [[3, -1, 7], ["a", "b", "c"], [True, False]], ids=["ints", "text", "bools"])
def test_labels_of_any_kind(labels):
    X, index = make_blobs(90, centers=len(labels), random_state=1)
    y = np.array(labels)[index]
    classifier = Classifier().fit(X, y)
    assert_array_equal(classifier.classes_, np.unique(y))
    assert classifier.predict(X).dtype == y.dtype
    assert classifier.score(X, y) > 0.9
    assert classifier.decision_function(X).shape == ((90,) if len(labels) == 2 else (90, 3))


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="only one class"):
        Classifier().fit(np.eye(4), ["a"] * 4)


def test_single_precision_is_kept(rings):
    X, y = rings
    classifier = Classifier().fit(X.astype(np.float32), y)
    assert classifier.predict_proba(X.astype(np.float32)).dtype == np.float32
    assert Classifier().fit(X.astype(int), y).predict_proba(X).dtype == np.float64


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::regbayes.models.ConstantColumnWarning")
def test_search_swaps_backends_and_reaches_into_the_model():
    X, y = load_iris(return_X_y=True)
    grid = {
        "inference": [SVI(num_steps=20), SmallVariance(), Gibbs(num_samples=5, num_warmup=5, split_merge=0)],
        "model__loss__strength": [1e-6, 1.0],
    }
    search = GridSearchCV(Classifier(InfiniteSVM()), grid, cv=3, error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 6
    assert search.cv_results_["mean_test_score"].reshape(3, 2)[:, 1].min() > 0.8
    assert search.best_score_ > 0.9


def test_nested_arguments_reach_the_fit(rings):
    classifier = Classifier(InfiniteSVM(), SVI(num_steps=20)).fit(*rings)
    weak = clone(classifier).set_params(model__loss__strength=1e-6).fit(*rings)
    # a loss of next to no strength leaves the classifiers at their prior mean
    assert np.abs(weak.decision_function(rings[0])).max() < 1e-2 < np.abs(classifier.decision_function(rings[0])).max()
    swapped = clone(classifier).set_params(model__loss=Logistic(), inference=SmallVariance(), inference__scale=2.0)
    assert swapped.fit(*rings).posterior_.backend.scale == 2.0
    assert isinstance(swapped.posterior_.model.loss, Logistic)


def test_pipeline(rings):
    X, y = rings
    pipeline = make_pipeline(StandardScaler(), Classifier()).fit(X, y)
    # neither part depends on the units of X
    assert_array_equal(pipeline.predict(X), Classifier().fit(X, y).predict(X))


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_clusters_have_labels_without_gaps(backend):
    X, truth = make_blobs(150, centers=[[0, 0], [12, 0], [0, 12]], random_state=0)
    clusterer = Clusterer(DPM(SphericalGaussian()), backend).fit(X)
    K = clusterer.n_components_
    assert_array_equal(np.unique(clusterer.labels_), np.arange(K))
    assert clusterer.labels_.max() + 1 == K
    # the true groups are never mixed
    assert all(len(np.unique(truth[clusterer.labels_ == k])) == 1 for k in range(K))
    assert_array_equal(clusterer.predict(X[:0:-1]), clusterer.predict(X)[:0:-1])
    assert (clusterer.predict(X) == clusterer.labels_).mean() > 0.95


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_regression_follows_each_piece(backend):
    X = np.linspace(-3, 3, 200)[:, None]
    y = np.abs(X[:, 0])
    model = InfiniteSVM(loss=EpsilonInsensitive(strength=20.0, epsilon=0.05), weight_scale=3.0)
    regressor = Regressor(model, backend).fit(X, y)
    assert regressor.score(X, y) > 0.9  # a single line has 0
