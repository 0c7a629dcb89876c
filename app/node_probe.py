"""What one node looks like. Sent to the nodes by value, so it must run where Thinwire is absent or differs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import socket
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "torchrec", "fbgemm-gpu", "ray")
OUR_PACKAGES = ("app", "cache", "compression", "pipelines")


def probe(data_path: str, storage_token: str) -> dict[str, Any]:
    """The fields of a `NodeReport`, as this process sees them.

    Args:
        data_path: the data set's folder.
        storage_token: a file that the driver wrote into the storage path; empty: not to be looked for.
    """
    manifest = Path(data_path) / "manifest.json"
    return {
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES} | {"thinwire": our_version()},
        "data_exists": Path(data_path).exists(),
        "manifest_sha": hashlib.sha256(manifest.read_bytes()).hexdigest()[:16] if manifest.is_file() else "",
        "token_seen": not storage_token or Path(storage_token).exists(),
        "resolves_to": resolve(socket.gethostname()),
        "interfaces": interfaces(),
        "socket_ifname": os.environ.get("GLOO_SOCKET_IFNAME", ""),
    }


def version(package: str) -> str:
    """The public part of the installed version ("2.13.0" of 2.13.0+cpu); "missing" if there is none."""
    for name in (package, f"{package}-cpu"):
        try:
            return importlib.metadata.version(name).split("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return "missing"


def our_version() -> str:
    """The installed version of Thinwire and a hash of the code that would be imported: both sides of a codec must be
    the same, also between two commits of one version."""
    digest = hashlib.sha256()
    for package in OUR_PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for file in sorted(Path(folder).rglob("*.py")):
                digest.update(f"{package}/{file.relative_to(folder)}".encode() + file.read_bytes())
    return f"{version('thinwire')}-{digest.hexdigest()[:8]}"


def resolve(hostname: str) -> str:
    """The first IPv4 or IPv6 address of a host name; empty if it has none."""
    try:
        return str(socket.getaddrinfo(hostname, None)[0][4][0])
    except OSError:
        return ""


def interfaces() -> dict[str, str]:
    """Interface -> its IPv4 address, empty if it has none."""
    import psutil

    return {
        name: next((a.address for a in addresses if a.family == socket.AF_INET), "")
        for name, addresses in psutil.net_if_addrs().items()
    }
