"""The averaging rule: exact blocks, an objective that never rises, and that a tilt represents the optimum."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from setups import name_of
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from variational import elbo, mixture_problem

from regbayes.inference import SVI
from regbayes.inference.classifiers.ridge import Ridge
from regbayes.inference.svi import factors
from regbayes.inference.svi.partition import averaging
from regbayes.inference.svi.partition import factors as sticks
from regbayes.inference.svi.partition.averaging_rows import best_responsibilities, duality_gaps, expected
from regbayes.models import DDPM, DIH, DPM, DirichletProcess, InfiniteSVM, Ordinal
from regbayes.models.data import Data
from regbayes.models.likelihoods import DiagonalGaussian
from regbayes.models.losses import (
    CrammerSinger,
    EpsilonInsensitive,
    Hinge,
    Logistic,
    Loss,
    Masked,
    OneVsRest,
    SquaredHinge,
    StudentT,
)
from regbayes.models.scores import scores

# small truncations, all of whose components find points
pytestmark = pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")

LOSSES = [
    Hinge(0.8, 1.3),
    SquaredHinge(0.5, 1.2),
    Logistic(),
    EpsilonInsensitive(0.9, 0.2),
    OneVsRest(Hinge(0.5)),
    CrammerSinger(0.7, 1.4),
]


def objective(state, data: Data, model) -> Tensor:
    """J of any state, [] float64."""
    logits, own = averaging.log_weights(state, data, model), scores(data.features, state.mean)
    values = averaging.row_values(state.responsibilities, logits, own, data, model)
    return factors.kl(state, model) - data.counted(values).sum()


def problem_of(loss: Loss, generator: torch.Generator, N: int = 30, **options: Any):
    """(model, data)."""
    return mixture_problem(DiagonalGaussian(), loss, generator, N, **{"truncation": 4} | options)[:2]


def rows_of(loss: Loss, generator: torch.Generator, N: int = 30) -> Any:
    """X [N, 2] and y [N]."""
    return mixture_problem(DiagonalGaussian(), loss, generator, N)[2:]


# -- the theorem of representation, on 7 points ------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("loss", [*LOSSES, Masked(CrammerSinger(0.7, 1.4))], ids=name_of)
def test_the_tilted_law_is_the_optimum_over_all_laws(loss, cpu_generator) -> None:
    """min_q KL(q || p) + g(E_q f) over laws q of 7 atoms, by a generic solver, is -log Z(t) - g*(-t) at the best t."""
    like = {"generator": cpu_generator, "device": cpu_generator.device, "dtype": torch.float64}
    num_scores = 3 if loss.meets or isinstance(loss, OneVsRest) else 1
    logits, scores = torch.randn(6, 7, **like), 2 * torch.randn(6, 7, num_scores, **like)
    targets = 2.0 * torch.nn.functional.one_hot(torch.arange(6) % 3, 3).to(logits) - 1
    targets = targets if num_scores == 3 else targets[:, :1]
    r, tilt = best_responsibilities(logits, scores, targets, loss, torch.zeros_like(targets))
    for n in range(6):

        def cost(q: Tensor, n: int = n) -> Tensor:
            return (
                -(q * logits[n]).sum() - torch.special.entr(q).sum() - loss.log_factor(q @ scores[n], targets[n]).sum()
            )

        dual = -(logits[n] + scores[n] @ tilt[n]).logsumexp(0) - loss.conjugate(tilt[n], targets[n]).sum()
        assert float(cost(r[n])) == pytest.approx(float(dual), abs=1e-7)

        def objective(flat: np.ndarray, n: int = n) -> float:
            return float(cost(torch.from_numpy(flat).softmax(0), n))

        starts = [logits[n].numpy(), r[n].log().clamp(min=-30).numpy()]
        found = min(minimize(objective, start, method="Powell", options={"xtol": 1e-8}).fun for start in starts)
        assert float(dual) <= found + 1e-9
        assert found - float(dual) < 1e-3


SEVERAL = [OneVsRest(Hinge(0.5)), OneVsRest(SquaredHinge(0.5)), OneVsRest(Logistic()), CrammerSinger(0.7, 1.4)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("masked", [False, True], ids=["known", "masked"])
@pytest.mark.parametrize("loss", SEVERAL, ids=name_of)
def test_many_tilts_at_once_close_the_gap(loss, masked, generator) -> None:
    """Where two components share most points, so that the cost is flat along all directions but one."""
    like = {"generator": generator, "device": generator.device, "dtype": torch.float64}
    logits, scores = 6 * torch.randn(60, 9, **like), 4 * torch.randn(60, 9, 7, **like)
    targets = 2.0 * torch.nn.functional.one_hot(torch.arange(60) % 7, 7).to(logits) - 1
    if masked:
        loss = Masked(loss)
        targets[::5] = torch.nan
        if not loss.meets:
            targets[::2, 1:3] = torch.nan
    r, tilt = best_responsibilities(logits, scores, targets, loss, torch.zeros_like(targets))
    torch.testing.assert_close(r, (logits + (scores @ tilt.unsqueeze(2)).squeeze(2)).softmax(1))
    gaps = duality_gaps(loss, expected(r, scores), tilt, targets)
    assert float(gaps.min()) > -1e-12
    assert float(gaps.sum(1).max()) < 1e-9
    assert float(tilt.abs().amax()) > 0


# -- blocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
def test_no_block_raises_the_objective(loss, device, generator) -> None:
    model, data = problem_of(loss, generator, prior=DirichletProcess(1.0, (2.0, 1.0)))
    state = averaging.update_responsibilities(averaging.init(model, data, generator), data, model)
    blocks = {
        "sticks": lambda state: sticks.update_sticks(state, model),
        "prior": lambda state: sticks.update_prior(state, model),
        "components": lambda state: factors.update_components(state, data, model),
        "classifiers": lambda state: averaging.update_classifiers(state, data, model, 1e-3),
        "responsibilities": lambda state: averaging.update_responsibilities(state, data, model),
    }
    cost = objective(state, data, model)
    for _ in range(4):
        for name, block in blocks.items():
            state, before = block(state), cost
            cost = objective(state, data, model)
            assert cost <= before + 1e-9 * before.abs(), name
    torch.testing.assert_close(state.bound, -cost, rtol=1e-10, atol=1e-9)


def test_the_objective_is_that_of_its_terms(cpu_generator) -> None:
    """With the other rule's own bound: at the same factors they differ by the losses and the spread of q(eta) alone."""
    model, data = problem_of(Hinge(0.8, 1.3), cpu_generator)
    state = averaging.init(model, data, cpu_generator)
    for _ in range(3):
        state = averaging.points(1e-4).ascend(state, data, model)
    T, P, C = state.mean.shape
    tril = torch.eye(P, dtype=torch.float64).expand(T, C, P, P) / model.weight_scale
    own = {field.name: getattr(state, field.name) for field in fields(sticks.VariationalPartition)}
    other = sticks.VariationalPartition(**own | {"precision_tril": tril})
    r, found = state.responsibilities, torch.einsum("np,kpc->nkc", data.features, state.mean)
    variance = Ridge(state.mean, tril).score_variance(data.features)
    targets = data.targets.unsqueeze(1)
    averaged = -model.loss.log_factor((r.unsqueeze(2) * found).sum(1), data.targets).sum()
    # E g(f) of each component by quadrature
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    drawn = found.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * torch.from_numpy(nodes)
    expected = -model.loss.log_factor(drawn, targets.unsqueeze(-1)) @ torch.from_numpy(weights / weights.sum())
    gibbs = (r.unsqueeze(2) * expected).sum()
    augmented = -(r.unsqueeze(2) * model.loss.expected_log_factor(found, variance, targets)).sum()
    assert averaged < gibbs < augmented
    cost = objective(state, data, model)
    torch.testing.assert_close(-elbo(other, data, model), cost - averaged + augmented)


@pytest.mark.parametrize("loss", [SquaredHinge(0.5, 1.2), Logistic()], ids=name_of)
def test_a_generic_optimizer_finds_nothing_better(loss, cpu_generator) -> None:
    """J of (r, m), all else at its best: no slope where we stop, and quasi-Newton steps do not lower it."""
    model, data = problem_of(loss, cpu_generator, N=8, truncation=2)
    start = state = averaging.init(model, data, cpu_generator)
    for _ in range(100):
        before, state = state.bound, averaging.points(1e-9).ascend(state, data, model)
        if state.bound - before < 1e-12:
            break

    def value(flat: np.ndarray, at: averaging.AveragedPartition) -> float:
        logits, mean = torch.from_numpy(flat).split([at.responsibilities.numel(), at.mean.numel()])
        r = logits.view_as(at.responsibilities).softmax(1)
        moved = averaging.replace(at, responsibilities=r, mean=mean.view_as(at.mean))
        moved = factors.update_components(sticks.update_sticks(moved, model), data, model)
        return float(objective(moved, data, model))

    def packed(at: averaging.AveragedPartition) -> np.ndarray:
        return np.concatenate([at.responsibilities.clamp(min=1e-12).log().numpy().ravel(), at.mean.numpy().ravel()])

    reached, flat = float(-state.bound), packed(state)
    for index in range(len(flat)):
        step = np.zeros(len(flat))
        step[index] = 1e-4
        slope = (value(flat + step, state) - value(flat - step, state)) / 2e-4
        assert abs(slope) < 1e-4, index
    # from ours, and from the same start as ours
    again = minimize(value, flat, args=(state,), options={"maxiter": 5})
    assert again.fun >= reached - 1e-6
    other = minimize(value, packed(start), args=(start,), options={"maxiter": 25})
    assert reached <= other.fun + 1e-6


# -- whole fits --------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("missing", [False, True], ids=["known", "missing"])
@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
def test_the_trace_never_falls(loss, missing, cpu_generator) -> None:
    X, y = rows_of(loss, cpu_generator, N=40)
    if missing:  # these rows shape the components alone
        y = y.double().index_fill(0, torch.arange(0, 40, 4), torch.nan)
    posterior = SVI(num_steps=6, rule="averaging").fit(InfiniteSVM(loss=loss, truncation=4), X, y)
    values = torch.as_tensor(posterior.trace.values[0])
    assert (values.diff() >= -1e-9 * values[1:].abs()).all()
    gap = posterior.samples["duality_gap"]
    assert gap.shape == (1,)
    assert 0 <= float(gap) < 0.2
    assert "precision_tril" not in posterior.samples
    assert len(posterior.predict(X)) == 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "rival", "model"),
    [
        (load_iris, LinearSVC(multi_class="crammer_singer", C=2.0), InfiniteSVM(loss=CrammerSinger(), truncation=3)),
        (load_breast_cancer, LinearSVC(loss="hinge", C=0.2), InfiniteSVM(loss=Hinge(0.1), truncation=5)),
    ],
)
def test_accuracy_is_that_of_a_linear_svm(load, rival, model) -> None:
    X, y = load(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(StandardScaler().fit_transform(X), y, random_state=0)
    least = rival.set_params(random_state=0).fit(X_train, y_train).score(X_test, y_test) - 0.03
    predicted = SVI(rule="averaging", num_steps=20).fit(model, X_train, y_train).predict(X_test)
    assert (predicted == y_test).mean() >= least


def test_weights_count_rows(cpu_generator) -> None:
    model, data = problem_of(SquaredHinge(0.5, 1.2), cpu_generator)
    counts = torch.ones(30, dtype=torch.float64)
    counts[::3] = 2
    order = torch.arange(30).repeat_interleave(counts.long())
    weighted, repeated = averaging.replace(data, weights=counts), data.rows(order)
    state = averaging.init(model, weighted, cpu_generator)
    twin = averaging.replace(
        state,
        responsibilities=state.responsibilities[order],
        tilt=state.tilt[order],
        row_tilt=state.row_tilt[order],
        weights=None,
    )
    for _ in range(3):
        state, twin = (
            averaging.points(1e-8).ascend(state, weighted, model),
            averaging.points(1e-8).ascend(twin, repeated, model),
        )
        torch.testing.assert_close(state.bound, twin.bound, rtol=1e-6, atol=1e-4)


# -- what it refuses ---------------------------------------------------------------------------------------------------


def test_what_has_no_averaging_rule_says_what_has(generator) -> None:
    X, y = rows_of(Hinge(), generator)
    rule = SVI(rule="averaging")
    for model in (DPM(), DDPM(), DIH()):
        with pytest.raises(NotImplementedError, match=r'has no rule="averaging", which InfiniteSVM has'):
            rule.fit(model, X)
    with pytest.raises(NotImplementedError, match=r"StudentT has no convex conjugate.*EpsilonInsensitive"):
        rule.fit(InfiniteSVM(loss=StudentT()), X, X[:, 0])
    with pytest.raises(NotImplementedError, match="batch_size is 8"):
        SVI(rule="averaging", batch_size=8).fit(InfiniteSVM(), X, y)
    with pytest.raises(NotImplementedError, match="all points at once"):
        rule.fit(InfiniteSVM(), DataLoader(TensorDataset(X, y), batch_size=8))
    with pytest.raises(NotImplementedError, match=r'SVI\(rule="averaging"\)'):
        SVI().fit(InfiniteSVM(loss=CrammerSinger()), X, y)
    with pytest.raises(NotImplementedError, match=r"several thresholds.*rule=\"gibbs\".*other than Ordinal"):
        rule.fit(InfiniteSVM(loss=Hinge(), target=Ordinal()), X, y)
    with pytest.raises(ValueError, match="rule"):
        SVI(rule="mean").fit(InfiniteSVM(), X, y)
