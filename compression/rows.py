"""The rows of one table under a bound: quantise, store equal rows once, predict columns from columns, rANS.

docs/wire-format.md, "Chain rans", has the layout.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression import predict, tables, vector_lz
from compression.entropy import CHUNK, decode_chunk, encode_chunk
from compression.kernel import kernel
from compression.predict import MOST_PIVOTS, SAMPLE, WIDEST
from compression.quantize import quantize
from compression.references import decode_references, encode_references

HEADER = 4
"""Words of a section before its model: distinct rows, patches, escapes, words of the references."""
TILE = 1 << 18
"""Most codes of a block of rows, but for very wide rows."""
FEWEST_ROWS, MOST_COLUMNS = 8, 4096
"""Outside of these a matrix is coded as a single column, in the order of its memory."""


class Work(NamedTuple):
    """Working memory of `encode_rows` and `decode_rows`; `workspace` says how large."""

    codes: NDArray[np.uint64]
    hashes: NDArray[np.uint64]
    table: NDArray[np.int32]
    twins: NDArray[np.int32]
    references: NDArray[np.uint32]
    firsts: NDArray[np.int32]
    symbols: NDArray[np.uint8]
    tile: NDArray[np.int16]
    left: NDArray[np.uint16]
    predicted: NDArray[np.int32]
    escapes: NDArray[np.uint16]
    patch_at: NDArray[np.uint32]
    patch_bits: NDArray[np.uint32]
    covariance: NDArray[np.float64]
    model: NDArray[np.int16]
    choice: NDArray[np.uint8]
    stream: NDArray[np.uint16]
    pushes: NDArray[np.uint32]
    slots: NDArray[np.uint32]
    distinct: NDArray[np.float32]


@kernel
def is_flat(rows, columns):  # type: ignore[no-untyped-def]
    """Whether a matrix is coded as a single column."""
    return rows < FEWEST_ROWS or columns > MOST_COLUMNS or columns < 2


@kernel
def block_rows(columns):  # type: ignore[no-untyped-def]
    """Rows that are transposed, predicted and coded together."""
    return min(max(TILE // columns, 64), CHUNK if columns == 1 else 4096)


@kernel
def encode_rows(x, bits, rows, columns, step, inverse, limit, work, words, at):  # type: ignore[no-untyped-def]
    """Write a section from `words[at]` on and return where it ends, or -1 if another chain is to take the table.

    Args:
        x: float32 [rows * columns]; bits: uint32 of the same size: what is sent of a value that no code holds.
        step, inverse, limit: see `quantize.grid`.
        words: uint32; the section must fit.
    """
    if is_flat(rows, columns):
        rows, columns = rows * columns, 1
    stride, patches = _codes(x, bits, rows, columns, step, inverse, limit, work)
    if patches > work.patch_at.size:
        return -1
    narrow = stride > 0
    stride = abs(stride)
    distinct = rows
    if columns > 1:
        distinct = _match(rows, stride // 8 if narrow else stride // 4, work)
    start = at
    at += HEADER
    if at > words.size:
        return -1
    words[start] = distinct
    words[start + 1] = patches
    codes8, codes16 = work.codes.view(np.int8), work.codes.view(np.int16)
    words[start + 2] = 0
    words[start + 3] = 0
    if distinct < rows:
        end = encode_references(work.references, rows, work.symbols, work.pushes, work.slots, work.stream, words, at)
        if end < 0:
            return -1
        words[start + 3] = end - at
        at = end
    if narrow:
        at, escapes = _encode_codes(codes8, stride, distinct, columns, work, words, at)
    else:
        at, escapes = _encode_codes(codes16, stride, distinct, columns, work, words, at)
    words[start + 2] = escapes
    end = at + (escapes + 1) // 2 + 2 * patches
    if at < 0 or end > words.size:
        return -1
    if escapes:
        words[at + (escapes + 1) // 2 - 1] = 0
        words[at : at + (escapes + 1) // 2].view(np.uint16)[:escapes] = work.escapes[:escapes]
    words[end - 2 * patches : end - patches] = work.patch_at[:patches]
    words[end - patches : end] = work.patch_bits[:patches]
    return end


@kernel
def _codes(x, bits, rows, columns, step, inverse, limit, work):  # type: ignore[no-untyped-def]
    """Quantise to int8, or int16 where that leaves too many values out of reach; returns (stride, patches).

    The stride is negative for int16. Rows are padded to whole words of 8 bytes, so that they can be compared by words.
    """
    stride = columns if columns == 1 else (columns + 7) // 8 * 8
    patches = quantize(x, bits, columns, 0, rows, stride, inverse, step, limit, np.float32(127), work.codes.view(np.int8), work.patch_at, work.patch_bits)
    if 128 * patches <= rows * columns:
        return stride, patches
    stride = columns if columns == 1 else (columns + 3) // 4 * 4
    patches = quantize(x, bits, columns, 0, rows, stride, inverse, step, limit, np.float32(32767), work.codes.view(np.int16), work.patch_at, work.patch_bits)
    return -stride, patches


@kernel
def _match(rows, width, work):  # type: ignore[no-untyped-def]
    """Number the distinct rows of `width` words; returns how many there are."""
    size = 64
    while size < 2 * rows:
        size *= 2
    vector_lz.hash_rows(work.codes, width, 0, rows, work.hashes)
    vector_lz.match_rows(work.codes, width, work.hashes, rows, 0, 1, work.table[:size], work.twins)
    return vector_lz.number_rows(work.twins, rows, work.references, work.firsts)


@kernel
def _encode_codes(codes, stride, distinct, columns, work, words, at):  # type: ignore[no-untyped-def]
    """Write model, directory, chunks of symbols and low bits; returns (end or -1, escapes)."""
    _fit_model(codes, stride, distinct, columns, work)
    at = _write_model(columns, work, words, at)
    block = block_rows(columns)
    directory = at
    at += (chunk_count(distinct, columns) + 1) // 2
    if at > words.size:
        return -1, 0
    entries = words[directory:at].view(np.uint16)
    entries[entries.size - 1 :] = 0
    chunk, escapes, shift = 0, np.int64(0), np.int64(work.model[0, 1])
    for first in range(0, distinct, block):
        n = min(block, distinct - first)
        lead = (n + 31) // 32 * 32
        if columns == 1:
            work.tile[:n] = codes[first : first + n]
        else:
            predict.gather_columns(codes, stride, columns, work.firsts, first, first + n, work.tile, lead)
        for column in range(columns):
            left = work.left[column * lead : column * lead + n]
            predict.residuals(work.tile, lead, n, column, work.model, work.predicted, left)
            escapes = _symbols(left, n, shift, work.choice[column], work.symbols[column * lead :], work.escapes, escapes)
        if escapes > work.escapes.size:
            return -1, escapes
        width = max(CHUNK // n, 1)
        for column in range(0, columns, width):
            end = encode_chunk(work.symbols[column * lead :], lead, min(width, columns - column), n, work.choice[column:], tables.PUSHES, work.stream, words, at)
            if end < 0:
                return -1, escapes
            entries[chunk] = end - at
            chunk += 1
            at = end
        if shift:
            end = at + (n * columns * shift + 31) // 32
            if end > words.size:
                return -1, escapes
            _write_low(work.left, lead, n, columns, shift, words, at)
            at = end
    return at, escapes


@kernel
def chunk_count(distinct, columns):  # type: ignore[no-untyped-def]
    block = block_rows(columns)
    count = 0
    for first in range(0, distinct, block):
        width = max(CHUNK // min(block, distinct - first), 1)
        count += (columns + width - 1) // width
    return count


@kernel
def _fit_model(codes, stride, distinct, columns, work):  # type: ignore[no-untyped-def]
    """Fit the prediction to rows evenly spread, and choose the columns' tables."""
    n = predict.sample_size(distinct, columns)
    picked = work.predicted[:n]  # numbers of rows, here
    for i in range(n):
        row = i * distinct // n
        picked[i] = work.firsts[row] if columns > 1 else row
    predict.gather_columns(codes, stride, columns, picked, 0, n, work.tile, SAMPLE)
    if columns <= WIDEST:
        predict.fit(work.tile, SAMPLE, n, columns, distinct, work.covariance, work.model)
    else:
        predict.fit_none(work.tile, SAMPLE, n, columns, work.model)
    histogram = np.empty(tables.MAX_SYMBOLS, np.int32)
    for column in range(columns):
        predict.residuals(work.tile, SAMPLE, n, column, work.model, work.predicted, work.left)
        work.choice[column] = predict.choose_table(work.left, n, work.model[0, 1], histogram)


@kernel
def _symbols(left, n, shift, table, symbols, escapes, count):  # type: ignore[no-untyped-def]
    """Split residuals into symbols and escapes; returns the number of escapes so far, of which those that fit are kept."""
    escape = np.uint16(tables.SIZES[table])
    some = np.uint16(0)
    for i in range(np.uintp(n)):
        high = left[i] >> np.uint16(shift)
        some |= np.uint16(high >= escape)
        symbols[i] = min(high, escape)
    if some:
        for i in range(np.uintp(n)):
            if left[i] >> np.uint16(shift) >= escape:
                if count < escapes.size:
                    escapes[count] = left[i]
                count += 1
    return count


@kernel
def _write_low(left, lead, n, columns, shift, words, at):  # type: ignore[no-untyped-def]
    """The lowest `shift` bits of each residual, column by column."""
    mask, held, filled = np.uint64((1 << shift) - 1), np.uint64(0), np.uint64(0)
    for column in range(columns):
        for i in range(np.uintp(column * lead), np.uintp(column * lead + n)):
            held |= (np.uint64(left[i]) & mask) << filled
            filled += np.uint64(shift)
            if filled >= np.uint64(32):
                words[at] = np.uint32(held)
                at += 1
                held >>= np.uint64(32)
                filled -= np.uint64(32)
    if filled:
        words[at] = np.uint32(held)


@kernel
def _read_low(words, at, lead, n, columns, shift, left):  # type: ignore[no-untyped-def]
    """Put the low bits below the symbols, which `left` holds."""
    mask, position = np.uint64((1 << shift) - 1), np.int64(0)
    for column in range(columns):
        for i in range(np.uintp(column * lead), np.uintp(column * lead + n)):
            word, offset = at + position // 32, np.uint64(position % 32)
            value = np.uint64(words[word]) >> offset
            if np.int64(offset) + shift > 32:
                value |= np.uint64(words[word + 1]) << (np.uint64(32) - offset)
            left[i] = (left[i] << np.uint16(shift)) | np.uint16(value & mask)
            position += shift


@kernel
def _model_words(pivots, columns):  # type: ignore[no-untyped-def]
    """Two bytes, the pivots in two bytes each, biases, weights, tables."""
    return (2 + 2 * pivots + columns * (2 + pivots) + 3) // 4


@kernel
def _write_model(columns, work, words, at):  # type: ignore[no-untyped-def]
    """Returns where the next word begins; it may lie behind the end of `words`, and then nothing is written."""
    pivots = np.int64(work.model[0, 0])
    end = at + _model_words(pivots, columns)
    if end > words.size:
        return end
    words[end - 1] = 0
    target = words[at:end].view(np.uint8)
    target[0] = pivots
    target[1] = work.model[0, 1]
    for t in range(pivots):
        target[2 + 2 * t] = work.model[0, 2 + t] & 0xFF
        target[3 + 2 * t] = work.model[0, 2 + t] >> 8
    for part in range(1 + pivots):
        base = 2 + 2 * pivots + part * columns
        for c in range(columns):
            target[base + c] = work.model[1 + part, c] & 0xFF
    base = 2 + 2 * pivots + (1 + pivots) * columns
    target[base : base + columns] = work.choice[:columns]
    return end


@kernel
def _read_model(words, at, end, columns, work):  # type: ignore[no-untyped-def]
    """Returns where the next word begins, or -1 if there is no model."""
    if at >= end:
        return -1
    pivots = np.int64(words[at] & np.uint32(0xFF))
    shift = np.int64((words[at] >> np.uint32(8)) & np.uint32(0xFF))
    if pivots > MOST_PIVOTS or shift > 12 or at + _model_words(pivots, columns) > end:
        return -1
    end = at + _model_words(pivots, columns)
    source = words[at:end].view(np.uint8)
    work.model[0, 0] = pivots
    work.model[0, 1] = shift
    for t in range(pivots):
        pivot = np.int64(source[2 + 2 * t]) | np.int64(source[3 + 2 * t]) << 8
        if pivot >= columns:
            return -1
        work.model[0, 2 + t] = pivot
    for part in range(1 + pivots):
        base = 2 + 2 * pivots + part * columns
        for c in range(columns):
            work.model[1 + part, c] = np.int8(source[base + c])
    base = 2 + 2 * pivots + (1 + pivots) * columns
    for c in range(columns):
        if source[base + c] >= tables.COUNT:
            return -1
        work.choice[c] = source[base + c]
    return end


REFERENCES, MODEL, SYMBOLS, ESCAPES, PATCHES, COUNTS = 1, 2, 3, 4, 5, 6
FIELDS = {
    REFERENCES: "references",
    MODEL: "model",
    SYMBOLS: "symbols",
    ESCAPES: "escapes",
    PATCHES: "patches",
    COUNTS: "counts",
}
"""What `decode_rows` can find wrong."""


@kernel
def decode_rows(words, at, end, rows, columns, step, work, out):  # type: ignore[no-untyped-def]
    """Decode the section `words[at:end]` into float32 [rows * columns]; returns 0 or the field that is wrong.

    Patches are left to the caller: they are the section's last words. Stays within all arrays whatever the words say.
    """
    if is_flat(rows, columns):
        rows, columns = rows * columns, 1
    if at + HEADER > end:
        return COUNTS
    distinct, patches, escapes = np.int64(words[at]), np.int64(words[at + 1]), np.int64(words[at + 2])
    references_end = at + HEADER + np.int64(words[at + 3])
    escapes_end = end - 2 * patches
    symbols_end = escapes_end - (escapes + 1) // 2
    if distinct > rows or distinct < 1 or (columns == 1 and distinct < rows):
        return COUNTS
    if patches > rows * columns or escapes > distinct * columns or references_end > symbols_end:
        return COUNTS
    at += HEADER
    if distinct < rows:
        if not decode_references(words, at, references_end, rows, work.symbols, work.pushes, work.slots, work.stream, work.references):
            return REFERENCES
        if not vector_lz.resolve(work.references, rows, distinct):
            return REFERENCES
    elif references_end != at:
        return REFERENCES
    target = work.distinct if distinct < rows else out
    escaped = words[symbols_end:escapes_end].view(np.uint16)[:escapes]
    error = _decode_codes(words, references_end, symbols_end, escaped, distinct, columns, step, work, target)
    if error == 0 and distinct < rows:
        _expand(work.distinct, work.references, rows, columns, out)
    return error


@kernel
def _decode_codes(words, at, end, escaped, distinct, columns, step, work, out):  # type: ignore[no-untyped-def]
    at = _read_model(words, at, end, columns, work)
    if at < 0:
        return MODEL
    block = block_rows(columns)
    directory = at
    at += (chunk_count(distinct, columns) + 1) // 2
    if at > end:
        return SYMBOLS
    entries = words[directory:at].view(np.uint16)
    chunk, used, shift, pivots = 0, np.int64(0), np.int64(work.model[0, 1]), np.int64(work.model[0, 0])
    for first in range(0, distinct, block):
        n = min(block, distinct - first)
        lead = (n + 31) // 32 * 32
        width = max(CHUNK // n, 1)
        for column in range(0, columns, width):
            stop = at + np.int64(entries[chunk])
            if stop > end or not decode_chunk(words, at, stop, min(width, columns - column), n, work.choice[column:], tables.SLOTS, work.stream, work.symbols[column * lead :], lead):
                return SYMBOLS
            chunk += 1
            at = stop
        for i in range(np.uintp(columns * lead)):
            work.left[i] = work.symbols[i]
        if shift:
            stop = at + (n * columns * shift + 31) // 32
            if stop > end:
                return SYMBOLS
            _read_low(words, at, lead, n, columns, shift, work.left)
            at = stop
        if escaped.size:
            used = _place_escapes(work, lead, n, columns, escaped, used)
            if used < 0:
                return ESCAPES
        for t in range(pivots):
            column = np.int64(work.model[0, 2 + t])
            predict.restore(work.left[column * lead :], work.tile, lead, n, column, work.model, work.predicted)
        for column in range(columns):
            if predict.pivots_used(work.model, column) == pivots:
                predict.restore(work.left[column * lead :], work.tile, lead, n, column, work.model, work.predicted)
        _dequantize(work.tile, lead, n, columns, step, out[first * columns :])
    if at != end:
        return SYMBOLS
    return 0 if used == escaped.size else ESCAPES


@kernel
def _place_escapes(work, lead, n, columns, escaped, used):  # type: ignore[no-untyped-def]
    """Put escaped residuals in their places; returns how many are used, -1 if there are too few."""
    for column in range(columns):
        escape = tables.SIZES[work.choice[column]]
        for i in range(np.uintp(column * lead), np.uintp(column * lead + n)):
            if work.symbols[i] == escape:
                if used == escaped.size:
                    return -1
                work.left[i] = escaped[used]
                used += 1
    return used


@kernel
def _dequantize(tile, lead, n, columns, step, out):  # type: ignore[no-untyped-def]
    for c in range(np.uintp(columns)):
        base = c * np.uintp(lead)
        at = c
        for i in range(np.uintp(n)):
            out[at] = np.float32(tile[base + i]) * step
            at += np.uintp(columns)


@kernel
def _expand(distinct, numbers, rows, columns, out):  # type: ignore[no-untyped-def]
    for row in range(np.uintp(rows)):
        source, target = np.uintp(numbers[row]) * np.uintp(columns), row * np.uintp(columns)
        for c in range(np.uintp(columns)):
            out[target + c] = distinct[source + c]
