"""A checksum of 32 bits that registers, threads and a GPU can take in parts, in any order.

It is the sum modulo 2^32, over the words i = 0, 1, ..., of mix(word + (i + 1) * 0x9E3779B9). The mix (C. Wellons's
lowbias32) maps different words to different words, so a change within one word is always found; any other, but one in
2^32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compression.kernel import kernel

_STEP = np.uint32(0x9E3779B9)
_FIRST, _SECOND = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_16, _15 = np.uint32(16), np.uint32(15)


@kernel
def checksum(words: NDArray[np.uint32]) -> np.uint32:
    """Of uint32 [any], contiguous."""
    total = np.uint32(0)
    salt = _STEP
    for i in range(np.uintp(words.size)):
        # Numba widens each result to 64 bits, which would halve the words in a vector register.
        x = np.uint32(words[i] + salt)
        x = np.uint32((x ^ (x >> _16)) * _FIRST)
        x = np.uint32((x ^ (x >> _15)) * _SECOND)
        total = np.uint32(total + (x ^ (x >> _16)))
        salt = np.uint32(salt + _STEP)
    return total
