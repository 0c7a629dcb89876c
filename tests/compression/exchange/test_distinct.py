"""Distinct ids and inverse against NumPy, by bitmap and by sort, and what is refused."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compression.exchange.distinct import MOST_ROWS, SPARSE, Distinct

ROWS = st.sampled_from([1, 2, 63, 64, 65, 1000, 10**6, 10**8, MOST_ROWS])


@st.composite
def batches(draw):
    """(rows of shards, shards, values, offsets, batch): ids of a range or of few, bags of any length."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.lists(ROWS, max_size=5))
    shards = np.cumsum([0, *(draw(st.integers(1, 3)) for _ in rows)])
    batch = draw(st.integers(0, 5) | st.sampled_from([64, 700]))
    lengths = rng.integers(0, draw(st.integers(1, 4)), shards[-1] * batch)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = np.empty(offsets[-1], np.int64)
    for shard, count in enumerate(rows):
        ids = np.unique(rng.integers(0, count, draw(st.sampled_from([1, 10, 5000]))))
        ids[-1] = count - 1
        part = values[offsets[shards[shard] * batch] : offsets[shards[shard + 1] * batch]]
        part[:] = ids[rng.integers(0, rng.integers(1, ids.size + 1), part.size)]
    return rows, shards, values, offsets, batch


def check(find, shards, values, offsets, batch):
    ids, inverse, counts = find(values, offsets, batch)
    assert (ids.dtype, inverse.dtype, counts.dtype) == (np.int64, np.int32, np.int64)
    ends = offsets[np.asarray(shards) * batch]
    expected = [np.unique(values[a:b], return_inverse=True) for a, b in pairwise(ends)]
    assert counts.tolist() == [found.size for found, _ in expected]
    empty = np.empty(0, np.int64)
    assert np.array_equal(ids, np.concatenate([empty, *(found for found, _ in expected)]))
    assert np.array_equal(inverse, np.concatenate([empty, *(at for _, at in expected)]))


@given(batches())
@settings(deadline=None)
@example(([], np.array([0]), np.empty(0, np.int64), np.zeros(1, np.int64), 3))
@example(([10], np.array([0, 1]), np.full(4, 9), np.array([0, 4]), 1))
def test_as_numpy_finds_them(case):
    rows, shards, values, offsets, batch = case
    find = Distinct(rows, shards)
    check(find, shards, values, offsets, batch)
    # Again, with what the first call left; and int32, where that holds the ids.
    check(find, shards, values[::-1].copy() if len(rows) == 1 else values, offsets, batch)
    if values.max(initial=0) < 2**31:
        check(find, shards, values.astype(np.int32), offsets, batch)


@pytest.mark.parametrize("rows", [1, 64, 65, 1000, 10**8])
@pytest.mark.parametrize("wrong", [-1, "rows", -(2**63), 2**63 - 1])
def test_an_id_without_a_row_is_named_and_leaves_no_trace(rows, wrong):
    wrong = rows if wrong == "rows" else wrong
    shards, offsets = [0, 1, 3], np.array([0, 2, 3, 5, 7, 7, 9])
    find = Distinct([5, rows], shards, ["first", "second"])
    good = np.array([0, 4, 0, *[rows - 1] * 6])
    for position in range(3, 9):
        bad = good.copy()
        bad[position:] = wrong
        with pytest.raises(IndexError, match=f"id {wrong} of table second .feature .*, position {position} in"):
            find(bad, offsets, 2)
        check(find, shards, good, offsets, 2)


def test_rare_lookups_of_a_huge_table_take_no_bitmap_of_it():
    find = Distinct([10**8], [0, 1])
    values = np.random.default_rng(0).integers(0, 10**8, 1000)
    check(find, [0, 1], values, np.array([0, 1000]), 1)
    assert sum(array.nbytes for array in find._work) < 10**5
    most = 64 * SPARSE * 1000
    check(Distinct([most], [0, 1]), [0, 1], values % most, np.array([0, 1000]), 1)


def test_results_stay_when_the_next_batch_is_found():
    find, offsets = Distinct([100], [0, 1]), np.array([0, 3])
    first = find(np.array([7, 5, 7]), offsets, 1)
    find(np.array([1, 2, 3]), offsets, 1)
    assert [array.tolist() for array in first] == [[5, 7], [1, 0, 1], [2]]


def test_what_does_not_fit_is_refused():
    for rows, shards, names in (
        ([1], [0, 1, 2], []),
        ([1], [1, 2], []),
        ([1, 1], [0, 2, 1], []),
        ([MOST_ROWS + 1], [0, 1], []),
        ([-1], [0, 1], []),
        ([1], [0, 1], ["a", "b"]),
    ):
        with pytest.raises(ValueError):
            Distinct(rows, shards, names)
    find = Distinct([10], [0, 1])
    values, offsets = np.arange(4), np.array([0, 1, 4])
    for arguments in (
        (values, offsets, 1),
        (values, offsets[:2], 2),
        (values[:3], offsets, 2),
        (values, offsets + 1, 2),
        (values.repeat(2)[::2], offsets, 2),
        (values.reshape(2, 2), offsets, 2),
    ):
        with pytest.raises(ValueError):
            find(*arguments)
    with pytest.raises(TypeError):
        find(values.astype(np.uint64), offsets, 2)
    with pytest.raises(TypeError):
        find(values, offsets.astype(np.int32), 2)
