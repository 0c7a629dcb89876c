"""Lists of ids on a device as payloads, the same as `encode_id_lists` makes with `fast`, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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


class Lists(NamedTuple):
    """Decoded lists.

    Attributes:
        ids: address of int64 [sum of counts], list after list, message after message, until the next call.
        counts: int64 of each message: the number of ids of each list; 0 for a message that was not decoded.
        left: int64, messages that were not decoded: damaged ones, and those with coded groups. `decode_id_lists`
            decodes them, or says what is wrong.
    """

    ids: int
    counts: list[NDArray[np.int64]]
    left: NDArray[np.int64]


class IdDecoder:
    """Unpacks ids; keeps its memory, so it belongs to one stream at a time."""

    def __init__(self, backend: Backend) -> None:
        self.arena = Arena(backend)

    def decode(self, addresses: NDArray[np.uint64], sizes: NDArray[np.int64], lists: NDArray[np.int64]) -> Lists:
        """Decode payloads.

        Args:
            addresses: uint64 [messages], at multiples of 4; sizes: int64, bytes.
            lists: int64, how many lists each message is to have.
        """
        count, n = addresses.size, int(lists.sum())
        if not count:
            return Lists(0, [], np.empty(0, np.int64))
        found = np.zeros(count, MESSAGE)
        found["lists"], found["words"] = lists, addresses
        found["first_list"] = lists.cumsum() - lists
        words = np.where(sizes % 4 == 0, sizes // 4, 0)
        heads, states, of, small = self._read_heads(found, words, n)
        data = self.arena.backend.download(small, 16 * count)
        totals, problems = data[: 8 * count].view(np.int64), data[8 * count :].view(np.uint32).reshape(2, count)
        totals = np.where(problems.any(axis=0), 0, totals)
        given = self.arena.backend.download(heads, 8 * n).view(np.uint32).astype(np.int64)
        counts = [
            given[2 * a : 2 * a + k] if total else np.zeros(k, np.int64)
            for a, k, total in zip(found["first_list"].tolist(), lists.tolist(), totals.tolist(), strict=True)
        ]
        found["first_value"] = totals.cumsum() - totals
        blocks = np.where(totals > 0, -(-totals // _BLOCK) + GROUPS, 0)
        found["first_block"] = blocks.cumsum() - blocks
        records = np.zeros(n, LIST)
        records["count"] = np.concatenate([np.empty(0, np.int64), *counts])
        records["first"] = records["count"].cumsum() - records["count"]
        records["message"] = np.repeat(np.arange(count), lists)
        ids = self._read_ids(found, records, np.repeat(np.arange(count, dtype=np.uint32), blocks), states, of, small)
        left = self.arena.backend.download(small + 8 * count, 8 * count).view(np.uint32).reshape(2, count)
        return Lists(ids, counts, np.flatnonzero(left.any(axis=0)))

    def _read_heads(self, found: NDArray[np.void], words: NDArray[np.int64], n: int) -> tuple[int, int, int, int]:
        """Addresses of counts and tags, of states of lists and of messages, and of totals and problems."""
        arena, count = self.arena, found.size
        plan = arena.get("plan", found.nbytes + words.nbytes)
        arena.backend.upload(plan, np.concatenate([found.view(np.uint8), words.view(np.uint8)]))
        heads, small = arena.get("heads", 24 * n), arena.get("small", 16 * count)
        states, of = arena.get("lists", LIST_STATE_BYTES * n), arena.get("states", STATE_BYTES * count)
        arena.backend.zero(small, 16 * count)
        capacity, problems = plan + found.nbytes, small + 8 * count
        widths, offsets = heads + 8 * n, heads + 16 * n
        arena.run("read_id_heads", count, plan, capacity, states, of, heads, widths, offsets, small, problems)
        grid = max(min(-(-int(words.max()) // _OF_BLOCK), 1024), 1), count
        arena.run("check_id_checksums", grid, plan, capacity, problems + 4 * count)
        return heads, states, of, small

    def _read_ids(
        self,
        found: NDArray[np.void],
        lists: NDArray[np.void],
        owners: NDArray[np.uint32],
        states: int,
        of: int,
        small: int,
    ) -> int:
        """The address of the ids."""
        arena, run, count, blocks, n = self.arena, self.arena.run, found.size, owners.size, lists.size
        total = int(lists["count"].sum())
        plan = arena.get("plan", found.nbytes + lists.nbytes + owners.nbytes)
        arena.backend.upload(plan, np.concatenate([part.view(np.uint8) for part in (found, lists, owners)]))
        of_lists, owner = plan + found.nbytes, plan + found.nbytes + lists.nbytes
        ids, values, widths = (
            arena.get("ids", 8 * total),
            arena.get("values", 4 * total),
            arena.get("blocks", 8 * blocks),
        )
        problems, offsets = small + 8 * count, widths + 4 * blocks
        if total:
            run("find_groups", count, plan, of, widths, offsets, problems)
            run("read_groups", -(-blocks // WARPS), plan, owner, blocks, of, widths, offsets, problems, values)
            run("read_lists", -(-n // WARPS), plan, of_lists, n, states, values, ids, problems)
        return ids
