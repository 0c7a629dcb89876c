"""Which rows of which tables every rank holds: the hot ones, and where each lies in a replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class HotTable:
    """A table of a model, and how many of its rows are hot."""

    name: str
    rows: int
    dim: int
    hot: int
    features: tuple[str, ...]
    mean: bool = False
    """Bags are averaged, not summed."""

    def __post_init__(self) -> None:
        if not 0 <= self.hot <= self.rows:
            raise ValueError(f"table {self.name} has {self.rows} rows, {self.hot} of them cannot be hot")


class Slots:
    """The slots of a replica: each holds one hot row, those of a table follow each other. The same on all ranks.

    Args:
        tables: of the model, in the order of their features in a KJT.

    Attributes:
        first: int64 [tables + 1]: table t has slots first[t] up to the next.
        dims: int64 [slots], columns of each.
        bases: int64 [slots], where the row of each begins in a flat array of all.
        size: slots; values: of all rows.

    >>> slots = Slots([HotTable("a", 100, 4, 2, ("fa",)), HotTable("b", 10, 2, 3, ("fb", "fc"))])
    >>> slots.first.tolist(), slots.bases.tolist(), slots.values
    ([0, 2, 5], [0, 4, 8, 10, 12], 14)
    """

    def __init__(self, tables: Sequence[HotTable]) -> None:
        self.tables = tuple(tables)
        counts = [table.hot for table in tables]
        self.first = np.cumsum([0, *counts], dtype=np.int64)
        self.dims = np.repeat(np.array([table.dim for table in tables], np.int64), counts)
        self.bases = np.cumsum(self.dims) - self.dims
        self.size, self.values = int(self.first[-1]), int(self.dims.sum())

    @property
    def features(self) -> list[str]:
        return [feature for table in self.tables for feature in table.features]

    @cached_property
    def feature_tables(self) -> Ints:
        """int64 [features]: the table of each."""
        return np.repeat(np.arange(len(self.tables)), [len(table.features) for table in self.tables])

    @cached_property
    def feature_dims(self) -> Ints:
        return np.array([self.tables[t].dim for t in self.feature_tables], np.int64)

    def starts(self, slots: Ints) -> Ints:
        """int64 [n]: where the rows of some slots begin if they lie one after the other."""
        dims = self.dims[slots]
        return np.cumsum(dims) - dims

    def size_of(self, slots: Ints) -> int:
        """Values of the rows of some slots."""
        return int(self.dims[slots].sum())

    def by_table(self, slots: Ints) -> Ints:
        """int64 [tables]: how many of some slots, ascending, each table has."""
        return np.diff(np.searchsorted(slots, self.first))


@dataclass(frozen=True)
class HotSet:
    """The ids of the rows that the slots hold.

    Args:
        ids: int64 by table, in the order of its slots, each once.
        version: another one for another set.
    """

    slots: Slots
    ids: tuple[Ints, ...]
    version: int = 0

    @staticmethod
    def first_rows(slots: Slots) -> HotSet:
        """Of tables whose ids are ranked by frequency: their first rows."""
        return HotSet(slots, tuple(np.arange(table.hot) for table in slots.tables))

    def __post_init__(self) -> None:
        for table, ids in zip(self.slots.tables, self.ids, strict=True):
            if ids.shape != (table.hot,) or np.unique(ids).size != ids.size:
                raise ValueError(f"table {table.name} has {table.hot} slots, not {ids.size} ids, each of them once")
            if ids.size and not 0 <= ids.min() <= ids.max() < table.rows:
                raise ValueError(f"ids of table {table.name} are in 0 to {table.rows - 1}")

    @cached_property
    def maps(self) -> tuple[Ints, NDArray[np.int32]]:
        """Where the map of each table begins, -1 for none, and the maps: the slot of an id in its table or -1. A table
        whose first rows are hot needs no map; of another one it takes 4 bytes a row."""
        starts, maps, at = [], [np.empty(0, np.int32)], 0
        for table, ids in zip(self.slots.tables, self.ids, strict=True):
            if (ids == np.arange(ids.size)).all():
                starts.append(-1)
                continue
            map = np.full(table.rows, -1, np.int32)
            map[ids] = np.arange(ids.size)
            starts.append(at)
            maps.append(map)
            at += table.rows
        return np.array(starts, np.int64), np.concatenate(maps)
