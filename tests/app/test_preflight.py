"""What preflight says about nodes, from faked reports, and what a real node reports."""

import dataclasses
import hashlib
import json
import os
import socket
import subprocess
import sys

import pyarrow.fs
import pytest

from app import node_probe
from app.preflight import (
    NodeReport,
    check_interface,
    check_object_store,
    distinct_hosts,
    judge,
    storage_token,
)
from pipelines.errors import UserError

VERSIONS = {"torch": "2.13.0", "torchrec": "1.8.0", "fbgemm-gpu": "1.8.0", "ray": "2.60.0", "thinwire": "0.1.0-aaaa"}


def node(number: int, **changes) -> NodeReport:
    ip = f"10.0.0.{number}"
    report = NodeReport(
        node_ip=ip,
        hostname=f"host{number}",
        python="3.11.9",
        versions=VERSIONS,
        manifest_sha="m",
        resolves_to=ip,
        interfaces={"lo": "127.0.0.1", "ens5": ip},
    )
    return dataclasses.replace(report, **changes)


def check(*reports: NodeReport) -> None:
    driver = dataclasses.replace(node(1), node_ip="driver")
    judge(driver, reports, data_path="/data/criteo", storage_path="/runs", num_workers=2)


def test_like_nodes_pass():
    check(node(1), node(2, python="3.11.2"))
    assert distinct_hosts([node(1), node(2), node(2)]) == 2


@pytest.mark.parametrize(
    ("changes", "column", "found"),
    [
        ({"python": "3.12.1"}, "python", "3.12"),
        ({"versions": VERSIONS | {"torch": "2.12.0"}}, "torch", "2.12.0"),
        ({"versions": VERSIONS | {"thinwire": "0.1.0-bbbb"}}, "thinwire", "0.1.0-bbbb"),
        ({"versions": VERSIONS | {"fbgemm-gpu": "missing"}}, "fbgemm-gpu", "missing"),
    ],
)
def test_differing_versions_are_a_table_of_nodes(changes, column, found):
    # ray-project/ray#59639: noticed late or never.
    with pytest.raises(UserError) as caught:
        check(node(1), node(2, **changes))
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{column} differ between the driver and the nodes"
    assert lines[1].split() == ["node", column]
    assert [line.split()[0] for line in lines[2:5]] == ["host1", "host1", "host2"]
    assert lines[4].split() == ["host2", "(10.0.0.2)", found]


def test_data_missing_or_different_on_a_node():
    with pytest.raises(UserError, match=r"no /data/criteo on node host2 \(10\.0\.0\.2\)"):
        check(node(1), node(2, data_exists=False, manifest_sha=""))
    with pytest.raises(UserError, match="another data set at /data/criteo on node host2"):
        check(node(1), node(2, manifest_sha="other"))
    with pytest.raises(UserError, match=r"no manifest\.json at /data/criteo on node host2"):
        check(node(1), node(2, manifest_sha=""))


def test_storage_that_a_node_does_not_share():
    with pytest.raises(UserError, match=r"/runs is not a shared path.*host2 \(10\.0\.0\.2\).*NFS"):
        check(node(1), node(2, token_seen=False))


def test_node_that_does_not_answer():
    with pytest.raises(UserError, match=r"host2.*cannot run a task: no module"):
        check(node(1), node(2, error="no module named x"))


def test_gloo_gets_an_address_that_others_reach():
    loopback = node(2, resolves_to="127.0.1.1")
    with pytest.raises(UserError, match=r"GLOO_SOCKET_IFNAME: host name host2 resolves to 127\.0\.1\.1.*IFNAME=ens5"):
        check_interface([node(1), loopback])
    check_interface([loopback])  # one host: loopback is right
    check_interface([node(1), dataclasses.replace(loopback, socket_ifname="ens5")])
    check_interface([node(1), dataclasses.replace(loopback, socket_ifname="ens5,lo")])
    with pytest.raises(UserError, match="resolves to nothing"):
        check_interface([node(1), node(2, resolves_to="")])


@pytest.mark.parametrize("name", ["^lo", "^docker0,lo", "eth9"])
def test_interface_that_does_not_exist(name):
    # aws-samples/aws-do-eks#51: NCCL's exclude syntax handed to gloo.
    with pytest.raises(UserError, match=r"names no interface of host1.*GLOO_SOCKET_IFNAME=ens5") as caught:
        check_interface([node(1, socket_ifname=name)])
    assert ("NCCL's syntax" in str(caught.value)) == name.startswith("^")


def test_s3_without_arrow_s3(monkeypatch):
    # ray-project/ray#48187
    monkeypatch.delattr(pyarrow.fs, "S3FileSystem")
    with pytest.raises(UserError, match=r"s3://b/runs: this pyarrow \(.*\) cannot open s3:// paths.*shared folder"):
        check_object_store("s3://b/runs")
    with pytest.raises(UserError, match=r"cannot open nope:// paths|bad storage URI"):
        check_object_store("nope://b/runs")


def test_local_storage_does_not_need_s3(tmp_path, monkeypatch):
    monkeypatch.delattr(pyarrow.fs, "S3FileSystem")
    for path in (str(tmp_path / "runs"), f"file://{tmp_path}/mounted"):
        with storage_token(path) as token:
            assert node_probe.probe(str(tmp_path), token)["token_seen"]
        assert not node_probe.probe(str(tmp_path), token)["token_seen"]


def test_probe_of_this_host(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    report = NodeReport(node_ip="here", **node_probe.probe(str(tmp_path), ""))
    assert report.hostname == socket.gethostname() and report.data_exists and report.token_seen
    assert report.manifest_sha == hashlib.sha256(b"{}").hexdigest()[:16]
    assert report.versions["torch"] == "2.13.0" and report.interfaces["lo"] == "127.0.0.1"
    absent = node_probe.probe(str(tmp_path / "absent"), str(tmp_path / "token"))
    assert not absent["data_exists"] and not absent["token_seen"] and absent["manifest_sha"] == ""


def test_probe_sees_changed_code(tmp_path):
    before = node_probe.our_version()
    assert before == node_probe.our_version()
    (tmp_path / "compression").mkdir()
    (tmp_path / "compression" / "__init__.py").write_text("# another codec\n")
    code = "import app.node_probe; print(app.node_probe.our_version())"
    env = {**os.environ, "PYTHONPATH": str(node_probe.Path(node_probe.__file__).parent.parent)}
    command = [sys.executable, "-c", code]  # the working folder comes first
    after = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, check=True).stdout
    assert after.strip() != before


NODES = """
import json, sys
import ray
from ray.cluster_utils import Cluster
from app.preflight import preflight
from pipelines.errors import UserError

out = []
def check(data, storage):
    try:
        reports = preflight(data_path=data, storage_path=storage, num_workers=2, device="cpu")
        out.append([r.node_ip for r in reports])
    except UserError as error:
        out.append(str(error))

data, storage = sys.argv[1:]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1)
try:
    ray.init(cluster.address, log_to_driver=False)
    check(data, storage)
    check(data + "/absent", storage)
    check(data, "/proc/nowhere")
finally:
    ray.shutdown()
    cluster.shutdown()
print(json.dumps(out))
"""


@pytest.mark.ray
@pytest.mark.slow
def test_two_real_nodes(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/manifest.json").write_text("{}")
    command = [sys.executable, "-c", NODES, str(tmp_path / "data"), str(tmp_path / "runs")]
    env = {**os.environ, "PYTHONPATH": str(node_probe.Path(node_probe.__file__).parent.parent)}
    result = subprocess.run(command, env=env, text=True, capture_output=True)
    assert result.returncode == 0, result.stderr
    fine, absent, unwritable = json.loads(result.stdout.splitlines()[-1])
    assert len(fine) == 2
    assert absent.startswith(f"data.path: no {tmp_path}/data/absent on node")
    assert unwritable.startswith("run.storage: cannot write to /proc/nowhere")
    assert not list((tmp_path / "runs").iterdir())
