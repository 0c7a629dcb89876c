"""The symbols and low bits of a tile, a block of rows by columns, to words and back, with either coder."""

from __future__ import annotations

import numpy as np

from compression import huffman
from compression.entropy import CHUNK, decode_columns, encode_columns
from compression.kernel import inner
from compression.shapes import block_rows
from compression.symbols import symbol_count
from compression.wire import HUFFMAN


@inner
def write_rans(n, columns, lead, work, words, at, entries, entry):
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


@inner
def write_huffman(n, columns, lead, work, words, at, entries, entry):
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


@inner
def read_rans(n, columns, lead, work, words, at, end, entries, entry):
    """Read the symbols of a tile; returns where they end, or -1 if they are not what an encoder writes."""
    c = 0
    while c < columns:
        group = _group(work, c, columns, n)
        stop = at + np.int64(entries[entry])
        counts, choice = work.counts[: group - c], work.choice[c:]
        symbols = work.symbols[c * lead :]
        if stop > end or not decode_columns(
            words, at, stop, counts, choice, work.family_slots, work.stream, symbols, lead
        ):
            return -1, entry
        entry += 1
        at, c = stop, group
    return at, entry


@inner
def read_huffman(n, columns, lead, work, words, at, end, entries, entry):
    """Read the symbols of a tile; returns where they end, or -1 if they are not what an encoder writes."""
    starts = work.counts
    bit = at * 32
    for c in range(columns):
        starts[c] = bit
        bit += np.int64(entries[entry + c])
    stop = (bit + 31) // 32
    if stop > end or words.size < 2:
        return -1, entry
    places, to, which, members = (
        np.empty(4, np.uint64),
        np.empty(4, np.uint64),
        np.empty(4, np.int64),
        np.empty(4, np.int64),
    )
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


@inner
def _group(work, column, columns, n):
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


@inner
def entry_count(distinct, columns, coder, work):
    """Entries of the directory, uint16."""
    block = block_rows(columns)
    if coder == HUFFMAN:
        return (distinct + block - 1) // block * columns
    whole, rest = distinct // block, distinct % block
    return whole * _chunks_of_block(block, columns, work) + (_chunks_of_block(rest, columns, work) if rest else 0)


@inner
def _chunks_of_block(n, columns, work):
    column, count = 0, 0
    while column < columns:
        column = _group(work, column, columns, n)
        count += 1
    return count


@inner
def write_low(left, lead, n, columns, shift, words, at):
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


@inner
def read_low(words, at, lead, n, columns, shift, left):
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
