"""Messages between real gloo ranks: what arrives, and what each rank says when it does not."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.multiprocessing.spawn import ProcessExitedException

from compression.errors import CorruptPayloadError
from compression.exchange import transport
from compression.exchange.duplex import INLINE_BYTES
from compression.exchange.errors import ExchangeError
from compression.exchange.frames import HEADER_BYTES, MOST_BYTES, Stamp, header, layout, read_header, size_class
from compression.exchange.transport import Channel
from tests.compression.exchange.models import forget_notes
from tests.ranks import run_ranks

SCHEDULES = ("duplex", "all_to_all")
MIB = 1 << 20
TIMEOUT_S = 20.0
"""No case of an error may wait for it, except where the time-out is the case."""

Sizes = Callable[[int, int], int]


def payload(source: int, target: int, number: int, size: int) -> NDArray[np.uint8]:
    return np.random.default_rng([source, target, number]).integers(0, 256, size, np.uint8)


# What arrives.

PLANS: dict[str, Sizes] = {
    "nobody sends": lambda *_: 0,
    "rank 0 sends nothing": lambda source, target: 0 if source == 0 else 1001 + target,
    "the last rank receives nothing": lambda source, target: 0 if target == dist.get_world_size() - 1 else 77,
    "odd sizes": lambda source, target: [1, 3, 4097, 65537][(source + 2 * target) % 4],
    "about the size that travels inline": lambda source, target: INLINE_BYTES - HEADER_BYTES + 13 * (source + target),
    "one large one": lambda source, target: 24 * MIB + 1 if (source, target) == (0, 1) else 5,
}


def exchange_all(schedule: str) -> dict[str, int]:
    """Every plan by both kinds of exchange, all of them on their way at once; checksums of what came, by plan."""
    group = dist.group.WORLD
    ids = Channel(group, kind="ids", number=0, schedule=schedule, timeout_s=TIMEOUT_S)
    rows = Channel(group, kind="output_dist", number=1, schedule=schedule, timeout_s=TIMEOUT_S)
    me, ranks, sums = ids.rank, ids.ranks, {}

    def sent(source: int, target: int, plan: Sizes, number: int) -> NDArray[np.uint8]:
        return payload(source, target, number, plan(source, target))

    announced = {name: ids.announce([sent(me, p, plan, 0) for p in range(ranks)]) for name, plan in PLANS.items()}
    posted = {}
    for name, plan in PLANS.items():
        # Chunk 1 is full, chunk 2 has room left, chunk 3 does not travel.
        capacities = [[plan(p, me), plan(p, me) + 100, 0] for p in range(ranks)]
        posted[name] = rows.post(capacities, [[plan(me, p), plan(me, p) + 100, 0] for p in range(ranks)])
    arriving = {name: one.start() for name, one in announced.items()}
    for name, messages in posted.items():
        for peer in rows.peers:
            for chunk in (1, 0):
                messages.send(peer, chunk, sent(me, peer, PLANS[name], chunk))
        messages.flush()
    for name, plan in PLANS.items():
        got = [b if b is not None else np.empty(0, np.uint8) for b in arriving[name].wait()]
        for peer in rows.peers:
            chunks = [got[peer], *(posted[name].receive(peer, chunk) for chunk in range(3))]
            for number, chunk in zip((0, 0, 1), chunks, strict=False):
                np.testing.assert_array_equal(chunk, sent(peer, me, plan, number))
                assert chunk.flags.writeable and chunk.ctypes.data % 8 == 0
            assert not chunks[3].size
            sums[name] = sums.get(name, 0) + sum(int(chunk.sum(dtype=np.int64)) for chunk in chunks)
        posted[name].finish()
    return sums


def both_schedules() -> list[dict[str, int]]:
    return [exchange_all(schedule) for schedule in SCHEDULES]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_payloads_arrive_by_either_schedule(ranks: int) -> None:
    for duplex, all_to_all in run_ranks(both_schedules, ranks):
        assert duplex == all_to_all


# What is refused, and what is left open.


def sent_wrong() -> list[str]:
    channel = Channel(dist.group.WORLD, kind="gradients", number=9, timeout_s=TIMEOUT_S, describe=lambda *_: "table a")
    peer, problems = 1 - channel.rank, []

    def refused(action: Callable[[], object]) -> None:
        with pytest.raises(ValueError) as error:
            action()
        problems.append(str(error.value))

    messages = channel.post([[10], [10]], [[10], [10]])
    refused(lambda: messages.send(peer, 0, np.empty(11, np.uint8)))
    refused(lambda: messages.send(channel.rank, 0, np.ones(1, np.uint8)))
    messages.send(peer, 0, np.full(10, channel.rank, np.uint8))
    refused(lambda: messages.send(peer, 0, np.empty(1, np.uint8)))
    assert messages.receive(peer, 0).tolist() == [peer] * 10
    refused(lambda: messages.receive(peer, 0))
    messages.finish()
    refused(lambda: channel.post([[1]], [[1]]))
    refused(lambda: channel.post([[1], [1]], [[1 << 40], [1 << 40]]))
    refused(lambda: channel.announce([np.broadcast_to(np.uint8(0), (1 << 30) + 1)] * 2))

    # What is neither sent nor received is not in the way of the next exchange.
    channel.post([[5, 5], [5, 5]], [[5, 5], [5, 5]]).finish()
    assert [b is None for b in channel.announce([None, None]).start().wait()] == [True, True]
    return problems


def test_what_cannot_be_sent_is_refused_before_anything_is_sent() -> None:
    problems, _ = run_ranks(sent_wrong, 2)
    assert problems[0].startswith("gradients: table a, from rank 0 to rank 1: a payload of 11 bytes, but at most 10 ")
    assert "a payload of 1073741825 bytes, at most 1073741824" in problems[-1]


# What a rank says when something is wrong.


class Link:
    """A group whose messages from this rank a test can change on their way."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.change: Callable[[torch.Tensor], torch.Tensor] = lambda message: message

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> dist.Work:
        return self._group.send([self.change(tensors[0])], peer, tag)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


CULPRIT, VICTIM = 1, 0


def announces(channel: Channel, size: int, announced: int) -> None:
    """The culprit announces another size to the victim than it sends."""
    transport.announced_size = lambda true: announced if true == size and channel.rank == CULPRIT else true
    mine = [payload(channel.rank, p, 0, size if p == VICTIM else size + 2) for p in range(channel.ranks)]
    channel.announce(mine).start().wait()


def flips(channel: Channel, byte: int) -> None:
    def flip(message: torch.Tensor) -> torch.Tensor:
        message[byte] ^= 0x10
        return message

    if channel.rank == CULPRIT:
        channel.group.change = flip
    one_exchange(channel)


def sends_stale(channel: Channel) -> None:
    old: list[torch.Tensor] = []

    def again(message: torch.Tensor) -> torch.Tensor:
        old.append(message)
        return old[0]

    if channel.rank == CULPRIT:
        channel.group.change = again
    for _ in range(2):
        one_exchange(channel)


def sends_garbage(channel: Channel) -> None:
    if channel.rank == CULPRIT:
        channel.group.change = lambda message: torch.randint(0, 256, message.shape, dtype=torch.uint8)
    channel.announce([payload(channel.rank, p, 0, 9) for p in range(channel.ranks)]).start().wait()


def disagrees(channel: Channel) -> None:
    """The culprit sends more than the others expect: a receive that is too short would end the process."""
    most = 20_000 if channel.rank == CULPRIT else 50
    one_exchange(channel, most, most)


def fails(channel: Channel) -> None:
    if channel.rank == CULPRIT:
        raise channel.failed("rows of table x: not to be decoded")
    one_exchange(channel)


def never_comes(channel: Channel) -> None:
    if channel.rank == CULPRIT:
        time.sleep(channel.timeout.total_seconds() + 1)
    else:
        one_exchange(channel)


def one_exchange(channel: Channel, most: int = 50, size: int = 50) -> None:
    messages = channel.post([[50]] * channel.ranks, [[most]] * channel.ranks)
    for peer in channel.peers:
        messages.send(peer, 0, payload(channel.rank, peer, 0, size))
    messages.flush()
    for peer in channel.peers:
        messages.receive(peer, 0)
    messages.finish()


CASES: dict[str, tuple[Callable[..., None], tuple[int, ...], str]] = {
    "less announced": (announces, (1234, 1000), "1000 bytes were announced, the payload has 1234"),
    "more announced": (announces, (1234, 2001), "2001 bytes were announced, the payload has 1234"),
    "less announced of a large one": (announces, (99_999, 70_000), "70000 bytes were announced, the payload has 99999"),
    "more announced of a large one": (announces, (99_999, 200_000), "200000 bytes were announced, .* has 99999"),
    "announced -1": (announces, (1234, -1), "a size of -1 bytes"),
    "announced 2^31": (announces, (1234, 1 << 31), "a size of 2147483648 bytes"),
    "announced 2^33": (announces, (1234, 1 << 33), "a size of 8589934592 bytes"),
    "garbage for a size": (sends_garbage, (), "corrupt payload: magic"),
    "a stale message": (sends_stale, (), "corrupt payload: exchange: 1, not 2"),
    "flipped magic": (flips, (0,), "corrupt payload: magic"),
    "flipped version": (flips, (1,), "corrupt payload: version"),
    "flipped channel": (flips, (2,), "corrupt payload: check of the header"),
    "flipped size": (flips, (12,), "corrupt payload: check of the header"),
    "flipped check": (flips, (HEADER_BYTES - 1,), "corrupt payload: check of the header"),
    "a rank that fails": (fails, (), "rows of table x: not to be decoded"),
    "other limits": (disagrees, (), ""),
    "a peer that never comes": (never_comes, (), ""),
}
WAITS = ("other limits", "a peer that never comes")
ONE_BY_ONE = ("garbage for a size", "a stale message", *(name for name in CASES if name.startswith("flipped")))
"""These change single messages."""


def what_is_said(name: str, schedule: str) -> dict[str, object]:
    """The error of one case, in a group of its own, and how long it took."""
    group = Link(dist.new_group(backend="gloo", timeout=timedelta(seconds=60)))
    forget_notes()
    channel = Channel(
        group,
        kind="ids",
        number=5,
        schedule=schedule,
        timeout_s=1.0 if name in WAITS else TIMEOUT_S,
        describe=lambda source, target, chunk: f"tables of {source} and {target}",
    )
    case, arguments, _ = CASES[name]
    start, said = time.monotonic(), ""
    try:
        case(channel, *arguments)
        one_exchange(channel)  # Who was not hurt finds out at the next one.
    except ExchangeError as error:
        said = str(error)
        with pytest.raises(ExchangeError) as again:
            channel.announce([None] * channel.ranks)
        assert again.value is error
        chained = error.__cause__ is not None
    else:
        chained = False
    transport.announced_size = lambda true: true
    return {"said": said, "took_s": time.monotonic() - start, "chained": chained}


def say_all(schedule: str, names: list[str]) -> dict[str, dict[str, object]]:
    return {name: what_is_said(name, schedule) for name in names}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_rank_says_what_is_wrong(schedule: str) -> None:
    names = [name for name in CASES if schedule == "duplex" or name not in ONE_BY_ONE]
    by_rank = run_ranks(say_all, 3, schedule, names)
    for name in names:
        _, _, problem = CASES[name]
        said = [results[name]["said"] for results in by_rank]
        for rank, text in enumerate(said):
            if name == "a peer that never comes" and rank == CULPRIT:
                continue
            # Either it saw it, or the one that did left a note.
            assert re.search(f"^ids: .*{problem}", text), (name, rank, said)
            assert "\n" not in text, (name, text)
            assert by_rank[rank][name]["took_s"] < 15, (name, text)
        if name != "a rank that fails":
            assert re.search("^ids: (tables of 1 and 0, from rank 1|from all ranks) to rank 0: ", said[VICTIM]), said
    assert by_rank[VICTIM]["a peer that never comes"]["chained"]


def killed(folder: str, schedule: str) -> None:
    """The culprit ends in the middle of an exchange; what the others say goes to files, since it ends their run."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = Channel(dist.group.WORLD, kind="output_dist", number=2, schedule=schedule, timeout_s=TIMEOUT_S)
    one_exchange(channel)
    messages = channel.post([[MIB]] * channel.ranks, [[MIB]] * channel.ranks)
    messages.send(channel.peers[0], 0, payload(0, 0, 0, MIB))
    if channel.rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        messages.flush()
        for peer in channel.peers:
            messages.receive(peer, 0)
        one_exchange(channel)  # One may have got all that it was to get.
    except ExchangeError as error:
        assert time.monotonic() - start < TIMEOUT_S / 2
        (Path(folder) / f"said{channel.rank}").write_text(str(error))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_killed_rank_is_named(schedule: str, tmp_path: Path) -> None:
    with pytest.raises(ProcessExitedException):
        run_ranks(killed, 3, str(tmp_path), schedule)
    for rank in (0, 2):
        said = (tmp_path / f"said{rank}").read_text()
        assert said.startswith("output_dist: ") and "closed the connection" in said
        assert schedule == "all_to_all" or "rank 1 closed the connection" in said


# What the counters and profilers see.


def ranges_of_calls() -> dict[str, list[list[object]]]:
    """By schedule, each call to the group: the profiler range it is in, and how many bytes it sends."""
    calls: list[list[object]] = []
    current = [""]

    @contextlib.contextmanager
    def recording(name: str) -> Iterator[None]:
        current[0] = name
        yield
        current[0] = ""

    class Recording(Link):
        def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> dist.Work:
            calls.append([current[0], 0])
            return self._group.recv(tensors, peer, tag)

        def all_to_all_single(self, output: torch.Tensor, sent: torch.Tensor, *others: Any) -> dist.Work:
            calls.append([current[0], sent.numel()])
            return self._group.all_to_all_single(output, sent, *others)

    def note(message: torch.Tensor) -> torch.Tensor:
        calls.append([current[0], message.numel()])
        return message

    transport.record_function = recording
    found = {}
    for schedule in SCHEDULES:
        group = Recording(dist.group.WORLD)
        group.change = note
        ids = Channel(group, kind="ids", number=0, schedule=schedule, timeout_s=TIMEOUT_S)
        for size in (24, 80_000):
            ids.announce([np.zeros(size, np.uint8)] * 2).start().wait()
        one_exchange(Channel(group, kind="gradients", number=1, schedule=schedule, timeout_s=TIMEOUT_S), size=8)
        found[schedule] = calls[:]
        calls.clear()
    return found


def test_every_call_to_the_group_is_in_the_range_of_its_kind() -> None:
    for calls in run_ranks(ranges_of_calls, 2):
        for schedule, of_schedule in calls.items():
            sent: dict[str, int] = {}
            for name, size in of_schedule:
                sent[name] = sent.get(name, 0) + size
            heads = 2 * HEADER_BYTES
            inline = HEADER_BYTES if schedule == "duplex" else 0  # Its size travels with the first payload.
            assert sent == {
                "thinwire:sizes": heads - inline,
                "thinwire:ids": heads + inline + 24 + 80_000,
                "thinwire:gradients": HEADER_BYTES + 8,
            }


# Arithmetic.


@given(st.integers(0, MOST_BYTES + 2 * HEADER_BYTES))
def test_buffers_are_a_little_larger_than_what_they_are_for(size: int) -> None:
    number, most = size_class(size)
    assert size <= most <= max(size + size // 8 + 1, 1) and 0 <= number < 232
    assert size_class(most) == (number, most) and size_class(most + 1)[0] > number


@pytest.mark.parametrize("total", [(1 << 31) - 1, 1 << 31, 1 << 33])
def test_places_beyond_two_gib(total: int) -> None:
    part = total // 3 + 1
    places, splits = layout([[part, part], [], [total - 2 * part, 5]])
    step = -(-part // 8) * 8
    assert places == [[0, step], [], [2 * step, 2 * step + -(-(total - 2 * part) // 8) * 8]]
    assert sum(splits) == places[2][1] + 8 and splits[0] == 2 * step and splits[1] == 0


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_no_garbage_is_a_header(data: bytes) -> None:
    with pytest.raises(CorruptPayloadError):
        read_header(data, Stamp(1, 2, 3, 4))


@given(st.integers(0, HEADER_BYTES * 8 - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_flipped_bit_of_a_header_is_seen(bit: int, size: int) -> None:
    stamp = Stamp(1, 2, 3, 4)
    data = bytearray(header(stamp, size))
    assert read_header(bytes(data), stamp) == size
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptPayloadError):
        read_header(bytes(data), stamp)
