"""Bytes of rows to bytes of columns and back, eight by eight in registers."""

from __future__ import annotations

import numpy as np

from compression.kernel import inner

_32, _16, _8 = np.uint64(32), np.uint64(16), np.uint64(8)
_LOW32, _LOW16, _LOW8 = np.uint64(0x00000000FFFFFFFF), np.uint64(0x0000FFFF0000FFFF), np.uint64(0x00FF00FF00FF00FF)


@inner
def _swap(a, b, shift, mask):
    """Exchange the high parts of a with the low parts of b."""
    moved = ((a >> shift) ^ b) & mask
    return a ^ (moved << shift), b ^ moved


@inner
def _turn(a, b, c, d, e, f, g, h):
    """Byte i of word j becomes byte j of word i (H. S. Warren, Hacker's Delight, section 7-3)."""
    a, e = _swap(a, e, _32, _LOW32)
    b, f = _swap(b, f, _32, _LOW32)
    c, g = _swap(c, g, _32, _LOW32)
    d, h = _swap(d, h, _32, _LOW32)
    a, c = _swap(a, c, _16, _LOW16)
    b, d = _swap(b, d, _16, _LOW16)
    e, g = _swap(e, g, _16, _LOW16)
    f, h = _swap(f, h, _16, _LOW16)
    a, b = _swap(a, b, _8, _LOW8)
    c, d = _swap(c, d, _8, _LOW8)
    e, f = _swap(e, f, _8, _LOW8)
    g, h = _swap(g, h, _8, _LOW8)
    return a, b, c, d, e, f, g, h


@inner
def gather_turned(codes, width, rows, first, n, tile, lead):
    """Copy `n` rows of bytes, transposed: byte i of column c becomes byte c of row `rows[first + i]`.

    Args:
        codes: uint64 [rows * width].
        rows: int32.
        tile: uint64 [8 * width * lead], out; n is at most 8 * lead.
        lead: words of a column of the tile. Bytes behind the n-th are some others.
    """
    last = np.uintp(first + n - 1)
    w, step = np.uintp(width), np.uintp(lead)
    for block in range(np.uintp((n + 7) // 8)):
        r = np.uintp(first) + block * np.uintp(8)
        r0, r1 = np.uintp(rows[r]) * w, np.uintp(rows[min(r + np.uintp(1), last)]) * w
        r2, r3 = np.uintp(rows[min(r + np.uintp(2), last)]) * w, np.uintp(rows[min(r + np.uintp(3), last)]) * w
        r4, r5 = np.uintp(rows[min(r + np.uintp(4), last)]) * w, np.uintp(rows[min(r + np.uintp(5), last)]) * w
        r6, r7 = np.uintp(rows[min(r + np.uintp(6), last)]) * w, np.uintp(rows[min(r + np.uintp(7), last)]) * w
        at = block
        for k in range(w):
            a, b, c, d, e, f, g, h = _turn(
                codes[r0 + k], codes[r1 + k], codes[r2 + k], codes[r3 + k],
                codes[r4 + k], codes[r5 + k], codes[r6 + k], codes[r7 + k],
            )  # fmt: skip
            tile[at], tile[at + step], tile[at + np.uintp(2) * step], tile[at + np.uintp(3) * step] = a, b, c, d
            at += np.uintp(4) * step
            tile[at], tile[at + step], tile[at + np.uintp(2) * step], tile[at + np.uintp(3) * step] = e, f, g, h
            at += np.uintp(4) * step


@inner
def scatter_turned(tile, lead, n, width, rows):
    """The inverse: columns of bytes in `tile` to rows, uint64 [>= ceil(n / 8) * 8 * width]."""
    w, step = np.uintp(width), np.uintp(lead)
    for block in range(np.uintp((n + 7) // 8)):
        at = block
        to = block * np.uintp(8) * w
        for k in range(w):
            high = at + np.uintp(4) * step
            a, b, c, d, e, f, g, h = _turn(
                tile[at], tile[at + step], tile[at + np.uintp(2) * step], tile[at + np.uintp(3) * step],
                tile[high], tile[high + step], tile[high + np.uintp(2) * step], tile[high + np.uintp(3) * step],
            )  # fmt: skip
            at = high + np.uintp(4) * step
            i = to + k
            rows[i], rows[i + w], rows[i + np.uintp(2) * w], rows[i + np.uintp(3) * w] = a, b, c, d
            i += np.uintp(4) * w
            rows[i], rows[i + w], rows[i + np.uintp(2) * w], rows[i + np.uintp(3) * w] = e, f, g, h
