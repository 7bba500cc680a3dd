"""Pyro's own engines on label sets, sequences and features: what they draw given the sites is what programs say."""

from __future__ import annotations

import itertools
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from scipy.sparse import csr_matrix
from setups import LaplaceLocation, by_day, frequency_errors, is_latent, last_step, log_density
from torch import Tensor

from regbayes.inference import NUTS, Autoguide, Gibbs, TruncationWarning
from regbayes.inference.pyro_engines import features, multi_label, sequence
from regbayes.models import (
    BNMC,
    DIH,
    IHMM,
    BernoulliBeta,
    BetaBernoulli,
    Blocks,
    CrammerSinger,
    DirichletProcess,
    EpsilonInsensitive,
    HierarchicalDirichletProcess,
    Hinge,
    IndianBuffetProcess,
    InfiniteLatentSVM,
    LatentFeatureModel,
    LinearBernoulli,
    LinearGaussian,
    Logistic,
    MultinomialDirichlet,
    PrincipalDirections,
    SphericalGaussian,
    Standardized,
)
from regbayes.models.distributions.bits import Bits
from regbayes.testing import check_kernel
from regbayes.testing.features import log_feature_evidence
from regbayes.testing.references import reference_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:All . components are occupied"),
    pytest.mark.filterwarnings("ignore:All 2 features are in use"),
]

NONE = torch.nan
X = torch.tensor([[-1.2], [-0.3], [0.4], [1.6]], dtype=torch.float64)
BITS = torch.tensor([[1, 0], [NONE, 1], [0, 0], [1, 1]], dtype=torch.float64)
COUNTS = torch.tensor([[2, 0], [1, 1], [0, 3], [0, 0]], dtype=torch.float64)
STEPS = torch.tensor([[-0.9], [NONE], [0.8], [1.1], [-0.5]], dtype=torch.float64)
LENGTHS = [3, 2]
FAMILY = SphericalGaussian(variance=0.5)
ONE_FEATURE: Any = {"feature_map": Standardized(intercept=0.0), "truncation": 2}
WITH_LAW = DirichletProcess(concentration_prior=(2.0, 1.0))
STICKY = HierarchicalDirichletProcess(concentration=1.5, top_concentration_prior=(2.0, 1.0), stickiness=0.3)
ROWS = torch.tensor([[0.9, -0.4], [1.1, 0.3], [-1.0, 0.2]], dtype=torch.float64)
BINARY = torch.tensor([[1.0, 0.0], [0.0, NONE], [1.0, 1.0]], dtype=torch.float64)
FIXED = LinearGaussian(offset=0.0, noise_variance=0.3, loading_variance=1.0, learn=False)
LAW: Any = {"concentration_prior": (2.0, 1.0)}
MIXED = Blocks([(LinearGaussian(), 2), (LinearBernoulli(), 2)])
CLASSES = torch.tensor([0, 1, 1])
LABELS: dict[str, tuple[Any, tuple[Any, ...]]] = {  # and what `prepare` takes
    "product": (BNMC(FAMILY, loss=Hinge(0.8), prior=WITH_LAW, **ONE_FEATURE), (X, BITS)),
    "product of counts": (BNMC(FAMILY, MultinomialDirichlet(), **ONE_FEATURE), (X, COUNTS)),
    "and": (BNMC(FAMILY, BernoulliBeta(1.0, 2.0), prior=WITH_LAW, joint="and", **ONE_FEATURE), (X, BITS)),
    "multinomial": (BNMC(FAMILY, MultinomialDirichlet(1.0), joint="multinomial", **ONE_FEATURE), (X, COUNTS)),
}
STATES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "states": (IHMM(FAMILY, STICKY, truncation=2), (STEPS, None, LENGTHS)),
    "states that repel": (DIH(FAMILY, Logistic(), STICKY, weight_scale=2.0, truncation=2), (STEPS, None, LENGTHS)),
}
FEATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "features alone": (LatentFeatureModel(FIXED, IndianBuffetProcess(1.5), truncation=2), (ROWS, None)),
    "blocks with gaps": (LatentFeatureModel(MIXED, truncation=2), (torch.cat([ROWS, BINARY], 1), None)),
    "classes": (
        InfiniteLatentSVM(LinearGaussian(), Logistic(), BetaBernoulli(**LAW), truncation=2, feature_map=None),
        (ROWS, CLASSES),
    ),
    "three classes": (
        InfiniteLatentSVM(loss=CrammerSinger(), truncation=2, feature_map=None),
        (ROWS, torch.tensor([0, 1, 2])),
    ),
    "a target missing": (
        InfiniteLatentSVM(prior=IndianBuffetProcess(**LAW), loss=Hinge(2.0), truncation=2, feature_map=None),
        (ROWS, torch.tensor([0.0, 1.0, NONE])),
    ),
    "regression": (InfiniteLatentSVM(FIXED, EpsilonInsensitive(), truncation=2, feature_map=None), (ROWS, ROWS[:, 0])),
}
CASES = LABELS | STATES | FEATURES
MATRICES = [torch.tensor(bits, dtype=torch.float64).view(3, 2) for bits in itertools.product((0, 1), repeat=6)]
CODES = [torch.tensor(code) for code in itertools.product(range(2), repeat=4)]
QUICK = [NUTS(3, 3, max_tree_depth=2, progress=False), Autoguide(num_steps=5, num_samples=3, progress=False)]


def structure(name: str) -> tuple[Any, str, list[dict[str, Tensor]]]:
    """The module of the sites, the attribute of a state that is drawn given them, and all that it may be."""
    if name in FEATURES:
        return features, "features", [{"features": bits} for bits in MATRICES]
    if name in LABELS:
        return multi_label, "assignments", [{"assignments": code} for code in CODES]
    return sequence, "states", [{}]  # paths are summed out of the program itself


def sites_at_random(name: str) -> tuple[Any, Any, dict[str, Tensor]]:
    """A model, its data, and a draw of the continuous sites of the program from its prior: those that a chain has."""
    given, arguments = CASES[name]
    model, data = given.prepare(*arguments)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        nodes = poutine.trace(model.program).get_trace(data).nodes
    start = structure(name)[0].start(model, data, torch.Generator().manual_seed(0))
    discrete = {"assignments", "features"}
    assert start.keys() == {site for site, node in nodes.items() if is_latent(node)} - discrete
    assert all(start[site].shape == nodes[site]["value"].shape for site in start)
    assert all(start[site].dtype == torch.float64 for site in start)
    loose = {site: torch.ones((), dtype=torch.float64) for site in start if site.startswith("noise")}
    return model, data, {site: nodes[site]["value"] for site in start} | loose  # precise entries would settle all bits


def log_joint(model: Any, data: Any, latents: dict[str, Tensor], discrete: dict[str, Tensor]) -> Tensor:
    """The program's own log density [], everything given."""
    known = poutine.condition(model.program, data=latents | discrete)
    return poutine.trace(known).get_trace(data).log_prob_sum()


def code_of(values: Tensor) -> tuple[int, ...]:
    return tuple(values.int().flatten().tolist())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", LABELS | FEATURES)
def test_what_is_drawn_given_the_sites_has_the_conditional_law_of_the_program(name: str) -> None:
    model, data, latents = sites_at_random(name)
    sites, drawn, every = structure(name)
    if name in LABELS:
        shares = torch.tensor([[0.95, 0.05], [0.15, 0.85]], dtype=torch.float64)  # far apart, or f would hardly count
        latents |= {"probs_1": shares, "weights": torch.tensor([[3.0, -2.0]], dtype=torch.float64)}
    log_weights = torch.stack([log_joint(model, data, latents, discrete) for discrete in every])
    codes = [code_of(discrete[drawn]) for discrete in every]
    exact, generator = dict(zip(codes, log_weights.softmax(0).tolist(), strict=True)), torch.Generator().manual_seed(1)
    states = [sites.with_assignments(latents, model, data, generator) for _ in range(by_day(2000))]
    assert name in LABELS or max(exact.values()) < 0.9
    assert frequency_errors([code_of(getattr(state, drawn)) for state in states], exact).max() < 5
    if name in LABELS:
        assert torch.equal(states[0].classifiers.squeeze(0), latents["weights"])


@pytest.mark.parametrize("name", STATES)
def test_paths_have_the_conditional_law_of_the_rows_and_emissions(name: str) -> None:
    (model, data, latents), generator = sites_at_random(name), torch.Generator().manual_seed(1)
    points, rows = data.points, latents["transitions"].log()
    table = model.likelihood.log_density(data.X, {key: latents[key] for key in ("loc",)})
    scores = torch.einsum("np,tpc->ntc", points.features, latents["weights"])
    table = data.spread(table + model.log_margin(scores, points.targets.unsqueeze(1)))
    exact = {}
    for path in itertools.product(range(2), repeat=5):
        before = [2, *path[:2], 2, path[3]]
        exact[path] = sum(float(rows[j, k] + table[t, k]) for t, (j, k) in enumerate(zip(before, path, strict=True)))
    shares = torch.tensor(list(exact.values()), dtype=torch.float64).softmax(0).tolist()
    draws = [sequence.with_assignments(latents, model, data, generator) for _ in range(800)]
    assert (
        frequency_errors([code_of(draw.assignments) for draw in draws], dict(zip(exact, shares, strict=True))).max() < 5
    )
    assert float(draws[0].base[0]) == pytest.approx(float(latents["sticks"][0]))
    assert float(draws[0].hyper["top_concentration"]) == pytest.approx(float(latents["top_concentration"]))


@pytest.mark.parametrize("name", FEATURES)
def test_a_draw_has_the_sites_and_their_density(name: str) -> None:
    (model, data, latents), generator = sites_at_random(name), torch.Generator().manual_seed(2)
    states = [features.with_assignments(latents, model, data, generator) for _ in range(30)]
    state = next(state for state in states if not torch.equal(state.features, states[0].features))
    one, other = (features.draw(each, data, model) for each in (states[0], state))
    own = [log_joint(model, data, latents, {"features": draw["features"].double()}) for draw in (one, other)]
    torch.testing.assert_close(one["log_joint"] - other["log_joint"], own[0] - own[1])
    pi = latents["sticks"].cumprod(0) if "sticks" in latents else latents["probabilities"]
    torch.testing.assert_close(one["log_odds"], pi.logit())
    assert torch.equal(torch.cat([one["weights"], one["input_weights"]]), latents["weights"])
    for site in latents.keys() - {"sticks", "probabilities", "weights"}:
        assert torch.equal(one[site], latents[site]), site


def test_rows_of_bits_are_independent_bernoullis() -> None:
    probabilities = torch.tensor([[0.2, 0.7, 0.5], [0.9, 0.1, 0.3]], dtype=torch.float64)
    bits, plain = Bits(probabilities), dist.Bernoulli(probabilities).to_event(1)
    rows = bits.enumerate_support(expand=False)
    assert rows.shape == (8, 1, 3)
    assert len(rows.flatten(0, 1).unique(dim=0)) == 8
    assert torch.equal(bits.enumerate_support(), rows.expand(8, 2, 3))
    torch.testing.assert_close(bits.log_prob(rows), plain.log_prob(rows))
    torch.testing.assert_close(bits.log_prob(rows).logsumexp(0), torch.zeros(2, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"A row has 17 bits; at most 16 are enumerated.*truncation=16"):
        Bits(torch.full((3, 17), 0.5)).enumerate_support()
    assert Bits(probabilities[0]).expand((4, 2)).enumerate_support().shape == (8, 4, 2, 3)


# -- a chain of NUTS: its density is exact as well, which leaves Pyro's own steps to trust ----------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_density_of_a_chain_of_nuts_is_that_of_the_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is discrete summed out, in unconstrained space."""
    given, arguments = CASES[name]
    reference_of(given).program(given, *arguments, *[None] * (3 - len(arguments)))
    model, data = given.prepare(*arguments)
    sites, _, every = structure(name)
    latents, value = last_step(sites, model, data, monkeypatch)
    assert value == pytest.approx(log_density(model, data, latents, every), rel=1e-8)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", ["product", "states that repel", "features alone"])
def test_nuts_has_the_exact_indicators(name: str) -> None:
    model, (rows, y, *lengths) = CASES[name]
    backend = NUTS(num_samples=250, num_warmup=60, max_tree_depth=3, progress=False)
    check_kernel(backend, model, rows, y, lengths=lengths[0] if lengths else None)


@pytest.mark.slow
def test_a_guide_stays_below_the_evidence() -> None:
    model, (rows, _) = CASES["features alone"]
    posterior = Autoguide(num_steps=300, num_samples=20, progress=False).fit(model, rows)
    estimates = posterior.trace.values[0, -100:]
    exact = log_feature_evidence(posterior.model, rows, truncation=2)
    assert exact - 3.0 < estimates.mean() < exact + estimates.std() / 2


def answer(name: str, posterior: Any) -> Tensor:
    """What the posterior says of the rows of the fit, each entry between 0 and 1."""
    rows, y, *lengths = CASES[name][1]
    if name in LABELS:
        assert posterior.predict(rows[:3]).shape == (3, 2)
        assert posterior.samples["classifiers"].shape == (3, 1, 2)
        return posterior.predict_proba(rows)
    if name in STATES:
        assert posterior.samples["log_transitions"].shape == (3, 2, 3)
        assert posterior.log_predictive_density(rows, *lengths).isfinite().all()
        return posterior.smooth(rows, *lengths)
    assert posterior.samples["features"].shape == (3, 3, 2)
    assert y is None or posterior.predict(rows).shape == (3,)
    return posterior.transform(rows)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("backend", QUICK, ids=["nuts", "guide"])
@pytest.mark.parametrize("name", CASES)
def test_fits_answer_and_leave_nothing_behind(name: str, backend: Any) -> None:
    model, (rows, y, *lengths) = CASES[name]
    posterior = backend.fit(model, rows, y, **{"lengths": lengths[0]} if lengths else {})
    assert len(pyro.get_param_store()) == 0
    found = answer(name, posterior)
    assert found.shape == (len(rows), 2)
    assert ((found >= 0) & (found <= 1)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_draws_are_kept_as_those_of_the_blocked_scan(dtype: torch.dtype) -> None:
    model, (rows, y) = CASES["classes"]
    blocked = Gibbs(num_samples=3, num_warmup=1, scan="blocked").fit(model, rows.to(dtype), y).samples
    found = QUICK[0].fit(model, rows.to(dtype), y).samples
    assert {name: (value.dtype, value.shape) for name, value in found.items()} == {
        name: (value.dtype, value.shape) for name, value in blocked.items()
    }


@pytest.mark.parametrize("backend", QUICK, ids=["nuts", "guide"])
def test_more_features_than_can_be_summed_out_are_refused(backend: Any) -> None:
    model = LatentFeatureModel(truncation=20)
    with pytest.raises(ValueError, match=r"truncation is 20.* 2\^20 rows of bits .*truncation=16 or less, or Gibbs"):
        backend.fit(model, ROWS)
    with pytest.raises(ValueError, match=r"truncation is 2, .* of 1000 rows of 600 columns.*Use fewer rows, or Gibbs"):
        backend.fit(model.replace(truncation=2), torch.ones(1000, 600, dtype=torch.float64))


def test_features_that_are_all_in_use_are_told() -> None:
    model, (rows, _) = CASES["features alone"]
    with pytest.warns(TruncationWarning, match=r"All 2 features are in use .* truncation=4\.$"):
        QUICK[0].replace(num_samples=20).fit(model, rows)


def test_the_shares_of_a_coupled_joint_are_those_of_the_program() -> None:
    model, data, latents = sites_at_random("multinomial")
    state = multi_label.with_assignments(latents, model, data, torch.Generator().manual_seed(0))
    torch.testing.assert_close(multi_label.draw(state, data, model)["label_means"], latents["probs_1"])


@pytest.mark.parametrize("backend", QUICK, ids=["nuts", "guide"])
def test_what_they_cannot_serve_is_named(backend: Any) -> None:
    for model in (BNMC(LaplaceLocation()), IHMM(LaplaceLocation())):
        with pytest.raises(
            NotImplementedError, match=f"LaplaceLocation is no ExponentialFamily.*{type(model).__name__}"
        ):
            backend.fit(model, X, BITS)
    with pytest.raises(ValueError, match=r"joint is 'and'.*loss=Logistic\(\)"):
        backend.admit(BNMC(loss=Hinge(), joint="and"))
    with pytest.raises(ValueError, match=r"X is sparse.*Pass X.toarray\(\)"):
        backend.fit(BNMC(MultinomialDirichlet(), feature_map=PrincipalDirections(1)), csr_matrix(COUNTS), BITS)


def test_the_remedy_of_a_truncation_that_binds_is_one_that_the_joint_has() -> None:
    for name, end in (("product", r"4, or with Gibbs\(\)\.$"), ("and", r"truncation=4\.$")):
        model, arguments = CASES[name]
        with pytest.warns(TruncationWarning, match=end):
            QUICK[0].replace(num_samples=20).fit(model, 20 * arguments[0], arguments[1])
