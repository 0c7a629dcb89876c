"""What the thin exchange did between two logged points, all tables together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from compression.exchange.stats import TableStats

SUMS = (
    "lookups",
    "distinct",
    "raw_rows",
    "rows",
    "raw_gradients",
    "gradients",
    "encode_s",
    "decode_s",
    "nonfinite",
)
"""Lookups and distinct rows of them; bytes sent, and those of the same values in float32; seconds; NaN and Inf sent."""


class ThinMeter:
    """Sums over the tables of this rank.

    Args:
        stats: counters of all thin exchanges of a model; may be empty.
    """

    def __init__(self, stats: list[TableStats]) -> None:
        self._stats = stats
        self._before = self._now()

    def take(self) -> torch.Tensor:
        """Float64 [len(SUMS)] since the last call, zeros without a thin exchange."""
        now = self._now()
        taken, self._before = now - self._before, now
        return taken

    def metrics(self, means: torch.Tensor) -> dict[str, float]:
        """From float64 [len(SUMS)], means a step over all ranks; nothing without a thin exchange."""
        if not self._stats:
            return {}
        of = dict(zip(SUMS, means.tolist(), strict=True))
        return {
            "exchange/distinct_rows": of["distinct"],
            "exchange/distinct_share": _over(of["distinct"], of["lookups"]),
            "exchange/rows_ratio": _over(of["raw_rows"], of["rows"]),
            "exchange/gradients_ratio": _over(of["raw_gradients"], of["gradients"]),
            "exchange/encode_ms": 1000 * of["encode_s"],
            "exchange/decode_ms": 1000 * of["decode_s"],
            "exchange/nonfinite": of["nonfinite"],
        }

    def _now(self) -> torch.Tensor:
        sums = [
            [of.lookups.sum(), of.distinct.sum()]
            + [counts[kind].sum() for kind in ("output_dist", "gradients") for counts in (of.raw, of.bytes)]
            + [of.encode_s.sum(), of.decode_s.sum(), of.nonfinite]
            for of in self._stats
        ]
        return torch.tensor(sums, dtype=torch.float64).reshape(-1, len(SUMS)).sum(0)


def gather_tables(stats: Sequence[TableStats]) -> list[dict[str, Any]]:
    """The reports of what this process counted, all ranks together. All ranks must call it at once."""
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, [row for one in stats for row in one.rows()])
    return merge_tables(of_ranks)


def merge_tables(of_ranks: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The reports of all ranks (`compression.exchange.exchange_report`) as one: a dictionary a table and path, numbers
    added up over ranks, ratios and shares formed anew."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in (row for rows in of_ranks for row in rows):
        into = found.setdefault((row["table"], row["path"]), {"table": row["table"], "path": row["path"]})
        for key, value in row.items():
            if isinstance(value, float | int):
                into[key] = into.get(key, 0.0) + float(value)
    for row in found.values():
        row["distinct_share"] = _over(row["distinct"], row["lookups"])
        for kind in ("output_dist", "gradients"):
            row[f"{kind}_ratio"] = _over(row[f"{kind}_raw_bytes"], row[f"{kind}_bytes"])
    return list(found.values())


def _over(a: float, b: float) -> float:
    return a / b if b else 0.0
