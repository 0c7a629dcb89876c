"""A host's link is cut in mid-run, with no host to take its place: the run ends and names it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.lab import Lab
from benchmarks.lab.lab import ROOT
from tests.benchmarks.lab_tools import needs_lab

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.xdist_group("lab")]

SETTINGS = {
    "cluster.workers": 2,
    "cluster.placement": "STRICT_SPREAD",
    "cluster.lost_host_wait_s": 3,
    "train.epochs": 1000,
    "train.checkpoint_every": 20,
    "tracking.uri": "http://host0:5000",  # nobody listens: the run goes on untracked
}


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[str], output: Path) -> None:
    end = time.monotonic() + 120
    while not happened():
        assert process.poll() is None and time.monotonic() < end, output.read_text()
        time.sleep(0.2)


@needs_lab
def test_a_run_that_loses_a_host_ends_and_names_it(tmp_path: Path) -> None:
    run, output = tmp_path / "runs" / "cut", tmp_path / "output.txt"
    settings = SETTINGS | {"run.storage": run.parent}
    command = [sys.executable, "-m", "app.cli", "train", "--preset", "smoke", "--name", "cut"]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    snapshot = run / "checkpoint_manager_snapshot.json"
    with Lab(hosts=2) as lab, output.open("w") as file:
        process = lab.popen(0, command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, text=True)
        wait_until(lambda: snapshot.exists() and "checkpoint_0" in snapshot.read_text(), process, output)
        lab.set_link(1, up=False)
        assert process.wait(150) == 1, output.read_text()
        left = lab.exec(0, ["ps", "-eo", "args"], stdout=subprocess.PIPE, text=True).stdout
        assert "raylet" in left and "RayTrain" not in left and "TrainController" not in left
    text = output.read_text()
    assert "lost host1 (10.77.0.2) with rank " in text and "room is left for 1 of 2 workers; waiting 3 s" in text
    last = text.splitlines()[-1]
    assert "lost host1 (10.77.0.2) with rank " in last and "2 workers did not run again within 3 s" in last
    assert f"`thinwire train --resume {run}`" in last and "--set cluster.workers=1" in last
