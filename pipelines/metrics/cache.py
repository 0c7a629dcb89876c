"""How many lookups the hot rows served between two logged points."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pipelines.hot import Hot

_ODD = re.compile(r"[^\w.\- ]")
"""What MLflow takes in no name."""


class CacheMeter:
    """Of this rank.

    Args:
        hot: the hot rows of a run, if it has some.
    """

    def __init__(self, hot: Hot | None) -> None:
        self._hot = hot
        self.take()

    @property
    def size(self) -> int:
        """Of what `take` gives."""
        return 0 if self._hot is None else self._hot.served.numel()

    def take(self) -> torch.Tensor:
        """Float64 [2 * tables], hits and lookups since the last call; [0] without hot rows."""
        if self._hot is None:
            return torch.zeros(0, dtype=torch.float64)
        taken = self._hot.served.flatten().double()
        self._hot.served.zero_()
        return taken

    def metrics(self, sums: torch.Tensor) -> dict[str, float]:
        """From what all ranks have taken, added up: the hit rate of all lookups, and of each table that had some."""
        if self._hot is None:
            return {}
        hits, lookups = sums.reshape(2, -1)
        if not lookups.any():
            return {}
        of_tables = {
            f"cache/hit_rate/{_ODD.sub('_', table)}": float(hits[i] / lookups[i])
            for i, table in enumerate(self._hot.columns)
            if lookups[i]
        }
        return {"cache/hit_rate": float(hits.sum() / lookups.sum()), **of_tables}
