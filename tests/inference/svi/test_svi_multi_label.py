"""Variational inference of multi-label models: the bound, natural gradients, minibatches and streams."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from regbayes.inference import SVI, continue_fit
from regbayes.inference.svi.label_sets import coupled
from regbayes.inference.svi.label_sets import kernel as multi_label
from regbayes.inference.svi.label_sets.joints import local
from regbayes.models import (
    BNMC,
    BernoulliBeta,
    DirichletProcess,
    Hinge,
    Logistic,
    MultinomialDirichlet,
    SphericalGaussian,
    Standardized,
)
from regbayes.testing import check_kernel

GENERATOR = torch.Generator().manual_seed(4)
X = torch.randn((120, 3), generator=GENERATOR, dtype=torch.float64)
X[40:80, 0] += 4
Y = torch.bernoulli((X @ torch.tensor([[2.0, -1.0], [1.0, 0.0], [0.0, 2.0]]).double()).sigmoid(), generator=GENERATOR)
HOLES = Y.masked_fill(torch.rand(Y.shape, generator=GENERATOR) < 0.2, torch.nan)
TINY, LABELS = X[:4, :1], torch.tensor([[1, 0], [torch.nan, 1], [0, 0], [1, 1]], dtype=torch.float64)


@pytest.mark.parametrize("loss", [Logistic(), Hinge(0.7)], ids=repr)
@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
def test_bound_is_below_the_evidence_and_never_falls(loss) -> None:
    model = BNMC(SphericalGaussian(variance=0.5), loss=loss, feature_map=Standardized(intercept=0.0), truncation=2)
    check_kernel(SVI(num_steps=25, tolerance=None), model, TINY, LABELS)


def test_a_label_missing_late_in_a_stream_is_missing_may_use_global_stream() -> None:
    labels = Y.clone()
    labels[-1, 0] = math.nan
    loader = DataLoader(TensorDataset(X, labels), batch_size=40)
    posterior = SVI(num_steps=6).fit(BNMC(truncation=9), loader)
    assert posterior.predict_proba(X).isfinite().all()


# -- coupled joints ----------------------------------------------------------------------------------------------------

COUNTS = torch.poisson(1.5 * (Y + 0.1), generator=GENERATOR)
COUNTS[:3] = torch.nan
COUPLED = {
    "and": (BNMC(label_likelihood=BernoulliBeta(1.0, 1.5), joint="and", truncation=4), HOLES),
    "multinomial": (BNMC(label_likelihood=MultinomialDirichlet(1.2), joint="multinomial", truncation=4), COUNTS),
}


@pytest.mark.parametrize("name", COUPLED)
@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
def test_coupled_bound_is_below_the_evidence_and_never_falls(name: str) -> None:
    seen = Standardized(intercept=0.0)
    model = COUPLED[name][0].replace(likelihood=SphericalGaussian(variance=0.5), feature_map=seen, truncation=2)
    tiny = LABELS if name == "and" else torch.tensor([[2, 0], [0, 0], [1, 1], [0, 3]]).double()
    check_kernel(SVI(num_steps=25, tolerance=None), model, TINY, tiny)


PRODUCT = BNMC(loss=Hinge(), prior=DirichletProcess(concentration_prior=(2.0, 1.0)))
MANY = {"holes": (PRODUCT, HOLES), "all known": (PRODUCT, Y), **COUPLED}


@pytest.mark.parametrize("name", MANY)
@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
def test_bound_rises_on_many_points(name: str) -> None:
    model, labels = MANY[name]
    values = SVI(num_steps=40, tolerance=None).fit(model.replace(truncation=8), X, labels).trace.values[0]
    assert (values.diff() > -1e-8).all()
    assert values[-1] > values[0] + 5


@pytest.mark.parametrize("name", ["product", *COUPLED])
def test_factors_are_stationary_at_their_optimum(name: str) -> None:
    """The points' factors are at their optimum in the bound, so its gradient in the others alone must vanish."""
    model, labels = COUPLED.get(name, (BNMC(truncation=4), HOLES))
    model, data = model.prepare(X, labels)
    kernel, update = (multi_label, multi_label.complete) if name == "product" else (coupled, coupled.update_points)
    step = multi_label.sweep if name == "product" else coupled.ascend
    state = kernel.init(model, data, torch.Generator().manual_seed(0))
    for _ in range(400):
        state = step(state, data, model)
    for field in (*(() if name == "product" else ("psi",)), "label_mean", "label_tril", "hyperparameters", "sticks"):
        value = getattr(state, field).clone().requires_grad_()
        (slope,) = torch.autograd.grad(update(replace(state, **{field: value}), data, model).bound, value)
        slope = slope.tril() if field == "label_tril" else slope
        assert slope.abs().max() < 2e-3, field


def test_multinomial_bound_is_that_of_its_factors() -> None:
    """The closed form in s against the bound written out with q(u) and q(m) at their fixed point."""
    labels = torch.tensor([[2.0, 0.0, 1.0]]).double()
    f, variance = torch.tensor([[0.3, -1.0, 2.0]]).double(), torch.tensor([[0.5, 0.1, 1.0]]).double()
    one, zero = (Logistic().expected_log_factor(f, variance, f.new_tensor(sign)) for sign in (1.0, -1.0))
    chi = torch.tensor([[1.5, 0.7, 3.0, 2.0, 1.1, 1.4]]).double()
    a, b = chi.chunk(2, 1)
    log_g, t, n = a.digamma() - b.log(), (a / b).sum(), labels.sum()
    e = torch.zeros_like(f)
    for _ in range(500):
        s = n + e.sum()
        e = (s.digamma() - t.log() + log_g + zero).exp()
    log_u, entropy = s.digamma() - t.log(), torch.distributions.Gamma(s, t).entropy()
    expected = n.add(1).lgamma() - labels.add(1).lgamma().sum() - n.lgamma() + (n - 1 + e.sum()) * log_u
    expected = expected + ((labels + e) * log_g + labels * one + e * zero + e * (1 - e.log())).sum() - s + entropy
    found = local(COUPLED["multinomial"][0], labels, (one, zero), chi)
    torch.testing.assert_close(found.margin.squeeze(), expected)
    told = found.told(f.new_ones(1, 1), f.new_ones(1, 1))
    torch.testing.assert_close(told.statistics, torch.cat([labels + e, (s / t).expand(1, 3)], 1))
    torch.testing.assert_close(told.times, labels + e)
    torch.testing.assert_close(told.shift, (labels - e) / 2)


@pytest.mark.parametrize("name", COUPLED)
@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
def test_coupled_minibatches_and_streams_may_use_global_stream(name: str) -> None:
    model, labels = COUPLED[name]
    whole = SVI(num_steps=60).fit(model, X, labels)
    parts = SVI(num_steps=40, batch_size=30, num_full_steps=8).fit(model, X, labels)
    assert parts.trace.final > whole.trace.final - 0.1 * len(X)
    loader = DataLoader(TensorDataset(X, labels), batch_size=40)
    stream = SVI(num_steps=9).fit(model, loader)
    gap = (stream.predict_proba(X) - whole.predict_proba(X)).abs()
    assert gap.mean() < 0.1
    with pytest.raises(ValueError, match="one probability"):
        whole.weighing(0.5)


def test_weights_of_rows_are_copies_in_a_coupled_joint() -> None:
    model, labels = COUPLED["and"]
    counts = torch.where(torch.arange(120) % 3 == 0, 2, 1)
    model, data = model.prepare(X, labels, weights=counts.double())
    copied = model.data(X.repeat_interleave(counts, 0), labels.repeat_interleave(counts, 0))
    state = coupled.init(model, data, torch.Generator().manual_seed(0))
    ends = [coupled.ascend(coupled.update_points(state, each, model), each, model) for each in (data, copied)]
    for field in ("psi", "label_mean", "hyperparameters", "bound"):
        torch.testing.assert_close(*(getattr(end, field) for end in ends))


# -- batches that come one after another -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
def test_many_batches_end_where_all_rows_would() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn((1500, 2), generator=generator, dtype=torch.float64)
    labels = torch.bernoulli((inputs @ torch.tensor([[2.0, 0.0], [-1.0, 1.0]]).double()).sigmoid(), generator=generator)
    model = BNMC(truncation=4, feature_map=Standardized(loc=0.0, scale=1.0))
    posterior = SVI(num_steps=20).fit(model, inputs[:100], labels[:100])
    first = posterior.samples["classifiers"]
    for start in range(100, 1500, 100):
        posterior = continue_fit(posterior, inputs[start : start + 100], labels[start : start + 100])
    whole = SVI(num_steps=40).fit(model, inputs, labels).samples["classifiers"]
    gap = (posterior.samples["classifiers"] - whole).norm()
    assert gap < 0.5 * (first - whole).norm()
    assert gap < 0.4
