"""Fits that stop and go on: only the same fit does, bit for bit, and Ctrl-C never waits long."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from setups import FAMILIES, mixture_rows

from regbayes.inference import SVI, FitInterrupted, Gibbs, SmallVariance
from regbayes.inference.gibbs.scans import collapsed, slots
from regbayes.inference.running.files import read_file, write_file
from regbayes.inference.running.sweeps import Sweeps
from regbayes.models import DDPM, DPM, IHMM, LDA, Hinge, InfiniteSVM, MultinomialDirichlet

pytestmark = pytest.mark.usefixtures("few_restarts")

GENERATOR = torch.Generator().manual_seed(0)
Y = torch.arange(40) % 2
X = torch.randn((40, 2), generator=GENERATOR, dtype=torch.float64) + 2.0 * Y.unsqueeze(1)
GIBBS = Gibbs(num_samples=2, num_warmup=2, thinning=2, scan="slice", split_merge=0, init=torch.arange(40) % 3)
BATCHES = SVI(num_steps=3, batch_size=20)
THERE = "the fit of the checkpoint"
MOVED = torch.tensor([1, *[0] * 39])


# -- the same fit and no other -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "changes", "name"),
    [
        (GIBBS, {"X": X + 1e-12}, f"X has other rows than {THERE}"),
        (GIBBS, {"X": X.numpy().copy(order="F")}, None),
        (GIBBS, {"y": Y.flip(0)}, f"y has other rows than {THERE}"),
        (GIBBS, {"X": X[:-1], "y": Y[:-1]}, rf"X has shape \[39, .\], but shape \[40, .\] in {THERE}"),
        (GIBBS, {"X": X.float()}, f"X has numbers of type float32, but numbers of type float64 in {THERE}"),
        (GIBBS, {"y": Y + 5}, f"model.classes has other values than {THERE}"),
        (GIBBS, {"model": InfiniteSVM(loss=Hinge(2.0))}, "its model.loss.strength is .*, here it is .*"),
        (GIBBS, {"backend": GIBBS.replace(init=GIBBS.init[MOVED])}, f"backend.init has other values than {THERE}"),
        (GIBBS, {"backend": GIBBS.replace(init=GIBBS.init.clone(), progress=False)}, None),
        (GIBBS, {"backend": BATCHES}, "its backend.class is .*, here it is .*"),
        (BATCHES, {"backend": BATCHES.replace(num_steps=4)}, "its backend.num_steps is .*, here it is .*"),
        (BATCHES, {"backend": BATCHES.replace(batch_size=None)}, "its backend.batch_size is 20, here it is None"),
    ],
)
def test_another_fit_is_refused_by_name(
    backend: Any, changes: dict[str, Any], name: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "chain.pt"
    fit = {"model": InfiniteSVM(), "X": X, "y": Y, "backend": backend}
    first = backend.fit(fit["model"], X, Y, checkpoint=file)
    fit |= changes
    if name is None:
        again = fit["backend"].fit(fit["model"], fit["X"], fit["y"], resume=file)
        assert torch.equal(again.samples["weights"], first.samples["weights"])
        return
    with pytest.raises(
        ValueError, match=rf"chain\.pt' was written by another fit: {name}\. Resume .*num_full_steps=0\.$"
    ):
        fit["backend"].fit(fit["model"], fit["X"], fit["y"], resume=file)


def test_other_lengths_and_other_sparse_rows_are_other_data(tmp_path: Path) -> None:
    file, backend = tmp_path / "chain.pt", Gibbs(num_samples=1, num_warmup=1, scan="blocked", num_generative=0)
    backend.fit(IHMM(truncation=3), X, lengths=[20, 20], checkpoint=file)
    with pytest.raises(ValueError, match=r"its data\.lengths is '\[20, 20\]', here it is '\[19, 21\]'"):
        backend.fit(IHMM(truncation=3), X, lengths=[19, 21], resume=file)
    counts = scipy.sparse.csr_matrix(np.eye(6) + np.eye(6)[::-1])
    backend.fit(DPM(MultinomialDirichlet()), counts, checkpoint=file)
    backend.fit(DPM(MultinomialDirichlet()), counts.tocsc(), resume=file)
    for other in (2 * counts, counts[:, [1, 0, 2, 3, 4, 5]], counts[[1, 0, 2, 3, 4, 5]]):
        with pytest.raises(ValueError, match=r"fit: X has (other rows|shape)"):
            backend.fit(DPM(MultinomialDirichlet()), other, resume=file)


@pytest.mark.parametrize(
    ("backend", "growth"),
    [
        (GIBBS, {"num_samples": 5}),
        (GIBBS, {"num_samples": 3, "num_chains": 3}),
        (SVI(num_steps=2), {"num_steps": 30}),
        (SVI(num_steps=2, num_restarts=2), {"num_steps": 30, "num_restarts": 3}),
        (BATCHES, {"num_restarts": 2}),
        (BATCHES.replace(num_full_steps=0), {"num_steps": 6}),
        (SmallVariance(max_steps=2), {"max_steps": 100}),
        (SmallVariance(num_restarts=1), {"num_restarts": 2}),
    ],
)
def test_a_finished_fit_grows_bit_for_bit_and_does_not_shrink(
    backend: Any, growth: dict[str, int], tmp_path: Path
) -> None:
    file, longer, grown = tmp_path / "chain.pt", backend.replace(**growth), tmp_path / "grown.pt"
    short = backend.fit(DPM(), X, checkpoint=file)
    same, whole = backend.fit(DPM(), X, resume=file), longer.fit(DPM(), X)
    resumed = longer.fit(DPM(), X, resume=file, checkpoint=grown)
    for found, expected in ((same, short), (resumed, whole)):
        assert found.num_draws == expected.num_draws
        assert torch.equal(found.trace.values.nan_to_num(), expected.trace.values.nan_to_num())
        for name, value in expected.samples.items():
            assert torch.equal(found.samples[name], value), name
    if short.trace.values.shape != whole.trace.values.shape:
        with pytest.raises(ValueError, match="more than the"):
            backend.fit(DPM(), X, resume=grown)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[
            ({"checkpoint_every": every}, "checkpoint_every is .*; it must be a number of at least 0")
            for every in (-1.0, np.nan, np.inf, "often", True, None)
        ],
        *[({"resume": path}, "resume is .*; expected the path of a file") for path in ("", 7, b"chain.pt")],
        ({"on_interrupt": "stop"}, "on_interrupt is 'stop'"),
    ],
)
def test_options_of_files_are_checked(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        GIBBS.fit(InfiniteSVM(), X, Y, checkpoint=tmp_path / "chain.pt", **options)


def test_seconds_between_checkpoints_reach_the_engine(tmp_path: Path) -> None:
    class Watched(Hinge):
        seen = False

        def augment(self, score, y, generator):
            Watched.seen = Watched.seen or (tmp_path / "chain.pt").exists()
            return super().augment(score, y, generator)

    for every, seen in ((60, False), (np.float64(0.0), True)):
        (tmp_path / "chain.pt").unlink(missing_ok=True)
        Watched.seen = False
        GIBBS.fit(InfiniteSVM(loss=Watched()), X, Y, checkpoint=tmp_path / "chain.pt", checkpoint_every=every)
        assert Watched.seen == seen


# -- files that somebody changed, with the digest that goes with it ----------------------------------------------------

SMALL, DIGITS = Gibbs(num_samples=2, num_warmup=1, scan="collapsed", num_generative=0), (X[:12], Y[:12])
FEW = InfiniteSVM(loss=Hinge())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chains") / "chain.pt"
    SMALL.fit(FEW, *DIGITS, checkpoint=path)
    return path


NO_STATE, OTHER_KIND = "The file has no state of this fit", "The file has a state and draws that differ in kind"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("state", "weights"), lambda w: w[:0, :0, :0], "assignments has labels from 0 to 1; expected 0 to -1"),
        (("state", "weights"), lambda w: w.repeat(1, 2, 1), NO_STATE),
        (("state", "weights"), lambda w: w.repeat(1, 1, 2), OTHER_KIND),
        (("state", "weights"), lambda w: w.tolist(), "for 'weights' in its state"),
        (("state", "weights"), None, "The file has a state of"),
        (("state", "assignments"), lambda z: z[:-1], "assignments of shape .* for 12 rows"),
        (("state", "assignments"), lambda z: z + 50, NO_STATE),
        (("state", "assignments"), lambda z: z - 50, NO_STATE),
        (("generator",), lambda state: state[:100], "The file has no state of a generator"),
        (("generator",), lambda state: state.float(), "The file has no state of a generator"),
        (("generator",), lambda state: torch.zeros_like(state), "The file has no state of a generator"),
        (("draws", 0, "weights"), None, r"no 'weights' in its draws|of several kinds"),
        (("draws", 0, "weights"), lambda w: w.repeat(1, 1, 2), OTHER_KIND),
        (("draws", 0, "weights"), lambda w: w.repeat(2, 1, 1), "'weights' of shape"),
        (("draws", 0, "weights"), lambda w: w.squeeze(-1), "of several kinds in one chain"),
        (("draws", 0, "weights"), lambda w: w.float(), "of several kinds in one chain"),
        (("draws", 0, "assignments"), lambda z: z[:-1], OTHER_KIND),
        (("draws", 0, "assignments"), lambda z: z.double(), "'assignments' of type torch.float64"),
        (("draws", 0, "assignments"), lambda z: z + 50, "'assignments' from 5"),
        (("draws",), lambda draws: draws[:1], "The file has 1 draws of a chain, not 2"),
        (("draws",), lambda draws: [1, 2], "The file has 1 for its draws"),
        (("draws",), lambda draws: [{"a": torch.ones(1)}] * 2, "no 'assignments' in its samples"),
        (("step",), lambda step: step - 1, "values of shape"),
        (("values",), lambda values: values * torch.nan, "values of shape"),
        (("finished",), lambda finished: 1, "for 'finished' in its chain"),
    ],
)
def test_a_changed_chain_is_refused_in_a_sentence(place, value, message: str, written: Path, tmp_path: Path) -> None:
    """Before any work; None: nothing is there any more."""
    content = read_file(written, "checkpoint")
    *outer, name = place
    part = content["chains"][0]
    for key in outer:
        part = part[key]
    was = part.pop(name)
    part |= {name: value(was)} if value else {}
    write_file(tmp_path / "changed.pt", "checkpoint", content)
    with pytest.raises(ValueError, match=message) as refused:
        SMALL.fit(FEW, *DIGITS, resume=tmp_path / "changed.pt")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_changed_state_of_a_warm_up_is_refused_before_compiled_code_reads_it(tmp_path: Path) -> None:
    """Of a chain without draws; topics that do not exist would be written to."""
    counts = torch.randint(3, (6, 4), generator=torch.Generator().manual_seed(0))
    backend, path = Gibbs(num_samples=1, num_warmup=2, progress=False), tmp_path / "chain.pt"
    backend.fit(LDA(num_topics=2), counts, checkpoint=path)
    content = read_file(path, "checkpoint")
    chain = content["chains"][0]
    chain |= {"step": 1, "draws": [], "values": chain["values"][:1], "times": chain["times"][:1], "finished": False}
    write_file(path, "checkpoint", content)
    assert backend.fit(LDA(num_topics=2), counts, resume=path).num_draws == [1]
    state = chain["state"]
    for name, value, message in (
        ("assignments", state["assignments"] + 50, "'assignments' from 5"),
        ("assignments", state["assignments"][:-1], "assignments of shape"),
        ("document_counts", state["document_counts"][:-1], "document_counts of shape"),
        ("word_counts", state["word_counts"][:-1], "word_counts has shape"),
    ):
        chain["state"] = state | {name: value}
        write_file(path, "checkpoint", content)
        with pytest.raises(ValueError, match=message):
            backend.fit(LDA(num_topics=2), counts, resume=path)


@pytest.mark.parametrize("sweep", [1, 2])
def test_what_the_first_sweep_of_a_chain_of_a_file_raises_is_the_files(sweep: int, written, monkeypatch) -> None:
    """Later ones fail as those of any other chain."""
    advance, steps = Sweeps.advance, []

    def broken(self, chain, *others):
        steps.append(chain.step)
        if len(steps) == sweep:
            raise RuntimeError("shapes do not match")
        advance(self, chain, *others)

    monkeypatch.setattr(Sweeps, "advance", broken)
    kind, message = (ValueError, NO_STATE) if sweep == 1 else (RuntimeError, "^shapes")
    with pytest.raises(kind, match=message):
        SMALL.replace(num_samples=4).fit(FEW, *DIGITS, resume=written)
    assert steps == [3, 4][:sweep]


def test_a_file_that_is_cut_short_or_missing_is_refused_by_name(written: Path, tmp_path: Path) -> None:
    whole = written.read_bytes()
    for size in (0, 60, len(whole) // 2, len(whole) - 1):
        (tmp_path / "short.pt").write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"short\.pt' cannot be read as a checkpoint: it is cut short or changed"):
            SMALL.fit(FEW, *DIGITS, resume=tmp_path / "short.pt")
    with pytest.raises(FileNotFoundError, match=r"resume is .*none\.pt.*, but there is no such file"):
        SMALL.fit(FEW, *DIGITS, resume=tmp_path / "none.pt")


# -- Ctrl-C in the middle of a sweep -----------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("model", [DPM(), InfiniteSVM(), DDPM(), IHMM()], ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("compiled", [True, False])
def test_a_scan_in_pieces_is_the_scan_in_one(model: Any, compiled: bool, monkeypatch) -> None:
    if not compiled:
        for module in (slots, collapsed):
            monkeypatch.setattr(module, "is_compiled", lambda family: False)
    backend = Gibbs(
        num_samples=2, num_warmup=1, num_generative=2, scan="direct" if isinstance(model, IHMM) else "collapsed"
    )
    fits = []
    for work in (2**40, 1):
        monkeypatch.setattr(slots, "_MOST_WORK", work)
        fits.append(backend.fit(model, X[:16], Y[:16] if isinstance(model, InfiniteSVM) else None).samples)
    for name, value in fits[0].items():
        assert torch.equal(value, fits[1][name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_code_returns_before_long(family: Any, monkeypatch) -> None:
    """However many points there are: it reads so many sums of statistics at once, and Ctrl-C waits for no more."""
    rows, sizes = mixture_rows(family, 200)[0], []
    visit = slots.Compiled.visit

    def watched(self, position, order, levels):
        sizes.append((len(order) - position) * len(self.slots.sizes) * len(self.slots.model.likelihood.prior()))
        return visit(self, position, order, levels)

    monkeypatch.setattr(slots.Compiled, "visit", watched)
    monkeypatch.setattr(slots, "_MOST_WORK", 500)
    Gibbs(num_samples=1, num_warmup=1, scan="collapsed").fit(DPM(family()), rows)
    assert max(sizes) <= 500
    assert len(sizes) > 10


def test_ctrl_c_in_a_collapsed_scan_is_not_held_up_by_the_rest_of_it(monkeypatch) -> None:
    visit, calls = slots.Compiled.visit, []

    def pressed(self, *arguments):
        calls.append(1)
        if len(calls) == 400:
            os.kill(os.getpid(), signal.SIGINT)
        return visit(self, *arguments)

    monkeypatch.setattr(slots.Compiled, "visit", pressed)
    monkeypatch.setattr(slots, "_MOST_WORK", 1)  # one point at a time, 40 of them in each of four rounds
    backend = Gibbs(num_samples=6, num_warmup=0, scan="collapsed", split_merge=0)
    with pytest.warns(FitInterrupted, match="after step 2 of 6"):
        stopped = backend.fit(DPM(), X)
    assert len(calls) == 400
    monkeypatch.undo()
    whole = backend.replace(num_samples=2).fit(DPM(), X)
    assert torch.equal(stopped.samples["assignments"], whole.samples["assignments"])


@pytest.mark.parametrize(
    "backend",
    [SmallVariance(), SVI(num_steps=40), BATCHES.replace(num_steps=40), Gibbs(num_samples=20, num_warmup=0)],
    ids=["SmallVariance", "SVI", "minibatches", "Gibbs"],
)
@pytest.mark.parametrize("delay", [0.05, 0.2])
@pytest.mark.filterwarnings("ignore::regbayes.inference.FitInterrupted", "ignore::regbayes.inference.TruncationWarning")
def test_ctrl_c_at_any_time_leaves_a_chain_that_goes_on_bit_for_bit(backend: Any, delay: float, tmp_path: Path) -> None:
    rows = torch.cat([X + 5 * k for k in range(40)])
    file, whole = tmp_path / "chain.pt", backend.fit(DPM(), rows)
    handler = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, delay)
    try:
        backend.fit(DPM(), rows, checkpoint=file)
    except KeyboardInterrupt:  # before the first sweep, or after the last
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    resumed = backend.fit(DPM(), rows, resume=file if file.exists() else None)
    torch.testing.assert_close(resumed.trace.values, whole.trace.values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(resumed.samples["assignments"], whole.samples["assignments"])
