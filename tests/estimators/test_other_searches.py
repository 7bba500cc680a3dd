"""Searches of label sets, tasks, topics and latent features by the mechanism of `ClassifierCV`."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics import f1_score
from sklearn.model_selection import GroupKFold, KFold

from regbayes.estimators import (
    ClassifierCV,
    MultiLabelClassifier,
    MultiLabelClassifierCV,
    MultiTaskRegressor,
    MultiTaskRegressorCV,
    TopicClassifierCV,
)
from regbayes.estimators import paths as paths_of
from regbayes.inference import SVI, Gibbs
from regbayes.models import (
    BNMC,
    EpsilonInsensitive,
    InfiniteLatentSVM,
    InfiniteSVM,
    MedLDA,
    MultiTaskInfiniteLatentSVM,
    by_task,
)

pytestmark = pytest.mark.usefixtures("few_restarts")


def label_sets(num_rows: int = 120, num_labels: int = 4) -> tuple[np.ndarray, np.ndarray]:
    return make_multilabel_classification(num_rows, n_classes=num_labels, random_state=0)


def documents(num_rows: int = 120, num_classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Counts whose classes have two topics each."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(60, 0.05), 2 * num_classes)
    y = rng.integers(0, num_classes, num_rows)
    X = np.stack([rng.multinomial(40, topics[2 * label + rng.integers(0, 2)]) for label in y])
    return X, y


# -- label sets --------------------------------------------------------------------------------------------------------


def test_the_scale_of_label_sets_is_chosen_and_serves_new_rows():
    X, Y = make_multilabel_classification(400, n_features=60, n_classes=8, n_labels=1, length=30, random_state=0)
    found = MultiLabelClassifierCV().fit(X[:150], Y[:150])
    mean = found.scores_.mean(0)
    assert found.scores_.shape == (3, 1, 1, 6)
    assert found.best_score_ == pytest.approx(mean.max())
    assert found.best_params_ == {"num_components": None, "strength": None, "weight_scale": found.weight_scale_}
    assert found.posterior_.model.weight_scale == found.weight_scale_ == found.scales[mean.argmax()]
    plain = MultiLabelClassifier(cv=3).fit(X[:150], Y[:150])
    searched, default = (f1_score(Y[150:], each.predict(X[150:]), average="micro") for each in (found, plain))
    assert searched > default + 0.02


def test_fits_that_share_a_mixture_are_those_of_each_scale(monkeypatch):
    X, Y = label_sets()
    Y = Y.astype(float)
    Y[::7, 1] = np.nan
    search = MultiLabelClassifierCV(inference=SVI(tolerance=1e-7, num_steps=400), weight_scales=[0.1, 0.5, 1.0])
    shared = search.fit(X, Y).scores_
    monkeypatch.setattr(paths_of, "shares_mixture", lambda parts: False)
    assert_allclose(search.fit(X, Y).scores_, shared)


def test_the_last_fit_is_settled_as_those_of_the_search_which_calibrate_it():
    X, Y = make_multilabel_classification(60, n_features=80, n_classes=4, length=40, random_state=0)
    search = MultiLabelClassifierCV(weight_scales=[3.0]).fit(X, Y)
    plain = MultiLabelClassifier(search.posterior_.model, SVI(tolerance=0.03), cv=None).fit(X, Y)
    rows = paths_of.Rows(X, Y.astype(float), np.ones(60)).sorted(plain.parts())
    (expected,) = paths_of.path(plain.parts(), None, [(None, 3.0)], rows)
    found, wanted = (each.samples["classifiers"] for each in (search.posterior_, expected))
    assert_allclose(found, wanted, rtol=1e-6, atol=1e-8)
    assert abs(plain.posterior_.samples["classifiers"] - wanted).max() > 1e-3


def test_sparse_labels_are_searched_as_dense_ones():
    X, Y = label_sets()
    search = MultiLabelClassifierCV(weight_scales=[0.1, 1.0])
    dense = search.fit(X, Y).scores_
    assert_array_equal(search.fit(X, scipy.sparse.csr_array(Y)).scores_, dense)


def test_rows_add_up_to_micro_f1():
    rng = np.random.default_rng(0)
    Y, decisions = rng.integers(0, 2, (40, 5)), rng.normal(size=(40, 5))
    search = MultiLabelClassifierCV()
    search._matrix = True
    each = search.score_rows(decisions, Y)
    assert each.mean() == pytest.approx(f1_score(Y, decisions > 0, average="micro"))
    repeated = search.score_rows(np.vstack([decisions, decisions[:1]]), np.vstack([Y, Y[:1]])).mean()
    assert repeated - each.mean() == pytest.approx((each[0] - each.mean()) / 41, abs=2e-3)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_a_vector_of_labels_is_scored_by_accuracy(num_classes):
    X, Y = label_sets()
    y = Y[:, : num_classes - 1].sum(1).astype(float)
    y[5] = np.nan
    search = MultiLabelClassifierCV(weight_scales=[0.3], cv=KFold(2)).fit(X, y)
    for fold, (train, test) in enumerate(KFold(2).split(X)):
        fitted = MultiLabelClassifier(BNMC(weight_scale=0.3), cv=None).fit(X[train], y[train])
        posterior = fitted.posterior_
        assert posterior.num_components >= 1
        assert abs(search.scores_[fold].item() - fitted.score(X[test], y[test])) < 0.15  # but for its calibration
    assert set(search.predict(X)) <= set(y[~np.isnan(y)])


def test_groups_of_label_sets_and_documents_stay_together():
    """Each group has its own columns, so that others teach nothing of it."""
    rng, groups = np.random.default_rng(0), np.arange(60) // 10
    X = np.kron(np.eye(6), np.ones((10, 3))) * rng.poisson(5.0, (60, 18))
    Y = rng.integers(0, 2, (6, 3))[groups]
    Y[groups == 0] = [0, 0, 1]
    for cv in (3, GroupKFold(3)):
        labels = MultiLabelClassifierCV(weight_scales=[0.3], cv=cv).fit(X, Y, groups=groups)
        topics = TopicClassifierCV(
            MedLDA(), Gibbs(10, 10), num_topics=[6], concentrations=[0.1], strengths=[1.0], cv=cv
        )
        topics.fit(X, groups % 2, groups=groups)
        assert labels.best_score_ < MultiLabelClassifierCV(weight_scales=[0.3]).fit(X, Y).best_score_
        assert topics.best_score_ < 0.9
    alone = TopicClassifierCV(MedLDA(), Gibbs(10, 10), num_topics=[6], concentrations=[0.1], strengths=[1.0])
    assert alone.fit(X, groups % 2).best_score_ > 0.9
    with pytest.raises(ValueError, match="X and groups: Found input variables with inconsistent numbers"):
        MultiLabelClassifierCV().fit(X, Y, groups=groups[:5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight_scales": []}, r"weight_scales is \[\]; expected a sequence of at least one value"),
        ({"weight_scales": [-1.0]}, "weight_scales is -1"),
        ({"strengths": [1.0, 2.0]}, "strengths is .*nothing to choose there. Leave strengths out"),
        ({"num_components": [1]}, "truncation is 1"),
        ({"cv": 1}, "cv is 1; expected at least 2 folds"),
        ({"model": MultiTaskInfiniteLatentSVM()}, "needs a model of label sets such as BNMC"),
    ],
)
def test_grids_of_label_sets_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiLabelClassifierCV(**arguments).fit(*label_sets(30))


# -- tasks -------------------------------------------------------------------------------------------------------------


def tasks_alike(rows: int, noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ten tasks of one linear function, with constants of their own."""
    rng, task = np.random.default_rng(0), np.arange(10 * rows) % 10
    X = rng.normal(size=(len(task), 5))
    return X, X @ rng.normal(size=5) + 3 * rng.normal(size=10)[task] + noise * rng.normal(size=len(task)), task


def test_how_much_targets_tell_is_chosen_and_serves_new_rows():
    X, y, task = tasks_alike(40, 0.5)
    seen, new = slice(60), slice(60, None)
    found = MultiTaskRegressorCV(strengths=[1.0, 4.0]).fit(X[seen], y[seen], tasks=task[seen])
    assert found.scores_.shape == (3, 2, 1)
    assert found.best_score_ == pytest.approx(found.scores_.mean(0).max())
    assert found.posterior_.model.loss.loss.strength == found.strength_ == 4.0
    plain = MultiTaskRegressor().fit(X[seen], y[seen], tasks=task[seen])
    searched, default = (each.score(X[new], y[new], tasks=task[new]) for each in (found, plain))
    assert searched > default + 0.1


def test_scores_of_tasks_are_those_of_fits_without_each_fold():
    X, y, task = tasks_alike(8, 1.0)
    Y = by_task(y, task)
    Y[::9, 0] = 2.0  # rows of several tasks
    splits = list(KFold(2).split(X))
    search = MultiTaskRegressorCV(strengths=[2.0], weight_scales=[0.3], cv=splits).fit(X, Y)
    units = (Y - search.target_mean_) / search.target_scale_
    model = MultiTaskInfiniteLatentSVM(loss=EpsilonInsensitive(strength=2.0), weight_scale=0.3)
    for fold, (train, test) in enumerate(splits):
        rows = paths_of.Rows(X, units, np.ones(80)).taken(train).sorted((model, SVI()))
        errors = (SVI().fit(model, rows.X, rows.y).predict(X[test]) - units[test]) ** 2
        assert search.scores_[fold].item() == pytest.approx(1 - np.nanmean(errors, 1).mean())


def test_folds_share_each_task_and_rows_without_a_target_are_in_none():
    X, y, task = tasks_alike(6, 1.0)
    Y = by_task(y, task)
    fold = MultiTaskRegressorCV().deal(paths_of.Rows(X, Y, np.ones(60)), 3, np.ones(60, dtype=int)).argmax(1)
    assert_array_equal(np.histogram2d(task, fold, bins=[10, 3])[0], np.full((10, 3), 2))
    search = MultiTaskRegressorCV(strengths=[2.0], inference=SVI(num_steps=5))
    alone = search.fit(X, Y).scores_
    more, none = np.vstack([X, X[:5] + 1]), np.full((5, 10), np.nan)
    assert_allclose(search.fit(more, np.vstack([Y, none])).scores_, alone)


def test_searches_of_tasks_refuse_what_they_cannot_search():
    X, y, task = tasks_alike(4, 1.0)
    with pytest.raises(ValueError, match=r"strengths is \[\]; expected a sequence of at least one value"):
        MultiTaskRegressorCV(strengths=[]).fit(X, y, tasks=task)
    with pytest.raises(ValueError, match=r"needs a model of many tasks such as .* Use RegressorCV for others"):
        MultiTaskRegressorCV(InfiniteSVM()).fit(X, y, tasks=task)
    with pytest.raises(ValueError, match="y has no target that is not NaN"):
        MultiTaskRegressorCV().fit(X, np.full((len(X), 2), np.nan))
    with pytest.raises(ValueError, match="cv is 1; expected at least 2 folds"):
        MultiTaskRegressorCV(cv=1).fit(X, y, tasks=task)
    with pytest.raises(ValueError, match="X and groups: Found input variables with inconsistent numbers"):
        MultiTaskRegressorCV().fit(X, y, tasks=task, groups=task[:5])


# -- topics and latent features ----------------------------------------------------------------------------------------


def test_the_number_of_topics_is_chosen():
    X, y = documents()
    search = TopicClassifierCV(num_topics=[2, 8], concentrations=[0.1], strengths=[1.0], weight_scales=[1.0])
    found = search.fit(scipy.sparse.csr_array(X[:80]), y[:80])
    assert found.scores_.shape == (3, 2, 1, 1, 1)
    assert found.best_params_ == {"num_topics": 8, "concentration": 0.1, "strength": 1.0, "weight_scale": 1.0}
    assert found.n_components_ == found.posterior_.model.num_topics == 8
    assert found.posterior_.model.prior.document_concentration == 0.1
    assert found.best_score_ > 0.9 > found.scores_.mean(0)[0].max()
    assert found.score(X[80:], y[80:]) > 0.9
    assert_allclose(found.predict_proba(X[80:]).sum(1), 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_topics": [0]}, "num_topics is 0"),
        ({"concentrations": 0.1}, "concentrations is 0.1; expected a sequence"),
        ({"model": InfiniteSVM()}, "needs a topic model with classes such as MedLDA.*Use ClassifierCV"),
    ],
)
def test_grids_of_topics_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        TopicClassifierCV(**arguments).fit(*documents(30))


@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")  # all features serve
def test_the_number_of_latent_features_is_chosen():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (150, 4))
    X, y = bits @ rng.normal(size=(4, 8)) * 3 + rng.normal(size=(150, 8)), 2 * bits[:, 0] + bits[:, 1]
    model = InfiniteLatentSVM(feature_map=None)  # so that the features alone tell the classes
    found = ClassifierCV(model, num_components=[2, 8], weight_scales=[1.0]).fit(X, y)
    assert found.scores_.shape == (3, 1, 2, 1, 1, 1)
    assert found.posterior_.model.truncation == found.num_components_ == 8
    assert found.best_score_ > found.scores_.mean(0)[0, 0].max() + 0.05
    with pytest.raises(ValueError, match="truncation is 1"):
        ClassifierCV(InfiniteLatentSVM(), num_components=[1, 8]).fit(X, y)
