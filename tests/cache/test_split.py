"""Hot and cold ids of a batch parted as a plain loop parts them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.split import part
from cache.tables import HotSet, HotTable, Slots

TABLES = [
    HotTable("a", 12, 4, 5, ("fa",)),
    HotTable("b", 9, 2, 9, ("fb", "fc"), mean=True),
    HotTable("c", 30, 4, 0, ("fd",)),
]
SLOTS = Slots(TABLES)
FIRST = HotSet.first_rows(SLOTS)
OTHER = HotSet(SLOTS, (np.array([11, 0, 7, 3, 8]), np.arange(9)[::-1].copy(), np.arange(0)), version=4)
ROWS = {"fa": 12, "fb": 9, "fc": 9, "fd": 30}


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, list[list[list[int]]]]:
    """Ids by feature and bag."""
    batch = draw(st.integers(0, 4))
    of = [
        st.lists(st.lists(st.integers(0, rows - 1), max_size=4), min_size=batch, max_size=batch)
        for rows in ROWS.values()
    ]
    return batch, [draw(feature) for feature in of]


def flat(bags: list[list[list[int]]], dtype: type = np.int32) -> tuple[np.ndarray, np.ndarray]:
    values = [id for feature in bags for bag in feature for id in bag]
    return np.array(values, dtype), np.array([len(bag) for feature in bags for bag in feature], np.int32)


@pytest.mark.parametrize("hot", [FIRST, OTHER], ids=["first", "other"])
@given(given=batches(), weighted=st.booleans())
@settings(max_examples=60, deadline=None)
def test_parts_are_those_of_a_plain_loop(hot: HotSet, given: tuple[int, list[list[list[int]]]], weighted: bool) -> None:
    batch, bags = given
    values, lengths = flat(bags)
    weights = np.arange(values.size if weighted else 0, dtype=np.float32)
    cold, found = part(hot, values, lengths, batch, weights, distinct=True)
    tables = SLOTS.feature_tables
    slot_of = [{int(id): int(SLOTS.first[t]) + i for i, id in enumerate(ids)} for t, ids in enumerate(hot.ids)]
    split = [[[(id, slot_of[tables[f]].get(id)) for id in bag] for bag in feature] for f, feature in enumerate(bags)]
    pairs = [pair for feature in split for bag in feature for pair in bag]
    assert cold.values.tolist() == [id for id, slot in pairs if slot is None]
    assert cold.lengths.tolist() == [sum(s is None for _, s in bag) for feature in split for bag in feature]
    assert found.slots.tolist() == [slot for _, slot in pairs if slot is not None]
    assert np.diff(found.offsets).tolist() == [sum(s is not None for _, s in bag) for f in split for bag in f]
    if weighted:
        assert cold.weights.tolist() == [i for i, (_, slot) in enumerate(pairs) if slot is None]
        assert found.weights.tolist() == [i for i, (_, slot) in enumerate(pairs) if slot is not None]
    assert found.touched.tolist() == sorted({slot for _, slot in pairs if slot is not None})
    assert found.touched[found.inverse].tolist() == found.slots.tolist()
    # PC-50: hits and lookups of every table, two of whose features may share it.
    for t in range(len(TABLES)):
        of = [pair for f in np.flatnonzero(tables == t) for bag in split[f] for pair in bag]
        assert found.lookups[t] == len(of) and found.hits[t] == sum(slot is not None for _, slot in of)
        assert found.cold is not None
        assert found.cold[t].tolist() == sorted({id for id, slot in of if slot is None})


@pytest.mark.parametrize("kind", ["hits", "misses", "empty", "no rows"])
def test_batches_of_one_kind(kind: str) -> None:
    """PC-45."""
    ids = {"hits": [[0, 4], [1]], "misses": [[5], [11, 11]], "empty": [[], []], "no rows": []}[kind]
    nothing: list[list[int]] = [[] for _ in ids]
    cold, found = part(FIRST, *flat([ids, nothing, nothing, nothing]), len(ids), distinct=True)
    expected = {"hits": (0, 3), "misses": (3, 0), "empty": (0, 0), "no rows": (0, 0)}[kind]
    assert (cold.values.size, found.slots.size) == expected
    assert found.hits.tolist() == [expected[1], 0, 0] and found.lookups.tolist() == [sum(expected), 0, 0]


@pytest.mark.parametrize("id", [12, 13, -1, 2**40])
@pytest.mark.parametrize("hot", [FIRST, OTHER], ids=["first", "other"])
def test_an_id_without_a_row_is_named(hot: HotSet, id: int) -> None:
    """PC-09."""
    values, lengths = flat([[[3], [id, 1]], [[0], []], [[], []], [[], [29]]], np.int64)
    with pytest.raises(IndexError, match=f"feature 'fa' has id {id}, outside its table of 12 rows"):
        part(hot, values, lengths, 2)
    values, lengths = flat([[[3], [1]], [[0], []], [[], [9]], [[], [29]]], np.int64)
    with pytest.raises(IndexError, match="feature 'fc' has id 9, outside its table of 9 rows"):
        part(hot, values, lengths, 2)


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="3 ids do not make 8 bags"):
        part(FIRST, np.zeros(3, np.int32), np.zeros(8, np.int32), 2)
    with pytest.raises(ValueError, match="2 weights of 0 ids"):
        part(FIRST, np.zeros(0, np.int32), np.zeros(8, np.int32), 2, np.ones(2, np.float32))
    with pytest.raises(ValueError, match="13 of them cannot be hot"):
        HotTable("a", 12, 4, 13, ("fa",))
    with pytest.raises(ValueError, match="each of them once"):
        HotSet(SLOTS, (np.zeros(5, np.int64), np.arange(9), np.arange(0)))
    with pytest.raises(ValueError, match="in 0 to 11"):
        HotSet(SLOTS, (np.arange(8, 13), np.arange(9), np.arange(0)))
