"""In how many batches each row was looked up since the hot rows were last chosen, over all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from cache.sketch import FrequentIds
from cache.split import HotLookups
from cache.tables import Ints, Slots

LEAST = 1024
"""Cold ids of a table that are counted at least."""


class Recent:
    """Counts of this rank, exact for hot rows; of cold ones those are kept that may take their place, twice as many as
    there are slots."""

    def __init__(self, slots: Slots, group: dist.ProcessGroup) -> None:
        self._slots, self._group = slots, group
        self._reset()

    def add(self, lookups: HotLookups) -> None:
        """A batch that was split with its distinct cold ids."""
        assert lookups.cold is not None
        self._hot[lookups.touched] += 1
        for counts, ids in zip(self._cold, lookups.cold, strict=True):
            if counts is not None:
                counts.update(ids)

    def take(self) -> list[tuple[Ints, tuple[Ints, Ints]]]:
        """By table: counts of its slots, and ids and counts of cold rows. Of all ranks, the same on all; then count
        from 0. All ranks must call it at once."""
        hot = torch.from_numpy(self._hot.copy())
        dist.all_reduce(hot, group=self._group)
        of_ranks: list[Any] = [None] * self._group.size()
        dist.all_gather_object(of_ranks, self.state()["cold"], group=self._group)
        self._reset()
        found = []
        for i, own in enumerate(np.split(hot.numpy(), self._slots.first[1:-1])):
            merged = self._cold[i]
            for of_rank in of_ranks:
                if merged is not None and of_rank[i] is not None:
                    merged.add(*(array.numpy() for array in of_rank[i]))
            found.append((own, (merged.ids, merged.counts) if merged is not None else (own[:0], own[:0])))
        self._reset()
        return found

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of this rank: tensors."""
        read = [None if counts is None else (counts.ids, counts.counts) for counts in self._cold]
        cold = [None if of is None else [torch.from_numpy(array) for array in of] for of in read]
        return {"hot": torch.from_numpy(self._hot), "cold": cold}

    def restore(self, state: dict[str, Any]) -> None:
        self._reset()
        self._hot += state["hot"].numpy()
        for counts, of in zip(self._cold, state["cold"], strict=True):
            if counts is not None:
                counts.add(*(array.numpy() for array in of))

    def _reset(self) -> None:
        self._hot = np.zeros(self._slots.size, np.int64)
        self._cold = [
            FrequentIds(max(2 * table.hot, LEAST)) if 0 < table.hot < table.rows else None
            for table in self._slots.tables
        ]
