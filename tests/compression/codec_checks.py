"""What the tests of the codec share: the bound judged as it is promised, inputs, and payloads that lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from compression import Codec
from compression.checksum import checksum
from compression.wire import BITPACK, CHAINS, HEADER

LOSSY = tuple(name for name, number in CHAINS.items() if number >= BITPACK)
CANARY = 0xA5
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@contextmanager
def flushing() -> Iterator[None]:
    """Subnormal numbers count as 0 on this thread, as PyTorch lets users choose."""
    assert torch.set_flush_denormal(True), "this processor cannot flush subnormal numbers"
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def bits_of(table: Any) -> np.ndarray:
    """The bytes of a table [rows, columns] as unsigned integers, one a value."""
    if isinstance(table, torch.Tensor):
        table = table.detach()
        table = (table.view(torch.int16) if table.dtype == torch.bfloat16 else table).numpy()
    table = np.ascontiguousarray(table)
    return table.view(f"u{table.dtype.itemsize}")


def as_float64(table: Any) -> np.ndarray:
    """Exact values. To be called where subnormals are not flushed."""
    if isinstance(table, torch.Tensor):
        return table.detach().to(torch.float64).numpy()
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.asarray(table).astype(np.float64)


def kept(before: Any, after: Any, bound: float) -> np.ndarray:
    """Whether each value came back as promised: a finite one within the bound, in float64 and without slack, any other
    and -0.0 bit for bit."""
    x, y = as_float64(before), as_float64(after)
    with np.errstate(invalid="ignore"):
        near = np.abs(x - y) <= bound
    same = bits_of(before) == bits_of(after)
    exact = ~np.isfinite(x) | ((x == 0) & np.signbit(x))
    return np.where(exact, same, near)


def assert_kept(before: Any, after: Any, bound: float) -> None:
    good = kept(before, after, bound)
    if not good.all():
        at = tuple(np.argwhere(~good)[0])
        x, y = as_float64(before)[at], as_float64(after)[at]
        raise AssertionError(f"{(~good).sum()} of {good.size} values, first {x!r} came back as {y!r}, bound {bound!r}")


def assert_same(before: Any, after: Any) -> None:
    assert np.array_equal(bits_of(before), bits_of(after))


def empty_like(table: Any) -> Any:
    return (
        torch.empty_like(table, requires_grad=False)
        if isinstance(table, torch.Tensor)
        else np.empty(table.shape, table.dtype)
    )


def round_trip(codec: Codec, table: Any, bound: Any, chain: str = "auto", **options: Any) -> tuple[bytes, Any]:
    """(payload, decoded table)."""
    payload = codec.encode([table], bound, chain, **options).tobytes()
    out = empty_like(table)
    codec.decode(payload, [out])
    return payload, out


def check_all(codec: Codec, table: Any, bound: float, chains: tuple[str, ...] = tuple(CHAINS)) -> None:
    """The table comes back within the bound by each chain."""
    for chain in chains:
        assert_kept(table, round_trip(codec, table, bound, chain)[1], bound)


def trained(rows: int, columns: int, seed: int = 0, distinct: int | None = None, scale: float = 0.1) -> np.ndarray:
    """Float32 rows as of a trained table: correlated columns, and rows that repeat."""
    rng = np.random.default_rng(seed)
    distinct = max(rows // 2, 1) if distinct is None else distinct
    mixed = rng.standard_normal((distinct, columns)) @ (
        rng.standard_normal((columns, columns)) / max(columns, 1) ** 0.5
    )
    return (scale * (mixed + 0.3 * rng.standard_normal((distinct, columns))))[rng.integers(0, distinct, rows)].astype(
        np.float32
    )


def noise(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Float32 [rows, columns] of random bits."""
    bits = np.random.default_rng(seed).integers(0, 2**32, (rows, columns), np.uint64).astype(np.uint32)
    return bits.view(np.float32)


def sealed(words: np.ndarray) -> np.ndarray:
    """The words of a payload with its length and checksum made right."""
    words = words.copy()
    words[3] = words.size
    words[4] = 0
    words[4] = checksum(words)
    return words


def section_starts(words: np.ndarray) -> list[int]:
    """The words where the sections of a payload begin, and its end."""
    at = HEADER + 5 * int(words[2])
    starts = [at]
    for i in range(int(words[2])):
        starts.append(starts[-1] + int(words[HEADER + 5 * i + 3]))
    return starts


class Framed:
    """An output with canaries before and after it."""

    def __init__(self, shape: tuple[int, int], dtype: Any, margin: int = 64) -> None:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._margin, self._buffer = margin, np.full(size + 2 * margin, CANARY, np.uint8)
        self.out = self._buffer[margin : margin + size].view(dtype).reshape(shape)

    def assert_intact(self) -> None:
        assert (self._buffer[: self._margin] == CANARY).all(), "written before the output"
        assert (self._buffer[self._buffer.size - self._margin :] == CANARY).all(), "written behind the output"
