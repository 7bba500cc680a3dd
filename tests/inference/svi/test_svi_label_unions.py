"""The mixture of a multi-label model climbs block by block, and unions of components that gain are made at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from variational import elbo

from regbayes.inference.classifiers import ridge
from regbayes.inference.classifiers.natural import natural_step, prior
from regbayes.inference.svi import factors, sums
from regbayes.inference.svi.label_sets import kernel, unions
from regbayes.inference.svi.label_sets.blocks import log_marginal_of_unions
from regbayes.inference.svi.partition import kernel as partition
from regbayes.inference.svi.partition.unions import gain
from regbayes.models import BNMC, Logistic, MultinomialDirichlet, PrincipalDirections, SparseRows
from regbayes.models.likelihoods.counts import log_rising

GENERATOR = torch.Generator().manual_seed(6)
N, V = 80, 12
TOPICS = 4.0 * torch.rand((3, V), generator=GENERATOR, dtype=torch.float64) ** 4
COUNTS = torch.poisson(TOPICS[torch.arange(N) % 3], generator=GENERATOR)
BITS = (torch.rand((N, 2), generator=GENERATOR, dtype=torch.float64) < 0.4).double()
SEEN = PrincipalDirections(loc=COUNTS.mean(0), axes=torch.eye(V, dtype=torch.float64)[:, :3])
MODEL = BNMC(MultinomialDirichlet(), feature_map=SEEN, truncation=8)
LABELS = {"bits": (MODEL, BITS), "counts": (MODEL.replace(label_likelihood=MultinomialDirichlet(0.7)), 2 * BITS)}


def started(name: str, sparse: bool = True):
    """A state after one round, rows with weights, and the model."""
    model, labels = LABELS[name]
    rows = (SparseRows.of(COUNTS), SparseRows.of(labels)) if sparse else (COUNTS, labels)
    model, data = model.prepare(*rows, weights=1.0 + torch.arange(N, dtype=torch.float64) % 3)
    state = kernel.init(model, data, torch.Generator().manual_seed(0))
    return kernel.MIXTURE.ascend(state, data, model), data, model


@pytest.mark.parametrize("most", [0, sums.MOST_KEPT], ids=["dropped", "kept"])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("name", LABELS)
def test_a_round_of_blocks_is_that_of_joined_rows(name: str, sparse: bool, most: int, monkeypatch) -> None:
    monkeypatch.setattr(sums, "MOST_KEPT", most)
    state, data, model = started(name, sparse)
    assert state.num_dropped == (0 if most else N)
    moved, plain = kernel.MIXTURE.ascend(state, data, model), partition.ascend(state, data.points, model.mixture)
    for field in ("hyperparameters", "sticks", "q", "responsibilities", "counts", "statistics", "sizes", "bound"):
        found, expected = getattr(moved, field), getattr(plain, field)
        assert (found is None) == (expected is None)
        if found is not None:
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, msg=field)


@pytest.mark.parametrize("name", LABELS)
def test_block_marginals_of_unions(name: str) -> None:
    state, _, model = started(name)
    first, second = torch.combinations(torch.arange(model.truncation)).T.contiguous()
    chi, family = state.hyperparameters, model.family
    expected = family.log_marginal(chi[first] + chi[second] - family.prior())
    torch.testing.assert_close(log_marginal_of_unions(family, chi, first, second), expected, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("most", [0, sums.MOST_KEPT], ids=["dropped", "kept"])
def test_unions_that_gain_are_made_until_none_does(most: int, monkeypatch) -> None:
    """Each raises the bound of the best q(v) and q(theta) by its gain; none is left that would."""
    monkeypatch.setattr(sums, "MOST_KEPT", most)
    state, data, model = started("bits")
    joined = state = kernel.update_factors(state, data, model)
    while rounds := list(unions.gainful(joined, data, model)):
        before, (joined,) = int((joined.sizes > 0.5).sum()), rounds
        assert before // 2 <= (joined.sizes > 0.5).sum() < before  # half of them stay
    pairs = torch.combinations(torch.nonzero(joined.sizes > 0.5).squeeze(1)).tolist()
    assert (joined.sizes > 0.5).sum() < (state.sizes > 0.5).sum()
    assert all(gain(joined, data.points, model.mixture, *pair) <= 0 for pair in pairs)
    told = kernel.update_factors(joined, data, model)
    torch.testing.assert_close(told.hyperparameters, joined.hyperparameters)
    torch.testing.assert_close(joined.sizes.sum(), state.sizes.sum())
    if most:
        assert elbo(told, data.points, model.mixture) > elbo(state, data.points, model.mixture)
    assert kernel.MIXTURE.ascend(joined, data, model).bound > state.bound


def test_the_sums_of_a_union_add_up(monkeypatch) -> None:
    monkeypatch.setattr(sums, "MOST_KEPT", 0)
    state, data, model = started("bits")
    state = kernel.update_points(kernel.update_factors(state, data, model), data, model)
    found, expected = unions.united(state, model, 1, 0), factors.union(state, data.points, model.mixture, 1, 0)
    torch.testing.assert_close(found.counts, expected.counts)
    torch.testing.assert_close(found.statistics, expected.statistics)


def test_the_start_of_stochastic_steps_makes_no_union_that_only_rounds_could_tell() -> None:
    state, data, model = started("bits")
    for _ in range(60):
        before, state = state.bound, kernel.START.sweep(state, data, model)
        assert state.bound >= before - 1e-9
    assert not state.may_merge
    assert not list(kernel.gainful(state, data, model))
    stands = kernel.extrapolate(state, data, model, 10 * N, 10 * data.total_weight)
    assert stands.label_mean.norm() > 0
    torch.testing.assert_close(stands.sticks.sum(0)[0] - 1 - 1, 10 * state.sizes.sum(), rtol=0.05, atol=0)


# -- what is computed once ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_ridges", [2, 20], ids=["few", "many"])
def test_products_of_features_serve_moments_and_sums(num_ridges: int, monkeypatch) -> None:
    monkeypatch.setattr(ridge, "_chunks", lambda features, width: (slice(k, k + 7) for k in range(0, len(features), 7)))
    like: dict = {"generator": torch.Generator().manual_seed(0), "dtype": torch.float64}
    features, targets = torch.randn((40, 5), **like), torch.randn((40, num_ridges), **like).sign()
    q = prior(1, 5, num_ridges, 1.3, features)
    q = natural_step(q, ridge.soft_sums(features, *torch.rand((2, 40, 1, num_ridges), **like), torch.ones(40, 1)), 1.3)
    loss, each = Logistic(), torch.rand((40, 1), **like)

    def observe(rows, mean, variance):
        return *loss.expect(mean, variance, targets[rows].unsqueeze(1)), each[rows]

    mean, variance, (gram, linear) = ridge.moments_and_sums(q, features, observe)
    for found, expected in zip((mean, variance), q.moments(features), strict=True):
        torch.testing.assert_close(found, expected)
    expected_sums = ridge.soft_sums(features, *observe(slice(None), mean, variance))
    for found, expected in zip((gram, linear), expected_sums, strict=True):
        torch.testing.assert_close(found, expected)


def test_rising_factorials_of_counts() -> None:
    counts = torch.poisson(9 * torch.rand((30, V), generator=GENERATOR, dtype=torch.float64) ** 4, generator=GENERATOR)
    shapes = 10.0 ** (6 * torch.rand((5, V), generator=GENERATOR, dtype=torch.float64) - 4)
    expected = (torch.lgamma(shapes + counts.unsqueeze(1)) - torch.lgamma(shapes)).sum(-1)
    rows = SparseRows.of(counts)
    for X in (counts, rows, rows):  # the second time by what was found in the first
        torch.testing.assert_close(log_rising(X, shapes), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(log_rising(rows, 2 * shapes), log_rising(counts, 2 * shapes))
    assert counts.max() > 4


def test_columns_of_sparse_rows_are_found_once() -> None:
    rows = SparseRows.of(COUNTS)
    torch.testing.assert_close(rows.between(3, 7).to_dense(), COUNTS[:, 3:7])
    assert rows.between(3, 7) is rows.between(3, 7)
    assert "_found" not in replace(rows).__dict__
