"""From the bytes of one value to a key (uint64) or a number (float64): the rules that every reader shares.

Keys of a category:

- hash mode `hex`: 1 to 8 hex digits in any case are their value; any other bytes are hashed and get the top bit, so
  the two kinds never meet.
- hash mode `text`: MurmurHash64A (Austin Appleby, public domain) of the bytes, seed 0. It depends on the bytes alone:
  the same on any machine, in any process. Among n distinct values some two collide with probability about n^2 / 2^65
  (n^2 / 2^64 for the hashed values of a hex column): 3e-8 for a million ids, 3e-4 for a hundred million.

`MISSING_KEY` stands for a missing value and is the key of no value.
"""

from __future__ import annotations

import math

import numpy as np

from pipelines.kernel import kernel

MISSING_KEY = np.uint64(1 << 40)
_TOP_BIT = np.uint64(1 << 63)
_M = np.uint64(0xC6A4A7935BD1E995)
_R = np.uint64(47)
_ONE = np.uint64(1)

_HEX_DIGIT = np.full(256, 0xF0, np.uint8)
for _digit, _letters in enumerate([*"0123456789", "aA", "bB", "cC", "dD", "eE", "fF"]):
    for _letter in _letters:
        _HEX_DIGIT[ord(_letter)] = _digit
HEX_DIGIT = _HEX_DIGIT
"""Value of a hex digit by its byte; 0xF0 for any other byte."""


@kernel
def hash_bytes(buf: np.ndarray, start: int, end: int) -> np.uint64:
    """MurmurHash64A of buf[start:end] (uint8), seed 0; `MISSING_KEY` is never returned."""
    h = np.uint64(end - start) * _M
    i = start
    while i + 8 <= end:
        k = np.uint64(0)
        for j in range(8):
            k |= np.uint64(buf[i + j]) << np.uint64(8 * j)
        k *= _M
        k ^= k >> _R
        k *= _M
        h ^= k
        h *= _M
        i += 8
    if i < end:
        for j in range(end - i):
            h ^= np.uint64(buf[i + j]) << np.uint64(8 * j)
        h *= _M
    h ^= h >> _R
    h *= _M
    h ^= h >> _R
    return h + _ONE if h == MISSING_KEY else h


@kernel
def key_of(buf: np.ndarray, start: int, end: int, is_hex: bool) -> np.uint64:
    """Key of the value buf[start:end]; an empty value is missing."""
    size = end - start
    if size == 0:
        return MISSING_KEY
    if not is_hex:
        return hash_bytes(buf, start, end)
    if size <= 8:
        value = np.uint64(0)
        seen = np.uint8(0)
        for i in range(start, end):
            digit = HEX_DIGIT[buf[i]]
            seen |= digit
            value = (value << np.uint64(4)) | np.uint64(digit & 15)
        if seen < 16:
            return value
    return hash_bytes(buf, start, end) | _TOP_BIT


def text_hash(value: str) -> int:
    """The hash of a string's UTF-8 bytes."""
    raw = np.frombuffer(value.encode(), np.uint8)
    return int(hash_bytes(raw, 0, len(raw)))


def _powers_of_ten() -> tuple[np.ndarray, np.ndarray]:
    """10^-280 ... 10^280 as sums of two doubles, so that a product is right beyond the last bit of a double."""
    from fractions import Fraction

    high, low = [], []
    for exponent in range(-_MAX_EXPONENT, _MAX_EXPONENT + 1):
        exact = Fraction(10) ** exponent
        high.append(float(exact))
        low.append(float(exact - Fraction(high[-1])))
    return np.array(high), np.array(low)


_MAX_EXPONENT = 280
_POWER_HIGH, _POWER_LOW = _powers_of_ten()
_SPLITTER = 134217729.0  # 2^27 + 1


@kernel
def _scaled(mantissa: np.uint64, exponent: int) -> float:
    """mantissa * 10^exponent, rounded once (Dekker's product of double-doubles)."""
    if mantissa == np.uint64(0):
        return 0.0
    if exponent > _MAX_EXPONENT:
        return math.inf
    if exponent < -_MAX_EXPONENT:
        return 0.0
    m_high = float(mantissa >> np.uint64(32)) * 4294967296.0
    m_low = float(mantissa & np.uint64(0xFFFFFFFF))
    a = m_high + m_low
    a_err = m_low - (a - m_high)
    b = _POWER_HIGH[exponent + _MAX_EXPONENT]
    b_err = _POWER_LOW[exponent + _MAX_EXPONENT]
    t = _SPLITTER * a
    a1 = t - (t - a)
    a2 = a - a1
    t = _SPLITTER * b
    b1 = t - (t - b)
    b2 = b - b1
    p = a * b
    p_err = ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2
    return p + (p_err + (a * b_err + a_err * b))


@kernel
def number_of(buf: np.ndarray, start: int, end: int) -> tuple[bool, float]:
    """(is a number, value) of decimal text: an integer or a float, with an exponent or not.

    Digits beyond the 19th significant one are dropped. NaN, infinity, blanks and what is written with an exponent
    above 280 are no numbers; what is written with one below -280 is 0.
    """
    i = start
    negative = False
    if i < end and (buf[i] == 45 or buf[i] == 43):
        negative = buf[i] == 45
        i += 1
    mantissa = np.uint64(0)
    digits = 0
    exponent = 0
    seen = False
    point = False
    while i < end:
        c = buf[i]
        if 48 <= c <= 57:
            seen = True
            if digits < 19:
                mantissa = mantissa * np.uint64(10) + np.uint64(c - 48)
                if mantissa != np.uint64(0):
                    digits += 1
                if point:
                    exponent -= 1
            elif not point:
                exponent += 1
        elif c == 46 and not point:
            point = True
        else:
            break
        i += 1
    if not seen:
        return False, 0.0
    if i < end and (buf[i] == 101 or buf[i] == 69):
        ok, power = _exponent_of(buf, i + 1, end)
        if not ok:
            return False, 0.0
        exponent += power
        i = end
    if i != end:
        return False, 0.0
    value = float(mantissa) if exponent == 0 else _scaled(mantissa, exponent)
    return not math.isinf(value), -value if negative else value


@kernel
def _exponent_of(buf: np.ndarray, start: int, end: int) -> tuple[bool, int]:
    """(is an integer, value) of buf[start:end]; clipped at 9999."""
    i = start
    negative = False
    if i < end and (buf[i] == 45 or buf[i] == 43):
        negative = buf[i] == 45
        i += 1
    if i == end:
        return False, 0
    value = 0
    while i < end:
        if not 48 <= buf[i] <= 57:
            return False, 0
        value = min(9999, value * 10 + (buf[i] - 48))
        i += 1
    return True, -value if negative else value


LOG_TABLE = np.array([math.nan, *(math.log1p(i) for i in range(1 << 16))], np.float32)
"""float32 [65537]: NaN for missing, then `dense_value` of 0 ... 65535, which are most of all values."""


@kernel
def dense_value(x: float) -> np.float32:
    """sign(x) * log(1 + |x|), in float64 and then rounded to float32. No parameter: the same in every file.

    NaN means missing and stays NaN in the scratch; the finished data set holds 0 for it.
    """
    y = np.float32(math.log1p(abs(x)))
    return -y if x < 0 else y
