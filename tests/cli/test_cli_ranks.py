"""`torchrun -m regbayes fit`: each rank reads its own row groups, and what comes out is the fit of one process."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from command_line import write
from pyarrow.parquet import ParquetFile, write_table

from regbayes.cli import main
from regbayes.inference import Posterior

N = 90
RNG = np.random.default_rng(0)
PLACE = RNG.integers(0, 2, N)
X = RNG.normal(size=(N, 2)) + 4 * PLACE[:, None]
WORDS = np.array(["left", "right"])[PLACE]
WORDS[:40] = "left"  # the first rank has no row of the other class


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Row groups of 25, 25, 25 and 15 rows, two for each of two ranks."""
    numbers = {"a": X[:, 0], "b": X[:, 1], "price": X[:, 0] + 3 * X[:, 1]}
    write_table(pa.table({"kind": WORDS, **numbers}), tmp_path / "rows.parquet", row_group_size=25)
    return str(tmp_path / "rows.parquet")


def said_by(group, rank, *arguments):
    """Exit code and both outputs of a command on a rank, as torchrun would have started it."""
    started = {"TORCHELASTIC_RUN_ID": "here", "RANK": str(rank), "WORLD_SIZE": "2"}
    out, err = io.StringIO(), io.StringIO()
    os.environ.update(started)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main([str(argument) for argument in arguments])
    finally:
        for name in started:
            del os.environ[name]
    return code, out.getvalue(), err.getvalue()


@pytest.mark.nightly
def test_torchrun_fits_the_file_and_the_first_rank_speaks(path, tmp_path, capsys) -> None:
    fit = ["fit", "--data", path, "--target", "kind", "--drop", "price", "--inference", "svi", "--no-search"]
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "regbayes"]
    command = [*ranks, *fit, "--output", tmp_path / "two.pt"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert main([*fit, "--output", str(tmp_path / "one.pt")]) == 0
    assert ended.stdout == capsys.readouterr().out.replace("one.pt", "two.pt")
    require_same(tmp_path, tolerance=1e-8)


def require_same(folder: Path, tolerance: float) -> None:
    two, one = (Posterior.load(folder / name) for name in ("two.pt", "one.pt"))
    assert two.metadata == one.metadata
    assert torch.equal(two.samples["assignments"], one.samples["assignments"])
    torch.testing.assert_close(two.trace.values, one.trace.values, rtol=tolerance, atol=0.0)
    for name in ("weights", "hyperparameters", "centers"):
        if name in one.samples:
            torch.testing.assert_close(two.samples[name], one.samples[name], rtol=tolerance, atol=tolerance)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "options",
    [
        ["--model", "DPM", "--target", "kind", "--inference", "svi"],
        ["--target", "price", "--drop", "kind", "--no-search", "--inference", "svi"],  # its scale is that of all rows
    ],
)
def test_ranks_fit_what_one_process_does(two_ranks, path, tmp_path, options, capsys) -> None:
    fit = ["fit", "--data", path, *options, "--output"]
    (code, out, _), (other, silent, _) = two_ranks(said_by, *fit, str(tmp_path / "two.pt"))
    assert (code, other, silent) == (0, 0, "")
    assert main([*fit, str(tmp_path / "one.pt")]) == 0
    assert out == capsys.readouterr().out.replace("one.pt", "two.pt")
    require_same(tmp_path, tolerance=1e-8)


def test_ranks_read_blocks_of_their_own_row_groups(two_ranks, path, tmp_path) -> None:
    fit = ["fit", "--data", path, "--target", "kind", "--batch-size", "20", "--output", str(tmp_path / "p.pt")]
    (code, out, _), (_, silent, _) = two_ranks(said_by, *fit)
    assert (code, silent) == (0, "")
    assert "fitted by 200 steps of 20 rows" in out
    found = Posterior.load(tmp_path / "p.pt")
    assert found.metadata["classes"] == ["left", "right"]
    assert found.samples["num_seen"].item() == N
    assert found.samples["assignments"].shape == (1, N)


def test_a_search_waits_for_one_process(two_ranks, path, tmp_path) -> None:
    fit = ["fit", "--data", path, "--target", "kind", "--inference", "svi", "--output", str(tmp_path / "p.pt")]
    (_, out, _), _ = two_ranks(said_by, *fit)
    assert "without a search: several ranks do not search yet" in out


REFUSED = {
    "a null": ("rank 1", "Rank 1 of 2 cannot begin: rows.parquet, row 81, column 'a' is empty."),
    "text": (["--data", "rows.csv"], "several ranks read the row groups of a Parquet file, and 'rows.csv' is none"),
    "a small group": (
        "a group of one row",
        "2 row groups are not enough for 2 ranks. Write the file with smaller ones",
    ),
    "few groups": ("one group", "1 row groups are not enough for 2 ranks. Write the file with smaller ones"),
    "a missing column": (["--target", "sort"], "has no column 'sort'"),
    "no file": (["--data", "none.parquet"], "there is no file 'none.parquet'"),
    "a folder": (["--output", "no/p.pt"], "there is no folder"),
    "a model": (["--model", "MedLDA", "--inference", "small_variance"], "MedLDA has no SmallVariance backend"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_all_ranks_refuse_in_one_sentence(two_ranks, path, tmp_path, name) -> None:
    change, expected = REFUSED[name]
    table = ParquetFile(path).read()
    if change == "rank 1":
        holes = pa.array([None if row == 80 else value for row, value in enumerate(X[:, 0])])
        write_table(table.set_column(1, "a", holes), path, row_group_size=25)
    if change == "one group":
        write_table(table, path)
    if change == "a group of one row":
        write_table(table, path, row_group_size=len(table) - 1)
    write(tmp_path / "rows.csv", [["a", "kind", "price"], [1.0, "x", 1.0], [2.0, "y", 2.0]])
    more = [str(tmp_path / each) if "." in each else each for each in change] if isinstance(change, list) else []
    fit = ["fit", "--data", path, "--target", "kind", "--drop", "price", "--output", str(tmp_path / "p.pt"), *more]
    (code, out, first), (other, nothing, second) = two_ranks(said_by, *fit)
    assert (code, other, out, nothing) == (2, 2, "", "")
    assert first == second
    assert first.count("\n") == 1
    assert expected in first.replace(f"{tmp_path}/", "")


def test_other_commands_run_in_one_process(two_ranks, path) -> None:
    for code, _, err in two_ranks(said_by, "cluster", "--data", path):
        assert code == 2
        assert err == "regbayes: error: several ranks are for `fit` alone: run `cluster` without torchrun.\n"
