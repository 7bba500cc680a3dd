"""Sets that are downloaded where the folder of REGBAYES_DATA lacks them: `download("wireless")`.

scikit-learn brings what OpenML has, and the 20 newsgroups, into its own folder. pooch brings the others from public
repositories into its cache, each file at one commit and of one sha256 where that is known. What was read from them
must then have the `content` that is known of the set.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import scipy.io
import scipy.sparse
import sklearn.datasets

__all__ = ["DOWNLOADS", "GITHUB", "HOMES", "Arrays", "Home", "content", "download"]

Arrays = dict[str, Any]
GITHUB = "https://raw.githubusercontent.com/"


def download(name: str) -> Arrays:
    """The arrays of a set of `DOWNLOADS`, under the names that a file of that folder has.

    Raises
    ------
    OSError        where it cannot be had: no network, no pooch, no such file at its home.
    ValueError     where what came is not the file that is known.
    """
    return DOWNLOADS[name]()


def content(*arrays: Any) -> str:
    """The sha256 of numbers as `load` gives them: dense or sparse, None where there is no such array."""
    digest = hashlib.sha256()
    for array in arrays:
        if scipy.sparse.issparse(array):
            parts = [array.data, array.indices.astype(np.int64), array.indptr.astype(np.int64)]
        else:
            parts = [] if array is None else [array]
        for part in parts:
            digest.update(f"{part.shape}".encode() + np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


# ---- OpenML and the 20 newsgroups, by scikit-learn ----


class _OpenML(NamedTuple):
    query: dict[str, Any]  # arguments of sklearn.datasets.fetch_openml
    shape: tuple[int, int]  # of X as it is there
    prepare: Callable[[Arrays], Arrays]  # from X and y as they are there


def _multi_label(arrays: Arrays) -> Arrays:
    return arrays | {"y": (np.char.upper(arrays["y"].astype(str)) == "TRUE").astype(np.int64)}


def _class_one(of: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {"y": (arrays["y"].astype(str) == of).astype(np.int64)}


def _mnist(arrays: Arrays) -> Arrays:
    even = slice(60_000, None, 2)  # the test file comes after the 60,000 training images
    return {"X": arrays["X"][even], "y": arrays["y"][even].astype(np.int64)}


_OPENML = {
    "emotions": _OpenML({"data_id": 40589}, (593, 72), _multi_label),
    "mnist": _OpenML({"data_id": 554}, (70_000, 784), _mnist),
    "parkinsons": _OpenML({"data_id": 1488}, (195, 22), _class_one("2")),
    "scene": _OpenML({"name": "scene", "version": 4}, (2407, 294), _multi_label),
    "skin": _OpenML({"data_id": 1502}, (245_057, 3), _class_one("1")),
    "yeast": _OpenML({"name": "yeast", "version": 4}, (2417, 103), _multi_label),
}


def _openml(name: str) -> Arrays:
    query, shape, prepare = _OPENML[name]
    bunch = sklearn.datasets.fetch_openml(**query, as_frame=False, parser="liac-arff")
    if bunch.data.shape != shape:
        raise ValueError(f"OpenML ({query}) gave an array of shape {bunch.data.shape} for {name}; expected {shape}.")
    arrays = {"X": bunch.data, "y": bunch.target, "feature_names": bunch.feature_names}
    return prepare(arrays | ({"label_names": bunch.target_names} if bunch.target.ndim == 2 else {}))


def _newsgroups() -> Arrays:
    train, test = (
        sklearn.datasets.fetch_20newsgroups_vectorized(subset=part, normalize=False) for part in ("train", "test")
    )
    rows = {"X_train": train.data, "y_train": train.target, "X_test": test.data, "y_test": test.target}
    return rows | {"vocab": train.feature_names, "class_names": train.target_names}


# ---- files of public repositories, by pooch ----


class Home(NamedTuple):
    """Where the files of a set are, how they are read, and what `load` then gives."""

    files: dict[str, str | None]  # path at GITHUB, owner and commit included -> its sha256, where it is known
    read: Callable[..., Arrays]  # of the files in this order
    content: str  # of X, y, groups, X_test and y_test


def _wireless(path: Path) -> Arrays:
    table = np.loadtxt(path, dtype=np.int64)
    return {"X": table[:, :-1], "y": table[:, -1] - 1}


def _letter(path: Path) -> Arrays:
    table = np.loadtxt(path, dtype=str, delimiter=",", skiprows=1)
    names, y = np.unique(table[:, 0], return_inverse=True)
    X, train, test = table[:, 1:].astype(np.int64), slice(16_000), slice(16_000, None)
    return {"X_train": X[train], "y_train": y[train], "X_test": X[test], "y_test": y[test], "class_names": names}


def _ble_rssi(path: Path) -> Arrays:
    table = np.loadtxt(path, dtype=str, delimiter=",")
    (_, _, *names), rows = table[0], table[1:]
    forms = {2: "%m-%d-%Y %H:%M:%S", 1: "%m-%d-%y %H:%M"}
    when = [datetime.strptime(date, forms[date.count(":")]).replace(tzinfo=UTC) for date in rows[:, 1]]
    seconds = np.array([int(moment.timestamp()) for moment in when])
    order = np.argsort(seconds, kind="stable")
    places, y = np.unique(rows[order, 0], return_inverse=True)
    days, groups = np.unique([when[row].date() for row in order], return_inverse=True)
    grid = np.array([(ord(place[0]) - ord("A"), int(place[1:])) for place in places])  # column and row on the floor
    named = {"feature_names": names, "class_names": places, "class_grid": grid, "group_names": days.astype(str)}
    return {"X": rows[order, 2:].astype(np.int64), "y": y, "groups": groups, "time": seconds[order], **named}


def _corel5k(*paths: Path) -> Arrays:
    arrays: Arrays = {}
    for part, path in zip(("train", "test"), paths, strict=True):
        head, rows = path.read_text().split("@data\n")
        names = re.findall(r"^@attribute (\S+)", head, flags=re.M)
        entries = [re.findall(r"(\d+) 1", row) for row in rows.splitlines()]
        columns, starts = np.concatenate(entries).astype(np.int32), np.cumsum([0, *map(len, entries)])
        table = scipy.sparse.csr_matrix((np.ones(len(columns)), columns, starts), shape=(len(entries), len(names)))
        arrays |= {f"X_{part}": table[:, :499], f"y_{part}": table[:, 499:].toarray().astype(np.int64)}
        arrays |= {"feature_names": names[:499], "label_names": names[499:]}
    return arrays


def _school(path: Path) -> Arrays:
    cells = scipy.io.loadmat(path)
    X, y = (np.vstack(cells[key].ravel().tolist()) for key in ("X", "Y"))
    groups = np.repeat(np.arange(cells["X"].size), [len(rows) for rows in cells["X"].ravel()])
    return {"X": X[:, np.ptp(X, axis=0) > 0], "y": y.ravel(), "groups": groups}  # a column of ones is left out


def _scene15(path: Path) -> Arrays:
    cells = scipy.io.loadmat(path)
    views = {f"view{view}": X.astype(np.float32) for view, X in enumerate(cells["X"].ravel(), 1)}
    return {**views, "y": cells["Y"].ravel().astype(np.int64) - 1}


_UJI = {"floor": 522, "building": 523, "space": 524, "relative_position": 525, "user": 526, "phone": 527, "time": 528}


def _ujiindoorloc(path: Path) -> Arrays:
    arrays: Arrays = {}
    with zipfile.ZipFile(path) as archive:
        members = {PurePath(name).name: name for name in archive.namelist()}
        for part, member in (("train", "trainingData.csv"), ("val", "validationData.csv")):
            with archive.open(members[member]) as file:
                table = np.loadtxt(file, delimiter=",", skiprows=1)
            table = table[np.lexsort([table[:, _UJI[key]] for key in ("time", "phone", "user")])]
            rssi, seen = table[:, :520], table[:, :520] != 100
            arrays[f"rssi_{part}"] = scipy.sparse.csr_matrix((rssi[seen], np.nonzero(seen)), shape=rssi.shape)
            arrays |= {f"{key}_{part}": table[:, column].astype(np.int64) for key, column in _UJI.items()}
            _, sequences = np.unique(table[:, [_UJI["user"], _UJI["phone"]]], axis=0, return_inverse=True)
            arrays |= {f"sequence_{part}": sequences.ravel(), f"lonlat_{part}": table[:, 520:522]}
    return arrays


_COREL = "tsoumakas/mulan/2f7c6545781ba4c09b4cb5ab4be4eedc03aa4e8b/data/multi-label/corel5k/Corel5k"
HOMES = {
    "ble_rssi": Home(
        {
            "notanoxymoron/indoor-localization-and-navigation/48ad322d46519c0173bd41d66337406c229fec74/"
            "iBeacon_RSSI_Labeled.csv": "a91368ae2946f9f900f4ecf666dddf7e8921c18bd081b4352fc34e370a85dfcf"
        },
        _ble_rssi,
        "6f8e4ea85e5bfa5d586dfc755223a23dadbbf804157ada328b8bc4fa2490596c",
    ),
    "corel5k": Home(
        {
            f"{_COREL}-train-sparse.arff": "19eb253c447144bea74ffa86b4731a56022addae2ba7d0aab72ad07fdc02e9b3",
            f"{_COREL}-test-sparse.arff": "e8f8e9cd052c43ba7bdfdf99d242f461fc8c2a03163466d921e576887b51d8a7",
        },
        _corel5k,
        "3213120b60b2cd14e2dc3e491873dedb2e25dacee63fc1a467f0af8a27bb46e9",
    ),
    "letter": Home(
        {
            "davidgasquez/letter-recognition/2735ea914041060ca6e28fd38bfe7071f2e54ee9/"
            "letter-recognition.data": "9b63b12c9425f919cf32a4de0ffbbef25960ddeced6a0c15fc8cf2dbb530b403"
        },
        _letter,
        "d57107ae5fe91dbb2c72fb8072e212c5daa9b25bcd69c293118f87d774b885af",
    ),
    "school": Home(
        {"jiayuzhou/MALSAR/ca3d55b878cc4113f0d9603e8ac46538aeb1ecd9/data/school.mat": None},
        _school,
        "707ad5a9c825c0d0df641e47fd137d95ea03fdf1b40471754dc7399005785bea",
    ),
    "scene15": Home(
        {"XLearning-SCU/2021-CVPR-Completer/8fff5f83d823bbc46c96088bb0c1385ca7b9e560/data/Scene-15.mat": None},
        _scene15,
        "83d4e90e60210ec24e4f5aa46fa0e940215b1b7d608e756ad712157a718a7f94",
    ),
    "ujiindoorloc": Home(
        {
            "tim7107/DL_project_Wifi-signal-Indoor-localization-using-Deep-learning-Model/"
            "45588f0d00d538719a375f79c92a7996ee7237b2/UJIndoorLoc.zip": None
        },
        _ujiindoorloc,
        "51c458d4044f40c2dab30053f1e2b33c2e9a781941451298584a0736d10bff5a",
    ),
    "wireless": Home(
        {
            "joachimvalente/decision-tree-cart/9835b1974116cbb69bd55a38b72bcc65dd3a7b7c/"
            "wifi_localization.txt": "76121abf412b961f474e72baa8a802241f3032e85590c6680dd5280b1af8e0ab"
        },
        _wireless,
        "3a135a7e2e4e7e59833957bed4198971174cfad56e40da1a60b3a135e8fb87df",
    ),
}


def _home(name: str) -> Arrays:
    try:
        import pooch
    except ImportError:
        raise OSError("it comes by pooch, which is not installed (pip install pooch)") from None
    home = HOMES[name]
    store = pooch.create(pooch.os_cache("regbayes"), GITHUB, registry=home.files)
    try:
        return home.read(*(Path(store.fetch(path)) for path in home.files))
    except ValueError as error:
        raise ValueError(f"What {GITHUB} has as {name} is not the file that is known: {error}") from error


DOWNLOADS: dict[str, Callable[[], Arrays]] = {
    **{name: partial(_openml, name) for name in _OPENML},
    **{name: partial(_home, name) for name in HOMES},
    "newsgroups20": _newsgroups,
}
