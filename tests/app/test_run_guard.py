"""The guard closes a run whose driver was killed, and only then."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

import app
from app.tracking_store import connect

DRIVER = """
import pathlib, sys, time
from app.run_guard import RunGuard
from app.tracking import TrackingSettings, finish, open_run

handle = open_run(TrackingSettings(uri=sys.argv[1]), folder=pathlib.Path("run"), params={}, config_yaml="", tags={})
guard = RunGuard(handle)
print(handle.run_id, flush=True)
if sys.argv[2] == "hang":
    time.sleep(600)
finish(handle, sys.argv[2])
guard.done()
"""


def drive(tmp_path: Path, uri: str, how: str) -> subprocess.Popen:
    env = {**os.environ, "PYTHONPATH": str(Path(app.__file__).parent.parent)}
    command = [sys.executable, "-c", DRIVER, uri, how]
    return subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)


def guards(run_id: str) -> list[psutil.Process]:
    """The guards of a run that still live."""
    return [p for p in psutil.process_iter(["cmdline"]) if run_id in " ".join(p.info["cmdline"] or [])]


def wait_for_no_guard(run_id: str) -> None:
    while guards(run_id):
        time.sleep(0.2)


@pytest.fixture
def uri(tmp_path):
    connect(f"sqlite:///{tmp_path}/mlflow.db")
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.mark.slow
def test_driver_killed(tmp_path, uri):
    driver = drive(tmp_path, uri, "hang")
    run_id = driver.stdout.readline().strip()
    while len(guards(run_id)) != 1:  # the starter is gone, the guard is no child of the driver
        time.sleep(0.1)
    (guard,) = guards(run_id)
    assert guard.pid not in [c.pid for c in psutil.Process(driver.pid).children(recursive=True)]
    guard.send_signal(signal.SIGTERM)  # a stopped job sends it to everybody
    driver.kill()
    driver.wait()
    wait_for_no_guard(run_id)
    run = MlflowClient(uri).get_run(run_id)
    assert run.info.status == "KILLED" and run.info.end_time
    assert "without closing" in run.data.tags["killed"]


@pytest.mark.slow
@pytest.mark.parametrize("status", ["FINISHED", "FAILED"])
def test_driver_closed_the_run(tmp_path, uri, status):
    driver = drive(tmp_path, uri, status)
    run_id = driver.stdout.readline().strip()
    assert driver.wait() == 0
    wait_for_no_guard(run_id)
    assert MlflowClient(uri).get_run(run_id).info.status == status
