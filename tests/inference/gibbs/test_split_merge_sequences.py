"""Split-merge of the states of sequences where they repel: the terms of its odds, exact starts, what it is for."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from exact_starts import PathStarts
from setups import label_law
from test_split_merge import Odds, log_normals
from torch import Tensor
from torch.distributions import Beta

from regbayes.inference import Gibbs
from regbayes.inference.classifiers.scored import classifiers_of
from regbayes.inference.gibbs import sequence
from regbayes.inference.gibbs.moves import block_classifiers, split_merge
from regbayes.inference.gibbs.moves.block_classifiers import exchange, log_unnormalized
from regbayes.inference.gibbs.moves.sides import PersistentSides
from regbayes.inference.gibbs.moves.union import Union
from regbayes.inference.gibbs.paths import Paths
from regbayes.inference.gibbs.sequence import log_joint
from regbayes.models import DIH, Hinge, Logistic, PrincipalDirections, SphericalGaussian
from regbayes.models.priors import HierarchicalDirichletProcess

NAN = math.nan
X = torch.tensor([[-1.2], [-0.8], [1.1], [NAN], [0.9]], dtype=torch.float64)
LENGTHS = [3, 2]
LONG = torch.tensor([-1.0, -1.3, NAN, -0.7, 0.8, 1.3, 0.9, -1.1, 1.2, -0.2], dtype=torch.float64).unsqueeze(1)


def model_of(loss, rho: float = 0.0) -> DIH:
    return DIH(
        SphericalGaussian(loc=0.0, variance=0.5, prior_variance=1.0),
        loss,
        HierarchicalDirichletProcess(1.5, None, 2.0, None, stickiness=rho),
        PrincipalDirections(intercept=0.0),
        weight_scale=1.5,
        truncation=3,
    )


MODELS = {"hinge": model_of(Hinge(0.4)), "logistic": model_of(Logistic(), 0.3)}


# -- the terms of the odds ---------------------------------------------------------------------------------------------


def log_target(at, z: Paths, state, model) -> Tensor:
    """log density of an open state with its base weights and all hyperplanes, from the log joint of the state."""
    found, data = log_joint(z.close(state, at), z.data, model, law=z.law), z.data
    if not z.law.alike:  # the log joint has the density of the sticks
        rest = 1 - at.base[:-2].cumsum(0)[:-1]
        return found - rest.log().sum()
    nobody = torch.zeros(len(data.features), len(at.weights)).bool()
    scored = classifiers_of(model, data.points, data.observed(at.assignments), len(at.weights))
    reserved = log_unnormalized(at.weights.unsqueeze(1), nobody, scored).sum()
    return found + reserved + math.lgamma(len(z.free(at)) + 1)


def log_sides(persistent: bool, log_odds: Tensor, side: Tensor, runs: list[range]) -> float:
    """log q of the sides: each by itself, or a path among all paths of every run."""
    if not persistent:
        own = torch.where(side, log_odds, -log_odds)
        return float(torch.nn.functional.logsigmoid(own).sum())

    def weight(path: tuple[int, ...], run: range) -> float:
        emissions = torch.nn.functional.logsigmoid(torch.stack([-log_odds, log_odds], 1))
        total = sum(float(emissions[t, s]) for t, s in zip(run, path, strict=True)) + math.log(0.5)
        return total + sum(math.log(0.9 if one == two else 0.1) for one, two in itertools.pairwise(path))

    total = 0.0
    for run in runs:
        paths = [weight(path, run) for path in itertools.product((0, 1), repeat=len(run))]
        own = tuple(int(side[t]) for t in run)
        total += weight(own, run) - float(torch.tensor(paths, dtype=torch.float64).logsumexp(0))
    return total


def labelled(loss: str, truncated: bool):
    """A state of ten steps in two sequences, of which state 1 has eight in runs of four, two and two."""
    model, data = MODELS[loss].replace(truncation=4).prepare(LONG, None, [6, 4])
    generator, labels = torch.Generator().manual_seed(3), torch.tensor([1, 1, 1, 1, 0, 1, 1, 0, 1, 1])
    state = sequence.init(model, data, generator, start=labels, scan="blocked" if truncated else "direct", num_sweeps=0)
    weights = torch.randn(state.weights.shape, generator=generator, dtype=torch.float64)
    state = replace(state, weights=weights)
    target = Paths(label_law(model, truncated), data)
    return target, target.open(state), state, model, generator


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("loss", MODELS)
@pytest.mark.parametrize("truncated", [False, True])
def test_odds_of_a_split_are_those_of_target_and_proposals(truncated: bool, loss: str, persistent: bool, monkeypatch):
    monkeypatch.setattr(block_classifiers, "_NUM_CANDIDATES", 1)
    target, joined, state, model, generator = labelled(loss, truncated)
    union = Union(joined, target, model, torch.tensor([0, 7]), with_margin=True, persistent=persistent)
    assert union.steps.tolist() == [0, 1, 2, 3, 5, 6, 8, 9]
    log_odds, free = union.launch(), target.free(joined)
    assert log_odds[2] == 0
    assert log_odds[0] == -math.inf
    assert log_odds[6] == math.inf
    side = union.sides.draw(log_odds, generator)
    share = target.draw_share(side, generator)
    division = union.weigh(joined, side, free, share).refined()
    blocks, present = division.blocks[[3, 1, 2]], joined.weights[1:2]
    planes, log_gain = exchange(blocks, present, generator)
    log_ratio, places = union.log_ratio(division, joined.weights[free], log_gain, log_odds)
    runs = [range(4), range(4, 5), range(5, 6), range(6, 8)]
    log_forth = log_sides(persistent, log_odds, side, runs) + log_normals(blocks[[1, 2]], planes).sum()
    log_forth = log_forth + Beta(*[(~side).sum().double(), side.sum().double()]).log_prob(
        torch.tensor(share, dtype=torch.float64)
    )
    before = log_target(joined, target, state, model)
    for a, place in enumerate(free.tolist()[:3]):
        divided = target.divide(joined, union.steps[side], 1, place, share)
        assert float(divided.base.sum()) == pytest.approx(1.0)
        assert target.share(divided, 1, place) == pytest.approx(share)
        divided = replace(divided, weights=divided.weights.index_copy(0, torch.tensor([1, place]), planes))
        expected = log_target(divided, target, state, model) - before
        expected = expected + log_normals(blocks[[0]], present).sum() - log_forth - places.log_softmax(0)[a]
        expected = expected + log_normals(division.blocks[[0]], joined.weights[place : place + 1]).sum()
        if truncated:
            kept = joined.base[1] / (joined.base[1] + joined.base[place])
            expected = expected + Beta(*torch.tensor([5.0, 1.0]).double()).log_prob(kept)
        else:
            expected = expected + joined.base[1].log()
        assert float(log_ratio) == pytest.approx(float(expected), abs=1e-7)


def test_a_merge_leaves_the_share_that_its_odds_say() -> None:
    """The truncated model keeps a Beta(5, 1) share in the first place, the infinite one all of it."""
    for truncated in (True, False):
        target, at, *_, generator = labelled("hinge", truncated)
        total, shares = float(at.base[0] + at.base[1]), []
        for _ in range(300):
            joined = target.join(at, 0, 1, generator)
            assert not joined.assignments.any()
            assert float(joined.base[0] + joined.base[1]) == pytest.approx(total)
            assert torch.equal(joined.base[2:], at.base[2:])
            shares.append(target.share(joined, 0, 1))
        mean = torch.tensor(shares).mean()
        assert mean == 1 if not truncated else abs(mean - 5 / 6) < 5 * 0.141 / 300**0.5


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("truncated", [False, True])
def test_a_merge_has_the_odds_of_the_split_that_undoes_it(truncated: bool, persistent: bool, monkeypatch) -> None:
    """With the share of the first state that there was."""
    target, at, _, model, generator = labelled("logistic", truncated)
    pair, odds = torch.tensor([0, 3]), Odds(monkeypatch)
    odds.accept = -1e6
    options = {"with_margin": True, "persistent": persistent}
    merged = split_merge.merge(at, Union(at, target, model, pair, **options), generator)
    assert merged.assignments.tolist() == [1] * 10
    union, side, share = Union(merged, target, model, pair, **options), at.assignments == 0, target.share(at, 1, 0)
    assert share == pytest.approx(float(at.base[1] / (at.base[0] + at.base[1])))
    monkeypatch.setattr(type(union.sides), "draw", lambda *_: side)
    monkeypatch.setattr(target, "draw_share", lambda *_: share)
    odds.accept = 1e6
    gain = odds.noted[0][3]
    apart = at.weights[[1, 0]]
    monkeypatch.setattr(split_merge, "exchange", lambda *_: (apart, gain))
    divided = split_merge.split(merged, union, generator)
    assert torch.equal(divided.assignments != 1, side)
    assert target.share(divided, 1, int(divided.assignments[4])) == pytest.approx(share)
    (one, screen, *_), (other, screen_again, *_) = odds.noted
    assert one == pytest.approx(other, abs=1e-8)
    assert screen == pytest.approx(screen_again, abs=1e-8)


def test_shares_are_draws_of_their_beta_law() -> None:
    target, *_, generator = labelled("hinge", True)
    side = torch.tensor([True, False, False, False, False, True, False])
    shares = torch.tensor([target.draw_share(side, generator) for _ in range(500)])
    assert abs(shares.mean() - 5 / 7) < 5 * (10 / 49 / 8 / 500) ** 0.5
    assert shares.var() == pytest.approx(10 / 49 / 8, rel=0.3)


def test_persistent_sides_are_paths_with_their_probabilities() -> None:
    first = torch.tensor([True, False, False, True, False])
    sides, log_odds = PersistentSides(first), torch.tensor([0.7, -0.4, 1.2, -math.inf, 0.3], dtype=torch.float64)
    runs, generator = [range(3), range(3, 5)], torch.Generator().manual_seed(0)
    paths = [torch.tensor(path).bool() for path in itertools.product((0, 1), repeat=5) if not path[3]]
    exact = torch.tensor([log_sides(True, log_odds, path, runs) for path in paths]).double().exp()
    assert float(exact.sum()) == pytest.approx(1.0)
    found = torch.tensor([sides.log_probability(log_odds, path) for path in paths]).double().exp()
    torch.testing.assert_close(found, exact)
    draws = torch.stack([sides.draw(log_odds, generator) for _ in range(2000)])
    visits = torch.stack([(draws == path).all(1).double().mean() for path in paths])
    assert ((visits - exact).abs() < 5 * (exact / 2000).sqrt() + 1e-3).all()
    marginals = torch.stack([exact @ torch.stack(paths).logical_not().double(), exact @ torch.stack(paths).double()], 1)
    torch.testing.assert_close(sides.marginals(log_odds), marginals)


# -- exact starts ------------------------------------------------------------------------------------------------------


def starts(model: DIH, *, truncated: bool) -> PathStarts:
    """Moves of states given X."""

    def step(state, data, model, generator):
        return split_merge.split_merge(state, Paths(label_law(model, truncated), data), model, generator)

    return PathStarts(model, X, LENGTHS, step, truncated=truncated)


@pytest.mark.parametrize("truncated", [False, True])
def test_moves_keep_the_posterior(truncated: bool, poor_fits) -> None:
    starts(MODELS["hinge"], truncated=truncated).check(250, 2)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("loss", MODELS)
def test_more_moves_keep_the_posterior(loss: str, truncated: bool, poor_fits) -> None:
    starts(MODELS[loss], truncated=truncated).check(600, 3)


# -- what it is for ----------------------------------------------------------------------------------------------------


def chain(seed: int) -> tuple[Tensor, Tensor]:
    """120 steps in three states, apart from one another, that last ten steps each."""
    labels = torch.arange(120) // 10 % 3
    angles = 2 * math.pi / 3 * labels.double()
    noise = torch.randn((120, 2), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return 4 * torch.stack([angles.cos(), angles.sin()], 1) + noise, labels


def found(loss, scan: str, sweeps: int, moves: int, seed: int) -> bool:
    """Whether a chain that starts in one state knows all of them after some sweeps."""
    inputs, labels = chain(seed)
    start = {"init": torch.zeros(120, dtype=torch.long), "num_warmup": sweeps - 1, "num_samples": 1, "seed": seed}
    model = DIH(SphericalGaussian(), loss, weight_scale=2.0, truncation=8)
    posterior = Gibbs(**start, scan=scan, split_merge=moves, progress=False).fit(model, inputs, lengths=[60, 60])
    pairs = torch.stack([posterior.samples["assignments"][0].long(), labels], 1)
    kinds, sizes = torch.unique(pairs, dim=0, return_counts=True)
    commonest = sizes.argsort(descending=True)[:3]
    return bool(sizes[commonest].sum() >= 117 and len(kinds[commonest, 0].unique()) == 3)


@pytest.mark.filterwarnings("ignore:The likelihood alone holds")  # what scans alone end in
@pytest.mark.parametrize("scan", ["direct", pytest.param("blocked", marks=pytest.mark.nightly)])
def test_from_one_state_the_states_are_found(scan: str) -> None:
    assert found(Hinge(), scan, 14, 2, 1)
    assert not found(Hinge(), scan, 14, 0, 1)


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("scan", ["direct", "beam", "blocked"])
@pytest.mark.parametrize(
    "loss", [Hinge(), pytest.param(Logistic(), marks=pytest.mark.nightly)], ids=["hinge", "logistic"]
)
def test_states_are_found_within_twenty_sweeps_whatever_the_seed(loss, scan: str) -> None:
    assert all(found(loss, scan, 20, 2, seed) for seed in range(10))
