"""Conformance of a prior over partitions: urn, sticks, EPPF, jumps, draws and expectations describe one process."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import biject_to

from ..models.distributions.sampling import draw
from ..models.priors import Hyper, PartitionPrior
from ..models.priors.sticks import best_order, log_beta, log_labelled_prior, log_swap_ratio
from .enumeration import partitions
from .hyperparameters import grid_values, hyper_grid
from .requirements import named_errors, require, require_close


def check_prior(
    prior: PartitionPrior, *, num_data: int = 4, truncation: int = 5, num_draws: int = 400, seed: int = 0
) -> None:
    """Check a prior over partitions on `num_data` <= 6 points, by sums over all partitions and labellings.

    If the prior lacks sticks or jumps (`draw_rest`), only the rest is checked. Urn, EPPF (`log_partition`), sticks
    (with their infinite sum) and jumps must agree at the starting values, and near the quartiles of the hyperparameters
    that have a prior; label swaps and orders are those of the labelled prior; chains of `num_draws` draws of the
    hyperparameters have the moments that quadrature gives; q(h) is the maximum of its bound; the price never falls;
    `expected_components` is the mean over partitions.

    Raises
    ------
    AssertionError    naming the method that disagrees, and with what.
    """
    prior.checked()
    generator = torch.Generator().manual_seed(seed)
    with named_errors(prior):
        _check_sites(prior)
        h = prior.start(torch.zeros(()))
        for at in (h, *_quartiles(prior, h)):
            _check_process(prior, at, num_data, truncation, generator)
        found, mean = prior.expected_components(num_data), _mean_components(prior, h, num_data)
        require_close(found, mean, "expected_components", "is not the mean over partitions")
        _check_hyperparameters(prior, h, truncation, num_draws, generator)
        prices = [float(prior.price(1.3, num_components)) for num_components in range(1, 12)]
        require(prices[0] > 0 and prices == sorted(prices), "price", f"falls with the number of components: {prices}")


def _quartiles(prior: PartitionPrior, h: Hyper) -> Iterator[Hyper]:
    """Values of the hyperparameters near the lower and upper quartiles of their laws; none if no law is given."""
    laws = {name: law for name, law in prior.laws(torch.zeros(())).items() if law is not None}
    generator = torch.Generator().manual_seed(0)
    draws = {name: draw(law.expand((200,)), generator).sort().values for name, law in laws.items()}
    return (h | {name: values[place] for name, values in draws.items()} for place in (50, 150) if draws)


def _check_process(prior: PartitionPrior, h: Hyper, num_data: int, truncation: int, generator: torch.Generator) -> None:
    """Check that urn, EPPF, sticks and jumps at these hyperparameters belong to one process."""
    try:
        _check_urn(prior, h, num_data)
        _check_jumps(prior, h, generator)
        if not prior.lacks("sticks"):
            _check_sticks(prior, h, num_data, truncation)
    except AssertionError as error:
        values = ", ".join(f"{name} = {float(value):.3g}" for name, value in h.items())
        raise AssertionError(f"{str(error).removesuffix('.')}{values and f', at {values}'}.") from None


def _check_hyperparameters(
    prior: PartitionPrior, h: Hyper, truncation: int, num_draws: int, generator: torch.Generator
) -> None:
    counts = torch.tensor([3, 2, 1, 1])
    while prior.log_partition(counts, h) == -torch.inf and len(counts) > 1:  # more blocks than the prior allows
        counts = torch.cat([counts[:-2], counts[-2:].sum(0, keepdim=True)])
    draws = _chain(lambda at: prior.draw(at, counts, generator), h, num_draws)
    _check_moments(prior, draws, lambda at: prior.log_partition(counts, at), "draw")
    if prior.lacks("sticks"):
        return
    _check_orders(prior, h, truncation, generator)
    counts = torch.tensor([2, 0, 3, 1, 0])
    draws = _chain(lambda at: prior.draw_truncated(at, counts, generator), h, num_draws)
    _check_moments(prior, draws, lambda at: log_labelled_prior(counts, *prior.sticks(at, 5)), "draw_truncated")
    _check_expectations(prior, h, truncation, generator)


# -- one process -----------------------------------------------------------------------------------------------------


def _check_sites(prior: PartitionPrior) -> None:
    like = torch.zeros((), dtype=torch.float64)
    laws = {name: law for name, law in prior.hyperpriors(like).items() if law is not None}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        trace = poutine.trace(prior.sample).get_trace(like)
    h = trace.nodes["_RETURN"]["value"]
    require(set(trace.stochastic_nodes) == set(laws), "sample", f"has the sites {trace.stochastic_nodes}")
    require(h.keys() == prior.start(like).keys() == prior.hyperpriors(like).keys(), "start", "names other values")
    total = torch.as_tensor(sum((law.log_prob(h[name]) for name, law in laws.items()), like))
    require_close(trace.log_prob_sum(), total, "sample", "draws from other laws than hyperpriors")
    require_close(prior.log_density(h), total, "log_density", "is not that of hyperpriors")


def _check_urn(prior: PartitionPrior, h: Hyper, num_data: int) -> None:
    log_sizes, log_new = prior.urn(h, num_data, num_data)
    shapes = log_sizes.shape, log_new.shape
    require(shapes == ((num_data + 1,), (num_data + 1,)), "urn", f"has tables of shapes {shapes}")
    total = 0.0
    for sizes, joined in _extensions(num_data):
        K, log_joint = len(sizes), torch.stack([prior.log_partition(counts, h) for counts in joined])
        if prior.log_partition(sizes, h) == -torch.inf:  # more blocks than the prior allows
            require(bool((log_joint == -torch.inf).all()), "log_partition", "is not consistent in N")
            continue
        law = torch.cat([log_sizes[sizes], log_new[K : K + 1]]).log_softmax(0)
        require_close(log_joint.log_softmax(0), law, "urn", f"is not the ratio of EPPFs at sizes {sizes.tolist()}")
        require_close(log_joint.logsumexp(0), prior.log_partition(sizes, h), "log_partition", "is not consistent in N")
        require_close(prior.log_expected_weights(sizes, h), law, "log_expected_weights", "are not those of the urn")
        total += float(log_joint.logsumexp(0).exp())
    require_close(total, 1.0, "log_partition", "does not sum to one over all partitions")


def _extensions(num_data: int) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Block sizes [K] of each partition of all points but one, and those after the last one joins a block or is new."""
    for labels in partitions(num_data - 1):
        sizes = torch.bincount(torch.tensor(labels))
        one = torch.eye(len(sizes), dtype=torch.long)
        yield sizes, [*(sizes + one), torch.cat([sizes, sizes.new_ones(1)])]


def _mean_components(prior: PartitionPrior, h: Hyper, num_data: int) -> float:
    """E[K] of N points, by a sum over partitions."""
    counts = (torch.bincount(torch.tensor(labels)) for labels in partitions(num_data))
    return sum(len(sizes) * float(prior.log_partition(sizes, h).exp()) for sizes in counts)


def _check_sticks(prior: PartitionPrior, h: Hyper, num_data: int, truncation: int) -> None:
    a, b = prior.sticks(h, truncation)
    require(a.shape == b.shape == (truncation - 1,), "sticks", f"have shapes {a.shape}, {b.shape} for T = {truncation}")
    found = dict[tuple[int, ...], float]()
    for labels in itertools.product(range(truncation), repeat=num_data):
        counts = torch.bincount(torch.tensor(labels), minlength=truncation)
        log_prior = float(log_labelled_prior(counts, a, b))
        require_close(log_prior, _log_moment(counts.tolist(), a, b), "log_labelled_prior", "is no mean over sticks")
        first = tuple(dict.fromkeys(labels))
        blocks = tuple(map(first.index, labels))
        found[blocks] = found.get(blocks, 0.0) + math.exp(log_prior)
    exact = {z: float(prior.log_partition(torch.bincount(torch.tensor(z)), h).exp()) for z in partitions(num_data)}
    variation = sum(abs(found.get(z, 0.0) - weight) for z, weight in exact.items()) / 2
    a, b = prior.sticks(h, truncation + 1)
    bound = num_data * float((b / (a + b)).prod())
    require(
        variation <= bound + 1e-12, "sticks", f"are {variation:.3g} from the EPPF; at most {bound:.3g} is left after T"
    )
    # all of n points in one block: sum_k E pi_k^n, whose terms after the last stick are at most E r^n
    a, b = prior.sticks(h, _MANY)
    for n in range(2, num_data + 1):
        i = torch.arange(n, dtype=torch.float64).unsqueeze(1)
        log_v = ((a + i) / (a + b + i)).log().sum(0)
        log_left = ((b + i) / (a + b + i)).log().sum(0).cumsum(0)
        together = float((log_v + torch.cat([log_left.new_zeros(1), log_left[:-1]])).exp().sum())
        left, one = float(log_left[-1].exp()), float(prior.log_partition(torch.tensor([n]), h).exp())
        require(
            -1e-9 <= one - together <= left + 1e-9, "sticks", f"put {n} points together with {together}, the EPPF {one}"
        )


def _log_moment(counts: list[int], a: Tensor, b: Tensor) -> float:
    """log E prod_k v_k^n_k (1 - v_k)^n_>k, by products over integers."""
    log_moment = 0.0
    for k, (one, two) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        own, after = counts[k], sum(counts[k + 1 :])
        terms = [one + i for i in range(own)] + [two + i for i in range(after)]
        log_moment += sum(map(math.log, terms)) - sum(math.log(one + two + i) for i in range(own + after))
    return log_moment


def _check_orders(prior: PartitionPrior, h: Hyper, truncation: int, generator: torch.Generator) -> None:
    a, b = prior.sticks(h, truncation)
    orders = torch.tensor(list(itertools.permutations(range(truncation))))
    for trial in range(8):
        uniform = torch.rand(truncation, generator=generator, dtype=torch.float64)
        counts = (uniform < 0.7) * (6 * uniform if trial % 2 else (6 * uniform).ceil())
        log_priors = log_labelled_prior(counts[orders], a, b)
        found = log_labelled_prior(counts[best_order(counts, a, b)], a, b)
        require_close(found, log_priors.max(), "best_order", f"is not the best for counts {counts.tolist()}")
        for k in range(truncation - 1):
            swapped = counts.clone()
            swapped[[k, k + 1]] = counts[[k + 1, k]]
            ratio = log_labelled_prior(swapped, a, b) - log_labelled_prior(counts, a, b)
            rest = float(counts[k + 2 :].sum())
            swap = log_swap_ratio(counts.tolist(), k, rest, a.tolist(), b.tolist())
            require_close(swap, ratio, "log_swap_ratio", f"is not that of the labelled prior, {k} of {counts.tolist()}")


def _check_jumps(prior: PartitionPrior, h: Hyper, generator: torch.Generator) -> None:
    """In the units of the slice scan new blocks must have the total weight Gamma(w), w the urn's weight of a new block.

    Two points must meet in one of them with weight w times that of joining a block of one.
    """
    if prior.lacks("draw_rest"):
        return
    for K in (1, 3):
        log_sizes, log_new = prior.urn(h, 2, K)
        new, join = float(log_new[K].exp()), float(log_sizes[1].exp())
        exponent, mass = (
            torch.stack(part) for part in zip(*(prior.draw_rest(h, K, generator) for _ in range(2000)), strict=True)
        )
        for t in (0.5, 3.0):
            grown = torch.where(exponent > 0, torch.expm1(exponent * math.log1p(t)) / exponent, math.log1p(t))
            laplace = (-mass * torch.lgamma(1 - exponent).exp() * grown).exp()
            _require_mean(laplace, (1 + t) ** -new, "draw_rest", "has another total weight than a new block of the urn")
        meet = mass * torch.lgamma(2 - exponent).exp()
        _require_mean(meet, new * join, "draw_rest", "has jumps of other sizes than blocks of the urn")


# -- hyperparameters ---------------------------------------------------------------------------------------------------


def _chain(step: Callable[[Hyper], Hyper], h: Hyper, num_draws: int) -> list[Hyper]:
    draws = []
    for _ in range(num_draws + 20):
        h = step(h)
        draws.append(h)
    return draws[20:]


def _check_moments(
    prior: PartitionPrior, draws: list[Hyper], log_likelihood: Callable[[Hyper], Tensor], method: str
) -> None:
    """Compare means and squares of the unconstrained hyperparameters with quadrature, within five standard errors."""
    nodes, log_weights = hyper_grid(prior)
    weights = (log_weights + grid_values(log_likelihood, nodes)).softmax(0)
    for name, law in prior.hyperpriors(torch.zeros((), dtype=torch.float64)).items():
        chain = torch.stack([drawn[name] for drawn in draws])
        if law is None:
            require(bool((chain == chain[0]).all()), method, f"changes {name}, which is fixed")
            continue
        inverse = biject_to(law.support).inv
        for power in (1, 2):
            means = torch.stack([part.mean() for part in inverse(chain).pow(power).chunk(20)])
            exact = float(weights @ inverse(nodes[name]).pow(power))
            _require_mean(means, exact, method, f"has another moment {power} of {name} than quadrature")


def _check_expectations(prior: PartitionPrior, h: Hyper, truncation: int, generator: torch.Generator) -> None:
    q = prior.initial(torch.zeros((), dtype=torch.float64))
    free = any(law is not None for law in prior.hyperpriors(torch.zeros(())).values())
    if not free:
        a, b = prior.sticks(h, truncation)
        found = prior.expect(q, truncation)
        require_close(found.a, a, "expect", "has other sticks although nothing is free")
        require_close(found.b, b, "expect", "has other sticks although nothing is free")
    for _ in range(5):
        v = draw(torch.distributions.Beta(*prior.sticks(h, truncation)), generator)
        expected = torch.stack([v.log(), (1 - v).log()]) - 0.1
        best, others = prior.update(q, *expected), [q]
        for scale in (0.003, 0.1, 1.0):
            noise = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
            others += [prior.update(q, *(expected + sign * scale * noise).clamp(max=-1e-3)) for sign in (1, -1)]
        bound = _bound(prior, best, expected)
        for other in others:
            require(bool(_bound(prior, other, expected) <= bound + 1e-9), "update", "is not the maximum of its bound")
            require(bool(prior.expect(other, truncation).kl >= -1e-9), "expect", "has a negative KL")
        exact = _log_sticks(prior, expected)
        require_close(
            bound, exact, "expect", "attains another bound than the evidence of the sticks", tol=_GRID if free else 1e-8
        )


def _bound(prior: PartitionPrior, q: Tensor, expected: Tensor) -> Tensor:
    """E_q log p(v | h) - KL(q || p) [] for expectations [2, T - 1] of log v and log(1 - v)."""
    a, b, log_normalizer, kl, _ = prior.expect(q, expected.shape[1] + 1)
    return ((torch.stack([a, b]) - 1) * expected).sum() - log_normalizer - kl


def _log_sticks(prior: PartitionPrior, expected: Tensor) -> Tensor:
    """log of the integral of p(h) exp(E log p(v | h)) [], the maximum of the bound over all q(h)."""
    nodes, log_weights = hyper_grid(prior)
    a, b = prior.sticks({name: value.unsqueeze(1) for name, value in nodes.items()}, expected.shape[1] + 1)
    log_values = ((a - 1) * expected[0] + (b - 1) * expected[1] - log_beta(a, b)).sum(-1)
    return (log_values + log_weights).logsumexp(0)


def _require_mean(values: Tensor, exact: float, method: str, message: str) -> None:
    """The mean of independent values [n] within five standard errors."""
    error = float(values.std() / len(values) ** 0.5)
    off = abs(float(values.mean()) - exact)
    require(
        off <= 5 * error + 1e-9 * (1 + abs(exact)), method, f"{message}: {float(values.mean()):.6g}, not {exact:.6g}"
    )


_MANY = 20_000  # sticks; the tail after them has a bound
_GRID = 0.05  # step of a coarse grid of q(h)
