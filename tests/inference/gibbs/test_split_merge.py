"""Split-merge proposals: their acceptance ratio against the log joint, their invariance, and what they are for."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from setups import label_law
from sklearn.datasets import make_blobs
from sklearn.metrics import normalized_mutual_info_score
from test_gibbs import ENUMERATED, enumeration_errors
from torch import Tensor
from torch.distributions import Bernoulli, MultivariateNormal

from regbayes.inference import Gibbs
from regbayes.inference.classifiers import scored as classifiers
from regbayes.inference.gibbs import partition
from regbayes.inference.gibbs.moves import launch, split_merge
from regbayes.inference.gibbs.partition import draw_weights
from regbayes.inference.gibbs.scans.blocked import relabel
from regbayes.inference.gibbs.scans.components import count_members
from regbayes.inference.gibbs.summary import log_joint
from regbayes.models import (
    DPM,
    CrammerSinger,
    DiagonalGaussian,
    DirichletProcess,
    EpsilonInsensitive,
    FullGaussian,
    Hinge,
    InfiniteSVM,
    Logistic,
    MixtureOfFiniteMixtures,
    MultinomialDirichlet,
    PitmanYor,
    SphericalGaussian,
    SquaredHinge,
)
from regbayes.models.priors import laws

GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn((12, 2), generator=GENERATOR, dtype=torch.float64)
COUNTS = torch.poisson(torch.full((12, 3), 4.0, dtype=torch.float64), generator=GENERATOR)
Y2, Y3 = torch.arange(12) % 2, torch.arange(12) % 3
MODELS = {
    "dpm": (DPM(FullGaussian(), truncation=5), X, None),
    "counts": (DPM(MultinomialDirichlet(), PitmanYor(0.4, 0.3), truncation=5), COUNTS, None),
    "hinge": (InfiniteSVM(DiagonalGaussian(), Hinge(2.5), truncation=5), X, Y2),
    "squared": (InfiniteSVM(SphericalGaussian(), SquaredHinge(), truncation=5, weight_scale=1.7), X, Y2),
    "logistic": (InfiniteSVM(SphericalGaussian(), Logistic(), truncation=5), X, Y2),
    "one-vs-rest": (InfiniteSVM(DiagonalGaussian(), Hinge(), truncation=5), X, Y3),
    "crammer-singer": (InfiniteSVM(DiagonalGaussian(), CrammerSinger(0.7, 2.0), truncation=5), X, Y3),
    "finite": (InfiniteSVM(DiagonalGaussian(), Hinge(2.5), MixtureOfFiniteMixtures(0.7, 1.5), truncation=5), X, Y2),
    "epsilon": (InfiniteSVM(DiagonalGaussian(), EpsilonInsensitive(), truncation=5), X, X[:, 0] * 2),
}


def log_normal(ridge, weights: Tensor) -> Tensor:
    """log density of classifiers [K, P, C] under a Ridge, by torch's own normal."""
    precision = ridge.precision_tril @ ridge.precision_tril.mT
    return MultivariateNormal(ridge.mean.mT, precision_matrix=precision).log_prob(weights.mT).sum()


@pytest.mark.parametrize(
    ("name", "truncated"), [pair for pair in itertools.product(MODELS, [False, True]) if pair != ("finite", True)]
)
def test_odds_of_a_split_are_those_of_the_log_joint(name: str, truncated: bool) -> None:
    model, inputs, y = MODELS[name]
    model = model.resolve(inputs, y)
    data, generator = model.data(inputs, y), torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0, 1])
    merged = partition.init(model, data, generator, start=labels, law=label_law(model, truncated))
    merged = replace(merged, hyper={key: 0.9 * value for key, value in merged.hyper.items()})
    rows, own, other = torch.nonzero(labels == 1).squeeze(1), 1, 3 if truncated else 2
    block = data.rows(rows)
    start = launch.launch(block, torch.tensor([4, 1]), model)
    weights = torch.cat([start.sides.draw(generator), merged.weights[own : own + 1]])
    odds = start.log_odds(block, weights, model)
    side = torch.rand(odds.shape, generator=generator, dtype=odds.dtype) < torch.sigmoid(odds)
    assert side[1]
    assert not side[4]
    split = split_merge._split(merged, rows[side], own, other, weights)
    parts = split_merge.log_evidence_ratio(merged, block, side, own, other, model, law=label_law(model, truncated))
    again = split_merge.log_evidence_ratio(split, block, side, own, other, model, law=label_law(model, truncated))
    assert parts == pytest.approx(again)
    log_odds = parts + split_merge.log_proposal_ratio(block, side, weights, start, model)

    both = [log_joint(state, data, model, law=label_law(model, truncated)) for state in (split, merged)]
    expected = both[0] - both[1]
    if truncated:
        # three labels to choose from; a merge draws the classifier of the label it frees from the prior
        scale = model.weight_scale * torch.ones(merged.weights.shape[1:], dtype=torch.float64)
        prior = torch.distributions.Normal(0.0, scale) if scale.numel() else None
        expected = expected + torch.tensor(3.0).log() + (prior.log_prob(merged.weights[other]).sum() if prior else 0)
    if weights.numel():
        expected = expected + log_normal(start.whole, weights[2:]) - log_normal(start.sides, weights[:2])
    free = torch.ones_like(side)
    free[[4, 1]] = False
    expected = expected - Bernoulli(logits=odds[free]).log_prob(side[free].double()).sum()
    assert log_odds == pytest.approx(float(expected), abs=1e-8)


class Odds:
    """What the odds of a move read, with numbers in the place of its own: the levels of its tests, its sides, and what
    the launch draws."""

    def __init__(self, name: str, truncated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        model, inputs, y = MODELS[name]
        self.model, self.truncated = model.resolve(inputs, y), truncated
        self.data, self.generator = self.model.data(inputs, y), torch.Generator().manual_seed(0)
        self.together = partition.init(
            self.model, self.data, self.generator, start=TOGETHER, law=label_law(self.model, truncated)
        )
        self.weights = torch.randn((3, *self.together.weights.shape[1:]), generator=self.generator).double()
        self.seen: list[list[object]] = []
        self.values: tuple[float, float] | None = None  # in the place of those of the odds
        self.levels = (0.0, 0.0)
        monkeypatch.setattr(split_merge, "draw_pair", lambda *_: PAIR)
        monkeypatch.setattr(split_merge, "uniforms", self.uniforms)
        monkeypatch.setattr(laws, "uniforms", self.uniforms)
        monkeypatch.setattr(
            split_merge.Ridge, "draw", lambda fit, _: self.weights[slice(0, 2) if len(fit.mean) == 2 else slice(2, 3)]
        )
        for index, part in enumerate(("log_evidence_ratio", "log_proposal_ratio")):
            monkeypatch.setattr(split_merge, part, self.spy(index, getattr(split_merge, part)))

    def spy(self, index: int, original):
        def told(*arguments, **options):
            value = original(*arguments, **options)
            self.seen.append([value, *arguments, options])
            return value if self.values is None else self.values[index]

        return told

    def uniforms(self, shape: tuple[int, ...], *_) -> Tensor:
        """Levels of the tests, then those of the sides of the points, close to their odds; the last free label."""
        if shape == (2,):
            return -torch.expm1(torch.tensor(self.levels, dtype=torch.float64))
        if not shape:
            return torch.tensor(0.99)
        block = self.data.rows(torch.nonzero(TOGETHER == 2).squeeze(1))
        odds = launch.launch(block, torch.tensor([2, 0]), self.model).log_odds(block, self.weights, self.model)
        return torch.sigmoid(odds) * torch.where(SECOND, 0.999, 1.001)

    def move(self, state):
        self.seen = []
        return split_merge.split_merge(
            state, self.data, self.model, self.generator, law=label_law(self.model, self.truncated)
        )


TOGETHER = torch.tensor([1, 2, 2, 0, 2, 2, 2, 1, 2, 2, 1, 2])
PAIR = (4, 1)
SECOND = torch.tensor([True, False, False, True, True, False, True, False])  # of the points of label 2


@pytest.mark.parametrize("name", ["dpm", "hinge", "one-vs-rest"])
@pytest.mark.parametrize("truncated", [False, True])
def test_a_merge_has_the_odds_of_the_split_that_undoes_it(name: str, truncated: bool, monkeypatch) -> None:
    """Argument by argument: block, sides, classifiers and launch."""
    odds = Odds(name, truncated, monkeypatch)
    odds.values = 1e6, 0.0
    split, label = odds.move(odds.together), 4 if truncated else 3
    assert torch.equal(split.assignments, TOGETHER.masked_scatter(TOGETHER == 2, torch.where(SECOND, label, 2)))
    assert torch.equal(split.weights[[2, label]], odds.weights[:2])
    forth, odds.values = odds.seen, (-1e6, 0.0)
    odds.weights[2:] = odds.together.weights[2]
    merged = odds.move(split)
    assert torch.equal(merged.assignments, odds.together.assignments)
    assert torch.equal(merged.weights[:4], odds.together.weights[:4])
    for one, other in zip(forth, odds.seen, strict=True):
        assert one[0] == pytest.approx(other[0], abs=1e-9)
    for one, other in zip(forth[1][1:4], odds.seen[1][1:4], strict=True):
        assert torch.equal(getattr(one, "X", one), getattr(other, "X", other))


@pytest.mark.parametrize("truncated", [False, True])
def test_a_merge_frees_any_label(truncated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    odds = Odds("hinge", truncated, monkeypatch)
    for own, other in ((0, 2), (2, 0), (1, 2)):
        state = split_merge._merge(
            odds.together, own, other, odds.weights, odds.model, odds.generator, law=label_law(odds.model, truncated)
        )
        labels = TOGETHER.masked_fill(other == TOGETHER, own)
        assert torch.equal(state.assignments, labels if truncated else labels.unique(return_inverse=True)[1])
        assert torch.equal(state.weights[state.assignments[labels == own][0]], odds.weights[2])
        left = next(label for label in range(3) if label not in (own, other))
        assert torch.equal(state.weights[state.assignments[labels == left][0]], odds.together.weights[left])


def test_all_pairs_are_as_likely() -> None:
    generator, found = torch.Generator().manual_seed(0), torch.zeros(4, 4)
    for _ in range(2400):
        found[split_merge.draw_pair(4, generator)] += 1
    expected = 200 * (1 - torch.eye(4))
    assert ((found - expected).abs() <= 5 * expected.sqrt()).all()


@pytest.mark.parametrize("split", [True, False])
def test_a_move_is_accepted_by_its_odds_in_two_tests(split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first by half of the evidence, the second by the rest of the odds; a merge by their inverses."""
    odds = Odds("hinge", False, monkeypatch)
    odds.values = 1e6, 0.0
    state = odds.together if split else odds.move(odds.together)
    sign = 1 if split else -1
    for evidence, rest, screen, test, accepted in (
        (-4.0, 3.0, -2.1, 0.0, True),
        (-4.0, 3.0, -1.9, -9.0, False),
        (-4.0, 1.0, -9.0, -0.9, False),
        (-4.0, 1.0, -9.0, -1.1, True),
        (2.0, -3.0, -0.1, -2.1, True),
        (2.0, -3.0, -0.1, -1.9, False),
    ):
        odds.values, odds.levels = (sign * evidence, sign * rest), (screen, test)
        assert (odds.move(state) is not state) == accepted, (evidence, rest, screen, test)


def test_launch_forgets_how_the_block_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A split and the merge that undoes it see the same launch: all it is given is the union's rows and the pair."""
    model, inputs, y = MODELS["hinge"]
    model = model.resolve(inputs, y)
    data, generator, seen = model.data(inputs, y), torch.Generator().manual_seed(0), []
    original = split_merge.launch

    def record(block, pair, given):
        seen.append((block.X, pair))
        return original(block, pair, given)

    monkeypatch.setattr(split_merge, "launch", record)
    monkeypatch.setattr(split_merge, "draw_pair", lambda num_data, generator: (3, 8))
    monkeypatch.setattr(split_merge, "log_evidence_ratio", lambda *a, **o: 0.0)
    for labels in (torch.zeros(12, dtype=torch.long), (torch.arange(12) > 5).long()):
        state = partition.init(model, data, generator, start=labels, law=label_law(model, False))
        split_merge.split_merge(state, data, model, generator, law=label_law(model, False))
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "truncated"),
    [
        ("sparse", False),
        ("dpm", True),
        ("dpm-pitman-yor", False),
        ("dpm-pitman-yor", True),
        ("dpm-finite", False),
        ("hinge-finite", False),
        ("factor-alone", False),
        ("dpm-concentration", False),
        ("hinge", False),
        ("hinge", True),
        ("crammer-singer", False),
    ],
)
def test_frequencies_of_split_merge_are_those_of_enumeration(name: str, truncated: bool, monkeypatch) -> None:
    """Split-merge, classifiers, labels and concentration, with no scan: it must reach all partitions on its own."""
    # few components expected, so that splits are often turned down and the rule of acceptance matters
    model, y = (
        ENUMERATED[name]
        if name in ENUMERATED
        else (DPM(SphericalGaussian(variance=1.0, prior_variance=2.0), prior=DirichletProcess(0.2)), None)
    )
    monkeypatch.setattr(launch, "NUM_ROUNDS", 1)  # a poor launch is as exact as a good one
    monkeypatch.setattr(launch, "_NUM_STEPS", 3)
    monkeypatch.setattr(classifiers, "_NUM_STEPS", 1)

    def step(state, data, model, generator):
        state = split_merge.split_merge(state, data, model, generator, law=label_law(model, truncated))
        state = replace(state, weights=draw_weights(state, data, model, generator))
        if truncated:
            return relabel(state, model.prior, generator)
        return replace(state, hyper=model.prior.draw(state.hyper, count_members(state), generator))

    num_steps = 400 if name == "crammer-singer" else 500
    assert (enumeration_errors(model, y, step, truncated=truncated, num_steps=num_steps) < 5).all()


@pytest.mark.parametrize("name", ["hinge", "logistic", "one-vs-rest", "crammer-singer", "epsilon"])
def test_fitted_gaussian_is_near_the_classifiers_posterior(name: str) -> None:
    """Importance weights of its draws keep a good part of their size; those of the prior would keep next to none.

    Classes that meet in one factor are fitted as independent, which is worse: their scores may all shift together.
    """
    model, _, y = MODELS[name]
    inputs = torch.randn((60, 2), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = inputs[:, 0] * 2 if name == "epsilon" else ((inputs[:, 0] > 0).long() + (inputs[:, 1] > 0.5) * (y.max() == 2))
    model = model.resolve(inputs, y)
    data, generator = model.data(inputs, y), torch.Generator().manual_seed(0)
    fit = launch.fit_classifiers(data, inputs.new_ones(60, 1), model, num_steps=10).weights
    draws = torch.cat([fit.draw(generator) for _ in range(500)])
    log_target = launch.log_margins(data, draws, model).sum(0) + classifiers.log_prior(draws, model.weight_scale)
    log_weights = log_target - torch.stack([log_normal(fit, one.unsqueeze(0)) for one in draws])
    share = log_weights.softmax(0)
    assert 1 / share.square().sum() > (0.02 if name == "crammer-singer" else 0.25) * len(draws)


def test_launch_tells_two_groups_apart() -> None:
    inputs = torch.cat([X - 6, X + 6])
    model = DPM().resolve(inputs)
    start = launch.launch(model.data(inputs), torch.tensor([20, 3]), model)
    log_odds = start.log_density
    assert log_odds[20] == -torch.inf
    assert log_odds[3] == torch.inf
    assert (log_odds[:12] > 5).all()
    assert (log_odds[12:] < -5).all()


def test_a_full_truncated_model_does_not_split() -> None:
    model = DPM(truncation=2).resolve(X)
    data, generator = model.data(X), torch.Generator().manual_seed(0)
    state = partition.init(model, data, generator, start=(X[:, 0] > 0).long(), law=label_law(model, True))
    assert label_law(model, True).free_label(count_members(state), generator) == -1
    for _ in range(30):
        state = split_merge.split_merge(state, data, model, generator, law=label_law(model, True))
        assert state.weights.shape[0] == 2
        assert 0 <= int(state.assignments.min()) <= int(state.assignments.max()) <= 1


@pytest.mark.parametrize("scan", ["slice", "blocked", "collapsed"])
def test_from_one_component_all_clusters_are_found(scan: str, device: torch.device) -> None:
    inputs, labels = make_blobs(1500, 32, centers=12, random_state=0)
    posterior = Gibbs(num_samples=5, num_warmup=60, scan=scan, progress=False).fit(
        DPM(truncation=30), torch.as_tensor(inputs, device=device)
    )
    assert normalized_mutual_info_score(labels, posterior.samples["assignments"][0].cpu()) > 0.95


def test_a_merge_leaves_a_classifier_of_the_prior_at_the_free_label() -> None:
    model, inputs, y = MODELS["one-vs-rest"]
    model = model.replace(weight_scale=3.0).resolve(inputs, y)
    data, generator = model.data(inputs, y), torch.Generator().manual_seed(0)
    state = partition.init(model, data, generator, start=(torch.arange(12) > 5).long(), law=label_law(model, True))
    merged = [
        split_merge._merge(state, 0, 1, state.weights, model, generator, law=label_law(model, True)) for _ in range(400)
    ]
    assert not any(each.assignments.any() for each in merged)
    assert torch.equal(merged[0].weights[0], state.weights[2])
    free = torch.stack([each.weights[1] for each in merged]).flatten() / 3.0
    assert free.mean().abs() < 5 / len(free) ** 0.5
    assert (free.square().mean() - 1).abs() < 5 * (2 / len(free)) ** 0.5


def test_moves_are_rare_after_the_warm_up() -> None:
    found = [split_merge.num_moves(2, step, 5) for step in range(25)]
    assert found == [2] * 5 + [0] * 5 + [2] + [0] * 9 + [2] + [0] * 4
