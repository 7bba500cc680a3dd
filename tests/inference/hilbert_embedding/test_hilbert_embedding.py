"""The embedding of a mixture: kernel means by quadrature and enumeration, its optimum, its files, and MMD."""

from __future__ import annotations

import itertools
import math
import signal

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.sparse
import torch
from scipy import stats
from setups import AnotherGaussian, LaplaceLocation, mixture_rows

from regbayes.datasets import load
from regbayes.estimators import Clusterer
from regbayes.inference import (
    SVI,
    FitInterrupted,
    FourierKernel,
    Gibbs,
    HilbertEmbedding,
    Posterior,
    QuadraticKernel,
    RBFKernel,
    SmallVariance,
)
from regbayes.inference.hilbert_embedding import simplex_qp
from regbayes.inference.hilbert_embedding.atoms import Predictive
from regbayes.inference.hilbert_embedding.mmd import permutation_p_value, squared_mmd
from regbayes.inference.hilbert_embedding.truncation_error import expected_error, expected_weights, least_truncation
from regbayes.models import DPM, DirichletProcess, InfiniteSVM, PitmanYor
from regbayes.models.likelihoods import (
    BernoulliBeta,
    DiagonalGaussian,
    FullGaussian,
    Likelihood,
    MaskedBernoulli,
    MultinomialDirichlet,
    PoissonGamma,
    Product,
    SphericalGaussian,
)
from regbayes.models.sparse import SparseRows
from regbayes.testing import check_kernel

GAUSSIANS = [SphericalGaussian, DiagonalGaussian, FullGaussian]
LAPLACE = LaplaceLocation(2, 2.0, 0.5)
KERNELS = [
    *((family, RBFKernel()) for family in [*GAUSSIANS, AnotherGaussian, BernoulliBeta, PoissonGamma]),
    *((family, QuadraticKernel()) for family in (BernoulliBeta, PoissonGamma, MultinomialDirichlet)),
    *((family, FourierKernel(num_frequencies=20)) for family in [*GAUSSIANS, BernoulliBeta, PoissonGamma]),
]


def named(value) -> str:
    return value.__name__ if isinstance(value, type) else type(value).__name__


def small_rows(family, device, num_data: int = 12) -> torch.Tensor:
    X, _ = mixture_rows(DiagonalGaussian if family is AnotherGaussian else family, num_data, num_features=2)
    if family is MultinomialDirichlet:
        X[1] = 0.0  # a document without words
    return X.clamp(max=4).to(device) if family in (PoissonGamma, MultinomialDirichlet) else X.to(device)


def support(family, model: Likelihood, parameters, X) -> tuple[torch.Tensor, torch.Tensor]:
    """Points [G, D] and their probabilities [T, G] under components: all that there are, or a fine grid."""
    if family is MultinomialDirichlet:  # totals of the data, each as often as there
        totals = X.sum(1).long().tolist()
        points = torch.tensor([p for p in itertools.product(range(max(totals) + 1), repeat=2) if sum(p) in totals])
        points = points.double().to(X.device)
        share = torch.tensor([totals.count(int(p.sum())) / len(totals) for p in points], dtype=torch.float64)
        return points, model.log_density(points, parameters).exp().T * share.to(X.device)
    if family in (BernoulliBeta, PoissonGamma):
        points = torch.tensor(list(itertools.product(range(2 if family is BernoulliBeta else 40), repeat=2)))
        points, cell = points.double().to(X.device), 1.0
    else:
        sides = [torch.linspace(float(x.min()) - 6, float(x.max()) + 6, 70, dtype=torch.float64) for x in X.T]
        points, cell = torch.cartesian_prod(*sides).to(X.device), float(math.prod(s[1] - s[0] for s in sides))
    return points, model.log_density(points, parameters).exp().T * cell


def components(family, device, T: int = 3):
    """A resolved family, its rows, and parameters [T, ...] of components in reach of a grid."""
    X = small_rows(family, device)
    model = family().resolve(X)
    if family in (BernoulliBeta, PoissonGamma, MultinomialDirichlet):
        parameters = model.draw(model.prior().expand(T, -1), torch.Generator(device).manual_seed(1))
        parameters = {name: value.clamp(max=4.0) for name, value in parameters.items()}
        if family is MultinomialDirichlet:
            parameters = {"probs": parameters["probs"] / parameters["probs"].sum(1, keepdim=True)}
        return model, X, parameters
    root = torch.tensor([[1.0, 0.0], [0.6, 0.8]]).to(X)
    parameters = {"loc": X[:T] / 2}
    if family is FullGaussian:
        scales = torch.tensor([0.6, 1.0, 1.5]).to(X)[:T]
        parameters["precision"] = scales[:, None, None] * (root @ root.T)
    elif family is not SphericalGaussian:
        parameters["precision"] = torch.tensor([[0.6, 2.0], [1.0, 0.8], [1.5, 0.7]]).to(X)[:T]
    return model, X, parameters


def two_groups(N: int = 60, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(N, 2)) * [0.6, 0.4] + rng.choice([-2.0, 2.0], size=(N, 1)))


# -- kernel means ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "rkhs"), KERNELS, ids=named)
def test_kernel_means_are_sums_over_all_points(family, rkhs, device):
    model, X, parameters = components(family, device)
    rkhs.admit(model)
    rkhs = rkhs.resolve(model, X)
    points, probabilities = support(family, model, parameters, X)
    torch.testing.assert_close(probabilities.sum(1), torch.ones_like(probabilities[:, 0]), atol=2e-6, rtol=0)
    cross = rkhs.gram(X, points) @ probabilities.T
    torch.testing.assert_close(rkhs.cross(model, parameters, X), cross, atol=1e-5, rtol=1e-5)
    found = rkhs.inner(model, parameters)
    first = rkhs.cross(model, parameters, points)  # checked against sums just now
    torch.testing.assert_close(found, probabilities @ first, atol=1e-5, rtol=1e-5)
    assert torch.linalg.eigvalsh(found).min() > -1e-12


def test_gram_matrices_are_the_kernels(generator):
    X = torch.randn(6, 3, generator=generator, dtype=torch.float64, device=generator.device)
    h = X.new_tensor([0.5, 1.0, 2.0])
    rbf = RBFKernel(bandwidth=h).resolve(DiagonalGaussian(), X)
    naive = [[math.exp(-float(((x - y) / h).square().sum()) / 2) for y in X[:4]] for x in X]
    torch.testing.assert_close(rbf.gram(X, X[:4]), X.new_tensor(naive))
    counts = (3 * X).abs().round() + 1
    quadratic = QuadraticKernel(offset=0.3).resolve(PoissonGamma(), counts)
    torch.testing.assert_close(quadratic.gram(counts, counts), (counts @ counts.T + 0.3).square())
    shares = counts / counts.sum(1, keepdim=True)
    words = QuadraticKernel(offset=0.3).resolve(MultinomialDirichlet(), counts)
    torch.testing.assert_close(words.gram(counts, counts), (shares @ shares.T + 0.3).square())
    for kernel, rows in ((rbf, X), (quadratic, counts), (words, counts)):
        torch.testing.assert_close(kernel.diagonal(rows), kernel.gram(rows, rows).diagonal())


@pytest.mark.parametrize("rkhs", [RBFKernel(), FourierKernel(num_frequencies=50)], ids=named)
def test_quadratic_forms_by_chunks(rkhs, generator):
    like = {"generator": generator, "dtype": torch.float64, "device": generator.device}
    X, columns = torch.randn(700, 2, **like), torch.randn(700, 3, **like)
    rkhs = rkhs.resolve(DiagonalGaussian(), X)
    expected = ((rkhs.gram(X, X) @ columns) * columns).sum(0)
    torch.testing.assert_close(rkhs.quadratic_form(X, columns), expected)


def test_random_features_are_near_the_rbf_kernel(generator):
    model, X, parameters = components(FullGaussian, generator.device)
    exact, features = RBFKernel().resolve(model, X), FourierKernel(num_frequencies=20_000).resolve(model, X)
    torch.testing.assert_close(features.inner(model, parameters), exact.inner(model, parameters), atol=0.03, rtol=0)
    torch.testing.assert_close(features.gram(X, X), exact.gram(X, X), atol=0.05, rtol=0)


def test_a_family_without_closed_forms_is_embedded_by_its_draws():
    family, loc = LAPLACE, torch.tensor([[0.0, 1.0], [-1.0, 0.5]], dtype=torch.float64)
    X = torch.zeros(5, 2, dtype=torch.float64)
    rkhs = FourierKernel(bandwidth=1.0, num_frequencies=40, num_draws=4000).resolve(family, X)
    means = rkhs.means(family, {"loc": loc})
    damped = torch.prod(1 / (1 + 0.25 * rkhs.frequencies.square()), 0)  # the characteristic function of Laplace
    angles = loc @ rkhs.frequencies
    exact = torch.cat([damped * angles.cos(), damped * angles.sin()], 1) / math.sqrt(40)
    assert (means - exact).abs().max() < 5 / math.sqrt(40 * 4000)
    torch.testing.assert_close(rkhs.means(family, {"loc": loc}), means)  # the same draws again


def test_default_bandwidth_is_the_median_distance_in_units_of_columns():
    X = two_groups()
    found = RBFKernel().resolve(DiagonalGaussian(), X).bandwidth
    spread = X.std(0, correction=0)
    distances = torch.pdist(X / spread).sort().values
    torch.testing.assert_close(found, spread * distances[(len(distances) - 1) // 2])
    scaled = RBFKernel().resolve(DiagonalGaussian(), X * torch.tensor([10.0, 0.1])).bandwidth
    torch.testing.assert_close(scaled, found * torch.tensor([10.0, 0.1]).double())
    counts = torch.arange(60) % 3 + 1
    weighed = RBFKernel().resolve(DiagonalGaussian(), X, counts).bandwidth
    torch.testing.assert_close(
        weighed, RBFKernel().resolve(DiagonalGaussian(), X.repeat_interleave(counts, 0)).bandwidth
    )
    assert not torch.allclose(weighed, found, rtol=1e-3)
    bits = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert RBFKernel().resolve(BernoulliBeta(), bits).bandwidth.tolist() == [1.0, 1.0]
    assert RBFKernel().resolve(DiagonalGaussian(), torch.ones(4, 2)).bandwidth.tolist() == [1.0, 1.0]


def test_sparse_counts_are_the_dense_ones():
    X = small_rows(PoissonGamma, "cpu", 30)
    rows = scipy.sparse.csr_array(X.numpy())
    backend = HilbertEmbedding(components="prior", truncation=6)
    for family in (PoissonGamma(), MultinomialDirichlet()):
        dense, sparse = (backend.fit(DPM(family), values) for values in (X, rows))
        torch.testing.assert_close(sparse.samples["log_mixture"], dense.samples["log_mixture"])
    kernel = RBFKernel().resolve(PoissonGamma(), SparseRows.of(X))
    torch.testing.assert_close(kernel.gram(SparseRows.of(X), X), kernel.gram(X, X))


# -- truncation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prior", [DirichletProcess(concentration=1.5), PitmanYor(discount=0.2, concentration=0.5)], ids=named
)
def test_truncation_bound_on_simulated_sticks(prior, generator):
    """E r_t^2 within five standard errors; each draw's own error is at most 2 r_t^2."""
    num_draws, T, most = 2000, 200, 8
    like = torch.zeros((), dtype=torch.float64, device=generator.device)
    a, b = (beta.cpu().numpy() for beta in prior.sticks(prior.start(like), T + 1))
    rng = np.random.default_rng(0)
    v = rng.beta(a, b, size=(num_draws, T))
    left = np.cumprod(1 - v, 1)
    weights = v * np.concatenate([np.ones((num_draws, 1)), left[:, :-1]], 1)
    bound = expected_error(prior, most, like).cpu().numpy()
    square = left[:, :most] ** 2
    error = square.std(0) / num_draws**0.5
    assert (np.abs(square.mean(0) - bound[1:] / 2) < 5 * error).all()

    rkhs, family = RBFKernel(bandwidth=1.0), SphericalGaussian(loc=0.0, variance=0.1, prior_variance=9.0)
    rows = torch.zeros(2, 1, dtype=torch.float64)
    family, rkhs = family.resolve(rows), rkhs.resolve(family, rows)
    for draw in range(20):
        S = rkhs.inner(family, {"loc": torch.from_numpy(3 * rng.normal(size=(T, 1)))}).numpy()
        for t in range(1, most + 1):
            short = np.append(weights[draw, :t], np.zeros(T - t))
            short[t - 1] += 1 - short.sum()  # the last stick takes all that is left
            gone = weights[draw] - short
            assert gone @ S @ gone <= 2 * left[draw, t - 1] ** 2 + 1e-12


def test_rate_of_the_dirichlet_process_is_the_papers_corrected():
    like = torch.zeros((), dtype=torch.float64)
    bound = expected_error(DirichletProcess(concentration=3.0), 10, like)
    torch.testing.assert_close(bound, 2 * (3 / 5) ** torch.arange(11, dtype=torch.float64))
    torch.testing.assert_close(expected_error(DirichletProcess(), 3, like, nonnegative=False)[0], 4 * bound[0] / 2)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 10.0])
def test_least_truncation_meets_the_error_and_one_less_does_not(alpha):
    prior, like = DirichletProcess(concentration=alpha), torch.zeros((), dtype=torch.float64)
    T = least_truncation(prior, 1e-4, like)
    bound = expected_error(prior, T, like)
    assert bound[T] <= 1e-4 < bound[T - 1]
    model = DPM(SphericalGaussian(), prior=prior)
    posterior = HilbertEmbedding(components="prior", truncation_error=1e-4).fit(model, two_groups())
    assert posterior.samples["log_mixture"].shape == (1, T + 1)


@pytest.mark.parametrize(
    "prior", [DirichletProcess(concentration=2.0), PitmanYor(discount=0.4, concentration=0.5)], ids=named
)
def test_expected_weights_are_those_of_the_sticks(prior):
    like, left, expected = torch.zeros((), dtype=torch.float64), 1.0, []
    for a, b in zip(*prior.sticks(prior.start(like), 6), strict=True):
        expected.append(left * float(a / (a + b)))
        left *= float(b / (a + b))
    found = expected_weights(prior, 5, like)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64) / sum(expected))


# -- the fit -----------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("shrink_to", ["uniform", "prior"])
@pytest.mark.parametrize("family", [*GAUSSIANS, MultinomialDirichlet, PoissonGamma, BernoulliBeta], ids=named)
def test_weights_meet_the_conditions_of_the_program(family, shrink_to, device):
    """With S and R by enumeration or on a grid, and the ridge by hand."""
    model, X, parameters = components(family, device)
    backend = HilbertEmbedding(components=parameters, ridge=0.01, shrink_to=shrink_to)
    posterior = backend.fit(DPM(family()), X)
    rkhs = (QuadraticKernel() if family is MultinomialDirichlet else RBFKernel()).resolve(model, X)
    points, probabilities = support(family, model, parameters, X)
    kernel = rkhs.gram(points, points) if len(points) < 2000 else None
    S = rkhs.inner(model, parameters) if kernel is None else probabilities @ kernel @ probabilities.T
    R = (rkhs.gram(X, points) @ probabilities.T).mean(0)
    target = S.new_full((3,), 1 / 3) if shrink_to == "uniform" else S.new_tensor([4, 2, 1]) / 7
    weights = posterior.samples["log_mixture"][0, :-1].exp()
    gradient = S @ weights - R + 0.01 * S.diagonal().max() * (weights - target)
    spread = gradient[weights > 0].max() - gradient.min()
    assert spread <= 2e-5 * S.diagonal().max()
    assert float(weights.sum()) == pytest.approx(1.0)
    assert float(posterior.samples["gap"]) <= 1e-10 * float(S.diagonal().max()) * 1.01


@pytest.mark.parametrize("likelihood", [FullGaussian(), MultinomialDirichlet()], ids=named)
def test_conformance(likelihood):
    X = small_rows(type(likelihood), "cpu", 5)
    check_kernel(HilbertEmbedding(tolerance=0.0, max_steps=5, truncation=4), DPM(likelihood), X)


def test_steps_never_raise_the_objective_and_end_at_the_optimum(monkeypatch, generator):
    """With one gradient step a sweep and no pivots, so that there are many."""
    X, accelerate = two_groups(200).to(generator.device), simplex_qp.accelerate
    monkeypatch.setattr(simplex_qp, "sweep", lambda Q, r, pi, enough: accelerate(Q, r, pi, enough, num_steps=3))
    options = {"tolerance": 1e-4, "max_steps": 2000}
    slow = HilbertEmbedding(**options).fit(DPM(), X)
    values = slow.trace.values[0]
    assert len(values) > 5
    assert (values.diff() <= 1e-15).all()
    monkeypatch.undo()
    quick = HilbertEmbedding().fit(DPM(), X)
    assert 0 <= float(values[-1] - quick.trace.final.max()) <= 1e-4


def test_assignments_follow_from_the_mixture(device):
    X = two_groups().to(device)
    posterior = HilbertEmbedding().fit(DPM(FullGaussian()), X)
    loc, precision = (posterior.samples[f"parameters.{name}"][0] for name in ("loc", "precision"))
    density = dist.MultivariateNormal(loc, precision_matrix=precision).log_prob(X.unsqueeze(1))
    joint = density + posterior.samples["log_mixture"][0, :-1]
    torch.testing.assert_close(posterior.samples["responsibilities"][0], joint.softmax(1))
    assert torch.equal(posterior.samples["assignments"][0].long(), joint.argmax(1))
    assert torch.equal(torch.as_tensor(posterior.assign(X)), joint.argmax(1))
    torch.testing.assert_close(posterior.log_predictive_density(X), joint.logsumexp(1))
    assert posterior.assign_proba(X).sum(1).sub(1).abs().max() < 1e-9
    assert X.device.type == posterior.samples["log_mixture"].device.type


def test_documents_without_words_are_all_alike():
    """Their frequencies are 0 under every component, so that the program is of no components in particular."""
    posterior = HilbertEmbedding(truncation=3).fit(DPM(MultinomialDirichlet()), torch.zeros(5, 2))
    torch.testing.assert_close(posterior.samples["log_mixture"][0, :-1].exp(), torch.full((3,), 1 / 3))


def test_order_and_place_of_the_rows_do_not_matter():
    X = two_groups()
    model, backend = DPM(DiagonalGaussian()), HilbertEmbedding(rkhs=RBFKernel(bandwidth=1.0))
    base = backend.fit(model, X)
    given = {
        name.removeprefix("parameters."): base.samples[name][0] for name in ("parameters.loc", "parameters.precision")
    }
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    again = backend.replace(components=given).fit(model, X[order])
    torch.testing.assert_close(again.samples["log_mixture"], base.samples["log_mixture"])
    assert torch.equal(again.samples["assignments"], base.samples["assignments"][:, order])
    moved = backend.replace(components={**given, "loc": given["loc"] + 1e3}).fit(model, X + 1e3)
    torch.testing.assert_close(moved.samples["log_mixture"].exp(), base.samples["log_mixture"].exp(), atol=1e-6, rtol=0)


def test_a_row_of_weight_three_is_three_rows():
    X, counts = two_groups(), torch.arange(60) % 4
    given = {"loc": torch.tensor([[-2.0, -2.0], [2.0, 2.0], [0.0, 0.0]]).double()}
    model, backend = DPM(SphericalGaussian(variance=0.3)), HilbertEmbedding(RBFKernel(1.0), components=given, ridge=0.0)
    weighed = backend.fit(model, X, sample_weight=counts)
    repeated = backend.fit(model, X.repeat_interleave(counts, 0))
    torch.testing.assert_close(weighed.samples["log_mixture"], repeated.samples["log_mixture"])
    assert weighed.samples["assignments"].shape == (1, 60)
    labels = (X[:, 0] > 0).long()
    grouped = backend.replace(components=labels[counts > 0]).fit(DPM(), X, sample_weight=counts)
    several = backend.replace(components=labels.repeat_interleave(counts)).fit(DPM(), X.repeat_interleave(counts, 0))
    for name in ("parameters.loc", "parameters.precision", "log_mixture"):
        torch.testing.assert_close(grouped.samples[name], several.samples[name])
    assert HilbertEmbedding().fit(model, X, sample_weight=counts).num_components >= 2
    plain = backend.fit(model, X).samples["log_mixture"]
    assert not torch.allclose(plain, weighed.samples["log_mixture"])


# -- where components come from ----------------------------------------------------------------------------------------


def test_components_of_groups_of_rows():
    """Given labels: each component at the expected parameters given its rows alone, largest group first."""
    X = two_groups()
    labels = (X[:, 0] > 0).long() * 7
    model = DPM(DiagonalGaussian(mean_precision=0.01))
    posterior = HilbertEmbedding(components=labels.numpy()).fit(model, X)
    family = posterior.model.likelihood
    groups = sorted([X[labels == 0], X[labels == 7]], key=len, reverse=True)
    for k, own in enumerate(groups):
        m, _, a, b = family.common(family.prior() + family.statistics(own).sum(0))
        torch.testing.assert_close(posterior.samples["parameters.loc"][0, k], family.loc + m)
        torch.testing.assert_close(posterior.samples["parameters.precision"][0, k], a / b)
    found = HilbertEmbedding(truncation=2).fit(model, X)  # seeds that are far apart find the same groups
    torch.testing.assert_close(found.samples["parameters.loc"], posterior.samples["parameters.loc"])


@pytest.mark.parametrize("family", [*GAUSSIANS, MultinomialDirichlet, PoissonGamma, BernoulliBeta], ids=named)
def test_components_of_a_posterior_are_its_expected_parameters(family):
    """The mean of many draws of each component's parameters, heaviest first; centres give their groups."""
    X, _ = mixture_rows(family, 40)
    model = DPM(family(), truncation=12)
    source = SVI(num_steps=20).fit(model, X)
    posterior = HilbertEmbedding(components=source).fit(model, X)
    order = source.samples["log_mixture"][0, :-1].argsort(descending=True)
    chi = source.samples["hyperparameters"][0, order]
    draws = source.model.likelihood.draw(chi.repeat(4000, 1), torch.Generator().manual_seed(0))
    for name, value in draws.items():
        value = value.view(4000, len(chi), *value.shape[1:])
        error = 5 * value.std(0) / 4000**0.5
        assert ((posterior.samples[f"parameters.{name}"][0] - value.mean(0)).abs() <= error + 1e-9).all()
    centers = SmallVariance(num_components=3).fit(model, X)
    grouped = HilbertEmbedding(components=centers).fit(model, X)
    labelled = HilbertEmbedding(components=centers.partition()).fit(model, X)
    torch.testing.assert_close(grouped.samples["log_mixture"], labelled.samples["log_mixture"])
    assert grouped.samples["log_mixture"].shape[1] == centers.num_components + 1


def test_multinomial_rows_have_the_totals_that_are_asked_for(generator):
    probs = torch.tensor([[0.6, 0.3, 0.1], [0.0, 0.5, 0.5]], dtype=torch.float64, device=generator.device)
    own, totals = torch.arange(4000, device=probs.device) % 2, torch.arange(4000, device=probs.device).double() % 7
    rows = MultinomialDirichlet().draw_rows({"probs": probs[own]}, generator, totals)
    assert torch.equal(rows.sum(1), totals)
    for k in (0, 1):
        mean, words = rows[own == k].sum(0) / totals[own == k].sum(), totals[own == k].sum()
        assert ((mean - probs[k]).abs() <= 5 * (probs[k] * (1 - probs[k]) / words).sqrt()).all()


def test_components_of_draws_and_of_another_embedding():
    X = two_groups()
    for source in (Gibbs(20, 20, scan="slice"), HilbertEmbedding(components="prior", seed=3)):
        first = source.fit(DPM(), X)
        second = HilbertEmbedding(components=first, truncation=2).fit(DPM(), X)
        assert second.samples["parameters.loc"].shape[1] <= 2
        assert second.num_components == 2 or isinstance(source, HilbertEmbedding)


def test_components_from_the_prior_differ_by_seed_alone():
    X = two_groups()
    one, same, other = (HilbertEmbedding(components="prior", seed=seed).fit(DPM(), X) for seed in (1, 1, 2))
    assert torch.equal(one.samples["parameters.loc"], same.samples["parameters.loc"])
    assert not torch.equal(one.samples["parameters.loc"], other.samples["parameters.loc"])


def test_a_family_of_a_user(device):
    """Neither conjugate nor in closed form: random features, components from its prior or given."""
    X = two_groups().to(device)
    given = {"loc": [[-2.0, -2.0], [2.0, 2.0], [2.0, -2.0]]}
    posterior = HilbertEmbedding(components=given).fit(DPM(LAPLACE), X)
    share = float((X[:, 0] < 0).double().mean())
    weights = posterior.samples["log_mixture"][0].exp()
    assert abs(float(weights[0]) - share) < 0.1
    assert float(weights[2]) < 0.1
    assert posterior.num_components == 2
    assert HilbertEmbedding(components="prior").fit(DPM(LAPLACE), X).mmd(X).squared < 1
    with pytest.raises(NotImplementedError, match="LaplaceLocation has no conjugate prior by which rows make"):
        HilbertEmbedding().fit(DPM(LAPLACE), X)


# -- files, interrupts, parameters -------------------------------------------------------------------------------------


def test_files_and_going_on(tmp_path, monkeypatch):
    X, path = two_groups(), tmp_path / "fit"
    model, backend = DPM(FullGaussian()), HilbertEmbedding(rkhs=RBFKernel(0.7), components="prior", tolerance=0.0)
    accelerate = simplex_qp.accelerate
    monkeypatch.setattr(simplex_qp, "sweep", lambda Q, r, pi, enough: accelerate(Q, r, pi, enough, num_steps=2))
    whole = backend.replace(max_steps=7).fit(model, X)
    assert len(whole.trace.values[0]) == 7
    backend.replace(max_steps=3).fit(model, X, checkpoint=path)
    resumed = backend.replace(max_steps=7).fit(model, X, resume=path)
    assert torch.equal(resumed.trace.values, whole.trace.values)
    assert torch.equal(resumed.samples["log_mixture"], whole.samples["log_mixture"])
    with pytest.raises(ValueError, match="written by another fit"):
        backend.replace(ridge=1.0).fit(model, X, resume=path)
    source = SVI(num_steps=3).fit(model, X)
    fitted = HilbertEmbedding(components=source).fit(model, X)
    fitted.save(path)
    loaded = Posterior.load(path)
    assert loaded.mmd(X, num_permutations=19) == fitted.mmd(X, num_permutations=19)
    assert repr(loaded) == repr(fitted)
    assert loaded.backend.fit(model, X).samples["log_mixture"].equal(fitted.samples["log_mixture"])


def test_ctrl_c_returns_the_weights_that_were_reached(monkeypatch):
    calls, accelerate = [], simplex_qp.accelerate

    def interrupted(Q, r, pi, enough):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return accelerate(Q, r, pi, enough, num_steps=1)

    monkeypatch.setattr(simplex_qp, "sweep", interrupted)
    with pytest.warns(FitInterrupted, match="after step 2 of 200"):
        posterior = HilbertEmbedding(tolerance=0.0).fit(DPM(), two_groups())
    assert float(posterior.samples["log_mixture"].exp().sum()) == pytest.approx(1.0)


def test_it_serves_the_estimator_and_single_precision(device):
    X = two_groups().to(device)
    single = HilbertEmbedding().fit(DPM(), X.float())
    assert single.samples["log_mixture"].dtype == torch.float32
    double = HilbertEmbedding(components={n: single.samples[f"parameters.{n}"][0] for n in ("loc", "precision")})
    exact = double.fit(DPM(), X.float().double()).samples["log_mixture"].exp()
    torch.testing.assert_close(single.samples["log_mixture"].exp().double(), exact, atol=1e-3, rtol=0)
    labels = Clusterer(DPM(SphericalGaussian()), HilbertEmbedding(truncation=2)).fit_predict(X.cpu().numpy())
    assert len(set(labels[X[:, 0].cpu().numpy() > 0])) == len(set(labels[X[:, 0].cpu().numpy() < 0])) == 1
    nested = HilbertEmbedding(rkhs=RBFKernel()).set_params(rkhs__bandwidth=2.0)
    assert nested.fit(DPM(), X).samples["bandwidth"].tolist() == [[2.0, 2.0]]


@pytest.mark.parametrize(
    ("options", "model", "message"),
    [
        ({"rkhs": RBFKernel(-1.0)}, DPM(), r"rkhs__bandwidth is -1.0; it must be positive"),
        ({"rkhs": RBFKernel([1.0, 2.0, 3.0])}, DPM(), r"bandwidth has shape \(3,\)"),
        ({"rkhs": "rbf"}, DPM(), "rkhs is 'rbf'; expected an object of class MeanKernel"),
        ({"rkhs": QuadraticKernel()}, DPM(), "QuadraticKernel has no means for DiagonalGaussian"),
        ({"rkhs": RBFKernel()}, DPM(MultinomialDirichlet()), "RBFKernel has no closed form for MultinomialDirichlet"),
        ({"rkhs": FourierKernel()}, DPM(MultinomialDirichlet()), "FourierKernel needs totals"),
        ({}, DPM(Product([(MultinomialDirichlet(), 1), (PoissonGamma(), 1)])), r"which Product\(\) leaves open: take"),
        ({}, InfiniteSVM(), "InfiniteSVM has no HilbertEmbedding backend, .* without hyperplanes; it has: Gibbs"),
        ({"components": "rows"}, DPM(), "components is 'rows'; it must be 'data', 'prior', a posterior"),
        ({"components": {}}, DPM(), "components is {}; it must be"),
        ({"components": {"loc": [[math.nan, 0.0]]}}, DPM(), "components is .*; it must be"),
        ({"components": {"loc": [[1.0]]}}, DPM(SphericalGaussian()), r"'loc' of shape \[1, 1\]; expected \[1, 2\]"),
        ({"components": {"loc": [[1.0, 2.0]]}}, DPM(), "components has loc, but no 'precision'"),
        ({"components": {"loc": [[1.0, 2.0]], "precision": [[1.0, -1.0]]}}, DPM(), "values of 'precision' outside"),
        ({"components": {"loc": [[1.0, 2.0]], "precision": [[1.0, 1.0]]}}, DPM(SphericalGaussian()), "which Spherical"),
        ({"components": [0, 1, 2]}, DPM(), "components has labels of 3 rows, but X has 60"),
        ({}, DPM(prior=PitmanYor(discount=0.9)), "takes more than 10000 components under PitmanYor"),
    ],
)
def test_bad_options_are_refused(options, model, message):
    y = torch.arange(60) % 2 if isinstance(model, InfiniteSVM) else None
    X = two_groups().round().abs() if isinstance(model.likelihood, MultinomialDirichlet | Product) else two_groups()
    with pytest.raises((ValueError, NotImplementedError), match=message):
        HilbertEmbedding(**options).fit(model, X, y)


def test_bad_rows_are_refused():
    X = two_groups()
    X[3, 1] = math.nan
    with pytest.raises(ValueError, match="Input X contains NaN or inf"):
        HilbertEmbedding().fit(DPM(), X)
    with pytest.raises(ValueError, match="X has missing entries, between which a kernel has no value"):
        HilbertEmbedding().fit(DPM(MaskedBernoulli()), torch.tensor([[1.0, math.nan], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="negative"):
        HilbertEmbedding().fit(DPM(PoissonGamma()), two_groups().round())
    with pytest.raises(ValueError, match=r"counts of up to \d{4}; RBFKernel takes 5000 at most"):
        HilbertEmbedding().fit(DPM(PoissonGamma()), torch.tensor([[0.0], [1.0], [9000.0]]))


# -- MMD ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [BernoulliBeta, PoissonGamma, MultinomialDirichlet], ids=named)
def test_mmd_is_the_distance_of_frequencies(family, device):
    """(f - p)^T K (f - p) of frequencies f and probabilities p of all points; unbiased without pairs n = m."""
    model, X, parameters = components(family, device)
    rkhs = (QuadraticKernel() if family is MultinomialDirichlet else RBFKernel()).resolve(model, X)
    weights = X.new_tensor([0.5, 0.3, 0.2])
    points, probabilities = support(family, model, parameters, X)
    frequencies = (X.unsqueeze(1) == points).all(2).double().mean(0)
    K, N = rkhs.gram(points, points), len(X)
    apart = frequencies - weights @ probabilities
    squared, unbiased = squared_mmd(rkhs, model, parameters, weights, X)
    assert squared == pytest.approx(float(apart @ K @ apart), abs=1e-10, rel=1e-6)
    pairs = sum(float(rkhs.gram(X[n : n + 1], X[m : m + 1])) for n in range(N) for m in range(N) if n != m)
    rest = float(weights @ probabilities @ K @ (weights @ probabilities - 2 * frequencies))
    assert unbiased == pytest.approx(pairs / (N * (N - 1)) + rest, abs=1e-10, rel=1e-6)


def test_permutations_find_the_share_of_all_splits(generator):
    """The p-value of tiny samples against all ways to split the pooled rows."""
    rows = torch.randn(7, 1, generator=generator, dtype=torch.float64, device=generator.device)
    rows[:3] += 1.0
    rkhs = RBFKernel(bandwidth=1.0).resolve(DiagonalGaussian(), rows)
    K = rkhs.gram(rows, rows)

    def apart(chosen) -> float:
        signs = K.new_full((7,), -1 / 4)
        signs[list(chosen)] = 1 / 3
        return float(signs @ K @ signs)

    values = np.array([apart(chosen) for chosen in itertools.combinations(range(7), 3)])
    exact = float((values >= values[0] - 1e-12).mean())
    assert 0.02 < exact < 0.9
    found = permutation_p_value(rkhs, rows[:3], rows[3:], 20_000, generator)
    assert abs(found - exact) < 5 * math.sqrt(exact * (1 - exact) / 20_000)
    far = torch.cat([rows, rows + 9.0])
    assert permutation_p_value(rkhs, far[:7], far[7:], 99, generator) == 1 / 100


def test_p_value_is_uniform_where_there_is_no_difference_and_small_where_there_is():
    model = DPM(SphericalGaussian(loc=0.0, variance=1.0, prior_variance=4.0))
    given = {"loc": torch.tensor([[-2.0], [1.0]]).double()}
    posterior = HilbertEmbedding(components=given, ridge=1e6).fit(model, torch.zeros(4, 1).double())
    weights = [0.5, 0.5]  # of a ridge that leaves nothing to the data
    np.testing.assert_allclose(posterior.samples["log_mixture"][0, :2].exp(), weights, atol=1e-5)
    rng, kernel = np.random.default_rng(1), RBFKernel(bandwidth=1.0)
    p_values, shifted = [], []
    for seed in range(240):
        X = given["loc"][rng.choice(2, 20, p=weights)] + torch.from_numpy(rng.normal(size=(20, 1)))
        options = {"rkhs": kernel, "num_permutations": 39, "seed": seed}
        p_values.append(posterior.mmd(X, **options).p_value)
        shifted.append(posterior.mmd(X + 2.5, **options).p_value if seed < 20 else 0.0)
    counts = np.histogram(p_values, bins=np.arange(0.0125, 1.1, 0.125))[0]
    assert stats.chisquare(counts).pvalue > 1e-4
    assert np.median(shifted[:20]) < 0.05


def test_p_value_of_the_default_kernel_is_never_too_small():
    """Of few rows in several columns, whose own distances are not those between them and others."""
    N, D, repeats = 5, 5, 800
    model = DPM(SphericalGaussian(loc=0.0, variance=1.0, prior_variance=4.0))
    given = {"loc": torch.tensor([[-2.0], [1.0]]).double().expand(2, D)}
    posterior = HilbertEmbedding(components=given, ridge=1e6).fit(model, torch.zeros(4, D).double())
    rng, p_values = np.random.default_rng(1), []
    for seed in range(repeats):
        X = given["loc"][rng.choice(2, N)] + torch.from_numpy(rng.normal(size=(N, D)))
        p_values.append(posterior.mmd(X, num_permutations=19, seed=seed).p_value)
    for level in (0.1, 0.2):
        error = math.sqrt(level * (1 - level) / repeats)
        assert (np.array(p_values) <= level + 1e-9).mean() < level + 3 * error


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", [*GAUSSIANS, MultinomialDirichlet, PoissonGamma, BernoulliBeta], ids=named)
def test_mmd_of_other_posteriors(family, device):
    """A fitted mixture is near its data, and far from others; the same seed gives the same numbers."""
    X, _ = mixture_rows(family, 60)
    X = X.to(device)
    model = DPM(family(), truncation=12)
    for backend in (SVI(num_steps=20), Gibbs(10, 20, scan="slice"), HilbertEmbedding(truncation=5)):
        posterior = backend.fit(model, X)
        near = posterior.mmd(X, num_permutations=99)
        others = 1 - X if family is BernoulliBeta else X.flip(1) + (5.0 if family in GAUSSIANS else 0.0)
        far = posterior.mmd(others, num_permutations=99)
        assert near.p_value > 0.02 or isinstance(backend, HilbertEmbedding)
        assert far.p_value < near.p_value
        assert near.unbiased < near.squared < far.squared
    assert posterior.mmd(X, num_permutations=99) == near
    assert posterior.mmd(X, num_permutations=99, seed=1) != near


def test_components_that_stand_for_a_posterior_have_its_mean():
    """Against the predictive distribution, which of a spherical family is Gaussian."""
    X = two_groups()
    posterior = SVI(num_steps=20).fit(DPM(SphericalGaussian(), truncation=3), X)
    family, chi = posterior.model.likelihood, posterior.samples["hyperparameters"][0]
    rkhs = RBFKernel(bandwidth=1.0).resolve(family, X)
    wide = DiagonalGaussian().resolve(X)
    variance = family.variance * (1 + 1 / chi[:, -1:])
    exact = {"loc": family.loc + chi[:, :-1] / chi[:, -1:], "precision": (1 / variance).expand(-1, 2)}
    weights = posterior.samples["log_mixture"][0, :-1].exp()
    target = rkhs.cross(wide, exact, X) @ weights
    predictive = Predictive.of(posterior.model, posterior.samples)
    parameters, own = predictive.components(2000, torch.Generator().manual_seed(0))
    assert float(own.sum()) == pytest.approx(1.0)
    found = rkhs.cross(family, parameters, X) @ own
    assert (found - target).abs().max() < 5 * 0.5 / math.sqrt(2000)
    rows, _ = predictive.rows(4000, X.new_zeros(4000), torch.Generator().manual_seed(0))
    assert (rkhs.gram(X, rows).mean(1) - target).abs().max() < 5 * 0.5 / math.sqrt(4000)


def test_components_not_yet_seen_stand_with_the_prior():
    posterior = Gibbs(3, 3).fit(DPM(SphericalGaussian()), two_groups())
    predictive, count = Predictive.of(posterior.model, posterior.samples), posterior.samples["log_mixture"].shape[1]
    last = predictive.chi.view(3, count, -1)[:, -1]
    torch.testing.assert_close(last, posterior.model.likelihood.prior().expand(3, -1))
    torch.testing.assert_close(predictive.weights.view(3, count).sum(1), torch.full((3,), 1 / 3).double())


def test_components_stand_for_others_as_often_as_their_weights_say(generator):
    weights = torch.rand(40, generator=generator, dtype=torch.float64, device=generator.device).softmax(0)
    weights[7] = 0.0
    weights = weights / weights.sum()
    own = {"loc": torch.arange(40, device=weights.device).unsqueeze(1)}
    predictive = Predictive(SphericalGaussian(), weights, None, own)
    parameters, shares = predictive.components(30, generator)
    counts = torch.bincount(parameters["loc"].squeeze(1), minlength=40)
    assert ((counts - 30 * weights).abs() < 1).all()
    assert len(shares) == 30
    parameters, shares = predictive.components(39, generator)
    assert torch.equal(shares, weights[weights > 0])
    assert 7 not in parameters["loc"]


def test_what_mmd_refuses():
    X = two_groups()
    posterior = HilbertEmbedding().fit(DPM(), X)
    for options, message in (
        ({"rkhs": "rbf"}, "rkhs is 'rbf'; expected a kernel"),
        ({"rkhs": RBFKernel(math.inf)}, "rkhs__bandwidth is inf; it must be positive"),
        ({"num_draws": 1}, "num_draws is 1; it must be an integer of at least 2"),
        ({"num_permutations": 0}, "num_permutations is 0"),
        ({"seed": -1}, "seed is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            posterior.mmd(X, **options)
    with pytest.raises(ValueError, match="X has 1 row; expected at least 2"):
        posterior.mmd(X[:1])
    with pytest.raises(NotImplementedError, match="QuadraticKernel has no means"):
        posterior.mmd(X, rkhs=QuadraticKernel())
    with pytest.raises(NotImplementedError, match="centres have no density"):
        SmallVariance(num_components=2).fit(DPM(), X).mmd(X)


def test_old_faithful_is_fitted_better_than_by_likelihood():
    """With the same components: a lower MMD than their EM weights and than those of SVI, and no sign of a misfit."""
    X = torch.from_numpy(load("faithful").X)
    source = SVI(num_steps=100).fit(DPM(FullGaussian(), truncation=10), X)
    posterior = HilbertEmbedding(components=source, ridge=0.0).fit(DPM(FullGaussian()), X)
    family = posterior.model.likelihood
    parameters = {name: posterior.samples[f"parameters.{name}"][0] for name in ("loc", "precision")}
    density = family.log_density(X, parameters)
    em = torch.full((density.shape[1],), 1 / density.shape[1], dtype=torch.float64)
    for _ in range(500):
        em = (density + em.log()).softmax(1).mean(0)
    rkhs = RBFKernel().resolve(family, X)
    svi = source.samples["log_mixture"][0, :-1].sort(descending=True).values.exp()
    ours, by_em, by_svi = (
        squared_mmd(rkhs, family, parameters, weights, X)[0]
        for weights in (posterior.samples["log_mixture"][0, :-1].exp(), em, svi)
    )
    assert ours < by_em
    assert ours < by_svi
    assert posterior.mmd(X).p_value > 0.05
