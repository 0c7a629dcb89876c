"""The rows of one table under a bound: quantise, store equal rows once, predict columns from columns, code the rest.

docs/wire-format.md, "Chains huffman and rans", has the layout.
"""

from __future__ import annotations

import numpy as np

from compression import predict, vector_lz
from compression.kernel import inner
from compression.model import fit_model, gather, read_model, write_model
from compression.quantize import quantize
from compression.references import (
    decode_references,
    decode_references_huffman,
    encode_references,
    encode_references_huffman,
)
from compression.shapes import block_rows, is_flat, most_escapes, most_patches, tile_lead
from compression.symbols import from_symbols, place_escapes, to_symbols
from compression.tables import ESCAPE
from compression.tiles import entry_count, read_huffman, read_low, read_rans, write_huffman, write_low, write_rans
from compression.transpose import scatter_turned
from compression.wire import HUFFMAN

HEADER = 4
"""Words of a section before its model: distinct rows, patches, escapes, words of the references."""


@inner
def encode_rows(x, bits, rows, columns, step, inverse, limit, coder, work, words, at):
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
            end = encode_references(
                work.references, rows, work.symbols, work.pushes, work.slots, work.stream, words, at
            )
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


@inner
def quantize_codes(x, bits, rows, columns, step, inverse, limit, work):
    """Quantise to int8, or int16 where that leaves too many values out of reach; returns (stride, patches).

    The stride is negative for int16. Rows are padded to whole words of 8 bytes, so that they can be compared by words.
    """
    stride = columns if columns == 1 else (columns + 7) // 8 * 8
    patches = quantize(
        x,
        bits,
        columns,
        0,
        rows,
        stride,
        inverse,
        step,
        limit,
        np.float32(127),
        work.codes.view(np.int8),
        work.patch_at,
        work.patch_bits,
    )
    if 128 * patches <= rows * columns:
        return stride, patches
    stride = columns if columns == 1 else (columns + 3) // 4 * 4
    patches = quantize(
        x,
        bits,
        columns,
        0,
        rows,
        stride,
        inverse,
        step,
        limit,
        np.float32(32767),
        work.codes.view(np.int16),
        work.patch_at,
        work.patch_bits,
    )
    return -stride, patches


@inner
def match_codes(rows, width, work):
    """Number the distinct rows of `width` words; returns how many there are."""
    size = 64
    while size < 2 * rows:
        size *= 2
    return vector_lz.match(work.codes, width, rows, work.table[:size], work.references, work.firsts)


@inner
def _encode_codes(codes, tile, left, stride, distinct, columns, coder, work, words, at):
    """Write model, directory and tiles; returns (end or -1, escapes).

    Args:
        codes: int8 or int16 [rows * stride]; tile, left: working memory as wide.
    """
    fit_model(codes, tile, left, stride, distinct, columns, work)
    at = write_model(columns, codes.itemsize, work, words, at)
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
        gather(codes, stride, columns, work.firsts, first, n, tile, lead, work)
        for c in range(columns):
            one = left[c * lead : (c + 1) * lead]
            predict.residuals(tile, lead, n, c, work.model, work.predicted, one)
            table = np.uintp(work.choice[c])
            escapes = to_symbols(
                one, n, shift, work.paired[table], work.known[table], work.symbols[c * lead :], work.escapes, escapes
            )
        if escapes > most_escapes(distinct * columns):
            return -1, escapes
        if coder == HUFFMAN:
            at, entry = write_huffman(n, columns, lead, work, words, at, entries, entry)
        else:
            at, entry = write_rans(n, columns, lead, work, words, at, entries, entry)
        if at < 0:
            return -1, escapes
        if shift:
            end = at + (n * columns * shift + 31) // 32
            if end > words.size:
                return -1, escapes
            write_low(left, lead, n, columns, shift, words, at)
            at = end
    return at, escapes


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


@inner
def decode_rows(words, at, end, rows, columns, step, coder, work, out):
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
            good = decode_references(
                words, at, references_end, rows, work.symbols, work.pushes, work.slots, work.stream, work.references
            )
        if not good:
            return REFERENCES
        if not vector_lz.resolve(work.references, rows, distinct):
            return REFERENCES
    elif references_end != at:
        return REFERENCES
    escaped = words[symbols_end:escapes_end].view(np.uint16)[:escapes]
    at, width = read_model(words, references_end, symbols_end, columns, work)
    if at < 0:
        return MODEL
    if width == 1:
        stride = columns if columns == 1 else (columns + 7) // 8 * 8
        tile, left, codes = work.tile.view(np.int8), work.left.view(np.uint8), work.distinct.view(np.int8)
        error = _decode_codes(
            words, at, symbols_end, escaped, distinct, columns, stride, coder, work, tile, left, codes
        )
        if error == 0:
            expand(codes, stride, work.references, distinct < rows, rows, columns, step, out)
    else:
        stride = columns
        wide_tile, wide_left, wide = work.tile.view(np.int16), work.left.view(np.uint16), work.distinct.view(np.int16)
        error = _decode_codes(
            words, at, symbols_end, escaped, distinct, columns, stride, coder, work, wide_tile, wide_left, wide
        )
        if error == 0:
            expand(wide, stride, work.references, distinct < rows, rows, columns, step, out)
    return error


@inner
def _decode_codes(words, at, end, escaped, distinct, columns, stride, coder, work, tile, left, codes):
    """Decode directory and tiles into the codes of the distinct rows; returns 0 or what is wrong."""
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
            at, entry = read_huffman(n, columns, lead, work, words, at, end, entries, entry)
        else:
            at, entry = read_rans(n, columns, lead, work, words, at, end, entries, entry)
        if at < 0:
            return SYMBOLS
        for c in range(columns):
            pair = work.paired[np.uintp(work.choice[c])]
            largest = from_symbols(work.symbols[c * lead :], n, pair, left[c * lead :])
            if largest == ESCAPE and escaped.size == 0:
                return ESCAPES
        if shift:
            stop = at + (n * columns * shift + 31) // 32
            if stop > end:
                return SYMBOLS
            read_low(words, at, lead, n, columns, shift, left)
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


@inner
def expand(codes, stride, numbers, numbered, rows, columns, step, out):
    """Values of all rows from the codes of the distinct ones."""
    for row in range(np.uintp(rows)):
        source = (np.uintp(numbers[row]) if numbered else row) * np.uintp(stride)
        target = row * np.uintp(columns)
        for c in range(np.uintp(columns)):
            out[target + c] = np.float32(codes[source + c]) * step
