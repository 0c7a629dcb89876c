"""A payload is never larger than the raw bytes and its header, and nothing is written beside an output."""

import numpy as np
import pytest
import torch

from compression import Codec, inspect
from compression.wire import CHAINS, DESCRIPTOR, HEADER, max_bytes
from tests.compression.codec_checks import (
    HALVES,
    LOSSY,
    Framed,
    as_float64,
    assert_kept,
    assert_same,
    bits_of,
    noise,
    round_trip,
    trained,
)

LENGTHS = [*range(131), *(around + d for around in (256, 1024, 2048, 4096, 8192) for d in (-1, 0, 1))]


def check_framed(codec: Codec, table: np.ndarray, bound: float, chain: str) -> int:
    """Bytes of the payload, which decodes between canaries."""
    payload = codec.encode([table], bound, chain)
    assert payload.nbytes <= 4 * (HEADER + DESCRIPTOR) + (table.nbytes + 3) // 4 * 4
    assert payload.nbytes <= max_bytes([(*table.shape, table.itemsize)])
    framed = Framed(table.shape, table.dtype)
    codec.decode(payload, [framed.out])
    framed.assert_intact()
    assert_kept(table, framed.out, bound)
    return payload.nbytes


@pytest.mark.parametrize("chain", ["auto", *CHAINS])
def test_every_length_stays_inside_its_output(codec, chain):
    values = trained(9000, 1).reshape(-1)
    for n in LENGTHS:
        for shape in ((n, 1), (1, n), (n // 7, 7)):
            table = values[: shape[0] * shape[1]].reshape(shape)
            check_framed(codec, table, 0.01, chain)
            check_framed(codec, table.astype(np.float16), 0.01, chain)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("columns", [16, 31, 64])
def test_rows_around_the_blocks_stay_inside_their_output(codec, chain, columns):
    """Rows are transposed and coded in blocks of up to 4096, and a model is fitted to up to 256."""
    for rows in (7, 8, 9, 255, 256, 257, 4095, 4096, 4097):
        check_framed(codec, trained(rows, columns, rows), 0.01, chain)
        check_framed(codec, trained(rows, columns, rows, distinct=rows), 1e-5, chain)


@pytest.mark.parametrize("chain", ["auto", *CHAINS])
def test_random_bits_are_never_larger_than_raw_and_a_header(codec, chain):
    for k in range(13):
        for rows in (2**k - 1, 2**k, 2**k + 1):
            for columns in (1, 3, 16):
                for bound in (0.0, 1e-6, 1.0, 1e30):
                    check_framed(codec, noise(rows, columns, k), bound, chain)
                check_framed(codec, noise(rows, columns, k).view(np.float16), 0.01, chain)


def test_noise_at_a_bound_of_a_millionth_of_its_range(codec):
    """Over 99 % of the values are out of the reach of short codes."""
    table = np.random.default_rng(0).uniform(-1, 1, (4000, 16)).astype(np.float32)
    for chain in ("auto", *CHAINS):
        check_framed(codec, table, 2e-6, chain)
        check_framed(codec, table, 2e-9, chain)
    assert check_framed(codec, table, 2e-6, "bitpack") < 0.7 * table.nbytes


@pytest.mark.parametrize("patched", [0, 0.02, 0.0624, 0.0626, 0.1, 0.5, 1])
def test_values_that_no_code_holds_in_any_share(codec, patched):
    """From one in sixteen on, a section has no room to list them."""
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (3, 11), (1, 512), (400, 16), (2000, 3)):
        for dtype in (np.float32, np.float16):
            table = trained(*shape).astype(dtype)
            table[rng.random(shape) < patched] = np.nan
            for chain in LOSSY:
                check_framed(codec, table, 0.01, chain)


def test_small_messages_do_not_grow(codec):
    normal = np.random.default_rng(0).standard_normal((1000, 1)).astype(np.float32)
    for table in (normal, normal.T, normal.reshape(100, 10), normal[:16].T, normal[:1]):
        for bound in (0.0, 1e-9, 1e-3, 0.1, 10.0):
            for chain in ("auto", *CHAINS):
                check_framed(codec, table, bound, chain)
    assert check_framed(codec, normal, 0.01, "rans") < 0.35 * normal.nbytes


def test_a_message_has_one_header_and_a_descriptor_a_table(codec):
    tables = [noise(rows, 5, rows) for rows in range(40)]
    for chain in ("auto", *CHAINS):
        payload = codec.encode(tables, 1e-3, chain)
        assert payload.nbytes == 20 + 20 * len(tables) + sum(table.nbytes for table in tables)
        assert payload.nbytes == max_bytes([(*table.shape, 4) for table in tables])
        assert payload.nbytes == 20 + sum(20 + section["bytes"] for section in inspect(payload))
    assert codec.encode([]).nbytes == 20


def test_outputs_of_a_message_do_not_touch_each_other(codec):
    tables = [trained(40 + i, 3 + i, i).astype(dtype) for i in range(6) for dtype in (np.float32, np.float16, np.int64)]
    for chain in ("auto", *CHAINS):
        frames = [Framed(table.shape, table.dtype) for table in tables]
        codec.decode(codec.encode(tables, 0.01, chain), [frame.out for frame in frames])
        for table, frame in zip(tables, frames, strict=True):
            frame.assert_intact()
            assert_kept(table, frame.out, 0.01)


@pytest.mark.parametrize("chain", LOSSY)
def test_an_encoder_stays_inside_its_inputs(codec, chain):
    """What lies around a table, NaN here, neither changes nor changes anything."""
    for columns in (1, 5, 16):
        whole = np.full((300, columns), np.nan, np.float32)
        whole[100:200] = trained(100, columns)
        before = whole.copy()
        payload, out = round_trip(codec, whole[100:200], 0.01, chain)
        assert_same(whole, before)
        assert payload == codec.encode([before[100:200].copy()], 0.01, chain).tobytes()
        assert_kept(before[100:200], out, 0.01)


@pytest.mark.parametrize("name", HALVES)
def test_halves_never_grow_either(codec, name):
    bits = torch.from_numpy(np.random.default_rng(0).integers(-(2**15), 2**15, (301, 7)).astype(np.int16))
    table = bits.view(HALVES[name])
    for chain in ("auto", *CHAINS):
        for bound in (0.0, 1e-3, 1.0, 1e5):
            payload, out = round_trip(codec, table, bound, chain)
            assert len(payload) <= 40 + 2 * table.numel() + 2
            assert_kept(table, out, bound)


def test_ratios_of_tables_that_repeat_rows(codec):
    table = trained(4000, 16, distinct=100)
    exact = as_float64(table)
    sizes = {
        chain: len(round_trip(codec, table, 0.03 * float(exact.max() - exact.min()), chain)[0]) for chain in CHAINS
    }
    assert sizes["raw"] == 40 + table.nbytes
    assert sizes["rans"] <= sizes["huffman"] < sizes["bitpack"] < 0.25 * table.nbytes
    assert sizes["rans"] < table.nbytes / 50
    assert np.unique(bits_of(table), axis=0).shape[0] <= 100
