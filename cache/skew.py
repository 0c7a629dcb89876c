"""How skewed a table's lookups are, and how much they changed from one window to another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cache.frequency import Frequencies

STEEPEST = 8.0
SHARES = (0.001, 0.01, 0.05)


@dataclass(frozen=True)
class Skew:
    """Of one table."""

    exponent: float
    """Of the power law that fits best; 0 = all rows alike."""
    top: tuple[float, ...]
    """Share of the lookups that go to the most frequent 0.1, 1 and 5 % of the rows that were looked up."""
    rows_seen: int


def skew(of: Frequencies) -> Skew:
    """Fit and shares. Rows never looked up are left out; the runs may be in any order."""
    order = np.argsort(-of.counts, kind="stable")
    seen = order[of.counts[order] > 0]
    ranked = Frequencies(of.counts[seen], of.sizes[seen])
    rows = int(ranked.sizes.sum())
    if not rows:
        return Skew(0.0, tuple(0.0 for _ in SHARES), 0)
    top = tuple(float(ranked.hit_rate(-(-rows * share // 1))) for share in SHARES)
    return Skew(fit_exponent(ranked), top, rows)


def fit_exponent(ranked: Frequencies) -> float:
    """The exponent of the truncated power law k^-s, k = 1 to rows, under which the counts are most likely.

    The likelihood has its maximum where the expected log of the rank is the mean log of the ranks that were seen
    (Clauset, Shalizi and Newman, SIAM Review 2009, section 3.3, for discrete data); found by bisection. Ranks are those
    of the counts themselves, so of rows that were hardly seen the fit sees the luckiest first: it is a little steep
    where lookups are not many more than rows.

    Args:
        ranked: by falling count.
    """
    rows = ranked.rows
    if rows < 2:
        return 0.0
    seen = _mean_log(ranked.ends, ranked.counts)
    low, high = 0.0, STEEPEST
    for _ in range(40):
        middle = (low + high) / 2
        law = Frequencies.power_law(rows, middle)
        low, high = (middle, high) if _mean_log(law.ends, law.counts) > seen else (low, middle)
    return (low + high) / 2


def _mean_log(ends: NDArray[np.int64], counts: NDArray[np.float64]) -> float:
    """Of the rank of a lookup. The sum of logs up to n is log n!, by Stirling's series."""
    n = np.maximum(ends.astype(np.float64), 1.0)
    sums = n * np.log(n) - n + 0.5 * np.log(2 * np.pi * n) + 1 / (12 * n) - 1 / (360 * n**3)
    sums[n < 2] = 0.0
    return float((counts * np.diff(sums)).sum() / (counts * np.diff(ends)).sum())


def total_variation(before: NDArray[np.int64], after: NDArray[np.int64]) -> float:
    """Half the sum of |p - q| over ids: the largest difference that the two windows give to the chance of any set of
    rows, 0 = the same, 1 = no id in common. Windows of few lookups differ by chance alone: compare with
    `expected_variation`.

    Args:
        before, after: counts of the same ids.
    """
    return float(0.5 * np.abs(_shares(before) - _shares(after)).sum())


def expected_variation(before: NDArray[np.int64], after: NDArray[np.int64]) -> float:
    """About what `total_variation` is if both windows are draws of one distribution, that of their sum: half the sum of
    mean absolute differences of normal variables. For rows seen a few times it is an upper estimate."""
    p = _shares(before + after)
    spread = p * (1 - p) * (1 / max(before.sum(), 1) + 1 / max(after.sum(), 1))
    return float(0.5 * np.sqrt(2 / np.pi * spread).sum())


def hit_rate_loss(before: NDArray[np.int64], after: NDArray[np.int64], hot: int) -> float:
    """By how much the hit rate in the new window is below what the best `hot` rows for it give, if the hot rows stay
    those of the old one. What drift costs a replica; moving rows pays only where this is large."""
    old = np.argsort(-before, kind="stable")[:hot]
    best = np.sort(after)[::-1][:hot].sum()
    lookups = after.sum()
    return float((best - after[old].sum()) / lookups) if lookups else 0.0


def _shares(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    return counts / max(int(counts.sum()), 1)
