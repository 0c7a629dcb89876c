"""What the lab has made, written down in one file that every command reads, and the lock of those that change it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.lab.inside import start_ticks
from pipelines.errors import UserError

FOLDER = Path("/run/thinwire-lab")
HOSTS_FILE = FOLDER / "hosts"
_FILE, _LOCK = FOLDER / "state.json", FOLDER / "lock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass
class Process:
    """A process that is never taken for another one with the same PID."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """None if there is no such process."""
        ticks = start_ticks(pid)
        return None if ticks is None else cls(pid, ticks)

    @property
    def alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks


@dataclass
class State:
    """A lab. Times of processes count from boot, so `boot_id` belongs to them."""

    lab_id: str
    hosts: int
    rate: str
    cpus: int
    ray: bool
    owner: Process | None
    """The lab goes when this process ends; None: it stays until `down`."""
    pid_namespace: int = field(default_factory=lambda: _pid_namespace())
    """Inode of the namespace that the PIDs are of."""
    boot_id: str = field(default_factory=lambda: _BOOT_ID.read_text().strip())
    inits: dict[int, Process] = field(default_factory=dict)
    """PID 1 of each host that is up, by host."""
    ready: bool = False

    @property
    def inside(self) -> bool:
        """Whether this process runs in one of the hosts, where the PIDs mean nothing."""
        return self.pid_namespace != _pid_namespace()

    def require_outside(self) -> None:
        """Raises UserError in a host."""
        if self.inside:
            raise UserError("this is one of the lab's hosts", where="lab", fix="do it outside of the lab")

    @property
    def up(self) -> bool:
        """Not if only its remains are there: after a crash while it was made, of its owner, of all hosts."""
        if self.inside:
            return True
        owned = self.owner is None or self.owner.alive
        return self.ready and owned and any(init.alive for init in self.inits.values())


def load() -> State | None:
    """The lab as it was last written down.

    None if there is none, if the machine was started anew since, or if another version of the lab wrote it.
    """
    try:
        raw = json.loads(_FILE.read_text())
        raw["owner"] = raw["owner"] and Process(**raw["owner"])
        raw["inits"] = {int(host): Process(**init) for host, init in raw["inits"].items()}
        state = State(**raw)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return state if state.boot_id == _BOOT_ID.read_text().strip() else None


def save(state: State) -> None:
    new = _FILE.with_suffix(".new")
    new.write_text(json.dumps(asdict(state), indent=1) + "\n")
    new.replace(_FILE)


def forget() -> None:
    for file in (HOSTS_FILE, _FILE.with_suffix(".new"), _FILE):
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Only one process at a time changes the lab. The lock goes with its holder, however it ends."""
    FOLDER.mkdir(exist_ok=True)
    with _LOCK.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("lab: waiting for another command to finish with the lab", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
