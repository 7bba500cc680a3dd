"""The hierarchical Dirichlet process prior over state sequences: counts, tables, weights and concentrations."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from regbayes.models import HierarchicalDirichletProcess
from regbayes.models.priors import franchise as hdp
from regbayes.models.priors.laws import law_of
from regbayes.models.priors.sticks import log_stick_weights
from regbayes.testing.enumeration import partitions
from regbayes.testing.sequences import log_path_prior

COUNTS = torch.tensor([[5, 2], [1, 3], [1, 0]])  # two states and the start row


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def first_steps(lengths: list[int]) -> Tensor:
    ends = list(itertools.accumulate([0, *lengths[:-1]]))
    return torch.tensor([t in ends for t in range(sum(lengths))])


def assert_mean(draws: Tensor, expected: Tensor) -> None:
    """Within five standard errors."""
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - expected).abs() <= 5 * error + 1e-12).all(), (draws.mean(0), expected, error)


def quadrature(log_density, least: float = -14.0, most: float = 7.0, size: int = 4001) -> tuple[Tensor, Tensor]:
    """Nodes of a positive variable, evenly spaced in its logarithm, and their normalized weights."""
    log_nodes = torch.linspace(least, most, size, dtype=torch.float64)
    return log_nodes.exp(), (log_density(log_nodes.exp()) + log_nodes).softmax(0)


def log_gamma_density(values: Tensor, shape: float, rate: float) -> Tensor:
    return torch.distributions.Gamma(double(shape), double(rate)).log_prob(values)


# -- moves -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[6], [1, 1, 4], [2, 3, 1]])
def test_moves_are_counted_from_the_state_before(lengths, device) -> None:
    states = [2, 0, 0, 1, 0, 1]
    starts = first_steps(lengths)
    expected = torch.zeros(4, 3, dtype=torch.long)
    for t, state in enumerate(states):
        expected[3 if starts[t] else states[t - 1], state] += 1
    found = hdp.count_transitions(torch.tensor(states, device=device), starts.to(device), 3)
    assert torch.equal(found.cpu(), expected)


def test_rows_have_the_prior_means() -> None:
    """All states not yet seen are one more column, which no state sticks to."""
    means = hdp.row_means(double(0.5, 0.3, 0.2), 2, 0.25)
    expected = double(0.375 + 0.25, 0.225, 0.15, 0.375, 0.225 + 0.25, 0.15, 0.5, 0.3, 0.2).view(3, 3)
    torch.testing.assert_close(means, expected)


@pytest.mark.parametrize("rho", [0.0, 0.35])
@pytest.mark.parametrize("lengths", [[4], [1, 3], [2, 2]])
def test_paths_are_drawn_from_an_urn(lengths, rho) -> None:
    """log_paths is the product of (alpha b_jk + n_jk) / (alpha + n_j.) over the steps, and sums to one."""
    alpha, means, starts = double(0.7).squeeze(), hdp.row_means(double(0.5, 0.3, 0.2), 3, rho), first_steps(lengths)
    total = 0.0
    for states in itertools.product(range(3), repeat=4):
        seen, log_urn = torch.zeros(4, 3, dtype=torch.float64), 0.0
        for t, state in enumerate(states):
            row = 3 if starts[t] else states[t - 1]
            log_urn += float(((alpha * means[row] + seen[row]) / (alpha + seen[row].sum()))[state].log())
            seen[row, state] += 1
        found = float(hdp.log_paths(hdp.count_transitions(torch.tensor(states), starts, 3), alpha, means))
        assert found == pytest.approx(log_urn, abs=1e-12)
        total += math.exp(found)
    assert total == pytest.approx(1.0, abs=1e-12)


def test_a_state_without_base_weight_costs_no_path_its_probability() -> None:
    means = hdp.row_means(double(0.6, 0.4, 0.0), 3, 0.0)
    states, starts = torch.tensor([0, 1, 1]), first_steps([3])
    wide = hdp.log_paths(hdp.count_transitions(states, starts, 3), double(1.5), means)
    narrow = hdp.log_paths(hdp.count_transitions(states, starts, 2), double(1.5), hdp.row_means(double(0.6, 0.4), 2, 0))
    torch.testing.assert_close(wide, narrow)


@pytest.mark.parametrize(
    ("lengths", "rho", "law"),
    [*((lengths, rho, None) for lengths in ([4], [1, 3], [2, 2]) for rho in (0.0, 0.35)), ([1, 3], 0.35, (2.0, 1.0))],
)
@pytest.mark.parametrize("truncated", [False, True])
def test_franchise_sums_to_one(truncated, lengths, rho, law) -> None:
    prior, starts = HierarchicalDirichletProcess(0.7, law, 1.3, law, stickiness=rho), first_steps(lengths)
    total = 0.0
    for labels in itertools.product(range(3), repeat=4) if truncated else partitions(4):
        counts = hdp.count_transitions(torch.tensor(labels), starts, 3 if truncated else max(labels) + 1)
        total += math.exp(log_path_prior(tuple(map(tuple, counts.tolist())), law_of(prior, 3 if truncated else None)))
    assert total == pytest.approx(1.0, abs=1e-12 if law is None else 1e-6)


def test_unknown_concentrations_are_integrated_out_of_the_franchise() -> None:
    """The mean of p(z) over draws of both concentrations, each of its own law."""
    counts, laws = ((1, 1), (0, 2), (1, 0)), ((2.0, 1.0), (3.0, 2.0))
    exact = log_path_prior(counts, law_of(HierarchicalDirichletProcess(1.0, laws[0], 1.0, laws[1], 0.2), None))
    nodes = [quadrature(lambda x, law=law: log_gamma_density(x, *law), size=40) for law in laws]
    total = 0.0
    for alpha, weight in zip(*nodes[0], strict=True):
        for gamma, other in zip(*nodes[1], strict=True):
            if weight * other > 1e-7:
                fixed = HierarchicalDirichletProcess(float(alpha), None, float(gamma), None, 0.2)
                total += float(weight * other) * math.exp(log_path_prior(counts, law_of(fixed, None)))
    assert math.exp(exact) == pytest.approx(total, rel=1e-4)


# -- tables ------------------------------------------------------------------------------------------------------------


def test_tables_have_the_law_of_the_restaurant() -> None:
    """p(m | n) prop. to s(n, m) (alpha b)^m with s of Stirling: for n = 4, 6, 11, 6, 1."""
    generator, size = torch.Generator().manual_seed(0), 20_000
    means, alpha = double(*[0.3] * size).view(1, size), double(2.0).squeeze()
    tables, chosen = hdp.draw_tables(torch.full((1, size), 4), alpha, means, 0.0, generator)
    law = (double(6, 11, 6, 1).log() + torch.arange(1, 5) * math.log(0.6)).softmax(0)
    assert torch.equal(chosen, tables[0])
    assert_mean(torch.nn.functional.one_hot(tables[0] - 1, 4).double(), law)


def test_tables_of_a_sticky_row_are_shared_out(device) -> None:
    """Expected tables, and those of them that tell of beta: all but a share rho / b_jj of a row's own."""
    generator = torch.Generator(device).manual_seed(3)
    rho, alpha = 0.3, double(1.4).squeeze().to(device)
    means = hdp.row_means(double(0.6, 0.4).to(device), 2, rho)
    draws = [hdp.draw_tables(COUNTS.to(device), alpha, means, rho, generator) for _ in range(1000)]
    tables, chosen = (torch.stack(parts).double().cpu() for parts in zip(*draws, strict=True))
    shape = (alpha * means).cpu()
    expected = torch.stack([(shape * (i < COUNTS) / (shape + i)) for i in range(5)]).sum(0)
    assert_mean(tables, expected)
    share = torch.ones_like(shape)
    share[:2] -= torch.diag(rho / means[:2].diagonal().cpu())
    assert_mean(chosen, (expected * share).sum(0))


# -- concentrations ----------------------------------------------------------------------------------------------------


def test_concentration_of_the_rows_is_drawn_from_its_conditional() -> None:
    """Started at p(alpha | n, m) prop. to Ga(alpha) alpha^m.. prod_j Gamma(alpha) / Gamma(alpha + n_j.), it stays."""
    generator, prior, tables = torch.Generator().manual_seed(0), (2.0, 0.5), torch.tensor([[2, 1], [1, 2], [1, 0]])
    sizes = COUNTS.sum(1).double()

    def log_density(alpha: Tensor) -> Tensor:
        rows = (torch.lgamma(alpha) - torch.lgamma(alpha + sizes.unsqueeze(1))).sum(0)
        return log_gamma_density(alpha, *prior) + tables.sum() * alpha.log() + rows

    nodes, weights = quadrature(log_density)
    start = nodes[torch.multinomial(weights, 5000, replacement=True, generator=generator)]
    draws = torch.stack([hdp.draw_row_concentration(alpha, COUNTS, tables, prior, generator) for alpha in start])
    powers = torch.stack([nodes, nodes.log(), nodes.log().square()])
    assert_mean(torch.stack([draws, draws.log(), draws.log().square()], 1), powers @ weights)


def test_rows_without_moves_tell_nothing_of_their_concentration() -> None:
    counts, tables = torch.zeros(3, 2, dtype=torch.long), torch.zeros(3, 2, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    draws = [
        hdp.draw_row_concentration(double(9.0).squeeze(), counts, tables, (2.0, 4.0), generator) for _ in range(2000)
    ]
    assert_mean(torch.stack(draws), double(0.5))


def test_top_concentration_is_drawn_from_its_conditional() -> None:
    """Started at p(gamma | m) prop. to Ga(gamma) gamma^K Gamma(gamma) / Gamma(gamma + m_..), it stays."""
    generator, prior, chosen = torch.Generator().manual_seed(1), (3.0, 1.0), torch.tensor([4, 1, 0, 2])

    def log_density(gamma: Tensor) -> Tensor:
        urn = torch.lgamma(gamma) - torch.lgamma(gamma + chosen.sum())
        return log_gamma_density(gamma, *prior) + 3 * gamma.log() + urn

    nodes, weights = quadrature(log_density)
    start = nodes[torch.multinomial(weights, 5000, replacement=True, generator=generator)]
    draws = torch.stack([hdp.draw_top_concentration(gamma, chosen, prior, generator) for gamma in start])
    powers = torch.stack([nodes, nodes.log(), nodes.log().square()])
    assert_mean(torch.stack([draws, draws.log(), draws.log().square()], 1), powers @ weights)


def test_concentrations_without_a_prior_stay() -> None:
    generator, value = torch.Generator().manual_seed(0), double(1.7).squeeze()
    assert hdp.draw_row_concentration(value, COUNTS, COUNTS, None, generator) is value
    assert hdp.draw_top_concentration(value, COUNTS.sum(0), None, generator) is value


# -- base weights ------------------------------------------------------------------------------------------------------


def test_base_weights_have_the_means_of_their_dirichlet(device) -> None:
    generator, chosen = torch.Generator(device).manual_seed(0), torch.tensor([4, 1, 2], device=device)
    gamma = double(0.5).squeeze().to(device)
    draws = torch.stack([hdp.draw_base_weights(chosen, gamma, generator) for _ in range(4000)]).cpu()
    shape = double(4, 1, 2, 0.5)
    mean = shape / shape.sum()
    assert_mean(draws, mean)
    assert_mean(draws.square(), mean * (shape + 1) / (shape.sum() + 1))


def test_sticks_are_those_of_their_tables() -> None:
    """E u_k = (1 + m_k) / (1 + gamma + m_>=k); the second value is what is left after the sticks, in logs."""
    generator, chosen, gamma = torch.Generator().manual_seed(0), torch.tensor([3, 0, 2, 1]), double(0.8).squeeze()
    draws, rests = zip(*(hdp.draw_sticks(chosen, gamma, generator) for _ in range(4000)), strict=True)
    base = torch.stack(draws).exp()
    sticks = base[:, :3] / (1 - base.cumsum(1)[:, :3] + base[:, :3])
    assert_mean(sticks, double(4 / 7.8, 1 / 4.8, 3 / 4.8))
    torch.testing.assert_close(base.sum(1), torch.ones(4000, dtype=torch.float64))
    torch.testing.assert_close(log_stick_weights(sticks).exp(), base, rtol=1e-7, atol=1e-12)
    torch.testing.assert_close(torch.stack(rests), torch.log1p(-sticks).sum(1), rtol=1e-6, atol=1e-6)
