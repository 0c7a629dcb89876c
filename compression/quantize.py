"""Uniform quantisation under an absolute bound: code q stands for the value float32(q) * step.

A value is *held* by its code if the decoded value lies within the bound, judged without slack; any other value (also
NaN, infinities, -0.0, and what the codes cannot reach) is a *patch*: its code is 0, and its bits are sent as they are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray
from numpy.typing import NDArray

from compression.bits import pointer
from compression.kernel import inner, kernel

SMALLEST = 2.0**-100
"""Below it a bound means bit-exact: near the subnormal numbers a bound would depend on the flush-to-zero mode."""
LARGEST = 2.0**120
"""A larger bound is taken as this one, which holds all that a larger one holds but for values out of its reach."""

_MINUS_ZERO = np.uint32(0x80000000)
_RUN = np.uintp(1024)


def wire_bound(bound: float) -> np.float32:
    """The largest float32 at most the bound: what a payload carries, and what both sides derive the step from."""
    return np.float32(wire_bounds([bound], 1.0)[0])


def wire_bounds(bounds: list[float], share: float) -> list[float]:
    """`wire_bound` of several bounds, and that share of each, which is a power of two."""
    each = np.minimum(bounds, LARGEST)
    nearest = each.astype(np.float32)
    nearest = np.where(nearest <= each, nearest, np.nextafter(nearest, np.float32(0)))
    return [share * bound for bound in nearest.tolist()]


def grid(bound: np.float32, stochastic: bool = False) -> tuple[np.float32, np.float32, np.float32]:
    """Step, its inverse, and the largest float32 error that is surely within a bound of `wire_bound`.

    The step is a hair less than twice the bound, so that rounding in float32 does not push values near the middle of
    two codes over it. An error computed in float32 and at most `limit`, a float below the bound, is below the bound in
    exact arithmetic too, since rounding to float32 is monotone.
    """
    # With stochastic rounding the error may be a whole step.
    step, inverse, _ = grids([float(bound) / 2 if stochastic else float(bound)])[0]
    return step, inverse, grids([float(bound)])[0, 2]


def grids(bounds: list[float]) -> NDArray[np.float32]:
    """`grid` of several bounds, each a float32: float32 [bounds, 3]. A bound of 0 has a step of 1."""
    each = np.array(bounds)
    found = np.ones((each.size, 3), np.float32)
    some = each > 0
    found[some, 0] = 2 * each[some] * (1 - 2.0**-14)
    found[:, 1] /= found[:, 0]
    found[some, 2] = np.nextafter(each[some].astype(np.float32), np.float32(0))
    return found


def check_bound(bound: Any) -> float:
    """The bound as a float.

    Raises:
        ValueError: it is not a finite number >= 0.
    """
    try:
        number = math.nan if isinstance(bound, (str, bytes, bool)) else float(bound)
    except (TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"an error bound is a finite number >= 0, not {bound!r}")
    return number


@kernel
def dither(address, first, step, inverse, limit, seed, out):
    """Round float32 [n] to neighbouring codes at random, so that the expected value is x, and write the codes' values.

    A value that its code does not hold is left as it is. The random number of a value depends on the seed
    and its number in the table alone.

    Args:
        address: of float32 [n], which may be read-only: for Numba that would be another type.
        first: number of the first value in its table.
        seed: uint64.
        out: float32 [n].
    """
    x = carray(pointer(address), out.size, np.float32)
    bits = x.view(np.uint32)
    for i in range(np.uintp(x.size)):
        # splitmix64 (G. L. Steele and others, "Fast splittable pseudorandom number generators")
        z = seed + (np.uint64(first) + np.uint64(i) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        uniform = np.float32((z ^ (z >> np.uint64(31))) >> np.uint64(40)) * np.float32(2.0**-24)
        scaled = np.float32(x[i] * inverse)
        whole = np.floor(scaled)
        rounded = np.float32(whole + np.float32(uniform < np.float32(scaled - whole))) * step
        out[i] = rounded if abs(x[i] - rounded) <= limit and bits[i] != _MINUS_ZERO else x[i]


@kernel
def value_range(address, n):
    """Smallest and largest finite value of float32 [n], as int32 bit patterns; (0, 0) if there is none."""
    bits = carray(pointer(address), n, np.int32)
    low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for i in range(np.uintp(bits.size)):
        pattern = bits[i]
        finite = (pattern & np.int32(0x7F800000)) != np.int32(0x7F800000)
        # Integers in the order of the floats, which LLVM compares many at a time.
        key = pattern ^ ((pattern >> np.int32(31)) & np.int32(0x7FFFFFFF))
        low = min(low, key if finite else low)
        high = max(high, key if finite else high)
    if low > high:
        return np.int32(0), np.int32(0)
    return low ^ ((low >> np.int32(31)) & np.int32(0x7FFFFFFF)), high ^ ((high >> np.int32(31)) & np.int32(0x7FFFFFFF))


@inner
def quantize(x, bits, columns, first, last, stride, inverse, step, limit, top, codes, patch_at, patch_bits):
    """Quantise the rows `first` to `last`; returns the number of patches, of which those that fit are listed.

    Args:
        x: float32 [rows * columns].
        bits: uint32 of the same size: what a patch sends.
        stride: elements of a row of codes; those behind `columns` become 0.
        top: largest code.
        codes: int8 or int16 [rows * stride], out.
        patch_at, patch_bits: uint32, out: index in x, and bits.
    """
    patches = np.int64(0)
    if stride == columns:
        return _quantize_run(
            x,
            bits,
            first * columns,
            last * columns,
            first * stride,
            inverse,
            step,
            limit,
            top,
            codes,
            patch_at,
            patch_bits,
            patches,
        )
    for row in range(first, last):
        patches = _quantize_run(
            x,
            bits,
            row * columns,
            (row + 1) * columns,
            row * stride,
            inverse,
            step,
            limit,
            top,
            codes,
            patch_at,
            patch_bits,
            patches,
        )
        codes[row * stride + columns : (row + 1) * stride] = 0
    return patches


@inner
def _quantize_run(x, bits, start, stop, target, inverse, step, limit, top, codes, patch_at, patch_bits, patches):
    begin, end, shift = np.uintp(start), np.uintp(stop), np.uintp(target) - np.uintp(start)
    pattern = x.view(np.uint32)  # of 16-bit floats, `bits` has other patterns
    while begin < end:
        block = min(begin + _RUN, end)
        missed = np.uint32(0)
        for i in range(begin, block):
            rounded = np.rint(x[i] * inverse)
            held = (abs(rounded) <= top) & (abs(x[i] - rounded * step) <= limit) & (pattern[i] != _MINUS_ZERO)
            codes[i + shift] = np.int32(rounded) if held else np.int32(0)
            missed = np.uint32(missed | np.uint32(not held))
        if missed:
            for i in range(begin, block):
                rounded = np.rint(x[i] * inverse)
                if not ((abs(rounded) <= top) & (abs(x[i] - rounded * step) <= limit) & (pattern[i] != _MINUS_ZERO)):
                    if patches < patch_at.size:
                        patch_at[patches] = i
                        patch_bits[patches] = bits[i]
                    patches += 1
        begin = block
    return patches
