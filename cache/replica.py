"""Hot rows of all tables with their optimiser's state, the same bits on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache import kernel
from cache.optim import STATES, Name, RowOptimizer
from cache.split import HotLookups
from cache.tables import Ints, Slots

Floats = NDArray[np.float32]


class Replica:
    """What one rank holds of the hot rows, and what it does by itself: look up, sum gradients, update.

    Duplicates are merged before they are applied: a row gets one gradient a step, the sum over all lookups of all
    ranks, as FBGEMM's exact optimisers do it.

    Args:
        slots: where each row lies.
        optimizer: name and settings of `RowOptimizer`.

    Attributes:
        rows: float32 [values], all rows one after the other.
    """

    def __init__(self, slots: Slots, optimizer: Name, **settings: Any) -> None:
        self.slots = slots
        self.rows = np.zeros(slots.values, np.float32)
        self.optimizer = RowOptimizer(slots, optimizer, **settings)

    def look_up(self, lookups: HotLookups, columns: Ints, width: int) -> Floats:
        """Pool the hot rows of every bag.

        Args:
            columns: int64 [features], first column of each in the output.

        Returns:
            float32 [B, width], 0 for a bag without hot ids.
        """
        out = np.zeros((lookups.batch, width), np.float32)
        bags = lookups.offsets, lookups.weights, lookups.shares, lookups.batch, self.slots.feature_dims, columns
        kernel.pool(self.rows, self.slots.bases, lookups.slots, *bags, out)
        return out

    def gradients(self, lookups: HotLookups, grad: Floats, columns: Ints) -> Floats:
        """The gradients of the touched rows, one after the other, from that of the output of `look_up`: float32."""
        starts = self.slots.starts(lookups.touched)
        sums = np.empty(self.slots.size_of(lookups.touched), np.float32)
        bags = lookups.offsets, lookups.weights, lookups.shares, lookups.batch, self.slots.feature_dims, columns
        kernel.sum_gradients(np.ascontiguousarray(grad), starts, lookups.inverse, *bags, sums)
        return sums

    def update(self, slots: Ints, gradients: Floats, rate: float) -> None:
        """Apply the optimiser: the same arguments on all ranks; see `RowOptimizer.step`."""
        self.optimizer.step(self.rows, slots, gradients, rate)

    def read(self, table: int) -> dict[str, Floats]:
        """Views of the rows [hot, dim] of a table, under "weight", and of the state, [hot] or [hot, dim]."""
        first, last = self.slots.first[table : table + 2]
        dim = self.slots.tables[table].dim
        start = int(self.slots.bases[first]) if first < last else 0
        values = slice(start, start + int(last - first) * dim)
        found = {"weight": self.rows[values].reshape(-1, dim)}
        for name, state in self.optimizer.state.items():
            by_row = STATES[self.optimizer.name][name]
            found[name] = state[first:last] if by_row else state[values].reshape(-1, dim)
        return found
