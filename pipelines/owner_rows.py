"""Rows and optimiser state that the owners of sharded tables hold: read on all ranks, and written where they lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel

from pipelines.errors import UserError
from pipelines.model import TABLE_MARK

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Piece:
    """A shard that lies on this rank."""

    tensor: torch.Tensor
    row: int
    """The first."""
    column: int


class OwnerRows:
    """Of one model. All ranks must make it, and call `read`, at once.

    Args:
        states: names of the optimiser's state, as FBGEMM has them.
    """

    def __init__(self, model: DistributedModelParallel, states: list[str], group: dist.ProcessGroup) -> None:
        self._group = group
        self._pieces: dict[tuple[str, str], list[Piece]] = {}
        for key, value in model.state_dict().items():
            if TABLE_MARK in key:
                self._add(key.split(TABLE_MARK)[1].removesuffix(".weight"), "weight", value)
        for key, of_table in model.fused_optimizer.state_dict()["state"].items():
            table = key.split(TABLE_MARK)[1].removesuffix(".weight")
            for name, value in of_table.items():
                if (state := name.rpartition(".")[2]) in states:
                    self._add(table, state, value)

    def read(self, table: str, ids: NDArray[np.int64], like: dict[str, Floats]) -> dict[str, Floats]:
        """Rows and state of a table, the same on all ranks, bit for bit.

        Args:
            ids: int64 [n], the same on all ranks.
            like: arrays of the shapes and names to read; their first dimension is n.
        """
        return {name: self._gather(table, name, ids, array) for name, array in like.items()}

    def write(self, table: str, ids: NDArray[np.int64], values: dict[str, Floats]) -> None:
        """Write rows and state of a table where they lie; this rank writes its own part. Sends nothing."""
        for name, array in values.items():
            for piece in self._pieces.get((table, name), []):
                here, at = _inside(piece, ids)
                part = torch.from_numpy(np.ascontiguousarray(array[here]))
                if part.dim() == 2:
                    part = part[:, piece.column : piece.column + piece.tensor.size(1)]
                piece.tensor[at] = part

    def _gather(self, table: str, name: str, ids: NDArray[np.int64], like: Floats) -> Floats:
        found = np.zeros(like.shape, np.float32)
        for piece in self._pieces.get((table, name), []):
            here, at = _inside(piece, ids)
            part = piece.tensor[at].numpy()
            if part.ndim == 2:
                found[here, piece.column : piece.column + part.shape[1]] = part
            else:
                found[here] = part
        # Each value is on one rank and 0 on the others. Sums of their bits, not of the numbers, also keep -0.0.
        bits = torch.from_numpy(found.view(np.int32))
        dist.all_reduce(bits, group=self._group)
        return found

    def _add(self, table: str, name: str, value: ShardedTensor | torch.Tensor) -> None:
        pieces = self._pieces.setdefault((table, name), [])
        if not isinstance(value, ShardedTensor):
            raise UserError(
                f"table '{table}' is not sharded, so it needs no hot rows", where="cache.hot_rows", fix="leave it out"
            )
        for shard in value.local_shards():
            row, *column = shard.metadata.shard_offsets
            pieces.append(Piece(shard.tensor.detach(), row, *(column or [0])))


def _inside(piece: Piece, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], torch.Tensor]:
    """Which of the ids lie in a piece, and where."""
    here = np.flatnonzero((ids >= piece.row) & (ids < piece.row + piece.tensor.size(0)))
    return here, torch.from_numpy(ids[here] - piece.row)
