"""Every cell of the grid that README shows: what it has is fitted and predicts, what it has not is refused."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyro.poutine as poutine
import pytest
import torch
from grid import COLUMNS, ROWS, WAYS, Case, Row, Way, cells, kernels, name_of
from setups import Absolute, Ramp, Softmax

import regbayes.inference
import regbayes.models
from regbayes.inference import Backend, Posterior, TruncationWarning, structure_of
from regbayes.models.base import Model
from regbayes.testing import check_model

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{TruncationWarning.__module__}.{TruncationWarning.__name__}"),
    pytest.mark.usefixtures("few_restarts"),
]

BACKENDS = {type(way.backend).__name__ for way in WAYS.values()}


def exported(module: Any, base: type) -> set[str]:
    """Names of the classes of a kind that users import."""
    found = {name: getattr(module, name) for name in module.__all__}
    return {name for name, kind in found.items() if dataclasses.is_dataclass(kind) and issubclass(kind, base)}


def backends_of(row: Row, case: str) -> set[str]:
    return {type(WAYS[way].backend).__name__ for way in row.ways_of(case)}


def answer(posterior: Any, case: Case) -> torch.Tensor:
    """What the posterior says of the rows that it was fitted to."""
    if case.y is not None:
        return posterior.predict(case.X)
    if case.lengths is not None:
        return posterior.assign(case.X, case.lengths)
    return posterior.transform(case.X) if hasattr(posterior, "transform") else posterior.assign(case.X)


def test_the_grid_has_every_model_and_every_backend() -> None:
    assert {row.model for row in ROWS} == exported(regbayes.models, Model)
    assert exported(regbayes.inference, Backend) == BACKENDS


PROGRAMS = [(row, case) for row in ROWS for case in row.cases]


@pytest.mark.parametrize(("row", "name"), PROGRAMS, ids=lambda value: getattr(value, "model", value or "plain"))
def test_every_program_runs_and_is_that_of_its_parts(row: Row, name: str) -> None:
    case = row.cases[name]
    with torch.random.fork_rng():
        trace = poutine.trace(case.model).get_trace(case.X, case.y if case.lengths is None else case.lengths)
    assert trace.log_prob_sum().isfinite()
    if row.model != "MultiTaskInfiniteLatentSVM":  # test_mt_ilsvm compares it
        check_model(case.model, case.X, case.y, lengths=case.lengths)


# by day those that the test of files below does not fit as well
KERNELS = {name_of(cell): cell for cell in kernels()}
SERVED = [
    pytest.param(cell, marks=pytest.mark.nightly if name_of(cell) in KERNELS else ()) for cell in cells(served=True)
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("cell", SERVED, ids=name_of)
def test_what_the_grid_has_is_fitted_and_predicts(cell: tuple[Row, str, str]) -> None:
    row, name, way = cell
    case = row.cases[name]
    posterior = WAYS[way].fit(case)
    assert type(posterior) is structure_of(case.model).posterior
    found = answer(posterior, case)
    assert len(found) == 12
    assert found.isfinite().all()
    if case.y is not None:
        assert found.shape == case.y.shape


@pytest.mark.gpu
def test_a_pretended_gpu_refuses_what_a_gpu_refuses(gpu: torch.device) -> None:
    stream = torch.Generator(gpu).manual_seed(0)
    there = torch.randn(3, generator=stream, device=gpu)
    assert there.device.type == gpu.type
    assert torch.equal(there + torch.tensor(1.0), there + 1)  # a number may lie anywhere
    with pytest.raises(RuntimeError, match="same device"):
        there + torch.ones(3)
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, generator=stream)
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, generator=torch.Generator(), device=gpu)
    for read in (np.asarray, lambda tensor: tensor.numpy()):
        with pytest.raises(TypeError, match="numpy"):
            read(there)
    leaf = there.cpu().to(gpu).requires_grad_()
    (grad,) = torch.autograd.grad(leaf.square().sum(), leaf)
    assert torch.equal(grad, 2 * there)


@pytest.mark.gpu
@pytest.mark.one_in(28)
@pytest.mark.parametrize("cell", cells(served=True), ids=name_of)
def test_rows_of_a_gpu_are_fitted_there(cell: tuple[Row, str, str], gpu: torch.device, tmp_path: Path) -> None:
    row, name, way = cell
    case = row.cases[name].to(gpu)
    if row.model in ("LDA", "MedLDA") and way == "collapsed":
        with pytest.raises(NotImplementedError, match=r"compiled for a CPU alone\. Take scan='blocked'"):
            WAYS[way].fit(case)
        return
    posterior = WAYS[way].fit(case)
    on_host = {name for name, values in posterior.samples.items() if values.device.type != gpu.type}
    assert on_host <= {"num_seen"}  # a number alone
    posterior.save(tmp_path / "file")
    again = Posterior.load(tmp_path / "file")
    for one in (posterior, again):
        assert answer(one, case).device.type == gpu.type
    assert torch.equal(answer(again, case), answer(posterior, case))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("cell", KERNELS.values(), ids=KERNELS)
def test_a_fit_goes_on_bit_for_bit_and_is_kept(cell: tuple[Row, str, str], tmp_path: Path) -> None:
    """Of a fit without checkpoints it is what the same seed gives again."""
    row, name, way = cell
    case, backend, file = row.cases[name], WAYS[way].backend, tmp_path / "file"
    if backend.resumable:
        shorter = dict.fromkeys({"num_samples", "num_steps", "max_steps"} & {*backend.may_grow()}, 1)
        Way(backend.replace(**shorter)).fit(case, checkpoint=file)
    whole, resumed = (WAYS[way].fit(case, **files) for files in ({}, {"resume": file} if backend.resumable else {}))
    whole.save(file)
    loaded = Posterior.load(file)
    assert (type(loaded), repr(loaded)) == (type(whole), repr(whole))
    assert torch.equal(answer(loaded, case), answer(whole, case))
    for found in (resumed, loaded):
        torch.testing.assert_close(found.samples, whole.samples, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(found.trace.values, whole.trace.values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("cell", KERNELS.values(), ids=KERNELS)
def test_files_keep_fits_of_single_precision(cell: tuple[Row, str, str], tmp_path: Path) -> None:
    row, name, way = cell
    case = row.cases[name]
    whole = WAYS[way].fit(replace(case, X=case.X.float()))
    whole.save(tmp_path / "file")
    loaded = Posterior.load(tmp_path / "file")
    torch.testing.assert_close(loaded.samples, whole.samples, rtol=0, atol=0, equal_nan=True)


@contextmanager
def default_dtype() -> Iterator[None]:
    """A context in which torch's default dtype is float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SETTINGS = {
    "float64": default_dtype,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "device": lambda: torch.device("meta"),
}


@pytest.mark.one_in(32)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("cell", [cell for cell in cells(served=True) if not WAYS[cell[2]].stream], ids=name_of)
def test_a_fit_does_not_depend_on_settings_of_torch(cell: tuple[Row, str, str], setting: str) -> None:
    row, name, way = cell
    usual = WAYS[way].fit(row.cases[name])
    with SETTINGS[setting]():
        case = row.cases[name]
        found = WAYS[way].fit(replace(case, X=case.X + 0.0) if setting == "inference_mode" else case)
        given = replace(case, X=case.X.numpy()) if setting == "device" and not case.X.is_sparse else case
        said = answer(found, given)
    torch.testing.assert_close(found.samples, usual.samples, rtol=1e-12, atol=0, equal_nan=True)
    np.testing.assert_allclose(said, answer(usual, given), rtol=1e-12)


@pytest.mark.parametrize("cell", cells(served=False), ids=name_of)
def test_what_the_grid_has_not_is_refused(cell: tuple[Row, str, str]) -> None:
    """By a sentence that names the backends of this model, or what this model's backend does not have."""
    row, name, way = cell
    kind = type(WAYS[way].backend).__name__
    able = backends_of(row, name)
    if kind in able:
        with pytest.raises((ValueError, NotImplementedError), match=WAYS[way].option or "no option"):
            WAYS[way].fit(row.cases[name])
        return
    with pytest.raises(NotImplementedError) as refusal:
        WAYS[way].fit(row.cases[name])
    named = set(re.findall(r"\w+", str(refusal.value)))
    assert named & BACKENDS == able | {kind}


SCANS = [
    (row, name, way)
    for row, name, way in cells(served=True)
    if way in COLUMNS["Gibbs"] and "loss" in row.cases[name].model.get_params(deep=False)
]
REFUSED = r"Softmax has no known integral .* which scan='collapsed' needs|it needs loss=Logistic\(\)"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("cell", SCANS, ids=name_of)
def test_a_loss_with_log_factor_alone_serves_every_scan(cell: tuple[Row, str, str]) -> None:
    """Whatever cannot be is refused in one wording: labels that state probabilities, and an integral over classes."""
    row, name, way = cell
    case = row.cases[name]
    own = case.model.loss
    loss = Softmax() if own.meets else Absolute() if own.target == "real" else Ramp()
    case = dataclasses.replace(case, model=case.model.replace(loss=loss))
    if getattr(case.model, "is_coupled", False) or (loss.meets and (row.model, way) == ("InfiniteSVM", "collapsed")):
        with pytest.raises((ValueError, NotImplementedError), match=REFUSED):
            WAYS[way].fit(case)
        return
    found = answer(WAYS[way].fit(case), case)
    assert len(found) == 12
    assert found.isfinite().all()


def of_signs() -> list[tuple[Row, str]]:
    """The cases with a binary loss, and targets if they have any."""
    losses = ((row, name, getattr(case.model, "loss", None)) for row in ROWS for name, case in row.cases.items())
    return [(row, name) for row, name, loss in losses if loss is not None and loss.binary]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("row", "name"), of_signs(), ids=lambda value: getattr(value, "model", value or "plain"))
def test_a_loss_of_which_nothing_but_the_factor_is_known_serves_or_is_refused_in_its_own_words(row, name) -> None:
    """Small variance takes it wherever it serves the model; SVI says what is missing, the same of every structure."""
    case = row.cases[name]
    model = case.model.replace(loss=Ramp()) if "loss" in case.model.get_params(deep=False) else None
    if model is None:  # without classifiers
        return
    case = dataclasses.replace(case, model=model)
    if getattr(model, "joint", "product") == "product":
        words = {"gibbs": r"^Ramp has no closed expectation", "averaging": r"^Ramp has no convex conjugate"}
        for rule, way in (("gibbs", "coordinate ascent"), ("averaging", "averaging rule")):
            if way in row.ways_of(name):
                with pytest.raises(NotImplementedError, match=words[rule]):
                    WAYS[way].fit(case)
    if "small variance" in row.ways_of(name):
        values = WAYS["small variance"].fit(case).trace.values[0]
        assert (values.diff() <= 1e-9 * values[:-1].abs()).all()
