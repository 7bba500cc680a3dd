"""The compiled update of one column of bits of a projection that tasks share."""

import math

from ...compiled.decorators import lean_entry


@lean_entry
def update_column(base, matrix, column):
    """Set each probability of column [D] in turn, log odds base_d - sum_{e != d} matrix_de column_e; matrix [D, D]."""
    for d in range(len(column)):
        odds = base[d] + matrix[d, d] * column[d]
        for e in range(len(column)):
            odds -= matrix[d, e] * column[e]
        column[d] = 1.0 / (1.0 + math.exp(-odds))
