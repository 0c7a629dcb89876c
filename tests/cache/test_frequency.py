"""Exact counts, the sketch, skew and drift."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.frequency import Frequencies, count_ids, merge_counts, total_hit_rate
from cache.sketch import FrequentIds
from cache.skew import expected_variation, fit_exponent, hit_rate_loss, skew, total_variation

COUNTS = st.lists(st.integers(0, 6), min_size=1, max_size=60)


@given(counts=COUNTS, extra=st.integers(0, 5))
def test_runs_hold_the_counts(counts: list[int], extra: int) -> None:
    of = Frequencies.of(counts, len(counts) + extra)
    assert np.repeat(of.counts, of.sizes).tolist() == counts + [0] * extra
    assert of.rows == len(counts) + extra and of.lookups == sum(counts)
    for hot in range(of.rows + 1):
        assert of.first(of.counts, hot) == pytest.approx(sum(counts[:hot]))


def test_counts_of_what_is_no_table_are_refused() -> None:
    for counts, rows in (([1, -1], 2), ([], 0), ([1, 2], 1), ([float("nan")], 1)):
        with pytest.raises(ValueError, match="counts for"):
            Frequencies.of(counts, rows)
    for ids in ([3], [-1]):
        with pytest.raises(IndexError, match="of a table of 3 rows"):
            count_ids(np.array(ids), 3)


def test_workers_count_as_one_would() -> None:
    ids = np.random.default_rng(0).integers(0, 50, (4, 100))
    parts = [count_ids(part, 50) for part in ids]
    assert merge_counts(parts).tolist() == np.bincount(ids.ravel(), minlength=50).tolist()
    with pytest.raises(ValueError, match="not of one table"):
        merge_counts([parts[0], parts[1][:40]])


def test_the_hit_rate_is_that_of_a_brute_force_count() -> None:
    """Per table, and over tables of unequal traffic (pytorch/FBGEMM#1623)."""
    rng = np.random.default_rng(1)
    streams = [rng.zipf(1.5, 20_000) % 500, rng.integers(0, 40, 300)]
    tables = [(Frequencies.of(count_ids(ids, 500)), hot) for ids, hot in zip(streams, (20, 10), strict=True)]
    hits = [np.count_nonzero(ids < hot) for ids, (_, hot) in zip(streams, tables, strict=True)]
    for (of, hot), ids, found in zip(tables, streams, hits, strict=True):
        assert of.hit_rate(hot) == pytest.approx(found / ids.size, rel=1e-12)
    assert total_hit_rate(tables) == pytest.approx(sum(hits) / 20_300, rel=1e-12)


def test_a_power_law_in_runs_is_that_of_single_rows() -> None:
    rows, exponent = 300_000, 1.1
    exact = np.arange(1, rows + 1) ** -exponent
    exact /= exact.sum()
    of = Frequencies.power_law(rows, exponent)
    assert of.sizes.size < 20_000 and of.rows == rows
    np.testing.assert_allclose(np.repeat(of.chances, of.sizes), exact, rtol=2e-3)
    for hot in (1, 1000, 50_000, 299_999):
        assert of.hit_rate(hot) == pytest.approx(exact[:hot].sum(), rel=1e-5)


@settings(deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(0, 30), max_size=60), min_size=1, max_size=6),
    capacity=st.integers(1, 20),
    workers=st.integers(1, 3),
)
def test_the_sketch_keeps_its_bound(batches: list[list[int]], capacity: int, workers: int) -> None:
    """For any stream, split over any workers and merged: error <= lookups / (capacity + 1), counts never too high."""
    sketches = [FrequentIds(capacity) for _ in range(workers)]
    for i, batch in enumerate(batches):
        sketches[i % workers].update(np.array(batch, np.int64))
    found = sketches[0]
    for other in sketches[1:]:
        found.merge(other)
    stream = [one for batch in batches for one in batch]
    true = np.bincount(np.array(stream, np.int64), minlength=31)
    assert found.lookups == len(stream) and found.ids.size <= capacity
    assert found.error * (capacity + 1) <= found.lookups
    estimate = found.estimate(np.arange(31))
    assert (estimate <= true).all() and (true - estimate <= found.error).all()


def test_the_sketch_finds_the_head_of_a_skewed_stream() -> None:
    rng = np.random.default_rng(2)
    found, true = FrequentIds(2000), np.zeros(100_000, np.int64)
    for _ in range(50):
        ids = (rng.zipf(1.3, 4000) - 1) % 100_000
        found.update(ids)
        true += count_ids(ids, 100_000)
    best = np.argsort(-true, kind="stable")[:100]
    assert np.intersect1d(found.most_frequent(100), best).size >= 97
    assert found.error <= 200_000 / 2001


def test_forgetting_makes_the_sketch_follow() -> None:
    found = FrequentIds(10)
    found.update(np.zeros(1000, np.int64))
    found.scale(0.1)
    found.update(np.full(200, 7))
    assert found.most_frequent(1).tolist() == [7] and found.estimate(np.array([0, 7])).tolist() == [100, 200]
    with pytest.raises(ValueError, match="0 to 1"):
        found.scale(2)
    with pytest.raises(ValueError, match="at least 1"):
        FrequentIds(0)


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.1, 1.6])
def test_the_exponent_is_found_again(exponent: float) -> None:
    law = Frequencies.power_law(20_000, exponent)
    assert fit_exponent(law) == pytest.approx(exponent, abs=1e-3)
    p = np.repeat(law.chances, law.sizes)
    counts = np.random.default_rng(3).multinomial(2_000_000, p / p.sum())
    # Where all rows are alike the luckiest come first, which looks a little skewed.
    assert skew(Frequencies.of(counts)).exponent == pytest.approx(exponent, abs=0.03 if exponent else 0.1)


def test_skew_of_counts_in_any_order() -> None:
    counts = np.zeros(2000, np.int64)
    counts[500:1500] = 1
    counts[77] = 9001
    found = skew(Frequencies.of(counts))
    assert found.rows_seen == 1001
    # 0.1, 1 and 5 % of 1,001 rows, rounded up, are 2, 11 and 51: the frequent one and others of count 1.
    assert found.top == pytest.approx([(9001 + n) / 10_001 for n in (1, 10, 50)])
    assert skew(Frequencies.of([0, 0])).rows_seen == 0 and skew(Frequencies.of([3])).exponent == 0


def test_drift_is_told_from_chance() -> None:
    rng = np.random.default_rng(4)
    p = np.arange(1, 1001) ** -1.2
    p /= p.sum()
    before, same, moved = (rng.multinomial(100_000, q) for q in (p, p, np.roll(p, 100)))
    noise = expected_variation(before, same)
    assert 0.5 * noise < total_variation(before, same) < 1.5 * noise
    assert total_variation(before, moved) > 10 * noise
    assert hit_rate_loss(before, same, 50) < 0.01
    # The best 50 are now rows 100 to 149; of the old ones only the tail is left.
    assert hit_rate_loss(before, moved, 50) > 0.5
    assert total_variation(np.array([1, 0]), np.array([0, 5])) == 1
