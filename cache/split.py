"""A batch parted in lookups of cold rows, which go by the exchange, and of hot rows, which every rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache import kernel
from cache.tables import HotSet, Ints

Floats = NDArray[np.float32]
_NONE: Floats = np.empty(0, np.float32)


@dataclass(frozen=True)
class HotLookups:
    """The hot ids of a batch of B samples and F features."""

    batch: int
    slots: NDArray[np.int32]
    """int32 [N], of all bags, feature after feature."""
    offsets: Ints
    """int64 [F * B + 1], of the bags."""
    weights: Floats
    """float32 [N], or [0] for none."""
    shares: Floats
    """float32 [F * B]: by which the sum of a bag is multiplied, 1 / its ids for a mean; [0] where no table has one."""
    cold_shares: Floats
    """float32 [F * B]: the same for the mean of the bag's cold ids, their share of all its ids."""
    touched: Ints
    """int64 [n], the distinct slots, ascending."""
    inverse: NDArray[np.int32]
    """int32 [N], where the slot of each lookup is in `touched`."""
    hits: Ints
    """int64 [tables], of the batch."""
    lookups: Ints
    """int64 [tables], cold ones too."""
    version: int
    """Of the hot set."""
    cold: tuple[Ints, ...] | None = None
    """By table, the distinct cold ids, ascending; None if they were not asked for."""


@dataclass(frozen=True)
class ColdIds:
    """What is left for the exchange: as the KJT has it."""

    values: NDArray[Any]
    lengths: NDArray[np.int32]
    weights: Floats


def part(
    hot: HotSet,
    values: NDArray[Any],
    lengths: NDArray[np.int32],
    batch: int,
    weights: Floats = _NONE,
    *,
    distinct: bool = False,
) -> tuple[ColdIds, HotLookups]:
    """Part the ids of a batch.

    Args:
        values: int32 or int64 [N], ids, feature after feature in the order of the slots' tables.
        lengths: int32 [F * B], of the bags.
        batch: B.
        weights: float32 [N], by which rows are multiplied, or [0] for none.
        distinct: find the distinct cold ids too.

    Raises:
        IndexError: an id that its table has no row for; names feature, id and rows.
        ValueError: lengths that do not fit.
    """
    slots = hot.slots
    tables = slots.feature_tables
    if lengths.shape != (tables.size * batch,) or lengths.sum(dtype=np.int64) != values.size:
        raise ValueError(f"{values.size} ids do not make {lengths.size} bags of {tables.size} features of {batch}")
    if weights.size not in (0, values.size):
        raise ValueError(f"{weights.size} weights of {values.size} ids")
    n = values.size
    cold, cold_lengths, cold_weights = np.empty_like(values), np.empty_like(lengths), np.empty_like(weights)
    found, offsets, hot_weights = np.empty(n, np.int32), np.empty(lengths.size + 1, np.int64), np.empty_like(weights)
    rows = np.array([table.rows for table in slots.tables], np.int64)
    given = values, lengths, weights, batch, tables, rows, slots.first, *hot.maps
    n_cold, n_hot, bad = kernel.split(*given, cold, cold_lengths, cold_weights, found, offsets, hot_weights)
    if bad >= 0:
        raise _no_row(hot, values, lengths, batch, bad)
    found = found[:n_hot]
    touched, inverse = np.empty(n_hot, np.int64), np.empty(n_hot, np.int32)
    count = kernel.touch(found, np.zeros(slots.size, np.int32), touched, inverse)
    shares, cold_shares = _shares(hot, lengths, cold_lengths, batch)
    ends = offsets[::batch] if batch else np.zeros(tables.size + 1, np.int64)
    all_ids = lengths.reshape(tables.size, batch).sum(axis=1, dtype=np.int64)
    lookups = HotLookups(
        batch=batch,
        slots=found,
        offsets=offsets,
        weights=hot_weights[:n_hot] if weights.size else _NONE,
        shares=shares,
        cold_shares=cold_shares,
        touched=touched[:count],
        inverse=inverse,
        hits=np.bincount(tables, np.diff(ends), len(slots.tables)).astype(np.int64),
        lookups=np.bincount(tables, all_ids, len(slots.tables)).astype(np.int64),
        version=hot.version,
        cold=_distinct(hot, cold[:n_cold], cold_lengths, batch) if distinct else None,
    )
    return ColdIds(cold[:n_cold], cold_lengths, cold_weights[:n_cold] if weights.size else _NONE), lookups


def _distinct(hot: HotSet, cold: np.ndarray, cold_lengths: np.ndarray, batch: int) -> tuple[Ints, ...]:
    tables = hot.slots.feature_tables
    of_features = np.split(cold, np.cumsum(cold_lengths.reshape(tables.size, batch).sum(axis=1, dtype=np.int64))[:-1])
    return tuple(
        np.unique(np.concatenate([of_features[f] for f in np.flatnonzero(tables == table)])).astype(np.int64)
        for table in range(len(hot.slots.tables))
    )


def _shares(hot: HotSet, lengths: np.ndarray, cold_lengths: np.ndarray, batch: int) -> tuple[Floats, Floats]:
    means = np.array([table.mean for table in hot.slots.tables], np.bool_)[hot.slots.feature_tables]
    if not means.any():
        return _NONE, _NONE
    of_mean, sizes = np.repeat(means, batch), np.maximum(lengths, 1).astype(np.float32)
    one = np.float32(1)
    # A bag without ids is 0 whatever its share.
    return np.where(of_mean, one / sizes, one), np.where(of_mean, cold_lengths / sizes, one).astype(np.float32)


def _no_row(hot: HotSet, values: np.ndarray, lengths: np.ndarray, batch: int, position: int) -> IndexError:
    bag = int(np.searchsorted(np.cumsum(lengths), position, "right"))
    feature = bag // batch
    table = hot.slots.tables[hot.slots.feature_tables[feature]]
    name = hot.slots.features[feature]
    return IndexError(f"feature '{name}' has id {values[position]}, outside its table of {table.rows} rows")
