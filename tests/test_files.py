"""Files: what they hold, how they are written, that every changed byte is noticed, and those of schema 1."""

from __future__ import annotations

import enum
import errno
import math
import os
import re
import resource
import stat
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regbayes.inference import Gibbs, Posterior, SmallVariance
from regbayes.inference.files import read_file, write_file
from regbayes.inference.schema import from_schema_1
from regbayes.models import DPM, DirichletProcess, SphericalGaussian
from regbayes.models.config import Config, class_name

OLD = Path(__file__).parent / "data" / "schema1"
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


def test_metadata_that_is_no_dict_is_refused_at_save(fitted: Posterior, tmp_path: Path) -> None:
    fitted.metadata = [1]
    with pytest.raises(ValueError, match=r"metadata is \[1\]; expected a dict"):
        fitted.save(tmp_path / "posterior.pt")
    fitted.metadata = {}


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


# -- writing -----------------------------------------------------------------------------------------------------------


def test_a_part_of_an_array_is_written_alone(tmp_path: Path) -> None:
    whole = torch.zeros(100, 1000)
    write_file(tmp_path / "rows.pt", "rows", {"rows": [whole[0], whole[7]]})
    assert (tmp_path / "rows.pt").stat().st_size < 3 * 4000


def test_a_write_that_fails_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    """At a limit for the size of files, as on a full disk."""
    file = tmp_path / "kept.pt"
    write_file(file, "old", {"value": 1.0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match=rf"'{file}' could not be written: .+\. It is as it was before\."):
            write_file(file, "new", {"value": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_file(file, "old")["value"] == 1.0
    assert [item.name for item in tmp_path.iterdir()] == ["kept.pt"]


def test_a_full_disk_is_a_sentence_with_the_path(saved: Path, fitted: Posterior, monkeypatch) -> None:
    before = saved.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=rf"^'{saved}' could not be written: No space left on device\. It is as it was"):
        fitted.save(saved)
    assert saved.read_bytes() == before
    assert [item.name for item in saved.parent.iterdir()] == ["posterior.pt"]


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "kept.pt"
    write_file(file, "old", {"value": 1.0})
    monkeypatch.setattr(torch, "save", lambda content, opened: opened.write(b"half") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_file(file, "new", {"value": 2.0})
    assert read_file(file, "old")["value"] == 1.0
    assert [item.name for item in tmp_path.iterdir()] == ["kept.pt"]


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


@pytest.mark.parametrize("path", ["", 3, None, "a\0b", b"posterior.pt"])
def test_what_is_no_path_is_refused(path: Any, fitted: Posterior) -> None:
    with pytest.raises(ValueError, match=r"path is .*; expected the path of a file"):
        fitted.save(path)
    with pytest.raises(ValueError, match="expected the path of a file"):
        Posterior.load(path)


def test_a_folder_is_no_file_to_read(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=f"'{tmp_path}' cannot be read: Is a directory"):
        Posterior.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"There is no file '.*none\.pt'"):
        Posterior.load(tmp_path / "none.pt")


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
    assert read_file(broken, kind)["kind"] == kind


def test_later_schemas_and_other_kinds_are_told_apart(saved: Path) -> None:
    whole = saved.read_bytes()
    with pytest.raises(ValueError, match=f"'{saved}' is not a checkpoint"):
        read_file(saved, "checkpoint")
    saved.write_bytes(whole.replace(b"regbayes 2 ", b"regbayes 7 ", 1).replace(whole.split(b" ")[2], b"9.9", 1))
    with pytest.raises(ValueError, match=r"schema 7, written by regbayes 9\.9; .* Upgrade regbayes"):
        Posterior.load(saved)
    saved.write_text("something else")
    with pytest.raises(ValueError, match="not a file that regbayes wrote"):
        Posterior.load(saved)
    torch.save({"other": 1}, saved)
    with pytest.raises(ValueError, match="is not a posterior"):
        Posterior.load(saved)


def test_a_file_for_another_device_is_whole(saved: Path) -> None:
    with pytest.raises(ValueError, match="is whole, but torch cannot read it here"):
        Posterior.load(saved, device="nowhere")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("model",), None, "None for 'model' in its content"),
        (("metadata",), [], r"\[\] for 'metadata'"),
        (("samples", "assignments"), None, "None for 'assignments' in its samples"),
        (("samples", "weights"), torch.zeros(2, 1, 1, 1), r"'weights' of shape \[2, 1, 1, 1\] for 3 draws"),
        (("samples", "log_mixture"), torch.tensor(1.0), r"'log_mixture' of shape \[\]"),
        (("num_draws",), [2], "for 2 draws"),
        (("num_draws",), [-3, 6], "for the numbers of draws"),
        (("trace", "values"), torch.zeros(2), "values and seconds of shapes"),
        (("trace", "name"), 3, "3 for 'name' in its trace"),
        (("model", "class"), "regbayes.models.dpm.Nothing", "needs the class 'regbayes.models.dpm.Nothing'"),
        (("model", "class"), ["a"], "needs the class"),
        (("model", "params"), {"power": 1}, "other arguments for 'regbayes.models.dpm.DPM'"),
        (("model", "params"), None, "other arguments for"),
        (("model", "class"), "regbayes.models.losses.logistic.Logistic", "other arguments"),
        (("model",), {"class": "regbayes.models.losses.hinge.Hinge", "params": {}}, "no model and backend"),
        (("backend",), {"class": "regbayes.models.dpm.DPM", "params": {}}, "no model and backend"),
    ],
    ids=repr,
)
def test_content_is_checked(place: tuple[str, ...], value: Any, message: str, saved: Path) -> None:
    content = read_file(saved, "posterior")
    change(content, place, value)
    write_file(saved, "posterior", content)
    with pytest.raises(ValueError, match=message):
        Posterior.load(saved)


@pytest.mark.parametrize(
    "place",
    [
        *[(name,) for name in ("model", "backend", "samples", "num_draws", "trace", "metadata")],
        *[("samples", name) for name in ("assignments", "weights", "log_mixture")],
        *[("trace", name) for name in ("name", "values", "seconds")],
        *[(part, name) for part in ("model", "backend") for name in ("class", "params")],
    ],
    ids="-".join,
)
def test_what_is_missing_is_named(place: tuple[str, ...], saved: Path) -> None:
    content = read_file(saved, "posterior")
    change(content, place)
    write_file(saved, "posterior", content)
    with pytest.raises(ValueError, match=f"no '{place[-1]}' in its|which are no model and backend"):
        Posterior.load(saved)


def change(content: dict[str, Any], place: tuple[str, ...], *value: Any) -> None:
    """Put a value in the place, or nothing."""
    *outer, name = place
    for part in outer:
        content = content[part]
    del content[name]
    content.update(zip([name], value, strict=False))


# -- schema 1 ----------------------------------------------------------------------------------------------------------

EXPECTED = torch.load(OLD / "expected.pt", weights_only=True)


@pytest.mark.parametrize("name", sorted(EXPECTED.keys() - {"new", "counts"}))
def test_a_posterior_of_schema_1_answers_as_it_did(name: str, tmp_path: Path) -> None:
    """Written by release 0.1.0, which also gave the answers beside them."""
    posterior = Posterior.load(OLD / f"{name}.pt")
    rows = EXPECTED["counts" if name == "ddpm_counts" else "new"]
    posterior.save(tmp_path / "again.pt")
    names = {"proba": "predict_proba", "decision": "decision_function", "density": "log_predictive_density"}
    for found in (posterior, Posterior.load(tmp_path / "again.pt")):
        for key, expected in EXPECTED[name].items():
            if key == "repr":
                assert repr(found) == expected
                continue
            answer = found.partition() if key == "partition" else getattr(found, names.get(key, key))(rows)
            torch.testing.assert_close(answer, expected, rtol=1e-12, atol=1e-12)
        assert found.metadata == {"note": name}


def test_a_checkpoint_of_schema_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"checkpoint of schema 1, .* Finish the fit with regbayes '0\.1\.0'"):
        Gibbs().fit(DPM(), X, resume=OLD / "checkpoint.pt")


def test_classes_of_schema_1_are_where_they_are_said_to_be() -> None:
    """Each name leads to a class of that module."""
    known, waiting = set(), [Config]
    while waiting:
        cls = waiting.pop()
        known.add(class_name(cls))
        waiting += cls.__subclasses__()
    text = (Path(__file__).parents[1] / "inference" / "schema.py").read_text()
    names = {name for line in re.findall(r"_in_module\((.*)\),", text) for name in re.findall(r'"([A-Z]\w+)"', line)}
    assert len(names) > 20
    for name in names:
        content = {"kind": "posterior", "schema": 1, "model": {"class": name, "params": {}}, "backend": None}
        assert from_schema_1(content, "a file", "posterior")["model"]["class"] in known


def test_other_plain_files_are_refused(tmp_path: Path) -> None:
    for content, message in [
        ({"kind": "posterior", "schema": 2, "version": "0.2"}, "has schema 2, written by regbayes '0.2', which this"),
        ({"kind": "posterior"}, "has schema None"),
        ({"kind": "posterior", "schema": 1}, "None for 'model' in its content"),
    ]:
        torch.save(content, tmp_path / "other.pt")
        with pytest.raises(ValueError, match=message):
            Posterior.load(tmp_path / "other.pt")
