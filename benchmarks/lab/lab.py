"""Bring a lab up and down, and change it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab import hosts as host_actions
from benchmarks.lab import links, ray_nodes, state
from benchmarks.lab.links import Traffic
from benchmarks.lab.state import Process, State
from pipelines.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
MOST_HOSTS = 64


class Lab:
    """Hosts with limited links between them, and Ray over them, for as long as the block runs.

        with Lab(hosts=4, rate="100mbit") as lab:
            lab.exec(0, ["thinwire", "train", "--preset", "smoke"], check=True)
            lab.set_rate("1gbit")

    All goes away with the block, and also when this process dies, whatever kills it.

    Args:
        hosts: how many.
        rate: of each link and direction: `50mbit`, `1gbit`, or `none` for unshaped.
        cpus: CPUs that each Ray node offers.
        ray: whether to start Ray.
    """

    def __init__(self, hosts: int = 2, rate: str = "none", *, cpus: int = 1, ray: bool = True) -> None:
        self._hosts, self._rate, self._cpus, self._ray = hosts, rate, cpus, ray
        self._id = uuid.uuid4().hex
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Lab:
        watchdog = [sys.executable, "-m", "benchmarks.lab.watchdog", str(os.getpid()), self._id]
        links.check_machine()
        self._watchdog = subprocess.Popen(watchdog, cwd=ROOT, start_new_session=True, stdin=subprocess.DEVNULL)
        try:
            owner = Process.of(os.getpid())
            bring_up(self._hosts, self._rate, cpus=self._cpus, ray=self._ray, owner=owner, lab_id=self._id)
        except BaseException:
            self._end_watchdog()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        bring_down(only=self._id)
        self._end_watchdog()

    def _end_watchdog(self) -> None:
        assert self._watchdog
        self._watchdog.kill()
        self._watchdog.wait()

    @property
    def rate(self) -> str:
        return present().rate

    @property
    def addresses(self) -> list[str]:
        """IP addresses by host."""
        return [links.address(host) for host in range(present().hosts)]

    def set_rate(self, rate: str) -> None:
        set_rate(rate)

    def set_link(self, host: int, up: bool) -> None:
        set_link(host, up)

    def crash(self, host: int) -> None:
        crash(host)

    def rejoin(self, host: int) -> None:
        rejoin(host)

    def traffic(self) -> list[Traffic]:
        return traffic()

    def popen(
        self,
        host: int,
        command: Sequence[str | os.PathLike],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a command in a host; its signals, exit code and streams are those of the process returned.

        Args:
            env: set beside what this process has and what the lab sets.
            cwd: default and origin of relative paths: the folder of this process.
            options: of `subprocess.Popen`.
        """
        line, environment = command_in(host, command, cwd=cwd, env=env)
        return subprocess.Popen(line, env=environment, **options)

    def exec(
        self,
        host: int,
        command: Sequence[str | os.PathLike],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """Run a command in a host to its end: `popen` with the options of `subprocess.run`, such as `timeout`."""
        line, environment = command_in(host, command, cwd=cwd, env=env)
        return subprocess.run(line, env=environment, **options)


def command_in(
    host: int,
    command: Sequence[str | os.PathLike],
    *,
    cwd: str | os.PathLike | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Command line and environment that run a command in a host."""
    lab = _outside()
    line = host_actions.entering(lab, host, [os.fspath(part) for part in command], cwd)
    return line, {**os.environ, **ray_nodes.environment(lab), **(env or {})}


def bring_up(hosts: int, rate: str, *, cpus: int, ray: bool, owner: Process | None, lab_id: str) -> None:
    """Make a lab; nothing is left of it if that fails.

    Raises:
        UserError: one is up already, or this machine cannot have one.
    """
    links.check_machine()
    links.bits_per_second(rate)
    if not 1 <= hosts <= MOST_HOSTS:
        raise UserError(f"{hosts} hosts", where="lab --hosts", fix=f"1 to {MOST_HOSTS}")
    with state.locked():
        if (there := state.load()) and there.up:
            what = f"a lab of {there.hosts} hosts is up already"
            raise UserError(what, where="lab", fix="end it with `python -m benchmarks.lab down`")
        _clear()
        lab = State(lab_id=lab_id, hosts=hosts, rate=rate, cpus=cpus, ray=ray, owner=owner)
        state.save(lab)
        try:
            _make(lab)
        except BaseException:
            _clear()
            raise


def _make(lab: State) -> None:
    links.make_network(lab.hosts)
    links.set_rate(lab.hosts, lab.rate)
    host_actions.write_hosts_file(lab.hosts)
    for host in range(lab.hosts):
        host_actions.start(lab, host)
    if lab.ray:
        ray_nodes.start_all(lab)
    lab.ready = True
    state.save(lab)


def bring_down(only: str | None = None) -> bool:
    """Remove the lab and whatever an earlier one left; whether there was anything.

    Args:
        only: do nothing if the lab has another id.
    """
    links.check_machine()
    with state.locked():
        there = state.load()
        if there:
            there.require_outside()
        if only and (there is None or there.lab_id != only):
            return False
        return _clear()


def _clear() -> bool:
    there = state.load()
    inits = {init.pid: init for init in (*host_actions.left_over(), *(there.inits.values() if there else ()))}
    host_actions.end_all(list(inits.values()))
    network = links.remove_network()
    state.forget()
    return bool(there or inits or network)


def present() -> State:
    """The lab that is up.

    Raises:
        UserError: none is.
    """
    links.check_machine()
    lab = state.load()
    if lab is None or not lab.up:
        raise UserError("no lab is up", where="lab", fix="python -m benchmarks.lab up --hosts 2 --rate 1gbit")
    return lab


def _outside() -> State:
    lab = present()
    lab.require_outside()
    return lab


def set_rate(rate: str) -> None:
    """Of all links, under whatever runs; also from within a host."""
    links.bits_per_second(rate)
    links.check_machine()
    with state.locked():
        lab = present()
        links.set_rate(lab.hosts, rate)
        lab.rate = rate
        state.save(lab)


def set_link(host: int, up: bool) -> None:
    """Plug a host in, or cut it off: its peers hear nothing any more. Also from within a host."""
    links.set_link(host_actions.check_host(present(), host), up)


def crash(host: int) -> None:
    """End all processes of a host at once."""
    links.check_machine()
    with state.locked():
        lab = _outside()
        host_actions.kill(lab, host_actions.check_host(lab, host))


def rejoin(host: int) -> None:
    """Boot a host anew, plugged in and with a Ray node, whether it had crashed or not.

    Raises:
        UserError: it is host 0, whose Ray head cannot come back to the other nodes.
    """
    links.check_machine()
    with state.locked():
        lab = _outside()
        host_actions.check_host(lab, host)
        if lab.ray and host == 0:
            fix = "bring the lab down and up again"
            raise UserError("host 0 had the head of the Ray cluster, which cannot come back", where="lab", fix=fix)
        host_actions.kill(lab, host)
        links.set_link(host, up=True)
        host_actions.start(lab, host)
        if lab.ray:
            ray_nodes.start(lab, [host])


def traffic() -> list[Traffic]:
    """Of each host's eth0, as the kernel counts it; also from within a host."""
    return [links.traffic(host) for host in range(present().hosts)]
