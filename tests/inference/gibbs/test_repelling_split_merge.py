"""Split-merge where components repel: the terms of its odds, exact starts, and what it is for."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from exact_starts import PartitionStarts
from setups import label_law
from torch import Tensor
from torch.distributions import Bernoulli, MultivariateNormal

from regbayes.inference import Gibbs
from regbayes.inference.gibbs import hyperplanes, partition
from regbayes.inference.gibbs.moves import block_hyperplanes, repelling_split_merge
from regbayes.inference.gibbs.moves.block_hyperplanes import BlockHyperplanes, exchange, fit_blocks, log_unnormalized
from regbayes.inference.gibbs.moves.labelled import LabelledPartitions
from regbayes.inference.gibbs.moves.repelling_split_merge import Union, split_merge_repelling
from regbayes.inference.gibbs.summary import log_joint
from regbayes.models import (
    DDPM,
    DirichletProcess,
    Hinge,
    Logistic,
    MixtureOfFiniteMixtures,
    MultinomialDirichlet,
    PitmanYor,
    PrincipalDirections,
    SphericalGaussian,
    SquaredHinge,
)
from regbayes.models.priors.sticks import log_labelled_prior
from regbayes.testing.enumeration import log_classifier_integrals

GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn((12, 2), generator=GENERATOR, dtype=torch.float64)
LABELS = torch.tensor([0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0, 1])
TINY = torch.tensor([[-1.2], [-0.9], [0.7], [1.4]], dtype=torch.float64)
FAMILY = SphericalGaussian(loc=0.0, variance=0.7, prior_variance=1.0)
LOSSES = {"hinge": Hinge(0.3), "logistic": Logistic()}


def tiny(loss: str, **options) -> DDPM:
    defaults = {"likelihood": FAMILY, "loss": LOSSES[loss], "prior": DirichletProcess(3.0), "weight_scale": 2.0}
    return DDPM(**(defaults | {"truncation": 3, "feature_map": PrincipalDirections(intercept=0.0)} | options))


def start(model: DDPM, inputs: Tensor, labels: Tensor | str, *, truncated: bool):
    generator = torch.Generator().manual_seed(0)
    model = model.resolve(inputs)
    data = model.data(inputs)
    state = partition.init(model, data, generator, start=labels, law=label_law(model, truncated))
    weights = torch.randn(state.weights.shape, generator=generator, dtype=state.weights.dtype)
    return replace(state, weights=weights), data, model, generator


# -- the terms of the odds ---------------------------------------------------------------------------------------------

PRIORS = {"Dirichlet": DirichletProcess(0.7), "Pitman-Yor": PitmanYor(0.4, 0.3)}


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("truncated", [False, True])
def test_terms_of_a_division_are_those_of_the_log_joint(truncated: bool, loss, prior) -> None:
    """The infinite model's log joint is relative to hyperplanes without points, and its places are all alike."""
    model = DDPM(SphericalGaussian(), loss, prior, weight_scale=1.7, truncation=5)
    state, data, model, generator = start(model, X, LABELS, truncated=truncated)
    target = LabelledPartitions(state, data, label_law(model, truncated))
    joined = target.open()
    union = Union(joined, target, model, torch.tensor([4, 1]), with_margin=True)
    assert union.own == union.other == 1
    side = torch.rand(8, generator=generator) < 0.5
    free = joined.free()
    division = union.weigh(joined, side, free, 0.0)
    planes = torch.randn((3, 3, 1), generator=generator, dtype=torch.float64)  # of the sides, and of B
    log_planes = log_unnormalized(planes.mT, division.blocks.members[:, 1:], data, model).squeeze(1)
    nowhere = division.blocks.members[:, :1]
    joined = replace(joined, planes=joined.planes.index_copy(0, torch.tensor([1]), planes[2:]))
    for a, place in enumerate(free.tolist()):
        divided = target.divide(joined, union.steps[side], 1, place, 0.0)
        moved = divided.planes.index_copy(0, torch.tensor([1, place]), planes[:2])
        both = [target.close(at) for at in (replace(divided, planes=moved), joined)]
        expected = log_joint(both[0], data, model, law=label_law(model, truncated))
        expected = expected - log_joint(both[1], data, model, law=label_law(model, truncated))
        left = log_unnormalized(joined.planes[place].mT.unsqueeze(0), nowhere, data, model).sum()
        found = division.log_places[a] + log_planes[0] + log_planes[1] - log_planes[2] - left
        if not truncated:  # a choice among A, and each hyperplane relative to the law of one without points
            whole = log_unnormalized(planes.mT, nowhere.expand(-1, 3), data, model).squeeze(1)
            found = found + math.log(len(free)) - whole[0] - whole[1] + whole[2] + left
        assert float(found) == pytest.approx(float(expected), abs=1e-8)


def log_normals(blocks: BlockHyperplanes, planes: Tensor) -> Tensor:
    """log q(eta_k | S_k) [K] of planes [K, P, 1], by torch's own normal."""
    tril = blocks.fit.gaussian[1]
    law = MultivariateNormal(blocks.fit.gaussian[0], precision_matrix=tril @ tril.mT)
    return law.log_prob(planes.squeeze(-1))


def log_target(at, target, data, model, *, truncated: bool) -> Tensor:
    """log density of labelled places with all their hyperplanes, from the log joint of the state."""
    if truncated:
        return log_joint(target.close(at), data, model, law=label_law(model, True))
    nobody = torch.zeros(len(data.features), len(at.planes))  # the log joint is relative to these
    reserved = log_unnormalized(at.planes.mT, nobody, data, model).sum()
    return (
        log_joint(target.close(at), data, model, law=label_law(model, False))
        + reserved
        + math.lgamma(len(at.free()) + 1)
    )


@pytest.fixture
def one_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """One candidate leaves no auxiliary variables."""
    monkeypatch.setattr(block_hyperplanes, "_NUM_CANDIDATES", 1)


@pytest.mark.parametrize("with_margin", [False, True])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("truncated", [False, True])
def test_odds_of_a_split_are_those_of_target_and_proposals(truncated: bool, loss, with_margin, one_candidate) -> None:
    model = DDPM(SphericalGaussian(), loss, weight_scale=1.7, truncation=5)
    state, data, model, generator = start(model, X, LABELS, truncated=truncated)
    target = LabelledPartitions(state, data, label_law(model, truncated))
    joined = target.open()
    union, free = Union(joined, target, model, torch.tensor([4, 1]), with_margin=with_margin), joined.free()
    log_odds = union.launch()
    side = union.sides.draw(log_odds, generator)
    division = union.weigh(joined, side, free, 0.0)
    blocks, present = division.blocks[[3, 1, 2]], joined.planes[1:2]
    planes, log_gain = exchange(blocks, present, data, model, generator)
    log_ratio, places = union.log_ratio(division, joined.planes[free], log_gain, log_odds)
    before = log_target(joined, target, data, model, truncated=truncated)
    loose = torch.isfinite(log_odds)
    assert (~loose).sum() == 2
    log_sides = Bernoulli(logits=log_odds[loose]).log_prob(side[loose].double()).sum()
    forth, back = log_normals(blocks[[1, 2]], planes).sum() + log_sides, log_normals(blocks[[0]], present).sum()
    for a, place in enumerate(free.tolist()[:4]):
        divided = target.divide(joined, union.steps[side], 1, place, 0.0)
        divided = replace(divided, planes=divided.planes.index_copy(0, torch.tensor([1, place]), planes))
        expected = log_target(divided, target, data, model, truncated=truncated) - before
        freed = log_normals(division.blocks[[0]], joined.planes[place : place + 1]).sum()
        expected = expected + back + freed - forth - places.log_softmax(0)[a]
        assert float(log_ratio) == pytest.approx(float(expected), abs=1e-7)


@pytest.mark.parametrize("truncated", [False, True])
def test_odds_of_a_redivision_are_those_of_target_and_proposals(truncated: bool, one_candidate) -> None:
    model = DDPM(SphericalGaussian(), Hinge(), weight_scale=1.7, truncation=5)
    state, data, model, generator = start(model, X, LABELS, truncated=truncated)
    target = LabelledPartitions(state, data, label_law(model, truncated))
    at = target.open()
    union = Union(at, target, model, torch.tensor([0, 1]), with_margin=True)
    log_odds, now = union.launch(), LABELS == 1
    side = now.clone()
    side[[4, 7, 10]] ^= True
    blocks, present = union.fit(~now, now, ~side, side), at.planes[:2]
    planes, log_gain = exchange(blocks, present, data, model, generator)
    moved = replace(at, labels=side.long(), planes=torch.cat([planes, at.planes[2:]]))
    expected = log_target(moved, target, data, model, truncated=truncated)
    expected = expected - log_target(at, target, data, model, truncated=truncated)
    loose = Bernoulli(logits=log_odds[2:])
    expected = expected + loose.log_prob(now[2:].double()).sum() - loose.log_prob(side[2:].double()).sum()
    expected = expected + log_normals(blocks[[0, 1]], present).sum() - log_normals(blocks[[2, 3]], planes).sum()
    assert float(union.log_renewal(at, moved, log_odds)) + log_gain == pytest.approx(float(expected), abs=1e-7)


def test_a_merge_leaves_a_hyperplane_that_rejects_all_points_at_the_place_it_frees(monkeypatch) -> None:
    """As drawn from q, and the other one as if chosen for all points."""
    model = DDPM(SphericalGaussian(), Hinge(), weight_scale=1.7, truncation=2)
    state, data, model, generator = start(model, X, LABELS, truncated=True)
    target = LabelledPartitions(state, data, label_law(model, True))
    at, weigh = target.open(), Union.weigh
    monkeypatch.setattr(Union, "weigh", lambda *arguments: replace(weigh(*arguments), log_screen=-1e9))
    monkeypatch.setattr(Union, "log_ratio", lambda *arguments: (-1e10, None))
    union = Union(at, target, model, torch.tensor([0, 1]), with_margin=False)
    merged = [repelling_split_merge._merge(at, union, generator) for _ in range(60)]
    assert not any(each.labels.any() for each in merged)
    nobody = union.fit(LABELS > 1)
    mean, tril = (value[0] for value in nobody.fit.gaussian)
    noise = torch.stack([(each.planes[1] - mean.unsqueeze(1)).squeeze(-1) for each in merged]) @ tril
    assert noise.mean().abs() < 5 / noise.numel() ** 0.5
    assert (noise.square().mean() - 1).abs() < 5 * (2 / noise.numel()) ** 0.5
    scores = torch.stack([data.features @ each.planes[0] for each in merged]).mean(0)
    assert (scores > 0).all()


@pytest.mark.parametrize("loss", [*LOSSES.values(), SquaredHinge(0.4)], ids=repr)
def test_candidates_weigh_what_quadrature_says(loss) -> None:
    """w(S) is an unbiased estimate of g(S), and the bound of the fit is just below log g(S)."""
    model = tiny("hinge").replace(loss=loss).resolve(TINY)
    data, generator = model.data(TINY), torch.Generator().manual_seed(0)
    members = torch.tensor([[0, 1, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 1, 1]])
    blocks = fit_blocks(members.bool(), data, model).refined(data, model)
    exact = log_classifier_integrals(data, model, members.T.double())
    ratios = (blocks.log_ratio(blocks.draw(2000, generator), data, model) - exact.unsqueeze(1)).exp()
    assert ((ratios.mean(1) - 1).abs() < 5 * ratios.std(1) / 2000**0.5).all()
    assert (ratios.std(1) / 2000**0.5 < 0.05).all()
    assert (blocks.fit.bound <= exact + 1e-3).all()
    assert (blocks.fit.bound > exact - 0.3).all()
    alone = fit_blocks(members[:, 1:2].bool(), data, model).refined(data, model)
    torch.testing.assert_close(alone.fit.gaussian[0], blocks.fit.gaussian[0][1:2])  # whatever else is fitted with it


def test_an_exchange_chooses_by_weight_and_keeps_the_hyperplanes_it_leaves_among_the_candidates(monkeypatch) -> None:
    model = tiny("hinge").resolve(TINY)
    data, generator = model.data(TINY), torch.Generator().manual_seed(0)
    members = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 1, 0], [1, 0, 1]]).bool()
    blocks, present = fit_blocks(members, data, model), torch.tensor([[[0.3]]], dtype=torch.float64)
    drawn = 4 * torch.randn((3, 8, 1), generator=generator, dtype=torch.float64)  # far from what fits
    monkeypatch.setattr(block_hyperplanes.BlockHyperplanes, "draw", lambda *arguments: drawn.clone())
    expected = drawn.clone()
    expected[0, 0] = 0.3
    weights = blocks.log_ratio(expected, data, model).exp()
    w, share = weights.mean(1), weights / weights.sum(1, keepdim=True)
    visits = torch.zeros(2, 8, dtype=torch.float64)
    for _ in range(400):
        planes, log_gain = exchange(blocks, present, data, model, generator)
        assert log_gain == pytest.approx(float((w[1] * w[2] / w[0]).log()))
        visits += (planes.squeeze(-1) == drawn[1:].squeeze(-1)).double()
    assert (visits.sum(1) == 400).all()
    assert ((visits / 400 - share[1:]).abs() < 5 * (share[1:] / 400).sqrt()).all()


class Spied:
    """A move with its odds replaced: what it exchanged, and whether it was accepted."""

    def __init__(self, move: str, log_odds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.labels = torch.zeros(12, dtype=torch.long) if move == "split" else LABELS
        state, data, model, generator = start(DDPM(SphericalGaussian()), X, self.labels, truncated=False)
        target, weigh = LabelledPartitions(state, data, label_law(model, False)), Union.weigh
        screen = -1e5 if move == "merge" else 1e5  # lets it pass
        self.at = target.open()
        monkeypatch.setattr(Union, "weigh", lambda *arguments: replace(weigh(*arguments), log_screen=screen))
        monkeypatch.setattr(Union, "log_ratio", lambda union, division, planes, log_gain, _: self.see(log_gain, planes))
        monkeypatch.setattr(Union, "log_renewal", lambda *arguments: torch.tensor(1e5))
        monkeypatch.setattr(repelling_split_merge, "exchange", self.exchange)
        self.log_odds = log_odds
        union = Union(self.at, target, model, torch.tensor([0, 1]), with_margin=False)
        self.moved = getattr(repelling_split_merge, "_" + move)(self.at, union, generator)

    def see(self, log_gain: float, planes: Tensor) -> tuple[float, Tensor]:
        self.log_gain = log_gain
        return self.log_odds, torch.zeros(len(planes))

    def exchange(self, blocks: BlockHyperplanes, present: Tensor, *_) -> tuple[Tensor, float]:
        self.members, self.present = blocks.members.long().T, present
        num_new = len(self.members) - len(present)
        return torch.full((num_new, 3, 1), 9.0, dtype=torch.float64), self.log_odds


@pytest.mark.parametrize("move", ["split", "merge", "redivide"])
def test_a_move_exchanges_the_blocks_that_there_are_for_others(move: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hyperplanes stay with their blocks, and a merge has the inverse odds of a split."""
    seen = Spied(move, 0.7, monkeypatch)
    num_present = len(seen.present)
    assert torch.equal(seen.present, seen.at.planes[:num_present])
    assert all(torch.equal(seen.members[k], (seen.labels == k).long()) for k in range(num_present))
    assert (seen.members[num_present:].sum(0) == 1).all()
    if move != "redivide":
        assert seen.log_gain == (-0.7 if move == "merge" else 0.7)


@pytest.mark.parametrize("log_odds", [-1e9, 1e9])
@pytest.mark.parametrize("move", ["split", "merge", "redivide"])
def test_a_move_is_accepted_by_its_odds(move: str, log_odds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Spied(move, log_odds, monkeypatch)
    accepted = (log_odds > 0) != (move == "merge")
    assert (seen.moved is not seen.at) == accepted
    assert (seen.moved.planes == 9.0).any() == accepted


THREE = torch.tensor([0, 2, 2, 0, 1, 1, 2, 0, 1, 2, 1, 2])


class Staged:
    """A move among three blocks: of the second and the third, or of the third alone, with numbers in the place of its
    odds, and new hyperplanes whose entries count them from 9."""

    def __init__(self, move: str, monkeypatch: pytest.MonkeyPatch) -> None:
        state, data, model, self.generator = start(DDPM(SphericalGaussian()), X, THREE, truncated=False)
        target = LabelledPartitions(state, data, label_law(model, False))
        self.move, self.at = getattr(repelling_split_merge, "_" + move), target.open()
        self.union = Union(self.at, target, model, torch.tensor([1, 2 if move == "split" else 4]), with_margin=False)
        self.sign = -1 if move == "merge" else 1
        self.side = torch.arange(len(self.union.steps)) % 3 == 1
        now = self.at.labels[self.union.steps] == self.union.other
        bound = self.union.fit(~now, now, ~self.side, self.side).fit.bound
        self.bound, weigh = float(bound[2:].sum() - bound[:2].sum()), Union.weigh
        monkeypatch.setattr(type(self.union.sides), "draw", lambda *_: self.side)
        monkeypatch.setattr(repelling_split_merge, "uniforms", lambda shape, _: self.levels[: shape[0]])
        monkeypatch.setattr(repelling_split_merge, "exchange", self.exchange)
        monkeypatch.setattr(Union, "weigh", lambda *given: replace(weigh(*given), log_screen=self.sign * self.screen))
        monkeypatch.setattr(
            Union, "log_ratio", lambda union, division, planes, *_: (self.sign * self.ratio, last(planes))
        )
        monkeypatch.setattr(Union, "log_renewal", self.renewal)

    def exchange(self, blocks: BlockHyperplanes, present: Tensor, *_) -> tuple[Tensor, float]:
        self.members, self.present = blocks.members.T, present
        num_new = len(self.members) - len(present)
        new = 9.0 + torch.arange(num_new, dtype=torch.float64).view(-1, 1, 1).expand(-1, 3, 1)
        return new, self.ratio - (2 * self.screen - self.bound)

    def renewal(self, at, moved, _) -> float:
        assert at is self.at
        expected = torch.where(self.side, self.union.other, self.union.own)
        assert torch.equal(moved.labels[self.union.steps], expected)
        return 2 * self.screen - self.bound

    def run(self, screen: float, ratio: float, *levels: float):
        """The state after the move with these logs of s, of the odds, and of the levels of the two tests."""
        self.screen, self.ratio = screen, ratio
        self.levels = torch.tensor([*(-math.expm1(level) for level in levels), 0.5], dtype=torch.float64)
        return self.move(self.at, self.union, self.generator)


def last(planes: Tensor) -> Tensor:
    """Log weights of places of which the last one is chosen."""
    return torch.full((len(planes),), -math.inf).index_fill(0, torch.tensor([len(planes) - 1]), 0.0)


@pytest.mark.parametrize("move", ["split", "merge", "redivide"])
def test_hyperplanes_are_at_the_places_of_their_points(move: str, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = Staged(move, monkeypatch)
    moved, num_present = staged.run(10.0, 20.0, 0.0, 0.0), len(staged.present)
    assert torch.equal(staged.present, staged.at.planes[2:3] if move == "split" else staged.at.planes[[2, 1]])
    kinds = moved.planes[moved.labels][:, 0, 0] - 9
    for block, members in enumerate(staged.members[num_present:]):
        assert torch.equal(members, kinds == block)
    for block, members in enumerate(staged.members[:num_present]):
        assert torch.equal(members, 2 - block == THREE)
    assert torch.equal(moved.planes[moved.labels][THREE == 0], staged.at.planes[[0, 0, 0]])
    if move == "split":
        assert moved.labels.max() == staged.at.free()[-1]


@pytest.mark.parametrize("move", ["split", "merge", "redivide"])
def test_a_move_is_accepted_in_two_tests(move: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By s first, then by the odds over s; a merge by their inverses."""
    staged = Staged(move, monkeypatch)
    for log_screen, log_ratio, screen, test, accepted in (
        (-2.0, 1.0, -2.1, 0.0, True),
        (-2.0, 1.0, -1.9, -9.0, False),
        (-2.0, -3.0, -9.0, -0.9, False),
        (-2.0, -3.0, -9.0, -1.1, True),
        (1.0, -1.0, -0.1, -1.9, False),
        (1.0, -1.0, -0.1, -2.1, True),
    ):
        moved = staged.run(log_screen, log_ratio, screen, test)
        assert (moved is not staged.at) == accepted, (log_screen, log_ratio, screen, test)


@pytest.mark.parametrize("prior", [DirichletProcess(0.7, (2.0, 1.0)), PitmanYor(0.4, 0.3)], ids=["Dirichlet", "Pitman"])
@pytest.mark.parametrize("truncated", [False, True])
def test_the_prior_of_a_state_is_at_its_own_hyperparameters(truncated: bool, prior) -> None:
    state, data, model, _ = start(DDPM(SphericalGaussian(), prior=prior, truncation=5), X, THREE, truncated=truncated)
    name, value = next(iter(state.hyper.items()))
    state = replace(state, hyper=state.hyper | {name: 0.9 * value})
    target = LabelledPartitions(state, data, label_law(model, truncated))
    at = target.open()
    counts = at.counts().double()
    expected = (
        log_labelled_prior(counts, *model.prior.sticks(state.hyper, len(counts)))
        if truncated
        else model.prior.log_partition(counts[:3], state.hyper) + math.lgamma(len(at.free()) + 1)
    )
    assert float(target.log_prior(at)) == pytest.approx(float(expected))
    reached = target.close(replace(at, labels=at.labels.masked_fill(THREE == 1, 0)))
    left = at.planes if truncated else at.planes[[0, 2]]
    assert torch.equal(reached.weights, left)
    if not truncated:
        assert torch.equal(reached.reservoir, torch.cat([at.planes[1:2], at.planes[3:]]))


class Odds:
    """Notes what the odds of a move read, and lets the move pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.noted: list[tuple[float, float, Tensor, float, Tensor]] = []
        self.weigh, self.log_ratio, self.accept = Union.weigh, Union.log_ratio, 0.0
        monkeypatch.setattr(Union, "weigh", lambda *arguments: self.weighed(*arguments))
        monkeypatch.setattr(Union, "log_ratio", lambda *arguments: self.told(*arguments))

    def weighed(self, *arguments):
        division = self.weigh(*arguments)
        self.log_screen = division.log_screen
        return replace(division, log_screen=self.accept / 2)

    def told(self, union: Union, division, planes: Tensor, log_gain: float, log_odds: Tensor):
        log_ratio, places = self.log_ratio(union, division, planes, log_gain, log_odds)
        self.noted.append((float(log_ratio), self.log_screen, planes, log_gain, log_odds))
        return torch.tensor(self.accept), places


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("truncated", [False, True])
def test_a_merge_has_the_odds_of_the_split_that_undoes_it(truncated: bool, seed: int, poor_fits, monkeypatch) -> None:
    """Whatever the proposals made of the hyperplanes: both read those of the state in which B is one block."""
    model = DDPM(SphericalGaussian(), Hinge(), weight_scale=1.7, truncation=4)
    state, data, model, _ = start(model, X, LABELS, truncated=truncated)
    generator, pair = torch.Generator().manual_seed(seed), torch.tensor([0, 1])
    target = LabelledPartitions(state, data, label_law(model, truncated))
    at, odds, made = target.open(), Odds(monkeypatch), []
    monkeypatch.setattr(repelling_split_merge, "exchange", lambda *given: made.append(exchange(*given)) or made[-1])
    odds.accept = -1e6
    merged = repelling_split_merge._merge(at, Union(at, target, model, pair, with_margin=True), generator)
    assert len(merged.labels.unique()) == 1
    (forth,), ((plane, gain),) = odds.noted, made
    assert torch.equal(merged.planes[merged.labels[:1]], plane)
    assert forth[3] == -gain
    union = Union(merged, target, model, pair, with_margin=True)
    side, apart = LABELS == 1, at.planes[[0, 1]]
    monkeypatch.setattr(type(union.sides), "draw", lambda *_: side)
    monkeypatch.setattr(repelling_split_merge, "exchange", lambda *_: (apart, forth[3]))
    odds.accept = 1e6
    divided = repelling_split_merge._split(merged, union, generator)
    assert torch.equal((divided.labels != divided.labels[0]), side)
    log_ratio, log_screen, planes, log_gain, log_odds = odds.noted[1]
    assert torch.equal(planes, forth[2])
    assert torch.equal(log_odds, forth[4])
    assert log_gain == forth[3]
    assert log_ratio == pytest.approx(forth[0], abs=1e-8)
    assert log_screen == pytest.approx(forth[1], abs=1e-8)


def test_the_launch_forgets_how_the_block_is_divided() -> None:
    model = DDPM(SphericalGaussian())
    found = []
    for labels in (torch.zeros(12, dtype=torch.long), LABELS):
        state, data, resolved, _ = start(model, X, labels, truncated=False)
        target = LabelledPartitions(state, data, label_law(resolved, False))
        for with_margin in (True, False):
            union = Union(target.open(), target, resolved, torch.tensor([4, 0]), with_margin=with_margin)
            found.append(union.launch())
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])
    assert found[0][4] == -math.inf
    assert found[0][0] == math.inf


# -- exact starts ------------------------------------------------------------------------------------------------------


def starts(model: DDPM, *, truncated: bool) -> PartitionStarts:
    """Moves of states given TINY."""
    return PartitionStarts(
        model, TINY, partial(split_merge_repelling, law=label_law(model.resolve(TINY), truncated)), truncated=truncated
    )


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_moves_keep_the_posterior(loss: str, truncated: bool, poor_fits) -> None:
    starts(tiny(loss), truncated=truncated).check(350, 2)


VARIANTS = {
    **{loss: tiny(loss) for loss in LOSSES},
    "strong hinge": tiny("hinge").replace(loss=Hinge(1.0)),
    "Pitman-Yor": tiny("logistic", prior=PitmanYor(0.5, 0.6)),
    "finite": tiny("logistic", prior=MixtureOfFiniteMixtures(0.7, 1.5)),
    "squared hinge": tiny("hinge").replace(loss=SquaredHinge(0.4)),
}


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "truncated"),
    [(name, truncated) for name in LOSSES for truncated in (False, True)]
    + [("strong hinge", False), ("Pitman-Yor", True), ("finite", False), ("squared hinge", False)],
)
def test_more_moves_keep_the_posterior(name: str, truncated: bool, poor_fits) -> None:
    starts(VARIANTS[name], truncated=truncated).check(700, 3)


# -- what it is for ----------------------------------------------------------------------------------------------------


def blobs(num_data: int, distance: float, seed: int) -> tuple[Tensor, Tensor]:
    """Three normal clusters at a distance from their centre."""
    labels = torch.arange(num_data) % 3
    angles = 2 * math.pi / 3 * labels.double()
    centers = distance * torch.stack([angles.cos(), angles.sin()], 1)
    noise = torch.randn((num_data, 2), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return centers + noise, labels


def found(loss, scan: str, sweeps: int, moves: int, seed: int) -> bool:
    """Whether a chain that starts in one cluster, hyperplanes and all, knows the three after some sweeps."""
    inputs, labels = blobs(90, 4.0, seed)
    options = {"num_warmup": sweeps - 1, "num_samples": 1, "num_generative": 0, "split_merge": moves, "scan": scan}
    model = DDPM(SphericalGaussian(), loss, weight_scale=2.0, truncation=8)
    posterior = Gibbs(seed=seed, progress=False, **options).fit(model, inputs)
    pairs = torch.stack([posterior.samples["assignments"][0].long(), labels], 1)
    kinds, sizes = torch.unique(pairs, dim=0, return_counts=True)
    commonest = sizes.argsort(descending=True)[:3]
    return bool(sizes[commonest].sum() >= 87 and len(kinds[commonest, 0].unique()) == 3)


@pytest.mark.parametrize("scan", ["collapsed", "blocked", "slice"])
@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=["hinge", "logistic"])
def test_from_one_cluster_the_clusters_are_found(loss, scan: str) -> None:
    assert found(loss, scan, 12, 2, 0)


@pytest.mark.parametrize("scan", ["collapsed", "slice"])
def test_scans_alone_never_find_them(scan: str) -> None:
    """This is what the moves are for."""
    assert not found(Hinge(), scan, 25, 0, 0)


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("scan", ["collapsed", "blocked"])
@pytest.mark.parametrize(
    "loss", [Hinge(), pytest.param(Logistic(), marks=pytest.mark.nightly)], ids=["hinge", "logistic"]
)
def test_clusters_are_found_within_twenty_sweeps_whatever_the_seed(loss, scan: str) -> None:
    assert all(found(loss, scan, 20, 2, seed) for seed in range(10))


def test_a_model_without_a_free_place_does_not_split() -> None:
    for truncated in (True, False):
        model = DDPM(SphericalGaussian(), truncation=2)
        state, data, model, generator = start(model, X, (X[:, 0] > 0).long(), truncated=truncated)
        if not truncated:
            state = replace(state, reservoir=state.reservoir[:0])
        for _ in range(10):
            state = split_merge_repelling(state, data, model, generator, law=label_law(model, truncated))
            assert len(state.weights) + (0 if truncated else len(state.reservoir)) == 2
            assert 0 <= int(state.assignments.min()) <= int(state.assignments.max()) <= 1


@pytest.mark.parametrize("scan", ["collapsed", "slice"])
def test_no_hyperplane_comes_or_goes_after_the_warm_up(scan: str) -> None:
    model, sizes = tiny("logistic", likelihood=SphericalGaussian(), prior=DirichletProcess(4.0)), set()
    state, data, model, generator = start(model, X[:, :1], LABELS, truncated=False)
    for step in range(25):
        options = {"scan": scan, "num_split_merge": 1, "num_warmup": 0}
        state = partition.sweep(state, data, model, generator, step, **options)
        assert len(state.weights) + len(state.reservoir) == 2 + hyperplanes.NUM_RESERVED
        assert len(state.assignments.unique()) == len(state.weights)
        sizes.add(len(state.weights))
    assert len(sizes) > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_and_single_precision_are_served(dtype: torch.dtype, device: torch.device) -> None:
    counts = torch.poisson(torch.full((30, 3), 4.0), generator=torch.Generator().manual_seed(1))
    counts[:15, 0] += 30
    model = DDPM(MultinomialDirichlet(), Logistic(), feature_map=PrincipalDirections(proportions=True))
    backend = Gibbs(num_warmup=8, num_samples=2, num_generative=0, split_merge=3, progress=False)
    posterior = backend.fit(model, counts.to(device, dtype))
    assert posterior.samples["weights"].dtype == dtype
    first, second = posterior.samples["assignments"][-1].long().cpu().split(15)
    assert first.mode().values != second.mode().values
    assert (first == first.mode().values).sum() + (second == second.mode().values).sum() > 25
