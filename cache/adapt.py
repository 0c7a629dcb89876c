"""Which rows change places when the frequent ones have become others."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cache.tables import HotSet, Ints


@dataclass(frozen=True)
class Moves:
    """Of one table: slot k gets row `enter[k]` in the place of `leave[k]`."""

    slots: Ints
    """int64 [n], in the table."""
    leave: Ints
    enter: Ints


def choose(hot_counts: Ints, hot_ids: Ints, ids: Ints, counts: Ints, cost: float) -> Moves:
    """The moves of one table that gain more than they cost.

    Gain and cost are counted in fetches, a row of the table that goes to one rank once. A cold row is fetched once by
    each rank and step that looks it up. The most fetched one takes the place of the hot one that would have been
    fetched least, and so on, while that saves more than `cost` fetches, if the next interval is like the last.

    Args:
        hot_counts: int64 [hot], in how many batches each hot row was looked up, over all ranks.
        hot_ids: int64 [hot].
        ids, counts: int64 [n], the same of cold rows.
        cost: of a move. A row that enters goes to all ranks, so it is their number.

    >>> moves = choose(np.array([9, 0, 5]), np.array([4, 5, 6]), np.array([7, 8]), np.array([8, 3]), cost=2)
    >>> moves.slots.tolist(), moves.leave.tolist(), moves.enter.tolist()
    ([1], [5], [7])
    """
    # Ties are broken by slot and id, so that all ranks choose alike.
    worst = np.argsort(hot_counts, kind="stable")
    best = np.lexsort((ids, -counts))
    n = min(worst.size, best.size)
    worst, best = worst[:n], best[:n]
    # Gains fall from pair to pair.
    pays = counts[best] - hot_counts[worst] > cost
    slots = worst[pays]
    return Moves(slots, hot_ids[slots], ids[best[pays]])


def moved(hot: HotSet, moves: list[Moves]) -> HotSet:
    """The set after the moves, one entry a table."""
    ids = []
    for old, move in zip(hot.ids, moves, strict=True):
        new = old.copy()
        new[move.slots] = move.enter
        ids.append(new)
    return replace(hot, ids=tuple(ids), version=hot.version + 1)
