"""Gibbs scans of latent features from exact starts: what they do to draws from the posterior leaves its law as it is.

Starts are independent draws from the exact posterior, by rejection from the prior. A valid step changes the mean of no
statistic of them, which Hotelling's chi-square of the changes sees in many at once: no autocorrelation to guess, no
truncation, no chain that has to mix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from scipy import stats
from setups import Ramp
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regbayes.inference.gibbs.features import kernel as features
from regbayes.inference.gibbs.features.state import FeatureState
from regbayes.models import (
    BetaBernoulli,
    CrammerSinger,
    Hinge,
    IndianBuffetProcess,
    InfiniteLatentSVM,
    LinearGaussian,
    Loss,
)
from regbayes.models.latent_features import FeatureData

Entries = dict[str, Tensor]
Step = Callable[[FeatureState, FeatureData, InfiniteLatentSVM, torch.Generator], FeatureState]

# -- exact starts ------------------------------------------------------------------------------------------------------

NUM_PROPOSALS = 20000


def exact_states(
    model: InfiniteLatentSVM, data: FeatureData, number: int, infinite: bool, generator: torch.Generator
) -> list[FeatureState]:
    """Independent draws from the exact posterior, features of the infinite model in an order that says nothing."""
    states: list[FeatureState] = []
    while len(states) < number:
        alpha, entries = concentrations(model, generator), precisions(model, data, generator)
        bits, pi = open_bits(model, alpha, data.num_data, infinite, generator)
        weights, kept = keep(model, data, bits, entries, generator)
        bits, weights, alpha, pi = bits[kept], weights[kept], alpha[kept], pi[kept]
        entries = {name: value[kept] for name, value in entries.items()}
        loadings, inputs = draw_loadings(model, data, bits, entries, generator), torch.ones(data.inputs.shape[1]) > 0
        for s, own in enumerate(bits.any(1) | (not infinite)):
            columns = bits[s][:, own].to(torch.int8), loadings[s, own], weights[s, torch.cat([own, inputs])]
            hyper, probabilities = {"concentration": alpha[s]}, None if infinite else pi[s]
            states.append(
                FeatureState(*columns, probabilities, hyper, {name: value[s] for name, value in entries.items()})
            )
    return states[:number]


def concentrations(model: InfiniteLatentSVM, generator: torch.Generator) -> Tensor:
    """alpha [S] as its prior has it, if there is one."""
    start = torch.full((NUM_PROPOSALS,), model.prior.concentration, dtype=torch.float64)
    if model.prior.concentration_prior is None:
        return start
    shape, rate = model.prior.concentration_prior
    return torch._standard_gamma(torch.full_like(start, shape), generator=generator) / rate


def precisions(model: InfiniteLatentSVM, data: FeatureData, generator: torch.Generator) -> Entries:
    """Precisions [S] of noise a and loadings as their priors have them; of noise a^((n - 1) / 2) times that for each
    column of n observed entries, which comes near to what these make of it."""
    drawn, laws = model.likelihood.start(data.X), model.likelihood.hyperpriors(data.X)
    for name, law in laws.items():
        drawn[name] = drawn[name].expand(NUM_PROPOSALS)
        if law is not None:
            shape = law.concentration + (name == "noise_precision") * (seen(data).sum(0) - 1).sum() / 2
            drawn[name] = torch._standard_gamma(shape.expand(NUM_PROPOSALS), generator=generator) / law.rate
    return drawn


def seen(data: FeatureData) -> Tensor:
    """Which entries [N, D] are observed, 0 or 1."""
    return data.counted.expand_as(data.X)


def open_bits(
    model: InfiniteLatentSVM, alpha: Tensor, N: int, infinite: bool, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Bits [S, N, K] from their prior, with the probabilities [S, K] of the truncated model.

    In the infinite model columns with a history of m rows are Poisson(alpha (N - m)! (m - 1)! / N!) many; columns of
    zeros fill up.
    """
    uniforms = partial(torch.rand, generator=generator, dtype=torch.float64)
    S, K = len(alpha), model.truncation
    if not infinite:
        independent = isinstance(model.prior, BetaBernoulli)
        sticks = uniforms(S, K) ** ((K if independent else 1) / alpha.unsqueeze(1))
        pi = sticks if independent else sticks.cumprod(1)
        return (uniforms(S, N, K) < pi.unsqueeze(1)).double(), pi
    histories = torch.tensor([*itertools.product((0.0, 1.0), repeat=N)], dtype=torch.float64).flip(0)
    m = histories[:-1].sum(1)
    each = (torch.lgamma(N - m + 1) + torch.lgamma(m) - math.lgamma(N + 1)).exp()
    ends = torch.poisson(alpha.unsqueeze(1) * each, generator=generator).cumsum(1)
    which = (ends.unsqueeze(1) <= torch.arange(int(ends.max())).unsqueeze(1)).sum(2)
    which = which.gather(1, uniforms(*which.shape).argsort(1))
    return histories[which].mT.contiguous(), alpha


def keep(
    model: InfiniteLatentSVM, data: FeatureData, bits: Tensor, entries: Entries, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Weights [S, K + P, C] from their prior, and which [S] are kept: by p(X | Z, a) p(y | Z, eta) over a bound of it.

    No covariance above I / a makes a column x of X likelier than I / a + u x x^T does at its best u. What is left of
    the powers of a learned a is a^(1/2) a column, with which that is never more than at a = 1 / |x|^2.
    """
    S, _, K = bits.shape
    shape = S, K + data.inputs.shape[1], data.targets.shape[1]
    weights = model.weight_scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    scores = torch.cat([bits, data.inputs.expand(S, -1, -1)], 2) @ weights
    log_margin = model.log_margin(scores, data.targets).sum(1)
    a, own = entries["noise_precision"].view(-1, 1), bits.unsqueeze(1) * seen(data).T.unsqueeze(-1)  # [S, D, N, K]
    scaled = own @ own.mT * (a / entries["loading_precision"].view(-1, 1))[..., None, None]
    scaled.diagonal(dim1=-2, dim2=-1).add_(1.0)  # a times the covariance
    x = (seen(data) * (data.X - model.likelihood.offset)).T  # [D, N]
    square = a * (x * torch.linalg.solve(scaled, x.expand(S, -1, -1))).sum(2)
    log_entries = -(torch.logdet(scaled) + square) / 2  # [S, D]
    size = a * x.square().sum(1)
    log_bound = -torch.where(size > 1, size.log() + 1, size) / 2
    if model.likelihood.learn:
        log_entries, log_bound = log_entries + a.log() / 2, -(x.square().sum(1).log() + 1) / 2
    assert (log_entries <= log_bound + 1e-9).all()
    log_level = torch.rand(S, generator=generator, dtype=torch.float64).log()
    return weights, log_level < log_margin + (log_entries - log_bound).sum(1)


def draw_loadings(
    model: InfiniteLatentSVM, data: FeatureData, bits: Tensor, entries: Entries, generator: torch.Generator
) -> Tensor:
    """Loadings [S, K, D] given bits and entries."""
    noise, loading = (entries[f"{name}_precision"].view(-1, 1, 1, 1) for name in ("noise", "loading"))
    Z, own = bits.unsqueeze(1), seen(data).T.unsqueeze(-1)  # [S, 1, N, K], [D, N, 1]
    covariance = torch.linalg.inv(loading * torch.eye(bits.shape[2], dtype=torch.float64) + noise * Z.mT @ (own * Z))
    x = (data.X - model.likelihood.offset).T.unsqueeze(-1)
    mean = noise * covariance @ Z.mT @ (own * x)  # [S, D, K, 1]
    drawn = mean + torch.linalg.cholesky(covariance) @ torch.randn(mean.shape, generator=generator, dtype=torch.float64)
    return drawn.squeeze(-1).mT


# -- what is compared --------------------------------------------------------------------------------------------------


def statistics(states: list[FeatureState], data: FeatureData) -> Tensor:
    """Numbers [R, G] of states, of the infinite model those that do not depend on the order of its features."""
    K = [len(state.loadings) for state in states]
    pad = partial(pad_sequence, batch_first=True)
    bits = pad([state.features.T.double() for state in states])  # [R, K, N]
    loadings = pad([state.loadings for state in states])
    weights = pad([state.weights[:k] for state, k in zip(states, K, strict=True)])
    inputs = torch.stack([state.weights[k:] for state, k in zip(states, K, strict=True)])
    means, scores = bits.mT @ loadings, bits.mT @ weights + data.inputs @ inputs
    alone = bits * (bits.sum(2, keepdim=True) == 1)
    numbers = [means, means.square(), scores, scores.square(), means[..., :1] * scores, bits.mT @ bits, alone.sum(1)]
    numbers += [inputs, loadings.square().sum(1), weights.square().sum(1), scores > 1, scores < -1]
    numbers += [bits.any(2).sum(1)]
    numbers += [torch.stack([state.hyper["concentration"].log() for state in states])]
    numbers += [torch.stack([state.entries[name].log() for state in states]) for name in states[0].entries]
    codes = (bits @ 2.0 ** torch.arange(data.num_data).double()).long()  # [R, K], histories as numbers
    if states[0].probabilities is None:
        codes = codes.sort(1, descending=True).values
    else:
        numbers += [torch.stack([state.probabilities for state in states if state.probabilities is not None])]
    matrices = (codes * 2 ** (data.num_data * torch.arange(codes.shape[1]))).sum(1)
    _, matrix, counts = matrices.unique(return_inverse=True, return_counts=True)
    numbers += [torch.nn.functional.one_hot(matrix)[:, counts >= 50]]
    return torch.cat([number.double().flatten(1) if number.dim() > 1 else number.unsqueeze(1) for number in numbers], 1)


def drift(before: list[FeatureState], after: list[FeatureState], data: FeatureData) -> float:
    """Probability of changes as large as those of the means of the statistics, were there none.

    The smaller one of that of all together (Hotelling's test) and of the largest one times their number.
    """
    one, other = statistics(before + after, data).chunk(2)
    change = other - one
    change = change[:, change.std(0) > 0]
    change = change / change.std(0)
    values, directions = torch.linalg.eigh(torch.cov(change.T))
    apart = values > 1e-6  # statistics may be sums of others
    freedom, number = int(apart.sum()), len(change)
    square = number * ((change.mean(0) @ directions[:, apart]).square() / values[apart]).sum()
    scale = (number - freedom) / (freedom * (number - 1))
    largest = float(change.mean(0).abs().max()) * number**0.5
    singly = 2 * change.shape[1] * stats.norm.sf(largest)
    return float(min(stats.f.sf(float(square) * scale, freedom, number - freedom), singly))


# -- sweeps and scans --------------------------------------------------------------------------------------------------

X = torch.tensor([[0.9, -0.4], [1.2, 0.5], [-0.8, 0.9]], dtype=torch.float64)
SIGNS, CLASSES = torch.tensor([1, -1, 1]), torch.tensor([0, 2, 1])
HOLES = torch.tensor([[3.9, math.nan], [4.2, 3.5]], dtype=torch.float64)  # far from 0, which stands for a missing one
LEARNED = 1.0, (2.0, 1.5)


def model_of(learn: bool = False, offset: float = 0.1, **options: Any) -> InfiniteLatentSVM:
    likelihood = LinearGaussian(offset=offset, noise_variance=0.5, loading_variance=1.5, learn=learn)
    defaults = {"loss": Hinge(1.0), "prior": IndianBuffetProcess(1.0), "truncation": 2, "feature_map": None}
    return InfiniteLatentSVM(likelihood, **(defaults | options))


def scan_alone(
    state: FeatureState, data: FeatureData, model: InfiniteLatentSVM, generator: torch.Generator, *, scan: str
) -> FeatureState:
    """The bits alone, without the draw of all else that ends a sweep."""
    return features._SCANS[scan](state, features.observe_entries(state, data, model, generator), generator)


def check_exact(step: Step, model: InfiniteLatentSVM, data: FeatureData, number: int, infinite: bool) -> None:
    """The step moves no statistic of so many exact states."""
    generator = torch.Generator().manual_seed(0)
    before = exact_states(model, data, number, infinite, generator)
    after = [step(state, data, model, generator) for state in before]
    assert drift(before, after, data) > 1e-5


NIGHTLY = (pytest.mark.slow, pytest.mark.nightly)
CASES = {
    "two rows": (model_of(), X[:2, :1], SIGNS[:2]),
    "learned": (model_of(prior=IndianBuffetProcess(*LEARNED)), X[:2, :1], SIGNS[:2]),
    "two columns": (model_of(), X[:2], SIGNS[:2]),
    "classes": (model_of(loss=CrammerSinger(0.8)), X[:2, :1], CLASSES[:2]),
    "three rows": (model_of(), X[:, :1], SIGNS),
    "holes": (model_of(learn=True, offset=3.1), HOLES, SIGNS[:2]),
    "independent": (model_of(prior=BetaBernoulli(*LEARNED)), X[:2, :1], SIGNS[:2]),
    "ramp": (model_of(loss=Ramp(), prior=IndianBuffetProcess(*LEARNED)), HOLES, SIGNS[:2]),
    "three rows of a ramp": (model_of(loss=Ramp()), X[:, :1], SIGNS),
}


@pytest.mark.parametrize(
    ("scan", "name", "number"),
    [
        ("collapsed", "learned", 1200),
        ("slice", "learned", 1200),
        ("blocked", "learned", 1200),
        ("collapsed", "holes", 800),
        ("collapsed", "ramp", 500),
        pytest.param("blocked", "independent", 1200, marks=pytest.mark.slow),
        pytest.param("slice", "holes", 800, marks=NIGHTLY),
        pytest.param("blocked", "holes", 1200, marks=NIGHTLY),
        pytest.param("slice", "ramp", 800, marks=NIGHTLY),
        pytest.param("blocked", "ramp", 800, marks=NIGHTLY),
        pytest.param("collapsed", "classes", 3000, marks=NIGHTLY),
        pytest.param("blocked", "classes", 1200, marks=NIGHTLY),
    ],
)
def test_a_sweep_leaves_the_exact_posterior_as_it_is(scan: str, name: str, number: int) -> None:
    model, rows, targets = CASES[name]
    model, data = model.prepare(rows, targets)
    check_exact(partial(features.sweep, scan=scan), model, data, number, scan != "blocked")


@pytest.mark.parametrize(
    ("scan", "name", "number"),
    [
        ("collapsed", "three rows", 3000),
        ("slice", "two columns", 1500),
        pytest.param("blocked", "classes", 6000, marks=NIGHTLY),
        pytest.param("collapsed", "three rows of a ramp", 2000, marks=NIGHTLY),
        pytest.param("collapsed", "two columns", 6000, marks=NIGHTLY),
        pytest.param("collapsed", "classes", 6000, marks=NIGHTLY),
        pytest.param("slice", "classes", 2500, marks=NIGHTLY),
        pytest.param("blocked", "three rows", 6000, marks=NIGHTLY),
    ],
)
def test_a_scan_leaves_the_exact_posterior_as_it_is(scan: str, name: str, number: int) -> None:
    model, rows, targets = CASES[name]
    model, data = model.prepare(rows, targets)
    check_exact(partial(scan_alone, scan=scan), model, data, number, scan != "blocked")


@pytest.mark.parametrize(
    "loss", [Hinge(0.5), *(pytest.param(each, marks=NIGHTLY) for each in (CrammerSinger(0.3), Ramp()))]
)
def test_features_of_a_lone_row_keep_their_exact_law(loss: Loss) -> None:
    """All features are the row's own: what is left of the scan are the Metropolis-Hastings steps of their block.

    Evidences differ and margins are weak, or a step would hardly need the old margin: phi <= 1 is a rejection step.
    """
    rows = torch.tensor([[1.5, -1.5], [0.0, 0.3], [0.4, 0.2]], dtype=torch.float64)
    model = model_of(loss=loss, prior=IndianBuffetProcess(0.5))
    model, data = model.prepare(rows, CLASSES if loss.meets else SIGNS)
    check_exact(partial(scan_alone, scan="collapsed"), model, data.rows(slice(0, 1)), 14000, True)
