"""The installed package: what `import regbayes` gives, what the archives hold, and the bounds of its dependencies."""

from __future__ import annotations

import pydoc
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from mutants import MUTANTS, copy_to

import regbayes

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SUBPACKAGES = ["cli", "datasets", "estimators", "inference", "models", "plots", "testing"]
PIN = re.compile(r"^([\w-]+)==([\w.+]+)$", re.M)


def python(code: str, cwd: Path) -> str:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True).stdout


def test_import_is_quick_and_subpackages_come_when_they_are_used(tmp_path):
    heavy = "{'torch', 'numpy', 'sklearn', 'numba', 'matplotlib'} & set(sys.modules)"
    assert python(
        f"import sys, regbayes; print({heavy}, sorted(set(dir(regbayes)) & {set(SUBPACKAGES)}))", tmp_path
    ) == (f"set() {SUBPACKAGES}\n")
    assert python("import regbayes; print(regbayes.models.DPM.__name__)", tmp_path) == "DPM\n"


def test_import_works_from_the_checkout_too():
    assert python("from regbayes.models import DPM; print(DPM.__name__)", ROOT) == "DPM\n"


def test_version_and_names():
    release = PROJECT["project"]["version"]
    assert regbayes.__version__ == version("regbayes") == release
    assert f"\nversion: {release}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {release} (" in (ROOT / "CHANGELOG.md").read_text()
    assert regbayes.__all__ == SUBPACKAGES
    assert all(getattr(regbayes, name) is import_module(f"regbayes.{name}") for name in SUBPACKAGES)
    with pytest.raises(AttributeError, match=r"'regbayes' has no attribute 'modles'; it has: cli, .*, models, "):
        regbayes.modles  # noqa: B018


def test_help_says_what_there_is():
    text = pydoc.plain(pydoc.render_doc(regbayes))
    assert "posterior = SmallVariance().fit(model, X, y)" in text
    assert f"\nVERSION\n    {regbayes.__version__}" in text
    contents = text.split("PACKAGE CONTENTS")[1]
    for name in SUBPACKAGES:
        assert re.search(rf"^ +{name} {{2,}}\S", text, re.M), f"{name} is not described"
        assert re.search(rf"^    {name}\b", contents, re.M)


def test_every_folder_with_code_is_packaged():
    folders = PROJECT["tool"]["setuptools"]["package-dir"]
    found = {
        ".".join([package, *init.parent.relative_to(ROOT / folder).parts])
        for package, folder in folders.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert found == set(PROJECT["tool"]["setuptools"]["packages"])


def test_lowest_constraints_are_the_bounds_of_the_project():
    project = PROJECT["project"]
    extras = [item for name in ("arviz", "test") for item in project["optional-dependencies"][name]]
    bounds = dict(item.split(">=") for item in [*project["dependencies"], *extras])
    lowest = dict(PIN.findall((ROOT / "constraints-lowest.txt").read_text()))
    assert bounds.keys() <= lowest.keys()
    for name, bound in bounds.items():
        assert f"{lowest[name]}.".startswith(f"{bound}."), f"{name} is {lowest[name]}, but its bound is {bound}"


def test_tested_set_names_every_dependency():
    project = PROJECT["project"]
    pinned = dict(PIN.findall((ROOT / "constraints.txt").read_text()))
    extras = [item for group in project["optional-dependencies"].values() for item in group]
    names = {re.split(r"[\[>]", item)[0] for item in [*project["dependencies"], *extras]} - {"regbayes"}
    assert names <= pinned.keys()


def build(kind: str, cwd: Path, folder: Path) -> Path:
    code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=cwd, capture_output=True, check=True)
    return next(folder.glob("*.tar.gz" if kind == "sdist" else "*.whl"))


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Names in the source archive, and in the wheel that is built from it alone."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("archives")
    checkout = folder / "checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".*", "*.egg-info", "build", "__pycache__"))
    sdist = build("sdist", checkout, folder)
    with tarfile.open(sdist) as source:
        source.extractall(folder / "unpacked", filter="data")
    wheel = build("wheel", next((folder / "unpacked").iterdir()), folder)
    with tarfile.open(sdist) as source, zipfile.ZipFile(wheel) as built:
        return {name.partition("/")[2] for name in source.getnames()}, set(built.namelist())


@pytest.mark.slow
def test_source_archive_is_whole(archives):
    folders = ("tutorials", "benchmarks", "tests")
    wanted = {str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).glob("*.[pi]*")}
    files = {"constraints.txt", "constraints-lowest.txt", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md"}
    assert wanted | files <= archives[0]
    assert not any("__pycache__" in name for name in archives[0])


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(archives):
    folders = PROJECT["tool"]["setuptools"]["package-dir"]
    modules = {
        "/".join([*package.split("."), *path.relative_to(ROOT / folder).parts])
        for package, folder in folders.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name for name in archives[1] if name.endswith(".py")} == modules
    assert {"regbayes/py.typed", "regbayes/datasets/tables/galaxy.csv"} <= archives[1]
    assert all(name.split("/")[0].startswith("regbayes") for name in archives[1])


@pytest.mark.slow
def test_types_reach_a_user(tmp_path):
    """Arguments of models and backends, and the posterior of each model's structure, by which an editor completes."""
    pytest.importorskip("mypy")
    copy_to(tmp_path)  # mypy does not follow the import hook of an editable install
    script = tmp_path / "script.py"
    script.write_text(USER_CODE)
    command = [sys.executable, "-m", "mypy", "--follow-imports", "silent", str(script)]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout.replace("builtins.", "")
    revealed = re.findall(r'Revealed type is "(?:[a-z_]+\.)*(.*)"', found)
    names = [f"{kind}Posterior" for kind in ("Partition", "Sequence", "MultiLabel", "Feature", "Projection")]
    assert revealed == ["int", *names, "list[list[Any]]"], found
    assert 'incompatible type "str"' in found
    assert 'did you mean "lengths"' in found


USER_CODE = """
from regbayes.inference import SVI, Gibbs
from regbayes.models import BNMC, DPM, IHMM, LDA, InfiniteLatentSVM, InfiniteSVM, MultiTaskInfiniteLatentSVM

reveal_type(DPM().truncation)
SVI(num_steps="x")
reveal_type(Gibbs().fit(InfiniteSVM(), [[0.0]], [1]))
reveal_type(Gibbs().fit(IHMM(), [[0.0]], lengths=[1]))
reveal_type(Gibbs().fit(BNMC(), [[0.0]], [[1]]))
reveal_type(SVI().fit(InfiniteLatentSVM(), [[0.0]], [1], checkpoint="file"))
reveal_type(SVI().fit(MultiTaskInfiniteLatentSVM(), [[0.0]], [[1]]))
reveal_type(SVI().fit(LDA(), [[0.0]]).top_words())
SVI().fit(LDA(), [[0.0]], length=[1])
"""


def test_each_mutant_breaks_one_place() -> None:
    texts = {file: (ROOT / file).read_text() for file, _ in MUTANTS}
    stale = [(file, line) for (file, _), lines in MUTANTS.items() for line in lines if texts[file].count(line) != 1]
    assert not stale
