"""Topic models with few tokens: exact states of (z, eta), z by enumeration."""

from __future__ import annotations

import numpy as np
import torch
from setups import Softmax

from regbayes.inference.gibbs.topics import TopicState
from regbayes.models import (
    CrammerSinger,
    DirichletTopics,
    EpsilonInsensitive,
    Hinge,
    Loss,
    MedLDA,
    OneVsRest,
)
from regbayes.testing.topics import margin_table


class Quartic(Loss):
    """No scale mixture that anyone knows: `log_factor` alone."""

    def log_factor(self, score, y):
        return -torch.relu(1.5 - y * score).pow(4)


PRIOR = DirichletTopics(0.8, 0.6)
X = np.array([[2, 0, 1], [0, 2, 1]])
THREE = np.array([[2, 0, 0], [0, 2, 0], [0, 0, 2]])
MODELS = {
    "hinge": (MedLDA(PRIOR, Hinge(1.5), 3.0, num_topics=2), X, [0, 1]),
    "epsilon": (MedLDA(PRIOR, EpsilonInsensitive(2.0, 0.1), 2.0, num_topics=2), X, [1.3, -0.8]),
    "one-versus-rest": (MedLDA(PRIOR, OneVsRest(Hinge(1.5)), 3.0, num_topics=2), X, [0, 1]),
    "crammer-singer": (MedLDA(PRIOR, CrammerSinger(1.5, 1.5), 3.0, num_topics=2), THREE, [0, 1, 2]),
    "quartic": (MedLDA(PRIOR, Quartic(), 3.0, num_topics=2), X, [0, 1]),
    "softmax": (MedLDA(PRIOR, Softmax(), 3.0, num_topics=2), THREE, [0, 1, 2]),
}


def state_of(model, data, assignments, weights) -> TopicState:
    z, K = torch.as_tensor(assignments), model.num_topics
    counts = (data.document_counts(z, K).int(), data.word_counts(z, K).int())
    return TopicState(z.int(), *counts, weights, model.prior.start(data.targets))


def exact_states(model, data, exact, num, generator):
    """States (z, eta) of the exact posterior: z by enumeration, eta among many points of its prior by their factors."""
    labels, known = list(exact), {}
    for index in torch.multinomial(torch.tensor(list(exact.values())), num, True, generator=generator).tolist():
        z = torch.tensor(labels[index])
        features, num_scores = data.mean_topics(data.document_counts(z, model.num_topics)), data.targets.shape[1]
        case = tuple(features.flatten().tolist())
        if case not in known:
            groups = [slice(0, num_scores)] if model.loss.meets else [slice(c, c + 1) for c in range(num_scores)]
            known[case] = [margin_table(features, data.targets[:, group], model) for group in groups]
        chosen = [eta[torch.multinomial(table.softmax(0), 1, generator=generator)[0]] for eta, table in known[case]]
        yield state_of(model, data, z, torch.cat(chosen, 1))
