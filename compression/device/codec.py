"""The codec on a device: chains that have kernels there, all others through the host."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from compression import wire
from compression.codec import Bound, Codec, Relative
from compression.device.backend import Arena, Backend
from compression.device.records import Coding, Tables
from compression.device.tables import TableDecoder, TableEncoder
from compression.quantize import check_bound
from compression.wire import BFLOAT16, BITPACK, CHAINS, DEDUP, HUFFMAN, RAW

ON_DEVICE = (RAW, BITPACK, DEDUP, HUFFMAN)
"""Chains that kernels encode and decode."""
_SEEDS = 1 << 64


class Matrix(NamedTuple):
    """A contiguous table on a device; dtype as on the wire."""

    address: int
    rows: int
    columns: int
    dtype: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.rows * self.columns * wire.ITEM_BYTES[self.dtype]


class Payload(NamedTuple):
    """Bytes on a device, at a multiple of 4."""

    address: int
    size: int


class DeviceCodec:
    """`Codec` for tables on a device: the same payloads, many of them in one call.

    Chains rans and lossless, bounds of 0 and below 2^-100 and dtypes of other than float32, float16 and bfloat16
    have no kernel: such a message goes through the host and the CPU codec, and comes out the same.

    Attributes:
        on_host: messages so far that went through the host.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._encoder, self._decoder = TableEncoder(backend), TableDecoder(backend)
        self._arena, self._host = Arena(backend), Codec()
        self.on_host = 0

    @property
    def size(self) -> int:
        """Bytes of device memory held."""
        return self._encoder.arena.size + self._decoder.arena.size + self._arena.size

    @property
    def arenas(self) -> tuple[Arena, ...]:
        """What holds the memory."""
        return self._encoder.arena, self._decoder.arena, self._arena

    def encode(
        self,
        messages: Sequence[Sequence[Matrix]],
        bounds: Bound | Sequence[Bound],
        chain: str | Sequence[str] = "bitpack",
        *,
        stochastic: int | None = None,
    ) -> list[Payload]:
        """Encode each message as `Codec.encode` does.

        Args:
            messages: tables of each.
            bounds, chain: one for all tables, or one for each table of all messages, in their order. Chain "auto" is
                "bitpack".
            stochastic: a seed, as in `Codec.encode`, the same for all messages.

        Returns:
            One a message, valid until the next call of `encode`.

        Raises:
            ValueError: a bound or chain is none, or there are not as many as tables.
        """
        ends = np.cumsum([0, *map(len, messages)]).tolist()
        wanted = _wanted(_each(bounds, ends[-1], "bounds"), _each(chain, ends[-1], "chains"), stochastic)
        of = [wanted.part(start, stop) for start, stop in pairwise(ends)]
        here = [
            i for i, message in enumerate(messages) if of[i].on_device and all(m.dtype <= BFLOAT16 for m in message)
        ]
        made = self._encoder.encode(_tables([messages[i] for i in here]), _coding([of[i] for i in here]))
        out = self._encoder.arena.get(self._encoder.OUT, 0)
        found = {
            i: Payload(out + start, size)
            for i, start, size in zip(here, made.starts.tolist(), made.sizes.tolist(), strict=True)
        }
        left = sorted({*range(len(messages))} - {*here} | {here[k] for k in made.unfinished})
        encoded = [self._encode_on_host(messages[i], of[i]) for i in left]
        at = self._arena.get("host", sum(data.size for data in encoded))
        for i, data in zip(left, encoded, strict=True):
            self._backend.upload(at, data)
            found[i] = Payload(at, data.size)
            at += data.size
        return [found[i] for i in range(len(messages))]

    def decode(self, payloads: Sequence[Payload], outs: Sequence[Sequence[Matrix]]) -> None:
        """Decode each payload into the tables of its message.

        Raises:
            CorruptPayloadError: as `Codec.decode`.
            ValueError: not as many payloads as messages, or one that does not begin at a multiple of 4.
        """
        if any(payload.address % 4 for payload in payloads):
            raise ValueError("a payload begins at a multiple of 4 bytes")
        mine = [i for i, message in enumerate(outs) if all(one.dtype <= BFLOAT16 for one in message)]
        wrong = self._decoder.decode(
            _tables([outs[i] for i in mine]),
            np.array([payloads[i].address for i in mine], np.uint64),
            np.array([payloads[i].size for i in mine], np.int64),
        )
        others = set(range(len(outs))) - set(mine)
        for i in sorted(others | {mine[k] for k in wrong}):
            self._decode_on_host(payloads[i], outs[i])

    def _encode_on_host(self, message: Sequence[Matrix], wanted: _Wanted) -> NDArray[np.uint8]:
        self.on_host += 1
        arrays = [_array(one, self._backend.download(one.address, one.size)) for one in message]
        return self._host.encode(arrays, wanted.bounds, wanted.chains, stochastic=wanted.stochastic).copy()

    def _decode_on_host(self, payload: Payload, outs: Sequence[Matrix]) -> None:
        self.on_host += 1
        data = [np.empty(one.size, np.uint8) for one in outs]
        raw = self._backend.download(payload.address, payload.size)
        self._host.decode(raw, [_array(one, bytes_) for one, bytes_ in zip(outs, data, strict=True)])
        for one, bytes_ in zip(outs, data, strict=True):
            self._backend.upload(one.address, bytes_)


class _Wanted(NamedTuple):
    """How tables are to be encoded, an entry a table."""

    bounds: list[Bound]
    chains: list[str]
    stochastic: int | None

    def part(self, start: int, stop: int) -> _Wanted:
        return _Wanted(self.bounds[start:stop], self.chains[start:stop], self.stochastic)

    @property
    def on_device(self) -> bool:
        """Whether kernels know all the chains."""
        return all(CHAINS[name] in ON_DEVICE for name in set(self.chains))


def _wanted(bounds: list[Bound], chains: list[str], stochastic: int | None) -> _Wanted:
    """Raises ValueError: a bound or chain is none."""
    chains = ["bitpack" if name == "auto" else name for name in chains]
    for name in set(chains) - set(CHAINS):
        raise ValueError(f"no chain {name!r}: auto, {', '.join(CHAINS)}")
    for bound in set(bounds):
        check_bound(bound.share if isinstance(bound, Relative) else bound)
    return _Wanted(bounds, chains, stochastic)


def _each(given: Any, count: int, what: str) -> list[Any]:
    if isinstance(given, (str, Relative)) or not hasattr(given, "__len__"):
        return [given] * count
    found = list(cast(Sequence[Any], given))
    if len(found) != count:
        raise ValueError(f"{len(found)} {what} for {count} tables")
    return found


def _coding(messages: list[_Wanted]) -> Coding:
    bounds = [bound for one in messages for bound in one.bounds]
    # The number of a table in its message is added to the seed, as `Codec.encode` does.
    seeds = [(one.stochastic or 0) + i for one in messages for i in range(len(one.bounds))]
    stochastic = any(one.stochastic is not None for one in messages)
    return Coding(
        np.array([bound.share if isinstance(bound, Relative) else bound for bound in bounds], np.float64),
        np.array([isinstance(bound, Relative) for bound in bounds], np.bool_),
        np.array([CHAINS[name] for one in messages for name in one.chains], np.int64),
        np.array([seed % _SEEDS for seed in seeds], np.uint64) if stochastic else None,
    )


def _tables(messages: Sequence[Sequence[Matrix]]) -> Tables:
    flat = [one for message in messages for one in message]
    rows, columns, dtypes = np.array([one[1:] for one in flat], np.int64).reshape(-1, 3).T.copy()
    return Tables(
        np.array([one.address for one in flat], np.uint64),
        rows,
        columns,
        dtypes,
        np.repeat(np.arange(len(messages)), [len(message) for message in messages]),
        len(messages),
    )


def _array(one: Matrix, raw: NDArray[np.uint8]) -> Any:
    """Bytes as the CPU codec takes a table."""
    shape = one.rows, one.columns
    if one.dtype != BFLOAT16:
        return raw.view(wire.DTYPES[one.dtype]).reshape(shape)
    import torch

    return torch.from_numpy(raw.view(np.int16).reshape(shape)).view(torch.bfloat16)
