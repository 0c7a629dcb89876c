"""The exchange as a function of the lookup's output that autograd can go back through."""

from __future__ import annotations

from typing import Any

import torch
from torchrec.distributed.types import Awaitable

from compression.exchange.step import Step


def exchange(rows: torch.Tensor, step: Step) -> Awaitable[torch.Tensor]:
    """Send the lookup's output where it is wanted; wait for what this rank gets.

    Args:
        rows: float32, of the lookup of `step.lookup_features()`.
    """
    if rows.dtype != torch.float32:
        raise TypeError(f"the thin exchange takes lookups in float32, these are {rows.dtype}: give path=torchrec")
    sent = _Send.apply(rows, step)
    if sent.grad_fn is not None:
        # Autograd goes by this number, the largest first. In the backward pass, waiting for gradients comes last, after
        # the layers that do not need them.
        sent.grad_fn._set_sequence_nr(0)
    return _Wait(sent, step)


class _Wait(Awaitable[torch.Tensor]):
    def __init__(self, sent: torch.Tensor, step: Step) -> None:
        super().__init__()
        self._sent, self._step = sent, step

    def _wait_impl(self) -> torch.Tensor:
        out: torch.Tensor = _Receive.apply(self._sent, self._step)
        return out


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, step: Step) -> torch.Tensor:
        ctx.step = step
        step.send_rows(rows)
        return rows.new_zeros(1)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        return ctx.step.receive_gradients(), None


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sent: torch.Tensor, step: Step) -> torch.Tensor:  # noqa: ARG004
        ctx.step = step
        return step.receive_rows()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.step.send_gradients(grads[0])
        return grads[0].new_zeros(1), None
