"""Independent draws from the exact posterior of latent features, and whether a step moves any statistic of them."""

from __future__ import annotations

import itertools
import math
from functools import partial

import torch
from scipy import stats
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regbayes.inference.gibbs.features.state import FeatureState
from regbayes.models import BetaBernoulli, InfiniteLatentSVM
from regbayes.models.latent_features import FeatureData

Entries = dict[str, Tensor]

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
