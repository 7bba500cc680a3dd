"""The cache of machine code: it notices a change in any file that was compiled, and nothing else."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numba import njit
from numba.core import event
from numba.core.errors import TypingError

import regbayes.inference
from regbayes.inference import SVI
from regbayes.inference.compiled import decorators
from regbayes.inference.compiled.clock import COMPILATION
from regbayes.inference.running.sweeps import Sweeps
from regbayes.models import DPM

PACKAGE = Path(regbayes.inference.__file__).parents[1]

PROGRAM = """
import sys, types
from pathlib import Path
from typing import NamedTuple

root = Path(sys.argv[1])
for folder in ("", "inference", "inference/compiled", "inference/gibbs", "models", "models/compiled"):
    package = types.ModuleType("/".join(["copied", folder]).strip("/").replace("/", "."))  # without what imports torch
    package.__path__ = [str(root / folder)]
    sys.modules[package.__name__] = package
from copied.inference.compiled import decorators
from copied.inference.gibbs import _entry

class Mine(NamedTuple):
    number: float

    def shared(self, x):
        return x * self.number

if sys.argv[2] == "ours":
    from copied.models._form import Form
elif sys.argv[2] == "script":
    Form = Mine
else:
    sys.path.append(str(root))
    Form = __import__(sys.argv[2]).Form
add = decorators.entry_of(_entry.add, Form(1.0))
print(add(Form(1.0), 2.0), sum(add.stats.cache_hits.values()))
"""
FORM = """from typing import NamedTuple


class Form(NamedTuple):
    number: float

    def shared(self, x):
        return x + self.number
"""
ENTRY = """from ..compiled.decorators import brought, entry


@brought
def shared(form, x):
    raise NotImplementedError


@entry
def add(form, x):
    return shared(form, x)
"""


@pytest.fixture
def run(tmp_path):
    """Runs an entry point of a copied package in a process of its own, with a cache of its own, and a form of this
    package, of another file or of the script itself; (result, times that the cache had the machine code)."""
    files = {"inference/gibbs/_entry.py": ENTRY, "models/_form.py": FORM, "outsider.py": FORM, "moved.py": FORM}
    for name in ("inference/compiled/clock.py", "inference/compiled/decorators.py", "models/compiled/scalars.py"):
        files[name] = (PACKAGE / name).read_text()
    for name, source in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)

    def run(form: str = "ours") -> tuple[float, int]:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        (tmp_path / "program.py").write_text(PROGRAM)
        command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), form]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        value, hits = done.stdout.split()
        return float(value), int(hits)

    run.root = tmp_path
    return run


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.nightly
def test_machine_code_follows_the_files_that_are_inlined(run):
    assert run() == (3.0, 0)
    assert run() == (3.0, 1)
    (run.root / "inference" / "other.py").write_text("nothing = 0\n")
    assert run() == (3.0, 1)
    edit(run.root / "models" / "_form.py", "x +", "5.0 * x +")
    assert run() == (11.0, 0)
    edit(run.root / "models" / "_form.py", "5.0 * x +", "x +")
    assert run() == (3.0, 1)  # both are kept


@pytest.mark.nightly
@pytest.mark.slow
def test_machine_code_of_an_outsider_follows_its_own_file(run):
    assert run("outsider") == (3.0, 0)
    assert run("outsider") == (3.0, 1)
    edit(run.root / "outsider.py", "x +", "5.0 * x +")
    assert run("outsider") == (11.0, 0)
    edit(run.root / "outsider.py", "5.0 * x +", "x +")
    assert run("outsider") == (3.0, 1)
    (run.root / "outsider.py").unlink()
    assert run("moved") == (3.0, 0)  # nothing reads what needs the other module
    assert run() == (3.0, 0)


@pytest.mark.slow
def test_a_form_of_a_script_is_compiled_in_each_process_and_leaves_nothing(run):
    assert run("script") == (2.0, 0)
    assert run("script") == (2.0, 0)
    assert not list((run.root / "cache").rglob("*.nbi"))


def test_every_compiled_function_is_made_by_the_shared_decorators():
    allowed = {PACKAGE / "models" / "compiled" / "scalars.py", PACKAGE / "inference" / "compiled" / "decorators.py"}
    for folder in ("inference", "models"):
        for path in (PACKAGE / folder).rglob("*.py"):
            source = path.read_text()
            if path in allowed:
                continue
            assert "njit" not in source, path
            source = source.replace("decorators import entry_of\n", "")  # which makes nothing
            if ("decorators import" in source or "scalars import" in source) and path not in decorators.sources():
                pytest.fail(f"{path} compiles code, but no digest covers it: its name must begin with an underscore.")


def test_models_are_imported_without_numba():
    program = "import sys, regbayes.models; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_compilation_is_timed_apart_functions_within_another_once() -> None:
    @njit
    def inside(x):
        return np.linspace(0.0, x, 5).sum()

    @njit
    def outside(x):
        return inside(x) + inside(2 * x)

    before, begun = COMPILATION.seconds, time.thread_time()
    outside(1.0)
    compiled, whole = COMPILATION.seconds - before, time.thread_time() - begun
    assert whole / 2 < compiled <= whole
    outside(2.0)
    assert COMPILATION.seconds - before == compiled
    assert COMPILATION.depth == 0


class _Collects(event.Listener):
    """Notes whether the garbage collector runs, at every pass of a compilation."""

    def __init__(self) -> None:
        self.found: set[bool] = set()

    def on_start(self, event) -> None:
        self.found.add(gc.isenabled())

    on_end = on_start


def test_the_garbage_collector_pauses_during_a_compilation_even_one_that_fails() -> None:
    @njit
    def inside(x):
        return x + 1

    @njit
    def outside(x):
        return inside(x)

    listener = _Collects()
    with event.install_listener("numba:run_pass", listener):
        outside(1.0)
        assert gc.isenabled()
        with pytest.raises(TypingError):
            outside("1")
        assert gc.isenabled()
        gc.disable()
        try:
            outside(1)
            assert not gc.isenabled()
        finally:
            gc.enable()
    assert listener.found == {False}


def test_whoever_waits_for_a_compilation_is_told_once_before_it(monkeypatch, capsys) -> None:
    said = []
    with COMPILATION.told(lambda: said.append(COMPILATION.depth)), COMPILATION.told(None):
        COMPILATION.start()
        COMPILATION.start()
        assert said == [0]
        COMPILATION.stop()
        COMPILATION.stop()
        njit(lambda x: x + 1)(1)
    assert said == [0]
    njit(lambda x: x + 2)(1)  # nobody waits
    with COMPILATION.told(lambda: said.append("outside")):
        with COMPILATION.told(lambda: said.append("inside")):
            njit(lambda x: x + 3)(1)
        njit(lambda x: x + 4)(1)
    assert said == [0, "inside"]

    start = Sweeps.start
    monkeypatch.setattr(Sweeps, "start", lambda *arguments: (njit(lambda x: x + 5)(1), start(*arguments))[1])
    X = np.random.default_rng(0).normal(size=(20, 2))
    for progress in (True, False):
        SVI(num_steps=2, progress=progress).fit(DPM(truncation=20), X)
        assert ("compiling" in capsys.readouterr().err) == progress
