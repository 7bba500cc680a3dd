"""What estimators share with scikit-learn's own: containers, densities of clusters, spreads, batches, groups."""

from __future__ import annotations

import itertools
import math
import warnings
from functools import partial

import numpy as np
import pytest
import sklearn
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import gammaln, logsumexp
from scipy.stats import multivariate_normal
from sklearn.datasets import load_breast_cancer, load_wine, make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GroupKFold, LeaveOneGroupOut, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from regbayes.estimators import (
    Classifier,
    ClassifierCV,
    Clusterer,
    FeatureTransformer,
    MultiLabelClassifier,
    Regressor,
    RegressorCV,
    SequenceClusterer,
    TopicTransformer,
    clusters,
)
from regbayes.estimators.clusters import chosen_mixture, narrow_rate
from regbayes.estimators.rows import deal_groups, moments, sort_rows
from regbayes.inference import SVI, Gibbs, SmallVariance, TruncationWarning, continue_fit
from regbayes.models import (
    BNMC,
    DPM,
    LDA,
    BernoulliBeta,
    ConstantColumnWarning,
    DiagonalGaussian,
    DirichletProcess,
    FullGaussian,
    InfiniteLatentSVM,
    InfiniteSVM,
    Logistic,
    MedLDA,
    MultinomialDirichlet,
    PoissonGamma,
    RandomFourier,
    SphericalGaussian,
    StudentT,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning"),
    pytest.mark.usefixtures("few_restarts"),
]

QUICK = SmallVariance(max_steps=5, num_restarts=1)
FEW = {"weight_scales": [0.5], "num_components": [1], "temperatures": [0.0]}
CENTERS = [[0, 0], [9, 9], [0, 9]]


@pytest.fixture(scope="module")
def blobs() -> np.ndarray:
    return make_blobs(90, centers=CENTERS, random_state=0)[0]


@pytest.fixture(scope="module")
def documents() -> np.ndarray:
    return np.random.default_rng(0).poisson(np.repeat([[3.0, 0.1, 1.0], [0.1, 3.0, 1.0]], 20, axis=0))


# -- transformers ------------------------------------------------------------------------------------------------------


def test_transforms_come_in_the_container_that_is_asked_for(blobs, documents):
    pytest.importorskip("pandas")
    labels = np.arange(40) % 2
    for estimator, X, names in (
        (FeatureTransformer(inference=SVI(num_steps=3)), blobs, "feature"),
        (TopicTransformer(LDA(num_topics=2)), documents, "topic"),
        (Classifier(MedLDA(num_topics=2)), documents, "topic"),
    ):
        estimator.set_output(transform="pandas").fit(X, labels)
        found = estimator.transform(X)
        assert list(found.columns) == list(estimator.get_feature_names_out())
        assert found.columns[1] == f"{names}1"
        assert_array_equal(found, estimator.set_output(transform="default").transform(X))
    pipeline = make_pipeline(StandardScaler(), FeatureTransformer(inference=SVI(num_steps=3)), Regressor())
    assert pipeline.fit(blobs, blobs[:, 0]).predict(blobs).shape == (90,)
    assert pipeline[:2].get_feature_names_out()[0] == "feature0"
    for mixture in (Classifier(), Clusterer(), Regressor()):
        assert not hasattr(mixture, "transform")
        assert not hasattr(mixture, "set_output")


def test_the_score_of_topics_is_below_the_evidence_and_near_it(documents):
    """Against all topics of all words of short documents; those of one word it meets."""
    topics = TopicTransformer(LDA(num_topics=2), SVI(num_steps=30)).fit(documents)
    phi, alpha = topics.components_, float(topics.posterior_.samples["document_concentration"][0])
    short = np.array([[0, 0, 0], [1, 0, 0], [0, 2, 0], [2, 1, 0], [1, 1, 2]])

    def evidence(counts: np.ndarray) -> float:
        words = np.repeat(np.arange(3), counts)
        terms = [
            sum(math.log(phi[k, w]) for k, w in zip(z, words, strict=True))
            + gammaln(2 * alpha)
            - gammaln(2 * alpha + len(z))
            + sum(gammaln(alpha + z.count(k)) - gammaln(alpha) for k in range(2))
            for z in itertools.product(range(2), repeat=len(words))
        ]
        return float(logsumexp(terms))

    bound, exact = topics.posterior_.log_evidence_bound(short), [evidence(row) for row in short]
    assert bound[0] == pytest.approx(0)
    assert (bound <= np.array(exact) + 1e-9).all()
    assert (bound >= np.array(exact) - 0.15 * short.sum(1)).all()
    assert topics.score(short) == pytest.approx(bound.sum())
    assert topics.perplexity(short) == pytest.approx(math.exp(-bound.sum() / short.sum()))
    assert topics.perplexity(documents) < 3  # of three words that are all alike
    with pytest.raises(ValueError, match="X has no word"):
        topics.perplexity(short[:1])
    assert_allclose(topics.components_.sum(1), 1)


def test_transformers_take_models_without_targets_alone(blobs, documents):
    with pytest.raises(ValueError, match=r"model is MedLDA, which needs targets. Use LDA\(\), or Classifier"):
        TopicTransformer(MedLDA()).fit(documents)
    with pytest.raises(ValueError, match="model is LDA; FeatureTransformer needs a model of latent features"):
        FeatureTransformer(LDA()).fit(documents)
    features = FeatureTransformer(inference=SVI(num_steps=5)).fit(blobs)
    assert features.components_.shape == (features.transform(blobs).shape[1], 2)


# -- clusters as a mixture ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("likelihood", "inference"),
    [
        (SphericalGaussian(), SVI()),
        (FullGaussian(), Gibbs(20, 20)),
        (None, SVI()),
        (None, SmallVariance(num_components=3)),
    ],
    ids=["spherical", "full", "diagonal", "centres"],
)
def test_clusters_are_a_mixture(blobs, likelihood, inference):
    model = DPM() if likelihood is None else DPM(likelihood)
    found = Clusterer(model, inference).fit(blobs)
    order = [int(found.predict([center])[0]) for center in CENTERS]
    assert found.n_components_ == 3
    assert_allclose(found.means_[order], CENTERS, atol=0.5)
    assert_allclose(found.weights_, 1 / 3, atol=0.05)
    assert found.weights_.sum() == pytest.approx(1)
    shares = found.predict_proba(blobs)
    assert_allclose(shares.sum(1), 1)
    assert_array_equal(shares.argmax(1), found.predict(blobs))
    assert_array_equal(found.labels_, found.predict(blobs))
    if not hasattr(found, "score_samples"):
        with pytest.raises(AttributeError, match="centres have no density"):
            _ = found.covariances_
        assert "covariances_" not in dir(found)
        return
    assert found.score(blobs) == pytest.approx(found.score_samples(blobs).mean())
    X, labels = found.sample(2000)
    assert X.shape == (2000, 2)
    assert (found.predict(X) == labels).mean() > 0.9
    assert_allclose(np.bincount(labels, minlength=3)[:3] / 2000, found.weights_, atol=0.05)
    assert_allclose([X[labels == k].mean(0) for k in range(3)], found.means_, atol=0.3)
    spread = found.covariances_
    matrices = spread if spread.ndim == 3 else [np.diag(row) for row in spread]
    laws = zip(found.weights_, found.means_, matrices, strict=True)
    density = np.log(sum(w * multivariate_normal(mean, matrix).pdf(blobs) for w, mean, matrix in laws))
    assert np.abs(density - found.score_samples(blobs)).mean() < 0.3  # which has the spread of the parameters as well


@pytest.mark.parametrize("likelihood", [PoissonGamma(), BernoulliBeta()], ids=["poisson", "bernoulli"])
def test_means_of_counts_are_those_of_the_rows(likelihood):
    rng = np.random.default_rng(0)
    rates = np.repeat([[0.9, 0.1, 0.9], [0.1, 0.9, 0.1]], 60, axis=0)
    X = rng.binomial(1, rates).astype(float)
    found = Clusterer(DPM(likelihood), SVI(num_steps=50)).fit(X)
    rows = np.stack([X[found.labels_ == k].mean(0) for k in range(found.n_components_)])
    assert_allclose(found.means_, rows, atol=0.1)
    with pytest.raises(AttributeError, match="no Gaussian components"):
        _ = found.covariances_


def test_a_likelihood_without_a_mean_has_no_means():
    X = np.random.default_rng(0).multinomial(9, [0.5, 0.3, 0.2], 60)
    found = Clusterer(DPM(MultinomialDirichlet()), SVI(num_steps=5)).fit(X)
    with pytest.raises(AttributeError, match="MultinomialDirichlet has no mean of a row"):
        _ = found.means_
    assert not {"means_", "covariances_"} & {*dir(found)}


def test_rows_that_count_twice_count_twice_for_the_best_draw(blobs):
    """Of several draws the partition is that of least loss over rows as often as they count."""
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(14, 2)), rng.integers(0, 4, 14)
    weighted = Clusterer(inference=Gibbs(30, 10)).fit(X, sample_weight=weights)
    repeated = Clusterer(inference=Gibbs(30, 10)).fit(X.repeat(weights, 0))
    assert weighted.posterior_.representative == repeated.posterior_.representative
    loss = weighted.posterior_.samples["expected_loss"]
    unweighted = Clusterer(inference=Gibbs(30, 10)).fit(X)
    assert "expected_loss" not in unweighted.posterior_.samples
    assert loss.shape == (30, 1)
    assert_array_equal(weighted.predict(X), repeated.predict(X))


# -- spread of predictions ---------------------------------------------------------------------------------------------


def test_the_spread_of_a_mean_is_that_of_its_draws_and_components():
    """Against the moments of the score written out, component by component."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = X @ [1.0, -1.0] + 0.3 * rng.normal(size=60)
    for backend in (SVI(num_steps=20), Gibbs(8, 20), SmallVariance(num_components=2)):
        model = InfiniteSVM(loss=StudentT(df=10.0, scale=0.3), prior=DirichletProcess(1.0), truncation=3)
        found = Regressor(model, backend).fit(X, y)
        posterior, first, second, total = found.posterior_, 0.0, 0.0, 0.0
        for mixture in posterior.score_mixtures(posterior.checked(X), spread=True):
            weights = mixture.log_weights.exp().unsqueeze(-1)
            variance = torch.zeros_like(mixture.mean) if mixture.variance is None else mixture.variance
            first = first + (weights * mixture.mean).sum(1)
            second = second + (weights * (mixture.mean.square() + variance)).sum(1)
            total = total + weights.sum(1)
        expected = (second / total - (first / total).square()).clamp(min=0).sqrt().squeeze(1)
        assert_allclose(posterior.score_std(X), expected, atol=1e-6)
        assert (expected.mean() > 0.01) == (not isinstance(backend, SmallVariance))
        mean, std = found.predict(X, return_std=True)
        assert_array_equal(mean, found.predict(X))
        units = (y - found.target_mean_) / found.target_scale_
        errors = found.target_scale_ * (posterior.predict_left_out(X, units) - units)
        assert found.noise_scale_ == pytest.approx(np.mean(errors**2) ** 0.5)
        assert (np.mean(errors**2) > 1.0001 * np.mean((mean - y) ** 2)) == isinstance(backend, SmallVariance)
        assert_allclose(std, np.hypot(found.target_scale_ * expected.numpy(), found.noise_scale_), rtol=1e-6)


def test_intervals_hold_as_many_new_targets_as_they_say():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(600, 3))
    y = 50 + 7 * (X.sum(1) + 0.5 * rng.normal(size=600))
    for estimator in (Regressor(), RegressorCV(inference=QUICK, **FEW)):
        mean, std = estimator.fit(X[:300], y[:300]).predict(X[300:], return_std=True)
        assert 0.9 < (np.abs(y[300:] - mean) < 1.96 * std).mean() < 0.99
        assert estimator.noise_scale_ == pytest.approx(3.5, rel=0.2)
    weights = np.arange(300) % 3
    weighted, repeated = (
        Regressor().fit(X[:300], y[:300], weights),
        Regressor().fit(X[:300].repeat(weights, 0), y[:300].repeat(weights)),
    )
    assert weighted.noise_scale_ == pytest.approx(repeated.noise_scale_)


# -- batches -----------------------------------------------------------------------------------------------------------


def test_batches_go_on_where_the_last_one_ended(blobs, documents):
    y = np.where(blobs[:, 0] > 4, "right", "left")
    few, steps = {"prior": DirichletProcess(1.0), "truncation": 4}, SVI(num_steps=20)
    classifier = Classifier(InfiniteSVM(**few), steps).partial_fit(blobs[:5], ["left"] * 5, classes=["left", "right"])
    for start in range(0, 90, 30):
        classifier.partial_fit(blobs[start : start + 30], y[start : start + 30])
    assert classifier.score(blobs, y) == 1
    assert float(classifier.posterior_.samples["num_seen"]) == 95
    with pytest.raises(
        ValueError, match=r"y has the label 'up', which is not among the classes .*partial_fit\(X, y, classes="
    ):
        classifier.partial_fit(blobs[:1], ["up"])
    with pytest.raises(ValueError, match=r"classes is \['left', 'up'\]; the fit has the classes \['left', 'right'\]"):
        classifier.partial_fit(blobs[:1], ["left"], classes=["left", "up"])
    classifier.partial_fit(blobs[:1], ["left"], classes=["right", "left"])
    regressor = Regressor(InfiniteSVM(loss=StudentT(), **few), steps).partial_fit(blobs[:45], blobs[:45, 0])
    assert regressor.partial_fit(blobs[45:], blobs[45:, 0]).score(blobs, blobs[:, 0]) > 0.8
    clusters = Clusterer(DPM(**few), steps).partial_fit(blobs[:45]).partial_fit(blobs[45:46])
    assert clusters.labels_.shape == (1,)
    topics = TopicTransformer(LDA(num_topics=2), steps).partial_fit(documents[::2])
    before = topics.perplexity(documents)
    assert topics.partial_fit(documents[1::2]).perplexity(documents) < before + 0.05
    words = Classifier(MedLDA(num_topics=2), steps).partial_fit(documents[::2], np.arange(20) // 10)
    assert words.partial_fit(documents[1::2], np.arange(20) // 10).score(documents, np.arange(40) // 20) > 0.9
    seen = continue_fit(topics.posterior_, documents[:3]).samples["num_seen"]
    assert float(seen) == 43


def test_a_fit_that_cannot_continue_says_what_can():
    with pytest.raises(AttributeError) as raised:
        Clusterer(DPM(), SmallVariance()).partial_fit  # noqa: B018
    assert str(raised.value.__cause__).startswith(
        "SmallVariance with this model cannot continue a fit. partial_fit needs"
    )
    assert not hasattr(Classifier(InfiniteLatentSVM(), SVI()), "partial_fit")


@pytest.mark.parametrize("classes", [[], ["left"], "left", {"left", "right"}, [["left", "right"]], ["left", 1.0, None]])
@pytest.mark.parametrize("kind", [Classifier, MultiLabelClassifier])
def test_classes_of_a_first_batch_are_a_list_of_labels(blobs, kind, classes):
    y = np.where(blobs[:, 0] > 4, "right", "left")
    with pytest.raises(ValueError, match=r"^classes is .*; expected a list of labels of one type"):
        kind(inference=SVI(num_steps=2)).partial_fit(blobs, y, classes=classes)


@pytest.mark.parametrize("kind", [Classifier, MultiLabelClassifier])
def test_labels_of_several_types_are_refused_in_words(blobs, kind):
    y = np.where(blobs[:, 0] > 4, "right", "left").astype(object)
    y[0] = 1
    with pytest.raises(ValueError, match=r"^y has labels of the types int and str; expected one"):
        kind().fit(blobs, y)


def test_only_what_streams_goes_on(blobs):
    for estimator in (
        Classifier(),
        Clusterer(inference=Gibbs()),
        ClassifierCV(inference=SVI()),
    ):
        assert not hasattr(estimator, "partial_fit")
    for estimator in (Classifier(inference=SVI()), Clusterer(), MultiLabelClassifier(BNMC(), SVI())):
        assert hasattr(estimator, "partial_fit")
    averaged = Classifier(inference=SVI(rule="averaging", num_steps=3))
    averaged.partial_fit(blobs, np.arange(90) % 2)
    with pytest.raises(NotImplementedError, match="needs all points at once"):
        averaged.partial_fit(blobs, np.arange(90) % 2)


# -- groups ------------------------------------------------------------------------------------------------------------


def subjects(num: int = 12, per: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows that tell of which subject they are, and a target that each subject has its own level of."""
    rng = np.random.default_rng(0)
    groups = np.arange(num).repeat(per)
    own = rng.normal(size=(num, 6))
    X = np.hstack([own[groups], rng.normal(size=(num * per, 1))])
    y = rng.normal(size=num)[groups] * 3 + X[:, -1]
    return X, y, groups


def test_a_search_on_groups_is_scored_on_new_ones():
    X, y, groups = subjects()
    options = {"inference": QUICK, "weight_scales": [0.05, 1.0], "num_components": [1], "temperatures": [0.0]}
    own = RegressorCV(**options).fit(X, y)
    for cv in (3, GroupKFold(3), LeaveOneGroupOut()):
        found = RegressorCV(**options, cv=cv).fit(X, y, groups=groups)
        assert len(found.scores_) == (12 if isinstance(cv, LeaveOneGroupOut) else 3)
        assert found.best_score_ < own.best_score_ - 0.2
        assert found.weight_scale_ == 0.05 < own.weight_scale_
    labels = (y > 0).astype(int)
    classifier = ClassifierCV(**options, cv=GroupKFold(3)).fit(X, labels, groups=groups.astype(str))
    assert classifier.best_score_ < ClassifierCV(**options).fit(X, labels).best_score_
    with pytest.raises(ValueError, match="groups"):
        RegressorCV(**options, cv=GroupKFold(3)).fit(X, y)
    with pytest.raises(ValueError, match="X and groups: Found input variables with inconsistent numbers"):
        RegressorCV(**options).fit(X, y, groups=groups[:5])
    with pytest.raises(ValueError, match="groups has one group, 0"):
        RegressorCV(**options).fit(X, y, groups=np.zeros(len(y), dtype=int))
    mixed = np.array([None, "a"], dtype=object)[groups % 2]
    with pytest.raises(ValueError, match=r"groups is array.*; expected the names of groups, of one type"):
        RegressorCV(**options).fit(X, y, groups=mixed)


def test_groups_come_by_metadata_routing():
    X, y, groups = subjects()
    options = {"inference": QUICK, "weight_scales": [0.05, 1.0], "num_components": [1], "temperatures": [0.0]}
    with sklearn.config_context(enable_metadata_routing=True):
        scores = cross_val_score(
            RegressorCV(**options, cv=GroupKFold(3)), X, y, params={"groups": groups}, cv=GroupKFold(3)
        )
    assert scores.shape == (3,)


def test_folds_of_groups_are_whole_and_depend_on_how_often_rows_count():
    rng = np.random.default_rng(0)
    groups, y, weights = rng.integers(0, 10, 60), rng.normal(size=60), rng.integers(1, 4, 60)
    fold = deal_groups(groups, y, weights.astype(float), 3)
    assert all(len(set(fold[groups == g])) == 1 for g in range(10))
    assert set(fold) == {0, 1, 2}
    repeated = deal_groups(groups.repeat(weights), y.repeat(weights), np.ones(weights.sum()), 3)
    assert_array_equal(repeated, fold.repeat(weights))
    loads = np.bincount(fold, weights)
    assert loads.max() < 2 * loads.min()


# -- searches ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*constant")
def test_rows_that_are_all_alike_are_one_cluster_and_have_the_base_rate():
    X, y = np.ones((30, 2)), np.arange(30) % 3 == 0
    found = Clusterer().fit(X)
    assert found.n_components_ == 1
    assert_array_equal(found.labels_, np.zeros(30))
    assert_allclose(Classifier().fit(X, y).predict_proba(X[:1])[0, 1], 1 / 3, atol=0.02)
    assert_allclose(Regressor().fit(X, np.full(30, 4.0)).predict(X[:1]), 4.0)
    assert_allclose(RegressorCV().fit(X, np.arange(30.0)).predict(X[:1]), 14.5, atol=1.0)


def test_a_constant_column_is_told_once_at_the_line_of_the_user(blobs):
    X, y = np.hstack([blobs, np.ones((90, 1))]), np.arange(90) % 2
    for estimator in (ClassifierCV(inference=QUICK), RegressorCV(inference=QUICK), Classifier(), Clusterer()):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            make_pipeline(estimator).fit(X, y)
        found = [each for each in found if each.category is ConstantColumnWarning]
        assert [each.filename for each in found] == [__file__]


def test_a_regression_with_a_kernel_takes_wide_scales(blobs):
    model = InfiniteSVM(loss=StudentT(df=100.0), feature_map=RandomFourier(num_features=6))
    found = RegressorCV(model, QUICK, num_components=[1], temperatures=[0.0], length_scales=[1.0], cv=2)
    assert found.fit(blobs, blobs[:, 0]).scores_.shape[4] == 11
    assert RegressorCV(inference=QUICK, num_components=[1]).fit(blobs, blobs[:, 0]).scores_.shape[4] == 3


def test_targets_of_weight_zero_have_no_say_in_mean_and_deviation():
    y = np.random.default_rng(0).normal(20, 3, 200)
    weights = (np.arange(200) % 3 > 0).astype(float)
    assert moments(y, weights) == moments(y[weights > 0], None)  # bit for bit: the order of rows hangs on it


def test_row_weights_are_copies_under_svi(blobs):
    """Predictions of weights are those of repeated rows."""
    y, copies = np.arange(90) % 3, np.array([3, 1, 2])
    model = InfiniteSVM(loss=Logistic(), prior=DirichletProcess(1.0), truncation=4)
    times = copies[y]
    order = np.arange(90).repeat(times)
    weighted = Classifier(model, SVI(num_steps=8)).fit(blobs, y, sample_weight=times)
    repeated = Classifier(model, SVI(num_steps=8)).fit(blobs[order], y[order])
    assert_allclose(weighted.decision_function(blobs), repeated.decision_function(blobs), atol=1e-8)


@pytest.mark.parametrize(("slope", "family"), [(0.0, DiagonalGaussian), (2.0, FullGaussian)])
def test_a_clusterer_has_full_covariances_where_columns_vary_together(slope: float, family: type) -> None:
    """The same where a row counts twice in place of two rows; never of a model that was given, or small variance."""
    noise = np.random.default_rng(0).normal(size=(240, 3))
    noise[:, 1] += slope * noise[:, 0]
    rows = noise + 9 * np.eye(3)[np.arange(240) % 3]
    assert isinstance(Clusterer().fit(rows).posterior_.model.likelihood, family)
    twice = Clusterer().fit(np.concatenate([rows, rows[:40]]))
    weighted = Clusterer().fit(rows, sample_weight=np.where(np.arange(240) < 40, 2.0, 1.0))
    assert type(twice.posterior_.model.likelihood) is type(weighted.posterior_.model.likelihood)
    for others in (Clusterer(DPM()), Clusterer(inference=SmallVariance())):
        assert isinstance(others.fit(rows).posterior_.model.likelihood, DiagonalGaussian)


def test_a_clusterer_of_one_column_or_of_many_has_columns_apart() -> None:
    for columns in (1, 33):
        rows = np.random.default_rng(0).normal(size=(60, 1)) * np.ones(columns)
        found = chosen_mixture(SVI(), rows + 0.1 * np.random.default_rng(1).normal(size=rows.shape), None)
        assert isinstance(found.model.likelihood, DiagonalGaussian)
        assert np.array_equal(found.posterior.partition().unique(), np.arange(found.clusters))
    found = chosen_mixture(SVI(), np.zeros((5, 2)), np.array([0.0, 0.0, 0.0, 0.0, 1.0]))
    assert isinstance(found.model.likelihood, DiagonalGaussian)
    assert found.posterior is None


def test_the_order_of_rows_does_not_decide_their_covariances() -> None:
    """Short fits of wine were at 4 clusters in some orders and at 10 in others."""
    X, y = load_wine(return_X_y=True)
    orders = [np.arange(len(X)), np.random.default_rng(0).permutation(len(X))]
    first, second = (Clusterer().fit(X[order]) for order in orders)
    assert isinstance(first.posterior_.model.likelihood, FullGaussian)
    assert_array_equal(first.labels_[orders[1]], second.labels_)
    assert adjusted_rand_score(y, first.labels_) > 0.6


def test_the_covariances_of_many_rows_are_those_of_some_whatever_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_NUM_PILOT", 3)
    rows = np.random.default_rng(0).normal(size=(300, 2)) @ np.array([[1.0, 0.9], [0.0, 0.3]])
    fits = list[tuple[int, float]]()
    for order in (np.arange(300), np.random.default_rng(0).permutation(300)):
        found = chosen_mixture(SVI(), rows[order], None)
        assert isinstance(found.model.likelihood, FullGaussian)
        assert found.posterior is None
        fit = Clusterer().fit(rows[order])
        fits.append((len(fit.labels_), fit.posterior_.trace.best))
    assert fits[0] == fits[1]
    assert fits[0][0] == 300


def test_many_clusters_of_many_rows_are_found() -> None:
    """The first 600 rows show one of 40 clusters, but the fit to all rows occupies all of 20 components."""
    stream = np.random.default_rng(0)
    y = stream.integers(40, size=3000)
    rows = 0.8 * stream.normal(size=(40, 40))[y] + stream.normal(size=(3000, 40))
    found = Clusterer().fit(rows)
    assert found.posterior_.model.truncation > 20
    assert adjusted_rand_score(y, found.labels_) > 0.6


def test_correlations_may_be_as_strong_as_those_of_breast_cancer() -> None:
    """The default prior of full covariances adds more to each than columns with these correlations vary apart."""
    X, y = load_breast_cancer(return_X_y=True)
    found = Clusterer().fit(X[:300])
    assert found.posterior_.model.likelihood.degrees_of_freedom == X.shape[1] + 2
    assert adjusted_rand_score(y[:300], found.labels_) > 0.4


def test_long_clusters_that_vary_alike_are_found() -> None:
    """Four groups apart in two directions, but much longer in a third: other priors find a single cluster."""
    stream, group = np.random.default_rng(0), np.arange(240) % 4
    rows = stream.normal(size=(240, 5)) * [16.0, 0.5, 0.5, 0.5, 0.5]
    rows[:, 1:3] += 3.0 * np.stack([group % 2, group // 2], 1)
    X = rows @ np.linalg.qr(np.c_[np.ones(5), stream.normal(size=(5, 4))])[0].T
    found = Clusterer().fit(X)
    assert adjusted_rand_score(group, found.labels_) > 0.95
    assert found.posterior_.model.likelihood.scale[0, 1] > 0
    plain = Clusterer(DPM(FullGaussian())).fit(X)
    assert plain.n_components_ == 1
    assert found.posterior_.trace.best > plain.posterior_.trace.best


@pytest.mark.parametrize("num_columns", [5, 40])
def test_as_many_clusters_as_components_are_found(num_columns: int) -> None:
    """Twenty components are too few for twenty clusters: where two have a seed in one cluster, another has none."""
    stream, group = np.random.default_rng(6), np.arange(600) % 20
    X = 9 * stream.normal(size=(20, num_columns))[group] + stream.normal(size=(600, num_columns))
    found = Clusterer().fit(X)
    assert found.posterior_.model.truncation > 20
    assert adjusted_rand_score(group, found.labels_) == 1
    few = Clusterer(DPM(found.posterior_.model.likelihood), SVI(num_steps=30))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        assert few.fit(X).posterior_.trace.best < found.posterior_.trace.best


def test_many_clusters_far_apart_are_found_in_two_columns() -> None:
    """The default prior expects clusters half as wide as all rows, and joins five of them in one."""
    group = np.arange(1200) % 30
    X = 8.0 * np.stack([group % 6, group // 6], 1) + np.random.default_rng(0).normal(size=(1200, 2))
    assert adjusted_rand_score(group, Clusterer().fit(X).labels_) > 0.99


def test_rows_far_away_do_not_hide_the_clusters() -> None:
    group = np.arange(200) % 4
    X = 9.0 * np.eye(4)[group, :3] + np.random.default_rng(0).normal(size=(200, 3))
    found = Clusterer().fit(np.concatenate([X, np.full((1, 3), 3000.0)]))
    assert adjusted_rand_score(group, found.labels_[:200]) > 0.98


@pytest.mark.parametrize("times", [1, 5])
def test_equal_rows_are_no_clusters_of_their_own(times: int) -> None:
    group = np.arange(120) % 4
    X = 8.0 * np.stack([group % 2, group // 2], 1) + np.random.default_rng(0).normal(size=(120, 2))
    repeated, weighted = Clusterer().fit(X.repeat(times, 0)), Clusterer().fit(X, sample_weight=np.full(120, times))
    assert weighted.n_components_ == 4
    assert_array_equal(repeated.labels_[::times], weighted.labels_)


@pytest.mark.parametrize("num_equal", [0, 300])
def test_the_width_of_the_narrow_prior_is_that_of_the_middle_half(num_equal: int) -> None:
    """If half of the rows have one value it is the variance. A weight counts as rows do."""
    X = np.random.default_rng(0).normal(3.0, 2.0, size=(400, 2))
    X[:num_equal, 1] = 7.0
    rate = narrow_rate(sort_rows(np.concatenate([X, X[:100]]), None, None, merge=True))
    low, high = np.quantile(np.concatenate([X, X[:100]]), [0.25, 0.75], axis=0, method="inverted_cdf")
    expected = 0.01 * ((high - low) / 1.349) ** 2
    if num_equal:
        expected[1] = 0.01 * np.concatenate([X, X[:100]])[:, 1].var()
    np.testing.assert_allclose(rate.numpy(), expected)
    assert (narrow_rate(sort_rows(np.ones((5, 2)), None, None, merge=False)).numpy() == 0.01).all()


@pytest.mark.parametrize("kind", [float, bool])
def test_rows_of_0_and_1_are_clustered_as_such(kind: type) -> None:
    stream = np.random.default_rng(1)
    group = stream.integers(4, size=400)
    X = (stream.random((400, 30)) < stream.beta(0.5, 0.5, size=(4, 30))[group]).astype(kind)
    found = Clusterer().fit(X)
    assert isinstance(found.posterior_.model.likelihood, BernoulliBeta)
    assert adjusted_rand_score(group, found.labels_) > 0.95
    assert isinstance(Clusterer().fit(X[:, :2]).posterior_.model.likelihood, DiagonalGaussian)
    noise = (stream.random((300, 20)) < 0.3).astype(kind)
    assert Clusterer().fit(noise).n_components_ == 1
    states = np.repeat(np.arange(20) % 3, 20)
    steps = (stream.random((400, 10)) < stream.beta(0.3, 0.3, size=(3, 10))[states]).astype(kind)
    assert adjusted_rand_score(states, SequenceClusterer().fit(steps).labels_) > 0.95


def test_the_fit_that_chose_covariances_is_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the user's rows; its warnings are told, and those of the others are not."""
    monkeypatch.setattr(clusters, "DPM", partial(DPM, truncation=3))
    X, y = make_blobs(60, centers=CENTERS, random_state=0)
    with pytest.warns(TruncationWarning, match="All 3 components") as told:
        found = Clusterer().fit(X)
    assert [each.filename for each in told] == [__file__]
    assert adjusted_rand_score(y, found.labels_) == 1
    again = Clusterer(inference=SVI()).fit(X)
    assert_array_equal(found.labels_, again.labels_)
    assert found.posterior_.trace.best == again.posterior_.trace.best


@pytest.mark.parametrize("rows", [300, 3000])
def test_rows_of_one_gaussian_are_one_cluster(rows: int) -> None:
    """With unions of two that stopped early or lowered the bound, most of these fits had 3 to 6 clusters."""
    for seed in (2, 5, 7):
        assert Clusterer().fit(np.random.default_rng(seed).normal(size=(rows, 1))).n_components_ == 1
