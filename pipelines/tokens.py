"""From bytes to fields and lists: the steps of the line parser that are off its fast path."""

from __future__ import annotations

import numpy as np

from pipelines.kernel import kernel
from pipelines.keys import MISSING_KEY, hash_bytes, key_of
from pipelines.layout import Fields

NEWLINE, RETURN, QUOTE = 10, 13, 34


@kernel
def is_sentinel(buf: np.ndarray, start: int, end: int, sentinels: np.ndarray) -> bool:
    """Whether the value buf[start:end] is one of those that mean missing, given by their text hashes."""
    if sentinels.size == 0:
        return False
    h = hash_bytes(buf, start, end)
    for s in sentinels:  # noqa: SIM110  (numba)
        if s == h:
            return True
    return False


@kernel
def split_list(
    buf: np.ndarray,
    start: int,
    end: int,
    separator: int,
    is_hex: bool,
    sentinels: np.ndarray,
    out: np.ndarray,
    used: int,
) -> int:
    """Appends the keys of a separated list to `out` from `used` on, missing elements left out; the new `used`."""
    s = start
    while s <= end:
        e = s
        while e < end and buf[e] != separator:
            e += 1
        if e > s and not is_sentinel(buf, s, e, sentinels):
            out[used] = key_of(buf, s, e, is_hex)
            used += 1
        s = e + 1
    return used


@kernel
def _quoted(buf: np.ndarray, start: int, separator: int) -> tuple[int, int]:
    """(end of the content, end of the field) of the quoted field at buf[start], (-1, -1) if it is never closed.

    The content is moved so that it starts at start + 1 and has single quotes for doubled ones.
    """
    i = start + 1
    doubled = False
    while True:
        c = buf[i]
        if c == NEWLINE:
            return -1, -1
        if c == QUOTE:
            after = buf[i + 1]
            if after == QUOTE:
                doubled = True
                i += 2
                continue
            if after in (separator, NEWLINE):
                end = i + 1
                break
            if after == RETURN and buf[i + 2] == NEWLINE:
                end = i + 2
                break
            return -1, -1
        i += 1
    if not doubled:
        return i, end
    to = start + 1
    at = start + 1
    while at < i:
        buf[to] = buf[at]
        at += 2 if buf[at] == QUOTE else 1
        to += 1
    return to, end


@kernel
def field_bounds(buf: np.ndarray, pos: int, quotes: bool, separator: int) -> tuple[int, int, int]:
    """(start and end of the content, end of the field) of the field at buf[pos]."""
    if quotes and buf[pos] == QUOTE:
        end, e = _quoted(buf, pos, separator)
        if end >= 0:
            return pos + 1, end, e
    e = pos
    while buf[e] != separator and buf[e] != NEWLINE:
        e += 1
    if buf[e] == NEWLINE and e > pos and buf[e - 1] == RETURN:
        return pos, e - 1, e
    return pos, e, e


@kernel
def join_ranges(
    fields: Fields, r: int, item_key: np.ndarray, mask: np.ndarray, values: np.ndarray, used: np.ndarray
) -> None:
    """Appends spread list r of one row to its column, without masked and missing elements."""
    to = fields.range_list[r]
    for i in range(fields.range_start[r], fields.range_start[r + 1]):
        masked = fields.item_mask[i] >= 0 and not mask[fields.item_mask[i]]
        if not masked and item_key[i] != MISSING_KEY:
            values[to, used[to]] = item_key[i]
            used[to] += 1
