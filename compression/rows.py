"""The rows of one table under a bound: quantise, store equal rows once, predict columns from columns, code the rest.

docs/wire-format.md, "Chains rans and huffman", has the layout.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression import huffman, predict, tables, vector_lz
from compression.entropy import CHUNK, decode_columns, encode_columns
from compression.kernel import kernel
from compression.predict import MOST_PIVOTS, SAMPLE, WIDEST
from compression.quantize import quantize
from compression.references import (
    decode_references,
    decode_references_huffman,
    encode_references,
    encode_references_huffman,
)
from compression.symbols import from_symbols, place_escapes, symbol_count, to_symbols
from compression.transpose import gather_turned, scatter_turned
from compression.wire import HUFFMAN

HEADER = 4
"""Words of a section before its model: distinct rows, patches, escapes, words of the references."""
TILE = 1 << 18
"""Most codes of a block of rows, but for very wide rows."""
FEWEST_ROWS, MOST_COLUMNS = 8, 4096
"""Outside of these a matrix is coded as a single column, in the order of its memory."""


class Work(NamedTuple):
    """Working memory of `encode_rows` and `decode_rows`; `workspace` says how large."""

    codes: NDArray[np.uint64]
    table: NDArray[np.int32]
    references: NDArray[np.uint32]
    firsts: NDArray[np.int32]
    symbols: NDArray[np.uint8]
    tile: NDArray[np.uint64]
    left: NDArray[np.uint64]
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
    distinct: NDArray[np.uint64]
    counts: NDArray[np.int64]
    family_pushes: NDArray[np.uint32]
    family_slots: NDArray[np.uint32]
    known: NDArray[np.uint8]
    codes_of: NDArray[np.uint32]
    decoding: NDArray[np.uint16]
    costs: NDArray[np.int32]
    means: NDArray[np.int32]
    paired: NDArray[np.uint8]


@kernel
def most_patches(values):  # type: ignore[no-untyped-def]
    """Of more patches a section of so many values is not made: it depends on the section alone, not on what memory there
    is, so that every encoder makes the same bytes."""
    return values // 16 + 32


@kernel
def most_escapes(values):  # type: ignore[no-untyped-def]
    """Likewise, of escaped residuals."""
    return values // 8 + 64


@kernel
def is_flat(rows, columns):  # type: ignore[no-untyped-def]
    """Whether a matrix is coded as a single column."""
    return rows < FEWEST_ROWS or columns > MOST_COLUMNS or columns < 2


@kernel
def block_rows(columns):  # type: ignore[no-untyped-def]
    """Rows that are transposed, predicted and coded together."""
    return min(max(TILE // columns, 64), 4096)


@kernel
def encode_rows(x, bits, rows, columns, step, inverse, limit, coder, work, words, at):  # type: ignore[no-untyped-def]
    """Write a section from `words[at]` on and return where it ends, or -1 if another chain is to take the table.

    Args:
        x: float32 [rows * columns]; bits: uint32 of the same size: what is sent of a value that no code holds.
        step, inverse, limit: see `quantize.grid`.
        coder: RANS or HUFFMAN.
        words: uint32; with Huffman some thousand words more than the section are needed.
    """
    if is_flat(rows, columns):
        rows, columns = rows * columns, 1
    stride, patches = quantize_codes(x, bits, rows, columns, step, inverse, limit, work)
    if patches > most_patches(rows * columns):
        return -1
    narrow = stride > 0
    stride = abs(stride)
    distinct = rows
    if columns > 1:
        distinct = match_codes(rows, stride // 8 if narrow else stride // 4, work)
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
        if coder == HUFFMAN:
            end = encode_references_huffman(work.references, rows, work.symbols, words, at)
        else:
            end = encode_references(work.references, rows, work.symbols, work.pushes, work.slots, work.stream, words, at)
        if end < 0:
            return -1
        words[start + 3] = end - at
        at = end
    if narrow:
        tile, left = work.tile.view(np.int8), work.left.view(np.uint8)
        at, escapes = _encode_codes(codes8, tile, left, stride, distinct, columns, coder, work, words, at)
    else:
        wide_tile, wide_left = work.tile.view(np.int16), work.left.view(np.uint16)
        at, escapes = _encode_codes(codes16, wide_tile, wide_left, stride, distinct, columns, coder, work, words, at)
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
def quantize_codes(x, bits, rows, columns, step, inverse, limit, work):  # type: ignore[no-untyped-def]
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
def match_codes(rows, width, work):  # type: ignore[no-untyped-def]
    """Number the distinct rows of `width` words; returns how many there are."""
    size = 64
    while size < 2 * rows:
        size *= 2
    return vector_lz.match(work.codes, width, rows, work.table[:size], work.references, work.firsts)


@kernel
def _encode_codes(codes, tile, left, stride, distinct, columns, coder, work, words, at):  # type: ignore[no-untyped-def]
    """Write model, directory, chunks of symbols and low bits; returns (end or -1, escapes).

    Args:
        codes: int8 or int16 [rows * stride]; tile, left: working memory as wide.
    """
    _fit_model(codes, tile, left, stride, distinct, columns, work)
    at = _write_model(columns, codes.itemsize, work, words, at)
    block = block_rows(columns)
    directory = at
    at += (entry_count(distinct, columns, coder, work) + 1) // 2
    if at > words.size:
        return -1, 0
    entries = words[directory:at].view(np.uint16)
    entries[entries.size - 1 :] = 0
    entry, escapes, shift = 0, np.int64(0), np.int64(work.model[0, 1])
    for first in range(0, distinct, block):
        n = min(block, distinct - first)
        lead = tile_lead(n)
        _gather(codes, stride, columns, work.firsts, first, n, tile, lead, work)
        for c in range(columns):
            one = left[c * lead : (c + 1) * lead]
            predict.residuals(tile, lead, n, c, work.model, work.predicted, one)
            table = np.uintp(work.choice[c])
            escapes = to_symbols(one, n, shift, work.paired[table], work.known[table], work.symbols[c * lead :], work.escapes, escapes)
        if escapes > most_escapes(distinct * columns):
            return -1, escapes
        if coder == HUFFMAN:
            at, entry = _write_huffman(n, columns, lead, work, words, at, entries, entry)
        else:
            at, entry = _write_rans(n, columns, lead, work, words, at, entries, entry)
        if at < 0:
            return -1, escapes
        if shift:
            end = at + (n * columns * shift + 31) // 32
            if end > words.size:
                return -1, escapes
            _write_low(left, lead, n, columns, shift, words, at)
            at = end
    return at, escapes


@kernel
def _write_rans(n, columns, lead, work, words, at, entries, entry):  # type: ignore[no-untyped-def]
    """Write the symbols of a tile in chunks of some columns, an entry the words of a chunk."""
    c = 0
    while c < columns:
        stop = _group(work, c, columns, n)
        counts, choice = work.counts[: stop - c], work.choice[c:]
        symbols = work.symbols[c * lead :]
        end = encode_columns(symbols, lead, counts, choice, work.family_pushes, work.stream, words, at)
        if end < 0:
            return -1, entry
        entries[entry] = end - at
        entry += 1
        at, c = end, stop
    return at, entry


@kernel
def _write_huffman(n, columns, lead, work, words, at, entries, entry):  # type: ignore[no-untyped-def]
    """Write the symbols of a tile as one stream, an entry the bits of a column."""
    bit, bits = np.uint64(at) << np.uint64(5), np.uint64(0)
    for c in range(columns):
        table = np.uintp(work.choice[c])
        count = symbol_count(n, work.paired[table])
        if np.int64(bit) + huffman.MAX_LENGTH * count + 128 > 32 * words.size:
            return -1, entry
        start = bit
        first = c * lead
        bit, bits = huffman.write_codes(work.symbols, first, first + count, work.codes_of[table], words, bit, bits)
        entries[entry] = bit - start
        entry += 1
    return (np.int64(bit) + 31) // 32, entry


@kernel
def _read_rans(n, columns, lead, work, words, at, end, entries, entry):  # type: ignore[no-untyped-def]
    """Read the symbols of a tile; returns where they end, or -1 if they are not what an encoder writes."""
    c = 0
    while c < columns:
        group = _group(work, c, columns, n)
        stop = at + np.int64(entries[entry])
        counts, choice = work.counts[: group - c], work.choice[c:]
        symbols = work.symbols[c * lead :]
        if stop > end or not decode_columns(words, at, stop, counts, choice, work.family_slots, work.stream, symbols, lead):
            return -1, entry
        entry += 1
        at, c = stop, group
    return at, entry


@kernel
def _read_huffman(n, columns, lead, work, words, at, end, entries, entry):  # type: ignore[no-untyped-def]
    """Read the symbols of a tile; returns where they end, or -1 if they are not what an encoder writes."""
    starts = work.counts
    bit = at * 32
    for c in range(columns):
        starts[c] = bit
        bit += np.int64(entries[entry + c])
    stop = (bit + 31) // 32
    if stop > end or words.size < 2:
        return -1, entry
    places, to, which, members = np.empty(4, np.uint64), np.empty(4, np.uint64), np.empty(4, np.int64), np.empty(4, np.int64)
    for paired in range(2):
        count = symbol_count(n, paired)
        filled = 0
        last = -1
        for c in range(columns):
            if work.paired[np.uintp(work.choice[c])] == paired:
                last = c
        for c in range(last + 1):
            if work.paired[np.uintp(work.choice[c])] != paired:
                continue
            members[filled] = c
            filled += 1
            if filled < 4 and c < last:
                continue
            for i in range(4):
                one = members[i if i < filled else 0]  # a column too many is decoded twice, to the same place
                places[i], to[i], which[i] = starts[one], one * lead, work.choice[one]
            huffman.read_codes(words, places, work.decoding, which, work.symbols, to, count)
            for i in range(filled):
                if np.int64(places[i]) != starts[members[i]] + np.int64(entries[entry + members[i]]):
                    return -1, entry
            filled = 0
    return stop, entry + columns


@kernel
def tile_lead(n):  # type: ignore[no-untyped-def]
    """Distance of the columns in a tile of n rows: one element is left behind each column."""
    return (n + 32) // 32 * 32


@kernel
def _gather(codes, stride, columns, rows, first, n, tile, lead, work):  # type: ignore[no-untyped-def]
    """Fill a tile with `n` rows of codes, transposed."""
    if columns == 1:
        for i in range(np.uintp(n)):
            tile[i] = codes[np.uintp(first) + i]
    elif codes.itemsize == 1:
        gather_turned(work.codes, stride // 8, rows, first, n, work.tile, lead // 8)
    else:
        predict.gather_columns(codes, stride, columns, rows, first, first + n, tile, lead)


@kernel
def _group(work, column, columns, n):  # type: ignore[no-untyped-def]
    """Columns from this one on make up a chunk together: where the next one begins. Their lengths go to `counts`."""
    total, start = 0, column
    while column < columns:
        count = symbol_count(n, work.paired[np.uintp(work.choice[column])])
        if column > start and total + count > CHUNK:
            break
        work.counts[column - start] = count
        total += count
        column += 1
    return column


@kernel
def entry_count(distinct, columns, coder, work):  # type: ignore[no-untyped-def]
    """Entries of the directory, uint16."""
    block = block_rows(columns)
    if coder == HUFFMAN:
        return (distinct + block - 1) // block * columns
    whole, rest = distinct // block, distinct % block
    return whole * _chunks_of_block(block, columns, work) + (_chunks_of_block(rest, columns, work) if rest else 0)


@kernel
def _chunks_of_block(n, columns, work):  # type: ignore[no-untyped-def]
    column, count = 0, 0
    while column < columns:
        column = _group(work, column, columns, n)
        count += 1
    return count


@kernel
def _fit_model(codes, tile, left, stride, distinct, columns, work):  # type: ignore[no-untyped-def]
    """Fit the prediction to rows evenly spread, and choose the columns' tables."""
    n = predict.sample_size(distinct, columns)
    lead = tile_lead(n)
    if columns == 1:
        for i in range(n):
            tile[i] = codes[i * distinct // n]
    else:
        picked = work.predicted[:n]  # numbers of rows, here
        for i in range(n):
            picked[i] = work.firsts[i * distinct // n]
        _gather(codes, stride, columns, picked, 0, n, tile, lead, work)
    if columns <= WIDEST:
        predict.fit(tile, lead, n, columns, distinct, work.covariance, work.model)
    else:
        predict.fit_none(tile, lead, n, columns, work.model)
    histogram = np.empty(tables.MAGNITUDES, np.int32)
    for column in range(columns):
        predict.residuals(tile, lead, n, column, work.model, work.predicted, left)
        work.choice[column] = predict.choose_table(left, n, work.model[0, 1], work.costs, work.means, histogram)


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
def _write_model(columns, width, work, words, at):  # type: ignore[no-untyped-def]
    """Returns where the next word begins; it may lie behind the end of `words`, and then nothing is written."""
    pivots = np.int64(work.model[0, 0])
    end = at + _model_words(pivots, columns)
    if end > words.size:
        return end
    words[end - 1] = 0
    target = words[at:end].view(np.uint8)
    target[0] = pivots
    target[1] = work.model[0, 1] << 4 | width
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
    """Returns where the next word begins, or -1 if there is no model, and the bytes of a code."""
    if at >= end:
        return -1, 0
    pivots = np.int64(words[at] & np.uint32(0xFF))
    width = np.int64((words[at] >> np.uint32(8)) & np.uint32(15))
    shift = np.int64((words[at] >> np.uint32(12)) & np.uint32(15))
    if pivots > MOST_PIVOTS or shift > 12 or width < 1 or width > 2 or at + _model_words(pivots, columns) > end:
        return -1, 0
    end = at + _model_words(pivots, columns)
    source = words[at:end].view(np.uint8)
    work.model[0, 0] = pivots
    work.model[0, 1] = shift
    for t in range(pivots):
        pivot = np.int64(source[2 + 2 * t]) | np.int64(source[3 + 2 * t]) << 8
        if pivot >= columns:
            return -1, 0
        work.model[0, 2 + t] = pivot
    for part in range(1 + pivots):
        base = 2 + 2 * pivots + part * columns
        for c in range(columns):
            work.model[1 + part, c] = np.int8(source[base + c])
    base = 2 + 2 * pivots + (1 + pivots) * columns
    for c in range(columns):
        if source[base + c] >= tables.COUNT:
            return -1, 0
        work.choice[c] = source[base + c]
    return end, width


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
def decode_rows(words, at, end, rows, columns, step, coder, work, out):  # type: ignore[no-untyped-def]
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
    if patches > rows * columns or references_end > symbols_end:
        return COUNTS
    at += HEADER
    if distinct < rows:
        if coder == HUFFMAN:
            good = decode_references_huffman(words, at, references_end, rows, work.symbols, work.references)
        else:
            good = decode_references(words, at, references_end, rows, work.symbols, work.pushes, work.slots, work.stream, work.references)
        if not good:
            return REFERENCES
        if not vector_lz.resolve(work.references, rows, distinct):
            return REFERENCES
    elif references_end != at:
        return REFERENCES
    escaped = words[symbols_end:escapes_end].view(np.uint16)[:escapes]
    at, width = _read_model(words, references_end, symbols_end, columns, work)
    if at < 0:
        return MODEL
    if width == 1:
        stride = columns if columns == 1 else (columns + 7) // 8 * 8
        tile, left, codes = work.tile.view(np.int8), work.left.view(np.uint8), work.distinct.view(np.int8)
        error = _decode_codes(words, at, symbols_end, escaped, distinct, columns, stride, coder, work, tile, left, codes)
        if error == 0:
            expand(codes, stride, work.references, distinct < rows, rows, columns, step, out)
    else:
        stride = columns
        wide_tile, wide_left, wide = work.tile.view(np.int16), work.left.view(np.uint16), work.distinct.view(np.int16)
        error = _decode_codes(words, at, symbols_end, escaped, distinct, columns, stride, coder, work, wide_tile, wide_left, wide)
        if error == 0:
            expand(wide, stride, work.references, distinct < rows, rows, columns, step, out)
    return error


@kernel
def _decode_codes(words, at, end, escaped, distinct, columns, stride, coder, work, tile, left, codes):  # type: ignore[no-untyped-def]
    """Decode directory, chunks and low bits into the codes of the distinct rows; returns 0 or the field that is wrong."""
    block = block_rows(columns)
    directory = at
    at += (entry_count(distinct, columns, coder, work) + 1) // 2
    if at > end:
        return SYMBOLS
    entries = words[directory:at].view(np.uint16)
    entry, used, shift, pivots = 0, np.int64(0), np.int64(work.model[0, 1]), np.int64(work.model[0, 0])
    for first in range(0, distinct, block):
        n = min(block, distinct - first)
        lead = tile_lead(n)
        if coder == HUFFMAN:
            at, entry = _read_huffman(n, columns, lead, work, words, at, end, entries, entry)
        else:
            at, entry = _read_rans(n, columns, lead, work, words, at, end, entries, entry)
        if at < 0:
            return SYMBOLS
        for c in range(columns):
            from_symbols(work.symbols[c * lead :], n, work.paired[np.uintp(work.choice[c])], left[c * lead :])
        if shift:
            stop = at + (n * columns * shift + 31) // 32
            if stop > end:
                return SYMBOLS
            _read_low(words, at, lead, n, columns, shift, left)
            at = stop
        if escaped.size:
            for c in range(columns):
                pair = work.paired[np.uintp(work.choice[c])]
                used = place_escapes(work.symbols[c * lead :], n, pair, escaped, used, left[c * lead :])
                if used < 0:
                    return ESCAPES
        for t in range(pivots):
            c = np.int64(work.model[0, 2 + t])
            predict.restore(left[c * lead :], tile, lead, n, c, work.model, work.predicted)
        for c in range(columns):
            if predict.pivots_used(work.model, c) == pivots:
                predict.restore(left[c * lead :], tile, lead, n, c, work.model, work.predicted)
        if columns == 1:
            codes[first : first + n] = tile[:n]
        elif codes.itemsize == 1:
            scatter_turned(work.tile, lead // 8, n, stride // 8, work.distinct[first * stride // 8 :])
        else:
            predict.scatter_columns(tile, lead, n, columns, codes[first * columns :])
    if at != end:
        return SYMBOLS
    return 0 if used == escaped.size else ESCAPES


@kernel
def expand(codes, stride, numbers, numbered, rows, columns, step, out):  # type: ignore[no-untyped-def]
    """Values of all rows from the codes of the distinct ones."""
    for row in range(np.uintp(rows)):
        source = (np.uintp(numbers[row]) if numbered else row) * np.uintp(stride)
        target = row * np.uintp(columns)
        for c in range(np.uintp(columns)):
            out[target + c] = np.float32(codes[source + c]) * step
