"""The order in which a split is read: one global sequence of samples, the same for any number of ranks.

An epoch permutes the row groups by (seed, epoch) and permutes rows inside windows of a few row groups. The sequence of
samples is fixed by that alone. A step takes the next world_size x batch samples of it, rank r the r-th `batch` of them,
so training that stops at sample p goes on at sample p with any world size and neither repeats nor skips a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# Streams of draws under one (seed, epoch).
_GROUPS, _ROWS = 0, 1


@dataclass(frozen=True)
class Group:
    """A row group of a part."""

    part: int
    index: int
    rows: int


@dataclass(frozen=True)
class Window:
    """Consecutive samples of an epoch, which are the rows of `groups` in some order."""

    start: int
    """Position of the first sample in the epoch."""
    groups: tuple[Group, ...]
    rows: int
    key: tuple[int, int, int, int] | None
    """Seed of the order of rows; None is the order of the file."""

    def row(self, samples: np.ndarray) -> np.ndarray:
        """Rows, counted through `groups`, of samples int64 [n] counted from `start`."""
        if self.key is None:
            return samples
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.key))).permutation(self.rows)[samples]


def windows(groups: Sequence[Group], *, seed: int, epoch: int, shuffle: bool, window_groups: int) -> Iterator[Window]:
    """The windows of an epoch, in order.

    Args:
        groups: all row groups of the split, in the order of the files.
        shuffle: False reads in the order of the files, and ignores seed and epoch.
        window_groups: row groups per window; more shuffles better and holds more rows in memory.
    """
    order = np.arange(len(groups))
    if shuffle:
        np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, epoch, _GROUPS, 0)))).shuffle(order)
    start = 0
    for number, first in enumerate(range(0, len(order), window_groups)):
        chosen = tuple(groups[i] for i in order[first : first + window_groups])
        rows = sum(group.rows for group in chosen)
        yield Window(start, chosen, rows, (seed, epoch, _ROWS, number) if shuffle else None)
        start += rows


def rank_samples(first: int, last: int, *, origin: int, batch: int, rank: int, world_size: int) -> np.ndarray:
    """int64: the samples in [first, last) that rank takes when training began at sample `origin` of the epoch."""
    samples = np.arange(max(first, origin), last)
    return samples[(samples - origin) // batch % world_size == rank]
