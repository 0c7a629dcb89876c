"""How the gradients of hot rows are summed over ranks once a step: the contract, and torch's own collectives."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from cache import kernel
from cache.tables import Ints, Slots

Floats = NDArray[np.float32]


class Sync(Protocol):
    """A step calls each of these once, in this order, on all ranks. What is sent travels until it is asked for."""

    def announce(self, touched: Ints) -> None:
        """Tell which slots have a gradient on this rank.

        Args:
            touched: int64 [n], ascending.
        """

    def send(self, gradients: Floats) -> None:
        """Send their gradients: float32, one after the other."""

    def reduce(self) -> None:
        """The backward pass is over: whoever sums gradients sums them now, and sends the sums."""

    def receive(self) -> tuple[Ints, Floats]:
        """The slots that any rank touched, and the sums of their gradients, the same bits on all ranks."""


class TorchSync:
    """By two all-reduces in float32: of a bit a slot, and of the gradients of the slots that any rank touched.

    Args:
        group: of all ranks; on CPU.
    """

    def __init__(self, slots: Slots, group: dist.ProcessGroup) -> None:
        self._slots, self._group = slots, group

    def announce(self, touched: Ints) -> None:
        self._touched = touched
        marks = np.zeros(self._slots.size, np.bool_)
        marks[touched] = True
        self._marks = torch.from_numpy(np.packbits(marks))
        self._marking = self._all_reduce(self._marks, dist.ReduceOp.BOR)

    def send(self, gradients: Floats) -> None:
        self._marking.wait()
        self._union = np.flatnonzero(np.unpackbits(self._marks.numpy(), count=self._slots.size))
        sums = np.zeros(self._slots.size_of(self._union), np.float32)
        starts = self._slots.starts(self._union)[np.searchsorted(self._union, self._touched)]
        kernel.put(gradients, starts, self._slots.dims[self._touched], sums)
        self._sums = torch.from_numpy(sums)
        self._summing = self._all_reduce(self._sums, dist.ReduceOp.SUM)

    def reduce(self) -> None:
        """The collective does it."""

    def receive(self) -> tuple[Ints, Floats]:
        self._summing.wait()
        return self._union, self._sums.numpy()

    def _all_reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        return dist.all_reduce(tensor, op, group=self._group, async_op=True)
