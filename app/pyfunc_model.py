"""The exported model as an MLflow pyfunc. MLflow copies this file into the model: it must not import Thinwire."""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext


class ExportedModel(PythonModel):
    """Scores a DataFrame with the dense columns and one column a table (ids; lists of ids if multi-hot).

    Returns:
        float32 [rows], the click probability of each row.
    """

    def load_context(self, context: PythonModelContext) -> None:
        export = Path(context.artifacts["export"])
        spec = importlib.util.spec_from_file_location("exported_score", export / "score.py")
        assert spec is not None and spec.loader is not None
        self._score = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._score)
        self._model = self._score.load(export / "model.pt")
        self._dense, self._tables = context.model_config["dense"], context.model_config["tables"]

    # No type hints: MLflow would take the signature from them, and knows no hint for a DataFrame.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]  # noqa: ARG002
        dense = model_input[self._dense].to_numpy(dtype=np.float32)
        ids = {name: _ids(model_input[name]) for name in self._tables}
        return np.asarray(self._score.predict(self._model, dense, ids), dtype=np.float32)


def _ids(column: pd.Series) -> np.ndarray | list[list[int]]:
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(dtype=np.int32)
    return [np.asarray(row, dtype=np.int32).tolist() for row in column]


set_model(ExportedModel())
