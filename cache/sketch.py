"""Counts of a stream that never ends, in memory that does not grow: the Misra-Gries summary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class FrequentIds:
    """The most frequent ids of a stream, each with a count that is too low by at most `error`.

    Misra and Gries (1982) with the batched update and the merge of Agarwal et al., Mergeable Summaries (PODS 2012),
    section 2: add the counts of a batch, keep the `capacity` largest, and take the next one's count from each of them.
    What is taken is taken from `capacity + 1` ids at least, so `error <= lookups / (capacity + 1)`, for any stream, any
    batches and any order of merges.

    Attributes:
        ids: int64 [n], ascending; counts: int64 [n], above 0; n is at most the capacity.
        lookups: of the stream so far.
        error: true count - `error` <= count <= true count; an id that is not in `ids` was seen at most `error` times.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is at least 1, not {capacity}")
        self.capacity = capacity
        self.ids, self.counts = np.empty(0, np.int64), np.empty(0, np.int64)
        self.lookups = self.error = 0

    def update(self, ids: NDArray[np.integer]) -> None:
        """Count a batch of ids, of any shape."""
        seen, counts = np.unique(ids, return_counts=True)
        self._add(seen.astype(np.int64), counts.astype(np.int64))
        self.lookups += int(np.size(ids))

    def merge(self, other: FrequentIds) -> None:
        """Count what another worker counted; the capacity stays this one's."""
        self._add(other.ids, other.counts)
        self.lookups += other.lookups
        self.error += other.error

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
        self.ids, self.counts = self.ids[counts > 0], counts[counts > 0]
        self.lookups = int(np.ceil(self.lookups * factor))
        self.error = int(np.ceil(self.error * factor)) + (factor < 1)

    def _add(self, ids: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """ids ascending, without duplicates."""
        every, inverse = np.unique(np.concatenate([self.ids, ids]), return_inverse=True)
        sums = np.zeros(every.size, np.int64)
        np.add.at(sums, inverse, np.concatenate([self.counts, counts]))
        if every.size > self.capacity:
            taken = int(np.partition(sums, every.size - self.capacity - 1)[every.size - self.capacity - 1])
            sums -= taken
            self.error += taken
        kept = sums > 0
        self.ids, self.counts = every[kept], sums[kept]
