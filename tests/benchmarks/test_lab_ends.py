"""How a lab ends, whatever ends it, and Ray in one. Each test has labs of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_tools import COMMAND, SLEEP, command, needs_lab, python_in, wait_until

from benchmarks.lab import Lab, links, state
from benchmarks.lab.lab import ROOT, bring_down

pytestmark = [needs_lab, pytest.mark.xdist_group("lab")]


@pytest.fixture
def nothing_up() -> Iterator[None]:
    """No lab before the test, and nothing left after it."""
    assert state.load() is None, "a lab is up"
    yield
    bring_down()


OWNER = """
from benchmarks.lab import Lab
import subprocess, time
with Lab(hosts=2, ray=False) as lab:
    inside = lab.popen(1, ["sleep", "1000"])
    print(lab._watchdog.pid, flush=True)
    time.sleep(1000)
"""


def start_owner() -> tuple[subprocess.Popen[str], int]:
    """A process that owns a lab, and the PID of its watchdog."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    with owner.stdout:
        return owner, int(owner.stdout.readline())


def inits_now() -> list[state.Process]:
    """PID 1 of each host."""
    there = state.load()
    assert there
    return list(there.inits.values())


def left_over(inits: list[state.Process]) -> bool:
    return bool(links.namespaces()) or any(init.alive for init in inits)


def test_the_lab_goes_when_its_owner_is_killed(nothing_up: None) -> None:
    owner, _ = start_owner()
    inits = inits_now()
    assert left_over(inits)
    owner.kill()
    owner.wait()
    wait_until(lambda: not left_over(inits), "the lab of a killed owner has gone")
    wait_until(lambda: state.load() is None, "it is forgotten")


def test_the_next_lab_clears_what_a_crash_left(nothing_up: None) -> None:
    owner, watchdog = start_owner()
    os.kill(watchdog, signal.SIGKILL)
    owner.kill()
    owner.wait()
    inits = inits_now()
    assert left_over(inits)
    assert command("status").stdout == "no lab is up\n"
    with Lab(hosts=1, ray=False):
        assert len(links.namespaces()) == 2
        wait_until(lambda: not any(init.alive for init in inits), "the hosts of the crashed lab have gone")


def test_down_clears_a_lab_that_nobody_wrote_down(nothing_up: None) -> None:
    assert command("up", "--no-ray").returncode == 0
    inits = inits_now()
    state.forget()
    assert command("down").stdout == "the lab is down\n"
    assert not links.namespaces()
    wait_until(lambda: not any(init.alive for init in inits), "its hosts have gone")
    done = command("down")
    assert (done.returncode, done.stdout) == (0, "no lab was up\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_up_is_killed_in_the_middle(nothing_up: None, number: signal.Signals) -> None:
    with subprocess.Popen([*COMMAND, "up", "--hosts", "2"], cwd=ROOT) as process:
        wait_until(lambda: bool((there := state.load()) and len(there.inits) == 2), "both hosts run")
        process.send_signal(number)
    if number == signal.SIGKILL:  # else it has cleared up itself
        assert left_over([])
        assert command("down").stdout == "the lab is down\n"
    assert not left_over([]) and state.load() is None


def test_run_returns_the_exit_code_and_takes_the_lab_down(nothing_up: None) -> None:
    done = command("run", "--hosts", "2", "--no-ray", "--", "sh", "-c", "hostname; exit 3")
    assert (done.returncode, done.stdout) == (3, "host0\n")
    assert not links.namespaces()


def test_the_end_of_a_block_ends_only_its_own_lab(nothing_up: None) -> None:
    with Lab(hosts=1, ray=False):
        assert command("down").returncode == 0
        assert command("up", "--hosts", "2", "--no-ray").returncode == 0
    assert [init.alive for init in inits_now()] == [True, True]


def test_down_ends_a_stopped_command(nothing_up: None) -> None:
    with Lab(hosts=1, ray=False) as own:
        process = python_in(own, 0, SLEEP)
        os.kill(process.pid, signal.SIGSTOP)
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()


JOB = """
import ray
ray.init(log_to_driver=False)
where = ray.remote(num_cpus=1)(lambda: ray.util.get_node_ip_address())
spread = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
tasks = [where.options(scheduling_strategy=spread(node["NodeID"], soft=False)).remote() for node in ray.nodes()]
print("nodes", sorted(ray.get(tasks)))
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_ray_job_sees_a_node_a_host(nothing_up: None, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    with Lab(hosts=2, rate="1gbit") as own:
        submit = ["ray", "job", "submit", "--", "python", str(tmp_path / "job.py")]
        done = own.exec(0, submit, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200)
        assert done.returncode == 0, done.stdout
        assert "nodes ['10.77.0.1', '10.77.0.2']" in done.stdout
        assert "2 of 2 Ray nodes alive" in command("status").stdout
