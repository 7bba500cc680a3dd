"""The model of tasks that share a projection: its program, its data, its posterior's readings, and what it refuses."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import scipy.sparse
import torch

from regbayes.inference import SVI, Gibbs, ProjectionPosterior, structure_of
from regbayes.models import (
    BetaBernoulli,
    CrammerSinger,
    EpsilonInsensitive,
    Hinge,
    IndianBuffetProcess,
    LinearGaussian,
    Logistic,
    Masked,
    MultiTaskInfiniteLatentSVM,
    Standardized,
    by_task,
)

GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn((12, 3), generator=GENERATOR, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.2]) + 2
Y = (X @ torch.tensor([[1.0, -1], [0, 1], [3, 0]], dtype=torch.float64) > 1).double()
Y[0, 1], Y[4, 0] = math.nan, math.nan
QUICK = {"num_samples": 5, "num_warmup": 5}


@pytest.mark.parametrize("likelihood", [None, LinearGaussian(), LinearGaussian(learn=False)])
@pytest.mark.parametrize("prior", [IndianBuffetProcess(concentration_prior=(2.0, 1.0)), BetaBernoulli()])
@pytest.mark.parametrize("loss", [Hinge(0.6), EpsilonInsensitive(0.4)])
def test_the_program_is_the_density_of_the_model(likelihood: Any, prior: Any, loss: Any) -> None:
    """Site by site, with the margins and the inputs in loops."""
    model = MultiTaskInfiniteLatentSVM(likelihood, loss, prior, weight_scale=0.7, truncation=3)
    model, data = model.prepare(X, Y)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        trace = poutine.trace(model.program).get_trace(data)
    trace.compute_log_prob()
    sites = {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}
    value = {name: site["value"] for name, site in sites.items()}
    Z, weights = value["features"], value["weights"]
    assert Z.shape == (3, 3)
    assert weights.shape == (4, 2)
    log_weights = dist.Normal(0.0, 0.7).log_prob(weights).sum()
    torch.testing.assert_close(sites["weights"]["log_prob_sum"], log_weights)
    pi = value["sticks"].cumprod(0) if "sticks" in value else value["probabilities"]
    log_bits = sum(dist.Bernoulli(pi[k]).log_prob(Z[d, k]) for d in range(3) for k in range(3))
    torch.testing.assert_close(sites["features"]["log_prob_sum"], log_bits)
    rows, margin = (X - X.mean(0)) / X.std(0, correction=0), torch.zeros((), dtype=torch.float64)
    for n, m in torch.nonzero(~Y.isnan()).tolist():
        f = sum(weights[k, m] * (Z[:, k] @ rows[n]) for k in range(3)) + weights[3, m]
        y = Y[n, m] if loss.target == "real" else 2 * Y[n, m] - 1
        margin = margin + loss.log_factor(f, y)
    torch.testing.assert_close(sites["margin"]["log_prob_sum"], margin)
    assert ("X" in sites) == (likelihood is not None)
    if likelihood is not None:
        start = model.likelihood.start(X)
        h = {name: value.get(name, start[name]) for name in ("noise_precision", "loading_precision")}
        means = model.likelihood.offset + value["loadings"] @ Z.T
        torch.testing.assert_close(
            sites["X"]["log_prob_sum"], dist.Normal(means, h["noise_precision"].rsqrt()).log_prob(rows).sum()
        )
        law = dist.Normal(0.0, h["loading_precision"].rsqrt())
        torch.testing.assert_close(sites["loadings"]["log_prob_sum"], law.log_prob(value["loadings"]).sum())
        assert ("noise_precision" in value) == likelihood.learn


def test_the_program_takes_what_a_user_passes() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        trace = poutine.trace(MultiTaskInfiniteLatentSVM(truncation=2)).get_trace(X, Y)
    assert torch.isfinite(trace.log_prob_sum())


def test_resolving_twice_changes_nothing() -> None:
    model = MultiTaskInfiniteLatentSVM(LinearGaussian(), feature_map=Standardized()).resolve(X, Y)
    again = model.resolve(X, Y)
    assert isinstance(model.loss, Masked)
    assert model.num_tasks == 2
    assert model.classes.tolist() == [0, 1]
    for name in ("offset", "noise_variance", "loading_variance"):
        torch.testing.assert_close(*(torch.as_tensor(getattr(m.likelihood, name)) for m in (model, again)))
    assert type(again.loss.loss) is Hinge
    one, two = (m.data(X, Y) for m in (model, again))
    assert torch.equal(one.X, two.X)
    assert torch.equal(one.inputs, two.inputs)


def test_pairs_are_the_known_targets_task_after_task() -> None:
    _, data = MultiTaskInfiniteLatentSVM().prepare(X, Y)
    assert data.tasks.tolist() == [0] * 11 + [1] * 11
    assert data.starts == [0, 11, 22]
    assert data.rows.tolist() == [n for n in range(12) if n != 4] + list(range(1, 12))
    torch.testing.assert_close(data.known, 2 * Y[data.rows, data.tasks] - 1)
    projected = torch.randn((12, 4), generator=GENERATOR, dtype=torch.float64)
    weights = torch.randn((5, 2), generator=GENERATOR, dtype=torch.float64)
    few = by_task(torch.arange(12) % 2, torch.arange(12) % 3)
    for targets in (Y, few):
        _, data = MultiTaskInfiniteLatentSVM().prepare(X, targets)
        own = weights[:, torch.arange(data.num_tasks) % 2]
        found = data.pair_scores(projected, own)
        table = torch.cat([projected, data.inputs], 1) @ own
        torch.testing.assert_close(found, table[data.rows, data.tasks])
        pairs = data.pairs(projected)
        assert pairs.targets.shape == (len(data.rows), 1)
        torch.testing.assert_close((pairs.features * own.T[data.tasks]).sum(1), found)


def test_targets_of_rows_with_one_task_each() -> None:
    assert by_task(torch.tensor([1.0, 2]), torch.tensor([2, 0]), 4).isnan().sum() == 6
    assert isinstance(by_task([1, 2], [0, 1]), np.ndarray)
    for tasks, number, words in (
        ([0, -1], None, "tasks is"),
        ([0.5, 1], None, "tasks is"),
        ([0], None, "y has shape"),
        ([0, 3], 3, "tasks has 3, but num_tasks is 3"),
        (["a", "b"], None, "tasks cannot be read"),
        ([True, False], None, "tasks is"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            by_task([1.0, 2.0], tasks, number)
    with pytest.raises(ValueError, match="y cannot be read"):
        by_task(["a", "b"], [0, 1])


def test_labels_come_back_in_the_users_own_kind() -> None:
    for low, high in ((0, 1), (-1, 1), (3, 7)):
        labels = np.where(Y.numpy() > 0, high, low).astype(float)
        posterior = Gibbs(**QUICK).fit(MultiTaskInfiniteLatentSVM(truncation=2), X.numpy(), labels)
        predicted = posterior.predict(X.numpy())
        assert isinstance(predicted, np.ndarray)
        assert set(np.unique(predicted)) <= {low, high}
        assert (predicted == np.where(posterior.decision_function(X.numpy()) > 0, high, low)).all()


def test_scores_are_averaged_over_the_draws_and_linear() -> None:
    model = MultiTaskInfiniteLatentSVM(feature_map=Standardized(), truncation=2)
    posterior = Gibbs(**QUICK).fit(model, X, Y)
    rows, total = posterior.model.preprocessed(X), torch.zeros(12, 2, dtype=torch.float64)
    for draw in range(5):
        Z, weights = posterior.samples["features"][draw].double(), posterior.samples["weights"][draw]
        total += rows @ Z @ weights + posterior.model.features(X) @ posterior.samples["input_weights"][draw]
    torch.testing.assert_close(posterior.decision_function(X), total / 5)
    torch.testing.assert_close(posterior.transform(X), rows @ posterior.features.double())
    assert "2 tasks" in repr(posterior)
    assert isinstance(posterior, ProjectionPosterior)
    assert set(structure_of(model).summaries(posterior)) >= {"num_latent_features", "concentration", "log_joint"}


def test_probabilities_of_the_larger_label() -> None:
    hinge = Gibbs(**QUICK).fit(MultiTaskInfiniteLatentSVM(truncation=2), X, Y)
    found = hinge.predict_proba(X)
    assert found.shape == (12, 2)
    assert ((found > 0.5) == (hinge.predict(X) == 1)).all()
    logistic = Gibbs(**QUICK).fit(MultiTaskInfiniteLatentSVM(loss=Logistic(), truncation=2), X, Y)
    mean = torch.zeros(12, 2, dtype=torch.float64)
    for draw in range(5):
        weights = logistic.samples["features"][draw].double() @ logistic.samples["weights"][draw]
        mean += (logistic.model.preprocessed(X) @ weights + logistic.samples["input_weights"][draw]).sigmoid() / 5
    torch.testing.assert_close(logistic.predict_proba(X), mean)
    torch.testing.assert_close(logistic.decision_function(X), mean.logit())
    one_of_five = torch.tensor([40.0, -1.0, -1.0, -1.0, -1.0], dtype=torch.float64)  # sure of what the others are not
    logistic.samples["weights"] = torch.zeros_like(logistic.samples["weights"])
    logistic.samples["input_weights"] = one_of_five.view(5, 1, 1).expand_as(logistic.samples["input_weights"])
    found = logistic.predict_proba(X)
    assert (found < 0.5).all()
    assert (logistic.predict(X) == 0).all()
    real = Gibbs(**QUICK).fit(MultiTaskInfiniteLatentSVM(loss=EpsilonInsensitive(), truncation=2), X, Y)
    with pytest.raises(ValueError, match="use predict"):
        real.predict_proba(X)


@pytest.mark.parametrize("loss", [Hinge(), EpsilonInsensitive()])
def test_a_new_task_has_the_classifier_that_the_model_would_give_it(loss: Any) -> None:
    """Trained on the rows of an old one it is that one, at the optimum of mean field."""
    model = MultiTaskInfiniteLatentSVM(loss=loss, truncation=2)
    posterior = SVI(rule="averaging", num_steps=6, tolerance=None).fit(model, X, Y)
    task = posterior.fit_task(X, Y[:, 1])
    torch.testing.assert_close(task.decision_function(X), posterior.decision_function(X)[:, 1], rtol=0.05, atol=0.05)
    expected = posterior.predict(X)[:, 1]
    assert task.predict(X).shape == (12,)
    assert loss.target == "real" or torch.equal(task.predict(X), expected)
    with pytest.raises(ValueError, match=re.escape("y has shape (3,); expected [12]")):
        posterior.fit_task(X, Y[:3, 1])
    with pytest.raises(ValueError, match="y has no "):
        posterior.fit_task(X, torch.full((12,), torch.nan))


def test_dtype_follows_the_rows() -> None:
    for backend in (Gibbs(**QUICK), SVI(num_steps=2)):
        posterior = backend.fit(MultiTaskInfiniteLatentSVM(LinearGaussian(), truncation=2), X.float(), Y)
        assert posterior.decision_function(X.float()).dtype == torch.float32
        assert posterior.samples["weights"].dtype == torch.float32


def refused(words: str, X: Any = X, Y: Any = Y, **parts: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Gibbs(**QUICK).fit(MultiTaskInfiniteLatentSVM(**parts), X, Y)


def test_what_is_refused() -> None:
    refused("the target y is None", Y=None)
    refused("Y has shape (12,); expected [12, M]", Y=Y[:, 0])
    refused("Use by_task(y, tasks)", Y=Y[:, 0])
    refused("Y has shape (3, 2); expected [12, M]", Y=Y[:3])
    refused("Y has 2 columns, but the model has 3 tasks", num_tasks=3)
    refused("y has the labels [0, 1, 2]", Y=torch.where(X[:, :2] > 3, 2.0, Y))
    refused("y has only one class ([1])", Y=torch.ones(12, 2))
    refused("classes must be integers", Y=Y + 0.5)
    refused("Input y contains inf", Y=torch.full((12, 2), math.inf))
    refused("y has no target that is not NaN", Y=torch.full((12, 2), math.nan), loss=EpsilonInsensitive())
    refused("loss is CrammerSinger", loss=CrammerSinger())
    refused("classes is [0, 1, 2]", classes=torch.arange(3))
    refused("X is sparse", X=scipy.sparse.csr_matrix(X.numpy()))
    refused("likelihood is", likelihood=Hinge())
    with pytest.raises(ValueError, match="has no sequences"):
        Gibbs().fit(MultiTaskInfiniteLatentSVM(), X, Y, lengths=[6, 6])
    posterior = Gibbs(**QUICK).fit(MultiTaskInfiniteLatentSVM(truncation=2), X, Y)
    with pytest.raises(ValueError, match="X has 2 features, but the model was fitted with 3"):
        posterior.predict(X[:, :2])
    with pytest.raises(ValueError, match="X is sparse"):
        posterior.predict(scipy.sparse.csr_matrix(X.numpy()))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [Gibbs(**QUICK), SVI(num_steps=3), SVI(num_steps=3, rule="averaging")])
def test_all_of_it_runs_on_a_gpu(backend: Any, gpu: torch.device) -> None:
    rows = X.to(gpu)
    posterior = backend.fit(MultiTaskInfiniteLatentSVM(LinearGaussian(), truncation=2), rows, Y.to(gpu))
    assert posterior.decision_function(rows).device.type == gpu.type
