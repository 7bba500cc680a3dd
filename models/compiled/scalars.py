"""Functions for compiled code of a part: exp and log as vector instructions, products of rows, and memory prefetches.

A loop over math.exp calls a function for each number; a loop over these compiles to vector instructions. They are
accurate to a few units in the last place, and do not handle inf, nan or subnormal numbers. Importing this module
imports numba.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

# inf keeps its meaning; a division does not check for zero
OPTIONS: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "error_model": "numpy"}

# without what a call from Python needs, which takes numba long to compile
UNWRAPPED: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **OPTIONS}

part = njit(**OPTIONS)
unwrapped = njit(**UNWRAPPED)  # a part that Python must not call
inner = njit(inline="always", **OPTIONS)  # compiling it as a separate function would take longer

_SHIFT, _BIAS = np.int64(52), np.int32(1023)
_LOG_2 = math.log(2)
_ROOT_HALF = np.float64(math.sqrt(0.5)).view(np.uint64)
_ABOVE = np.uint64((1023 << 52) - int(_ROOT_HALF))
_MANTISSA = np.uint64((1 << 52) - 1)


@part
def exp(x):
    """e^x for -700 < x < 700: 2^n e^r with |r| < log(2) / 2."""
    n = np.floor(x * (1 / _LOG_2) + 0.5)
    r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10
    p = r * (1 / 6227020800) + 1 / 479001600
    p = p * r + 1 / 39916800
    p = p * r + 1 / 3628800
    p = p * r + 1 / 362880
    p = p * r + 1 / 40320
    p = p * r + 1 / 5040
    p = p * r + 1 / 720
    p = p * r + 1 / 120
    p = p * r + 1 / 24
    p = p * r + 1 / 6
    p = p * r + 1 / 2
    p = (p * r + 1.0) * r + 1.0
    return p * np.int64(np.int64(np.int32(n) + _BIAS) << _SHIFT).view(np.float64)


@part
def log(x):
    """log x of a positive number: x = 2^n m with m in sqrt(1/2) .. sqrt(2), log m = 2 atanh((m - 1) / (m + 1))."""
    bits = np.float64(x).view(np.uint64) + _ABOVE
    m = np.uint64((bits & _MANTISSA) + _ROOT_HALF).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    p = square * (2 / 21) + 2 / 19
    p = p * square + 2 / 17
    p = p * square + 2 / 15
    p = p * square + 2 / 13
    p = p * square + 2 / 11
    p = p * square + 2 / 9
    p = p * square + 2 / 7
    p = p * square + 2 / 5
    p = p * square + 2 / 3
    p = p * square + 2.0
    return p * s + np.float64(np.int32(bits >> np.uint64(_SHIFT)) - np.int32(_BIAS)) * _LOG_2


@inner
def take_logs(product, out):
    """Add the logarithms of the products to `out`, and reset the products to 1."""
    for k in range(len(out)):
        out[k] += log(min(max(product[k], 1e-300), 1e300))
        product[k] = 1.0


@inner
def log_rising(a, count):
    """log Gamma(a + count) / Gamma(a), as a product, by Stirling's series where it is exact, or by lgamma."""
    if count <= 16:
        product = 1.0
        for i in range(count):
            product *= a + i
        return math.log(product)
    if a > 16.0:
        b = a + count
        return (a - 0.5) * math.log1p(count / a) + count * (math.log(b) - 1.0) + _stirling(b) - _stirling(a)
    return math.lgamma(a + count) - math.lgamma(a)


@inner
def _stirling(a):
    square = a * a
    return (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * square)) / square) / square) / a


@intrinsic
def prefetch(typing_context, array, index):
    """Prefetch element `index` of a contiguous array with any number of axes into the cache."""

    def generate(context, builder, signature, arguments):
        array_type, index_type = signature.args
        data = context.make_array(array_type)(context, builder, arguments[0]).data
        place = builder.gep(data, [context.cast(builder, arguments[1], index_type, types.intp)])
        pointer, integer = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, integer, integer, integer])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(
            function, [builder.bitcast(place, pointer), integer(0), integer(3), integer(1)]
        )  # for reading, with high locality
        return context.get_dummy_value()

    return types.void(array, index), generate


@intrinsic
def multiply_row(typing_context, row, matrix, out):
    """Set out [Q] to row [Q] @ the first Q rows of matrix [.., Q]; the arrays are contiguous, Q is a multiple of 8.

    The sums of eight columns stay in registers. numba's loops would write them to memory after a few rows.
    """

    def generate(context, builder, signature, arguments):
        size, whole = context.get_value_type(types.intp), ir.IntType(32)
        eight = ir.VectorType(ir.DoubleType(), 8)
        zero, empty = ir.Constant(eight, [0.0] * 8), ir.Constant(eight, ir.Undefined)
        places = ir.Constant(ir.VectorType(whole, 8), [0] * 8)
        arrays = zip(signature.args, arguments, strict=True)
        row, matrix, out = (context.make_array(kind)(context, builder, array) for kind, array in arrays)
        width = builder.extract_value(out.shape, 0)

        def eight_at(data, index):
            return builder.bitcast(builder.gep(data, [index]), eight.as_pointer())

        def steps(step):
            return cgutils.for_range_slice(builder, size(0), width, size(step), size)

        totals = [cgutils.alloca_once(builder, eight) for _ in range(4)]  # four sums, which do not wait for each other
        with steps(8) as (column, _):
            for total in totals:
                builder.store(zero, total)
            with steps(4) as (first, _):
                for offset, total in enumerate(totals):
                    index = builder.add(first, size(offset))
                    value = builder.load(builder.gep(row.data, [index]))
                    factor = builder.shuffle_vector(builder.insert_element(empty, value, whole(0)), empty, places)
                    place = eight_at(matrix.data, builder.add(builder.mul(index, width), column))
                    product = builder.fmul(factor, builder.load(place, align=8), flags=("contract",))
                    builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
            a, b, c, d = map(builder.load, totals)
            total = builder.fadd(builder.fadd(a, b), builder.fadd(c, d))
            builder.store(total, eight_at(out.data, column), align=8)
        return context.get_dummy_value()

    contiguous = all(array.layout == "C" for array in (row, matrix, out))
    return (types.void(row, matrix, out), generate) if contiguous else None
