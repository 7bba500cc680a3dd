"""The command line, run in this process: results, files, and one clear line for every mistake."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from regbayes.cli import main
from regbayes.cli.tables import read_table
from regbayes.inference import Posterior

CENTERS = {"cat": (0.0, 0.0), "dog": (6.0, 0.0)}


def write(path: Path, rows: list[list[object]], delimiter: str = ",") -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def animals(num_rows: int, seed: int = 0) -> list[list[object]]:
    noise = np.random.default_rng(seed).normal(size=(num_rows, 2))
    kinds = [list(CENTERS)[index % 2] for index in range(num_rows)]
    return [
        [*(np.array(CENTERS[kind]) + step).round(4).tolist(), kind] for kind, step in zip(kinds, noise, strict=True)
    ]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "animals.csv", [["width", "height", "kind"], *animals(60)])


@pytest.fixture
def fitted(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    output = tmp_path / "animals.pt"
    assert main(["fit", "--data", str(table), "--target", "kind", "--output", str(output)]) == 0
    capsys.readouterr()
    return output


def refuse(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a mistake ends in."""
    assert main([str(argument) for argument in arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("regbayes: error: ")
    assert output.err.count("\n") == 1
    return output.err


@pytest.fixture
def small_gibbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two dozen sweeps in place of the command's own number."""
    from regbayes.cli import commands, compare, setups

    def backend_of(name, seed, progress=None):
        backend = setups.backend_of(name, seed, progress)
        return backend.replace(num_samples=12, num_warmup=12, split_merge=0) if name == "gibbs" else backend

    monkeypatch.setattr(compare, "backend_of", backend_of)
    monkeypatch.setattr(commands, "backend_of", backend_of)


# -- fit, predict, info --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("small_gibbs")
@pytest.mark.parametrize("backend", ["small_variance", "svi", "gibbs"])
def test_fit_predict_and_info_go_together(table, tmp_path, capsys, backend):
    posterior, labelled = tmp_path / "posterior.pt", tmp_path / "labelled.csv"
    fit = ["fit", "--data", table, "--target", "kind", "--inference", backend, "--seed", 3, "--output", posterior]
    assert main([str(argument) for argument in fit]) == 0
    assert str(posterior) in capsys.readouterr().out

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

    assert main(["info", "--posterior", str(posterior), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    loaded = Posterior.load(posterior)
    assert facts["rows"] == 60
    assert facts["features"] == ["width", "height"]
    assert facts["classes"] == ["cat", "dog"]
    assert "seed=3" in facts["backend"]
    assert len(facts["components"]) == loaded.num_components
    assert sum(component["rows"] for component in facts["components"]) == 60
    assert set(facts["components"][0]["strongest_features"]) == {"width", "height"}


def test_predictions_are_those_of_the_posterior(fitted, table, capsys):
    assert main(["predict", "--posterior", str(fitted), "--data", str(table)]) == 0  # the target may stay in the table
    result = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    X = read_table(str(table)).numbers(["width", "height"])
    posterior = Posterior.load(fitted)
    assert [row["prediction"] for row in result] == [["cat", "dog"][index] for index in posterior.predict(X)]
    shown = [float(row["probability_dog"]) for row in result]
    np.testing.assert_allclose(shown, posterior.predict_proba(X)[:, 1], rtol=1e-5)
    assert [int(row["component"]) for row in result] == posterior.assign(X).tolist()


def test_info_is_readable(fitted, capsys):
    assert main(["info", "--posterior", str(fitted)]) == 0
    text = capsys.readouterr().out
    assert "InfiniteSVM" in text
    assert "SmallVariance" in text
    assert "'width', 'height'" in text


def test_clustering_needs_no_target(table, tmp_path, capsys):
    output = tmp_path / "clusters.pt"
    assert main(["fit", "--model", "DPM", "--data", str(table), "--target", "kind", "--output", str(output)]) == 0
    capsys.readouterr()
    assert main(["predict", "--posterior", str(output), "--data", str(table)]) == 0
    lines = capsys.readouterr().out.splitlines()
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
        assert read.column("b") == ["x", "y"]


# -- compare -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("small_gibbs")
def test_compare_writes_json_and_a_picture(table, tmp_path, capsys):
    arguments = ["compare", "--data", table, "--target", "kind", "--folds", 3, "--out", tmp_path / "out", "--json"]
    assert main([str(argument) for argument in arguments]) == 0
    result = json.loads(capsys.readouterr().out)
    methods = {method["name"]: method for method in result["methods"]}
    ours = {f"InfiniteSVM, {name}" for name in ("small_variance", "svi", "gibbs")}
    assert ours <= set(methods)
    assert {"LinearSVC", "RBF-SVC", "DP-means + LinearSVC"} <= set(methods)
    for name, method in methods.items():
        assert len(method["folds"]) == 3
        assert method["mean"]["accuracy"] >= 0.9
        assert method["mean"]["fit_seconds"] > 0
        assert (method["value_name"] is not None) == (name in ours)
        assert (method["mean"]["value"] is not None) == (name in ours)
    assert {methods[name]["value_name"] for name in ours} == {"objective", "ELBO", "log joint"}
    image = __import__("matplotlib.image").image.imread(result["picture"])
    assert min(image.shape[:2]) > 500
    assert len(np.unique(image.reshape(-1, image.shape[2]), axis=0)) > 100


@pytest.mark.slow
def test_compare_prints_one_table(table, tmp_path, capsys):
    arguments = ["compare", "--data", table, "--target", "kind", "--folds", 2, "--out", tmp_path]
    assert main([*map(str, arguments), "--inference", "small_variance", "--inference", "small_variance"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    lines = output.out.splitlines()
    header = next(line for line in lines if "accuracy" in line)
    names = ["accuracy", "macro-F1", "components", "fit s", "tuning s", "predict s", "final value"]
    assert [header.index(name) for name in names] == sorted(header.index(name) for name in names)
    assert sum(line.startswith("InfiniteSVM, ") for line in lines) == 1
    assert (tmp_path / "compare.png").stat().st_size > 10_000


@pytest.mark.slow
def test_compare_is_repeatable(tmp_path, capsys):
    table = write(tmp_path / "few.csv", [HEADER, *animals(16)])
    arguments = ["compare", "--data", table, "--target", "kind", "--folds", 2, "--seed", 5, "--json", "--out", tmp_path]
    quality = []
    for _ in range(2):
        assert main([*map(str, arguments), "--inference", "svi"]) == 0
        methods = json.loads(capsys.readouterr().out)["methods"]
        quality.append([(fold["accuracy"], fold["value"]) for method in methods for fold in method["folds"]])
    assert quality[0] == quality[1]


def test_ctrl_c_ends_the_whole_command(table, tmp_path, capsys, monkeypatch):
    from regbayes.cli import compare
    from regbayes.inference import FitInterrupted

    def interrupted(*_):
        import warnings

        warnings.warn("Interrupted in step 3", FitInterrupted, stacklevel=1)

    monkeypatch.setattr(compare, "_tuned_scale", interrupted)
    arguments = ["compare", "--data", str(table), "--target", "kind", "--out", str(tmp_path)]
    assert main(arguments) == 130
    assert capsys.readouterr().err == "regbayes: interrupted\n"


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


def test_bad_files(tmp_path, capsys, table):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x9c")
    (tmp_path / "quote.csv").write_text('a,b\n"' + "x" * 200_000 + '",1\n')
    for path, message in {
        "missing.csv": "there is no file",
        "": "cannot be read: Is a directory",
        "binary.csv": "not a text file in UTF-8",
        "quote.csv": "not a CSV file: line 2",
    }.items():
        assert message in refuse(capsys, "compare", "--data", tmp_path / path, "--target", "b")
    assert "no folder" in refuse(
        capsys, "fit", "--data", table, "--target", "kind", "--output", tmp_path / "nowhere" / "p.pt"
    )
    assert "is a folder" in refuse(capsys, "fit", "--data", table, "--target", "kind", "--output", tmp_path)
    assert "cannot be made a folder" in refuse(capsys, "compare", "--data", table, "--target", "kind", "--out", table)


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
    newer = torch.load(fitted, weights_only=True) | {"schema": 99}
    torch.save(newer, tmp_path / "newer.pt")
    assert "Upgrade regbayes" in refuse(capsys, "info", "--posterior", tmp_path / "newer.pt")


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
    argv = [
        "cluster",
        "--data",
        str(table),
        "--truth",
        "truth",
        "--inference",
        "svi",
        "--out",
        str(tmp_path),
        "--json",
    ]
    assert main([*argv, "--likelihood", "spherical"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in result["results"]] == ["DPM", "DDPM-S"]
    assert all(sum(row["sizes"]) == 60 and len(row["sizes"]) == row["components"] for row in result["results"])
    assert result["results"][1]["components"] == 2
    assert result["results"][1]["nmi"] > 0.9
    lines = (tmp_path / "cluster.csv").read_text().splitlines()
    assert lines[0] == 'x,y,truth,"DPM, svi","DDPM-S, svi"'
    assert len(lines) == 61
    assert (tmp_path / "cluster.png").stat().st_size > 10_000


@pytest.mark.slow
def test_cluster_finds_states_in_the_order_of_time(chains, tmp_path, capsys) -> None:
    argv = ["cluster", "--data", str(chains), "--truth", "truth", "--out", str(tmp_path), "--inference", "svi"]
    assert main([*argv, "--time", "time", "--model", "IHMM"]) == 0
    assert "60 steps, 2 features, 1 sequences" in capsys.readouterr().out
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
