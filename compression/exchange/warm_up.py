"""Compiling ahead of the first batch."""

from __future__ import annotations

import numpy as np

import compression
from compression.exchange.blocks import count_nonfinite, pack, unpack
from compression.exchange.distinct import Distinct
from compression.exchange.pooling import gather, gather_backward, pool, pool_backward


def warm_up() -> None:
    """Compile all that the thin exchange and its codec run, or load it from the cache: see `compression.warm_up`.

    Ranks that meet a new version wait for each other while each compiles, so call it in one process before they start.
    """
    compression.warm_up()
    offsets, batch = np.array([0, 1, 2]), 2
    ids, inverse, counts = Distinct([4], [0, 1])(np.array([3, 1]), offsets, batch)
    zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    shards = np.array([0, 1])
    rows, out = np.ones(ids.size, np.float32), np.empty((batch, 1), np.float32)
    bags = zero, one, shards, zero, np.zeros(1, np.bool_), offsets, batch, inverse, np.empty(0, np.float32)
    pool(rows, *bags, out)
    pool_backward(out, *bags, rows)
    gather(rows, zero, 1, shards, offsets, batch, inverse, out)
    gather_backward(out, zero, 1, shards, offsets, batch, inverse, rows)
    pack(out, zero, counts, zero, one, rows)
    unpack(rows, zero, counts, zero, one, 1.0, out)
    count_nonfinite(rows)
