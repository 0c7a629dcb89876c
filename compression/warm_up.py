"""Compiling ahead of the first message."""

from __future__ import annotations

import numpy as np

from compression.codec import Codec, Relative
from compression.id_lists import decode_id_lists, encode_id_lists
from compression.ids import decode_ids, encode_ids


def warm_up() -> None:
    """Compile all that the codec runs, or load it from the cache.

    The first use of a new version on a machine compiles for a minute or more; later ones take about a second. Call it
    where that does no harm, such as before the ranks of a training wait for each other.
    """
    codec = Codec()
    rows = np.repeat(np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16), 8, axis=0)
    for chain in ("huffman", "lossless"):
        codec.decode(codec.encode([rows], Relative(0.01), chain, stochastic=0), [np.empty_like(rows)])
    flat, shape = rows.reshape(-1), (np.array([rows.shape[0]]), np.array([rows.shape[1]]))
    codec.decode_flat(codec.encode_flat(flat, *shape, [Relative(0.01)], ["huffman"]), *shape, np.empty_like(flat))
    ids = np.arange(64)
    for some in (ids, ids.astype(np.int32)):
        decode_ids(encode_ids(some))
    decode_id_lists(encode_id_lists([ids]))
