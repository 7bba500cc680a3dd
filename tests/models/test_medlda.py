"""MedLDA and LDA as models, and what is asked of their posteriors."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.special import softmax

from regbayes.inference import Gibbs, TopicPosterior
from regbayes.inference.posterior.fold_in import expected_counts
from regbayes.models import (
    LDA,
    CrammerSinger,
    DirichletTopics,
    EpsilonInsensitive,
    Hinge,
    Logistic,
    Masked,
    MedLDA,
    OneVsRest,
    SparseRows,
)
from regbayes.models.priors.topics import Tally
from regbayes.testing import check_model

RNG = np.random.default_rng(0)
X = np.vstack([RNG.poisson(1.0, size=(4, 6)), np.zeros((1, 6), int)])
PRIOR = DirichletTopics(0.6, 0.4)
RANDOM = DirichletTopics(0.6, 0.4, (2.0, 1.0), (2.0, 4.0))
CASES = {
    "hinge": (MedLDA(PRIOR, num_topics=3), [0, 1, 0, 1, 1]),
    "one-versus-rest": (MedLDA(RANDOM, num_topics=3), [0, 1, 2, 1, 0]),
    "crammer-singer": (MedLDA(PRIOR, CrammerSinger(), num_topics=3), [0, 1, 2, 1, -1]),
    "epsilon": (MedLDA(PRIOR, EpsilonInsensitive(), num_topics=3), [0.1, np.nan, -1.0, 2.0, 0.5]),
    "lda": (LDA(PRIOR, num_topics=3), None),
}


@pytest.mark.parametrize("name", CASES)
def test_the_program_is_its_parts(name):
    check_model(CASES[name][0], X, CASES[name][1])


@pytest.mark.parametrize("convert", [np.asarray, scipy.sparse.csr_matrix, torch.tensor, torch.from_numpy])
def test_counts_in_any_form_are_the_same_documents(convert):
    given = SparseRows.of(convert(X)) if convert is torch.from_numpy else convert(X)
    data = MedLDA().prepare(given, [0, 1, 0, 1, 1])[1]
    assert data.X.to_dense().tolist() == X.tolist()
    assert data.lengths.tolist() == X.sum(1).tolist()
    assert [data.words[data.documents == n].tolist() for n in range(5)] == [
        np.repeat(np.arange(6), row).tolist() for row in X
    ]
    assert data.starts.diff().tolist() == X.sum(1).tolist()


def test_the_loss_follows_the_targets():
    def loss_of(model, y):
        return model.prepare(X, y)[0].loss

    assert isinstance(loss_of(MedLDA(), [0, 1, 0, 1, 1]), Hinge)
    assert isinstance(loss_of(MedLDA(), [0, 1, 2, 1, 1]), OneVsRest)
    assert isinstance(loss_of(MedLDA(), [0, 1, -1, 1, 1]), Masked)
    assert isinstance(loss_of(MedLDA(loss=EpsilonInsensitive()), [0.0, 1, np.nan, 1, 1]), Masked)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (X - 1, "negative: -1.0 in row 0, column 1. MedLDA accepts how often"),
        (X + 0.5, "not a whole number: 1.5 in row 0, column 0"),
        (X * 1e15, "tokens; at most 2147483647"),
        (X * np.nan, "NaN or inf"),
        (X[0], "X has shape"),
    ],
)
def test_rows_that_are_no_counts_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        MedLDA().prepare(rows, [0, 1, 0, 1, 1])


def test_targets_and_options_that_are_refused():
    with pytest.raises(ValueError, match="MedLDA needs targets"):
        MedLDA().prepare(X)
    with pytest.raises(ValueError, match="y has no label: all of them are missing"):
        MedLDA().prepare(X, [-1, -1, -1, -1, -1])
    with pytest.raises(ValueError, match="LDA has no sequences"):
        LDA().prepare(X, lengths=[5])
    with pytest.raises(ValueError, match="X has 6 features, but the model was fitted with 7"):
        MedLDA(num_features=7).prepare(X, [0, 1, 0, 1, 1])


def test_the_law_of_counts_is_that_of_draws_one_after_another():
    """Polya's urn: p(n) = prod_k a (a + 1) ... (a + n_k - 1) / [K a (K a + 1) ...]."""
    counts = torch.tensor([[2, 0, 1], [0, 4, 4]])
    expected = 0.0
    for row in counts.tolist():
        seen = [k for k, number in enumerate(row) for _ in range(number)]
        expected += sum(np.log((0.3 + seen[:m].count(k)) / (0.9 + m)) for m, k in enumerate(seen))
    assert float(Tally.of(counts).log_polya(torch.tensor(0.3).double())) == pytest.approx(expected)


# -- the posterior -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus():
    """Three topics of disjoint words, documents mostly of one, whose number is the class; sparse."""
    rng = np.random.default_rng(1)
    classes = np.arange(60) % 3
    shares = rng.dirichlet([0.2] * 3, size=60) * 0.3 + 0.7 * np.eye(3)[classes]
    topics = np.kron(np.eye(3), np.full(4, 0.25))
    rows = np.stack([rng.multinomial(30, share @ topics) for share in shares])
    return scipy.sparse.csr_matrix(rows), classes, shares


@pytest.fixture(scope="module")
def fitted(corpus):
    model = MedLDA(DirichletTopics(0.3, 0.1), Hinge(1.0, 4.0), 3.0, num_topics=3)
    return Gibbs(num_samples=8, num_warmup=20, num_chains=2).fit(model, corpus[0][:40], corpus[1][:40])


def test_probabilities_of_classes_are_averages_over_the_draws(corpus):
    """Each draw is a posterior of one, whose mean topics `transform` gives up to the prior's part in them."""
    model = MedLDA(DirichletTopics(0.3, 0.1), Logistic(), 3.0, num_topics=3)
    posterior = Gibbs(num_samples=4, num_warmup=4).fit(model, corpus[0][:40], corpus[1][:40])
    posterior.samples["weights"] *= torch.tensor([0.3, 1.0, 3.0, -1.0]).view(4, 1, 1)  # that do not agree
    rows, total = corpus[0][40:], np.zeros((20, 3))
    for draw in range(4):
        samples = {name: value[draw : draw + 1] for name, value in posterior.samples.items()}
        theta = TopicPosterior(posterior.model, posterior.backend, samples, [1], posterior.trace).transform(rows)
        alpha, length = float(samples["document_concentration"]), 30.0
        scores = ((theta * (length + 3 * alpha) - alpha) / length) @ samples["weights"][0].numpy()
        total += softmax(scores, axis=1) / 4
    np.testing.assert_allclose(posterior.predict_proba(rows), total, rtol=1e-6)
    np.testing.assert_array_equal(posterior.predict(rows), total.argmax(1))


def test_new_documents_have_their_topics_and_classes(corpus, fitted):
    rows, classes, shares = corpus
    assert isinstance(fitted, TopicPosterior)
    assert (fitted.predict(rows[40:]) == classes[40:]).mean() > 0.85
    assert fitted.decision_function(rows[40:]).shape == (20, 3)
    np.testing.assert_allclose(fitted.predict_proba(rows[40:]).sum(1), 1.0)
    found = fitted.transform(rows)
    np.testing.assert_allclose(found.sum(1), 1.0)
    order = [int(words[0]) // 4 for words in fitted.top_words(1)]
    assert sorted(order) == [0, 1, 2]
    assert np.abs(found - shares[:, order]).mean() < 0.06


def test_topics_of_both_chains_are_matched(fitted):
    """Before the match the chains may have other labels; after it every draw has the same words in a topic."""
    words = fitted.samples["topics"].unflatten(2, (3, 4)).sum(3).argmax(2)
    matched = words.gather(1, fitted.matches)
    assert (matched == matched[0]).all()
    torch.testing.assert_close(fitted.topics.sum(1), torch.ones(3).double())


def test_top_words_have_names(fitted):
    names = [f"w{column}" for column in range(12)]
    topics = fitted.top_words(4, names)
    assert sorted(sorted(words) for words in topics) == sorted(sorted(names[k : k + 4]) for k in (0, 4, 8))
    with pytest.raises(ValueError, match="expected a list of 12 names"):
        fitted.top_words(2, ["a", "b"])
    with pytest.raises(ValueError, match="num is 13"):
        fitted.top_words(13)


def test_a_document_without_words_has_the_priors_topics_and_score_0(fitted):
    empty = np.zeros((1, 12))
    np.testing.assert_allclose(fitted.transform(empty), 1 / 3)
    np.testing.assert_allclose(fitted.decision_function(empty), 0.0)


def test_new_documents_that_are_refused(fitted):
    with pytest.raises(ValueError, match="X has 3 features, but the model was fitted with 12"):
        fitted.predict(np.ones((2, 3)))
    with pytest.raises(ValueError, match="not a whole number"):
        fitted.transform(np.full((2, 12), 0.5))


def test_summaries_do_not_depend_on_labels(fitted):
    from regbayes.inference import structure_of

    summaries = structure_of(fitted.model).summaries(fitted)
    assert all(len(value) == 16 and value.ndim == 1 + (name == "together") for name, value in summaries.items())
    assert (summaries["effective_topics"] > 2.5).all()
    assert (summaries["effective_topics"] <= 3).all()
    assert "3 topics" in repr(fitted)


def test_lda_predicts_no_labels(corpus):
    posterior = Gibbs(num_samples=2, num_warmup=10).fit(LDA(num_topics=3), corpus[0])
    assert posterior.transform(corpus[0]).shape == (60, 3)
    for ask in (posterior.predict, posterior.predict_proba, posterior.decision_function):
        with pytest.raises(ValueError, match=r"use transform\(X\)"):
            ask(corpus[0])


def test_a_real_target_is_predicted(corpus):
    rows, _, shares = corpus
    y = 4 * shares[:, 0] - 1
    model = MedLDA(DirichletTopics(0.3, 0.1), EpsilonInsensitive(5.0, 0.05), 3.0, num_topics=3)
    posterior = Gibbs(num_samples=10, num_warmup=30).fit(model, rows[:40], y[:40])
    assert np.corrcoef(posterior.predict(rows[40:]), y[40:])[0, 1] > 0.9


# -- topics of new documents -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collapsed", [True, False])
def test_expected_counts_are_a_fixed_point_in_both_codes(collapsed):
    rows, weights = SparseRows.of(torch.from_numpy(X).double()), torch.from_numpy(RNG.random((3, 6)))
    found = expected_counts(rows, weights, 0.2, collapsed=collapsed, compiled=True)
    torch.testing.assert_close(found, expected_counts(rows, weights, 0.2, collapsed=collapsed, compiled=False))
    torch.testing.assert_close(found.sum(1), rows.sum(1))
    assert (found[-1] == 0).all()
    if not collapsed:  # phi follows from the counts alone
        phi = weights.T[rows.columns] * torch.digamma(found + 0.2).exp()[rows.row_index]
        again = rows.entry_sums(rows.values.unsqueeze(1) * phi / phi.sum(1, keepdim=True))
        torch.testing.assert_close(again, found, atol=0.02, rtol=0)


def test_expected_counts_are_near_those_of_gibbs_sampling():
    """Two words, two topics: exact E zbar by enumeration of the tokens."""
    weights, alpha = torch.tensor([[0.9, 0.1], [0.3, 0.7]]).double(), 0.5
    tokens = [0, 0, 0, 1]
    total, mean = 0.0, 0.0
    for code in range(16):
        z = [(code >> m) & 1 for m in range(4)]
        law = Tally.of(torch.tensor([[z.count(0), z.count(1)]])).log_polya(torch.tensor(alpha).double())
        weight = float(law.exp()) * np.prod([float(weights[k, w]) for k, w in zip(z, tokens, strict=True)])
        total, mean = total + weight, mean + weight * z.count(0)
    rows = SparseRows.of(torch.tensor([[3.0, 1.0]]).double())
    assert float(expected_counts(rows, weights, alpha, collapsed=True)[0, 0]) == pytest.approx(mean / total, abs=0.15)
