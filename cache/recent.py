"""Which ids were looked up most of late, in bounded memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class RecentCounts:
    """Counts of ids since it was made: the summary of Misra and Gries, which ranks can merge (Agarwal et al.,
    "Mergeable summaries", PODS 2012).

    Of n ids that were added in all, a count is at most n / (capacity + 1) too small, never too large; an id that is
    not there was added at most so often. With fewer distinct ids than the capacity all is exact.

    Args:
        capacity: ids that are kept.

    >>> counts = RecentCounts(2)
    >>> for ids in ([1, 2], [1, 3], [1, 2]):
    ...     counts.add(np.array(ids))
    >>> [of.tolist() for of in counts.read()]
    [[1, 2], [2, 1]]
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is positive, not {capacity}")
        self.capacity = capacity
        self._ids, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)
        self._new: list[Ints] = []
        self._waiting = 0

    def add(self, ids: NDArray[np.integer]) -> None:
        """One more of each; int [n], in any order."""
        self._new.append(ids.astype(np.int64))
        self._waiting += ids.size
        # Ids wait until sorting them with those that are kept is worth it.
        if self._waiting > 4 * self.capacity:
            self._merge_new()

    def merge(self, ids: Ints, counts: Ints) -> None:
        """Add what another one has read."""
        self._merge_new()
        self._take(np.concatenate([self._ids, ids]), np.concatenate([self._counts, counts]))

    def read(self) -> tuple[Ints, Ints]:
        """Ids, ascending, and how often each was added."""
        self._merge_new()
        return self._ids, self._counts

    def _merge_new(self) -> None:
        if self._new:
            new = np.concatenate(self._new)
            self._new, self._waiting = [], 0
            self._take(np.concatenate([self._ids, new]), np.concatenate([self._counts, np.ones_like(new)]))

    def _take(self, ids: Ints, counts: Ints) -> None:
        self._ids, inverse = np.unique(ids, return_inverse=True)
        self._counts = np.bincount(inverse, counts, self._ids.size).astype(np.int64)
        if self._ids.size > self.capacity:
            left = self._counts - np.partition(self._counts, -self.capacity - 1)[-self.capacity - 1]
            self._ids, self._counts = self._ids[left > 0], left[left > 0]
