"""Other compressors, each in its best setting for embedding rows that we found, behind one small contract.

All of them run on one thread and know the absolute bound of each table. A message holds all that its decoder needs
beside the shapes.
"""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch

from compression.kernel import kernels
from pipelines.errors import UserError

Array = np.ndarray[Any, Any]
PACKAGES = ("pysz", "zfpy", "blosc2", "pcodec")
kernel = kernels("codec-peers", Path(__file__).parent, ("peers",))


class Contender(Protocol):
    """Arrays are float32 [rows, dim], contiguous; a message is bytes or a uint8 array, valid until the next encode."""

    name: str
    bounded: bool
    """Whether it heeds the bounds."""

    def encode(self, arrays: list[Array], bounds: list[float]) -> list[Any]: ...

    def decode(self, messages: list[Any], outs: list[Array]) -> None: ...


def peers() -> list[Contender]:
    """All of them.

    Raises:
        UserError: one of their packages is missing.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        what = f"the peers {', '.join(missing)} are not installed"
        raise UserError(what, where="bench codec", fix="make setup, or pip install -e '.[bench]'")
    import blosc2

    blosc2.set_nthreads(1)
    torch.set_num_threads(1)
    lz4, zstd1, zstd3 = pa.Codec("lz4_raw"), pa.Codec("zstd", 1), pa.Codec("zstd", 3)
    return [
        Sz3("SZ3", "INTERP_LORENZO"),
        Sz3("SZ3, no prediction", "NOPRED"),
        Zfp(),
        NumpyZstd(zstd1),
        Quantised("quantise + zstd-1", *_arrow(zstd1), together=True),
        Quantised("quantise + zstd-3", *_arrow(zstd3), together=False),
        Quantised("quantise + LZ4", *_arrow(lz4), together=True),
        Quantised("quantise + blosc2", *_blosc2(), together=True),
        Quantised("quantise + pcodec", *_pcodec(), together=False),
        Fp16(),
        RowwiseInt8(),
    ]


class Sz3:
    """SZ3 in its default algorithm, or without prediction (Huffman and zstd), which serves embedding rows best."""

    bounded = True

    def __init__(self, name: str, algorithm: str) -> None:
        import pysz

        self.name, self._pysz = name, pysz
        self._algorithm = getattr(pysz.szAlgorithm, algorithm)

    def encode(self, arrays: list[Array], bounds: list[float]) -> list[Any]:
        messages = []
        for array, bound in zip(arrays, bounds, strict=True):
            config = self._pysz.szConfig(array.shape)
            config.errorBoundMode = self._pysz.szErrorBoundMode.ABS
            config.absErrorBound, config.cmprAlgo = bound, self._algorithm
            messages.append(self._pysz.sz.compress(array, config)[0])
        return messages

    def decode(self, messages: list[Any], outs: list[Array]) -> None:
        for message, out in zip(messages, outs, strict=True):
            np.copyto(out, self._pysz.sz.decompress(message, np.float32, out.shape)[0])


class Zfp:
    """ZFP with fixed accuracy, in two dimensions: in one it broke its bound."""

    name, bounded = "ZFP", True

    def __init__(self) -> None:
        import zfpy

        self._zfpy = zfpy

    def encode(self, arrays: list[Array], bounds: list[float]) -> list[Any]:
        return [self._zfpy.compress_numpy(a, tolerance=b) for a, b in zip(arrays, bounds, strict=True)]

    def decode(self, messages: list[Any], outs: list[Array]) -> None:
        for message, out in zip(messages, outs, strict=True):
            np.copyto(out, self._zfpy.decompress_numpy(message))


class NumpyZstd:
    """What a few lines of NumPy and pyarrow do: a quantiser of array operations, then zstd-1, a table at a time."""

    name, bounded = "NumPy + zstd-1", True

    def __init__(self, codec: Any) -> None:
        self._codec = codec

    def encode(self, arrays: list[Array], bounds: list[float]) -> list[Any]:
        messages = []
        for array, bound in zip(arrays, bounds, strict=True):
            codes = np.rint(array / np.float32(2 * bound))
            kind = np.int8 if np.abs(codes).max() < 128 else np.int32
            head = HEADER.pack(2 * bound, np.dtype(kind).itemsize)
            messages.append(head + self._codec.compress(codes.astype(kind), asbytes=True))
        return messages

    def decode(self, messages: list[Any], outs: list[Array]) -> None:
        for message, out in zip(messages, outs, strict=True):
            step, width = HEADER.unpack(message[: HEADER.size])
            data = self._codec.decompress(message[HEADER.size :], out.size * width)
            np.multiply(np.frombuffer(data, WIDTHS[width]).reshape(out.shape), np.float32(step), out=out)


HEADER = struct.Struct("<fB")
"""Of a quantised table: the step, and the bytes of a code."""
WIDTHS: dict[int, type] = {1: np.int8, 2: np.int16, 4: np.int32}


@dataclass
class Quantised:
    """Uniform quantisation to the narrowest integers that hold the codes, then a compressor."""

    name: str
    compress: Callable[[Array], Any]
    decompress: Callable[[Any, Array], Array]
    """(compressed, room for the result) -> the result."""
    together: bool
    """All tables in one stream: faster; or a stream a table: smaller."""
    bounded = True

    def __post_init__(self) -> None:
        self._room = np.empty(0, np.uint8)

    def encode(self, arrays: list[Array], bounds: list[float]) -> list[Any]:
        if self.together:
            return [self._encode(arrays, bounds)]
        return [self._encode([array], [bound]) for array, bound in zip(arrays, bounds, strict=True)]

    def decode(self, messages: list[Any], outs: list[Array]) -> None:
        if self.together:
            self._decode(messages[0], outs)
            return
        for message, out in zip(messages, outs, strict=True):
            self._decode(message, [out])

    def _encode(self, arrays: list[Array], bounds: list[float]) -> bytes:
        codes = self._buffer(4 * sum(a.size for a in arrays))
        head, at = b"", 0
        for array, bound in zip(arrays, bounds, strict=True):
            width = quantise(array.reshape(-1), bound, codes[at:])
            head += HEADER.pack(2 * bound, width)
            at += -(-array.size * width // 4) * 4
        return head + self.compress(_typed(codes[:at], arrays, width))

    def _decode(self, message: bytes, outs: list[Array]) -> None:
        end = HEADER.size * len(outs)
        heads = list(HEADER.iter_unpack(message[:end]))
        spans = [-(-out.size * width // 4) * 4 for out, (_, width) in zip(outs, heads, strict=True)]
        room = _typed(self._buffer(sum(spans))[: sum(spans)], outs, heads[0][1])
        codes, at = self.decompress(memoryview(message)[end:], room).view(np.uint8), 0
        for out, (step, width), span in zip(outs, heads, spans, strict=True):
            found: Array = codes[at : at + out.size * width].view(WIDTHS[width])
            _dequantise(found, np.float32(step), out.reshape(-1))
            at += span

    def _buffer(self, size: int) -> Array:
        if self._room.size < size:
            self._room = np.empty(size, np.uint8)
        return self._room


def _typed(codes: Array, arrays: list[Array], width: int) -> Array:
    """Codes of one table as integers, of several as bytes."""
    return codes.view(WIDTHS[width]) if len(arrays) == 1 else codes


def quantise(flat: Array, bound: float, room: Array) -> int:
    """Write codes, round(x / (2 bound)), of a float32 [n] array to `room` (uint8), as narrow as they can be.

    Returns:
        Bytes of a code: 1, 2 or 4.
    """
    inverse = np.float32(0.5 / bound)
    for width, kind in WIDTHS.items():
        reach = _quantise(flat, inverse, room[: flat.size * width].view(kind))
        if reach < 1 << (8 * width - 1):
            return width
    raise AssertionError("unreachable: a code has at most 32 bits")


@kernel
def _quantise(flat: Array, inverse: float, codes: Array) -> int:
    """Returns a number of as many bits as the longest code."""
    reach = np.int32(0)
    for i in range(np.uintp(flat.size)):
        code = np.int32(np.rint(flat[i] * inverse))
        codes[i] = code
        reach |= code ^ (code >> np.int32(31))
    return int(reach)


@kernel
def _dequantise(codes: Array, step: float, flat: Array) -> None:
    for i in range(np.uintp(codes.size)):
        flat[i] = np.float32(codes[i]) * step


Coders = tuple[Callable[[Array], Any], Callable[[Any, Array], Array]]


def _arrow(codec: Any) -> Coders:
    def decompress(data: Any, room: Array) -> Array:
        return np.frombuffer(codec.decompress(data, room.nbytes), np.uint8)

    return lambda codes: codec.compress(codes, asbytes=True), decompress


def _blosc2() -> Coders:
    """Bits of 16 neighbours shuffled, then zstd: of its filters and codecs the fastest that is still small."""
    import blosc2

    options = {"codec": blosc2.Codec.ZSTD, "clevel": 1, "filters": [blosc2.Filter.BITSHUFFLE], "typesize": 16}

    def decompress(data: Any, room: Array) -> Array:
        blosc2.decompress2(bytes(data), dst=room)
        return room

    return lambda codes: blosc2.compress2(codes, nthreads=1, **options), decompress


def _pcodec() -> Coders:
    from pcodec import ChunkConfig, DeltaSpec, ModeSpec, standalone

    config = ChunkConfig(
        compression_level=8, mode_spec=ModeSpec.classic(), delta_spec=DeltaSpec.no_op(), enable_8_bit=True
    )

    def decompress(data: Any, room: Array) -> Array:
        standalone.simple_decompress_into(bytes(data), room)
        return room

    return lambda codes: standalone.simple_compress(codes, config), decompress


class Fp16:
    """Half precision: no bound."""

    name, bounded = "fp16", False

    def encode(self, arrays: list[Array], bounds: list[float]) -> list[Any]:  # noqa: ARG002
        return [torch.from_numpy(a).half().numpy().view(np.uint8) for a in arrays]

    def decode(self, messages: list[Any], outs: list[Array]) -> None:
        for message, out in zip(messages, outs, strict=True):
            torch.from_numpy(out).copy_(torch.from_numpy(message.view(np.float16)))


class RowwiseInt8:
    """TorchRec's int8, a scale and an offset a row: no bound."""

    name, bounded = "int8 row-wise", False

    def __init__(self) -> None:
        import fbgemm_gpu  # noqa: F401

        self._encode = torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized
        self._decode = torch.ops.fbgemm.Fused8BitRowwiseQuantizedToFloat

    def encode(self, arrays: list[Array], bounds: list[float]) -> list[Any]:  # noqa: ARG002
        return [self._encode(torch.from_numpy(a)).numpy() for a in arrays]

    def decode(self, messages: list[Any], outs: list[Array]) -> None:
        for message, out in zip(messages, outs, strict=True):
            torch.from_numpy(out).copy_(self._decode(torch.from_numpy(message)))
