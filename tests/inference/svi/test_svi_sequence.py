"""Variational inference of state sequences: bounds, enumerated paths, blocks of one long sequence, minibatches."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from setups import climbed
from torch.distributions import Beta, Dirichlet, Gamma
from variational import elbo, purity, sequence_problem, sequence_rows, states_of, walk

from regbayes.inference import SVI
from regbayes.inference.classifiers.natural import BothSides
from regbayes.inference.svi import factors
from regbayes.inference.svi.sequence import climb
from regbayes.inference.svi.sequence import kernel as sequence
from regbayes.inference.svi.sequence import rows as hierarchy
from regbayes.models import DIH, IHMM, HierarchicalDirichletProcess, PrincipalDirections
from regbayes.models.likelihoods import PoissonGamma
from regbayes.models.losses import Hinge, Logistic
from regbayes.testing.sequences import log_state_evidence

MODELS = [IHMM(), DIH(loss=Hinge()), DIH(loss=Logistic())]
FIXED = HierarchicalDirichletProcess(1.5, None, 2.0, None)
LEARNED = HierarchicalDirichletProcess(1.0, (2.0, 1.0), 1.0, (3.0, 2.0))


@pytest.fixture
def stream() -> torch.Generator:
    """For what need not run on every device."""
    return torch.Generator().manual_seed(0)


def name_of(model) -> str:
    return "IHMM" if isinstance(model, IHMM) else "DIH" + type(model.loss).__name__


def row_means_of(beta: torch.Tensor, stickiness: float) -> torch.Tensor:
    """b [S, T + 1, T] of beta [S, T]."""
    T = beta.shape[1]
    own = torch.eye(T, dtype=beta.dtype)
    return torch.cat([(1 - stickiness) * beta.unsqueeze(1) + stickiness * own, beta.unsqueeze(1)], 1)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=name_of)
def test_sweeps_with_merges_and_reordering_climb(model, stream) -> None:
    model, data = sequence_problem(model, stream, lengths=(60, 90), truncation=7)
    state, bounds = sequence.init(model, data, stream), []
    for _ in range(60):
        state = sequence.sweep(state, data, model)
        bounds.append(state.bound)
        torch.testing.assert_close(state.responsibilities.sum(1), torch.ones_like(state.responsibilities[:, 0]))
    bounds = torch.stack(bounds)
    assert (bounds.diff() >= -1e-9 * bounds.abs().max()).all()
    assert not state.may_merge
    assert (state.responsibilities.sum(0) > 0.5).sum() <= 4


def test_states_are_reordered_only_if_the_bound_rises(stream) -> None:
    model, data = sequence_problem(
        MODELS[1], stream, lengths=(60, 40), prior=HierarchicalDirichletProcess(stickiness=0.3)
    )
    state = climbed(sequence, model, data, stream, 5)
    order = torch.tensor([4, 1, 3, 2, 0])
    shuffled = state.permuted(order)
    kept, sorted_ = hierarchy.update_rows(shuffled, model.prior), shuffled.reordered(model)
    gain = elbo(sorted_, data, model) - elbo(kept, data, model)
    assert gain > 0.1
    # the same posterior under other names
    counts, order = state.transitions.sum(0).sort(descending=True)
    torch.testing.assert_close(sorted_.transitions.sum(0), counts)
    torch.testing.assert_close(sorted_.transitions[:-1], state.transitions[:-1][order][:, order])
    torch.testing.assert_close(sorted_.mean, state.mean[order])
    for name in ("gram", "linear"):
        torch.testing.assert_close(getattr(sorted_, name), getattr(state, name)[order])
    torch.testing.assert_close(sorted_.responsibilities, state.responsibilities[:, order])


# -- enumerated paths --------------------------------------------------------------------------------------------------


def paths_of(lengths: list[int], T: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All paths z [G, N], and their transitions [G, T + 1, T]."""
    z = torch.tensor(list(itertools.product(range(T), repeat=sum(lengths))))
    one_hot = torch.nn.functional.one_hot(z, T).double()
    counts = torch.zeros(len(z), T + 1, T, dtype=torch.float64)
    begin = 0
    for length in lengths:
        own = one_hot[:, begin : begin + length]
        counts[:, T] += own[:, 0]
        counts[:, :T] += torch.einsum("gtj,gtk->gjk", own[:, :-1], own[:, 1:])
        begin += length
    return z, counts


@pytest.mark.parametrize("model", MODELS, ids=name_of)
def test_paths_and_bound_are_those_of_enumeration(model, device, generator) -> None:
    T, lengths = 3, [4, 1, 2]
    X = sequence_rows(7, generator)
    X[3] = 1.0  # leaves two missing rows
    model, data = model.replace(truncation=T, prior=HierarchicalDirichletProcess(stickiness=0.2)).prepare(
        X, None, lengths
    )
    state = climbed(sequence, model, data, generator, 2)
    state = factors.allocate(factors.update_factors(state, data, model), data, model)
    z, counts = (table.to(device) for table in paths_of(lengths, T))
    sides = BothSides.expect(data.points.features, state.classifiers, data.points.targets, model.loss)
    emission = data.spread(model.likelihood.expected_log_density(data.X, state.hyperparameters) + sides.gain)
    log_rows = torch.digamma(state.rows) - torch.digamma(state.rows.sum(1, keepdim=True))
    steps = torch.arange(7, device=device)
    log_weights = emission[steps, z].sum(1) + (counts * log_rows).sum((1, 2))
    q = log_weights.softmax(0)
    torch.testing.assert_close(state.transitions, torch.einsum("g,gjk->jk", q, counts))
    one_hot = torch.nn.functional.one_hot(z, T).double()
    torch.testing.assert_close(state.responsibilities, torch.einsum("g,gtk->tk", q, one_hot))
    torch.testing.assert_close(state.entropy, torch.special.entr(q).sum())
    bound = log_weights.logsumexp(0) + sides.rejection.sum() - factors.kl(state, model)
    torch.testing.assert_close(state.bound, bound, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(elbo(state, data, model), bound, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("stickiness", [0.0, 0.4])
@pytest.mark.parametrize("prior", [FIXED, LEARNED], ids=["fixed", "learned"])
def test_bound_of_the_hierarchy_against_draws_from_q(prior, stickiness, stream) -> None:
    """Its terms are an expectation under q: draws of (beta, alpha, gamma, pi), with the surrogate normalizer."""
    T, S = 3, 200_000
    model, data = sequence_problem(IHMM(), stream, prior=prior.replace(stickiness=stickiness), truncation=T)
    state = climbed(sequence, model, data, stream, 2)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        laws = {
            "u": Beta(*state.sticks),
            "alpha": Gamma(*state.concentration),
            "gamma": Gamma(*state.top_concentration),
            "pi": Dirichlet(state.rows),
        }
        drawn = {name: q.sample((S,)) for name, q in laws.items()}
    terms = laws["u"].log_prob(drawn["u"]).sum(1) + laws["pi"].log_prob(drawn["pi"]).sum(1)
    for name in ("alpha", "gamma"):
        key = "concentration" if name == "alpha" else "top_concentration"
        if getattr(model.prior, f"{key}_prior") is None:
            drawn[name] = torch.full((S,), getattr(model.prior, key), dtype=torch.float64)
        else:
            before = Gamma(*torch.tensor(getattr(model.prior, f"{key}_prior"), dtype=torch.float64))
            terms = terms + laws[name].log_prob(drawn[name]) - before.log_prob(drawn[name])
    u, alpha = drawn["u"], drawn["alpha"].view(-1, 1, 1)
    rest = torch.cat([torch.ones(S, 1, dtype=torch.float64), (1 - u).cumprod(1)], 1)
    beta = torch.cat([u, torch.ones(S, 1, dtype=torch.float64)], 1) * rest
    means = row_means_of(beta, stickiness)
    terms = Beta(torch.ones_like(u), drawn["gamma"].unsqueeze(1)).log_prob(u).sum(1) - terms
    log_pi = drawn["pi"].log()
    terms = terms + (state.transitions * log_pi).sum((1, 2))
    exact = terms + Dirichlet(alpha * means).log_prob(drawn["pi"]).sum(1)
    log_surrogate = (T - 1) * alpha.log() + (means.log() + (alpha * means - 1) * log_pi).sum(2, keepdim=True)
    surrogate = terms + log_surrogate.sum((1, 2))
    assert (surrogate <= exact + 1e-9).all()
    bound, error = hierarchy.hierarchy_bound(state, model.prior), 5 * surrogate.std() / S**0.5
    assert bound <= surrogate.mean() + error
    if stickiness:  # Jensen's inequality costs a little more
        assert bound >= surrogate.mean() - error - 1.0
    else:
        assert bound >= surrogate.mean() - error


@pytest.mark.parametrize("stickiness", [0.0, 0.5])
@pytest.mark.parametrize("prior", [FIXED, LEARNED], ids=["fixed", "learned"])
def test_what_is_climbed_is_the_bound_with_the_best_rows(prior, stickiness, stream) -> None:
    """Up to a constant, and with its slopes by (a, b) of the sticks and the rate of q(alpha)."""
    prior, T = prior.replace(stickiness=stickiness), 5
    counts = 8 * torch.rand((T + 1, T), generator=stream, dtype=torch.float64)
    start = hierarchy.Hierarchy(**hierarchy.start_rows(counts, prior))
    given = climb.Given(counts.numpy(), float(start.concentration[0]), prior)
    gaps = []
    for _ in range(3):
        moved = 0.2 + 3 * torch.rand(2 * T - 1, generator=stream, dtype=torch.float64)
        if prior.concentration_prior is None:
            moved[-1] = start.concentration[1]
        free = moved.requires_grad_()
        concentration = torch.cat([start.concentration[:1], free[-1:]])
        state = replace(start, sticks=free[:-1].view(2, -1), concentration=concentration)
        expected = hierarchy.hierarchy_bound(hierarchy.followed(state, prior), prior)
        (slopes,) = torch.autograd.grad(expected, free)
        bound, found = climb.bound_and_slopes(free.detach().numpy(), given)
        gaps.append(float(expected.detach()) - bound)
        learned = slice(None) if prior.concentration_prior else slice(-1)  # a fixed alpha has no slope
        torch.testing.assert_close(torch.from_numpy(found)[learned], slopes[learned], rtol=1e-6, atol=1e-6)
        assert prior.concentration_prior or found[-1] == 0
    assert max(gaps) - min(gaps) < 1e-9


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("stickiness", [0.0, 0.5])
@pytest.mark.parametrize("prior", [FIXED, LEARNED], ids=["fixed", "learned"])
@pytest.mark.parametrize("model", MODELS, ids=name_of)
def test_bound_is_below_the_log_evidence(model, prior, stickiness, stream) -> None:
    X = torch.tensor([[-1.5], [-1.2], [1.4], [torch.nan], [1.0], [-0.9]], dtype=torch.float64)
    options = {"truncation": 2, "prior": prior.replace(stickiness=stickiness)}
    if model.repels:
        options["feature_map"] = PrincipalDirections(intercept=0.0)
    model, data = model.replace(**options).prepare(X, None, [4, 2])
    evidence = log_state_evidence(model, X, [4, 2], truncation=2)
    best = -torch.inf
    for _ in range(2):
        state = climbed(sequence, model, data, stream, 30)
        assert state.bound < evidence
        best = max(best, float(state.bound))
    assert evidence - best < (4.5 if model.repels else 3.5)


def test_no_moves_without_the_past_is_a_mixture_of_sequences_of_one_step(stream) -> None:
    """Sequences of length 1 use the start row alone; the others keep their prior."""
    model, data = sequence_problem(IHMM(prior=FIXED), stream, lengths=[1] * 30)
    state = climbed(sequence, model, data, stream)
    state = hierarchy.update_rows(state, model.prior)
    assert not state.transitions[:-1].any()
    expected = 1.5 * hierarchy.expected_row_means(state, model.prior)
    torch.testing.assert_close(state.rows[:-1], expected[:-1])
    torch.testing.assert_close(state.rows[-1], expected[-1] + state.responsibilities.sum(0))


# -- minibatches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS, ids=name_of)
def test_blocks_together_are_the_whole_sequence(model, device, generator) -> None:
    model, data = sequence_problem(model, generator, lengths=[95], spread=0.8)
    state = factors.update_factors(climbed(sequence, model, data, generator), data, model)
    whole = factors.allocate(state, data, model)
    target = factors.update_classifiers(factors.update_components(whole, data, model), model)
    errors = {}
    for buffer in (95, 20, 1):
        blocks = [sequence.block(data, index, 10, buffer) for index in range(10)]
        parts = [factors.allocate(state, block.data, model) for block in blocks]
        pairs = list(zip(parts, blocks, strict=True))
        own = torch.cat([part.responsibilities[block.data.owned] for part, block in pairs])
        errors[buffer] = float((own - whole.responsibilities).abs().max())
        if buffer < 95:
            continue
        torch.testing.assert_close(own, whole.responsibilities, rtol=0, atol=1e-11)
        counts = torch.stack([part.transitions for part in parts])
        torch.testing.assert_close(counts.sum(0), whole.transitions, rtol=1e-9, atol=1e-11)
        penalty = factors.kl(state, model)
        bound = sum(part.bound + penalty for part in parts) - penalty
        torch.testing.assert_close(bound, whole.bound, rtol=1e-11, atol=1e-9)
        # a path of the block that does not start the sequence says nothing of the start row
        other = replace(state, rows=torch.cat([state.rows[:-1], state.rows[-1:].flip(1) + 5.0]))
        middle = sequence.block(data, 5, 10, 1)
        one, two = (factors.allocate(version, middle.data, model) for version in (state, other))
        torch.testing.assert_close(one.responsibilities, two.responsibilities, rtol=0, atol=0)
        steps = [sequence.stochastic_sweep(state, block, model, 0.6) for block in blocks]
        mean = torch.stack([step.bound for step in steps]).mean()
        torch.testing.assert_close(mean, whole.bound, rtol=1e-11, atol=1e-9)
        at_once = sequence.stochastic_sweep(state, sequence.block(data, 0, 95, 0), model, 0.6)
        for read in (
            lambda state: state.hyperparameters,
            lambda state: state.transitions,
            lambda state: state.classifiers.natural[0],
            lambda state: state.classifiers.natural[1],
        ):
            mean = torch.stack([read(step) for step in steps]).mean(0)
            torch.testing.assert_close(mean, read(at_once), rtol=1e-7, atol=1e-7)
        chi = sum(
            factors.update_components(part, block.data, model).hyperparameters - model.likelihood.prior()
            for part, block in pairs
        )
        torch.testing.assert_close(chi + model.likelihood.prior(), target.hyperparameters)
        ridges = [factors.update_classifiers(part, model) for part in parts]
        for index in (0, 1):
            natural = [ridge.classifiers.natural[index] for ridge in ridges]
            empty = sequence.init(model, data, generator).classifiers.natural[index]
            mean = sum(value - empty for value in natural) + empty
            torch.testing.assert_close(mean, target.classifiers.natural[index], rtol=1e-8, atol=1e-9)
    assert errors[20] < 1e-4
    assert errors[1] > 10 * errors[20]


@pytest.mark.parametrize("size", [7, 30, 61])
@pytest.mark.parametrize("rest", [1e-3, 1e-4, 1e-300])
def test_blocks_together_are_the_whole_sequence_where_weights_underflow(rest, size, device, generator) -> None:
    """Far states against E log pi down to -1e300: borders fall before, at and after the steps that enter them."""
    like = {"generator": generator, "device": device, "dtype": torch.float64}
    X = torch.randn(120, 200, **like) + 6.0 * (torch.arange(120, device=device) // 30 % 2).unsqueeze(1)
    model, data = IHMM(prior=FIXED, truncation=4).prepare(X)
    state = sequence.init(model, data, generator)
    rows = torch.full_like(state.rows, rest)
    rows[0, 0], rows[-1, 0] = 100.0, 1.0
    state = replace(state, rows=rows)
    whole, penalty = factors.allocate(state, data, model), factors.kl(state, model)
    blocks = [sequence.block(data, index, size, 120) for index in range(-(-120 // size))]
    parts = [factors.allocate(state, block.data, model) for block in blocks]
    counts = torch.stack([part.transitions for part in parts]).sum(0)
    torch.testing.assert_close(counts, whole.transitions, rtol=0, atol=1e-9)
    for part, block in zip(parts, blocks, strict=True):
        torch.testing.assert_close(
            part.responsibilities[block.data.owned], whole.responsibilities[block.data.owned], rtol=0, atol=1e-9
        )
    log_normalizer = sum(part.bound + penalty for part in parts)
    torch.testing.assert_close(log_normalizer, whole.bound + penalty, rtol=1e-9, atol=0)


def test_every_block_is_drawn_and_scaled(stream) -> None:
    _, data = sequence_problem(IHMM(), stream, lengths=[95])
    drawn = [sequence.minibatch(data, 30, stream) for _ in range(40)]
    assert {(batch.data.num_data, batch.data.owned.start, batch.data.owned.stop) for batch in drawn} == {
        (50, 0, 30),
        (70, 20, 50),
        (55, 20, 50),
        (25, 20, 25),
    }
    assert all(batch.scale == 4 for batch in drawn)
    assert all(batch.data.at_start == (batch.data.owned.start == 0) for batch in drawn if batch.data.num_data != 70)
    points = {len(batch.data.steps) for batch in drawn}
    assert max(points) < 70  # missing rows stay missing
    several = sequence.minibatch(sequence_problem(IHMM(), stream, lengths=[20, 30, 40])[1], 2, stream)
    assert several.scale == 1.5
    assert len(several.data.lengths) == 2


def test_first_steps_stand_for_all(stream) -> None:
    model, data = sequence_problem(IHMM(), stream, lengths=[95])
    first = sequence.first_steps(data, 50, stream)
    assert first.lengths == [5] * 10
    begins = [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    whole = data.spread(data.X)
    torch.testing.assert_close(first.spread(first.X), torch.cat([whole[begin : begin + 5] for begin in begins]))
    state = climbed(sequence, model, first, stream)
    start = sequence.extrapolate(state, first, model, 95, 1)
    statistics = model.likelihood.weighted_statistics(first.X, state.responsibilities[first.steps])
    torch.testing.assert_close(start.hyperparameters, model.likelihood.prior() + 1.9 * statistics)
    torch.testing.assert_close(start.transitions.sum(1)[-1], torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(start.transitions[:-1], 1.9 * state.transitions[:-1])
    assert sequence.first_steps(data, 95, stream) is data
    _, several = sequence_problem(IHMM(), stream, lengths=[20, 30, 40])
    assert sequence.first_steps(several, 45, stream).num_data >= 45


# -- through the backend -----------------------------------------------------------------------------------------------


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("lengths", "batch_size"), [(None, None), ([300, 500], None), (None, 100), ([100] * 8, 3)], ids=str
)
@pytest.mark.parametrize("model", [MODELS[0], MODELS[2]], ids=name_of)
def test_fits_find_the_states(model, lengths, batch_size, stream) -> None:
    X, states = walk([800], stream)
    model = model.replace(truncation=8)
    backend = SVI(num_steps=15, batch_size=batch_size, num_full_steps=3, progress=False)
    posterior = backend.fit(model, X, lengths=lengths)
    assert purity(posterior.partition(), states) > 0.97
    samples = posterior.samples
    assert samples["assignments"].shape == (1, 800)
    assert samples["responsibilities"].shape == (1, 800, 8)
    assert samples["log_transitions"].shape == (1, 8, 9)
    for name in ("log_start", "log_transitions", "log_mixture"):
        assert (samples[name][..., -1] == -torch.inf).all()
        torch.testing.assert_close(samples[name].exp().sum(-1), torch.ones_like(samples[name][..., 0]))
    used = torch.unique(samples["assignments"]).long()
    stays = samples["log_transitions"][0].exp().diagonal()[used]
    assert ((stays > 0.85) & (stays < 0.98)).all()  # 0.933 in truth
    assert posterior.trace.final > -2.2 * 2 * 800
    if batch_size is None:
        assert (posterior.trace.values[0].diff() >= -1e-6)[: len(posterior.trace.values[0]) - 1].all()


@pytest.mark.slow
def test_counts_and_single_precision(stream) -> None:
    states = states_of(200, stream)
    X = torch.poisson(torch.tensor([[1.0, 12.0], [12.0, 1.0], [9.0, 9.0]])[states], generator=stream)
    posterior = SVI(progress=False).fit(
        DIH(PoissonGamma(), truncation=6, feature_map=PrincipalDirections(proportions=True)), X, lengths=[50, 150]
    )
    assert posterior.samples["weights"].dtype == posterior.samples["log_transitions"].dtype == torch.float32
    values = posterior.trace.values[0]
    assert (values.diff() >= -1e-3).all()
    assert purity(posterior.partition(), states) > 0.9
