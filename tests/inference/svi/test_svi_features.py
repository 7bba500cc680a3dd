"""Variational latent features: an independent objective in loops, exact evidence, minibatches, weights, files."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from loops import log_gamma_kl, loop_prior
from scipy.optimize import minimize

from regbayes.inference import SVI
from regbayes.inference.bits.rows import Settle, _in_turn
from regbayes.inference.svi.features import factors, growth, margins
from regbayes.inference.svi.features import kernel as features
from regbayes.inference.svi.rules import RULES
from regbayes.models import BetaBernoulli, IndianBuffetProcess, InfiniteLatentSVM, LatentFeatureModel
from regbayes.models.likelihoods import Blocks, LinearBernoulli, LinearGaussian
from regbayes.models.losses import CrammerSinger, EpsilonInsensitive, Hinge, Logistic, SquaredHinge

PRIORS = [IndianBuffetProcess(1.5), BetaBernoulli(1.5, (2.0, 1.0))]
CASES = [
    ("averaging", Hinge(1.2, 0.8)),
    ("averaging", CrammerSinger(0.8)),
    ("averaging", Logistic()),
    ("averaging", EpsilonInsensitive(1.0, 0.2)),
    ("averaging", SquaredHinge(0.4)),
    ("gibbs", Hinge(0.8)),
    ("gibbs", Logistic()),
    ("gibbs", EpsilonInsensitive(0.7, 0.1)),
]
IDS = [f"{rule}-{type(loss).__name__}" for rule, loss in CASES]


def problem(likelihood, loss, prior, *, N=7, D=3, K=3, L=3, seed=0, missing=False, weights=None, dtype=torch.float64):
    """(model, data), resolved."""
    generator = torch.Generator().manual_seed(seed)
    Z = torch.rand(N, 2, generator=generator, dtype=dtype).round()
    X = Z @ torch.randn(2, D, generator=generator, dtype=dtype) * 1.5
    X = X + 0.5 * torch.randn(N, D, generator=generator, dtype=dtype)
    scores = 2 * Z @ torch.randn(2, L, generator=generator, dtype=dtype)
    scores = scores + 0.3 * torch.randn(N, L, generator=generator, dtype=dtype)
    y = scores[:, 0] if loss.target == "real" else scores.argmax(1)
    if loss.target != "real":
        y[:L] = torch.arange(L)
    if isinstance(likelihood, LinearBernoulli):
        X = (X > 0).to(dtype)
    elif isinstance(likelihood, Blocks):
        X[:, 2:] = (X[:, 2:] > 0).to(dtype)
    if missing:
        y = y.to(dtype)
        X[0, 0], X[1, 2], y[-1] = torch.nan, torch.nan, torch.nan
    model = InfiniteLatentSVM(likelihood, loss, prior, truncation=K, weight_scale=1.3, feature_map=None)
    return model.prepare(X, y, weights=weights)


def climbed(model, data, rule, num_sweeps=2):
    state = features.init(model, data, torch.Generator().manual_seed(1), rule=rule)
    for _ in range(num_sweeps):
        state = features.sweep(state, data, model, rule=rule)
    return state


def bound_of(state, data, model, rule) -> float:
    return float(features.with_bound(state, data, model, factors.gather(state, data, model), rule).bound)


# -- the bound against loops -------------------------------------------------------------------------------------------


def loop_entry(x, mean, square, h, kind, offset) -> float:
    """(A bound of) E log p(x | m)."""
    if kind == "gaussian":
        error = (x - offset) ** 2 - 2 * (x - offset) * mean + square
        return (h["log_noise"] - math.log(2 * math.pi) - h["noise"] * error) / 2
    size = math.sqrt(square + 2 * offset * mean + offset**2)
    return (x - 0.5) * (mean + offset) - math.log(2 * math.cosh(size / 2))


def gammas(state, data, model) -> dict[str, float]:
    laws = factors.learned(state, model)
    found = {}
    for (name, law), (shape, rate) in zip(laws.items(), state.precisions.tolist(), strict=True):
        found[name] = shape / rate
        found[f"log_{name}"] = float(torch.digamma(torch.tensor(shape, dtype=torch.float64))) - math.log(rate)
        found[f"kl_{name}"] = log_gamma_kl(shape, rate, float(law.concentration), float(law.rate))
    return found


def loop_bound(state, data, model, rule_name) -> float:
    """The bound of a model of one Gaussian or binary likelihood, entry by entry."""
    kind = "gaussian" if isinstance(model.likelihood, LinearGaussian) else "binary"
    found = gammas(state, data, model)
    h = {"noise": found.get("noise_precision", 0.0), "log_noise": found.get("log_noise_precision", 0.0)}
    loading, log_loading = found["loading_precision"], found["log_loading_precision"]
    psi, phi, mu = state.features, state.loadings, state.weights
    (N, K), D = psi.shape, data.X.shape[1]
    S = torch.linalg.inv(state.loading_tril @ state.loading_tril.mT)[state.kind]
    log_pi, without, total = loop_prior(model.prior, state.a, state.b, state.concentration)
    total -= sum(value for name, value in found.items() if name.startswith("kl_"))
    for d in range(D):
        square = float(phi[:, d] @ phi[:, d] + S[d].trace())
        total += (K * log_loading - loading * square + K + float(torch.logdet(S[d]))) / 2
    offset = model.likelihood.offset.expand(D).tolist()
    for n in range(N):
        row = 0.0
        for k in range(K):
            p = float(psi[n, k])
            row += p * log_pi[k] + (1 - p) * without[k]
            row -= sum(q * math.log(q) for q in (p, 1 - p) if q > 0)
        second = torch.outer(psi[n], psi[n])
        second[range(K), range(K)] = psi[n]
        for d in range(D):
            if data.observed is None or data.observed[n, d] > 0:
                mean = float(psi[n] @ phi[:, d])
                square = float((second * (torch.outer(phi[:, d], phi[:, d]) + S[d])).sum())
                row += loop_entry(float(data.X[n, d]), mean, square, h, kind, offset[d])
        inputs = torch.cat([psi[n], data.inputs[n]])
        moment = torch.outer(inputs, inputs)
        moment[range(K), range(K)] = psi[n]
        score = inputs @ mu
        if rule_name == "averaging":
            row += float(model.loss.log_factor(score.unsqueeze(0), data.targets[n : n + 1]).sum())
        else:
            V = torch.linalg.inv(state.weights_tril @ state.weights_tril.mT)
            square = torch.stack([(moment * (torch.outer(m, m) + v)).sum() for m, v in zip(mu.T, V, strict=True)])
            variance = (square - score.square()).unsqueeze(0)
            row += float(model.loss.expected_log_factor(score.unsqueeze(0), variance, data.targets[n : n + 1]).sum())
        total += row * float(data.row_weights[n])
    nu = model.weight_scale
    if rule_name == "averaging":
        return total - float(mu.square().sum()) / (2 * nu**2)
    for m, tril in zip(mu.T, state.weights_tril, strict=True):
        V = torch.linalg.inv(tril @ tril.T)
        prior = torch.distributions.MultivariateNormal(torch.zeros_like(m), nu**2 * torch.eye(len(m)).to(m))
        q = torch.distributions.MultivariateNormal(m, V)
        total -= float(torch.distributions.kl_divergence(q, prior))
    return total


@pytest.mark.one_in(5)
@pytest.mark.parametrize("missing", [False, True], ids=["whole", "missing"])
@pytest.mark.parametrize("prior", PRIORS, ids=["stick", "beta"])
@pytest.mark.parametrize("likelihood", [LinearGaussian(), LinearBernoulli()], ids=["gaussian", "binary"])
@pytest.mark.parametrize(("rule_name", "loss"), [CASES[1], CASES[3], CASES[5]], ids=[IDS[1], IDS[3], IDS[5]])
def test_the_bound_is_that_of_loops(rule_name, loss, likelihood, prior, missing) -> None:
    weights = torch.tensor([1.0, 2.5, 0.5, 1.0, 3.0, 1.0, 0.7]) if missing else None
    model, data = problem(likelihood, loss, prior, missing=missing, weights=weights)
    rule = RULES[rule_name]
    state = climbed(model, data, rule, 1)
    assert float(state.bound) == pytest.approx(loop_bound(state, data, model, rule_name), rel=1e-10)


def test_the_bound_of_a_single_binary_row_is_that_of_loops() -> None:
    """Its pseudo-observations are [1, D], as those of Gaussian rows are."""
    model, data = problem(LinearBernoulli(), *CASES[1][1:], PRIORS[0])
    one, rule = data.rows(torch.tensor([2])), RULES[CASES[1][0]]
    state = climbed(model, one, rule, 1)
    assert float(state.bound) == pytest.approx(loop_bound(state, one, model, CASES[1][0]), rel=1e-10)


# -- each update is where the bound is highest -------------------------------------------------------------------------


def blocks_of(state, data, model, rule) -> dict:
    return {
        "features": lambda s: factors.update_features(s, data, model, partial(margins.MARGINS[rule], s, data, model)),
        "loadings": lambda s: factors.update_loadings(s, factors.gather(s, data, model), model),
        "precisions": lambda s: factors.update_precisions(s, data, model, factors.gather(s, data, model)),
        "sticks": lambda s: factors.update_sticks(s, data, model, factors.gather(s, data, model)),
        "classifiers": lambda s: features.update_classifiers(s, data, model, rule),
    }


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("rule_name", "loss"), CASES, ids=IDS)
def test_no_block_lowers_the_bound(rule_name, loss) -> None:
    for index, likelihood in enumerate(
        [LinearGaussian(), LinearBernoulli(), Blocks([(LinearGaussian(), 2), (LinearBernoulli(), 1)])]
    ):
        rule = RULES[rule_name]
        model, data = problem(likelihood, loss, PRIORS[index % 2], N=14, K=4, missing=index == 1, seed=index)
        state = climbed(model, data, rule, 0)
        bound = float(state.bound)
        for _ in range(4):
            for name, block in blocks_of(state, data, model, rule).items():
                state = block(state)
                new = bound_of(state, data, model, rule)
                assert new >= bound - 1e-9 * abs(bound), f"{name} lowered the bound by {bound - new}"
                bound = new


def shifted(state, name, direction, step):
    """The state with a field moved: probabilities on the scale of their logits."""
    value = getattr(state, name)
    if name == "features":
        return replace(state, features=(torch.logit(value) + step * direction).sigmoid())
    return replace(state, **{name: value + step * direction})


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("rule_name", "loss"), [CASES[2], CASES[0], CASES[5]], ids=[IDS[2], IDS[0], IDS[5]])
@pytest.mark.parametrize("prior", PRIORS, ids=["stick", "beta"])
def test_each_update_is_stationary(rule_name, loss, prior) -> None:
    rule, generator = RULES[rule_name], torch.Generator().manual_seed(3)
    model, data = problem(LinearGaussian(), loss, prior, N=9, K=3, missing=True)
    state = climbed(model, data, rule, 1)
    # an update at fixed auxiliary variables moves towards the optimum: let each settle
    fields = {"features": ["features"], "loadings": ["loadings", "loading_tril"], "precisions": ["precisions"]}
    fields |= {"sticks": ["a", "b", "concentration"], "classifiers": ["weights"] if rule_name == "gibbs" else []}
    for block, names in fields.items():
        for _ in range(60 if names else 0):
            state = blocks_of(state, data, model, rule)[block](state)
        best = bound_of(state, data, model, rule)
        for name in names:
            value = getattr(state, name)
            direction = torch.randn(value.shape, generator=generator, dtype=value.dtype)
            if name == "loading_tril":
                direction = direction.tril()
            if name == "concentration" and model.prior.concentration_prior is None:
                continue
            up, down = (bound_of(shifted(state, name, direction, step), data, model, rule) for step in (1e-5, -1e-5))
            if block == "features" and rule_name == "averaging" and not isinstance(loss, Logistic):
                assert max(up, down) <= best + 1e-9, name  # it may lie on a kink
            else:
                assert abs(up - down) / 2e-5 < 2e-4, name
                assert up + down - 2 * best < 1e-9, name


@pytest.mark.parametrize("loss", [CASES[0][1], CASES[1][1], CASES[3][1]], ids=[IDS[0], IDS[1], IDS[3]])
def test_compiled_margins_are_those_of_halving(loss) -> None:
    model, data = problem(LinearGaussian(), loss, PRIORS[0], N=140, K=9, missing=True)
    generator = torch.Generator().manual_seed(0)
    like = {"generator": generator, "dtype": torch.float64}
    psi, slope = torch.rand(9, 140, **like), 1.5 * torch.randn(9, data.targets.shape[1], **like)
    scores, logits = torch.randn(140, data.targets.shape[1], **like), 3 * torch.randn(9, 140, **like)
    coupling = torch.randn(9, 9, **like)
    coupling = coupling @ coupling.T / 9
    found = []
    compiled = margins.compiled_margin(model.loss, data.targets, scores.clone(), slope)
    halving = Settle(partial(margins.halve, model.loss, data.targets, scores.clone(), slope))
    for visit in (compiled.block, partial(_in_turn, halving)):
        found.append(psi.clone())
        for shift in (0.0, 0.0, 0.3):  # from anywhere, then from an optimum, which may lie on a break, to one near it
            visit(slice(1, 9), logits[1:] + shift, coupling[1:, 1:].contiguous(), found[-1])
    torch.testing.assert_close(*found, rtol=0, atol=1e-8)
    alone = compiled.one(0, logits[0], found[0])
    assert torch.isfinite(alone).all()


# -- the bound and the evidence ----------------------------------------------------------------------------------------


def no_inputs(X):
    return X.new_zeros(len(X), 1)


def best_of_a_generic_optimizer(model, data, num_starts=3) -> float:
    """The highest bound that quasi-Newton steps find from random starts, over all factors together."""
    rule, generator = RULES["gibbs"], torch.Generator().manual_seed(0)
    start = features.prior_state(model, data, rule)
    names = ["features", "a", "b", "loadings", "loading_tril", "weights", "weights_tril"]
    shapes = [getattr(start, name).shape for name in names]

    def minus_bound(flat: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.from_numpy(flat).requires_grad_()
        parts = [part.view(shape) for part, shape in zip(leaf.split([s.numel() for s in shapes]), shapes, strict=True)]
        psi, a, b, loadings, loading_tril, weights, weights_tril = parts
        trils = (
            tril.tril(-1) + tril.diagonal(dim1=1, dim2=2).exp().diag_embed() for tril in (loading_tril, weights_tril)
        )
        values = (psi.sigmoid(), a.exp(), b.exp(), loadings, next(trils), weights, next(trils))
        state = replace(start, **dict(zip(names, values, strict=True)))
        bound = features.with_bound(state, data, model, factors.gather(state, data, model), rule).bound
        (slope,) = torch.autograd.grad(-bound, leaf)
        return -float(bound.detach()), slope.numpy()

    starts = torch.randn(num_starts, sum(s.numel() for s in shapes), generator=generator, dtype=torch.float64)
    return max(-minimize(minus_bound, flat.numpy(), jac=True, options={"maxiter": 150}).fun for flat in starts)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("prior", [IndianBuffetProcess(1.5), BetaBernoulli(1.5)], ids=["stick", "beta"])
@pytest.mark.parametrize("loss", [Hinge(0.8), Logistic()], ids=["hinge", "logistic"])
def test_the_gibbs_rule_bounds_the_evidence(loss, prior) -> None:
    """The sum over all Z of p(Z) p(X | Z) times the integral over the classifier by a grid."""
    likelihood = LinearGaussian(0.0, noise_variance=0.5, loading_variance=1.5, learn=False)
    X = torch.tensor([[1.0, -0.5], [1.2, 0.1], [-0.8, 0.3], [0.2, -1.0]], dtype=torch.float64)
    y = torch.tensor([1, 1, 0, 0])
    model, data = InfiniteLatentSVM(likelihood, loss, prior, no_inputs, truncation=2).prepare(X, y)
    axis = torch.arange(-8, 8.01, 0.05, dtype=torch.float64)
    eta = torch.cartesian_prod(axis, axis)
    log_mass = 2 * math.log(0.05 / math.sqrt(2 * math.pi)) - eta.square().sum(1) / 2
    h, terms, scores = prior.start(X), [], [eta @ eta.new_tensor(pair) for pair in itertools.product([0, 1], repeat=2)]
    factors = [[model.loss.log_factor(score, target) for score in scores] for target in data.targets]
    for bits in itertools.product([0.0, 1.0], repeat=8):
        Z = torch.tensor(bits, dtype=torch.float64).view(4, 2)
        normal = torch.distributions.MultivariateNormal(X.new_zeros(4), 1.5 * Z @ Z.T + 0.5 * torch.eye(4).double())
        places = (2 * Z[:, 0] + Z[:, 1]).int().tolist()
        margin = (sum(own[place] for own, place in zip(factors, places, strict=True)) + log_mass).logsumexp(0)
        terms.append(prior.log_features(Z.sum(0), 4, h) + normal.log_prob(X.T).sum() + margin)
    evidence = float(torch.stack(terms).logsumexp(0))
    bound = SVI(num_steps=60, num_restarts=4, tolerance=None).fit(model, X, y).trace.final.max()
    assert best_of_a_generic_optimizer(model, data) - 1e-6 < float(bound) <= evidence


# -- rows that count, rows in batches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule_name", ["averaging", "gibbs"])
@pytest.mark.parametrize("likelihood", [LinearGaussian(), LinearBernoulli()], ids=["gaussian", "binary"])
def test_a_row_of_weight_3_is_three_rows(rule_name, likelihood) -> None:
    rule, weights = RULES[rule_name], torch.tensor([1.0, 3.0, 2.0, 1.0, 1.0, 1.0, 4.0])
    model, once = problem(likelihood, Hinge(0.7), PRIORS[1])
    index = torch.arange(7).repeat_interleave(weights.long())
    start = climbed(model, once, rule, 0)
    bounds = []
    for data, rows in ((replace(once, weights=weights), torch.arange(7)), (once.rows(index), index)):
        state = replace(start, features=start.features[rows], tilt=start.tilt[:0], row_weights=data.weights)
        assert state.total_weight == 13
        for _ in range(2):
            state = factors.update_features(state, data, model, partial(margins.MARGINS[rule], state, data, model))
            state, _ = features.update_globals(state, data, model)
        if rule_name == "gibbs":  # an SVM is solved up to a gap
            state = features.update_classifiers(state, data, model, rule)
        bounds.append(bound_of(state, data, model, rule))
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-11)


def test_entries_all_observed_are_entries_of_which_none_is_missing() -> None:
    model, data = problem(LinearGaussian(), Hinge(), PRIORS[0])
    rule = RULES["gibbs"]
    start, values = climbed(model, data, rule, 0), []
    for own in (data, replace(data, observed=torch.ones_like(data.X))):
        state = features.sweep(start, own, model, rule=rule)
        values.append((state.features, state.loadings, state.precisions, state.bound))
    for one, two in zip(*values, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


# -- through the backend -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule_name", ["averaging", "gibbs"])
def test_float32_climbs(rule_name) -> None:
    model, data = problem(LinearGaussian(), Hinge(), PRIORS[0], N=40, D=5, K=4, dtype=torch.float32)
    rule = RULES[rule_name]
    state = climbed(model, data, rule, 0)
    for _ in range(6):
        before, state = state, features.sweep(state, data, model, rule=rule)
        assert state.bound >= before.bound - 1e-5 * abs(before.bound)
    assert state.features.dtype == state.loadings.dtype == state.weights.dtype == torch.float32


def rows_of_bits(num_rows: int = 200, seed: int = 0, weights=None):
    """(model, data) without labels: three bits of ten columns, some entries missing."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.rand(num_rows, 3, generator=generator).round()
    X = bits @ (3 * torch.randn(3, 10, generator=generator)) + 0.3 * torch.randn(num_rows, 10, generator=generator)
    X[::17, 3] = torch.nan
    return bits, *LatentFeatureModel(truncation=12).prepare(X.double(), weights=weights)


def grown_of(model, data, seed=1):
    state = features.prior_state(model, data, RULES["gibbs"])
    return growth.grown(state, data, model, torch.Generator().manual_seed(seed))


def test_features_open_as_long_as_the_bound_rises() -> None:
    """Few of the truncation; a bound far above that from random features; bits as they are, or their complements."""
    agreements = []
    for seed in range(4):
        truth, model, data = rows_of_bits(seed=seed)
        state = grown_of(model, data)
        found = state.features > 0.5
        assert 3 <= int(found.any(0).sum()) <= 7
        agree = (found.unsqueeze(2) == (truth > 0.5).unsqueeze(1)).double().mean(0)
        agreements.append(float(torch.maximum(agree, 1 - agree).amax(0).mean()))
        generator = torch.Generator().manual_seed(1)
        scattered = torch.rand(state.features.shape, generator=generator, dtype=torch.float64).round()
        other = replace(features.prior_state(model, data, RULES["gibbs"]), features=0.1 + 0.8 * scattered)
        for _ in range(30):
            other, _ = factors.update_globals(other, data, model)
            other = factors.update_features(other, data, model, None)
        assert float(state.bound) > bound_of(other, data, model, RULES["gibbs"]) + 100
    assert sum(agreements) / len(agreements) > 0.9


def test_weights_open_the_features_of_repeated_rows() -> None:
    times = torch.randint(1, 4, (200,), generator=torch.Generator().manual_seed(2)).double()
    _, model, data = rows_of_bits(weights=times)
    rows = data.rows(torch.arange(200).repeat_interleave(times.long()))
    repeated = replace(rows, weights=None)
    once, again = grown_of(model, data), grown_of(model, repeated)
    torch.testing.assert_close(again.features, once.features.repeat_interleave(times.long(), 0), rtol=0, atol=1e-6)
    torch.testing.assert_close(again.bound, once.bound)


def test_with_classifiers_all_features_start_at_random() -> None:
    """The truncation is for labels to choose from; without classifiers what the entries do not bear stays unused."""
    model, data = problem(LinearGaussian(), Hinge(0.8), PRIORS[0], N=40, K=8)
    bare = replace(data, targets=data.targets[:, :0])
    spread, rest = (
        features.init(model, each, torch.Generator().manual_seed(1), rule=RULES["gibbs"]).features.std(0).sort().values
        for each in (data, bare)
    )
    assert spread[0] > 1e-3 > rest[2]
