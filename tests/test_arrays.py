"""What is accepted at the door, and what the refusals say."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from regbayes.models.arrays import as_features, as_labels, as_targets, like

X = torch.zeros((4, 2), dtype=torch.float64)


@given(arrays(np.float64, (3, 2), elements=st.floats(-1e300, 1e300)))
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
        (np.zeros((2, 3, 1)), "shape"),
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
    with pytest.raises(ValueError, match="X is on meta"):
        as_features(torch.zeros((3, 2), device="meta"), like=X)
    with pytest.raises(ValueError, match="y is on meta"):
        as_labels(torch.zeros(4, device="meta"), X, None)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros((4, 1), int), r"y\.ravel"),
        (np.zeros(3, int), r"expected \[4\]"),
        (np.zeros(4, int), "only one class"),
        (np.array([0, 1, 0.5, 1]), "Unknown label type"),
        (np.array([0, 1, np.nan, 1]), "NaN or inf"),
        (["a", "b", "a", "b"], "Use an estimator for text labels"),
    ],
)
def test_wrong_labels_are_refused(y, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_labels(y, X, None)


def test_labels_keep_their_values_and_unknown_ones_are_named() -> None:
    index, classes = as_labels([7, -1, 7, 3], X, None)
    assert index.tolist() == [2, 0, 2, 1]
    assert classes.tolist() == [-1, 3, 7]
    with pytest.raises(ValueError, match=r"labels \[4, 9\] that were not seen.*known: \[-1, 3, 7\]"):
        as_labels([7, 9, 4, 3], X, classes)


def test_targets_follow_the_inputs_dtype() -> None:
    assert as_targets(np.arange(4), X.float()).dtype == torch.float32
    with pytest.raises(ValueError, match="NaN or inf"):
        as_targets([0.0, 1.0, np.inf, 2.0], X)


def test_results_come_in_the_kind_that_was_given() -> None:
    assert isinstance(like(X, X), torch.Tensor)
    assert isinstance(like(X, np.zeros(2)), np.ndarray)


def test_arrays_that_may_not_be_written_are_taken_without_a_warning() -> None:
    X, y = np.arange(6.0).reshape(3, 2), np.arange(3)
    X.flags.writeable = y.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows, targets = as_features(X), as_targets(y, torch.zeros(3, 2))
    torch.testing.assert_close(rows, torch.arange(6.0, dtype=torch.float64).reshape(3, 2))
    torch.testing.assert_close(targets, torch.arange(3.0))
