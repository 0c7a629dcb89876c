"""`thinwire bench codec`: its peers, what it says about them, and a small run of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.codec_command import run_codec_bench
from benchmarks.codec import data, peers, result
from benchmarks.codec.ids import measure_ids, pooled_entropy
from benchmarks.codec.measure import by_table, measure, one_core, turns
from benchmarks.codec.ours import CHAINS, OURS, Thinwire
from benchmarks.codec.plot import plot
from pipelines.errors import UserError

# In one group: while they wait for the compiler, the other process goes on.
pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.xdist_group("codec bench")]
ROOT = Path(__file__).resolve().parents[2]
PEERS = peers.peers()


@pytest.fixture(scope="module")
def group() -> data.Group:
    """Two tables of dimension 16, one of them far from zero: its codes are wide."""
    near, far = data.zipf_rows(2, 256, dim=16).arrays
    return data.Group("small", data.ROWS, {"near": near, "far": far + np.float32(100)})


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_peers_keep_their_bound(peer: peers.Contender, group: data.Group) -> None:
    (row,) = measure([peer], group, 0.01, rounds=1, least_s=0)
    # They compute in float32: codes of values near 100 are off by some 1e-5, here 1e-3 of the bound.
    assert row["error_over_bound"] < 1.002 or not peer.bounded
    assert row["kept_bound"] == (row["error_over_bound"] <= 1)
    assert row["ratio"] > 1.5 and row["encode_gbps"] > 0 and row["decode_gbps"] > 0


def test_codes_are_as_narrow_as_they_can_be() -> None:
    room = np.empty(12, np.uint8)
    for largest, width in ((127, 1), (-128, 1), (128, 2), (-32768, 2), (32768, 4)):
        codes = np.array([0, -1, largest])
        assert peers.quantise(codes.astype(np.float32), 0.5, room) == width
        assert (room[: 3 * width].view(peers.WIDTHS[width]) == codes).all()


def test_a_missing_peer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PACKAGES", ("numpy", "no_such_codec"))
    with pytest.raises(UserError, match=r"no_such_codec.*make setup"):
        peers.peers()


def test_dumps_are_read_and_mistakes_named(tmp_path: Path) -> None:
    file = tmp_path / "EMB_1_iter_20.bin"
    np.arange(128, dtype="<f4").tofile(file)
    (found,) = data.read_dumps(tmp_path, 64)
    assert found.name == "EMB_1_iter_20" and found.arrays[0].shape == (2, 64) and found.bounds(0.5) == [63.5]
    with pytest.raises(UserError, match="--dim"):
        data.read_dumps(tmp_path, 48)
    np.array([0, np.nan], dtype="<f4").tofile(file)
    with pytest.raises(UserError, match="not finite"):
        data.read_dumps(tmp_path, 2)
    file.unlink()
    for folder, text in ((tmp_path, "empty"), (file, "no such folder")):
        with pytest.raises(UserError, match=text):
            data.read_dumps(folder, 64)


def test_works_take_turns() -> None:
    calls: list[str] = []
    seconds = turns([lambda: calls.append("a"), lambda: calls.append("b")], rounds=2, least_s=0)
    assert calls == ["a", "a", "b", "b", "b", "b", "a", "a"], "a call to warm up, then one that is timed"
    assert [len(s) for s in seconds] == [2, 2] and min(map(min, seconds)) > 0
    with one_core():
        assert len(os.sched_getaffinity(0)) == 1


def test_ids_are_held_against_the_entropy_of_their_gaps(tmp_path: Path) -> None:
    assert pooled_entropy(np.array([1, 2, 3, 4])) == 2 and pooled_entropy(np.array([1, 1])) == 0
    ids = np.concatenate([np.arange(0, 4000, 2), np.arange(1, 3000, 3)])
    np.savez(tmp_path / "ids.npz", **{"ids/C1": ids, "counts/C1": np.array([2000, 1000])})
    row, total = measure_ids(tmp_path / "ids.npz")
    assert row["ids"] == 3000 and row["messages"] == 2 and row["bits"] == 8 * (row["bits"] // 8) > 0
    assert row["entropy_bits"] == pytest.approx(3000 * pooled_entropy(np.array([1] + 1999 * [2] + [2] + 999 * [3])))
    assert total["over_entropy"] == pytest.approx(row["bits"] / row["entropy_bits"])


def test_rows_bars_and_plot(group: data.Group, tmp_path: Path) -> None:
    done: dict[str, Any] = {"rows": [], "tables": []}
    for share in (0.01, 0.05):
        done["rows"] += measure([*map(Thinwire, CHAINS), *PEERS], group, share, rounds=1, least_s=0)
        done["tables"] += by_table(Thinwire, PEERS, group, share)
    assert all(r["kept_bound"] for r in done["rows"] if r["contender"] in CHAINS)
    assert [r["table"] for r in done["tables"]] == 2 * ["near", "far"]
    done["aggregate"] = result.aggregate(done["rows"])
    assert len(done["aggregate"]) == 2 * (len(CHAINS) + len(PEERS))
    speeds = {"encode_of_copy": 0.5, "decode_of_copy": 0.3, "error_over_bound": 1.0}
    done |= {"bitpack": [speeds], "ids": [{"over_entropy": 1.4}], "memory": None, "threads": None}
    found = {bar["name"].partition(",")[0]: bar["ok"] for bar in result.bars(done)}
    assert (
        found["bitpack: encode speed over a memory copy's"] and not found["bitpack: decode speed over a memory copy's"]
    )
    assert not found["ids: bits over the entropy of the gaps"]
    assert found["measurements with an error beyond the bound"]
    done["bitpack"] = [speeds | {"error_over_bound": float("nan")}]
    assert not result.bars(done)[-1]["ok"]
    plot(done["aggregate"], tmp_path / "c.png")
    assert (tmp_path / "c.png").stat().st_size > 10_000


def test_mistakes_are_named_before_anything_is_measured(tmp_path: Path) -> None:
    options: dict[str, Any] = {"folder": None, "dim": 64, "batches": None, "quick": True, "threads": None}
    options |= {"plot": tmp_path / "c.png", "write": pytest.fail}
    for change, text in (
        ({"threads": 1}, "--threads: 1 threads"),
        ({"threads": 4096}, "--threads: 4096 threads"),
        ({"plot": Path("no/such/c.png")}, "cannot draw it"),
        ({"folder": tmp_path}, "the folder is empty"),
    ):
        with pytest.raises(UserError, match=text):
            run_codec_bench(**(options | change))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_quick_run_without_dumps(tmp_path: Path) -> None:
    file, picture = tmp_path / "c.json", tmp_path / "c.png"
    line = [sys.executable, "-m", "app.cli", "bench", "codec", "--quick", "--json", str(file), "--plot", str(picture)]
    env = {k: v for k, v in os.environ.items() if k != "THINWIRE_EMBEDDINGS"}
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no dumps of embeddings" in done.stdout and "Warning" not in done.stderr
    found = json.loads(file.read_text())
    groups = ["rows, early", "rows, late", "gradients, early", "gradients, late", "noise, 1 MB"]
    assert list(dict.fromkeys(r["group"] for r in found["rows"])) == groups
    assert len(found["rows"]) == len(groups) * 3 * (len(CHAINS) + len(PEERS))
    assert {r["table"] for r in found["tables"] if r["group"] == groups[0]} == {f"C{i}" for i in range(1, 27)}
    assert all(r["kept_bound"] for r in found["rows"] if r["contender"] in CHAINS)
    assert {r["contender"] for r in found["rows"]} >= {OURS, "SZ3", "ZFP", "quantise + zstd-1", "fp16"}
    assert len(found["ids"]) == 27 and len(found["bitpack"]) == 6
    threads = 2 * (found["machine"]["cores"] > 1)
    assert len(found["bars"]) == 3 + 1 + 10 + 2 + 1 + 2 * bool(found["memory"]) + threads + 1
    assert picture.stat().st_size > 10_000
