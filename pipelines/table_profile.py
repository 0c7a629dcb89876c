"""What each table of a briefly trained model sends and what errors in it cost, at some bounds: measured, not trained
anew for each of them.

Held-out batches go through the model once as they are, and then with the rows of one table at a time replaced by what
is decoded of them at a bound. What that costs is the second-order term of the loss, see `compression.bounds.Shadow`;
the difference of the losses itself is there too, with its noise.

An error e of the gradient g of a row becomes an error of its weights, of lr e / sqrt(accumulator) under row-wise
Adagrad, and costs what an error of rows of that size costs. Errors of many steps add up like noise, but the part of e
along g points the same way as long as g does, as where a small gradient is rounded to zero again and again: its square
counts `PERSISTENCE` times. How many steps errors stay is the same for all tables, and left out: so harm of gradients is
comparable between tables and bounds, not with harm of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from compression.bounds import Curve, Shadow

PERSISTENCE = 100
"""Steps over which the gradient of a row keeps its direction, about."""
SMALL = 1e-30


class Lookup(NamedTuple):
    """What a batch asks of a table."""

    rows: torch.Tensor
    """float32 [distinct, D]."""
    ids: torch.Tensor
    inverse: torch.Tensor
    """int64 [lookups]: which row each is."""
    offsets: torch.Tensor
    """int64 [B]: of the bags."""

    def pool(self, rows: torch.Tensor, mode: str) -> torch.Tensor:
        """float32 [B, D]."""
        if not self.inverse.numel():
            return rows.new_zeros(self.offsets.numel(), rows.size(1))
        return functional.embedding_bag(self.inverse, rows, self.offsets, mode=mode)


@dataclass
class Direction:
    """Sums over batches of one direction of a table, by bound."""

    bounds: tuple[float, ...]
    bytes: NDArray[np.float64] = field(init=False)
    harm: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.bytes, self.harm = np.zeros(len(self.bounds)), np.zeros(len(self.bounds))

    def curve(self, batches: int, share: float, price: float = 1.0) -> Curve:
        """Means of a step, harm times `price`. Bytes descend and harm ascends: what does not is noise."""
        size = np.minimum.accumulate(self.bytes / batches * share)
        harm = np.maximum.accumulate(self.harm / batches * price)
        return Curve(self.bounds, tuple(size.tolist()), tuple(harm.tolist()))


@dataclass
class TableProfile:
    """Of one table; shares and bytes are means over batches."""

    table: str
    dim: int
    bounds: tuple[float, ...]
    rows: Direction = field(init=False)
    gradients: Direction = field(init=False)
    """Harm is a mean square of errors of weights until it is multiplied by `cost_of_error`."""
    shadows: list[Shadow] = field(init=False)
    """By bound: the difference of the losses with errors in the rows of this table alone."""
    equal: NDArray[np.float64] = field(init=False)
    """By bound: share of distinct rows that become equal to another one (the paper's homogenisation)."""
    sample: NDArray[np.float32] = field(init=False)
    """Distinct rows of a batch."""
    value_range: float = 0.0
    square: float = 0.0
    distinct: int = 0
    lookups: int = 0
    squared_error: NDArray[np.float64] = field(init=False)
    """By bound: mean square of the errors of rows, over lookups."""

    def __post_init__(self) -> None:
        self.rows, self.gradients = Direction(self.bounds), Direction(self.bounds)
        self.shadows = [Shadow(0, 0, 0, 0, 0)] * len(self.bounds)
        self.equal, self.squared_error = np.zeros(len(self.bounds)), np.zeros(len(self.bounds))

    @property
    def cost_of_error(self) -> float:
        """Harm per mean square of the errors of rows."""
        weight = float((self.squared_error**2).sum())
        return float((self.rows.harm * self.squared_error).sum()) / weight if weight > 0 else 0.0


def lasting_error(true: NDArray[np.float64], out: NDArray[np.float32]) -> NDArray[np.float64]:
    """Mean square of the errors of each row, [rows, D] -> [rows], its part along the row itself counted as lasting."""
    errors = out - true
    along = np.square((errors * true).sum(axis=1)) / np.maximum(np.square(true).sum(axis=1), SMALL)
    return (np.square(errors).sum(axis=1) + PERSISTENCE * along) / true.shape[1]
