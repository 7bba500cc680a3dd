"""The cache of machine code: it notices a change in any file that was compiled, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import regbayes.inference

PROGRAM = """
import sys, types
from pathlib import Path

root = Path(sys.argv[1])
for name in ("copied", "copied.compiled", "copied.gibbs"):  # the compiled files alone, without what imports torch
    package = types.ModuleType(name)
    package.__path__ = [str(root / "/".join(name.split(".")[1:]))]
    sys.modules[name] = package
from copied.compiled import decorators
from copied.gibbs import _entry

assert Path(decorators.__file__).parent.parent == root
print(_entry.add(2.0), sum(_entry.add.stats.cache_hits.values()))
"""


@pytest.fixture
def run(tmp_path):
    """Runs an entry point of a copied package, with a cache of its own."""
    root = tmp_path / "inference"
    (root / "gibbs").mkdir(parents=True)
    (root / "compiled").mkdir()
    shutil.copy(Path(regbayes.inference.__file__).parent / "compiled" / "decorators.py", root / "compiled")
    (root / "gibbs" / "_shared.py").write_text(
        "from ..compiled.decorators import inner\n\n\n@inner\ndef shared(x):\n    return x + 1.0\n"
    )
    (root / "gibbs" / "_entry.py").write_text(
        "from ..compiled.decorators import entry\nfrom ._shared import shared\n\n\n"
        "@entry\ndef add(x):\n    return shared(x)\n"
    )

    def run() -> tuple[float, int]:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", PROGRAM, str(root)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        value, hits = done.stdout.split()
        return float(value), int(hits)

    run.root = root
    return run


@pytest.mark.slow
def test_machine_code_follows_the_files_that_are_inlined(run):
    assert run() == (3.0, 0)
    assert run() == (3.0, 1)
    (run.root / "other.py").write_text("nothing = 0\n")
    assert run() == (3.0, 1)
    shared = run.root / "gibbs" / "_shared.py"
    shared.write_text(shared.read_text().replace("1.0", "5.0"))
    assert run() == (7.0, 0)
    shared.write_text(shared.read_text().replace("5.0", "1.0"))
    assert run() == (3.0, 1)  # both are kept


def test_every_compiled_function_is_made_by_the_shared_decorators():
    folder = Path(regbayes.inference.__file__).parent
    for path in folder.rglob("*.py"):
        source = path.read_text()
        if path.name != "decorators.py":
            assert "njit" not in source, path
        if "decorators import" in source and not path.name.startswith("_"):
            pytest.fail(f"{path} compiles code, but no digest covers it: its name must begin with an underscore.")
