"""Compiled expectations under Dirichlet laws of many words; see `blocks`.

The arithmetic has no branches, so that it is vectorized over words.
"""

import math

from ....models.compiled.scalars import log
from ...compiled.decorators import entry

# coefficients of prod_j (1 - j u) over j = 1..9, and of its derivative, by rising powers of u
_Q = (1.0, -45.0, 870.0, -9450.0, 63273.0, -269325.0, 723680.0, -1172700.0, 1026576.0, -362880.0)
_D = (-45.0, 1740.0, -28350.0, 253092.0, -1346625.0, 4342080.0, -8208900.0, 8212608.0, -3265920.0)
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


@entry
def expect_logs(table, prior, totals, expected):
    """Set expected [V, T] to digamma(chi) - totals; return the sum of (chi - prior) expected - log Gamma(chi).

    chi > 0 is the table [V, T]; prior [V]; totals [T]. A recurrence leads to y = chi + 10, where Stirling's series is
    used: with u = 1 / y, log Gamma(chi) = log Gamma(y) - 10 log y - log(chi u prod_{j < 10} (1 - j u)).
    """
    total = 0.0
    for v in range(len(table)):
        for k in range(len(totals)):
            chi = float(table[v, k])
            y = chi + 10.0
            u = 1.0 / y
            s = u * u
            q = _Q[5] + u * (_Q[6] + u * (_Q[7] + u * (_Q[8] + u * _Q[9])))
            q = _Q[0] + u * (_Q[1] + u * (_Q[2] + u * (_Q[3] + u * (_Q[4] + u * q))))
            d = _D[4] + u * (_D[5] + u * (_D[6] + u * (_D[7] + u * _D[8])))
            d = _D[0] + u * (_D[1] + u * (_D[2] + u * (_D[3] + u * d)))
            log_y = log(y)
            series = (1 / 12 - (1 / 120 - (1 / 252 - (1 / 240 - s / 132) * s) * s) * s) * s
            mean = log_y - 0.5 * u - series - u * (9.0 - u * d / q) - 1.0 / chi - totals[k]
            series = u * (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - s / 1188) * s) * s) * s)
            log_gamma = (y - 10.5) * log_y - y + _HALF_LOG_TWO_PI + series - log(chi * u * q)
            total += (chi - prior[v]) * mean - log_gamma
            expected[v, k] = mean
    return total


@entry
def log_gammas_of_sums(table, first, second, less, out):
    """Set out [M] to sum_v log Gamma(table[first, v] + table[second, v] - less[v]) for a table [T, V]."""
    for m in range(len(out)):
        one, other, total = table[first[m]], table[second[m]], 0.0
        for v in range(len(less)):
            chi = float(one[v]) + float(other[v]) - less[v]
            y = chi + 10.0
            u = 1.0 / y
            s = u * u
            q = _Q[5] + u * (_Q[6] + u * (_Q[7] + u * (_Q[8] + u * _Q[9])))
            q = _Q[0] + u * (_Q[1] + u * (_Q[2] + u * (_Q[3] + u * (_Q[4] + u * q))))
            series = u * (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - s / 1188) * s) * s) * s)
            total += (y - 10.5) * log(y) - y + _HALF_LOG_TWO_PI + series - log(chi * u * q)
        out[m] = total
