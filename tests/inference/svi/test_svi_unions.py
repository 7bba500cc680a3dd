"""What a union of two components of a variational mixture gains is the change of the bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from variational import elbo, retold

from regbayes.inference import SVI
from regbayes.inference.svi import factors, sums
from regbayes.inference.svi.allocations import Climb
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


def test_a_fit_does_not_end_with_a_union() -> None:
    """After a union that raises the bound by less than the tolerance, the next one may be accepted too."""
    x = torch.randn(3000, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loose, strict = (SVI(tolerance=each, progress=False).fit(DPM(), x) for each in (1e-2, 1e-6))
    assert loose.num_components == strict.num_components == 1


def test_chains_are_of_what_pairs_link() -> None:
    assert partition.chained([[1, 3], [0, 2], [3, 4], [5, 6], [6, 1]]) == [[0, 2], [1, 3, 4, 5, 6]]
    assert partition.chained([]) == []


def pieces(num_pieces: int):
    """A fit of one Gaussian whose rows, cut into pieces of equal size, have a component each."""
    x = torch.randn(600, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).sort(0).values
    model, data = DPM(truncation=6).prepare(x, None)
    state = partition.init(model, data, torch.Generator().manual_seed(0))
    labels = torch.arange(600) * num_pieces // 600
    r = torch.nn.functional.one_hot(labels, 6).to(x)
    return replace(state, responsibilities=r), data, model


def test_where_no_union_of_two_raises_the_bound_all_of_a_chain_are_tried() -> None:
    state, data, model = pieces(4)
    for _ in range(9):
        state = partition.ascend(state, data, model)
    tried = [int((union.sizes > 0.5).sum()) for union in partition.promising(state, data, model)]
    assert set(tried[:-1]) == {3}
    assert tried[-1] == 1


def rounds_of(bounds: list[float], least: float) -> tuple[bool, int]:
    """Whether a union with these bounds after each round exceeds another, and the rounds that it took."""
    left, taken = iter(bounds), list[float]()

    def ascend(state, data, model):
        taken.append(next(left))
        return replace(state, bound=torch.tensor(taken[-1]))

    state, data, model = pieces(2)
    climb: Callable[..., object] = Recorded(ascend)._past
    return climb(torch.tensor(least), replace(state, bound=torch.tensor(least)), data, model) is not None, len(taken)


class Recorded(Climb):
    """A climb whose rounds are those of a test."""

    def __init__(self, ascend) -> None:
        object.__setattr__(self, "ascend", ascend)


def test_a_union_has_as_many_rounds_as_its_rises_promise() -> None:
    """Rises that halve add up to twice the first of them."""
    assert rounds_of([1.0, 2.0], 0.0) == (True, 1)
    assert rounds_of([-30.0, -20.0], 0.0) == (False, 2)  # one more such rise would not do
    assert rounds_of([-9.0, -4.0, -1.5, -0.25, 0.4], 0.0) == (True, 5)
    assert rounds_of([-9.0, -4.0, -3.0, -2.8], 0.0) == (False, 3)
    assert rounds_of([-9.0, -4.0, -1.9, -1.1], 0.0) == (False, 3)  # less than half each time: 1.9 will not be regained
