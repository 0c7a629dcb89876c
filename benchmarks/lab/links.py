"""The wires: a network namespace a host, one more for the switch between them, and the rate of each link.

The machine's own network is not touched: the bridge lives in a namespace of its own, and no route leaves it. Every
host sees the names of all of these namespaces, so that links can be changed from a host too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import Any, NamedTuple

from pipelines.errors import UserError

SWITCH = "twlab-switch"
_OURS = re.compile(r"twlab-(switch|\d+)")
_RATE = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)")
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
LEAST_RATE, MOST_RATE = 1e6, 100e9
BURST_S, LEAST_BURST = 0.001, 5000
"""A full frame has 1,514 bytes. tbf cuts larger packets (GSO) that exceed the burst into frames."""
QUEUE_MS = 20
_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


class Traffic(NamedTuple):
    """Counters of a host's eth0 since it was made."""

    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int


def netns(host: int) -> str:
    """Name of a host's network namespace."""
    return f"twlab-{host}"


def address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def check_machine() -> None:
    """Whether this process may and can make a lab.

    Raises:
        UserError: not root, or a tool is missing.
    """
    if os.geteuid() != 0:
        raise UserError("needs root to make network namespaces", where="lab", fix="run it with sudo")
    for tool in ("ip", "tc"):
        if not shutil.which(tool, path=_PATH):
            fix = "install the package iproute2, as with `apt-get install iproute2`"
            raise UserError(f"the program `{tool}` is not on this machine", where="lab", fix=fix)


def bits_per_second(rate: str, where: str = "lab rate") -> float | None:
    """Of `50mbit`, `1.5gbit` and the like; None for `none`, an unshaped link.

    Raises:
        UserError: it is something else, or outside 1mbit to 100gbit.
    """
    if rate == "none":
        return None
    match = _RATE.fullmatch(rate)
    bits = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not LEAST_RATE <= bits <= MOST_RATE:
        fix = "1mbit to 100gbit, such as 50mbit or 2.5gbit, or none for unshaped links"
        raise UserError(f"'{rate}' is not a rate", where=where, fix=fix)
    return bits


def make_network(hosts: int) -> None:
    """`hosts` namespaces with eth0, all joined by the switch; links are up and unshaped."""
    for name in (SWITCH, *(netns(host) for host in range(hosts))):
        _run("ip", "netns", "add", name)
    # No IPv6 addresses and no multicast queries: next to nothing but the hosts' own packets goes over the links.
    lines = [
        "link set lo up",
        "link add br0 type bridge stp_state 0 mcast_snooping 0",
        "link set br0 addrgenmode none up",
    ]
    for host in range(hosts):
        lines.append(f"link add {_port(host)} type veth peer name eth0 netns {netns(host)}")
        lines.append(f"link set {_port(host)} master br0 addrgenmode none up")
    _batch("ip", SWITCH, lines)
    for host in range(hosts):
        own = f"addr add {address(host)}/24 brd + dev eth0"
        _batch("ip", netns(host), ["link set lo up", "link set eth0 addrgenmode none", own, "link set eth0 up"])


def remove_network() -> bool:
    """Remove every namespace that the naming scheme owns, and with it bridge and links; whether there was one."""
    names = namespaces()
    for name in names:
        _run("ip", "netns", "del", name)
    return bool(names)


def namespaces() -> list[str]:
    listed = _run("ip", "netns", "list").split("\n")
    return [name for name in (line.partition(" ")[0] for line in listed) if _OURS.fullmatch(name)]


def processes_in(name: str) -> list[int]:
    """PIDs of the processes whose network namespace this is."""
    return [int(pid) for pid in _run("ip", "netns", "pids", name).split()]


def set_rate(hosts: int, rate: str) -> None:
    """Limit both ends of each link, so each direction; under running traffic too."""
    bits = bits_per_second(rate)
    for host in range(hosts):
        _batch("tc", netns(host), _shape("eth0", bits))
    _batch("tc", SWITCH, [line for host in range(hosts) for line in _shape(_port(host), bits)])


def _shape(device: str, bits: float | None) -> list[str]:
    root = f"qdisc replace dev {device} root"
    if bits is None:
        return [f"{root} pfifo limit 1000"]
    burst = max(round(bits / 8 * BURST_S), LEAST_BURST)
    return [f"{root} tbf rate {round(bits)}bit burst {burst} latency {QUEUE_MS}ms"]


def set_link(host: int, up: bool) -> None:
    """Plug or unplug a host at the switch."""
    _run("ip", "-n", SWITCH, "link", "set", _port(host), "up" if up else "down")


def link_is_up(host: int) -> bool:
    return "UP" in _link(SWITCH, _port(host))["flags"]


def traffic(host: int) -> Traffic:
    counters = _link(netns(host), "eth0")["stats64"]
    return Traffic(*(counters[way][what] for what in ("bytes", "packets") for way in ("tx", "rx")))


def _link(name: str, device: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(_run("ip", "-n", name, "-s", "-j", "link", "show", "dev", device))
    return found[0]


def _port(host: int) -> str:
    """Name of the switch's end of a host's link."""
    return f"port{host}"


def _batch(tool: str, name: str, lines: list[str]) -> None:
    _run(tool, "-n", name, "-batch", "-", text="\n".join(lines))


def _run(*command: str, text: str | None = None) -> str:
    program = shutil.which(command[0], path=_PATH) or command[0]
    done = subprocess.run([program, *command[1:]], input=text, capture_output=True, text=True)
    if done.returncode:
        problem = done.stderr.strip().split("\n")[0]
        raise UserError(problem, where=f"lab: {' '.join(command)}", fix=_fix(problem))
    return done.stdout


def _fix(problem: str) -> str:
    if "not permitted" in problem or "ermission denied" in problem:
        return "make the lab on the machine itself, or in a container started with --privileged"
    if "qdisc kind is unknown" in problem:
        return "the kernel lacks the token bucket filter: `modprobe sch_tbf`"
    if "Unknown device type" in problem:
        return "the kernel lacks bridges or virtual links: `modprobe -a bridge veth`"
    return ""
