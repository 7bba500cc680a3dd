"""Pyro's own engines on label sets and on state sequences: what they draw given the sites is what the programs say."""

from __future__ import annotations

import itertools
from typing import Any

import pyro
import pyro.poutine as poutine
import pytest
import torch
from scipy.sparse import csr_matrix
from setups import LaplaceLocation, frequency_errors, is_latent, last_step, log_density
from torch import Tensor

from regbayes.inference import NUTS, Autoguide, Posterior, TruncationWarning
from regbayes.inference.pyro_engines import Sites, multi_label, sequence
from regbayes.models import (
    BNMC,
    DIH,
    IHMM,
    BernoulliBeta,
    DirichletProcess,
    HierarchicalDirichletProcess,
    Hinge,
    Logistic,
    MultinomialDirichlet,
    PrincipalDirections,
    SphericalGaussian,
    Standardized,
)
from regbayes.testing import check_kernel
from regbayes.testing.references import reference_of

pytestmark = pytest.mark.filterwarnings("ignore:All . components are occupied")

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
CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {  # and what `prepare` takes
    "product": (BNMC(FAMILY, loss=Hinge(0.8), prior=WITH_LAW, **ONE_FEATURE), (X, BITS)),
    "product of counts": (BNMC(FAMILY, MultinomialDirichlet(), **ONE_FEATURE), (X, COUNTS)),
    "and": (BNMC(FAMILY, BernoulliBeta(1.0, 2.0), prior=WITH_LAW, joint="and", **ONE_FEATURE), (X, BITS)),
    "multinomial": (BNMC(FAMILY, MultinomialDirichlet(1.0), joint="multinomial", **ONE_FEATURE), (X, COUNTS)),
    "states": (IHMM(FAMILY, STICKY, truncation=2), (STEPS, None, LENGTHS)),
    "states that repel": (DIH(FAMILY, Logistic(), STICKY, weight_scale=2.0, truncation=2), (STEPS, None, LENGTHS)),
}
LABELS = [name for name, (model, _) in CASES.items() if isinstance(model, BNMC)]
QUICK = [NUTS(3, 3, max_tree_depth=2, progress=False), Autoguide(num_steps=5, num_samples=3, progress=False)]


def sites_at_random(sites: Sites, model: Any, data: Any) -> dict[str, Tensor]:
    """A draw of the continuous sites of the program from its prior."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        nodes = poutine.trace(sites.program(model)).get_trace(data).nodes
    start = sites.start(model, data, torch.Generator().manual_seed(0))
    assert start.keys() == {name for name, site in nodes.items() if is_latent(site)} - {"assignments"}
    assert all(start[name].shape == nodes[name]["value"].shape for name in start)
    return {name: nodes[name]["value"] for name in start}


def labels_of(draws: list[Any], site: str) -> list[tuple[int, ...]]:
    return [tuple(getattr(draw, site).tolist()) for draw in draws]


@pytest.mark.parametrize("name", LABELS)
def test_assignments_have_the_conditional_law_of_the_program(name: str) -> None:
    given, arguments = CASES[name]
    model, data = given.prepare(*arguments)
    latents, generator = sites_at_random(multi_label, model, data), torch.Generator().manual_seed(1)
    shares = torch.tensor([[0.95, 0.05], [0.15, 0.85]], dtype=torch.float64)  # far apart, or f would hardly count
    latents |= {"probs_1": shares, "weights": torch.tensor([[3.0, -2.0]], dtype=torch.float64)}
    codes = list(itertools.product(range(2), repeat=4))
    log_weights = []
    for code in codes:
        known = {**latents, "assignments": torch.tensor(code)}
        log_weights.append(poutine.trace(poutine.condition(model.program, data=known)).get_trace(data).log_prob_sum())
    exact = dict(zip(codes, torch.stack(log_weights).softmax(0).tolist(), strict=True))
    draws = [multi_label.with_assignments(latents, 0.0, model, data, generator) for _ in range(2000)]
    assert frequency_errors(labels_of(draws, "assignments"), exact).max() < 5
    assert torch.equal(draws[0].classifiers.squeeze(0), latents["weights"])


@pytest.mark.parametrize("name", ["states", "states that repel"])
def test_paths_have_the_conditional_law_of_the_rows_and_emissions(name: str) -> None:
    given, arguments = CASES[name]
    model, data = given.prepare(*arguments)
    latents, generator = sites_at_random(sequence, model, data), torch.Generator().manual_seed(1)
    points, rows = data.points, latents["transitions"].log()
    table = model.likelihood.log_density(data.X, {key: latents[key] for key in ("loc",)})
    scores = torch.einsum("np,tpc->ntc", points.features, latents["weights"])
    table = data.spread(table + model.log_margin(scores, points.targets.unsqueeze(1)))
    exact = {}
    for path in itertools.product(range(2), repeat=5):
        before = [2, *path[:2], 2, path[3]]
        exact[path] = sum(float(rows[j, k] + table[t, k]) for t, (j, k) in enumerate(zip(before, path, strict=True)))
    shares = torch.tensor(list(exact.values()), dtype=torch.float64).softmax(0).tolist()
    draws = [sequence.with_assignments(latents, 0.0, model, data, generator) for _ in range(800)]
    assert frequency_errors(labels_of(draws, "states"), dict(zip(exact, shares, strict=True))).max() < 5
    assert float(draws[0].base[0]) == pytest.approx(float(latents["sticks"][0]))
    assert float(draws[0].hyper["top_concentration"]) == pytest.approx(float(latents["top_concentration"]))


# -- a chain of NUTS: its density is exact as well, which leaves Pyro's own steps to trust ----------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_density_of_a_chain_of_nuts_is_that_of_the_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assignments summed out, in unconstrained space; paths are summed out of the program itself."""
    given, arguments = CASES[name]
    reference_of(given).program(given, *arguments, *[None] * (3 - len(arguments)))
    model, data = given.prepare(*arguments)
    labels = name in LABELS
    latents, value = last_step(multi_label if labels else sequence, model, data, monkeypatch)
    codes = [{"assignments": torch.tensor(code)} for code in itertools.product(range(2), repeat=4)] if labels else [{}]
    assert value == pytest.approx(log_density(model, data, latents, codes), rel=1e-8)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["product", "states that repel"])
def test_nuts_has_the_exact_co_assignments(name: str) -> None:
    model, (rows, y, *lengths) = CASES[name]
    backend = NUTS(num_samples=250, num_warmup=60, max_tree_depth=3, progress=False)
    check_kernel(backend, model, rows, y, lengths=lengths[0] if lengths else None)


@pytest.mark.parametrize("backend", QUICK, ids=["nuts", "guide"])
@pytest.mark.parametrize("name", LABELS)
def test_label_sets_are_predicted_and_kept(name: str, backend: Any, tmp_path) -> None:
    model, (rows, y) = CASES[name]
    before = torch.random.get_rng_state()
    posterior = backend.fit(model, rows, y)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert len(pyro.get_param_store()) == 0
    found = posterior.predict_proba(rows)
    assert found.shape == (4, 2)
    assert ((found > 0) & (found < 1)).all()
    assert posterior.predict(rows[:3]).shape == (3, 2)
    assert posterior.samples["classifiers"].shape == (3, 1, 2)
    posterior.save(tmp_path / "posterior.pt")
    torch.testing.assert_close(Posterior.load(tmp_path / "posterior.pt").predict_proba(rows), found)


@pytest.mark.parametrize("backend", QUICK, ids=["nuts", "guide"])
@pytest.mark.parametrize("name", ["states", "states that repel"])
def test_paths_are_decoded_and_kept(name: str, backend: Any, tmp_path) -> None:
    model, (rows, _, lengths) = CASES[name]
    posterior = backend.fit(model, rows, lengths=lengths)
    found = posterior.smooth(rows, lengths)
    assert found.shape == (5, 2)
    assert posterior.samples["assignments"].shape == (3, 5)
    assert posterior.samples["log_transitions"].shape == (3, 2, 3)
    assert posterior.log_predictive_density(rows, lengths).isfinite().all()
    posterior.save(tmp_path / "posterior.pt")
    torch.testing.assert_close(Posterior.load(tmp_path / "posterior.pt").smooth(rows, lengths), found)


def test_the_shares_of_a_coupled_joint_are_those_of_the_program() -> None:
    given, arguments = CASES["multinomial"]
    model, data = given.prepare(*arguments)
    latents = sites_at_random(multi_label, model, data)
    state = multi_label.with_assignments(latents, 0.0, model, data, torch.Generator().manual_seed(0))
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
