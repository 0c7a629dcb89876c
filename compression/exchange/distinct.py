"""The distinct ids of each table in a batch, and where each lookup's id is among them.

A table whose rows are not many times its lookups gets a bitmap: a bit a row, set for each lookup. A scan of the words
that were touched numbers the distinct ids in ascending order, and an id is then found by the number of the first of its
word and the bits below its own. Of a table with more rows the lookups are sorted by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compression.exchange.kernel import Number, check_arrays, kernel, lowest, ones
from compression.kernel import inner

SPARSE = 16
"""Most words of a bitmap for each lookup."""
MOST_ROWS = 1 << 32
"""Of a shard: the sort keeps an id and a position in 64 bits."""
_DIGIT = 9
"""Most bits that one pass of the sort takes."""
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@kernel
def work_sizes(offsets: np.ndarray, batch: Number, shards: np.ndarray, rows: np.ndarray) -> tuple[Number, Number]:
    """Words of the largest bitmap that `distinct` makes of this batch, and the most lookups that it sorts."""
    words, sorted_lookups = np.int64(0), np.int64(0)
    for shard in range(rows.size):
        lookups = offsets[shards[shard + 1] * batch] - offsets[shards[shard] * batch]
        if _has_bitmap(rows[shard], lookups):
            words = max(words, _words(rows[shard]))
        else:
            sorted_lookups = max(sorted_lookups, lookups)
    return words, sorted_lookups


@kernel
def distinct(
    values: np.ndarray,
    offsets: np.ndarray,
    batch: Number,
    shards: np.ndarray,
    rows: np.ndarray,
    bits: np.ndarray,
    ranks: np.ndarray,
    touched: np.ndarray,
    keys: np.ndarray,
    spare: np.ndarray,
    ids: np.ndarray,
    inverse: np.ndarray,
    counts: np.ndarray,
) -> Number:
    """Distinct ids of every shard.

    Args:
        values: int64 [N], ids, feature after feature; not trusted.
        offsets: int64 [F * batch + 1]: bag b of feature f is values from offsets[f * batch + b] up to the next offset.
        batch: bags of a feature.
        shards: int64 [S + 1]: shard s has features shards[s] to shards[s + 1] - 1.
        rows: int64 [S], each at most MOST_ROWS.
        bits, ranks, touched: uint64, int32 and uint8 [words of the largest bitmap]; bits and touched are 0, before
            and after.
        keys, spare: uint64 [most lookups that are sorted].
        ids: int64 [N], out: the distinct ids of each shard, ascending, one shard right after the other.
        inverse: int32 [N], out: where the id of each lookup is among those of its shard.
        counts: int64 [S], out: distinct ids of each shard.

    Returns:
        -1, or the position in values of the first id that is not in 0 to rows - 1; then the outputs mean nothing.
    """
    total = np.int64(0)
    for shard in range(rows.size):
        first, last = offsets[shards[shard] * batch], offsets[shards[shard + 1] * batch]
        found = ids[total : total + last - first]
        if _has_bitmap(rows[shard], last - first):
            words = _words(rows[shard])
            count = _by_bitmap(
                values[first:last],
                rows[shard],
                bits[:words],
                ranks,
                touched[: (words + 7) // 8 * 8],
                found,
                inverse[first:last],
            )
        else:
            count = _by_sort(values[first:last], rows[shard], keys, spare, found, inverse[first:last])
        if count < 0:
            return first - 1 - count
        counts[shard] = count
        total += count
    return -1


@inner
def _words(rows: Number) -> Number:
    return (rows + 63) // 64


@inner
def _has_bitmap(rows: Number, lookups: Number) -> Number:
    return _words(rows) <= SPARSE * lookups


@inner
def _by_bitmap(
    values: np.ndarray,
    rows: Number,
    bits: np.ndarray,
    ranks: np.ndarray,
    touched: np.ndarray,
    ids: np.ndarray,
    inverse: np.ndarray,
) -> Number:
    """Fill ids and inverse of a shard; how many ids there are, or -1 - position of one that is out of range."""
    n = np.uintp(values.size)
    for i in range(n):
        value = np.uint64(values[i])
        if value >= np.uint64(rows):
            bits[:] = 0
            touched[:] = 0
            return -1 - np.int64(i)
        word = value >> np.uint64(6)
        bits[word] |= np.uint64(1) << (value & np.uint64(63))
        touched[word] = 1
    count = np.uint64(0)
    groups = touched.view(np.uint64)
    for group in range(np.uintp(groups.size)):
        marks = groups[group]
        while marks:
            word = np.uint64(group) * np.uint64(8) + (lowest(marks) >> np.uint64(3))
            marks &= marks - np.uint64(1)
            ranks[word] = count
            held = bits[word]
            while held:
                ids[count] = word * np.uint64(64) + lowest(held)
                count += np.uint64(1)
                held &= held - np.uint64(1)
        groups[group] = 0
    for i in range(n):
        value = np.uint64(values[i])
        word = value >> np.uint64(6)
        below = (np.uint64(1) << (value & np.uint64(63))) - np.uint64(1)
        inverse[i] = np.uint64(ranks[word]) + ones(bits[word] & below)
    for i in range(count):
        bits[np.uint64(ids[i]) >> np.uint64(6)] = 0
    return np.int64(count)


@inner
def _by_sort(
    values: np.ndarray, rows: Number, keys: np.ndarray, spare: np.ndarray, ids: np.ndarray, inverse: np.ndarray
) -> Number:
    """As `_by_bitmap`."""
    n = np.uintp(values.size)
    for i in range(n):
        value = np.uint64(values[i])
        if value >= np.uint64(rows):
            return -1 - np.int64(i)
        keys[i] = value << np.uint64(32) | np.uint64(i)
    keys = _sorted(keys, spare, n, rows)
    count, before = np.uint64(0), _ALL
    for i in range(n):
        value = keys[i] >> np.uint64(32)
        if value != before:
            ids[count] = value
            count += np.uint64(1)
            before = value
        inverse[keys[i] & np.uint64(0xFFFFFFFF)] = count - np.uint64(1)
    return np.int64(count)


@inner
def _sorted(keys: Any, spare: Any, n: Number, rows: Number) -> Any:
    """Sort the first n keys by their upper half, which is below rows; which of the two arrays has them."""
    width = 1
    while rows - 1 >> width:
        width += 1
    passes = (width + _DIGIT - 1) // _DIGIT
    digit = (width + passes - 1) // passes
    places = np.zeros(1 << _DIGIT, np.uint32)
    mask = np.uint64((1 << digit) - 1)
    for turn in range(passes):
        shift = np.uint64(32 + turn * digit)
        places[:] = 0
        for i in range(n):
            places[(keys[i] >> shift) & mask] += np.uint32(1)
        start = np.uint32(0)
        for place in range(mask + np.uint64(1)):
            size = places[place]
            places[place] = start
            start = np.uint32(start + size)
        for i in range(n):
            place = (keys[i] >> shift) & mask
            spare[places[place]] = keys[i]
            places[place] += np.uint32(1)
        keys, spare = spare, keys
    return keys


def no_row(id: int, table: str, rows: int, feature: int, position: int) -> IndexError:
    """The error of an id that its table has no row for."""
    where = f"feature {feature}, position {position} in the values"
    return IndexError(f"id {id} of table {table} ({where}) is not in 0 to {rows - 1}")


class Distinct:
    """Finds the distinct ids of batches; keeps its working memory, so one thread at a time may call it.

    Args:
        rows: int [S], of each shard, each at most MOST_ROWS.
        shards: int [S + 1], ascending from 0: shard s has features shards[s] to shards[s + 1] - 1.
        names: of the shards, for errors; their numbers if there are none.

    Raises:
        ValueError: sizes that do not fit each other, or too many rows.

    >>> find = Distinct([10, 4], [0, 1, 3])
    >>> ids, inverse, counts = find(np.array([7, 2, 7, 3, 3]), np.array([0, 2, 3, 4, 4, 5, 5]), 2)
    >>> ids.tolist(), inverse.tolist(), counts.tolist()
    ([2, 7, 3], [1, 0, 1, 0, 0], [2, 1])
    """

    def __init__(self, rows: Sequence[int], shards: Sequence[int], names: Sequence[str] = ()) -> None:
        self._rows, self._shards = np.array(rows, np.int64), np.array(shards, np.int64)
        self._names = list(names) or [str(shard) for shard in range(self._rows.size)]
        if self._shards.size != self._rows.size + 1 or self._shards[0] or (np.diff(self._shards) < 0).any():
            raise ValueError(f"shards {self._shards.tolist()} are not {self._rows.size} ascending ranges from 0 on")
        if len(self._names) != self._rows.size:
            raise ValueError(f"{len(self._names)} names for {self._rows.size} shards")
        if ((self._rows < 0) | (self._rows > MOST_ROWS)).any():
            raise ValueError(f"a shard has 0 to {MOST_ROWS} rows, these have {self._rows.tolist()}")
        self._words = self._lookups = -1

    def __call__(
        self, values: NDArray[Any], offsets: NDArray[np.int64], batch: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """Ids, inverse and counts of a batch, as `distinct` has them, in arrays of their own.

        Args:
            values: int64 or int32 [N], contiguous.
            offsets: int64 [F * batch + 1], ascending from 0 to N: they are trusted but for their ends.
            batch: bags of a feature.

        Raises:
            IndexError: an id that its table has no row for.
            TypeError, ValueError: dtypes, or sizes that do not fit each other.
        """
        if values.dtype == np.int32:
            values = values.astype(np.int64)
        check_arrays(values=(values, np.int64), offsets=(offsets, np.int64))
        features = int(self._shards[-1])
        if offsets.shape != (features * batch + 1,) or batch < 0:
            raise ValueError(f"{offsets.shape} offsets of {features} features and {batch} bags")
        if offsets[0] != 0 or values.shape != (offsets[-1],):
            raise ValueError(f"offsets from {offsets[0]} to {offsets[-1]} of values {values.shape}")
        self._grow(*work_sizes(offsets, batch, self._shards, self._rows))
        ids, inverse = np.empty(values.size, np.int64), np.empty(values.size, np.int32)
        counts = np.empty(self._rows.size, np.int64)
        bad = distinct(values, offsets, batch, self._shards, self._rows, *self._work, ids, inverse, counts)
        if bad >= 0:
            feature = int(np.searchsorted(offsets, bad, "right") - 1) // batch
            shard = int(np.searchsorted(self._shards, feature, "right") - 1)
            raise no_row(int(values[bad]), self._names[shard], int(self._rows[shard]), feature, bad)
        return ids[: counts.sum()], inverse, counts

    def _grow(self, words: int, lookups: int) -> None:
        """Working memory for bitmaps of so many words and sorts of so many lookups."""
        if words > self._words or lookups > self._lookups:
            self._words, self._lookups = max(words, self._words), max(lookups, self._lookups)
            self._work = (
                np.zeros(self._words, np.uint64),
                np.empty(self._words, np.int32),
                np.zeros(self._words + 8, np.uint8),
                np.empty(self._lookups, np.uint64),
                np.empty(self._lookups, np.uint64),
            )
