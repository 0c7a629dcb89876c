"""Memory by address, and eight bytes at any place of an array at once, for streams of bits. Little-endian only."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic


def _bytes_at(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    start = builder.gep(builder.bitcast(data, ir.IntType(8).as_pointer()), [at])
    return builder.bitcast(start, ir.IntType(64).as_pointer())


@intrinsic
def load8(typingctx: Any, words: Any, at: Any) -> Any:
    """The 8 bytes of an array from byte `at` on as a uint64. No bounds check."""
    del typingctx, at

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_bytes_at(context, builder, signature.args[0], *args), align=1)

    return types.uint64(words, types.uint64), generate


@intrinsic
def store8(typingctx: Any, words: Any, at: Any, value: Any) -> Any:
    """Stores a uint64 in the 8 bytes of an array from byte `at` on. No bounds check."""
    del typingctx, at, value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _bytes_at(context, builder, signature.args[0], *args[:2]), align=1)
        return context.get_dummy_value()

    return types.void(words, types.uint64, types.uint64), generate


@intrinsic
def pointer(typingctx: Any, address: Any) -> Any:
    """An address as a pointer, for `carray`."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.voidptr(address), generate
