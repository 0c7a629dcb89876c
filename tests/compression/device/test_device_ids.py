"""Lists of ids that the kernels pack are byte for byte those of `encode_id_lists` with `fast`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compression.device.ids import IdDecoder, IdEncoder
from compression.errors import CorruptPayloadError
from compression.id_lists import decode_id_lists, encode_id_lists
from tests.compression.test_ids import EXTREMES, arrays, reseal


def check(device, messages: list[list[np.ndarray]]) -> list[int]:
    """Modes of the lists of all messages, plain ones among them."""
    encoder = IdEncoder(device)
    ids = np.concatenate([np.empty(0, np.int64), *(ids for lists in messages for ids in lists)])
    memory = device.put(ids)
    counts = [np.array([ids.size for ids in lists], np.int64) for lists in messages]
    made = encoder.encode(memory.address, counts)
    out = encoder.arena.get(IdEncoder.OUT, 0)
    found = []
    for lists, start, size in zip(messages, made.starts.tolist(), made.sizes.tolist(), strict=True):
        payload = device.download(out + start, size)
        assert payload.tobytes() == encode_id_lists(lists, fast=True).tobytes()
        assert all(np.array_equal(a, b) for a, b in zip(decode_id_lists(payload), lists, strict=True))
        found.append(size)
    check_decoded(device, [encode_id_lists(lists, fast=True).tobytes() for lists in messages], messages)
    return found


def decode(device, payloads: list[bytes], lists: list[int]):
    """Lists of each message, None for one that was left."""
    held = [device.put(np.frombuffer(payload, np.uint8)) for payload in payloads]
    decoder = IdDecoder(device)
    result = decoder.decode(
        np.array([memory.address for memory in held], np.uint64),
        np.array([len(payload) for payload in payloads], np.int64),
        np.array(lists, np.int64),
    )
    total = sum(int(counts.sum()) for counts in result.counts)
    ids = device.download(result.ids, 8 * total).view(np.int64)
    found, at = [], 0
    for i, counts in enumerate(result.counts):
        ends = at + counts.cumsum()
        found.append(None if i in result.left else np.split(ids[at : ends[-1]], ends[:-1] - at) if counts.size else [])
        at += int(counts.sum())
    return found


def check_decoded(device, payloads: list[bytes], messages: list[list[np.ndarray]]) -> None:
    for decoded, lists in zip(decode(device, payloads, [len(lists) for lists in messages]), messages, strict=True):
        assert decoded is not None
        assert [ids.tolist() for ids in decoded] == [ids.tolist() for ids in lists]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(arrays(), max_size=5), max_size=3))
def test_any_lists_have_the_bytes_of_the_cpu(device, messages):
    check(device, messages)


def test_extremes(device):
    lists = [np.array(ids, np.int64) for ids in EXTREMES]
    check(device, [lists, lists[::-1], [], [lists[0]], *([one] for one in lists)])


def test_lists_that_packing_would_make_larger_are_sent_as_they_are(device):
    rng = np.random.default_rng(0)
    wide = [rng.integers(-(2**63), 2**63 - 1, 50) for _ in range(9)]
    apart = [np.array([0, 2**32 - 1 - i], np.int64) for i in range(40)]
    few = [np.array([i * 2**31], np.int64) for i in range(60)]
    check(device, [wide, apart, few, [*wide, *few]])


def test_many_lists_and_many_groups(device):
    rng = np.random.default_rng(1)
    lists = [np.unique(rng.integers(0, 2 ** int(rng.integers(1, 62)), int(rng.integers(0, 90)))) for _ in range(700)]
    long = [np.arange(5000, dtype=np.int64) * 3, np.sort(rng.integers(0, 10**7, 4096)), np.arange(1024)]
    sizes = check(device, [lists, long])
    assert sizes[1] < 8 * sum(ids.size for ids in long) / 3


def test_too_many_ids_are_refused(device):
    with pytest.raises(ValueError, match="ids: less than"):
        IdEncoder(device).encode(0, [np.array([1 << 30], np.int64)])


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32 - 1))
def test_damaged_payloads_are_left_and_nothing_else_is_touched(device, seed):
    """What the kernels take is what the CPU decodes, to the same ids; coded groups are left to the CPU."""
    rng = np.random.default_rng(seed)
    lists = [np.unique(rng.integers(0, 10 ** int(rng.integers(1, 12)), int(rng.integers(0, 200)))) for _ in range(4)]
    lists.append(rng.integers(-(2**62), 2**62, 3))
    payload = encode_id_lists(lists, fast=True)
    words = payload.view(np.uint32)
    for _ in range(rng.integers(1, 3)):
        place = int(rng.integers(0, 12) if rng.random() < 0.7 else rng.integers(0, words.size))
        words[place] = (int(words[place]) ^ 1 << int(rng.integers(0, 32))) % 2**32
    if rng.random() < 0.8:
        reseal(payload)
    good = encode_id_lists(lists, fast=True).tobytes()
    mine, other = decode(device, [payload.tobytes(), good], [5, 5])
    assert [ids.tolist() for ids in other] == [ids.tolist() for ids in lists]
    try:
        expected = decode_id_lists(payload)
    except CorruptPayloadError:
        assert mine is None
    else:
        assert mine is None or [ids.tolist() for ids in mine] == [ids.tolist() for ids in expected]


def test_coded_groups_and_other_lengths_are_left(device):
    lists = [np.arange(5000) * 3 + np.arange(5000) % 3]
    coded, packed = encode_id_lists(lists).tobytes(), encode_id_lists(lists, fast=True).tobytes()
    assert coded != packed
    found = decode(device, [coded, packed, packed[:-4], packed[:7], packed], [1, 1, 1, 1, 2])
    assert [one is None for one in found] == [True, False, True, True, True]
