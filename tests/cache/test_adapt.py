"""Counts of recent ids, and what moves by them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.adapt import Moves, choose, moved
from cache.recent import RecentCounts
from cache.tables import HotSet, HotTable, Slots

STREAMS = st.lists(st.lists(st.integers(0, 30), max_size=20), max_size=12)


@given(streams=st.lists(STREAMS, min_size=1, max_size=3), capacity=st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_counts_of_merged_ranks_are_within_the_stated_error(streams: list[list[list[int]]], capacity: int) -> None:
    true = Counter(id for stream in streams for ids in stream for id in ids)
    merged = RecentCounts(capacity)
    for stream in streams:
        of_rank = RecentCounts(capacity)
        for ids in stream:
            of_rank.add(np.array(ids, np.int64))
        merged.merge(*of_rank.read())
    ids, counts = merged.read()
    assert ids.size <= capacity and (np.diff(ids) > 0).all()
    found = dict(zip(ids.tolist(), counts.tolist(), strict=True))
    error = sum(true.values()) / (capacity + 1)
    assert all(count - error <= found.get(id, 0) <= count for id, count in true.items())
    if len(true) <= capacity:
        assert found == dict(true)


def test_a_capacity_is_positive() -> None:
    with pytest.raises(ValueError, match="capacity is positive"):
        RecentCounts(0)


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
