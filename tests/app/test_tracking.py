"""MLflow runs on real SQLite stores: what arrives, under which name, and what does not."""

import json
import logging
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from app import tracking
from app.tracking import MetricWriter, TrackingSettings, finish, open_run, reopen_run, resend
from app.tracking_sender import MetricFile
from app.tracking_store import bounded, check_reachable_from_workers, clean_name, connect, normalise_uri
from pipelines.errors import UserError


def start(folder: Path, uri: str, **changes):
    given = {"params": {"lr": 0.1}, "config_yaml": "lr: 0.1\n", "tags": {"synthetic": "true"}} | changes
    settings = given.pop("settings", TrackingSettings(uri=uri, experiment="x"))
    return open_run(settings, folder=folder, **given)


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    connect(f"sqlite:///{path}")
    return path


@pytest.fixture
def uri(tmp_path, empty_store):
    # Making the tables takes seconds: once for all tests.
    (tmp_path / "store").mkdir()
    shutil.copy(empty_store, tmp_path / "store/mlflow.db")
    return f"sqlite:///{tmp_path}/store/mlflow.db"


def points(uri: str, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in MlflowClient(uri).get_metric_history(run_id, name)]


def test_a_run_from_start_to_end(tmp_path, uri):
    handle = start(tmp_path / "run", uri, run_name="first", parent_run_id="p" * 32)
    writer = MetricWriter(handle)
    for step in range(2500):
        writer.log(step, {"train/loss": 1 / (step + 1), "time/step_ms": 5})
    unsent = writer.close()
    assert unsent.points == 0 and str(unsent) == "all metrics are in MLflow"
    assert finish(handle, "FINISHED", {"best": "yes"})

    run = MlflowClient(uri).get_run(handle.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert run.data.params == {"lr": "0.1"}
    assert run.data.tags.items() >= {"synthetic": "true", "best": "yes", "mlflow.parentRunId": "p" * 32}.items()
    assert points(uri, handle.run_id, "train/loss") == [(s, 1 / (s + 1)) for s in range(2500)]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(2500))
    artifacts = Path(run.info.artifact_uri)
    assert artifacts.is_relative_to(tmp_path / "store" / "mlartifacts")
    assert (artifacts / "config.yaml").read_text() == "lr: 0.1\n"


@pytest.mark.slow
def test_no_second_store_appears(tmp_path):
    # mlflow/mlflow#18534: runs quietly went to another SQLite file in the working folder.
    program = """
import app.tracking as t, pathlib
h = t.open_run(t.TrackingSettings(uri={uri!r}), folder=pathlib.Path("run"), params={{}}, config_yaml="", tags={{}})
w = t.MetricWriter(h, system_metrics=True); w.log(0, {{"a": 1.0}})
assert w.close().points == 0 and t.finish(h, "FINISHED")
print(h.uri)
"""
    for name, given, stores in [("default", "", {"mlflow.db"}), ("stated", f"sqlite:///{tmp_path}/s/my.db", set())]:
        cwd, home = tmp_path / name, tmp_path / f"{name}-home"
        cwd.mkdir(), home.mkdir()
        env = {**os.environ, "HOME": str(home), "PYTHONPATH": str(Path(tracking.__file__).parent.parent)}
        env.pop("MLFLOW_TRACKING_URI", None)
        out = subprocess.run(
            [sys.executable, "-c", program.format(uri=given)],
            cwd=cwd,
            env=env,
            text=True,
            capture_output=True,
            check=True,
        )
        found = {p.name for p in cwd.iterdir()} - {"run", "mlflow.db.lock", "mlartifacts"}
        assert found == stores
        assert (cwd / "mlartifacts").exists() == bool(stores)
        assert not list(home.rglob("mlflow.db")) and not list(home.rglob("mlruns"))
        assert MlflowClient(out.stdout.strip()).search_runs(["1"])[0].info.status == "FINISHED"


@pytest.mark.parametrize("bad", ["./mlruns", "/data/mlruns", "file:///data/mlruns", "mlruns"])
def test_directory_store_is_refused_with_the_uri_to_use(bad):
    with pytest.raises(UserError, match=r"directory store.*use sqlite:////.*mlruns/mlflow\.db"):
        normalise_uri(bad)


def test_uris(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert normalise_uri("") == normalise_uri("sqlite:///mlflow.db") == f"sqlite:///{tmp_path}/mlflow.db"
    assert normalise_uri("http://h:5000") == "http://h:5000"
    for bad, text in [("sqlite://", "memory"), ("sqlite:///:memory:", "memory"), ("htp://h", "unknown scheme")]:
        with pytest.raises(UserError, match=text):
            normalise_uri(bad)
    assert (
        tracking.dashboard_command("sqlite:////a b/m.db").removeprefix(f"{Path(sys.executable).parent}/")
        == "mlflow ui --backend-store-uri 'sqlite:////a b/m.db'"
    )
    assert "secret" not in tracking.dashboard_command("postgresql://u:secret@h/db")


@pytest.mark.parametrize(
    "uri", ["http://localhost:5000", "http://127.0.0.1:1", "http://0.0.0.0:1", "sqlite:////a/m.db"]
)
def test_a_store_that_only_the_driver_sees(uri):
    check_reachable_from_workers(uri, 1)
    with pytest.raises(UserError, match=r"workers run on 2 hosts.*mlflow server --host"):
        check_reachable_from_workers(uri, 2)
    check_reachable_from_workers("http://tracker:5000", 2)


ODD = [
    "auc(valid)",
    "auc:valid:",
    "auc@valid@",
    "recall@10",
    "a//b",
    "../up",
    "/root",
    ".",
    "",
    "é",
    "x" * 400,
    "a\nb",
    "ok",
]


def test_names_are_cleaned_and_stay_distinct(tmp_path, uri):
    names = [*ODD, *(f"a{c}b" for c in "()[]{}<>:;,@#$%^&*+=|\\?!'\"~`")]
    handle = start(tmp_path / "run", uri, params={n: i for i, n in enumerate(names)})
    writer = MetricWriter(handle)
    writer.log(1, {n: i for i, n in enumerate(names)})
    assert writer.close().points == 0
    data = MlflowClient(uri).get_run(handle.run_id).data
    assert sorted(data.metrics.values()) == list(range(len(names)))
    assert sorted(int(v) for v in data.params.values()) == list(range(len(names)))
    assert clean_name("train/loss") == "train/loss" and clean_name("a@b").startswith("a_b-")


def test_long_parameters_do_not_cost_the_run(tmp_path, uri):
    # mlflow/mlflow#10512: one value over the limit took all other logging with it.
    params = {f"table_{i}": [10**6] * 26 for i in range(120)} | {"long": "x" * 10_000, "path": "/a" * 2000}
    config = "\n".join(f"{k}: {v}" for k, v in params.items())
    handle = start(tmp_path / "run", uri, params=params, config_yaml=config)
    writer = MetricWriter(handle)
    writer.log(0, {"a": 1.0})
    assert writer.close().points == 0
    client = MlflowClient(uri)
    stored = client.get_run(handle.run_id).data.params
    assert len(stored) == 122 and len(stored["long"]) == 500 and stored["long"].endswith("...")
    assert Path(client.download_artifacts(handle.run_id, "config.yaml")).read_text() == config


def test_non_finite_values_become_a_tag(tmp_path, uri):
    # mlflow/mlflow#22826: Inf is stored as the largest float.
    handle = start(tmp_path / "run", uri)
    writer = MetricWriter(handle)
    for step, value in enumerate([0.5, math.nan, math.inf, -math.inf, 0.25]):
        writer.log(step, {"train/loss": value})
    assert writer.close().points == 0
    assert points(uri, handle.run_id, "train/loss") == [(0, 0.5), (4, 0.25)]
    tags = MlflowClient(uri).get_run(handle.run_id).data.tags
    assert (tags["diverged"], tags["diverged_first"]) == ("true", "train/loss = nan at step 1")
    local = [json.loads(line)["metrics"]["train/loss"] for line in (tmp_path / "run/metrics.jsonl").open()]
    assert local == [0.5, "nan", "inf", "-inf", 0.25]


def test_log_never_raises(tmp_path, uri):
    writer = MetricWriter(start(tmp_path / "run", uri))
    writer.log(0, {"none": None, "text": "abc", "list": [1], 3: 4, "good": "0.5"})
    assert writer.close().points == 0
    assert json.loads((tmp_path / "run/metrics.jsonl").read_text())["metrics"] == {"3": 4.0, "good": 0.5}


def test_system_metrics(tmp_path, uri):
    handle = start(tmp_path / "run", uri)
    writer = MetricWriter(handle, system_metrics=True)
    while not (tmp_path / "run/metrics.jsonl").read_text():
        pass
    assert writer.close().points == 0
    names = MlflowClient(uri).get_run(handle.run_id).data.metrics
    assert {
        "system/cpu_utilization_percentage",
        "system/system_memory_usage_megabytes",
        "system/disk_usage_percentage",
        "system/network_receive_megabytes",
    } <= set(names)


def test_a_restarted_writer_goes_on_where_the_killed_one_stopped(tmp_path, uri):
    handle = start(tmp_path / "run", uri)
    writer = MetricWriter(handle)
    writer.log(0, {"a": 0.0})
    assert writer.close().points == 0
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "time": 5, "metrics": {"a": 1.0}}\n{"step": 2, "ti')  # killed here
    writer = MetricWriter(handle)
    writer.log(2, {"a": 2.0})
    assert writer.close().points == 0
    assert sorted(points(uri, handle.run_id, "a")) == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_a_resumed_run_is_the_same_run(tmp_path, uri):
    changed = {"config_yaml": "lr: 0.2\n", "tags": {"world_size": "4"}}
    assert reopen_run(tmp_path / "run", **changed) is None
    handle = start(tmp_path / "run", uri)
    assert finish(handle, "KILLED")
    assert reopen_run(tmp_path / "run", **changed) == handle
    run = MlflowClient(uri).get_run(handle.run_id)
    assert run.info.status == "RUNNING"
    assert run.data.tags["world_size"] == "4" and run.data.tags["synthetic"] == "true"
    config = MlflowClient(uri).download_artifacts(handle.run_id, "config.yaml", str(tmp_path))
    assert Path(config).read_text() == "lr: 0.2\n"
    assert finish(handle, "FINISHED")
    assert MlflowClient(uri).get_run(handle.run_id).info.status == "FINISHED"


def test_dead_server_at_start_stop_or_continue(tmp_path, caplog):
    dead = "http://127.0.0.1:9"
    with pytest.raises(UserError, match="cannot open a run at http://127"):
        start(tmp_path / "a", dead, settings=TrackingSettings(uri=dead, on_error="stop"))
    with caplog.at_level(logging.WARNING):
        handle = start(tmp_path / "b", dead, run_name="later")
    assert "training goes on" in caplog.text and handle.run_id == ""
    writer = MetricWriter(handle)
    for step in range(1500):
        writer.log(step, {"a": step})
    unsent = writer.close()
    assert unsent.points == 1500 and unsent.file == tmp_path / "b/metrics.jsonl"
    assert not finish(handle, "FINISHED", {"k": "v"})

    later = f"sqlite:///{tmp_path}/later.db"
    assert resend(tmp_path / "b", later) == 1500
    assert resend(tmp_path / "b", later) == 0
    runs = MlflowClient(later).search_runs(["1"])
    assert len(runs) == 1
    run = runs[0]
    assert (run.info.status, run.info.run_name, run.data.params) == ("FINISHED", "later", {"lr": "0.1"})
    assert run.data.tags["k"] == "v"
    assert points(later, run.info.run_id, "a") == [(s, float(s)) for s in range(1500)]


def test_resend_needs_a_run_folder_and_a_store(tmp_path):
    with pytest.raises(UserError, match=r"no run\.json"):
        resend(tmp_path)
    start(tmp_path / "run", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="cannot send to http://127"):
        resend(tmp_path / "run")


def test_unwritable_store_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot open a run"):
        start(tmp_path / "run", "", settings=TrackingSettings(uri=f"sqlite:///{tmp_path}/file/m.db", on_error="stop"))


def test_deleted_experiment(tmp_path, uri):
    start(tmp_path / "run", uri)
    client = MlflowClient(uri)
    client.delete_experiment(client.get_experiment_by_name("x").experiment_id)
    with pytest.raises(UserError, match=r"experiment 'x' is deleted.*restore"):
        start(tmp_path / "run2", uri)


def test_bounded():
    with pytest.raises(TimeoutError, match="no answer"):
        bounded(__import__("threading").Event().wait, 0.05)
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 / 0, 5)
    assert bounded(lambda: None, 5) is None


def test_metric_file_reads_whole_lines(tmp_path):
    line = '{"step": 0, "time": 1, "metrics": {"a": 1, "b": 2}}\n'
    (tmp_path / "metrics.jsonl").write_text(line * 3 + line[:10])
    file = MetricFile(tmp_path)
    assert file.count() == 6
    got, _, end = file.read(limit=3)
    assert len(got) == 4 and end == 2 * len(line)
    file.commit(end, 1, diverged=False)
    assert MetricFile(tmp_path).count() == 1
    assert [p[0] for p in MetricFile(tmp_path).read()[0]] == ["b"]


def _one_of_eight(uri: str, folder: str, barrier) -> None:
    barrier.wait()
    handle = start(Path(folder), uri)
    writer = MetricWriter(handle)
    for step in range(500):
        writer.log(step, {"a": step})
    assert writer.close(60).points == 0
    assert finish(handle, "FINISHED")


@pytest.mark.slow
def test_eight_processes_on_one_fresh_store(tmp_path):
    uri = f"sqlite:///{tmp_path}/store/mlflow.db"
    # mlflow/mlflow#6490, mlflow/mlflow#20014: database locked, or the schema set-up raced.
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(8)
    workers = [context.Process(target=_one_of_eight, args=(uri, f"{tmp_path}/run{i}", barrier)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [w.exitcode for w in workers] == [0] * 8
    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("x").experiment_id])
    assert [r.info.status for r in runs] == ["FINISHED"] * 8
    assert sum(len(points(uri, r.info.run_id, "a")) for r in runs) == 4000
