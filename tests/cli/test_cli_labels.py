"""`regbayes compare --targets`: label sets, their folds and measures, and one clear line for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import refuse, said, write
from sklearn.metrics import f1_score, label_ranking_average_precision_score
from sklearn.neighbors import KNeighborsClassifier

from regbayes.cli import main
from regbayes.cli.compare_labels import LabelFolds, best_threshold, label_quality, label_rivals, label_scores
from regbayes.cli.problems import label_problem
from regbayes.cli.tables import read_table

pytestmark = pytest.mark.usefixtures("few_restarts")

HEADER = ["width", "wet", "height", "tall", "red, or blue"]
TARGETS = 'wet,tall,"red, or blue"'


def rows_of(num_rows: int = 45, seed: int = 0) -> list[list[float]]:
    """Three labels, each the sign of something linear in two features."""
    X = np.random.default_rng(seed).normal(size=(num_rows, 2)).round(4)
    return [[x, int(x > 0), y, int(y > -0.5), int(x + y > 0)] for x, y in X.tolist()]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "labels.csv", [HEADER, *rows_of()])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few sweeps and steps, and one choice of each argument, in place of the command's own numbers."""
    from regbayes.cli import compare, compare_labels, rivals, setups

    sizes = {
        "gibbs": {"num_samples": 6, "num_warmup": 6, "split_merge": 0},
        "svi": {"num_steps": 12},
        "small_variance": {"max_steps": 4},
    }
    backend_of = setups.backend_of
    monkeypatch.setattr(
        compare, "backend_of", lambda name, seed, progress: backend_of(name, seed, progress).replace(**sizes[name])
    )
    monkeypatch.setattr(compare, "_SCALES", [1.0])
    monkeypatch.setattr(rivals, "_STRENGTHS", [1.0])
    monkeypatch.setattr(compare_labels, "_NEIGHBORS", [5, 10_000])  # of which the second one cannot be


RIVALS = ["LinearSVC, one-vs-rest", "LogisticRegression, one-vs-rest", "LogisticRegression, chain"]
RIVALS += ["KNeighborsClassifier"]


@pytest.mark.usefixtures("small")
def test_label_sets_are_compared(table, tmp_path, capsys):
    arguments = ["compare", "--data", table, "--targets", TARGETS, "--folds", 2, "--out", tmp_path / "out", "--json"]
    assert main(list(map(str, arguments))) == 0
    output = capsys.readouterr()
    assert output.err == ""
    result = json.loads(output.out)
    assert result["task"] == "labels"
    assert result["labels"] == ["wet", "tall", "red, or blue"]
    assert result["features"] == 2
    methods = {method["name"]: method for method in result["methods"]}
    ours = [f"BNMC {joint}, {name}" for joint in ("product", "and") for name in ("svi", "small_variance")]
    assert list(methods) == [*RIVALS, *ours]
    for name, method in methods.items():
        assert len(method["folds"]) == 2
        mean = method["mean"]
        assert mean["fit_seconds"] > 0
        assert mean["tuning_seconds"] > 0
        assert (mean["value"] is not None) == (name in ours)
    for name in [*RIVALS, *(name for name in ours if "svi" in name)]:
        mean = methods[name]["mean"]
        assert min(mean["micro_f1"], mean["macro_f1"], mean["precision_at_1"]) > 0.8
        assert mean["hamming_loss"] < 0.25
    for name in ("svi", "small_variance"):
        joints = [methods[f"BNMC {joint}, {name}"]["mean"]["value"] for joint in ("product", "and")]
        assert joints[0] != pytest.approx(joints[1], rel=1e-4)
    assert Path(result["picture"]).stat().st_size > 10_000


@pytest.mark.usefixtures("small")
def test_each_line_is_shown_as_soon_as_it_is_there(table, tmp_path, capsys, monkeypatch):
    from regbayes.cli import compare

    score, shown = compare._score, []

    def scored(*arguments):
        shown.append(capsys.readouterr().out)
        if len(shown) == 6:  # the third method's second fold
            raise KeyboardInterrupt
        return score(*arguments)

    monkeypatch.setattr(compare, "_score", scored)
    arguments = ["compare", "--data", str(table), "--targets", TARGETS, "--folds", "2", "--out", str(tmp_path)]
    assert main([*arguments, "--inference", "gibbs"]) == 130
    assert "45 rows, 2 features, 3 labels; 2 stratified folds" in shown[0]
    header = shown[0].splitlines()[-1]
    names = ["micro-F1", "macro-F1", "Hamming", "P@1", "fit s", "tuning s"]
    assert [header.index(name) for name in names] == sorted(header.index(name) for name in names)
    firsts = [[line.split("   ")[0] for line in text.splitlines()] for text in shown[1:]]
    assert firsts == [[], ["LinearSVC", "  one-vs-rest"], [], ["LogisticRegression", "  one-vs-rest"], []]
    assert len(shown[2].splitlines()[1]) == len(header) <= 80
    kept = json.loads((tmp_path / "compare.json.interrupted").read_text())
    assert [method["name"] for method in kept["methods"]] == RIVALS[:2]


@pytest.mark.nightly
@pytest.mark.usefixtures("small")
def test_gibbs_joins_when_it_is_asked_for(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("regbayes.cli.compare.rivals", lambda *_: {})
    arguments = ["compare", "--data", str(table), "--targets", TARGETS, "--folds", "2", "--out", str(tmp_path)]
    lines = said(capsys, *arguments, "--model", "BNMC", "--inference", "gibbs").splitlines()
    first = lines.index("BNMC product")
    assert lines[first + 2] == "BNMC and"
    assert all(lines[first + row].startswith("  gibbs  ") for row in (1, 3))


# -- parts -----------------------------------------------------------------------------------------------------


def test_measures_by_hand():
    truth = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1]])
    predicted = np.array([[1, 0, 0], [0, 1, 1], [0, 1, 0], [0, 1, 0]])
    scores = np.array([[0.9, 0.1, 0.2], [0.1, 0.3, 0.8], [0.4, 0.6, 0.1], [0.2, 0.9, 0.3]])
    found = label_quality(truth, predicted, scores)
    # 3 true positives, 2 false ones, 2 missed; by label F1 of 2/3, 4/5 and 0; the third row has no label to find
    assert found["micro_f1"] == pytest.approx(6 / (6 + 2 + 2))
    assert found["macro_f1"] == pytest.approx((2 / 3 + 4 / 5 + 0) / 3)
    assert found["hamming_loss"] == pytest.approx(4 / 12)
    assert found["precision_at_1"] == pytest.approx(2 / 4)
    assert found["precision_at_3"] == found["precision_at_5"] == pytest.approx(5 / 12)
    more = label_quality(np.hstack([truth, 1 - truth]), np.hstack([predicted] * 2), np.hstack([scores, scores - 1]))
    assert more["precision_at_3"] == pytest.approx(5 / 12)  # the first three labels are those of before
    assert more["precision_at_5"] == pytest.approx((5 + 4) / 20)


def test_the_threshold_has_the_highest_micro_f1():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(12, 4)).round(1)
    truth = (rng.random((12, 4)) < 1 / (1 + np.exp(-2 * scores))).astype(float)
    truth[::5, 1] = np.nan
    known = ~np.isnan(truth)

    def f1(threshold: float) -> float:
        return float(f1_score(truth[known], scores[known] > threshold))

    threshold, value = best_threshold(truth, scores)
    assert f1(threshold) == pytest.approx(value)
    assert value == max(f1(level - 0.01) for level in np.unique(scores))
    assert (scores[known] > best_threshold(np.ones((12, 4)), scores)[0]).all()


def test_scores_rank_the_labels_of_every_rival():
    table = np.array(rows_of(60))
    X, Y = table[:, [0, 2]], table[:, [1, 3, 4]].astype(int)
    some = Y.any(1)
    for method in label_rivals(0, LabelFolds(2), [1.0]).values():
        scores = label_scores(method.fit(X, Y), X)
        assert scores.shape == Y.shape
        assert label_ranking_average_precision_score(Y[some], scores[some]) > 0.95
    neighbors = KNeighborsClassifier(1).fit(X, Y)
    np.testing.assert_array_equal(label_scores(neighbors, X), Y)


def test_folds_share_out_every_label():
    rng = np.random.default_rng(0)
    Y = (rng.random((120, 5)) < [0.05, 0.2, 0.5, 0.8, 0.97]).astype(int)
    X = np.zeros((120, 1))
    tests = [test for _, test in LabelFolds(4, seed=1).split(X, Y)]
    assert sorted(np.concatenate(tests)) == list(range(120))
    counts = np.array([Y[test].sum(0) for test in tests])
    assert (np.abs(counts - Y.sum(0) / 4) <= 2).all()
    assert (np.abs(np.array(list(map(len, tests))) - 30) <= 1).all()
    again = [test for _, test in LabelFolds(4, seed=1).split(X, Y)]
    other = [test for _, test in LabelFolds(4, seed=2).split(X, Y)]
    assert all(map(np.array_equal, tests, again))
    assert not all(map(np.array_equal, tests, other))
    flipped = [test for _, test in LabelFolds(4, seed=1).split(X, 1 - Y)]  # 0 and 1 are alike: the rarer one counts
    assert all(map(np.array_equal, tests, flipped))


def test_targets_may_be_in_any_order_and_quoted(table):
    problem = label_problem(read_table(str(table)), '"red, or blue", wet', 2)
    assert problem.labels == ("red, or blue", "wet")
    assert problem.features == ["width", "height", "tall"]
    truth = np.array(rows_of())
    np.testing.assert_array_equal(problem.y, truth[:, [4, 1]])
    np.testing.assert_array_equal(problem.X, truth[:, [0, 2, 3]])


# -- mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--targets", "wet,dry"], "has no column 'dry'; its columns are 'width', 'wet', 'height'"),
        (["--targets", "wet"], "Expected two labels or more, each once, as in A,B,C; one label is for --target"),
        (["--targets", ""], "Expected two labels or more"),
        (["--targets", "wet\ntall"], "Expected two labels or more"),
        (["--targets", "wet,tall,wet"], "has 2 different columns of 3"),
        (["--targets", "wet,tall", "--target", "wet"], "--target and --targets exclude each other"),
        (["--targets", "wet,tall", "--model", "InfiniteSVM"], "InfiniteSVM takes one --target"),
        (["--targets", "wet,tall", "--task", "regression"], "--targets are labels, 0 or 1"),
        (["--target", "wet", "--model", "BNMC"], "BNMC needs --targets A,B,C"),
        (["--targets", "wet,width"], "column 'width': '0.1257' is no label. Expected 0 or 1 in every row"),
        (["--targets", "wet,tall", "--folds", "23"], "has 45 rows, but 23 folds need 46"),
        ([], "--data needs --target COLUMN, or --targets A,B,C"),
    ],
)
def test_bad_options(table, tmp_path, capsys, options, message):
    assert message in refuse(capsys, "compare", "--data", table, "--out", tmp_path, *options)


def test_targets_need_a_table(capsys):
    assert "--targets needs --data FILE.csv" in refuse(capsys, "compare", "--targets", "wet,tall")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("", "'' is a missing label. Expected 0 or 1 in every row; fix the cell, or drop the row"),
        ("NA", "'NA' is a missing label"),
        ("yes", "'yes' is no label"),
        ("2", "'2' is no label"),
        ("0.5", "'0.5' is no label"),
    ],
)
def test_labels_are_0_or_1(tmp_path, capsys, cell, message):
    rows = rows_of()
    rows[3][3] = cell
    path = write(tmp_path / "bad.csv", [HEADER, *rows])
    line = refuse(capsys, "compare", "--data", path, "--targets", "wet,tall", "--out", tmp_path)
    assert f"line 5, column 'tall': {message}" in line


@pytest.mark.parametrize(("ones", "enough"), [(0, False), (2, False), (3, True), (42, True), (44, False), (45, False)])
def test_each_label_needs_rows_of_both_kinds_in_all_folds(tmp_path, capsys, monkeypatch, ones, enough):
    rows = rows_of()
    for index, row in enumerate(rows):
        row[3] = int(index < ones)
    path = write(tmp_path / "rare.csv", [HEADER, *rows])
    monkeypatch.setattr("regbayes.cli.compare._cross_validated", stop_there)
    arguments = ["compare", "--data", path, "--targets", "wet,tall", "--out", tmp_path]
    if enough:
        with pytest.raises(_ThereError):
            main([str(argument) for argument in arguments])
        return
    line = refuse(capsys, *arguments)
    assert f"column 'tall' is 1 in {ones} and 0 in {45 - ones} of the rows: too few of one kind" in line


def test_labels_alone_are_no_table(tmp_path, capsys):
    path = write(tmp_path / "bare.csv", [["wet", "tall"], *[[row[1], row[3]] for row in rows_of()]])
    line = refuse(capsys, "compare", "--data", path, "--targets", "wet,tall", "--out", tmp_path)
    assert "has no column beside the targets 'wet', 'tall'" in line


class _ThereError(Exception):
    """The checks are over."""


def stop_there(*_: object) -> None:
    raise _ThereError
