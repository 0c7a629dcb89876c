"""Arrow columns to parsed blocks, by the same rules as text: a value counts as its text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import UserError
from pipelines.kernel import kernel
from pipelines.keys import MISSING_KEY, dense_value, key_of, number_of
from pipelines.layout import DENSE, ITEM, KEY, LABEL, LIST, MASK, Fields, Layout
from pipelines.parse import MAX_BAD, BadLine, Block
from pipelines.tokens import is_sentinel, join_ranges, split_list


def to_block(arrays: list[pa.Array | None], layout: Layout, n: int, first_row: int) -> tuple[Block, list[BadLine], int]:
    """The rows of one Arrow batch.

    Args:
        arrays: one a field of the layout, None for those it skips.
        n: rows.
        first_row: number of the first row in its file, from 1.

    Returns:
        The good rows, the first bad rows, the number of all bad rows.
    """
    fields = layout.fields
    block = Block(
        label=np.zeros(n, np.uint8),
        dense=np.empty((layout.n_dense, n), np.float32),
        keys=np.empty((layout.n_one_hot, n), np.uint64),
        lengths=np.zeros((layout.n_lists, n), np.int32),
        values=[np.empty(0, np.uint64)] * layout.n_lists,
    )
    item_keys = np.empty((n, fields.item_mask.size), np.uint64)
    masks = np.ones((n, fields.kind.size), np.bool_)
    bad: dict[int, str] = {}
    for f, array in enumerate(arrays):
        kind, target = fields.kind[f], fields.target[f]
        if array is None:
            continue
        sentinels = fields.sentinels[fields.sentinel_start[f] : fields.sentinel_start[f + 1]]
        if kind == KEY:
            block.keys[target] = keys_of(array, bool(fields.is_hex[f]), sentinels)
        elif kind == ITEM:
            item_keys[:, target] = keys_of(array, bool(fields.is_hex[f]), sentinels)
        elif kind == LIST:
            lists = _lists(array, int(fields.list_separator[f]), bool(fields.is_hex[f]), sentinels)
            block.values[target], block.lengths[target] = lists
        else:
            numbers, wrong = _numbers(array, sentinels)
            if kind == DENSE:
                _transform(numbers, block.dense[target])
            elif kind == LABEL:
                wrong |= ~np.isin(numbers, (0.0, 1.0))
                block.label[:] = numbers == 1.0
            elif kind == MASK:
                masks[:, f] = numbers != 0.0
            for row in np.flatnonzero(wrong):
                wanted = "0 or 1" if kind == LABEL else "a number"
                bad.setdefault(int(row), f"column {layout.names[f]} is {array[row].as_py()!r}, not {wanted}")
    for r, target in enumerate(fields.range_list):
        block.values[target], block.lengths[target] = _ranges(fields, r, item_keys, masks)
    report = [BadLine(first_row + row, bad[row]) for row in sorted(bad)[:MAX_BAD]]
    return _without(block, np.array(sorted(bad), np.int64)) if bad else block, report, len(bad)


def keys_of(array: pa.Array, is_hex: bool, sentinels: np.ndarray) -> np.ndarray:
    """uint64 keys of an Arrow array of strings, integers or anything with a text form; null is missing."""
    offsets, data = _text(array)
    out = np.empty(len(array), np.uint64)
    _key_kernel(offsets, data, is_hex, sentinels, out)
    return out


def _text(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(int64 [N + 1] offsets, uint8 bytes) of the values as text; null becomes empty."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not pa.types.is_large_binary(array.type):
        if pa.types.is_nested(array.type):
            raise UserError(f"a column of type {array.type} is neither a number nor text", fix="name it under `lists:`")
        is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
        array = array if is_text or pa.types.is_binary(array.type) else array.cast(pa.string())
        array = array.cast(pa.large_binary())
    array = pc.fill_null(array, b"") if array.null_count else array
    _, offsets, data = array.buffers()
    at = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return at, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)


def _numbers(array: pa.Array, sentinels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(float64 values with NaN for missing, bool wrong) of a column of numbers or of text."""
    kind = array.type
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if pa.types.is_null(kind):
        return np.full(len(array), np.nan), np.zeros(len(array), np.bool_)
    if numeric and sentinels.size == 0:
        values = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.array(values, np.float64), np.isinf(values)
    values, wrong = np.empty(len(array), np.float64), np.empty(len(array), np.bool_)
    offsets, data = _text(array)
    _number_kernel(offsets, data, sentinels, values, wrong)
    return values, wrong


def _lists(array: pa.Array, separator: int, is_hex: bool, sentinels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(keys, int32 lengths) of a column of lists or of separated text; missing elements are left out."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        keys = keys_of(array.flatten(), is_hex, sentinels)
        here = keys != MISSING_KEY
        row = np.repeat(np.arange(len(array)), lengths)
        return keys[here], np.bincount(row[here], minlength=len(array)).astype(np.int32)
    offsets, data = _text(array)
    out, lengths = np.empty(data.size // 2 + len(array) + 1, np.uint64), np.empty(len(array), np.int32)
    used = _list_kernel(offsets, data, separator, is_hex, sentinels, out, lengths)
    return out[:used], lengths


def _ranges(fields: Fields, r: int, item_keys: np.ndarray, masks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(keys, int32 lengths) of spread list r."""
    n = len(item_keys)
    size = int(fields.range_start[r + 1] - fields.range_start[r])
    values = np.empty((int(fields.range_list.max()) + 1, n * size), np.uint64)
    used = np.zeros(len(values), np.int64)
    ends = np.empty(n, np.int64)
    _range_kernel(fields, r, item_keys, masks, values, used, ends)
    to = fields.range_list[r]
    return values[to, : used[to]], np.diff(ends, prepend=0).astype(np.int32)


def _without(block: Block, rows: np.ndarray) -> Block:
    keep = np.ones(len(block.label), np.bool_)
    keep[rows] = False
    values = [v[np.repeat(keep, lengths)] for v, lengths in zip(block.values, block.lengths, strict=True)]
    return Block(block.label[keep], block.dense[:, keep], block.keys[:, keep], block.lengths[:, keep], values)


@kernel
def _key_kernel(offsets: np.ndarray, data: np.ndarray, is_hex: bool, sentinels: np.ndarray, out: np.ndarray) -> None:
    for i in range(out.size):
        s, e = offsets[i], offsets[i + 1]
        out[i] = MISSING_KEY if is_sentinel(data, s, e, sentinels) else key_of(data, s, e, is_hex)


@kernel
def _number_kernel(
    offsets: np.ndarray, data: np.ndarray, sentinels: np.ndarray, values: np.ndarray, wrong: np.ndarray
) -> None:
    for i in range(values.size):
        s, e = offsets[i], offsets[i + 1]
        wrong[i] = False
        values[i] = np.nan
        if s < e and not is_sentinel(data, s, e, sentinels):
            ok, values[i] = number_of(data, s, e)
            wrong[i] = not ok


@kernel
def _transform(values: np.ndarray, out: np.ndarray) -> None:
    for i in range(values.size):
        out[i] = dense_value(values[i])


@kernel
def _list_kernel(
    offsets: np.ndarray,
    data: np.ndarray,
    separator: int,
    is_hex: bool,
    sentinels: np.ndarray,
    out: np.ndarray,
    lengths: np.ndarray,
) -> int:
    used = 0
    for i in range(lengths.size):
        before = used
        used = split_list(data, offsets[i], offsets[i + 1], separator, is_hex, sentinels, out, used)
        lengths[i] = used - before
    return used


@kernel
def _range_kernel(
    fields: Fields,
    r: int,
    item_keys: np.ndarray,
    masks: np.ndarray,
    values: np.ndarray,
    used: np.ndarray,
    ends: np.ndarray,
) -> None:
    for i in range(ends.size):
        join_ranges(fields, r, item_keys[i], masks[i], values, used)
        ends[i] = used[fields.range_list[r]]
