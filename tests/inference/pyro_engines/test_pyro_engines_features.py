"""Pyro's own engines on a few latent features: rows of bits are summed out, and drawn given the sites."""

from __future__ import annotations

import itertools
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import TraceEnum_ELBO
from setups import frequency_errors, is_latent, last_step, log_density
from torch import Tensor

from regbayes.inference import NUTS, Autoguide, Gibbs, Posterior, TruncationWarning
from regbayes.inference.pyro_engines import features
from regbayes.models import (
    BetaBernoulli,
    Blocks,
    CrammerSinger,
    EpsilonInsensitive,
    Hinge,
    IndianBuffetProcess,
    InfiniteLatentSVM,
    LatentFeatureModel,
    LinearBernoulli,
    LinearGaussian,
    Logistic,
)
from regbayes.models.distributions.bits import Bits
from regbayes.testing import check_kernel
from regbayes.testing.features import log_feature_evidence
from regbayes.testing.references import reference_of

pytestmark = pytest.mark.filterwarnings("ignore:All 2 features are in use")

NONE = torch.nan
X = torch.tensor([[0.9, -0.4], [1.1, 0.3], [-1.0, 0.2]], dtype=torch.float64)
BINARY = torch.tensor([[1.0, 0.0], [0.0, NONE], [1.0, 1.0]], dtype=torch.float64)
CLASSES = torch.tensor([0, 1, 1])
FIXED = LinearGaussian(offset=0.0, noise_variance=0.3, loading_variance=1.0, learn=False)
WITH_LAW: Any = {"concentration_prior": (2.0, 1.0)}
MIXED = Blocks([(LinearGaussian(), 2), (LinearBernoulli(), 2)])
CASES: dict[str, tuple[Any, Tensor, Tensor | None]] = {
    "features alone": (LatentFeatureModel(FIXED, IndianBuffetProcess(1.5), truncation=2), X, None),
    "blocks with gaps": (LatentFeatureModel(MIXED, truncation=2), torch.cat([X, BINARY], 1), None),
    "classes": (InfiniteLatentSVM(LinearGaussian(), Logistic(), BetaBernoulli(**WITH_LAW), truncation=2), X, CLASSES),
    "three classes": (InfiniteLatentSVM(loss=CrammerSinger(), truncation=2), X, torch.tensor([0, 1, 2])),
    "a target missing": (
        InfiniteLatentSVM(prior=IndianBuffetProcess(**WITH_LAW), loss=Hinge(2.0), truncation=2),
        X,
        torch.tensor([0.0, 1.0, NONE]),
    ),
    "regression": (InfiniteLatentSVM(FIXED, EpsilonInsensitive(), truncation=2), X, X[:, 0]),
}
MATRICES = [torch.tensor(bits, dtype=torch.float64).view(3, 2) for bits in itertools.product((0, 1), repeat=6)]
QUICK = [NUTS(3, 3, max_tree_depth=2, progress=False), Autoguide(num_steps=5, num_samples=3, progress=False)]


def sites_at_random(model: Any, data: Any) -> dict[str, Tensor]:
    """A draw of the continuous sites of the program from its prior, which are those that a chain starts with."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        nodes = poutine.trace(model.program).get_trace(data).nodes
    start = features.start(model, data, torch.Generator().manual_seed(0))
    assert start.keys() == {name for name, site in nodes.items() if is_latent(site)} - {"features"}
    assert all(start[name].shape == nodes[name]["value"].shape for name in start)
    assert all(start[name].dtype == torch.float64 for name in start)
    loose = {name: torch.ones((), dtype=torch.float64) for name in start if name.startswith("noise")}
    return {name: nodes[name]["value"] for name in start} | loose  # precise entries would settle all bits


def log_joint(model: Any, data: Any, latents: dict[str, Tensor], bits: Tensor) -> Tensor:
    """The program's own log density [], everything given."""
    known = poutine.condition(model.program, data={**latents, "features": bits})
    return poutine.trace(known).get_trace(data).log_prob_sum()


@pytest.mark.parametrize("name", CASES)
def test_bits_have_the_conditional_law_of_the_program(name: str) -> None:
    given, rows, y = CASES[name]
    model, data = given.prepare(rows, y)
    latents, generator = sites_at_random(model, data), torch.Generator().manual_seed(1)
    log_weights = torch.stack([log_joint(model, data, latents, bits) for bits in MATRICES])
    codes = [tuple(bits.int().flatten().tolist()) for bits in MATRICES]
    exact = dict(zip(codes, log_weights.softmax(0).tolist(), strict=True))
    states = [features.with_assignments(latents, 0.0, model, data, generator) for _ in range(2000)]
    assert max(exact.values()) < 0.9
    assert frequency_errors([tuple(state.features.flatten().tolist()) for state in states], exact).max() < 5


@pytest.mark.parametrize("name", CASES)
def test_a_draw_has_the_sites_and_their_density(name: str) -> None:
    given, rows, y = CASES[name]
    model, data = given.prepare(rows, y)
    latents, generator = sites_at_random(model, data), torch.Generator().manual_seed(2)
    states = [features.with_assignments(latents, 0.0, model, data, generator) for _ in range(30)]
    state = next(state for state in states if not torch.equal(state.features, states[0].features))
    one, other = (features.draw(each, data, model) for each in (states[0], state))
    own = [log_joint(model, data, latents, draw["features"].double()) for draw in (one, other)]
    torch.testing.assert_close(one["log_joint"] - other["log_joint"], own[0] - own[1])
    pi = latents["sticks"].cumprod(0) if "sticks" in latents else latents["probabilities"]
    torch.testing.assert_close(one["log_odds"], pi.logit())
    assert torch.equal(torch.cat([one["weights"], one["input_weights"]]), latents["weights"])
    for site in latents.keys() - {"sticks", "probabilities", "weights"}:
        assert torch.equal(one[site], latents[site]), site


@pytest.mark.parametrize("name", CASES)
def test_the_program_is_summed_over_all_matrices(name: str) -> None:
    given, rows, y = CASES[name]
    model, data = given.prepare(rows, y)
    latents = sites_at_random(model, data)
    expected = torch.stack([log_joint(model, data, latents, bits) for bits in MATRICES]).logsumexp(0)
    known = poutine.enum(poutine.condition(model.program, data=latents), first_available_dim=-2)
    summed = -TraceEnum_ELBO(max_plate_nesting=1).loss(known, lambda data: None, data)
    assert summed == pytest.approx(float(expected), rel=1e-9)


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


@pytest.mark.parametrize("name", CASES)
def test_the_density_of_a_chain_of_nuts_is_that_of_the_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All matrices summed out, in unconstrained space, which leaves Pyro's own steps to trust."""
    given, rows, y = CASES[name]
    reference_of(given).program(given, rows, y, None)
    model, data = given.prepare(rows, y)
    latents, value = last_step(features, model, data, monkeypatch)
    assert value == pytest.approx(
        log_density(model, data, latents, [{"features": bits} for bits in MATRICES]), rel=1e-8
    )


@pytest.mark.slow
def test_nuts_has_the_exact_shared_features() -> None:
    model, rows, y = CASES["features alone"]
    check_kernel(NUTS(num_samples=250, num_warmup=60, max_tree_depth=3, progress=False), model, rows, y)


@pytest.mark.slow
def test_a_guide_stays_below_the_evidence() -> None:
    model, rows, _ = CASES["features alone"]
    posterior = Autoguide(num_steps=300, num_samples=20, progress=False).fit(model, rows)
    estimates = posterior.trace.values[0, -100:]
    exact = log_feature_evidence(posterior.model, rows, truncation=2)
    assert exact - 3.0 < estimates.mean() < exact + estimates.std() / 2


@pytest.mark.parametrize("backend", QUICK, ids=["nuts", "guide"])
@pytest.mark.parametrize("name", CASES)
def test_features_are_inferred_and_kept(name: str, backend: Any, tmp_path) -> None:
    model, rows, y = CASES[name]
    before = torch.random.get_rng_state()
    posterior = backend.fit(model, rows, y)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert len(pyro.get_param_store()) == 0
    assert posterior.samples["features"].shape == (3, 3, 2)
    found = posterior.transform(rows)
    assert ((found >= 0) & (found <= 1)).all()
    if y is not None:
        assert posterior.predict(rows).shape == (3,)
    posterior.save(tmp_path / "posterior.pt")
    torch.testing.assert_close(Posterior.load(tmp_path / "posterior.pt").transform(rows), found)
    assert torch.equal(backend.fit(model, rows, y).samples["features"], posterior.samples["features"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_draws_are_kept_as_those_of_the_blocked_scan(dtype: torch.dtype) -> None:
    model, rows, y = CASES["classes"]
    blocked = Gibbs(num_samples=3, num_warmup=1, scan="blocked").fit(model, rows.to(dtype), y).samples
    found = QUICK[0].fit(model, rows.to(dtype), y).samples
    assert {name: (value.dtype, value.shape) for name, value in found.items()} == {
        name: (value.dtype, value.shape) for name, value in blocked.items()
    }


@pytest.mark.parametrize("backend", QUICK, ids=["nuts", "guide"])
def test_more_features_than_can_be_summed_out_are_refused(backend: Any) -> None:
    model = LatentFeatureModel(truncation=20)
    with pytest.raises(ValueError, match=r"truncation is 20.* 2\^20 rows of bits .*truncation=16 or less, or Gibbs"):
        backend.fit(model, X)
    with pytest.raises(ValueError, match=r"truncation is 2, .* of 1000 rows of 600 columns.*Use fewer rows, or Gibbs"):
        backend.fit(model.replace(truncation=2), torch.ones(1000, 600, dtype=torch.float64))


def test_a_truncation_that_binds_is_told() -> None:
    model, rows, _ = CASES["features alone"]
    with pytest.warns(TruncationWarning, match=r"All 2 features are in use .* truncation=4\.$"):
        QUICK[0].replace(num_samples=20).fit(model, rows)
