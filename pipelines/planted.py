"""The hidden rule of a synthetic data set: draws of ids and dense values, and the click probability they imply.

The logit is bias + signal x (dense part + id part + pair part), each part standardised, then weighted by `WEIGHTS`:
linear in some dense features; one effect per id of some tables; the product v_a[id_a] x v_b[id_b] of hidden numbers for
some pairs of tables, which no model without interactions can express. Frequent ids carry the signal.

The constants are chosen so that a DLRM of dimension 16 comes within about 0.01 of the best AUC in one epoch of 630,000
rows (row-wise Adagrad at 0.1, steps of 4096 rows), and a linear model of all ids stays about 0.07 below.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

HIDDEN = 0
"""Stream of the hidden rule's own draws."""
HEAD = 1024
"""Ids with an effect, per table: the most frequent ones. The others add nothing."""
FADE = 16
"""Effects of the id of rank r are scaled by 1 / (1 + r / FADE): what is rarely seen cannot be learnt in one epoch."""
PAIRS = 4
LINEAR_DENSE = 4
WEIGHTS = {"dense": 0.5, "ids": 0.45, "pairs": 0.74}
"""Standard deviations of the parts; their squares sum to about 1."""
SIGNAL = 1.5
"""Standard deviation of the logit, which sets the best AUC."""


def generator(seed: int, stream: int, chunk: int, column: int) -> np.random.Generator:
    """A generator of its own for every key, in any order of use. Keys have one length: numpy pads short ones with 0."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, stream, chunk, column))))


@dataclass(frozen=True)
class Draw:
    """Values of one categorical column."""

    ranks: np.ndarray
    """int64: number of the value by expected frequency, from 0; -1 is missing. [rows], or all lists end to end."""
    lengths: np.ndarray | None = None
    """int64 [rows] for a multi-hot column."""


@lru_cache(maxsize=64)
def zipf_cdf(rows: int, exponent: float) -> np.ndarray:
    """float64 [rows], rising to 1."""
    cdf = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
    return cdf / cdf[-1]


def draw_ids(rng: np.random.Generator, n: int, cdf: np.ndarray, missing: float, mean_length: float | None) -> Draw:
    """Values of n rows of one column; a multi-hot column has empty lists instead of missing values."""
    if mean_length is not None:
        lengths = rng.poisson(mean_length, n)
        return Draw(np.searchsorted(cdf, rng.random(int(lengths.sum())), side="right"), lengths)
    ranks = np.searchsorted(cdf, rng.random(n), side="right")
    if missing:
        ranks[rng.random(n) < missing] = -1
    return Draw(ranks)


def draw_dense(rng: np.random.Generator, n: int, columns: int) -> np.ndarray:
    """float32 [n, columns]: counts of uneven scale after the data set's transform, log(1 + x)."""
    scale = 0.5 + 0.5 * (np.arange(columns) % 4)
    counts = np.floor(np.exp(rng.standard_normal((n, columns), dtype=np.float32) + scale.astype(np.float32)))
    return np.log1p(counts)


class Signal:
    """The click probability.

    Args:
        seed: of the data set.
        rows_per_table: distinct values of each table.
        dense, draws: a calibration sample, which fixes the scale of each part and the bias.
        base_rate: mean click probability on the sample.
    """

    def __init__(
        self, seed: int, rows_per_table: list[int], dense: np.ndarray, draws: list[Draw], base_rate: float
    ) -> None:
        by_size = sorted(range(len(rows_per_table)), key=lambda t: (rows_per_table[t], t))
        # Neighbours in size, spread from the small tables to the large ones.
        starts = np.unique(np.linspace(0, len(by_size) - 2, PAIRS).round().astype(int))
        self._pairs = [(by_size[i], by_size[i + 1]) for i in starts if len(by_size) > 1]
        self._effect_tables = by_size[::2]
        self._tables = []
        for t, rows in enumerate(rows_per_table):
            fade = 1 / (1 + np.arange(min(rows, HEAD)) / FADE)
            hidden = generator(seed, HIDDEN, 0, t).standard_normal((1 + PAIRS, fade.size)) * fade
            # The last entry, which rank -1 and every rare rank take, has no effect.
            self._tables.append(np.pad(hidden, ((0, 0), (0, 1))))
        self._dense_weights = generator(seed, HIDDEN, 1, 0).choice([-1.0, 1.0], min(LINEAR_DENSE, dense.shape[1]))
        self._shift, self._scale, self._bias = np.zeros(3), np.ones(3), 0.0
        parts = self._parts(dense, draws)
        self._shift, spread = parts.mean(axis=1), parts.std(axis=1)
        self._scale = SIGNAL * np.array(list(WEIGHTS.values())) / np.where(spread > 0, spread, 1)
        self._bias = _bias(self.logits(dense, draws), base_rate)

    def logits(self, dense: np.ndarray, draws: list[Draw]) -> np.ndarray:
        """float64 [n] for dense float32 [n, columns] and one draw of n rows per table."""
        standardised = self._parts(dense, draws) - self._shift[:, None]
        return self._bias + (self._scale[:, None] * standardised).sum(axis=0)

    def _parts(self, dense: np.ndarray, draws: list[Draw]) -> np.ndarray:
        # Sums instead of matrix products: a BLAS may round otherwise on another machine, and flip labels.
        linear = (dense[:, : self._dense_weights.size] * self._dense_weights).sum(axis=1)
        effects = sum((self._pooled(t, draws[t], 0) for t in self._effect_tables), np.zeros(len(dense)))
        products = np.zeros(len(dense))
        for i, (a, b) in enumerate(self._pairs, start=1):
            products += self._pooled(a, draws[a], i) * self._pooled(b, draws[b], i)
        return np.stack([linear, effects, products])

    def _pooled(self, table: int, draw: Draw, number: int) -> np.ndarray:
        """Hidden number of each row's id, summed over the list for a multi-hot table."""
        hidden = self._tables[table][number]
        ranks = np.where(draw.ranks < len(hidden) - 1, draw.ranks, -1)
        if draw.lengths is None:
            return hidden[ranks]
        ends = np.cumsum(draw.lengths)
        sums = np.concatenate([[0.0], np.cumsum(hidden[ranks], dtype=np.float64)])
        return sums[ends] - sums[ends - draw.lengths]


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def _bias(logits: np.ndarray, base_rate: float) -> float:
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sigmoid(logits + middle).mean() < base_rate else (low, middle)
    return (low + high) / 2
