"""Working memory of the codec, made once for the largest table and used again."""

from __future__ import annotations

import numpy as np

from compression.entropy import CHUNK, CHUNK_WORDS
from compression.predict import MOST_PIVOTS, SAMPLE, WIDEST
from compression.rows import Work, block_rows, is_flat, tile_lead
from compression.tables import family


def workspace(rows: int, columns: int, *, decode: bool) -> Work:
    """Arrays large enough for a table of this shape.

    Args:
        decode: for decoding, else for encoding; an array that is not needed is small.
    """
    flat = is_flat(rows, columns)
    if flat:
        rows, columns = rows * columns, 1
    values = rows * columns
    encode = not decode
    keyed = 0 if flat else rows
    tile = tile_lead(max(min(block_rows(columns), rows), SAMPLE))
    stride = columns if columns == 1 else (columns + 7) // 8 * 8
    power = 64
    while power < 2 * keyed:
        power *= 2
    exceptions = values // 8 + 64 if encode else 0
    tables = family()
    return Work(
        codes=np.empty(encode * (rows * 2 + 8 if flat else rows * ((2 * columns + 7) // 8)) , np.uint64),
        hashes=np.empty(encode * keyed, np.uint64),
        table=np.empty(encode * power, np.int32),
        twins=np.empty(encode * keyed, np.int32),
        references=np.empty(keyed, np.uint32),
        firsts=np.empty(encode * keyed, np.int32),
        symbols=np.empty(max(tile * columns, keyed), np.uint8),
        tile=np.empty(tile * stride // 4 + 8, np.uint64),
        left=np.empty(tile * columns // 4 + 8, np.uint64),
        predicted=np.empty(tile, np.int32),
        escapes=np.empty(exceptions, np.uint16),
        patch_at=np.empty(exceptions // 2, np.uint32),
        patch_bits=np.empty(exceptions // 2, np.uint32),
        covariance=np.empty((min(columns, WIDEST),) * 2 if encode else (0, 0), np.float64),
        model=np.empty((MOST_PIVOTS + 2, columns + 2 + MOST_PIVOTS), np.int16),
        choice=np.empty(columns, np.uint8),
        stream=np.empty(CHUNK + 2 * CHUNK_WORDS, np.uint16),
        pushes=np.empty((1, 256, 4), np.uint32),
        slots=np.empty((1, 2048), np.uint32),
        distinct=np.empty(decode * ((rows + 7) * stride // 4 + 8), np.uint64),
        counts=np.empty(columns, np.int64),
        family_pushes=tables.pushes,
        family_slots=tables.slots,
        known=tables.known,
        codes_of=tables.codes,
        decoding=tables.decoding,
        costs=tables.costs,
        means=tables.means,
        paired=tables.paired,
    )
