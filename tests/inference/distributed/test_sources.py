"""Sources of rows: whatever they come from, the same blocks are the same fit; bad ones are refused by name."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import scipy.sparse
import torch
from torch.utils.data import DataLoader

from regbayes.estimators import Classifier
from regbayes.inference import SVI, RowsInOrder, RowSource, SmallVariance, map_rows, rows_of
from regbayes.inference.distributed import mapped
from regbayes.models import BNMC, DPM, IHMM, LDA, InfiniteLatentSVM, InfiniteSVM
from regbayes.models.losses import EpsilonInsensitive, Masked

N, SIZE = 170, 40
RUN = {"capture_output": True, "text": True, "check": True}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)) + 4 * RNG.integers(0, 2, (N, 1))
Y = (X[:, 0] > 2).astype(np.int64)
LABELS = np.stack([Y, X[:, 1] > 2], 1).astype(float)
BLOCKS = [(X[start : start + SIZE], Y[start : start + SIZE]) for start in range(0, N, SIZE)]


def table(first: int = 0, last: int = N, **columns) -> pa.Table:
    made = {f"x{d}": X[first:last, d] for d in range(3)} | {"label": Y[first:last]}
    return pa.table(made | columns)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two Parquet files, the second in row groups of 7 rows, and the same rows in Arrow and as arrays on disk."""
    path = tmp_path_factory.mktemp("rows")
    (path / "parts").mkdir()
    pq.write_table(table(0, 65), path / "parts" / "a.parquet")
    pq.write_table(table(65, N), path / "parts" / "b.parquet", row_group_size=7)
    pyarrow.feather.write_feather(table(), str(path / "rows.arrow"))
    np.save(path / "X.npy", X)
    return path


def sources(folder) -> dict[str, RowSource]:
    """The same rows and labels, however they are kept."""
    return {
        "arrays": rows_of(X, Y),
        "tensors": rows_of(torch.as_tensor(X), torch.as_tensor(Y)),
        "memmap": rows_of(np.load(folder / "X.npy", mmap_mode="r"), Y),
        "Parquet": rows_of(folder / "parts", y="label"),
        "Arrow": rows_of(str(folder / "rows.arrow"), y="label"),
        "dataset": rows_of(ds.dataset(folder / "parts"), y="label", columns=["x0", "x1", "x2"]),
        "loader": rows_of(DataLoader(BLOCKS, batch_size=None, generator=torch.Generator())),
        "function": rows_of(BLOCKS.__getitem__, num_blocks=len(BLOCKS)),
    }


KINDS = ["arrays", "tensors", "memmap", "Parquet", "Arrow", "dataset", "loader", "function"]


@pytest.mark.parametrize("kind", KINDS)
def test_sources_give_the_same_blocks(kind, folder) -> None:
    source = sources(folder)[kind]
    assert source.num_rows == N
    for _ in range(2):
        found = list(source.blocks(SIZE))
        assert [len(rows) for rows, _ in found] == [40, 40, 40, 40, 10]
        assert [(number, list(y)) for number, y in source.outline(SIZE)] == [(len(y), list(y)) for _, y in BLOCKS]
        for ours, theirs in zip(found, BLOCKS, strict=True):
            np.testing.assert_array_equal(np.asarray(ours[0]), theirs[0])
            np.testing.assert_array_equal(np.asarray(ours[1]), theirs[1])


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_fit_from_any_source_is_that_from_an_array(kind, folder) -> None:
    backend, model = SVI(num_steps=7, batch_size=SIZE), InfiniteSVM(truncation=4)
    expected, found = (backend.fit(model, sources(folder)[each]) for each in ("arrays", kind))
    assert torch.equal(found.trace.values, expected.trace.values)
    for name, value in expected.samples.items():
        assert torch.equal(found.samples[name], value), name


STREAMING = {
    "mixture": (DPM(truncation=3), X, None),
    "regression": (InfiniteSVM(loss=EpsilonInsensitive(), truncation=3), X, X[:, 0]),
    "label sets": (BNMC(truncation=3), X, LABELS),
    "latent features": (InfiniteLatentSVM(truncation=3), X, Y),
    "topics": (LDA(num_topics=2), np.abs(X).round(), None),
}


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
def test_every_structure_streams_what_a_loader_gives(name) -> None:
    model, rows, y = STREAMING[name]
    given = [torch.as_tensor(part) for part in (rows, y) if part is not None]
    blocks = list(zip(*(part.split(SIZE) for part in given), strict=True))
    loader = DataLoader(blocks, batch_size=None, generator=torch.Generator())
    expected = SVI(num_steps=6).fit(model, loader)
    found = SVI(num_steps=6, batch_size=SIZE).fit(model, rows_of(*given))
    for key, value in expected.samples.items():
        assert torch.equal(found.samples[key], value), key


def test_sequences_come_in_blocks_of_their_own() -> None:
    source = rows_of(lambda index: (X[index * 60 : index * 60 + 60], [25, 35]), num_blocks=2)
    posterior = SVI(num_steps=3).fit(IHMM(truncation=3), source)
    assert posterior.samples["assignments"].shape == (1, 120)


def test_a_posterior_says_of_single_rows_what_the_first_ones_are(monkeypatch) -> None:
    monkeypatch.setattr("regbayes.inference.distributed.stream._NUM_DEFAULTS", 60)
    posterior = SVI(num_steps=4, batch_size=SIZE).fit(InfiniteSVM(truncation=4), rows_of(X, Y))
    assert posterior.samples["assignments"].shape == (1, 80)  # two whole blocks
    assert posterior.samples["num_seen"].item() == N
    late = np.where(np.arange(N) < 120, 0, Y + 1)
    with pytest.warns(RowsInOrder, match=r"The first rows of the array, .* have no label 1. If rows are sorted"):
        model = SVI(num_steps=2, batch_size=SIZE).fit(InfiniteSVM(), rows_of(X, late)).model
    assert model.classes.tolist() == [0, 1, 2]


def test_a_label_missing_in_one_block_is_missing(monkeypatch) -> None:
    monkeypatch.setattr("regbayes.inference.distributed.stream._NUM_DEFAULTS", 30)
    given = Y.astype(float)
    given[60] = np.nan
    fitted = SVI(num_steps=2, batch_size=30).fit(InfiniteSVM(), rows_of(X, given))
    assert isinstance(fitted.model.loss, Masked)
    sets = LABELS.copy()
    sets[60, 1] = np.nan
    assert isinstance(SVI(num_steps=2, batch_size=30).fit(BNMC(), rows_of(X, sets)).model.loss, Masked)


def test_sparse_rows_and_several_label_columns(tmp_path) -> None:
    counts = scipy.sparse.csr_matrix(np.abs(X).round())
    (first, _), *_ = rows_of(counts).blocks(SIZE)
    np.testing.assert_array_equal(first.to_dense(), counts[:SIZE].toarray())
    pq.write_table(table(other=pa.array(Y)), tmp_path / "sets.parquet")
    source = rows_of(tmp_path / "sets.parquet", y=["label", "other"])
    (rows, sets), *_ = source.blocks(50)
    assert (rows.shape, sets.shape) == ((50, 3), (50, 2))


def test_columns_have_the_types_of_the_file(tmp_path) -> None:
    given = {"a": pa.array([1.0, 2.0], pa.float32()), "b": pa.array([1, 2]), "y": pa.array(["no", "yes"])}
    pq.write_table(pa.table(given), tmp_path / "rows.parquet")
    (rows, y), *_ = rows_of(tmp_path / "rows.parquet", y="y", columns=["a"]).blocks(9)
    assert rows.dtype == np.float32
    assert y.tolist() == ["no", "yes"]
    (rows, _), *_ = rows_of(tmp_path / "rows.parquet", columns=["b", "a"]).blocks(9)
    assert rows.tolist() == [[1.0, 1.0], [2.0, 2.0]]
    frame = pd.DataFrame({"a": [1.0, 2.0]}, index=pd.Index([7, 8], name="key"))
    frame.to_parquet(tmp_path / "frame.parquet")
    assert rows_of(tmp_path / "frame.parquet").columns == ["a"]
    targets = pa.array([1, None, 2])
    pq.write_table(pa.table({"a": [1.0, 2.0, 3.0], "y": targets}), tmp_path / "missing.parquet")
    (_, y), *_ = rows_of(tmp_path / "missing.parquet", y="y").blocks(9)
    assert np.isnan(y).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.array([True, False]), np.array([0.2, -7.5])),
        (np.float32([1.5, 2.5]), np.array([0.1, 1e300])),
        (np.array([1, 2]), np.array([0.5, 3.5])),
        (np.int8([1, 2]), np.array([1, 10**9])),
    ],
    ids=["bool", "float32", "int64", "int8"],
)
def test_files_of_a_folder_may_have_other_types_of_numbers(first, second, tmp_path) -> None:
    for name, values in (("a", first), ("b", second)):
        pq.write_table(pa.table({"x": values, "y": [0.0, 1.0]}), tmp_path / f"{name}.parquet")
    found = np.concatenate([rows for rows, _ in rows_of(tmp_path).blocks(3)])
    np.testing.assert_array_equal(found[:, 0], np.concatenate([first.astype(float), second]))


@pytest.mark.parametrize("first", ["a", "b"])
def test_files_of_a_folder_with_other_columns_are_refused(first, tmp_path) -> None:
    """Without labels in a file, all its rows would count as unlabelled."""
    second = "ab".replace(first, "")
    pq.write_table(table(), tmp_path / f"{first}.parquet")
    pq.write_table(table().drop_columns("label"), tmp_path / f"{second}.parquet")
    message = rf"{second}.parquet' has no column 'label', but '.*{first}.parquet' has. Give both the same columns"
    with pytest.raises(ValueError, match=message):
        rows_of(tmp_path, y="label")


@pytest.mark.parametrize("backend", [SVI(num_steps=3), SmallVariance(num_restarts=1)], ids=repr)
def test_labels_may_be_true_and_false(backend, tmp_path) -> None:
    pq.write_table(table(label=Y > 0), tmp_path / "rows.parquet")
    found = backend.fit(InfiniteSVM(), rows_of(tmp_path / "rows.parquet", y="label"))
    assert torch.equal(found.trace.values, backend.fit(InfiniteSVM(), rows_of(X, Y)).trace.values)


def test_bad_files_are_refused_by_name(tmp_path) -> None:
    path = tmp_path / "rows.parquet"
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        rows_of(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="no Parquet or Arrow file"):
        rows_of(path)
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match="broken or cut short"):
        rows_of(path)
    pq.write_table(pa.table([pa.array([1.0])] * 2, names=["a", "a"]), path)
    with pytest.raises(ValueError, match="has two columns of one name"):
        rows_of(path)
    word = pa.array(["a"] * N)
    pq.write_table(table(word=word), path)
    with pytest.raises(ValueError, match="no numbers in column 'word', but string"):
        rows_of(path, y="label")
    with pytest.raises(ValueError, match=r"y: .* has no column 'target'; its columns are 'x0', 'x1'"):
        rows_of(path, y="target")
    with pytest.raises(ValueError, match=r"columns: .* has no column 'x9'"):
        rows_of(path, y="label", columns=["x0", "x9"])
    holes = pa.array([None if row == 93 else 1.0 for row in range(N)])
    pq.write_table(table(x1=holes), path, row_group_size=20)
    with pytest.raises(ValueError, match=r"rows.parquet' has no value \(null\) in row 93, column 'x1'"):
        SVI(num_steps=2, batch_size=SIZE).fit(InfiniteSVM(), rows_of(path, y="label"))


@pytest.mark.parametrize("backend", [SVI(num_steps=2), SVI(num_steps=2, batch_size=5), SmallVariance()], ids=repr)
def test_a_block_of_another_width_is_named(backend) -> None:
    blocks = [X[:20], X[20:40], np.hstack([X[40:50], X[40:50, :1]])]
    source = rows_of(lambda place: (blocks[place],), num_blocks=3)
    wide = X.shape[1] + 1
    with pytest.raises(ValueError, match=rf"block 2 of .*: X has shape \(10, {wide}\), and"):
        backend.fit(DPM(), source)


def test_bad_sources_are_refused() -> None:
    with pytest.raises(ValueError, match="y has 9 entries, but X has 170 rows"):
        rows_of(X, Y[:9])
    with pytest.raises(ValueError, match=r"X is <generator .*expected rows \[N, D\], a file"):
        rows_of(row for row in X)
    with pytest.raises(ValueError, match="num_blocks is None"):
        rows_of(BLOCKS.__getitem__)
    with pytest.raises(ValueError, match=r"columns is .*, but ndarray has no use for it"):
        rows_of(X, columns=["a"])
    with pytest.raises(ValueError, match=r"y is .*, but DataLoader has no use for it"):
        rows_of(DataLoader(BLOCKS, batch_size=None), Y)
    with pytest.raises(ValueError, match="X comes from the array, which SmallVariance cannot read"):
        SmallVariance().fit(IHMM(), rows_of(X))
    with pytest.raises(ValueError, match="come with the blocks"):
        SVI().fit(InfiniteSVM(), rows_of(X, Y), Y)
    broken = X.copy()
    broken[93, 1] = np.inf
    with pytest.raises(ValueError, match=r"block 2 of the array: .* row 13, column 1"):
        SVI(batch_size=SIZE).fit(DPM(), rows_of(broken))


def test_a_source_that_changes_its_mind_is_noticed() -> None:
    passes = []

    class Fewer(RowSource):
        name = "my rows"

        def blocks(self, size):
            passes.append(len(passes))
            yield X[: N - len(passes)], None

    with pytest.raises(ValueError, match="my rows gives 167 rows in a later pass, but gave 168 in the first"):
        SVI(num_steps=3).fit(DPM(truncation=2), Fewer())


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_rows() -> None:
    """A pass over ten times as many rows, in a process of its own, has the same peak within 20 MB."""
    code = """
import resource, sys, torch
from regbayes.inference import SVI, map_rows, rows_of
from regbayes.models import InfiniteSVM

def block(index):
    X = torch.randn(10_000, 10, generator=torch.Generator().manual_seed(index))
    return X, (X[:, 0] > 0).long()

source = rows_of(block, num_blocks=int(sys.argv[1]))
posterior = SVI(num_steps=int(sys.argv[1]), progress=False).fit(InfiniteSVM(truncation=5), source)
map_rows(posterior.assign, source, sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
    with tempfile.TemporaryDirectory() as folder:
        peaks = [
            float(subprocess.run([sys.executable, "-c", code, str(number), f"{folder}/{number}.npy"], **RUN).stdout)
            for number in (30, 300)
        ]
        assert np.load(f"{folder}/300.npy", mmap_mode="r").shape == (3_000_000,)
    assert peaks[1] < peaks[0] + 20
    assert peaks[1] < 1500


# -- answers for all rows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["arrays", "Parquet", "function"])
def test_answers_stream_to_memory_and_to_files(kind, folder, tmp_path) -> None:
    posterior = SVI(num_steps=5, batch_size=SIZE).fit(InfiniteSVM(truncation=4), rows_of(X, Y))
    source, expected = sources(folder)[kind], posterior.predict_proba(X)
    np.testing.assert_array_equal(map_rows(posterior.assign, source, batch_size=SIZE), posterior.assign(X))
    np.testing.assert_allclose(map_rows(posterior.predict_proba, source), expected)
    map_rows(posterior.predict_proba, source, tmp_path / "p.npy", batch_size=SIZE)
    found = np.load(tmp_path / "p.npy", mmap_mode="r")
    np.testing.assert_allclose(found, expected)
    for answer in (posterior.predict, posterior.predict_proba):
        map_rows(answer, source, tmp_path / "p.parquet", batch_size=SIZE)
        found = pq.read_table(tmp_path / "p.parquet").to_pandas()
        np.testing.assert_allclose(found.to_numpy().squeeze(), answer(X))
    assert found.columns.tolist() == ["predict_proba0", "predict_proba1"]


def test_prediction_from_a_source_names_map_rows() -> None:
    posterior = SmallVariance(num_components=2, num_restarts=1).fit(InfiniteSVM(), X, Y)
    for call in (posterior.predict, posterior.assign, Classifier(inference=SmallVariance(2)).fit(X, Y).predict):
        with pytest.raises((ValueError, TypeError), match="map_rows"):
            call(rows_of(X))


def test_what_are_no_rows_is_told_in_words_of_our_own() -> None:
    ragged = [[1.0, 2.0], [3.0]]
    told = "cannot be read as an array.*: its entries differ in length, but need as many numbers each"
    with pytest.raises(ValueError, match=f"X {told}"):
        map_rows(len, ragged)
    with pytest.raises(ValueError, match=f"y {told}"):
        rows_of(X[:2], ragged)
    with pytest.raises(ValueError, match=f"X {told}"):
        SVI().fit(InfiniteSVM(), ragged, [0, 1])
    with pytest.raises(ValueError, match=r"^X is None; expected rows"):
        map_rows(len, None)
    with pytest.raises(ValueError, match=r"^function is None; expected a function of a block of rows"):
        map_rows(None, X)


@pytest.mark.parametrize("what", ["a file", "a folder", "a memmap", "a link"])
def test_no_file_is_written_where_rows_are_read(what, tmp_path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    file = folder / ("X.npy" if what == "a memmap" else "X.parquet")
    if what == "a memmap":
        np.save(file, X)
        source = rows_of(np.load(file, mmap_mode="r"))
    else:
        pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1]}), file)
        source = rows_of(folder if what == "a folder" else file)
    to = folder / "more.parquet" if what == "a folder" else file
    if what == "a link":
        to = tmp_path / "link.parquet"
        to.symlink_to(file)
    before = file.read_bytes()
    with pytest.raises(ValueError, match=r"^to is '.*', where .* is read; writing would lose rows\. Name another"):
        map_rows(len, source, to)
    with pytest.raises(ValueError, match=r"^checkpoint is '.*', where .* is read"):
        SVI(num_steps=2, batch_size=40).fit(DPM(), source, checkpoint=to)
    assert file.read_bytes() == before
    assert len(list(folder.iterdir())) == 1
    map_rows(lambda X: X[:, 0], source, tmp_path / "sums.npy")


def test_a_full_disk_is_told_with_the_name_of_the_file(monkeypatch, tmp_path) -> None:
    def write(*_):
        raise OSError("81920 requested and 31216 written")

    monkeypatch.setitem(mapped._WRITERS, ".npy", write)
    with pytest.raises(OSError, match=r"sums\.npy' could not be written: 81920 requested.*\. It is as it was\."):
        map_rows(lambda X: X[:, 0], X, tmp_path / "sums.npy")


def test_answers_come_whole_or_not_at_all(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"to is .*labels.csv'; expected a name that ends in .npy or .parquet"):
        map_rows(len, X, tmp_path / "labels.csv")
    with pytest.raises(ValueError, match=r"answer gives \(3,\) for the 170 rows of block 0"):
        map_rows(lambda X: X[:3, 0], X, tmp_path / "sums.npy")
    widths = iter([1, 2])
    with pytest.raises(ValueError, match=r"answer gives \(80, 2\) .* block 1; .*, \[1\] as in the blocks"):
        map_rows(lambda X: np.ones((len(X), next(widths))), X, tmp_path / "sums.npy", batch_size=90)
    for to in (None, tmp_path / "sums.npy"):
        with pytest.raises(ValueError, match="the array has no rows"):
            map_rows(len, X[:0], to)
    assert not list(tmp_path.iterdir())
    map_rows(lambda X: torch.ones(len(X), 10**3), X, tmp_path / "ones.npy", batch_size=7)
    assert np.load(tmp_path / "ones.npy").shape == (N, 10**3)
