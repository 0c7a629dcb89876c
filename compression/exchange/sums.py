"""The loops of `pooling`, compiled: what they take is what `pooling` says, and they trust it."""

from __future__ import annotations

import numpy as np

from compression.exchange.kernel import Number, fused, inline, kernel


@kernel
def pool(
    rows: np.ndarray,
    bases: np.ndarray,
    dims: np.ndarray,
    shards: np.ndarray,
    columns: np.ndarray,
    mean: np.ndarray,
    offsets: np.ndarray,
    batch: Number,
    inverse: np.ndarray,
    weights: np.ndarray,
    out: np.ndarray,
) -> None:
    values, width = out.reshape(-1), np.uintp(out.shape[1])
    for shard in range(dims.size):
        dim, base = np.uintp(dims[shard]), np.uintp(bases[shard])
        for feature in range(shards[shard], shards[shard + 1]):
            at, bags = np.uintp(columns[feature]), offsets[feature * batch : (feature + 1) * batch + 1]
            if weights.size == 0 and _is_single(bags):
                _take(rows, base, dim, inverse, bags, np.float32(0), values, at, width)
                continue
            for bag in range(batch):
                _pool_bag(rows, base, dim, inverse, bags[bag], bags[bag + 1], mean[shard], weights, values, at)
                at += width


@kernel
def pool_backward(
    grad: np.ndarray,
    bases: np.ndarray,
    dims: np.ndarray,
    shards: np.ndarray,
    columns: np.ndarray,
    mean: np.ndarray,
    offsets: np.ndarray,
    batch: Number,
    inverse: np.ndarray,
    weights: np.ndarray,
    rows_grad: np.ndarray,
) -> None:
    rows_grad[:] = 0
    values, width = grad.reshape(-1), np.uintp(grad.shape[1])
    for shard in range(dims.size):
        dim, base = np.uintp(dims[shard]), np.uintp(bases[shard])
        for feature in range(shards[shard], shards[shard + 1]):
            at, bags = np.uintp(columns[feature]), offsets[feature * batch : (feature + 1) * batch + 1]
            if weights.size == 0 and _is_single(bags):
                _add(values, at, width, dim, inverse, bags, base, rows_grad)
                continue
            for bag in range(batch):
                _add_bag(values, at, dim, inverse, bags[bag], bags[bag + 1], mean[shard], weights, base, rows_grad)
                at += width


@kernel
def gather(
    rows: np.ndarray,
    bases: np.ndarray,
    shards: np.ndarray,
    offsets: np.ndarray,
    batch: Number,
    inverse: np.ndarray,
    out: np.ndarray,
) -> None:
    values, dim = out.reshape(-1), np.uintp(out.shape[1])
    for shard in range(bases.size):
        bags = offsets[shards[shard] * batch : shards[shard + 1] * batch + 1]
        # To add -0.0 leaves each value as it is.
        _take(rows, np.uintp(bases[shard]), dim, inverse, bags, np.float32(-0.0), values, np.uintp(bags[0]) * dim, dim)


@kernel
def gather_backward(
    grad: np.ndarray,
    bases: np.ndarray,
    shards: np.ndarray,
    offsets: np.ndarray,
    batch: Number,
    inverse: np.ndarray,
    rows_grad: np.ndarray,
) -> None:
    rows_grad[:] = 0
    values, dim = grad.reshape(-1), np.uintp(grad.shape[1])
    for shard in range(bases.size):
        bags = offsets[shards[shard] * batch : shards[shard + 1] * batch + 1]
        _add(values, np.uintp(bags[0]) * dim, dim, dim, inverse, bags, np.uintp(bases[shard]), rows_grad)


@inline
def _is_single(bags: np.ndarray) -> Number:
    """Whether all bags have one position."""
    single = True
    for bag in range(np.uintp(bags.size - 1)):
        single &= bags[bag + np.uintp(1)] - bags[bag] == 1
    return single


@inline
def _take(
    rows: np.ndarray,
    base: Number,
    dim: Number,
    inverse: np.ndarray,
    bags: np.ndarray,
    start: Number,
    values: np.ndarray,
    at: Number,
    width: Number,
) -> None:
    """Write `start` plus the row of each position in these bags to values, `width` apart from `at` on."""
    for position in range(np.uintp(bags[0]), np.uintp(bags[-1])):
        row = base + np.uintp(inverse[position]) * dim
        for j in range(dim):
            values[at + j] = rows[row + j] + start
        at += width


@inline
def _add(
    values: np.ndarray,
    at: Number,
    width: Number,
    dim: Number,
    inverse: np.ndarray,
    bags: np.ndarray,
    base: Number,
    rows_grad: np.ndarray,
) -> None:
    """Reverse `_take`: add values to the rows."""
    for position in range(np.uintp(bags[0]), np.uintp(bags[-1])):
        row = base + np.uintp(inverse[position]) * dim
        for j in range(dim):
            rows_grad[row + j] += values[at + j]
        at += width


@inline
def _share(mean: Number, size: Number) -> Number:
    return np.float32(1) / np.float32(max(size, 1)) if mean else np.float32(1)


@inline
def _pool_bag(
    rows: np.ndarray,
    base: Number,
    dim: Number,
    inverse: np.ndarray,
    first: Number,
    last: Number,
    mean: Number,
    weights: np.ndarray,
    values: np.ndarray,
    at: Number,
) -> None:
    for j in range(dim):
        values[at + j] = 0
    for position in range(np.uintp(first), np.uintp(last)):
        row = base + np.uintp(inverse[position]) * dim
        weight = weights[position] if weights.size else np.float32(1)
        for j in range(dim):
            values[at + j] = fused(weight, rows[row + j], values[at + j])
    if mean:
        share = _share(mean, last - first)
        for j in range(dim):
            values[at + j] *= share


@inline
def _add_bag(
    values: np.ndarray,
    at: Number,
    dim: Number,
    inverse: np.ndarray,
    first: Number,
    last: Number,
    mean: Number,
    weights: np.ndarray,
    base: Number,
    rows_grad: np.ndarray,
) -> None:
    share = _share(mean, last - first)
    for position in range(np.uintp(first), np.uintp(last)):
        row = base + np.uintp(inverse[position]) * dim
        weight = weights[position] * share if weights.size else share
        for j in range(dim):
            rows_grad[row + j] = fused(weight, values[at + j], rows_grad[row + j])
