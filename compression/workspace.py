"""Working memory of the codec, made for the largest section and used again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression.entropy import CHUNK, CHUNK_WORDS
from compression.predict import MOST_PIVOTS, SAMPLE, WIDEST
from compression.shapes import block_rows, is_flat, most_escapes, most_patches, tile_lead
from compression.tables import TOTAL, family

MOST_SHAPES = 4096
"""Shapes that are remembered as fitting."""
_DTYPES = {
    "codes": np.uint64,
    "table": np.int32,
    "references": np.uint32,
    "firsts": np.int32,
    "symbols": np.uint8,
    "tile": np.uint64,
    "left": np.uint64,
    "predicted": np.int32,
    "escapes": np.uint16,
    "patch_at": np.uint32,
    "patch_bits": np.uint32,
    "choice": np.uint8,
    "distinct": np.uint64,
    "counts": np.int64,
}


class Work(NamedTuple):
    """Working memory of one section, as compiled functions take it, and the tables that all share."""

    codes: NDArray[np.uint64]
    table: NDArray[np.int32]
    references: NDArray[np.uint32]
    firsts: NDArray[np.int32]
    symbols: NDArray[np.uint8]
    tile: NDArray[np.uint64]
    left: NDArray[np.uint64]
    predicted: NDArray[np.int32]
    escapes: NDArray[np.uint16]
    patch_at: NDArray[np.uint32]
    patch_bits: NDArray[np.uint32]
    covariance: NDArray[np.float64]
    model: NDArray[np.int16]
    choice: NDArray[np.uint8]
    stream: NDArray[np.uint16]
    pushes: NDArray[np.uint32]
    slots: NDArray[np.uint32]
    distinct: NDArray[np.uint64]
    counts: NDArray[np.int64]
    family_pushes: NDArray[np.uint32]
    family_slots: NDArray[np.uint32]
    known: NDArray[np.uint8]
    codes_of: NDArray[np.uint32]
    decoding: NDArray[np.uint16]
    costs: NDArray[np.int32]
    means: NDArray[np.int32]
    paired: NDArray[np.uint8]


class Workspace:
    """Grows to what the largest section so far takes.

    Args:
        decode: for decoding, else for encoding; an array that is not needed is empty.
    """

    def __init__(self, *, decode: bool) -> None:
        self._decode = decode
        self._sizes: dict[str, int] = {}
        self._columns = 0
        self._shapes: set[tuple[int, int]] = set()
        self._small: set[tuple[int, int]] = set()

    def of(self, shapes: Iterable[tuple[int, int]]) -> Work:
        """Arrays large enough for sections of these (rows, columns), each at least 1."""
        new = set(shapes) - self._shapes
        if new or not self._sizes:
            before = dict(self._sizes), self._columns
            for rows, columns in new:
                self._grow(rows, columns)
            self._grow(1, 1)
            self._shapes = new if len(self._shapes) > MOST_SHAPES else self._shapes | new
            if before != (self._sizes, self._columns):
                self.arrays = self._make()
        return self.arrays

    def of_small(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Work:
        """`of` for many small tables whose rows change all the time: room for the next power of two of each."""
        bits = np.frexp(rows)[1]
        classes = set(zip(bits.tolist(), columns.tolist(), strict=True)) - self._small
        if classes:
            self._small |= classes
            # A table of few values is coded as a single column, one of more is not.
            shapes = [((1 << bit) - 1, wide) for bit, wide in classes if bit]
            self.of({*shapes, *((most * wide, 1) for most, wide in shapes)})
        return self.arrays if self._sizes else self.of(())

    def _grow(self, rows: int, columns: int) -> None:
        if is_flat(rows, columns):
            rows, columns = rows * columns, 1
        for name, size in _sizes(rows, columns, self._decode).items():
            self._sizes[name] = max(self._sizes.get(name, 0), size)
        self._columns = max(self._columns, columns)

    def _make(self) -> Work:
        arrays: dict[str, Any] = {name: np.empty(self._sizes[name], dtype) for name, dtype in _DTYPES.items()}
        square = min(self._columns, WIDEST)
        tables = family()
        return Work(
            **arrays,
            covariance=np.empty((square, square), np.float64),
            model=np.empty((MOST_PIVOTS + 2, self._columns + 2 + MOST_PIVOTS), np.int16),
            stream=np.empty(CHUNK + 2 * CHUNK_WORDS, np.uint16),
            pushes=np.empty((1, 256, 4), np.uint32),
            slots=np.empty((1, TOTAL), np.uint32),
            family_pushes=tables.pushes,
            family_slots=tables.slots,
            known=tables.known,
            codes_of=tables.codes,
            decoding=tables.decoding,
            costs=tables.costs,
            means=tables.means,
            paired=tables.paired,
        )


def _sizes(rows: int, columns: int, decode: bool) -> dict[str, int]:
    """Elements of each array."""
    encode = not decode
    stride = columns if columns == 1 else (columns + 7) // 8 * 8
    keyed = 0 if columns == 1 else rows
    tile = tile_lead(max(min(block_rows(columns), rows), SAMPLE))
    table = 64
    while table < 2 * keyed:
        table *= 2
    return {
        "codes": encode * (rows * stride // 4 + 8),
        "table": encode * table,
        "references": keyed,
        "firsts": encode * keyed,
        "symbols": max(tile * columns, keyed),
        "tile": tile * stride // 4 + 8,
        "left": tile * columns // 4 + 8,
        "predicted": tile,
        "escapes": encode * (most_escapes(rows * columns) + 2),
        "patch_at": encode * most_patches(rows * columns),
        "patch_bits": encode * most_patches(rows * columns),
        "choice": columns,
        "distinct": decode * ((rows + 7) * stride // 4 + 8),
        "counts": columns,
    }
