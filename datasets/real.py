"""Public data sets by name, prepared once: `load("parkinsons")`, `available()`.

Three places are tried in this order.

1. scikit-learn's bundled sets (breast_cancer, diabetes, digits, iris, wine), and two published tables that come with
   this package (faithful, galaxy), need nothing.
2. The others are read from `<name>.npz` in the folder that the environment variable REGBAYES_DATA names.
3. If the file is absent, the set is downloaded (`downloads.py`), unless its site has no file that can be read: the
   error then says where the set is from.

docs/data.md lists the sets, where each comes from, and what a file of that folder holds. Nothing is standardised.
Integer classes run from 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import sklearn.datasets
from numpy.typing import NDArray

from .downloads import DOWNLOADS, HOMES, Arrays, content, download


@dataclass(frozen=True)
class Dataset:
    """A data set; if there is a customary split, X and y are its training part, X_test and y_test the rest."""

    name: str
    X: NDArray[np.float64] | scipy.sparse.csr_matrix  # [N, D]
    y: NDArray[Any] | None  # [N] classes 0..L-1 (int64) or real targets (float64), [N, L] 0/1 labels (int64), or None
    feature_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()
    groups: NDArray[np.int64] | None = None  # [N] subject, school, sequence, ... that a row belongs to
    X_test: NDArray[np.float64] | scipy.sparse.csr_matrix | None = None
    y_test: NDArray[Any] | None = None
    description: str = ""
    source: str = ""
    licence: str = ""
    extra: Arrays = field(default_factory=dict)  # the other arrays of the file, under their names there

    @property
    def lengths(self) -> list[int]:
        """Rows of each run of equal `groups`: the sequences of a set that is sorted by sequence and time."""
        if self.groups is None:
            return [self.X.shape[0]]
        changes = np.flatnonzero(np.diff(self.groups)) + 1
        return np.diff([0, *changes, len(self.groups)]).tolist()


class _About(NamedTuple):
    description: str
    source: str
    licence: str = "none stated: cite the authors, keep to research and testing"


_BUNDLED = ("breast_cancer", "diabetes", "digits", "iris", "wine")
_TABLES = ("faithful", "galaxy")
_UCI = "CC BY 4.0 (UCI Machine Learning Repository)"
_MULAN = "mulan.sourceforge.net/datasets-mlc.html"
_FILES = {
    "bee_dance": _About(
        "Honey-bee dance tracks: x, y, sine and cosine of the heading, each standardised within its sequence. States "
        "0, 1 are the two turns, 2 the waggle; groups are sequences in time order. extra: all six tracks, change "
        "points only.",
        "Oh, Rehg, Balch, Dellaert (2008), IJCV 77:103",
    ),
    "ble_rssi": _About(
        "Bluetooth signal strengths (dBm, -200 = out of range) of 13 beacons in a library, 105 places, sorted by "
        "time; groups are recording days.",
        "Mohammadi, Al-Fuqaha, Guizani, Oh (2018), IEEE IoT J.; archive.ics.uci.edu",
        _UCI,
    ),
    "corel5k": _About(
        "Image annotation with visual words: multi-label, sparse, many labels.",
        f"Duygulu, Barnard, de Freitas, Forsyth (2002), ECCV; {_MULAN}",
    ),
    "emotions": _About(
        "Music and the emotions it evokes: multi-label; the scales of the features differ a lot.",
        f"Trohidis, Tsoumakas, Kalliris, Vlahavas (2008), ISMIR; {_MULAN}",
    ),
    "faithful": _About(
        "Old Faithful geyser: eruption and waiting times in minutes; no target.",
        "Azzalini & Bowman (1990), Applied Statistics 39:357",
        "published table",
    ),
    "galaxy": _About(
        "Velocities (km/s) of 82 galaxies of Corona Borealis; no target.",
        "Postman, Huchra, Geller (1986); Roeder (1990), JASA 85:617",
        "published table",
    ),
    "letter": _About(
        "Letter recognition from 16 integer image features, 26 classes; first 16,000 rows train, last 4,000 test.",
        "Frey & Slate (1991), Machine Learning 6:161; archive.ics.uci.edu",
        _UCI,
    ),
    "medical": _About(
        "Clinical free text with ICD-9 codes: multi-label, sparse binary words.",
        f"Pestian et al. (2007), BioNLP; {_MULAN}",
    ),
    "mnist": _About(
        "Handwritten digits, 28 x 28 grey values 0..255: the even-numbered images of the 10,000-image test file.",
        "LeCun, Cortes, Burges; yann.lecun.com/exdb/mnist",
        "CC BY-SA 3.0 as usually stated",
    ),
    "newsgroups20": _About(
        "20 Newsgroups by date: sparse word counts, stop words kept.",
        "Lang (1995), ICML; qwone.com/~jason/20Newsgroups",
    ),
    "parkinsons": _About(
        "Voice measures, 1 = Parkinson's disease; groups are speakers (split by them: a speaker has several rows).",
        "Little, McSharry, Roberts, Costello, Moroz (2007), BioMed. Eng. OnLine 6:23; archive.ics.uci.edu",
        _UCI,
    ),
    "protein_fold": _About(
        "Protein fold recognition, 27 folds (311 + 383 proteins). Default features: the composition in 20 amino acids "
        "(per cent) and the length of the sequence.",
        "Ding & Dubchak (2001), Bioinformatics 17:349; Shen & Chou (2006), Bioinformatics 22:1717",
    ),
    "scene": _About(
        "Natural scenes: multi-label, colour moments.",
        f"Boutell, Luo, Shen, Brown (2004), Pattern Recognition 37:1757; {_MULAN}",
    ),
    "scene15": _About(
        "Fifteen scene categories. X joins three image views: GIST (20), PHOG (59), LBP (40), each in extra too.",
        "Fei-Fei & Perona (2005), CVPR; Lazebnik, Schmid, Ponce (2006), CVPR",
    ),
    "school": _About(
        "Exam scores of pupils (1..70): regression, one task a school; groups are schools.",
        "Inner London Education Authority; Argyriou, Evgeniou, Pontil (2008), Machine Learning 73:243",
    ),
    "skin": _About(
        "Skin pixels (1) from blue, green, red values 0..255.",
        "Bhatt & Dhall, Skin Segmentation; archive.ics.uci.edu",
        _UCI,
    ),
    "ujiindoorloc": _About(
        "WiFi logs of 520 access points, sparse dBm (absent = not detected, a stored 0 is 0 dBm); y is the floor of a "
        "building, groups are one person's log in time order. Test rows are the validation file.",
        "Torres-Sospedra et al. (2014), IPIN; archive.ics.uci.edu",
        _UCI,
    ),
    "wireless": _About(
        "WiFi signal strengths (dBm) of 7 access points in 4 rooms.",
        "Rohra et al. (2016), Wireless Indoor Localization; archive.ics.uci.edu",
        _UCI,
    ),
    "yeast": _About(
        "Gene functions of yeast: multi-label.",
        f"Elisseeff & Weston (2001), NIPS 14; {_MULAN}",
    ),
}


def available() -> tuple[str, ...]:
    """The names that `load` knows."""
    return tuple(sorted((*_BUNDLED, *_FILES)))


def load(name: str, *, features: str | None = None) -> Dataset:
    """The data set of that name.

    Parameters
    ----------
    name : one of `available()`
    features : protein_fold only: "composition" (the default: 20 amino acids and the length of the sequence), "all"
        (125 columns), or one of the feature groups "secondary", "hydrophobicity", "polarity", "volume",
        "polarizability" (21 columns each)

    Raises
    ------
    ValueError           on an unknown name or group of features (lists those known); if a download is not the known
                         file of that name.
    FileNotFoundError    if the data are in none of the places that the module names.

    >>> iris = load("iris")
    >>> iris.X.shape, iris.target_names
    ((150, 4), ('setosa', 'versicolor', 'virginica'))
    """
    if not isinstance(name, str) or name not in available():
        raise ValueError(f"There is no data set {name!r}; known names: {', '.join(available())}.")
    if features is not None and name != "protein_fold":
        raise ValueError(f"features is {features!r}, but {name} has one set of features; leave it out.")
    if name in _BUNDLED:
        return _bundled(name)
    if name in _TABLES:
        return _dataset(name, _table(name))
    prepare = _PREPARE.get(name, dict)
    path = Path(os.environ.get("REGBAYES_DATA", "")) / f"{name}.npz"
    if "REGBAYES_DATA" in os.environ and path.is_file():
        arrays = _read(path)
        if name == "protein_fold":
            arrays = _protein_fold(arrays, features or "composition")
        return _dataset(name, prepare(arrays))
    place = f"at {path}" if "REGBAYES_DATA" in os.environ else "(REGBAYES_DATA is not set)"
    mend = (
        f"Set the environment variable REGBAYES_DATA to a folder that holds {name}.npz (docs/data.md says what is in "
        f"it). Public home of the data: {_FILES[name].source}."
    )
    if name not in DOWNLOADS:
        raise FileNotFoundError(
            f"The data set {name!r} was not found {place}, and cannot be downloaded: no public file has it in a form "
            f"to read. {mend}"
        )
    try:
        data = _dataset(name, prepare(download(name)))
    except OSError as error:
        raise FileNotFoundError(
            f"The data set {name!r} was not found {place}, and could not be downloaded: {error}. {mend}"
        ) from None  # the message has it
    if name in HOMES and content(data.X, data.y, data.groups, data.X_test, data.y_test) != HOMES[name].content:
        raise ValueError(f"What was downloaded as {name!r} is not the data that are known by that name. {mend}")
    return data


def _dataset(name: str, arrays: Arrays) -> Dataset:
    """Canonical arrays to a Dataset; what has no field of its own becomes `extra`."""
    take = {key.lower().removesuffix("_train"): key for key in arrays if key not in ("X_test", "y_test", "Y_test")}

    def pop(*keys: str) -> Any:
        return next((arrays.pop(take[key]) for key in keys if key in take), None)

    X, y, groups = pop("x"), pop("y"), pop("groups")
    feature_names, target_names = pop("feature_names", "vocab"), pop("class_names", "label_names")
    X_test, y_test = arrays.pop("X_test", None), arrays.pop("y_test", arrays.pop("Y_test", None))
    return Dataset(
        name=name,
        X=X.astype(np.float64),
        y=_target(y),
        feature_names=tuple(map(str, feature_names if feature_names is not None else ())),
        target_names=tuple(map(str, target_names if target_names is not None else ())),
        groups=groups,
        X_test=None if X_test is None else X_test.astype(np.float64),
        y_test=_target(y_test),
        description=_FILES[name].description,
        source=_FILES[name].source,
        licence=_FILES[name].licence,
        extra=arrays,
    )


def _target(y: NDArray[Any] | None) -> NDArray[Any] | None:
    return None if y is None else y.astype(np.float64 if np.issubdtype(y.dtype, np.floating) else np.int64)


def _bundled(name: str) -> Dataset:
    bunch = getattr(sklearn.datasets, f"load_{name}")()
    return Dataset(
        name=name,
        X=np.asarray(bunch.data, np.float64),
        y=_target(bunch.target),
        feature_names=tuple(map(str, bunch.feature_names)),
        target_names=tuple(map(str, bunch.get("target_names", ()))),
        description=bunch.DESCR,
        source=f"scikit-learn, sklearn.datasets.load_{name}",
        licence="as bundled with scikit-learn",
    )


def _table(name: str) -> Arrays:
    with (resources.files(__package__) / "tables" / f"{name}.csv").open() as file:
        columns = file.readline().strip().split(",")
        return {"X": np.loadtxt(file, delimiter=",", ndmin=2), "feature_names": columns}


def _read(path: Path) -> Arrays:
    """The arrays of a file, CSR parts joined under the name of the matrix."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    for name in [key.removesuffix("_indptr") for key in arrays if key.endswith("_indptr")]:
        data, indices, indptr, shape = (arrays.pop(f"{name}_{part}") for part in ("data", "indices", "indptr", "shape"))
        # wide unsigned or 8-bit storage types are only for compactness; scipy wants int32 indices
        parts = (data.astype(np.float64), indices.astype(np.int32), indptr)
        arrays[name] = scipy.sparse.csr_matrix(parts, shape=tuple(shape))
    return arrays


def _protein_fold(arrays: Arrays, features: str) -> Arrays:
    """Columns of one feature group; the length joins the composition, as in Ding & Dubchak's 21 features."""
    known = ["all", *map(str, arrays["group_names"])]
    if features not in known:
        raise ValueError(f"features is {features!r}; protein_fold has: {', '.join(known)}.")
    if features == "all":
        return arrays
    columns = arrays["feature_group"] == known.index(features) - 1
    names = arrays["feature_names"][columns]
    arrays |= {key: arrays[key][:, columns] for key in ("X_train", "X_test")}
    if features == "composition":
        names = np.append(names, "length")
        for part in ("train", "test"):
            arrays[f"X_{part}"] = np.column_stack([arrays[f"X_{part}"], arrays[f"seq_length_{part}"]])
    return arrays | {"feature_names": names}


def _scene15(arrays: Arrays) -> Arrays:
    return arrays | {"X": np.hstack([arrays[f"view{view}"] for view in (1, 2, 3)])}


def _school(arrays: Arrays) -> Arrays:
    return arrays | {"y": arrays["y"].astype(np.float64)}


def _ujiindoorloc(arrays: Arrays) -> Arrays:
    places, index = np.unique(
        np.column_stack([np.r_[arrays[f"{key}_train"], arrays[f"{key}_val"]] for key in ("building", "floor")]),
        axis=0,
        return_inverse=True,
    )
    y, y_test = np.split(index.ravel(), [len(arrays["building_train"])])
    X, X_test = arrays.pop("rssi_train"), arrays.pop("rssi_val")
    names = [f"building {building} floor {floor}" for building, floor in places]
    groups = arrays.pop("sequence_train")
    return arrays | {"X": X, "y": y, "X_test": X_test, "y_test": y_test, "groups": groups, "class_names": names}


_PREPARE: dict[str, Callable[[Arrays], Arrays]] = {
    "scene15": _scene15,
    "school": _school,
    "ujiindoorloc": _ujiindoorloc,
}
