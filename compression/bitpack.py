"""Minimal-width bit packing of integers in blocks, alone or fused with the uniform quantiser: the fast path.

A stream of n uint32 values is cut into blocks of 1024. The width of a block is the number of bits of the OR of its
values, one byte a block; the blocks' words follow one another. A block of zeros has none.

- A full block of width w has 32*w words of 32 bits. Value i belongs to lane i % 32 and group i // 32. Each lane packs
  its 32 values into w words, group 0 in the lowest bits; word k of lane l is word k*32 + l of the block. So the lanes
  work in step: in vector registers here, as a warp on a GPU.
- A last block of m < 1024 values has value i at bit i*w of its ceil(m*w / 32) words.

The quantiser works in float32: q = rint(x*inverse), half to even, and r = float32(q)*step. A value is held if
|q| <= 2^22, |x - r| <= limit and x is not -0.0; it decodes to r. Its value in the stream is the zigzag of q,
(q << 1) ^ (q >> 31). Others, NaN and Inf among them, are patches: 0 in the stream, index and bits in lists beside it.

Blocks are independent: threads may work on ranges of them. A block costs one scratch of 4 KiB, in the first cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compression.kernel import inner, kernel
from compression.lanes import pack_lanes, unpack_lanes

BLOCK = 1024
"""Values in a block."""
MAX_CODE = 1 << 22
"""Largest magnitude of a quantiser code: float32 holds it and its neighbours exactly."""

Number = Any
"""A scalar whose width Numba infers; a type checker takes other rules for it."""

_PATCH = np.uint32(1 << 31)
"""Stands for a patch among zigzag codes, which have at most 24 bits."""


@kernel
def blocks(n: Number) -> Number:
    """Blocks, and so widths, of a stream of n values."""
    return (n + BLOCK - 1) // BLOCK


@kernel
def packed_words(widths: np.ndarray, n: Number) -> Number:
    """Words of a packed stream.

    Args:
        widths: uint8 [blocks(n)], not trusted.
        n: values in the stream.

    Returns:
        The words, -1 if the widths are not as many as the blocks or one is over 32.
    """
    n = np.int64(n)
    if n < 0 or widths.size != blocks(n):
        return -1
    total = np.int64(0)
    for block in range(widths.size):
        width = np.int64(widths[block])
        if width > 32:
            return -1
        total += (min(BLOCK, n - block * BLOCK) * width + 31) >> 5
    return total


@kernel
def pack_u32(values: np.ndarray, n: Number, words: np.ndarray, widths: np.ndarray) -> Number:
    """Pack values[:n].

    Args:
        values: uint32 [>= n], contiguous.
        words: uint32, contiguous; n words are always enough.
        widths: uint8 [>= blocks(n)], all of the first blocks(n) are written.

    Returns:
        The words used, from the start of `words`; -1 if an array is too small.
    """
    n = np.int64(n)
    if n < 0 or n > values.size or blocks(n) > widths.size:
        return -1
    used = np.uintp(0)
    for block in range(blocks(n)):
        first = np.uintp(block * BLOCK)
        count = np.uintp(min(BLOCK, n - block * BLOCK))
        seen = np.uint32(0)
        for i in range(count):
            seen = np.uint32(seen | values[first + i])
        width = bits_of(seen)
        after = used + block_words(count, width)
        if after > np.uintp(words.size):
            return -1
        widths[block] = width
        pack_block(values, first, count, width, words, used)
        used = after
    return np.int64(used)


@kernel
def unpack_u32(words: np.ndarray, widths: np.ndarray, n: Number, out: np.ndarray) -> Number:
    """Reverse `pack_u32`. Reads only `words` and writes only out[:n], whatever the widths.

    Args:
        words: uint32, contiguous.
        widths: uint8 [>= blocks(n)].
        out: uint32 [>= n], contiguous.

    Returns:
        The words read; -1 if a width is over 32, there are too few words, or an array is too small.
    """
    n = np.int64(n)
    if n < 0 or n > out.size or blocks(n) > widths.size:
        return -1
    at = np.uintp(0)
    for block in range(blocks(n)):
        first = np.uintp(block * BLOCK)
        count = np.uintp(min(BLOCK, n - block * BLOCK))
        width = np.uintp(widths[block])
        after = at + block_words(count, width)
        if width > np.uintp(32) or after > np.uintp(words.size):
            return -1
        unpack_block(words, at, width, out, first, count)
        at = after
    return np.int64(at)


@kernel
def quantize_pack(
    x: np.ndarray,
    inverse: Number,
    step: Number,
    limit: Number,
    first_block: Number,
    last_block: Number,
    words: np.ndarray,
    widths: np.ndarray,
    patch_index: np.ndarray,
    patch_bits: np.ndarray,
) -> tuple[Number, Number]:
    """Quantise and pack blocks first_block to last_block - 1 of x.

    Args:
        x: float32 [n <= 2^32], contiguous.
        inverse, step, limit: taken as float32; 1 / step, the distance of codes, the largest error.
            Step and limit at least 2^-126: a smaller one is 0 to a thread that flushes subnormals, and does not bind.
        words: uint32, contiguous, written from its start; as many words as the blocks have values are always enough.
        widths: uint8 [>= blocks(n)]; those of the blocks are written.
        patch_index, patch_bits: uint32, index in x and bit pattern of patches, written from their start.

    Returns:
        The words used, -1 if `words` or `widths` is too small or there are no such blocks, and the number of patches,
        which may be over the size of their lists: the rest are then lost.
    """
    inverse, step, limit = np.float32(inverse), np.float32(step), np.float32(limit)
    first_block, last_block = np.int64(first_block), np.int64(last_block)
    if first_block < 0 or last_block > min(widths.size, blocks(x.size)):
        return -1, 0
    codes = np.empty(BLOCK, np.uint32)
    used, patches = np.uintp(0), np.int64(0)
    for block in range(first_block, last_block):
        first = np.uintp(block * BLOCK)
        count = np.uintp(min(BLOCK, x.size - block * BLOCK))
        seen = _quantize(x, first, count, inverse, step, limit, codes)
        if seen & _PATCH:
            patches = _take_patches(x, first, count, codes, patch_index, patch_bits, patches)
            seen = np.uint32(seen ^ _PATCH)
        width = bits_of(seen)
        after = used + block_words(count, width)
        if after > np.uintp(words.size):
            return -1, patches
        widths[block] = width
        pack_block(codes, np.uintp(0), count, width, words, used)
        used = after
    return np.int64(used), patches


@kernel
def unpack_dequantize(
    words: np.ndarray,
    widths: np.ndarray,
    first_block: Number,
    last_block: Number,
    offset: Number,
    step: Number,
    out: np.ndarray,
) -> Number:
    """Reverse `quantize_pack` but for the patches, which become 0. Reads only `words` and writes only the blocks' part
    of `out`, whatever the widths.

    Args:
        words: uint32, contiguous.
        widths: uint8 [>= blocks(n)].
        offset: of the words of first_block.
        step: taken as float32.
        out: float32 [n], contiguous.

    Returns:
        The offset after the last word read; -1 if a width is over 32, there are too few words or no such blocks.
    """
    step = np.float32(step)
    first_block, last_block, offset = np.int64(first_block), np.int64(last_block), np.int64(offset)
    if first_block < 0 or last_block > min(widths.size, blocks(out.size)) or offset < 0:
        return -1
    codes = np.empty(BLOCK, np.uint32)
    at = np.uintp(offset)
    for block in range(first_block, last_block):
        first = np.uintp(block * BLOCK)
        count = np.uintp(min(BLOCK, out.size - block * BLOCK))
        width = np.uintp(widths[block])
        after = at + block_words(count, width)
        if width > np.uintp(32) or after > np.uintp(words.size):
            return -1
        unpack_block(words, at, width, codes, np.uintp(0), count)
        for i in range(count):
            q = np.int32((codes[i] >> np.uint32(1)) ^ (np.uint32(0) - (codes[i] & np.uint32(1))))
            out[first + i] = np.float32(q) * step
        at = after
    return np.int64(at)


@inner
def _quantize(
    x: np.ndarray, first: Number, count: Number, inverse: Number, step: Number, limit: Number, codes: np.ndarray
) -> Number:
    """Zigzag codes of x[first : first + count], `_PATCH` where a value is not held; their OR."""
    bits = x.view(np.uint32)
    seen = np.uint32(0)
    for i in range(count):
        value = x[first + i]
        code = np.rint(value * inverse)
        # NaN fails both comparisons. Only a held code is converted: others may not fit an int32.
        held = (abs(value - code * step) <= limit) & (abs(code) <= np.float32(MAX_CODE))
        held &= bits[first + i] != np.uint32(0x80000000)  # -0.0
        q = np.int32(code)
        codes[i] = np.uint32((q << np.int32(1)) ^ (q >> np.int32(31))) if held else _PATCH
        # Numba widens the OR to 64 bits, which would halve the values in a vector register.
        seen = np.uint32(seen | codes[i])
    return seen


@inner
def _take_patches(
    x: np.ndarray,
    first: Number,
    count: Number,
    codes: np.ndarray,
    patch_index: np.ndarray,
    patch_bits: np.ndarray,
    patches: Number,
) -> Number:
    """Replace `_PATCH` in codes by 0 and append those values to the lists, which have `patches`; how many they have."""
    bits = x.view(np.uint32)
    for i in range(count):
        if codes[i] == _PATCH:
            codes[i] = 0
            if patches < min(patch_index.size, patch_bits.size):
                patch_index[patches] = first + i
                patch_bits[patches] = bits[first + i]
            patches += 1
    return patches


@inner
def bits_of(word: Number) -> Number:
    """Bits of a uint32; 0 has none."""
    bits = np.uintp(0)
    while word:
        word >>= np.uint32(1)
        bits += np.uintp(1)
    return bits


@inner
def block_words(count: Number, width: Number) -> Number:
    return (count * width + np.uintp(31)) >> np.uintp(5)


@inner
def pack_block(values: np.ndarray, first: Number, count: Number, width: Number, words: np.ndarray, at: Number) -> None:
    """Pack values[first : first + count], a block, into words from `at`; no checks."""
    if width == 0:
        return
    if count == BLOCK and width < 32:
        pack_lanes(values, first, width, words, at)
        return
    held, bits = np.uint64(0), np.uint64(0)
    for i in range(count):
        held |= np.uint64(values[first + i]) << bits
        bits += np.uint64(width)
        if bits >= 32:
            words[at] = np.uint32(held & np.uint64(0xFFFFFFFF))
            at += np.uintp(1)
            held >>= np.uint64(32)
            bits -= np.uint64(32)
    if bits:
        words[at] = np.uint32(held)


@inner
def unpack_block(words: np.ndarray, at: Number, width: Number, out: np.ndarray, first: Number, count: Number) -> None:
    """Unpack a block of words from `at` into out[first : first + count]; no checks."""
    if width == 0:
        out[first : first + count] = 0
        return
    if count == BLOCK and width < 32:
        unpack_lanes(words, at, width, out, first)
        return
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    held, bits = np.uint64(0), np.uint64(0)
    for i in range(count):
        if bits < np.uint64(width):
            held |= np.uint64(words[at]) << bits
            at += np.uintp(1)
            bits += np.uint64(32)
        out[first + i] = np.uint32(held & mask)
        held >>= np.uint64(width)
        bits -= np.uint64(width)
