"""Sets whose files come from public repositories: what is read from a file in their form, and what a server can do."""

from __future__ import annotations

import hashlib
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from regbayes.datasets import available, downloads, load
from regbayes.datasets.downloads import HOMES, Home, content

pytest.importorskip("pooch")
ROOMS = "-64\t-56\t-61\t-66\t-71\t-82\t-81\t1\n-65\t-54\t-46\t-65\t-51\t-91\t-89\t4\n"
SHA256 = hashlib.sha256(ROOMS.encode()).hexdigest()
ROWS = np.array([[-64.0, -56, -61, -66, -71, -82, -81], [-65, -54, -46, -65, -51, -91, -89]])
CONTENT = content(ROWS, np.array([0, 3]), None, None, None)


def read(name: str, *paths: Path) -> dict[str, Any]:
    return HOMES[name].read(*paths)


def text(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path


# ---- files in the form of their homes ----


def test_letters_are_numbered_and_split(tmp_path: Path) -> None:
    path = text(tmp_path / "letters", "Letter,1,2", "T,2,8", "A,5,12", *["I,0,1"] * 16_000)
    found = read("letter", path)
    assert [found[key].shape for key in ("X_train", "y_train", "X_test", "y_test")] == [
        *[(16_000, 2), (16_000,)],
        *[(2, 2), (2,)],
    ]
    assert (found["y_train"][:3].tolist(), found["X_train"][:2].tolist()) == ([2, 0, 1], [[2, 8], [5, 12]])


def test_walks_are_sorted_by_time_in_both_forms_of_dates(tmp_path: Path) -> None:
    path = tmp_path / "walks"
    path.write_bytes(
        b"location,date,b1,b2\r\nK04,10-18-2016 11:15:21,-200,-78\r\nB01,08-04-16 13:06,-70,-200\r\n"
        b"B01,08-04-16 13:06,-71,-200\r\nK04,4-19-2016 9:37:23,-72,-200\r\n"
    )
    found = read("ble_rssi", path)
    assert found["X"].tolist() == [[-72, -200], [-70, -200], [-71, -200], [-200, -78]]
    assert (found["y"].tolist(), found["groups"].tolist()) == ([1, 0, 0, 1], [0, 1, 1, 2])
    assert found["class_grid"].tolist() == [[1, 1], [10, 4]]
    assert found["group_names"][1] == "2016-08-04"
    assert found["time"].tolist() == [1461058643, 1470315960, 1470315960, 1476789321]


def test_words_and_labels_of_images_stand_in_one_sparse_table(tmp_path: Path) -> None:
    names = [f"@attribute {name} {{0,1}}" for name in [*(f"Cluster{n}" for n in range(499)), "city", "f-16"]]
    head = ["@relation Corel5k", "", *names, "", "@data"]
    train = text(tmp_path / "train", *head, "{0 1,498 1,500 1}", "{499 1}")
    test = text(tmp_path / "test", *head, "{3 1,499 1,500 1}")
    found = read("corel5k", train, test)
    assert (found["X_train"].nonzero()[1].tolist(), found["X_test"].nonzero()[1].tolist()) == ([0, 498], [3])
    assert (found["y_train"].tolist(), found["y_test"].tolist()) == ([[0, 1], [1, 0]], [[1, 1]])
    assert (found["label_names"], len(found["feature_names"])) == (["city", "f-16"], 499)


def cells(*arrays: np.ndarray) -> np.ndarray:
    found = np.empty((1, len(arrays)), object)
    found[0, :] = arrays
    return found


def test_schools_are_groups_and_the_column_of_ones_is_left_out(tmp_path: Path) -> None:
    first, second = np.array([[1.0, 5, 1], [0, 6, 1]]), np.array([[1.0, 7, 1]])
    scores = cells(np.array([[17.0], [5.0]]), np.array([[9.0]]))
    scipy.io.savemat(tmp_path / "school.mat", {"X": cells(first, second), "Y": scores})
    found = read("school", tmp_path / "school.mat")
    assert found["X"].tolist() == [[1, 5], [0, 6], [1, 7]]
    assert (found["y"].tolist(), found["groups"].tolist()) == ([17, 5, 9], [0, 0, 1])


def test_views_of_scenes(tmp_path: Path) -> None:
    views = cells(np.ones((2, 3)), np.full((2, 4), 0.1), np.zeros((2, 2)))
    scipy.io.savemat(tmp_path / "scenes.mat", {"X": views, "Y": np.array([[1.0], [15.0]])})
    found = read("scene15", tmp_path / "scenes.mat")
    assert [found[f"view{view}"].shape for view in (1, 2, 3)] == [(2, 3), (2, 4), (2, 2)]
    assert (found["view2"].dtype, found["y"].tolist()) == (np.float32, [0, 14])


def test_logs_are_sorted_by_user_phone_and_time_and_zero_is_a_signal(tmp_path: Path) -> None:
    table = np.full((3, 529), 100.0)
    table[:, 0] = [-50, 0, -70]
    table[:, 520:] = [[1, 2, 3, 0, 7, 2, 2, 5, 10], [1, 2, 1, 1, 7, 2, 1, 9, 30], [1, 2, 2, 2, 7, 2, 1, 9, 20]]
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        for name in ("trainingData", "validationData"):
            lines = [",".join(f"c{column}" for column in range(529)), *(",".join(map(str, row)) for row in table)]
            archive.writestr(f"UJIndoorLoc/{name}.csv", "\n".join(lines))
    found = read("ujiindoorloc", tmp_path / "logs.zip")
    assert found["time_val"].tolist() == [20, 30, 10]
    assert (found["sequence_train"].tolist(), found["floor_train"].tolist()) == ([0, 0, 1], [2, 1, 3])
    assert found["rssi_train"].data.tolist() == [-70, 0, -50]  # 100 is no signal, 0 dBm is one


# ---- a server ----


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a server that stands for the public one; caches and data folders are empty."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(tmp_path / "home"))

        def log_message(self, *arguments: Any) -> None:
            pass

    (tmp_path / "home").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(downloads, "GITHUB", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("REGBAYES_DATA", raising=False)
    yield tmp_path / "home"
    server.shutdown()
    server.server_close()


def stands(monkeypatch: pytest.MonkeyPatch, sha256: str | None, known: str = CONTENT) -> None:
    monkeypatch.setitem(HOMES, "wireless", Home({"rooms.txt": sha256}, HOMES["wireless"].read, known))


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_set_is_downloaded_once(sha256, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stands(monkeypatch, sha256)
    text(home / "rooms.txt", ROOMS)
    np.testing.assert_array_equal(load("wireless").X, ROWS)
    (home / "rooms.txt").unlink()
    assert load("wireless").y.tolist() == [0, 3]


def test_what_differs_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text(home / "rooms.txt", ROOMS.replace("-64", "-63"))
    stands(monkeypatch, SHA256)
    with pytest.raises(ValueError, match="as wireless is not the file that is known: SHA256"):
        load("wireless")
    stands(monkeypatch, None)
    with pytest.raises(ValueError, match=r"downloaded as 'wireless' is not the data .* Set .* REGBAYES_DATA"):
        load("wireless")


def test_what_is_absent_says_what_to_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"'letter' .* not be downloaded: 404 .* Set .* REGBAYES_DATA"):
        load("letter")
    monkeypatch.setattr(downloads, "GITHUB", "http://127.0.0.1:9/")
    with pytest.raises(FileNotFoundError, match=r"not be downloaded: .* Set .* REGBAYES_DATA .* Frey & Slate"):
        load("letter")
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(FileNotFoundError, match=r"comes by pooch, which is not installed \(pip install pooch\)"):
        load("letter")


# ---- what is known ----


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.real_data(name)) for name in HOMES])
def test_content_is_that_of_the_folder(name: str) -> None:
    data = load(name)
    assert content(data.X, data.y, data.groups, data.X_test, data.y_test) == HOMES[name].content


def test_content_tells_values_shapes_and_zeros_apart() -> None:
    rows = np.arange(6.0).reshape(2, 3)
    stored = scipy.sparse.csr_matrix(([0.0], ([0], [1])), shape=(1, 2))
    empty = scipy.sparse.csr_matrix((1, 2))
    tables = [rows, rows.reshape(3, 2), rows + 1, scipy.sparse.csr_matrix(rows), stored, empty, None]
    assert len({content(table) for table in tables}) == len(tables)
    assert content(rows[:, ::2]) == content(rows[:, ::2].copy())


def test_the_page_on_data_lists_every_set() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    assert all(f"`{name}`" in page for name in available())
