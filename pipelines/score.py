"""Score with an exported model: needs torch and numpy alone.

`thinwire export` copies this file beside model.pt:

    import score
    model = score.load("model.pt")
    clicks = score.predict(model, dense, {"C1": ids, ...})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn


class Model(nn.Module):
    """DLRM, DLRM-DCN or DLRM-Projection in plain torch, the same function that was trained.

    Args:
        config: `arch`, `pooling`, `dense_columns`, `tables` (name -> [rows, dim]), `embedding_dim`, and the shapes of
            the layers, as `thinwire export` writes them.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        dim, tables = config["embedding_dim"], config["tables"]
        self.tables = nn.ModuleDict(
            {
                module_name(n): nn.EmbeddingBag(rows, d, mode=config["pooling"], include_last_offset=True)
                for n, (rows, d) in tables.items()
            }
        )
        self.projections = nn.ModuleDict(
            {module_name(n): nn.Linear(d, dim, bias=False) for n, (_, d) in tables.items() if d != dim}
        )
        self.bottom = _mlp([len(config["dense_columns"]), *config["dense_layers"], dim], last_relu=True)
        vectors = len(tables) + 1
        over_inputs = {
            "dlrm": dim + vectors * (vectors - 1) // 2,
            "dcn": vectors * dim,
            "projection": dim + config["projection_outputs"] ** 2,
        }[config["arch"]]
        if config["arch"] == "dcn":
            self.cross = _CrossNet(vectors * dim, config["dcn_layers"], config["dcn_rank"])
        if config["arch"] == "projection":
            outputs = config["projection_outputs"] * dim
            self.branch1 = _mlp([vectors * dim, outputs], last_relu=True)
            self.branch2 = _mlp([vectors * dim, outputs], last_relu=True)
        self.over = _mlp([over_inputs, *config["over_layers"], 1], last_relu=False)

    def forward(self, dense: torch.Tensor, bags: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """Logits float32 [n] of dense float32 [n, dense columns] and, by table, ids int64 and offsets int64 [n + 1]."""
        bottom = self.bottom(dense)
        vectors = [bottom]
        for column in self.config["tables"]:
            name = module_name(column)
            pooled = self.tables[name](*bags[column])
            vectors.append(self.projections[name](pooled) if name in self.projections else pooled)
        return self.over(self._interact(bottom, torch.stack(vectors, dim=1))).squeeze(-1)

    def _interact(self, bottom: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        n, count, dim = vectors.shape
        if self.config["arch"] == "dcn":
            return self.cross(vectors.reshape(n, -1))
        if self.config["arch"] == "projection":
            flat = vectors.reshape(n, -1)
            products = self.branch1(flat).reshape(n, -1, dim) @ self.branch2(flat).reshape(n, dim, -1)
            return torch.cat([bottom, products.reshape(n, -1)], dim=1)
        row, column = torch.triu_indices(count, count, offset=1)
        return torch.cat([bottom, (vectors @ vectors.transpose(1, 2))[:, row, column]], dim=1)


class _CrossNet(nn.Module):
    """Low-rank cross network of DCN v2 (arXiv 2008.13535, section 3.3)."""

    def __init__(self, features: int, layers: int, rank: int) -> None:
        super().__init__()
        self.v = nn.ParameterList(nn.Parameter(torch.empty(rank, features)) for _ in range(layers))
        self.w = nn.ParameterList(nn.Parameter(torch.empty(features, rank)) for _ in range(layers))
        self.bias = nn.ParameterList(nn.Parameter(torch.empty(features)) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x
        for v, w, bias in zip(self.v, self.w, self.bias, strict=True):
            x = first * (x @ v.T @ w.T + bias) + x
        return x


def module_name(table: str) -> str:
    """Torch refuses some names of modules, such as `type`, and every one with a dot."""
    return "table_" + table.replace("%", "%25").replace(".", "%2E")


def _mlp(sizes: Sequence[int], *, last_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(inputs, outputs))
        if last_relu or i < len(sizes) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def load(path: str | Path) -> Model:
    """The model in an exported `model.pt`, ready to score."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    with torch.device("meta"):
        model = Model(saved["config"])
    model.load_state_dict(saved["state_dict"], assign=True)
    return model.eval()


@torch.no_grad()
def predict(model: Model, dense: np.ndarray, ids: Mapping[str, Any]) -> np.ndarray:
    """Click probabilities.

    Args:
        dense: float32 [n, dense columns], transformed as in training.
        ids: by table, int [n], or for multi-hot n sequences of ids.

    Returns:
        float32 [n].

    Raises:
        ValueError: a table is missing, has another number of rows, or an id is outside its table; or the dense features
            have another number of columns.
    """
    dense = np.ascontiguousarray(dense, dtype=np.float32)
    columns = model.config["dense_columns"]
    if dense.ndim != 2 or dense.shape[1] != len(columns):
        raise ValueError(f"dense features are {dense.shape}, expected [n, {len(columns)}]: {', '.join(columns)}")
    bags = {name: _bag(name, ids, rows, len(dense)) for name, (rows, _) in model.config["tables"].items()}
    return torch.sigmoid(model(torch.from_numpy(dense), bags)).numpy()


def _bag(name: str, ids: Mapping[str, Any], rows: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    if name not in ids:
        raise ValueError(f"no ids for table {name}")
    column = ids[name]
    if len(column) != n:
        raise ValueError(f"table {name} has {len(column)} rows, the dense features {n}")
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype != object:
        values, offsets = column.astype(np.int64), np.arange(n + 1, dtype=np.int64)
    else:
        values = np.concatenate(
            [np.asarray(row, dtype=np.int64).reshape(-1) for row in column] or [np.empty(0, np.int64)]
        )
        offsets = np.concatenate([[0], np.cumsum([np.size(row) for row in column])]).astype(np.int64)
    if values.size and (values.min() < 0 or values.max() >= rows):
        raise ValueError(f"table {name} has {rows} rows, got ids from {values.min()} to {values.max()}")
    return torch.from_numpy(values), torch.from_numpy(offsets)
