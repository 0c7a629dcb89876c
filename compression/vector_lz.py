"""Equal rows are stored once and referenced (the vector-level match of arXiv 2407.04272, section 4.2, no window).

A reference is 0 where a row is seen for the first time, else 1 + the number of the equal distinct row. Distinct rows
are numbered in the order in which they appear, so that the most frequent rows tend to have the smallest numbers.
"""

from __future__ import annotations

import numpy as np

from compression.kernel import inner

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_32 = np.uint64(32)


@inner
def match(rows, width, n, table, references, firsts):
    """Refer each row to the first one that equals it; returns the number of distinct rows.

    Args:
        rows: uint64 [n * width].
        table: int32, a power of two > n, working memory.
        references: uint32 [n], out.
        firsts: int32 [n], out: the row where each distinct row is first seen.
    """
    table[:] = -1
    if width == 2:
        return _match_two(rows, n, table, references, firsts)
    mask = np.uint64(table.size - 1)
    count = np.int64(0)
    for row in range(np.uintp(n)):
        base = row * np.uintp(width)
        odd, mixed = _PRIME, np.uint64(0)
        for i in range(np.uintp(width)):
            word = rows[base + i]
            mixed += (word ^ (word >> _32)) * odd
            odd += _PRIME + _PRIME
        slot = (((mixed ^ (mixed >> _32)) * _MIX) >> _32) & mask
        reference = np.uint32(0)
        while True:
            entry = table[slot]
            if entry < 0:
                table[slot] = np.int32(count)
                firsts[np.uintp(count)] = row
                count += 1
                break
            other = np.uintp(firsts[np.uintp(entry)]) * np.uintp(width)
            different = np.uint64(0)
            for i in range(np.uintp(width)):
                different |= rows[base + i] ^ rows[other + i]
            if different == 0:
                reference = np.uint32(entry + 1)
                break
            slot = (slot + np.uint64(1)) & mask
        references[row] = reference
    return count


@inner
def _match_two(rows, n, table, references, firsts):
    """`match` of rows of two words, such as 16 codes of a byte: so common that it gets a form without inner loops,
    which takes half the time."""
    mask = np.uint64(table.size - 1)
    count = np.int64(0)
    for row in range(np.uintp(n)):
        one, two = rows[row * np.uintp(2)], rows[row * np.uintp(2) + np.uintp(1)]
        mixed = (one ^ (one >> _32)) * _PRIME + (two ^ (two >> _32)) * (_PRIME + _PRIME + _PRIME)
        slot = (((mixed ^ (mixed >> _32)) * _MIX) >> _32) & mask
        reference = np.uint32(0)
        while True:
            entry = table[slot]
            if entry < 0:
                table[slot] = np.int32(count)
                firsts[np.uintp(count)] = row
                count += 1
                break
            other = np.uintp(firsts[np.uintp(entry)]) * np.uintp(2)
            if ((rows[other] ^ one) | (rows[other + np.uintp(1)] ^ two)) == 0:
                reference = np.uint32(entry + 1)
                break
            slot = (slot + np.uint64(1)) & mask
        references[row] = reference
    return count


@inner
def resolve(references, n, distinct):
    """Turn references into numbers of distinct rows, in place; False if they are not those of `distinct` rows."""
    count = np.uint32(0)
    good = True
    for row in range(np.uintp(n)):
        reference = references[row]
        new = reference == 0
        number = count if new else reference - np.uint32(1)
        count += np.uint32(new)
        good = good and number < count
        references[row] = number
    return good and np.int64(count) == distinct
