"""Tables of NumPy and PyTorch through the kernels, on a device of the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from compression.device.codec import DeviceCodec, Matrix, Payload
from compression.inputs import source
from tests.cuda_on_cpu.device import CpuDevice


class OnCpu(CpuDevice):
    """A device with a codec."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.codec = DeviceCodec(self)

    def matrix(self, table: Any) -> tuple[Any, Matrix]:
        """A copy of a table in device memory of just its size: what holds it, and how kernels are told of it."""
        one = source(table)
        memory = self.put(one.raw)
        return memory, Matrix(memory.address, one.rows, one.columns, one.dtype)

    def encode(
        self, messages: Sequence[Sequence[Any]], bounds: Any, chain: Any = "bitpack", **more: Any
    ) -> list[bytes]:
        pairs = [[self.matrix(table) for table in message] for message in messages]
        payloads = self.codec.encode([[pair[1] for pair in message] for message in pairs], bounds, chain, **more)
        return [self.download(payload.address, payload.size).tobytes() for payload in payloads]

    def decode(self, payloads: Sequence[bytes], likes: Sequence[Sequence[Any]]) -> list[list[np.ndarray]]:
        """The bytes of the tables that payloads hold, uint8 each, where `likes` have their shapes and dtypes."""
        data = [self.put(np.frombuffer(payload, np.uint8)) for payload in payloads]
        pairs = [[self.matrix(spoiled(table)) for table in message] for message in likes]
        self.codec.decode(
            [Payload(memory.address, len(payload)) for memory, payload in zip(data, payloads, strict=True)],
            [[pair[1] for pair in message] for message in pairs],
        )
        return [[self.download(memory.address, one.size) for memory, one in message] for message in pairs]


def spoiled(table: Any) -> Any:
    """Other values in the same shape and dtype."""
    out = (
        torch.zeros(table.shape, dtype=table.dtype)
        if isinstance(table, torch.Tensor)
        else np.zeros_like(table, order="C")
    )
    source(out).raw[:] = 0x5C
    return out


def raw(table: Any) -> np.ndarray:
    return source(table).raw
