"""Gibbs on tasks that share a projection: conditionals against the Pyro program, draws against exact enumeration."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pyro.poutine as poutine
import pytest
import torch
from exact_projections import exact_joint, exact_states
from setups import by_day
from torch import Tensor

from regbayes.inference import Gibbs
from regbayes.inference.bits.shared_projection import Margins
from regbayes.inference.gibbs import projection as gibbs
from regbayes.models import (
    BetaBernoulli,
    EpsilonInsensitive,
    Hinge,
    IndianBuffetProcess,
    LinearGaussian,
    Logistic,
    Loss,
    MultiTaskInfiniteLatentSVM,
    SquaredHinge,
    Standardized,
    StudentT,
    TaskData,
)

GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn((6, 3), generator=GENERATOR, dtype=torch.float64)
SIGNS = torch.tensor([[1.0, -1], [-1, 1], [1, math.nan], [math.nan, 1], [-1, -1], [1, 1]], dtype=torch.float64)
REAL = torch.where(SIGNS.isnan(), torch.nan, torch.randn((6, 2), generator=GENERATOR, dtype=torch.float64))
LIKELIHOOD = LinearGaussian(noise_variance=0.5, loading_variance=1.5, learn=False)
LEARNED = IndianBuffetProcess(concentration_prior=(2.0, 1.0))

MODELS = {
    "hinge": MultiTaskInfiniteLatentSVM(loss=Hinge(0.7), truncation=2, weight_scale=0.8),
    "hinge with x": MultiTaskInfiniteLatentSVM(LinearGaussian(), Hinge(0.7), LEARNED, truncation=3),
    "regression": MultiTaskInfiniteLatentSVM(
        LIKELIHOOD, EpsilonInsensitive(0.6), BetaBernoulli(), feature_map=Standardized(), truncation=2
    ),
    "squared": MultiTaskInfiniteLatentSVM(loss=SquaredHinge(0.5), prior=LEARNED, preprocessing=None, truncation=2),
    "logistic": MultiTaskInfiniteLatentSVM(LinearGaussian(), Logistic(), BetaBernoulli(), truncation=2),
}


def targets(model: MultiTaskInfiniteLatentSVM) -> Tensor:
    return REAL if model.loss.target == "real" else SIGNS


def prepared(name: str, seed: int = 0) -> tuple[MultiTaskInfiniteLatentSVM, TaskData, gibbs.ProjectionState]:
    """A model on its data, with a state some sweeps into a chain."""
    model, data = MODELS[name].prepare(X, targets(MODELS[name]))
    generator = torch.Generator().manual_seed(seed)
    state = gibbs.init(model, data, generator)
    for _ in range(3):
        state = gibbs.sweep(state, data, model, generator)
    return model, data, state


def log_program(
    model: MultiTaskInfiniteLatentSVM, data: TaskData, state: gibbs.ProjectionState, loadings: Tensor | None
) -> Tensor:
    """log density of the Pyro program at a state and its loadings."""
    pi = state.probabilities
    sticks = torch.cat([pi[:1], pi[1:] / pi[:-1]])
    latents = {"sticks": sticks, "probabilities": pi, "weights": state.weights, "features": state.features}
    latents |= state.hyper | state.precisions | ({} if loadings is None else {"loadings": loadings})
    conditioned = poutine.condition(model.program, data=latents)
    return poutine.trace(conditioned).get_trace(data).log_prob_sum()


@pytest.mark.parametrize("name", MODELS)
def test_the_log_odds_of_a_bit_are_the_programs(name: str) -> None:
    model, data, state = prepared(name)
    loadings = gibbs.draw_loadings(state, data, model, torch.Generator().manual_seed(1))
    generative = gibbs.generative(state, data, model, loadings)
    margins = Margins(data, model.loss, state.weights[: model.truncation])
    scores = data.pair_scores(data.X @ state.features, state.weights)
    for d, k in itertools.product(range(3), range(model.truncation)):
        found = generative.log_odds(state.features, d, k) + margins.log_odds(state.features, scores, d, k)
        on, off = (state.features.clone() for _ in range(2))
        on[d, k], off[d, k] = 1.0, 0.0
        ends = [log_program(model, data, replace(state, features=bits), loadings) for bits in (on, off)]
        torch.testing.assert_close(found, ends[0] - ends[1])


@pytest.mark.parametrize("name", ["hinge with x", "regression"])
def test_loadings_and_precisions_have_the_conditionals_of_the_program(name: str) -> None:
    model, data, state = prepared(name)
    likelihood = model.likelihood
    assert likelihood is not None
    mean, tril = gibbs.loadings_posterior(state, data, likelihood)
    one, two = (gibbs.draw_loadings(state, data, model, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert one is not None
    assert two is not None

    def log_conditional(loadings: Tensor) -> Tensor:
        return -((loadings - mean) @ tril).square().sum() / 2

    found = log_conditional(one) - log_conditional(two)
    torch.testing.assert_close(found, log_program(model, data, state, one) - log_program(model, data, state, two))
    for precision, law in gibbs.precision_laws(state, data, likelihood, one).items():
        value = state.precisions[precision]
        other = replace(state, precisions=state.precisions | {precision: 1.7 * value})
        found = law.log_prob(1.7 * value) - law.log_prob(value)
        torch.testing.assert_close(found, log_program(model, data, other, one) - log_program(model, data, state, one))


@pytest.mark.parametrize("name", MODELS)
def test_the_log_joint_is_the_programs_with_loadings_and_sticks_integrated_out(name: str) -> None:
    model, data, state = prepared(name)

    def rest(state: gibbs.ProjectionState) -> Tensor:
        """What the program has beside the log joint: the loadings given all else."""
        if model.likelihood is None:
            return log_program(model, data, state, None)
        mean, tril = gibbs.loadings_posterior(state, data, model.likelihood)
        log_density = data.num_data * (tril.diagonal().log().sum() - len(tril) * math.log(2 * math.pi) / 2)
        return log_program(model, data, state, mean) - log_density

    other = prepared(name, seed=4)[2]
    other = replace(other, probabilities=state.probabilities)  # the sites are sticks, of another volume
    states = [other, state]
    found, expected = ([read(one) for one in states] for read in (lambda s: gibbs.log_joint(s, data, model), rest))
    torch.testing.assert_close(found[0] - found[1], expected[0] - expected[1])


# -- exact enumeration: all Z for D = 3, K = 2, weights on a grid ------------------------------------------------------

SMALL = torch.tensor([[0.9, -0.4, 1.1], [-0.6, 1.0, 0.3], [0.2, 0.8, -1.2]], dtype=torch.float64)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("loss", "with_x", "margin"),
    [
        (Hinge(1.2), False, True),
        (Hinge(1.2), False, False),
        pytest.param(EpsilonInsensitive(1.0), False, True, marks=pytest.mark.slow),
        pytest.param(Hinge(1.2), True, True, marks=pytest.mark.slow),
    ],
)
def test_sweeps_leave_the_exact_posterior_as_it_is(loss: Loss, with_x: bool, margin: bool) -> None:
    """Without the margin in the sweeps they do not."""
    Y = torch.tensor([[1.0], [-1.0], [1.0]] if loss.target == "sign" else [[1.3], [-0.8], [0.4]], dtype=torch.float64)
    model = MultiTaskInfiniteLatentSVM(
        LinearGaussian(offset=0.0, noise_variance=0.6, loading_variance=1.0, learn=False) if with_x else None,
        loss,
        BetaBernoulli(),
        None,
        weight_scale=1.2,
        truncation=2,
    )
    model, data = model.prepare(SMALL, Y)
    data = replace(data, inputs=data.inputs[:, :0])
    bits, probabilities, joint = exact_joint(model, data)
    generator, counts = torch.Generator().manual_seed(11), torch.zeros(64)
    number = 300 if loss.target == "sign" and not with_x else by_day(800, 2)
    moving = model if margin else model.replace(loss=type(loss)(strength=1e-6))
    powers = 2 ** torch.arange(5, -1, -1)
    for state in exact_states(model, data, joint, bits, number, generator):
        state = gibbs.sweep(state, data, moving, generator)
        counts[int((state.features.flatten() * powers).sum())] += 1
    kept = number * probabilities >= 5
    expected = torch.cat([number * probabilities[kept], number * probabilities[~kept].sum().unsqueeze(0)])
    found = torch.cat([counts[kept], counts[~kept].sum().unsqueeze(0)])
    chi_square = float(((found - expected).square() / expected).sum())
    freedom = len(expected) - 1
    limit = freedom + 5 * math.sqrt(2 * freedom)
    assert (chi_square < limit) == margin, (chi_square, freedom)


# -- fits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [Hinge(), StudentT()])
def test_many_draws_predict_the_targets(loss: Loss) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn((80, 4), generator=generator, dtype=torch.float64)
    truth = rows @ torch.tensor([[1.0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 1]], dtype=torch.float64)
    Y = truth if loss.target == "real" else (truth > 0).double()
    model = MultiTaskInfiniteLatentSVM(loss=loss, truncation=4, weight_scale=2.0)
    posterior = Gibbs(num_samples=40, num_warmup=60).fit(model, rows[:60], Y[:60])
    found = posterior.predict(rows[60:])
    if loss.target == "real":
        assert (found - Y[60:]).square().mean() < 0.3 * Y[60:].var()
    else:
        assert (found == Y[60:]).double().mean() > 0.85


def test_what_projections_have_not_is_refused() -> None:
    with pytest.raises(ValueError, match="init has labels of points"):
        Gibbs(init=torch.zeros(6, dtype=torch.long)).fit(MODELS["hinge"], X, SIGNS)
