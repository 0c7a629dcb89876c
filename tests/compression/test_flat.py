"""Tables in one array: the bytes of `Codec.encode`, and its values."""

from __future__ import annotations

import numpy as np
import pytest

from compression import Codec, CorruptPayloadError, Relative
from compression.codec import Bound
from compression.wire import CHAINS

pytestmark = pytest.mark.usefixtures("compiled")
WILD = np.array([np.nan, np.inf, -np.inf, -0.0, 3e38, 1e-42], np.float32)


def tables_of(random: np.random.Generator) -> list[np.ndarray]:
    count = random.integers(1, 9)
    shapes = zip(random.integers(0, 400, count), random.choice([1, 3, 8, 16, 64], count), strict=True)
    tables = [(random.standard_normal(shape) * random.choice([1e-6, 0.1, 1e3])).astype(np.float32) for shape in shapes]
    for table in tables:
        if table.size and random.random() < 0.3:
            table.flat[random.integers(0, table.size, 3)] = random.choice(WILD, 3)
    return tables


@pytest.mark.parametrize("chain", ["auto", *CHAINS])
def test_the_same_bytes_and_values(chain: str) -> None:
    random = np.random.default_rng(len(chain))
    codec = Codec()
    for _ in range(40):
        tables = tables_of(random)
        rows, columns = np.array([t.shape for t in tables], np.int64).T.copy()
        flat = np.concatenate([t.reshape(-1) for t in tables])
        bounds: list[Bound] = [
            Relative(0.02) if random.random() < 0.7 else float(random.choice([0, 1e-40, 0.01, 1e38])) for _ in tables
        ]
        got = codec.encode_flat(flat, rows, columns, bounds, [chain] * len(tables)).copy()
        if chain != "auto":  # which goes by the clock
            assert got.tobytes() == codec.encode(tables, bounds, chain).tobytes()
        out, outs = np.empty_like(flat), [np.empty_like(t) for t in tables]
        codec.decode_flat(got, rows, columns, out)
        codec.decode(got, outs)
        assert out.tobytes() == np.concatenate([o.reshape(-1) for o in outs]).tobytes()


def test_stochastic_rounding_goes_the_general_way() -> None:
    codec, table = Codec(), np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)
    shape = np.array([64]), np.array([16])
    got = codec.encode_flat(table.reshape(-1), *shape, [0.05], ["bitpack"], stochastic=3).copy()
    assert got.tobytes() == codec.encode([table], 0.05, "bitpack", stochastic=3).tobytes()


def test_a_payload_that_was_changed_is_refused() -> None:
    codec, random = Codec(), np.random.default_rng(1)
    table = random.standard_normal((50, 16)).astype(np.float32)
    rows, columns = np.array([50]), np.array([16])
    payload = codec.encode_flat(table.reshape(-1), rows, columns, [0.01], ["huffman"]).copy()
    out = np.empty(table.size, np.float32)
    for at in range(0, payload.size, 7):
        broken = payload.copy()
        broken[at] ^= 1 << random.integers(8)
        with pytest.raises(CorruptPayloadError):
            codec.decode_flat(broken, rows, columns, out)
    for size in range(0, payload.size, 16):
        with pytest.raises(CorruptPayloadError):
            codec.decode_flat(payload[:size].copy(), rows, columns, out)
    with pytest.raises(CorruptPayloadError, match="table 0"):
        codec.decode_flat(payload, np.array([51]), columns, np.empty(51 * 16, np.float32))
