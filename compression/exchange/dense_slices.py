"""How the parameters of a model are laid out as tables, and dealt out to ranks in slices of about equal size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from compression.exchange.tables import Flat, Ints


class Slices:
    """Weights [outputs, ...] are a table with a row for each input and a column for each output; others are one column.

    Args:
        parameters: in an order that is the same in every run and on all ranks.

    Attributes:
        ends: int64 [parameters + 1]: where each begins, in values.
        cuts: int64 [ranks + 1]: where each rank's slice begins, in values; between two rows of a table.
        rows: by rank, int64 [tables]: of each parameter that its slice has a part of.
        dims: int64 [tables of all ranks]: columns of these.
        firsts: int64 [ranks + 1]: the first of these of each rank.

    >>> slices = Slices([nn.Parameter(torch.zeros(3, 5)), nn.Parameter(torch.zeros(3))], ranks=2)
    >>> slices.cuts.tolist(), [rows.tolist() for rows in slices.rows], slices.dims.tolist()
    ([0, 9, 18], [[3], [2, 3]], [3, 3, 1])
    """

    def __init__(self, parameters: Sequence[nn.Parameter], ranks: int) -> None:
        dims = np.array([p.shape[0] if p.dim() > 1 else 1 for p in parameters], np.int64)
        sizes = np.array([p.numel() for p in parameters], np.int64)
        self.ends = _ends(sizes)
        of_rows = _ends(np.repeat(dims, sizes // np.maximum(dims, 1)))
        shares = [-(-int(self.ends[-1]) * rank // ranks) for rank in range(ranks + 1)]
        self.cuts = of_rows[np.searchsorted(of_rows, shares)]
        inside = [np.clip(self.ends, first, last) for first, last in pairwise(self.cuts)]
        parts = [ends[1:] - ends[:-1] for ends in inside]
        self.rows = [part[part > 0] // dims[part > 0] for part in parts]
        self.dims = np.concatenate([dims[part > 0] for part in parts])
        self.firsts = _ends(np.array([rows.size for rows in self.rows], np.int64))


def _ends(sizes: Ints) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def to_values(gradients: Sequence[torch.Tensor]) -> Flat:
    """float32 [values], in the order of the tables."""
    return torch.cat([_turned(gradient).reshape(-1) for gradient in gradients]).cpu().numpy()


def from_values(values: Flat, ends: Ints, gradients: Sequence[torch.Tensor]) -> None:
    """Write values, in the order of the tables, into the gradients."""
    for gradient, part in zip(gradients, np.split(values, ends[1:-1]), strict=True):
        turned = _turned(gradient)
        turned.copy_(torch.from_numpy(part).view(turned.shape))


def _turned(gradient: torch.Tensor) -> torch.Tensor:
    """A view with a row for each input."""
    return gradient.view(gradient.shape[0], -1).t() if gradient.dim() > 1 else gradient
