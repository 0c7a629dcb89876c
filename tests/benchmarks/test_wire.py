"""The bytes that a rank counts are those that its network interface sends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.lab import Lab
from pipelines.synthetic import SynthOptions, write_synthetic
from tests.benchmarks.lab_tools import needs_lab

HOSTS = 3
HEADERS = 14 + 20 + 32
"""Bytes of Ethernet, IPv4 and TCP (with time stamps) before the payload of a packet, as the interface counts them."""
AGREE = 0.03


@needs_lab
@pytest.mark.slow
@pytest.mark.xdist_group("lab")
@pytest.mark.parametrize(
    "options", [["exchange.schedule=torchrec"], ["exchange.schedule=duplex", "exchange.codec=int8"]]
)
def test_counted_bytes_are_the_interfaces_bytes(tmp_path: Path, options: list[str]) -> None:
    """Payload counted = bytes of the interface less headers, within 3 %: what is over is gloo's own messages."""
    data = tmp_path / "data"
    write_synthetic(data, SynthOptions(rows=8_000))
    with Lab(hosts=HOSTS, rate="none", ray=False) as lab:
        ranks = [
            lab.popen(
                host,
                [
                    *(sys.executable, "-m", "tests.benchmarks.wire_rank", str(host), str(HOSTS), lab.addresses[0]),
                    *(str(data), str(tmp_path), *options),
                ],
            )
            for host in range(HOSTS)
        ]
        wait_for_all(tmp_path, "ready", ranks)
        before = lab.traffic()
        (tmp_path / "after-ready").touch()
        wait_for_all(tmp_path, "done", ranks)
        after = lab.traffic()
        (tmp_path / "after-done").touch()
        assert [rank.wait(30) for rank in ranks] == [0] * HOSTS
    for host in range(HOSTS):
        counted = sum(json.loads((tmp_path / f"counted-{host}.json").read_text()).values())
        sent = after[host].tx_bytes - before[host].tx_bytes
        packets = after[host].tx_packets - before[host].tx_packets
        payload = sent - HEADERS * packets
        print(f"host {host}: counted {counted:,.0f}, payload on the wire {payload:,}, with headers {sent:,}")
        assert counted > 1_000_000
        assert payload == pytest.approx(counted, rel=AGREE)


def wait_for_all(folder: Path, name: str, ranks: list[subprocess.Popen]) -> None:
    end = time.monotonic() + 120
    while not all((folder / f"{name}-{rank}").exists() for rank in range(HOSTS)):
        assert all(rank.poll() is None for rank in ranks), "a rank has ended"
        assert time.monotonic() < end, f"not all ranks are {name}"
        time.sleep(0.02)
