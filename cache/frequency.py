"""How often the rows of a table are looked up: exact counts, and what follows from them for a set of hot rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

HEAD = 1 << 14
"""Rows of a power law that have a run of their own; the others share runs of equal chance."""
GROWTH = 1.002
"""From one such run's last rank to the next one's."""


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Counts of the rows of one table in the order of their ids, as runs of rows of equal count.

    In a prepared data set ids are ranked by falling frequency, so a table of ten million rows has some thousand runs,
    and "the n most frequent rows" are ids 0 to n - 1. (Ids 0 and 1, missing and unknown, come first whatever their
    counts.)

    Attributes:
        counts: float64 [runs], of each row of a run; a run may have expected counts.
        sizes: int64 [runs], rows of each run, at least 1.
    """

    counts: NDArray[np.float64]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, counts: ArrayLike, rows: int | None = None) -> Frequencies:
        """From the count of each id.

        Args:
            counts: integers or floats [ids], at least 0.
            rows: of the table, if it has more rows than ids were counted; those are never looked up.

        Raises:
            ValueError: a negative count, no row, or fewer rows than counts.

        >>> Frequencies.of([5, 2, 2, 2]).sizes.tolist()
        [1, 3]
        """
        array = np.asarray(counts, np.float64)
        rows = array.size if rows is None else rows
        if array.ndim != 1 or not 0 < array.size <= rows or not (array >= 0).all():
            raise ValueError(
                f"{array.shape} counts for {rows} rows: need at least one, no more than rows, none below 0"
            )
        starts = np.flatnonzero(np.concatenate([[True], array[1:] != array[:-1]]))
        values, sizes = array[starts], np.diff(np.append(starts, array.size))
        if rows > array.size:
            values, sizes = np.append(values, 0.0), np.append(sizes, rows - array.size)
        return cls(values, sizes.astype(np.int64))

    @classmethod
    def power_law(cls, rows: int, exponent: float, lookups: float = 1.0) -> Frequencies:
        """Row k of 1 to `rows` has a chance that goes with k^-exponent. Far ranks share runs, which moves no chance by
        more than `exponent * (GROWTH - 1)` of itself."""
        edges = [np.arange(min(rows, HEAD) + 1, dtype=np.int64)]
        if rows > HEAD:
            steps = int(np.ceil(np.log(rows / HEAD) / np.log(GROWTH)))
            far = np.unique((HEAD * (rows / HEAD) ** (np.arange(1, steps + 1) / steps)).astype(np.int64))
            edges.append(np.append(far[(far > HEAD) & (far < rows)], rows))
        cuts = np.concatenate(edges)
        sizes = np.diff(cuts)
        middle = np.where(sizes == 1, cuts[1:], np.sqrt((cuts[:-1] + 0.5) * (cuts[1:] + 0.5)))
        chances = middle**-exponent
        return cls(chances * (lookups / (chances * sizes).sum()), sizes)

    @property
    def rows(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def lookups(self) -> float:
        return float((self.counts * self.sizes).sum())

    @cached_property
    def chances(self) -> NDArray[np.float64]:
        """float64 [runs]: that a lookup is of a row of the run, each of them; zeros where nothing was looked up."""
        return self.counts / self.lookups if self.lookups else np.zeros_like(self.counts)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """int64 [runs + 1]: the first row of each run, and the rows of all."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sizes)])

    def first(self, of_rows: NDArray[np.float64], hot: ArrayLike) -> NDArray[np.float64]:
        """Sum over the rows 0 to hot - 1 of a value that all rows of a run have.

        Args:
            of_rows: float64 [runs]; hot: rows, of any shape.
        """
        sums = np.concatenate([[0.0], np.cumsum(of_rows * self.sizes)])
        return np.interp(np.asarray(hot, np.float64), self.ends, sums)

    def hit_rate(self, hot: ArrayLike) -> NDArray[np.float64]:
        """Share of lookups that go to the rows 0 to hot - 1.

        >>> float(Frequencies.of([6, 3, 1]).hit_rate(2))
        0.9
        """
        return self.first(self.chances, hot)


def count_ids(ids: NDArray[np.integer], rows: int) -> NDArray[np.int64]:
    """int64 [rows]: how often each id is in an array of any shape.

    Raises:
        IndexError: an id that the table has no row for.
    """
    flat = np.ravel(ids)
    if flat.size and (flat.min() < 0 or flat.max() >= rows):
        bad = flat[(flat < 0) | (flat >= rows)][0]
        raise IndexError(f"id {bad} of a table of {rows} rows")
    return np.bincount(flat, minlength=rows).astype(np.int64)


def merge_counts(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The counts of several workers as one.

    Raises:
        ValueError: none, or of tables of other sizes.
    """
    if not parts or any(part.shape != parts[0].shape for part in parts):
        raise ValueError(f"counts of shapes {[part.shape for part in parts]} are not of one table")
    return np.sum(np.stack(parts), axis=0, dtype=np.int64)


def total_hit_rate(tables: Sequence[tuple[Frequencies, int]]) -> float:
    """Of several tables, each with its hot rows: hits over lookups. A mean over tables would let a table that is hardly
    looked up count as much as the busiest one (pytorch/FBGEMM#1623)."""
    hits = sum(float(of.hit_rate(hot)) * of.lookups for of, hot in tables)
    lookups = sum(of.lookups for of, _ in tables)
    return hits / lookups if lookups else 0.0
