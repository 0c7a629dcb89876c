"""Rounding at random: within the bound, with the right mean, by a seed."""

import numpy as np
import pytest
import torch

from compression import Relative, inspect
from tests.compression.codec_checks import (
    HALVES,
    LOSSY,
    as_float64,
    assert_kept,
    assert_same,
    bits_of,
    noise,
    round_trip,
    trained,
)


@pytest.mark.parametrize("chain", ["auto", *LOSSY])
def test_the_bound_holds(codec, chain):
    table = trained(2000, 16)
    table[::50] = noise(40, 16)
    for bound in (1e-7, 1e-3, 0.02, 1.0):
        for seed in (0, 1, 2**63, 2**64 - 1, -1):
            assert_kept(table, round_trip(codec, table, bound, chain, stochastic=seed)[1], bound)
    assert_kept(
        table[1:50], round_trip(codec, table[1:50], Relative(0.05), chain, stochastic=7)[1], 0.05 * np.ptp(table[1:50])
    )


@pytest.mark.parametrize("name", HALVES)
def test_the_bound_holds_for_halves(codec, name):
    """Where their precision is near the bound, too."""
    for scale, units in ((1.0, 7), (1000.0, -3), (1.9, 0)):
        table = torch.from_numpy(scale * (1 + np.random.default_rng(0).random((500, 16)) / 20)).to(HALVES[name])
        place = 2.0 ** (np.floor(np.log2(scale)) - (10 if name == "float16" else 7))
        for bound in place * np.array([0.3, 0.55, 0.95, 1.0, 1.3, 1.9, 2.0**units, 10.0, 50.0]):
            for chain in LOSSY:
                assert_kept(table, round_trip(codec, table, bound, chain, stochastic=3)[1], bound)


@pytest.mark.parametrize("value", [0.0, 0.25, 0.3, -0.7, 100.2, -20000.3, 2e6 + 0.25])
def test_the_mean_is_the_true_one(codec, value):
    """Steps are nearly 1; codes of 2 * 10^6 have an eighth of a step left in float32."""
    table = np.full((4096, 256), value, np.float32)
    for chain in LOSSY:
        payload, out = round_trip(codec, table, 1.0, chain, stochastic=12)
        error = as_float64(out) - as_float64(table)
        assert inspect(payload)[0]["chain"] != "raw"
        assert abs(error.mean()) <= 5 * max(error.std(), 1e-9) / error.size**0.5 + abs(value) * 2.0**-30


def test_the_mean_is_the_true_one_for_gradients(codec):
    table = (trained(20000, 16, scale=0.5) ** 3).astype(np.float32)
    _, out = round_trip(codec, table, 0.05, "rans", stochastic=5)
    error = as_float64(out) - as_float64(table)
    for some in (error, error[table > 0], error[table < 0], error[np.abs(table) < 0.01]):
        assert abs(some.mean()) <= 5 * some.std() / some.size**0.5
    nearest = as_float64(round_trip(codec, table, 0.05, "rans")[1])
    small = (np.abs(table) > 0.01) & (np.abs(table) < 0.04)
    assert not nearest[small].any(), "to the nearest, all of them are lost"


def test_the_seed_decides(codec):
    table = trained(500, 16, scale=1.0)
    payload, out = round_trip(codec, table, 0.1, "rans", stochastic=1)
    assert round_trip(codec, table, 0.1, "rans", stochastic=1)[0] == payload
    other = round_trip(codec, table, 0.1, "rans", stochastic=2)[1]
    assert 0.2 < (bits_of(out) != bits_of(other)).mean() < 0.8
    twice = codec.encode([table, table], 0.1, "rans", stochastic=1)
    outs = [np.empty_like(table), np.empty_like(table)]
    codec.decode(twice, outs)
    assert (outs[0] != outs[1]).any(), "tables of a message are rounded independently"


def test_what_cannot_be_rounded_is_exact(codec):
    for table in (
        trained(100, 8),
        torch.arange(64).reshape(8, 8),
        np.full((50, 4), np.nan, np.float32),
        -np.zeros((50, 4), np.float32),
    ):
        for chain in ("raw", "lossless"):
            assert_same(table, round_trip(codec, table, 0.1, chain, stochastic=1)[1])
        assert_same(table, round_trip(codec, table, 0.0, stochastic=1)[1])
    assert_same(np.empty((0, 4), np.float32), round_trip(codec, np.empty((0, 4), np.float32), 0.1, stochastic=1)[1])
