"""Estimators: searches over backends, weights, pipelines, and labels of any kind."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import load_iris, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from regbayes import estimators
from regbayes.estimators import Classifier, ClassifierCV, Clusterer, Regressor, RoundedWeightsWarning, SequenceClusterer
from regbayes.estimators.class_weights import class_weights
from regbayes.estimators.rows import sort_rows
from regbayes.inference import NUTS, SVI, Autoguide, Gibbs, SmallVariance
from regbayes.models import (
    DDPM,
    DPM,
    IHMM,
    DirichletProcess,
    EpsilonInsensitive,
    InfiniteSVM,
    Logistic,
    MultinomialDirichlet,
    PoissonGamma,
    PrincipalDirections,
    SphericalGaussian,
    SquaredHinge,
)

pytestmark = pytest.mark.usefixtures("few_restarts")

BACKENDS = {
    "small_variance": SmallVariance(progress=False),
    "svi": SVI(num_steps=50, progress=False),
    "gibbs": Gibbs(num_samples=20, num_warmup=20, split_merge=0, progress=False),
}
SMALL = {"prior": DirichletProcess(1.0), "truncation": 3}
MODELS = {
    Classifier: InfiniteSVM(**SMALL),
    Regressor: InfiniteSVM(loss=EpsilonInsensitive(), **SMALL),
    Clusterer: DPM(SphericalGaussian(), **SMALL),
    SequenceClusterer: IHMM(truncation=3),
}
# as short as they can be and still learn what scikit-learn's checks ask for
QUICK = {
    "small_variance": SmallVariance(penalty=30.0, max_steps=5, merge=False),
    "svi": SVI(num_steps=3),
    "gibbs": Gibbs(num_samples=1, num_warmup=2, split_merge=0, num_generative=1),
    "nuts": NUTS(num_samples=1, num_warmup=1, max_tree_depth=1),
    "autoguide": Autoguide("AutoDelta", num_steps=3, learning_rate=0.3, num_samples=1),
}


@pytest.fixture(scope="module")
def rings():
    """Two classes in four groups, each with a boundary of its own; not linearly separable."""
    X, group = make_blobs(600, centers=[[0, 0], [8, 0], [0, 8], [8, 8]], random_state=0)
    centers = np.array([[0, 0], [8, 0], [0, 8], [8, 8]])
    side = np.where(group % 2 == 0, 1, -1) * (X - centers[group])[:, 0]
    return X, np.where(side > 0, "right", "left")


# chains of this length may still be in seven components: the scores of four are averaged
@pytest.mark.filterwarnings("ignore::regbayes.inference.ChainsDisagree")
@pytest.mark.parametrize(
    "backend",
    [SmallVariance(), SVI(), Gibbs(num_samples=30, num_warmup=50, num_chains=4)],
    ids=["small_variance", "svi", "gibbs"],
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
    assert_allclose(classifier.predict_log_proba(X), np.log(probability), rtol=1e-12)
    assert_array_equal(classifier.predict(X), np.where(decision > 0, "right", "left"))
    assert_array_equal(decision, classifier.posterior_.decision_function(X))
    again = pickle.loads(pickle.dumps(classifier))
    assert_array_equal(again.decision_function(X), decision)


ANSWERS = "predict predict_proba predict_log_proba decision_function transform score score_samples sample perplexity"


@pytest.mark.parametrize("method", ANSWERS.split())
def test_an_answer_before_any_fit_says_so(method):
    kinds = [each for each in vars(estimators).values() if isinstance(each, type) and issubclass(each, BaseEstimator)]
    answering = [kind for kind in kinds if hasattr(kind(), method)]
    assert answering
    for kind in answering:
        asked = [1] if method == "sample" else [np.eye(3), np.arange(3)][: 1 + (method == "score")]
        with pytest.raises(NotFittedError, match=f"This {kind.__name__} instance is not fitted yet"):
            getattr(kind(), method)(*asked)


def test_the_parts_are_copied_not_changed(rings):
    model, inference = InfiniteSVM(), SmallVariance()
    X, y = rings
    Classifier(model, inference).fit(X[:60], y[:60])
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


@pytest.mark.parametrize(
    ("kind", "model"), [(Classifier, InfiniteSVM()), (SequenceClusterer, IHMM())], ids=["rows", "steps"]
)
def test_an_argument_of_a_part_that_is_none_is_refused(kind, model):
    with pytest.raises(ValueError, match=r"model__truncation cannot be set while model is None.*Pass the model itself"):
        kind().set_params(model__truncation=5)
    assert kind().set_params(model=clone(model), model__truncation=5).model.truncation == 5


def test_families_of_sparse_rows_take_them():
    rng = np.random.default_rng(0)
    group = rng.integers(2, size=60)
    X = rng.poisson(np.array([[4.0] * 5 + [1.0] * 5, [1.0] * 5 + [4.0] * 5])[group]).astype(float)
    sparse = scipy.sparse.coo_array(X)
    clusterer = Clusterer(DPM(MultinomialDirichlet()), BACKENDS["svi"]).fit(sparse)
    assert_array_equal(clusterer.predict(sparse), clusterer.predict(X))
    assert clusterer.__sklearn_tags__().input_tags.sparse
    model = InfiniteSVM(MultinomialDirichlet(), loss=SquaredHinge(), feature_map=PrincipalDirections(2))
    weights = np.arange(60) % 4  # rows of weight 0 are put to components afterwards
    for classifier in (Classifier(model, BACKENDS["small_variance"]), ClassifierCV(model, num_components=[1, 2])):
        assert classifier.fit(sparse, group, sample_weight=weights).score(sparse, group) > 0.9
    with pytest.raises(TypeError, match=r"X is sparse; the model of .* needs dense rows: pass X"):
        Clusterer(DPM(SphericalGaussian())).fit(sparse)


def test_single_precision_is_kept(rings):
    X, y = rings
    classifier = Classifier().fit(X.astype(np.float32), y)
    assert classifier.predict_proba(X.astype(np.float32)).dtype == np.float32
    assert Classifier().fit(X.astype(int), y).predict_proba(X).dtype == np.float64


def test_nested_arguments_reach_the_fit(rings):
    classifier = Classifier(InfiniteSVM(), SVI(num_steps=20)).fit(*rings)
    weak = clone(classifier).set_params(model__loss__strength=1e-6).fit(*rings)
    # a loss of next to no strength leaves the classifiers at their prior mean
    assert np.abs(weak.decision_function(rings[0])).max() < 1e-2 < np.abs(classifier.decision_function(rings[0])).max()
    swapped = clone(classifier).set_params(model__loss=Logistic(), inference=SmallVariance(), inference__scale=2.0)
    assert swapped.fit(*rings).posterior_.backend.scale == 2.0
    assert isinstance(swapped.posterior_.model.loss, Logistic)


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


@pytest.mark.one_in(3)
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_regression_follows_each_piece(backend):
    X = np.linspace(-3, 3, 200)[:, None]
    y = np.abs(X[:, 0])
    model = InfiniteSVM(loss=EpsilonInsensitive(strength=20.0, epsilon=0.05), weight_scale=3.0)
    regressor = Regressor(model, backend).fit(X, y)
    assert regressor.score(X, y) > 0.9  # a single line has 0


# -- weights -----------------------------------------------------------------------------------------------------------


def small_data(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows [30, 2], labels, and whole weights, some of them 0."""
    rng = np.random.default_rng(seed)
    X, y = make_blobs(30, centers=3, random_state=seed)
    return X, y, rng.integers(0, 4, 30)


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("kind", [Classifier, Regressor, Clusterer])
def test_a_fit_depends_on_how_often_rows_occur_and_on_nothing_else(kind, name):
    X, y, weights = small_data()
    estimator, order = kind(MODELS[kind], QUICK[name]), np.random.default_rng(1).permutation(30)
    weighted = clone(estimator).fit(X, y, sample_weight=weights)
    shuffled = clone(estimator).fit(X[order], y[order], sample_weight=weights[order])
    repeated = clone(estimator).fit(X.repeat(weights, 0), y.repeat(weights))
    first = (weights.cumsum() - weights)[weights > 0]
    for other, copies, rows in ((shuffled, slice(None), order), (repeated, first, weights > 0)):
        for key, value in weighted.posterior_.samples.items():
            if key in ("assignments", "responsibilities"):
                assert_array_equal(other.posterior_.samples[key][:, copies], value[:, rows])
            else:
                assert_array_equal(other.posterior_.samples[key], value)
    assert_array_equal(shuffled.predict(X), weighted.predict(X))
    if kind is Clusterer:
        assert_array_equal(shuffled.labels_, weighted.labels_[order])
        assert weighted.labels_.shape == (30,)
    # rows of the posterior are those of the user
    assert weighted.posterior_.samples["assignments"].shape[1] == 30
    assert repeated.posterior_.samples["assignments"].shape[1] == weights.sum()


def test_weights_of_classes_are_weights_of_their_rows():
    X, y, weights = small_data()
    names = np.array(["a", "b", "c"])[y]
    factors = {"a": 3.0, "b": 0.25}
    plain = Classifier(InfiniteSVM(loss=Logistic()), QUICK["small_variance"])
    by_class = clone(plain).set_params(class_weight=factors).fit(X, names, sample_weight=weights)
    each = weights * np.array([3.0, 0.25, 1.0])[y]
    by_row = clone(plain).fit(X, names, sample_weight=each)
    assert_array_equal(by_class.decision_function(X), by_row.decision_function(X))
    counts = np.bincount(y, weights)
    balanced = clone(plain).set_params(class_weight="balanced").fit(X, names, sample_weight=weights)
    by_row = clone(plain).fit(X, names, sample_weight=weights * (counts.sum() / (3 * counts))[y])
    assert_allclose(balanced.decision_function(X), by_row.decision_function(X), rtol=1e-6)
    plain.fit(X, names, sample_weight=weights)
    assert np.abs(plain.decision_function(X) - by_class.decision_function(X)).max() > 1e-3


def test_balanced_weights_of_a_fold_that_lacks_a_class():
    assert_allclose(class_weights("balanced", np.arange(3), np.array([0, 0, 2]), np.ones(3)), [0.5, 1.0, 1.0])
    X, y = load_iris(return_X_y=True)
    estimator = Classifier(InfiniteSVM(), QUICK["svi"], class_weight="balanced", num_folds=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        estimator.fit(X[:101], y[:101])  # one row of the third class
    assert estimator.slope_ > 0


@pytest.mark.parametrize("num_classes", [2, 3])
def test_under_svi_weights_of_classes_are_those_of_losses(num_classes):
    X, y = make_blobs(centers=num_classes, random_state=0, cluster_std=20)  # scikit-learn's own check
    heavy = {label: 1e-4 if label else 1000.0 for label in range(num_classes)}
    model = InfiniteSVM(loss=Logistic(), weight_scale=3.0)
    classifier = Classifier(model, SVI(), class_weight=heavy).fit(X[::2], y[::2])
    assert (classifier.predict(X[1::2]) == 0).mean() > 0.87
    rows = sort_rows(X[::2], y[::2], None, merge=True)
    losses = [heavy[label] for label in rows.y]
    posterior = SVI().fit(model, rows.X, rows.y, loss_weight=losses)
    assert_allclose(classifier.decision_function(X), posterior.decision_function(X))
    searched = ClassifierCV(inference=SVI(), class_weight=heavy, cv=2).in_losses(classifier.parts())
    assert not searched  # there rows count so often


def test_gibbs_rounds_weights_of_classes_and_says_so():
    X, y, _ = small_data()
    classifier = Classifier(inference=QUICK["gibbs"], class_weight={0: 2.4, 1: 1e-4, 2: 1.0})
    with pytest.warns(RoundedWeightsWarning, match=r"Gibbs takes whole numbers: \[2.0, 1.0, 1.0\] are used"):
        rounded = classifier.fit(X, y).decision_function(X)
    whole = clone(classifier).set_params(class_weight={0: 2}).fit(X, y).decision_function(X)  # without a warning
    assert_array_equal(rounded, whole)
    with pytest.raises(ValueError, match=r"sample_weight is 0.5 in row 0; Gibbs takes whole numbers"):
        clone(classifier).set_params(class_weight=None).fit(X, y, sample_weight=np.full(30, 0.5))


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ("even", "class_weight is 'even'; expected None, 'balanced' or a dict"),
        ({0: 1.0, 7: 2.0}, r"class_weight has a weight for 7; the classes in y are \[0, 1, 2\]"),
        ({0: -1.0}, "class_weight is -1.0 for 0; expected a finite number above 0"),
        ({0: float("nan")}, "class_weight is nan for 0"),
        ({0: "a"}, "class_weight is 'a' for 0"),
    ],
    ids=str,
)
def test_weights_of_classes_that_mean_nothing_are_refused(class_weight, message):
    X, y, _ = small_data()
    with pytest.raises(ValueError, match=message):
        Classifier(class_weight=class_weight).fit(X, y)


def test_a_class_whose_rows_have_no_weight_is_no_class():
    X, y, _ = small_data()
    classifier = Classifier(inference=QUICK["small_variance"]).fit(X, y, sample_weight=(y != 1).astype(float))
    assert_array_equal(classifier.classes_, [0, 2])
    assert set(classifier.predict(X)) == {0, 2}
    assert classifier.predict_proba(X).shape == (30, 2)
    with pytest.raises(ValueError, match="sample_weight leaves, in the rows where it is positive, only one class"):
        Classifier().fit(X, y, sample_weight=(y == 2).astype(float))
    with pytest.raises(ValueError, match=r"y has only one class \('a'\)"):
        Classifier().fit(X, ["a"] * 30)


# -- what is no model of the estimator, and other kinds of tables ---------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (Classifier(DPM()), r"model is DPM, which has no classes. Use InfiniteSVM\(\), or Clusterer\(DPM\(\)\)"),
        (Classifier(InfiniteSVM(loss=EpsilonInsensitive())), "a loss of real targets. Use Regressor"),
        (Regressor(DDPM()), r"model is DDPM, which has no real targets as it is. Use InfiniteSVM\(loss=Eps"),
        (Regressor(InfiniteSVM()), "model is InfiniteSVM, which has no real targets as it is"),
        (Clusterer(InfiniteSVM()), r"model is InfiniteSVM, which needs targets. Use DPM\(\) or DDPM\(\)"),
        (Clusterer(IHMM()), r"model is IHMM; Clusterer needs a model of partitions such as DPM\(\)"),
        (Classifier(IHMM()), "model is IHMM; Classifier needs a model of partitions"),
        (Classifier(InfiniteSVM), r"model is <class .*; expected an object such as InfiniteSVM\(\)"),
        (Clusterer("dpm"), r"model is 'dpm'; expected an object such as DPM\(\)"),
        (Regressor(SVI()), r"model is SVI\(.*; expected an object such as InfiniteSVM\(\)"),
        (Clusterer(inference=Gibbs), r"inference is <class .*; expected an object such as SVI\(\)"),
        (Clusterer(inference=DPM()), r"inference is DPM\(.*; expected an object such as SVI\(\)"),
    ],
    ids=repr,
)
def test_parts_that_do_not_serve_are_refused_in_a_sentence(estimator, message):
    X, y, _ = small_data()
    with pytest.raises(ValueError, match=message):
        estimator.fit(X, y)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_tables_with_names(library):
    table = pytest.importorskip(library)
    X, y, weights = small_data()
    frame = table.DataFrame({"width": X[:, 0], "height": X[:, 1]})
    labels, counts = table.Series(np.array(["a", "b", "c"])[y]), table.Series(weights)
    for kind in (Classifier, Clusterer):
        estimator = kind(inference=QUICK["small_variance"]).fit(frame, labels, sample_weight=counts)
        assert_array_equal(estimator.feature_names_in_, ["width", "height"])
        plain = clone(estimator).fit(X, np.array(["a", "b", "c"])[y], sample_weight=weights)
        assert_array_equal(estimator.predict(frame), plain.predict(X))
        with pytest.raises(ValueError, match="feature names should match"):
            estimator.predict(frame[["height", "width"]])
        with pytest.warns(UserWarning, match="X does not have valid feature names"):
            estimator.predict(X)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_dates_of_a_frame_are_no_numbers(library):
    table = pytest.importorskip(library)
    X, y, _ = small_data()
    days = np.datetime64("2020-01-01", "us") + np.arange(len(X)) * np.timedelta64(1, "D")
    with pytest.raises(TypeError, match=r"X has columns that are not numeric: 'day'"):
        Classifier().fit(table.DataFrame({"width": X[:, 0], "day": days}), y)


@pytest.mark.parametrize("kind", ["Regressor", "RegressorCV", "MultiTaskRegressor"])
def test_targets_of_objects_are_numbers_and_no_text(kind):
    X = np.random.default_rng(0).normal(size=(20, 2))
    y = X[:, :1] if kind == "MultiTaskRegressor" else X[:, 0]
    estimator = getattr(estimators, kind)()
    for text in (y.astype(str), y.astype(str).astype(object)):
        with pytest.raises(ValueError, match=r"y has text; expected numbers\. Convert digits with y\.astype"):
            clone(estimator).fit(X, text)
    far = y.astype(object)
    far[0] = np.inf
    with pytest.raises(ValueError, match=r"y.*inf"):
        clone(estimator).fit(X, far)
    assert_array_equal(clone(estimator).fit(X, y.astype(object)).predict(X), clone(estimator).fit(X, y).predict(X))


@pytest.mark.nightly
def test_a_search_in_a_pipeline_runs_in_two_processes_with_weights():
    X, y, weights = small_data()
    scaler = StandardScaler().set_output(transform="pandas")
    pipeline = make_pipeline(scaler, Classifier(InfiniteSVM(), QUICK["small_variance"]))
    grid = {"classifier__model__loss__strength": [0.5, 1.0], "classifier__class_weight": [None, "balanced"]}
    options = {"cv": 2, "error_score": "raise"}
    parallel, serial = (
        GridSearchCV(pipeline, grid, n_jobs=n_jobs, **options).fit(X, y, classifier__sample_weight=weights + 1)
        for n_jobs in (2, 1)
    )
    assert_array_equal(parallel.cv_results_["mean_test_score"], serial.cv_results_["mean_test_score"])
    assert_array_equal(parallel.predict(X), serial.predict(X))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_order_of_rows_does_not_hang_on_the_units_of_targets(dtype):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, (200, 2)).astype(dtype)  # many rows of one X
    y, weights = rng.integers(0, 40, 200) * 0.1, rng.integers(0, 3, 200).astype(float)
    for merge in (True, False):
        found, other = (
            sort_rows(X, ((values - values.mean()) / values.std()).astype(dtype), weights, merge=merge)
            for values in (y, 1e6 * y + 5)
        )
        assert_array_equal(found.place, other.place)
        order = np.random.default_rng(1).permutation(200)
        shuffled = sort_rows(X[order], y[order], weights[order], merge=merge)
        assert_array_equal(shuffled.X, found.X)
        kept, counted = weights > 0, found.weights > 0
        some = sort_rows(X[kept], y[kept], weights[kept], merge=merge)
        assert_array_equal(some.X, found.X[counted])
        assert_array_equal(some.weights, found.weights[counted])
    # rows of one X neither stand together nor in the order of their targets
    alone = sort_rows(X, rng.normal(size=200), None, merge=True)
    assert 165 < (np.diff(alone.X, axis=0) != 0).any(1).sum() < 190
    assert abs(np.corrcoef(alone.y[1:], alone.y[:-1])[0, 1]) < 0.2


@pytest.mark.parametrize(
    "inference", [BACKENDS["svi"], SmallVariance(num_components=3), QUICK["gibbs"]], ids=list("svg")
)
def test_a_fit_to_sparse_rows_depends_on_how_often_each_occurs(inference):
    rng = np.random.default_rng(0)
    X, y = scipy.sparse.csr_array(rng.poisson(0.5, (60, 8)).astype(float)), rng.integers(2, size=60)
    order, weights = rng.permutation(60), rng.integers(0, 3, 60)
    copies = np.repeat(order, weights[order])
    model = InfiniteSVM(PoissonGamma(), feature_map=PrincipalDirections(4), truncation=6)
    once, weighted = Classifier(model, inference).fit(X, y), Classifier(model, inference)
    assert_allclose(clone(once).fit(X[order], y[order]).predict_proba(X), once.predict_proba(X), atol=1e-8)
    found = weighted.fit(X, y, sample_weight=weights).predict_proba(X)
    assert_allclose(clone(once).fit(X[copies], y[copies]).predict_proba(X), found, atol=1e-8)


def test_equal_sparse_rows_are_found_however_they_are_written():
    rng = np.random.default_rng(0)
    dense = rng.integers(0, 3, (200, 3)).astype(float)
    starts, columns = np.arange(0, 1201, 6), np.tile([2, 0, 1, 0, 1, 2], 200)  # zeros, no order, entries in two parts
    values = np.column_stack([dense[:, [2, 0, 1]] - 1, np.ones((200, 3))]).ravel()
    seen = sort_rows(scipy.sparse.csr_array((values, columns, starts), shape=(200, 3)), None, None, merge=True)
    plain = sort_rows(scipy.sparse.csr_array(dense), None, None, merge=True)
    assert_array_equal(seen.X.toarray(), plain.X.toarray())
    assert_array_equal(plain.X.toarray()[plain.place], dense)
    different, counts = np.unique(dense, axis=0, return_counts=True)
    assert_array_equal(plain.weights[np.lexsort(plain.X.toarray().T[::-1])], counts)
    assert len(different) == plain.num_different == 27
    assert sort_rows(scipy.sparse.csr_array(dense[[0, 0]]), None, None, merge=True).num_different == 1


def test_a_regression_does_not_hang_on_the_units_of_targets():
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = np.abs(X).sum(1)
    for inference in (SVI(num_steps=20), QUICK["gibbs"], SmallVariance(num_components=3)):
        regressor = Regressor(InfiniteSVM(loss=EpsilonInsensitive(), truncation=6), inference)
        found, other = (clone(regressor).fit(X, values).predict(X) for values in (y, 1e6 * y + 5))
        assert_allclose((other - 5) / 1e6, found, atol=1e-5)


@pytest.mark.parametrize(
    "kind", ["Classifier", "Clusterer", "MultiLabelClassifier", "RegressorCV", "ClassifierCV", "TopicTransformer"]
)
def test_estimators_do_not_depend_on_the_default_device_of_torch(kind):
    rng = np.random.default_rng(0)
    X = rng.poisson(3.0, size=(30, 4))
    targets = {"MultiLabelClassifier": X[:, :2] > 3, "RegressorCV": X[:, 0] + 0.0, "Classifier": X[:, 0] % 3}
    y = targets.get(kind, X[:, 0] > 3)
    method = "transform" if kind == "TopicTransformer" else "predict"
    usual = getattr(getattr(estimators, kind)().fit(X, y), method)(X)
    with torch.device("meta"):  # as after torch.set_default_device, of rows that stay on the CPU
        fitted = getattr(estimators, kind)().fit(X, y)
        assert_array_equal(getattr(fitted, method)(X), usual)
