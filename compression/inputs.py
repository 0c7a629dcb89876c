"""NumPy arrays and torch tensors as the memory that compiled functions work on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compression.quantize import dither, value_range
from compression.wire import BFLOAT16, DTYPES, FLOAT16, FLOAT32, ITEM_BYTES

BLOCK = 1 << 16
"""Values of 16-bit floats that are widened at a time."""
_ALL = 0xFFFFFFFFFFFFFFFF


class Source:
    """A table to encode, contiguous.

    Attributes:
        dtype: its number on the wire; rows, columns, row_bytes, size: its shape.
        raw_address: of its memory.
        values: float32 [size] of a float32 table; else None.
    """

    def __init__(self, dtype: int, array: NDArray[Any]) -> None:
        self.dtype, self._array = dtype, array
        self.rows, self.columns = array.shape
        self.row_bytes = self.columns * ITEM_BYTES[dtype]
        self.size = self.rows * self.columns
        self.raw_address = array.__array_interface__["data"][0]
        self.values: NDArray[np.float32] | None = array.reshape(-1) if dtype == FLOAT32 else None
        self._dither: tuple[tuple[np.float32, np.float32, np.float32], int] | None = None

    @property
    def raw(self) -> NDArray[np.uint8]:
        """Its memory."""
        return self._array.reshape(-1).view(np.uint8)

    def value_range(self) -> float:
        """Largest minus smallest finite value, in float64."""
        low, high = math.inf, -math.inf
        step = self.size if self.dtype == FLOAT32 else BLOCK
        for start in range(0, self.size, max(step, 1)):
            block = self._widened(start, min(start + step, self.size))
            pair = np.array(value_range(block.__array_interface__["data"][0], block.size), np.int32)
            if not pair.any() and not np.isfinite(block).any():
                continue  # (0, 0) stands for none, and is no value of the table
            least, most = pair.view(np.float32).astype(np.float64)
            low, high = min(low, least), max(high, most)
        return float(max(high - low, 0.0))

    def dithered(self, grid: tuple[np.float32, np.float32, np.float32], seed: int) -> Source:
        """The same table with values rounded at random; see `quantize.dither`. For 16-bit floats the decoded value is
        rounded once more, to the nearest, to what they can hold."""
        other = Source(self.dtype, self._array)
        if self.values is None:
            other._dither = grid, seed
        else:
            other.values = np.empty_like(self.values)
            dither(self.raw_address, 0, *grid, np.uint64(seed & _ALL), other.values)
        return other

    def rows_as_values(self, first: int, last: int, grid: NDArray[np.float32]) -> NDArray[np.float32]:
        """Float32 of some rows, to encode. Of 16-bit floats it is a copy, with NaN where the decoded value breaks the
        bound once it is rounded to 16 bits, so that such a value is sent as it is."""
        start, stop = first * self.columns, last * self.columns
        if self.values is not None:
            return self.values[start:stop]
        found = np.empty(stop - start, np.float32)
        for at in range(start, stop, BLOCK):
            end = min(at + BLOCK, stop)
            found[at - start : end - start] = self._checked(at, end, grid)
        return found

    def _checked(self, start: int, stop: int, grid: NDArray[np.float32]) -> NDArray[np.float32]:
        true = values = self._widened(start, stop)
        step, inverse, limit = grid
        if self._dither:
            whole, seed = self._dither
            values, limit = np.empty_like(true), whole[2]
            dither(true.ctypes.data, start, *whole, np.uint64(seed & _ALL), values)
        with np.errstate(all="ignore"):
            decoded = from_half(to_half(np.rint(values * inverse) * step, self.dtype), self.dtype)
            held = np.abs(true.astype(np.float64) - decoded) <= float(limit)
        return np.where(held, values, np.float32(np.nan))

    def _widened(self, start: int, stop: int) -> NDArray[np.float32]:
        if self.values is not None:
            return self.values[start:stop]
        return from_half(self.raw.view(np.uint16)[start:stop], self.dtype)


class Output:
    """Where a table is decoded to; `finish` after all of it is there."""

    def __init__(self, dtype: int, target: NDArray[Any]) -> None:
        self.dtype, self._target = dtype, target
        self._owner = target if target.flags.c_contiguous else np.empty_like(target, order="C")
        self.rows, self.columns = target.shape
        self.row_bytes = self.columns * ITEM_BYTES[dtype]
        self.raw_address = self._owner.__array_interface__["data"][0]
        self._rounded: dict[int, NDArray[np.float32]] = {}

    @property
    def raw(self) -> NDArray[np.uint8]:
        """Its memory, or that of a contiguous stand-in."""
        return self._owner.reshape(-1).view(np.uint8)

    def address(self, row: int, rows: int) -> int:
        """Of float32 [rows * columns] for these rows to be decoded to."""
        if self.dtype == FLOAT32:
            return self.raw_address + row * self.row_bytes
        values = np.empty(rows * self.columns, np.float32)
        self._rounded[row] = values
        return values.ctypes.data

    def round(self, row: int, where: NDArray[np.uint32], bits: NDArray[np.uint32]) -> None:
        """Round decoded rows to 16 bits and put in the bits that stand for some of their values."""
        values, start = self._rounded.pop(row), row * self.columns
        target = self.raw.view(np.uint16)[start : start + values.size]
        target[:] = to_half(values, self.dtype)
        target[where] = bits

    def finish(self) -> None:
        """Copy to where the caller wants it, if that is no contiguous memory."""
        if self._owner is not self._target:
            self._target[...] = self._owner


def to_half(values: NDArray[np.float32], dtype: int) -> NDArray[np.uint16]:
    """The bits of float32 rounded to float16 or bfloat16, half to even."""
    if dtype == FLOAT16:
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    import torch

    return torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def from_half(bits: NDArray[np.uint16], dtype: int) -> NDArray[np.float32]:
    """Float32 of the bits of float16 or bfloat16, exact."""
    if dtype == FLOAT16:
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def source(table: Any) -> Source:
    """Take a table to encode.

    Raises:
        TypeError: a dtype that has no number on the wire, or a tensor that is not on the CPU.
        ValueError: it is not a matrix.
    """
    dtype, array = _memory(table)
    if array.ndim != 2:
        raise ValueError(f"a table has rows and columns, this one has shape {tuple(array.shape)}")
    return Source(dtype, array if array.flags.c_contiguous else np.ascontiguousarray(array))


def output(target: Any) -> Output:
    """Take an array or tensor to decode to.

    Raises:
        TypeError, ValueError: as `source`; or it is not writeable.
    """
    dtype, array = _memory(target)
    if array.ndim != 2:
        raise ValueError(f"a table has rows and columns, this output has shape {tuple(array.shape)}")
    if not array.flags.writeable:
        raise ValueError("the output is read-only")
    repeated = [n for step, n in zip(array.strides, array.shape, strict=True) if step == 0 and n > 1]
    if repeated and array.size:
        raise ValueError("elements of the output share memory, as those of an expanded tensor do")
    return Output(dtype, array)


_NUMBERS = {np.dtype(name): number for number, name in enumerate(DTYPES) if name != "bfloat16"}


def _memory(table: Any) -> tuple[int, NDArray[Any]]:
    """Number of the dtype, and an array on the same memory; of bfloat16, as int16."""
    if hasattr(table, "detach"):
        return _tensor_memory(table.detach())
    array = np.asarray(table)
    number = _NUMBERS.get(array.dtype)
    if number is None:
        raise TypeError(f"dtype {array.dtype.str} cannot be encoded: {', '.join(DTYPES)}, in the machine's byte order")
    return number, array


def _tensor_memory(tensor: Any) -> tuple[int, NDArray[Any]]:
    import torch

    if tensor.device.type != "cpu":
        raise TypeError(f"this codec takes CPU tensors, this one is on {tensor.device}: use tensor.cpu()")
    if tensor.dtype == torch.bfloat16:
        return BFLOAT16, tensor.view(torch.int16).numpy()
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise TypeError(f"dtype {name} cannot be encoded: {', '.join(DTYPES)}")
    return DTYPES.index(name), tensor.numpy()
