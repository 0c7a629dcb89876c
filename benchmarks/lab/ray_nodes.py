"""A Ray node a host."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.lab import hosts, links
from benchmarks.lab.state import State
from pipelines.errors import UserError

HEAD = f"{links.address(0)}:6379"
JOBS = f"http://{links.address(0)}:8265"
OBJECT_STORE_BYTES = 128 << 20
START_LIMIT_S = 180
# A node that does not answer is dead after about 3 x (1 + 2) s; with Ray's own settings after about a minute.
_HEALTH = {
    "RAY_health_check_initial_delay_ms": "3000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


def environment(lab: State) -> dict[str, str]:
    """What is set in a host beside what its caller has: gloo's interface, Ray's addresses, this Python's programs."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    ray = {"RAY_ADDRESS": HEAD, "RAY_API_SERVER_ADDRESS": JOBS} if lab.ray else {}
    # Nothing outside reaches the lab, and Ray's head asks for a token wherever ~/.ray/auth_token happens to exist.
    ray |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    return {"GLOO_SOCKET_IFNAME": "eth0", "PATH": path} | ray


def start_all(lab: State) -> None:
    """The head on host 0, then the other nodes at once.

    Raises:
        UserError: one does not start.
    """
    start(lab, [0])
    start(lab, list(range(1, lab.hosts)))


def start(lab: State, chosen: list[int]) -> None:
    """Start nodes on hosts that are up, side by side; returns when all have joined."""
    with tempfile.TemporaryDirectory(prefix="thinwire-lab-") as folder:
        # To files: a pipe would stay open as long as the node lives.
        outputs = {host: Path(folder) / f"{host}.txt" for host in chosen}
        started = {host: _spawn(lab, host, outputs[host]) for host in chosen}
        try:
            for host, process in started.items():
                if process.wait(START_LIMIT_S):
                    raise _failure(host, outputs[host].read_text())
        except subprocess.TimeoutExpired:
            raise UserError(f"Ray did not start in {START_LIMIT_S} s", where=f"lab host {host}") from None
        finally:
            for process in started.values():
                process.kill()
                process.wait()


def _spawn(lab: State, host: int, output: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={links.address(host)}"]
    command += [f"--num-cpus={lab.cpus}", f"--object-store-memory={OBJECT_STORE_BYTES}"]
    if host == 0:
        command += ["--head", "--port=6379", f"--dashboard-host={links.address(0)}", "--dashboard-port=8265"]
    else:
        command += [f"--address={HEAD}"]
    # Ray refuses to start a head where RAY_ADDRESS names another cluster.
    own = {key: value for key, value in (os.environ | environment(lab)).items() if key != "RAY_ADDRESS"}
    with output.open("w") as file:
        return subprocess.Popen(
            hosts.entering(lab, host, command, "/"),
            env=own | _HEALTH,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )


def _failure(host: int, output: str) -> UserError:
    lines = [line for line in output.splitlines() if line.strip()]
    return UserError(f"Ray did not start: {lines[-1] if lines else 'no output'}", where=f"lab host {host}")
