"""Against a real `mlflow server`: slow, dead at the end, killed and back, and behind an address that never answers."""

import contextlib
import http.server
import json
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from mlflow import MlflowClient

from app.tracking import MetricWriter, TrackingSettings, finish, open_run, resend

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("mlflow-server")]


class Server:
    """A server on one port and one store, that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.folder}/m.db"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        with (self.folder / "server.log").open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=self.folder)
        for _ in range(240):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.uri}/health", timeout=5).close()
                return
            time.sleep(0.5)
        raise AssertionError((self.folder / "server.log").read_text())

    def kill(self) -> None:
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.kill()


@contextlib.contextmanager
def in_front_of(server: Server, delay: float):
    """An HTTP proxy that waits before each request; yields its address and the sizes of the batches it saw."""
    batches: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def forward(self):
            time.sleep(delay)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.endswith("/runs/log-batch"):
                batches.append(len(json.loads(body).get("metrics", [])))
            headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "accept-encoding")}
            request = urllib.request.Request(server.uri + self.path, body or None, headers, method=self.command)
            try:
                answer = urllib.request.urlopen(request)
            except urllib.error.HTTPError as error:
                answer = error
            content = answer.read()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = forward  # noqa: N815

        def log_message(self, *_):
            pass

    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{proxy.server_port}", batches
    proxy.shutdown()
    proxy.server_close()


def start(folder: Path, uri: str, experiment: str):
    settings = TrackingSettings(uri=uri, experiment=experiment)
    return open_run(settings, folder=folder, params={"lr": 0.1}, config_yaml="lr: 0.1\n", tags={})


def history(server: Server, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in MlflowClient(server.uri).get_metric_history(run_id, name)]


def test_many_metrics_through_a_slow_server(server, tmp_path):
    # mlflow/mlflow#5269: one call a metric; over 1,000 a call fails.
    with in_front_of(server, 0.05) as (uri, batches):
        handle = start(tmp_path, uri, "many")
        writer = MetricWriter(handle)
        for step in range(10):
            writer.log(step, {f"table_{t}/metric_{m}": step + t + m / 100 for t in range(26) for m in range(50)})
        assert writer.close(timeout=120).points == 0
        assert finish(handle, "FINISHED")
    assert max(batches) == 1000 and sum(batches) == 13_000 and len([b for b in batches if b]) <= 14
    for t, m in ((0, 0), (25, 49), (13, 7)):
        name = f"table_{t}/metric_{m}"
        assert history(server, handle.run_id, name) == [(s, s + t + m / 100) for s in range(10)]
    run = MlflowClient(server.uri).get_run(handle.run_id)
    assert run.info.status == "FINISHED" and run.data.params == {"lr": "0.1"}
    config = MlflowClient(server.uri).download_artifacts(handle.run_id, "config.yaml", str(tmp_path))
    assert Path(config).read_text() == "lr: 0.1\n"


def test_server_killed_and_back(server, tmp_path):
    # mlflow/mlflow#1760
    handle = start(tmp_path, server.uri, "back")
    writer = MetricWriter(handle)
    writer.log(0, {"a": 0.0})
    while not history(server, handle.run_id, "a"):
        time.sleep(0.2)
    server.kill()
    for step in range(1, 3000):
        writer.log(step, {"a": float(step)})
    server.start()
    assert writer.close(timeout=60).points == 0
    assert finish(handle, "FINISHED")
    assert history(server, handle.run_id, "a") == [(s, float(s)) for s in range(3000)]


def test_server_dead_at_the_end(server, tmp_path, caplog):
    handle = start(tmp_path, server.uri, "dead")
    writer = MetricWriter(handle)
    server.kill()
    for step in range(1500):
        writer.log(step, {"a": float(step), "b": 1.0})
    unsent = writer.close(timeout=5)
    assert unsent.points == 3000 and f"python -m app.tracking {tmp_path}" in str(unsent)
    assert not finish(handle, "FAILED", {"why": "x"})
    assert "is not marked FAILED" in caplog.text

    server.start()
    assert MlflowClient(server.uri).get_run(handle.run_id).info.status == "RUNNING"
    assert resend(tmp_path) == 3000
    run = MlflowClient(server.uri).get_run(handle.run_id)
    assert run.info.status == "FAILED" and run.data.tags["why"] == "x"
    assert history(server, handle.run_id, "a") == [(s, float(s)) for s in range(1500)]


def test_server_that_never_answers(server, tmp_path):
    handle = start(tmp_path / "run", server.uri, "silent")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        stuck = type(handle)(f"http://127.0.0.1:{silent.getsockname()[1]}", handle.run_id, handle.folder, 0)
        writer = MetricWriter(stuck)
        writer.log(0, {"a": 0.0})
        assert writer.close(timeout=2).points == 1
    assert resend(tmp_path / "run") == 1
    assert history(server, handle.run_id, "a") == [(0, 0.0)]


def _rank(rank: int, handle: bytes) -> None:
    assert "MLFLOW_TRACKING_URI" not in os.environ
    if rank == 0:
        writer = MetricWriter(pickle.loads(handle))
        writer.log(0, {"a": 1.0})
        assert writer.close().points == 0


def test_two_workers_one_run(server, tmp_path, monkeypatch):
    # mlflow/mlflow#7206: a URI that only the driver knows, and a stray run for each worker.
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    handle = start(tmp_path, server.uri, "two")
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_rank, args=(r, pickle.dumps(handle))) for r in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [r.exitcode for r in ranks] == [0, 0]
    client = MlflowClient(server.uri)
    runs = client.search_runs([client.get_experiment_by_name("two").experiment_id])
    assert [r.info.run_id for r in runs] == [handle.run_id]
    assert history(server, handle.run_id, "a") == [(0, 1.0)]
