"""Lists of ids on a device as payloads, the same as `encode_id_lists` makes with `fast`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from compression.device.backend import WARPS, Arena, Backend
from compression.device.tables import Payloads
from compression.id_values import GROUPS, LIST_BYTES

LIST = np.dtype([(name, "<i8") for name in ("first", "count", "message")])
MESSAGE = np.dtype(
    [(name, "<i8") for name in ("first_list", "lists", "first_value", "first_block")] + [("words", "<u8")]
)
LIST_STATE_BYTES, STATE_BYTES = 32, 4 * (4 * GROUPS + 4)
MOST_IDS = 1 << 30
"""Of a message."""
_BLOCK, _ALIGNED, _OF_BLOCK = 1024, 64, 4096


class IdEncoder:
    """Packs ids; keeps its memory, so it belongs to one stream at a time."""

    OUT = "payloads"

    def __init__(self, backend: Backend) -> None:
        self.arena = Arena(backend)

    def encode(self, ids: int, messages: Sequence[NDArray[np.int64]]) -> Payloads:
        """Encode lists of ids, one payload a message; they are in the buffer `OUT` until the next call.

        Args:
            ids: address of int64 [sum of counts], list after list, message after message.
            messages: the number of ids of each list of each message.

        Raises:
            ValueError: a message has too many ids.
        """
        count = len(messages)
        if not count:
            return Payloads(*(np.empty(0, np.int64) for _ in range(3)))
        totals = np.array([lists.sum() for lists in messages], np.int64)
        if totals.max() >= MOST_IDS:
            raise ValueError(f"a message of {totals.max()} ids: less than {MOST_IDS} go in one")
        found = np.zeros(count, MESSAGE)
        of = np.array([lists.size for lists in messages], np.int64)
        blocks = -(-totals // _BLOCK) + GROUPS
        for name, size in (("first_list", of), ("first_value", totals), ("first_block", blocks)):
            found[name] = size.cumsum() - size
        found["lists"] = of
        lists = np.zeros(int(of.sum()), LIST)
        lists["count"] = np.concatenate([np.empty(0, np.int64), *messages])
        lists["first"] = lists["count"].cumsum() - lists["count"]
        lists["message"] = np.repeat(np.arange(count), of)
        # `place_lists` takes ids as they are where this would be passed; their counts and tags may take a little more.
        room = 3 + 2 * totals + 3 + (LIST_BYTES * of) // 4 + of + 2
        ends = (-(-room // _ALIGNED) * _ALIGNED).cumsum()
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        found["words"] = (self.arena.get(self.OUT, 4 * int(ends[-1])) + 4 * starts).astype(np.uint64)
        sizes = self._run(ids, found, lists, np.repeat(np.arange(count, dtype=np.uint32), blocks), int(room.max()))
        return Payloads(4 * starts, 4 * sizes, np.empty(0, np.int64))

    def _run(
        self, ids: int, found: NDArray[np.void], lists: NDArray[np.void], owners: NDArray[np.uint32], largest: int
    ) -> NDArray[np.int64]:
        """Launch all stages; the words of each payload."""
        arena, run, n, count, blocks = self.arena, self.arena.run, lists.size, found.size, owners.size
        data = np.concatenate([part.view(np.uint8) for part in (found, lists, owners)])
        messages = arena.get("plan", data.size)
        arena.backend.upload(messages, data)
        of_lists, owner = messages + found.nbytes, messages + found.nbytes + lists.nbytes
        states, of = arena.get("lists", LIST_STATE_BYTES * n), arena.get("states", STATE_BYTES * count)
        values, sizes = arena.get("values", 4 * int(lists["count"].sum())), arena.get("sizes", 4 * count)
        widths = arena.get("blocks", 8 * blocks)
        offsets, per_list, per_block = widths + 4 * blocks, -(-n // WARPS), -(-blocks // WARPS)
        run("plan_lists", per_list, ids, of_lists, n, states)
        run("place_values", count, messages, of_lists, states, of)
        run("make_values", per_list, ids, messages, of_lists, n, states, values)
        run("measure_groups", per_block, messages, owner, blocks, of, values, widths)
        run("place_lists", count, messages, of_lists, states, of, widths, offsets, sizes)
        run("write_listed", count, messages, of_lists, states, of)
        run("write_plain", per_list, ids, messages, of_lists, n, states, of)
        run("write_groups", per_block, messages, owner, blocks, of, values, widths, offsets)
        run("write_id_checksums", (min(-(-largest // _OF_BLOCK), 1024), count), messages, sizes)
        return arena.backend.download(sizes, 4 * count).view(np.uint32).astype(np.int64)
