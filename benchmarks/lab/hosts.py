"""Hosts: network, PID, mount and UTS namespaces that belong together, kept alive by a PID 1 each."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.lab import links, state
from benchmarks.lab.inside import start_ticks
from benchmarks.lab.state import HOSTS_FILE, Process, State
from pipelines.errors import UserError

_INSIDE = [sys.executable, "-I", "-S", str(Path(__file__).with_name("inside.py"))]
_NETNS_FOLDER = Path("/run/netns")
_RAY_FOLDER = Path("/tmp/ray")
DEATH_LIMIT_S = 20


def write_hosts_file(hosts: int) -> None:
    lines = ["127.0.0.1 localhost", *(f"{links.address(host)} host{host}" for host in range(hosts))]
    HOSTS_FILE.write_text("\n".join(lines) + "\n")


def start(lab: State, host: int) -> None:
    """Boot a host over its network, and write it down."""
    _RAY_FOLDER.mkdir(exist_ok=True)  # a place to mount the host's own one over
    netns = str(_NETNS_FOLDER / links.netns(host))
    process = subprocess.Popen(
        [*_INSIDE, "boot", netns, f"host{host}", str(HOSTS_FILE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin and process.stdout and process.stderr
    with process.stdin, process.stdout, process.stderr:
        pid = process.stdout.readline()
        init = Process.of(int(pid)) if pid else None
        if init is None:
            raise UserError(process.stderr.read().strip().removeprefix("lab: "), where=f"lab host {host}")
        lab.inits[host] = init
        state.save(lab)
        process.stdin.write("go\n")
    process.wait()


def kill(lab: State, host: int) -> None:
    """End PID 1 of a host, and so all of its processes, at once. Their peers see reset connections."""
    end_all([lab.inits.pop(host)] if host in lab.inits else [])
    state.save(lab)


def end_all(inits: list[Process]) -> None:
    """Kill hosts by their PID 1 and wait until all of their processes have ended.

    Raises:
        UserError: one does not end.
    """
    spaces = {init.pid: _inode(init.pid, "pid") for init in inits if init.alive}
    for process in (*inits, *_forwarders(set(spaces.values()))):
        _kill(process)
    end = time.monotonic() + DEATH_LIMIT_S
    while living := _living({spaces[init.pid] for init in inits if init.pid in spaces and init.alive}):
        if time.monotonic() > end:
            raise UserError(f"processes {living} do not end", where="lab", fix="look at them with ps, then retry")
        time.sleep(0.02)


def _living(spaces: set[int | None]) -> list[int]:
    """PIDs in these PID namespaces, without zombies, which have left their network.

    A command whose forwarder was killed is a zombie until PID 1 of the machine looks after it, and until then PID 1
    of its host cannot end. That may take long, and matters to nobody.
    """
    return [pid for pid in _pids() if _inode(pid, "pid") in spaces and _inode(pid, "net")] if spaces else []


def _forwarders(spaces: set[int | None]) -> list[Process]:
    """The processes outside that wait for a command inside. One that is stopped would never let its host end."""
    found = (Process.of(p) for p in _pids() if _inode(p, "pid_for_children") in spaces - {_inode(p, "pid"), None})
    return [process for process in found if process]


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _inode(pid: int, kind: str) -> int | None:
    """Of a namespace of a process; None if it is gone or hidden."""
    try:
        return Path(f"/proc/{pid}/ns/{kind}").stat().st_ino
    except OSError:
        return None


def left_over() -> list[Process]:
    """PID 1 of every host that the naming scheme owns, whether written down or not."""
    found = (Process.of(pid) for name in links.namespaces() for pid in links.processes_in(name) if _is_init(pid))
    return [init for init in found if init]


def _is_init(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return len(line.split()) > 2 and line.split()[-1] == "1"
    return False


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        # The descriptor holds on to the process, so none that took its PID meanwhile is hit.
        descriptor = os.pidfd_open(process.pid)
        try:
            if start_ticks(process.pid) == process.start_ticks:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def entering(lab: State, host: int, command: list[str], cwd: str | os.PathLike | None = None) -> list[str]:
    """The command line that runs `command` in a host, from `cwd` (default: the folder of this process).

    Raises:
        UserError: there is no such host, it is down, or this process is in a host itself.
    """
    init = lab.inits.get(check_host(lab, host))
    if init is None or not init.alive:
        raise UserError(f"host {host} is down", where="lab", fix=f"python -m benchmarks.lab rejoin {host}")
    return [*_INSIDE, "enter", str(init.pid), str(init.start_ticks), str(Path(cwd or ".").absolute()), *command]


def check_host(lab: State, host: int) -> int:
    if not 0 <= host < lab.hosts:
        raise UserError(f"no host {host}", where="lab", fix=f"0 to {lab.hosts - 1}")
    return host
