"""Gibbs of topics among two ranks with documents each: exact starts, and what both ranks have in common."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exact_topics import MODELS, exact_states
from setups import by_day
from test_exact_ranks import moved, p_value
from test_ranks import FIRST, WORDS, Y, refusal
from test_reductions import GOAL, counted
from two_ranks import on_threads, split

from regbayes.inference import Gibbs
from regbayes.inference.gibbs import topics
from regbayes.models import LDA, CrammerSinger, DirichletTopics, MedLDA
from regbayes.models.priors.topics import mean_proportions
from regbayes.models.sums import among
from regbayes.testing import topic_posterior

LEARNT = DirichletTopics(0.3, 0.2, (2.0, 2.0), (2.0, 2.0))
FITS = {
    "LDA": (LDA(LEARNT, num_topics=4), None),
    "MedLDA": (MedLDA(LEARNT, num_topics=4), Y),
    "a maximum": (MedLDA(loss=CrammerSinger(), num_topics=4), Y),
}


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "number"), [("hinge", 800), ("quartic", 300)])
def test_topics_of_two_ranks_keep_the_posterior(name, number) -> None:
    """The first rank has one document; weights are drawn, or move by slice steps."""
    model, rows, y = MODELS[name]
    exact = topic_posterior(model, rows, y)
    model, data = model.prepare(rows, y)
    states = list(exact_states(model, data, exact, by_day(number), torch.Generator().manual_seed(5)))
    tokens = int(data.lengths[0])
    parts = [data.rows(slice(0, 1)), data.rows(slice(1, None))]
    own = [
        [
            replace(
                each,
                assignments=split(each.assignments, rank, tokens),
                document_counts=split(each.document_counts, rank, 1),
            )
            for each in states
        ]
        for rank in range(2)
    ]
    found = moved(Gibbs.module_of(model).kernel(Gibbs(scan="blocked"), model), model, parts, own, 2)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.word_counts, other.word_counts)
        assert torch.equal(one.weights, other.weights)
    pairs = zip(*found, strict=True)
    assert p_value(exact, [tuple(torch.cat([a.assignments, b.assignments]).tolist()) for a, b in pairs]) > 1e-4


def fit(group, rank, name, **options):
    """The posterior of a rank, and of all."""
    model, y = FITS[name]
    posterior = Gibbs(5, 4, num_generative=2, **options).fit(
        model, split(WORDS, rank, FIRST), split(y, rank, FIRST), group=group
    )
    return posterior, posterior.gather(group)


@pytest.mark.parametrize("name", FITS)
def test_ranks_have_the_topics_of_all_documents(two_ranks, name) -> None:
    """Global draws agree; topics are those of the tokens of both, and the log joint is that of one process."""
    (first, whole), (second, other) = two_ranks(fit, name)
    assert torch.equal(first.trace.values, second.trace.values)
    for key in first.samples.keys() - {"assignments"}:
        assert torch.equal(first.samples[key], second.samples[key]), key
    assert torch.equal(whole.samples["assignments"], other.samples["assignments"])
    model, data = FITS[name][0].prepare(WORDS, FITS[name][1])
    assert whole.samples["assignments"].shape == (5, len(data.words))
    for draw, value in zip(whole.draws(), first.trace.values[0, -5:], strict=True):
        z = draw["assignments"].long()
        documents, words = data.document_counts(z, 4).int(), data.word_counts(z, 4).int()
        expected = mean_proportions(words.T.double(), float(draw["topic_concentration"]))
        torch.testing.assert_close(draw["topics"], expected)
        hyper = {key: draw[key] for key in ("document_concentration", "topic_concentration")}
        state = topics.TopicState(z.int(), documents, words, draw["weights"], hyper)
        torch.testing.assert_close(value, topics.log_joint(state, data, model), rtol=1e-10, atol=0.0)


def test_a_sweep_that_draws_concentrations_has_few_reductions(two_ranks) -> None:
    first, second = two_ranks(counted, "MedLDA", work=fit)
    assert first == second
    assert 0 < min(first) <= max(first) <= GOAL


@pytest.mark.parametrize("known", [True, False])
def test_concentrations_see_the_documents_of_all_ranks(known) -> None:
    model, data = LDA(LEARNT, num_topics=3).prepare(WORDS)
    z = torch.randint(3, (len(data.words),), generator=torch.Generator().manual_seed(1))
    documents, words = data.document_counts(z, 3).int(), data.word_counts(z, 3).int()
    most = int(data.lengths.max()) if known else None

    def task(rank, ranks):
        with among(ranks):
            generator = torch.Generator().manual_seed(2)
            return model.prior.draw(model.prior.start(WORDS), split(documents, rank, 7), words, generator, most)

    whole = model.prior.draw(model.prior.start(WORDS), documents, words, torch.Generator().manual_seed(2))
    first, second = on_threads(task)
    for name, value in whole.items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], value, rtol=1e-9, atol=0.0)


def test_the_scan_of_single_tokens_names_the_other_one(two_ranks) -> None:
    for backend, mend in ((Gibbs(scan="collapsed"), "take scan='blocked'"), (Gibbs(init=Y), "leave init out")):
        for said in two_ranks(refusal, backend, LDA()):
            assert f"Gibbs of LDA does not run on several ranks yet; {mend}." in said
