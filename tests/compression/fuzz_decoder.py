"""Decodes changed payloads in a process of its own, so that a crash or an endless loop is seen as one.

`python -m tests.compression.fuzz_decoder PAYLOADS.npz TRIALS SEED` takes what `write` wrote and prints a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from compression import Codec, CorruptPayloadError
from compression.wire import DESCRIPTOR, HEADER
from tests.compression.codec_checks import CANARY, Framed, sealed, section_starts


def write(path: Path, messages: list[tuple[np.ndarray, list[np.ndarray]]]) -> None:
    """Keep payloads with the shapes and dtypes of their tables."""
    arrays = {}
    for i, (payload, tables) in enumerate(messages):
        arrays[f"payload {i}"] = payload
        for j, table in enumerate(tables):
            arrays[f"table {i} {j}"] = np.empty_like(table)
    np.savez(path, **arrays)  # type: ignore[arg-type]


def read(path: Path) -> list[tuple[np.ndarray, list[np.ndarray]]]:
    kept = np.load(path)
    found: dict[int, tuple[np.ndarray, list[np.ndarray]]] = {}
    for name in kept.files:
        kind, i, *_ = name.split()
        if kind == "payload":
            found[int(i)] = (kept[name].view(np.uint32).copy(), [])
        else:
            found[int(i)][1].append(kept[name])
    return list(found.values())


def changed(words: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A payload with some of its words changed, cut out or repeated, and with the right checksum."""
    words = words.copy()
    starts = section_starts(words)
    if rng.random() < 0.15 and len(starts) > 1:  # another length of a section, with the words moved along
        i = int(rng.integers(len(starts) - 1))
        at = int(rng.integers(starts[i], starts[i + 1] + 1))
        count = int(rng.integers(1, 5))
        if rng.random() < 0.5:
            taken = max(min(count, starts[i + 1] - at), 0)
            words = np.delete(words, slice(at, at + taken))
            words[HEADER + DESCRIPTOR * i + 3] -= np.uint32(taken)
        else:
            words = np.insert(words, at, rng.integers(0, 2**32, count).astype(np.uint32))
            words[HEADER + DESCRIPTOR * i + 3] += np.uint32(count)
    for _ in range(rng.integers(1, 4)):
        kind = rng.random()
        if kind < 0.2:  # a descriptor
            at = int(rng.integers(2, max(starts[0], 3)))
        else:  # counts, models and directories are at the start of a section: changes there reach furthest
            start = starts[int(rng.integers(len(starts)))]
            at = start + int(rng.integers(0, 40 if kind < 0.7 else max(words.size - start, 1)))
        at = min(at, words.size - 1)
        what = rng.random()
        if what < 0.5:
            words[at] ^= np.uint32(1) << np.uint32(rng.integers(32))
        elif what < 0.8:
            words[at] = rng.integers(0, 2**32)
        else:
            words[at] = rng.choice([0, 1, 2, 7, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, words.size])
    return sealed(words)


def fuzz(messages: list[tuple[np.ndarray, list[np.ndarray]]], trials: int, seed: int) -> dict[str, float]:
    """Decode `trials` changed payloads; an error but CorruptPayloadError is raised, as is writing beside an output."""
    rng = np.random.default_rng(seed)
    codec = Codec()
    refused, slowest = 0, 0.0
    for trial in range(trials):
        words, tables = messages[trial % len(messages)]
        frames = [Framed(table.shape, table.dtype) for table in tables]
        bad = np.full(words.size + 80, CANARY * 0x01010101, np.uint32)
        payload = changed(words, rng)
        bad[32 : 32 + payload.size] = payload
        start = time.perf_counter()
        try:
            with np.errstate(all="ignore"):
                codec.decode(bad[32 : 32 + payload.size], [frame.out for frame in frames])
        except CorruptPayloadError as error:
            assert error.field and str(error).startswith(f"corrupt payload: {error.field}: "), error
            refused += 1
        slowest = max(slowest, time.perf_counter() - start)
        for frame in frames:
            frame.assert_intact()
        assert np.array_equal(bad[32 : 32 + payload.size], payload), "the payload was changed"
    for words, tables in messages:  # nothing that lies left behind matters
        codec.decode(words, [np.empty_like(table) for table in tables])
    return {"trials": trials, "refused": refused, "slowest": slowest}


if __name__ == "__main__":
    print(json.dumps(fuzz(read(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))))
