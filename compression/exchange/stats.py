"""What the exchange did: by table, added up from step to step."""

from __future__ import annotations

from typing import Any

import numpy as np

KINDS = ("ids", "output_dist", "gradients")


class TableStats:
    """Counters of the tables of one module and path; what this rank sent, and what it decoded.

    The times of a message are shared out among its tables by their raw bytes.
    """

    def __init__(self, tables: tuple[str, ...], path: str, kinds: tuple[str, ...] = KINDS) -> None:
        self.tables, self.path, self.kinds = tables, path, kinds
        self.reset()

    def reset(self) -> None:
        count = len(self.tables)
        self.steps = 0
        self.lookups, self.distinct = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.bytes = {kind: np.zeros(count) for kind in self.kinds}
        """Sent to other ranks, payload headers shared out, by kind."""
        self.raw = {kind: np.zeros(count) for kind in self.kinds}
        """Bytes of the same values in float32; of ids in int64."""
        self.encode_s, self.decode_s = np.zeros(count), np.zeros(count)
        self.nonfinite = 0
        """NaN and Inf in rows and gradients that were sent."""

    def add_ids(self, first: int, raw: list[int], sent: int) -> None:
        """Count a payload of ids of consecutive tables.

        Args:
            first: of the tables.
            raw: bytes of the ids of each; the payload is shared out by them.
            sent: bytes of the payload.
        """
        sizes, tables = np.array(raw, np.float64), slice(first, first + len(raw))
        self.raw["ids"][tables] += sizes
        self.bytes["ids"][tables] += sent * (sizes / sizes.sum() if sizes.any() else 1 / sizes.size)

    def rows(self) -> list[dict[str, Any]]:
        """A dictionary a table, means a step."""
        steps = max(self.steps, 1)
        found: dict[str, dict[str, Any]] = {}
        for i, table in enumerate(self.tables):
            row = found.setdefault(table, {"table": table, "path": self.path, "lookups": 0.0, "distinct": 0.0})
            row["lookups"] += self.lookups[i] / steps
            row["distinct"] += self.distinct[i] / steps
            for kind in self.kinds:
                for what, counts in (("bytes", self.bytes), ("raw_bytes", self.raw)):
                    key = f"{kind}_{what}"
                    row[key] = row.get(key, 0.0) + counts[kind][i] / steps
            row["encode_ms"] = row.get("encode_ms", 0.0) + 1000 * self.encode_s[i] / steps
            row["decode_ms"] = row.get("decode_ms", 0.0) + 1000 * self.decode_s[i] / steps
        for row in found.values():
            row["distinct_share"] = row["distinct"] / row["lookups"] if row["lookups"] else 0.0
            for kind in self.kinds[1:]:
                sent = row[f"{kind}_bytes"]
                row[f"{kind}_ratio"] = row[f"{kind}_raw_bytes"] / sent if sent else 0.0
        return list(found.values())
