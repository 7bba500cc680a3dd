"""The command line with latent features and topics: fit, predict, info, compare."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import said

from regbayes.cli import main
from regbayes.inference import Posterior

pytestmark = pytest.mark.usefixtures("few_restarts")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Counts of six words in forty documents of two classes, and a number."""
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    X = rng.poisson(np.where((y[:, None] == 0) == (np.arange(6) < 3), 3.0, 0.3))
    path = tmp_path / "documents.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"word{d}" for d in range(6)), "kind"])
        writer.writerows([*row, "law" if own else "art"] for row, own in zip(X.tolist(), y.tolist(), strict=True))
    return path


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("model", "kind", "inference"),
    [("medlda", "topics", None), ("ilsvm", "latent_features", "small_variance")],
    ids=["medlda", "ilsvm"],
)
@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
def test_fit_predict_and_info(model, kind, inference, table, tmp_path, capsys) -> None:
    output, data = tmp_path / "fit.pt", ["--data", table]
    chosen = ["--inference", inference] if inference else []
    said(capsys, "fit", *data, "--target", "kind", "--model", model, *chosen, "--output", output)
    posterior = Posterior.load(output)
    rows = list(csv.DictReader(said(capsys, "predict", "--posterior", output, *data).splitlines()))
    assert list(rows[0]) == ["prediction", "probability_art", "probability_law"]
    with open(table) as file:
        truth = [row["kind"] for row in csv.DictReader(file)]
    assert np.mean([row["prediction"] == own for row, own in zip(rows, truth, strict=True)]) > 0.8
    facts = json.loads(said(capsys, "info", "--posterior", output, "--json"))
    assert facts["model"] == type(posterior.model).__name__
    assert facts[kind]
    assert set(facts[kind][0]["strongest_features"]) <= set(facts["features"])
    assert kind.removesuffix("s").replace("_", " ") in said(capsys, "info", "--posterior", output)


def test_compare_runs_the_backends_of_the_model(table, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("regbayes.cli.compare._SCALES", [1.0])
    monkeypatch.setattr("regbayes.cli.rivals._STRENGTHS", [0.1, 1.0])
    options = ["--model", "medlda", "--inference", "svi", "--folds", 2, "--json", "--out", tmp_path / "out"]
    found = json.loads(said(capsys, "compare", "--data", table, "--target", "kind", *options))
    names = [method["name"] for method in found["methods"]]
    assert names[-1] == "MedLDA, svi"
    assert found["methods"][-1]["mean"]["accuracy"] > 0.8
    assert (tmp_path / "out" / "compare.png").stat().st_size > 1000


def test_what_a_model_does_not_have_is_refused(table, tmp_path, capsys) -> None:
    common = ["fit", "--data", table, "--target", "kind", "--output", tmp_path / "fit.pt"]
    for arguments, message in (
        (["--model", "medlda", "--inference", "small_variance"], "MedLDA has no SmallVariance backend"),
        (["--model", "ilsvm", "--likelihood", "full"], "--likelihood is for components of mixtures"),
        (["--model", "lda"], "invalid choice: 'lda'"),
    ):
        assert main([str(argument) for argument in [*common, *arguments]]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("backend", "cell", "message"),
    [
        ("small_variance", "3", "MedLDA has no SmallVariance backend; it has: Gibbs, SVI."),
        ("svi", "0.5", "X has a value that is not a whole number: 0.5 in row 0"),
    ],
    ids=["backend", "data"],
)
def test_compare_refuses_before_the_rivals_run(backend, cell, message, tmp_path, capsys) -> None:
    rows = [f"{cell},1,no", *(f"{n},{n % 3},{'yes' if n % 2 else 'no'}" for n in range(1, 30))]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["one,other,kind", *rows]))
    options = ["--target", "kind", "--model", "medlda", "--inference", backend, "--out", str(tmp_path)]
    assert main(["compare", "--data", str(table), *options]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert told.out.endswith("predict s\n")  # the header alone
