"""Gibbs sampling of the infinite hidden Markov models against enumeration, the Pyro program and re-simulation."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pyro.poutine as poutine
import pytest
import torch
from setups import by_day, label_law, misled
from torch import Tensor

from regbayes.inference import Gibbs
from regbayes.inference.gibbs import rows as transition_rows
from regbayes.inference.gibbs import sequence
from regbayes.inference.gibbs.hyperplanes import take_reserved
from regbayes.inference.gibbs.paths import Paths
from regbayes.inference.gibbs.scans import paths as path_scans
from regbayes.inference.gibbs.scans.components import hyperparameters
from regbayes.inference.gibbs.state import SequenceState
from regbayes.inference.markov.paths import sample_paths
from regbayes.models import DIH, IHMM, DiagonalGaussian, Hinge, Logistic, SphericalGaussian
from regbayes.models.distributions.sampling import log_dirichlet
from regbayes.models.feature_maps import PrincipalDirections
from regbayes.models.priors import HierarchicalDirichletProcess
from regbayes.models.priors import hierarchical_dirichlet_process as hierarchy
from regbayes.models.priors.franchise import count_transitions, draw_sticks, row_means
from regbayes.models.priors.laws import law_of
from regbayes.models.priors.sticks import log_stick_weights
from regbayes.testing import check_kernel
from regbayes.testing.sequences import state_log_weights, state_posterior

NAN = math.nan
X = torch.tensor([[-1.2], [-0.8], [1.1], [NAN], [0.9]], dtype=torch.float64)
LENGTHS = [3, 2]
FAMILY = SphericalGaussian(loc=0.0, variance=0.5, prior_variance=1.0)
FIXED = {"likelihood": FAMILY, "truncation": 3}


def fixed(alpha: float = 1.0, gamma: float = 1.0, rho: float = 0.0) -> HierarchicalDirichletProcess:
    """Both concentrations known."""
    return HierarchicalDirichletProcess(alpha, None, gamma, None, stickiness=rho)


def hyper(alpha: float | Tensor, gamma: float | Tensor) -> dict[str, Tensor]:
    """Values of the hyperparameters, as a state has them."""
    values = {"concentration": alpha, "top_concentration": gamma}
    return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in values.items()}


MODELS = {
    "IHMM": IHMM(**FIXED, prior=fixed(1.5)),
    "sticky": IHMM(**FIXED, prior=fixed(gamma=2.0, rho=0.4)),
    "DIH-S": DIH(
        **FIXED, prior=fixed(), loss=Hinge(0.4), weight_scale=1.5, feature_map=PrincipalDirections(intercept=0.0)
    ),
    "DIH-L": DIH(**FIXED, prior=fixed(rho=0.3), loss=Logistic(), weight_scale=1.5),
}
SCANS = ("direct", "beam", "blocked")


def sampler(scan: str, **options) -> Gibbs:
    num_samples, num_warmup = (500, 30) if scan == "blocked" else (300, 20)  # its labels move slowly
    return Gibbs(**({"num_samples": num_samples, "num_warmup": num_warmup, "scan": scan, "seed": 1} | options))


# -- base weights, concentrations, labels ------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("rho", [0.0, 0.4])
def test_prior_updates_preserve_the_prior(rho, truncated) -> None:
    """Concentrations from their prior, states simulated given them, then the updates: still the prior."""
    generator = torch.Generator().manual_seed(2)
    T, num_draws, lengths = 4, by_day(800, 2), [7, 5]
    prior = HierarchicalDirichletProcess(1.0, (2.0, 1.0), 1.0, (3.0, 1.0), stickiness=rho)
    model, data = IHMM(prior=prior).prepare(torch.arange(12.0, dtype=torch.float64).view(12, 1), None, lengths)
    alphas, gammas = (
        torch._standard_gamma(torch.full((num_draws,), a, dtype=torch.float64), generator=generator) for a in (2.0, 3.0)
    )
    before, after = [], []
    for alpha, gamma in zip(alphas, gammas, strict=True):
        num_sticks = T if truncated else 60
        log_base, _ = draw_sticks(torch.zeros(num_sticks), gamma, generator)
        rows = log_dirichlet(alpha * row_means(log_base.exp(), num_sticks, rho), generator)
        uniforms = torch.rand(12, generator=generator, dtype=torch.float64)
        states = sample_paths(rows[-1], rows[:-1], torch.zeros(12, num_sticks), lengths, uniforms)
        base = torch.cat([log_base.exp(), log_base.new_zeros(1)])
        if not truncated:
            labels, states = torch.unique(states, return_inverse=True)
            base = torch.cat([base[labels], (1 - base[labels].sum()).clamp(min=1e-12).reshape(1)])
        state = SequenceState(states, torch.zeros(len(base) - 1, 0, 0), hyper(alpha, gamma), base=base)
        paths = Paths(label_law(model, truncated), data)
        moved = paths.relabel(paths.draw_prior(state, generator), generator)
        for own, found in ((state, before), (moved, after)):
            # the visited states of the infinite model come in any order: only symmetric functions of beta
            beta = own.base if truncated else torch.stack([own.base[-1], own.base.square().sum()])
            logs = torch.stack([value.log() for value in own.hyper.values()])
            joint = torch.stack([logs[1] * beta[0], logs[0] * logs[1], logs[0].square(), logs[1].square()])
            found.append(torch.cat([logs, joint, beta]))
    gap = torch.stack(after) - torch.stack(before)
    error = gap.std(0) / num_draws**0.5
    assert (gap.mean(0).abs() <= 5 * error + 1e-12).all(), gap.mean(0) / error


@pytest.mark.parametrize("truncated", [False, True])
def test_draws_of_the_prior_see_the_tables_that_they_belong_to(truncated, monkeypatch) -> None:
    """alpha all of them, gamma and beta those that beta chose a state for; gamma without beta, or given its sticks."""
    tables, chosen = torch.tensor([[2, 1], [1, 3], [1, 0]]), torch.tensor([2, 3])
    monkeypatch.setattr(hierarchy, "draw_tables", lambda *arguments: (tables, chosen))
    monkeypatch.setattr(hierarchy, "draw_row_concentration", lambda alpha, _, seen, *rest: alpha + (seen is tables))
    monkeypatch.setattr(hierarchy, "draw_top_concentration", lambda gamma, seen, *rest: gamma + 5 * (seen is chosen))
    prior, generator = HierarchicalDirichletProcess(1.0, (2.0, 1.0), 1.0, (3.0, 2.0)), torch.Generator().manual_seed(6)
    base, draws = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), []
    for _ in range(1000):
        values, weights = law_of(prior, tables.shape[1] if truncated else None).draw_base(
            hyper(1.5, 2.0), base, tables, generator
        )
        assert values["concentration"] == 2.5
        draws.append(torch.cat([values["top_concentration"].reshape(1), weights]))
    gamma, first, second, rest = torch.stack(draws).unbind(1)
    shape = torch.tensor([3.0, 5.0, 0.0] if truncated else [2.0, 3.0, 7.0], dtype=torch.float64)
    share = shape / shape.sum()
    error = (share * (1 - share) / (shape.sum() + 1) / 1000).sqrt()
    assert ((torch.stack([first, second, rest], 1).mean(0) - share).abs() <= 5 * error + 1e-12).all()
    if truncated:  # gamma ~ Gamma(3 + 1, 2 - log(1 - u))
        assert ((gamma * (2 - second.log())).mean() - 4).abs() < 5 * 2 / 1000**0.5
    else:
        assert (gamma == 7).all()


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_what_is_left_is_broken_as_the_prior_breaks_it(rho) -> None:
    """Shares of beta, of the rows' rests given beta, and new rows given beta have their means and variances."""
    generator, num_draws, K = torch.Generator().manual_seed(3), by_day(2000, 2), 2
    alpha, gamma = (torch.tensor(value, dtype=torch.float64) for value in (3.0, 2.0))
    base = torch.tensor([0.3, 0.2, 0.5], dtype=torch.float64)
    log_rows = torch.tensor([[0.5, 0.1, 0.4], [0.2, 0.2, 0.6], [0.3, 0.4, 0.3]], dtype=torch.float64).log()
    state = SequenceState(torch.zeros(3, dtype=torch.long), torch.zeros(K, 0, 0), hyper(alpha, gamma), base=base)
    model = IHMM(prior=fixed(rho=rho))
    standard, shares = [], []

    def compare(share: Tensor, mean: Tensor, shape: Tensor) -> None:
        """Dirichlet with this shape in all: (share - mean) over its standard deviation."""
        standard.append(((share - mean) / (mean * (1 - mean) / (shape + 1)).sqrt()).flatten())

    for _ in range(num_draws):
        log_new, wide = transition_rows.break_rest(log_rows, base, 3, state, model.prior, generator)
        left = 0.5 - torch.cat([wide.new_zeros(1), wide[2:4].cumsum(0)])
        shares.append(wide[2:5] / left)
        rows = log_new.exp()
        own = wide[2:6] / 0.5
        for j, scale in ((0, 1 - rho), (1, 1 - rho), (5, 1.0)):  # row 5 is now that of the starts
            compare(rows[j, 2:] / rows[j, 2:].sum(), own, alpha * scale * 0.5)
        fresh = (1 - rho) * wide + rho * torch.eye(6, dtype=torch.float64)[2:5]
        compare(rows[2:5], fresh, alpha)
        torch.testing.assert_close(rows[:2, :2], log_rows[:2, :2].exp())
        torch.testing.assert_close(rows[:, :].sum(1), torch.ones(6, dtype=torch.float64))
    sticks = torch.stack(shares)
    mean, variance = 1 / (1 + gamma), gamma / ((1 + gamma) ** 2 * (2 + gamma))
    assert ((sticks.mean(0) - mean).abs() < 5 * (variance / num_draws).sqrt()).all()
    assert ((sticks.var(0) / variance - 1).abs() < 0.15).all()
    values = torch.stack([torch.cat(standard[i : i + 4]) for i in range(0, len(standard), 4)])
    assert (values.mean(0).abs() < 5 / num_draws**0.5).all()
    assert ((values.square().mean(0) - 1).abs() < 5 * values.square().std(0) / num_draws**0.5).all()


@pytest.mark.parametrize("gamma", [0.6, 2.5])
def test_labels_are_swapped_along_with_their_base_weights(gamma) -> None:
    """Every state keeps its weights, and beta its law: E beta_k = E v (1 - E v)^(k-1), E v = 1 / (1 + gamma)."""
    generator = torch.Generator().manual_seed(4)
    T, num_draws = 4, 1500
    states, weights = torch.randint(T, (9,), generator=generator), torch.arange(4.0).view(T, 1, 1)
    top, bases, num_moved = torch.tensor(gamma, dtype=torch.float64), [], 0
    for _ in range(num_draws):
        log_base, _ = draw_sticks(torch.zeros(T), top, generator)
        state = SequenceState(states, weights, hyper(top, top), base=torch.cat([log_base.exp(), log_base.new_zeros(1)]))
        moved = transition_rows.relabel(state, generator)
        assert torch.equal(moved.base[moved.assignments], state.base[states])
        assert torch.equal(moved.weights[moved.assignments], weights[states])
        num_moved += not torch.equal(moved.base, state.base)
        bases.append(moved.base[:-1])
    assert num_moved > num_draws / 4
    share = torch.tensor(1 / (1 + gamma), dtype=torch.float64)
    expected = row_means(torch.cat([share * (1 - share) ** torch.arange(T - 1), (1 - share).pow(T - 1).view(1)]), T, 0)
    found = torch.stack(bases)
    assert ((found.mean(0) - expected[-1]).abs() < 5 * found.std(0) / num_draws**0.5).all()


@pytest.mark.parametrize("lengths", [[6], [1, 1, 4], [2, 3, 1]])
def test_compiled_moves_are_those_of_the_tensor_code(lengths) -> None:
    model, data = MODELS["sticky"].prepare(torch.arange(6.0).unsqueeze(1), None, lengths)
    law = label_law(model, False)
    state = Paths(law, data).begin(torch.tensor([2, 0, 0, 1, 0, 1]), model)
    expected = count_transitions(state.assignments, data.starts, 3)
    assert torch.equal(transition_rows.own_moves(state, data), expected)
    with pytest.raises(ValueError, match="from 0 to 2; expected 0 to 1"):
        transition_rows.own_moves(replace(state, weights=state.weights[:2]), data)


# -- scans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scan", SCANS)
def test_a_sweep_draws_concentrations_and_base_weights_given_its_own_states(scan, monkeypatch) -> None:
    model, data = MODELS["sticky"].replace(prior=HierarchicalDirichletProcess(stickiness=0.4)).prepare(X, None, LENGTHS)
    generator, seen = torch.Generator().manual_seed(0), []
    state = sequence.init(model, data, generator, start=torch.tensor([0, 0, 1, 1, 1]), scan=scan, num_sweeps=1)

    def spy(z, moved, generator, tally):
        assert torch.equal(tally, transition_rows.count_moves(moved, data))
        seen.append(draw_prior(z, moved, generator, tally))
        assert z.law == label_law(model, scan == "blocked")
        return seen[-1]

    draw_prior = Paths.draw_prior
    monkeypatch.setattr(Paths, "draw_prior", spy)
    for _ in range(5):
        before, state = state, sequence.sweep(state, data, model, generator, scan=scan)
        assert all(state.hyper[name] == seen[-1].hyper[name] != before.hyper[name] for name in state.hyper)
        assert torch.equal(state.base[state.assignments], seen[-1].base[seen[-1].assignments])
    assert len(seen) == 5


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("scan", ["direct", "blocked", "beam"])  # by day DIH-S is blocked, which takes least
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:All 3 components are occupied")
def test_states_have_their_exact_probabilities(name, scan) -> None:
    # chains of states that repel stick: batches of 15 draws would take them for more exact than they are
    options = {"num_samples": 1500} if name == "DIH-S" and scan != "blocked" else {}
    check_kernel(sampler(scan, **options), MODELS[name], X, lengths=LENGTHS)


def test_a_sampler_of_another_concentration_is_noticed() -> None:
    wrong = misled(Gibbs(num_samples=300, num_warmup=20, scan="direct"), prior=fixed(1.5, 6.0))
    with pytest.raises(AssertionError, match="co-assignment probabilities are off"):
        check_kernel(wrong, MODELS["IHMM"], X, lengths=LENGTHS)


@pytest.mark.nightly
@pytest.mark.slow
def test_births_from_the_prior_are_not_exact() -> None:
    """The paper's births open more states: this is what the exact ones correct."""
    model = DIH(**FIXED, loss=Hinge(0.4), weight_scale=2.0)
    exact = state_posterior(model, X, LENGTHS)
    expected = sum(probability * (max(labels) + 1) for labels, probability in exact.items())
    samples = sampler("direct", births="prior").fit(model, X, lengths=LENGTHS).samples["assignments"]
    numbers = torch.tensor([len(torch.unique(draw)) for draw in samples], dtype=torch.float64)
    batches = numbers.view(20, -1).mean(1)
    assert batches.mean() - expected > 5 * batches.std() / 20**0.5


# -- the log joint and the conditionals --------------------------------------------------------------------------------


def record(site: dict[str, Tensor], log_parts: list[Tensor], name: str, law) -> Tensor:
    """A `sample` that returns the value of the site and notes its log density."""
    log_parts.append(law.log_prob(site[name]).sum())
    return site[name]


@pytest.mark.parametrize("name", MODELS)
def test_conditionals_times_log_joint_are_the_program(name) -> None:
    """program(rows, theta, v, alpha, gamma, eta) = sum_z p(z, v, alpha, gamma, eta, X) p(rows | z) p(theta | z).

    Two sequences, a missing row, and every site of the program at two random values.
    """
    prior = MODELS[name].prior.replace(concentration_prior=(2.0, 1.0), top_concentration_prior=(3.0, 2.0))
    model = MODELS[name].replace(prior=prior)
    resolved, data = model.prepare(X, None, LENGTHS)
    for seed in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            trace = poutine.trace(resolved).get_trace(X, LENGTHS)
        trace.compute_log_prob()
        site = {name: trace.nodes[name]["value"] for name in trace.stochastic_nodes}
        base = torch.cat([log_stick_weights(site["sticks"]).exp(), X.new_zeros(1)])
        log_terms = []
        for labels in itertools.product(range(model.truncation), repeat=len(X)):
            values = hyper(site["concentration"], site["top_concentration"])
            state = SequenceState(torch.tensor(labels), site["weights"], values, base=base)
            moves = transition_rows.count_moves(state, data)
            rows = torch.distributions.Dirichlet(transition_rows.row_posterior(state, moves, resolved.prior)[:, :-1])
            log_parts = [rows.log_prob(site["transitions"]).sum()]
            given = partial(record, site, log_parts)
            resolved.likelihood.parameters(hyperparameters(state, data, resolved), given)
            log_terms.append(sequence.log_joint(state, data, resolved, law=label_law(resolved, True)) + sum(log_parts))
        assert float(torch.stack(log_terms).logsumexp(0)) == pytest.approx(float(trace.log_prob_sum()), abs=1e-8)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("rho", [0.0, 0.3])
@pytest.mark.parametrize("labels", [(0, 0, 0, 0), (0, 1, 1, 0), (0, 1, 0, 1)])
@pytest.mark.parametrize("truncated", [False, True])
def test_log_joint_integrates_to_the_franchise(truncated, labels, rho) -> None:
    """Over beta by Gauss-Legendre in its sticks; gamma = 2 leaves an integrand without singularity."""
    model = IHMM(**FIXED, prior=fixed(1.3, 2.0, rho))
    inputs = torch.tensor([[-1.0], [-0.5], [0.7], [1.0]], dtype=torch.float64)
    resolved, data = model.prepare(inputs, None, [1, 3])
    num_states = 3 if truncated else max(labels) + 1
    nodes, node_weights = map(torch.tensor, np.polynomial.legendre.leggauss(24))
    nodes, node_weights = (nodes + 1) / 2, node_weights / 2
    total = 0.0
    for chosen in itertools.product(range(24), repeat=2 if truncated else num_states):
        sticks = nodes[list(chosen)]
        base = log_stick_weights(sticks).exp()
        if truncated:
            base, jacobian = torch.cat([base, base.new_zeros(1)]), 1.0
        else:
            jacobian = (1 - sticks[:-1]).prod()  # d beta_k = prod_{j<k} (1 - v_j) d v_k; at most two states
        state = SequenceState(torch.tensor(labels), torch.zeros(num_states, 0, 0), hyper(1.3, 2.0), base=base)
        density = sequence.log_joint(state, data, resolved, law=label_law(resolved, truncated)).exp()
        total += float(density * jacobian * node_weights[list(chosen)].prod())
    exact = state_log_weights(resolved, inputs, [1, 3], truncation=3 if truncated else None)[labels]
    assert math.log(total) == pytest.approx(exact, abs=1e-6)


# -- fits --------------------------------------------------------------------------------------------------------------


def long_chain(num_steps: int = 200, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    states = (torch.arange(num_steps) // 20) % 3
    centers = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    return centers[states] + torch.randn(num_steps, 2, generator=generator, dtype=torch.float64), states


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("model", [IHMM(), DIH(loss=Hinge(0.5)), DIH(loss=Logistic(), weight_scale=2.0)], ids=repr)
def test_well_separated_states_are_found(model, scan) -> None:
    inputs, states = long_chain()
    inputs[30:33] = NAN
    posterior = Gibbs(num_samples=8, num_warmup=12, scan=scan).fit(model, inputs, lengths=[120, 80])
    found = posterior.partition()
    assert posterior.num_components == 3
    pairs = torch.unique(torch.stack([found, states]), dim=1)
    assert pairs.shape[1] == 3


def test_chains_start_at_the_states_whatever_the_seed() -> None:
    inputs, states = long_chain()
    model, data = IHMM().prepare(inputs, None, [120, 80])
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        state = sequence.init(model, data, generator, start="one", scan="beam", num_sweeps=10)
        assert len(state.weights) == 3
        assert torch.unique(torch.stack([state.assignments, states]), dim=1).shape[1] < 7


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scan": "collapsed"}, "scan is 'collapsed'; for IHMM it must be one of 'auto', 'direct', 'beam', 'blocked'"),
        ({"init": torch.zeros(3, dtype=torch.long)}, r"init has shape \(3,\)"),
        ({"init": torch.arange(20) + 5, "scan": "blocked"}, "Use truncation=20 or more, or scan='beam'"),
        ({"num_generative": -1}, "num_generative is -1"),
    ],
)
def test_wrong_options_are_named(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        Gibbs(**change).fit(IHMM(DiagonalGaussian(), truncation=15), long_chain(20)[0])


# -- single terms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["DIH-S", "DIH-L"])
def test_log_joint_of_an_infinite_model_is_relative_to_hyperplanes_without_points(name) -> None:
    """Beside the terms of the same model without hyperplanes it has the gain of every observed step in its state."""
    model, data = MODELS[name].prepare(X, None, LENGTHS)
    generator = torch.Generator().manual_seed(0)
    state = sequence.init(model, data, generator, start=torch.tensor([0, 0, 1, 1, 1]), scan="beam", num_sweeps=1)
    plain, bare = IHMM(**FIXED, prior=model.prior).prepare(X, None, LENGTHS)
    own = state.weights[state.assignments[data.steps], :, 0]
    scores = (data.points.features * own).sum(1)
    one = torch.ones_like(scores)
    gain = (model.loss.log_factor(scores, one) - model.loss.log_factor(scores, -one)).sum()
    nothing = replace(state, weights=state.weights.new_zeros(2, 0, 0))
    expected = sequence.log_joint(nothing, bare, plain, law=label_law(plain, False)) + gain
    torch.testing.assert_close(sequence.log_joint(state, data, model, law=label_law(model, False)), expected)


def test_hyperplanes_of_new_states_leave_the_reservoir() -> None:
    model, data = MODELS["DIH-S"].prepare(X, None, LENGTHS)
    generator, features = torch.Generator().manual_seed(0), data.points.features
    reserved = torch.randn(100, features.shape[1], 1, generator=generator, dtype=torch.float64)
    taken, left = take_reserved(reserved, 7, features, model, generator)
    assert torch.equal(torch.cat([taken, left]).flatten().sort().values, reserved.flatten().sort().values)
    assert not torch.equal(taken, reserved[:7])
    taken, left = take_reserved(reserved, 102, features, model, generator)
    assert (len(taken), len(left)) == (102, 0)
    assert torch.isin(reserved, taken).all()


def test_what_the_rows_leave_to_unseen_states_is_below_every_slice(monkeypatch) -> None:
    """And what the scan does not visit goes back: hyperplanes to the reservoir, base weights to the rest."""
    model, data = MODELS["DIH-L"].prepare(X, None, LENGTHS)
    generator = torch.Generator().manual_seed(0)
    seen = []

    def spy(log_start, log_transition, table, lengths, uniforms, log_slices, **options):
        rows = torch.cat([log_transition, log_start.unsqueeze(0)]).exp()
        seen.append((1 - rows.sum(1)).max() - log_slices.exp().min())
        z = state.assignments
        own = torch.cat([log_start[z[[0, 3]]], log_transition[z[[0, 1, 3]], z[[1, 2, 4]]]])
        assert (log_slices[[0, 3, 1, 2, 4]] <= own).all()
        return sample_paths(log_start, log_transition, table, lengths, uniforms, log_slices, **options)

    monkeypatch.setattr(path_scans, "sample_paths", spy)
    state = sequence.init(model, data, generator, start=torch.tensor([0, 0, 1, 1, 1]), scan="beam", num_sweeps=1)
    for _ in range(60):
        moved = path_scans.beam_scan(state, data, model, generator)
        assert float(moved.base.sum()) == pytest.approx(1.0, abs=1e-12)
        planes, known = (torch.cat([own.weights, own.reservoir]).flatten() for own in (moved, state))
        assert len(planes) >= len(known)
        assert torch.isin(known, planes).all()
        state = Paths(label_law(model, False), data).draw_prior(moved, generator)
    assert len(seen) == 60
    assert max(seen) <= 1e-12


def test_what_a_posterior_keeps_of_a_state() -> None:
    model, data = MODELS["sticky"].prepare(X, None, LENGTHS)
    base = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    state = SequenceState(torch.tensor([0, 0, 1, 1, 1]), torch.zeros(2, 0, 0), hyper(1.5, 1.5), base=base)
    kept = sequence.draw(state, data, model, law=label_law(model, False))
    seen = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
    rows = (1.5 * row_means(base, 2, 0.4) + seen) / (1.5 + seen.sum(1, keepdim=True))
    torch.testing.assert_close(kept["log_transitions"].exp(), rows[:2])
    torch.testing.assert_close(kept["log_start"].exp(), rows[2])
    torch.testing.assert_close(kept["log_mixture"].exp(), torch.tensor([0.4, 0.6, 0.0], dtype=torch.float64))
    assert kept["top_concentration"] == kept["concentration"] == 1.5
    unseen = 0.6 * base + torch.tensor([0.0, 0.0, 0.4], dtype=torch.float64)
    torch.testing.assert_close(kept["log_unseen_row"].exp(), unseen)


def test_states_are_joined_where_that_is_more_probable() -> None:
    """p(z, X | alpha, beta) of one state for all steps, whose base weight is that of both, against two."""
    joined, family = [], SphericalGaussian(loc=1.0, variance=0.5, prior_variance=0.3)
    labels, base = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0.3, 0.2, 0.5, 0.0], dtype=torch.float64)
    for scale in torch.linspace(0.0, 2.0, 81, dtype=torch.float64):
        model, data = MODELS["sticky"].replace(likelihood=family).prepare(scale * X, None, LENGTHS)
        two = SequenceState(labels, torch.zeros(3, 0, 0), hyper(1.5, 1.5), base=base)
        single = replace(two, assignments=torch.zeros(5, dtype=torch.long), base=base.new_tensor([0.5, 0.0, 0.5, 0.0]))
        log_single, log_two = (
            model.likelihood.log_marginal(hyperparameters(own, data, model)).sum()
            + Paths(label_law(model, False), data).log_paths(own)
            for own in (single, two)
        )
        found = sequence._merge_alike(two, Paths(label_law(model, True), data), model)
        joined.append(bool(log_single > log_two))
        expected = single if joined[-1] else two
        assert torch.equal(found.assignments, expected.assignments)
        torch.testing.assert_close(found.base, expected.base)
    assert 20 < sum(joined) < 70


def test_missing_steps_start_in_the_state_before_them() -> None:
    inputs = torch.tensor([[NAN], [0.1], [NAN], [NAN], [0.2], [0.3], [NAN]], dtype=torch.float64)
    _, data = IHMM().prepare(inputs, None, [4, 3])
    assert sequence._fill_gaps(torch.tensor([4, 2, 3]), data).tolist() == [4, 4, 4, 4, 2, 3, 3]
