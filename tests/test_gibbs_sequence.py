"""Gibbs sampling of the infinite hidden Markov models against enumeration, the Pyro program and re-simulation."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pyro.poutine as poutine
import pytest
import torch
from torch import Tensor

from regbayes.inference import Gibbs
from regbayes.inference.gibbs import sequence
from regbayes.models import DIH, IHMM, DiagonalGaussian, Hinge, Logistic, SphericalGaussian
from regbayes.models.priors import hierarchical_dirichlet_process as hdp
from regbayes.testing import check_kernel
from regbayes.testing.enumeration import partitions
from regbayes.testing.sequences import log_path_prior, state_posterior

NAN = math.nan
X = torch.tensor([[-1.2], [-0.8], [1.1], [NAN], [0.9]], dtype=torch.float64)
LENGTHS = [3, 2]
FAMILY = SphericalGaussian(loc=0.0, variance=0.5, prior_variance=1.0)
FIXED = {"likelihood": FAMILY, "concentration_prior": None, "top_concentration_prior": None, "truncation": 3}
MODELS = {
    "IHMM": IHMM(**FIXED, concentration=1.5),
    "sticky": IHMM(**FIXED, stickiness=0.4, top_concentration=2.0),
    "DIH-S": DIH(**FIXED, loss=Hinge(0.4), weight_scale=1.5, intercept=0.0),
    "DIH-L": DIH(**FIXED, loss=Logistic(), weight_scale=1.5, stickiness=0.3),
}
SCANS = ("direct", "beam", "blocked")


def sampler(scan: str, **options) -> Gibbs:
    return Gibbs(**({"num_samples": 1000, "num_warmup": 50, "scan": scan, "seed": 1} | options))


# -- the prior ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [0.0, 0.35])
@pytest.mark.parametrize("lengths", [[4], [1, 3], [2, 2]])
def test_franchise_sums_to_one(lengths, rho) -> None:
    model = IHMM(concentration=0.7, top_concentration=1.3, stickiness=rho)
    starts = [t in itertools.accumulate([0, *lengths[:-1]]) for t in range(sum(lengths))]
    for truncated in (False, True):
        labellings = itertools.product(range(3), repeat=4) if truncated else partitions(4)
        total = 0.0
        for labels in labellings:
            num_states = 3 if truncated else max(labels) + 1
            states, first = torch.tensor(labels), torch.tensor(starts)
            counts = tuple(map(tuple, hdp.count_transitions(states, first, num_states).tolist()))
            total += math.exp(log_path_prior(counts, model, truncated=truncated))
        assert total == pytest.approx(1.0, abs=1e-12)


def test_rows_integrated_out_are_a_ratio_of_gamma_functions() -> None:
    """log_paths against the mean of prod pi^n over draws of the rows."""
    generator = torch.Generator().manual_seed(0)
    base = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    means = hdp.row_means(base, 3, 0.2)
    states, starts = torch.tensor([0, 0, 2, 1, 1]), torch.tensor([True, False, False, True, False])
    counts = hdp.count_transitions(states, starts, 3)
    log_rows = hdp.log_dirichlet((1.7 * means).expand(200_000, 4, 3), generator)
    weights = (log_rows * counts).sum((1, 2)).exp()
    expected = float(hdp.log_paths(counts, torch.tensor(1.7), means).exp())
    assert abs(float(weights.mean()) - expected) < 5 * float(weights.std()) / len(weights) ** 0.5


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("rho", [0.0, 0.4])
def test_prior_updates_preserve_the_prior(rho, truncated) -> None:
    """Concentrations from their prior, states simulated given them, then the updates: still the prior."""
    generator = torch.Generator().manual_seed(2)
    T, model = 4, IHMM(stickiness=rho, concentration_prior=(2.0, 1.0), top_concentration_prior=(3.0, 1.0))
    model = model.resolve(torch.zeros(2, 1, dtype=torch.float64) + torch.arange(2.0).view(2, 1))
    data = model.data(torch.zeros(12, 1, dtype=torch.float64), [7, 5])
    before, after = [], []
    for _ in range(1500):
        alpha, gamma = (
            torch._standard_gamma(torch.tensor(a, dtype=torch.float64), generator=generator) for a in (2.0, 3.0)
        )
        num_sticks = T if truncated else 60
        log_base, _ = hdp.draw_sticks(torch.zeros(num_sticks), gamma, generator)
        means = hdp.row_means(log_base.exp(), num_sticks, rho)
        states, now = [], num_sticks
        rows = hdp.log_dirichlet(alpha * means, generator).exp()
        for first in data.starts.tolist():
            now = int(torch.multinomial(rows[num_sticks if first else now], 1, generator=generator))
            states.append(now)
        z, base = torch.tensor(states), torch.cat([log_base.exp(), log_base.new_zeros(1)])
        if not truncated:
            labels, z = torch.unique(z, return_inverse=True)
            base = torch.cat([base[labels], (1 - base[labels].sum()).clamp(min=1e-12).reshape(1)])
        weights = torch.zeros(len(base) - 1, 0, 0, dtype=torch.float64)
        state = sequence.SequenceState(z, weights, base, alpha, gamma)
        state = sequence.draw_prior(state, data, model, generator, truncated=truncated)
        before.append([alpha.log(), gamma.log(), log_base.exp().square().sum()])
        after.append([state.concentration.log(), state.top_concentration.log(), state.base[:-1].square().sum()])
    gap = torch.tensor(after) - torch.tensor(before)
    columns = 3 if truncated else 2  # the base weights of the infinite model are those of the visited states only
    error = gap.std(0) / len(gap) ** 0.5
    assert (gap.mean(0).abs() < 5 * error)[:columns].all(), gap.mean(0) / error


def test_tables_of_a_sticky_row_are_shared_out() -> None:
    """Expected counts of tables, and of those that tell of beta, against their closed forms."""
    generator = torch.Generator().manual_seed(3)
    base, rho, alpha = torch.tensor([0.6, 0.4], dtype=torch.float64), 0.3, torch.tensor(1.4, dtype=torch.float64)
    means = hdp.row_means(base, 2, rho)
    counts = torch.tensor([[5, 2], [1, 3], [1, 0]])
    draws = [hdp.draw_tables(counts, alpha, means, rho, generator) for _ in range(4000)]
    tables = torch.stack([m for m, _ in draws]).double()
    chosen = torch.stack([c for _, c in draws]).double()
    shape = alpha * means
    expected = torch.tensor(
        [[sum(float(shape[j, k] / (shape[j, k] + i)) for i in range(counts[j, k])) for k in range(2)] for j in range(3)]
    )
    assert ((tables.mean(0) - expected).abs() <= 5 * tables.std(0) / 4000**0.5 + 1e-9).all()
    share = torch.ones(3, 2)
    share[:2] -= torch.eye(2) * (rho / means[:2].diagonal()).float()
    shared = (expected * share).sum(0)
    assert ((chosen.mean(0) - shared).abs() <= 5 * chosen.std(0) / 4000**0.5).all()


# -- scans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:All 3 components are occupied")
def test_states_have_their_exact_probabilities(name, scan) -> None:
    check_kernel(sampler(scan), MODELS[name], X, lengths=LENGTHS)


def test_a_sampler_of_another_concentration_is_noticed() -> None:
    class Wrong(Gibbs):
        def finish(self, model, data, schedule):
            posterior = super().finish(model.replace(top_concentration=6.0), data, schedule)
            posterior.model = model
            return posterior

    with pytest.raises(AssertionError, match="co-assignment probabilities are off"):
        check_kernel(Wrong(num_samples=1000, num_warmup=50, scan="direct"), MODELS["IHMM"], X, lengths=LENGTHS)


def test_births_from_the_prior_are_not_exact() -> None:
    """The paper's births: this is what the exact ones correct."""
    model = DIH(**FIXED, loss=Hinge(0.4), weight_scale=2.0)
    exact = state_posterior(model, X, LENGTHS)
    expected = sum(probability * (max(labels) + 1) for labels, probability in exact.items())

    def mean_number(births: str) -> tuple[float, float]:
        samples = sampler("direct", births=births).fit(model, X, lengths=LENGTHS).samples["assignments"]
        numbers = torch.tensor([len(torch.unique(draw)) for draw in samples], dtype=torch.float64)
        batches = numbers.view(25, -1).mean(1)
        return float(batches.mean()), float(batches.std()) / 5

    found, error = mean_number("exact")
    assert abs(found - expected) < 5 * error
    found, error = mean_number("prior")
    assert found - expected > 5 * error


# -- the log joint -----------------------------------------------------------------------------------------------------


def marginal_ratio(state, other, data, model, *, truncated: bool) -> tuple[float, float]:
    return tuple(float(sequence.log_joint(own, data, model, truncated=truncated)) for own in (state, other))


@pytest.mark.parametrize("name", ["IHMM", "DIH-S", "DIH-L"])
def test_log_joint_is_that_of_the_program(name) -> None:
    """Ratios for other sticks, concentrations and hyperplanes, states summed out on both sides by enumeration."""
    model = MODELS[name].replace(concentration_prior=(2.0, 1.0), top_concentration_prior=(3.0, 2.0), truncation=2)
    inputs = X[[0, 2]]
    resolved, data = model.prepare(inputs, None, [2])
    generator = torch.Generator().manual_seed(0)
    values = []
    for _ in range(2):
        stick, alpha, gamma = torch.rand(3, generator=generator, dtype=torch.float64) + torch.tensor([0.0, 0.5, 0.5])
        shape = (2, data.points.features.shape[1], data.points.targets.shape[1])
        weights = torch.randn(shape, generator=generator, dtype=torch.float64)
        base = torch.stack([stick, 1 - stick, torch.zeros_like(stick)])
        terms = []
        for labels in itertools.product(range(2), repeat=2):
            state = sequence.SequenceState(torch.tensor(labels), weights, base, alpha, gamma)
            terms.append(sequence.log_joint(state, data, resolved, truncated=True))
        fixed = {"sticks": stick.reshape(1), "concentration": alpha, "top_concentration": gamma, "weights": weights}
        values.append((float(torch.stack(terms).logsumexp(0)), _program_log_density(resolved, inputs, fixed)))
    (own, exact), (other, other_exact) = values
    assert own - other == pytest.approx(exact - other_exact, abs=1e-9)


def _program_log_density(model, inputs: Tensor, fixed: dict[str, Tensor]) -> float:
    """The program's prior terms, and its `paths` factor with rows and centres integrated out in closed form."""
    with torch.random.fork_rng():
        site = poutine.trace(poutine.condition(model, data=fixed)).get_trace(inputs, [2])
    site.compute_log_prob()
    names = ("sticks", "concentration", "top_concentration", "weights", "rejection")
    log_prior = sum(float(site.nodes[name]["log_prob_sum"]) for name in names if name in site.nodes)
    stick = fixed["sticks"].squeeze()
    base = torch.stack([stick, 1 - stick])
    points = model.data(inputs, [2]).points
    scores = torch.einsum("np,kpc->nkc", points.features, fixed["weights"])
    gain = model.log_margin(scores, points.targets.unsqueeze(1))
    total = []
    means = (1 - model.stickiness) * base + model.stickiness * torch.eye(2, dtype=base.dtype)
    for one, two in itertools.product(range(2), repeat=2):
        log_path = base[one].log() + means[one, two].log()  # the two moves leave different rows: means of Dirichlets
        chi = model.likelihood.prior().expand(2, -1).clone()
        for step, k in enumerate((one, two)):
            chi[k] += model.likelihood.statistics(inputs[step : step + 1]).squeeze(0)
        log_marginal = model.likelihood.log_marginal(chi).sum() + model.likelihood.log_base_measure(inputs).sum()
        total.append(log_path + log_marginal + gain[0, one] + gain[1, two])
    return log_prior + float(torch.stack(total).logsumexp(0))


# -- fits --------------------------------------------------------------------------------------------------------------


def long_chain(num_steps: int = 200, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    states = (torch.arange(num_steps) // 20) % 3
    centers = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    return centers[states] + torch.randn(num_steps, 2, generator=generator, dtype=torch.float64), states


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("model", [IHMM(), DIH(loss=Hinge(0.5)), DIH(loss=Logistic(), weight_scale=2.0)], ids=repr)
def test_well_separated_states_are_found(model, scan) -> None:
    inputs, states = long_chain()
    inputs[30:33] = NAN
    posterior = Gibbs(num_samples=20, num_warmup=20, scan=scan).fit(model, inputs, lengths=[120, 80])
    found = posterior.partition()
    assert posterior.num_components == 3
    pairs = torch.unique(torch.stack([found, states]), dim=1)
    assert pairs.shape[1] == 3


@pytest.mark.parametrize("scan", SCANS)
def test_resumed_chains_are_the_same_bit_for_bit(scan, tmp_path) -> None:
    inputs, _ = long_chain(60)
    model, path = DIH(loss=Hinge(0.5)), tmp_path / "chain.pt"
    options = {"scan": scan, "num_warmup": 2, "num_generative": 3}
    whole = Gibbs(num_samples=6, **options).fit(model, inputs)
    Gibbs(num_samples=3, **options).fit(model, inputs, checkpoint=path)
    resumed = Gibbs(num_samples=6, **options).fit(model, inputs, resume=path)
    for name, value in whole.samples.items():
        assert torch.equal(resumed.samples[name], value), name


def test_float32_and_a_start_from_labels(device) -> None:
    inputs, states = long_chain(80)
    for scan in ("beam", "blocked"):
        posterior = Gibbs(num_samples=5, num_warmup=5, scan=scan, init=states).fit(
            IHMM(), inputs.float().to(device), lengths=[80]
        )
        assert posterior.samples["log_transitions"].dtype == torch.float32
        assert posterior.samples["assignments"].device.type == device.type
        rows = posterior.samples["log_transitions"].exp().sum(-1)
        torch.testing.assert_close(rows, torch.ones_like(rows), rtol=1e-4, atol=1e-4)


def test_the_blocked_log_joint_counts_every_hyperplane() -> None:
    inputs, states = long_chain(40)
    model, data = DIH(truncation=4, loss=Logistic()).prepare(inputs)
    generator = torch.Generator().manual_seed(0)
    state = sequence.init(model, data, generator, start=states, scan="blocked", num_sweeps=0)
    empty = torch.bincount(state.states, minlength=4) == 0
    assert empty.any()
    moved = replace(state, weights=torch.where(empty.view(-1, 1, 1), state.weights + 1, state.weights))
    first, second = marginal_ratio(state, moved, data, model, truncated=True)
    assert first != second


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scan": "collapsed"}, "scan is 'collapsed'; for IHMM expected one of 'auto', 'direct', 'beam', 'blocked'"),
        ({"init": torch.zeros(3, dtype=torch.long)}, r"init has shape \(3,\)"),
        ({"num_generative": -1}, "num_generative is -1"),
    ],
)
def test_wrong_options_are_named(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        Gibbs(**change).fit(IHMM(likelihood=DiagonalGaussian()), long_chain(20)[0])
