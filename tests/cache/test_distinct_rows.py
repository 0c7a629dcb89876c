"""Distinct rows of a batch: closed form against draws, and the figures that the design states."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.distinct import buffer_rows, distinct_rows, distinct_variance, touched
from cache.frequency import Frequencies
from pipelines.synthetic import KAGGLE_TABLES


def draws(of: Frequencies, lookups: int, times: int, seed: int) -> np.ndarray:
    """bool [times, rows]: which rows each batch has."""
    chances = np.repeat(of.chances, of.sizes)
    return np.random.default_rng(seed).multinomial(lookups, chances / chances.sum(), size=times) > 0


@pytest.mark.parametrize(("rows", "exponent", "lookups", "hot"), [(500, 1.1, 400, 0), (3000, 0.7, 1000, 30)])
def test_mean_variance_and_tail_of_draws(rows: int, exponent: float, lookups: int, hot: int) -> None:
    of = Frequencies.power_law(rows, exponent)
    found = draws(of, lookups, 4000, 0)[:, hot:].sum(axis=1)
    mean, variance = distinct_rows(of, lookups, hot=hot), distinct_variance(of, lookups, hot=hot)
    assert found.mean() == pytest.approx(mean, abs=5 * np.sqrt(variance / 4000))
    assert found.var() < 1.1 * variance  # a bound of it: covariances are negative
    for overflow in (0.1, 0.01):
        assert (found > buffer_rows(mean, variance, overflow=overflow)).mean() <= overflow
    # For one in a million no draws tell; the size is a few standard deviations above the mean.
    assert mean + 5 * np.sqrt(variance) < buffer_rows(mean, variance) < mean + 8 * np.sqrt(variance) + 10


@given(counts=st.lists(st.integers(0, 20), min_size=1, max_size=8), lookups=st.integers(0, 5))
def test_small_cases_are_exact(counts: list[int], lookups: int) -> None:
    of = Frequencies.of(counts)
    each = [0.0 if not sum(counts) else 1 - (1 - c / sum(counts)) ** lookups for c in counts]
    np.testing.assert_allclose(np.repeat(touched(of, lookups), of.sizes), each, atol=1e-12)
    assert distinct_rows(of, lookups, hot=1) == pytest.approx(sum(each[1:]), abs=1e-9)


def test_drawing_without_putting_back() -> None:
    """An epoch of 8 batches: each row that was counted once is in one of them."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 3000, 4096)
    of = Frequencies.of(np.bincount(ids, minlength=3000))
    means = []
    for _ in range(50):
        batches = rng.permutation(ids).reshape(8, 512)
        means.append(np.mean([np.unique(batch).size for batch in batches]))
    assert distinct_rows(of, 512, share=1 / 8) == pytest.approx(np.mean(means), rel=2e-3)
    assert distinct_rows(of, 512) < 0.99 * np.mean(means)


@pytest.mark.parametrize(("share", "hits", "cold"), [(0.01, 0.85, 0.62), (0.02, 0.89, 0.48), (0.05, 0.93, 0.31)])
def test_what_hot_rows_leave_cold(share: float, hits: float, cold: float) -> None:
    """Power law 1.1, batch 2048, 26 tables of Criteo Kaggle's sizes, the large ones cut to 80,000 rows: the most
    frequent rows of all tables together serve nearly all lookups, and leave most of the distinct rows."""
    tables = [Frequencies.power_law(min(rows, 80_000), 1.1) for rows in KAGGLE_TABLES]
    chances, sizes = (np.concatenate([getattr(of, key) for of in tables]) for key in ("chances", "sizes"))
    present = np.concatenate([touched(of, 2048) for of in tables])
    order = np.argsort(-chances, kind="stable")
    ranked = Frequencies(chances[order], sizes[order])
    hot = int(share * ranked.rows)
    assert ranked.hit_rate(hot) == pytest.approx(hits, abs=0.005)
    left = 1 - float(ranked.first(present[order], hot)) / float((present * sizes).sum())
    assert left == pytest.approx(cold, abs=0.005)
