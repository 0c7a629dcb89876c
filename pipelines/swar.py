"""Eight bytes at a time: the inner steps of the text parser (SIMD within a register)."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pipelines.kernel import kernel


@intrinsic
def load8(typingctx: Any, buf: Any, at: Any) -> Any:
    """The 8 bytes of a uint8 array from index `at` on as a uint64, the first byte lowest. No bounds check."""
    del typingctx, at

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        word = builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(64).as_pointer())
        return builder.load(word, align=1)

    return types.uint64(buf, types.intp), generate


@intrinsic
def trailing_zeros(typingctx: Any, word: Any) -> Any:
    """Trailing zero bits of a uint64; 64 for 0."""
    del typingctx, word

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.cttz(args[0], cgutils.false_bit)

    return types.int64(types.uint64), generate


_LOW = np.uint64(0x0101010101010101)
_HIGH = np.uint64(0x8080808080808080)
_NEWLINES = np.uint64(0x0A0A0A0A0A0A0A0A)


@kernel
def pattern(byte: int) -> np.uint64:
    """Eight times the same byte."""
    return np.uint64(byte) * _LOW


@kernel
def end_in_word(word: np.uint64, separators: np.uint64) -> int:
    """Index of the first byte of `word` that is a newline or the separator (as `pattern`); 8 if there is none."""
    a = word ^ separators
    b = word ^ _NEWLINES
    # Bits above the first hit may be wrong (borrows), the first hit is right.
    hits = (((a - _LOW) & ~a) | ((b - _LOW) & ~b)) & _HIGH
    return trailing_zeros(hits) >> 3


def _hex_pairs() -> np.ndarray:
    table = np.full(1 << 16, NO_HEX, np.uint32)
    digits = [*"0123456789abcdefABCDEF"]
    for first in digits:
        for second in digits:
            table[ord(first) | ord(second) << 8] = int(first + second, 16)
    return table


NO_HEX = np.uint64(0x100)
HEX_PAIRS = _hex_pairs()
"""uint32 [65536]: value of two hex digits by their bytes (the first one lowest), `NO_HEX` for other bytes."""


@kernel
def digits8(word: np.uint64, size: int) -> tuple[bool, np.uint64]:
    """(the first `size` bytes, 0 to 8, are decimal digits, their value)."""
    high = np.uint64(0xF0F0F0F0F0F0F0F0)
    zeros = np.uint64(0x3030303030303030)
    # In two halves: a shift by 64 bits is not defined.
    up = np.uint64(32 - 4 * size)
    down = np.uint64(4 * size)
    x = ((word << up) << up) | ((zeros >> down) >> down)
    good = (x & high) == zeros and ((x + np.uint64(0x0606060606060606)) & high) == zeros
    x -= zeros
    x = x * np.uint64(10) + (x >> np.uint64(8))
    pair = np.uint64(0x000000FF000000FF)
    upper = (x & pair) * np.uint64(0x000F424000000064)
    lower = ((x >> np.uint64(16)) & pair) * np.uint64(0x0000271000000001)
    return good, (upper + lower) >> np.uint64(32)
