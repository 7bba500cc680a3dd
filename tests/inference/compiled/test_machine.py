"""exp, log and products of the compiled code, against numpy's."""

import numpy as np
import pytest
from numba import TypingError

from regbayes.inference.compiled.decorators import part
from regbayes.models.compiled import scalars


@part
def fill(x, exps, logs):
    for k in range(len(x)):
        exps[k], logs[k] = scalars.exp(x[k]), scalars.log(abs(x[k]))


@part
def multiply(row, matrix, out):
    scalars.multiply_row(row, matrix, out)


def test_exp_and_log_are_right_to_a_few_units_of_the_last_place():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-700, 700, 2000), rng.normal(size=2000), 1 + 1e-9 * rng.normal(size=100)])
    exps, logs = np.empty((2, len(x)))
    fill(x, exps, logs)
    units = 4 + np.abs(x)  # the argument's own rounding grows with it
    assert (np.abs(exps / np.exp(x) - 1) < units * 1e-16).all()
    np.testing.assert_allclose(logs, np.log(np.abs(x)), rtol=5e-16, atol=1e-17)


def test_log_of_the_largest_and_smallest_products():
    x = np.array([1e-300, 1e300, 1.0, np.sqrt(0.5), np.nextafter(np.sqrt(0.5), 0)])
    exps, logs = np.empty((2, len(x)))
    fill(x, exps, logs)
    np.testing.assert_allclose(logs, np.log(x), rtol=5e-16, atol=0)


@pytest.mark.parametrize("size", [8, 24])
def test_a_row_times_a_matrix_reads_as_many_rows_as_there_are_columns(size):
    rng = np.random.default_rng(0)
    row, matrix, out = rng.normal(size=size), rng.normal(size=(size + 1, size)), np.full(size + 8, 7.0)
    multiply(row, matrix, out[:size])
    np.testing.assert_allclose(out[:size], row @ matrix[:size], rtol=0, atol=1e-14)
    assert (out[size:] == 7.0).all()


def test_a_row_times_a_matrix_whose_columns_are_contiguous_is_refused():
    with pytest.raises(TypingError):
        multiply(np.zeros(8), np.zeros((8, 8), order="F"), np.zeros(8))
