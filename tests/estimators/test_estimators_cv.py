"""Estimators that choose their settings by folds: sklearn's checks, what is chosen, paths, soft prediction."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_wine, make_blobs, make_circles, make_friedman1
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from regbayes.datasets import make_setting_two
from regbayes.estimators import Classifier, ClassifierCV, Regressor, RegressorCV
from regbayes.estimators.hyperplanes import Hyperplanes
from regbayes.estimators.paths import at, decide
from regbayes.estimators.rows import sort_rows, splits_of
from regbayes.estimators.search import _HeldOut
from regbayes.estimators.slopes import least_squares_shares, likeliest_shares
from regbayes.inference import SVI, Gibbs, Posterior, SmallVariance
from regbayes.models import (
    DDPM,
    DPM,
    IHMM,
    DirichletProcess,
    EpsilonInsensitive,
    Hinge,
    InfiniteSVM,
    Logistic,
    RandomFourier,
    SphericalGaussian,
    SquaredHinge,
)

pytestmark = pytest.mark.usefixtures("few_restarts")

SMALL = {"prior": DirichletProcess(1.0), "truncation": 3}
GRID = {"strengths": [1.0], "weight_scales": [0.5, 1.0], "num_components": [1, 2], "temperatures": [0.0, 1.0], "cv": 2}
SVI_GRID = {"strengths": [0.5, 1.0], "weight_scales": [1.0], "cv": 2}
QUICK = SmallVariance(max_steps=5, progress=False)


@pytest.fixture(scope="module")
def four_groups():
    """Two classes in four groups, each with a boundary of its own; no single plane parts them."""
    centers = np.array([[0, 0], [8, 0], [0, 8], [8, 8]])
    X, group = make_blobs(300, centers=centers, random_state=0)
    side = np.where(group % 2 == 0, 1, -1) * (X - centers[group])[:, 0]
    return X, np.where(side > 0, "right", "left")


@pytest.fixture(scope="module")
def sides(four_groups):
    """The same as tensors, with labels 0 and 1, and weights of the rows."""
    X, y = four_groups
    return torch.tensor(X), torch.tensor(y == "right").long(), torch.arange(len(X)) % 3 + 1


def one_plane(num_rows: int = 150) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(num_rows, 6))
    return X, (X @ [1, -1, 0.5, 0, 0, 2] + rng.normal(size=num_rows) > 0).astype(int)


# -- what is chosen ----------------------------------------------------------------------------------------------------


def test_one_plane_where_one_is_right_and_several_where_not(four_groups):
    estimator = ClassifierCV(num_components=[1, 8], weight_scales=[1.0, 3.0])
    single = clone(estimator).fit(*one_plane())
    assert single.num_components_ == single.n_components_ == 1
    several = estimator.fit(*four_groups)
    assert several.num_components_ == 8
    assert several.n_components_ >= 4
    assert several.best_score_ > 0.9 > 0.6 > several.scores_.mean(0)[0, 0].max()
    assert set(several.classes_) == {"left", "right"}


def test_scores_are_those_of_separate_fits_to_the_folds():
    X, y = one_plane()
    found = ClassifierCV(num_components=[1], strengths=[0.2, 1.0], weight_scales=[0.1, 1.0], cv=KFold(3))
    found.fit(X, y)
    assert found.scores_.shape == (3, 1, 1, 2, 2, 2)
    place = np.unravel_index(found.scores_.mean(0).round(10).argmax(), found.scores_.shape[1:])
    assert found.best_score_ == pytest.approx(found.scores_.mean(0)[place])
    names = ("length_scale", "num_components", "strength", "weight_scale", "temperature")
    axes = ([None], found.num_components, found.strengths, found.weight_scales, found.temperatures)
    expected = {name: axis[index] for name, axis, index in zip(names, axes, place, strict=True)}
    assert found.best_params_ == expected
    assert expected == {name: getattr(found, f"{name}_") for name in names}
    assert found.posterior_.model.loss.strength == found.strength_
    assert found.posterior_.model.weight_scale == found.weight_scale_
    for fold, (train, test) in enumerate(KFold(3).split(X)):
        seen = sort_rows(X[train], y[train], None, merge=True)  # in the order in which a fit sees them
        for s, strength in enumerate(found.strengths):
            for w, scale in enumerate(found.weight_scales):
                model = InfiniteSVM(loss=SquaredHinge(strength), weight_scale=scale)
                backend = SmallVariance(init=torch.zeros(len(train), dtype=torch.long))
                fitted = backend.fit(model, seen.X, seen.y)
                score = (fitted.predict(X[test]) == y[test]).mean()
                unclear = (np.abs(fitted.decision_function(X[test])) < 2e-3).mean()  # a search leaves a gap of 1e-3
                assert abs(found.scores_[fold, 0, 0, s, w, 0] - score) <= unclear + 1e-9


def test_a_search_depends_on_how_often_rows_occur_and_on_nothing_else():
    X, y = make_blobs(40, centers=3, random_state=0)
    rng = np.random.default_rng(0)
    weights, order = rng.integers(0, 3, 40), rng.permutation(40)
    for estimator in (ClassifierCV(inference=QUICK, **GRID), RegressorCV(inference=QUICK, **GRID)):
        first = clone(estimator).fit(X, y, sample_weight=weights)
        shuffled = clone(estimator).fit(X[order], y[order], sample_weight=weights[order])
        repeated = clone(estimator).fit(X.repeat(weights, 0), y.repeat(weights))
        for other in (shuffled, repeated):
            assert_allclose(other.scores_, first.scores_)
            assert_array_equal(other.predict(X), first.predict(X))
        assert first.posterior_.samples["assignments"].shape[1] == 40
        unweighted = clone(estimator).fit(X, y)
        assert (unweighted.scores_ != first.scores_).any()


@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
def test_other_backends_and_losses_have_no_choice_of_what_they_lack():
    X, y = one_plane(60)
    svi = ClassifierCV(inference=SVI(num_steps=5), **SVI_GRID).fit(X, y)
    assert svi.scores_.shape == (2, 1, 1, 2, 1, 1)
    assert svi.num_components_ is None
    logistic = ClassifierCV(InfiniteSVM(loss=Logistic()), QUICK, **GRID).fit(X, y)
    assert logistic.strength_ is None
    assert logistic.scores_.shape == (2, 1, 2, 1, 2, 2)


def test_folds_of_a_user_may_have_rows_that_do_not_count():
    X, y = one_plane(60)
    weights, splits = np.arange(60) % 3, [(np.arange(30), np.arange(30, 60)), (np.arange(30, 60), np.arange(30))]
    counted = weights > 0
    found = ClassifierCV(inference=QUICK, **(GRID | {"cv": splits})).fit(X, y, sample_weight=weights)
    halves = [np.flatnonzero(counted)[:20], np.flatnonzero(counted)[20:]]
    place = counted.cumsum() - 1
    splits = [(place[halves[0]], place[halves[1]]), (place[halves[1]], place[halves[0]])]
    fewer = ClassifierCV(inference=QUICK, **(GRID | {"cv": splits})).fit(
        X[counted], y[counted], sample_weight=weights[counted]
    )
    assert_array_equal(found.scores_, fewer.scores_)
    assert_array_equal(found.predict_proba(X), fewer.predict_proba(X))


def test_a_class_of_one_row_is_kept():
    X, y = one_plane(40)
    y[7] = 2
    found = ClassifierCV(inference=QUICK, **GRID).fit(X, y)
    assert found.predict_proba(X).shape == (40, 3)


IDLE = r"is \[.*has nothing to choose there"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cv": 1}, "cv is 1; expected at least 2 folds"),
        ({"strengths": []}, r"strengths is \[\]; expected a sequence of at least one value"),
        ({"num_components": 3}, "num_components is 3; expected a sequence"),
        ({"strengths": [-1.0]}, "strengths is -1"),
        ({"temperatures": [-1.0]}, "temperatures is -1"),
        ({"temperatures": np.ones((2, 2))}, "temperatures is "),
        ({"temperatures": ["1.0"]}, "temperatures is '1.0'"),
        ({"cv": np.array(3.0)}, r"cv is array\(3\.\)"),
        ({"cv": [(np.arange(20), np.arange(20, 99))]}, "it has array.* for places among 40 rows"),
        ({"cv": [(np.arange(20), -np.arange(20, 60))]}, "for places among 40 rows"),
        ({"cv": [(np.arange(20) * 1.0, np.arange(20, 40))]}, "^cv is "),
        ({"cv": [(np.arange(20),)]}, "^cv is "),
        ({"cv": [(np.arange(9) > 5, np.arange(9) < 5)]}, "^cv is "),
        ({"cv": object()}, "cv is <object"),
        ({"cv": []}, r"cv is \[\]; expected a number of folds"),
        ({"cv": 3.5}, r"cv is 3\.5; expected a number of folds.* Got 3\.5\.$"),
        ({"num_components": 2}, r"num_components is 2; .*, such as \[1\]\."),
        ({"cv": [(np.arange(40), np.arange(0))]}, "a split of cv has 40 different rows to fit and 0 to hold out"),
        ({"length_scales": [1.0]}, rf"length_scales {IDLE}. Leave length_scales out"),
        ({"inference": SVI(num_steps=3), "temperatures": (0.0, 1.0)}, rf"num_components {IDLE}"),
        ({"inference": SVI(num_steps=3), "num_components": None, "temperatures": [0.0, 2.0]}, rf"temperatures {IDLE}"),
        ({"model": InfiniteSVM(loss=Logistic()), "strengths": [0.1, 1.0]}, rf"strengths {IDLE}"),
    ],
)
def test_what_means_nothing_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ClassifierCV(**({"inference": QUICK} | GRID | arguments)).fit(*one_plane(40))


def test_splits_may_be_masks():
    X, y = one_plane(60)
    places = [(np.arange(0, 60, 2), np.arange(1, 60, 2)), (np.arange(30), np.arange(30, 60))]
    masks = [tuple(np.isin(np.arange(60), part) for part in split) for split in places]
    found, same = (ClassifierCV(inference=QUICK, **(GRID | {"cv": cv})).fit(X, y) for cv in (places, masks))
    assert_array_equal(same.scores_, found.scores_)


def test_splits_of_too_few_different_rows_are_refused():
    X, y = one_plane(2)[0], np.arange(2)
    with pytest.raises(
        ValueError, match="a split of cv has 1 different rows to fit and 1 to hold out; it needs at lea"
    ):
        ClassifierCV(cv=3).fit(X, y)
    assert_array_equal(ClassifierCV(cv=3).fit(X.repeat(20, 0), y.repeat(20)).predict(X), y)
    splits = [(np.arange(20), np.arange(20, 40))]
    with pytest.raises(ValueError, match="has 1 different rows to fit and 20 to hold out"):
        ClassifierCV(cv=splits).fit(X.repeat(20, 0), y.repeat(20))


def few_values(seed: int, rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Rows of few values, which occur with either label: y = 1 with probability .9 where x_1 = 1, else .2."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, [2, 3], (rows, 2)).astype(float)
    return X, (rng.random(rows) < np.where(X[:, 0] == 1, 0.9, 0.2)).astype(int)


@pytest.mark.parametrize("weighted", [False, True])
def test_folds_tell_the_truth_of_equal_rows_with_either_label(weighted):
    """If all rows of this x and this label were in one fold, the fit to the others would say the opposite."""
    X, y = few_values(0)
    found = ClassifierCV()
    if weighted:
        rows, counts = np.unique(np.column_stack([X, y]), axis=0, return_counts=True)
        found.fit(rows[:, :2], rows[:, 2].astype(int), sample_weight=counts)
    else:
        found.fit(X, y)
    share = np.array([y[X[:, 0] == value].mean() for value in (0, 1)])[X[:, 0].astype(int)]
    assert found.best_score_ == pytest.approx(np.maximum(share, 1 - share).mean(), abs=0.02)
    assert np.abs(found.predict_proba(X)[:, 1] - share).max() < 0.12


@pytest.mark.parametrize(
    ("class_weight", "sample_weight", "split"),
    [
        ({0: 4, 1: 2}, None, False),
        ("balanced", None, False),
        (None, 4.5, False),
        (None, 4.0, True),
        ({0: 4}, 4.0, True),
    ],
)
def test_only_whole_weights_of_rows_are_dealt_copy_by_copy(monkeypatch, class_weight, sample_weight, split):
    """A row with another weight would tell the fit its label and then be held out."""
    seen = []

    def noted(*arguments):
        seen.extend(splits_of(*arguments))
        return splits_of(*arguments)

    monkeypatch.setattr("regbayes.estimators.search.splits_of", noted)
    X, y = one_plane(30)[0], np.arange(30) % 3 % 2
    weights = None if sample_weight is None else np.full(30, sample_weight)
    ClassifierCV(class_weight=class_weight, num_components=[1], weight_scales=[1.0]).fit(X, y, sample_weight=weights)
    assert len(seen) == 3
    for train, test in seen:
        assert bool(np.intersect1d(train.place, test.place).size) == split
        assert train.weights.sum() + test.weights.sum() == pytest.approx(sum(part.weights.sum() for _, part in seen))


@pytest.mark.parametrize("seed", [6, 17])
def test_more_components_have_to_be_better_by_more_than_chance(seed):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(60, 2)), rng.integers(0, 2, 60)
    found = ClassifierCV(num_components=[1, 3], weight_scales=[0.1, 1.0]).fit(X, y)
    best = found.scores_.mean(0).max((0, 2, 3, 4))
    assert best.argmax() > 0  # by chance
    assert found.num_components_ == 1
    assert found.best_score_ == pytest.approx(best[0])


def test_gains_in_score_and_likelihood_count_together():
    """With weights that count rows, so that errors are those of all copies."""
    rng, outcomes = np.random.default_rng(0), []
    y, weights = rng.integers(0, 2, 80), rng.integers(1, 4, 80)
    each = np.repeat(np.arange(80), weights)
    for _ in range(30):
        decisions = rng.normal(1.5 * (2 * y - 1), 2.0, (2, 80))
        copies = decisions[:, each]
        slopes = [minimize_scalar(lambda slope, f=f: calibration_loss(slope * f, y[each])).x for f in copies]
        right = (copies > 0) == y[each]
        logs = [-np.logaddexp(0, -slope * f * (2 * y[each] - 1)) for slope, f in zip(slopes, copies, strict=True)]
        gains = right[1] * 1.0 - right[0], logs[1] - logs[0]
        each_gain = [gain.mean() / gain.std() * len(gain) ** 0.5 for gain in gains]
        together, likelihood = sum(each_gain), each_gain[1]
        if min(abs(together - 1), abs(likelihood - 1)) < 0.02:
            continue
        found = _HeldOut(decisions, y, weights.astype(float), np.zeros(0))
        assert ClassifierCV()._is_better(found, (1,), (0,), (0,)) == (together > 1 and likelihood > 1)
        outcomes.append((together > 1, likelihood > 1))
    assert {(False, False), (True, False), (True, True)} <= set(outcomes)  # a gain in score is not enough


def test_components_have_to_be_better_than_the_first_number_and_than_the_best():
    """The second setting is much better than the first, the third hardly worse than the second, the fourth better."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    noise = rng.normal(size=200)
    decisions = np.stack([factor * (2 * y - 1) + noise for factor in (0.1, 1.0, 0.98, 2.0)])
    found = _HeldOut(decisions, y, np.ones(200), np.zeros(0))
    better = [ClassifierCV()._is_better(found, (k,), (best,), (0,)) for k, best in ((1, 0), (2, 1), (3, 1))]
    assert better == [True, False, True]
    assert not ClassifierCV()._is_better(found, (3,), (1,), (3,))  # than the best, but no better than the first


def calibration_loss(f, y) -> float:
    """Of logits f [M], with one of each class spread over all rows."""
    targets = (y * len(y) + 1) / (len(y) + 2)
    return float((targets * np.logaddexp(0, -f) + (1 - targets) * np.logaddexp(0, f)).mean())


@pytest.mark.parametrize(("num_classes", "spread"), [(2, 1.5), (3, 1.0)])
def test_of_settings_with_equal_scores_that_of_the_least_log_loss_is_chosen(num_classes, spread):
    centers = np.array([[0, 0], [8, 0], [0, 8]])[:num_classes]
    X, y = make_blobs(90, centers=centers, cluster_std=spread, random_state=0)
    scales, weights = (0.01, 0.03, 0.1, 1.0, 10.0), 1.0 + np.arange(90) % 2
    found = ClassifierCV(num_components=[1], weight_scales=scales, cv=KFold(3)).fit(X, y, sample_weight=weights)
    equal = found.scores_.mean(0)[0, 0, 0, :, 0] == 1.0
    losses = []
    for scale in scales:
        decisions, truth, counts = [], [], []
        for train, test in KFold(3).split(X):
            rows, labels = torch.from_numpy(X[train]), torch.zeros(len(train), dtype=torch.long)
            model = InfiniteSVM(loss=SquaredHinge(1.0), weight_scale=scale)
            backend = SmallVariance(init=labels, merge=False)
            fitted = backend.fit(model, rows, y[train], sample_weight=weights[train])
            decisions.append(fitted.decision_function(X[test]))
            truth.append(y[test])
            counts.append(weights[test])
        logits, truth, counts = map(np.concatenate, (decisions, truth, counts))
        probe = copy.copy(found)
        probe.calibrate(logits, truth, counts)
        told = np.average(found.log_losses(logits, truth, counts), weights=counts)
        logits = logits if num_classes > 2 else np.column_stack([0 * logits, logits])
        losses.append(log_loss(truth, softmax(probe.slope_ * logits, axis=1), sample_weight=counts))
        assert told == pytest.approx(losses[-1])
    # searches stop their duals early, so that two scales of nearly the same loss may change places
    assert losses[scales.index(found.weight_scale_)] < np.array(losses)[equal].min() + 1e-3
    assert found.weight_scale_ > scales[equal.argmax()]


def test_length_scale_of_a_kernel_is_chosen():
    X, y = make_circles(160, noise=0.1, factor=0.5, random_state=0)
    model = InfiniteSVM(loss=SquaredHinge(), feature_map=RandomFourier(60))
    found = ClassifierCV(model, length_scales=[0.01, 1.0]).fit(X, y)
    assert found.scores_.shape == (3, 2, 1, 1, 11, 2)
    assert found.length_scale_ == 1.0
    assert found.posterior_.model.feature_map.length_scale == 1.0
    assert found.best_score_ > 0.9 > 0.8 > found.scores_.mean(0)[0].max()
    fixed = ClassifierCV(model.replace(feature_map=RandomFourier(60, length_scale=0.5))).fit(X, y)
    assert fixed.scores_.shape[1] == 1
    assert fixed.length_scale_ is None


@pytest.mark.parametrize("number", [1, 2])
def test_decisions_at_each_temperature_are_those_of_the_tempered_posterior(number):
    X, y = make_blobs(60, centers=4, cluster_std=3.0, random_state=0)
    posterior = SmallVariance(num_components=number, seed=1).fit(InfiniteSVM(), X, y % 2)
    assert posterior.num_components == number
    found = decide(posterior, X, (0.0, 4.0))
    assert_array_equal(found[0], posterior.decision_function(X))
    assert_allclose(found[1], posterior.tempered(4.0).decision_function(X), rtol=1e-12)
    assert (number == 1) == np.allclose(found[0], found[1])


# -- classifiers of components that stay -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_classes", "width", "weighted"), [(2, 3, False), (3, 3, True), (2, 90, True)], ids=["two", "three", "wide"]
)
def test_a_component_has_the_classifier_of_linear_svc(num_classes, width, weighted):
    """One problem of all components costs no more than one of each: strength weight_scale^2 = C / 2."""
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(80, width)), torch.arange(80) % 3
    y = (X[:, 0] + rng.normal(size=80) > 0) * (num_classes - 1) + (num_classes > 2) * (X[:, 1] > 1) * -1
    y = y.clip(0).astype(int)
    weights = torch.tensor(1.0 + rng.integers(0, 3, 80)) if weighted else None
    model, data = InfiniteSVM(loss=SquaredHinge()).prepare(X, y, weights=weights)
    planes = Hyperplanes(data, labels)
    for strength, scale in [(0.5, 0.1), (0.5, 0.5), (2.0, 0.3)]:
        here = at(model, strength, scale)
        found = planes.at(here)
        assert found.shape == (3, width + 1, num_classes if num_classes > 2 else 1)
        for k in range(3):
            own = data.rows(torch.nonzero(labels == k).squeeze(1))
            counts = None if weights is None else own.weights.numpy()
            svm = LinearSVC(C=2 * strength * scale**2, fit_intercept=False, dual=False, tol=1e-8, random_state=0)
            rival = torch.tensor(svm.fit(own.features.numpy(), y[labels == k], counts).coef_.T)

            def cost(eta, own=own, here=here):
                loss = -here.log_margin(own.features @ eta, own.targets)
                return float(own.counted(loss).sum() + eta.square().sum() / (2 * here.weight_scale**2))

            assert cost(rival) <= cost(found[k]) + 1e-9 <= 1.002 * cost(rival)


# -- probabilities -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [2, 3])
def test_slope_makes_held_out_labels_likeliest(num_classes):
    X, y = make_blobs(300, centers=num_classes, cluster_std=4.0, random_state=1)
    train, test = slice(150), slice(150, 300)
    found = ClassifierCV(inference=QUICK, num_components=[1], strengths=[1.0]).fit(X[train], y[train])
    probabilities = found.predict_proba(X[test])
    assert_allclose(probabilities.sum(1), 1)
    assert_array_equal(probabilities.argmax(1), found.predict(X[test]))
    loss = log_loss(y[test], probabilities)
    for factor in (0.4, 2.5):
        other = copy.copy(found)
        other.slope_ = factor * found.slope_
        assert loss < log_loss(y[test], other.predict_proba(X[test]))


def test_slope_stays_finite_where_classes_are_apart():
    X, y = make_blobs(60, centers=[[0, 0], [50, 50]], random_state=0)
    found = ClassifierCV(inference=QUICK, **GRID).fit(X, y)
    assert 0.5 < found.predict_proba(X).max() < 1.0


# -- the mean of several numbers of components -------------------------------------------------------------------------


def told_by(decisions: np.ndarray, y: np.ndarray, weights: np.ndarray, slopes: np.ndarray) -> float:
    """Minus the log likelihood of labels, one of each class spread over all rows, at a slope for each fit."""
    scores = np.tensordot(slopes, decisions, 1)
    scores = scores if scores.ndim == 2 else np.column_stack([0 * scores, scores])
    total, L = weights.sum(), scores.shape[1]
    targets = (np.eye(L)[y] * total + 1) / (total + L)
    return float(-(weights @ (targets * log_softmax(scores, axis=1)).sum(1)))


@pytest.mark.parametrize("num_classes", [2, 4])
def test_shares_make_labels_held_out_likeliest(num_classes):
    rng = np.random.default_rng(num_classes)
    y, weights = rng.integers(0, num_classes, 80), 1.0 + rng.integers(0, 3, 80)
    right = 2.0 * y[:, None] - 1 if num_classes == 2 else 2.0 * np.eye(num_classes)[y]
    decisions = np.stack([scale * (sign * right + rng.normal(size=right.shape)) for scale, sign in _FITS])
    decisions = decisions[..., 0] if num_classes == 2 else decisions
    shares = likeliest_shares(decisions, y, weights)
    best = minimize(
        lambda slopes: told_by(decisions, y, weights, slopes * _SIZES),
        np.full(4, 0.5),
        bounds=[(0, None)] * 4,
        method="L-BFGS-B",
        options={"ftol": 1e-14, "gtol": 1e-8},
    )
    slopes = best.x * _SIZES
    assert_allclose(shares, slopes / slopes.sum(), rtol=1e-3, atol=1e-4)
    assert shares[2] == 0.0  # a fit that speaks against itself has no say
    assert told_by(decisions, y, weights, slopes.sum() * shares) <= best.fun + 1e-9
    assert_allclose(likeliest_shares(decisions.repeat(2, 1), y.repeat(2), weights.repeat(2) / 2), shares, atol=1e-9)
    assert likeliest_shares(0 * decisions, y, weights).tolist() == [1.0, 0.0, 0.0, 0.0]
    alike = likeliest_shares(decisions[[0, 0]], y, weights)  # any shares serve
    assert alike.sum() == pytest.approx(1)


def test_shares_of_numbers_bring_their_mean_nearest():
    rng = np.random.default_rng(0)
    y, weights = rng.normal(size=60), 1.0 + rng.integers(0, 3, 60)
    decisions = np.stack([0.6 * y, y + rng.normal(size=60), -y, 1.5 * y + rng.normal(size=60)])

    def missed(shares):
        return float(weights @ (shares @ decisions - y) ** 2)

    found = least_squares_shares(decisions, y, weights)
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    for corner in np.eye(4):
        assert missed(found) <= missed(found + 1e-3 * (corner - found)) + 1e-12
    assert found[2] == 0.0
    assert least_squares_shares(np.stack([y, y - 1]), y, weights).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("kind", [ClassifierCV, RegressorCV])
def test_several_numbers_of_components_decide_together(kind, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 3))
    y = (X**2).sum(1) + 0.3 * rng.normal(size=900)
    y = np.digitize(y, [1.5, 3.5]) if kind is ClassifierCV else y
    train, test, options = slice(300), slice(300, None), {"inference": QUICK, "weight_scales": [1.0, 3.0]}
    found = kind(num_components=[1, 4, 8], **options).fit(X[train], y[train])
    alone = {number: kind(num_components=[number], **options).fit(X[train], y[train]) for number in found.shares_}
    assert len(alone) > 1
    assert sum(found.shares_.values()) == pytest.approx(1)
    posterior = found.posterior_
    expected = sum(share * alone[k].posterior_.decision_function(X) for k, share in found.shares_.items())
    assert_allclose(posterior.decision_function(X), expected, atol=1e-9)
    best = alone[found.num_components_]
    assert next(iter(found.shares_)) == found.num_components_  # clusters are its own
    assert_array_equal(posterior.partition(), best.posterior_.partition())
    assert_array_equal(posterior.assign(X), best.posterior_.assign(X))
    assert found.n_components_ == best.n_components_
    if kind is ClassifierCV:
        losses = [log_loss(y[test], each.predict_proba(X[test])) for each in (found, *alone.values())]
        assert losses[0] < min(losses[1:])
        assert_array_equal(found.predict(X), expected.argmax(1))
        assert_allclose(posterior.predict_proba(X), softmax(expected, axis=1))
        assert_allclose(posterior.with_slope(2.0).predict_proba(X), softmax(2 * expected, axis=1))
    else:
        assert found.score(X[test], y[test]) > max(each.score(X[test], y[test]) for each in alone.values())
        each = np.stack([alone[k].posterior_.decision_function(X) for k in found.shares_])
        within = np.stack([alone[k].posterior_.score_std(X) for k in found.shares_]) ** 2
        spread = np.array(list(found.shares_.values())) @ ((each - expected) ** 2 + within)
        assert_allclose(posterior.score_std(X), spread**0.5)
    posterior.save(tmp_path / "mean")
    assert_array_equal(Posterior.load(tmp_path / "mean").decision_function(X), posterior.decision_function(X))


def test_settings_that_decide_together_share_loss_and_feature_map():
    rng = np.random.default_rng(0)
    y, shape = rng.integers(0, 2, 40), (3, 4, 2, 3, 2)  # length scales, numbers, strengths, weight scales, temperatures
    scores, decisions = rng.uniform(size=(2, *shape)), rng.normal(size=(*shape, 40))
    decisions[:, 3], scores[:, :, 3] = decisions[:, 1], scores[:, :, 1]  # a penalty that finds no more components
    found = _HeldOut(decisions, y, np.ones(40), scores)
    search, mean = ClassifierCV(), scores.mean(0)
    best = search._best(found, [search._best_of(found, places) for places in search._by_size(found)])
    places = search._together(found, best)
    assert places[0] == best
    assert sorted(place[1] for place in places) == [0, 1, 2]
    for place in places:
        assert (place[0], place[2]) == (best[0], best[2])
        assert mean[place] == mean[best[0], place[1], best[2]].max()
    model = InfiniteSVM(loss=SquaredHinge(), feature_map=RandomFourier(30))
    X, y = make_circles(300, noise=0.2, factor=0.6, random_state=0)
    axes = {"weight_scales": [0.1, 1.0], "cv": 2}
    found = ClassifierCV(model, QUICK, num_components=[1, 2, 4], length_scales=[0.3, 1.0, 3.0], **axes).fit(X, y)
    axes["length_scales"] = [found.length_scale_]
    alone = {k: ClassifierCV(model, QUICK, num_components=[k], **axes).fit(X, y) for k in found.shares_}
    assert len(alone) > 1
    expected = sum(share * alone[k].decision_function(X) for k, share in found.shares_.items())
    assert_allclose(found.decision_function(X), expected, atol=1e-9)


def test_what_decides_not_at_all_is_left_out_even_if_its_score_is_best(monkeypatch):
    """The setting that counts most leads then: components, best_params_ and best_score_ are of a fit that decides."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = (X**2).sum(1)
    options = {"inference": QUICK, "weight_scales": [1.0], "num_components": [1, 4, 8]}
    plain = RegressorCV(**options).fit(X, y)

    def shares(self, decisions, y, weights):
        return np.array([0.0, 0.3, 0.7]) if len(decisions) > 1 else np.ones(1)

    monkeypatch.setattr(RegressorCV, "shares", shares)
    found = RegressorCV(**options).fit(X, y)
    leads, other = found.shares_
    assert found.shares_ == {leads: 0.7, other: 0.3}
    assert plain.num_components_ not in found.shares_
    assert found.num_components_ == found.best_params_["num_components"] == leads
    assert found.best_score_ < plain.best_score_
    assert found.n_components_ == RegressorCV(**options | {"num_components": [leads]}).fit(X, y).n_components_


def test_posteriors_to_average_are_checked(sides):
    X, y, _ = sides
    fit = SmallVariance(num_components=2, num_restarts=1, progress=False).fit
    first, second = fit(InfiniteSVM(), X, y), fit(InfiniteSVM(weight_scale=0.1), X, y)
    for shares in ([0.5], [0.5, 0.6], [1.5, -0.5], [float("nan"), 1.0]):
        with pytest.raises(ValueError, match="share"):
            first.averaged_with([second], shares)
    both = first.averaged_with([second], [0.5, 0.5])
    with pytest.raises(ValueError, match="takes fits of one draw each"):
        first.averaged_with([both], [0.5, 0.5])
    with pytest.raises(ValueError, match="to other rows"):
        first.averaged_with([fit(InfiniteSVM(), X[1:], y[1:])], [0.5, 0.5])
    others = {
        "of another model": fit(InfiniteSVM(SphericalGaussian()), X, y),
        "by another backend": SVI(num_steps=2, progress=False).fit(InfiniteSVM(), X, y),
    }
    for words, other in others.items():
        with pytest.raises(ValueError, match=f"others has a fit {words}"):
            first.averaged_with([other], [0.5, 0.5])
    for other in (others["by another backend"], fit(DPM(), X)):
        with pytest.raises(ValueError, match="has no decisions of centres to average"):
            other.averaged_with([], [1.0])
    soft = first.tempered(2.0).with_slope(3.0).averaged_with([second], [0.5, 0.5])
    expected = (first.tempered(2.0).decision_function(X) + second.decision_function(X)) / 2
    assert_allclose(soft.decision_function(X), expected)
    assert "slope" not in soft.samples
    assert both.num_draws == [2]
    assert both.diagnose().verdict == "one draw"


def test_one_number_of_components_is_no_mean(four_groups):
    X, y = four_groups
    found = ClassifierCV(num_components=[4], weight_scales=[1.0]).fit(X, y)
    assert found.shares_ == {4: 1.0}
    assert "share" not in found.posterior_.samples
    svi = ClassifierCV(inference=SVI(num_steps=5), **SVI_GRID).fit(X[:40], y[:40])
    assert svi.shares_ == {None: 1.0}


_FITS = ((1.0, 1.0), (30.0, 0.5), (1.0, -1.0), (0.01, 0.8))  # size of the decisions, and how right they are
_SIZES = np.array([1.0, 1 / 30, 1.0, 100.0])


# -- soft prediction ---------------------------------------------------------------------------------------------------


def test_tempered_centres_count_by_their_divergence(sides):
    X, labels, _ = sides
    posterior = SmallVariance(num_restarts=1).fit(InfiniteSVM(SphericalGaussian()), X, labels)
    assert_array_equal(posterior.tempered(0.0).decision_function(X), posterior.decision_function(X))
    draw, model = {name: value[0] for name, value in posterior.samples.items()}, posterior.model
    divergence = model.likelihood.divergence(model.likelihood.coordinates(X), draw["centers"])
    share = torch.softmax(draw["log_mixture"][:-1] - divergence / 0.7, 1)
    scores = torch.einsum("np,kp->nk", model.features(X), draw["weights"][..., 0])
    soft = posterior.tempered(0.7)
    assert_allclose(soft.decision_function(X), (share * scores).sum(1))
    assert (soft.decision_function(X) - posterior.decision_function(X)).abs().max() > 1e-3
    assert_array_equal(soft.assign(X), posterior.assign(X))
    assert_allclose(soft.tempered(1e-9).decision_function(X), posterior.decision_function(X))


def test_temperature_is_saved_and_checked(sides, tmp_path):
    X, y, _ = sides
    soft = SmallVariance(num_restarts=1).fit(InfiniteSVM(), X, y).tempered(2.0)
    soft.save(tmp_path / "soft")
    assert_array_equal(Posterior.load(tmp_path / "soft").decision_function(X), soft.decision_function(X))
    with pytest.raises(ValueError, match="temperature is -1"):
        soft.tempered(-1.0)
    gibbs = Gibbs(num_samples=1, num_warmup=1, progress=False).fit(InfiniteSVM(), X[:20], y[:20])
    with pytest.raises(ValueError, match="Gibbs has no centres to temper"):
        gibbs.tempered(1.0)


# -- starts from labels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True], ids=["rows", "weighted"])
def test_a_start_keeps_its_components_and_lowers_the_objective(sides, weighted):
    X, labels, weights = sides
    options = {"sample_weight": weights} if weighted else {}
    cold = SmallVariance(num_components=6, num_restarts=1).fit(InfiniteSVM(), X, labels, **options)
    backend = SmallVariance(init=cold.partition())
    for strength in (0.5, 2.0):
        warm = backend.fit(InfiniteSVM(loss=Hinge(strength)), X, labels, **options)
        assert warm.num_components == cold.num_components
        assert (warm.partition() == cold.partition()).double().mean() > 0.9
        assert len(warm.trace.values[0]) < len(cold.trace.values[0])
        values = np.asarray(warm.trace.values[0])
        assert (np.diff(values) <= 1e-9 * abs(values[0])).all()
    again = backend.replace(penalty=float(cold.samples["penalty"])).fit(InfiniteSVM(), X, labels, **options)
    assert_array_equal(again.partition(), cold.partition())
    assert float(again.trace.final) == pytest.approx(float(cold.trace.final), rel=0.02)


def test_rows_of_a_start_count_as_often_as_they_weigh(sides):
    X, labels, weights = sides
    start, every = torch.arange(len(X)) % 2, torch.arange(len(X)).repeat_interleave(weights)
    weighted = SmallVariance(init=start).fit(InfiniteSVM(), X, labels, sample_weight=weights)
    repeated = SmallVariance(init=start[every]).fit(InfiniteSVM(), X[every], labels[every])
    plain = SmallVariance(init=start).fit(InfiniteSVM(), X, labels)
    penalty, copied, single = (float(found.samples["penalty"]) for found in (weighted, repeated, plain))
    assert penalty == pytest.approx(copied, rel=0.3)  # other rows are candidates
    assert penalty > 1.5 * single


def test_labels_of_a_start_are_checked():
    X = torch.arange(12.0).double().view(6, 2)
    two = SmallVariance(init=np.array([3, 3, 3, 5, 5, 5]), penalty=1e6, max_steps=1, merge=False)
    assert two.fit(DPM(SphericalGaussian()), X).partition().tolist() == [0, 0, 0, 1, 1, 1]
    with pytest.raises(ValueError, match=r"init has shape \(3,\); expected \[6\]"):
        SmallVariance(init=[0, 0, 1]).fit(DPM(), X)
    for model in (DDPM(), IHMM()):
        with pytest.raises(ValueError, match=f"init has labels, but {type(model).__name__} has a start of its own"):
            SmallVariance(init=[0, 0, 1, 1, 1, 1]).fit(model, X)


# -- how many components by default ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::regbayes.models.ConstantColumnWarning")
@pytest.mark.parametrize(("num_rows", "num_columns", "expected"), [(20, 5, 1), (160, 1, 5), (900, 1, 16)])
def test_default_classifier_aims_at_as_many_components_as_rows_can_have(num_rows, num_columns, expected):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(num_rows, num_columns)), np.arange(num_rows) % 2
    assert Classifier().fit(X, y).posterior_.backend.num_components == expected
    twice = Classifier().fit(X[: num_rows // 2], y[: num_rows // 2], sample_weight=np.full(num_rows // 2, 2.0))
    assert twice.posterior_.backend.num_components == expected
    backend = Classifier(inference=QUICK).fit(X, y).posterior_.backend
    assert (backend.num_components, backend.scale) == (max(8, expected), 3.0)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((984, 16), 10), ((996, 4), 2), ((998, 2), 1), ((10,) * 100, 6), ((600, 200, 198, 2), 16)],
    ids=["few positives", "four positives", "two positives", "many classes", "one tiny class of four"],
)
def test_default_classifier_has_few_components_if_classes_have_few_rows(sizes, expected):
    X, y = np.random.default_rng(0).normal(size=(1000, 2)), np.arange(len(sizes)).repeat(sizes)
    assert Classifier().fit(X, y).posterior_.backend.num_components == expected
    twice = Classifier().fit(X[::2], y[::2], sample_weight=np.full(500, 2.0))
    assert twice.posterior_.backend.num_components == expected
    rows, labels = np.concatenate([X, X[:500]]), np.concatenate([y, np.full(500, y[-1])])
    left_out = Classifier().fit(rows, labels, sample_weight=np.arange(1500) < 1000)
    assert left_out.posterior_.backend.num_components == expected


def test_weights_of_classes_leave_fewer_effective_rows_for_components():
    """A rare class that counts as much as the other one has few rows for its classifiers."""
    stream, weights = np.random.default_rng(0), {0: 1.0, 1: 3.0}
    X, y = stream.normal(size=(1000, 2)), np.repeat([0, 1], [800, 200])
    given = [Classifier(class_weight=weight).fit(X, y) for weight in (None, "balanced", weights, {0: 2.0, 1: 2.0})]
    effective = [1000, 1000**2 / (800 * 0.625**2 + 200 * 2.5**2), 1400**2 / (800 + 1800), 1000]
    expected = [min(int(number) // (15 * 3), 16) for number in effective]
    assert [found.posterior_.backend.num_components for found in given] == expected == [16, 14, 16, 16]
    few = [Classifier(class_weight=weight).fit(X[755:845], y[755:845]) for weight in (None, {0: 0.1, 1: 0.1})]
    assert [found.posterior_.backend.num_components for found in few] == [2, 2]


def test_default_classifier_ranks_new_rows_of_a_rare_class_first():
    rng = np.random.default_rng(1)
    X, new = rng.normal(size=(2, 2000, 10))
    y, new_y = np.arange(2000) < 5, np.arange(2000) < 200
    X[y], new[new_y] = X[y] + 5 / 10**0.5, new[new_y] + 5 / 10**0.5
    assert roc_auc_score(new_y, Classifier().fit(X, y).predict_proba(new)[:, 1]) > 0.99


def test_many_columns_have_no_weights_for_noise():
    rng = np.random.default_rng(0)
    X, new = rng.normal(size=(2, 300, 100))
    y, new_y = (rng.random(300) < 1 / (1 + np.exp(-2 * rows[:, :3].sum(1))) for rows in (X, new))
    found, wide = Classifier().fit(X, y), Classifier(InfiniteSVM(loss=Logistic(), weight_scale=3.0)).fit(X, y)
    assert found.posterior_.model.weight_scale == pytest.approx(3 * (300 / 6000) ** 0.5)
    other = Classifier(inference=SmallVariance(num_components=2, num_restarts=1)).fit(X, y).posterior_
    assert other.model.weight_scale == found.posterior_.model.weight_scale
    assert wide.posterior_.model.weight_scale == Classifier().fit(X[:, :3], y).posterior_.model.weight_scale == 3.0
    assert log_loss(new_y, found.predict_proba(new)) < log_loss(new_y, wide.predict_proba(new)) - 0.3


def test_defaults_find_ten_cubes():
    data = make_setting_two(4000, seed=8)
    X, y, truth = data.X.numpy(), data.y.numpy(), data.bayes_predictions.numpy()

    def agreement(classifier):
        return (classifier.fit(X[:3000], y[:3000]).predict(X[3000:]) == truth[3000:]).mean()

    assert agreement(Classifier()) > 0.8
    assert agreement(Classifier(InfiniteSVM(), SmallVariance())) > 0.85
    assert agreement(Classifier(InfiniteSVM(), SmallVariance(num_components=8))) < 0.85
    assert agreement(Classifier(InfiniteSVM(), SmallVariance(scale=1.0))) < 0.8


def test_only_classifiers_of_classes_set_scale_and_number():
    X, y = np.random.default_rng(0).normal(size=(900, 1)), np.arange(900) % 2
    for model in (DPM(), InfiniteSVM(loss=EpsilonInsensitive())):
        backend = QUICK.fit(model, X, None if isinstance(model, DPM) else X.ravel()).backend
        assert (backend.num_components, backend.scale) == (8, 1.0)
    backend = QUICK.replace(num_components=3, scale=2.0).fit(InfiniteSVM(), X, y).backend
    assert (backend.num_components, backend.scale) == (3, 2.0)


# -- units of targets --------------------------------------------------------------------------------------------------


def test_units_of_targets_do_not_matter():
    X, y = make_friedman1(80, random_state=0)
    plain = Regressor().fit(X, y).predict(X)
    assert_allclose(Regressor().fit(X, 1e6 - 3e4 * y).predict(X), 1e6 - 3e4 * plain, rtol=1e-6)


def test_moments_of_targets_count_rows():
    X, y, weights = np.arange(8.0)[:, None], np.array([1.0, 2, 2, 5, 7, 7, 9, 1e3]), np.array([1, 2, 0, 1, 3, 1, 1, 0])
    found = Regressor().fit(X, y, sample_weight=weights)
    counted = y.repeat(weights)
    assert_allclose([found.target_mean_, found.target_scale_], [counted.mean(), counted.std()])
    constant = Regressor().fit(X, np.full(8, 7.0))
    assert constant.target_scale_ == 1.0
    assert_allclose(constant.predict(X), 7.0)


@pytest.mark.parametrize("name", ["diabetes", "alcohol", "friedman"])
def test_default_regressor_is_not_below_ridge(name):
    table = load_wine().data
    X, y = {
        "diabetes": load_diabetes(return_X_y=True),
        "alcohol": (table[:, 1:], table[:, 0]),
        "friedman": make_friedman1(300, random_state=0),
    }[name]
    gaps = []
    for train, test in ShuffleSplit(6, test_size=0.25, random_state=0).split(X):
        scaler = StandardScaler().fit(X[train])
        seen, new = scaler.transform(X[train]), scaler.transform(X[test])
        ridge = Ridge().fit(seen, y[train]).score(new, y[test])
        gaps.append(Regressor().fit(X[train], y[train]).score(X[test], y[test]) - ridge)
    assert np.mean(gaps) > -0.001  # it was -0.12 on the first
    assert min(gaps) > -0.003


def test_rows_of_one_hash_stay_different(monkeypatch):
    from regbayes.estimators import rows

    rng = np.random.default_rng(0)
    X, y = rng.integers(-1, 2, size=(200, 3)) * 1.0, rng.integers(0, 2, 200)
    X[X == 0] *= rng.choice([1.0, -1.0], int((X == 0).sum()))  # -0 is 0
    for factor in (rows._FACTOR, np.uint64(0)):
        monkeypatch.setattr(rows, "_FACTOR", factor)
        found = rows.sort_rows(X, y, None, merge=True)
        both = np.column_stack([found.X, found.y])
        assert len(np.unique(both, axis=0)) == len(both) == len(np.unique(np.column_stack([X, y]), axis=0))
        assert_array_equal(both[found.place], np.column_stack([X, y]))
        assert_array_equal(found.weights, np.bincount(found.place))


def test_a_slope_makes_probabilities(four_groups):
    X, y = four_groups
    for labels in (y, np.arange(len(y)) % 3):
        found = ClassifierCV(num_components=[1], weight_scales=[1.0], temperatures=[0.0]).fit(X, labels)
        posterior = found.posterior_.with_slope(found.slope_)
        assert_allclose(posterior.predict_proba(X), found.predict_proba(X))
        assert_array_equal(posterior.predict(X), found.posterior_.predict(X))
    with pytest.raises(ValueError, match="slope"):
        posterior.with_slope(0.0)
    with pytest.raises(ValueError, match="slope is for their probabilities"):
        SmallVariance().fit(DPM(), X).with_slope(1.0)


def test_rows_without_a_group_are_refused(four_groups):
    X, y = four_groups
    groups = np.where(np.arange(len(y)) % 4 == 0, np.nan, np.arange(len(y)) % 4)
    with pytest.raises(ValueError, match="expected the names of groups, of one type, none of them missing"):
        ClassifierCV().fit(X, y, groups=groups)
