"""Observation families: one conformance suite for all, and independent references for each."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.sparse
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from negative_binomial import NegativeBinomial
from setups import spoiled
from torch.distributions import biject_to, constraints

from regbayes.inference import SmallVariance
from regbayes.models import DPM
from regbayes.models.arrays import require_finite
from regbayes.models.distributions.wishart import PrecisionWishart
from regbayes.models.likelihoods import (
    BernoulliBeta,
    DiagonalGaussian,
    FullGaussian,
    Likelihood,
    LinearRegression,
    MultinomialDirichlet,
    PoissonGamma,
    SphericalGaussian,
)
from regbayes.models.likelihoods.base import column_variances, hyperparameter
from regbayes.models.likelihoods.multinomial import Counts
from regbayes.models.sparse import SparseRows, group_sums
from regbayes.testing import check_likelihood

pytestmark = pytest.mark.usefixtures("few_restarts")

GAUSSIANS = (SphericalGaussian, DiagonalGaussian, FullGaussian)


def reals(num_data=24, num_features=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(num_data, num_features, generator=generator, dtype=torch.float64)
    X[::2] += 4
    return X * torch.logspace(0, 1, num_features, dtype=torch.float64)


def counts(num_data=20, num_features=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.poisson(5 * torch.rand(num_data, num_features, generator=generator, dtype=torch.float64), generator)
    X[3] = 0
    X[:, 1] = 0
    return X


def bits():
    return (counts() > 2).double()


# one row for each family and way of setting it up
LIKELIHOODS = [
    (SphericalGaussian(), reals),
    (SphericalGaussian(loc=1.0, variance=2.0, prior_variance=5.0), reals),
    (DiagonalGaussian(), reals),
    (DiagonalGaussian(loc=[1.0, 2.0, 3.0], mean_precision=0.5, shape=3.0, rate=[0.5, 1.0, 20.0]), reals),
    (FullGaussian(), reals),
    (FullGaussian(scale="covariance"), reals),
    (FullGaussian(loc=-1.0, mean_precision=2.0, degrees_of_freedom=4.5, scale=2 * np.eye(3) + 1), reals),
    (LinearRegression(), reals),
    (LinearRegression([2, 0], -1.0, [0.5, 1.0, 2.0], 3.0, 2.0), reals),
    (MultinomialDirichlet(), counts),
    (MultinomialDirichlet(concentration=[0.1, 1.0, 2.0, 3.0]), counts),
    (BernoulliBeta(), bits),
    (BernoulliBeta(a=[0.5, 1.0, 1.5, 2.0], b=[2.5, 2.0, 1.5, 1.0]), bits),
    (PoissonGamma(), counts),
    (PoissonGamma(shape=2.0, rate=0.3), counts),
]
rows = pytest.mark.parametrize(("likelihood", "make"), LIKELIHOODS, ids=lambda value: type(value).__name__)


@rows
def test_conformance(likelihood, make, device):
    check_likelihood(likelihood, make().to(device))


@pytest.mark.filterwarnings("ignore::regbayes.models.ConstantColumnWarning")
@pytest.mark.one_in(4)
@pytest.mark.parametrize("family", [*(kind() for kind in GAUSSIANS), LinearRegression(1)], ids=repr)
@pytest.mark.parametrize("scale", [1e8, 1e-8, [1e8, 1.0, 1e-8]])
@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_conformance_far_from_unit_scale(family, scale, offset):
    check_likelihood(family, (reals() + offset) * torch.as_tensor(scale, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore::regbayes.models.ConstantColumnWarning")
@pytest.mark.parametrize("family", GAUSSIANS)
def test_conformance_with_constant_column_and_with_more_columns_than_rows(family):
    X = reals()
    check_likelihood(family(), torch.cat([X, torch.full((24, 1), 7.1, dtype=X.dtype)], 1))
    check_likelihood(family(), reals(4, 7))
    check_likelihood(family(), torch.full((4, 2), 1e8, dtype=X.dtype))


@dataclass(eq=False)
class LaplaceLocation(Likelihood):
    """Rows x [D] ~ Laplace(loc, 1) with loc ~ N(0, scale): no conjugate prior."""

    scale: Any = None

    def resolve(self, X):
        return self.replace(scale=hyperparameter("scale", self.scale, 3.0, X, X.shape[1]))

    def parameters(self, chi, sample):
        scale = self.scale.expand(*chi.shape[:-1], -1)
        return {"loc": sample("loc", dist.Normal(chi.new_zeros(1).to(scale.dtype), scale).to_event(1))}

    def distribution(self, parameters):
        return dist.Laplace(parameters["loc"], 1.0).to_event(1)


def test_a_family_without_conjugacy_conforms(device):
    check_likelihood(LaplaceLocation(), reals().to(device))
    check_likelihood(LaplaceLocation(scale=1.0), reals().to(device))
    assert LaplaceLocation().prior().shape == (0,)


@pytest.mark.parametrize(
    ("law", "message"),
    [
        (lambda loc: dist.Laplace(loc, 1.0), "event shape"),
        (
            lambda loc: dist.Gamma(2.0, loc.exp(), validate_args=False).to_event(1),
            "rows of X .* are outside its support",
        ),
        (lambda loc: dist.Normal(loc, 1e-200).to_event(1), "log_density is not finite"),
    ],
)
def test_a_wrong_law_of_rows_is_found(law, message):
    with pytest.raises(AssertionError, match=message):
        check_likelihood(spoiled(LaplaceLocation(), "distribution", lambda right, drawn: law(drawn["loc"])), reals())


class Plain(Likelihood):
    """As tutorial 02 prints it: nothing to resolve, so that `resolve` is the default and returns the family itself."""

    def parameters(self, chi, sample):
        return {"loc": sample("loc", dist.Normal(chi.new_zeros(*chi.shape[:-1], 3), 1.0).to_event(1))}

    def distribution(self, parameters):
        return dist.Laplace(parameters["loc"], 1.0).to_event(1)

    def prior(self):
        return torch.zeros(0, dtype=torch.float64)


class InPlace(LaplaceLocation):
    """It sets its own field."""

    def resolve(self, X):
        self.scale = hyperparameter("scale", self.scale, 3.0, X, X.shape[1])
        return self


class Hidden(Plain):
    """It remembers rows in itself."""

    def resolve(self, X):
        self.width = X.shape[1]
        return self


class Grown(LaplaceLocation):
    """It changes the numbers of its own tensor."""

    def resolve(self, X):
        self.scale += 1
        return self.replace(scale=self.scale.clone())


def test_a_family_with_nothing_to_resolve_may_return_itself():
    check_likelihood(Plain(), reals())


@pytest.mark.parametrize(
    ("family", "name"), [(InPlace(), "scale"), (Hidden(), "width"), (Grown(torch.ones(3).double()), "scale")], ids=repr
)
def test_a_change_in_place_is_found(family, name):
    with pytest.raises(AssertionError, match=rf"^resolve changed {name} in place; expected a copy"):
        check_likelihood(family, reals())


class OutsideOfFields(LaplaceLocation):
    """What it found is in no field."""

    def resolve(self, X):
        found = self.replace(scale=torch.ones(X.shape[1]).to(X))
        found.width = X.shape[1]
        return found

    def prior(self):
        return torch.zeros(self.width, dtype=torch.float64)


def test_hyperparameters_outside_of_the_fields_are_found():
    with pytest.raises(AssertionError, match="resolve stores hyperparameters outside of the fields, which files would"):
        check_likelihood(OutsideOfFields(), reals())


class HasLess(dist.Laplace):
    """A Laplace law without the factor 1 / (2 scale)."""

    def log_prob(self, value):
        return -(value - self.loc).abs() / self.scale


class CountsFromOne(dist.Poisson):
    """A Poisson law of positive counts, which is not divided by the probability of one."""

    support = constraints.positive_integer


@pytest.mark.parametrize(
    ("law", "make"),
    [
        (lambda loc: HasLess(loc, torch.ones_like(loc)).to_event(1), reals),
        (lambda loc: CountsFromOne(loc.exp(), validate_args=False).to_event(1), lambda: counts(20, 3) + 1),
    ],
)
def test_a_density_whose_constant_is_missing_is_found(law, make):
    with pytest.raises(AssertionError, match=r"distribution: the density of rows, .* has a total mass of exp\("):
        check_likelihood(spoiled(Plain(), "distribution", lambda right, drawn: law(drawn["loc"])), make())


def from_the_global_stream(right, parameters, generator, totals=None):
    """Rows of the right law."""
    return Plain().distribution(parameters).sample()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda right, *given: 2 * right(*given), "draw_rows: rows have another mean log density"),
        (from_the_global_stream, "draw_rows is not a function of the generator's state alone"),
    ],
)
def test_rows_of_another_law_or_stream_are_found(wrong, message):
    with torch.random.fork_rng(devices=[]), pytest.raises(AssertionError, match=message):
        check_likelihood(spoiled(Plain(), "draw_rows", wrong), reals())


def of_torch(right, chi, sample):
    loc = torch.distributions.Normal(chi.new_zeros(*chi.shape[:-1], 3), 1.0)
    return {"loc": sample("loc", torch.distributions.Independent(loc, 1))}


def without_event(right, chi, sample):
    return {"rate": sample("rate", dist.Gamma(chi[..., :4] + 1, chi.new_ones(4)))}


SPOILT = [
    (
        NegativeBinomial(),
        "statistics",
        lambda right, X: -right(X),
        "NegativeBinomial.* raised ValueError: Expected",
    ),
    (PoissonGamma(), "statistics", lambda right, X: X[:, :1], r"^statistics has shape \(20, 1\); expected \(20, 5\)"),
    (PoissonGamma(), "log_base_measure", lambda right, X: X, r"^log_base_measure has shape \(20, 4\)"),
    (PoissonGamma(), "log_partition", lambda right, chi: chi, r"^log_partition has shape \(20, 5\) .*expected \(20,\)"),
    (BernoulliBeta(), "check", lambda right, X: None, "rows of X that `check` accepts are outside its support"),
    (PoissonGamma(), "parameters", of_torch, "^parameters: loc has a law of torch; expected one of pyro"),
    (PoissonGamma(), "parameters", without_event, "^SpoiledPoissonGamma.* raised ValueError: Shape mismatch inside"),
]


@pytest.mark.parametrize(("family", "method", "wrong", "message"), SPOILT, ids=[f"{row[1]}-{row[3]}" for row in SPOILT])
def test_errors_of_a_part_are_told_with_their_method(family, method, wrong, message):
    with pytest.raises(AssertionError, match=message):
        check_likelihood(spoiled(family, method, wrong), counts())


# -- sparse rows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", [SphericalGaussian(), LaplaceLocation()])
def test_dense_families_refuse_sparse_rows(likelihood):
    with pytest.raises(ValueError, match=rf"X is sparse; {type(likelihood).__name__} needs dense.*toarray"):
        likelihood.admit(SparseRows.of(counts()))


@pytest.mark.parametrize("family", [MultinomialDirichlet, PoissonGamma, BernoulliBeta])
def test_sparse_rows_are_never_dense(family, monkeypatch):
    """A matrix that would take 2e11 numbers: every method that a fit calls for all rows."""
    generator = torch.Generator().manual_seed(0)
    N, D, K = 200_000, 1_000_000, 2
    columns = torch.randint(D, (N,), generator=generator)
    X = SparseRows(torch.arange(N + 1), columns, torch.ones(N, dtype=torch.float64), D)
    monkeypatch.setattr(SparseRows, "to_dense", None)
    likelihood = family()
    likelihood.check(X)
    resolved = likelihood.resolve(X)
    assignments = torch.arange(N) % K
    sums = resolved.summed_statistics(X, assignments, K)
    torch.testing.assert_close(resolved.weighted_statistics(X, torch.eye(K).double()[assignments]), sums)
    chi = resolved.prior() + sums
    assert sums[:, :D].sum() == N
    U = resolved.coordinates(X)
    for result in (
        resolved.expected_log_density(X, chi),
        resolved.log_predictive(X, chi),
        resolved.log_density(X, resolved.draw(chi, generator)),
        resolved.divergence(U, resolved.centers(sums[:, :D], torch.full((K,), N / K).double())),
        resolved.founding_divergence(U).unsqueeze(1).expand(-1, K),
    ):
        assert result.shape == (N, K)
        assert torch.isfinite(result).all()


@pytest.mark.parametrize("family", [MultinomialDirichlet, PoissonGamma])
def test_sparse_counts_are_checked(family):
    X = torch.tensor([[0.0, 1.0], [0.0, -1.0], [0.5, 0.0]])
    with pytest.raises(ValueError, match=r"negative: -1.0 in row 1, column 1"):
        family().check(SparseRows.of(X))
    with pytest.raises(ValueError, match=r"not a whole number: 0.5 in row 2, column 0"):
        family().check(SparseRows.of(X.abs()))
    with pytest.raises(ValueError, match=r"neither 0 nor 1: 0.5 in row 2, column 0"):
        BernoulliBeta().check(SparseRows.of(X.abs()))


# -- independent references -------------------------------------------------------------------------------------------


def predictive(family, X, seen):
    return family.log_predictive(X, (family.prior() + family.statistics(seen).sum(0)).unsqueeze(0))[:, 0].numpy()


def test_spherical_predictive_is_scipys_normal():
    X = reals()
    family = SphericalGaussian(loc=[0.0, 1.0, 2.0], variance=2.0, prior_variance=5.0).resolve(X)
    seen, loc = X[:7].numpy(), family.loc.numpy()
    variance = 1 / (1 / 5 + 7 / 2)
    mean = variance * (loc / 5 + seen.sum(0) / 2)
    expected = scipy.stats.multivariate_normal.logpdf(X, mean, (2 + variance) * np.eye(3))
    np.testing.assert_allclose(predictive(family, X, X[:7]), expected, rtol=1e-10)


def normal_posterior(family, seen):
    """Updated location, weight, and scatter about the prior location, by the textbook's formulas."""
    n, k0, loc = len(seen), family.mean_precision.item(), family.loc.numpy()
    mean = seen.mean(0)
    scatter = (seen - mean).T @ (seen - mean) + k0 * n / (k0 + n) * np.outer(mean - loc, mean - loc)
    return (k0 * loc + n * mean) / (k0 + n), k0 + n, scatter


def test_diagonal_predictive_is_scipys_t():
    X = reals()
    family = DiagonalGaussian(mean_precision=0.5, shape=3.0, rate=[0.5, 1.0, 20.0]).resolve(X)
    m, kap, scatter = normal_posterior(family, X[:7].numpy())
    a, b = 3 + 3.5, family.rate.numpy() + np.diag(scatter) / 2
    expected = scipy.stats.t.logpdf(X, 2 * a, m, np.sqrt(b * (kap + 1) / (a * kap))).sum(1)
    np.testing.assert_allclose(predictive(family, X, X[:7]), expected, rtol=1e-10)


def test_full_predictive_is_scipys_t():
    X = reals()
    family = FullGaussian(mean_precision=0.5, degrees_of_freedom=4.5, scale=2 * np.eye(3) + 1).resolve(X)
    m, kap, scatter = normal_posterior(family, X[:7].numpy())
    dof = 4.5 + 7 - 3 + 1
    shape = (family.scale.numpy() + scatter) * (kap + 1) / (kap * dof)
    expected = scipy.stats.multivariate_t.logpdf(X, m, shape, dof)
    np.testing.assert_allclose(predictive(family, X, X[:7]), expected, rtol=1e-10)


def test_multinomial_predictive_is_scipys_dirichlet_multinomial():
    X = counts()
    family = MultinomialDirichlet(concentration=[0.5, 1.0, 2.0, 3.0]).resolve(X)
    alpha = family.concentration.numpy() + X[:7].sum(0).numpy()
    expected = scipy.stats.dirichlet_multinomial.logpmf(X.long().numpy(), alpha, X.sum(1).long().numpy())
    np.testing.assert_allclose(predictive(family, X, X[:7]), expected, rtol=1e-9, atol=1e-10)


def test_bernoulli_predictive_is_scipys_beta_binomial():
    X = bits()
    family = BernoulliBeta(a=2.0, b=0.7).resolve(X)
    ones = X[:7].sum(0).numpy()
    expected = scipy.stats.betabinom.logpmf(X.numpy(), 1, 2 + ones, 0.7 + 7 - ones).sum(1)
    np.testing.assert_allclose(predictive(family, X, X[:7]), expected, rtol=1e-10)


def test_poisson_predictive_is_scipys_negative_binomial():
    X = counts()
    family = PoissonGamma(shape=[0.5, 1.0, 2.0, 3.0], rate=0.3).resolve(X)
    size, rate = family.shape.numpy() + X[:7].sum(0).numpy(), 0.3 + 7
    expected = scipy.stats.nbinom.logpmf(X.numpy(), size, rate / (rate + 1)).sum(1)
    np.testing.assert_allclose(predictive(family, X, X[:7]), expected, rtol=1e-10)


def test_precision_wishart_is_scipys():
    psi = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 3.0]])
    value = np.array([[1.0, 0.3, 0.0], [0.3, 2.0, 0.4], [0.0, 0.4, 0.7]])
    wishart = PrecisionWishart(torch.tensor(4.5).double(), torch.linalg.cholesky(torch.tensor(psi)))
    expected = scipy.stats.wishart.logpdf(value, 4.5, np.linalg.inv(psi))
    np.testing.assert_allclose(wishart.log_prob(torch.tensor(value)), expected, rtol=1e-10)


def test_precision_matrices_have_a_bijection_from_vectors(cpu_generator):
    bijection, v = biject_to(PrecisionWishart.support), torch.randn(5, 6, generator=cpu_generator).double()
    precision = bijection(v)
    torch.testing.assert_close(bijection.inv(precision), v)
    assert bijection.forward_shape(v.shape) == precision.shape
    assert bijection.inverse_shape(precision.shape) == v.shape
    triangle = torch.tril_indices(3, 3)
    jacobian = torch.func.vmap(torch.func.jacrev(lambda v: bijection(v)[..., triangle[0], triangle[1]]))(v)
    torch.testing.assert_close(bijection.log_abs_det_jacobian(v, precision), torch.linalg.slogdet(jacobian)[1])


def test_counts_are_the_multinomial_where_totals_agree(generator, device):
    probs = torch.tensor([[0.2, 0.3, 0.5], [0.0, 0.4, 0.6]], dtype=torch.float64, device=device)
    X = torch.tensor([[1.0, 2.0, 3.0], [0.0, 5.0, 1.0]], dtype=torch.float64, device=device)
    torch.testing.assert_close(Counts(probs).log_prob(X), dist.Multinomial(6, probs).log_prob(X))
    with torch.random.fork_rng():
        assert (Counts(probs, total_count=6).sample((5,)).sum(-1) == 6).all()
    with pytest.raises(NotImplementedError, match="total_count"):
        Counts(probs).sample()


@rows
def test_chunks_of_rows_add_up(likelihood, make):
    """Many copies of the rows, more than one chunk even of one component: as many sums, and the same densities."""
    X, copies = make(), 15_000
    family = likelihood.resolve(X)
    assignments = torch.arange(len(X)) % 3
    responsibilities = torch.nn.functional.one_hot(assignments, 3).to(X.dtype)
    sums = family.summed_statistics(X, assignments, 3)
    many = X.repeat(copies, 1)
    torch.testing.assert_close(family.summed_statistics(many, assignments.repeat(copies), 3), copies * sums)
    torch.testing.assert_close(family.weighted_statistics(many, responsibilities.repeat(copies, 1)), copies * sums)
    chi = family.prior() + sums
    torch.testing.assert_close(family.expected_log_density(many, chi)[-len(X) :], family.expected_log_density(X, chi))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_groups", [8, 9])
def test_sums_of_many_groups_and_of_few_are_those_of_their_rows(num_groups, dtype):
    """On both sides of where rows are added one by one, in more than one chunk; the last group is empty."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(70_000, 3, generator=generator).to(dtype)
    labels = torch.randint(num_groups - 1, (len(X),), generator=generator)
    found = group_sums(X, labels, num_groups, torch.square)
    expected = torch.stack([X[labels == k].double().square().sum(0) for k in range(num_groups)])
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("family", GAUSSIANS)
def test_no_rows_have_no_densities_and_no_sums(family):
    X = reals()
    family = family().resolve(X)
    chi = family.prior().expand(2, -1)
    parameters = family.draw(chi, torch.Generator().manual_seed(0))
    for result in (family.log_density(X[:0], parameters), family.log_predictive(X[:0], chi)):
        assert result.shape == (0, 2)
    assert not family.summed_statistics(X[:0], torch.zeros(0, dtype=torch.int64), 2).any()
    assert not family.weighted_statistics(X[:0], X[:0, :2]).any()


# -- invariance -------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    log_scale=st.lists(st.floats(-8, 8), min_size=3, max_size=3),
    offset=st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
    full=st.booleans(),
)
def test_default_evidence_moves_with_scale_and_offset(log_scale, offset, full):
    """log m(s x + o) = log m(x) - N sum log s: defaults from the data leave nothing else to the units."""
    X = reals()
    scale = 10.0 ** torch.tensor(log_scale, dtype=X.dtype)
    moved = (X + torch.tensor(offset, dtype=X.dtype)) * scale

    def evidence(rows):
        family = (FullGaussian if full else DiagonalGaussian)().resolve(rows)
        chi = family.prior() + family.statistics(rows).sum(0)
        return family.log_marginal(chi) + family.log_base_measure(rows).sum()

    torch.testing.assert_close(evidence(moved), evidence(X) - len(X) * scale.log().sum(), rtol=1e-6, atol=1e-5)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(log_scale=st.floats(-8, 8), offset=st.floats(-1e6, 1e6))
def test_spherical_coordinates_are_free_of_units(log_scale, offset):
    X = reals()
    moved = (X + offset) * 10.0**log_scale
    expected = SphericalGaussian().resolve(X).coordinates(X)
    torch.testing.assert_close(SphericalGaussian().resolve(moved).coordinates(moved), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", GAUSSIANS)
def test_single_precision_far_from_zero_tells_components_apart(family, device):
    """Two groups 100 apart, 1e6 from zero: float32 puts every row to its own group."""
    X = reals(40).to(device)
    X[20:] += 100
    X = (X + 1e6).float()
    resolved = family().resolve(X)
    assignments = torch.arange(40, device=device) // 20
    chi = resolved.prior() + resolved.summed_statistics(X, assignments, 2)
    for log_density in (resolved.expected_log_density(X, chi), resolved.log_predictive(X, chi)):
        assert torch.isfinite(log_density).all()
        assert torch.equal(log_density.argmax(1), assignments)


def test_full_gaussian_of_a_diagonal_density_is_the_diagonal_one():
    X = reals()
    loc, precision = X[:2], torch.tensor([[1.0, 2.0, 0.1], [3.0, 0.5, 0.2]], dtype=X.dtype)
    diagonal = DiagonalGaussian().resolve(X).log_density(X, {"loc": loc, "precision": precision})
    full = FullGaussian().resolve(X).log_density(X, {"loc": loc, "precision": torch.diag_embed(precision)})
    torch.testing.assert_close(full, diagonal)


def test_nearly_singular_scatter_is_factorized_in_single_precision():
    """Equal columns and many rows: rounding makes the float32 scatter indefinite."""
    x = reals(5000, 1).float() * 1e3
    X = x.expand(-1, 6) + 0.0
    family = FullGaussian(scale=1e-6).resolve(X)
    chi = (family.prior() + family.statistics(X).sum(0)).unsqueeze(0)
    assert torch.isfinite(family.log_predictive(X, chi)).all()
    draws = family.draw(chi.expand(10, -1), torch.Generator().manual_seed(0))
    assert all(torch.isfinite(value).all() for value in draws.values())


# -- small variance ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("likelihood", "make", "name"),
    [
        (SphericalGaussian(), reals, "loc"),
        (MultinomialDirichlet(), counts, "probs"),
        (BernoulliBeta(), bits, "probs"),
        (PoissonGamma(), counts, "rate"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_divergence_is_the_density_up_to_a_constant_of_the_row(likelihood, make, name):
    X = make()
    family = likelihood.resolve(X)
    parameters = family.draw(family.prior().expand(3, -1), torch.Generator().manual_seed(0))
    means = (parameters[name] - family.loc) / family.variance.sqrt() if name == "loc" else parameters[name]
    rest = family.divergence(family.coordinates(X), means) + family.log_density(X, parameters)
    torch.testing.assert_close(rest, rest[:, :1].expand_as(rest))
    torch.testing.assert_close(family.from_coordinates(means), parameters[name])


@pytest.mark.parametrize(
    ("family", "metric"),
    [
        (DiagonalGaussian(shape=3.0, rate=[0.5, 1.0, 20.0]), np.diag(3 / np.array([0.5, 1.0, 20.0]))),
        (FullGaussian(degrees_of_freedom=7.0, scale=2 * np.eye(3) + 1), 3 * np.linalg.inv(2 * np.eye(3) + 1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_gaussian_divergence_has_the_priors_metric(family, metric):
    X = reals()
    family = family.resolve(X)
    means = X[:2] + 1
    difference = (X.unsqueeze(1) - means).numpy()
    expected = np.einsum("nki,ij,nkj->nk", difference, metric, difference) / 2
    actual = family.divergence(family.coordinates(X), family.coordinates(means))
    np.testing.assert_allclose(actual, expected, rtol=1e-9)


def test_smoothed_centers_are_the_posterior_means():
    """Prior mean of the parameter after all rows, where the prior is taken as pseudo-observations."""
    families = MultinomialDirichlet(concentration=2.0), BernoulliBeta(a=1.5, b=2.5), PoissonGamma(shape=2.0, rate=3.0)
    for likelihood, X in zip(families, (counts(), bits(), counts()), strict=True):
        family = likelihood.resolve(X)
        row, weight = family.pseudo_observation()
        center = family.centers((weight * row + X.sum(0))[None], X.new_tensor([weight + len(X)]))[0]
        chi = (family.prior() + family.statistics(X).sum(0)).expand(4000, -1)
        draws = next(iter(family.draw(chi, torch.Generator().manual_seed(0)).values()))
        error = draws.std(0) / 4000**0.5
        assert ((draws.mean(0) - center).abs() <= 5 * error).all()


def test_unequal_bernoulli_priors_have_no_small_variance_form():
    family = BernoulliBeta(a=[1.0, 2.0], b=1.0).resolve(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="same in all columns"):
        family.pseudo_observation()


@pytest.mark.parametrize(
    ("given", "num_columns", "degrees", "shares"),
    [(None, 3, 5.0, 0.5), (None, 12, 18.0, 2.5), (20.0, 3, 20.0, 8.0), (2.5, 3, 2.5, 0.5)],
)
def test_default_scale_keeps_the_expected_covariance(given, num_columns, degrees, shares):
    """Psi0 = (nu0 - D - 1) / 2 of the column variances; half of them where that is less."""
    X = reals(30, num_columns)
    family = FullGaussian(degrees_of_freedom=given).resolve(X)
    assert float(family.degrees_of_freedom) == degrees
    torch.testing.assert_close(family.scale, shares * torch.diag(X.var(0, unbiased=False)))


@pytest.mark.parametrize("num_rows", [30, 4])
def test_covariances_of_all_rows_as_the_scale(num_rows):
    """A row of weight 2 is two rows; fewer rows than columns give a positive definite matrix, too."""
    X = reals(num_rows, 6)
    X[:, 1] += 2 * X[:, 0]
    times = torch.arange(num_rows) % 3
    family = FullGaussian(scale="covariance").resolve(X, times.double())
    covariance = torch.as_tensor(np.cov(X.repeat_interleave(times, 0).numpy().T, bias=True))
    expected = (0.9 * covariance + 0.1 * torch.diag(covariance.diagonal())) / 2
    assert float(family.degrees_of_freedom) == 9.0
    torch.testing.assert_close(family.scale / (9 - 6 - 1), expected)
    assert torch.linalg.eigvalsh(family.scale).min() > 0
    again = family.resolve(X)  # as a matrix that was given
    assert torch.equal(again.scale, family.scale)


@pytest.mark.filterwarnings("ignore::regbayes.models.ConstantColumnWarning")
def test_a_constant_column_has_no_covariance():
    X = torch.cat([reals(), torch.full((24, 1), 7.1, dtype=torch.float64)], 1)
    scale = FullGaussian(scale="covariance").resolve(X).scale
    assert scale[3].tolist() == [0, 0, 0, scale[3, 3].item()]
    assert scale[3, 3] > 0


def test_a_given_scale_is_the_expected_covariance():
    family = FullGaussian(scale=torch.arange(1.0, 13.0)).resolve(reals(30, 12))
    assert float(family.degrees_of_freedom) == 14.0
    torch.testing.assert_close(family.scale.diagonal(), torch.arange(1.0, 13.0, dtype=family.scale.dtype))


def test_full_gaussian_without_expected_covariance_has_no_small_variance_form():
    X = reals()
    with pytest.raises(ValueError, match="degrees_of_freedom > 4"):
        FullGaussian(degrees_of_freedom=4.0).resolve(X).coordinates(X)


# -- the door ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [MultinomialDirichlet, PoissonGamma])
def test_counts_are_checked(family):
    with pytest.raises(ValueError, match=r"negative: -1.0 in row 1, column 0"):
        family().check(torch.tensor([[0.5, 1.0], [-1.0, 0.0]]))
    with pytest.raises(ValueError, match=r"not a whole number: 0.5 in row 0, column 1"):
        family().check(torch.tensor([[1.0, 0.5]]))
    family().check(torch.zeros(2, 2))


def test_bits_are_checked():
    with pytest.raises(ValueError, match=r"neither 0 nor 1: 2.0 in row 0, column 1"):
        BernoulliBeta().check(torch.tensor([[1.0, 2.0]]))
    with pytest.raises(ValueError, match=r"negative: -1.0"):
        BernoulliBeta().check(torch.tensor([[1.0, -1.0]]))


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        (SphericalGaussian(variance=0.0), r"variance is 0.0; it must be positive"),
        (SphericalGaussian(loc=float("nan")), r"loc is nan; it must be finite"),
        (DiagonalGaussian(rate=[1.0, 0.0, 1.0]), r"rate is \[1.0, 0.0, 1.0\]; it must be positive"),
        (DiagonalGaussian(rate=[1.0, 1.0]), r"rate has shape \(2,\); expected a number, or one for each of the 3"),
        (FullGaussian(degrees_of_freedom=2.0), r"degrees_of_freedom is 2.0; it must be larger than 2"),
        (FullGaussian(scale=-1.0), r"scale is .*-1.*; it must be positive"),
        (FullGaussian(scale="full"), r"scale is 'full'; it must be finite, a number or an array, or 'covariance'"),
        (FullGaussian(scale=[[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), r"not a symmetric positive definite"),
        (FullGaussian(scale=[[1.0]]), r"scale has shape \(1, 1\)"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_hyperparameters_are_checked(likelihood, message):
    with pytest.raises(ValueError, match=message):
        likelihood.checked().resolve(reals())


@rows
def test_constructor_only_stores(likelihood, make):
    before = likelihood.get_params()
    likelihood.resolve(make())
    after = likelihood.get_params()
    assert all(after[name] is value for name, value in before.items())


# -- the suite itself -------------------------------------------------------------------------------------------------


def wrong_draw(right, chi, generator):
    return right(torch.cat([chi[..., :-1], 1.05 * chi[..., -1:]], -1), generator)


def wrong_centers(right, sums, counts):
    return (sums + 0.2) / (sums + 0.2).sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("likelihood", "make", "method", "wrong", "message"),
    [
        (PoissonGamma(), counts, "log_partition", lambda right, chi: right(chi) + chi[..., -1], "Bayes"),
        (PoissonGamma(), counts, "draw", wrong_draw, "standard errors"),
        (DiagonalGaussian(), reals, "mean_parameters", lambda right, chi: 1.001 * right(chi), "mean_parameters"),
        (MultinomialDirichlet(), counts, "centers", wrong_centers, "divergence|centers"),
        (FullGaussian(), reals, "summed_statistics", lambda right, X, z, K: right(X, z.clamp(max=2), K), "summed_stat"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_suite_finds_a_wrong_family(likelihood, make, method, wrong, message):
    with pytest.raises(AssertionError, match=message):
        check_likelihood(spoiled(likelihood, method, wrong), make())


class Forgetful(PoissonGamma):
    """Its defaults leave the weights of rows out."""

    def resolve(self, X, weights=None):
        return super().resolve(X)


class Doubled(PoissonGamma):
    """Its divergence is twice as large as the drop in log density."""

    def divergence_terms(self, means):
        return tuple(2 * term for term in super().divergence_terms(means))

    def divergence_base(self, X):
        return 2 * super().divergence_base(X)

    def founding_divergence(self, X):
        return 2 * super().founding_divergence(X)


class Founded(SphericalGaussian):
    """A row alone would cost something in a component without a prior."""

    def founding_divergence(self, X):
        return X.square().sum(1) / 2


@pytest.mark.parametrize(
    ("family", "make", "message"),
    [
        (Forgetful(), counts, "resolve, rate, of rows with weights|resolve, shape, of rows with weights"),
        (Doubled(), counts, "divergence, beside the drop in log density"),
        (Founded(), reals, "founding_divergence"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_suite_finds_what_a_fit_would_not_notice(family, make, message):
    with pytest.raises(AssertionError, match=message):
        check_likelihood(family, make())


class Counting(PoissonGamma):
    """It tells how many threads there are."""

    def check(self, X):
        raise ArithmeticError(torch.get_num_threads())


def test_the_suite_has_one_thread():
    """Those of a busy machine wait for one another: 3.9 seconds in place of 0.14 of a linear regression."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ArithmeticError, match="1"):
            check_likelihood(Counting(), counts())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("form", [lambda X: X.numpy(), lambda X: X.tolist(), lambda X: scipy.sparse.csr_matrix(X)])
def test_the_suite_takes_rows_as_a_fit_does(form):
    check_likelihood(PoissonGamma(), form(counts(8)))


def test_a_family_with_the_terms_of_a_divergence_alone_has_rows_as_they_are():
    """The methods that CONTRIBUTING asks for; without them the message names these."""

    class Counted(NegativeBinomial):
        def divergence_terms(self, means):
            share = means.clamp(min=torch.finfo(means.dtype).tiny) / (means + self.r)
            return share.log(), self.r * torch.log1p(means / self.r).sum(-1)

        def divergence_base(self, X):
            return (torch.xlogy(X, X) - (X + self.r) * torch.log1p(X / self.r) - X * math.log(self.r)).sum(-1)

    X = counts(20) * torch.tensor([1.0, 9.0]).repeat_interleave(10).unsqueeze(1)
    check_likelihood(Counted(), X)
    found = SmallVariance(num_components=2).fit(DPM(Counted()), X)
    assert found.num_components == 2
    assert torch.equal(found.assign(X), found.samples["assignments"][-1].long())
    with pytest.raises(NotImplementedError, match="`divergence_terms` and `divergence_base`, or `coordinates`"):
        SmallVariance().fit(DPM(NegativeBinomial()), X)


def test_moments_and_checks_of_rows_in_chunks():
    generator = torch.Generator().manual_seed(0)
    X = 1e3 + torch.randn(14_000, 20, generator=generator, dtype=torch.float64)  # two chunks
    weights = torch.randint(1, 4, (len(X),), generator=generator).double()
    torch.testing.assert_close(column_variances(X), X.var(0, correction=0), rtol=1e-9, atol=0)
    repeated = X.repeat_interleave(weights.long(), 0)
    torch.testing.assert_close(column_variances(X, weights), repeated.var(0, correction=0), rtol=1e-9, atol=0)
    family = FullGaussian().resolve(X)
    one_by_one = torch.stack([family.coordinates(X[row : row + 1])[0] for row in (0, 13_500, 13_999)])
    torch.testing.assert_close(family.coordinates(X)[[0, 13_500, 13_999]], one_by_one)
    X[13_500, 3] = torch.nan
    with pytest.raises(ValueError, match="in row 13500, column 3"):
        require_finite(X)
