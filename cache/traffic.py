"""What a table sends in a step: bytes by kind, for any number of hot rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cache.constants import Constants
from cache.lookups import Curve, Floats
from cache.spread import gradient_bits

INDEX_BYTES = 4
"""Of an id or a length that TorchRec sends."""
LEAST_BITS = 0.05


@dataclass(frozen=True)
class Traffic:
    """What a table adds to a step; all float64 [candidates].

    `pair` bytes go between the owner and one other rank; `sync` bytes leave a rank.
    """

    ids: Floats
    rows: Floats
    gradients: Floats
    sync_touched: Floats
    """Phase 1: gradients of hot rows, to the ranks that add them up."""
    sync_union: Floats
    """Phase 2: their sums, to all ranks."""
    sync_ids: Floats
    """Which rows these are."""
    encoded_values: Floats
    """fp32 values that a rank encodes in a step, cold rows, gradients and sync,"""
    decoded_values: Floats
    """and decodes."""


def traffic(curve: Curve, path: str, chain: str, constants: Constants, *, dense_sync: bool = False) -> Traffic:
    """Of a table by one path and chain.

    Args:
        path: row, pooled or torchrec.
        dense_sync: all hot rows travel in the sync, touched or not.
    """
    table, dim, ranks = curve.table, curve.table.dim, curve.ranks
    away = (ranks - 1) / ranks
    of_rows, of_gradients = (constants.of(chain, table.name, way) for way in ("rows", "gradients"))
    lists = constants.id_list_bytes * np.minimum(curve.cold, 1.0)
    if path == "row":
        ids = constants.id_factor * curve.cold_id_bits / 8 + lists
        cells, some = curve.cold * dim, curve.some_cold
    else:
        # A bag for each sample, also an empty one.
        left = np.minimum(curve.cold_lookups, 1.0)
        cells, some = curve.batch * dim * left, left
        bits = np.log2(np.maximum(table.of.rows - curve.hot, 2.0)) if path == "pooled" else 8.0 * INDEX_BYTES
        lengths = 2 * lists if path == "pooled" else INDEX_BYTES * curve.batch * left
        ids = curve.cold_lookups * bits / 8 + lengths
    none = Curve(table, curve.batch, ranks, np.zeros(1))
    mean = max(float(of_gradients.bits(none.cold * dim)[0]), LEAST_BITS)
    bits_cold, bits_touched, bits_union = gradient_bits(curve, mean, constants.spread)
    if path == "torchrec":
        rows = gradients = 4.0 * cells
    elif path == "pooled":
        rows, gradients = of_rows.size(cells, some), of_gradients.size(cells, some)
    else:
        rows = of_rows.size(cells, some)
        gradients = of_gradients.fixed_bytes * some + cells * bits_cold / 8
    # Rows are dealt out to the ranks that add their gradients up: a rank sends each other one its share of the rows
    # that it touched, and all the sums that it made, which it encodes once.
    having = np.minimum(curve.hot, ranks) / ranks
    first, second = (curve.hot, curve.hot) if dense_sync else (curve.touched, curve.union)
    some_first, some_second = (having, having) if dense_sync else (curve.some_touched, curve.some_union)
    share = 1 / ranks
    value = constants.sync_factor * dim / 8
    sync_touched = (ranks - 1) * (of_gradients.fixed_bytes * some_first + share * first * value * bits_touched)
    sync_union = (ranks - 1) * (of_gradients.fixed_bytes * some_second + share * second * value * bits_union)
    id_bits = np.zeros_like(curve.hot) if dense_sync else curve.touched_id_bits + curve.union_id_bits
    cold_values = np.zeros_like(curve.hot) if path == "torchrec" else 2 * away * cells
    return Traffic(
        ids=ids,
        rows=rows,
        gradients=gradients,
        sync_touched=sync_touched,
        sync_union=sync_union,
        sync_ids=away * constants.id_factor * id_bits / 8,
        encoded_values=cold_values + (away * first + share * second) * dim,
        decoded_values=cold_values + (away * first + second) * dim,
    )
