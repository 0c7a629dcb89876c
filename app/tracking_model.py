"""The exported model in MLflow, loadable where Thinwire is not installed."""

from __future__ import annotations

import logging
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from app.tracking_store import RunHandle, bounded, connect, one_line

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient

NAME = "model"
SIZE_LIMIT = 2 << 30  # bytes; the file is copied three times on the way to the artifact store
BYTES_A_SECOND = 5e6  # the slowest upload to wait for
EXAMPLE_ROWS = 5
log = logging.getLogger(__name__)

# MLflow tells what it does for the author of a model, and counts two files on a progress bar.
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)


def log_exported_model(
    handle: RunHandle, export_dir: Path, input_example: Mapping[str, Any], scores: np.ndarray
) -> str | None:
    """Logs an export folder as a pyfunc model with a signature.

    Args:
        export_dir: has `model.pt` and `score.py` with `load(path) -> Module` and
            `predict(model, dense: float32 [n, dense columns], ids: {table: int32 [n] or n lists}) -> float32 [n]`.
        input_example: column -> n values, in the model's order: float columns are dense, the others ids of a table,
            lists of ids if multi-hot.
        scores: float32 [n], the model's output for the example.

    Returns:
        The model's URI, for `mlflow.pyfunc.load_model`; None, with a warning, if MLflow does not take it: the export
        folder stays, and training goes on. Bounded by 60 s and the time for the bytes at 5 MB/s.
    """
    if not handle.run_id:
        return None
    size = sum(f.stat().st_size for f in export_dir.rglob("*") if f.is_file())
    if size > SIZE_LIMIT:
        log.warning("the model is not logged to MLflow: %.1f GB; it is in %s", size / 1e9, export_dir)
        return None
    try:
        return bounded(lambda: _log(handle, export_dir, input_example, scores), 60 + size / BYTES_A_SECOND)
    except Exception as error:  # a failing upload must not fail the training
        log.warning("the model is not logged to MLflow: %s; it is in %s", one_line(error), export_dir)
        return None


def _log(handle: RunHandle, export_dir: Path, input_example: Mapping[str, Any], scores: np.ndarray) -> str:
    from mlflow.entities import LoggedModelOutput

    client = connect(handle.uri)
    with tempfile.TemporaryDirectory() as scratch:
        experiment = client.get_run(handle.run_id).info.experiment_id
        # Not `mlflow.pyfunc.log_model`: it needs this process's global URI and active run, and copies the metrics of
        # the step onto the model, which fails when one of them is NaN (mlflow/mlflow#16555).
        model = client.create_logged_model(experiment, name=NAME, source_run_id=handle.run_id)
        try:
            _save(Path(scratch) / NAME, model, handle.run_id, export_dir, input_example, scores)
            client.log_model_artifacts(model.model_id, str(Path(scratch) / NAME))
        except Exception:
            _fail(client, model.model_id)
            raise
        client.log_outputs(handle.run_id, models=[LoggedModelOutput(model.model_id, step=0)])
        client.finalize_logged_model(model.model_id, "READY")
    return f"models:/{model.model_id}"


def _save(
    path: Path, model: Any, run_id: str, export_dir: Path, input_example: Mapping[str, Any], scores: np.ndarray
) -> None:
    import mlflow.pyfunc
    from mlflow.models import Model, infer_signature

    frame, dense = _frame(input_example)
    # That integer columns cannot hold missing values (ids never miss), and that `predict` has no type hints.
    # Recorded, since MLflow puts a filter of its own before ours.
    with warnings.catch_warnings(record=True):
        signature = infer_signature(frame, np.asarray(scores, dtype=np.float32))
        mlflow.pyfunc.save_model(
            str(path),
            python_model=str(Path(__file__).with_name("pyfunc_model.py")),
            artifacts={"export": str(export_dir)},
            model_config={"dense": dense, "tables": [c for c in frame.columns if c not in dense]},
            signature=signature,
            input_example=frame.head(EXAMPLE_ROWS),
            pip_requirements=[f"{p}=={_public(version(p))}" for p in ("torch", "numpy", "pandas")],
            mlflow_model=Model(artifact_path=model.artifact_location, run_id=run_id, model_id=model.model_id),
        )


def _frame(input_example: Mapping[str, Any]) -> tuple[pd.DataFrame, list[str]]:
    """The example with int64 ids and float64 dense values, which is what a DataFrame from JSON or CSV has: MLflow
    widens a narrower input, and refuses a wider one."""
    import pandas as pd

    columns: dict[str, Any] = {}
    dense = []
    for name, values in input_example.items():
        kind = values.dtype.kind if isinstance(values, np.ndarray) else "O"
        if kind == "f":
            dense.append(name)
            columns[name] = values.astype(np.float64)
        elif kind in "iu":
            columns[name] = values.astype(np.int64)
        else:
            columns[name] = [np.asarray(row, dtype=np.int64).tolist() for row in values]
    return pd.DataFrame(columns), dense


def _public(text: str) -> str:
    return re.sub(r"\+.*", "", text)  # 2.13.0+cpu is not on every index


def _fail(client: MlflowClient, model_id: str) -> None:
    try:
        client.finalize_logged_model(model_id, "FAILED")
    except Exception as error:
        log.warning("model %s stays pending in MLflow: %s", model_id, one_line(error))
