"""Variational inference under any prior, with missing labels, and on sparse rows."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import scipy.sparse
import torch
from setups import climbed, name_of
from torch.distributions import Beta, kl_divergence
from variational import elbo, retold

from regbayes.inference import SVI
from regbayes.inference.svi import factors
from regbayes.inference.svi.factors import components_kl
from regbayes.inference.svi.partition import factors as sticks
from regbayes.inference.svi.partition import kernel as partition
from regbayes.models import DPM, DirichletProcess, InfiniteSVM, PitmanYor, Standardized
from regbayes.models.likelihoods import BernoulliBeta, MultinomialDirichlet, PoissonGamma, SphericalGaussian
from regbayes.models.losses import EpsilonInsensitive, Hinge, Logistic
from regbayes.models.priors.sticks import log_labelled_prior
from regbayes.models.sparse import SparseRows
from regbayes.testing.enumeration import log_evidence, partition_log_weights

PRIORS = {
    "half": PitmanYor(0.5, 1.0),
    "below zero": PitmanYor(0.6, -0.3),
    "free discount": PitmanYor(0.3, 1.0, discount_prior=(1.0, 2.0)),
    "free": PitmanYor(0.3, 1.0, discount_prior=(1.0, 2.0), concentration_prior=(1.0, 1.0)),
}
TINY = torch.tensor([[-1.2], [-0.9], [0.7], [1.4], [0.9]], dtype=torch.float64)
FAMILY = SphericalGaussian(loc=0.0, variance=0.7, prior_variance=1.0)
NO_INTERCEPT = Standardized(intercept=0.0)


def points(generator) -> tuple[torch.Tensor, torch.Tensor]:
    """60 rows in groups of falling size, and a class for each."""
    group = torch.tensor([0] * 6 + [1] * 3 + [2] * 2 + [3]).repeat(5)
    X = 6 * torch.randn(4, 2, generator=generator, dtype=torch.float64)[group]
    X = X + torch.randn(60, 2, generator=generator, dtype=torch.float64)
    return X, (X[:, 0] > X[:, 0].median()).long()


def problem_of(prior, generator):
    return DPM(prior=prior, truncation=5).prepare(points(generator)[0])


# -- the prior ---------------------------------------------------------------------------------------------------------


def grid_of(prior, like: torch.Tensor, truncation: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Beta parameters (a, b), each [G, T - 1], of the sticks at every value of the prior's grid."""
    values = prior.initial(like)[:-1]
    return prior.sticks(dict(zip(prior.start(like), values.unsqueeze(-1), strict=True)), truncation)


def log_gridded_evidence(model, X, y, truncation: int) -> float:
    """log Z over all labellings, with the hyperparameters uniform on their grid."""
    plain = DirichletProcess()
    log_weights = partition_log_weights(model.replace(prior=plain), X, y, truncation=truncation)
    counts = torch.stack([torch.bincount(torch.tensor(z), minlength=truncation) for z in log_weights]).double()
    weights = torch.tensor(list(log_weights.values()), dtype=torch.float64)
    a, b = grid_of(model.prior, X, truncation)
    log_prior = log_labelled_prior(counts.unsqueeze(1), a, b).logsumexp(1) - math.log(len(a))
    one = torch.ones(truncation - 1, dtype=torch.float64)
    return float((weights - log_labelled_prior(counts, one, one) + log_prior).logsumexp(0))


@pytest.mark.parametrize("loss", [None, Hinge()], ids=["DPM", "Hinge"])
@pytest.mark.parametrize("prior", PRIORS)
def test_the_bound_is_below_the_evidence(prior, loss, cpu_generator) -> None:
    y = torch.tensor([0, 0, 1, 1, 0])
    options = {"prior": PRIORS[prior], "truncation": 3}
    model = DPM(FAMILY, **options)
    if loss is not None:
        model = InfiniteSVM(FAMILY, loss, feature_map=NO_INTERCEPT, **options)
    model = model.resolve(TINY, y)
    data, exact = model.data(TINY, y), log_gridded_evidence(model, TINY, y, 3)
    if "free" not in prior:
        assert exact == pytest.approx(log_evidence(model, TINY, y, truncation=3), abs=1e-9)
    finals = []
    for _ in range(2):
        state, bounds = partition.init(model, data, cpu_generator), []
        for _ in range(40):
            state = partition.sweep(state, data, model)
            bounds.append(float(state.bound))
        assert all(after >= before - 1e-9 for before, after in itertools.pairwise(bounds))
        finals.append(bounds[-1])
    assert exact - 4.5 < max(finals) < exact


@pytest.mark.parametrize("prior", PRIORS)
def test_the_divergence_is_that_of_sticks_and_hyperparameters(prior, cpu_generator) -> None:
    """sum_g q_g [KL(q(v) || p(v | h_g)) + log(q_g / p_g)], term by term."""
    model, data = problem_of(PRIORS[prior], cpu_generator)
    state = sticks.update_prior(climbed(partition, model, data, cpu_generator), model)
    q, (a, b) = state.q[-1], grid_of(model.prior, data.X, 5)
    divergence = kl_divergence(Beta(*state.sticks), Beta(a, b)).sum(1)
    expected = (q * (divergence + (q * len(q)).clamp(min=1e-300).log())).sum()
    torch.testing.assert_close(factors.kl(state, model) - components_kl(state, model), expected)


@pytest.mark.parametrize("prior", [DirichletProcess(1.7), PRIORS["half"], PRIORS["below zero"]], ids=str)
def test_best_sticks_leave_the_log_prior_of_expected_counts(prior, cpu_generator) -> None:
    model, data = problem_of(prior, cpu_generator)
    state = sticks.update_sticks(climbed(partition, model, data, cpu_generator), model)
    log_v, log_rest = state.expected_log_sticks
    n = state.responsibilities.sum(0)
    later = n.flip(0).cumsum(0).flip(0) - n
    found = (n[:-1] * log_v + later[:-1] * log_rest).sum() - factors.kl(state, model) + components_kl(state, model)
    h = prior.start(data.X)
    torch.testing.assert_close(found, log_labelled_prior(n, *prior.sticks(h, 5)))


@pytest.mark.parametrize("prior", PRIORS)
def test_no_neighbour_of_an_updated_grid_is_better(prior, cpu_generator) -> None:
    model, data = problem_of(PRIORS[prior], cpu_generator)
    state = sticks.update_prior(climbed(partition, model, data, cpu_generator), model)
    best = elbo(state, data, model)
    for _ in range(5):
        noise = 1e-2 * torch.randn(state.q[-1].shape, generator=cpu_generator, dtype=torch.float64)
        moved = torch.cat([state.q[:-1], (state.q[-1].log() + noise).softmax(0).unsqueeze(0)])
        assert elbo(replace(state, q=moved), data, model) <= best + 1e-12


@pytest.mark.parametrize("prior", PRIORS)
def test_components_stand_in_the_best_of_all_orders(prior, cpu_generator) -> None:
    """Against all permutations; plain decreasing sizes are worse where the discount is large."""
    model, data = problem_of(PRIORS[prior], cpu_generator)
    state, gains = climbed(partition, model, data, cpu_generator), []
    prior, orders = sticks.expected_prior(state, model), torch.tensor(list(itertools.permutations(range(5))))
    for _ in range(20):
        sizes = 8 * torch.rand(5, generator=cpu_generator, dtype=torch.float64) ** 3
        shuffled = replace(state, responsibilities=(sizes / 60).expand(60, 5).contiguous())
        best = orders[log_labelled_prior(sizes[orders], prior.a, prior.b).argmax()]
        decreasing, found = sizes.argsort(descending=True), shuffled.reordered(model)
        bounds = [_log_prior_of(version, model) for version in map(shuffled.permuted, (best, decreasing))]
        torch.testing.assert_close(_log_prior_of(found, model), bounds[0])
        assert found.reordered(model) is found
        gains.append(bounds[0] - bounds[1])
    assert min(gains) > -1e-9
    assert max(gains) > 0.1


def _log_prior_of(state, model) -> torch.Tensor:
    """Terms of the bound that an order changes, at its best sticks."""
    state = sticks.update_sticks(state, model)
    log_v, log_rest = state.expected_log_sticks
    n = state.sizes
    later = n.flip(0).cumsum(0).flip(0) - n
    return (n[:-1] * log_v + later[:-1] * log_rest).sum() - factors.kl(state, model)


def test_draws_keep_the_means_of_the_hyperparameters(cpu_generator) -> None:
    X, _ = points(cpu_generator)
    posterior = SVI(num_steps=20, tolerance=None).fit(DPM(prior=PRIORS["free"], truncation=8), X)
    d, alpha = posterior.samples["discount"], posterior.samples["concentration"]
    assert d.shape == alpha.shape == (1,)
    assert 0 < float(d) < 0.3 < float(alpha) + 0.3
    assert float(posterior.samples["log_mixture"].exp().sum()) == pytest.approx(1.0)
    dirichlet = SVI(num_steps=20).fit(DPM(prior=DirichletProcess(2.5), truncation=8), X)
    assert float(dirichlet.samples["concentration"]) == 2.5


# -- missing labels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [Hinge(), Logistic(), EpsilonInsensitive()], ids=name_of)
def test_a_row_without_a_label_weighs_components_by_x_alone(loss, cpu_generator) -> None:
    y = torch.tensor([0.0, torch.nan, 1.0, 1.0, 0.0], dtype=torch.float64)
    model = InfiniteSVM(FAMILY, loss, truncation=2, feature_map=NO_INTERCEPT).resolve(TINY, y)
    data = model.data(TINY, y)
    state = climbed(partition, model, data, cpu_generator, 20)
    log_v, log_rest = state.expected_log_sticks
    log_mixture = torch.stack([log_v[0], log_rest[0]])
    logits = log_mixture + model.likelihood.expected_log_density(TINY, state.hyperparameters)
    torch.testing.assert_close(state.responsibilities[1], logits[1].softmax(0))
    assert not torch.allclose(state.responsibilities, logits.softmax(1), atol=1e-4)
    known = torch.tensor([0, 2, 3, 4])
    labelled = replace(state, responsibilities=state.responsibilities[known])
    labelled = retold(labelled, data.rows(known), model)
    torch.testing.assert_close(state.gram, labelled.gram)
    torch.testing.assert_close(state.linear, labelled.linear)


def test_a_component_without_labels_keeps_its_prior(cpu_generator) -> None:
    X, y = points(cpu_generator)
    labels = y.double()
    labels[:30] = torch.nan
    model = InfiniteSVM(truncation=2, weight_scale=1.5).resolve(X, labels)
    data = model.data(X, labels)
    state = climbed(partition, model, data, cpu_generator, 1)
    hard = torch.nn.functional.one_hot((torch.arange(60) < 30).long(), 2).double()
    observed = retold(replace(state, responsibilities=hard), data, model)
    state = factors.update_classifiers(observed, model)
    assert not state.mean[1].any()
    torch.testing.assert_close(state.precision_tril[1, 0], torch.eye(3, dtype=torch.float64) / 1.5)
    assert state.classifiers.kl(1.5)[1].abs() < 1e-12 < state.classifiers.kl(1.5)[0]


# -- sparse rows -------------------------------------------------------------------------------------------------------


def documents(generator, num_data: int = 200, num_words: int = 40, binary: bool = False) -> torch.Tensor:
    topics = torch.rand(3, num_words, generator=generator, dtype=torch.float64) ** 6
    X = torch.poisson(topics[torch.randint(3, (num_data,), generator=generator)], generator=generator)
    return X.clamp(max=1) if binary else X


@pytest.mark.parametrize("batch_size", [None, 50])
@pytest.mark.parametrize("family", [MultinomialDirichlet(), PoissonGamma(), BernoulliBeta()])
def test_sparse_rows_give_what_dense_ones_do(family, batch_size, cpu_generator, monkeypatch) -> None:
    X = documents(cpu_generator, binary=isinstance(family, BernoulliBeta))
    dense = SparseRows.to_dense
    model, backend = DPM(family, truncation=6), SVI(num_steps=15, batch_size=batch_size, num_full_steps=3)
    expected = backend.fit(model, X)

    def few(rows: SparseRows) -> torch.Tensor:
        assert len(rows) <= 6, "sparse rows were made dense"
        return dense(rows)

    monkeypatch.setattr(SparseRows, "to_dense", few)
    found = backend.fit(model, scipy.sparse.csr_matrix(X.numpy()))
    torch.testing.assert_close(found.trace.values, expected.trace.values)
    for name, value in expected.samples.items():
        torch.testing.assert_close(found.samples[name], value, rtol=1e-6, atol=1e-8, msg=name)


# -- what is refused ---------------------------------------------------------------------------------------------------
