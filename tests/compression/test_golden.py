"""Payloads of this version of the wire format decode for ever, and are what the encoder still writes.

`tests/golden/` holds a payload a case, and in `expected.json` the SHA-256 of what it decodes to. A case is never
changed: `python -m tests.compression.test_golden` writes the files of new ones, and only those. A change of the bytes
takes a new version of the format (`wire.VERSION`, `ids.VERSION`), new cases, and a decoder that reads the old ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compression import Codec, decode_id_lists, decode_ids, encode_id_lists, encode_ids, inspect
from compression.wire import CHAINS, DTYPES
from tests.compression.codec_checks import LOSSY, bits_of, empty_like

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
BOUND = 0.0078125


def integers(n: int, seed: int) -> np.ndarray:
    """uint64 [n] by splitmix64: integer arithmetic alone, the same for ever."""
    z = (np.arange(1, n + 1, dtype=np.uint64) + np.uint64(1000003 * seed)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def below(limit: int, n: int, seed: int) -> np.ndarray:
    """int64 [n] in 0 .. limit - 1."""
    return (integers(n, seed) >> np.uint64(20)).astype(np.int64) % limit


def bell(n: int, seed: int, spread: int) -> np.ndarray:
    """int64 [n] around 0: sums of four uniform numbers."""
    return sum(below(spread, n, 4 * seed + i) for i in range(4)) - 2 * spread + 2  # type: ignore[return-value]


def embeddings(rows: int, columns: int, distinct: int, seed: int, spread: int = 300) -> np.ndarray:
    """Float32 rows that repeat, with columns that depend on each other, in exact multiples of 2^-13."""
    hidden = bell(distinct * 2, seed, spread).reshape(distinct, 2)
    weights = below(9, 2 * columns, seed + 1).reshape(2, columns) - 4
    table = (hidden @ weights) + bell(distinct * columns, seed + 2, spread // 3).reshape(distinct, columns)
    return (table[below(distinct, rows, seed + 3)] * 2.0**-13).astype(np.float32)


def special(rows: int, columns: int, seed: int) -> np.ndarray:
    """`embeddings` with NaN, infinities, -0.0, subnormals and far values among them."""
    table = embeddings(rows, columns, rows, seed)
    patterns = (
        0x7F800001,
        0xFFC12345,
        0x7F800000,
        0xFF800000,
        0x80000000,
        1,
        0x807FFFFF,
        0x7F7FFFFF,
        0x4B000001,
        0xC2000000,
    )
    places = below(table.size, table.size // 40, seed + 9)
    table.view(np.uint32).reshape(-1)[places] = np.array(patterns, np.uint32)[np.arange(places.size) % len(patterns)]
    return table


def of_dtype(name: str, shape: tuple[int, int]) -> torch.Tensor:
    """Random bits below a few values that repeat."""
    dtype = getattr(torch, name)
    values = torch.from_numpy(bell(shape[0] * shape[1], 7, 40).reshape(shape))
    if name == "bool":
        return values % 2 == 0
    return (values.to(torch.float64) / 16).to(dtype) if dtype.is_floating_point else values.to(dtype)


Case = tuple[Callable[[], Any], Callable[[Any], list[Any]]]
"""Encodes; decodes."""


def tables_case(chain: str, tables: list[Any], bounds: Any, **options: Any) -> Case:
    def decode(payload: Any) -> list[Any]:
        outs = [empty_like(table) for table in tables]
        Codec().decode(payload, outs)
        return outs

    return (lambda: Codec().encode(tables, bounds, chain, **options)), decode


def cases() -> dict[str, Case]:
    made: dict[str, Case] = {}
    tables: dict[str, tuple[np.ndarray, float]] = {
        "repeating": (embeddings(400, 16, 90, 1), BOUND),
        "correlated": (embeddings(300, 12, 300, 2), 2 * BOUND),
        "fine": (embeddings(150, 8, 150, 3), BOUND / 128),
        "special": (special(200, 10, 4), BOUND),
        "column": (embeddings(1500, 1, 1500, 5), 4 * BOUND),
        "flat": (embeddings(5, 300, 5, 6), BOUND),
        "wide": (embeddings(20, 140, 20, 7), BOUND),
        "blocks": (embeddings(6500, 2, 20000, 8), BOUND / 32),
        "one": (np.array([[0.75]], np.float32), BOUND),
    }
    for name, (table, bound) in tables.items():
        for chain in LOSSY:
            made[f"{chain}-{name}"] = tables_case(chain, [table], bound)
    for name in ("repeating", "special", "column", "flat"):
        made[f"lossless-{name}"] = tables_case("lossless", [tables[name][0][:100]], 0.0)
    made["raw-special"] = tables_case("raw", [tables["special"][0][:20]], BOUND)
    for name in DTYPES:
        made[f"lossless-{name}"] = tables_case("lossless", [of_dtype(name, (90, 6))], 0.0)
    for name in ("float16", "bfloat16"):
        half = torch.from_numpy(tables["special"][0]).to(getattr(torch, name))
        for chain in LOSSY:
            made[f"{chain}-{name}"] = tables_case(chain, [half], 2 * BOUND)
    mixed = [
        tables["repeating"][0][:60],
        np.empty((0, 4), np.float32),
        of_dtype("int64", (5, 3)),
        tables["special"][0][:40],
    ]
    made["message"] = tables_case("rans", mixed, [BOUND, BOUND, 0.0, 2 * BOUND])
    made["message-empty"] = tables_case("rans", [], 0.0)
    made["stochastic"] = tables_case("rans", [tables["correlated"][0]], 4 * BOUND, stochastic=5)
    sorted_ids = np.cumsum(1 + below(50, 300, 20))
    ids = {
        "sorted": sorted_ids,
        "far": sorted_ids + 2**40,
        "unsorted": below(10**6, 300, 21) - 1000,
        "int32": below(10**4, 100, 22).astype(np.int32),
        "any": integers(50, 23).view(np.int64),
        "none": np.empty(0, np.int64),
    }
    for name, some in ids.items():
        for fast in (False, True):
            made[f"ids-{name}{'-fast' * fast}"] = (
                (lambda x=some, f=fast: encode_ids(x, fast=f)),
                lambda p: [decode_ids(p)],
            )  # type: ignore[misc]
    lists = [*ids.values(), *(np.unique(below(size, 80, size)) for size in (3, 50, 1000, 10**6))]
    for fast in (False, True):
        made[f"id-lists{'-fast' * fast}"] = (lambda f=fast: encode_id_lists(lists, fast=f)), decode_id_lists  # type: ignore[misc]
    return made


CASES = cases()


def digest(outs: Iterable[Any]) -> str:
    """Of the shapes, the widths and the bits of what was decoded."""
    found = hashlib.sha256()
    for out in outs:
        bits = bits_of(out)
        found.update(f"{bits.shape} {bits.dtype}".encode() + bits.tobytes())
    return found.hexdigest()


def expected() -> dict[str, str]:
    return json.loads((GOLDEN / "expected.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_a_golden_payload_decodes_to_what_it_always_did(name):
    _, decode = CASES[name]
    assert digest(decode((GOLDEN / f"{name}.bin").read_bytes())) == expected()[name]


@pytest.mark.parametrize("name", CASES)
def test_the_encoder_writes_the_golden_bytes(name):
    encode, _ = CASES[name]
    assert bytes(encode()) == (GOLDEN / f"{name}.bin").read_bytes()


def test_golden_payloads_are_of_every_kind():
    files = {path.stem for path in GOLDEN.glob("*.bin")}
    assert files == set(CASES) == set(expected()), "a payload is never taken away"
    sections = [
        s for name in files if not name.startswith("id") for s in inspect((GOLDEN / f"{name}.bin").read_bytes())
    ]
    assert {section["chain"] for section in sections} == set(CHAINS)
    assert {section["dtype"] for section in sections} == set(DTYPES)
    for chain in LOSSY:
        names = [name for name in files if name.startswith(f"{chain}-")]
        taken = [inspect((GOLDEN / f"{name}.bin").read_bytes())[0]["chain"] for name in names]
        assert taken.count(chain) >= 6
    assert sum(path.stat().st_size for path in GOLDEN.iterdir()) < 200_000


def write_new() -> None:
    """Write the files of cases that have none."""
    GOLDEN.mkdir(exist_ok=True)
    listed = expected() if (GOLDEN / "expected.json").exists() else {}
    for name, (encode, decode) in CASES.items():
        file = GOLDEN / f"{name}.bin"
        if not file.exists():
            file.write_bytes(bytes(encode()))
            listed[name] = digest(decode(file.read_bytes()))
            print(f"{file.name}: {file.stat().st_size} bytes")
    (GOLDEN / "expected.json").write_text(json.dumps(dict(sorted(listed.items())), indent=1) + "\n")


if __name__ == "__main__":
    write_new()
