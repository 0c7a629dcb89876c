"""Payloads of the kernels are byte for byte those of the CPU codec, and each decodes the other's."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compression import Codec, CorruptPayloadError, Relative, inspect, wire
from compression.device.records import BLOCK, Tables, make_plan
from tests.compression.codec_checks import HALVES, assert_kept, noise, sealed, trained
from tests.compression.device.helpers import OnCpu, raw
from tests.compression.test_bitpack import SPECIAL, floats_of
from tests.compression.test_round_trips import SHAPES, layouts
from tests.compression.test_round_trips import tables as any_tables

LENGTHS = (*range(131), BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 32)
DTYPES = ("float32", "float16", "bfloat16")
KERNELS = ("bitpack", "dedup", "huffman")
"""Chains that have kernels, besides raw."""


def cast(table: np.ndarray, dtype: str) -> Any:
    return table if dtype == "float32" else torch.from_numpy(table).to(HALVES[dtype])


def check(
    device: OnCpu, codec: Codec, tables: list[Any], bounds: Any, chain: str = "bitpack", **more: Any
) -> list[str]:
    """One message: same bytes, each side decodes them to the same; the chains of its sections."""
    wanted = codec.encode(tables, bounds, chain, **more).tobytes()
    assert device.encode([tables], bounds, chain, **more) == [wanted]
    outs = [torch.empty_like(t) if isinstance(t, torch.Tensor) else np.empty_like(t) for t in tables]
    codec.decode(wanted, outs)
    before, sections = device.codec.on_host, inspect(wanted)
    for out, decoded in zip(outs, device.decode([wanted], [tables])[0], strict=True):
        assert raw(out).tobytes() == decoded.tobytes()
    known = all(one["chain"] in ("raw", *KERNELS) and one["dtype"] in DTYPES for one in sections)
    assert device.codec.on_host == before or not known
    return [section["chain"] for section in sections]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(any_tables(), max_size=4),
    st.sampled_from([*KERNELS, "raw"]),
    st.booleans(),
    st.sampled_from(DTYPES),
)
def test_any_message_has_the_bytes_of_the_cpu_codec(device, codec, cases, chain, relative, dtype):
    tables = [cast(table, dtype) for table, _ in cases]
    bounds = [Relative(bound / 1e3) if relative else bound for _, bound in cases]
    check(device, codec, tables, bounds, chain)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 3000) | st.sampled_from([BLOCK - 1, BLOCK, BLOCK + 1, 9 * BLOCK]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.0005, 0.05, 1.0]),
    st.sampled_from([1.0, 0.02, 1e-3, 1e-30, 1e30]),
    st.sampled_from(DTYPES),
)
def test_values_of_many_scales(device, codec, n, seed, special, bound, dtype):
    check(device, codec, [cast(floats_of(n, seed, special).reshape(-1, 1), dtype)], bound)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pc19_every_short_length(device, codec, dtype):
    tables = [cast(trained(n, 1, n), dtype) for n in LENGTHS]
    chains = check(device, codec, tables, 0.01)
    assert "bitpack" in chains and "raw" in chains


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_shape(device, codec, shape):
    table = trained(*shape) if min(shape) else np.empty(shape, np.float32)
    for bound in (0.01, Relative(0.02), 1.0):
        check(device, codec, [table], bound)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_half(device, codec, dtype):
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(HALVES[dtype]).reshape(-1, 16)
    finite = patterns[torch.isfinite(patterns).all(1)]
    ordinary = patterns[(patterns.abs() < 8).all(1) & (patterns.abs() > 0.01).all(1)]
    for bound in (2.0**-24, 1e-3, 0.4, 100.0, 1e30, Relative(1e-3)):
        check(device, codec, [patterns, finite], bound)
    assert check(device, codec, [ordinary], 0.1) == ["bitpack"]


@pytest.mark.parametrize("chain", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_stochastic_rounding(device, codec, dtype, chain):
    table = trained(700, 16)
    table.ravel()[::97] = np.resize(SPECIAL, table.ravel()[::97].size)
    tables = [cast(table, dtype), cast(trained(9, 4), dtype), cast(trained(3, 1), dtype)]
    for bound in (0.05, Relative(0.02), 0.5):
        assert check(device, codec, tables, bound, chain, stochastic=2**63 + 5)[0] == chain


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns", "distinct", "scale"), [
    (700, 16, 30, 0.1), (700, 16, 700, 0.1), (4000, 2, 3, 0.1), (2500, 3, 2500, 0.1), (9, 4096, 2, 0.1),
    (8, 2, 1, 0.1), (300, 33, 40, 60.0), (2100, 7, 5, 40.0), (3000, 24, 1, 0.1),
])  # fmt: skip
def test_equal_rows_are_sent_once(device, codec, rows, columns, distinct, scale, dtype):
    """Codes of one and two bytes, rows of whole words and not, patches, all rows distinct and only one."""
    table = trained(rows, columns, 1, distinct, scale)
    patched = table.copy()
    patched.ravel()[::131] = np.resize(SPECIAL, patched.ravel()[::131].size)
    small = trained(7, columns, 2, 1)
    chains = check(device, codec, [cast(one, dtype) for one in (table, patched, small)], 0.02, "dedup")
    assert chains[2] != "dedup"
    assert "dedup" in chains[:2] or (dtype, scale) == ("bfloat16", 40.0)  # its steps are wider than the bound


def test_messages_share_their_launches(device, codec):
    """All messages of a step in one call, empty ones and messages of empty tables among them."""
    messages = [
        [trained(50, 16, 1), trained(2000, 8, 2)],
        [],
        [np.empty((0, 16), np.float32)],
        [noise(40, 30), trained(1, 1), cast(trained(33, 3), "bfloat16")],
        [np.zeros((64, 64), np.float32)] * 3,
    ]
    before = device.codec.on_host
    made = device.encode(messages, 0.01)
    assert made == [codec.encode(message, 0.01, "bitpack").tobytes() for message in messages]
    decoded = device.decode(made, messages)
    assert device.codec.on_host == before
    for message, outs in zip(messages, decoded, strict=True):
        for table, out in zip(message, outs, strict=True):
            assert_kept(table, out.view(np.float32).reshape(table.shape), 0.01) if not isinstance(
                table, torch.Tensor
            ) else None
    assert device.encode([], 0.01) == []
    device.decode([], [])


def test_pc39_a_large_table_is_cut_as_the_cpu_codec_cuts_it(device, codec):
    large = np.resize(trained(50, 64), (33000, 64))
    assert check(device, codec, [large[:20], large], 0.5) == ["bitpack"] * 3


def test_pc39_offsets_beyond_32_bits():
    """Arithmetic alone: sections, blocks and addresses of tables of 2^31 values and more."""
    rows = np.array([2**31 - 1, 2**31, 40_000_000, 2**33], np.int64)
    columns = np.array([1, 1, 64, 1], np.int64)
    zero = np.zeros(4, np.int64)
    for i in range(3):
        tables = Tables(np.array([2**40], np.uint64), rows[i : i + 1], columns[i : i + 1], zero[:1], zero[:1], 1)
        plan = make_plan(tables)
        assert plan.sections["n"].sum() == rows[i] * columns[i]
        last = plan.sections[-1]
        end = int(last["values"]) + 4 * int(last["n"])
        assert end == 2**40 + 4 * int(rows[i]) * int(columns[i])
        assert int(last["first_value"]) + int(last["n"]) == rows[i] * columns[i]
        assert plan.owners.size == -(-plan.sections["n"] // BLOCK).sum() and plan.owners[-1] == len(plan.sections) - 1
    with pytest.raises(ValueError, match="at most"):
        make_plan(Tables(np.array([0], np.uint64), rows[3:], columns[3:], zero[:1], zero[:1], 1))
    wide = Tables(np.array([0], np.uint64), zero[:1] + 1, rows[3:], zero[:1], zero[:1], 1)
    with pytest.raises(ValueError, match="too wide"):
        make_plan(wide)


@pytest.mark.parametrize("name", layouts())
def test_pc34_layouts_that_are_made_contiguous(device, codec, name):
    check(device, codec, [layouts()[name]], 0.01)


RANDOM_BITS = np.random.default_rng(1).integers(0, 2**32, 2**14, np.uint64).astype(np.uint32).view(np.float32)
NORMAL = np.random.default_rng(2).standard_normal(5000).astype(np.float32)
LINE = np.linspace(-1, 1, 2000, dtype=np.float32)
OVER_INTEGERS = np.array([3e38, -3e38, 2**31 * 1e-6, 2**63 * 1e-6, 1.0], np.float32)
# Values and bounds of hard cases, by the number of the case.
HARD = {
    "pc01 every exponent": (RANDOM_BITS, (1e-7, 1e-3, 1.0, 1e3)),
    "pc18 tiny bounds": (35 * LINE, (1e-5, 1e-7, 1e-16, Relative(1e-5), Relative(1e-16))),
    "pc20 random bits": (noise(1, 4097).ravel(), (1e-6, 1.0, 1e30)),
    "pc22 zeros": (np.zeros(3000, np.float32), (0.01,)),
    "pc22 pi": (np.full(3000, 3.14, np.float32), (0.01, Relative(0.01))),
    "pc22 minus zeros": (np.full(3000, -0.0, np.float32), (0.01,)),
    "pc22 one outlier": (np.where(np.arange(3000) == 77, np.float32(1e30), np.float32(2)), (0.01,)),
    "pc22 NaN": (np.full(3000, np.nan, np.float32), (0.01, Relative(0.01))),
    "pc23 wide range": (np.resize(np.array([1e-30, 1, 1e30, -3], np.float32), 5000), (1e-3, 1.0, 1e28)),
    "pc24 subnormals": (np.arange(2000, dtype=np.uint32).view(np.float32), (1e-45, 1e-40, 1e-6)),
    "pc24 below 2^-98": (np.float32(2.0**-99) * LINE, (1e-45, 1e-40, 1e-32, 1e-30)),
    "pc26 white noise": (NORMAL, (Relative(1e-6), Relative(1e-9))),
    "pc28 overflow": (np.resize(OVER_INTEGERS, 4000), (1e-6, 1e-3)),
    "pc29 halves": ((np.arange(4000) - 2000).astype(np.float32) * np.float32(0.01), (0.01, 0.005, 0.02)),
}


@pytest.mark.parametrize("chain", KERNELS)
@pytest.mark.parametrize("name", HARD)
def test_hard_values(device, codec, name, chain):
    values, bounds = HARD[name]
    for bound in bounds:
        check(device, codec, [values.reshape(-1, 1), values.reshape(1, -1), values[:999].reshape(-1, 9)], bound, chain)


def test_what_has_no_kernel_goes_through_the_host(device, codec):
    before = device.codec.on_host
    tables = [trained(300, 8), trained(40, 4)]
    for bounds, chain in ((0.0, "auto"), (0.0, "huffman"), (0.1, "rans"), ([0.1, 0.0], "bitpack"), (0.1, "lossless")):
        name = "bitpack" if chain == "auto" else chain
        assert device.encode([tables], bounds, chain) == [codec.encode(tables, bounds, name).tobytes()]
    assert device.codec.on_host == before + 5
    assert check(device, codec, tables, Relative(0.0))[0] == "lossless"


@pytest.mark.parametrize("dtype", ["float64", "bool", "int64", "int8"])
def test_pc104_other_dtypes_go_through_the_host(device, codec, dtype):
    check(device, codec, [(trained(60, 5) * 9).astype(dtype), trained(60, 5)], 0.0)


def test_bounds_and_chains_are_checked(device):
    table = trained(9, 4)
    for bounds, chain in (([0.1], "bitpack"), (-1.0, "bitpack"), (np.nan, "bitpack"), (0.1, "zip"), (0.1, ["raw"])):
        with pytest.raises(ValueError, match=r"bound|chain"):
            device.encode([[table, table]], bounds, chain)


def test_pc105_memory_is_kept(device):
    """Buffers grow to the largest message, and no allocation is made after it."""
    rng = np.random.default_rng(0)
    device.encode([[trained(600, 16)] * 4], 0.01)
    device.decode(device.encode([[trained(600, 16)] * 4], 0.01), [[trained(600, 16)] * 4])
    held, tables = device.codec.size, [device.matrix(trained(int(n), 16)) for n in rng.integers(1, 600, 20)]
    before = device.allocated
    for _, matrix in tables:
        device.codec.encode([[matrix] * 4], 0.01)
    assert (device.codec.size, device.allocated) == (held, before)


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32 - 1), st.sampled_from(KERNELS))
def test_damaged_payloads_are_refused_and_nothing_else_is_touched(device, codec, seed, chain):
    """Words are changed and the checksum is made right: the kernels stay within their buffers (AddressSanitizer), and
    what they accept is what the CPU codec decodes."""
    rng = np.random.default_rng(seed)
    tables = [trained(150, 16, 1), np.resize(SPECIAL, (9, 3)), trained(70, 20, 2)]
    words = np.frombuffer(codec.encode(tables, 0.01, chain).tobytes(), np.uint32).copy()
    for _ in range(rng.integers(1, 4)):
        place = rng.integers(0, 30 if rng.random() < 0.5 else words.size)
        word = int(words[place])
        words[place] = rng.choice([rng.integers(0, 2**32), word + 1, word - 1, 0, 2**32 - 1, 1 << 31]) % 2**32
    if rng.random() < 0.2:
        words = words[: rng.integers(0, words.size)]
    if words.size >= wire.HEADER and rng.random() < 0.9:
        words = sealed(words)
    payload, outs = words.tobytes(), [np.empty_like(table) for table in tables]
    try:
        codec.decode(payload, outs)
    except CorruptPayloadError as error:
        with pytest.raises(CorruptPayloadError, match=str(error).partition(":")[0][:12]):
            device.decode([payload], [tables])
    else:
        assert [out.tobytes() for out in device.decode([payload], [tables])[0]] == [out.tobytes() for out in outs]


def test_one_damaged_message_does_not_harm_the_others(device, codec):
    tables = [trained(100, 8)]
    good = codec.encode(tables, 0.01, "bitpack").tobytes()
    bad = bytearray(good)
    bad[50] ^= 1
    with pytest.raises(CorruptPayloadError, match="checksum"):
        device.decode([good, bytes(bad), good], [tables] * 3)
    with pytest.raises(CorruptPayloadError, match="length"):
        device.decode([good[:-3], good], [tables] * 2)
