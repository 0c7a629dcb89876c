"""Equal rows are stored once and referenced (the vector-level match of arXiv 2407.04272, section 4.2, without a window).

A reference is 0 where a row is seen for the first time, else 1 + the number of the equal distinct row. Distinct rows are
numbered in the order in which they appear, so that the most frequent rows tend to have the smallest numbers.
"""

from __future__ import annotations

import numpy as np

from compression.kernel import kernel

PROBES = 64
"""Look-ups of a row before it is taken as a new one, so that no input takes more than linear time."""

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_32 = np.uint64(32)


@kernel
def hash_rows(rows, width, first, last, hashes):  # type: ignore[no-untyped-def]
    """Hash the rows `first` to `last`, uint64 [rows * width], into uint64 [rows]."""
    for row in range(np.uintp(first), np.uintp(last)):
        base = row * np.uintp(width)
        odd, mixed = _PRIME, np.uint64(0)
        for i in range(np.uintp(width)):
            word = rows[base + i]
            mixed += (word ^ (word >> _32)) * odd
            odd += _PRIME + _PRIME
        hashes[row] = (mixed ^ (mixed >> _32)) * _MIX


@kernel
def match_rows(rows, width, hashes, n, part, parts, table, twins):  # type: ignore[no-untyped-def]
    """For each row of this part, by its hash: the number of the first row that equals it.

    Rows of different parts differ, so parts can be matched at the same time.

    Args:
        rows: uint64 [n * width].
        hashes: uint64 [n].
        parts: a power of two.
        table: int32, a power of two >= 2 * rows of this part, working memory.
        twins: int32 [n], out.
    """
    table[:] = -1
    mask = np.uint64(table.size - 1)
    selected, mine = np.uint64(parts - 1), np.uint64(part)
    for row in range(np.uintp(n)):
        key = hashes[row]
        if (key & selected) != mine:
            continue
        slot = (key >> _32) & mask
        twin = np.int32(row)
        for _ in range(PROBES):
            other = table[slot]
            if other < 0:
                table[slot] = row
                break
            if hashes[np.uintp(other)] == key:
                a, b, same = row * np.uintp(width), np.uintp(other) * np.uintp(width), True
                for i in range(np.uintp(width)):
                    same = same and rows[a + i] == rows[b + i]
                if same:
                    twin = other
                    break
            slot = (slot + np.uint64(1)) & mask
        twins[row] = twin


@kernel
def number_rows(twins, n, references, firsts):  # type: ignore[no-untyped-def]
    """Turn the first equal rows into references; returns the number of distinct rows.

    Args:
        twins: int32 [n]; see `match_rows`; overwritten.
        references: uint32 [n], out.
        firsts: int32 [n], out: the row where each distinct row is first seen.
    """
    count = np.uint32(0)
    for row in range(np.uintp(n)):
        twin = np.uintp(twins[row])
        if twin == row:
            firsts[np.uintp(count)] = row
            twins[row] = count
            count += np.uint32(1)
            references[row] = 0
        else:
            number = twins[twin]
            twins[row] = number
            references[row] = np.uint32(number) + np.uint32(1)
    return np.int64(count)


@kernel
def resolve(references, n, distinct):  # type: ignore[no-untyped-def]
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
