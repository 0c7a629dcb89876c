"""Whole lines of text to typed columns, compiled.

A line is a row: a line break inside quotes is not supported, so that the number of rows is the number of lines. A
field that starts with a quote and has its closing quote before the next separator or line end is unwrapped (`""`
inside stands for one quote); any other quote is data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.kernel import kernel
from pipelines.keys import LOG_TABLE, MISSING_KEY, dense_value, key_of, number_of
from pipelines.layout import DENSE, ITEM, KEY, LABEL, LIST, MASK, SKIP, Fields, Layout
from pipelines.swar import HEX_PAIRS, NO_HEX, digits8, end_in_word, load8, pattern
from pipelines.tokens import NEWLINE, field_bounds, is_sentinel, join_ranges, split_list

PADDING = 16
"""Bytes that must follow the text in a buffer given to `parse_lines`."""
BAD_COUNT, BAD_NUMBER, BAD_LABEL = 1, 2, 3
MAX_BAD = 16
"""Bad lines kept for the report, per block."""

_SKIP, _HEX, _NUMBER, _DIGIT = 1, 2, 3, 4
_LOW16 = np.uint64(0xFFFF)


@dataclass
class Block:
    """Some rows, parsed. N rows; a missing dense value is NaN, a missing category MISSING_KEY."""

    label: np.ndarray
    """uint8 [N]."""
    dense: np.ndarray
    """float32 [n_dense, N], transformed."""
    keys: np.ndarray
    """uint64 [n_one_hot, N]."""
    lengths: np.ndarray
    """int32 [n_lists, N]."""
    values: list[np.ndarray]
    """Per list table: uint64 keys of all rows, one after the other; missing elements are left out."""


@dataclass(frozen=True)
class BadLine:
    """A line that is no row."""

    line: int
    """From 1."""
    what: str


def parse_lines(buf: np.ndarray, size: int, layout: Layout, first_line: int) -> tuple[Block, int, list[BadLine], int]:
    """Parses the lines in buf[:size].

    Args:
        buf: uint8, whole lines, the last ended by a newline, then `PADDING` bytes; quoted fields are changed in place.
        first_line: number of the first line in its file, from 1.

    Returns:
        The rows, the number of lines, the first bad lines and the number of all bad lines.
    """
    n = int(np.count_nonzero(buf[:size] == NEWLINE))
    label = np.zeros(n, np.uint8)
    dense = np.empty((layout.n_dense, n), np.float32)
    keys = np.empty((layout.n_one_hot, n), np.uint64)
    lengths = np.zeros((layout.n_lists, n), np.int32)
    # An element takes a byte and a separator; untouched pages of the buffer cost nothing.
    values = np.empty((layout.n_lists, size // 2 + n + 1 if layout.n_lists else 0), np.uint64)
    used = np.zeros(layout.n_lists, np.int64)
    bad = np.zeros((MAX_BAD, 5), np.int64)
    rows, n_bad = _parse(buf, size, layout.fields, LOG_TABLE, HEX_PAIRS, label, dense, keys, lengths, values, used, bad)
    lists = [values[i, : used[i]] for i in range(layout.n_lists)]
    block = Block(label[:rows], dense[:, :rows], keys[:, :rows], lengths[:, :rows], lists)
    return block, n, [_bad_line(b, buf, layout, first_line) for b in bad[:n_bad]], n_bad


def _bad_line(bad: np.ndarray, buf: np.ndarray, layout: Layout, first_line: int) -> BadLine:
    line, code, field, start, end = (int(x) for x in bad)
    if code == BAD_COUNT:
        return BadLine(first_line + line, f"{field} fields, expected {len(layout.names)}")
    text = buf[start : min(end, start + 40)].tobytes().decode(errors="replace")
    wanted = "0 or 1" if code == BAD_LABEL else "a number"
    return BadLine(first_line + line, f"field {field + 1} ({layout.names[field]}) is {text!r}, not {wanted}")


@kernel
def _parse(
    buf: np.ndarray,
    size: int,
    fields: Fields,
    log_table: np.ndarray,
    hex_pairs: np.ndarray,
    label: np.ndarray,
    dense: np.ndarray,
    keys: np.ndarray,
    lengths: np.ndarray,
    values: np.ndarray,
    used: np.ndarray,
    bad: np.ndarray,
) -> tuple[int, int]:
    """Fills the columns; (rows, bad lines)."""
    # The fast paths pass no array to a function: numba counts references at each call, which costs more than the work.
    n = fields.kind.size
    separator = fields.separator
    separators = pattern(separator)
    short_cut = _short_cuts(fields)
    target = fields.target
    item_key = np.empty(fields.item_mask.size, np.uint64)
    mask = np.ones(n, np.bool_)
    n_logs = np.uint64(log_table.size)
    row = 0
    line = 0
    n_bad = 0
    pos = 0
    while pos < size:
        for i in range(used.size):
            lengths[i, row] = used[i]
        f = 0
        code = 0
        while True:
            e: Any = -1
            cut = short_cut[f] if f < n else _SKIP
            # No branches on what is hard to predict (a gap, a sign, a length), and the place of the next field
            # (8 digits or none further on) hangs on one byte: processors run ahead of the rest.
            if cut == _HEX:
                present = np.int64(buf[pos] != separator) & np.int64(buf[pos] != NEWLINE)
                word = load8(buf, pos)
                a = np.uint64(hex_pairs[word & _LOW16])
                b = np.uint64(hex_pairs[(word >> np.uint64(16)) & _LOW16])
                c = np.uint64(hex_pairs[(word >> np.uint64(32)) & _LOW16])
                d = np.uint64(hex_pairs[word >> np.uint64(48)])
                chosen = np.uint64(-present)
                if ((a | b | c | d) & chosen) < NO_HEX:
                    key = (a << np.uint64(24)) | (b << np.uint64(16)) | (c << np.uint64(8)) | d
                    keys[target[f], row] = (key & chosen) | (MISSING_KEY & ~chosen)
                    e = pos + 8 * present
            elif cut == _NUMBER:
                negative = np.int64(buf[pos] == 45)
                width: Any = end_in_word(load8(buf, pos), separators) - negative
                ok, number = digits8(load8(buf, pos + negative), width)
                if ok and width < 8 - negative and width >= negative:
                    at = (number + np.uint64(1)) * np.uint64(width != 0)
                    y = log_table[at] if at < n_logs else dense_value(float(number))
                    dense[target[f], row] = y * np.float32(1 - 2 * negative) + np.float32(0)  # -0 becomes 0
                    e = pos + negative + width
            elif cut == _DIGIT and (buf[pos] | 1) == 49:
                label[row] = buf[pos] - 48
                e = pos + 1
            if e < 0 or not (buf[e] == separator or buf[e] == NEWLINE):
                s, end, e = field_bounds(buf, pos, fields.quotes, separator)
                if cut != _SKIP:
                    problem = _store(buf, s, end, fields, f, row, label, dense, keys, values, used, item_key, mask)
                    if problem != 0 and code == 0:
                        code = problem
                        _note(bad, n_bad, line, code, f, s, end)
            f += 1
            pos = e + 1
            if buf[e] == NEWLINE:
                break
        if f != n:
            code = BAD_COUNT
            _note(bad, n_bad, line, code, f, 0, 0)
        if code == 0:
            for i in range(fields.range_list.size):
                join_ranges(fields, i, item_key, mask, values, used)
            for i in range(used.size):
                lengths[i, row] = used[i] - lengths[i, row]
            row += 1
        else:
            for i in range(used.size):
                used[i] = lengths[i, row]
            n_bad += 1
        line += 1
    return row, n_bad


@kernel
def _short_cuts(fields: Fields) -> np.ndarray:
    """uint8 [F]: how `_parse` first tries to read a field."""
    out = np.zeros(fields.kind.size, np.uint8)
    for f in range(out.size):
        plain = fields.sentinel_start[f] == fields.sentinel_start[f + 1]
        if fields.kind[f] == SKIP:
            out[f] = _SKIP
        elif fields.kind[f] == KEY and fields.is_hex[f] and plain:
            out[f] = _HEX
        elif fields.kind[f] == DENSE and plain:
            out[f] = _NUMBER
        elif fields.kind[f] == LABEL:
            out[f] = _DIGIT
    return out


@kernel
def _note(bad: np.ndarray, i: int, line: int, code: int, field: int, start: int, end: int) -> None:
    """Notes bad line number i; a later note about the same line replaces it."""
    if i < bad.shape[0]:
        bad[i, 0] = line
        bad[i, 1] = code
        bad[i, 2] = field
        bad[i, 3] = start
        bad[i, 4] = end


@kernel
def _store(
    buf: np.ndarray,
    s: int,
    e: int,
    fields: Fields,
    f: int,
    row: int,
    label: np.ndarray,
    dense: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    used: np.ndarray,
    item_key: np.ndarray,
    mask: np.ndarray,
) -> int:
    """Stores field f, buf[s:e], of one row; 0 or the code of what is wrong with it."""
    sentinels = fields.sentinels[fields.sentinel_start[f] : fields.sentinel_start[f + 1]]
    kind = fields.kind[f]
    target = fields.target[f]
    is_hex = fields.is_hex[f] != 0
    if kind == DENSE:
        if e == s or is_sentinel(buf, s, e, sentinels):
            dense[target, row] = np.nan
            return 0
        ok, x = number_of(buf, s, e)
        dense[target, row] = dense_value(x)
        return 0 if ok else BAD_NUMBER
    if kind == KEY:
        keys[target, row] = MISSING_KEY if is_sentinel(buf, s, e, sentinels) else key_of(buf, s, e, is_hex)
        return 0
    if kind == LABEL:
        ok, x = number_of(buf, s, e)
        label[row] = 1 if x == 1.0 else 0
        return 0 if ok and (x == 0.0 or x == 1.0) else BAD_LABEL
    if kind == ITEM:
        item_key[target] = MISSING_KEY if is_sentinel(buf, s, e, sentinels) else key_of(buf, s, e, is_hex)
        return 0
    if kind == MASK:
        ok, x = number_of(buf, s, e)
        mask[f] = x != 0.0
        return 0 if ok else BAD_NUMBER
    if kind == LIST:
        used[target] = split_list(buf, s, e, fields.list_separator[f], is_hex, sentinels, values[target], used[target])
    return 0
