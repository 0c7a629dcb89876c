"""Tables of any shape, layout and dtype come back: exactly without a bound, within it with one."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compression import Codec, CorruptPayloadError, Relative, inspect, wire
from compression.wire import CHAINS, DTYPES
from tests.compression.codec_checks import (
    HALVES,
    LOSSY,
    assert_kept,
    assert_same,
    check_all,
    empty_like,
    noise,
    round_trip,
    trained,
)

SHAPES = [(0, 0), (0, 5), (5, 0), (1, 1), (1, 300), (300, 1), (2, 3), (7, 16), (8, 16), (3, 5000), (700, 17), (40, 200)]


@st.composite
def tables(draw):
    """(float32 table, bound): rows that repeat or not, values on many scales, some that no code holds."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, columns = draw(st.integers(0, 90)), draw(st.integers(0, 40) | st.sampled_from([127, 128, 129]))
    table = trained(rows, columns, int(rng.integers(2**32)), draw(st.integers(1, 90)), 10.0 ** draw(st.integers(-6, 6)))
    special = rng.random(table.shape) < draw(st.sampled_from([0, 0, 0.01, 0.5]))
    table[special] = noise(*table.shape, int(rng.integers(2**32)))[special]
    bound = draw(st.sampled_from([0.0, 1e-7, 1e-3, 0.05, 3.0, 1e4]) | st.floats(1e-9, 1e9))
    return table, bound


@settings(deadline=None, max_examples=60)
@given(tables(), st.sampled_from(["auto", *CHAINS]))
def test_any_table_comes_back_within_any_bound(case, chain):
    table, bound = case
    payload, out = round_trip(Codec(), table, bound, chain)
    assert_kept(table, out, bound)
    if bound == 0 or chain in ("raw", "lossless"):
        assert_same(table, out)
    assert len(payload) <= wire.max_bytes([(*table.shape, 4)])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_shape_comes_back(codec, shape):
    table = trained(*shape) if min(shape) else np.empty(shape, np.float32)
    for bound in (0.0, 0.01):
        check_all(codec, table, bound)
        assert_kept(table, round_trip(codec, table, bound)[1], bound)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (300, 1), (3, 300), (700, 17)], ids=str)
def test_halves_come_back_within_the_bound(codec, dtype, shape):
    table = torch.from_numpy(trained(*shape) if shape[0] else np.empty(shape, np.float32)).to(HALVES[dtype])
    for bound in (0.0, 1e-4, 0.01, 3.0):
        check_all(codec, table, bound)
    assert inspect(codec.encode([table], 0.01, "rans"))[0]["dtype"] == dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_half_comes_back_within_the_bound(codec, dtype):
    """All 65536 bit patterns, in the order of their values so that neighbours are like each other."""
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(HALVES[dtype]).reshape(-1, 16)
    for bound in (2.0**-24, 1e-3, 0.4, 100.0, 1e30):
        check_all(codec, patterns, bound, LOSSY)
    ordinary = patterns[(patterns.abs() < 8).all(1) & (patterns.abs() > 0.01).all(1)]
    payload, out = round_trip(codec, ordinary, 0.1, "rans")
    assert inspect(payload)[0]["chain"] == "rans"
    assert_kept(ordinary, out, 0.1)


def test_large_halves_are_not_rounded_to_infinity(codec):
    for dtype, most in ((torch.float16, 65504.0), (torch.bfloat16, 3.3895e38)):
        table = torch.linspace(most / 2, most, 4096, dtype=torch.float64).to(dtype).reshape(-1, 8)
        check_all(codec, torch.cat([table, -table]), most / 40, LOSSY)


def layouts() -> dict[str, np.ndarray]:
    base = trained(60, 24)
    shifted = np.zeros(base.nbytes + 1, np.uint8)
    unaligned = shifted[1:].view(np.float32).reshape(base.shape)
    unaligned[:] = base
    fixed = np.frombuffer(base.tobytes(), np.float32).reshape(base.shape)
    assert not fixed.flags.writeable
    return {
        "turned": base.T,
        "every second column": base[:, ::2],
        "every second row": base[::2],
        "backwards": base[::-1, ::-1],
        "part": base[3:17, 5:9],
        "column-major": np.asfortranarray(base),
        "a row for all": np.broadcast_to(base[0], (60, 24)),
        "unaligned": unaligned,
        "read-only": fixed,
        "a column": base[:, 3:4],
        "none of its columns": base[:, 5:5],
    }


@pytest.mark.parametrize("name", layouts())
@pytest.mark.parametrize("chain", ["auto", *CHAINS])
def test_any_layout_in_memory_is_as_a_contiguous_table(codec, name, chain):
    table = layouts()[name]
    payload = codec.encode([table], 0.01, chain).tobytes()
    if chain != "auto":  # which goes by the clock
        assert payload == codec.encode([np.ascontiguousarray(table)], 0.01, chain).tobytes()
    expected = np.empty(table.shape, np.float32)
    codec.decode(payload, [expected])
    assert_kept(table, expected, 0.01)
    if table.flags.writeable and 0 not in table.strides:
        whole = layouts()[name]
        whole[:] = 7
        codec.decode(payload, [whole])
        assert_same(whole, expected)


def test_layouts_of_tensors(codec):
    base = torch.from_numpy(trained(60, 24))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for turn in (lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[5:9, 3:17], lambda x: x[:1].expand(50, 24)):
            table = turn(base.to(dtype))
            assert not table.is_contiguous()
            _, out = round_trip(codec, table, 0.01, "rans")
            assert_kept(table, out, 0.01)
            payload = codec.encode([table.contiguous()], 0.01, "rans").tobytes()
            whole = torch.full(base.shape, 7.0, dtype=dtype)
            if 0 not in table.stride():
                target = turn(whole)
                codec.decode(payload, [target])
                assert_same(target, out)
                assert int((whole != 7).sum()) <= target.numel(), "written beside the output"


def test_tables_and_outputs_of_a_model_may_require_gradients(codec):
    table = torch.from_numpy(trained(100, 8)).requires_grad_()
    out = torch.zeros(100, 8, requires_grad=True)
    codec.decode(codec.encode([table], 0.01), [out])
    assert_kept(table, out, 0.01)
    codec.decode(codec.encode([table * 2], 0.01), [out])
    assert_kept(table * 2, out, 0.01)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_comes_back_exactly(codec, name):
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        table = torch.empty(shape, dtype=getattr(torch, name))
        if table.numel():
            raw = rng.integers(0, 2 if name == "bool" else 256, table.nbytes, np.uint8)
            table = torch.from_numpy(raw).view(table.dtype).reshape(shape)
        for some in (table, table[:1].expand(*shape) if shape[0] else table):
            for chain in ("auto", "raw", "lossless"):
                assert_same(some, round_trip(codec, some, 0.0, chain)[1])
            if name not in ("float32", "float16", "bfloat16"):
                for chain in ("auto", *LOSSY):  # a bound is for floats of up to 32 bits alone
                    payload, out = round_trip(codec, some, 0.5, chain)
                    assert_same(some, out)
                    assert inspect(payload)[0]["bound"] == 0
                assert_same(some, round_trip(codec, some, Relative(0.5))[1])
            if name != "bfloat16":
                assert_same(some, round_trip(codec, some.numpy(), 0.0)[1])


def test_a_message_holds_many_tables_each_with_its_own_bound(codec):
    names = ["float32", "int64", "float16", "float32", "bfloat16", "bool", "float32", "float64"]
    sizes = [(300, 16), (9, 4), (200, 8), (0, 16), (64, 32), (70, 1), (1, 1), (30, 3)]
    made = [
        torch.from_numpy(10 * trained(rows, columns, i) if rows else np.empty((rows, columns), np.float32))
        for i, (rows, columns) in enumerate(sizes)
    ]
    made = [table.to(getattr(torch, name)) for table, name in zip(made, names, strict=True)]
    bounds = [0.1, 3.0, 0.0, 0.5, 0.02, 0.0, 1e-6, 0.1]
    for chain in ("auto", *CHAINS):
        payload = codec.encode(made, bounds, chain).tobytes()
        outs = [empty_like(table) for table in made]
        codec.decode(payload, outs)
        for table, out, bound, section in zip(made, outs, bounds, inspect(payload), strict=True):
            assert_kept(table, out, bound)
            assert section["bound"] <= bound
            assert (section["rows"], section["columns"]) == tuple(table.shape)
            assert section["dtype"] == str(table.dtype).removeprefix("torch.")
    codec.decode(codec.encode([], 0.1), [])


def test_empty_tables_leave_their_neighbours_alone(codec):
    full = noise(9, 7)
    for chain in ("auto", *CHAINS):
        for bound in (0.0, 0.01):
            for empty in (np.empty((0, 4), np.float32), np.empty((4, 0), np.float16), np.empty((0, 0), np.int64)):
                tables = [full, empty, trained(64, 8), empty, empty, torch.ones(3, 3, dtype=torch.int8)]
                outs = [empty_like(table) for table in tables]
                codec.decode(codec.encode(tables, bound, chain), outs)
                for table, out in zip(tables, outs, strict=True):
                    assert_kept(table, out, bound)


def test_lossless_with_a_bound_is_exact_and_says_so(codec):
    for table in (trained(500, 16), trained(4, 4), noise(40, 16), np.zeros((1, 1), np.float32)):
        payload, out = round_trip(codec, table, 1e-3, "lossless")
        assert_same(table, out)
        section = inspect(payload)[0]
        assert section["bound"] == 0
        assert section["chain"] in ("lossless", "raw")
        assert len(payload) > 4 * (wire.HEADER + wire.DESCRIPTOR)
    assert inspect(codec.encode([trained(500, 16)], 1e-3, "lossless"))[0]["chain"] == "lossless"
    assert inspect(codec.encode([trained(500, 16)], 0.0, "rans"))[0]["chain"] == "lossless"


def test_payloads_may_be_any_bytes(codec):
    table = trained(100, 8)
    payload = codec.encode([table], 0.01, "rans").copy()
    expected = np.empty_like(table)
    codec.decode(payload, [expected])
    shifted = np.frombuffer(b"x" + payload.tobytes(), np.uint8)[1:]
    forms = [
        payload.tobytes(),
        bytearray(payload),
        memoryview(payload),
        torch.from_numpy(payload),
        shifted,
        payload.view(np.uint32),
    ]
    for form in forms:
        out = np.empty_like(table)
        codec.decode(form, [out])
        assert_same(out, expected)
        assert inspect(form)[0]["chain"] == "rans"


def test_a_payload_is_not_changed_by_reading_it(codec):
    payload = codec.encode([trained(100, 8)], 0.01, "rans").copy()
    before = payload.tobytes()
    payload.flags.writeable = False
    codec.decode(payload, [np.empty((100, 8), np.float32)])
    payload.flags.writeable = True
    codec.decode(payload, [np.empty((100, 8), np.float32)])
    assert payload.tobytes() == before
    payload[16] ^= 1
    with pytest.raises(CorruptPayloadError, match="checksum"):
        codec.decode(payload, [np.empty((100, 8), np.float32)])
    payload[16] ^= 1
    assert payload.tobytes() == before


def test_encoding_leaves_the_tables_as_they_are(codec):
    for chain in ("auto", *CHAINS):
        table = noise(200, 16)
        table[::2] = trained(100, 16)
        before = table.tobytes()
        codec.encode([table], 0.01, chain)
        codec.encode([table], 0.01, chain, stochastic=1)
        assert table.tobytes() == before


@pytest.mark.parametrize("bound", [-1, -1e-9, float("nan"), float("inf"), -float("inf"), "0.1", "1", b"1", True, None])
def test_a_bound_that_is_none_is_refused(codec, bound):
    for wrong in (bound, [bound], Relative(bound)):
        with pytest.raises((ValueError, TypeError)):
            codec.encode([trained(10, 4)], wrong)


def test_wrong_arguments_are_refused(codec):
    table = trained(10, 4)
    for chain in ("zstd", "Rans", "", None):
        with pytest.raises(ValueError, match="no chain"):
            codec.encode([table], 0.1, chain)
    with pytest.raises(ValueError, match="2 bounds for 1 tables"):
        codec.encode([table], [0.1, 0.2])
    with pytest.raises(ValueError, match="2 chains for 1 tables"):
        codec.encode([table], 0.1, ["huffman", "rans"])
    for shape in ((4,), (2, 2, 2), ()):
        with pytest.raises(ValueError, match="rows and columns"):
            codec.encode([np.zeros(shape, np.float32)])
        with pytest.raises(ValueError, match="rows and columns"):
            codec.decode(codec.encode([table]), [np.zeros(shape, np.float32)])
    unfit = [np.zeros((2, 2), name) for name in ("complex64", ">f4", "uint16", "U3", "O", "longdouble")]
    unfit += [torch.zeros(2, 2, dtype=torch.complex64), torch.zeros(2, 2, device="meta"), torch.zeros(2, 2).to_sparse()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unfit.append(torch.quantize_per_tensor(torch.zeros(2, 2), 0.1, 0, torch.qint8))
    for wrong in unfit:
        with pytest.raises(TypeError):
            codec.encode([wrong])
        with pytest.raises(TypeError):
            codec.decode(codec.encode([np.zeros((2, 2), np.float32)]), [wrong])
    fixed = np.empty((10, 4), np.float32)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        codec.decode(codec.encode([table]), [fixed])
    for threads, link in ((0, 1e9), (-1, 1e9), (1, 0.0), (1, -1.0), (1, float("nan"))):
        with pytest.raises(ValueError, match="positive"):
            Codec(threads, link)


def test_payloads_are_the_same_again_whatever_was_coded_before():
    tables = [trained(700, 16), noise(50, 3), trained(900, 1), trained(40, 200)]
    for chain in CHAINS:
        clean = Codec()
        expected = clean.encode(tables, 0.01, chain).tobytes()
        used = Codec()
        used.encode([noise(3000, 40)], 0.01, chain)
        used.encode([np.full((2000, 40), 1e30, np.float32)], 1e30, chain)
        for codec in (clean, used):
            assert codec.encode(tables, 0.01, chain).tobytes() == expected
