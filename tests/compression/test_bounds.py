"""The error bound: for every finite value, in float64, without slack; all other values bit for bit."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compression import Codec, Relative, inspect
from compression.inputs import source
from compression.quantize import LARGEST, SMALLEST, grid, wire_bound
from tests.compression.codec_checks import (
    LOSSY,
    as_float64,
    assert_kept,
    assert_same,
    bits_of,
    check_all,
    flushing,
    kept,
    noise,
    round_trip,
    trained,
)

TINY = float(np.finfo(np.float32).smallest_subnormal)
BOUNDS = [1e-45, 1e-40, 2.0**-126, 2.0**-101, 2.0**-100, 1e-7, 1e-3, 0.03, 1.0, 1e3, 1e30, 3e38, 1e308]
SPECIAL = np.array(
    (0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000,
     0x7F800001, 0x7FC00000, 0xFFC00001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001, 0x7FA55A5A),
    np.uint32,
).view(np.float32)  # fmt: skip
"""Zeros, the smallest and largest numbers, infinities, NaNs of all kinds."""


def test_the_judge_sees_a_nan_and_a_hair_too_much():
    x = np.array([1.0, np.nan, -0.0, np.inf, 2.0], np.float32)
    assert kept(x, x, 0.0).all()
    for i, wrong in (
        (0, np.nan),
        (0, np.nextafter(np.float32(1.5), np.float32(2))),
        (1, 1.0),
        (2, 0.0),
        (3, -np.inf),
        (4, np.inf),
    ):
        y = x.copy()
        y[i] = wrong
        assert np.flatnonzero(~kept(x, y, 0.5)).tolist() == [i]
    other_nan = np.array([0x7FC00001], np.uint32).view(np.float32)
    assert not kept(np.float32([np.nan]), other_nan, 1.0)


def test_a_broken_decoder_is_seen(codec, monkeypatch):
    def broken(payload, outs, decode=codec.decode):
        decode(payload, outs)
        outs[0][3, 2] = np.nan

    monkeypatch.setattr(codec, "decode", broken)
    with pytest.raises(AssertionError, match=r"1 of 1600 values, first .* came back as .*nan"):
        check_all(codec, trained(100, 16), 0.01)


@pytest.mark.parametrize("bound", BOUNDS)
def test_every_exponent_and_every_special_value(codec, bound):
    mantissas = np.array([0, 1, 0x2AAAAA, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFE, 0x7FFFFF], np.uint32)
    bits = (np.arange(512, dtype=np.uint32)[:, None] << 23) | mantissas
    check_all(codec, bits.view(np.float32), bound, LOSSY)
    # A few of them among values that are held, so that the chains are not given up.
    table = (min(bound, 1e36) * trained(4096, 8, scale=3.0)).astype(np.float32)
    table.reshape(-1)[::64][: bits.size // 8] = bits.view(np.float32).reshape(-1)[::8][:512]
    table.reshape(-1)[7::257][: SPECIAL.size] = SPECIAL
    check_all(codec, table, bound, LOSSY)
    if 1e-30 < bound < 1e36:
        assert [inspect(codec.encode([table], bound, chain))[0]["chain"] for chain in LOSSY] == list(LOSSY)


@pytest.mark.parametrize("chain", LOSSY)
def test_sixteen_million_random_patterns(codec, chain):
    """2^24 random bit patterns; half of them with exponents that codes reach, so that most are quantised."""
    rng = np.random.default_rng(LOSSY.index(chain))
    for bound in np.geomspace(1e-7, 1e3, 32):
        bits = rng.integers(0, 2**32, (2**15, 16), np.uint64).astype(np.uint32)
        assert_kept(bits.view(np.float32), round_trip(codec, bits.view(np.float32), bound, chain)[1], bound)
        top = int(np.float32(100 * bound).view(np.uint32)) >> 23
        some = bits & 0x807FFFFF | (rng.integers(top - 12, top, bits.shape, np.uint32) << 23)
        table = np.where(rng.random(bits.shape) < 0.02, bits, some).view(np.float32)
        payload, out = round_trip(codec, table, bound, chain)
        assert inspect(payload)[0]["chain"] == chain
        assert_kept(table, out, bound)


@settings(deadline=None, max_examples=60)
@given(st.floats(1e-20, 1e20), st.integers(0, 2**32 - 1))
def test_ties_of_rounding(bound, seed):
    """Values at the middle of two codes, at the bound from a code, and their neighbours among the floats."""
    step = np.float64(grid(wire_bound(bound))[0])
    codes = np.random.default_rng(seed).integers(-1000, 1000, (256, 1))
    with np.errstate(over="ignore"):
        middle = np.hstack(
            [(codes + 0.5) * step, codes * step + bound, codes * step - bound, codes * step, codes * 2 * bound]
        )
        near = middle.astype(np.float32)
        for _ in range(2):
            near = np.hstack([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))])
    check_all(Codec(), near, bound, LOSSY)


@pytest.mark.parametrize("bound", [1e-6, 1.0, 0.3, 2.0**-20])
def test_quotients_near_integer_overflow(codec, bound):
    """x / bound around the limits of 8-, 16-, 32- and 64-bit integers, and of the float's 24 bits of precision."""
    edges = np.array([2.0**k * scale * bound for k in (7, 8, 15, 16, 22, 23, 24, 31, 32, 63, 64) for scale in (1, 2)])
    spread = edges[:, None] * (1 + np.linspace(-1e-2, 1e-2, 101)) + bound * np.linspace(-2, 2, 101)
    extreme = np.concatenate([spread.reshape(-1), [3e38, 3.4e38, 1e38, np.finfo(np.float32).max]])
    extreme = np.concatenate([extreme, -extreme]).astype(np.float32)
    check_all(codec, extreme.reshape(-1, 1), bound, LOSSY)
    table = (bound * trained(4000, 16, scale=3.0)).astype(np.float32)
    at = np.arange(extreme.size) * 13 % table.size
    table.reshape(-1)[at] = extreme
    for chain in LOSSY:
        payload, out = round_trip(codec, table, bound, chain)
        assert inspect(payload)[0]["chain"] == chain, "a few values out of reach are no reason to give up"
        assert_kept(table, out, bound)
        far = np.abs(as_float64(table)) > 2.0**31 * bound
        assert far.any()
        assert np.array_equal(bits_of(table)[far], bits_of(out)[far])


@pytest.mark.parametrize("share", [1e-5, 1e-7, 1e-9, 1e-12, 1e-16])
def test_very_small_bounds_fall_back(codec, share):
    table = np.random.default_rng(0).uniform(-30, 40, (600, 16)).astype(np.float32)
    for bound in (share, 70 * share):
        check_all(codec, table, bound)
        _, out = round_trip(codec, table, Relative(share))
        assert_kept(table, out, share * float(np.ptp(table)))


def test_bounds_at_the_ends_of_their_range(codec):
    table = trained(500, 16)
    for bound in (SMALLEST, np.nextafter(SMALLEST, 0), LARGEST, 2 * LARGEST, 1.7e308, 5e-324, TINY):
        for scale in (1.0, 1e38, 1e-38, bound, bound / 100):
            with np.errstate(over="ignore", under="ignore"):
                check_all(codec, (table * scale).astype(np.float32), bound, LOSSY)
    payload, out = round_trip(codec, table, 5e-324, "rans")
    assert_same(table, out)
    assert inspect(payload)[0]["chain"] == "lossless"


@pytest.mark.parametrize("value", [0.0, 3.14, -0.0, math.nan, math.inf, 1e-45, 3.4e38, -5.0])
def test_equal_values(codec, value):
    for shape in ((1, 1), (50, 16), (3000, 8), (1, 4000), (4000, 1)):
        table = np.full(shape, value, np.float32)
        for bound in (0.0, 1e-45, 1e-3, 100.0):
            check_all(codec, table, bound)
        with_outlier = table.copy()
        with_outlier[shape[0] // 2, shape[1] // 2] = 1e9
        check_all(codec, with_outlier, 1e-3)
        _, out = round_trip(codec, table, Relative(0.1))
        assert_same(table, out)  # no range, so no error
    if math.isfinite(value) and value and abs(value) < 1e3:
        assert len(round_trip(codec, np.full((3000, 8), value, np.float32), 1e-3, "rans")[0]) < 600


def test_nan_and_infinities_leave_their_neighbours_in_bound(codec):
    table = trained(2000, 16)
    table[::17, 3] = SPECIAL[np.arange(len(table[::17])) % SPECIAL.size]
    for chain in LOSSY:
        payload, out = round_trip(codec, table, 0.01, chain)
        assert inspect(payload)[0]["chain"] == chain
        assert_kept(table, out, 0.01)
    assert_kept(table[:40], round_trip(codec, table[:40], Relative(0.01))[1], 0.01 * 6.9e38)


def test_scales_that_differ_by_many_orders_in_one_row(codec):
    scales = np.array([1e-30, 1.0, 1e30, 1e-10, 1e10, 0, 1e38, 1e-40])
    with np.errstate(over="ignore", under="ignore"):
        table = (np.random.default_rng(0).standard_normal((500, 8)) * scales).astype(np.float32)
    for bound in (1e-30, 1e-6, 1e-3, 1.0, 1e10, 1e29):
        check_all(codec, table, bound, LOSSY)
        check_all(codec, np.ascontiguousarray(table.T), bound, LOSSY)
        check_all(codec, np.sort(table.reshape(-1)).reshape(-1, 4), bound, LOSSY)


def test_gradients_of_a_real_embedding_step(codec):
    torch.manual_seed(0)
    weights = torch.nn.Embedding(500, 16)
    ids = torch.randint(0, 500, (2048,)).float().pow(2).div(500).long()
    out = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))(weights(ids))
    torch.nn.functional.binary_cross_entropy_with_logits(out[:, 0], (ids % 3 == 0).float()).backward()
    gradient = weights.weight.grad
    assert gradient is not None
    for bound in (1e-9, 1e-6, 0.02 * float(gradient.abs().max())):
        check_all(codec, gradient, bound, LOSSY)


# Subnormal numbers, and the mode in which the processor takes them as zeros.


def subnormal_tables() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    subnormal = rng.integers(0, 2**23, (64, 16), np.uint32) | rng.integers(0, 2, (64, 16), np.uint32) << 31
    tiny = rng.integers(0, 29 << 23, (64, 16), np.uint32) | rng.integers(0, 2, (64, 16), np.uint32) << 31
    mixed = trained(64, 16).view(np.uint32).copy()
    mixed[::3] = subnormal[::3]
    mixed[1::3, ::2] = tiny[1::3, ::2]
    return [bits.view(np.float32) for bits in (subnormal, tiny, mixed)]


@pytest.mark.parametrize("bound", [0.0, 1e-45, 1e-40, 2.0**-120, 2.0**-100, 3 * 2.0**-100, 1e-6, 1.0])
def test_subnormals_with_and_without_flushing(codec, bound):
    """Encoded and decoded in either mode: the same bytes, in bound, exact where the bound is too small."""
    for table in subnormal_tables():
        for chain in LOSSY:
            plain = codec.encode([table], bound, chain).tobytes()
            outs = [np.empty_like(table) for _ in range(2)]
            codec.decode(plain, outs[:1])
            with flushing():
                flushed = codec.encode([table], bound, chain).tobytes()
                codec.decode(plain, outs[1:])
            assert plain == flushed
            assert_same(outs[0], outs[1])
            assert_kept(table, outs[0], bound)
            if bound < SMALLEST:
                assert_same(table, outs[0])


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_subnormal_halves_with_and_without_flushing(codec, name):
    patterns = torch.arange(-(2**15), 2**15, 7, dtype=torch.int32).to(torch.int16).view(getattr(torch, name))
    table = patterns[: len(patterns) // 16 * 16].reshape(-1, 16)
    for bound in (2.0**-100, 2.0**-26, 2.0**-14, 1.0):
        payload = codec.encode([table], bound, "bitpack").tobytes()
        with flushing():
            assert codec.encode([table], bound, "bitpack").tobytes() == payload
            out = torch.empty_like(table)
            codec.decode(payload, [out])
        assert_kept(table, out, bound)


# Bounds relative to the range of a table.


def test_relative_is_of_the_range_of_each_table(codec):
    one = np.random.default_rng(0).uniform(5, 6, (800, 16)).astype(np.float32)
    large = 1e4 * one
    for chain in ("auto", *LOSSY):
        payload = codec.encode([one, large], Relative(0.01), chain).tobytes()
        outs = [np.empty_like(one), np.empty_like(large)]
        codec.decode(payload, outs)
        for table, out, section in zip((one, large), outs, inspect(payload), strict=True):
            bound = 0.01 * float(as_float64(table).max() - as_float64(table).min())
            assert_kept(table, out, bound)
            if section["chain"] in LOSSY:
                assert 0.999 * bound < section["bound"] <= bound
    assert inspect(payload)[1]["bound"] > 5000 * inspect(payload)[0]["bound"]
    mixed = codec.encode([one, large], [Relative(0.05), 1.0], "rans")
    assert [round(section["bound"], 3) for section in inspect(mixed)] == [0.05, 1.0]


def test_the_range_is_that_of_finite_values(codec):
    table = np.random.default_rng(0).uniform(-1, 1, (800, 16)).astype(np.float32)
    table[3, :5] = np.nan, np.inf, -np.inf, -0.0, np.nan
    payload, out = round_trip(codec, table, Relative(0.01), "rans")
    assert_kept(table, out, 0.02)
    assert 0.019 < inspect(payload)[0]["bound"] < 0.02
    for wild in (
        np.full((9, 9), np.nan, np.float32),
        np.full((9, 9), np.inf, np.float32),
        np.empty((0, 9), np.float32),
    ):
        assert_same(wild, round_trip(codec, wild, Relative(0.5))[1])
    assert_kept(noise(50, 8), round_trip(codec, noise(50, 8), Relative(1e-3))[1], 1e-3 * 6.81e38)
    whole = np.array([[-3.4e38, 3.4e38]], np.float32).repeat(300, 0)
    assert_kept(whole, round_trip(codec, whole, Relative(0.1))[1], 0.1 * 6.8e38)
    assert_kept(whole, round_trip(codec, whole, Relative(1e300))[1], 1e308)


def test_relative_and_subnormal_ranges(codec):
    for table in subnormal_tables()[:2]:
        share = 0.1 * float(as_float64(table).max() - as_float64(table).min())
        assert_kept(table, round_trip(codec, table, Relative(0.1))[1], share)


def test_the_range_of_16_bit_floats_has_no_zero_that_is_not_theirs() -> None:
    """A run of 65,536 values without a finite one says nothing of the range."""
    values = np.full((2, 65_536), np.nan, np.float16)
    values[1] = np.linspace(506, 600, 65_536).astype(np.float16)
    assert source(values).value_range() == 94.0
    assert source(np.zeros((2, 65_536), np.float16)).value_range() == 0.0
