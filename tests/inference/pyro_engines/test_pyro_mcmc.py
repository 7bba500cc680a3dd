"""Our sweeps inside Pyro's MCMC: exact on programs small enough to enumerate and integrate, alone and beside others."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.contrib.autoname import scope
from pyro.infer import HMC, MCMC
from pyro.infer.mcmc import NUTS, RandomWalkKernel
from setups import LaplaceLocation, batch_errors, by_day
from torch import Tensor
from torch.nn.functional import one_hot

from regbayes.inference import PyroGibbs
from regbayes.inference.pyro_engines import multi_label, partition, sequence
from regbayes.models import (
    BNMC,
    DDPM,
    DIH,
    DPM,
    IHMM,
    BernoulliBeta,
    DirichletProcess,
    EpsilonInsensitive,
    HierarchicalDirichletProcess,
    Hinge,
    InfiniteSVM,
    LatentFeatureModel,
    Logistic,
    MultinomialDirichlet,
    SphericalGaussian,
    Standardized,
)
from regbayes.models.data import Data

X = torch.tensor([[-1.1], [-0.2], [0.5], [1.4]], dtype=torch.float64)
OTHERS = torch.tensor([[0.3], [-0.9], [1.2]], dtype=torch.float64)
Y = torch.tensor([0, 1, 0, 1])
REAL = torch.tensor([0.4, -0.7, 0.2, 1.1], dtype=torch.float64)
VARIANCE, SPREAD, NU = 0.4, 1.5, 2.0
FAMILY = SphericalGaussian(0.0, VARIANCE, SPREAD)
ONE_FEATURE: Any = {"feature_map": Standardized(0.0, 1.0, intercept=0.0), "weight_scale": NU, "truncation": 2}


# -- exact expectations given everything else that a program draws -----------------------------------------------------


class Exact(NamedTuple):
    """Of every labelling of the points: its log weight, and the means of the sites given it."""

    log_weights: Tensor  # [codes]
    means: dict[str, Tensor]  # each [codes, ...]
    codes: Tensor  # [codes, N]


def with_products(sites: dict[str, Tensor], labels: Tensor | None) -> dict[str, Tensor]:
    """Of values [S, ...] given what they are independent given: these, and their products with labels [S, N] and loc.

    Means alone hardly move if a site is drawn given the wrong labels: all of them are near those of the prior.
    """
    loc = next(value for name, value in sites.items() if "loc" in name).flatten(1)
    found = dict(sites)
    for name, value in sites.items():
        flat = value.reshape(len(value), -1, 1)
        if labels is not None:
            found[f"{name} and labels"] = flat * torch.cat([labels, labels.mean(1, keepdim=True)], 1).unsqueeze(1)
        if "loc" not in name:
            found[f"{name} and loc"] = flat * loc.unsqueeze(1)
    return found if labels is None else found | {"assignments": labels}


def mean_of(exact: Exact, *, labelled: bool = True) -> dict[str, Tensor]:
    """E of the sites, of P(z_n = 1) and of the products."""
    weights = exact.log_weights.softmax(0)
    found = with_products(exact.means, exact.codes.double() if labelled else None)
    return {name: torch.tensordot(weights, value, 1) for name, value in found.items()}


def labellings(num_data: int) -> tuple[Tensor, Tensor]:
    """All codes [2^N, N], and members [2^N, T, N]."""
    codes = torch.tensor(list(itertools.product(range(2), repeat=num_data)))
    return codes, one_hot(codes, 2).mT.double()


def gaussian_blocks(rows: Tensor, members: Tensor, variance: Any) -> tuple[Tensor, Tensor]:
    """log m [codes] of all blocks of rows [N, 1] ~ N(loc, variance), loc ~ N(0, SPREAD), and E loc [codes, T, 1]."""
    x, count = rows.squeeze(1), members.sum(2)
    precision, pull = 1 / SPREAD + count / variance, members @ x / variance
    log_norm = -(precision * SPREAD).log() - count * torch.log(2 * math.pi * torch.as_tensor(variance))
    log_m = (log_norm + pull**2 / precision - members @ x.square() / variance) / 2
    return log_m.sum(1), (pull / precision).unsqueeze(2)


def planes(log_inside: Tensor, log_outside: Tensor, eta: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """log of the integrals [codes] over each eta_k ~ N(0, NU^2) of factors [N, G], and E eta [codes, T, 1, 1]."""
    table = members @ log_inside + (1 - members) @ log_outside - (eta / NU).square() / 2
    return (table.logsumexp(2) - math.log(eta.diff()[0].reciprocal() * NU * 2.5066)).sum(1), (
        table.softmax(2) @ eta
    ).view(-1, 2, 1, 1)


ETA = torch.linspace(-7 * NU, 7 * NU, 2001, dtype=torch.float64)


def log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


def exact_mixture(
    rows: Tensor, factors: tuple[Tensor, Tensor] | None = None, variance: Any = VARIANCE, alpha: Tensor | None = None
) -> Exact:
    """A mixture of two components: alpha given, or of a Gamma(2, 1) law on a grid; classifiers by quadrature."""
    codes, members = labellings(len(rows))
    first, second = members.sum(2).unbind(1)
    free = alpha is None
    grid = torch.linspace(0.005, 25, 3000, dtype=torch.float64) if alpha is None else alpha.reshape(1)
    table = log_beta(1 + first.unsqueeze(1), grid + second.unsqueeze(1)) - log_beta(torch.ones_like(grid), grid)
    if free:
        table = table + dist.Gamma(2.0, 1.0).log_prob(grid)
    shares = table.softmax(1)
    log_m, loc = gaussian_blocks(rows, members, variance)
    sticks = (shares * (1 + first.unsqueeze(1)) / (1 + grid + len(rows))).sum(1, keepdim=True)
    log_weights, means = table.logsumexp(1) + log_m, {"sticks": sticks, "loc": loc}
    if free:
        means["concentration"] = shares @ grid
    if factors is not None:
        log_integral, means["weights"] = planes(*factors, ETA, members)
        log_weights = log_weights + log_integral
    return Exact(log_weights, means, codes)


def svm_factors(rows: Tensor, signs: Tensor, loss: Any) -> tuple[Tensor, Tensor]:
    inside = loss.log_factor(rows * ETA, signs.unsqueeze(1))
    return inside, torch.zeros_like(inside)


def repelling_factors(rows: Tensor, loss: Any) -> tuple[Tensor, Tensor]:
    scores = rows * ETA
    return loss.log_factor(scores, torch.ones(())), loss.log_factor(scores, -torch.ones(()))


# -- alone -------------------------------------------------------------------------------------------------------------


BITS = torch.tensor([[0.0], [1.0], [1.0], [torch.nan]], dtype=torch.float64)
COUNTS = torch.tensor([[2, 0], [0, 1], [1, 3], [1, 0]], dtype=torch.float64)


def exact_product(rows: Tensor = X) -> Exact:
    """Bits with a Beta(1, 2) rate in each component, and one classifier for all points."""
    found, (_, members) = exact_mixture(rows), labellings(4)
    known = ~BITS.squeeze(1).isnan()
    ones = members @ torch.where(known, BITS.squeeze(1), 0.0)
    zeros = members @ known.double() - ones
    signs = 2 * BITS[known] - 1
    table = Hinge(0.8).log_factor(rows[known] * ETA, signs).sum(0) - (ETA / NU).square() / 2
    log_rates = (log_beta(1 + ones, 2 + zeros) - log_beta(torch.tensor(1.0), torch.tensor(2.0))).sum(1)
    means = {
        **{name: found.means[name] for name in ("sticks", "concentration")},
        "loc_0": found.means["loc"],
        "probs_1": ((1 + ones) / (3 + ones + zeros)).unsqueeze(2),
        "weights": (table.softmax(0) @ ETA).expand(16, 1, 1),
    }
    return Exact(found.log_weights + log_rates + table.logsumexp(0), means, found.codes)


def exact_and() -> Exact:
    """Bits that are 1 with probability psi sigma(f): psi and w on a grid."""
    found, (_, members) = exact_mixture(X), labellings(4)
    psi, w = torch.linspace(0.002, 0.998, 250, dtype=torch.float64), ETA[::10]
    present = psi.view(1, -1, 1) * torch.sigmoid(X * w).unsqueeze(1)  # [N, psi, w]
    log_factor = torch.where(BITS.unsqueeze(1) == 1, present.log(), torch.log1p(-present))
    log_factor = torch.where(BITS.unsqueeze(1).isnan(), 0.0, log_factor)
    table = torch.einsum("ctn,npw->ctpw", members, log_factor) + dist.Beta(1.0, 2.0).log_prob(psi).unsqueeze(1)
    given_w = table.logsumexp(2)  # [codes, T, w]
    log_w = given_w.sum(1) - (w / NU).square() / 2
    psi_given_w = torch.einsum("ctpw,p->ctw", table.softmax(2), psi)
    shares = log_w.softmax(1)
    means = {
        **{name: found.means[name] for name in ("sticks", "concentration")},
        "loc_0": found.means["loc"],
        "probs_1": torch.einsum("ctw,cw->ct", psi_given_w, shares).unsqueeze(2),
        "weights": (shares @ w).view(-1, 1, 1),
    }
    return Exact(found.log_weights + log_w.logsumexp(1), means, found.codes)


def exact_multinomial() -> Exact:
    """Counts in proportion to psi sigma(f), psi ~ Dirichlet(1, 2): psi and both classifiers on grids."""
    found, (_, members) = exact_mixture(X), labellings(4)
    psi, w = torch.linspace(0.005, 0.995, 100, dtype=torch.float64), ETA[::50]
    scores = X * w
    gap = (scores.unsqueeze(2).sigmoid().log() - scores.unsqueeze(1).sigmoid().log()).flatten(1)  # [N, w w']
    log_first = torch.nn.functional.logsigmoid(torch.logit(psi).view(1, -1, 1) + gap.unsqueeze(1))
    log_second = torch.nn.functional.logsigmoid(-torch.logit(psi).view(1, -1, 1) - gap.unsqueeze(1))
    log_factor = COUNTS[:, 0].view(-1, 1, 1) * log_first + COUNTS[:, 1].view(-1, 1, 1) * log_second
    table = torch.einsum("ctn,npw->ctpw", members, log_factor) + dist.Beta(1.0, 2.0).log_prob(psi).unsqueeze(1)
    log_prior = -((w.unsqueeze(1) / NU).square() + (w / NU).square()).flatten() / 2
    log_w = table.logsumexp(2).sum(1) + log_prior
    shares = log_w.softmax(1)
    first = torch.einsum("ctpw,p,cw->ct", table.softmax(2), psi, shares)
    pairs = torch.cartesian_prod(w, w)
    means = {
        **{name: found.means[name] for name in ("sticks", "concentration")},
        "loc_0": found.means["loc"],
        "probs_1": torch.stack([first, 1 - first], 2),
        "weights": (shares @ pairs).unsqueeze(1),
    }
    return Exact(found.log_weights + log_w.logsumexp(1), means, found.codes)


ALPHA, GAMMA, RHO = 1.5, 2.0, 0.3


def exact_states(factors: tuple[Tensor, Tensor] | None = None, observed: Tensor = X) -> Exact:
    """Two sequences, of 3 and 1 steps: beta on a grid, rows in closed form."""
    codes, members = labellings(4)
    v = torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64)
    base = torch.stack([v, 1 - v], 1)
    prior = torch.stack([ALPHA * ((1 - RHO) * base + RHO * torch.eye(2)[j]) for j in (0, 1)] + [ALPHA * base], 1)
    counts = torch.zeros(16, 1, 3, 2, dtype=torch.float64)
    for code, path in enumerate(codes.tolist()):
        for before, state in zip([2, *path[:2], 2], path, strict=True):
            counts[code, 0, before, state] += 1
    after = prior + counts  # [codes, v, rows, states]
    log_path = (torch.lgamma(after) - torch.lgamma(prior)).sum((2, 3)) + (
        math.lgamma(ALPHA) - torch.lgamma(ALPHA + counts.sum(3)).sum(2) / 3
    ) * 3
    log_path = log_path + dist.Beta(1.0, GAMMA).log_prob(v)
    shares = log_path.softmax(1)
    log_m, loc = gaussian_blocks(observed, members, VARIANCE)
    rows = torch.einsum("cv,cvjk->cjk", shares, after / after.sum(3, keepdim=True))
    log_weights, means = log_path.logsumexp(1) + log_m, {"sticks": (shares @ v).unsqueeze(1), "loc": loc}
    means["transitions"] = rows
    if factors is not None:
        log_integral, means["weights"] = planes(*factors, ETA, members)
        log_weights = log_weights + log_integral
    return Exact(log_weights, means, codes)


LAW = DirichletProcess(concentration_prior=(2.0, 1.0))
FIXED = DirichletProcess(concentration=1.5)
FIXED_ALPHA = torch.tensor(1.5, dtype=torch.float64)
STICKY = HierarchicalDirichletProcess(ALPHA, None, GAMMA, None, RHO)
SIGNS = 2.0 * Y - 1
ALONE: dict[str, tuple[Any, tuple[Any, ...], Callable[[], Exact]]] = {
    "mixture": (DPM(FAMILY, LAW, truncation=2), (X,), lambda: exact_mixture(X)),
    "classes": (
        InfiniteSVM(FAMILY, Hinge(0.8), LAW, **ONE_FEATURE),
        (X, Y),
        lambda: exact_mixture(X, svm_factors(X, SIGNS, Hinge(0.8))),
    ),
    "regression": (
        InfiniteSVM(FAMILY, EpsilonInsensitive(1.5, 0.2), LAW, **ONE_FEATURE),
        (X, REAL),
        lambda: exact_mixture(X, svm_factors(X, REAL, EpsilonInsensitive(1.5, 0.2))),
    ),
    "repelling": (
        DDPM(FAMILY, Logistic(), LAW, **ONE_FEATURE),
        (X,),
        lambda: exact_mixture(X, repelling_factors(X, Logistic())),
    ),
    "label sets": (BNMC(FAMILY, BernoulliBeta(1.0, 2.0), Hinge(0.8), LAW, **ONE_FEATURE), (X, BITS), exact_product),
    "label sets, and": (
        BNMC(FAMILY, BernoulliBeta(1.0, 2.0), prior=LAW, joint="and", **ONE_FEATURE),
        (X, BITS),
        exact_and,
    ),
    "label counts": (
        BNMC(FAMILY, MultinomialDirichlet([1.0, 2.0]), prior=LAW, joint="multinomial", **ONE_FEATURE),
        (X, COUNTS),
        exact_multinomial,
    ),
    "states": (IHMM(FAMILY, STICKY, truncation=2), (X, [3, 1]), exact_states),
    "states that repel": (
        DIH(FAMILY, Logistic(), STICKY, **ONE_FEATURE),
        (X, [3, 1]),
        lambda: exact_states(repelling_factors(X, Logistic())),
    ),
}


def run(kernel: PyroGibbs, *arguments: Any, num_samples: int, warmup: int = 20) -> dict[str, Tensor]:
    """The draws of a chain, and the global stream as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        mcmc = MCMC(kernel, num_samples=num_samples, warmup_steps=warmup, disable_progbar=True)
        mcmc.run(*arguments)
    return mcmc.get_samples()


def compare(samples: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert samples.keys() == expected.keys()
    for name, value in expected.items():
        errors = batch_errors(samples[name], value, floor=1e-9)
        assert float(errors.max()) < 5, f"{name}: {samples[name].mean(0)} for {value}"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ALONE)
def test_a_model_alone_has_the_exact_means_of_all_sites(name: str) -> None:
    model, arguments, exact = ALONE[name]
    samples = run(PyroGibbs(model, split_merge=0), *arguments, num_samples=by_day(600, 2))
    labels = samples.pop("assignments", None)
    assert (labels is None) == isinstance(model, IHMM | DIH)
    compare(with_products(samples, labels), mean_of(exact(), labelled=labels is not None))


CODE = torch.tensor([1, 0, 1, 1])


def draws_given(module: Any, name: str, latents: dict[str, Tensor]) -> dict[str, Tensor]:
    """Independent draws of all sites at the state that some values make."""
    model, data = ALONE[name][0].prepare(*ALONE[name][1][:1], lengths=[3, 1] if name == "states" else None)
    generator = torch.Generator().manual_seed(2)
    draws = []
    for _ in range(800):
        state = module.to_gibbs(latents, model, data, generator)
        draws.append(module.from_gibbs(state, model, data, generator))
    return {site: torch.stack([draw[site] for draw in draws]) for site in draws[0]}


def test_sticks_and_parameters_are_drawn_given_the_labels() -> None:
    """At one labelling, where nothing but they is random: their means there are far from those of the prior."""
    known = {"concentration": FIXED_ALPHA, "weights": X.new_zeros(2, 0, 0), "assignments": CODE}
    found = draws_given(partition, "mixture", known)
    exact = exact_mixture(X, alpha=FIXED_ALPHA)
    (row,) = torch.nonzero((exact.codes == CODE).all(1)).flatten().tolist()
    for site in ("sticks", "loc"):
        assert float(batch_errors(found[site], exact.means[site][row]).max()) < 5
    assert (found["concentration"] == FIXED_ALPHA).all()
    assert (found["assignments"] == CODE).all()


def test_rows_and_sticks_are_drawn_given_the_path() -> None:
    """Emissions so far apart that the path is known: rows of alpha b + n, and the sticks that make beta."""
    rows = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]], dtype=torch.float64)
    known = {"sticks": ZERO.new_tensor([0.2]), "transitions": rows, "weights": X.new_zeros(2, 0, 0)}
    found = draws_given(sequence, "states", known | {"loc": ZERO.new_tensor([[30.0], [0.0]])})
    base = torch.tensor([0.2, 0.8], dtype=torch.float64)
    prior = ALPHA * torch.stack([(1 - RHO) * base + RHO * torch.eye(2)[j] for j in (0, 1)] + [base])
    after = prior + torch.tensor([[0.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    expected = after / after.sum(1, keepdim=True)
    assert float(batch_errors(found["transitions"], expected).max()) < 5
    torch.testing.assert_close(found["sticks"], torch.full_like(found["sticks"], 0.2))


def test_the_sum_of_psi_in_a_state_has_its_own_law() -> None:
    """g = psi times Gamma(3, 1), as psi ~ Dirichlet(1, 2)."""
    model, data = ALONE["label counts"][0].prepare(X, COUNTS)
    latents = {"probs_1": torch.tensor([[0.3, 0.7], [0.9, 0.1]], dtype=torch.float64)}
    latents |= {"weights": X.new_zeros(1, 2), "assignments": CODE}
    generator = torch.Generator().manual_seed(2)
    states = [multi_label.to_gibbs(latents, model, data, generator) for _ in range(800)]
    g = torch.stack([state.weights.squeeze(1) for state in states])
    torch.testing.assert_close(g / g.sum(2, keepdim=True), latents["probs_1"].expand_as(g))
    assert float(batch_errors(g.sum(2), torch.tensor(3.0)).max()) < 5
    assert float(batch_errors(g.sum(2).square(), torch.tensor(12.0)).max()) < 5


# -- as a part of a larger program: one more site u, on a grid ---------------------------------------------------------

ZERO = torch.zeros((), dtype=torch.float64)
SHIFT = dist.Normal(ZERO, 1.0)
SCALE = dist.Gamma(ZERO + 6.0, 5.0)
MIXTURE = DPM(FAMILY, FIXED, truncation=2)


def shifted(model: Any, law: Any = SHIFT) -> Callable[..., None]:
    """Rows less u, which is observed with noise too."""

    def program(X: Tensor, *others: Any) -> None:
        u = pyro.sample("u", law)
        pyro.sample("seen", dist.Normal(u, 0.7), obs=ZERO + 0.5)
        with scope(prefix="part"):
            model(X - u, *others)

    return program


def scaled(X: Tensor, y: Tensor) -> None:
    u = pyro.sample("u", SCALE)
    with scope(prefix="part"):
        InfiniteSVM(FAMILY, Hinge(1.5), FIXED, **ONE_FEATURE)(X / u, y)


def lifted(X: Tensor, y: Tensor) -> None:
    u = pyro.sample("u", SHIFT)
    with scope(prefix="part"):
        InfiniteSVM(FAMILY, EpsilonInsensitive(1.5, 0.2), FIXED, **ONE_FEATURE)(X, y - u)


def noisy(X: Tensor) -> None:
    u = pyro.sample("u", SCALE)
    with scope(prefix="part"):
        DPM(SphericalGaussian(0.0, u, SPREAD), FIXED, truncation=2)(X)


def two_models(X: Tensor, others: Tensor) -> None:
    u = pyro.sample("u", SHIFT)
    with scope(prefix="part"):
        MIXTURE(X - u)
    with scope(prefix="other"):
        DPM(FAMILY, LAW, truncation=2)(others + u)


def seen(u: Tensor) -> Tensor:
    return dist.Normal(u, 0.7).log_prob(ZERO + 0.5)


PARTS: dict[str, tuple[Any, tuple[Any, ...], Any, Callable[[Tensor], Tensor], dict[str, Callable[[Tensor], Exact]]]] = {
    "rows": (shifted(MIXTURE), (X,), SHIFT, seen, {"part": lambda u: exact_mixture(X - u, alpha=FIXED_ALPHA)}),
    "rows and features": (
        scaled,
        (X, Y),
        SCALE,
        torch.zeros_like,
        {"part": lambda u: exact_mixture(X / u, svm_factors(X / u, SIGNS, Hinge(1.5)), alpha=FIXED_ALPHA)},
    ),
    "targets": (
        lifted,
        (X, REAL),
        SHIFT,
        torch.zeros_like,
        {"part": lambda u: exact_mixture(X, svm_factors(X, REAL - u, EpsilonInsensitive(1.5, 0.2)), alpha=FIXED_ALPHA)},
    ),
    "a parameter of the family": (
        noisy,
        (X,),
        SCALE,
        torch.zeros_like,
        {"part": lambda u: exact_mixture(X, variance=u, alpha=FIXED_ALPHA)},
    ),
    "label sets": (shifted(ALONE["label sets"][0]), (X, BITS), SHIFT, seen, {"part": lambda u: exact_product(X - u)}),
    "states": (shifted(ALONE["states"][0]), (X, [3, 1]), SHIFT, seen, {"part": lambda u: exact_states(observed=X - u)}),
    "two models": (
        two_models,
        (X, OTHERS),
        SHIFT,
        torch.zeros_like,
        {"part": lambda u: exact_mixture(X - u, alpha=FIXED_ALPHA), "other": lambda u: exact_mixture(OTHERS + u)},
    ),
}


def exact_program(name: str) -> dict[str, Tensor]:
    """E of all sites, of their products, and of those with u."""
    _, _, law, log_rest, parts = PARTS[name]
    grid = torch.linspace(0.02, 4.0, 100, dtype=torch.float64) if law is SCALE else torch.linspace(-4, 4, 100).double()
    found = {part: [at(u) for u in grid] for part, at in parts.items()}
    log_weights = law.log_prob(grid) + log_rest(grid)
    for exacts in found.values():
        log_weights = log_weights + torch.stack([exact.log_weights.logsumexp(0) for exact in exacts])
    shares = log_weights.softmax(0)
    means = {"u": shares @ grid, "u and u": shares @ grid.square()}
    for part, exacts in found.items():
        given = [mean_of(exact, labelled=name != "states") for exact in exacts]
        for site in given[0]:
            values = torch.stack([each[site] for each in given])
            means[f"{part}/{site}"] = torch.tensordot(shares, values, 1)
            means[f"{part}/{site} and u"] = torch.tensordot(shares * grid, values, 1)
    return means


def products_of(samples: dict[str, Tensor], parts: Iterable[str]) -> dict[str, Tensor]:
    """The same of draws [S, ...]."""
    u = samples["u"]
    found = {"u": u, "u and u": u.square()}
    for part in parts:
        own = {key.removeprefix(f"{part}/"): value for key, value in samples.items() if key.startswith(f"{part}/")}
        for site, value in with_products(own, own.pop("assignments", None)).items():
            found[f"{part}/{site}"] = value
            found[f"{part}/{site} and u"] = value * u.view(-1, *[1] * (value.ndim - 1))
    return found


QUICK = partial(HMC, step_size=0.3, num_steps=2, adapt_step_size=False, adapt_mass_matrix=False)


# the ways in which a part meets the rest of a program; each structure is nightly
_DAILY = ("rows and features", "targets")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _DAILY else pytest.mark.nightly) for name in PARTS]
)
def test_a_larger_program_has_the_exact_means_of_all_sites(name: str) -> None:
    program, arguments, *_ = PARTS[name]
    samples = run(PyroGibbs(program, rest=QUICK, split_merge=0), *arguments, num_samples=860)
    compare(products_of(samples, PARTS[name][-1]), exact_program(name))


def test_sweeps_read_the_rows_at_the_present_values(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Spy:
        from_gibbs = staticmethod(partition.from_gibbs)

        @staticmethod
        def to_gibbs(latents, model, data, generator):
            seen.append(data.X)
            return partition.to_gibbs(latents, model, data, generator)

    monkeypatch.setitem(PyroGibbs.modules, Data, Spy)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        kernel = PyroGibbs(shifted(MIXTURE), rest=QUICK)
        kernel.setup(0, X)
        params = kernel.initial_params
        for _ in range(3):
            before, params = params["u"], kernel.sample(params)
            assert torch.equal(seen[-1], X - before)
            assert not torch.equal(before, params["u"])


class Watched(HMC):
    """Keeps what it is asked to move, and by which density."""

    def sample(self, params):
        assert self._fetch_from_cache()[0] is None, "the density of the last transition is still in use"
        self.seen = {name: value.clone() for name, value in params.items()}, float(self.potential_fn(params))
        return super().sample(params)


@pytest.mark.parametrize("name", PARTS)
def test_the_other_sites_move_by_the_density_of_the_whole_program(name: str) -> None:
    """Its potential is that of the joint of all sites as they are, in unconstrained space."""
    program, arguments, law, *_ = PARTS[name]
    into, kept = torch.distributions.biject_to(law.support), []

    def rest(given: Any) -> HMC:
        kept.append(Watched(given, step_size=0.2, num_steps=1))
        return kept[-1]

    with torch.random.fork_rng():
        torch.manual_seed(1)
        kernel = PyroGibbs(program, rest=rest, split_merge=0)
        kernel.setup(0, *arguments)
        params = kernel.initial_params
        for _ in range(3):
            params = kernel.sample(params)
            start, potential = kept[0].seen
            u = into(start["u"])
            values = {name: value.long() if "assignments" in name else value for name, value in params.items()} | {
                "u": u
            }
            values["part/weights"] = values.get("part/weights", X.new_zeros(2, 0, 0))
            values["other/weights"] = X.new_zeros(2, 0, 0)
            trace = poutine.trace(poutine.condition(program, data=values)).get_trace(*arguments)
            log_joint = float(trace.log_prob_sum() + into.log_abs_det_jacobian(start["u"], u))
            assert log_joint == pytest.approx(-potential, abs=1e-8)


@pytest.mark.parametrize("name", PARTS)
def test_programs_are_differentiable_in_rows_targets_and_parameters(name: str) -> None:
    """The slope in u, all other sites given, is that of finite differences."""
    program, arguments, law, *_ = PARTS[name]
    u = (law.mean + 0.1).clone().requires_grad_()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        nodes = poutine.trace(poutine.condition(program, data={"u": u.detach()})).get_trace(*arguments).nodes
    known = {key: site["value"] for key, site in nodes.items() if site["type"] == "sample" and not site["is_observed"]}

    def log_joint(at: Tensor) -> Tensor:
        return poutine.trace(poutine.condition(program, data=known | {"u": at})).get_trace(*arguments).log_prob_sum()

    (slope,) = torch.autograd.grad(log_joint(u), u)
    step = 1e-5
    expected = (log_joint(u.detach() + step) - log_joint(u.detach() - step)) / (2 * step)
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-6)


# -- what it leaves alone ----------------------------------------------------------------------------------------------


def test_alone_it_leaves_the_global_streams_and_the_parameters_alone() -> None:
    state = torch.get_rng_state()
    mcmc = MCMC(PyroGibbs(MIXTURE), num_samples=5, warmup_steps=2, disable_progbar=True)
    mcmc.run(X)
    assert torch.equal(state, torch.get_rng_state())
    assert len(pyro.get_param_store()) == 0
    assert mcmc.summary() is None  # Pyro's own table
    assert mcmc.get_samples()["assignments"].dtype == X.dtype


def test_beside_other_sites_the_global_stream_moves_as_they_move_it() -> None:
    """The same with other sweeps, and with any number of them."""
    ends = []
    with torch.random.fork_rng():
        for options in ({"seed": 0}, {"seed": 7}, {"seed": 7, "num_sweeps": 3}):
            torch.manual_seed(3)
            kernel = PyroGibbs(shifted(MIXTURE), rest=QUICK, **options)
            MCMC(kernel, num_samples=3, warmup_steps=1, disable_progbar=True).run(X)
            ends.append(torch.get_rng_state())
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def test_a_seed_repeats_a_chain_and_each_chain_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, other = (run(PyroGibbs(MIXTURE, seed=seed), X, num_samples=4)["loc"] for seed in (3, 3, 4))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    for num_cpu in (1, 4):  # one process, and one for each chain
        monkeypatch.setattr("pyro.infer.mcmc.api.mp.cpu_count", lambda found=num_cpu: found)
        alone, beside = (two_chains(PyroGibbs(program, rest=QUICK), num_cpu) for program in (MIXTURE, noisy))
        found = alone.get_samples(group_by_chain=True)["loc"]
        assert found.shape == (2, 4, 2, 1)
        assert not torch.equal(found[0], found[1])
        assert beside.get_samples()["u"].min() > 0  # where the program has it
        assert "acceptance rate" in beside.diagnostics()


def two_chains(kernel: PyroGibbs, num_cpu: int) -> MCMC:
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.filterwarnings("ignore" if num_cpu == 1 else "error", "num_chains=2 is more")
        mcmc = MCMC(kernel, num_samples=4, warmup_steps=1, num_chains=2, disable_progbar=True)
        mcmc.run(X)
    return mcmc


def test_a_chain_starts_where_it_is_told_to() -> None:
    values = {
        "u": torch.tensor([0.25], dtype=torch.float64).log(),
        "part/sticks": torch.tensor([[0.2]], dtype=torch.float64),
        "part/loc": torch.zeros(1, 2, 1, dtype=torch.float64),
        "part/assignments": torch.tensor([[0, 1, 1, 0]]),
    }
    with torch.random.fork_rng():
        kernel = PyroGibbs(noisy, rest=QUICK)
        kernel.initial_params = {name: value[0] for name, value in values.items()}
        kernel.setup(0, X)
    start = kernel.initial_params
    assert all(torch.equal(start[name], value[0].to(X.dtype)) for name, value in values.items())


def test_rows_that_a_step_sends_out_of_reach_end_it() -> None:
    """A first step far too long: rows become infinite or NaN, as in any program a divergence."""
    rest = partial(HMC, step_size=1e6, num_steps=2, adapt_step_size=False)
    samples = run(PyroGibbs(scaled, rest=rest), X, Y, num_samples=3, warmup=0)
    assert samples["u"].isfinite().all()


# -- what it refuses ---------------------------------------------------------------------------------------------------


def reading(X: Tensor) -> None:
    found = poutine.trace(MIXTURE).get_trace(X).nodes["sticks"]["value"]
    pyro.sample("read", dist.Normal(found, 1.0).to_event(1), obs=torch.zeros_like(found))


def counting(X: Tensor) -> None:
    MIXTURE(X - pyro.sample("jump", dist.Bernoulli(ZERO + 0.5)))


def twice(X: Tensor) -> None:
    MIXTURE(X)
    MIXTURE(X)


def in_a_plate(X: Tensor) -> None:
    with pyro.plate("groups", 2, dim=-2):
        MIXTURE(X)


class Wider(DPM):
    def components(self, features, targets):
        pyro.sample("own", dist.Normal(ZERO, 1.0))
        return super().components(features, targets)


REFUSED: dict[str, tuple[Any, str]] = {
    "no model": (lambda X: pyro.sample("u", SHIFT), "calls no model of ours"),
    "its sites read": (reading, "Site 'read' of the program reads what DPM draws"),
    "a discrete site": (counting, "Site 'jump' of the program is discrete"),
    "two models, one scope": (twice, "two sites named 'sticks_plate'.*scope"),
    "a power of it": (poutine.scale(MIXTURE, scale=0.5), "changes the density of DPM"),
    "in a plate": (in_a_plate, "calls DPM in the plate 'groups'"),
    "masked": (poutine.mask(MIXTURE, mask=False), "changes the density of DPM"),
    "in part observed": (poutine.condition(MIXTURE, data={"sticks": torch.tensor([0.5]).double()}), "sites.*: sticks"),
    "a site more": (Wider(FAMILY, truncation=2), "other sites than Wider has: own"),
}


@pytest.mark.parametrize("program", [MIXTURE, shifted(MIXTURE)], ids=["alone", "beside others"])
def test_arviz_reads_what_mcmc_kept(program) -> None:
    arviz = pytest.importorskip("arviz")
    if int(arviz.__version__.split(".")[0]) >= 1:
        pytest.skip("arviz 1 reads no Pyro")
    with torch.random.fork_rng():
        mcmc = MCMC(PyroGibbs(program), num_samples=4, warmup_steps=2, disable_progbar=True)
        mcmc.run(X)
        found = arviz.from_pyro(mcmc, log_likelihood=False)
    assert found.posterior.sizes["draw"] == 4
    assert int(found.sample_stats["diverging"].sum()) == len(mcmc.diagnostics()["divergences"]["chain 0"])
    assert program is not MIXTURE or not found.sample_stats["diverging"].any()


@pytest.mark.parametrize("name", REFUSED)
def test_programs_whose_density_is_not_that_of_the_sweeps_are_refused(name: str) -> None:
    program, message = REFUSED[name]
    with torch.random.fork_rng(), pytest.raises(ValueError, match=message):
        PyroGibbs(program, rest=QUICK).setup(0, X)


def test_models_without_a_blocked_scan_are_named() -> None:
    with pytest.raises(NotImplementedError, match="LatentFeatureModel has no blocked scan"):
        PyroGibbs(LatentFeatureModel(truncation=2)).setup(0, X)
    with pytest.raises(NotImplementedError, match="LaplaceLocation is no ExponentialFamily"):
        PyroGibbs(DPM(LaplaceLocation(), truncation=2)).setup(0, X)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"program": None}, "program is None; expected a Pyro program"),
        ({"num_sweeps": 0}, "num_sweeps is 0; it must be an integer of at least 1"),
    ],
    ids=repr,
)
def test_options_outside_their_domain_are_named(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PyroGibbs(**{"program": MIXTURE, **options})


@pytest.mark.parametrize("rest", [RandomWalkKernel, partial(NUTS, jit_compile=True)], ids=["no gradient", "compiled"])
def test_kernels_of_the_other_sites_that_keep_a_density_are_refused(rest: Any) -> None:
    with torch.random.fork_rng(), pytest.raises(ValueError, match=r"rest gave.*HMC or NUTS of Pyro without jit"):
        PyroGibbs(shifted(MIXTURE), rest=rest).setup(0, X)
