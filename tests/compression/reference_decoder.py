"""A slow decoder of every payload, written from docs/wire-format.md alone: it imports nothing of the package.

Headings in comments are those of the document.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

DTYPES = ("f4", "f2", "u2", "f8", "i1", "u1", "i2", "i4", "i8", "?")  # bfloat16 as its bits
FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2
RAW, LOSSLESS, BITPACK, HUFFMAN, RANS, DEDUP = range(6)
Frequencies = tuple[int, ...]


class MalformedError(Exception):
    """Bytes that break a rule of the document."""


def need(rule: bool, what: str) -> None:
    if not rule:
        raise MalformedError(what)


class Words:
    """Words that are taken one after the other, never past their end."""

    def __init__(self, data: bytes) -> None:
        need(len(data) % 4 == 0, "whole words")
        self.data = data

    def take(self, words: int) -> Words:
        need(0 <= 4 * words <= len(self.data), "length")
        taken, self.data = self.data[: 4 * words], self.data[4 * words :]
        return Words(taken)

    def ints(self, words: int) -> list[int]:
        return list(struct.unpack(f"<{words}I", self.take(words).data))

    def bytes(self, n: int) -> bytes:
        return self.take(-(-n // 4)).data[:n]

    def halves(self, n: int) -> list[int]:
        return list(struct.unpack(f"<{n}H", self.bytes(2 * n)))

    def stream(self, bits: int) -> Bits:
        return Bits(self.take(-(-bits // 32)))

    def end(self, what: str) -> None:
        need(not self.data, f"end of {what}")


class Bits:
    """A stream of bits, from the lowest bit of a word to its highest, then on to the next word."""

    def __init__(self, words: Words) -> None:
        self.size = 8 * len(words.data)
        self._bits = "".join(f"{byte:08b}"[::-1] for byte in words.data)
        self.at = 0

    def take(self, n: int) -> int:
        need(self.at + n <= self.size, "bits")
        self.at += n
        return int(self._bits[self.at - n : self.at][::-1] or "0", 2)


def nibbles(data: bytes) -> list[int]:
    return [half for byte in data for half in (byte & 15, byte >> 4)]


def unzigzag(z: int) -> int:
    return (z >> 1) ^ -(z & 1)


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def checksum(data: bytes) -> int:
    words = np.frombuffer(data, "<u4").astype(np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    x = (words + np.arange(1, words.size + 1, dtype=np.uint64) * np.uint64(0x9E3779B9)) & mask
    x = ((x ^ (x >> np.uint64(16))) * np.uint64(0x7FEB352D)) & mask
    x = ((x ^ (x >> np.uint64(15))) * np.uint64(0x846CA68B)) & mask
    return int((x ^ (x >> np.uint64(16))).sum() & mask)


# Frame of a payload of tables


def decode(payload: bytes, rows: list[int] | None = None) -> list[np.ndarray]:
    """The sections of a payload as matrices; those of a table joined where the rows of the tables are given."""
    data = bytes(payload)
    words = Words(data)
    magic, version, count, size, total = words.ints(5)
    need((magic, version) == (0x50525754, 1), "magic and version")
    need(4 * size == len(data), "length in the header")
    need(total == checksum(data[:16] + bytes(4) + data[20:]), "checksum")
    descriptors = [words.ints(5) for _ in range(count)]
    sections = [section(d, words.take(d[3])) for d in descriptors]
    words.end("payload")
    return sections if rows is None else join(sections, rows)


def join(sections: list[np.ndarray], rows: list[int]) -> list[np.ndarray]:
    tables, left = [], iter(sections)
    for wanted in rows:
        parts = [next(left)]
        while sum(len(part) for part in parts) < wanted:
            parts.append(next(left))
        tables.append(np.concatenate(parts))
        need(len(tables[-1]) == wanted, "rows")
    need(next(left, None) is None, "number of sections")
    return tables


def section(descriptor: list[int], words: Words) -> np.ndarray:
    first, rows, columns, size, bits = descriptor
    chain, dtype = first & 0xFF, first >> 8
    bound = struct.unpack("<f", struct.pack("<I", bits))[0]
    need(chain <= DEDUP and dtype < len(DTYPES) and (chain < BITPACK or dtype <= BFLOAT16), "chain and dtype")
    need(2.0**-101 <= bound <= 2.0**120 if chain >= BITPACK else bits == 0, "bound")
    need(rows * columns < 2**31, "shape")
    item = np.dtype(DTYPES[dtype]).itemsize
    raw = -(-rows * columns * item // 4)
    need(size == raw if chain == RAW else 0 < size <= raw, "words of a section")
    kind = np.dtype(DTYPES[dtype]).newbyteorder("<")
    if chain <= LOSSLESS:
        size = rows * columns * item
        data = words.bytes(size) if chain == RAW else lossless(words, rows, columns * item, item)
        words.end("section")
        return np.frombuffer(data, kind).reshape(rows, columns)
    if chain == BITPACK:
        codes, patches = bitpack(words, rows * columns)
    elif chain == DEDUP:
        codes, patches = dedup(words, rows, columns)
    else:
        codes, patches = coded(words, rows, columns, chain == HUFFMAN)
    words.end("section")
    return values(codes, patches, bound, dtype).view(kind).reshape(rows, columns)


# Values, codes, patches

Patches = list[tuple[int, int]]


def values(codes: list[int], patches: Patches, bound: float, dtype: int) -> np.ndarray:
    step = np.float32(2 * bound * (1 - 2.0**-14))  # the product is exact in float64
    decoded = np.array(codes, np.float32) * step
    if dtype == FLOAT32:
        bits = decoded.view(np.uint32)
    elif dtype == FLOAT16:
        bits = decoded.astype(np.float16).view(np.uint16)
    else:
        word = decoded.view(np.uint32)
        bits = ((word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(
            np.uint16
        )
    for index, patch in patches:
        need(index < bits.size and patch >> (8 * bits.itemsize) == 0, "patch")
        bits[index] = patch
    return bits


def read_patches(words: Words, count: int) -> Patches:
    return list(zip(words.ints(count), words.ints(count), strict=True))


# Chain bitpack


def bitpack(words: Words, n: int) -> tuple[list[int], Patches]:
    size, patches = words.ints(2)
    widths = words.bytes(-(-n // 1024))
    packed = words.take(size)
    codes = [unzigzag(z) for z in unpack(packed, widths, n)]
    packed.end("packed stream")
    return codes, read_patches(words, patches)


def unpack(words: Words, widths: bytes, n: int) -> list[int]:
    found: list[int] = []
    for w in widths:
        need(w <= 32, "width")
        m = min(1024, n - len(found))
        if m < 1024:
            bits = words.stream(m * w)
            found += [bits.take(w) for _ in range(m)]
            continue
        block = words.ints(32 * w)
        lanes = [sum(block[32 * k + lane] << 32 * k for k in range(w)) for lane in range(32)]
        found += [(lanes[i % 32] >> (i // 32 * w)) & ((1 << w) - 1) for i in range(1024)]
    return found


# Chains huffman and rans


def is_flat(rows: int, columns: int) -> bool:
    return rows < 8 or columns < 2 or columns > 4096


def coded(words: Words, rows: int, columns: int, huffman: bool) -> tuple[list[int], Patches]:
    if is_flat(rows, columns):
        rows, columns = rows * columns, 1
    distinct, patches, escapes, size = words.ints(4)
    need(1 <= distinct <= rows and (columns > 1 or distinct == rows), "distinct rows")
    need(escapes <= (distinct + 1) * columns, "escapes")
    numbers = references(words.take(size), rows, distinct, huffman)
    model = Model(words, columns)
    tiles = [min(model.tile, distinct - first) for first in range(0, distinct, model.tile)]
    plan = [[len(g) for g in model.groups(n)] if not huffman else [1] * columns for n in tiles]
    directory = iter(words.halves(sum(len(groups) for groups in plan)))
    # Escapes lie behind the tiles: symbols first, codes when all of them are read.
    read = [read_tile(words, n, groups, directory, model, huffman) for n, groups in zip(tiles, plan, strict=True)]
    escaped = iter(words.halves(escapes))
    codes = [
        row for n, (symbols, low) in zip(tiles, read, strict=True) for row in model.codes(n, symbols, low, escaped)
    ]
    need(next(escaped, None) is None, "unused escapes")
    return [code for number in numbers for code in codes[number]], read_patches(words, patches)


class Model:
    """How codes follow from residuals."""

    def __init__(self, words: Words, columns: int) -> None:
        pivots, second = words.data[:2] if words.data else (255, 0)
        self.width, self.shift = second & 15, second >> 4
        need(pivots <= 4 and self.width in (1, 2) and self.shift <= 12, "model")
        data = words.bytes(2 + 2 * pivots + columns * (2 + pivots))
        self.columns, self.tile = columns, min(max(2**18 // columns, 64), 4096)
        self.pivots = list(struct.unpack(f"<{pivots}H", data[2 : 2 + 2 * pivots]))
        need(all(pivot < columns for pivot in self.pivots), "pivots")
        rest = [data[i : i + columns] for i in range(2 + 2 * pivots, len(data), columns)]
        self.biases = [signed(b, 8) for b in rest[0]]
        self.weights = [[signed(b, 8) for b in part] for part in rest[1:-1]]
        need(max(rest[-1]) < 52, "table of the family")
        self.numbers = list(rest[-1])
        self.tables = [family()[t] for t in self.numbers]

    def count(self, column: int, n: int) -> int:
        return -(-n // 2) if self.tables[column].paired else n

    def groups(self, n: int) -> list[list[int]]:
        """The columns of each rANS chunk."""
        groups: list[list[int]] = []
        room = -1
        for column in range(self.columns):
            room -= self.count(column, n)
            if room < 0:
                groups.append([])
                room = 8192 - self.count(column, n)
            groups[-1].append(column)
        return groups

    def codes(self, n: int, symbols: list[list[int]], low: list[list[int]], escapes: Iterator[int]) -> list[list[int]]:
        """The codes of a tile, row by row."""
        residuals = [self.residuals(column, n, symbols[column], low[column], escapes) for column in range(self.columns)]
        rows = [[0] * self.columns for _ in range(n)]
        for column in itertools.chain(self.pivots, (c for c in range(self.columns) if c not in self.pivots)):
            used = self.pivots.index(column) if column in self.pivots else len(self.pivots)
            for row, z in zip(rows, residuals[column], strict=True):
                total = (self.biases[column] << (3 + self.shift)) + 16
                total += sum(self.weights[t][column] * row[self.pivots[t]] for t in range(used))
                row[column] = signed(unzigzag(z) + (total >> 5), 8 * self.width)
        return rows

    def residuals(self, column: int, n: int, symbols: list[int], low: list[int], escapes: Iterator[int]) -> list[int]:
        paired = self.tables[column].paired
        found = [0] * (2 * len(symbols) if paired else n)
        for i, s in enumerate(symbols):
            places = (i, len(symbols) + i) if paired else (i,)
            for place, symbol in zip(places, (s & 15, s >> 4) if paired else (s,), strict=True):
                if s == 255:
                    found[place] = next(escapes, -1)
                    need(found[place] >= 0, "too few escapes")
                elif place < n:
                    found[place] = (symbol << self.shift | low[place]) & ((1 << 8 * self.width) - 1)
        return found[:n]


def read_tile(
    words: Words, n: int, groups: list[int], directory: Iterator[int], model: Model, huffman: bool
) -> tuple[list[list[int]], list[list[int]]]:
    """Symbols and low bits of each column."""
    counts = [model.count(column, n) for column in range(model.columns)]
    symbols: list[list[int]] = []
    if huffman:
        sizes = [next(directory) for _ in counts]
        bits = words.stream(sum(sizes))
        for count, size, table in zip(counts, sizes, model.tables, strict=True):
            start = bits.at
            symbols.append(huffman_symbols(bits, table.codes, count))
            need(bits.at == start + size, "bits of a column")
    else:
        for size in groups:
            some = slice(len(symbols), len(symbols) + size)
            symbols += rans(
                words.take(next(directory)), counts[some], [table.frequencies for table in model.tables[some]]
            )
    bits = words.stream(n * model.columns * model.shift)
    return symbols, [[bits.take(model.shift) for _ in range(n)] for _ in counts]


# Chain dedup


def dedup(words: Words, rows: int, columns: int) -> tuple[list[int], Patches]:
    need(not is_flat(rows, columns), "shape")
    distinct, patches, size, width = words.ints(4)
    need(1 <= distinct <= rows and width in (1, 2), "distinct rows and bytes of a code")
    first = words.take(size)
    numbers = unpack_after_widths(first, rows)
    first.end("numbers")
    need(max(numbers) < distinct, "numbers")
    codes = [signed(unzigzag(z), 8 * width) for z in unpack_after_widths(words, distinct * columns)]
    expanded = [code for number in numbers for code in codes[number * columns : (number + 1) * columns]]
    return expanded, read_patches(words, patches)


def unpack_after_widths(words: Words, n: int) -> list[int]:
    return unpack(words, words.bytes(-(-n // 1024)), n)


# Chain lossless


def lossless(words: Words, rows: int, row_bytes: int, item: int) -> bytes:
    distinct, size = words.ints(2)
    need(1 <= distinct <= rows, "distinct rows")
    need(distinct == rows or (rows >= 8 and 8 <= row_bytes <= 65536), "distinct rows")
    numbers = references(words.take(size), rows, distinct, huffman=False)
    elements = distinct * row_bytes // item
    blocks = [min(65536, elements - first) for first in range(0, elements, 65536)]
    directory = iter(words.ints(len(blocks) * item))
    data = b""
    for n in blocks:
        planes = [plane(words.take(entry // 2), entry % 2 == 1, n) for entry in itertools.islice(directory, item)]
        data += bytes(itertools.chain.from_iterable(zip(*planes, strict=True)))
    return b"".join(data[number * row_bytes : (number + 1) * row_bytes] for number in numbers)


def plane(words: Words, coded: bool, n: int) -> bytes:
    data = bytes(chunks(words, n)) if coded else words.bytes(n)
    words.end("plane")
    return data


# Parts that several chains use


def chunks(words: Words, n: int) -> list[int]:
    """A sent table, the sizes of chunks and the chunks of n symbols."""
    table = sent_table(words)
    counts = [min(8192, n - first) for first in range(0, n, 8192)]
    sizes = words.halves(len(counts))
    return [s for size, count in zip(sizes, counts, strict=True) for s in rans(words.take(size), [count], [table])[0]]


def rans(words: Words, counts: list[int], tables: list[Frequencies]) -> list[list[int]]:
    states = words.ints(8 if sum(counts) >= 1024 else 2)
    stream = words.halves(len(words.data) // 2)
    given, at, columns = len(stream), 0, []
    for count, table in zip(counts, tables, strict=True):
        symbol_of, starts = slots(table)
        column = []
        for i in range(count):
            x = states[i % len(states)]
            slot = x & 2047
            s = symbol_of[slot]
            x = table[s] * (x >> 11) + slot - starts[s]
            if x < 2**15:
                need(at < given, "stream of a chunk")
                x, at = (x << 16 | stream[at]) & 0xFFFFFFFF, at + 1
            states[i % len(states)] = x
            column.append(s)
        columns.append(column)
    need(all(x == 2**15 for x in states) and given - at in (0, 1), "end of a chunk")
    return columns


@functools.cache
def slots(table: Frequencies) -> tuple[list[int], list[int]]:
    """Symbol of each slot, and where the slots of each symbol begin."""
    assert sum(table) == 2048
    starts = [0, *itertools.accumulate(table)]
    return [s for s, f in enumerate(table) for _ in range(f)], starts


CLASSES = (0, 1, 2, 3, 5, 9, 16, 28, 49, 86, 150, 263, 460, 805, 1408, 2464)


def sent_table(words: Words) -> Frequencies:
    need(len(words.data) > 0, "table")
    last = words.data[0]
    v = [CLASSES[c] for c in nibbles(words.bytes(1 + (last + 2) // 2)[1:])[: last + 1]]
    total, used = sum(v), sum(x > 0 for x in v)
    need(total > 0, "table")
    f = [1 + x * (2048 - used) // total if x else 0 for x in v]
    f[v.index(max(v))] += 2048 - sum(f)
    return tuple(f)


Codes = dict[tuple[int, int], int]
"""Symbol by length and code."""


def huffman_lengths(counts: Frequencies) -> dict[int, int]:
    order = sorted((s for s, count in enumerate(counts) if count), key=lambda s: (counts[s], s))
    leaves, nodes = [(counts[s], [s]) for s in order], []
    depth = dict.fromkeys(order, 0)
    for _ in range(len(order) - 1):
        taken = []
        for _ in range(2):
            queue = leaves if leaves and (not nodes or leaves[0][0] <= nodes[0][0]) else nodes
            taken.append(queue.pop(0))
        members = taken[0][1] + taken[1][1]
        for s in members:
            depth[s] += 1
        nodes.append((taken[0][0] + taken[1][0], members))
    number = [0] * 13
    for d in depth.values():
        number[min(d, 12)] += 1
    while sum(count << (12 - d) for d, count in enumerate(number)) > 1 << 12:
        d = max(d for d in range(12) if number[d])
        number[d] -= 1
        number[d + 1] += 2
        number[12] -= 1
    return dict(zip(order, (d for d in range(12, 0, -1) for _ in range(number[d])), strict=True))


def canonical(lengths: dict[int, int]) -> Codes:
    codes, code, before = {}, 0, 0
    for length, s in sorted((length, s) for s, length in lengths.items()):
        code <<= length - before
        codes[length, code] = s
        code, before = code + 1, length
    return codes


def huffman_symbols(bits: Bits, codes: Codes, n: int) -> list[int]:
    found = []
    for _ in range(n):
        length = code = 0
        while (length, code) not in codes:
            need(length < 12, "Huffman code")
            length, code = length + 1, code << 1 | bits.take(1)
        found.append(codes[length, code])
    return found


def huffman_message(words: Words, n: int) -> list[int]:
    if len(words.data) == 4:
        (symbol,) = words.ints(1)
        need(symbol < 256, "symbol")
        return [symbol] * n
    need(len(words.data) > 0, "code lengths")
    last = words.data[0]
    lengths = nibbles(words.bytes(1 + (last + 2) // 2)[1:])[: last + 1]
    need(lengths[last] > 0 and max(lengths) <= 12, "code lengths")
    need(sum(1 << (12 - length) for length in lengths if length) == 1 << 12, "code lengths")
    codes = canonical({s: length for s, length in enumerate(lengths) if length})
    found: list[int] = []
    for size in words.halves(-(-n // 512)):
        bits = words.stream(32 * size)
        found += huffman_symbols(bits, codes, min(512, n - len(found)))
        need(bits.size - bits.at < 32, "words of a chunk")
    words.end("Huffman message")
    return found


def small_values(words: Words, n: int, huffman: bool) -> list[int]:
    symbols = huffman_message(words.take(words.ints(1)[0]), n) if huffman else chunks(words, n)
    need(max(symbols) <= 123, "symbol of a reference")
    extra = [0 if s < 8 else (s - 8) // 4 + 1 for s in symbols]
    bits = words.stream(sum(extra))
    found = [s if s < 8 else ((4 + s % 4) << x) + bits.take(x) for s, x in zip(symbols, extra, strict=True)]
    words.end("references")
    return found


def references(words: Words, rows: int, distinct: int, huffman: bool) -> list[int]:
    """The distinct row of each row."""
    if distinct == rows:
        words.end("references")
        return list(range(rows))
    numbers, seen = [], 0
    for r in small_values(words, rows, huffman):
        need(r <= seen, "reference")
        numbers.append(r - 1 if r else seen)
        seen += r == 0
    need(seen == distinct, "references")
    return numbers


# Family


class Table(NamedTuple):
    weights: list[int]
    frequencies: Frequencies
    paired: bool
    codes: Codes


@functools.cache
def family() -> list[Table]:
    one, ks = 2**40, range(64)
    laplace = (28, 119, 336, 702, 1174, 1692, 2192, 2632, 2997, 3278, 3503, 3665, 3788)
    gauss = (16, 254, 1021, 2048, 2896, 3445, 3755, 3922, 4008, 4052, 4074, 4085)
    mixed = ((28, 1692), (119, 2192), (336, 2632), (702, 2997), (1174, 3278), (1692, 3503), (2192, 3665), (2632, 3788))
    uniform = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 25, 28, 30)
    magnitudes = [[(a**k * one) >> 12 * k for k in ks] for a in laplace]
    magnitudes += [[(a ** (k * k) * one) >> 12 * k * k for k in ks] for a in gauss]
    magnitudes += [[((3 * a**k + b**k) * one) >> 12 * k for k in ks] for a, b in mixed]
    magnitudes += [[one if k <= a else 0 for k in ks] for a in uniform]
    paired = {*range(6), *range(13, 20), 25, *range(33, 40)}
    found = []
    for t, of_magnitudes in enumerate(magnitudes):
        weights = [of_magnitudes[(z + 1) // 2] for z in range(127)]
        f = frequencies(weights, t in paired)
        found.append(Table(weights, f, t in paired, canonical(huffman_lengths(f))))
    return found


def frequencies(w: list[int], paired: bool) -> Frequencies:
    if paired:
        total, v = sum(w) ** 2, [w[s & 15] * w[s >> 4] for s in range(255)]
    else:
        total, v = sum(w), w[:63] + [0] * 192
    v = [x if 4096 * x >= total else 0 for x in v]
    v.append(total - sum(v))
    used = 1 + sum(x > 0 for x in v[:255])
    f = [1 + x * (2048 - used) // total if x or s == 255 else 0 for s, x in enumerate(v)]
    missing = 2048 - sum(f)
    for s in [s for s in range(255) if f[s]][:missing]:
        f[s] += 1
    return tuple(f)


# Payloads of ids


def decode_ids(payload: bytes) -> list[int] | list[list[int]]:
    """One array of ids, or lists of them."""
    data = bytes(payload)
    words = Words(data)
    first, count, size = words.ints(3)
    need(first & 0xFFFFFF == 0x6469 | 1 << 16, "magic and version")
    need(4 * size == len(data), "length in the header")
    body = words.take(size - 4)
    need(words.ints(1)[0] == checksum(data[:-4]), "checksum")
    mode = first >> 24
    need(mode <= 16, "mode")
    ids = id_lists(body, count) if mode == 16 else id_array(body, count, mode)
    body.end("body")
    return ids


def id_array(words: Words, n: int, mode: int) -> list[int]:
    if mode < 2:
        return plain_ids(words, n, mode)
    need(mode & 3 >= 2, "coder")
    base = plain_ids(words, 1, 0)[0] if mode & 8 else 0
    return from_values(id_values(words, n, mode & 3), mode, base)


def plain_ids(words: Words, n: int, coder: int) -> list[int]:
    return list(struct.unpack(f"<{n}{'qi'[coder]}", words.take(n * (2 - coder)).data))


def id_values(words: Words, n: int, coder: int) -> list[int]:
    return unpack_after_widths(words, n) if coder == 2 else small_values(words, n, huffman=False)


def from_values(found: list[int], mode: int, base: int) -> list[int]:
    if mode & 4:
        ids = [base + gap + i for i, gap in enumerate(itertools.accumulate(found))]
    else:
        ids = [base + value for value in found]
    need(all(-(2**63) <= i < 2**63 for i in ids), "64 bits")
    return ids


def id_lists(words: Words, n: int) -> list[list[int]]:
    listed = id_values(words, 2 * n, 2)
    counts, tags = listed[:n], listed[n:]
    need(all(tag < 2 or (tag & 3 == 2 and tag >> 4 <= 32) for tag in tags), "tags")
    bases = [plain_ids(words, 1, 0)[0] if tag & 8 else 0 for tag in tags]
    plain = [plain_ids(words, count, tag) if tag < 2 else [] for count, tag in zip(counts, tags, strict=True)]
    totals = [sum(c for c, tag in zip(counts, tags, strict=True) if tag >= 2 and tag >> 4 == g) for g in range(33)]
    directory = iter(words.ints(sum(total > 0 for total in totals)))
    groups = []
    for total in totals:
        entry = next(directory) if total else 0
        part = words.take(entry // 2)
        groups.append(iter(id_values(part, total, 2 + entry % 2) if total else []))
        part.end("group")
    lists = []
    for count, tag, base, ids in zip(counts, tags, bases, plain, strict=True):
        coded_ids = from_values(list(itertools.islice(groups[tag >> 4], count)), tag, base) if tag >= 2 else ids
        lists.append(coded_ids)
    return lists
