"""Looks at every node before training starts, so that what cannot work ends in one message and not in a hang."""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from app import node_probe
from pipelines.errors import UserError

Device = Literal["cpu", "cuda"]
ANSWER_LIMIT = 120.0  # seconds for a node to answer: the first worker process on a cold node imports for a while


@dataclass(frozen=True)
class NodeReport:
    """One node as a Ray task on it sees it."""

    node_ip: str
    hostname: str = ""
    python: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    """torch, torchrec, fbgemm-gpu, ray (public part) and thinwire (version and hash of the code)."""
    data_exists: bool = True
    manifest_sha: str = ""
    token_seen: bool = True
    resolves_to: str = ""
    """What the host name resolves to: the address gloo binds when no interface is named."""
    interfaces: dict[str, str] = field(default_factory=dict)
    socket_ifname: str = ""
    """GLOO_SOCKET_IFNAME in the worker's environment."""
    error: str = ""
    """Why the node could not answer."""

    @property
    def name(self) -> str:
        return f"{self.hostname or 'node'} ({self.node_ip})"


def preflight(*, data_path: str, storage_path: str, num_workers: int, device: Device) -> list[NodeReport]:
    """Asks every node that may run a worker. Call it in the driver, after `ray.init` and before training.

    Args:
        data_path: absolute path of the data set, the same on every node.
        storage_path: where checkpoints go: a folder that all nodes share, or a URI such as s3://bucket/runs.

    Raises:
        UserError: a node does not answer; versions differ; the data or the storage path is not there on every node;
            the address gloo would use cannot be reached from other hosts.
    """
    with storage_token(storage_path) as token:
        driver = NodeReport(node_ip="driver", **node_probe.probe(data_path, token))
        reports = _ask_nodes(data_path, token, device)
    judge(driver, reports, data_path=data_path, storage_path=storage_path, num_workers=num_workers)
    return reports


def judge(
    driver: NodeReport, reports: Sequence[NodeReport], *, data_path: str, storage_path: str, num_workers: int
) -> None:
    """Raises UserError for the first thing in the reports that cannot work."""
    check_answers(reports)
    check_versions(driver, reports)
    check_data(driver, reports, data_path)
    check_storage(reports, storage_path)
    if num_workers > 1:
        check_interface(reports)


def distinct_hosts(reports: Sequence[NodeReport]) -> int:
    """The number of hosts among the nodes: nodes of one address are simulated on one host."""
    return len({r.node_ip for r in reports})


def check_answers(reports: Sequence[NodeReport]) -> None:
    """Every node ran the probe."""
    for report in reports:
        if report.error:
            raise UserError(
                f"cannot run a task: {report.error}", where=report.name, fix="see `ray status` and its logs"
            )


def check_versions(driver: NodeReport, reports: Sequence[NodeReport]) -> None:
    """Every node has the driver's Python minor, packages and code."""

    def what(report: NodeReport) -> dict[str, str]:
        return {"python": ".".join(report.python.split(".")[:2]), **report.versions}

    wanted = what(driver)
    differing = [key for key in wanted if any(what(r).get(key) != wanted[key] for r in reports)]
    if differing:
        rows = [[r.name, *(what(r).get(key, "?") for key in differing)] for r in (driver, *reports)]
        raise UserError(
            f"{', '.join(differing)} differ between the driver and the nodes\n{_table(['node', *differing], rows)}\n",
            fix="install the same on all: `make setup`, or submit with --working-dir so that all run one code",
        )


def check_data(driver: NodeReport, reports: Sequence[NodeReport], data_path: str) -> None:
    """The same data set is at `data_path` on every node."""
    for report in reports:
        if not report.data_exists:
            raise UserError(
                f"no {data_path} on node {report.name}",
                where="data.path",
                fix="put the data set on a path that all nodes have; a relative path counts from the driver's folder",
            )
        if report.manifest_sha != driver.manifest_sha:
            found = "another data set" if report.manifest_sha else "no manifest.json"
            raise UserError(f"{found} at {data_path} on node {report.name}", where="data.path", fix="copy it again")


def check_storage(reports: Sequence[NodeReport], storage_path: str) -> None:
    """A file that the driver wrote is seen by every node."""
    blind = [r.name for r in reports if not r.token_seen]
    if blind:
        raise UserError(
            f"{storage_path} is not a shared path: what the driver writes is not seen on {', '.join(blind)}",
            where="run.storage",
            fix="use a folder that all nodes mount (NFS, EFS), or s3://bucket/folder",
        )


def check_interface(reports: Sequence[NodeReport]) -> None:
    """Gloo gets an address that the other hosts can reach."""
    for report in reports:
        example = _example_interface(report)
        names = [name for name in report.socket_ifname.split(",") if name]
        unknown = [name for name in names if name not in report.interfaces]
        if unknown:
            syntax = "; ^ is NCCL's syntax, gloo has no exclusion" if unknown[0].startswith("^") else ""
            raise UserError(
                f"'{report.socket_ifname}' names no interface of {report.name}{syntax}",
                where="GLOO_SOCKET_IFNAME",
                fix=f"set GLOO_SOCKET_IFNAME={example} in the shell that runs `ray start`, or unset it",
            )
        if distinct_hosts(reports) > 1 and not names and _is_loopback(report.resolves_to):
            # pytorch/gloo#223: gloo binds what the host name resolves to, and the other hosts wait for ever.
            raise UserError(
                f"host name {report.hostname} resolves to {report.resolves_to or 'nothing'} on node {report.name}: "
                "gloo would bind an address that no other host reaches",
                where="GLOO_SOCKET_IFNAME",
                fix=f"set GLOO_SOCKET_IFNAME={example} in the shell that runs `ray start`",
            )


def _ask_nodes(data_path: str, token: str, device: Device) -> list[NodeReport]:
    import ray
    from ray import cloudpickle
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    cloudpickle.register_pickle_by_value(node_probe)
    kind = "GPU" if device == "cuda" else "CPU"
    nodes = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get(kind, 0) > 0]
    task = ray.remote(num_cpus=0, max_retries=1)(node_probe.probe)
    answers = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(n["NodeID"], soft=False)).remote(
            data_path, token
        )
        for n in nodes
    ]
    return [_report(node["NodeManagerAddress"], answer) for node, answer in zip(nodes, answers, strict=True)]


def _report(node_ip: str, answer: Any) -> NodeReport:
    import ray

    try:
        return NodeReport(node_ip=node_ip, **ray.get(answer, timeout=ANSWER_LIMIT))
    except ray.exceptions.GetTimeoutError:
        return NodeReport(node_ip=node_ip, error=f"no answer within {ANSWER_LIMIT:.0f} s")
    except ray.exceptions.RayError as error:
        return NodeReport(node_ip=node_ip, error=str(error).strip().splitlines()[-1][:200])


@contextmanager
def storage_token(storage_path: str) -> Iterator[str]:
    """A file in the storage path for the nodes to look for; empty for object stores, which are shared by nature."""
    if "://" in storage_path and not storage_path.startswith("file://"):
        check_object_store(storage_path)
        yield ""
        return
    token = Path(storage_path.removeprefix("file://")) / f".preflight-{uuid.uuid4().hex}"
    try:
        token.parent.mkdir(parents=True, exist_ok=True)
        token.touch()
    except OSError as error:
        raise UserError(f"cannot write to {token.parent}: {error.strerror}", where="run.storage") from error
    try:
        yield str(token)
    finally:
        token.unlink(missing_ok=True)


def check_object_store(uri: str) -> None:
    """pyarrow can open `uri`.

    Raises:
        UserError: pyarrow was built without that file system (ray-project/ray#48187), or the URI is malformed.
    """
    import pyarrow as pa
    import pyarrow.fs

    scheme = uri.split("://")[0]
    wanted = {"s3": "S3FileSystem", "gs": "GcsFileSystem", "gcs": "GcsFileSystem", "hdfs": "HadoopFileSystem"}
    try:
        if scheme in wanted:
            getattr(pyarrow.fs, wanted[scheme])
        pyarrow.fs.FileSystem.from_uri(uri)
    except (AttributeError, ImportError, pa.ArrowNotImplementedError) as error:
        raise UserError(
            f"this pyarrow ({pa.__version__}) cannot open {scheme}:// paths",
            where=uri,
            fix="`pip install pyarrow` from its own wheels, or use a shared folder",
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"bad storage URI: {str(error).splitlines()[0]}", where=uri) from error


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return True  # no address at all: gloo falls back to the loopback one


def _example_interface(report: NodeReport) -> str:
    real = [name for name, address in report.interfaces.items() if address and not _is_loopback(address)]
    carrying = [name for name in real if report.interfaces[name] == report.node_ip]
    return (carrying or real or ["eth0"])[0]


def _table(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)]
    return "\n".join(f"  {line.rstrip()}" for line in lines)
