"""SequenceClusterer: labels, and what it takes and refuses; scikit-learn's checks are in `test_estimators`."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score

from regbayes.estimators import SequenceClusterer
from regbayes.inference import SVI, Gibbs, SequencePosterior
from regbayes.models import DIH, DPM, IHMM, DiagonalGaussian, FullGaussian, Logistic

pytestmark = pytest.mark.usefixtures("few_restarts")

LENGTHS = [70, 50]
TRUTH = np.repeat([0, 1, 2, 0, 2, 1], 20)
X = np.array([0.0, 8.0, -8.0])[TRUTH, None] + np.random.default_rng(0).normal(size=(120, 2))

QUICK = SequenceClusterer(IHMM(truncation=4), SVI(num_steps=5))


@pytest.mark.slow
@pytest.mark.parametrize(
    "inference", [SVI(num_steps=40), Gibbs(num_samples=10, num_warmup=20, scan="blocked")], ids=["SVI", "Gibbs"]
)
@pytest.mark.parametrize("model", [IHMM(truncation=8), DIH(loss=Logistic(), truncation=8)], ids=["IHMM", "DIH"])
def test_labels_are_the_states(model, inference):
    clusterer = SequenceClusterer(model, inference)
    labels = clusterer.fit_predict(X, lengths=LENGTHS)
    assert clusterer.n_components_ == 3
    assert_array_equal(np.unique(labels), range(3))  # without gaps, though the truncated model has empty states
    assert adjusted_rand_score(TRUTH, labels) > 0.95
    assert isinstance(clusterer.posterior_, SequencePosterior)
    assert clusterer.posterior_.model.num_features == 2
    assert model.num_features is None  # a copy was fitted
    path = clusterer.predict(X, lengths=LENGTHS)
    assert adjusted_rand_score(TRUTH, path) > 0.95
    assert (path == labels).mean() > 0.95  # and not only up to names


def test_the_defaults_are_an_ihmm_by_svi():
    clusterer = SequenceClusterer().fit(X, lengths=LENGTHS)
    assert isinstance(clusterer.posterior_.model, IHMM)
    assert isinstance(clusterer.posterior_.backend, SVI)


@pytest.mark.parametrize(("slope", "family"), [(0.0, DiagonalGaussian), (2.0, FullGaussian)])
def test_states_have_full_covariances_where_columns_vary_together(slope, family):
    """Missing steps say nothing of it; a model that was given is left alone."""
    noise = np.random.default_rng(0).normal(size=(120, 2))
    noise[:, 1] += slope * noise[:, 0]
    steps = noise + 9 * np.eye(2)[np.arange(120) // 20 % 2]
    steps[[3, 4]] = np.nan
    few = SVI(num_steps=3)
    assert isinstance(SequenceClusterer(None, few).fit(steps).posterior_.model.likelihood, family)
    assert isinstance(SequenceClusterer(IHMM(), few).fit(steps).posterior_.model.likelihood, DiagonalGaussian)


def test_more_states_than_the_truncation_are_found():
    """The steps, as rows, say that there are more than two thirds of twenty."""
    stream = np.random.default_rng(5)
    state = np.arange(1200) // 5 % 24
    steps = 9 * stream.normal(size=(24, 4))[state] + stream.normal(size=(1200, 4))
    found = SequenceClusterer().fit(steps)
    assert found.posterior_.model.truncation > 24
    assert adjusted_rand_score(state, found.labels_) > 0.9


@pytest.mark.parametrize("apart", [[X[:70], X[70:]], [X[:70].tolist(), X[70:].tolist()]], ids=["arrays", "lists"])
def test_sequences_one_by_one_are_to_be_stacked(apart):
    match = r"X has 2 sequences one by one; .*: np\.concatenate\(X\), with lengths=\[70, 50\]"
    fit = clone(QUICK).fit(X, lengths=LENGTHS)
    takers = [clone(QUICK).fit, fit.predict, fit.posterior_.assign, lambda X: QUICK.inference.fit(QUICK.model, X)]
    for take in takers:
        with pytest.raises(ValueError, match=match):
            take(apart)


def test_lengths_in_the_place_of_y_are_not_ignored():
    for take in (clone(QUICK).fit, clone(QUICK).fit_predict):
        with pytest.raises(ValueError, match=r"y has shape \(2,\); expected 120 entries, all ignored\. Lengths"):
            take(X, LENGTHS)
    found = clone(QUICK).fit_predict(X, lengths=LENGTHS)
    assert_array_equal(found, clone(QUICK).fit(X, np.zeros(120), LENGTHS).labels_)


def test_lengths_are_passed_on():
    """Sequences of one step each tell nothing of moves, so that rows are as they were a priori."""
    whole, cut = (clone(QUICK).fit(X, lengths=lengths) for lengths in ([120], [1] * 120))
    assert np.ptp(cut.posterior_.samples["log_transitions"][0, :, :-1].numpy(), axis=0).max() < 1e-6
    assert np.ptp(whole.posterior_.samples["log_transitions"][0, :, :-1].numpy(), axis=0).max() > 0.5
    step = X[[0, 25, 0]]
    assert_array_equal(cut.predict(step), cut.predict(step, lengths=[1, 1, 1]))


def test_missing_steps_are_states_like_others():
    rows = X.copy()
    rows[[5, 30, 31]] = np.nan
    clusterer = SequenceClusterer(IHMM(truncation=8), Gibbs(num_samples=5, num_warmup=20)).fit(rows, lengths=LENGTHS)
    assert adjusted_rand_score(TRUTH, clusterer.labels_) > 0.95
    assert clusterer.predict(rows[:10]).shape == (10,)
    rows[7, 0] = np.nan
    with pytest.raises(ValueError, match=r"some values missing: \[7\]"):
        clusterer.fit(rows)


def test_parameters_are_searched_as_nested_names():
    clusterer = clone(SequenceClusterer(DIH(), SVI())).set_params(
        model__loss__strength=0.3, model__prior__stickiness=0.5, inference__num_steps=3
    )
    assert clusterer.model.loss.strength == 0.3
    assert clusterer.get_params()["inference__num_steps"] == 3
    fitted = clusterer.fit(X)
    assert fitted.posterior_.model.prior.stickiness == 0.5
    assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))


def test_a_model_without_states_is_refused():
    with pytest.raises(
        ValueError, match=r"SequenceClusterer needs a model of sequences such as IHMM\(\). Use Clusterer"
    ):
        SequenceClusterer(DPM()).fit(X)
    with pytest.raises(ValueError, match=r"model is <class .*; expected an object such as IHMM\(\)"):
        SequenceClusterer(DIH).fit(X)
    with pytest.raises(ValueError, match="lengths add up to 100, but X has 120 rows"):
        SequenceClusterer().fit(X, lengths=[50, 50])


def test_single_precision_stays_single():
    clusterer = clone(QUICK).fit(X.astype(np.float32), lengths=LENGTHS)
    assert clusterer.posterior_.smooth(X.astype(np.float32)).dtype == np.float32
