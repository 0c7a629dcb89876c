"""Codes of a row predict each other: columns of a trained table are correlated, so a few tell much of the rest.

Up to four *pivot* columns are chosen by a pivoted Cholesky decomposition of the covariance of a sample of rows. Every
other column is predicted from them with integer weights, a pivot from the pivots before it, and the residual is coded
with the table of `tables.Family` that fits the column best. All that a decoder does is integer arithmetic.
"""

from __future__ import annotations

import numpy as np

from compression.kernel import inner
from compression.tables import COUNT, MAGNITUDES

MOST_PIVOTS = 4
WIDEST = 128
"""Columns of a row that are predicted; wider rows are coded without."""
SAMPLE = 256
"""Most rows that the model is fitted to."""

_FLOOR = 0.08
"""Variance of the rounding of a code, nearly: below it a better prediction saves nothing."""
_BITS_PER_GAIN = 0.72
"""log2(e) / 2: bits a value saved at least by a prediction that explains this share of its variance."""


@inner
def gather_columns(codes, stride, columns, rows, first, last, tile, lead):
    """Copy the rows `rows[first:last]` of codes, transposed: tile[c * lead + i] = codes[rows[first + i], c]."""
    for i in range(np.uintp(last - first)):
        base = np.uintp(rows[np.uintp(first) + i]) * np.uintp(stride)
        at = i
        for c in range(np.uintp(columns)):
            tile[at] = codes[base + c]
            at += np.uintp(lead)


@inner
def scatter_columns(tile, lead, n, columns, codes):
    """The inverse: rows of codes from columns."""
    for c in range(np.uintp(columns)):
        base, at = c * np.uintp(lead), c
        for i in range(np.uintp(n)):
            codes[at] = tile[base + i]
            at += np.uintp(columns)


@inner
def sample_size(distinct, columns):
    return min(distinct, SAMPLE if columns <= 32 else SAMPLE // 2 if columns <= 64 else SAMPLE // 4)


@inner
def sample_row(i, distinct):
    """The i-th row of the sample: spread over all rows, and out of step with any period in them."""
    return np.int64(
        (np.uint64(i) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) * np.uint64(distinct) >> np.uint64(32)
    )


@inner
def fit(tile, lead, n, columns, distinct, covariance, model):
    """Choose pivots, weights, biases, shift and tables from a sample of `n` of the `distinct` rows.

    Args:
        tile: int8 or int16 [columns * lead], the sample, transposed.
        covariance: float64 [columns, columns], working memory.
        model: int16 [MOST_PIVOTS + 2, columns + 6], out. Row 0 holds the number of pivots, the shift and the pivots;
            row 1 the biases; the others the weights of each pivot. Tables are chosen by `choose_table`.
    """
    pivots = model[0, 2:]
    _covariances(tile, lead, n, columns, covariance)
    factor = np.zeros((columns, MOST_PIVOTS))
    count, widest = 0, 0.0
    while count < min(MOST_PIVOTS, columns - 1):
        best, gain = _best_pivot(covariance, columns)
        chance = np.float64(columns - 1) / np.float64(n)  # what a column explains of unrelated ones in so few rows
        if (gain - chance) * _BITS_PER_GAIN * distinct < 10.0 * (columns + 2):
            break
        pivots[count] = best
        widest = max(widest, covariance[best, best])  # only the pivots before it predict a pivot
        _deflate(covariance, columns, best, factor[:, count])
        count += 1
    model[0, 0] = count
    for c in range(columns):
        widest = max(widest, covariance[c, c])
    model[0, 1] = _shift(widest)
    _weigh(tile, lead, n, columns, factor, model)


@inner
def fit_none(tile, lead, n, columns, model):
    """The model of rows too wide to predict: biases and a shift."""
    widest = 0.0
    for c in range(columns):
        total, squares = np.int64(0), np.int64(0)
        for i in range(np.uintp(c * lead), np.uintp(c * lead + n)):
            total += tile[i]
            squares += np.int64(tile[i]) * np.int64(tile[i])
        widest = max(widest, (np.float64(squares) - np.float64(total) * np.float64(total) / n) / n)
    model[0, 0] = 0
    model[0, 1] = _shift(widest)
    _weigh(tile, lead, n, columns, np.empty((0, MOST_PIVOTS)), model)


@inner
def _shift(variance):
    """Low bits of a residual that are sent as they are: so many that the rest fits the widest tables."""
    shift = 0
    while variance > 144.0 and shift < 12:
        variance *= 0.25
        shift += 1
    return shift


@inner
def _covariances(tile, lead, n, columns, covariance):
    sums = np.empty(columns, np.int64)
    widest = np.int32(0)
    for a in range(columns):
        total = np.int64(0)
        for i in range(np.uintp(a * lead), np.uintp(a * lead + n)):
            total += tile[i]
            widest = max(widest, abs(np.int32(tile[i])))
        sums[a] = total
    for a in range(columns):
        for b in range(a + 1):
            one, two = np.uintp(a * lead), np.uintp(b * lead)
            if widest < 2048:  # sums of 256 products fit 32 bits, which is twice as fast
                narrow = np.int32(0)
                for i in range(np.uintp(n)):
                    narrow = np.int32(narrow + np.int32(np.int32(tile[one + i]) * np.int32(tile[two + i])))
                total = np.int64(narrow)
            else:
                total = np.int64(0)
                for i in range(np.uintp(n)):
                    total += np.int64(tile[one + i]) * np.int64(tile[two + i])
            value = (np.float64(total) - np.float64(sums[a]) * np.float64(sums[b]) / n) / n
            covariance[a, b] = value
            covariance[b, a] = value


@inner
def _best_pivot(covariance, columns):
    """The column that explains most of the others' variance, and the sum of the shares that it explains."""
    best, most = 0, 0.0
    inverse = np.empty(columns)
    for c in range(columns):
        inverse[c] = 1.0 / (covariance[c, c] + _FLOOR)
    for p in range(columns):
        own = covariance[p, p]
        if own < _FLOOR:
            continue
        gain = 0.0
        for c in range(columns):
            gain += covariance[p, c] * covariance[p, c] * inverse[c]
        gain = gain / own - own * inverse[p]
        if gain > most:
            best, most = p, gain
    return best, most


@inner
def _deflate(covariance, columns, pivot, factor):
    """Take out what the pivot explains: one step of the Cholesky decomposition, whose column goes to `factor`."""
    root = np.sqrt(covariance[pivot, pivot])
    for c in range(columns):
        factor[c] = covariance[pivot, c] / root
    for a in range(columns):
        for b in range(columns):
            covariance[a, b] -= factor[a] * factor[b]


@inner
def _weigh(tile, lead, n, columns, factor, model):
    """Weights by back substitution in the Cholesky factor, rounded to 1/32; then biases, the means of what is left."""
    shift, pivots = model[0, 1], model[0, 2:]
    for c in range(columns):
        used = pivots_used(model, c)
        for t in range(MOST_PIVOTS):
            model[2 + t, c] = 0
        solved = np.zeros(MOST_PIVOTS)
        for t in range(used - 1, -1, -1):
            value = factor[c, t]
            for later in range(t + 1, used):
                value -= solved[later] * factor[pivots[later], t]
            solved[t] = value / factor[pivots[t], t]
        for t in range(used):
            model[2 + t, c] = np.int16(min(max(np.rint(32.0 * solved[t]), -127.0), 127.0))
        total = np.int64(0)
        for i in range(np.uintp(c * lead), np.uintp(c * lead + n)):
            total += 32 * np.int64(tile[i])
        for t in range(used):
            base = np.uintp(pivots[t]) * np.uintp(lead)
            part = np.int64(0)
            for i in range(np.uintp(n)):
                part += tile[base + i]
            total -= part * np.int64(model[2 + t, c])
        mean = np.float64(total) / (np.float64(n) * np.float64(8 << shift))
        model[1, c] = np.int16(min(max(np.rint(mean), -127.0), 127.0))


@inner
def pivots_used(model, column):
    """How many pivots predict a column: a pivot is predicted by those before it, any other column by all."""
    for t in range(model[0, 0]):
        if model[0, 2 + t] == column:
            return t
    return np.int64(model[0, 0])


@inner
def _predictions(tile, lead, n, column, model, out):
    """Predicted codes of a column, int32 [n]: (sum of weight * pivot + (bias << 3 + shift) + 16) >> 5."""
    start = np.int32((np.int32(model[1, column]) << np.int32(3 + model[0, 1])) + np.int32(16))
    for i in range(np.uintp(n)):
        out[i] = start
    for t in range(pivots_used(model, column)):
        weight = np.int32(model[2 + t, column])
        base = np.uintp(model[0, 2 + t]) * np.uintp(lead)
        for i in range(np.uintp(n)):
            out[i] = np.int32(out[i] + np.int32(weight * np.int32(tile[base + i])))
    for i in range(np.uintp(n)):
        out[i] = np.int32(out[i] >> np.int32(5))


@inner
def residuals(tile, lead, n, column, model, predicted, out):
    """What the prediction leaves of a column: 0, 1, 2, 3, 4, ... for 0, -1, +1, -2, +2, ... modulo 2^8 or 2^16.

    Args:
        tile: int8 or int16; out: uint8 or uint16 [n], as wide.
        predicted: int32 [n], working memory.
    """
    _predictions(tile, lead, n, column, model, predicted)
    base = np.uintp(column * lead)
    unused = np.int32(32 - 8 * out.itemsize)
    for i in range(np.uintp(n)):
        difference = np.int32(np.int32(tile[base + i]) - predicted[i])
        left = np.int32(np.int32(difference << unused) >> unused)
        out[i] = np.int32(np.int32(left << np.int32(1)) ^ np.int32(left >> np.int32(31)))


@inner
def restore(left, tile, lead, n, column, model, predicted):
    """The inverse of `residuals`: the codes of a column from what is left and the pivots before it in `tile`."""
    _predictions(tile, lead, n, column, model, predicted)
    base = np.uintp(column * lead)
    for i in range(np.uintp(n)):
        folded = np.int32(left[i])
        value = np.int32(np.int32(folded >> np.int32(1)) ^ np.int32(-np.int32(folded & np.int32(1))))
        tile[base + i] = np.int32(value + predicted[i])


@inner
def choose_table(left, n, shift, costs, means, histogram):
    """The table of the family that codes these residuals in the fewest bits, of those with about their mean.

    Args:
        left: uint8 or uint16 [n]; see `residuals`.
        costs: int32 [MAGNITUDES, tables]; means: int32 [tables]; see `tables.Family`.
        histogram: int32 [4, MAGNITUDES], working memory.
    """
    histogram[:] = 0
    total, largest = np.int64(0), np.uint32(0)
    for i in range(np.uintp(n)):
        high = min(np.uint32(left[i]) >> np.uint32(shift), np.uint32(MAGNITUDES - 1))
        # Four counters take turns: equal residuals in a row would wait for each other.
        histogram[i & np.uintp(3), np.uintp(high)] += 1
        total += high
        largest = max(largest, high)
    mean = 256 * total // n
    sums = np.zeros(COUNT, np.int32)
    for s in range(np.uintp(largest + 1)):
        count = np.int32(histogram[0, s] + histogram[1, s] + histogram[2, s] + histogram[3, s])
        if count:
            for t in range(COUNT):
                sums[t] = np.int32(sums[t] + np.int32(count * costs[s, t]))
    best = -1
    for t in range(COUNT):
        if (8 * means[t] < 5 * mean - 128 or 5 * means[t] > 8 * mean + 128) and t != COUNT - 1:
            continue
        if best < 0 or sums[t] < sums[best]:
            best = t
    return best
