"""Generators against their own claims, loaders against the published counts of the data."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import sklearn.datasets
import torch
from sklearn.utils import Bunch

from regbayes.datasets import Synthetic, available, load, make_bars, make_dp_mixture, make_setting_one, make_setting_two
from regbayes.datasets.synthetic import _urn

GENERATORS = [make_setting_one, make_setting_two, make_dp_mixture]

# name: rows, columns, test rows (0: no split), counts of the training classes or of each label (None: not a class)
TABLE = {
    "bee_dance": (2180, 4, 0, [618, 660, 902]),
    "ble_rssi": (1420, 13, 0, None),
    "breast_cancer": (569, 30, 0, [212, 357]),
    "corel5k": (4500, 499, 500, None),
    "diabetes": (442, 10, 0, None),
    "digits": (1797, 64, 0, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]),
    "emotions": (391, 72, 202, None),
    "faithful": (272, 2, 0, None),
    "galaxy": (82, 1, 0, None),
    "iris": (150, 4, 0, [50] * 3),
    "letter": (16_000, 16, 4000, None),
    "medical": (333, 1449, 645, None),
    "mnist": (5000, 784, 0, [451, 591, 501, 511, 480, 458, 499, 519, 466, 524]),
    "newsgroups20": (
        *(11_269, 61_188, 7505),
        [480, 581, 572, 587, 575, 592, 582, 592, 596, 594, 598, 594, 591, 594, 593, 599, 545, 564, 464, 376],
    ),
    "parkinsons": (195, 22, 0, [48, 147]),
    "protein_fold": (
        *(311, 21, 383),
        [13, 7, 12, 7, 9, 6, 30, 9, 16, 7, 8, 13, 8, 9, 9, 29, 11, 11, 13, 10, 9, 10, 11, 11, 7, 13, 13],
    ),
    "scene": (1211, 294, 1196, None),
    "scene15": (4485, 119, 0, [241, 360, 328, 260, 308, 374, 410, 292, 356, 215, 216, 311, 210, 289, 315]),
    "school": (15_362, 27, 0, None),
    "skin": (245_057, 3, 0, [194_198, 50_859]),
    "ujiindoorloc": (19_937, 520, 1111, None),
    "wine": (178, 13, 0, [59, 71, 48]),
    "wireless": (2000, 7, 0, [500] * 4),
    "yeast": (1500, 103, 917, None),
}
GROUPS = {"parkinsons": 32, "school": 139, "bee_dance": 3, "ble_rssi": 11, "ujiindoorloc": 18}
# labels, mean number of labels of a row, distinct label sets (Mulan's table; train and test together)
MULTI_LABEL = {
    "corel5k": (374, 3.522, 3175),
    "emotions": (6, 1.868, 27),
    "medical": (45, 1.245, 94),
    "scene": (6, 1.074, 15),
    "yeast": (14, 4.237, 198),
}


def real(name: str, *more: object) -> Any:
    """A case on that set, which is skipped where the set needs a file that is absent."""
    needs_nothing = hasattr(sklearn.datasets, f"load_{name}") or name in ("faithful", "galaxy")
    return pytest.param(name, *more, marks=() if needs_nothing else pytest.mark.real_data(name))


# ---- generators ----


@pytest.mark.parametrize("make", GENERATORS)
def test_seed_fixes_the_draw(make) -> None:
    first, again, other = make(seed=3), make(seed=3), make(seed=4)
    for name in ("X", "y", "assignments", "probabilities", "locs", "weights"):
        assert torch.equal(getattr(first, name), getattr(again, name)), name
    assert not torch.equal(first.X, other.X)
    assert first.X.dtype == torch.float64


@pytest.mark.parametrize("make", GENERATORS)
@pytest.mark.parametrize("seed", range(3))
def test_labels_follow_the_probabilities_and_bayes_accuracy_is_their_expectation(make, seed: int) -> None:
    data: Synthetic = make(seed=seed)
    p = data.probabilities
    variance = p * (1 - p)
    # overall, and within each fifth of the rows by probability
    for rows in [torch.arange(len(p)), *p.argsort().chunk(5)]:
        excess = (data.y[rows] - p[rows]).sum().abs()
        assert excess < 5 * variance[rows].sum().sqrt()
    accuracy = data.bayes_accuracy()
    assert abs(data.bayes_accuracy(data.y) - accuracy) < 5 * variance.sum().sqrt() / len(p)
    assert 0.6 < accuracy < 0.85
    assert set(data.bayes_predictions.tolist()) == {0, 1}


def test_probabilities_of_setting_one_are_bayes_rule() -> None:
    data = make_setting_one(num_data=200, seed=1)
    shares = data.assignments.bincount() / 200
    for n in range(0, 200, 20):
        density = torch.distributions.Normal(data.locs, 0.5).log_prob(data.X[n]).sum(-1)
        joint = shares * density.exp()
        label = torch.sigmoid((data.weights * (data.X[n] - data.locs)).sum(-1))
        torch.testing.assert_close(data.probabilities[n], (joint * label).sum() / joint.sum())


def test_setting_two_has_ten_disjoint_cubes_of_equal_size() -> None:
    data = make_setting_two(seed=0)
    assert data.X.shape == (10_000, 10)
    assert data.assignments.bincount().tolist() == [1000] * 10
    assert ((data.X + 0.5).floor().long() - 1 == data.assignments[:, None]).all()
    own = ((data.X - data.locs[data.assignments]) * data.weights[data.assignments]).sum(-1).sigmoid()
    torch.testing.assert_close(data.probabilities, own)


def test_cluster_sizes_are_those_of_the_urn() -> None:
    draws = [make_dp_mixture(num_data=30, num_features=1, seed=seed).assignments for seed in range(1000)]
    for assignments in draws:  # labelled in the order of first appearance
        seen = assignments.cummax(0).values
        assert assignments[0] == 0
        assert (seen.diff() <= 1).all()
    num_components = torch.tensor([a.max() + 1.0 for a in draws])
    new = 1.5 / (1.5 + torch.arange(30))
    assert abs(num_components.mean() - new.sum()) < 5 * ((new * (1 - new)).sum() / 1000).sqrt()
    together = torch.tensor([(a[0] == a[29]).double() for a in draws])  # exchangeable: 1 / (1 + alpha) for every pair
    assert abs(together.mean() - 0.4) < 5 * (0.4 * 0.6 / 1000) ** 0.5


def test_capped_urn_is_the_urn_that_opens_no_more() -> None:
    draws, alpha, cap = 5000, 3.0, 2
    generator = torch.Generator().manual_seed(0)
    counts = Counter(tuple(_urn(4, alpha, generator, max_components=cap).tolist()) for _ in range(draws))
    expected = {(0,): 1.0}
    for n in range(1, 4):
        grown = {}
        for z, p in expected.items():
            opened = len(set(z))
            total = n + alpha * (opened < cap)
            grown |= {(*z, k): p * z.count(k) / total for k in range(opened)}
            if opened < cap:
                grown[(*z, opened)] = p * alpha / total
        expected = grown
    assert set(counts) == set(expected)
    for z, p in expected.items():
        assert abs(counts[z] / draws - p) < 5 * (p * (1 - p) / draws) ** 0.5, z


def test_setting_one_has_at_most_ten_clusters() -> None:
    draws = [make_setting_one(num_data=3000, seed=seed).num_components for seed in range(20)]
    assert max(draws) == 10 > min(draws)


def test_clusters_of_the_dp_mixture_can_be_recovered_and_grow() -> None:
    data = make_dp_mixture(seed=1)
    assert torch.equal(torch.cdist(data.X, data.locs).argmin(-1), data.assignments)
    counts = [int(data.assignments[:n].max()) + 1 for n in (100, 1000, 10_000)]
    assert counts[0] < counts[1] < counts[2] == data.num_components


# ---- real data ----


def test_table_is_complete() -> None:
    assert tuple(sorted(TABLE)) == available()


@pytest.mark.parametrize("name", [real(name) for name in sorted(TABLE)])
def test_real_data_are_as_published(name: str) -> None:
    rows, columns, test_rows, counts = TABLE[name]
    data = load(name)
    assert data.X.shape == (rows, columns)
    assert data.X.dtype == np.float64
    assert scipy.sparse.issparse(data.X) == (name in {"corel5k", "medical", "newsgroups20", "ujiindoorloc"})
    assert np.isfinite(data.X.data if scipy.sparse.issparse(data.X) else data.X).all()
    assert (data.X_test is None) == (data.y_test is None) == (test_rows == 0)
    if data.X_test is not None:
        assert data.X_test.shape == (test_rows, columns)
        assert data.X_test.dtype == np.float64
        assert len(data.y_test) == test_rows
        assert data.y_test.shape[1:] == data.y.shape[1:]
    if counts is not None:
        assert np.bincount(data.y).tolist() == counts
    assert (data.y is None) == (name in {"faithful", "galaxy"})
    assert len(data.feature_names) in (0, columns)
    if data.y is not None:
        assert len(data.y) == rows
        assert data.y.dtype == (np.float64 if name in {"school", "diabetes"} else np.int64)
        labels = data.y.shape[1] if data.y.ndim == 2 else len(np.unique(data.y))
        assert len(data.target_names) in (0, labels)
    assert data.groups is None or len(data.groups) == rows
    assert name not in GROUPS or len(np.unique(data.groups)) == GROUPS[name]
    assert all((data.description, data.source, data.licence))


@pytest.mark.parametrize("name", [real(name) for name in sorted(MULTI_LABEL)])
def test_multi_label_sets_have_mulans_statistics(name: str) -> None:
    labels, cardinality, distinct = MULTI_LABEL[name]
    data = load(name)
    Y = np.concatenate([data.y, data.y_test])
    assert Y.shape[1] == labels == len(data.target_names)
    assert set(np.unique(Y)) == {0, 1}
    assert round(Y.sum(1).mean(), 3) == cardinality
    assert len(np.unique(Y, axis=0)) == distinct


@pytest.mark.real_data("protein_fold")
def test_views_of_protein_fold() -> None:
    name = "protein_fold"
    every, default = load(name, features="all"), load(name)
    assert every.X.shape == (311, 125)
    np.testing.assert_array_equal(default.X[:, :20], every.X[:, :20])
    np.testing.assert_array_equal(default.X_test[:, 20], every.extra["seq_length_test"])
    assert default.feature_names[20] == "length"
    assert load(name, features="volume").X.shape == (311, 21)
    with pytest.raises(ValueError, match="protein_fold has: all, composition"):
        load(name, features="length")


@pytest.mark.real_data("ujiindoorloc")
def test_states_of_ujiindoorloc_are_building_and_floor() -> None:
    data = load("ujiindoorloc")
    assert np.unique(data.y).tolist() == list(range(13))
    n = 12_345
    expected = f"building {data.extra['building_train'][n]} floor {data.extra['floor_train'][n]}"
    assert data.target_names[data.y[n]] == expected
    assert data.X.nnz == 358_763  # a stored 0 dBm stays stored


@pytest.mark.real_data("letter")
def test_letters_have_the_published_counts() -> None:
    data = load("letter")
    counts = np.bincount(np.concatenate([data.y, data.y_test]))
    assert len(counts) == 26
    assert (counts[0], counts[25]) == (789, 734)


@pytest.mark.real_data("newsgroups20")
def test_words_of_newsgroups() -> None:
    data = load("newsgroups20")
    assert (data.X.sum(), data.X_test.sum()) == (2_765_300, 1_796_919)
    assert len(data.feature_names) == 61_188


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'mnits'; known names: bee_dance, .*, yeast"):
        load("mnits")
    with pytest.raises(ValueError, match="iris has one set of features"):
        load("iris", features="all")


# ---- where the files are absent ----


def _openml(monkeypatch: pytest.MonkeyPatch, X: np.ndarray, y: np.ndarray, targets: list[str]) -> list[dict]:
    calls = []

    def fetch(**query):
        calls.append(query)
        names = [f"V{d}" for d in range(X.shape[1])]
        return Bunch(data=X, target=y, feature_names=names, target_names=targets)

    monkeypatch.delenv("REGBAYES_DATA", raising=False)
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    return calls


FALSE_BUT_ONE = np.where(np.arange(6) == 2, "TRUE", "FALSE").astype(object)


@pytest.mark.parametrize(
    ("name", "query", "X", "y", "expected"),
    [
        ("parkinsons", 1488, np.arange(195 * 22.0).reshape(195, 22), ["1"] * 48 + ["2"] * 147, [0] * 48 + [1] * 147),
        ("emotions", 40589, np.zeros((593, 72)), np.tile(FALSE_BUT_ONE, (593, 1)), np.eye(6)[[2] * 593]),
    ],
)
def test_openml_replaces_an_absent_file(name, query, X, y, expected, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _openml(monkeypatch, X, np.array(y, dtype=object), list("abcdef"))
    data = load(name)
    assert calls[0]["data_id"] == query
    np.testing.assert_array_equal(data.y, expected)
    np.testing.assert_array_equal(data.X, X)
    assert data.groups is data.X_test is None
    assert data.feature_names[0] == "V0"
    assert data.target_names == (tuple("abcdef") if name == "emotions" else ())


def test_openml_mnist_is_cut_to_the_same_images(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.broadcast_to(np.arange(70_000.0)[:, None], (70_000, 784))
    y = (np.arange(70_000) % 10).astype(str).astype(object)
    _openml(monkeypatch, X, y, ["class"])
    data = load("mnist")
    np.testing.assert_array_equal(data.X[:, 0], 60_000 + 2 * np.arange(5000))
    np.testing.assert_array_equal(data.y[:6], [0, 2, 4, 6, 8, 0])


def test_openml_data_of_another_shape_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _openml(monkeypatch, np.zeros((10, 3)), np.array(["1"] * 10, dtype=object), ["Class"])
    with pytest.raises(ValueError, match=r"shape \(10, 3\) for skin; expected \(245057, 3\)"):
        load("skin")


def test_absent_data_say_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGBAYES_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"'medical' was not found at .*medical\.npz, .* Set .* REGBAYES_DATA"):
        load("medical")

    def unreachable(**query):
        raise OSError("no network")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", unreachable)
    with pytest.raises(FileNotFoundError, match=r"'yeast'.*no network.*Set .* REGBAYES_DATA.*mulan"):
        load("yeast")
    monkeypatch.delenv("REGBAYES_DATA")
    with pytest.raises(FileNotFoundError, match="REGBAYES_DATA is not set"):
        load("bee_dance")


def test_newsgroups_come_from_scikit_learn_where_the_file_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(subset: str, normalize: bool) -> Bunch:
        asked.append((subset, normalize))
        counts = scipy.sparse.csr_matrix(np.eye(3 if subset == "train" else 2, 4, dtype=np.float32))
        names = np.array(["a", "b", "c", "d"], dtype=object)
        return Bunch(data=counts, target=np.arange(counts.shape[0]), feature_names=names, target_names=["x", "y", "z"])

    monkeypatch.delenv("REGBAYES_DATA", raising=False)
    monkeypatch.setattr(sklearn.datasets, "fetch_20newsgroups_vectorized", fetch)
    data = load("newsgroups20")
    assert asked == [("train", False), ("test", False)]
    assert (data.X.shape, data.X_test.shape, data.X.dtype) == ((3, 4), (2, 4), np.float64)
    assert (data.y.tolist(), data.y_test.tolist()) == ([0, 1, 2], [0, 1])
    assert (data.feature_names, data.target_names) == (("a", "b", "c", "d"), ("x", "y", "z"))


def test_published_tables_come_with_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGBAYES_DATA", raising=False)
    galaxy, faithful = load("galaxy"), load("faithful")
    assert (galaxy.X.min(), galaxy.X.max(), galaxy.X[77, 0]) == (9172, 34_279, 26_960)
    assert faithful.X.mean(0).round(3).tolist() == [3.488, 70.897]
    assert (galaxy.feature_names, faithful.feature_names) == (("velocity",), ("eruptions", "waiting"))


def test_pickled_objects_are_never_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    np.savez(tmp_path / "wireless.npz", X=np.array([{}], dtype=object))
    monkeypatch.setenv("REGBAYES_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load("wireless")


def test_bars_are_sums_of_shapes_and_noise() -> None:
    bars = make_bars(2000, noise=0.25, seed=1)
    assert (bars.X.shape, bars.features.shape, bars.loadings.shape) == ((2000, 36), (2000, 4), (4, 36))
    noise = bars.X - bars.features.double() @ bars.loadings
    assert abs(float(noise.std()) - 0.25) < 0.005
    assert (bars.features.double().mean(0) - 0.5).abs().max() < 0.05
    assert torch.equal(bars.y, (bars.features[:, 0] + bars.features[:, 1] > 0).long())
    assert torch.equal(make_bars(5, seed=3).X, make_bars(5, seed=3).X)
