"""The direct assignment scan against joints, exact probabilities of tiny sequences, and its own tensor code."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from negative_binomial import NegativeBinomial
from setups import FAMILIES, MIXED, by_day, first_appearance, frequency_errors, mixture_rows

from regbayes.inference.classifiers.scored import RepellingHyperplanes
from regbayes.inference.gibbs.scans import direct, slots
from regbayes.inference.gibbs.state import SequenceState
from regbayes.models import DIH, IHMM
from regbayes.models.feature_maps import PrincipalDirections
from regbayes.models.likelihoods import DiagonalGaussian, FullGaussian, LinearRegression, SphericalGaussian
from regbayes.models.losses import Hinge, Logistic
from regbayes.models.priors import HierarchicalDirichletProcess
from regbayes.models.priors.franchise import count_transitions
from regbayes.testing.enumeration import partitions

LENGTHS = [5, 1, 3, 2, 4]
NAN = math.nan


def sticky(rho):
    return HierarchicalDirichletProcess(stickiness=rho)


def rows(family, num_rows, num_features=2):
    return mixture_rows(family, num_rows, num_features)[0]


def start(states, data, model, *, alpha=1.3, gamma=0.7, num_reserved=3, seed=0):
    """A state with random beta, and random hyperplanes for the states and the reservoir."""
    generator = torch.Generator().manual_seed(seed)
    num_states, shape = int(states.max()) + 1, (data.points.features.shape[1], data.points.targets.shape[1])
    like = {"generator": generator, "dtype": torch.float64}
    base = torch.rand(num_states + 1, **like) + 0.1
    weights, reservoir = torch.randn(num_states, *shape, **like), torch.randn(num_reserved, *shape, **like)
    state = SequenceState(
        states,
        weights.to(data.X),
        model.prior.replace(concentration=alpha, top_concentration=gamma).start(data.X),
        base=(base / base.sum()).to(data.X.device),
    )
    return replace(state, reservoir=reservoir.to(data.X)) if model.repels else state


def log_prior(states, base, data, model, hyper):
    """log p(z | alpha, beta) with beta of the occupied states only."""
    return model.prior.log_paths(count_transitions(states, data.starts, len(base)), base, hyper)


def log_emissions(states, data, model):
    """log p(x | z), the family's parameters integrated out."""
    likelihood, X = model.likelihood, data.X
    chi = likelihood.prior() + likelihood.summed_statistics(X, states[data.steps], int(states.max()) + 1)
    return likelihood.log_marginal(chi).sum() + likelihood.log_base_measure(X).sum()


def log_gain(weights, t, data, model):
    """h(f_t) [K]; 0 where t is missing."""
    place = torch.nonzero(data.steps == t).flatten()
    if not model.repels or not len(place):
        return torch.zeros(len(weights), dtype=torch.float64)
    scores = torch.einsum("p,kpc->kc", data.points.features[place[0]], weights)
    return model.log_margin(scores, torch.ones(1, dtype=torch.float64))


# -- one conditional ---------------------------------------------------------------------------------------------------


def expected_logits(t, state, data, model):
    """Ratios of joints. What a new state's share s of beta_u does to the joint is a factor s, with mean over s ~
    p(s) / s, p = Beta(1, gamma), so that any s serves."""
    num_states, base = len(state.weights), state.base
    own = int(state.assignments[t])
    alone = (state.assignments == own).sum() == 1
    rest = base[-1] + base[own] * alone
    gains, share = log_gain(state.weights, t, data, model), 0.3
    logits = torch.full((num_states + 1,), -torch.inf, dtype=torch.float64)
    for k in range(num_states + 1):
        states = state.assignments.clone()
        states[t] = k
        opens = k == num_states or (k == own and alone)
        beta = base.clone() if k == num_states else base[:-1].clone()
        if opens:
            beta[k] = share * rest
        logits[k] = log_prior(states, beta, data, model, state.hyper) + log_emissions(states, data, model)
        logits[k] += (gains[k] if k < num_states else 0.0) - math.log(share) * opens
    if not model.repels:
        logits[num_states] -= torch.inf if alone else 0.0
        return logits
    reserved = log_gain(state.reservoir, t, data, model)
    logits[num_states] += reserved.logsumexp(0) - math.log(len(reserved) + int(alone))
    logits[own] -= math.log(len(reserved) + 1) * alone
    return logits


def assert_conditionals_are_the_joints(state, data, model, compiled):
    for t in range(data.num_data):
        found = direct.state_logits(t, state, data, model, compiled=compiled)
        expected = expected_logits(t, state, data, model)
        torch.testing.assert_close(found.log_softmax(0), expected.log_softmax(0), rtol=1e-8, atol=1e-8)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("stickiness", [0.0, 0.4])
@pytest.mark.parametrize("family", [None, Hinge(0.8), Logistic()], ids=["IHMM", "DIH-S", "DIH-L"])
def test_conditional_is_the_joints(family, stickiness, compiled):
    """Sequences of 1 to 5 steps, some of them missing, states of one step; five random paths."""
    X = rows(DiagonalGaussian, sum(LENGTHS))
    X[[2, 5, 11, 14]] = NAN
    model = IHMM(prior=sticky(stickiness)) if family is None else DIH(loss=family, prior=sticky(stickiness))
    model, data = model.prepare(X, lengths=LENGTHS)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        states = torch.randint(2 + 2 * seed, (len(X),), generator=generator)
        states = torch.unique(states, return_inverse=True)[1]
        assert_conditionals_are_the_joints(start(states, data, model, seed=seed), data, model, compiled)


@pytest.mark.parametrize("lengths", [[1], [1, 1], [2], [3], [2, 1], [1, 3], [4]])
def test_conditional_of_every_path(lengths):
    X = rows(SphericalGaussian, 4, 1)
    model = IHMM(SphericalGaussian(), prior=sticky(0.3)).resolve(X)
    data = model.data(X[: sum(lengths)], lengths)
    for labels in partitions(sum(lengths)):
        assert_conditionals_are_the_joints(start(torch.tensor(labels), data, model), data, model, True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_conditional_of_every_family_is_the_joints(family, compiled):
    X = rows(family, 12)
    X[[3, 8]] = NAN
    model, data = IHMM(family(), prior=sticky(0.2)).prepare(X, lengths=[7, 5])
    states = torch.tensor([0, 1, 1, 2, 0, 0, 1, 3, 0, 0, 2, 2])
    assert_conditionals_are_the_joints(start(states, data, model), data, model, compiled)


@pytest.mark.parametrize("far", [45.0, 26.0])
def test_tiny_weights_of_the_rest_keep_their_order(far):
    """A step that only a new state explains, with beta_u = 1e-250: log weights are exact, and the draw follows them."""
    X = rows(SphericalGaussian, 30)
    X[7] = far
    model, data = IHMM(SphericalGaussian(loc=0.0, variance=1.0, prior_variance=100.0)).prepare(X)
    state = start(torch.zeros(30, dtype=torch.long), data, model)
    for rest in (1e-250, 1e-300, 0.0):
        state = replace(state, base=torch.tensor([1 - rest, rest], dtype=torch.float64))
        logits = direct.state_logits(7, state, data, model)
        tensors = direct.state_logits(7, state, data, model, compiled=False)
        torch.testing.assert_close(logits.log_softmax(0), tensors.log_softmax(0))
        opened = 0
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            opened += len(direct.scan(state, data, model, generator, shuffle=False).weights) > 1
        assert opened == (20 if logits[1] - logits[0] > 20 else 0)


# -- the scan ----------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(4)
@pytest.mark.parametrize("family", [*FAMILIES, NegativeBinomial, MIXED])
@pytest.mark.parametrize("repels", [False, True])
def test_compiled_scan_is_the_tensor_scan(family, repels):
    X = rows(family, 40)
    X[[0, 9, 39]] = NAN
    chosen = DIH(family(), loss=Logistic(), prior=sticky(0.3)) if repels else IHMM(family(), prior=sticky(0.3))
    model, data = chosen.prepare(X, lengths=[25, 1, 14])
    known = start(torch.arange(40) % 3, data, model, alpha=5.0, gamma=4.0, num_reserved=30)
    for seed in range(3):
        compiled, tensors = (
            direct.scan(known, data, model, torch.Generator().manual_seed(seed), shuffle=seed > 0, compiled=choice)
            for choice in (True, False)
        )
        assert torch.equal(compiled.assignments, tensors.assignments)
        torch.testing.assert_close(compiled.base, tensors.base)
        torch.testing.assert_close(compiled.weights, tensors.weights)
        if repels:
            torch.testing.assert_close(compiled.reservoir, tensors.reservoir)
        known = compiled


@pytest.mark.parametrize("repels", [False, True])
def test_nothing_is_lost(repels):
    """beta sums to one, states are 0..K-1, and no hyperplane appears or disappears."""
    X = rows(DiagonalGaussian, 60)
    X[::7] = NAN
    model, data = (DIH() if repels else IHMM()).prepare(X, lengths=[20, 40])
    state = start(torch.arange(60), data, model, alpha=3.0, gamma=3.0, num_reserved=20)
    seen = set()
    for seed in range(8):
        before, state = state, direct.scan(state, data, model, torch.Generator().manual_seed(seed))
        assert torch.equal(torch.unique(state.assignments), torch.arange(len(state.weights)))
        assert len(state.base) == len(state.weights) + 1
        assert abs(float(state.base.sum()) - 1) < 1e-12
        assert (state.base > 0).all()
        seen.add(len(state.weights))
        if repels:
            every, known = (torch.cat([s.weights, s.reservoir]).flatten(1) for s in (state, before))
            assert torch.equal(torch.unique(every, dim=0), torch.unique(known, dim=0))
            shared = (state.weights[state.assignments] == before.weights[before.assignments]).flatten(1).all(1)
            assert shared.any()
    assert len(seen) > 3


@pytest.mark.nightly
def test_moves_add_up():
    """After many moves, what is kept of moves and components is what the states say."""
    X = rows(FullGaussian, 60)
    X[::9] = NAN
    model, data = IHMM(FullGaussian(), prior=sticky(0.3)).prepare(X, lengths=[30, 30])
    scratch = direct.SequenceSlots(start(torch.arange(60) % 4, data, model, alpha=9.0), data, model)
    generator = torch.Generator().manual_seed(0)
    scratch.extend(60)
    components = slots.Compiled(scratch)
    for _ in range(20):
        position, order = 0, torch.randperm(60, generator=generator)
        uniforms = torch.rand(60, dtype=X.dtype, generator=generator)
        while position < 60:
            position, opened, closed, _ = components.visit(position, order, uniforms)
            if opened + closed > -2:
                scratch.settle(int(order[position - 1]), opened, closed, generator)
    moved = torch.stack([components.logits(t) for t in range(60)])
    scratch.extend(0)
    components.build()
    rebuilt = torch.stack([components.logits(t) for t in range(60)])
    torch.testing.assert_close(moved, rebuilt, rtol=1e-9, atol=1e-9)


def test_an_outlier_leaves_no_trace():
    """Without it the scatter of its state is 1e-12 of what it was: the components are computed anew."""
    X = rows(FullGaussian, 30)
    X[0] = 1e6
    model, data = IHMM(DiagonalGaussian(loc=0.0, rate=1.0)).prepare(X)
    components = slots.Compiled(
        direct.SequenceSlots(start(torch.zeros(30, dtype=torch.long), data, model), data, model)
    )
    uniforms = torch.full((30,), 1 - 1e-12, dtype=X.dtype)
    assert components.visit(0, torch.arange(30), uniforms) == (1, 1, -1, True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("repels", [False, True])
def test_states_that_open_and_close_leave_no_trace(repels, compiled):
    """After each of them the steps weigh all states, and a new one, as in a scan that starts there."""
    X = rows(SphericalGaussian, 30)
    X[[4, 17]] = NAN
    chosen = {"likelihood": SphericalGaussian(), "prior": sticky(0.3)}
    model, data = (DIH(loss=Logistic(), **chosen) if repels else IHMM(**chosen)).prepare(X, lengths=[18, 12])
    known = start(torch.arange(30).clamp(min=15) - 15, data, model, alpha=9.0, gamma=9.0, num_reserved=9)
    scratch, generator = direct.SequenceSlots(known, data, model), torch.Generator().manual_seed(0)
    visitor = (slots.Compiled if compiled else slots.Tensors)(scratch)
    order, levels, position = torch.arange(30), torch.rand(30, generator=generator, dtype=X.dtype), 0
    changes = set()
    while position < 30:
        capacity = len(scratch.sizes)
        position, opened, closed, stale = visitor.visit(position, order, levels)
        changes.add((opened >= 0, closed >= 0))
        if opened + closed > -2:
            scratch.settle(position - 1, opened, closed, generator)
        if stale or len(scratch.sizes) > capacity:
            visitor.build()
        occupied = scratch.sizes > 0
        base = torch.cat([scratch.base[occupied], scratch.base[scratch.free].reshape(1)])
        state = replace(scratch.replaced(known), base=base)
        place = torch.cat([torch.nonzero(occupied).flatten(), torch.tensor([scratch.free])])
        for t in (position % 30, 4):
            expected = direct.state_logits(t, state, data, model, compiled=compiled)
            torch.testing.assert_close(visitor.logits(t)[place].softmax(0), expected.softmax(0))
    assert changes >= {(True, False), (False, True)}


@pytest.mark.parametrize("gamma", [1e-3, 0.6, 5.0])
def test_new_states_share_the_rest(gamma):
    """s = beta_new / beta_u has the distribution function 1 - (1 - s)^gamma of Beta(1, gamma)."""
    model, data = IHMM().prepare(rows(DiagonalGaussian, 6))
    for uniform in torch.linspace(0.01, 0.99, 9, dtype=torch.float64):
        scratch = direct.SequenceSlots(start(torch.arange(6) % 2, data, model, gamma=gamma), data, model)
        rest, opened = float(scratch.base[2]), scratch.free
        scratch.sizes[opened] += 1
        scratch.split(opened, uniform)
        assert scratch.sizes[scratch.free] == 0
        assert abs(float(scratch.base[scratch.free] / rest) ** gamma - (1 - float(uniform))) < 1e-9 or gamma < 0.01
        assert abs(float(scratch.base[opened] + scratch.base[scratch.free]) - rest) < 1e-15


def test_an_emptied_state_returns_its_weight():
    model, data = IHMM().prepare(rows(DiagonalGaussian, 6))
    scratch = direct.SequenceSlots(start(torch.arange(6) % 3, data, model), data, model)
    before = scratch.base.clone()
    scratch.settle(0, -1, 1, torch.Generator().manual_seed(0))
    assert scratch.base[1] == 0
    assert scratch.base[scratch.free] == before[1] + before[3]


def test_single_precision_has_the_conditional_of_double():
    X = rows(DiagonalGaussian, 30)
    model, data = IHMM().prepare(X)
    small_model, small = IHMM().prepare(X.float())
    states = torch.arange(30) % 4
    for t in range(5):
        exact = direct.state_logits(t, start(states, data, model), data, model).softmax(0)
        found = direct.state_logits(t, start(states, small, small_model), small, small_model).softmax(0)
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("repels", [False, True])
def test_any_device(repels, device):
    X = rows(DiagonalGaussian, 20)
    X[4] = NAN
    model, data = (DIH() if repels else IHMM()).prepare(X.to(device), lengths=[8, 12])
    here_model, here = (DIH() if repels else IHMM()).prepare(X, lengths=[8, 12])
    known = start((torch.arange(20) % 3).to(device), data, model)
    state = direct.scan(known, data, model, torch.Generator(device).manual_seed(0))
    assert state.assignments.device.type == state.base.device.type == device.type
    for t in range(5):
        found = direct.state_logits(t, known, data, model, compiled=False)
        exact = direct.state_logits(t, start(torch.arange(20) % 3, here, here_model), here, here_model)
        torch.testing.assert_close(found.cpu().softmax(0), exact.softmax(0), rtol=1e-6, atol=1e-9)


# -- exact probabilities -----------------------------------------------------------------------------------------------


def log_partition_prior(labels, data, alpha, gamma, rho):
    """log p(z | alpha, gamma), beta integrated out.

    p(z | beta) is a polynomial in each beta_k, and the integral of prod_k gamma beta_k^(m_k - 1) beta_u^(gamma - 1) is
    gamma^K prod_k Gamma(m_k) Gamma(gamma) / Gamma(gamma + m_.).
    """
    num_states = max(labels) + 1
    counts = count_transitions(torch.tensor(labels), data.starts, num_states).numpy()
    total = np.ones(1)
    for k in range(num_states):
        powers = np.polynomial.Polynomial([1.0])
        for j in range(num_states + 1):
            own, shared = alpha * rho * (j == k), alpha * (1 - rho * (j < num_states))
            for i in range(counts[j, k]):
                powers = powers * np.polynomial.Polynomial([own + i, shared])
        assert powers.coef[0] == 0
        total = np.convolve(total, [0, *(c * math.gamma(m) for m, c in enumerate(powers.coef[1:], start=1))])
    top = num_states * math.log(gamma) + math.lgamma(gamma)
    value = sum(c * math.exp(top - math.lgamma(gamma + m)) for m, c in enumerate(total))
    return math.log(value) - sum(math.lgamma(alpha + n) - math.lgamma(alpha) for n in counts.sum(1))


def log_hyperplane_blocks(labels, data, model):
    """log g(S) / C0 summed over states, one feature: quadrature over a grid of eta."""
    if not model.repels:
        return 0.0
    eta = torch.linspace(-12, 12, 6001, dtype=torch.float64) * model.weight_scale
    scores = data.points.features * eta
    log_law = -(eta / model.weight_scale).square() / 2 + model.loss.log_factor(scores, scores.new_tensor(-1.0)).sum(0)
    gains, states = model.log_margin(scores.unsqueeze(-1), scores.new_ones(1)), torch.tensor(labels)[data.steps]
    blocks = [log_law + gains[states == k].sum(0) for k in range(max(labels) + 1)]
    return float(sum((block.logsumexp(0) - log_law.logsumexp(0)) for block in blocks))


def exact_probabilities(data, model, alpha, gamma):
    log_weights = {}
    for labels in partitions(data.num_data):
        log_weights[labels] = log_partition_prior(labels, data, alpha, gamma, model.prior.stickiness)
        log_weights[labels] += float(log_emissions(torch.tensor(labels), data, model))
        log_weights[labels] += log_hyperplane_blocks(labels, data, model)
    probabilities = torch.tensor(list(log_weights.values()), dtype=torch.float64).softmax(0).tolist()
    return dict(zip(log_weights, probabilities, strict=True))


def draw_base(state, data, model, generator):
    """beta given the states, through tables."""
    fixed = model.prior.replace(concentration_prior=None, top_concentration_prior=None)
    counts = count_transitions(state.assignments, data.starts, len(state.weights))
    return fixed.draw(state.hyper, state.base, counts, generator)[1]


def chain(state, data, model, num_sweeps, shuffle):
    """Partitions after each of many scans; beta and all hyperplanes are drawn after every fourth, so that what a scan
    leaves of beta matters to the next."""
    generator, draws = torch.Generator().manual_seed(0), []
    nobody = torch.full((len(data.steps),), -1)
    for sweep in range(num_sweeps):
        state = direct.scan(state, data, model, generator, shuffle=shuffle)
        if sweep % 4 == 0:
            state = replace(state, base=draw_base(state, data, model, generator))
        if sweep % 4 == 0 and model.repels:
            features, own = data.points.features, state.assignments[data.steps]
            scored = partial(RepellingHyperplanes, features, model.loss, model.weight_scale)
            weights = scored(own).draw(state.weights, generator)
            reservoir = scored(nobody).draw(state.reservoir, generator)
            state = replace(state, weights=weights, reservoir=reservoir)
        draws.append(first_appearance(state.assignments.tolist()))
    return draws


@pytest.mark.parametrize("stickiness", [0.0, 0.4])
@pytest.mark.parametrize("lengths", [[4], [2, 3], [1, 1, 2]])
def test_partition_prior_sums_to_one(lengths, stickiness):
    data = IHMM().prepare(rows(DiagonalGaussian, sum(lengths)), lengths=lengths)[1]
    total = sum(math.exp(log_partition_prior(z, data, 1.3, 0.7, stickiness)) for z in partitions(data.num_data))
    assert abs(total - 1) < 1e-12


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("lengths", "missing", "stickiness", "shuffle"),
    [([4], [], 0.0, True), ([3, 1], [2], 0.4, False), ([2, 2], [0, 3], 0.3, True)],
)
def test_partitions_have_their_exact_probabilities(lengths, missing, stickiness, shuffle):
    X = torch.tensor([[-1.0], [0.2], [1.4], [-0.3]], dtype=torch.float64)
    X[missing] = NAN
    family = SphericalGaussian(loc=0.0, variance=1.0, prior_variance=1.0)
    model, data = IHMM(family, prior=sticky(stickiness)).prepare(X, lengths=lengths)
    state = start(torch.zeros(4, dtype=torch.long), data, model, alpha=1.5, gamma=1.2)
    draws = chain(state, data, model, by_day(4000, 2), shuffle)
    assert frequency_errors(draws, exact_probabilities(data, model, 1.5, 1.2), num_batches=20).max() < 5


@pytest.mark.nightly
@pytest.mark.slow
def test_partitions_of_an_autoregression_have_their_exact_probabilities():
    """Steps 0, 3 and 4 have no row before them."""
    X = torch.tensor([[-1.0], [1.2], [-0.9], [NAN], [0.4], [1.1]], dtype=torch.float64)
    family = LinearRegression(loc=0.0, coefficient_precision=0.5, degrees_of_freedom=4.0, scale=0.4)
    model, data = IHMM(family, prior=sticky(0.2), lags=1).prepare(X, lengths=[3, 3])
    assert data.steps.tolist() == [1, 2, 5]
    state = start(torch.zeros(6, dtype=torch.long), data, model, alpha=1.5, gamma=1.2)
    draws = chain(state, data, model, 6000, True)
    assert frequency_errors(draws, exact_probabilities(data, model, 1.5, 1.2), num_batches=20).max() < 5


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("loss", [Hinge(0.5), Logistic()], ids=["DIH-S", "DIH-L"])
def test_partitions_with_hyperplanes_have_their_exact_probabilities(loss):
    X = torch.tensor([[-1.2], [0.3], [1.4], [NAN]], dtype=torch.float64)
    family = SphericalGaussian(loc=0.0, variance=1.0, prior_variance=1.0)
    model = DIH(family, loss=loss, prior=sticky(0.2), feature_map=PrincipalDirections(intercept=0.0), weight_scale=1.5)
    model, data = model.prepare(X, lengths=[1, 3])
    state = start(torch.zeros(4, dtype=torch.long), data, model, alpha=1.5, gamma=1.2, num_reserved=4)
    draws = chain(state, data, model, by_day(2000, 2), True)
    assert frequency_errors(draws, exact_probabilities(data, model, 1.5, 1.2), num_batches=20).max() < 5
