"""Mistakes that the command must name in one line, before anything is started."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from app.cli import cli
from pipelines.dataset import Dataset


def one_line(result: tuple[int, str, str]) -> str:
    code, _, error = result
    assert code == 2
    assert error.startswith("thinwire: ") and error.count("\n") == 1, error
    return error


def test_training_without_data_is_refused(run, tmp_path: Path) -> None:
    # facebookresearch/dlrm#374: a forgotten flag trained on made-up data.
    assert "data.path: no data set is named" in one_line(run("train"))
    assert "data.path: no data set is named" in one_line(run("train", "--preset", "kaggle"))
    assert f"{tmp_path}/nothing: no such data set" in one_line(run("train", "--data", "nothing"))
    (tmp_path / "empty").mkdir()
    assert "the folder is empty" in one_line(run("train", "--data", "empty"))
    (tmp_path / "file").write_text("x")
    assert "is a file, not a prepared data set" in one_line(run("train", "--data", "file"))
    assert "both data.path (x) and data.synthetic are set" in one_line(
        run("train", "--preset", "smoke", "--set", "data.path=x")
    )


def test_too_few_rows_are_named_before_anything_is_made(run, tmp_path: Path, small_dataset: Dataset) -> None:
    line = one_line(run("train", "--data", str(small_dataset.path), "--set", "train.batch_size=20000"))
    assert "36,000 rows are fewer than one global batch of 40,000 (2 workers)" in line
    assert not (tmp_path / "runs").exists()


def test_a_broken_data_set_is_named(run, tmp_path: Path, small_dataset: Dataset) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(small_dataset.path, broken)
    manifest = json.loads((broken / "manifest.json").read_text())
    (broken / small_dataset.split("train").parts[0].path).unlink()
    assert "of the data set is missing" in one_line(run("train", "--data", "broken"))
    manifest["tables"] = [{"nam": "C1"}]
    (broken / "manifest.json").write_text(json.dumps(manifest))
    assert "bad manifest: tables.0.name" in one_line(run("train", "--data", "broken"))


def test_wrong_options(run) -> None:
    assert "did you mean demo?" in one_line(run("train", "--preset", "dmo"))
    assert "did you mean train.epochs?" in one_line(run("train", "--set", "train.epoch=1"))
    assert "no such file" in one_line(run("train", "--resume", "runs/none"))
    assert "has its own configuration" in one_line(run("train", "--resume", "x", "--preset", "demo"))
    assert "neither a run nor a checkpoint" in one_line(run("export", "nowhere", "--out", "o"))
    assert "names no days" in one_line(run("prepare", "x", "--format", "criteo-1tb", "--days", "a-b", "--out", "o"))
    assert "not TABLE=MEAN" in one_line(run("synth", "--out", "o", "--multi-hot", "C1"))
    code, _, error = run("train", "--no-such-option")
    assert code == 2 and "No such option" in error


def test_prepare_and_synth_write_what_they_say(run, tmp_path: Path) -> None:
    code, out, _ = run(
        "synth", "--out", "s", "--rows", "3000", "--tables", "3", "--multi-hot", "C2=4", "--json", "s.json"
    )
    assert code == 0 and "thinwire train --data s" in out
    assert json.loads((tmp_path / "s.json").read_text())["manifest"]["synthetic"] is True
    assert Dataset(tmp_path / "s").manifest.tables[1].multi_hot
    (tmp_path / "log.csv").write_text("click,price,item\n1,2.5,a\n0,,b\n1,1,a\n0,3,\n")
    (tmp_path / "schema.yaml").write_text("label: click\ndense: [price]\ncategorical: [item]\n")
    prepare = ["prepare", "log.csv", "--format", "csv", "--schema", "schema.yaml", "--split", "last:0.25", "--out", "d"]
    assert run(*prepare)[0] == 0
    assert Dataset(tmp_path / "d").table_rows == {"item": 4}
    assert "item" in (tmp_path / "d" / "summary.txt").read_text()
    assert run(*prepare)[0] == 2, "a finished data set is not replaced without --overwrite"
    served = run("prepare", "log.csv", "--format", "csv", "--schema", "schema.yaml", "--like", "d", "--out", "serve")
    assert served[0] == 0, served
    (tmp_path / "schema.yaml").write_text("label: click\ncategorical: [itm]\n")
    wrong = run("prepare", "log.csv", "--format", "csv", "--schema", "schema.yaml", "--out", "e")
    assert "itm" in one_line(wrong)


def test_options_are_values_not_yaml(run) -> None:
    _, out, _ = run("train", "--data", "my data #1", "--name", "20260101", "--show-config")
    assert "path: 'my data #1'" in out and "name: '20260101'" in out


def test_a_result_that_cannot_be_written_is_found_before_training(run) -> None:
    assert "--json no/such/out.json: cannot write it" in one_line(
        run("train", "--preset", "smoke", "--json", "no/such/out.json")
    )


def test_show_config_and_help(run) -> None:
    code, out, _ = run("train", "--preset", "demo", "--show-config")
    assert code == 0 and "batch_size:" in out
    for name, command in cli.commands.items():
        assert name == "bench" or "Example:" in (command.epilog or ""), f"{name} --help shows no example"
        assert run(name, "--help")[0] == 0
    assert run("bench", "loader", "--help")[0] == 0
