"""What a table asks for in a step: rows and ids, for any number of hot rows.

Each quantity is an array over candidates for the number of hot rows, so that a planner sees a table's whole curve at
once. Rows 0 to hot - 1 are on every rank; of the others an owner has the only copy.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cache.distinct import touched
from cache.frequency import Frequencies

Floats = NDArray[np.float64]
GAP_BITS = 32
_NONE = 1e-9
"""Expected gaps that are none but for rounding."""
STATE = {"sgd": (0, 0), "rowwise_adagrad": (1, 0), "adam": (0, 2)}
"""Values of the optimiser's state: for a row, and for each value of a row."""


@dataclass(frozen=True, eq=False)
class Table:
    """One embedding table of a job, as a rank sees it."""

    name: str
    dim: int
    of: Frequencies
    bag_length: float = 1.0
    """Mean ids in a bag. Only the mean matters to the model."""
    epoch_rows: float | None = None
    """Rows of the data set, if batches are drawn from it without putting back."""

    def touched(self, batch: float) -> Floats:
        """float64 [runs]: chance that a row is in so many bags."""
        share = None if self.epoch_rows is None else batch / self.epoch_rows
        return touched(self.of, batch * self.bag_length, share)

    def row_bytes(self, optimizer: str) -> float:
        """Bytes of a row in memory, state of the optimiser included."""
        a_row, a_value = STATE[optimizer]
        return 4.0 * (self.dim * (1 + a_value) + a_row)


@dataclass(frozen=True)
class Curve:
    """A table for each candidate number of hot rows; all float64 [candidates]. Rows and ids are a rank's in a step."""

    table: Table
    batch: int
    ranks: int
    hot: Floats

    @cached_property
    def _chance(self) -> Floats:
        return self.table.touched(self.batch)

    @cached_property
    def _union_chance(self) -> Floats:
        return self.table.touched(self.batch * self.ranks)

    @cached_property
    def hit_rate(self) -> Floats:
        return self.table.of.hit_rate(self.hot)

    @cached_property
    def cold_lookups(self) -> Floats:
        return self.batch * self.table.bag_length * (1 - self.hit_rate)

    @cached_property
    def touched(self) -> Floats:
        """Hot rows that a rank's batch touches: phase 1 of the replica's sync."""
        return self.table.of.first(self._chance, self.hot)

    @cached_property
    def union(self) -> Floats:
        """Hot rows that the batches of all ranks touch together: phase 2."""
        return self.table.of.first(self._union_chance, self.hot)

    @cached_property
    def cold(self) -> Floats:
        """Distinct cold rows that a rank asks for."""
        left = float((self._chance * self.table.of.sizes).sum()) - self.touched
        return np.where(self.hot < self.table.of.rows, np.maximum(left, 0.0), 0.0)

    @cached_property
    def some_cold(self) -> Floats:
        """Chance that a batch asks for any cold row."""
        logs = _log_none(self._chance)
        left = float((logs * self.table.of.sizes).sum()) - self.table.of.first(logs, self.hot)
        return np.where(self.hot < self.table.of.rows, -np.expm1(np.minimum(left, 0.0)), 0.0)

    @cached_property
    def some_touched(self) -> Floats:
        """Chance that the message to one of the ranks that add up hot rows' gradients has any of this table."""
        return self._some_dealt(self._chance)

    @cached_property
    def some_union(self) -> Floats:
        """The same of the sums that a rank sends."""
        return self._some_dealt(self._union_chance)

    def _some_dealt(self, chance: Floats) -> Floats:
        having = np.minimum(self.hot, self.ranks)
        logs = self.table.of.first(_log_none(chance), self.hot)
        return having / self.ranks * -np.expm1(logs / np.maximum(having, 1.0))

    @cached_property
    def cold_variance(self) -> Floats:
        """A bound of it, see `distinct_variance`."""
        spread = self._chance * (1 - self._chance)
        return float((spread * self.table.of.sizes).sum()) - self.table.of.first(spread, self.hot)

    @property
    def cold_id_bits(self) -> Floats:
        sums = gap_sums(self.table, self.batch)
        return _entropy(sums[-1] - self.first(sums))

    @property
    def touched_id_bits(self) -> Floats:
        return _entropy(self.first(gap_sums(self.table, self.batch)))

    @property
    def union_id_bits(self) -> Floats:
        return _entropy(self.first(gap_sums(self.table, self.batch * self.ranks)))

    def first(self, sums: Floats) -> Floats:
        """Of the rows 0 to hot - 1, float64 [candidates, bits]."""
        of = self.table.of
        run = np.minimum(np.searchsorted(of.ends, self.hot, "right") - 1, of.sizes.size - 1)
        share = (self.hot - of.ends[run]) / of.sizes[run]
        return sums[run] + share[:, None] * (sums[run + 1] - sums[run])


def _log_none(chance: Floats) -> Floats:
    return np.log1p(-np.minimum(chance, 1 - 1e-12))


@functools.lru_cache(maxsize=256)
def gap_sums(table: Table, batch: int) -> Floats:
    """Expected gaps between ascending distinct ids of a batch, by their bits, up to the end of each run of rows.

    A gap before a row of a run is about geometric: P(gap > g) = (1 - chance)^g.

    Returns:
        float64 [runs + 1, GAP_BITS]: the gaps of 2^b to 2^(b + 1) - 1.
    """
    chance = table.touched(batch)
    beyond = np.exp(np.outer(_log_none(chance), 2.0 ** np.arange(GAP_BITS) - 1))  # P(gap >= 2^b)
    beyond[:, :-1] -= beyond[:, 1:]
    gaps = beyond * (chance * table.of.sizes)[:, None]
    return np.concatenate([np.zeros((1, GAP_BITS)), np.cumsum(gaps, axis=0)])


def _entropy(gaps: Floats) -> Floats:
    """Bits of gaps if their size in bits is coded by its entropy, and what is below the first bit as it is."""
    gaps = np.where(gaps > _NONE, gaps, 0.0)
    total = gaps.sum(axis=-1, keepdims=True)
    coded = gaps * np.log2(np.maximum(total, _NONE) / np.maximum(gaps, _NONE))
    return (coded + gaps * np.arange(GAP_BITS)).sum(axis=-1)


def candidates(table: Table, count: int = 48) -> Floats:
    """Numbers of hot rows worth a look: none, all, and as many between, each a constant factor above the last."""
    rows = table.of.rows
    if rows <= count:
        return np.arange(rows + 1, dtype=np.float64)
    between = np.unique(np.round(np.geomspace(1, rows, count - 1)))
    return np.concatenate([[0.0], between])
