"""Stochastic steps of multi-label models: compiled readings, and the plain formulas that the steps leave out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from regbayes.inference import SVI
from regbayes.inference.svi.factors import kl as mixture_kl
from regbayes.inference.svi.label_sets import coupled
from regbayes.inference.svi.label_sets import kernel as multi_label
from regbayes.inference.svi.label_sets.blocks import Block, expect, shares
from regbayes.inference.svi.label_sets.coupled import plain_mixture
from regbayes.inference.svi.label_sets.joints import kl as psi_kl
from regbayes.inference.svi.partition import kernel as partition
from regbayes.inference.svi.partition.factors import update_prior
from regbayes.inference.svi.steps import Minibatch
from regbayes.models import (
    BNMC,
    DPM,
    BernoulliBeta,
    DirichletProcess,
    MultinomialDirichlet,
    PrincipalDirections,
    SparseRows,
)

GENERATOR = torch.Generator().manual_seed(2)
N, V = 90, 14
COUNTS = torch.poisson(2 * torch.rand((N, V), generator=GENERATOR, dtype=torch.float64) ** 3, generator=GENERATOR)
BITS = (torch.rand((N, 3), generator=GENERATOR, dtype=torch.float64) < 0.4).double()
HOLES = BITS.masked_fill(torch.rand((N, 3), generator=GENERATOR) < 0.2, torch.nan)
SEEN = PrincipalDirections(loc=COUNTS.mean(0), axes=torch.eye(V, dtype=torch.float64)[:, :4])
MODEL = BNMC(
    MultinomialDirichlet(), feature_map=SEEN, prior=DirichletProcess(concentration_prior=(2.0, 1.0)), truncation=5
)
MODELS = {
    "bits": (MODEL, HOLES),
    "counts": (MODEL.replace(label_likelihood=MultinomialDirichlet(0.7)), 2 * BITS),
    "and": (MODEL.replace(joint="and", label_likelihood=BernoulliBeta(1.0, 1.5)), HOLES),
    "multinomial": (MODEL.replace(joint="multinomial"), 2 * BITS),
}


# -- compiled readings -------------------------------------------------------------------------------------------------


def dirichlet_block(dtype: torch.dtype) -> Block:
    """Laws from 1e-6 to 1e7 on sparse rows."""
    rows = SparseRows.of(COUNTS.to(dtype))
    chi = 10.0 ** (13 * torch.rand((5, V), generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 6)
    family = MultinomialDirichlet(torch.linspace(0.01, 3.0, V, dtype=torch.float64).to(dtype)).resolve(rows)
    return Block(family, rows, chi.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_compiled_expectations_are_those_of_the_family(dtype: torch.dtype) -> None:
    family, rows, chi = dirichlet_block(dtype)
    found = expect([Block(family, rows, chi)])
    assert found.log_density.dtype == dtype
    torch.testing.assert_close(found.log_density, family.expected_log_density(rows, chi))
    exact = family.replace(concentration=family.concentration.double()).kl(chi.double())
    torch.testing.assert_close(found.kl, exact.sum(), rtol=1e-12, atol=0)
    by_words = expect([Block(family, rows, chi.T.contiguous().T)])  # as a step leaves them
    assert torch.equal(by_words.log_density, found.log_density)


def test_compiled_expectations_of_one_law_at_a_time() -> None:
    """Each digamma, from the difference of the densities of rows that hold one word."""
    for chi in (1e-8, 0.01, 0.3, 1.0, 2.0, 9.5, 300.0, 1e6, 1e12):
        laws = torch.tensor([[chi, 1.0]], dtype=torch.float64)
        rows = SparseRows.of(torch.eye(2, dtype=torch.float64))
        family = MultinomialDirichlet(0.5).resolve(rows)
        one, other = expect([Block(family, rows, laws)]).log_density.squeeze(1)
        expected = torch.digamma(laws[0, 0]) - torch.digamma(laws[0, 1])
        torch.testing.assert_close(one - other, expected, rtol=1e-12, atol=1e-13)


def test_blocks_add_up() -> None:
    family, rows, chi = dirichlet_block(torch.float64)
    bits = BernoulliBeta().resolve(BITS)
    own = bits.prior() + bits.weighted_statistics(BITS, torch.rand((N, 5), generator=GENERATOR, dtype=torch.float64))
    both = expect([Block(family, rows, chi), Block(bits, BITS, own)])
    torch.testing.assert_close(
        both.log_density, family.expected_log_density(rows, chi) + bits.expected_log_density(BITS, own)
    )
    torch.testing.assert_close(both.kl, (family.kl(chi) + bits.kl(own)).sum())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_shares_are_a_softmax_without_denormal_numbers(dtype: torch.dtype) -> None:
    spread = torch.tensor([1.0, 100.0, 3000.0]).repeat(4).unsqueeze(1)
    logits = (spread * torch.randn((12, 6), generator=torch.Generator().manual_seed(0))).to(dtype) - 5000
    r, log_total = shares(logits)
    torch.testing.assert_close(r, logits.softmax(1))
    torch.testing.assert_close(log_total, logits.logsumexp(1))
    assert (r >= torch.finfo(dtype).tiny).all()


@pytest.mark.parametrize("most", [3, 5000], ids=["few", "many"])
def test_base_measure_of_counts(most: int) -> None:
    counts = COUNTS.clone()
    counts[0, 0] = most
    ways = torch.lgamma(1 + counts.sum(1)) - torch.lgamma(1 + counts).sum(1)
    for rows in (counts, SparseRows.of(counts)):
        torch.testing.assert_close(MultinomialDirichlet().log_base_measure(rows), ways)
    none = SparseRows.of(counts[:0])
    assert MultinomialDirichlet().log_base_measure(none).shape == (0,)


# -- steps -------------------------------------------------------------------------------------------------------------


def started(name: str, sparse: bool = True):
    """A state that a stochastic step has left, half of the rows with weights, and the model."""
    model, labels = MODELS[name]
    rows, labels = (SparseRows.of(COUNTS), SparseRows.of(labels)) if sparse else (COUNTS, labels)
    model, data = model.prepare(rows, labels, weights=1.0 + torch.arange(N, dtype=torch.float64) % 3)
    kernel = coupled if model.is_coupled else multi_label
    state = kernel.init(model, data, torch.Generator().manual_seed(0))
    state = kernel.stochastic_sweep(state, Minibatch(data.rows(slice(40, 90)), 2.0), model, 0.3)
    return kernel, state, data.rows(slice(0, 45)), model


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("name", ["bits", "counts"])
def test_a_step_of_the_product_is_that_of_its_mixture(name: str, sparse: bool) -> None:
    """Against the step of a mixture of joined rows (x, y), whose readings are the families' own."""
    kernel, state, batch, model = started(name, sparse)
    moved = kernel.stochastic_sweep(state, Minibatch(batch, 3.0), model, 0.2)
    plain = partition.stochastic_sweep(state, Minibatch(batch.points, 3.0), model.mixture, 0.2)
    for field in ("hyperparameters", "sticks", "q"):
        torch.testing.assert_close(getattr(moved, field), getattr(plain, field), rtol=1e-11, atol=1e-11, msg=field)
    torch.testing.assert_close(moved.bound - moved.margin_bound, plain.bound, rtol=1e-11, atol=0)
    scores = [part.squeeze(1) for part in state.label_classifiers.moments(batch.features)]
    factors = batch.margins.counted(model.loss.expected_log_factor(*scores, batch.targets))
    margin = 3.0 * factors.sum() - state.label_classifiers.kl(model.weight_scale).sum()
    torch.testing.assert_close(moved.margin_bound, margin)
    target = multi_label.update_classifiers(state, batch, model, 3.0)
    check_classifiers(moved, state, target, 0.2)


def check_classifiers(moved, state, target, rho: float) -> None:
    """Natural parameters of q(w) a share rho of the way."""
    each = [ridge.label_classifiers.natural for ridge in (state, target, moved)]
    for before, best, now in zip(*each, strict=True):
        torch.testing.assert_close(now, (1 - rho) * before + rho * best)


@pytest.mark.parametrize("name", ["and", "multinomial"])
def test_a_step_of_a_coupled_joint_is_a_share_of_the_whole_update(name: str) -> None:
    _, state, batch, model = started(name)
    near = coupled.update_points(state, batch, model, 3.0)
    near = update_prior(near, plain_mixture(model))  # given the sticks before they move
    target = coupled.update_globals(near, batch, model, 3.0)
    moved = coupled.stochastic_sweep(state, Minibatch(batch, 3.0), model, 0.2)
    for field in ("hyperparameters", "sticks", "psi"):
        blend = 0.8 * getattr(state, field) + 0.2 * getattr(target, field)
        torch.testing.assert_close(getattr(moved, field), blend, rtol=1e-11, atol=1e-11, msg=field)
    check_classifiers(moved, state, target, 0.2)
    assert moved.q[1] == near.q[1] != state.q[1]


@pytest.mark.parametrize("name", ["and", "multinomial"])
def test_the_bound_of_a_coupled_batch_counts_its_rows_alone_many_times(name: str) -> None:
    _, state, batch, model = started(name)
    once, thrice = (coupled.update_points(state, batch, model, scale).bound for scale in (1.0, 3.0))
    plain = DPM(model.likelihood, model.prior, model.truncation, V)
    weights = state.label_classifiers.kl(model.weight_scale).sum()
    penalty = mixture_kl(state, plain) + psi_kl(model, state.psi) + weights
    torch.testing.assert_close(thrice + penalty, 3.0 * (once + penalty))


# -- streams -----------------------------------------------------------------------------------------------------------


def packed(batch):
    return tuple(map(SparseRows.of, torch.utils.data.default_collate(batch)))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
def test_a_stream_keeps_no_more_of_a_row_than_its_component_may_use_global_stream(name: str) -> None:
    model, labels = MODELS[name]
    whole = TensorDataset(COUNTS.repeat(3, 1), labels.repeat(3, 1))
    posterior = SVI(num_steps=5).fit(model, DataLoader(whole, batch_size=40))
    rows = [name for name, value in posterior.samples.items() if 3 * N in value.shape]
    assert rows == ["assignments"]
    assert posterior.samples["assignments"].element_size() == 1
    assert "responsibilities" not in posterior.samples
    sparse = SVI(num_steps=5).fit(model, DataLoader(whole, batch_size=40, collate_fn=packed))
    torch.testing.assert_close(posterior.samples["classifiers"], sparse.samples["classifiers"])
    torch.testing.assert_close(posterior.predict_proba(COUNTS), sparse.predict_proba(SparseRows.of(COUNTS)))
    with pytest.raises(ValueError, match="at least 2"):
        SVI().fit(model, DataLoader(TensorDataset(COUNTS[:1], labels[:1])))
    # those of each row at the factors that are kept, in the order of the loader
    model = posterior.model
    assert torch.equal(posterior.samples["assignments"][0, :N], posterior.samples["assignments"][0, N : 2 * N])
    kernel = coupled if model.is_coupled else multi_label
    data, kept = model.data(COUNTS, labels), {key: value[0] for key, value in posterior.samples.items()}
    start = kernel.init(model, data, torch.Generator().manual_seed(0))
    chi = kept["hyperparameters"]
    if not model.is_coupled:
        chi = torch.cat([chi, kept["label_hyperparameters"]], 1)
    own = {"psi": kept["label_hyperparameters"]} if model.is_coupled else {}
    state = replace(
        start,
        hyperparameters=chi,
        sticks=kept["sticks"],
        label_mean=kept["classifiers"].unsqueeze(0),
        label_tril=kept["classifier_tril"].unsqueeze(0),
        **own,
    )
    complete = coupled.update_points if model.is_coupled else multi_label.complete
    expected = complete(state, data, model).responsibilities.argmax(1)
    assert torch.equal(posterior.samples["assignments"][0, :N].long(), expected)
    assert posterior.num_components == len(expected.unique())


def test_a_stream_of_points_keeps_no_more_either_may_use_global_stream() -> None:
    posterior = SVI(num_steps=5).fit(DPM(MultinomialDirichlet(), truncation=12), DataLoader(COUNTS, batch_size=40))
    assert [name for name, value in posterior.samples.items() if N in value.shape] == ["assignments"]
    assert posterior.samples["assignments"].shape == (1, N)
    assert math.isfinite(posterior.trace.final)
