"""Hot rows in a training step: added to the cold part of every bag, and updated once the ranks have met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd import Variable

from cache.replica import Replica
from cache.split import HotLookups
from cache.sync import Sync
from cache.tables import Ints

Floats = NDArray[np.float32]


class HotRows:
    """The replica of this rank and its sync. All ranks must take the same steps.

    In the forward pass a rank tells which rows it has touched; in the backward pass it sends their gradients as soon
    as they are there. Sums that are on their way when the backward pass ends are applied before the next read, so a row
    that is read in step i has all updates of step i - 1.

    Args:
        rate: asked in each step for the learning rate.
        divisor: asked in each step for what sums of gradients are divided by: the number of ranks, where the tables'
            exchange divides by it.
        observe: told of the lookups of each batch that is trained on, and of no other.
    """

    def __init__(
        self,
        replica: Replica,
        sync: Sync,
        rate: Callable[[], float],
        divisor: Callable[[], float] = lambda: 1.0,
        observe: Callable[[HotLookups], None] = lambda _: None,
    ) -> None:
        self.replica, self._sync = replica, sync
        self._rate, self._divisor, self._observe = rate, divisor, observe
        self._columns: tuple[tuple[str, ...], tuple[int, ...], Ints] | None = None
        self._pending: tuple[float, float] | None = None

    def look_up(
        self, cold: Callable[[], torch.Tensor], lookups: HotLookups, keys: Sequence[str], dims: Sequence[int]
    ) -> torch.Tensor:
        """Pooled embeddings of the whole bags.

        Args:
            cold: gives float32 [B, C], those of the cold ids alone. It is called late: they may be on their way.
            keys, dims: the features of `cold` and their columns, in order.

        Returns:
            float32 [B, C]. A bag of one hot id is its row, bit for bit.
        """
        self.settle()
        columns = self._columns_of(keys, dims)
        hot = torch.from_numpy(self.replica.look_up(lookups, columns, sum(dims)))
        values = cold()
        scale = self._scale(lookups, columns, sum(dims))
        if not torch.is_grad_enabled() or not values.requires_grad:
            return values + hot if scale is None else values * scale + hot
        self._observe(lookups)
        self._sync.announce(lookups.touched)
        out: torch.Tensor = _Add.apply(values, hot, scale, self, lookups, columns)
        return out

    def settle(self) -> None:
        """Apply what the last step still has to bring. Whoever reads or writes the replica calls it first."""
        if self._pending is None:
            return
        (rate, divisor), self._pending = self._pending, None
        slots, sums = self._sync.receive()
        if divisor != 1:
            sums = sums / np.float32(divisor)
        self.replica.update(slots, sums, rate)

    def backward(self, lookups: HotLookups, grad: torch.Tensor, columns: Ints) -> None:
        """Send the gradients; float32 [B, C], of the output of `look_up`."""
        self._sync.send(self.replica.gradients(lookups, grad.detach().numpy(), columns))
        Variable._execution_engine.queue_callback(self._reduce)

    def _reduce(self) -> None:
        self._sync.reduce()
        self._pending = self._rate(), self._divisor()

    def _columns_of(self, keys: Sequence[str], dims: Sequence[int]) -> Ints:
        """First column of each feature of the replica."""
        known = self._columns
        if known is None or known[:2] != (tuple(keys), tuple(dims)):
            starts = dict(zip(keys, np.cumsum([0, *dims]).tolist(), strict=False))
            found = np.array([starts[feature] for feature in self.replica.slots.features], np.int64)
            known = self._columns = tuple(keys), tuple(dims), found
        return known[2]

    def _scale(self, lookups: HotLookups, columns: Ints, width: int) -> torch.Tensor | None:
        """float32 [B, C]: by which the cold part of each bag is multiplied; None where it is 1."""
        if not lookups.cold_shares.size:
            return None
        scale = np.ones((lookups.batch, width), np.float32)
        shares = lookups.cold_shares.reshape(-1, lookups.batch)
        for column, dim, share in zip(columns, self.replica.slots.feature_dims, shares, strict=True):
            scale[:, column : column + dim] = share[:, None]
        return torch.from_numpy(scale)


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        cold: torch.Tensor,
        hot: torch.Tensor,
        scale: torch.Tensor | None,
        rows: HotRows,
        lookups: HotLookups,
        columns: Ints,
    ) -> torch.Tensor:
        ctx.scale, ctx.rest = scale, (rows, lookups, columns)
        return cold + hot if scale is None else cold * scale + hot

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        rows, lookups, columns = ctx.rest
        rows.backward(lookups, grads[0], columns)
        return grads[0] if ctx.scale is None else grads[0] * ctx.scale, None, None, None, None, None
