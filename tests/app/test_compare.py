"""Paired arms: what may differ, what the pairs say, and a whole comparison."""

from __future__ import annotations

import json
import os
import signal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scipy import stats

from app.compare import configure, with_plan
from app.compare_report import page
from app.compare_result import paired, summarise
from pipelines.dataset import Dataset
from pipelines.errors import UserError
from pipelines.metrics import KINDS

CHANGES: dict[str, tuple[str, ...]] = {"baseline": ("exchange.codec=none",), "candidate": ("exchange.codec=int8",)}


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    base, other = [0.80, 0.81, 0.79, 0.805], [0.801, 0.8095, 0.7915, 0.806]
    found = paired(base, other)
    known = stats.ttest_rel(other, base).confidence_interval(0.95)
    assert (found["low"], found["high"]) == pytest.approx((known.low, known.high))
    assert found["mean"] == pytest.approx(0.00075)
    assert paired([0.8], [0.7])["low"] is None


def window(step_ms: float, kb: float) -> dict[str, float]:
    wire = {f"wire/{kind}_kb": kb for kind in (*KINDS, "exchange", "total")}
    return {"time/step_ms": step_ms, "train/samples_per_s": 1000 / step_ms, **wire}


def pair(seed: int, auc: tuple[float, float], step_ms: tuple[float, float]) -> dict[str, Any]:
    # Slow at first, and short at the end: neither says anything.
    times = [[1000.0, 1000.0, ms, ms * 1.1, ms, 5000.0] for ms in step_ms]
    return {"seed": seed} | {
        arm: {
            "windows": [window(t, 10.0 / (i + 1)) for t in times[i]],
            "last": {"eval/auc": auc[i], "eval/ne": 0.9},
            "tables": [],
        }
        for i, arm in enumerate(("baseline", "candidate"))
    }


def test_pairs_are_summarised() -> None:
    found = summarise([pair(0, (0.80, 0.79999), (20, 10)), pair(1, (0.82, 0.82001), (30, 15))])
    assert found["auc_delta"]["mean"] == pytest.approx(0)
    assert found["auc_delta"]["low"] < 0 < found["auc_delta"]["high"]
    assert found["speedup"]["median"] == pytest.approx(2)
    assert found["bytes_ratio"] == {"exchange": 2, "total": 2}
    assert [bar["ok"] for bar in json.loads(json.dumps(found))["bars"]] == [True, True]
    text = {row["name"]: row for row in found["rows"]}
    assert text["AUC"]["baseline"] == "0.81000" and "2.00x" in text["step, ms"]["change"]


def test_a_candidate_that_loses_is_told() -> None:
    found = summarise([pair(0, (0.80, 0.79), (20, 20)), pair(1, (0.82, 0.80), (30, 30))])
    assert [bar["ok"] for bar in found["bars"]] == [False, True]


def test_one_pair_proves_nothing_and_one_worker_sends_nothing() -> None:
    alone = pair(0, (0.80, 0.80), (20, 20))
    for arm in ("baseline", "candidate"):
        for one in alone[arm]["windows"]:
            one.update({key: 0.0 for key in one if key.startswith("wire/")})
    found = summarise([alone])
    assert [bar["ok"] for bar in found["bars"]] == [False]
    assert found["bytes_ratio"] == {"exchange": None, "total": None}
    assert "inf" not in json.dumps(found).lower()


def test_the_report_is_one_page_that_escapes_what_it_shows() -> None:
    pairs = [pair(0, (0.80, 0.799), (20, 10))]
    text = page(summarise(pairs), pairs, {"baseline": "a<b", "candidate": "c", "command": "thinwire compare '<'"})
    assert "a&lt;b" in text and "a<b" not in text
    assert "data:image/png;base64," in text and "http" not in text
    assert "one pair proves nothing" in text


def test_arms_may_not_do_other_work() -> None:
    with pytest.raises(UserError, match=r"differ in 'train'.*exchange, bounds, cache, sharding, optim"):
        configure("smoke", None, (), None, {**CHANGES, "candidate": ("train.batch_size=64",)}, 2)
    with pytest.raises(UserError, match="both arms are the same"):
        configure("smoke", None, (), None, {**CHANGES, "candidate": ("exchange.codec=none",)}, 2)
    with pytest.raises(UserError, match=r"no key 'codex'|codex"):
        configure("smoke", None, (), None, {**CHANGES, "candidate": ("exchange.codex=int8",)}, 2)
    found = configure("smoke", None, ("train.seed=7",), None, CHANGES, 3)
    assert found.seeds == (7, 8, 9)
    assert found.changes == {"baseline": "TorchRec fp32", "candidate": "exchange.codec=int8"}


def test_without_a_stated_candidate_the_planner_chooses(small_dataset: Dataset) -> None:
    said = StringIO()
    console = Console(file=said, width=200)
    settings = ("exchange.link_mbit=50",)
    stated = configure("smoke", None, settings, str(small_dataset.path), CHANGES, 2)
    assert with_plan(stated, small_dataset, console) is stated and not said.getvalue()
    free = configure("smoke", None, settings, str(small_dataset.path), {**CHANGES, "candidate": ()}, 2)
    found = with_plan(free, small_dataset, console)
    candidate = found.arms["candidate"]
    assert candidate.exchange.codec == candidate.exchange.dense == "thin"
    tables = set(small_dataset.table_rows)
    chosen = set(candidate.exchange.tables) | set(candidate.cache.hot_rows)
    assert chosen == tables and not found.arms["baseline"].exchange.tables
    assert said.getvalue().startswith("plan   ") and " tables by row" in said.getvalue()
    assert "plan: " in found.changes["candidate"]


SMALL = ["--preset", "smoke", "--set", "train.max_steps=16", "--set", "train.log_every=4", "--seeds", "2"]


@pytest.mark.slow
@pytest.mark.ray
def test_an_exact_candidate_has_the_same_auc_to_the_last_bit(thinwire: Any, tmp_path: Path) -> None:
    """Another schedule of the same all-to-all changes no bit, so a pair that differs was not a pair."""
    from mlflow import MlflowClient

    candidate = ["--candidate", "exchange.codec=none", "--candidate", "exchange.schedule=duplex"]
    command = thinwire("compare", *SMALL, *candidate, "--name", "c", "--json", "result.json")
    assert command.wait() == 0, command.output
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["auc_delta"] == {"mean": 0, "low": 0, "high": 0, "pairs": 2}
    assert result["arms"]["baseline"]["auc"][0] != result["arms"]["baseline"]["auc"][1]
    assert result["arms"]["baseline"]["wire_kb"] == result["arms"]["candidate"]["wire_kb"]
    assert result["arms"]["baseline"]["wire_kb"]["output_dist"] > 100
    folder = tmp_path / "runs" / "c"
    assert {"report.html", "compare.json", "pairs.json"} <= {f.name for f in folder.iterdir()}

    client = MlflowClient(f"sqlite:///{tmp_path}/runs/mlflow.db")
    parent = client.get_run(result["mlflow_run_id"])
    assert parent.info.status == "FINISHED" and parent.data.metrics["compare/auc_delta_mean"] == 0
    assert "report.html" in [f.path for f in client.list_artifacts(parent.info.run_id)]
    children = client.search_runs([parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    assert sorted(c.data.tags["arm"] + c.data.tags["seed"] for c in children) == [
        *("baseline0", "baseline1", "candidate0", "candidate1")
    ]
    for child in children:
        assert child.info.status == "FINISHED"
        assert child.data.metrics["wire/total_kb"] > 0 and child.data.metrics["eval/auc"] > 0.5


@pytest.mark.slow
@pytest.mark.ray
def test_a_candidate_that_diverges_is_named(thinwire: Any, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    candidate = ["--candidate", "optim.dense_lr=1e30"]
    command = thinwire("compare", *SMALL, *candidate, "--name", "c")
    assert command.wait() == 1
    assert "candidate, seed 0: the loss is" in command.output
    client = MlflowClient(f"sqlite:///{tmp_path}/runs/mlflow.db")
    found = client.search_runs([client.get_experiment_by_name("thinwire").experiment_id])
    assert {run.data.tags["mlflow.runName"]: run.info.status for run in found} == {
        "c": "FAILED",
        **{f"seed-{seed}-{arm}": "FAILED" for seed in (0, 1) for arm in ("baseline", "candidate")},
    }


@pytest.mark.slow
@pytest.mark.ray
def test_finished_pairs_outlive_ctrl_c(thinwire: Any, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    steps = ["--set", "train.max_steps=150", "--set", "train.epochs=50", "--set", "train.log_every=10"]
    command = thinwire("compare", "--preset", "smoke", *steps, "--seeds", "3", "--name", "c")
    folder = tmp_path / "runs" / "c"
    command.wait_until((folder / "pairs.json").exists)
    os.killpg(command.process.pid, signal.SIGINT)
    assert command.wait(60) == 130, command.output
    assert "plan   " in command.output
    assert "of 3 pairs were finished" in command.output and (folder / "report.html").exists()
    client = MlflowClient(f"sqlite:///{tmp_path}/runs/mlflow.db")
    found = client.search_runs([client.get_experiment_by_name("thinwire").experiment_id])
    status = {run.data.tags["mlflow.runName"]: run.info.status for run in found}
    assert status["c"] == "KILLED"
    assert status["seed-0-baseline"] == status["seed-0-candidate"] == "FINISHED"
    assert status["seed-2-baseline"] == status["seed-2-candidate"] == "KILLED"
