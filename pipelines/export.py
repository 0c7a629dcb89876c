"""From a sharded checkpoint to one file that plain torch loads."""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

import pipelines.score
from pipelines.checkpoint import read_state
from pipelines.dataset import module_name
from pipelines.errors import UserError

_RENAMES = [
    (r"^sparse_arch\.embedding_bag_collection\.embedding_bags\.(.+)\.weight$", r"tables.\1.weight"),
    (r"^sparse_arch\.projections\.", "projections."),
    (r"^inter_arch\.crossnet\.V_kernels\.", "cross.v."),
    (r"^inter_arch\.crossnet\.W_kernels\.", "cross.w."),
    (r"^inter_arch\.crossnet\.bias\.", "cross.bias."),
]
_PERCEPTRON = re.compile(
    r"^(dense_arch\.model|over_arch\.model\.0|inter_arch\.interaction_branch([12])\.model)\._mlp\.(\d+)\._linear\.(.+)$"
)
_LAST_LAYER = re.compile(r"^over_arch\.model\.1\.(.+)$")
_PREFIX = "model.model."


def export_checkpoint(checkpoint: Path, out: Path) -> Path:
    """Write `model.pt` (state dict and configuration) and `score.py` into `out`.

    One process reads all shards: it needs memory for all tables, but not for the optimiser.

    Raises:
        UserError: `checkpoint` is not one.
    """
    saved = read_state(checkpoint)
    model = saved["model"]
    try:
        metadata = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    except OSError as error:
        raise UserError("the checkpoint is incomplete", where=str(checkpoint), fix="use an older one") from error
    weights: dict[str, Any] = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in metadata.items()
        if key.startswith(_PREFIX) and isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        # It warns that there is no process group, which is what no_dist says.
        warnings.simplefilter("ignore", UserWarning)
        dcp.load(weights, checkpoint_id=checkpoint, no_dist=True)
    layers = len(model["over_layers"])
    state = {_plain_name(key.removeprefix(_PREFIX), layers): value for key, value in weights.items()}
    out.mkdir(parents=True, exist_ok=True)
    partial = out / "model.pt.partial"
    torch.save({"config": _config(model, saved["inputs"], state), "state_dict": state}, partial)
    pipelines.score.load(partial)  # raises unless it fits
    partial.replace(out / "model.pt")
    shutil.copyfile(pipelines.score.__file__, out / "score.py")
    return out


def _plain_name(name: str, over_layers: int) -> str:
    """TorchRec's parameter name as `pipelines.score.Model` calls it."""
    for pattern, replacement in _RENAMES:
        if re.match(pattern, name):
            return re.sub(pattern, replacement, name)
    if found := _LAST_LAYER.match(name):
        return f"over.{2 * over_layers}.{found[1]}"
    if found := _PERCEPTRON.match(name):
        part = f"branch{found[2]}" if found[2] else "bottom" if found[1].startswith("dense") else "over"
        # Each hidden layer is a linear map and a ReLU.
        return f"{part}.{2 * int(found[3])}.{found[4]}"
    raise RuntimeError(f"the export does not know the parameter {name}")


def _config(model: dict[str, Any], inputs: dict[str, Any], state: dict[str, torch.Tensor]) -> dict[str, Any]:
    shapes = {table: list(state[f"tables.{module_name(table)}.weight"].shape) for table in inputs["tables"]}
    layers = {key: value for key, value in model.items() if key not in ("table_dims", "table_rows")}
    return {**layers, **inputs, "tables": shapes}
