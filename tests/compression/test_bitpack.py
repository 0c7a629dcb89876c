"""The packed bytes against a slow packer written from the format, round trips, patches, block ranges, hostile input."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compression.bitpack import (
    BLOCK,
    MAX_CODE,
    blocks,
    pack_u32,
    packed_words,
    quantize_pack,
    unpack_dequantize,
    unpack_u32,
)

SIZES = (0, 1, 2, 31, 32, 33, 1023, 1024, 1025, 1056, 2047, 2048, 3 * 1024 + 5)
CANARY = 0xA5
F32 = np.float32
TINY, HUGE = np.finfo(F32).smallest_subnormal, np.finfo(F32).max
SPECIAL = np.array(
    [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, TINY, -TINY, 1e-38, -1e-38, HUGE, -HUGE, 0.5, -0.5, 1.5, 2.5, -2.5]
    + [c + d for c in (MAX_CODE, -MAX_CODE) for d in (-1, -0.5, 0, 0.5, 1)],
    F32,
)
sizes = st.sampled_from(SIZES) | st.integers(0, 3000)
seeds = st.integers(0, 2**32 - 1)


class Guarded:
    """An array between two stretches of canaries, aligned only to its items."""

    def __init__(self, size: int, dtype: type) -> None:
        self._all = np.frombuffer(bytes([CANARY]) * ((size + 102) * np.dtype(dtype).itemsize), dtype).copy()
        self.array = self._all[51 : 51 + size]

    def check(self) -> None:
        assert set(self._all[:51].tobytes() + self._all[51 + self.array.size :].tobytes()) == {CANARY}

    def untouched(self, first: int, last: int) -> bool:
        return set(self.array[first:last].tobytes()) <= {CANARY}


def slow_pack(values: list[int]) -> tuple[list[int], list[int]]:
    """(words, widths), from the text of the format: each lane, or a last short block, is one long number."""
    words, widths = [], []
    for start in range(0, len(values), 1024):
        block = values[start : start + 1024]
        width = max(v.bit_length() for v in block)
        widths.append(width)
        if len(block) == 1024:
            lanes = [sum(v << (g * width) for g, v in enumerate(block[lane::32])) for lane in range(32)]
            words += [(lanes[lane] >> (32 * k)) & 0xFFFFFFFF for k in range(width) for lane in range(32)]
        else:
            number = sum(v << (i * width) for i, v in enumerate(block))
            words += [(number >> (32 * k)) & 0xFFFFFFFF for k in range(-(-len(block) * width // 32))]
    return words, widths


def slow_quantize(x: np.ndarray, inverse: F32, step: F32, limit: F32) -> tuple[list[int], np.ndarray, np.ndarray]:
    """(zigzag codes with 0 for patches, held or not, decoded values with 0 for patches)."""
    with np.errstate(all="ignore"):
        code = np.rint(x * inverse)
        decoded = code * step
        held = (np.abs(code) <= 2**22) & (np.abs(x - decoded) <= limit) & (x.view(np.uint32) != 0x80000000)
    codes = [int(c) if h else 0 for c, h in zip(code, held, strict=True)]
    decoded = np.array(codes, F32) * step
    return [2 * c if c >= 0 else -2 * c - 1 for c in codes], held, decoded


def values_of(n: int, seed: int) -> np.ndarray:
    """uint32 values whose blocks have widths of 0 to 32 bits."""
    rng = np.random.default_rng(seed)
    width = np.repeat(rng.integers(0, 33, n // BLOCK + 1), BLOCK)[:n]
    return (rng.integers(0, 2**32, n, np.uint64) >> (32 - width).astype(np.uint64)).astype(np.uint32)


def floats_of(n: int, seed: int, special: float) -> np.ndarray:
    """Normal values in blocks of various scales, a share of them special."""
    rng = np.random.default_rng(seed)
    scale = np.repeat(10.0 ** rng.integers(-3, 7, n // BLOCK + 1), BLOCK)[:n]
    x = (rng.standard_normal(n) * scale).astype(F32)
    return np.where(rng.random(n) < special, rng.choice(SPECIAL, n), x).astype(F32)


def pack(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    words, widths = Guarded(values.size, np.uint32), Guarded(int(blocks(values.size)), np.uint8)
    used = pack_u32(values, values.size, words.array, widths.array)
    words.check()
    widths.check()
    assert words.untouched(used, values.size)
    return words.array[:used], widths.array


def encode(x, inverse, step, limit, first=0, last=None, capacity=None):
    """(words, widths of these blocks, indices and bits of patches, number of patches), ends of all buffers checked."""
    last = int(blocks(x.size)) if last is None else last
    count = max(0, min(x.size, last * BLOCK) - first * BLOCK)
    capacity = count if capacity is None else capacity
    words, widths = Guarded(count, np.uint32), Guarded(int(blocks(x.size)), np.uint8)
    index, bits = Guarded(capacity, np.uint32), Guarded(capacity, np.uint32)
    used, patches = quantize_pack(
        x, inverse, step, limit, first, last, words.array, widths.array, index.array, bits.array
    )
    for buffer in (words, widths, index, bits):
        buffer.check()
    assert words.untouched(used, count)
    assert widths.untouched(0, first)
    assert widths.untouched(last, widths.array.size)
    listed = min(patches, capacity)
    return words.array[:used], widths.array[first:last], index.array[:listed], bits.array[:listed], patches


def check_codec(x: np.ndarray, step: F32, limit: F32) -> None:
    """Words, widths, patches and decoded values of x are those of the slow packer."""
    inverse = F32(1) / step
    codes, held, decoded = slow_quantize(x, inverse, step, limit)
    words, widths, index, bits, patches = encode(x, inverse, step, limit)
    assert (words.tolist(), widths.tolist()) == slow_pack(codes)
    assert patches == index.size
    assert np.array_equal(index, np.flatnonzero(~held))
    assert np.array_equal(bits, x.view(np.uint32)[~held])
    assert packed_words(widths, x.size) == words.size
    out = Guarded(x.size, F32)
    assert unpack_dequantize(words, widths, 0, widths.size, 0, step, out.array) == words.size
    out.check()
    assert out.array.tobytes() == decoded.tobytes()


@pytest.mark.parametrize("width", range(33))
def test_words_of_every_width_are_those_of_the_slow_packer(width):
    rng = np.random.default_rng(width)
    for n in SIZES:
        values = rng.integers(0, 2**width, n, np.uint64).astype(np.uint32)
        if n:
            values[-1] = 2**width - 1
        words, widths = pack(values)
        assert (words.tolist(), widths.tolist()) == slow_pack(values.tolist())
        assert packed_words(widths, n) == words.size
        out = Guarded(n, np.uint32)
        assert unpack_u32(words, widths, n, out.array) == words.size
        out.check()
        assert np.array_equal(out.array, values)


@given(sizes, seeds)
def test_integers_round_trip(n, seed):
    values = values_of(n, seed)
    words, widths = pack(values)
    out = Guarded(n, np.uint32)
    assert unpack_u32(words, widths, n, out.array) == packed_words(widths, n) == words.size
    out.check()
    assert np.array_equal(out.array, values)


@settings(deadline=None)
@given(
    sizes,
    seeds,
    st.sampled_from([0.0, 0.0005, 0.1, 1.0]),
    st.sampled_from([F32(s) for s in (1, 0.02, 1e-3, 3e-38, 1e-42, 1e30)]),
    st.sampled_from([0.5, 0.5001, 0.3, 0.0, np.inf, np.nan]),
)
@example(2048, 0, 1.0, F32(1), 0.5)
def test_floats_against_the_slow_quantiser(n, seed, special, step, share):
    with np.errstate(all="ignore"):
        check_codec(floats_of(n, seed, special), step, F32(step * F32(share)))


def test_ties_go_to_even_and_codes_end_at_their_largest():
    near = np.arange(-6, 7, dtype=F32) / 2
    x = np.concatenate([near, near + F32(MAX_CODE), near - F32(MAX_CODE)])
    check_codec(x, F32(1), F32(0.5))
    _, widths, index, _, _ = encode(x, F32(1), F32(1), F32(0.5))
    assert widths.tolist() == [24]
    assert x[index].tolist() == [v for v in x.tolist() if abs(np.rint(v)) > MAX_CODE]


def test_every_exponent_and_random_bit_patterns():
    exponents = np.arange(2**9, dtype=np.uint32) << 23
    mantissas = np.array([0, 1, 0x400000, 0x7FFFFF], np.uint32)
    patterns = np.random.default_rng(5).integers(0, 2**32, 2**16, np.uint64).astype(np.uint32)
    x = np.concatenate([(exponents[:, None] | mantissas).ravel(), patterns]).view(F32)
    for step in (F32(2) ** -20, F32(0.01), F32(1e20)):
        check_codec(x, step, step * F32(0.5))


def test_nan_infinity_and_minus_zero_are_never_held():
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0], F32)
    _, _, index, bits, patches = encode(x, F32(1), F32(1), F32(np.inf))
    assert patches == 4
    assert index.tolist() == [0, 1, 2, 3]
    assert bits.tobytes() == x[:4].tobytes()


@given(st.sampled_from(SIZES[7:]) | st.integers(1024, 6000), seeds, st.data())
@settings(max_examples=30, deadline=None)
def test_ranges_of_blocks_make_the_whole(n, seed, data):
    x, step = floats_of(n, seed, 0.01), F32(0.01)
    arguments = F32(100), step, F32(0.00501)
    words, widths, index, bits, patches = encode(x, *arguments)
    total = int(blocks(n))
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, total), max_size=3))), total]
    ranges = list(pairwise(cuts))
    parts = [encode(x, *arguments, first, last) for first, last in ranges]
    for whole, position in ((words, 0), (widths, 1), (index, 2), (bits, 3)):
        assert np.array_equal(np.concatenate([part[position] for part in parts]), whole)
    assert sum(part[4] for part in parts) == patches
    whole = np.empty(n, F32)
    assert unpack_dequantize(words, widths, 0, total, 0, step, whole) == words.size
    offset = 0
    for first, last in ranges:
        out = Guarded(n, F32)
        offset = unpack_dequantize(words, widths, first, last, offset, step, out.array)
        out.check()
        assert np.array_equal(out.array[first * BLOCK : last * BLOCK], whole[first * BLOCK : last * BLOCK])
        assert out.untouched(0, first * BLOCK)
        assert out.untouched(last * BLOCK, n)
    assert offset == words.size


def test_patches_over_the_capacity_are_counted():
    x = floats_of(5000, 1, 0.3)
    words, widths, index, bits, patches = encode(x, F32(100), F32(0.01), F32(0.00501))
    for capacity in (0, 1, patches - 1):
        small = encode(x, F32(100), F32(0.01), F32(0.00501), capacity=capacity)
        assert small[4] == patches
        assert np.array_equal(small[0], words)
        assert np.array_equal(small[1], widths)
        assert np.array_equal(small[2], index[:capacity])
        assert np.array_equal(small[3], bits[:capacity])


def test_too_small_arrays_are_refused():
    values = values_of(3000, 3) | np.uint32(1)
    words, widths = pack(values)
    x, patch = np.ones(3000, F32), np.empty(0, np.uint32)
    for size in (0, 1, words.size - 1):
        small = Guarded(size, np.uint32)
        assert pack_u32(values, 3000, small.array, widths.copy()) == -1
        assert quantize_pack(x, 1e6, 1e-6, 1, 0, 3, small.array[:90], widths.copy(), patch, patch)[0] == -1
        small.check()
        out = Guarded(3000, np.uint32)
        assert unpack_u32(words[:size], widths, 3000, out.array) == -1
        out.check()
    assert pack_u32(values, 3000, words, widths[:2]) == -1
    assert pack_u32(values, 3001, words, widths) == -1
    assert unpack_u32(words, widths[:2], 3000, values) == -1
    assert unpack_u32(words, widths, 3000, values[:2999]) == -1
    for first, last in ((-1, 1), (0, 4)):
        assert quantize_pack(x, 1, 1, 1, first, last, words, np.zeros(9, np.uint8), patch, patch) == (-1, 0)
        assert unpack_dequantize(words, np.zeros(9, np.uint8), first, last, 0, 1, x) == -1
    assert quantize_pack(x, 1, 1, 1, 0, 3, words, widths[:2], patch, patch) == (-1, 0)
    assert unpack_dequantize(words, widths[:2], 0, 3, 0, 1, x) == -1
    for offset in (-1, words.size + 1, 2**62):
        assert unpack_dequantize(words, widths, 0, 3, offset, 1, x) == -1


@given(st.binary(max_size=4), st.integers(0, 5000), st.integers(0, 4000), seeds)
@example(b"\x21", 1024, 4000, 0)
@example(b"\x40", 7, 4000, 0)
@settings(max_examples=300, deadline=None)
def test_hostile_widths_stay_inside(widths, n, size, seed):
    widths = np.frombuffer(widths, np.uint8)
    if seed % 2:  # mostly legal widths reach further
        widths = widths % 34
    words = np.random.default_rng(seed).integers(0, 2**32, size, np.uint64).astype(np.uint32)
    total = packed_words(widths, n)
    good = widths.size == -(-n // BLOCK) and bool((widths <= 32).all())
    assert (total >= 0) == good
    integers, floats = Guarded(n, np.uint32), Guarded(n, F32)
    read = unpack_u32(words, widths, n, integers.array)
    last = -(-n // BLOCK)
    decoded = unpack_dequantize(words, widths, 0, last, 0, F32(1), floats.array)
    integers.check()
    floats.check()
    assert read == decoded
    if (widths[:last] > 32).any():
        assert read == -1
    if good:
        assert read == (total if total <= size else -1)
