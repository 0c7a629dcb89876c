"""Counts of a stream that never ends, in memory that does not grow: the Misra-Gries summary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WAITING = 4
"""Times the capacity that ids may wait to be counted."""


class FrequentIds:
    """The most frequent ids of a stream, each with a count that is too low by at most `error`.

    Misra and Gries (1982) with the batched update and the merge of Agarwal et al., Mergeable Summaries (PODS 2012),
    section 2: add the counts of a batch, keep the `capacity` largest, and take the next one's count from each of them.
    What is taken is taken from `capacity + 1` ids at least, so `error <= lookups / (capacity + 1)`, for any stream, any
    batches and any order of merges.

    Attributes:
        lookups: of the stream so far.

    >>> counts = FrequentIds(2)
    >>> for batch in ([1, 2], [1, 3], [1, 2]):
    ...     counts.update(np.array(batch))
    >>> counts.ids.tolist(), counts.counts.tolist(), counts.error
    ([1, 2], [2, 1], 1)
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is at least 1, not {capacity}")
        self.capacity = capacity
        self._ids, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)
        self.lookups = self._error = 0
        self._waiting: list[NDArray[np.int64]] = []
        self._waits = 0

    @property
    def ids(self) -> NDArray[np.int64]:
        """int64 [n], ascending; n is at most the capacity."""
        self._count_waiting()
        return self._ids

    @property
    def counts(self) -> NDArray[np.int64]:
        """int64 [n], above 0."""
        self._count_waiting()
        return self._counts

    @property
    def error(self) -> int:
        """true count - error <= count <= true count; an id that is not in `ids` was seen at most `error` times."""
        self._count_waiting()
        return self._error

    def update(self, ids: NDArray[np.integer]) -> None:
        """Count a batch of ids, of any shape."""
        self._waiting.append(np.ravel(ids).astype(np.int64))
        self._waits += ids.size
        self.lookups += ids.size
        # Sorting them with those that are kept is worth it only for as many.
        if self._waits > WAITING * self.capacity:
            self._count_waiting()

    def add(self, ids: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Count ids, ascending and without duplicates, so many times each."""
        self.lookups += int(counts.sum())
        self._add(ids, counts)

    def merge(self, other: FrequentIds) -> None:
        """Count what another worker counted; the capacity stays this one's."""
        self._add(other.ids, other.counts)
        self.lookups += other.lookups
        self._error += other.error

    def most_frequent(self, count: int) -> NDArray[np.int64]:
        """int64 [<= count] ids by falling count, those of equal count by id.

        All ids that were seen more than `error` times above the count of the last one are among them.
        """
        return self.ids[np.argsort(-self.counts, kind="stable")[:count]]

    def estimate(self, ids: NDArray[np.integer]) -> NDArray[np.int64]:
        """int64, of the shape of ids: the count of each, 0 where it is not kept."""
        if not self.ids.size:
            return np.zeros(np.shape(ids), np.int64)
        places = np.minimum(np.searchsorted(self.ids, ids), self.ids.size - 1)
        return np.where(self.ids[places] == ids, self.counts[places], 0)

    def scale(self, factor: float) -> None:
        """Forget: what was counted weighs so much as if it had been seen `factor` times as often. With a factor below 1
        at each window, counts follow a stream that changes. Rounded down, which may add 1 to the error."""
        if not 0 <= factor <= 1:
            raise ValueError(f"factor is in 0 to 1, not {factor}")
        counts = np.floor(self.counts * factor).astype(np.int64)
        self._ids, self._counts = self._ids[counts > 0], counts[counts > 0]
        self.lookups = int(np.ceil(self.lookups * factor))
        self._error = int(np.ceil(self._error * factor)) + (factor < 1)

    def _count_waiting(self) -> None:
        if self._waiting:
            seen, counts = np.unique(np.concatenate(self._waiting), return_counts=True)
            self._waiting, self._waits = [], 0
            self._add(seen, counts.astype(np.int64))

    def _add(self, ids: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        every, inverse = np.unique(np.concatenate([self._ids, ids]), return_inverse=True)
        sums = np.zeros(every.size, np.int64)
        np.add.at(sums, inverse, np.concatenate([self._counts, counts]))
        if every.size > self.capacity:
            taken = int(np.partition(sums, every.size - self.capacity - 1)[every.size - self.capacity - 1])
            sums -= taken
            self._error += taken
        kept = sums > 0
        self._ids, self._counts = every[kept], sums[kept]
