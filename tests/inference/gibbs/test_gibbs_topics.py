"""Gibbs sampling of topic models: conditionals, agreement with enumeration, resuming, and a real data set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from exact_topics import MODELS, PRIOR, Quartic, X, exact_states, state_of
from scipy import stats
from setups import Softmax

from regbayes.datasets import load
from regbayes.inference import Gibbs
from regbayes.inference.gibbs import topics
from regbayes.models import (
    LDA,
    CrammerSinger,
    DirichletTopics,
    EpsilonInsensitive,
    Hinge,
    Loss,
    Masked,
    MedLDA,
    OneVsRest,
    PseudoObservation,
    host,
)
from regbayes.models.distributions.sampling import draw_categorical, log_dirichlet, uniforms
from regbayes.models.priors.topics import Tally
from regbayes.testing import check_kernel, topic_posterior
from regbayes.testing.topics import log_assignments


def token_logits(m: int, state, data, model, observed: PseudoObservation | None = None) -> torch.Tensor:
    """Log weights [K] float64 of the topics of token m given all other tokens, up to a constant.

    Given pseudo-observations [N, C] of the scores, or, without them, under the margin factors themselves.
    """
    n, word, own = int(data.documents[m]), int(data.words[m]), int(state.assignments[m])
    h, num_words, num_topics = state.hyper, *state.word_counts.shape
    one = torch.eye(num_topics, dtype=torch.float64)
    document, words, sizes = (
        counts.double() - one[own]
        for counts in (state.document_counts[n], state.word_counts[word], state.word_counts.sum(0))
    )
    beta, scores = h["topic_concentration"], (document + one) / int(data.lengths[n]) @ state.weights.double()
    logits = (words + beta).log() - (sizes + num_words * beta).log() + (document + h["document_concentration"]).log()
    if observed is None:
        return logits + model.log_margin(scores, data.targets[n].double())
    return logits + (observed.shift[n] * scores - observed.precision[n] * scores.square() / 2).sum(1)


@pytest.fixture
def generator() -> torch.Generator:
    """The scan of topics is compiled for a CPU alone."""
    return torch.Generator().manual_seed(0)


def example(loss: Loss, y: object, *, K: int = 3, scale: float = 1.0):
    """A model, data of 6 documents, one of them empty, and a state with random topics and weights."""
    rng = np.random.default_rng(0)
    rows = np.vstack([rng.poisson(0.9, size=(5, 7)), np.zeros((1, 7))])
    model, data = MedLDA(PRIOR, loss, num_topics=K).prepare(rows, y)
    weights = scale * torch.from_numpy(rng.normal(size=(K, data.targets.shape[1])))
    return model, data, state_of(model, data, rng.integers(K, size=len(data.words)), weights)


def observed_in(state, data, model, columns, generator) -> PseudoObservation:
    """Pseudo-observations of the scores in these columns, at a draw of omega given all scores."""
    return topics.scored(state, data, model).observe(state.weights.unsqueeze(0), columns, generator)


SIGNS, CLASSES, REAL = [0, 1, 0, 1, -1, 1], [0, 1, 2, 1, -1, 0], [0.3, -1.0, np.nan, 2.0, 0.5, 0.1]
CASES = {
    "hinge": (Hinge(2.0), SIGNS),
    "one-versus-rest": (OneVsRest(Hinge(2.0)), CLASSES),
    "epsilon": (EpsilonInsensitive(2.0), REAL),
    "crammer-singer": (CrammerSinger(2.0), CLASSES),
}


# -- the tokens --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_conditional_of_a_token_is_that_of_the_log_joint(name):
    model, data, state = example(*CASES[name])
    for m in range(0, len(data.words), 3):
        at = [state.assignments.long().index_fill(0, torch.tensor([m]), k) for k in range(model.num_topics)]
        expected = torch.stack([topics.log_joint(state_of(model, data, z, state.weights), data, model) for z in at])
        found = token_logits(m, state, data, model)
        torch.testing.assert_close(found.log_softmax(0), expected.log_softmax(0))


def moved(model, data, state, m, k) -> topics.TopicState:
    """The state with token m at topic k."""
    return state_of(model, data, state.assignments.long().index_fill(0, torch.tensor([m]), int(k)), state.weights)


def chosen(logits, own, level) -> int:
    """The inverse CDF at a uniform number, a token's own topic first."""
    order = torch.tensor([own, *(k for k in range(len(logits)) if k != own)])
    return int(order[draw_categorical(logits[order], level)])


def assert_visits_by_conditionals(model, data, state, observed) -> torch.Tensor:
    """The compiled scan draws what inverse CDFs of `token_logits` draw from the same uniform numbers."""
    margin = tuple(part.numpy() for part in observed)
    found = topics.visit(state, data, margin, torch.Generator().manual_seed(3))
    for m, level in enumerate(uniforms((len(data.words),), torch.Generator().manual_seed(3))):
        own = int(state.assignments[m])
        state = moved(model, data, state, m, chosen(token_logits(m, state, data, model, observed), own, level))
    assert found.assignments.tolist() == state.assignments.tolist()
    assert torch.equal(found.document_counts, state.document_counts)
    assert torch.equal(found.word_counts, state.word_counts)
    return state.assignments


@pytest.mark.parametrize("scale", [1.0, 60.0])  # 60: exponents too large for the table
@pytest.mark.parametrize("name", ["hinge", "one-versus-rest", "epsilon"])
def test_the_compiled_scan_visits_every_token_by_its_conditional(name, scale, generator):
    model, data, state = example(*CASES[name], scale=scale)
    observed = observed_in(state, data, model, slice(0, data.targets.shape[1]), generator)
    assert_visits_by_conditionals(model, data, state, observed)


@pytest.mark.parametrize("concentration", [0.3, 1e-9])
def test_tokens_without_a_target_are_visited_by_the_same_conditionals(concentration):
    """At 1e-9 the weights without a token are 1e-18 of those with it."""
    prior = DirichletTopics(document_concentration=concentration, topic_concentration=concentration)
    model, data = LDA(prior, num_topics=3).prepare(np.eye(30))
    state = state_of(model, data, np.arange(30) % 3, torch.zeros(3, 0).double())
    none = torch.zeros(30, 0).double()
    assert (assert_visits_by_conditionals(model, data, state, PseudoObservation(none, none)) != state.assignments).any()


@pytest.mark.parametrize("precision", [30.0, 3000.0])  # 3000: the tilt drifts so far that it is computed anew
def test_many_moves_leave_the_tilt_exact(precision, generator):
    """A long document: its tilt is a product of hundreds of quotients."""
    rows = np.random.default_rng(0).poisson(20, size=(2, 8))
    model, data = MedLDA(PRIOR, Hinge(), num_topics=3).prepare(rows, [0, 1])
    weights = 10 * torch.randn(3, 1, generator=generator, dtype=torch.float64)
    state = state_of(model, data, np.zeros(len(data.words), dtype=int), weights)
    observed = PseudoObservation(torch.full((2, 1), precision).double(), torch.tensor([[-10.0], [10.0]]).double())
    assert (assert_visits_by_conditionals(model, data, state, observed) != 0).float().mean() > 0.3


@pytest.mark.parametrize("reach", [99.0, 145.0])  # on both sides of where the table gives way
def test_far_exponents_leave_no_topic_behind(reach, generator):
    """A topic that had no weight left when the tilt was computed may be likely a few tokens later."""
    rows = np.random.default_rng(0).multinomial(5, np.full(6, 1 / 6), size=30)
    model, data = MedLDA(PRIOR, Hinge(), num_topics=2).prepare(rows, np.arange(30) % 2)
    weights = torch.tensor([[1.0], [-1.0]]).double()
    state = state_of(model, data, torch.randint(2, (len(data.words),), generator=generator), weights)
    pull = torch.randn(30, 1, generator=generator, dtype=torch.float64)
    observed = PseudoObservation(torch.full((30, 1), 25 * reach).double(), 25 * reach * pull)
    assert_visits_by_conditionals(model, data, state, observed)


def test_a_class_far_behind_still_weighs_its_topics(generator):
    """exp(2c (eta_own - eta_top)) of both topics is below the smallest number, their ratio is e^32."""
    model, data = MedLDA(PRIOR, CrammerSinger(16.0), num_topics=2).prepare(np.ones((3, 1)), [0, 1, 2])
    weights = torch.tensor([[-31.0, 0.0, 0.0], [-30.0, 0.0, 0.0]]).double()
    state = state_of(model, data, [0, 0, 0], weights)
    drawn = [topics.draw_assignments(state, data, model, generator).assignments[0].item() for _ in range(20)]
    assert drawn == [1] * 20


def test_proposals_under_a_maximum_are_accepted_by_the_factor(generator):
    """The compiled Metropolis-Hastings scan against one whose proposals and ratios come from `token_logits`."""
    model, data, state = example(*CASES["crammer-singer"], scale=4.0)
    inner, classes, stream = model.loss.loss, data.targets.nan_to_num(-2).argmax(1), torch.Generator().manual_seed(5)
    classes[data.targets.isnan().any(1)] = -1
    margin = (classes.numpy(), inner.strength, inner.margin)
    found = topics.visit(state, data, margin, torch.Generator().manual_seed(5))
    none = PseudoObservation(*torch.zeros(2, data.num_data, 3, dtype=torch.float64))
    levels, thresholds = (uniforms((len(data.words),), stream) for _ in range(2))
    for m in range(len(data.words)):
        n, own = int(data.documents[m]), int(state.assignments[m])
        target = token_logits(m, state, data, model)
        proposal = token_logits(m, state, data, model, none)
        slope = 2 * inner.strength / int(data.lengths[n])
        rest = state.document_counts[n].double() @ state.weights - state.weights[own]
        if (label := int(classes[n])) >= 0:
            cost = inner.margin * int(data.lengths[n]) * (torch.arange(3) != label)
            proposal += slope * (state.weights[:, label] - state.weights[:, int((rest + cost).argmax())])
        new = chosen(proposal, own, levels[m])
        log_ratio = target[new] - target[own] - proposal[new] + proposal[own]
        state = moved(model, data, state, m, new if thresholds[m] < log_ratio.exp() else own)
    assert found.assignments.tolist() == state.assignments.tolist()


@pytest.mark.parametrize(
    ("loss", "y"), [(Quartic(), SIGNS), (Softmax(), CLASSES), (Masked(Quartic()), SIGNS), *CASES.values()]
)
def test_tokens_at_one_place_move_by_the_factor_itself(loss, y, monkeypatch):
    """Given topics a token sees its word, the counts of its document and log phi: against `token_logits`, whose counts
    of words are taken out and the topics put in. In one piece as in pieces of single documents."""
    model, data, state = example(loss, y, scale=2.0)
    found = topics.visit_places(state, data, model, torch.Generator().manual_seed(3))
    monkeypatch.setattr(topics, "_MOST_SCORES", 1)
    alone = topics.visit_places(state, data, model, torch.Generator().manual_seed(3))
    assert alone.assignments.tolist() == found.assignments.tolist() != state.assignments.tolist()
    assert torch.equal(found.document_counts, data.document_counts(found.assignments.long(), 3).int())
    assert torch.equal(found.word_counts, data.word_counts(found.assignments.long(), 3).int())

    stream, beta = torch.Generator().manual_seed(3), state.hyper["topic_concentration"]
    log_topics = log_dirichlet(state.word_counts.T.double() + beta, stream)
    levels = uniforms((len(data.words),), stream)
    for m, level in enumerate(levels):
        own, word = torch.eye(3)[int(state.assignments[m])].double(), data.words[m]
        seen, sizes = state.word_counts[word] - own + beta, state.word_counts.sum(0) - own + 7 * beta
        logits = token_logits(m, state, data, model) - seen.log() + sizes.log() + log_topics[:, word]
        state = moved(model, data, state, m, draw_categorical(logits, level))
    assert found.assignments.tolist() == state.assignments.tolist()


# -- the weights -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_weights_are_drawn_from_the_gaussian_of_the_log_joint(name, generator):
    """log N(eta) differs between two values as prior + pseudo-observations of the scores do."""
    model, data, state = example(*CASES[name])
    scores = data.mean_topics(state.document_counts)
    for columns in model.loss.blocks(data.targets.shape[1]):
        observed = observed_in(state, data, model, columns, generator)
        ridge = next(topics.scored(state, data, model).posteriors(observed))
        values = torch.randn(2, 3, observed.shift.shape[1], generator=generator, dtype=torch.float64)
        gap = values - ridge.mean
        found = -torch.einsum("skc,ckl,slc->s", gap, (tril := ridge.precision_tril[0]) @ tril.mT, gap) / 2
        f = scores @ values
        terms = observed.shift * f - observed.precision * f.square() / 2
        expected = terms.sum((1, 2)) - (values / model.weight_scale).square().sum((1, 2)) / 2
        torch.testing.assert_close(found[1] - found[0], expected[1] - expected[0])


def test_counts_weigh_alike_one_by_one(monkeypatch):
    counts = torch.tensor([[2, 0, 1], [2, 2, 0], [0, 0, 0]])
    at = torch.tensor(0.3, dtype=torch.float64)
    tallied = Tally.of(counts).log_polya(at)
    monkeypatch.setattr(host, "on_cpu", lambda like: False)
    torch.testing.assert_close(Tally.of(counts).log_polya(at), tallied)


def test_hyperparameters_are_drawn_by_their_own_counts(generator):
    """Slice steps leave p(alpha, beta | z) invariant: means against a grid."""
    prior = DirichletTopics(0.5, 0.5, (2.0, 2.0), (2.0, 2.0))
    model, data = LDA(prior, num_topics=2).prepare(np.array([[3, 1], [0, 4]]))
    state = state_of(model, data, [0, 0, 1, 0, 1, 1, 1, 1], torch.zeros(2, 0).double())
    h, draws = state.hyper, []
    for _ in range(420):
        h = prior.draw(h, state.document_counts, state.word_counts, generator)
        draws.append([float(h["document_concentration"]), float(h["topic_concentration"])])
    grid = torch.linspace(0.02, 10, 250, dtype=torch.float64)
    draws = torch.tensor(draws)[20:]
    for column, name in enumerate(h):
        fixed = model.prior.start(data.targets)
        at = [topics.log_joint(replace(state, hyper=fixed | {name: value}), data, model) for value in grid]
        weight = torch.stack(at).softmax(0)
        batches = draws[:, column].view(20, -1).mean(1)
        error = batches.std() / 20**0.5
        assert abs(batches.mean() - weight @ grid) < 5 * error


# -- the whole sampler -------------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("scan", ["collapsed", "blocked"])
@pytest.mark.parametrize("name", MODELS)
def test_sweeps_leave_the_exact_posterior_as_it_is(name, scan, generator):
    model, rows, y = MODELS[name]
    exact = topic_posterior(model, rows, y)
    model, data = model.prepare(rows, y)
    found = []
    for state in exact_states(model, data, exact, 300, generator):
        for step in range(2):
            state = topics.sweep(state, data, model, generator, step, scan=scan)
        found.append(tuple(state.assignments.tolist()))
    visits = np.array([found.count(labels) for labels in exact])
    expected = np.array(list(exact.values())) * len(found)
    rare = expected < 8
    visits, expected = (np.append(part[~rare], part[rare].sum()) for part in (visits, expected))
    assert stats.chisquare(visits, expected).pvalue > 1e-3


def test_the_margin_matters_to_the_exact_posterior():
    """What the test above would see if the margin were dropped: more than a tenth of the mass elsewhere."""
    for model, rows, y in MODELS.values():
        exact = topic_posterior(model, rows, y)
        plain = topic_posterior(LDA(PRIOR, num_topics=2), rows)
        assert sum(abs(exact[labels] - plain[labels]) for labels in exact) / 2 > 0.1


@pytest.mark.slow
def test_a_fit_agrees_with_enumeration():
    model, rows, y = MODELS["hinge"]
    check_kernel(Gibbs(num_samples=800, num_warmup=20), model, rows, y)


def test_lda_is_what_is_left_without_targets(generator):
    """Every target missing: the same draws of the tokens as without a margin, and weights of the prior."""
    model, data = MedLDA(PRIOR, Masked(Hinge()), num_topics=2, classes=torch.tensor([0, 1])).prepare(X, [-1, -1])
    plain, plain_data = LDA(PRIOR, num_topics=2).prepare(X)
    one, other = topics.init(model, data, generator), None
    other = replace(one, weights=one.weights[:, :0])
    streams = (torch.Generator().manual_seed(1) for _ in range(2))
    margin = observed_in(one, data, model, slice(0, 1), generator)
    first = topics.visit(one, data, tuple(part.numpy() for part in margin), next(streams))
    second = topics.draw_assignments(other, plain_data, plain, next(streams))
    assert first.assignments.tolist() == second.assignments.tolist()
    assert log_assignments(one.assignments.long(), data, model) == pytest.approx(
        float(topics.log_joint(other, plain_data, plain))
    )


def test_a_sweep_changes_no_state(generator):
    model, data, state = example(*CASES["hinge"])
    before = [part.clone() for part in (state.assignments, state.document_counts, state.word_counts)]
    topics.sweep(state, data, model, generator)
    after = [state.assignments, state.document_counts, state.word_counts]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["one-versus-rest", "crammer-singer"])
def test_a_resumed_fit_goes_on_bit_for_bit(name, tmp_path):
    loss, y = CASES[name]
    model, data, _ = example(loss, y)
    prior = DirichletTopics(0.5, 0.5, (2.0, 2.0), (2.0, 2.0))
    model = MedLDA(prior, loss, num_topics=3)
    whole = Gibbs(num_samples=6, num_warmup=2).fit(model, data.X, y)
    Gibbs(num_samples=3, num_warmup=2).fit(model, data.X, y, checkpoint=tmp_path / "chain")
    resumed = Gibbs(num_samples=6, num_warmup=2).fit(model, data.X, y, resume=tmp_path / "chain")
    assert all(torch.equal(whole.samples[name], resumed.samples[name]) for name in whole.samples)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_what_is_refused():
    with pytest.raises(ValueError, match="scan is 'slice'; for MedLDA"):
        Gibbs(scan="slice").fit(MedLDA(), X, [0, 1])
    with pytest.raises(ValueError, match=r"init has shape \(2,\); expected \[6\], a topic 0..2"):
        Gibbs(init=torch.tensor([0, 1])).fit(MedLDA(num_topics=3), X, [0, 1])


def test_topics_may_be_given(generator):
    model, data = LDA(num_topics=3).prepare(X)
    start = torch.tensor([2, 2, 0, 1, 1, 0])
    state = topics.init(model, data, generator, start=start)
    assert state.assignments.tolist() == start.tolist()
    assert state.word_counts.tolist() == [[0, 0, 2], [0, 2, 0], [2, 0, 0]]


# -- real data ---------------------------------------------------------------------------------------------------------


@pytest.mark.real_data("newsgroups20")
def test_supervised_topics_tell_two_newsgroups_apart():
    """PC hardware and Mac hardware, 400 documents, 5 topics: better than LDA and a linear SVM on its topics."""
    from sklearn.svm import LinearSVC

    news = load("newsgroups20")
    rows = np.flatnonzero(np.isin(news.y, [3, 4]))
    rows = np.random.default_rng(0).permutation(rows)[:600]
    counts = news.X[rows]
    documents = np.asarray((counts[:400] > 0).sum(0)).ravel()
    counts, y = counts[:, (documents >= 3) & (documents <= 60)].astype(np.float32), news.y[rows]
    backend = Gibbs(num_samples=5, num_warmup=40, thinning=3)
    posterior = backend.fit(MedLDA(loss=Hinge(1.0, 16.0), num_topics=5), counts[:400], y[:400])
    accuracy = (posterior.predict(counts[400:]) == y[400:]).mean()
    plain = backend.fit(LDA(num_topics=5), counts[:400])
    machine = LinearSVC(random_state=0).fit(plain.transform(counts[:400]), y[:400])
    baseline = machine.score(plain.transform(counts[400:]), y[400:])

    assert accuracy > 0.75
    assert accuracy > baseline
