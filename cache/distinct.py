"""How many distinct rows a batch touches: mean, variance, and a size that is hardly ever exceeded."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from cache.frequency import Frequencies

OVERFLOW = 1e-6
_SURE = np.nextafter(1.0, 0.0)
"""Stands for a chance of 1, whose log would be infinite."""


def touched(of: Frequencies, lookups: float, share: float | None = None) -> NDArray[np.float64]:
    """float64 [runs]: chance that a row of the run is in a batch of so many lookups, 1 - (1 - p)^lookups.

    Its sum is the expected number of distinct rows, from which communication follows (arXiv 2411.01611). Only the mean
    length of bags matters to it: `lookups` is batch * mean bag length, and lookups are taken for independent.

    Args:
        share: if batches are drawn from a data set without putting rows back, as in an epoch: the part of the data set
            that the batch is. A row that was counted c times is then missing with (1 - share)^c. (The two differ by
            share / 2 of a row that was counted once, which matters to data sets of a few dozen batches.)
    """
    if share is not None and share < 1:
        return -np.expm1(of.counts * math.log1p(-share))
    return -np.expm1(lookups * np.log1p(-np.minimum(of.chances, _SURE)))


def distinct_rows(of: Frequencies, lookups: float, *, hot: int = 0, share: float | None = None) -> float:
    """Expected distinct rows of a batch among those from `hot` on.

    >>> round(distinct_rows(Frequencies.of([1, 1]), 2), 3)
    1.5
    """
    chance = touched(of, lookups, share)
    return float((chance * of.sizes).sum() - of.first(chance, hot))


def distinct_variance(of: Frequencies, lookups: float, *, hot: int = 0) -> float:
    """An upper bound of the variance of that number: the sum of t (1 - t) over rows, t being `touched`.

    Whether rows are in a batch is negatively associated (balls in bins; Dubhashi and Ranjan 1998, theorem 13): of two
    rows, one that is in leaves fewer lookups for the other, so covariances only lower it.
    """
    chance = touched(of, lookups)
    spread = chance * (1 - chance)
    return float((spread * of.sizes).sum() - of.first(spread, hot))


def buffer_rows(mean: float, variance: float, *, overflow: float = OVERFLOW) -> int:
    """Rows that a buffer must hold so that a batch has more with a chance below `overflow`.

    Bernstein's inequality holds for negatively associated indicators (Dubhashi and Ranjan 1998):
    P(X >= mean + t) <= exp(-t^2 / (2 (variance + t / 3))). Solved for t. Sums over tables, whose lookups are taken for
    independent, take the sums of means and variances.
    """
    nats = -math.log(overflow)
    return math.ceil(mean + nats / 3 + math.sqrt(nats * nats / 9 + 2 * nats * variance))
