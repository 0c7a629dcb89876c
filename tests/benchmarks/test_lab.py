"""The lab of several hosts on one machine. Needs root; only one lab can be up on a machine."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab_tools import COMMAND, SLEEP, command, needs_lab, python_in, wait_until

from benchmarks.lab import Lab, hosts, links, state
from benchmarks.lab.lab import ROOT
from pipelines.errors import UserError

pytestmark = pytest.mark.xdist_group("lab")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(hosts=2, rate="none", ray=False) as up:
        yield up


def output(lab: Lab, host: int, *parts: str) -> str:
    return str(lab.exec(host, parts, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout).strip()


RECEIVE = """
import socket, sys, time
server = socket.create_server(("0.0.0.0", 4000))
print("ready", flush=True)
source = server.accept()[0]
got = len(source.recv(1))
start = time.monotonic()
while part := source.recv(1 << 20):
    got += len(part)
print(got, time.monotonic() - start)
"""
SEND = """
import socket, sys
print("ready", flush=True)
with socket.create_connection((sys.argv[1], 4000)) as target:
    target.sendall(b"x" * int(sys.argv[2]))
"""


def transfer(lab: Lab, payload: int, during: Callable[[], object] = lambda: None) -> float:
    """Bits per second that arrive at host 1 of `payload` bytes sent by host 0."""
    with python_in(lab, 1, RECEIVE) as receiver:
        with python_in(lab, 0, SEND, lab.addresses[1], str(payload)):
            during()
        got, seconds = receiver.communicate(timeout=100)[0].split()
    assert int(got) == payload
    return payload * 8 / float(seconds)


@needs_lab
def test_hosts_are_separate_machines(lab: Lab) -> None:
    assert lab.addresses == ["10.77.0.1", "10.77.0.2"]
    Path("/dev/shm/thinwire-lab-test").touch()
    try:
        for host in (0, 1):
            assert output(lab, host, "hostname") == f"host{host}"
            assert lab.addresses[host] in output(lab, host, "ip", "-o", "-4", "addr", "show", "dev", "eth0")
            assert output(lab, host, "getent", "hosts", "host1").split()[0] == "10.77.0.2"
            assert output(lab, host, "ls", "/sys/class/net").split() == ["eth0", "lo"]
            assert output(lab, host, "ls", "/dev/shm", "/tmp/ray").split() == ["/dev/shm:", "/tmp/ray:"]
            assert int(output(lab, host, "sh", "-c", "ps -e | wc -l")) < 10
    finally:
        Path("/dev/shm/thinwire-lab-test").unlink()
    assert output(lab, 0, "pwd") == str(Path.cwd())
    assert output(lab, 0, "sh", "-c", "echo $GLOO_SOCKET_IFNAME") == "eth0"


@needs_lab
@pytest.mark.parametrize("inside", [False, True])
def test_the_rate_is_kept_and_can_be_changed(lab: Lab, inside: bool) -> None:
    def set_rate(rate: str) -> None:
        if inside:
            lab.exec(0, [*COMMAND, "rate", rate], cwd=ROOT, check=True)
        else:
            lab.set_rate(rate)

    for rate, nominal in (("20mbit", 20e6), ("60mbit", 60e6)):
        set_rate(rate)
        assert lab.rate == rate
        payload = int(nominal / 8)
        # A burst and a queue's worth may come at once, the rest at the rate, less the frames' headers.
        assert 0.5 * nominal < transfer(lab, payload) < 1.1 * nominal
    set_rate("none")
    assert transfer(lab, 10_000_000) > 100e6


@needs_lab
def test_the_rate_changes_under_a_running_transfer(lab: Lab) -> None:
    lab.set_rate("1mbit")  # at which it would take over two minutes
    assert transfer(lab, 20_000_000, during=lambda: lab.set_rate("none")) > 1.5e6


@needs_lab
def test_traffic_is_counted(lab: Lab) -> None:
    before = lab.traffic()
    transfer(lab, 1_000_000)

    def since() -> list[links.Traffic]:
        return [
            links.Traffic(*(x - y for x, y in zip(now, then, strict=True)))
            for now, then in zip(lab.traffic(), before, strict=True)
        ]

    def settled() -> bool:
        # The last packets of a connection may be on their way between the two readings.
        sender, receiver = since()
        return sender.rx_bytes == receiver.tx_bytes

    wait_until(settled, "both hosts have counted the same")
    sender, receiver = since()
    assert 1_000_000 < sender.tx_bytes < 1_100_000
    assert 1_000_000 < receiver.rx_bytes < 1_100_000
    assert sender.rx_bytes == receiver.tx_bytes < 100_000
    assert sender.tx_packets and receiver.rx_packets


CONNECT = """
import socket, sys
socket.create_connection((sys.argv[1], 4000), timeout=0.5)
"""


@needs_lab
def test_a_host_can_be_cut_off_and_plugged_in_again(lab: Lab) -> None:
    with python_in(lab, 1, RECEIVE):

        def connects() -> bool:
            asking = [sys.executable, "-c", CONNECT, lab.addresses[1]]
            return lab.exec(0, asking, stderr=subprocess.DEVNULL).returncode == 0

        lab.set_link(1, up=False)
        assert not connects()
        lab.set_link(1, up=True)
        wait_until(connects, "host 1 answers again")


@needs_lab
def test_a_host_crashes_and_comes_back(lab: Lab) -> None:
    other, victim = (python_in(lab, host, SLEEP) for host in (0, 1))
    lab.crash(1)
    victim.communicate(timeout=60)
    assert victim.returncode == -signal.SIGKILL
    with pytest.raises(UserError, match="host 1 is down"):
        lab.exec(1, ["true"])
    lab.rejoin(1)
    assert output(lab, 1, "hostname") == "host1"
    assert other.poll() is None
    other.terminate()
    other.communicate()
    assert transfer(lab, 1000) > 0


NOTE_SIGNALS = """
import signal, sys, time
noted = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: noted.append(number))
print("ready", flush=True)
while not noted:
    time.sleep(0.05)
time.sleep(0.5)
print("noted", list(map(int, noted)))
sys.exit(5)
"""


@needs_lab
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_and_exit_codes_pass_through(lab: Lab, number: signal.Signals) -> None:
    with python_in(lab, 1, NOTE_SIGNALS) as process:
        process.send_signal(number)
        assert process.communicate(timeout=60)[0] == f"noted [{number:d}]\n"
    assert process.returncode == 5
    with lab.popen(1, ["sh", "-c", "kill -TERM $$"]) as process:
        assert process.wait(60) == -signal.SIGTERM


@needs_lab
def test_ctrl_c_on_a_terminal_arrives_once(lab: Lab) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(COMMAND[0], [*COMMAND, "exec", "0", "--", sys.executable, "-c", NOTE_SIGNALS])
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    while b"]" not in seen:
        seen += os.read(terminal, 1000)
    assert b"noted [2]" in seen
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    os.close(terminal)


@needs_lab
def test_the_first_process_reaps_orphans(lab: Lab) -> None:
    left = output(lab, 0, "sh", "-c", "(sleep 0.1 & exec true) & wait; sleep 0.3; ps -eo stat=")
    assert "Z" not in left


@needs_lab
def test_a_command_that_is_not_there(lab: Lab) -> None:
    done = command("exec", "0", "--", "no-such-program")
    assert (done.returncode, done.stderr) == (127, "lab: no-such-program: No such file or directory\n")
    done = command("exec", "7", "--", "true")
    assert (done.returncode, done.stderr) == (2, "lab: no host 7 (0 to 1)\n")


@needs_lab
def test_a_second_lab_is_refused(lab: Lab) -> None:
    done = command("up", "--hosts", "3")
    assert done.returncode == 2
    assert done.stderr.startswith("lab: a lab of 2 hosts is up already (end it with") and done.stderr.count("\n") == 1
    assert output(lab, 1, "hostname") == "host1"


@needs_lab
def test_status_for_machines(lab: Lab, tmp_path: Path) -> None:
    lab.set_rate("60mbit")
    assert command("status", "--json", str(tmp_path / "lab.json")).returncode == 0
    found = json.loads((tmp_path / "lab.json").read_text())
    assert found["up"] and found["rate"] == "60mbit"
    assert [(host["address"], host["alive"], host["link"]) for host in found["hosts"]] == [
        ("10.77.0.1", True, "up"),
        ("10.77.0.2", True, "up"),
    ]


@needs_lab
def test_a_host_cannot_end_the_lab(lab: Lab) -> None:
    done = lab.exec(0, [*COMMAND, "down"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "one of the lab's hosts" in done.stderr


def test_a_rate() -> None:
    assert links.bits_per_second("none") is None
    assert links.bits_per_second("1.5gbit") == 1.5e9
    for wrong in ("100", "100 mbit", "1kbit", "200gbit", "-1mbit", "fast", ""):
        with pytest.raises(UserError, match="is not a rate"):
            links.bits_per_second(wrong)


def test_what_a_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(links, "_PATH", "/nowhere")
    with pytest.raises(UserError, match="iproute2"):
        links.check_machine()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="needs root"):
        Lab(hosts=2).__enter__()


def test_hosts_are_counted_from_0() -> None:
    lab = state.State(lab_id="x", hosts=2, rate="none", cpus=1, ray=False, owner=None)
    assert hosts.check_host(lab, 1) == 1
    with pytest.raises(UserError, match="no host 2"):
        hosts.check_host(lab, 2)
