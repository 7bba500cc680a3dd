"""The command line, run in this process: results, files, and one clear line for every mistake."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import datetime
import errno
import gzip
import io
import json
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from command_line import refuse, said, write
from pyarrow.feather import write_feather
from pyarrow.parquet import write_table as write_parquet
from sklearn.datasets import load_iris

from regbayes.cli import main, sources
from regbayes.cli.cluster import Result, _as_text
from regbayes.cli.errors import CommandError
from regbayes.cli.report import NOTES, Method, Score, TextReport
from regbayes.cli.tables import read_table
from regbayes.estimators import ClassifierCV
from regbayes.inference import Gibbs, PartitionPosterior, Posterior, SmallVariance
from regbayes.models import FullGaussian, InfiniteSVM, SquaredHinge

pytestmark = pytest.mark.usefixtures("few_restarts")

CENTERS = {"cat": (0.0, 0.0), "dog": (6.0, 0.0)}


def animals(num_rows: int, seed: int = 0) -> list[list[object]]:
    noise = np.random.default_rng(seed).normal(size=(num_rows, 2))
    kinds = [list(CENTERS)[index % 2] for index in range(num_rows)]
    return [
        [*(np.array(CENTERS[kind]) + step).round(4).tolist(), kind] for kind, step in zip(kinds, noise, strict=True)
    ]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "animals.csv", [["width", "height", "kind"], *animals(60)])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What `fit` saves of the table."""
    folder = tmp_path_factory.mktemp("fitted")
    table = write(folder / "animals.csv", [["width", "height", "kind"], *animals(60)])
    assert main(["fit", "--data", str(table), "--target", "kind", "--output", str(folder / "animals.pt")]) == 0
    return (folder / "animals.pt").read_bytes()


@pytest.fixture
def fitted(saved: bytes, tmp_path: Path) -> Path:
    output = tmp_path / "animals.pt"
    output.write_bytes(saved)
    return output


@pytest.fixture
def small_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two dozen sweeps of Gibbs and steps of SVI, and five of small variance, in place of the command's own numbers."""
    from regbayes.cli import cluster, commands, compare, setups

    sizes = {
        "gibbs": {"num_samples": 12, "num_warmup": 12, "split_merge": 0},
        "svi": {"num_steps": 24},
        "small_variance": {"max_steps": 5},
    }

    def backend_of(name, seed, progress=None):
        return setups.backend_of(name, seed, progress).replace(**sizes[name])

    for module in (cluster, commands, compare):
        monkeypatch.setattr(module, "backend_of", backend_of)


@pytest.fixture
def small_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """`compare` chooses from few strengths and scales, in two folds."""
    from regbayes.cli import compare, rivals

    inner_folds = compare._inner_folds

    def two_folds(*arguments):
        folds = inner_folds(*arguments)
        folds.n_splits = 2
        return folds

    monkeypatch.setattr(rivals, "_STRENGTHS", [0.1, 1.0])
    monkeypatch.setattr(compare, "_inner_folds", two_folds)
    monkeypatch.setattr(compare, "_SCALES", [1.0, 0.1])
    monkeypatch.setattr(compare, "_PATH", compare._PATH[2::2])


# -- fit, predict, info --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("small_backends")
@pytest.mark.parametrize("backend", ["small_variance", "svi", "gibbs"])
def test_fit_predict_and_info_go_together(table, tmp_path, capsys, backend):
    posterior, labelled = tmp_path / "posterior.pt", tmp_path / "labelled.csv"
    fit = ["fit", "--data", table, "--target", "kind", "--inference", backend, "--seed", 3, "--output", posterior]
    assert str(posterior) in said(capsys, *fit)

    rows = animals(20, seed=1)
    # columns in another order, and no target
    new = write(tmp_path / "new.csv", [["height", "width"], *[[height, width] for width, height, _ in rows]])
    assert main(["predict", "--posterior", str(posterior), "--data", str(new), "--output", str(labelled)]) == 0
    result = list(csv.DictReader(labelled.read_text().splitlines()))
    assert list(result[0]) == ["prediction", "probability_cat", "probability_dog", "component"]
    assert np.mean([row["prediction"] == kind for row, (*_, kind) in zip(result, rows, strict=True)]) >= 0.95
    for row in result:
        probabilities = {kind: float(row[f"probability_{kind}"]) for kind in CENTERS}
        assert abs(sum(probabilities.values()) - 1) < 1e-5
        assert row["prediction"] == max(probabilities, key=probabilities.get)

    facts = json.loads(said(capsys, "info", "--posterior", posterior, "--json"))
    loaded = Posterior.load(posterior)
    assert facts["rows"] == 60
    assert facts["features"] == ["width", "height"]
    assert facts["classes"] == ["cat", "dog"]
    assert "seed=3" in facts["backend"]
    assert len(facts["components"]) == loaded.num_components
    assert sum(component["rows"] for component in facts["components"]) == 60
    assert set(facts["components"][0]["strongest_features"]) == {"width", "height"}


def test_predictions_are_those_of_the_posterior(fitted, table, capsys):
    result = list(csv.DictReader(said(capsys, "predict", "--posterior", fitted, "--data", table).splitlines()))
    X = read_table(str(table)).numbers(["width", "height"])
    posterior = Posterior.load(fitted)
    assert [row["prediction"] for row in result] == [["cat", "dog"][index] for index in posterior.predict(X)]
    shown = [float(row["probability_dog"]) for row in result]
    calibrated = 1 / (1 + np.exp(-float(posterior.samples["slope"][0]) * posterior.decision_function(X)))
    np.testing.assert_allclose(posterior.predict_proba(X)[:, 1], calibrated, rtol=1e-12)
    np.testing.assert_allclose(shown, calibrated, rtol=1e-5)
    assert [int(row["component"]) for row in result] == posterior.assign(X).tolist()


def test_output_does_not_depend_on_the_encoding_of_a_terminal(fitted, table, tmp_path, monkeypatch):
    """A table is in UTF-8 as its file would be; words lose what the terminal cannot show."""
    posterior, labelled, shown = Posterior.load(fitted), tmp_path / "labelled.csv", io.BytesIO()
    posterior.metadata["classes"] = ["Kätzchen", "狗"]
    posterior.save(fitted)
    predict = ["predict", "--posterior", str(fitted), "--data", str(table)]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(shown, "ascii"))
        assert main([*predict, "--output", str(labelled)]) == 0
        assert main(predict) == 0
        assert shown.getvalue() == labelled.read_bytes()
        assert main(["info", "--posterior", str(fitted)]) == 0
        assert b"K?tzchen', '?'" in shown.getvalue()
    assert "狗" in labelled.read_text("utf-8")


def iris(path: Path) -> Path:
    data = load_iris()
    rows = [[*row, data.target_names[label]] for row, label in zip(data.data.tolist(), data.target, strict=True)]
    return write(path, [["a", "b", "c", "d", "kind"], *rows])


def test_fit_is_that_of_a_search_with_its_probabilities(tmp_path, capsys):
    table, output = iris(tmp_path / "iris.csv"), tmp_path / "p.pt"
    X, y = load_iris(return_X_y=True)
    fit = ["fit", "--data", str(table), "--target", "kind", "--output", str(output)]
    assert main(fit) == 0
    told = capsys.readouterr()
    result = list(csv.DictReader(said(capsys, "predict", "--posterior", output, "--data", table).splitlines()))

    model = InfiniteSVM(likelihood=FullGaussian(), loss=SquaredHinge())
    search = ClassifierCV(model, SmallVariance(scale=10.0, progress=False)).fit(X, y)
    names = ["setosa", "versicolor", "virginica"]
    shown = np.array([[float(row[f"probability_{name}"]) for name in names] for row in result])
    np.testing.assert_allclose(shown, search.predict_proba(X), rtol=1e-4, atol=1e-12)
    assert [row["prediction"] for row in result] == [names[label] for label in search.predict(X)]
    assert told.err == ""
    assert told.out.startswith(
        f"chosen by 3 folds of 150 rows (accuracy {search.best_score_:.3f}): strength 1, weight scale "
        f"{search.weight_scale_:g}, {search.num_components_} component"
    )
    assert f"probabilities of slope {search.slope_:.3g}" in told.out
    told_shares = ", ".join(f"{number} ({share:.0%})" for number, share in search.shares_.items())
    assert (f"decisions averaged over fits of {told_shares} components\n" in told.out) == (len(search.shares_) > 1)
    facts = json.loads(said(capsys, "info", "--posterior", output, "--json"))
    assert facts["slope"] == pytest.approx(search.slope_)
    assert facts.get("shares", [1.0]) == pytest.approx(list(search.shares_.values()))
    assert facts["backend"].startswith("SmallVariance(")
    assert "scale=10.0" in facts["backend"]
    assert "init=auto" in facts["backend"]  # not the components of each row

    assert said(capsys, *fit, "--no-search").startswith("Posterior(")
    assert "slope" not in Posterior.load(output).samples


@pytest.mark.usefixtures("small_backends")
def test_a_fit_without_a_search_says_so(table, tmp_path, capsys):
    few = write(tmp_path / "few.csv", [HEADER, *animals(9), *animals(9)])
    place = ["--target", "kind", "--output", tmp_path / "p.pt"]
    for arguments, reason in [
        (["--data", table, "--checkpoint", tmp_path / "c.pt"], "a search cannot go on from a --checkpoint"),
        (["--data", few], "it takes 10 different rows"),
    ]:
        assert f"without a search: {reason}" in said(capsys, "fit", *place, *arguments).splitlines()[0]
        assert "slope" not in Posterior.load(tmp_path / "p.pt").samples


def test_other_models_have_no_search():
    from regbayes.cli.search import why_no_search

    options = argparse.Namespace(model="MedLDA", search=True, checkpoint=None)
    X, y = np.eye(20), np.arange(20)
    assert why_no_search(options, X, y) == "there is none for MedLDA, but for InfiniteSVM"
    options.model = "InfiniteSVM"
    assert why_no_search(options, X, y) is None


def test_a_search_of_a_large_table_sees_some_rows_and_its_fit_all(table, tmp_path, capsys, monkeypatch):
    from regbayes.cli import search

    output, seen = tmp_path / "p.pt", []
    monkeypatch.setattr(search, "MOST_ROWS", 30)
    hold_out = ClassifierCV._hold_out

    def held_out(self, parts, rows, splits, *others):
        seen.append([np.sort(np.concatenate([part.place for part in split])).tolist() for split in splits])
        return hold_out(self, parts, rows, splits, *others)

    monkeypatch.setattr(ClassifierCV, "_hold_out", held_out)
    for _ in range(2):
        assert said(capsys, "fit", "--data", table, "--target", "kind", "--output", output).startswith(
            "chosen by 3 folds of 30 of 60 rows (accuracy "
        )
        assert Posterior.load(output).samples["assignments"].shape[1] == 60
    assert seen[0] == seen[1]
    assert [len(set(rows)) for rows in seen[0]] == [30, 30, 30]
    assert seen[0][0] != list(range(30))


def test_clustering_needs_no_target(table, tmp_path, capsys):
    output = tmp_path / "clusters.pt"
    said(capsys, "fit", "--model", "DPM", "--data", table, "--target", "kind", "--output", output)
    lines = said(capsys, "predict", "--posterior", output, "--data", table).splitlines()
    assert lines[0] == "component"
    assert len(lines) == 61
    assert main(["info", "--posterior", str(output)]) == 0


def test_separators_and_byte_order_mark(tmp_path):
    for delimiter in ",;\t":
        path = write(tmp_path / "t.csv", [["a", "b"], [1, "x"], [2.5, "y"]], delimiter)
        path.write_text("\ufeff" + path.read_text() + "\n")
        read = read_table(str(path))
        assert read.names == ["a", "b"]
        assert read.numbers(["a"]).tolist() == [[1.0], [2.5]]
        assert read.column("b").tolist() == ["x", "y"]


# -- compare -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("small_backends", "small_searches")
def test_compare_writes_json_and_a_picture(table, tmp_path, capsys):
    arguments = ["compare", "--data", table, "--target", "kind", "--folds", 2, "--out", tmp_path / "out", "--json"]
    result = json.loads(said(capsys, *arguments))
    methods = {method["name"]: method for method in result["methods"]}
    ours = {f"InfiniteSVM, {name}" for name in ("small_variance", "svi", "gibbs")}
    assert ours <= set(methods)
    assert {"LinearSVC", "RBF-SVC", "DP-means + LinearSVC"} <= set(methods)
    for name, method in methods.items():
        assert len(method["folds"]) == 2
        assert method["mean"]["accuracy"] >= 0.9
        assert method["mean"]["fit_seconds"] > 0
        assert (method["value_name"] is not None) == (name in ours)
        assert (method["mean"]["value"] is not None) == (name in ours)
    assert {methods[name]["value_name"] for name in ours} == {"objective", "ELBO", "log joint"}
    image = __import__("matplotlib.image").image.imread(result["picture"])
    assert min(image.shape[:2]) > 500
    assert len(np.unique((255 * image).astype(int) @ 256 ** np.arange(image.shape[2]))) > 100  # colors


@pytest.mark.slow
@pytest.mark.usefixtures("small_backends", "small_searches")
def test_compare_prints_one_table(table, tmp_path, capsys):
    arguments = ["compare", "--data", table, "--target", "kind", "--folds", 2, "--out", tmp_path]
    assert main([*map(str, arguments), "--inference", "small_variance", "--inference", "small_variance"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    lines = output.out.splitlines()
    header = next(line for line in lines if "accuracy" in line)
    names = ["accuracy", "macro-F1", "K", "fit s", "tuning s", "predict s"]
    assert [header.index(name) for name in names] == sorted(header.index(name) for name in names)
    assert [line.startswith("  small_variance  ") for line in lines[lines.index("InfiniteSVM") + 1 :]].count(True) == 1
    assert max(map(len, lines[:-1])) <= 80  # the last one names the picture
    assert (tmp_path / "compare.png").stat().st_size > 10_000


@pytest.mark.nightly
@pytest.mark.usefixtures("small_backends", "small_searches")
def test_compare_is_repeatable(tmp_path, capsys):
    table = write(tmp_path / "few.csv", [HEADER, *animals(16)])
    arguments = ["compare", "--data", table, "--target", "kind", "--folds", 2, "--seed", 5, "--json", "--out", tmp_path]
    quality = []
    for _ in range(2):
        methods = json.loads(said(capsys, *arguments, "--inference", "svi"))["methods"]
        quality.append([(fold["accuracy"], fold["value"]) for method in methods for fold in method["folds"]])
    assert quality[0] == quality[1]


def test_ctrl_c_ends_the_whole_command(table, tmp_path, capsys, monkeypatch):
    from regbayes.cli import compare
    from regbayes.inference import FitInterrupted

    def interrupted(*_):
        import warnings

        warnings.warn("Interrupted in step 3", FitInterrupted, stacklevel=1)

    monkeypatch.setattr(compare, "_tuned_scale", interrupted)
    monkeypatch.setattr(compare, "rivals", lambda *_: {})
    arguments = ["compare", "--data", str(table), "--target", "kind", "--inference", "svi", "--out", str(tmp_path)]
    assert main(arguments) == 130
    assert capsys.readouterr().err == "regbayes: no method was done.\n"
    assert list(tmp_path.glob("compare*")) == []


@pytest.mark.slow
@pytest.mark.usefixtures("small_backends", "small_searches")
def test_compare_shows_each_line_as_soon_as_it_is_there_and_keeps_them_on_ctrl_c(table, tmp_path, capsys, monkeypatch):
    from regbayes.cli import compare

    picture = tmp_path / "compare.png"
    picture.write_text("the old one")
    score, shown = compare._score, []

    def scored(*arguments):
        shown.append(capsys.readouterr().out)
        if len(shown) == 4:  # the second method's second fold
            raise KeyboardInterrupt
        return score(*arguments)

    monkeypatch.setattr(compare, "_score", scored)
    arguments = ["compare", "--data", str(table), "--target", "kind", "--folds", "2", "--out", str(tmp_path)]
    assert main(arguments) == 130
    assert "2 classes; 2 stratified folds" in shown[0]
    assert shown[1] == ""
    assert shown[2].startswith("LinearSVC ")
    kept = tmp_path / "compare.json.interrupted"
    error = capsys.readouterr().err
    assert error == f"regbayes: the results of 1 methods are in {str(kept)!r}; no picture was drawn.\n"
    assert [method["name"] for method in json.loads(kept.read_text())["methods"]] == ["LinearSVC"]
    assert picture.read_text() == "the old one"


# -- Ctrl-C and checkpoints ------------------------------------------------------------------------------------


@pytest.fixture
def ctrl_c_in_sweep(monkeypatch: pytest.MonkeyPatch):
    """Presses Ctrl-C within one sweep of Gibbs, whose number it is given; None: no more."""
    pressed: list[int | None] = [None]
    plain = Gibbs.kernel

    def kernel(self, model):
        made = plain(self, model)

        def sweep(state, data, model, generator, step):
            if step == pressed[0]:
                signal.raise_signal(signal.SIGINT)
            return made.sweep(state, data, model, generator, step)

        return dataclasses.replace(made, sweep=sweep)

    monkeypatch.setattr(Gibbs, "kernel", kernel)
    return lambda step: pressed.__setitem__(0, step)


OLDER = "of an earlier run that was interrupted, is older than the result."


@pytest.mark.usefixtures("small_backends")
def test_ctrl_c_in_a_fit_keeps_what_was_reached_beside_the_output(table, tmp_path, capsys, ctrl_c_in_sweep):
    output, kept = tmp_path / "p.pt", tmp_path / "p.pt.interrupted"
    output.write_bytes(b"the old one")
    ctrl_c_in_sweep(15)
    arguments = ["fit", "--data", table, "--target", "kind", "--inference", "gibbs", "--output", output]
    assert main([str(argument) for argument in arguments]) == 130
    error = capsys.readouterr().err
    assert error.startswith("regbayes: Interrupted ")
    assert f"That is in {str(kept)!r}, and nothing was written to {str(output)!r}." in error
    assert error.count("\n") == 1
    assert output.read_bytes() == b"the old one"
    assert 0 < sum(Posterior.load(kept).num_draws) < 12
    assert main(["predict", "--posterior", str(kept), "--data", str(table)]) == 0


@pytest.mark.usefixtures("small_backends")
@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_terminal_is_told_of_a_compilation(table, tmp_path, capsys, monkeypatch, on_terminal):
    from numba import njit

    from regbayes.cli import commands

    search = commands.search
    monkeypatch.setattr(commands, "search", lambda *arguments: (njit(lambda x: x + 1)(1), search(*arguments))[1])
    monkeypatch.setattr("sys.stderr.isatty", lambda: on_terminal)
    assert main(["fit", "--data", str(table), "--target", "kind", "--output", str(tmp_path / "p.pt")]) == 0
    told = "regbayes: compiling, once; later commands load what this one has compiled\n"
    assert capsys.readouterr().err.count(told) == on_terminal


@pytest.mark.usefixtures("small_backends")
def test_a_fit_goes_on_from_its_checkpoint_as_if_it_had_not_stopped(table, tmp_path, capsys, ctrl_c_in_sweep):
    fit = ["fit", "--data", str(table), "--target", "kind", "--inference", "gibbs", "--output"]
    assert main([*fit, str(tmp_path / "whole.pt"), "--no-search"]) == 0
    ctrl_c_in_sweep(15)
    again = [*fit, str(tmp_path / "p.pt"), "--checkpoint", str(tmp_path / "c.pt")]
    assert main(again) == 130
    assert f"the same command goes on from {str(tmp_path / 'c.pt')!r}" in capsys.readouterr().err
    ctrl_c_in_sweep(None)
    assert main(again) == 0
    assert f"regbayes: {str(tmp_path / 'p.pt.interrupted')!r}, {OLDER}" in capsys.readouterr().err
    whole, resumed = Posterior.load(tmp_path / "whole.pt"), Posterior.load(tmp_path / "p.pt")
    assert all(torch.equal(whole.samples[name], resumed.samples[name]) for name in whole.samples)
    capsys.readouterr()
    assert "seed" in refuse(capsys, *again, "--seed", 1)


def test_ctrl_c_in_the_search_of_a_fit_keeps_nothing(table, tmp_path, capsys, monkeypatch):
    output = tmp_path / "p.pt"
    output.write_bytes(b"the old one")
    kernel, calibrate, pressed = SmallVariance.kernel, ClassifierCV.calibrate, [True]

    def pressing(self, model):
        made = kernel(self, model)

        def sweep(*arguments):
            if pressed[0]:
                signal.raise_signal(signal.SIGINT)
            return made.sweep(*arguments)

        return dataclasses.replace(made, sweep=sweep)

    monkeypatch.setattr(SmallVariance, "kernel", pressing)
    fit = ["fit", "--data", str(table), "--target", "kind", "--output", str(output)]
    assert main(fit) == 130
    error = capsys.readouterr().err
    assert error.startswith("regbayes: Interrupted in the search for settings: no fit was reached, and nothing was ")
    assert error.count("\n") == 1
    assert output.read_bytes() == b"the old one"

    def calibrated(self, *given):  # only the last fit is left
        calibrate(self, *given)
        pressed[0] = True

    pressed[0] = False
    monkeypatch.setattr(ClassifierCV, "calibrate", calibrated)
    assert main(fit) == 130
    assert capsys.readouterr().err == error
    assert output.read_bytes() == b"the old one"
    assert list(tmp_path.glob("p.pt*")) == [output]


@pytest.mark.usefixtures("small_backends")
def test_ctrl_c_in_a_clustering_keeps_the_labels_until_then(chains, tmp_path, capsys, ctrl_c_in_sweep):
    ctrl_c_in_sweep(3)
    old = tmp_path / "cluster.csv"
    old.write_text("the old one")
    checkpoint = tmp_path / "c.pt"
    argv = ["cluster", "--data", str(chains), "--model", "DPM", "--model", "DDPM-S", "--checkpoint", str(checkpoint)]
    argv += ["--inference", "svi", "--inference", "gibbs", "--out", str(tmp_path)]
    assert main(argv) == 130
    error = capsys.readouterr().err
    assert "That was DPM, gibbs; the labels until then are in" in error
    assert f"goes on from {str(checkpoint) + '.DPM.gibbs'!r}" in error
    assert old.read_text() == "the old one"
    lines = (tmp_path / "cluster.csv.interrupted").read_text().splitlines()
    assert lines[0].endswith('"DPM, svi","DPM, gibbs"')
    assert len(lines) == 61
    assert not (tmp_path / "cluster.png").exists()
    ctrl_c_in_sweep(None)
    assert main(argv) == 0
    assert OLDER in capsys.readouterr().err


def test_ctrl_c_in_a_prediction_keeps_the_rows_until_then(fitted, table, tmp_path, capsys, monkeypatch):
    from regbayes.cli import commands

    output, calls = tmp_path / "labels.csv", []
    output.write_text("the old one")
    assign = PartitionPosterior.assign

    def assigned(self, X):
        if calls:
            raise KeyboardInterrupt
        calls.append(len(X))
        return assign(self, X)

    monkeypatch.setattr(commands, "_CHUNK", 8)
    monkeypatch.setattr(PartitionPosterior, "assign", assigned)
    assert main(["predict", "--posterior", str(fitted), "--data", str(table), "--output", str(output)]) == 130
    kept = tmp_path / "labels.csv.interrupted"
    error = capsys.readouterr().err
    assert error == f"regbayes: the rows done so far are in {str(kept)!r}; nothing was written to {str(output)!r}.\n"
    assert output.read_text() == "the old one"
    assert len(kept.read_text().splitlines()) == 1 + 8
    assert sorted(path.name for path in tmp_path.glob("*label*")) == ["labels.csv", "labels.csv.interrupted"]
    monkeypatch.setattr(PartitionPosterior, "assign", assign)
    assert main(["predict", "--posterior", str(fitted), "--data", str(table), "--output", str(output)]) == 0
    assert capsys.readouterr().err == f"regbayes: {str(kept)!r}, {OLDER}\n"
    assert len(kept.read_text().splitlines()) == 1 + 8


# -- regression ------------------------------------------------------------------------------------------------


def prices(path: Path, num_rows: int = 80, digits: int = 3) -> Path:
    rng = np.random.default_rng(0)
    width, height = rng.normal(size=(2, num_rows))
    price = np.round(500 + 40 * width - 25 * height + rng.normal(size=num_rows), digits)
    columns = zip(width.round(4), height.round(4), price if digits else price.astype(int), strict=True)
    return write(path, [["width", "height", "price"], *map(list, columns)])


def test_a_target_of_many_numbers_is_regression_and_the_user_is_told(tmp_path, capsys):
    table, posterior, output = prices(tmp_path / "prices.csv"), tmp_path / "p.pt", tmp_path / "out.csv"
    assert main(["fit", "--data", str(table), "--target", "price", "--output", str(posterior)]) == 0
    told = capsys.readouterr().err
    assert "column 'price' has 80 different numbers, so this is regression (--task classification for classes)" in told
    assert main(["predict", "--posterior", str(posterior), "--data", str(table), "--output", str(output)]) == 0
    result = list(csv.DictReader(output.read_text().splitlines()))
    assert list(result[0]) == ["prediction", "component"]
    truth = read_table(str(table)).numbers(["price"])[:, 0]
    error = truth - np.array([float(row["prediction"]) for row in result])
    assert error.std() < 0.2 * truth.std()
    assert abs(error.mean()) < 0.1 * truth.std()
    facts = json.loads(said(capsys, "info", "--posterior", posterior, "--json"))
    assert facts["target_mean"] == pytest.approx(truth.mean())
    assert facts["target_scale"] == pytest.approx(truth.std())
    assert "classes" not in facts


def test_many_whole_numbers_are_asked_about(tmp_path, capsys):
    table = prices(tmp_path / "prices.csv", digits=0)
    fit = ["fit", "--data", table, "--target", "price", "--output", tmp_path / "p.pt"]
    assert "different whole numbers: classes, or a number to predict? Give --task" in refuse(capsys, *fit)
    assert main([*map(str, fit), "--task", "regression"]) == 0
    assert capsys.readouterr().err == ""


def test_few_numbers_are_classes_unless_the_user_says_so(tmp_path, capsys):
    rows = [[*row[:2], 0.5 if row[2] == "cat" else 2.0] for row in animals(40)]
    table = write(tmp_path / "t.csv", [HEADER, *rows])
    fit = ["fit", "--data", str(table), "--target", "kind", "--output", str(tmp_path / "p.pt")]
    assert main(fit) == 0
    assert Posterior.load(tmp_path / "p.pt").metadata["classes"] == ["0.5", "2.0"]
    assert main([*fit, "--task", "regression"]) == 0
    assert Posterior.load(tmp_path / "p.pt").metadata["target_mean"] == 1.25


def test_regression_needs_numbers_that_vary(tmp_path, capsys, table):
    place = ["--output", tmp_path / "p.pt", "--task", "regression"]
    assert "'cat' is not a number" in refuse(capsys, "fit", "--data", table, "--target", "kind", *place)
    same = write(tmp_path / "same.csv", [HEADER, [1, 2, 3.5], [2, 1, 3.5]])
    assert "column 'kind' is 3.5 in every row" in refuse(capsys, "fit", "--data", same, "--target", "kind", *place)
    for command in ("fit", "compare"):
        where = place if command == "fit" else ["--out", tmp_path, *place[2:]]
        for cell, message in [
            (1e300, "line 3, column 'kind': 1e+300 is too large to be squared"),
            (-1e200, "line 3, column 'kind': -1e+200 is too large to be squared"),
        ]:
            large = write(tmp_path / "large.csv", [HEADER, [1, 2, 3.5], [2, 1, cell], [1, 1, 2.5], [2, 2, 1.5]])
            assert message in refuse(capsys, command, "--data", large, "--target", "kind", *where)
        small = write(tmp_path / "small.csv", [HEADER, [1, 2, 0.0], [2, 1, 1e-200], [1, 1, 3e-200]])
        assert "from 0 to 3e-200, too small a range" in refuse(
            capsys, command, "--data", small, "--target", "kind", *where
        )
    few = prices(tmp_path / "few.csv", num_rows=7)
    arguments = ["compare", "--data", few, "--target", "price", "--task", "regression", "--out", tmp_path]
    assert "has 7 rows, but 3 folds need 8" in refuse(capsys, *arguments)


@pytest.mark.nightly
@pytest.mark.usefixtures("small_backends", "small_searches")
def test_compare_serves_regression_whose_svr_may_use_global_stream(tmp_path, capsys):
    table = prices(tmp_path / "prices.csv")
    arguments = ["compare", "--data", table, "--target", "price", "--folds", 2, "--out", tmp_path]
    result = json.loads(said(capsys, *arguments, "--json"))
    assert result["task"] == "regression"
    methods = {method["name"]: method["mean"] for method in result["methods"]}
    ours = [f"InfiniteSVM, {name}" for name in ("small_variance", "svi", "gibbs")]
    assert list(methods) == ["LinearSVR", "RBF-SVR", "DP-means + LinearSVR", *ours]
    for name in ["LinearSVR", *ours]:
        assert methods[name]["r2"] > 0.9
        assert methods[name]["rmse"] < 15  # in the target's own units
    assert Path(result["picture"]).stat().st_size > 10_000
    text = said(capsys, *arguments, "--inference", "small_variance")
    assert "80 rows, 2 features, a number to predict; 2 folds" in text
    assert "R2" in text


# -- compressed tables, tabs, dates, bars ----------------------------------------------------------------------


def cells(path: Path) -> list[list[str]]:
    return list(read_table(str(path)).rows())


def test_compressed_tables_are_read_and_written(fitted, table, tmp_path, capsys):
    packed, plain = tmp_path / "t.csv.gz", tmp_path / "out.csv"
    packed.write_bytes(gzip.compress(table.read_bytes()))
    assert cells(packed) == cells(table)
    predict = ["predict", "--posterior", str(fitted), "--data"]
    assert main([*predict, str(table), "--output", str(plain)]) == 0
    for name, delimiter in [("out.csv.gz", ","), ("out.tsv.gz", "\t"), ("out.txt.gz", ","), ("out.tsv", "\t")]:
        output = tmp_path / name
        assert main([*predict, str(packed), "--output", str(output)]) == 0
        text = output.read_bytes() if name == "out.tsv" else gzip.decompress(output.read_bytes())
        assert text.decode() == plain.read_text().replace(",", delimiter)
        assert cells(output) == cells(plain)
    packed.write_bytes(packed.read_bytes()[:-20])
    assert "compressed by gzip, but broken or cut short" in refuse(capsys, *predict, packed)


def test_dates_say_the_order(tmp_path):
    for dates in [
        ["2024-02-01", "2024-01-31", "2023-12-31"],
        ["2024-01-31T12:30", "2024-01-31 12:29:59.5", "2024-01-31"],
        ["2024-01-31T12:00+01:00", "2024-01-31T10:30Z", "2024-01-31T11:29+01:00"],
        [10.5, -2, -3e9],
    ]:
        table = read_table(str(write(tmp_path / "t.csv", [["when", "x"], *([date, 1] for date in dates)])))
        times = table.times("when")
        assert times[0] > times[1] > times[2]
    days = read_table(str(write(tmp_path / "t.csv", [["when", "x"], ["2024-03-01", 1], ["2024-02-28", 1]])))
    assert np.diff(days.times("when")).tolist() == [-2 * 86_400]


@pytest.mark.parametrize(("first", "second"), [("2024-01-31", "tomorrow"), ("2024-01-31", "5"), ("5", "2024-01-31")])
def test_cells_that_are_no_times_are_named(tmp_path, capsys, first, second):
    table = write(tmp_path / "t.csv", [["when", "x"], [first, 1.0], [second, 2.0], [first, 3.0]])
    line = refuse(capsys, "cluster", "--data", table, "--time", "when", "--out", tmp_path)
    assert f"line 3, column 'when': {second!r}" in line


def test_bars_are_for_terminals(fitted, table, tmp_path, monkeypatch):
    from regbayes.cli import progress

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    predict = ["predict", "--posterior", str(fitted), "--data", str(table), "--output", str(tmp_path / "out.csv")]
    for stream, seconds, bars in [(Terminal(), 0.0, True), (Terminal(), 2.0, False), (io.StringIO(), 0.0, False)]:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(progress, "_SECONDS", seconds)
        assert main(predict) == 0
        assert all((text in stream.getvalue()) == bars for text in ("reading animals.csv", "predict"))


def test_only_files_are_written(fitted, table, tmp_path, capsys):
    refused = refuse(capsys, "predict", "--posterior", fitted, "--data", table, "--output", "/dev/null")
    assert "is a folder or a device" in refused
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    assert main(["predict", "--posterior", str(fitted), "--data", str(table), "--output", f"{tmp_path}/link.csv"]) == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text().startswith("prediction,")


# -- standard input and output, columns left out, hostile files -------------------------------------------------


def feed(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """What the command finds on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_dash_is_standard_input_and_output(fitted, table, tmp_path, capsys, monkeypatch):
    predict = ["predict", "--posterior", str(fitted), "--data"]
    plain = said(capsys, *predict, table)
    for content in (table.read_bytes(), gzip.compress(table.read_bytes())):
        feed(monkeypatch, content)
        assert said(capsys, *predict, "-", "--output", "-") == plain
    feed(monkeypatch, table.read_bytes())
    fit = ["fit", "--data", "-", "--target", "kind", "--no-search", "--output"]
    said(capsys, *fit, tmp_path / "p.pt")
    feed(monkeypatch, b"width,height\n1,two\n")
    assert "standard input, line 2, column 'height'" in refuse(capsys, *predict, "-")
    assert "takes tables alone" in refuse(capsys, *fit, "-")
    assert "names a folder" in refuse(capsys, "cluster", "--data", table, "--out", "-")


def test_dropped_columns_are_left_out_of_predictions_too(tmp_path, capsys):
    names = ["id", "width", "note, long", "height", "kind"]
    rows = [[index, width, "x" * (index % 3), height, kind] for index, (width, height, kind) in enumerate(animals(40))]
    table, output = write(tmp_path / "t.csv", [names, *rows]), tmp_path / "p.pt"
    fit = ["fit", "--data", str(table), "--target", "kind", "--no-search", "--output", str(output)]
    predict = ["predict", "--posterior", str(output), "--data", str(table)]
    line = refuse(capsys, *fit, "--drop", "id")
    assert (
        "line 2, column 'note, long' is empty. Fill in a number, drop the row, or leave the column out by --drop"
        in line
    )
    assert main([*fit, "--drop", 'id, "note, long"']) == 0
    metadata = Posterior.load(output).metadata
    assert (metadata["features"], metadata["dropped"]) == (["width", "height"], ["id", "note, long"])
    capsys.readouterr()
    found = said(capsys, *predict)
    few = write(tmp_path / "few.csv", [["width", "height", "age"], *[[row[1], row[3], "old"] for row in rows]])
    assert "'age'. Leave them out by --drop" in refuse(capsys, *predict[:-1], few)
    assert said(capsys, *predict[:-1], few, "--ignore", "age") == found
    assert main([*fit, "--ignore", "id", "--drop", '"note, long",height']) == 0
    assert Posterior.load(output).metadata["features"] == ["width"]
    capsys.readouterr()
    for arguments, message in [
        ([*fit, "--drop", "age"], "--drop: "),
        ([*fit, "--drop", "kind"], "column 'kind' of"),
        ([*fit, "--drop", "id,,width"], "has a column without a name"),
        ([*predict, "--drop", "width"], "the fit had the column 'width'"),
        (["compare", "--drop", "id"], "--drop needs --data"),
    ]:
        assert message in refuse(capsys, *arguments)


def test_text_among_features_is_told_with_what_to_do(tmp_path, capsys):
    rows = [[1.0, "red", "cat", "x"], [2.0, "blue", "dog", "y"]]
    table = write(tmp_path / "t.csv", [["width", "color", "kind", "mark"], *rows])
    line = refuse(capsys, "fit", "--data", table, "--target", "kind", "--output", tmp_path / "p.pt")
    assert "line 2, column 'color': 'red' is not a number." in line
    assert "one column of 0 and 1 for each category" in line
    assert "by --drop (likewise 'mark' in this line)" in line
    with pytest.raises(CommandError, match="'1_000' is not a number"):
        read_table(str(write(tmp_path / "u.csv", [["a", "b"], [1, 2], ["1_000", 3]]))).numbers(["a"])


def test_a_small_file_of_much_text_is_refused_as_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.csv.gz"
    with monkeypatch.context() as patch:
        patch.setattr(sources, "_LEAST_BOUND", 10_000)
        path.write_bytes(gzip.compress(b"a,b\n" + b"0,0\n" * 1_000_000))
        assert path.stat().st_size < 10_000
        with pytest.raises(CommandError, match=r"100 times its size or more.*unpack it first"):
            read_table(str(path))
    monkeypatch.setattr(sources, "_BLOCKS", (100, 1000))
    path.write_bytes(gzip.compress(b"a,b\n1,2\n" + b"0" * 500 + b",3\n" + b"0" * 100_000))
    with pytest.raises(CommandError, match="line 4 has 1,000 characters or more"):
        read_table(str(path))


def test_a_large_table_is_read_in_blocks(tmp_path):
    """Its text is never there at once."""
    values = np.random.default_rng(0).normal(size=(40_000, 8)).astype(np.float32)
    table = tmp_path / "large.csv"
    table.write_text("\n".join(["a,b,c,d,e,f,g,h", *(",".join(map(repr, row)) for row in values.tolist())]))
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    read_table(str(write(tmp_path / "small.csv", [["a"], [1]]))).numbers(["a"])  # what is loaded at first use
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        read = read_table(str(table)).numbers(list("hgfedcba"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    np.testing.assert_array_equal(read, values[:, ::-1])
    assert table.stat().st_size > 6e6
    assert peak < read.nbytes + 3e6  # some blocks are read ahead
    assert 0 < pool.max_memory() < 1e6


@pytest.mark.parametrize("blocks", [(2**16,), (8, 64)])
def test_cells_are_what_python_and_its_csv_module_see(blocks, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_BLOCKS", blocks)
    path = tmp_path / "t.csv"
    path.write_text('\n  \nnote,x,y\n"two\nlines", +4 ,1e5\n,,\n\n"a ""b"", c",.5,-3\n  \nz,nan,\nlast,7,tall\n')
    table = read_table(str(path))
    assert table.names == ["note", "x", "y"]
    assert [row[0] for row in table.rows()] == ["two\nlines", 'a "b", c', "z", "last"]
    with pytest.raises(CommandError, match="line 11, column 'y': 'tall' is not a number"):
        table.numbers(["x", "y"], missing_rows=True)
    path.write_text(path.read_text().replace("tall", "8"))
    np.testing.assert_array_equal(
        read_table(str(path)).numbers(["x", "y"], missing_rows=True), [[4, 1e5], [0.5, -3], [np.nan] * 2, [7, 8]]
    )
    with pytest.raises(CommandError, match="line 10, column 'x': 'nan' is not finite"):
        read_table(str(path)).numbers(["x"])
    path.write_text(path.read_text() + "only,two")
    with pytest.raises(CommandError, match="line 12 has 2 cells, but the header has 3"):
        read_table(str(path))


def test_the_index_of_a_data_frame_is_no_column(tmp_path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1.0, 2.0, 3.0], "y": [0, 1, 0]})
    frame[frame.x != 2].to_parquet(tmp_path / "t.parquet")
    assert read_table(str(tmp_path / "t.parquet")).names == ["x", "y"]


@pytest.mark.parametrize("rest", [3, 30_000], ids=["short", "long"])
def test_a_quote_that_is_never_closed_swallows_no_rows(tmp_path, capsys, rest) -> None:
    rows = ["a,b,note", *["1,2,ok"] * 5, '1,2,"2 inch', *["3,4,ok"] * rest]
    (tmp_path / "open.csv").write_text("\n".join(rows) + "\n")
    message = refuse(capsys, "cluster", "--data", tmp_path / "open.csv", "--drop", "note")
    assert "a quote in the row after line 6 is never closed" in message
    (tmp_path / "inch.csv").write_text("\n".join(rows).replace('"2 inch', '2" inch'))
    (tmp_path / "several.csv").write_text("\n".join(rows).replace('"2 inch', '"2\n""3"" inch"'))
    for name in ("inch", "several"):
        found = sources.source_of(str(tmp_path / f"{name}.csv"))
        assert found.span == slice(0, 6 + rest)


def test_without_standard_output_nothing_is_begun(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["--version"]) == 2
    assert capsys.readouterr().err.startswith("regbayes: error: standard output is closed.")


@pytest.mark.parametrize(("arguments", "code"), [(["info", "--posterior", "none.pt"], 2), (["info", "--help"], 0)])
def test_a_program_ends_with_the_code_of_its_command(tmp_path, arguments, code) -> None:
    program = "import atexit, regbayes.cli; atexit.register(print, 'ended'); print('begun'); regbayes.cli.command()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == code
    assert (done.stdout.split()[0], done.stdout.split()[-1]) == ("begun", "ended")
    assert done.stderr.startswith("regbayes: error: ") == (code == 2)


def test_a_quote_that_is_never_closed_is_told_in_a_line(tmp_path, capsys) -> None:
    path = tmp_path / "t.csv"
    path.write_text('"x,y\n' + "1,2\n" * 50_000)
    assert len(refuse(capsys, "compare", "--data", path, "--target", "y")) < 600
    path.write_text('x,y\n1,"2\n' + "1,2\n" * 50_000)
    assert len(refuse(capsys, "compare", "--data", path, "--target", "y")) < 600


@pytest.mark.parametrize(
    "labels", [[True, False, True], [1.0, 2.0, -3.0], [1, 2, 3], ["a", "b ", "c"], [0.5, 1e-7, 2.0]]
)
def test_labels_of_columns_with_types_are_those_of_csv(labels, tmp_path) -> None:
    frame = pytest.importorskip("pandas").DataFrame({"kind": labels})
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = [read_table(str(tmp_path / name)).column("kind").tolist() for name in ("t.parquet", "t.csv")]
    assert found[0] == found[1]


def test_durations_are_no_numbers(tmp_path, capsys):
    durations = pa.array(np.arange(8), pa.duration("ns"))
    write_parquet(pa.table({"wait": durations, "kind": ["a", "b"] * 4}), tmp_path / "t.parquet")
    fit = ["fit", "--data", tmp_path / "t.parquet", "--target", "kind", "--output", tmp_path / "p.pt"]
    assert "column 'wait': '0 ns' is not a number" in refuse(capsys, *fit)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_columns_with_types_are_read_as_their_text_would_be(name, tmp_path, capsys, monkeypatch):
    rows = animals(60)
    columns = {
        "width": pa.array([row[0] for row in rows], pa.float32()),
        "height": pa.array([round(row[1]) for row in rows], pa.int16()),
        "note": pa.array([["any", "list"]] * 60),
        "kind": pa.array([row[2] for row in rows]).dictionary_encode(),
        "day": pa.array([datetime.date(2024, 1, 1) + datetime.timedelta(60 - n) for n in range(60)]),
    }
    path, plain, output = tmp_path / name, tmp_path / "t.csv", tmp_path / "p.pt"

    def store(columns):
        {"t.parquet": write_parquet, "t.arrow": write_feather}[name](pa.table(columns), str(path))

    store(columns)
    table = read_table(str(path))
    assert table.names == list(columns)
    assert table.column("kind").tolist() == [row[2] for row in rows]
    assert (np.diff(table.times("day")) == -86_400).all()
    write(plain, [list(columns), *table.rows()])
    np.testing.assert_array_equal(
        table.numbers(["height", "width"]), read_table(str(plain)).numbers(["height", "width"]).astype(np.float32)
    )
    fit = ["fit", "--target", "kind", "--no-search", "--output", str(output), "--data"]
    assert "'note': \"['any', 'list']\" is not a number" in refuse(capsys, *fit, path)
    predict = ["predict", "--posterior", str(output), "--data"]
    said(capsys, *fit, path, "--drop", "note,day")
    found = []
    for source in (path, plain, "-"):
        feed(monkeypatch, path.read_bytes())
        found.append(said(capsys, *predict, source))
    assert found[0] == found[1] == found[2]

    height = columns["height"].to_pylist()
    store(columns | {"height": pa.array([*height[:7], None, *height[8:]])})
    assert "row 8, column 'height' is empty" in refuse(capsys, *predict, path)
    store(columns | {"width": pa.array([*height[:9], float("inf"), *height[10:]], pa.float64())})
    assert "row 10, column 'width': 'inf' is not finite" in refuse(capsys, *predict, path)
    with monkeypatch.context() as patch:
        patch.setattr(sources, "_LEAST_BOUND", 100)
        patch.setattr(sources, "_MOST_INFLATION", 0)
        assert "holds over 100 cells" in refuse(capsys, *predict, path)
    path.write_bytes(path.read_bytes()[:-20])
    assert "is broken or cut short" in refuse(capsys, *predict, path)
    write_parquet(pa.table([height] * 2, names=["height"] * 2), path)
    feed(monkeypatch, path.read_bytes())
    for source in (path, "-"):
        assert "has two columns of one name" in refuse(capsys, *predict, source)


def test_links_in_a_circle_are_told_in_one_line(tmp_path, capsys, table):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    fit = ["fit", "--data", table, "--target", "kind", "--output"]
    for output in (tmp_path / "a", tmp_path / "a" / "p.pt"):
        assert "cannot be written: Too many levels of symbolic links" in refuse(capsys, *fit, output)
    assert "cannot be read" in refuse(capsys, "cluster", "--data", tmp_path / "a", "--out", tmp_path)


def test_names_of_classes_are_as_many_as_the_posterior_has(tmp_path, capsys, table, fitted):
    odd, path = Posterior.load(fitted), tmp_path / "odd.pt"
    for classes, count in [(["cat"], 1), (["cat", "cow", "dog"], 3), (None, 0)]:
        odd.metadata = odd.metadata | {"classes": classes}
        odd.save(path)
        for arguments in (["info", "--posterior", path], ["predict", "--posterior", path, "--data", table]):
            assert f"has names of {count} classes in its metadata, but its posterior has 2" in refuse(
                capsys, *arguments
            )


def test_help_says_when_a_task_is_needed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    for command in ("fit", "compare"):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        assert "over 20 whole numbers could be either, and need this option" in capsys.readouterr().out


def test_every_command_has_examples_that_it_would_run(capsys):
    from regbayes.cli import _COMMANDS, _parser

    for name, examples in ((name, command.examples) for name, command in _COMMANDS.items()):
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])
        shown = capsys.readouterr().out
        assert shown.endswith(f"examples:\n{examples}\n")
        assert 2 <= len(examples.splitlines()) <= 3
        for line in examples.splitlines():
            command = line.split("regbayes ")[1].split(" |")[0]
            assert _parser().parse_args(command.split()).command == name


def test_compare_shows_its_header_before_it_loads_torch(table, tmp_path):
    code = f"""
import sys
from regbayes.cli import _parser
from regbayes.cli.begin import begin
begin(_parser().parse_args(["compare", "--data", {str(table)!r}, "--target", "kind", "--out", {str(tmp_path)!r}]))
assert not {{"torch", "sklearn", "scipy"}} & set(sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    title, _, header = result.stdout.splitlines()
    assert title == "animals.csv: 60 rows, 2 features, 2 classes; 3 stratified folds"
    assert header.split()[:2] == ["accuracy", "macro-F1"]
    assert len(header) == 80


def test_tables_are_80_columns_wide(table, tmp_path, capsys, fitted):
    score = Score({"r2": 0.5, "rmse": 12345.6, "accuracy": 1.0, "macro_f1": 1.0}, 12, 0.0123, 1234.5, 0.5, 1.0, -1e6)
    for task, quality in [("classification", score), ("regression", score)]:
        report = TextReport(task)
        lines = [report.line(Method(f"InfiniteLatentSVM, {way}", [quality], "ELBO", None)) for way in ("gibbs", "svi")]
        assert lines[0].splitlines()[0] == "InfiniteLatentSVM"
        assert lines[1].startswith("  svi ")
        assert all(len(line) <= 80 for line in "\n".join([report.header, *lines, NOTES[task]]).splitlines())
    many = list(range(100, 0, -1))
    result = Result("DDPM-S", "small_variance", 100, many, "log joint", -123456.7, 12.3, 0.5, 0.5)
    assert all(len(line) <= 80 for line in _as_text([result, dataclasses.replace(result, sizes=[5, 3])]).splitlines())
    assert "5 3" in _as_text([result, dataclasses.replace(result, sizes=[5, 3])])
    long = Posterior.load(fitted)
    long.metadata |= {"features": [f"a long name of a column number {index}" for index in range(2)]}
    long.save(tmp_path / "long.pt")
    for path in (fitted, tmp_path / "long.pt"):
        assert all(len(line) <= 80 for line in said(capsys, "info", "--posterior", path).splitlines())


@pytest.mark.usefixtures("small_backends")
def test_other_backends_take_the_weight_scale_of_a_search(table, tmp_path, capsys):
    output = tmp_path / "p.pt"
    fit = ["fit", "--data", str(table), "--target", "kind", "--inference", "svi", "--output", str(output)]
    first = said(capsys, *fit).splitlines()[0]
    found = Posterior.load(output)
    assert first == f"chosen by 3 folds of 60 rows, by small_variance: weight scale {found.model.weight_scale:g}"
    assert found.model.weight_scale != InfiniteSVM().weight_scale
    assert "slope" not in found.samples
    assert main([*fit, "--no-search"]) == 0
    assert Posterior.load(output).model.weight_scale == InfiniteSVM().weight_scale


# -- mistakes ------------------------------------------------------------------------------------------------

BODY = [[1.0, 2.0, "cat"], [2.0, 1.0, "dog"], [1.5, 2.5, "cat"], [2.5, 1.5, "dog"]]
HEADER = ["width", "height", "kind"]
BAD_TABLES = {
    "empty": ([], "is empty"),
    "header only": ([HEADER], "no rows"),
    "no header": ([[1, 2, 3], [4, 5, 6]], "no header"),
    "repeated header": ([["width", "width", "kind"], *BODY], "'width' more than once"),
    "nameless column": ([["width", "", "kind"], *BODY], "column 2 of the header has no name"),
    "ragged": ([HEADER, *BODY, [1.0, "cat"]], "line 6 has 2 cells, but the header has 3"),
    "text feature": ([HEADER, *BODY[:2], [1.0, "tall", "cat"]], "line 4, column 'height': 'tall' is not a number"),
    "nan": ([HEADER, *BODY[:1], ["nan", 1.0, "dog"]], "line 3, column 'width': 'nan' is not finite"),
    "inf": ([HEADER, *BODY[:1], ["-inf", 1.0, "dog"]], "line 3, column 'width': '-inf' is not finite"),
    "empty cell": ([HEADER, *BODY[:1], [1.0, "", "dog"]], "line 3, column 'height' is empty"),
    "empty label": ([HEADER, *BODY[:1], [1.0, 2.0, ""]], "line 3, column 'kind' is empty"),
    **{
        f"label {cell}": ([HEADER, *BODY, [1.0, 2.0, cell]], f"line 6, column 'kind': {cell!r} is a missing label")
        for cell in ("nan", "NaN", "NA", "-nan", "inf", "-Infinity")
    },
    "nan among numbers": (
        [HEADER, [1, 2, 0.5], [2, 1, 1.5], [1, 1, "nan"]],
        "line 4, column 'kind': 'nan' is a missing label",
    ),
    **{
        f"{first} and {second}": (
            [HEADER, [1, 2, first], [2, 1, "7"], [1, 1, second]],
            f"column 'kind' has {first!r} and {second!r}, the same number, as two classes. Write each class in one way",
        )
        for first, second in (("1", "1.0"), ("01", "1"), ("0", "-0"), ("1e999", "10e998"))
    },
    "one class": ([HEADER, *BODY[::2]], "only one class, 'cat'"),
    "no features": ([["kind"], ["cat"], ["dog"]], "no column beside the target"),
    "unknown target": (
        [["width", "height", "sort"], *BODY],
        "no column 'kind'; its columns are 'width', 'height', 'sort'",
    ),
}


@pytest.mark.parametrize(("rows", "message"), BAD_TABLES.values(), ids=BAD_TABLES)
@pytest.mark.parametrize("command", ["compare", "fit"])
def test_bad_tables(tmp_path, capsys, command, rows, message):
    path = write(tmp_path / "bad.csv", rows)
    place = ["--output", tmp_path / "p.pt"] if command == "fit" else ["--out", tmp_path]
    assert message in refuse(capsys, command, "--data", path, "--target", "kind", *place)


def test_classes_are_told_apart_beyond_the_floats(tmp_path, capsys):
    names = [2**53, 2**53 + 1, "a", "1", "1e999", "1e9999", f"1e{10**20}"]  # few floats
    path = write(tmp_path / "ids.csv", [HEADER, *([n, n % 5, name] for n, name in enumerate(names * 3))])
    said(capsys, "fit", "--data", path, "--target", "kind", "--no-search", "--output", tmp_path / "p.pt")
    assert Posterior.load(tmp_path / "p.pt").metadata["classes"] == sorted(map(str, names))


def test_bad_files(tmp_path, capsys, table, monkeypatch):
    monkeypatch.setattr(sources, "_BLOCKS", (256, 2**16))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x9c")
    (tmp_path / "text.parquet").write_text("hello\n")
    (tmp_path / "quote.csv").write_text('a,b\n"' + "x" * 200_000 + '",1\n')
    for path, message in {
        "missing.csv": "there is no file",
        "": "cannot be read: Is a directory",
        "binary.csv": "not a text file in UTF-8",
        "text.parquet": "is no Parquet or Arrow file, whatever its name says",
        "quote.csv": "not a CSV file: line 2",
    }.items():
        assert message in refuse(capsys, "compare", "--data", tmp_path / path, "--target", "b")
    assert "path of the table is empty" in refuse(capsys, "compare", "--data", "", "--target", "b")
    assert "no folder" in refuse(
        capsys, "fit", "--data", table, "--target", "kind", "--output", tmp_path / "nowhere" / "p.pt"
    )
    assert "is a folder" in refuse(capsys, "fit", "--data", table, "--target", "kind", "--output", tmp_path)
    assert "cannot be made a folder" in refuse(capsys, "compare", "--data", table, "--target", "kind", "--out", table)


def test_no_command_writes_over_what_it_reads(tmp_path, capsys):
    table = write(tmp_path / "cluster.csv", [HEADER, *BODY])
    kept, fit = table.read_bytes(), ["fit", "--data", table, "--target", "kind", "--output"]
    new = tmp_path / "new"
    for arguments in (
        [*fit, table],
        [*fit, tmp_path / "." / "cluster.csv"],
        [*fit, new, "--checkpoint", new],
        ["predict", "--data", table, "--posterior", new, "--output", table],
        ["predict", "--data", table, "--posterior", new, "--output", new],
        ["cluster", "--data", table, "--truth", "kind", "--out", tmp_path],
    ):
        assert "is a file that this command reads; writing would lose it" in refuse(capsys, *arguments)
    assert table.read_bytes() == kept


def test_bad_options(tmp_path, capsys, table):
    data = ["--data", table, "--target", "kind"]
    for arguments, message in [
        ([], "required: COMMAND"),
        (["compere"], "invalid choice: 'compere'"),
        (["compare", "--folds", 1], "'1' is not an integer of at least 2"),
        (["compare", "--folds", "many"], "'many' is not an integer"),
        (["compare", "--seed", -1], "'-1' is not an integer of at least 0"),
        (["compare", "--inference", "mcmc"], "invalid choice: 'mcmc'"),
        (["compare", "--model", "SVM"], "invalid choice: 'SVM'"),
        (["compare", "--target", "kind"], "--target needs --data"),
        (["compare", "--data", table], "--data needs --target COLUMN"),
        (["compare", *data, "--folds", 31], "2 of 2 classes have fewer than the 31 rows that 31 folds need"),
        (["fit", *data], "--output"),
        (["fit", *data, "--likelihood", "poisson"], "invalid choice: 'poisson'"),
        (["fit", "--data", table, "--output", tmp_path / "p.pt"], "InfiniteSVM needs --target COLUMN"),
    ]:
        assert message in refuse(capsys, *arguments)


@pytest.mark.slow
@pytest.mark.usefixtures("small_backends", "small_searches")
def test_two_folds_need_four_rows_of_each_class(tmp_path, capsys):
    rows = animals(8)
    few = write(tmp_path / "few.csv", [HEADER, *rows[:7]])
    assert "1 of 2 classes have fewer than the 4 rows" in refuse(
        capsys, "compare", "--data", few, "--target", "kind", "--folds", 2, "--out", tmp_path
    )
    enough = write(tmp_path / "enough.csv", [HEADER, *rows])
    arguments = ["compare", "--data", enough, "--target", "kind", "--folds", 2, "--out", tmp_path]
    assert main([*map(str, arguments), "--inference", "small_variance"]) == 0


def test_bad_posteriors(tmp_path, capsys, table, fitted):
    assert "no file" in refuse(capsys, "info", "--posterior", tmp_path / "none.pt")
    cut = tmp_path / "cut.pt"
    cut.write_bytes(fitted.read_bytes()[:500])
    assert "cut short" in refuse(capsys, "predict", "--posterior", cut, "--data", table)
    assert "not a file that regbayes wrote" in refuse(capsys, "info", "--posterior", table)
    nameless = Posterior.load(fitted)
    nameless.metadata = {}
    nameless.save(tmp_path / "nameless.pt")
    assert "not written by `regbayes fit`" in refuse(capsys, "info", "--posterior", tmp_path / "nameless.pt")
    (tmp_path / "newer.pt").write_bytes(fitted.read_bytes().replace(b'"regbayes":"3 ', b'"regbayes":"9 ', 1))
    assert "Read it with that version" in refuse(capsys, "info", "--posterior", tmp_path / "newer.pt")


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"features": None}, "names of columns"),
        ({"features": [1, 2]}, "names of columns"),
        ({"target": ...}, "the name of the target"),
        ({"classes": ...}, "the names of the classes"),
        ({"classes": "cat"}, "the names of the classes"),
        ({"target_scale": 1.0}, "mean and scale of the target"),
        ({"target_scale": "1", "target_mean": 0.0}, "mean and scale of the target"),
        ({"target_scale": float("nan"), "target_mean": 0.0}, "mean and scale of the target"),
    ],
)
def test_odd_metadata_are_told_in_one_line(tmp_path, capsys, table, fitted, change, missing):
    odd, path = Posterior.load(fitted), tmp_path / "odd.pt"
    odd.metadata = {name: value for name, value in {**odd.metadata, **change}.items() if value is not ...}
    odd.save(path)
    for arguments in (["info", "--posterior", path], ["predict", "--posterior", path, "--data", table]):
        assert f"has metadata without {missing}" in refuse(capsys, *arguments)


def test_names_too_long_for_a_file_are_refused_before_the_work(tmp_path, capsys, table, fitted):
    fit = ["fit", "--data", table, "--target", "kind", "--output"]
    predict = ["predict", "--posterior", fitted, "--data", table, "--output"]
    for command in (fit, predict):
        for length in (300, 250):  # no room for the name, or for what Ctrl-C adds to it
            assert "cannot be written: File name too long" in refuse(capsys, *command, tmp_path / ("x" * length))
    assert main([str(argument) for argument in [*predict, tmp_path / ("x" * 243)]]) == 0


def test_an_output_that_nobody_reads_is_no_mistake(fitted, table, capsys, monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Closed())
        assert main(["predict", "--posterior", str(fitted), "--data", str(table)]) == 141
        assert main(["info", "--posterior", str(fitted)]) == 141
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_told_in_one_line(fitted, table, capsys, monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    for arguments in (["info"], ["predict", "--data", str(table)]):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", Full())
            assert main([*arguments, "--posterior", str(fitted)]) == 2
        assert capsys.readouterr().err == "regbayes: error: [Errno 28] No space left on device\n"


def test_tables_that_do_not_fit_the_posterior(tmp_path, capsys, fitted):
    missing = write(tmp_path / "missing.csv", [["width", "kind"], [1.0, "cat"]])
    assert "lacks columns of the fit: 'height'" in refuse(capsys, "predict", "--posterior", fitted, "--data", missing)
    extra = write(tmp_path / "extra.csv", [["width", "height", "age"], [1.0, 2.0, 3.0]])
    assert "columns that the fit did not have: 'age'" in refuse(
        capsys, "predict", "--posterior", fitted, "--data", extra
    )
    text = write(tmp_path / "text.csv", [["width", "height"], [1.0, "tall"]])
    assert "line 2, column 'height'" in refuse(capsys, "predict", "--posterior", fitted, "--data", text)


def test_what_the_library_refuses_is_one_line_too(tmp_path, capsys, table, monkeypatch):
    from regbayes.models import InfiniteSVM, PoissonGamma

    model = InfiniteSVM(likelihood=PoissonGamma())
    monkeypatch.setattr("regbayes.cli.commands.model_of", lambda *_: model)
    line = refuse(capsys, "fit", "--data", table, "--target", "kind", "--output", tmp_path / "p.pt")
    assert "negative" in line or "whole number" in line


def test_warnings_are_lines_too(tmp_path, capsys):
    rows = [[*row[:2], 1.0, row[2]] for row in animals(20)]
    path = write(tmp_path / "constant.csv", [["width", "height", "same", "kind"], *rows])
    assert main(["fit", "--data", str(path), "--target", "kind", "--output", str(tmp_path / "p.pt")]) == 0
    error = capsys.readouterr().err
    assert error.startswith("regbayes: warning: ")
    assert "constant" in error
    assert error.count("\n") == 1


def test_help_does_not_wait_for_torch():
    code = "import sys, regbayes.cli; print({'torch', 'sklearn', 'matplotlib'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
    for arguments in (["--help"], ["compare", "--help"], ["--version"]):
        with pytest.raises(SystemExit, match="0"):
            main(arguments)


# -- cluster -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chains(tmp_path_factory):
    """Two chains of Gaussians, with a column of time and one of the truth."""
    from regbayes.datasets import make_chained_gaussians

    data = make_chained_gaussians(60, num_links=2, gap=8.0)
    path = tmp_path_factory.mktemp("cluster") / "chains.csv"
    rows = [f"{x},{y},{59 - n},{label}" for n, ((x, y), label) in enumerate(zip(data.X.tolist(), data.y, strict=True))]
    path.write_text("\n".join(["x,y,time,truth", *rows]))
    return path


def test_cluster_labels_the_table_and_draws(chains, tmp_path, capsys) -> None:
    table = tmp_path / "rows.csv"
    rows = [line.split(",") for line in chains.read_text().splitlines()]
    table.write_text("\n".join(f"{x},{y},{truth}" for x, y, _, truth in rows))
    argv = ["cluster", "--data", str(table), "--truth", "truth", "--inference", "svi", "--out", str(tmp_path), "--json"]
    result = json.loads(said(capsys, *argv, "--likelihood", "spherical"))
    assert [row["model"] for row in result["results"]] == ["DPM", "DDPM-S"]
    assert all(sum(row["sizes"]) == 60 and len(row["sizes"]) == row["components"] for row in result["results"])
    assert result["results"][1]["components"] == 2
    assert result["results"][1]["nmi"] > 0.9
    lines = (tmp_path / "cluster.csv").read_text().splitlines()
    assert lines[0] == 'x,y,truth,"DPM, svi","DDPM-S, svi"'
    assert len(lines) == 61
    assert (tmp_path / "cluster.png").stat().st_size > 10_000


def test_clusters_of_one_chain_do_not_look_certain(chains, tmp_path, capsys) -> None:
    argv = ["cluster", "--data", str(chains), "--model", "DPM", "--likelihood", "spherical", "--out", str(tmp_path)]
    for backend, warned in (("gibbs", True), ("small_variance", False)):
        assert ("gibbs is one chain: see with another --seed" in said(capsys, *argv, "--inference", backend)) == warned


@pytest.mark.slow
def test_cluster_finds_states_in_the_order_of_time(chains, tmp_path, capsys) -> None:
    argv = ["cluster", "--data", str(chains), "--truth", "truth", "--out", str(tmp_path), "--inference", "svi"]
    assert "60 steps, 2 features, 1 sequences" in said(capsys, *argv, "--time", "time", "--model", "IHMM")
    backwards = (tmp_path / "cluster.csv").read_text().splitlines()
    cells = [line.split(",") for line in backwards[1:]]
    assert [row[2] for row in cells] == [str(59 - n) for n in range(60)]  # rows stay where they were
    agree = sum((row[3] == "1") == (row[-1] == "1") for row in cells)
    assert max(agree, 60 - agree) > 57


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "IHMM"], "IHMM finds states over time: give --time COLUMN or --lengths"),
        (["--lengths", "30,20"], "--lengths add up to 50, but"),
        (["--lengths", "30,x"], "is not a list of whole numbers"),
        (["--lengths", "30,30", "--time", "time"], "exclude each other"),
        (["--truth", "nothing"], "has no column 'nothing'"),
        (["--likelihood", "multinomial"], "accepts counts"),
    ],
)
def test_cluster_tells_mistakes_in_one_line(chains, options, message, tmp_path, capsys) -> None:
    assert main(["cluster", "--data", str(chains), "--out", str(tmp_path), *options]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
