"""The consensus of draws: against all partitions of a few points, and against the draws themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from setups import by_day
from torch import Tensor

from regbayes.inference import Gibbs
from regbayes.inference.posterior.consensus import consensus, expected_losses
from regbayes.inference.posterior.partition_losses import expected_loss
from regbayes.models import DPM
from regbayes.testing.enumeration import partitions

LOSSES = ["vi", "binder"]


def noisy(num_data: int, num_blocks: int, num_draws: int, seed: int, noise: float = 0.4) -> Tensor:
    """Draws [S, N] of a partition with some rows astray, and with two blocks joined in every third draw."""
    rng = np.random.default_rng(seed)
    draws = np.tile(rng.integers(num_blocks, size=num_data), (num_draws, 1))
    astray = rng.random(draws.shape) < noise
    draws[astray] = rng.integers(num_blocks, size=astray.sum())
    draws[::3][draws[::3] == 1] = 0
    return torch.as_tensor(draws)


def pairwise(candidate: Tensor, draws: Tensor, loss: str) -> float:
    """The expected loss by its definition: of pairs, or of entropies over all pairs of blocks."""
    total = 0.0
    for draw in draws:
        if loss == "binder":
            one, other = (labels.unsqueeze(0) == labels.unsqueeze(1) for labels in (candidate, draw))
            total += float((one != other).double().mean())
            continue
        for i in candidate.unique():
            for j in draw.unique():
                p, q = (candidate == i).double().mean(), (draw == j).double().mean()
                both = ((candidate == i) & (draw == j)).double().mean()
                total -= float(both * (2 * both.log() - p.log() - q.log())) if both > 0 else 0.0
    return total / len(draws)


@pytest.mark.parametrize("loss", LOSSES)
def test_expected_losses_are_those_of_the_definition(loss: str) -> None:
    draws, candidates = noisy(9, 3, 6, 0), noisy(9, 4, 5, 1) * 7 + 2  # labels with gaps
    found = expected_losses(candidates, draws, loss)
    assert found.tolist() == pytest.approx([pairwise(candidate, draws, loss) for candidate in candidates], abs=1e-13)
    assert expected_losses(draws, draws, loss).tolist() == pytest.approx(expected_loss(draws, loss).tolist())


@pytest.mark.parametrize("loss", LOSSES)
def test_it_is_the_best_of_all_partitions(loss: str) -> None:
    everything = torch.tensor([list(labels) for labels in partitions(7)])
    assert len(everything) == 877
    gained, number = 0, by_day(20, 2)
    for seed in range(number):
        draws = noisy(7, 2 + seed % 3, 12, seed)
        losses = expected_losses(everything, draws, loss)
        found = consensus(draws, loss)
        assert float(expected_losses(found.unsqueeze(0), draws, loss)) == pytest.approx(float(losses.min()), abs=1e-12)
        gained += float(losses.min()) < float(expected_losses(draws, draws, loss).min()) - 1e-6
    assert gained > number / 10  # or the best draw would do


@pytest.mark.one_in(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("num_runs", [0, 4])
def test_it_is_never_worse_than_the_best_draw(loss: str, num_runs: int) -> None:
    for seed in range(5):
        draws = noisy(300, 8, 60, seed, noise=0.1 * (1 + seed))
        found = consensus(draws, loss, num_runs=num_runs, seed=seed)
        assert expected_losses(found.unsqueeze(0), draws, loss) < expected_losses(draws, draws, loss).min()


@pytest.mark.parametrize("loss", LOSSES)
def test_no_row_does_better_in_another_block(loss: str) -> None:
    """After whole blocks were destroyed and brought back as well."""
    for seed in range(6):
        draws = noisy(60, 9, 20, seed, noise=0.5)
        found = consensus(draws, loss, num_runs=0, seed=seed)
        moved = found.repeat(60, int(found.max()) + 1, 1)
        for row in range(60):
            moved[row, :, row] = torch.arange(moved.shape[1])
        least = expected_losses(moved.flatten(0, 1), draws, loss).min()
        assert least >= expected_losses(found.unsqueeze(0), draws, loss) - 1e-9


def test_noise_that_no_draw_is_without_is_averaged_away() -> None:
    truth = torch.arange(400) % 4
    rng = np.random.default_rng(0)
    draws = torch.stack([torch.where(torch.as_tensor(rng.random(400) < 0.2), 9, truth) for _ in range(50)])
    for loss in LOSSES:
        assert torch.equal(consensus(draws, loss), truth)


def test_labels_say_nothing_and_come_back_by_size() -> None:
    draws = noisy(200, 6, 30, 3, noise=0.2)
    found = consensus(draws)
    renamed = torch.stack([(draw * 5 + step) % 31 for step, draw in enumerate(draws)]).to(torch.int8)
    assert torch.equal(consensus(renamed), found)
    sizes = torch.bincount(found)
    assert (sizes > 0).all()
    assert (sizes.diff() <= 0).all()
    assert found.dtype == torch.int64
    assert torch.equal(found, consensus(draws, num_draws=30))


def test_a_single_draw_is_its_own_consensus_and_few_draws_are_asked_for_by_name() -> None:
    draw = torch.tensor([[3, 3, 1, 0, 1, 3]])
    assert consensus(draw).tolist() == [0, 0, 1, 2, 1, 0]
    assert consensus(draw.expand(5, -1), "binder").tolist() == [0, 0, 1, 2, 1, 0]
    # two thirds of the draws have one block; the first and the last have two
    draws = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]])
    assert consensus(draws).tolist() == [0, 0, 0, 0]
    assert consensus(draws, num_draws=2).tolist() == [0, 0, 1, 1]


def test_bad_options_are_named() -> None:
    draws = torch.zeros(2, 3, dtype=torch.int64)
    for options, message in [
        ({"loss": "rand"}, "loss is 'rand'"),
        ({"num_draws": 0}, "num_draws is 0"),
        ({"num_runs": -1}, "num_runs is -1"),
        ({"seed": 0.5}, "seed is 0.5"),
    ]:
        with pytest.raises(ValueError, match=message):
            consensus(draws, **options)


def test_posteriors_offer_it() -> None:
    rng = np.random.default_rng(0)
    X = torch.as_tensor(np.concatenate([rng.normal(size=(20, 2)), rng.normal(size=(20, 2)) + 3]))
    posterior = Gibbs(num_samples=30, num_warmup=20).fit(DPM(), X)
    draws = posterior.samples["assignments"]
    for loss in LOSSES:
        both = torch.stack([posterior.consensus(loss), posterior.partition(loss)])
        mine, best = expected_losses(both, draws, loss)
        assert mine <= best
    assert torch.equal(posterior.consensus(num_runs=2, seed=1), consensus(draws, num_runs=2, seed=1))
