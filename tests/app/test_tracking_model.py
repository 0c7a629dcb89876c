"""The pyfunc model: stored with a signature, and loadable without Thinwire."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from app.tracking import MetricWriter, TrackingSettings, finish, open_run
from app.tracking_model import log_exported_model
from app.tracking_store import RunHandle

SCORE = """
import torch

def load(path):
    return torch.load(path, weights_only=True)

def predict(model, dense, ids):
    assert dense.dtype == "float32" and dense.shape[1] == 2, dense
    assert ids["C1"].dtype == "int32", ids
    total = torch.tensor(dense).sum(1) + torch.tensor(ids["C1"]) * model["w"]
    return (total + torch.tensor([float(sum(row)) for row in ids["bag"]])).numpy()
"""

LOAD = """
import json, sys, warnings
import mlflow, pandas as pd
sys.modules["app"] = None  # importing Thinwire would fail
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2])
frame = pd.DataFrame({"I1": [0.5, 1], "I2": [1, 2.5], "C1": [3, 4], "bag": [[1, 2], []]})
print(json.dumps({"scores": model.predict(frame).tolist(), "inputs": model.metadata.get_input_schema().to_dict()}))
"""


@pytest.fixture
def export(tmp_path):
    import torch

    folder = tmp_path / "export"
    folder.mkdir()
    torch.save({"w": torch.tensor(2.0)}, folder / "model.pt")
    (folder / "score.py").write_text(SCORE)
    return folder


EXAMPLE = {
    "I1": np.array([0.5, 1], np.float32),
    "I2": np.array([1, 2], np.float32),
    "C1": np.array([3, 4], np.int32),
    "bag": [[1, 2], []],
}


@pytest.mark.slow
def test_model_is_loadable_without_thinwire(tmp_path, export):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    handle = open_run(TrackingSettings(uri=uri), folder=tmp_path / "run", params={}, config_yaml="", tags={})
    writer = MetricWriter(handle)
    writer.log(0, {"train/loss": float("nan"), "train/inf": float("inf")})  # at the step of the model
    assert writer.close().points == 0
    model_uri = log_exported_model(handle, export, EXAMPLE, np.array([10.5, 11], np.float32))
    assert finish(handle, "FINISHED")

    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", LOAD, uri, model_uri]
    out = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, check=True).stdout
    told = json.loads(out.splitlines()[-1])
    assert told["scores"] == [10.5, 11.5]
    assert [c["name"] for c in told["inputs"]] == ["I1", "I2", "C1", "bag"]

    client = MlflowClient(uri)
    model = client.get_logged_model(model_uri.removeprefix("models:/"))
    assert (model.name, model.source_run_id, model.status.value) == ("model", handle.run_id, "READY")
    run = client.get_run(handle.run_id)
    assert [m.model_id for m in run.outputs.model_outputs] == [model.model_id]
    assert run.data.tags["diverged"] == "true" and not run.data.metrics
    folder = Path(model.artifact_location)
    names = [line.split("==")[0] for line in (folder / "requirements.txt").read_text().splitlines()]
    assert set(names) == {"mlflow", "torch", "numpy", "pandas"}


def test_a_dead_server_leaves_the_export(export, caplog):
    dead = RunHandle("http://127.0.0.1:9", "a" * 32, str(export.parent), 0)
    assert log_exported_model(dead, export, EXAMPLE, np.zeros(2, np.float32)) is None
    assert str(export) in caplog.text and (export / "model.pt").exists()
