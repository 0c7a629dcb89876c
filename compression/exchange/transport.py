"""Variable-size messages between all ranks of a process group: docs are on `Channel`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Literal, get_args

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.autograd.profiler import record_function

from compression.errors import CorruptPayloadError
from compression.exchange.collective import CollectiveAnnounced, CollectiveMessages
from compression.exchange.duplex import Ahead, DuplexAnnounced, DuplexMessages
from compression.exchange.errors import ExchangeError
from compression.exchange.frames import HEADER_BYTES, MOST_BYTES, SIZES, Stamp, read_header
from compression.exchange.messages import Announced, Arriving, Bytes, Messages
from compression.exchange.notes import leave_note, read_notes

__all__ = ["HEADER_BYTES", "MOST_BYTES", "Announced", "Arriving", "Channel", "Messages"]

_torch_range = record_function
_NO_RANGE = contextlib.nullcontext()
_NEVER_SENT = 0x3FFFFFFF
"""A tag."""
Schedule = Literal["auto", "duplex", "all_to_all"]


def check_schedule(schedule: str) -> None:
    """Raises ValueError unless there is such a schedule."""
    if schedule not in get_args(Schedule):
        raise ValueError(f"no schedule {schedule!r}: {', '.join(get_args(Schedule))}")


def announced_size(size: int) -> int:
    """The size that is announced for a payload of this size; tests put a wrong one here."""
    return size


class Channel:
    """Messages of one kind between the ranks of a group, in CPU buffers. All ranks must call it in the same order, and
    what it returned, where several exchanges are on their way, in the order in which they were begun.

    The calls to the group are in profiler ranges named `thinwire:` and the kind, or `thinwire:sizes`. An error leaves a
    note for the other ranks in the store of the job, and on gloo closes the connections of this rank, so that no other
    one waits for what will not come; after it the channel refuses to be used.

    Args:
        kind: what the messages hold: ids, output_dist or gradients.
        number: of this channel alone, the same on all ranks, below 65536.
        timeout_s: longest wait of one call, in seconds.
        schedule: duplex sends messages one by one, as soon as they are there; all_to_all sends those of all ranks at
            once. auto = duplex on gloo.
        describe: names the tables in a message, given its source and target rank and chunk.

    Attributes:
        rank, ranks: of the group.
        peers: all other ranks, begun by the next one, so that not all send to the same rank at once.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        *,
        kind: str,
        number: int,
        timeout_s: float = 300.0,
        schedule: Schedule = "auto",
        describe: Callable[[int, int, int], str] | None = None,
    ) -> None:
        if not (timeout_s > 0 and 0 <= number < 1 << 16):
            raise ValueError(f"timeout_s is positive and number in 0 to 65535, not {timeout_s} and {number}")
        check_schedule(schedule)
        self.group, self.kind, self.number = group, kind, number
        self.rank, self.ranks = group.rank(), group.size()
        self.peers = [(self.rank + i) % self.ranks for i in range(1, self.ranks)]
        self.timeout = timedelta(seconds=max(timeout_s, 1e-3))
        backend = _backend(group)
        self._gloo = "gloo" in backend
        if schedule == "duplex" and not self._gloo:
            raise ValueError(f"duplex is for gloo, {backend} orders messages by itself: use auto")
        self._duplex = self._gloo and schedule != "all_to_all"
        self.device = torch.device("cpu" if self._gloo else "cuda")
        self._describe = describe or (lambda *_: "all tables")
        self._exchanges = 0
        # Buffers on their way must stay, also if the caller drops them after an error.
        self._moving: dict[int, Messages | Announced] = {}
        self._ahead = Ahead(self)
        self._failed: ExchangeError | None = None

    def post(self, capacities: Sequence[Sequence[int]], limits: Sequence[Sequence[int]]) -> Messages:
        """Expect messages from all ranks.

        Args:
            capacities: most bytes of each chunk that each rank may send; 0 = the chunk does not travel.
            limits: the same of what this rank may send to each rank: there they are its capacities. Entries of the own
                rank are not looked at.

        Raises:
            ValueError: limits that are none.
            ExchangeError: a peer is gone, or this channel had an error.
        """
        for sizes in (capacities, limits):
            if len(sizes) != self.ranks or any(not 0 <= n <= MOST_BYTES for p in self.peers for n in sizes[p]):
                problem = f"need most bytes of 0 to {MOST_BYTES} for chunks of each of {self.ranks} ranks"
                raise ValueError(f"{self.kind}: {problem}")
        kind = DuplexMessages if self._duplex else CollectiveMessages
        exchange = self._begin()
        messages = kind(self, exchange, capacities, limits)
        self._moving[exchange] = messages
        return messages

    def announce(self, payloads: Sequence[NDArray[np.uint8] | None]) -> Announced:
        """Begin to send payloads whose size only this rank knows. They are copied.

        Args:
            payloads: uint8 [bytes] to each rank; None = nothing; that to the own rank is not looked at.

        Raises:
            ValueError: a payload is too large. Nothing was sent.
            ExchangeError: a peer is gone, or this channel had an error.
        """
        if len(payloads) != self.ranks:
            raise ValueError(f"{len(payloads)} payloads for {self.ranks} ranks")
        sizes = [0 if payload is None else payload.size for payload in payloads]
        for peer in self.peers:
            if sizes[peer] > MOST_BYTES:
                problem = f"a payload of {sizes[peer]} bytes, at most {MOST_BYTES} can be sent: use smaller batches"
                raise self.refused(self.rank, peer, 0, problem)
        exchange = self._begin()
        sizes = [announced_size(size) for size in sizes]
        announced: Announced = (
            DuplexAnnounced(self, exchange, payloads, sizes, self._ahead)
            if self._duplex
            else CollectiveAnnounced(self, exchange, payloads, sizes)
        )
        self._moving[exchange] = announced
        return announced

    def failed(self, problem: str) -> ExchangeError:
        """The error to raise when this rank cannot go on, the first one again; tells the other ranks.

        Args:
            problem: one line: what is wrong, where, and how to fix it.
        """
        if self._failed is not None:
            return self._failed
        said = read_notes()
        leave_note(f"{self.kind}: {problem}")
        self._hang_up()
        self._failed = ExchangeError(f"{self.kind}: {problem}{said}")
        return self._failed

    # For the schedules.

    def broken(self, source: int | None, target: int, chunk: int, problem: str) -> ExchangeError:
        """The error of a message that is not as it must be."""
        return self.failed(f"{self._name(source, target, chunk)}: {problem}")

    def refused(self, source: int, target: int, chunk: int, problem: str) -> ValueError:
        """The error of a message that cannot be sent."""
        text = f"{self._name(source, target, chunk)}: {problem}"
        leave_note(f"{self.kind}: {text}")
        return ValueError(f"{self.kind}: {text}")

    def lost(self, error: Exception, source: int | None, target: int, chunk: int, most: int) -> ExchangeError:
        """The error of a wait that did not end well."""
        other = "another rank" if source is None else f"rank {target if source == self.rank else source}"
        what = f"send {most} bytes" if source == self.rank else f"receive at most {most} bytes"
        if "imed out" in str(error):
            problem = f"rank {self.rank} waited {self.timeout.total_seconds():g} s to {what}: see what {other} does, "
            problem += "or give it more time (timeout_s)"
        elif "Application timeout" in str(error):
            problem = f"rank {self.rank} was to {what}, but has closed its connections after an error"
        else:
            problem = f"rank {self.rank} was to {what}, but {other} closed the connection: see its log"
        return self.broken(source, target, chunk, problem)

    def read(self, message: Bytes, source: int, chunk: int, exchange: int, most: int) -> int:
        """The size of the payload, from the header.

        Raises:
            ExchangeError: it is another header, or another size than 0 to `most`.
        """
        try:
            size = read_header(message[:HEADER_BYTES].tobytes(), self.stamp(source, chunk, exchange))
        except CorruptPayloadError as error:
            raise self.broken(source, self.rank, chunk, str(error)) from error
        if not 0 <= size <= most:
            problem = f"the header tells a size of {size} bytes, at most {most} may come"
            raise self.broken(source, self.rank, chunk, problem)
        return size

    def stamp(self, source: int, chunk: int, exchange: int) -> Stamp:
        return Stamp(self.number, source, chunk, exchange & 0xFFFFFFFF)

    def range(self, kind: str | None = None) -> contextlib.AbstractContextManager[object]:
        """A profiler range around a call to the group."""
        # Opening one takes as long as posting a message, so it is done only where somebody looks.
        if record_function is _torch_range and not torch.autograd._profiler_enabled():
            return _NO_RANGE
        return record_function(f"thinwire:{kind or self.kind}")

    def until(self) -> float:
        """When a wait that begins now must end."""
        return time.monotonic() + self.timeout.total_seconds()

    def left(self, until: float) -> timedelta:
        # 0 would mean the group's own timeout.
        return timedelta(seconds=max(until - time.monotonic(), 1e-3))

    def done(self, exchange: int) -> None:
        """Nothing of this exchange is on its way."""
        self._moving.pop(exchange, None)

    def _begin(self) -> int:
        if self._failed is not None:
            raise self._failed
        self._exchanges += 1
        return self._exchanges

    def _name(self, source: int | None, target: int, chunk: int) -> str:
        if source is None:
            return f"from all ranks to rank {target}"
        try:
            tables = self._describe(source, target, 0 if chunk == SIZES else chunk)
        except Exception as error:  # Must not hide the error that is being told.
            tables = f"unknown tables ({error!r})"
        return f"{tables}, from rank {source} to rank {target}"

    def _hang_up(self) -> None:
        """gloo closes all connections of a rank when one of its waits times out."""
        if self._gloo and self.peers:
            with contextlib.suppress(Exception):
                nothing = torch.empty(1, dtype=torch.uint8)
                self.group.recv([nothing], self.peers[0], _NEVER_SENT).wait(timedelta(milliseconds=1))


def _backend(group: dist.ProcessGroup) -> str:
    """Of a group, or, where it is one of another make, of the default one that stands behind it."""
    known: dist.ProcessGroup | None = group
    try:
        name = dist.get_backend(known)
    except ValueError:
        known, name = None, dist.get_backend()
    return dist.get_backend_config(known) if name == "undefined" else name
