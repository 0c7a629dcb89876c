"""Distinct ids, pooling and gradients of the kernels are those of the CPU, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compression.device.backend import Arena
from compression.device.lookups import CHUNK, FEATURE, Bags, DistinctIds, Pooling, scan
from compression.exchange.distinct import Distinct
from tests.compression.exchange.test_pooling import Batch
from tests.compression.exchange.test_pooling import cases as pooled_cases

F32 = np.float32


def found(device, rows, ids, ends):
    """(ids, inverse, counts) of the kernels."""
    find = DistinctIds(device, rows)
    held, limits = device.put(ids), device.put(ends)
    result = find.find(held.address, ids.size, limits.address)
    total = int(result.counts.sum())
    inverse = device.download(result.inverse, 4 * ids.size).view(np.int32)
    places = device.download(result.places, 4 * ids.size).view(np.uint32)
    before = np.repeat(result.counts.cumsum() - result.counts, np.diff(ends))
    assert np.array_equal(places, inverse + before)
    return device.download(result.ids, 8 * total).view(np.int64), inverse, result.counts


@st.composite
def shards_of_ids(draw):
    """(rows of shards, ids, ends)."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.lists(st.sampled_from([0, 1, 31, 32, 33, 1000, 70000]), min_size=1, max_size=5))
    sizes = [draw(st.integers(0, 300)) if count else 0 for count in rows]
    parts = [rng.integers(0, max(count, 1), size) for count, size in zip(rows, sizes, strict=True)]
    return rows, np.concatenate([np.empty(0, np.int64), *parts]), np.cumsum([0, *sizes])


@settings(deadline=None, max_examples=40)
@given(shards_of_ids())
def test_distinct_ids_are_those_of_the_cpu(device, case):
    rows, ids, ends = case
    expected = Distinct(rows, range(len(rows) + 1))(ids, ends, 1)
    for mine, other in zip(found(device, rows, ids, ends), expected, strict=True):
        assert mine.dtype == other.dtype and np.array_equal(mine, other)


@pytest.mark.parametrize("wrong", [100, 101, -1, 2**40, -(2**63)])
def test_pc09_an_id_without_a_row_is_named(device, wrong):
    ids, ends = np.array([3, 7, 0, 99, wrong, 4, wrong], np.int64), np.array([0, 2, 7])
    with pytest.raises(IndexError, match=rf"id {wrong} of shard 1 \(position 4\) is not in 0 to 99"):
        found(device, [8, 100], ids, ends)


def test_pc45_batches_of_nothing_one_id_and_all_ids(device):
    """No launch has an empty grid, which a device refuses."""
    empty = np.empty(0, np.int64)
    for ids in (empty, np.zeros(600, np.int64), np.arange(2000, dtype=np.int64)[::-1].copy()):
        ends = np.array([0, ids.size])
        mine, inverse, counts = found(device, [2000], ids, ends)
        assert counts.tolist() == [np.unique(ids).size]
        assert np.array_equal(mine[inverse], ids)
    assert found(device, [], empty, np.zeros(1, np.int64))[2].size == 0
    for batch in (0, 3):
        check_pooling(device, Batch(0, batch, 0, False, [4, 8]))


@pytest.mark.parametrize("n", [1, 255, 256, 257, CHUNK, CHUNK + 1, 300 * CHUNK + 7])
def test_sums_of_any_number_of_values(device, n):
    values = np.random.default_rng(n).integers(0, 1000, n).astype(np.uint32)
    memory = device.put(values)
    scan(Arena(device), memory.address, n)
    assert np.array_equal(device.get(memory, values), values.cumsum() - values)


def check_pooling(device, case: Batch) -> None:
    features = np.zeros(case.of.size, FEATURE)
    features["base"], features["dim"] = case.bases[case.of], case.dims[case.of]
    features["column"], features["mean"] = case.columns, case.mean[case.of]
    # Rows of shards, numbered through.
    ends = np.append(case.bases, case.rows.size)
    counts = np.diff(ends) // np.maximum(case.dims, 1)
    firsts = (counts.cumsum() - counts)[case.of]
    lookups = np.diff(case.offsets).reshape(case.of.size, case.batch).sum(axis=1)
    places = (case.inverse + np.repeat(firsts, lookups)).astype(np.uint32)
    memory = [device.put(array) for array in (case.offsets, case.inverse, places, case.weights)]
    bags = Bags(
        features, case.batch, memory[0].address, memory[1].address, memory[2].address, case.inverse.size,
        memory[3].address if case.weights.size else 0, case.width,
    )  # fmt: skip
    pooling, rows = Pooling(device), device.put(case.rows)
    out = np.full((case.batch, case.width), np.nan, F32)
    held = device.put(out)
    pooling.pool(rows.address, bags, held.address)
    assert device.get(held, out).tobytes() == case.pool().tobytes()
    grad, sums = device.put(case.grad), device.put(np.full(case.rows.size, np.nan, F32))
    pooling.backward(grad.address, bags, sums.address, case.rows.size, int(counts.sum()))
    assert device.get(sums, case.rows).tobytes() == case.pool_backward().tobytes()


@settings(deadline=None, max_examples=40)
@given(pooled_cases)
def test_pooling_and_gradients_are_those_of_the_cpu(device, case):
    check_pooling(device, case)


def test_a_row_of_many_lookups_sums_them_in_order(device):
    """More rows than a digit of the sort, more lookups than a block, one row with most of them."""
    case = Batch(5, 700, 7, True, [3, 16])
    case.inverse[::2] = 1
    check_pooling(device, case)
    many = Batch(1, 300, 4, False, [2])
    many.rows = np.random.default_rng(0).standard_normal(2 * 70000).astype(F32)
    many.inverse[:] = np.random.default_rng(1).integers(0, 70000, many.inverse.size)
    check_pooling(device, many)
