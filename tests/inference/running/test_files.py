"""Files: what they hold, how they are written, that every changed byte is noticed, and hostile ones."""

from __future__ import annotations

import enum
import errno
import hashlib
import json
import math
import os
import re
import resource
import stat
import subprocess
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from grid import ROWS, WAYS

from regbayes.inference import Gibbs, Posterior, SmallVariance
from regbayes.inference.posterior.shapes import require_samples
from regbayes.inference.running.files import read_file, write_file
from regbayes.models import DPM, DirichletProcess, SphericalGaussian
from regbayes.models.config import Config, class_name

pytestmark = pytest.mark.usefixtures("few_restarts")

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(20, 2, generator=GENERATOR, dtype=torch.float64) + 3.0 * (torch.arange(20) % 2).unsqueeze(1)
Pair = namedtuple("Pair", "one two")


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    YES = "yes"


@pytest.fixture(scope="module")
def fitted() -> Posterior:
    return Gibbs(num_samples=3, num_warmup=3, scan="slice").fit(DPM(), X)


@pytest.fixture
def saved(fitted: Posterior, tmp_path: Path) -> Path:
    fitted.save(tmp_path / "posterior.pt")
    return tmp_path / "posterior.pt"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chains") / "chain.pt"
    Gibbs(num_samples=2, num_warmup=1, scan="slice").fit(DPM(), X, checkpoint=path)
    return path


# -- plain data --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.int64(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array([["a", None], [1, 2.5]], dtype=object), [["a", None], [1, 2.5]]),
        (Level.HIGH, 3),
        (Word.YES, "yes"),
        ((1, (2.5, None), "x"), (1, (2.5, None), "x")),
        (Pair(1, 2), (1, 2)),
        (torch.Size([2, 3]), (2, 3)),
        (OrderedDict(a=1), {"a": 1}),
        ({"$float": "inf"}, {"$float": "inf"}),
        ({"$new": [1], "a": 2}, {"$new": [1], "a": 2}),
        ({np.int64(1): 2, None: 3, (1, "a"): 4, True: 5, 2.5: 6}, {1: 5, None: 3, (1, "a"): 4, 2.5: 6}),
        (math.inf, math.inf),
        (10**80, 10**80),
        ("\ud800 ü", "\ud800 ü"),
        (b"\x00\xff", b"\x00\xff"),
        (torch.float16, torch.float16),
        (torch.device("cpu"), torch.device("cpu")),
    ],
    ids=repr,
)
def test_plain_data_is_made_plain_and_comes_back_equal(
    given: Any, kept: Any, fitted: Posterior, tmp_path: Path
) -> None:
    def the_same(found: Any, value: Any) -> bool:
        inner = zip(found, value, strict=True) if isinstance(value, list | tuple) else []
        return found == value and type(found) is type(value) and all(the_same(*pair) for pair in inner)

    fitted.metadata = {"given": given, "inside": [{"deep": given}]}
    fitted.save(tmp_path / "posterior.pt")
    found = Posterior.load(tmp_path / "posterior.pt").metadata
    assert the_same(found["given"], kept)
    assert the_same(found["inside"][0]["deep"], kept)


@pytest.mark.parametrize(
    "given",
    [
        np.arange(6.0).reshape(2, 3)[:, ::2],
        np.array([True, False]),
        np.arange(3, dtype=np.uint16),
        np.arange(3, dtype=">f4"),
        np.array(2.5),
        np.zeros((0, 3)),
        torch.arange(6.0).reshape(2, 3)[:, ::2],
        torch.arange(3.0, requires_grad=True) * 2,
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(1, 2).expand(3, 2),
        torch.ones(2, dtype=torch.bfloat16),
    ],
    ids=repr,
)
def test_arrays_come_back_as_tensors_of_equal_content(given: Any, tmp_path: Path) -> None:
    write_file(tmp_path / "kept.pt", "plain", {"given": given})
    found = read_file(tmp_path / "kept.pt", "plain")["given"]
    assert type(found) is torch.Tensor
    assert not found.requires_grad
    assert found.shape == given.shape
    assert found.tolist() == given.tolist()


def test_tensors_whose_places_have_one_name_are_kept_apart(tmp_path: Path) -> None:
    names = ["a b", "a_b", "a?b", "__metadata__", "x" * 5000, "y" + "x" * 5000]
    given = {name: torch.full((2,), float(index)) for index, name in enumerate(names)}
    write_file(tmp_path / "kept.pt", "plain", given)
    found = read_file(tmp_path / "kept.pt", "plain")
    assert all(torch.equal(found[name], value) for name, value in given.items())
    assert all(len(name) < 250 for name in safetensors.torch.load_file(tmp_path / "kept.pt"))


def nested() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "given",
    [
        lambda: None,
        {1, 2},
        Path("a"),
        1j,
        date(2020, 1, 1),
        np.datetime64("2020-01-01"),
        np.array(["2020-01-01"], dtype="datetime64[ns]"),
        np.datetime64("2020-01-01", "ns"),
        np.ma.masked_array([1.0, 2.0], mask=[True, False]),
        np.array([1 + 2j]),
        np.array([object()]),
        np.array([2**64 - 1], dtype=np.uint64),
        np.longdouble(1) / 3,
        torch.ones(2, device="meta"),
        torch.eye(2).to_sparse(),
        {torch.ones(2): 1},
        DPM(),
        nested(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_no_file_can_keep_is_refused_at_save(given: Any, fitted: Posterior, saved: Path) -> None:
    before = saved.read_bytes()
    fitted.metadata = {"deep": [given]}
    with pytest.raises(ValueError, match=r"metadata\.deep.* no file can keep|metadata holds itself"):
        fitted.save(saved)
    fitted.metadata = {}
    assert saved.read_bytes() == before
    assert [item.name for item in saved.parent.iterdir()] == ["posterior.pt"]


def test_numpy_hyperparameters_are_kept(tmp_path: Path) -> None:
    """What a grid search over np.logspace gives."""
    prior = DirichletProcess(np.float64(0.5), (np.float64(2.0), np.int64(1)))
    model = DPM(SphericalGaussian(loc=np.array([1.0, 2.0])), prior, truncation=np.int64(4))
    posterior = SmallVariance(penalty=np.float32(4.0), max_steps=np.int64(3)).fit(model, X)
    posterior.save(tmp_path / "posterior.pt")
    loaded = Posterior.load(tmp_path / "posterior.pt")
    assert loaded.model.prior.get_params() == {"concentration": 0.5, "concentration_prior": (2.0, 1)}
    assert type(loaded.model.prior.concentration) is float
    assert torch.equal(loaded.assign(X), posterior.assign(X))


# -- names of classes --------------------------------------------------------------------------------------------------


def test_a_class_of_a_user_does_not_replace_ours_of_the_same_name(saved: Path) -> None:
    @dataclass(eq=False)
    class DPM(Config):
        likelihood: Any = None

    loaded = Posterior.load(saved)
    assert class_name(type(loaded.model)) == "regbayes.models.dpm.DPM"
    assert class_name(DPM).endswith(f"{__name__}.{DPM.__qualname__}")


@dataclass(eq=False)
class MyGaussian(SphericalGaussian):
    """A family of a user."""


def test_a_class_of_a_user_is_found_by_its_module(tmp_path: Path) -> None:
    posterior = SmallVariance().fit(DPM(MyGaussian()), X)
    posterior.save(tmp_path / "posterior.pt")
    assert type(Posterior.load(tmp_path / "posterior.pt").model.likelihood) is MyGaussian


def test_the_order_of_axes_in_memory_is_kept(tmp_path: Path) -> None:
    """Products of other layouts round in other ways, and a chain that goes on would end elsewhere."""
    given = {"factor": torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1), "column": torch.ones(4, 1).T, "deep": [X.T]}
    write_file(tmp_path / "kept.pt", "plain", {"given": given})
    found = read_file(tmp_path / "kept.pt", "plain")["given"]
    pairs = [(found["factor"], given["factor"]), (found["column"], given["column"]), (found["deep"][0], X.T)]
    for one, other in pairs:
        assert torch.equal(one, other)
        assert one.is_contiguous() == other.is_contiguous()
    assert found["factor"].stride() == given["factor"].stride()


# -- writing -----------------------------------------------------------------------------------------------------------


def test_a_part_of_an_array_is_written_alone(tmp_path: Path) -> None:
    whole = torch.zeros(100, 1000)
    write_file(tmp_path / "rows.pt", "rows", {"rows": [whole[0], whole[7]]})
    assert (tmp_path / "rows.pt").stat().st_size < 3 * 4000


@pytest.mark.parametrize("fault", ["limit", "disk", "error"])
def test_a_write_that_fails_leaves_the_old_file(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half way, at a limit for the size of files; at its end, on a full disk; by any other error."""
    file, limits = tmp_path / "kept.pt", resource.getrlimit(resource.RLIMIT_FSIZE)
    write_file(file, "old", {"value": 1.0})
    error: Any = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if fault == "disk" else ZeroDivisionError("broken")
    if fault == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    else:
        place = "regbayes.inference.running.files._bytes_of" if fault == "error" else "os.fsync"
        monkeypatch.setattr(place, raising(error))
    reason = {"limit": "File too large", "disk": "No space left on device"}.get(fault)
    message = rf"'{file}' could not be written: {reason}\. It is as it was before\." if reason else "broken"
    try:
        with pytest.raises(OSError if reason else ZeroDivisionError, match=message):
            write_file(file, "new", {"value": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_file(file, "old")["value"] == 1.0
    assert [item.name for item in tmp_path.iterdir()] == ["kept.pt"]


def raising(error: Exception) -> Any:
    def function(*_: Any) -> None:
        raise error

    return function


NO_PATH = "expected the path of a file"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        *[(path, NO_PATH) for path in ("", 3, "a\0b", b"chain.pt")],
        ("none/chain.pt", r"none/chain\.pt', but there is no folder '.*none'. Make it"),
        ("folder", "which is a folder or a device"),
        ("/dev/full", "which is a folder or a device"),
        ("/proc/chain.pt", "'/proc/chain.pt', where no file can be written: "),
        ("long" * 80, "where no file can be written: File name too long"),
        ("loop", "a link that leads to itself"),
        ("round/chain.pt", "there is no folder"),
        ("full", "where no file can be written: File too large"),
    ],
    ids=repr,
)
def test_where_nothing_can_be_written_is_told_before_any_work(path, message, tmp_path, fitted, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("loop", "round"):
        (tmp_path / name).symlink_to(tmp_path / name)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000 if path == "full" else limits[0], limits[1]))
    try:
        with pytest.raises(ValueError, match=f"path is .*{message}"):
            fitted.save(path)
        with pytest.raises(ValueError, match=f"checkpoint is .*{message}"):
            Gibbs().fit(DPM(), X, checkpoint=path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {item.name for item in tmp_path.iterdir()} == {"folder", "loop", "round"}


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        *[(path, ValueError, NO_PATH) for path in ("", 3, None, "a\0b", b"posterior.pt")],
        (".", IsADirectoryError, r"'\.' cannot be read: Is a directory"),
        ("none.pt", FileNotFoundError, r"There is no file 'none\.pt'"),
        ("loop", OSError, "'loop' cannot be read: Too many levels of symbolic links"),
        ("/dev/zero", ValueError, "is a pipe or a device"),
    ],
    ids=repr,
)
def test_what_is_no_file_is_not_read(path: Any, error: type[Exception], message: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(error, match=message):
        Posterior.load(path)


def test_content_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(150):
        deep = [deep]
    with pytest.raises(ValueError, match="nested more than 100 deep at 'given"):
        write_file(tmp_path / "deep.pt", "plain", {"given": deep})


@pytest.mark.nightly
def test_to_write_and_to_read_takes_the_memory_of_the_content_alone(tmp_path: Path) -> None:
    """Of 200 MB; more than one tensor, since those with gaps are copied one at a time."""
    code = """
import resource, sys, torch
from regbayes.inference.running.files import read_file, write_file
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
content = {"rows": [torch.ones(5_000_000, dtype=torch.float64) for _ in range(4)] + [torch.ones(1000, 1000)[:, ::2]]}
before = peak()
write_file(sys.argv[1], "rows", content)
assert peak() - before < 40, peak() - before
del content
read_file(sys.argv[1], "rows")
assert peak() - before < 260, peak() - before  # the file is mapped too, a part at a time if memory is short
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "rows.pt")], check=True)


def test_a_link_stays_and_permissions_are_those_of_new_files(saved: Path, fitted: Posterior) -> None:
    (saved.parent / "plain").touch()
    link = saved.parent / "link.pt"
    link.symlink_to(saved)
    before = saved.read_bytes()
    fitted.metadata = {"new": 1}
    fitted.save(link)
    fitted.metadata = {}
    assert link.is_symlink()
    assert saved.read_bytes() != before
    assert stat.S_IMODE(saved.stat().st_mode) == stat.S_IMODE((saved.parent / "plain").stat().st_mode)


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["posterior", "checkpoint"])
def test_every_changed_byte_is_noticed(kind: str, saved: Path, checkpoint: Path, tmp_path: Path) -> None:
    whole, broken = (saved if kind == "posterior" else checkpoint).read_bytes(), tmp_path / "broken.pt"
    places = {*range(110), *np.linspace(0, len(whole) - 1, 300).astype(int)}  # all of the first line
    changed = [whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :] for place in places]
    changed += [whole[:size] for size in (0, 1, 50, 110, len(whole) // 2, len(whole) - 1)]
    changed += [whole + b"\0", whole + whole, b"\n" + whole, whole[1:]]
    for content in changed:
        broken.write_bytes(content)
        with pytest.raises(ValueError, match=rf"'{broken}' (cannot be read as a {kind}: it is cut short|has schema)"):
            read_file(broken, kind)
    broken.write_bytes(whole)
    assert read_file(broken, kind)


def test_later_schemas_other_formats_and_other_kinds_are_told_apart(saved: Path) -> None:
    whole = saved.read_bytes()
    with pytest.raises(ValueError, match=f"'{saved}' is not a checkpoint"):
        read_file(saved, "checkpoint")
    later = whole.replace(b'"3 ', b'"7 ', 1).replace(whole.split(b" ")[1], b"9.9", 1)
    for content, message in [
        (later, r"schema 7, written by regbayes 9\.9; .* Read it with that version"),
        (b"PK\x03\x04 what torch.save writes", "not a file that regbayes wrote"),
        (b"something else", "not a file that regbayes wrote"),
        (safetensors.torch.save({"a": torch.ones(2)}), "not a file that regbayes wrote"),
    ]:
        saved.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            Posterior.load(saved)


def test_any_tool_of_the_format_opens_a_file(saved: Path, fitted: Posterior) -> None:
    found = safetensors.torch.load_file(saved)
    assert torch.equal(found["samples.assignments"], fitted.samples["assignments"])


def test_what_is_loaded_is_not_the_file_itself(saved: Path) -> None:
    posterior = Posterior.load(saved)
    before = {name: value.clone() for name, value in posterior.samples.items()}
    saved.write_bytes(bytes(saved.stat().st_size))
    assert all(torch.equal(value, before[name]) for name, value in posterior.samples.items())


def test_the_package_reads_nothing_by_torch(saved: Path, checkpoint: Path, monkeypatch) -> None:
    for name in ("load", "save"):
        monkeypatch.delattr(torch, name)
    Posterior.load(saved).save(saved)
    Gibbs(num_samples=2, num_warmup=1, scan="slice").fit(DPM(), X, resume=checkpoint)
    package = Path(__file__).parents[3]
    sources = [file for name in ("models", "inference", "estimators", "cli") for file in (package / name).rglob("*.py")]
    assert len(sources) > 100
    assert not [file for file in sources if re.search(r"torch\.(load|save)\(|import pickle", file.read_text())]


def test_a_file_for_another_device_is_whole(saved: Path) -> None:
    with pytest.raises(ValueError, match="is whole, but its tensors cannot be put on the device 'nowhere'"):
        Posterior.load(saved, device="nowhere")


def _missing(*place: str) -> tuple[tuple[str, ...], str, str]:
    """A case of a place that is not there at all."""
    return place, "absent", f"no '{place[-1]}' in its|which are no model and backend"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        *map(_missing, ("samples", "num_draws", "trace", "metadata")),
        *(_missing("samples", "weights"), _missing("trace", "seconds"), _missing("backend", "params")),
        (("model",), None, "None for 'model' in its content"),
        (("metadata",), [], r"\[\] for 'metadata'"),
        (("samples", "assignments"), None, "None for 'assignments' in its samples"),
        (("samples", "weights"), torch.zeros(2, 1, 1, 1), r"'weights' of shape \[2, 1, 1, 1\] for 3 draws"),
        (("samples", "assignments"), torch.full((3, 20), 99), "'assignments' from 99 to 99 of"),
        (("samples", "hyperparameters"), torch.zeros(3, 1, 99), "parts of the file do not go together|of shape"),
        (("model", "params", "num_features"), 3, "parts of the file do not go together"),
        (("backend", "params", "num_samples"), "many", "do not go together: ValueError: .*num_samples is 'many'"),
        (("num_draws",), [2], "for 2 draws"),
        (("num_draws",), [True, 2], "for the numbers of draws"),
        (("num_draws",), [1, 2], "a trace of 1 chains of 6 steps for 2 with draws"),
        (("num_draws",), [10**12], "for 1000000000000 draws"),
        (("trace", "values"), torch.zeros(2), "values and seconds of shapes"),
        (("trace", "values"), torch.zeros(1, 6, dtype=torch.int64), "values and seconds of types torch.int64"),
        (("trace", "name"), 3, "3 for 'name' in its trace"),
        (("model", "class"), "regbayes.models.dpm.Nothing", "needs the class 'regbayes.models.dpm.Nothing'"),
        (("model", "params"), {"power": 1}, "other arguments for 'regbayes.models.dpm.DPM'"),
        (("model", "class"), "regbayes.models.losses.logistic.Logistic", "other arguments"),
        (("model",), {"class": "regbayes.models.losses.hinge.Hinge", "params": {}}, "no model and backend"),
        (("backend",), {"class": "regbayes.models.dpm.DPM", "params": {}}, "no model and backend"),
    ],
    ids=repr,
)
def test_content_is_checked(place: tuple[str, ...], value: Any, message: str, saved: Path) -> None:
    content = read_file(saved, "posterior")
    change(content, place, *([] if isinstance(value, str) and value == "absent" else [value]))
    write_file(saved, "posterior", content)
    with pytest.raises(ValueError, match=message):
        Posterior.load(saved)


def change(content: dict[str, Any], place: tuple[str, ...], *value: Any) -> None:
    """Put a value in the place, or nothing."""
    *outer, name = place
    for part in outer:
        content = content[part]
    del content[name]
    content.update(zip([name], value, strict=False))


AXES = {"assignments": "int:N", "means": "K D", "ends": "K+1", "heat": "float:", "more.": "K ...", "rows": "N"}
FITTING = {
    "assignments": torch.tensor([[0, 1, 1]] * 2),
    "means": torch.zeros(2, 2, 4),
    "ends": torch.zeros(2, 3),
    "heat": torch.zeros(2, dtype=torch.float64),
    "more.a": torch.zeros(2, 2, 5, 6),
}


@pytest.mark.parametrize(
    ("changes", "num_draws", "message"),
    [
        ({}, [2], None),
        ({}, [0, 2], None),
        ({"means": torch.zeros(2, 2, 7)}, [1, 1], None),
        ({"other": torch.ones(2, 9).int()}, [2], None),
        ({"other": 3}, [2], "3 for 'other' in its samples"),
        ({"assignments": None}, [2], "None for 'assignments'"),
        ({}, [0], "for the numbers of draws"),
        ({}, [3, -1], "for the numbers of draws"),
        ({}, [2.0], "for the numbers of draws"),
        ({}, [3], "'assignments' of shape .* for 3 draws"),
        ({"means": torch.zeros(2, 3, 4)}, [2], "'ends' of shape"),
        ({"means": torch.zeros(2, 2, 4, 1)}, [2], "'means' of shape"),
        ({"ends": torch.zeros(2, 2)}, [2], "'ends' of shape"),
        ({"more.a": torch.zeros(2, 3, 5)}, [2], r"'more\.a' of shape"),
        ({"rows": torch.zeros(2, 4)}, [2], "'rows' of shape"),
        ({"heat": torch.zeros(2, dtype=torch.int64)}, [2], "'heat' of type torch.int64"),
        ({"means": torch.full((2, 2, 4), torch.nan)}, [2], "NaN in 'means'"),
        ({"means": torch.zeros(2, 2, 4).double()}, [2], "not numbers of one type"),
        ({"means": torch.zeros(2, 2, 4).int(), "ends": torch.zeros(2, 3).int()}, [2], "not numbers of one type"),
        ({"assignments": torch.zeros(2, 3)}, [2], "'assignments' of type torch.float32"),
        ({"assignments": torch.tensor([[0, 1, 2]] * 2)}, [2], "'assignments' from 0 to 2 of 2 components"),
        ({"assignments": torch.tensor([[0, 1, -1]] * 2)}, [2], "'assignments' from -1 to 1"),
        ({"assignments": torch.zeros(2, 0).long()}, [2], "'assignments' of shape"),
    ],
)
def test_samples_fit_together(changes: dict[str, Any], num_draws: list[Any], message: str | None) -> None:
    samples = FITTING | changes
    if message is None:
        sizes = require_samples(samples, num_draws, ("assignments",), AXES)
        assert sizes == {"N": 3, "K": 2, "D": samples["means"].shape[2]}
        return
    with pytest.raises(ValueError, match=message):
        require_samples(samples, num_draws, ("assignments",), AXES)


# -- hostile files -----------------------------------------------------------------------------------------------------


def forged(path: Path, content: str, entries: str = "", data: bytes = b"", size: int | None = None) -> Path:
    """A file with this text for its content and these entries of the header, and the digest that goes with it."""
    start = '{"__metadata__":{"regbayes":"3 0.1.0 ' + 64 * "0" + '","kind":"posterior","content":'
    header = (start + json.dumps(content) + "}" + entries + "}").encode()
    whole = (len(header) if size is None else size).to_bytes(8, "little") + header + data
    path.write_bytes(whole.replace(64 * b"0", hashlib.sha256(whole).hexdigest().encode(), 1))
    return path


ONE = ',"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'


@pytest.mark.parametrize(
    ("content", "entries", "size"),
    [
        ("[" * 100_000, "", None),
        ('{"$tuple":' * 300 + "1" + "}" * 300, "", None),
        ('{"a":1,"a":2}', "", None),
        ('{"a":NaN}', "", None),
        ('{"a":' + "9" * 5000 + "}", "", None),
        ('{"a":{"$tensor":"b"}}', "", None),
        ('{"a":{"$tensor":["a","meta"]}}', ONE, None),
        ('{"a":{"$tensor":[["a"],"cpu"]}}', ONE, None),
        ('{"a":{"$dtype":"load"}}', "", None),
        ('{"a":{"$dict":[[{"$tensor":"a"},2]]}}', ONE, None),
        ('{"a":' + "[" * 150 + "]" * 150 + "}", "", None),
        ('{"a":{"$device":"nowhere"}}', "", None),
        ('{"a":{"$bytes":[1]}}', "", None),
        ('{"a":{"$device":-1}}', "", None),
        ('{"a":{"$code":"1"}}', "", None),
        ('{"a":{"$axes":[[0,0],{"$tensor":"a"}]}}', ONE, None),
        ("7", "", None),
        ("", "", None),
        ("{}", ',"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}', None),
        ("{}", ',"a":{"dtype":"F32","shape":[1000000000],"data_offsets":[0,8]}', None),
        ("{}", ',"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8]}', None),
        ("{}", ONE + ',"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}', None),
        ("{}", ',"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}', None),
        ("{}", ',"a":' + "[" * 10_000 + "]" * 10_000, None),
        ("{}", ONE, 2**63),
        ("{}", ONE, 99_000_000),
        ("{}", ONE, 0),
    ],
)
def test_hostile_files_are_refused_in_a_sentence(content: str, entries: str, size: int | None, tmp_path: Path) -> None:
    """Each with the digest that goes with it."""
    file = forged(tmp_path / "hostile.pt", content, entries, bytes(8) if entries else b"", size)
    with pytest.raises(ValueError, match=r"hostile\.pt' (was not written by regbayes|is whole, but)") as refused:
        read_file(file, "posterior")
    assert len(str(refused.value)) < 500


def test_what_is_forged_well_is_read(tmp_path: Path) -> None:
    found = read_file(forged(tmp_path / "a.pt", '{"a":{"$tensor":"a"}}', ONE, bytes(8)), "posterior")
    assert found["a"].tolist() == [0.0, 0.0]


def places(content: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = content.items() if isinstance(content, dict) else []
    return [place for key, value in inner for place in [(*at, key), *places(value, (*at, key))]]


def mutants(value: Any) -> list[Any]:
    found = [None, "x", 3, [], {}, torch.zeros(0)]
    if isinstance(value, torch.Tensor):
        found += [value.to(kind) for kind in (torch.float32, torch.int64, torch.bool)]
        found += [value.unsqueeze(0), value.unsqueeze(-1), *(value.narrow(axis, 0, 0) for axis in range(value.ndim))]
        found += [torch.cat([value, value], axis) for axis in range(value.ndim)]
    return found


@pytest.mark.one_in(7)
@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
@pytest.mark.parametrize("name", ["InfiniteSVM", "DDPM", "IHMM", "BNMC", "InfiniteLatentSVM", "MedLDA", "MultiTask"])
def test_changed_content_is_refused_at_load_or_works(name: str, tmp_path: Path) -> None:
    """Of every structure: a part dropped, or in its place another type, shape or kind of number."""
    row = next(row for row in ROWS if row.model.startswith(name))
    case, file = next(iter(row.cases.values())), tmp_path / "posterior.pt"
    WAYS["collapsed" if name in ("InfiniteSVM", "MedLDA") else "blocked"].fit(case).save(file)
    content = read_file(file, "posterior")
    rows, refused = case.X[:4], 0
    for place in places(content):
        value = content
        for key in place:
            value = value[key]
        for mutant in [[], *([other] for other in mutants(value))]:
            changed = read_file(file, "posterior")
            change(changed, place, *mutant)
            write_file(tmp_path / "changed.pt", "posterior", changed)
            try:
                posterior = Posterior.load(tmp_path / "changed.pt")
            except ValueError:
                refused += 1
                continue
            if {"classes", "loss"} & {*place}:  # another model, without labels
                continue
            repr(posterior), posterior.diagnose(), posterior.of_chains([0])
            for question in ("predict", "assign", "transform"):
                if hasattr(posterior, question) and (question != "predict" or case.y is not None):
                    getattr(posterior, question)(rows)
    assert refused > 100
