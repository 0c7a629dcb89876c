"""Lists of ids that the kernels pack are byte for byte those of `encode_id_lists` with `fast`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compression.device.ids import IdEncoder
from compression.id_lists import decode_id_lists, encode_id_lists
from tests.compression.test_ids import EXTREMES, arrays


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
    return found


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
