"""What is up, for people and for machines."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from benchmarks.lab import hosts, links, ray_nodes, state
from benchmarks.lab.state import State
from pipelines.errors import UserError

_ASK = "import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen(sys.argv[1], timeout=5).read())"
_DEAF_S = 15


def current() -> dict[str, Any]:
    """`up`, and if so `rate`, `ray` and `hosts`: a record a host with what it is and has sent.

    Its `ray` is `ALIVE`, `DEAD` or None: no node, or the head does not answer.
    """
    lab = state.load()
    if lab is None or not lab.up:
        return {"up": False}
    lab.require_outside()
    nodes = _ray_nodes(lab) if lab.ray else {}
    return {
        "up": True,
        "rate": lab.rate,
        "ray": lab.ray,
        "hosts": [_host(lab, host, nodes) for host in range(lab.hosts)],
    }


def _host(lab: State, host: int, nodes: dict[str, str]) -> dict[str, Any]:
    init, address = lab.inits.get(host), links.address(host)
    found: dict[str, Any] = {"host": host, "name": f"host{host}", "address": address}
    found |= {"alive": bool(init and init.alive), "link": "up" if links.link_is_up(host) else "down"}
    return found | {"ray": nodes.get(address)} | links.traffic(host)._asdict()


def _ray_nodes(lab: State) -> dict[str, str]:
    """State of the Ray node at each address, as the head sees it; empty if the head does not answer."""
    asking = [sys.executable, "-I", "-S", "-c", _ASK, f"{ray_nodes.JOBS}/api/v0/nodes"]
    try:
        done = subprocess.run(hosts.entering(lab, 0, asking), capture_output=True, text=True, timeout=_DEAF_S)
        nodes = json.loads(done.stdout)["data"]["result"]["result"]
    except (UserError, ValueError, KeyError, subprocess.TimeoutExpired):
        return {}
    # A host that has crashed and come back has a dead node beside the living one: the living one sorts last.
    states = sorted((node["state"] == "ALIVE", node["node_ip"], node["state"]) for node in nodes)
    return {address: state for _, address, state in states}


def text(found: dict[str, Any]) -> str:
    """A table of what `current` found."""
    if not found["up"]:
        return "no lab is up"
    hosts_found = found["hosts"]
    alive = sum(host["ray"] == "ALIVE" for host in hosts_found)
    ray = f"{alive} of {len(hosts_found)} Ray nodes alive, jobs at {ray_nodes.JOBS}" if found["ray"] else "without Ray"
    lines = [f"{len(hosts_found)} hosts, links at {found['rate']}, {ray}"]
    lines.append(_row("host", "address", "state", "link", "ray", "sent MB", "received MB"))
    for host in hosts_found:
        state_text = "up" if host["alive"] else "down"
        sent, received = (f"{host[key] / 1e6:.1f}" for key in ("tx_bytes", "rx_bytes"))
        ray_text = (host["ray"] or "-").lower()
        lines.append(_row(host["name"], host["address"], state_text, host["link"], ray_text, sent, received))
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return "".join(f"{cell:<12}" for cell in cells).rstrip()
