"""What each table of a briefly trained model sends and what errors in it cost, at some bounds: measured, not trained
anew for each of them.

Held-out batches go through the model once as they are, and then with the rows of one table at a time replaced by what
is decoded of them at a bound. What that costs is the second-order term of the loss, see `compression.bounds.Shadow`;
the difference of the losses itself is there too, with its noise.

An error e of the gradient g of a row becomes an error of its weights, of lr e / sqrt(accumulator) under row-wise
Adagrad, and costs what an error of rows of that size costs. A row that was updated n times has n such errors: they add
up like noise, to n times their square, but for the part of e along g, which points the same way as long as g does, as
where a small gradient is rounded to zero again and again: that part adds up to (2 n)^2 times its square, for the
accumulator grows by as much each time. n is the accumulator over the square of the gradient. Harm of gradients is
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


def lasting_error(
    true: NDArray[np.float64], out: NDArray[np.float32], updates: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What the errors of gradients add up to, a mean square for each row: [rows, D], updates [rows] -> [rows]."""
    errors = out - true
    along = np.square((errors * true).sum(axis=1)) / np.maximum(np.square(true).sum(axis=1), SMALL)
    across = np.maximum(np.square(errors).sum(axis=1) - along, 0)
    return (updates * across + (2 * updates) ** 2 * along) / true.shape[1]
