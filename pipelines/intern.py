"""A growing hash table from keys (uint64) to dense ids 1, 2, ... in order of first sight (open addressing)."""

from __future__ import annotations

import numpy as np

from pipelines.kernel import kernel
from pipelines.keys import MISSING_KEY

_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class Interner:
    """Gives each key an id: 0 for `MISSING_KEY`, else from 1 on in order of first sight."""

    def __init__(self, room: int = 512) -> None:
        self.size = 0
        self._resize(np.empty(room, np.uint64))

    @property
    def keys(self) -> np.ndarray:
        """uint64 [size]: the key of id i + 1."""
        return self._keys[: self.size]

    def add(self, keys: np.ndarray, out: np.ndarray) -> None:
        """Writes the ids of `keys` (uint64 [N]) to `out` (int32 [N]); unseen keys get the next ids."""
        done = 0
        while True:
            self.size, done = _add(keys, out, done, self._keys, self._slots, self._shift, self.size)
            if done == len(keys):
                return
            self._resize(np.concatenate([self._keys, np.empty_like(self._keys)]))

    def clear(self) -> None:
        """Forgets all keys, but keeps the room for them."""
        self.size = 0
        self._slots[:] = 0

    def find(self, keys: np.ndarray, unseen: int) -> np.ndarray:
        """int32 [N] ids of `keys` (uint64 [N]), `unseen` for the keys that were never added."""
        out = np.empty(len(keys), np.int32)
        _find(keys, out, self._slots, self._shift, unseen)
        return out

    def _resize(self, keys: np.ndarray) -> None:
        self._keys = keys
        bits = (2 * len(keys) - 1).bit_length()
        self._shift = np.uint64(64 - bits)
        # Key and id of a slot side by side, for one cache miss instead of two; id 0 is an empty slot.
        self._slots = np.zeros((1 << bits, 2), np.uint64)
        _refill(self.keys, self._slots, self._shift)


@kernel
def _refill(keys: np.ndarray, slots: np.ndarray, shift: np.uint64) -> None:
    last = np.uint64(len(slots) - 1)
    for i in range(keys.size):
        at = (keys[i] * _SPREAD) >> shift
        while slots[at, 1] != 0:
            at = (at + np.uint64(1)) & last
        slots[at, 0] = keys[i]
        slots[at, 1] = i + 1


@kernel
def _add(
    keys: np.ndarray, out: np.ndarray, start: int, known: np.ndarray, slots: np.ndarray, shift: np.uint64, size: int
) -> tuple[int, int]:
    """(keys known, keys done): stops where `known` is full."""
    last = np.uint64(len(slots) - 1)
    for i in range(start, keys.size):
        key = keys[i]
        if key == MISSING_KEY:
            out[i] = 0
            continue
        at = (key * _SPREAD) >> shift
        while slots[at, 1] != 0 and slots[at, 0] != key:
            at = (at + np.uint64(1)) & last
        if slots[at, 1] == 0:
            if size == known.size:
                return size, i
            known[size] = key
            size += 1
            slots[at, 0] = key
            slots[at, 1] = size
        out[i] = slots[at, 1]
    return size, keys.size


@kernel
def _find(keys: np.ndarray, out: np.ndarray, slots: np.ndarray, shift: np.uint64, unseen: int) -> None:
    last = np.uint64(len(slots) - 1)
    for i in range(keys.size):
        key = keys[i]
        if key == MISSING_KEY:
            out[i] = 0
            continue
        at = (key * _SPREAD) >> shift
        while slots[at, 1] != 0 and slots[at, 0] != key:
            at = (at + np.uint64(1)) & last
        out[i] = slots[at, 1] if slots[at, 1] != 0 else unseen
