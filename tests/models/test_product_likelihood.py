"""Blocks of columns with a family each: conformance, missing bits, and the product in every backend of mixtures."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from negative_binomial import NegativeBinomial
from setups import first_appearance, label_law
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from regbayes.estimators import Clusterer
from regbayes.inference import SVI, Gibbs, Posterior, SmallVariance
from regbayes.inference.gibbs.moves.union import Union
from regbayes.inference.gibbs.points import Points
from regbayes.inference.gibbs.scans import collapsed
from regbayes.inference.gibbs.state import PartitionState
from regbayes.inference.small_variance.problem import Problem
from regbayes.models import (
    DPM,
    BernoulliBeta,
    DiagonalGaussian,
    DirichletProcess,
    ExponentialFamily,
    FullGaussian,
    InfiniteSVM,
    MaskedBernoulli,
    MultinomialDirichlet,
    PoissonGamma,
    Product,
    SparseRows,
    SphericalGaussian,
)
from regbayes.models.compiled import is_compiled
from regbayes.models.domains import OneOf, PositiveNumbers
from regbayes.models.likelihoods.base import hyperparameter
from regbayes.models.likelihoods.product import columns_of, join_columns
from regbayes.testing import check_kernel, check_likelihood, check_model
from regbayes.testing.enumeration import partition_log_weights

pytestmark = pytest.mark.usefixtures("few_restarts")

GENERATOR = torch.Generator().manual_seed(1)
NUMBERS = torch.randn((12, 3), generator=GENERATOR, dtype=torch.float64)
COUNTS = torch.poisson(torch.full((12, 4), 3.0, dtype=torch.float64), generator=GENERATOR)
BITS = (torch.rand((12, 3), generator=GENERATOR, dtype=torch.float64) < 0.4).double()
HOLES = BITS.masked_fill(torch.rand((12, 3), generator=GENERATOR) < 0.3, torch.nan)

PRODUCTS = {
    "gaussian-bernoulli": (Product([(DiagonalGaussian(), 3), (BernoulliBeta(1.0, 2.0), 3)]), [NUMBERS, BITS]),
    "counts-bits": (Product([(MultinomialDirichlet(), 4), (MaskedBernoulli(), 3)]), [COUNTS, HOLES]),
    "gaussians": (Product([(FullGaussian(), 2), (SphericalGaussian(), 1)]), [NUMBERS]),
    "three": (
        Product([(PoissonGamma(), 4), (SphericalGaussian(), 3), (BernoulliBeta(0.5, 1.5), 3)]),
        [COUNTS, NUMBERS, BITS],
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_conformance(name: str) -> None:
    family, blocks = PRODUCTS[name]
    check_likelihood(family, torch.cat(blocks, 1))


@pytest.mark.parametrize("bits", [BITS, HOLES], ids=["all known", "some missing"])
def test_conformance_of_bits_that_may_be_missing(bits: Tensor) -> None:
    check_likelihood(MaskedBernoulli(0.5, 1.5), bits)


@pytest.mark.parametrize("name", PRODUCTS)
def test_sparse_rows_say_what_dense_ones_do(name: str) -> None:
    family, blocks = PRODUCTS[name]
    X = torch.cat(blocks, 1)
    family, sparse = family.resolve(X), SparseRows.of(X)
    shares = torch.rand((len(X), 2), generator=GENERATOR, dtype=torch.float64)
    chi = family.prior() + family.weighted_statistics(X, shares)
    labels = torch.arange(len(X)) % 3
    readings = {
        "statistics": (),
        "log_base_measure": (),
        "log_repeat": (),
        "expected_log_density": (chi,),
        "log_predictive": (chi,),
        "weighted_statistics": (shares,),
        "summed_statistics": (labels, 3),
        "log_density": (family.draw(chi, torch.Generator().manual_seed(0)),),
    }
    for reading, arguments in readings.items():
        both = [getattr(family, reading)(rows, *arguments) for rows in (X, sparse)]
        torch.testing.assert_close(*both, msg=lambda text, reading=reading: f"{reading}: {text}")
    dense, compressed = family.coordinates(X), family.coordinates(sparse)
    torch.testing.assert_close(dense, compressed if isinstance(compressed, Tensor) else compressed.to_dense())
    centers = family.centers(dense[:3], X.new_ones(3))
    torch.testing.assert_close(family.divergence(dense, centers), family.divergence(compressed, centers))
    torch.testing.assert_close(family.founding_divergence(dense), family.founding_divergence(compressed))


def test_columns_and_joins_are_inverse() -> None:
    sparse = SparseRows.of(torch.cat([COUNTS, HOLES], 1))
    parts = [columns_of(sparse, 0, 4), columns_of(sparse, 4, 7)]
    torch.testing.assert_close(join_columns(parts).to_dense(), torch.cat([COUNTS, HOLES], 1), equal_nan=True)
    joined = join_columns([COUNTS, parts[1]]).to_dense()
    torch.testing.assert_close(joined, torch.cat([COUNTS, HOLES], 1), equal_nan=True)


# -- missing bits ------------------------------------------------------------------------------------------------------


def test_a_missing_bit_is_summed_out() -> None:
    """Of every block with holes: its marginal, predictive and density are sums over all bits that could stand there."""
    family = MaskedBernoulli(0.7, 1.6).resolve(BITS)
    rows = torch.tensor([[1.0, torch.nan, 0.0], [0.0, 1.0, torch.nan]], dtype=torch.float64)
    filled = [
        torch.tensor([[1.0, one, 0.0], [0.0, 1.0, other]], dtype=torch.float64)
        for one in (0.0, 1.0)
        for other in (0.0, 1.0)
    ]
    chi = (family.prior() + family.statistics(BITS).sum(0)).unsqueeze(0)
    parameters = family.draw(chi, torch.Generator().manual_seed(0))

    def marginal(X: Tensor) -> Tensor:
        return family.log_marginal(family.prior() + family.statistics(X).sum(0))

    torch.testing.assert_close(marginal(rows), torch.stack([marginal(X) for X in filled]).logsumexp(0))
    twice = family.log_predictive(rows, family.prior() + family.statistics(rows)).diagonal()
    torch.testing.assert_close(family.log_repeat(rows), twice)
    for reading, argument in ((family.log_predictive, chi), (family.log_density, parameters)):
        found = reading(rows, argument).sum()
        exact = torch.stack([reading(X, argument).sum() for X in filled]).logsumexp(0)
        torch.testing.assert_close(found, exact)
    torch.testing.assert_close(
        family.distribution(parameters).log_prob(rows.unsqueeze(1)), family.log_density(rows, parameters)
    )


def test_missing_bits_cost_nothing_and_leave_centers_alone() -> None:
    """The divergence, founders and centres are those of each column's observed bits alone."""
    family = Product([(SphericalGaussian(), 3), (MaskedBernoulli(1.0, 2.0), 3)])
    X = torch.cat([NUMBERS, HOLES], 1)
    family = family.resolve(X)
    model = DPM(family).replace(num_features=6)
    problem = Problem.of(model, model.data(X), 1.0)
    centers = problem.centers(problem.X.sum(0, keepdim=True), X.new_tensor([float(len(X))]))
    spherical = family.parts[0][0]
    numbers = spherical.coordinates(NUMBERS)
    known = ~HOLES.isnan()
    share = (1.0 + HOLES.nansum(0)) / (3.0 + known.sum(0))
    bits = torch.where(HOLES == 1, share, 1 - share).log().where(known, 0.0)
    expected = (numbers - numbers.mean(0)).square().sum(1) / 2 - bits.sum(1)
    torch.testing.assert_close(family.divergence(problem.X, centers).squeeze(1), expected)
    entropy = 3 * (math.log(1 / 3) / 3 + math.log(2 / 3) * 2 / 3)
    smoothing = -3 * (share.log() / 3 + torch.log1p(-share) * 2 / 3) + entropy
    torch.testing.assert_close(problem.smoothing(centers), smoothing.sum().unsqueeze(0))
    founders = problem.founding_centers(torch.arange(len(X)))
    alone = family.divergence(problem.X, founders).diagonal() + problem.smoothing(founders)
    torch.testing.assert_close(problem.founding, alone)


# -- the product in the backends of mixtures ---------------------------------------------------------------------------

MIXED = torch.cat([NUMBERS[:4, :1], BITS[:4, :2]], 1)
MIXTURE = DPM(
    Product([(SphericalGaussian(variance=0.4), 1), (BernoulliBeta(), 2)]), DirichletProcess(1.0), truncation=2
)


def test_program_is_its_parts() -> None:
    check_model(MIXTURE, MIXED)
    with torch.random.fork_rng():
        trace = poutine.trace(MIXTURE).get_trace(MIXED)
    assert {"loc_0", "probs_1"} <= trace.nodes.keys()


HOLED = torch.cat([NUMBERS[:4, :1], HOLES[:4, :2].index_fill(0, torch.tensor(2), torch.nan)], 1)
WITH_HOLES = MIXTURE.replace(likelihood=Product([(SphericalGaussian(variance=0.4), 1), (MaskedBernoulli(), 2)]))


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "tensors"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(("mixture", "X"), [(MIXTURE, MIXED), (WITH_HOLES, HOLED)], ids=["bits", "some missing"])
def test_scans_have_the_conditionals_of_the_exact_posterior(
    mixture: DPM, X: Tensor, sparse: bool, compiled: bool
) -> None:
    """The collapsed scan and split-merge, from enumerated weights; the others see densities and draws alone."""
    model = mixture.resolve(X)
    data, exact = model.data(X), partition_log_weights(mixture, X)
    data = replace(data, X=SparseRows.of(data.X)) if sparse else data
    for labels in exact:
        state = PartitionState(torch.tensor(labels), X.new_zeros(max(labels) + 1, 0, 0), model.prior.start(X))
        for n in range(len(X)):
            found = collapsed.assignment_logits(n, state, data, model, compiled=compiled)
            moved = [(*labels[:n], k, *labels[n + 1 :]) for k in range(max(labels) + 2)]
            alone = labels.count(labels[n]) == 1
            weights = [
                -math.inf if alone and k == labels[n] else exact[first_appearance(z)] for k, z in enumerate(moved)
            ]
            torch.testing.assert_close(found.log_softmax(0), X.new_tensor(weights).log_softmax(0))
    apart, joined = (0, 0, 1, 0), (0, 0, 0, 0)
    state = PartitionState(torch.tensor(joined), X.new_zeros(1, 0, 0), model.prior.start(X))
    z = Points(label_law(model, False), data)
    at = z.open(state)
    union = Union(at, z, model, torch.tensor([0, 2]), with_margin=False)
    ratio = union.weigh(at, torch.tensor(apart) == 1, z.free(at), 0.0).log_places
    assert float(ratio) == pytest.approx(exact[apart] - exact[joined])


@pytest.mark.parametrize(
    "backend", [Gibbs(160, 10, seed=1), SVI(num_steps=20), SmallVariance(penalty=1.0)], ids=["gibbs", "svi", "small"]
)
@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
def test_a_mixture_takes_missing_bits(backend) -> None:
    """Some bits of a row, and all of one."""
    check_kernel(backend, WITH_HOLES, HOLED)
    posterior = backend.fit(WITH_HOLES, HOLED, sample_weight=torch.tensor([1, 2, 1, 1]))
    assert posterior.assign(HOLED).shape == (4,)
    bits = backend.fit(DPM(MaskedBernoulli(1.0, 1.0)), HOLES)
    assert bits.samples["assignments"].shape[1] == 12


def test_a_product_within_a_product_is_compiled() -> None:
    inner = Product([(SphericalGaussian(), 1), (MaskedBernoulli(), 2)])
    family = Product([(inner, 3), (PoissonGamma(), 2)])
    assert is_compiled(family)
    check_likelihood(family, torch.cat([NUMBERS[:, :1], HOLES[:, :2], COUNTS[:, :2]], 1))


@dataclass(eq=False)
class Waiting(ExponentialFamily):
    """x_d ~ Exponential(rate_d), rate_d ~ Gamma(2, scale_d); its divergence is infinite at 0."""

    scale: PositiveNumbers = None
    unit: Annotated[str, OneOf("s", "h")] = "s"

    def resolve(self, X: Tensor, weights: Tensor | None = None) -> Waiting:
        return self.replace(scale=hyperparameter("scale", self.scale, 1.0, X, X.shape[1]))

    def check(self, X: Tensor) -> None:
        assert (X > 0).all()

    def prior(self) -> Tensor:
        return torch.cat([self.scale, torch.full_like(self.scale, 2.0)])

    def statistics(self, X: Tensor) -> Tensor:
        return torch.cat([X, torch.ones_like(X)], -1)

    def log_base_measure(self, X: Tensor) -> Tensor:
        return X.new_zeros(len(X))

    def log_partition(self, chi: Tensor) -> Tensor:
        b, a = chi.chunk(2, -1)
        return (torch.lgamma(a) - a * b.log()).sum(-1)

    def parameters(self, chi: Tensor, sample) -> dict[str, Tensor]:
        b, a = chi.chunk(2, -1)
        return {"rate": sample("rate", dist.Gamma(a, b).to_event(1))}

    def distribution(self, parameters: dict[str, Tensor]):
        return dist.Exponential(parameters["rate"], validate_args=True).to_event(1)

    def coordinates(self, X: Tensor) -> Tensor:
        return X

    def divergence_terms(self, means: Tensor) -> tuple[Tensor, Tensor]:
        return -1 / means, (means.log() - 1).sum(-1)

    def divergence_base(self, X: Tensor) -> Tensor:
        return -X.log().sum(-1)


@pytest.mark.parametrize("other", [BernoulliBeta(), PoissonGamma()], ids=repr)
def test_parts_whose_divergence_has_no_value_at_zero_stand_beside_pseudo_observations(other) -> None:
    """The part has a law that refuses 0, too, and a field of text."""
    X = torch.cat([NUMBERS[:, :2].exp(), BITS[:, :2]], 1)
    family = Product([(Waiting(), 2), (other, 2)])
    check_likelihood(family, X)
    assert SmallVariance(num_components=2).fit(DPM(family), X).trace.final.isfinite().all()


def test_a_family_of_another_author_may_be_a_part() -> None:
    """It has a number that stays a number, and no divergence."""
    check_likelihood(Product([(NegativeBinomial(), 3), (PoissonGamma(), 1)]), COUNTS)


def test_missing_entries_in_the_program_a_stream_and_an_estimator() -> None:
    check_model(WITH_HOLES, HOLED)
    rows = torch.cat([NUMBERS[:, :1], HOLES[:, :2]], 1)
    stream = DataLoader(TensorDataset(rows), batch_size=5, generator=torch.Generator())
    assert SVI(num_steps=4).fit(WITH_HOLES, stream).samples["log_mixture"].isfinite().any()
    assert Clusterer(WITH_HOLES, SmallVariance(num_components=2)).fit_predict(rows.numpy()).shape == (12,)


@pytest.mark.parametrize(
    ("model", "X"),
    [
        (WITH_HOLES, HOLED.index_fill(1, torch.tensor(0), torch.nan)),
        (WITH_HOLES, HOLED * torch.inf),
        (MIXTURE, HOLED),
        (InfiniteSVM(WITH_HOLES.likelihood), HOLED),
    ],
    ids=["numbers", "infinite", "bits", "classifiers"],
)
def test_what_may_not_be_missing_is_refused(model, X: Tensor) -> None:
    y = torch.tensor([0, 1, 0, 1]) if isinstance(model, InfiniteSVM) else None
    with pytest.raises(ValueError, match="Input X contains NaN or inf"):
        model.prepare(X, y)


def blobs(num: int = 240) -> tuple[Tensor, Tensor]:
    """Three groups, two of which only the bits part, and two only the numbers."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(num) % 3
    numbers = torch.randn((num, 2), generator=generator, dtype=torch.float64)
    numbers[groups == 2] += 8.0
    odds = torch.where(groups == 1, 0.95, 0.05).double().unsqueeze(1).expand(num, 6)
    return torch.cat([numbers, torch.bernoulli(odds, generator=generator)], 1), groups


@pytest.mark.parametrize(
    "backend",
    [SVI(num_steps=60), SVI(num_steps=60, batch_size=60), SmallVariance(num_components=3), Gibbs(10, 40)],
    ids=["svi", "minibatches", "small variance", "gibbs"],
)
def test_both_blocks_part_the_groups(backend, tmp_path) -> None:
    X, groups = blobs()
    posterior = backend.fit(DPM(Product([(DiagonalGaussian(), 2), (BernoulliBeta(), 6)]), truncation=6), X)
    found = posterior.assign(X)
    pairs = (found.unsqueeze(0) == found.unsqueeze(1)) == (groups.unsqueeze(0) == groups.unsqueeze(1))
    assert pairs.double().mean() > 0.97
    posterior.save(tmp_path / "fit")
    again = Posterior.load(tmp_path / "fit")
    assert torch.equal(again.assign(X), found)


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ([], "parts"),
        ([(DiagonalGaussian(), 0)], "parts"),
        ("gaussian", "parts"),
        ([(DiagonalGaussian(), 2)], "X has 3 columns, but the blocks have 2"),
        ([(DiagonalGaussian(), 1), (BernoulliBeta(), 2)], "neither 0 nor 1|negative"),
    ],
)
def test_wrong_blocks_are_refused(parts, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        DPM(Product(parts)).resolve(NUMBERS)
