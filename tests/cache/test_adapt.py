"""Counts of recent ids, and what moves by them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.adapt import Moves, choose, moved
from cache.tables import HotSet, HotTable, Slots

COUNTS = st.lists(st.integers(0, 9), max_size=8)


@given(hot=COUNTS, cold=COUNTS, cost=st.integers(0, 4))
@settings(max_examples=100, deadline=None)
def test_moves_gain_what_no_other_moves_would(hot: list[int], cold: list[int], cost: int) -> None:
    hot_ids, ids = 100 + np.arange(len(hot)), np.arange(len(cold))
    moves = choose(np.array(hot, np.int64), hot_ids, ids, np.array(cold, np.int64), cost)
    n = moves.slots.size
    assert n == moves.leave.size == moves.enter.size == np.unique(moves.slots).size == np.unique(moves.enter).size
    assert (hot_ids[moves.slots] == moves.leave).all()
    gain = sum(cold[i] for i in moves.enter) - sum(hot[i] for i in moves.slots) - cost * n
    pairs = list(zip(sorted(hot), sorted(cold, reverse=True), strict=False))
    best = max(sum(c - h - cost for h, c in pairs[:k]) for k in range(len(pairs) + 1))
    assert gain == best
    assert all(cold[c] - hot[h] > cost for h, c in zip(moves.slots, moves.enter, strict=True))


def test_a_moved_set_maps_the_new_ids_to_the_freed_slots() -> None:
    slots = Slots([HotTable("a", 10, 2, 3, ("fa",)), HotTable("b", 4, 2, 2, ("fb",))])
    hot = HotSet.first_rows(slots)
    nothing = np.empty(0, np.int64)
    after = moved(hot, [Moves(np.array([1]), np.array([1]), np.array([9])), Moves(nothing, nothing, nothing)])
    assert [ids.tolist() for ids in after.ids] == [[0, 9, 2], [0, 1]] and after.version == hot.version + 1
    starts, maps = after.maps
    assert starts.tolist() == [0, -1] and maps.tolist() == [0, -1, 2, -1, -1, -1, -1, -1, -1, 1]
