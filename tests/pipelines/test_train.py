"""The loop on real ranks: exact resume, any number of ranks, the gradient rule, export."""

from __future__ import annotations

import json
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from sklearn.metrics import log_loss, roc_auc_score
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan

from app.config import load_config
from app.trainer import example_rows, score_rows
from benchmarks.torchrun_train import FolderHooks
from pipelines import score
from pipelines.dataset import Dataset, module_name
from pipelines.errors import UserError
from pipelines.export import export_checkpoint
from pipelines.job import DivergedError
from pipelines.prepare import PrepareOptions, prepare
from pipelines.sharding import check_plan
from pipelines.synthetic import SynthOptions, write_synthetic
from pipelines.train import train
from tests.ranks import digest, run_ranks

SMALL = [
    "train.batch_size=128",
    "train.log_every=5",
    "model.embedding_dim=8",
    "model.dense_layers=[16]",
    "model.over_layers=[16]",
]


def run_all(data: str, runs: list[tuple[str, list[str]]]) -> list[dict[str, float] | str]:
    """Train one run after the other on this rank; the metrics of each, or the message of an expected error."""
    ends: list[dict[str, float] | str] = []
    for out, assignments in runs:
        config = load_config(assignments=[*SMALL, *assignments])
        job = config.job(data)
        hooks = FolderHooks(Path(out))
        try:
            with (Path(out) / f"said-{dist.get_rank()}.txt").open("a") as said, redirect_stdout(said):
                ends.append(train(job, hooks, torch.device("cpu")))
        except (UserError, DivergedError) as error:
            ends.append(str(error))
    return ends


def run_on(world_size: int, dataset: Dataset, *runs: tuple[Path, list[str]]) -> list[dict[str, float] | str]:
    """`run_all` on real ranks; what rank 0 says."""
    return run_ranks(run_all, world_size, str(dataset.path), [(str(out), options) for out, options in runs])[0]


def export(run_folder: Path, out: Path) -> Path:
    """The newest checkpoint as one state dict."""
    return export_checkpoint(run_folder / (run_folder / "newest").read_text(), out) / "model.pt"


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_resumed_run_ends_with_the_same_bits(small_dataset: Dataset, tmp_path: Path, world_size: int) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    batch = f"train.batch_size={256 // world_size}"
    options = [batch, "train.epochs=3", "optim.warmup_steps=10", "train.checkpoint_every=13"]
    # 21 steps an epoch: stops inside epoch 1, at the very end of epoch 1, and inside epoch 3.
    stops = [(parts, [*options, f"train.max_steps={stop}"]) for stop in (13, 21, 50)]
    uninterrupted, *_, resumed = run_on(world_size, small_dataset, (whole, options), *stops, (parts, options))
    assert resumed["step"] == uninterrupted["step"] == 63
    assert resumed["eval/auc"] == uninterrupted["eval/auc"]
    assert digest(export(parts, tmp_path / "a")) == digest(export(whole, tmp_path / "b"))


@pytest.mark.slow
def test_a_checkpoint_of_two_ranks_loads_on_any_number(small_dataset: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    [saved] = run_on(2, small_dataset, (out, []))
    # Rows left in the epoch would be trained on first, so evaluate at the very step of the checkpoint.
    here = f"train.max_steps={saved['step']}"
    for world_size in (1, 3, 4):
        copy = tmp_path / f"on-{world_size}"
        shutil.copytree(out, copy)
        placed = f"sharding.tables.C6={{type: table_wise, ranks: [{world_size - 1}]}}"
        options = [f"train.batch_size={256 // world_size}", placed]
        loaded, further = run_on(
            world_size, small_dataset, (copy, [*options, here]), (copy, [*options, "train.epochs=2"])
        )
        assert loaded["step"] == saved["step"]
        assert loaded["eval/log_loss"] == pytest.approx(saved["eval/log_loss"], rel=1e-6)
        assert further["step"] > saved["step"] and further["eval/log_loss"] != saved["eval/log_loss"]


@pytest.mark.slow
def test_the_number_of_ranks_changes_only_the_rounding(small_dataset: Dataset, tmp_path: Path) -> None:
    """Gradients are those of the loss averaged over the global batch, for tables and MLPs alike."""
    states = {}
    for world_size in (1, 2, 4):
        out = tmp_path / str(world_size)
        options = [f"train.batch_size={512 // world_size}", "train.max_steps=3", "optim.sparse=sgd", "optim.dense=sgd"]
        run_on(world_size, small_dataset, (out, [*options, "optim.sparse_lr=1.0", "optim.dense_lr=0.1"]))
        states[world_size] = torch.load(export(out, out / "export"), weights_only=True)["state_dict"]
    for name, value in states[1].items():
        for world_size in (2, 4):
            torch.testing.assert_close(states[world_size][name], value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "sparse"), [("dlrm", "rowwise_adagrad"), ("dcn", "sgd"), ("projection", "sgd")])
def test_the_export_scores_in_plain_torch_as_the_run_did(
    small_dataset: Dataset, tmp_path: Path, arch: str, sparse: str
) -> None:
    options = [
        f"model.arch={arch}",
        f"optim.sparse={sparse}",
        "model.table_dims={C1: 4, C3: 12}",
        "optim.dense=adagrad",
    ]
    [metrics] = run_on(2, small_dataset, (tmp_path / "run", options))
    export(tmp_path / "run", tmp_path / "export")

    labels, dense, ids = columns(small_dataset)
    scorer = score.load(tmp_path / "export" / "model.pt")
    scores = score.predict(scorer, dense, ids)
    assert scores.dtype == np.float32 and scores.shape == labels.shape
    assert roc_auc_score(labels, scores) == pytest.approx(metrics["eval/auc"], abs=1e-6)
    assert log_loss(labels, scores.astype(np.float64)) == pytest.approx(metrics["eval/log_loss"], abs=1e-6)
    assert metrics["eval/rows"] == labels.size
    with pytest.raises(ValueError, match="table C1 has"):
        score.predict(scorer, dense[:1], {name: [[99_999]] for name in ids})
    with pytest.raises(ValueError, match="no ids for table C1"):
        score.predict(scorer, dense[:1], {})


def columns(dataset: Dataset) -> tuple[np.ndarray, np.ndarray, dict]:
    """Labels, dense features and ids of the valid split."""
    table = pa.concat_tables([pq.read_table(dataset.path / p.path) for p in dataset.split("valid").parts])
    dense = np.stack([table[d.name].to_numpy() for d in dataset.manifest.dense], axis=1)
    ids = {
        t.name: table[t.name].to_pylist() if t.multi_hot else table[t.name].to_numpy() for t in dataset.manifest.tables
    }
    return table["label"].to_numpy(), dense, ids


def test_the_exported_code_needs_torch_and_numpy_alone() -> None:
    lines = Path(score.__file__).read_text().splitlines()
    imports = {line.split()[1].partition(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert imports <= {"__future__", "collections", "itertools", "pathlib", "typing", "numpy", "torch"}


def test_a_loss_that_is_not_finite_ends_all_ranks_at_one_step(small_dataset: Dataset, tmp_path: Path) -> None:
    data, runs = str(small_dataset.path), [(str(tmp_path), ["optim.sparse_lr=1e30"])]
    ends = run_ranks(run_all, 2, data, runs)
    assert ends[0] == ends[1] and "step 5" in ends[0][0]


@pytest.mark.slow
def test_no_dense_column_and_odd_table_names(tmp_path: Path) -> None:
    """Avazu has no dense columns; torch refuses modules named `type` or with a dot."""
    rows = [f"{i % 3 == 0:d},{i % 7},{i % 5},{i % 11}" for i in range(3000)]
    (tmp_path / "log.csv").write_text("\n".join(["click,type,user.id,values", *rows, ""]))
    (tmp_path / "schema.yaml").write_text("label: click\ncategorical: [type, user.id, values]\n")
    options = PrepareOptions(schema=tmp_path / "schema.yaml")
    prepare([tmp_path / "log.csv"], format="csv", out=tmp_path / "data", options=options)
    dataset = Dataset(tmp_path / "data")
    [metrics] = run_on(1, dataset, (tmp_path / "run", ["model.table_dims={user.id: 4}"]))
    export(tmp_path / "run", tmp_path / "export")
    rows_in = example_rows(dataset, "valid", rows=300)
    scores = score_rows(tmp_path / "export", dataset, rows_in)
    labels = pq.read_table(dataset.path / "valid")["label"].to_numpy()
    assert log_loss(labels, scores.astype(np.float64)) == pytest.approx(metrics["eval/log_loss"], abs=1e-6)


def test_a_module_is_named_alike_in_training_and_export() -> None:
    for column in ("C1", "type", "user.id", "a%2Eb", "ä ö"):
        assert module_name(column) == score.module_name(column)
        assert "." not in module_name(column)


@pytest.mark.slow
def test_a_plan_holds_each_of_many_tables_once(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "data", SynthOptions(rows=30_000))
    dataset = Dataset(tmp_path / "data")
    small, large = "sharding.device_memory_gb=0.02", "model.table_rows={C3: 2000000}"
    fits, too_large = run_on(
        2, dataset, (tmp_path / "a", ["train.max_steps=1"]), (tmp_path / "b", ["train.max_steps=1", small, large])
    )
    assert fits["step"] == 1
    assert "the tables do not fit" in too_large


def test_a_table_that_the_plan_lacks_is_an_error() -> None:
    plan = ShardingPlan({"ebc": EmbeddingModuleShardingPlan({"a": None, "c": None})})
    with pytest.raises(RuntimeError, match="each table exactly once: b, c"):
        check_plan(plan, ["a", "b"])


def test_mistakes_of_the_user_are_named(small_dataset: Dataset, tmp_path: Path) -> None:
    rows = small_dataset.table_rows["C6"]
    cases = {
        "train.batch_size=100000": "fewer than one global batch",
        "model.table_rows.C6=10": f"table 'C6' would have 10 rows, but the data set holds {rows} ids",
        "model.table_dims.X=4": "no table 'X'",
        "sharding.tables.X={type: table_wise, ranks: [0]}": "no table 'X'",
        "sharding.tables.C1={type: table_wise, ranks: [7]}": "for 1 workers",
        "sharding.tables.C1={type: row_wise}": "no row_wise sharding",
        "sharding.device_memory_gb=1e-9": "the tables do not fit",
        "optim.sparse=adam": "no fused Adam",
        "cache.hot_rows={X: 4}": "no table 'X'",
        "cache.hot_rows={C6: 100000}": f"100,000 of {rows} rows",
        "data.valid_split=test": "no split 'test'",
    }
    ends = run_on(1, small_dataset, *((tmp_path / "x", [assignment]) for assignment in cases))
    for (assignment, expected), end in zip(cases.items(), ends, strict=True):
        assert isinstance(end, str) and expected in end, assignment
    column_wise = ["sharding.tables.C6={type: column_wise, ranks: [0, 0]}", "cache.hot_share=0.1"]
    adam = ["optim.sparse=adam", "cache.hot_share=0.1"]
    ends = run_on(1, small_dataset, (tmp_path / "x", column_wise), (tmp_path / "x", adam))
    assert "table 'C6' is column_wise" in str(ends[0]) and "hot rows cannot go on with it" in str(ends[1])


@pytest.mark.slow
def test_a_checkpoint_of_another_model_or_data_set_is_refused(small_dataset: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    cases = {
        "model.embedding_dim=4": "table C1 is",
        "model.arch=dcn": "model.arch is dlrm in the checkpoint and dcn in this run",
        "model.dense_layers=[32]": "model.dense_layers is",
        "model.pooling=mean": "model.pooling is",
        "optim.sparse=sgd": "optim.sparse is",
        "train.seed=1": "train.seed is 0 in the checkpoint and 1 in this run",
        "data.shuffle=false": "data.shuffle is",
    }
    _, *ends = run_on(1, small_dataset, (out, ["train.max_steps=2"]), *((out, [case]) for case in cases))
    for (assignment, expected), end in zip(cases.items(), ends, strict=True):
        assert isinstance(end, str) and expected in end, assignment
    other = tmp_path / "other"
    shutil.copytree(small_dataset.path, other)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["split_rule"] = "another"
    (other / "manifest.json").write_text(json.dumps(manifest))
    [end] = run_on(1, Dataset(other), (out, []))
    assert "was made from another data set" in end


@pytest.mark.slow
def test_stated_placement_is_kept_and_printed(small_dataset: Dataset, tmp_path: Path) -> None:
    options = [
        "sharding.tables.C1={type: table_wise, ranks: [1]}",
        "sharding.tables.C2={type: column_wise, ranks: [0, 1]}",
        "train.max_steps=2",
    ]
    run_on(2, small_dataset, (tmp_path, options))
    lines = (tmp_path / "said-0.txt").read_text().splitlines()
    plan = {line.split()[0]: line for line in lines if line.startswith("C")}
    assert sorted(plan) == ["C1", "C2", "C3", "C4", "C5", "C6"]
    assert plan["C1"].split()[-1] == "1" and "table_wise" in plan["C1"]
    assert plan["C2"].split()[-1] == "0,1" and "column_wise" in plan["C2"]
    assert all("fused" in line for line in plan.values()), "no optimiser would see another one"
    state, start = export(tmp_path, tmp_path / "export"), "train.max_steps=1"
    run_on(2, small_dataset, (tmp_path / "one", [*options[:2], start]))
    first = torch.load(export(tmp_path / "one", tmp_path / "first"), weights_only=True)["state_dict"]
    second = torch.load(state, weights_only=True)["state_dict"]
    assert not [table for table in plan if torch.equal(*(of[f"tables.table_{table}.weight"] for of in (first, second)))]
