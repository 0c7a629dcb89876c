"""A growing hash table from keys (uint64) to dense ids 1, 2, ... in order of first sight (open addressing)."""

from __future__ import annotations

import numpy as np
from numba import njit

from pipelines.keys import MISSING_KEY

_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class Interner:
    """Gives each key an id: 0 for `MISSING_KEY`, else from 1 on in order of first sight."""

    def __init__(self, room: int = 512) -> None:
        self.size = 0
        self._keys = np.empty(room, np.uint64)
        self._resize(room)

    @property
    def keys(self) -> np.ndarray:
        """uint64 [size]: the key of id i + 1."""
        return self._keys[: self.size]

    def add(self, keys: np.ndarray, out: np.ndarray) -> None:
        """Writes the ids of `keys` (uint64 [N]) to `out` (int32 [N]); unseen keys get the next ids."""
        self._reserve(len(keys))
        self.size = _add(keys, out, self._keys, self._slot_key, self._slot_id, self._shift, self.size)

    def find(self, keys: np.ndarray, unseen: int) -> np.ndarray:
        """int32 [N] ids of `keys` (uint64 [N]), `unseen` for the keys that were never added."""
        out = np.empty(len(keys), np.int32)
        _find(keys, out, self._slot_key, self._slot_id, self._shift, unseen)
        return out

    def _reserve(self, more: int) -> None:
        room = len(self._keys)
        while room < self.size + more:
            room *= 2
        if room > len(self._keys):
            grown = np.empty(room, np.uint64)
            grown[: self.size] = self.keys
            self._keys = grown
            self._resize(room)

    def _resize(self, room: int) -> None:
        bits = (2 * room - 1).bit_length()
        self._shift = np.uint64(64 - bits)
        self._slot_key = np.empty(1 << bits, np.uint64)
        self._slot_id = np.zeros(1 << bits, np.int32)
        _refill(self.keys, self._slot_key, self._slot_id, self._shift)


@njit(cache=True, nogil=True)
def _refill(keys: np.ndarray, slot_key: np.ndarray, slot_id: np.ndarray, shift: np.uint64) -> None:
    last = np.uint64(slot_id.size - 1)
    for i in range(keys.size):
        at = (keys[i] * _SPREAD) >> shift
        while slot_id[at] != 0:
            at = (at + np.uint64(1)) & last
        slot_key[at] = keys[i]
        slot_id[at] = i + 1


@njit(cache=True, nogil=True)
def _add(
    keys: np.ndarray,
    out: np.ndarray,
    known: np.ndarray,
    slot_key: np.ndarray,
    slot_id: np.ndarray,
    shift: np.uint64,
    size: int,
) -> int:
    last = np.uint64(slot_id.size - 1)
    for i in range(keys.size):
        key = keys[i]
        if key == MISSING_KEY:
            out[i] = 0
            continue
        at = (key * _SPREAD) >> shift
        while True:
            found = slot_id[at]
            if found == 0:
                known[size] = key
                size += 1
                found = np.int32(size)
                slot_key[at] = key
                slot_id[at] = found
                break
            if slot_key[at] == key:
                break
            at = (at + np.uint64(1)) & last
        out[i] = found
    return size


@njit(cache=True, nogil=True)
def _find(
    keys: np.ndarray, out: np.ndarray, slot_key: np.ndarray, slot_id: np.ndarray, shift: np.uint64, unseen: int
) -> None:
    last = np.uint64(slot_id.size - 1)
    for i in range(keys.size):
        key = keys[i]
        if key == MISSING_KEY:
            out[i] = 0
            continue
        at = (key * _SPREAD) >> shift
        while slot_id[at] != 0 and slot_key[at] != key:
            at = (at + np.uint64(1)) & last
        out[i] = slot_id[at] if slot_id[at] != 0 else unseen
