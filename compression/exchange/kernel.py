"""How this package's functions are compiled, and machine instructions that Numba has no name for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from compression.kernel import kernels

Number = Any
"""A scalar whose width Numba infers; a type checker takes other rules for it."""

kernel = kernels("exchange", Path(__file__).parent, ("kernel", "blocks", "distinct", "sums"))
"""Compiles the functions of this package."""

inline = numba.njit(nogil=True, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Compiles a function into the compiled ones that call it: for a row of 16 values a call costs as much as the work."""


def check_arrays(**arrays: tuple[np.ndarray, type]) -> None:
    """Refuse arrays that the compiled functions, which trust their arguments, are not made for.

    Args:
        arrays: name = (array, dtype).

    Raises:
        TypeError: another dtype.
        ValueError: not contiguous.
    """
    for name, (array, dtype) in arrays.items():
        if array.dtype != dtype:
            raise TypeError(f"{name} is {array.dtype}, not {np.dtype(dtype)}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not contiguous")


@intrinsic
def ones(typing: Any, word: Any) -> Any:  # noqa: ARG001
    """Bits of a uint64 that are 1."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), build


@intrinsic
def lowest(typing: Any, word: Any) -> Any:  # noqa: ARG001
    """Place of the lowest 1 in a uint64 that has one."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), build


@intrinsic
def fused(typing: Any, a: Any, b: Any, c: Any) -> Any:  # noqa: ARG001
    """a * b + c of float32, rounded once."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), build
