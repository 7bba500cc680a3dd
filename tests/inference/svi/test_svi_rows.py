"""Mixtures of many points by SVI keep no responsibilities: the same fit from sums over chunks of rows."""

from dataclasses import replace

import pytest
import torch
from variational import retold

from regbayes.inference import SVI
from regbayes.inference.posterior import Posterior
from regbayes.inference.svi import allocations, factors
from regbayes.inference.svi import sums as sums_of_rows
from regbayes.inference.svi.partition import factors as sticks
from regbayes.inference.svi.partition import kernel as partition
from regbayes.models import BNMC, DDPM, DPM, EpsilonInsensitive, InfiniteSVM, PitmanYor

N = 90
WEIGHTS = torch.linspace(0.5, 2.5, N, dtype=torch.float64)
CASES = {
    "dpm": (DPM(truncation=8), {}, None),
    "hinge": (InfiniteSVM(truncation=8), {}, None),
    "weighted": (InfiniteSVM(truncation=14, prior=PitmanYor()), {}, WEIGHTS),
    "regression": (InfiniteSVM(loss=EpsilonInsensitive(), truncation=5), {}, None),
    "repelling": (DDPM(truncation=5), {}, None),
    "labels": (BNMC(truncation=5), {}, None),
    "minibatches": (InfiniteSVM(truncation=6), {"batch_size": 20, "num_full_steps": 4}, WEIGHTS),
}


def rows_and_targets(model):
    generator = torch.Generator().manual_seed(1)
    group = torch.arange(N) % 3
    X = torch.randn(N, 2, generator=generator, dtype=torch.float64) + 5 * group.unsqueeze(1)
    sign = X[:, 0] > X[:, 1]
    if isinstance(model, BNMC):
        return X, torch.stack([sign, ~sign], 1).long()
    if isinstance(model, DPM | DDPM):
        return X, None
    return X, X[:, 1] if isinstance(model.loss, EpsilonInsensitive) else sign.long()


@pytest.fixture
def none_kept(monkeypatch) -> None:
    monkeypatch.setattr(sums_of_rows, "MOST_KEPT", 0)


@pytest.mark.parametrize("name", CASES)
def test_a_fit_that_keeps_no_responsibilities_is_the_same_fit(name, monkeypatch, tmp_path) -> None:
    model, options, weights = CASES[name]
    X, y = rows_and_targets(model)
    backend = SVI(num_steps=12, tolerance=None, **options)
    kept = backend.fit(model, X, y, sample_weight=weights)
    monkeypatch.setattr(sums_of_rows, "MOST_KEPT", 0)
    found = backend.fit(model, X, y, sample_weight=weights)
    torch.testing.assert_close(found.trace.values, kept.trace.values, rtol=1e-10, atol=0)
    assert kept.samples.keys() - found.samples.keys() == {"responsibilities"}
    assert torch.equal(found.samples["assignments"], kept.samples["assignments"])
    assert torch.equal(kept.samples["responsibilities"].argmax(2), found.samples["assignments"])
    torch.testing.assert_close(found.samples["hyperparameters"], kept.samples["hyperparameters"])
    found.save(tmp_path / "posterior")
    again = Posterior.load(tmp_path / "posterior")
    torch.testing.assert_close(torch.as_tensor(again.assign(X)), torch.as_tensor(kept.assign(X)))


def test_a_coupled_joint_keeps_them_however_many_they_are(monkeypatch) -> None:
    model, (X, y) = BNMC(truncation=5, joint="and"), rows_and_targets(BNMC())
    expected = SVI(num_steps=6, tolerance=None).fit(model, X, y)
    monkeypatch.setattr(sums_of_rows, "MOST_KEPT", 0)
    found = SVI(num_steps=6, tolerance=None).fit(model, X, y)
    torch.testing.assert_close(found.samples["responsibilities"], expected.samples["responsibilities"])


@pytest.mark.parametrize("name", ["hinge", "weighted", "repelling"])
def test_sums_are_those_of_the_responsibilities(name, monkeypatch, cpu_generator) -> None:
    model, _, weights = CASES[name]
    model, data = model.prepare(*rows_and_targets(model), weights=weights)
    monkeypatch.setattr(factors, "slices", lambda data, truncation: map(lambda n: slice(n, n + 17), range(0, N, 17)))
    state = factors.allocate(partition.init(model, data, cpu_generator), data, model)
    monkeypatch.setattr(sums_of_rows, "MOST_KEPT", 0)
    sums = factors.allocate(state, data, model)
    assert sums.responsibilities.shape == (0, model.truncation)
    assert sums.num_data == N
    assert sums.total_weight == state.total_weight
    torch.testing.assert_close(sums.sizes, state.sizes)
    joined = state.responsibilities.clone()
    joined[:, 1], joined[:, 3] = joined[:, 1] + joined[:, 3], 0
    expected = retold(factors.replace(state, responsibilities=joined), data, model)
    pairs = [(sums, state), *((factors.union(each, data, model, 1, 3), expected) for each in (sums, state))]
    for ours, theirs in pairs:
        ours, theirs = (factors.update_factors(each, data, model) for each in (ours, theirs))
        for field in ("hyperparameters", "mean", "precision_tril", "sticks", "q"):
            torch.testing.assert_close(getattr(ours, field), getattr(theirs, field))


def test_the_bound_never_falls_without_responsibilities(none_kept) -> None:
    model = InfiniteSVM(truncation=10)
    posterior = SVI(num_steps=40, tolerance=0.0).fit(model, *rows_and_targets(model))
    values = posterior.trace.values[0]
    assert (values.diff() >= -1e-9 * values[1:].abs()).all()
    assert posterior.num_components < 10  # unions were taken


def test_points_that_are_dropped_come_back_with_a_step_on_all(none_kept, cpu_generator) -> None:
    """Stochastic steps forget the sums of the first rows; the first full sweep sees all rows anew."""
    model = InfiniteSVM(truncation=4)
    model, data = model.prepare(*rows_and_targets(model))
    state = partition.init(model, data, cpu_generator)
    doubled = factors.update_factors(state.scaled(2.0), data, model)
    torch.testing.assert_close(doubled.sticks.sum(0) - 2, 2 * (sticks.update_sticks(state, model).sticks.sum(0) - 2))
    forgotten = state.without_rows()
    assert forgotten.num_data == 0
    assert (forgotten.counts, forgotten.statistics) == (None, None)
    assert partition.sweep(forgotten, data, model).num_data == N


def test_a_union_whose_rise_would_not_reach_the_bound_is_given_up(monkeypatch, cpu_generator) -> None:
    model = InfiniteSVM(truncation=3)
    model, data = model.prepare(*rows_and_targets(model))
    state = partition.init(model, data, cpu_generator)
    for _ in range(5):
        state = partition.ascend(state, data, model)
    tried = []

    def update(*args, **options):
        tried.append(factors.allocate(*args, **options))
        return tried[-1]

    points = replace(partition.POINTS, allocate=update)
    monkeypatch.setattr(partition, "pairs", lambda state, model: [[0, 1]])
    still = torch.zeros(())
    assert not points.merge(state, data, model, still).may_merge
    assert not tried  # so much would be lost that nothing need be tried
    monkeypatch.setattr(partition, "is_promising", lambda *args: True)
    refused = points.merge(state, data, model, still)  # each component is a blob of its own
    assert len(tried) == 2
    assert not refused.may_merge
    torch.testing.assert_close(refused.bound, state.bound, rtol=0, atol=0)
    early = factors.replace(state, bound=state.bound - 1000)  # as if it had not converged: a union exceeds it
    refused = points.merge(early, data, model, still + 1000)  # but not what the state reaches in as many sweeps
    assert not refused.may_merge
    assert len(tried) == 2 + 1 + 2 * allocations.FAIR_ROUNDS
    assert refused.bound >= state.bound
    assert points.merge(early, data, model, still) is tried[-1]  # a lead that the state's rises will not make up


def test_a_fit_ends_with_the_first_rise_below_the_tolerance() -> None:
    model = InfiniteSVM()
    rises = SVI().fit(model, *rows_and_targets(model)).trace.values[0].diff() / N
    assert (rises[:-1] > 1e-3).all()
    assert rises[-1] <= 1e-3
