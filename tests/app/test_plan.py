"""`thinwire plan` and `calibrate`: what they choose, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from app.config import load_config
from app.plan_command import parse_batches, parse_what_if
from cache.constants import Constants
from pipelines.dataset import Dataset
from pipelines.errors import UserError
from pipelines.workload import read_workload


def fast_links_slow_owners() -> Constants:
    """Where hot rows pay: rows take many bits, and little else takes time."""
    data = Constants(
        fixed_ms=0.5, sample_us=0.1, message_us=1.0, latency_us=1.0, overlap_us=0.0, lookup_gb_s=100.0
    ).to_dict()
    for ways in data["coded"].values():
        ways[""]["rows"]["bits_per_value"] = 24.0
    data["chains"] = {name: {"encode_mb_s": 1e5, "decode_mb_s": 1e5} for name in data["chains"]}
    return Constants.from_dict(data)


def calibration(file: Path, constants: Constants, **measured_with: Any) -> str:
    with_defaults = {"embedding_dim": 16, "table_dims": {}, "row_bound": 0.01, "gradient_bound": 0.005, "dense": "none"}
    data = {"format": "thinwire-calibration", "version": 1, "measured_with": with_defaults | measured_with}
    file.write_text(json.dumps(data | {"constants": constants.to_dict()}))
    return str(file)


def test_a_plan_is_a_configuration(run: Any, tmp_path: Path, small_dataset: Dataset) -> None:
    data = [
        "--data",
        str(small_dataset.path),
        "--calibration",
        calibration(tmp_path / "c.json", fast_links_slow_owners()),
    ]
    where = [
        "--workers",
        "4",
        "--link-mbit",
        "50",
        "--what-if",
        "1024:200000:1",
        "--plot",
        "p.png",
        "--json",
        "full.json",
    ]
    code, out, _ = run("plan", *data, *where)
    assert code == 0
    plan, full = json.loads(Path("plan.json").read_text()), json.loads(Path("full.json").read_text())
    assert full["plan"] == plan
    hot = plan.pop("cache")["hot_rows"]
    Path("rest.json").write_text(json.dumps(plan))
    config = load_config(file=Path("rest.json"))
    assert config.exchange.codec == "thin"
    rows = {row["table"]: row for row in full["tables"]}
    assert list(rows) == [t.name for t in small_dataset.manifest.tables]
    assert hot and {table: row["hot"] for table, row in rows.items() if row["hot"]} == hot
    for table, row in rows.items():
        assert 0 <= row["hot"] <= row["rows"] == small_dataset.table_rows[table]
        # A table that is replicated wholly has no exchange to set.
        assert (table in config.exchange.tables) == (row["path"] != "replicated")
    assert full["cost"]["step_ms"] <= full["without"]["step_ms"]
    assert full["memory_mb"] == pytest.approx(sum(row["memory_mb"] for row in rows.values()))
    kinds = sum(row[f"{kind}_bytes"] for row in rows.values() for kind in ("ids", "rows", "gradients", "sync"))
    assert kinds < full["cost"]["wire_bytes"] - full["cost"]["dense"] < 1.2 * kinds + 2000  # and headers
    (other,) = full["what_if"]
    assert other["workers"] == 1024 and other["memory_mb"] <= 1
    assert Path("p.png").stat().st_size > 10_000 and len(full["memory_curve"]) == 14
    assert "hot rows save" in out and "thinwire train --config plan.json" in out


def test_no_hot_rows_where_they_do_not_pay(run: Any, small_dataset: Dataset) -> None:
    code, out, _ = run("plan", "--data", str(small_dataset.path), "--workers", "2", "--json", "full.json")
    assert code == 0 and "no hot rows" in out and "thinwire calibrate" in out
    full = json.loads(Path("full.json").read_text())
    assert full["plan"]["cache"] == {"hot_rows": {}} and full["cost"] == full["without"]
    assert set(full["plan"]["exchange"]["tables"]) == set(small_dataset.table_rows)


def test_the_memory_budget_and_the_batch(run: Any, tmp_path: Path, small_dataset: Dataset) -> None:
    data = [
        "--data",
        str(small_dataset.path),
        "--calibration",
        calibration(tmp_path / "c.json", fast_links_slow_owners()),
    ]
    some = [*data, "--workers", "4", "--link-mbit", "50", "--json", "full.json"]
    code, _, _ = run("plan", *some, "--memory-mb", "0.05")
    full = json.loads(Path("full.json").read_text())
    assert code == 0 and 0 < full["memory_mb"] <= 0.05
    code, _, _ = run(
        "plan", *some, "--batches", "256,1024", "--set", "exchange.row_bound=0", "--set", "exchange.dense=thin"
    )
    full = json.loads(Path("full.json").read_text())
    assert code == 0 and full["plan"]["train"] == {"batch_size": 1024}
    assert {one["chain"] for one in full["plan"]["exchange"]["tables"].values()} <= {"lossless"}


def test_what_differs_from_the_calibration_is_said(run: Any, tmp_path: Path, small_dataset: Dataset) -> None:
    file = calibration(tmp_path / "c.json", Constants(), row_bound=0.03)
    code, out, _ = run("plan", "--data", str(small_dataset.path), "--calibration", file)
    assert code == 0 and "calibrated with row_bound 0.03, now 0.01" in out


def test_mistakes_are_one_line(run: Any, tmp_path: Path, small_dataset: Dataset) -> None:
    data = ("--data", str(small_dataset.path))
    (tmp_path / "bad.json").write_text("{}")
    worse = calibration(tmp_path / "worse.json", Constants())
    text = Path(worse).read_text().replace('"goodput_mbit"', '"goodput_kbit"')
    Path(worse).write_text(text)
    for arguments, words in (
        (("plan", *data, "--calibration", "none.json"), "cannot read it: No such file"),
        (("plan", *data, "--calibration", "bad.json"), "is no calibration of this version"),
        (("plan", *data, "--calibration", worse), "bad constants: unknown: goodput_kbit"),
        (("plan", *data, "--what-if", "1024"), "is not WORKERS:MBIT"),
        (("plan", *data, "--batches", "a"), "is no list of batch sizes"),
        (("plan", *data, "--out", "no/plan.json"), "cannot write it"),
        (("plan", *data, "--plot", "plan.txt"), "cannot draw it"),
        (("plan", *data, "--set", "cluster.workers=1"), "one worker exchanges nothing"),
        (("plan",), "no data set is named"),
        (("calibrate", *data, "--set", "cluster.workers=1"), "one worker sends nothing"),
    ):
        code, _, error = run(*arguments)
        assert code == 2 and words in error and error.count("\n") == 1, (arguments, error)


def test_lists_are_read() -> None:
    assert parse_what_if("1024:200000") == (1024, 200000.0, None) and parse_what_if("2:50:0") == (2, 50.0, 0.0)
    for text in ("1:5", "4:0", "4:5:-1", "4:5:6:7", "a:b"):
        with pytest.raises(UserError, match="for example"):
            parse_what_if(text)
    assert parse_batches(None) == [] and parse_batches("512, 64") == [512, 64]


def test_the_workload_is_that_of_the_data(small_dataset: Dataset) -> None:
    config = load_config(assignments=["model.table_rows.C5=1000", "optim.sparse=sgd"])
    workload = read_workload(config.job(str(small_dataset.path)), small_dataset)
    for table in workload.tables:
        file = small_dataset.path / "tables" / f"{table.name}.parquet"
        counts = pq.read_table(file)["count"].to_numpy()
        spread = np.repeat(table.of.counts, table.of.sizes)
        assert spread[: counts.size].tolist() == counts.tolist() and not spread[counts.size :].any()
        assert table.of.rows == (1000 if table.name == "C5" else small_dataset.table_rows[table.name])
    assert workload.optimizer == "sgd" and sorted(set(workload.owners(3))) == [0, 1, 2]
    dense = [(4 + 1) * 64, (64 + 1) * 16]  # bottom MLP of four columns; the top one sees pairs of 7 vectors
    top = [(16 + 21 + 1) * 128, (128 + 1) * 64, 64 + 1]
    assert workload.dense_values == sum(dense) + sum(top)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.xdist_group("jobs")
@pytest.mark.usefixtures("compiled")
def test_a_calibration_is_measured_and_read(thinwire: Any, tmp_path: Path, small_dataset: Dataset) -> None:
    sets = ["--data", str(small_dataset.path), "--set", "train.batch_size=256", "--set", "exchange.dense=thin"]
    command = thinwire("calibrate", *sets)
    assert command.wait(600) == 0, command.output
    found = json.loads((tmp_path / "calibration.json").read_text())
    constants = Constants.from_dict(found["constants"])
    assert constants.ranks == 2 and constants.goodput_mbit > 10 and constants.latency_us > 0
    assert set(constants.coded["huffman"]) == {*small_dataset.table_rows, ""}
    assert found["about"]["workers"] == 2 and found["measured_with"]["dense"] == "thin"
    command = thinwire("plan", *sets, "--calibration", "calibration.json", "--json", "full.json")
    assert command.wait() == 0, command.output
    assert "note" not in command.output
    full = json.loads((tmp_path / "full.json").read_text())
    assert full["cost"]["step_ms"] > 0 and full["constants"] == found["constants"]
