"""Stochastic steps: over an epoch what minibatches aim at is on average what all rows aim at, exactly, in every factor.

A factor moves in parameters that are affine in the sums over a batch, so that a step is right on average however small
the batch. One that reads what another factor would be for this very batch is not: it sees |B| rows fitted as if they
were N. Batches are unequal, and each counts as often as it has rows; weighted rows are drawn as often as they count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from regbayes.inference import SVI
from regbayes.inference.classifiers.minimum import slopes
from regbayes.inference.distributed.stream import Stream
from regbayes.inference.svi.features import kernel as features
from regbayes.inference.svi.label_sets import coupled as multi_label_coupled
from regbayes.inference.svi.label_sets import kernel as multi_label
from regbayes.inference.svi.partition import kernel as partition
from regbayes.inference.svi.rules import AVERAGING, NATURAL, RULES
from regbayes.inference.svi.sequence import kernel as sequence
from regbayes.inference.svi.sequence import rows as rows_of_states
from regbayes.inference.svi.steps import Minibatch, Steps
from regbayes.inference.svi.topics import kernel as topics
from regbayes.inference.svi.topics.factors import update_documents
from regbayes.inference.svi.topics.tokens import mean_topics
from regbayes.models import (
    BNMC,
    DDPM,
    DIH,
    DPM,
    IHMM,
    LDA,
    BetaBernoulli,
    DirichletProcess,
    DirichletTopics,
    HierarchicalDirichletProcess,
    IndianBuffetProcess,
    InfiniteLatentSVM,
    InfiniteSVM,
    LatentFeatureModel,
    MedLDA,
    PitmanYor,
)
from regbayes.models.likelihoods import (
    BernoulliBeta,
    Blocks,
    FullGaussian,
    LinearBernoulli,
    LinearGaussian,
    MultinomialDirichlet,
    PoissonGamma,
)
from regbayes.models.losses import CrammerSinger, EpsilonInsensitive, Hinge, Logistic, OneVsRest, SquaredHinge

pytestmark = pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
N, SIZES, RHO = 23, (7, 7, 7, 2), 0.6
Factors = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A fit in the middle: `state` has no rows, and no factor of it is at its optimum given the others."""

    step: Callable[[Any, Minibatch[Any], Any, float], Any]
    read: Callable[[Any], Factors]  # the parameters in which factors move, and the estimate of the bound
    state: Any
    data: Any
    model: Any
    some: Callable[[Any, Tensor], Any] = lambda data, index: data.rows(index)

    def after(self, data: Any, scale: float) -> Factors:
        """The factors after a step on rows that count `scale` times."""
        return self.read(self.step(self.state, Minibatch(data, scale), self.model, RHO))

    def check(self) -> None:
        """Of batches with a share |B| / N of the rows, each scaled by N / |B|, the mean is the step on all of them."""
        whole, before = self.after(self.data, 1.0), self.read(self.state)
        order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
        batches = [(len(index) / N, self.some(self.data, index)) for index in order.split(SIZES)]
        self._compare([(share, self.after(some, 1 / share)) for share, some in batches], whole)
        for name, value in whole.items():  # nor is it true for want of any step
            assert not torch.allclose(value, before[name], rtol=1e-6), f"{name} has not moved"

    def check_weighted(self) -> None:
        """The same of single rows, drawn as often as they count."""
        weights = 0.5 + torch.arange(N, dtype=torch.float64) % 3
        whole = self.after(replace(self.data, weights=weights), 1.0)
        total = float(weights.sum())
        singles = [self.data.rows(torch.tensor([n])) for n in range(N)]
        shares = (weights / total).tolist()
        self._compare([(s, self.after(row, total)) for s, row in zip(shares, singles, strict=True)], whole)

    def _compare(self, found: list[tuple[float, Factors]], whole: Factors) -> None:
        for name, value in whole.items():
            mean = torch.stack([share * each[name] for share, each in found]).sum(0)
            scale = float(value.abs().max())
            assert torch.allclose(mean, value, rtol=1e-9, atol=1e-10 * scale), name


# -- mixtures ----------------------------------------------------------------------------------------------------------


def natural(ridge: Any, name: str = "classifiers") -> Factors:
    precision, pull = ridge.natural
    return {f"precision of {name}": precision, f"pull of {name}": pull} if precision.numel() else {}


def of_partition(state: Any) -> Factors:
    return {
        "components": state.hyperparameters,
        "sticks": state.sticks,
        "q(h)": state.q,
        "bound": state.bound,
        **natural(state.classifiers),
    }


def of_labels(state: Any) -> Factors:
    """Of either kind of joint; components of the mixture have no classifiers."""
    own = {"psi": state.psi} if hasattr(state, "psi") else {"margin bound": state.margin_bound}
    mixture = {name: value for name, value in of_partition(state).items() if name.split()[-1] != "classifiers"}
    return {**mixture, **own, **natural(state.label_classifiers, "labels")}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(D: int = 3, num: int = N) -> Tensor:
    """Two groups."""
    X = torch.randn(num, D, generator=seeded(), dtype=torch.float64)
    X[: num // 2, 0] += 3
    return X


def targets(loss: Any) -> Tensor | None:
    if loss is None:
        return None
    score = rows() @ torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
    if loss.target == "real":
        return score
    return (score > 0.5).long() + (isinstance(loss, OneVsRest) & (score > 2)).long()


PARTITIONS = {
    "DPM": DPM(FullGaussian(), DirichletProcess(1.0, (2.0, 1.0))),
    "DPM of counts, Pitman-Yor": DPM(PoissonGamma(), PitmanYor(0.3, 1.0, (1.0, 2.0), (2.0, 1.0))),
    "ISVM hinge": InfiniteSVM(loss=Hinge(1.3), prior=DirichletProcess(1.0, (2.0, 1.0))),
    "ISVM classes": InfiniteSVM(loss=OneVsRest(Logistic()), prior=PitmanYor(0.3, 1.0, (1.0, 2.0))),
    "ISVM regression": InfiniteSVM(loss=EpsilonInsensitive(1.5, 0.2), prior=DirichletProcess(1.0, (2.0, 1.0))),
    "DDPM hinge": DDPM(loss=Hinge(), prior=DirichletProcess(1.0, (2.0, 1.0))),
    "DDPM logistic": DDPM(loss=Logistic(), prior=DirichletProcess(1.0, (2.0, 1.0))),
}


def case_of_partition(model: Any, y: Tensor | None, read: Callable[[Any], Factors], kernel: Steps) -> Case:
    X = rows()
    X = torch.poisson(X.abs(), generator=seeded()) if isinstance(model.likelihood, PoissonGamma) else X
    model, data = model.replace(truncation=4).prepare(X, y)
    few = data.rows(slice(5, 18))
    state = kernel.sweep(kernel.init(model, few, seeded()), few, model)
    state = replace(state, q=model.prior.initial(data.features)).without_rows()
    return Case(kernel.stochastic.sweep, read, state, data, model)


def partition_case(name: str) -> Case:
    model = PARTITIONS[name]
    y = targets(getattr(model, "loss", None)) if isinstance(model, InfiniteSVM) else None
    return case_of_partition(model, y, of_partition, partition.STEPS)


def test_of_a_partition_whose_losses_have_weights() -> None:
    case = partition_case("ISVM classes")
    weighed = replace(case.data, loss_weights=torch.arange(N, dtype=torch.float64) % 4)
    replace(case, data=weighed).check()


@pytest.mark.parametrize("name", PARTITIONS)
def test_of_a_partition(name: str) -> None:
    case = partition_case(name)
    if isinstance(case.model.prior, PitmanYor):  # its q(h) is a grid, whose points stay
        case = replace(case, read=lambda state: of_partition(state) | {"q(h)": state.q[-1]})
    case.check()
    case.check_weighted()


LEARNED = DirichletProcess(1.0, (2.0, 1.0))
JOINTS = {
    "product": BNMC(loss=Hinge(), prior=LEARNED),
    "product of counts": BNMC(label_likelihood=MultinomialDirichlet(1.2), prior=LEARNED),
    "and": BNMC(label_likelihood=BernoulliBeta(1.0, 1.5), joint="and", prior=LEARNED),
    "multinomial": BNMC(label_likelihood=MultinomialDirichlet(1.2), joint="multinomial", prior=LEARNED),
}


def label_case(name: str) -> Case:
    model = JOINTS[name]
    Y = torch.poisson(0.4 * rows(4).abs(), generator=seeded())
    Y = Y if isinstance(model.label_likelihood, MultinomialDirichlet) else (Y > 0).double()
    Y[3] = torch.nan
    if not isinstance(model.label_likelihood, MultinomialDirichlet):
        Y[5, 1], Y[20, :2] = torch.nan, torch.nan
    kernel = multi_label_coupled.STEPS if model.joint != "product" else multi_label.STEPS
    return case_of_partition(model, Y, of_labels, kernel)


@pytest.mark.parametrize("name", JOINTS)
def test_of_label_sets(name: str) -> None:
    case = label_case(name)
    case.check()
    case.check_weighted()


# -- sequences ---------------------------------------------------------------------------------------------------------

STATES = [IHMM(), DIH(loss=Hinge()), DIH(loss=Logistic())]


def of_sequence(state: Any) -> Factors:
    """What moves: of rows, sticks and concentrations the expected transitions, from which they follow."""
    pair = {"components": state.hyperparameters, "transitions": state.transitions, "bound": state.bound}
    return {**pair, **natural(state.classifiers)}


@pytest.mark.parametrize("model", STATES, ids=lambda model: f"{type(model).__name__}{getattr(model, 'loss', '')}")
def test_of_sequences(model: Any) -> None:
    """Sequences take the place of rows; some steps are missing."""
    lengths = [3 + n % 4 for n in range(N)]
    X = rows(2, sum(lengths))
    X[10:12], X[40] = torch.nan, torch.nan
    prior = HierarchicalDirichletProcess(1.0, (2.0, 1.0), 1.0, (3.0, 2.0))
    model, data = model.replace(prior=prior, truncation=4).prepare(X, None, lengths)
    few = data.sequences(list(range(5, 18)))
    state = sequence.sweep(sequence.init(model, few, seeded()), few, model).without_rows()
    step = sequence.stochastic_sweep
    case = Case(step, of_sequence, state, data, model, lambda data, index: data.sequences(index.tolist()))
    case.check()
    # all else of the hierarchy is a function of the expected transitions and of where it starts
    whole = step(state, Minibatch(data, 1.0), model, RHO)
    follows = rows_of_states.update_rows(replace(state, transitions=whole.transitions), model.prior)
    for name in ("rows", "sticks", "concentration", "top_concentration"):
        torch.testing.assert_close(getattr(whole, name), getattr(follows, name))


# -- latent features ---------------------------------------------------------------------------------------------------


def of_features(state: Any) -> Factors:
    """Natural parameters of each column, and of q(eta) where it has a spread."""
    precision = (state.loading_tril @ state.loading_tril.mT)[state.kind]
    moves = {
        "precision of loadings": precision,
        "pull of loadings": (precision @ state.loadings.T.unsqueeze(2)).squeeze(2),
        "q of precisions": state.precisions,
        "a": state.a,
        "b": state.b,
        "q(h)": state.concentration,
        "bound": state.bound,
    }
    if not state.weights.numel():
        return moves
    if not len(state.weights_tril):
        return moves | {"classifiers": state.weights}
    gram = state.weights_tril @ state.weights_tril.mT
    return moves | {"precision of classifiers": gram, "pull of classifiers": gram @ state.weights.T.unsqueeze(2)}


LIKELIHOODS = {
    "gaussian": LinearGaussian(),
    "binary": LinearBernoulli(),
    "blocks": Blocks([(LinearGaussian(), 1), (LinearBernoulli(), 1), (LinearGaussian(), 2)]),
}
LABELS = [("gibbs", Hinge(0.8)), ("averaging", SquaredHinge(0.8)), ("averaging", CrammerSinger()), ("gibbs", None)]


def feature_case(likelihood: str, rule_name: str, loss: Any, missing: bool) -> Case:
    X = rows(4)
    X = (X > 0).double() if likelihood == "binary" else X
    if likelihood == "blocks":
        X[:, 1] = (X[:, 1] > 0).double()
    y = (rows()[:, 0] > 1).double()
    if missing:
        X[1, 0], X[4, 3], X[20, 1], y[7] = torch.nan, torch.nan, torch.nan, torch.nan
    prior = (BetaBernoulli if missing else IndianBuffetProcess)(1.5, (2.0, 1.0))
    parts = {"likelihood": LIKELIHOODS[likelihood], "prior": prior, "truncation": 3}
    model: Any = (
        LatentFeatureModel(**parts) if loss is None else InfiniteLatentSVM(feature_map=None, **parts, loss=loss)
    )
    model, data = model.prepare(X, y) if loss is not None else model.prepare(X)
    rule, few = RULES[rule_name], data.rows(slice(5, 18))
    state = features.init(model, few, seeded(), rule=rule)
    shift = {"concentration": 2 * state.concentration, "precisions": 1.5 * state.precisions}
    state = replace(features.sweep(state, few, model, rule=rule), **shift).without_rows()
    return Case(partial(features.stochastic_sweep, rule=rule), of_features, state, data, model)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("missing", [False, True], ids=["whole", "missing"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize(("rule_name", "loss"), LABELS, ids=str)
def test_of_latent_features(rule_name: str, loss: Any, likelihood: str, missing: bool, monkeypatch) -> None:
    # rows of a batch stop together, once all have settled; those of a joint hinge on the margin, where rounding decides
    # which of its slopes counts, so that they stay where they start
    monkeypatch.setattr(features, "_NUM_LOCAL", int(not isinstance(loss, CrammerSinger)))
    case = feature_case(likelihood, rule_name, loss, missing)
    case.check()
    case.check_weighted()


# -- topics ------------------------------------------------------------------------------------------------------------


def of_topics(state: Any) -> Factors:
    gram = state.precision_tril @ state.precision_tril.mT
    found = {"topics": state.word_counts, "bound": state.bound}
    if not state.mean.numel():
        return found
    return found | {"precision of classifiers": gram, "pull of classifiers": gram @ state.mean.T.unsqueeze(2)}


def topic_case(loss: Any, augmented: bool) -> Case:
    law = np.random.default_rng(0)
    X = torch.as_tensor(law.poisson(law.gamma(0.5, size=(N, 6))), dtype=torch.float64)
    X[0] = 0
    options: dict[str, Any] = {"num_topics": 3, "prior": DirichletTopics(0.4, 0.3)}
    model: Any = LDA(**options) if loss is None else MedLDA(loss=loss, weight_scale=1.5, **options)
    y = X @ torch.linspace(-1, 1, 6).double()
    y = y if loss is not None and loss.target == "real" else torch.bucketize(y, torch.tensor([-1.0, 1.0]).double())
    model, data = model.prepare(X) if loss is None else model.prepare(X, y)
    few = data.rows(torch.arange(5, 18))
    rule = NATURAL if augmented else AVERAGING
    state = topics.without_rows(topics.sweep(topics.init(model, few, seeded()), few, model, rule=rule))
    step = partial(topics.stochastic_sweep, rule=rule)
    return Case(step, of_topics, state, data, model)


@pytest.mark.parametrize(
    "loss", [Hinge(1.5), Logistic(), EpsilonInsensitive(1.5, 0.1)], ids=lambda loss: type(loss).__name__
)
def test_of_topics_with_a_gibbs_classifier(loss: Any) -> None:
    topic_case(loss, augmented=True).check()


@pytest.mark.parametrize("loss", [None, Hinge(1.5), CrammerSinger(1.5), SquaredHinge()], ids=str)
def test_of_averaged_topics(loss: Any) -> None:
    case = topic_case(loss, augmented=False)
    replace(case, read=lambda state: {"topics": state.word_counts, "bound": state.bound}).check()


@pytest.mark.parametrize("loss", [Logistic(), SquaredHinge(1.5)], ids=lambda loss: type(loss).__name__)
def test_averaged_classifiers_of_topics_take_steps_that_are_right_as_they_shrink(loss: Any) -> None:
    """They read their own new scores, so as not to overshoot: their mean over an epoch is mu + rho times the natural
    gradient nu^2 sum_n a_n t_n - mu at the scores before, but for rho^2."""
    case, rho = topic_case(loss, augmented=False), 1e-8
    order = torch.randperm(N, generator=seeded(1))
    moves = torch.zeros_like(case.state.mean)
    for index in order.split(SIZES):
        batch = Minibatch(case.data.rows(index), N / len(index))
        moves += len(index) / N * (case.step(case.state, batch, case.model, rho).mean - case.state.mean) / rho
    local = update_documents(*topics.started(case.state, case.data, case.model))
    shares = mean_topics(local.counts, case.data.X)
    tilts = slopes(case.model.loss, shares @ case.state.mean, case.data.targets)
    target = case.model.weight_scale**2 * shares.T @ tilts
    assert (target - case.state.mean).abs().max() > 0.1
    torch.testing.assert_close(moves, target - case.state.mean, rtol=1e-4, atol=1e-4)


# -- streams -----------------------------------------------------------------------------------------------------------


def streams() -> dict[str, tuple[Any, tuple[Tensor, ...]]]:
    """Models with what the batches of a loader are made of."""
    X, Y = rows(), (rows(4) > 0).double()
    return {
        "partition": (InfiniteSVM(truncation=3), (X, (X[:, 0] > 1).long())),
        "label sets": (BNMC(truncation=3), (X, Y)),
        "coupled label sets": (BNMC(truncation=3, joint="and"), (X, Y)),
        "features": (LatentFeatureModel(truncation=3), (X,)),
        "topics": (LDA(num_topics=3), (X.abs().ceil(),)),
    }


def main_factor(state: Any) -> Tensor:
    """One that moves in parameters of its own."""
    return next(getattr(state, name) for name in ("hyperparameters", "word_counts", "b") if hasattr(state, name))


@pytest.mark.parametrize("name", streams())
def test_a_small_last_batch_of_a_stream_weighs_as_much_as_its_rows(name: str, monkeypatch) -> None:
    """Steps from one state over the batches of a pass add up to one with all rows, as often as there are such batches.

    A batch of 2 rows that took a step as long as those of 7 rows would make each of its rows count 3.5 times.
    """
    monkeypatch.setattr(features, "_NUM_LOCAL", 1)
    model, parts = streams()[name]
    backend = SVI(delay=2.0)

    def prepared(size: int) -> tuple[Any, Any, Any]:
        loader = DataLoader(TensorDataset(*parts), batch_size=size, generator=seeded())
        return backend.prepare(model, loader, None, None)[:3]

    kernel, resolved, data = prepared(7)
    assert isinstance(data, Stream)
    assert data.largest == 7
    start = kernel.init(resolved, data, seeded())
    before = main_factor(start)
    # step t has size (t + 1 + 2 + N / 7)^-0.7: in batches of 7 the first rows make N / 7 of them
    sizes = [(step + 3.0 + N / 7) ** -0.7 for step in range(len(SIZES))]
    swept = [kernel.sweep(start, data, resolved, seeded(), step) for step in range(len(SIZES))]
    moves = [(main_factor(state) - before) / size for state, size in zip(swept, sizes, strict=True)]
    whole, _, everything = prepared(N)
    together = main_factor(whole.sweep(start, everything, resolved, seeded(), 0)) - before
    # one batch: (0 + 1 + 2 + 1)^-0.7
    torch.testing.assert_close(sum(moves), N / 7 / 4.0**-0.7 * together, rtol=1e-9, atol=1e-9)
