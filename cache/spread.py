"""Bits of a gradient under a relative bound, which depend on what other rows are in the message.

The sum of a row's gradients grows with the number of its lookups, about with its power `Constants.spread`; the bound is
a share of the range of all rows in the message, which the most frequent one sets. So in a message without the hot rows
the bound is finer, and each value takes more bits: what is sent is more exact. A value of a spread of 2^y steps of the
codec takes about log2(1 + 2^y) bits: its entropy if there are many steps, next to none if there is hardly one.
"""

from __future__ import annotations

import functools

import numpy as np

from cache.lookups import Curve, Floats, Table

BINS = 48
WIDTH = 0.5
"""Of a bin, in doublings of the lookups of a row."""
SEEN = 1e-3
"""Expected rows of a message by which the largest counts."""
_OFFSETS = -30.0, 40.0


@functools.lru_cache(maxsize=256)
def lookups_sums(table: Table, batch: int) -> Floats:
    """Rows that a batch touches, by the doublings of their lookups in it, up to the end of each run of rows.

    Returns:
        float64 [runs + 1, BINS]
    """
    chance, mean = table.touched(batch), table.of.chances * batch * table.bag_length
    # Lookups of a row that has any; at least one.
    lookups = np.maximum(mean / np.maximum(chance, 1e-12), 1.0)
    bins = np.minimum((np.log2(lookups) / WIDTH).astype(np.int64), BINS - 1)
    rows = np.zeros((table.of.sizes.size + 1, BINS))
    rows[np.arange(1, rows.shape[0]), bins] = chance * table.of.sizes
    return np.cumsum(rows, axis=0)


def mean_bits(rows: Floats, spread: float, offset: float) -> Floats:
    """Bits a value of messages with so many rows in each bin: float64 [n, BINS] -> [n]; 0 where there are none."""
    doublings = WIDTH * np.arange(BINS)
    top = np.where(rows > SEEN, doublings, 0.0).max(axis=-1, keepdims=True)
    bits = np.logaddexp2(0.0, spread * (doublings - top) + offset)
    total = rows.sum(axis=-1)
    return np.where(total > 1e-9, (rows * bits).sum(axis=-1) / np.maximum(total, 1e-9), 0.0)


def offset_of(bits: float, rows: Floats, spread: float) -> float:
    """The offset at which a message of these rows, float64 [BINS], takes so many bits a value; by bisection."""
    low, high = _OFFSETS
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_bits(rows[None], spread, middle)[0] < bits else (low, middle)
    return (low + high) / 2


def gradient_bits(curve: Curve, bits: float, spread: float) -> tuple[Floats, Floats, Floats]:
    """Of the gradients of cold rows, of hot rows that a rank touched, and of their sums over ranks.

    Args:
        bits: mean of all rows of the table in one message, as measured without hot rows.
    """
    own = lookups_sums(curve.table, curve.batch)
    union = lookups_sums(curve.table, curve.batch * curve.ranks)
    offset = offset_of(bits, own[-1], spread)
    hot = curve.first(own)
    cold = np.maximum(own[-1] - hot, 0.0)
    return tuple(mean_bits(rows, spread, offset) for rows in (cold, hot, curve.first(union)))  # type: ignore[return-value]
