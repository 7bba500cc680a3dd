"""The priors of latent features against simulation, quadrature and their Pyro programs."""

from __future__ import annotations

import itertools
import math

import pyro.poutine as poutine
import pytest
import torch
from torch import Tensor
from torch.distributions import Beta, Gamma

from regbayes.models import BetaBernoulli, IndianBuffetProcess
from regbayes.models.priors import features as interface
from regbayes.models.priors import indian_buffet_process as module

PRIORS = [IndianBuffetProcess(1.3), BetaBernoulli(1.3)]
LEARNED = [IndianBuffetProcess(1.3, (2.0, 1.5)), BetaBernoulli(1.3, (2.0, 1.5))]
LIKE = torch.zeros((), dtype=torch.float64)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def hyper(alpha: float) -> dict[str, Tensor]:
    return {"concentration": torch.tensor(alpha, dtype=torch.float64)}


def simulate(prior, alpha: float, K: int, num_draws: int, generator: torch.Generator) -> Tensor:
    """Probabilities [S, K] of the truncated model."""
    ordered = isinstance(prior, IndianBuffetProcess)
    u = torch.rand(num_draws, K, generator=generator, dtype=torch.float64)
    return (u ** (1 / alpha)).cumprod(1) if ordered else u ** (K / alpha)


def trace_of(prior, K: int) -> tuple[Tensor, dict]:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        trace = poutine.trace(lambda: prior.probabilities(prior.sample(LIKE), K)).get_trace()
    trace.compute_log_prob()
    sites = {name: site for name, site in trace.nodes.items() if site["type"] == "sample" and "plate" not in name}
    return trace.nodes["_RETURN"]["value"], sites


@pytest.mark.parametrize("prior", PRIORS + LEARNED)
def test_the_program_has_the_density_of_probabilities(prior) -> None:
    pi, sites = trace_of(prior, 4)
    h = {name: sites[name]["value"] if name in sites else value for name, value in prior.start(LIKE).items()}
    total = sum(site["log_prob_sum"] for site in sites.values())
    jacobian = pi[:-1].log().sum() if "sticks" in sites else 0.0
    expected = prior.log_density(h) + prior.log_probabilities(pi, h) + jacobian
    assert float(total) == pytest.approx(float(expected))
    assert ("sticks" in sites) == isinstance(prior, IndianBuffetProcess)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("K", [1, 2])
def test_the_law_of_a_matrix_sums_to_one_and_is_that_of_simulation(prior, K, generator) -> None:
    N, alpha, num_draws = 3, 1.3, 30_000
    law = {
        bits: float(prior.log_features(torch.tensor(bits).view(N, K).sum(0), N, hyper(alpha)).exp())
        for bits in itertools.product((0, 1), repeat=N * K)
    }
    assert sum(law.values()) == pytest.approx(1.0)
    pi = simulate(prior, alpha, K, num_draws, generator)
    for bits, probability in law.items():
        z = torch.tensor(bits).view(N, K)
        values = torch.where(z > 0, pi.unsqueeze(1), 1 - pi.unsqueeze(1)).prod(2).prod(1)
        assert abs(values.mean() - probability) < 5 * values.std() / num_draws**0.5


def test_both_truncations_tend_to_the_infinite_law() -> None:
    """The law of the number of rows with each feature, of 2 rows and without order, against 40 and 80 features."""
    N, alpha = 2, 0.7
    for counts in ([], [1], [2], [2, 1], [1, 1]):
        m = torch.tensor(counts, dtype=torch.float64)
        expected = IndianBuffetProcess(alpha).log_infinite(m, N, hyper(alpha))
        gaps = []
        for K in (40, 80):
            padded = torch.cat([m, m.new_zeros(K - len(m))])
            orders = math.lgamma(K + 1) - math.lgamma(K - len(m) + 1)
            gaps.append(abs(float(BetaBernoulli(alpha).log_features(padded, N, hyper(alpha)) + orders - expected)))
        assert gaps[1] < 0.6 * gaps[0] + 1e-12
        assert gaps[1] < 0.05


def test_classes_of_the_infinite_law_sum_to_one() -> None:
    """Over numbers of columns (0, 1), (1, 0) and (1, 1) of two rows."""
    prior, alpha, total = IndianBuffetProcess(0.9), 0.9, 0.0
    for numbers in itertools.product(range(12), repeat=3):
        m = torch.tensor([1.0] * (numbers[0] + numbers[1]) + [2.0] * numbers[2], dtype=torch.float64)
        orders = sum(math.lgamma(number + 1) for number in numbers)
        total += math.exp(float(prior.log_infinite(m, 2, hyper(alpha))) - orders)
    assert total == pytest.approx(1.0, abs=1e-8)
    assert prior.expected_features(2) == pytest.approx(0.9 * 1.5)


# -- draws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", LEARNED)
def test_the_concentration_given_probabilities_has_the_ratio_of_the_joint(prior, generator) -> None:
    """log of the gamma law that draws follow, by its mean and mean logarithm, is that of p(pi, alpha) in alpha."""
    pi = simulate(prior, 1.3, 5, 1, generator)[0]
    one, other = hyper(0.8), hyper(2.1)
    joint = [prior.log_probabilities(pi, h) + prior.log_density(h) for h in (one, other)]
    rate = float(-pi[-1].log()) if isinstance(prior, IndianBuffetProcess) else float(-pi.log().mean())
    law = Gamma(LIKE + 2.0 + 5, LIKE + 1.5 + rate)
    values = [h["concentration"] for h in (one, other)]
    assert float(joint[0] - joint[1]) == pytest.approx(float(law.log_prob(values[0]) - law.log_prob(values[1])))
    drawn = torch.stack([prior.draw_truncated(one, pi, generator)["concentration"] for _ in range(3000)])
    assert abs(drawn.mean() - law.mean) < 5 * law.stddev / 3000**0.5
    assert abs(drawn.log().mean() - (torch.digamma(law.concentration) - law.rate.log())) < 0.05


def test_the_concentration_given_features_has_the_ratio_of_the_infinite_law(generator) -> None:
    prior, m, N = LEARNED[0], torch.tensor([3.0, 1.0, 4.0], dtype=torch.float64), 5
    one, other = hyper(0.8), hyper(2.1)
    joint = [prior.log_infinite(m, N, h) + prior.log_density(h) for h in (one, other)]
    law = Gamma(LIKE + 2.0 + 3, LIKE + 1.5 + sum(1 / n for n in range(1, 6)))
    values = [h["concentration"] for h in (one, other)]
    assert float(joint[0] - joint[1]) == pytest.approx(float(law.log_prob(values[0]) - law.log_prob(values[1])))
    drawn = torch.stack([prior.draw(one, 3, N, generator)["concentration"] for _ in range(3000)])
    assert abs(drawn.mean() - law.mean) < 5 * law.stddev / 3000**0.5
    assert PRIORS[0].draw(one, 3, N, generator) is one


def test_probabilities_of_independent_features_given_their_counts(generator) -> None:
    prior, counts = PRIORS[1], torch.tensor([0, 3, 5])
    drawn = torch.stack(
        [prior.draw_probabilities(torch.ones(3).double(), counts, 5, hyper(1.3), generator) for _ in range(4000)]
    )
    law = Beta(1.3 / 3 + counts.double(), 1.0 + 5 - counts)
    assert ((drawn.mean(0) - law.mean).abs() < 5 * law.stddev / 4000**0.5).all()
    assert ((drawn.square().mean(0) - law.mean.square() - law.variance).abs() < 0.02).all()


def test_sticks_move_between_their_neighbours_by_the_ratio_of_the_joint(monkeypatch, generator) -> None:
    """x^(power - 1) (1 - x)^fails of every slice step is p(Z, pi) as a function of that pi alone."""
    prior, N, h = PRIORS[0], 6, hyper(1.3)
    counts, pi = torch.tensor([5, 0, 2, 0]), torch.tensor([0.9, 0.5, 0.3, 0.1], dtype=torch.float64)
    current = pi.clone()
    seen = []

    def spy(value, low, high, power, fails, generator):
        places = (0, 2) if not seen else (1, 3)
        for place, own in enumerate(places):
            assert value[place] == current[own]
            assert high[place] == (current[own - 1] if own else 1.0)
            assert low[place] == (current[own + 1] if own < 3 else 0.0)
            one, other = current.clone(), current.clone()
            other[own] = x = (low[place] + 2 * high[place]) / 3
            joint = [_log_joint(prior, at, counts, N, h) for at in (one, other)]
            logs = [(power[place] - 1) * at.log() + fails[place] * torch.log1p(-at) for at in (one[own], x)]
            assert float(joint[1] - joint[0]) == pytest.approx(float(logs[1] - logs[0]))
        moved = value * 0.97 + 0.03 * low
        for place, own in enumerate(places):
            current[own] = moved[place]
        seen.append(places)
        return moved

    monkeypatch.setattr(module, "slice_between", spy)
    found = prior.draw_probabilities(pi, counts, N, h, generator)
    assert torch.equal(found, current)
    assert len(seen) == 2


def _log_joint(prior, pi: Tensor, counts: Tensor, N: int, h) -> Tensor:
    return (torch.xlogy(counts, pi) + (N - counts) * torch.log1p(-pi)).sum() + prior.log_probabilities(pi, h)


@pytest.mark.parametrize(("power", "fails"), [(3.0, 2.0), (0.5, 7.0), (1.2, 0.0)])
def test_slice_steps_leave_their_density_invariant(power, fails, generator) -> None:
    """From exact draws of x^(power - 1) (1 - x)^fails on an interval, and on one that starts at 0."""
    for low, high in ((0.2, 0.7), (0.0, 0.7)):
        grid = torch.linspace(low, high, 20_001, dtype=torch.float64)[1:]
        cumulative = (grid ** (power - 1) * (1 - grid) ** fails).cumsum(0)
        uniform = torch.rand(8000, generator=generator, dtype=torch.float64) * cumulative[-1]
        start = grid[torch.searchsorted(cumulative, uniform).clamp(max=len(grid) - 1)].clamp(max=high - 1e-9)
        bounds = [torch.full_like(start, value) for value in (low, high, power, fails)]
        moved = interface.slice_between(start, *bounds, generator)
        assert ((moved >= low) & (moved <= high)).all()
        assert (moved != start).double().mean() > 0.9
        for function in (lambda x: x, torch.square, torch.sqrt):
            gap = function(moved) - function(start)
            assert abs(gap.mean()) < 5 * gap.std() / len(gap) ** 0.5 + 1e-4


def test_features_without_rows_are_a_poisson_process(generator) -> None:
    """Number and mean of alpha (1 - pi)^N / pi above a floor; total alpha (-log s - sum_i (1 - s)^i / i)."""
    prior, N, floor, alpha, num_draws = PRIORS[0], 4, 0.05, 1.3, 3000
    total = alpha * (-math.log(floor) - sum((1 - floor) ** i / i for i in range(1, N + 1)))
    mass = alpha * (1 - floor) ** (N + 1) / (N + 1)  # of pi itself
    draws = [prior.draw_empty(LIKE + floor, N, hyper(alpha), generator) for _ in range(num_draws)]
    numbers = torch.tensor([len(pi) for pi in draws], dtype=torch.float64)
    sums = torch.stack([pi.sum() for pi in draws])
    assert min(float(pi.min()) for pi in draws if len(pi)) >= floor
    assert abs(numbers.mean() - total) < 5 * (total / num_draws) ** 0.5
    assert abs(numbers.var() / total - 1) < 0.2
    assert abs(sums.mean() - mass) < 5 * sums.std() / num_draws**0.5


def test_active_features_have_beta_laws(generator) -> None:
    counts = torch.tensor([1, 3, 5])
    drawn = torch.stack([PRIORS[0].draw_active(counts, 5, generator) for _ in range(4000)])
    law = Beta(counts.double(), 5.0 - counts + 1)
    assert ((drawn.mean(0) - law.mean).abs() < 5 * law.stddev / 4000**0.5).all()


# -- variational factors -----------------------------------------------------------------------------------------------


def drawn_factors(prior, q, num_draws: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Probabilities [S, K] and concentrations [S] of q."""
    one, two = (
        torch._standard_gamma(shape.expand(num_draws, -1).contiguous(), generator=generator) for shape in (q.a, q.b)
    )
    sticks = one / (one + two)
    pi = sticks.cumprod(1) if isinstance(prior, IndianBuffetProcess) else sticks
    if prior.concentration_prior is None:
        return pi, q.concentration[0].expand(num_draws) / q.concentration[1]
    shape, rate = q.concentration
    return pi, torch._standard_gamma(shape.expand(num_draws).contiguous(), generator=generator) / rate


@pytest.mark.parametrize("prior", PRIORS + LEARNED)
def test_the_bound_is_below_the_expectation(prior, generator) -> None:
    """E log p(Z, pi, h) - E log q by simulation; equal for independent features and for one stick, below for more."""
    num_draws, total = 100_000, 6.0
    for K in (1, 3):
        q = prior.initial(LIKE, K)
        q = q._replace(a=q.a + torch.arange(K) + 1.0, b=q.b + 1.5)
        expected = torch.tensor([4.0, 2.5, 0.5], dtype=torch.float64)[:K]
        pi, alpha = drawn_factors(prior, q, num_draws, generator)
        ordered = isinstance(prior, IndianBuffetProcess)
        sticks = pi / torch.cat([torch.ones_like(pi[:, :1]), pi[:, :-1]], 1) if ordered else pi
        rate = alpha if ordered else alpha / K
        log_p = Beta(rate.unsqueeze(1), torch.ones_like(pi)).log_prob(sticks.clamp(1e-300, 1 - 1e-16)).sum(1)
        log_p = log_p + (expected * pi.log() + (total - expected) * torch.log1p(-pi)).sum(1)
        log_q = Beta(q.a, q.b).log_prob(sticks.clamp(1e-300, 1 - 1e-16)).sum(1)
        if prior.concentration_prior is not None:
            log_p = log_p + Gamma(*(LIKE + value for value in prior.concentration_prior)).log_prob(alpha)
            log_q = log_q + Gamma(*q.concentration).log_prob(alpha)
        values = log_p - log_q
        gap, error = float(values.mean() - prior.bound(q, expected, total)), float(5 * values.std() / num_draws**0.5)
        assert gap > -error
        if not ordered or K == 1:
            assert abs(gap) < error


@pytest.mark.parametrize("prior", PRIORS + LEARNED)
def test_an_update_of_factors_raises_the_bound_to_a_stationary_point(prior) -> None:
    expected, total = torch.tensor([4.0, 2.5, 0.5], dtype=torch.float64), 6.0
    q = prior.initial(LIKE, 3)
    before = prior.bound(q, expected, total)
    for _ in range(250):
        q = prior.update(q, expected, total)
        after = prior.bound(q, expected, total)
        assert after >= before - 1e-9
        before = after
    leaves = [q.a.clone().requires_grad_(), q.b.clone().requires_grad_()]
    prior.bound(q._replace(a=leaves[0], b=leaves[1]), expected, total).backward()
    for leaf in leaves:
        torch.testing.assert_close(leaf.grad, torch.zeros_like(leaf), atol=1e-5, rtol=0.0)
    if prior.concentration_prior is not None:
        concentration = q.concentration.clone().requires_grad_()
        prior.bound(q._replace(concentration=concentration), expected, total).backward()
        torch.testing.assert_close(concentration.grad, torch.zeros_like(concentration), atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("prior", PRIORS)
def test_log_odds_are_the_slope_of_the_bound(prior) -> None:
    """They are what a coordinate step of psi needs: the derivative in an expected count, at the optimal multinomial."""
    expected, total = torch.tensor([4.0, 2.5, 0.5], dtype=torch.float64), 6.0
    q = prior.update(prior.initial(LIKE, 3), expected, total)
    leaf = expected.clone().requires_grad_()
    prior.bound(q, leaf, total).backward()
    torch.testing.assert_close(leaf.grad, prior.log_odds(q))


def test_prices_of_features_add() -> None:
    for prior in PRIORS:
        assert prior.price(0.7, 3) == pytest.approx(2.1)


def test_a_prior_of_finitely_many_features_says_what_to_do(generator) -> None:
    prior, h = BetaBernoulli(1.3), hyper(1.3)
    assert not prior.infinite
    assert IndianBuffetProcess(1.3).infinite
    counts = torch.tensor([2])
    for name, arguments in {
        "log_infinite": (counts, 3, h),
        "draw_active": (counts, 3, generator),
        "draw_empty": (LIKE + 0.5, 3, h, generator),
        "draw": (h, 1, 3, generator),
    }.items():
        with pytest.raises(NotImplementedError, match=f"BetaBernoulli defines no {name}: use scan='blocked'"):
            getattr(prior, name)(*arguments)
