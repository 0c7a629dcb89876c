"""Frequency tables of the rANS coder: a fixed family that both sides know, and tables sent with the data.

A table gives each symbol s of a byte a frequency with sum 2048; a symbol of frequency 0 cannot be coded. A symbol of
the family stands for one residual or for a pair of them, and symbol 255 is the escape, for all others.

The family is made of integers alone, so that every implementation has the same: docs/wire-format.md, "Family".
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from compression.codewords import MAX_LENGTH, code_table
from compression.kernel import inner, kernel

PRECISION = 11
TOTAL = 1 << PRECISION
ESCAPE = 255
MAGNITUDES = 64
"""Residuals from here on have no symbol in any table."""

_ONE = 1 << 40
_LAPLACE = (28, 119, 336, 702, 1174, 1692, 2192, 2632, 2997, 3278, 3503, 3665, 3788)
_GAUSS = (16, 254, 1021, 2048, 2896, 3445, 3755, 3922, 4008, 4052, 4074, 4085)
_MIXED = ((28, 1692), (119, 2192), (336, 2632), (702, 2997), (1174, 3278), (1692, 3503), (2192, 3665), (2632, 3788))
_UNIFORM = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 25, 28, 30)
_PAIRED = {*range(6), *range(13, 20), 25, *range(33, 40)}
"""Tables whose symbols are pairs of residuals, which halves the work: those where it costs at most 2 % more bits."""


def _weights() -> list[list[int]]:
    """Of the residuals 0, 1, 2, ... (which stand for 0, -1, +1, -2, ...) in each table."""
    ks = range(MAGNITUDES)
    found = [[(a**k * _ONE) >> 12 * k for k in ks] for a in _LAPLACE]
    found += [[(a ** (k * k) * _ONE) >> 12 * k * k for k in ks] for a in _GAUSS]
    found += [[((3 * a**k + b**k) * _ONE) >> 12 * k for k in ks] for a, b in _MIXED]
    found += [[_ONE if k <= width else 0 for k in ks] for width in _UNIFORM]
    return [[weights[(z + 1) // 2] for z in range(2 * MAGNITUDES - 1)] for weights in found]


def _symbols(weights: list[int], paired: bool) -> list[int]:
    """Weights of the symbols 0 to 254."""
    if not paired:
        return [*weights[: MAGNITUDES - 1], *[0] * (ESCAPE - MAGNITUDES + 1)]
    return [weights[s & 15] * weights[s >> 4] for s in range(ESCAPE)]


def _frequencies(weights: list[int], paired: bool) -> list[int]:
    """Frequencies of the symbols 0 to 255; those too rare are left to the escape."""
    total = sum(weights) ** (2 if paired else 1)
    kept = [w if 2 * TOTAL * w >= total else 0 for w in _symbols(weights, paired)]
    kept.append(total - sum(kept))
    used = sum(w > 0 for w in kept[:ESCAPE]) + 1
    spread = [1 + w * (TOTAL - used) // total if w or s == ESCAPE else 0 for s, w in enumerate(kept)]
    rest = TOTAL - sum(spread)
    for s in range(ESCAPE):
        if rest and spread[s]:
            spread[s] += 1
            rest -= 1
    return spread


def _costs(weights: list[int], spread: list[int], paired: bool) -> list[int]:
    """Of a residual 0 to 63, in 1/256 bit; one that no symbol of a small partner holds costs an escape."""
    escape = math.log2(TOTAL / spread[ESCAPE]) + (16 if paired else 8)
    held = [z < (ESCAPE if not paired else 15) and spread[z] > 0 for z in range(MAGNITUDES)]
    bits = [math.log2(sum(weights) / w) if ok else escape for w, ok in zip(weights[:MAGNITUDES], held, strict=True)]
    return [round(256 * b) for b in bits]


class Family:
    """The tables of the family, as encoder and decoder look them up.

    Attributes:
        frequencies: int64 [tables, 256].
        pushes: uint32 [tables, 256, 4], slots: uint32 [tables, 2048]; see `fill_table`.
        codes: uint32 [tables, 256], decoding: uint16 [tables, 4096]: Huffman codes of the same frequencies; see
            `codewords.code_table`.
        known: uint8 [tables, 256]: a symbol, or the escape where the table does not have it.
        costs: int32 [64, tables]: bits of a residual * 256, nearly.
        means: int32 [tables], mean residual * 256.
        paired: uint8 [tables]: whether a symbol is a pair.
    """

    def __init__(self) -> None:
        weights = _weights()
        self.paired = np.array([t in _PAIRED for t in range(len(weights))], np.uint8)
        spread = [_frequencies(w, bool(pair)) for w, pair in zip(weights, self.paired, strict=True)]
        self.frequencies: NDArray[np.int64] = np.array(spread)
        self.pushes = np.zeros((len(weights), 256, 4), np.uint32)
        self.slots = np.zeros((len(weights), TOTAL), np.uint32)
        for t in range(len(weights)):
            fill_table(self.frequencies[t], 256, self.pushes[t], self.slots[t])
        self.codes = np.zeros((len(weights), 256), np.uint32)
        self.decoding = np.zeros((len(weights), 1 << MAX_LENGTH), np.uint16)
        for t in range(len(weights)):
            code_table(self.frequencies[t], self.codes[t], self.decoding[t])
        self.means = np.array([256 * sum(z * v for z, v in enumerate(w)) // sum(w) for w in weights], np.int32)
        self.known = np.where(self.frequencies > 0, np.arange(256), ESCAPE).astype(np.uint8)
        costs = [_costs(w, f, bool(pair)) for w, f, pair in zip(weights, spread, self.paired, strict=True)]
        self.costs = np.ascontiguousarray(np.array(costs, np.int32).T)


@kernel
def fill_table(frequencies, count, pushes, slots):
    """What encoder and decoder look up.

    Args:
        frequencies: int64 [>= count], with sum 2048.
        pushes: uint32 [>= count, 4], out; of a symbol: the state from which it gives 16 bits first, the reciprocal
            of its frequency f, (2048 - f) << 8 | shift, bias. With them state -> state // f * 2048 + state % f + start
            takes no division: F. Giesen, "rANS in practice".
        slots: uint32 [2048], out; of a slot: symbol (8 bits), offset in the symbol's interval (12), frequency (12).
    """
    start = 0
    for s in range(count):
        f = frequencies[s]
        if f == 0:
            pushes[s] = 0
            continue
        if f < 2:
            reciprocal, bias, shift = (1 << 32) - 1, start + TOTAL - 1, 0
        else:
            shift = 0
            while (1 << shift) < f:
                shift += 1
            reciprocal, bias = ((1 << (shift + 31)) + f - 1) // f, start
            shift -= 1
        pushes[s, 0] = np.uint32(f << (31 - PRECISION))
        pushes[s, 1] = np.uint32(reciprocal)
        pushes[s, 2] = np.uint32((TOTAL - f) << 8 | (shift + 32))
        pushes[s, 3] = np.uint32(bias)
        for i in range(f):
            slots[start + i] = np.uint32((f << 20) | (i << 8) | s)
        start += f


COUNT = len(_LAPLACE) + len(_GAUSS) + len(_MIXED) + len(_UNIFORM)


@functools.cache
def family() -> Family:
    """The family, made once."""
    return Family()


CLASSES = np.array((0, 1, 2, 3, 5, 9, 16, 28, 49, 86, 150, 263, 460, 805, 1408, 2464), np.int64)
"""Weights that a table sent with the data has for its symbols: four bits a symbol, at most a fifth from the truth."""
SENT_WORDS = 34
"""Most words of a table that is sent: the number of its symbols and 256 classes."""


@inner
def classify(histogram, words, at):
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


@inner
def read_classes(words, at, end, pushes, slots):
    """Rebuild a table from what `classify` wrote; returns where the next word begins, or -1 if it is none.

    Args:
        pushes: uint32 [256, 4], out; slots: uint32 [2048], out; see `fill_table`.
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
