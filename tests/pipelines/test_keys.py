"""The key rule, numbers and the dense transform against slow references in plain Python."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import kernel, keys, swar

MASK = 2**64 - 1


def murmur64a(data: bytes) -> int:
    m, r = 0xC6A4A7935BD1E995, 47
    h = len(data) * m & MASK
    whole = len(data) // 8 * 8
    for i in range(0, whole, 8):
        k = int.from_bytes(data[i : i + 8], "little") * m & MASK
        k = (k ^ k >> r) * m & MASK
        h = (h ^ k) * m & MASK
    if data[whole:]:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & MASK
    h = (h ^ h >> r) * m & MASK
    return h ^ h >> r


def raw(data: bytes) -> np.ndarray:
    return np.frombuffer(data + bytes(8), np.uint8)


@settings(deadline=None)  # the first call compiles
@given(st.binary(max_size=40))
def test_hash_is_murmur64a(data):
    assert int(keys.hash_bytes(raw(data), 0, len(data))) == murmur64a(data)


def test_hash_never_changes():
    # Data sets on disk hold these: a change makes them unreadable for serving.
    assert keys.text_hash("68fd1e64") == 0x11E86CB3A4CF9E9F
    assert keys.text_hash("user 12345678901") == 0x60EE6174FA9C78F0
    assert keys.text_hash("") == 0


# facebookresearch/dlrm#394: ids above 2^31 - 1 were refused or became negative.
@pytest.mark.parametrize("text", ["ffffffff", "80000000", "7fffffff", "0", "FFFFFFFF", "DeadBeef", "00000001", "1"])
def test_hex_is_its_value(text):
    assert int(keys.key_of(raw(text.encode()), 0, len(text), True)) == int(text, 16)


@pytest.mark.parametrize("text", ["fffffffff", "xyz", "-1", " 1", "84.0", '"', "\x11234", "é"])
def test_what_is_not_hex_is_hashed_apart_from_hex(text):
    data = text.encode()
    assert int(keys.key_of(raw(data), 0, len(data), True)) == murmur64a(data) | 1 << 63


def test_empty_is_missing():
    for is_hex in (False, True):
        assert keys.key_of(raw(b""), 0, 0, is_hex) == keys.MISSING_KEY


def number(text: str) -> tuple[bool, float]:
    data = text.encode()
    return keys.number_of(raw(data), 0, len(data))


@settings(deadline=None, max_examples=2000)
@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e270, max_value=1e270))
def test_numbers_are_read_as_python_reads_them(x):
    if x != 0 and abs(x) < 1e-250:
        return
    for text in (repr(x), f"{x:.17e}", f"{x:.3f}"):
        ok, value = number(text)
        # Digits beyond the 19th are dropped, at most one unit in the last place.
        assert ok
        assert value == float(text) or math.isclose(value, float(text), rel_tol=3e-16)
    assert number(repr(x)) == (True, x)


@settings(deadline=None)  # the first call compiles
@given(st.integers(-(10**18), 10**18))
def test_integers_are_exact(i):
    assert number(str(i)) == (True, float(i))


@pytest.mark.parametrize(
    "text", ["", "-", "+", ".", "1e", "1e+", "1x", "nan", "inf", " 1", "1 ", "1_0", "0x1", "--1", "1.2.3"]
)
def test_not_numbers(text):
    assert not number(text)[0]


@pytest.mark.parametrize("text", ["+7", "7.", ".5", "007", "1E3", "-0", "-0.0", "260.0", "1e-9999"])
def test_odd_numbers(text):
    assert number(text) == (True, float(text))


def test_huge_numbers_are_refused():
    assert not number("1e400")[0]


@settings(deadline=None)  # the first call compiles
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_dense_transform(x):
    y = keys.dense_value(x)
    assert np.isfinite(y)
    assert y == np.float32(y)
    assert y == pytest.approx(math.copysign(math.log1p(abs(x)), x), rel=1e-6)


def test_table_of_logs_equals_the_transform():
    assert np.isnan(keys.LOG_TABLE[0])
    direct = np.array([keys.dense_value(float(i)) for i in range(1 << 16)])
    assert np.array_equal(keys.LOG_TABLE[1:], direct)


@settings(deadline=None)  # the first call compiles
@given(st.binary(min_size=8, max_size=8) | st.text("0123456789abcdefABCDEF", min_size=8, max_size=8).map(str.encode))
def test_hex_pairs(data):
    pairs = [int(swar.HEX_PAIRS[int.from_bytes(data[i : i + 2], "little")]) for i in range(0, 8, 2)]
    if all(chr(c) in "0123456789abcdefABCDEF" for c in data):
        assert int.from_bytes(bytes(pairs), "big") == int(data, 16)
    else:
        assert max(pairs) == int(swar.NO_HEX)


@settings(deadline=None)  # the first call compiles
@given(
    st.binary(min_size=8, max_size=8) | st.text("0123456789/:", min_size=8, max_size=8).map(str.encode),
    st.integers(0, 8),
)
def test_digits(data, size):
    ok, value = swar.digits8(np.uint64(int.from_bytes(data, "little")), size)
    good = all(48 <= c <= 57 for c in data[:size])
    assert ok == good
    if good:
        assert value == int(data[:size] or b"0")


@settings(deadline=None)  # the first call compiles
@given(st.text("\t\n0a,", min_size=8, max_size=8).map(str.encode) | st.binary(min_size=8, max_size=8))
def test_end_in_word(data):
    word = np.uint64(int.from_bytes(data, "little"))
    assert swar.end_in_word(word, swar.pattern(9)) == min([i for i in range(8) if data[i] in b"\t\n"] + [8])


def test_the_cache_of_machine_code_depends_on_every_kernel_file():
    folder = Path(kernel.__file__).parent
    using = {p.stem for p in folder.glob("*.py") if "@kernel\n" in p.read_text()}
    assert using <= set(kernel.SOURCES)
    assert "prepare-" in str(keys.hash_bytes.stats.cache_path)
