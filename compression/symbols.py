"""Residuals of a column as symbols of a table: one by one or in pairs, what no symbol holds as an escape.

The pairs of a column of n residuals are its first half and its second half, residual i with residual m + i, where
m = ceil(n / 2); a residual beyond the n-th is 0.
"""

from __future__ import annotations

import numpy as np

from compression.kernel import inner
from compression.tables import ESCAPE


@inner
def symbol_count(n, paired):
    return (n + 1) // 2 if paired else n


@inner
def to_symbols(left, n, shift, paired, known, symbols, escapes, count):
    """Write the symbols of a column; returns the number of escaped residuals so far, of which those that fit are kept.

    Args:
        left: uint8 or uint16 [> n], residuals, of which all bits but the lowest `shift` are coded here; the one behind
            the last is overwritten.
        known: uint8 [256], see `tables.Family`.
        symbols: uint8 [n], out.
        escapes: uint16, out; both residuals of a pair.
    """
    low = np.uint32(shift)
    m = np.uintp(symbol_count(n, paired))
    some = np.uint8(0)
    if paired:
        left[n] = 0
        for i in range(m):
            one, two = np.uint32(left[i]) >> low, np.uint32(left[m + i]) >> low
            symbols[i] = np.uint8(one | two << np.uint32(4)) if (one | two) < 16 else np.uint8(ESCAPE)
    else:
        for i in range(m):
            symbols[i] = np.uint8(min(np.uint32(left[i]) >> low, np.uint32(ESCAPE)))
    for i in range(m):
        symbol = known[symbols[i]]
        symbols[i] = symbol
        some |= np.uint8(symbol == ESCAPE)
    if some:
        for i in range(m):
            if symbols[i] == ESCAPE:
                if count + (2 if paired else 1) <= escapes.size:
                    escapes[count] = left[i]
                    if paired:
                        escapes[count + 1] = left[m + i]
                count += 2 if paired else 1
    return count


@inner
def from_symbols(symbols, n, paired, left):
    """Residuals from symbols, without low bits and escapes: uint8 or uint16 [> n], one behind the last too.

    Returns the largest symbol.
    """
    m = np.uintp(symbol_count(n, paired))
    largest = np.uint8(0)
    for i in range(m):
        largest = max(largest, symbols[i])
    if paired:
        for i in range(m):
            left[i] = symbols[i] & np.uint8(15)
        for i in range(m):
            left[m + i] = symbols[i] >> np.uint8(4)
    else:
        for i in range(m):
            left[i] = symbols[i]
    return largest


@inner
def place_escapes(symbols, n, paired, escaped, used, left):
    """Put escaped residuals in their places; returns how many are used so far, -1 if there are too few."""
    m = np.uintp(symbol_count(n, paired))
    step = 2 if paired else 1
    for i in range(m):
        if symbols[i] == ESCAPE:
            if used + step > escaped.size:
                return -1
            left[i] = escaped[used]
            if paired:
                left[m + i] = escaped[used + 1]
            used += step
    return used
