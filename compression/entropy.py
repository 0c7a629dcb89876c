"""Interleaved rANS (range asymmetric numeral systems, J. Duda, arXiv 1311.2540) over small symbols, in chunks that are
decoded each alone.

A chunk holds some columns of symbols, each with a table of its own. Its symbols are dealt out to lanes, row r of a
column to lane r mod lanes, so that a decoder has several independent states to work on; all lanes read from one stream.
A state is 32 bits wide, of which 2^15 <= state < 2^31, and gives or takes 16 bits at a time.
"""

from __future__ import annotations

import numpy as np

from compression.kernel import inner
from compression.tables import PRECISION

CHUNK = 8192
"""Most symbols of a chunk."""
WIDE, LANES = 1024, 8
"""A chunk of so many symbols has so many lanes, a smaller one has two."""
CHUNK_WORDS = CHUNK // 2 + LANES + 1
"""Most 32-bit words of an encoded chunk: no symbol takes more than 16 bits on the stream."""

_LOW = np.uint32(1 << 15)
_SLOT = np.uint32((1 << PRECISION) - 1)
_P = np.uint32(PRECISION)
_16, _20, _8 = np.uint32(16), np.uint32(20), np.uint32(8)
_12BITS, _BYTE = np.uint32(0xFFF), np.uint32(0xFF)
_U1 = np.uintp(1)


@inner
def _push(state, symbol, pushes, stream, at):
    full = state >= pushes[symbol, np.uintp(0)]
    stream[at - _U1] = np.uint16(state)
    at -= np.uintp(full)
    state = state >> _16 if full else state
    product = np.uint64(state) * np.uint64(pushes[symbol, np.uintp(1)])
    quotient = np.uint32(product >> np.uint64(pushes[symbol, np.uintp(2)] & np.uint32(63)))
    return state + quotient * (pushes[symbol, np.uintp(2)] >> _8) + pushes[symbol, np.uintp(3)], at


@inner
def _pop(state, slots, stream, at):
    entry = slots[state & _SLOT]
    state = (entry >> _20) * (state >> _P) + ((entry >> _8) & _12BITS)
    low = state < _LOW
    state = (state << _16) | np.uint32(stream[at]) if low else state
    return state, np.uint8(entry & _BYTE), at + np.uintp(low)


@inner
def _push_column(states, lanes, symbols, first, n, pushes, stream, at):
    """Push the symbols `first` to `first + n`, the last first."""
    whole = n - n % lanes
    for i in range(n - 1, whole - 1, -1):
        lane = np.uintp(i - whole)
        states[lane], at = _push(states[lane], symbols[np.uintp(first + i)], pushes, stream, at)
    if lanes == 8:
        a, b, c, d = states[0], states[1], states[2], states[3]
        e, f, g, h = states[4], states[5], states[6], states[7]
        i = np.uintp(first + whole)
        start = np.uintp(first)
        while i > start:
            h, at = _push(h, symbols[i - np.uintp(1)], pushes, stream, at)
            g, at = _push(g, symbols[i - np.uintp(2)], pushes, stream, at)
            f, at = _push(f, symbols[i - np.uintp(3)], pushes, stream, at)
            e, at = _push(e, symbols[i - np.uintp(4)], pushes, stream, at)
            d, at = _push(d, symbols[i - np.uintp(5)], pushes, stream, at)
            c, at = _push(c, symbols[i - np.uintp(6)], pushes, stream, at)
            b, at = _push(b, symbols[i - np.uintp(7)], pushes, stream, at)
            a, at = _push(a, symbols[i - np.uintp(8)], pushes, stream, at)
            i -= np.uintp(8)
        states[0], states[1], states[2], states[3] = a, b, c, d
        states[4], states[5], states[6], states[7] = e, f, g, h
    else:
        for i in range(whole - 1, -1, -1):
            lane = np.uintp(i & (lanes - 1))
            states[lane], at = _push(states[lane], symbols[np.uintp(first + i)], pushes, stream, at)
    return at


@inner
def _pop_column(states, lanes, symbols, first, n, slots, stream, at):
    """Fill the symbols `first` to `first + n`."""
    whole = n - n % lanes
    if lanes == 8:
        a, b, c, d = states[0], states[1], states[2], states[3]
        e, f, g, h = states[4], states[5], states[6], states[7]
        i = np.uintp(first)
        end = np.uintp(first + whole)
        while i < end:
            a, symbols[i], at = _pop(a, slots, stream, at)
            b, symbols[i + np.uintp(1)], at = _pop(b, slots, stream, at)
            c, symbols[i + np.uintp(2)], at = _pop(c, slots, stream, at)
            d, symbols[i + np.uintp(3)], at = _pop(d, slots, stream, at)
            e, symbols[i + np.uintp(4)], at = _pop(e, slots, stream, at)
            f, symbols[i + np.uintp(5)], at = _pop(f, slots, stream, at)
            g, symbols[i + np.uintp(6)], at = _pop(g, slots, stream, at)
            h, symbols[i + np.uintp(7)], at = _pop(h, slots, stream, at)
            i += np.uintp(8)
        states[0], states[1], states[2], states[3] = a, b, c, d
        states[4], states[5], states[6], states[7] = e, f, g, h
    else:
        for i in range(whole):
            lane = np.uintp(i & (lanes - 1))
            states[lane], symbols[np.uintp(first + i)], at = _pop(states[lane], slots, stream, at)
    for i in range(whole, n):
        lane = np.uintp(i - whole)
        states[lane], symbols[np.uintp(first + i)], at = _pop(states[lane], slots, stream, at)
    return at


@inner
def encode_columns(symbols, stride, counts, choice, pushes, scratch, words, at):
    """Encode columns of symbols as a chunk and return where the next one begins, or -1 if `words` is full.

    Args:
        symbols: uint8; column c is at `c * stride`.
        counts: int64 [columns], symbols of each column, CHUNK at most in all.
        choice: uint8 [>= columns], the table of each column.
        pushes: uint32 [tables, symbols, 4]; see `tables.fill_table`.
        scratch: uint16 [> CHUNK].
        words: uint32, out, written from `at` on.
    """
    lanes = LANES if counts.sum() >= WIDE else 2
    states = np.full(LANES, _LOW, np.uint32)
    end = np.uintp(scratch.size)
    begin = end
    for column in range(counts.size - 1, -1, -1):
        table = pushes[choice[column]]
        begin = _push_column(states, lanes, symbols, column * stride, counts[column], table, scratch, begin)
    count = np.int64(end - begin)
    next_at = at + lanes + (count + 1) // 2
    if next_at > words.size:
        return -1
    words[next_at - 1] = 0
    words[at : at + lanes] = states[:lanes]
    words[at + lanes : next_at].view(np.uint16)[:count] = scratch[begin:]
    return next_at


@inner
def decode_columns(words, at, end, counts, choice, slots, scratch, symbols, stride):
    """Decode the chunk in `words[at:end]`; False if it is not what an encoder writes. Stays within all arrays.

    Args:
        counts: int64 [columns], symbols of each column, CHUNK at most in all.
        choice: uint8 [>= columns], the table of each column.
        slots: uint32 [tables, 2048]; see `tables.fill_table`.
        scratch: uint16 [>= CHUNK + CHUNK_WORDS * 2], for a chunk near the end of `words`.
        symbols: uint8, out; column c is at `c * stride`.
    """
    total = counts.sum()
    lanes = LANES if total >= WIDE else 2
    given = 2 * (end - at - lanes)
    if given < 0 or given > total + 1:
        return False
    states = np.empty(LANES, np.uint32)
    states[:lanes] = words[at : at + lanes]
    # No symbol reads more than one element, so this many are enough for bytes that lie, too.
    stream = words[at + lanes :].view(np.uint16)
    if stream.size < total + 1:
        scratch[: stream.size] = stream
        scratch[stream.size : total + 1] = 0
        stream = scratch
    position = np.uintp(0)
    for column in range(counts.size):
        table = slots[choice[column]]
        position = _pop_column(states, lanes, symbols, column * stride, counts[column], table, stream, position)
    for lane in range(lanes):
        if states[lane] != _LOW:
            return False
    return given - 1 <= np.int64(position) <= given


@inner
def encode_chunk(symbols, stride, columns, n, choice, pushes, scratch, words, at):
    """`encode_columns` of columns of the same length."""
    return encode_columns(symbols, stride, np.full(columns, n, np.int64), choice, pushes, scratch, words, at)


@inner
def decode_chunk(words, at, end, columns, n, choice, slots, scratch, symbols, stride):
    """`decode_columns` of columns of the same length."""
    return decode_columns(words, at, end, np.full(columns, n, np.int64), choice, slots, scratch, symbols, stride)
