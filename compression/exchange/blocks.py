"""Blocks of a table's rows and columns, one after the other in a message, and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compression.exchange.kernel import Number, check_arrays, inline, kernel


def pack(
    table: NDArray[np.float32],
    first: NDArray[np.int64],
    counts: NDArray[np.int64],
    columns: NDArray[np.int64],
    dims: NDArray[np.int64],
    out: NDArray[np.float32],
) -> None:
    """Copy blocks of a table, row after row, to one flat array.

    Args:
        table: float32 [n, C], contiguous.
        first, counts, columns, dims: int64 [M]: block m is table[first : first + counts, columns : columns + dims].
        out: float32 [sum(counts * dims)], written.

    Raises:
        TypeError: a dtype.
        ValueError: a block that is not in the table, sizes that do not fit each other, or an array not contiguous.
    """
    _check(table, first, counts, columns, dims, out)
    if _pack(table, first, counts, columns, dims, out) != out.size:
        raise _misfit(table, out)


def unpack(
    flat: NDArray[np.float32],
    first: NDArray[np.int64],
    counts: NDArray[np.int64],
    columns: NDArray[np.int64],
    dims: NDArray[np.int64],
    divisor: float | np.float32,
    table: NDArray[np.float32],
) -> None:
    """Reverse `pack` and divide each value; the rest of the table stays as it is.

    Args:
        flat: float32 [sum(counts * dims)].
        first, counts, columns, dims: as in `pack`. Of blocks that overlap the last one counts.
        divisor: taken as float32; 1 copies.
        table: float32 [n, C], contiguous, written.

    Raises:
        TypeError, ValueError: as `pack`; nothing is said of what has been written by then.
    """
    _check(table, first, counts, columns, dims, flat)
    if _unpack(flat, first, counts, columns, dims, np.float32(divisor), table) != flat.size:
        raise _misfit(table, flat)


def count_nonfinite(values: NDArray[np.float32]) -> int:
    """How many of float32 [n], contiguous, are NaN or infinite.

    Raises:
        TypeError, ValueError: another dtype; not contiguous.

    >>> count_nonfinite(np.array([1, np.nan, -np.inf], np.float32))
    2
    """
    check_arrays(values=(values, np.float32))
    return int(_count_nonfinite(values.reshape(-1)))


def _check(
    table: np.ndarray, first: np.ndarray, counts: np.ndarray, columns: np.ndarray, dims: np.ndarray, flat: np.ndarray
) -> None:
    check_arrays(
        table=(table, np.float32),
        first=(first, np.int64),
        counts=(counts, np.int64),
        columns=(columns, np.int64),
        dims=(dims, np.int64),
        flat=(flat, np.float32),
    )
    if table.ndim != 2 or flat.ndim != 1 or not (first.shape == counts.shape == columns.shape == dims.shape):
        raise ValueError(f"blocks of a table {table.shape} in an array {flat.shape}, with lists of different sizes")


def _misfit(table: np.ndarray, flat: np.ndarray) -> ValueError:
    return ValueError(f"the blocks do not lie in the table {table.shape} or do not fill the {flat.size} values")


@inline
def _fits(first: Number, count: Number, column: Number, dim: Number, rows: Number, width: Number) -> Number:
    return (
        min(first, count, column, dim) >= 0
        and first <= rows
        and count <= rows - first
        and column <= width
        and dim <= width - column
    )


@kernel
def _pack(
    table: np.ndarray, first: np.ndarray, counts: np.ndarray, columns: np.ndarray, dims: np.ndarray, out: np.ndarray
) -> Number:
    """Values written, or -1 for a block that does not fit."""
    rows, width = table.shape
    values = table.reshape(-1)
    to = np.uintp(0)
    for m in range(first.size):
        if not _fits(first[m], counts[m], columns[m], dims[m], rows, width):
            return -1
        if counts[m] * dims[m] > out.size - np.int64(to):
            return -1
        dim = np.uintp(dims[m])
        at = np.uintp(first[m] * width + columns[m])
        for _ in range(counts[m]):
            for j in range(dim):
                out[to + j] = values[at + j]
            to += dim
            at += np.uintp(width)
    return np.int64(to)


@kernel
def _unpack(
    flat: np.ndarray,
    first: np.ndarray,
    counts: np.ndarray,
    columns: np.ndarray,
    dims: np.ndarray,
    divisor: Number,
    table: np.ndarray,
) -> Number:
    """Values read, or -1 for a block that does not fit."""
    rows, width = table.shape
    values = table.reshape(-1)
    to = np.uintp(0)
    for m in range(first.size):
        if not _fits(first[m], counts[m], columns[m], dims[m], rows, width):
            return -1
        if counts[m] * dims[m] > flat.size - np.int64(to):
            return -1
        dim = np.uintp(dims[m])
        at = np.uintp(first[m] * width + columns[m])
        for _ in range(counts[m]):
            if divisor == 1:
                for j in range(dim):
                    values[at + j] = flat[to + j]
            else:
                for j in range(dim):
                    values[at + j] = flat[to + j] / divisor
            to += dim
            at += np.uintp(width)
    return np.int64(to)


@kernel
def _count_nonfinite(values: np.ndarray) -> Number:
    count = np.int64(0)
    for i in range(np.uintp(values.size)):
        # Only NaN and infinity are not 0 when taken from themselves.
        count += values[i] - values[i] != 0
    return count
