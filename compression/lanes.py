"""1024 values packed in 32 lanes and back, in vector registers.

A full block is packed by LLVM's vector operations: in Numba's own loops, over lanes in a loop over groups, each group
costs a check that the arrays do not overlap and a trip through memory. The loop over groups is unrolled so that each
of its branches always goes the same way for blocks of one width.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_LANES = 32
_WORD = ir.IntType(32)
_ROW = ir.VectorType(_WORD, _LANES)
_32 = ir.Constant(_WORD, 32)


def _row(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Pointer to the 32 words of an array from `index`."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _ROW.as_pointer())


def _group_row(context: Any, builder: Any, kind: Any, array: Any, first: Any, group: int) -> Any:
    return _row(context, builder, kind, array, builder.add(first, ir.Constant(first.type, group * _LANES)))


def _all_lanes(builder: Any, word: Any) -> Any:
    undefined = ir.Constant(_ROW, ir.Undefined)
    one = builder.insert_element(undefined, word, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(_ROW, [0] * _LANES))


def _group_shift(builder: Any, width: Any, group: int) -> Any:
    """First bit of a group in its word."""
    return builder.and_(builder.mul(width, ir.Constant(_WORD, group)), ir.Constant(_WORD, 31))


def _next_row(builder: Any, at: Any) -> Any:
    """The pointer in `at`, which moves on by a row."""
    row = builder.load(at)
    builder.store(builder.gep(row, [ir.Constant(_WORD, 1)]), at)
    return row


@intrinsic
def pack_lanes(typing: Any, values: Any, first: Any, width: Any, words: Any, at: Any) -> Any:  # noqa: ARG001
    """Pack 1024 values from index `first` into 32*width words from `at`; width 1 to 31, no checks."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values_kind, _, _, words_kind, _ = signature.args
        values, first, width, words, at = args
        width = builder.trunc(width, _WORD)
        to = cgutils.alloca_once_value(builder, _row(context, builder, words_kind, words, at))
        open_row = cgutils.alloca_once_value(builder, ir.Constant(_ROW, [0] * _LANES))
        for group in range(32):
            value = builder.load(_group_row(context, builder, values_kind, values, first, group), align=4)
            shift = _group_shift(builder, width, group)
            row = builder.or_(builder.load(open_row), builder.shl(value, _all_lanes(builder, shift)))
            builder.store(row, open_row)
            with builder.if_then(builder.icmp_unsigned(">=", builder.add(shift, width), _32)):
                builder.store(row, _next_row(builder, to), align=4)
                # The bits that did not fit; none where the group ends with the word.
                builder.store(builder.lshr(value, _all_lanes(builder, builder.sub(_32, shift))), open_row)
        return context.get_dummy_value()

    return types.void(values, types.uintp, types.uintp, words, types.uintp), build


@intrinsic
def unpack_lanes(typing: Any, words: Any, at: Any, width: Any, out: Any, first: Any) -> Any:  # noqa: ARG001
    """Reverse `pack_lanes`, into `out` from index `first`; width 1 to 31, no checks."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words_kind, _, _, out_kind, _ = signature.args
        words, at, width, out, first = args
        width = builder.trunc(width, _WORD)
        one = ir.Constant(_WORD, 1)
        mask = _all_lanes(builder, builder.sub(builder.shl(one, width), one))
        source = cgutils.alloca_once_value(builder, _row(context, builder, words_kind, words, at))
        open_row = cgutils.alloca_once(builder, _ROW)
        value = cgutils.alloca_once(builder, _ROW)
        for group in range(32):
            shift = _group_shift(builder, width, group)
            with builder.if_then(builder.icmp_unsigned("==", shift, ir.Constant(_WORD, 0))):
                builder.store(builder.load(_next_row(builder, source), align=4), open_row)
            builder.store(builder.lshr(builder.load(open_row), _all_lanes(builder, shift)), value)
            with builder.if_then(builder.icmp_unsigned(">", builder.add(shift, width), _32)):
                row = builder.load(_next_row(builder, source), align=4)
                high = builder.shl(row, _all_lanes(builder, builder.sub(_32, shift)))
                builder.store(builder.or_(builder.load(value), high), value)
                builder.store(row, open_row)
            to = _group_row(context, builder, out_kind, out, first, group)
            builder.store(builder.and_(builder.load(value), mask), to, align=4)
        return context.get_dummy_value()

    return types.void(words, types.uintp, types.uintp, out, types.uintp), build
