"""The codec against docs/wire-format.md: what it sends decodes by a decoder written from the document alone, to the
same bits; its model is fitted as the document says; the example there is what it makes."""

from __future__ import annotations

import io
import math
import re
import struct
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_decoder as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compression import Codec, CorruptPayloadError, Relative, encode_id_lists, encode_ids, inspect

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "wire-format.md"
FLOATS = ("float32", "float16", "bfloat16")
CODED = ("huffman", "rans")
PACKED = ("bitpack", "dedup", *CODED)
EXACT = ("float32", "float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")
SPECIALS = (np.nan, -np.nan, np.inf, -np.inf, -0.0, 1e-42, -3e38, 65504.0)


def bits(table: Any) -> np.ndarray:
    if isinstance(table, torch.Tensor):
        table = (table.view(torch.int16) if table.dtype == torch.bfloat16 else table).numpy()
    return table.view(f"u{table.dtype.itemsize}")


def cast(table: np.ndarray, dtype: str) -> Any:
    with np.errstate(over="ignore"):
        return torch.from_numpy(table).to(torch.bfloat16) if dtype == "bfloat16" else table.astype(dtype)


def check(codec: Codec, tables: list[Any], bounds: Any, chain: str, **options: Any) -> tuple[bytes, list[str]]:
    """Encode; both decoders must agree on every bit. Returns the payload and the chains of its sections."""
    payload = codec.encode(tables, bounds, chain, **options).tobytes()
    outs = [torch.empty_like(t) if isinstance(t, torch.Tensor) else np.empty_like(t) for t in tables]
    codec.decode(payload, outs)
    decoded = reference.decode(payload, [len(t) for t in tables])
    for out, other in zip(outs, decoded, strict=True):
        assert np.array_equal(bits(out), bits(other))
    return payload, [section["chain"] for section in inspect(payload)]


def trained(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Correlated columns, rows drawn from fewer: what embedding batches look like."""
    random = np.random.default_rng(seed)
    mixed = random.standard_normal((rows, 3)) @ random.standard_normal((3, columns))
    table = mixed + 0.1 * random.standard_normal((rows, columns))
    return table[(rows * random.random(rows) ** 2).astype(int)].astype(np.float32)


def noise(rows: int, columns: int, scale: float) -> np.ndarray:
    return np.random.default_rng(0).normal(0, scale, (rows, columns)).astype(np.float32)


def spiked(table: np.ndarray, spikes: tuple[float, ...], every: int) -> np.ndarray:
    table = table.copy()
    table.ravel()[::every] = np.resize(spikes, table.ravel()[::every].size)
    return table


# (table, bound): together they take every way through a coded section; `test_cases_take_every_way` checks that.
CASES = {
    "plain": (trained(700, 12), 0.1),
    "pairs": (trained(901, 6, 1), 1.0),
    "specials": (spiked(trained(600, 8, 2), SPECIALS, 97), 0.05),
    "escapes": (spiked(trained(600, 8, 3), (9.0, -8.0), 61), 0.1),
    "low bits": (noise(500, 12, 10.0), 0.4),
    "two bytes": (noise(500, 12, 10.0), 0.01),
    "four pivots": (trained(300, 40, 5), 0.001),
    "tiles": (trained(30000, 2, 6), 0.2),
    "chunks": (trained(2500, 20, 7), 0.3),
    "wide": (trained(80, 150, 8), 0.1),
    "one column": (trained(5000, 1, 9), 0.05),
    "few rows": (trained(5, 300, 10), 0.1),
    "very wide": (trained(9, 4100, 11), 0.2),
    "one distinct row": (np.tile(trained(1, 16, 12), (100, 1)), 0.1),
    "nothing": (np.zeros((64, 16), np.float32), 0.1),
}


@pytest.mark.parametrize("chain", CODED)
@pytest.mark.parametrize("name", CASES)
def test_coded_sections(codec: Codec, name: str, chain: str) -> None:
    table, bound = CASES[name]
    assert check(codec, [table], bound, chain)[1] == [chain]


def test_cases_take_every_way(codec: Codec) -> None:
    seen = set()
    for table, bound in CASES.values():
        words = reference.Words(codec.encode([table], bound, "rans").tobytes()[40:])
        _, patches, escapes, size = words.ints(4)
        words.take(size)
        model = reference.Model(words, 1 if reference.is_flat(*table.shape) else table.shape[1])
        seen |= {f"pivots {len(model.pivots)}", f"bytes {model.width}", f"shift {model.shift > 0}"}
        seen |= {f"paired {table.paired}" for table in model.tables}
        seen |= {f"{name} {word > 0}" for name, word in (("patch", patches), ("escape", escapes), ("reference", size))}
    flags = ("shift", "paired", "patch", "escape", "reference")
    wanted = {f"{flag} {either}" for flag in flags for either in (False, True)}
    assert seen >= wanted | {"bytes 1", "bytes 2", "pivots 0", "pivots 1", "pivots 3", "pivots 4"}


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("chain", PACKED)
def test_halves(codec: Codec, dtype: str, chain: str) -> None:
    table = cast(spiked(trained(400, 9), SPECIALS[:-1], 101), dtype)
    assert check(codec, [table], 0.25, chain)[1] == [chain]


@pytest.mark.parametrize("scale", (1.0, 1e-3, 1e3))
def test_packed_sections(codec: Codec, scale: float) -> None:
    """Blocks of narrow, wide and no codes, a last block that is short, patches."""
    table = trained(900, 7)
    table[160:330] *= np.float32(scale)
    table[330:700] = 0
    assert check(codec, [spiked(table, SPECIALS, 103)], 0.01, "bitpack")[1] == ["bitpack"]


@pytest.mark.parametrize("dtype", (*EXACT, "bfloat16"))
def test_exact_sections(codec: Codec, dtype: str) -> None:
    random = np.random.default_rng(0)
    few = cast(np.repeat(np.round(trained(40, 12), 1), 20, axis=0), dtype)  # equal rows
    apart = cast(np.round(trained(300, 3) * 20).astype(np.float32), dtype)
    noise = random.integers(0, 256, (50, 8 * bits(few).itemsize), np.uint8)
    noise = noise % 2 == 0 if dtype == "bool" else noise.view(f"i{bits(few).itemsize}")
    _, chains = check(codec, [few, apart, noise], 0.0, "auto")
    assert chains[0] == "lossless"
    check(codec, [few, apart], 0.0, "raw")


def test_planes_of_many_blocks(codec: Codec) -> None:
    table = np.random.default_rng(0).integers(0, 1 << 20, (70000, 1)).astype(np.int32)
    assert check(codec, [table], 0.0, "auto")[1] == ["lossless"]


@pytest.mark.parametrize("chain", ("raw", "lossless", *PACKED))
def test_many_tables_of_any_shape(codec: Codec, chain: str) -> None:
    shapes = [(0, 4), (3, 0), (1, 1), (1, 64), (64, 1), (8, 2), (7, 2), (200, 16), (33, 129), (0, 0), (100, 3)]
    tables = [cast(trained(*shape, seed), FLOATS[seed % 3]) if min(shape) else np.empty(shape, np.float32)
              for seed, shape in enumerate(shapes)]  # fmt: skip
    bounds = [0.1, 0.0, 0.0, Relative(0.02), 0.1, 0.5, 0.1, 0.01, Relative(0.05), 0.0, 1e-3]
    check(codec, tables, bounds, chain)


@pytest.mark.parametrize("chain", ("lossless", *PACKED))
def test_large_tables_are_cut(codec: Codec, chain: str) -> None:
    large = trained(50, 4096)[np.arange(520) % 50]
    large[100:] = 0
    _, chains = check(codec, [large[:20], large, large[:20]], 0.5, chain)
    assert chains == [chain] * 4


@pytest.mark.parametrize("chain", PACKED)
def test_stochastic_rounding_is_no_other_format(codec: Codec, chain: str) -> None:
    table = trained(300, 8)
    payload, chains = check(codec, [table, cast(table, "float16")], 0.25, chain, stochastic=3)
    assert chains == [chain] * 2
    assert [section["bound"] for section in inspect(payload)] == [0.125] * 2


def test_a_payload_of_no_tables(codec: Codec) -> None:
    assert check(codec, [], 0.1, "rans")[1] == []


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 70), st.integers(1, 40), st.sampled_from(FLOATS), st.sampled_from((*PACKED, "lossless")),
    st.sampled_from((1e-4, 0.01, 0.1, 0.5, 3.0)), st.integers(0, 2**32 - 1), st.sampled_from((1, 7, 50, 10**6)),
)  # fmt: skip
def test_any_table(rows: int, columns: int, dtype: str, chain: str, bound: float, seed: int, every: int) -> None:
    table = cast(spiked(trained(rows, columns, seed), (*SPECIALS, 30.0, -20.0), every), dtype)
    check(CODEC, [table], bound, chain)


CODEC = Codec()


def test_the_reference_refuses_what_is_damaged(codec: Codec) -> None:
    payload = codec.encode([trained(300, 6)], 0.1, "rans").tobytes()
    for at in range(0, len(payload), 7):
        with pytest.raises(reference.MalformedError):
            reference.decode(payload[:at] + bytes([payload[at] ^ 4]) + payload[at + 1 :])
        with pytest.raises((reference.MalformedError, ValueError)):
            reference.decode(payload[:at])


@pytest.mark.parametrize("chain", (*PACKED, "lossless"))
def test_what_both_decoders_accept_is_the_same(codec: Codec, chain: str) -> None:
    """Payloads with some bytes changed, under a checksum that is right."""
    table = np.round(spiked(trained(60, 6), (9.0, -8.0, np.nan), 17), 1)
    payload = codec.encode([table], 0.0 if chain == "lossless" else 0.2, chain).tobytes()
    random = np.random.default_rng(0)
    accepted = 0
    for _ in range(200):
        changed = np.frombuffer(payload, np.uint8).copy()
        changed[random.integers(40, changed.size, 2)] = random.integers(0, 256, 2)
        changed.view("<u4")[4] = 0
        changed.view("<u4")[4] = reference.checksum(changed.tobytes())
        out = np.empty_like(table)
        try:
            (decoded,) = reference.decode(changed.tobytes())
            codec.decode(changed, [out])
        except (reference.MalformedError, CorruptPayloadError):
            continue
        accepted += 1
        assert np.array_equal(bits(out), bits(decoded))
    assert accepted


# Ids


def gaps(n: int, mean: float, seed: int = 0) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).geometric(1 / mean, n))


IDS = {
    "none": np.empty(0, np.int64),
    "one": np.array([7]),
    "dense": np.arange(5000),
    "coded gaps": gaps(9000, 9.0),
    "packed gaps": np.arange(0, 3000 * 17, 17),
    "a far base": gaps(2000, 30.0) + 2**50,
    "below zero": gaps(100, 5.0) - 2**40,
    "any order": np.random.default_rng(1).permutation(gaps(3000, 4.0)),
    "far in any order": np.random.default_rng(1).permutation(1000) + 2**50,
    "skewed": np.random.default_rng(2).zipf(1.2, 4000) % 2**31,
    "wide": np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 50),
    "the ends": np.array([-(2**63), 2**63 - 1]),
    "narrow": np.random.default_rng(4).integers(-(2**31), 2**31 - 1, 50).astype(np.int32),
    "wide values": np.array([0, 2**32 - 1, 5, 2**31]),
}


@pytest.mark.parametrize("fast", (False, True))
@pytest.mark.parametrize("name", IDS)
def test_ids(name: str, fast: bool) -> None:
    assert reference.decode_ids(encode_ids(IDS[name], fast=fast).tobytes()) == IDS[name].tolist()


def test_ids_take_every_way() -> None:
    modes = {int(encode_ids(ids, fast=fast)[3]) for ids in IDS.values() for fast in (False, True)}
    assert {0, 1, 2, 3, 6, 7, 10, 14} <= modes


@pytest.mark.parametrize("fast", (False, True))
def test_lists_of_ids(fast: bool) -> None:
    for lists in ([], [IDS["none"]], list(IDS.values()), [IDS["wide"], IDS["the ends"]]):
        assert reference.decode_ids(encode_id_lists(lists, fast=fast).tobytes()) == [ids.tolist() for ids in lists]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 99), max_size=40), max_size=5), st.booleans()
)
def test_any_lists_of_ids(lists: list[list[int]], ascending: bool) -> None:
    lists = [sorted(set(ids)) if ascending else ids for ids in lists]
    assert reference.decode_ids(encode_id_lists(lists).tobytes()) == lists
    for ids in lists:
        assert reference.decode_ids(encode_ids(ids).tobytes()) == ids


# The same bytes from every encoder


@pytest.mark.parametrize("name", CASES)
def test_the_model_is_fitted_as_written(codec: Codec, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, models = [], []
    restore = reference.Model.codes

    def spy(model: reference.Model, *arguments: Any) -> list[list[int]]:
        models.append(model)
        rows.extend(found := restore(model, *arguments))
        return found

    monkeypatch.setattr(reference.Model, "codes", spy)
    table, bound = CASES[name]
    reference.decode(codec.encode([table], bound, "rans").tobytes())
    model = models[0]
    pivots, shift, weights, biases, tables = fitted(rows)
    assert (model.pivots, model.shift, model.biases) == (pivots, shift, biases)
    assert model.weights == weights
    assert model.numbers == tables


def fitted(rows: list[list[int]]) -> tuple[list[int], int, list[list[int]], list[int], list[int]]:
    """Pivots, shift, weights, biases and tables, step by step from the document."""
    d, columns = len(rows), range(len(rows[0]))
    n = min(d, 256 if len(columns) <= 32 else 128 if len(columns) <= 64 else 64)
    x = [rows[(i * 0x9E3779B97F4A7C15 % 2**64 >> 32) * d >> 32] for i in range(n)]
    sums = [sum(row[c] for row in x) for c in columns]

    def covariance(a: int, b: int) -> float:
        return (float(sum(row[a] * row[b] for row in x)) - float(sums[a]) * float(sums[b]) / n) / n

    pivots: list[int] = []
    factors: list[list[float]] = []  # by pivot, then column
    v, shift = 0.0, 0
    if len(columns) > 128:
        diagonal = [covariance(c, c) for c in columns]
    else:
        cov = [[covariance(max(a, b), min(a, b)) for b in columns] for a in columns]
        while len(pivots) < min(4, len(columns) - 1):
            gain, p = best_pivot(cov)
            if (gain - (len(columns) - 1) / n) * 0.72 * d < 10 * (len(columns) + 2):
                break
            v = max(v, cov[p][p])
            factor = [cov[p][c] / math.sqrt(cov[p][p]) for c in columns]
            cov = [[cov[a][b] - factor[a] * factor[b] for b in columns] for a in columns]
            pivots.append(p)
            factors.append(factor)
        diagonal = [cov[c][c] for c in columns]
    v = max(v, *diagonal)
    while v > 144 and shift < 12:
        v, shift = v * 0.25, shift + 1
    weights = [[0 for _ in columns] for _ in pivots]
    biases, tables = [], []
    for c in columns:
        used = pivots.index(c) if c in pivots else len(pivots)
        solved = [0.0] * used
        for t in reversed(range(used)):
            y = factors[t][c]
            for j in range(t + 1, used):
                y -= solved[j] * factors[t][pivots[j]]
            solved[t] = y / factors[t][pivots[t]]
            weights[t][c] = int(min(max(round(32 * solved[t]), -127), 127))
        total = 32 * sums[c] - sum(weights[t][c] * sums[pivots[t]] for t in range(used))
        biases.append(int(min(max(round(total / float(n * (8 << shift))), -127), 127)))
        start = (biases[c] << (3 + shift)) + 16
        left = [row[c] - ((start + sum(weights[t][c] * row[pivots[t]] for t in range(used))) >> 5) for row in x]
        tables.append(best_table([min((2 * r if r >= 0 else -2 * r - 1) >> shift, 63) for r in left]))
    return pivots, shift, weights, biases, tables


def best_pivot(cov: list[list[float]]) -> tuple[float, int]:
    most, best = 0.0, 0
    inverse = [1 / (row[c] + 0.08) for c, row in enumerate(cov)]
    for p, row in enumerate(cov):
        if row[p] >= 0.08:
            g = 0.0
            for value, inv in zip(row, inverse, strict=True):
                g += value * value * inv
            gain = g / row[p] - row[p] * inverse[p]
            if gain > most:
                most, best = gain, p
    return most, best


def best_table(magnitudes: list[int]) -> int:
    mean = 256 * sum(magnitudes) // len(magnitudes)
    costs = []
    for t, table in enumerate(reference.family()):
        middle = 256 * sum(z * w for z, w in enumerate(table.weights)) // sum(table.weights)
        if (8 * middle >= 5 * mean - 128 and 5 * middle <= 8 * mean + 128) or t == 51:
            costs.append((sum(cost(k, table) for k in magnitudes), t))
    return min(costs)[1]


def cost(k: int, table: reference.Table) -> int:
    """In 1/256 bit."""
    if (k < 15 or not table.paired) and table.frequencies[k] > 0:
        return round(256 * math.log2(sum(table.weights) / table.weights[k]))
    return round(256 * (math.log2(2048 / table.frequencies[255]) + (16 if table.paired else 8)))


# The example


def test_the_example_is_what_the_codec_makes(codec: Codec) -> None:
    text = DOCUMENT.read_text().split("## An example")[1]
    code, printed = (re.search(f"```{kind}\n(.*?)```", text, re.S)[1] for kind in ("python", "text"))  # type: ignore[index]
    names: dict[str, Any] = {}
    with redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    assert out.getvalue() == printed, "docs/wire-format.md: the example's bytes have changed: describe the new ones"
    payload = struct.pack(f"<{len(names['words'])}I", *names["words"])
    (decoded,) = reference.decode(payload)
    held = np.abs(decoded.view(np.float32) - names["table"]) <= 0.5
    assert np.argwhere(~held).tolist() == [[5, 3]] and np.isnan(decoded.view(np.float32)[5, 3])
