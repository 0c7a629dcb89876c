"""Huffman codes from counts: lengths of at most 12 bits, canonical codewords, and the table that decodes them.

`huffman` has the rules that make the lengths the same everywhere.
"""

from __future__ import annotations

import numpy as np

from compression.kernel import inner, kernel

MAX_LENGTH = 12
"""Bits of the longest code."""
_FULL = 1 << MAX_LENGTH


@inner
def sort_keys(keys: np.ndarray, n: int) -> None:
    """Shell's sort of keys[:n]."""
    for gap in (57, 23, 10, 4, 1):
        for i in range(gap, n):
            key = keys[i]
            j = i
            while j >= gap and keys[j - gap] > key:
                keys[j] = keys[j - gap]
                j -= gap
            keys[j] = key


@inner
def code_lengths(keys: np.ndarray, used: int, lengths: np.ndarray) -> int:
    """Sets the lengths (uint8 [256], zeros before) of at least two used symbols; returns the largest of them."""
    at_depth = _leaves_at_depth(keys, used)
    excess = -_FULL
    for depth in range(1, MAX_LENGTH + 1):
        excess += at_depth[depth] << (MAX_LENGTH - depth)
    for _ in range(excess):
        depth = MAX_LENGTH - 1
        while at_depth[depth] == 0:
            depth -= 1
        at_depth[depth] -= 1
        at_depth[depth + 1] += 2
        at_depth[MAX_LENGTH] -= 1
    i = last = 0
    for length in range(MAX_LENGTH, 0, -1):
        for _ in range(at_depth[length]):
            symbol = int(np.int64(keys[i] & np.uint64(255)))
            lengths[symbol] = length
            last = max(last, symbol)
            i += 1
    return last


@inner
def _leaves_at_depth(keys: np.ndarray, used: int) -> np.ndarray:
    """Leaves of the Huffman tree at each depth up to MAX_LENGTH, the deeper ones counted there."""
    # An unused place is heavier than any node, so that an empty queue is never chosen.
    leaf = np.full(257, np.iinfo(np.int64).max)
    node = np.full(257, np.iinfo(np.int64).max)
    for i in range(used):
        leaf[i] = keys[i] >> np.uint64(8)
    leaf_parent = np.empty(256, np.uint8)
    node_parent = np.empty(256, np.uint8)
    i = j = 0
    for new in range(used - 1):
        weight = 0
        for _ in range(2):
            if leaf[i] <= node[j]:
                weight += leaf[i]
                leaf_parent[i] = new
                i += 1
            else:
                weight += node[j]
                node_parent[j] = new
                j += 1
        node[new] = weight
    depth = np.zeros(256, np.uint8)
    for j in range(used - 3, -1, -1):
        depth[j] = depth[node_parent[j]] + 1
    at_depth = np.zeros(MAX_LENGTH + 1, np.int64)
    for i in range(used):
        at_depth[min(depth[leaf_parent[i]] + 1, MAX_LENGTH)] += 1
    return at_depth


@inner
def _reversed(code: np.uint32, length: int) -> np.uint32:
    """The lowest `length` bits of a code, the first one last."""
    code = (code & np.uint32(0x5555)) << np.uint32(1) | (code >> np.uint32(1)) & np.uint32(0x5555)
    code = (code & np.uint32(0x3333)) << np.uint32(2) | (code >> np.uint32(2)) & np.uint32(0x3333)
    code = (code & np.uint32(0x0F0F)) << np.uint32(4) | (code >> np.uint32(4)) & np.uint32(0x0F0F)
    code = (code & np.uint32(0x00FF)) << np.uint32(8) | (code >> np.uint32(8))
    return code >> np.uint32(16 - length)


@inner
def canonical_codes(lengths: np.ndarray, last: int) -> np.ndarray:
    """Reversed code << 8 | length of each symbol (uint32 [256])."""
    number = np.zeros(16, np.uint32)
    for symbol in range(last + 1):
        number[lengths[symbol]] += np.uint32(1)
    number[0] = 0
    following = np.zeros(16, np.uint32)
    for length in range(2, MAX_LENGTH + 1):
        following[length] = (following[length - 1] + number[length - 1]) << np.uint32(1)
    codes = np.empty(256, np.uint32)
    for symbol in range(last + 1):
        length = lengths[symbol]
        codes[symbol] = _reversed(following[length], length) << np.uint32(8) | np.uint32(length)
        following[length] += np.uint32(1)
    return codes


@kernel
def code_table(counts: np.ndarray, codes: np.ndarray, table: np.ndarray) -> None:
    """The code of given counts, at least two of them positive, as both sides look it up.

    Args:
        counts: int64 [256].
        codes: uint32 [256], out: reversed code << 8 | length.
        table: uint16 [2 ^ MAX_LENGTH], out: symbol << 8 | length by the next bits of the stream.
    """
    keys = np.empty(256, np.uint64)
    used = 0
    for symbol in range(256):
        if counts[symbol]:
            keys[used] = np.uint64(counts[symbol]) << np.uint64(8) | np.uint64(symbol)
            used += 1
    sort_keys(keys, used)
    lengths = np.zeros(256, np.uint8)
    last = code_lengths(keys, used, lengths)
    codes[:] = 0
    codes[: last + 1] = canonical_codes(lengths, last)[: last + 1]
    short = decode_table(lengths, last)
    for start in range(0, table.size, short.size):
        table[start : start + short.size] = short


@inner
def decode_table(lengths: np.ndarray, last: int) -> np.ndarray:
    """symbol << 8 | length by the next bits of the stream (uint16 [2 ^ longest length]).

    A table of pairs of symbols decoded long messages about a quarter faster, but took as long to build as a
    message of 8192 symbols takes to decode.
    """
    codes = canonical_codes(lengths, last)
    longest = 0
    for symbol in range(last + 1):
        longest = max(longest, lengths[symbol])
    table = np.empty(1 << longest, np.uint16)
    # A table for l bits, twice, with the codes of l + 1 bits put in, is one for l + 1 bits: far fewer scattered writes
    # than code by code. What lies in the places of longer codes does not matter.
    for length in range(1, longest + 1):
        half = 1 << (length - 1)
        low, high = table[:half], table[half : 2 * half]
        for i in range(half):
            high[i] = low[i]
        for symbol in range(last + 1):
            if lengths[symbol] == length:
                table[codes[symbol] >> np.uint32(8)] = symbol << 8 | length
    return table
