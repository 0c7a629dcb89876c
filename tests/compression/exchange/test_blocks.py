"""Blocks of tables in flat arrays and back, and values that are not finite."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compression.exchange.blocks import count_nonfinite, pack, unpack

F32 = np.float32


@st.composite
def blocks(draw):
    """(table, [first, counts, columns, dims]), blocks anywhere in it, some empty."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(0, 20)), draw(st.sampled_from([0, 1, 7, 16, 40]))
    lists = []
    for size in shape:
        ends = np.sort(rng.integers(0, size + 1, (2, draw(st.integers(0, 5)) if not lists else lists[0].size)), axis=0)
        lists += [ends[0], ends[1] - ends[0]]
    return rng.standard_normal(shape).astype(F32), lists


def parts(table, lists):
    return [table[a : a + n, c : c + d] for a, n, c, d in zip(*lists, strict=True)]


@given(blocks(), st.sampled_from([1, 2, 3, 0.1]))
@settings(deadline=None)
def test_blocks_go_out_and_come_back(case, divisor):
    table, lists = case
    expected = np.concatenate([np.empty(0, F32), *(part.reshape(-1) for part in parts(table, lists))])
    flat = np.full(expected.size, np.nan, F32)
    pack(table, *lists, flat)
    assert np.array_equal(flat, expected)
    back, slow = np.full_like(table, 7), np.full_like(table, 7)
    unpack(flat, *lists, divisor, back)
    for target, part in zip(parts(slow, lists), parts(table, lists), strict=True):
        target[...] = part / F32(divisor)
    assert np.array_equal(back, slow)


def test_a_divisor_of_one_copies_bits():
    bits = np.array([[0x7F800001, 0xFFC12345, 0x80000000, 1]], np.uint32).repeat(5, 1)
    table, lists = np.zeros((1, 20), F32), [np.array([n]) for n in (0, 1, 0, 20)]
    unpack(bits.view(F32).reshape(-1), *lists, 1, table)
    assert np.array_equal(table.view(np.uint32), bits)


@pytest.mark.parametrize("block", [(-1, 1, 0, 1), (3, 2, 0, 1), (0, 1, 4, 2), (0, 1, -1, 1), (0, -1, 0, -1),
                                   (2**62, 2**62, 0, 1), (0, 1, 2**62, 2**62), (0, 1, 0, 2), (0, 2, 0, 2)])  # fmt: skip
def test_a_block_that_does_not_fit_is_refused(block):
    table, flat, lists = np.zeros((4, 5), F32), np.zeros(3, F32), [np.array([n]) for n in block]
    with pytest.raises(ValueError, match="do not lie in the table"):
        pack(table, *lists, flat)
    with pytest.raises(ValueError, match="do not lie in the table"):
        unpack(flat, *lists, 2, table)


def test_what_does_not_fit_is_refused():
    table, flat, one = np.zeros((4, 5), F32), np.zeros(1, F32), np.ones(1, np.int64)
    pack(table, one, one, one, one, flat)
    for wrong in (np.zeros((4, 5)), one.astype(np.int32)):
        with pytest.raises(TypeError):
            pack(wrong, one, one, one, one, flat) if wrong.ndim == 2 else pack(table, wrong, one, one, one, flat)
    for arguments in (
        (table[:, ::2], one, one, one, one, flat),
        (table[0], one, one, one, one, flat),
        (table, one.repeat(2), one, one, one, flat),
    ):
        with pytest.raises(ValueError):
            pack(*arguments)


@given(st.integers(0, 200), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_values_that_are_not_finite_are_counted(n, seed):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, n, np.uint64).astype(np.uint32) | (rng.random(n) < 0.3) * np.uint32(0x7F800000)
    values = bits.astype(np.uint32).view(F32)
    assert count_nonfinite(values) == np.count_nonzero(~np.isfinite(values))
