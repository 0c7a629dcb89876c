"""Checks of this machine: what was found, what is needed, and how to mend it. Changes nothing, reaches no cluster."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from app import node_probe
from app.preflight import Device, NodeReport, check_interface, check_object_store
from app.tracking_store import bounded, connect, hide_password, normalise_uri, one_line, sqlite_path
from pipelines.errors import UserError

PYTHONS = ((3, 11), (3, 13))
TRIO = {"torch": "2.13", "torchrec": "1.8", "fbgemm-gpu": "1.8"}
RAY = "2.60"
TRACKING_LIMIT = 20.0  # seconds
IMPORT_LIMIT = 120.0  # seconds for a cold import of torch
FREE_STORAGE = FREE_SHM = 1 << 30  # bytes

# An import alone is no proof: fbgemm's kernels come from a library that it may fail to load with a log line only.
IMPORT_TRIO = "import torch, fbgemm_gpu, torchrec; torch.ops.fbgemm.asynchronous_complete_cumsum"
IMPORT_CUPY = "import cupy; print(cupy.cuda.runtime.getDeviceCount())"
COUNT_GPUS = "import torch; print(torch.cuda.device_count())"


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report."""

    name: str
    ok: bool
    found: str
    needed: str
    fix: str = ""


def diagnose(*, tracking_uri: str, storage_path: str, device: Device = "cpu") -> list[Check]:
    """All checks of this machine, in the order in which to mend what is wrong. Raises nothing; takes a minute at most
    when all is dead."""
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("python", check_python),
        ("training packages", lambda: check_training_packages(device)),
        ("ray", check_ray),
        ("devices", lambda: check_devices(device)),
        ("cupy", lambda: check_cupy(device)),
        ("gloo interface", check_gloo),
        ("tracking", lambda: check_tracking(tracking_uri)),
        ("storage", lambda: check_storage(storage_path)),
        ("shared memory", check_shared_memory),
    ]
    return [_guarded(name, check) for name, check in checks]


def print_checks(checks: Sequence[Check]) -> None:
    """Prints the report as a table, with the fix below each finding that is not right."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "check", box=None)
    for header in ("found", "needed"):
        table.add_column(header, overflow="fold")
    for check in checks:
        table.add_row("[green]ok[/]" if check.ok else "[red]no[/]", check.name, check.found, check.needed)
    console = Console()
    console.print(table)
    for check in checks:
        if not check.ok and check.fix:
            console.print(f"{check.name}: {check.fix}", style="bold", markup=False, highlight=False)


def require_training_stack() -> None:
    """Loads torch, fbgemm and torchrec.

    Raises:
        UserError: they do not load together, in the doctor's words.
    """
    try:
        import fbgemm_gpu  # noqa: F401
        import torch
        import torchrec  # noqa: F401

        _ = torch.ops.fbgemm.asynchronous_complete_cumsum
    except Exception as error:  # a wheel for another torch fails in many ways: ImportError, OSError, RuntimeError
        check = _training_check(f"{type(error).__name__}: {error}", device_installed())
        raise UserError(f"{check.found}; needed: {check.needed}", where=check.name, fix=check.fix) from error


def check_python() -> Check:
    """The interpreter is one that Thinwire supports."""
    low, high = (".".join(map(str, v)) for v in PYTHONS)
    fix = f"make setup PYTHON=python{low}"
    return Check(
        "python", PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1], platform.python_version(), f"{low} to {high}", fix
    )


def check_training_packages(device: Device) -> Check:
    """torch, torchrec and fbgemm load together, tried in another process."""
    return _training_check(_try(IMPORT_TRIO)[1], device)


def check_ray() -> Check:
    """Ray's version; and the head answers, if RAY_ADDRESS names one."""
    found, address = node_probe.version("ray"), os.environ.get("RAY_ADDRESS", "")
    fix = "" if found.startswith(RAY) else "make setup"
    if address and not fix:
        parts = urlsplit(address if "://" in address else f"//{address}")
        if parts.hostname and parts.port:
            try:
                socket.create_connection((parts.hostname, parts.port), timeout=5).close()
                found += f", {address} answers"
            except OSError as error:
                found += f", RAY_ADDRESS={address}: {error.strerror or error}"
                fix = "start the cluster, or `unset RAY_ADDRESS` to train on this machine"
    return Check("ray", not fix, found, f"{RAY}.*", fix)


def check_devices(device: Device) -> Check:
    """GPUs that torch can use, and CPU cores."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    out, error = _try(COUNT_GPUS)
    gpus = int(out.split()[-1]) if out and not error else 0
    found = f"{len(os.sched_getaffinity(0))} CPU cores, {gpus} GPUs"
    if visible is not None:
        found += f" (CUDA_VISIBLE_DEVICES='{visible}')"
    fix = "check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or set cluster.device=cpu"
    return Check("devices", gpus > 0 or device == "cpu", found, "a GPU" if device == "cuda" else "a CPU", fix)


def check_cupy(device: Device, path: list[str] | None = None) -> Check:
    """At most one CuPy wheel, and a driver for it where the GPU is wanted. `path`: where to look for wheels."""
    found = importlib.metadata.distributions(path=path) if path else importlib.metadata.distributions()
    names = sorted({d.metadata["Name"].lower() for d in found if (d.metadata["Name"] or "").lower().startswith("cupy")})
    wheels = [n for n in names if n == "cupy" or n.startswith(("cupy-cuda", "cupy-rocm"))]
    needed = "one CuPy wheel and a driver" if device == "cuda" else "at most one CuPy wheel"
    if len(wheels) > 1:
        # cupy/cupy#5032: they overwrite each other's files.
        fix = f"pip uninstall -y {' '.join(wheels)} && pip install 'cupy-cuda13x==14.*'"
        return Check("cupy", False, f"{' and '.join(wheels)} side by side", needed, fix)
    if not wheels:
        return Check("cupy", device == "cpu", "none: codecs run on the CPU", needed, "make setup DEVICE=cuda")
    out, error = _try(IMPORT_CUPY)
    if error:
        fix = "install an NVIDIA driver for CUDA 13 or newer, or set cluster.device=cpu"
        return Check("cupy", device == "cpu", f"{wheels[0]} without a usable driver: {error}", needed, fix)
    return Check("cupy", True, f"{wheels[0]}, {out.strip()} GPUs", needed)


def check_gloo() -> Check:
    """The interface that gloo will use; loopback does for one host."""
    report = NodeReport(
        node_ip=_own_address(),
        hostname=socket.gethostname(),
        resolves_to=node_probe.resolve(socket.gethostname()),
        interfaces=node_probe.interfaces(),
        socket_ifname=os.environ.get("GLOO_SOCKET_IFNAME", ""),
    )
    needed = "an address that the other hosts reach"
    try:
        check_interface([report])
    except UserError as error:
        return Check("gloo interface", False, error.what, needed, error.fix)
    if report.socket_ifname:
        return Check("gloo interface", True, f"GLOO_SOCKET_IFNAME={report.socket_ifname}", needed)
    found = f"{report.hostname} is {report.resolves_to or 'unknown'}"
    try:
        check_interface([report, NodeReport(node_ip="another host", resolves_to="another host")])
    except UserError as error:
        found += f"; enough for one host, for several {error.fix}"
    return Check("gloo interface", True, found, needed)


def check_tracking(uri: str) -> Check:
    """The tracking store answers, or can be made."""
    needed = "a store that answers"
    try:
        uri = normalise_uri(uri)
        path = sqlite_path(uri)
        if path and not path.exists():
            _check_writable(path.parent)
            return Check("tracking", True, f"{uri} (made at first use)", needed)
        bounded(lambda: connect(uri).search_experiments(max_results=1), TRACKING_LIMIT)
    except UserError as error:
        return Check("tracking", False, error.what, needed, error.fix)
    except Exception as error:  # whatever a store or its driver raises
        fix = "start it (`mlflow server ...`), or leave tracking.uri empty for a local file"
        return Check("tracking", False, f"{hide_password(uri)}: {one_line(error)}", needed, fix)
    return Check("tracking", True, hide_password(uri), needed)


def check_storage(storage_path: str) -> Check:
    """Checkpoints can be written, and there is room."""
    needed = f"writable, {FREE_STORAGE >> 30} GiB free"
    try:
        if "://" in storage_path and not storage_path.startswith("file://"):
            check_object_store(storage_path)
            return Check("storage", True, storage_path, needed)
        folder = _check_writable(Path(storage_path.removeprefix("file://")))
    except UserError as error:
        return Check("storage", False, str(error), needed, error.fix)
    except OSError as error:
        return Check(
            "storage", False, f"{storage_path}: {error.strerror}", needed, "set run.storage to your own folder"
        )
    free = shutil.disk_usage(folder).free
    found = f"{storage_path}, {free / 2**30:.1f} GiB free"
    return Check("storage", free >= FREE_STORAGE, found, needed, f"make room in {folder}, or set run.storage")


def check_shared_memory() -> Check:
    """/dev/shm has room for Ray's object store."""
    needed = f"{FREE_SHM >> 30} GiB in /dev/shm"
    shm = Path("/dev/shm")
    if not shm.exists():
        return Check("shared memory", False, "no /dev/shm", needed, "mount a tmpfs on /dev/shm")
    free = shutil.disk_usage(shm).free
    fix = "docker run --shm-size=8g, or make room in /dev/shm"
    return Check("shared memory", free >= FREE_SHM, f"{free / 2**30:.1f} GiB free", needed, fix)


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:  # one check must not cost the others
        return Check(name, False, one_line(error), "a check that runs", "report this as a bug")


def _training_check(error: str, device: Device) -> Check:
    versions = {name: node_probe.version(name) for name in TRIO}
    wrong = [name for name, wanted in TRIO.items() if not f"{versions[name]}.".startswith(f"{wanted}.")]
    needed = ", ".join(f"{name} {version}.*" for name, version in TRIO.items())
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    if versions["fbgemm-gpu"] != "missing" and device_installed() == "cpu":
        found += " (its CPU wheel)"
        wrong += ["fbgemm-gpu"] if device == "cuda" else []
    if error:
        found += f", which do not load together: {error}"
    return Check("training packages", not error and not wrong, found, needed, f"make setup DEVICE={device}")


def device_installed() -> Device:
    """The device of the fbgemm wheel."""
    try:
        importlib.metadata.version("fbgemm-gpu")
        return "cuda"
    except importlib.metadata.PackageNotFoundError:
        return "cpu"


def _try(code: str) -> tuple[str, str]:
    """Output and last error line of a program: in a process of its own, for a broken wheel may also crash."""
    try:
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=IMPORT_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {IMPORT_LIMIT:.0f} s"
    if result.returncode == 0:
        return result.stdout, ""
    lines = result.stderr.strip().splitlines()
    return result.stdout, (lines[-1] if lines else f"exit code {result.returncode}")[:300]


def _check_writable(folder: Path) -> Path:
    """The nearest existing folder above, in which a file could be made. Raises OSError."""
    folder = folder.expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    with tempfile.NamedTemporaryFile(dir=folder):
        return folder


def _own_address() -> str:
    """The address of the interface that leads out; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
