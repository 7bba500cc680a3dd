"""What a union of two components of a variational mixture gains is the change of the bound."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from variational import elbo, retold

from regbayes.inference.svi import factors, sums
from regbayes.inference.svi.factors import MERGE_ROUNDS, SETTLED
from regbayes.inference.svi.partition import factors as sticks
from regbayes.inference.svi.partition import kernel as partition
from regbayes.inference.svi.partition import unions
from regbayes.models import DDPM, DPM, DirichletProcess, InfiniteSVM, PitmanYor
from regbayes.models.losses import Hinge, Logistic

N = 60
MODELS = {
    "dpm": DPM(truncation=5),
    "hinge": InfiniteSVM(truncation=5),
    "classes": InfiniteSVM(loss=Hinge(0.3), truncation=5, prior=DirichletProcess(1.0, (2.0, 1.0))),
    "pitman-yor": InfiniteSVM(loss=Logistic(), truncation=5, prior=PitmanYor()),
    "repelling": DDPM(loss=Logistic(), truncation=5),
}


def climbed(model, weighted: bool):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(N, 2, generator=generator, dtype=torch.float64) + torch.arange(N).view(-1, 1) % 3
    labels = (X[:, 0] > X[:, 1]).long() + (X[:, 0] > 2).long() * (1 if model is MODELS["classes"] else 0)
    weights = 0.5 + torch.rand(N, generator=generator, dtype=torch.float64) if weighted else None
    model, data = model.prepare(X, None if isinstance(model, DPM | DDPM) else labels, weights=weights)
    state = partition.init(model, data, generator)
    for _ in range(3):
        state = partition.ascend(state, data, model)
    return factors.update_components(sticks.update_sticks(state, model), data, model), data, model


def united(state, data, model, kept: int, absorbed: int):
    """The points of both in one. The classifiers of the pair alone follow: those of the second have no points."""
    r, pair = factors.joined(state.responsibilities, kept, absorbed), [kept, absorbed]
    union = sticks.update_sticks(replace(state, responsibilities=r), model)
    union = factors.update_components(union, data, model)
    for _ in range(MERGE_ROUNDS + 1):
        moved = factors.update_classifiers(retold(union, data, model), model)
        mean, tril = union.mean.clone(), union.precision_tril.clone()
        mean[pair], tril[pair] = moved.mean[pair], moved.precision_tril[pair]
        last, union = union, replace(union, mean=mean, precision_tril=tril)
    return last


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_gain_is_the_rise_of_the_bound(name, weighted) -> None:
    state, data, model = climbed(MODELS[name], weighted)
    for kept, absorbed in [(0, 1), (2, 1), (3, 0)]:
        union = united(state, data, model, kept, absorbed)
        rise = elbo(union, data, model) - elbo(state, data, model)
        torch.testing.assert_close(unions.gain(state, data, model, kept, absorbed), rise, rtol=1e-9, atol=1e-8)


def test_the_gain_needs_no_responsibilities(monkeypatch) -> None:
    state, data, model = climbed(MODELS["hinge"], True)
    kept = factors.allocate(state, data, model)
    monkeypatch.setattr(sums, "MOST_KEPT", 0)
    dropped = factors.allocate(state, data, model)
    gains = (unions.gain(each, data, model, 0, 1) for each in (kept, dropped))
    torch.testing.assert_close(*gains, rtol=1e-9, atol=1e-8)


def test_a_union_is_promising_if_its_rounds_could_make_good_the_loss(monkeypatch) -> None:
    state, data, model = climbed(MODELS["hinge"], False)
    most = 2 * SETTLED * MERGE_ROUNDS * N
    for loss, expected in [(-1.0, True), (0.9 * most, True), (1.1 * most, False)]:
        monkeypatch.setattr(unions, "gain", lambda *args, loss=loss: torch.tensor(-loss))
        assert unions.is_promising(state, data, model, 0, 1) == expected
