"""The compiled Huffman coder against a slow one written from its layout, and against hostile bytes."""

import heapq
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compression import huffman
from compression.huffman import BAD_CHUNK, BAD_COUNT, BAD_DIRECTORY, BAD_LENGTHS, CHUNK, FIELDS

CANARY = 0xA5


def encode(symbols: np.ndarray) -> np.ndarray:
    words = np.empty(symbols.size // 2 + 200, np.uint32)
    used = huffman.encode(symbols, words)
    assert used >= 0
    return words[:used].copy()


def decode(words: np.ndarray, n: int) -> tuple[int, np.ndarray]:
    guarded = np.full(max(n, 0) + 64, CANARY, np.uint8)
    code = huffman.decode(words, n, guarded[32 : 32 + max(n, 0)])
    assert (guarded[:32] == CANARY).all() and (guarded[32 + max(n, 0) :] == CANARY).all()
    return code, guarded[32 : 32 + max(n, 0)]


# The layout in plain Python.


def slow_lengths(symbols: list[int]) -> dict[int, int]:
    counts = Counter(symbols)
    order = sorted(counts, key=lambda s: (counts[s], s))
    # One heap acts as two queues: leaves come before inner nodes of the same weight, each in its own order.
    heap = [(counts[s], 0, i, [s]) for i, s in enumerate(order)]
    heapq.heapify(heap)
    depth = dict.fromkeys(order, 0)
    for made in range(len(order) - 1):
        a, b = heapq.heappop(heap), heapq.heappop(heap)
        for s in a[3] + b[3]:
            depth[s] += 1
        heapq.heappush(heap, (a[0] + b[0], 1, made, a[3] + b[3]))
    number = Counter(min(d, 12) for d in depth.values())
    while sum(number[d] * 2 ** (12 - d) for d in number) > 2**12:
        d = max(d for d in range(1, 12) if number[d])
        number[d] -= 1
        number[d + 1] += 2
        number[12] -= 1
    lengths = [d for d in range(12, 0, -1) for _ in range(number[d])]
    return dict(zip(order, lengths, strict=True))


def slow_codes(lengths: dict[int, int]) -> dict[str, int]:
    """Symbol by code, as text, first bit first."""
    codes, code, before = {}, 0, 0
    for length, symbol in sorted((length, symbol) for symbol, length in lengths.items()):
        code <<= length - before
        codes[f"{code:0{length}b}"] = symbol
        code, before = code + 1, length
    return codes


def slow_decode(words: np.ndarray, n: int) -> tuple[list[int], dict[int, int]]:
    if n == 0:
        return [], {}
    if len(words) == 1:
        return [int(words[0])] * n, {}
    data = words.astype("<u4").tobytes()
    last = data[0]
    nibbles = [x for byte in data[1:] for x in (byte & 15, byte >> 4)]
    lengths = {s: nibbles[s] for s in range(last + 1) if nibbles[s]}
    at = -(-(1 + -(-(last + 1) // 2)) // 4)
    chunks = -(-n // 512)
    sizes = np.frombuffer(data, "<u2", chunks, at * 4).tolist()
    at += -(-chunks // 2)
    codes = slow_codes(lengths)
    symbols: list[int] = []
    for size in sizes:
        text = "".join(f"{word:032b}"[::-1] for word in words[at : at + size].tolist())
        at += size
        want = min(n, len(symbols) + 512)
        code = ""
        for i, bit in enumerate(text):
            if len(symbols) == want:
                assert len(text) - i < 32 and "1" not in text[i:]
                break
            code += bit
            if code in codes:
                symbols.append(codes[code])
                code = ""
        assert len(symbols) == want
    assert at == len(words)
    return symbols, lengths


def fibonacci(top: int = 24) -> np.ndarray:
    """Counts 1, 1, 2, 3, 5, ...: a tree as deep as there are symbols."""
    counts = [1, 1]
    while len(counts) < top:
        counts.append(counts[-1] + counts[-2])
    symbols = np.repeat(np.arange(top, dtype=np.uint8) * 7, counts)
    return np.random.default_rng(0).permutation(symbols)


def geometric(n: int, ratio: float, seed: int = 0) -> np.ndarray:
    """Quantised-code-like symbols: two-sided geometric, folded to 0, 1, 2, ..."""
    random = np.random.default_rng(seed)
    value = random.geometric(1 - ratio, n) - random.geometric(1 - ratio, n)
    return np.where(value >= 0, 2 * value, -2 * value - 1).clip(0, 255).astype(np.uint8)


@st.composite
def messages(draw: st.DrawFn) -> np.ndarray:
    """Lengths around the chunk's, alphabets of 1 to 256 symbols, flat to steep."""
    n = draw(st.integers(0, 40) | st.integers(0, 9000) | st.sampled_from([511, 512, 513, 4096, 9 * 512 - 3]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    alphabet = random.permutation(256)[: draw(st.integers(1, 256))].astype(np.uint8)
    weights = draw(st.floats(0.3, 1.0)) ** np.arange(alphabet.size)
    return random.choice(alphabet, n, p=weights / weights.sum())


@settings(max_examples=80, deadline=None)
@given(messages())
@example(np.zeros(0, np.uint8))
@example(np.full(1, 255, np.uint8))
@example(np.full(5000, 9, np.uint8))
@example(np.array([3, 250] * 700, np.uint8))
@example(np.arange(256, dtype=np.uint8))
def test_round_trip_and_layout(symbols: np.ndarray) -> None:
    words = encode(symbols)
    code, out = decode(words, symbols.size)
    assert code == 0
    np.testing.assert_array_equal(out, symbols)
    slow, lengths = slow_decode(words, symbols.size)
    assert slow == symbols.tolist()
    if np.unique(symbols).size > 1:
        assert lengths == slow_lengths(symbols.tolist())


def test_a_skew_beyond_the_limit() -> None:
    symbols = fibonacci()
    lengths = slow_lengths(symbols.tolist())
    assert max(lengths.values()) == 12 and sum(2**-length for length in lengths.values()) == 1
    words = encode(symbols)
    code, out = decode(words, symbols.size)
    assert code == 0 and (out == symbols).all()
    assert np.frombuffer(words.tobytes(), np.uint8)[0] == 23 * 7
    head = words[: huffman._directory_at(23 * 7) + 1]
    nibbles = [x for byte in head.tobytes()[1:] for x in (byte & 15, byte >> 4)]
    assert {s: nibbles[s] for s in range(23 * 7 + 1) if nibbles[s]} == lengths


def test_close_to_the_entropy() -> None:
    symbols = geometric(1 << 16, 0.6)
    _, counts = np.unique(symbols, return_counts=True)
    p = counts / symbols.size
    entropy = -(p * np.log2(p)).sum()
    of_chunk = (16 + 32) / 512  # its place in the directory, and its last word
    assert encode(symbols).size * 32 < (1.015 * entropy + of_chunk) * symbols.size


def test_one_symbol_takes_one_word() -> None:
    assert encode(np.full(100_000, 200, np.uint8)).tolist() == [200]
    assert encode(np.zeros(0, np.uint8)).size == 0


@pytest.mark.parametrize("n", [1, 1000, 2048, 5000])
@pytest.mark.parametrize("ratio", [0.0, 0.2, 0.8, 0.99])
def test_encode_fits_or_says_so(n: int, ratio: float) -> None:
    symbols = geometric(n, ratio)
    words = encode(symbols)
    for room in sorted(
        {*range(0, words.size, max(1, words.size // 50)), *range(max(0, words.size - 5), words.size + 500)}
    ):
        guarded = np.full(room + 16, 0xA5A5A5A5, np.uint32)
        used = huffman.encode(symbols, guarded[8 : 8 + room])
        assert used == (words.size if room >= words.size else -1)
        assert (guarded[:8] == 0xA5A5A5A5).all() and (guarded[8 + room :] == 0xA5A5A5A5).all()
        if used >= 0:
            np.testing.assert_array_equal(guarded[8 : 8 + used], words)


@settings(max_examples=50, deadline=None)
@given(messages(), st.data())
def test_ranges_of_chunks_make_the_whole(symbols: np.ndarray, data: st.DataObject) -> None:
    words = encode(symbols)
    chunks = huffman.chunk_count(symbols.size)
    cuts = sorted(data.draw(st.lists(st.integers(0, chunks), max_size=3)))
    out = np.full(symbols.size, CANARY, np.uint8)
    for first, stop in zip([0, *cuts], [*cuts, chunks], strict=True):
        before = out.copy()
        assert huffman.decode_chunks(words, symbols.size, out, first, stop) == 0
        before[first * CHUNK : stop * CHUNK] = symbols[first * CHUNK : stop * CHUNK]
        np.testing.assert_array_equal(out, before)
    np.testing.assert_array_equal(out, symbols)


def test_wrong_counts_and_ranges() -> None:
    symbols = geometric(5000, 0.6)
    words, out = encode(symbols), np.empty(5000, np.uint8)
    assert huffman.decode(words, -1, out) == BAD_COUNT
    assert huffman.decode(words, 5001, out) == BAD_COUNT
    for first, stop in [(-1, 2), (3, 2), (0, 11), (11, 11)]:
        assert huffman.decode_chunks(words, 5000, out, first, stop) == BAD_COUNT
    assert decode(words, 0)[0] == BAD_DIRECTORY
    assert decode(words, 4999)[0] == BAD_CHUNK
    assert decode(words, 4096)[0] == BAD_DIRECTORY


def test_each_error_names_its_field() -> None:
    symbols = geometric(3000, 0.6)
    words = encode(symbols)
    directory = huffman._directory_at(int(symbols.max()))

    def with_change(at: int, flip: int) -> int:
        changed = words.copy()
        changed[at] ^= flip
        return decode(changed, symbols.size)[0]

    assert with_change(0, 1 << 8) == BAD_LENGTHS  # over-full or incomplete
    assert with_change(0, 0xFF) == BAD_LENGTHS
    assert with_change(directory, 1) == BAD_DIRECTORY
    assert with_change(directory + 1, 1 << 16) == BAD_DIRECTORY  # its padding
    assert with_change(words.size - 1, 1 << 31) == BAD_CHUNK  # the padding of the last chunk
    moved = words.copy()
    moved.view(np.uint16)[2 * directory : 2 * directory + 2] += np.array(
        [1, 0xFFFF], np.uint16
    )  # the border of two chunks
    assert decode(moved, symbols.size)[0] == BAD_CHUNK
    assert decode(np.array([256], np.uint32), 10)[0] == BAD_LENGTHS
    assert decode(np.zeros(0, np.uint32), 10)[0] == BAD_LENGTHS
    assert set(FIELDS) == {BAD_COUNT, BAD_LENGTHS, BAD_DIRECTORY, BAD_CHUNK}


@pytest.mark.parametrize("n", [1, 900, 1024, 3000, 7000])
def test_truncated_or_longer(n: int) -> None:
    words = encode(geometric(n, 0.7) ^ np.uint8(1))
    for size in range(words.size):
        # A first word that is a small number says, alone, that all symbols are equal.
        assert decode(words[:size].copy(), n)[0] or size == 1
    assert decode(np.append(words, np.uint32(0)), n)[0] or n == 1


def test_random_corruptions() -> None:
    random = np.random.default_rng(5)
    seen = set()
    for trial in range(6000):
        n = int(random.integers(1, 6000))
        if trial % 20 == 0:
            words = encode(geometric(n, random.uniform(0.1, 0.97), trial))
        changed = words.copy()
        for _ in range(random.integers(1, 4)):
            at = random.integers(0, min(changed.size, random.choice([2, 40, 1 << 20])))
            changed[at] = random.choice([random.integers(0, 1 << 32), changed[at] ^ (1 << random.integers(0, 32))])
        seen.add(decode(changed, n)[0])
    for _ in range(2000):
        n = int(random.integers(0, 6000))
        seen.add(decode(random.integers(0, 1 << 32, random.integers(0, 500), dtype=np.uint32), n)[0])
    assert seen >= {BAD_LENGTHS, BAD_DIRECTORY, BAD_CHUNK}


def test_hostile_chunks_behind_good_lengths() -> None:
    """Directories that add up but lie about each chunk: the decoder walks far past each chunk's end."""
    random = np.random.default_rng(6)
    codes = []
    for trial in range(2000):
        symbols = geometric(int(random.integers(2, 9000)), random.uniform(0.3, 0.97), trial % 50)
        words = encode(symbols)
        if words.size == 1:
            continue
        directory = huffman._directory_at(int(symbols.max()))
        chunks = huffman.chunk_count(symbols.size)
        data = directory + (chunks + 1) // 2
        cuts = np.sort(random.integers(0, words.size - data + 1, chunks - 1))
        sizes = np.zeros((chunks + 1) // 2 * 2, np.uint16)
        sizes[:chunks] = np.diff([0, *cuts, words.size - data])
        words[directory:data] = sizes.view(np.uint32)
        if trial % 2:
            words[data:] = random.integers(0, 1 << 32, words.size - data)
        codes.append(decode(words, symbols.size)[0])
    assert set(codes) == {0, BAD_CHUNK} and codes.count(0) < 200  # one chunk has no border to lie about
