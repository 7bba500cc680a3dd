"""What Dirichlet laws of many words expect, compiled; see `label_blocks`.

All is arithmetic without a branch, so that several words go at once: logarithms too, which a call of the library's
would not allow.
"""

import math

from numba import types
from numba.extending import intrinsic

from ..compiled import entry, inner

# prod_j (1 - j u) over j = 1..9, and its derivative, by rising powers of u
_Q = (1.0, -45.0, 870.0, -9450.0, 63273.0, -269325.0, 723680.0, -1172700.0, 1026576.0, -362880.0)
_D = (-45.0, 1740.0, -28350.0, 253092.0, -1346625.0, 4342080.0, -8208900.0, 8212608.0, -3265920.0)
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_HALF_ROOT = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)


@entry
def expect_logs(table, prior, totals, expected):
    """Fill expected [V, T] with digamma(chi) - totals; sum (chi - prior) expected - log Gamma(chi).

    chi > 0 is the table [V, T]; prior [V]; totals [T]. The recurrence to y = chi + 10 and Stirling's series there: with
    u = 1 / y, log Gamma(chi) = log Gamma(y) - 10 log y - log(chi u prod_{j < 10} (1 - j u)).
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
            log_y = _log(y)
            series = (1 / 12 - (1 / 120 - (1 / 252 - (1 / 240 - s / 132) * s) * s) * s) * s
            mean = log_y - 0.5 * u - series - u * (9.0 - u * d / q) - 1.0 / chi - totals[k]
            series = u * (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - s / 1188) * s) * s) * s)
            log_gamma = (y - 10.5) * log_y - y + _HALF_LOG_TWO_PI + series - _log(chi * u * q)
            total += (chi - prior[v]) * mean - log_gamma
            expected[v, k] = mean
    return total


@inner
def _log(x):
    """For normal x > 0: x = 2^e m with m in [sqrt(1/2), sqrt(2)), and the series of log m of FreeBSD's libm."""
    bits = _bits_of(x)
    e = (bits - _HALF_ROOT) >> 52
    f = _of_bits(bits - (e << 52)) - 1.0
    s = f / (2.0 + f)
    z = s * s
    series = 0.2222219843214978396 + z * (
        0.1818357216161805012 + z * (0.1531383769920937332 + z * 0.1479819860511658591)
    )
    series = 0.6666666666666735130 + z * (0.3999999999940941908 + z * (0.2857142874366239149 + z * series))
    half = 0.5 * f * f
    return e * 0.693147180559945309417 - (half - s * (half + z * series) - f)


@intrinsic
def _bits_of(context, x):
    return types.int64(types.float64), _same_bits


@intrinsic
def _of_bits(context, bits):
    return types.float64(types.int64), _same_bits


def _same_bits(context, builder, signature, given):
    return builder.bitcast(given[0], context.get_value_type(signature.return_type))
