"""The model of a section, pivots, weights, biases and tables of `predict`: fitted, written and read."""

from __future__ import annotations

import numpy as np

from compression import predict, tables
from compression.kernel import inner
from compression.predict import MOST_PIVOTS, WIDEST
from compression.shapes import tile_lead
from compression.transpose import gather_turned


@inner
def gather(codes, stride, columns, rows, first, n, tile, lead, work):
    """Fill a tile with `n` rows of codes, transposed."""
    if columns == 1:
        for i in range(np.uintp(n)):
            tile[i] = codes[np.uintp(first) + i]
    elif codes.itemsize == 1:
        gather_turned(work.codes, stride // 8, rows, first, n, work.tile, lead // 8)
    else:
        predict.gather_columns(codes, stride, columns, rows, first, first + n, tile, lead)


@inner
def fit_model(codes, tile, left, stride, distinct, columns, work):
    """Fit the prediction to a sample of the rows, and choose the columns' tables."""
    n = predict.sample_size(distinct, columns)
    lead = tile_lead(n)
    if columns == 1:
        for i in range(n):
            tile[i] = codes[predict.sample_row(i, distinct)]
    else:
        picked = work.predicted[:n]  # numbers of rows, here
        for i in range(n):
            picked[i] = work.firsts[predict.sample_row(i, distinct)]
        gather(codes, stride, columns, picked, 0, n, tile, lead, work)
    if columns <= WIDEST:
        predict.fit(tile, lead, n, columns, distinct, work.covariance, work.model)
    else:
        predict.fit_none(tile, lead, n, columns, work.model)
    histogram = np.empty((4, tables.MAGNITUDES), np.int32)
    for column in range(columns):
        predict.residuals(tile, lead, n, column, work.model, work.predicted, left)
        work.choice[column] = predict.choose_table(left, n, work.model[0, 1], work.costs, work.means, histogram)


@inner
def _model_words(pivots, columns):
    """Two bytes, the pivots in two bytes each, biases, weights, tables."""
    return (2 + 2 * pivots + columns * (2 + pivots) + 3) // 4


@inner
def write_model(columns, width, work, words, at):
    """Returns where the next word begins; it may lie behind the end of `words`, and then nothing is written."""
    pivots = np.int64(work.model[0, 0])
    end = at + _model_words(pivots, columns)
    if end > words.size:
        return end
    words[end - 1] = 0
    target = words[at:end].view(np.uint8)
    target[0] = pivots
    target[1] = work.model[0, 1] << 4 | width
    for t in range(pivots):
        target[2 + 2 * t] = work.model[0, 2 + t] & 0xFF
        target[3 + 2 * t] = work.model[0, 2 + t] >> 8
    for part in range(1 + pivots):
        base = 2 + 2 * pivots + part * columns
        for c in range(columns):
            target[base + c] = work.model[1 + part, c] & 0xFF
    base = 2 + 2 * pivots + (1 + pivots) * columns
    target[base : base + columns] = work.choice[:columns]
    return end


@inner
def read_model(words, at, end, columns, work):
    """Returns where the next word begins, or -1 if there is no model, and the bytes of a code."""
    if at >= end:
        return -1, 0
    pivots = np.int64(words[at] & np.uint32(0xFF))
    width = np.int64((words[at] >> np.uint32(8)) & np.uint32(15))
    shift = np.int64((words[at] >> np.uint32(12)) & np.uint32(15))
    if pivots > MOST_PIVOTS or shift > 12 or width < 1 or width > 2 or at + _model_words(pivots, columns) > end:
        return -1, 0
    end = at + _model_words(pivots, columns)
    source = words[at:end].view(np.uint8)
    work.model[0, 0] = pivots
    work.model[0, 1] = shift
    for t in range(pivots):
        pivot = np.int64(source[2 + 2 * t]) | np.int64(source[3 + 2 * t]) << 8
        if pivot >= columns:
            return -1, 0
        work.model[0, 2 + t] = pivot
    for part in range(1 + pivots):
        base = 2 + 2 * pivots + part * columns
        for c in range(columns):
            work.model[1 + part, c] = np.int8(source[base + c])
    base = 2 + 2 * pivots + (1 + pivots) * columns
    for c in range(columns):
        if source[base + c] >= tables.COUNT:
            return -1, 0
        work.choice[c] = source[base + c]
    return end, width
