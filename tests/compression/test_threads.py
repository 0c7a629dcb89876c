"""Threads: the same bytes and values with any number of them, and nobody writes where another does."""

import threading

import numpy as np
import pytest

from compression import Codec, CorruptPayloadError, inspect, wire
from compression import codec as codec_module
from compression.wire import CHAINS
from tests.compression.codec_checks import LOSSY, assert_kept, assert_same, noise, sealed, section_starts, trained


@pytest.fixture
def small_parts(monkeypatch):
    """Tables are cut every 4 KiB, and every 2 KiB are worth a thread."""
    monkeypatch.setattr(wire, "PART_BYTES", 1 << 12)
    monkeypatch.setattr(codec_module, "THREAD_BYTES", 1 << 11)


def message() -> list[np.ndarray]:
    tables = [trained(900, 16), noise(100, 16), trained(1, 1), np.full((1, 30), np.nan, np.float32), trained(3000, 1)]
    tables += [np.empty((0, 8), np.float32), trained(300, 40).astype(np.float16), np.arange(4000).reshape(-1, 2)]
    return [*tables, trained(2, 3000), noise(40, 30), trained(50, 9)]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("bound", [0.0, 1e-4, 0.05])
def test_the_payload_does_not_depend_on_threads(small_parts, chain, bound):
    tables = message()
    expected = Codec().encode(tables, bound, chain).tobytes()
    assert len(inspect(expected)) > 2 * len(tables)
    for threads in (1, 2, 3, 5):
        codec = Codec(threads)
        for _ in range(3):
            payload = codec.encode(tables, bound, chain)
            assert payload.tobytes() == expected
            outs = [np.full_like(table, 7) for table in tables]
            codec.decode(payload, outs)
            for table, out in zip(tables, outs, strict=True):
                assert_kept(table, out, bound)
        assert payload.nbytes <= wire.max_bytes([(*table.shape, table.itemsize) for table in tables])
        codec.close()


def test_rounding_at_random_does_not_depend_on_threads(small_parts):
    expected = Codec().encode(message(), 0.05, "rans", stochastic=3).tobytes()
    for threads in (2, 3):
        codec = Codec(threads)
        assert codec.encode(message(), 0.05, "rans", stochastic=3).tobytes() == expected
        codec.close()


def test_parts_of_a_table_are_rows_in_order(small_parts):
    table = trained(1000, 16)
    codec = Codec()
    payload = codec.encode([table, table[:10]], 0.01, "rans").copy()
    sections = inspect(payload)
    assert len(sections) == 17
    assert sum(section["rows"] for section in sections[:-1]) == 1000
    assert sections[-1]["rows"] == 10
    assert all(section["rows"] * 64 <= 1 << 12 for section in sections)
    out = [np.empty_like(table), np.empty_like(table[:10])]
    codec.decode(payload, out)
    assert_kept(table, out[0], 0.01)
    assert_kept(table[:10], out[1], 0.01)
    assert [wire.parts(rows, 64) for rows in (0, 1, 64, 65)] == [[(0, 0)], [(0, 1)], [(0, 64)], [(0, 32), (32, 65)]]
    assert wire.parts(3, 1 << 20) == [(0, 1), (1, 2), (2, 3)], "a row is never cut"


def test_noise_and_tiny_tables_where_two_threads_meet():
    """Tables that no chain makes smaller fill their room; trying chains on the tiny one takes more than it has."""
    half = 3 << 19
    tables = [
        noise(half // 64, 16),
        np.full((32, 1), np.nan, np.float32),
        trained(1024, 16),
        trained(half // 64 - 1024, 16),
    ]
    codec = Codec(threads=2)
    for chain in LOSSY:
        expected = Codec().encode(tables, 0.001, chain).tobytes()
        for _ in range(10):
            assert codec.encode(tables, 0.001, chain).tobytes() == expected
    codec.close()


def test_two_codecs_read_one_payload_at_the_same_time():
    table = trained(20000, 16)
    payload = Codec().encode([table], 0.001, "bitpack").copy()
    before = payload.tobytes()
    wrong: list[Exception] = []

    def read() -> None:
        codec, out = Codec(), np.empty_like(table)
        try:
            for _ in range(50):
                codec.decode(payload, [out])
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert payload.tobytes() == before


def test_threads_have_ended_when_a_call_fails():
    """Else they would write to outputs that the caller uses again, or share memory with the next call."""
    table = trained(1 << 16, 16, distinct=1 << 16)
    codec = Codec(threads=3)
    good = codec.encode([table] * 3, 1e-4, "rans").copy()
    words = good.view(np.uint32).copy()
    words[section_starts(words)[0]] = 0
    bad = sealed(words)
    for _ in range(5):
        outs = [np.empty_like(table) for _ in range(3)]
        with pytest.raises(CorruptPayloadError, match="section 0"):
            codec.decode(bad, outs)
        for out in outs:
            out[:] = 7
        again = [np.empty_like(table) for _ in range(3)]
        codec.decode(good, again)
        assert all((out == 7).all() for out in outs)
        for out in again:
            assert_kept(table, out, 1e-4)
    codec.close()


def test_errors_of_any_thread_are_raised(small_parts):
    table = trained(900, 16)
    codec = Codec(threads=3)
    words = codec.encode([table], 1e-3, "rans").view(np.uint32).copy()
    starts = section_starts(words)
    for i in range(len(starts) - 1):
        bad = words.copy()
        bad[starts[i]] = 0
        with pytest.raises(CorruptPayloadError, match="counts") as caught:
            codec.decode(sealed(bad), [np.empty_like(table)])
        assert caught.value.field == f"counts of section {i}"
    out = np.empty_like(table)
    codec.decode(words, [out])
    expected = np.empty_like(table)
    Codec().decode(words, [expected])
    assert_same(out, expected)
    codec.close()
