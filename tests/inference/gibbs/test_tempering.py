"""How chains of models whose components repel come to their hyperplanes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from setups import label_law

from regbayes.inference.gibbs import hyperplanes, partition, sequence
from regbayes.inference.gibbs.moves import tempering
from regbayes.inference.gibbs.moves.tempering import Tempered, harden
from regbayes.models import DDPM, DIH, DPM, IHMM, Hinge, Logistic, SphericalGaussian, SquaredHinge

X = torch.randn((24, 2), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
LABELS = (X[:, 0] > 0).long()


@pytest.mark.parametrize("loss", [Hinge(1.5), Logistic(), SquaredHinge(0.4)], ids=repr)
def test_a_power_of_a_loss_is_one_and_is_augmented_where_the_loss_is(loss) -> None:
    scores, y = X[:, :1], 2.0 * LABELS.unsqueeze(1) - 1
    soft = Tempered(loss, 0.3)
    torch.testing.assert_close(soft.log_factor(scores, y).exp(), loss.log_factor(scores, y).exp() ** 0.3)
    assert soft.is_augmented == loss.is_augmented
    assert soft.binary


def test_of_a_hinge_pseudo_observations_have_the_means_of_the_power() -> None:
    """Which is a hinge itself."""
    score, y = torch.linspace(-2, 0.6, 5).expand(20000, 5).double(), torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]).double()
    drawn = Tempered(Hinge(1.5), 0.4).augment(score, y, torch.Generator().manual_seed(0))
    expected = Hinge(0.6).expect(score[0], torch.zeros(5).double(), y)
    for found, mean in zip(drawn, expected, strict=True):
        assert ((found.mean(0) - mean).abs() < 5 * found.std(0) / 20000**0.5).all()


def test_the_power_rises_to_one_and_the_reserve_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = DDPM(SphericalGaussian()).resolve(X)
    data, generator, filled = model.data(X), torch.Generator().manual_seed(0), []
    state = partition.init(model, data, generator, start=LABELS, law=label_law(model, False))
    powers, sizes = [], []

    def sweep(state, data, model, generator, step, *, num_warmup):
        assert (step, num_warmup) == (len(powers), 4)
        powers.append(model.loss.power)
        sizes.append(len(state.reservoir))
        return tempering.replace(state, reservoir=state.reservoir[:10])  # components took the others

    def fill(features, model, generator, **options):
        filled.append(model.loss.power)
        return hyperplanes.fill_reservoir(features, model, generator, **options)

    monkeypatch.setattr(tempering, "fill_reservoir", fill)
    monkeypatch.setattr(tempering, "_RARE", 2)
    harden(state, data, model, generator, sweep, 4)
    assert powers == pytest.approx([0.1**0.75, 0.1**0.5, 0.1**0.25, 1.0])
    assert filled == [powers[0], *powers[2:]]
    assert sizes == [hyperplanes.NUM_RESERVED, 10] + [hyperplanes.NUM_RESERVED] * 2
    assert harden(state, data, model, generator, sweep, 0) is state


def rises(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Sweeps, scans and numbers of moves of the rises of power from here on."""
    seen = []

    def spy(state, data, model, generator, sweep: partial, num_sweeps: int):
        seen.append((num_sweeps, sweep.keywords["scan"], sweep.keywords["num_split_merge"]))
        return state

    monkeypatch.setattr(partition, "harden", spy)
    monkeypatch.setattr(sequence, "harden", spy)
    return seen


@pytest.mark.parametrize("scan", ["collapsed", "slice", "blocked"])
def test_partitions_start_by_a_rise(scan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = DDPM(SphericalGaussian()).resolve(X), rises(monkeypatch)
    options = {"start": "one", "scan": scan, "num_sweeps": 3, "num_split_merge": 5}
    sweeps, sweep = [], partition.sweep

    def counted(state, data, model, generator, step, **options):
        sweeps.append((type(model), step))
        return sweep(state, data, model, generator, step, **options)

    monkeypatch.setattr(partition, "sweep", counted)
    partition.init_generatively(model, model.data(X), torch.Generator().manual_seed(0), **options)
    assert seen == [(6, scan, 5)]
    assert sweeps == [(DPM, step) for step in range(4 * 3)]


@pytest.mark.parametrize(("scan", "own"), [("direct", "direct"), ("beam", "auto"), ("blocked", "blocked")])
def test_sequences_start_by_a_rise_unless_their_states_are_known_or_do_not_repel(scan: str, own: str, monkeypatch):
    seen = rises(monkeypatch)
    for kind, start in ((DIH, "one"), (DIH, LABELS), (IHMM, "one")):
        model, data = kind(SphericalGaussian()).prepare(X, None, [24])
        options = {"start": start, "scan": scan, "num_sweeps": 1, "num_split_merge": 5}
        sequence.init(model, data, torch.Generator().manual_seed(0), **options)
    assert seen == [(2, own, 5)]
