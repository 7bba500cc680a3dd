"""A prior of a stranger that has no sticks, and ours: exact where they serve, refused by name everywhere else."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from pyro.infer import MCMC
from setups import AnotherGaussian, by_day
from torch import Tensor

from regbayes.inference import NUTS, SVI, Autoguide, Gibbs, HilbertEmbedding, PyroGibbs, SmallVariance
from regbayes.models import (
    BNMC,
    DDPM,
    DPM,
    DirichletProcess,
    Hinge,
    InfiniteSVM,
    MixtureOfFiniteMixtures,
    PartitionPrior,
    SphericalGaussian,
    Standardized,
)
from regbayes.models.domains import Count, Positive
from regbayes.testing import check_kernel, check_prior


@dataclass(eq=False)
class UpTo(PartitionPrior):
    """A uniform number of components up to `most`, with weights from a symmetric Dirichlet distribution."""

    most: Count = 6
    concentration: Positive = 0.8

    def hyperpriors(self, like: Tensor):
        return {"concentration": None}

    def urn(self, h, num_data: int, capacity: int) -> tuple[Tensor, Tensor]:
        gamma, blocks = h["concentration"], torch.arange(capacity + 1)
        opened = [self._log_v(num_data, int(t) + 1, gamma) - self._log_v(num_data, int(t), gamma) for t in blocks]
        return (torch.arange(num_data + 1) + gamma).log(), gamma.log() + torch.stack(opened).nan_to_num(
            nan=-math.inf, neginf=-math.inf
        )

    def log_partition(self, counts: Tensor, h) -> Tensor:
        gamma = h["concentration"]
        log_blocks = torch.lgamma(counts + gamma) - torch.lgamma(gamma)
        return self._log_v(int(counts.sum()), len(counts), gamma) + log_blocks.sum()

    def _log_v(self, num_data: int, num_blocks: int, gamma: Tensor) -> Tensor:
        k = torch.arange(max(num_blocks, 1), max(num_blocks, self.most + 1), dtype=torch.float64)
        terms = torch.lgamma(k + 1) - torch.lgamma(k - num_blocks + 1) - math.log(self.most)
        return (terms + torch.lgamma(gamma * k) - torch.lgamma(gamma * k + num_data)).logsumexp(0)


PRIORS = {"ours": MixtureOfFiniteMixtures(0.8, 1.5), "a stranger's": UpTo()}
EVERY = pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
X = torch.tensor([[-1.5], [-0.4], [0.3], [1.9]], dtype=torch.float64)
Y = torch.tensor([0, 1, 0, 1])
THROUGH_ZERO = Standardized(intercept=0.0)
FAMILY = SphericalGaussian(loc=0.0, variance=1.0, prior_variance=2.0)


@EVERY
def test_it_conforms_in_what_it_has(prior) -> None:
    check_prior(prior, num_data=5)


# -- where it serves ---------------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@EVERY
@pytest.mark.parametrize(
    ("model", "y"),
    [(DPM(FAMILY), None), (InfiniteSVM(FAMILY, Hinge(1.5), feature_map=THROUGH_ZERO, weight_scale=2.0), Y)],
    ids=["mixture", "classifiers"],
)
def test_the_collapsed_scan_is_exact(model, y, prior) -> None:
    """Scans and split-merge together, as a user has them."""
    check_kernel(Gibbs(by_day(1500), 50, scan="collapsed", progress=False), model.replace(prior=prior), X, y)


@EVERY
def test_the_default_scan_of_a_family_that_is_not_compiled_is_collapsed_too(prior) -> None:
    family = AnotherGaussian()
    found = [
        Gibbs(20, 5, scan=scan, progress=False).fit(DPM(family, prior), X).samples["assignments"]
        for scan in ("auto", "collapsed")
    ]
    assert torch.equal(*found)


def test_a_prior_may_bound_the_number_of_components() -> None:
    """Its checks pass, and chains start from possible states."""
    two, rows = UpTo(most=2), torch.linspace(-9, 9, 40, dtype=torch.float64).unsqueeze(1)
    check_prior(two, num_data=5)
    for backend in (Gibbs(4, 2, num_chains=3, seed=1), Gibbs(4, 2, init="random")):
        labels = backend.fit(DPM(FAMILY, two), rows).samples["assignments"]
        assert 1 <= labels.max() + 1 <= 2
    with pytest.raises(ValueError, match=r"init has 3 components, more than UpTo\(most=2\) allows"):
        Gibbs(2, init=torch.arange(40) % 3).fit(DPM(FAMILY, two), rows)


@EVERY
def test_small_variance_pays_the_price_alone(prior) -> None:
    rows = torch.cat([X - 9, X, X + 9])
    found = [
        SmallVariance(penalty=2.0, progress=False).fit(DPM(SphericalGaussian(), each), rows).samples["assignments"]
        for each in (prior, DirichletProcess())
    ]
    assert torch.equal(*found)


@EVERY
def test_hyperplanes_that_repel_and_labels_are_served(prior) -> None:
    backend = Gibbs(5, 5, progress=False)
    backend.fit(DDPM(SphericalGaussian(), prior=prior), X).assign(X)
    bits = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 1]])
    backend.fit(BNMC(SphericalGaussian(), prior=prior), X, bits).predict(X)


# -- where it does not -------------------------------------------------------------------------------------------------

SERVED = r"use Gibbs\(scan='collapsed'\) or SmallVariance\(\)\.$"
MODELS = (DPM, InfiniteSVM, DDPM)


@EVERY
@pytest.mark.parametrize("backend", [SVI, NUTS, Autoguide, HilbertEmbedding])
@pytest.mark.parametrize("kind", MODELS)
def test_backends_of_sticks_refuse_it_by_name(kind, backend, prior) -> None:
    model, name = kind(SphericalGaussian(), prior=prior), type(prior).__name__
    assert not backend.serves(model)
    which = f"^{kind.__name__} has no {backend.__name__} backend: {name} defines no sticks: {SERVED}"
    if backend is HilbertEmbedding and kind is not DPM:
        which = "which is for mixtures without hyperplanes; it has: Gibbs, .*SmallVariance[^:]*$"
    with pytest.raises(NotImplementedError, match=which):
        backend(progress=False).fit(model, X, Y if kind is InfiniteSVM else None)


@EVERY
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("scan", "method"), [("slice", "draw_rest"), ("blocked", "sticks")])
def test_scans_refuse_it_by_name(scan: str, method: str, kind, prior) -> None:
    message = f"^{kind.__name__} has no scan='{scan}': {type(prior).__name__} defines no {method}: {SERVED}"
    with pytest.raises(NotImplementedError, match=message):
        Gibbs(scan=scan, progress=False).fit(kind(SphericalGaussian(), prior=prior), X, Y)


@EVERY
def test_programs_refuse_it_by_name(prior) -> None:
    message = f"{type(prior).__name__} defines no sticks: {SERVED}"
    for kind in MODELS:
        with pytest.raises(NotImplementedError, match="^" + message):
            kind(SphericalGaussian(), prior=prior)(X, Y if kind is InfiniteSVM else None)
    with pytest.raises(NotImplementedError, match=message.removesuffix("$")):  # Pyro adds the shapes of its trace
        MCMC(PyroGibbs(DPM(prior=prior)), num_samples=1, warmup_steps=1, disable_progbar=True).run(X)


def test_a_prior_with_jumps_alone_is_told_of_the_slice_scan() -> None:
    class Jumps(UpTo):
        def draw_rest(self, h, num_components, generator):
            return h["concentration"], h["concentration"]

    with pytest.raises(NotImplementedError, match=r"sticks: use Gibbs\(scan='collapsed'\), Gibbs\(scan='slice'\) or S"):
        SVI().fit(DPM(prior=Jumps()), X)


# -- a mixture of finite mixtures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gamma", "size"), [(1.0, 4.0), (0.3, 0.2), (2.5, 40.0)])
def test_a_partition_has_the_mean_of_its_chances_given_the_number_of_components(gamma: float, size: float) -> None:
    """Of K components, K - 1 ~ Poisson, by plain sums; every term of them is a Dirichlet-multinomial law."""
    prior = MixtureOfFiniteMixtures(gamma, size)
    h = prior.start(X)
    for counts in ([1], [2], [1, 1], [3, 1], [2, 1, 1], [1, 1, 1, 1, 1]):
        exact = 0.0
        for k in range(len(counts), 400):
            ways = math.perm(k, len(counts)) * math.exp((k - 1) * math.log(size) - size - math.lgamma(k))
            blocks = math.prod(gamma + i for count in counts for i in range(count))
            exact += ways * blocks / math.prod(gamma * k + i for i in range(sum(counts)))
        found = prior.log_partition(torch.tensor(counts), h).exp()
        assert float(found) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("gamma", "size"), [(1.0, 4.0), (0.05, 300.0), (1e-3, 1e4)])
def test_weights_of_an_urn_add_up_for_many_points(gamma: float, size: float) -> None:
    """V_N(t) = (N + gamma t) V_{N+1}(t) + gamma V_{N+1}(t + 1), by ratios of partitions."""
    prior = MixtureOfFiniteMixtures(gamma, size)
    h = prior.start(X)
    for num_data, num_blocks in itertools.product((5, 2000), (1, 4)):
        counts = torch.tensor([num_data - num_blocks + 1.0] + [1.0] * (num_blocks - 1), dtype=X.dtype)
        wider = [counts + own for own in torch.eye(num_blocks, dtype=X.dtype)] + [torch.cat([counts, X.new_ones(1)])]
        total = torch.stack([prior.log_partition(each, h) for each in wider]).logsumexp(0)
        assert float(total) == pytest.approx(float(prior.log_partition(counts, h)), abs=1e-8)


def test_a_sweep_asks_for_the_weights_of_as_many_components_as_it_may_have(monkeypatch) -> None:
    """One for each point took longer than the rest of a sweep."""
    asked, urn = [], MixtureOfFiniteMixtures.urn

    def recorded(self, h, num_data, capacity):
        asked.append(capacity)
        return urn(self, h, num_data, capacity)

    monkeypatch.setattr(MixtureOfFiniteMixtures, "urn", recorded)
    rows = torch.randn(500, 1, generator=torch.Generator().manual_seed(0), dtype=X.dtype)
    Gibbs(2, 1, scan="collapsed", progress=False).fit(DPM(SphericalGaussian(), MixtureOfFiniteMixtures()), rows)
    assert 0 < max(asked) < 100


@EVERY
@pytest.mark.parametrize("backend", [SVI(), Gibbs(2, 1, scan="blocked")], ids=["SVI", "Gibbs"])
def test_of_a_coupled_joint_it_names_no_scan_that_would_refuse_it(prior, backend) -> None:
    with pytest.raises(NotImplementedError, match=r"defines no sticks: use SmallVariance\(\), joint=\"product\""):
        backend.fit(BNMC(joint="and", prior=prior), X, Y.double().view(-1, 1))
