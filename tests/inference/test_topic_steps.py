"""The steps of topic models, each against its terms written by hand, on one tiny corpus."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from setups import seeded
from torch import Tensor

from regbayes.inference import Gibbs, TopicPosterior
from regbayes.inference.gibbs import topics as gibbs
from regbayes.inference.posterior.fold_in import expected_counts
from regbayes.inference.svi.rules import NATURAL
from regbayes.inference.svi.steps import Minibatch
from regbayes.inference.svi.topics import factors
from regbayes.inference.svi.topics import kernel as svi
from regbayes.models import LDA, CrammerSinger, DirichletTopics, Hinge, Loss, MedLDA, SparseRows, TopicData

ALPHA, BETA, NU, K = 0.4, 0.3, 1.5, 3
PRIOR = DirichletTopics(ALPHA, BETA)
RANDOM = DirichletTopics(ALPHA, BETA, (2.0, 2.0), (2.0, 2.0))
X = np.vstack([np.random.default_rng(2).poisson(0.9, size=(7, 5)), np.zeros((1, 5))])  # the last document is empty
X[2], X[4] = [0, 3, 0, 0, 0], [1, 0, 0, 0, 2]
CLASSES = [0, 2, 1, 0, 1, 2, 2, 1]
RHO, SIZE = 0.37, 2.0


def problem(loss: Loss, y: Any = CLASSES, prior: DirichletTopics = PRIOR) -> tuple[MedLDA, TopicData]:
    """A resolved model of three topics and its data: 8 documents, 5 words."""
    return MedLDA(prior, loss, NU, num_topics=K, classes=torch.arange(3)).prepare(torch.from_numpy(X), y)


def drawn(model: Any, data: TopicData, *, scale: float = 2.0) -> gibbs.TopicState:
    """A state of Gibbs: each token at a random topic, and random weights."""
    start = torch.randint(K, (len(data.words),), generator=seeded(1))
    state = gibbs.init(model, data, seeded(), start=start)
    noise = torch.randn(state.weights.shape, generator=seeded(2), dtype=torch.float64)
    return replace(state, weights=scale * noise)


# -- Gibbs -------------------------------------------------------------------------------------------------------------


def test_hyperparameters_see_the_counts_of_the_new_topics() -> None:
    model, data = problem(Hinge(), prior=RANDOM)
    state, generator = drawn(model, data), seeded()
    found = gibbs.sweep(state, data, model, seeded())
    moved = gibbs.draw_assignments(state, data, model, generator)
    moved = replace(moved, weights=gibbs.draw_weights(moved, data, model, generator))
    assert moved.document_counts.tolist() != state.document_counts.tolist()
    assert all(found.hyper[name] != value for name, value in state.hyper.items())
    assert found.hyper == model.prior.draw(state.hyper, moved.document_counts, moved.word_counts, generator)
    assert found.weights.tolist() == moved.weights.tolist()


@pytest.mark.parametrize("known", [0, 5])  # documents, at the end, whose class is known
def test_documents_of_an_unknown_class_are_visited_as_by_lda(known: int) -> None:
    """The classes of a maximum: with a large weight a missing one would be seen at once."""
    model, data = problem(CrammerSinger(3.0), [-1] * (8 - known) + CLASSES[8 - known :])
    state, (plain, words) = drawn(model, data, scale=8.0), LDA(PRIOR, num_topics=K).prepare(torch.from_numpy(X))
    found = gibbs.draw_assignments(state, data, model, seeded(4)).assignments
    expected = gibbs.draw_assignments(replace(state, weights=state.weights[:, :0]), words, plain, seeded(4)).assignments
    first = int(data.starts[8 - known])
    assert found[:first].tolist() == expected[:first].tolist()
    assert (found[first:] != expected[first:]).any() == bool(known)


def test_each_class_is_drawn_given_the_new_weights_of_those_before() -> None:
    model, data = problem(CrammerSinger(1.5, 1.2))
    state, generator = drawn(model, data), seeded(7)
    found, weights = gibbs.draw_weights(state, data, model, seeded(7)), state.weights.clone()
    zbar = state.document_counts.double() / data.lengths.clamp(min=1).unsqueeze(1)
    for own in range(3):
        scores, costs = zbar @ weights, 1.2 * (data.targets < 0)
        rest = (scores + costs)[:, [c for c in range(3) if c != own]].amax(1) - costs[:, own]
        sign = data.targets[:, own]
        slack = (sign * (rest - scores[:, own])).unsqueeze(1)  # a hinge of margin 0 about `rest`
        law = Hinge(1.5, 1.0).augment(1.0 - slack, torch.ones_like(slack), generator)  # omega | slack
        shift = 1.5 * sign.unsqueeze(1) + law.precision * rest.unsqueeze(1)
        observed = law._replace(precision=law.precision, shift=shift)
        weights[:, own] = gibbs.scored(state, data, model).drawn(observed, generator)[0, :, 0]
    torch.testing.assert_close(found, weights)


def test_a_draw_keeps_the_expected_topics_and_their_sizes() -> None:
    model, data = problem(Hinge())
    state = drawn(model, data)
    counts = np.zeros((K, 5))
    for word, k in zip(data.words.tolist(), state.assignments.tolist(), strict=True):
        counts[k, word] += 1
    kept = gibbs.draw(state, data, model)
    expected = (counts + BETA) / (counts.sum(1, keepdims=True) + 5 * BETA)
    torch.testing.assert_close(kept["topics"], torch.from_numpy(expected))
    assert kept["topic_sizes"].tolist() == counts.sum(1).tolist()
    assert [float(kept[name]) for name in ("document_concentration", "topic_concentration")] == [ALPHA, BETA]


# -- stochastic steps of mean field ------------------------------------------------------------------------------------


def stepped(loss: Loss) -> tuple[Minibatch[TopicData], Any, Any, Any]:
    """A batch, and states before a step, after it, and with the documents of the batch as the step has them."""
    model, data = problem(loss, [0, 2, 1, 0, -1, 2, 2, 1])
    steps, state = svi.steps_by(NATURAL), svi.init(model, data, seeded())
    for _ in range(2):
        state = steps.sweep(state, data, model)
    state = factors.without_rows(state)
    batch = Minibatch(data.rows(torch.tensor([1, 2, 4, 7])), SIZE)
    local = factors.update_tokens(*svi.started(state, batch.data, model))
    return batch, state, steps.stochastic.sweep(state, batch, model, RHO), local


def by_tokens(batch: Minibatch[TopicData], local: Any) -> list[list[tuple[int, Tensor]]]:
    """The word of each token of each document, and its phi [K]."""
    documents: list[list[tuple[int, Tensor]]] = [[] for _ in range(batch.data.num_data)]
    entries = batch.data.X
    for n, word, number, phi in zip(entries.row_index, entries.columns, entries.values, local.phi, strict=True):
        documents[int(n)] += int(number) * [(int(word), phi)]
    return documents


def features_of(tokens: list[tuple[int, Tensor]]) -> tuple[Tensor, Tensor]:
    """E zbar [K] and E[zbar zbar^T] [K, K] of a document."""
    M, zeros = max(1, len(tokens)), torch.zeros(K, dtype=torch.float64)
    first, second = zeros.clone(), torch.diag(zeros)
    for i, (_, one) in enumerate(tokens):
        first += one / M
        for j, (_, other) in enumerate(tokens):
            second += (torch.diag(one) if i == j else torch.outer(one, other)) / M**2
    return first, second


def augmented_sums(documents: list[Any], targets: Tensor, state: Any, c: float, margin: float) -> tuple[Any, Any]:
    """What the hinges add to V^-1 [C, K, K] and to V^-1 mu [K, C] at q(eta) of a state."""
    C, covariance = targets.shape[1], torch.linalg.inv(state.precision_tril @ state.precision_tril.mT)
    gram, linear = torch.zeros(C, K, K).double(), torch.zeros(K, C).double()
    for tokens, y in zip(documents, targets, strict=True):
        first, second = features_of(tokens)
        for m in range(0 if y.isnan().any() else C):
            mu = state.mean[:, m]
            moments = torch.outer(mu, mu) + covariance[m]
            square = margin**2 - 2 * margin * y[m] * (mu @ first) + (moments * second).sum()
            u = 1 / (c * square.sqrt())
            gram[m] += c**2 * u * second
            linear[:, m] += y[m] * (c + c**2 * margin * u) * first
    return gram, linear


def test_an_augmented_stochastic_step_is_one_of_natural_gradients() -> None:
    batch, state, moved, local = stepped(Hinge(1.5, 1.2))
    documents = by_tokens(batch, local)
    gram, linear = augmented_sums(documents, batch.data.targets, state, 1.5, 1.2)
    before, after = (one.precision_tril @ one.precision_tril.mT for one in (state, moved))
    expected = (1 - RHO) * before + RHO * (torch.eye(K).double() / NU**2 + SIZE * gram)
    torch.testing.assert_close(after, expected)
    for m in range(3):
        pull = (1 - RHO) * before[m] @ state.mean[:, m] + RHO * SIZE * linear[:, m]
        torch.testing.assert_close(after[m] @ moved.mean[:, m], pull)
    words = torch.zeros_like(state.word_counts)
    for tokens in documents:
        for word, phi in tokens:
            words[word] += SIZE * phi
    torch.testing.assert_close(moved.word_counts, (1 - RHO) * state.word_counts + RHO * words)
    assert (words - state.word_counts).abs().max() > 0.1


def test_a_start_is_extrapolated_to_all_documents() -> None:
    model, data = problem(Hinge(1.5, 1.2))
    state = svi.sweep(svi.init(model, data, seeded()), data, model, rule=NATURAL)
    found = svi.extrapolate(state, data, model, 20, 20.0)
    before, after = (one.precision_tril @ one.precision_tril.mT for one in (state, found))
    eye = torch.eye(K).double() / NU**2
    torch.testing.assert_close(after - eye, 2.5 * (before - eye))
    torch.testing.assert_close(after @ found.mean.T.unsqueeze(2), 2.5 * before @ state.mean.T.unsqueeze(2))
    torch.testing.assert_close(found.word_counts, 2.5 * state.word_counts)


# -- new documents -----------------------------------------------------------------------------------------------------


def fixed_point(b: np.ndarray, own: float) -> Any:
    """Counts [K] of tokens with word weights b [M, K], phi prop. to b (alpha + the sum of phi, less its own or not)."""
    phi = b / b.sum(1, keepdims=True)
    for _ in range(200):
        phi = b * (ALPHA + phi.sum(0) - own * phi)
        phi /= phi.sum(1, keepdims=True)
    return phi.sum(0)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_token_is_folded_in_by_the_others_of_its_document(compiled: bool) -> None:
    """phi_mk prop. to b_kw (alpha + sum_{m' != m} phi_m'k), token by token; with its own it would be elsewhere."""
    weights, rows = np.random.default_rng(0).dirichlet(np.full(5, 0.5), K), SparseRows.of(torch.from_numpy(X))
    found = expected_counts(rows, torch.from_numpy(weights), ALPHA, collapsed=True, compiled=compiled).numpy()
    tokens = [weights[:, np.repeat(np.arange(5), row.astype(int))].T for row in X]
    others, all_of_them = (np.stack([fixed_point(b, own) for b in tokens]) for own in (1.0, 0.0))
    np.testing.assert_allclose(found, others, atol=5e-3)
    assert np.abs(found - all_of_them).max() > 0.05
    assert found[-1].tolist() == [0, 0, 0]


def test_the_score_of_a_document_is_that_of_its_mean_topics() -> None:
    fit = Gibbs(num_samples=2, num_warmup=1).fit(MedLDA(PRIOR, num_topics=K), X, [0, 1, 1, 0, 1, 0, 0, 1])
    assert isinstance(fit, TopicPosterior)
    expected = np.zeros(len(X))
    for s in range(2):
        topics, eta = fit.samples["topics"][s], fit.samples["weights"][s, :, 0].numpy()
        counts = expected_counts(SparseRows.of(torch.from_numpy(X)), topics, ALPHA, collapsed=True).numpy()
        for n, row in enumerate(X):
            expected[n] += sum(eta[k] * counts[n, k] / max(1.0, row.sum()) for k in range(K)) / 2
    np.testing.assert_allclose(fit.decision_function(X), expected, rtol=1e-8, atol=1e-12)
    assert np.abs(expected).max() > 0.1
    assert expected[-1] == 0
