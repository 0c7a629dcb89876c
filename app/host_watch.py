"""Names the host that a run has lost, and ends the run when nothing takes its place.

Without it a host that is cut off shows as silence: its peers wait in a collective until Ray gives the host up (after
about a minute by Ray's own settings), and Ray Train then waits without limit for room for its workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
from rich.console import Console

from app.config import ClusterOptions
from app.errors import CollectiveTimeoutError, LostHostError

LOOK_S = 1.0
PROBE_LIMIT_S = 2.0
QUIET_S = 3.0
"""Hosts are asked once no step was logged for so long."""


@dataclass(frozen=True)
class Node:
    """A Ray node."""

    name: str
    """For people, such as host2 (10.77.0.3)."""
    address: tuple[str, int]
    """On which its raylet listens."""
    alive: bool
    """As Ray has it."""
    slots: int
    """Workers that fit."""


class RollCall:
    """Which rank is on which node, and what became of it. Takes plain data, gives lines for people. Times in seconds.

    Args:
        go_on: how to go on after the run's end.
    """

    def __init__(self, options: ClusterOptions, go_on: str) -> None:
        self._options, self._go_on = options, go_on
        self._nodes: Mapping[str, Node] = {}
        self._at: dict[int, str] = {}
        self._groups = 0
        self._lost: dict[str, str] = {}
        self._lost_at = math.inf
        self._silent: frozenset[str] = frozenset()

    @property
    def here(self) -> dict[str, Node]:
        """The nodes of the newest group of workers."""
        return {node: self._nodes[node] for node in self._at.values() if node in self._nodes}

    def joined(self, rank: int, node: str, now: float) -> list[str]:
        """A rank begins its work. One that was there already begins a new group."""
        if rank in self._at or not self._at:
            self._at, self._groups = {}, self._groups + 1
        self._at[rank] = node
        if not self._lost or len(self._at) < self._options.workers:
            return []
        self._lost.clear()
        places = join_words(n.name for n in self.here.values())
        return [f"{self._options.workers} workers run again, on {places}, {now - self._lost_at:.0f} s after the loss"]

    def seen(self, nodes: Mapping[str, Node], now: float) -> list[str]:
        """What Ray says of all nodes, by id."""
        died = [key for key, node in nodes.items() if not node.alive and self._nodes.get(key, node).alive]
        self._nodes = nodes
        # Before all workers run nobody knows where the rest will be: any node may be one too many to lose.
        starting = len(self._at) < self._options.workers and self._room < self._options.workers
        fresh = {key: self._who(key) for key in died if starting or key in self._at.values()}
        if not fresh:
            return []
        if not self._lost:
            self._lost_at = now
        self._lost |= fresh
        self._at = {}
        return [f"lost {join_words(fresh.values())}: {self._outlook()}"]

    def probed(self, silent: Iterable[str], quiet_s: float) -> list[str]:
        """Which nodes of `here` do not answer, and for how long no step was logged."""
        before, self._silent = self._silent, frozenset(silent)
        lines = [
            f"{self._who(key)} does not answer: no step for {quiet_s:.0f} s" for key in sorted(self._silent - before)
        ]
        return lines + [f"{node.name} answers again" for key, node in self.here.items() if key in before - self._silent]

    def overdue(self, now: float) -> LostHostError | None:
        """The end of the run, once it has waited long enough."""
        limit = self._options.lost_host_wait_s
        if not self._lost or now - self._lost_at < limit:
            return None
        workers = _counted(self._options.workers, "worker")
        what = f"lost {join_words(self._lost.values())}: {workers} did not run again within {limit:g} s"
        return LostHostError(f"{what} (cluster.lost_host_wait_s); {self._advice()}")

    def blame(self) -> LostHostError | None:
        """Why Ray Train gave up, if a host is to blame."""
        who = join_words(self._lost.values()) or join_words(self._who(key) for key in sorted(self._silent))
        if not who:
            return None
        verb = "lost" if self._lost else "no answer from"
        return LostHostError(f"{verb} {who}: {self.no_restart()}; {self._advice()}")

    @property
    def _room(self) -> int:
        slots = [node.slots for node in self._nodes.values() if node.alive]
        match self._options.placement:
            case "STRICT_SPREAD":
                return sum(map(bool, slots))
            case "STRICT_PACK":
                return max(slots, default=0)
        return sum(slots)

    def _outlook(self) -> str:
        options, limit = self._options, f"{self._options.lost_host_wait_s:g} s (cluster.lost_host_wait_s)"
        if self._groups > options.max_failures:
            return self.no_restart()
        if self._room >= options.workers:
            return f"restarting from the last checkpoint, which may take {limit}"
        room = f"room is left for {self._room} of {_counted(options.workers, 'worker')}"
        return f"{room}; waiting {limit} for a host to restart from the last checkpoint"

    def no_restart(self) -> str:
        return f"no restart is left (cluster.max_failures={self._options.max_failures})"

    def _advice(self) -> str:
        fewer = min(self._room, self._options.workers - 1)
        instead = f", or go on with fewer: add --set cluster.workers={fewer}" if fewer > 0 else ""
        return f"bring a host back and {self._go_on}{instead}"

    def _who(self, node: str) -> str:
        ranks = sorted(rank for rank, key in self._at.items() if key == node)
        name = self._nodes[node].name
        return f"{name} with rank{'s' * (len(ranks) > 1)} {join_words(map(str, ranks))}" if ranks else name


class HostWatch:
    """Watches the hosts of a board's workers in a background thread, for as long as the block runs.

    Says on the console what it finds, and gives the error that ends the run to `board.fail`.
    """

    def __init__(self, options: ClusterOptions, device: str, go_on: str, board: Any, console: Console) -> None:
        self._options, self._device, self._board, self._console = options, device, board, console
        self._roll = RollCall(options, go_on)
        self._seen, self._step, self._moved = 0, 0, time.monotonic()
        self._timeout: str | None = None
        self._missed: frozenset[str] = frozenset()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="host-watch")

    def __enter__(self) -> HostWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def blame(self) -> Exception | None:
        """Why Ray Train gave up, if it was a host or a link. Asks the hosts once more; call it after the block."""
        for _ in range(2):
            with contextlib.suppress(ray.exceptions.RayError, RuntimeError):
                self._look(quiet_s=0)
        if self._timeout and not self._roll.blame():
            return CollectiveTimeoutError(f"{self._timeout}; {self._roll.no_restart()}")
        return self._roll.blame()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            # The head may be busy, or the cluster on its way out: then nothing is known of the hosts.
            with contextlib.suppress(ray.exceptions.RayError, RuntimeError):
                self._look()
                if error := self._roll.overdue(time.monotonic()):
                    ray.get(self._board.fail.remote(error), timeout=5)
                    return

    def _look(self, quiet_s: float = QUIET_S) -> None:
        joined, step, self._timeout = ray.get(self._board.roll.remote(self._seen), timeout=5)
        now = time.monotonic()
        self._seen += len(joined)
        if joined or step != self._step:
            self._step, self._moved = step, now
        nodes = ray_nodes(self._options, self._device)
        # Known before the first rank, so that its node has a name.
        self._say(self._roll.seen(nodes, now))
        for rank, node in joined:
            self._say(self._roll.joined(rank, node, now))
        quiet = now - self._moved
        missing = unreachable(self._roll.here) if quiet >= quiet_s else frozenset()
        # Twice in a row: a full link may swallow one attempt.
        self._say(self._roll.probed(missing & self._missed, quiet))
        self._missed = missing

    def _say(self, lines: list[str]) -> None:
        for line in lines:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def ray_nodes(options: ClusterOptions, device: str) -> dict[str, Node]:
    """All nodes that Ray remembers, by id."""
    needed = {"CPU": options.cpus_per_worker} | ({"GPU": 1} if device == "cuda" else {})
    return {
        node["NodeID"]: Node(
            name=f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})",
            address=(node["NodeManagerAddress"], node["NodeManagerPort"]),
            alive=node["Alive"],
            slots=int(min(node["Resources"].get(kind, 0) // count for kind, count in needed.items())),
        )
        for node in ray.nodes()
    }


def unreachable(nodes: Mapping[str, Node]) -> frozenset[str]:
    """Ids of the nodes whose raylet takes no connection within PROBE_LIMIT_S; all are asked at once."""

    async def answers(node: Node) -> bool:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(*node.address), PROBE_LIMIT_S)
        except OSError:  # TimeoutError is one
            return False
        writer.close()
        return True

    async def ask_all() -> list[bool]:
        return await asyncio.gather(*map(answers, nodes.values()))

    return frozenset(key for key, answer in zip(nodes, asyncio.run(ask_all()), strict=True) if not answer)


def watched(work: Callable[[Any], None], board: Any, timeout_s: float) -> Callable[[Any], None]:
    """`work` on a worker, which first tells the board where it is, and says so when it waited too long for the others.

    Args:
        timeout_s: of a collective.
    """

    def start(settings: Any) -> None:
        rank = ray.train.get_context().get_world_rank()
        context = ray.get_runtime_context()
        ray.get(board.join.remote(rank, context.get_node_id()))
        try:
            work(settings)
        except RuntimeError as error:
            if not is_timeout(error):
                raise
            where = f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"
            text = timeout_text(rank, where, timeout_s)
            ray.get(board.timed_out.remote(text))
            raise CollectiveTimeoutError(text) from error

    return start


def is_timeout(error: RuntimeError) -> bool:
    """Whether gloo gave up waiting for another rank."""
    return "gloo" in str(error) and "Timed out waiting" in str(error)


def timeout_text(rank: int, host: str, timeout_s: float) -> str:
    return (
        f"rank {rank} on {host} waited over {timeout_s:g} s for the other ranks (cluster.collective_timeout_s): "
        "a link is slow or cut, or a rank hangs"
    )


def join_words(words: Iterable[str]) -> str:
    """`a, b and c`."""
    *first, last = list(words) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
