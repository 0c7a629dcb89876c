"""Compiling ahead of the first batch."""

from __future__ import annotations

import numpy as np

from cache import kernel
from cache.optim import STATES
from cache.replica import Replica
from cache.split import part
from cache.tables import HotSet, HotTable, Slots


def warm_up() -> None:
    """Compile all that hot rows run, or load it from Numba's cache.

    Ranks wait for each other while each compiles, so call it in one process before they start.
    """
    slots = Slots([HotTable("a", 2, 1, 1, ("a",))])
    column, one = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for dtype in (np.int32, np.int64):
        _, lookups = part(HotSet.first_rows(slots), np.zeros(1, dtype), np.ones(1, np.int32), 1)
    for optimizer in STATES:
        replica = Replica(slots, optimizer)  # type: ignore[arg-type]
        out = replica.look_up(lookups, column, 1)
        replica.update(lookups.touched, replica.gradients(lookups, out, column), 0.1)
    for copy in (kernel.take, kernel.put, kernel.add):
        copy(np.zeros(1, np.float32), one, one + 1, np.zeros(1, np.float32))
