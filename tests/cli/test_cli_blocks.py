"""The command line on tables that need not fit into memory: `fit --batch-size`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from command_line import refuse, said, write
from pyarrow.parquet import write_table

from regbayes.inference import SVI, Posterior, rows_of
from regbayes.models import FullGaussian, InfiniteSVM

pytestmark = pytest.mark.usefixtures("few_restarts")

RNG = np.random.default_rng(0)
PLACE = RNG.integers(0, 2, 300)
X = RNG.normal(size=(300, 2)) + 8 * PLACE[:, None]
WORDS = np.array(["left", "right"])[PLACE]


@pytest.fixture
def path(tmp_path: Path) -> str:
    table = pa.table({"a": X[:, 0], "kind": WORDS, "b": X[:, 1]})
    write_table(table, tmp_path / "rows.parquet", row_group_size=70)
    return str(tmp_path / "rows.parquet")


def test_a_fit_in_blocks_is_that_of_the_source(path, tmp_path, capsys) -> None:
    fit = ["fit", "--batch-size", "60", "--target", "kind", "--output", tmp_path / "p.pt", "--data"]
    assert "fitted by 200 steps of 60 rows, without a search" in said(capsys, *fit, path)
    found = Posterior.load(tmp_path / "p.pt")
    assert found.metadata == {"features": ["a", "b"], "target": "kind", "classes": ["left", "right"]}
    source = rows_of(X, PLACE)
    expected = SVI(num_steps=200, batch_size=60).fit(InfiniteSVM(FullGaussian()), source)
    np.testing.assert_array_equal(found.predict_proba(X), expected.predict_proba(X))
    lines = said(capsys, "predict", "--posterior", tmp_path / "p.pt", "--data", path).splitlines()
    answers = [row["prediction"] for row in csv.DictReader(lines)]
    assert np.mean(np.array(answers) == WORDS) > 0.98
    facts = json.loads(said(capsys, "info", "--posterior", tmp_path / "p.pt", "--json"))
    assert facts["rows"] == 300
    text = write(tmp_path / "rows.csv", [["a", "kind", "b"], *map(list, zip(X[:, 0], WORDS, X[:, 1], strict=True))])
    said(capsys, *fit, text)
    np.testing.assert_array_equal(Posterior.load(tmp_path / "p.pt").predict_proba(X), expected.predict_proba(X))


def test_clusters_in_blocks_see_no_target(path, tmp_path, capsys) -> None:
    fit = ["fit", "--batch-size", "60", "--model", "DPM", "--data", path, "--output", tmp_path / "p.pt"]
    assert "column 'kind': 'left' is not a number" in refuse(capsys, *fit).replace("right", "left")
    said(capsys, *fit, "--target", "kind")
    found = Posterior.load(tmp_path / "p.pt")
    assert found.num_components == 2
    assert found.metadata["classes"] is None


def test_what_blocks_do_not_have_is_refused(path, tmp_path, capsys) -> None:
    fit = ["fit", "--batch-size", "60", "--output", tmp_path / "p.pt", "--data"]
    told = ["--target", "kind"]
    assert "Leave --inference out" in refuse(capsys, *fit, path, *told, "--inference", "gibbs")
    assert "Leave --checkpoint out" in refuse(capsys, *fit, path, *told, "--checkpoint", tmp_path / "c")
    assert "Leave it out to predict a number" in refuse(capsys, *fit, path, *told, "--task", "regression")
    assert "needs --target COLUMN" in refuse(capsys, *fit, path)
    assert "has no column 'sort'" in refuse(capsys, *fit, path, "--target", "sort")
    many = pa.table({"a": np.arange(1001.0), "b": np.arange(1001.0)})
    write_table(many, tmp_path / "many.parquet")
    few = write(tmp_path / "few.csv", [["a", "b"], *([n, n / 2] for n in range(30))])  # as without blocks
    assert "Leave it out to predict a number" in refuse(capsys, *fit, few, "--target", "b")
    assert "classes, or a number to predict?" in refuse(capsys, *fit, few, "--target", "a")
    assert "over 1000 different cells" in refuse(capsys, *fit, tmp_path / "many.parquet", "--target", "b")
    rows = [["a", "kind"], [1.0, "x"], [2.0, ""], [3.0, "y"]]
    assert "line 3, column 'kind' is a missing label" in refuse(
        capsys, *fit, write(tmp_path / "holes.csv", rows), *told
    )
    rows = [["a", "kind"], [1.0, "x"], ["no", "y"], [3.0, "y"]]
    assert "line 3, column 'a': 'no' is not a number" in refuse(capsys, *fit, write(tmp_path / "w.csv", rows), *told)
    rows = [["a", "kind"], [1.0, "1.0"], [2.0, "x"], [3.0, "1"]]
    assert "has '1' and '1.0', the same number, as two" in refuse(capsys, *fit, write(tmp_path / "t.csv", rows), *told)
    rows = [["a", "kind"], [1.0, "x"], [2.0, "x"]]
    assert "has only one class" in refuse(capsys, *fit, write(tmp_path / "one.csv", rows), *told)
