"""The least small-variance objective of tiny data by exhaustion, and many tiny problems of every structure.

    sum over components of their least cost + what the structure costs, over every partition, path, or set of features

Classifiers come from their duals, to a gap of 1e-9. `PROBLEMS` are what benchmarks/small_variance.py and the tests of
restarts fit by default settings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regbayes.inference import SmallVariance
from regbayes.inference.classifiers.duals import solve
from regbayes.models import (
    BNMC,
    DDPM,
    DIH,
    DPM,
    IHMM,
    BernoulliBeta,
    CrammerSinger,
    DiagonalGaussian,
    EpsilonInsensitive,
    Hinge,
    InfiniteLatentSVM,
    InfiniteSVM,
    LatentFeatureModel,
    LinearGaussian,
    Logistic,
    MaskedBernoulli,
    MultiTaskInfiniteLatentSVM,
    PitmanYor,
    PoissonGamma,
    Product,
    SphericalGaussian,
    SquaredHinge,
)
from regbayes.models.losses import Masked
from regbayes.models.priors.franchise import count_transitions
from regbayes.testing.enumeration import partitions


class Problem(NamedTuple):
    """A model, its data, and options of the backend."""

    model: Any
    X: Tensor
    y: Tensor | None
    lengths: list[int] | None
    options: dict[str, Any]


class Outcome(NamedTuple):
    """Where a fit ended, and the least objective of all."""

    found: float
    least: float

    @property
    def reached(self) -> bool:
        """Whether the fit is within 1 % of the least."""
        return self.found <= self.least + 0.01 * abs(self.least)


def outcome(problem: Problem, **options: Any) -> Outcome:
    """Fit a problem, and find the least objective at the penalties of the fit."""
    backend = SmallVariance(progress=False, num_jobs=1, **problem.options).replace(**options)
    posterior = backend.fit(problem.model, problem.X, problem.y, lengths=problem.lengths)
    found = float(posterior.trace.final.min())
    least = _REFERENCES[type(problem.model)](problem, posterior, posterior.backend)
    many = getattr(posterior, "num_latent_features", 0) > _MOST_FEATURES  # more than are looked at
    assert many or found >= least - 1e-3 * abs(least), (problem, found, least)
    return Outcome(found, least)


# -- exhaustion --------------------------------------------------------------------------------------------------------


def margin_cost(features: Tensor, targets: Tensor, model: Any) -> float:
    """The least |eta|^2 / (2 nu^2) - sum_n log phi of classifiers of features [n, P] for targets [n, C]."""
    loss = model.loss.loss if isinstance(model.loss, Masked) else model.loss
    if not loss.meets and targets.shape[1] > 1:
        return sum(margin_cost(features, column.unsqueeze(1), model) for column in targets.T)
    known = ~targets.isnan().any(1)
    features, targets = features[known], targets[known]
    if not targets.numel():
        return 0.0
    found = solve(features, targets, loss, model.weight_scale, tolerance=1e-9, max_passes=2000)
    cost = -loss.log_factor(features @ found.weights, targets).sum() + found.weights.square().sum() / (
        2 * model.weight_scale**2
    )
    return float(cost)


def divergence_cost(family: Any, X: Tensor, members: Tensor) -> float:
    """The least summed divergence of rows [n, D], with what the centre pays for a pseudo-observation."""
    rows, (row, weight) = family.coordinates(X)[members], family.pseudo_observation()
    sums, counts = rows.sum(0, keepdim=True), torch.tensor([float(len(rows))], dtype=torch.float64)
    if row is not None:
        sums, counts = sums + weight * row, counts + weight
    center = family.centers(sums, counts)
    cost = float(family.divergence(rows, center).sum())
    return cost if row is None else cost + weight * float(family.divergence(row.unsqueeze(0), center))


def members_of(labels: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The points of each component."""
    return [tuple(n for n, label in enumerate(labels) if label == k) for k in range(max(labels) + 1)]


def of_mixture(problem: Problem, posterior: Any, backend: SmallVariance) -> float:
    """Every partition; of components that repel every hyperplane sees all points."""
    model, penalty = posterior.model, float(posterior.samples["penalty"][0])
    return min(partition_values(model, model.data(problem.X, problem.y), penalty, backend.scale))


def partition_values(model: Any, data: Any, penalty: float, scale: float = 1.0) -> list[float]:
    """The objective of every partition, each at its best."""
    block, price = _block_cost(model, data, scale), model.prior.price
    every = partitions(data.num_data)
    return [price(penalty, max(labels) + 1) + sum(map(block, members_of(labels))) for labels in every]


def _block_cost(model: Any, data: Any, scale: float) -> Callable[[tuple[int, ...]], float]:
    """What a component costs by its points, its price apart."""

    def svm(members: tuple[int, ...]) -> float:
        if not data.features.numel():
            return 0.0
        if not model.repels:
            index = list(members)
            return margin_cost(data.features[index], data.targets[index], model)
        sides = -torch.ones(data.num_data, 1, dtype=torch.float64)
        sides[list(members)] = 1.0
        return margin_cost(data.features, sides, model)

    empty = svm(()) if model.repels else 0.0

    @cache
    def block(members: tuple[int, ...]) -> float:
        cost = scale * divergence_cost(model.likelihood, data.X, torch.tensor(members))
        return cost + svm(members) - empty

    return block


def of_states(problem: Problem, posterior: Any, backend: SmallVariance) -> float:
    """Every path of every number of states."""
    model, data = problem.model.prepare(problem.X, None, problem.lengths)
    penalty, transition = (float(posterior.samples[name][0]) for name in ("penalty", "transition_penalty"))
    return min(path_values(model, data, (penalty, transition, backend.transition_weight), backend.scale))


def path_values(model: Any, data: Any, prices: tuple[float, float, float], scale: float = 1.0) -> list[float]:
    """The objective of every path, from the prices of a state and a kind of move, and the weight of moves."""
    block, steps, values = _block_cost(model, data.points, scale), data.steps.tolist(), []
    for labels in partitions(data.num_data):
        K = max(labels) + 1
        counts = count_transitions(torch.tensor(labels), data.starts, K).double()
        spare = float(((counts > 0).sum(1) - 1).clamp(min=0).sum())
        surprise = float(torch.xlogy(counts.sum(1), counts.sum(1)).sum() - torch.xlogy(counts, counts).sum())
        observed = [tuple(m for m, t in enumerate(steps) if labels[t] == k) for k in range(K)]
        structure = sum(price * size for price, size in zip(prices, (K - 1, spare, surprise), strict=True))
        values.append(structure + sum(map(block, filter(None, observed))))
    return values


def of_labels(problem: Problem, posterior: Any, backend: SmallVariance) -> float:
    """Every partition, and of the joint "and" all bits of every label, which are independent given it."""
    model, penalty = posterior.model, float(posterior.samples["penalty"][0])
    data, mixture = model.data(problem.X, problem.y), posterior.model.mixture
    if not model.is_coupled:
        block = _block_cost(mixture, data.points, backend.scale)
        margins = margin_cost(data.features, data.targets, model)
    else:
        block = _block_cost(DPM(model.likelihood), data.inputs, backend.scale)
        bits = [_Bits(model, data, c, backend.scale) for c in range(data.targets.shape[1])]
    least = math.inf
    for labels in partitions(data.num_data):
        blocks = members_of(labels)
        cost = model.prior.price(penalty, len(blocks)) + sum(map(block, blocks))
        least = min(least, cost + (sum(one.least(blocks) for one in bits) if model.is_coupled else margins))
    return least


class _Bits:
    """All bits (a, b) with a b = y of one label."""

    def __init__(self, model: Any, data: Any, label: int, scale: float) -> None:
        family, sign = model.label_likelihood, data.targets[:, label]
        self.family, self.label, self.scale, self.pairs = family, label, scale, []
        known = torch.nonzero(~sign.isnan()).flatten().tolist()
        absent = [n for n in known if sign[n] < 0]
        self.known, margins = known, {}
        for b in itertools.product((-1.0, 1.0), repeat=len(absent)):
            targets = sign.clone()
            targets[absent] = torch.tensor(b, dtype=torch.float64)
            margins[b] = margin_cost(data.features, targets.unsqueeze(1), model)
        for a in itertools.product((0.0, 1.0), repeat=len(absent)):
            free = [b for b in margins if not any(x and y > 0 for x, y in zip(a, b, strict=True))]
            column = (sign > 0).double()
            column[absent] = torch.tensor(a, dtype=torch.float64)
            self.pairs.append((column, min(margins[b] for b in free)))

    def least(self, blocks: list[tuple[int, ...]]) -> float:
        """At a partition."""
        base = float(self.family.b[self.label] / (self.family.a[self.label] + self.family.b[self.label]))
        weight = float((self.family.a + self.family.b)[self.label])
        columns = torch.stack([column for column, _ in self.pairs])
        total = torch.tensor([margin for _, margin in self.pairs], dtype=torch.float64)
        for block in blocks:
            own = [n for n in block if n in self.known]
            ones, count = columns[:, own].sum(1), len(own)
            psi = (ones + weight * (1 - base)) / (count + weight)
            cost = -torch.xlogy(ones, psi) - torch.xlogy(count - ones, 1 - psi)
            row = torch.tensor([1 - base, base], dtype=torch.float64)
            cost += weight * ((row * row.log()).sum() - row[0] * psi.log() - row[1] * (1 - psi).log())
            total += self.scale * cost
        return float(total.min())


def of_features(problem: Problem, posterior: Any, backend: SmallVariance) -> float:
    """Every matrix of up to three features."""
    model, penalty = posterior.model, float(posterior.samples["penalty"][0])
    data, family = model.data(problem.X, problem.y), model.likelihood

    def classifiers(Z: Tensor) -> float:
        return margin_cost(torch.cat([Z, data.inputs], 1), data.targets, model) if data.targets.numel() else 0.0

    start = family.start(data.X)
    precision = float(start["noise_precision"]), float(family.loading_precision(start, data.X.shape[1])[0])
    return _least_of_columns(data.X - family.offset, precision, penalty, classifiers)


def of_tasks(problem: Problem, posterior: Any, backend: SmallVariance) -> float:
    """Every projection to up to three features, whose loadings are those of the columns of X."""
    model, penalty = posterior.model, float(posterior.samples["penalty"][0])
    data, family, precision = model.data(problem.X, problem.y), model.likelihood, (0.0, 1.0)
    if family is not None:
        start = family.start(data.X)
        precision = float(start["noise_precision"]), float(start["loading_precision"])

    def classifiers(Z: Tensor) -> float:
        return margin_cost(torch.cat([data.X @ Z, data.inputs], 1), data.targets, model)

    return _least_of_columns((data.X - (family.offset if family else 0.0)).T, precision, penalty, classifiers)


def _least_of_columns(
    rest: Tensor, precision: tuple[float, float], penalty: float, classifiers: Callable[[Tensor], float]
) -> float:
    """Of binary matrices of up to three columns: what a ridge regression of `rest` [N, D] leaves, and classifiers."""
    (N, _), (noise, ridge), found = rest.shape, precision, []
    columns = [torch.tensor(bits, dtype=torch.float64) for bits in itertools.product((0, 1), repeat=N) if any(bits)]
    for K in range(_MOST_FEATURES + 1):
        for chosen in itertools.combinations_with_replacement(columns, K):
            Z = torch.stack(chosen, 1) if K else rest.new_zeros(N, 0)
            gram = noise * Z.T @ Z + ridge * torch.eye(K, dtype=torch.float64)
            explained = noise * (torch.linalg.solve(gram, noise * Z.T @ rest) * (Z.T @ rest)).sum()
            found.append((float(noise * rest.square().sum() - explained) / 2 + penalty * K, Z))
    least = math.inf
    for cost, Z in sorted(found, key=lambda pair: pair[0]):
        if cost >= least:  # no classifier has a negative cost
            break
        least = min(least, cost + classifiers(Z))
    return least


_MOST_FEATURES = 3


_REFERENCES: dict[type, Callable[[Problem, Any, SmallVariance], float]] = {
    **dict.fromkeys((DPM, InfiniteSVM, DDPM), of_mixture),
    **dict.fromkeys((IHMM, DIH), of_states),
    **dict.fromkeys((LatentFeatureModel, InfiniteLatentSVM), of_features),
    BNMC: of_labels,
    MultiTaskInfiniteLatentSVM: of_tasks,
}


# -- problems ----------------------------------------------------------------------------------------------------------


class Draws:
    """What problems are made of."""

    def __init__(self, seed: int) -> None:
        self.seed, self.generator = seed, torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def number(self, least: float, most: float) -> float:
        """Even in its logarithm."""
        share = float(torch.rand((), generator=self.generator))
        return least * (most / least) ** share

    def one(self, *options: Any) -> Any:
        return options[int(torch.randint(len(options), (), generator=self.generator))]

    def rows(self, num_rows: int = 6, num_columns: int = 2) -> Tensor:
        """Scattered, in clusters, or in chains."""
        noise, kind = self.normal(num_rows, num_columns), self.one("scattered", "clusters", "chain")
        if kind == "scattered":
            return 2 * noise
        centers = 2 * self.normal(3, num_columns)
        if kind == "clusters":
            return centers[torch.randint(3, (num_rows,), generator=self.generator)] + 0.7 * noise
        return torch.linspace(-3, 3, num_rows, dtype=torch.float64).unsqueeze(1) * centers[:1] / 2 + 0.5 * noise

    def bits(self, *shape: int, missing: float = 0.0) -> Tensor:
        found = torch.randint(2, shape, generator=self.generator).double()
        return found.masked_fill(torch.rand(shape, generator=self.generator) < missing, torch.nan)

    def labels(self, num_classes: int = 2) -> Tensor:
        """Of six rows, every class once at least."""
        labels = torch.arange(6) % num_classes
        return labels[torch.randperm(6, generator=self.generator)]

    def prices(self, least: float = 0.5, most: float = 6.0) -> dict[str, Any]:
        """A penalty, or a number of components from which it comes."""
        if self.seed % 3 == 2:
            return {"num_components": self.one(2, 3)}
        return {"penalty": self.number(least, most), "num_components": 3}


SPHERE = SphericalGaussian(loc=0.0, variance=1.0, prior_variance=10.0)


def mixtures(seed: int) -> Problem:
    draws = Draws(seed)
    X, kind = draws.rows(), draws.one("sphere", "diagonal", "counts", "bits")
    family = {"diagonal": DiagonalGaussian(rate=1.0), "counts": PoissonGamma(), "bits": BernoulliBeta()}.get(kind)
    if kind == "counts":
        X = (2 * X.abs()).round()
    elif kind == "bits":
        X = draws.bits(6, 4)
    prior = draws.one({}, {}, {"prior": PitmanYor(price_exponent=0.8)})
    return Problem(DPM(family or SPHERE, **prior), X, None, None, draws.prices(0.3, 4.0))


def missing_bits(seed: int) -> Problem:
    draws = Draws(seed)
    X, bits = draws.rows(6, 1), draws.bits(6, 3, missing=0.3)
    model = DPM(Product([(SPHERE, 1), (MaskedBernoulli(), 3)]))
    return Problem(model, torch.cat([X, bits], 1), None, None, draws.prices(0.3, 4.0))


def infinite_svms(seed: int) -> Problem:
    draws = Draws(seed)
    loss = draws.one(Hinge(draws.number(0.3, 3.0)), Logistic(), SquaredHinge(draws.number(0.3, 3.0)))
    model = InfiniteSVM(SPHERE, loss, weight_scale=draws.number(0.3, 3.0))
    options = {"scale": draws.number(0.2, 1.0)} | draws.prices()
    return Problem(model, draws.rows(), draws.labels(), None, options)


def many_scores(seed: int) -> Problem:
    draws = Draws(seed)
    loss = draws.one(Hinge(draws.number(0.3, 3.0)), CrammerSinger(draws.number(0.3, 3.0)), EpsilonInsensitive(2.0))
    model = InfiniteSVM(SPHERE, loss, weight_scale=draws.number(0.3, 3.0))
    y = draws.normal(6) if isinstance(loss, EpsilonInsensitive) else draws.labels(3)
    return Problem(model, draws.rows(), y, None, {"scale": draws.number(0.2, 1.0)} | draws.prices())


def label_sets(seed: int, joint: str = "product", missing: float = 0.0) -> Problem:
    draws = Draws(seed)
    loss = draws.one(Hinge(draws.number(0.3, 3.0)), Logistic())
    X, Y = draws.rows(6, 1), draws.bits(6, 2 if joint == "and" else 3, missing=missing)
    model = BNMC(SPHERE, loss=loss, joint=joint, weight_scale=draws.number(0.3, 3.0))
    return Problem(model, X, Y, None, {"scale": draws.number(0.3, 1.0)} | draws.prices(0.3, 4.0))


def repelling(seed: int) -> Problem:
    draws = Draws(seed)
    loss = draws.one(Hinge(draws.number(0.3, 2.0)), Logistic())
    model = DDPM(SPHERE, loss, weight_scale=draws.number(0.5, 3.0))
    return Problem(model, draws.rows(), None, None, draws.prices())


def states(seed: int, kind: type = IHMM) -> Problem:
    draws = Draws(seed)
    model = kind(SPHERE)
    if kind is DIH:
        loss = draws.one(Hinge(draws.number(0.3, 1.0)), Logistic())
        model = DIH(SPHERE, loss, weight_scale=draws.number(0.5, 3.0))
    X = draws.rows()
    X[2 if seed % 2 else slice(0)] = torch.nan
    options = {"transition_weight": draws.one(0.0, 0.7)} | draws.prices()
    if "penalty" in options:
        options["transition_penalty"] = draws.number(0.2, 1.0)
    return Problem(model, X, None, [4, 2], options)


def latent_features(seed: int, margin: bool = False) -> Problem:
    draws = Draws(seed)
    X, family = draws.rows(5, 3), LinearGaussian(noise_variance=0.5, loading_variance=4.0)
    options = draws.prices(0.7, 4.0)
    if not margin:
        return Problem(LatentFeatureModel(family), X, None, None, options)
    loss = draws.one(Hinge(draws.number(0.3, 2.0)), Logistic())
    model = InfiniteLatentSVM(family, loss, weight_scale=draws.number(0.5, 3.0), feature_map=None)
    return Problem(model, X, draws.labels()[:5], None, options | {"scale": 1.0})


def tasks(seed: int) -> Problem:
    draws = Draws(seed)
    family = draws.one(None, LinearGaussian(noise_variance=0.5))
    real = draws.one(True, False)
    loss = EpsilonInsensitive(draws.number(0.5, 3.0)) if real else Hinge(draws.number(0.5, 3.0))
    X, Y = draws.rows(6, 3), draws.bits(6, 2, missing=0.2)
    Y[:2] = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # of every task both classes
    Y = torch.where(Y.isnan(), torch.nan, draws.normal(6, 2)) if real else 2 * Y - 1
    model = MultiTaskInfiniteLatentSVM(family, loss, weight_scale=draws.number(0.5, 3.0))
    return Problem(model, X, Y, None, draws.prices(1.0, 6.0))


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "mixtures": mixtures,
    "mixtures, missing bits": missing_bits,
    "infinite SVMs": infinite_svms,
    "infinite SVMs, many scores": many_scores,
    "label sets": label_sets,
    "label sets, missing bits": lambda seed: label_sets(seed, missing=0.3),
    'label sets, "and"': lambda seed: label_sets(seed, "and"),
    'label sets, "and", missing bits': lambda seed: label_sets(seed, "and", 0.3),
    "repelling": repelling,
    "sequences": states,
    "repelling sequences": lambda seed: states(seed, DIH),
    "latent features": latent_features,
    "latent features with a margin": lambda seed: latent_features(seed, True),
    "tasks": tasks,
}
