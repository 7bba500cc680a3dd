"""What is accepted at the door, and what the refusals say."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from regbayes.models.arrays import as_features, as_sequences, as_vector, like, read_labels, read_targets
from regbayes.models.sparse import SparseRows

X = torch.zeros((4, 2), dtype=torch.float64)


def labels(y, classes=None):
    return read_labels(as_vector(y, X), classes)


@given(arrays(np.float64, (3, 2), elements=st.floats(-1e77, 1e77)))
def test_finite_numbers_pass_unchanged(values: np.ndarray) -> None:
    assert (as_features(values).numpy() == values).all()


@given(st.integers(0, 2), st.integers(0, 1), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_the_first_bad_value_is_named(row: int, column: int, value: float) -> None:
    values = np.ones((3, 2))
    values[row, column] = value
    with pytest.raises(ValueError, match=f"NaN or inf.*row {row}, column {column}"):
        as_features(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(3), "Reshape your data"),
        (np.zeros((2, 3, 1)), r"X\.reshape\(len\(X\), -1\) for a row of each array"),
        (np.zeros((3, 0)), "0 feature"),
        (np.zeros((1, 3)), "at least 2"),
        ([["a", "b"]], "cannot be read as an array of numbers"),
        (np.zeros((3, 2), complex), "Complex data not supported"),
    ],
)
def test_wrong_features_are_refused(values, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_features(values, min_rows=2)


def test_integers_become_floats_and_dtype_is_kept() -> None:
    assert as_features(np.zeros((2, 2), int)).dtype == torch.float64
    assert as_features(torch.zeros((2, 2))).dtype == torch.float32


def test_a_fitted_model_takes_numpy_and_refuses_other_tensors() -> None:
    fitted = torch.zeros((2, 2), dtype=torch.float32)
    assert as_features(np.zeros((3, 2)), like=fitted).dtype == torch.float32
    with pytest.raises(ValueError, match=r"X\.to\(torch\.float32\)"):
        as_features(torch.zeros((3, 2), dtype=torch.float64), like=fitted)
    with pytest.raises(ValueError, match=r"X has 3 features.*fitted with 2"):
        as_features(np.zeros((3, 3)), num_features=2)


def test_mixed_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="X is on the meta device"):
        as_features(torch.zeros((3, 2), device="meta"), like=X)
    with pytest.raises(ValueError, match="y is on the meta device"):
        labels(torch.zeros(4, device="meta"))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros((4, 1), int), r"y\.ravel"),
        (np.zeros(3, int), r"expected \[4\]"),
        (np.zeros((4, 2), int), r"BNMC takes sets \[N, L\]"),
        (np.zeros(4, int), "only one class"),
        (np.array([0, 1, 0.5, 1]), "Unknown label type"),
        (np.array([0, 1, np.inf, 1]), "contains inf"),
        (np.array([1, 1, np.nan, 1]), r"only one class \(\[1\]\)"),
        (np.array([0, 0, -1, 0]), r"only one class \(\[0\]\)"),
        (np.full(4, np.nan), "y has no label: all of them are missing"),
        (["a", "b", "a", "b"], "Use an estimator for text labels"),
    ],
)
def test_wrong_labels_are_refused(y, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        labels(y)


def test_labels_keep_their_values_and_unknown_ones_are_named() -> None:
    index, classes = labels([7, -3, 7, 3])
    assert index.tolist() == [2, 0, 2, 1]
    assert classes.tolist() == [-3, 3, 7]
    with pytest.raises(ValueError, match=r"labels \[4, 9\] that were not seen.*known: \[-3, 3, 7\]"):
        labels([7, 9, 4, 3], classes)


@pytest.mark.parametrize(
    ("y", "index", "classes"),
    [
        ([0, -1, 2, 0], [0, -1, 1, 0], [0, 2]),
        ([0.0, np.nan, 2.0, -1.0], [0, -1, 1, -1], [0, 2]),
        ([-1, 1, 1, -1], [0, 1, 1, 0], [-1, 1]),  # signs
        ([-1.0, 1.0, np.nan, -1.0], [0, 1, -1, 0], [-1, 1]),
        ([-1, 1, 1, 0], [-1, 1, 1, 0], [0, 1]),
        ([-2, -1, 0, -1], [0, 1, 2, 1], [-2, -1, 0]),  # a class beside another negative one
    ],
)
def test_missing_labels_have_index_minus_one(y, index: list[int], classes: list[int]) -> None:
    found = labels(np.array(y))
    assert found[0].tolist() == index
    assert found[1].tolist() == classes
    again = labels(torch.tensor(y), found[1])
    assert again[0].tolist() == index
    assert labels(np.full(4, np.nan), found[1])[0].tolist() == [-1] * 4


def test_targets_follow_the_inputs_dtype() -> None:
    assert read_targets(as_vector(np.arange(4), X.float()), X.float()).dtype == torch.float32
    with pytest.raises(ValueError, match="contains inf"):
        read_targets(as_vector([0.0, 1.0, np.inf, 2.0], X), X)


def test_a_missing_target_is_nan_and_some_must_be_known() -> None:
    assert read_targets(as_vector([0.0, np.nan, 1.0, 2.0], X), X).isnan().tolist() == [False, True, False, False]
    with pytest.raises(ValueError, match="no target that is not NaN"):
        read_targets(as_vector(np.full(4, np.nan), X), X)
    assert read_targets(as_vector(np.full(4, np.nan), X), X, min_known=0).isnan().all()


def test_results_come_in_the_kind_that_was_given() -> None:
    assert isinstance(like(X, X), torch.Tensor)
    assert isinstance(like(X, np.zeros(2)), np.ndarray)


def test_arrays_that_may_not_be_written_are_taken_without_a_warning() -> None:
    X, y = np.arange(6.0).reshape(3, 2), np.arange(3)
    X.flags.writeable = y.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows, targets = as_features(X), read_targets(as_vector(y, torch.zeros(3, 2)), torch.zeros(3, 2))
    torch.testing.assert_close(rows, torch.arange(6.0, dtype=torch.float64).reshape(3, 2))
    torch.testing.assert_close(targets, torch.arange(3.0))


# -- sparse rows ------------------------------------------------------------------------------------------------------

COUNTS = np.array([[0.0, 2.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 4.0], [0.0, 5.0, 6.0, 0.0]])


@pytest.fixture
def rows() -> SparseRows:
    return SparseRows.of(torch.from_numpy(COUNTS))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_sparse_matrices_of_all_kinds_stay_sparse() -> None:
    tensor = torch.from_numpy(COUNTS)
    twice = scipy.sparse.coo_array(  # duplicates and a zero that is stored
        ([1.0, 1.0, 1.0, 3.0, 4.0, 5.0, 6.0, 0.0], ([0, 0, 0, 2, 2, 3, 3, 1], [1, 1, 3, 0, 3, 1, 2, 2])), shape=(4, 4)
    )
    kinds = [scipy.sparse.csr_matrix(COUNTS), scipy.sparse.csc_array(COUNTS), scipy.sparse.lil_array(COUNTS), twice]
    for X in [*kinds, twice.tocsr(), tensor.to_sparse(), tensor.to_sparse_csr(), SparseRows.of(tensor)]:
        found = as_features(X)
        assert isinstance(found, SparseRows)
        assert torch.equal(found.to_dense(), tensor)
        assert len(found.values) == 6
    assert as_features(scipy.sparse.csr_array(COUNTS.astype(int))).dtype == torch.float64
    assert as_features(scipy.sparse.csr_array(COUNTS.astype(np.float32))).dtype == torch.float32
    assert as_features(scipy.sparse.csr_array(COUNTS), like=tensor.float()).dtype == torch.float32
    unsorted = scipy.sparse.csr_array((np.ones(3), [2, 0, 2], [0, 3]), shape=(1, 3))
    assert as_features(unsorted).to_dense().tolist() == [[1.0, 0.0, 2.0]]
    assert unsorted.nnz == 3  # the user's own is as it was


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_matrices_pass_the_same_door() -> None:
    wrong = COUNTS.copy()
    wrong[2, 3] = np.nan
    with pytest.raises(ValueError, match=r"NaN or inf.*row 2, column 3"):
        as_features(scipy.sparse.csr_array(wrong))
    with pytest.raises(ValueError, match=r"X has 4 features.*fitted with 3"):
        as_features(scipy.sparse.csr_array(COUNTS), num_features=3)
    with pytest.raises(ValueError, match="at least 5"):
        as_features(scipy.sparse.csr_array(COUNTS), min_rows=5)
    with pytest.raises(ValueError, match=r"X\.to\(torch\.float32\)"):
        as_features(torch.from_numpy(COUNTS).to_sparse_csr(), like=torch.zeros(1))
    with pytest.raises(ValueError, match=r"layout torch\.sparse_csc.*to_sparse_csr"):
        as_features(torch.from_numpy(COUNTS).to_sparse_csc())
    with pytest.raises(ValueError, match="models of sequences need dense rows"):
        as_sequences(scipy.sparse.csr_array(COUNTS))


@pytest.mark.parametrize(
    "apart",
    [[np.ones((3, 2)), X], [[[1, 2]] * 3, [[1, 2]] * 4], [X[:3], [[1, 2]] * 4]],
    ids=["arrays", "lists", "both"],
)
def test_sequences_come_stacked(apart) -> None:
    with pytest.raises(ValueError, match=r"X has 2 sequences one by one; .* with lengths=\[3, 4\]"):
        as_sequences(apart)
    with pytest.raises(ValueError, match=r"with lengths=\[4, 4\]"):
        as_sequences(np.ones((2, 4, 2)))
    for stacked in ([[1.0, 2.0], [3.0, 4.0]], [X[0], X[1]], X):
        assert as_sequences(stacked)[1] == [len(stacked)]


@pytest.mark.parametrize(
    "index", [slice(1, 3), slice(2, 2), slice(None, None, 2), [2, 0, 2], [True, False, True, False]]
)
def test_sparse_rows_are_taken_as_of_a_tensor(rows: SparseRows, index) -> None:
    index = index if isinstance(index, slice) else torch.tensor(index)
    taken, expected = rows[index], torch.from_numpy(COUNTS)[index]
    assert taken.shape == expected.shape
    assert torch.equal(taken.to_dense(), expected)
    taken.sum(1).zero_()  # a copy of what is kept
    assert torch.equal(taken.sum(1), expected.sum(1))


def test_sparse_products_and_sums(rows: SparseRows) -> None:
    X, left = torch.from_numpy(COUNTS), torch.arange(12.0, dtype=torch.float64).view(4, 3)
    for width in (2, 9):  # products with wide matrices are those that a GPU takes
        right = torch.arange(4.0 * width, dtype=torch.float64).view(4, width)
        torch.testing.assert_close(rows @ right, X @ right)
    torch.testing.assert_close(rows.transposed_product(left), X.T @ left)
    for dim in (0, 1, -1):
        assert torch.equal(rows.sum(dim), X.sum(dim))
    assert torch.equal(rows.entry_sums(rows.values.unsqueeze(1)).squeeze(1), X.sum(1))
    torch.testing.assert_close(rows.scale_rows(left[:, 1]).to_dense(), X * left[:, 1:2])
    assert rows.double() is rows
    assert rows.to(torch.zeros(1)).to_dense().dtype == torch.float32
    assert rows.new_zeros(3).dtype == rows.new_ones(2).dtype == torch.float64
