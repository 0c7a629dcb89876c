"""Ids: exact in any order and of any value, small, and no payload that an encoder did not write is taken for one."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compression.checksum import checksum
from compression.errors import CorruptPayloadError
from compression.id_lists import decode_id_lists, encode_id_lists
from compression.id_values import HEADER_BYTES, LIST_BYTES, MAGIC
from compression.ids import (
    decode_ids,
    encode_ids,
)

LOW, HIGH = -(2**63), 2**63 - 1
EXTREMES = [
    [],
    [0],
    [7],
    [-1],
    [2**62],
    [LOW],
    [HIGH],
    [LOW, HIGH],
    [HIGH, LOW],
    [LOW, LOW + 1],
    [LOW, LOW + 2**32],
    [LOW, LOW + 2**32 + 1],
    [HIGH - 2**32, HIGH],
    [5, 5],
    [3, 1, 2**32],
    [3, 1, 2**32 - 1],
    [-5, -9, -7],
    [-9, -7, -5],
    [2**62, 2**62 + 1, 2**62 + 70],
    [2**62 + 70, 2**62, 2**62 + 70],
    [0, 2**32],
    [2**32 - 1, 2**32],
    [2**40, *range(2**40 + 1, 2**40 + 500)],
    [0, *range(2**33, 2**33 + 500)],
]


@st.composite
def arrays(draw):
    """Ids of a range, sorted or not, with or without duplicates."""
    n = draw(st.integers(0, 60) | st.sampled_from([1023, 1024, 1025, 8192, 8193, 20000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    base = draw(st.sampled_from([0, 2, 1000, -1000, 2**31, 2**62, LOW]))
    spread = 2 ** draw(st.integers(0, 63))
    ids = (base + np.minimum(rng.integers(0, spread, n), HIGH - max(base, 0))).astype(np.int64)
    order = draw(st.sampled_from(["as drawn", "distinct", "sorted"]))
    return ids if order == "as drawn" else np.unique(ids) if order == "distinct" else np.sort(ids)


def check(ids: np.ndarray, fast: bool) -> int:
    payload = encode_ids(ids, fast=fast)
    assert payload.size <= ids.nbytes + HEADER_BYTES
    decoded = decode_ids(payload)
    assert decoded.dtype == np.int64
    assert np.array_equal(decoded, ids)
    return payload.size


def reseal(payload: np.ndarray) -> np.ndarray:
    """With the checksum made right."""
    words = payload.view(np.uint32)
    words[-1] = checksum(words[:-1])
    return payload


@settings(deadline=None, max_examples=200)
@given(arrays(), st.booleans())
def test_any_ids_come_back(ids, fast):
    check(ids, fast)
    narrow = np.iinfo(np.int32)
    if ids.size and narrow.min <= ids.min() and ids.max() <= narrow.max:
        check(ids.astype(np.int32), fast)


@pytest.mark.parametrize("ids", EXTREMES, ids=str)
def test_extremes_come_back(ids):
    for fast in (False, True):
        check(np.array(ids, np.int64), fast)


def test_int32_extremes_are_not_larger_either():
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 5, 1000):
        check(rng.integers(-(2**31), 2**31, n).astype(np.int32), False)


@settings(deadline=None, max_examples=100)
@given(st.lists(arrays(), max_size=8), st.booleans())
@example([np.array(ids, np.int64) for ids in EXTREMES], False)
@example([np.array([7, -7], np.int64)] * 3000, True)
@example([np.array([], np.int64)] * 5000, False)
def test_lists_come_back(lists, fast):
    fits = [ids.size and ids.min() >= -(2**31) and ids.max() < 2**31 for ids in lists]
    lists = [
        ids.astype(np.int32) if fit and i % 2 else ids for i, (ids, fit) in enumerate(zip(lists, fits, strict=True))
    ]
    payload = encode_id_lists(lists, fast=fast)
    assert payload.size <= sum(ids.nbytes for ids in lists) + HEADER_BYTES + 16 + LIST_BYTES * len(lists)
    decoded = decode_id_lists(payload)
    assert len(decoded) == len(lists)
    assert all(np.array_equal(a, b) for a, b in zip(decoded, lists, strict=True))


def skewed_lists(seed: int) -> list[np.ndarray]:
    """The distinct ids of a batch in tables of many sizes, the frequent ones first."""
    rng = np.random.default_rng(seed)
    return [np.unique((size ** rng.random(2048)).astype(np.int64)) for size in (3, 30, 300, 10**3, 10**4, 10**5, 10**6)]


def test_size_is_near_the_entropy_of_the_gaps():
    entropy = single = 0
    lists = skewed_lists(1)
    for ids in lists:
        _, counts = np.unique(np.diff(ids), return_counts=True)
        entropy += -(counts * np.log2(counts / counts.sum())).sum() / 8
        single += check(ids, False)
    assert single <= 1.3 * entropy
    assert encode_id_lists(lists).size <= 1.2 * entropy
    large = np.cumsum(np.random.default_rng(2).geometric(0.01, 10**5))
    assert check(large, False) < 8.3 / 8 * large.size
    assert check(np.arange(5, 10**5), False) < 200
    assert check(large, True) < 11 / 8 * large.size


def test_tensors_strides_lists_and_bytes_are_taken():
    ids = np.arange(0, 3000, 3)
    expected = encode_ids(ids)
    for same in (torch.from_numpy(ids), ids.tolist(), np.repeat(ids, 2)[::2]):
        assert np.array_equal(encode_ids(same), expected)
    shifted = np.frombuffer(b"x" + expected.tobytes(), np.uint8)[1:]
    for payload in (expected.tobytes(), bytearray(expected), torch.from_numpy(expected), shifted):
        assert np.array_equal(decode_ids(payload), ids)
    out = np.empty(ids.size, np.int64)
    assert decode_ids(expected, out) is out
    assert np.array_equal(out, ids)


def test_wrong_arguments_are_refused():
    for ids in ([0.5], np.zeros(3, np.uint64), np.zeros(3, np.int16)):
        with pytest.raises(TypeError, match="int64 or int32"):
            encode_ids(ids)
    with pytest.raises(ValueError, match="one dimension"):
        encode_ids(np.zeros((2, 2), np.int64))
    payload = encode_ids([1, 2, 3])
    for out in (np.empty(2, np.int64), np.empty(3, np.int32), np.empty(6, np.int64)[::2]):
        with pytest.raises(ValueError, match=r"int64 \[3\]"):
            decode_ids(payload, out)
    with pytest.raises(TypeError, match="uint8"):
        decode_ids(payload.view(np.uint32))


def payloads() -> list[tuple]:
    """(payload, its decoder) of every mode."""
    rng = np.random.default_rng(3)
    dense = np.flatnonzero(rng.random(4000) < 0.3)
    ids = [dense, dense + 2**40, rng.permutation(dense) - 50, np.array([LOW, 5, HIGH]), np.array([9, -9, 9], np.int32)]
    made = [(encode_ids(x, fast=fast), decode_ids) for x in ids for fast in (False, True)]
    return [*made, (encode_id_lists([*ids, *skewed_lists(4)[:5]]), decode_id_lists)]


@pytest.mark.parametrize(("payload", "decode"), payloads())
def test_bytes_that_no_encoder_wrote_are_refused(payload, decode):
    step = 1 if payload.size < 1000 else 5
    for size in range(0, payload.size, step):
        with pytest.raises(CorruptPayloadError, match="corrupt payload: length: "):
            decode(payload[:size])
    for more in (b"\0", b"\0" * 4, payload.tobytes()):
        with pytest.raises(CorruptPayloadError):
            decode(payload.tobytes() + more)
    rng = np.random.default_rng(payload.size)
    for _ in range(1000):
        bad = payload.copy()
        for place in rng.integers(0, bad.size, rng.integers(1, 4)):
            bad[place] ^= rng.integers(1, 256)
        if not np.array_equal(bad, payload):
            with pytest.raises(CorruptPayloadError):
                decode(bad)


@pytest.mark.parametrize(("payload", "decode"), payloads())
def test_lies_with_a_right_checksum_stay_inside(payload, decode):
    count = int(payload.view(np.uint32)[1])
    rng = np.random.default_rng(payload.size)
    for trial in range(2000):
        words = payload.copy().view(np.uint32)
        most = words.size - 1 if trial % 2 else min(words.size - 1, 40)
        for place in rng.integers(0, most, rng.integers(1, 4)):
            words[place] ^= np.uint32(1 << rng.integers(0, 32)) if trial % 3 else np.uint32(rng.integers(0, 2**32))
        size = rng.integers(4, words.size + 1) if trial % 5 == 0 else words.size
        words = words[:size].copy()
        words[2] = size
        bad = reseal(words.view(np.uint8))
        buffer = np.full(count + 100, 0x5A, np.int64)
        try:
            decode(bad, buffer[50:-50]) if decode is decode_ids else decode(bad)
        except CorruptPayloadError as error:
            assert error.field
        except ValueError as error:  # the count was changed to another possible one
            assert "is needed" in str(error)
        assert set(buffer[:50]) | set(buffer[-50:]) == {0x5A}


def test_errors_name_the_field():
    payload = encode_ids(np.arange(100) ** 2)
    one, lists = payload.view(np.uint32), encode_id_lists([[1, 2], [3]])
    with pytest.raises(CorruptPayloadError, match="corrupt payload: mode: ") as caught:
        decode_ids(lists)
    assert caught.value.field == "mode"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.field) == (str(caught.value), "mode")
    with pytest.raises(CorruptPayloadError, match="corrupt payload: mode: "):
        decode_id_lists(payload)
    for place, value, field in ((0, 1, "magic"), (0, MAGIC | 9 << 16, "version"), (1, 2**32 - 1, "count")):
        bad = one.copy()
        bad[place] = value
        with pytest.raises(CorruptPayloadError, match=f"corrupt payload: {field}: "):
            decode_ids(reseal(bad.view(np.uint8)))


def test_checksum_is_the_one_of_the_text():
    def slow(words: list[int]) -> int:
        total = 0
        for i, word in enumerate(words):
            x = (word + (i + 1) * 0x9E3779B9) & 0xFFFFFFFF
            x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
            x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
            total += x ^ (x >> 16)
        return total & 0xFFFFFFFF

    for n in (0, 1, 15, 16, 17, 1000):
        words = np.random.default_rng(n).integers(0, 2**32, n, np.uint64).astype(np.uint32)
        assert checksum(words) == slow(words.tolist())
        if n:
            assert checksum(np.append(words, np.uint32(0))) != checksum(words)
