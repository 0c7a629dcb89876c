"""Bags of lookups pooled from distinct rows, rows copied out for sequences, and the gradients of both.

Rows are flat: row k of shard s begins at bases[s] + k * dims[s]. Sums are made as FBGEMM's CPU kernels make them, in
the order of the bag from 0 on, each product added in one rounding, a mean multiplied by 1 / length at the end. In the
backward pass a row gets its terms in ascending order of positions.

One difference: FBGEMM's CPU backward pass forgets the division of a bag that has both weights and a mean. Here the
gradient is that of the forward pass.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compression.exchange import sums
from compression.exchange.kernel import check_arrays


def pool(
    rows: NDArray[np.float32],
    bases: NDArray[np.int64],
    dims: NDArray[np.int64],
    shards: NDArray[np.int64],
    columns: NDArray[np.int64],
    mean: NDArray[np.bool_],
    offsets: NDArray[np.int64],
    batch: int,
    inverse: NDArray[np.int32],
    weights: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Pool every bag of a batch. All arrays are contiguous.

    Args:
        rows: float32 [V], the distinct rows.
        bases, dims: int64 [S], where the rows of a shard begin, and its columns.
        shards: int64 [S + 1]: shard s has features shards[s] to shards[s + 1] - 1.
        columns: int64 [F], the first of `out` that a feature has; it has as many as its shard.
        mean: bool [S], mean and not sum.
        offsets: int64 [F * batch + 1]: bag b of feature f has positions offsets[f * batch + b] up to the next offset.
        batch: bags of a feature.
        inverse: int32 [N], as `distinct` gives it: the row of each position in its shard.
        weights: float32 [N], by which rows are multiplied, or [0] for none.
        out: float32 [batch, C], written in the columns that features have; 0 for an empty bag.

    Raises:
        TypeError: a dtype.
        ValueError: an array that is not contiguous, or sizes that do not fit. What is in the arrays is trusted.
    """
    _check(rows, bases, dims, shards, offsets, inverse)
    _check_bags(dims, columns, mean, offsets, batch, inverse, weights, out)
    sums.pool(rows, bases, dims, shards, columns, mean, offsets, batch, inverse, weights, out)


def pool_backward(
    grad: NDArray[np.float32],
    bases: NDArray[np.int64],
    dims: NDArray[np.int64],
    shards: NDArray[np.int64],
    columns: NDArray[np.int64],
    mean: NDArray[np.bool_],
    offsets: NDArray[np.int64],
    batch: int,
    inverse: NDArray[np.int32],
    weights: NDArray[np.float32],
    rows_grad: NDArray[np.float32],
) -> None:
    """The gradient of the rows of `pool`, summed over all positions that have a row.

    Args:
        grad: float32 [batch, C], of `out` of `pool`.
        rows_grad: float32 [V], written whole.
        others: as in `pool`.

    Raises:
        TypeError, ValueError: as `pool`.
    """
    _check(rows_grad, bases, dims, shards, offsets, inverse)
    _check_bags(dims, columns, mean, offsets, batch, inverse, weights, grad)
    sums.pool_backward(grad, bases, dims, shards, columns, mean, offsets, batch, inverse, weights, rows_grad)


def gather(
    rows: NDArray[np.float32],
    bases: NDArray[np.int64],
    dim: int,
    shards: NDArray[np.int64],
    offsets: NDArray[np.int64],
    batch: int,
    inverse: NDArray[np.int32],
    out: NDArray[np.float32],
) -> None:
    """Copy the row of every position.

    Args:
        dim: columns of every shard.
        out: float32 [N, dim], written.
        others: as in `pool`.

    Raises:
        TypeError, ValueError: as `pool`.
    """
    _check(rows, bases, bases, shards, offsets, inverse)
    _check_positions(dim, batch, offsets, inverse, out)
    sums.gather(rows, bases, shards, offsets, batch, inverse, out)


def gather_backward(
    grad: NDArray[np.float32],
    bases: NDArray[np.int64],
    dim: int,
    shards: NDArray[np.int64],
    offsets: NDArray[np.int64],
    batch: int,
    inverse: NDArray[np.int32],
    rows_grad: NDArray[np.float32],
) -> None:
    """The gradient of the rows of `gather`, summed over all positions that have a row.

    Args:
        grad: float32 [N, dim], of `out` of `gather`.
        rows_grad: float32 [V], written whole.
        others: as in `pool`.

    Raises:
        TypeError, ValueError: as `pool`.
    """
    _check(rows_grad, bases, bases, shards, offsets, inverse)
    _check_positions(dim, batch, offsets, inverse, grad)
    sums.gather_backward(grad, bases, shards, offsets, batch, inverse, rows_grad)


def _check(
    rows: np.ndarray, bases: np.ndarray, dims: np.ndarray, shards: np.ndarray, offsets: np.ndarray, inverse: np.ndarray
) -> None:
    check_arrays(
        rows=(rows, np.float32),
        bases=(bases, np.int64),
        dims=(dims, np.int64),
        shards=(shards, np.int64),
        offsets=(offsets, np.int64),
        inverse=(inverse, np.int32),
    )
    if rows.ndim != 1 or bases.shape != dims.shape or shards.shape != (bases.size + 1,):
        raise ValueError(f"rows {rows.shape}, bases {bases.shape}, dims {dims.shape} and shards {shards.shape}")
    if offsets.size == 0 or offsets[-1] != inverse.size:
        raise ValueError(f"offsets do not end at {inverse.size}, the size of inverse")


def _check_bags(
    dims: np.ndarray,
    columns: np.ndarray,
    mean: np.ndarray,
    offsets: np.ndarray,
    batch: int,
    inverse: np.ndarray,
    weights: np.ndarray,
    pooled: np.ndarray,
) -> None:
    check_arrays(
        columns=(columns, np.int64), mean=(mean, np.bool_), weights=(weights, np.float32), pooled=(pooled, np.float32)
    )
    if offsets.shape != (columns.size * batch + 1,) or pooled.ndim != 2 or pooled.shape[0] != batch:
        raise ValueError(
            f"{columns.size} features and {batch} bags have neither offsets {offsets.shape} nor values {pooled.shape}"
        )
    if mean.shape != dims.shape:
        raise ValueError(f"mean {mean.shape} of dims {dims.shape}")
    if weights.size and weights.shape != inverse.shape:
        raise ValueError(f"weights {weights.shape} of positions {inverse.shape}")


def _check_positions(dim: int, batch: int, offsets: np.ndarray, inverse: np.ndarray, values: np.ndarray) -> None:
    check_arrays(values=(values, np.float32))
    if values.shape != (inverse.size, dim) or (offsets.size - 1) % max(batch, 1):
        raise ValueError(f"values {values.shape} of {inverse.size} positions, {offsets.size} offsets of {batch} bags")
