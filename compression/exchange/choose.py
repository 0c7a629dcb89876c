"""Which path is cheaper for a table, from counts alone."""

from __future__ import annotations

import math

LOSSY_BITS, EXACT_BITS = 3.0, 28.0
"""Of a value on the wire: measured on embeddings of trained models at bounds of 1 to 3 %, and bit for bit."""


def path_bytes(rows: int, dim: int, batch: int, bag_length: float, lossy: bool = True) -> dict[str, float]:
    """Expected bytes that a rank exchanges for a table in a step by each path, rows and gradients and ids.

    Args:
        rows: of the table (its cardinality); dim: columns.
        batch: bags of a rank; bag_length: ids in a bag, mean.

    The distinct ids are those of uniform draws, rows * (1 - (1 - 1/rows)^lookups), the most that any distribution of
    ids gives: skewed ids make the row exchange cheaper than this says.

    >>> one = path_bytes(rows=100_000, dim=16, batch=2048, bag_length=1)
    >>> many = path_bytes(rows=10_000_000, dim=16, batch=2048, bag_length=100)
    >>> one["row"] < one["pooled"], many["row"] > many["pooled"]
    (True, True)
    """
    lookups = max(batch * bag_length, 1e-9)
    distinct = -rows * math.expm1(lookups * math.log1p(-1 / rows)) if rows > 1 else min(lookups, 1.0)
    value = 2 * dim * (LOSSY_BITS if lossy else EXACT_BITS) / 8
    gap_bits = math.log2(max(rows / max(distinct, 1e-9), 1)) + 1.5
    id_bits = math.log2(max(rows, 2))
    length_bytes = 0.0 if bag_length == 1 else batch * 0.75
    return {
        "row": distinct * (value + gap_bits / 8),
        "pooled": batch * value + lookups * id_bits / 8 + length_bytes,
    }


def choose_path(rows: int, dim: int, batch: int, bag_length: float, lossy: bool = True) -> str:
    """`row` or `pooled`, whichever takes fewer bytes."""
    costs = path_bytes(rows, dim, batch, bag_length, lossy)
    return min(costs, key=costs.__getitem__)
