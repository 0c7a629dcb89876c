"""Frequency tables of the rANS coder: a fixed family that both sides know, and tables sent with the data.

A table gives each symbol s a frequency f(s) >= 1 with sum 1024. The last symbol of a table of the family is the escape.

The family is made of integers alone, so that every implementation has the same: docs/wire-format.md, "Tables".
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from compression.kernel import kernel

PRECISION = 10
TOTAL = 1 << PRECISION
MAX_SYMBOLS = 64
"""Of a table of the family, escape included."""

_ONE = 1 << 40
_LAPLACE = (28, 119, 336, 702, 1174, 1692, 2192, 2632, 2997, 3278, 3503, 3665, 3788)
_GAUSS = (16, 254, 1021, 2048, 2896, 3445, 3755, 3922, 4008, 4052, 4074, 4085)
_MIXED = ((28, 1692), (119, 2192), (336, 2632), (702, 2997), (1174, 3278), (1692, 3503), (2192, 3665), (2632, 3788))
_UNIFORM = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 25, 28, 30)


def _weights() -> list[list[int]]:
    """Of the magnitudes k = 0, 1, ... of each table."""
    ks = range(MAX_SYMBOLS)
    found = [[(a**k * _ONE) >> 12 * k for k in ks] for a in _LAPLACE]
    found += [[(a ** (k * k) * _ONE) >> 12 * k * k for k in ks] for a in _GAUSS]
    found += [[((3 * a**k + b**k) * _ONE) >> 12 * k for k in ks] for a, b in _MIXED]
    found += [[_ONE if k <= width else 0 for k in ks] for width in _UNIFORM]
    return found


def _frequencies(weights: list[int]) -> list[int]:
    """Frequencies of the symbols 0, +1, -1, +2, -2, ... and the escape, the last."""
    symbols = [weights[(s + 1) // 2] for s in range(2 * len(weights) - 1)]
    total = sum(symbols)
    used = min(max(sum(2 * TOTAL * w >= total for w in symbols), 1), MAX_SYMBOLS - 1)
    kept = [*symbols[:used], sum(symbols[used:])]
    spread = [1 + w * (TOTAL - len(kept)) // total for w in kept]
    for i in range(TOTAL - sum(spread)):
        spread[i] += 1
    return spread


FAMILY = [_frequencies(weights) for weights in _weights()]
COUNT = len(FAMILY)


def _family() -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint8], NDArray[np.int32]]:
    pushes = np.zeros((COUNT, MAX_SYMBOLS, 4), np.uint32)
    slots = np.zeros((COUNT, TOTAL), np.uint32)
    sizes = np.zeros(COUNT, np.uint8)
    costs = np.full((COUNT, MAX_SYMBOLS), 0, np.int32)
    for t, spread in enumerate(FAMILY):
        frequencies = np.array(spread, np.int64)
        fill_table.py_func(frequencies, len(spread), pushes[t], slots[t])
        sizes[t] = len(spread) - 1
        bits = [round(256 * math.log2(TOTAL / f)) for f in spread]
        costs[t, : len(bits)] = bits
        costs[t, len(bits) - 1 :] = bits[-1] + 16 * 256  # all that escape
    return pushes, slots, sizes, costs


@kernel
def fill_table(frequencies, count, pushes, slots):  # type: ignore[no-untyped-def]
    """What encoder and decoder look up.

    Args:
        frequencies: int64 [>= count], with sum 1024.
        pushes: uint32 [>= count, 4], out; of a symbol: the state from which it gives 16 bits first, the reciprocal of
            its frequency f, (1024 - f) << 8 | shift, bias. With them state -> state // f * 1024 + state % f + start takes
            no division: F. Giesen, "rANS in practice".
        slots: uint32 [1024], out; of a slot: symbol (8 bits), offset in the symbol's interval (12), frequency (12).
    """
    start = 0
    for s in range(count):
        f = frequencies[s]
        if f < 2:
            reciprocal, bias, shift = (1 << 32) - 1, start + TOTAL - 1, 0
        else:
            shift = 0
            while (1 << shift) < f:
                shift += 1
            reciprocal, bias = ((1 << (shift + 31)) + f - 1) // f, start
            shift -= 1
        pushes[s, 0] = np.uint32(f << 21)
        pushes[s, 1] = np.uint32(reciprocal)
        pushes[s, 2] = np.uint32((TOTAL - f) << 8 | (shift + 32))
        pushes[s, 3] = np.uint32(bias)
        for i in range(f):
            slots[start + i] = np.uint32((f << 20) | (i << 8) | s)
        start += f


PUSHES, SLOTS, SIZES, COSTS = _family()
"""Of the family: uint32 [tables, 64, 4], uint32 [tables, 1024], symbols without the escape uint8 [tables], and the cost of
each symbol in 1/256 bit int32 [tables, 64]; a symbol from `SIZES` on costs its escape and 16 bits."""


CLASSES = np.array((0, 1, 2, 3, 5, 9, 16, 28, 49, 86, 150, 263, 460, 805, 1408, 2464), np.int64)
"""Weights that a table sent with the data has for its symbols: four bits a symbol, at most a fifth from the truth."""
SENT_WORDS = 34
"""Most words of a table that is sent: the number of its symbols and 256 classes."""


@kernel
def classify(histogram, words, at):  # type: ignore[no-untyped-def]
    """Write a table for int64 [<= 256] counts: its last symbol in one byte, then classes, the low four bits first.

    Returns where the next word begins; `words` needs room for SENT_WORDS.
    """
    last, most = 0, np.int64(1)
    for s in range(histogram.size):
        if histogram[s]:
            last, most = s, max(most, histogram[s])
    size = (1 + (last + 2) // 2 + 3) // 4
    target = words[at : at + size]
    target[:] = 0
    target[0] = last
    for s in range(last + 1):
        if histogram[s]:
            c = 1
            while c < 15 and 10 * CLASSES[c + 1] * most <= 13 * CLASSES[15] * histogram[s]:
                c += 1
            target[(2 + s) // 8] |= np.uint32(c << (4 * ((2 + s) % 8)))
    return at + size


@kernel
def read_classes(words, at, end, pushes, slots):  # type: ignore[no-untyped-def]
    """Rebuild a table from what `classify` wrote; returns where the next word begins, or -1 if it is none.

    Args:
        pushes: uint32 [256, 4], out; slots: uint32 [1024], out; see `fill_table`.
    """
    if at >= end:
        return -1
    last = np.int64(words[at] & np.uint32(0xFF))
    size = (1 + (last + 2) // 2 + 3) // 4
    if at + size > end:
        return -1
    spread = np.zeros(256, np.int64)
    total, used, largest = np.int64(0), 0, 0
    for s in range(last + 1):
        spread[s] = CLASSES[(words[at + (2 + s) // 8] >> np.uint32(4 * ((2 + s) % 8))) & np.uint32(15)]
        total += spread[s]
        used += spread[s] > 0
        if spread[s] > spread[largest]:
            largest = s
    if total == 0:
        return -1
    rest = np.int64(TOTAL)
    for s in range(last + 1):
        if spread[s]:
            spread[s] = 1 + spread[s] * (TOTAL - used) // total
            rest -= spread[s]
    spread[largest] += rest
    fill_table(spread, last + 1, pushes, slots)
    return at + size
