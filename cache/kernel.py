"""The compiled loops of the replica: what they take is what their callers say, and they trust it.

All are in this one file: Numba looks at the file of a function when it asks whether its cached code is stale, not at
the files of the functions that it calls.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

Number = Any
kernel = numba.njit(nogil=True, cache=True)


@kernel
def split(
    values: np.ndarray,
    lengths: np.ndarray,
    weights: np.ndarray,
    batch: Number,
    tables: np.ndarray,
    rows: np.ndarray,
    first_slots: np.ndarray,
    map_starts: np.ndarray,
    maps: np.ndarray,
    cold: np.ndarray,
    cold_lengths: np.ndarray,
    cold_weights: np.ndarray,
    slots: np.ndarray,
    offsets: np.ndarray,
    hot_weights: np.ndarray,
) -> tuple[Number, Number, Number]:
    """Part the ids of a batch in those of cold and those of hot rows.

    Args:
        values: int32 or int64 [N], ids, feature after feature; not trusted.
        lengths: int32 [F * batch], of bags.
        weights: float32 [N], or [0] for none.
        tables: int64 [F], of each feature.
        rows: int64 [T].
        first_slots: int64 [T + 1]: the slots of table t are first_slots[t] up to the next.
        map_starts: int64 [T]: where the table's ids begin in maps; -1 = its hot rows are the first ones.
        maps: int32, the slot of an id in its table, -1 for a cold one.
        cold, cold_lengths, cold_weights: out, like the first three; as many of them are filled as are cold.
        slots: int32 [N], out, of hot ids; offsets: int64 [F * batch + 1], out, of their bags; hot_weights: float32.

    Returns:
        How many are cold, how many hot, and the position of the first id that its table has no row for, or -1: then
        the outputs mean nothing.
    """
    at, n_cold, n_hot = 0, 0, 0
    weighted = weights.size > 0
    offsets[0] = 0
    for feature in range(tables.size):
        table = tables[feature]
        limit, first = rows[table], first_slots[table]
        count, start = first_slots[table + 1] - first, map_starts[table]
        for bag in range(feature * batch, (feature + 1) * batch):
            before = n_cold
            for position in range(at, at + lengths[bag]):
                id = np.int64(values[position])
                if id < 0 or id >= limit:
                    return n_cold, n_hot, position
                slot = (id if id < count else -1) if start < 0 else np.int64(maps[start + id])
                if slot < 0:
                    cold[n_cold] = values[position]
                    if weighted:
                        cold_weights[n_cold] = weights[position]
                    n_cold += 1
                else:
                    slots[n_hot] = first + slot
                    if weighted:
                        hot_weights[n_hot] = weights[position]
                    n_hot += 1
            at += lengths[bag]
            cold_lengths[bag] = n_cold - before
            offsets[bag + 1] = n_hot
    return n_cold, n_hot, -1


@kernel
def touch(slots: np.ndarray, marks: np.ndarray, touched: np.ndarray, inverse: np.ndarray) -> Number:
    """The distinct slots, ascending, and where each lookup's slot is among them.

    Args:
        slots: int32 [N].
        marks: int32 [all slots], 0.
        touched: int64 [N], out; inverse: int32 [N], out.

    Returns:
        How many distinct slots there are.
    """
    for i in range(slots.size):
        marks[slots[i]] = 1
    count = 0
    for slot in range(marks.size):
        if marks[slot]:
            marks[slot] = count
            touched[count] = slot
            count += 1
    for i in range(slots.size):
        inverse[i] = marks[slots[i]]
    return count


@kernel
def pool(
    rows: np.ndarray,
    bases: np.ndarray,
    slots: np.ndarray,
    offsets: np.ndarray,
    weights: np.ndarray,
    shares: np.ndarray,
    batch: Number,
    dims: np.ndarray,
    columns: np.ndarray,
    out: np.ndarray,
) -> None:
    """Sum the hot rows of every bag.

    Args:
        rows: float32 [V]; bases: int64 [slots], where each row begins.
        slots, offsets, weights: as `split` has them.
        shares: float32 [F * batch], by which a bag is multiplied, or [0] for none.
        dims, columns: int64 [F], and the first of `out` that each feature has.
        out: float32 [batch, C], written in the columns that features have.
    """
    weighted, shared = weights.size > 0, shares.size > 0
    for feature in range(dims.size):
        dim, column = dims[feature], columns[feature]
        for sample in range(batch):
            bag = feature * batch + sample
            values = out[sample, column : column + dim]
            values[:] = 0
            for position in range(offsets[bag], offsets[bag + 1]):
                base = bases[slots[position]]
                weight = weights[position] if weighted else np.float32(1)
                for j in range(dim):
                    values[j] += weight * rows[base + j]
            if shared:
                for j in range(dim):
                    values[j] *= shares[bag]


@kernel
def sum_gradients(
    grad: np.ndarray,
    starts: np.ndarray,
    inverse: np.ndarray,
    offsets: np.ndarray,
    weights: np.ndarray,
    shares: np.ndarray,
    batch: Number,
    dims: np.ndarray,
    columns: np.ndarray,
    sums: np.ndarray,
) -> None:
    """The gradient of each touched row, summed over all positions that have it, in their order.

    Args:
        grad: float32 [batch, C], of `out` of `pool`.
        starts: int64 [touched], where each begins in sums; inverse: as `touch` has it.
        sums: float32 [values of touched rows], written whole.
        others: as in `pool`.
    """
    sums[:] = 0
    weighted, shared = weights.size > 0, shares.size > 0
    for feature in range(dims.size):
        dim, column = dims[feature], columns[feature]
        for sample in range(batch):
            bag = feature * batch + sample
            share = shares[bag] if shared else np.float32(1)
            for position in range(offsets[bag], offsets[bag + 1]):
                start = starts[inverse[position]]
                weight = weights[position] * share if weighted else share
                for j in range(dim):
                    sums[start + j] += weight * grad[sample, column + j]


@kernel
def take(values: np.ndarray, starts: np.ndarray, dims: np.ndarray, out: np.ndarray) -> None:
    """Copy rows together: float32 values, int64 [n] where each begins and its columns."""
    at = 0
    for i in range(starts.size):
        for j in range(dims[i]):
            out[at + j] = values[starts[i] + j]
        at += dims[i]


@kernel
def put(values: np.ndarray, starts: np.ndarray, dims: np.ndarray, out: np.ndarray) -> None:
    """Reverse `take`: write rows where they belong in `out`."""
    at = 0
    for i in range(starts.size):
        for j in range(dims[i]):
            out[starts[i] + j] = values[at + j]
        at += dims[i]


@kernel
def add(values: np.ndarray, starts: np.ndarray, dims: np.ndarray, out: np.ndarray) -> None:
    """As `put`, but add."""
    at = 0
    for i in range(starts.size):
        for j in range(dims[i]):
            out[starts[i] + j] += values[at + j]
        at += dims[i]


@kernel
def sgd(rows: np.ndarray, starts: np.ndarray, dims: np.ndarray, grads: np.ndarray, rate: Number) -> None:
    """w -= rate * g.

    Args:
        rows: float32 [V]; starts, dims: int64 [n], of the rows to update, each at most once.
        grads: float32, of these rows, one after the other.
        rate: float32, the learning rate.
    """
    at = 0
    for i in range(starts.size):
        start = starts[i]
        for j in range(dims[i]):
            rows[start + j] -= rate * grads[at + j]
        at += dims[i]


@kernel
def rowwise_adagrad(
    rows: np.ndarray,
    momentum: np.ndarray,
    slots: np.ndarray,
    starts: np.ndarray,
    dims: np.ndarray,
    grads: np.ndarray,
    rate: Number,
    eps: Number,
) -> None:
    """m += mean of g * g over the row; w -= rate / (sqrt(m) + eps) * g. momentum: float32 [slots]; others: as `sgd`."""
    at = 0
    for i in range(slots.size):
        start, dim = starts[i], dims[i]
        square = np.float32(0)
        for j in range(dim):
            square += grads[at + j] * grads[at + j]
        moment = momentum[slots[i]] + square / np.float32(dim)
        momentum[slots[i]] = moment
        factor = rate / (np.sqrt(moment) + eps)
        for j in range(dim):
            rows[start + j] -= factor * grads[at + j]
        at += dim


@kernel
def adam(
    rows: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    starts: np.ndarray,
    dims: np.ndarray,
    grads: np.ndarray,
    rate: Number,
    eps: Number,
    beta1: Number,
    beta2: Number,
    step: Number,
) -> None:
    """Adam of the touched rows alone. first, second: float32 [V], the moments; step: from 1; others: as `sgd`."""
    one = np.float32(1)
    mend1 = one / (one - beta1 ** np.float32(step))
    mend2 = one / (one - beta2 ** np.float32(step))
    at = 0
    for i in range(starts.size):
        start = starts[i]
        for j in range(dims[i]):
            k, g = start + j, grads[at + j]
            first[k] = beta1 * first[k] + (one - beta1) * g
            second[k] = beta2 * second[k] + (one - beta2) * g * g
            rows[k] -= rate * (first[k] * mend1) / (np.sqrt(second[k] * mend2) + eps)
        at += dims[i]
