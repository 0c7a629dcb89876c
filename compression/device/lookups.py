"""Lookups of a batch on a device: distinct ids, pooling of their rows, gradients summed per distinct row.

The same results, bit for bit, as `compression.exchange.distinct` and `compression.exchange.pooling` have on the CPU:
sums are made in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression.device.backend import THREADS, WARPS, Arena, Backend

SHARD = np.dtype([("rows", "<i8"), ("first_word", "<i8")])
FEATURE = np.dtype([(name, "<i8") for name in ("base", "dim", "column", "mean")])
CHUNK = 8 * THREADS
"""Values that a block sums; see kernels/scan.cu."""
MOST_LOOKUPS = (1 << 32) - 2
_DIGIT = 8


class Found(NamedTuple):
    """What `DistinctIds` leaves on the device until its next call.

    Attributes:
        ids: address of int64 [sum of counts]: the distinct ids of each shard, ascending, one shard after the other.
        inverse: of int32 [N]: where the id of each lookup is among those of its shard.
        places: of uint32 [N]: where it is among all.
        counts: int64 [S], distinct ids of each shard.
    """

    ids: int
    inverse: int
    places: int
    counts: NDArray[np.int64]


class DistinctIds:
    """Finds the distinct ids of batches: a bit a row. Keeps its memory, so it belongs to one stream at a time.

    Args:
        rows: of each shard. 8 bytes of memory for every 32 of them are held and gone through in each batch, so this is
            for shards of up to some hundred million rows.
    """

    def __init__(self, backend: Backend, rows: Sequence[int]) -> None:
        self.arena, self._rows = Arena(backend), np.array(rows, np.int64)
        words = -(-self._rows // 32)
        shards = np.empty(self._rows.size, SHARD)
        shards["rows"], shards["first_word"] = self._rows, words.cumsum() - words
        self._words = int(words.sum())
        self._shards = self.arena.get("shards", shards.nbytes)
        backend.upload(self._shards, shards)

    def find(self, ids: int, n: int, ends: int) -> Found:
        """Distinct ids of a batch.

        Args:
            ids: address of int64 [n]; not trusted.
            ends: address of int64 [S + 1]: lookups of shard s are from ends[s] up to ends[s + 1] = n at last; trusted.

        Raises:
            IndexError: an id that is no row of its shard; nothing is written then but working memory.
            ValueError: too many lookups.
        """
        if n > MOST_LOOKUPS:
            raise ValueError(f"{n} lookups: at most {MOST_LOOKUPS} go in one batch")
        shards, words = self._rows.size, self._words
        bits = self.arena.get("bits", 4 * words)
        ranks = self.arena.get("ranks", 4 * (words + 1))
        small = self.arena.get("small", 8 * (shards + 1))
        found, inverse, places = (
            self.arena.get(name, size * n) for name, size in (("ids", 8), ("inverse", 4), ("places", 4))
        )
        if not n:
            return Found(found, inverse, places, np.zeros(shards, np.int64))
        self.arena.backend.zero(bits, 4 * words)
        self.arena.backend.zero(small, 8 * (shards + 1))
        run, lookups = self.arena.run, -(-n // THREADS)
        run("mark_ids", lookups, ids, n, ends, self._shards, shards, bits, small)
        run("count_bits", words // THREADS + 1, bits, words, ranks)
        scan(self.arena, ranks, words + 1)
        run("list_ids", -(-(words + shards) // THREADS), bits, words, self._shards, shards, ranks, found, small + 8)
        run("invert_ids", lookups, ids, n, ends, self._shards, shards, bits, ranks, small, inverse, places)
        data = self.arena.backend.download(small, 8 * (shards + 1))
        if bad := int(data[:4].view(np.uint32)[0]):
            self._refuse(0xFFFFFFFF - bad, ids, ends)
        return Found(found, inverse, places, data[8:].view(np.int64).copy())

    def _refuse(self, position: int, ids: int, ends: int) -> None:
        value = int(self.arena.backend.download(ids + 8 * position, 8).view(np.int64)[0])
        limits = self.arena.backend.download(ends, 8 * self._rows.size).view(np.int64)
        shard = int(np.searchsorted(limits, position, "right") - 1)
        raise IndexError(f"id {value} of shard {shard} (position {position}) is not in 0 to {self._rows[shard] - 1}")


class Bags(NamedTuple):
    """Bags of a batch; addresses of device memory.

    Attributes:
        features: FEATURE [F] on the host: `base`, where the rows of its shard begin; `dim`; `column`, its first of what
            is pooled; `mean`, 1 for a mean and 0 for a sum.
        batch: bags of a feature.
        offsets: int64 [F * batch + 1].
        inverse, places: see `Found`.
        lookups: N.
        weights: float32 [N], or 0 for none.
        width: columns of what is pooled.
    """

    features: NDArray[np.void]
    batch: int
    offsets: int
    inverse: int
    places: int
    lookups: int
    weights: int
    width: int


class Pooling:
    """Pools rows and sums gradients; keeps its memory, so it belongs to one stream at a time."""

    def __init__(self, backend: Backend) -> None:
        self.arena = Arena(backend)

    def pool(self, rows: int, bags: Bags, out: int) -> None:
        """See `exchange.pooling.pool`; rows: float32, out: float32 [batch, width]."""
        features = self._upload(bags)
        count = bags.features.size
        self.arena.run(
            "pool_bags", -(-count * bags.batch // WARPS), rows, features, count, bags.batch, bags.offsets, bags.inverse,
            bags.weights, out, bags.width,
        )  # fmt: skip

    def backward(self, grad: int, bags: Bags, rows: int, values: int, distinct: int) -> None:
        """See `exchange.pooling.pool_backward`.

        Args:
            grad: float32 [batch, width]; rows: float32 [values], written whole.
            distinct: rows of all shards.
        """
        n, backend, run = bags.lookups, self.arena.backend, self.arena.run
        backend.zero(rows, 4 * values)
        if not n:
            return
        features, total = self._upload(bags), bags.features.size * bags.batch
        keys, positions = self._sort(bags.places, n, distinct)
        starts, bag_of = self.arena.get("starts", 4 * distinct), self.arena.get("bag_of", 4 * n)
        backend.zero(starts, 4 * distinct)
        run("find_runs", -(-n // THREADS), keys, n, starts)
        run("spread_bags", -(-total // WARPS), bags.offsets, total, bag_of)
        run(
            "sum_gradients", -(-distinct // WARPS), grad, bags.width, features, bags.batch, bags.offsets, bags.inverse,
            bags.weights, keys, positions, n, starts, distinct, bag_of, rows,
        )  # fmt: skip

    def _sort(self, keys: int, n: int, distinct: int) -> tuple[int, int]:
        """Addresses of uint32 [n] keys and positions in the order of the keys."""
        blocks = -(-n // THREADS)
        counts = self.arena.get("counts", 4 * 256 * blocks)
        halves = self.arena.get("sorted", 16 * n)
        positions = 0
        for number, shift in enumerate(range(0, max((distinct - 1).bit_length(), 1), _DIGIT)):
            to = halves + 8 * n * (number % 2)
            self.arena.run("count_digits", blocks, keys, n, shift, counts)
            scan(self.arena, counts, 256 * blocks)
            self.arena.run("move_by_digit", blocks, keys, positions, n, shift, counts, to, to + 4 * n)
            keys, positions = to, to + 4 * n
        return keys, positions

    def _upload(self, bags: Bags) -> int:
        address = self.arena.get("features", bags.features.nbytes)
        self.arena.backend.upload(address, bags.features)
        return address


def scan(arena: Arena, values: int, n: int) -> None:
    """Replace each of uint32 [n] by the sum of those before it."""
    chunks = -(-n // CHUNK)
    sums = arena.get("sums", 4 * (chunks + 1))
    arena.run("sum_chunks", chunks, values, n, sums)
    arena.run("scan_sums", 1, sums, chunks)
    arena.run("scan_chunks", chunks, values, n, sums)
