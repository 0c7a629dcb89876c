"""`thinwire bench exchange`: what it is asked, what it says, and a small run of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.exchange_command import parse_workers
from benchmarks.exchange import result
from benchmarks.exchange.contender import PHASES
from benchmarks.exchange.plan import BASELINE, DUPLEX, LIMIT, THIN, bits_per_second, parse_grid, rate_text
from benchmarks.exchange.rank import check_same_work, ratio
from pipelines.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def test_lists_are_read_and_mistakes_named() -> None:
    assert parse_grid("1024x16,512x64") == ((1024, 16), (512, 64))
    assert parse_workers("2,4") == [2, 4]
    assert bits_per_second("50mbit") == 5e7 and bits_per_second("none") == float("inf")
    assert bits_per_second(rate_text(919.2e6)) == pytest.approx(919.2e6)
    for call, text in ((parse_grid, "1024"), (parse_grid, "0x16"), (parse_workers, "1")):
        with pytest.raises(UserError, match="for example"):
            call(text)
    for text in ("fast", "-5mbit", "0mbit", "nanmbit", "10kbit"):
        with pytest.raises(UserError, match="1mbit to 100gbit"):
            bits_per_second(text)


def test_the_ratio_pairs_windows_of_one_round() -> None:
    # The machine became three times slower in the last round; the ratio does not see it.
    assert ratio([20, 22, 60], [10, 11, 30]) == 2


def test_contenders_that_do_other_work_are_found() -> None:
    same: dict[str, list[float]] = {BASELINE: [0.5, 0.4], DUPLEX: [0.5, 0.4], LIMIT: [0.5, 0.9]}
    check_same_work(same)
    with pytest.raises(RuntimeError, match="same bits"):
        check_same_work({**same, DUPLEX: [0.5, 0.4000001]})
    with pytest.raises(RuntimeError, match="QComms int8 does other work"):
        check_same_work({**same, "QComms int8": [0.5, 0.45]})
    with pytest.raises(RuntimeError, match="not finite"):
        check_same_work({**same, LIMIT: [0.5, float("nan")]})


def test_bars_are_missed_when_the_claim_does_not_hold() -> None:
    links = [{"ranks": 2, "rate": "100mbit", "send/recv": 0.08}, {"ranks": 2, "rate": "none", "send/recv": 9.0}]
    row: dict[str, Any] = {"ranks": 2, "contender": BASELINE, "rate": "400mbit", "paper_point": True}
    row["all_to_all_share"] = 0.7
    other = {"ranks": 2, "contender": DUPLEX, "rate": "100mbit", "paper_point": False, "batch": 64, "dim": 8}
    assert [bar["ok"] for bar in result.bars([row, other | {"speedup": 1.0}], links)] == [False, False, False]
    row["all_to_all_share"], links[0]["send/recv"] = 0.62, 0.095
    assert [bar["ok"] for bar in result.bars([row, other | {"speedup": 1.5}], links)] == [True, True, True]


def test_rates_need_a_way_to_set_them() -> None:
    done = command("--where", "cluster", "--rates", "100mbit")
    assert done.returncode == 2 and "--link-command" in done.stderr


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "app.cli", "bench", "exchange", *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=560)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.xdist_group("jobs")
@pytest.mark.usefixtures("compiled")
def test_a_run_without_a_lab(tmp_path: Path) -> None:
    """All that the lab adds is rates; a rate "command" that does nothing gives the paper point a try too."""
    file, plot = tmp_path / "e.json", tmp_path / "e.png"
    options = ["--where", "cluster", "--workers", "2", "--grid", "64x8", "--rates", "none", "--quick"]
    done = command(*options, "--link-command", "test {rate}", "--json", str(file), "--plot", str(plot))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    by_name = {row["contender"]: row for row in found["rows"] if not row["paper_point"]}
    assert set(by_name) == {BASELINE, DUPLEX, "QComms fp16", "QComms int8", THIN, LIMIT}
    assert set(found["refused"]) == {"QComms bf16", "QComms fp8"}
    assert sum(by_name[LIMIT]["wire_kb"].values()) == 0
    assert by_name[DUPLEX]["wire_kb"] == pytest.approx(by_name[BASELINE]["wire_kb"])
    assert by_name["QComms fp16"]["wire_kb"]["gradients"] * 2 == by_name[BASELINE]["wire_kb"]["gradients"]
    for row in by_name.values():
        assert len(row["windows_ms"]) == 3 and row["step_ms"] > 0 and row["peak_memory_mb"] > 100
        assert all(row["phases_ms"][phase] > 0 for phase in PHASES if phase != "rest")
    assert by_name[BASELINE]["speedup"] == 1 and by_name[LIMIT]["exposed_share"] == 0
    assert sum(row["paper_point"] for row in found["rows"]) == 6
    assert plot.stat().st_size > 10_000
    assert "comm-free limit" in done.stdout and "not measured: QComms fp8" in done.stdout
