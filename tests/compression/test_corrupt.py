"""Bytes that no encoder wrote: an error that names the field, never a crash, never a write beside an output."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from compression import Codec, CorruptPayloadError, inspect, wire
from compression.wire import CHAINS, DESCRIPTOR, HEADER, MAGIC, VERSION
from tests.compression import fuzz_decoder
from tests.compression.codec_checks import LOSSY, Framed, noise, sealed, trained

ROOT = Path(__file__).resolve().parents[2]
Message = tuple[np.ndarray, list[np.ndarray]]


def special(rows: int, columns: int) -> np.ndarray:
    """Rows with values that no code holds, and residuals that no symbol holds."""
    table = trained(rows, columns)
    table.reshape(-1)[::50] = np.nan
    table.reshape(-1)[7::97] = 30.0
    return table


@pytest.fixture(scope="module")
def messages(codec) -> list[Message]:
    """Payloads of every chain and all features of them."""
    tables = {
        "repeating": trained(200, 16, distinct=60),
        "correlated": trained(300, 24, distinct=300),
        "special": special(250, 16),
        "wide codes": trained(100, 12, distinct=90, scale=100.0),
        "a column": trained(1500, 1),
        "few rows": trained(5, 90),
        "blocks": trained(4500, 4, distinct=4400),
        "halves": trained(300, 8).astype(np.float16),
        "wide rows": trained(20, 200),
    }
    made = []
    for name, table in tables.items():
        for chain in LOSSY:
            for bound in (0.02, 1e-4) if name != "blocks" else (0.02,):
                made.append((codec.encode([table], bound, chain).copy(), [table]))
    for exact in (
        tables["repeating"],
        tables["correlated"][:, :5].copy(),
        np.arange(600).reshape(-1, 3),
        tables["halves"],
    ):
        made.append((codec.encode([exact], 0.0).copy(), [exact]))
    mixed = [
        tables["repeating"],
        noise(9, 4),
        np.empty((0, 4), np.float32),
        np.arange(12).reshape(3, 4),
        tables["special"],
    ]
    for chain in LOSSY:
        made.append((codec.encode(mixed, [0.01, 0.1, 0.0, 0.0, 0.05], chain).copy(), mixed))
    chains = {section["chain"] for payload, _ in made for section in inspect(payload)}
    assert chains == set(CHAINS)
    return made


def decode(codec: Codec, payload: object, tables: list[np.ndarray]) -> None:
    frames = [Framed(table.shape, table.dtype) for table in tables]
    try:
        codec.decode(payload, [frame.out for frame in frames])
    finally:
        for frame in frames:
            frame.assert_intact()


def refused(codec: Codec, payload: object, tables: list[np.ndarray]) -> str:
    """The field that the error names."""
    with pytest.raises(CorruptPayloadError) as caught:
        decode(codec, payload, tables)
    error = caught.value
    assert error.field
    assert str(error) == f"corrupt payload: {error.field}: {error.problem}"
    return error.field


def test_every_truncation_is_refused(codec, messages):
    for payload, tables in messages:
        for size in range(0, payload.size, 1 if payload.size < 4000 else 7):
            assert refused(codec, payload[:size], tables) == "length"
        for more in (b"\0", b"\0\0\0\0", payload.tobytes()):
            assert refused(codec, payload.tobytes() + more, tables) == "length"


def test_truncation_at_every_word_with_a_right_checksum_is_refused(codec, messages):
    for payload, tables in messages:
        words = payload.view(np.uint32)
        for size in range(HEADER, words.size, 1 if words.size < 500 else 11):
            field = refused(codec, sealed(words[:size]), tables)
            assert field.startswith(("section", "magic", "dtype", "chain", "shape", "bound", "length"))


def test_thousands_of_random_changes_are_refused(codec, messages):
    rng = np.random.default_rng(0)
    for payload, tables in messages:
        for _ in range(100):
            bad = payload.copy()
            for place in rng.integers(0, bad.size, rng.integers(1, 4)):
                bad[place] ^= rng.integers(1, 256)
            if not np.array_equal(bad, payload):
                assert refused(codec, bad, tables) in ("magic", "version", "length", "checksum")


def test_every_bit_of_the_header_and_the_descriptors_counts(codec, messages):
    payload, tables = messages[-1]
    for bit in range(8 * 4 * (HEADER + DESCRIPTOR * len(tables))):
        bad = payload.copy()
        bad[bit // 8] ^= 1 << bit % 8
        refused(codec, bad, tables)


def change(words: np.ndarray, at: int, value: int) -> np.ndarray:
    bad = words.copy()
    bad[at] = value
    bad[4] = 0
    bad[4] = sealed(bad)[4] if at != 3 else 0
    return bad


@pytest.mark.parametrize(
    ("word", "value", "field"),
    [
        (0, MAGIC + 1, "magic"),
        (0, int.from_bytes(b"PRWT", "little"), "magic"),
        (1, VERSION + 1, "version"),
        (1, 0, "version"),
        (1, 0xFFFFFFFF, "version"),
        (2, 0, "section lengths"),
        (2, 2, "chain of section 1"),
        (2, 0xFFFFFFFF, "sections"),
        (3, 0, "length"),
        (3, 0xFFFFFFFF, "length"),
        (5, 0x000000FF, "chain of section 0"),
        (5, 0x0000FF00 + CHAINS["rans"], "dtype of section 0"),
        (5, 0x00000300 + CHAINS["rans"], "dtype of section 0"),
        (5, 0x00010000 + CHAINS["rans"], "dtype of section 0"),
        (5, 0x00000100 + CHAINS["rans"], "dtype of table 0"),
        (5, CHAINS["raw"], "bound of section 0"),
        (5, CHAINS["lossless"], "bound of section 0"),
        (6, 299, "sections"),
        (6, 301, "shape of table 0"),
        (6, 0xFFFFFFFF, "shape of section 0"),
        (6, 0, "length of section 0"),
        (7, 23, "shape of table 0"),
        (7, 0xFFFFFFFF, "shape of section 0"),
        (8, 0, "section lengths"),
        (8, 0xFFFFFFFF, "length of section 0"),
        (9, 0, "bound of section 0"),
        (9, 0x80000001, "bound of section 0"),
        (9, 0x7F800000, "bound of section 0"),
        (9, 0x7FC00000, "bound of section 0"),
    ],
)
def test_a_lie_in_the_frame_is_named(codec, word, value, field):
    table = trained(300, 24)
    words = codec.encode([table], 0.01, "rans").view(np.uint32).copy()
    assert inspect(words)[0]["chain"] == "rans"
    found = refused(codec, change(words, word, value), [table])
    assert found.startswith(field)
    if word != 6 and "table" not in field:
        with pytest.raises(CorruptPayloadError, match=f"corrupt payload: {field}"):
            inspect(change(words, word, value))


def test_the_version_is_told(codec):
    words = codec.encode([trained(9, 4)]).view(np.uint32).copy()
    with pytest.raises(CorruptPayloadError, match=f"version: 9 is not {VERSION}, the version that this release reads"):
        inspect(change(words, 1, 9))


@pytest.mark.parametrize("chain", CHAINS)
def test_other_outputs_than_the_tables_are_refused(codec, chain):
    table = trained(64, 16)
    half = torch.from_numpy(table).to(torch.float16)
    for source in (table, half.numpy(), torch.from_numpy(table).to(torch.bfloat16)):
        payload = codec.encode([source, source], 0.01, chain).copy()
        mine = str(source.dtype).removeprefix("torch.")
        for name in ("float32", "float16", "bfloat16", "int32", "float64"):
            outs = [torch.empty(64, 16, dtype=getattr(torch, name)) for _ in range(2)]
            if name == mine:
                codec.decode(payload, outs)
                continue
            with pytest.raises(
                CorruptPayloadError, match=f"dtype of table 0: the payload holds {mine}, the output is {name}"
            ):
                codec.decode(payload, outs)
    payload = codec.encode([table, table], 0.01, chain).copy()
    for shape in ((63, 16), (65, 16), (64, 15), (64, 17), (16, 64), (1024, 1), (0, 16), (64, 0), (128, 16)):
        for shapes in ([shape, (64, 16)], [(64, 16), shape]):
            at = shapes.index(shape)
            found = refused(codec, payload, [np.empty(each, np.float32) for each in shapes])
            assert found in (f"shape of table {at}", "shape of table 1", "sections")
    for count in (0, 1, 3, 10):
        assert refused(codec, payload, [table] * count) == "sections"


def test_foreign_bytes_are_refused(codec):
    table = trained(64, 16)
    foreign = [b"", b"\0", b"\0" * 20, b"\0" * 4000, b"PK\x03\x04" * 10, os.urandom(400), b"TWRP", b"TWRP" * 30]
    foreign += [table.tobytes(), np.arange(100), torch.zeros(40, dtype=torch.uint8)]
    for payload in foreign:
        assert refused(codec, payload, [table]) in ("length", "magic", "version")
        with pytest.raises(CorruptPayloadError):
            inspect(payload)


def test_a_lie_about_sizes_takes_no_memory(codec):
    """Sections of 2^31 values and of 2^32 rows, whose words are not there."""
    out = np.empty((8, 4), np.float32)
    for chain in CHAINS.values():
        for rows, columns in ((2**31 - 1, 1), (1, 2**31 - 1), (2**32 - 1, 0), (46340, 46340), (2**32 - 1, 2**32 - 1)):
            words = np.zeros(HEADER + DESCRIPTOR + 30, np.uint32)
            words[:HEADER] = MAGIC, VERSION, 1, words.size, 0
            bound = int(np.float32(0.1).view(np.uint32)) if chain >= wire.BITPACK else 0
            words[HEADER : HEADER + DESCRIPTOR] = chain, rows, columns, 30, bound
            refused(codec, sealed(words), [out])
            refused(codec, sealed(words), [np.empty((0, 4), np.float32)])


def test_errors_travel_between_processes(codec):
    with pytest.raises(CorruptPayloadError) as caught:
        codec.decode(b"\0" * 20, [])
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.field, again.problem) == (str(caught.value), "magic", caught.value.problem)
    assert isinstance(again, ValueError)


def test_the_codec_is_as_good_as_before_after_errors(messages):
    codec, fresh = Codec(), Codec()
    rng = np.random.default_rng(1)
    for payload, tables in messages:
        for _ in range(20):
            try:
                with np.errstate(all="ignore"):
                    decode(codec, fuzz_decoder.changed(payload.view(np.uint32), rng), tables)
            except CorruptPayloadError:
                continue
        outs, expected = [np.empty_like(t) for t in tables], [np.empty_like(t) for t in tables]
        codec.decode(payload, outs)
        fresh.decode(payload, expected)
        for one, two in zip(outs, expected, strict=True):
            assert one.tobytes() == two.tobytes()


def in_process(path: Path, trials: int, seed: int, seconds: float, **variables: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.compression.fuzz_decoder", str(path), str(trials), str(seed)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-3000:]}"
    return json.loads(done.stdout)


def test_lies_under_a_right_checksum_neither_crash_nor_hang(messages, tmp_path):
    """Refused, or decoded to something: inside the outputs, and in bounded time."""
    fuzz_decoder.write(tmp_path / "payloads.npz", messages)
    found = in_process(tmp_path / "payloads.npz", 20000, 0, 120)
    assert found["trials"] == 20000
    assert found["refused"] > 10000


@pytest.mark.slow
def test_lies_never_index_outside_of_an_array(messages, tmp_path):
    """The same with every index checked by the compiler, which has to compile all again for it."""
    fuzz_decoder.write(tmp_path / "payloads.npz", messages)
    checked = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert in_process(tmp_path / "payloads.npz", 6000, 1, 280, **checked)["refused"] > 3000
